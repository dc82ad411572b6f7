"""Records that stay where they live: an Ibis table, of which only counts are fetched.

`ehr_prep.database_scan` checks the records and fetches one row per patient; `build_sequences` takes
the result like any other records, and `ehr_prep.pushdown` reduces those that stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.databases.connect import Database
from ehr_prep.dates import day_text
from ehr_prep.drugs import DrugMap
from ehr_prep.patients import Observation, patients_text
from ehr_prep.records import Records
from ehr_prep.screen import Issue

IN_MEMORY = 20_000_000
"""Up to so many usable records are fetched and reduced here; beyond, the database does it."""

_BATCH = 25_000_000  # records that one query reduces, so that its memory is bounded


@dataclass(frozen=True, eq=False, repr=False)
class WarehouseRecords:
    """Usable records of mapped drugs that stay in a database; see `Records` for the attributes.

    Parameters
    ----------
    database : Database
    usable : Ibis table
        The usable records: `who`, `date`, `day`, `drug`, `code` (row of `members`) and `last`.
    rows : Ibis table
        The same, those that repeat another once.
    people : Ibis table or None
        See `ehr_prep.database_scan.Source`.
    keys : (P,)
        The patients as the database spells them, in the order of `ids`.
    first : (P,) int32
        Day of the first usable record.
    seen : Ibis table
        `who`, `first_seen`, `last_seen`.
    labs : DataFrame or None
        Laboratory values, for `trend`.
    reduce : "auto", "memory" or "database"
        Where `build_sequences` counts records per window; "auto": by their number.
    """

    database: Database
    usable: Any
    rows: Any
    people: Any
    keys: NDArray[Any]
    ids: pd.Index
    indptr: NDArray[np.int64]
    first: NDArray[np.int32]
    members: NDArray[np.int8]
    states: tuple[str, ...]
    has_end: bool
    first_seen: NDArray[np.int32]
    last_seen: NDArray[np.int32]
    seen: Any
    patients: pd.DataFrame | None
    drug_map: DrugMap
    drugs: pd.DataFrame
    unmapped: pd.DataFrame
    flow: pd.DataFrame
    issues: pd.DataFrame
    settings: dict[str, Any]
    observation: Observation | None = None
    labs: pd.DataFrame | None = None
    reduce: str = "auto"

    def __len__(self) -> int:
        return int(self.indptr[-1])

    def __repr__(self) -> str:
        dropped = self.flow["records"].sum(), self.flow["patients"].sum()
        lines = [
            f"WarehouseRecords: {len(self):,} records of {len(self.ids):,} patients in "
            f"{self.database.name}",
            *patients_text(self.settings.get("patients_columns", {})),
            f"  dropped   {dropped[0]:,} records and {dropped[1]:,} patients (see .flow)",
        ]
        for way, n in self.settings.get("concepts", {}).items():
            if n:
                link = {"unmapped": "are", "concept 0": "have"}.get(way, "were mapped by")
                lines.append(f"  drugs     {n:,} records {link} {way}")
        odd = zip(self.issues["issue"], self.issues["n"], strict=True)
        if len(self.issues):
            lines.append(f"  odd       {', '.join(f'{issue} ({n:,})' for issue, n in odd)}")
        return "\n".join(lines)

    @property
    def end(self) -> Any:
        """The column of the last day covered, None if neither ends nor supplies are known."""
        return self.rows["last"] if self.has_end else None

    @property
    def stays(self) -> bool:
        """Whether the database reduces the records; otherwise they are fetched."""
        return self.reduce == "database" or (self.reduce == "auto" and len(self) > IN_MEMORY)

    def explain(self) -> str:
        """The SQL of every query that was sent so far, each with what it is for."""
        return self.database.explain()

    def collect(self) -> Records:
        """The same records in memory."""
        return self._in_memory

    @cached_property
    def _in_memory(self) -> Records:
        columns = ["who", "day", "code", *(["last"] if self.has_end else [])]
        table = self.database.fetch_arrow(self.rows.select(*columns), "all usable records")
        who = position_of(self.keys, table.column("who").to_pandas())
        day, code = (table.column(c).to_numpy().astype(np.int32) for c in ("day", "code"))
        last = table.column("last").to_numpy().astype(np.int32) if self.has_end else None
        order = np.lexsort((day, who))
        return Records(
            ids=self.ids,
            indptr=self.indptr,
            date=day[order],
            end=None if last is None else last[order],
            state=code[order].astype(np.int8),
            members=self.members,
            states=self.states,
            first_seen=self.first_seen,
            last_seen=self.last_seen,
            patients=self.patients,
            drug_map=self.drug_map,
            drugs=self.drugs,
            unmapped=self.unmapped,
            flow=self.flow,
            issues=self.issues,
            settings={
                "file_columns": {},
                "patients_columns": {},
                **self.settings,
                "reduced": "in memory",
            },
            observation=self.observation,
        )

    def batches(self) -> list[tuple[int, int, bool]]:
        """Positions of patients, from and to, and whether this is the only batch."""
        return batches_of(self.keys, np.diff(self.indptr))

    def index_dates(
        self, start: int | None, washout_days: int | None
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Each patient's index date, and whether they have one; see `choose_cohort`."""
        if washout_days is None:
            every = np.ones(len(self.first), dtype=bool)
            return self.first, every if start is None else self.first >= start
        marked = after_gaps(self.usable, washout_days, start)
        new = marked.filter(marked.new).group_by("who").aggregate(day=marked.day.min())
        found = self.database.fetch(new, "first records after the washout")
        where = position_of(self.keys, found["who"])
        index, has_one = self.first.copy(), np.zeros(len(self.first), dtype=bool)
        index[where], has_one[where] = found["day"], True
        return index, has_one

    def after_death(self) -> Issue:
        """Records of the dead, who have none after their death."""
        deaths = self.people.select("who", "death")
        late = self.rows.inner_join(deaths, "who")
        late = late.filter(late.day > late.death)
        n = int(
            self.database.fetch(late.aggregate(n=late.count()), "records after death")["n"].iloc[0]
        )
        examples = []
        if n:
            part = late.select("who", "day").order_by(["who", "day"]).limit(5)
            rows = self.database.fetch(part, "examples of records after death")
            examples = [f"{who}: {day_text(int(day))}" for who, day in rows.itertuples(index=False)]
        return Issue("record after death", n, "dropped", "; ".join(examples))


def position_of(keys: NDArray[Any], who: pd.Series) -> NDArray[np.int64]:
    """The position of each patient among the keys; all are there."""
    if keys.dtype.kind in "iu":
        order = np.argsort(keys)
        place: NDArray[np.int64] = order[np.searchsorted(keys, who.to_numpy(), sorter=order)]
        return place
    return np.asarray(pd.Index(keys).get_indexer(who))


def days_since_1970(date: Any) -> Any:
    """A date or timestamp column as days since 1970-01-01; the clock time is cut off."""
    import ibis

    if date.type().is_timestamp():
        date = date.date()  # differences of timestamps are rounded differently by the engines
    return date.delta(ibis.date(1970, 1, 1), unit="day").cast("int32")


def islands(table: Any, keys: list[str], gap: int) -> Any:
    """Spells (`begin`, `stop`) of the same keys at most `gap` free days apart, made one."""
    import ibis

    def order(spells: Any) -> dict[str, Any]:
        return {"group_by": [spells[key] for key in keys], "order_by": spells.begin}

    spells = table.group_by([*keys, "begin"]).aggregate(stop=table.stop.max())
    reach = spells.stop.max().over(ibis.window(**order(spells), preceding=(None, 1)))
    spells = spells.mutate(reach=reach)
    new = spells.reach.isnull() | (spells.begin - spells.reach - 1 > gap)
    spells = spells.mutate(new=new.cast("int32"))
    number = spells.new.sum().over(ibis.window(**order(spells), preceding=(None, 0)))
    spells = spells.mutate(number=number)
    joined = spells.group_by([*keys, "number"]).aggregate(
        begin=spells.begin.min(), stop=spells.stop.max()
    )
    return joined.drop("number")


def after_gaps(rows: Any, days: int, start: int | None) -> Any:
    """The rows with `new`: from `start` on, and none of the same patient in the `days` before."""
    import ibis

    before = rows.day.lag().over(ibis.window(group_by=rows.who, order_by=rows.day))
    rows = rows.mutate(since=rows.day - before)
    new = rows.since.isnull() | (rows.since > days)
    return rows.mutate(new=new if start is None else new & (rows.day >= start))


def batches_of(keys: NDArray[Any], n_records: NDArray[np.int64]) -> list[tuple[int, int, bool]]:
    """Positions of patients, from and to, and whether this is the only batch."""
    cuts = {0, len(keys)}
    if keys.dtype.kind in "iu":  # texts are ordered otherwise in each database
        ends = np.cumsum(n_records)
        cuts |= {int(i) + 1 for i in np.searchsorted(ends, np.arange(_BATCH, ends[-1], _BATCH))}
    ordered = sorted(c for c in cuts if c <= len(keys))
    pairs = zip(ordered, ordered[1:], strict=False)
    return [(low, high, len(ordered) == 2) for low, high in pairs]


def between(rows: Any, keys: NDArray[Any], low: int, high: int) -> Any:
    """The rows of the patients at these positions; keys are sorted whole numbers."""
    return rows.filter((rows.who >= keys[low].item()) & (rows.who <= keys[high - 1].item()))
