"""From counts to probabilities: the M-step of every mixture, with one meaning of *prior*, and EM.

A prior is a pseudo-count: this many imaginary patients (visits, answers) are added to each cell of
a row of counts before the row is divided by its sum. It is the mode of a Dirichlet posterior, with
the parameter prior + 1 in each cell; 0 is maximum likelihood. The kernels of EM have the same rule
as a compiled loop (`mmlca/model/_kernels.py`, `_m_step`), and a test compares the two.

The priors below are the defaults, each for its use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
State = TypeVar("State")

# Fits whose probabilities are reported: too small to matter, but what nobody did stays possible.
PRIOR_OF_FITS = 1e-4
# Models that a site sends to others, with up to six states: half a patient in each cell of a chain
# and in each class, so that the classes of small sites do not rest on a few patients' steps.
PRIOR_OF_SENT_FITS = 0.5
# Rounded first states and steps of chains, which receivers turn into probabilities: a whole
# patient, since a count that was rounded to 0 need not be 0 (`mmlca.federation.markov_kind`).
PRIOR_OF_ROUNDED_STEPS = 1.0
# Rounded answers of latent class models: half a patient, as items have few categories.
PRIOR_OF_ROUNDED_ANSWERS = 0.5
# Chains of the patients assigned to a cluster, from which EM starts: no step is impossible.
PRIOR_OF_ASSIGNED = 1e-2
# Items of `LatentClass`: a tenth of an answer for each item, so that each of its J categories gets
# 0.1 / J. This is the only prior that is divided among cells.
PRIOR_OF_ITEMS = 0.1
# Memberships of which some clusters were left out: no patient is left without a cluster.
PRIOR_OF_MEMBERSHIPS = 1e-12


def probabilities(
    counts: ArrayLike, prior: Floats | float = 0.0, allowed: Any = None, sizes: Any = None
) -> Floats:
    """Rows of counts (…, J) as probabilities: p_j = (n_j + prior_j) / Σ (n_j + prior_j).

    A row of zeros is even over its cells. Cells that are not `allowed` are 0. Where several rows
    stand side by side in the last axis, `sizes` has the length of each.

    >>> probabilities([[3, 0, 1], [0, 0, 0]], 1.0).round(2).tolist()
    [[0.57, 0.14, 0.29], [0.33, 0.33, 0.33]]
    >>> probabilities([3, 1, 0, 2], allowed=[True, True, False, True], sizes=[2, 2]).tolist()
    [0.75, 0.25, 0.0, 1.0]
    """
    rows: Floats = np.asarray(counts, dtype=float) + prior
    if allowed is not None:
        rows = np.where(allowed, rows, 0.0)
    totals = _row_sums(rows, sizes)
    if (totals > 0).all():
        return np.asarray(rows / totals)
    may = np.ones(rows.shape) if allowed is None else np.broadcast_to(allowed, rows.shape) * 1.0
    even = may / np.maximum(_row_sums(may, sizes), 1)
    return np.divide(rows, totals, out=even, where=totals > 0)


def posterior(joint: Floats) -> tuple[Floats, Floats]:
    """Memberships (n, K) and log-likelihoods (n,) from log p_k + log density, (n, K)."""
    top = joint.max(axis=1, keepdims=True)
    shares = np.exp(joint - top)
    sums = shares.sum(axis=1, keepdims=True)
    return shares / sums, (top + np.log(sums))[:, 0]


def log_prior(p: Floats, prior: Floats | float) -> float:
    """What the prior adds to a log-likelihood: Σ prior · log p over cells with a positive prior."""
    pseudo = np.broadcast_to(np.asarray(prior, dtype=float), p.shape)
    return float((pseudo * np.log(np.where(pseudo > 0, p, 1.0))).sum())


def climb(
    update: Callable[[State], tuple[State, float]],
    state: State,
    max_iter: int,
    *,
    tol: float = 0.0,
    rtol: float = 0.0,
) -> tuple[State, float, bool]:
    """The loop of EM: updates until the value rises by less than tol + rtol·|value|.

    `update` gives the next state and the value that goes with the update. Returned are the last
    state and value, and whether the value settled within `max_iter` updates.
    """
    value = -np.inf
    for _ in range(max_iter):
        before = value
        state, value = update(state)
        if value - before < tol + rtol * abs(value):
            return state, value, True
    return state, value, False


def _row_sums(cells: Floats, sizes: Any) -> Floats:
    """Each cell's row's sum, to divide by."""
    if sizes is None:
        return np.asarray(cells.sum(axis=-1, keepdims=True))
    begins = np.append(0, np.cumsum(sizes)[:-1])
    return np.repeat(np.add.reduceat(cells, begins, axis=-1), sizes, axis=-1)
