"""Medication records: read, checked, counted and sorted, ready to become sequences."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import RA_DRUGS, DrugMap, drug_map
from ehr_prep.flow import Step, count_steps, flow_table
from ehr_prep.patients import Source, align_patients, read_patients
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
from ehr_prep.sources import (
    NO_DATE,
    day_text,
    encode_ids,
    factorize,
    match_ids,
    one_day,
    read_table,
    source_name,
    to_days,
)
from mmlca.checks import some


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
        Index into `states`, the classes of the drug map.
    first_seen, last_seen : (P,) int32
        First and last day with a record of any kind, mapped or not, labs included.
    patients : DataFrame or None
        The patients' table, one row for each of `ids` (empty where it has none).
    drugs : DataFrame
        Every drug text, what the map makes of it, and its number of records.
    flow, issues : DataFrame
        What was dropped so far, and what looked odd.
    settings : dict
        Columns and options, for the account that goes with the sequences.
    """

    ids: pd.Index
    indptr: NDArray[np.int64]
    date: NDArray[np.int32]
    end: NDArray[np.int32] | None
    state: NDArray[np.int8]
    states: tuple[str, ...]
    first_seen: NDArray[np.int32]
    last_seen: NDArray[np.int32]
    patients: pd.DataFrame | None
    drug_map: DrugMap
    drugs: pd.DataFrame
    flow: pd.DataFrame
    issues: pd.DataFrame
    settings: dict[str, Any]

    def __len__(self) -> int:
        return len(self.date)

    def __repr__(self) -> str:
        unknown = self.drugs[self.drugs["class"].isna()]
        columns = ", ".join(f"{role} = {c!r}" for role, c in self.settings["columns"].items())
        lines = [
            f"Records: {len(self):,} records of {len(self.ids):,} patients, "
            f"{day_text(self.date.min())} to {day_text(self.date.max())}",
            f"  columns   {columns}",
            f"  dropped   {self.flow['records'].sum():,} records and "
            f"{self.flow['patients'].sum():,} patients (see .flow)",
            f"  unmapped  {len(unknown):,} drug texts in {unknown['records'].sum():,} records "
            "(see drug_report)",
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
    drugs: Any = RA_DRUGS,
    *,
    patient: str | None = None,
    date: str | None = None,
    drug: str | None = None,
    end: str | None = None,
    supply: str | None = None,
    date_format: str | None = None,
    encoding: str = "utf-8",
    earliest: Any = "1901-01-01",
    latest: Any = None,
    duplicates: str = "drop",
    patients: Source | None = None,
    labs: Source | None = None,
    strict: bool = False,
) -> Records:
    """Read medication records from a CSV (also gzipped) or Parquet file or a DataFrame.

    A record without a patient, a drug or a readable date, with a date outside
    [`earliest`, `latest`] (placeholders such as 1900-01-01 and 2999-12-31) or before birth,
    with a drug that the map does not know, or that repeats another is dropped, and counted
    in `.flow`. An end before the start, or an impossible supply, is ignored. Both kinds of
    oddity are in `.issues`.

    Parameters
    ----------
    path_or_frame : path or DataFrame
        One row a record.
    drugs : DrugMap, dict, DataFrame or path of a two-column CSV
        See `drug_map`.
    patient, date, drug : column names, optional
        Default: guessed from the names; `.settings["columns"]` says what was found.
    end, supply : column names, optional
        The last day covered, or the number of days supplied; guessed likewise.
    date_format : str, optional
        Such as "%m/%d/%Y". Default: ISO dates, with or without a time.
    encoding : str
        Of CSV files.
    earliest, latest : dates
        Default of `latest`: today.
    duplicates : "drop" or "keep"
        What to do with a record that has the patient, day, drug and end of another.
    patients : path or DataFrame, optional
        See `read_patients`.
    labs : path or DataFrame, optional
        A patient and a date column: a lab test shows that a patient was still followed.
    strict : bool
        Make odd records an error.

    Examples
    --------
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 9], "drug": ["Humira", "Orencia", "Rinvoq"],
    ...                       "date": ["2010-01-05", "2010-07-01", "2999-12-31"]})
    >>> records = read_records(frame, latest="2020-12-31")
    >>> records
    Records: 2 records of 1 patients, 2010-01-05 to 2010-07-01
      columns   patient = 'patient_id', date = 'date', drug = 'drug'
      dropped   1 records and 1 patients (see .flow)
      unmapped  0 drug texts in 0 records (see drug_report)
      odd       date after 2020-12-31 (1)
    """
    if duplicates not in ("drop", "keep"):
        raise ValueError(f'duplicates must be "drop" or "keep", found {duplicates!r}.')
    name, known = source_name(path_or_frame), drug_map(drugs)
    span = one_day(earliest, "earliest"), one_day(latest or dt.date.today(), "latest")
    given = {"patient": patient, "date": date, "drug": drug, "end": end, "supply": supply}
    frame, columns, n_broken = read_table(
        path_or_frame, given, ("patient", "date", "drug"), encoding=encoding
    )
    if not len(frame):
        raise ValueError(f"{name} has no records: there is a header, but no row can be read.")
    who, ids, other_type = encode_ids(frame[columns["patient"]])
    drug_code, drug_table, state_of = _look_up(frame[columns["drug"]], known)
    rows = Rows(who, _dates(frame[columns["date"]], date_format, name), drug_code, None)
    people, n_lacking = None, 0
    if patients is not None:
        people = read_patients(patients, date_format=date_format, encoding=encoding)
        people, n_lacking = align_patients(people, ids)

    n_patients, n_records = len(ids), len(frame) + n_broken
    reasons, dropped_for = unusable(rows, state_of, span, people)
    kept, unmapped = dropped_for == 0, dropped_for == len(reasons)
    steps = [
        Step("usable", "wrong number of fields", 0, n_broken),
        *count_steps("usable", reasons, who, dropped_for, n_patients),
    ]
    if not kept.any():
        raise ValueError(_nothing_left(name, n_records, steps, drug_table))
    raw_ids, raw_dates = frame[columns["patient"]], frame[columns["date"]]
    issues = [
        Issue("wrong number of fields", n_broken, "dropped", ""),
        Issue("patient not in the patients' table", n_lacking, "kept", ""),
        count_odd("id of another type", other_type, "made text", who, ids, raw_ids),
        *(
            count_odd(reason, dropped_for == number, "dropped", who, ids, raw_dates)
            for number, reason in enumerate(reasons, start=1)
            if reason.startswith("date")
        ),
    ]

    others = [rows.keep(unmapped)]
    if labs is not None:
        others.append(_labs(labs, ids, span, date_format, encoding))
    covered = frame[[columns[role] for role in ("end", "supply") if role in columns]]
    if not kept.all():
        covered, rows = covered[kept], rows.keep(kept)
    last, odd = last_days(covered, columns, rows, ids, date_format)
    rows = sort_records(rows._replace(last=last))
    again = repeats(rows)
    done = "dropped" if duplicates == "drop" else "kept"
    issues += [*odd, count_odd("repeats another record", again, done, rows.who, ids, rows.day)]
    if duplicates == "drop":
        steps.append(Step("usable", "repeats another record", 0, int(again.sum())))
        rows = rows.keep(~again) if again.any() else rows
    odd_table = issue_table(issues)
    if strict and len(odd_table):
        found = ", ".join(f"{i.issue} ({i.n:,})" for i in odd_table.itertuples())
        raise ValueError(f"{name} has odd records: {found}; mend them or read with strict=False.")

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
        state=state_of[rows.drug],
        states=known.states,
        first_seen=first_seen,
        last_seen=last_seen,
        patients=None if people is None else people[present],
        drug_map=known,
        drugs=drug_table,
        flow=flow_table(n_patients, n_records, steps),
        issues=odd_table,
        settings={
            "source": name,
            "columns": {role: str(column) for role, column in columns.items()},
            "drugs": known.ingredients,
            "date_format": date_format,
            "earliest": day_text(span[0]),
            "latest": day_text(span[1]),
            "duplicates": duplicates,
            "patients": None if patients is None else source_name(patients),
            "labs": None if labs is None else source_name(labs),
        },
    )


def read_sites(
    path_or_frame: Source, drugs: Any = RA_DRUGS, *, site: str | None = None, **options: Any
) -> dict[str, Records]:
    """Read records of several sites from one table, as a dict {site: Records}.

    Each site is read on its own, with its own flow, so that two sites may both have a
    patient 1. `options` are those of `read_records`.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["MGB", "VA"], "patient_id": [1, 1], "drug": ["Humira"] * 2,
    ...                       "date": ["2010-01-05", "2011-01-05"]})
    >>> list(read_sites(frame))
    ['MGB', 'VA']
    """
    roles = ("patient", "date", "drug", "end", "supply")
    given = {"site": site, **{role: options.pop(role, None) for role in roles}}
    frame, columns, n_broken = read_table(
        path_or_frame,
        given,
        ("site", "patient", "date", "drug"),
        encoding=options.get("encoding", "utf-8"),
    )
    name = source_name(path_or_frame)
    if n_broken:
        raise ValueError(
            f"{n_broken:,} rows of {name} have the wrong number of fields, so that their site is "
            "not known; mend them."
        )
    which, sites, _ = encode_ids(frame[columns["site"]])
    if (which < 0).any():
        raise ValueError(f"{(which < 0).sum():,} records of {name} name no site; fill them in.")
    names = {role: column for role, column in columns.items() if role != "site"}
    return {
        str(label): read_records(frame[which == number], drugs, **names, **options)
        for number, label in enumerate(sites)
    }


# --- inside ----------------------------------------------------------------------------


def _dates(column: pd.Series, date_format: str | None, name: str) -> NDArray[np.int32]:
    day = to_days(column, date_format)
    if (day == NO_DATE).all():
        wanted = "as YYYY-MM-DD" if date_format is None else f"with the format {date_format!r}"
        raise ValueError(
            f"none of the {len(day):,} dates of {name} can be read {wanted} (found "
            f"{some(column.dropna().unique()[:6])}); state their format, as in "
            'date_format="%m/%d/%Y".'
        )
    return day


def _look_up(
    column: pd.Series, known: DrugMap
) -> tuple[NDArray[np.int32], pd.DataFrame, NDArray[np.int8]]:
    """Each record's drug text (−1: none), the table of texts, and the state of each text."""
    raw_codes, texts = factorize(column)
    blank = np.array([not str(text).strip() for text in texts] + [True])
    codes = np.where(blank[raw_codes], np.int32(-1), raw_codes.astype(np.int32))
    table = known.classify(texts)
    table["records"] = np.bincount(codes[codes >= 0], minlength=len(texts))
    number = {state: i for i, state in enumerate(known.states)}
    state_of = np.array([number.get(c, -1) for c in table["class"]] + [-1], dtype=np.int8)
    table = table[~blank[:-1]]
    return codes, table[["drug", "records", "class", "ingredient", "how"]], state_of


def _labs(
    labs: Source, ids: pd.Index, span: tuple[int, int], date_format: str | None, encoding: str
) -> Rows:
    """Usable lab tests of patients who have records: they show that someone was followed."""
    given = {"patient": None, "date": None}
    frame, columns, _ = read_table(labs, given, ("patient", "date"), encoding=encoding)
    who, lab_ids, _ = encode_ids(frame[columns["patient"]])
    who = np.append(match_ids(lab_ids, ids), -1).astype(np.int32)[who]
    day = to_days(frame[columns["date"]], date_format)
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
    advice = (
        f"the drugs are {some(unknown['drug'])}: check the drug column, or give a map as drugs="
        if len(unknown)
        else "check the columns and the dates"
    )
    return f"no record of {name} is usable; {n_records:,} were dropped: {reasons}; {advice}."
