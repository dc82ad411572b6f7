"""Which further numbers of a table to hide, so that no hidden one follows from the rest.

A reader of a table knows that parts add up to their total. A hidden number is safe if the sums
leave it open over a range of a given width. Where that is not so, the cheapest numbers that open
such a range are hidden too (a linear programme, as statistical offices use: J. P. Kelly, B. L.
Golden, A. A. Assad, "Cell suppression: disclosure protection for sensitive tabular data",
Networks 22 (1992)). Hidden numbers are taken to look alike, and to be known not to be 0.
`mmlca.tables.disclosure.small` alone uses this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Sum = tuple[int, Sequence[int] | NDArray[np.intp]]
"""Position of a total, and the positions of the parts that add up to it."""

_MOVED = 1e-7


def hide_further(
    values: ArrayLike,
    sums: Sequence[Sum],
    small: NDArray[np.bool_],
    width: float,
    *,
    blank: NDArray[np.bool_] | None = None,
    known: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """The small cells and those to hide with them.

    Parameters
    ----------
    values : (n,)
        All cells, totals too; none below 0.
    sums : which cells add up to which
    small : (n,) cells to hide in any case
    width : range over which each of these must stay open
    blank : (n,), optional
        Cells that show nothing, not even whether they are 0, and that may be found out.
    known : (n,), optional
        Cells that cannot be hidden.
    """
    value, none = np.asarray(values, dtype=float), np.zeros(len(small), dtype=bool)
    blank, known = (none if mask is None else mask for mask in (blank, known))
    hidden = small | blank
    small = small & (value > 0)  # a zero reveals nothing
    for cells, relations in _connected(len(value), sums, small):
        plain = not (blank[cells].any() or known[cells].any())
        if len(relations) == 1 and plain:
            hidden[cells] |= _protect_one_sum(value[cells], relations, small[cells], width)
        else:
            free = (((value > 0) | blank) & ~known)[cells]
            part = _Part(value[cells], relations, small[cells], blank[cells], free, width)
            hidden[cells] |= part.protect()
    return hidden


def _connected(
    n: int, sums: Sequence[Sum], small: NDArray[np.bool_]
) -> list[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """The cells and relations (r, cells), A·x = 0, of each part of the table with a small cell."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    total = np.repeat([t for t, _ in sums], [len(parts) for _, parts in sums]).astype(np.intp)
    part = np.array([p for _, parts in sums for p in parts], dtype=np.intp)
    links = coo_array((np.ones(len(part)), (total, part)), shape=(n, n))
    member = connected_components(links, directed=False)[1]
    components = []
    for k in np.unique(member[small]):
        cells = np.flatnonzero(member == k)
        mine = [(t, parts) for t, parts in sums if member[t] == k]
        relations = np.zeros((len(mine), len(cells)))
        for r, (t, parts) in enumerate(mine):
            relations[r, np.searchsorted(cells, parts)] = 1
            relations[r, np.searchsorted(cells, t)] = -1
        components.append((cells, relations))
    return components


def _protect_one_sum(
    value: NDArray[np.float64],
    relations: NDArray[np.float64],
    small: NDArray[np.bool_],
    width: float,
) -> NDArray[np.bool_]:
    """The same as `_protect` without a programme: the smallest parts first, the total last.

    Hidden parts are known to be at least 1 and to add up to what the shown ones leave, so that
    each ranges over their sum less their number; without bounds if the total is hidden.
    """
    hidden, is_total = small.copy(), relations[0] < 0
    order = np.lexsort([value, is_total])
    for i in order[(value > 0)[order] & ~small[order]]:
        parts = hidden & ~is_total
        if hidden[is_total].any() or (
            parts.sum() > 1 and value[parts].sum() - parts.sum() >= width
        ):
            break
        hidden[i] = True
    return hidden


class _Part:
    """One connected part of a system of sums.

    A hidden cell is known to be at least 1, since zeros show; a blank one may be 0. Cells that are
    not `free` do not move: zeros that show, and what cannot be hidden.
    """

    def __init__(
        self,
        value: NDArray[np.float64],
        relations: NDArray[np.float64],
        small: NDArray[np.bool_],
        blank: NDArray[np.bool_],
        free: NDArray[np.bool_],
        width: float,
    ) -> None:
        from scipy.sparse import csc_array

        self.value, self.small, self.width = value, small, width
        self.relations = csc_array(relations)
        self.hidden = small | blank
        self.room = np.maximum(value - np.where(blank, 0, 1), 0.0)
        self.movable = free

    def protect(self) -> NDArray[np.bool_]:
        """The hidden cells: for each small one that is not safe yet, the cheapest that help."""
        safe = ~self.small | self.certified(np.flatnonzero(self.small))
        while not safe.all():
            self.open_one(int(np.flatnonzero(~safe)[0]))
            safe[np.flatnonzero(~safe)[0]] = True
            safe |= self.certified(np.flatnonzero(~safe))
        return self.hidden

    def certified(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Those of the cells that certainly range over the width, with what is hidden now.

        One programme for all: two sets of moves that keep every sum, as far apart as they can be.
        """
        from scipy.optimize import linprog
        from scipy.sparse import block_array, coo_array, eye_array

        safe = np.zeros(len(self.value), dtype=bool)
        if not len(cells):
            return safe
        at = np.flatnonzero(self.hidden & self.movable)
        moved = self.relations[:, at]
        moved = moved[np.flatnonzero(np.diff(moved.tocsr().indptr))]
        n, k = len(at), len(cells)
        pick = coo_array(
            (np.ones(k), (np.arange(k), np.searchsorted(at, cells))), shape=(k, n)
        ).tocsr()
        keep = block_array([[moved, None, coo_array((moved.shape[0], k))], [None, moved, None]])
        apart = block_array([[-pick, pick, eye_array(k)]])
        low = np.concatenate([-self.room[at], -self.room[at], np.zeros(k)])
        high = np.concatenate([np.full(2 * n, np.inf), np.full(k, self.width)])
        solution = linprog(
            np.concatenate([np.zeros(2 * n), -np.ones(k)]),
            A_ub=apart,
            b_ub=np.zeros(k),
            A_eq=keep,
            b_eq=np.zeros(keep.shape[0]),
            bounds=np.column_stack([low, high]),
            method="highs",
        )
        if solution.x is not None:
            safe[cells[solution.x[2 * n :] >= self.width - _MOVED]] = True
        return safe

    def open_one(self, cell: int) -> None:
        """Hide the cheapest cells with which one cell ranges over the width.

        The moves of all cells, one set upward and one downward, keep every sum. What is hidden
        moves for nothing. If no moves help, everything is hidden.
        """
        from scipy.optimize import linprog
        from scipy.sparse import block_array, hstack

        at = np.flatnonzero(self.movable)
        n, value = len(at), self.value[at]
        one = hstack([self.relations[:, at], -self.relations[:, at]])  # moves up, then down
        keep = block_array([[one, None], [None, one]])
        bounds = np.column_stack(
            [np.zeros(4 * n), np.tile(np.concatenate([np.full(n, np.inf), self.room[at]]), 2)]
        )
        cost = np.where(self.hidden[at], 0.0, value)
        i = int(np.searchsorted(at, cell))
        wide = np.zeros(4 * n)
        wide[[i, n + i, 2 * n + i, 3 * n + i]] = [1, -1, -1, 1]
        solution = linprog(
            np.tile(cost, 4),
            A_ub=-wide[None],
            b_ub=[-self.width],
            A_eq=keep,
            b_eq=np.zeros(keep.shape[0]),
            bounds=bounds,
            method="highs-ds",
        )
        if solution.x is None:
            self.hidden[at] = True
            return
        moves = solution.x.reshape(2, 2, n)
        far = np.abs(moves[:, 0] - moves[:, 1]) > _MOVED
        self.hidden[at[far.any(axis=0) & (cost > 0)]] = True
