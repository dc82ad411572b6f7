"""What a result owes to single sites: leave one out, or resample them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import some, whole_number
from font.ensemble import Ensemble
from font.labels import distinct_rows
from font.solve import distances_to, positions, solve


def influence(ensemble: Ensemble, sites: Mapping[Any, Hashable] | None = None) -> pd.DataFrame:
    """How many patients would change cluster if a site had not taken part.

    A site takes its models and its patients with it; the ensemble is fitted again from the
    pattern table without them, clusters are paired with the present ones, and every patient
    is placed again, the absent site's too.

    Parameters
    ----------
    ensemble : fitted Ensemble
    sites : {model: site}, optional
        Which site each model comes from. Default: the model's name up to the last "/" ("MGB"
        for "MGB/1"), else the name itself.

    Returns
    -------
    DataFrame
        One row a site left out: `models` that went with it, `changed` patients, their `share`,
        and the changed patients at each site. NaN where the rest could not be clustered.
    """
    patterns = _patterns_of(ensemble)
    owner = {name: _owner(name) for name in ensemble.models_} if sites is None else dict(sites)
    absent = [name for name in ensemble.models_ if name not in owner]
    if absent:
        raise ValueError(f"sites= does not say where the models {some(absent)} come from.")
    left_out = list(dict.fromkeys([*owner.values(), *patterns.sites]))
    if len(left_out) < 2:
        raise ValueError(
            f"all models and patients come from {some(left_out)}; leaving a site out needs "
            "two sites at least."
        )
    rows = {}
    with clustering.one_thread():
        for site in left_out:
            kept = [m for m, name in enumerate(ensemble.models_) if owner[name] != site]
            here = np.array([s != site for s in patterns.sites])
            moved = _moved(ensemble, kept, here)
            total = np.nan if moved is None else moved.sum()
            by_site = np.full(len(patterns.sites), np.nan) if moved is None else moved
            rows[site] = [
                len(ensemble.models_) - len(kept),
                total,
                total / patterns.n_patients,
                *by_site,
            ]
    columns = ["models", "changed", "share", *(f"changed at {site}" for site in patterns.sites)]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return frame.rename_axis("without")


def _moved(
    ensemble: Ensemble, kept: list[int], here: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Patients of each site who change cluster, or None if the rest cannot be clustered."""
    patterns = ensemble.patterns_
    counts = patterns.counts[:, here].sum(axis=1)
    if not kept or not counts.any():
        return None
    rows, number = distinct_rows([patterns.patterns[:, m] for m in kept])
    weight = np.bincount(number, weights=counts, minlength=len(rows))
    names = [ensemble.models_[m] for m in kept]
    distances = {name: ensemble.class_distances_[name] for name in names}
    fitted = weight > 0
    try:
        found = solve(
            distances,
            rows[fitted],
            weight[fitted],
            ensemble.n_clusters_,
            weights=ensemble.weights,
            method=ensemble.method,
            reliability=ensemble.reliability,
            seed=ensemble.seed,
        )
    except ValueError:  # too few patterns differ without the site
        return None
    sizes = [len(delta) for delta in distances.values()]
    clusters = np.argmin(distances_to(positions(rows, sizes, found.axes), found.centres), axis=1)
    clusters[fitted] = found.labels
    new, old = clusters[number], ensemble.clusters_
    table = np.zeros((ensemble.n_clusters_, ensemble.n_clusters_))
    np.add.at(table, (old, new), patterns.counts.sum(axis=1))
    from scipy.optimize import linear_sum_assignment

    partner = np.empty(ensemble.n_clusters_, dtype=np.intp)
    a, b = linear_sum_assignment(-table)
    partner[b] = a
    moved: NDArray[np.float64] = patterns.counts[partner[new] != old].sum(axis=0).astype(float)
    return moved


def bootstrap_weights(ensemble: Ensemble, n_replicates: int = 200, seed: int = 0) -> pd.DataFrame:
    """Spread of the models' weights when sites are drawn with replacement.

    Each replicate counts every site's patients as often as the site was drawn; the models
    stay. With few sites the spread is coarse: two sites allow three different draws.

    Returns
    -------
    DataFrame
        One row a model: `weight`, its standard error `se`, and the 2.5 % and 97.5 % points
        `low` and `high`.
    """
    patterns = _patterns_of(ensemble)
    whole_number(n_replicates, 2, "n_replicates")
    distances = list(ensemble.class_distances_.values())
    offsets = np.cumsum([0, *(len(delta) for delta in distances)])
    prior = None
    if ensemble.weights == "prior":
        prior = weighing.reliabilities(ensemble.reliability, ensemble.models_)
    filled = patterns.counts[:, patterns.counts.any(axis=0)]
    rng = np.random.default_rng(seed)
    n_sites = filled.shape[1]
    draws = rng.multinomial(n_sites, np.full(n_sites, 1 / n_sites), size=n_replicates)
    with clustering.one_thread():
        tables = np.stack(
            [weighing.cross_tabulate(patterns.patterns, c, offsets) for c in filled.T]
        )
        weight_of = {}
        for draw in map(tuple, draws):
            if draw not in weight_of:  # with few sites the same draw returns again and again
                _, cosines, _, centred = weighing.agreements(
                    distances, np.tensordot(draw, tables, axes=1)
                )
                weight_of[draw] = weighing.model_weights(ensemble.weights, cosines, centred, prior)
    sample = np.stack([weight_of[tuple(draw)] for draw in draws])
    low, high = np.quantile(sample, [0.025, 0.975], axis=0)
    return pd.DataFrame(
        {
            "weight": ensemble.weights_,
            "se": sample.std(axis=0, ddof=1),
            "low": low,
            "high": high,
        },
        index=ensemble.weights_.index,
    )


def _owner(name: Hashable) -> Hashable:
    return name.rsplit("/", 1)[0] if isinstance(name, str) else name


def _patterns_of(ensemble: Ensemble) -> Any:
    if not hasattr(ensemble, "patterns_"):
        raise ValueError(
            "this needs the counts of label patterns, which the ensemble file does not carry; "
            "use the ensemble as fitted at the centre."
        )
    return ensemble.patterns_
