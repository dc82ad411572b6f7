"""Medication over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmlca.figures.distribution import plot_state_distribution
from mmlca.study.report.tables import Grid
from mmlca.study.sections.section import Section, item_of_view, rests_on, shown_views
from mmlca.study.words import dead_included, group_word, sentences, window_name, windows_name
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.report.content import Item
    from mmlca.study.results.shown_courses import GroupCourses
    from mmlca.study.settings import Study


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Shares of the drug classes in each window, for each membership."""
    for view in shown_views(findings):
        yield _state_distribution(study, findings, view)


def _state_distribution(study: Study, findings: Findings, view: GroupCourses) -> Item:
    courses, min_count = view.tables, study.privacy.min_count
    window, group = window_name(study), group_word(study)
    shares = courses.shown("distribution")
    each = f"{group} and site" if len(view.sites) > 1 else group
    grey = (
        f"Grey: drug classes of fewer than {min_count} patients; where their number would follow "
        "from the rest, the share of the most common class is a lower bound."
    )
    return item_of_view(
        study,
        view,
        "state_distribution",
        f"Treatment by {window}",
        sentences(
            f"Share of each drug class in each {window} among the patients observed in that "
            f"{window}{dead_included(findings.results)}, by {each}. Below the axis: the {window}, "
            "and the number of patients.",
            grey if hides(min_count) and not courses.rounded else "",
        ),
        shares,
        Grid(
            ("site", "group", "state"),
            "time",
            "share",
            ("count", "n"),
            rests_on,
            text=f"Shares of patients in %; columns: {windows_name(study)}.",
        ),
        lambda: plot_state_distribution(
            view.infos,
            table=courses.distribution,
            min_count=min_count,
            xlabel=window.capitalize(),
        ),
        f"Stacked bars of the drug classes by {window}, one panel for each {group}",
    )


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Where the observed variables and the classes are drawn."""
    figure = f"the figure “Treatment by {window_name(study)}”"
    return {"4": f"{figure} and the table of patients by {group_word(study)}", "14a": figure}


SECTION = Section("courses", "Medication over time", items, answers=answers)
