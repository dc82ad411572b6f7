"""Figure of the effects of covariates on membership."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.figures.canvas import (
    MARKERS,
    ONE_COLUMN,
    SMALL,
    TEXT,
    TWO_COLUMNS,
    beyond,
    legend_columns,
    named,
    style,
    title_lines,
    wrapped,
)
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import need_columns, of_type

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SITES = MARKERS.replace("D", "")  # the diamond is all sites together
_MOST_IN_A_ROW = 4
_NEEDED = ["class", "term", "estimate", "low", "high"]


def plot_effects(
    effects: pd.DataFrame, pooled: pd.DataFrame | None = None, figure: Figure | None = None
) -> Figure:
    """Effects with their intervals, one panel per class. Draws the tables that it is given.

    Parameters
    ----------
    effects : DataFrame
        class, term, estimate, low, high, and site where there are several; from
        `mmlca.three_step`. The intercept is not drawn, nor what is missing.
    pooled : DataFrame, optional
        From `mmlca.inverse_variance`: drawn as diamonds.
    figure : Figure, optional

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> table = pd.DataFrame({"class": [2], "term": ["age"], "estimate": [0.1], "low": [0.0],
    ...                       "high": [0.2]})
    >>> len(plot_effects(table).axes)
    1
    """
    of_type(effects, pd.DataFrame, "the table that three_step returns")
    need_columns(effects, _NEEDED)
    frame = effects[effects["term"] != "intercept"]
    classes, terms = list(frame["class"].unique()), list(dict.fromkeys(frame["term"]))
    if not terms:
        raise InputError("there is nothing to draw: the table has no term but the intercept.")
    sites = list(frame["site"].unique()) if "site" in frame else [None]
    series = [(site, frame if site is None else frame[frame["site"] == site]) for site in sites]
    if pooled is not None:
        series.append(("together", pooled))
    n_rows, n_columns = wrapped(len(classes), _MOST_IN_A_ROW)
    names = [str(site) for site, _ in series if site is not None]
    if figure is None:
        import matplotlib.pyplot as plt

        width = (ONE_COLUMN if len(classes) == 1 else TWO_COLUMNS) + beyond(terms)
        n_lines = -(-len(names) // legend_columns(width, names)) if names else 0
        height = 0.35 + 0.13 * n_lines + n_rows * (0.5 + 0.16 * len(terms) * (len(series) + 0.7))
        figure = plt.figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True)
    panels = list(grid.ravel())
    wide = figure.bbox.width / figure.dpi
    letters = max(12, int(72 * (wide - 1.2 - beyond(terms)) / n_columns / (0.62 * TEXT)))
    for empty in panels[len(classes) :]:
        empty.set_axis_off()
    for ax, name in zip(panels, classes, strict=False):
        style(ax)
        ax.axvline(0, color=INK, linewidth=0.6)
        for number, (site, table) in enumerate(series):
            mine = table[table["class"] == name].set_index("term").reindex(terms)
            at = np.arange(len(terms)) + (number - (len(series) - 1) / 2) * 0.8 / len(series)
            whole = site == "together"
            colour = INK if whole else group_colour(number)
            ax.hlines(at, mine["low"], mine["high"], color=colour, linewidth=1.1)
            marker = "D" if whole else _SITES[number % len(_SITES)]
            label = None if site is None else str(site)
            ax.plot(
                mine["estimate"], at, marker, color=colour, markersize=3.4, label=label, zorder=3
            )
        title = f"{named(name, 'Class')} against the first"
        ax.set_title(title_lines(title, letters), fontsize=TEXT, color=INK)
        ax.set_yticks(range(len(terms)), terms)
        ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    panels[0].set_ylim(len(terms) - 0.5, -0.5)
    if names:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, frameon=False, fontsize=SMALL, loc="outside upper center",
            ncols=legend_columns(wide, names),
        )  # fmt: skip
    figure.supxlabel("Log-odds ratio", fontsize=TEXT)
    return figure
