"""Checks of what users bring. Each failure is one sentence: what was found, and how to mend it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

MAX_STATES = 127
MAX_TIMES = 32_767


def some(values: Iterable[Any]) -> str:
    """At most five values for a message."""
    shown = [repr(v.item() if isinstance(v, np.generic) else v) for v, _ in zip(values, range(6))]  # noqa: B905
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def need_columns(frame: pd.DataFrame, names: Sequence[Hashable]) -> None:
    absent = [name for name in names if name not in frame.columns]
    if absent:
        hint = " (id=None uses the index)" if "id" in absent else ""
        raise ValueError(
            f"the table has no column {some(absent)}{hint}; it has {some(frame.columns)}."
        )


def check_n_states(labels: Sequence[Any]) -> None:
    if len(labels) > MAX_STATES:
        raise ValueError(
            f"found {len(labels):,} states ({some(labels)}), at most {MAX_STATES} are possible; "
            "group rare states, and check that no id or number column is among the times."
        )


def check_n_times(n_times: int) -> None:
    if n_times == 0:
        raise ValueError("the sequences have no times (T = 0); at least one is needed.")
    if n_times > MAX_TIMES:
        raise ValueError(
            f"the times span {n_times:,} steps, at most {MAX_TIMES:,} are possible; number the "
            "windows (1, 2, …) instead of using dates."
        )


def state_labels(states: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(states, str):
        raise TypeError(f"states must be a list of labels, found the text {states!r}.")
    labels = tuple(state_label(s) for s in states)
    if len(set(labels)) != len(labels):
        raise ValueError(f"state labels must differ, found {some(labels)} with repeats.")
    if "" in labels:
        raise ValueError('"" cannot be a state: it means missing; give that state a name.')
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
            f"the states mix text ({some(text)}) and other values ({some(other)}); use one kind, "
            "and leave columns that hold no states out with columns=."
        )
    found = [state_label(v) for v in values]
    if ordered is None:
        names = dict.fromkeys(label for label in found if label not in absent)
        ordered = sorted(names, key=int if all(map(_is_integer, names)) else None)
    labels = state_labels(s for s in ordered if state_label(s) not in absent)
    check_n_states(labels)
    code_of = {label: i for i, label in enumerate(labels)} | dict.fromkeys(absent, -1)
    unknown = [label for label in found if label not in code_of]
    if unknown:
        raise ValueError(
            f"found {some(unknown)} where the states are {some(labels)}; add them to states=, "
            "or to missing= if they mean missing."
        )
    lookup = np.array([code_of[label] for label in found] + [-1], dtype=np.int8)
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
        raise ValueError(f"found {len(index):,} ids for {n:,} patients; give one for each.")
    if index.hasnans:
        raise ValueError(f"{index.isna().sum():,} patients have no id; fill or remove them.")
    if isinstance(index, pd.MultiIndex):
        raise TypeError("ids must be single values, found tuples; join them into one text.")
    if index.dtype.kind == "f" and (index == index.round()).all():
        index = index.astype("int64")
    elif index.dtype.kind not in "iu":
        kinds = {type(v).__name__ for v in index}
        if len(kinds) > 1:
            raise TypeError(
                f"the ids mix types ({', '.join(sorted(kinds))}); make them all text or all whole "
                "numbers, e.g. with astype(str)."
            )
        index = index.astype(str)
    if not index.is_unique:
        twice = index[index.duplicated()].unique()
        raise ValueError(
            f"{len(twice):,} ids occur more than once ({some(twice)}); each patient needs one row."
        )
    return index.rename("id")


def numbers_for(values: ArrayLike, n: int, what: str) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, found {some(np.ravel(values))}.") from None
    if array.shape != (n,):
        raise ValueError(f"found {what} of shape {array.shape} for {n:,} patients; give one each.")
    return array


def time_values(values: pd.Series, times: Iterable[Any] | None) -> pd.Index:
    """All times in order: as given, as categories, as a grid of whole numbers, or sorted."""
    if times is not None:
        return pd.Index(list(times))
    if isinstance(values.dtype, pd.CategoricalDtype):
        return pd.Index(values.cat.categories)
    if values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        check_n_times(high - low + 1)
        return pd.RangeIndex(low, high + 1)
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
        raise ValueError(
            f"{len(bad):,} patients have several weights ({some(bad)}); each patient has one."
        )
    return np.asarray(by_patient.first(), dtype=float)
