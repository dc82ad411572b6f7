"""Records from any table of a database, and what OMOP and other tables have in common.

What is needed is fetched once, then all is as for files. The database filters by the drugs that
have a class before it joins anything. It returns the number of records of each drug, one row per
patient (how many records, and when the patient was seen), the records of drugs with a class, and
from other tables the rows of the patients who have such records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import Header, guess_columns, named_roles
from ehr_prep.databases.connect import Database, check_name
from ehr_prep.drugs import DrugMap, Drugs, Texts, drug_map, look_up
from ehr_prep.patients import (
    OBSERVATION_ROLES,
    PATIENT_ROLES,
    align_patients,
    load_patients,
    read_observation,
)
from ehr_prep.records import Records, make_records
from ehr_prep.screen import (
    NO_DRUG,
    NO_ID,
    NOT_MAPPED,
    Checked,
    Checks,
    Others,
    Rows,
    check_rows,
    days_unknown,
)
from ehr_prep.settings import Reading
from ehr_prep.values import Issue, check_matched, encode_ids, one_day, read_dates
from font.errors import InputError
from font.settings import change
from mmlca.sequences.checks import match_ids

_ISO = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"
_PART = 5_000_000
"""Records that are fetched and checked at a time, where ids are whole numbers."""


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
            database, patients, own, where, ours, seen.ids, name
        )
        issues.append(Issue("patient not in the patients' table", absent, "kept", ""))
    periods = None
    if observation is not None:
        roles: dict[str, Any] = dict.fromkeys(OBSERVATION_ROLES)
        roles |= named_roles(observation_columns, OBSERVATION_ROLES, "observation")
        spells, own = _table(database, observation, roles, OBSERVATION_ROLES, where, "observation")
        spells = spells.select(*own.values()).semi_join(ours, [(own["patient"], "who")])
        found = as_frame(database.fetch_arrow(spells, "observation periods"))
        periods, more = read_observation(found, seen.ids, own)
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


# --- drug records: the same for OMOP and other tables ------------------------------------------


class Entry(NamedTuple):
    """Who enters and when: a name for the flow, and an Ibis table `who`, `entry`, perhaps `exit`.

    Both are days since 1970-01-01.
    """

    name: str
    table: Any


class Exposures(NamedTuple):
    """The drug records of a database.

    Parameters
    ----------
    rows : Ibis table
        `patient`, `date` and `drug`, and where they exist `end` and `supply`, as they are stored.
    day : Ibis column
        The date of `rows` as days since 1970-01-01.
    text_of : {drug as it is stored: row label of its text}
    texts : Texts
        See `Records.drugs`; `codes` is not used.
    lost : Ibis column
        Whether a record is of a drug that the map does not know.
    """

    rows: Any
    day: Any
    text_of: Mapping[Any, int]
    texts: Texts
    lost: Any
    entry: Entry | None = None

    @property
    def mapped(self) -> Any:
        """Whether a record is of a drug with a class."""
        state_of = self.texts.state_of
        return self.rows.drug.isin([d for d, text in self.text_of.items() if state_of[text] >= 0])

    def wanted(self) -> Any:
        """The records of drugs with a class, of patients who enter."""
        rows = self.rows.filter(self.mapped, self.rows.patient.notnull())
        if self.entry is None:
            return rows
        return rows.semi_join(self.entry.table, [("patient", "who")])

    def patients(self) -> Any:
        """Those who have such records: `who`."""
        return self.wanted().select(who="patient").distinct()


class Seen(NamedTuple):
    """The patients with a drug record of a class, and how many others there are.

    Parameters
    ----------
    ids : pandas.Index (P,)
    raw : Series
        The ids as they are stored, in their order there.
    n_records : (raw,)
        Records of drugs with a class.
    others : Others
    entry : DataFrame, optional
        The rows of the table of those who enter, by id.
    """

    ids: pd.Index
    raw: pd.Series
    n_records: NDArray[np.int64]
    others: Others
    entry: pd.DataFrame | None


def see_patients(database: Database, exposures: Exposures, span: tuple[int, int]) -> Seen:
    """Count each patient's records, and find when the patient was seen."""
    rows, day, mapped = exposures.rows, exposures.day, exposures.mapped
    no_drug = rows.drug.isnull()
    if rows.drug.type().is_string():
        no_drug |= rows.drug.strip() == ""
    no_drug, mapped = no_drug.fill_null(True), mapped.fill_null(False)
    seen = ~mapped & ~no_drug & day.between(*span)
    table = rows.group_by(who=rows.patient).aggregate(
        n=rows.count(),
        no_drug=rows.count(where=no_drug),
        mapped=rows.count(where=mapped),
        lost=rows.count(where=exposures.lost.fill_null(False)),
        first=day.min(where=seen),
        last=day.max(where=seen),
    )
    found = database.fetch(table, "records of each patient, and when the patient was seen")
    if not len(found):
        raise InputError(f"{database.name} has no drug records: the table is empty.")
    left_out = {NO_ID: (0, int(found["n"][found["who"].isna()].sum()))}
    found = found[found["who"].notna()]
    who, ids, _ = encode_ids(found["who"])
    n, none, own, lost = (
        np.bincount(who, weights=found[c], minlength=len(ids)).astype(np.int64)
        for c in ("n", "no_drug", "mapped", "lost")
    )
    left_out[NO_DRUG] = int((none == n).sum()), int(none.sum())
    left_out[NOT_MAPPED] = int(((none < n) & (own == 0)).sum()), int((n - none - own).sum())
    kept, entered = own > 0, None
    if exposures.entry is not None:
        name, entering = exposures.entry
        entered = database.fetch(entering, "patients who enter").set_index("who")
        enters = match_ids(ids, entered.index) >= 0
        without, kept = kept & ~enters, kept & enters
        left_out[f"patient without {name}"] = int(without.sum()), int(own[without].sum())
        entered = entered.reindex(ids[kept])
    position = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    place = position[who]
    ours = place >= 0
    others = Others(
        len(ids),
        int(n.sum()) + left_out[NO_ID][1],
        0,
        left_out,
        _patients_by_text(database, exposures),
        lost[kept],
        *days_unknown(int(kept.sum())),
    )
    dated = ours & found["first"].notna().to_numpy()
    for column in ("first", "last"):
        others.widen(place[dated], found[column][dated].to_numpy().astype(np.int32))
    n_records = found["mapped"][ours].to_numpy().astype(np.int64)
    return Seen(ids[kept], found["who"][ours], n_records, others, entered)


def fetch_records(
    database: Database,
    exposures: Exposures,
    seen: Seen,
    checks: Checks,
    issues: list[Issue],
    settings: Mapping[str, Any],
) -> Records:
    """Fetch the records of drugs with a class, and check them, some patients at a time."""
    parts = [
        _fetch_part(database, part, exposures, checks) for part in _parts(exposures.wanted(), seen)
    ]
    unused: dict[str, Any] = {"files": [], "file_columns": {}, "dates": {}, "patients_columns": {}}
    about = {"source": checks.name, "labs": None, **unused, **settings}
    records = make_records(checks, parts, seen.others, issues, about)
    return replace(records, database=database)


def days_since_1970(date: Any) -> Any:
    """A date or timestamp column as days since 1970-01-01; the clock time is cut off."""
    import ibis

    if date.type().is_timestamp():
        date = date.date()  # differences of timestamps are rounded differently by the engines
    return date.delta(ibis.date(1970, 1, 1), unit="day").cast("int32")


def as_frame(table: Any) -> pd.DataFrame:
    """A fetched table; texts as categoricals, integers with a small dictionary."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(number, field.name, table[number].dictionary_encode())
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(date_as_object=False)
    return frame


def _patients_by_text(database: Database, exposures: Exposures) -> NDArray[np.int64]:
    """How many patients have each drug without a class, by the row label of its text."""
    rows = exposures.rows
    others = rows.filter(~exposures.mapped, rows.drug.notnull(), rows.patient.notnull())
    others = others.select("drug", "patient").distinct()  # faster than counting distinct ones
    each = others.group_by("drug").aggregate(patients=others.count())
    found = database.fetch(each, "patients of each drug without a class")
    patients = np.zeros(len(exposures.texts.state_of), dtype=np.int64)
    labels = [exposures.text_of[drug] for drug in found["drug"].tolist()]
    patients[labels] = found["patients"]
    return patients


def _parts(rows: Any, seen: Seen) -> Iterator[Any]:
    """The records in parts of about `_PART`, each with patients of its own."""
    if seen.raw.dtype.kind not in "iu" or seen.n_records.sum() <= _PART:
        yield rows  # ids that are texts are ordered otherwise in each database
        return
    order = np.argsort(seen.raw.to_numpy())
    keys, until = seen.raw.to_numpy()[order], np.cumsum(seen.n_records[order])
    ends = np.searchsorted(until, np.arange(_PART, until[-1] + _PART, _PART))
    ends = np.unique(np.minimum(ends, len(keys) - 1))
    low = keys[0].item()
    for end in ends:
        high = keys[end].item()
        yield rows.filter(rows.patient.between(low, high))
        low = high + 1


def _fetch_part(database: Database, rows: Any, exposures: Exposures, checks: Checks) -> Checked:
    table = database.fetch_arrow(rows, "records of drugs with a class")
    frame = as_frame(table)
    own, ids, _ = encode_ids(frame["patient"])
    who = np.append(match_ids(ids, checks.ids), -1).astype(np.int32)[own]
    codes, drugs = pd.factorize(frame.pop("drug"))
    text = np.array([exposures.text_of[drug] for drug in drugs.tolist()], dtype=np.int32)
    dates = {role: frame[role] for role in ("date", "end") if role in frame}
    if len(frame):
        days, _ = read_dates(dates, None, checks.name)
    else:  # that no drug has a class is said with the flow
        days = {role: np.zeros(0, dtype=np.int32) for role in dates}
    columns = {role: role for role in frame.columns}
    fetched = Rows(who, days["date"], text[codes], None)
    return check_rows(frame, columns, fetched, days.get("end"), checks)


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
    table = database.table(name)
    for column in named.values():
        check_name(column or "", "column")
    wanted = {role: None if c is None else c.lower() for role, c in named.items()}
    roles = guess_columns(Header(list(table.columns), name, about=about), wanted, needed)
    for column, value in (where or {}).items():
        if column.lower() in table.columns:
            table = table.filter(table[column.lower()].cast("string").strip() == value)
    who = table[roles["patient"]]
    if who.type().is_string():
        who = who.strip().nullif("")
    elif who.type().is_decimal():
        who = who.cast("int64")
    return table.mutate(**{roles["patient"]: who}), roles


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
    patients: Any,
    ids: pd.Index,
    of_records: str,
) -> tuple[pd.DataFrame, dict[str, Any], int]:
    """The patients' table in the order of the ids, its columns, and how many ids it lacks."""
    asked = {role: named.get(role) for role in PATIENT_ROLES}
    table, roles = _table(database, name, asked, ("patient",), where, "patients")
    for role in [r for r in roles if r != "patient" and r not in named]:
        kind = table[roles[role]].type()
        if not (kind.is_date() or kind.is_timestamp() or kind.is_string()):
            del roles[role]  # such as death = 0 or 1
    who = roles["patient"]
    found = database.fetch(table.semi_join(patients, [(who, "who")]), "patients' table")
    if not len(found):  # a few others, for the message
        found = database.fetch(table.limit(5), "examples of ids")
    people, columns = load_patients(found, roles, name=name, about="patients")
    aligned, absent = align_patients(people, ids)
    check_matched(ids, people.index, ~absent, (of_records, name))
    return aligned, columns, int(absent.sum())
