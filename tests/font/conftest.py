"""The textbook version with N×N matrices, and random cases to compare with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest


class Dense(NamedTuple):
    cosines: Any
    weights: Any
    centred_cosines: Any
    combined: Any  # D̃


class Case(NamedTuple):
    models: dict[str, np.ndarray]
    labels: pd.DataFrame
    truth: np.ndarray


def dense_version(models: dict[str, np.ndarray], labels: pd.DataFrame) -> Dense:
    """The paper's Algorithm 1 as written, patients by patients."""
    matrices = []
    for name, beta in models.items():
        rows = beta[labels[name].to_numpy()]
        matrices.append(np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2)))
    n = len(labels)
    centring = np.eye(n) - 1 / n

    def cosines(parts):
        flat = np.array([part.ravel() / np.linalg.norm(part) for part in parts])
        return flat @ flat.T

    agreement = cosines(matrices)
    weights = np.abs(np.linalg.eigh(agreement)[1][:, -1])
    combined = sum(w * d / np.linalg.norm(d) for w, d in zip(weights, matrices, strict=True))
    centred = cosines([centring @ d @ centring for d in matrices])
    return Dense(agreement, weights, centred, combined)


def random_case(
    n: int, n_models: int, k: int, accuracy: float | list[float] = 0.85, seed: int = 0
) -> Case:
    """K true groups; each model names the right one with its accuracy, else any."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    right = np.broadcast_to(accuracy, n_models)
    models, columns = {}, {}
    for m in range(n_models):
        models[f"m{m}"] = 3 * np.eye(k) + rng.normal(scale=0.3, size=(k, k))
        guess = rng.integers(k, size=n)
        columns[f"m{m}"] = np.where(rng.random(n) < right[m], truth, guess).astype(np.int8)
    return Case(models, pd.DataFrame(columns), truth)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """scikit-learn's threads, waiting for each other, make small fits a hundred times slower."""
    import sklearn.cluster  # noqa: F401 - loads the thread pool to be limited
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def dense():
    return dense_version


@pytest.fixture(scope="session")
def make_case():
    return random_case
