"""Figure of the probability of leaving a state, by time in state and period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.figures.canvas import MARKERS, SMALL, TEXT, legend_over, new_axes
from mmlca.figures.colours import INK, group_colour
from mmlca.sequences.checks import some

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", "--", ":", "-.")


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
            f"the model's chains are {form.title}, so that the probability of leaving a state is "
            "the same at any time; fit them with stays or periods."
        )
    if state is None:
        state = states[int((model.params_.weights @ model.params_.initial).argmax())]
    if state not in states:
        raise InputError(f"the model has no state {state!r}; it has {some(states)}.")
    table = _with_limits(model.leaving_[model.leaving_["state"] == state], errors, model)
    by = "stay" if form.stays else "period"
    labels = form.bins if form.stays else form.period_labels
    lines = form.period_labels if form.stays else [""]
    own = ax is None
    ax = new_axes(ax)
    n_classes = model.params_.n_classes
    for k in range(n_classes):
        for number, period in enumerate(lines):
            rows = table[table["class"] == k + 1]
            rows = rows[rows["period"] == period] if form.stays else rows
            at = rows[by].map(labels.index).to_numpy() + 0.12 * (k - (n_classes - 1) / 2)
            ax.errorbar(
                at,
                rows["leaving"],
                np.abs(rows[["low", "high"]].to_numpy().T - rows["leaving"].to_numpy()),
                color=group_colour(k),
                marker=MARKERS[k % len(MARKERS)],
                linestyle=_DASHES[number % len(_DASHES)],
                linewidth=1.2,
                markersize=4,
                elinewidth=0.8,
                label=f"Class {k + 1}{f', windows {period}' if period else ''}",
            )
    ax.set_xticks(range(len(labels)), labels)
    ax.set_xlim(-0.5, len(labels) - 0.5)
    ax.set_ylim(bottom=0)
    what = f"Windows in {state} so far" if form.stays else "Window since the start"
    ax.set_xlabel(what, fontsize=TEXT, color=INK)
    ax.set_ylabel(f"Probability of leaving {state}", fontsize=TEXT, color=INK)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    legend_over(ax, own, fontsize=SMALL)
    return ax


def _with_limits(table: pd.DataFrame, errors: pd.DataFrame | None, model: Any) -> pd.DataFrame:
    """The rows with their intervals; NaN where none are known."""
    if errors is None:
        errors = model._own_intervals()
    if errors is None:
        return table.assign(low=np.nan, high=np.nan)
    named = errors[errors["parameter"] == "leave"].rename(columns={"from": "state"})
    keys = ["class", "state", "stay", "period"]
    return table.merge(named[[*keys, "low", "high"]], on=keys, how="left")
