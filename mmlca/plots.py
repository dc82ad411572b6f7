"""Figures of sequences. Each draws a table that a public function returns.

Functions that draw one panel for each site and group take `ax` (one panel) or `figure`
(all of them), and give back an Axes for a single `Sequences` without groups or where `ax`
was given, else the Figure. The others take `ax` and give it back. Groups, sequences and
times of fewer patients than `min_count` are not shown, and the figure says how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.canvas import (
    GROUP_COLOURS,
    INK,
    SMALL,
    Page,
    Panel,
    enough,
    group_name,
    lay_out,
    new_axes,
    percent_axis,
    rectangles,
    state_colours,
    time_axis,
    too_few,
)
from mmlca.describe import (
    certainty_by_class,
    entropy_by_time,
    modal_states,
    split,
    state_distribution,
    time_in_state,
)
from mmlca.selection import CRITERIA
from mmlca.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#777777")
_MARKERS = "osD^vP*X"
_LINES = ("-", "--", ":", "-.")


def plot_state_distribution(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Share of each state at each time among those observed, as 100 % stacked bars.

    The number observed is under the axis. Draws `state_distribution`.

    Parameters
    ----------
    sequences, groups : as in `state_distribution`; rows are sites and columns groups
    colours : {state: colour}, optional
        In place of those of `state_colours`.
    min_count : groups and times of fewer patients are not shown
        A state's share is drawn however few have it.
    xlabel : what a time is, such as "Quarter"
    ax, figure : where to draw, optional
    """
    page = lay_out(sequences, groups, min_count, ax, figure)
    colour = state_colours(page.states, colours)
    for panel in page.panels:
        table = state_distribution(panel.data)
        share = table["share"].to_numpy().reshape(panel.data.shape[1], -1)
        n = table["n"].to_numpy().reshape(share.shape)[:, 0]
        shown = ~too_few(panel.data, min_count)
        share = np.nan_to_num(share[shown])
        base = np.cumsum(share, axis=1) - share
        left = np.flatnonzero(shown) + 0.54
        for k, state in enumerate(panel.data.states):
            bars = rectangles(panel.ax, left, base[:, k], 0.92, share[:, k], colour[state])
            bars.set_label(state)
        _finish_time_panel(page, panel, n)
    _note_times(page)
    return page.finish(f"{xlabel} (below: number observed)", "Patients (%)", colour)


def plot_modal_states(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """The most frequent state at each time, as high as its share. Draws `modal_states`.

    Parameters are those of `plot_state_distribution`.
    """
    page = lay_out(sequences, groups, min_count, ax, figure)
    colour = state_colours(page.states, colours)
    for panel in page.panels:
        table = modal_states(panel.data)
        shown = ~too_few(panel.data, min_count) & (table["n"] > 0).to_numpy()
        seen = table[shown]
        rectangles(
            panel.ax,
            np.flatnonzero(shown) + 0.54,
            0,
            0.92,
            seen["share"].to_numpy(),
            [colour[state] for state in seen["state"]],
        )
        _finish_time_panel(page, panel, table["n"].to_numpy())
    _note_times(page)
    return page.finish(f"{xlabel} (below: number observed)", "Most frequent state (%)", colour)


def _finish_time_panel(page: Page, panel: Panel, n: NDArray[np.float64]) -> None:
    n = np.where(too_few(panel.data, page.min_count), np.nan, n)
    time_axis(panel.ax, panel.data, page.n_times, page.panel_points, n)
    percent_axis(panel.ax, panel.first)


def _note_times(page: Page) -> None:
    few = [too_few(panel.data, page.min_count) for panel in page.panels]
    page.hidden(int(np.concatenate(few).sum()), "time")


def plot_time_in_state(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    xlabel: str = "Mean number of times",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Mean time in each state, written beside its bar. Draws `time_in_state`.

    Parameters are those of `plot_state_distribution`.
    """
    page = lay_out(sequences, groups, min_count, ax, figure)
    colour = state_colours(page.states, colours)
    tables = [time_in_state(panel.data) for panel in page.panels]
    longest = max(float(table["mean"].max()) for table in tables)
    at = {state: i for i, state in enumerate(page.states)}
    for panel, table in zip(page.panels, tables, strict=True):
        y = np.array([at[state] for state in table["state"]])
        mean = table["mean"].to_numpy()
        rectangles(panel.ax, 0, y - 0.4, mean, 0.8, [colour[s] for s in table["state"]])
        if len(at) <= 20:
            for where, value in zip(y, mean, strict=True):
                panel.ax.text(
                    value + 0.02 * longest, where, f"{value:.{1 if value >= 1 else 2}f}",
                    va="center", fontsize=SMALL, color=INK,
                )  # fmt: skip
        panel.ax.set_xlim(0, 1.22 * longest)
        panel.ax.set_ylim(len(at) - 0.5, -0.5)
        names = list(at) if panel.first and len(at) <= 40 else [""] * len(at)
        panel.ax.set_yticks(range(len(at)), names)
        panel.ax.tick_params(axis="y", length=0)
    return page.finish(xlabel, "", {} if len(at) <= 40 else colour)


def plot_entropy(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
) -> Axes:
    """How mixed the states are at each time, a line a group. Draws `entropy_by_time`.

    Groups differ in colour, sites in the kind of line.

    Parameters
    ----------
    sequences, groups : as in `entropy_by_time`
    min_count : groups and times of fewer patients are not shown
    xlabel : what a time is
    ax : Axes, optional
    """
    shown, few, empty = enough(sequences, groups, min_count)
    n_wide = 2 if max(len(group_name(keys)) for keys, _ in shown) <= 12 and len(shown) > 1 else 1
    ax = new_axes(ax, height=2.3 + 0.13 * -(-len(shown) // n_wide))
    everyone = [keys for keys, _ in split(sequences, groups)]  # a hidden group keeps its colour
    sites = list(dict.fromkeys(keys.get("site") for keys in everyone))
    labels = list(dict.fromkeys(keys.get("group") for keys in everyone))
    lone = len(labels) == 1  # then the colours are free to tell sites apart
    n_hidden = 0
    for keys, data in shown:
        site, label = sites.index(keys.get("site")), labels.index(keys.get("group"))
        few_now = too_few(data, min_count)
        n_hidden += int(few_now.sum())
        value = entropy_by_time(data)["entropy"].to_numpy()
        ax.plot(
            np.arange(1, len(value) + 1),
            np.where(few_now, np.nan, value),
            color=GROUP_COLOURS[(site if lone else label) % len(GROUP_COLOURS)],
            linestyle=_LINES[site % len(_LINES)],
            marker=".",
            markersize=3,
            linewidth=1.2,
            label=f"{group_name(keys) or 'all'} (n = {len(data):,})",
        )
    longest = max((data for _, data in shown), key=lambda data: data.shape[1])
    time_axis(ax, longest, longest.shape[1], 72 * 2.5)
    ax.set_ylim(0, 1)
    page = Page([], ax, ax.figure.bbox.width / ax.figure.dpi, 1, min_count)
    page.left_out(few, empty)
    page.hidden(n_hidden, "time")
    page.finish(xlabel, "Entropy (0: all alike, 1: even)")
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    ax.legend(
        frameon=False, fontsize=SMALL, loc="lower center", bbox_to_anchor=(0.5, 1.0),
        ncols=n_wide, handlelength=2.4,
    )  # fmt: skip
    return ax


def plot_certainty(
    model: Any, *, weights: Any = None, min_count: int = 0, ax: Axes | None = None
) -> Axes:
    """How certain membership is, class by class. Draws `certainty_by_class`.

    The box holds the middle half of a class's patients, the line nine in ten; the bar is
    the median and the dot the mean.

    Parameters
    ----------
    model : fitted MixtureMarkov, or a table like its `posterior_`
    weights : (n,), optional
        Case weights of the patients.
    min_count : classes of fewer patients are not shown
    ax : Axes, optional
    """
    table = certainty_by_class(model, weights)
    table["colour"] = [GROUP_COLOURS[i % len(GROUP_COLOURS)] for i in range(len(table))]
    shown = table[table["patients"] >= min_count].reset_index(drop=True)
    if not len(shown):
        raise ValueError(
            f"there is nothing to draw: the largest class has {table['patients'].max():,} "
            f"patients and min_count is {min_count}."
        )
    ax = new_axes(ax, height=0.9 + 0.28 * len(shown))
    for i, row in shown.iterrows():
        ax.hlines(i, row["q05"], row["q95"], color=row["colour"], linewidth=1)
        rectangles(ax, row["q25"], i - 0.28, row["q75"] - row["q25"], 0.56, row["colour"])
        ax.vlines(row["median"], i - 0.28, i + 0.28, color=INK, linewidth=1.4)
        ax.plot(row["mean"], i, "o", color="white", markeredgecolor=INK, markersize=3.5)
        ax.text(
            1.02, i, f"{row['sure']:.0%}", transform=ax.get_yaxis_transform(),
            va="center", fontsize=SMALL, color=INK,
        )  # fmt: skip
    low = min(0.5, float(shown[["q05", "mean"]].min().min()))
    ax.set_xlim(low - 0.02, 1.02)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    names = [
        f"{label} (n = {n:,})" for label, n in zip(shown["class"], shown["patients"], strict=True)
    ]
    ax.set_yticks(range(len(shown)), names)
    ax.set_title("above 0.8", fontsize=SMALL, color=INK, loc="right")
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    page = Page([], ax, ax.figure.bbox.width / ax.figure.dpi, 1, min_count)
    page.hidden(len(table) - len(shown), "class")
    page.finish("Probability of the patient's own class", "Class")
    return ax


def plot_selection(table: pd.DataFrame, criterion: str = "bic", ax: Axes | None = None) -> Axes:
    """The criterion against the number of classes, a line a site, its choice filled.

    With several sites each line is shown as the difference to the site's best, since sites
    differ in size.

    Parameters
    ----------
    table : DataFrame
        From `select_n_classes`.
    criterion : column to draw
    ax : Axes, optional
    """
    from matplotlib.ticker import MaxNLocator

    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, found {criterion!r}.")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(3.5, 2.8), layout="constrained")
    several = "site" in table.columns
    groups = table.groupby("site", sort=False) if several else [("", table)]
    for i, (site, rows) in enumerate(groups):
        colour = _COLOURS[i % len(_COLOURS)]
        value = rows[criterion] - rows[criterion].min() if several else rows[criterion]
        marker = _MARKERS[i % len(_MARKERS)]
        ax.plot(
            rows["classes"],
            value,
            marker=marker,
            color=colour,
            markerfacecolor="white",
            linewidth=1.2,
            markersize=5,
            label=str(site) if several else None,
        )
        best = value.idxmin()
        ax.plot(rows["classes"][best], value[best], marker=marker, color=colour, markersize=6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("Number of classes")
    name = criterion.upper()
    ax.set_ylabel(f"{name} above the site's best" if several else name)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    if several:
        ax.legend(frameon=False, fontsize="small", title="Site")
    return ax
