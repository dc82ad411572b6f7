"""Sites whose labels are noise: what each weighting makes of them (Gaussian data, K = 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import font


class Noise:
    """A model whose labels have nothing to do with the patients."""

    n_classes = 5

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.class_parameters_ = np.random.default_rng(seed).uniform(-1, 1, (5, 10))

    def predict(self, data: Any) -> np.ndarray:
        return np.random.default_rng([self.seed, len(data)]).integers(5, size=len(data))


def results(replicate: int, *, colluding: bool) -> dict[str, float]:
    """Five sites with unequal proportions, two of them useless; ARI and relative weights."""
    rng = np.random.default_rng(replicate)
    means = rng.uniform(-1, 1, (5, 10))
    data, truth = {}, []
    for site in range(5):
        n = rng.integers(50, 501)
        classes = rng.choice(5, n, p=rng.dirichlet(np.ones(5)))
        data[site] = means[classes] + rng.normal(scale=np.sqrt(0.1), size=(n, 10))
        truth.append(classes)
    models: dict[int, Any] = {
        site: KMeans(5, n_init=10, random_state=0).fit(points) for site, points in data.items()
    }
    for site in (0, 1):
        models[site] = Noise(replicate + (0 if colluding else 1000 * (site + 1)))
    labels = {site: font.label(models, points) for site, points in data.items()}
    patterns = font.LabelPatterns.from_labels(labels)
    found = {}
    for weights in ("spectral", "centred"):
        ensemble = font.Ensemble(5, weights=weights, seed=1).fit(models, patterns)
        clusters = np.concatenate([ensemble.predict(table) for table in labels.values()])
        found[weights] = adjusted_rand_score(np.concatenate(truth), clusters)
        relative = ensemble.weights_ / ensemble.weights_.max()
        found[f"{weights} weight"] = float(relative.iloc[:2].mean())
    return found


@pytest.mark.parametrize("colluding", [False, True])
def test_centring_takes_their_weight_away(colluding: bool) -> None:
    runs = [results(replicate, colluding=colluding) for replicate in range(15)]
    mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    assert mean["spectral weight"] > 0.85
    assert mean["centred weight"] < (0.15 if colluding else 0.02)
    assert mean["centred"] > mean["spectral"] + 0.01
    assert mean["centred"] > 0.9
