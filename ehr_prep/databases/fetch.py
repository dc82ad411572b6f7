"""Drug records in a database → `Records`: what is needed is fetched once, then all is as for files.

The database filters by the drugs that have a class before it joins anything. It returns the number
of records of each drug, one row per patient (how many records, and when the patient was seen), the
records of drugs with a class, and from other tables the rows of the patients who have such records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.databases.connect import Database
from ehr_prep.dates import NO_DATE, read_dates, to_days
from ehr_prep.drug_texts import Texts
from ehr_prep.readers import encode_ids
from ehr_prep.records import (
    Checked,
    Checks,
    Others,
    Records,
    check_rows,
    make_records,
    nobody_seen,
)
from ehr_prep.screen import NO_DRUG, NO_ID, NOT_MAPPED, Issue, Rows
from font.errors import InputError
from mmlca.sequences.checks import match_ids

_PART = 5_000_000
"""Records that are fetched and checked at a time, where ids are whole numbers."""


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
        *nobody_seen(int(kept.sum())),
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


def fetch_of_patients(database: Database, table: Any, patients: Any, purpose: str) -> pd.DataFrame:
    """The rows of a table, by its column `who`, of the patients with a drug of a class."""
    return database.fetch(table.semi_join(patients, "who"), purpose)


def days_of(column: pd.Series) -> NDArray[np.int32]:
    """Fetched dates as days; `NO_DATE` where there is none."""
    if column.dtype.kind in "iuf":
        days: NDArray[np.int32] = column.fillna(NO_DATE).to_numpy().astype(np.int32)
        return days
    return to_days(column)


def as_frame(table: Any) -> pd.DataFrame:
    """A fetched table; texts as categoricals, integers with a small dictionary."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(number, field.name, table[number].dictionary_encode())
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(date_as_object=False)
    return frame


# --- inside ----------------------------------------------------------------------------


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
