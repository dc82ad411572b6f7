"""What may not show inside a hospital: small numbers, and those from which they would follow.

A number based on at least one and fewer than `min_count` different patients is *small*. It is
blank (NaN) in a table, "<11" or "–" in a text, and left out of a figure, which says so. Nothing
else in the package compares a number with `min_count`. Where numbers add up to totals that are
shown, some numbers that are not small are hidden with the small ones, because these would follow
by subtraction. After that each small number could still have any of `min_count` − 1 different
values, as far as the sums reveal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import total_ordering
from typing import NamedTuple, SupportsFloat

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.tables.disclosure.sums import Sum as Sum
from mmlca.tables.disclosure.sums import hide_further

HIDDEN = "–"


def check_min_count(min_count: int) -> int:
    """A whole number of at least 0; 0 and 1 hide nothing."""
    if isinstance(min_count, bool) or not isinstance(min_count, (int, np.integer)) or min_count < 0:
        raise InputError(f"min_count must be a whole number of at least 0, found {min_count!r}.")
    return int(min_count)


def hides(min_count: int) -> bool:
    """Whether a threshold can hide anything: 0 and 1 do not."""
    return min_count > 1


def fewest_patients(min_count: int, needed: int) -> int:
    """The number of patients that a curve needs at each end: `needed`, or `min_count` if more."""
    return max(min_count, needed, 1)


def is_small(patients: ArrayLike, min_count: int) -> NDArray[np.bool_]:
    """Whether numbers of patients are above 0 and below `min_count`.

    Examples
    --------
    >>> is_small([0, 1, 10, 11], min_count=11).tolist()
    [False, True, True, False]
    """
    n = np.asarray(patients, dtype=float)
    small: NDArray[np.bool_] = (n > 0) & (n < min_count)
    return small


def hidden_cells(
    values: ArrayLike,
    sums: Sequence[Sum],
    min_count: int,
    small: NDArray[np.bool_] | None = None,
    *,
    blank: NDArray[np.bool_] | None = None,
    known: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """The cells of a table that may not be shown: small ones, and those that would reveal them.

    Parameters
    ----------
    values : (n,)
        All cells in one row, totals too.
    sums : for each total its position and those of the parts that add up to it
    min_count : int
    small : (n,), optional
        The cells to hide in any case, where that is decided by other numbers than `values`.
    blank, known : (n,), optional
        Cells that show nothing anyway, and cells that cannot be hidden.

    Examples
    --------
    >>> hidden_cells([24, 1, 40, 65], [(3, [0, 1, 2])], min_count=11).tolist()
    [True, True, False, False]
    """
    small = is_small(values, min_count) if small is None else small
    width = max(min_count - 2, 1)
    return hide_further(values, sums, small, width, blank=blank, known=known)


def hidden_parts(
    counts: ArrayLike, min_count: int, small: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which counts (…, n), and which sums over their last axis (…), may not be shown.

    `small` is as in `hidden_cells`, for the counts.

    Examples
    --------
    >>> parts, total = hidden_parts([[30, 3, 12, 0], [6, 0, 6, 0]], min_count=11)
    >>> parts.tolist(), total.tolist()
    ([[False, True, True, False], [True, False, True, False]], [False, False])
    """
    count = np.asarray(counts, dtype=float)
    small = is_small(count, min_count) if small is None else small
    cells = np.concatenate([count, count.sum(axis=-1, keepdims=True)], axis=-1)
    few = np.concatenate([small, is_small(cells[..., -1:], min_count)], axis=-1)
    hidden = hidden_grid(cells, min_count, few, axes=[-1])
    return hidden[..., :-1], hidden[..., -1]


def hidden_grid(
    table: ArrayLike,
    min_count: int,
    small: NDArray[np.bool_] | None = None,
    *,
    known: NDArray[np.bool_] | None = None,
    axes: Sequence[int] | None = None,
) -> NDArray[np.bool_]:
    """What may not be shown of a table with totals at the end of its axes, such as the last row.

    Parameters
    ----------
    table : array of any number of dimensions
    min_count : int
    small, known : arrays like the table, optional
        As in `hidden_cells`.
    axes : optional
        Those with totals; default: all.

    Examples
    --------
    >>> hidden_grid([[30, 3, 33], [40, 50, 90], [70, 53, 123]], min_count=11).tolist()
    [[True, True, False], [True, True, False], [False, False, False]]
    """
    values = np.asarray(table, dtype=float)
    at = np.arange(values.size).reshape(values.shape)
    sums: list[Sum] = [
        (int(line[-1]), line[:-1])
        for axis in (range(values.ndim) if axes is None else axes)
        for line in np.moveaxis(at, axis, -1).reshape(-1, values.shape[axis])
    ]
    few, shown = (None if mask is None else mask.ravel() for mask in (small, known))
    hidden = hidden_cells(values.ravel(), sums, min_count, few, known=shown)
    return hidden.reshape(values.shape)


class Parts(NamedTuple):
    """What may be shown of counts (…, n) and of their sums; see `bounded_parts`."""

    hidden: NDArray[np.bool_]
    at_least: NDArray[np.float64]
    hidden_total: NDArray[np.bool_]


def bounded_parts(
    counts: ArrayLike, min_count: int, small: NDArray[np.bool_] | None = None
) -> Parts:
    """What may be shown of counts that add up: as `hidden_parts`, but the largest one has a bound.

    Where the small counts of a row would follow from its sum, `hidden_parts` hides another count
    with them, and often that is nearly everybody. Here the largest count is hidden, and a lower
    bound is given in its place (`at_least`, NaN elsewhere). By the bound all others together are at
    most so many that each small one could still be anything from 1 to `min_count`.

    Examples
    --------
    >>> parts = bounded_parts([490, 7, 3, 0], min_count=11)
    >>> parts.hidden.tolist(), parts.at_least.tolist()
    ([True, True, True, False], [488.0, nan, nan, nan])
    """
    count = np.asarray(counts, dtype=float)
    small = is_small(count, min_count) if small is None else small
    hidden, hidden_total = (mask.copy() for mask in hidden_parts(count, min_count, small))
    at_least = np.full(count.shape, np.nan)
    rows = (table.reshape(-1, count.shape[-1]) for table in (count, small, hidden, at_least))
    for total, (values, few, unseen, bound) in zip(
        hidden_total.ravel(), zip(*rows, strict=True), strict=True
    ):
        if total or not (unseen & ~few).any():
            continue
        unit, rest = min_count + few.sum() - 1, values[few].sum()
        largest = int(np.where(few, -1.0, values).argmax())
        least = values[largest] + rest - unit * np.ceil(rest / unit)
        if least > 0:
            unseen[:] = few
            unseen[largest], bound[largest] = True, least
    return Parts(hidden, at_least, hidden_total)


@total_ordering
class Guarded:
    """A share or a rate that must not be printed: it can be compared, and `text` replaces it."""

    def __init__(self, value: float, text: str) -> None:
        self._value, self.text = float(value), text

    def __float__(self) -> float:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SupportsFloat) and self._value == float(other)

    def __lt__(self, other: SupportsFloat) -> bool:
        return self._value < float(other)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return self.text


def guarded_share(part: float, whole: float, min_count: int) -> float | Guarded:
    """A share of patients, guarded where few are in the part or few are not.

    Examples
    --------
    >>> guarded_share(50, 100, 11), guarded_share(97, 100, 11).text, guarded_share(3, 100, 11).text
    (0.5, 'all but fewer than 11', 'fewer than 11')
    """
    share = float(part / whole) if whole > 0 else np.nan
    if is_small(round(part, 6), min_count):
        return Guarded(share, f"fewer than {min_count}")
    if is_small(round(whole - part, 6), min_count):
        return Guarded(share, f"all but fewer than {min_count}")
    return share


def printable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with guarded numbers blank."""
    columns = {}
    for name in table:
        guarded = table[name].map(lambda value: isinstance(value, Guarded))
        if guarded.any():
            columns[name] = table[name].mask(guarded.astype(bool), np.nan).astype(float)
    return table.assign(**columns)


def add_totals(counts: ArrayLike) -> NDArray[np.float64]:
    """A table with a last row and a last column of totals, for `hidden_grid`."""
    table = np.asarray(counts, dtype=float)
    rows = np.vstack([table, table.sum(axis=0)])
    return np.column_stack([rows, rows.sum(axis=1)])


def hide_parts(
    table: pd.DataFrame,
    by: Sequence[str],
    numbers: Sequence[str],
    min_count: int,
    *,
    count: str = "count",
    patients: Sequence[str] | None = None,
    totals: Sequence[str] = (),
) -> pd.DataFrame:
    """The table with `numbers` blank where a count is small or would reveal a small one.

    Parameters
    ----------
    table : DataFrame
        The counts of each set of rows with the same `by` add up to a total that is shown.
    by, numbers, count : columns; those of `by` that the table lacks are passed over
    min_count : int
    patients : columns of the numbers of patients that decide what is small; default: the count
    totals : columns that are blank only where the total may not be shown either

    Examples
    --------
    >>> table = pd.DataFrame({"time": [1, 1, 1], "state": list("ABC"), "count": [30, 14, 3]})
    >>> hide_parts(table, ["time"], ["count"], min_count=11)["count"].to_list()
    [30.0, nan, nan]
    """
    small = np.zeros(len(table), dtype=bool)
    for column in patients or [count]:
        small |= is_small(table[column], min_count)
    keys = [name for name in by if name in table]
    hidden, no_total = small.copy(), np.zeros(len(table), dtype=bool)
    sets = table.groupby(keys, sort=False, observed=True, dropna=False) if keys else None
    for rows in [np.arange(len(table))] if sets is None else sets.indices.values():
        if small[rows].any():
            parts, total = hidden_parts(table[count].to_numpy()[rows], min_count, small[rows])
            hidden[rows], no_total[rows] = parts | total, total
    blank = {name: table[name].astype(float).mask(hidden) for name in numbers}
    blank |= {name: table[name].astype(float).mask(no_total) for name in totals}
    return table.assign(**blank)


def hide(
    table: pd.DataFrame, numbers: Sequence[str], patients: Sequence[str], min_count: int
) -> pd.DataFrame:
    """The table with `numbers` blank in rows where one of the columns `patients` is small.

    Examples
    --------
    >>> table = pd.DataFrame({"state": ["A", "B"], "count": [30, 3], "share": [0.9, 0.1]})
    >>> hide(table, ["count", "share"], ["count"], min_count=11)
      state  count  share
    0     A   30.0    0.9
    1     B    NaN    NaN
    """
    small = np.zeros(len(table), dtype=bool)
    for column in patients:
        small |= is_small(table[column], min_count)
    blank = {name: table[name].astype(float).mask(small) for name in numbers}
    return table.assign(**blank)


def count_text(n: float, min_count: int, patients: float | None = None) -> str:
    """A number as text: "1,234", or "<11" where the patients it is based on are few.

    Parameters
    ----------
    n : number to write
    min_count : int
    patients : number of different patients it is based on, if that is another number

    Examples
    --------
    >>> count_text(1234, 11), count_text(3, 11), count_text(0, 11), count_text(30, 11, patients=3)
    ('1,234', '<11', '0', '<11')
    """
    small = is_small(n if patients is None else patients, min_count)
    return few_text(min_count) if small else f"{n:,.0f}"


def hidden_note(min_count: int) -> str:
    """The sentence below a table or in a caption; nothing if nothing can be hidden."""
    if min_count < 2:
        return ""
    return (
        f"Numbers based on fewer than {min_count} patients, and those that would reveal them, "
        "are not shown."
    )


def few_text(min_count: int) -> str:
    """What replaces a small number: "<11"."""
    return f"<{min_count}"


def few_patients(min_count: int) -> str:
    """What replaces a small group's description."""
    return f"fewer than {min_count} patients"


def few_digits(values: ArrayLike, digits: int) -> NDArray[np.float64]:
    """Numbers with a number of significant digits; whole numbers stay as they are.

    Examples
    --------
    >>> few_digits([0.1234567, 12.3456, 1234.0, 9876.54], 3).tolist()
    [0.123, 12.3, 1234.0, 9880.0]
    """
    numbers = np.array(values, dtype=float)
    broken = np.isfinite(numbers) & (numbers != np.floor(numbers))
    numbers[broken] = [float(f"{number:.{digits}g}") for number in numbers[broken]]
    return numbers


def hide_rows(table: pd.DataFrame, kept: Sequence[str], hidden: ArrayLike) -> pd.DataFrame:
    """The table with everything but the columns `kept` blank in the rows `hidden`.

    Examples
    --------
    >>> table = pd.DataFrame({"cluster": [1, 2], "n": [30, 3], "first": ["TNFi", "JAK"]})
    >>> hide_rows(table, ["cluster"], is_small(table["n"], min_count=11))
       cluster     n first
    0        1  30.0  TNFi
    1        2   NaN   NaN
    """
    blank = np.asarray(hidden, dtype=bool)
    return table.assign(**{name: table[name].mask(blank) for name in table if name not in kept})


def not_shown(n: int, noun: str, min_count: int, others: int = 0) -> str:
    """The note below a figure that n things, and others for their sake, are left out of it.

    Examples
    --------
    >>> not_shown(2, "class", min_count=11)
    '2 classes of fewer than 11 patients not shown'
    >>> not_shown(1, "rate", min_count=11, others=1)
    '1 rate of fewer than 11 patients and 1 that would reveal it not shown'
    """
    plural = "" if n == 1 else "es" if noun.endswith("s") else "s"
    those = f" and {others:,} that would reveal {'it' if n == 1 else 'them'}" if others else ""
    return f"{n:,} {noun}{plural} of fewer than {min_count} patients{those} not shown"


def coarse_times(counts: ArrayLike, min_count: int) -> NDArray[np.intp]:
    """The times at which a curve may show its value, so that no stretch comes from few patients.

    Each step of a survival curve shows how many had the event or left, as may the numbers at risk.
    Between two times shown, and after the last before the end, each kind of event and leaving is
    that of nobody or of at least `min_count` patients.

    Parameters
    ----------
    counts : (times, kinds)
        Patients who have each kind of event, or leave, at each time; everybody in the end.
    min_count : int

    Returns
    -------
    array
        Positions of the times; empty if even all of them together are too few.

    Examples
    --------
    >>> coarse_times([[4, 0], [8, 1], [3, 11], [9, 12]], min_count=11).tolist()
    [3]
    >>> coarse_times([[4, 0], [8, 0], [3, 11], [9, 12]], min_count=11).tolist()
    [1, 3]
    """
    table = np.asarray(counts, dtype=float)
    kept: list[int] = []
    since = np.zeros(table.shape[1])
    for i, row in enumerate(table):
        since += row
        if since.any() and not is_small(since, min_count).any():
            kept.append(i)
            since[:] = 0
    while since.any() and is_small(since, min_count).any():  # the last stretch joins those before
        if not kept:
            return np.array([], dtype=np.intp)
        kept.pop()
        since = table[(kept[-1] + 1 if kept else 0) :].sum(axis=0)
    if since.any():
        kept.append(len(table) - 1)
    return np.array(kept, dtype=np.intp)
