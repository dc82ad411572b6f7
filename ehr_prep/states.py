"""From counts per patient, window and class (`ehr_prep.windows`) to the state of every window.

The class of each window and ties, combinations, windows without a record (carried forward, off
treatment or missing), gaps in observation and death.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ehr_prep.dates import NO_DATE
from ehr_prep.settings import DEAD, OTHER, Rules
from ehr_prep.windows import Frame, Reduction, name_order
from font.checks import some
from font.errors import InputError, option, option_name
from mmlca.sequences.checks import check_n_states

_MOST_SETS = 2**14
_TIES = ("first", "latest", "previous")  # as the kernel numbers them


MOST_CLASSES = 62
"""Classes that a `Sets.classes` can hold: one bit each of an int64, without its last two."""


class Finished(NamedTuple):
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
    n_records : (n,) int64
    dropped : as in `Reduction`, summed
    """

    codes: NDArray[np.int8]
    lengths: NDArray[np.int64]
    states: tuple[str, ...]
    windows: dict[str, int]
    combinations: dict[str, int]
    n_records: NDArray[np.int64]
    dropped: tuple[int, int, int]


def finish(
    parts: Iterable[Reduction], frame: Frame, classes: tuple[str, ...], rules: Rules
) -> Finished:
    """The state of every window, from what the reduction counted in it.

    `parts` are taken one after the other and not kept, so that they may be made as they are
    needed. Together they hold each patient of the frame once. `classes` are those of the drug
    map, in its order.
    """
    n, n_windows = len(frame.edges), frame.edges.shape[1] - 1
    codes = np.full((n, n_windows), -1, dtype=np.int16)
    lengths = (frame.edges[:, :-1] <= frame.last[:, None]).sum(axis=1)
    n_records = np.zeros(n, dtype=np.int64)
    dropped = np.zeros(3, dtype=np.int64)
    keys: list[int] = []
    counts = np.zeros(6, dtype=np.int64)
    for part in parts:
        rows = slice(part.start, part.stop)
        n_records[rows] = part.n_records
        dropped += part.dropped
        counts += _assign(part, codes[rows], keys, frame, rules, len(classes))
    counted, tied, several, carried, off, unobserved = counts.tolist()
    windows = {
        "followed_up": int(lengths.sum()),
        "without_record": int(lengths.sum()) - counted,
        "tied": tied,
        "several_classes": several,
        "carried": carried,
        "off_treatment": 0 if rules.impute == "missing" else off,
        "unobserved": unobserved,
    }
    return _numbered(codes, lengths, keys, frame, classes, rules, windows)._replace(
        n_records=n_records, dropped=(int(dropped[0]), int(dropped[1]), int(dropped[2]))
    )


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


def set_name(key: int, classes: tuple[str, ...]) -> str:
    """The classes of a set, in the states' order.

    >>> set_name(5, ("A", "B", "C"))
    'A+C'
    """
    return "+".join(name for i, name in enumerate(classes) if key >> i & 1)


# --- inside ----------------------------------------------------------------------------


def _assign(
    part: Reduction,
    codes: NDArray[np.int16],
    keys: list[int],
    frame: Frame,
    rules: Rules,
    n_classes: int,
) -> NDArray[np.int64]:
    """The states of the windows of a part, into `codes`; see `assign_states` for the counts.

    Codes from `n_classes` on stand for combinations, whose sets are appended to `keys`; −2 is off
    treatment where that is a state.
    """
    from ehr_prep import _kernels

    rows, n_windows = slice(part.start, part.stop), codes.shape[1]
    cells = part.cells._replace(patient=part.cells.patient - part.start)
    deciding: Any = cells[:7]
    if rules.combine:
        deciding = _combine(part, codes, keys, rules, n_classes)
    observed = np.ones((1, n_windows), dtype=bool)
    if frame.observed is not None:
        observed = frame.observed[rows]
    limit = rules.max_carry if rules.impute == "carry_forward_max" else n_windows
    if rules.impute == "missing":
        limit = 0
    gap = rules.gap_days if rules.impute == "carry_forward_supplied" else -1
    counts = _kernels.assign_states(
        deciding,
        (cells.patient, cells.window, cells.state, cells.end),
        (frame.edges[rows], frame.last[rows], observed),
        _members(keys, n_classes),
        (_TIES.index(rules.ties), limit, gap, -2 if rules.has_off else -1),
        codes,
    )
    return np.array(counts)


def _combine(
    part: Reduction, codes: NDArray[np.int16], keys: list[int], rules: Rules, n_classes: int
) -> Any:
    """Write the combinations into `codes`; returns the cells that decide in other windows."""
    from ehr_prep import _era_kernels

    if part.sets is None:
        raise InputError("combinations need the sets of classes taken together; reduce again.")
    sets = part.sets._replace(patient=part.sets.patient - part.start)
    together = _era_kernels.choose_sets(*sets[:5], rules.combination_days, codes.shape).ravel()
    at = np.flatnonzero(together)
    found, number = np.unique(together.ravel()[at], return_inverse=True)
    place = {key: i for i, key in enumerate(keys)}
    for key in found.tolist():
        if key not in place:
            place[key] = len(keys)
            keys.append(key)
    if len(keys) > _MOST_SETS:
        raise InputError(
            f"more than {_MOST_SETS:,} different combinations of classes were taken together; map "
            f"drugs to fewer classes, or raise {option('combination_days')}."
        )
    code_of = np.array([n_classes + place[key] for key in found.tolist()], dtype=np.int16)
    np.put(codes, at, code_of[number])
    cells = (part.cells.patient - part.start, *part.cells[1:7])
    by_records = rules.by == "records"
    return _era_kernels.cells_of_sets(*sets, cells, by_records)


def _members(keys: list[int], n_classes: int) -> NDArray[np.bool_]:
    """Which classes each code stands for, (codes, classes)."""
    sets = np.array(keys, dtype=np.int64)[:, None] >> np.arange(n_classes) & 1 == 1
    return np.concatenate([np.eye(n_classes, dtype=bool), sets])


def _numbered(
    codes: NDArray[np.int16],
    lengths: NDArray[np.int64],
    keys: list[int],
    frame: Frame,
    classes: tuple[str, ...],
    rules: Rules,
    windows: dict[str, int],
) -> Finished:
    """Give classes, combinations, off treatment and death their final numbers."""
    n_classes = len(classes)
    states = list(classes)
    counted: dict[str, int] = {}
    in_map = np.argsort(name_order(classes))  # position in the drug map, by that in the names
    table = np.arange(-2, n_classes + len(keys), dtype=np.int16)  # by code + 2
    table[0] = -1
    table[2 : 2 + n_classes] = in_map
    if rules.combine:
        n_windows = np.bincount(codes[codes >= n_classes] - n_classes, minlength=len(keys))
        order = sorted(range(len(keys)), key=lambda i: (-n_windows[i], keys[i]))
        keys = [sum(1 << int(in_map[i]) for i in _positions(key)) for key in keys]
        counted = {set_name(keys[i], classes): int(n_windows[i]) for i in order}
        named = named_combinations(rules, classes)
        if rules.combinations is None:
            named = {keys[i]: set_name(keys[i], classes) for i in order[: rules.max_combinations]}
        in_order = sorted(named, key=lambda key: (key.bit_count(), _positions(key)))
        states += [named[key] for key in in_order]
        number = {key: n_classes + i for i, key in enumerate(in_order)}
        others = [key for key in keys if key not in named]
        if others or rules.combinations is not None:
            states.append(OTHER)
        for i, key in enumerate(keys):
            table[2 + n_classes + i] = number.get(key, n_classes + len(in_order))
        windows["combination"] = sum(counted.values())
        windows["other_combination"] = sum(counted[set_name(key, classes)] for key in others)
    if rules.has_off:
        table[0] = len(states)
        states.append(rules.off_treatment)
    if rules.death == "state":
        states.append(DEAD)
    check_n_states(states)
    final = table[codes + 2].astype(np.int8)
    if rules.death == "state" and frame.died is not None:
        lengths, windows["dead"] = _bury(final, lengths, frame, len(states) - 1)
    empty = np.zeros(0, dtype=np.int64)
    return Finished(final, lengths, tuple(states), windows, counted, empty, (0, 0, 0))


def _positions(key: int) -> list[int]:
    return [i for i in range(key.bit_length()) if key >> i & 1]


def _bury(
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
