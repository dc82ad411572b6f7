"""Figures of whole sequences: the index plot, the most frequent ones, and representatives.

They follow the rules of `mmlca.figures.distribution`: an Axes for one panel, a Figure for
sites × groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import (
    SMALL,
    TEXT,
    Page,
    Panel,
    keep_drawn,
    lay_out,
    rectangles,
    time_axis,
)
from mmlca.figures.colours import INK, MISSING, Colours, state_colours
from mmlca.sequences.checks import counted
from mmlca.sequences.type import Sequences
from mmlca.tables.clusters import percent_text
from mmlca.tables.describe import Frequent, frequent, sequence_frequencies
from mmlca.tables.disclosure import HIDDEN, hides
from mmlca.tables.groups import Groups, SequencesBySite
from mmlca.tables.representatives import medoid_rows, representative_sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_RASTER = 10_000
_OTHER = "#F2F2F2"


def plot_index(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    sort: str | None = "start",
    colours: Colours | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Every patient's sequence as a thin line. Draws `Sequences.to_frame`.

    The lines are one picture; of more than 10,000 patients it holds 10,000 lines at even
    steps through the sorted patients, more than paper can show.

    Parameters
    ----------
    sequences, groups, colours, xlabel, ax, figure : as in `plot_state_distribution`
    sort : "start" (by the states from the first time on), "end" (from the last time back), or
        None for the patients' own order
    min_count : groups, and sequences that fewer patients have, are not shown
    """
    if sort not in ("start", "end", None):
        raise InputError(f'sort must be "start", "end" or None, found {sort!r}.')
    page = lay_out(sequences, groups, min_count, ax, figure)
    colour = state_colours(page.states, colours)
    drawn: set[int | str] = set()
    n_rare = 0
    for panel in page.panels:
        data = panel.data
        _, number = data.distinct()
        common = frequent(data, None, min_count).rows if hides(min_count) else slice(None)
        rare = ~np.isin(number, number[common])
        n_rare += int(rare.sum())
        data = data[~rare] if rare.any() else data
        codes = _with_missing(data)
        drawn |= _names(codes, data.states)
        codes = codes[_sorted_rows(codes, sort)]
        _draw_raster(panel.ax, codes, len(data), [colour[state] for state in data.states])
        panel.ax.set_ylim(max(len(data), 1), 0)
        panel.ax.set_yticks(*(([0, len(data)], ["0", f"{len(data):,}"]) if len(data) else ([],)))
        if not len(data):
            _write_none(panel.ax, min_count)
        time_axis(panel.ax, data, page.n_times, page.panel_points)
    if n_rare:
        page.notes.append(f"{counted(n_rare, 'patient', 'patients')} with a rare course not shown")
    return _finish(page, xlabel, "Patients", colour, drawn)


def _names(codes: NDArray[np.int16], states: tuple[str, ...]) -> set[int | str]:
    """What occurs among codes of `_with_missing`: states, and 0 if missing and 1 if void."""
    return {states[c] if c < len(states) else int(c) - len(states) for c in np.unique(codes)}


def _finish(
    page: Page, xlabel: str, ylabel: str, colours: dict[str, Any], drawn: set[int | str]
) -> Axes | Figure:
    """The legend of what was drawn, and what white means where there is any."""
    if 1 in drawn:
        page.notes.append("white: after the end of follow-up")
    legend = keep_drawn(colours, {str(name) for name in drawn - {0, 1}})
    return page.finish(xlabel, ylabel, legend, "not known" if 0 in drawn else "")


def _with_missing(data: Sequences) -> NDArray[np.int16]:
    """Codes with S for missing and S + 1 for void."""
    followed = np.arange(data.shape[1]) < data.lengths[:, None]
    missing, void = np.int16(data.n_states), np.int16(data.n_states + 1)
    return np.where(data.codes >= 0, data.codes, np.where(followed, missing, void))


def _sorted_rows(codes: NDArray[np.int16], sort: str | None) -> NDArray[np.intp]:
    """Positions of the lines to draw, top to bottom."""
    if sort is None:
        order = np.arange(len(codes))
    else:
        order = np.lexsort(codes.T[::-1] if sort == "start" else codes.T)
    if len(order) > _MAX_RASTER:
        order = order[np.linspace(0, len(order) - 1, _MAX_RASTER).astype(np.intp)]
    return order


def _draw_raster(ax: Axes, codes: NDArray[np.int16], n: int, colours: list[Any]) -> None:
    from matplotlib.colors import to_rgba_array

    rgba = np.round(255 * to_rgba_array([*colours, MISSING, "white"])).astype(np.uint8)
    if len(codes):
        extent = (0.5, codes.shape[1] + 0.5, float(n), 0.0)
        ax.imshow(rgba[codes], aspect="auto", interpolation="nearest", extent=extent)


def plot_frequencies(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    top: int = 30,
    shared_by: int = 5,
    table: pd.DataFrame | None = None,
    colours: Colours | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """The most frequent sequences, each as high as it is frequent. Draws `sequence_frequencies`.

    The height of every panel is all its patients. Sequences that only a few share are not drawn,
    since which of them came first would be an accident of sorting: the pale part represents them,
    and the title says which share of the patients is drawn.

    Parameters
    ----------
    sequences, groups, colours, xlabel, ax, figure : as in `plot_state_distribution`
    top : how many sequences
    shared_by : sequences of fewer patients are not drawn
    table : DataFrame, optional
        What `sequence_frequencies` returned for the same sequences, groups and `top`, with the
        larger of `shared_by` and `min_count` as its `min_count`.
    min_count : groups, and sequences that fewer patients have, are not shown
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=2.3, table=table)
    colour = state_colours(page.states, colours)
    least = max(shared_by, min_count)
    if table is None:
        table = sequence_frequencies(sequences, groups, top, min_count=least)
    drawn: set[int | str] = set()
    any_other = False
    for panel in page.panels:
        common, share = _match_table(panel, table, top, least)
        codes = _with_missing(panel.data)[common.rows]
        drawn |= _names(codes, panel.data.states)
        below = np.cumsum(share)
        _draw_courses(panel, codes, below, share, colour)
        covered = float(share.sum())
        widths = np.minimum(0.4, 0.2 * 150 * share[:-1])  # a wider line would swallow thin bars
        panel.ax.hlines(below[:-1], 0.5, page.n_times + 0.5, color="white", linewidth=widths)
        if covered < 1 - 1e-9:
            any_other = True
            rectangles(panel.ax, 0.5, covered, page.n_times, 1 - covered, _OTHER)
        panel.ax.set_ylim(1, 0)
        _title_coverage(panel, len(share), covered, page.title_letters, least)
        time_axis(panel.ax, panel.data, page.n_times, page.panel_points)
    if any_other:
        few = f", or those of fewer than {least} patients" if least > 1 else ""
        page.notes.append(f"pale: rarer courses{few}")
    return _finish(page, xlabel, "Patients (%)", colour, drawn)


def _draw_courses(
    panel: Panel,
    codes: NDArray[np.int16],
    below: NDArray[np.float64],
    share: NDArray[np.float64],
    colours: Mapping[str, Any],
) -> None:
    """Courses as bars one below the other; a run of one state is one shape, without seams."""
    names = [*panel.data.states, "not known"]
    starts = np.ones(codes.shape, dtype=bool)
    starts[:, 1:] = codes[:, 1:] != codes[:, :-1]
    row, begin = np.nonzero(starts)
    last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, dtype=bool)
    end = np.where(last, codes.shape[1], np.append(begin[1:], 0)[: len(row)])
    code = codes[row, begin]
    for k in np.unique(code[code < len(names)]):
        mine = code == k
        left, wide, at = begin[mine] + 0.5, (end - begin)[mine], row[mine]
        shade = colours.get(names[k], MISSING)
        bars = rectangles(panel.ax, left, below[at], wide, -share[at], shade)
        bars.set_antialiased(False)
        bars.set_label(names[k])


def _match_table(
    panel: Panel, table: pd.DataFrame, top: int, min_count: int
) -> tuple[Frequent, NDArray[np.float64]]:
    """The panel's sequences, and the share of each that the table gives."""
    common = frequent(panel.data, top, min_count)
    rows = panel.rows(table, len(common.rows))
    if "rounded_size" not in rows and not np.allclose(rows["count"], common.weight):
        raise InputError(
            "the counts in the table are not those of the sequences; give the table of the same "
            "sequences, groups, top and min_count."
        )
    return common, rows["share"].to_numpy(dtype=float)


def _title_coverage(panel: Panel, n: int, covered: float, letters: int, least: int) -> None:
    """Write into the title which share of the group is shown."""
    ax = panel.ax
    if not n:
        _write_none(ax, least)
    title, share = ax.get_title(), f"{counted(n, 'course', 'courses')}: {percent_text(covered)}"
    fits = len(title.split("\n")[-1]) + len(share) + 2 <= letters
    ax.set_title(f"{title}; {share}" if fits else f"{title}\n{share}", fontsize=TEXT, color=INK)
    ticks = np.linspace(0, 1, 5)
    names = [f"{100 * value:.0f}" if panel.first else "" for value in ticks]
    ax.set_yticks(ticks, names)


def _write_none(ax: Axes, least: int) -> None:
    text = f"no course that\n{least} patients share" if least > 1 else "none to show"
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=TEXT)


def plot_representatives(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    n: int = 5,
    shared_by: int = 5,
    table: pd.DataFrame | None = None,
    colours: Colours | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """A few sequences that represent a group. Draws `representative_sequences`.

    A bar is as high as the share of patients that its sequence represents, which is written at
    its right. Where these numbers are hidden all bars are equally high.

    Parameters
    ----------
    sequences, groups, colours, xlabel, ax, figure : as in `plot_state_distribution`
    n, shared_by : as in `representative_sequences`
    table : DataFrame, optional
        What `representative_sequences` returned for the same arguments.
    min_count : groups of fewer patients are not shown, nor sequences that fewer share
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=1.9, table=table)
    colour = state_colours(page.states, colours)
    least = max(shared_by, min_count)
    if table is None:
        table = representative_sequences(
            sequences, groups, n=n, shared_by=shared_by, min_count=min_count
        )
    drawn: set[int | str] = set()
    for panel in page.panels:
        medoids = medoid_rows(panel.data, n, least)
        rows = panel.rows(table, len(medoids.rows))
        share = rows["share"].to_numpy(dtype=float)
        hidden = bool(np.isnan(share).any())
        share = np.full(len(share), 1 / len(share)) if hidden else share
        codes = _with_missing(panel.data)[medoids.rows]
        drawn |= _names(codes, panel.data.states)
        below = np.cumsum(share)
        _draw_courses(panel, codes, below, share, colour)
        panel.ax.hlines(below, 0.5, page.n_times + 0.5, color="white", linewidth=1.2)
        least_gap = 1.25 * SMALL / (72 * 1.2)  # a line of text, as a share of the panel's height
        for at, value in zip(spread(below - share / 2, least_gap), share, strict=True):
            panel.ax.text(
                page.n_times * 1.02 + 0.5, at, HIDDEN if hidden else percent_text(value),
                va="center", fontsize=SMALL, color=INK,
            )  # fmt: skip
        panel.ax.set_ylim(1, 0)
        if not len(share):
            _write_none(panel.ax, least)
        panel.ax.set_yticks([])
        panel.ax.spines["left"].set_visible(False)
        time_axis(panel.ax, panel.data, page.n_times, page.panel_points)
        if len(share):  # room for the shares inside the panel, where no legend covers them
            width = 0.55 * SMALL * 6 / page.panel_points
            panel.ax.set_xlim(right=0.5 + page.n_times * (1.03 + width))
            panel.ax.spines["bottom"].set_bounds(0.5, page.n_times + 0.5)
    only = f"; only courses that at least {least} patients share" if least > 1 else ""
    page.notes.append(f"at the right: share of the patients whose course is nearest{only}")
    return _finish(page, xlabel, "", colour, drawn)


def spread(at: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Increasing places moved apart as little as need be, none beyond 1.

    >>> spread(np.array([0.5, 0.95, 0.99]), 0.1)
    array([0.5, 0.9, 1. ])
    """
    apart = np.array(at, dtype=float)
    for i in range(1, len(apart)):
        apart[i] = max(apart[i], apart[i - 1] + gap)
    top = 1.0
    for i in reversed(range(len(apart))):
        apart[i] = min(apart[i], top)
        top = apart[i] - gap
    return apart
