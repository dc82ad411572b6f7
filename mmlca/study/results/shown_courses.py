"""The groups of all sites and their courses, put together from the results of sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.courses import FREQUENT, REPRESENTATIVE
from mmlca.study.results.groups import matched_classes
from mmlca.study.results.site import ALL_SITES, OWN, SHOWN, Results, is_rounded, stacked
from mmlca.tables.clusters import (
    LONGEST,
    CourseCounts,
    Path,
    add_courses,
    describe_courses,
    name_clusters,
)
from mmlca.tables.course_tables import (
    Courses,
    guarded_clusters,
    share_of_paths,
    without_few,
)
from mmlca.tables.describe import course_texts
from mmlca.tables.disclosure import EVERYONE, add_totals, hidden_grid, hides, is_small, shares_of
from mmlca.tables.groups import GroupInfo, Keys

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one view at all sites that have it, under the numbers of the report.

    Parameters
    ----------
    view : str
    numbers : {site: {group: number}}
        The number in the report of each group of each site.
    patients : {site: {number: patients}}
        Of each group, rounded or exact.
    counts : {site: {number: CourseCounts}}
    sizes : DataFrame
        As they may be shown: a row for each site and "all" of them, a column for each group and
        "all" of them.
    rounded : bool
        Whether all counts are rounded.
    min_count : int
    """

    view: str
    numbers: Mapping[str, Mapping[int, int]]
    patients: Mapping[str, Mapping[int, float]]
    counts: Mapping[str, Mapping[int, CourseCounts]]
    sizes: pd.DataFrame
    rounded: bool
    min_count: int

    @property
    def order(self) -> list[int]:
        """The numbers of all groups, in their order."""
        return [number for number in self.sizes if number != EVERYONE]

    @property
    def least(self) -> int:
        """Groups of fewer patients show nothing: rounded, the unit may be a single patient."""
        return self.min_count + 1 if self.rounded else self.min_count

    def everywhere(self) -> dict[int, CourseCounts]:
        """The groups of all sites together."""
        return {
            number: add_courses([part[number] for part in self.counts.values() if number in part])
            for number in self.order
        }

    def any_to_show(self) -> bool:
        """Whether a group has enough patients to be shown; figures leave smaller ones out."""
        return any(
            not is_small([*part.values()], self.least).all() for part in self.patients.values()
        )


def views_of(results: Results) -> list[str]:
    """The views of the report, in its order."""
    known = set(stacked(results, "groups")["view"])
    return [view for view in SHOWN if view in known]


def groups_of(results: Results, view: str, min_count: int) -> Groups:
    """The groups of a view, those of the sites' own models under the numbers of the clusters."""
    numbers, patients = _patients(results, view)
    counts = {}
    for site, part in numbers.items():
        made = {number: _counts(results[site], view, group) for group, number in part.items()}
        counts[site] = {number: made[number] for number in patients[site]}
    rounded = is_rounded(results)
    sizes = _sizes(results, patients, rounded, min_count)
    return Groups(view, numbers, patients, counts, sizes, rounded, min_count)


def sizes_of(results: Results, view: str, min_count: int) -> pd.DataFrame:
    """The sizes of the groups of a view alone, as in `Groups`."""
    return _sizes(results, _patients(results, view)[1], is_rounded(results), min_count)


def _patients(
    results: Results, view: str
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, float]]]:
    """The numbers in the report of each site's groups, and their patients by these numbers."""
    matched = matched_classes(results) if view == OWN else {}
    numbers: dict[str, dict[int, int]] = {}
    patients: dict[str, dict[int, float]] = {}
    for site, result in results.items():
        table = result.tables["groups"]
        table = table[table["view"] == view].astype({"group": int})
        if len(table):
            here = {k: matched[site][k] if view == OWN else k for k in table["group"]}
            sizes = zip(table["group"], table["patients"], strict=True)
            numbers[site] = here
            patients[site] = dict(sorted((here[k], float(n)) for k, n in sizes))
    return numbers, patients


def _sizes(
    results: Results,
    patients: Mapping[str, Mapping[int, float]],
    rounded: bool,
    min_count: int,
) -> pd.DataFrame:
    numbers = sorted({number for part in patients.values() for number in part})
    cells = [[part.get(number, 0.0) for number in numbers] for part in patients.values()]
    sizes = add_totals(np.array(cells).reshape(len(patients), len(numbers)))
    if rounded:  # the number of all patients is one number on the whole page
        everyone = [float(results[site].tables["about"]["patients"].item()) for site in patients]
        sizes[:, -1] = [*everyone, sum(everyone)]
    else:
        sizes[hidden_grid(sizes, min_count)] = np.nan
    return pd.DataFrame(sizes, [*patients, EVERYONE], [*numbers, EVERYONE])


def _counts(result: SiteResults, view: str, group: int) -> CourseCounts:
    """The counts of a group of a site, from its tables."""
    states, times = (tuple(result.tables[name].iloc[:, 0]) for name in ("states", "times"))
    state, time = ({name: i for i, name in enumerate(names)} for names in (states, times))
    windows, switches = np.zeros((len(times), len(states))), np.zeros((len(states), len(states)))
    ends, spans = np.zeros((2, len(states))), np.zeros((2, len(times) + 1))

    def rows(name: str, *columns: str) -> list[tuple[Any, ...]]:
        table = result.tables[name]
        table = table[(table["view"] == view) & (table["group"] == group)]
        return list(zip(*(table[column] for column in columns), strict=True))

    for at, name, n in rows("windows", "time", "state", "count"):
        windows[time[at], state[name]] = n
    for before, after, n in rows("switches", "from", "to", "count"):
        switches[state[before], state[after]] = n
    for name, begin, end in rows("ends", "state", "begin", "end"):
        ends[:, state[name]] = begin, end
    for n_windows, followed, switched in rows("spans", "windows", "followed", "switched"):
        spans[:, int(n_windows)] = followed, switched
    paths: dict[int, dict[Path, float]] = {longest: {} for longest in LONGEST}
    for cut, *names, more, n in rows(
        "paths", "longest", "first", "second", "third", "more", "count"
    ):
        codes = [-1 if name is None else state[name] for name in names[: int(cut)]]
        path = None if names[0] is None else (*codes, len(states) if more else -1)
        paths[int(cut)][path] = float(n)
    ((n, weight),) = rows("groups", "patients", "weight")
    n = float(n if np.isnan(weight) else weight)
    begins, last = ends
    followed, switched = spans
    return CourseCounts(
        states, times, n, begins, last, windows, switches, paths, followed, switched
    )


# --- in numbers and words -----------------------------------------------------------------


def described_of(
    results: Results, groups: Groups, after: str, window: str, *, by_site: bool = False
) -> pd.DataFrame:
    """The groups as `describe_clusters` describes them, and as the release shows them.

    With `by_site`, a row for each site and group, with a column "site", instead of all sites
    together.
    """
    rows = []
    for site, part in groups.counts.items() if by_site else [("", groups.everywhere())]:
        total = sum(group.n for group in part.values())
        for number in groups.order:
            group = part.get(number) or _without_patients(next(iter(part.values())))
            key = {"site": site, "cluster": number} if by_site else {"cluster": number}
            rows.append({**key, **describe_courses(group, total, after, window)})
    described = pd.DataFrame(rows)
    if groups.rounded:
        return without_few(described, groups.least)
    steps = _steps(results, groups)
    return guarded_clusters(described, steps, groups.sizes, groups.min_count, after, window)


def _without_patients(like: CourseCounts) -> CourseCounts:
    return like._replace(n=0.0)


def names_by_course(groups: Groups, site: str | None = None) -> dict[int, str]:
    """Short names of the groups of a site, or of all, from their courses; none if hidden."""
    parts = groups.everywhere() if site is None else groups.counts[site]
    total = sum(group.n for group in parts.values())
    rows = [{"cluster": k, **describe_courses(group, total)} for k, group in parts.items()]
    shorts = name_clusters(pd.DataFrame(rows), 0 if groups.rounded else groups.min_count)
    sizes = groups.sizes.loc[EVERYONE if site is None else site]
    return {
        number: short
        for number, short in zip(parts, shorts, strict=True)
        if short is not None
        and not np.isnan(sizes[number])
        and not is_small(sizes[number], groups.least)
    }


# --- tables for figures -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GroupCourses:
    """The courses of the groups of a view, as figures draw them and tables show them.

    Parameters
    ----------
    name : str or None
        What the report calls the view.
    groups : Groups
    infos : list of GroupInfo
        The panels: sites, and all of them together where nothing is hidden, by groups.
    tables : Courses
    frequencies, representatives : DataFrame
        Single courses, with the sizes of their groups.
    spells : {"frequent" or "representative": DataFrame}
        What these consist of.
    """

    name: str | None
    groups: Groups
    infos: list[GroupInfo]
    tables: Courses
    frequencies: pd.DataFrame
    representatives: pd.DataFrame
    spells: Mapping[str, pd.DataFrame]

    @property
    def sites(self) -> list[str]:
        return list(self.groups.counts)

    @property
    def of_sites(self) -> list[GroupInfo]:
        """The panels of single sites."""
        return [info for info in self.infos if info.keys["site"] in self.groups.counts]


def courses_of(results: Results, groups: Groups, names: Mapping[int, str]) -> GroupCourses:
    """The courses of a view; `names` are those of the groups by number."""
    tables = {
        "distribution": _windows(results, groups),
        "transitions": _steps(results, groups),
        "paths": _lines(results, groups),
    }
    patients, m = groups.patients, groups.min_count
    together = len(patients) > 1 and (groups.rounded or not hides(m))
    if together:
        tables = {name: _with_all(table, name) for name, table in tables.items()}
    if groups.rounded:
        patients_columns = ["patients", "n_patients"]
        tables = {n: t.drop(columns=patients_columns, errors="ignore") for n, t in tables.items()}
    tables = {name: _finished(table, name) for name, table in tables.items()}
    places = {**patients, **({ALL_SITES: groups.sizes.loc[EVERYONE]} if together else {})}
    size = {
        (place, number): groups.sizes.at[EVERYONE if place == ALL_SITES else place, number]
        for place in places
        for number in groups.order
    }
    column = "rounded_size" if groups.rounded else "size"

    def shown(table: pd.DataFrame) -> pd.DataFrame:
        """Sizes beside the numbers, and names of the groups, in their order."""
        pairs = list(zip(table["site"], table["group"], strict=True))
        rank = {pair: i for i, pair in enumerate(size)}
        order = np.argsort([rank[pair] for pair in pairs], kind="stable")
        sizes = np.array([size[pair] for pair in pairs], dtype=float)
        table = table.assign(**{column: sizes}, group=table["group"].map(names).astype(object))
        return table.iloc[order].reset_index(drop=True)

    few = frozenset(
        (site, names[number])
        for site, part in patients.items()
        for number, n in part.items()
        if is_small(n, groups.least)
    )
    single, spells = _single_courses(results, groups)
    return GroupCourses(
        SHOWN[groups.view],
        groups,
        _infos(results, groups, names, together),
        Courses(**{name: shown(table) for name, table in tables.items()}, few=few, min_count=m),
        shown(_frequent(single[FREQUENT], groups, size)),
        shown(_representative(single[REPRESENTATIVE], groups)),
        {kind: table.assign(group=table["group"].map(names)) for kind, table in spells.items()},
    )


def _infos(
    results: Results, groups: Groups, names: Mapping[int, str], together: bool
) -> list[GroupInfo]:
    infos = []
    for site, part in groups.counts.items():
        states = results[site].tables["states"]
        final = tuple(states.loc[states["final"], "state"])
        for number, counts in part.items():
            n = int(groups.patients[site][number])
            infos.append(
                GroupInfo(
                    _keys(site, names[number]),
                    n,
                    counts.n,
                    counts.states,
                    counts.times,
                    final,
                )
            )
    if together:
        everywhere = groups.everywhere()
        final = tuple(dict.fromkeys(state for info in infos for state in info.absorbing))
        for number, counts in everywhere.items():
            n = int(sum(part.get(number, 0.0) for part in groups.patients.values()))
            keys = _keys(ALL_SITES, names[number])
            infos.append(GroupInfo(keys, n, counts.n, counts.states, counts.times, final))
    return infos


def _keys(site: str, group: str) -> Keys:
    return {"site": site, "group": group}


def _rows_of(results: Results, groups: Groups, name: str) -> pd.DataFrame:
    """The rows of a view in a table of all sites, with the numbers of the report."""
    table = stacked({site: results[site] for site in groups.counts}, name)
    table = table[table["view"] == groups.view].drop(columns="view").reset_index(drop=True)
    pairs = zip(table["site"], table["group"].astype(int), strict=True)
    return table.assign(group=[groups.numbers[site][group] for site, group in pairs])


def _cells(
    groups: Groups,
    names: list[str],
    sides: Callable[[CourseCounts], tuple[Sequence[str], Sequence[str]]],
) -> pd.DataFrame:
    """All cells of a table of each site and group, also those that nobody is in."""
    rows = [
        (site, number, first, second)
        for site, part in groups.counts.items()
        for number, counts in part.items()
        for first, second in product(*sides(counts))
    ]
    return pd.DataFrame(rows, columns=["site", "group", *names])


def _windows(results: Results, groups: Groups) -> pd.DataFrame:
    """Patients by window and state, of every window and state of the site."""
    found = _rows_of(results, groups, "windows")
    cells = _cells(groups, ["time", "state"], lambda counts: (counts.times, counts.states))
    table = cells.merge(found, how="left", on=list(cells))
    return table.fillna(dict.fromkeys(("count", "n", "patients"), 0.0))


def _steps(results: Results, groups: Groups) -> pd.DataFrame:
    """Steps from every state to every other one, and the patients who make them."""
    found = _rows_of(results, groups, "steps").drop(columns="model")
    rows = _rows_of(results, groups, "step_rows")[["site", "group", "from", "patients"]]
    cells = _cells(groups, ["from", "to"], lambda counts: (counts.states, counts.states))
    keys = list(cells)
    table = cells.merge(found, how="left", on=keys)
    table = table.merge(rows.rename(columns={"patients": "n_patients"}), how="left", on=keys[:3])
    table = table.fillna(dict.fromkeys(("count", "patients", "n_patients"), 0.0))
    return table.assign(n=table.groupby(keys[:3], sort=False)["count"].transform("sum"))


def _lines(results: Results, groups: Groups) -> pd.DataFrame:
    return _rows_of(results, groups, "lines").astype({"line": int})


_CELLS = {
    "distribution": ["time", "state"],
    "transitions": ["from", "to"],
    "paths": ["line", "path", "parent", "before", "state"],
}


def _with_all(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The same with the sums of all sites behind it."""
    sums = table.groupby(["group", *_CELLS[name]], sort=False, dropna=False)
    numbers = [c for c in ("count", "n", "patients", "n_patients") if c in table]
    everyone = sums[numbers].sum().reset_index().assign(site=ALL_SITES)
    if name == "paths":
        everyone = everyone.sort_values(["group"], kind="stable")
    return pd.concat([table, everyone], ignore_index=True)


def _finished(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The same with shares, and states and times in their order."""
    if name == "paths":
        share = share_of_paths(table) if "share" not in table else table["share"]
        of_all = (table["site"] == ALL_SITES).to_numpy()
        if of_all.any():
            share = share.where(~of_all, share_of_paths(table))
        return table.assign(share=share)
    share, (by, last) = {"distribution": "share", "transitions": "rate"}[name], _CELLS[name]
    values = shares_of(table["count"], table, ["site", "group", by])
    ordered = {
        column: pd.Categorical(table[column], list(dict.fromkeys(table[column])), ordered=True)
        for column in (by, last)
    }
    return table.assign(**{share: values}, **ordered)


# --- single courses -----------------------------------------------------------------------


def _single_courses(
    results: Results, groups: Groups
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Common courses by kind, as texts, and their spells."""
    courses, spells = (_rows_of(results, groups, name) for name in ("courses", "spells"))
    spells = spells.astype({"rank": int, "windows": int})
    keys = ["site", "group", "kind"]
    texts = {
        (*key, rank): text
        for key, rows in spells.groupby(keys, sort=False)
        for rank, text in zip(rows["rank"].unique(), course_texts(rows), strict=True)
    }
    courses = courses.astype({"rank": int})
    cells = courses[[*keys, "rank"]].itertuples(index=False, name=None)
    courses = courses.assign(sequence=[texts[cell] for cell in cells])
    kinds = (FREQUENT, REPRESENTATIVE)
    tables = {kind: courses[courses["kind"] == kind].drop(columns="kind") for kind in kinds}
    return tables, {kind: spells[spells["kind"] == kind].drop(columns="kind") for kind in kinds}


def _frequent(
    table: pd.DataFrame, groups: Groups, size: Mapping[tuple[str, int], float]
) -> pd.DataFrame:
    """The most frequent courses with their shares of the group."""
    pairs = list(zip(table["site"], table["group"], strict=True))
    whole = np.array([groups.counts[site][number].n for site, number in pairs], dtype=float)
    by = [table["site"], table["group"]]
    if groups.rounded:
        whole = np.maximum(whole, table["count"].groupby(by, sort=False).transform("sum"))
    share = table["count"] / np.where(whole > 0, whole, np.nan)
    columns = ["site", "group", "rank", "sequence", "count"]
    return table[columns].assign(share=share, cumulative=share.groupby(by, sort=False).cumsum())


def _representative(table: pd.DataFrame, groups: Groups) -> pd.DataFrame:
    """The representative courses with the shares of the patients whom they represent."""
    share = shares_of(table["count"], table, ["site", "group"])
    columns = ["site", "group", "rank", "sequence", "count"]
    return table[columns].assign(share=share, distance=table["distance"])
