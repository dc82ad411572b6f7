"""Records from a warehouse that is not OMOP: claims or dispensings in any table of a database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ehr_prep.columns import guess_columns, named_roles
from ehr_prep.database_scan import Source, scan
from ehr_prep.databases.connect import Database, check_name
from ehr_prep.dates import day_text, one_day
from ehr_prep.drug_texts import Texts, look_up, supply_by_text
from ehr_prep.drugs import DrugMap, Drugs, drug_map
from ehr_prep.omop_people import fetch_periods, with_ends
from ehr_prep.patients import (
    OBSERVATION_ROLES,
    PATIENT_ROLES,
    align_patients,
    describe_columns,
    load_patients,
)
from ehr_prep.screen import Issue, issue_table
from ehr_prep.unmapped import unmapped_table
from ehr_prep.warehouse import WarehouseRecords, days_since_1970, islands
from font.checks import one_of, some
from font.errors import InputError

_ISO = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"
_NUMBER = r"^\d+(\.\d+)?$"


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
    reduce: str = "auto",
) -> WarehouseRecords:
    """Read medication records from a table of a database, without changing anything there.

    What `read_records` does with files, for tables that are too large for this computer's memory
    or that live in a database: claims, dispensings, orders. The result is the same. Only counts
    per patient and window are fetched, or the usable records where they are few (see `reduce`).

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
    reduce : "auto", "memory" or "database"
        As in `read_omop`.

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
    one_of(duplicates, ("drop", "keep"), "duplicates")
    one_of(reduce, ("auto", "memory", "database"), "reduce")
    known = drug_map(drugs)
    span = one_day(earliest, "earliest"), one_day(latest or dt.date.today(), "latest")
    database = Database(connection, schema, texts=True)
    name = table or database.only_table()
    named = {"patient": patient, "date": date, "drug": drug, "end": end, "supply": supply}
    claims, columns = _table(database, name, named, ("patient", "date", "drug"), where)
    records = _records(database, claims, columns)
    texts, values = _look_up(database, records, known)
    supplies = supply_by_text(default_supply, texts.table, known)
    if supplies is not None:
        records = records.mutate(default=_by_drug(records.drug, values, supplies))
    people = days = periods = None
    odd: list[Issue] = []
    own_columns = named_roles(patients_columns, PATIENT_ROLES, "patients")
    people_roles: dict[str, str] = {}
    if patients is not None:
        people, days, people_roles = _patients(database, patients, own_columns, where)
        if "birth" in days.columns:
            births = days.select("who", "birth")
            records, days = records.left_join(births, "who").drop("who_right"), days.drop("birth")
    if observation is not None:
        own = named_roles(observation_columns, OBSERVATION_ROLES, "observation")
        periods, odd = _periods(database, observation, own, where)
        days = with_ends(days, periods)
    codes = zip(values, texts.state_of[:-1].tolist(), strict=True)
    state_of = {value: code for value, code in codes if code >= 0}
    shown = {
        "members": texts.members,
        "states": known.states,
        "drug_map": known,
        "drugs": texts.table,
    }
    parts = scan(
        database,
        Source(records, days, periods),
        state_of,
        shown,
        span=span,
        duplicates=duplicates,
    )
    unmapped, lost = _unmapped(database, parts, texts, known)
    issues = [*parts.pop("issues"), *odd]
    del parts["n_kept"]
    table_of_people = None
    if people is not None:
        table_of_people, lacking = _fetch_patients(database, parts, records, people, people_roles)
        issues.append(Issue("patient not in the patients' table", lacking, "kept", ""))
    return WarehouseRecords(
        **{**parts, "unmapped": unmapped},
        patients=table_of_people,
        observation=None if periods is None else fetch_periods(database, parts, periods),
        reduce=reduce,
        issues=issue_table(issues),
        settings={
            "source": f"{name} of {database.name}",
            "files": [],
            "columns": {role: str(column) for role, column in columns.items()},
            "patients_columns": {}
            if people is None
            else describe_columns(people_roles, list(people.columns)),
            "drugs": known.ingredients,
            "dates": {},
            "earliest": day_text(span[0]),
            "latest": day_text(span[1]),
            "duplicates": duplicates,
            "patients": patients,
            "labs": None,
            "where": dict(where or {}),
            "unmapped": {
                "texts": len(unmapped),
                "records": int(unmapped["records"].sum()),
                "lost": lost,
            },
            "observation": observation,
            "default_supply": dict(default_supply)
            if isinstance(default_supply, Mapping)
            else default_supply,
        },
    )


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


def _records(database: Database, table: Any, columns: Mapping[str, str]) -> Any:
    """The columns of `Source.table`."""
    parts = {
        "who": _ids(table[columns["patient"]]),
        "date": _dates(database, table[columns["date"]], columns["date"]),
        "drug": table[columns["drug"]],
    }
    if "end" in columns:
        column = table[columns["end"]]
        parts["end"] = _dates(database, column, columns["end"])
        if column.type().is_string():
            blank = column.isnull() | (column.strip() == "")
            parts["end_unread"] = ~blank & parts["end"].isnull()
    if "supply" in columns:
        parts["supply"] = _numbers(table[columns["supply"]], columns["supply"])
    return table.select(**parts)


def _ids(column: Any) -> Any:
    if column.type().is_string():
        return column.strip().nullif("")
    return column.cast("int64") if column.type().is_decimal() else column


def _dates(database: Database, column: Any, name: str) -> Any:
    """A column as dates; a text that is no date such as 2015-03-31 is missing."""
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


def _numbers(column: Any, name: str) -> Any:
    """A column as numbers; a text that is none becomes −1, which no supply is."""
    import ibis

    if column.type().is_numeric():
        return column.cast("float64")
    if not column.type().is_string():
        raise InputError(
            f"the column {name!r} holds {column.type()}, not the days supplied; name another "
            "column, or none."
        )
    text = column.strip()
    return ibis.cases(
        (column.isnull() | (text == ""), ibis.null("float64")),
        (text.re_search(_NUMBER), text.cast("float64")),
        else_=ibis.literal(-1.0, "float64"),
    )


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


def _by_drug(column: Any, values: list[Any], days: Any) -> Any:
    """The default supply of each record, by its drug."""
    import ibis

    groups: dict[int, list[Any]] = {}
    for number, value in enumerate(values[: len(days)]):
        groups.setdefault(int(days[number]), []).append(value)
    pairs = [(column.isin(drugs), ibis.literal(n, "int32")) for n, drugs in groups.items()]
    one = ibis.literal(1, "int32")
    return ibis.cases(*pairs, else_=one) if pairs else one


def _unmapped(
    database: Database, parts: Mapping[str, Any], texts: Texts, known: DrugMap
) -> tuple[pd.DataFrame, float]:
    """Texts that the map does not know, and the share of their records; see `lost_share`."""
    rows = parts["unmapped"]
    none = np.zeros(0, dtype=np.int32)
    table = unmapped_table(texts.table, none, none, known)
    each = rows.group_by("drug").aggregate(patients=rows.who.nunique())
    patients = database.fetch(each, "patients of each unmapped drug").set_index("drug")["patients"]
    n = table["drug"].map(patients).fillna(0).astype(np.int64)
    table = table.assign(patients=n)
    if not len(table):
        return table, 0.0
    lost = rows.filter(rows.drug.isin(table["drug"].tolist())).semi_join(parts["usable"], "who")
    count = lost.aggregate(n=lost.count())
    n_lost = int(database.fetch(count, "records of unknown drugs")["n"].iloc[0])
    return table, round(n_lost / (n_lost + parts["n_kept"]), 6)


# --- patients and periods ----------------------------------------------------------------------


def _patients(
    database: Database,
    name: str,
    named: Mapping[str, str],
    where: Mapping[str, str] | None,
) -> tuple[Any, Any, dict[str, str]]:
    """The patients' table; its days: `who`, `birth`, `follow_up_end`, `death`; {role: column}."""
    roles_wanted = {role: named.get(role) for role in PATIENT_ROLES}
    table, roles = _table(database, name, roles_wanted, ("patient",), where, "patients")
    for role in [r for r in roles if r != "patient" and r not in named]:
        kind = table[roles[role]].type()
        if not (kind.is_date() or kind.is_timestamp() or kind.is_string()):
            del roles[role]  # such as death = 0 or 1
    who = _ids(table[roles["patient"]])
    table = table.mutate(**{roles["patient"]: who})
    ids = table.group_by(roles["patient"]).aggregate(n=table.count())
    ids = ids.filter((ids.n > 1) | ids[roles["patient"]].isnull()).limit(5)
    if len(twice := database.fetch(ids, "patients with several rows, or none")):
        raise InputError(
            f"the table {name} must have one row per patient: ids are blank or repeat "
            f"({some(twice[roles['patient']])}); mend these."
        )
    days = {"birth_date": "birth", "follow_up_end": "follow_up_end", "death_date": "death"}
    columns = {
        days[role]: days_since_1970(_dates(database, table[column], column))
        for role, column in roles.items()
        if role in days
    }
    return table, table.select(who=table[roles["patient"]], **columns), roles


def _fetch_patients(
    database: Database, parts: Mapping[str, Any], records: Any, table: Any, roles: Mapping[str, str]
) -> tuple[pd.DataFrame, int]:
    """The patients' table of those with a usable record; how many with any record it lacks."""
    mine = table[roles["patient"]]
    ours = parts["usable"].select("who").distinct()
    frame = database.fetch(table.semi_join(ours, mine == ours.who), "patients' table")
    if not len(frame):
        some_ids = database.fetch(table.select(mine).limit(3), "examples of ids")
        raise InputError(
            f"none of the {len(parts['ids']):,} patients with records is in the patients' table: "
            f"the records have ids such as {some(map(str, parts['ids'][:3]))}, the table has "
            f"{some(map(str, some_ids.iloc[:, 0]))}; write them alike."
        )
    everyone = records.filter(records.who.notnull()).select("who").distinct()
    absent = everyone.anti_join(table, everyone.who == mine)
    lacking = database.fetch(absent.aggregate(n=absent.count()), "patients without a row")
    people, _ = align_patients(load_patients(frame, roles)[0], parts["ids"])
    return people, int(lacking["n"].iloc[0])


def _periods(
    database: Database, name: str, named: Mapping[str, str], where: Mapping[str, str] | None
) -> tuple[Any, list[Issue]]:
    """Observation periods in order and apart, and what is odd about them."""
    wanted = {role: named.get(role) for role in OBSERVATION_ROLES}
    table, roles = _table(database, name, wanted, OBSERVATION_ROLES, where, "observation")
    begin, stop = (
        days_since_1970(_dates(database, table[roles[role]], roles[role]))
        for role in OBSERVATION_ROLES[1:]
    )
    table = table.select(who=_ids(table[roles["patient"]]), begin=begin, stop=stop)
    tests = {
        "observation period without a date": table.begin.isnull() | table.stop.isnull(),
        "observation period ends before it starts": table.stop < table.begin,
    }
    sums = {f"n{i}": test.sum() for i, test in enumerate(tests.values())}
    counted = database.fetch(table.aggregate(**sums), "impossible observation periods").iloc[0]
    odd = [
        Issue(issue, 0 if pd.isna(n) else int(n), "dropped", "")
        for issue, n in zip(tests, counted, strict=True)
    ]
    table = table.filter((table.begin <= table.stop) & table.who.notnull())
    return islands(table, ["who"], 0), odd
