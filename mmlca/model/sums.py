"""Sums over patients that a mixture of chains can be estimated from, and likelihoods by class.

The sums are a table (K, 1 + S + S²): for each class the patients, those who begin in each state,
and the steps from each state to each, in the order of `MarkovParams.class_parameters`. They add up
over sites, which is all that a federated refinement needs (`font.refine`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from font.checks import check_sums, memberships
from font.probabilities import log_prior, probabilities
from mmlca.model.checks import AnySequences
from mmlca.model.em import cells_of
from mmlca.model.expected import Visits
from mmlca.model.params import MarkovParams
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]


def sums_by_class(patterns: Patterns, membership: Floats, params: MarkovParams) -> Floats:
    """The table (K, 1 + S + S²) for patterns' memberships (U, K), weights already included.

    Steps inside gaps of missing times count where class k of `params` expects them; if `params`
    has one class, its chain stands for all.
    """
    n_classes, s = membership.shape[1], patterns.n_states
    cells = np.broadcast_to(cells_of(params), (n_classes, s * (s + 1)))
    filled = Visits(patterns).expected(cells, membership)
    return np.hstack([membership.sum(axis=0)[:, None], filled[:, s * s :], filled[:, : s * s]])


def params_from_sums(total: Floats, n_states: int, prior: float, zeros: Any) -> MarkovParams:
    """Parameters (K classes) from the sums of all patients: the M-step of EM.

    `prior` is the pseudo-count of every class and of every cell that `zeros` (S·(S + 1),) allows.
    """
    s = n_states
    allowed = ~np.asarray(zeros).reshape(s + 1, s)
    return MarkovParams(
        probabilities(total[:, 0], prior),
        probabilities(total[:, 1 : 1 + s], prior, allowed[s]),
        probabilities(total[:, 1 + s :].reshape(-1, s, s), prior, allowed[:s]),
    )


def log_likelihoods(patterns: Patterns, params: MarkovParams) -> Floats:
    """Log-likelihood of each pattern in each class, (U, K); −inf where it is impossible."""
    return Visits(patterns).logliks(cells_of(params))


def log_penalty(params: MarkovParams, prior: float, zeros: Any) -> float:
    """What the prior adds to the log-likelihood for the chains."""
    return log_prior(cells_of(params), np.where(zeros, 0.0, prior))


def one_per_pattern(data: Sequences) -> Sequences:
    """A patient for each transition pattern, weighing as much as all who share it."""
    patterns = data.patterns
    first = np.empty(len(patterns), dtype=np.intp)
    first[patterns.inverse[::-1]] = np.arange(len(data))[::-1]
    return replace(data, account=None)[first].reweight(patterns.weights)


class SumsOverPatients:
    """The estimator's part that `font.refine` calls: sums by class, and models made of them."""

    params_: MarkovParams
    states_: tuple[str, ...]
    n_sequences_: float
    prior: float
    get_params: Callable[[], dict[str, Any]]
    _forbidden: NDArray[np.bool_]
    _conform: Callable[[AnySequences], Sequences]
    _zero_cells: Callable[[], NDArray[np.bool_]]
    _set_params_: Callable[[MarkovParams, tuple[str, ...]], None]

    @property
    def proportions_prior(self) -> float:
        """The pseudo-count of each class in class proportions: `prior`."""
        return float(self.prior)

    def statistics(self, sequences: AnySequences, membership: ArrayLike) -> NDArray[np.float64]:
        """Sums by class from which chains are estimated, (K, 1 + S + S²).

        For each class the patients, those who begin in each state, and the steps from each state to
        each; patients count by their weight. They add up over sites.

        Parameters
        ----------
        sequences
        membership : (n, K)
            Each patient's class probabilities. Steps inside gaps of missing times count where this
            model's class k expects them, so that it has K classes, or one for all.
        """
        data = self._conform(sequences)
        table = memberships(membership, len(data), self.params_.n_classes)
        weighted = table * data.weights[:, None]
        patterns = data.patterns
        by_pattern = np.empty((len(patterns), table.shape[1]))
        for k, column in enumerate(weighted.T):
            by_pattern[:, k] = np.bincount(patterns.inverse, column, minlength=len(patterns))
        return sums_by_class(patterns, by_pattern, self.params_)

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all patients give, as many classes as rows; see `statistics`.

        It has this model's states and settings; `prior` and impossible steps among them. Its class
        proportions are those of all patients together.
        """
        check_is_fitted(self)
        s = len(self.states_)
        table = check_sums(total, 1 + s + s * s, counts=True)
        params = params_from_sums(table, s, float(self.prior), self._zero_cells())
        settings = self.get_params() | {"n_classes": len(table), "init": None}
        model = type(self)(**settings)
        model._set_params_(params, self.states_)
        model._forbidden = self._zero_cells()
        model.n_sequences_ = float(table[:, 0].sum())
        return model

    def log_likelihoods(self, sequences: AnySequences) -> NDArray[np.float64]:
        """Log-likelihood of each sequence in each class, (n, K), whatever the proportions."""
        data = self._conform(sequences)
        return log_likelihoods(data.patterns, self.params_)[data.patterns.inverse]

    def log_penalty(self) -> float:
        """What the prior adds to the log-likelihood for the chains, without the proportions."""
        check_is_fitted(self)
        return log_penalty(self.params_, float(self.prior), self._zero_cells())

    def distinct(self, sequences: AnySequences) -> Sequences:
        """A patient for each transition pattern, weighing as much as all who share it."""
        return one_per_pattern(self._conform(sequences))
