"""Figure of survival by cluster, with numbers at risk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import SMALL, TEXT, legend_over, named, new_axes
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import counted, of_type
from mmlca.tables.disclosure import HIDDEN, check_min_count, hides
from mmlca.tables.survival import Survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))


def plot_survival(
    result: Survival,
    *,
    unit: str = "",
    min_count: int = 0,
    hidden: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Share without the event by cluster since the landmark. Draws `result.curves`.

    With a `min_count` the curves are those of `result.shown(min_count)`: dots are the values at
    the times shown, and straight lines join them. The numbers below are the patients at risk then.

    Parameters
    ----------
    result : Survival
        From `survival_by_cluster`.
    unit : str
        Of time, for the axis: "years".
    min_count : see `Survival.shown`
    hidden : bool
        Hide small numbers, as `result.shown(min_count)` does. False: the result is without them.
    ax : Axes, optional

    Examples
    --------
    >>> import matplotlib; matplotlib.use("Agg")
    >>> from mmlca import survival_by_cluster
    >>> time, event, group = [5, 6, 9, 8, 5, 7], [1, 1, 0, 1, 0, 1], [1, 1, 1, 2, 2, 2]
    >>> plot_survival(survival_by_cluster(time, event, group, window=4)).get_ylabel()
    'Share without the event (%)'
    """
    of_type(result, Survival, "what survival_by_cluster returns")
    check_min_count(min_count)
    curves = (result.shown(min_count) if hidden else result).curves
    every = list(result.excluded["group"])
    drawn = [group for group in every if (curves["group"] == group).any()]
    if not drawn:
        raise InputError(
            f"there is nothing to draw: every group has fewer than min_count = {min_count} events "
            "or patients."
        )
    own = ax is None
    ax = new_axes(ax, height=2.7 + 0.14 * len(drawn))
    end = float(curves["time"].max())
    for group in drawn:
        number = every.index(group)
        rows = curves[curves["group"] == group]
        _draw(ax, rows, named(group, "Group"), number, steps=not hides(min_count))
    ax.set_xlim(0, end * 1.02)
    ax.set_ylim(0, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    ax.set_ylabel("Share without the event (%)", fontsize=TEXT)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    legend_over(ax, own, handlelength=3)
    label = f"Time since the landmark{f' ({unit})' if unit else ''}"
    note = ""
    if len(drawn) < len(every):
        few = counted(len(every) - len(drawn), "group", "groups")
        note = f"\n{few} of fewer than {min_count} events not shown"
    # empty lines of the label keep room for the numbers, which are some points below the axis
    ax.set_xlabel(label + note + "\n" * (len(drawn) + 2), fontsize=TEXT)
    first = 39 if note else 30
    _write(ax, 0, first, "At risk", INK)
    for line, group in enumerate(drawn, start=1):
        rows, number = curves[curves["group"] == group], every.index(group)
        times, at_risk = _at_risk(rows, None if hides(min_count) else ax.get_xticks(), end)
        for time, n in zip(times, at_risk, strict=True):
            text = HIDDEN if np.isnan(n) else f"{n:,.0f}"
            _write(ax, time, first + 8 * line, text, group_colour(number))
        _draw_sample(ax, number, first + 8 * line)
    return ax


def _draw(ax: Axes, rows: pd.DataFrame, name: str, number: int, steps: bool) -> None:
    colour, line = group_colour(number), _LINES[number % len(_LINES)]
    time = np.append(0, rows["time"])
    style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.3}
    band: dict[str, Any] = {"color": colour, "alpha": 0.13, "linewidth": 0}
    share, low, high = (
        np.append(1.0, rows[column].fillna(rows["survival"]))
        for column in ("survival", "low", "high")
    )
    if steps:
        ax.step(time, share, where="post", label=name, **style)
        ax.fill_between(time, low, high, step="post", **band)
    else:
        ax.plot(time, share, marker="o", markersize=2.6, label=name, **style)
        ax.fill_between(time, low, high, **band)


def _at_risk(
    rows: pd.DataFrame, ticks: NDArray[np.float64] | None, end: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and how many are at risk then: at the ticks of the axis, where the table has all.

    Otherwise they are written at the start and after each time shown, as far as they do not touch.
    """
    time, n = (rows[column].to_numpy(dtype=float) for column in ("time", "at_risk"))
    if ticks is not None:
        times = ticks[(ticks >= 0) & (ticks <= 1.02 * end)]
        return times, np.append(n, 0.0)[np.searchsorted(time, times)]
    starts, apart = np.append(0.0, time[:-1]), [0]
    for i, start in enumerate(starts):
        if start - starts[apart[-1]] >= 0.14 * end:
            apart.append(i)
    return starts[apart], n[apart]


def _draw_sample(ax: Axes, number: int, below: float) -> None:
    """A piece of a group's line before its numbers: colours alone are lost in print."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    corner: Any = ax.transAxes
    sample = PathPatch(
        Path([(-34 / 72, -below / 72), (-18 / 72, -below / 72)]), fill=False, clip_on=False,
        edgecolor=group_colour(number), linestyle=_LINES[number % len(_LINES)], linewidth=1.3,
        transform=figure.dpi_scale_trans + ScaledTranslation(0, 0, corner),
    )  # fmt: skip
    ax.add_patch(sample)


def _write(ax: Axes, time: float, below: float, text: str, colour: str) -> None:
    """A text some points below the axis at a time."""
    ax.annotate(
        text,
        (time, 0),
        (0, -below),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        fontsize=SMALL,
        color=colour,
        ha="center",
        va="center",
        annotation_clip=False,
    )
