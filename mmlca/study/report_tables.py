"""The tables of the report: numbers made readable, and sorted by what they are."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

MOST_ROWS = 100
"""Longer tables are cut in the page; the file has all rows."""

_MISSING = "–"
_SHARES = {"share", "rate", "still", "smallest", "cumulative"}
_SIGNED = "difference"
_LABELS = {
    "aic": "AIC",
    "bic": "BIC",
    "chance": "by chance",
    "first": "first class",
    "first_share": "first class, share",
    "icl": "ICL",
    "loglik": "log-likelihood",
    "n_then": "followed then",
    "patients_left": "patients left",
    "replicated": "starts at the maximum",
    "sabic": "SABIC",
    "smallest": "smallest class",
    "still": "still on it",
    "switch_share": "of switches, share",
    "switch_to": "switch most often to",
    "time": "at time",
}
_SHADES = 5


@dataclass(frozen=True)
class Cell:
    """Text; the value it sorts by; what hovering adds; the class of its colour."""

    text: str
    value: float | None = None
    more: str = ""
    shade: str = ""


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


# --- numbers ----------------------------------------------------------------------------


def number(value: float, digits: int = 3) -> str:
    """Thousands apart, a true minus; "<0.001" rather than a zero that is none.

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
    """One decimal; shares next to none and all do not become them.

    >>> percent(0.65804), percent(0.0002), percent(0.9999), percent(1.0)
    ('65.8\\xa0%', '<0.1\\xa0%', '>99.9\\xa0%', '100\\xa0%')
    """
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    if 0.9995 <= share < 1:
        return ">99.9\u00a0%"
    return f"{number(100 * share, 1)}\u00a0%"


def is_share(name: str) -> bool:
    """Whether a column, or a number of the summary, is a share of a whole."""
    starts = ("share of", "patients with agreement", "mean agreement")
    return name in _SHARES or name.endswith(("_share", " share")) or name.startswith(starts)


def sensible(name: str, value: float) -> str:
    """One number by itself: a share, a count, or three decimals."""
    if is_share(name):
        return percent(value)
    measured = name.startswith(("site difference", "adjusted Rand"))
    return number(value, 3 if measured or value != int(value) else 0)


def _exact(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _float(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _cells(name: str, texts: Sequence[str]) -> tuple[list[Cell], bool]:
    """A column's cells, and whether it holds numbers."""
    if set(texts) <= {"True", "False", ""} and any(texts):
        words = {"True": "yes", "False": "no", "": _MISSING}
        return [Cell(words[text]) for text in texts], False
    if name == "level":
        return [Cell(text) for text in texts], False
    values = [_float(text) for text in texts]
    given = [value for value in values if value is not None]
    if not given or len(given) < sum(map(bool, texts)):
        return [Cell(text or _MISSING) for text in texts], False
    most = max(map(abs, given))
    whole = all(value == int(value) for value in given)
    digits = 0 if whole else 1 if most >= 100 else 2 if most >= 10 else 3
    show: Callable[[float], str] = percent if is_share(name) else lambda v: number(v, digits)
    return [_number_cell(value, show) for value in values], True


def _number_cell(value: float | None, show: Callable[[float], str]) -> Cell:
    if value is None:
        return Cell(_MISSING)
    text = show(value)
    return Cell(text, value, "" if value == int(value) and "%" not in text else _exact(value))


# --- files ------------------------------------------------------------------------------


def read_table(path: Path, file: str, title: str, min_count: int) -> Table:
    """A table of the folder as the page shows it.

    Long tables of shares by time, transitions, differences and curves are laid out as grids.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines)
    for grid in _GRIDS:
        if {grid.across, grid.value, *grid.keys} <= set(header):
            return _cut(_lay_out(grid, header, rows, title, min_count), file)
    if {"line", "to"} <= set(header):
        last = header.index("to")
        rows = [[*row[:last], row[last] or "no other", *row[last + 1 :]] for row in rows]
    notes: tuple[str, ...] = ()
    if {"count", "share"} <= set(header):
        place = header.index("count")
        kept = [row for row in rows if row[place]]
        if len(kept) < len(rows):
            left_out = f"{len(rows) - len(kept):,} rows of fewer than {min_count} patients"
            rows, notes = kept, (f"{left_out} are left out.",)
    if header[:2] == ["name", "value"]:
        return _cut(replace(_named(header, rows, title), notes=notes), file)
    columns = [_cells(name, [row[i] for row in rows]) for i, name in enumerate(header)]
    table = Table(
        title,
        [(label(name), numeric) for name, (_, numeric) in zip(header, columns, strict=True)],
        [list(cells) for cells in zip(*(cells for cells, _ in columns), strict=True)],
        n_keys=2 if "level" in header[:2] else 1,
        notes=notes,
        sortable="level" not in header,  # blocks of a variable's levels
    )
    return _cut(table, file)


def label(name: str) -> str:
    """What a column is called in the page."""
    return _LABELS.get(name, name.replace("_", " "))


def _cut(table: Table, file: str) -> Table:
    n = len(table.rows)
    if n <= MOST_ROWS:
        return replace(table, notes=(*table.notes, f"File: {file}."))
    note = f"The first {MOST_ROWS} of {n:,} rows; all are in {file}."
    return replace(table, rows=table.rows[:MOST_ROWS], notes=(*table.notes, note))


def _named(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    """Numbers of different kinds one below the other."""
    cells = []
    for name, *texts in rows:
        values = [_float(text) for text in texts]
        cells.append(
            [Cell(name), *(_number_cell(v, lambda x, name=name: sensible(name, x)) for v in values)]  # type: ignore[misc]
        )
    columns = [(label(name), number > 0) for number, name in enumerate(header)]
    return Table(title, columns, cells)


# --- grids ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    """A long table laid out in rows and columns; `note` says what a cell rests on."""

    keys: tuple[str, ...]
    across: str
    value: str
    note: Callable[[Mapping[str, str]], str]
    step: float | None = None
    text: str = ""


def _out_of(row: Mapping[str, str]) -> str:
    return f"{float(row['count']):,.0f} of {float(row['n']):,.0f}"


def _steps(row: Mapping[str, str]) -> str:
    weak = "" if row.get("supported") != "False" else ", few"
    return f"from {float(row['n_first']):,.0f} and {float(row['n_second']):,.0f} steps{weak}"


def _band(row: Mapping[str, str]) -> str:
    return f"band {float(row['low']):.3g} to {float(row['high']):.3g}"


_GRIDS = (
    _Grid(("site", "group", "state"), "time", "share", _out_of, text="Shares in % by time."),
    _Grid(
        ("site", "group", "from"),
        "to",
        "rate",
        _out_of,
        text="Shares in %; columns: the state after.",
    ),
    _Grid(
        ("membership", "sites", "cluster", "quantity", "from"),
        "to",
        _SIGNED,
        _steps,
        text="Columns: the state after, or the first state.",
    ),
    _Grid(
        ("site", "group"),
        "years",
        "estimate",
        _band,
        0.5,
        "Columns: years since the first prescription, every half year.",
    ),
)


def _lay_out(
    grid: _Grid, header: Sequence[str], rows: Sequence[Sequence[str]], title: str, min_count: int
) -> Table:
    long = [dict(zip(header, row, strict=True)) for row in rows]
    if grid.step is not None:
        long = [row for row in long if float(row[grid.across]) % grid.step == 0]
    constant = [key for key in grid.keys if len({row[key] for row in long}) == 1]
    keys = [key for key in grid.keys if key not in constant or key == grid.keys[-1]]
    across = list(dict.fromkeys(row[grid.across] for row in long))
    found: dict[tuple[str, ...], dict[str, Cell]] = {}
    values = [value for row in long if (value := _float(row[grid.value])) is not None]
    most = max(map(abs, values), default=1.0)
    for row in long:
        cells = found.setdefault(tuple(row[key] for key in keys), {})
        cells[row[grid.across]] = _grid_cell(grid, row, most, min_count)
    empty = Cell(_MISSING)
    lines = [
        [*(Cell(part or "first") for part in key), *(cells.get(a, empty) for a in across)]
        for key, cells in found.items()
    ]
    minus = [a if grid.step is None else a.replace("-", "−") for a in across]
    columns = [*((label(key), False) for key in keys), *((name, True) for name in minus)]
    hidden = any(cell.more.startswith("fewer") for line in lines for cell in line)
    text = grid.text + f" {_MISSING}: fewer than {min_count} patients or steps." * hidden
    return Table(title, columns, lines, len(keys), (text,), grid=True)


def _grid_cell(grid: _Grid, row: Mapping[str, str], most: float, min_count: int) -> Cell:
    value = _float(row[grid.value])
    if value is None:
        never = row.get("n") == "0" or row.get("count") == "0"
        return Cell(_MISSING, None, "nobody" if never else f"fewer than {min_count}")
    note = f"{_exact(value)}, {grid.note(row)}"
    if grid.value == "estimate":
        return Cell(number(value, 1), value, note)
    if grid.value == _SIGNED:
        level = round(_SHADES * min(1.0, abs(value) / max(most, 1e-12)))
        return Cell(number(value, 3), value, note, f"{'plus' if value > 0 else 'minus'}-{level}")
    text = percent(value).removesuffix("\u00a0%")
    return Cell(text, value, note, f"share-{round(_SHADES * value)}")
