"""Figures that the page shows for several memberships: the ensemble's, local ones and refined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from mmlca.sequences.checks import listed
from mmlca.study.groups import course_views, named_groups
from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.words import sentences
from mmlca.tables.disclosure import is_small

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.findings import Findings
    from mmlca.study.report.tables import Layout
    from mmlca.study.settings import Study
    from mmlca.tables.course_tables import Courses

WHOSE = {
    None: "Classes of the site's model.",
    "ensemble": "Clusters of the ensemble.",
    "local": "Each site's own model. A class is “like cluster 1” if, at every site, at least half "
    "of the patients who are in either are in both; it has the cluster's name if this name is true "
    "of its own patients, too. Other classes are named after their own courses where these are the "
    "same at all sites.",
    "refined": "Clusters of the refined model.",
}
"""The membership that a figure shows, for its caption."""


class View(NamedTuple):
    """The courses of all patients in the groups of one membership."""

    name: str | None
    data: Mapping[str, Sequences]
    groups: Mapping[str, pd.Series]
    courses: Courses


def shown_views(study: Study, findings: Findings) -> Iterator[View]:
    """The memberships of which at least one group has enough patients to be shown."""
    analysis = findings.analysis
    for name, clusters in course_views(analysis):
        if any_to_show(clusters, study.privacy.min_count):
            groups = named_groups(analysis, clusters, name)
            yield View(name, analysis.sequences, groups, findings.courses[name])


def any_to_show(groups: Mapping[str, pd.Series], min_count: int) -> bool:
    """Whether a group has enough patients to be shown; figures leave smaller ones out."""
    return any(not is_small(part.value_counts(), min_count).all() for part in groups.values())


def item_of_view(
    study: Study,
    view: View,
    name: str,
    title: str,
    caption: str,
    table: pd.DataFrame,
    layout: Layout,
    draw: Callable[[], Any],
    alt: str,
) -> Item:
    """A figure of one membership; its caption says which one it shows."""
    return Item(
        name if view.name is None else f"{name}_{view.name}",
        title,
        sentences(caption, WHOSE[view.name]),
        table,
        layout,
        draw,
        f"{alt} at {listed(list(view.data))}.",
        view.name,
        note=count_note(study),
    )


def rests_on(row: Mapping[str, Any]) -> str:
    """The numbers that a share or rate rests on, as far as they may be shown."""
    if np.isnan(row["count"]):
        return "numbers not shown"
    whole = "" if "rounded_size" in row else f" of {row['n']:,.0f}"
    return f"{row['count']:,.0f}{whole}"
