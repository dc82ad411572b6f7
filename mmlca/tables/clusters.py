"""Clusters and classes in numbers and in words: what their patients do."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.sequences.checks import listed
from mmlca.sequences.type import Sequences
from mmlca.tables.counts import state_counts
from mmlca.tables.disclosure import Guarded, hides, is_small
from mmlca.tables.groups import Labels, LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.matching import common_membership
from mmlca.tables.treatment_lines import ARROW, line_codes

PATHS = ("path", "second_path")
"""Columns of the two most common paths; the columns of their shares end in "_share"."""
GOES_ON = "…"
"""Stands for whatever follows the third state of a path."""
PERSIST, HALF = 0.75, 0.5
"""Shares of a cluster's patients from which on it is named by one state, or by one path."""
_LONGEST_NAME = 45  # letters of two paths; longer ones would fill the titles of figures
LONGEST = (3, 2)
"""States of a path that are named: of one that half take, and of others."""
Path = tuple[int, ...] | None


def describe_clusters(
    sequences: Sequences | SequencesBySite,
    clusters: Labels | LabelsBySite,
    *,
    by_site: bool = False,
    after: str | None = None,
    window: str = "time",
) -> pd.DataFrame:
    """What each cluster's patients do, in numbers and in words.

    All numbers are weighted by the patients' weights. A switch is a change between two observed
    states that follow each other; missing times between them are passed over.

    Parameters
    ----------
    sequences : Sequences, or dict {site: Sequences}
    clusters : Series by id or array in the patients' order, or dict {site: …} of these
    by_site : bool
        One row per site and cluster; otherwise the sites are taken together.
    after : str, optional
        How long the sequences last, for the wording: "4 years".
    window : str
        What one time of the sequences is called, for the wording: "quarter".

    Returns
    -------
    DataFrame
        One row per cluster: `n`, `share` (of the patients, or of the site's), `first` (most
        common first state) with `first_share`; `time` (the last at which anyone of the cluster
        is observed), `n_then` (observed then) and `still` (share of these in the state `first`);
        `switch_to` (where switches out of `first` most often go) with `switch_share` (of such
        switches); `switches` (mean number per patient); `path` (the most common states in their
        order, without repetition: up to three if half of the patients take this path, else up to
        two; "A → B → …" goes on) and `second_path` (the next most common one), with `path_share`
        and `second_path_share`; `until_switch` (median number of times before the first switch, of
        the `switchers` who switched); `followed` (median number of times up to the last observed
        one) with its quartiles `followed_q25` and `followed_q75`; `end` (most common last observed
        state) with `end_share`; and `description`.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "A", "A"], ["A", "B", "B"]])
    >>> print(describe_clusters(s, [1, 1, 2], after="3 years", window="year")["description"][0])
    67 %: 100 % never leave A during a median follow-up of 3 years, quartiles 3 and 3; 100 % of \
those still observed after 3 years are on A; 0 switches per patient
    """
    several = isinstance(sequences, Mapping)
    sites = checked_sites(sequences if several else {"": sequences}, at_least=1)
    labels: Any = clusters if several else {"": clusters}
    membership = common_membership(sites, labels, "clusters")
    counts = [
        [count_courses(data[membership.codes[site] == k]) for k in range(len(membership.labels))]
        for site, data in sites.items()
    ]
    if not by_site:
        counts = [[add_courses(parts) for parts in zip(*counts, strict=True)]]
    rows = []
    for site, groups in zip(sites, counts, strict=False):
        total = sum(group.n for group in groups)
        for label, group in zip(membership.labels, groups, strict=True):
            key = {"site": site, "cluster": label} if by_site else {"cluster": label}
            rows.append({**key, **describe_courses(group, total, after, window)})
    return pd.DataFrame(rows)


class CourseCounts(NamedTuple):
    """What the patients of a group do, as counts that add up over sites; T times and S states.

    Parameters
    ----------
    states, times : tuple of str
    n : float
        Patients; like all others but the last, weighted.
    begins, ends : (S,)
        Patients by their first and last observed state.
    windows : (T, S)
        Patients in each state at each time.
    switches : (S, S)
        Changes between two observed states that follow each other, wherever these are.
    paths : {longest: {path: patients}}
        By their states in order, without repetition and cut after the `longest` one: codes, then
        −1, and S in the last place if the path goes on. The path None stands for all others.
    followed : (T + 1,)
        Patients by the number of times up to the last observed one.
    switched : (T + 1,)
        Patients who switch, by the number of times before the first switch; not weighted.
    """

    states: tuple[str, ...]
    times: tuple[str, ...]
    n: float
    begins: NDArray[np.float64]
    ends: NDArray[np.float64]
    windows: NDArray[np.float64]
    switches: NDArray[np.float64]
    paths: dict[int, dict[Path, float]]
    followed: NDArray[np.float64]
    switched: NDArray[np.float64]


class EachCourse(NamedTuple):
    """What each patient of a group does, for n patients.

    Parameters
    ----------
    begin, end : (n,)
        Codes of the first and last observed state; −1 if nothing is observed.
    followed : (n,)
        Number of times up to the last observed one.
    switched : (n,)
        Number of times before the first switch, 0 without one.
    paths : {longest: n of Path}
    """

    begin: NDArray[np.int8]
    end: NDArray[np.int8]
    followed: NDArray[np.intp]
    switched: NDArray[np.intp]
    paths: dict[int, list[Path]]


def each_course(data: Sequences) -> EachCourse:
    """What each patient of a group does."""
    lines, last = line_codes(data, max(LONGEST) + 1), _last_observed(data)
    changed = (data.codes != lines[:, :1]) & (data.codes >= 0)
    return EachCourse(
        lines[:, 0],
        data.codes[np.arange(len(data)), last],
        last + 1,
        np.where(lines[:, 1] >= 0, changed.argmax(axis=1), 0),
        {longest: _cut_paths(data, lines, longest) for longest in LONGEST},
    )


def counted(data: Sequences) -> Sequences:
    """The patients who have a weight."""
    return data if (data.weights > 0).all() else data[data.weights > 0]


def count_courses(data: Sequences) -> CourseCounts:
    """The counts of a group of patients."""
    data = counted(data)
    n_times, each = data.shape[1], each_course(data)
    return CourseCounts(
        data.states,
        data.times,
        float(data.weights.sum()),
        _weight_by_state(data, each.begin),
        _weight_by_state(data, each.end),
        state_counts(data),
        _switch_counts(data),
        {longest: _weight_of_paths(data, paths) for longest, paths in each.paths.items()},
        np.bincount(each.followed, weights=data.weights, minlength=n_times + 1).astype(float),
        np.bincount(each.switched[each.switched > 0], minlength=n_times + 1).astype(float),
    )


def _cut_paths(data: Sequences, lines: NDArray[np.int8], longest: int) -> list[Path]:
    cut = lines[:, : longest + 1].astype(np.intp)
    cut[cut[:, longest] >= 0, longest] = data.n_states  # goes on, wherever
    return [tuple(path) for path in cut.tolist()]


def _weight_of_paths(data: Sequences, paths: list[Path]) -> dict[Path, float]:
    weight: dict[Path, float] = {}
    for path, n in zip(paths, data.weights.tolist(), strict=True):
        weight[path] = weight.get(path, 0.0) + n
    return dict(sorted(weight.items()))


def add_courses(parts: Sequence[CourseCounts]) -> CourseCounts:
    """The counts of several groups of other patients together; the longest sequences say T."""
    if len(parts) == 1:
        return parts[0]
    longest = max(parts, key=lambda part: len(part.times))

    def add(name: str) -> NDArray[np.float64]:
        total: NDArray[np.float64] = np.zeros_like(getattr(longest, name))
        for part in parts:
            counts = getattr(part, name)
            total[: len(counts)] += counts
        return total

    sums = {name: add(name) for name in CourseCounts._fields[3:] if name != "paths"}
    paths: dict[int, dict[Path, float]] = {}
    for length in LONGEST:
        known = {path for part in parts for path in part.paths[length]}
        in_order = sorted(known, key=lambda path: (path is None, path))
        paths[length] = {
            path: sum(part.paths[length].get(path, 0.0) for part in parts) for path in in_order
        }
    total = sum(part.n for part in parts)
    return CourseCounts(longest.states, longest.times, total, paths=paths, **sums)


def describe_courses(
    counts: CourseCounts, total: float, after: str | None = None, window: str = "time"
) -> dict[str, Any]:
    """One row of `describe_clusters`, as a group of `total` patients."""
    n, states = counts.n, counts.states
    row: dict[str, Any] = {"n": n, "share": _ratio(n, total)}
    if not (n > 0 and counts.windows.any() and counts.begins.any()):
        nothing = {"first": None, "first_share": np.nan, "time": None, "n_then": 0.0}
        nothing |= {"still": np.nan, "switch_to": None, "switch_share": np.nan}
        nothing |= {"switches": np.nan, "path": None, "path_share": np.nan, "second_path": None}
        nothing |= {"second_path_share": np.nan, "switchers": 0.0, "until_switch": np.nan}
        nothing |= {"followed": np.nan, "followed_q25": np.nan, "followed_q75": np.nan}
        nothing |= {"end": None, "end_share": np.nan}
        return row | nothing | {"description": "no patients"}
    first = int(counts.begins.argmax())
    last = int(np.flatnonzero(counts.windows.any(axis=1))[-1])
    then, to = counts.windows[last], counts.switches[first]
    row |= {
        "first": states[first],
        "first_share": _ratio(counts.begins[first], counts.begins.sum()),
        "time": counts.times[last],
        "n_then": then.sum(),
        "still": _ratio(then[first], then.sum()),
        "switch_to": states[int(to.argmax())] if to.sum() > 0 else None,
        "switch_share": _ratio(to.max(), to.sum()),
        "switches": counts.switches.sum() / n,
        **_common_paths(counts),
        "switchers": float(counts.switched.sum()),
        "until_switch": _median(counts.switched),
        **_follow_up_of(counts.followed),
        "end": states[int(counts.ends.argmax())] if counts.ends.any() else None,
        "end_share": _ratio(counts.ends.max(), counts.ends.sum()),
    }
    return row | {"description": wording(row, after, window)}


def _common_paths(counts: CourseCounts) -> dict[str, Any]:
    """The two most common paths, of at most three states where half take one, else of two."""
    names = [*counts.states, GOES_ON]
    row: dict[str, Any] = {"second_path": None, "second_path_share": np.nan}
    for longest in LONGEST:
        whole = sum(counts.paths[longest].values())
        common = [(n, path) for path, n in counts.paths[longest].items() if path is not None]
        if common and max(n for n, _ in common) >= HALF * whole:
            break
    common.sort(key=lambda pair: -pair[0])
    row |= {"path": None, "path_share": np.nan}
    for kind, (n, path) in zip(PATHS, common, strict=False):
        row[kind] = ARROW.join(names[code] for code in path if code >= 0)
        row[f"{kind}_share"] = _ratio(n, whole)
    return row


def _median(counts: NDArray[np.float64]) -> float:
    """The median of whole numbers that occur so many times."""
    cumulative, half = np.cumsum(counts), counts.sum() / 2
    if not half:
        return np.nan
    return float(np.mean([np.argmax(cumulative >= half), np.argmax(cumulative > half)]))


def _follow_up_of(followed: NDArray[np.float64]) -> dict[str, float]:
    names = ("followed", "followed_q25", "followed_q75")
    if not followed.any():
        return dict.fromkeys(names, np.nan)
    length = np.arange(len(followed), dtype=float)
    levels = (0.5, 0.25, 0.75)
    found = np.quantile(length, levels, weights=followed, method="inverted_cdf")
    return dict(zip(names, found.tolist(), strict=True))


def _last_observed(data: Sequences) -> NDArray[np.intp]:
    """The position of each patient's last observed state."""
    last: NDArray[np.intp] = data.shape[1] - 1 - (data.codes[:, ::-1] >= 0).argmax(axis=1)
    return last


class Course(StrEnum):
    """What the numbers of a cluster allow to say about its patients."""

    PERSISTERS = "at least three quarters never leave one state"
    ONCE = "the same, but half or more were observed once only, so that they could not leave"
    PATH = "at least half take the same path from one state to others"
    MIXED = "neither"


def course_of(row: Mapping[Any, Any]) -> Course:
    """The kind of course of a cluster, from its row of `describe_clusters`.

    Every number that a name is based on has to support it: the share of the path, and those of
    the states in which it begins and ends. In exact numbers the latter follow from the former; in
    rounded ones they may not.
    """
    path, first, end = row["path"], row["first"], row["end"]
    if not _is_known(path):
        return Course.MIXED
    if path == first == end and min(row[f"{c}_share"] for c in ("path", "first", "end")) >= PERSIST:
        return Course.PERSISTERS if row["followed"] >= 2 else Course.ONCE
    begins = path.startswith(f"{first}{ARROW}") and row["first_share"] >= HALF
    ends = path.endswith(f"{ARROW}{end}") and row["end_share"] >= HALF
    open_end = path.endswith(f"{ARROW}{GOES_ON}")
    return (
        Course.PATH if begins and (ends or open_end) and row["path_share"] >= HALF else Course.MIXED
    )


def name_clusters(described: pd.DataFrame, min_count: int = 0) -> list[str | None]:
    """A short name for each cluster, from its row of `describe_clusters`.

    "A persisters": at least three quarters of the cluster's patients begin on A and never leave it
    while they are observed. "A → B": at least half take exactly this path. All others are "mixed",
    with their two most common paths, or with one where two would be too long. Clusters that would
    have the same name are distinguished by how early they switch ("early", "late"), or else by
    numbers. A cluster without a description has no name, and paths of fewer than `min_count`
    patients are not mentioned.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "B", "B"], ["A", "A", "B"]])
    >>> name_clusters(describe_clusters(s, [1, 2, 3]))
    ['A persisters', 'A → B (early)', 'A → B (late)']
    >>> name_clusters(describe_clusters(s, [1, 1, 3]))
    ['mixed: A, A → B', 'A → B']
    """
    rows = [_without_rare_paths(row, min_count) for row in described.to_dict("records")]
    names = [_name(row) if _is_known(row["first"]) else None for row in rows]
    distinct: list[str | None] = []
    for row, name in zip(rows, names, strict=True):
        same = [other for other, n in zip(rows, names, strict=True) if n == name]
        kinds = [None] if name is None else _kinds(name, row, same)
        distinct.append(next(kind for kind in kinds if kind is None or kind not in distinct))
    return distinct


def _kinds(
    name: str, row: Mapping[Any, Any], same: list[dict[Hashable, Any]]
) -> Iterator[str | None]:
    """What a cluster of this name may be called beside others that have the same, best first."""
    until = [other["until_switch"] for other in same]
    if len(same) == 1:
        yield name
    elif course_of(row) is Course.PATH and len(same) == 2 and min(until) < max(until):
        yield f"{name} ({'early' if row['until_switch'] == min(until) else 'late'})"
    yield from (f"{name} ({number})" for number in count(1))


def _without_rare_paths(row: dict[Hashable, Any], min_count: int) -> dict[Hashable, Any]:
    if not hides(min_count):
        return row
    n = {path: round(float(row[f"{path}_share"]) * float(row["n"]), 6) for path in PATHS}
    return row | {path: None for path in PATHS if is_small(n[path], min_count)}


def _name(row: Mapping[Any, Any]) -> str:
    kind, path = course_of(row), row["path"]
    if kind is Course.PATH:
        return str(path)
    if kind is not Course.MIXED:
        return f"{path} persisters" if kind is Course.PERSISTERS else f"{path} only"
    paths = [row[name] for name in PATHS if _is_known(row[name])]
    both = ", ".join(paths)
    return f"mixed: {both if len(both) <= _LONGEST_NAME else paths[0]}" if paths else "mixed"


def _is_known(value: Any) -> bool:
    return value is not None and not pd.isna(value)


def switch_steps(data: Sequences) -> NDArray[np.intp]:
    """Every switch of every patient: position of the patient, state before and after, (3, n)."""
    patient, time = np.nonzero(data.codes >= 0)
    state = data.codes[patient, time].astype(np.intp)
    moved = (patient[1:] == patient[:-1]) & (state[1:] != state[:-1])
    return np.array([patient[1:][moved], state[:-1][moved], state[1:][moved]])


def _switch_counts(data: Sequences) -> NDArray[np.float64]:
    """Weighted number of switches from each state to each other one, (S, S)."""
    patient, before, after = switch_steps(data)
    count = np.zeros((data.n_states, data.n_states))
    np.add.at(count, (before, after), data.weights[patient])
    return count


def _weight_by_state(data: Sequences, codes: NDArray[np.int8]) -> NDArray[np.float64]:
    seen = codes >= 0
    weight = np.bincount(codes[seen], weights=data.weights[seen], minlength=data.n_states)
    return weight.astype(float)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else np.nan


def wording(row: Mapping[Any, Any], after: str | None, window: str = "time") -> str:
    """A row of `describe_clusters` in words; each statement comes with its number."""
    kind, parts = course_of(row), [course_text(row, window)]
    if kind in (Course.MIXED, Course.PATH):
        if _is_known(row["followed"]):
            parts.append(_follow_up(row, window))
        if _is_known(row["first_share"]):
            parts.append(f"{percent_text(row['first_share'])} start on {row['first']}")
        if _is_known(row["until_switch"]):
            switch = f"first switch after {_times(row['until_switch'], window)}"
            parts.append(f"{switch} (median of those who switch)")
        if _is_known(row["end"]):
            parts.append(end_text(row))
    when = f"observed at time {row['time']}" if after is None else f"still observed after {after}"
    parts.append(f"{percent_text(row['still'])} of those {when} are on {row['first']}")
    parts.append(f"{rate_text(row['switches'])} switches per patient")
    return f"{percent_text(row['share'])}: {'; '.join(parts)}"


def course_text(row: Mapping[Any, Any], window: str = "time") -> str:
    """What most patients of a cluster do, with the share of those who do it.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "B"], ["A", "C"]])
    >>> rows = describe_clusters(s, [1, 2, 2]).to_dict("records")
    >>> course_text(rows[0], "quarter")
    '100 % never leave A during a median follow-up of 3 quarters, quartiles 3 and 3'
    >>> course_text(rows[1])
    '50 % take A → B'
    """
    kind, path = course_of(row), row["path"]
    if kind is Course.PATH:
        return f"{percent_text(row['path_share'])} take {path}"
    if kind is not Course.MIXED:
        return f"{percent_text(row['path_share'])} never leave {path} during a " + _follow_up(
            row, window, " of"
        )
    paths = [
        f"{row[name]} ({percent_text(row[f'{name}_share'])})"
        for name in PATHS
        if _is_known(row[name])
    ]
    return f"most often {listed(paths)}" if paths else "no path is common enough to be shown"


def end_text(row: Mapping[Any, Any]) -> str:
    return f"{percent_text(row['end_share'])} end on {row['end']}"


def _follow_up(row: Mapping[Any, Any], window: str, of: str = "") -> str:
    quartiles = f"quartiles {row['followed_q25']:g} and {row['followed_q75']:g}"
    return f"median follow-up{of} {_times(row['followed'], window)}, {quartiles}"


def _times(n: float, window: str) -> str:
    return f"{n:g} {window if n == 1 else plural(window)}"


def plural(window: str) -> str:
    """The plural of a unit of time.

    >>> plural("time point"), plural("window of 45 days")
    ('time points', 'windows of 45 days')
    """
    noun, *size = window.split(" of ")
    return " of ".join([f"{noun}s", *size])


def percent_text(share: float | Guarded) -> str:
    """A share in per cent, with one decimal where that matters.

    Values near 0 or 100 % print as <0.1 % or >99.9 %, and only 0 and 1 themselves as 0 and 100 %.

    Examples
    --------
    >>> [percent_text(share) for share in (0, 0.0004, 0.042, 0.664, 0.995, 0.9996, 1)]
    ['0 %', '<0.1 %', '4.2 %', '66 %', '99.5 %', '>99.9 %', '100 %']
    """
    if isinstance(share, Guarded):
        return share.text
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    digits = 0 if share in (0, 1) or 0.0995 <= share <= 0.9 else 1
    return f"{100 * share:.{digits}f} %"


def rate_text(rate: float | Guarded) -> str:
    """A mean number per patient, with two decimals below 1."""
    if isinstance(rate, Guarded):
        return rate.text
    if 0 < rate < 0.005:
        return "<0.01"
    return f"{rate:.0f}" if rate == 0 else f"{rate:.{2 if rate < 0.995 else 1}f}"
