"""Records in a database → counts per patient, window and class, by queries; see `ehr_prep.states`.

The same table that `ehr_prep.windows` makes in memory, from the same rules, written once with Ibis
for every engine. Who is eligible is decided by `choose_cohort` alone; the queries compute the index
date and the end of follow-up again, and a difference is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehr_prep.cohort import Cohort
from ehr_prep.dates import NO_DATE, one_day
from ehr_prep.settings import Rules
from ehr_prep.warehouse import (
    WarehouseRecords,
    after_gaps,
    between,
    days_since_1970,
    islands,
    position_of,
)
from ehr_prep.windows import Cells, Reduction, Sets, members_by_name

_BEFORE, _LATE, _BEYOND = -1, -2, -3  # windows of records that fall into none


class _Windows(NamedTuple):
    """Length and number of the windows; `offsets` are days after the index date, or None."""

    n: int
    months: int
    offsets: tuple[int, ...] | None


def reduce_in_database(
    records: WarehouseRecords, cohort: Cohort, rules: Rules
) -> Iterator[Reduction]:
    """The reduction of the eligible patients, a batch of them at a time."""
    length = rules.days
    n = rules.max_windows
    offsets = None if length is None else np.ceil(np.arange(n + 1) * length).astype(int).tolist()
    windows = _Windows(n, rules.months, None if offsets is None else tuple(offsets))
    number = np.where(cohort.eligible, np.cumsum(cohort.eligible) - 1, -1)
    for low, high, single in records.batches():
        every, rows = records.usable, records.rows
        if not single:
            every, rows = (between(t, records.keys, low, high) for t in (every, rows))
        frame = _frame(records, every, rules, cohort)
        _check(records, cohort, frame)
        start = int(cohort.eligible[:low].sum())
        stop = start + int(cohort.eligible[low:high].sum())
        yield _reduce(records, rows, frame, windows, rules, number, (start, stop))


# --- windows in the database --------------------------------------------------------------


def _frame(
    records: WarehouseRecords,
    rows: Any,
    rules: Rules,
    cohort: Cohort,
) -> Any:
    """One row per patient: `who`, `first` (the index date), `start` and `last`, as days."""
    import ibis

    first = rules.first_on_or_after
    since = None if first is None else one_day(first, "first_on_or_after")
    washout = rules.washout_days
    if washout is None:
        frame = rows.group_by("who").aggregate(first=rows.date.min())
    else:
        marked = after_gaps(rows, washout, since)
        frame = marked.group_by("who").aggregate(
            first=ibis.coalesce(marked.date.min(where=marked.new), marked.date.min())
        )
    frame = frame.mutate(start=days_since_1970(frame["first"]))
    return _with_end(records, frame, rules, rules.data_cut, cohort)


def _with_end(
    records: WarehouseRecords, frame: Any, rules: Rules, data_cut: Any, cohort: Cohort
) -> Any:
    """The frame with the last day of follow-up; the rules are those of `choose_cohort`."""
    import ibis

    columns: tuple[str, ...] = ()
    if records.people is not None:
        columns = tuple(c for c in records.people.columns if c != "who")
        frame = frame.left_join(records.people, "who").drop("who_right")
    follow_up = cohort.follow_up
    if follow_up in ("patients", "last_record"):
        frame = frame.left_join(records.seen, "who").drop("who_right", "first_seen")
    stated = ibis.literal(True)
    if follow_up == "patients":
        stated = frame.follow_up_end.notnull()
        last = ibis.coalesce(frame.follow_up_end, frame.last_seen)
    elif follow_up == "observation":
        last = frame.observed_until
    elif follow_up == "last_record":
        stated, last = ibis.literal(False), frame.last_seen
    else:
        last = ibis.literal(cohort.data_end, "int32")
    if data_cut is not None:
        last = ibis.least(last, ibis.literal(one_day(data_cut, "data_cut"), "int32"))
    if "death" in columns and rules.death == "state":
        seen = frame.death.notnull() & ~(stated & (frame.death > last))
        seen &= frame.death <= cohort.data_end
        last = seen.fill_null(False).ifelse(frame.death, last)
    elif "death" in columns:
        last = frame.death.isnull().ifelse(last, ibis.least(last, frame.death))
    return frame.select("who", "first", "start", last=last.cast("int32"))


def _check(records: WarehouseRecords, cohort: Cohort, frame: Any) -> None:
    """The queries and `choose_cohort` must agree on every eligible patient."""
    found = records.database.fetch(
        frame.select("who", "start", "last"), "index date and end of follow-up"
    )
    who = position_of(records.keys, found["who"])
    ours = cohort.eligible[who]
    for name, known in (("start", cohort.start), ("last", cohort.last)):
        differ = ours & (found[name].to_numpy() != known[who])
        if differ.any():
            raise RuntimeError(
                f"the database and this program disagree on the {name} of {differ.sum():,} "
                "patients; this is a mistake in the program, please report it."
            )


def _place(rows: Any, frame: Any, windows: _Windows) -> Any:
    """The records with their `window`, or why they are in none."""
    import ibis

    rows = rows.inner_join(frame.select("who", "first", "start", until=frame["last"]), "who")
    if windows.offsets is None:
        date, first = rows.date, rows["first"]
        months = (date.year() - first.year()) * 12 + date.month() - first.month()
        # the window begins on the day of the index date, or on the month's last day if it has none
        last_of_month = (date + ibis.interval(days=1)).month() != date.month()
        months -= ((date.day() < first.day()) & ~last_of_month).cast("int32")
        window = (months / windows.months).floor().cast("int32")
    else:
        since = rows.day - rows.start
        window = sum(((since >= day).cast("int32") for day in windows.offsets[1:]), ibis.literal(0))
    place = ibis.cases(
        (rows.day > rows.until, ibis.literal(_LATE, "int32")),
        (window >= windows.n, ibis.literal(_BEYOND, "int32")),
        (rows.day < rows.start, ibis.literal(_BEFORE, "int32")),
        else_=window.cast("int32"),
    )
    return rows.mutate(window=place.cast("int16"))


def _by_window(spells: Any, frame: Any, windows: _Windows) -> Any:
    """Spells (`who`, `begin`, `stop` and more) cut at the edges of followed-up windows."""
    import ibis

    def edge(number: int) -> Any:
        if windows.offsets is not None:
            return frame.start + windows.offsets[number]
        if number == 0:
            return frame.start
        day = frame["first"] + ibis.interval(months=number * windows.months)
        return days_since_1970(day.cast("date"))

    edges = frame.select(
        "who", until=frame["last"], **{f"edge_{i}": edge(i) for i in range(windows.n + 1)}
    )
    table = edges.mutate(window=ibis.range(windows.n).unnest())
    numbers = range(windows.n)
    low = ibis.cases(*((table.window == i, table[f"edge_{i}"]) for i in numbers))
    high = ibis.cases(*((table.window == i, table[f"edge_{i + 1}"] - 1) for i in numbers))
    table = table.select("who", "window", "until", low=low, high=high)
    table = table.filter(table.low <= table.until)
    cut = spells.join(
        table,
        [
            spells.who == table.who,
            spells.begin <= table.high,
            spells.stop >= table.low,
        ],
    )
    if "who_right" in cut.columns:
        cut = cut.drop("who_right")
    return cut.mutate(
        begin=ibis.greatest(cut.begin, cut.low), stop=ibis.least(cut.stop, cut.high)
    ).drop("low", "high", "until")


def _eras(rows: Any, members: NDArray[np.int8], gap: int) -> Any:
    """Covers of a class at most `gap` uncovered days apart, as one: `who`, `state`, days."""
    import ibis

    parts = []
    for column in range(members.shape[1]):
        codes = [(c, int(s)) for c, s in enumerate(members[:, column]) if s >= 0]
        state = ibis.cases(*((rows.code == c, ibis.literal(s, "int8")) for c, s in codes))
        part = rows.select("who", state=state, begin=rows.day, stop=rows["last"])
        parts.append(part.filter(part.state.notnull()))
    covers = parts[0] if len(parts) == 1 else parts[0].union(*parts[1:])
    return islands(covers, ["who", "state"], gap)


def _together(eras: Any, n_states: int) -> Any:
    """Stretches of days with one set of classes: `who`, `classes`, `begin`, `stop`."""
    import ibis

    bits = ((eras.state == s, ibis.literal(1 << s, "int64")) for s in range(n_states))
    eras = eras.mutate(bit=ibis.cases(*bits))
    begins = eras.select("who", "bit", day=eras.begin.cast("int32"))
    ends = eras.select("who", bit=-eras.bit, day=(eras.stop + 1).cast("int32"))
    events = begins.union(ends)
    events = events.group_by(["who", "day"]).aggregate(change=events.bit.sum().cast("int64"))
    order = {"group_by": events.who, "order_by": events.day}
    running = events.change.sum().over(ibis.window(**order, preceding=(None, 0)))
    following = events.day.lead().over(ibis.window(**order))
    events = events.mutate(classes=running.cast("int64"), following=following)
    events = events.filter((events.classes > 0) & events.following.notnull())
    return events.select("who", "classes", begin=events.day, stop=events.following - 1)


# --- from rows to the tables of the reduction ------------------------------------------------


def _reduce(
    records: WarehouseRecords,
    rows: Any,
    frame: Any,
    windows: _Windows,
    rules: Rules,
    number: NDArray[np.int64],
    span: tuple[int, int],
) -> Reduction:
    placed = _place(rows, frame, windows)
    counted = placed.group_by(["who", "window", "code"]).aggregate(
        count=placed.count().cast("int32"),
        first=placed.day.min(),
        last=placed.day.max(),
        supply=(placed["last"] - placed.day + 1).sum().cast("int32"),
        end=placed["last"].max(),
    )
    table = _fetch(records, counted, number, "records per patient, window and class")
    inside = table["window"] >= 0
    dropped = tuple(
        int(table["count"][table["window"] == place].sum()) for place in (_BEFORE, _LATE, _BEYOND)
    )
    table = {name: column[inside] for name, column in table.items()}
    n_records = np.bincount(
        table["patient"] - span[0], weights=table["count"], minlength=span[1] - span[0]
    ).astype(np.int64)
    members = members_by_name(records.members, records.states)
    cells = _cells(table, members)
    sets = None
    usable = placed.filter(placed.window >= 0)
    if rules.by == "days" and not rules.combine:
        cut = _by_window(_eras(usable, members, 0), frame, windows)
        cells = _days(records, cut, cells, number)
    if rules.combine:
        eras = _eras(usable, members, rules.gap_days)
        cut = _by_window(_together(eras, len(records.states)), frame, windows)
        sets = _sets(records, cut, number)
    return Reduction(*span, cells, sets, n_records, (dropped[0], dropped[1], dropped[2]))


def _fetch(
    records: WarehouseRecords, table: Any, number: NDArray[np.int64], purpose: str
) -> dict[str, NDArray[Any]]:
    """The rows of eligible patients, with their position as `patient`."""
    found = records.database.fetch_arrow(table, purpose)
    columns = {name: found.column(name).to_numpy() for name in found.column_names if name != "who"}
    patient = number[position_of(records.keys, found.column("who").to_pandas())]
    kept = patient >= 0
    return {"patient": patient[kept], **{n: column[kept] for n, column in columns.items()}}


def _cells(table: Mapping[str, NDArray[Any]], members: NDArray[np.int8]) -> Cells:
    """One row per class: records of a fixed combination count for each of its classes."""
    states = members[table["code"]]
    row, column = np.nonzero(states >= 0)
    patient, window = table["patient"][row], table["window"][row]
    state = states[row, column]
    order = np.lexsort((state, window, patient))
    row, patient, window, state = row[order], patient[order], window[order], state[order]
    new = np.ones(len(row), dtype=bool)
    new[1:] = (np.diff(patient) != 0) | (np.diff(window) != 0) | (np.diff(state) != 0)
    begins = np.flatnonzero(new)
    if not len(begins):
        begins = np.zeros(0, dtype=np.intp)

    def total(name: str, add: np.ufunc) -> NDArray[np.int32]:
        values = table[name][row].astype(np.int32)
        return values if new.all() else add.reduceat(values, begins).astype(np.int32)

    return Cells(
        patient[begins].astype(np.int64),
        window[begins].astype(np.int16),
        state[begins].astype(np.int8),
        total("count", np.add),
        total("first", np.minimum),
        total("last", np.maximum),
        total("supply", np.add),
        total("end", np.maximum),
    )


def _days(
    records: WarehouseRecords, cut: Any, by_record: Cells, number: NDArray[np.int64]
) -> Cells:
    """Cells of covered days; supply and its end stay those of the records of the window."""
    days = cut.mutate(days=cut.stop - cut.begin + 1)
    counted = days.group_by(["who", "window", "state"]).aggregate(
        count=days.days.sum().cast("int32"), first=days.begin.min(), last=days.stop.max()
    )
    table = _fetch(records, counted, number, "days per patient, window and class")
    order = np.lexsort((table["state"], table["window"], table["patient"]))
    patient, window, state = (table[name][order] for name in ("patient", "window", "state"))
    end = np.full(len(order), NO_DATE, dtype=np.int32)
    supply = np.zeros(len(order), dtype=np.int32)
    keys = _key(patient, window, state)
    at = np.searchsorted(keys, _key(by_record.patient, by_record.window, by_record.state))
    # a record covers its own day, so that its cell is there
    end[at], supply[at] = by_record.end, by_record.supply
    n, first, last = (table[name][order].astype(np.int32) for name in ("count", "first", "last"))
    place = patient.astype(np.int64), window.astype(np.int16), state.astype(np.int8)
    return Cells(*place, n, first, last, supply, end)


def _key(patient: Any, window: Any, state: Any) -> NDArray[np.int64]:
    both = (patient.astype(np.int64) << 24) + (window.astype(np.int64) << 8)
    return np.asarray(both + state.astype(np.int64))


def _sets(records: WarehouseRecords, cut: Any, number: NDArray[np.int64]) -> Sets:
    days = cut.mutate(days=cut.stop - cut.begin + 1)
    counted = days.group_by(["who", "window", "classes"]).aggregate(
        days=days.days.sum().cast("int32"), first=days.begin.min(), last=days.stop.max()
    )
    table = _fetch(records, counted, number, "days per patient, window and set of classes")
    order = np.lexsort((table["first"], table["window"], table["patient"]))
    return Sets(
        table["patient"][order].astype(np.int64),
        table["window"][order].astype(np.int16),
        table["classes"][order].astype(np.int64),
        *(table[name][order].astype(np.int32) for name in ("days", "first", "last")),
    )
