"""Figures of estimates with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.figures.canvas import SMALL, TEXT, named, new_axes, ratio_axis
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import of_type, some

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 60
_LABELS = {
    "weight": "Share of patients",
    "initial": "Probability of the first state",
    "transition": "Probability of the next state",
    "time in state": "Windows in the state",
    "coefficient": "Log-odds ratio against class 1",
}
_SHARES = ("weight", "initial", "transition")
_ROWS = {"initial": "state", "transition": "from → to", "time in state": "state"}


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
        Which of the table's parameters; needed where it has several.
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
    shown = table[table["term"] != "(Intercept)"] if odds else _of_parameter(table, parameter)
    if classes is not None:
        shown = shown[shown["class"].isin(list(classes))]
    shown = shown[np.isfinite(shown[columns]).all(axis=1)].reset_index(drop=True)
    if not 0 < len(shown) <= _MOST:
        raise InputError(
            f"{len(shown):,} intervals cannot be drawn, at most {_MOST} can and at least one is "
            "needed; choose other classes, or rows of the table."
        )
    names = [_name(row) for _, row in shown.iterrows()]
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
    elif _only(shown) in _SHARES:  # from 0, and not beyond 1, where there is nothing
        highest = float(shown[columns].to_numpy().max())
        ax.set_xlim(-0.02 * min(highest, 1), min(1.04 * highest, 1.02))
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_yticks(range(len(shown)), names, fontsize=SMALL)
    what = "term" if "term" in shown.columns else _ROWS.get(_only(shown), "")
    ax.set_ylabel(f"Class: {what}" if what else "", fontsize=TEXT, color=INK)
    label = "Odds ratio against class 1" if odds else _LABELS.get(_only(shown), "Estimate")
    ax.set_xlabel(label, fontsize=TEXT, color=INK)
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    return ax


def _of_parameter(table: pd.DataFrame, parameter: str | None) -> pd.DataFrame:
    known = table["parameter"].unique().tolist() if "parameter" in table.columns else []
    if parameter is None and len(known) > 1:
        raise InputError(
            f"the table has several parameters, {some(known)}; say which with parameter=."
        )
    if parameter is not None and parameter not in known:
        raise InputError(f"parameter must be one of {some(known)}, found {parameter!r}.")
    return table if parameter is None else table[table["parameter"] == parameter]


def _only(table: pd.DataFrame) -> str:
    return str(table["parameter"].iloc[0]) if "parameter" in table.columns else ""


def _name(row: pd.Series) -> str:
    """Such as "2: TNFi → JAK", the class first."""
    if "term" in row.index:
        return f"{row['class']}: {row['term']}"
    parts = [str(row[name]) for name in ("from", "to") if name in row.index and row[name] != ""]
    return f"{row['class']}: {' → '.join(parts)}" if parts else named(row["class"], "Class")
