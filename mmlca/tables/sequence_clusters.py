"""Clusters of sequences by their distances: PAM and Ward, on distinct sequences with weights.

Ward's method of scipy takes no weights, and repeating rows would take n × n distances. The loop of
this package gives each distinct sequence the weight of its patients, with the same result.

Where there are more distinct sequences than distances fit in memory, samples stand for them. A
sample holds the sequences that many patients share, each with its weight, and some of the others,
drawn with probabilities that are proportional to their weights and with the weight that makes up
for that (systematic sampling).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import of_type, one_of, whole_number
from font.errors import InputError
from mmlca.model.params import Seed
from mmlca.sequences.type import Sequences
from mmlca.tables.describe import course_spells, course_texts
from mmlca.tables.disclosure import hide, hide_parts, hides, is_small
from mmlca.tables.distances import Costs, Distinct, Method, Metric, distinct_sequences, metric_of

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Linkage = Literal["pam", "ward"]

_SAMPLES = 10
_SAMPLE_SIZE = 2_000
_BLOCK = 4_000_000  # distances that are computed at a time


@dataclass(frozen=True, eq=False)
class SequenceClusters:
    """The result of `cluster_sequences`; clusters are in the order of falling size.

    Parameters
    ----------
    sequences : Sequences
        Of all patients.
    labels : Series
        The cluster of each patient, from 0, by id.
    medoids : (K,)
        Of each cluster the position of a patient with the sequence that has the smallest mean
        distance from the others; ``sequences[medoids]`` are these patients.
    distances : Series
        Of each patient from the medoid of the cluster, by id.
    silhouettes : Series
        By id, from −1 to 1: how much nearer a patient is to the own cluster than to the next one.
        Missing for patients without weight, and for those who are not in the sample, if there is
        one.
    choice : DataFrame
        Of each number of clusters compared: `k`, the mean `silhouette` (the largest is chosen) and
        the mean `distance` from the medoid.
    sampled : bool
        Whether samples were taken, so that silhouettes are estimates.
    """

    sequences: Sequences
    labels: pd.Series
    medoids: Rows
    distances: pd.Series
    silhouettes: pd.Series
    choice: pd.DataFrame
    sampled: bool

    @cached_property
    def sizes(self) -> Floats:
        """Sums of the patients' weights, (K,)."""
        return self._sums(self.sequences.weights)

    def _sums(self, values: NDArray[Any]) -> Floats:
        """Sums of the values of each cluster's patients."""
        return np.bincount(self.labels, values, len(self.medoids)).astype(float)

    def summary(self, min_count: int = 5) -> pd.DataFrame:
        """One row for each cluster, numbered from 1.

        Parameters
        ----------
        min_count : int
            Numbers of fewer patients are blank, and so are courses that fewer share; mean
            distances and silhouettes too where fewer have another course than the medoid.

        Returns
        -------
        DataFrame
            cluster, `count` (by weight) and `share`, `medoid` (its course), `sharing` (share of the
            cluster's patients who have it), `distance` (mean distance from it) and `silhouette`
            (mean).
        """
        data, n = self.sequences, len(self.medoids)
        weight = data.weights
        same = np.zeros(len(data), dtype=bool)
        for cluster, row in enumerate(self.medoids):
            alike = (data.codes == data.codes[row]).all(axis=1)
            same |= alike & (data.lengths == data.lengths[row]) & (self.labels == cluster)
        known = weight * self.silhouettes.notna()
        width = np.full(n, np.nan)
        total = self._sums(known * self.silhouettes.fillna(0.0))
        np.divide(total, self._sums(known), out=width, where=self._sums(known) > 0)
        patients, n_same = self._sums(weight > 0), self._sums(same & (weight > 0))
        table = pd.DataFrame(
            {
                "cluster": np.arange(1, n + 1),
                "count": self.sizes,
                "share": self.sizes / self.sizes.sum(),
                "medoid": course_texts(course_spells(data, self.medoids)),
                "sharing": self._sums(weight * same) / self.sizes,
                "distance": self._sums(weight * self.distances) / self.sizes,
                "silhouette": width,
                "patients": patients,
                "same": n_same,
                "others": patients - n_same,
            }
        )
        # where few have another course, means would reveal what they do
        means = ["sharing", "distance", "silhouette"]
        table = hide(table, means, ["patients", "others"], min_count)
        table = hide(table, ["sharing"], ["same"], min_count)
        table["medoid"] = table["medoid"].mask(is_small(n_same, min_count))
        table = hide_parts(table, [], ["count", "share"], min_count, patients=["patients"])
        if hides(min_count):
            table = table.round(dict.fromkeys(means, 2))
        return table.drop(columns=["patients", "same", "others"])


def cluster_sequences(
    sequences: Sequences,
    k: int | Iterable[int],
    method: Method = "hamming",
    linkage: Linkage = "pam",
    *,
    costs: Costs = "constant",
    indel: float | None = None,
    most_distinct: int = 20_000,
    seed: Seed = None,
) -> SequenceClusters:
    """Clusters of patients whose sequences are at small distances from each other.

    Parameters
    ----------
    sequences : Sequences
        Clustering is done on the distinct sequences, each with the weight of its patients; the
        result is that of all patients.
    k : int or several
        Number of clusters; of several the one with the largest mean silhouette.
    method, costs, indel
        The distance, as in `distances`, which also says what becomes of missing windows and of
        sequences of unequal lengths.
    linkage : "pam" or "ward"
        "pam" looks for the k sequences (medoids) from which the patients' mean distance is
        smallest: chosen one after the other, or those of Ward's clusters, then exchanged as long
        as that helps. "ward" joins the two clusters whose union adds least to the sum of squared
        distances (R's "ward.D2").
    most_distinct : int
        With more distinct sequences samples of 2,000 are taken: of the medoids of ten samples
        those nearest to all patients win ("pam", as CLARA does), or one sample is joined and all
        others follow the nearest sequence in it ("ward"). Otherwise distances need
        4 · (distinct sequences)² bytes: 1.6 GB for 20,000.
    seed : int or Generator, optional
        For the samples; without samples there is nothing random.

    Returns
    -------
    SequenceClusters

    Examples
    --------
    >>> s = Sequences.from_lists([["A"] * 6] * 7 + [["A"] * 2 + ["B"] * 4] * 5 + [["B"] * 6])
    >>> clusters = cluster_sequences(s, range(2, 4))
    >>> clusters.summary(min_count=0).round(2)
       cluster  count  share     medoid  sharing  distance  silhouette
    0        1    7.0   0.54        A×6     1.00      0.00        1.00
    1        2    6.0   0.46  A×2 → B×4     0.83      0.33        0.86
    """
    of_type(sequences, Sequences, "Sequences, such as those that Sequences.from_frame returns")
    one_of(linkage, ("pam", "ward"), "linkage")
    distinct = distinct_sequences(sequences)
    metric = metric_of(distinct, method, costs, indel)
    there = np.flatnonzero(distinct.weight > 0)
    ks = _numbers_of_clusters(k, len(there))
    whole_number(most_distinct, max(ks), "most_distinct")
    sampled = len(there) > most_distinct
    if sampled:
        rng = np.random.default_rng(seed)
        size = min(max(_SAMPLE_SIZE, 2 * max(ks)), most_distinct)
        samples = [draw_sequences(distinct.weight, size, rng) for _ in range(_SAMPLES)]
    else:
        samples = [Sample(there, distinct.weight[there])]
    first = _Look(samples[0], metric.square(np.float32, samples[0].rows))
    if linkage == "ward":
        first, found = _ward(metric, distinct, first, ks)
    else:
        others = (_Look(sample, metric.square(np.float32, sample.rows)) for sample in samples[1:])
        found = _pam(metric, distinct, chain([first], others), ks)
    found = [_by_size(distinct, *clusters) for clusters in found]
    widths = [
        silhouettes(first.square, first.sample.weight, labels[first.sample.rows], len(medoids))
        for labels, medoids in found
    ]
    far = [
        metric.between(np.arange(len(labels)), medoids)[np.arange(len(labels)), labels]
        for labels, medoids in found
    ]
    choice = pd.DataFrame(
        {
            "k": ks,
            "silhouette": [np.average(width, weights=first.sample.weight) for width in widths],
            "distance": [np.average(distance, weights=distinct.weight) for distance in far],
        }
    )
    best = 0 if len(ks) == 1 else int(choice["silhouette"].argmax())
    labels, medoids = found[best]
    width = np.full(len(labels), np.nan)
    width[first.sample.rows] = widths[best]
    by_id = (
        pd.Series(values[distinct.number], sequences.ids, name=name)
        for name, values in (("cluster", labels), ("distance", far[best]), ("silhouette", width))
    )
    label, distance, silhouette = by_id
    rows = distinct.rows[medoids]
    return SequenceClusters(sequences, label, rows, distance, silhouette, choice, sampled)


def _numbers_of_clusters(k: int | Iterable[int], n_distinct: int) -> list[int]:
    """The numbers of clusters to compare, in increasing order."""
    ks = sorted({whole_number(n, 1, "k") for n in (k if isinstance(k, Iterable) else [k])})
    if not ks:
        raise InputError("k names no number of clusters; give one, or several as in range(2, 7).")
    if len(ks) > 1 and ks[0] == 1:
        raise InputError(
            "k is 1 among other numbers of clusters, and they are compared by their silhouettes, "
            "which a single cluster does not have; begin with 2."
        )
    if ks[-1] > n_distinct:
        raise InputError(
            f"found {n_distinct:,} distinct sequences of patients with a weight, and k is "
            f"{ks[-1]:,}; there cannot be more clusters than distinct sequences."
        )
    return ks


# --- samples --------------------------------------------------------------------------------


class Sample(NamedTuple):
    """Some of the distinct sequences and the weights with which they stand for all, (n,)."""

    rows: Rows
    weight: Floats


class _Look(NamedTuple):
    """A sample and the distances between its sequences, (n, n)."""

    sample: Sample
    square: NDArray[np.float32]


def draw_sequences(weight: Floats, size: int, rng: np.random.Generator) -> Sample:
    """A systematic sample of `size` rows, drawn with probabilities proportional to their weights.

    Rows whose weight exceeds what one row of the sample stands for are taken for certain. Sums over
    the sample, each row multiplied by its weight over its probability, have the right expectation.

    Examples
    --------
    >>> sample = draw_sequences(np.array([50.0, 1, 1, 1, 1, 1, 1]), 3, np.random.default_rng(1))
    >>> len(sample.rows), sample.weight.tolist()
    (3, [50.0, 3.0, 3.0])
    """
    order = np.argsort(-weight, kind="stable")
    falling = weight[order]
    rest = falling.sum() - np.append(0.0, np.cumsum(falling))[:-1]
    left = size - np.arange(len(weight))
    certain = int(np.argmin((falling * left >= rest) & (left > 0) & (falling > 0)))
    light = rng.permutation(order[certain:])
    sums = np.append(0.0, np.cumsum(weight[light]))
    places = np.floor(sums / sums[-1] * (size - certain) + rng.random())
    drawn = light[places[1:] > places[:-1]]
    rows = np.concatenate([order[:certain], drawn])
    each = np.full(len(drawn), sums[-1] / (size - certain))
    weights = np.concatenate([falling[:certain], each])
    place = np.argsort(rows)
    return Sample(rows[place], weights[place])


def _nearest(metric: Metric, rows: Rows, others: Rows) -> tuple[Rows, Floats]:
    """The position of the nearest other one for each row, the first of several; its distance."""
    label, least = np.empty(len(rows), dtype=np.intp), np.empty(len(rows))
    step = max(1, _BLOCK // len(others))
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        distance = metric.between(rows[part], others)
        label[part] = distance.argmin(axis=1)
        least[part] = distance.min(axis=1)
    return label, least


# --- clusters -------------------------------------------------------------------------------


def _by_size(distinct: Distinct, labels: Rows, medoids: Rows) -> tuple[Rows, Rows]:
    """Clusters in the order of falling size."""
    order = np.argsort(-np.bincount(labels, distinct.weight, len(medoids)), kind="stable")
    return np.argsort(order)[labels], medoids[order]


def _pam(
    metric: Metric, distinct: Distinct, looks: Iterable[_Look], ks: Sequence[int]
) -> list[tuple[Rows, Rows]]:
    """Labels and medoids for each number of clusters, of the look whose medoids are nearest."""
    best: dict[int, tuple[float, Rows, Rows]] = {}
    everyone = np.arange(len(distinct.rows))
    for look in looks:
        for k, places in zip(ks, pam(look.square, look.sample.weight, ks), strict=True):
            medoids = look.sample.rows[places]
            labels, distance = _nearest(metric, everyone, medoids)
            total = float(distinct.weight @ distance)
            if k not in best or total < best[k][0]:
                best[k] = total, labels, medoids
    return [best[k][1:] for k in ks]


def pam(square: NDArray[np.float32], weight: Floats, ks: Sequence[int]) -> list[Rows]:
    """Medoids for each number of clusters, the better of two starts after exchanges.

    One start chooses medoids one after the other, the other one takes those of Ward's clusters.
    """
    from mmlca.tables import _kernels

    built = np.empty(max(ks), dtype=np.int64)
    _kernels.build_medoids(square, weight, built)
    found = []
    for k, labels in zip(ks, ward(square, weight, ks), strict=True):
        starts = [built[:k].copy(), medoids_of(square, weight, labels, k).astype(np.int64)]
        for medoids in starts if k > 1 else []:
            _kernels.swap_medoids(square, weight, medoids)
        cost = [weight @ square[medoids].min(axis=0) for medoids in starts]
        found.append(starts[int(np.argmin(cost))].astype(np.intp))
    return found


def medoids_of(square: NDArray[np.float32], weight: Floats, labels: Rows, k: int) -> Rows:
    """Of each cluster the row with the smallest sum of distances from the others."""
    inside = cluster_sums(square, weight, labels, k)[np.arange(len(square)), labels]
    members = (np.flatnonzero(labels == cluster) for cluster in range(k))
    return np.array([rows[inside[rows].argmin()] for rows in members])


def _ward(
    metric: Metric, distinct: Distinct, look: _Look, ks: Sequence[int]
) -> tuple[_Look, list[tuple[Rows, Rows]]]:
    """Labels and medoids for each number of clusters, and the look with the weights of all.

    Sequences that are not in it follow the nearest one that is.
    """
    rows = look.sample.rows
    leader, _ = _nearest(metric, np.arange(len(distinct.rows)), rows)
    leader[rows] = np.arange(len(rows))
    weight: Floats = np.bincount(leader, distinct.weight, len(rows)).astype(float)
    found = []
    for k, labels in zip(ks, ward(look.square, weight, ks), strict=True):
        medoids = medoids_of(look.square, weight, labels, k)
        found.append((labels[leader], rows[medoids]))
    return _Look(Sample(rows, weight), look.square), found


def ward(square: NDArray[np.float32], weight: Floats, ks: Sequence[int]) -> list[Rows]:
    """Labels for each number of clusters by Ward's method; `square` is the same afterwards."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from mmlca.tables import _kernels

    n = len(square)
    merges = np.empty((n - 1, 2), dtype=np.int64)
    heights = _kernels.ward_merges(square, weight, merges)
    for i in range(n):
        square[i, i + 1 :] = square[i + 1 :, i]
    order = np.argsort(heights, kind="stable")
    found = []
    for k in ks:
        one, two = merges[order[: n - k]].T
        joined = coo_array((np.ones(n - k), (one, two)), shape=(n, n))
        found.append(connected_components(joined, directed=False)[1].astype(np.intp))
    return found


# --- how well they are apart ------------------------------------------------------------------


def cluster_sums(square: NDArray[np.float32], weight: Floats, labels: Rows, k: int) -> Floats:
    """Sums of weighted distances from each sequence to the members of each cluster, (n, K)."""
    from mmlca.tables import _kernels

    sums = np.zeros((len(square), k))
    _kernels.sums_by_cluster(square, weight, labels.astype(np.int64), sums)
    return sums


def silhouettes(square: NDArray[np.float32], weight: Floats, labels: Rows, k: int) -> Floats:
    """The silhouette of each sequence, each counting as `weight` patients, (n,).

    With a the mean distance from the other patients of the cluster, and b the smallest mean
    distance from those of another one, it is (b − a)/max(a, b); 0 for the only patient of a cluster
    (Rousseeuw, 1987), and missing if there is one cluster alone.
    """
    sums = cluster_sums(square, weight, labels, k)
    return silhouettes_of(sums, np.bincount(labels, weight, k).astype(float), labels)


def silhouettes_of(sums: Floats, size: Floats, labels: Rows) -> Floats:
    """The silhouettes from the sums of distances (n, K) and the clusters' sizes (K,)."""
    n, k = sums.shape
    if k == 1:
        return np.full(n, np.nan)
    everyone = np.arange(n)
    others = size[labels] - 1
    a = np.divide(sums[everyone, labels], others, out=np.zeros(n), where=others > 0)
    mean = np.divide(sums, size, out=np.full(sums.shape, np.inf), where=size > 0)
    mean[everyone, labels] = np.inf
    b = mean.min(axis=1)
    most = np.maximum(a, b)
    apart = (others > 0) & (most > 0) & np.isfinite(b)
    return np.asarray(np.divide(b - a, most, out=np.zeros(n), where=apart))
