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
    infos_and_table,
    keep_drawn,
    lay_out,
    patients_of,
    rectangles,
    split_patients,
    time_axis,
)
from mmlca.figures.colours import INK, MISSING, Colours, state_colours
from mmlca.sequences.checks import counted, some
from mmlca.sequences.type import Sequences
from mmlca.tables.clusters import percent_text
from mmlca.tables.describe import frequency_spells, frequent, sequence_frequencies
from mmlca.tables.disclosure import HIDDEN, hides, is_small
from mmlca.tables.groups import GroupInfo, Groups, SequencesBySite
from mmlca.tables.representatives import representative_sequences, representative_spells

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
    patients = split_patients(sequences, groups)
    page = lay_out([info for info, _ in patients], min_count, ax, figure)
    colour = state_colours(page.states, colours)
    drawn: set[int | str] = set()
    n_rare = 0
    for panel in page.panels:
        data = patients_of(panel.info, patients)
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
        time_axis(panel.ax, data.times, page.n_times, page.panel_points)
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
    sequences: Sequences | SequencesBySite | list[GroupInfo],
    groups: Groups = None,
    *,
    top: int = 30,
    shared_by: int = 5,
    table: pd.DataFrame | None = None,
    spells: pd.DataFrame | None = None,
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
    spells : DataFrame, with a table
        What `mmlca.tables.describe.frequency_spells` returned for the same arguments.
    min_count : groups, and sequences that fewer patients have, are not shown
    """
    least = max(shared_by, min_count)
    infos, (table, spells) = infos_and_table(
        sequences,
        groups,
        min_count,
        _given(table, spells, least),
        lambda data, labels: (
            sequence_frequencies(data, labels, top, min_count=least),
            frequency_spells(data, labels, top, min_count=least),
        ),
    )
    page = lay_out(infos, min_count, ax, figure, height=2.3, table=table)
    colour = state_colours(page.states, colours)
    drawn: set[int | str] = set()
    any_other = False
    for panel in page.panels:
        share, parts = _courses(panel, table, spells)
        below = np.cumsum(share)
        drawn |= _draw_courses(panel, parts, below, share, colour)
        covered = float(share.sum())
        widths = np.minimum(0.4, 0.2 * 150 * share[:-1])  # a wider line would swallow thin bars
        panel.ax.hlines(below[:-1], 0.5, page.n_times + 0.5, color="white", linewidth=widths)
        if covered < 1 - 1e-9:
            any_other = True
            rectangles(panel.ax, 0.5, covered, page.n_times, 1 - covered, _OTHER)
        panel.ax.set_ylim(1, 0)
        _title_coverage(panel, len(share), covered, page.title_letters, least)
        time_axis(panel.ax, panel.info.times, page.n_times, page.panel_points)
    if any_other:
        few = f", or those of fewer than {least} patients" if least > 1 else ""
        page.notes.append(f"pale: rarer courses{few}")
    return _finish(page, xlabel, "Patients (%)", colour, drawn)


def _given(
    table: pd.DataFrame | None, spells: pd.DataFrame | None, least: int
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The table of courses and that of their spells; None if neither is given."""
    if (table is None) != (spells is None):
        missing, other = ("spells", "table") if spells is None else ("table", "spells")
        raise InputError(f"{other}= was given without {missing}=; give both, or neither of them.")
    if table is None or spells is None:
        return None
    whole = (table["count"].dropna() % 1 == 0).all()  # numbers of patients, without weights
    if "rounded_size" not in table and whole and is_small(table["count"], least).any():
        raise InputError(
            f"the table has courses of fewer than {least} patients, which the figure must not "
            f"show; give a table made with min_count={least}, or lower shared_by and min_count."
        )
    return table, spells


def _courses(
    panel: Panel, table: pd.DataFrame, spells: pd.DataFrame
) -> tuple[NDArray[np.float64], pd.DataFrame]:
    """The share of each course of a panel, and the spells with the times when they begin."""
    rows, parts = panel.rows(table), panel.rows(spells)
    ranks = list(range(1, len(rows) + 1))
    if list(rows["rank"]) != ranks or sorted(set(parts["rank"])) != ranks:
        raise InputError(
            f"the ranks of the courses must be 1 to {len(ranks)} in the table and in the spells, "
            f"found {some(rows['rank'])} and {some(parts['rank'].unique())}; give those of the "
            "same sequences, groups and numbers of courses."
        )
    unknown = set(parts["state"].dropna()) - set(panel.info.states)
    if unknown:
        raise InputError(
            f"the spells have the states {some(sorted(unknown))}, which the patients do not have; "
            "give those of the same sequences and groups."
        )
    begin = parts.groupby("rank")["windows"].cumsum() - parts["windows"]
    return rows["share"].to_numpy(dtype=float), parts.assign(begin=begin)


def _draw_courses(
    panel: Panel,
    spells: pd.DataFrame,
    below: NDArray[np.float64],
    share: NDArray[np.float64],
    colours: Mapping[str, Any],
) -> set[int | str]:
    """Draw courses as bars one below the other, and return what occurs, as `_names` does.

    A spell is one shape, without seams.
    """
    drawn: set[int | str] = set()
    for name in [*panel.info.states, None]:
        mine = spells[spells["state"].isna() if name is None else spells["state"] == name]
        if not len(mine):
            continue
        drawn.add(0 if name is None else name)
        at, begin = mine["rank"].to_numpy(dtype=np.intp) - 1, mine["begin"].to_numpy()
        shade = MISSING if name is None else colours[name]
        bars = rectangles(
            panel.ax, begin + 0.5, below[at], mine["windows"].to_numpy(), -share[at], shade
        )
        bars.set_antialiased(False)
        bars.set_label(name or "not known")
    ends = (spells["begin"] + spells["windows"]).groupby(spells["rank"]).max()
    return drawn | {1} if (ends < len(panel.info.times)).any() else drawn


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
    sequences: Sequences | SequencesBySite | list[GroupInfo],
    groups: Groups = None,
    *,
    n: int = 5,
    shared_by: int = 5,
    table: pd.DataFrame | None = None,
    spells: pd.DataFrame | None = None,
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
    spells : DataFrame, with a table
        What `mmlca.tables.representatives.representative_spells` returned for them.
    min_count : groups of fewer patients are not shown, nor sequences that fewer share
    """
    least = max(shared_by, min_count)
    chosen_by = {"n": n, "shared_by": shared_by, "min_count": min_count}
    infos, (table, spells) = infos_and_table(
        sequences,
        groups,
        min_count,
        _given(table, spells, least),
        lambda data, labels: (
            representative_sequences(data, labels, **chosen_by),
            representative_spells(data, labels, **chosen_by),
        ),
    )
    page = lay_out(infos, min_count, ax, figure, height=1.9, table=table)
    colour = state_colours(page.states, colours)
    drawn: set[int | str] = set()
    for panel in page.panels:
        share, parts = _courses(panel, table, spells)
        hidden = bool(np.isnan(share).any())
        share = np.full(len(share), 1 / len(share)) if hidden else share
        below = np.cumsum(share)
        drawn |= _draw_courses(panel, parts, below, share, colour)
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
        time_axis(panel.ax, panel.info.times, page.n_times, page.panel_points)
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
