"""Transition patterns reproduce every patient's counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlca import Sequences
from mmlca.sequences.patterns import Patterns, reduce_codes


def plain_counts(row: list[int], n_states: int) -> Counter[tuple[int, int, int]]:
    """(state before, unobserved times, state after), S before the first: by plain Python."""
    counts: Counter[tuple[int, int, int]] = Counter()
    before, gap = n_states, 0
    for now in row:
        if now < 0:
            gap += 1
        else:
            counts[before, gap, now] += 1
            before, gap = now, 0
    return counts


def pattern_counts(table: Patterns, u: int) -> Counter[tuple[int, int, int]]:
    counts: Counter[tuple[int, int, int]] = Counter()
    for token in table.tokens[table.indptr[u] : table.indptr[u + 1]]:
        cell, times = int(table.cell[token]), int(table.times[token])
        n_plain = table.n_states * (table.n_states + 1)
        if cell < n_plain:
            key = (cell // table.n_states, 0, cell % table.n_states)
        else:
            before, gap, after = map(int, table.gaps[cell - n_plain])
            key = (before, gap, after)
        assert key not in counts
        counts[key] = times
    return counts


def check(codes: np.ndarray, n_states: int) -> Patterns:
    table = reduce_codes(codes.astype(np.int8), n_states)
    plain = [plain_counts(row, n_states) for row in codes.tolist()]
    for r, counts in enumerate(plain):
        assert pattern_counts(table, table.inverse[r]) == counts
    different = {frozenset(counts.items()) for counts in plain}
    assert len(table) == len(different)
    assert table.weights.sum() == len(codes)
    assert np.bincount(table.inverse, minlength=len(table)).tolist() == table.weights.tolist()
    key = table.cell.astype(int) * 40_000 + table.times
    assert (np.diff(key) > 0).all()
    for u in range(len(table)):
        assert (np.diff(table.tokens[table.indptr[u] : table.indptr[u + 1]]) > 0).all()
    return table


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_every_patient_keeps_their_counts(data: st.DataObject) -> None:
    n_states = data.draw(st.sampled_from([1, 2, 3, 127]))
    n, n_times = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 18))
    state = st.integers(-1, n_states - 1)
    rows = data.draw(
        st.lists(st.lists(state, min_size=n_times, max_size=n_times), min_size=n, max_size=n)
    )
    check(np.array(rows), n_states)


def test_by_hand() -> None:
    # A A B, A B B and A A B: two patterns; the second patient stays in B, not in A
    table = reduce_codes(np.array([[0, 0, 1], [0, 1, 1], [0, 0, 1]], dtype=np.int8), 2)
    assert table.inverse[0] == table.inverse[2] != table.inverse[1]
    counts = table.token_counts.toarray()  # columns: AA AB BA BB, begins in A, begins in B
    assert counts[table.inverse[0]].tolist() == [1, 1, 0, 0, 1, 0]
    assert counts[table.inverse[1]].tolist() == [0, 1, 0, 1, 1, 0]
    # the order of the transitions does not matter, the first state does
    table = reduce_codes(np.array([[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]], dtype=np.int8), 2)
    assert table.inverse[0] == table.inverse[1] != table.inverse[2]


def test_gaps_by_hand() -> None:
    table = reduce_codes(np.array([[-1, 0, -1, -1, 1, -1]], dtype=np.int8), 2)
    # nothing before the first state (S = 2) for one time, then A over two unobserved times to B
    assert sorted(map(tuple, table.gaps.tolist())) == [(0, 2, 1), (2, 1, 0)]
    assert table.token_counts.toarray().tolist() == [[0, 0, 0, 0, 0, 0, 1, 1]]


def test_many_rows_across_blocks_and_table_growth() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-1, 3, size=(70_000, 9))
    codes[:, 0] = 0
    codes = np.concatenate([codes, codes[:40_000]])
    table = reduce_codes(codes.astype(np.int8), 3)
    plain = [frozenset(plain_counts(row, 3).items()) for row in codes.tolist()]
    number = {p: k for k, p in enumerate(dict.fromkeys(plain))}
    packed = np.array([number[p] for p in plain])
    assert len(table) == len(number)
    pairs = np.unique(np.column_stack([packed, table.inverse]), axis=0)
    assert len(pairs) == len(number)  # one to one


def test_permuting_the_patients_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(-1, 4, size=(500, 7)).astype(np.int8)
    codes[:, 3] = 1
    order = rng.permutation(500)
    one, two = reduce_codes(codes, 4), reduce_codes(codes[order], 4)
    assert (one.inverse[order] == two.inverse).all()
    for name in ("indptr", "tokens", "cell", "times", "gaps", "weights"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


def test_repeating_a_patient_is_weighting_them() -> None:
    codes = np.array([[0, 1, 1], [0, 0, 1], [1, 1, 1]], dtype=np.int8)
    repeated = Sequences.from_codes(codes[[0, 0, 1, 2, 2, 2]]).patterns
    weighted = Sequences.from_codes(codes, weights=[2, 1, 3]).patterns
    assert np.array_equal(repeated.weights, weighted.weights)
    assert np.array_equal(repeated.tokens, weighted.tokens)


def test_extremes() -> None:
    check(np.zeros((3, 1), dtype=int), 1)
    check(np.full((2, 10_000), 5), 6)
    rng = np.random.default_rng(3)
    check(rng.integers(0, 127, size=(5, 2_000)), 127)
    long_gap = np.full((2, 3_000), -1)
    long_gap[:, [0, -1]] = 1
    table = check(long_gap, 2)
    assert [0, 2_998, 1] not in table.gaps.tolist()
    assert table.gaps.tolist() == [[1, 2_998, 1]]
    empty = reduce_codes(np.empty((0, 4), dtype=np.int8), 2)
    assert len(empty) == 0
    assert len(empty.inverse) == 0
