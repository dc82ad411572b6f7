"""Speed of the refinement, as ratios measured in one run (CPU time)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from ra_like import ra_like

import font
from font.refinement import fewer, site_step
from mmlca import MixtureMarkov, Sequences

pytestmark = pytest.mark.bench


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    best = np.inf
    for _ in range(repeats):
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
    return best


def test_a_round_at_a_million_patients_costs_at_most_three_e_steps() -> None:
    """A site's part of a round, on distinct patterns, against class probabilities of everyone."""
    made = ra_like(20_000, seed=1)
    rows = np.random.default_rng(1).integers(len(made), size=1_000_000)
    data = Sequences.from_codes(made.codes[rows], made.states)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureMarkov(4, n_init=4, max_iter=50, seed=1).fit(made)
    data.patterns  # noqa: B018 - reduced once, before anything else
    small = fewer(model, data)
    small.patterns  # noqa: B018
    start = site_step(model, small).proportions

    def one_round() -> None:
        step = site_step(model, small, start)
        model.from_statistics(model.statistics(small, step.membership))

    one_round()
    e_step = seconds(lambda: model.predict_proba(data))
    a_round = seconds(one_round)
    print(f"\nE-step {1000 * e_step:.0f} ms, round {1000 * a_round:.0f} ms, {a_round / e_step:.2f}")
    assert a_round <= 3 * e_step


def test_refining_a_study_of_5000_patients_costs_less_than_its_models() -> None:
    sites = {"MGB": ra_like(2_200, seed=1), "VA": ra_like(3_200, seed=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.process_time()
        models = {s: MixtureMarkov(4, n_init=10, seed=1).fit(x) for s, x in sites.items()}
        fits = time.process_time() - begin
    labels = {s: font.label(models, x) for s, x in sites.items()}
    ensemble = font.Ensemble(4, seed=1).fit(models, labels)
    font.refine(ensemble, models, sites)
    cost = seconds(lambda: font.refine(ensemble, models, sites))
    print(f"\nmodels {fits:.2f} s, one round of refinement {cost:.3f} s")
    assert cost < fits
