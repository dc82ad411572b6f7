"""The parts of a third step: membership, means, and regressions, as estimating equations.

`mmlca.model.outcomes` says what is asked; here it is solved. W (n, K) is how much each patient
counts for each class: the assignment, the assignment corrected for errors (its values may be
negative), or the probability of each class after the third step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from font.errors import InputError, ReportWarning, option
from mmlca.model import em
from mmlca.model.covariates import logit_information
from mmlca.model.forms import need_no_step_covariates
from mmlca.model.params import AnyParams, Floats, FormParams, MarkovParams
from mmlca.model.settings import Correction
from mmlca.sequences.type import Sequences

_TINY = 1e-300
_FLAT = 1e-7  # scaled curvature below which a solution lies at infinity
_SHIFT = 0.2  # share of the patients who may change class without a warning
_MAX_EM, _MAX_POLISH = 2_000, 20


class Response(NamedTuple):
    """An outcome: one continuous column, or the indicators of all categories but the first.

    `columns` (n, m) is 0 where the outcome is not `known`; `levels` are the categories.
    """

    columns: Floats
    known: NDArray[np.bool_]
    continuous: bool
    levels: list[Any]


class Part(Protocol):
    """What all parts have; their parameters θ are a flat array."""

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        """The solution of the part's equations for W; `theta` is where to begin."""

    def log_density(self, theta: Floats) -> Floats:
        """What the part adds to the log-likelihood of a patient in each class, (n, K)."""

    def equations(self, theta: Floats, members: Floats) -> Floats:
        """The patients' terms of the equations that θ solves, (n, p)."""


class NewtonPart(Part, Protocol):
    """A part whose equations are solved by Newton's method."""

    def curvature(self, theta: Floats, members: Floats) -> Floats:
        """Minus the derivatives of the sums of the equations, (p, p)."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Sizes of the classes as the first step has them: θ = the shares of all but the last.

    `posterior` (n, K) are the memberships of the first step, times the case weights.
    """

    posterior: Floats

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        total = self.posterior.sum(axis=0)
        return np.asarray(total[:-1] / total.sum())

    def log_density(self, theta: Floats) -> Floats:
        share = np.append(theta, 1 - theta.sum())
        return np.broadcast_to(np.log(np.maximum(share, _TINY)), self.posterior.shape)

    def equations(self, theta: Floats, members: Floats) -> Floats:
        total = self.posterior.sum(axis=1, keepdims=True)
        return np.asarray(self.posterior[:, :-1] - total * theta)


@dataclass(frozen=True, eq=False)
class Membership:
    """Multinomial logit of the class on X (n, q): θ = q coefficients for each class but the first.

    Rows of θ are classes. The equations are Σ_i x_i (W_ik − P_ik) = 0.
    """

    x: Floats
    n_classes: int

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        start = np.zeros(self.x.shape[1] * (self.n_classes - 1)) if theta is None else theta
        return _solve_by_newton(self, members, start, "class membership")

    def log_density(self, theta: Floats) -> Floats:
        eta = self.x @ theta.reshape(self.n_classes - 1, -1).T
        return np.asarray(log_softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=-1))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self.log_density(theta))
        rest = members - members.sum(axis=1, keepdims=True) * p
        return np.asarray((rest[:, 1:, None] * self.x[:, None, :]).reshape(len(self.x), -1))

    def curvature(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self.log_density(theta))
        return logit_information(self.x, members.sum(axis=1), p[:, 1:])


@dataclass(frozen=True, eq=False)
class Means:
    """Shares of categories by class: θ = K·m means of Y (n, m), all but the first category."""

    y: Floats
    n_classes: int

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        return np.asarray((members.T @ self.y / members.sum(axis=0)[:, None]).ravel())

    def log_density(self, theta: Floats) -> Floats:
        mean = theta.reshape(self.n_classes, -1)
        every = np.column_stack([1 - mean.sum(axis=1), mean])
        first = 1 - self.y.sum(axis=1)
        return np.asarray(np.column_stack([first, self.y]) @ np.log(np.maximum(every, _TINY)).T)

    def equations(self, theta: Floats, members: Floats) -> Floats:
        rest = self.y[:, None, :] - theta.reshape(self.n_classes, -1)
        return (members[:, :, None] * rest).reshape(len(self.y), -1)


@dataclass(frozen=True, eq=False)
class Line:
    """Linear regression of y (n,) on class and Z (n, q): θ = K levels, q slopes, K variances.

    With `weigh` residuals count by the inverse of their class's variance, as in a likelihood.
    """

    y: Floats
    z: Floats
    n_classes: int
    weigh: bool

    def _residuals(self, theta: Floats) -> Floats:
        k = self.n_classes
        return self.y[:, None] - (theta[:k] + (self.z @ theta[k:-k])[:, None])

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        k = self.n_classes
        variance = np.ones(k) if theta is None or not self.weigh else theta[-k:]
        w = members / variance
        cross, total = w.T @ self.z, w.sum(axis=1)
        slopes = (self.z * total[:, None]).T @ self.z
        left = np.block([[np.diag(w.sum(axis=0)), cross], [cross.T, slopes]])
        right = np.append(w.T @ self.y, self.z.T @ (total * self.y))
        beta = np.linalg.solve(left, right)
        rest = self._residuals(np.append(beta, variance))
        return np.append(beta, (members * rest**2).sum(axis=0) / members.sum(axis=0))

    def log_density(self, theta: Floats) -> Floats:
        variance = np.maximum(theta[-self.n_classes :], _TINY)
        squares = self._residuals(theta) ** 2
        return np.asarray(-0.5 * (np.log(2 * np.pi * variance) + squares / variance))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        rest, variance = self._residuals(theta), theta[-self.n_classes :]
        w = members * rest / (variance if self.weigh else 1.0)
        slopes = w.sum(axis=1)[:, None] * self.z
        return np.hstack([w, slopes, members * (rest**2 - variance)])


@dataclass(frozen=True, eq=False)
class Logit:
    """Multinomial logit of categories Y (n, m), all but the first, on class and Z (n, q).

    θ has one row of K levels and q slopes for each of the m categories.
    """

    y: Floats
    z: Floats
    n_classes: int

    def _logs(self, theta: Floats) -> Floats:
        """Log-probabilities (n, K, m + 1), the first category first."""
        b = theta.reshape(self.y.shape[1], -1)
        level, slope = b[:, : self.n_classes].T, b[:, self.n_classes :].T
        eta = level[None] + (self.z @ slope)[:, None, :]
        whole = np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1)
        return np.asarray(log_softmax(whole, axis=-1))

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        size = self.y.shape[1] * (self.n_classes + self.z.shape[1])
        return _solve_by_newton(
            self, members, np.zeros(size) if theta is None else theta, "the outcome"
        )

    def log_density(self, theta: Floats) -> Floats:
        every = np.column_stack([1 - self.y.sum(axis=1), self.y])
        return np.asarray((self._logs(theta) * every[:, None, :]).sum(axis=-1))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self._logs(theta))[..., 1:]
        rest = members[..., None] * (self.y[:, None, :] - p)  # (n, K, m)
        slopes = rest.sum(axis=1)[:, :, None] * self.z[:, None, :]  # (n, m, q)
        both = np.concatenate([rest.transpose(0, 2, 1), slopes], axis=-1)
        return np.asarray(both.reshape(len(self.y), -1))

    def curvature(self, theta: Floats, members: Floats) -> Floats:
        n, k = members.shape
        p = np.exp(self._logs(theta))[..., 1:].reshape(n * k, -1)
        levels, slopes = np.broadcast_to(np.eye(k), (n, k, k)), np.repeat(self.z[:, None], k, 1)
        x = np.concatenate([levels, slopes], axis=-1).reshape(n * k, -1)
        return logit_information(x, members.ravel(), p)


def _solve_by_newton(part: NewtonPart, members: Floats, theta: Floats, what: str) -> Floats:
    """The root of a part's equations, each step shortened until their sums fall."""
    gradient = part.equations(theta, members).sum(axis=0)
    curvature = part.curvature(theta, members)
    scale = 1 + np.abs(gradient).max(initial=0.0)
    width = np.sqrt(np.maximum(np.abs(np.diag(curvature)), _TINY))
    for _ in range(100):
        if np.abs(gradient).max(initial=0.0) < 1e-10 * scale:
            flat = np.abs(np.linalg.eigvalsh(curvature / np.outer(width, width))).min(initial=1.0)
            if flat < _FLAT:  # the solution lies at infinity
                break
            return theta
        try:
            step = np.linalg.solve(curvature, gradient)
        except np.linalg.LinAlgError:
            break
        size, length = np.linalg.norm(gradient), 1.0
        while length > 1e-6:
            trial = part.equations(theta + length * step, members).sum(axis=0)
            if np.linalg.norm(trial) < size:
                break
            length /= 2
        else:
            if size < 1e-7 * scale:  # as near as rounding lets it come
                return theta
            break
        theta, gradient = theta + length * step, trial
        curvature = part.curvature(theta, members)
    raise InputError(
        f"the regression of {what} has no finite solution: a covariate or a class determines it "
        "completely, or the corrected weights are too negative; leave a covariate out, merge rare "
        f"categories, or choose {option('correction', 'ML')} or no correction."
    )


# --- all parts together ---------------------------------------------------------------------


class Step(NamedTuple):
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
        move = self.assigned[:, None, :] - errors  # (n, K, K)
        weight = self.posterior * self.case[:, None] / share / self.case.mean()
        return np.asarray((move * weight[:, :, None]).reshape(len(move), -1))

    def members(self, errors: Floats, model: Sequence[Part], theta: Sequence[Floats]) -> Floats:
        """W, given the errors and the parameters."""
        if self.correction is None:
            return np.asarray(self.assigned * self.used[:, None])
        if self.correction == "BCH":
            return np.asarray(self.assigned @ np.linalg.inv(errors) * self.used[:, None])
        log = sum(part.log_density(t) for part, t in zip(model, theta, strict=True))
        result = np.zeros_like(self.posterior)
        for s in np.flatnonzero(self.assigned.any(axis=0)):
            joint = log_softmax(log + np.log(np.maximum(errors[:, s], 1e-300)), axis=-1)
            result += self.assigned[:, s, None] * np.exp(joint)
        return np.asarray(result * self.used[:, None])


def parts_of(response: Response | None, x: Floats, step: Step) -> list[Part]:
    """Membership where it is wanted or needed (ML), then the outcome."""
    (n, k), ml, covariates = step.posterior.shape, step.correction == "ML", x.shape[1] > 0
    model: list[Part] = []
    if covariates and (response is None or ml):
        model.append(Membership(np.column_stack([np.ones(n), x]), k))
    elif ml:
        model.append(Shares(step.posterior * step.case[:, None]))
    if response is None:
        return model
    y = response.columns
    if response.continuous:  # without slopes no weights matter
        model.append(Line(y[:, 0], x, k, weigh=ml and covariates))
    else:
        model.append(Logit(y, x, k) if covariates else Means(y, k))
    return model


def solve(model: list[Part], step: Step) -> tuple[list[Floats], float]:
    """The parameters of all parts, and the share of patients who changed class (ML)."""
    errors = step.errors
    smallest = np.linalg.svd(errors, compute_uv=False)[-1]
    if step.correction is not None and smallest < 1e-6:
        raise InputError(
            "the classes are not separated well enough to correct for wrong assignments (the "
            f"table of errors has a singular value of {smallest:.1g}, as if two classes were the "
            "same); use fewer classes, or no correction."
        )
    start = step if step.correction == "BCH" else step._replace(correction=None)
    members = start.members(errors, model, [])
    if step.correction == "BCH" and (members.sum(axis=0) <= 0).any():
        raise InputError(
            "a class has no patients left after the correction; use fewer classes, or no "
            "correction."
        )
    theta = [part.update(members, None) for part in model]
    if step.correction != "ML":
        return theta, np.nan
    for _ in range(_MAX_EM):
        members = step.members(errors, model, theta)
        before, theta = theta, [p.update(members, t) for p, t in zip(model, theta, strict=True)]
        if max(np.abs(a - b).max() for a, b in zip(before, theta, strict=True)) < 1e-7:
            break
    theta = _polish(Equations(model, step, theta), theta)
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


class Equations:
    """The equations of all parts, as functions of the errors D and of all parameters in a row."""

    def __init__(self, model: Sequence[Part], step: Step, theta: Sequence[Floats]) -> None:
        self.model, self.step = model, step
        self._cuts = np.cumsum([len(t) for t in theta])[:-1]

    def split(self, flat: Floats) -> list[Floats]:
        """The parameters of each part."""
        return np.split(flat, self._cuts)

    def terms(self, errors: Floats, flat: Floats) -> Floats:
        """The patients' terms, (n, p)."""
        theta = self.split(flat)
        members = self.step.members(errors, self.model, theta)
        return np.hstack([p.equations(t, members) for p, t in zip(self.model, theta, strict=True)])

    def mean(self, errors: Floats, flat: Floats) -> Floats:
        return np.asarray(self.terms(errors, flat).mean(axis=0))

    def slopes(self, errors: Floats, flat: Floats) -> Floats:
        """Derivatives of the means by the parameters, (p, p)."""
        return _central_differences(lambda at: self.mean(errors, at), flat)


def _polish(equations: Equations, theta: list[Floats]) -> list[Floats]:
    """Newton steps from where EM has come, as long as the equations come nearer to 0."""
    flat, errors = np.concatenate(theta), equations.step.errors
    for _ in range(_MAX_POLISH):
        value = equations.mean(errors, flat)
        if np.abs(value).max() < 1e-12:
            break
        try:
            trial = flat - np.linalg.solve(equations.slopes(errors, flat), value)
        except np.linalg.LinAlgError:
            break
        if not np.linalg.norm(equations.mean(errors, trial)) < np.linalg.norm(value):
            break
        flat = trial
    return equations.split(flat)


def _central_differences(function: Callable[[Floats], Floats], at: Floats) -> Floats:
    columns = []
    for i, value in enumerate(at):
        h = 1e-5 * max(abs(value), 0.1)
        up, down = at.copy(), at.copy()
        up[i] += h
        down[i] -= h
        columns.append((function(up) - function(down)) / (2 * h))
    return np.column_stack(columns)


def sandwich(
    model: Sequence[Part], step: Step, theta: Sequence[Floats], first: FirstStep | None
) -> Floats:
    """Covariance of the parameters; that of the errors and of the first step is part of it.

    A small change of the assignments themselves moves nothing: whatever they are, the corrections
    are right for them, as long as the errors are theirs.
    """
    errors, flat, equations = step.errors, np.concatenate(theta), Equations(model, step, theta)
    terms = equations.terms(errors, flat)
    if step.correction is not None:
        by_errors = _central_differences(
            lambda at: equations.mean(at.reshape(errors.shape), flat), errors.ravel()
        )
        terms = terms + step.error_terms(errors) @ by_errors.T
        if first is not None:
            by_model = by_errors @ first.errors
            if isinstance(model[0], Shares):
                by_model[: len(theta[0])] += first.shares[:-1]
            terms = terms + first.terms @ by_model.T
    try:
        bread = np.linalg.inv(equations.slopes(errors, flat))
    except np.linalg.LinAlgError:
        raise InputError(
            "the standard errors cannot be computed: a class or category has too few patients to "
            "estimate all its terms; leave a covariate out, or merge categories."
        ) from None
    return np.asarray(bread @ (terms.T @ terms) @ bread.T / len(terms) ** 2)


# --- what the uncertainty of the first step's model does ------------------------------

_STEP = 1e-4  # by which each logit is moved up and down
_EMPTY = 1e-6  # probabilities below this have no logit


class FirstStep(NamedTuple):
    """How each patient moves the parameters, (n, P), and how these move D and the shares.

    `errors` (K·K, P): derivatives of D; `shares` (K, P): of the classes' sizes.
    """

    terms: Floats
    errors: Floats
    shares: Floats


def first_step(params: AnyParams, data: Sequences, assigned: Floats, case: Floats) -> FirstStep:
    """The effects of a model's parameters on D, given assignments (n, K) and case weights."""
    need_no_step_covariates(
        params, "correction for errors of this first step", "give its predict_proba(sequences)"
    )
    patterns = data.patterns_of(params.form)
    inverse, total = patterns.inverse, case.sum()
    n_patterns = len(patterns)
    weight = np.bincount(inverse, weights=case, minlength=n_patterns)
    given = em.sum_by_pattern(inverse, assigned * case[:, None], n_patterns)
    base = em.e_step(patterns, params)
    table = base.posterior.T @ given / total
    share = base.posterior.T @ weight / total
    scores, errors, shares = [], [], []
    possible = np.isfinite(base.logliks)  # patients without weight may be impossible
    for up, down in _shift_each_logit(params):
        above, below = em.e_step(patterns, up), em.e_step(patterns, down)
        slope = (above.posterior - below.posterior) / (2 * _STEP)
        change = np.subtract(above.logliks, below.logliks, out=np.zeros(n_patterns), where=possible)
        scores.append(change / (2 * _STEP))
        moved = slope.T @ weight / total
        shares.append(moved)
        by_class = slope.T @ given / total
        errors.append((by_class - table / share[:, None] * moved[:, None]) / share[:, None])
    score = np.column_stack(scores) if scores else np.zeros((n_patterns, 0))
    information = (score * weight[:, None]).T @ score / total
    influence = score @ np.linalg.pinv(information, rcond=1e-9, hermitian=True)
    terms = influence[inverse] * (case / case.mean())[:, None]
    k = params.n_classes
    return FirstStep(
        terms, np.array(errors).reshape(-1, k * k).T, np.array(shares).reshape(-1, k).T
    )


def _shift_each_logit(params: AnyParams) -> Iterator[tuple[AnyParams, AnyParams]]:
    """The parameters after each free logit was moved up, and after it was moved down."""
    k, s = params.initial.shape
    tables = [params.weights[None], params.initial]
    if isinstance(params, MarkovParams):
        tables.append(params.transition.reshape(k * s, s))
    else:
        leaving = np.stack([1 - params.leaving, params.leaving], axis=-1)
        tables += [leaving.reshape(-1, 2), params.destination.reshape(-1, s)]

    def shifted(part: int, row: int, cell: int, by: float) -> AnyParams:
        moved = [table.copy() for table in tables]
        moved[part][row, cell] *= np.exp(by)
        moved[part][row] /= moved[part][row].sum()
        weights, initial, chains, *more = moved
        if isinstance(params, MarkovParams):
            return MarkovParams(weights[0], initial, chains.reshape(k, s, s))
        return FormParams(
            params.form,
            weights[0],
            initial,
            chains[:, 1].reshape(params.leaving.shape),
            more[0].reshape(params.destination.shape),
        )

    for part, table in enumerate(tables):
        for r, row in enumerate(table):
            for j in np.flatnonzero(row > _EMPTY)[1:]:  # the first is the row's reference
                yield shifted(part, r, j, _STEP), shifted(part, r, j, -_STEP)
