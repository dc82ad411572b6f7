"""Draws from the posterior of a mixture: against the sum over all classes and ways through gaps."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln

import mmlca
from mmlca.model.posterior import _Gibbs, draw_first_step

ROWS = [[0, 0, 0, 0], [0, 0, -1, 1], [1, 1, 1, 0], [0, 1, 0, 1], [1, -1, 1, 1], [1, 0, 1, 0]]
GROUPS = np.array([0, 0, 0, 1, 1, 1])


def _log_even(counts: np.ndarray) -> float:
    """Log-probability of counts in order, under a Dirichlet with the parameter 1 in each cell."""
    k = counts.shape[-1]
    each = gammaln(k) - gammaln(counts.sum(axis=-1) + k) + gammaln(counts + 1).sum(axis=-1)
    return float(each.sum())


def _together_by_enumeration() -> np.ndarray:
    """P(patients i and j are of one class | data), with proportions of each group."""
    gaps = [(i, t) for i, row in enumerate(ROWS) for t, state in enumerate(row) if state < 0]
    together, total = np.zeros((6, 6)), 0.0
    for filled in product([0, 1], repeat=len(gaps)):
        rows = np.array(ROWS)
        for (i, t), state in zip(gaps, filled, strict=True):
            rows[i, t] = state
        for classes in product([0, 1], repeat=6):
            start, steps, shares = np.zeros((2, 2)), np.zeros((2, 2, 2)), np.zeros((2, 2))
            for i, k in enumerate(classes):
                shares[GROUPS[i], k] += 1
                start[k, rows[i, 0]] += 1
                for a, b in zip(rows[i][:-1], rows[i][1:], strict=True):
                    steps[k, a, b] += 1
            p = np.exp(_log_even(start) + _log_even(steps) + _log_even(shares))
            z = np.array(classes)
            together += p * (z[:, None] == z)
            total += p
    return together / total


def test_classes_are_drawn_from_their_distribution() -> None:
    data = mmlca.Sequences.from_codes(np.array(ROWS), ["a", "b"])
    start = mmlca.MarkovParams([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]], [[[0.6, 0.4], [0.5, 0.5]]] * 2)
    patterns = data.patterns.by_group(GROUPS, 2, np.ones(6))
    chain = _Gibbs(patterns, start, 1)
    found, n = np.zeros((6, 6)), 8_000
    for _ in range(n):
        p = chain.step()[patterns.inverse]
        found += p @ p.T / n
    expected = _together_by_enumeration()
    off = ~np.eye(6, dtype=bool)  # given the model, two patients are independent
    assert np.ptp(expected[off]) > 0.15
    assert found[off] == pytest.approx(expected[off], abs=0.02)


def test_averages_are_less_certain_than_the_fit_and_weights_count_as_patients() -> None:
    chains = mmlca.MarkovParams(
        [0.6, 0.4], [[0.5, 0.5]] * 2, [[[0.9, 0.1], [0.4, 0.6]], [[0.6, 0.4], [0.1, 0.9]]]
    )
    data, truth = mmlca.simulate(chains, 300, 6, seed=3)
    model = mmlca.MixtureMarkov(2, init=chains).fit(data)
    p = model.predict_proba(data)
    given = np.eye(2)[p.argmax(axis=1)]
    found = draw_first_step(model.params_, data, given, np.ones(300), 1)
    assert found.posterior.sum(axis=1) == pytest.approx(np.ones(300))
    assert found.tables.sum(axis=(1, 2)) == pytest.approx(np.ones(2_000))
    assert found.posterior.max(axis=1).mean() < p.max(axis=1).mean() - 0.01
    again = draw_first_step(model.params_, data, given, np.full(300, 7.0), 1)
    assert np.array_equal(again.tables, found.tables)  # a unit is no information
    early = np.asarray(truth) == 0
    among = draw_first_step(model.params_, data, given, np.ones(300), 1, early)
    assert among.tables.mean(axis=0).sum(axis=1)[0] > 0.75  # almost all are of the first class


def test_chains_of_another_form_are_drawn_too() -> None:
    rng = np.random.default_rng(2)
    data = mmlca.Sequences.from_codes(rng.integers(0, 2, (80, 8)), ["a", "b"])
    model = mmlca.MixtureMarkov(2, stays=[2], n_init=2, seed=1).fit(data)
    given = np.eye(2)[model.predict(data)]
    found = draw_first_step(model.params_, data, given, np.ones(80), 1)
    assert np.isfinite(found.tables).all()
    assert (found.tables >= 0).all()
