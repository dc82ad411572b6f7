"""The courses of each group: states by window, treatment lines, paths, and common courses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.study.results.site import REFINED, Column, Part
from mmlca.tables.clusters import (
    LONGEST,
    CourseCounts,
    Path,
    count_courses,
    counted,
    each_course,
    switch_steps,
)
from mmlca.tables.course_tables import (
    course_keys,
    rounded_distribution,
    rounded_paths,
)
from mmlca.tables.describe import course_spells, course_texts, frequent, state_distribution
from mmlca.tables.disclosure import hides, is_small
from mmlca.tables.representatives import shown_medoids
from mmlca.tables.treatment_lines import keyed_paths, treatment_paths

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.course_tables import CourseKeys
    from mmlca.tables.disclosure import Rounding

SHARED_BY = 5
"""Courses of fewer patients are not drawn: ties would decide which come first."""
FREQUENT, REPRESENTATIVE = "frequent", "representative"
Rows = list[list[Any]]
Floats = NDArray[np.float64]


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in _TABLES}
    for view, groups in patients.groups.items():
        made = _of_view(study, patients, view, groups.astype(int))
        for name, table in made.items():
            tables[name].append(table.assign(view=view))
    return {
        name: pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        for name, parts in tables.items()
    }


def _of_view(
    study: Study, patients: SitePatients, view: str, groups: pd.Series
) -> dict[str, pd.DataFrame]:
    site, data, min_count = patients.site, patients.sequences, study.privacy.min_count
    sites, labels, rounding = {site: data}, {site: groups}, patients.rounding_of(view)
    windows = state_distribution(sites, labels)
    keys: CourseKeys = {}
    if rounding is None:
        lines = treatment_paths(sites, labels, min_count=min_count)
    else:
        keys = course_keys(sites, labels, rounding)
        windows = rounded_distribution(windows, rounding, keys)
        paths = keyed_paths(sites, labels, min_count, rounding.key_of)
        lines = rounded_paths(paths, rounding, keys)
    rows: dict[str, Rows] = {name: [] for name in _TABLES if name not in ("windows", "lines")}
    for group in sorted(groups.unique().tolist()):
        members = data[(groups == group).to_numpy()]
        counts = count_courses(members)
        if rounding is not None:
            whole = rounding(counts.n, site, group)
            ever = {state: keys.get((site, str(group), state), "") for state in data.states}
            counts = _rounded(counts, members, whole, ever, rounding)
        for name, row in _rows(counts):
            rows[name].append([view, group, *row])
        single = () if view == REFINED else _single_courses(study, members, site, group, rounding)
        for name, row in single:
            rows[name].append([view, group, *row])
    return {
        "windows": _without_empty(windows),
        "lines": lines.reindex(columns=list(_LINES)),
        **{name: pd.DataFrame(part, columns=list(_TABLES[name])) for name, part in rows.items()},
    }


def _without_empty(windows: pd.DataFrame) -> pd.DataFrame:
    """The windows in which anybody is observed."""
    windows = windows[windows["n"] > 0]
    return windows.astype({"time": str, "state": str}).reindex(columns=list(_WINDOWS))


def _rows(counts: CourseCounts) -> Iterator[tuple[str, list[Any]]]:
    """The rows of the tables of a group's counts, each behind the name of its table."""
    states = counts.states
    for state, begin, end in zip(states, counts.begins, counts.ends, strict=True):
        if begin or end:
            yield "ends", [state, begin, end]
    for i, j in np.argwhere(counts.switches > 0):
        yield "switches", [states[i], states[j], counts.switches[i, j]]
    for t in np.flatnonzero((counts.followed > 0) | (counts.switched > 0)):
        yield "spans", [t, counts.followed[t], counts.switched[t]]
    for longest in LONGEST:
        for path, n in counts.paths[longest].items():
            if n > 0:
                yield "paths", [longest, *_names(path, counts, longest), n]


def _names(path: tuple[int, ...] | None, counts: CourseCounts, longest: int) -> list[Any]:
    """The up to three states of a path, and whether it goes on."""
    if path is None:
        return [None] * max(LONGEST) + [False]
    named = [counts.states[code] if code >= 0 else None for code in path[:longest]]
    return named + [None] * (max(LONGEST) - longest) + [path[longest] >= 0]


# --- rounded ------------------------------------------------------------------------------


def _rounded(
    counts: CourseCounts,
    data: Sequences,
    whole: float,
    keys: Mapping[str, str],
    rounding: Rounding,
) -> CourseCounts:
    """The same with all counts rounded; paths of few patients are together.

    Each draw is named by the patients who are counted, and no part of the group is larger than the
    `whole`. `keys` are the names of those who are ever in a state.
    """
    data = counted(data)
    each, unit = each_course(data), rounding.unit

    def drawn(n: float, who: NDArray[Any]) -> float:
        return rounding.part(n, rounding.key_of(data.ids[who]), whole) if n else 0.0

    def at_least(exact: Floats, who: NDArray[Any]) -> Floats:
        """Numbers by a length: those of at least each length are rounded by one draw."""
        longer = np.append(exact[::-1].cumsum()[::-1], 0.0)
        key = rounding.key_of(data.ids[who])
        return -np.diff([rounding.part(n, key, whole) for n in longer])

    switches, (patient, before, after) = np.zeros_like(counts.switches), switch_steps(data)
    for i, j in np.argwhere(counts.switches > 0):
        who = data.ids[np.unique(patient[(before == i) & (after == j)])]
        switches[i, j] = rounding.steps(counts.switches[i, j], len(who), rounding.key_of(who))
    few_switch = bool(is_small(counts.switched.sum(), unit))
    begins = zip(counts.states, counts.begins, strict=True)
    return counts._replace(
        n=whole,
        begins=np.array([rounding.part(n, keys[s], whole) if n else 0.0 for s, n in begins]),
        ends=np.array([drawn(n, each.end == code) for code, n in enumerate(counts.ends)]),
        switches=switches,
        paths={
            longest: _rounded_paths(paths, each.paths[longest], data, whole, rounding)
            for longest, paths in counts.paths.items()
        },
        followed=at_least(counts.followed, each.followed > 0),
        switched=np.zeros_like(counts.switched)
        if few_switch
        else at_least(counts.switched, each.switched > 0),
    )


def _rounded_paths(
    paths: Mapping[Path, float],
    each: list[Path],
    data: Sequences,
    whole: float,
    rounding: Rounding,
) -> dict[Path, float]:
    """The paths that enough patients take, and all others together."""
    shown = {path: n for path, n in paths.items() if not is_small(n, rounding.unit)}
    members: dict[Path, list[Any]] = {path: [] for path in (*shown, None)}
    for patient, path in zip(data.ids, each, strict=True):
        members[path if path in shown else None].append(patient)
    shown[None] = round(sum(n for path, n in paths.items() if path not in shown), 6)
    return {
        path: rounding.part(n, rounding.key_of(members[path]), whole) if n else 0.0
        for path, n in shown.items()
    }


# --- single courses -----------------------------------------------------------------------


def _single_courses(
    study: Study, data: Sequences, site: str, group: int, rounding: Rounding | None
) -> Iterator[tuple[str, list[Any]]]:
    """Courses that enough patients share: the most frequent, and those that represent all."""
    min_count = study.privacy.min_count
    whole, number = float(data.weights.sum()), data.distinct()[1]
    common = frequent(data, study.outputs.top, max(SHARED_BY, min_count))
    medoids = shown_medoids(data, 5, candidates_shared_by(min_count), min_count)
    unknown = np.full(len(common.rows), np.nan)
    for kind, rows, count, distance in (
        (FREQUENT, common.rows, common.weight, unknown),
        (REPRESENTATIVE, medoids.rows, medoids.weight, medoids.distance),
    ):
        spells = course_spells(data, rows)
        for rank, (text, row, n, far) in enumerate(
            zip(course_texts(spells), rows, count, distance, strict=True), 1
        ):
            if rounding is not None and kind == FREQUENT:
                who = data.ids[number == number[row]]
                n = rounding.part(n, rounding.key_of(who), rounding(whole, site, group))
            elif rounding is not None:
                n = rounding(n, site, group, "sequence", text)
            yield "courses", [kind, rank, n, far]
        for spell in spells.itertuples(index=False, name=None):
            yield "spells", [kind, *spell]


def candidates_shared_by(min_count: int) -> int:
    """How many patients share a representative course.

    Ties do not decide which courses represent all others, so a course of one patient may do where
    nothing is hidden.
    """
    return SHARED_BY if hides(min_count) else 1


_VIEW = {
    "view": Column("text", "the rule that groups the patients"),
    "group": Column("whole", "the number of a group"),
}
_RANK = {
    **_VIEW,
    "kind": Column("text", "frequent (shared by most patients) or representative (of all others)"),
    "rank": Column("whole", "the place of a course, from 1"),
}
_WINDOWS = {
    **_VIEW,
    "time": Column("text", "a window"),
    "state": Column("text", "a state"),
    "count": Column("count", "patients in the state"),
    "n": Column("count", "patients observed"),
    "patients": Column("count", "different patients in the state; missing where rounded"),
}
_LINES = {
    **_VIEW,
    "line": Column("whole", "the number of the last treatment line of a path"),
    "path": Column("text", "the states of all lines up to it"),
    "parent": Column("text", "the same without the last one"),
    "before": Column("text", "the state of the line before"),
    "state": Column("text", "the state of the last line, or that there was none, or others"),
    "count": Column("count", "patients with the path"),
    "patients": Column("count", "different ones; missing where rounded"),
    "share": Column("number", "their share of the group"),
}
_TABLES = {
    "windows": _WINDOWS,
    "lines": _LINES,
    "paths": {
        **_VIEW,
        "longest": Column("whole", "the number of states after which paths are cut"),
        "first": Column("text", "the first state; missing: all paths that are not named"),
        "second": Column("text", "the next other state"),
        "third": Column("text", "the next other state"),
        "more": Column("flag", "whether the path goes on"),
        "count": Column("count", "patients with the path"),
    },
    "ends": {
        **_VIEW,
        "state": Column("text", "a state"),
        "begin": Column("count", "patients who begin in it"),
        "end": Column("count", "patients whose last known state it is"),
    },
    "spans": {
        **_VIEW,
        "windows": Column("whole", "a number of windows"),
        "followed": Column("count", "patients whose last known state is in the window before it"),
        "switched": Column("count", "patients with so many windows before their first switch"),
    },
    "switches": {
        **_VIEW,
        "from": Column("text", "a state"),
        "to": Column("text", "the next other state that is known"),
        "count": Column("count", "such switches"),
    },
    "courses": {
        **_RANK,
        "count": Column("count", "patients who have the course, or whom it represents"),
        "distance": Column("number", "mean share of windows in which these differ from it"),
    },
    "spells": {
        **_RANK,
        "state": Column("text", "the state of a spell of the course; missing: not known"),
        "windows": Column("whole", "the length of the spell"),
    },
}
PART = Part(_TABLES, make)
