"""What the clusters of a study are called: by their courses, or as the study file says.

A name of the study file belongs to a course, not to a number: under another rule or with new data
the same number may stand for other patients.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from font.errors import InputError, ReportWarning
from mmlca.sequences.checks import listed
from mmlca.study.groups import all_memberships
from mmlca.study.words import group_name, group_word, groups_word
from mmlca.tables.clusters import describe_clusters, hidden_sizes, name_clusters

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study


def courses_of_names(
    study: Study, courses: Sequence[str | None], earlier: Mapping[str, str]
) -> dict[str, str]:
    """The course that each name of the study file (outputs.names) belongs to.

    A table says it. A list names the clusters in their order: a name that an earlier run in the
    same folder used keeps the course that it had there, and a new one gets the course of the
    cluster in its place.

    Parameters
    ----------
    study : Study
    courses : of the clusters, from `name_clusters`; None for those that may not be described
    earlier : {name: course} of an earlier run
    """
    names = study.outputs.names
    if names is None or isinstance(names, Mapping):
        return dict(names or {})
    if len(names) != len(courses):
        raise InputError(
            f"outputs.names has {len(names)} names, but there are {len(courses)} "
            f"{groups_word(study)}; give one for each, or leave the setting out."
        )
    known = {name: earlier[name] for name in names if name in earlier}
    new = {
        name: course
        for name, course in zip(names, courses, strict=True)
        if name not in known and course is not None
    }
    return known | new


def short_names(
    study: Study, courses: Sequence[str | None], given: Mapping[str, str]
) -> list[str | None]:
    """The clusters' short names: the name that is given to a course, or else the course itself.

    A name is not used where no cluster has its course, or where it is another cluster's course; a
    warning says so.

    Parameters
    ----------
    study, courses : as in `courses_of_names`
    given : {name: course}, from `courses_of_names`
    """
    names, group = list(courses), group_word(study)
    for name, course in given.items():
        free = [i for i, other in enumerate(courses) if other == course == names[i]]
        if free and name not in (*courses[: free[0]], *courses[free[0] + 1 :]):
            names[free[0]] = name
            continue
        shown = listed([f"“{other}”" for other in courses if other is not None])
        warnings.warn(
            f"the name “{name}” is not used: it was given to a {group} with the course “{course}”, "
            f"and there is no such {group} without a name now. The {groups_word(study)} are "
            f"{shown}. To give the name to one of them, write its course beside the name in the "
            f"study file: {_as_toml({name: 'course'})}.",
            ReportWarning,
            stacklevel=2,
        )
    used = {name: course for name, course in given.items() if name in names}
    if used and not isinstance(study.outputs.names, Mapping):
        warnings.warn(
            f"the study file names the {groups_word(study)} by their order, which another rule or "
            "other data may change. Runs in this folder keep each name with the course that it "
            f"was first given to; for any folder, write in the study file: {_as_toml(used)}.",
            ReportWarning,
            stacklevel=2,
        )
    return names


def _as_toml(names: Mapping[str, str]) -> str:
    """The setting as the study file has it.

    >>> print(_as_toml({"stayers": "A persisters"}))
    names = {"stayers" = "A persisters"}
    """
    pairs = ", ".join(
        f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(course, ensure_ascii=False)}"
        for name, course in names.items()
    )
    return f"names = {{{pairs}}}"


# --- the names of all groups --------------------------------------------------------------

GOOD_MATCH = 0.5
"""The smallest Jaccard index at which a class of a site's own model has a cluster's name."""


def name_groups(
    study: Study,
    analysis: Analysis,
    described: pd.DataFrame,
    names_given: Callable[[list[str | None]], Mapping[str, str]],
) -> tuple[Analysis, pd.DataFrame]:
    """The analysis with the names of all groups, and the description with those of the clusters.

    Parameters
    ----------
    study, analysis
    described : from `describe_clusters`, as it may be shown
        Names follow from the numbers that are shown beside them.
    names_given : function of the courses of the clusters
        Says which course each name of the study file belongs to, see `courses_of_names`.
    """
    courses, clusters = name_clusters(described), described["cluster"]
    names = short_names(study, courses, names_given(courses))
    analysis = with_names(
        study,
        analysis,
        {c: name for c, name in zip(clusters, names, strict=True) if name},
        {c: course for c, course in zip(clusters, courses, strict=True) if course},
    )
    described = described.copy()
    described.insert(1, "name", pd.Series(names, described.index, dtype=object))
    return analysis, described


def with_names(
    study: Study, analysis: Analysis, names: Mapping[Any, str], courses: Mapping[Any, str]
) -> Analysis:
    """The same with the clusters' short names, and what all other groups are called.

    A class of a site's own model matches a cluster if at every site where either has patients at
    least half of those who are in one of the two are in both. It has the cluster's name if its
    own patients have the same course at every site; otherwise it is "like cluster 3". A class
    without a match is "own class 3", with a short name from its own courses if that is the same
    at all sites. A refined cluster has the cluster's name if its own patients have the same
    course.

    Parameters
    ----------
    study, analysis
    names : {cluster: short name}
    courses : {cluster: course}, the names by `name_clusters`
    """
    own = {
        site: _courses(study, analysis.sequences[site], analysis.local, site)
        for site in analysis.sequences
    }
    analysis = replace(analysis, names=dict(names), own_names=own)
    rules = all_memberships(analysis)
    groups = {view: _group_names(study, analysis, view, rules[view], courses) for view in rules}
    return replace(analysis, group_names=groups)


def _group_names(
    study: Study,
    analysis: Analysis,
    view: str | None,
    groups: Mapping[str, pd.Series],
    courses: Mapping[Any, str],
) -> dict[Any, str]:
    """The names of the groups of one membership, in the order of their numbers."""
    # a class that matches no cluster may have a name instead of a number
    order = sorted(
        {group for part in groups.values() for group in part.unique()},
        key=lambda group: (isinstance(group, str), group),
    )
    if view in (None, "ensemble"):
        return {group: group_name(study, group, analysis.names) for group in order}
    if view == "refined":
        refined = _courses(study, analysis.sequences, groups, "all")
        same = {group: analysis.names[group] for group in analysis.names
                if refined.get(group) == courses[group]}  # fmt: skip
        return {group: group_name(study, group, same) for group in order}
    names = {}
    for group in order:
        shorts = analysis.own_names.values() if view == "local" else ()
        own = {short[group] for short in shorts if group in short}
        if match(groups, analysis.clusters, group) >= GOOD_MATCH:
            names[group] = f"like cluster {group}"
            if own == {courses.get(group)}:
                names[group] = group_name(study, group, analysis.names)
            continue
        different = "differs between the sites" if len(own) > 1 else next(iter(own), "")
        names[group] = f"own class {group}: {different}".removesuffix(": ")
    return names


def _courses(
    study: Study,
    data: Sequences | Mapping[str, Sequences],
    groups: Mapping[str, pd.Series],
    site: str,
) -> dict[Any, str]:
    """Short names of the groups of a site, or of "all", from their courses; none if hidden."""
    min_count = study.privacy.min_count
    described = describe_clusters(data, groups if site == "all" else groups[site])
    hidden = hidden_sizes(groups, min_count).loc[site]
    return {
        group: short
        for group, short in zip(
            described["cluster"], name_clusters(described, min_count), strict=True
        )
        if short is not None and not hidden[group]
    }


def match(groups: Mapping[str, pd.Series], clusters: Mapping[str, pd.Series], group: Any) -> float:
    """The Jaccard index of a group and the cluster of the same number, at the worst of the sites.

    Sites where neither has patients do not count.

    >>> groups = {"A": pd.Series([1, 1, 2]), "B": pd.Series([1, 1, 2])}
    >>> clusters = {"A": pd.Series([1, 1, 2]), "B": pd.Series([1, 2, 2])}
    >>> match(groups, clusters, 1)
    0.5
    """
    shares = []
    for site, part in groups.items():
        here, there = (part == group).to_numpy(), (clusters[site] == group).to_numpy()
        if (here | there).any():
            shares.append(float((here & there).sum() / (here | there).sum()))
    return min(shares, default=0.0)
