"""A few sequences that represent a group: medoids under the share of times that differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.sequences.type import Sequences
from mmlca.tables.describe import course_spells, course_texts
from mmlca.tables.disclosure import hides, is_small
from mmlca.tables.distances import distinct_sequences, metric_of
from mmlca.tables.groups import Groups, SequencesBySite, by_group

_MOST_CANDIDATES = 500


class Medoids(NamedTuple):
    """Row of a patient with each representative sequence, the weight it represents, its distance.

    `rows` (n,), `weight` (n,) and `distance` (n,): the mean distance of those it represents;
    `others` (n,): how many patients it represents who have another sequence.
    """

    rows: NDArray[np.intp]
    weight: NDArray[np.float64]
    distance: NDArray[np.float64]
    others: NDArray[np.float64]


def representative_sequences(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    n: int = 5,
    shared_by: int = 5,
    min_count: int = 0,
) -> pd.DataFrame:
    """A few sequences that represent a group.

    The distance of two sequences is the share of times at which they differ, among the times of
    the longer one; after its end a sequence differs from every state. The n sequences are chosen
    one after the other, each to bring the mean distance of all patients to the nearest one down
    as far as possible, and are then exchanged as long as that helps (k-medoids). Only sequences
    that at least `shared_by` patients share are candidates (the 500 most frequent of them), so
    that none is the course of one patient.

    Parameters
    ----------
    sequences, groups : as in `sequence_frequencies`
    n : largest number of sequences
    shared_by : smallest number of patients who share a candidate
    min_count : no candidate is shared by fewer patients; and where a sequence represents fewer
        patients than that who have another one, the numbers of the whole group are missing,
        since `sequence_frequencies` shows how many have the sequence itself; distances have
        two decimals then

    Returns
    -------
    DataFrame
        rank, sequence, `count` (weighted patients nearest to it), `share`, and `distance` (their
        mean distance from it, between 0 and 1).

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"]] * 3 + [["A", "A", "B"]] + [["B", "B", "B"]] * 2)
    >>> representative_sequences(s, n=2, shared_by=2).round(3)
       rank sequence  count  share  distance
    0     1      A×3    4.0  0.667     0.083
    1     2      B×3    2.0  0.333     0.000
    """
    if n < 1:
        raise InputError(f"n must be at least 1, found {n}.")
    return by_group(sequences, groups, lambda s: _representatives(s, n, shared_by, min_count))


def _representatives(s: Sequences, n: int, shared_by: int, min_count: int) -> pd.DataFrame:
    medoids = shown_medoids(s, n, shared_by, min_count)
    total = s.weights.sum()
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(medoids.rows) + 1),
            "sequence": course_texts(course_spells(s, medoids.rows)),
            "count": medoids.weight,
            "share": medoids.weight / total if total > 0 else medoids.weight,
            "distance": medoids.distance,
        }
    )


def shown_medoids(s: Sequences, n: int, shared_by: int, min_count: int) -> Medoids:
    """The representatives of one group, without numbers that would reveal few patients."""
    medoids = medoid_rows(s, n, max(shared_by, min_count))
    if is_small(medoids.others, min_count).any():
        unknown = np.full(len(medoids.rows), np.nan)
        medoids = medoids._replace(weight=unknown, distance=unknown)
    if hides(min_count):
        medoids = medoids._replace(distance=medoids.distance.round(2))
    return medoids


def representative_spells(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    n: int = 5,
    shared_by: int = 5,
    min_count: int = 0,
) -> pd.DataFrame:
    """The spells of the sequences that `representative_sequences` lists for the same arguments.

    They are those that `plot_representatives` draws: a table like that of
    `mmlca.tables.describe.frequency_spells`.
    """
    least = max(shared_by, min_count)
    return by_group(sequences, groups, lambda s: course_spells(s, medoid_rows(s, n, least).rows))


def medoid_rows(s: Sequences, n: int, shared_by: int) -> Medoids:
    """The representatives of one group, by falling weight."""
    first, number = s.distinct()
    weight = np.bincount(number, weights=s.weights, minlength=len(first)).astype(float)
    patients = np.bincount(number, weights=s.weights > 0, minlength=len(first))
    common = np.flatnonzero((patients >= shared_by) & (weight > 0))
    order = np.lexsort([*s.codes[first[common]].T[::-1], -weight[common]])
    candidates = common[order][:_MOST_CANDIDATES]
    if not len(candidates):
        nothing = np.zeros(0)
        return Medoids(np.zeros(0, dtype=np.intp), nothing, nothing, nothing)
    distinct = distinct_sequences(s)
    number, length = distinct.number[first], s.lengths[first]
    windows = metric_of(distinct).between(number, number[candidates])
    distance = windows / np.maximum(length[:, None], length[None, candidates])
    chosen = _exchange(distance, weight, _greedy(distance, weight, min(n, len(candidates))))
    nearest = distance[:, chosen].argmin(axis=1)
    stands_for = np.bincount(nearest, weights=weight, minlength=len(chosen)).astype(float)
    far = np.bincount(
        nearest, weights=weight * distance[np.arange(len(first)), chosen[nearest]],
        minlength=len(chosen),
    )  # fmt: skip
    others = np.bincount(nearest, weights=patients, minlength=len(chosen)).astype(float)
    others -= patients[candidates[chosen]]
    by_size = np.argsort(-stands_for, kind="stable")
    mean = np.divide(far, stands_for, out=np.zeros(len(chosen)), where=stands_for > 0)
    rows = first[candidates[chosen]]
    return Medoids(rows[by_size], stands_for[by_size], mean[by_size], others[by_size])


def _greedy(distance: NDArray[np.float64], weight: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    nearest = np.full(len(distance), np.inf)
    chosen: list[int] = []
    for _ in range(n):
        cost = weight @ np.minimum(distance, nearest[:, None])
        chosen.append(int(cost.argmin()))
        nearest = np.minimum(nearest, distance[:, chosen[-1]])
        if not (weight * nearest).sum() > 0:
            break
    return np.array(chosen)


def _exchange(
    distance: NDArray[np.float64], weight: NDArray[np.float64], chosen: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Replace one representative by another sequence as long as the mean distance falls."""
    chosen = chosen.copy()
    best = float(weight @ distance[:, chosen].min(axis=1))
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            rest = np.delete(chosen, place)
            nearest = distance[:, rest].min(axis=1, initial=np.inf)
            cost = weight @ np.minimum(distance, nearest[:, None])
            if cost.min() < best * (1 - 1e-12):
                chosen[place], best, improved = int(cost.argmin()), float(cost.min()), True
    return chosen
