"""Records from a warehouse that is not OMOP: claims or dispensings in any table of a database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ehr_prep.columns import guess_columns, named_roles
from ehr_prep.databases.connect import Database, check_name
from ehr_prep.databases.fetch import (
    Exposures,
    as_frame,
    days_since_1970,
    fetch_records,
    see_patients,
)
from ehr_prep.dates import one_day
from ehr_prep.drug_texts import Texts, look_up
from ehr_prep.drugs import DrugMap, Drugs, drug_map
from ehr_prep.patients import (
    OBSERVATION_ROLES,
    PATIENT_ROLES,
    Observation,
    align_patients,
    load_patients,
    read_observation,
)
from ehr_prep.readers import check_matched
from ehr_prep.records import Checks, Records
from ehr_prep.screen import Issue
from ehr_prep.settings import Reading
from font.errors import InputError
from font.settings import change

_ISO = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"


def read_warehouse(
    connection: Any,
    table: str | None = None,
    schema: str | None = None,
    drugs: Drugs | None = None,
    *,
    patient: str | None = None,
    date: str | None = None,
    drug: str | None = None,
    end: str | None = None,
    supply: str | None = None,
    earliest: Any = "1901-01-01",
    latest: Any = None,
    duplicates: str = "drop",
    patients: str | None = None,
    observation: str | None = None,
    patients_columns: Mapping[str, str] | None = None,
    observation_columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    default_supply: int | Mapping[str, int] | None = None,
) -> Records:
    """Read medication records from a table of a database, without changing anything there.

    What `read_records` does with files, for claims, dispensings or orders in a database. The
    result is the same. Only records of drugs with a class are fetched, and what other tables hold
    about their patients; `.explain()` has the SQL.

    Parameters
    ----------
    connection : Ibis connection or URL
        As in `read_omop`; also one Parquet or CSV file, such as "parquet:claims.parquet".
    table : str, optional
        The table of records, one row per record; needed if the database has several.
    schema : str, optional
        Where the tables are.
    drugs : drug map
        Needed; see `drug_map`. The distinct texts of the drug column are looked up here.
    patient, date, drug, end, supply : column names, optional
        Default: guessed from the names. Upper-case names of columns are made lower case. Dates are
        columns of dates or times, or texts such as 2015-03-31; a supply is a number of days.
    patients : str, optional
        The table of patients, one row each; its columns as in `read_patients`.
    observation : str, optional
        The table of observation periods, one or several per patient.
    earliest, latest, duplicates, patients_columns, observation_columns, where, default_supply
        As in `read_records`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import ehr_prep
    >>> frame = pd.DataFrame({"patient_id": [7, 7], "drug": ["Humira", "Orencia"],
    ...                       "date": pd.to_datetime(["2010-01-05", "2010-07-01"])})
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "claims.parquet"
    >>> frame.to_parquet(file)
    >>> records = read_warehouse(f"parquet:{file}", drugs="ra")
    >>> ehr_prep.build_sequences(records).to_frame().iloc[0, :2].to_list()
    ['TNFi', 'CTLA4-Ig']
    """
    given = {"latest": latest, "duplicates": duplicates, "default_supply": default_supply}
    reading = change(Reading(), given)
    known = drug_map(drugs)
    span = one_day(earliest, "earliest"), one_day(reading.latest or dt.date.today(), "latest")
    database = Database(connection, schema, texts=True)
    name = table or database.only_table()
    named = {"patient": patient, "date": date, "drug": drug, "end": end, "supply": supply}
    claims, columns = _table(database, name, named, ("patient", "date", "drug"), where)
    rows = claims.select(**{role: claims[column] for role, column in columns.items()})
    rows = rows.mutate(patient=_ids(rows.patient))
    day = days_since_1970(_dates(database, rows.date, columns["date"]))
    texts, values = _look_up(database, rows, known)
    of_class = texts.table["class"].notna() | texts.table["rule"].notna()
    known_drugs = [values[label] for label in texts.table.index[of_class]]
    blank = rows.drug.isnull() if not rows.drug.type().is_string() else rows.drug.strip() == ""
    lost = ~rows.drug.isin(known_drugs) & ~blank
    text_of = {value: label for label, value in enumerate(values)}
    exposures = Exposures(rows, day, text_of, texts, lost)
    seen = see_patients(database, exposures, span)
    ours = exposures.patients()
    people, issues = None, list[Issue]()
    people_columns: dict[str, Any] = {}
    if patients is not None:
        own = named_roles(patients_columns, PATIENT_ROLES, "patients")
        people, people_columns, absent = _patients(
            database, patients, own, where, (ours, seen.ids, name)
        )
        issues.append(Issue("patient not in the patients' table", absent, "kept", ""))
    periods = None
    if observation is not None:
        own = named_roles(observation_columns, OBSERVATION_ROLES, "observation")
        periods, more = _periods(database, observation, own, where, (ours, seen.ids))
        issues += more
    checks = Checks(
        f"{name} of {database.name}",
        seen.ids,
        texts,
        known,
        span,
        people,
        periods,
        reading=reading,
    )
    settings = {
        "columns": {role: str(column) for role, column in columns.items()},
        "patients_columns": people_columns,
        "patients": patients,
        "where": dict(where or {}),
        "observation": observation,
    }
    return fetch_records(database, exposures, seen, checks, issues, settings)


# --- tables ----------------------------------------------------------------------------------


def _table(
    database: Database,
    name: str,
    named: Mapping[str, str | None],
    needed: tuple[str, ...],
    where: Mapping[str, str] | None,
    about: str = "",
) -> tuple[Any, dict[str, str]]:
    """A table, its rows chosen by `where`, and {role: column}."""
    table = database.need(name)
    for column in named.values():
        check_name(column or "", "column")
    wanted = {role: None if c is None else c.lower() for role, c in named.items()}
    roles = guess_columns(list(table.columns), wanted, needed, name, about=about)
    for column, value in (where or {}).items():
        if column.lower() in table.columns:
            table = table.filter(table[column.lower()].cast("string").strip() == value)
    return table, roles


def _ids(column: Any) -> Any:
    if column.type().is_string():
        return column.strip().nullif("")
    return column.cast("int64") if column.type().is_decimal() else column


def _dates(database: Database, column: Any, name: str) -> Any:
    """A column as dates; a text that is not a date such as 2015-03-31 is missing."""
    import ibis
    import ibis.expr.operations as ops

    kind = column.type()
    if kind.is_date() or kind.is_timestamp():
        return column
    if not kind.is_string():
        raise InputError(
            f"the column {name!r} of {database.name} holds {kind}, not dates; give a column of "
            "dates, or make a view with one."
        )
    text = column.strip()
    first = text.substr(0, 10)
    day = first.try_cast("date") if database.con.has_operation(ops.TryCast) else first.cast("date")
    return ibis.cases((text.re_search(_ISO), day), else_=ibis.null("date"))


# --- drugs -----------------------------------------------------------------------------------


def _look_up(database: Database, records: Any, known: DrugMap) -> tuple[Texts, list[Any]]:
    """The distinct drug texts with their classes, and the texts as the database spells them."""
    each = records.group_by("drug").aggregate(n=records.count())
    counts = database.fetch(each, "records by drug")
    if not len(counts):
        raise InputError(f"the table of records in {database.name} has no rows; check its name.")
    counts = counts[counts["drug"].notna()]
    counts = counts.sort_values("drug", ignore_index=True)
    texts = look_up(counts["drug"], known)
    n = counts["n"].to_numpy().astype(np.int64)
    table = texts.table.assign(records=n[texts.table.index])
    return texts._replace(table=table), counts["drug"].tolist()


# --- patients and periods ----------------------------------------------------------------------


def _patients(
    database: Database,
    name: str,
    named: Mapping[str, str],
    where: Mapping[str, str] | None,
    wanted: tuple[Any, pd.Index, str],
) -> tuple[pd.DataFrame, dict[str, Any], int]:
    """The patients' table in the order of the ids, its columns, and how many ids it lacks.

    `wanted` are the patients as Ibis table and as ids, and the name of the table of records.
    """
    patients, ids, of_records = wanted
    asked = {role: named.get(role) for role in PATIENT_ROLES}
    table, roles = _table(database, name, asked, ("patient",), where, "patients")
    for role in [r for r in roles if r != "patient" and r not in named]:
        kind = table[roles[role]].type()
        if not (kind.is_date() or kind.is_timestamp() or kind.is_string()):
            del roles[role]  # such as death = 0 or 1
    who = roles["patient"]
    table = table.mutate(**{who: _ids(table[who])})
    found = database.fetch(table.semi_join(patients, [(who, "who")]), "patients' table")
    if not len(found):  # a few others, for the message
        found = database.fetch(table.limit(5), "examples of ids")
    people, columns = load_patients(found, roles, name=name, about="patients")
    aligned, absent = align_patients(people, ids)
    check_matched(ids, people.index, ~absent, (of_records, name))
    return aligned, columns, int(absent.sum())


def _periods(
    database: Database,
    name: str,
    named: Mapping[str, str],
    where: Mapping[str, str] | None,
    wanted: tuple[Any, pd.Index],
) -> tuple[Observation, list[Issue]]:
    """Observation periods, and what is unusual about them."""
    patients, ids = wanted
    roles = {role: named.get(role) for role in OBSERVATION_ROLES}
    table, columns = _table(database, name, roles, OBSERVATION_ROLES, where, "observation")
    who = columns["patient"]
    table = table.mutate(**{who: _ids(table[who])}).select(*columns.values())
    rows = table.semi_join(patients, [(who, "who")])
    frame = as_frame(database.fetch_arrow(rows, "observation periods"))
    return read_observation(frame, ids, columns=columns)
