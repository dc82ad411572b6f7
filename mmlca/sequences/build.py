"""The ways into `Sequences`: each turns one form of data into checked fields.

Its functions are class methods of `Sequences`, such as `Sequences.from_frame`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import counted, some
from font.errors import InputError
from mmlca.sequences.checks import (
    check_n_states,
    check_n_times,
    check_time_columns,
    encode,
    last_observed,
    named_columns,
    need_columns,
    numbers_for,
    one_weight,
    patient_ids,
    state_labels,
    time_values,
)

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences

_DATES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "period")


def checked(
    cls: type[Sequences],
    codes: NDArray[np.int8],
    states: tuple[str, ...],
    ids: Any,
    weights: ArrayLike | None,
    lengths: ArrayLike | None,
    times: Iterable[Any] | None,
    **more: Any,
) -> Sequences:
    """The one gate: everything but the meaning of a state is checked here."""
    n, n_times = codes.shape
    check_n_times(n_times)
    time_labels = tuple(str(t) for t in (range(1, n_times + 1) if times is None else times))
    if len(time_labels) != n_times or len(set(time_labels)) != n_times:
        raise InputError(
            f"{n_times} different time labels are needed, found {len(time_labels)} "
            f"({some(time_labels)})."
        )
    index = patient_ids(ids, n)
    weight = np.ones(n) if weights is None else numbers_for(weights, n, "weights")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        raise InputError(
            f"{counted(bad.sum(), 'weight is', 'weights are')} negative or not finite (patients "
            f"{some(index[bad])}); weights must be 0 or more."
        )
    observed = last_observed(codes)
    if not observed.all():
        empty = observed == 0
        raise InputError(
            f"{counted(empty.sum(), 'patient has', 'patients have')} no observed state (patients "
            f"{some(index[empty])}); remove them first."
        )
    length = observed
    if lengths is not None:
        followed = numbers_for(lengths, n, "lengths")
        bad = ~((followed >= observed) & (followed <= n_times) & (followed == np.round(followed)))
        if bad.any():
            raise InputError(
                f"{counted(bad.sum(), 'length is', 'lengths are')} not between the last observed "
                f"state and {n_times}, or not a whole number (patients {some(index[bad])})."
            )
        length = followed.astype(np.int32)
    for array in (codes, weight, length):
        array.flags.writeable = False
    return cls(codes, states, index, weight, length, time_labels, **more)


def from_codes(
    cls: type[Sequences],
    codes: ArrayLike,
    states: Iterable[Any] | None = None,
    *,
    ids: Iterable[Hashable] | None = None,
    weights: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    times: Iterable[Any] | None = None,
) -> Sequences:
    """From an integer array (n, T); −1 is missing, or void after the last state.

    Parameters
    ----------
    codes : (n, T) array of integers
        Indices into `states`.
    states : labels, optional
        Without them the states are called "0", "1", … up to the largest code.
    ids : optional
        Default: 1 … n.
    weights : (n,) array, optional
        Default: 1 each.
    lengths : (n,) array, optional
        How many times each patient was followed, where that is longer than the
        last observed state.
    times : labels, optional
        Default: "1" … "T".
    """
    array = np.asarray(codes)
    if array.ndim != 2:
        raise InputError(
            f"codes must have two dimensions (patients × times), found {array.ndim}; "
            "reshape a single sequence with codes.reshape(1, -1)."
        )
    if array.dtype.kind not in "iu":
        if array.size:
            raise TypeError(
                f"codes must be integers, found {array.dtype}; for state labels use "
                "Sequences.from_frame or Sequences.from_lists."
            )
        array = array.astype(np.int8)
    smallest, largest = (int(array.min()), int(array.max())) if array.size else (-1, -1)
    if states is None:
        check_n_states(range(largest + 1))
        states = range(largest + 1)
    labels = state_labels(states)
    if smallest < -1 or largest >= len(labels):
        raise InputError(
            f"codes must lie between −1 (missing) and {len(labels) - 1} (the last of "
            f"{len(labels)} states), found {smallest if smallest < -1 else largest}; recode or "
            "name all states."
        )
    check_n_states(labels)
    codes = np.array(array, dtype=np.int8, order="C")
    return checked(cls, codes, labels, ids, weights, lengths, times)


def from_frame(
    cls: type[Sequences],
    wide: pd.DataFrame,
    id: Hashable | None = "id",
    states: Iterable[Any] | None = None,
    *,
    columns: str | Sequence[Hashable] | None = None,
    weights: Hashable | None = None,
    lengths: Hashable | None = None,
    missing: Iterable[Any] = (),
    times: Iterable[Any] | None = None,
) -> Sequences:
    """From a wide table: one row per patient, one column per time.

    NaN, None and "" are missing inside a sequence and void after its last state.

    Parameters
    ----------
    wide : DataFrame
    id : column name, or None for the index
    states : labels in their order, optional
        Default: the categories of categorical columns, else the sorted values.
    columns : names of the columns that hold the states, in order of time, or "t1:t12"
        The remaining columns become `covariates`. Default: all columns but those of `id`,
        `weights` and `lengths`, which must then look like times: called alike ("t1", "t2",
        …), with values that others have too.
    weights, lengths : column names, optional
        As in `from_codes`.
    missing : further values that mean missing
    times : labels, optional
        Default: the column names.
    """
    special = [name for name in (id, weights, lengths) if name is not None]
    need_columns(wide, special)
    if columns is None:
        names = [c for c in wide.columns if c not in special]
    else:
        names = named_columns(wide, columns)
    if not names:
        raise InputError(
            f"no column holds states: the table has only {some(wide.columns)}; "
            "give one column for each time."
        )
    if columns is None and times is None:
        check_time_columns(wide[names])
    codes, labels = encode([wide[c] for c in names], states, missing)
    sequences = checked(
        cls,
        np.ascontiguousarray(codes.reshape(len(names), len(wide)).T),
        labels,
        wide.index if id is None else wide[id],
        None if weights is None else wide[weights].to_numpy(),
        None if lengths is None else wide[lengths].to_numpy(),
        names if times is None else times,
    )
    if columns is None:
        return sequences
    others = _other_columns(wide, [*special, *names], sequences.ids)
    return replace(sequences, covariates=others)


def _other_columns(
    wide: pd.DataFrame, used: Sequence[Hashable], ids: pd.Index
) -> pd.DataFrame | None:
    """The columns that a table has besides the states, by id; texts of numbers as numbers."""
    rest: dict[Hashable, Any] = {}
    for name in wide.columns:
        if name not in used:
            column = wide[name]
            number = pd.to_numeric(column, errors="coerce")
            rest[name] = number if number.notna().equals(column.notna()) else column
    return pd.DataFrame(rest).set_axis(ids, axis=0) if rest else None


def from_long(
    cls: type[Sequences],
    frame: pd.DataFrame,
    id: Hashable = "id",
    time: Hashable = "time",
    state: Hashable = "state",
    *,
    states: Iterable[Any] | None = None,
    weights: Hashable | None = None,
    missing: Iterable[Any] = (),
    times: Iterable[Any] | None = None,
) -> Sequences:
    """From a long table: one row per patient and time.

    A patient is followed until their last row, even if its state is missing.

    Parameters
    ----------
    frame : DataFrame
    id, time, state : column names
        Whole-number times are a regular grid: a number that no row has still is a time.
        Categories keep their order; anything else is sorted.
    states, missing : as in `from_frame`
    weights : column name, optional
        Must be the same in all rows of a patient.
    times : all time values in their order, optional
    """
    need_columns(frame, [c for c in (id, time, state, weights) if c is not None])
    if not len(frame):
        raise InputError("the table has no rows; one row for each patient and time is needed.")
    if frame[id].isna().any() or frame[time].isna().any():
        n_bad = int((frame[id].isna() | frame[time].isna()).sum())
        rows = counted(n_bad, "row has", "rows have")
        raise InputError(f"{rows} no {id!r} or no {time!r}; fill or remove them.")
    row, id_values = pd.factorize(frame[id])
    all_times = time_values(frame[time], times)
    column = all_times.get_indexer(pd.Index(frame[time]))
    if (column < 0).any():
        unknown = pd.unique(frame[time][column < 0])
        raise InputError(f"times= does not name {some(unknown)}, which the table contains.")
    twice = pd.DataFrame({"r": row, "c": column}).duplicated().to_numpy()
    if twice.any():
        pairs = zip(frame[id][twice].head(5), frame[time][twice].head(5), strict=True)
        bad = [f"{i!r} at {t!r}" for i, t in pairs]
        raise InputError(
            f"{twice.sum():,} rows give a second state for the same patient and time "
            f"({', '.join(bad)}); keep one row for each."
        )
    state_codes, labels = encode([frame[state]], states, missing)
    codes = np.full((len(id_values), len(all_times)), -1, dtype=np.int8)
    codes[row, column] = state_codes
    lengths = np.zeros(len(id_values), dtype=np.int32)
    np.maximum.at(lengths, row, (column + 1).astype(np.int32))
    weight = None if weights is None else one_weight(frame[weights], row, id_values)
    return checked(cls, codes, labels, pd.Index(id_values), weight, lengths, list(all_times))


def from_spells(
    cls: type[Sequences],
    frame: pd.DataFrame,
    id: Hashable = "id",
    start: Hashable = "start",
    end: Hashable = "end",
    state: Hashable = "state",
    *,
    states: Iterable[Any] | None = None,
    weights: Hashable | None = None,
    missing: Iterable[Any] = (),
    times: Iterable[Any] | None = None,
) -> Sequences:
    """From a table of spells: a patient is in `state` from time `start` through `end`.

    `start` and `end` are whole numbers and both inclusive. The times between two
    spells are missing. Labels given as `times` belong to times 1, 2, …; the other
    parameters are those of `from_long`.
    """
    need_columns(frame, [c for c in (id, start, end, state, weights) if c is not None])
    bounds = {}
    for name in (start, end):
        if pd.api.types.infer_dtype(frame[name], skipna=True) in _DATES:
            raise InputError(
                f"the column {name!r} holds dates, and spells are counted in windows; give whole "
                "numbers, such as quarters since the patient's first date, or let "
                "ehr_prep.build_sequences make windows of dated records."
            )
        numbers = pd.to_numeric(frame[name], errors="coerce")
        bad = (numbers.isna() | (numbers != numbers.round())).to_numpy()
        if bad.any():
            raise InputError(
                f"{counted(bad.sum(), 'value', 'values')} of {name!r} must be a whole number "
                f"(patients {some(frame[id][bad])}); turn dates into window numbers first."
            )
        bounds[name] = numbers.to_numpy(dtype=np.int64)
    repeats = bounds[end] - bounds[start] + 1
    if (repeats < 1).any():
        raise InputError(
            f"{(repeats < 1).sum():,} spells end before they start (patients "
            f"{some(frame[id][repeats < 1])}); correct or remove them."
        )
    if len(frame):
        check_n_times(int(bounds[end].max() - bounds[start].min()) + 1)
    source = np.repeat(np.arange(len(frame)), repeats)
    offset = np.arange(len(source)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    keep = [id, state] if weights is None else [id, state, weights]
    long = frame[keep].iloc[source].reset_index(drop=True)
    clock = "time" if "time" not in keep else "_time"
    long[clock] = np.repeat(bounds[start], repeats) + offset
    labels = None if times is None else [str(t) for t in times]
    numbered = None if labels is None else range(1, len(labels) + 1)
    sequences = from_long(
        cls, long, id, clock, state, states=states, weights=weights, missing=missing, times=numbered
    )
    return sequences if labels is None else replace(sequences, times=tuple(labels))


def from_lists(
    cls: type[Sequences],
    lists: Iterable[Sequence[Any]],
    states: Iterable[Any] | None = None,
    *,
    ids: Iterable[Hashable] | None = None,
    weights: ArrayLike | None = None,
    missing: Iterable[Any] = (),
    times: Iterable[Any] | None = None,
) -> Sequences:
    """From one list of states per patient; the lists may differ in length."""
    rows = [list(row) for row in lists]
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    flat = pd.Series([state for row in rows for state in row], dtype=object)
    flat_codes, labels = encode([flat], states, missing)
    codes = np.full((len(rows), int(lengths.max(initial=0))), -1, dtype=np.int8)
    codes[np.arange(codes.shape[1]) < lengths[:, None]] = flat_codes
    return checked(cls, codes, labels, ids, weights, lengths, times)


def concat(cls: type[Sequences], parts: Iterable[Sequences] | Mapping[str, Sequences]) -> Sequences:
    """Stack several groups of patients; shorter ones are void at the end.

    A dict {site: sequences} gives ids "site/id", so that two sites may both have
    a patient 1; otherwise ids must not repeat. The result has no account.
    """
    named = dict(parts) if isinstance(parts, Mapping) else dict(enumerate(parts))
    blocks: list[Sequences] = list(named.values())
    if not blocks:
        raise InputError("nothing to concatenate: give at least one Sequences object.")
    states = blocks[0].states
    for name, block in named.items():
        if block.states != states:
            raise InputError(
                f"the states differ: {list(states)} in the first part, {list(block.states)} "
                f"in part {name!r}; build all with the same states=."
            )
    times = max((block.times for block in blocks), key=len)
    codes = np.full((sum(map(len, blocks)), len(times)), -1, dtype=np.int8)
    row = 0
    for block in blocks:
        codes[row : row + len(block), : block.shape[1]] = block.codes
        row += len(block)
    if isinstance(parts, Mapping):
        ids = pd.Index([f"{site}/{i}" for site, block in named.items() for i in block.ids])
    else:
        ids = blocks[0].ids.append([block.ids for block in blocks[1:]])
    return checked(
        cls,
        codes,
        states,
        ids,
        np.concatenate([block.weights for block in blocks]),
        np.concatenate([block.lengths for block in blocks]),
        times,
        absorbing=tuple(s for s in states if all(s in block.absorbing for block in blocks)),
    )
