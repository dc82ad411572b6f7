"""Chains whose steps depend on covariates, and their likelihood the slow way."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mmlca import Sequences
from mmlca.model.covariates import learn
from mmlca.model.step_covariates import NEVER, StepParams, sample_steps
from mmlca.sequences.forms import Form


def people(n: int, seed: int) -> pd.DataFrame:
    """Ages and sexes by patient."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.normal(60, 10, n).round(), "sex": rng.choice(["F", "M"], n)})


def two_classes(
    n_states: int = 3, often: tuple[float, float] = (-2.2, -0.5), common: bool = False
) -> StepParams:
    """Seldom and often leaving, by these log-odds; age (per standard deviation) and sex have other
    effects in each class, or those of the first in both."""
    s = n_states
    rng = np.random.default_rng(3)
    leaving = np.array(often)[:, None, None, None] * np.ones((1, 1, 1, s))
    slopes = np.array([[0.5, 0.3], [-0.4, 0.2]])[:, None, :] * np.ones((1, s, 1))
    destination = rng.normal(0, 1, (2, 1, s, s))
    destination[..., np.arange(s), np.arange(s)] = NEVER
    into = rng.normal(0, 0.2, (2, s, s, 2))
    if common:
        slopes, into = slopes[[0, 0]], into[[0, 0]]
    return StepParams(np.zeros((2, s)), leaving, slopes, destination, into)


def draw(
    n: int, seed: int, n_states: int = 3, n_times: int = 12, params: StepParams | None = None
) -> tuple[Sequences, pd.Series]:
    """Patients of two classes, and the class of each."""
    table = people(n, seed)
    return sample_steps(
        params or two_classes(n_states),
        np.array([0.6, 0.4]),
        Form(transitions="age + sex"),
        learn(table, "age + sex", np.ones(n), "steps"),
        tuple("abcdef"[:n_states]),
        np.full(n, n_times),
        table,
        np.random.default_rng(seed),
    )


def row_likelihood(row: list[int], z: np.ndarray, p: StepParams, form: Form, k: int) -> float:
    """The likelihood of a patient without gaps in class k, window by window; z is (T, P)."""
    value = np.exp(p.initial[k, row[0]]) / np.exp(p.initial[k]).sum()
    spent = 1
    for t in range(len(row) - 1):
        now, then = row[t], row[t + 1]
        if then < 0:
            break
        period = sum(c <= t + 1 for c in form.periods)
        bins = sum(c <= spent for c in form.stays)
        odds = p.leaving[k, period, bins, now] + z[t] @ p.leaving_slopes[k, now]
        leave = 1 / (1 + np.exp(-odds))
        if then == now:
            value *= 1 - leave
            spent += 1
        else:
            logits = p.destination[k, 0 if form.shared else period, now]
            into = np.exp(logits + p.destination_slopes[k, now] @ z[t])
            value *= leave * into[then] / into.sum()
            spent = 1
    return float(value)
