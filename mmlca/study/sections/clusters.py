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
from mmlca.study.findings import shown_clusters
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.sections.views import View, item_of_view, rests_on, shown_views
from mmlca.study.words import (
    dead_included,
    group_word,
    groups_word,
    sentences,
    window_name,
    windows_name,
)
from mmlca.tables.clusters import describe_clusters
from mmlca.tables.course_tables import rounded_frequencies
from mmlca.tables.describe import sequence_frequencies
from mmlca.tables.disclosure import hides, printable
from mmlca.tables.representatives import representative_sequences
from mmlca.tables.treatment_lines import branch_names

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

SHARED_BY = 5  # courses of fewer patients are not drawn: ties would decide which come first
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


# --- computed from patients ---------------------------------------------------------------


def _by_site(study: Study, findings: Findings) -> pd.DataFrame:
    """The numbers of each cluster at each site, as the release shows them."""
    analysis = findings.analysis
    described = describe_clusters(analysis.sequences, analysis.clusters, by_site=True)
    described.insert(2, "name", described["cluster"].map(analysis.names))
    courses = next(iter(findings.courses.values()))
    return shown_clusters(study, analysis, described.drop(columns="description"), courses)


def _frequencies(study: Study, view: View) -> pd.DataFrame:
    """The courses that most patients of each group share, as the release shows them."""
    least = max(SHARED_BY, study.privacy.min_count)
    table = sequence_frequencies(view.data, view.groups, study.outputs.top, min_count=least)
    return _released(study, view, table)


def _representatives(study: Study, view: View) -> pd.DataFrame:
    """The courses that represent those of each group, as the release shows them."""
    table = representative_sequences(
        view.data,
        view.groups,
        shared_by=_candidates_shared_by(study),
        min_count=study.privacy.min_count,
    )
    return _released(study, view, table)


def _released(study: Study, view: View, table: pd.DataFrame) -> pd.DataFrame:
    table = view.courses.with_sizes(table)
    rounding = rounding_of(study, view.groups)
    return table if rounding is None else rounded_frequencies(table, rounding)


def _candidates_shared_by(study: Study) -> int:
    """How many patients share a representative course.

    Ties do not decide which courses represent all others, so a course of one patient may do where
    nothing is hidden.
    """
    return SHARED_BY if hides(study.privacy.min_count) else 1


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The clusters in words and numbers, Table 1, and the courses under each membership."""
    yield from _described(study, findings)
    yield _table_one(study, findings)
    for view in shown_views(study, findings):
        if view.name != "refined":  # they would be nearly those of the ensemble
            yield _most_frequent(study, view)
            yield _representative(study, view)
        yield _lines(study, view)
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
            printable(_by_site(study, findings)),
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


def _most_frequent(study: Study, view: View) -> Item:
    top, least = study.outputs.top, max(SHARED_BY, study.privacy.min_count)
    table = _frequencies(study, view)
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
            single if study.outputs.figures else "",
        ),
        view.courses.without_counts(table),
        Plain(shares=("share", "cumulative"), columns=(*_COURSES, "cumulative")),
        partial(
            plot_frequencies, top=top, shared_by=SHARED_BY, table=table, **_drawn(study, drawn)
        ),
        "Coloured bars of the most frequent treatment courses, one panel for each "
        f"{group_word(study)}",
    )


def _representative(study: Study, view: View) -> Item:
    shared_by, least = _candidates_shared_by(study), max(SHARED_BY, study.privacy.min_count)
    table = _representatives(study, view)
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
        view.courses.without_counts(table),
        Plain(shares=("share", "distance"), columns=(*_COURSES, "distance")),
        partial(plot_representatives, shared_by=shared_by, table=table, **_drawn(study, drawn)),
        "Coloured bars of a few representative treatment courses, one panel for each "
        f"{group_word(study)}",
    )


def _drawn(study: Study, view: View) -> dict[str, Any]:
    """The arguments that all figures of whole courses have."""
    return {
        "sequences": view.data,
        "groups": view.groups,
        "min_count": study.privacy.min_count,
        "xlabel": window_name(study).capitalize(),
    }


def _with_rows(view: View, table: pd.DataFrame) -> tuple[View, str]:
    """The patients of groups that have rows in the table, and a sentence on the other groups.

    If no group has rows all are kept: the figure then says so in each panel.
    """
    groups = view.groups
    names = list(dict.fromkeys(name for part in groups.values() for name in part.cat.categories))
    absent = [name for name in names if name not in set(table["group"])]
    if not absent or len(absent) == len(names):
        return view, ""
    kept = {
        site: part[~part.isin(absent)].cat.remove_unused_categories()
        for site, part in groups.items()
    }
    kept = {site: part for site, part in kept.items() if len(part)}
    data = {site: view.data[site][view.data[site].ids.isin(kept[site].index)] for site in kept}
    return view._replace(data=data, groups=kept), f"No course is drawn for {listed(absent)}."


def _lines(study: Study, view: View) -> Item:
    states = list(dict.fromkeys(state for part in view.data.values() for state in part.states))
    paths = view.courses.shown("paths")
    pooled = (
        "“Others”: branches of few patients, combined with the next smallest one so that their "
        "number cannot be worked out."
    )
    return item_of_view(
        study,
        view,
        "lines",
        "Treatment lines",
        sentences(
            "From the first drug class to the next ones; the height of a block is the share of "
            "patients who had that class as that line. “No further”: the previous line was the "
            "last during follow-up. The table has every path.",
            pooled if branch_names(states)[-1] in set(paths["state"]) else "",
        ),
        paths,
        Plain(shares=("share",), columns=("site", "group", "line", "path", "count", "share")),
        lambda: plot_lines(
            view.data, view.groups, table=view.courses.paths, min_count=study.privacy.min_count
        ),
        f"Flow diagram from the first treatment line to the following ones, by {group_word(study)}",
    )


def _transitions(study: Study, view: View) -> Item:
    window, windows = window_name(study), windows_name(study)
    return item_of_view(
        study,
        view,
        "transitions",
        "Transition rates",
        f"Of all {windows} in which a patient was on the drug class of the row and was also "
        f"observed in the next {window}, the share followed by the class of the column. These are "
        f"shares of patient-{windows}: a patient counts once for each.",
        view.courses.shown("transitions"),
        Grid(
            ("site", "group", "from"),
            "to",
            "rate",
            ("count", "n"),
            rests_on,
            text=f"Shares of patient-{windows} in %; columns: the state after.",
        ),
        lambda: plot_transitions(
            view.data,
            view.groups,
            table=view.courses.transitions,
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
        f"refer to patients still observed then{dead_included(findings.analysis.sequences)}."
    ]


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Where single courses are drawn."""
    single = "patients/SITE_courses.png for each site, which stays inside the hospital"
    return {
        "14c": f"the most frequent and the representative courses of each {group_word(study)}; "
        f"single courses: {single if study.outputs.figures else NOT_DONE}"
    }


SECTION = Section("clusters", "Clusters", items, cautions=cautions, answers=answers)
