"""The table of probabilities with standard errors and intervals, by the delta method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from mmlca.model.expected import Floats
from mmlca.model.information import FEW, Point
from mmlca.model.params import MarkovParams

NEVER, ALWAYS = "never or hardly ever", "(nearly) always"  # notes
UNKNOWN = "not determined by the data"
_WIDEST = 0.5  # no number between 0 and 1 has a larger standard deviation


def parameter_names(params: MarkovParams, states: tuple[str, ...]) -> pd.DataFrame:
    """One row per probability: weights by class, then initial and transition by class."""
    k, s = params.n_classes, params.n_states
    each = np.arange(1, k + 1)
    labels = np.array(states, dtype=object)
    parts = [
        pd.DataFrame({"parameter": "weight", "class": each, "from": "", "to": ""}),
        pd.DataFrame(
            {
                "parameter": "initial",
                "class": np.repeat(each, s),
                "from": "",
                "to": np.tile(labels, k),
            }
        ),
        pd.DataFrame(
            {
                "parameter": "transition",
                "class": np.repeat(each, s * s),
                "from": np.tile(np.repeat(labels, s), k),
                "to": np.tile(labels, k * s),
            }
        ),
    ]
    return pd.concat(parts, ignore_index=True)


def parameter_values(params: MarkovParams) -> Floats:
    """The probabilities in the order of `parameter_names`."""
    return np.concatenate([params.weights, params.initial.ravel(), params.transition.ravel()])


def _as_values(weights: NDArray[Any], cells: NDArray[Any]) -> NDArray[Any]:
    """Weights (K,) and cells (K, C) in the order of `parameter_names`."""
    s = round(np.sqrt(cells.shape[1] + 0.25) - 0.5)
    return np.concatenate([weights, cells[:, s * s :].ravel(), cells[:, : s * s].ravel()])


def interval_table(
    point: Point,
    spread: Floats,
    lost: NDArray[np.bool_],
    zero: NDArray[np.bool_],
    params: MarkovParams,
    states: tuple[str, ...],
    level: float,
) -> pd.DataFrame:
    """Estimates, errors and intervals; `zero` (K, C) are cells that must be zero."""
    k, s = params.n_classes, params.n_states
    weight_se, weight_lost = _weight_errors(point, spread, lost)
    cell_se, cell_lost = _cell_errors(point, spread, lost)
    visits = point.visits.rows(point.expected).sum(axis=-1)
    estimate, se = parameter_values(params), _as_values(weight_se, cell_se)
    unknown = _as_values(weight_lost, cell_lost) | ~(se <= _WIDEST)
    total = point.rows.weights.sum()
    patients = params.weights * total
    boundary = _as_values((patients < FEW) | (total - patients < FEW), ~point.inside)
    fixed = _as_values(np.full(k, k == 1), zero)
    in_row = _as_values(np.full(k, total), np.repeat(visits, s, axis=1))
    low, high = _logit_interval(estimate, se, level)
    # exact limits for "never" and "always" in as many visits as the row has
    tail = ((1 - level) / 2) ** (1 / np.maximum(in_row, 1e-9))
    cases: list[tuple[NDArray[np.bool_], str, Any, Any]] = [
        (boundary & (estimate < 0.5), NEVER, 0.0, np.maximum(1 - tail, estimate)),
        (boundary & (estimate >= 0.5), ALWAYS, np.minimum(tail, estimate), 1.0),
        (unknown, UNKNOWN, 0.0, 1.0),
        (boundary & (in_row < 1e-6), "no patient is ever in this state", 0.0, 1.0),
        (fixed, "fixed", estimate, estimate),
    ]
    note = np.full(len(estimate), "", dtype=object)
    for case, words, least, most in cases:
        note[case] = words
        low, high = np.where(case, least, low), np.where(case, most, high)
    se = np.where(fixed, 0.0, np.where(boundary | unknown, np.nan, se))
    table = parameter_names(params, states)
    return table.assign(estimate=estimate, se=se, low=low, high=high, boundary=boundary, note=note)


def _logit_interval(estimate: Floats, se: Floats, level: float) -> tuple[Floats, Floats]:
    """Symmetric on the logit scale."""
    inside = np.clip(estimate, 1e-300, 1 - 1e-16)
    logit = np.log(inside) - np.log1p(-inside)
    width = norm.ppf(0.5 + level / 2) * se / (inside * (1 - inside))
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(width - logit)), 1 / (1 + np.exp(-width - logit))


def group_table(
    point: Point, spread: Floats, lost: NDArray[np.bool_], shares: pd.DataFrame, level: float
) -> pd.DataFrame:
    """Class proportions of each group, whose design is one column per group."""
    (n_groups, k), n = shares.shape, point.n_coefficients
    group = point.rows.design.argmax(axis=1)
    size = np.bincount(group, point.rows.weights, n_groups)
    value = shares.to_numpy()
    errors, unknown = np.zeros((n_groups, k)), np.zeros((n_groups, k), dtype=bool)
    for g in range(n_groups):
        place = g + n_groups * np.arange(k - 1)  # the group's log-odds of classes 2 … K
        slopes = value[g][:, None] * (np.eye(k)[:, 1:] - value[g][1:])
        block = spread[:n, :n][np.ix_(place, place)]
        errors[g] = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, block, slopes), 0))
        unknown[g] = (np.abs(slopes[:, lost[place]]) > 1e-6).any(axis=1)
    unknown |= ~(errors <= _WIDEST)
    patients = value * size[:, None]
    boundary = (patients < FEW) | (size[:, None] - patients < FEW)
    low, high = _logit_interval(value, errors, level)
    tail = ((1 - level) / 2) ** (1 / np.maximum(size, 1e-9))[:, None]
    never, always = boundary & (value < 0.5), boundary & (value >= 0.5)
    unknown &= ~boundary
    low = np.where(never | unknown, 0.0, np.where(always, np.minimum(tail, value), low))
    high = np.where(always | unknown, 1.0, np.where(never, np.maximum(1 - tail, value), high))
    words = [NEVER, ALWAYS, UNKNOWN]
    return pd.DataFrame(
        {
            "parameter": "group weight",
            "class": np.tile(np.arange(1, k + 1), n_groups),
            "from": np.repeat(shares.index.to_numpy(dtype=object), k),
            "to": "",
            "estimate": value.ravel(),
            "se": np.where(boundary | unknown, np.nan, errors).ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            "boundary": boundary.ravel(),
            "note": np.select([never, always, unknown], words, "").ravel(),
        }
    )


def _weight_errors(
    point: Point, spread: Floats, lost: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Of the average shares of classes, by the delta method."""
    k_all, n = len(point.cells), point.n_coefficients
    weights = point.rows.weights / point.rows.weights.sum()
    slopes = np.zeros((k_all, n))
    for k in range(k_all):
        residual = point.shares[:, [k]] * ((np.arange(k_all) == k) - point.shares)
        slope = (residual * weights[:, None]).T @ point.rows.design  # (K, P)
        slopes[k] = slope[1:].ravel()
    variance = np.einsum("ij,jk,ik->i", slopes, spread[:n, :n], slopes)
    unknown = (np.abs(slopes[:, lost[:n]]) > 1e-6 * np.abs(slopes).max(initial=0)).any(axis=1)
    return np.sqrt(np.maximum(variance, 0)), unknown


def _cell_errors(
    point: Point, spread: Floats, lost: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Of the cells (K, C), by the delta method."""
    errors = np.zeros(point.cells.shape)
    unknown = np.zeros(point.cells.shape, dtype=bool)
    s = point.visits.n_states
    for k, cells in enumerate(point.cells):
        free, place = np.flatnonzero(point.free[k]), point.place(k)
        block, gone = spread[place, place], lost[place]
        for i in range(s + 1):
            mine = np.flatnonzero(free // s == i)
            if not len(mine):
                continue
            columns = np.arange(i * s, (i + 1) * s)
            slopes = cells[columns, None] * ((columns[:, None] == free[mine]) - cells[free[mine]])
            variance = np.einsum("ij,jk,ik->i", slopes, block[np.ix_(mine, mine)], slopes)
            errors[k, columns] = np.sqrt(np.maximum(variance, 0))
            unknown[k, columns] = gone[mine].any()
    return errors, unknown & point.inside
