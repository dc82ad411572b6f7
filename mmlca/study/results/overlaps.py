"""The patients whom the groups of two rules share, which shows which groups correspond."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

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
    return {
        "overlaps": pd.DataFrame(overlaps, columns=list(_OVERLAPS)),
        "classes_everywhere": pd.DataFrame(classes, columns=list(_CLASSES)),
    }


def pairs_of(
    first: pd.Series, second: pd.Series, site: str, rounding: Rounding | None
) -> list[tuple[int, int, float]]:
    """The groups of all pairs that patients are in, with their numbers.

    Rounded, no pair has more patients than either of its groups.
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
    return [
        (a, b, of_pairs.part(counts[a, b], of_pairs.key(site, (a, b)), sizes[0][a], sizes[1][b]))
        for a, b in sorted(counts.index)
    ]


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
PART = Part({"overlaps": _OVERLAPS, "classes_everywhere": _CLASSES}, make)
