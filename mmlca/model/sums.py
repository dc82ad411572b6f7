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

from mmlca.model.em import cells_of, fill_gaps, gap_logs
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
    visits = np.ascontiguousarray((patterns.token_counts.T @ membership).T)
    filled = fill_gaps(patterns, cells, visits)
    return np.hstack([membership.sum(axis=0)[:, None], filled[:, s * s :], filled[:, : s * s]])


def params_from_sums(total: Floats, n_states: int, prior: float, zeros: Any) -> MarkovParams:
    """Parameters (K classes) from the sums of all patients, as an M-step makes them.

    `prior` is added to every cell that `zeros` (S·(S + 1),) does not forbid, and to every class. A
    row of cells without any count becomes even over its open cells.
    """
    s, k = n_states, len(total)
    open_cells = ~np.asarray(zeros).reshape(s + 1, s)
    first, steps = total[:, 1 : 1 + s], total[:, 1 + s :].reshape(k, s, s)
    rows = np.concatenate([steps, first[:, None]], axis=1)
    rows = np.where(open_cells, rows + prior, 0.0)
    sums = rows.sum(axis=-1, keepdims=True)
    even = open_cells / open_cells.sum(axis=-1, keepdims=True)
    rows = np.divide(rows, sums, out=np.broadcast_to(even, rows.shape).copy(), where=sums > 0)
    shares = total[:, 0] + prior
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(k, 1 / k)
    return MarkovParams(shares, rows[:, s], rows[:, :s])


def log_likelihoods(patterns: Patterns, params: MarkovParams) -> Floats:
    """Log-likelihood of each pattern in each class, (U, K); −inf where it is impossible."""
    logs = np.ascontiguousarray(gap_logs(patterns, cells_of(params)).T)
    table: Floats = patterns.token_counts @ logs
    return table


def log_penalty(params: MarkovParams, prior: float, zeros: Any) -> float:
    """What the prior adds to the log-likelihood for the chains: Σ prior · log of each open cell."""
    if prior == 0:
        return 0.0
    cells = cells_of(params)[:, ~np.asarray(zeros)]
    return float(prior * np.log(cells).sum())


def one_per_pattern(data: Sequences) -> Sequences:
    """A patient for each transition pattern, weighing as much as all who share it."""
    patterns = data.patterns
    first = np.empty(len(patterns), dtype=np.intp)
    first[patterns.inverse[::-1]] = np.arange(len(data))[::-1]
    return replace(data, account=None)[first].reweight(patterns.weights)
