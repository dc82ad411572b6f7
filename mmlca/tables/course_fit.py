"""Do the patients of a class follow one course? Two in one class, and one in two classes.

Two patients are as far apart as the number of windows in which they differ (the Hamming distance of
`mmlca.distances`, which says what becomes of missing windows and of the end of the follow-up).

*Two groups in a class.* The class is split in two by PAM. It contains two well-separated groups if
it has at least 50 patients and

1. at least a fifth of them are in the smaller group,
2. the medoids of the groups have different states in at least a quarter of the windows; windows
   that only one of them has do not count, so that different lengths of follow-up make no groups,
3. fewer than a tenth of the patients lie between the groups: their distances from the two medoids
   differ by at most half of the distance between these.

*Two classes alike.* Two classes are nearly the same if patients of different classes differ on
average in at most 1.1 times as many windows as patients of the same class do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.model.params import Seed
from mmlca.sequences.type import Sequences
from mmlca.tables.describe import course_spells, course_texts
from mmlca.tables.disclosure import (
    Rounding,
    fewest_patients,
    hide_parts,
    hide_rows,
    hides,
    is_small,
)
from mmlca.tables.distances import Distinct, Floats, Metric, distinct_sequences, metric_of
from mmlca.tables.groups import Labels, LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.matching import common_membership
from mmlca.tables.sequence_clusters import (
    Rows,
    Sample,
    cluster_sums,
    draw_sequences,
    pam,
    silhouettes_of,
)

FEWEST = 50
"""Patients of a class from which on two groups are looked for in it."""
_SMALLER, _APART, _BETWEEN, _REACH = 0.2, 0.25, 0.1, 0.5
_ALIKE = 1.1
_SHARED_BY = 5
_MOST_DISTINCT, _MOST_CANDIDATES = 5_000, 500

_NUMBERS = ["sharing", "distance", "within", "between", "silhouette"]
_COLUMNS = [
    *("course", "sharing", "distance", "within", "nearest", "between", "silhouette"),
    *("two_courses", "smaller", "larger_course", "smaller_course", "alike"),
]


def course_fit(
    sequences: Sequences | SequencesBySite,
    clusters: Labels | LabelsBySite,
    *,
    min_count: int = 0,
    rounding: Rounding | None = None,
    seed: Seed = None,
) -> pd.DataFrame:
    """How much of each class or cluster one typical course explains, at each site.

    Parameters
    ----------
    sequences : Sequences, or dict {site: Sequences}
    clusters : Series by id or array in the patients' order, or dict {site: …} of these
        Clusters, or the classes of a model.
    min_count : int
        Clusters of fewer patients are blank, courses that fewer share are not named, and numbers
        are blank where fewer patients than that do not follow the typical course.
    rounding : Rounding, optional
        Of these clusters: round all counts instead of hiding some.
    seed : int or Generator, optional
        For the sample that is drawn where there are more than 5,000 distinct sequences.

    Returns
    -------
    DataFrame
        One row for each site and cluster: `n` patients; `course`, the one of those shared by at
        least five patients from which the others differ least; `sharing`, the share of patients who
        have it; `distance`, the number of windows in which patients differ from it on average;
        `within`, the number in which two patients of the cluster differ, and `between`, in which
        they differ from patients of the cluster `nearest`; the mean `silhouette`; `two_courses`,
        whether there are two well-separated groups (see the rules of this module), with the share
        of the `smaller` one and their typical courses, `larger_course` and `smaller_course`;
        and `alike`, the cluster that is nearly the same.

    Examples
    --------
    >>> stay, leave = ["A"] * 8, ["A"] * 2 + ["B"] * 6
    >>> s = Sequences.from_lists([stay] * 60 + [leave] * 40 + [["C"] * 8] * 30)
    >>> fit = course_fit(s, [1] * 100 + [2] * 30)
    >>> fit[["cluster", "course", "sharing", "within", "between", "two_courses"]].round(1)
       cluster course  sharing  within  between  two_courses
    0        1    A×8      0.6     2.9      8.0         True
    1        2    C×8      1.0     0.0      8.0        False
    >>> print(course_cautions(fit)[0])
    Cluster 1 contains two well-separated groups: 60 % of its patients follow A×8 or a similar \
course, and 40 % A×2 → B×6 or a similar one.
    """
    several = isinstance(sequences, Mapping)
    sites = checked_sites(sequences if several else {"": sequences}, at_least=1)
    given: Any = clusters if several else {"": clusters}
    membership = common_membership(sites, given, "clusters")
    rng, rows = np.random.default_rng(seed), []
    for name, data in sites.items():
        site = _site_of(data, membership.codes[name], len(membership.labels))
        for label, row in zip(membership.labels, _clusters(site, min_count, rng), strict=True):
            nearest = None if row["nearest"] < 0 else membership.labels[row["nearest"]]
            rows.append({"site": name, "cluster": label, **row, "nearest": nearest})
    table = _shown(pd.DataFrame(rows), min_count, rounding)
    return table if several else table.drop(columns="site")


def course_cautions(table: pd.DataFrame, noun: str = "cluster") -> list[str]:
    """What the numbers of `course_fit` say against the clusters, in sentences.

    Parameters
    ----------
    table : DataFrame
        From `course_fit`, as it may be shown.
    noun : str
        What a cluster is called, such as "class".
    """
    rows = table.to_dict("records")
    notes = [
        f"{noun.capitalize()} {row['cluster']}{_at(row)} contains two well-separated groups"
        f"{_groups_text(row)}."
        for row in rows
        if row["two_courses"]
    ]
    by_name = {(row.get("site"), row["cluster"]): row for row in rows}
    pairs = {
        frozenset([(row.get("site"), row["cluster"]), (row.get("site"), row["nearest"])]): row
        for row in reversed(rows)
        if row["alike"]
    }
    nouns = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    for row in reversed(pairs.values()):
        other = by_name[row.get("site"), row["nearest"]]
        notes.append(
            f"{nouns.capitalize()} {row['cluster']} and {row['nearest']}{_at(row)} are nearly the "
            f"same{_alike_text(row, other, noun)}."
        )
    return notes


def _at(row: Mapping[Hashable, Any]) -> str:
    return f" at {row['site']}" if "site" in row else ""


def _groups_text(row: Mapping[Hashable, Any]) -> str:
    """Who is in the two groups of a cluster, as far as that may be shown."""
    courses = row["larger_course"], row["smaller_course"]
    named = all(isinstance(course, str) for course in courses)
    if pd.isna(row["smaller"]):
        return f", near {courses[0]} and near {courses[1]}" if named else ""
    larger, smaller = (f"{100 * share:.0f} %" for share in (1 - row["smaller"], row["smaller"]))
    if not named:
        return f", of {larger} and {smaller} of its patients"
    return (
        f": {larger} of its patients follow {courses[0]} or a similar course, and {smaller} "
        f"{courses[1]} or a similar one"
    )


def _alike_text(row: Mapping[Hashable, Any], other: Mapping[Hashable, Any], noun: str) -> str:
    """In how many windows patients of two clusters differ, as far as that may be shown."""
    numbers = row["between"], row["within"], other["within"]
    if any(pd.isna(number) for number in numbers):
        return ""
    between, one, two = (f"{number:.1f}" for number in numbers)
    return (
        f": patients of the two differ in {between} windows on average, and patients of the same "
        f"{noun} in {one} and {two}"
    )


# --- one site -------------------------------------------------------------------------------


class _Site(NamedTuple):
    """The patients of a site, as *units*: each distinct sequence in each of k clusters.

    Of each unit (u,) the `number` of its sequence, its `cluster`, its `weight` and how many
    `patients` it has; `unit` (n,) is that of each patient, −1 without a weight.
    """

    data: Sequences
    distinct: Distinct
    metric: Metric
    k: int
    number: Rows
    cluster: Rows
    weight: Floats
    patients: Floats
    unit: Rows

    def far(self, units: Rows, others: Rows) -> Floats:
        """In how many windows units differ from others."""
        return self.metric.between(self.number[units], self.number[others])

    def course(self, unit: int) -> str | None:
        """The course of a unit as text; none for −1."""
        if unit < 0:
            return None
        row = self.distinct.rows[self.number[[unit]]]
        return course_texts(course_spells(self.data, row))[0]

    def ids(self, units: Rows) -> pd.Index:
        """The patients of some units."""
        return self.data.ids[np.isin(self.unit, units)]


def _site_of(data: Sequences, codes: Rows, k: int) -> _Site:
    distinct = distinct_sequences(data)
    there = np.flatnonzero(data.weights > 0)
    pairs, which = np.unique(distinct.number[there] * k + codes[there], return_inverse=True)
    unit = np.full(len(codes), -1, dtype=np.intp)
    unit[there] = which
    weight, patients = (
        np.bincount(which, values[there], len(pairs)).astype(float)
        for values in (data.weights, np.ones(len(codes)))
    )
    number, cluster = (part.astype(np.intp) for part in divmod(pairs, k))
    metric = metric_of(distinct)
    return _Site(data, distinct, metric, k, number, cluster, weight, patients, unit)


def _clusters(site: _Site, min_count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The exact numbers of each cluster, and the courses that enough patients share.

    Clusters that may not be shown are left out: numbers of others do not depend on them.
    """
    patients = np.bincount(site.cluster, site.patients, site.k)
    large = np.flatnonzero(~is_small(patients, min_count)[site.cluster])
    sample = Sample(large, site.weight[large])
    if len(large) > _MOST_DISTINCT:
        drawn = draw_sequences(sample.weight, _MOST_DISTINCT, rng)
        sample = Sample(large[drawn.rows], drawn.weight)
    square = site.metric.square(np.float32, site.number[sample.rows])
    label = site.cluster[sample.rows]
    sums = cluster_sums(square, sample.weight, label, site.k)
    size = np.bincount(label, sample.weight, site.k).astype(float)
    width = silhouettes_of(sums, size, label)
    mean = _mean_distances(sums, sample.weight, size, label)
    rows = []
    for c in range(site.k):
        mine, seen = np.flatnonzero(site.cluster == c), np.flatnonzero(label == c)
        row: dict[str, Any] = {
            "n": site.weight[mine].sum(),
            "patients": patients[c],
            "course": None,
            "sharing": np.nan,
            "distance": np.nan,
            "within": mean[c, c],
            **_nearest(mean, c),
            "silhouette": np.nan,
            "two_courses": False,
            "smaller": np.nan,
            "larger_course": None,
            "smaller_course": None,
            "same": 0.0,
            "apart": 0.0,
            "same_ids": pd.Index([]),
            "apart_ids": pd.Index([]),
        }
        if len(seen):
            row["silhouette"] = np.average(width[seen], weights=sample.weight[seen])
            row |= _typical(site, mine, min_count)
            part = square[np.ix_(seen, seen)]
            row |= _groups(site, mine, sample.rows[seen], part, sample.weight[seen], min_count)
        rows.append(row)
    return rows


def _mean_distances(sums: Floats, weight: Floats, size: Floats, label: Rows) -> Floats:
    """Mean distances between patients of each two clusters, and inside each one, (K, K).

    NaN where there are none, or only one patient.
    """
    k = len(size)
    total = np.zeros((k, k))
    np.add.at(total, label, weight[:, None] * sums)
    pairs = size[:, None] * (size[None, :] - np.eye(k))
    return np.asarray(np.divide(total, pairs, out=np.full((k, k), np.nan), where=pairs > 0))


def _nearest(mean: Floats, c: int) -> dict[str, Any]:
    """The cluster from which patients differ least, compared with those of the same cluster."""
    inside = np.diag(mean)
    ratio = mean[c] / np.maximum((inside + inside[c]) / 2, 1e-12)
    ratio[c] = np.nan
    if np.isnan(ratio).all():
        return {"nearest": -1, "between": np.nan, "alike": False}
    nearest = int(np.nanargmin(ratio))
    alike = bool(ratio[nearest] <= _ALIKE)
    return {"nearest": nearest, "between": mean[c, nearest], "alike": alike}


def _most_typical(site: _Site, mine: Rows, min_count: int) -> int:
    """Of the units that enough patients share the one from which all differ least; −1 if none."""
    common = mine[site.patients[mine] >= fewest_patients(min_count, _SHARED_BY)]
    common = common[np.argsort(-site.weight[common], kind="stable")][:_MOST_CANDIDATES]
    if not len(common):
        return -1
    return int(common[(site.weight[mine] @ site.far(mine, common)).argmin()])


def _typical(site: _Site, mine: Rows, min_count: int) -> dict[str, Any]:
    """The typical course of a cluster: who has it, and how much the others differ from it."""
    unit = _most_typical(site, mine, min_count)
    if unit < 0:
        return {}
    distance = site.far(mine, np.array([unit]))[:, 0]
    return {
        "course": site.course(unit),
        "sharing": site.weight[unit] / site.weight[mine].sum(),
        "distance": np.average(distance, weights=site.weight[mine]),
        "same": site.patients[unit],
        "same_ids": site.ids(np.array([unit])),
    }


def _groups(
    site: _Site, mine: Rows, seen: Rows, square: NDArray[np.float32], weight: Floats, min_count: int
) -> dict[str, Any]:
    """Two well-separated groups of a cluster, by the rules of this module; nothing otherwise."""
    patients = site.patients[mine].sum()
    if len(seen) < 2 or patients < FEWEST:
        return {}
    (places,) = pam(square, weight, [2])
    medoids = seen[places]
    far = site.far(mine, medoids)
    second = far[:, 1] < far[:, 0]
    share = np.average(second, weights=site.weight[mine])
    one, two = site.distinct.codes[site.number[medoids]]
    states = site.distinct.n_states
    differ = ((one != two) & (one < states) & (two < states)).sum()
    reach = _REACH * site.far(medoids[:1], medoids[1:])[0, 0]
    between = np.average(np.abs(far[:, 0] - far[:, 1]) <= reach, weights=site.weight[mine])
    smaller = min(share, 1 - share)
    if smaller < _SMALLER or differ < _APART * len(one) or between >= _BETWEEN:
        return {}
    larger, apart = (mine[~second], mine[second]) if share < 0.5 else (mine[second], mine[~second])
    return {
        "two_courses": True,
        "smaller": smaller,
        "larger_course": site.course(_most_typical(site, larger, min_count)),
        "smaller_course": site.course(_most_typical(site, apart, min_count)),
        "apart": site.patients[apart].sum(),
        "apart_ids": site.ids(apart),
    }


# --- what people see --------------------------------------------------------------------------


def _shown(table: pd.DataFrame, min_count: int, rounding: Rounding | None) -> pd.DataFrame:
    """The table without small numbers, or with rounded ones.

    Where few patients do not follow the typical course, mean distances would reveal what they do.
    """
    patients = table["patients"]
    others = patients - table["same"]
    few = is_small(table["same"], min_count) | is_small(others, min_count)
    place = {key: i for i, key in enumerate(zip(table["site"], table["cluster"], strict=True))}
    nearest = zip(table["site"], table["nearest"], strict=True)
    next_few = [key in place and few[place[key]] for key in nearest]
    blank = {name: table[name].mask(few) for name in _NUMBERS}
    blank["between"] = blank["between"].mask(np.array(next_few, dtype=bool))
    rest = patients - table["apart"]
    few = is_small(table["apart"], min_count) | is_small(rest, min_count)
    table = table.assign(**blank, smaller=table["smaller"].mask(few))
    if hides(min_count):
        table = table.round(dict.fromkeys([*_NUMBERS, "smaller"], 2))
    if rounding is not None:
        table = _rounded(table, rounding)
    else:
        table = hide_parts(table, ["site"], ["n"], min_count, count="n", patients=["patients"])
    few = is_small(patients, min_count)
    flags = ["two_courses", "alike"]
    table = table.assign(**{name: table[name] & ~few for name in flags})
    table = hide_rows(table, ["site", "cluster", "n", *flags], few)
    return table[["site", "cluster", "n", *_COLUMNS]]


def _rounded(table: pd.DataFrame, rounding: Rounding) -> pd.DataFrame:
    """Rounded counts, and the shares that they make."""
    n = rounding.column(table.rename(columns={"cluster": "group"}), "n")
    whole = np.where(n > 0, n, np.nan)
    shares = {}
    for share, ids in (("sharing", "same_ids"), ("smaller", "apart_ids")):
        parts = zip(table[share] * table["n"], table[ids], whole, strict=True)
        count = [rounding.part(part, rounding.key_of(who), of) for part, who, of in parts]
        shares[share] = np.round(count / whole, 2)
    return table.assign(n=n, **shares)
