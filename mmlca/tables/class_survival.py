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
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import case_weights, some
from font.errors import InputError, ReportWarning
from mmlca.model.inference import OVERLAP, clarity
from mmlca.model.outcomes import model_and_data, overlap_text, read_assignment, read_posterior
from mmlca.model.params import Seed
from mmlca.model.posterior import draw_first_step
from mmlca.model.third_step import Step, check_separated, errors_of
from mmlca.sequences.type import Sequences

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]

_STEP = 1e-5
_CLEARLY = 2.0
_FLAT = 1e-7  # scaled curvature below which a regression has no finite solution
_MOST_STEPS, _FURTHEST = 100, 25.0
_MOST_UPDATES = 10_000


class Memberships(NamedTuple):
    """Memberships p (n, K) of the classes `names`, with case weights (n,), and of whom they are.

    `label` is the class assigned, by id or in the order of the times; `row` (times,) is where each
    patient with a time is among the n (−1: nowhere). `model` and `data` are given if the model is
    known.
    """

    p: Floats
    case: Floats
    names: list[Hashable]
    label: pd.Series
    row: Whole
    model: MixtureMarkov | None
    data: Sequences | None

    def among(self, rows: Whole, assigned: Floats, seed: Seed) -> Members:
        """Those in some rows, with the classes that they are assigned to."""
        here = np.zeros(len(self.p), dtype=bool)
        here[rows] = True
        if self.model is not None and self.data is not None:
            given = np.zeros_like(self.p)
            given[rows] = assigned
            first = draw_first_step(
                self.model.params_, self.data, given, self.case, seed, among=here
            )
            p, tables = first.posterior, first.tables
        else:
            p, tables = proportions_among(self.p, self.case, here), None
        case = self.case[rows]
        found = Members(Step(p[rows], assigned, case, case, "BCH"), tables)
        check_separated(found.step.errors)
        first_time = np.zeros(len(rows), dtype=np.intp)
        weights = found.weights(found.step.errors).T
        lost = [
            name
            for name, weight in zip(self.names, weights, strict=True)
            if weight.sum() <= 0 or not followed(weight, first_time, 1).all()
        ]
        if lost:
            raise InputError(
                f"class {some(lost)} cannot be told from nobody after the landmark: the patients "
                "assigned to it may all be of other classes; use fewer classes, or no posterior."
            )
        return found


def read_memberships(posterior: Any, sequences: Any, clusters: Any, time: Any) -> Memberships:
    """Memberships, checked, and matched with the times of an event by id or in order."""
    model, data = model_and_data(posterior, sequences)
    weights = None
    if model is not None and data is not None:
        classes = range(1, model.params_.n_classes + 1)
        posterior = pd.DataFrame(model.predict_proba(data), data.ids, classes)
        weights = data.weights
    p, names, index = read_posterior(posterior)
    case = case_weights(weights, len(p))
    case = case / (case.max() or 1.0)
    assigned = read_assignment("modal" if clusters is None else clusters, p, names, index)
    label = pd.Categorical.from_codes(assigned.argmax(axis=1), categories=pd.Index(names))
    own = time.index if isinstance(time, pd.Series) else None
    if own is not None and index is not None:
        row = index.get_indexer(own)
        if (row < 0).all():
            raise InputError(
                f"time has no id in common with posterior ({some(own)} against {some(index)}); "
                "index both by the patients' ids."
            )
        labels = pd.Series(label, index)
    elif (n := len(np.asarray(time))) != len(p):
        raise InputError(
            f"found {n:,} times for {len(p):,} patients of posterior; give one for each, or index "
            "both by the patients' ids."
        )
    else:
        row, labels = np.arange(len(p)), pd.Series(label, own)
    if model is None and (entropy := clarity(p, case)) < OVERLAP:
        warnings.warn(overlap_text(entropy), ReportWarning, stacklevel=3)
    return Memberships(p, case, names, labels, row, model, data)


def proportions_among(p: Floats, case: Floats, among: NDArray[np.bool_]) -> Floats:
    """Memberships if the classes are in other proportions among some patients, by EM."""
    before = np.average(p, axis=0, weights=case)
    each = p / np.where(before > 0, before, 1.0)
    share, mine, weight = before, each[among], case[among]
    for _ in range(_MOST_UPDATES):
        members = mine * share
        members /= members.sum(axis=1, keepdims=True)
        last, share = share, np.average(members, axis=0, weights=weight)
        if np.abs(share - last).max() < 1e-10:
            break
    whole = each * share
    return np.asarray(whole / whole.sum(axis=1, keepdims=True))


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


def followed(weight: Floats, place: Whole, n_times: int) -> NDArray[np.bool_]:
    """Whether a class can be told from nobody at each time, and at all before.

    Wrong assignments leave noise in the sum of the weights of those at risk, with a variance that
    Σ (w² − w) estimates. The sum has to be at least twice as large as the square root.
    """
    sums = [np.bincount(place, part, n_times)[::-1] for part in (weight, weight**2)]
    at_risk, squared = (np.cumsum(part)[::-1] for part in sums)
    noise = np.sqrt(np.maximum(squared - at_risk, 0.0))
    known = (at_risk >= _CLEARLY * noise) & (at_risk > -1e-9)
    return np.asarray(np.cumprod(known), dtype=bool)


def class_curves(time: Floats, event: Whole, members: Members) -> list[pd.DataFrame]:
    """The curve of each class: `time`, `at_risk`, `effective`, `events`, `left`, `survival`, `se`.

    `at_risk`, `events` and `left` are sums of weights. `effective` is the number of patients who
    would be as informative if their class were known, (Σw)² / Σw² of those at risk. The curve ends
    where the class can no longer be told from nobody, see `followed`. Survival is kept between 0
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
        squared = np.cumsum(np.bincount(place, weight**2, len(times))[::-1])[::-1]
        effective = _ratio(curve.at_risk**2, squared.astype(float))
        here = np.bincount(place, np.abs(weight), len(times)) > 0
        here &= followed(weight, place, len(times))
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

    `covariance` (p, p) is that of `estimate` (p,).
    """

    estimate: Floats
    covariance: Floats


def class_hazards(
    time: Floats, event: NDArray[np.bool_], z: Floats, strata: Whole, members: Members
) -> Hazards:
    """Cox regression on classes and covariates z (n, q), with robust variances.

    A patient is at risk once in each class, with the weight for the class, as long as the class is
    `followed` in the stratum.
    """
    weights = members.weights(members.step.errors)
    parts = [np.flatnonzero(strata == s) for s in np.unique(strata)]
    blocks = [_Stratum(time, event, z, rows, weights) for rows in parts]
    beta = _newton(blocks, weights)
    slope = members.slopes(lambda at: _score(blocks, members.weights(at), beta)[0])
    residuals = np.zeros((len(time), len(beta)))
    for block in blocks:
        residuals[block.rows] = block.residuals(weights, beta)
    influence = residuals + members.error_terms() @ slope.T
    spread = influence.T @ influence + slope @ members.error_spread() @ slope.T
    bread = np.linalg.inv(_score(blocks, weights, beta)[1])
    return Hazards(beta, bread @ spread @ bread.T)


class _Events(NamedTuple):
    """For each event in a stratum: its weight, and S0, S1 and S2 of those at risk."""

    weight: Floats
    risk: Floats
    first: Floats
    second: Floats


class _Stratum:
    """Patients with a baseline hazard of their own: n rows of K classes each, flat.

    `rows` (n,) are the numbers of the patients, `x` (n·K, p) the indicators of the classes but the
    first and the covariates, `place` (n·K,) the number of the time until when the patient is at
    risk in the class, and `event` (n·K,) whether the event happened then.
    """

    def __init__(
        self, time: Floats, event: NDArray[np.bool_], z: Floats, rows: Whole, weights: Floats
    ) -> None:
        times, place = np.unique(time[rows], return_inverse=True)
        n, k, self.n_times = len(rows), weights.shape[1], len(times)
        self.rows = rows
        ends = np.array([followed(w, place, self.n_times).sum() - 1 for w in weights[rows].T])
        here = place[:, None] <= ends
        self.at_all = np.broadcast_to(ends >= 0, (n, k)).ravel()
        self.place = np.clip(np.minimum(place[:, None], ends), 0, None).ravel()
        dummies = np.broadcast_to(np.eye(k)[:, 1:], (n, k, k - 1)).reshape(n * k, -1)
        self.x: Floats = np.hstack([dummies, np.repeat(z[rows], k, axis=0)])
        happened = event[rows] & here.any(axis=1)
        self.event = (happened[:, None] & here).ravel()
        self._tie(place[happened])
        # without a sum above 0 of those at risk there is nobody to compare with
        risk = self.efron(self._weight(weights)) > 0
        alone = np.bincount(self.at[~risk], minlength=self.n_times) > 0
        self.event &= ~alone[self.place]
        self._tie(place[happened & ~alone[place]])

    def _tie(self, places: Whole) -> None:
        """Numbers the events: the time `at` of each, and the `part` of those tied taken out."""
        self.tied = np.bincount(places, minlength=self.n_times)
        self.at = np.repeat(np.arange(self.n_times), self.tied)
        order = np.arange(len(self.at)) - (np.cumsum(self.tied) - self.tied)[self.at]
        self.part = order / np.maximum(self.tied[self.at], 1)

    def _weight(self, weights: Floats) -> Floats:
        return np.where(self.at_all, weights[self.rows].ravel(), 0.0)

    def _sums(self, place: Whole, values: Floats) -> Floats:
        sums = np.zeros((self.n_times, *values.shape[1:]))
        np.add.at(sums, place, values)
        return sums

    def efron(self, values: Floats) -> Floats:
        """Sums over those at risk at each event, less a part of those with the event then."""
        whole = np.cumsum(self._sums(self.place, values)[::-1], axis=0)[::-1][self.at]
        tied = self._sums(self.place[self.event], values[self.event])[self.at]
        return np.asarray(whole - self.part.reshape(-1, *[1] * (values.ndim - 1)) * tied)

    def events(self, weights: Floats, beta: Floats) -> _Events:
        """What the score needs of each event."""
        weight = self._weight(weights)
        risk = weight * np.exp(self.x @ beta)
        first = risk[:, None] * self.x
        second = first[:, :, None] * self.x[:, None, :]
        tied = self._sums(self.place[self.event], weight[self.event])
        each = (tied / np.maximum(self.tied, 1))[self.at]
        return _Events(each, self.efron(risk), self.efron(first), self.efron(second))

    def score(self, weights: Floats, beta: Floats) -> tuple[Floats, Floats]:
        """The score of the weighted partial likelihood, and the information."""
        weight = self._weight(weights)
        own = weight[self.event] @ self.x[self.event]
        each, risk, first, second = self.events(weights, beta)
        if not (risk > 0).all():
            return np.full(len(beta), np.inf), np.zeros((len(beta), len(beta)))
        mean = first / risk[:, None]
        information = np.einsum("e,eab->ab", each / risk, second) - (mean.T * each) @ mean
        return own - each @ mean, information

    def residuals(self, weights: Floats, beta: Floats) -> Floats:
        """What each patient adds to the score, directly and through those at risk, (n, p)."""
        weight, place = self._weight(weights), self.place
        each, risk, first, _ = self.events(weights, beta)
        mean, rate = first / risk[:, None], each / risk
        drift = rate[:, None] * mean
        average = self._sums(self.at, mean) / np.maximum(self.tied, 1)[:, None]
        # those with the event are at risk then but for a part
        height = np.cumsum(self._sums(self.at, rate))[place]
        height -= self.event * self._sums(self.at, rate * self.part)[place]
        slope = np.cumsum(self._sums(self.at, drift), axis=0)[place]
        slope -= self.event[:, None] * self._sums(self.at, drift * self.part[:, None])[place]
        through = (weight * np.exp(self.x @ beta))[:, None] * (height[:, None] * self.x - slope)
        own = (weight * self.event)[:, None] * (self.x - average[place])
        return np.asarray((own - through).reshape(len(self.rows), -1, len(beta)).sum(axis=1))


def _score(blocks: list[_Stratum], weights: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """The sums of the strata."""
    scores, informations = zip(*(block.score(weights, beta) for block in blocks), strict=True)
    return np.sum(scores, axis=0), np.sum(informations, axis=0)


def _newton(blocks: list[_Stratum], weights: Floats) -> Floats:
    """The root of the score, each step shortened until the score falls."""
    beta = np.zeros(blocks[0].x.shape[1])
    score, information = _score(blocks, weights, beta)
    scale = 1.0 + sum(np.abs(block.x[block.event]).sum(axis=0).max(initial=0.0) for block in blocks)
    for _ in range(_MOST_STEPS):
        width = np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
        flat = np.linalg.eigvalsh(information / np.outer(width, width)).min(initial=1.0)
        if flat < _FLAT or np.abs(beta).max(initial=0.0) > _FURTHEST:
            break
        if np.abs(score).max(initial=0.0) < 1e-13 * scale:
            return beta
        step, length = np.linalg.solve(information, score), 1.0
        while length > 1e-6:
            trial, there = _score(blocks, weights, beta + length * step)
            if np.linalg.norm(trial) < np.linalg.norm(score):
                break
            length /= 2
        else:
            if np.abs(score).max() < 1e-8 * scale:  # as near as rounding lets it come
                return beta
            break
        beta, score, information = beta + length * step, trial, there
    raise InputError(
        "the Cox regression has no solution: a class or covariate without any event, covariates "
        "that determine each other, or classes that overlap too much for the number of events; "
        "leave a covariate out or use fewer classes."
    )
