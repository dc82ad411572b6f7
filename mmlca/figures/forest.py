"""Forest plots: estimates with their intervals, and effects by class and site."""

from __future__ import annotations

from collections.abc import Iterable
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
    extra_width,
    grid_shape,
    legend_columns,
    legend_of_all,
    named,
    new_axes,
    panel_grid,
    ratio_axis,
    style,
    title_lines,
)
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import need_columns, of_type, some

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_INTERVALS = 60
_LABELS = {
    "weight": "Share of patients",
    "initial": "Probability of the first state",
    "transition": "Probability of the next state",
    "leave": "Probability of leaving the state",
    "destination": "Probability of the next state of those who leave",
    "time in state": "Windows in the state",
    "coefficient": "Log-odds ratio against class 1",
}
_FIXED, _RANDOM = "all sites, fixed", "all sites, random"
_SHARES = ("weight", "initial", "transition", "leave", "destination")
_ROWS = {
    "initial": "state",
    "transition": "from → to",
    "leave": "state, windows in it, windows since the start",
    "destination": "from → to",
    "time in state": "state",
}
_SITES = MARKERS.replace("D", "")  # the diamond is all sites together
_MOST_IN_A_ROW = 4
_NEEDED = ["class", "term", "estimate", "low", "high"]


def plot_intervals(
    table: pd.DataFrame,
    parameter: str | None = None,
    *,
    classes: Iterable[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Estimates and their intervals, one line per number, coloured by class.

    Estimates on the boundary are drawn hollow. Effects of covariates are odds ratios on a
    logarithmic axis, with a line at 1; intercepts are left out.

    Parameters
    ----------
    table : DataFrame
        From `MixtureMarkov.standard_errors`, `MixtureMarkov.coefficient_table` or
        `bootstrap(…).intervals`.
    parameter : "weight", "initial", "transition", "time in state" or "coefficient", optional
        Which of the table's parameters; needed where it has several. With `stays` or `periods`
        "leave" and "destination" replace "transition".
    classes : numbers from 1, optional
        Only these classes.
    ax : Axes, optional
    """
    source = "a table of standard_errors, coefficient_table or bootstrap"
    of_type(table, pd.DataFrame, source)
    odds = "odds_ratio" in table.columns
    columns = ["odds_ratio", "or_low", "or_high"] if odds else ["estimate", "low", "high"]
    absent = [name for name in ["class", *columns] if name not in table.columns]
    if absent:
        raise InputError(
            f"the table lacks the columns {some(absent)}; give one of standard_errors, "
            "coefficient_table or bootstrap."
        )
    shown = table[table["term"] != "(Intercept)"] if odds else _choose_parameter(table, parameter)
    if classes is not None:
        shown = shown[shown["class"].isin(list(classes))]
    shown = shown[np.isfinite(shown[columns]).all(axis=1)].reset_index(drop=True)
    if not 0 < len(shown) <= _MOST_INTERVALS:
        raise InputError(
            f"found {len(shown):,} intervals to draw, expected 1 to {_MOST_INTERVALS}; choose "
            "other classes, or rows of the table."
        )
    names = [_row_name(row) for _, row in shown.iterrows()]
    ax = new_axes(ax, height=0.9 + 0.16 * len(shown), names=names)
    hollow = shown["boundary"] if "boundary" in shown.columns else np.zeros(len(shown), dtype=bool)
    for i, (k, is_hollow) in enumerate(zip(shown["class"], hollow, strict=True)):
        estimate, low, high = shown.loc[i, columns]
        colour = group_colour(int(k) - 1)
        ax.hlines(i, low, high, color=colour, linewidth=1.2)
        ax.plot(
            estimate, i, "o", color=colour, markersize=3.5,
            markerfacecolor="white" if is_hollow else colour,
        )  # fmt: skip
    if odds:
        ax.set_xscale("log")
        ax.axvline(1, color=INK, linewidth=0.6, zorder=0)
        ratio_axis(ax)
    elif _single_parameter(shown) in _SHARES:  # from 0, and not beyond 1, where there is nothing
        highest = float(shown[columns].to_numpy().max())
        ax.set_xlim(-0.02 * min(highest, 1), min(1.04 * highest, 1.02))
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_yticks(range(len(shown)), names, fontsize=SMALL)
    what = "term" if "term" in shown.columns else _ROWS.get(_single_parameter(shown), "")
    ax.set_ylabel(f"Class: {what}" if what else "", fontsize=TEXT, color=INK)
    label = (
        "Odds ratio against class 1" if odds else _LABELS.get(_single_parameter(shown), "Estimate")
    )
    ax.set_xlabel(label, fontsize=TEXT, color=INK)
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    return ax


def _choose_parameter(table: pd.DataFrame, parameter: str | None) -> pd.DataFrame:
    known = table["parameter"].unique().tolist() if "parameter" in table.columns else []
    if parameter is None and len(known) > 1:
        raise InputError(
            f"the table has several parameters, {some(known)}; say which with parameter=."
        )
    if parameter is not None and parameter not in known:
        raise InputError(f"parameter must be one of {some(known)}, found {parameter!r}.")
    return table if parameter is None else table[table["parameter"] == parameter]


def _single_parameter(table: pd.DataFrame) -> str:
    return str(table["parameter"].iloc[0]) if "parameter" in table.columns else ""


def _row_name(row: pd.Series) -> str:
    """Such as "2: TNFi → JAK", the class first."""
    if "term" in row.index:
        return f"{row['class']}: {row['term']}"
    parts = [str(row[name]) for name in ("from", "to") if name in row.index and row[name] != ""]
    if not parts:
        return named(row["class"], "Class")
    when = [row[name] for name in ("stay", "period") if name in row.index and row[name] != ""]
    return f"{row['class']}: {', '.join([' → '.join(parts), *when])}"


def plot_effects(effects: pd.DataFrame, pooled: pd.DataFrame | None = None) -> Figure:
    """Effects with their intervals, one panel per class. Draws the tables that it is given.

    Parameters
    ----------
    effects : DataFrame
        class, term, estimate, low, high, and site where there are several; from
        `mmlca.three_step`. The intercept is not drawn, nor what is missing.
    pooled : DataFrame, optional
        From `mmlca.tables.pooling.inverse_variance`: drawn as diamonds, open for random effects.

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
        series.append((_FIXED, pooled))
        if "random" in pooled:
            random = {c: pooled[f"random_{c}"] for c in ("low", "high")}
            series.append((_RANDOM, pooled.assign(estimate=pooled["random"], **random)))
    names = [str(site) for site, _ in series if site is not None]
    width = (ONE_COLUMN if len(classes) == 1 else TWO_COLUMNS) + extra_width(terms)
    n_lines = -(-len(names) // legend_columns(width, names)) if names else 0
    high = 0.5 + 0.16 * len(terms) * (len(series) + 0.7)
    figure, panels = panel_grid(
        len(classes),
        _MOST_IN_A_ROW,
        lambda n_rows: (width, 0.35 + 0.13 * n_lines + n_rows * high),
        sharey=True,
    )
    n_columns = grid_shape(len(classes), _MOST_IN_A_ROW)[1]
    wide = figure.bbox.width / figure.dpi
    letters = max(12, int(72 * (wide - 1.2 - extra_width(terms)) / n_columns / (0.62 * TEXT)))
    for ax, name in zip(panels, classes, strict=True):
        style(ax)
        ax.axvline(0, color=INK, linewidth=0.6)
        for number, (site, table) in enumerate(series):
            mine = table[table["class"] == name].set_index("term").reindex(terms)
            at = np.arange(len(terms)) + (number - (len(series) - 1) / 2) * 0.8 / len(series)
            whole = site in (_FIXED, _RANDOM)
            colour = INK if whole else group_colour(number)
            ax.hlines(at, mine["low"], mine["high"], color=colour, linewidth=1.1)
            marker = "D" if whole else _SITES[number % len(_SITES)]
            label = None if site is None else str(site)
            ax.plot(
                mine["estimate"], at, marker, color=colour, markersize=3.4, label=label, zorder=3,
                markerfacecolor="white" if site == _RANDOM else colour,
            )  # fmt: skip
        title = f"{named(name, 'Class')} against the first"
        ax.set_title(title_lines(title, letters), fontsize=TEXT, color=INK)
        ax.set_yticks(range(len(terms)), terms)
        ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    panels[0].set_ylim(len(terms) - 0.5, -0.5)
    legend_of_all(figure, panels)
    figure.supxlabel("Log-odds ratio", fontsize=TEXT)
    return figure
