"""Cluster-level parameters from sums that sites may share.

A site adds up its patients' sufficient statistics cluster by cluster; the centre adds up the
sites and divides. For Markov chains the statistics are the first state and the transition
counts, for categorical items the answers, for means the values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from font.checks import some, whole_number


def sum_by_cluster(
    statistics: ArrayLike | pd.DataFrame,
    clusters: pd.Series | ArrayLike,
    n_clusters: int,
    *,
    min_count: int = 1,
) -> pd.DataFrame:
    """A site's sums of statistics by cluster: aggregates only, fit to leave the site.

    Parameters
    ----------
    statistics : (n, d)
        One row a patient; a DataFrame is matched with a Series of clusters by its index.
    clusters : (n,)
        As `Ensemble.predict` returns.
    n_clusters : int
    min_count : int
        Clusters with fewer patients at this site are left out of the sums.

    Returns
    -------
    DataFrame
        One row a cluster: `n` patients, then the d sums.
    """
    whole_number(min_count, 1, "min_count")
    if isinstance(statistics, pd.DataFrame) and isinstance(clusters, pd.Series):
        absent = clusters.index.difference(statistics.index)
        if len(absent) or len(clusters) != len(statistics):
            raise ValueError(
                f"clusters and statistics must be of the same patients; {len(clusters):,} have a "
                f"cluster, {len(statistics):,} statistics ({some(absent) or 'all known'})."
            )
        clusters = clusters.reindex(statistics.index)
    table = pd.DataFrame(statistics)
    group = np.asarray(clusters)
    if group.shape != (len(table),) or (
        len(group) and not 0 <= group.min() <= group.max() < n_clusters
    ):
        raise ValueError(
            f"{len(table):,} clusters between 0 and {n_clusters - 1} are needed, one for each "
            f"row of statistics; found {group.shape[0]:,} with the values {some(np.unique(group))}."
        )
    index = pd.RangeIndex(n_clusters, name="cluster")
    sums = table.groupby(group).sum().reindex(index, fill_value=0)
    sums.insert(0, "n", np.bincount(group.astype(np.int64), minlength=n_clusters))
    sums.loc[sums["n"] < min_count] = 0
    return sums


def cluster_parameters(
    sums: Mapping[Any, pd.DataFrame], groups: Sequence[Any] | None = None
) -> pd.DataFrame:
    """Parameters of each cluster from the sums of all sites.

    Parameters
    ----------
    sums : {site: table}
        As `sum_by_cluster` returns.
    groups : (d,), optional
        Which columns form one distribution: they are divided by their common sum, so that
        counts become probabilities. Without it sums are divided by n and become means.

    Returns
    -------
    DataFrame
        One row a cluster; NaN where no patient contributes.

    Examples
    --------
    >>> here = sum_by_cluster(np.array([[3, 1], [0, 4]]), [0, 1], 2)
    >>> there = sum_by_cluster(np.array([[3, 1]]), [0], 2)
    >>> cluster_parameters({"here": here, "there": there}, groups=[0, 0]).to_numpy().tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    """
    if not sums:
        raise ValueError("there are no sums to pool; give at least one site's.")
    tables = list(sums.values())
    for site, table in sums.items():
        if list(table.columns) != list(tables[0].columns) or len(table) != len(tables[0]):
            raise ValueError(
                f"the sums of {site!r} have other rows or columns than the first site's; compute "
                "all with the same statistics and n_clusters."
            )
    total = sum(table.to_numpy(dtype=float) for table in tables)
    values = np.asarray(total)[:, 1:]
    if groups is None:
        base = np.broadcast_to(np.asarray(total)[:, :1], values.shape)
    else:
        if len(groups) != values.shape[1]:
            raise ValueError(
                f"groups= must name a distribution for each of the {values.shape[1]} statistics; "
                f"found {len(groups)}."
            )
        code = pd.factorize(pd.Index(list(groups)))[0]
        base = (values @ (code[:, None] == np.arange(code.max() + 1)))[:, code]
    share = np.divide(values, base, out=np.full_like(values, np.nan), where=base > 0)
    return pd.DataFrame(share, index=tables[0].index, columns=tables[0].columns[1:])
