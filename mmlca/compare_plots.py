"""The figure of `site_differences`: where the courses of a cluster differ between two sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.checks import some
from mmlca.compare import SiteDifferences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = "PuOr_r"
_INK, _NEVER, _HATCH = "#333333", "#C8C8C8", "#B0B0B0"
_LINES = "//////"
_WIDTH = 7.2
_MOST_ANNOTATED = 8
_SMALL, _TINY = 6.5, 5.5


def plot_site_differences(
    result: SiteDifferences,
    figure: Figure | None = None,
    *,
    sites: str | None = None,
    memberships: Sequence[str] | None = None,
) -> Figure:
    """Heat maps of the differences between two sites, from −1 to 1.

    A row a membership; in it one map a cluster for the transitions (from ↓, to →) and one for
    the first states of all clusters. Rows with fewer than `min_support` steps at one of the
    sites are hatched; rows never visited at one of them are grey and not in the norm.

    Parameters
    ----------
    result : SiteDifferences
        What is drawn is `result.differences`.
    figure : Figure, optional
        Where to draw; by default a new one, 7.2 inches wide for up to four clusters.
    sites : str, optional
        Which pair, as in the column "sites", if there are more than two sites. Default: the
        first.
    memberships : names, optional
        Default: "ensemble" and, if there, "local".

    Returns
    -------
    Figure

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from mmlca import Sequences, site_differences
    >>> data = Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"]])
    >>> clusters = {"MGB": [1, 1], "VA": [1, 1]}
    >>> found = site_differences({"MGB": data, "VA": data}, clusters, n_boot=10, seed=1)
    >>> len(plot_site_differences(found, Figure()).axes)
    4
    """
    pair = _chosen_pair(result, sites)
    names = _chosen_memberships(result, memberships)
    table = result.differences[result.differences["sites"] == pair]
    maps = {name: _Maps(table[table["membership"] == name], result.states) for name in names}
    n_columns = max(len(m.labels) for m in maps.values()) + 1
    if figure is None:
        import matplotlib.pyplot as plt

        width = max(_WIDTH, _WIDTH / 5 * n_columns)
        height = 1.0 + len(names) * (0.3 + (width - 1.1) / n_columns)
        figure = plt.figure(figsize=(width, height), layout="constrained")
    grid = figure.add_gridspec(len(names) + 1, n_columns, height_ratios=[1] * len(names) + [0.07])
    for row, name in enumerate(names):
        axes = [figure.add_subplot(grid[row, column]) for column in range(n_columns)]
        _draw_row(axes, maps[name], result.states)
        axes[0].set_ylabel(_row_name(name, result.norms, pair), fontsize=_TINY, color=_INK)
        if row < len(names) - 1:
            for ax in axes:
                ax.set_xticklabels([])
    half = (n_columns + 1) // 2
    _draw_scale(figure, figure.add_subplot(grid[-1, :half]), pair)
    _draw_key(figure.add_subplot(grid[-1, half:]), result.min_support)
    return figure


class _Maps:
    """Differences (K, S + 1, S), supported rows (K, S + 1) and patients of one membership."""

    def __init__(self, table: pd.DataFrame, states: tuple[str, ...]) -> None:
        self.labels = list(dict.fromkeys(table["cluster"]))
        shape = (len(self.labels), len(states) + 1, len(states))
        self.difference = table["difference"].to_numpy(dtype=float).reshape(shape)
        self.supported = table["supported"].to_numpy(dtype=bool).reshape(shape)[:, :, 0]
        n = table[["n_first", "n_second"]].to_numpy().reshape(*shape, 2)[:, -1, 0]
        self.patients = [f"n = {first:,.0f} and {second:,.0f}" for first, second in n]


def _draw_row(axes: list[Axes], maps: _Maps, states: tuple[str, ...]) -> None:
    for k, ax in enumerate(axes[:-1]):
        if k >= len(maps.labels):
            ax.set_axis_off()
            continue
        _heat_map(ax, maps.difference[k, :-1], maps.supported[k, :-1])
        _label(
            ax,
            f"{_cluster_name(maps.labels[k])}\n{maps.patients[k]}",
            states,
            states if k == 0 else [],
        )
    _heat_map(axes[-1], maps.difference[:, -1], maps.supported[:, -1])
    _label(axes[-1], "First states by cluster", states, [str(label) for label in maps.labels])


def _heat_map(ax: Axes, difference: NDArray[np.float64], supported: NDArray[np.bool_]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps[_COLOURS].with_extremes(bad=_NEVER)
    ax.imshow(np.ma.masked_invalid(difference), cmap=colours, vmin=-1, vmax=1)
    n_rows, n_columns = difference.shape
    for i in range(n_rows):
        if not supported[i] and not np.isnan(difference[i]).all():
            corner = (-0.5, i - 0.5)
            ax.add_patch(
                Rectangle(
                    corner,
                    n_columns,
                    1,
                    fill=False,
                    hatch=_LINES,
                    edgecolor=_HATCH,
                    linewidth=0,
                )
            )
        for j in range(n_columns):
            if n_columns <= _MOST_ANNOTATED and not np.isnan(difference[i, j]):
                _annotate(ax, i, j, difference[i, j], bool(supported[i]))
    ax.set_xticks(np.arange(n_columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(n_rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set_anchor("N")


def _annotate(ax: Axes, i: int, j: int, value: float, supported: bool) -> None:
    from matplotlib import colormaps

    red, green, blue, _ = colormaps[_COLOURS]((value + 1) / 2)
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    box = {"facecolor": (red, green, blue), "edgecolor": "none", "pad": 0.6}
    ax.text(
        j,
        i,
        difference_text(value),
        ha="center",
        va="center",
        fontsize=_TINY,
        color="white" if dark else "black",
        bbox=None if supported else box,
    )


def difference_text(value: float) -> str:
    """Two decimals without the leading 0, with a real minus: "−.12", ".05", "0", "1"."""
    text = f"{abs(value):.2f}"
    if text == "0.00":
        return "0"
    text = "1" if text == "1.00" else text.removeprefix("0")
    return f"−{text}" if value < 0 else text


def _label(ax: Axes, title: str, columns: Sequence[str], rows: Sequence[str]) -> None:
    ax.set_title(title, fontsize=_SMALL, pad=3)
    ax.set_xticks(range(len(columns)), columns, rotation=90, fontsize=_TINY)
    ax.set_yticks(range(len(rows)), rows, fontsize=_TINY)


def _cluster_name(label: Any) -> str:
    return label if isinstance(label, str) else f"Cluster {label}"


def _row_name(name: str, norms: pd.DataFrame, pair: str) -> str:
    chosen = norms[(norms["membership"] == name) & (norms["sites"] == pair)]
    norm, weighted = chosen["norm"].iloc[0], chosen["norm"].iloc[1]
    return f"{name[:1].upper()}{name[1:]}\nnorm {norm:.2f}, by occupancy {weighted:.3f}"


def _draw_scale(figure: Figure, ax: Axes, pair: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), cmap=_COLOURS)
    bar = figure.colorbar(scale, cax=ax, orientation="horizontal", ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label(
        f"Difference in the probability of going from row to column, {pair}", fontsize=_SMALL
    )
    bar.ax.tick_params(labelsize=_TINY, length=2, width=0.5)
    bar.outline.set_visible(False)


def _draw_key(ax: Axes, min_support: float) -> None:
    from matplotlib.patches import Patch

    hatched = Patch(facecolor="white", edgecolor=_HATCH, hatch=_LINES, linewidth=0)
    grey = Patch(facecolor=_NEVER)
    ax.legend(
        [hatched, grey],
        [f"fewer than {min_support:g} steps at a site", "never at a site, not in the norm"],
        loc="center right",
        fontsize=_TINY,
        frameon=False,
    )
    ax.set_axis_off()


def _chosen_pair(result: SiteDifferences, sites: str | None) -> str:
    known = list(dict.fromkeys(result.norms["sites"]))
    if sites is None:
        return str(known[0])
    if sites not in known:
        raise ValueError(f"sites must be one of {some(known)}, found {sites!r}.")
    return sites


def _chosen_memberships(result: SiteDifferences, names: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(result.norms["membership"]))
    if names is None:
        return [name for name in ("ensemble", "local") if name in known]
    if isinstance(names, str):
        names = [names]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"memberships must be some of {some(known)}, found {some(unknown) or 'none'}."
        )
    return list(names)
