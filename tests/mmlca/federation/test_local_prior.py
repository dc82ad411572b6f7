"""The default prior of local models in a federation, chosen by measurement."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from ra_like import PARAMS

import font
from font.simulation.competitors import rand_index
from mmlca import MarkovParams, MixtureMarkov, simulate
from mmlca.federation.steps import local_prior

REPLICATES = 40
FEDERATED = local_prior(PARAMS.n_states)


def gains(n_sites: int, sizes: tuple[int, int], replicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Adjusted Rand index of the ensemble with priors of 1e-4 and of the federated default."""
    scores = np.empty((replicates, 2))
    for seed in range(replicates):
        rng = np.random.default_rng(seed)
        data, truth = {}, {}
        for site in range(n_sites):
            share = rng.dirichlet(8 * np.asarray(PARAMS.weights))
            chains = MarkovParams(share, PARAMS.initial, PARAMS.transition)
            n = int(rng.integers(sizes[0], sizes[1] + 1))
            data[f"s{site}"], classes = simulate(chains, n, 16, rng)
            truth[f"s{site}"] = classes.to_numpy()
        for i, prior in enumerate((1e-4, FEDERATED)):
            models = {
                site: MixtureMarkov(4, n_init=8, prior=prior, seed=seed).fit(part)
                for site, part in data.items()
            }
            labels = {site: font.label(models, part) for site, part in data.items()}
            ensemble = font.Ensemble(4, seed=seed)
            ensemble.fit(models, font.LabelPatterns.from_labels(labels))
            clusters = {site: ensemble.predict(table) for site, table in labels.items()}
            scores[seed, i] = rand_index(
                *(np.concatenate(list(x.values())) for x in (clusters, truth))
            )
    return scores[:, 0], scores[:, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_sites", "sizes", "least"),
    [(10, (50, 150), 0.0), (5, (50, 500), 0.0), (2, (2000, 3200), -0.005)],
)
def test_half_a_patient_helps_small_sites_and_costs_large_ones_nothing(
    n_sites: int, sizes: tuple[int, int], least: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few searches agree at small sites
        before, after = gains(n_sites, sizes, REPLICATES)
    gain = after - before
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    assert gain.mean() > least + 2 * error, (before.mean(), after.mean(), error)
