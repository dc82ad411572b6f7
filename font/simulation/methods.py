"""What the ensemble is compared with: other ways to cluster the patients of several sites.

These work on label tables {site: patients × models}, with any model, like the ensemble itself;
`font.simulation.kmeans_sites` has those that need the data. All return {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from font.checks import (
    Clusterings,
    Integers,
    LabelTables,
    check_dict,
    label_columns,
    some,
    whole_number,
)
from font.clustering import kmeans
from font.errors import InputError
from font.labels import distinct_rows
from font.metrics import adjusted_rand_index, cross_table
from font.weights import one_hot

Clusters = dict[Any, pd.Series]


# --- from the models' labels -------------------------------------------------------------


def local_scores(labels: LabelTables, truth: Clusterings) -> pd.Series:
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


# --- scores ------------------------------------------------------------------------------


def rand_index(clusters: Clusterings, truth: Clusterings) -> float:
    """The adjusted Rand index over all sites; patients with a negative true class are left out.

    Examples
    --------
    >>> rand_index({"A": [0, 0], "B": [1, 5]}, {"A": [1, 1], "B": [0, -1]})
    1.0
    """
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


# --- what comes in and goes out ----------------------------------------------------------


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
