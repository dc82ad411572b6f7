"""Cohorts that no one would wish for: whatever they are, no NaN, no hang, no riddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from mmlca.model.estimator import MixtureMarkov
from mmlca.sequences.type import Sequences

REASONS = (
    "there is nothing to fit",
    "no observed state",
    "classes cannot be distinguished among",
)


def unusual_cohort(rng: np.random.Generator) -> Sequences:
    """1–200 patients, 1–20 times, 1–10 states, up to 90 % missing, weights of any size."""
    n, t, s = (int(rng.integers(1, most + 1)) for most in (200, 20, 10))
    cells = rng.integers(0, rng.integers(1, s + 1), (n, t)).astype(object)
    missing = rng.random((n, t)) < rng.choice([0.0, 0.3, 0.9])
    if rng.random() < 0.9:  # most often every patient has at least one state
        missing[np.arange(n), rng.integers(0, t, n)] = False
    cells[missing] = None
    labels = {code: f"s{code}" for code in range(s)}
    table = np.vectorize(labels.get, otypes=[object])(cells)
    weights = rng.choice([0.0, 1e-300, 1e-9, 1.0, 1e9, 1e300], n)
    kind = rng.integers(4)  # all alike, some without weight, all of one unusual size, any
    if kind == 0:
        weights[:] = 1.0
    elif kind == 1:
        weights = (rng.random(n) < 0.5).astype(float)
    elif kind == 2:
        weights[:] = weights[0]
    wide = pd.DataFrame(table, columns=[f"t{i}" for i in range(t)])
    wide.insert(0, "weight", weights)
    wide.insert(0, "id", np.arange(n))
    return Sequences.from_frame(wide, states=list(labels.values()), weights="weight")


def check(seed: int) -> bool:
    """Whether the cohort was analysed; a refusal must be a sentence."""
    rng = np.random.default_rng(seed)
    refused = ""
    try:
        data = unusual_cohort(rng)
        model = MixtureMarkov(
            int(rng.integers(1, 7)),
            n_init=3,
            prior=float(rng.choice([0.0, 1e-4, 1.0])),
            seed=seed,
        ).fit(data)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert any(reason in refused for reason in REASONS), f"cohort {seed}: {refused}"
        return False
    parts = {
        "weights": model.params_.weights,
        "initial": model.params_.initial,
        "transition": model.params_.transition,
        "loglik": np.array([model.loglik_]),
        "proba": model.predict_proba(data),
        "patients": model.summary()["patients"].to_numpy(float),
    }
    for name, values in parts.items():
        assert np.isfinite(values).all(), f"cohort {seed}: {name} is not finite"
    labels = np.asarray(model.predict(data))
    assert labels.shape == (len(data),)
    assert labels.min() >= 0
    np.testing.assert_allclose(parts["proba"].sum(axis=1), 1.0, err_msg=f"cohort {seed}")
    for kind in ("opg", "observed", "sandwich"):
        check_intervals(model, data, kind, f"cohort {seed}, {kind}")
    return True


def check_intervals(model: MixtureMarkov, data: Sequences, kind: Any, what: str) -> None:
    """Every probability has an interval that holds it, and a standard error or a note."""
    table = model.standard_errors(data, information=kind)
    low, estimate, high = (table[name].to_numpy() for name in ("low", "estimate", "high"))
    assert ((low >= 0) & (low <= estimate + 1e-9)).all(), what
    assert ((high <= 1) & (high >= estimate - 1e-9)).all(), what
    se = table["se"].to_numpy()
    assert (np.isnan(se) == ~table["note"].isin(["", "fixed"]).to_numpy()).all(), what
    assert ((se >= 0) & (se <= 0.5))[~np.isnan(se)].all(), what


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # that the search was short, for one
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_degenerate_cohorts(first: int) -> None:
    done = [check(seed) for seed in range(first, first + 100)]
    assert sum(done) > 50, "most were refused"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", [4, 105, 201, 353])
def test_cohorts_of_huge_and_tiny_weights(seed: int) -> None:
    """Weights of 1e300, beside 1e-300 or gaps, that once overflowed in a fit or in its errors."""
    assert check(seed)
