"""The parts of a third step: membership, means, and regressions, as estimating equations.

Each part has parameters θ (a flat array) and three functions. `update` solves the part's equations
given how much each patient counts for each class, W (n, K). `log_density` is what the part adds to
the log-likelihood of a patient in each class, (n, K). `equations` are the patients' terms of the
equations that θ solves, (n, p). W is the assignment, the assignment corrected for errors
(its values may be negative), or the probability of each class after the third step.
`mmlca.model.outcomes` puts the parts together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from font.errors import InputError, ReportWarning, option
from mmlca.model import em
from mmlca.model.membership import logit_information
from mmlca.model.params import Floats, MarkovParams
from mmlca.sequences.type import Sequences

_TINY = 1e-300
_FLAT = 1e-7


Correction = Literal["BCH", "ML"] | None
_SHIFT = 0.2
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
    """What all parts have."""

    @property
    def size(self) -> int: ...
    def update(self, members: Floats, theta: Floats | None) -> Floats: ...
    def log_density(self, theta: Floats) -> Floats: ...
    def equations(self, theta: Floats, members: Floats) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Shares(Part):
    """Sizes of the classes as the first step has them: θ = the shares of all but the last.

    `posterior` (n, K) are the memberships of the first step, times the case weights.
    """

    posterior: Floats

    @property
    def size(self) -> int:
        return int(self.posterior.shape[1] - 1)

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        total = self.posterior.sum(axis=0)
        share: Floats = total[:-1] / total.sum()
        return share

    def log_density(self, theta: Floats) -> Floats:
        share = np.append(theta, 1 - theta.sum())
        return np.broadcast_to(np.log(np.maximum(share, _TINY)), self.posterior.shape)

    def equations(self, theta: Floats, members: Floats) -> Floats:
        total = self.posterior.sum(axis=1, keepdims=True)
        result: Floats = self.posterior[:, :-1] - total * theta
        return result


@dataclass(frozen=True, eq=False)
class Membership(Part):
    """Multinomial logit of the class on X (n, q): θ = q coefficients for each class but the first.

    Rows of θ are classes. The equations are Σ_i x_i (W_ik − P_ik) = 0.
    """

    x: Floats
    n_classes: int

    @property
    def size(self) -> int:
        return int(self.x.shape[1] * (self.n_classes - 1))

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        start = np.zeros(self.size) if theta is None else theta
        return _newton(lambda t: self._value(t, members), start, "class membership")

    def _value(self, theta: Floats, members: Floats) -> tuple[Floats, Floats]:
        total = members.sum(axis=1)
        p = np.exp(self.log_density(theta))
        gradient = self.equations(theta, members).sum(axis=0)
        hessian = logit_information(self.x, total, p[:, 1:])
        return gradient, hessian

    def log_density(self, theta: Floats) -> Floats:
        b = theta.reshape(self.n_classes - 1, -1)
        eta = np.column_stack([np.zeros(len(self.x)), self.x @ b.T])
        logs: Floats = log_softmax(eta, axis=-1)
        return logs

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self.log_density(theta))
        rest = members - members.sum(axis=1, keepdims=True) * p
        result: Floats = (rest[:, 1:, None] * self.x[:, None, :]).reshape(len(self.x), -1)
        return result


@dataclass(frozen=True, eq=False)
class Means(Part):
    """Shares of categories by class: θ = K·m means of Y (n, m), all but the first category."""

    y: Floats
    n_classes: int

    @property
    def size(self) -> int:
        return self.n_classes * int(self.y.shape[1])

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        mean: Floats = (members.T @ self.y / members.sum(axis=0)[:, None]).ravel()
        return mean

    def log_density(self, theta: Floats) -> Floats:
        mean = theta.reshape(self.n_classes, -1)
        every = np.column_stack([1 - mean.sum(axis=1), mean])
        first = 1 - self.y.sum(axis=1)
        result: Floats = np.column_stack([first, self.y]) @ np.log(np.maximum(every, _TINY)).T
        return result

    def equations(self, theta: Floats, members: Floats) -> Floats:
        rest = self.y[:, None, :] - theta.reshape(self.n_classes, -1)
        return (members[:, :, None] * rest).reshape(len(self.y), -1)


@dataclass(frozen=True, eq=False)
class Line(Part):
    """Linear regression of y (n,) on class and Z (n, q): θ = K levels, q slopes, K variances.

    With `weigh` residuals count by the inverse of their class's variance, as in a likelihood.
    """

    y: Floats
    z: Floats
    n_classes: int
    weigh: bool

    @property
    def size(self) -> int:
        return 2 * self.n_classes + int(self.z.shape[1])

    def _split(self, theta: Floats) -> tuple[Floats, Floats]:
        """Residuals (n, K) and variances (K,)."""
        k = self.n_classes
        fit = theta[:k] + (self.z @ theta[k:-k])[:, None]
        return self.y[:, None] - fit, theta[-k:]

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        k = self.n_classes
        variance = np.ones(k) if theta is None or not self.weigh else theta[-k:]
        w = members / variance
        cross = w.T @ self.z
        left = np.block(
            [
                [np.diag(w.sum(axis=0)), cross],
                [cross.T, (self.z * w.sum(axis=1)[:, None]).T @ self.z],
            ]
        )
        right = np.append(w.T @ self.y, self.z.T @ (w.sum(axis=1) * self.y))
        beta = np.linalg.solve(left, right)
        rest, _ = self._split(np.append(beta, variance))
        return np.append(beta, (members * rest**2).sum(axis=0) / members.sum(axis=0))

    def log_density(self, theta: Floats) -> Floats:
        return gaussian(*self._split(theta))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        rest, variance = self._split(theta)
        w = members * rest / (variance if self.weigh else 1.0)
        return np.hstack(
            [w, w.sum(axis=1)[:, None] * self.z, members * (rest**2 - variance)],
        )


@dataclass(frozen=True, eq=False)
class Logit(Part):
    """Multinomial logit of categories Y (n, m), all but the first, on class and Z (n, q).

    θ has one row of K levels and q slopes for each of the m categories.
    """

    y: Floats
    z: Floats
    n_classes: int

    @property
    def size(self) -> int:
        return int(self.y.shape[1] * (self.n_classes + self.z.shape[1]))

    def _log(self, theta: Floats) -> Floats:
        """Log-probabilities (n, K, m + 1), the first category first."""
        b = theta.reshape(self.y.shape[1], -1)
        level, slope = b[:, : self.n_classes].T, b[:, self.n_classes :].T
        eta = level[None] + (self.z @ slope)[:, None, :]
        whole = np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1)
        logs: Floats = log_softmax(whole, axis=-1)
        return logs

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        start = np.zeros(self.size) if theta is None else theta
        return _newton(lambda t: self._value(t, members), start, "the outcome")

    def _value(self, theta: Floats, members: Floats) -> tuple[Floats, Floats]:
        gradient = self.equations(theta, members).sum(axis=0)
        p = np.exp(self._log(theta))[..., 1:]
        n, k = members.shape
        x = np.concatenate(
            [np.broadcast_to(np.eye(k), (n, k, k)), np.repeat(self.z[:, None], k, axis=1)], axis=-1
        )
        m = p.shape[-1]
        return gradient, logit_information(
            x.reshape(n * k, -1), members.ravel(), p.reshape(n * k, m)
        )

    def log_density(self, theta: Floats) -> Floats:
        every = np.column_stack([1 - self.y.sum(axis=1), self.y])
        result: Floats = (self._log(theta) * every[:, None, :]).sum(axis=-1)
        return result

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self._log(theta))[..., 1:]
        rest = members[..., None] * (self.y[:, None, :] - p)  # (n, K, m)
        slopes = rest.sum(axis=1)[:, :, None] * self.z[:, None, :]  # (n, m, q)
        both = np.concatenate([rest.transpose(0, 2, 1), slopes], axis=-1)
        result: Floats = both.reshape(len(self.y), -1)
        return result


# --- the equations --------------------------------------------------------------------------


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
            joint = log_softmax(log + np.log(np.maximum(errors[:, s], 1e-300)), axis=-1)
            result += self.assigned[:, s, None] * np.exp(joint)
        return result * self.used[:, None]


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
    theta = _polish(model, step, errors, theta)
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


def _polish(model: list[Part], step: Step, errors: Floats, theta: list[Floats]) -> list[Floats]:
    """Newton steps from where EM has come, as long as the equations come nearer to 0."""
    flat = np.concatenate(theta)
    for _ in range(_MAX_POLISH):
        value = _mean_equations(model, step, errors, flat)
        if np.abs(value).max() < 1e-12:
            break
        try:
            trial = flat - np.linalg.solve(_equation_slopes(model, step, errors, flat), value)
        except np.linalg.LinAlgError:
            break
        further = _mean_equations(model, step, errors, trial)
        if not np.linalg.norm(further) < np.linalg.norm(value):
            break
        flat = trial
    return _split_by_part(model, flat)


def _split_by_part(model: Sequence[Part], flat: Floats) -> list[Floats]:
    return np.split(flat, np.cumsum([part.size for part in model])[:-1])


def _equation_terms(model: Sequence[Part], step: Step, errors: Floats, flat: Floats) -> Floats:
    """The patients' terms of all equations, (n, p)."""
    theta = _split_by_part(model, flat)
    members = step.members(errors, model, theta)
    return np.hstack([p.equations(t, members) for p, t in zip(model, theta, strict=True)])


def _mean_equations(model: Sequence[Part], step: Step, errors: Floats, flat: Floats) -> Floats:
    mean: Floats = _equation_terms(model, step, errors, flat).mean(axis=0)
    return mean


def _equation_slopes(model: Sequence[Part], step: Step, errors: Floats, flat: Floats) -> Floats:
    """Derivatives of the mean equations by the parameters (p, p), by central differences."""
    return _central_differences(lambda at: _mean_equations(model, step, errors, at), flat)


def _central_differences(function: Any, at: Floats) -> Floats:
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
    errors, flat = step.errors, np.concatenate(theta)
    terms = _equation_terms(model, step, errors, flat)
    if step.correction is not None:
        shape = errors.shape
        by_errors = _central_differences(
            lambda at: _mean_equations(model, step, at.reshape(shape), flat), errors.ravel()
        )
        terms = terms + step.error_terms(errors) @ by_errors.T
        if first is not None:
            by_model = by_errors @ first.errors
            if isinstance(model[0], Shares):
                by_model[: model[0].size] += first.shares[:-1]
            terms = terms + first.terms @ by_model.T
    try:
        bread = np.linalg.inv(_equation_slopes(model, step, errors, flat))
    except np.linalg.LinAlgError:
        raise InputError(
            "the standard errors cannot be computed: a class or category has too few patients to "
            "estimate all its terms; leave a covariate out, or merge categories."
        ) from None
    covariance: Floats = bread @ (terms.T @ terms) @ bread.T / len(terms) ** 2
    return covariance


# --- inside ---------------------------------------------------------------------------------


def gaussian(rest: Floats, variance: Floats) -> Floats:
    """Log-densities of residuals (n, K)."""
    safe = np.maximum(variance, _TINY)
    result: Floats = -0.5 * (np.log(2 * np.pi * safe) + rest**2 / safe)
    return result


def _newton(value: Any, start: Floats, what: str) -> Floats:
    """The root of a gradient by Newton's method, each step shortened until the gradient falls."""
    theta = start
    gradient, hessian = value(theta)
    scale = 1 + np.abs(gradient).max(initial=0.0)
    width = np.sqrt(np.maximum(np.abs(np.diag(hessian)), _TINY))
    for _ in range(100):
        if np.abs(gradient).max(initial=0.0) < 1e-10 * scale:
            flat = np.abs(np.linalg.eigvalsh(hessian / np.outer(width, width))).min(initial=1.0)
            if flat < _FLAT:  # the solution lies at infinity
                break
            return theta
        try:
            step = np.linalg.solve(hessian, gradient)
        except np.linalg.LinAlgError:
            break
        size, length = np.linalg.norm(gradient), 1.0
        while length > 1e-6:
            trial, further = value(theta + length * step)
            if np.linalg.norm(trial) < size:
                break
            length /= 2
        else:
            if size < 1e-7 * scale:  # as near as rounding lets it come
                return theta
            break
        theta, gradient, hessian = theta + length * step, trial, further
    raise InputError(
        f"the regression of {what} has no finite solution: a covariate or a class determines it "
        "completely, or the corrected weights are too negative; leave a covariate out, merge rare "
        f"categories, or choose {option('correction', 'ML')} or no correction."
    )


# --- what the uncertainty of the first step's model does ------------------------------

_STEP = 1e-4
_EMPTY = 1e-6


class FirstStep(NamedTuple):
    """How each patient moves the parameters, (n, P), and how these move D and the shares.

    `errors` (K·K, P): derivatives of D; `shares` (K, P): of the classes' sizes.
    """

    terms: Floats
    errors: Floats
    shares: Floats


def first_step(params: MarkovParams, data: Sequences, assigned: Floats, case: Floats) -> FirstStep:
    """The effects of a model's parameters on D, given assignments (n, K) and case weights."""
    inverse, total = data.patterns.inverse, case.sum()
    n_patterns = len(data.patterns)
    weight = np.bincount(inverse, weights=case, minlength=n_patterns)
    given = np.column_stack(  # cases of each pattern by assigned class
        [np.bincount(inverse, weights=case * w, minlength=n_patterns) for w in assigned.T]
    )
    base = em.e_step(data.patterns, params)
    table = base.posterior.T @ given / total
    share = base.posterior.T @ weight / total
    scores, errors, shares = [], [], []
    possible = np.isfinite(base.logliks)  # patients without weight may be impossible
    for up, down, width in _shift_each_logit(params):
        above, below = em.e_step(data.patterns, up), em.e_step(data.patterns, down)
        slope = (above.posterior - below.posterior) / width
        change = np.subtract(above.logliks, below.logliks, out=np.zeros(n_patterns), where=possible)
        scores.append(change / width)
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
        terms,
        np.array(errors).reshape(-1, k * k).T,
        np.array(shares).reshape(-1, k).T,
    )


def _shift_each_logit(params: MarkovParams) -> Iterator[tuple[MarkovParams, MarkovParams, float]]:
    """Each free logit moved up and down, and the distance between the two."""
    k, s = params.initial.shape
    rows = [params.weights[None], params.initial, params.transition.reshape(k * s, s)]
    for part, table in enumerate(rows):
        for r, row in enumerate(table):
            free = np.flatnonzero(row > _EMPTY)
            for j in free[1:]:  # the first free cell of a row is its reference
                pair = []
                for sign in (1, -1):
                    moved = [t.copy() for t in rows]
                    moved[part][r] = _shift_logit(row, j, sign * _STEP)
                    weights, initial, transition = moved
                    pair.append(MarkovParams(weights[0], initial, transition.reshape(k, s, s)))
                yield pair[0], pair[1], 2 * _STEP


def _shift_logit(row: Floats, j: int, by: float) -> Floats:
    odds = row.copy()
    odds[j] *= np.exp(by)
    odds /= odds.sum()
    return odds
