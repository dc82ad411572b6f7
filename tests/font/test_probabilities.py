"""Counts as probabilities: hand numbers, and the maximum that they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from font.probabilities import log_prior, probabilities


def test_numbers_by_hand() -> None:
    assert probabilities([3, 0, 1], 1).tolist() == [4 / 7, 1 / 7, 2 / 7]
    assert probabilities([[3, 0, 1], [0, 0, 0]]).tolist() == [[0.75, 0, 0.25], [1 / 3] * 3]
    assert probabilities([2, 5, 2], 1, [True, False, True]).tolist() == [0.5, 0, 0.5]
    assert probabilities([0, 5, 0], 0, [True, False, True]).tolist() == [0.5, 0, 0.5]
    assert log_prior(np.array([0.5, 0.5, 0.0]), np.array([2, 0, 0])) == pytest.approx(
        2 * np.log(0.5)
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_rows_side_by_side(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 3, (2, sum(sizes))).astype(float)
    prior = rng.choice([0.0, 0.5], sum(sizes))
    together = probabilities(counts, prior, sizes=sizes)
    cuts = np.cumsum(sizes)[:-1]
    apart = [
        probabilities(part, pseudo)
        for part, pseudo in zip(np.split(counts, cuts, axis=1), np.split(prior, cuts), strict=True)
    ]
    np.testing.assert_allclose(together, np.hstack(apart), rtol=1e-15)


@given(st.integers(2, 6), st.floats(0, 3), st.integers(0, 99))
def test_it_is_the_maximum_a_posteriori(n: int, prior: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 9, n).astype(float)
    best = probabilities(counts, prior)

    def value(p: np.ndarray) -> float:
        return float(counts @ np.log(p)) + log_prior(p, prior)

    others = rng.dirichlet(100 * best, 50)
    assert best.sum() == pytest.approx(1)
    assert all(value(best) >= value(p) - 1e-9 for p in np.maximum(others, 1e-300))
