"""How certain the parameters are: standard errors, intervals, and tests of covariates.

`MixtureMarkov` documents what these functions compute. They take a `Fitted` mixture and the
patients of its fit: sequences in the mixture's states, with the columns of their covariates or the
numbers of their groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from font.errors import InputError, ReportWarning
from mmlca.model import em
from mmlca.model.checks import count_patients, forbidden_cells
from mmlca.model.covariates import Design
from mmlca.model.criteria import OVERLAP, entropy_r_squared
from mmlca.model.expected import Visits
from mmlca.model.information import (
    FEW,
    Kind,
    Point,
    conditional_covariance,
    covariance,
    information,
    point_of,
)
from mmlca.model.membership import Mixture, make_rows
from mmlca.model.params import Floats, MarkovParams
from mmlca.sequences.type import Sequences


class OverlapWarning(ReportWarning):
    """Classes overlap so much that standard errors may be too small."""


class Fitted(NamedTuple):
    """A fitted mixture: parameters, states and settings; `coefficients` (P, K) with covariates."""

    params: MarkovParams
    states: tuple[str, ...]
    prior: float
    zeros: Iterable[tuple[Any, Any]] | None
    group_weights: pd.DataFrame
    design: Design | None
    coefficients: Floats


class Patients(NamedTuple):
    """The patients of a fit, with columns (n, P) of covariates or numbers (n,) of groups."""

    sequences: Sequences
    matrix: Floats | None = None
    groups: NDArray[np.intp] | None = None


def check_options(kind: str, level: float = 0.95) -> None:
    """Refuse an unknown kind of information, and a level outside 0 to 1."""
    if kind not in get_args(Kind):
        raise InputError(f"information must be one of {', '.join(get_args(Kind))}, found {kind!r}.")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, such as 0.95, found {level!r}.")


def intervals(fitted: Fitted, patients: Patients, kind: Kind, level: float) -> pd.DataFrame:
    """Standard errors and intervals of all probabilities."""
    point = point_at(fitted, patients)
    spread, lost = _covariance(point, kind)
    zero = point.cells == 0  # with a prior only what is forbidden is zero
    if not fitted.prior:
        zero &= forbidden_cells(fitted.zeros, patients.sequences)
    table = interval_table(point, spread, lost, zero, fitted.params, fitted.states, level)
    if not len(fitted.group_weights):
        return table
    groups = group_table(point, spread, lost, fitted.group_weights, level)
    return pd.concat([table, groups], ignore_index=True)


def coefficient_table(
    fitted: Fitted, patients: Patients, kind: Kind, conditional: bool, level: float
) -> pd.DataFrame:
    """Effects of covariates on membership, with standard errors and odds ratios."""
    point, design = point_at(fitted, patients), fitted.design or Design((), ())
    spread, lost = _coefficient_covariance(point, design, kind, conditional)
    n_classes = fitted.params.n_classes
    estimate = fitted.coefficients[:, 1:].T.ravel()
    se = np.where(lost, np.nan, np.sqrt(np.diagonal(spread)))
    z = estimate / se
    width = norm.ppf(0.5 + level / 2) * se
    table = pd.DataFrame(
        {
            "term": design.columns * (n_classes - 1),
            "class": np.repeat(np.arange(2, n_classes + 1), len(design.columns)),
            "estimate": estimate,
            "se": se,
            "z": z,
            "p": 2 * norm.sf(np.abs(z)),
            "low": estimate - width,
            "high": estimate + width,
        }
    )
    with np.errstate(over="ignore"):
        for name, source in (("odds_ratio", "estimate"), ("or_low", "low"), ("or_high", "high")):
            table[name] = np.exp(table[source])
    return table


def coefficient_covariance(fitted: Fitted, patients: Patients, kind: Kind) -> pd.DataFrame:
    """Covariance of the coefficients, (class, term) × (class, term), classes from 2."""
    design = fitted.design or Design((), ())
    spread, _ = _coefficient_covariance(point_at(fitted, patients), design, kind, False)
    classes = range(2, fitted.params.n_classes + 1)
    index = pd.MultiIndex.from_product([classes, design.columns], names=["class", "term"])
    return pd.DataFrame(spread, index, index)


def term_tests(
    fitted: Fitted, patients: Patients, test: Literal["wald", "lr"], kind: Kind
) -> pd.DataFrame:
    """Whether each covariate matters at all, over all classes and levels together."""
    if test not in ("wald", "lr"):
        raise InputError(f'test must be "wald" or "lr", found {test!r}.')
    point, design = point_at(fitted, patients), fitted.design or Design((), ())
    k = fitted.params.n_classes
    spread = np.empty((0, 0))
    if test == "wald":
        spread, _ = _coefficient_covariance(point, design, kind, False)
    rows = []
    for term in dict.fromkeys(design.term_of[1:]):
        columns = np.flatnonzero([name == term for name in design.term_of])
        if test == "wald":
            place = (columns + len(design.columns) * np.arange(k - 1)[:, None]).ravel()
            effect = fitted.coefficients[columns, 1:].T.ravel()
            statistic = float(effect @ np.linalg.pinv(spread[np.ix_(place, place)]) @ effect)
        else:
            statistic = _likelihood_ratio(point, columns, fitted.prior)
        df = len(columns) * (k - 1)
        rows.append(
            {"term": term, "statistic": statistic, "df": df, "p": float(chi2.sf(statistic, df))}
        )
    return pd.DataFrame(rows, columns=["term", "statistic", "df", "p"])


# --- the data and their covariance --------------------------------------------------------


def point_at(fitted: Fitted, patients: Patients) -> Point:
    """Where the information is computed: patients and parameters."""
    data, _ = count_patients(patients.sequences)
    of_classes = fitted.prior
    if patients.groups is not None:
        each = np.eye(len(fitted.group_weights))[patients.groups]  # an intercept for each group
        rows = make_rows(data.patterns, data.weights, each)
        shares = np.maximum(fitted.group_weights.to_numpy(), 1e-12)
        coefficients = np.log(shares / shares[:, :1])
    elif patients.matrix is None or fitted.design is None:
        rows = make_rows(data.patterns, data.weights)
        shares = np.maximum(fitted.params.weights, 1e-300)
        coefficients = np.log(shares / shares[0])[None]
    else:
        design = fitted.design
        rows = make_rows(data.patterns, data.weights, design.standardised(patients.matrix))
        coefficients = np.linalg.solve(design.back, fitted.coefficients)
        of_classes = 0.0  # coefficients of covariates have no prior
    visits = Visits(data.patterns)
    point = point_of(visits, rows, fitted.params, coefficients, fitted.prior, of_classes)
    if not np.isfinite(point.posterior[rows.weights > 0]).all():
        raise InputError("some patients are impossible under the model; give those of the fit.")
    return point


def _covariance(point: Point, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
    clarity = entropy_r_squared(point.posterior, point.rows.weights)
    if clarity < OVERLAP:
        warnings.warn(
            f"the classes overlap (entropy R² {clarity:.2f}, below {OVERLAP:g}), so that "
            "intervals from standard errors may be too narrow; bootstrap intervals are "
            "safer (mmlca.bootstrap, or --bootstrap 500 of `mmlca fit`).",
            OverlapWarning,
            stacklevel=4,
        )
    spread, lost = covariance(information(point), kind)
    if lost.any():
        warnings.warn(
            f"the data do not determine {int(lost.sum())} of {point.size} parameters, which "
            "get no standard error; ask for fewer classes or covariates.",
            ReportWarning,
            stacklevel=4,
        )
    return spread, lost


def _coefficient_covariance(
    point: Point, design: Design, kind: Kind, conditional: bool
) -> tuple[Floats, NDArray[np.bool_]]:
    """Of the coefficients as reported, by class and term; and which the data do not determine."""
    n = point.n_coefficients
    if conditional:
        spread, lost = conditional_covariance(point), np.zeros(n, dtype=bool)
    else:
        whole, all_lost = _covariance(point, kind)
        spread, lost = whole[:n, :n], all_lost[:n]
    back = np.kron(np.eye(len(point.cells) - 1), design.back)
    return back @ spread @ back.T, lost


def _likelihood_ratio(point: Point, columns: NDArray[np.intp], prior: float) -> float:
    """Twice the log-likelihood that is lost without some columns of the design."""
    open_cells = np.zeros(point.cells.shape[1], dtype=bool)
    settings = em.Settings(prior, open_cells, 2_000, 1e-7, True)
    kept = np.setdiff1d(np.arange(len(point.coefficients)), columns)
    values = []
    for used in (np.arange(len(point.coefficients)), kept):
        rows = point.rows._replace(design=point.rows.design[:, used])
        run = Mixture(point.visits, rows, settings, point.cells == 0).run(
            point.cells, point.coefficients[used], settings.max_iter, settings.tol, True
        )
        values.append(run.value)
    return max(0.0, 2 * (values[0] - values[1]))


# --- the table of intervals, by the delta method --------------------------------------

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
