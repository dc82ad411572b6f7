"""Log-likelihoods and expected visits of cells, pattern by pattern.

The kernels of EM sum over patterns as they go. Inference needs the same numbers for each pattern
(the score of a pattern is its visits less what its class expects), and covariates need them before
the classes' shares are known. A cell is a step or a beginning, as in
`mmlca.sequences.patterns.Patterns`; a class is a row of C = S·(S + 1) cells.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from font.probabilities import log_prior, probabilities
from mmlca.model.em import cells_of
from mmlca.model.params import Floats, MarkovParams
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Sequences

_TINY = 1e-200  # chances below this count as none: nothing can be divided by them


class Gaps:
    """Distinct gaps (G, 3): state before (S: none), unobserved times, state after; by length."""

    def __init__(self, table: NDArray[np.int64]) -> None:
        self.before, self.length, self.after = table.T
        self.longest = int(self.length.max(initial=0))
        numbers = [np.flatnonzero(self.length == n) for n in range(self.longest + 1)]
        self.of_length = [(here, self.before[here], self.after[here]) for here in numbers]

    def __len__(self) -> int:
        return len(self.length)


class Visits:
    """How often each of U patterns visits each cell (`plain`) and passes each gap (`over`)."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        self.n_states = patterns.n_states
        self.n_cells = patterns.n_cells
        self.gaps = Gaps(patterns.gaps)
        self._all = patterns.token_counts
        self.plain, self.over = self._all[:, : self.n_cells], self._all[:, self.n_cells :]

    def rows(self, cells: NDArray[Any]) -> NDArray[Any]:
        """Cells (…, C) as rows of states (…, S + 1, S); the last row is the beginning."""
        return cells.reshape(*cells.shape[:-1], self.n_states + 1, self.n_states)

    def logliks(self, cells: Floats) -> Floats:
        """Log-likelihood of each pattern in each class, (U, K), from cells (K, C)."""
        if len(self.gaps):
            cells = np.hstack([cells, gap_chances(self.gaps, self.rows(cells))])
        with np.errstate(divide="ignore"):
            logs: Floats = self._all @ np.log(cells).T
        return logs

    def expected(self, cells: Floats, memberships: Floats) -> Floats:
        """Expected visits of the cells of each class, (K, C), given weighted memberships (U, K)."""
        visits: Floats = (self.plain.T @ memberships).T
        if len(self.gaps):
            passed = (self.over.T @ memberships).T
            visits += sum_over_gaps(self.gaps, passed, self.rows(cells)).reshape(cells.shape)
        return visits


def gap_chances(gaps: Gaps, rows: NDArray[Any]) -> NDArray[Any]:
    """Probability (…, G) of each gap under rows (…, S + 1, S): (rows · T^g)[before, after]."""
    inner, power = rows[..., :-1, :], rows
    chances = np.empty((*rows.shape[:-2], len(gaps)), dtype=rows.dtype)
    for here, before, after in gaps.of_length[1:]:
        power = power @ inner
        chances[..., here] = power[..., before, after]
    return chances


def passes(gaps: Gaps, rows: Floats) -> Floats:
    """Expected visits of each cell on the way through each gap, (G, C).

    A gap of g unobserved times from i to j visits (i, b) first, with weight
    rows[i, b] · T^g[b, j]; then (a, b) at step t with weight
    (rows · T^{t−1})[i, a] · T[a, b] · T^{g−t}[b, j]; all divided by the chance of the gap.
    """
    s = rows.shape[1]
    inner = rows[:-1]
    ahead, powers = [rows], [np.eye(s)]
    for _ in range(gaps.longest):
        ahead.append(ahead[-1] @ inner)
        powers.append(powers[-1] @ inner)
    visits = np.zeros((len(gaps), s + 1, s))
    for length, (here, before, after) in enumerate(gaps.of_length):
        for t in range(1, length + 1):
            visits[here, :-1] += (
                ahead[t - 1][before][:, :, None] * powers[length - t][:, after].T[:, None, :]
            )
        visits[here, :-1] *= inner
        visits[here, before] += rows[before] * powers[length][:, after].T
    chances = gap_chances(gaps, rows)[:, None]
    flat = visits.reshape(len(gaps), -1)
    shares: Floats = np.divide(flat, chances, out=np.zeros_like(flat), where=chances > _TINY)
    return shares


def sum_over_gaps(gaps: Gaps, passed: Floats, rows: NDArray[Any]) -> NDArray[Any]:
    """Σ passed[…, g] · passes(gaps, rows)[g] in one sweep, (…, S + 1, S); rows may be complex.

    The recursion is that of `_kernels.spread_gaps`, for many sets of rows at a time.
    """
    chances = gap_chances(gaps, rows)
    unit = max(1.0, float(passed.max(initial=0.0)))  # of very large weights
    possible = np.abs(chances) > _TINY
    rate = np.divide(passed / unit, chances, out=np.zeros_like(chances), where=possible)
    inner_t = np.swapaxes(rows[..., :-1, :], -1, -2)
    rows_t = np.swapaxes(rows, -1, -2)
    behind = np.zeros_like(rows)
    inside = np.zeros_like(rows[..., :-1, :])
    for length in range(gaps.longest, -1, -1):
        behind = behind @ inner_t
        here, before, after = gaps.of_length[length]
        if length:
            behind[..., before, after] += rate[..., here]
            inside = rows_t @ behind + inner_t @ inside
    behind[..., :-1, :] += inside
    through: NDArray[Any] = rows * behind * unit
    return through


# --- sums over patients that chains are estimated from --------------------------------


def sums_by_class(patterns: Patterns, membership: Floats, params: MarkovParams) -> Floats:
    """The table (K, 1 + S + S²) for patterns' memberships (U, K), weights already included.

    Steps inside gaps of missing times count where class k of `params` expects them; if `params`
    has one class, its chain is used for all.
    """
    n_classes, s = membership.shape[1], patterns.n_states
    cells = np.broadcast_to(cells_of(params), (n_classes, patterns.n_cells))
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
