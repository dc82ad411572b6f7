"""The course of a lab in each group of patients, by site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.figures.canvas import (
    SMALL,
    TEXT,
    begins_row,
    grid_shape,
    legend_of_all,
    panel_grid,
)
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import of_type
from mmlca.tables.lab_trends import Trend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Clusters differ in colour (for the colour-blind too) and in the line, for print in grey.
_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_MOST_IN_A_ROW = 3


def plot_trend(result: Trend, figure: Figure | None = None, *, label: str | None = None) -> Figure:
    """Draw the curves of `trend` with their bands, one panel per site; returns the Figure.

    Another panel has those of all sites, where the result has them.

    The axis is logarithmic and says "geometric mean" if the model is one of logarithms.

    Parameters
    ----------
    result : Trend
        Its `.curves` are drawn, and the sums of its `.counts` are above each panel.
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
    pooled = result.pooled
    curves = dict(iter(result.curves.groupby("site", sort=False)))
    if pooled is not None and len(pooled):
        curves["All sites"] = pooled
    sites = list(curves)
    n_columns = grid_shape(len(sites), _MOST_IN_A_ROW)[1]
    width, legend = 7.2 if n_columns > 1 else 3.6, 0.8 + 0.18 * len(groups)
    figure, panels = panel_grid(
        figure,
        len(sites),
        _MOST_IN_A_ROW,
        lambda n_rows: (width, 2.4 * n_rows + legend),
        sharex=True,
        sharey=True,
    )
    for ax, site in zip(panels, sites, strict=True):
        _draw_curves(ax, curves[site], groups)
        mine = used[used["site"] == site] if curves[site] is not pooled else used
        mine = mine[["patients", "labs"]].sum()
        n = f"{mine['patients']:,.0f} patients with {mine['labs']:,.0f} values"
        ax.set_title(f"{site}\n{n}", fontsize=TEXT, color=INK)
    panels[0].set_xlim(result.curves["years"].min(), result.curves["years"].max())
    mean, scale = ("geometric mean", " (log scale)") if result.log else ("mean", "")
    for ax in filter(begins_row, panels):
        name = result.label if label is None else label
        ax.set_ylabel(f"{name}, {mean}{scale}", fontsize=TEXT)
    for ax in panels[-n_columns:]:
        ax.set_xlabel("Years since the first prescription", fontsize=TEXT)
        ax.tick_params(labelbottom=True)  # also above an empty place
    if result.log:
        _label_logarithmic(panels[0])
    legend_of_all(
        figure,
        panels,
        loc="outside lower center",
        ncols=2 * n_columns,
        handlelength=3,
        title=f"Lines: estimate; bands: {result.bands} {100 * result.level:g} % limits",
        title_fontsize=SMALL,
    )
    return figure


def _draw_curves(ax: Axes, curves: pd.DataFrame, groups: Sequence[Any]) -> None:
    """The curves of one site with their bands."""
    ax.tick_params(labelsize=SMALL, length=2, width=0.5, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)
    for number, group in enumerate(groups):
        curve = curves[curves["group"] == group]
        if len(curve):
            colour, line = group_colour(number), _LINES[number % len(_LINES)]
            style: dict[str, Any] = {
                "color": colour,
                "linestyle": line,
                "linewidth": 1.3,
                "label": str(group),
            }
            band: dict[str, Any] = {"color": colour, "alpha": 0.18, "linewidth": 0}
            ax.fill_between(curve["years"], curve["low"], curve["high"], **band)
            ax.plot(curve["years"], curve["estimate"], **style)
    ax.axvline(0, color="0.4", linewidth=0.8, zorder=0)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)


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
