"""From records to the state of every window of every patient.

What counts in a window, and for how much, is found by compiled loops (`ehr_prep._kernels`):

- Only records with `edges[p, 0] <= date <= last[p]` and `date < edges[p, W]` count, where `edges`
  and `last` are those of the `Frame`; the others are counted in `Assigned.dropped`, each once, in
  the order: after the end of follow-up, after the last window, before the index date.
- A record of a fixed combination counts for each of its classes.
- By days, a record covers date … end; days of one class that two records cover count once; a
  cover is cut at the window in which follow-up ends (at its end, not at the day itself).
- For combinations the covers of a class that are at most `gap_days` uncovered days apart are one
  *era*, the days between included.
- Classes are numbered in the order of their names (`name_order`), not in that of the drug map:
  the order of the drug map decides the order of the states and the names of combinations, never
  the state of a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehr_prep.records import Records
from ehr_prep.settings import DEAD, OTHER, Rules
from ehr_prep.values import NO_DATE
from font.checks import some
from font.errors import InputError, option, option_name
from mmlca.sequences.checks import check_n_states

_MOST_SETS = 2**14

MOST_CLASSES = 62
"""Classes that can be combined: a set is one bit each of an int64, without its last two."""


class Frame(NamedTuple):
    """The windows of n patients; days are counted from 1970-01-01.

    Parameters
    ----------
    edges : (n, W + 1) int32
        First day of each window, and the day after the last.
    last : (n,) int32
        Last day of follow-up.
    observed : (n, W) bool, optional
        Whether at least half of a window's followed-up days were observed; None: all were.
    died : (n,) int32, optional
        Day of death or `NO_DATE`, where death is a state; None: it is not.
    data_end : int, optional
        Last day on which anything, death included, is known; needed with `died`.
    """

    edges: NDArray[np.int32]
    last: NDArray[np.int32]
    observed: NDArray[np.bool_] | None
    died: NDArray[np.int32] | None
    data_end: int | None


class Assigned(NamedTuple):
    """Every patient's states, and what happened on the way.

    Parameters
    ----------
    codes : (n, W) int8
        Index into `states`, −1 if missing or void.
    lengths : (n,) int64
        Windows that were followed up.
    states : tuple of str
        The classes, then the combinations, "other combination", off treatment and "dead", as far
        as the rules make them possible; they do not depend on the patients unless the rules let
        the patients choose the combinations.
    windows : dict
        Windows that were `followed_up`, `without_record` (or supply, where that counts), `tied`,
        with `several_classes`, `carried`, `off_treatment`, `unobserved`, in a `combination`, in
        an `other_combination`, `dead`.
    combinations : dict
        {name: windows} of every combination that was taken, the most frequent first.
    takers : dict
        {name: patients} of the same.
    n_records : (n,) int64
        Records of each patient that fall into a window.
    dropped : (before the index date, after the end of follow-up, after the last window)
        Records that do not.
    """

    codes: NDArray[np.int8]
    lengths: NDArray[np.int64]
    states: tuple[str, ...]
    windows: dict[str, int]
    combinations: dict[str, int]
    takers: dict[str, int]
    n_records: NDArray[np.int64]
    dropped: list[int]


def window_edges(
    index: NDArray[np.int32], max_windows: int, months: int = 3, days: float | None = None
) -> NDArray[np.int32]:
    """First day of each window, and the day after the last one: (n, max_windows + 1).

    Examples
    --------
    >>> index = np.array(["2010-01-31"], dtype="datetime64[D]").astype(np.int32)
    >>> window_edges(index, 2).astype("datetime64[D]").astype(str).tolist()
    [['2010-01-31', '2010-04-30', '2010-07-31']]
    """
    edges = np.empty((len(index), max_windows + 1), dtype=np.int32)
    if days is not None:
        edges[:] = index[:, None] + np.ceil(np.arange(max_windows + 1) * days).astype(np.int32)
        return edges
    month = index.astype("datetime64[D]").astype("datetime64[M]")
    day_of_month = index - month.astype("datetime64[D]").astype(np.int32)
    for window in range(max_windows + 1):
        begins = month + np.timedelta64(window * months, "M")
        first = begins.astype("datetime64[D]").astype(np.int32)
        next_first = (begins + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int32)
        edges[:, window] = first + np.minimum(day_of_month, next_first - first - 1)
    return edges


def name_order(classes: tuple[str, ...]) -> NDArray[np.int8]:
    """The position of each class in the order of the names.

    >>> name_order(("TNFi", "JAK", "anti-CD20")).tolist()
    [2, 1, 0]
    """
    order = sorted(range(len(classes)), key=lambda i: (classes[i].casefold(), classes[i]))
    return np.argsort(order).astype(np.int8)


def assign_states(
    records: Records, kept: NDArray[np.bool_], frame: Frame, rules: Rules
) -> Assigned:
    """The state of every window in the frame of the patients `kept`."""
    from ehr_prep import _kernels

    n, n_windows = len(frame.edges), frame.edges.shape[1] - 1
    end = records.date if records.end is None else records.end
    observed = frame.observed
    codes = np.full((n, n_windows), -1, dtype=np.int16)
    sets = np.empty(_MOST_SETS, dtype=np.int64) if rules.combine else None
    n_records, dropped, counted = (np.zeros(m, dtype=np.int64) for m in (n, 3, 6))
    n_sets = _kernels.assign_states(
        (records.indptr[:-1][kept], records.indptr[1:][kept]),
        (records.date, end, records.state),
        (frame.edges, frame.last, np.ones((1, n_windows), bool) if observed is None else observed),
        np.append(name_order(records.states), np.int8(-1))[records.members],
        _kernels.Choice.of(rules, n_windows),
        codes,
        sets,
        n_records,
        dropped,
        counted,
    )
    if n_sets > _MOST_SETS:
        raise InputError(
            f"more than {_MOST_SETS:,} different combinations of classes were taken together; map "
            f"drugs to fewer classes, or raise {option('combination_days')}."
        )
    lengths = (frame.edges[:, :-1] <= frame.last[:, None]).sum(axis=1)
    n_counted, tied, several, carried, off, unobserved = counted.tolist()
    windows = {
        "followed_up": int(lengths.sum()),
        "without_record": int(lengths.sum()) - n_counted,
        "tied": tied,
        "several_classes": several,
        "carried": carried,
        "off_treatment": 0 if rules.impute == "missing" else off,
        "unobserved": unobserved,
    }
    states, table, taken, takers = _number_states(
        codes, [] if sets is None else sets[:n_sets].tolist(), records.states, rules
    )
    final = table[codes + 2].astype(np.int8)
    if rules.combine:
        windows["combination"] = sum(taken.values())
        others = [n for name, n in taken.items() if name not in states]
        windows["other_combination"] = sum(others)
    if rules.death == "state":
        lengths, windows["dead"] = _mark_dead(final, lengths, frame, len(states) - 1)
    return Assigned(final, lengths, states, windows, taken, takers, n_records, dropped.tolist())


def check_rules(rules: Rules, classes: tuple[str, ...]) -> None:
    """Refuse names of states that are taken, and combinations that do not exist."""
    taken = {"off_treatment": rules.off_treatment} if rules.has_off else {}
    if rules.death == "state" and DEAD in (*classes, *taken.values()):
        raise InputError(
            f"{option('death', 'state')} adds the state {DEAD!r}, which is a class of the drug map "
            "or the name of the state off treatment already; rename that."
        )
    for name, state in taken.items():
        if state in classes:
            raise InputError(
                f"{option(name, state)} is a class of the drug map; choose another name."
            )
    if rules.combine:
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"combinations of more than {MOST_CLASSES} classes cannot be distinguished, the "
                f"drug map has {len(classes)}; map drugs to fewer classes."
            )
        joined = [name for name in classes if "+" in name]
        if joined:
            raise InputError(
                f"the classes {some(joined)} have a + in their names, which joins the classes of a "
                "combination; rename them in the drug map."
            )
        named_combinations(rules, classes)
    elif rules.combinations is not None:
        raise InputError(
            f"{option('combinations')} belongs to {option('states', 'combinations')}; give both."
        )


def named_combinations(rules: Rules, classes: tuple[str, ...]) -> dict[int, str]:
    """{set of classes: name} of the combinations that the rules name, in the states' order."""
    number = {name: i for i, name in enumerate(classes)}
    sets = {}
    for text in rules.combinations or ():
        parts = [part.strip() for part in str(text).split("+")]
        unknown = [part for part in parts if part not in number]
        if unknown or len(set(parts)) < 2:
            raise InputError(
                f"{option_name('combinations')} names {text!r}, which is not made of two or more "
                f"of the classes {some(classes)}; write them as in {'+'.join(classes[:2])!r}."
            )
        key = sum(1 << number[part] for part in set(parts))
        sets[key] = set_name(key, classes)
    return sets


def frequent_combinations(
    windows: Mapping[str, int], patients: Mapping[str, int], rules: Rules
) -> list[str]:
    """The combinations that are states unless the rules name some; of equals the first.

    >>> frequent_combinations({"A+B": 90, "A+C": 8}, {"A+B": 20, "A+C": 3}, Rules())
    ['A+B']
    """
    common = [name for name in windows if patients[name] >= rules.min_combination_patients]
    return sorted(common, key=lambda name: -windows[name])[: rules.max_combinations]


def set_name(key: int, classes: tuple[str, ...]) -> str:
    """The classes of a set, in the states' order.

    >>> set_name(5, ("A", "B", "C"))
    'A+C'
    """
    return "+".join(name for i, name in enumerate(classes) if key >> i & 1)


# --- inside ----------------------------------------------------------------------------


def _number_states(
    codes: NDArray[np.int16], sets: list[int], classes: tuple[str, ...], rules: Rules
) -> tuple[tuple[str, ...], NDArray[np.int16], dict[str, int], dict[str, int]]:
    """The states, the number of each code + 2 among them; windows, patients by combination."""
    n_classes = len(classes)
    states = list(classes)
    counted: dict[str, int] = {}
    takers: dict[str, int] = {}
    in_map = np.argsort(name_order(classes))  # position in the drug map, by that in the names
    table = np.arange(-2, n_classes + len(sets), dtype=np.int16)
    table[0] = -1
    table[2 : 2 + n_classes] = in_map
    if rules.combine:
        n_windows = np.bincount(codes[codes >= n_classes] - n_classes, minlength=len(sets))
        order = sorted(range(len(sets)), key=lambda i: (-n_windows[i], sets[i]))
        sets = [sum(1 << int(in_map[i]) for i in _positions(key)) for key in sets]
        counted = {set_name(sets[i], classes): int(n_windows[i]) for i in order}
        n_patients = _patients_by_set(codes, n_classes, len(sets))
        takers = {set_name(sets[i], classes): int(n_patients[i]) for i in order}
        named = named_combinations(rules, classes)
        if rules.combinations is None:
            common = frequent_combinations(counted, takers, rules)
            named = {key: name for key in sets if (name := set_name(key, classes)) in common}
        in_order = sorted(named, key=lambda key: (key.bit_count(), _positions(key)))
        states += [named[key] for key in in_order]
        number = {key: n_classes + i for i, key in enumerate(in_order)}
        table[2 + n_classes :] = [number.get(key, len(states)) for key in sets]
        if rules.combinations is not None or any(key not in named for key in sets):
            states.append(OTHER)
    if rules.has_off:
        table[0] = len(states)
        states.append(rules.off_treatment)
    if rules.death == "state":
        states.append(DEAD)
    check_n_states(states)
    return tuple(states), table, counted, takers


def _patients_by_set(codes: NDArray[np.int16], n_classes: int, n_sets: int) -> NDArray[np.int64]:
    """How many patients have each combination in any window."""
    patients = np.zeros(n_sets, dtype=np.int64)
    some_set = codes[(codes >= n_classes).any(axis=1)]
    for w in range(codes.shape[1]):
        now = some_set[:, w]
        first = (now >= n_classes) & ~(some_set[:, :w] == now[:, None]).any(axis=1)
        patients += np.bincount(now[first] - n_classes, minlength=n_sets)
    return patients


def _positions(key: int) -> list[int]:
    return [i for i in range(key.bit_length()) if key >> i & 1]


def _mark_dead(
    codes: NDArray[np.int8], lengths: NDArray[np.int64], frame: Frame, dead: int
) -> tuple[NDArray[np.int64], int]:
    """Windows that begin after a death are in the state `dead`, to the end of the data.

    A patient who died leaves when one with the same index date who is followed to the end of the
    data does, so that both are counted in the same windows.
    """
    assert frame.died is not None
    assert frame.data_end is not None
    begins = frame.edges[:, :-1]
    known = frame.died != NO_DATE
    after = known[:, None] & (begins > frame.died[:, None]) & (begins <= frame.data_end)
    codes[after] = dead
    return np.maximum(lengths, np.where(after, np.arange(1, codes.shape[1] + 1), 0).max(axis=1)), (
        int(after.sum())
    )
