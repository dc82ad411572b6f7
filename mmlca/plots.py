"""Figures. Each draws a table that a public function returns, and gives back its Axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from mmlca.selection import CRITERIA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#777777")
_MARKERS = "osD^vP*X"


def plot_selection(table: pd.DataFrame, criterion: str = "bic", ax: Axes | None = None) -> Axes:
    """The criterion against the number of classes, a line a site, its choice filled.

    With several sites each line is shown as the difference to the site's best, since sites
    differ in size.

    Parameters
    ----------
    table : DataFrame
        From `select_n_classes`.
    criterion : column to draw
    ax : Axes, optional
    """
    from matplotlib.ticker import MaxNLocator

    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, found {criterion!r}.")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(3.5, 2.8), layout="constrained")
    several = "site" in table.columns
    groups = table.groupby("site", sort=False) if several else [("", table)]
    for i, (site, rows) in enumerate(groups):
        colour = _COLOURS[i % len(_COLOURS)]
        value = rows[criterion] - rows[criterion].min() if several else rows[criterion]
        marker = _MARKERS[i % len(_MARKERS)]
        ax.plot(
            rows["classes"],
            value,
            marker=marker,
            color=colour,
            markerfacecolor="white",
            linewidth=1.2,
            markersize=5,
            label=str(site) if several else None,
        )
        best = value.idxmin()
        ax.plot(rows["classes"][best], value[best], marker=marker, color=colour, markersize=6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("Number of classes")
    name = criterion.upper()
    ax.set_ylabel(f"{name} above the site's best" if several else name)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    if several:
        ax.legend(frameon=False, fontsize="small", title="Site")
    return ax
