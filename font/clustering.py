"""From distances between label patterns to clusters: positions, K-means, linkage, latent clusters.

Every geometry used here is linear in the one-hot labels: a pattern z has the position zW.

- Rows of D̃ = ZBZᵀ: ‖D̃_p − D̃_q‖² = (z_p − z_q)ᵀ B S B (z_p − z_q), so W = B S^½.
- D̃ itself as squared distance: −½HD̃H = XXᵀ with principal coordinates X = ZW, from an
  eigenproblem as large as the number of classes of all models together.

Patterns carry the number of patients as weight; nothing is ever as large as N×N. The last step of
an ensemble depends on what is known of the patients:

- `cluster_patterns`, from the counts of label patterns: exactly the clustering of the rows of D̃,
  or of D̃ itself.
- `cluster_tables`, from the cross-tables alone. A patient's position is z·A with A = B·S^½, and
  the mean position of the patients in class k of model m is the row of S·A divided by their
  number. K-means on those means gives the centres, and each site places its own patients. With
  "latent" the labels are then taken for readings of one latent cluster (`latent_clusters`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, Integers
from font.errors import InputError, option
from font.labels import AddedTables
from font.probabilities import climb, probabilities
from font.weights import Weighed, one_hot

ONLY_TABLES = ("latent", "kmeans-classes")  # the same whether patterns are given or cross-tables
METHODS = ("kmeans", "kmeans-distance", "average", "complete", "ward", "spectral", *ONLY_TABLES)
FROM_TABLES = ("kmeans", *ONLY_TABLES)  # those that cross-tables are enough for
LINKAGES = ("average", "complete", "ward")
_MOST_LINKED = 10_000
_FEW, _MANY = 30, 2_500
_SAME = 1e-7
_FEW_UPDATES, _MOST_UPDATES, _GAIN = 30, 1_000, 1e-11
_PSEUDO = 0.5  # patients added to each cell of a confusion table, so that none is impossible


def same_positions(points: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that stand for all different positions, and for each row its position's number.

    Patterns that differ only in labels without influence (a model of weight 0, two classes with
    equal parameters) share a position up to rounding. Along one random direction equal rows are
    neighbours.
    """
    direction = np.random.default_rng(0).normal(size=points.shape[1])
    along = points @ direction
    order = np.argsort(along, kind="stable")
    scale = np.sqrt((points**2).sum(axis=1).max(initial=0.0))
    close = np.diff(along[order]) <= _SAME * scale * np.linalg.norm(direction)
    pairs = np.flatnonzero(close)
    step = points[order[pairs + 1]] - points[order[pairs]]
    close[pairs] = np.sqrt((step**2).sum(axis=1)) <= _SAME * scale
    number = np.empty(len(points), dtype=np.intp)
    number[order] = np.cumsum(np.append(True, ~close)[: len(points)]) - 1
    first = np.unique(number, return_index=True)[1]
    return first, number


class TooManyClusters(InputError):
    """More clusters were asked for than there are different positions (`n_positions`)."""

    def __init__(self, n_clusters: int, n_positions: int) -> None:
        super().__init__(
            f"{n_clusters} clusters are too many: the label patterns differ in only {n_positions} "
            f"ways that matter; ask for at most {n_positions}."
        )
        self.n_positions = n_positions


def kmeans(points: Floats, weights: Floats, n_clusters: int, seed: int) -> Integers:
    """Weighted K-means of points (P, r): the best of many starts of scikit-learn's.

    Equal positions are merged first, so that every start is seeded from different ones. Where
    models disagree, as few as 3 to 7 starts in 100 reach the best sum of squares known (most often
    50 to 100). Up to 2,500 positions there are 40: half seeded by scikit-learn's greedy k-means++,
    the better kind in most cases, half by plain k-means++, which differ more from each other. In
    85 hard cases the sum of squares was at most 0.03 % above the best known, with 40 greedy ones
    up to 2 %. Among more positions a start costs more and fails less often: 5 to 20 greedy ones.
    Among very few, a heavy position may lie half-way between centres: starts from positions alone
    missed the best partition in 5 of 103 cases, and with random partitions besides in none.
    """
    first, number = same_positions(points)
    if n_clusters > len(first):
        raise TooManyClusters(n_clusters, len(first))
    if n_clusters == len(first):
        return number
    weight = np.bincount(number, weights=weights).astype(float)
    rows = points[first] - np.average(points, axis=0, weights=weights)
    random_state = int(np.random.default_rng(seed).integers(2**31))
    starts: list[tuple[Any, int]] = [("k-means++", int(np.clip(100_000 // len(rows), 5, 20)))]
    if len(rows) <= _MANY:
        starts.append((partial(plain_seeds, weights=weight), 20))
    if len(rows) <= _FEW:
        starts.append((_random_partition, 40))
    from sklearn.cluster import KMeans

    with one_thread():
        fits = [
            KMeans(n_clusters, init=init, n_init=n_init, tol=0.0, random_state=random_state).fit(
                rows, sample_weight=weight
            )
            for init, n_init in starts
        ]
    labels: Integers = min(fits, key=lambda fit: fit.inertia_).labels_
    return labels[number]


def plain_seeds(
    points: Floats, n_clusters: int, random_state: Any, weights: Floats | None = None
) -> Floats:
    """k-means++ as published: each next seed is one draw in proportion to squared distance.

    Scikit-learn's `kmeans_plusplus` with one trial does the same, but a fit of a small site with
    ten starts then takes 9 ms instead of 5.
    """
    mass = np.ones(len(points)) if weights is None else weights
    nearest, seeds = mass, []
    for _ in range(n_clusters):
        heap = np.cumsum(nearest)
        drawn = np.searchsorted(heap, random_state.random_sample() * heap[-1], side="right")
        seeds.append(min(int(drawn), len(points) - 1))
        far = mass * ((points - points[seeds[-1]]) ** 2).sum(axis=1)
        nearest = far if len(seeds) == 1 else np.minimum(nearest, far)
    return points[seeds]


def _random_partition(points: Floats, n_clusters: int, random_state: Any) -> Floats:
    """The means of groups drawn at random, none empty."""
    others = random_state.randint(n_clusters, size=len(points) - n_clusters)
    group = random_state.permutation(np.append(np.arange(n_clusters), others))
    return np.array([points[group == k].mean(axis=0) for k in range(n_clusters)])


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra and scikit-learn on one thread, without scikit-learn's repeated checks.

    The matrices here are small: on a busy machine threads that wait for each other cost many
    times the work, and sums in one order give the same result everywhere.
    """
    if "sklearn" not in sys.modules:
        with _thread_pools(False).limit(limits=1):
            yield
        return
    from sklearn import config_context

    quick = config_context(assume_finite=True, skip_parameter_validation=True)
    with _thread_pools(True).limit(limits=1), quick:
        yield


@cache
def _thread_pools(with_sklearn: bool) -> Any:
    """The pools loaded by now; scikit-learn brings one of its own."""
    if with_sklearn:
        import sklearn.cluster  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def linkage(distances: Floats, sizes: Floats, n_clusters: int, method: str) -> Integers:
    """Cut an agglomerative tree of weighted points into clusters.

    Each point stands for `sizes` patients at distance 0 of each other; the result is that of
    scipy's `linkage` on all patients with `distances` (P, P) between them. Nearest-neighbour
    chains with the update of Lance and Williams, O(P²).
    """
    n = len(distances)
    far = distances.copy()
    size = sizes.astype(float)
    if method == "ward":  # squared; between groups of a and b copies 2ab/(a + b) times D²
        far = far**2 * (2 * size[:, None] * size[None, :] / (size[:, None] + size[None, :]))
    np.fill_diagonal(far, np.inf)
    merges = np.empty((n - 1, 2), dtype=np.intp)
    heights = np.empty(n - 1)
    alive = np.ones(n, dtype=bool)
    chain: list[int] = []
    for step in range(n - 1):
        if not chain:
            chain.append(int(np.argmax(alive)))
        while True:
            a = chain[-1]
            b = int(np.argmin(far[a]))
            if len(chain) > 1 and far[a, chain[-2]] <= far[a, b]:
                b = chain[-2]  # ties go back, or the chain would never end
                break
            chain.append(b)
        del chain[-2:]
        merges[step], heights[step] = (a, b), far[a, b]
        row = _joined(far[a], far[b], far[a, b], size, a, b, method)
        row[~alive] = row[a] = row[b] = np.inf
        far[b] = far[:, b] = row
        far[a] = far[:, a] = np.inf
        size[b] += size[a]
        alive[a] = False
    n_positions = 1 + int((heights > 1e-12 * heights.max(initial=0.0)).sum())
    if n_clusters > n_positions:
        raise TooManyClusters(n_clusters, n_positions)
    return _cut(merges, heights, n_clusters)


def _joined(
    to_a: Floats, to_b: Floats, between: float, size: Floats, a: int, b: int, method: str
) -> Floats:
    """Distances of all others to the union of a and b."""
    if method == "complete":
        return np.maximum(to_a, to_b)
    if method == "average":
        average: Floats = (size[a] * to_a + size[b] * to_b) / (size[a] + size[b])
        return average
    ward: Floats = ((size[a] + size) * to_a + (size[b] + size) * to_b - size * between) / (
        size[a] + size[b] + size
    )
    return ward


def _cut(merges: NDArray[np.intp], heights: Floats, n_clusters: int) -> Integers:
    """Undo all but the lowest n − K merges. A chain's merge names a point of each part."""
    n = len(merges) + 1
    parent = np.arange(n)

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = int(parent[i])
        return i

    for step in np.argsort(heights, kind="stable")[: n - n_clusters]:
        a, b = merges[step]
        parent[root(int(a))] = root(int(b))
    return np.unique([root(i) for i in range(n)], return_inverse=True)[1]


def check_linkage_size(n_patterns: int, method: str) -> None:
    """Refuse more label patterns than can be compared pairwise."""
    if n_patterns > _MOST_LINKED:
        raise InputError(
            f"{method} linkage compares all pairs of {n_patterns:,} label patterns, more than the "
            f"{_MOST_LINKED:,} that fit; use {option('method', 'kmeans')} instead."
        )


# --- latent clusters --------------------------------------------------------------------------


def latent_clusters(
    total: Floats, offsets: NDArray[np.intp], starts: Sequence[Floats], share: Floats | None = None
) -> tuple[Floats, Floats]:
    """Proportions π (C,) and confusion tables A (ΣK, C) of latent clusters that the labels read.

    Errors are taken to be independent between models (Dawid and Skene): with C^{ts} the cross-table
    of the models t and s, π and A maximise Σ_{t<s} Σ_kl C^{ts}_kl log Σ_c π_c A_t[k, c] A_s[l, c].
    EM on the pairs of models, by multiplicative updates. All starts, (ΣK, C) memberships of classes
    in clusters, make a few updates, and the best goes on. A patient is counted in every pair, so
    that this is a composite likelihood, not the full one; and as pairs do not say everything that
    triples would, several solutions may fit alike, of which one near the beginning is found. Model
    m counts as `share[m]` models.
    """
    sizes = np.diff(offsets)
    n_models = len(sizes)
    rho = np.repeat(np.ones(n_models) if share is None else share, sizes)
    same = np.repeat(np.arange(n_models), sizes)
    pairs = np.where(same[:, None] == same[None, :], 0.0, total * rho[:, None] * rho[None, :])
    if n_models == 1:
        pairs = total * np.eye(len(total))  # a model read twice, for want of another
    pseudo = _PSEUDO * max(pairs.sum() / max(np.trace(total), 1e-300), 1e-300)

    def by_model(counts: Floats) -> Floats:
        return probabilities(counts.T, pseudo, sizes=sizes).T

    def update(now: tuple[Floats, Floats]) -> tuple[tuple[Floats, Floats], float]:
        proportions, confusion = now
        chance = (confusion * proportions) @ confusion.T
        value = float((pairs * np.log(np.maximum(chance, 1e-300))).sum())
        value += pseudo * float(np.log(confusion).sum())
        ratio = np.divide(pairs, chance, out=np.zeros_like(pairs), where=pairs > 0)
        expected = confusion * (ratio @ confusion) * proportions
        return (expected.sum(axis=0) / expected.sum(), by_model(expected)), value

    runs = []
    for member in starts:
        start = probabilities(np.diag(total) @ member, _PSEUDO), by_model(pairs @ member)
        runs.append(climb(update, start, _FEW_UPDATES, rtol=_GAIN))
    best, _, _ = max(runs, key=lambda run: run[1])
    return climb(update, best, _MOST_UPDATES, rtol=_GAIN)[0]


# --- clusters of patterns and of tables -------------------------------------------------------

_MOST_STARTS = 10


class Clusters(NamedTuple):
    """The last step's result, clusters by decreasing size.

    Positions are z·`axes` (ΣK, r), `centres` (C, r) those of the clusters. `member` (ΣK, C) says
    how many of the patients of each class of each model, or which share, are in each cluster;
    `sizes` are patients by cluster and site; `labels` (P,) the cluster of each pattern, empty from
    cross-tables; `proportions` (C,) and `confusion` (ΣK, C) those of latent clusters, otherwise
    empty.
    """

    axes: Floats
    centres: Floats
    member: Floats
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    proportions: Floats = np.zeros(0)
    confusion: Floats = np.zeros((0, 0))


def cluster_patterns(
    weighed: Weighed,
    patterns: Integers,
    counts: NDArray[np.int64],
    n_clusters: int | None,
    method: str,
    seed: int,
) -> Clusters:
    """Cluster label patterns (P, M) with counts (P, sites)."""
    n = counts.sum(axis=1)
    wanted = n_clusters or weighed.choice.n_clusters
    axes = weighed.axes
    if method == "spectral":
        axes = weighed.principal[:, : max(wanted - 1, 1)]
    elif method == "kmeans-distance":
        axes = weighed.principal
    points = positions(patterns, weighed.offsets, axes)
    if method in LINKAGES:
        check_linkage_size(len(patterns), method)
        far = np.zeros((len(patterns), len(patterns)))
        for column, begin in zip(patterns.T, weighed.offsets[:-1], strict=True):
            rows = begin + column.astype(np.intp)
            far += weighed.metric[np.ix_(rows, rows)]
        labels = linkage(far, n, wanted, method)
    else:
        labels = kmeans(points, n.astype(float), wanted, seed)
    labels = _by_size(labels, n)
    groups = [labels == k for k in range(wanted)]
    return Clusters(
        axes,
        np.array([np.average(points[group], axis=0, weights=n[group]) for group in groups]),
        _patients_by_class(patterns, labels, n, weighed.offsets),
        np.array([counts[group].sum(axis=0) for group in groups]),
        labels,
    )


def cluster_tables(
    weighed: Weighed,
    tables: AddedTables,
    share: Floats,
    n_clusters: int | None,
    method: str,
    seed: int,
) -> Clusters:
    """Cluster the patients behind cross-tables: `method` is one of `FROM_TABLES`."""
    total = tables.total(capped=True)
    counts, offsets = np.diag(total), weighed.offsets
    used, n_classes = counts > 0, np.diff(offsets)
    wanted = n_clusters or weighed.choice.n_clusters
    axes = _main_axes(weighed.axes, total, len(n_classes))
    # models without weight, whose classes may all lie in the middle, make no clusters
    mass = counts * np.repeat(share * (weighed.weights > 0), n_classes)
    centres, member = _class_clusters(axes, total, mass, wanted, seed)
    proportions, confusion = np.zeros(0), np.zeros((0, 0))
    if method == "latent":
        # from the K-means, and from those models' own classes that have as many
        alike = [m for m in np.argsort(-weighed.weights) if n_classes[m] == wanted]
        inverse = np.divide(1.0, counts, out=np.zeros_like(counts), where=used)[:, None]
        starts = [total[:, offsets[m] : offsets[m + 1]] * inverse for m in alike[:_MOST_STARTS]]
        proportions, confusion = latent_clusters(total, offsets, [member, *starts], share)
        joint = confusion * proportions
        member = np.where(used[:, None], joint / joint.sum(axis=1, keepdims=True), 0.0)
        axes, centres = axes[:, :0], centres[:, :0]  # place nobody, and would fill the file
    by_model = np.repeat(weighed.weights, n_classes)[:, None] / weighed.weights.sum() * member
    sizes = np.array([size @ by_model for size in tables.sizes.values()]).T
    order = np.argsort(-sizes.sum(axis=1), kind="stable")
    return Clusters(
        axes,
        centres[order],
        member[:, order],
        np.rint(sizes[order]).astype(np.int64),
        proportions=proportions[order] if method == "latent" else proportions,
        confusion=confusion[:, order] if method == "latent" else confusion,
    )


def _class_clusters(
    axes: Floats, total: Floats, mass: Floats, n_clusters: int, seed: int
) -> tuple[Floats, Floats]:
    """K-means on the mean positions of the classes, weighted by `mass` (ΣK,).

    Centres (n_clusters, r), and for each class that has patients a 1 for its cluster.
    """
    counts = np.diag(total)
    used = np.flatnonzero(counts > 0)
    points = (total @ axes)[used] / counts[used, None]
    heavy = mass[used] > 0
    weight = mass[used][heavy]
    labels = kmeans(points[heavy], weight, n_clusters, seed)
    group = np.eye(n_clusters)[labels].T * weight
    centres = group @ points[heavy] / group.sum(axis=1, keepdims=True)
    nearest = distances_to(points, centres).argmin(axis=1)
    nearest[heavy] = labels
    member = np.zeros((len(counts), n_clusters))
    member[used, nearest] = 1.0
    return centres, member


def _main_axes(axes: Floats, total: Floats, n_models: int) -> Floats:
    """The axes (ΣK, ΣK) turned so that patients' positions vary along few columns, (ΣK, r)."""
    counts = np.diag(total)
    n = counts.sum() / n_models
    mean = counts @ axes / n
    covariance = axes.T @ total @ axes / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    kept = values > 1e-9 * max(values[-1], 0.0)
    kept[-1] = True
    turned: Floats = axes @ vectors[:, kept][:, ::-1]
    return turned


def _patients_by_class(
    patterns: Integers, clusters: Integers, counts: NDArray[Any], offsets: NDArray[np.intp]
) -> Floats:
    """Patients by class of each model and cluster, (ΣK, n_clusters)."""
    n_clusters = int(clusters.max()) + 1
    tables = []
    for column, size in zip(patterns.T, np.diff(offsets), strict=True):
        pair = column.astype(np.int64) * n_clusters + clusters
        table = np.bincount(pair, weights=counts, minlength=size * n_clusters)
        tables.append(table.reshape(size, n_clusters))
    return np.concatenate(tables)


def positions(patterns: Integers, offsets: NDArray[np.intp], axes: Floats) -> Floats:
    """z·axes for each pattern, (P, r), in blocks of patterns."""
    points = np.empty((len(patterns), axes.shape[1]))
    step = max(1, (1 << 21) // int(offsets[-1]))
    for begin in range(0, len(patterns), step):
        part = patterns[begin : begin + step]
        points[begin : begin + step] = one_hot(part, offsets) @ axes
    return points


def distances_to(points: Floats, centres: Floats) -> Floats:
    """Euclidean distances (P, K); cluster by cluster, so that no third axis is formed."""
    columns = [np.linalg.norm(points - centre, axis=1) for centre in centres]
    return np.stack(columns, axis=1)


def _by_size(labels: Integers, counts: NDArray[Any]) -> NDArray[np.int64]:
    """Clusters renumbered by decreasing number of patients, then by first pattern."""
    size = np.bincount(labels, weights=counts)
    first = np.unique(labels, return_index=True)[1]
    rank = np.empty(len(size), dtype=np.int64)
    rank[np.lexsort([first, -size])] = np.arange(len(size))
    return rank[labels]
