"""What the clusters of a study are called: by their courses, or as the study file says.

A name of the study file belongs to a course, not to a number: under another rule or with new data
the same number may stand for other patients.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from font.errors import InputError, ReportWarning
from mmlca.sequences.checks import listed
from mmlca.study.words import group_word, groups_word

if TYPE_CHECKING:
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
