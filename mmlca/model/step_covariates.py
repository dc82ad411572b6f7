"""Chains whose steps depend on covariates: one logit of leaving a state, and one of where to.

In class k a patient in state i, in bin b of time in state and in period p, whose step has the
covariates z, leaves with the log-odds a_k[p, b, i] + z · g_k[i], and then goes to j ≠ i with a
probability proportional to exp(d_k[q, i, j] + z · h_k[i, j]), where q is the period, or the only
one if destinations are shared (then h = 0). So an effect on leaving is the same in all bins and
periods: proportional odds of leaving in discrete time. A categorical covariate has a coefficient
for each level but the first; alone, and with effects of their own in each class, its levels have
probabilities of their own, as periods do.

The covariates of a step make its *context*. Each pair of a row of the form's cells (`Layout`) and a
covariate row that occurs there has cells of its own, and the E-step is that of all forms. In the
M-step the visits expected of these cells are fitted by multinomial logits, with Newton steps. The
prior is as in all chains a pseudo-count of each cell, spread over covariates one standard deviation
below and above their mean, so that it holds the coefficients, too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax

from font.errors import InputError, option
from mmlca.model.covariates import (
    Design,
    Mixture,
    Rows,
    best_of,
    climb_and_kick,
    complete,
    fit_logit,
    learn,
    log_shares,
    make_rows,
)
from mmlca.model.em import Settings, cells_of, params_of, row_probabilities
from mmlca.model.params import AnyParams, Floats
from mmlca.model.search import Fit
from mmlca.sequences.checks import some
from mmlca.sequences.covariates import AnyCovariates
from mmlca.sequences.forms import Form, Layout, bins_of, layout_of, step_contexts
from mmlca.sequences.patterns import Patterns, count_steps, tabulate_visits
from mmlca.sequences.type import Sequences

Ints = NDArray[np.intp]

NEVER = -800.0  # log-odds of what is impossible; its exponential is 0
_SEPARATED = 12.0  # log-odds between the smallest and the largest value of a column
_NEWTON = 1  # Newton steps in an M-step of several classes, which EM repeats anyway


# --- the covariates of the patients ------------------------------------------------------


class StepRows(NamedTuple):
    """Distinct covariate rows (Z, P), standardised, and the row of each window (n, T); −1: none."""

    values: Floats
    number: Ints

    @property
    def by_patient(self) -> bool:
        """Whether each patient has the same row in all windows."""
        return bool((self.number == self.number[:, :1]).all())


def read_step_covariates(
    data: Sequences, form: Form, missing: str, design: Design | None = None
) -> tuple[Design, StepRows]:
    """The design of the steps' covariates, learnt from the data unless it is known, and their rows.

    Steps that lack a covariate are refused, unless `missing` is "drop".
    """
    frame = _frame_of(data, form)
    n, n_times = data.shape
    n_each = max(len(frame) // max(n, 1), 1)
    begins = np.zeros((n, n_times), dtype=bool)
    begins[:, :-1] = (data.codes[:, :-1] >= 0) & (data.codes[:, 1:] >= 0)
    known = complete(frame, form.transitions).reshape(n, n_each)
    lacking = begins & ~known
    if lacking.any() and (missing == "error" or not known.any()):
        patients = lacking.any(axis=1)
        raise InputError(
            f"{int(lacking.sum()):,} of {int(begins.sum()):,} steps lack a covariate (patients "
            f"{some(data.ids[patients])}); fill them in, or leave these steps out with "
            f"{option('missing', 'drop')}."
        )
    if design is None:
        used = (begins & known & (data.weights > 0)[:, None]).reshape(n, n_each, -1).any(axis=2)
        if not used.any():
            raise InputError("no step has covariates: no patient is seen in two windows in a row.")
        rows = frame[used.ravel()]
        design = learn(rows, form.transitions, np.ones(len(rows)), "steps")
    matrix = design.standardised(design.matrix(frame))[:, 1:]
    full = ~np.isnan(matrix).any(axis=1)
    number = np.full(len(matrix), -1, dtype=np.intp)
    values, number[full] = np.unique(matrix[full], axis=0, return_inverse=True)
    return design, StepRows(
        values, np.broadcast_to(number.reshape(n, n_each), (n, n_times)).astype(np.intp)
    )


def _frame_of(data: Sequences, form: Form) -> pd.DataFrame:
    """The table that holds the covariates: one row for each patient, or each patient and window."""
    if data.step_covariates is not None:
        return data.step_covariates
    if data.covariates is not None:
        return data.covariates
    raise InputError(
        f"the steps depend on covariates ({form.transitions}), but the sequences have none; give "
        "them with sequences.with_step_covariates(table)."
    )


# --- the cells ----------------------------------------------------------------------------


class StepLayout:
    """The cells of chains by covariates: for each *spot*, those of one row of the form's layout.

    A spot is a row of the form's layout (leaving or destinations, see `Layout`) and a covariate row
    that occurs there. The first states come last and depend on no covariate.

    Attributes
    ----------
    base : Layout
        Of the form.
    spot_row, spot_z : (R,)
        The row of `base` and the covariates of each spot.
    bounds, row, initial : as in `Layout`
    base_cell : (C,)
        The cell of `base` that each cell belongs to.
    """

    is_plain = False

    def __init__(self, base: Layout, spot_row: Ints, spot_z: Ints) -> None:
        self.base, self.form, self.n_states = base, base.form, base.n_states
        self.spot_row, self.spot_z = spot_row, spot_z
        rows = np.append(spot_row, len(base.bounds) - 2)
        sizes = np.diff(base.bounds)[rows]
        self.bounds = np.append(0, np.cumsum(sizes)).astype(np.int64)
        self.row = np.repeat(np.arange(len(rows)), sizes)
        self.base_cell = base.bounds[rows][self.row] + np.arange(len(self.row))
        self.base_cell -= self.bounds[:-1][self.row]
        self.initial = slice(int(self.bounds[-2]), int(self.bounds[-1]))

    @property
    def n_cells(self) -> int:
        return len(self.row)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sums (…, R + 1) of cells (…, C) over each row."""
        return np.add.reduceat(values, self.bounds[:-1], axis=-1)

    def in_base(self, values: Floats) -> Floats:
        """Visits of cells (K, C) as visits of the form's cells."""
        return np.array([np.bincount(self.base_cell, x, self.base.n_cells) for x in values])


@dataclass(frozen=True, eq=False)
class StepPatterns(Patterns):
    """Distinct patterns of patients whose steps have covariates.

    `spots` has the cells; `lacking` counts the steps that are left out for want of a covariate, and
    their patients.
    """

    spots: Any = None
    lacking: tuple[int, int] = (0, 0)

    @property
    def layout(self) -> Any:
        return self.spots


def step_patterns(
    data: Sequences, form: Form, rows: StepRows, finest: Form | None = None
) -> StepPatterns:
    """Distinct patterns of patients and covariates, with their weights.

    Steps are left out as in `reduce_steps`, and where a covariate is missing.
    """
    number = data.distinct()[1]
    z = rows.number[:, :1] if rows.by_patient else rows.number
    keys = pd.DataFrame(np.column_stack([number, z]))
    number = keys.groupby(list(keys.columns), sort=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    codes, z = data.codes[first], rows.number[first]
    base = layout_of(form, data.n_states)
    bins, period, _ = step_contexts(codes, form)
    known = step_contexts(codes, finest or form)[2]
    lacking = known & (z[:, :-1] < 0)
    row, t = np.nonzero(known & ~lacking)
    before, after = codes[row, t].astype(np.int64), codes[row, t + 1].astype(np.int64)
    moves = before != after
    begins = np.flatnonzero(codes[:, 0] >= 0)
    stay = base.context_cell(period[t], bins[row, t], before)
    into = base.destination_cell(period[t], before, after)[moves]
    cells = np.concatenate([stay + moves, into])
    n_z = max(len(rows.values), 1)
    at = z[row, t]
    of_destination = np.zeros(int(moves.sum()), dtype=np.intp) if form.shared else at[moves]
    spot = base.row[cells] * n_z + np.concatenate([at, of_destination])
    spots, place = np.unique(spot, return_inverse=True)
    layout = StepLayout(base, spots // n_z, spots % n_z)
    cells = layout.bounds[place.reshape(-1)] + cells - base.bounds[base.row[cells]]
    places = np.concatenate([row, row[moves], begins])
    cells = np.append(cells, layout.initial.start + codes[begins, 0].astype(np.int64))
    missed = (count_steps(codes) - known.sum(axis=1))[number]
    lacks = lacking.sum(axis=1)[number]
    table = StepPatterns(
        data.n_states,
        gaps=np.empty((0, 3), dtype=np.int64),
        form=form,
        left_out=(int(missed.sum()), int((missed > 0).sum())),
        **tabulate_visits(places, cells, number, layout.n_cells),
        spots=layout,
        lacking=(int(lacks.sum()), int((lacks > 0).sum())),
    )
    return table.reweight(data.weights)


def first_covariates(data: Sequences, form: Form) -> pd.DataFrame:
    """One row per patient: the covariates of the first window that has them all."""
    frame = _frame_of(data, form)
    n_each = max(len(frame) // max(len(data), 1), 1)
    known = complete(frame, form.transitions).reshape(len(data), n_each)
    return frame.iloc[np.arange(len(data)) * n_each + known.argmax(axis=1)].reset_index(drop=True)


def too_many_effects(patterns: StepPatterns, rows: StepRows) -> str:
    """Why the data are too few for the covariates, in a sentence, or ""."""
    base, n_columns = patterns.spots.base, rows.values.shape[1]
    n_odds = patterns.n_states * (base.form.n_periods * base.form.n_bins + n_columns)
    steps = (patterns.weights @ patterns.token_counts)[: patterns.layout.initial.start]
    of_leaving = patterns.spots.base_cell[: len(steps)] < base.first_destination
    total = float(steps[of_leaving].sum())
    if total >= n_odds:
        return ""
    return (
        f"leaving has {n_odds:,} coefficients in each class ({n_columns} columns of covariates, "
        f"{patterns.n_states} states), more than the {total:,.0f} steps of the patients; give "
        "fewer covariates."
    )


LACKING = "some steps are left out because they lack a covariate."
"""What a report for the public says instead of `lacking_text`, which counts patients."""


def lacking_text(patterns: StepPatterns, n: int) -> str:
    """What missing covariates cost, in a sentence; "" if no step was left out."""
    n_steps, n_patients = patterns.lacking
    if not n_steps:
        return ""
    return (
        f"{n_steps:,} steps of {n_patients:,} of {n:,} patients are left out because they lack a "
        "covariate."
    )


# --- parameters ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepParams:
    """Log-odds of the steps of K classes, for P columns of standardised covariates.

    Parameters
    ----------
    initial : (K, S)
        Of the first states, up to a constant.
    leaving : (K, periods, bins, S)
        Of leaving each state, at the mean of all covariates.
    leaving_slopes : (K, S, P)
    destination : (K, Q, S, S)
        Of each next state of those who leave, against a reference (0); −800 is never.
    destination_slopes : (K, S, S, P)
    """

    initial: Floats
    leaving: Floats
    leaving_slopes: Floats
    destination: Floats
    destination_slopes: Floats

    @property
    def vector(self) -> Floats:
        """All numbers of each class, (K, N)."""
        k = len(self.initial)
        return np.hstack([getattr(self, f.name).reshape(k, -1) for f in fields(self)])

    @classmethod
    def from_vector(cls, vector: NDArray[Any], form: Form, n_states: int, n_columns: int) -> Self:
        """The inverse of `vector`; numbers may be complex."""
        parts, begin = [], 0
        for shape in cls.shapes(form, n_states, n_columns):
            size = int(np.prod(shape))
            parts.append(vector[:, begin : begin + size].reshape(len(vector), *shape))
            begin += size
        return cls(*parts)

    @staticmethod
    def shapes(form: Form, n_states: int, n_columns: int) -> list[tuple[int, ...]]:
        """The shape of each part for one class."""
        s, q = n_states, form.n_destinations
        return [
            (s,),
            (form.n_periods, form.n_bins, s),
            (s, n_columns),
            (q, s, s),
            (s, s, n_columns),
        ]

    def leaving_logits(self, period: Any, bins: Any, state: Any, z: Floats) -> NDArray[Any]:
        """Log-odds (K, R) of leaving, for R steps with covariates (R, P)."""
        odds: NDArray[Any] = self.leaving[:, period, bins, state]
        return np.asarray(odds + np.einsum("krp,rp->kr", self.leaving_slopes[:, state], z))

    def destination_logits(self, period: Any, state: Any, z: Floats) -> NDArray[Any]:
        """Log-odds (K, R, S) of the next states of those who leave."""
        odds: NDArray[Any] = self.destination[:, period, state]
        return np.asarray(odds + np.einsum("krjp,rp->krj", self.destination_slopes[:, state], z))

    def log_cells(self, layout: StepLayout, values: Floats) -> Floats:
        """Log-probabilities of all cells of a layout, (K, C)."""
        base, s, form = layout.base, layout.n_states, layout.form
        logs = np.empty((len(self.initial), layout.n_cells))
        n_leaving = base.first_destination // 2
        of_leaving = np.flatnonzero(layout.spot_row < n_leaving)
        row, z = layout.spot_row[of_leaving], values[layout.spot_z[of_leaving]]
        context, state = np.divmod(row, s)
        period, bins = np.divmod(context, form.n_bins)
        odds = self.leaving_logits(period, bins, state, z)
        logs[:, layout.bounds[of_leaving]] = log_expit(-odds)
        logs[:, layout.bounds[of_leaving] + 1] = log_expit(odds)
        of_destination = np.flatnonzero(layout.spot_row >= n_leaving)
        row, z = layout.spot_row[of_destination] - n_leaving, values[layout.spot_z[of_destination]]
        period, state = np.divmod(row, s)
        places = layout.bounds[of_destination][:, None] + np.arange(s)
        logs[:, places] = log_shares(self.destination_logits(period, state, z))
        logs[:, layout.initial] = log_softmax(self.initial, axis=1)
        return logs


def log_likelihoods(params: StepParams, patterns: StepPatterns, rows: StepRows) -> Floats:
    """Log-likelihood of each pattern in each class, (U, K)."""
    logs = params.log_cells(patterns.spots, rows.values)
    return np.asarray(patterns.token_counts @ logs.T)


# --- the logits that are fitted --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """One multinomial logit: of the first states, or of leaving or the destinations of a state.

    Parameters
    ----------
    part : "initial", "leaving" or "destination"
    state : int
        The state that is left; −1 for the first states.
    cells : (R, m)
        Cells of R spots, the reference first, then the other answers.
    answers : (m,)
        The next state of each answer; −1 for leaving.
    context, design : (R,), (R, A + P)
        The number of the intercept; an indicator of each intercept, and covariates.
    numbers : (A + P, m − 1)
        The place of each coefficient among the numbers of a class (`StepParams.vector`).
    free : (A + P, m − 1) bool
        What is estimated.
    n_contexts : A
    """

    part: str
    state: int
    cells: NDArray[np.int64]
    answers: Ints
    context: Ints
    design: Floats
    numbers: Ints
    free: NDArray[np.bool_]
    n_contexts: int

    @property
    def n_columns(self) -> int:
        return int(self.design.shape[1]) - self.n_contexts

    @property
    def slopes(self) -> slice:
        """The rows of the coefficients that belong to covariates."""
        return slice(self.n_contexts, None)

    @cached_property
    def imagined(self) -> tuple[Floats, float]:
        """The design of the prior's imaginary steps, and the weight of each answer of each."""
        a, p = self.n_contexts, self.n_columns
        if not p:
            return np.eye(a), 1.0
        ends = np.vstack([np.eye(p), -np.eye(p)])
        return np.hstack([np.repeat(np.eye(a), 2 * p, axis=0), np.tile(ends, (a, 1))]), 1 / (2 * p)

    def coefficients(self, vector: Floats) -> Floats:
        """(A + P, m) from the numbers of a class, the first column zero."""
        table = np.zeros((self.numbers.shape[0], self.cells.shape[1]))
        table[:, 1:] = vector[self.numbers]
        return table


def make_blocks(
    patterns: StepPatterns, values: Floats, zeros: NDArray[np.bool_], prior: float
) -> tuple[list[Block], Floats]:
    """The logits of a fit, and the numbers (N,) that every class begins with: −800, never, or 0.

    `zeros` are the form's cells that must be zero. The reference of destinations is the most
    frequent one; staying is that of leaving.
    """
    layout, base, s = patterns.spots, patterns.spots.base, patterns.n_states
    form, n_columns = base.form, values.shape[1]
    visits = patterns.weights @ patterns.token_counts
    counts = np.bincount(layout.base_cell, visits, base.n_cells)
    shapes = StepParams.shapes(form, s, n_columns)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    first, leave, leave_z, into, into_z = (
        np.arange(end - int(np.prod(shape)), end).reshape(shape)
        for shape, end in zip(shapes, ends, strict=True)
    )
    fixed = np.zeros(int(ends[-1]))
    blocks = []

    def add(
        part: str, state: int, rows: Ints, answers: Ints, index: Ints, z_index: Ints | None
    ) -> None:
        """A block for rows of the base whose open cells are `answers`, counted from their first."""
        open_cells = base.bounds[rows][:, None] + answers
        seen = counts[open_cells]
        number = {int(r): a for a, r in enumerate(rows)}
        spots = np.flatnonzero(np.isin(layout.spot_row, rows))
        context = np.array([number[int(r)] for r in layout.spot_row[spots]], dtype=np.intp)
        cells = layout.bounds[spots][:, None] + answers
        if part == "initial":
            cells, context = layout.initial.start + answers[None], np.zeros(1, dtype=np.intp)
            spots = np.zeros(0, dtype=np.intp)
        places = index  # (A, m − 1)
        free = np.ones(places.shape, dtype=bool)
        if not prior:
            free = seen[:, 1:] > 0
            fixed[places[~free]] = NEVER
        design = np.eye(len(rows))[context]
        if z_index is not None:
            places = np.vstack([places, z_index.T])
            some_do = (seen[:, 1:].sum(axis=0) > 0) & (seen.sum() > seen[:, 1:].sum(axis=0))
            free = np.vstack([free, np.tile(some_do, (n_columns, 1))])
            design = np.hstack([design, values[layout.spot_z[spots]]])
        after = answers if part != "leaving" else np.array([state, -1])
        blocks.append(Block(part, state, cells, after, context, design, places, free, len(rows)))

    start_row, n_leaving = len(base.bounds) - 2, base.first_destination // 2
    open_start = np.flatnonzero(~zeros[base.bounds[start_row] :])
    order = open_start[np.argsort(-counts[base.bounds[start_row] :][open_start], kind="stable")]
    fixed[first[np.setdiff1d(np.arange(s), open_start)]] = NEVER
    add("initial", -1, np.array([start_row]), order, first[order[1:]][None], None)
    for i in range(s):
        rows = np.arange(i, n_leaving, s)
        cell = base.bounds[rows]
        if zeros[cell + 1].any():
            fixed[leave[..., i]] = NEVER
        elif zeros[cell].any():
            fixed[leave[..., i]] = -NEVER
        else:
            add("leaving", i, rows, np.arange(2), leave[..., i].reshape(-1, 1), leave_z[i][None])
        rows = np.arange(n_leaving + i, start_row, s)
        closed = zeros[base.bounds[rows[0]] + np.arange(s)]
        fixed[into[:, i][:, closed]] = NEVER
        answers = np.flatnonzero(~closed)
        if len(answers) < 2:
            continue
        often = counts[base.bounds[rows][:, None] + answers].sum(axis=0)
        answers = answers[np.argsort(-often, kind="stable")]
        slopes = None if form.shared else into_z[i, answers[1:]]
        add("destination", i, rows, answers, into[:, i][:, answers[1:]], slopes)
    return blocks, fixed


class StepMixture(Mixture):
    """The data of a fit with covariates on the steps; its chains are the numbers (K, N)."""

    def __init__(
        self, rows: Rows, values: Floats, blocks: list[Block], prior: float, common: bool
    ) -> None:
        self.rows, self.values, self.blocks, self.prior_count = rows, values, blocks, prior
        self.common = common
        patterns: Any = rows.visits.patterns
        self.spots: StepLayout = patterns.spots

    def params(self, chains: Floats) -> StepParams:
        """The numbers as `StepParams`."""
        return StepParams.from_vector(
            chains, self.spots.form, self.spots.n_states, self.values.shape[1]
        )

    def cells(self, chains: Floats) -> Floats:
        """The probabilities of the cells, (K, C)."""
        return np.exp(self.params(chains).log_cells(self.spots, self.values))

    def penalty(self, chains: Floats) -> float:
        """What the prior adds to the log-likelihood."""
        total = 0.0
        for block in self.blocks if self.prior_count else ():
            design, weight = block.imagined
            for vector in chains:
                total += weight * float(log_shares(design @ block.coefficients(vector)).sum())
        return self.prior_count * total

    def estimate(self, expected: Floats, chains: Floats) -> Floats:
        """The M-step: the logits of visits expected of cells (K, C)."""
        new = chains.copy()
        most = 25 if len(chains) == 1 else _NEWTON
        for block in self.blocks:
            visits = expected[:, block.cells]
            if not block.n_columns:
                for k, counts in enumerate(visits):
                    new[k, block.numbers] = self._frequencies(block, counts)
            elif not self.common:
                for k, counts in enumerate(visits):
                    design, answers = self._with_prior(block, block.design, counts)
                    before = block.coefficients(chains[k])
                    after = fit_logit(design, answers, before, block.free, most)
                    new[k, block.numbers] = after[:, 1:]
            else:
                self._fit_common(block, visits, new, most)
        return new

    def _frequencies(self, block: Block, counts: Floats) -> Floats:
        """Log-odds (A, m − 1) of a block without covariates."""
        sums = np.array([np.bincount(block.context, x, block.n_contexts) for x in counts.T]).T
        logs = np.log(np.maximum(sums + self.prior_count, 1e-300))
        return np.asarray(np.clip(logs[:, 1:] - logs[:, :1], NEVER, -NEVER))

    def _with_prior(self, block: Block, design: Floats, counts: Floats) -> tuple[Floats, Floats]:
        if not self.prior_count:
            return design, counts
        more, weight = block.imagined
        imagined = np.full((len(more), counts.shape[1]), self.prior_count * weight)
        return np.vstack([design, more]), np.vstack([counts, imagined])

    def _fit_common(self, block: Block, visits: Floats, new: Floats, most: int) -> None:
        """One logit with intercepts of each class and slopes of all."""
        k, a, p = len(visits), block.n_contexts, block.n_columns
        parts = [self._with_prior(block, block.design, counts) for counts in visits]
        stacked = np.zeros((k, len(parts[0][0]), k * a + p))
        for number, (design, _) in enumerate(parts):
            stacked[number, :, number * a : (number + 1) * a] = design[:, :a]
            stacked[number, :, k * a :] = design[:, a:]
        tables = [block.coefficients(vector) for vector in new]
        start = np.vstack([*(table[:a] for table in tables), tables[0][a:]])
        free = np.vstack([np.tile(block.free[:a], (k, 1)), block.free[a:]])
        answers = np.vstack([counts for _, counts in parts])
        after = fit_logit(stacked.reshape(-1, k * a + p), answers, start, free, most)[:, 1:]
        new[:, block.numbers[:a]] = after[: k * a].reshape(k, a, -1)
        new[:, block.numbers[a:]] = after[k * a :]

    def inside(self, chains: Floats, last: Floats) -> Floats:
        """Log-odds are valid as they are."""
        del last
        return np.clip(chains, NEVER, -NEVER)


class StepFit(NamedTuple):
    """A fit with covariates on the steps: with the numbers of its classes, and coefficients (P, K)
    of membership."""

    fit: Fit
    params: StepParams
    coefficients: Floats
    rows: Rows
    n_parameters: int


def fit_steps(
    patterns: StepPatterns,
    values: Floats,
    weights: Floats,
    membership: Floats | None,
    groups: Ints | None,
    first: AnyParams,
    settings: Settings,
    common: bool,
    n_kicks: int,
    rng: np.random.Generator,
) -> StepFit:
    """Fit chains and coefficients together, from parameters that were found without covariates.

    `membership` (n, P) are standardised covariates of the classes, `groups` (n,) the numbers of
    groups with proportions of their own.
    """
    each = membership if groups is None else np.eye(int(groups.max()) + 1)[groups]
    rows = make_rows(patterns, weights, each)
    blocks, fixed = make_blocks(patterns, values, settings.zeros, settings.prior)
    mixture = StepMixture(rows, values, blocks, settings.prior, common)
    chains = _begin(first, fixed, blocks, patterns)
    coefficients = np.zeros((rows.design.shape[1], first.n_classes))
    shares = np.maximum(first.weights, 1e-12)
    coefficients[0 if groups is None else slice(None)] = np.log(shares / shares[0])
    ends, record = climb_and_kick(mixture, (chains, coefficients), settings, n_kicks, rng)
    best, n_there, average, order = best_of(rows, ends)
    chains, posterior = best.cells[order], best.posterior[:, order]
    coefficients = best.coefficients[:, order] - best.coefficients[:, order[:1]]
    shares = average[order][None]
    if groups is not None:
        shares = np.exp(log_softmax(coefficients, axis=1))
    base = patterns.spots.base
    # chains without covariates: the frequencies among the steps of each class
    expected = patterns.spots.in_base(mixture.expected(chains, posterior))
    prior = np.where(settings.zeros, 0.0, settings.prior)
    cells = row_probabilities(expected, base, prior, ~settings.zeros)
    fit = Fit(
        params_of(cells, average[order], base),
        shares,
        best.path,
        best.converged,
        posterior,
        base.sums(expected) < 1e-6,
        record,
        n_there,
        len(ends),
    )
    n_parameters = coefficients.shape[0] * (first.n_classes - 1) + _count(
        blocks, patterns, first.n_classes, common
    )
    return StepFit(fit, mixture.params(chains), coefficients, rows, n_parameters)


def _begin(first: AnyParams, fixed: Floats, blocks: list[Block], patterns: StepPatterns) -> Floats:
    """The numbers (K, N) of chains without effects."""
    logs = np.log(np.maximum(cells_of(first), 1e-12))
    chains = np.tile(fixed, (first.n_classes, 1))
    base: Layout = patterns.spots.base
    for block in blocks:
        rows = _base_rows(block, base)
        shift = {"leaving": np.arange(2)}.get(block.part, block.answers)
        cells = base.bounds[rows][:, None] + shift
        odds = logs[:, cells[:, 1:]] - logs[:, cells[:, :1]]
        a, free = block.n_contexts, block.free[: block.n_contexts]
        places = block.numbers[:a]
        chains[:, places[free]] = odds[:, free]
    return chains


def _base_rows(block: Block, base: Layout) -> Ints:
    """The rows of the form's layout that a block is about."""
    last, n_leaving, s = len(base.bounds) - 2, base.first_destination // 2, base.n_states
    if block.part == "initial":
        return np.array([last])
    if block.part == "leaving":
        return np.arange(block.state, n_leaving, s)
    return np.arange(n_leaving + block.state, last, s)


def _count(blocks: list[Block], patterns: StepPatterns, n_classes: int, common: bool) -> int:
    """Free parameters of the chains, of answers that occur in the data."""
    layout = patterns.spots
    visits = patterns.weights @ patterns.token_counts
    counts = np.bincount(layout.base_cell, visits, layout.base.n_cells)
    total = 0
    for block in blocks:
        shift = np.arange(2) if block.part == "leaving" else block.answers
        seen = counts[layout.base.bounds[_base_rows(block, layout.base)][:, None] + shift] > 0
        n_intercepts = int(np.maximum(seen.sum(axis=1) - 1, 0).sum())
        n_slopes = int(block.free[block.slopes].sum())
        total += n_intercepts * n_classes + n_slopes * (1 if common else n_classes)
    return total


def separated_steps(params: StepParams, design: Design, values: Floats, states: Any) -> str:
    """A sentence on covariates that separate steps without exception; empty if there is none."""
    reach = np.ptp(values, axis=0) if len(values) else np.zeros(len(design.columns) - 1)
    leaving = np.abs(params.leaving_slopes) * reach > _SEPARATED
    into = np.abs(params.destination_slopes) * reach > _SEPARATED
    by_state = leaving.any(axis=0) | into.any(axis=(0, 2))
    found = [
        f"{design.columns[c + 1]} in {states[i]}"
        for i, c in zip(*np.nonzero(by_state), strict=True)
    ]
    if not found:
        return ""
    return (
        f"covariates separate steps almost without exception ({some(found)}), so that their odds "
        "ratios grow without bound and their intervals mean little; merge rare levels, leave them "
        f"out, or ask for {option('common_effects', True)}."
    )


# --- new sequences -------------------------------------------------------------------------


def draw_steps(
    params: StepParams,
    form: Form,
    weights: Floats,
    rows: StepRows,
    lengths: NDArray[Any],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int8], Ints]:
    """Codes of patients with these lengths and covariates, and the class of each."""
    n = len(lengths)
    classes = rng.choice(len(weights), size=n, p=weights / weights.sum())
    codes = np.full((n, int(lengths.max())), -1, dtype=np.int8)
    first = np.exp(log_softmax(params.initial, axis=1))[classes]
    state = _draw(first, rng)
    spent = np.ones(n, dtype=np.int64)
    codes[:, 0] = state
    each = np.arange(n)
    period = bins_of(form.periods, np.arange(1, codes.shape[1] + 1))
    for t in range(codes.shape[1] - 1):
        z, q = rows.values[rows.number[:, t]], 0 if form.shared else period[t]
        odds = params.leaving_logits(period[t], bins_of(form.stays, spent), state, z)
        leaves = rng.random(n) < expit(odds[classes, each])
        logits = params.destination_logits(q, state, z)[classes, each]
        into = _draw(np.exp(log_softmax(logits, axis=1)), rng)
        spent = np.where(leaves, 1, spent + 1)
        state = np.where(leaves, into, state)
        codes[:, t + 1] = np.where(t + 1 < lengths, state, -1)
    return codes, classes


def _draw(shares: Floats, rng: np.random.Generator) -> Ints:
    """One answer of each row of probabilities."""
    ladder = np.cumsum(shares, axis=1)
    ladder /= ladder[:, -1:]
    drawn: Ints = (rng.random(len(shares))[:, None] >= ladder).sum(axis=1)
    return drawn


def sample_steps(
    params: StepParams,
    weights: Floats,
    form: Form,
    design: Design,
    states: tuple[str, ...],
    lengths: NDArray[Any],
    covariates: AnyCovariates | None,
    rng: np.random.Generator,
) -> tuple[Sequences, pd.Series]:
    """New sequences of patients with these covariates, and the class of each."""
    n_times = int(lengths.max())
    if covariates is None:
        raise InputError(
            f"the model's steps depend on covariates ({form.transitions}); give those of the "
            "patients as step_covariates."
        )
    followed = np.where(np.arange(n_times) < lengths[:, None], 0, -1).astype(np.int8)
    empty = Sequences.from_codes(followed, states).with_step_covariates(covariates)
    _, rows = read_step_covariates(empty, form, "error", design)
    codes, classes = draw_steps(params, form, weights, rows, lengths, rng)
    sequences = replace(Sequences.from_codes(codes, states), step_covariates=empty.step_covariates)
    return sequences, pd.Series(classes, index=sequences.ids, name="class")
