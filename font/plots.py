"""Figures of an ensemble, each with the table it draws.

Every function takes `ax=None` and returns the Axes; in an Axes of the caller the legend stays
inside. Letters are as large as in mmlca's figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.checks import of_type
from font.ensemble import Ensemble
from font.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEXT, _SMALL = 7.0, 6.0  # points
INK, PALE, ACCENT = "#333333", "#BBBBBB", "#D55E00"


# --- tables -----------------------------------------------------------------------------------


def weight_table(ensemble: Ensemble) -> pd.DataFrame:
    """The weights used and the centred ones, and both as a share of the largest."""
    _fitted(ensemble)
    table = pd.DataFrame({"weight": ensemble.weights_, "centred": ensemble.centred_weights_})
    for column in ("weight", "centred"):
        table[f"{column} share"] = table[column] / table[column].max()
    return table


def agreement_table(ensemble: Ensemble) -> pd.DataFrame:
    """The agreement of every two models: model, other, agreement and, if known, centred."""
    _fitted(ensemble)
    plain = ensemble.agreement_
    centred = getattr(ensemble, "centred_agreement_", None)
    rows = [
        {"model": a, "other": b, "agreement": plain.iloc[i, j]}
        | ({} if centred is None else {"centred": centred.iloc[i, j]})
        for i, a in enumerate(plain.index)
        for j, b in enumerate(plain.columns)
        if i < j
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["model", "other", "agreement"])


def _fitted(ensemble: Any) -> None:
    of_type(ensemble, Ensemble, "a fitted Ensemble")
    if not hasattr(ensemble, "weights_"):
        raise InputError("the ensemble is not fitted; call its fit first.")


# --- figures ----------------------------------------------------------------------------------


def plot_weights(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """Weights as a share of the largest: those used (dots) and the centred ones (rings)."""
    table = weight_table(ensemble)
    place = _legend_place(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    ax = _axes(ax, (3.5, 0.9 + 0.16 * len(table)))
    y = np.arange(len(table))
    ax.hlines(y, table["centred share"], table["weight share"], color=PALE, lw=1.2, zorder=1)
    ax.plot(table["centred share"], y, "o", mfc="white", mec=ACCENT, ms=5, label="centred")
    ax.plot(table["weight share"], y, "o", color=INK, ms=3, label=f"used ({ensemble.weights})")
    ax.set_yticks(y, [str(name) for name in table.index])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.03, 1.05)
    ax.set_xlabel("Weight as a share of the largest", fontsize=_TEXT)
    ax.legend(ncols=2, **place)
    return _plain(ax)


def plot_agreement(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """The agreement of every two models as a heat map from 0 to 1.

    Above the diagonal is `agreement_`, which the weights of the paper rest on and which is never
    near 0; below it `centred_agreement_`, which is near 0 for models that have nothing in common.
    An ensemble that was read from a file has no centred one: both halves are `agreement_` then.
    """
    _fitted(ensemble)
    values = ensemble.agreement_.to_numpy(dtype=float, copy=True)
    both = hasattr(ensemble, "centred_agreement_")
    n = len(values)
    if both:
        below = np.tril_indices(n, -1)
        values[below] = ensemble.centred_agreement_.to_numpy()[below]
    side = 1.2 + 0.26 * min(n, 24)
    ax = _axes(ax, (max(side + 0.6, 3.0), max(side, 2.2)))
    np.fill_diagonal(values, np.nan)  # a model agrees with itself
    image = ax.imshow(np.ma.masked_invalid(values), cmap="cividis", vmin=0, vmax=1)
    if n <= 12:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > 0.55 else "white"
                ax.text(
                    j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=_SMALL
                )
    names = [str(name) for name in ensemble.agreement_.index]
    ax.set_xticks(range(n), names, rotation=90)
    ax.set_yticks(range(n), names)
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.8)
    bar.set_label("Agreement (cosine)", fontsize=_SMALL)
    bar.ax.tick_params(labelsize=_SMALL, length=2, width=0.5)
    bar.outline.set_visible(False)
    if both:
        ax.set_title("Above the diagonal: plain; below: centred", fontsize=_TEXT)
    return _bare(ax)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _legend_place(ax: Axes | None, **outside: Any) -> dict[str, Any]:
    """Where the legend goes: outside the panel, but inside where the Axes is the caller's."""
    place = {"loc": "best"} if ax is not None else {"frameon": False, **outside}
    return {"fontsize": _SMALL, **place}


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)
    ax.tick_params(labelsize=_SMALL, length=2, width=0.5)
    return ax


def _bare(ax: Axes) -> Axes:
    """Without frame and ticks, for maps."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=_SMALL)
    return ax
