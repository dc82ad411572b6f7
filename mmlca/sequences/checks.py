"""Checks of what users bring. Each failure is one sentence: what was found, and how to fix it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import counted as counted
from font.checks import listed as listed
from font.checks import of_type as of_type
from font.checks import some as some
from font.errors import InputError as InputError
from font.errors import option

MAX_STATES = 127
MAX_TIMES = 32_767
_DATE_LIKE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{8}(?!\d)")
_SAMPLE = 100_000  # rows that a column's values are taken from


def need_columns(frame: pd.DataFrame, names: Sequence[Hashable]) -> None:
    absent = [name for name in names if name not in frame.columns]
    if absent:
        hint = " (id=None uses the index)" if "id" in absent else ""
        raise InputError(
            f"the table has no column {some(absent)}{hint}; it has {some(frame.columns)}."
        )


def named_columns(wide: pd.DataFrame, columns: str | Sequence[Hashable]) -> list[Hashable]:
    """A list of columns, which may be written "t1:t12,t14": t1 to t12 and t14."""
    if not isinstance(columns, str):
        need_columns(wide, columns)
        return list(columns)
    names: list[Hashable] = []
    for part in columns.split(","):
        ends = [part] if part in wide.columns else part.split(":", 1)
        need_columns(wide, ends)
        start, stop = (wide.columns.get_loc(end) for end in (ends[0], ends[-1]))
        if start > stop:
            raise InputError(f"the column {ends[0]!r} comes after {ends[1]!r}; swap them.")
        names += list(wide.columns[start : stop + 1])
    return names


def check_n_states(labels: Sequence[Any]) -> None:
    if len(labels) > MAX_STATES:
        raise InputError(
            f"found {len(labels):,} states ({some(labels)}), at most {MAX_STATES} are possible; "
            "group rare states, and check that no id or number column is among the times."
        )


def check_n_times(n_times: int) -> None:
    if n_times == 0:
        raise InputError("the sequences have no times (T = 0); at least one is needed.")
    if n_times > MAX_TIMES:
        raise InputError(
            f"the times span {n_times:,} steps, at most {MAX_TIMES:,} are possible; number the "
            "windows (1, 2, …) instead of using dates."
        )


def check_time_columns(wide: pd.DataFrame) -> None:
    """Refuse columns that do not look like times, such as a patient's sex or age.

    That is a column outside the run of names that most are in ("t1", "t2", …), or one whose
    values occur in no other column; by chance that happens in small tables only.
    """
    names = list(wide.columns)
    stems = [re.sub(r"\d+", "#", str(name)) for name in names]
    stem, n_alike = Counter(stems).most_common(1)[0]
    if "#" in stem and n_alike > max(1, len(names) // 2):
        no_time = [name for name, own in zip(names, stems, strict=True) if own != stem]
        reason = f"most columns are called like {names[stems.index(stem)]!r}"
    else:
        values = [set(wide.iloc[:_SAMPLE, j].dropna().unique()) - {""} for j in range(len(names))]
        n_columns = Counter(value for column in values for value in column)
        lonely = [bool(v) and all(n_columns[value] == 1 for value in v) for v in values]
        enough = len(wide) >= 10 and len(names) - sum(lonely) >= 2
        no_time = [name for name, alone in zip(names, lonely, strict=True) if alone and enough]
        reason = "their values occur in no other column"
    if no_time:
        times = [str(name) for name in names if name not in no_time]
        raise InputError(
            f"found columns that do not look like times: {some(no_time)} ({reason}); name those "
            f"that hold states, as in {option('columns', f'{times[0]}:{times[-1]}')}."
        )


def state_labels(states: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(states, str):
        raise TypeError(f"states must be a list of labels, found the text {states!r}.")
    labels = tuple(state_label(s) for s in states)
    if len(set(labels)) != len(labels):
        raise InputError(f"state labels must differ, found {some(labels)} with repeats.")
    if "" in labels:
        raise InputError('"" cannot be a state: it means missing; give that state a name.')
    return labels


def state_label(value: Any) -> str:
    """1, 1.0 and numpy's 1 are all the state "1"."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _is_integer(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def encode(
    columns: list[pd.Series], states: Iterable[Any] | None, missing: Iterable[Any]
) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Codes of all cells, column after column, and the state labels."""
    if len({column.dtype for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]
    cells = pd.concat(columns, ignore_index=True)
    ordered: Iterable[Any] | None = states
    if isinstance(cells.dtype, pd.CategoricalDtype) and ordered is None:
        ordered = cells.cat.categories
    codes, values = pd.factorize(cells)
    absent = {state_label(m) for m in missing} | {""}
    text = [v for v in values if isinstance(v, str) and v not in absent]
    other = [v for v in values if not isinstance(v, str) and state_label(v) not in absent]
    if text and other:
        raise TypeError(
            f"the states mix text ({some(text)}) and other values ({some(other)}); use one of "
            f"them, and leave columns that hold no states out with {option('columns')}."
        )
    seen = [state_label(v) for v in values]
    if ordered is None:
        names = dict.fromkeys(label for label in seen if label not in absent)
        ordered = sorted(names, key=int if all(map(_is_integer, names)) else None)
    labels = state_labels(s for s in ordered if state_label(s) not in absent)
    check_n_states(labels)
    code_of = {label: i for i, label in enumerate(labels)} | dict.fromkeys(absent, -1)
    unknown = [label for label in seen if label not in code_of]
    if unknown:
        raise InputError(
            f"found {some(unknown)} where the states are {some(labels)}; add them to "
            f"{option('states')}, or, if they mean missing, to missing= (in a file: leave empty)."
        )
    lookup = np.array([code_of[label] for label in seen] + [-1], dtype=np.int8)
    return lookup[codes], labels


def last_observed(codes: NDArray[np.int8]) -> NDArray[np.int32]:
    """Position after the last observed state of each row; 0 if there is none."""
    n, n_times = codes.shape
    last = np.full(n, n_times, dtype=np.int32)
    open_rows = np.flatnonzero(codes[:, -1] < 0) if n_times else np.arange(0)
    for t in range(n_times - 1, -1, -1):  # most rows end within a few steps
        open_rows = open_rows[codes[open_rows, t] < 0]
        if not len(open_rows):
            break
        last[open_rows] = t
    return last


def patient_ids(ids: Any, n: int) -> pd.Index:
    if ids is None:
        return pd.RangeIndex(1, n + 1, name="id")
    index = pd.Index(ids if isinstance(ids, (pd.Series, pd.Index, np.ndarray)) else list(ids))
    if len(index) != n:
        raise InputError(f"found {len(index):,} ids for {n:,} patients; give one for each.")
    if index.hasnans:
        patients = counted(index.isna().sum(), "patient has", "patients have")
        raise InputError(f"{patients} no id; fill or remove them.")
    if isinstance(index, pd.MultiIndex):
        raise TypeError("ids must be single values, found tuples; join them into one text.")
    if index.dtype.kind == "f" and (index == index.round()).all():
        index = index.astype("int64")
    elif index.dtype.kind not in "iu":
        types = {type(v).__name__ for v in index}
        if len(types) > 1:
            raise TypeError(
                f"the ids mix types ({', '.join(sorted(types))}); make them all text or all whole "
                "numbers, e.g. with astype(str)."
            )
        index = index.astype(str)
    if not index.is_unique:
        twice = index[index.duplicated()].unique()
        raise InputError(
            f"{counted(len(twice), 'id occurs', 'ids occur')} more than once ({some(twice)}); each "
            "patient needs one row."
        )
    return index.rename("id")


def patient_labels(ids: pd.Index, labels: Any, name: str, site: str = "") -> pd.Series:
    """One label per patient, in the order of their ids."""
    where = f" at site {site!r}" if site else ""
    if isinstance(labels, pd.Series):
        if not labels.index.is_unique:
            twice = labels.index[labels.index.duplicated()].unique()
            raise InputError(
                f"{name} name {len(twice):,} patients{where} more than once ({some(twice)}); give "
                "one label for each."
            )
        values = labels.reindex(ids)
    elif isinstance(labels, (pd.DataFrame, type)):
        raise TypeError(
            f"{name} must be one label for each patient{where}, such as a Series indexed by id, or "
            f"a fitted model; found a {'class' if isinstance(labels, type) else 'DataFrame'}: give "
            f"{'what its fit returns' if isinstance(labels, type) else 'one of its columns'}."
        )
    else:
        values = pd.Series(labels)
        if len(values) != len(ids):
            raise InputError(
                f"found {len(values):,} {name} for {len(ids):,} patients{where}; give one for "
                "each, or a Series indexed by id."
            )
    unknown = values.isna().to_numpy()
    if unknown.any():
        raise InputError(
            f"{name} are missing for {unknown.sum():,} of {len(ids):,} patients{where} "
            f"({some(ids[unknown])}); give one label for each, by id."
        )
    return values


def numbers_for(values: ArrayLike, n: int, name: str) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, found {some(np.ravel(values))}.") from None
    if array.shape != (n,):
        raise InputError(f"found {name} of shape {array.shape} for {n:,} patients; give one each.")
    return array


def time_values(values: pd.Series, times: Iterable[Any] | None) -> pd.Index:
    """All times in order: as given, as categories, as a grid of whole numbers, or sorted."""
    if times is not None:
        return pd.Index(list(times))
    if isinstance(values.dtype, pd.CategoricalDtype):
        return pd.Index(values.cat.categories)
    if values.dtype.kind in "iu":
        first, last = int(values.min()), int(values.max())
        check_n_times(last - first + 1)
        return pd.RangeIndex(first, last + 1)
    try:
        return pd.Index(np.sort(values.unique()))
    except TypeError:
        raise TypeError(
            "the times mix types and cannot be sorted; give their order as times=."
        ) from None


def one_weight(
    weights: pd.Series, row: NDArray[np.intp], ids: Iterable[Any]
) -> NDArray[np.float64]:
    by_patient = weights.groupby(row)
    unequal = (by_patient.nunique(dropna=False) > 1).to_numpy()
    if unequal.any():
        bad = [i for i, wrong in zip(ids, unequal, strict=True) if wrong]
        raise InputError(
            f"{counted(len(bad), 'patient has', 'patients have')} several weights ({some(bad)}); "
            "give each patient one."
        )
    return np.asarray(by_patient.first(), dtype=float)


def looks_like_dates(values: Iterable[Any]) -> bool:
    """Whether all values, of which there is at least one, begin like a date in digits."""
    texts = [str(value).strip() for value in values]
    return bool(texts) and all(_DATE_LIKE.match(text) for text in texts)


def match_ids(wanted: pd.Index, table: pd.Index) -> NDArray[np.intp]:
    """Position in `table` of each id (−1: none); whole numbers and their texts agree."""
    if wanted.dtype.kind != table.dtype.kind:
        wanted, table = wanted.astype(str), table.astype(str)
    positions: NDArray[np.intp] = table.get_indexer(wanted)
    return positions
