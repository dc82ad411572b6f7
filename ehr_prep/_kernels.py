"""Compiled loops. Plain functions on arrays; everything was checked before it gets here."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

FIRST, LATEST, PREVIOUS = 0, 1, 2


@njit(cache=True)
def choose_states(
    indptr: NDArray[np.int64],
    date: NDArray[np.int32],
    end: NDArray[np.int32],
    state: NDArray[np.int8],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    n_states: int,
    rule: int,
    codes: NDArray[np.int8],
) -> tuple[int, int, int, int]:
    """The state of every window that has one, into `codes` (n, W), which is all −1.

    Parameters
    ----------
    indptr, date, state
        Records sorted by patient and date, see `Records`.
    end : (records,) or (0,)
        Last day each covers: days are counted. Empty: records are counted.
    edges : (n, W + 1)
        First day of each window, and the day after the last.
    last : (n,)
        Last day of follow-up.
    rule : FIRST, LATEST or PREVIOUS
        What decides between equals.

    Returns
    -------
    Records before the first window, after follow-up, after the last window; windows with
    a tie.
    """
    n_windows = codes.shape[1]
    by_days = len(end) > 0
    tally = np.zeros((n_windows, n_states), dtype=np.int64)
    opened = np.zeros((n_windows, n_states), dtype=np.int32)
    closed = np.zeros((n_windows, n_states), dtype=np.int32)
    covered = np.zeros(n_states, dtype=np.int32)
    n_before = n_late = n_beyond = n_tied = 0
    for p in range(len(codes)):
        covered[:] = edges[p, 0] - 1
        w = used = 0
        for r in range(indptr[p], indptr[p + 1]):
            if date[r] > last[p]:
                n_late += 1
                continue
            if date[r] >= edges[p, n_windows]:
                n_beyond += 1
                continue
            s = state[r]
            if date[r] < edges[p, 0]:
                n_before += 1
                continue
            while date[r] >= edges[p, w + 1]:
                w += 1
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
        before = -1
        for v in range(used):
            best = -1
            tied = False
            for s in range(n_states):
                if tally[v, s] == 0:
                    continue
                if best < 0 or tally[v, s] > tally[v, best]:
                    best = s
                    tied = False
                elif tally[v, s] == tally[v, best]:
                    tied = True
                    if rule == LATEST:
                        wins = closed[v, s] > closed[v, best]
                    elif rule == PREVIOUS and (s == before or best == before):
                        wins = s == before
                    else:
                        wins = opened[v, s] < opened[v, best]
                    if wins:
                        best = s
            codes[p, v] = best
            if best >= 0:
                before = best
            n_tied += tied
        tally[:used] = 0
    return n_before, n_late, n_beyond, n_tied
