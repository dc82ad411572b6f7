"""Attacks on what tables show: no hidden number may follow from the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.optimize import linprog

from mmlca.tables import disclosure

COUNTS = st.one_of(st.just(0), st.integers(1, 10), st.integers(11, 30), st.integers(31, 500))


def relations(shape: tuple[int, int]) -> NDArray[np.float64]:
    """What everyone knows of a table with totals in its last row and column: A·x = 0."""
    lines = []
    for axis in (0, 1):
        for k in range(shape[1 - axis]):
            line = np.zeros(shape)
            np.moveaxis(line, axis, 0)[:, k] = [*np.ones(shape[axis] - 1), -1]
            lines.append(line.ravel())
    return np.array(lines)


def determined(known: NDArray[np.float64], hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the hidden cells the linear system of the shown ones gives."""
    free = null_space(known[:, hidden])
    fixed: NDArray[np.bool_] = (np.abs(free) < 1e-9).all(axis=1)
    return fixed


def widest(
    known: NDArray[np.float64], values: NDArray[np.float64], hidden: NDArray[np.bool_], i: int
) -> float:
    """The range of a cell, if hidden cells are at least 1 and all sums hold."""
    bounds = [(1, None) if h else (v, v) for v, h in zip(values, hidden, strict=True)]
    ends = []
    for sign in (1, -1):
        goal = np.zeros(len(values))
        goal[i] = sign
        solved = linprog(goal, A_eq=known, b_eq=np.zeros(len(known)), bounds=bounds)
        assert solved.status in (0, 3)  # solved, or without a bound
        ends.append(sign * solved.fun if solved.status == 0 else -sign * np.inf)
    return float(ends[1] - ends[0])


def check_nothing_follows(
    known: NDArray[np.float64],
    values: NDArray[np.float64],
    hidden: NDArray[np.bool_],
    small: NDArray[np.bool_],
    min_count: int,
) -> None:
    assert hidden[small].all()
    assert not hidden[values == 0].any()
    if hidden.any():
        assert not determined(known, hidden).any()
    for i in np.flatnonzero(small):
        assert widest(known, values, hidden, int(i)) >= min_count - 2 - 1e-6


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5).flatmap(lambda r: arrays(np.int64, (r, 4), elements=COUNTS)))
def test_no_cell_of_a_grid_follows_from_the_others(counts: NDArray[np.int64]) -> None:
    table = disclosure.add_totals(counts)
    values = table.ravel().astype(float)
    small = disclosure.is_small(values, 11)
    hidden = disclosure.hidden_grid(table, min_count=11).ravel()
    check_nothing_follows(relations(table.shape), values, hidden, small, 11)


@settings(max_examples=40, deadline=None)
@given(arrays(np.int64, (3, 5), elements=COUNTS))
def test_no_part_follows_from_the_other_parts_and_their_total(counts: NDArray[np.int64]) -> None:
    parts, total = disclosure.hidden_parts(counts, min_count=11)
    for row, hidden_row, hidden_total in zip(counts, parts, total, strict=True):
        values = np.append(row, row.sum()).astype(float)
        hidden = np.append(hidden_row, hidden_total)
        known = np.array([[*np.ones(len(row)), -1]])
        check_nothing_follows(known, values, hidden, disclosure.is_small(values, 11), 11)


@settings(max_examples=30, deadline=None)
@given(arrays(np.int64, (3, 4), elements=COUNTS))
def test_one_sum_hides_as_the_programme_does(counts: NDArray[np.int64]) -> None:
    """A total given twice makes two sums, which takes the general way."""
    for row in counts:
        cells = np.append(row, [row.sum(), row.sum()])
        sums = [(4, range(4)), (5, [4])]
        small = disclosure.is_small(cells, 11)
        general = disclosure.hidden_cells(cells, sums, 11)
        simple, total = disclosure.hidden_parts(row, 11)
        assert (simple | ~small[:4]).all()
        assert bool(total) == general[4] == general[5]


def test_hiding_the_smallest_cells_that_suffice() -> None:
    shown = disclosure.hidden_grid([[24, 1, 25], [40, 50, 90], [64, 51, 115]], min_count=11)
    assert shown.tolist() == [[True, True, False], [True, True, False], [False, False, False]]
    # two small parts whose sum leaves too few values open take a third
    parts, total = disclosure.hidden_parts([1, 1, 60, 200], min_count=11)
    assert parts.tolist() == [True, True, True, False]
    assert not total
    # nothing else to hide: the total goes
    parts, total = disclosure.hidden_parts([3, 0, 0], min_count=11)
    assert parts.tolist() == [True, False, False]
    assert total


@pytest.mark.parametrize("min_count", [0, 1])
def test_without_a_threshold_nothing_is_hidden(min_count: int) -> None:
    table = disclosure.add_totals(np.arange(12).reshape(3, 4))
    assert not disclosure.hidden_grid(table, min_count).any()
    parts, total = disclosure.hidden_parts(table, min_count)
    assert not parts.any()
    assert not total.any()
