"""Figures of an ensemble, each with the table it draws.

Every function takes `ax=None` and returns the Axes. Clusters have the same colour in all. The
tables number classes and clusters from 0, as arrays do; the figures number them from 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.checks import whole_number
from font.colours import ACCENT, INK, PALE, cluster_colour, text_on
from font.ensemble import Ensemble

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# --- tables ------------------------------------------------------------------------------


def weight_table(ensemble: Ensemble) -> pd.DataFrame:
    """The weights used and the centred ones, and both as a share of the largest."""
    table = pd.DataFrame({"weight": ensemble.weights_, "centred": ensemble.centred_weights_})
    for column in ("weight", "centred"):
        table[f"{column} share"] = table[column] / table[column].max()
    return table


def spectrum_table(ensemble: Ensemble, top: int = 12) -> pd.DataFrame:
    """Leading eigenvalues of −HD̃H, their share of the largest, and whether they count."""
    values = ensemble.spectrum_.head(whole_number(top, 1, "top"))
    share = values / values.iloc[0]
    counted = np.arange(1, len(values) + 1) < ensemble.n_clusters_choice_.n_clusters
    return pd.DataFrame({"eigenvalue": values, "share": share, "counted": counted})


def cluster_size_table(ensemble: Ensemble) -> pd.DataFrame:
    """Patients and share of each cluster at each site: site, cluster, n, share."""
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
    if not hasattr(ensemble, "patterns_"):
        raise ValueError(
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


# --- figures -----------------------------------------------------------------------------


def plot_weights(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """Weights as a share of the largest: those used (dots) and the centred ones (rings)."""
    table = weight_table(ensemble)
    ax = _axes(ax, (5.0, 1.2 + 0.28 * len(table)))
    y = np.arange(len(table))
    ax.hlines(y, table["centred share"], table["weight share"], color=PALE, lw=1.5, zorder=1)
    ax.plot(table["centred share"], y, "o", mfc="white", mec=ACCENT, mew=1.5, label="centred")
    ax.plot(table["weight share"], y, "o", color=INK, ms=5, label=f"used ({ensemble.weights})")
    ax.set_yticks(y, [str(name) for name in table.index])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.03, 1.05)
    ax.set_xlabel("weight / largest weight")
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return _plain(ax)


def plot_agreement(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """The agreement of every two models as a heat map from 0 to 1.

    Above the diagonal is `agreement_`, which the weights of the paper rest on and which is never
    near 0; below it `centred_agreement_`, which is near 0 for models that have nothing in common.
    An ensemble that was read from a file has no centred one: both halves are `agreement_` then.
    """
    values = ensemble.agreement_.to_numpy(dtype=float, copy=True)
    both = hasattr(ensemble, "centred_agreement_")
    n = len(values)
    if both:
        below = np.tril_indices(n, -1)
        values[below] = ensemble.centred_agreement_.to_numpy()[below]
    side = 2.0 + 0.42 * min(n, 24)
    ax = _axes(ax, (side + 0.8, side))
    np.fill_diagonal(values, np.nan)  # a model agrees with itself
    image = ax.imshow(np.ma.masked_invalid(values), cmap="cividis", vmin=0, vmax=1)
    if n <= 12:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > 0.55 else "white"
                ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    names = [str(name) for name in ensemble.agreement_.index]
    ax.set_xticks(range(n), names, rotation=90)
    ax.set_yticks(range(n), names)
    ax.figure.colorbar(image, ax=ax, label="agreement (cosine)", shrink=0.8)
    if both:
        ax.set_title("above the diagonal: plain; below: centred", fontsize=8)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def plot_spectrum(ensemble: Ensemble, ax: Axes | None = None, top: int = 12) -> Axes:
    """Leading eigenvalues as a share of the largest, and the threshold of a tenth."""
    table = spectrum_table(ensemble, top)
    ax = _axes(ax, (5.0, 3.2))
    colours = [INK if counted else PALE for counted in table["counted"]]
    ax.bar(table.index, table["share"], color=colours, width=0.7)
    ax.axhline(0.1, color=ACCENT, lw=1, ls="--")
    ax.text(len(table) + 0.45, 0.115, "threshold 0.1", ha="right", color=ACCENT, fontsize=8)
    choice = ensemble.n_clusters_choice_
    ax.set_title(f"suggests {choice.n_clusters} clusters ({choice.sure})", fontsize=10)
    ax.set_xticks(table.index)
    ax.set_xlabel("eigenvalue of the centred distances")
    ax.set_ylabel("share of the largest")
    return _plain(ax)


def plot_cluster_sizes(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """Share of each cluster at each site, stacked to 100 %."""
    table = cluster_size_table(ensemble)
    share = table.pivot(index="site", columns="cluster", values="share")
    share = share.reindex(ensemble.cluster_sizes_.columns)
    n = ensemble.cluster_sizes_.sum(axis=0)
    ax = _axes(ax, (6.0, 1.3 + 0.45 * len(share)))
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
                f"{width[row]:.0%}",
                ha="center",
                va="center",
                fontsize=8,
                color=text_on(colour),
            )
        left += width
    names = [f"{site}\nn = {n[site]:,}" for site in share.index]
    ax.set_yticks(y, names)
    ax.set_ylim(len(share) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel("share of patients")
    ax.legend(
        title="cluster", frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8
    )
    return _plain(ax)


def plot_patterns(ensemble: Ensemble, ax: Axes | None = None, top: int = 20) -> Axes:
    """The most frequent label patterns: each model's class, coloured by the cluster they make."""
    table = pattern_table(ensemble, top)
    models = list(ensemble.models_)
    ax = _axes(ax, (2.0 + 0.5 * len(models), 1.4 + 0.24 * len(table)))
    classes = table.iloc[:, : len(models)].to_numpy()
    clusters, n, share = (table.iloc[:, i] for i in (-3, -2, -1))  # a model may be called "n"
    for row, (cluster, labels) in enumerate(zip(clusters, classes, strict=True)):
        colour = cluster_colour(cluster)
        ax.barh(row, len(models), left=-0.5, height=0.9, color=colour, lw=0)
        for column, value in enumerate(labels):
            ax.text(
                column, row, value + 1, ha="center", va="center", fontsize=8, color=text_on(colour)
            )
    ax.set_xticks(range(len(models)), [str(name) for name in models], rotation=90)
    ax.xaxis.tick_top()
    names = [f"cluster {k + 1}, n = {m:,}" for k, m in zip(clusters, n, strict=True)]
    ax.set_yticks(range(len(table)), names)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.5, len(models) - 0.5)
    ax.tick_params(length=0)
    # small and in two lines: with few models the figure is narrow
    covered = f"rows cover {share.sum():.0%} of patients"
    ax.set_xlabel(f"class given by each model;\n{covered}", fontsize="small")
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax
