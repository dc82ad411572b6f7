"""What a section of the report is, and what the figures of several memberships have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.sequences.checks import listed
from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.words import sentences

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.report.content import Item
    from mmlca.study.report.tables import Layout
    from mmlca.study.results.shown_courses import GroupCourses
    from mmlca.study.settings import Study


NOT_DONE = "not done"


def _no_texts(study: Study, findings: Findings) -> list[str]:
    return []


def _no_answers(study: Study, findings: Findings) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Parameters
    ----------
    key : str
        Its name in `results.json`, and in links to it.
    title : str
        Its heading. “Clusters” becomes “Classes” in a study of one site.
    items : function (study, findings)
        Its tables and figures, in the order of the page.
    methods : function (study, findings), optional
        Sentences for the methods, with the settings that were used.
    cautions : function (study, findings), optional
        What readers should know before they believe the numbers.
    answers : function (study, findings), optional
        Its answers to questions of reporting guidelines, see `checklist`, by number of the item.
    """

    key: str
    title: str
    items: Callable[[Study, Findings], Iterable[Item]]
    methods: Callable[[Study, Findings], Iterable[str]] = _no_texts
    cautions: Callable[[Study, Findings], Iterable[str]] = _no_texts
    answers: Callable[[Study, Findings], Mapping[str, str]] = _no_answers


# --- figures for several memberships ----------------------------------------------------


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


def shown_views(findings: Findings) -> list[GroupCourses]:
    """The memberships of which at least one group has enough patients to be shown."""
    return [view for view in findings.courses.values() if view.groups.any_to_show()]


def item_of_view(
    study: Study,
    view: GroupCourses,
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
        f"{alt} at {listed(view.sites)}.",
        view.name,
        note=count_note(study),
    )


def rests_on(row: Mapping[str, Any]) -> str:
    """The numbers that a share or rate rests on, as far as they may be shown."""
    if np.isnan(row["count"]):
        return "numbers not shown"
    whole = "" if "rounded_size" in row else f" of {row['n']:,.0f}"
    return f"{row['count']:,.0f}{whole}"
