"""Figures of an ensemble, each with the table it draws.

Every function takes `ax=None` and returns the Axes; in an Axes of the caller the legend stays
inside. Clusters have the same colour in all. The tables number classes and clusters from 0, as
arrays do; the figures number them from 1. Letters are as large as in mmlca's figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.checks import of_type, whole_number
from font.ensemble import Ensemble
from font.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEXT, _SMALL = 7.0, 6.0  # points
# The colours are those of the groups in mmlca's figures: Tol's, which people with any kind of
# colour vision can distinguish.
INK, PALE, GRID, ACCENT = "#333333", "#BBBBBB", "#E6E6E6", "#D55E00"
CLUSTER_COLOURS = (
    *("#332288", "#999933", "#882255", "#33BBEE", "#661100", "#777777"),
    *("#DDCC77", "#117733", "#AA4499", "#44AA99", "#6699CC", "#CC6677"),
)


def cluster_colour(cluster: int) -> str:
    """The colour of a cluster (0 … K − 1); repeated after twelve."""
    return CLUSTER_COLOURS[cluster % len(CLUSTER_COLOURS)]


def text_on(colour: str) -> str:
    """Black or white, whichever can be read on the colour, by its luminance."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "white"


# --- tables ------------------------------------------------------------------------------


def weight_table(ensemble: Ensemble) -> pd.DataFrame:
    """The weights used and the centred ones, and both as a share of the largest."""
    _fitted(ensemble)
    table = pd.DataFrame({"weight": ensemble.weights_, "centred": ensemble.centred_weights_})
    for column in ("weight", "centred"):
        table[f"{column} share"] = table[column] / table[column].max()
    return table


def spectrum_table(ensemble: Ensemble, top: int = 12) -> pd.DataFrame:
    """Leading eigenvalues of −HD̃H, their share of the largest, and whether they count."""
    _fitted(ensemble)
    values = ensemble.spectrum_.head(whole_number(top, 1, "top"))
    share = values / values.iloc[0]
    counted = np.arange(1, len(values) + 1) < ensemble.n_clusters_choice_.n_clusters
    return pd.DataFrame({"eigenvalue": values, "share": share, "counted": counted})


def cluster_size_table(ensemble: Ensemble) -> pd.DataFrame:
    """Patients and share of each cluster at each site: site, cluster, n, share."""
    _fitted(ensemble)
    sizes = ensemble.cluster_sizes_
    total = sizes.sum(axis=0)
    rows = [
        (site, cluster, n, n / total[site] if total[site] else np.nan)
        for site in sizes.columns
        for cluster, n in sizes[site].items()
    ]
    return pd.DataFrame(rows, columns=["site", "cluster", "n", "share"])


def pattern_table(ensemble: Ensemble, top: int | None = 20) -> pd.DataFrame:
    """Which labels make which cluster: the most frequent patterns.

    One column per model, then `cluster`, `n` patients and `share`; sorted by cluster and size.
    """
    _fitted(ensemble)
    if not hasattr(ensemble, "patterns_"):
        raise InputError(
            "the ensemble file carries no counts of patterns; use the ensemble as fitted at the "
            "centre."
        )
    patterns = ensemble.patterns_
    n = patterns.counts.sum(axis=1)
    table = pd.DataFrame(patterns.patterns, columns=pd.Index(list(patterns.models)))
    extra = pd.DataFrame({"cluster": ensemble.clusters_, "n": n, "share": n / n.sum()})
    table = pd.concat([table, extra], axis=1)
    order = np.lexsort([np.arange(len(n)), -n])
    if top is not None:
        order = order[: whole_number(top, 1, "top, unless None,")]
    order = order[np.argsort(ensemble.clusters_[order], kind="stable")]
    return table.iloc[order].reset_index(drop=True)


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


# --- figures -----------------------------------------------------------------------------


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


def plot_spectrum(ensemble: Ensemble, ax: Axes | None = None, top: int = 12) -> Axes:
    """Leading eigenvalues as a share of the largest, and the threshold of a tenth."""
    table = spectrum_table(ensemble, top)
    ax = _axes(ax, (3.5, 2.4))
    colours = [INK if counted else PALE for counted in table["counted"]]
    ax.bar(table.index, table["share"], color=colours, width=0.7)
    ax.axhline(0.1, color=ACCENT, lw=1, ls="--")
    ax.text(len(table) + 0.45, 0.115, "threshold 0.1", ha="right", color=ACCENT, fontsize=_SMALL)
    choice = ensemble.n_clusters_choice_
    ax.set_title(f"Suggests {choice.n_clusters} clusters ({choice.sure})", fontsize=_TEXT)
    ax.set_xticks(table.index)
    ax.set_xlabel("Eigenvalue of the centred distances", fontsize=_TEXT)
    ax.set_ylabel("Share of the largest", fontsize=_TEXT)
    return _plain(ax)


def plot_cluster_sizes(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """Share of each cluster at each site, stacked to 100 %."""
    table = cluster_size_table(ensemble)
    share = table.pivot(index="site", columns="cluster", values="share")
    share = share.reindex(ensemble.cluster_sizes_.columns)
    n = ensemble.cluster_sizes_.sum(axis=0)
    own = ax is None
    ax = _axes(ax, (3.5, 0.7 + 0.3 * len(share)))
    left = np.zeros(len(share))
    y = np.arange(len(share))
    for cluster in share.columns:
        width = share[cluster].fillna(0).to_numpy()
        colour = cluster_colour(cluster)
        ax.barh(y, width, left=left, color=colour, ec="white", height=0.7, label=str(cluster + 1))
        for row in np.flatnonzero(width >= 0.05):
            ax.text(
                left[row] + width[row] / 2,
                int(row),
                f"{100 * width[row]:.0f}",
                ha="center",
                va="center",
                fontsize=_SMALL,
                color=text_on(colour),
            )
        left += width
    names = [f"{site}\nn = {n[site]:,}" for site in share.index]
    ax.set_yticks(y, names)
    ax.set_ylim(len(share) - 0.5, -0.5)
    ax.set_xlim(0, 1 if own else 1.3)  # the bars fill the panel: a legend on them would hide some
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    ax.spines["bottom"].set_bounds(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    ax.set_xlabel("Patients (%)", fontsize=_TEXT)
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    ax.legend(
        title="Cluster", fontsize=_SMALL, title_fontsize=_SMALL, handlelength=1.1, frameon=False,
        **(place if own else {"loc": "center right", "borderaxespad": 0.0}),
    )  # fmt: skip
    return _plain(ax)


def plot_patterns(ensemble: Ensemble, ax: Axes | None = None, top: int = 20) -> Axes:
    """The most frequent label patterns: each model's class, coloured by the cluster they make."""
    table = pattern_table(ensemble, top)
    models = list(ensemble.models_)
    ax = _axes(ax, (max(2.4, 1.4 + 0.3 * len(models)), 1.0 + 0.15 * len(table)))
    classes = table.iloc[:, : len(models)].to_numpy()
    clusters, n, share = (table.iloc[:, i] for i in (-3, -2, -1))  # a model may be called "n"
    for row, (cluster, labels) in enumerate(zip(clusters, classes, strict=True)):
        colour = cluster_colour(cluster)
        ax.barh(row, len(models), left=-0.5, height=0.9, color=colour, lw=0)
        for column, value in enumerate(labels):
            ax.text(
                column, row, value + 1, ha="center", va="center", fontsize=_SMALL,
                color=text_on(colour),
            )  # fmt: skip
    ax.set_xticks(range(len(models)), [str(name) for name in models], rotation=90)
    ax.xaxis.tick_top()
    names = [f"Cluster {k + 1}, n = {m:,}" for k, m in zip(clusters, n, strict=True)]
    ax.set_yticks(range(len(table)), names)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.5, len(models) - 0.5)
    covered = f"rows cover {100 * share.sum():.0f} % of patients"
    # in two lines: with few models the figure is narrow
    ax.set_xlabel(f"Class given by each model;\n{covered}", fontsize=_TEXT)
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
