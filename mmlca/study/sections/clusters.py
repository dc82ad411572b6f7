"""The clusters: in words and numbers, who their patients are, and the courses they follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.figures.courses import plot_frequencies, plot_representatives
from mmlca.figures.transitions import plot_transitions
from mmlca.figures.treatment_lines import plot_lines
from mmlca.sequences.checks import listed
from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.results.courses import (
    FREQUENT,
    REPRESENTATIVE,
    SHARED_BY,
    candidates_shared_by,
)
from mmlca.study.sections.section import NOT_DONE, Section, item_of_view, rests_on, shown_views
from mmlca.study.words import (
    dead_included,
    group_word,
    groups_word,
    sentences,
    window_name,
    windows_name,
)
from mmlca.tables.disclosure import printable
from mmlca.tables.treatment_lines import branch_names

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.results.shown_courses import GroupCourses
    from mmlca.study.settings import Study
    from mmlca.tables.groups import GroupInfo

_MOST_COLUMNS = 10  # of Table 1 that fit beside each other on a page
_COLUMNS = (
    "cluster",
    "name",
    "n",
    "share",
    "path",
    "path_share",
    "second_path",
    "second_path_share",
    "end",
    "end_share",
    "switches",
    "followed",
)
_COURSES = ("site", "group", "rank", "sequence", "count", "share")


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The clusters in words and numbers, Table 1, and the courses under each membership."""
    yield from _described(study, findings)
    yield _table_one(study, findings)
    for view in shown_views(findings):
        if view.name != "refined":  # they would be nearly those of the ensemble
            yield _most_frequent(study, findings, view)
            yield _representative(study, view)
        yield _lines(study, findings, view)
        yield _transitions(study, view)


def _described(study: Study, findings: Findings) -> Iterator[Item]:
    groups, described = groups_word(study), findings.described
    several, labels = len(study.sites) > 1, {"cluster": group_word(study)}
    layout = Plain(
        shares=("still", *(column for column in described if column.endswith("share"))),
        n_keys=2,
        digits={"switches": 2, "followed": 0},
        labels=labels,
        columns=_COLUMNS,
    )
    yield Item(
        "clusters_in_words",
        f"The {groups} in words",
        f"Names follow from the table “The {groups} in numbers”. At least three quarters of "
        "“persisters” never leave their drug class while they are observed, and at least half of "
        "“A → B” take exactly this path. All other groups are mixed, with their two most common "
        "paths (or one, if two would be too long). Names may also come from the study file "
        "(outputs.names).",
        described[["cluster", "name", "description"]],
        Plain(n_keys=2, sortable=False, labels=labels),
    )
    yield Item(
        "clusters",
        f"The {groups} in numbers",
        f"{'Patients of all sites together' if several else 'Patients'}; the two most common paths "
        "and the most common last drug class, with their shares; the mean number of switches per "
        f"patient; and the median number of {windows_name(study)} up to the last observed one. The "
        "file has more columns.",
        printable(described),
        layout,
    )
    if several:
        yield Item(
            "clusters_by_site",
            f"The {groups} at each site",
            "The same for each site. The names are those of all sites together; shares at a single "
            "site may differ from them.",
            printable(findings.described_by_site),
            replace(layout, columns=("site", *_COLUMNS), n_keys=3),
        )


def _table_one(study: Study, findings: Findings) -> Item:
    frame = findings.table_one.to_frame()
    below = _sites_below_each_other(frame) if frame.shape[1] > _MOST_COLUMNS else None
    frame.columns = pd.Index([", ".join(c) if isinstance(c, tuple) else c for c in frame])
    return Item(
        "table_one",
        f"Patients by {group_word(study)}",
        findings.table_one.legend,
        frame.reset_index(names=["variable", "level"]),
        Plain(  # blocks of a variable's levels
            n_keys=2 if below is None else 3,
            sortable=False,
            empty={"level": ""},
            figures=tuple(frame.columns if below is None else below.columns[3:]),
            shown=below,
        ),
        note=count_note(study),
    )


def _sites_below_each_other(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Table 1 with a column for each cluster and the sites as blocks of rows; None for one site."""
    if frame.columns.nlevels == 1:
        return None
    sites = list(dict.fromkeys(frame.columns.get_level_values(0)))
    parts = pd.concat({site: frame[site] for site in sites}, names=["site", "variable", "level"])
    return parts.fillna("").reset_index()  # of all sites together nothing is compared


def _most_frequent(study: Study, findings: Findings, view: GroupCourses) -> Item:
    top, least = study.outputs.top, max(SHARED_BY, study.privacy.min_count)
    table = view.frequencies
    drawn, absent = _with_rows(view, table)
    single = "The folder patients has pictures of single courses."
    return item_of_view(
        study,
        view,
        "frequencies",
        f"The {top} most frequent courses",
        sentences(
            f"Each bar is one course; its height shows how frequent it is. At most {top} courses "
            f"per panel are drawn, and none that fewer than {least} patients share; the pale part "
            "stands for all others.",
            absent,
            single if study.outputs.figures and not findings.combined.by_files else "",
        ),
        view.tables.without_counts(table),
        Plain(shares=("share", "cumulative"), columns=(*_COURSES, "cumulative")),
        partial(
            plot_frequencies,
            drawn,
            top=top,
            shared_by=SHARED_BY,
            table=table,
            spells=view.spells[FREQUENT],
            **_drawn(study),
        ),
        "Coloured bars of the most frequent treatment courses, one panel for each "
        f"{group_word(study)}",
    )


def _representative(study: Study, view: GroupCourses) -> Item:
    shared_by, least = (
        candidates_shared_by(study.privacy.min_count),
        max(SHARED_BY, study.privacy.min_count),
    )
    table = view.representatives
    drawn, absent = _with_rows(view, table)
    candidates = f"Only courses that at least {least} patients share can be chosen."
    return item_of_view(
        study,
        view,
        "representatives",
        "Representative courses",
        sentences(
            "At most five courses that represent all others: each patient counts towards the "
            f"course that differs least from their own (in the share of {windows_name(study)} with "
            "another drug class).",
            sentences(candidates, absent) if shared_by > 1 else "",
        ),
        view.tables.without_counts(table),
        Plain(shares=("share", "distance"), columns=(*_COURSES, "distance")),
        partial(
            plot_representatives,
            drawn,
            shared_by=shared_by,
            table=table,
            spells=view.spells[REPRESENTATIVE],
            **_drawn(study),
        ),
        "Coloured bars of a few representative treatment courses, one panel for each "
        f"{group_word(study)}",
    )


def _drawn(study: Study) -> dict[str, Any]:
    """The arguments that all figures of whole courses have."""
    return {"min_count": study.privacy.min_count, "xlabel": window_name(study).capitalize()}


def _with_rows(view: GroupCourses, table: pd.DataFrame) -> tuple[list[GroupInfo], str]:
    """The panels of groups that have rows in the table, and a sentence on the other groups.

    If no group has rows all are kept: the figure then says so in each panel.
    """
    names = list(dict.fromkeys(info.keys["group"] for info in view.of_sites))
    absent = [str(name) for name in names if name not in set(table["group"])]
    if not absent or len(absent) == len(names):
        return view.of_sites, ""
    kept = [info for info in view.of_sites if info.keys["group"] not in absent]
    return kept, f"No course is drawn for {listed(absent)}."


def _lines(study: Study, findings: Findings, view: GroupCourses) -> Item:
    paths = view.tables.shown("paths")
    pooled = "“Others”: branches of few patients, combined"
    pooled += (
        "."
        if view.tables.rounded
        else " with the next smallest one so that their number cannot be worked out."
    )
    return item_of_view(
        study,
        view,
        "lines",
        "Treatment lines",
        sentences(
            "From the first drug class to the next ones; the height of a block is the share of "
            "patients who had that class as that line. Time off treatment is passed over: A, none "
            "and A again are one line. “No further”: the previous line was the last during "
            "follow-up. The table has every path.",
            pooled if branch_names(findings.states)[-1] in set(paths["state"]) else "",
        ),
        paths,
        Plain(shares=("share",), columns=("site", "group", "line", "path", "count", "share")),
        lambda: plot_lines(view.infos, table=view.tables.paths, min_count=study.privacy.min_count),
        f"Flow diagram from the first treatment line to the following ones, by {group_word(study)}",
    )


def _transitions(study: Study, view: GroupCourses) -> Item:
    window, windows = window_name(study), windows_name(study)
    return item_of_view(
        study,
        view,
        "transitions",
        "Transition rates",
        f"Of all {windows} in which a patient was on the drug class of the row and was also "
        f"observed in the next {window}, the share followed by the class of the column. These are "
        f"shares of patient-{windows}: a patient counts once for each.",
        view.tables.shown("transitions"),
        Grid(
            ("site", "group", "from"),
            "to",
            "rate",
            ("count", "n"),
            rests_on,
            text=f"Shares of patient-{windows} in %; columns: the state after.",
        ),
        lambda: plot_transitions(
            view.infos,
            table=view.tables.transitions,
            min_count=study.privacy.min_count,
        ),
        f"Heat maps of the transition rates between drug classes, one for each {group_word(study)}",
    )


# --- cautions and answers -----------------------------------------------------------------


def cautions(study: Study, findings: Findings) -> list[str]:
    """What follows from how the clusters are formed."""
    return [
        f"The {groups_word(study)} are formed from the treatment courses, so it is not a finding "
        "that their patients take the drug classes that describe them. Shares at the last time "
        f"refer to patients still observed then{dead_included(findings.results)}."
    ]


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Where single courses are drawn."""
    drawn = study.outputs.figures and not findings.combined.by_files
    single = "patients/SITE_courses.png for each site, which stays inside the hospital"
    return {
        "14c": f"the most frequent and the representative courses of each {group_word(study)}; "
        f"single courses: {single if drawn else NOT_DONE}"
    }


SECTION = Section("clusters", "Clusters", items, cautions=cautions, answers=answers)
