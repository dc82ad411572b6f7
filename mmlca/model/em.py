"""One EM run on a pattern table, the E-step, and what is expected pattern by pattern.

A class is a row of C cells: in a plain chain its transition probabilities row by row, then its
initial distribution (as in `mmlca.sequences.patterns.Patterns`; `mmlca.sequences.forms.Layout` has
those of other forms). `run_em` prepares the arrays for `_kernels.em`, which has the loop over
E-step, M-step and extrapolation; `mmlca.model.search` decides where runs begin. The kernels sum
over patterns as they go; `Visits` gives the same numbers for each pattern, which standard errors
and covariates need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError
from font.probabilities import probabilities
from mmlca.model.params import AnyParams, Floats, FormParams, MarkovParams
from mmlca.sequences.forms import PLAIN, Layout, layout_of
from mmlca.sequences.patterns import Patterns

_TINY = 1e-200  # chances of gaps below this count as none: nothing can be divided by them
_HEAVY = 1e100  # weights above this are counted in units, since their sums might overflow


class Settings(NamedTuple):
    """How EM runs. `prior`: pseudo-count of each cell and class; `zeros` (C,): forbidden cells."""

    prior: float
    zeros: NDArray[np.bool_]
    max_iter: int
    tol: float
    accelerate: bool
    n_confirm: int = 10


@dataclass(eq=False)
class RunEnd:
    """Where a run ended: cells (K, C), and the path there: log-likelihood, and penalised."""

    cells: Floats
    path: Floats
    converged: bool

    @property
    def failed(self) -> str:
        """Reason for failure, or ""."""
        return "" if np.isfinite(self.path[-1, 1]) else "impossible data"

    @cached_property
    def value(self) -> float:
        """The penalised log-likelihood; −inf for a run that failed."""
        return -np.inf if self.failed else float(self.path[-1, 1])

    @property
    def status(self) -> str:
        """How the run ended, in words."""
        if self.failed:
            return f"failed: {self.failed}"
        return "converged" if self.converged else "stopped at max_iter"


@dataclass(eq=False)
class Run(RunEnd):
    """A run of the kernels.

    `shares` (H, K) are the proportions of the classes in each group of patients, `members` (K,)
    the expected patients of each class.
    """

    shares: Floats
    members: Floats = field(repr=False)

    @property
    def failed(self) -> str:
        """Reason for failure, or ""."""
        return super().failed or ("a class emptied" if (self.members < 1e-6).any() else "")

    @property
    def end(self) -> tuple[Floats, Floats]:
        """Where another run may go on."""
        return self.cells, self.shares

    @cached_property
    def overall(self) -> Floats:
        """The proportions of the classes among all patients, (K,)."""
        members = np.maximum(self.members, 0)
        overall: Floats = members / members.sum() if members.any() else members
        return self.shares[0].copy() if len(self.shares) == 1 else overall


class EStep(NamedTuple):
    """What an E-step gives for U patterns and K classes.

    Log-likelihoods (U,), class probabilities (U, K), expected visits of cells (K, C).
    """

    logliks: Floats
    posterior: Floats
    visits: Floats


def run_em(
    patterns: Patterns,
    cells: Floats,
    shares: Floats,
    settings: Settings,
    zeros: NDArray[np.bool_] | None = None,
) -> Run:
    """EM from cells (K, C) and shares (K,) or (H, K); cells in `zeros` (K, C) stay zero."""
    n_classes, n_cells = cells.shape
    if settings.zeros.any():
        layout, cells = patterns.layout, np.where(settings.zeros, 0, cells)
        sums = layout.sums(cells)[:, layout.row]
        cells = np.divide(cells, sums, out=cells, where=sums > 0)
    forbidden = np.broadcast_to(settings.zeros, cells.shape)
    unit = _unit(patterns)
    prior = np.full((n_classes, n_cells + 1), settings.prior / unit)
    prior[:, :-1][forbidden if zeros is None else forbidden | zeros] = -1
    chances = _kernel_arrays(patterns, cells, shares)
    limits = (settings.max_iter, settings.tol / unit, settings.accelerate, settings.n_confirm)
    path = np.empty((settings.max_iter + 1, 2))
    n_done, converged, _ = _call_kernel(patterns, chances, _lanes(prior, -1.0), limits, path)
    last = _unlanes(chances[3], n_classes)
    shares = last[:, n_cells + len(patterns.gaps) :].T.copy()
    size = group_sizes(patterns)[:, None]
    members = shares * (size + n_classes * settings.prior) - settings.prior
    return Run(
        last[:, :n_cells].copy(),
        path[: n_done + 1] * unit,
        converged,
        shares,
        members.sum(axis=0),
    )


def e_step(patterns: Patterns, params: AnyParams, shares: Floats | None = None) -> EStep:
    """Likelihoods, class probabilities and expected visits of patterns, given the parameters.

    `shares` (H, K) are proportions by group, instead of the parameters' own.
    """
    if params.form != patterns.form:
        raise InputError(
            f"the chains are {params.form.title}, and the patterns those of {patterns.form.title} "
            "chains; use sequences.patterns_of(model.form), or fit the model without stays and "
            "periods."
        )
    n_classes, n_cells = params.n_classes, patterns.n_cells
    proportions = params.weights if shares is None else shares
    chances = _kernel_arrays(patterns, cells_of(params), proportions)
    posterior, logs = np.empty((chances.shape[1], len(patterns), 4)), np.empty(len(patterns))
    _, _, visits = _call_kernel(patterns, chances, classes=(posterior, logs))
    of_pattern = posterior.transpose(1, 0, 2).reshape(len(patterns), -1)[:, :n_classes]
    expected = _unlanes(visits, n_classes)[:, :n_cells]
    return EStep(logs, of_pattern, expected * _unit(patterns))


def group_sizes(patterns: Patterns) -> Floats:
    """The patients of each group by weight, (H,)."""
    if patterns.starts is None:
        return np.array([patterns.weights.sum()])
    ends = np.append(0.0, np.cumsum(patterns.weights))
    return np.diff(ends[patterns.starts])


def cells_of(params: AnyParams) -> Floats:
    """The classes' probabilities as rows of cells, (K, C)."""
    if isinstance(params, MarkovParams):
        return np.hstack([params.transition.reshape(params.n_classes, -1), params.initial])
    leaving = np.stack([1 - params.leaving, params.leaving], axis=-1)
    parts = (leaving, params.destination, params.initial)
    return np.hstack([part.reshape(params.n_classes, -1) for part in parts])


@overload
def params_of(cells: Floats, shares: Floats) -> MarkovParams: ...
@overload
def params_of(cells: Floats, shares: Floats, layout: Layout) -> AnyParams: ...
def params_of(cells: Floats, shares: Floats, layout: Layout | None = None) -> AnyParams:
    """Parameters from cells (K, C) and shares (K,), the inverse of `cells_of`.

    `MarkovParams` for plain chains, which is the default layout, else `FormParams`.
    """
    if layout is None or layout.is_plain:
        rows = rows_of(cells, isqrt(cells.shape[1]))  # C = S·(S + 1)
        return MarkovParams(shares, rows[:, -1], rows[:, :-1])
    k, s, form = len(cells), layout.n_states, layout.form
    begin, end = layout.first_destination, layout.initial.start
    return FormParams(
        form,
        shares,
        cells[:, end:],
        cells[:, 1:begin:2].reshape(k, form.n_periods, form.n_bins, s),
        cells[:, begin:end].reshape(k, form.n_destinations, s, s),
    )


def rows_of(cells: NDArray[Any], n_states: int) -> NDArray[Any]:
    """Cells (…, C) of plain chains as rows (…, S + 1, S); the last row is the beginning."""
    return cells.reshape(*cells.shape[:-1], -1, n_states)


def row_probabilities(
    counts: Floats, layout: Layout, prior: Any = 0.0, allowed: Any = None
) -> Floats:
    """Counts of cells (…, C) as probabilities; see `font.probabilities.probabilities`."""
    if not layout.is_plain:
        return probabilities(counts, prior, allowed, np.diff(layout.bounds))
    counts, prior, allowed = (
        rows_of(part, layout.n_states) if isinstance(part, np.ndarray) else part
        for part in (counts, prior, allowed)
    )
    rows = probabilities(counts, prior, allowed)
    return rows.reshape(*rows.shape[:-2], -1)


# --- pattern by pattern ------------------------------------------------------------------


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
        self.n_states, self.layout = patterns.n_states, patterns.layout
        self.n_cells = patterns.n_cells
        self.gaps = Gaps(patterns.gaps)
        self._all = patterns.token_counts
        self.plain, self.over = self._all[:, : self.n_cells], self._all[:, self.n_cells :]

    def logliks(self, cells: Floats) -> Floats:
        """Log-likelihood of each pattern in each class, (U, K), from cells (K, C)."""
        if len(self.gaps):
            cells = np.hstack([cells, gap_chances(self.gaps, rows_of(cells, self.n_states))])
        with np.errstate(divide="ignore"):
            logs: Floats = self._all @ np.log(cells).T
        return logs

    def expected(self, cells: Floats, memberships: Floats) -> Floats:
        """Expected visits of the cells of each class, (K, C), given weighted memberships (U, K)."""
        visits: Floats = (self.plain.T @ memberships).T
        if len(self.gaps):
            passed = (self.over.T @ memberships).T
            rows = rows_of(cells, self.n_states)
            visits += sum_over_gaps(self.gaps, passed, rows).reshape(cells.shape)
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


# --- sums over patients that chains are estimated from ------------------------------------


def sum_by_pattern(pattern: NDArray[Any], members: Floats, n_patterns: int) -> Floats:
    """Weighted memberships (R, K) of patients or rows, summed by their pattern, (U, K)."""
    sums = [np.bincount(pattern, column, n_patterns) for column in members.T]
    return np.array(sums, dtype=float).T


def sums_by_class(patterns: Patterns, membership: Floats, params: AnyParams) -> Floats:
    """The table (K, 1 + S + S²) for patterns' memberships (U, K), weights already included.

    Patients, first states and steps of each class; of other forms than the plain chain first states
    and then all other cells in their order, (K, 1 + C).

    Steps inside gaps of missing times count where class k of `params` expects them; if `params`
    has one class, its chain is used for all.
    """
    n_classes = membership.shape[1]
    cells = np.broadcast_to(cells_of(params), (n_classes, patterns.n_cells))
    visits = Visits(patterns).expected(cells, membership)
    begin = patterns.layout.initial.start
    members = np.ascontiguousarray(membership).sum(axis=0)  # layouts of memory round differently
    return np.hstack([members[:, None], visits[:, begin:], visits[:, :begin]])


def params_from_sums(
    total: Floats, prior: float, zeros: NDArray[np.bool_], layout: Layout | None = None
) -> AnyParams:
    """Parameters (K classes) from the sums of all patients: the M-step of EM.

    `prior` is the pseudo-count of every class and of every cell that `zeros` (C,) allows; the
    layout is by default that of plain chains.
    """
    layout = layout or layout_of(PLAIN, isqrt(zeros.size))
    s = layout.n_states
    counts = np.hstack([total[:, 1 + s :], total[:, 1 : 1 + s]])  # steps, then beginnings
    cells = row_probabilities(counts, layout, prior, ~zeros)
    return params_of(cells, probabilities(total[:, 0], prior), layout)


# --- the layout of the kernels ---------------------------------------------------------


def _kernel_arrays(patterns: Patterns, cells: Floats, shares: Floats) -> Floats:
    """Room for four sets of parameters, the last of which are these, in lanes of four classes."""
    n_classes, n_cells = cells.shape
    n_groups = 1 if patterns.starts is None else len(patterns.starts) - 1
    first = n_cells + len(patterns.gaps)
    rows = np.full((n_classes, first + n_groups), 0.5)
    rows[:, :n_cells] = cells
    rows[:, first:] = np.atleast_2d(shares).T
    lanes = _lanes(rows, 0.5)
    lanes[-1, first:, 1 + (n_classes - 1) % 4 :] = 0.0
    chances = np.empty((4, *lanes.shape))
    chances[3] = lanes
    return chances


def _call_kernel(
    patterns: Patterns,
    chances: Floats,
    prior: Floats | None = None,
    limits: tuple[int, float, bool, int] = (0, 0.0, False, 0),
    path: Floats | None = None,
    classes: tuple[Floats, Floats] | None = None,
) -> tuple[int, bool, Floats]:
    """Call `_kernels.em` with room to work in: the updates, if converged, and what is expected.

    By default it makes an E-step alone, and does not keep the patterns' classes.
    """
    from mmlca.model import _kernels

    n_lanes, n_tokens, s = chances.shape[1], len(patterns.cell), patterns.n_states
    prior = np.zeros((n_lanes, patterns.n_cells + 1, 4)) if prior is None else prior
    path = np.empty((1, 2)) if path is None else path
    classes = classes or (np.empty((n_lanes, 0, 4)), np.empty(0))
    table = (
        s,
        patterns.indptr,
        patterns.tokens,
        patterns.cell,
        patterns.times,
        patterns.gaps,
        patterns.weights / _unit(patterns),
        np.array([0, len(patterns)]) if patterns.starts is None else patterns.starts,
        patterns.layout.bounds,
    )
    scratch = (
        np.empty((n_lanes, n_tokens, 4)),
        np.empty((n_tokens + 1, 4)),
        np.empty((n_lanes, min(_kernels.BLOCK, len(patterns)), 4)),
        np.empty((5, s + 1, s)),
    )
    visits = np.empty((2, *chances.shape[1:]))
    done = _kernels.em(table, scratch, prior, chances, visits, limits, path, classes)
    return *done, visits[0]


def _unit(patterns: Patterns) -> float:
    """What the kernels count weights in: 1, or the largest weight if it is a huge one."""
    largest = float(patterns.weights.max(initial=0.0))
    return largest if largest > _HEAVY else 1.0


def _lanes(rows: Floats, filler: float) -> Floats:
    """(K, R) → (L, R, 4), the layout of the kernels; lanes without a class get the filler."""
    n_classes, n_rows = rows.shape
    n_lanes = -(-n_classes // 4)
    padded = np.full((4 * n_lanes, n_rows), filler)
    padded[:n_classes] = rows
    return np.ascontiguousarray(padded.reshape(n_lanes, 4, n_rows).transpose(0, 2, 1))


def _unlanes(lanes: Floats, n_classes: int) -> Floats:
    """(L, R, 4) → (K, R)."""
    return lanes.transpose(0, 2, 1).reshape(-1, lanes.shape[1])[:n_classes]
