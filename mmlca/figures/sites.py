"""The figure of `site_differences`: where the courses of a cluster differ between two sites."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import (
    SMALL,
    TEXT,
    TWO_COLUMNS,
    cell_text,
    decimal_text,
    extra_width,
    named,
    title_lines,
)
from mmlca.figures.colours import INK, text_colour
from mmlca.sequences.checks import of_type, some
from mmlca.tables.disclosure import check_min_count, few_patients, hides
from mmlca.tables.site_differences import SiteDifferences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = "PuOr_r"
_NEVER, _HATCH = "#C8C8C8", "#B0B0B0"
_LINES = "//////"
_MOST_ANNOTATED = 8
_CELL = SMALL - 0.5


def plot_site_differences(
    result: SiteDifferences,
    *,
    sites: str | None = None,
    memberships: Sequence[str] | None = None,
    min_count: int = 0,
    table: pd.DataFrame | None = None,
) -> Figure:
    """Heat maps of the differences between two sites, from −1 to 1.

    One row per membership; in it one map per cluster for the transitions (from ↓, to →) and one
    for the first states of all clusters. Above are the norms of the transitions, plain and by
    occupancy. Rows with fewer than `min_support` steps at one of the sites are hatched; rows
    never visited at one of them are grey and not in the norm.

    Parameters
    ----------
    result : SiteDifferences
        `result.differences` and `result.norms` are drawn.
    sites : str, optional
        Which pair, as in the column "sites", if there are more than two sites. Default: the
        first.
    memberships : names, optional
        Default: "ensemble" and, if there, "local".
    min_count : int
        Rows that fewer patients leave at one of the sites are grey too.
    table : DataFrame, optional
        What to draw instead of `result.shown(min_count)`.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from mmlca import Sequences, site_differences
    >>> data = Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"]])
    >>> clusters = {"MGB": [1, 1], "VA": [1, 1]}
    >>> result = site_differences({"MGB": data, "VA": data}, clusters, n_boot=10, seed=1)
    >>> figure = plot_site_differences(result)
    >>> figure.axes[0].get_title()
    'Cluster 1\\nn = 2 and 2'
    """
    import matplotlib.pyplot as plt

    of_type(result, SiteDifferences, "what site_differences returns")
    known = list(dict.fromkeys(result.norms["sites"]))
    pair = known[0] if sites is None else sites
    if pair not in known:
        raise InputError(f"sites must be one of {some(known)}, found {sites!r}.")
    names = _chosen_memberships(result, memberships)
    table = result.shown(check_min_count(min_count)) if table is None else table
    table = table[table["sites"] == pair]
    maps = {name: _Maps(table[table["membership"] == name], result.states) for name in names}
    n_columns = max(len(m.labels) for m in maps.values()) + 1
    width = max(TWO_COLUMNS, TWO_COLUMNS / 5 * n_columns)
    labels = max(map(len, result.states)) * 0.36 * SMALL / 72  # inches below each map
    of_map = (width - 1.1) / n_columns
    letters = max(12, int(72 * of_map / (0.55 * TEXT)))
    titles = {name: m.titles(letters) for name, m in maps.items()}
    height = 1.25 + len(names) * (0.4 + max(0.25, labels) + of_map)
    for row in titles.values():  # lines beyond the first two
        height += 1.25 * TEXT / 72 * max(max(title.count("\n") for title in row) - 1, 0)
    width += extra_width(result.states, 0.8)
    figure = plt.figure(figsize=(width, height), layout="constrained")
    heights = [0.2, 1] * len(names) + [0.07]
    grid = figure.add_gridspec(len(heights), n_columns, height_ratios=heights)
    for i, name in enumerate(names):
        axes = [figure.add_subplot(grid[2 * i + 1, column]) for column in range(n_columns)]
        _draw_row(axes, maps[name], titles[name], result.states)
        above = figure.add_subplot(grid[2 * i, :])
        above.set_axis_off()
        text = _row_text(name, result.norms, pair)
        look: dict[str, Any] = {"va": "bottom", "fontsize": TEXT, "color": INK}
        above.text(0, 0, text, transform=above.transAxes, **look).set_in_layout(False)
    half = (n_columns + 1) // 2
    _draw_scale(figure, figure.add_subplot(grid[-1, :half]), pair)
    weak = any((~m.supported & ~np.isnan(m.difference).all(axis=2)).any() for m in maps.values())
    grey = any(np.isnan(m.difference).any() for m in maps.values())
    _draw_key(figure.add_subplot(grid[-1, half:]), result.min_support, min_count, weak, grey)
    return figure


class _Maps:
    """Differences (K, S + 1, S), supported rows (K, S + 1) and n of one membership."""

    def __init__(self, table: pd.DataFrame, states: tuple[str, ...]) -> None:
        self.labels = list(dict.fromkeys(table["cluster"]))
        shape = (len(self.labels), len(states) + 1, len(states))
        self.difference = table["difference"].to_numpy(dtype=float).reshape(shape)
        self.supported = table["supported"].to_numpy(dtype=bool).reshape(shape)[:, :, 0]
        n = table[["n_first", "n_second"]].to_numpy(dtype=float).reshape(*shape, 2)[:, -1, 0]
        self.n = [
            "n = " + " and ".join("few" if np.isnan(value) else f"{value:,.0f}" for value in pair)
            for pair in n
        ]

    def titles(self, letters: int) -> list[str]:
        """What is above the maps, in lines of at most so many letters."""
        rows = zip(self.labels, self.n, strict=True)
        texts = [[named(label, "Cluster"), n] for label, n in rows]
        texts.append(["First states by cluster"])
        return ["\n".join(title_lines(line, letters) for line in text) for text in texts]


def _draw_row(
    axes: list[Axes], maps: _Maps, titles: Sequence[str], states: tuple[str, ...]
) -> None:
    for k, ax in enumerate(axes[:-1]):
        if k >= len(maps.labels):
            ax.set_axis_off()
            continue
        _heat_map(ax, maps.difference[k, :-1], maps.supported[k, :-1])
        _label(ax, titles[k], states, states if k == 0 else [])
    _heat_map(axes[-1], maps.difference[:, -1], maps.supported[:, -1])
    numbers = [str(k + 1) for k in range(len(maps.labels))]  # in the order of the maps
    _label(axes[-1], titles[-1], states, numbers)


def _heat_map(ax: Axes, difference: NDArray[np.float64], supported: NDArray[np.bool_]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps[_COLOURS].with_extremes(bad=_NEVER)
    n_rows, n_columns = difference.shape
    # maps take the whole width of their column: numbers would not fit into squares
    ax.imshow(np.ma.masked_invalid(difference), cmap=colours, vmin=-1, vmax=1, aspect="auto")
    for i in range(n_rows):
        if not supported[i] and not np.isnan(difference[i]).all():
            look: dict[str, Any] = {"hatch": _LINES, "edgecolor": _HATCH, "linewidth": 0}
            ax.add_patch(Rectangle((-0.5, i - 0.5), n_columns, 1, fill=False, **look))
        for j in range(n_columns):
            if n_columns <= _MOST_ANNOTATED and not np.isnan(difference[i, j]):
                shade = colours((difference[i, j] + 1) / 2)
                box = {"facecolor": shade, "edgecolor": "none", "pad": 0.6}
                over: dict[str, Any] = {} if supported[i] else {"bbox": box}
                text = decimal_text(difference[i, j])
                cell_text(ax, j, i, text, text_colour(shade), _CELL, **over)
    ax.vlines(np.arange(1, n_columns) - 0.5, -0.5, n_rows - 0.5, color="white", linewidth=0.8)
    ax.hlines(np.arange(1, n_rows) - 0.5, -0.5, n_columns - 0.5, color="white", linewidth=0.8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_anchor("N")


def _label(ax: Axes, title: str, columns: Sequence[str], rows: Sequence[str]) -> None:
    ax.set_title(title, fontsize=TEXT, pad=3)
    turn = 45 if max(map(len, columns), default=0) > 3 else 0
    align = "right" if turn else "center"
    ax.set_xticks(
        range(len(columns)), columns, rotation=turn, ha=align, rotation_mode="anchor",
        fontsize=SMALL,
    )  # fmt: skip
    ax.set_yticks(range(len(rows)), rows, fontsize=SMALL)


def _row_text(name: str, norms: pd.DataFrame, pair: str) -> str:
    """The membership, and on a line each the plain norm and that by occupancy."""
    rows = norms[(norms["membership"] == name) & (norms["sites"] == pair)].to_dict("records")
    title = f"{name[:1].upper()}{name[1:]}"
    return "\n".join(
        [
            _norm_text(f"{title}: norm of the transitions", rows[0], 2),
            _norm_text("by occupancy", rows[1], 3),
        ]
    )


def _norm_text(label: str, row: dict[Hashable, Any], digits: int) -> str:
    norm, debiased = (f"{row[column]:.{digits}f}" for column in ("norm", "debiased"))
    if np.isnan(row["debiased"]):
        return f"{label} {norm}"
    return f"{label} {norm}, without what sampling adds {debiased}"


def _draw_scale(figure: Figure, ax: Axes, pair: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), cmap=_COLOURS)
    bar = figure.colorbar(scale, cax=ax, orientation="horizontal", ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label(
        f"Difference in the probability of going from row to column, {pair}", fontsize=TEXT
    )
    bar.ax.tick_params(labelsize=SMALL, length=2, width=0.5)
    bar.outline.set_visible(False)


def _draw_key(ax: Axes, min_support: float, min_count: int, weak: bool, grey: bool) -> None:
    """What hatched and grey cells are, as far as there are any."""
    from matplotlib.patches import Patch

    key: dict[str, Any] = {}
    if weak:
        text = f"fewer than {min_support:g} steps at a site"
        key[text] = Patch(facecolor="white", edgecolor=_HATCH, hatch=_LINES, linewidth=0)
    if grey:
        few = f";\nor {few_patients(min_count)}" if hides(min_count) else ""
        key["nobody at a site, not in the norm" + few] = Patch(facecolor=_NEVER)
    if key:
        look: dict[str, Any] = {"loc": "upper right", "fontsize": SMALL, "frameon": False}
        # the layout would make all maps narrower to have room for wide words
        ax.legend(key.values(), key.keys(), borderaxespad=0, **look).set_in_layout(False)
    ax.set_axis_off()


def _chosen_memberships(result: SiteDifferences, names: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(result.norms["membership"]))
    if names is None:
        return [name for name in ("ensemble", "local") if name in known]
    if isinstance(names, str):
        names = [names]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(
            f"memberships must be some of {some(known)}, found {some(unknown) or 'none'}."
        )
    return list(names)
