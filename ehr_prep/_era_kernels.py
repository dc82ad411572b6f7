"""Compiled loops over eras: stretches of time in which a class is in use without a real break.

`ehr_prep._kernels` counts records and covered days by window, one class at a time, which is all
that the default rules need; here classes are looked at together, day by day. Sequences and lines
of treatment share the eras and the segments of this file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences._compiled import entry, inner

FAR = np.int32(2**31 - 1)
SWITCH, ADD_ON, DROP, STOP, DEATH, END = 0, 1, 2, 3, 4, 5  # see `ehr_prep.lines.REASONS`

Rows = tuple[
    NDArray[np.int64],
    NDArray[np.int16],
    NDArray[np.int8],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
]


# --- records → eras → sets ---------------------------------------------------------------


@inner
def find_eras(
    records: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]],
    rows: tuple[int, int],
    days: tuple[int, int],
    members: NDArray[np.int8],
    gap: int,
    era: tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.int32]],
    running: NDArray[np.int64],
) -> int:
    """One patient's eras: covers of a class at most `gap` uncovered days apart are one.

    Parameters
    ----------
    rows : the patient's records, sorted by date
    days : first and last day on which a record counts
    era : class, first day, last day
        Receives the eras.
    running : (classes,)
        Room for the class's latest era.

    Returns
    -------
    Number of eras.
    """
    date, end, state = records
    running[:] = -1
    n = 0
    for r in range(rows[0], rows[1]):
        if date[r] < days[0] or date[r] > days[1]:
            continue
        for s in members[state[r]]:
            if s < 0:
                break
            e = running[s]
            if e >= 0 and date[r] - era[2][e] - 1 <= gap:
                era[2][e] = max(era[2][e], end[r])
                continue
            running[s] = n
            era[0][n] = s
            era[1][n] = date[r]
            era[2][n] = end[r]
            n += 1
    return n


@inner
def find_segments(
    era: tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.int32]],
    n_eras: int,
    segment: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]],
) -> int:
    """Stretches of days with one set of classes: first day, last day, set, in order of time.

    Eras of one class never touch, so that each begin or end toggles the class's bit.
    """
    day = np.empty(2 * n_eras, dtype=np.int32)
    for e in range(n_eras):
        day[2 * e] = era[1][e]
        day[2 * e + 1] = era[2][e] + 1
    order = np.argsort(day)
    classes = np.int64(0)
    n = 0
    for i in range(len(order)):
        classes ^= np.int64(1) << np.int64(era[0][order[i] // 2])
        now = day[order[i]]
        if i + 1 < len(order) and day[order[i + 1]] > now and classes != 0:
            segment[0][n] = now
            segment[1][n] = day[order[i + 1]] - 1
            segment[2][n] = classes
            n += 1
    return n


@entry
def reduce_sets(
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    records: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    members: NDArray[np.int8],
    gap: int,
    out: tuple[
        NDArray[np.int64],
        NDArray[np.int16],
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
    ],
) -> int:
    """Days of each set of classes in use together; see `ehr_prep.states.Sets`."""
    n_windows = edges.shape[1] - 1
    most = 1
    for p in range(len(edges)):
        most = max(most, (span[1][p] - span[0][p]) * members.shape[1])
    era = (
        np.empty(most, dtype=np.int8),
        np.empty(most, dtype=np.int32),
        np.empty(most, dtype=np.int32),
    )
    segment = (
        np.empty(2 * most, dtype=np.int32),
        np.empty(2 * most, dtype=np.int32),
        np.empty(2 * most, dtype=np.int64),
    )
    running = np.empty(members.max() + 1, dtype=np.int64)
    row = 0
    for p in range(len(edges)):
        days = (edges[p, 0], min(last[p], edges[p, n_windows] - 1))
        n_eras = find_eras(records, (span[0][p], span[1][p]), days, members, gap, era, running)
        v, begin = 0, row
        for g in range(find_segments(era, n_eras, segment)):
            day = segment[0][g]
            while v < n_windows and day >= edges[p, v + 1]:
                v += 1
                begin = row
            while v < n_windows and day <= segment[1][g] and edges[p, v] <= last[p]:
                stop = min(segment[1][g], edges[p, v + 1] - 1)
                at = begin
                while at < row and out[2][at] != segment[2][g]:
                    at += 1
                if at == row:
                    out[0][row] = p
                    out[1][row] = v
                    out[2][row] = segment[2][g]
                    out[3][row] = 0
                    out[4][row] = day
                    row += 1
                out[3][at] += stop - day + 1
                out[5][at] = stop
                day = stop + 1
                if day >= edges[p, v + 1]:
                    v += 1
                    begin = row
    return row


# --- sets → states -----------------------------------------------------------------------


@entry
def choose_sets(
    patient: NDArray[np.int64],
    window: NDArray[np.int16],
    classes: NDArray[np.int64],
    days: NDArray[np.int32],
    first: NDArray[np.int32],
    least: int,
    shape: tuple[int, int],
) -> NDArray[np.int64]:
    """The largest set of classes that were together for `least` days in a window, 0 if none.

    Of sets with as many classes it is the one that was together for more days, then the one that
    was so first, then by the order of the classes. Classes are together also on days on which a
    further one is taken, so that the candidates are the intersections of the sets of the rows.

    Returns
    -------
    (n, W)
    """
    together = np.zeros(shape, dtype=np.int64)
    family = np.empty(64, dtype=np.int64)
    i = 0
    while i < len(patient):
        j = i
        several = False
        while j < len(patient) and patient[j] == patient[i] and window[j] == window[i]:
            several |= classes[j] & (classes[j] - 1) != 0
            j += 1
        size = 0
        for k in range(i, j if several else i):
            n_before = size
            for m in range(-1, n_before):
                both = classes[k] if m < 0 else classes[k] & family[m]
                if both & (both - 1) == 0:
                    continue  # none, or one class alone
                known = False
                for f in range(size):
                    known |= family[f] == both
                if not known:
                    if size == len(family):
                        family = np.concatenate((family, np.empty_like(family)))
                    family[size] = both
                    size += 1
        best, best_rank = np.int64(0), (0, 0, 0)
        for m in range(size):
            n_days, since, n_classes = 0, FAR, 0
            for k in range(i, j):
                if classes[k] & family[m] == family[m]:
                    n_days += days[k]
                    since = min(since, first[k])
            if n_days < least:
                continue
            bits = family[m]
            while bits:
                bits &= bits - 1
                n_classes += 1
            rank = (n_classes, int(n_days), -int(since))
            differ = best ^ family[m]
            earlier = family[m] & (differ & -differ) != 0
            if best == 0 or rank > best_rank or (rank == best_rank and earlier):
                best, best_rank = family[m], rank
        together[patient[i], window[i]] = best
        i = j
    return together


@entry
def cells_of_sets(
    patient: NDArray[np.int64],
    window: NDArray[np.int16],
    classes: NDArray[np.int64],
    days: NDArray[np.int32],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    cells: Rows,
    by_records: bool,
) -> Rows:
    """The cells of windows by era: with their records where a window has any, else their days.

    Parameters
    ----------
    patient … last : see `ehr_prep.states.Sets`
    cells : patient, window, state, count, first, last, supply
        Of the records.
    by_records : bool
        False: always days.
    """
    n = 0
    for i in range(len(patient)):
        bits = classes[i]
        while bits:
            bits &= bits - 1
            n += 1
    out = (
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int16),
        np.empty(n, dtype=np.int8),
        np.empty(n, dtype=np.int32),
        np.empty(n, dtype=np.int32),
        np.empty(n, dtype=np.int32),
        np.empty(n, dtype=np.int32),
    )
    row = i = c = 0
    while i < len(patient):
        p, w = patient[i], window[i]
        j, union = i, np.int64(0)
        while j < len(patient) and patient[j] == p and window[j] == w:
            union |= classes[j]
            j += 1
        while c < len(cells[0]) and (cells[0][c] < p or (cells[0][c] == p and cells[1][c] < w)):
            c += 1
        s = 0
        while union >> s:
            if union >> s & 1:
                out[0][row], out[1][row], out[2][row] = p, w, s
                n_counted, since, until, supply = 0, FAR, -FAR, 0
                d = c
                while d < len(cells[0]) and cells[0][d] == p and cells[1][d] == w:
                    if cells[2][d] == s:
                        supply = cells[6][d]
                        if by_records:
                            n_counted, since, until = cells[3][d], cells[4][d], cells[5][d]
                    d += 1
                # a class without a record cannot win: a record of another one counts more
                if not (by_records and d > c):
                    for k in range(i, j):
                        if classes[k] >> s & 1:
                            n_counted += days[k]
                            since = min(since, first[k])
                            until = max(until, last[k])
                out[3][row], out[4][row], out[5][row] = n_counted, since, until
                out[6][row] = supply
                row += 1
            s += 1
        i = j
    return (
        out[0][:row],
        out[1][:row],
        out[2][:row],
        out[3][:row],
        out[4][:row],
        out[5][:row],
        out[6][:row],
    )


# --- lines of treatment ------------------------------------------------------------------


@entry
def find_lines(
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    records: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]],
    days: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    members: NDArray[np.int8],
    rules: tuple[int, int, int],
    out: tuple[
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int8],
    ],
) -> int:
    """Lines of treatment; see `ehr_prep.lines.patient_lines`.

    Parameters
    ----------
    span, records, members : see `reduce_cells`
    days : index date, last day of follow-up, day of death or `NO_DATE`
    rules : gap_days, combination_days, min_era_days
    out : patient, first day, last day, classes, reason
        Receives the lines.

    Returns
    -------
    Number of lines.
    """
    gap, least, shortest = rules
    most = 1
    for p in range(len(span[0])):
        most = max(most, (span[1][p] - span[0][p]) * members.shape[1])
    era = (
        np.empty(most, dtype=np.int8),
        np.empty(most, dtype=np.int32),
        np.empty(most, dtype=np.int32),
    )
    segment = (
        np.empty(2 * most, dtype=np.int32),
        np.empty(2 * most, dtype=np.int32),
        np.empty(2 * most, dtype=np.int64),
    )
    first, last, classes = segment
    running = np.empty(members.max() + 1, dtype=np.int64)
    row = 0
    for p in range(len(span[0])):
        until = days[1][p]
        rows = (span[0][p], span[1][p])
        n_eras = find_eras(records, rows, (days[0][p], until), members, gap, era, running)
        kept = 0
        for e in range(n_eras):
            if era[2][e] - era[1][e] + 1 >= shortest:
                era[0][kept] = era[0][e]
                era[1][kept] = era[1][e]
                era[2][kept] = min(era[2][e], until)
                kept += 1
        n = find_segments(era, kept, segment)
        # overlaps that are too short are not a combination: from the back, so that the regimen
        # that follows is known; then from the front, for those with nothing after them
        short = np.zeros(n, dtype=np.bool_)
        for g in range(n - 1, -1, -1):
            together = classes[g] & (classes[g] - 1) != 0
            if together and last[g] - first[g] + 1 < least:
                short[g] = True
                if g + 1 < n and first[g + 1] == last[g] + 1 and not short[g + 1]:
                    classes[g] = classes[g + 1]
                    short[g] = False
        for g in range(1, n):
            if short[g] and first[g] == last[g - 1] + 1 and not short[g - 1]:
                classes[g] = classes[g - 1]
                short[g] = False
        begin = row
        for g in range(n):
            joins = row > begin and out[3][row - 1] == classes[g]
            if joins and first[g] == out[2][row - 1] + 1:
                out[2][row - 1] = last[g]
                continue
            out[0][row] = p
            out[1][row] = first[g]
            out[2][row] = last[g]
            out[3][row] = classes[g]
            row += 1
        for k in range(begin, row):
            if k + 1 < row:
                now, then = out[3][k], out[3][k + 1]
                pause = out[1][k + 1] - out[2][k] - 1
                if pause == 0 and now & then == now:
                    out[4][k] = ADD_ON
                elif pause == 0 and now & then == then:
                    out[4][k] = DROP
                else:
                    out[4][k] = SWITCH if pause <= gap and now != then else STOP
            elif until - out[2][k] > gap:
                out[4][k] = STOP
            else:
                out[4][k] = DEATH if days[2][p] == until else END
    return row
