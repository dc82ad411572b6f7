"""What sites release of their patients' groups and courses, without models."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd

from mmlca import Sequences
from mmlca.study.results import about, courses
from mmlca.study.results.groups import PART as GROUPS
from mmlca.study.results.registry import site_results
from mmlca.study.results.shown_courses import GroupCourses, courses_of, groups_of, sizes_of
from mmlca.study.results.site import ONLY, SitePatients, SiteResults
from mmlca.tables.disclosure import Rounding

Views = Mapping[str, Mapping[str, Any]]


def release(
    data: Mapping[str, Sequences],
    views: Views,
    min_count: int = 1,
    secret: bytes | None = None,
    top: int = 30,
) -> dict[str, SiteResults]:
    """The results of sites; rounded if there is a secret.

    `views` are the numbers of the groups by view and site, those of the first view first.
    """
    study: Any = SimpleNamespace(
        sites=dict.fromkeys(data, SimpleNamespace(labs=None)),
        privacy=SimpleNamespace(min_count=min_count),
        outputs=SimpleNamespace(top=top),
    )
    results = {}
    for site, sequences in data.items():
        groups = {
            view: pd.Series(list(labels[site]), pd.Index(sequences.ids), dtype=int)
            for view, labels in views.items()
        }
        first = next(iter(groups.values()))
        rounding = None if secret is None else Rounding(secret, min_count, {site: first})
        nothing = pd.DataFrame(index=first.index)
        patients = SitePatients(site, sequences, groups, nothing, nothing, rounding=rounding)
        parts = (about.DATA, GROUPS, courses.PART)
        results[site] = site_results(study, patients, parts)
    return results


def one_site(
    data: Sequences, groups: Any, min_count: int = 1, secret: bytes | None = None
) -> dict[str, SiteResults]:
    """The same of one site called "x", with one view."""
    return release({"x": data}, {ONLY: {"x": groups}}, min_count, secret)


def courses_by_group(
    data: Mapping[str, Sequences],
    groups: Mapping[str, pd.Series],
    min_count: int,
    secret: bytes | None = None,
) -> GroupCourses:
    """The courses of groups with any labels as the report shows them."""
    labels = sorted({label for part in groups.values() for label in part.dropna()})
    numbers = {label: number for number, label in enumerate(labels, 1)}
    view = {site: groups[site].reindex(part.ids).map(numbers) for site, part in data.items()}
    results = release(data, {ONLY: view}, min_count, secret)
    names = dict(enumerate(labels, 1))
    return courses_of(results, groups_of(results, ONLY, min_count), names)


def shown_sizes(clusters: Mapping[str, pd.Series], min_count: int) -> pd.DataFrame:
    """The sizes of clusters with any labels as the report shows them, with totals."""
    labels = sorted({label for part in clusters.values() for label in part})
    numbers = {label: number for number, label in enumerate(labels, 1)}
    data = {
        site: Sequences.from_lists([["A"]] * len(part), ids=part.index)
        for site, part in clusters.items()
    }
    view = {site: part.map(numbers) for site, part in clusters.items()}
    sizes = sizes_of(release(data, {ONLY: view}, min_count), ONLY, min_count)
    return sizes.rename(columns=dict(enumerate(labels, 1)))
