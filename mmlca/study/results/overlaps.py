"""The patients of each group, and those whom groups of two rules share."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import ENSEMBLE

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    groups = patients.groups
    overlaps = [
        [a, b, *row]
        for a, b in combinations(groups, 2)
        for row in pairs_of(groups[a], groups[b], patients.site, patients.rounding)
    ]
    classes = [
        [model, *row]
        for model in patients.labels
        if model in study.sites and ENSEMBLE in groups
        for row in pairs_of(
            groups[ENSEMBLE], patients.labels[model] + 1, patients.site, patients.rounding
        )
    ]
    sizes = [
        [view, int(group), *_size(patients, view, members)]
        for view, labels in groups.items()
        for group, members in labels.groupby(labels.to_numpy())
    ]
    return {
        "groups": pd.DataFrame(sizes, columns=list(_GROUPS)),
        "overlaps": pd.DataFrame(overlaps, columns=list(_OVERLAPS)),
        "classes_everywhere": pd.DataFrame(classes, columns=list(_CLASSES)),
    }


def _size(patients: SitePatients, view: str, members: pd.Series) -> tuple[float, float]:
    """The patients of a group, and the sum of their weights if it is another number."""
    data, rounding = patients.sequences, patients.rounding_of(view)
    weights = data.weights[data.positions(members.index)]
    n, weight = float((weights > 0).sum()), float(weights.sum())
    if rounding is not None:
        return rounding(n, patients.site, int(members.iloc[0])), np.nan
    return n, np.nan if weight == n else weight


def pairs_of(
    first: pd.Series, second: pd.Series, site: str, rounding: Rounding | None
) -> list[tuple[int, int, float]]:
    """The groups of all pairs that patients are in, with their numbers.

    Rounded, no pair has more patients than either of its groups, and pairs without patients are
    left out: that somebody is there does not show.
    """
    pairs = pd.Series(
        list(zip(first.astype(int), second.astype(int), strict=True)), first.index, dtype=object
    )
    counts = pairs.value_counts()
    if rounding is None:
        return [(*pair, float(counts[pair])) for pair in sorted(counts.index)]
    of_pairs = rounding.of({site: pairs})
    sizes = []
    for labels in (first, second):
        draw = rounding.of({site: labels.astype(int)})
        sizes.append({k: draw(n, site, k) for k, n in labels.value_counts().items()})
    rounded = [
        (a, b, of_pairs.part(counts[a, b], of_pairs.key(site, (a, b)), sizes[0][a], sizes[1][b]))
        for a, b in sorted(counts.index)
    ]
    return [row for row in rounded if row[-1] > 0]


_GROUPS = {
    "view": Column("text", "the rule that groups the patients"),
    "group": Column("whole", "the number of a group"),
    "patients": Column("count", "patients of the group"),
    "weight": Column("number", "the sum of their weights, if it is another number"),
}
_OVERLAPS = {
    "view": Column("text", "a rule that groups the patients"),
    "other": Column("text", "another rule"),
    "group": Column("whole", "the number of a group by the first rule"),
    "other_group": Column("whole", "the number of a group by the other rule"),
    "patients": Column("count", "patients in both groups"),
}
_CLASSES = {
    "model": Column("text", "the site whose own model gives the classes"),
    "cluster": Column("whole", "the number of a cluster of the ensemble"),
    "class": Column("whole", "the number of a class of this model, from 1"),
    "patients": Column("count", "patients of the site in both"),
}
PART = Part({"groups": _GROUPS, "overlaps": _OVERLAPS, "classes_everywhere": _CLASSES}, make)
