"""Simulated sites of sequences, and the study's grid on them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import font
from font.errors import InputError
from font.metrics import reliability_counts, reliability_from
from font.simulation.competitors import rand_index
from font.simulation.run import run_simulation, simulation_table
from mmlca import MixtureMarkov
from mmlca.federation.chain_sites import ChainSource, simulate_chains


def test_the_sites_are_as_described() -> None:
    sites = simulate_chains("contaminated", 5, 12, seed=3, sizes=(200, 300))
    assert len(sites.contaminated) == 1
    for site, data in sites.data.items():
        truth = sites.truth[site]
        assert data.shape == (len(truth), 12)
        assert 200 <= (truth >= 0).sum() <= 300
        share = 0.2 / 1.2 if site in sites.contaminated else 0.0
        assert (truth < 0).mean() == pytest.approx(share, abs=0.01)
    # the transitions seen are those of the classes
    initial, transition = sites.means[:, :4], sites.means[:, 4:].reshape(3, 4, 4)
    assert initial.sum(axis=1) == pytest.approx(1)
    assert transition.sum(axis=2) == pytest.approx(1)
    counts = np.zeros_like(transition)
    for site, data in sites.data.items():
        for k in range(3):
            codes = data.codes[sites.truth[site] == k]
            np.add.at(counts[k], (codes[:, :-1].ravel(), codes[:, 1:].ravel()), 1)
    seen = counts / counts.sum(axis=2, keepdims=True)
    assert np.abs(seen - transition)[counts.sum(axis=2) > 500].max() < 0.08


def test_equal_proportions_where_homogeneous() -> None:
    sites = simulate_chains("homogeneous", 4, 4, seed=1, sizes=(500, 500))
    every = np.concatenate(list(sites.truth.values()))
    assert np.bincount(every) / len(every) == pytest.approx(1 / 3, abs=0.05)
    assert sites.contaminated == ()


def test_the_grid_on_sequences() -> None:
    grid = {"setting": "imbalanced", "n_sites": 4, "quarters": [8, 32], "sizes": [(80, 160)]}
    found = run_simulation(grid, 3, seed=1, n_init=4, source=ChainSource())
    mean = simulation_table(found).xs("mean", axis=1, level=1)
    assert list(mean.columns) == list(ChainSource.methods)
    assert mean.index.names[2] == "quarters"
    assert (mean["FONT"] > mean["local"]).all()
    assert mean["FONT"].iloc[1] > mean["FONT"].iloc[0]  # longer sequences tell more
    assert mean["FONT"].iloc[1] > 0.7
    with pytest.raises(InputError, match="each of methods must be one of"):
        run_simulation(grid, 3, source=ChainSource(), methods=["k-FED"])


def test_errors_say_what_to_fix() -> None:
    with pytest.raises(InputError, match="setting must be one of"):
        simulate_chains("odd", 5, 12)
    with pytest.raises(InputError, match="quarters must be a whole number of at least 1; found 0"):
        simulate_chains("homogeneous", 5, 0)


def test_refined_chains_and_their_oracle() -> None:
    scenario = {"setting": "imbalanced", "n_sites": 3, "quarters": 8, "sizes": (60, 80)}
    methods = ["FONT", "FONT refined 1", "FONT refined converge", "pooled site proportions"]
    table = run_simulation(
        [scenario], replicates=1, seed=2, methods=methods, source=ChainSource(), n_init=4
    )
    assert table["ari"].between(-0.2, 1).all()
    assert table["method"].tolist() == methods


@pytest.mark.slow
def test_refining_chains_gains_and_its_probabilities_are_right() -> None:
    stated, right = [], []
    gain = []
    for seed in range(4):
        sites = simulate_chains("imbalanced", 5, 8, seed=1000 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = {s: MixtureMarkov(3, n_init=10, seed=1).fit(x) for s, x in sites.data.items()}
        labels = {s: font.label(models, x) for s, x in sites.data.items()}
        ensemble = font.Ensemble(3, seed=1).fit(models, labels)
        refined = font.refine(ensemble, models, sites.data, "converge")
        member = [refined.predict_proba(x, s).to_numpy() for s, x in sites.data.items()]
        truth = np.concatenate(list(sites.truth.values()))
        table = reliability_from(reliability_counts(np.concatenate(member), truth))
        stated.append(np.average(table["probability"], weights=table["patients"]))
        right.append(np.average(table["right"], weights=table["patients"]))
        before = {s: ensemble.predict(t) for s, t in labels.items()}
        after = {s: refined.predict(x, s) for s, x in sites.data.items()}
        scores = [rand_index(np.concatenate(list(x.values())), truth) for x in (after, before)]
        gain.append(scores[0] - scores[1])
    assert np.mean(gain) > 0.05
    assert np.mean(stated) == pytest.approx(np.mean(right), abs=0.03)
