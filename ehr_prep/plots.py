"""Figures: the flow of patients and records, and the course of a lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from ehr_prep.flow import hide_flow
from ehr_prep.labs import Trend
from ehr_prep.records import Records
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import need_columns, of_type
from mmlca.sequences.type import Sequences
from mmlca.tables.suppress import hides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
# Clusters differ in colour (for the colour-blind too) and in the line, for print in grey.
_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_TEXT, _SMALL = 7.0, 6.0  # points, as in mmlca's figures
_MOST_IN_A_ROW = 3


def plot_flow(
    flow: pd.DataFrame | Sequences | Records, ax: Axes | None = None, *, min_count: int = 0
) -> Axes:
    """Draw a flow table as a CONSORT-like diagram: boxes down, what was dropped to the right.

    Parameters
    ----------
    flow : DataFrame, or sequences or records with their `.flow`
    ax : Axes, optional
        Default: a new figure of a fitting size.
    min_count : int
        Reasons of fewer patients or records are grouped, as `ehr_prep.flow.hide_flow` does.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from ehr_prep.flow import Step, flow_table
    >>> ax = plot_flow(flow_table(3, 20, [Step("usable", "repeats another record", 0, 2)]))
    >>> [text.get_text() for text in ax.texts if "Dropped" in text.get_text()]
    ['Dropped: 2 records']
    """
    of_type(flow, (pd.DataFrame, Sequences, Records), "a flow table, sequences or records")
    if isinstance(flow, pd.DataFrame):
        need_columns(flow, ["stage", "reason", "patients", "records"])
    table = flow if isinstance(flow, pd.DataFrame) else flow.flow
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
        lines += [_counted(left[f"{noun}s_left"], noun) for noun in _NOUNS]
        _box(ax, lines, 0.5, 2 * _MIDDLE - 0.5, top - (3 + _PAD) / 2, "0.94", size, centred=True)
        top -= 3 + _PAD
    return ax


def plot_trend(result: Trend, figure: Figure | None = None, *, label: str | None = None) -> Figure:
    """Draw the curves of `trend` with their bands, one panel per site; returns the Figure.

    The axis is logarithmic and says "geometric mean" if the model is one of logarithms.

    Parameters
    ----------
    result : Trend
        Its `.curves` are drawn, and the sums of its `.counts` stand above each panel.
        `result.caption()` says what is drawn.
    figure : Figure or SubFigure, optional
        Default: a new one, with at most three sites in a row.
    label : str, optional
        Lab and unit, for the axis. Default: as the table of labs names them, `result.label`.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> import ehr_prep
    >>> data = ehr_prep.ra_cohort(seed=1, scale=0.1)["VA"]
    >>> figure = plot_trend(ehr_prep.trend(data.labs, data.truth["class"], data.truth))
    >>> figure.axes[0].get_ylabel()
    'ESR, geometric mean (log scale)'
    """
    of_type(result, Trend, "what ehr_prep.trend returns")
    used = result.counts[result.counts["reason"] == "used"]
    groups = list(used["group"].unique())
    sites = list(result.curves["site"].unique())
    n_rows = -(-len(sites) // _MOST_IN_A_ROW)
    n_columns = -(-len(sites) // n_rows)
    if figure is None:
        import matplotlib.pyplot as plt

        size = (max(3.6, 7.2 * (n_columns > 1)), (2.4 * n_rows) + 0.8 + 0.18 * len(groups))
        figure = plt.figure(figsize=size, layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    panels = grid.ravel()[: len(sites)]
    for empty in grid.ravel()[len(sites) :]:
        empty.set_axis_off()
    for ax, site in zip(panels, sites, strict=True):
        ax.tick_params(labelsize=_SMALL, length=2, width=0.5, colors=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_linewidth(0.5)
        for number, group in enumerate(groups):
            curve = result.curves.query("site == @site and group == @group")
            if not len(curve):
                continue
            colour, line = group_colour(number), _LINES[number % len(_LINES)]
            style = {"color": colour, "linestyle": line, "linewidth": 1.3, "label": str(group)}
            band = {"color": colour, "alpha": 0.18, "linewidth": 0}
            ax.fill_between(curve["years"], curve["low"], curve["high"], **band)
            ax.plot(curve["years"], curve["estimate"], **style)
        ax.axvline(0, color="0.4", linewidth=0.8, zorder=0)
        mine = used.loc[used["site"] == site, ["patients", "labs"]].sum()
        n = f"{mine['patients']:,.0f} patients with {mine['labs']:,.0f} values"
        ax.set_title(f"{site}\n{n}", fontsize=_TEXT, color=INK)
        ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    panels[0].set_xlim(result.curves["years"].min(), result.curves["years"].max())
    scale = " (log scale)" if result.log else ""
    for ax in grid[:, 0]:
        name = result.label if label is None else label
        ax.set_ylabel(f"{name}, {'geometric ' * result.log}mean{scale}", fontsize=_TEXT)
    for ax in panels[-n_columns:]:
        ax.set_xlabel("Years since the first prescription", fontsize=_TEXT)
        ax.tick_params(labelbottom=True)  # also above an empty place
    if result.log:
        _label_logarithmic(panels[0])
    lines = {line.get_label(): line for ax in panels for line in ax.get_lines()}
    entry = _SMALL * (0.55 * max(len(str(group)) for group in groups) + 6) / 72  # inches
    fitting = int(figure.get_size_inches()[0] / entry)
    figure.legend(
        handles=[lines[str(group)] for group in groups if str(group) in lines],
        loc="outside lower center",
        ncols=max(1, min(len(groups), 2 * n_columns, fitting)),
        frameon=False,
        fontsize=_SMALL,
        handlelength=3,
        title=f"Lines: estimate; bands: {result.bands} {100 * result.level:g} % limits",
        title_fontsize=_SMALL,
    )
    return figure


def _label_logarithmic(ax: Axes) -> None:
    """A logarithmic axis with round numbers, not only powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_yticks(_round_ticks(low, high))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.set_ylim(low, high)


def _round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two positive ones, some four or more where there is room."""
    powers = [10.0**k for k in range(-9, 10)]
    ticks: list[float] = []
    finer = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), [n / 10 for n in range(10, 100)]
    for steps in ((1,), (1, 2, 5), *finer):
        ticks = [step * p for p in powers for step in steps if low <= step * p <= high]
        if len(ticks) >= 4:
            break
    return ticks


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
    return ", ".join(_counted(n, noun) for n, noun in both if n or noun == "record")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _fitting(ax: Axes, height: float, texts: list[str]) -> float:
    """The size of letters: as elsewhere, or smaller where an Axes of the caller is small."""
    figure: Any = ax.figure
    wide, high = ax.get_window_extent().size * 72 / figure.dpi
    titles = max(map(len, _TITLES.values())) / (2 * _MIDDLE)
    longest = max([titles, *(len(text) / (98 - _SIDE) for text in texts)])
    return float(min(_TEXT, high / height / 1.35, wide / 100 / (0.62 * longest)))


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
