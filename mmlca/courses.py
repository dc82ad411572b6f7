"""Figures of whole sequences: the index plot and the most frequent ones.

They follow the rules of `mmlca.plots`: an Axes for one panel, a Figure for sites × groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmlca.canvas import INK, MISSING, TEXT, lay_out, rectangles, state_colours, time_axis
from mmlca.describe import frequent
from mmlca.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_RASTER = 10_000


def plot_index(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    sort: str | None = "start",
    colours: Mapping[str, Any] | None = None,
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
        raise ValueError(f'sort must be "start", "end" or None, found {sort!r}.')
    page = lay_out(sequences, groups, min_count, ax, figure)
    colour = state_colours(page.states, colours)
    any_missing, n_rare = False, 0
    for panel in page.panels:
        data = panel.data
        if min_count > 1:
            _, number = data.distinct()
            common = np.bincount(number)[number] >= min_count
            n_rare += int((~common).sum())
            data = data[common]
        codes = _with_missing(data)
        any_missing |= bool((codes == data.n_states).any())
        codes = codes[_sorted_rows(codes, sort)]
        _draw_raster(panel.ax, codes, len(data), [colour[state] for state in data.states])
        panel.ax.set_ylim(max(len(data), 1), 0)
        panel.ax.set_yticks([0, len(data)], ["0", f"{len(data):,}"])
        time_axis(panel.ax, data, page.n_times, page.panel_points)
    if n_rare:
        page.notes.append(
            f"{n_rare:,} patients with a sequence of fewer than {min_count} not shown"
        )
    return page.finish(xlabel, "Patients", colour, any_missing)


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
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    top: int = 30,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """The most frequent sequences, each as high as it is frequent.

    The title says which share of the patients they cover. Draws `sequence_frequencies`.

    Parameters
    ----------
    sequences, groups, colours, xlabel, ax, figure : as in `plot_state_distribution`
    top : how many sequences
    min_count : groups, and sequences that fewer patients have, are not shown
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=2.3)
    colour = state_colours(page.states, colours)
    any_missing, n_rare = False, 0
    for panel in page.panels:
        found = frequent(panel.data, top, min_count)
        n_rare += found.n_rare
        codes = _with_missing(panel.data)[found.rows]
        any_missing |= bool((codes == panel.data.n_states).any())
        below = np.cumsum(found.share)
        names = [colour[state] for state in panel.data.states] + [MISSING]
        for code in np.unique(codes[codes <= panel.data.n_states]):
            row, time = np.nonzero(codes == code)
            bars = rectangles(panel.ax, time + 0.5, below[row], 1.0, -found.share[row], names[code])
            bars.set_label([*panel.data.states, "not known"][code])
        covered = float(found.share.sum())
        points = 150 * found.share[:-1] / max(covered, 1e-9)  # rough height of a bar
        widths = np.minimum(0.4, 0.2 * points)  # a wider line would swallow thin bars
        panel.ax.hlines(below[:-1], 0.5, page.n_times + 0.5, color="white", linewidth=widths)
        panel.ax.set_ylim(covered or 1, 0)
        _coverage(panel.ax, len(found.rows), covered, page.title_letters)
        time_axis(panel.ax, panel.data, page.n_times, page.panel_points)
    page.hidden(n_rare, "sequence")
    return page.finish(xlabel, "Patients, cumulative (%)", colour, any_missing)


def _coverage(ax: Axes, n: int, covered: float, letters: int) -> None:
    """Say in the title how much of the group is on show, and mark it on the axis."""
    if not n:
        ax.text(0.5, 0.5, "none to show", transform=ax.transAxes, ha="center", fontsize=TEXT)
    title, share = ax.get_title(), f"{n} sequence{'s' * (n != 1)}: {covered:.0%}"
    fits = len(title.split("\n")[-1]) + len(share) + 2 <= letters
    ax.set_title(f"{title}; {share}" if fits else f"{title}\n{share}", fontsize=TEXT, color=INK)
    ticks = [value for value in np.linspace(0, 1, 5) if value < 0.93 * covered]
    ax.set_yticks([*ticks, covered], [f"{100 * value:.0f}" for value in [*ticks, covered]])
