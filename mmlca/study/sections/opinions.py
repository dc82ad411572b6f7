"""Whether other methods find the same groups, and whether one course describes each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.sequences.checks import listed
from mmlca.study.release import count_note, is_public
from mmlca.study.report.content import Item
from mmlca.study.report.tables import MISSING, Plain, percent
from mmlca.study.results.opinions import MOST_DISTINCT, MOST_STARTS
from mmlca.study.results.site import SHOWN
from mmlca.study.sections.section import Section
from mmlca.study.words import group_word, groups_word, sentences, windows_name
from mmlca.tables.course_fit import FEWEST
from mmlca.tables.disclosure import hides
from mmlca.tables.second_opinion import COURSE, COURSE_BY_BIC, DISTANCES, LEVELS

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.results.opinions import Opinions
    from mmlca.study.settings import Study

_TITLE = "Does another method find the same groups?"


# --- tables -------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """How alike the groups are, who is in which, what differs, and one course for each cluster."""
    opinions = findings.opinions
    if opinions is None:
        return
    names = findings.names.groups[SHOWN[opinions.view]]
    if opinions.sites:
        yield _agreement(study, opinions)
        yield _cross(study, opinions)
        courses = opinions.table("courses").dropna(subset=["path", "sequence"], how="all")
        if len(courses):
            yield _courses(study, courses)
    yield _course_fit(study, opinions, names)


def _agreement(study: Study, opinions: Opinions) -> Item:
    groups, at_each = groups_word(study), " at each site" if len(study.sites) > 1 else ""
    levels = ", ".join(f"{words} from {least:g} on" for least, words in LEVELS[:-1])
    return Item(
        "second_opinion",
        "Groups of other methods",
        sentences(
            f"The {groups} compared with groups that other methods make of the same patients"
            f"{at_each}. Chains put patients together who move alike, latent classes of the time "
            "course those who are in the same states at the same times, and distances those whose "
            "courses differ in few windows. The adjusted Rand index is 1 for the same groups and 0 "
            "where patients are together no more often than by chance; groups are called "
            f"{levels}. The share is that of patients "
            f"in corresponding groups: {groups} and groups are paired one to one so that it is "
            f"largest. A {group_word(study)} is divided if at least a quarter of it is in each of "
            "two groups.",
            opinions.verdict(),
        ),
        opinions.agreement[
            ["site", "method", "groups", "adjusted_rand_index", "same", "patients", "in_words"]
        ],
        Plain(
            shares=("same",),
            n_keys=2,
            digits={"adjusted_rand_index": 2},
            labels={
                "adjusted_rand_index": "adjusted Rand index",
                "same": "in corresponding groups",
            },
        ),
        note=count_note(study),
    )


def _cross(study: Study, opinions: Opinions) -> Item:
    word, cross = group_word(study), opinions.table("cross")
    columns = ["site", "method", "cluster", "group", "patients", "at_least", "share", "paired"]
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in cross.to_dict("records"):
        keys = {name: row[name] for name in ("site", "method", "cluster")}
        line = lines.setdefault(tuple(keys.values()), keys)
        line[f"group {row['group']}"] = _text(row)
    groups = [f"group {number}" for number in sorted(cross["group"].unique())]
    wide = pd.DataFrame([*lines.values()], columns=["site", "method", "cluster", *groups])
    return Item(
        "second_opinion_patients",
        f"Patients by {word} and group of another method",
        sentences(
            f"Numbers of patients, and shares of the {word}. A group has the number of the {word} "
            "to which it corresponds.",
            "Where a small number would follow from the others, the largest one of its row is "
            "replaced by a lower bound (≥)."
            if hides(study.privacy.min_count) and not is_public(study)
            else "",
        ),
        cross[columns],
        Plain(
            n_keys=3,
            sortable=False,
            labels={"cluster": word},
            shown=wide,
            figures=tuple(groups),
            empty=dict.fromkeys(groups, ""),
        ),
        note=count_note(study),
    )


def _text(row: Mapping[Any, Any]) -> str:
    """A cell of the cross table: "45 (12.3 %)", or a lower bound."""
    n = row["patients"] if pd.isna(row["at_least"]) else row["at_least"]
    if pd.isna(n):
        return MISSING
    if pd.isna(row["share"]):
        return f"{n:,.0f}"
    least = "" if pd.isna(row["at_least"]) else "≥ "
    return f"{least}{n:,.0f} ({least}{percent(row['share'])})"


def _courses(study: Study, courses: pd.DataFrame) -> Item:
    word = group_word(study)
    columns = ["site", "method", "cluster", "group", "patients"]
    columns += ["path", "path_patients", "sequence", "sequence_patients"]
    return Item(
        "second_opinion_courses",
        "On which courses the methods differ",
        f"The largest numbers of patients of a {word} who are not in the group that corresponds to "
        "it, with the most common path and the most frequent course among them, and how many have "
        "these; blank where fewer than five patients have them. Those of whom neither can be shown "
        "are left out.",
        courses[columns],
        Plain(
            n_keys=4,
            labels={
                "cluster": word,
                "path": "most common path",
                "path_patients": "who take it",
                "sequence": "most frequent course",
                "sequence_patients": "who have it",
            },
        ),
        note=count_note(study),
    )


def _course_fit(study: Study, opinions: Opinions, names: Mapping[int, str]) -> Item:
    word, windows = group_word(study), windows_name(study)
    table = opinions.course_fit
    table = table.assign(cluster=table["cluster"].map(names))
    shown = ("course", "sharing", "distance", "within", "nearest", "between", "silhouette")
    return Item(
        "course_fit",
        f"Does one course describe each {word}?",
        f"For each {word}: the typical course, from which its patients differ least, and the share "
        f"who have exactly this course; the mean number of {windows} in which its patients differ "
        f"from it, from each other (within), and from patients of the nearest {word} (between); "
        f"the mean silhouette, near 1 where they are much nearer to their own {word}, and near or "
        "below 0 where they are not; and whether it contains two well-separated groups: at least "
        "a fifth of the patients in the smaller one, and fewer than a tenth between the two. Two "
        f"groups are looked for from a size of {FEWEST} on. The file has their typical courses.",
        table,
        Plain(
            shares=("sharing",),
            n_keys=2,
            columns=("site", "cluster", *shown, "two_courses"),
            digits={"distance": 1, "within": 1, "between": 1, "silhouette": 2},
            labels={
                "cluster": word,
                "course": "typical course",
                "sharing": "patients who have it",
                "distance": "distance from it",
                "nearest": f"nearest {word}",
                "two_courses": "two groups",
            },
        ),
        note=count_note(study),
    )


# --- methods and cautions -----------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How the other methods made their groups."""
    opinions = findings.opinions
    if opinions is None or not opinions.sites:
        return []
    used = set(opinions.agreement["method"])
    starts = min(study.model.n_init, MOST_STARTS)
    parts = []
    if used & {COURSE, COURSE_BY_BIC}:
        number = f"as many as {groups_word(study)}" if COURSE in used else ""
        by_bic = "the number that BIC chooses" if COURSE_BY_BIC in used else ""
        both = " and ".join(filter(None, [number, by_bic]))
        parts.append(
            f"latent classes of the time course, in which each window is an item ({both}; best of "
            f"{starts} random starts)"
        )
    if DISTANCES in used:
        parts.append(
            "groups by Ward's method on the number of windows in which courses differ (Hamming "
            f"distance; of more than {MOST_DISTINCT:,} distinct courses, a sample)"
        )
    where = " at each site" if len(study.sites) > 1 else ""
    return [
        f"The {groups_word(study)} were compared{where} with groups of the same patients by other "
        f"methods, with the adjusted Rand index: {listed(parts)}."
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """Where other methods find other groups, and where a cluster hides several courses."""
    opinions, notes = findings.opinions, []
    if opinions is None:
        return []
    if opinions.sites and (apart := _apart(opinions)):
        notes.append(
            f"Not every method finds these {groups_word(study)} (adjusted Rand index, 1 for the "
            f"same groups: {apart}). {opinions.verdict()}"
        )
    return [*notes, *opinions.course_cautions()]


def _apart(opinions: Opinions) -> str:
    """The indices of methods with as many groups that are not nearly the same, by method."""
    table = opinions.agreement
    few = table["adjusted_rand_index"] < LEVELS[0][0]
    table = table[few & (table["groups"] == opinions.n_clusters)]
    several = len(opinions.sites) > 1
    return "; ".join(
        f"{method} "
        + listed(
            [
                f"{index:.2f}{f' at {site}' if several else ''}"
                for site, index in zip(rows["site"], rows["adjusted_rand_index"], strict=True)
            ]
        )
        for method, rows in table.groupby("method", sort=False)
    )


SECTION = Section("second_opinion", _TITLE, items, methods, cautions)
