"""After classification: outcomes by class, and covariates of class membership (three steps).

The first step is the model, the second gives each patient a class, the third compares the classes.
Patients are sometimes given the wrong class, which pulls classes together; BCH and ML correct that.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from font.checks import case_weights, one_of
from font.errors import InputError, ReportWarning, option
from mmlca.model import outcome_inputs as inputs
from mmlca.model import third_step as parts
from mmlca.model.checks import AnySequences, in_states
from mmlca.model.covariates import separation
from mmlca.model.criteria import OVERLAP, entropy_r_squared
from mmlca.model.first_step import FirstStep, first_step
from mmlca.model.outcome_table import estimate_table, rows_of, wald_tests
from mmlca.model.third_step import Floats, Part

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences

Correction = Literal["BCH", "ML"] | None
_SHIFT = 0.2
_MAX_EM, _MAX_POLISH = 2_000, 20


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
    names: Sequence[Hashable] | None = None,
) -> ThreeStep:
    """Compare the classes in an outcome, or see how membership depends on covariates.

    Parameters
    ----------
    posterior : DataFrame by id, array (n, K), or fitted MixtureMarkov with `sequences`
        Probability of each class for each patient, as `predict_proba` gives it. Columns of a
        DataFrame name the classes; otherwise they are 1 … K. Given the model itself, the
        standard errors allow for the uncertainty of its parameters.
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
    names : list of K names, optional
        What the classes are called, instead of the columns of `posterior`.

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
    classification errors included, and with `sequences` those of the model (as in Bakk, Oberski
    and Vermunt 2014). Memberships without their model are taken as known: then intervals are
    too narrow unless classes lie far apart. Where classes overlap (entropy R² below 0.7, computed
    from the memberships) a warning says that intervals are too narrow in small samples even with
    the model. BCH shares may lie outside 0 to 1 where classes overlap; a warning says so.

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
    model_of, data = _model_and_data(posterior, sequences)
    if model_of is not None and data is not None:
        posterior = pd.DataFrame(model_of.predict_proba(data), index=data.ids)
        posterior.columns = range(1, posterior.shape[1] + 1)
        weights = data.weights if weights is None else weights
    p, labels, index = inputs.checked_posterior(posterior)
    if names is not None:
        labels = inputs.checked_names(names, p.shape[1])
    n = len(p)
    case = case_weights(weights, n)
    case = case / (case.max() or 1.0)  # only ratios matter, and squares of huge weights overflow
    assigned = inputs.assignment_table(assignment, p, labels, index)
    response = None if outcome is None else inputs.response(outcome, n, index)
    terms, x = inputs.design(covariates, n, index)
    used = case > 0
    for what, known in (
        ("the outcome", np.ones(n, dtype=bool) if response is None else response.known),
        ("a covariate", ~np.isnan(x).any(axis=1)),
    ):
        if not known.all():
            warnings.warn(
                f"{what} is missing for {(~known).sum():,} of {n:,} patients; they are left out "
                "of the third step.",
                stacklevel=2,
            )
        used &= known
    groups = assigned.argmax(axis=1)
    inputs.check_sizes(groups[used], labels)
    x = np.where(used[:, None], x, 0.0)
    if len(terms) and response is not None:
        x = np.where(used[:, None], x - np.average(x, axis=0, weights=case * used), 0.0)
    step = _Step(p, assigned, case, case * used, correction)
    model = _parts(response, x, step)
    theta, moved = _solve(model, step)
    for part, values in zip(model, theta, strict=True):
        if isinstance(part, parts.Membership):
            slopes = values.reshape(p.shape[1] - 1, -1).T
            if warning := separation(part.x[used], ["", *terms], slopes):
                warnings.warn(warning, ReportWarning, stacklevel=2)
    if overlap := _overlap(step):
        warnings.warn(overlap, ReportWarning, stacklevel=2)
    first = None
    if model_of is not None and data is not None and correction is not None:
        first = first_step(model_of.params_, data, assigned, case)
    covariance = _sandwich(model, step, theta, first)

    # membership is shown only where it is the question
    before = 0 if response is None else sum(part.size for part in model[:-1])
    rows = rows_of(model[-1], labels, terms, response, before)
    flat, at = np.concatenate(theta), [row.at for row in rows]
    seen = None if response is None else response._replace(columns=response.columns[used])
    table = ThreeStep(estimate_table(rows, flat, covariance, groups[used], labels, seen))
    table.covariance = covariance[np.ix_(at, at)]
    table.tests = wald_tests(rows, flat[at], table.covariance)
    names = pd.Index(labels, name="class"), pd.Index(labels, name="assigned")
    table.errors = pd.DataFrame(step.errors, *names)
    table.moved = moved
    return table


def _model_and_data(
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


def _overlap(step: _Step) -> str:
    """A sentence on classes that overlap so much that the correction itself is in doubt."""
    if step.correction is None:
        return ""
    clarity = entropy_r_squared(step.posterior, step.case)
    if clarity >= OVERLAP:
        return ""
    return (
        f"the classes overlap (entropy R² {clarity:.2f}, below {OVERLAP:g}), so corrected "
        "estimates are biased towards each other and their intervals are too narrow in small "
        "samples; read small differences with caution, or use fewer classes."
    )


# --- the equations --------------------------------------------------------------------------


class _Step(NamedTuple):
    """Memberships (n, K), assignments (n, K), case weights of all, and of those in step three."""

    posterior: Floats
    assigned: Floats
    case: Floats
    used: Floats
    correction: Correction

    @property
    def errors(self) -> Floats:
        """D (K, K): the share of a class's patients who are given each class."""
        table: Floats = (self.posterior * self.case[:, None]).T @ self.assigned
        table /= table.sum(axis=1, keepdims=True)
        return table

    def error_terms(self, errors: Floats) -> Floats:
        """How much each patient moves D, (n, K·K)."""
        share = np.average(self.posterior, axis=0, weights=self.case)
        total = self.case.mean()
        move = self.assigned[:, None, :] - errors  # (n, K, K)
        move = move * (self.posterior * self.case[:, None] / share / total)[:, :, None]
        result: Floats = move.reshape(len(move), -1)
        return result

    def members(self, errors: Floats, model: Sequence[Part], theta: Sequence[Floats]) -> Floats:
        """How much each patient counts for each class, given the errors and the parameters."""
        if self.correction is None:
            return self.assigned * self.used[:, None]
        if self.correction == "BCH":
            corrected: Floats = self.assigned @ np.linalg.inv(errors)
            return corrected * self.used[:, None]
        log = sum(part.log_density(t) for part, t in zip(model, theta, strict=True))
        result = np.zeros_like(self.posterior)
        for s in np.flatnonzero(self.assigned.any(axis=0)):
            joint = parts.log_softmax(log + np.log(np.maximum(errors[:, s], 1e-300)))
            result += self.assigned[:, s, None] * np.exp(joint)
        return result * self.used[:, None]


def _parts(response: inputs.Response | None, x: Floats, step: _Step) -> list[Part]:
    """Membership where it is wanted or needed (ML), then the outcome."""
    (n, k), ml, covariates = step.posterior.shape, step.correction == "ML", x.shape[1] > 0
    model: list[Part] = []
    if covariates and (response is None or ml):
        model.append(parts.Membership(np.column_stack([np.ones(n), x]), k))
    elif ml:
        model.append(parts.Shares(step.posterior * step.case[:, None]))
    if response is None:
        return model
    y = response.columns
    if not covariates:
        model.append(parts.Means(y, k, response.continuous))
    elif response.continuous:
        model.append(parts.Line(y[:, 0], x, k, weigh=ml))
    else:
        model.append(parts.Logit(y, x, k))
    return model


def _solve(model: list[Part], step: _Step) -> tuple[list[Floats], float]:
    """The parameters of all parts, and the share of patients who changed class (ML)."""
    errors = step.errors
    smallest = np.linalg.svd(errors, compute_uv=False)[-1]
    if step.correction is not None and smallest < 1e-6:
        raise InputError(
            "the classes are not separated well enough to correct for wrong assignments (the "
            f"table of errors has a singular value of {smallest:.1g}, as if two classes were the "
            "same); use fewer classes, or no correction."
        )
    plain = step._replace(correction=None).members(errors, model, [])
    first = step.members(errors, model, []) if step.correction == "BCH" else plain
    if step.correction == "BCH" and (first.sum(axis=0) <= 0).any():
        raise InputError(
            "a class has no patients left after the correction; use fewer classes, or no "
            "correction."
        )
    theta = [part.update(first, None) for part in model]
    if step.correction != "ML":
        return theta, np.nan
    for _ in range(_MAX_EM):
        members = step.members(errors, model, theta)
        before, theta = theta, [p.update(members, t) for p, t in zip(model, theta, strict=True)]
        change = max(np.abs(a - b).max() for a, b in zip(before, theta, strict=True))
        if change < 1e-7:
            break
    theta = _polished(model, step, errors, theta)
    members = step.members(errors, model, theta)
    used = step.used > 0
    was, now = step.posterior[used].argmax(axis=1), members[used].argmax(axis=1)
    moved = float(np.average(was != now, weights=step.used[used]))
    if moved > _SHIFT:
        warnings.warn(
            f"the classes shift: {100 * moved:.0f} % of the patients have a different most "
            "probable class when the outcome or the covariates are in the likelihood, so the "
            "estimates may describe other classes than those of the model; use "
            f"{option('correction', 'BCH')}.",
            ReportWarning,
            stacklevel=3,
        )
    return theta, moved


def _polished(model: list[Part], step: _Step, errors: Floats, theta: list[Floats]) -> list[Floats]:
    """Newton steps from where EM has come, as long as the equations come nearer to 0."""
    flat = np.concatenate(theta)
    for _ in range(_MAX_POLISH):
        value = _mean_equations(model, step, errors, flat)
        if np.abs(value).max() < 1e-12:
            break
        try:
            trial = flat - np.linalg.solve(_slope(model, step, errors, flat), value)
        except np.linalg.LinAlgError:
            break
        further = _mean_equations(model, step, errors, trial)
        if not np.linalg.norm(further) < np.linalg.norm(value):
            break
        flat = trial
    return _cut(model, flat)


def _cut(model: Sequence[Part], flat: Floats) -> list[Floats]:
    return np.split(flat, np.cumsum([part.size for part in model])[:-1])


def _terms(model: Sequence[Part], step: _Step, errors: Floats, flat: Floats) -> Floats:
    """The patients' terms of all equations, (n, p)."""
    theta = _cut(model, flat)
    members = step.members(errors, model, theta)
    return np.hstack([p.equations(t, members) for p, t in zip(model, theta, strict=True)])


def _mean_equations(model: Sequence[Part], step: _Step, errors: Floats, flat: Floats) -> Floats:
    mean: Floats = _terms(model, step, errors, flat).mean(axis=0)
    return mean


def _slope(model: Sequence[Part], step: _Step, errors: Floats, flat: Floats) -> Floats:
    """Derivatives of the mean equations by the parameters (p, p), by central differences."""
    return _differences(lambda at: _mean_equations(model, step, errors, at), flat)


def _differences(function: Any, at: Floats) -> Floats:
    columns = []
    for i, value in enumerate(at):
        h = 1e-5 * max(abs(value), 0.1)
        up, down = at.copy(), at.copy()
        up[i] += h
        down[i] -= h
        columns.append((function(up) - function(down)) / (2 * h))
    return np.column_stack(columns)


def _sandwich(
    model: Sequence[Part], step: _Step, theta: Sequence[Floats], first: FirstStep | None
) -> Floats:
    """Covariance of the parameters; that of the errors and of the first step is part of it.

    A small change of the assignments themselves moves nothing: whatever they are, the corrections
    are right for them, as long as the errors are theirs.
    """
    errors, flat = step.errors, np.concatenate(theta)
    terms = _terms(model, step, errors, flat)
    if step.correction is not None:
        shape = errors.shape
        by_errors = _differences(
            lambda at: _mean_equations(model, step, at.reshape(shape), flat), errors.ravel()
        )
        terms = terms + step.error_terms(errors) @ by_errors.T
        if first is not None:
            by_model = by_errors @ first.errors
            if isinstance(model[0], parts.Shares):
                by_model[: model[0].size] += first.shares[:-1]
            terms = terms + first.terms @ by_model.T
    try:
        bread = np.linalg.inv(_slope(model, step, errors, flat))
    except np.linalg.LinAlgError:
        raise InputError(
            "the standard errors cannot be computed: a class or category has too few patients to "
            "estimate all its terms; leave a covariate out, or merge categories."
        ) from None
    covariance: Floats = bread @ (terms.T @ terms) @ bread.T / len(terms) ** 2
    return covariance
