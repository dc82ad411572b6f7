"""Figure of treatment lines and the flows between them.

It follows the rules of `mmlca.figures.distribution`: an Axes for one panel, a Figure for
sites × groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import SMALL, Panel, infos_and_table, keep_drawn, lay_out, rectangles
from mmlca.figures.colours import INK, MISSING, PALE, Colours, state_colours
from mmlca.sequences.type import Sequences
from mmlca.tables.clusters import percent_text
from mmlca.tables.groups import GroupInfo, Groups, SequencesBySite
from mmlca.tables.treatment_lines import branch_names, treatment_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.03  # between the blocks of a line, as a share of the height
_CURVE = np.linspace(0, 1, 24)


def plot_lines(
    sequences: Sequences | SequencesBySite | list[GroupInfo],
    groups: Groups = None,
    *,
    max_lines: int = 4,
    table: pd.DataFrame | None = None,
    colours: Colours | None = None,
    min_count: int = 0,
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Treatment lines and the flows between them (alluvial plot). Draws `treatment_paths`.

    A block is as high as the share of all patients who had the state as that line. The pale
    block "no further" holds those whose last line was the one before: they stayed on it to the
    end of their follow-up.

    Parameters
    ----------
    sequences, groups, max_lines : as in `treatment_paths`
        Or a list of `GroupInfo` with their table.
    table : DataFrame, optional
        What `treatment_paths` returned for the same sequences, groups and `min_count`.
    colours : {state: colour} or list of colours, optional
    min_count : groups of fewer patients are not shown, and smaller branches are put together
    ax, figure : where to draw, optional
    """
    infos, table = infos_and_table(
        sequences,
        groups,
        min_count,
        table,
        partial(treatment_paths, max_lines=max_lines, min_count=min_count),
    )
    page = lay_out(infos, min_count, ax, figure, height=2.2, table=table)
    colour = state_colours(page.states, colours)
    ended, rare = branch_names(page.states)[-2:]
    colour |= {ended: PALE, rare: MISSING}
    shown = set()
    for panel in page.panels:
        rows = panel.rows(table)
        names = branch_names(panel.info.states)
        rows = rows.replace({"state": {names[-2]: ended, names[-1]: rare}})
        shown |= set(rows["state"])
        _draw_lines(panel, rows, colour, page.panel_points)
    return page.finish("Treatment line (below: patients)", "", keep_drawn(colour, shown))


def _draw_lines(
    panel: Panel, table: pd.DataFrame, colour: Mapping[str, Any], points: float
) -> None:
    """Draw blocks and ribbons in a panel `points` wide; name blocks where there is room."""
    ax, names = panel.ax, list(colour)
    total, first = panel.info.weight, table.loc[table["line"] == 1, "count"].sum()
    rounded = "rounded_size" in table
    if not rounded and not np.isclose(total, first):
        raise InputError(
            f"the table has {first:,.0f} patients, expected {total:,.0f}; give the table of the "
            "same sequences and groups."
        )
    size = line_blocks(table, names)
    bottom = _stack(size)
    on_line = size[:, :-2].sum(axis=1) + size[:, -1]  # all but those without a further line
    n_lines = int(np.flatnonzero(on_line > 0).max(initial=0)) + 1
    large = size[:n_lines] > 0.06
    after, room = _name_room(names, large, points)
    for k, name in enumerate(names):
        at = np.flatnonzero(size[:n_lines, k] > 0)
        if not len(at):
            continue
        bars = rectangles(ax, at + 0.94, bottom[at, k], 0.12, size[at, k], colour[name])
        bars.set_label(name)
        for line in at[large[at, k]]:
            if len(name) > room[line]:
                continue
            ax.text(
                line + 1.08, bottom[line, k] + size[line, k] / 2, name,
                va="center", fontsize=SMALL - 1, color=INK, zorder=4,
            )  # fmt: skip
    _draw_ribbons(ax, table[table["line"] <= n_lines], size, bottom, colour)
    n = [f"{on_line[k] * total:,.0f}" for k in range(n_lines)]
    if rounded or not panel.sized(table):
        n = [percent_text(round(on_line[k], 9)) for k in range(n_lines)]
    ax.set_xticks(range(1, n_lines + 1), [f"{k + 1}\n{n[k]}" for k in range(n_lines)])
    ax.set_xlim(0.85, max(n_lines, 2) + after)
    ax.set_ylim(-0.01, 1 + _GAP * max(len(names) - 1, 0) + 0.01)
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)


def _name_room(
    names: list[str], large: NDArray[np.bool_], points: float
) -> tuple[float, list[float]]:
    """How far the axis goes on after the last line, and how many letters fit at each line.

    The names at the last line are after it, unless they would take too much of the panel.
    """
    n_lines, letter = len(large), 0.6 * (SMALL - 1)
    longest = max(
        (len(name) for name, here in zip(names, large[-1], strict=True) if here), default=0
    )
    part = letter * longest / points
    before = max(n_lines, 2) - 0.85
    after = (0.1 + part * before) / (1 - part) if part < 0.5 else 1.0
    fits = after < 0.9
    after = max(after, 0.15) if fits else 0.15
    room = 0.86 * points / (before + after) / letter
    return after, [*[room] * (n_lines - 1), longest if fits else 0]


def line_blocks(table: pd.DataFrame, names: list[str]) -> NDArray[np.float64]:
    """The share of the patients with each state as each line, (lines, names)."""
    size = np.zeros((max([*table["line"], 2]), len(names)))
    code = {name: k for k, name in enumerate(names)}
    at = table["state"].map(code).to_numpy(dtype=np.intp)
    np.add.at(size, (table["line"].to_numpy() - 1, at), table["share"].to_numpy(dtype=float))
    return size


def _stack(size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lower edge of each block: the first state on top, all lines from the same height."""
    gap = np.where(size > 0, _GAP, 0.0)
    top = 1 + _GAP * (size.shape[1] - 1)
    bottom: NDArray[np.float64] = top - np.cumsum(size + gap, axis=1) + gap
    return bottom


def _draw_ribbons(
    ax: Axes,
    table: pd.DataFrame,
    size: NDArray[np.float64],
    bottom: NDArray[np.float64],
    colour: Mapping[str, Any],
) -> None:
    from matplotlib.collections import PolyCollection

    names = list(colour)
    code = {name: k for k, name in enumerate(names)}
    flows = table[table["before"].notna()].groupby(["line", "before", "state"], sort=False)
    flow = flows["share"].sum().reset_index()
    flow = flow.assign(i=flow["before"].map(code), j=flow["state"].map(code))
    flow = flow.sort_values(["line", "i", "j"], kind="stable")
    leaving, entering = bottom + size, bottom + size  # how far each block is used from its top
    ribbons, colours = [], []
    ease = 3 * _CURVE**2 - 2 * _CURVE**3
    for line, i, j, height in zip(flow["line"], flow["i"], flow["j"], flow["share"], strict=True):
        start, end = leaving[line - 2, i], entering[line - 1, j]
        leaving[line - 2, i] -= height
        entering[line - 1, j] -= height
        x = line - 1 + 0.06 + 0.88 * _CURVE
        upper = start + (end - start) * ease
        ribbons.append(
            np.column_stack([np.append(x, x[::-1]), np.append(upper, upper[::-1] - height)])
        )
        colours.append(colour[names[j] if j >= len(names) - 2 else names[i]])
    if ribbons:
        drawn = PolyCollection(ribbons, facecolors=colours, edgecolors="none", alpha=0.45)
        drawn.set_gid("flows")
        ax.add_collection(drawn, autolim=False)
