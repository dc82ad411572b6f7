"""What the ensemble is compared with: other ways to cluster the patients of several sites.

These work on label tables {site: patients × models}, with any model, like the ensemble itself;
`font.kmeans_sites` has those that need the data. All return {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font import clustering
from font.checks import label_columns, some, whole_number
from font.labels import distinct_rows
from font.weights import cross_tabulate, one_hot

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Clusters = dict[Any, pd.Series]


# --- from the models' labels -------------------------------------------------------------


def local_clustering(labels: Mapping[Any, pd.DataFrame], model: Hashable) -> Clusters:
    """One site's model carried to all patients: its labels are the clusters.

    Parameters
    ----------
    labels : {site: table}
        As `font.label` returns them.
    model : name of a column

    Examples
    --------
    >>> labels = {"here": pd.DataFrame({"A": [0, 1], "B": [1, 1]})}
    >>> local_clustering(labels, "A")["here"].tolist()
    [0, 1]
    """
    models = _models(labels)
    if model not in models:
        raise ValueError(f"there is no model {model!r}; name one of {some(models)}.")
    return {site: table[model].rename("cluster") for site, table in labels.items()}


def local_scores(labels: Mapping[Any, pd.DataFrame], truth: Mapping[Any, ArrayLike]) -> pd.Series:
    """The adjusted Rand index of each model's labels on all patients, as a Series over models.

    Parameters
    ----------
    labels : {site: table}
    truth : {site: true classes}
        Patients with a negative class are not scored.

    Examples
    --------
    >>> labels = {"here": pd.DataFrame({"A": [0, 0, 1, 1], "B": [0, 1, 1, 1]})}
    >>> local_scores(labels, {"here": [1, 1, 0, 0]}).round(2).to_dict()
    {'A': 1.0, 'B': 0.0}
    """
    return pd.Series(
        {
            model: rand_index(local_clustering(labels, model), truth, site_order=labels)
            for model in _models(labels)
        },
        dtype=float,
    )


def best_local(labels: Mapping[Any, pd.DataFrame], truth: Mapping[Any, ArrayLike]) -> Clusters:
    """The single model that fits the truth best, carried to all: an oracle, since it is told.

    Examples
    --------
    >>> labels = {"here": pd.DataFrame({"A": [0, 1, 1, 1], "B": [0, 0, 1, 1]})}
    >>> best_local(labels, {"here": [1, 1, 0, 0]})["here"].tolist()
    [0, 0, 1, 1]
    """
    return local_clustering(labels, local_scores(labels, truth).idxmax())


def consensus(
    labels: Mapping[Any, pd.DataFrame], n_clusters: int, *, weights: Any = None, seed: int = 0
) -> Clusters:
    """Average connectivity, then K-means on its leading eigenvectors.

    The connectivity A_ij = Σ_m w_m 1(ŷᵐᵢ = ŷᵐⱼ) is ZWZᵀ, with Z the one-hot labels of all models
    and w_m = 1/M unless given. It is never formed: with W^½ ZᵀZ W^½ = VΛVᵀ its eigenvectors are
    U = Z W^½ V Λ^−½, equal for patients with the same label pattern. The K leading columns of U
    are clustered, patterns weighted by their patients.

    Parameters
    ----------
    labels : {site: table}
    n_clusters : int
    weights : {model: number}, optional
    seed : int

    Examples
    --------
    >>> table = pd.DataFrame({"A": [0, 0, 1, 1, 1], "B": [1, 1, 0, 0, 0]})
    >>> found = consensus({"here": table}, 2)["here"]
    >>> found.nunique(), found[:2].nunique(), found[2:].nunique()
    (2, 1, 1)
    """
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    models = _models(labels)
    share = np.ones(len(models)) if weights is None else np.array([weights[m] for m in models])
    tables = [label_columns(t, models, f"the labels of {site!r}") for site, t in labels.items()]
    columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
    if not len(columns[0]):
        raise ValueError("there are no patients to cluster; give at least one.")
    patterns, number = distinct_rows(columns)
    counts = np.bincount(number, minlength=len(patterns)).astype(float)
    sizes = [int(column.max()) + 1 for column in columns]
    with clustering.one_thread():
        points = _connectivity_vectors(patterns, counts, sizes, share / share.sum(), n_clusters)
        clusters = clustering.kmeans(points, counts, n_clusters, seed)[number]
    return split(clusters, {site: table.index for site, table in labels.items()})


def _connectivity_vectors(
    patterns: Integers, counts: Floats, sizes: list[int], weights: Floats, n_vectors: int
) -> Floats:
    """Rows (P, K) of the leading eigenvectors of ZWZᵀ; directions of eigenvalue 0 are left out."""
    offsets = np.cumsum([0, *sizes])
    root = np.repeat(np.sqrt(weights), sizes)
    inner = root[:, None] * cross_tabulate(patterns, counts, offsets) * root[None, :]
    values, vectors = np.linalg.eigh(inner)
    values, vectors = values[::-1][:n_vectors], vectors[:, ::-1][:, :n_vectors]
    kept = values > 1e-10 * values[0]
    axes = root[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    rows: Floats = one_hot(patterns, offsets) @ axes
    return rows


# --- scores ------------------------------------------------------------------------------


def rand_index(
    clusters: Mapping[Any, ArrayLike],
    truth: Mapping[Any, ArrayLike],
    *,
    site_order: Iterable[Any] | None = None,
) -> float:
    """The adjusted Rand index over all sites; patients with a negative true class are left out.

    Examples
    --------
    >>> rand_index({"A": [0, 0], "B": [1, 5]}, {"A": [1, 1], "B": [0, -1]})
    1.0
    """
    sites = list(clusters if site_order is None else site_order)
    if absent := [site for site in sites if site not in truth]:
        raise ValueError(f"truth has no entry for the sites {some(absent)}; give one for each.")
    for site in sites:
        if np.shape(clusters[site]) != np.shape(truth[site]):
            raise ValueError(
                f"the site {site!r} has clusters of shape {np.shape(clusters[site])} and true "
                f"classes of shape {np.shape(truth[site])}; give one of each for every patient."
            )
    found = np.concatenate([np.asarray(clusters[site]) for site in sites])
    true = np.concatenate([np.asarray(truth[site]) for site in sites])
    scored = true >= 0
    if not scored.any():
        raise ValueError("no patient has a true class of 0 or more, so there is nothing to score.")
    return _adjusted_rand(true[scored], found[scored])


def _adjusted_rand(first: NDArray[Any], second: NDArray[Any]) -> float:
    """(pairs together in both − expected) / (mean of pairs in each − expected)."""
    row, rows = pd.factorize(first)
    column, columns = pd.factorize(second)
    cells = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    table = cells.reshape(len(rows), len(columns)).astype(float)
    both, one, other, n_pairs = (
        float((n * (n - 1) / 2).sum())
        for n in (table, table.sum(axis=1), table.sum(axis=0), table.sum())
    )
    expected = one * other / n_pairs if n_pairs else 0.0
    room = (one + other) / 2 - expected
    return (both - expected) / room if room else 1.0


# --- what comes in and goes out ----------------------------------------------------------


def _models(labels: Mapping[Any, pd.DataFrame]) -> list[Hashable]:
    if not isinstance(labels, Mapping) or not labels:
        raise TypeError(
            f"labels must be a dict {{site: table}} with at least one site; found "
            f"{type(labels).__name__}."
        )
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
