"""Compiled loops that reduce sequences to patterns: arrays that were checked before, no objects."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mmlca.sequences._compiled import entry

_ONE = np.uint64(1)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0x00000000FFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)
_MIX_1 = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xD6E8FEB86659FD93)
_MIX_3 = np.uint64(0xA0761D6478BD642F)
_BATCH = 64


@njit(inline="always")
def _mix(value: np.uint64, factor: np.uint64) -> np.uint64:
    value = value * factor
    return value ^ (value >> _SHIFT)


@njit(inline="always")
def _memo_slot(words: NDArray[np.uint64], row: int, mask: np.uint64) -> np.uint64:
    value = _MIX_3
    for c in range(words.shape[1]):
        value = _mix(value ^ words[row, c], _MIX_1)
    return value & mask


@entry
def recall(
    words: NDArray[np.uint64],
    memo: NDArray[np.uint64],
    numbers: NDArray[np.int32],
    inverse: NDArray[np.int32],
    unknown: NDArray[np.int64],
) -> int:
    """Number the rows that `memo` holds; list the others in `unknown` and return how many.

    Parameters
    ----------
    words : (n, w)
        Rows as 64-bit words.
    memo, numbers : (2^p, w), (2^p,)
        One remembered row for each slot and its number, −1 where the slot is free.
    """
    n, width = words.shape
    mask = np.uint64(len(memo) - 1)
    n_unknown = 0
    for r in range(n):
        slot = _memo_slot(words, r, mask)
        same = numbers[slot] >= 0
        for c in range(width):
            same &= memo[slot, c] == words[r, c]
        inverse[r] = numbers[slot]
        unknown[n_unknown] = r
        n_unknown += not same
    return n_unknown


@entry
def remember(
    words: NDArray[np.uint64],
    rows: NDArray[np.int64],
    memo: NDArray[np.uint64],
    numbers: NDArray[np.int32],
    inverse: NDArray[np.int32],
) -> None:
    """Put the given rows into free slots of `memo` (see `recall`)."""
    mask = np.uint64(len(memo) - 1)
    for r in rows:
        slot = _memo_slot(words, r, mask)
        if numbers[slot] < 0:
            for c in range(words.shape[1]):  # assigning the row takes two seconds to compile
                memo[slot, c] = words[r, c]
            numbers[slot] = inverse[r]


@entry
def renumber(
    inverse: NDArray[np.int32], rank: NDArray[np.int32], counts: NDArray[np.float64]
) -> None:
    """Replace each number by its rank, in place, and count the ranks."""
    for r in range(len(inverse)):
        inverse[r] = rank[inverse[r]]
        counts[inverse[r]] += 1


@entry
def hash_transitions(
    codes: NDArray[np.int8],
    rows: NDArray[np.int64],
    n_states: int,
    keys: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
) -> int:
    """Two 64-bit hashes (n, 2) of the transitions of each of the `rows`, whatever their order.

    The sum of the random `keys` (S·(S + 1), 2) of all steps taken: a step from state i to j
    is the cell i·S + j, where i = S is the start. A step over g unobserved times is the cell
    (g·(S + 1) + i)·S + j; those are rare, and their keys are made here. Returns the longest
    gap of any row.
    """
    longest = 0
    for r in range(len(rows)):
        row = codes[rows[r]]
        one = np.uint64(0)
        two = np.uint64(0)
        before = n_states
        gap = 0
        for t in range(len(row)):
            now = row[t]
            if now < 0:
                gap += 1
                continue
            cell = before * n_states + now
            if gap > 0:
                far = np.uint64(gap * (n_states + 1) * n_states + cell)
                one += _mix(_mix(far + _ONE, _MIX_1), _MIX_2)
                two += _mix(_mix(far + _ONE, _MIX_2), _MIX_3)
                longest = gap if gap > longest else longest
                gap = 0
            else:
                one += keys[cell, 0]
                two += keys[cell, 1]
            before = now
        hashes[r, 0] = _mix(one, _MIX_1)
        hashes[r, 1] = two
    return longest


@entry
def merge_hashes(
    hashes: NDArray[np.uint64],
    rows: NDArray[np.int64],
    inverse: NDArray[np.int32],
    slots: NDArray[np.uint64],
    first: NDArray[np.int64],
    done: int,
    n_kept: int,
) -> tuple[int, int]:
    """Number equal hashes alike, from the `done`-th on; returns how many are done and kept.

    The number of row `rows[r]`, whose hash is `hashes[r]`, goes to `inverse[rows[r]]`. An
    open-addressing table of slots (2^p, 2): the first hash, then the upper half of the
    second with the number plus one below it (0: free). `first` receives the first row of
    each number; where it is full, the caller provides a larger table.
    """
    n = len(rows)
    mask = np.uint64(len(slots) - 1)
    for begin in range(done, n, _BATCH):
        end = n if n < begin + _BATCH else begin + _BATCH
        touch = np.uint64(0)
        for r in range(begin, end):  # fetching a batch of slots together hides cache misses
            touch |= slots[hashes[r, 0] & mask, 1]
        if touch == 0 and n_kept == len(first):
            return begin, n_kept
        for r in range(begin, end):
            place = hashes[r, 0] & mask
            tag = hashes[r, 1] & _HIGH
            while True:
                slot = slots[place, 1]
                if slot == 0:
                    if n_kept == len(first):
                        return r, n_kept
                    first[n_kept] = rows[r]
                    inverse[rows[r]] = n_kept
                    n_kept += 1
                    slots[place, 0] = hashes[r, 0]
                    slots[place, 1] = tag | np.uint64(n_kept)
                    break
                if slots[place, 0] == hashes[r, 0] and (slot & _HIGH) == tag:
                    inverse[rows[r]] = np.int64(slot & _LOW) - 1
                    break
                place = (place + _ONE) & mask
    return n, n_kept


@entry
def move_slots(old: NDArray[np.uint64], slots: NDArray[np.uint64]) -> None:
    """Enter all of an old table into a new, empty one."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(old)):
        if old[i, 1] != 0:
            place = old[i, 0] & mask
            while slots[place, 1] != 0:
                place = (place + _ONE) & mask
            slots[place, 0] = old[i, 0]
            slots[place, 1] = old[i, 1]


@entry
def count_tokens(
    codes: NDArray[np.int8],
    n_states: int,
    count: NDArray[np.int32],
    indptr: NDArray[np.int64],
    tokens: NDArray[np.int32 | np.int64],
    touched: NDArray[np.int64],
    done: int,
) -> int:
    """Tokens, cell·(T + 1) + count, of each row in increasing order, from row `done` on.

    Fills `indptr` (d + 1,) and `tokens`; returns how many rows are done, fewer than all
    where `tokens` might not hold another row. `count` (cells,), all zero, and `touched` (T,) are
    scratch.
    """
    n_times = codes.shape[1]
    n_cells = len(count)
    walk = n_cells <= 4 * n_times  # few cells: visiting all is cheaper than sorting
    for d in range(done, len(codes)):
        p = indptr[d]
        if p + n_times + 1 > len(tokens):
            return d
        n_touched = 0
        before = n_states
        gap = 0
        for t in range(n_times):
            now = codes[d, t]
            if now < 0:
                gap += 1
                continue
            cell = (gap * (n_states + 1) + before) * n_states + now
            if not walk and count[cell] == 0:
                touched[n_touched] = cell
                n_touched += 1
            count[cell] += 1
            before = now
            gap = 0
        if walk:
            for cell in range(n_cells):  # written without a branch: most cells are empty
                tokens[p] = cell * (n_times + 1) + count[cell]
                p += count[cell] > 0
                count[cell] = 0
        else:
            _insertion_sort(touched, n_touched)
            for m in range(n_touched):
                tokens[p] = touched[m] * (n_times + 1) + count[touched[m]]
                p += 1
                count[touched[m]] = 0
        indptr[d + 1] = p
    return len(codes)


@njit(inline="always")
def _insertion_sort(values: NDArray[np.int64], n: int) -> None:
    for m in range(1, n):
        value = values[m]
        p = m
        while p > 0 and values[p - 1] > value:
            values[p] = values[p - 1]
            p -= 1
        values[p] = value
