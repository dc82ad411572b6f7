"""Compiled loops for distances between sequences and for clusters of them: arrays, no objects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences._compiled import entry, inner


@entry
def aligned_distances(
    a: NDArray[np.uint8],
    b: NDArray[np.uint8],
    costs: NDArray[np.float64],
    same: bool,
    out: NDArray[np.floating],
) -> None:
    """Sums over time of the costs of the two states at that time, for each row of `a` and of `b`.

    Parameters
    ----------
    a, b : (n, T), (m, T)
    costs : (T or 1, S, S)
        Costs at each time, or at all times.
    same : bool
        `b` is `a`: each two rows are compared once.
    out : (n, m)
    """
    n, n_times = a.shape
    step = 1 if len(costs) > 1 else 0
    for i in range(n):
        for j in range(i if same else 0, len(b)):
            total = 0.0
            for t in range(n_times):
                total += costs[t * step, a[i, t], b[j, t]]
            out[i, j] = total
            if same:
                out[j, i] = total


@entry
def edit_distances(
    a: NDArray[np.uint8],
    a_lengths: NDArray[np.int32],
    b: NDArray[np.uint8],
    b_lengths: NDArray[np.int32],
    cost: NDArray[np.float64],
    indel: float,
    same: bool,
    out: NDArray[np.floating],
) -> None:
    """The cheapest way to turn a sequence into another one, for each row of `a` and of `b`.

    A state is replaced by another one at the price `cost` (S, S), inserted or deleted at the price
    `indel`. The table of the cheapest ways from each beginning to each beginning is kept from one
    row of `b` to the next: where that begins in the same way, its rows are known. So sorted
    sequences take the least time.
    """
    n_times = a.shape[1]
    table = np.empty((n_times + 1, n_times + 1))
    shared = np.zeros(len(b), dtype=np.int32)
    for j in range(1, len(b)):
        most = min(b_lengths[j], b_lengths[j - 1])
        while shared[j] < most and b[j, shared[j]] == b[j - 1, shared[j]]:
            shared[j] += 1
    for i in range(len(a)):
        length = a_lengths[i]
        for c in range(length + 1):
            table[0, c] = c * indel
        begin = i if same else 0
        for j in range(begin, len(b)):
            for r in range(shared[j] if j > begin else 0, b_lengths[j]):
                state = b[j, r]
                left = (r + 1) * indel
                table[r + 1, 0] = left
                for c in range(length):
                    least = table[r, c] + cost[a[i, c], state]
                    least = min(least, min(left, table[r, c + 1]) + indel)
                    table[r + 1, c + 1] = least
                    left = least
            out[i, j] = table[b_lengths[j], length]
            if same:
                out[j, i] = out[i, j]


@entry
def build_medoids(
    distance: NDArray[np.float32], weight: NDArray[np.float64], medoids: NDArray[np.int64]
) -> None:
    """Choose medoids one after the other, each to make the sum of distances smallest.

    The first k are the choice for k medoids. A sum is that of `weight` times the distance to the
    nearest medoid; among equal ones the first row is taken.
    """
    n = len(distance)
    nearest = np.full(n, np.inf)
    taken = np.zeros(n, dtype=np.bool_)
    for k in range(len(medoids)):
        best, least = -1, np.inf
        for x in range(n):
            if taken[x]:
                continue
            total = 0.0
            for o in range(n):
                total += weight[o] * min(nearest[o], distance[x, o])
            if total < least:
                best, least = x, total
        medoids[k], taken[best] = best, True
        for o in range(n):
            nearest[o] = min(nearest[o], distance[best, o])


@entry
def swap_medoids(
    distance: NDArray[np.float32], weight: NDArray[np.float64], medoids: NDArray[np.int64]
) -> None:
    """Exchange a medoid for another row as long as that makes the sum of distances smaller.

    All exchanges with a row are judged in one pass over its distances, and the best one is made at
    once (FasterPAM: Schubert and Rousseeuw, 2021). There are at least two medoids; they are
    changed in place.
    """
    n, k = len(distance), len(medoids)
    own = np.empty(n, dtype=np.int64)
    first, second = np.empty(n), np.empty(n)
    loss, change = np.empty(k), np.empty(k)
    is_medoid = np.zeros(n, dtype=np.bool_)
    for i in range(k):
        is_medoid[medoids[i]] = True
    total = _find_nearest(distance, weight, medoids, own, first, second, loss)
    x, since = 0, 0
    while since < n:
        if not is_medoid[x]:
            gain = 0.0  # whichever medoid is given up
            change[:] = loss
            for o in range(n):
                d = distance[x, o]
                if d < first[o]:
                    gain += weight[o] * (d - first[o])
                    change[own[o]] += weight[o] * (first[o] - second[o])
                elif d < second[o]:
                    change[own[o]] += weight[o] * (d - second[o])
            worst = change.argmin()
            if change[worst] + gain < -1e-9 * total:
                is_medoid[medoids[worst]] = False
                is_medoid[x] = True
                medoids[worst] = x
                total = _find_nearest(distance, weight, medoids, own, first, second, loss)
                since = 0
        since += 1
        x = x + 1 if x + 1 < n else 0


@inner
def _find_nearest(
    distance: NDArray[np.float32],
    weight: NDArray[np.float64],
    medoids: NDArray[np.int64],
    own: NDArray[np.int64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    loss: NDArray[np.float64],
) -> float:
    """The nearest medoid of each row, its distance and the next one's; returns the sum.

    `loss` (k,) is what the sum gains where each medoid is given up.
    """
    first[:] = np.inf
    second[:] = np.inf
    for i in range(len(medoids)):
        for o in range(len(first)):
            d = distance[medoids[i], o]
            if d < first[o]:
                second[o] = first[o]
                first[o], own[o] = d, i
            elif d < second[o]:
                second[o] = d
    loss[:] = 0.0
    total = 0.0
    for o in range(len(first)):
        loss[own[o]] += weight[o] * (second[o] - first[o])
        total += weight[o] * first[o]
    return total


@entry
def ward_merges(
    distance: NDArray[np.float32], weight: NDArray[np.float64], merges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Join rows by Ward's method, each row counting as `weight` equal ones; returns the heights.

    Follows chains of nearest neighbours (Müllner, 2011). Merge m joins the groups of which the rows
    `merges[m]` (n − 1, 2) are members; merges are not in the order of their heights. The squared
    heights replace the distances above the diagonal; those below it stay.
    """
    n = len(distance)
    size = weight.copy()
    gone = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        for j in range(i + 1, n):
            both = 2 * weight[i] * weight[j] / (weight[i] + weight[j])
            distance[i, j] = both * distance[i, j] ** 2
    heights = np.empty(n - 1)
    chain = np.empty(n, dtype=np.int64)
    length, start = 0, 0
    for m in range(n - 1):
        if length == 0:
            while gone[start]:
                start += 1
            chain[0] = start
            length = 1
        while True:
            x = chain[length - 1]
            # the one before in the chain wins where others are as near, so that chains end
            y = chain[length - 2] if length > 1 else -1
            least = distance[min(x, y), max(x, y)] if length > 1 else np.float32(np.inf)
            for j in range(x):
                if not gone[j] and distance[j, x] < least:
                    y, least = j, distance[j, x]
            for j in range(x + 1, n):
                if not gone[j] and distance[x, j] < least:
                    y, least = j, distance[x, j]
            if length > 1 and y == chain[length - 2]:
                break
            chain[length] = y
            length += 1
        length -= 2
        x, y = min(x, y), max(x, y)
        merges[m, 0], merges[m, 1] = x, y
        heights[m] = np.sqrt(least)
        for k in range(n):
            if gone[k] or k in (x, y):
                continue
            to_x = distance[min(k, x), max(k, x)]
            to_y = distance[min(k, y), max(k, y)]
            joined = (size[k] + size[x]) * to_x + (size[k] + size[y]) * to_y - size[k] * least
            distance[min(k, y), max(k, y)] = joined / (size[k] + size[x] + size[y])
        size[y] += size[x]
        gone[x] = True
    return heights


@entry
def sums_by_cluster(
    distance: NDArray[np.float32],
    weight: NDArray[np.float64],
    labels: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> None:
    """Adds `weight` times the distance from each row to the members of each cluster, (n, K)."""
    for i in range(len(distance)):
        for j in range(len(distance)):
            sums[i, labels[j]] += weight[j] * distance[i, j]
