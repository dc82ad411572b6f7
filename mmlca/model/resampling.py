"""The bootstrap: the same fit on resampled patients, many times.

Drawing n patients with replacement changes nothing but the weights of their patterns. Each
refit begins at the model's own classes, and at perturbations of them; its classes are paired with
the model's by the patients they share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from font.checks import whole_number
from font.errors import InputError
from font.probabilities import probabilities
from mmlca.model import em
from mmlca.model.covariates import Design, MembershipRun, Mixture, Rows
from mmlca.model.forms import need_no_step_covariates, state_shares
from mmlca.model.inference import (
    check_chains,
    check_level,
    group_names,
    join_names,
    named,
    parameter_names,
    parameter_values,
    point_at,
)
from mmlca.model.information import Point
from mmlca.model.params import AnyParams, AnySequences, Floats, Seed, forbidden_cells, in_states
from mmlca.model.search import Start, in_threads, reassigned
from mmlca.sequences.covariates import AnyCovariates
from mmlca.sequences.type import Labels

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

End = TypeVar("End", em.Run, MembershipRun)

STABLE, DISSOLVED = 0.75, 0.5  # Jaccard similarities of Hennig (2007)
_MAX_ITER, _TOL = 500, 1e-4  # of a refit; what is left of the log-likelihood is far below its noise
_TRY, _BEHIND = 20, 4.0  # updates of a perturbed start, and how far below the best it is given up
_SMOOTH = 0.1  # pseudo-steps that a start takes from all patients' chain, so that no cell is zero


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """What `bootstrap` gives.

    Parameters
    ----------
    intervals : DataFrame
        One row per number: `parameter` ("weight", "initial", "transition", "time in state" in
        windows of the longest sequence, "coefficient", "group weight"), `class`, `from`, `to`,
        `estimate`, `se`, `low`, `high`.
    stability : DataFrame
        One row per class: `patients` whose likeliest class it is, mean `jaccard` similarity to the
        class in the refits, and the shares of refits where it was `found_again` (similarity of at
        least 0.75) or `dissolved` (below 0.5).
    replicates : (n, number of rows of `intervals`)
        The numbers of each refit, classes paired with those of the model.
    n_failed : int
        Refits that lost a class and do not count.
    level : of the intervals
    """

    intervals: pd.DataFrame
    stability: pd.DataFrame
    replicates: Floats
    n_failed: int
    level: float

    def __repr__(self) -> str:
        worst = self.stability.loc[self.stability["jaccard"].idxmin()]
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        return (
            f"Bootstrap: {len(self.replicates):,} refits{failed}; least stable is class "
            f"{worst['class']:.0f}, found again in {worst['found_again']:.0%} of them"
        )


def bootstrap(
    model: MixtureMarkov,
    sequences: AnySequences,
    n: int = 500,
    seed: Seed = None,
    *,
    covariates: AnyCovariates | None = None,
    groups: Labels | None = None,
    n_fresh: int = 2,
    level: float = 0.95,
    n_jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Bootstrap:
    """Intervals and stability of classes from refits to resampled patients.

    Unlike standard errors, the bootstrap needs no normal approximation, gives limits on the
    boundary too, and shows whether a class is found again at all.

    Parameters
    ----------
    model : fitted MixtureMarkov
    sequences : those of the fit, with the same weights
    n : number of refits
    seed : int or Generator, optional
    covariates, groups : those of the fit, if there were any
    n_fresh : int
        Perturbed starts of each refit besides the one from the model's classes. They find maxima
        that the first start would miss; 0 is faster, and shows less instability than there is.
    level : of the intervals, which are percentiles of the refits
    n_jobs : threads; −1: one per processor. They do not change the result
    progress : called with the number of refits done and n

    Returns
    -------
    Bootstrap
        With the tables `intervals` and `stability`.

    Examples
    --------
    >>> from mmlca import MarkovParams, MixtureMarkov, simulate
    >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
    >>> sequences, _ = simulate(two, 300, 12, seed=1)
    >>> result = bootstrap(MixtureMarkov(2, seed=1).fit(sequences), sequences, 20, seed=1)
    >>> result.stability["found_again"].tolist()
    [1.0, 1.0]
    """
    check_is_fitted(model)
    whole_number(n, 2, "n")
    whole_number(n_fresh, 0, "n_fresh")
    check_level(level)
    check_chains(model, "bootstrap")
    need_no_step_covariates(model.params_, "bootstrap", "step_coefficients have errors")
    data = in_states(sequences, model.states_)
    point = point_at(model, model._patients_of(data, covariates, groups))
    design = model._design
    names = tuple(model.group_weights_.index)
    zeros = np.broadcast_to(forbidden_cells(model.zeros, data, model.form), point.cells.shape)
    if model.init is not None:
        zeros = zeros | (point.cells == 0)
    settings = em.Settings(float(model.prior), zeros[0] & False, _MAX_ITER, _TOL, True, 2)
    refits = _Refits(point, _group_alike(point), settings, zeros, n_fresh)
    ends = []
    rngs = np.random.default_rng(seed).spawn(n)
    for done, end in enumerate(in_threads(refits.draw, rngs, n_jobs), 1):
        if end is not None:
            ends.append(end)
        if progress is not None:
            progress(done, n)
    if len(ends) < 2:
        raise InputError(
            f"{n - len(ends)} of {n} refits lost a class, so too few are left to summarise; ask "
            "for fewer classes."
        )
    numbers = partial(
        _reported_numbers, point=point, design=design, n_groups=len(names), n_times=data.shape[1]
    )
    replicates = np.array([numbers(end.cells, end.coefficients) for end in ends])
    tail = (1 - level) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail], axis=0)
    intervals = _reported_names(model.params_, model.states_, design, names).assign(
        estimate=numbers(point.cells, point.coefficients),
        se=replicates.std(axis=0, ddof=1),
        low=low,
        high=high,
    )
    stability = _stability_table(point, np.array([end.jaccard for end in ends]))
    return Bootstrap(intervals, stability, replicates, n - len(ends), level)


class _Alike(NamedTuple):
    """Groups of patients who are alike in data and weight: their row, weight and number."""

    row: NDArray[np.intp]
    weight: Floats
    size: NDArray[np.int64]


def _group_alike(point: Point) -> _Alike:
    counted = point.rows.each > 0
    pairs = np.column_stack([point.rows.inverse, point.rows.each])[counted]
    distinct, count = np.unique(pairs, axis=0, return_counts=True)
    return _Alike(distinct[:, 0].astype(np.intp), distinct[:, 1], count)


class _End(NamedTuple):
    """A refit: cells (K, C), coefficients (P, K), and how like the model's its classes are."""

    cells: Floats
    coefficients: Floats
    jaccard: Floats


class _Refits(NamedTuple):
    """Fits to resampled patients, from the model's classes and `n_fresh` perturbations of them."""

    point: Point
    alike: _Alike
    settings: em.Settings
    zeros: NDArray[np.bool_]
    n_fresh: int

    def draw(self, rng: np.random.Generator) -> _End | None:
        """One replicate, its classes paired with those of the model; None if a class was lost."""
        point, alike = self.point, self.alike
        total = int(alike.size.sum())
        times = rng.multinomial(total, alike.size / total)
        drawn = np.bincount(alike.row, times * alike.weight, len(point.rows.weights)).astype(float)
        fresh = [reassigned(point.posterior, [0.15, 0.3], rng) for _ in range(self.n_fresh)]
        fit = self._fit_covariates if point.rows.design.shape[1] > 1 else self._fit_plain
        best = fit(point.rows._replace(weights=drawn), [point.posterior, *fresh])
        if best is None:
            return None
        cells, coefficients = best
        with np.errstate(invalid="ignore"):  # patients who were not drawn may be impossible now
            posterior = np.nan_to_num(softmax(point.rows.joint(cells, coefficients), axis=1))
        overlap = (point.posterior * point.rows.weights[:, None]).T @ posterior
        order = linear_sum_assignment(-overlap)[1]
        return _End(
            cells[order],
            coefficients[:, order] - coefficients[:, order[:1]],
            _jaccard(point, posterior[:, order]),
        )

    def _fit_plain(self, rows: Rows, starts: list[Floats]) -> tuple[Floats, Floats] | None:
        """Without covariates, where rows are patterns; chains and log-shares."""
        used = np.flatnonzero(rows.weights)
        patterns = rows.visits.patterns.take(used, rows.weights[used])

        def run(start: Start, n_try: int | None) -> em.Run:
            settings = self.settings
            short = settings._replace(max_iter=n_try, tol=0.0) if n_try else settings
            return em.run_em(patterns, *start, short, self.zeros)

        best = _best_end(run, [self._begin(rows, each) for each in starts])
        return None if best.failed else (best.cells, np.log(best.overall / best.overall[0])[None])

    def _fit_covariates(self, rows: Rows, starts: list[Floats]) -> tuple[Floats, Floats] | None:
        """With covariates; chains and coefficients."""
        used = np.flatnonzero(rows.weights)
        rows = rows._replace(
            pattern=rows.pattern[used], design=rows.design[used], weights=rows.weights[used]
        )
        mixture = Mixture(rows, self.settings, self.zeros)

        def run(start: Start, n_try: int | None) -> MembershipRun:
            limit = n_try or self.settings.max_iter
            return mixture.run(*start, limit, self.settings.tol, True)

        chains = [self._begin(rows, memberships[used])[0] for memberships in starts]
        best = _best_end(run, [(cells, self.point.coefficients) for cells in chains])
        lost = best.failed or ((best.posterior * rows.weights[:, None]).sum(axis=0) < 1e-6).any()
        return None if lost else best.end

    def _begin(self, rows: Rows, memberships: Floats) -> Start:
        """Chains and shares of given memberships, smoothed so that no cell is zero."""
        visits, model = rows.visits, self.point.cells
        weighted = rows.by_pattern(memberships)
        pooled = em.row_probabilities(weighted.sum(axis=1) @ visits.plain, visits.layout, 0.5)
        expected = visits.expected(model, weighted)
        cells = em.row_probabilities(expected, visits.layout, _SMOOTH * pooled)
        return cells, probabilities(weighted.sum(axis=0), _SMOOTH)


def _best_end(run: Callable[[Start, int | None], End], starts: list[Start]) -> End:
    """The best of the runs: that from the first start, and those from others that come near it."""
    best = run(starts[0], None)
    for start in starts[1:]:
        tried = run(start, _TRY)
        if tried.value > best.value - _BEHIND:
            best = max(best, run(tried.end, None), key=lambda end: end.value)
    return best


# --- what is reported ----------------------------------------------------------------------


def _reported_numbers(
    cells: Floats,
    coefficients: Floats,
    point: Point,
    design: Design,
    n_groups: int,
    n_times: int,
) -> Floats:
    """Probabilities, time in state and coefficients of a model, in the order of their names."""
    weights = point.rows.weights
    shares = softmax(point.rows.design @ coefficients, axis=1)
    params = em.params_of(cells, weights @ shares / weights.sum(), point.layout)
    parts = [parameter_values(params), time_in_state(params, n_times).ravel()]
    if design.variables:
        parts.append((design.back @ coefficients)[:, 1:].T.ravel())
    if n_groups:
        parts.append(softmax(coefficients, axis=1).ravel())  # a row of the design per group
    return np.concatenate(parts)


def _reported_names(
    params: AnyParams, states: tuple[str, ...], design: Design, groups: tuple[Any, ...]
) -> pd.DataFrame:
    k, s = params.n_classes, params.n_states
    each = np.arange(1, k + 1)
    parts = [
        parameter_names(params, states),
        named("time in state", np.repeat(each, s), "", list(states) * k),
    ]
    if design.variables and k > 1:
        columns = design.columns
        classes = np.repeat(each[1:], len(columns))
        parts.append(named("coefficient", classes, "", columns * (k - 1)))
    if groups:
        parts.append(group_names(groups, k))
    return join_names(parts)


def time_in_state(params: AnyParams, n_times: int) -> Floats:
    """Expected number of the first windows that a class spends in each state, (K, S)."""
    return np.asarray(state_shares(params, n_times).sum(axis=1))


def _jaccard(point: Point, posterior: Floats) -> Floats:
    """Similarity of each class's patients in the model and in a refit, |A ∩ B| / |A ∪ B|."""
    each = np.arange(posterior.shape[1])
    mine = point.posterior.argmax(axis=1)[:, None] == each
    theirs = posterior.argmax(axis=1)[:, None] == each
    both, either = (point.rows.weights @ x for x in (mine & theirs, mine | theirs))
    similarity: Floats = np.divide(both, either, out=np.zeros(len(each)), where=either > 0)
    return similarity


def _stability_table(point: Point, jaccard: Floats) -> pd.DataFrame:
    k = jaccard.shape[1]
    likeliest = point.posterior.argmax(axis=1)
    return pd.DataFrame(
        {
            "class": np.arange(1, k + 1),
            "patients": np.bincount(likeliest, point.rows.weights, k),
            "jaccard": jaccard.mean(axis=0),
            "found_again": (jaccard >= STABLE).mean(axis=0),
            "dissolved": (jaccard < DISSOLVED).mean(axis=0),
        }
    )
