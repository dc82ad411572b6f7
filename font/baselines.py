"""What the ensemble is compared with: other ways to cluster the patients of several sites.

Two kinds of function. Those on label tables {site: patients × models} work with any model, like
the ensemble itself; those on data {site: (n, p)} are K-means. All return {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font import clustering
from font.checks import label_columns, one_of, some, whole_number
from font.labels import distinct_rows
from font.weights import cross_tabulate, one_hot

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Clusters = dict[Any, pd.Series]

ASSIGNMENTS = ("faithful", "nearest")
SEEDINGS = ("plain", "greedy")


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
    return _split(clusters, {site: table.index for site, table in labels.items()})


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


# --- K-means on the data -----------------------------------------------------------------


def local_kmeans(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    seed: int = 0,
) -> dict[Any, Any]:
    """Scikit-learn's K-means fitted at each site: local models for `font.label`.

    Parameters
    ----------
    data : {site: (n, p)}
    n_clusters : int
    n_starts : int
        Runs, of which the best is kept.
    seeding : "plain" or "greedy"
        k-means++ as published, each next seed drawn in proportion to squared distance; or the
        best of several such draws, scikit-learn's default. It matters where n_starts is 1.
    seed : int

    Examples
    --------
    >>> models = local_kmeans({"here": np.array([[0.0], [0.2], [5.0]])}, 2)
    >>> np.sort(models["here"].cluster_centers_.ravel()).round(1).tolist()
    [0.1, 5.0]
    """
    arrays = _arrays(data)
    seeds = np.random.SeedSequence(seed).generate_state(len(arrays))
    return {
        site: _fit(points, n_clusters, n_starts, int(state), f"the site {site!r}", seeding)
        for (site, points), state in zip(arrays.items(), seeds, strict=True)
    }


def pooled(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    seed: int = 0,
) -> Clusters:
    """K-means on the data of all sites together: an oracle, since no site may share its data.

    Parameters as in `local_kmeans`.

    Examples
    --------
    >>> data = {"A": np.array([[0.0], [5.0]]), "B": np.array([[0.1], [5.1]])}
    >>> found = pooled(data, 2)
    >>> bool((found["A"].to_numpy() == found["B"].to_numpy()).all())
    True
    """
    arrays = _arrays(data)
    points = np.concatenate(list(arrays.values()))
    fitted = _fit(points, n_clusters, n_starts, seed, "all sites together", seeding)
    return _split(fitted.labels_, {site: _index(data[site], len(a)) for site, a in arrays.items()})


def k_fed(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_local: int | None = None,
    assign: str = "faithful",
    n_starts: int = 1,
    first: Any = None,
    seed: int = 0,
) -> Clusters:
    """One-shot federated K-means, k-FED of Dennis, Li and Smith (2021).

    At each site, the K-means of Awasthi and Sheffet (2012): project the rows A on the K leading
    singular vectors, run K-means there (centres ν), let S_r be the rows with
    ‖Â_i − ν_r‖ ≤ ⅓ ‖Â_i − ν_s‖ for all s ≠ r, and start Lloyd's steps on A from the means of the
    S_r. At the centre: begin with the centres of one site, add the centre farthest from those
    chosen until there are K, and run one round of Lloyd on all sites' centres.

    Parameters
    ----------
    data : {site: (n, p)}
    n_clusters : int
    n_local : int, optional
        Clusters at each site; n_clusters unless given.
    assign : "faithful" or "nearest"
        "faithful", as published: a patient follows the own local cluster. "nearest": each
        patient goes to the nearest of the final centres.
    n_starts : int
        Of K-means on the projected rows, seeded by plain k-means++. One start already is an
        approximation of the kind the algorithm asks for; more make it stronger than published.
    first : site, optional
        Whose centres the centre begins with (the paper: any); drawn at random unless given.
    seed : int

    Notes
    -----
    Where no row is that much nearer to ν_r than to the others, S_r is empty; the mean of all
    rows nearest to ν_r then takes its place.

    Examples
    --------
    >>> data = {"A": np.array([[0.0], [0.2], [5.0]]), "B": np.array([[5.1], [4.9], [0.1]])}
    >>> low, _, high = k_fed(data, 2, first="A")["A"]
    >>> k_fed(data, 2, first="A")["B"].tolist() == [high, high, low]
    True
    """
    one_of(assign, ASSIGNMENTS, "assign")
    found = k_fed_assignments(
        data, n_clusters, n_local=n_local, n_starts=n_starts, first=first, seed=seed
    )
    return found[assign]


def k_fed_assignments(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_local: int | None = None,
    n_starts: int = 1,
    first: Any = None,
    seed: int = 0,
) -> dict[str, Clusters]:
    """Both assignments of `k_fed` from the same local fits, {"faithful": …, "nearest": …}."""
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_local = n_clusters if n_local is None else whole_number(n_local, 1, "n_local, unless None,")
    arrays = _arrays(data)
    rng = np.random.default_rng(seed)
    sites = list(arrays)
    if first is None:
        first = sites[rng.integers(len(sites))]
    elif first not in arrays:
        raise ValueError(f"there is no site {first!r}; name one of {some(sites)}.")
    fits = [
        _awasthi_sheffet(points, n_local, n_starts, int(rng.integers(2**31)), site)
        for site, points in arrays.items()
    ]
    centres = np.concatenate([fit.cluster_centers_ for fit in fits])
    owner = np.repeat(np.arange(len(sites)), n_local)
    chosen = _farthest_first(centres, np.flatnonzero(owner == sites.index(first)), n_clusters)
    group = _squared(centres, centres[chosen]).argmin(axis=1)
    final = np.array([centres[group == k].mean(axis=0) for k in range(n_clusters)])
    follow = [group[owner == i][fit.labels_] for i, fit in enumerate(fits)]
    index = {site: _index(data[site], len(points)) for site, points in arrays.items()}
    nearest = _squared(np.concatenate(list(arrays.values())), final).argmin(axis=1)
    return {
        "faithful": _split(np.concatenate(follow), index),
        "nearest": _split(nearest, index),
    }


def _awasthi_sheffet(points: Floats, n_clusters: int, n_starts: int, seed: int, site: Any) -> Any:
    from sklearn.cluster import KMeans

    what = f"the site {site!r}"
    _refuse_few(points, n_clusters, what)
    with one_thread():
        axes = np.linalg.svd(points, full_matrices=False)[2][:n_clusters]
        projected = points @ axes.T  # coordinates in the subspace: the same distances
    first = _fit(projected, n_clusters, n_starts, seed, what, "plain")
    far = np.sqrt(_squared(projected, first.cluster_centers_))
    near = np.sort(far, axis=1)
    core = near[:, 0] <= near[:, 1] / 3 if n_clusters > 1 else np.ones(len(points), dtype=bool)
    labels = far.argmin(axis=1)
    means = np.empty((n_clusters, points.shape[1]))
    for k in range(n_clusters):
        clear = core & (labels == k)
        means[k] = points[clear if clear.any() else first.labels_ == k].mean(axis=0)
    with one_thread():
        return KMeans(n_clusters, init=means, n_init=1, tol=0.0).fit(points)


def _farthest_first(centres: Floats, start: NDArray[np.intp], n: int) -> list[int]:
    """Numbers of n centres: those of one site, then always the farthest from all chosen."""
    chosen = [int(i) for i in start[:n]]
    nearest = _squared(centres, centres[chosen]).min(axis=1)
    while len(chosen) < n:
        if nearest.max() == 0:
            raise ValueError(
                f"the sites' centres are only {len(chosen)} different points, too few for {n} "
                "clusters; ask for fewer, or for more clusters at each site (n_local)."
            )
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, _squared(centres, centres[chosen[-1:]])[:, 0])
    return chosen


def _squared(points: Floats, centres: Floats) -> Floats:
    columns = [((points - centre) ** 2).sum(axis=1) for centre in centres]
    return np.stack(columns, axis=1)


def _fit(points: Floats, n_clusters: int, n_starts: int, seed: int, what: str, seeding: str) -> Any:
    from sklearn.cluster import KMeans

    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_starts = whole_number(n_starts, 1, "n_starts")
    one_of(seeding, SEEDINGS, "seeding")
    _refuse_few(points, n_clusters, what)
    start = _plain_seeds if seeding == "plain" else "k-means++"
    with one_thread():
        return KMeans(n_clusters, init=start, n_init=n_starts, random_state=seed).fit(points)


def _plain_seeds(points: Floats, n_clusters: int, random_state: Any) -> Floats:
    """k-means++ as published: each next seed is drawn in proportion to squared distance."""
    seeds = [int(random_state.randint(len(points)))]
    nearest = np.full(len(points), np.inf)
    for _ in range(n_clusters - 1):
        nearest = np.minimum(nearest, ((points - points[seeds[-1]]) ** 2).sum(axis=1))
        mass = np.cumsum(nearest)
        drawn = np.searchsorted(mass, random_state.random_sample() * mass[-1], side="right")
        seeds.append(min(int(drawn), len(points) - 1))
    chosen: Floats = points[seeds]
    return chosen


def one_thread() -> Any:
    """Sites are small: scikit-learn's threads would wait for each other most of the time."""
    return _thread_pools().limit(limits=1)


@cache
def _thread_pools() -> Any:
    import sklearn.cluster  # noqa: F401 - loads the pools to be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


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


def _arrays(data: Mapping[Any, ArrayLike]) -> dict[Any, Floats]:
    if not isinstance(data, Mapping) or not data:
        raise TypeError(
            f"data must be a dict {{site: (n, p)}} with at least one site; found "
            f"{type(data).__name__}."
        )
    arrays = {site: np.asarray(points, dtype=float) for site, points in data.items()}
    shapes = {site: points.shape for site, points in arrays.items()}
    width = next(iter(shapes.values()))[1:]
    if wrong := [s for s, shape in shapes.items() if len(shape) != 2 or shape[1:] != width]:
        raise ValueError(
            f"every site needs a table of patients × the same variables; found the shapes "
            f"{some(shapes[site] for site in wrong)} at the sites {some(wrong)}."
        )
    if wrong := [site for site, points in arrays.items() if not np.isfinite(points).all()]:
        raise ValueError(
            f"the data of the sites {some(wrong)} hold missing or infinite values; fill them or "
            "leave these patients out."
        )
    return arrays


def _refuse_few(points: Floats, n_clusters: int, what: str) -> None:
    if len(points) < n_clusters:
        raise ValueError(
            f"{what} has {len(points)} patients, too few for {n_clusters} clusters; ask for fewer "
            "clusters or leave the site out."
        )


def _index(data: Any, n: int) -> pd.Index:
    return data.index if isinstance(data, pd.DataFrame) else pd.RangeIndex(n)


def _split(clusters: Integers, index: Mapping[Any, pd.Index]) -> Clusters:
    ends = np.cumsum([len(ids) for ids in index.values()])
    parts = np.split(clusters, ends[:-1])
    return {
        site: pd.Series(part, index=ids, name="cluster")
        for (site, ids), part in zip(index.items(), parts, strict=True)
    }
