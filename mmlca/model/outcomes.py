"""After classification: outcomes by class, and covariates of class membership (three steps).

The first step is the model, the second gives each patient a class, the third compares the classes.
Patients are sometimes given the wrong class, which pulls classes together; BCH and ML correct that.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.special import expit
from scipy.stats import chi2

from font.checks import case_weights, listed, one_of, some
from font.errors import InputError, ReportWarning
from mmlca.model.covariates import complete, learn, separation
from mmlca.model.inference import OVERLAP, clarity
from mmlca.model.params import AnySequences, Floats, Seed, in_states
from mmlca.model.posterior import draw_first_step
from mmlca.model.settings import Correction as Correction
from mmlca.model.third_step import (
    Logit,
    Membership,
    Part,
    Response,
    Step,
    parts_of,
    sandwich,
    solve,
)
from mmlca.sequences.type import Sequences

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov


class ThreeStep(pd.DataFrame):  # type: ignore[misc]
    """The table of `three_step`, with more tables as attributes.

    Attributes
    ----------
    tests : DataFrame
        Wald tests: of all classes, and of each `pair` of classes with the difference (for
        covariates: of each term), `statistic`, `df`, `p_value`, and `p_holm` of the pairs,
        adjusted by Holm's method.
    errors : DataFrame
        Class (row) × class assigned (column): the share of a class's patients who are given
        each class.
    covariance : (p, p) array
        Of the estimates, in the order of the rows.
    moved : float
        Share of the patients whose most probable class is another after the third step
        (correction "ML"); NaN otherwise.
    """

    _metadata = ["tests", "errors", "covariance", "moved"]  # noqa: RUF012 (pandas' own name)

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame


def three_step(
    posterior: pd.DataFrame | ArrayLike | MixtureMarkov,
    outcome: pd.Series | ArrayLike | None = None,
    covariates: pd.DataFrame | None = None,
    correction: Correction = "BCH",
    assignment: Literal["modal", "proportional"] | pd.Series | ArrayLike = "modal",
    *,
    weights: ArrayLike | None = None,
    sequences: AnySequences | None = None,
    seed: Seed = 1,
) -> ThreeStep:
    """Compare the classes in an outcome, or see how membership depends on covariates.

    Parameters
    ----------
    posterior : DataFrame by id, array (n, K), or fitted MixtureMarkov with `sequences`
        Probability of each class for each patient, as `predict_proba` gives it. Columns of a
        DataFrame name the classes; otherwise they are 1 … K. Given the model itself, memberships
        and errors are averaged over the uncertainty of its parameters, and the standard errors
        include it.
    outcome : Series by id or array (n,), optional
        Numbers are continuous, unless they are only 0 and 1; booleans and texts or categories
        with two levels are binary; with more levels they are categorical. Patients without an
        outcome are left out of the third step, with a warning that counts them.
    covariates : DataFrame (n, …), optional
        Numbers, booleans, or texts and categories (the first level is the reference). Without
        an outcome: the multinomial logit of the class on them. With one: the regression of the
        outcome on class and covariates, linear or logistic, with the same slopes in all
        classes.
    correction : "BCH", "ML" or None
        "BCH" (Bolck, Croon and Hagenaars) weights patients by the inverse of the classification
        errors and assumes nothing about the outcome; "ML" (Vermunt 2010) maximises a
        likelihood with the errors and the sizes of the classes fixed (with covariates the
        membership depends on these), normal with a variance per class for a continuous
        outcome; None takes the assignment as true.
    assignment : "modal", "proportional", or labels
        The most probable class; every class by its probability; or a class for each patient
        that another rule gave (such as the clusters of an ensemble), named as the columns of
        `posterior`, which then says how probable each of these clusters is, for example under
        chains estimated in each cluster.
    weights : (n,), optional
        Case weights; default: those of the sequences, or 1.
    sequences : Sequences, optional
        The patients that the model was fitted to, where `posterior` is a model.
    seed : int or Generator
        Of the draws of the model's parameters.

    Returns
    -------
    ThreeStep
        A DataFrame: `class` ("all" for a slope), `term` ("mean", "share of …", "log-odds of
        …", or a covariate), `estimate`, `se`, `low`, `high` (95 %), `patients` (assigned to
        the class, with an outcome) and `cases` (of these, in the category). Coefficients of
        membership are log-odds against the first class. With an outcome and covariates,
        classes are compared at the mean of the covariates. See its attributes for tests.

    Notes
    -----
    Standard errors are from the sandwich of all estimating equations, those of the
    classification errors included. A fitted model takes its own patients for clearer than they are,
    so that with its memberships alone estimates are biased towards each other. With `sequences`
    memberships are averaged over draws from the posterior distribution of its parameters
    (`mmlca.model.posterior`), and the variation between the draws is part of the standard errors.
    Memberships without their model are taken as known: then intervals are too narrow unless classes
    lie far apart, and a warning says so where they overlap (entropy R² below 0.7, computed from the
    memberships). BCH shares may lie outside 0 to 1 where classes overlap; a warning says so.

    Examples
    --------
    >>> rng = np.random.default_rng(4)
    >>> truth = rng.integers(2, size=2_000)
    >>> sure = np.clip(rng.beta(20, 1, size=2_000), 0.01, 0.99)
    >>> right = rng.random(2_000) < sure
    >>> p = np.where(right, sure, 1 - sure)  # probability of the true class
    >>> second = np.where(truth == 1, p, 1 - p)
    >>> posterior = np.column_stack([1 - second, second])
    >>> y = truth + rng.normal(size=2_000)
    >>> three_step(posterior, y)[["class", "estimate"]].round(1)
       class  estimate
    0      1       0.0
    1      2       1.0
    """
    one_of(correction, ("BCH", "ML", None), "correction")  # type: ignore[arg-type]
    if outcome is None and covariates is None:
        raise InputError("give an outcome, covariates, or both; found neither.")
    model, data = model_and_data(posterior, sequences)
    if model is not None and data is not None:
        classes = range(1, model.params_.n_classes + 1)
        posterior = pd.DataFrame(model.predict_proba(data), data.ids, classes)
        weights = data.weights if weights is None else weights
    p, labels, index = read_posterior(posterior)
    n = len(p)
    case = case_weights(weights, n)
    case = case / (case.max() or 1.0)  # only ratios matter, and squares of huge weights overflow
    assigned = read_assignment(assignment, p, labels, index)
    response = None if outcome is None else read_outcome(outcome, n, index)
    terms, x = design(covariates, n, index)
    used = (case > 0) & _known_patients(response, x)
    groups = assigned.argmax(axis=1)[used]
    _check_sizes(groups, labels)
    x = np.where(used[:, None], x, 0.0)
    if len(terms) and response is not None:
        x = np.where(used[:, None], x - np.average(x, axis=0, weights=case * used), 0.0)
    tables = None
    if model is not None and data is not None and correction is not None:
        p, tables = draw_first_step(model.params_, data, assigned, case, seed)
    step = Step(p, assigned, case, case * used, correction)
    parts = parts_of(response, x, step)
    theta, moved = solve(parts, step)
    if isinstance(parts[0], Membership):
        slopes = theta[0].reshape(len(labels) - 1, -1).T
        if warning := separation(parts[0].x[used], ["", *terms], slopes):
            warnings.warn(warning, ReportWarning, stacklevel=2)
    if correction is not None and tables is None and (entropy := clarity(p, case)) < OVERLAP:
        warnings.warn(overlap_text(entropy), ReportWarning, stacklevel=2)
    covariance = sandwich(parts, step, theta, tables)

    # membership is shown only where it is the question
    rows = _rows_of(parts[-1], labels, terms, response)
    begin = sum(len(t) for t in theta[:-1])
    shown = slice(begin, begin + len(rows))
    seen = None if response is None else response._replace(columns=response.columns[used])
    spread = covariance[shown, shown]
    table = ThreeStep(_estimate_table(rows, theta[-1], spread, groups, labels, seen))
    table.covariance = spread
    table.tests = wald_tests(rows, theta[-1][: len(rows)], spread)
    axes = pd.Index(labels, name="class"), pd.Index(labels, name="assigned")
    table.errors = pd.DataFrame(step.errors, *axes)
    table.moved = moved
    return table


def overlap_text(entropy: float) -> str:
    """The warning about memberships of classes that overlap."""
    return (
        f"the classes overlap (entropy R² {entropy:.2f}, below {OVERLAP:g}), so corrected "
        "estimates are biased towards each other and their intervals are too narrow in small "
        "samples; give the model and its sequences in place of the memberships, read small "
        "differences with caution, or use fewer classes."
    )


def _known_patients(response: Response | None, x: Floats) -> NDArray[np.bool_]:
    """Who has the outcome and all covariates; warns of the others."""
    n = len(x)
    of_outcome = np.ones(n, dtype=bool) if response is None else response.known
    of_covariates = ~np.isnan(x).any(axis=1)
    for what, known in (("the outcome", of_outcome), ("a covariate", of_covariates)):
        if not known.all():
            warnings.warn(
                f"{what} is missing for {(~known).sum():,} of {n:,} patients; they are left out "
                "of the third step.",
                stacklevel=3,
            )
    both: NDArray[np.bool_] = of_outcome & of_covariates
    return both


def model_and_data(
    posterior: Any, sequences: AnySequences | None
) -> tuple[MixtureMarkov | None, Sequences | None]:
    """The model and its sequences, if `posterior` is a model."""
    from mmlca.model.estimator import MixtureMarkov

    if isinstance(posterior, MixtureMarkov):
        if sequences is None:
            raise InputError(
                "posterior is a model, so that sequences= is needed: the patients it was fitted to."
            )
        if hasattr(posterior, "coefficients_") or len(posterior.group_weights_):
            raise InputError(
                "posterior is a model with covariates or groups, whose uncertainty three steps do "
                "not follow; give its memberships in its place: "
                "model.predict_proba(sequences, covariates, groups)."
            )
        return posterior, in_states(sequences, posterior.states_)
    if sequences is not None:
        raise InputError("sequences= belong to a model; give the model instead of posterior.")
    return None, None


# --- what a third step is given, checked ----------------------------------------------

_SUM_TOLERANCE = 1e-3
_FEWEST = 2


def read_posterior(posterior: Any) -> tuple[Floats, list[Hashable], pd.Index | None]:
    """Probabilities (n, K) that add up to 1, the names of the classes, and ids if there are any."""
    index = labels = None
    if isinstance(posterior, pd.DataFrame):
        index, labels = posterior.index, list(posterior.columns)
        if not index.is_unique:
            twice = index[index.duplicated()].unique()
            raise InputError(
                f"posterior names {len(twice):,} patients more than once ({some(twice)}); give one "
                "row for each."
            )
    try:
        values = np.asarray(posterior, dtype=float)
    except (TypeError, ValueError):
        raise TypeError("posterior must be a table of numbers, patients × classes.") from None
    if values.ndim != 2 or values.shape[1] < 2 or not len(values):
        raise InputError(
            f"posterior must have one row per patient and at least two classes, found the shape "
            f"{values.shape}; give what predict_proba returns."
        )
    sums = values.sum(axis=1)
    bad = ~((values >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE))
    if bad.any():
        raise InputError(
            f"posterior must hold probabilities that add up to 1 for each patient; in {bad.sum():,}"
            f" of {len(values):,} rows they do not (sums {some(sums[bad].round(4))})."
        )
    return values / sums[:, None], labels or list(range(1, values.shape[1] + 1)), index


def read_assignment(
    assignment: Any, posterior: Floats, labels: list[Hashable], index: pd.Index | None
) -> Floats:
    """How much each patient is assigned to each class, (n, K)."""
    if isinstance(assignment, str):
        one_of(assignment, ("modal", "proportional"), "assignment")
        if assignment == "proportional":
            return posterior
        code = posterior.argmax(axis=1)
    else:
        values = aligned(assignment, len(posterior), index, "assignment")
        code = pd.Index(labels).get_indexer(values.to_numpy())
        if (code < 0).any():
            raise InputError(
                f"assignment has labels that are not classes of posterior for {(code < 0).sum():,} "
                f"patients ({some(values[code < 0].unique())}); its classes are {some(labels)}."
            )
    table: Floats = np.eye(len(labels))[code]
    return table


def aligned(values: Any, n: int, index: pd.Index | None, what: str) -> pd.Series:
    """One value per patient, by id where both sides have ids, else in order."""
    series = values if isinstance(values, pd.Series) else pd.Series(np.asarray(values))
    if isinstance(values, pd.Series) and index is not None and not series.index.equals(index):
        if not series.index.is_unique:
            raise InputError(f"{what} names a patient more than once; give one value for each.")
        if not series.index.isin(index).any():
            raise InputError(
                f"{what} has no id in common with posterior ({some(series.index)} against "
                f"{some(index)}); index both by the patients' ids."
            )
        return series.reindex(index)
    if len(series) != n:
        raise InputError(
            f"found {len(series):,} values of {what} for {n:,} patients; give one for each, or a "
            "Series indexed by id with a posterior indexed by id."
        )
    return series


def read_outcome(outcome: Any, n: int, index: pd.Index | None) -> Response:
    """The outcome; its type follows from its values."""
    values = aligned(outcome, n, index, "outcome")
    known = values.notna().to_numpy()
    if not known.any():
        raise InputError("the outcome is missing for all patients; give one for some.")
    seen = values[known]
    numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
    if numeric and not seen.isin([0, 1]).all():
        column = values.to_numpy(dtype=float, na_value=np.nan)
        if np.isinf(column).any():
            raise InputError(
                f"the outcome is infinite for {np.isinf(column).sum():,} patients; correct them."
            )
        if np.ptp(column[known]) > 0:
            return Response(np.where(known, column, 0.0)[:, None], known, True, [])
    levels = _levels(seen)
    if len(levels) < 2:
        raise InputError(
            f"the outcome has the single value {some(levels)}, so that there is nothing to compare."
        )
    is_level = [(values == one).to_numpy(dtype=bool, na_value=False) for one in levels[1:]]
    return Response(np.column_stack(is_level).astype(float), known, False, levels)


def design(covariates: Any, n: int, index: pd.Index | None) -> tuple[list[str], Floats]:
    """Names of the terms, and their values (n, q); NaN where a covariate is missing.

    Covariates become columns as in `MixtureMarkov.fit`.
    """
    if covariates is None:
        return [], np.zeros((n, 0))
    if isinstance(covariates, pd.Series):
        covariates = covariates.to_frame(covariates.name or "covariate")
    if not isinstance(covariates, pd.DataFrame):
        raise TypeError(
            f"covariates must be a DataFrame with one column each, found "
            f"{type(covariates).__name__}."
        )
    frame = pd.DataFrame(
        {
            str(name): aligned(covariates[name], n, index, f"covariate {name!r}").to_numpy()
            for name in covariates
        }
    )
    if not len(frame.columns):
        raise InputError("covariates is a table without columns; give at least one.")
    known = complete(frame, None)
    if not known.any():
        raise InputError("no patient has all covariates; leave out those that are mostly missing.")
    rules = learn(frame[known], None, np.ones(int(known.sum())))
    table = np.full((n, len(rules.columns) - 1), np.nan)
    table[known] = rules.matrix(frame[known])[:, 1:]
    return rules.columns[1:], table


def _levels(seen: pd.Series) -> list[Any]:
    """The values that occur, in the order of their categories or sorted."""
    if isinstance(seen.dtype, pd.CategoricalDtype):
        return [level for level in seen.cat.categories if (seen == level).any()]
    return sorted(seen.unique().tolist(), key=lambda level: (str(type(level)), level))


def _check_sizes(groups: NDArray[np.intp], labels: list[Hashable]) -> None:
    """Every class needs patients with an outcome."""
    size = np.bincount(groups, minlength=len(labels))
    few = [label for label, n in zip(labels, size, strict=True) if n < _FEWEST]
    if few:
        raise InputError(
            f"class {some(few)} {'has' if len(few) == 1 else 'have'} fewer than {_FEWEST} "
            "patients in the third step; use fewer classes, or find the missing outcomes and "
            "covariates."
        )


# --- the table of estimates, and the tests between classes ----------------------------

Z95 = 1.959963984540054
_ROUNDING = 1e-9


class Row(NamedTuple):
    """One estimate: its class and term, and its category."""

    label: Hashable
    term: str
    level: int = -1


def _rows_of(
    part: Part, labels: Sequence[Hashable], terms: Sequence[str], outcome: Response | None
) -> list[Row]:
    """What the parameters of a part are called, in their order (without variances)."""
    if outcome is None:
        return [Row(label, name) for label in labels[1:] for name in ("intercept", *terms)]
    if outcome.continuous:
        means = [Row(label, "mean") for label in labels]
        return means + [Row("all", name) for name in terms]
    levels = list(enumerate(outcome.levels[1:]))
    if not isinstance(part, Logit):
        return [Row(label, f"share of {level}", j) for label in labels for j, level in levels]
    rows = []
    for j, level in levels:
        rows += [Row(label, f"log-odds of {level}", j) for label in labels]
        rows += [Row("all", f"{name}, {level}" if len(levels) > 1 else name) for name in terms]
    return rows


def _estimate_table(
    rows: Sequence[Row],
    theta: Floats,
    covariance: Floats,
    groups: NDArray[np.intp],
    labels: Sequence[Hashable],
    outcome: Response | None,
) -> pd.DataFrame:
    """class, term, estimate, se, low, high, patients and cases; `groups` are of those who count."""
    estimate = theta[: len(rows)]
    se = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    place = {label: c for c, label in enumerate(labels)}
    counted = np.bincount(groups, minlength=len(labels))
    patients = [counted[place[r.label]] if r.label in place else len(groups) for r in rows]
    is_share = np.array([row.term.startswith("share of") for row in rows], dtype=bool)
    low, high = intervals(estimate, se, is_share, np.array(patients, dtype=float))
    outside = is_share & ((estimate < -_ROUNDING) | (estimate > 1 + _ROUNDING))
    if outside.any():
        beyond = [str(row.label) for row, bad in zip(rows, outside, strict=True) if bad]
        warnings.warn(
            f"estimated shares of class {listed(list(dict.fromkeys(beyond)))} are not between 0 "
            "and 1, since the classes overlap or have few cases; their intervals are not reliable.",
            ReportWarning,
            stacklevel=3,
        )
    cases = [
        np.nan
        if outcome is None or row.level < 0
        else float(outcome.columns[groups == place[row.label], row.level].sum())
        for row in rows
    ]
    return pd.DataFrame(
        {
            "class": [row.label for row in rows],
            "term": [row.term for row in rows],
            "estimate": estimate,
            "se": se,
            "low": low,
            "high": high,
            "patients": patients,
            "cases": cases,
        }
    )


def intervals(
    estimate: Floats, se: Floats, is_share: NDArray[np.bool_], patients: Floats
) -> tuple[Floats, Floats]:
    """95 % intervals of means, and of shares, which lie between 0 and 1.

    Those of shares are of logits; where nobody or everybody of the patients is a case, the limit is
    that of Clopper and Pearson, since the variance says nothing.
    """
    low, high = estimate - Z95 * se, estimate + Z95 * se
    inside = is_share & (estimate > _ROUNDING) & (estimate < 1 - _ROUNDING)
    logit = np.log(estimate[inside] / (1 - estimate[inside]))
    width = Z95 * se[inside] / (estimate[inside] * (1 - estimate[inside]))
    low[inside], high[inside] = expit(logit - width), expit(logit + width)
    edge = is_share & (np.minimum(np.abs(estimate), np.abs(1 - estimate)) <= _ROUNDING)
    reach = 0.025 ** (1 / np.maximum(patients, 1))
    low[edge] = np.where(estimate[edge] > 0.5, reach[edge], 0.0)
    high[edge] = np.where(estimate[edge] > 0.5, 1.0, 1 - reach[edge])
    return low, high


def wald_tests(rows: Sequence[Row], estimate: Floats, covariance: Floats) -> pd.DataFrame:
    """Of all classes together and of each pair; of each covariate of membership."""
    by_class: dict[Hashable, list[int]] = {}
    by_term: dict[str, list[int]] = {}
    of_membership = not any(r.level >= 0 or r.term == "mean" for r in rows)
    for i, row in enumerate(rows):
        if not of_membership and row.label != "all":
            by_class.setdefault(row.label, []).append(i)
        elif not of_membership or row.term != "intercept":
            by_term.setdefault(row.term, []).append(i)
    eye = np.eye(len(rows))
    tests: list[dict[str, Any]] = []
    for a, b in combinations(by_class, 2):
        contrast = eye[by_class[b]] - eye[by_class[a]]
        test: dict[str, Any] = {"test": f"{_class_name(b)} − {_class_name(a)}", "pair": (a, b)}
        if len(contrast) == 1:
            value = float((contrast @ estimate)[0])
            se = float(np.sqrt((contrast @ covariance @ contrast.T)[0, 0]))
            test |= {"estimate": value, "se": se}
            test |= {"low": value - Z95 * se, "high": value + Z95 * se}
        tests.append(test | wald(contrast, estimate, covariance))
    for test, p in zip(tests, holm([test["p_value"] for test in tests]), strict=True):
        test["p_holm"] = p
    if len(by_class) > 1:
        first, *others = by_class.values()
        every = np.vstack([eye[other] - eye[first] for other in others])
        tests.insert(0, {"test": "all equal", **wald(every, estimate, covariance)})
    for term, at in by_term.items():
        tests.append({"test": term, **wald(eye[at], estimate, covariance)})
    names = "test pair estimate se low high statistic df p_value p_holm"
    return pd.DataFrame(tests, columns=names.split())


def _class_name(label: Hashable) -> str:
    return label if isinstance(label, str) else f"class {label}"


def wald(contrast: Floats, estimate: Floats, covariance: Floats) -> dict[str, float]:
    value, spread = contrast @ estimate, contrast @ covariance @ contrast.T
    df = int(np.linalg.matrix_rank(spread))
    statistic = float(value @ np.linalg.pinv(spread, hermitian=True) @ value)
    return {"statistic": statistic, "df": df, "p_value": float(chi2.sf(statistic, max(df, 1)))}


def holm(p: Sequence[float]) -> Floats:
    """P-values adjusted for their number by Holm's method, in the same order."""
    order = np.argsort(p)
    scaled = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    result = np.empty(len(p))
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return result
