"""What the uncertainty of a model does to memberships: draws from its posterior distribution.

A fitted model has adapted to its patients and takes them for clearer than they are. Memberships
averaged over all models that may have given the data do not have this fault. Such models are drawn
by data augmentation (Gibbs sampling): each patient is drawn a class, each gap a way through it, and
then the parameters are drawn from their Dirichlet distributions given those.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from font.probabilities import probabilities
from mmlca.model import em
from mmlca.model.forms import need_no_step_covariates
from mmlca.model.params import AnyParams, Floats, Seed
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Sequences

_BURN_IN, _DRAWS = 200, 2_000
_PRIOR = 1.0  # patients of each class, and at most of each cell of its chain, before the data
_OF_ROW = 3.0  # and at most of each row: with many states they would outweigh small classes


class FirstStep(NamedTuple):
    """Memberships and classification errors over the posterior distribution of a model.

    `posterior` (n, K) is the average of the memberships; `tables` (draws, K, K) are the shares of
    the patients who are of class k and assigned to class l.
    """

    posterior: Floats
    tables: Floats


def draw_first_step(
    params: AnyParams,
    data: Sequences,
    assigned: Floats,
    case: Floats,
    seed: Seed,
    among: NDArray[np.bool_] | None = None,
) -> FirstStep:
    """Draws of the memberships given assignments (n, K) and case weights (n,).

    The tables are of the patients `among` (n,), default all; the classes may be in other
    proportions among these than among the others, who inform the chains as well. Weights count as
    their effective number of patients, (Σw)² / Σw². Before the data, proportions and rows of the
    chains have Dirichlet distributions with the parameter 1 (all are equally likely), or less in
    rows of more than three cells, whose parameters add up to 3. What nobody did stays impossible.
    """
    need_no_step_covariates(
        params, "correction for errors of this first step", "give its predict_proba(sequences)"
    )
    if among is None:
        among = np.ones(len(data), dtype=bool)
    effective = case * (case.sum() / (case**2).sum())
    patterns = data.patterns_of(params.form).by_group((~among).astype(np.intp), 2, effective)
    given = em.sum_by_pattern(patterns.inverse, assigned * (case * among)[:, None], len(patterns))
    given /= given.sum()
    chain = _Gibbs(patterns, params, seed)
    k = params.n_classes
    mean, tables = np.zeros((len(patterns), k)), np.empty((_DRAWS, k, k))
    for number in range(-_BURN_IN, _DRAWS):
        members = chain.step()
        if number >= 0:
            table = members.T @ given
            order = linear_sum_assignment(-table.T)[1]  # classes may have changed places
            tables[number] = table[order]
            mean += members[:, order] / _DRAWS
    return FirstStep(mean[patterns.inverse], tables)


class _Gibbs:
    """The chain of draws, for patterns of two groups with their own proportions."""

    def __init__(self, patterns: Patterns, params: AnyParams, seed: Seed) -> None:
        self.patterns, self.params = patterns, params
        self.shares = np.tile(params.weights, (2, 1))
        self.visits, self.layout = em.Visits(patterns), patterns.layout
        self.rng = np.random.default_rng(seed)
        seen = self.visits.expected(em.cells_of(params)[:1], patterns.weights[:, None])[0] > 0
        cells = self.layout.sums(seen.astype(float))[self.layout.row]
        self.prior: Floats = np.where(seen, np.minimum(_PRIOR, _OF_ROW / np.maximum(cells, 1)), 0.0)

    def step(self) -> Floats:
        """The memberships (U, K) under the present model; then the next one is drawn."""
        weights = self.patterns.weights
        members = em.e_step(self.patterns, self.params, self.shares).posterior
        members = np.where(weights[:, None] > 0, members, 1.0)  # the others may be impossible
        members /= members.sum(axis=1, keepdims=True)
        whole = np.floor(weights + self.rng.random(len(weights))).astype(
            np.int64
        )  # right on average
        drawn = self.rng.multinomial(whole, members).astype(float)
        counts = (self.visits.plain.T @ drawn).T
        if len(self.visits.gaps):
            counts = counts + self._through_gaps((self.visits.over.T @ drawn).T)
        cells = self.rng.standard_gamma(counts + self.prior)
        cells = em.row_probabilities(cells, self.layout)
        first = int(np.asarray(self.patterns.starts)[1])
        of_group = [drawn[:first].sum(axis=0), drawn[first:].sum(axis=0)]
        self.shares = probabilities(self.rng.standard_gamma(np.array(of_group) + _PRIOR))
        self.params = em.params_of(cells, self.shares[0], self.layout)
        return members

    def _through_gaps(self, passed: Floats) -> Floats:
        """Visits (K, C) on ways through gaps that are drawn at random; `passed` is (K, G)."""
        rows = em.rows_of(em.cells_of(self.params), self.visits.n_states)
        k, s = len(rows), self.visits.n_states
        gaps, powers = self.visits.gaps, [np.broadcast_to(np.eye(s), (k, s, s))]
        for _ in range(gaps.longest):
            powers.append(powers[-1] @ rows[:, :-1])
        visits = np.zeros((k, s + 1, s))
        waiting = np.zeros((k, s + 1, s), dtype=np.int64)  # class, state before, state after
        for length in range(gaps.longest, 0, -1):
            here, before, after = gaps.of_length[length]
            waiting[:, before, after] += np.rint(passed[:, here]).astype(np.int64)
            # class, before, after, next: rows[before, next] · T^length[next, after]
            chance = rows[:, :, None, :] * np.swapaxes(powers[length], 1, 2)[:, None]
            moved = self.rng.multinomial(waiting, probabilities(chance))
            visits += moved.sum(axis=2)
            waiting = np.zeros_like(waiting)
            waiting[:, :-1] = np.swapaxes(moved.sum(axis=1), 1, 2)  # class, next, after
        visits += waiting  # the last step of each way
        return visits.reshape(k, -1)
