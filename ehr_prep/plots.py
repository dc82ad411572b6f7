"""Figures: the flow of patients and records, and the course of a lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from ehr_prep.labs import Trend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "read": "Records read",
    "usable": "Usable records of mapped drugs",
    "eligible": "Eligible patients",
    "sequences": "In the sequences",
}
# Heights are in lines of text, widths in hundredths of the figure's.
_PAD, _GAP = 0.8, 0.9
_MIDDLE, _SIDE = 17, 39
# Clusters differ in colour (for the colour-blind too) and in the line, for print in grey.
_COLOURS = ("#332288", "#DDAA33", "#AA4499", "#117733", "#88CCEE", "#882255", "#44AA99", "#777777")
_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))


def plot_flow(flow: Any, ax: Axes | None = None) -> Axes:
    """Draw a flow table as a CONSORT-like diagram: boxes down, what was dropped to the right.

    Parameters
    ----------
    flow : DataFrame
        The `.flow` of sequences or records, or an object that has one.
    ax : Axes, optional
        Default: a new figure of a fitting size.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from ehr_prep.flow import Step, flow_table
    >>> ax = plot_flow(flow_table(3, 20, [Step("usable", "repeats another record", 0, 2)]))
    >>> [text.get_text() for text in ax.texts if "Dropped" in text.get_text()]
    ['Dropped: 2 records']
    """
    table = flow if isinstance(flow, pd.DataFrame) else flow.flow
    stages = [table[table["stage"] == stage] for stage in table["stage"].unique()]
    sides = [_side_lines(rows) for rows in stages]
    gaps = [len(lines) + _PAD + 2 * _GAP if lines else 2 * _GAP for lines in sides[1:]]
    height = len(stages) * (3 + _PAD) + sum(gaps)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(8.5, 0.19 * height + 0.2), layout="constrained")
    ax.set(xlim=(0, 100), ylim=(-height - 0.1, 0.1))
    ax.axis("off")
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "0.3", "shrinkA": 0, "shrinkB": 0}
    top = 0.0
    for number, rows in enumerate(stages):
        if number:
            gap = gaps[number - 1]
            ax.annotate("", xy=(_MIDDLE, top - gap), xytext=(_MIDDLE, top), arrowprops=arrow)
            if sides[number]:
                y = top - gap / 2
                ax.annotate("", xy=(_SIDE, y), xytext=(_MIDDLE, y), arrowprops=arrow)
                _box(ax, sides[number], _SIDE, 99.5, y, "white")
            top -= gap
        left = rows.iloc[-1]
        lines = [_TITLES.get(left["stage"], left["stage"])]
        lines += [f"{left['patients_left']:,} patients", f"{left['records_left']:,} records"]
        _box(ax, lines, 0.5, 2 * _MIDDLE - 0.5, top - (3 + _PAD) / 2, "0.94", centred=True)
        top -= 3 + _PAD
    return ax


def plot_trend(
    result: Trend, figure: Figure | None = None, *, label: str = "ESR (mm/h)", log: bool = True
) -> Figure:
    """Draw the curves of `trend` with their bands, one panel a site; returns the Figure.

    Parameters
    ----------
    result : Trend
        Its `.curves` are drawn, and its `.counts` stand in the legend.
    figure : Figure or SubFigure, optional
        Default: a new one, 3.5 inches a site.
    label : str
        Lab and unit, for the axis.
    log : bool
        A logarithmic axis.

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> import ehr_prep
    >>> data = ehr_prep.ra_cohort(seed=1, scale=0.1)["VA"]
    >>> figure = plot_trend(ehr_prep.trend(data.labs, data.truth["class"], data.truth))
    >>> figure.axes[0].get_yscale()
    'log'
    """
    from matplotlib.ticker import FuncFormatter, NullLocator

    used = result.counts[result.counts["reason"] == "used"]
    groups = list(used["group"].unique())
    sites = list(result.curves["site"].unique())
    if figure is None:
        import matplotlib.pyplot as plt

        size = (3.6 * len(sites), 3.2 + 0.18 * len(groups))
        figure = plt.figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(sites), sharex=True, sharey=True, squeeze=False)[0]
    for ax, site in zip(panels, sites, strict=True):
        counted = used[used["site"] == site].set_index("group")
        for number, group in enumerate(groups):
            curve = result.curves.query("site == @site and group == @group")
            if not len(curve):
                continue
            colour, line = _COLOURS[number % len(_COLOURS)], _LINES[number % len(_LINES)]
            n_patients, n_labs = counted.loc[group, ["patients", "labs"]]
            text = f"{group} ({n_patients:,}; {n_labs:,})"
            ax.fill_between(
                curve["years"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
            )
            ax.plot(
                curve["years"],
                curve["estimate"],
                color=colour,
                linestyle=line,
                linewidth=1.6,
                label=text,
            )
        ax.axvline(0, color="0.4", linewidth=0.8, zorder=0)
        ax.set_title(str(site), fontsize="medium")
        ax.set_xlabel("Years since the first prescription")
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", linewidth=0.4, alpha=0.5)
        ax.legend(
            frameon=False,
            fontsize="small",
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            handlelength=3,
            title="(patients; labs)",
            title_fontsize="small",
        )
    panels[0].set_xlim(result.curves["years"].min(), result.curves["years"].max())
    panels[0].set_ylabel(label)
    if log:
        panels[0].set_yscale("log")
        low, high = panels[0].get_ylim()
        panels[0].set_yticks(_round_ticks(low, high))
        panels[0].yaxis.set_minor_locator(NullLocator())
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        panels[0].set_ylim(low, high)
    return figure


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
    reasons = [
        f"  {row.reason}: {_counts(row.patients, row.records)}" for row in dropped.itertuples()
    ]
    return [f"Dropped: {total}", *reasons]


def _counts(patients: int, records: int) -> str:
    people = f"{patients:,} patient{'' if patients == 1 else 's'}, " if patients else ""
    return f"{people}{records:,} record{'' if records == 1 else 's'}"


def _box(
    ax: Axes,
    lines: list[str],
    left: float,
    right: float,
    middle: float,
    colour: str,
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
            fontsize=9,
            fontweight="bold" if number == 0 else "normal",
            zorder=3,
        )
