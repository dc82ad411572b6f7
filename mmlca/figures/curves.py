"""Curves over time with their bands: a lab in each group of patients, and survival by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import (
    SMALL,
    TEXT,
    begins_row,
    grid_shape,
    legend_of_all,
    legend_over,
    named,
    new_axes,
    panel_grid,
)
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import counted, of_type
from mmlca.tables.disclosure import HIDDEN, check_min_count, hides
from mmlca.tables.lab_trends import Trend
from mmlca.tables.survival import Survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Groups differ in colour (for the colour-blind too) and in the line, for print in grey.
_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_MOST_IN_A_ROW = 3


def plot_trend(result: Trend, *, label: str | None = None) -> Figure:
    """Draw the curves of `trend` with their bands, one panel per site; returns the Figure.

    Another panel has those of all sites, where the result has them.

    The axis is logarithmic and says "geometric mean" if the model is one of logarithms.

    Parameters
    ----------
    result : Trend
        Its `.curves` are drawn, and the sums of its `.counts` are above each panel.
        `result.caption()` says what is drawn.
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
    width, legend = (7.2 if n_columns > 1 else 3.6), 0.8 + 0.18 * len(groups)
    figure, panels = panel_grid(
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
        title=f"Lines: estimate; bands: {result.bands} 95 % limits",
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
            look = _look(number)
            ax.plot(curve["years"], curve["estimate"], label=str(group), **look)
            band: dict[str, Any] = {"color": look["color"], "alpha": 0.18, "linewidth": 0}
            ax.fill_between(curve["years"], curve["low"], curve["high"], **band)
    ax.axvline(0, color="0.4", linewidth=0.8, zorder=0)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)


def _look(number: int) -> dict[str, Any]:
    """Colour and line of a group by its position."""
    line = _LINES[number % len(_LINES)]
    return {"color": group_colour(number), "linestyle": line, "linewidth": 1.3}


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


def plot_survival(
    result: Survival,
    *,
    unit: str = "",
    min_count: int = 0,
    hidden: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Share without the event by cluster since the landmark. Draws `result.curves`.

    With a `min_count` the curves are those of `result.shown(min_count)`: dots are the values at
    the times shown, and straight lines join them. The numbers below are the patients at risk then;
    of classes with memberships, the effective numbers.

    Parameters
    ----------
    result : Survival
        From `survival_by_cluster`.
    unit : str
        Of time, for the axis: "years".
    min_count : see `Survival.shown`
    hidden : bool
        Hide small numbers, as `result.shown(min_count)` does. False: the result is without them.
    ax : Axes, optional

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from mmlca import survival_by_cluster
    >>> time, event, group = [5, 6, 9, 8, 5, 7], [1, 1, 0, 1, 0, 1], [1, 1, 1, 2, 2, 2]
    >>> plot_survival(survival_by_cluster(time, event, group, window=4)).get_ylabel()
    'Share without the event (%)'
    """
    of_type(result, Survival, "what survival_by_cluster returns")
    check_min_count(min_count)
    curves = (result.shown(min_count) if hidden else result).curves
    every = list(result.excluded["group"])
    drawn = [group for group in every if (curves["group"] == group).any()]
    if not drawn:
        raise InputError(
            f"there is nothing to draw: every group has fewer than min_count = {min_count} events "
            "or patients."
        )
    own = ax is None
    ax = new_axes(ax, height=2.7 + 0.14 * len(drawn))
    end = float(curves["time"].max())
    for group in drawn:
        number = every.index(group)
        rows = curves[curves["group"] == group]
        _draw(ax, rows, named(group, "Group"), number, steps=not hides(min_count))
    ax.set_xlim(0, end * 1.02)
    ax.set_ylim(0, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    ax.set_ylabel("Share without the event (%)", fontsize=TEXT)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    legend_over(ax, own, handlelength=3)
    label = f"Time since the landmark{f' ({unit})' if unit else ''}"
    note = ""
    if len(drawn) < len(every):
        few = counted(len(every) - len(drawn), "group", "groups")
        note = f"\n{few} of fewer than {min_count} events not shown"
    # empty lines of the label keep room for the numbers, which are some points below the axis
    ax.set_xlabel(label + note + "\n" * (len(drawn) + 2), fontsize=TEXT)
    first = 39 if note else 30
    uncertain = "effective" in curves
    _write(ax, 0, first, "Effective number at risk" if uncertain else "At risk", INK)
    for line, group in enumerate(drawn, start=1):
        rows, number = curves[curves["group"] == group], every.index(group)
        ticks = None if hides(min_count) else ax.get_xticks()
        if ticks is not None and uncertain:  # the numbers behind the end of a curve are noise
            ticks = ticks[ticks <= rows["time"].iloc[-1]]
        numbers = rows["effective" if uncertain else "at_risk"]
        times, at_risk = _at_risk(rows["time"], numbers, ticks, end)
        for time, n in zip(times, at_risk, strict=True):
            text = HIDDEN if np.isnan(n) else f"{n:,.0f}"
            _write(ax, time, first + 8 * line, text, group_colour(number))
        _draw_sample(ax, number, first + 8 * line)
    return ax


def _draw(ax: Axes, rows: pd.DataFrame, name: str, number: int, steps: bool) -> None:
    look, time = _look(number), np.append(0, rows["time"])
    band: dict[str, Any] = {"color": look["color"], "alpha": 0.13, "linewidth": 0}
    share, low, high = (
        np.append(1.0, rows[column].fillna(rows["survival"]))
        for column in ("survival", "low", "high")
    )
    if steps:
        ax.step(time, share, where="post", label=name, **look)
        ax.fill_between(time, low, high, step="post", **band)
    else:
        ax.plot(time, share, marker="o", markersize=2.6, label=name, **look)
        ax.fill_between(time, low, high, **band)


def _at_risk(
    times_of: pd.Series, counts: pd.Series, ticks: NDArray[np.float64] | None, end: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and how many are at risk then: at the ticks of the axis, where the table has all.

    Otherwise they are written at the start and after each time shown, as far as they do not touch.
    """
    time, n = times_of.to_numpy(dtype=float), counts.to_numpy(dtype=float)
    if ticks is not None:
        times = ticks[(ticks >= 0) & (ticks <= 1.02 * end)]
        return times, np.append(n, 0.0)[np.searchsorted(time, times)]
    starts, apart = np.append(0.0, time[:-1]), [0]
    for i, start in enumerate(starts):
        if start - starts[apart[-1]] >= 0.14 * end:
            apart.append(i)
    return starts[apart], n[apart]


def _draw_sample(ax: Axes, number: int, below: float) -> None:
    """A piece of a group's line before its numbers: colours alone are lost in print."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    corner: Any = ax.transAxes
    sample = PathPatch(
        Path([(-34 / 72, -below / 72), (-18 / 72, -below / 72)]), fill=False, clip_on=False,
        edgecolor=group_colour(number), linestyle=_LINES[number % len(_LINES)], linewidth=1.3,
        transform=figure.dpi_scale_trans + ScaledTranslation(0, 0, corner),
    )  # fmt: skip
    ax.add_patch(sample)


def _write(ax: Axes, time: float, below: float, text: str, colour: str) -> None:
    """A text some points below the axis at a time."""
    ax.annotate(
        text,
        (time, 0),
        (0, -below),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        fontsize=SMALL,
        color=colour,
        ha="center",
        va="center",
        annotation_clip=False,
    )
