"""The compiled M-step against the function that all others use."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from oracle import random_params

from font.probabilities import probabilities
from mmlca import Sequences, simulate
from mmlca.model import em


def with_gaps(n_states: int, seed: int) -> Sequences:
    data, _ = simulate(random_params(2, n_states, seed), 80, 7, seed=seed)
    codes = data.codes.copy()
    codes[:, 1:][np.random.default_rng(seed).random((80, 6)) < 0.15] = -1
    return Sequences.from_codes(codes, data.states)


@pytest.mark.parametrize("n_classes", [1, 3, 4, 5])
@pytest.mark.parametrize("prior", [0.0, 1e-4, 0.5])
@pytest.mark.parametrize("n_states", [3, 5, 12])
def test_one_update_of_the_kernel(n_classes: int, prior: float, n_states: int) -> None:
    """By group, with gaps, with forbidden cells, and with a state that nobody enters."""
    known = with_gaps(n_states - 1, seed=n_states)
    data = Sequences.from_codes(known.codes, [*known.states, "never"])
    zeros = np.zeros((n_states + 1, n_states), dtype=bool)
    zeros[:, -1] = True
    zeros[n_states - 1, 0] = True
    group = np.arange(len(data)) % 2
    patterns = data.patterns.by_group(group, 2, data.weights)
    start = random_params(n_classes, n_states, seed=9)
    rows = em.cells_of(start).reshape(n_classes, n_states + 1, n_states)
    cells = probabilities(rows, allowed=~zeros).reshape(n_classes, -1)
    shares = np.stack([start.weights, start.weights[::-1]])
    settings = em.Settings(prior, zeros.ravel(), 1, 0.0, False)
    found = em.run_em(patterns, cells, shares, settings)

    step = em.e_step(patterns, em.params_of(cells, start.weights), shares)
    visits = step.visits.reshape(n_classes, n_states + 1, n_states)
    assert prior or (visits[:, n_states - 1].sum(axis=-1) == 0).all()
    wanted = probabilities(visits, prior, ~zeros)
    np.testing.assert_allclose(found.cells, wanted.reshape(n_classes, -1), rtol=1e-14)
    weighted = step.posterior * patterns.weights[:, None]
    members = [weighted[a:b].sum(axis=0) for a, b in pairwise(patterns.starts)]
    np.testing.assert_allclose(found.shares, probabilities(members, prior), rtol=1e-12)


def test_sums_of_patients_give_the_same_update() -> None:
    data = with_gaps(4, seed=1)
    start = random_params(3, 4, seed=2)
    zeros = np.zeros(20, dtype=bool)
    found = em.run_em(
        data.patterns, em.cells_of(start), start.weights, em.Settings(0.5, zeros, 1, 0.0, False)
    )
    step = em.e_step(data.patterns, start)
    total = em.sums_by_class(data.patterns, step.posterior * data.patterns.weights[:, None], start)
    params = em.params_from_sums(total, 0.5, zeros)
    np.testing.assert_allclose(em.cells_of(params), found.cells, rtol=1e-12)
    np.testing.assert_allclose(params.weights, found.shares[0], rtol=1e-12)
