"""Medication records: read, checked, counted and sorted, ready to become sequences."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import named_roles
from ehr_prep.drugs import DrugMap, Drugs, Texts, drug_map, look_up, plain, unmapped_table
from ehr_prep.files import Source, Table, read_table, source_name
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
from ehr_prep.screen import Checked, Checks, Others, Rows, check_rows, days_unknown
from ehr_prep.settings import Reading, RecordColumns
from ehr_prep.values import (
    ISO,
    Issue,
    check_matched,
    count_rows,
    day_text,
    encode_ids,
    issue_table,
    one_day,
    read_dates,
)
from font.checks import some
from font.errors import InputError, option
from font.settings import change
from mmlca.sequences.checks import match_ids
from mmlca.sequences.type import Step, flow_table


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
        What was dropped so far, and what was unusual.
    settings : dict
        Columns and options, for the account that goes with the sequences.
    observation : Observation, optional
        When each of `ids` was observed; None: no such periods were given.
    labs : DataFrame, optional
        Laboratory values that were read with the records, for `trend`.
    database : Database, optional
        Where the records come from, with the queries that were sent.
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
    labs: pd.DataFrame | None = None
    database: Any = None

    def __len__(self) -> int:
        return len(self.date)

    def explain(self) -> str:
        """The SQL of every query that was sent to a database, each with what it is for."""
        if self.database is None:
            raise InputError("these records come from files, not from a database.")
        text: str = self.database.explain()
        return text

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
        for way, n in self.settings.get("concepts", {}).items():
            if n:
                link = {"unmapped": "are", "concept 0": "have"}.get(way, "were mapped by")
                lines.append(f"  concepts  {n:,} records {link} {way}")
        if len(self.issues):
            unusual = ", ".join(
                f"{issue} ({n:,})"
                for issue, n in zip(self.issues["issue"], self.issues["n"], strict=True)
            )
            lines.append(f"  unusual   {unusual}")
        return "\n".join(lines)


def read_records(
    path_or_frame: Source,
    drugs: Drugs | None = None,
    *,
    patients: Source | None = None,
    labs: Source | None = None,
    observation: Source | None = None,
    drug_names: Source | None = None,
    patients_columns: Mapping[str, str] | None = None,
    labs_columns: Mapping[str, str] | None = None,
    observation_columns: Mapping[str, str] | None = None,
    file_columns: Mapping[str, Mapping[str, str]] | None = None,
    where: Mapping[str, str] | None = None,
    earliest: Any = "1901-01-01",
    **reading: Any,
) -> Records:
    """Read medication records from a file, several files or a DataFrame.

    A record without a patient, a drug or a readable date, with a date outside
    [`earliest`, `latest`] (placeholders such as 1900-01-01 and 2999-12-31) or before birth,
    with a drug that the map does not know, or that repeats another is dropped, and counted
    in `.flow`. An end before the start, or an impossible supply, is ignored. What was unusual is
    counted in `.issues`.

    Parameters
    ----------
    path_or_frame : path, list of paths or DataFrame
        One row per record. A CSV file (also .gz or .zst), a Parquet file or an Excel file, whose
        first sheet with the columns needed is taken; several files as a list or a pattern such
        as "records_*.csv". Files may call their columns differently; an end or a supply that a
        file lacks is missing in its records, and that is counted in `.issues`.
    drugs : DrugMap, "ra", dict, DataFrame or path of a two-column CSV
        Needed; see `drug_map`.
    patients : path or DataFrame, optional
        See `read_patients`.
    labs : path or DataFrame, optional
        A patient and a date column: a lab test shows that a patient was still followed.
    observation : path or DataFrame, optional
        Observation periods, one or several per patient: a patient, a start and an end column. A
        record outside them is dropped and counted, the last period ends follow-up, and what
        lies between two periods is missing.
    drug_names : path or DataFrame, optional
        What codes in the drug column stand for: a table of codes and names, such as OMOP's
        `concept`. The drug column is then `drug_concept_id` if there is one.
    patients_columns, labs_columns, observation_columns : {role: column name}, optional
        Such as {"patient": "PatNr", "birth_date": "Geb"}; see `read_patients` and `read_labs`.
    file_columns : {file: {role: column name}}, optional
        Columns of single files of records, such as {"b.csv": {"patient": "PatNr"}}; a file by its
        name or a pattern such as "2019_*.csv". They override `patient`, `date` and so on.
    where : {column: value}, optional
        Read only rows with these values, such as {"site": "MGB"} where a file holds several
        sites; also in the patients' table and the labs, if they have these columns.
    earliest : date
        Earlier dates count as mistakes.
    **reading
        Any further field of `ehr_prep.settings.Reading`: names of columns (`patient`, `date`,
        `drug`, `end`, `supply`), `date_format`, `encoding`, `delimiter`, `decimal`, `latest`,
        `duplicates`, `default_supply` and `strict`.

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
      unusual   date after 2020-12-31 (1)
    """
    given = change(Reading(), reading)
    name, known = source_name(path_or_frame), drug_map(drugs)
    written = {"encoding": given.encoding, "delimiter": given.delimiter}
    names = None if drug_names is None else _read_names(drug_names, **written)
    further: dict[str, Any] = {**written, "where": where, "date_format": given.date_format}
    span = one_day(earliest, "earliest"), one_day(given.latest or dt.date.today(), "latest")
    named = {role: getattr(given, role) for role in RecordColumns.model_fields}
    table = _read_coded(
        path_or_frame, named, names, file_columns=file_columns, where=where, **written
    )
    frame, columns, n_broken, files, file_roles = table
    if not len(frame):
        raise InputError(f"{name} has no records: there is a header, but no row can be read.")
    who, ids, other_type = encode_ids(frame[columns["patient"]])
    texts = look_up(frame[columns["drug"]], known, names)
    dates = {role: frame[c] for role, c in columns.items() if role in ("date", "end")}
    days, formats = read_dates(dates, given.date_format, name)
    people, people_columns, lacking = _people(patients, patients_columns, ids, name, further)
    periods, period_issues = None, list[Issue]()
    if observation is not None:
        chosen = named_roles(observation_columns, OBSERVATION_ROLES, "observation")
        periods, period_issues = read_observation(observation, ids, chosen, **further)
    checks = Checks(name, ids, texts, known, span, people, periods, None, given)
    rows = Rows(who, days["date"], texts.codes, None)
    checked = check_rows(frame, columns, rows, days.get("end"), checks)
    raw_ids = frame[columns["patient"]]
    treated = np.zeros(len(ids) + 1, dtype=bool)
    treated[who[texts.state_of[texts.codes] >= 0]] = True
    n_lacking = int((lacking & treated[:-1]).sum())
    issues = [
        Issue("wrong number of fields", n_broken, "dropped", ""),
        Issue("patient not in the patients' table", n_lacking, "kept", ""),
        *_without_supply(file_roles, columns, given.default_supply is not None),
        count_rows("id of another type", other_type, "made text", who, ids, raw_ids),
        *period_issues,
    ]
    others = _others(rows, texts, len(ids), span)._replace(
        records=len(frame) + n_broken, broken=n_broken
    )
    if labs is not None:
        chosen = named_roles(labs_columns, LAB_ROLES, "labs")
        others.widen(*_lab_days(labs, chosen, ids, name, span, **further))
    tables = {"patients": patients, "labs": labs}
    tables |= {"drug_names": drug_names, "observation": observation}
    settings = {
        "source": name,
        "files": files,
        "columns": {role: str(column) for role, column in columns.items()},
        "file_columns": _differing(file_roles),
        "patients_columns": people_columns,
        "dates": {role: chosen._asdict() for role, chosen in formats.items()},
        "where": dict(where or {}),
        **{role: None if s is None else source_name(s) for role, s in tables.items()},
    }
    records = make_records(checks, [checked], others, issues, settings)
    if given.strict and len(records.issues):
        found = ", ".join(f"{i.issue} ({i.n:,})" for i in records.issues.itertuples())
        raise InputError(
            f"{name} has unusual records: {found}; correct them, or read without "
            f"{option('strict', True)}."
        )
    return records


def drug_report(records: Records) -> pd.DataFrame:
    """What became of each drug text: first those that the map does not know.

    Returns
    -------
    DataFrame
        One row per text, the most frequent first: `drug`, `records`, `class`, `ingredient`,
        `rule` and `matched` as in `DrugMap.classify`, and `did_you_mean`, the name that an
        unknown text resembles.

    Examples
    --------
    >>> import ehr_prep
    >>> frame = pd.DataFrame({"patient_id": [1, 1], "date": ["2010-01-05", "2010-03-01"],
    ...                       "drug": ["adalimumab 40 mg", "adalimunab"]})
    >>> drug_report(ehr_prep.read_records(frame, "ra"))[["drug", "class", "rule", "did_you_mean"]]
                   drug class   rule did_you_mean
    0        adalimunab  None   None   adalimumab
    1  adalimumab 40 mg  TNFi  words         None
    """
    drugs = records.drugs
    # what the map lists as of no interest has a rule and no class
    table = drugs.assign(known=drugs["class"].notna() | drugs["rule"].notna())
    table = table.sort_values(
        ["known", "records"], ascending=[True, False], kind="stable", ignore_index=True
    )
    near = [
        None if known else records.drug_map.nearest(drug)
        for drug, known in zip(table["drug"], table.pop("known"), strict=True)
    ]
    return table.assign(did_you_mean=pd.Series(near, dtype=object, index=table.index))


# --- from checked rows to records: the same for files and databases ----------------------


def make_records(
    checks: Checks,
    parts: Sequence[Checked],
    others: Others,
    issues: list[Issue],
    settings: Mapping[str, Any],
) -> Records:
    """The records of all parts, each of which has patients of its own, in the order of `ids`."""
    ids, texts, known = checks.ids, checks.texts, checks.known
    steps, n_usable = _steps(checks, parts, others)
    n_each = np.zeros(len(ids), dtype=np.int64)
    for part in parts:
        n_each += np.bincount(part.rows.who, minlength=len(ids))
    present = n_each > 0
    indptr = np.concatenate([[0], np.cumsum(n_each[present])])
    date = np.concatenate([part.rows.day for part in parts])
    drug = np.concatenate([part.rows.drug for part in parts])
    ends = [part.rows.last for part in parts if part.rows.last is not None]
    unmapped = unmapped_table(texts.table, others.unmapped, known if checks.suggest else None)
    n_lost = int(others.lost[present].sum())
    default = checks.reading.default_supply
    return Records(
        ids=ids[present],
        indptr=indptr,
        date=date,
        end=np.concatenate(ends) if ends else None,
        state=texts.state_of[drug],
        members=texts.members,
        states=known.states,
        first_seen=np.minimum(date[indptr[:-1]], others.first[present]),
        last_seen=np.maximum(date[indptr[1:] - 1], others.last[present]),
        patients=None if checks.people is None else checks.people[present],
        drug_map=known,
        drugs=texts.table,
        unmapped=unmapped,
        flow=flow_table(others.patients, others.records, steps),
        issues=issue_table([*issues, *(issue for part in parts for issue in part.issues)]),
        settings={
            **settings,
            "drugs": known.ingredients,
            "earliest": day_text(checks.span[0]),
            "latest": day_text(checks.span[1]),
            "duplicates": checks.reading.duplicates or "drop",
            "default_supply": dict(default) if isinstance(default, Mapping) else default,
            "unmapped": {
                "texts": len(unmapped),
                "records": int(unmapped["records"].sum()),
                # of the records of patients with a known drug, those of unknown drugs
                "lost": round(n_lost / (n_lost + n_usable), 6),
            },
        },
        observation=None if checks.periods is None else checks.periods.take(present),
    )


def _steps(checks: Checks, parts: Sequence[Checked], others: Others) -> tuple[list[Step], int]:
    """What was dropped, by reason, and how many records are usable, repetitions included."""
    reasons = parts[0].reasons
    dropped = np.sum([part.dropped for part in parts], axis=0)
    leaves_at = np.maximum.reduce([part.leaves_at for part in parts])
    left = np.bincount(leaves_at, minlength=len(reasons) + 1)
    steps = [Step("usable", "wrong number of fields", 0, others.broken)]
    for number, reason in enumerate(reasons, start=1):
        patients, records = others.left_out.get(reason, (0, 0))
        steps.append(
            Step("usable", reason, int(left[number]) + patients, int(dropped[number]) + records)
        )
    if not dropped[0]:
        raise InputError(_nothing_left(checks.name, others.records, steps, checks.texts.table))
    if checks.reading.duplicates != "keep":
        again = sum(part.again for part in parts)
        steps.append(Step("usable", "repeats another record", 0, again))
    return steps, int(dropped[0])


# --- inside ----------------------------------------------------------------------------


def _read_names(source: Source, **reading: Any) -> dict[str, str]:
    """What codes stand for, from a table such as OMOP's `concept`.

    The table has a column of codes (`concept_id` or `code`) and one of names (`concept_name` or
    `name`).

    Examples
    --------
    >>> _read_names(pd.DataFrame({"concept_id": [1503297], "concept_name": ["metformin"]}))
    {'1503297': 'metformin'}
    """
    frame, roles, *_ = read_table(
        source, {"code": None, "name": None}, ("code", "name"), about="drug_names", **reading
    )
    pairs = frame[[roles["code"], roles["name"]]].dropna().astype(object).to_numpy().tolist()
    return {plain(code): str(name) for code, name in pairs}


def _read_coded(
    source: Source,
    named: dict[str, str | None],
    names: Mapping[str, str] | None,
    **reading: Any,
) -> Table:
    """The table of records; with names of codes the drug column is one of codes."""
    needed = ("patient", "date", "drug")
    if names is not None and named["drug"] is None:
        try:
            return read_table(source, {**named, "drug": "drug_concept_id"}, needed, **reading)
        except ValueError:
            pass  # the codes are in another column, or the error is raised below
    return read_table(source, named, needed, **reading)


def _people(
    source: Source | None,
    named: Mapping[str, str] | None,
    ids: pd.Index,
    name: str,
    reading: Mapping[str, Any],
) -> tuple[pd.DataFrame | None, dict[str, Any], NDArray[np.bool_]]:
    """The patients' table in the order of the ids, its columns, and which ids it lacks."""
    if source is None:
        return None, {}, np.zeros(len(ids), dtype=bool)
    roles = named_roles(named, PATIENT_ROLES, "patients")
    people, columns = load_patients(source, roles, about="patients", **reading)
    aligned, absent = align_patients(people, ids)
    other = _other_name(name, source, "the patients' table")
    check_matched(ids, people.index, ~absent, (name, other))
    return aligned, columns, absent


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


def _lab_days(
    labs: Source,
    chosen: Mapping[str, str],
    ids: pd.Index,
    name: str,
    span: tuple[int, int],
    *,
    date_format: str | None,
    **reading: Any,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lab tests of patients who have records, and their days: they show who was followed."""
    named = {role: chosen.get(role) for role in ("patient", "date")}
    frame, columns, *_ = read_table(labs, named, ("patient", "date"), about="labs", **reading)
    who, lab_ids, _ = encode_ids(frame[columns["patient"]])
    position = match_ids(lab_ids, ids)
    names = _other_name(name, labs, "the labs"), name
    check_matched(lab_ids, ids, position >= 0, names, enough=0)  # labs may be of everyone
    who = np.append(position, -1).astype(np.int32)[who]
    days, _ = read_dates({"date": frame[columns["date"]]}, date_format, source_name(labs))
    day = days["date"]
    usable = (who >= 0) & (day >= span[0]) & (day <= span[1])
    return who[usable], day[usable]


def _others(rows: Rows, texts: Texts, n_patients: int, span: tuple[int, int]) -> Others:
    """What the records without a class say; a day outside the span says nothing."""
    rows = rows.keep((rows.who >= 0) & (rows.drug >= 0) & (texts.state_of[rows.drug] < 0))
    n_texts = len(texts.state_of)
    pairs = pd.unique(rows.drug.astype(np.int64) * n_patients + rows.who)
    is_unknown = np.zeros(n_texts, dtype=bool)
    table = texts.table
    is_unknown[table.index[table["class"].isna() & table["rule"].isna()]] = True
    lost = np.bincount(rows.who[is_unknown[rows.drug]], minlength=n_patients)
    unmapped = np.bincount(pairs // n_patients, minlength=n_texts)
    others = Others(n_patients, 0, 0, {}, unmapped, lost, *days_unknown(n_patients))
    dated = rows.keep((rows.day >= span[0]) & (rows.day <= span[1]))
    others.widen(dated.who, dated.day)
    return others


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
