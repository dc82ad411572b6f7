"""Sums over patients that a mixture of chains can be estimated from, and likelihoods by class.

The sums are a table (K, 1 + S + S²): for each class the patients, those who begin in each state,
and the steps from each state to each, in the order of `MarkovParams.class_parameters`. They add up
over sites, which is all that a federated refinement needs (`font.refine`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from font.probabilities import log_prior, probabilities
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


def sums_of_patients(data: Sequences, membership: Floats, params: MarkovParams) -> Floats:
    """The table for patients' memberships (n, K); patients count by their weight."""
    weighted = membership * data.weights[:, None]
    patterns = data.patterns
    by_pattern = np.empty((len(patterns), membership.shape[1]))
    for k, column in enumerate(weighted.T):
        by_pattern[:, k] = np.bincount(patterns.inverse, column, minlength=len(patterns))
    return sums_by_class(patterns, by_pattern, params)


def log_likelihoods(patterns: Patterns, params: MarkovParams) -> Floats:
    """Log-likelihood of each pattern in each class, (U, K); −inf where it is impossible."""
    return Visits(patterns).logliks(cells_of(params))


def log_penalty(params: MarkovParams, prior: float, zeros: Any) -> float:
    """What the prior adds to the log-likelihood for the chains."""
    return log_prior(cells_of(params), np.where(zeros, 0.0, prior))


def one_per_pattern(data: Sequences) -> Sequences:
    """One patient per transition pattern, with the summed weight of all who share it."""
    patterns = data.patterns
    first = np.empty(len(patterns), dtype=np.intp)
    first[patterns.inverse[::-1]] = np.arange(len(data))[::-1]
    return replace(data, account=None)[first].reweight(patterns.weights)
