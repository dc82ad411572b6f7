"""Figures of models: numbers of classes compared, the courses of classes, and how well they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.figures.canvas import (
    MARKERS,
    ONE_COLUMN,
    SMALL,
    TEXT,
    TWO_COLUMNS,
    begins_row,
    cell_text,
    even_lines,
    legend_columns,
    legend_of_all,
    named,
    new_axes,
    panel_grid,
    style,
    title_lines,
)
from mmlca.figures.colours import INK, MISSING, group_colour, state_colours, text_colour
from mmlca.figures.transitions import colour_bar
from mmlca.model.forms import state_shares
from mmlca.model.settings import CRITERIA
from mmlca.sequences.checks import need_columns, of_type
from mmlca.tables.clusters import percent_text
from mmlca.tables.diagnostics import Diagnostics
from mmlca.tables.disclosure import check_min_count, few_patients, hides

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


_MOST, _MARKED = 4.0, 2.0  # standard errors
_MOST_IN_A_ROW = 5


def plot_residuals(
    result: Diagnostics,
    *,
    names: Mapping[Any, str] | None = None,
    min_count: int = 0,
    xlabel: str = "Time",
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
    """
    import matplotlib as mpl

    of_type(result, Diagnostics, "what diagnose(model, sequences) returns")
    check_min_count(min_count)
    table = result.shown(min_count).states
    classes, states = list(table["class"].unique()), list(dict.fromkeys(table["state"]))
    times = list(dict.fromkeys(table["time"]))
    figure, panels = _panels(len(classes), 0.55 + 0.2 * len(states))
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
        step = max(1, len(times) // 4)
        at = [0, *range(step - 1, len(times), step)] if step > 1 else range(len(times))
        ax.set_xticks(list(dict.fromkeys(at)), [times[t] for t in dict.fromkeys(at)])
        ax.set_yticks(range(len(states)), rows)
        ax.set_title(_title(name, names), fontsize=TEXT, color=INK)
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
    note, letters = "; ".join(notes), int(72 * figure.bbox.width / figure.dpi / (0.56 * TEXT))
    lines = even_lines(note[:1].upper() + note[1:], letters)
    figure.supxlabel("\n".join([xlabel, *lines]), fontsize=TEXT)
    return figure


def plot_stays(
    result: Diagnostics,
    *,
    names: Mapping[Any, str] | None = None,
    min_count: int = 0,
    xlabel: str = "Times",
) -> Figure:
    """The probability of leaving a state by the time spent in it. Draws `result.stays`.

    Dots are the patients, lines what the model expects: of plain chains the same share at all
    durations (geometric lengths of stay).

    Parameters
    ----------
    result : Diagnostics
        From `diagnose`.
    names : {class: name}, optional
        Default: "Class 1" and so on.
    min_count : shares of fewer patients are not shown
    xlabel : str
        What times are called, in the plural.
    """
    from matplotlib.ticker import MaxNLocator

    of_type(result, Diagnostics, "what diagnose(model, sequences) returns")
    check_min_count(min_count)
    table = result.shown(min_count).stays
    classes, states = list(table["class"].unique()), list(dict.fromkeys(table["state"]))
    colour = state_colours(states)
    figure, panels = _panels(len(classes), 1.9)
    for ax, name in zip(panels, classes, strict=True):
        for number, state in enumerate(states):
            rows = table[(table["class"] == name) & (table["state"] == state)]
            rows = rows[rows["leaving"].notna()]
            if not len(rows):
                continue
            dots: dict[str, Any] = {"color": colour[state], "markersize": 2.8}
            dots["marker"] = MARKERS[number % len(MARKERS)]
            ax.plot(rows["duration"], rows["leaving"], ls="", label=str(state), **dots)
            expected = rows.set_index("duration")["expected"].dropna()
            if len(expected):
                at = np.arange(expected.index.min(), expected.index.max() + 1)
                level = expected.iloc[0] if expected.nunique() == 1 else np.nan
                line = expected.reindex(at, fill_value=level).to_numpy()  # not across a gap
                at, line = np.r_[at[0] - 0.4, at, at[-1] + 0.4], np.r_[line[0], line, line[-1]]
                ax.plot(at, line, color=colour[state], linewidth=1)
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
    key = "dots: patients; lines: what the model expects"
    figure.supxlabel(f"{xlabel} in the state so far\n({key})", fontsize=TEXT)
    return figure


def _panels(n: int, height: float) -> tuple[Figure, list[Axes]]:
    """The figure, and a panel for each class in rows of at most five."""
    wide = ONE_COLUMN if n == 1 else TWO_COLUMNS
    figure, panels = panel_grid(n, _MOST_IN_A_ROW, lambda n_rows: (wide, n_rows * height + 0.6))
    for ax in panels:
        style(ax)
    return figure, panels


def _title(name: Any, names: Mapping[Any, str] | None) -> str:
    return named(name, "Class") if names is None else title_lines(names[name], 26)
