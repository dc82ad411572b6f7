"""Compiled loops. Plain functions on arrays; everything was checked before it gets here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences._compiled import entry, inner

FIRST, LATEST, PREVIOUS = 0, 1, 2
NO_DATE = np.iinfo(np.int32).min


# --- records → cells and sets -----------------------------------------------------------


@inner
def n_classes_of(members: NDArray[np.int8]) -> int:
    """The number of classes: one more than the largest in `members` (m, k)."""
    most = -1
    for i in range(members.shape[0]):
        for j in range(members.shape[1]):
            most = max(most, int(members[i, j]))
    return most + 1


@entry
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
    supply = np.empty((n_windows, n_states), dtype=np.int32)
    until = np.empty((n_windows, n_states), dtype=np.int32)
    covered = np.empty(n_states, dtype=np.int32)
    used = n_windows
    row = n_before = n_late = n_beyond = 0
    for p in range(len(edges)):
        for v in range(used):
            for s in range(n_states):
                tally[v, s] = 0
                supply[v, s] = 0
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
                supply[w, s] += end[r] - date[r] + 1
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
                    out[6][row] = supply[v, s]
                    out[7][row] = until[v, s]
                    row += 1
    return row, n_before, n_late, n_beyond


# --- cells and sets → states ------------------------------------------------------------

Cells = tuple[
    NDArray[np.int64],
    NDArray[np.int16],
    NDArray[np.int8],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
]


@inner
def is_member(members: NDArray[np.bool_], code: int, state: int) -> bool:
    """Whether a code is a class or a combination with it; negative codes are neither."""
    return code >= 0 and bool(members[code, state])


@inner
def tie_rank(
    cells: Cells, i: int, rule: int, members: NDArray[np.bool_], previous: int, taken: int
) -> tuple[int, int, int, int]:
    """What decides between classes that count equally: the larger rank wins.

    First the rule, then the larger days' supply, then the class already taken.
    """
    _, _, state, _, first, last, supply = cells
    stays = rule == PREVIOUS and is_member(members, previous, state[i])
    when = int(last[i]) if rule == LATEST else -int(first[i])
    return int(stays), when, int(supply[i]), int(is_member(members, taken, state[i]))


@entry
def assign_states(
    cells: Cells,
    ends: tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int8], NDArray[np.int32]],
    frame: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]],
    members: NDArray[np.bool_],
    rules: tuple[int, int, int, int],
    codes: NDArray[np.int16],
) -> tuple[int, int, int, int, int, int]:
    """The state of every followed-up window, into `codes` (n, W), where that is −1.

    A window with cells gets the class that counts most; of equals, the one of the largest
    `tie_rank`, then the first in the order of the classes. The others are filled in.

    Parameters
    ----------
    cells : patient, window, state, count, first, last, supply
        Sorted by the first three; see `ehr_prep.states.Cells`.
    ends : patient, window, state, end
        When the supply of the records of each window ends, sorted likewise.
    frame : edges, last, observed
        See `ehr_prep.states.Frame`; `observed` is (1, W) if everybody's windows are alike.
    members : (codes, classes)
        The classes of each code.
    rules : tie rule, limit, gap, off
        FIRST, LATEST or PREVIOUS; how many windows in a row may be carried; for how many days
        after its supply a class goes on (−1: supply does not matter); the code after that, −1 for
        missing.

    Returns
    -------
    Windows with cells, with a tie, with several classes, carried, off treatment, unobserved.
    """
    rule, limit, gap, off = rules
    edges, last, observed = frame
    patient, window, state, count = cells[0], cells[1], cells[2], cells[3]
    n_classes = members.shape[1]
    reach = np.empty(n_classes, dtype=np.int64)
    n_counted = n_tied = n_several = n_carried = n_off = n_unobserved = 0
    c = e = 0
    for p in range(len(codes)):
        reach[:] = NO_DATE
        taken = -1
        run = 0
        row = min(p, len(observed) - 1)
        for w in range(codes.shape[1]):
            if edges[p, w] > last[p]:
                break
            begin = c
            while c < len(patient) and patient[c] == p and window[c] == w:
                c += 1
            if c > begin:
                n_counted += 1
                n_several += c - begin > 1
                run = 0
                if codes[p, w] < 0:
                    previous = int(codes[p, w - 1]) if w else -1
                    best, tied = begin, False
                    for i in range(begin + 1, c):
                        if count[i] > count[best]:
                            best, tied = i, False
                        elif count[i] == count[best]:
                            tied = True
                            rank = tie_rank(cells, i, rule, members, previous, taken)
                            if rank > tie_rank(cells, best, rule, members, previous, taken):
                                best = i
                    codes[p, w] = state[best]
                    n_tied += tied
                taken = int(codes[p, w])
            else:
                run += 1
                filled = taken
                if run > limit:
                    filled = off
                elif gap >= 0:
                    supplied = taken >= 0
                    furthest = -1
                    for s in range(n_classes):
                        goes_on = reach[s] + gap >= edges[p, w]
                        if is_member(members, taken, s) and not goes_on:
                            supplied = False
                        if goes_on and (furthest < 0 or reach[s] > reach[furthest]):
                            furthest = s
                    if not supplied:
                        filled = furthest if furthest >= 0 else off
                if not observed[row, w]:
                    n_unobserved += 1
                elif filled >= 0:
                    n_carried += 1
                    codes[p, w] = taken = filled
                else:
                    n_off += 1
                    codes[p, w] = filled
            while e < len(ends[0]) and ends[0][e] == p and ends[1][e] <= w:
                reach[ends[2][e]] = max(reach[ends[2][e]], ends[3][e])
                e += 1
        while c < len(patient) and patient[c] == p:
            c += 1
        while e < len(ends[0]) and ends[0][e] == p:
            e += 1
    return n_counted, n_tied, n_several, n_carried, n_off, n_unobserved


# --- observation ------------------------------------------------------------------------


@entry
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
