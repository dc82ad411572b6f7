"""Simulated sites of sequences, and the study's grid on them."""

from __future__ import annotations

import numpy as np
import pytest

import font
from mmlca.chain_sites import ChainSource, simulate_chains


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
    found = font.run_simulation(grid, 3, seed=1, n_starts=4, source=ChainSource())
    mean = font.simulation_table(found).xs("mean", axis=1, level=1)
    assert list(mean.columns) == list(ChainSource.methods)
    assert mean.index.names[2] == "quarters"
    assert (mean["FONT"] > mean["local"]).all()
    assert mean["FONT"].iloc[1] > mean["FONT"].iloc[0]  # longer sequences tell more
    assert mean["FONT"].iloc[1] > 0.7
    with pytest.raises(ValueError, match="each of methods must be one of"):
        font.run_simulation(grid, 3, source=ChainSource(), methods=["k-FED"])


def test_errors_say_what_to_mend() -> None:
    with pytest.raises(ValueError, match="setting must be one of homogeneous"):
        simulate_chains("odd", 5, 12)
    with pytest.raises(ValueError, match="quarters must be a whole number of at least 1; found 0"):
        simulate_chains("homogeneous", 5, 0)
