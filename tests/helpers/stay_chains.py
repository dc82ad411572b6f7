"""Chains whose leaving depends on time in state or period, and their likelihood the slow way."""

from __future__ import annotations

import numpy as np

from mmlca.model.params import FormParams
from mmlca.sequences.forms import Form

HAZARDS = np.array([[0.35, 0.15, 0.03], [0.50, 0.35, 0.20]])  # class × bin: 1, 2–3, 4+ windows
THREE_BINS = Form((2, 4))


def destinations(n_classes: int, n_destinations: int, n_states: int, seed: int) -> np.ndarray:
    """Random next states of those who leave."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.ones(n_states), (n_classes, n_destinations, n_states))
    table[..., np.arange(n_states), np.arange(n_states)] = 0
    return np.asarray(table / np.maximum(table.sum(axis=-1, keepdims=True), 1e-300))


def two_classes(seed: int = 1) -> FormParams:
    """Four states, two equal classes that differ in how long they stay, and where they go."""
    leaving = np.repeat(HAZARDS[:, None, :, None], 4, axis=3)
    return FormParams(
        THREE_BINS, [0.5, 0.5], np.full((2, 4), 0.25), leaving, destinations(2, 1, 4, seed)
    )


def random_form_params(form: Form, n_classes: int, n_states: int, seed: int) -> FormParams:
    rng = np.random.default_rng(seed)
    return FormParams(
        form,
        rng.dirichlet(np.ones(n_classes)),
        rng.dirichlet(np.ones(n_states), n_classes),
        rng.uniform(0.05, 0.95, (n_classes, form.n_periods, form.n_bins, n_states)),
        destinations(n_classes, form.n_destinations, n_states, seed),
    )


def row_likelihood(row: list[int], p: FormParams, k: int) -> float:
    """The likelihood of a patient in class k, window by window; codes end with −1.

    Where windows are missing, the steps whose bin is not certain have no factor: all histories that
    the missing windows allow are listed, and a step counts if all of them give the same bin.
    """
    form = p.form
    value = p.initial[k, row[0]] if row[0] >= 0 else 1.0
    for t in range(len(row) - 1):
        now, then = row[t], row[t + 1]
        if now < 0 or then < 0:
            continue
        possible = {sum(c <= d for c in form.stays) for d in spells(row, t)}
        if len(possible) > 1:
            continue
        (b,) = possible
        period = sum(c <= t + 1 for c in form.periods)
        leave = p.leaving[k, period, b, now]
        if now == then:
            value *= 1 - leave
        else:
            value *= leave * p.destination[k, 0 if form.shared else period, now, then]
    return float(value)


def spells(row: list[int], t: int) -> set[int]:
    """All numbers of windows for which the patient may have been in the state of window t."""
    lengths, start = set(), t
    while True:
        if start == 0 or row[start - 1] != row[t]:
            lengths.add(t - start + 1)  # the window before may be of another state
        if start == 0 or row[start - 1] not in (row[t], -1):
            return lengths
        start -= 1


def log_likelihood(codes: np.ndarray, p: FormParams) -> np.ndarray:
    """Of each patient, (n,)."""
    each = [
        sum(p.weights[k] * row_likelihood(row, p, k) for k in range(p.n_classes))
        for row in codes.tolist()
    ]
    return np.log(each)
