"""Figures of how well a model fits: residuals of the states over time, and lengths of stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mmlca.figures.canvas import (
    MARKERS,
    ONE_COLUMN,
    SMALL,
    TEXT,
    TWO_COLUMNS,
    begins_row,
    cell_text,
    even_lines,
    legend_of_all,
    named,
    panel_grid,
    style,
    title_lines,
)
from mmlca.figures.colours import INK, MISSING, state_colours, text_colour
from mmlca.figures.transitions import colour_bar
from mmlca.sequences.checks import of_type
from mmlca.tables.diagnostics import Diagnostics
from mmlca.tables.disclosure import check_min_count, few_patients, hides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST, _MARKED = 4.0, 2.0  # standard errors
_MOST_IN_A_ROW = 5


def plot_residuals(
    result: Diagnostics,
    *,
    names: Mapping[Any, str] | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
    figure: Figure | None = None,
) -> Figure:
    """Residuals of the states over time, one panel per class. Draws `result.states`.

    Blue: more patients in the state than the chains expect, red: fewer, in standard errors; a
    + or − marks those beyond 2, as about one in twenty is by chance alone. Grey: nobody is expected
    there, or the patients are too few to show.

    Parameters
    ----------
    result : Diagnostics
        From `diagnose`.
    names : {class: name}, optional
        Default: "Class 1" and so on.
    min_count : cells of fewer patients, and those that would reveal them, are grey
    xlabel : str
        What a time is called.
    figure : Figure, optional
    """
    import matplotlib as mpl

    of_type(result, Diagnostics, "what diagnose(model, sequences) returns")
    check_min_count(min_count)
    table = result.shown(min_count).states
    classes, states = list(table["class"].unique()), list(dict.fromkeys(table["state"]))
    times = list(dict.fromkeys(table["time"]))
    figure, panels = _panels(figure, len(classes), 0.55 + 0.2 * len(states))
    colours = mpl.colormaps["RdBu"].with_extremes(bad=MISSING)
    wide = 72 * figure.bbox.width / figure.dpi * 0.7 / min(len(classes), _MOST_IN_A_ROW)
    any_grey = any_marked = False
    for ax, name in zip(panels, classes, strict=True):
        mine = table[table["class"] == name]
        grid = mine["residual"].to_numpy().reshape(len(times), len(states)).T
        image = ax.imshow(
            np.ma.masked_invalid(grid), cmap=colours, vmin=-_MOST, vmax=_MOST, aspect="auto"
        )
        any_grey |= bool(np.isnan(grid).any())
        if wide / len(times) > 0.7 * (SMALL - 1):
            for i, j in np.argwhere(np.abs(np.nan_to_num(grid)) > _MARKED):
                shade = text_colour(image.to_rgba(grid[i, j]))
                any_marked = True
                cell_text(ax, j, i, "+" if grid[i, j] > 0 else "−", shade)
        rows = states if begins_row(ax) else [""] * len(states)
        _name_axes(ax, _title(name, names), rows, times)
    largest = float(np.nanmax(np.abs(table["residual"]), initial=0.0))
    bar = colour_bar(image, panels, "Residual (standard errors)", beyond=largest > _MOST)
    bar.set_ticks(np.arange(-_MOST, _MOST + 1, 2))
    few = f", or {few_patients(min_count)}" if hides(min_count) else ""
    chance = "as about one in twenty is by chance"
    notes = []
    if any_marked:
        notes.append(f"+ and −: beyond {_MARKED:g} standard errors, {chance}")
    if any_grey:
        notes.append(f"grey: no patient is expected{few}")
    note = "; ".join(notes)
    figure.supxlabel("\n".join([xlabel, *_lines(note, figure)]), fontsize=TEXT)
    return figure


def plot_stays(
    result: Diagnostics,
    *,
    names: Mapping[Any, str] | None = None,
    min_count: int = 0,
    xlabel: str = "Times",
    figure: Figure | None = None,
) -> Figure:
    """The probability of leaving a state by the time spent in it. Draws `result.stays`.

    Dots are the patients, lines what a Markov chain expects: the same share at all durations
    (geometric lengths of stay).

    Parameters
    ----------
    result : Diagnostics
        From `diagnose`.
    names : {class: name}, optional
        Default: "Class 1" and so on.
    min_count : shares of fewer patients are not shown
    xlabel : str
        What times are called, in the plural.
    figure : Figure, optional
    """
    from matplotlib.ticker import MaxNLocator

    of_type(result, Diagnostics, "what diagnose(model, sequences) returns")
    check_min_count(min_count)
    table = result.shown(min_count).stays
    classes, states = list(table["class"].unique()), list(dict.fromkeys(table["state"]))
    colour = state_colours(states)
    figure, panels = _panels(figure, len(classes), 1.9)
    for ax, name in zip(panels, classes, strict=True):
        for number, state in enumerate(states):
            rows = table[(table["class"] == name) & (table["state"] == state)]
            rows = rows[rows["leaving"].notna()]
            if not len(rows):
                continue
            dots: dict[str, Any] = {"color": colour[state], "markersize": 2.8}
            dots["marker"] = MARKERS[number % len(MARKERS)]
            ax.plot(rows["duration"], rows["leaving"], ls="", label=str(state), **dots)
            ends = [rows["duration"].min() - 0.4, rows["duration"].max() + 0.4]
            ax.plot(ends, rows["expected"].iloc[[0, -1]], color=colour[state], linewidth=1)
        ax.set_title(_title(name, names), fontsize=TEXT, color=INK)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        ax.set_xlim(left=0.4)
        ax.grid(axis="y", linewidth=0.4, alpha=0.5)
        if begins_row(ax):
            ax.set_ylabel("Share who leave next", fontsize=TEXT)
    top = max((ax.get_ylim()[1] for ax in panels), default=1.0)
    for ax in panels:
        ax.set_ylim(0, top)
    legend_of_all(figure, panels, ncols=6)
    key = "dots: patients; lines: what a Markov chain expects"
    figure.supxlabel(f"{xlabel} in the state so far\n({key})", fontsize=TEXT)
    return figure


def _panels(figure: Any, n: int, height: float) -> tuple[Any, list[Any]]:
    """The figure, and a panel for each class in rows of at most five."""
    wide = ONE_COLUMN if n == 1 else TWO_COLUMNS
    figure, panels = panel_grid(
        figure, n, _MOST_IN_A_ROW, lambda n_rows: (wide, n_rows * height + 0.6)
    )
    for ax in panels:
        style(ax)
    return figure, panels


def _lines(note: str, figure: Any) -> list[str]:
    """A note with a capital, in lines that are no wider than the figure."""
    letters = int(72 * figure.bbox.width / figure.dpi / (0.56 * TEXT))
    return even_lines(note[:1].upper() + note[1:], letters)


def _title(name: Any, names: Mapping[Any, str] | None) -> str:
    return named(name, "Class") if names is None else title_lines(names[name], 26)


def _name_axes(ax: Any, title: str, states: list[str], times: list[str]) -> None:
    step = max(1, len(times) // 4)
    at = [0, *range(step - 1, len(times), step)] if step > 1 else list(range(len(times)))
    at = list(dict.fromkeys(at))
    ax.set_xticks(at, [times[t] for t in at])
    ax.set_yticks(range(len(states)), states)
    ax.set_title(title, fontsize=TEXT, color=INK)
