"""Compiled loops over one patient after the other: states of windows, and lines of treatment.

Plain functions on arrays; everything was checked before it gets here. `records` are always the
columns date, end (the last day covered) and state (a row of `members`) of all records, sorted by
patient and date; `members` (m, k) are the classes of one record, padded with −1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehr_prep.settings import Rules
from mmlca.sequences._compiled import entry, inner

NO_DATE = np.iinfo(np.int32).min
FAR = np.int32(2**31 - 1)
FIRST, LATEST, PREVIOUS = range(3)  # ties
BEFORE, LATE, BEYOND = range(3)  # why a record is dropped
COUNTED, TIED, SEVERAL, CARRIED, OFF, UNOBSERVED = range(6)  # windows, see `assign_states`

Records = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]]
Days = NDArray[np.int32]


class Choice(NamedTuple):
    """The rules for windows (`ehr_prep.settings.Rules`) as numbers.

    Parameters
    ----------
    ties : FIRST, LATEST or PREVIOUS
    limit : how many windows in a row may be carried
    supplied : for how many days after its supply a class goes on; −1: supply does not matter
    off : the code of a window that is not carried, −1 for missing
    by_days : bool
    gap_days, combination_days : int
    """

    ties: int
    limit: int
    supplied: int
    off: int
    by_days: bool
    gap_days: int
    combination_days: int

    @classmethod
    def of(cls, rules: Rules, n_windows: int) -> Choice:
        limits = {"carry_forward_max": rules.max_carry, "missing": 0}
        return cls(
            ties=("first", "latest", "previous").index(rules.ties),
            limit=limits.get(rules.impute, n_windows),
            supplied=rules.gap_days if rules.impute == "carry_forward_supplied" else -1,
            off=-2 if rules.has_off else -1,
            by_days=rules.by == "days",
            gap_days=rules.gap_days,
            combination_days=rules.combination_days,
        )


class Tally(NamedTuple):
    """What counts in each window for each class of one patient, (W, S) each.

    Parameters
    ----------
    n : records or days covered; −1: the class does not count in the window
    first, last : the first and the last day that counted
    supply : days supplied by the records that start in the window, added up
    until : the last day covered by any of them; NO_DATE: there are none
    """

    n: Days
    first: Days
    last: Days
    supply: Days
    until: Days


class Eras(NamedTuple):
    """Stretches of days in which one class is in use without a real break."""

    state: NDArray[np.int8]
    first: Days
    last: Days


class Segments(NamedTuple):
    """Stretches of days with one set of classes, in order of time; a set is a sum of 2**class."""

    first: Days
    last: Days
    classes: NDArray[np.int64]


# --- records → eras → segments ------------------------------------------------------------


@inner
def n_classes_of(members: NDArray[np.int8]) -> int:
    """The number of classes: one more than the largest."""
    most = -1
    for i in range(members.shape[0]):
        for j in range(members.shape[1]):
            most = max(most, int(members[i, j]))
    return most + 1


@inner
def make_room(
    span: tuple[NDArray[np.int64], NDArray[np.int64]], members: NDArray[np.int8]
) -> tuple[Eras, Segments]:
    """Room for the eras and segments of any one patient."""
    most = 1
    for p in range(len(span[0])):
        most = max(most, (span[1][p] - span[0][p]) * members.shape[1])
    day = np.int32
    eras = Eras(np.empty(most, np.int8), np.empty(most, day), np.empty(most, day))
    n = 2 * most
    return eras, Segments(np.empty(n, day), np.empty(n, day), np.empty(n, np.int64))


@inner
def find_eras(
    records: Records,
    rows: tuple[int, int],
    days: tuple[int, int],
    members: NDArray[np.int8],
    gap: int,
    eras: Eras,
    running: NDArray[np.int64],
) -> int:
    """One patient's eras from the records of these `rows` and `days`; returns their number.

    Covers of a class with at most `gap` uncovered days between them are one era. `running`
    (classes,) is room for the latest era of each class.
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
            if e >= 0 and date[r] - eras.last[e] - 1 <= gap:
                eras.last[e] = max(eras.last[e], end[r])
                continue
            running[s] = n
            eras.state[n] = s
            eras.first[n] = date[r]
            eras.last[n] = end[r]
            n += 1
    return n


@inner
def find_segments(eras: Eras, n_eras: int, segments: Segments) -> int:
    """The segments of one patient's eras; returns their number.

    Eras of one class never touch, so that each begin or end toggles the class's bit.
    """
    day = np.empty(2 * n_eras, dtype=np.int32)
    for e in range(n_eras):
        day[2 * e] = eras.first[e]
        day[2 * e + 1] = eras.last[e] + 1
    order = np.argsort(day)
    classes = np.int64(0)
    n = 0
    for i in range(len(order)):
        classes ^= np.int64(1) << np.int64(eras.state[order[i] // 2])
        now = day[order[i]]
        if i + 1 < len(order) and day[order[i + 1]] > now and classes != 0:
            segments.first[n] = now
            segments.last[n] = day[order[i + 1]] - 1
            segments.classes[n] = classes
            n += 1
    return n


# --- records → states ---------------------------------------------------------------------


@entry
def assign_states(
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    records: Records,
    windows: tuple[Days, Days, NDArray[np.bool_]],
    members: NDArray[np.int8],
    choice: Choice,
    codes: NDArray[np.int16],
    sets: NDArray[np.int64] | None,
    n_records: NDArray[np.int64],
    dropped: NDArray[np.int64],
    counted: NDArray[np.int64],
) -> int:
    """The state of every followed-up window, into `codes` (n, W).

    Parameters
    ----------
    span : (n,), (n,)
        The records of patient p are `span[0][p]:span[1][p]`.
    windows : edges, last, observed
        See `ehr_prep.states.Frame`; `observed` is (1, W) if everybody's windows are alike.
    codes : (n, W)
        Filled with −1 before. Codes from the number of classes on are combinations.
    sets : (many,), optional
        Receives the set of each combination that was taken; code S + i is `sets[i]`. None:
        combinations are not states, and what finds them is not even compiled.
    n_records : (n,)
        Receives the number of each patient's records that fall into a window.
    dropped : (3,)
        Receives how many records do not, by reason.
    counted : (6,)
        Receives the number of windows in which a class counts, with a tie, with several classes,
        carried, off treatment, and unobserved.

    Returns
    -------
    Number of combinations; one more than `sets` can hold: there were too many.
    """
    edges, last, observed = windows
    shape = codes.shape[1], n_classes_of(members)
    tally = Tally(
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
    )
    room = np.empty(shape[1], dtype=np.int64)
    if sets is not None:
        eras, segments = make_room(span, members)
    n_sets = 0
    for p in range(len(codes)):
        followed = 0
        while followed < shape[0] and edges[p, followed] <= last[p]:
            followed += 1
        rows = (span[0][p], span[1][p])
        by_days = choice.by_days
        if sets is not None:
            by_days = False
        n_records[p] = tally_records(
            records, rows, edges[p], last[p], followed, members, by_days, tally, dropped
        )
        if sets is not None:
            days = (edges[p, 0], min(last[p], edges[p, shape[0]] - 1))
            n_eras = find_eras(records, rows, days, members, choice.gap_days, eras, room)
            n = find_segments(eras, n_eras, segments)
            n_sets = combine_classes(
                segments, n, edges[p], followed, choice, tally, codes[p], sets, n_sets
            )
            if n_sets > len(sets):
                break
        row = observed[min(p, len(observed) - 1)]
        fill_windows(tally, edges[p], followed, row, choice, sets, codes[p], room, counted)
    return n_sets


@inner
def tally_records(
    records: Records,
    rows: tuple[int, int],
    edges: Days,
    last: int,
    followed: int,
    members: NDArray[np.int8],
    by_days: bool,
    tally: Tally,
    dropped: NDArray[np.int64],
) -> int:
    """Count one patient's records, or the days that they cover; returns the number of records."""
    date, end, state = records
    n_windows, n_states = tally.n.shape
    tally.n[:followed] = -1
    tally.supply[:followed] = 0
    tally.until[:followed] = NO_DATE
    covered = np.empty(n_states if by_days else 0, dtype=np.int32)
    covered[:] = edges[0] - 1
    w = n = 0
    for r in range(rows[0], rows[1]):
        if date[r] > last:
            dropped[LATE] += 1
            continue
        if date[r] >= edges[n_windows]:
            dropped[BEYOND] += 1
            continue
        if date[r] < edges[0]:
            dropped[BEFORE] += 1
            continue
        n += 1
        while date[r] >= edges[w + 1]:
            w += 1
        for s in members[state[r]]:
            if s < 0:
                break
            tally.supply[w, s] += end[r] - date[r] + 1
            tally.until[w, s] = max(tally.until[w, s], end[r])
            if not by_days:
                add_days(tally, w, s, date[r], date[r], 1)
                continue
            # a day covered twice by a class counts once; the window in which follow-up ends
            # counts to its own end, or else a last supply would be cut to a single day
            day = max(date[r], covered[s] + 1)
            for v in range(w, followed):
                stop = min(end[r], edges[v + 1] - 1)
                if day <= stop:
                    add_days(tally, v, s, day, stop, stop - day + 1)
                    day = stop + 1
            covered[s] = max(covered[s], end[r])
    return n


@inner
def add_days(tally: Tally, w: int, s: int, first: int, last: int, n: int) -> None:
    """Add n to the count of a class in a window, on the days from first to last."""
    if tally.n[w, s] < 0:
        tally.n[w, s] = 0
        tally.first[w, s] = first
        tally.last[w, s] = last
    tally.n[w, s] += n
    tally.first[w, s] = min(tally.first[w, s], first)
    tally.last[w, s] = max(tally.last[w, s], last)


@inner
def combine_classes(
    segments: Segments,
    n_segments: int,
    edges: Days,
    followed: int,
    choice: Choice,
    tally: Tally,
    codes: NDArray[np.int16],
    sets: NDArray[np.int64],
    n_sets: int,
) -> int:
    """Write combinations into `codes`, and count the classes of each window by era.

    A class in an era counts by the patient's records where a window has any, else by its days.
    Returns the number of sets.
    """
    n_states = tally.n.shape[1]
    begin = 0
    for w in range(followed):
        a, b = edges[w], edges[w + 1] - 1
        while begin < n_segments and segments.last[begin] < a:
            begin += 1
        stop, union = begin, np.int64(0)
        while stop < n_segments and segments.first[stop] <= b:
            union |= segments.classes[stop]
            stop += 1
        together = choose_set(segments, begin, stop, a, b, choice.combination_days)
        if together:
            i = 0
            while i < n_sets and sets[i] != together:
                i += 1
            if i == len(sets):
                return i + 1
            sets[i] = together
            n_sets = max(n_sets, i + 1)
            codes[w] = n_states + i
        recorded = not choice.by_days and tally.n[w].max() > 0
        for s in range(n_states):
            if not union >> s & 1 or (recorded and tally.n[w, s] > 0):
                continue
            # a class without a record cannot win: a record of another one counts more
            tally.n[w, s], tally.first[w, s], tally.last[w, s] = 0, FAR, -FAR
            if recorded:
                continue
            for g in range(begin, stop):
                if segments.classes[g] >> s & 1:
                    first, last = max(segments.first[g], a), min(segments.last[g], b)
                    add_days(tally, w, s, first, last, last - first + 1)
    return n_sets


@inner
def choose_set(segments: Segments, begin: int, stop: int, a: int, b: int, least: int) -> int:
    """The largest set of classes together for `least` of the days a … b, 0 if there is none.

    Of sets with as many classes it is the one that was together for more days, then the one that
    was so first, then by the order of the classes. Classes are together also on days on which a
    further one is taken, so that the candidates are the intersections of the segments' sets.
    """
    several = False
    for g in range(begin, stop):
        several |= segments.classes[g] & (segments.classes[g] - 1) != 0
    best, best_rank = np.int64(0), (0, 0, 0)
    if not several:
        return int(best)
    family = np.empty(64, dtype=np.int64)
    size = 0
    for g in range(begin, stop):
        for m in range(-1, size):
            both = segments.classes[g] if m < 0 else segments.classes[g] & family[m]
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
    for m in range(size):
        n_days, since, n_classes = 0, FAR, 0
        for g in range(begin, stop):
            if segments.classes[g] & family[m] == family[m]:
                first = max(segments.first[g], a)
                n_days += min(segments.last[g], b) - first + 1
                since = min(since, first)
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
    return int(best)


@inner
def is_member(code: int, state: int, sets: NDArray[np.int64] | None, n_states: int) -> bool:
    """Whether a code is a class or a combination with it; negative codes are neither."""
    if sets is not None:  # noqa: SIM102 - alone, so that the compiler drops it where it is None
        if code >= n_states:
            return bool(sets[code - n_states] >> state & 1)
    return code == state


@inner
def fill_windows(
    tally: Tally,
    edges: Days,
    followed: int,
    observed: NDArray[np.bool_],
    choice: Choice,
    sets: NDArray[np.int64] | None,
    codes: NDArray[np.int16],
    reach: NDArray[np.int64],
    counted: NDArray[np.int64],
) -> None:
    """The state of each window of one patient, where it is not a combination.

    A window in which classes count gets the one that counts most; the others are filled in.
    `reach` (S,) is room for the day on which the supply of each class ends.
    """
    n_states = len(reach)
    reach[:] = NO_DATE
    taken, run = -1, 0
    for w in range(followed):
        n_present = 0
        for s in range(n_states):
            n_present += tally.n[w, s] >= 0
        if n_present:
            counted[COUNTED] += 1
            counted[SEVERAL] += n_present > 1
            run = 0
            if codes[w] < 0:
                previous = int(codes[w - 1]) if w else -1
                codes[w], tied = choose_class(tally, w, choice.ties, sets, previous, taken)
                counted[TIED] += tied
            taken = int(codes[w])
        else:
            run += 1
            filled = taken
            if run > choice.limit:
                filled = choice.off
            elif choice.supplied >= 0:
                supplied = taken >= 0
                furthest = -1
                for s in range(n_states):
                    goes_on = reach[s] + choice.supplied >= edges[w]
                    if is_member(taken, s, sets, n_states) and not goes_on:
                        supplied = False
                    if goes_on and (furthest < 0 or reach[s] > reach[furthest]):
                        furthest = s
                if not supplied:
                    filled = furthest if furthest >= 0 else choice.off
            if not observed[w]:
                counted[UNOBSERVED] += 1
            elif filled >= 0:
                counted[CARRIED] += 1
                codes[w] = taken = filled
            else:
                counted[OFF] += 1
                codes[w] = filled
        for s in range(n_states):
            reach[s] = max(reach[s], tally.until[w, s])


@inner
def choose_class(
    tally: Tally, w: int, ties: int, sets: NDArray[np.int64] | None, previous: int, taken: int
) -> tuple[int, bool]:
    """The class that counts most in a window, and whether another one counts as much.

    Of equals it is the one that the rule for ties prefers, then the one with the larger supply,
    then the class already taken, then the first in order.
    """
    best, best_rank, tied = -1, (0, 0, 0, 0), False
    for s in range(tally.n.shape[1]):
        n = tally.n[w, s]
        if n < 0 or (best >= 0 and n < tally.n[w, best]):
            continue
        stays = ties == PREVIOUS and is_member(previous, s, sets, tally.n.shape[1])
        when = int(tally.last[w, s]) if ties == LATEST else -int(tally.first[w, s])
        again = is_member(taken, s, sets, tally.n.shape[1])
        rank = (int(stays), when, int(tally.supply[w, s]), int(again))
        if best < 0 or n > tally.n[w, best]:
            best, best_rank, tied = s, rank, False
        else:
            tied = True
            if rank > best_rank:
                best, best_rank = s, rank
    return best, tied


# --- observation --------------------------------------------------------------------------


@entry
def observed_days(
    indptr: NDArray[np.int64], start: Days, end: Days, edges: Days, last: Days, seen: Days
) -> None:
    """Add to `seen` (n, W) the days of each window, up to `last`, inside a patient's periods."""
    for p in range(len(seen)):
        for i in range(indptr[p], indptr[p + 1]):
            for w in range(seen.shape[1]):
                a = max(start[i], edges[p, w])
                b = min(end[i], edges[p, w + 1] - 1, last[p])
                if b >= a:
                    seen[p, w] += b - a + 1


# --- lines of treatment -------------------------------------------------------------------


@entry
def find_regimens(
    span: tuple[NDArray[np.int64], NDArray[np.int64]],
    records: Records,
    days: tuple[Days, Days],
    members: NDArray[np.int8],
    rules: tuple[int, int, int],
    out: tuple[NDArray[np.int64], Days, Days, NDArray[np.int64]],
) -> int:
    """Regimens by date, into `out`; returns their number. See `ehr_prep.lines.patient_lines`.

    Parameters
    ----------
    span : see `assign_states`
    days : index date, last day of follow-up
    rules : gap_days, combination_days, min_era_days
    out : patient, first day, last day, classes
    """
    gap, least, shortest = rules
    eras, segments = make_room(span, members)
    first, last, classes = segments
    running = np.empty(n_classes_of(members), dtype=np.int64)
    row = 0
    for p in range(len(span[0])):
        until = days[1][p]
        rows = (span[0][p], span[1][p])
        n_eras = find_eras(records, rows, (days[0][p], until), members, gap, eras, running)
        kept = 0
        for e in range(n_eras):
            if eras.last[e] - eras.first[e] + 1 >= shortest:
                eras.state[kept] = eras.state[e]
                eras.first[kept] = eras.first[e]
                eras.last[kept] = min(eras.last[e], until)
                kept += 1
        n = find_segments(eras, kept, segments)
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
    return row
