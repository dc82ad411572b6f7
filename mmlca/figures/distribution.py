"""Figures of the states at each time. Each figure draws a table that a public function returns.

Functions that draw one panel per site and group take `ax` (for one panel) or `figure` (for all
of them), and return an Axes for a single `Sequences` without groups or where `ax` was given,
otherwise the Figure. The others take `ax` and return it. Where a table was computed already,
`table=` draws it; it must be that of the same sequences and groups. Where a signature has
`list[GroupInfo]`, the patients are not needed then: what `mmlca.tables.groups.group_infos` returns
may take the place of sequences and groups. Numbers of fewer than `min_count` patients are not
shown, and the figure says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca.figures.canvas import (
    MARKERS,
    SMALL,
    Page,
    Panel,
    choose_groups,
    group_name,
    infos_and_table,
    keep_drawn,
    lay_out,
    legend_over,
    new_axes,
    patients_of,
    percent_axis,
    rectangles,
    split_patients,
    time_axis,
)
from mmlca.figures.colours import INK, MISSING, Colours, group_colour, state_colours
from mmlca.sequences.checks import listed, need_columns
from mmlca.sequences.type import Sequences
from mmlca.tables.describe import entropy_by_time, state_distribution, time_in_state
from mmlca.tables.disclosure import HIDDEN, bounded_parts, count_text, few_patients, is_small
from mmlca.tables.groups import GroupInfo, Groups, SequencesBySite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

_LINES = ("-", "--", ":", "-.")
_MOST_BARS = 24


def plot_state_distribution(
    sequences: Sequences | SequencesBySite | list[GroupInfo],
    groups: Groups = None,
    *,
    table: pd.DataFrame | None = None,
    colours: Colours | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Share of each state at each time among those observed, as 100 % stacked bars.

    The number observed is under the axis; who is in an absorbing state such as "dead" counts among
    them, and the axis says so. Draws `state_distribution`.

    Parameters
    ----------
    sequences, groups : as in `state_distribution`; rows are sites and columns groups
        Or a list of `GroupInfo` with their table.
    table : DataFrame, optional
        What `state_distribution` returned for the same sequences and groups, or the
        distribution of `mmlca.tables.course_tables.Courses`.
    colours : {state: colour} or list of colours, optional
        In place of those of `state_colours`.
    min_count : groups and times of fewer patients are not shown
        States that fewer patients are in at a time are grey, all of them together. Where their
        number would follow from the rest, the most frequent state is drawn with a lower bound of
        its share.
    xlabel : what a time is, such as "Quarter"
    ax, figure : where to draw, optional
    """
    infos, table = infos_and_table(sequences, groups, min_count, table, state_distribution)
    page = lay_out(infos, min_count, ax, figure, table=table)
    colour = state_colours(page.states, colours)
    drawn: set[str] = set()
    any_grey, n_hidden = False, 0
    for panel in page.panels:
        states, n_times = panel.info.states, len(panel.info.times)
        rows = panel.rows(table, n_times * len(states))
        rounded = "rounded_size" in rows  # rounded counts may all be shown
        need_columns(rows, [] if rounded else ["patients"])
        count, share, n_then, patients = (
            rows[name].to_numpy(dtype=float).reshape(n_times, len(states))
            for name in ("count", "share", "n", "count" if rounded else "patients")
        )
        n, shown = n_then[:, 0], np.ones(n_times, dtype=bool)
        if not rounded:
            parts = bounded_parts(count, min_count, is_small(patients, min_count))
            bound = np.nan_to_num(parts.at_least / np.maximum(n, 1)[:, None])
            share, shown = np.where(parts.hidden, bound, share), ~parts.hidden_total
        share = np.nan_to_num(share)[shown]
        top = np.cumsum(share, axis=1)
        at = np.flatnonzero(shown) + 1
        for k, state in enumerate(states):
            bars = time_bars(
                panel.ax, at, top[:, k] - share[:, k], share[:, k], page.n_times, colour[state]
            )
            bars.set_label(state)
        drawn.update(np.array(states)[share.sum(axis=0) > 0])
        rest = np.where(count.sum(axis=1)[shown] > 0, 1 - top[:, -1], 0.0)
        if (rest > 1e-9).any():
            any_grey = True
            time_bars(panel.ax, at, 1 - rest, rest, page.n_times, MISSING)
        n_hidden += int((~shown).sum())
        n = n if panel.sized(table) else np.full(n_times, np.nan)
        _finish_time_panel(page, panel, n, n if rounded else patients.sum(axis=1))
    page.hidden(n_hidden, "time")
    grey = few_patients(min_count) if any_grey else ""
    legend = keep_drawn(colour, drawn)
    return page.finish(_observed_label(page, xlabel), "Patients (%)", legend, grey)


def _observed_label(page: Page, xlabel: str) -> str:
    """The label of an axis of times with the number of patients under it: whom it counts."""
    final = list(dict.fromkeys(s for panel in page.panels for s in panel.info.absorbing))
    included = f", {listed(final)} included" if final else ""
    return f"{xlabel} (below: number observed{included})"


def time_bars(
    ax: Axes,
    at: NDArray[np.intp],
    bottom: ArrayLike,
    height: NDArray[np.float64],
    n_times: int,
    colour: Any,
) -> PolyCollection:
    """Bars at some of n times: with gaps, or as areas where gaps would be a pattern of stripes.

    An area is one shape for each run of times. Bars that touch would show seams in vector files.
    """
    if n_times <= _MOST_BARS:
        return rectangles(ax, at - 0.46, bottom, 0.92, height, colour)
    from matplotlib.collections import PolyCollection

    low = np.broadcast_to(np.asarray(bottom, dtype=float), height.shape)
    present = np.flatnonzero(height > 0)
    shapes = []
    for run in np.split(present, np.flatnonzero(np.diff(at[present]) > 1) + 1):
        x = np.column_stack([at[run] - 0.5, at[run] + 0.5]).ravel()
        lower, upper = np.repeat(low[run], 2), np.repeat(low[run] + height[run], 2)
        outline = np.column_stack([np.append(x, x[::-1]), np.append(upper, lower[::-1])])
        shapes += [outline] if len(run) else []
    area = PolyCollection(shapes, facecolors=colour, edgecolors="none", linewidths=0)
    area.set_antialiased(False)
    ax.add_collection(area, autolim=False)
    return area


def _finish_time_panel(
    page: Page, panel: Panel, n: NDArray[np.float64], patients: NDArray[np.float64]
) -> None:
    below = [
        HIDDEN if np.isnan(count) else count_text(count, page.min_count, few)
        for count, few in zip(n, patients, strict=True)
    ]
    time_axis(panel.ax, panel.info.times, page.n_times, page.panel_points, below)
    percent_axis(panel.ax, panel.first)


def plot_time_in_state(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    table: pd.DataFrame | None = None,
    colours: Colours | None = None,
    min_count: int = 0,
    xlabel: str = "Mean number of times",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Mean time in each state, written beside its bar. Draws `time_in_state`.

    Parameters are those of `plot_state_distribution`; states that fewer than `min_count` patients
    were ever in are not shown.
    """
    patients = split_patients(sequences, groups)
    page = lay_out([info for info, _ in patients], min_count, ax, figure)
    colour = state_colours(page.states, colours)
    table = time_in_state(sequences, groups) if table is None else table
    parts = [panel.rows(table, len(panel.info.states)) for panel in page.panels]
    longest = max(float(rows["mean"].max()) for rows in parts)
    at = {state: i for i, state in enumerate(page.states)}
    n_hidden = 0
    for panel, rows in zip(page.panels, parts, strict=True):
        data = patients_of(panel.info, patients)
        ever = [(data.codes == k).any(axis=1).sum() for k in range(data.n_states)]
        small = is_small(ever, min_count)
        n_hidden += int(small.sum())
        rows = rows[~small]
        y = np.array([at[state] for state in rows["state"]])
        mean = rows["mean"].to_numpy(dtype=float)
        rectangles(panel.ax, 0, y - 0.4, mean, 0.8, [colour[s] for s in rows["state"]])
        if len(at) <= 20:
            for where, value in zip(y, mean, strict=True):
                panel.ax.text(
                    value + 0.02 * longest, where, _mean_text(value),
                    va="center", fontsize=SMALL, color=INK,
                )  # fmt: skip
        panel.ax.set_xlim(0, 1.22 * longest)
        panel.ax.set_ylim(len(at) - 0.5, -0.5)
        names = list(at) if panel.first and len(at) <= 40 else [""] * len(at)
        panel.ax.set_yticks(range(len(at)), names)
        panel.ax.tick_params(axis="y", length=0)
    page.hidden(n_hidden, "state")
    return page.finish(xlabel, "", {} if len(at) <= 40 else colour)


def _mean_text(mean: float) -> str:
    """One decimal, two below 1; means near 0 as "<0.01"."""
    if 0 < mean < 0.005:
        return "<0.01"
    return f"{mean:.{1 if mean >= 1 else 2}f}"


def plot_entropy(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    table: pd.DataFrame | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
) -> Axes:
    """How mixed the states are at each time: one line per group. Draws `entropy_by_time`.

    Groups differ in colour and marker, sites in the style of the line.

    Parameters
    ----------
    sequences, groups : as in `entropy_by_time`
    table : DataFrame, optional
        What `entropy_by_time` returned for the same sequences and groups.
    min_count : groups and times of fewer patients are not shown
    xlabel : what a time is
    ax : Axes, optional
    """
    patients = split_patients(sequences, groups)
    everyone = [info for info, _ in patients]  # a hidden group keeps its colour
    shown, few, empty = choose_groups(everyone, min_count)
    table = entropy_by_time(sequences, groups) if table is None else table
    own = ax is None
    ax = new_axes(ax, height=2.3)
    sites = list(dict.fromkeys(info.keys.get("site") for info in everyone))
    labels = list(dict.fromkeys(info.keys.get("group") for info in everyone))
    lone = len(labels) == 1  # then the colours are free to distinguish sites
    n_hidden = 0
    for info in shown:
        keys, data = info.keys, patients_of(info, patients)
        site, label = sites.index(keys.get("site")), labels.index(keys.get("group"))
        small = is_small((data.codes >= 0).sum(axis=0), min_count)
        n_hidden += int(small.sum())
        rows = Panel(ax, info, first=True).rows(table, len(info.times))
        value = rows["entropy"].to_numpy(dtype=float)
        ax.plot(
            np.arange(1, len(value) + 1),
            np.where(small, np.nan, value),
            color=group_colour(site if lone else label),
            linestyle=_LINES[site % len(_LINES)],
            marker=MARKERS[(site if lone else label) % len(MARKERS)],
            markersize=2.4,
            linewidth=1.2,
            label=f"{group_name(keys) or 'all'} (n = {info.n:,})",
        )
    times = max((info.times for info in shown), key=len)
    time_axis(ax, times, len(times), 72 * 2.5)
    ax.set_ylim(0, 1)
    page = Page([], ax, ax.figure.bbox.width / ax.figure.dpi, 1, min_count)
    page.left_out(few, empty)
    page.hidden(n_hidden, "time")
    page.finish(xlabel, "Entropy (0: all alike, 1: even)")
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    legend_over(ax, own, handlelength=3)
    return ax
