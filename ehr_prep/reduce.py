"""Records in memory → counts per patient, window and class; see `ehr_prep.states`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehr_prep.records import Records
from ehr_prep.settings import Rules
from ehr_prep.states import Cells, Frame, Reduction, Sets, members_by_name

_MOST_ROWS = 4_000_000
"""Rows of cells at most made at once, so that memory does not grow with the patients."""


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
