"""Windows of patients, and what was counted in each: records → counts by patient, window, class.

Records become states in two steps, and the boundary between them is a small table:

1. **Reduce** (`reduce_records`). Records → `Cells`: for each patient, window and class how often it
   was recorded (or how many days it covered), on which day first and last, and for how many days
   and until when it was supplied. For combinations also `Sets`: for each patient, window and exact
   set of classes in use at the same time, the days and the first and last of them. Both come in a
   `Reduction`, for a batch of patients at a time, so that memory stays bounded.
2. **Finish** (`ehr_prep.states.finish`), which never sees a record.

What the reduction keeps to:

- Classes are numbered in the order of their names (`name_order`), not in that of the drug map:
  the order of the drug map decides the order of the states and the names of combinations, never
  the state of a window.
- Only records with `edges[p, 0] <= date <= last[p]` and `date < edges[p, W]` count, where `edges`
  and `last` are those of the `Frame`; the others are counted in `Reduction.dropped`, each once, in
  the order: after the end of follow-up, after the last window, before the index date.
- A record of a fixed combination counts for each of its classes.
- By days, a record covers date … end; days of one class that two records cover count once; a
  cover is cut at the window in which follow-up ends (at its end, not at the day itself).
- For `Sets` the covers of a class that are at most `gap_days` uncovered days apart are one *era*,
  the days between included. On each day of a followed-up window the set of classes in an era is
  looked at; days without any class make no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehr_prep.records import Records
from ehr_prep.settings import Rules

_MOST_ROWS = 4_000_000
"""Rows of cells at most made at once, so that memory does not grow with the patients."""


class Frame(NamedTuple):
    """The windows of n patients; days are counted from 1970-01-01.

    Parameters
    ----------
    edges : (n, W + 1) int32
        First day of each window, and the day after the last.
    last : (n,) int32
        Last day of follow-up.
    observed : (n, W) bool, optional
        Whether at least half of a window's followed-up days were observed; None: all were.
    died : (n,) int32, optional
        Day of death or `NO_DATE`, where death is a state; None: it is not.
    data_end : int, optional
        Last day on which anything, death included, is known; needed with `died`.
    """

    edges: NDArray[np.int32]
    last: NDArray[np.int32]
    observed: NDArray[np.bool_] | None = None
    died: NDArray[np.int32] | None = None
    data_end: int | None = None


class Cells(NamedTuple):
    """One row per patient, window and class that counts in it, sorted by these three.

    Parameters
    ----------
    patient : int64
        Position among the n patients of the frame.
    window : int16
    state : int8
        Position of the class in the order of the names.
    n : int32
        Records, or days covered, as `Rules.by` says; with combinations always records.
    first, last : int32
        First and last day that counted: of a record, or covered.
    supply : int32
        Days supplied by the records of this class that start in this window, added up; a record
        that does not say how long it lasts has one.
    end : int32
        Last day covered by any record of this class that starts in this window, not cut at its
        end; `NO_DATE` if none starts in it.
    """

    patient: NDArray[np.int64]
    window: NDArray[np.int16]
    state: NDArray[np.int8]
    n: NDArray[np.int32]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    supply: NDArray[np.int32]
    end: NDArray[np.int32]


class Sets(NamedTuple):
    """One row per patient, window and set of classes in use together, sorted by the first two.

    Parameters
    ----------
    patient : int64
    window : int16
    classes : int64
        The sum of 2**state over the classes in an era on these days, and no others; `state` as in
        `Cells`.
    days : int32
        Days of the window with exactly this set.
    first, last : int32
        The first and the last of these days.
    """

    patient: NDArray[np.int64]
    window: NDArray[np.int16]
    classes: NDArray[np.int64]
    days: NDArray[np.int32]
    first: NDArray[np.int32]
    last: NDArray[np.int32]


class Reduction(NamedTuple):
    """What `finish` needs to know about the patients `start` … `stop` − 1 of the frame.

    Parameters
    ----------
    start, stop : int
    cells : Cells
    sets : Sets or None
        Needed for combinations.
    n_records : (stop − start,) int64
        Records of each patient that fall into a window.
    dropped : (before the index date, after the end of follow-up, after the last window)
        Records that do not.
    """

    start: int
    stop: int
    cells: Cells
    sets: Sets | None
    n_records: NDArray[np.int64]
    dropped: tuple[int, int, int]


def window_edges(
    index: NDArray[np.int32], max_windows: int, months: int = 3, days: float | None = None
) -> NDArray[np.int32]:
    """First day of each window, and the day after the last one: (n, max_windows + 1).

    Examples
    --------
    >>> index = np.array(["2010-01-31"], dtype="datetime64[D]").astype(np.int32)
    >>> window_edges(index, 2).astype("datetime64[D]").astype(str).tolist()
    [['2010-01-31', '2010-04-30', '2010-07-31']]
    """
    edges = np.empty((len(index), max_windows + 1), dtype=np.int32)
    if days is not None:
        edges[:] = index[:, None] + np.ceil(np.arange(max_windows + 1) * days).astype(np.int32)
        return edges
    month = index.astype("datetime64[D]").astype("datetime64[M]")
    day_of_month = index - month.astype("datetime64[D]").astype(np.int32)
    for window in range(max_windows + 1):
        begins = month + np.timedelta64(window * months, "M")
        first = begins.astype("datetime64[D]").astype(np.int32)
        next_first = (begins + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int32)
        edges[:, window] = first + np.minimum(day_of_month, next_first - first - 1)
    return edges


# --- the order of the classes -----------------------------------------------------------------


def name_order(classes: tuple[str, ...]) -> NDArray[np.int8]:
    """The position of each class in the order of the names.

    >>> name_order(("TNFi", "JAK", "anti-CD20")).tolist()
    [2, 1, 0]
    """
    order = sorted(range(len(classes)), key=lambda i: (classes[i].casefold(), classes[i]))
    return np.argsort(order).astype(np.int8)


def members_by_name(members: NDArray[np.int8], classes: tuple[str, ...]) -> NDArray[np.int8]:
    """The classes of one record in the order of the names; see `Records.members`."""
    return np.append(name_order(classes), np.int8(-1))[members]


def reduce_records(
    records: Records, kept: NDArray[np.bool_], frame: Frame, rules: Rules
) -> Iterator[Reduction]:
    """The reduction of the patients `kept`, whose windows are in `frame`, in batches."""
    begin, stop = records.indptr[:-1][kept], records.indptr[1:][kept]
    n_windows = frame.edges.shape[1] - 1
    step = max(_MOST_ROWS // (n_windows * len(records.states)), 1)
    for start in range(0, len(begin), step):
        rows = slice(start, min(start + step, len(begin)))
        part = frame._replace(edges=frame.edges[rows], last=frame.last[rows])
        yield _reduce(records, (begin[rows], stop[rows]), start, part, rules)


def _reduce(
    records: Records,
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    start: int,
    frame: Frame,
    rules: Rules,
) -> Reduction:
    from ehr_prep import _era_kernels, _kernels

    edges, last = frame.edges, frame.last
    n, n_windows = len(edges), edges.shape[1] - 1
    end = records.date if records.end is None else records.end
    columns = (records.date, end, records.state)
    members = members_by_name(records.members, records.states)
    n_records = np.zeros(n, dtype=np.int64)
    by_days = rules.by == "days" and not rules.combine
    n_marks = int((span[1] - span[0]).sum()) * members.shape[1]
    most = n * n_windows * len(records.states)
    room = _room(Cells._fields, most if by_days else min(most, n_marks))
    n_cells, before, late, beyond = _kernels.reduce_cells(
        span, columns, edges, last, members, by_days, room, n_records
    )
    cells = Cells(*(column[:n_cells] for column in room))
    cells.patient[:] += start
    sets = None
    if rules.combine:
        room = _room(Sets._fields, 2 * n_marks + n * n_windows)
        n_sets = _era_kernels.reduce_sets(span, columns, edges, last, members, rules.gap_days, room)
        sets = Sets(*(column[:n_sets] for column in room))
        sets.patient[:] += start
    return Reduction(start, start + n, cells, sets, n_records, (before, late, beyond))


_TYPES = {"patient": np.int64, "window": np.int16, "state": np.int8, "classes": np.int64}


def _room(names: tuple[str, ...], rows: int) -> Any:
    """Columns of a table, not filled in yet."""
    return tuple(np.empty(rows, dtype=_TYPES.get(name, np.int32)) for name in names)
