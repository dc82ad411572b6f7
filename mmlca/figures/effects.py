"""Figure of the effects of covariates on membership."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.figures.canvas import SMALL, TEXT, style
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import need_columns, of_type

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "os^vP*X"
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
        raise ValueError("there is nothing to draw: the table has no term but the intercept.")
    sites = list(frame["site"].unique()) if "site" in frame else [None]
    series = [(site, frame if site is None else frame[frame["site"] == site]) for site in sites]
    if pooled is not None:
        series.append(("together", pooled))
    if figure is None:
        import matplotlib.pyplot as plt

        height = 0.9 + 0.16 * len(terms) * (len(series) + 0.7)
        width = 3.5 if len(classes) == 1 else 7.2
        figure = plt.figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(classes), squeeze=False, sharey=True)[0]
    for ax, name in zip(panels, classes, strict=True):
        style(ax)
        ax.axvline(0, color=INK, linewidth=0.6)
        for number, (site, table) in enumerate(series):
            mine = table[table["class"] == name].set_index("term").reindex(terms)
            at = np.arange(len(terms)) + (number - (len(series) - 1) / 2) * 0.8 / len(series)
            whole = site == "together"
            colour = INK if whole else group_colour(number)
            ax.hlines(at, mine["low"], mine["high"], color=colour, linewidth=1.1)
            marker = "D" if whole else _MARKERS[number % len(_MARKERS)]
            label = None if site is None else str(site)
            ax.plot(
                mine["estimate"], at, marker, color=colour, markersize=3.4, label=label, zorder=3
            )
        whose = name if isinstance(name, str) else f"class {name}"
        ax.set_title(f"{whose} against the first", fontsize=TEXT, color=INK)
        ax.set_yticks(range(len(terms)), terms)
        ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    panels[0].set_ylim(len(terms) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(
            handles, labels, frameon=False, fontsize=SMALL, loc="outside upper center",
            ncols=len(labels),
        )  # fmt: skip
    figure.supxlabel("Log-odds", fontsize=TEXT)
    return figure
