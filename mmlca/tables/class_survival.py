"""Curves and hazard ratios of classes that patients belong to with some probability.

Each patient counts for each class with a weight: the class assigned, multiplied by the inverse of
the classification errors (Bolck, Croon and Hagenaars). Weights may be negative, which programs for
survival data refuse. The estimators are the usual ones with weighted counts: Aalen–Johansen (or
Kaplan–Meier, if no events compete) and Cox with Efron's ties. Where all classes are certain, they
are those of a program that takes the classes as known, and their variances are robust ones.

An estimate depends on the patients, through their weights; on the classification errors D, which
are estimated from the same patients; and on the model, over whose uncertainty D varies. The
variances have all three parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError, ReportWarning
from mmlca.model.third_step import Step, errors_of

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]

_STEP = 1e-5
_FLAT = 1e-7  # scaled curvature below which a regression has no finite solution
_MOST_STEPS, _FURTHEST = 100, 25.0


class Members(NamedTuple):
    """Patients assigned to K classes, with their memberships.

    `step` has memberships, assignments and case weights (corrected by BCH); `tables` (draws, K, K)
    are the shares of the patients by class and class assigned over the uncertainty of the model;
    None where the memberships are taken as known.
    """

    step: Step
    tables: Floats | None

    def weights(self, errors: Floats) -> Floats:
        """How much each patient counts for each class, (n, K)."""
        return self.step.members(errors, [], [])

    def error_terms(self) -> Floats:
        """What each patient adds to the estimated errors, (n, K·K)."""
        return self.step.error_terms(self.step.errors) / len(self.step.case)

    def error_spread(self) -> Floats:
        """Covariance of the errors over the uncertainty of the model, (K·K, K·K)."""
        n_cells = self.step.errors.size
        if self.tables is None:
            return np.zeros((n_cells, n_cells))
        return np.asarray(np.cov(errors_of(self.tables).reshape(len(self.tables), n_cells).T))

    def slopes(self, function: Callable[[Floats], Floats]) -> Floats:
        """Derivatives of a function of the errors (K, K), on a new last axis of length K·K."""
        errors = self.step.errors
        columns = []
        for cell in np.ndindex(errors.shape):
            up, down = errors.copy(), errors.copy()
            up[cell] += _STEP
            down[cell] -= _STEP
            columns.append((function(up) - function(down)) / (2 * _STEP))
        return np.stack(columns, axis=-1)


# --- curves ---------------------------------------------------------------------------------


class Curve(NamedTuple):
    """Weighted counts at each time, and the cumulative incidence of the event.

    `at_risk` just before, `events` and `ended` (by any event) then; `before` is the share without
    any event just before.
    """

    at_risk: Floats
    events: Floats
    ended: Floats
    before: Floats
    incidence: Floats


def weighted_curve(weight: Floats, place: Whole, event: Whole, n_times: int) -> Curve:
    """The curve of patients with weights (n,), whose times have the numbers `place`."""

    def total(rows: NDArray[np.bool_]) -> Floats:
        return np.asarray(np.bincount(place[rows], weight[rows], n_times), dtype=float)

    events, ended = total(event == 1), total(event > 0)
    at_risk: Floats = np.cumsum(total(event >= 0)[::-1])[::-1]
    alive = np.cumprod(np.maximum(1 - _ratio(ended, at_risk), 0.0))
    before = np.append(1.0, alive[:-1])
    return Curve(at_risk, events, ended, before, np.cumsum(before * _ratio(events, at_risk)))


def _ratio(part: ArrayLike, whole: Floats) -> Floats:
    """0 where the whole is nobody."""
    result = np.zeros(whole.shape)
    nobody = np.abs(whole) <= 1e-10 * np.abs(whole).max(initial=1.0)
    np.divide(part, whole, out=result, where=~nobody)
    return result


def class_curves(time: Floats, event: Whole, members: Members) -> list[pd.DataFrame]:
    """The curve of each class: `time`, `at_risk`, `effective`, `events`, `left`, `survival`, `se`.

    `at_risk`, `events` and `left` are sums of weights. `effective` is the number of patients who
    would be as informative if their class were known, (Σw)² / Σw² of those at risk. The curve ends
    before this falls below 1: from there on the sum is mostly noise. Shares are kept between 0
    and 1, and from rising.
    """
    times, place = np.unique(time, return_inverse=True)
    errors = members.step.errors
    weights = members.weights(errors)

    def shares(at: Floats) -> Floats:
        each = members.weights(at).T
        return np.array([weighted_curve(w, place, event, len(times)).incidence for w in each])

    slopes, terms = members.slopes(shares), members.error_terms()
    spread = members.error_spread() + terms.T @ terms
    tables = []
    for weight, slope in zip(weights.T, slopes, strict=True):
        curve = weighted_curve(weight, place, event, len(times))
        squares, cross = _influence_sums(curve, weight, place, event, terms)
        variance = squares + 2 * (cross * slope).sum(axis=1)
        variance += ((slope @ spread) * slope).sum(axis=1)
        noise = np.asarray(np.cumsum(np.bincount(place, weight**2, len(times))[::-1])[::-1], float)
        effective = _ratio(curve.at_risk**2, noise)
        here = np.bincount(place, np.abs(weight), len(times)) > 0
        known = (curve.at_risk > 0) & (effective >= 1 - 1e-9)
        here &= np.cumprod(known | ~here).astype(bool)
        share = np.clip(np.maximum.accumulate(curve.incidence), 0.0, 1.0)
        gone = curve.at_risk - np.append(curve.at_risk[1:], 0.0)
        frame = pd.DataFrame(
            {
                "time": times,
                "at_risk": curve.at_risk,
                "effective": effective,
                "events": curve.events,
                "left": gone - curve.events,
                "survival": 1 - share,
                "se": np.sqrt(np.maximum(variance, 0.0)),
            }
        )
        tables.append(frame[here].reset_index(drop=True))
    return tables


def _influence_sums(
    curve: Curve, weight: Floats, place: Whole, event: Whole, terms: Floats
) -> tuple[Floats, Floats]:
    """Σ v_i(t)² at each time (T,) and Σ v_i(t)·terms_i (T, q), for the influences v_i of patients.

    v_i(t) is how the incidence at t changes with the weight of patient i, times the weight. For
    those still at risk it is w_i·A(t), and for those who left at T_i it is w_i·(c_i + u_i·F(t)).
    """
    n_times, risk = len(curve.at_risk), curve.at_risk
    rest = _ratio(1.0, risk - curve.ended)
    hazard = _ratio(curve.events, risk)
    growth = np.cumsum(_ratio(curve.ended, risk) * rest)
    so_far = np.append(0.0, growth[:-1])
    ahead = np.cumsum(curve.before * (so_far * hazard - _ratio(hazard, risk)))
    u = growth[place] - (event > 0) * rest[place]
    share = curve.incidence
    own = (event == 1) * _ratio(curve.before, risk)[place]
    c = ahead[place] + own - u * share[place]

    def gone(values: Floats) -> Floats:
        return np.asarray(np.cumsum(np.bincount(place, values, n_times)))

    squared = weight**2
    of_risk = squared.sum() - gone(squared)
    squares = gone(squared * c**2) + 2 * share * gone(squared * c * u)
    squares += share**2 * gone(squared * u**2) + ahead**2 * of_risk
    cross = np.empty((n_times, terms.shape[1]))
    for column, term in enumerate(terms.T):
        both = weight * term
        cross[:, column] = (
            gone(both * c) + share * gone(both * u) + ahead * (both.sum() - gone(both))
        )
    return squares, cross


# --- Cox regression -------------------------------------------------------------------------


class Hazards(NamedTuple):
    """Log hazard ratios of the classes but the first, then of the covariates.

    `covariance` (p, p) is that of `estimate` (p,); `unused` events came where too few were at risk.
    """

    estimate: Floats
    covariance: Floats
    unused: int


class _Stratum:
    """The patients of a stratum, whose baseline hazard is their own."""

    def __init__(self, time: Floats, event: NDArray[np.bool_], rows: Whole) -> None:
        self.rows = rows
        times, self.place = np.unique(time[rows], return_inverse=True)
        self.n_times = len(times)
        self.event = event[rows]
        self.tied = np.bincount(self.place[self.event], minlength=self.n_times)
        self.at = np.repeat(np.arange(self.n_times), self.tied)  # the time of each event
        first = np.cumsum(self.tied) - self.tied
        order = np.arange(len(self.at)) - first[self.at]
        self.part = order / np.maximum(self.tied[self.at], 1)  # of the tied who are taken out

    def at_risk(self, values: Floats) -> Floats:
        """Sums over those at risk at each event."""
        sums = np.zeros((self.n_times, *values.shape[1:]))
        np.add.at(sums, self.place, values)
        return np.asarray(np.cumsum(sums[::-1], axis=0)[::-1][self.at])

    def efron(self, values: Floats) -> Floats:
        """The same, without a part of those who have the event at the same time."""
        tied = np.zeros((self.n_times, *values.shape[1:]))
        np.add.at(tied, self.place[self.event], values[self.event])
        part = self.part.reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(self.at_risk(values) - part * tied[self.at])


def class_hazards(
    time: Floats, event: NDArray[np.bool_], z: Floats, strata: Whole, members: Members
) -> Hazards:
    """Cox regression on classes and covariates z (n, q), with robust variances.

    A patient is at risk once in each class, with the weight for the class. Events with fewer than
    one effective patient at risk, which the noise of negative weights makes rare, are left out with
    all later ones of their stratum.
    """
    blocks = [_Stratum(time, event, np.flatnonzero(strata == s)) for s in np.unique(strata)]
    weights = members.weights(members.step.errors)
    beta = _newton(blocks, weights, z)
    score = _Score(blocks, weights, z, beta)
    slope = members.slopes(lambda at: _Score(blocks, members.weights(at), z, beta).total)
    terms = members.error_terms()
    influence = score.residuals() + terms @ slope.T
    spread = influence.T @ influence + slope @ members.error_spread() @ slope.T
    bread = np.linalg.inv(score.information)
    return Hazards(beta, bread @ spread @ bread.T, score.unused)


class _Score:
    """The score of the weighted partial likelihood at `beta`, and what belongs to it."""

    def __init__(self, blocks: list[_Stratum], weights: Floats, z: Floats, beta: Floats) -> None:
        k = weights.shape[1]
        self.blocks, self.case = blocks, weights.sum(axis=1)
        slopes = z @ beta[k - 1 :]
        each = weights * np.exp(np.append(0.0, beta[: k - 1]) + slopes[:, None])
        self.risk = each.sum(axis=1)
        self.first = np.hstack([each[:, 1:], z * self.risk[:, None]])
        # Σ_k w_k x_k of each patient, with the classes' indicators and z as x
        self.own = np.hstack([weights[:, 1:], z * self.case[:, None]])
        self.total = np.zeros(len(beta))
        self.information = np.zeros((len(beta), len(beta)))
        self.unused = 0
        self._parts = []
        for block in blocks:
            rows = block.rows
            risk, first = block.efron(self.risk[rows]), block.efron(self.first[rows])
            whole, noise = block.at_risk(self.risk[rows]), block.at_risk(self.risk[rows] ** 2)
            enough = (risk > 0) & (whole > 0) & (whole**2 >= (1 - 1e-9) * noise)
            used = np.cumprod(enough).astype(bool)
            used &= np.isin(block.at, block.at[~used], invert=True)  # tied events go together
            self.unused += int((~used).sum())
            self._parts.append(self._add(block, used, risk, first, each[rows], z[rows]))

    def _add(
        self,
        block: _Stratum,
        used: NDArray[np.bool_],
        risk: Floats,
        first: Floats,
        each: Floats,
        z: Floats,
    ) -> tuple[Floats, Floats, Floats]:
        """Adds a stratum; returns weights of its events, and 1 / S0 and S1 / S0 then."""
        rows, event = block.rows, block.event
        tied = np.bincount(block.place[event], self.case[rows][event], block.n_times)
        weight = np.where(used, (tied / np.maximum(block.tied, 1))[block.at], 0.0)
        inverse = np.where(used, _ratio(1.0, np.where(used, risk, 1.0)), 0.0)
        mean = first * inverse[:, None]
        counted = np.zeros(block.n_times, dtype=bool)
        counted[block.at[used]] = True
        happened = event & counted[block.place]
        self.total += self.own[rows][happened].sum(axis=0) - weight @ mean
        k = each.shape[1]
        second = np.zeros((len(rows), len(self.total), len(self.total)))
        classes = np.arange(k - 1)
        second[:, classes, classes] = each[:, 1:]
        second[:, : k - 1, k - 1 :] = each[:, 1:, None] * z[:, None, :]
        second[:, k - 1 :, : k - 1] = np.swapaxes(second[:, : k - 1, k - 1 :], 1, 2)
        second[:, k - 1 :, k - 1 :] = (
            each.sum(axis=1)[:, None, None] * z[:, :, None] * z[:, None, :]
        )
        squares = np.einsum("e,eab->ab", weight * inverse, block.efron(second))
        self.information += squares - (mean * weight[:, None]).T @ mean
        return weight, inverse, mean

    def residuals(self) -> Floats:
        """What each patient adds to the score, directly and through those at risk, (n, p)."""
        result = np.zeros_like(self.own)
        for block, (weight, inverse, mean) in zip(self.blocks, self._parts, strict=True):
            rows, place, event = block.rows, block.place, block.event

            def until(values: Floats, block: _Stratum = block) -> tuple[Floats, Floats]:
                """Sums up to each time, and those of each time."""
                sums = np.zeros((block.n_times, *values.shape[1:]))
                np.add.at(sums, block.at, values)
                return np.cumsum(sums, axis=0), sums

            level, level_parts = until(weight * inverse)[0], until(weight * inverse * block.part)[1]
            drift = until((weight * inverse)[:, None] * mean)[0]
            drift_parts = until((weight * inverse * block.part)[:, None] * mean)[1]
            tied = np.maximum(block.tied, 1)[:, None]
            average = until(np.where(weight > 0, 1.0, 0.0)[:, None] * mean)[1] / tied
            counted = np.bincount(block.at, weight > 0, block.n_times) > 0
            happened = (event & counted[place])[:, None]
            # of the tied a part is not at risk
            height = level[place] - event * level_parts[place]
            slope = drift[place] - event[:, None] * drift_parts[place]
            result[rows] = happened * (self.own[rows] - self.case[rows, None] * average[place])
            result[rows] -= self.first[rows] * height[:, None] - self.risk[rows, None] * slope
        return result


def _newton(blocks: list[_Stratum], weights: Floats, z: Floats) -> Floats:
    """The root of the score, each step shortened until the score falls."""
    beta = np.zeros(weights.shape[1] - 1 + z.shape[1])
    score = _Score(blocks, weights, z, beta)
    scale = 1 + np.abs(score.own).sum(axis=0).max(initial=0.0)
    for _ in range(_MOST_STEPS):
        width = np.sqrt(np.maximum(np.abs(np.diag(score.information)), 1e-300))
        flat = np.linalg.eigvalsh(score.information / np.outer(width, width)).min(initial=1.0)
        if flat < _FLAT or np.abs(beta).max(initial=0.0) > _FURTHEST:
            break
        if np.abs(score.total).max(initial=0.0) < 1e-13 * scale:
            return beta
        step, length = np.linalg.solve(score.information, score.total), 1.0
        while length > 1e-6:
            trial = _Score(blocks, weights, z, beta + length * step)
            if np.linalg.norm(trial.total) < np.linalg.norm(score.total):
                break
            length /= 2
        else:
            if np.abs(score.total).max() < 1e-8 * scale:  # as near as rounding lets it come
                return beta
            break
        beta, score = beta + length * step, trial
    raise InputError(
        "the Cox regression has no solution: a class or covariate without any event, covariates "
        "that determine each other, or classes that overlap too much for the number of events; "
        "leave a covariate out or use fewer classes."
    )


def warn_of_unused(unused: int, events: int) -> None:
    """Say how many events a regression did not use."""
    if unused:
        warnings.warn(
            f"the Cox regression leaves out the last {unused:,} of {events:,} events, when the "
            "corrected weights of those at risk are mostly noise.",
            ReportWarning,
            stacklevel=4,
        )
