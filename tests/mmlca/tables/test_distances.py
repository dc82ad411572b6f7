"""Distances: numbers by hand from TraMineR's definitions, naive loops, metric properties."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PEERS

import mmlca
from mmlca.tables.distances import _rates_around, distinct_sequences

METHODS = ("hamming", "dynamic_hamming", "lcs", "om")


def of_letters(*texts: str) -> mmlca.Sequences:
    """Sequences of single letters; "?" is missing."""
    rows = [[None if c == "?" else c for c in text] for text in texts]
    return mmlca.Sequences.from_lists(rows)


def random_sequences(seed: int, n: int = 12, n_times: int = 6) -> mmlca.Sequences:
    """Ragged, with missing windows, also at the end, and with weights."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 3, (n, n_times)).astype(np.int8)
    codes[:, 0] = rng.integers(3, size=n)  # everybody is observed once
    lengths = rng.integers(1, n_times + 1, n)
    codes[np.arange(n_times) >= lengths[:, None]] = -1
    weights = rng.integers(1, 5, n)
    return mmlca.Sequences.from_codes(codes, list("ABC"), weights=weights, lengths=lengths)


# --- by hand ----------------------------------------------------------------------------------


def test_hamming_and_lcs_by_hand() -> None:
    # the family forms of TraMineR's user guide: single, union, married, married with child
    s = mmlca.Sequences.from_lists(
        [["S", "U"], ["S", "U", "M"], ["S", "U", "M", "MC"], ["S", "M", "MC"], ["U", "M", "MC"]]
    )
    # longest common subsequences, such as S-M-MC of the third and the fourth: 3
    common = np.array(
        [[2, 2, 2, 1, 1], [2, 3, 3, 2, 2], [2, 3, 4, 3, 3], [1, 2, 3, 3, 2], [1, 2, 3, 2, 3]]
    )
    by_hand = s.lengths[:, None] + s.lengths[None, :] - 2 * common
    assert mmlca.distances(s, "lcs").tolist() == by_hand.tolist()
    assert mmlca.distances(s, "om").tolist() == by_hand.tolist()
    assert mmlca.distances(s, "hamming")[0].tolist() == [0, 1, 2, 2, 3]
    assert mmlca.distances(s, "HAM")[2].tolist() == [2, 1, 0, 3, 4]


def test_costs_from_transition_rates_by_hand() -> None:
    s = of_letters("AAB", "ABC")  # A → A, A → B; A → B, B → C: p(A → B) = 2/3, p(B → C) = 1
    found = mmlca.distances(s, "om", costs="rates")
    # AAB and ABC: replace A by B (2 − 2/3) and B by C (2 − 1); insertions cost 1 each (2/2)
    assert found[0, 1] == pytest.approx(min(2 - 2 / 3 + 1, 2 * 1))
    dear = mmlca.distances(s, "om", costs="rates", indel=5)
    assert dear[0, 1] == pytest.approx(2 - 2 / 3 + 1)
    assert mmlca.distances(s, "OM", costs="TRATE", indel=5)[0, 1] == dear[0, 1]


def test_dynamic_hamming_by_hand() -> None:
    s = of_letters("AAB", "ABB", "ABB", "BBA")
    # step 1: A → A 1/3, A → B 2/3, B → B 1; step 2: A → B 1, B → B 2/3, B → A 1/3
    # costs of A against B: 4 − 2·2/3 first, 4 − 2/3 − (1 + 1/3) in the middle, 4 − 2·(4/3) last
    costs = [4 - 4 / 3, 4 - 2 / 3 - 4 / 3, 4 - 8 / 3]
    found = mmlca.distances(s, "dynamic_hamming")
    assert found[0, 1] == pytest.approx(costs[1])
    assert found[0, 3] == pytest.approx(sum(costs))
    assert found[1, 3] == pytest.approx(costs[0] + costs[2])
    assert found[1, 2] == 0
    assert mmlca.distances(s, "DHD") == pytest.approx(found)


def test_missing_windows_are_a_state_and_void_is_none() -> None:
    s = of_letters("AB?A", "AB??", "ABAA", "AB")
    assert s.lengths.tolist() == [4, 4, 4, 2]
    assert mmlca.distances(s)[0].tolist() == [0, 1, 1, 2]
    assert mmlca.distances(s)[1].tolist() == [1, 0, 2, 2]
    assert mmlca.distances(s, "om")[0].tolist() == [0, 2, 2, 2]
    assert mmlca.distances(s, "om")[3].tolist() == [2, 2, 2, 0]
    assert mmlca.distances(s, "dynamic_hamming")[0, 1] == 4  # missing against A
    assert mmlca.distances(s, "dynamic_hamming")[0, 3] == 8  # two windows that only one has


def test_one_window_one_state_and_as_many_as_there_can_be() -> None:
    one = mmlca.Sequences.from_lists([["A"], ["B"]])
    assert mmlca.distances(one, "dynamic_hamming")[0, 1] == 4
    alone = of_letters("AA", "A")
    assert mmlca.distances(alone, "om", costs="rates")[0, 1] == 1
    names = [f"s{i}" for i in range(127)]
    many = mmlca.Sequences.from_lists(
        [["s126", "s126"], ["s126", None, "s0"], ["s0"]], states=names
    )
    assert mmlca.distances(many).tolist() == [[0, 2, 2], [2, 0, 3], [2, 3, 0]]


# --- naive versions ---------------------------------------------------------------------------


def texts(s: mmlca.Sequences) -> list[list[int]]:
    """States as numbers, S where missing, as long as the sequence."""
    return [
        [s.n_states if c < 0 else int(c) for c in row[:length]]
        for row, length in zip(s.codes, s.lengths, strict=True)
    ]


def naive_rates(s: mmlca.Sequences, time: int | None = None) -> np.ndarray:
    n = s.n_states + 1
    count = np.zeros((n, n))
    for row, weight in zip(texts(s), s.weights, strict=True):
        for t in range(len(row) - 1):
            if time is None or t == time:
                count[row[t], row[t + 1]] += weight
    total = count.sum(axis=1, keepdims=True)
    return np.where(total > 0, count / np.where(total > 0, total, 1), 0)


def naive_edit(x: list[int], y: list[int], cost: np.ndarray, indel: float) -> float:
    """The recursion as in the textbook."""
    if not x or not y:
        return indel * (len(x) + len(y))
    return min(
        naive_edit(x[:-1], y[:-1], cost, indel) + cost[x[-1], y[-1]],
        naive_edit(x[:-1], y, cost, indel) + indel,
        naive_edit(x, y[:-1], cost, indel) + indel,
    )


@pytest.mark.parametrize("seed", range(3))
def test_optimal_matching_equals_the_naive_recursion(seed: int) -> None:
    s = random_sequences(seed, n=7, n_times=5)
    rows, n = texts(s), s.n_states
    constant = 2.0 * (1 - np.eye(n + 1))
    by_rates = 2 - naive_rates(s) - naive_rates(s).T
    np.fill_diagonal(by_rates, 0)
    indel = by_rates.max() / 2
    by_rates[n, :n] = by_rates[:n, n] = 2
    for found, cost, price in (
        (mmlca.distances(s, "om", indel=1.4), constant, 1.4),
        (mmlca.distances(s, "lcs"), constant, 1.0),
        (mmlca.distances(s, "om", costs="rates"), by_rates, indel),
        (mmlca.distances(s, "om", costs="rates", indel=0.6), by_rates, 0.6),
    ):
        naive = [[naive_edit(x, y, cost, price) for y in rows] for x in rows]
        assert found == pytest.approx(np.array(naive))


@pytest.mark.parametrize("seed", range(3))
def test_dynamic_hamming_equals_naive_loops(seed: int) -> None:
    s = random_sequences(seed)
    n, n_times, rows = s.n_states, s.shape[1], texts(s)
    rates = [naive_rates(s, t) for t in range(n_times - 1)]

    def cost(t: int, a: int, b: int) -> float:
        if a == b:
            return 0.0
        if n in (a, b):
            return 4.0
        before = rates[t - 1][a, b] + rates[t - 1][b, a] if t else 0.0
        after = rates[t][a, b] + rates[t][b, a] if t < n_times - 1 else 0.0
        both = before + after if 0 < t < n_times - 1 else 2 * (before + after)
        return max(0.0, 4 - both)

    for x, row in zip(rows, mmlca.distances(s, "dynamic_hamming"), strict=True):
        for y, value in zip(rows, row, strict=True):
            short = min(len(x), len(y))
            naive = sum(cost(t, x[t], y[t]) for t in range(short))
            assert value == pytest.approx(naive + 4 * (max(len(x), len(y)) - short))


def test_mvad_and_biofam_equal_tables_of_costs_in_numpy() -> None:
    if not PEERS.is_dir():
        pytest.skip("the reference data are not there")
    mvad = mmlca.Sequences.from_frame(pd.read_csv(PEERS / "mvad.csv"), id="id", columns="t1:t70")
    rows = distinct_sequences(mvad)
    around = _rates_around(rows)
    assert len(rows.rows) == 490  # as wcAggregateCases counts them
    # rates of TraMineR's article (Gabadinho et al. 2011): joblessness to employment .04, …
    rates = mmlca.transition_rates(mvad).set_index("from")
    assert round(rates.loc["joblessness", "employment"], 2) == 0.04
    codes = mvad.codes.astype(int)
    sample = np.arange(0, 712, 37)
    x, y = codes[sample][:, None, :], codes[sample][None, :, :]
    time = np.arange(70)
    costs = np.where(np.eye(6, dtype=bool), 0, 4 - around)
    picked = mmlca.distances(mvad, "dynamic_hamming")[np.ix_(sample, sample)]
    assert picked == pytest.approx(costs[time, x, y].sum(axis=2))
    assert mmlca.distances(mvad)[np.ix_(sample, sample)] == pytest.approx((x != y).sum(axis=2))
    long = mmlca.distances(mvad[sample], "lcs")
    for i, j in ((0, 1), (3, 9), (12, 18)):
        best = np.zeros((71, 71), dtype=int)
        for a in range(70):
            for b in range(70):
                same = codes[sample[i], a] == codes[sample[j], b]
                best[a + 1, b + 1] = best[a, b] + 1 if same else max(best[a, b + 1], best[a + 1, b])
        assert long[i, j] == 140 - 2 * best[70, 70]


# --- properties -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), method=st.sampled_from(METHODS))
def test_distances_do_not_depend_on_order_or_repeats(seed: int, method: str) -> None:
    s = random_sequences(seed)
    found = mmlca.distances(s, method)
    assert (found == found.T).all()
    assert (np.diag(found) == 0).all()
    assert (found >= 0).all()
    order = np.random.default_rng(seed).permutation(len(s))
    assert mmlca.distances(s[order], method) == pytest.approx(found[np.ix_(order, order)])
    repeated = np.repeat(np.arange(len(s)), s.weights.astype(int))
    rows = mmlca.Sequences.from_codes(s.codes[repeated], s.states, lengths=s.lengths[repeated])
    assert mmlca.distances(rows, method) == pytest.approx(found[np.ix_(repeated, repeated)])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), indel=st.sampled_from([0.5, 1.0, 1.7]))
def test_those_with_constant_costs_are_metrics(seed: int, indel: float) -> None:
    s = random_sequences(seed, n=8)
    for found in (mmlca.distances(s), mmlca.distances(s, "om", indel=indel)):
        through = (found[:, :, None] + found[None, :, :]).min(axis=1)
        assert (found <= through + 1e-9).all()
        number = distinct_sequences(s).number
        assert ((found == 0) == (number[:, None] == number[None, :])).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "euclid"}, "method must be one of 'hamming', 'dynamic_hamming', 'lcs', 'om'"),
        ({"method": "om", "costs": "free"}, "costs must be one of 'constant', 'rates'"),
        ({"method": "lcs", "indel": 2}, "give method='om', or leave them out"),
        ({"method": "om", "indel": 0}, "indel must be a positive number, found 0"),
        ({"method": "om", "indel": np.nan}, "indel must be a positive number, found nan"),
        ({"method": "om", "indel": "2"}, "indel must be a positive number, found '2'"),
    ],
)
def test_messages(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(mmlca.InputError, match=message.replace("(", r"\(")):
        mmlca.distances(of_letters("AB", "BA"), **arguments)


def test_too_many_patients_are_refused_with_a_way_out() -> None:
    many = mmlca.Sequences.from_codes(np.zeros((20_001, 2), dtype=np.int8))
    with pytest.raises(mmlca.InputError, match="would take 3 GB; at most 20,000"):
        mmlca.distances(many)
    assert mmlca.distances(many[many.distinct()[0]]).tolist() == [[0]]
    with pytest.raises(TypeError, match="found ndarray, expected Sequences"):
        mmlca.distances(np.zeros((2, 2)))
