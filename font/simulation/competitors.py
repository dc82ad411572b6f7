"""What the ensemble is compared with: other ways to cluster the patients of several sites.

Consensus clustering works on label tables {site: patients × models}, with any model, like the
ensemble itself; k-FED needs the data, {site: (n, p)}. Clusterings come as {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import (
    Clustering,
    Floats,
    Integers,
    LabelTables,
    check_dict,
    label_columns,
    whole_number,
)
from font.clustering import kmeans, one_thread, plain_seeds
from font.errors import InputError
from font.labels import distinct_rows
from font.metrics import adjusted_rand_index, cross_table
from font.weights import one_hot


def rand_index(clusters: Clustering, truth: Clustering) -> float:
    """The adjusted Rand index; patients with a negative true class are left out."""
    classes = np.asarray(truth)
    scored = classes >= 0
    return adjusted_rand_index(cross_table(classes[scored], np.asarray(clusters)[scored]))


def consensus(labels: LabelTables, n_clusters: int, *, seed: int = 0) -> dict[Any, pd.Series]:
    """Consensus clustering: K-means on the rows of Ū, where ŪŪᵀ = S̄ is the mean connectivity.

    S̄_ij = 1/M Σ_m 1(ŷᵐᵢ = ŷᵐⱼ), how often the models put two patients together. With Z the
    one-hot labels of all models, Ū = Z/√M: all columns, none rescaled. Every other root of S̄ is
    a rotation of this one, with the same clusters. Patients with the same label pattern
    coincide, so that the patterns are clustered, weighted by their patients.

    Parameters
    ----------
    labels : {site: table}
        As `font.label` returns them.
    n_clusters : int
    seed : int

    Examples
    --------
    >>> table = pd.DataFrame({"A": [0, 0, 1, 1, 1], "B": [1, 1, 0, 0, 0]})
    >>> clusters = consensus({"here": table}, 2)["here"]
    >>> clusters.nunique(), clusters[:2].nunique(), clusters[2:].nunique()
    (2, 1, 1)
    """
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    check_dict(labels, "labels must be a dict {site: label table}")
    models = list(next(iter(labels.values())))
    tables = [label_columns(t, models, f"the labels of {site!r}") for site, t in labels.items()]
    columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
    if not len(columns[0]):
        raise InputError("there are no patients to cluster; give at least one.")
    patterns, number = distinct_rows(columns)
    counts = np.bincount(number).astype(float)
    offsets = np.cumsum([0, *(int(column.max()) + 1 for column in columns)])
    points = one_hot(patterns, offsets) / np.sqrt(len(models))
    clusters = kmeans(points, counts, n_clusters, seed)[number]
    parts = by_site(clusters, labels)
    return {
        site: pd.Series(part, index=labels[site].index, name="cluster")
        for site, part in parts.items()
    }


def k_fed(
    data: Mapping[Any, Floats],
    n_clusters: int,
    *,
    n_local: int | None = None,
    n_init: int = 10,
    rounds: int | None = 1,
    first: Any = None,
    seed: int = 0,
) -> dict[str, dict[Any, Integers]]:
    """One-shot federated K-means, k-FED of Dennis, Li and Smith (2021), of data {site: (n, p)}.

    At each site, the K-means of Awasthi and Sheffet (2012): project the rows A on the K leading
    singular vectors, run K-means there (centres ν), let S_r be the rows with ‖Â_i − ν_r‖ ≤ ⅓ ‖Â_i −
    ν_s‖ for all s ≠ r, and start Lloyd's steps on A from the means of the S_r. At the centre: begin
    with the centres of one site, add the centre farthest from those chosen until there are K, and
    run one round of Lloyd on all sites' centres: group them, take the groups' means, and group them
    by these.

    Parameters
    ----------
    n_local : int, optional
        Clusters at each site; n_clusters unless given.
    n_init : int
        Starts of K-means on the projected rows, of which the best is kept. The algorithm asks for a
        sum of squares within a constant factor of the smallest, and leaves open how to find it.
    rounds : int or None
        Of Lloyd at the centre. The paper says one; 0 groups the sites' centres by those chosen
        first, and None goes on until nothing changes, as the authors' own program does.
    first : site, optional
        Whose centres the centre begins with (the paper: any); drawn at random unless given.

    Returns
    -------
    {"faithful": {site: clusters}, "nearest": {site: clusters}}
        As published a patient follows the own local cluster ("faithful"); with "nearest" each
        patient goes to the nearest of the final centres.

    Notes
    -----
    Where no row is that much nearer to ν_r than to the others, S_r is empty; the mean of all rows
    nearest to ν_r then takes its place.
    """
    n_local = n_local or n_clusters
    rng = np.random.default_rng(seed)
    sites = list(data)
    if first is None:
        first = sites[rng.integers(len(sites))]
    with one_thread():
        fits = [
            _awasthi_sheffet(points, n_local, n_init, rng, site) for site, points in data.items()
        ]
    centres = np.concatenate([means for means, _ in fits])
    owner = np.repeat(np.arange(len(sites)), n_local)
    chosen = _farthest_first(centres, np.flatnonzero(owner == sites.index(first)), n_clusters)
    group, final = _lloyd_rounds(centres, centres[chosen], 1000 if rounds is None else rounds)
    follow = [group[owner == i][labels] for i, (_, labels) in enumerate(fits)]
    nearest = _squared(np.concatenate(list(data.values())), final).argmin(axis=1)
    faithful = np.concatenate(follow)
    return {"faithful": by_site(faithful, data), "nearest": by_site(nearest, data)}


def by_site(values: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Everyone's clusters or labels, site by site, where the sites have these data."""
    ends = np.cumsum([len(part) for part in data.values()])
    return {
        site: values[end - len(part) : end]
        for (site, part), end in zip(data.items(), ends, strict=True)
    }


def _awasthi_sheffet(
    points: Floats, n_clusters: int, n_init: int, rng: np.random.Generator, site: Any
) -> tuple[Floats, Integers]:
    """Centres (K, p) and labels (n,) of one site."""
    axes = np.linalg.svd(points, full_matrices=False)[2][:n_clusters]
    projected = points @ axes.T  # coordinates in the subspace: the same distances
    state = int(rng.integers(2**31))
    rough = fit_kmeans(projected, n_clusters, n_init, state, f"the site {site!r}")
    far = np.sqrt(_squared(projected, rough.cluster_centers_))
    near = np.sort(far, axis=1)
    core = near[:, 0] <= near[:, 1] / 3 if n_clusters > 1 else np.ones(len(points), dtype=bool)
    labels = far.argmin(axis=1)
    means = np.array(rough.cluster_centers_ @ axes)
    for k in np.unique(labels):
        own = labels == k
        clear = core & own
        means[k] = points[clear if clear.any() else own].mean(axis=0)
    final = _kmeans(n_clusters, means, 1, state, points)
    return final.cluster_centers_, final.labels_


def _farthest_first(centres: Floats, start: NDArray[np.intp], n: int) -> list[int]:
    """Numbers of n centres: those of one site, then always the farthest from all chosen."""
    chosen = [int(i) for i in start[:n]]
    nearest = _squared(centres, centres[chosen]).min(axis=1)
    while len(chosen) < n:
        if nearest.max() == 0:
            raise InputError(
                f"the sites' centres are only {len(chosen)} different points, too few for {n} "
                "clusters; ask for fewer, or for more clusters at each site (n_local)."
            )
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, _squared(centres, centres[chosen[-1:]])[:, 0])
    return chosen


def _lloyd_rounds(points: Floats, centres: Floats, rounds: int) -> tuple[Integers, Floats]:
    """The group of each point, and the groups' means; a group left empty keeps its centre."""

    def means(group: Integers) -> Floats:
        return np.array(
            [
                points[group == k].mean(axis=0) if (group == k).any() else centre
                for k, centre in enumerate(centres)
            ]
        )

    group = _squared(points, centres).argmin(axis=1)
    for _ in range(rounds):
        centres = means(group)
        before, group = group, _squared(points, centres).argmin(axis=1)
        if (before == group).all():
            break
    return group, means(group)


def _squared(points: Floats, centres: Floats) -> Floats:
    columns = [((points - centre) ** 2).sum(axis=1) for centre in centres]
    return np.stack(columns, axis=1)


def fit_kmeans(points: Floats, n_clusters: int, n_init: int, seed: int, what: str) -> Any:
    """Scikit-learn's K-means on the rows, which errors call `what`."""
    if len(points) < n_clusters:
        raise InputError(
            f"{what} has {len(points)} patients, too few for {n_clusters} clusters; ask for fewer "
            "clusters or leave the site out."
        )
    return _kmeans(n_clusters, plain_seeds, n_init, seed, points)


def _kmeans(n_clusters: int, init: Any, n_init: int, seed: int, points: Floats) -> Any:
    from sklearn.cluster import KMeans

    with one_thread():
        return KMeans(n_clusters, init=init, n_init=n_init, tol=0.0, random_state=seed).fit(points)
