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
from mmlca.model.expected import Floats, Visits
from mmlca.model.information import (
    Kind,
    Point,
    conditional_covariance,
    covariance,
    information,
    point_of,
)
from mmlca.model.intervals import group_table, interval_table
from mmlca.model.membership import Mixture, make_rows
from mmlca.model.params import MarkovParams
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
