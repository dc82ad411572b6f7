"""The sequence type: every patient's states over time, validated once, here."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca import files
from mmlca.checks import (
    check_n_states,
    check_n_times,
    encode,
    last_observed,
    need_columns,
    numbers_for,
    one_weight,
    patient_ids,
    some,
    state_labels,
    time_values,
)
from mmlca.patterns import Patterns, reduce_codes


@dataclass(frozen=True, eq=False, repr=False)
class Sequences:
    """States of n patients at T equally spaced times.

    Build one with `from_frame`, `from_long`, `from_spells`, `from_lists` or
    `from_codes`; the plain constructor trusts its arguments. The arrays are
    read-only, and every method returns a new object.

    Two things look alike in a table and are kept apart here: a *missing* state
    (the patient was followed but nothing is known; code −1 before the
    sequence's length) and *void* (the sequence has ended; after its length).

    Parameters
    ----------
    codes : (n, T) int8
        Index into `states`; −1 is missing or void.
    states : tuple of str
        The state labels, in order.
    ids : pandas.Index
        One unique identifier per patient, integers or strings.
    weights : (n,) float64
        Non-negative case weights.
    lengths : (n,) int32
        Number of times each patient was followed.
    times : tuple of str
        A label for each time, for tables and axes.

    Examples
    --------
    >>> s = Sequences.from_lists([["TNFi", "TNFi", "JAK"], ["TNFi", None, "TNFi"], ["JAK"]])
    >>> s
    Sequences: 3 patients × 3 times (1 … 3), 2 states
      states    JAK, TNFi
      lengths   1 to 3, median 3
      missing   1 of 7 followed-up times (14.3 %)
      distinct  3 sequences, 0.0 % of patients repeat one of them
    """

    codes: NDArray[np.int8]
    states: tuple[str, ...]
    ids: pd.Index
    weights: NDArray[np.float64]
    lengths: NDArray[np.int32]
    times: tuple[str, ...]

    # --- constructors -----------------------------------------------------------------

    @classmethod
    def from_codes(
        cls,
        codes: ArrayLike,
        states: Iterable[Any] | None = None,
        *,
        ids: Iterable[Hashable] | None = None,
        weights: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        times: Iterable[Any] | None = None,
    ) -> Self:
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
            raise ValueError(
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
        low, high = (int(array.min()), int(array.max())) if array.size else (-1, -1)
        if states is None:
            check_n_states(range(high + 1))
            states = range(high + 1)
        labels = state_labels(states)
        if low < -1 or high >= len(labels):
            found = low if low < -1 else high
            raise ValueError(
                f"codes must lie between −1 (missing) and {len(labels) - 1} (the last of "
                f"{len(labels)} states), found {found}; recode or name all states."
            )
        check_n_states(labels)
        return cls._checked(
            np.array(array, dtype=np.int8, order="C"), labels, ids, weights, lengths, times
        )

    @classmethod
    def from_frame(
        cls,
        wide: pd.DataFrame,
        id: Hashable | None = "id",
        states: Iterable[Any] | None = None,
        *,
        columns: Sequence[Hashable] | None = None,
        weights: Hashable | None = None,
        lengths: Hashable | None = None,
        missing: Iterable[Any] = (),
        times: Iterable[Any] | None = None,
    ) -> Self:
        """From a wide table: one row a patient, one column a time.

        NaN, None and "" are missing inside a sequence and void after its last state.

        Parameters
        ----------
        wide : DataFrame
        id : column name, or None for the index
        states : labels in their order, optional
            Default: the categories of categorical columns, else the sorted values.
        columns : names of the columns that hold the states, in order of time
            Default: all columns but those of `id`, `weights` and `lengths`.
        weights, lengths : column names, optional
            As in `from_codes`.
        missing : further values that mean missing
        times : labels, optional
            Default: the column names.
        """
        special = [name for name in (id, weights, lengths) if name is not None]
        need_columns(wide, special + list(columns or []))
        names = [c for c in wide.columns if c not in special] if columns is None else list(columns)
        if not names:
            raise ValueError(
                f"no column holds states: the table has only {some(wide.columns)}; "
                "give one column for each time."
            )
        codes, labels = encode([wide[c] for c in names], states, missing)
        return cls._checked(
            np.ascontiguousarray(codes.reshape(len(names), len(wide)).T),
            labels,
            wide.index if id is None else wide[id],
            None if weights is None else wide[weights].to_numpy(),
            None if lengths is None else wide[lengths].to_numpy(),
            names if times is None else times,
        )

    @classmethod
    def from_long(
        cls,
        frame: pd.DataFrame,
        id: Hashable = "id",
        time: Hashable = "time",
        state: Hashable = "state",
        *,
        states: Iterable[Any] | None = None,
        weights: Hashable | None = None,
        missing: Iterable[Any] = (),
        times: Iterable[Any] | None = None,
    ) -> Self:
        """From a long table: one row a patient and time.

        A patient is followed until their last row, even if its state is missing.

        Parameters
        ----------
        frame : DataFrame
        id, time, state : column names
            Whole-number times are a regular grid: a number nobody has still is a time.
            Categories keep their order; anything else is sorted.
        states, missing : as in `from_frame`
        weights : column name, optional
            Must be the same in all rows of a patient.
        times : all time values in their order, optional
        """
        need_columns(frame, [c for c in (id, time, state, weights) if c is not None])
        if not len(frame):
            raise ValueError("the table has no rows; one row for each patient and time is needed.")
        if frame[id].isna().any() or frame[time].isna().any():
            n_bad = int((frame[id].isna() | frame[time].isna()).sum())
            raise ValueError(f"{n_bad:,} rows have no {id!r} or no {time!r}; fill or remove them.")
        row, id_values = pd.factorize(frame[id])
        all_times = time_values(frame[time], times)
        column = all_times.get_indexer(pd.Index(frame[time]))
        if (column < 0).any():
            unknown = pd.unique(frame[time][column < 0])
            raise ValueError(f"times= does not name {some(unknown)}, which the table contains.")
        twice = pd.DataFrame({"r": row, "c": column}).duplicated().to_numpy()
        if twice.any():
            pairs = zip(frame[id][twice].head(5), frame[time][twice].head(5), strict=True)
            bad = [f"{i!r} at {t!r}" for i, t in pairs]
            raise ValueError(
                f"{twice.sum():,} rows give a second state for the same patient and time "
                f"({', '.join(bad)}); keep one row for each."
            )
        cell_codes, labels = encode([frame[state]], states, missing)
        codes = np.full((len(id_values), len(all_times)), -1, dtype=np.int8)
        codes[row, column] = cell_codes
        lengths = np.zeros(len(id_values), dtype=np.int32)
        np.maximum.at(lengths, row, (column + 1).astype(np.int32))
        return cls._checked(
            codes,
            labels,
            pd.Index(id_values),
            None if weights is None else one_weight(frame[weights], row, id_values),
            lengths,
            list(all_times),
        )

    @classmethod
    def from_spells(
        cls,
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
    ) -> Self:
        """From a table of spells: a patient is in `state` from time `start` through `end`.

        `start` and `end` are whole numbers and both inclusive. What lies between two
        spells is missing. Labels given as `times` belong to times 1, 2, …; the other
        parameters are those of `from_long`.
        """
        need_columns(frame, [c for c in (id, start, end, state, weights) if c is not None])
        bounds = {}
        for name in (start, end):
            numbers = pd.to_numeric(frame[name], errors="coerce")
            bad = (numbers.isna() | (numbers != numbers.round())).to_numpy()
            if bad.any():
                raise ValueError(
                    f"{bad.sum():,} values of {name!r} are not whole numbers (patients "
                    f"{some(frame[id][bad])}); turn dates into window numbers first."
                )
            bounds[name] = numbers.to_numpy(dtype=np.int64)
        repeats = bounds[end] - bounds[start] + 1
        if (repeats < 1).any():
            raise ValueError(
                f"{(repeats < 1).sum():,} spells end before they start (patients "
                f"{some(frame[id][repeats < 1])}); mend or remove them."
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
        made = cls.from_long(
            long,
            id,
            clock,
            state,
            states=states,
            weights=weights,
            missing=missing,
            times=None if labels is None else range(1, len(labels) + 1),
        )
        return made if labels is None else cls(*(*made._fields()[:-1], tuple(labels)))

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Sequence[Any]],
        states: Iterable[Any] | None = None,
        *,
        ids: Iterable[Hashable] | None = None,
        weights: ArrayLike | None = None,
        missing: Iterable[Any] = (),
        times: Iterable[Any] | None = None,
    ) -> Self:
        """From one list of states a patient; the lists may differ in length."""
        rows = [list(row) for row in lists]
        lengths = np.array([len(row) for row in rows], dtype=np.int32)
        flat = pd.Series([state for row in rows for state in row], dtype=object)
        flat_codes, labels = encode([flat], states, missing)
        codes = np.full((len(rows), int(lengths.max(initial=0))), -1, dtype=np.int8)
        codes[np.arange(codes.shape[1]) < lengths[:, None]] = flat_codes
        return cls._checked(codes, labels, ids, weights, lengths, times)

    @classmethod
    def concat(cls, parts: Iterable[Sequences] | Mapping[str, Sequences]) -> Self:
        """Stack several groups of patients; shorter ones are void at the end.

        A dict {site: sequences} gives ids "site/id", so that two sites may both have
        a patient 1; otherwise ids must not repeat.
        """
        named = dict(parts) if isinstance(parts, Mapping) else dict(enumerate(parts))
        blocks: list[Sequences] = list(named.values())
        if not blocks:
            raise ValueError("nothing to concatenate: give at least one Sequences object.")
        states = blocks[0].states
        for name, block in named.items():
            if block.states != states:
                raise ValueError(
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
        return cls._checked(
            codes,
            states,
            ids,
            np.concatenate([block.weights for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
            times,
        )

    @classmethod
    def _checked(
        cls,
        codes: NDArray[np.int8],
        states: tuple[str, ...],
        ids: Any,
        weights: ArrayLike | None,
        lengths: ArrayLike | None,
        times: Iterable[Any] | None,
    ) -> Self:
        """The one gate: everything but the meaning of a state is checked here."""
        n, n_times = codes.shape
        check_n_times(n_times)
        time_labels = tuple(str(t) for t in (range(1, n_times + 1) if times is None else times))
        if len(time_labels) != n_times or len(set(time_labels)) != n_times:
            raise ValueError(
                f"{n_times} different time labels are needed, found {len(time_labels)} "
                f"({some(time_labels)})."
            )
        index = patient_ids(ids, n)
        weight = np.ones(n) if weights is None else numbers_for(weights, n, "weights")
        bad = ~(np.isfinite(weight) & (weight >= 0))
        if bad.any():
            raise ValueError(
                f"{bad.sum():,} weights are negative or not finite (patients "
                f"{some(index[bad])}); weights must be 0 or more."
            )
        observed = last_observed(codes)
        if not observed.all():
            empty = observed == 0
            raise ValueError(
                f"{empty.sum():,} patients have no observed state (patients "
                f"{some(index[empty])}); remove them first."
            )
        if lengths is None:
            length = observed
        else:
            given = numbers_for(lengths, n, "lengths")
            bad = (given < observed) | (given > n_times) | (given != np.round(given))
            if bad.any() or np.isnan(given).any():
                bad |= np.isnan(given)
                raise ValueError(
                    f"{bad.sum():,} lengths are not whole numbers between the last observed "
                    f"state and {n_times} (patients {some(index[bad])})."
                )
            length = given.astype(np.int32)
        for array in (codes, weight, length):
            array.flags.writeable = False
        return cls(codes, states, index, weight, length, time_labels)

    # --- basics -----------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Patients, times."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def n_states(self) -> int:
        return len(self.states)

    @cached_property
    def n_distinct(self) -> int:
        """How many different sequences there are."""
        return len(self.distinct()[0])

    def distinct(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The first patient's row for each different sequence, and every patient's sequence.

        Two sequences are the same if they agree in states, missing values and length.
        """
        n, n_times = self.shape
        rows = np.full((n, 8 * -(-(n_times + 4) // 8)), -1, dtype=np.int8)
        rows[:, :n_times] = self.codes
        rows[:, -4:] = self.lengths.view(np.int8).reshape(n, 4)
        words = pd.DataFrame(rows.view(np.int64))
        number = words.groupby(list(words.columns), sort=False).ngroup().to_numpy()
        first = np.unique(number, return_index=True)[1]
        return first, number

    @cached_property
    def patterns(self) -> Patterns:
        """The distinct transition patterns with their weights, found once."""
        table = reduce_codes(self.codes, self.n_states)
        return table if (self.weights == 1).all() else table.reweight(self.weights)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, key: Any) -> Self:
        """Patients by position: a number, slice, mask or array of positions."""
        rows = np.arange(len(self))[key]
        return self._take(np.atleast_1d(rows))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequences):
            return NotImplemented
        return (
            self.states == other.states
            and self.times == other.times
            and self.ids.equals(other.ids)
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.weights, other.weights)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        n, n_times = self.shape
        followed = int(self.lengths.sum(dtype=np.int64))
        n_missing = followed - int((self.codes >= 0).sum())
        lines = [
            f"Sequences: {n:,} patients × {n_times:,} times "
            f"({self.times[0]} … {self.times[-1]}), {self.n_states} states",
            f"  states    {', '.join(self.states)}",
        ]
        if n:
            share = 100 * (1 - self.n_distinct / n)
            lines += [
                f"  lengths   {self.lengths.min():,} to {self.lengths.max():,}, "
                f"median {np.median(self.lengths):,.0f}",
                f"  missing   {n_missing:,} of {followed:,} followed-up times "
                f"({100 * n_missing / followed:.1f} %)",
                f"  distinct  {self.n_distinct:,} sequences, "
                f"{share:.1f} % of patients repeat one of them",
            ]
        if (self.weights != 1).any():
            lines.append(f"  weights   sum {self.weights.sum():,.6g}")
        return "\n".join(lines)

    def select(self, which: ArrayLike | pd.Series) -> Self:
        """The patients chosen by a mask (booleans, one a patient) or by their ids, in that order.

        A boolean Series is matched on its index if that holds the ids.
        """
        if isinstance(which, pd.Series) and which.dtype == bool and which.index.equals(self.ids):
            which = which.to_numpy()
        array = np.atleast_1d(np.asarray(which))
        if array.dtype == bool:
            if len(array) != len(self):
                raise ValueError(
                    f"the mask has {len(array):,} values for {len(self):,} patients; "
                    "give one for each."
                )
            return self._take(np.flatnonzero(array))
        return self._take(self.positions(array))

    def positions(self, ids: Any) -> NDArray[np.intp]:
        """The row of each of these patients; unknown ids are an error."""
        wanted = pd.Index(ids)
        rows: NDArray[np.intp] = self.ids.get_indexer(wanted)
        if (rows < 0).any():
            raise ValueError(
                f"{(rows < 0).sum():,} ids are not among the patients: {some(wanted[rows < 0])}."
            )
        return rows

    def reweight(self, weights: ArrayLike) -> Self:
        """The same patients with other weights (the codes are shared, not copied)."""
        codes, states, ids, _, lengths, times = self._fields()
        other = self._checked(codes, states, ids, weights, lengths, times)
        if "patterns" in self.__dict__:
            other.__dict__["patterns"] = self.patterns.reweight(other.weights)
        return other

    # --- tables -----------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """The wide table: ids as index, a categorical column for each time."""
        categories = pd.CategoricalDtype(list(self.states), ordered=True)
        columns = {
            label: pd.Categorical.from_codes(self.codes[:, t], dtype=categories)
            for t, label in enumerate(self.times)
        }
        return pd.DataFrame(columns, index=self.ids)

    def to_long(self) -> pd.DataFrame:
        """One row a patient and followed-up time: id, time, state, weight."""
        followed = np.arange(self.shape[1]) < self.lengths[:, None]
        row, column = np.nonzero(followed)
        return pd.DataFrame(
            {
                "id": self.ids[row],
                "time": pd.Categorical.from_codes(column, list(self.times), ordered=True),
                "state": pd.Categorical.from_codes(
                    self.codes[followed], list(self.states), ordered=True
                ),
                "weight": self.weights[row],
            }
        )

    def to_spells(self) -> pd.DataFrame:
        """One row a spell: id, start, end (times counted from 1, inclusive), state, weight.

        A missing stretch is a spell without a state.
        """
        followed = np.arange(self.shape[1]) < self.lengths[:, None]
        begins = followed.copy()
        begins[:, 1:] &= self.codes[:, 1:] != self.codes[:, :-1]
        row, start = np.nonzero(begins)
        last_of_row = np.append(row[1:] != row[:-1], True)[: len(row)]
        end = np.where(last_of_row, self.lengths[row], np.append(start[1:], 0)[: len(row)])
        return pd.DataFrame(
            {
                "id": self.ids[row],
                "start": start + 1,
                "end": end,
                "state": pd.Categorical.from_codes(
                    self.codes[row, start], list(self.states), ordered=True
                ),
                "weight": self.weights[row],
            }
        )

    # --- files ------------------------------------------------------------------------

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .csv or .parquet file that `read` gives back exactly.

        The table is wide (id, weight, length, one column a time). The order of the
        states is kept in the Parquet metadata, or in a first line of the CSV file that
        starts with "#". The file appears whole or not at all.
        """
        files.write_sequences(self, Path(path))

    @classmethod
    def read(cls, path: str | os.PathLike[str], states: Iterable[Any] | None = None) -> Sequences:
        """Read what `write` wrote, or any wide .csv or .parquet table with a column "id".

        Columns called "weight" and "length" are taken as such. `states` (labels in order)
        is for tables that do not say.
        """
        return files.read_sequences(Path(path), states)

    # --- inside -----------------------------------------------------------------------

    def _fields(self) -> tuple[Any, ...]:
        return self.codes, self.states, self.ids, self.weights, self.lengths, self.times

    def _take(self, rows: NDArray[np.intp]) -> Self:
        return self._checked(
            np.ascontiguousarray(self.codes[rows]),
            self.states,
            self.ids[rows],
            self.weights[rows],
            self.lengths[rows],
            self.times,
        )
