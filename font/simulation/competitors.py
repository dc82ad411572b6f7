"""What the ensemble is compared with: other ways to cluster the patients of several sites.

Some work on label tables {site: patients × models}, with any model, like the ensemble itself; k-FED
needs the data, {site: (n, p)}. Clusterings come as {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import (
    Clusterings,
    Floats,
    Integers,
    LabelTables,
    check_dict,
    label_columns,
    some,
    whole_number,
)
from font.clustering import kmeans, one_thread, plain_seeds
from font.errors import InputError
from font.labels import distinct_rows
from font.metrics import adjusted_rand_index, cross_table
from font.weights import one_hot

Clusters = dict[Any, pd.Series]


# --- from the models' labels ------------------------------------------------------------------


def local_scores(labels: LabelTables, truth: Clusterings) -> pd.Series:
    """The adjusted Rand index of each model's labels on all patients, see `rand_index`."""
    scores = {
        model: rand_index({site: table[model] for site, table in labels.items()}, truth)
        for model in _models(labels)
    }
    return pd.Series(scores, dtype=float)


def consensus(labels: LabelTables, n_clusters: int, *, seed: int = 0) -> Clusters:
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
    models = _models(labels)
    tables = [label_columns(t, models, f"the labels of {site!r}") for site, t in labels.items()]
    columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
    if not len(columns[0]):
        raise InputError("there are no patients to cluster; give at least one.")
    patterns, number = distinct_rows(columns)
    counts = np.bincount(number).astype(float)
    offsets = np.cumsum([0, *(int(column.max()) + 1 for column in columns)])
    points = one_hot(patterns, offsets) / np.sqrt(len(models))
    clusters = kmeans(points, counts, n_clusters, seed)[number]
    return split(clusters, {site: table.index for site, table in labels.items()})


# --- scores -----------------------------------------------------------------------------------


def rand_index(clusters: Clusterings, truth: Clusterings) -> float:
    """The adjusted Rand index over all sites; patients with a negative true class are left out."""
    sites = list(clusters)
    if absent := [site for site in sites if site not in truth]:
        raise InputError(f"truth has no entry for the sites {some(absent)}; give one for each.")
    for site in sites:
        if np.shape(clusters[site]) != np.shape(truth[site]):
            raise InputError(
                f"the site {site!r} has clusters of shape {np.shape(clusters[site])} and true "
                f"classes of shape {np.shape(truth[site])}; give one of each for every patient."
            )
    groups = np.concatenate([np.asarray(clusters[site]) for site in sites])
    classes = np.concatenate([np.asarray(truth[site]) for site in sites])
    scored = classes >= 0
    if not scored.any():
        raise InputError("no patient has a true class of 0 or more, so there is nothing to score.")
    return adjusted_rand_index(cross_table(classes[scored], groups[scored]))


# --- what comes in and goes out ---------------------------------------------------------------


def _models(labels: LabelTables) -> list[Hashable]:
    check_dict(labels, "labels must be a dict {site: label table}")
    table = next(iter(labels.values()))
    if not isinstance(table, pd.DataFrame) or not len(table.columns):
        raise TypeError(
            f"a label table must be a DataFrame, patients × models, as font.label returns; found "
            f"{type(table).__name__}."
        )
    return list(table.columns)


def split(clusters: Integers, index: Mapping[Any, pd.Index]) -> Clusters:
    ends = np.cumsum([len(ids) for ids in index.values()])
    parts = np.split(clusters, ends[:-1])
    return {
        site: pd.Series(part, index=ids, name="cluster")
        for (site, ids), part in zip(index.items(), parts, strict=True)
    }


# --- from the data ----------------------------------------------------------------------------


def k_fed(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_local: int | None = None,
    n_init: int = 10,
    rounds: int | None = 1,
    first: Any = None,
    seed: int = 0,
) -> dict[str, Clusters]:
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
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_local = n_clusters if n_local is None else whole_number(n_local, 1, "n_local, unless None,")
    n_init = whole_number(n_init, 1, "n_init")
    rounds = 1000 if rounds is None else whole_number(rounds, 0, "rounds, unless None,")
    arrays = _arrays(data)
    rng = np.random.default_rng(seed)
    sites = list(arrays)
    if first is None:
        first = sites[rng.integers(len(sites))]
    elif first not in arrays:
        raise InputError(f"there is no site {first!r}; name one of {some(sites)}.")
    with one_thread():
        fits = [
            _awasthi_sheffet(points, n_local, n_init, rng, site) for site, points in arrays.items()
        ]
    centres = np.concatenate([means for means, _ in fits])
    owner = np.repeat(np.arange(len(sites)), n_local)
    chosen = _farthest_first(centres, np.flatnonzero(owner == sites.index(first)), n_clusters)
    group, final = _lloyd_rounds(centres, centres[chosen], rounds)
    follow = [group[owner == i][labels] for i, (_, labels) in enumerate(fits)]
    index = {site: _index(data[site], len(points)) for site, points in arrays.items()}
    nearest = _squared(np.concatenate(list(arrays.values())), final).argmin(axis=1)
    return {"faithful": split(np.concatenate(follow), index), "nearest": split(nearest, index)}


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
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_init = whole_number(n_init, 1, "n_init")
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


def _arrays(data: Mapping[Any, ArrayLike]) -> dict[Any, Floats]:
    check_dict(data, "data must be a dict {site: (n, p)}")
    arrays = {site: np.asarray(points, dtype=float) for site, points in data.items()}
    shapes = {site: points.shape for site, points in arrays.items()}
    width = next(iter(shapes.values()))[1:]
    if wrong := [s for s, shape in shapes.items() if len(shape) != 2 or shape[1:] != width]:
        raise InputError(
            f"every site needs a table of patients × the same variables; found the shapes "
            f"{some(shapes[site] for site in wrong)} at the sites {some(wrong)}."
        )
    if wrong := [site for site, points in arrays.items() if not np.isfinite(points).all()]:
        raise InputError(
            f"the data of the sites {some(wrong)} hold missing or infinite values; fill them or "
            "leave these patients out."
        )
    return arrays


def _index(data: Any, n: int) -> pd.Index:
    return data.index if isinstance(data, pd.DataFrame) else pd.RangeIndex(n)
