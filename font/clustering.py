"""From distances between label patterns to clusters, and how many clusters there are.

Every geometry used here is linear in the one-hot labels: a pattern z has the position zW.

- Rows of D̃ = ZBZᵀ: ‖D̃_p − D̃_q‖² = (z_p − z_q)ᵀ B S B (z_p − z_q), so W = B S^½.
- D̃ itself as squared distance: −½HD̃H = XXᵀ with principal coordinates X = ZW, from an
  eigenproblem as large as the number of classes of all models together.

Patterns carry the number of patients as weight; nothing is ever as large as N×N.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import some

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

METHODS = ("kmeans", "kmeans-distance", "average", "complete", "ward", "spectral")
LINKAGES = ("average", "complete", "ward")
_MOST_LINKED = 10_000
_N_STARTS = 20
_MOST_SEEDED = 2_048
_MOST_STEPS = 300
_MOST_MOVES = 100
_FEW = 256
_SAME = 1e-8


def square_root(tables: Floats) -> Floats:
    """Symmetric root of S = ZᵀZ; what is 0 up to rounding is 0."""
    values, vectors = np.linalg.eigh(tables)
    values[values < 1e-13 * values[-1]] = 0.0
    root: Floats = (vectors * np.sqrt(values)) @ vectors.T
    return root


def principal_axes(centred: Floats, root: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues of −HD̃H, largest first, and the map W to principal coordinates of −½HD̃H.

    `centred` is B with each block double-centred, `root` is S^½: the non-zero eigenvalues of
    −ZBZᵀ are those of −S^½ B S^½, and the coordinates for the eigenvector y are −ZBS^½y/√λ.
    Negative eigenvalues, which a distance function of one's own may give, have no coordinates.
    """
    inner = -(root @ centred @ root)
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > 1e-12 * np.abs(values).max(initial=0.0)
    axes = -(centred @ root @ vectors[:, kept]) / np.sqrt(2 * values[kept])
    return values, axes


def same_positions(points: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that stand for all different positions, and for each row its position's number.

    Patterns that differ only in labels without influence (a model of weight 0, two classes
    with equal parameters) share a position up to rounding. Sorted along one random direction
    equal rows are neighbours.
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


class TooManyClusters(ValueError):
    """More clusters were asked for than there are different positions (`n_positions`)."""

    def __init__(self, n_clusters: int, n_positions: int) -> None:
        super().__init__(
            f"{n_clusters} clusters were asked for, but the label patterns differ in only "
            f"{n_positions} ways that matter; ask for at most {n_positions}, or share rarer "
            "patterns."
        )
        self.n_positions = n_positions


def kmeans(points: Floats, weights: Floats, n_clusters: int, seed: int) -> Integers:
    """Weighted K-means of points (P, r), from 20 k-means++ starts.

    All starts run to a fixed point, and the best are improved by moving single positions. Equal
    positions are merged first, so that starts are seeded from different ones. Among very many
    positions the starts look at a weighted sample, and the best three go on with all. The
    starts advance together, one matrix product a step: on tables of some hundred patterns this
    takes a fraction of the time of scikit-learn's one start after the other.
    """
    first, number = same_positions(points)
    if n_clusters > len(first):
        raise TooManyClusters(n_clusters, len(first))
    if n_clusters == len(first):
        return number
    rng = np.random.default_rng(seed)
    weight = np.bincount(number, weights=weights).astype(float)
    rows = points[first] - np.average(points, axis=0, weights=weights)
    chosen = _sample(weight, rng)
    centres = plus_plus(rows[chosen], weight[chosen], n_clusters, _N_STARTS, rng)
    centres, labels, inertia = lloyd(rows[chosen], weight[chosen], centres)
    if len(chosen) < len(rows):
        best = np.argsort(inertia, kind="stable")[:3]
        centres, labels, inertia = lloyd(rows, weight, centres[best])
    # where positions are few, moves are cheap and the next best starts often end lower
    scale = max(float(inertia.max()), np.finfo(float).tiny)
    different = np.unique((inertia / scale).round(9), return_index=True)[1]
    ends = [
        _exchange(rows, weight, centres[start], labels[:, start])
        for start in (different if len(rows) <= _FEW else different[:1])
    ]
    return min(ends, key=lambda end: end[0])[1][number]


def _sample(weights: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """All positions, or 2,048 drawn without replacement in proportion to their weights."""
    if len(weights) <= _MOST_SEEDED:
        return np.arange(len(weights))
    arrival = rng.exponential(size=len(weights)) / weights
    return np.sort(np.argpartition(arrival, _MOST_SEEDED)[:_MOST_SEEDED])


def plus_plus(
    points: Floats, weights: Floats, n_clusters: int, n_starts: int, rng: np.random.Generator
) -> Floats:
    """Centres (starts, K, r), each next one drawn in proportion to weight × squared distance."""
    norms = (points**2).sum(axis=1)[:, None]
    nearest = np.ones((len(points), n_starts))
    seeds = np.empty((n_starts, n_clusters), dtype=np.intp)
    for k in range(n_clusters):
        mass = np.cumsum(weights[:, None] * nearest, axis=0)
        target = rng.random(n_starts) * mass[-1]
        seeds[:, k] = (mass <= target).sum(axis=0)
        new = points[seeds[:, k]]
        far = np.maximum(norms - 2 * points @ new.T + (new**2).sum(axis=1), 0.0)
        far[seeds[:, k], np.arange(n_starts)] = 0.0  # whatever rounding says
        nearest = far if k == 0 else np.minimum(nearest, far)
    return points[seeds]


def lloyd(points: Floats, weights: Floats, centres: Floats) -> tuple[Floats, Integers, Floats]:
    """Lloyd's steps for all starts at once, until no label changes.

    From centres (R, K, r) to centres, labels (P, R) and weighted sums of squares (R,).
    """
    n_starts, n_clusters, rank = centres.shape
    centres, heavy = centres.copy(), weights[:, None] * points
    norms = (points**2).sum(axis=1)[:, None]
    labels = np.full((len(points), n_starts), -1)
    inertia = np.empty(n_starts)
    moving = np.arange(n_starts)
    for _ in range(_MOST_STEPS):
        flat = centres[moving].reshape(-1, rank)
        cost = (flat**2).sum(axis=1) - 2 * points @ flat.T
        cost = cost.reshape(len(points), len(moving), n_clusters)
        new = cost.argmin(axis=2)
        far = np.maximum(norms + cost.min(axis=2), 0.0) * weights[:, None]
        changed = (new != labels[:, moving]).any(axis=0)
        labels[:, moving], inertia[moving] = new, far.sum(axis=0)
        moving, new, far = moving[changed], new[:, changed], far[:, changed]
        if not len(moving):
            break
        member = new[:, :, None] == np.arange(n_clusters)
        member = member.reshape(len(points), -1).astype(float)
        mass = weights @ member
        flat = member.T @ heavy / np.where(mass > 0, mass, 1.0)[:, None]
        for empty in np.flatnonzero(mass == 0):  # rare: it restarts at the worst-placed point
            worst = far[:, empty // n_clusters]
            flat[empty] = points[np.argmax(worst)]
            worst[np.argmax(worst)] = 0.0
        centres[moving] = flat.reshape(-1, n_clusters, rank)
    return centres, labels, inertia


def _exchange(
    points: Floats, weights: Floats, centres: Floats, labels: Integers
) -> tuple[float, Integers]:
    """Move single positions between clusters while that lowers the sum of squares.

    Moving a point of weight w from cluster a to b changes it by
    w·m_b/(m_b + w)·d_b² − w·m_a/(m_a − w)·d_a², m the clusters' weights. Lloyd's steps miss
    such moves, above all where heavy patterns lie half-way between centres. Returns the sum of
    squares and the labels.
    """
    rows = np.arange(len(points))
    for _ in range(_MOST_MOVES):
        mass = np.bincount(labels, weights=weights, minlength=len(centres))
        far = np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
        own, rest = far[rows, labels], mass[labels] - weights
        lonely = rest <= 1e-12 * mass[labels]
        gain = weights * mass[labels] / np.where(lonely, 1.0, rest) * own
        cost = weights[:, None] * mass / (mass + weights[:, None]) * far
        cost[rows, labels] = np.inf
        change = np.where(lonely, np.inf, cost.min(axis=1) - gain)
        mover = int(np.argmin(change))
        total = float((weights * own).sum())
        if not change[mover] < -1e-10 * total:
            break
        labels = labels.copy()
        labels[mover] = np.argmin(cost[mover])
        means = [
            np.average(points[labels == k], axis=0, weights=weights[labels == k])
            for k in range(len(centres))
        ]
        moved, settled, _ = lloyd(points, weights, np.array(means)[None])
        centres, labels = moved[0], settled[:, 0]
    return total, labels


@cache
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread() -> Any:
    """A context in which linear algebra keeps to one thread.

    The matrices here are small: on a busy machine threads that wait for each other cost many
    times the work, and sums in one order give the same result everywhere.
    """
    return _thread_pools().limit(limits=1)


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


def refuse_large(n_patterns: int, method: str) -> None:
    if n_patterns > _MOST_LINKED:
        raise ValueError(
            f"{method} linkage compares all pairs of {n_patterns:,} label patterns, more than the "
            f'{_MOST_LINKED:,} that fit; use method="kmeans" or withhold rare patterns.'
        )


# --- how many clusters -------------------------------------------------------------------


class SpectrumChoice(NamedTuple):
    """Number of clusters read off a spectrum, and how sure that is.

    Parameters
    ----------
    n_clusters : 1 + the number of eigenvalues above a tenth of the largest
    low, high : the same number results from any threshold between these shares of the largest
    sure : "clear" if the tenth may be halved and doubled, "fair" if it may be divided and
        multiplied by √2, else "doubtful"
    """

    n_clusters: int
    low: float
    high: float
    sure: str


def read_spectrum(values: Iterable[float], threshold: float = 0.1) -> SpectrumChoice:
    """The number of clusters from the eigenvalues of −HD̃H.

    K well-separated clusters give K − 1 large eigenvalues; the rest is noise.

    Examples
    --------
    >>> read_spectrum([10.0, 6.0, 3.0, 0.2, 0.1])
    SpectrumChoice(n_clusters=4, low=0.02, high=0.3, sure='clear')
    """
    array = np.sort(np.array(list(values), dtype=float))[::-1]
    if not array.size or array[0] <= 0:
        return SpectrumChoice(1, 0.0, 1.0, "clear")
    share = array / array[0]
    n_above = int((share > threshold).sum())
    low = max(float(share[n_above]), 0.0) if n_above < len(share) else 0.0
    high = float(share[n_above - 1])
    room = min(high / threshold, threshold / low if low > 0 else np.inf)
    sure = "clear" if room >= 2 else "fair" if room >= np.sqrt(2) else "doubtful"
    return SpectrumChoice(1 + n_above, low, high, sure)


def majority_vote(choices: Mapping[Any, int] | Iterable[int]) -> int:
    """The number of clusters most sites chose for themselves; the smaller one in a tie.

    Examples
    --------
    >>> majority_vote({"MGB": 4, "VA": 5, "BWH": 4})
    4
    """
    values = list(choices.values() if isinstance(choices, Mapping) else choices)
    if not values:
        raise ValueError("nobody voted: give at least one site's number of clusters.")
    bad = [
        v for v in values if isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1
    ]
    if bad:
        raise ValueError(f"votes must be whole numbers of at least 1; found {some(bad)}.")
    votes = Counter(int(v) for v in values)
    return min(votes, key=lambda k: (-votes[k], k))
