"""EM where covariates say how probable each class is: a multinomial logit inside the mixture.

Patients with the same transition pattern and the same covariates are one *row*. Given the row's
covariates x, its classes have the probabilities softmax(x · B), with the first column of B zero.
The M-step of the chains is the usual one, that of B a few Newton steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from font.probabilities import log_prior, probabilities
from mmlca.model.em import Settings, Visits, cells_of, params_of, sum_by_pattern
from mmlca.model.params import Floats, MarkovParams
from mmlca.model.search import Fit, start_row
from mmlca.model.starts import reassigned
from mmlca.sequences.patterns import Patterns

_CONFIRM = 3  # plain updates in a row that must pass the test of convergence
_NEWTON, _ENOUGH = 25, 1e-10  # most Newton steps, and gain per patient below which they end
_TRY, _FOLLOWED = 30, 3  # updates after a kick; runs that are followed to their end
_ROUNDS = 4  # most rounds of kicks, each from the best run so far
_SAME = 0.01  # two maxima this close count as the same
_LONGEST = 4.0  # longest Newton step, in log-odds per standard deviation


class Rows(NamedTuple):
    """Distinct pairs of pattern and covariates.

    `pattern` (R,); `design` (R, P), its first column ones; summed `weights`, and summed `squares`
    of weights as parts of the largest (R,); `inverse` and `each` (n,): the row and the weight of
    each patient.
    """

    pattern: NDArray[np.intp]
    design: Floats
    weights: Floats
    squares: Floats
    inverse: NDArray[np.intp]
    each: Floats


def make_rows(patterns: Patterns, weights: Floats, design: Floats | None = None) -> Rows:
    """Rows of n patients with their own weights (n,) and design (n, P); by default all ones."""
    inverse = patterns.inverse.astype(np.intp)
    if design is None:
        u = len(patterns)
        number, pattern, kept = inverse, np.arange(u), np.ones((u, 1))
    else:
        keys = pd.DataFrame(np.column_stack([inverse, design]))
        number = keys.groupby(list(keys.columns), sort=True).ngroup().to_numpy()
        first = np.unique(number, return_index=True)[1]
        pattern, kept = inverse[first], design[first]
    size = len(pattern)
    parts = weights / weights.max(initial=1e-300)
    return Rows(
        pattern,
        kept,
        np.bincount(number, weights, size).astype(float),
        np.bincount(number, parts**2, size).astype(float),
        number,
        weights,
    )


@dataclass(eq=False)
class MembershipRun:
    """One run of EM: cells (K, C), coefficients (P, K) with a zero first column, and its path."""

    cells: Floats
    coefficients: Floats
    path: Floats
    converged: bool
    posterior: Floats

    @property
    def value(self) -> float:
        """The penalised log-likelihood; −inf for a run that failed."""
        return -np.inf if self.failed else float(self.path[-1, 1])

    @property
    def failed(self) -> bool:
        """Whether the data are impossible under the parameters."""
        return not np.isfinite(self.path[-1, 1])

    @property
    def status(self) -> str:
        """How the run ended, in words."""
        if self.failed:
            return "failed: impossible data"
        return "converged" if self.converged else "stopped at max_iter"


class _Step(NamedTuple):
    loglik: float
    value: float
    posterior: Floats


class Mixture:
    """The data of a fit with covariates, and one EM update."""

    def __init__(
        self, visits: Visits, rows: Rows, settings: Settings, zeros: NDArray[np.bool_]
    ) -> None:
        self.visits, self.rows, self.settings = visits, rows, settings
        self.prior = np.where(zeros | settings.zeros, 0.0, settings.prior)
        self.open = ~(zeros | settings.zeros)

    def e_step(self, cells: Floats, coefficients: Floats) -> _Step:
        """Log-likelihood, penalised log-likelihood, and class probabilities of each row (R, K)."""
        joint = class_joint(self.visits, self.rows, cells, coefficients)
        logs = logsumexp(joint, axis=1)
        counted = self.rows.weights > 0
        loglik = float(self.rows.weights[counted] @ logs[counted])
        with np.errstate(invalid="ignore"):
            posterior = np.nan_to_num(np.exp(joint - logs[:, None]))
        return _Step(loglik, loglik + log_prior(cells, self.prior), posterior)

    def m_step(
        self, cells: Floats, coefficients: Floats, posterior: Floats
    ) -> tuple[Floats, Floats]:
        """New cells and coefficients."""
        memberships = by_pattern(self.rows, posterior, self.visits)
        expected = self.visits.expected(cells, memberships)
        new = probabilities(*map(self.visits.rows, (expected, self.prior, self.open)))
        members = posterior * self.rows.weights[:, None]
        return new.reshape(cells.shape), fit_logit(self.rows.design, members, coefficients)

    def run(
        self, cells: Floats, coefficients: Floats, max_iter: int, tol: float, accelerate: bool
    ) -> MembershipRun:
        """EM from there; the path holds (log-likelihood, penalised) after 0, 1, … updates.

        Every two updates are followed by an extrapolation (SQUAREM), which counts as an update
        and is dropped where it would lower the penalised log-likelihood.
        """
        here = (cells, coefficients)
        step = self.e_step(*here)
        path = [(step.loglik, step.value)]
        history = [here]
        gain_before, n_passed, converged = np.inf, 0, False
        while len(path) <= max_iter and np.isfinite(step.value):
            here = self.m_step(*here, step.posterior)
            step = self.e_step(*here)
            path.append((step.loglik, step.value))
            history.append(here)
            gain = path[-1][1] - path[-2][1]
            small = gain <= 1e-14 * abs(step.value) or (
                gain < tol and gain * gain < tol * (gain_before - gain)
            )
            n_passed = n_passed + 1 if tol > 0 and small else 0
            gain_before = gain
            if n_passed > _CONFIRM:
                converged = True
                break
            if accelerate and len(history) == 3 and len(path) <= max_iter and not n_passed:
                leap = _extrapolate(history, self.visits)
                ahead = self.e_step(*leap)
                if ahead.value >= step.value:
                    here, step, gain_before = leap, ahead, np.inf
                    path.append((step.loglik, step.value))
            if len(history) >= 3:
                history = [here]
        return MembershipRun(*here, np.array(path), converged, step.posterior)


def by_pattern(rows: Rows, posterior: Floats, visits: Visits) -> Floats:
    """Class probabilities of rows (R, K), weighted and summed by pattern (U, K)."""
    return sum_by_pattern(rows.pattern, posterior * rows.weights[:, None], len(visits.patterns))


def class_joint(visits: Visits, rows: Rows, cells: Floats, coefficients: Floats) -> Floats:
    """Log of class probability times likelihood, for each row and class (R, K)."""
    shares: Floats = log_softmax(rows.design @ coefficients, axis=1)
    return shares + visits.logliks(cells)[rows.pattern]


def fit_logit(design: Floats, members: Floats, coefficients: Floats) -> Floats:
    """Multinomial logit of weighted memberships (R, K) on a design (R, P), by Newton steps.

    Starts from `coefficients` (P, K), whose first column is zero and stays zero. A step that
    would lower the likelihood is halved, and one that is too long is shortened, so that classes
    that a covariate separates perfectly lead to large numbers, not to an overflow.
    """
    total = members.sum(axis=1)
    n_terms, k = coefficients.shape
    if k == 1:
        return coefficients
    logs = log_softmax(design @ coefficients, axis=1)
    value = float((members * logs).sum())
    for _ in range(_NEWTON):
        shares = np.exp(logs)
        gradient = design.T @ (members - total[:, None] * shares)[:, 1:]
        information = logit_information(design, total, shares[:, 1:])
        ridge = 1e-12 * np.trace(information) / len(information) + 1e-300
        step = np.linalg.solve(
            information + ridge * np.eye(len(information)), gradient.T.ravel()
        ).reshape(k - 1, n_terms)
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300))
        gain = 0.0
        for _ in range(30):
            trial = coefficients.copy()
            trial[:, 1:] += step.T
            trial_logs = log_softmax(design @ trial, axis=1)
            gain = float((members * trial_logs).sum()) - value
            if gain >= 0:
                coefficients, logs, value = trial, trial_logs, value + gain
                break
            step /= 2
        if gain <= _ENOUGH * max(float(total.sum()), 1e-300):
            break
    return coefficients


def logit_information(design: Floats, total: Floats, shares: Floats) -> Floats:
    """Σ total · (diag π − ππᵀ) ⊗ xxᵀ over rows, for the shares π of all classes but the first."""
    k, p = shares.shape[1], design.shape[1]
    information = np.empty((k, p, k, p))
    for a in range(k):
        for b in range(a, k):
            factor = total * shares[:, a] * ((a == b) - shares[:, b])
            block = design.T @ (design * factor[:, None])
            information[a, :, b] = block
            information[b, :, a] = block.T
    return information.reshape(k * p, k * p)


def _extrapolate(history: list[tuple[Floats, Floats]], visits: Visits) -> tuple[Floats, Floats]:
    """The squared step from three successive points, cells made positive and normalised."""
    first = [one - zero for zero, one in zip(history[0], history[1], strict=True)]
    second = [
        two - 2 * one + zero
        for zero, one, two in zip(history[0], history[1], history[2], strict=True)
    ]
    length, bend = (np.sqrt(sum(float((x**2).sum()) for x in xs)) for xs in (first, second))
    step = min(-1.0, -length / bend) if bend > 0 else -1.0
    cells, coefficients = (
        zero - 2 * step * r + step * step * v
        for zero, r, v in zip(history[0], first, second, strict=True)
    )
    rows = visits.rows(np.maximum(cells, 0.01 * history[2][0]))
    sums = rows.sum(axis=-1, keepdims=True)
    return np.divide(rows, sums, out=rows, where=sums > 0).reshape(cells.shape), coefficients


# --- a fit: where to begin ---------------------------------------------------------------


def fit_membership(
    patterns: Patterns,
    rows: Rows,
    first: MarkovParams,
    settings: Settings,
    zeros: NDArray[np.bool_],
    n_kicks: int,
    rng: np.random.Generator,
) -> tuple[Fit, Floats]:
    """Fit chains and coefficients together, from parameters that were found without covariates.

    Then `n_kicks` runs begin where a part of the rows got another class, and the best of them are
    followed; again from there if that was a gain. Returns the fit, its `posterior` by row, and the
    coefficients (P, K) of the rows' design, the largest class the reference.
    """
    visits = Visits(patterns)
    mixture = Mixture(visits, rows, settings, zeros)
    cells, none = cells_of(first), np.zeros((rows.design.shape[1], first.n_classes))
    shares = np.maximum(first.weights, 1e-12)
    none[0] = np.log(shares / shares[0])
    run = mixture.run(cells, none, settings.max_iter, settings.tol, settings.accelerate)
    record = [start_row("without covariates" if n_kicks else "given", run)]
    ends = [run]
    for _ in range(_ROUNDS if n_kicks and first.n_classes > 1 else 0):
        best = max(ends, key=lambda one: one.value)
        if not np.isfinite(best.value):
            break
        starts = [_kick(mixture, best, rng) for _ in range(n_kicks)]
        tried = [mixture.run(*s, min(_TRY, settings.max_iter), 0.0, True) for s in starts]
        tried.sort(key=lambda one: -one.value)
        followed = [
            mixture.run(one.cells, one.coefficients, settings.max_iter, settings.tol, True)
            for one in tried[:_FOLLOWED]
        ]
        record += [start_row("kick", one) for one in followed]
        record += [start_row("kick", one, "screened out") for one in tried[_FOLLOWED:]]
        ends = [best, *followed]
        if max(one.value for one in followed) < best.value + _SAME:
            break
    best = max(ends, key=lambda one: one.value)
    n_there = sum(one.value > best.value - _SAME for one in ends)
    shares = np.exp(log_softmax(rows.design @ best.coefficients, axis=1))
    average = rows.weights @ shares / rows.weights.sum()
    order = np.argsort(-average, kind="stable")
    coefficients = best.coefficients[:, order] - best.coefficients[:, order[:1]]
    memberships = by_pattern(rows, best.posterior, visits)
    expected = visits.rows(visits.expected(best.cells, memberships)[order])
    fit = Fit(
        params_of(best.cells[order], average[order]),
        average[order][None],
        best.path,
        best.converged,
        best.posterior[:, order],
        expected.sum(axis=-1)[:, :-1] < 1e-6,
        pd.DataFrame(record),
        n_there,
        len(ends),
    )
    return fit, coefficients


def _kick(mixture: Mixture, run: MembershipRun, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Parameters after some rows of a run got any class."""
    posterior = reassigned(run.posterior, [0.05, 0.15, 0.3], rng)
    return mixture.m_step(run.cells, run.coefficients, posterior)
