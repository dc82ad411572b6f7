"""Strata of a site's patients: their medication, their clusters, and who they are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.model.outcomes import holm
from mmlca.study import site_data
from mmlca.study.results.effects import members_of
from mmlca.study.results.site import ALL_SITES, Column, Part, Results, is_rounded, stacked
from mmlca.study.results.survival import UNESTIMABLE
from mmlca.tables.course_tables import Courses, course_keys, rounded_distribution
from mmlca.tables.describe import state_distribution
from mmlca.tables.disclosure import hides, is_small, shares_of
from mmlca.tables.groups import GroupInfo, Keys
from mmlca.tables.settings import SITE, START, TableOneSettings
from mmlca.tables.strata import (
    ShareScores,
    hide_strata,
    rounded_scores,
    score_draws,
    share_scores,
    share_test,
    stratum_labels,
)
from mmlca.tables.table_one import TableOne, frame_of
from mmlca.tables.table_one_counts import (
    SiteNumbers,
    Variable,
    hide_numbers,
    pool_sites,
    read_site,
)
from mmlca.tables.table_one_site import (
    LEVEL,
    MISSING,
    SUMMARIES,
    Tables,
    chosen_columns,
    ordered,
    site_tables,
)

if TYPE_CHECKING:
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study

UNKNOWN = "not known"
"""What the report calls the stratum of patients without a value."""
Frames = dict[str, list[pd.DataFrame]]


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    if not study.strata.columns:
        return {}
    strata = site_data.strata_of(study, patients.site, patients.sequences)
    clusters = patients.groups[patients.first_view].astype(int)
    strata = strata.loc[clusters.index]
    plain = TableOneSettings(columns=("all",), continuous=study.table_one.continuous)
    least, rounding = study.privacy.min_count, patients.rounding
    sizes = site_tables(strata, clusters.to_numpy(), plain, least, rounding)["counts"]
    made: Frames = {name: [] for name in PART.tables}
    made["strata_clusters"].append(sizes.rename(columns={"group": "cluster", "level": "stratum"}))
    memberships = _memberships(study, patients, clusters)
    people = site_data.patients_of(study, patients.site, patients.sequences).loc[clusters.index]
    for name in strata:
        about: Tables = {}
        if name != SITE:  # Table 1 has all patients of a site
            about |= _of_people(study, people, strata, str(name), plain, patients)
        about["strata_windows"] = _windows(patients, strata[name])
        if memberships is not None:
            about |= _scores(study, patients, memberships, strata[name])
        for table, frame in about.items():
            made[table].append(frame.assign(by=name))
    return {name: pd.concat(parts, ignore_index=True) for name, parts in made.items() if parts}


def _of_people(
    study: Study,
    people: pd.DataFrame,
    strata: pd.DataFrame,
    name: str,
    plain: TableOneSettings,
    patients: SitePatients,
) -> Tables:
    """Table 1 with strata in place of clusters, without what the tables of other strata show."""
    before = [*strata][: list(strata).index(name) + 1]
    cut = study.strata.cut_points
    chosen = [
        column
        for column in chosen_columns(people, study.table_one.variables)
        if column not in before or column in cut
    ]
    labels = strata[name].fillna("").to_numpy(object)
    rules = plain.model_copy(update={"variables": tuple(chosen)})
    tables = site_tables(people, labels, rules, study.privacy.min_count, patients.rounding)
    counts, summaries = (
        tables[table][tables[table]["group"].notna()].rename(columns={"group": "stratum"})
        for table in ("counts", "summaries")
    )
    counts = counts[counts["variable"].notna()]
    return {
        "strata_people": counts.assign(stratum=counts["stratum"].replace("", None)),
        "strata_summaries": summaries.assign(stratum=summaries["stratum"].replace("", None)),
    }


def _windows(patients: SitePatients, strata: pd.Series) -> pd.DataFrame:
    """States by window and stratum; patients whose stratum is not known are left out."""
    known = strata.notna().to_numpy()
    groups = strata[known]
    data = {patients.site: patients.sequences[known]}
    labels = {patients.site: groups}
    table = state_distribution(data, labels)
    if patients.rounding is not None:
        rounding = patients.rounding.of(labels)
        table = rounded_distribution(table, rounding, course_keys(data, labels, rounding))
    table = table[table["n"] > 0].rename(columns={"group": "stratum"})
    table = table.astype({"time": str, "state": str})
    return table.reindex(columns=[name for name in _WINDOWS if name != "by"])


def _memberships(study: Study, patients: SitePatients, clusters: pd.Series) -> pd.DataFrame | None:
    """The probability of each cluster; None if there is a single one, or they have none."""
    if clusters.nunique() < 2:
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        try:
            members = members_of(study, patients)
        except UNESTIMABLE:
            return None
    if isinstance(members.posterior, pd.DataFrame):
        return members.posterior.reindex(clusters.index)
    p = members.posterior.predict_proba(patients.sequences)
    return pd.DataFrame(p, patients.sequences.ids, np.arange(p.shape[1]) + 1)


def _scores(
    study: Study, patients: SitePatients, memberships: pd.DataFrame, strata: pd.Series
) -> Tables:
    """The scores for a test that cluster shares do not depend on the stratum."""
    few = strata.map(strata.value_counts())
    enough = strata.mask(is_small(few.fillna(0), study.privacy.min_count))
    found = share_scores(memberships, enough)
    if patients.rounding is not None and len(found.excess) > 1:
        draws = score_draws(found, enough, patients.site, patients.rounding)
        found = rounded_scores(found, draws)
    if len(found.excess) < 2:
        return {}
    cells = [(g, int(k)) for g in found.excess.index for k in found.excess.columns]
    excess = found.excess.to_numpy(float).ravel()
    rows = [(*cell, value) for cell, value in zip(cells, excess, strict=True)]
    pairs = [
        (*cell, *other, found.covariance[i, j])
        for i, cell in enumerate(cells)
        for j, other in enumerate(cells[: i + 1])
    ]
    return {
        "strata_scores": pd.DataFrame(rows, columns=[n for n in _SCORES if n != "by"]),
        "strata_covariances": pd.DataFrame(pairs, columns=[n for n in _COVARIANCES if n != "by"]),
    }


_BY = {"by": Column("text", "what the patients are divided by, such as sex")}
_STRATUM = Column("text", "the stratum; missing: patients without a value")
_WINDOWS = {
    **_BY,
    "stratum": _STRATUM,
    "time": Column("text", "a window"),
    "state": Column("text", "a state"),
    "count": Column("count", "patients in the state"),
    "n": Column("count", "patients observed"),
    "patients": Column("count", "different patients in the state; missing where rounded"),
}
_CLUSTER = Column("whole", "a cluster")
_SCORES = {
    **_BY,
    "stratum": _STRATUM,
    "cluster": _CLUSTER,
    "excess": Column(
        "number",
        "the sum of the memberships of the stratum, less what it would be if all strata had the "
        "same shares; rounded at random to whole standard errors if counts are",
    ),
}
_COVARIANCES = {
    **_BY,
    "stratum": _STRATUM,
    "cluster": _CLUSTER,
    "other_stratum": Column("text", "another stratum"),
    "other_cluster": Column("whole", "a cluster"),
    "covariance": Column("number", "the covariance of the two excesses"),
}
_VARIABLE = Column("text", "a variable of Table 1")
PART = Part(
    {
        "strata_clusters": {
            "variable": Column("text", "what the patients are divided by; missing: sizes"),
            "row": Column(
                "text",
                "what is counted: size (patients), level (those of the stratum), known (those with "
                "any value) or missing (those without)",
            ),
            "stratum": Column("text", "the stratum"),
            "cluster": Column("whole", "the cluster; missing: all patients"),
            "count": Column("count", "patients"),
        },
        "strata_windows": _WINDOWS,
        "strata_people": {
            **_BY,
            "stratum": _STRATUM,
            "variable": _VARIABLE,
            "row": Column("text", "level (a category), known (any value) or missing (none)"),
            "level": Column("text", "the category"),
            "count": Column("count", "patients"),
        },
        "strata_summaries": {
            **_BY,
            "stratum": _STRATUM,
            "variable": _VARIABLE,
            "mean": Column("number", "the mean of the known values"),
            "sd": Column("number", "their standard deviation"),
            "low": Column("number", "the first quartile"),
            "median": Column("number", "the median"),
            "high": Column("number", "the third quartile"),
        },
        "strata_scores": _SCORES,
        "strata_covariances": _COVARIANCES,
    },
    make,
)


# --- all sites together ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stratum:
    """What the report shows of one variable that divides the patients.

    Parameters
    ----------
    name : str
        The column.
    label : str
        What it is called.
    shares : DataFrame
        `site`, `stratum`, `cluster` (its name), `count`, `n` (patients of the stratum), `share`;
        NaN where they may not be shown. All sites together come last, if there are several.
    people : DataFrame of texts
        Table 1 by stratum, like `TableOne.frame`; None if it has no variables, and for sites,
        which Table 1 itself shows.
    left_out : list of str
        Labels of variables of Table 1 that are not in `people`: these patients are already divided
        by them, here or in an earlier table.
    infos, courses
        Panels and table of the figure of states by window.
    """

    name: str
    label: str
    shares: pd.DataFrame
    people: pd.DataFrame | None
    left_out: list[str]
    infos: list[GroupInfo]
    courses: Courses


@dataclass(frozen=True, eq=False)
class Strata:
    """The strata, and the tests that cluster shares do not depend on them.

    `tests`: `variable` (its label), `statistic`, `df`, `p_value` and `p_holm`, adjusted for the
    number of tests.
    """

    parts: list[Stratum]
    tests: pd.DataFrame


def strata_of(
    study: Study, results: Results, names: Mapping[int, str], table_one: TableOne
) -> Strata | None:
    """Everything of `[strata]`; None if the study does not ask for it."""
    if not study.strata.columns:
        return None
    rounded, min_count = is_rounded(results), study.privacy.min_count
    several = len(results) > 1
    clusters = table_one.numbers
    if not several:  # Table 1 of a single site has no name for it
        clusters = dict.fromkeys(results, clusters[""])
    variables = _variables(study, results)
    shared = {site: _read_clusters(result.tables["strata_clusters"], variables)
              for site, result in results.items()}  # fmt: skip
    pooled = pool_sites(shared, variables) if several else None
    if not rounded:
        hide_numbers(shared, variables, min_count, study.outcomes.columns, pooled)
    places = shared if pooled is None else {**shared, ALL_SITES: pooled}
    people = {
        name: {
            site: _people(results.get(site), name, variable, part, clusters[site], table_one)
            for site, part in places.items()
        }
        for name, variable in variables.items()
    }
    if not rounded:
        everywhere = ALL_SITES if several else None
        hide_strata(clusters, people, table_one.variables, min_count, everywhere)
    parts = [
        Stratum(
            name,
            variable.label,
            _shares(places, name, variable, names),
            _table_one(study, people[name], table_one, rounded, several),
            [v.label for c, v in table_one.variables.items() if c not in _shown(people[name])],
            *_courses(results, name, _order(variable), people[name], min_count, rounded),
        )
        for name, variable in variables.items()
    ]
    return Strata(parts, _tests(results, variables))


def _order(variable: Variable) -> list[str]:
    """The strata in their order."""
    assert variable.levels is not None
    return variable.levels


def _variables(study: Study, results: Results) -> dict[str, Variable]:
    """What divides the patients, with the strata of all sites in their order."""
    counts, variables = stacked(results, "strata_clusters"), {}
    for name in study.strata.columns:
        rows = counts[counts["variable"] == name]
        found = set(rows.loc[rows["row"] == LEVEL, "stratum"])
        levels = [str(level) for level in ordered(found)]
        if (points := study.strata.cut_points.get(name)) is not None:
            levels = [x for x in stratum_labels(points, years=name == START) if x in found]
        elif name == SITE:
            levels = [site for site in results if site in found]
        elif all(_is_number(level) for level in levels):
            levels = sorted(levels, key=float)
        missing = rows[(rows["row"] == MISSING) & rows["cluster"].isna()]
        label = {START: "year of start"}.get(name, name.replace("_", " "))
        variables[name] = Variable(label, levels, bool((missing["count"] > 0).any()))
    return variables


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_clusters(table: pd.DataFrame, variables: Mapping[str, Variable]) -> SiteNumbers:
    groups = [None if pd.isna(k) else int(k) for k in table["cluster"]]
    counts = table.rename(columns={"stratum": "level"}).drop(columns="cluster")
    return read_site(
        {
            "variables": pd.DataFrame({"variable": list(variables)}),
            "counts": counts.assign(group=pd.Series(groups, table.index, dtype=object)),
            "summaries": pd.DataFrame(columns=["variable", "group", *SUMMARIES]),
            "comparisons": pd.DataFrame(
                columns=["variable", "row", "comparison", "value", "permuted"]
            ),
        },
        variables,
    )


def _people(
    result: Any, name: str, variable: Variable, sizes: SiteNumbers, of_all: SiteNumbers,
    table_one: TableOne,
) -> SiteNumbers:  # fmt: skip
    """The numbers of Table 1 by stratum at a site; of all sites together only the sizes."""
    groups: list[Any] = [*_order(variable), *([UNKNOWN] if variable.has_missing else [])]
    own = np.append(sizes.counts[name][:, -1], sizes.sizes[-1])
    hidden = np.append(sizes.hidden[name][:, -1], of_all.hidden_sizes[-1])
    present = np.append(own[:-1] > 0, True) if result is not None else np.ones(len(own), bool)
    kept = [g for g, there in zip([*groups, None], present, strict=True) if there]
    counts: dict[Any, Any] = {}
    summaries: dict[Any, dict[Any, dict[str, float]]] = {}
    if result is not None:
        counts, summaries = _counts_of(result.tables, name, kept, of_all, table_one)
    numbers = SiteNumbers(kept, own[present], counts, summaries)
    numbers.hidden_sizes = hidden[present]
    return numbers


def _counts_of(
    tables: Mapping[str, pd.DataFrame],
    name: str,
    groups: list[Any],
    of_all: SiteNumbers,
    table_one: TableOne,
) -> tuple[dict[Any, Any], dict[Any, dict[Any, dict[str, float]]]]:
    """Counts and means by stratum and, last, those of all patients from Table 1."""
    people, means = (
        tables[table][tables[table]["by"] == name]
        for table in ("strata_people", "strata_summaries")
    )
    numbers = {
        (v, row, _level(level, table_one, v), UNKNOWN if pd.isna(g) else g): n
        for v, row, level, g, n in zip(
            *(people[c] for c in ("variable", "row", "level", "stratum", "count")), strict=True
        )
    }
    used = set(people["variable"])
    counts = {
        v: np.array(
            [
                [
                    of_all.counts[v][i, -1] if g is None else numbers.get((v, *row, g), 0.0)
                    for g in groups
                ]
                for i, row in enumerate(variable.rows())
            ]
        ).reshape(len(variable.rows()), len(groups))
        for v, variable in table_one.variables.items()
        if v in used
    }
    summaries: dict[Any, dict[Any, dict[str, float]]] = {
        v: {None: of_all.summaries[v][None]} for v in counts if v in of_all.summaries
    }
    for row in means.to_dict("records"):
        group = UNKNOWN if pd.isna(row["stratum"]) else row["stratum"]
        summaries.setdefault(row["variable"], {})[group] = row
    return counts, summaries


def _level(level: Any, table_one: TableOne, variable: Any) -> Any:
    """A category as Table 1 calls it, which may write whole numbers with decimals."""
    known = table_one.variables[variable].levels if variable in table_one.variables else None
    if known is None or level in known or pd.isna(level):
        return None if pd.isna(level) else level
    return next((other for other in known if _is_number(level) and float(level) == float(other)),
                level)  # fmt: skip


def _shares(
    places: Mapping[str, SiteNumbers], name: str, variable: Variable, names: Mapping[int, str]
) -> pd.DataFrame:
    """Patients and shares of each cluster in each stratum."""
    rows = []
    for site, part in places.items():
        if name == SITE and site == ALL_SITES:
            continue
        counts, hidden = part.counts[name], part.hidden[name]
        for i, stratum in enumerate([*_order(variable), *([UNKNOWN] * variable.has_missing)]):
            if not counts[i].any():
                continue
            whole = counts[i, :-1].sum()
            n = np.nan if hidden[i, -1] else counts[i, -1]
            for k, cluster in enumerate(part.groups[:-1]):
                count = np.nan if hidden[i, k] else counts[i, k]
                share = count / whole if whole and not np.isnan(n) else np.nan
                rows.append([site, stratum, names.get(cluster, str(cluster)), count, n, share])
    return pd.DataFrame(rows, columns=["site", "stratum", "cluster", "count", "n", "share"])


def _shown(people: Mapping[str, SiteNumbers]) -> set[Any]:
    """The variables of a table by stratum."""
    return {v for part in people.values() for v in part.counts}


def _table_one(
    study: Study,
    people: Mapping[str, SiteNumbers],
    table_one: TableOne,
    rounded: bool,
    several: bool,
) -> pd.DataFrame | None:
    """Table 1 by stratum, as texts; each site has the strata of its own patients."""
    sites = {site: part for site, part in people.items() if site != ALL_SITES}
    used = _shown(sites)
    variables = {v: part for v, part in table_one.variables.items() if v in used}
    if not variables:
        return None
    for part in sites.values():  # a variable that a site lacks is missing there
        for v, variable in variables.items():
            if v not in part.counts:
                n = len(variable.rows())
                part.counts[v] = np.vstack([np.zeros((n - 1, len(part.sizes))), part.sizes])
                part.hidden[v] = np.zeros((n, len(part.sizes)), dtype=bool)
                part.hidden[v][-1] = part.hidden_sizes
    named = {g: "all" if g is None else g for part in sites.values() for g in part.groups}
    rules = study.table_one.model_copy(update={"columns": ("all",)})
    places = sites if several else {"": next(iter(sites.values()))}
    return frame_of(places, variables, named, rules, rounded)


def _courses(
    results: Results,
    name: str,
    order: list[str],
    people: Mapping[str, SiteNumbers],
    min_count: int,
    rounded: bool,
) -> tuple[list[GroupInfo], Courses]:
    """States by window and stratum, for the figure and its table."""
    together = len(results) > 1 and name != SITE and (rounded or not hides(min_count))
    parts, infos, sizes = [], [], {}
    for site, result in results.items():
        states, times = (tuple(result.tables[t].iloc[:, 0]) for t in ("states", "times"))
        table = result.tables["strata_windows"]
        table = table[table["by"] == name].drop(columns="by")
        numbers = people[site]
        here = [g for g in order if g in numbers.groups]
        cells = pd.MultiIndex.from_product(
            [here, times, states], names=["stratum", "time", "state"]
        ).to_frame(index=False)
        parts.append(cells.merge(table, how="left").assign(site=site))
        final = result.tables["states"]
        final_states = tuple(final.loc[final["final"], "state"])
        for g in here:
            k = numbers.groups.index(g)
            n = numbers.sizes[k]
            sizes[site, g] = (n, bool(numbers.hidden_sizes[k]))
            keys_of: Keys = {"site": site} if name == SITE else {"site": site, "group": g}
            infos.append(GroupInfo(keys_of, int(n), n, states, times, final_states))
    numbers_of = ["count", "n", "patients"]
    table = pd.concat(parts, ignore_index=True).rename(columns={"stratum": "group"})
    table[numbers_of] = table[numbers_of].astype(float).fillna(0.0)
    if together:
        keys = ["group", "time", "state"]
        every = table.groupby(keys, sort=False)[numbers_of].sum().reset_index()
        rank = {g: i for i, g in enumerate(order)}
        every = every.sort_values("group", key=lambda c: c.map(rank), kind="stable")
        table = pd.concat([table, every.assign(site=ALL_SITES)], ignore_index=True)
        longest = max(infos, key=lambda info: len(info.times))
        for g in order:
            n = sum(size for (_, other), (size, _) in sizes.items() if other == g)
            sizes[ALL_SITES, g] = (n, False)
            keys_of = {"site": ALL_SITES, "group": g}
            infos.append(longest._replace(keys=keys_of, n=int(n), weight=n))
    pairs = list(zip(table["site"], table["group"], strict=True))
    size = [np.nan if sizes[pair][1] else sizes[pair][0] for pair in pairs]
    table = table.assign(
        **{"rounded_size" if rounded else "size": size},
        share=shares_of(table["count"], table, ["site", "group", "time"]),
        **{c: pd.Categorical(table[c], list(dict.fromkeys(table[c])), ordered=True)
           for c in ("time", "state")},
    )  # fmt: skip
    if rounded:
        table = table.drop(columns="patients")
    least = min_count + 1 if rounded else min_count
    few = frozenset(pair for pair, (n, _) in sizes.items() if is_small(n, least))
    columns = ["site", "group", "time", "state", "count", "n", "share", *table]
    table = table[list(dict.fromkeys(columns))]
    nothing = pd.DataFrame()
    return infos, Courses(table, nothing, nothing, few, min_count)


def _tests(results: Results, variables: Mapping[str, Variable]) -> pd.DataFrame:
    rows = []
    for name, variable in variables.items():
        scores = []
        for result in results.values():
            excess, spread = (
                result.tables[t][result.tables[t]["by"] == name]
                for t in ("strata_scores", "strata_covariances")
            )
            if len(excess):
                scores.append(_read_scores(excess, spread))
        if scores and (found := share_test(scores)) is not None:
            rows.append([variable.label, *found])
    tests = pd.DataFrame(rows, columns=["variable", "statistic", "df", "p_value"])
    return tests.assign(p_holm=holm(tests["p_value"].tolist()))


def _read_scores(excess: pd.DataFrame, spread: pd.DataFrame) -> ShareScores:
    grid = excess.pivot_table("excess", "stratum", "cluster", sort=False)
    place = {(g, k): i for i, (g, k) in enumerate((g, k) for g in grid.index for k in grid)}
    covariance = np.zeros((len(place), len(place)))
    columns = ("stratum", "cluster", "other_stratum", "other_cluster", "covariance")
    for g, k, other, cluster, value in zip(*(spread[c] for c in columns), strict=True):
        i, j = place[g, k], place[other, cluster]
        covariance[i, j] = covariance[j, i] = value
    return ShareScores(grid, covariance)
