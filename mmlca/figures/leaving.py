"""Figures of the probability of leaving a state, by time in state and period."""

from __future__ import annotations

from collections.abc import Mapping
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
    legend_of_all,
    legend_over,
    new_axes,
    panel_grid,
    style,
    title_lines,
)
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import some

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")
_MOST_IN_A_ROW = 3


def plot_leaving(
    model: Any,
    state: str | None = None,
    *,
    errors: pd.DataFrame | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The probability of leaving a state in the next window, by time in state, one line per class.

    It reads like a hazard curve. With periods each has its own dashes; without time in state the
    periods are on the axis. Draws `model.leaving_`.

    Parameters
    ----------
    model : MixtureMarkov, fitted with `stays` or `periods`
    state : str, optional
        Default: the state in which most patients begin.
    errors : DataFrame, optional
        What `model.standard_errors(sequences)` returned, for the intervals. Default: those for the
        patients of the fit, which a model from a file no longer holds.
    ax : Axes, optional
    """
    if not hasattr(model, "leaving_"):
        raise TypeError(f"plot_leaving draws a fitted model, found {type(model).__name__}.")
    form, states = model.params_.form, list(model.states_)
    if form.n_bins == form.n_periods == 1:
        raise InputError(
            "the model's chains are plain, so that the probability of leaving a state is the same "
            "at any time; fit them with stays or periods."
        )
    if state is None:
        state = states[int((model.params_.weights @ model.params_.initial).argmax())]
    if state not in states:
        raise InputError(f"the model has no state {state!r}; it has {some(states)}.")
    table = _with_limits(model.leaving_[model.leaving_["state"] == state], errors, model)
    own = ax is None
    ax = new_axes(ax)
    _draw(ax, table, {k: f"Class {k}" for k in range(1, model.params_.n_classes + 1)})
    what = f"Windows in {state} so far" if form.stays else "Window since the start"
    ax.set_xlabel(what, fontsize=TEXT, color=INK)
    ax.set_ylabel(f"Probability of leaving {state}", fontsize=TEXT, color=INK)
    legend_over(ax, own, fontsize=SMALL)
    return ax


def plot_leaving_table(
    errors: pd.DataFrame, *, names: Mapping[int, str], windows: str = "windows"
) -> Figure:
    """The same from a table of estimates alone, with a panel for each state.

    Parameters
    ----------
    errors : DataFrame
        As `MixtureMarkov.standard_errors` returns it, with `stay` and `period`; values may be
        missing. States that have none are left out.
    names : {class: name}
    windows : str
        What windows are called, in the plural.
    """
    table = errors[errors["parameter"] == "leave"]
    table = table.rename(columns={"from": "state", "estimate": "leaving"})
    shown = table.groupby("state", sort=False)["leaving"].transform(lambda x: x.notna().any())
    if not shown.any():
        raise ValueError("none of the probabilities of leaving may be shown")
    table = table[shown]
    states = list(dict.fromkeys(table["state"]))
    wide = ONE_COLUMN if len(states) == 1 else TWO_COLUMNS
    figure, panels = panel_grid(
        len(states), _MOST_IN_A_ROW, lambda n_rows: (wide, n_rows * 2.0 + 0.7)
    )
    for ax, state in zip(panels, states, strict=True):
        style(ax)
        _draw(ax, table[table["state"] == state], names)
        ax.set_title(title_lines(state, 26), fontsize=TEXT, color=INK)
        if begins_row(ax):
            ax.set_ylabel("Probability of leaving", fontsize=TEXT)
    top = max(ax.get_ylim()[1] for ax in panels)
    for ax in panels:
        ax.set_ylim(0, top)
    legend_of_all(figure, panels, ncols=3)
    by_stay = (table["stay"] != "").any()
    what = "in the state so far" if by_stay else "since the start"
    figure.supxlabel(f"{windows.capitalize()} {what}", fontsize=TEXT)
    return figure


def _draw(ax: Axes, table: pd.DataFrame, names: Mapping[int, str]) -> None:
    """The lines of one state: `class`, `stay`, `period`, `leaving`, `low` and `high`."""
    stays, periods = (list(dict.fromkeys(table[name])) for name in ("stay", "period"))
    by, lines = ("stay", periods) if len(stays) > 1 else ("period", [None])
    labels = stays if by == "stay" else periods
    for i, (k, name) in enumerate(names.items()):
        for number, period in enumerate(lines):
            rows = table[table["class"] == k]
            rows = rows if period is None else rows[rows["period"] == period]
            rows = rows[rows["leaving"].notna()]
            if not len(rows):
                continue
            at = rows[by].map(labels.index).to_numpy() + 0.12 * (i - (len(names) - 1) / 2)
            ax.errorbar(
                at,
                rows["leaving"],
                np.abs(rows[["low", "high"]].to_numpy().T - rows["leaving"].to_numpy()),
                color=group_colour(i),
                marker=MARKERS[i % len(MARKERS)],
                linestyle=_DASHES[number % len(_DASHES)],
                linewidth=1.2,
                markersize=4,
                elinewidth=0.8,
                label=f"{name}, windows {period}" if period else name,
            )
    ax.set_xticks(range(len(labels)), labels)
    ax.set_xlim(-0.5, len(labels) - 0.5)
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)


def _with_limits(table: pd.DataFrame, errors: pd.DataFrame | None, model: Any) -> pd.DataFrame:
    """The rows with their intervals; NaN where none are known."""
    if errors is None:
        errors = model._own_intervals()
    if errors is None:
        return table.assign(low=np.nan, high=np.nan)
    named = errors[errors["parameter"] == "leave"].rename(columns={"from": "state"})
    keys = ["class", "state", "stay", "period"]
    return table.merge(named[[*keys, "low", "high"]], on=keys, how="left")
