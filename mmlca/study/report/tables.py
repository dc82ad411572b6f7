"""The tables of the report: how a DataFrame is laid out, and numbers made readable."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from mmlca.tables.disclosure import hidden_note

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_ROWS = 50
"""Longer tables are cut in the page; the file, which the page can save, has all rows."""

MISSING = "–"
_SHADES = 5
_HYPHENED = re.compile(r"(?<![\w&#-])(?=[\w-]{3,14}(?![\w-]))\w+(?:-\w+)+")
"""Short words with a hyphen, such as names of drug classes."""
_LABELS = {
    "aic": "AIC",
    "bic": "BIC",
    "bic_all": "BIC, textbook’s count",
    "caic": "CAIC",
    "end": "last class",
    "end_share": "last class, share",
    "first": "first class",
    "first_share": "first class, share",
    "followed": "follow-up (median)",
    "i2": "I²",
    "jaccard_least": "Jaccard index of the least stable class",
    "icl": "ICL",
    "loglik": "log-likelihood",
    "n_then": "observed then",
    "p_heterogeneity": "p of differences",
    "p_holm": "p, adjusted",
    "p_proportional": "p of change with time",
    "p_value": "p",
    "parameters_all": "parameters, textbook’s count",
    "path": "most common path",
    "path_share": "most common path, share",
    "patients_left": "patients left",
    "posterior": "average probability of the own class",
    "q": "Q",
    "resamples_agree": "resamples that choose it too",
    "replicated": "searches at the maximum",
    "sabic": "SABIC",
    "se": "standard error",
    "sizes": "sizes of the classes (%)",
    "searches": "independent searches",
    "second_path": "second most common path",
    "second_path_share": "second path, share",
    "smallest": "smallest class",
    "still": "on it at the end",
    "switch_share": "of switches, share",
    "switch_to": "switch most often to",
    "switches": "switches per patient",
    "time": "last time observed",
    "until_switch": "first switch after (median)",
}


@dataclass(frozen=True)
class Plain:
    """A table shown as it is, one row per row of the DataFrame."""

    shares: tuple[str, ...] = ()  # columns in percent
    columns: tuple[str, ...] | None = None  # those that are shown; default: all
    n_keys: int = 1  # how many columns at the left name the row
    sortable: bool = True
    empty: Mapping[str, str] = field(default_factory=dict)
    """Written where a column is missing; elsewhere a dash."""
    left_out: str | None = None
    """Rows in which this column is hidden are left out, and a note says how many."""
    unit: str | None = None  # the column with the unit of each row: "share", "count" or "index"
    figures: tuple[str, ...] = ()
    """Text columns that hold numbers, such as "12 (3.4)", and stand at the right."""
    digits: Mapping[str, int] = field(default_factory=dict)
    """Numbers of decimals; elsewhere fewer the larger the numbers of a column are."""
    labels: Mapping[str, str] = field(default_factory=dict)  # what the page calls columns
    shown: pd.DataFrame | None = None
    """What the page shows instead of the table in the file, with the same numbers."""


@dataclass(frozen=True)
class Grid:
    """A long table laid out in rows and columns."""

    keys: tuple[str, ...]  # they name a row of the grid, unless they are the same everywhere
    across: str  # its values become the columns of the grid
    value: str  # fills the grid
    counts: tuple[str, ...]
    """What the value rests on; where one is 0 there is nobody, and the value is missing."""
    note: Callable[[Mapping[str, Any]], str]
    """What the value of a row of the DataFrame rests on, shown on hovering."""
    kind: Literal["share", "difference", "level"] = "share"  # in percent, signed, or plain
    step: float | None = None  # only multiples of it become columns
    text: str = ""  # a note below the grid


Layout = Plain | Grid


@dataclass(frozen=True)
class Cell:
    """Text; the value it sorts by; what hovering adds; the class of its colour.

    Without `more`, hovering adds further digits of the value.
    """

    text: str
    value: float | None = None
    more: str = ""
    shade: str = ""

    @property
    def digits(self) -> str | None:
        """The value for the page's script, where neither the text nor `more` has it."""
        if self.value is None or self.more:
            return None
        digits = f"{self.value:.6g}"
        same = self.value == round(self.value) and "%" not in self.text
        return None if same or digits == self.text.replace(",", "").replace("−", "-") else digits


@dataclass(frozen=True)
class Table:
    """Columns are (label, whether they hold numbers); the first `n_keys` name the row."""

    title: str
    columns: list[tuple[str, bool]]
    rows: list[list[Cell]]
    n_keys: int = 1
    notes: tuple[str, ...] = ()
    sortable: bool = True
    grid: bool = False


def lay_out(frame: pd.DataFrame, layout: Layout, title: str, file: str, min_count: int) -> Table:
    """A DataFrame as the page shows it; `file` is where all of it can be found."""
    if isinstance(layout, Grid):
        table = _grid(frame, layout, title, min_count)
    else:
        shown = frame if layout.shown is None else layout.shown
        table = _plain(shown, layout, title, min_count)
    n = len(table.rows)
    note = f"File: {file}."
    if n > MOST_ROWS:
        note = f"The first {MOST_ROWS} of {n:,} rows; all are in {file}."
    return replace(table, rows=table.rows[:MOST_ROWS], notes=(*table.notes, note))


def label(name: str) -> str:
    """What a column is called in the page."""
    return _LABELS.get(name, name.replace("_", " "))


# --- numbers ----------------------------------------------------------------------------


def number(value: float, digits: int = 3) -> str:
    """Thousands apart, a true minus sign; small values print as <0.001, not as 0.000.

    >>> number(15375.35, 1), number(-0.0004), number(2.0)
    ('15,375.4', '>−0.001', '2.000')
    """
    size = abs(value)
    if 0 < size < 0.5 * 10**-digits:
        text = f"{10**-digits:.{digits}f}"
        return f">−{text}" if value < 0 else f"<{text}"
    text = f"{size:,.{digits}f}"
    return f"−{text}" if value < 0 else text


def percent(share: float) -> str:
    """One decimal; values near 0 or 100 % print as <0.1 % or >99.9 %.

    >>> percent(0.65804), percent(0.0002), percent(0.9999), percent(1.0)
    ('65.8\\xa0%', '<0.1\\xa0%', '>99.9\\xa0%', '100\\xa0%')
    """
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    if 0.9995 <= share < 1:
        return ">99.9\u00a0%"
    return f"{number(100 * share, 1)}\u00a0%"


SHOW: dict[str, Callable[[float], str]] = {
    "share": percent,
    "count": lambda value: number(value, 0),
    "index": number,
}
"""How a number of each unit is written."""


def number_cell(value: float, show: Callable[[float], str]) -> Cell:
    """A number, with more of its digits on hovering; a dash if it is missing."""
    return Cell(MISSING) if np.isnan(value) else Cell(show(value), value)


def unbroken(text: str) -> Markup:
    """A text in which no line ends before a per cent sign or within "p = 0.01" or "anti-CD20".

    It may end after the sign of a combination, as in metformin+DPP-4.
    """
    from markupsafe import Markup, escape

    text = re.sub(r"\bp ([=≤<]) (?=\d)", "p\u00a0\\1\u00a0", text)
    text = re.sub(r"(?<=\d) %", "\u00a0%", text)
    text = re.sub(r"\+(?=\w)", "+<wbr>", str(escape(text)))
    return Markup(_HYPHENED.sub(r'<span class="together">\g<0></span>', text))


# --- plain tables -------------------------------------------------------------------------


def _plain(frame: pd.DataFrame, layout: Plain, title: str, min_count: int) -> Table:
    notes: tuple[str, ...] = ()
    if layout.left_out is not None:
        kept = frame[frame[layout.left_out].notna()]
        if len(kept) < len(frame):
            n = len(frame) - len(kept)
            rows = "1 row" if n == 1 else f"{n:,} rows"
            few = f"of fewer than {min_count} patients, or that would reveal so few"
            notes = (f"Left out: {rows} {few}.",)
        frame = kept
    names = list(frame.columns if layout.columns is None else layout.columns)
    columns = [_column(frame, name, layout) for name in names]
    return Table(
        title,
        [
            (layout.labels.get(name, label(name)), numeric)
            for name, (_, numeric) in zip(names, columns, strict=True)
        ],
        [list(cells) for cells in zip(*(cells for cells, _ in columns), strict=True)],
        layout.n_keys,
        notes,
        layout.sortable,
    )


def _column(frame: pd.DataFrame, name: str, layout: Plain) -> tuple[list[Cell], bool]:
    """The cells of a column, and whether it holds numbers."""
    column = frame[name]
    if is_bool_dtype(column):
        return [Cell("yes" if value else "no") for value in column], False
    if not is_numeric_dtype(column):
        empty = layout.empty.get(name, MISSING)
        texts = [Cell(empty if pd.isna(v) or v == "" else str(v)) for v in column]
        return texts, name in layout.figures
    values = column.astype(float)
    if layout.unit is not None:
        pairs = zip(values, frame[layout.unit], strict=True)
        return [number_cell(value, SHOW[unit]) for value, unit in pairs], True
    show = _shares(values) if name in layout.shares else _fixed(values, layout.digits.get(name))
    return [number_cell(value, show) for value in values], True


def _shares(values: pd.Series) -> Callable[[float], str]:
    """Per cent with one decimal; without any if a whole column has none."""
    whole = 100 * values.dropna()
    if np.isclose(whole, whole.round(), 0, 1e-9).all():
        return lambda value: f"{100 * value:.0f}\u00a0%"
    return percent


def _fixed(values: pd.Series, decimals: int | None) -> Callable[[float], str]:
    """One number of digits for a whole column: as many as it has, fewer the larger they are."""
    if decimals is not None:
        return lambda value: number(value, decimals)
    known = values.dropna()
    largest = known.abs().max() if len(known) else 0.0
    most = 3 if largest < 10 else 2 if largest < 100 else 1
    digits = next(
        (n for n in range(most) if np.isclose(known, known.round(n), 1e-9, 0).all()), most
    )
    return lambda value: number(value, digits)


# --- grids ------------------------------------------------------------------------------


def _grid(frame: pd.DataFrame, grid: Grid, title: str, min_count: int) -> Table:
    if grid.step is not None:
        steps = frame[grid.across].astype(float) / grid.step
        frame = frame[(steps - steps.round()).abs() < 1e-9]
    constant = [key for key in grid.keys[:-1] if frame[key].nunique(dropna=False) == 1]
    keys = [key for key in grid.keys if key not in constant]
    across = list(dict.fromkeys(frame[grid.across]))
    largest = frame[grid.value].abs().max() if len(frame) else 1.0
    lines: dict[tuple[Any, ...], dict[Any, Cell]] = {}
    for row in frame.to_dict("records"):
        key = tuple("first" if pd.isna(row[k]) else str(row[k]) for k in keys)
        lines.setdefault(key, {})[row[grid.across]] = _grid_cell(grid, row, largest, min_count)
    rows = [
        [*map(Cell, key), *(cells.get(name, Cell(MISSING)) for name in across)]
        for key, cells in lines.items()
    ]
    names = [f"{a:g}".replace("-", "−") if isinstance(a, float) else str(a) for a in across]
    columns = [(label(key), False) for key in keys] + [(name, True) for name in names]
    hidden = any(cell.more == _few(min_count) for row in rows for cell in row)
    notes = (grid.text, f"{MISSING}: {hidden_note(min_count)}") if hidden else (grid.text,)
    return Table(title, columns, rows, len(keys), notes, grid=True)


def _few(min_count: int) -> str:
    return f"fewer than {min_count}, or would reveal so few"


def _grid_cell(grid: Grid, row: Mapping[Any, Any], largest: float, min_count: int) -> Cell:
    value = row[grid.value]
    if pd.isna(value):
        nobody = any(row[name] == 0 for name in grid.counts)
        return Cell(MISSING, None, "nobody" if nobody else _few(min_count))
    exact = f"{value:.6g}".replace("-", "−")
    note = f"{exact}, {grid.note(row)}"
    if grid.kind == "level":
        return Cell(number(value, 1), value, note)
    if grid.kind == "difference":
        shade = round(_SHADES * min(1.0, abs(value) / max(largest, 1e-12)))
        return Cell(number(value), value, note, f"{'plus' if value > 0 else 'minus'}-{shade}")
    text = percent(value).removesuffix("\u00a0%")
    return Cell(text, value, note, f"share-{round(_SHADES * value)}")
