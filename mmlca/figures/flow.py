"""The flow of patients and records, as a CONSORT-like diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.figures.canvas import TEXT
from mmlca.sequences.checks import counted, need_columns, of_type
from mmlca.tables.data_account import hide_flow
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {
    "read": "Records read",
    "usable": "Usable records of mapped drugs",
    "eligible": "Eligible patients",
    "sequences": "In the sequences",
    "selected": "Selected patients",
}
_NOUNS = ("patient", "record")
# Heights are in lines of text, widths in hundredths of the figure's.
_PAD, _GAP = 0.8, 0.9
_MIDDLE, _SIDE = 17, 39


def plot_flow(flow: Any, ax: Axes | None = None, *, min_count: int = 0) -> Axes:
    """Draw a flow table as a CONSORT-like diagram: boxes down, what was dropped to the right.

    Parameters
    ----------
    flow : DataFrame, or sequences or records with their `.flow`
    ax : Axes, optional
        Default: a new figure of a fitting size.
    min_count : int
        Reasons of fewer patients or records are grouped; see `mmlca.tables.data_account.hide_flow`.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from mmlca.sequences.type import Step, flow_table
    >>> ax = plot_flow(flow_table(3, 20, [Step("usable", "repeats another record", 0, 2)]))
    >>> [text.get_text() for text in ax.texts if "Dropped" in text.get_text()]
    ['Dropped: 2 records']
    """
    table = getattr(flow, "flow", flow)
    of_type(table, pd.DataFrame, "a flow table, sequences or records")
    need_columns(table, ["stage", "reason", "patients", "records"])
    table = hide_flow(table, min_count) if hides(min_count) else table
    stages = [table[table["stage"] == stage] for stage in table["stage"].unique()]
    sides = [_side_lines(rows) for rows in stages]
    gaps = [len(lines) + _PAD + 2 * _GAP if lines else 2 * _GAP for lines in sides[1:]]
    height = len(stages) * (3 + _PAD) + sum(gaps)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(7.2, 0.15 * height + 0.2), layout="constrained")
    ax.set(xlim=(0, 100), ylim=(-height - 0.1, 0.1))
    ax.axis("off")
    size = _fitting(ax, height, [line for lines in sides for line in lines])
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "0.3", "shrinkA": 0, "shrinkB": 0}
    top = 0.0
    for number, rows in enumerate(stages):
        if number:
            gap = gaps[number - 1]
            ax.annotate("", xy=(_MIDDLE, top - gap), xytext=(_MIDDLE, top), arrowprops=arrow)
            if sides[number]:
                y = top - gap / 2
                ax.annotate("", xy=(_SIDE, y), xytext=(_MIDDLE, y), arrowprops=arrow)
                _box(ax, sides[number], _SIDE, 99.5, y, "white", size)
            top -= gap
        left = rows.iloc[-1]
        lines = [_TITLES.get(left["stage"], left["stage"])]
        lines += [counted(left[f"{noun}s_left"], noun, f"{noun}s") for noun in _NOUNS]
        _box(ax, lines, 0.5, 2 * _MIDDLE - 0.5, top - (3 + _PAD) / 2, "0.94", size, centred=True)
        top -= 3 + _PAD
    return ax


def _side_lines(rows: pd.DataFrame) -> list[str]:
    """What a stage dropped, in total and by reason; nothing if it dropped nothing."""
    dropped = rows[(rows["patients"] > 0) | (rows["records"] > 0)]
    if not len(dropped):
        return []
    total = _counts(dropped["patients"].sum(), dropped["records"].sum())
    return [
        f"Dropped: {total}",
        *(f"  {row.reason}: {_counts(row.patients, row.records)}" for row in dropped.itertuples()),
    ]


def _counts(patients: int, records: int) -> str:
    both = zip((patients, records), _NOUNS, strict=True)
    return ", ".join(counted(n, noun, f"{noun}s") for n, noun in both if n or noun == "record")


def _fitting(ax: Axes, height: float, texts: list[str]) -> float:
    """The size of letters: as elsewhere, or smaller where an Axes of the caller is small."""
    figure: Any = ax.figure
    wide, high = ax.get_window_extent().size * 72 / figure.dpi
    titles = max(map(len, _TITLES.values())) / (2 * _MIDDLE)
    longest = max([titles, *(len(text) / (98 - _SIDE) for text in texts)])
    return float(min(TEXT, high / height / 1.35, wide / 100 / (0.62 * longest)))


def _box(
    ax: Axes,
    lines: list[str],
    left: float,
    right: float,
    middle: float,
    colour: str,
    size: float,
    centred: bool = False,
) -> None:
    from matplotlib.patches import Rectangle

    height = len(lines) + _PAD
    ax.add_patch(
        Rectangle(
            (left, middle - height / 2),
            right - left,
            height,
            facecolor=colour,
            edgecolor="0.3",
            linewidth=0.8,
            zorder=2,
        )
    )
    for number, line in enumerate(lines):
        ax.text(
            (left + right) / 2 if centred else left + 1.5,
            middle + height / 2 - _PAD / 2 - number - 0.5,
            line,
            ha="center" if centred else "left",
            va="center",
            fontsize=size,
            fontweight="bold" if number == 0 else "normal",
            zorder=3,
        )
