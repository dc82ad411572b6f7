"""Figures of how patients move: transition heat map, transition graph, treatment lines.

They follow the rules of `mmlca.plots`: an Axes for one panel, a Figure for sites × groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.canvas import (
    INK,
    MISSING,
    PALE,
    SMALL,
    Page,
    Panel,
    lay_out,
    rectangles,
    state_colours,
)
from mmlca.describe import time_in_state, transition_rates, treatment_lines
from mmlca.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.03  # between the nodes of a line, as a share of the height
_CURVE = np.linspace(0, 1, 24)


# --- heat map --------------------------------------------------------------------------


def plot_transitions(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    lag: int = 1,
    few: int = 20,
    min_count: int = 0,
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Transition rates as a heat map, with their values. Draws `transition_rates`.

    At the right of each row is the number of transitions it rests on. Rows of fewer than
    `few` are hatched; a state that nothing follows is grey.

    Parameters
    ----------
    sequences, groups, lag : as in `transition_rates`
    few : rows of fewer transitions are hatched
    min_count : groups, and steps that fewer patients made, are not shown
    ax, figure : where to draw, optional
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=1.9)
    image: Any = None
    n_hidden = 0
    for panel in page.panels:
        rate, hidden = _shown_rates(panel.data, lag, min_count)
        n_hidden += int(hidden.sum())
        count = _values(transition_rates(panel.data, lag=lag, counts=True)).sum(axis=1)
        image = _draw_heat(panel, rate, count, hidden, few, page)
    page.hidden(n_hidden, "rate")
    if _room(page, page.panels[0]):
        page.notes.insert(0, f"right: number of transitions; hatched: fewer than {few}")
    else:
        bar = page.panels[0].ax.figure.colorbar(image, ax=[p.ax for p in page.panels], shrink=0.7)
        bar.ax.tick_params(labelsize=SMALL)
        bar.set_label("Rate", fontsize=SMALL)
    return page.finish("To", "From")


def _values(table: pd.DataFrame) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table.iloc[:, 1:].to_numpy(dtype=float).copy()
    return values


def _shown_rates(
    data: Sequences, lag: int, min_count: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Transition rates, NaN where too few patients made the step, and where that is."""
    rate = _values(transition_rates(data, lag=lag))
    before, after = data.codes[:, :-lag], data.codes[:, lag:]
    row, time = np.nonzero((before >= 0) & (after >= 0))
    size = data.n_states
    cell = before[row, time].astype(np.intp) * size + after[row, time]
    each_once = np.unique(row * size**2 + cell) % size**2
    patients = np.bincount(each_once, minlength=size**2).reshape(size, size)
    hidden = (patients > 0) & (patients < min_count)
    rate[hidden] = np.nan
    return rate, hidden


def _room(page: Page, panel: Panel) -> bool:
    """Whether the values can be written into the cells."""
    return page.panel_points * 0.7 / panel.data.n_states > 2.2 * (SMALL - 1)


def _draw_heat(
    panel: Panel,
    rate: NDArray[np.float64],
    count: NDArray[np.float64],
    hidden: NDArray[np.bool_],
    few: int,
    page: Page,
) -> Any:
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    ax, size = panel.ax, len(rate)
    shades = mpl.colormaps["Blues"].with_extremes(bad=MISSING)
    image = ax.imshow(rate, cmap=shades, vmin=0, vmax=1, aspect="auto")
    roomy = _room(page, panel)
    for i in range(size):
        weak = 0 < count[i] < few
        if weak:
            ax.add_patch(
                Rectangle((-0.5, i - 0.5), size, 1, fill=False, hatch="/////", ec=PALE, lw=0)
            )
        if roomy:
            for j in range(size):
                if hidden[i, j]:
                    ax.text(j, i, "–", ha="center", va="center", fontsize=SMALL - 1, color=INK)
                elif np.isfinite(rate[i, j]):
                    ink = "white" if rate[i, j] > 0.55 else INK
                    patch = {"facecolor": shades(rate[i, j]), "edgecolor": "none", "pad": 0.6}
                    ax.text(
                        j, i, _rate_text(rate[i, j]), ha="center", va="center", color=ink,
                        fontsize=SMALL - 1, bbox=patch if weak else None,
                    )  # fmt: skip
            n = "–" if 0 < count[i] < page.min_count else f"{count[i]:,.0f}"
            ax.text(size - 0.4, i, n, va="center", fontsize=SMALL - 1, color=INK)
    names = panel.data.states
    every = max(1, size // 25)
    named = panel.first or names != page.panels[0].data.states
    turn = 90 if max(map(len, names)) > 3 else 0
    ax.set_xticks(range(0, size, every), names[::every], rotation=turn)
    ax.set_yticks(range(0, size, every), names[::every] if named else [])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def _rate_text(rate: float) -> str:
    """Two decimals without the leading zero; a small rate is not called nothing."""
    if rate in (0, 1):
        return f"{rate:.0f}"
    if rate < 0.005:
        return "<.01"
    if rate > 0.995:
        return ">.99"
    return f"{rate:.2f}"[1:]


# --- graph -----------------------------------------------------------------------------


def plot_transition_graph(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    lag: int = 1,
    at_least: float = 0.02,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """States on a circle with arrows as wide as the rate. Draws `transition_rates`.

    A state's area is its share of all times (`time_in_state`); the number in it is the rate
    of staying. An arrow has the colour of the state it leaves.

    Parameters
    ----------
    sequences, groups, lag : as in `transition_rates`
    at_least : smaller rates are not drawn
    colours : {state: colour}, optional
    min_count : groups, and steps that fewer patients made, are not shown
    ax, figure : where to draw, optional
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=2.0)
    colour = state_colours(page.states, colours)
    n_hidden = 0
    for panel in page.panels:
        rate, hidden = _shown_rates(panel.data, lag, min_count)
        n_hidden += int(hidden.sum())
        area = time_in_state(panel.data)["share"].to_numpy()
        _draw_graph(panel, rate, area, at_least, [colour[s] for s in panel.data.states])
    if at_least > 0:
        page.notes.append(f"rates below {at_least:g} not drawn")
    page.hidden(n_hidden, "rate")
    return page.finish("", "", colour)


def _draw_graph(
    panel: Panel,
    rate: NDArray[np.float64],
    area: NDArray[np.float64],
    at_least: float,
    colours: list[Any],
) -> None:
    from matplotlib.patches import Circle, FancyArrowPatch

    ax, size = panel.ax, len(rate)
    angle = np.pi / 2 - 2 * np.pi * np.arange(size) / size
    place = np.column_stack([np.cos(angle), np.sin(angle)]) * (size > 1)
    largest = min(0.36, 2.2 / max(size, 2))
    smallest = min(0.17, 1.2 / max(size, 2))
    radius = smallest + (largest - smallest) * np.sqrt(np.nan_to_num(area))
    nodes = [Circle(tuple(place[k]), radius[k], fc=colours[k], ec="white", lw=0.6, zorder=3)
             for k in range(size)]  # fmt: skip
    for i, j in np.argwhere(np.nan_to_num(rate) >= max(at_least, 1e-12)):
        if i != j:
            ax.add_patch(
                FancyArrowPatch(
                    tuple(place[i]), tuple(place[j]), patchA=nodes[i], patchB=nodes[j],
                    connectionstyle="arc3,rad=0.16", arrowstyle="-|>", shrinkA=0, shrinkB=0,
                    mutation_scale=4 + 8 * rate[i, j], linewidth=0.4 + 5 * rate[i, j],
                    color=colours[i], alpha=0.85, zorder=2, gid=f"{i}-{j}",
                )
            )  # fmt: skip
    for k in range(size):
        ax.add_patch(nodes[k])
        if size <= 12 and np.isfinite(rate[k, k]):
            ax.text(
                place[k, 0], place[k, 1], _rate_text(rate[k, k]),
                ha="center", va="center", fontsize=SMALL - 0.5,
                color="white" if _is_dark(colours[k]) else "black", zorder=4,
            )  # fmt: skip
    ax.set_xlim(-1.4, 1.4)
    ax.set_ylim(-1.4, 1.4)
    ax.set_aspect("equal")
    ax.set(xticks=[], yticks=[])  # not set_axis_off, which would hide the note below too
    ax.spines[:].set_visible(False)


def _is_dark(colour: Any) -> bool:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.55


# --- treatment lines -------------------------------------------------------------------


def plot_lines(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    max_lines: int = 4,
    colours: Mapping[str, Any] | None = None,
    min_count: int = 0,
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Treatment lines and the flows between them (alluvial plot). Draws `treatment_lines`.

    A block is as high as the share of all patients who had the state as that line; what no
    ribbon leaves had no further line during follow-up.

    Parameters
    ----------
    sequences, groups, max_lines : as in `treatment_lines`
    colours : {state: colour}, optional
    min_count : groups, and flows and blocks of fewer patients, are not shown
    ax, figure : where to draw, optional
    """
    page = lay_out(sequences, groups, min_count, ax, figure, height=2.2)
    colour = state_colours(page.states, colours)
    n_hidden = 0
    for panel in page.panels:
        table = treatment_lines(panel.data, max_lines=max_lines)
        n_hidden += _draw_lines(panel, table, colour, min_count)
    page.hidden(n_hidden, "flow")
    return page.finish("Treatment line (below: patients)", "", colour)


def _draw_lines(
    panel: Panel, table: pd.DataFrame, colour: Mapping[str, Any], min_count: int
) -> int:
    """Draw blocks and ribbons; how many flows were of too few patients."""
    ax, states = panel.ax, list(panel.data.states)
    size, patients = line_blocks(table, states)
    total = size[0].sum()
    n_lines = int(np.flatnonzero(size.sum(axis=1) > 0).max(initial=0)) + 1
    size, patients = size[:n_lines] / total, patients[:n_lines]
    bottom = _stack(size)
    shown = patients >= max(min_count, 1)
    for k, state in enumerate(states):
        at = np.flatnonzero(shown[:, k])
        bars = rectangles(ax, at + 0.94, bottom[at, k], 0.12, size[at, k], colour[state])
        bars.set_label(state)
    n_hidden = _draw_ribbons(panel, table, size, bottom, shown, total, colour, min_count)
    few = patients.sum(axis=1) < min_count
    n = ["–" if few[k] else f"{size[k].sum() * total:,.0f}" for k in range(n_lines)]
    text = [f"{k + 1}\n{n[k]}" for k in range(n_lines)]
    ax.set_xticks(range(1, n_lines + 1), text)
    ax.set_xlim(0.85, max(n_lines, 2) + 0.15)
    ax.set_ylim(-0.01, 1 + _GAP * max(len(states) - 1, 0) + 0.01)
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    return n_hidden


def line_blocks(
    table: pd.DataFrame, states: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted and plain number of patients with each state as each line, (lines, S)."""
    n_lines = int(table["line"].max()) + 1
    code = {state: k for k, state in enumerate(states)}
    size, patients = np.zeros((2, n_lines, len(states)))
    for line, before, after, count, n in zip(
        table["line"], table["from"], table["to"], table["count"], table["patients"], strict=True
    ):
        if line == 1:
            size[0, code[before]] += count
            patients[0, code[before]] += n
        if after in code:
            size[line, code[after]] += count
            patients[line, code[after]] += n
    return size, patients


def _stack(size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lower edge of each block: the first state on top, all lines from the same height."""
    gap = np.where(size > 0, _GAP, 0.0)
    top = 1 + _GAP * (size.shape[1] - 1)
    bottom: NDArray[np.float64] = top - np.cumsum(size + gap, axis=1) + gap
    return bottom


def _draw_ribbons(
    panel: Panel,
    table: pd.DataFrame,
    size: NDArray[np.float64],
    bottom: NDArray[np.float64],
    shown: NDArray[np.bool_],
    total: float,
    colour: Mapping[str, Any],
    min_count: int,
) -> int:
    from matplotlib.collections import PolyCollection

    code = {state: k for k, state in enumerate(panel.data.states)}
    leaving, entering = bottom + size, bottom + size  # how far each block is used from its top
    ribbons, colours, n_hidden = [], [], 0
    ease = 3 * _CURVE**2 - 2 * _CURVE**3
    flows = table[table["to"].notna()]
    for line, before, after, count, patients in zip(
        flows["line"], flows["from"], flows["to"], flows["count"], flows["patients"], strict=True
    ):
        i, j, height = code[before], code[after], count / total
        start, end = leaving[line - 1, i], entering[line, j]
        leaving[line - 1, i] -= height
        entering[line, j] -= height
        if patients < min_count or not (shown[line - 1, i] and shown[line, j]):
            n_hidden += 1
            continue
        x = line + 0.06 + 0.88 * _CURVE
        upper = start + (end - start) * ease
        ribbons.append(
            np.column_stack([np.append(x, x[::-1]), np.append(upper, upper[::-1] - height)])
        )
        colours.append(colour[before])
    if ribbons:
        drawn = PolyCollection(ribbons, facecolors=colours, edgecolors="none", alpha=0.45)
        drawn.set_gid("flows")
        panel.ax.add_collection(drawn, autolim=False)
    return n_hidden
