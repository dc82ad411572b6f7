"""From sequences to distinct transition patterns: all that the likelihood depends on.

The likelihood of a sequence in class k is u_k[x₁]·∏ T_k[i, j]^n_ij, times an entry of a
power of T_k for each gap of missing times. So patients with the same first state, the same
transition counts and the same gaps are one *pattern* with a weight, and what follows never
looks at patients again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca.sequences.forms import PLAIN, Form, Layout, layout_of, step_contexts

_BLOCK = 1 << 15
_MEMO = 1 << 14


@dataclass(frozen=True, eq=False)
class Patterns:
    """Distinct transition patterns of n patients with S states.

    A pattern is a set of tokens; a token is a cell and how often the pattern visits it.
    Cell i·S + j is the step from state i to j, and i = S is the start: cell S·S + j means
    "begins in j". Cell S·(S + 1) + g is row g of `gaps`. Chains of another form have other cells
    (`mmlca.sequences.forms.Layout`) and no gaps. The order of the patterns does not depend on the
    order of the patients.

    Parameters
    ----------
    n_states : S
    indptr : (U + 1,) int64
        The tokens of pattern u are `tokens[indptr[u]:indptr[u + 1]]`.
    tokens : (nnz,) int32
        Indices into `cell` and `times`.
    cell, times : (V,) int32
        The distinct tokens: a cell and how often it is visited, sorted.
    gaps : (G, 3) int64
        Distinct gaps: state before (S: none), unobserved times, state after.
    inverse : (n,) int32
        The pattern of each patient.
    weights : (U,) float64
        Summed weights of each pattern's patients.
    starts : (H + 1,) int64, optional
        For a table `by_group`: the patterns of group h are rows starts[h] to starts[h + 1].
    form : Form
        The form of the chains that the patterns are for.
    left_out : steps, patients
        For forms other than plain: how many steps of how many patients are left out because
        windows are missing.
    """

    n_states: int
    indptr: NDArray[np.int64]
    tokens: NDArray[np.int32]
    cell: NDArray[np.int32]
    times: NDArray[np.int32]
    gaps: NDArray[np.int64]
    inverse: NDArray[np.int32]
    weights: NDArray[np.float64]
    starts: NDArray[np.int64] | None = None
    form: Form = PLAIN
    left_out: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def layout(self) -> Layout:
        """The cells; gaps come after them."""
        return layout_of(self.form, self.n_states)

    @property
    def n_cells(self) -> int:
        """Number of cells, without gaps."""
        return self.layout.n_cells

    def reweight(self, weights: ArrayLike) -> Self:
        """The same table for other patients' weights (n,): a resample, a fold, a pseudo-site."""
        each = np.asarray(weights, dtype=float)
        summed = np.bincount(self.inverse, weights=each, minlength=len(self)).astype(float)
        return replace(self, weights=summed)

    def take(self, rows: NDArray[np.intp], weights: NDArray[np.float64]) -> Self:
        """Some of the patterns with new weights; the index of the patients is dropped."""
        size = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(size)])
        place = np.repeat(self.indptr[rows] - indptr[:-1], size) + np.arange(indptr[-1])
        starts = None if self.starts is None else np.searchsorted(rows, self.starts)
        return replace(
            self,
            indptr=indptr,
            tokens=self.tokens[place],
            weights=weights,
            inverse=np.empty(0, dtype=np.int32),
            starts=starts,
        )

    def by_group(
        self, groups: NDArray[np.intp], n_groups: int, weights: NDArray[np.float64]
    ) -> Self:
        """The patterns of each of several groups of patients, one group after the other.

        Parameters
        ----------
        groups : (n,)
            The group of each patient, 0 … n_groups − 1.
        n_groups : int
        weights : (n,)
            Of the patients.
        """
        pair = groups.astype(np.int64) * len(self) + self.inverse
        pairs, inverse = np.unique(pair, return_inverse=True)
        rows = pairs % max(len(self), 1)
        summed = np.bincount(inverse, weights=weights, minlength=len(pairs)).astype(float)
        starts = np.searchsorted(pairs, np.arange(n_groups + 1) * len(self))
        table = replace(self, starts=None).take(rows, summed)
        return replace(table, inverse=inverse.astype(np.int32), starts=starts)

    def of_group(self, group: int) -> Self:
        """The patterns of one group of a table `by_group`, as a table without groups."""
        assert self.starts is not None
        rows = np.arange(self.starts[group], self.starts[group + 1])
        return replace(self, starts=None).take(rows, self.weights[rows])

    @cached_property
    def token_counts(self) -> Any:
        """How often each pattern visits each cell, as a sparse (U, cells) table of floats."""
        from scipy import sparse

        times = self.times[self.tokens].astype(float)
        shape = (len(self), self.n_cells + len(self.gaps))
        return sparse.csr_array((times, self.cell[self.tokens], self.indptr), shape=shape)


def distinct_rows(
    codes: NDArray[np.int8], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first of each group of equal rows, and the number of each row's group."""
    n, n_times = codes.shape
    rows = np.full((n, 8 * -(-(n_times + 4) // 8)), -1, dtype=np.int8)
    rows[:, :n_times] = codes
    rows[:, -4:] = lengths.view(np.int8).reshape(n, 4)
    words = pd.DataFrame(rows.view(np.int64))
    number = words.groupby(list(words.columns), sort=False).ngroup().to_numpy()
    return np.unique(number, return_index=True)[1], number


def reduce_codes(codes: NDArray[np.int8], n_states: int) -> Patterns:
    """Distinct transition patterns of an (n, T) table of codes, each patient with weight 1.

    −1 inside a row is missing; what follows the last state is ignored. Patients are compared
    by 96 bits of two independent hashes of their transitions: among 10 million patients the
    chance that any two different ones are taken for equal is below 10⁻¹⁴.

    Examples
    --------
    >>> table = reduce_codes(np.array([[0, 0, 1], [0, 1, 1], [0, 0, 1]], dtype=np.int8), 2)
    >>> sorted(table.weights.tolist())
    [1.0, 2.0]
    """
    from mmlca.sequences import _kernels

    n_cells = n_states * (n_states + 1)
    inverse = np.empty(len(codes), dtype=np.int32)
    first, order, longest_gap = _number_rows(codes, n_states, inverse)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    weights = np.zeros(len(order))
    _kernels.renumber(inverse, rank, weights)

    rows = codes[first[order]]
    n_times = rows.shape[1]
    count = np.zeros(n_cells * (longest_gap + 1), dtype=np.int32)
    n_possible = len(count) * (n_times + 1)
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    capacity = len(rows) * min(n_times, 16) + n_times + 1
    tokens = np.empty(capacity, dtype=np.int32 if n_possible < 2**31 else np.int64)
    touched = np.empty(n_times, dtype=np.int64)
    done = 0
    while done < len(rows):
        done = _kernels.count_tokens(rows, n_states, count, indptr, tokens, touched, done)
        if done < len(rows):
            tokens = np.concatenate([tokens, np.empty_like(tokens)])
    tokens = tokens[: indptr[-1]]
    if n_possible < 1 << 22:
        used = np.bincount(tokens, minlength=n_possible) > 0
        token = np.flatnonzero(used)
        tokens = (np.cumsum(used, dtype=np.int32) - 1)[tokens]
    else:
        tokens, token = pd.factorize(tokens, sort=True)
    cell, gaps = _split_gaps(token // (n_times + 1), n_states)
    return Patterns(
        n_states,
        indptr,
        tokens.astype(np.int32, copy=False),
        cell,
        (token % (n_times + 1)).astype(np.int32),
        gaps,
        inverse,
        weights,
    )


def reduce_steps(
    codes: NDArray[np.int8], lengths: NDArray[np.int32], n_states: int, form: Form, finest: Form
) -> Patterns:
    """Distinct patterns of patients, without steps whose context is not known, each with weight 1.

    In plain chains a step is one token; in others it is one if the patient stays, and two if the
    patient leaves: leaving, and the destination. Steps whose context in chains of the form `finest`
    is not known, because windows are missing, are left out, and so are first states that are
    missing; `left_out` counts the steps. `finest` has all cut points of `form`.
    """
    first, number = distinct_rows(codes, lengths)
    rows, layout = codes[first], layout_of(form, n_states)
    n_times = rows.shape[1]
    bins, period, _ = step_contexts(rows, form)
    known = step_contexts(rows, finest)[2]
    row, t = np.nonzero(known)
    before, after, at = rows[row, t].astype(np.int64), rows[row, t + 1].astype(np.int64), period[t]
    moves = before != after
    begins = np.flatnonzero(rows[:, 0] >= 0) if n_times else np.empty(0, dtype=np.int64)
    if form == PLAIN:
        cells, places = [before * n_states + after], [row]
    else:
        cells = [
            layout.context_cell(at, bins[row, t], before) + moves,
            layout.destination_cell(at, before, after)[moves],
        ]
        places = [row, row[moves]]
    cells.append(layout.initial.start + rows[begins, 0].astype(np.int64))
    missed = (count_steps(rows) - known.sum(axis=1))[number]
    return Patterns(
        n_states,
        gaps=np.empty((0, 3), dtype=np.int64),
        form=form,
        left_out=(int(missed.sum()), int((missed > 0).sum())),
        **tabulate_visits(
            np.concatenate([*places, begins]), np.concatenate(cells), number, layout.n_cells
        ),
    )


def count_steps(rows: NDArray[np.int8]) -> NDArray[np.intp]:
    """The steps of rows of codes up to their last observed state."""
    seen, n_times = rows >= 0, rows.shape[1]
    return np.where(seen.any(axis=1), n_times - 1 - seen[:, ::-1].argmax(axis=1), 0)


def tabulate_visits(
    place: NDArray[Any], cells: NDArray[Any], number: NDArray[np.intp], n_cells: int
) -> dict[str, NDArray[Any]]:
    """Visits of cells by rows as parts of `Patterns`: distinct rows, and the patients' index.

    Each visit has the row `place` and one of `cells`; `number` (n,) is the row of each patient.
    """
    from scipy import sparse

    ones = np.ones(len(place), dtype=np.uint64)
    n_rows = int(number.max(initial=-1)) + 1
    counts = sparse.csr_array((ones, (place, cells)), (n_rows, n_cells))
    counts.sort_indices()
    keys = np.random.default_rng(0).integers(2**64, size=(n_cells, 2), dtype=np.uint64)
    _, kept, rank = np.unique(counts @ keys, axis=0, return_index=True, return_inverse=True)
    table = counts[kept]
    most = int(table.data.max(initial=0)) + 1
    token, tokens = np.unique(
        table.indices.astype(np.int64) * most + table.data.astype(np.int64), return_inverse=True
    )
    inverse = rank.reshape(-1)[number]
    return {
        "indptr": table.indptr.astype(np.int64),
        "tokens": tokens.astype(np.int32).reshape(-1),
        "cell": (token // most).astype(np.int32),
        "times": (token % most).astype(np.int32),
        "inverse": inverse.astype(np.int32),
        "weights": np.bincount(inverse, minlength=len(kept)).astype(float),
    }


def _number_rows(
    codes: NDArray[np.int8], n_states: int, inverse: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Number the rows with equal transitions alike, in order of appearance, in `inverse`.

    In blocks that stay in the cache: rows seen before, as most are, are recognised as they
    stand; only the others' transitions are hashed and looked up. Returns the first row of
    each number, an order of the numbers that does not depend on the order of the rows, and
    the longest gap.
    """
    from mmlca.sequences import _kernels

    n, n_times = codes.shape
    n_block = min(max(n, 1), _BLOCK)
    padded = np.full((n_block, 8 * -(-n_times // 8)), -1, dtype=np.int8)
    memo = np.empty((_MEMO, padded.shape[1] // 8), dtype=np.uint64)
    numbers = np.full(_MEMO, -1, dtype=np.int32)
    unknown = np.empty(n_block + 1, dtype=np.int64)
    n_cells = n_states * (n_states + 1)
    keys = np.random.default_rng(0).integers(2**64, size=(n_cells, 2), dtype=np.uint64)
    hashes = np.empty((n_block, 2), dtype=np.uint64)
    slots, first = np.zeros((1 << 12, 2), dtype=np.uint64), np.empty(1 << 11, dtype=np.int64)
    longest_gap = n_kept = 0
    for begin in range(0, n, n_block):
        part, of_part = codes[begin : begin + n_block], inverse[begin : begin + n_block]
        if n_times % 8:
            padded[: len(part), :n_times] = part
            words = padded[: len(part)].view(np.uint64)
        else:
            words = part.view(np.uint64)
        new = unknown[: _kernels.recall(words, memo, numbers, of_part, unknown)]
        longest = _kernels.hash_transitions(part, new, n_states, keys, hashes)
        longest_gap = max(longest_gap, longest)
        n_before, done = n_kept, 0
        while done < len(new):
            done, n_kept = _kernels.merge_hashes(hashes, new, of_part, slots, first, done, n_kept)
            if done < len(new):
                first = np.concatenate([first, np.empty(3 * len(first), dtype=np.int64)])
                old, slots = slots, np.zeros((4 * len(slots), 2), dtype=np.uint64)
                _kernels.move_slots(old, slots)
        first[n_before:n_kept] += begin
        _kernels.remember(words, new, memo, numbers, of_part)
    kept = slots[slots[:, 1] != 0]
    number = (kept[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1
    return first, number[np.argsort(kept[:, 0])], longest_gap


def _split_gaps(
    cell: NDArray[np.int64], n_states: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number the gap cells behind the S·(S + 1) plain ones, and take them apart."""
    n_cells = n_states * (n_states + 1)
    gap_cells, number = np.unique(cell[cell >= n_cells], return_inverse=True)
    numbered = cell.copy()
    numbered[cell >= n_cells] = n_cells + number
    step, after = np.divmod(gap_cells, n_states)
    unobserved, before = np.divmod(step, n_states + 1)
    return numbered.astype(np.int32), np.column_stack([before, unobserved, after])
