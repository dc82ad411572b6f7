"""How certain the parameters are, and how well a model fits: errors, tests, tables and criteria.

`MixtureMarkov` documents what these functions compute. They take a fitted mixture and the
patients of its fit: sequences in the mixture's states, with the columns of their covariates or the
numbers of their groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from font.checks import one_of
from font.errors import InputError, ReportWarning
from mmlca.model import em
from mmlca.model.covariates import Mixture, make_rows
from mmlca.model.forms import leaving_text
from mmlca.model.information import (
    FEW,
    Information,
    Kind,
    Point,
    covariance,
    information,
)
from mmlca.model.params import (
    AnyParams,
    Floats,
    MarkovParams,
    count_patients,
    forbidden_cells,
)
from mmlca.sequences.forms import Layout, layout_of
from mmlca.sequences.type import Sequences

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov


OVERLAP = 0.7  # entropy R² below which intervals were seen to cover less than they say


class OverlapWarning(ReportWarning):
    """Classes overlap so much that standard errors may be too small."""


class Patients(NamedTuple):
    """The patients of a fit, with columns (n, P) of covariates or numbers (n,) of groups."""

    sequences: Sequences
    matrix: Floats | None = None
    groups: NDArray[np.intp] | None = None


def check_chains(model: Any, name: str) -> None:
    """Refuse latent classes of the time course, where a function is about chains."""
    if hasattr(model, "probabilities_"):
        raise TypeError(
            f"{name} is about mixtures of Markov chains, found {type(model).__name__}; fit a "
            "MixtureMarkov, or use its labels where groups of patients will do."
        )


def check_level(level: float) -> None:
    """Refuse a coverage outside 0 to 1."""
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, such as 0.95, found {level!r}.")


def intervals(model: MixtureMarkov, patients: Patients, kind: Kind, level: float) -> pd.DataFrame:
    """Standard errors and intervals of all probabilities."""
    check_level(level)
    point = point_at(model, patients)
    spread, lost = covariance_at(point, kind)
    zero = point.cells == 0  # with a prior only what is forbidden is zero
    if not model.prior:
        zero &= forbidden_cells(model.zeros, patients.sequences, model.form)
    parts = [_chain_errors(point, spread, lost, zero, model.params_, model.states_)]
    if len(model.group_weights_):
        parts.append(_group_errors(point, spread, lost, model.group_weights_))
    return _with_limits(join_names(parts), level)


def coefficient_table(
    model: MixtureMarkov, spread: Floats, lost: NDArray[np.bool_], level: float
) -> pd.DataFrame:
    """Effects of covariates on membership, with standard errors and odds ratios.

    `spread` is the covariance of all free parameters, as `covariance_at` gives it.
    """
    check_level(level)
    design = model._design
    spread, lost = _of_coefficients(model, spread), lost[: _n_coefficients(model)]
    n_classes = model.params_.n_classes
    estimate = model.coefficients_.to_numpy()[:, 1:].T.ravel()
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


def coefficient_covariance(model: MixtureMarkov, spread: Floats) -> pd.DataFrame:
    """Covariance of the coefficients, (class, term) × (class, term), classes from 2."""
    design = model._design
    spread = _of_coefficients(model, spread)
    classes = range(2, model.params_.n_classes + 1)
    index = pd.MultiIndex.from_product([classes, design.columns], names=["class", "term"])
    return pd.DataFrame(spread, index, index)


def term_tests(model: MixtureMarkov, by: Floats | Point) -> pd.DataFrame:
    """Whether each covariate matters at all, over all classes and levels together.

    Wald tests by the covariance of all free parameters, or likelihood-ratio tests by a point.
    """
    design, k = model._design, model.params_.n_classes
    spread = None if isinstance(by, Point) else _of_coefficients(model, by)
    rows = []
    for term in dict.fromkeys(design.term_of[1:]):
        columns = np.flatnonzero([name == term for name in design.term_of])
        if spread is not None:
            place = (columns + len(design.columns) * np.arange(k - 1)[:, None]).ravel()
            effect = model.coefficients_.to_numpy()[columns, 1:].T.ravel()
            statistic = float(effect @ np.linalg.pinv(spread[np.ix_(place, place)]) @ effect)
        else:
            assert isinstance(by, Point)
            statistic = _likelihood_ratio(by, columns, float(model.prior))
        df = len(columns) * (k - 1)
        rows.append(
            {"term": term, "statistic": statistic, "df": df, "p": float(chi2.sf(statistic, df))}
        )
    return pd.DataFrame(rows, columns=["term", "statistic", "df", "p"])


# --- the data and their covariance --------------------------------------------------------


def point_at(model: MixtureMarkov, patients: Patients) -> Point:
    """Where the information is computed: patients and parameters."""
    data, _ = count_patients(patients.sequences)
    patterns = data.patterns_of(model.form)
    of_classes = float(model.prior)
    if patients.groups is not None:
        each = np.eye(len(model.group_weights_))[patients.groups]  # an intercept for each group
        rows = make_rows(patterns, data.weights, each)
        shares = np.maximum(model.group_weights_.to_numpy(), 1e-12)
        coefficients = np.log(shares / shares[:, :1])
    elif patients.matrix is None:
        rows = make_rows(patterns, data.weights)
        shares = np.maximum(model.params_.weights, 1e-300)
        coefficients = np.log(shares / shares[0])[None]
    else:
        design = model._design
        rows = make_rows(patterns, data.weights, design.standardised(patients.matrix))
        coefficients = np.linalg.solve(design.back, model.coefficients_.to_numpy())
        of_classes = 0.0  # coefficients of covariates have no prior
    point = Point(rows, model.params_, coefficients, float(model.prior), of_classes)
    if not np.isfinite(point.posterior[rows.weights > 0]).all():
        raise InputError("some patients are impossible under the model; give those of the fit.")
    return point


def covariance_of(
    parts: Information, posterior: Floats, weights: Floats, kind: Kind
) -> tuple[Floats, NDArray[np.bool_]]:
    """Covariance of the free parameters, and which the data do not determine; warns if classes
    overlap."""
    one_of(kind, get_args(Kind), "information")
    separation = clarity(posterior, weights)
    if separation < OVERLAP:
        warnings.warn(
            f"the classes overlap (entropy R² {separation:.2f}, below {OVERLAP:g}), so that "
            "intervals from standard errors may be too narrow; bootstrap intervals are "
            "safer (mmlca.bootstrap, or --bootstrap 500 of `mmlca fit`).",
            OverlapWarning,
            stacklevel=5,
        )
    spread, lost = covariance(parts, kind)
    if lost.any():
        warnings.warn(
            f"the data do not determine {int(lost.sum())} of {len(lost)} parameters, which "
            "get no standard error; ask for fewer classes or covariates.",
            ReportWarning,
            stacklevel=5,
        )
    return spread, lost


def covariance_at(point: Point, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
    """The same at a point."""
    return covariance_of(information(point), point.posterior, point.rows.weights, kind)


def _n_coefficients(model: MixtureMarkov) -> int:
    """Coefficients of membership, which come first among the free parameters."""
    if not model._design.terms:
        raise InputError("the model was fitted without covariates, so it has no coefficients.")
    return len(model._design.columns) * (model.params_.n_classes - 1)


def _of_coefficients(model: MixtureMarkov, spread: Floats) -> Floats:
    """Covariance of the coefficients as reported, by class and term."""
    n = _n_coefficients(model)
    back = np.kron(np.eye(model.params_.n_classes - 1), model._design.back)
    return np.asarray(back @ spread[:n, :n] @ back.T)


def _likelihood_ratio(point: Point, columns: NDArray[np.intp], prior: float) -> float:
    """Twice the log-likelihood that is lost without some columns of the design."""
    open_cells = np.zeros(point.cells.shape[1], dtype=bool)
    settings = em.Settings(prior, open_cells, 2_000, 1e-7, True)
    kept = np.setdiff1d(np.arange(len(point.coefficients)), columns)
    values = []
    for used in (np.arange(len(point.coefficients)), kept):
        rows = point.rows._replace(design=point.rows.design[:, used])
        run = Mixture(rows, settings, point.cells == 0).run(
            point.cells, point.coefficients[used], settings.max_iter, settings.tol, True
        )
        values.append(run.value)
    return max(0.0, 2 * (values[0] - values[1]))


# --- the table of intervals, by the delta method --------------------------------------

NEVER, ALWAYS = "never or hardly ever", "(nearly) always"  # notes
UNKNOWN = "not determined by the data"
_WIDEST = 0.5  # no number between 0 and 1 has a larger standard deviation


def parameter_names(params: AnyParams, states: tuple[str, ...]) -> pd.DataFrame:
    """One row per probability: weights by class, then initial and transition by class.

    In forms other than plain "leave" and "destination" replace "transition", and the columns `stay`
    and `period` name the windows that a row is about.
    """
    form, layout = params.form, layout_of(params.form, params.n_states)
    each = np.arange(1, params.n_classes + 1)
    labels = np.array([*states, ""], dtype=object)  # the last for the start, and for leaving
    kinds = ["initial", "transition"] if layout.is_plain else ["initial", "leave", "destination"]
    parts = [named("weight", each, "", "")]
    for kind, cells in zip(kinds, layout.parts, strict=True):
        classes, every = np.repeat(each, len(cells)), np.tile(cells, len(each))
        part = named(kind, classes, labels[layout.before[every]], labels[layout.after[every]])
        if kind == "leave":
            period, bins = np.divmod(every // 2 // layout.n_states, form.n_bins)
            part["stay"] = np.array(form.bins, dtype=object)[bins]
            part["period"] = np.array(form.period_labels, dtype=object)[period]
        elif kind == "destination" and not form.shared:
            period = (every - layout.first_destination) // layout.n_states**2
            part["period"] = np.array(form.period_labels, dtype=object)[period]
        parts.append(part)
    return join_names(parts)


def join_names(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables of parameters below each other, with empty texts where a column does not apply."""
    table = pd.concat(parts, ignore_index=True)
    texts = [name for name in ("stay", "period") if name in table.columns]
    table[texts] = table[texts].fillna("")
    first = [name for name in (*_NAMES, *texts) if name in table.columns]
    return table[[*first, *table.columns.difference(first, sort=False)]]


def group_names(groups: Sequence[Any], n_classes: int) -> pd.DataFrame:
    """One row per group and class."""
    classes = np.tile(np.arange(1, n_classes + 1), len(groups))
    return named("group weight", classes, np.repeat(np.array(groups, dtype=object), n_classes), "")


_NAMES = ("parameter", "class", "from", "to")


def named(parameter: str, classes: Any, before: Any, after: Any) -> pd.DataFrame:
    """Rows of a table of parameters, without their numbers."""
    return pd.DataFrame({"parameter": parameter, "class": classes, "from": before, "to": after})


def parameter_values(params: AnyParams) -> Floats:
    """The probabilities in the order of `parameter_names`."""
    layout = layout_of(params.form, params.n_states)
    return _as_values(params.weights, em.cells_of(params), layout)


def _as_values(weights: NDArray[Any], cells: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Weights (K,) and cells (K, C) in the order of `parameter_names`."""
    return np.concatenate([weights, *(cells[:, part].ravel() for part in layout.parts)])


def _chain_errors(
    point: Point,
    spread: Floats,
    lost: NDArray[np.bool_],
    zero: NDArray[np.bool_],
    params: AnyParams,
    states: tuple[str, ...],
) -> pd.DataFrame:
    """Estimates and errors of weights and cells; `zero` (K, C) are cells that must be zero.

    `unknown` is what the data do not determine, and `in_row` counts the visits of a row.
    """
    k, layout = params.n_classes, point.layout
    weight_se, weight_lost = _weight_errors(point, spread, lost)
    cell_se, cell_lost = _cell_errors(point, spread, lost)
    visits = layout.sums(point.expected)[:, layout.row]
    total = point.rows.weights.sum()
    patients = params.weights * total
    se = _as_values(weight_se, cell_se, layout)
    return parameter_names(params, states).assign(
        estimate=parameter_values(params),
        se=se,
        boundary=_as_values((patients < FEW) | (total - patients < FEW), ~point.inside, layout),
        unknown=_as_values(weight_lost, cell_lost, layout) | ~(se <= _WIDEST),
        in_row=_as_values(np.full(k, total), visits, layout),
        fixed=_as_values(np.full(k, k == 1), zero, layout),
    )


def _group_errors(
    point: Point, spread: Floats, lost: NDArray[np.bool_], shares: pd.DataFrame
) -> pd.DataFrame:
    """The same for the class proportions of groups, whose design is one column per group."""
    (n_groups, k), n = shares.shape, point.n_coefficients
    group = point.rows.design.argmax(axis=1)
    size = np.bincount(group, point.rows.weights, n_groups)[:, None]
    value = shares.to_numpy()
    errors, unknown = np.zeros((n_groups, k)), np.zeros((n_groups, k), dtype=bool)
    for g in range(n_groups):
        place = g + n_groups * np.arange(k - 1)  # the group's log-odds of classes 2 … K
        slopes = value[g][:, None] * (np.eye(k)[:, 1:] - value[g][1:])
        errors[g] = _delta_errors(slopes, spread[:n, :n][np.ix_(place, place)])
        unknown[g] = (np.abs(slopes[:, lost[place]]) > 1e-6).any(axis=1)
    patients = value * size
    boundary = (patients < FEW) | (size - patients < FEW)
    return group_names(tuple(shares.index), k).assign(
        estimate=value.ravel(),
        se=errors.ravel(),
        boundary=boundary.ravel(),
        unknown=((unknown | ~(errors <= _WIDEST)) & ~boundary).ravel(),
        in_row=np.repeat(size, k, axis=1).ravel(),
        fixed=False,
    )


def _with_limits(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Intervals, symmetric on the logit scale, and notes where there is no standard error."""
    names = ("estimate", "se", "boundary", "unknown", "in_row", "fixed")
    estimate, se, boundary, unknown, in_row, fixed = (table[name].to_numpy() for name in names)
    inside = np.clip(estimate, 1e-300, 1 - 1e-16)
    logit = np.log(inside) - np.log1p(-inside)
    width = norm.ppf(0.5 + level / 2) * se / (inside * (1 - inside))
    with np.errstate(over="ignore"):
        low, high = 1 / (1 + np.exp(width - logit)), 1 / (1 + np.exp(-width - logit))
    # exact limits for "never" and "always" in as many visits as the row has
    tail = ((1 - level) / 2) ** (1 / np.maximum(in_row, 1e-9))
    of_chain = table["parameter"].isin(["initial", "transition", "leave", "destination"])
    unvisited = boundary & (in_row < 1e-6) & of_chain.to_numpy()
    nobody = "no patient is ever in this state"
    if "stay" in table:
        nobody = "no patient's step informs this"
    cases: list[tuple[NDArray[np.bool_], str, Any, Any]] = [
        (boundary & (estimate < 0.5), NEVER, 0.0, np.maximum(1 - tail, estimate)),
        (boundary & (estimate >= 0.5), ALWAYS, np.minimum(tail, estimate), 1.0),
        (unknown, UNKNOWN, 0.0, 1.0),
        (unvisited, nobody, 0.0, 1.0),
        (fixed, "fixed", estimate, estimate),
    ]
    note = np.full(len(estimate), "", dtype=object)
    for case, words, least, most in cases:
        note[case] = words
        low, high = np.where(case, least, low), np.where(case, most, high)
    se = np.where(fixed, 0.0, np.where(boundary | unknown, np.nan, se))
    kept = table.drop(columns=["boundary", "unknown", "in_row", "fixed"])
    return kept.assign(se=se, low=low, high=high, boundary=boundary, note=note)


def _delta_errors(slopes: Floats, covariance: Floats) -> Floats:
    """Standard errors of functions of the parameters, given their slopes."""
    variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    errors: Floats = np.sqrt(np.maximum(variance, 0))
    return errors


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
    unknown = (np.abs(slopes[:, lost[:n]]) > 1e-6 * np.abs(slopes).max(initial=0)).any(axis=1)
    return _delta_errors(slopes, spread[:n, :n]), unknown


def _cell_errors(
    point: Point, spread: Floats, lost: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Of the cells (K, C), by the delta method."""
    errors = np.zeros(point.cells.shape)
    unknown = np.zeros(point.cells.shape, dtype=bool)
    for k, cells in enumerate(point.cells):
        free, place = np.flatnonzero(point.free[k]), point.place(k)
        block, gone = spread[place, place], lost[place]
        for i, (begin, end) in enumerate(pairwise(point.layout.bounds)):
            mine = np.flatnonzero(point.layout.row[free] == i)
            if not len(mine):
                continue
            columns = np.arange(begin, end)
            slopes = cells[columns, None] * ((columns[:, None] == free[mine]) - cells[free[mine]])
            errors[k, columns] = _delta_errors(slopes, block[np.ix_(mine, mine)])
            unknown[k, columns] = gone[mine].any()
    return errors, unknown & point.inside


# --- criteria, and how clearly classes are separated ------------------------------------


def information_criteria(loglik: Any, n_parameters: Any, n: Any, entropy: Any) -> dict[str, Any]:
    """The criteria by name from numbers or arrays of them; smaller is better.

    With p parameters and n sequences, BIC = −2 log L + p log n, AIC = −2 log L + 2p, SABIC is BIC
    with (n + 2) / 24 instead of n (Sclove 1987), CAIC = BIC + p (Bozdogan 1987), and ICL = BIC +
    2·entropy of the memberships (Biernacki et al. 2000).

    Examples
    --------
    >>> criteria = information_criteria(-100.0, 3, 50, 2.0)
    >>> {name: round(float(value), 1) for name, value in criteria.items()}
    {'bic': 211.7, 'aic': 206.0, 'sabic': 202.3, 'caic': 214.7, 'icl': 215.7}
    """
    misfit = -2 * loglik
    bic = misfit + n_parameters * np.log(n)
    return {
        "bic": bic,
        "aic": misfit + 2 * n_parameters,
        "sabic": misfit + n_parameters * np.log((n + 2) / 24),
        "caic": bic + n_parameters,
        "icl": bic + 2 * entropy,
    }


def classification_entropy(posterior: Floats, weights: Floats) -> float:
    """−Σᵢ wᵢ Σₖ pᵢₖ log pᵢₖ: how uncertain the patterns' classes are altogether."""
    logs = np.log(posterior, out=np.zeros_like(posterior), where=posterior > 0)
    return float(-(weights @ (posterior * logs).sum(axis=1))) + 0.0


def entropy_r_squared(entropy: float, n: float, n_classes: int) -> float:
    """The entropy R² of Ramaswamy et al. (1993), 1 − entropy / (n log K); 1 for one class."""
    return 1.0 if n_classes == 1 else 1 - entropy / (n * float(np.log(n_classes)))


def posterior_table(posterior: Floats, inverse: NDArray[Any], ids: pd.Index) -> pd.DataFrame:
    """Each patient's class, its probability, and the margin to the next, from those of patterns."""
    ordered = np.sort(posterior, axis=1)
    second = ordered[:, -2] if ordered.shape[1] > 1 else 0.0
    table = pd.DataFrame(
        {
            "class": posterior.argmax(axis=1) + 1,
            "probability": ordered[:, -1],
            "margin": ordered[:, -1] - second,
        }
    )
    return table.take(inverse).set_axis(ids).reset_index()


def patients_by_class(
    posterior: pd.DataFrame, patients: Floats, n_classes: int
) -> tuple[pd.Series, pd.Series]:
    """How many patients have each class as the most probable one, and their mean probability.

    `posterior` is a table of `posterior_table`, `patients` (n,) are weights.
    """
    table = posterior.assign(patients=patients, sure=posterior["probability"] * patients)
    classes = np.arange(1, n_classes + 1)
    sums = table.groupby("class")[["patients", "sure"]].sum().reindex(classes, fill_value=0.0)
    return sums["patients"], sums["sure"] / sums["patients"]


def clarity(posterior: Floats, weights: Floats) -> float:
    """The entropy R² of memberships (n, K)."""
    entropy = classification_entropy(posterior, weights)
    return entropy_r_squared(entropy, float(weights.sum()), posterior.shape[1])


def count_parameters(
    layout: Layout,
    k: int,
    zeros: NDArray[np.bool_] | None = None,
    init: AnyParams | None = None,
    n_groups: int = 1,
    occurring: NDArray[np.bool_] | None = None,
) -> int:
    """G(K − 1) + K(S − 1) + K·S(S − 1), less the cells that must be zero.

    If it is known which cells (C,) are `occurring` in the data, the others do not count: the free
    parameters of a row are the cells that occur, less one.
    """
    fixed = np.broadcast_to(layout.closed if zeros is None else zeros, (k, layout.n_cells))
    if init is not None:
        fixed = fixed | (em.cells_of(init) == 0)
    if occurring is None:
        n_rows = len(layout.bounds) - 1
        return n_groups * (k - 1) + k * (layout.n_cells - n_rows) - int(fixed.sum())
    free = layout.sums((~fixed & occurring).astype(np.int64)) - 1
    return n_groups * (k - 1) + int(np.maximum(free, 0).sum())


# --- the table of the classes -------------------------------------------------------------


def class_table(
    model: MixtureMarkov, patients: Floats, intervals: pd.DataFrame | None
) -> pd.DataFrame:
    """One row per class, see `MixtureMarkov.summary`; `patients` (n,) are weights."""
    params, states, posterior = model.params_, model.states_, model.posterior_
    classes = np.arange(1, params.n_classes + 1)
    size, certainty = patients_by_class(posterior, patients, params.n_classes)
    each, first = np.arange(params.n_classes), params.initial.argmax(axis=1)
    most = [states[i] for i in first]
    if isinstance(params, MarkovParams):
        moves = params.transition[each, first]
    else:  # the destinations of those who leave, on average over periods
        moves = params.destination.mean(axis=1)[each, first]
    stays = moves[each, first]
    moves[each, first] = 0
    target = moves.argmax(axis=1)

    def limits(name: str, parameter: str, before: Sequence[str]) -> dict[str, Any]:
        """The columns "… low" and "… high" of a parameter by class; none without intervals."""
        if intervals is None:
            return {}
        rows = intervals.set_index(["parameter", "class", "from", "to"])
        keys = [(parameter, k, state, state) for k, state in zip(classes, before, strict=True)]
        return {f"{name} {end}": rows[end].loc[keys].to_numpy() for end in ("low", "high")}

    def staying() -> dict[str, Any]:
        """How many stay in the most frequent first state, or how many leave it, in words."""
        if isinstance(params, MarkovParams):
            return {"stays": stays} | limits("stays", "transition", most)
        names = enumerate(zip(first.tolist(), most, strict=True))
        return {"leaves": [leaving_text(params, k, i, state) for k, (i, state) in names]}

    return pd.DataFrame(
        {
            "weight": params.weights,
            **limits("weight", "weight", [""] * len(each)),
            **{f"weight in {name}": row for name, row in model.group_weights_.iterrows()},
            "patients": size,
            "certainty": certainty,
            "starts with": [
                f"{states[i]} ({params.initial[k, i]:.2f})" for k, i in enumerate(first)
            ],
            **staying(),
            "mostly moves to": [
                f"{states[j]} ({moves[k, j]:.3f})" if moves[k, j] > 0 else "–"
                for k, j in enumerate(target)
            ],
        },
        index=pd.Index(classes, name="class"),
    )
