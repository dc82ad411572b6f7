"""Medication records: read, checked, counted and sorted, ready to become sequences.

One file, because the type, its reader and the order in which the steps are taken belong together;
each step is a module of its own. Half of it documents the options.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import named_roles
from ehr_prep.dates import ISO, day_text, one_day, read_dates
from ehr_prep.drug_texts import look_up, read_coded, read_names, supply_by_text
from ehr_prep.drugs import DrugMap, Drugs, drug_map
from ehr_prep.files import Source, source_name
from ehr_prep.flow import Step, count_steps, flow_table
from ehr_prep.matching import plain
from ehr_prep.numbers import check_decimal
from ehr_prep.patients import (
    LAB_ROLES,
    OBSERVATION_ROLES,
    PATIENT_ROLES,
    Observation,
    align_patients,
    load_patients,
    patients_text,
    read_observation,
)
from ehr_prep.readers import check_matched, encode_ids, match_ids, read_table
from ehr_prep.screen import (
    Issue,
    Rows,
    count_odd,
    issue_table,
    last_days,
    repeats,
    sort_records,
    unusable,
)
from ehr_prep.unmapped import lost_share, unmapped_table
from font.checks import counted, some
from font.errors import InputError
from font.spelling import option


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Usable records of mapped drugs, sorted by patient and date. Made by `read_records`.

    Parameters
    ----------
    ids : pandas.Index (P,)
        The patients, sorted.
    indptr : (P + 1,) int64
        The records of patient p are `indptr[p]:indptr[p + 1]`.
    date : (n,) int32
        Days since 1970-01-01.
    end : (n,) int32 or None
        The last day covered; None where neither end dates nor supplies were given.
    state : (n,) int8
        Row of `members`; up to the number of `states` it is also the index into them.
    members : (m, k) int8
        The classes of one record as indices into `states`, padded with −1: first one row per
        state, then one row per fixed combination of classes.
    states : tuple of str
        The classes of the drug map.
    first_seen, last_seen : (P,) int32
        First and last day with a record of any kind, mapped or not, labs included.
    patients : DataFrame or None
        The patients' table, one row for each of `ids` (empty where it has none).
    drugs : DataFrame
        Every drug text with its class and its number of records.
    unmapped : DataFrame
        The texts that the map does not know: `drug`, `records`, `patients`, `did_you_mean`.
    flow, issues : DataFrame
        What was dropped so far, and what looked odd.
    settings : dict
        Columns and options, for the account that goes with the sequences.
    observation : Observation, optional
        When each of `ids` was observed; None: no such periods were given.
    """

    ids: pd.Index
    indptr: NDArray[np.int64]
    date: NDArray[np.int32]
    end: NDArray[np.int32] | None
    state: NDArray[np.int8]
    members: NDArray[np.int8]
    states: tuple[str, ...]
    first_seen: NDArray[np.int32]
    last_seen: NDArray[np.int32]
    patients: pd.DataFrame | None
    drug_map: DrugMap
    drugs: pd.DataFrame
    unmapped: pd.DataFrame
    flow: pd.DataFrame
    issues: pd.DataFrame
    settings: dict[str, Any]
    observation: Observation | None = None

    def __len__(self) -> int:
        return len(self.date)

    def __repr__(self) -> str:
        return self._text(" (see .flow)", " (see .unmapped)")

    def __str__(self) -> str:
        return self._text()

    def _text(self, flow: str = "", unmapped: str = "") -> str:
        """What was read, with hints where to see more."""
        unknown, lost = self.unmapped, self.settings["unmapped"]["lost"]
        by_file = self.settings["file_columns"]
        columns = [_columns_text(self.settings["columns"])]
        if by_file:
            columns = [f"{file}: {_columns_text(own)}" for file, own in by_file.items()][:5]
        lines = [
            f"Records: {len(self):,} records of {len(self.ids):,} patients, "
            f"{day_text(self.date.min())} to {day_text(self.date.max())}",
            *(f"  file      {_written(file)}" for file in self.settings["files"][:5]),
            *(f"  columns   {text}" for text in columns),
            *patients_text(self.settings["patients_columns"]),
            *(
                f"  dates     {role} as {chosen['text']}: {chosen['why']}"
                for role, chosen in self.settings["dates"].items()
                if chosen["text"] != ISO
            ),
            f"  dropped   {self.flow['records'].sum():,} records and "
            f"{self.flow['patients'].sum():,} patients{flow}",
            f"  unmapped  {len(unknown):,} drug texts in {unknown['records'].sum():,} records, "
            f"{100 * lost:.1f} % of the records of these patients{unmapped}",
        ]
        if len(self.issues):
            odd = ", ".join(
                f"{issue} ({n:,})"
                for issue, n in zip(self.issues["issue"], self.issues["n"], strict=True)
            )
            lines.append(f"  odd       {odd}")
        return "\n".join(lines)


def read_records(
    path_or_frame: Source,
    drugs: Drugs | None = None,
    *,
    patient: str | None = None,
    date: str | None = None,
    drug: str | None = None,
    end: str | None = None,
    supply: str | None = None,
    date_format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    earliest: Any = "1901-01-01",
    latest: Any = None,
    duplicates: str = "drop",
    patients: Source | None = None,
    labs: Source | None = None,
    patients_columns: Mapping[str, str] | None = None,
    labs_columns: Mapping[str, str] | None = None,
    observation_columns: Mapping[str, str] | None = None,
    file_columns: Mapping[str, Mapping[str, str]] | None = None,
    drug_names: Source | None = None,
    where: Mapping[str, str] | None = None,
    observation: Source | None = None,
    default_supply: int | Mapping[str, int] | None = None,
    strict: bool = False,
) -> Records:
    """Read medication records from a file, several files or a DataFrame.

    A record without a patient, a drug or a readable date, with a date outside
    [`earliest`, `latest`] (placeholders such as 1900-01-01 and 2999-12-31) or before birth,
    with a drug that the map does not know, or that repeats another is dropped, and counted
    in `.flow`. An end before the start, or an impossible supply, is ignored. Both kinds of
    oddity are in `.issues`.

    Parameters
    ----------
    path_or_frame : path, list of paths or DataFrame
        One row per record. A CSV file (also .gz or .zst), a Parquet file or an Excel file, whose
        first sheet with the columns needed is taken; several files as a list or a pattern such
        as "records_*.csv". Files may call their columns differently; an end or a supply that a
        file lacks is missing in its records, and that is counted in `.issues`.
    drugs : DrugMap, "ra", dict, DataFrame or path of a two-column CSV
        Needed; see `drug_map`.
    patient, date, drug : column names, optional
        Default: guessed from the names; `.settings["columns"]` has those that were taken.
    end, supply : column names, optional
        The last day covered, or the number of days supplied; guessed likewise.
    date_format : str, optional
        Such as "%m/%d/%Y". Default: ISO dates, or what the dates themselves tell, see
        `ehr_prep.dates.read_dates`; `.settings["dates"]` has the format and the reason. A year of
        two digits is the latest one that is not in the future.
    encoding, delimiter : str, optional
        Of all CSV files. Default: what each file shows; text that is not UTF-8 is read as cp1252,
        with a warning. `.settings["files"]` has what was taken.
    decimal : "." or ",", optional
        Of supplies and lab values. Default: what the values show.
    earliest, latest : dates
        Default of `latest`: today.
    duplicates : "drop" or "keep"
        What to do with a record that has the patient, day, drug and end of another.
    patients : path or DataFrame, optional
        See `read_patients`.
    labs : path or DataFrame, optional
        A patient and a date column: a lab test shows that a patient was still followed.
    patients_columns, labs_columns, observation_columns : {role: column name}, optional
        Such as {"patient": "PatNr", "birth_date": "Geb"}; see `read_patients` and `read_labs`.
    file_columns : {file: {role: column name}}, optional
        Columns of single files of records, such as {"b.csv": {"patient": "PatNr"}}; a file by its
        name or a pattern such as "2019_*.csv". They override `patient`, `date` and so on.
    drug_names : path or DataFrame, optional
        What codes in the drug column stand for: a table of codes and names, such as OMOP's
        `concept`. The drug column is then `drug_concept_id` if there is one.
    where : {column: value}, optional
        Read only rows with these values, such as {"site": "MGB"} where a file holds several
        sites; also in the patients' table and the labs, if they have these columns.
    observation : path or DataFrame, optional
        Observation periods, one or several per patient: a patient, a start and an end column. A
        record outside them is dropped and counted, the last period ends follow-up, and what
        lies between two periods is missing.
    default_supply : int or dict, optional
        Days that a record covers if it has neither an end nor a supply: one number, or
        {class or ingredient: days}, where an ingredient goes before its class and what is not
        named covers one day. The records concerned are counted in `.issues`.
    strict : bool
        Make odd records an error.

    Examples
    --------
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 9], "drug": ["Humira", "Orencia", "Rinvoq"],
    ...                       "date": ["2010-01-05", "2010-07-01", "2999-12-31"]})
    >>> records = read_records(frame, drugs="ra", latest="2020-12-31")
    >>> records
    Records: 2 records of 1 patients, 2010-01-05 to 2010-07-01
      columns   patient = 'patient_id', date = 'date', drug = 'drug'
      dropped   1 records and 1 patients (see .flow)
      unmapped  0 drug texts in 0 records, 0.0 % of the records of these patients (see .unmapped)
      odd       date after 2020-12-31 (1)
    """
    if duplicates not in ("drop", "keep"):
        raise InputError(f'duplicates must be "drop" or "keep", found {duplicates!r}.')
    check_decimal(decimal)
    name, known = source_name(path_or_frame), drug_map(drugs)
    reading: dict[str, Any] = {"encoding": encoding, "delimiter": delimiter}
    names = None if drug_names is None else read_names(drug_names, **reading)
    span = one_day(earliest, "earliest"), one_day(latest or dt.date.today(), "latest")
    named = {"patient": patient, "date": date, "drug": drug, "end": end, "supply": supply}
    table = read_coded(
        path_or_frame, named, names, where=where, file_columns=file_columns, **reading
    )
    frame, columns, n_broken, files, file_roles = table
    if not len(frame):
        raise InputError(f"{name} has no records: there is a header, but no row can be read.")
    who, ids, other_type = encode_ids(frame[columns["patient"]])
    texts = look_up(frame[columns["drug"]], known, names)
    dates = {role: frame[c] for role, c in columns.items() if role in ("date", "end")}
    days, formats = read_dates(dates, date_format, name)
    rows = Rows(who, days["date"], texts.codes, None)
    people, n_lacking = None, 0
    people_columns: dict[str, Any] = {}
    if patients is not None:
        known_people, people_columns = load_patients(
            patients,
            named_roles(patients_columns, PATIENT_ROLES, "patients"),
            date_format=date_format,
            where=where,
            about="patients",
            **reading,
        )
        people, absent = align_patients(known_people, ids)
        n_lacking, other = int(absent.sum()), _other_name(name, patients, "the patients' table")
        check_matched(ids, known_people.index, ~absent, (name, other))

    odd_periods: list[Issue] = []
    periods, observed = None, None
    if observation is not None:
        periods, odd_periods = read_observation(
            observation,
            ids,
            date_format,
            named_roles(observation_columns, OBSERVATION_ROLES, "observation"),
            where=where,
            **reading,
        )
        observed = periods.holding(who, rows.day) >= 0
    supplies = supply_by_text(default_supply, texts.table, known)

    n_patients, n_records = len(ids), len(frame) + n_broken
    reasons, dropped_for = unusable(rows, texts.state_of, span, people, observed)
    kept, unmapped = dropped_for == 0, dropped_for == len(reasons)
    steps = [
        Step("usable", "wrong number of fields", 0, n_broken),
        *count_steps("usable", reasons, who, dropped_for, n_patients),
    ]
    if not kept.any():
        raise InputError(_nothing_left(name, n_records, steps, texts.table))
    raw_ids, raw_dates = frame[columns["patient"]], frame[columns["date"]]
    issues = [
        Issue("wrong number of fields", n_broken, "dropped", ""),
        Issue("patient not in the patients' table", n_lacking, "kept", ""),
        *_without_supply(file_roles, columns, default_supply is not None),
        count_odd("id of another type", other_type, "made text", who, ids, raw_ids),
        *(
            count_odd(reason, dropped_for == number, "dropped", who, ids, raw_dates)
            for number, reason in enumerate(reasons, start=1)
            if reason.startswith("date")
        ),
    ]

    others = [rows.keep(unmapped)]
    unknown = unmapped_table(texts.table, others[0].who, others[0].drug, known)
    if labs is not None:
        chosen = named_roles(labs_columns, LAB_ROLES, "labs")
        others.append(
            _labs(labs, chosen, ids, name, span, date_format, {**reading, "where": where})
        )
    covered = frame[[columns[role] for role in ("end", "supply") if role in columns]]
    end_day = days.get("end")
    if not kept.all():
        covered, rows = covered[kept], rows.keep(kept)
        end_day = None if end_day is None else end_day[kept]
    last, odd = last_days(covered, columns, rows, ids, end_day, supplies, decimal, name)
    rows = sort_records(rows._replace(last=last))
    again = repeats(rows)
    done = "dropped" if duplicates == "drop" else "kept"
    issues += [*odd_periods, *odd]
    issues.append(count_odd("repeats another record", again, done, rows.who, ids, rows.day))
    if duplicates == "drop":
        steps.append(Step("usable", "repeats another record", 0, int(again.sum())))
        rows = rows.keep(~again) if again.any() else rows
    odd_table = issue_table(issues)
    if strict and len(odd_table):
        counts = ", ".join(f"{i.issue} ({i.n:,})" for i in odd_table.itertuples())
        raise InputError(
            f"{name} has odd records: {counts}; mend them or read without {option('strict', True)}."
        )

    count = np.bincount(rows.who, minlength=n_patients)
    present = count > 0
    indptr = np.concatenate([[0], np.cumsum(count[present])])
    first_seen, last_seen = rows.day[indptr[:-1]], rows.day[indptr[1:] - 1]
    _widen(first_seen, last_seen, present, others)
    return Records(
        ids=ids[present],
        indptr=indptr,
        date=rows.day,
        end=rows.last,
        state=texts.state_of[rows.drug],
        members=texts.members,
        states=known.states,
        first_seen=first_seen,
        last_seen=last_seen,
        patients=None if people is None else people[present],
        drug_map=known,
        drugs=texts.table,
        unmapped=unknown,
        flow=flow_table(n_patients, n_records, steps),
        issues=odd_table,
        settings={
            "source": name,
            "files": files,
            "columns": {role: str(column) for role, column in columns.items()},
            "file_columns": _differing(file_roles),
            "patients_columns": people_columns,
            "drugs": known.ingredients,
            "dates": {role: chosen._asdict() for role, chosen in formats.items()},
            "earliest": day_text(span[0]),
            "latest": day_text(span[1]),
            "duplicates": duplicates,
            "patients": None if patients is None else source_name(patients),
            "labs": None if labs is None else source_name(labs),
            "drug_names": None if drug_names is None else source_name(drug_names),
            "where": dict(where or {}),
            "unmapped": {
                "texts": len(unknown),
                "records": int(unknown["records"].sum()),
                "lost": lost_share(texts.table, others[0], present, int(kept.sum())),
            },
            "observation": None if observation is None else source_name(observation),
            "default_supply": dict(default_supply)
            if isinstance(default_supply, Mapping)
            else default_supply,
        },
        observation=None if periods is None else periods.take(present),
    )


def read_sites(
    path_or_frame: Source,
    drugs: Drugs | None = None,
    *,
    site: str | None = None,
    **options: Any,
) -> dict[str, Records]:
    """Read records of several sites from one table, as a dict {site: Records}.

    Each site is read on its own, with its own flow, so that two sites may both have a
    patient 1. `options` are those of `read_records`.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["MGB", "VA"], "patient_id": [1, 1], "drug": ["Humira"] * 2,
    ...                       "date": ["2010-01-05", "2011-01-05"]})
    >>> list(read_sites(frame, drugs="ra"))
    ['MGB', 'VA']
    """
    roles = ("patient", "date", "drug", "end", "supply")
    named = {"site": site, **{role: options.pop(role, None) for role in roles}}
    reading: dict[str, Any] = {name: options.get(name) for name in ("encoding", "delimiter")}
    frame, columns, n_broken, *_ = read_table(
        path_or_frame, named, ("site", "patient", "date", "drug"), **reading
    )
    name = source_name(path_or_frame)
    if n_broken:
        raise InputError(
            f"{counted(n_broken, 'row', 'rows')} of {name} with the wrong number of fields, so "
            "that the site is not known; mend them."
        )
    which, sites, _ = encode_ids(frame[columns["site"]])
    if (which < 0).any():
        n_without = counted((which < 0).sum(), "record", "records")
        raise InputError(f"{n_without} of {name} without a site; fill it in.")
    names = {role: column for role, column in columns.items() if role != "site"}
    return {
        str(label): read_records(frame[which == number], drugs, **names, **options)
        for number, label in enumerate(sites)
    }


# --- inside ----------------------------------------------------------------------------


def _other_name(name: str, source: Source, role: str) -> str:
    """The name of a further table, or its role where both have the same name."""
    return role if source_name(source) == name else source_name(source)


def _columns_text(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{role} = {column!r}" for role, column in columns.items())


def _differing(file_roles: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The columns of each file where files have different ones; otherwise nothing."""
    every = list(file_roles.values())
    if all(roles == every[0] for roles in every):
        return {}
    return {
        file: {role: str(column) for role, column in roles.items()}
        for file, roles in file_roles.items()
    }


def _without_supply(
    file_roles: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Any], default: bool
) -> list[Issue]:
    """Files without an end or a supply, where others have one."""
    known = {"end", "supply"}
    if not known & columns.keys():
        return []
    lacking = [file for file, roles in file_roles.items() if not known & roles.keys()]
    action = "default supply taken" if default else "records cover one day"
    return [Issue("file without an end or a supply", len(lacking), action, some(lacking))]


def _written(file: Mapping[str, str]) -> str:
    """How a file is written, in words."""
    name, *others = (f"{v}" if k == "file" else f"{k} {v}" for k, v in file.items())
    return f"{name} ({', '.join(others)})" if others else name


def _labs(
    labs: Source,
    chosen: Mapping[str, str],
    ids: pd.Index,
    name: str,
    span: tuple[int, int],
    date_format: str | None,
    reading: Mapping[str, Any],
) -> Rows:
    """Usable lab tests of patients who have records: they show that someone was followed."""
    named = {role: chosen.get(role) for role in ("patient", "date")}
    frame, columns, *_ = read_table(labs, named, ("patient", "date"), about="labs", **reading)
    who, lab_ids, _ = encode_ids(frame[columns["patient"]])
    position = match_ids(lab_ids, ids)
    names = _other_name(name, labs, "the labs"), name
    check_matched(lab_ids, ids, position >= 0, names, enough=0)  # labs may be of everyone
    who = np.append(position, -1).astype(np.int32)[who]
    days, _ = read_dates({"date": frame[columns["date"]]}, date_format, source_name(labs))
    day = days["date"]
    tests = Rows(who, day, np.zeros_like(who), None)
    return tests.keep((who >= 0) & (day >= span[0]) & (day <= span[1]))


def _widen(
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    present: NDArray[np.bool_],
    others: list[Rows],
) -> None:
    """Widen each patient's first and last day by their other rows, in place."""
    number = np.cumsum(present) - 1
    for rows in others:
        ours = rows.keep(present[rows.who])
        np.minimum.at(first, number[ours.who], ours.day)
        np.maximum.at(last, number[ours.who], ours.day)


def _nothing_left(name: str, n_records: int, steps: list[Step], drug_table: pd.DataFrame) -> str:
    reasons = ", ".join(f"{step.reason} ({step.records:,})" for step in steps if step.records)
    unknown = drug_table[drug_table["class"].isna()].sort_values("records", ascending=False)
    advice = "check the columns and the dates"
    if len(unknown):
        advice = (
            f"the drugs are {some(unknown['drug'])}: check the drug column, or give a map as in "
            f"{option('drugs', 'map.csv')}"
        )
        if unknown["drug"].head(20).map(lambda text: plain(text).isdecimal()).all():
            advice += (
                f", or say what the codes stand for, as in {option('drug_names', 'codes.csv')}"
            )
    return f"no record of {name} is usable; {n_records:,} were dropped: {reasons}; {advice}."
