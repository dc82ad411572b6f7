"""Figures of models: numbers of classes compared, and the courses of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.figures.canvas import (
    MARKERS,
    ONE_COLUMN,
    SMALL,
    TEXT,
    legend_columns,
    new_axes,
)
from mmlca.figures.colours import INK, group_colour, state_colours
from mmlca.model.forms import state_shares
from mmlca.model.settings import CRITERIA
from mmlca.sequences.checks import need_columns, of_type
from mmlca.tables.clusters import percent_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmlca.model.params import AnyParams


def plot_selection(
    table: pd.DataFrame,
    criterion: str = "bic",
    ax: Axes | None = None,
    *,
    chosen: str | None = None,
) -> Axes:
    """The criterion against the number of classes: one line per site, its choice filled.

    Where forms of chains are compared there is one line for each form.

    The difference from the best is shown, since sites differ in size; above 10 the scale is
    logarithmic, so that the minimum can be read beside the large values of too few classes.

    Parameters
    ----------
    table : DataFrame
        From `select_n_classes`.
    criterion : column to draw
    ax : Axes, optional
    chosen : str, optional
        A column that is true for the choice of each site; default: the smallest value is chosen.
        Where values are rounded, these may differ.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    if criterion not in CRITERIA:
        raise InputError(f"criterion must be one of {', '.join(CRITERIA)}, found {criterion!r}.")
    of_type(table, pd.DataFrame, "the table that select_n_classes returns")
    need_columns(table, ["classes", criterion])
    if not len(table):
        raise InputError("there is nothing to draw: the table has no rows; choose some of them.")
    ax = new_axes(ax, height=2.8)
    several = "site" in table.columns
    by = [name for name in ("site", "form") if name in table.columns]
    groups = table.groupby(by, sort=False) if by else [((), table)]
    choices: list[int] = []
    largest = 0.0
    for i, (keys, rows) in enumerate(groups):
        colour = group_colour(i)
        compared = table[table["site"] == keys[0]] if several else table
        value = rows[criterion] - compared[criterion].min()
        marker = MARKERS[i % len(MARKERS)]
        ax.plot(
            rows["classes"],
            value,
            marker=marker,
            color=colour,
            markerfacecolor="white",
            linewidth=1.2,
            markersize=5,
            label=": ".join(map(str, keys)) if by else None,
        )
        best = compared[criterion].idxmin()
        if chosen is not None:
            best = compared[chosen].astype(bool).idxmax()
        if best in rows.index:
            ax.plot(rows["classes"][best], value[best], marker=marker, color=colour, markersize=6)
            choices.append(int(rows["classes"][best]))
        largest = max(largest, float(value.max()))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    name = criterion.upper()
    resampled = several and table["site"].astype(str).str.contains("/")
    kinds = ["site"] if several and not np.all(resampled) else []
    kinds += ["pseudo-site"] if np.any(resampled) else []
    if largest > 50:
        ax.set_yscale("symlog", linthresh=10, linscale=0.6)
        ticks = [0, 10, *(10.0**k for k in range(2, 12) if 10.0**k < 1.5 * largest)]
        ax.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(-0.06 * max(min(largest, 50), 1e-9), 1.4 * max(largest, 1e-9))
    for number in sorted(set(choices)):
        times = f" ({choices.count(number)} of {len(choices)})" if several else ""
        ax.axvline(number, color=INK, linewidth=0.5, linestyle=":", zorder=0)
        ax.annotate(
            f"{number}{times}", (number, 1), xycoords=("data", "axes fraction"),
            ha="center", va="bottom", fontsize=SMALL, color=INK,
        )  # fmt: skip
    ax.set_xlabel("Number of classes (top: chosen)", fontsize=TEXT)
    ax.set_ylabel(f"{name} above the smallest{' of each' if several else ''}", fontsize=TEXT)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    if by:
        kinds += ["chains"] if "form" in by else []
        ax.legend(
            frameon=False, fontsize=SMALL, title=" or ".join(kinds).capitalize(),
            title_fontsize=SMALL, ncols=1 + (i + 1) // 6,
        )  # fmt: skip
    return ax


def plot_alternatives(
    models: Mapping[int, AnyParams], states: Sequence[str], n_times: int, xlabel: str = "Time"
) -> Figure:
    """The courses that models with different numbers of classes expect.

    One line per model and one panel per class, the largest first; stacked are the expected
    shares of the states. The figure shows exact parameters, so it stays inside the hospital.

    Parameters
    ----------
    models : {number of classes: parameters}
    states : names of the states
    n_times : how many times to draw
    xlabel : what one time is called
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    colours = state_colours(states)
    palette = np.array([to_rgb(colour) for colour in colours.values()])
    most = max(models)
    width = max(ONE_COLUMN, 0.6 + 0.95 * most)
    figure = plt.figure(figsize=(width, 0.9 + 0.8 * len(models)), layout="constrained")
    ax = figure.subplots()
    levels = (np.arange(100) + 0.5) / 100
    for row, (n_classes, params) in enumerate(sorted(models.items())):
        shares = state_shares(params, n_times)
        order = np.argsort(-np.asarray(params.weights), kind="stable")
        for column, k in enumerate(order):
            below = np.cumsum(shares[k], axis=1)[:, :-1]
            state = (levels[:, None, None] >= below[None]).sum(axis=2)  # (100, n_times)
            edges = (column, column + 0.88, row + 0.7, row)
            ax.imshow(palette[state[::-1]], aspect="auto", interpolation="nearest", extent=edges)
            ax.text(
                column, row - 0.03, percent_text(float(params.weights[k])),
                fontsize=SMALL, color=INK, va="bottom",
            )  # fmt: skip
        ax.text(-0.08, row + 0.35, str(n_classes), ha="right", va="center", fontsize=TEXT)
    ax.set_xlim(-0.05, most)
    ax.set_ylim(len(models), -0.25)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[])
    ax.set_ylabel("Number of classes", fontsize=TEXT, labelpad=14)
    ax.set_xlabel(
        f"{xlabel} 1 to {n_times} in each panel; above it the share of the class", fontsize=TEXT
    )
    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    figure.legend(
        handles=handles, loc="outside upper center", frameon=False, fontsize=SMALL,
        ncols=legend_columns(width, list(colours)),
    )  # fmt: skip
    return figure
