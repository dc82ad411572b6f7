"""The information that data carry about the parameters, and its inverse.

The free parameters are log-odds: for each class but the first the coefficients of the membership
(only an intercept where there are no covariates), and for each row of each chain the log-odds of
its cells against the row's largest. Given the class of a row of data, its score for a cell is the
cell's visits less what the row of the chain expects; the score of the data is the mean of this
over classes (Louis 1982). Missing times enter through expected visits. A cell that hardly any
patient visits lies on the boundary: it is held fixed, since no derivative describes it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from font.errors import InputError
from mmlca.model.covariates import Rows, logit_information
from mmlca.model.em import Gaps, cells_of, passes, rows_of, sum_over_gaps
from mmlca.model.params import AnyParams, Floats

Kind = Literal["observed", "opg", "sandwich"]

FEW = 0.5  # expected visits below which a cell lies on the boundary
_BLOCK = 2048
_CELLS = 1 << 20  # numbers in a table of all cells for some gaps or free cells at a time
_MOST = 6000  # free parameters, whose matrices take 0.3 GB each
_SINGULAR = 1e-9  # smallest eigenvalue of the information scaled to a diagonal of ones
_PRIOR_ALONE = 1e-3  # information of the data below this part of the prior's counts as none
_LOST = 1e-2  # part of a parameter that lies in directions without information
_NOTHING = 1e-300  # weights below this part of the largest count as zero
_ROUNDING = 1e-7  # information below this part of that of known classes may be rounding error


class Point:
    """Where the information is computed: data, parameters, and which of them are free.

    `coefficients` (P, K) are those of `rows.design`, which is standardised; `prior` is the
    pseudo-count of each cell, but of those that are zero, and `class_prior` that of each class (in
    each group of patients if the design distinguishes groups; 0 with covariates).
    """

    def __init__(
        self,
        rows: Rows,
        params: AnyParams,
        coefficients: Floats,
        prior: float,
        class_prior: float,
    ) -> None:
        self.rows, self.visits, self.coefficients = rows, rows.visits, coefficients
        self.cells, self.class_prior = cells_of(params), class_prior
        self.prior: Floats = np.where(self.cells > 0, prior, 0.0)
        with np.errstate(invalid="ignore"):
            self.posterior: Floats = softmax(rows.joint(self.cells, coefficients), axis=1)
        most = max(float(self.prior.max(initial=0.0)), class_prior, 1e-300)
        self.unit: float = float(rows.each.max(initial=most))  # of weights and prior
        weightless = rows.weights <= _NOTHING * self.unit  # these may be impossible
        self.posterior[weightless] = np.nan_to_num(self.posterior[weightless])
        self.shares: Floats = np.exp(log_softmax(rows.design @ coefficients, axis=1))
        self.memberships = rows.by_pattern(self.posterior)
        self.expected = self.visits.expected(self.cells, self.memberships)
        self.layout = rows.visits.layout
        inside = (self.expected >= FEW) & (self.cells > 0)
        inside &= self.layout.sums(inside.astype(float))[:, self.layout.row] > 1
        self.inside: NDArray[np.bool_] = inside
        self.free: NDArray[np.bool_] = inside.copy()
        each = np.arange(len(inside))
        for begin, end in pairwise(self.layout.bounds):
            visited = np.where(inside[:, begin:end], self.expected[:, begin:end], -1)
            self.free[each, begin + visited.argmax(axis=1)] = False  # the row's reference

    @property
    def n_coefficients(self) -> int:
        """Free coefficients: P for each class but the first."""
        n_terms, n_classes = self.coefficients.shape
        return int(n_terms * (n_classes - 1))

    def place(self, k: int) -> slice:
        """Where the free cells of class k stand among all free parameters."""
        before = self.n_coefficients + int(self.free[:k].sum())
        return slice(before, before + int(self.free[k].sum()))

    @property
    def size(self) -> int:
        """Number of free parameters."""
        return self.n_coefficients + int(self.free.sum())


class Information(NamedTuple):
    """Sums over the data at a point: observed information, and outer products of scores.

    `prior` is what the prior adds to either; `squares` weighs the outer products by squared
    weights, for the sandwich; `complete` is the diagonal of the information if classes and
    missing states were known. Weights are counted in `unit`s (and squares in squared ones), so
    that no sum of very large or very small weights leaves the range of floating-point numbers.
    """

    observed: Floats
    outer: Floats
    squares: Floats
    prior: Floats
    complete: Floats
    unit: float


def information(point: Point) -> Information:
    """Observed information and outer products of scores, in one pass over the rows."""
    size, n_first = point.size, point.n_coefficients
    if size > _MOST:
        raise InputError(
            f"standard errors of {size:,} free parameters would take too much memory (at most "
            f"{_MOST:,} are possible); ask for fewer classes, merge rare states, or use the "
            "bootstrap."
        )
    outer, squares, missing = (np.zeros((size, size)) for _ in range(3))
    k_all = len(point.cells)
    rows, unit = point.rows, point.unit
    all_weights = rows.weights / unit
    all_squares = rows.squares * (rows.each.max(initial=0.0) / unit) ** 2
    tokens = np.unique(point.visits.patterns.cell)  # the cells and gaps that somebody visits
    counts = point.visits.patterns.token_counts[:, tokens]
    tables = [_score_table(point, k, tokens) for k in range(k_all)]
    for begin in range(0, len(all_weights), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        posterior, weights = point.posterior[part], all_weights[part]
        scores = np.empty((len(posterior), size))
        scores[:, :n_first] = _logit_scores(rows.design[part], posterior - point.shares[part])
        for k in range(k_all):
            place = point.place(k)
            inner = counts[rows.pattern[part]] @ tables[k]
            scores[:, place] = posterior[:, k, None] * inner
            # the spread of the complete data's scores over classes: what not knowing them costs
            weighted = (weights * posterior[:, k])[:, None] * inner
            missing[place, place] += weighted.T @ inner
            certain = np.broadcast_to(np.eye(k_all)[k], posterior.shape)
            if n_first:
                logit = _logit_scores(rows.design[part], certain - point.shares[part])
                missing[:n_first, place] += logit.T @ weighted
                missing[:n_first, :n_first] += logit.T @ (
                    logit * (weights * posterior[:, k])[:, None]
                )
        outer += scores.T @ (scores * weights[:, None])
        squares += scores.T @ (scores * all_squares[part, None])
    missing[n_first:, :n_first] = missing[:n_first, n_first:].T
    complete = _complete(point, point.expected / unit, all_weights)
    observed = complete + outer - missing
    for k in range(k_all if len(point.visits.gaps) else 0):
        observed[point.place(k), point.place(k)] -= _gap_curvature(point, k) / unit
    prior = np.zeros((size, size))
    if point.prior.any() or point.class_prior:
        once = np.zeros(len(all_weights))  # the prior counts once for each group
        once[np.unique(rows.design, axis=0, return_index=True)[1]] = point.class_prior
        prior = _complete(point, point.prior / unit, once * k_all / unit)
    return Information(observed, outer, squares, prior, np.diagonal(complete).copy(), unit)


def covariance(parts: Information, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
    """Covariance of the free parameters, and which of them the data say nothing about.

    "observed": inverse of the observed information; "opg": inverse of the outer products of
    scores; "sandwich": outer products between two inverses of the observed information.
    """
    data = parts.outer if kind == "opg" else parts.observed
    inverse, lost = _inverse(data + parts.prior)
    lost |= np.diagonal(data) < _PRIOR_ALONE * np.diagonal(parts.prior)
    lost |= np.diagonal(data) <= _ROUNDING * parts.complete
    with np.errstate(over="ignore", invalid="ignore"):  # where weights are absurdly small
        sandwich = kind == "sandwich"
        spread = inverse @ parts.squares @ inverse if sandwich else inverse / parts.unit
    lost |= ~np.isfinite(np.diagonal(spread))
    return np.nan_to_num(spread, posinf=0.0, neginf=0.0), lost


# --- pieces ------------------------------------------------------------------------------


def _logit_scores(design: Floats, residual: Floats) -> Floats:
    """Residuals of the classes but the first times the design, (B, (K − 1)·P)."""
    scores = residual[:, 1:, None] * design[:, None, :]
    return scores.reshape(len(design), -1)


def _score_table(point: Point, k: int, tokens: NDArray[np.int32]) -> Floats:
    """What one visit of a cell, or one pass of a gap, adds to the scores of the free cells.

    (tokens, free cells of class k), given that the patient is of that class: the visits that the
    free cell gets from it, less what its row of the chain expects. Only cells that somebody visits
    are tokens, and gaps are taken some at a time, so that many states do not need much memory.
    """
    visits, cells, s = point.visits, point.cells[k], point.visits.n_states
    free = np.flatnonzero(point.free[k])
    plain, gaps = (tokens[tokens < visits.n_cells], tokens[tokens >= visits.n_cells])
    table = np.empty((len(tokens), len(free)))
    table[: len(plain)] = plain[:, None] == free
    row = point.layout.row
    table[: len(plain)] -= (row[plain][:, None] == row[free]) * cells[free]
    n_block = max(1, _CELLS // visits.n_cells)
    for begin in range(0, len(gaps), n_block):
        numbers = gaps[begin : begin + n_block] - visits.n_cells
        through = passes(Gaps(visits.patterns.gaps[numbers]), rows_of(cells, s))
        left = rows_of(through, s).sum(axis=-1)  # visits of each row of the chain
        place = slice(len(plain) + begin, len(plain) + begin + len(numbers))
        table[place] = through[:, free] - cells[free] * left[:, free // s]
    return table


def _complete(point: Point, expected: Floats, weights: Floats) -> Floats:
    """Information if classes and missing states were known."""
    result = np.zeros((point.size, point.size))
    n_first = point.n_coefficients
    if n_first:
        result[:n_first, :n_first] = logit_information(
            point.rows.design, weights, point.shares[:, 1:]
        )
    for k in range(len(point.cells)):
        free = np.flatnonzero(point.free[k])
        row, cells = point.layout.row[free], point.cells[k, free]
        totals = point.layout.sums(expected[k])[row]
        block = -np.outer(cells * totals, cells) * (row[:, None] == row)
        block[np.diag_indices(len(free))] += cells * totals
        result[point.place(k), point.place(k)] = block
    return result


def _gap_curvature(point: Point, k: int) -> Floats:
    """How the expected score of class k changes because visits inside gaps depend on the chain.

    The derivative is taken along the imaginary axis, which is exact to rounding.
    """
    step = 1e-30
    visits, free = point.visits, np.flatnonzero(point.free[k])
    if not len(free):
        return np.zeros((0, 0))
    passed = point.visits.over.T @ point.memberships[:, k]
    chain = rows_of(point.cells[k], visits.n_states)
    curvature = np.empty((len(free), len(free)))
    n_block = max(1, _CELLS // visits.n_cells)
    for begin in range(0, len(free), n_block):
        some = free[begin : begin + n_block]
        moved = np.repeat(chain[None].astype(complex), len(some), axis=0)
        for f, cell in enumerate(some):
            i, j = divmod(int(cell), visits.n_states)
            moved[f, i] += 1j * step * chain[i, j] * ((np.arange(visits.n_states) == j) - chain[i])
        slope: NDArray[Any] = sum_over_gaps(visits.gaps, passed, moved).imag / step
        score = slope - chain * slope.sum(axis=-1, keepdims=True)
        curvature[begin : begin + len(some)] = score.reshape(len(some), -1)[:, free]
    return (curvature + curvature.T) / 2


def _inverse(matrix: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Inverse by eigenvalues; parameters in directions without information are marked.

    The matrix is first scaled to a diagonal of ones, so that the units of the parameters do not
    matter. Of information no scaled entry exceeds 1; where rounding has left such entries (next to
    a diagonal of almost nothing) they are cut to 1, which marks the parameters they join.
    """
    diagonal = np.diagonal(matrix)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.clip(np.nan_to_num(matrix * scale[:, None] * scale), -1.0, 1.0)
    values, vectors = np.linalg.eigh(scaled)
    sound = values > _SINGULAR
    kept = vectors[:, sound]
    with np.errstate(over="ignore"):
        inverse = (kept / values[sound]) @ kept.T * scale[:, None] * scale
    lost = (vectors[:, ~sound] ** 2).sum(axis=1) > _LOST
    return inverse, lost
