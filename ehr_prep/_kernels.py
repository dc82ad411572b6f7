"""Compiled loops. Plain functions on arrays; everything was checked before it gets here."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

import mmlca.sequences._compiled  # noqa: F401 - readies the cache

FIRST, LATEST, PREVIOUS = 0, 1, 2
NO_DATE = np.iinfo(np.int32).min

Triple = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


# --- records → cells and sets -----------------------------------------------------------


@njit(cache=True)
def n_classes_of(members: NDArray[np.int8]) -> int:
    """The number of classes: one more than the largest in `members` (m, k)."""
    most = -1
    for i in range(members.shape[0]):
        for j in range(members.shape[1]):
            most = max(most, int(members[i, j]))
    return most + 1


@njit(cache=True)
def reduce_cells(
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    records: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    members: NDArray[np.int8],
    by_days: bool,
    out: tuple[
        NDArray[np.int64],
        NDArray[np.int16],
        NDArray[np.int8],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
    ],
    n_records: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Count each class in each window; see `ehr_prep.states.Cells`.

    Parameters
    ----------
    span : (n,), (n,)
        The records of patient p are `span[0][p]:span[1][p]`, sorted by date.
    records : date, end, state
        Of all records; `end` is the last day covered, `state` a row of `members`.
    edges, last
        See `ehr_prep.states.Frame`.
    members : (m, k)
        The classes of one record, padded with −1.
    out : the columns of `Cells`, long enough
    n_records : (n,)
        Receives the number of each patient's records that fall into a window.

    Returns
    -------
    Rows written; records before the first window, after follow-up, after the last window.
    """
    date, end, state = records
    n_windows = edges.shape[1] - 1
    n_states = n_classes_of(members)
    tally = np.empty((n_windows, n_states), dtype=np.int32)
    opened = np.empty((n_windows, n_states), dtype=np.int32)
    closed = np.empty((n_windows, n_states), dtype=np.int32)
    until = np.empty((n_windows, n_states), dtype=np.int32)
    covered = np.empty(n_states, dtype=np.int32)
    used = n_windows
    row = n_before = n_late = n_beyond = 0
    for p in range(len(edges)):
        for v in range(used):
            for s in range(n_states):
                tally[v, s] = 0
                until[v, s] = NO_DATE
        for s in range(n_states):
            covered[s] = edges[p, 0] - 1
        w = used = 0
        for r in range(span[0][p], span[1][p]):
            if date[r] > last[p]:
                n_late += 1
                continue
            if date[r] >= edges[p, n_windows]:
                n_beyond += 1
                continue
            if date[r] < edges[p, 0]:
                n_before += 1
                continue
            n_records[p] += 1
            while date[r] >= edges[p, w + 1]:
                w += 1
            for i in range(members.shape[1]):
                s = members[state[r], i]
                if s < 0:
                    break
                until[w, s] = max(until[w, s], end[r])
                if not by_days:
                    used = w + 1
                    if tally[w, s] == 0:
                        opened[w, s] = date[r]
                    tally[w, s] += 1
                    closed[w, s] = date[r]
                    continue
                # a day covered twice by a class counts once; the window in which follow-up ends
                # counts to its own end, or else a last supply would be cut to a single day
                day = max(date[r], covered[s] + 1)
                v = w
                while day <= end[r] and v < n_windows and edges[p, v] <= last[p]:
                    stop = min(end[r], edges[p, v + 1] - 1)
                    if day <= stop:
                        if tally[v, s] == 0:
                            opened[v, s] = day
                        tally[v, s] += stop - day + 1
                        closed[v, s] = stop
                        day = stop + 1
                        used = max(used, v + 1)
                    v += 1
                covered[s] = max(covered[s], end[r])
        for v in range(used):
            for s in range(n_states):
                if tally[v, s] > 0:
                    out[0][row] = p
                    out[1][row] = v
                    out[2][row] = s
                    out[3][row] = tally[v, s]
                    out[4][row] = opened[v, s]
                    out[5][row] = closed[v, s]
                    out[6][row] = until[v, s]
                    row += 1
    return row, n_before, n_late, n_beyond


# --- cells and sets → states ------------------------------------------------------------


@njit(cache=True)
def choose_classes(
    patient: NDArray[np.int64],
    window: NDArray[np.int16],
    state: NDArray[np.int8],
    counted: Triple,
    rule: int,
    codes: NDArray[np.int16],
) -> tuple[int, int]:
    """The class of every window with cells, into `codes` (n, W), where that is −1.

    Parameters
    ----------
    patient, window, state : cells, sorted by these three
    counted : count, first, last
        See `ehr_prep.states.Cells`.
    rule : FIRST, LATEST or PREVIOUS
        What decides between equals.

    Returns
    -------
    Windows with a tie, windows with several classes.
    """
    count, first, last = counted
    n_tied = n_several = 0
    before = who = -1
    i = 0
    while i < len(patient):
        p, w = patient[i], window[i]
        if p != who:
            who = p
            before = -1
        best, tied = i, False
        j = i + 1
        while j < len(patient) and patient[j] == p and window[j] == w:
            if count[j] > count[best]:
                best = j
                tied = False
            elif count[j] == count[best]:
                tied = True
                if rule == LATEST:
                    wins = last[j] > last[best]
                elif rule == PREVIOUS and (state[j] == before or state[best] == before):
                    wins = state[j] == before
                else:
                    wins = first[j] < first[best]
                if wins:
                    best = j
            j += 1
        n_several += j - i > 1
        if codes[p, w] < 0:
            codes[p, w] = state[best]
            n_tied += tied
        before = codes[p, w]
        i = j
    return n_tied, n_several


@njit(cache=True)
def carry(
    cells: tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int8], NDArray[np.int32]],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    observed: NDArray[np.bool_],
    members: NDArray[np.bool_],
    rules: tuple[int, int, int],
    codes: NDArray[np.int16],
) -> tuple[int, int, int]:
    """Fill the windows in which nothing counts, in place.

    Parameters
    ----------
    cells : patient, window, state, end
    edges, last : see `ehr_prep.states.Frame`
    observed : (n, W), or (1, W) if everybody's windows are alike
    members : (codes, classes)
        The classes of each code.
    rules : limit, gap, off
        How many windows in a row may be carried; for how many days after its supply a class goes
        on (−1: supply does not matter); the code after that, −1 for missing.

    Returns
    -------
    Windows carried, off treatment, unobserved.
    """
    limit, gap, off = rules
    n_classes = members.shape[1]
    reach = np.empty(n_classes, dtype=np.int64)
    n_carried = n_off = n_unobserved = 0
    c = 0
    for p in range(len(codes)):
        for s in range(n_classes):
            reach[s] = NO_DATE
        before = np.int16(-1)
        run = 0
        row = min(p, len(observed) - 1)
        for w in range(codes.shape[1]):
            if edges[p, w] > last[p]:
                break
            if codes[p, w] >= 0:
                before = codes[p, w]
                run = 0
            else:
                run += 1
                state = before
                if run > limit:
                    state = np.int16(off)
                elif gap >= 0:
                    supplied = bool(before >= 0)
                    furthest = -1
                    for s in range(n_classes):
                        goes_on = reach[s] + gap >= edges[p, w]
                        if before >= 0 and members[before, s] and not goes_on:
                            supplied = False
                        if goes_on and (furthest < 0 or reach[s] > reach[furthest]):
                            furthest = s
                    if not supplied:
                        state = np.int16(furthest if furthest >= 0 else off)
                if not observed[row, w]:
                    n_unobserved += 1
                elif state >= 0:
                    n_carried += 1
                    codes[p, w] = state
                    before = state
                else:
                    n_off += 1
                    codes[p, w] = state
            while c < len(cells[0]) and cells[0][c] == p and cells[1][c] <= w:
                reach[cells[2][c]] = max(reach[cells[2][c]], cells[3][c])
                c += 1
        while c < len(cells[0]) and cells[0][c] == p:
            c += 1
    return n_carried, n_off, n_unobserved


# --- observation ------------------------------------------------------------------------


@njit(cache=True)
def observed_days(
    indptr: NDArray[np.int64],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    seen: NDArray[np.int32],
) -> None:
    """Add to `seen` (n, W) the days of each window, up to `last`, inside a patient's periods."""
    for p in range(len(seen)):
        for i in range(indptr[p], indptr[p + 1]):
            for w in range(seen.shape[1]):
                a = max(start[i], edges[p, w])
                b = min(end[i], edges[p, w + 1] - 1, last[p])
                if b >= a:
                    seen[p, w] += b - a + 1
