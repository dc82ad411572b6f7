"""The groups of a site's patients: sizes, those in two groups, their steps, and site differences.

A step is what patients do first or next. From the tables of all sites follow the numbers that the
classes of the sites' own models have in the report, and how far the sites differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.site import ENSEMBLE, ONLY, OWN, REFINED, Column, Part, Results, stacked
from mmlca.tables.counts import ClusterSteps, cluster_steps
from mmlca.tables.course_tables import course_keys
from mmlca.tables.disclosure import few_digits, is_small
from mmlca.tables.matching import match_by_patients, match_classes
from mmlca.tables.site_differences import Counted, SiteDifferences, compare_rules

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from mmlca.sequences.type import Sequences
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding


EVERYWHERE = "everywhere"
"""The view of the classes of one site's own model at all sites."""
_DIGITS = 2
MOST_SITES = 5
"""The most sites of which all pairs are compared; of more, each is compared with all others."""
Numbers = Mapping[str, Mapping[int, int]]
"""The number in the report of each group of each site."""


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    groups, site, rounding = patients.groups, patients.site, patients.rounding
    rows: dict[str, list[list[Any]]] = {name: [] for name in PART.tables}
    rows["groups"] = [
        [view, int(group), *_size(patients, view, members)]
        for view, labels in groups.items()
        for group, members in labels.groupby(labels.to_numpy())
    ]
    for a, b in combinations(groups, 2):
        pairs = pairs_of(groups[a], groups[b], site, rounding)
        rows["overlaps"] += [[a, b, *pair] for pair in pairs]
    for view, model, labels in _rules(study, patients):
        if model is not None:
            pairs = pairs_of(groups[ENSEMBLE], labels, site, rounding)
            rows["classes_everywhere"] += [[model, *pair] for pair in pairs]
        draw = rounding
        if rounding is not None and view != patients.first_view:
            draw = rounding.of({site: labels})
        for name, row in _steps(patients, labels.astype(int), draw):
            rows[name].append([view, model, *row])
    return {name: pd.DataFrame(rows[name], columns=list(PART.tables[name])) for name in rows}


def _rules(study: Study, patients: SitePatients) -> Iterator[tuple[str, str | None, pd.Series]]:
    """The views, and the classes of each site's own model at this site."""
    for view, groups in patients.groups.items():
        yield view, None, groups
    # of more sites, only each and all others are compared
    few = ENSEMBLE in patients.groups and len(study.sites) <= MOST_SITES
    for model in patients.labels if few else ():
        if model in study.sites:
            yield EVERYWHERE, model, patients.labels[model] + 1


def _size(patients: SitePatients, view: str, members: pd.Series) -> tuple[float, float]:
    """The patients of a group, and the sum of their weights if it is another number."""
    data, rounding = patients.sequences, patients.rounding_of(view)
    weights = data.weights[data.positions(members.index)]
    n, weight = float((weights > 0).sum()), float(weights.sum())
    if rounding is not None:
        return rounding(n, patients.site, int(members.iloc[0])), np.nan
    return n, np.nan if weight == n else weight


def pairs_of(
    first: pd.Series, second: pd.Series, site: str, rounding: Rounding | None
) -> list[tuple[int, int, float]]:
    """The groups of all pairs that patients are in, with their numbers.

    Rounded, no pair has more patients than either of its groups, and pairs without patients are
    left out: that somebody is there does not show.
    """
    pairs = pd.Series(
        list(zip(first.astype(int), second.astype(int), strict=True)), first.index, dtype=object
    )
    counts = pairs.value_counts()
    if rounding is None:
        return [(*pair, float(counts[pair])) for pair in sorted(counts.index)]
    of_pairs = rounding.of({site: pairs})
    sizes = []
    for labels in (first, second):
        draw = rounding.of({site: labels.astype(int)})
        sizes.append({k: draw(n, site, k) for k, n in labels.value_counts().items()})
    rounded = [
        (a, b, of_pairs.part(counts[a, b], of_pairs.key(site, (a, b)), sizes[0][a], sizes[1][b]))
        for a, b in sorted(counts.index)
    ]
    return [row for row in rounded if row[-1] > 0]


def _steps(
    patients: SitePatients, groups: pd.Series, rounding: Rounding | None
) -> Iterator[tuple[str, list[Any]]]:
    """The rows of the tables of steps, each behind the name of its table."""
    numbers, codes = np.unique(groups.to_numpy(), return_inverse=True)
    counted = cluster_steps(patients.sequences, codes, len(numbers))
    if rounding is not None:
        counted = _rounded_steps(counted, patients, groups, numbers, rounding)
    states = patients.sequences.states
    before = [*states, None]
    for k, i, j in np.argwhere(counted.steps > 0):
        cell = counted.steps[k, i, j], counted.patients[k, i, j]
        yield "steps", [int(numbers[k]), before[i], states[j], *cell]
    for k, i in np.argwhere(counted.n > 0):
        row = counted.leaving[k, i], counted.dispersion[k, i]
        yield "step_rows", [int(numbers[k]), before[i], *row]


def _rounded_steps(
    exact: ClusterSteps,
    patients: SitePatients,
    groups: pd.Series,
    numbers: Any,
    rounding: Rounding,
) -> ClusterSteps:
    """The same with all counts rounded, and variances that rest on enough patients."""
    data: Sequences = patients.sequences
    keys = course_keys({patients.site: data}, {patients.site: groups}, rounding)
    before = [[state] for state in data.states] + [[]]
    steps, people = np.zeros_like(exact.steps), np.zeros_like(exact.steps)
    leaving = np.zeros_like(exact.leaving)
    for k, i in np.argwhere(exact.leaving > 0):
        names = []
        for j in np.flatnonzero(exact.patients[k, i]):
            names.append(keys[patients.site, str(numbers[k]), *before[i], data.states[j]])
            n = exact.patients[k, i, j]
            steps[k, i, j] = rounding.steps(exact.steps[k, i, j], n, names[-1])
            people[k, i, j] = rounding.named(n, names[-1])
        leaving[k, i] = rounding.named(exact.leaving[k, i], min(names))
    supported = (~is_small(exact.patients, rounding.unit) & (exact.patients > 0)).sum(axis=-1) > 1
    shown = few_digits(exact.dispersion, _DIGITS)
    return ClusterSteps(steps, people, leaving, np.where(supported, shown, np.nan))


_GROUPS = {
    "view": Column("text", "the rule that groups the patients"),
    "group": Column("whole", "the number of a group"),
    "patients": Column("count", "patients of the group"),
    "weight": Column("number", "the sum of their weights, if it is another number"),
}
_OVERLAPS = {
    "view": Column("text", "a rule that groups the patients"),
    "other": Column("text", "another rule"),
    "group": Column("whole", "the number of a group by the first rule"),
    "other_group": Column("whole", "the number of a group by the other rule"),
    "patients": Column("count", "patients in both groups"),
}
_EVERYWHERE = {
    "model": Column("text", "the site whose own model gives the classes"),
    "cluster": Column("whole", "the number of a cluster of the ensemble"),
    "class": Column("whole", "the number of a class of this model, from 1"),
    "patients": Column("count", "patients of the site in both"),
}
_STEP_KEYS = {
    "view": Column("text", "the rule that groups the patients"),
    "model": Column("text", "the site whose own model gives the classes; missing for other rules"),
    "group": Column("whole", "the number of a group"),
    "from": Column("text", "a state; missing: the patients begin in the state `to`"),
}
_STEPS = {
    **_STEP_KEYS,
    "to": Column("text", "the state one window later"),
    "count": Column("count", "steps from one state to the other, or patients who begin there"),
    "patients": Column("count", "different patients with such a step"),
}
_STEP_ROWS = {
    **_STEP_KEYS,
    "patients": Column("count", "different patients with any step from the state"),
    "dispersion": Column(
        "number",
        "variance of the shares of these steps when patients are drawn again, relative to that of "
        "independent steps; two digits where counts are rounded, and missing where fewer than two "
        "steps are made by as many patients as may be shown",
    ),
}
PART = Part(
    {
        "groups": _GROUPS,
        "overlaps": _OVERLAPS,
        "classes_everywhere": _EVERYWHERE,
        "steps": _STEPS,
        "step_rows": _STEP_ROWS,
    },
    make,
)


# --- the numbers of classes -------------------------------------------------------------


def matched_classes(results: Results) -> dict[str, dict[int, int]]:
    """The number of the cluster that each class of a site's own model has in the report.

    The classes of the first site have the numbers of the clusters with which they share most
    patients; those of each other site are matched to these by their transition rates and first
    states. A class without a match has a new number. Sites without a model of their own, and all
    sites where there is no ensemble, have no classes here.
    """
    overlaps, groups = stacked(results, "overlaps"), stacked(results, "groups")
    shared = overlaps[(overlaps["view"] == ENSEMBLE) & (overlaps["other"] == OWN)]
    steps = stacked(results, "steps")
    steps = steps[steps["view"] == OWN]
    own = groups[groups["view"] == OWN]
    classes = {site: _distinct(rows["group"]) for site, rows in own.groupby("site", sort=False)}
    if not classes:
        return {}
    first = next(iter(classes))
    states = results[first].tables["states"]["state"].tolist()
    clusters = _distinct(groups.loc[groups["view"] == ENSEMBLE, "group"])
    here = shared[shared["site"] == first]
    labels, places = match_classes(
        clusters,
        classes,
        _grid(here, clusters, classes[first], ["group", "other_group"]),
        {
            site: _steps_grid(steps[steps["site"] == site], classes[site], states)
            for site in classes
        },
    )
    return {
        site: {k: labels[place] for k, place in zip(classes[site], places[site], strict=True)}
        for site in classes
    }


def classes_everywhere(results: Results) -> dict[str, dict[int, int]]:
    """The number of the cluster of each class of each site's model at all sites together.

    Returns {site of the model: {class, from 1: number}}; each class has the number of the cluster
    with which it shares most patients at all sites that know the model.
    """
    table = stacked(results, "classes_everywhere")
    clusters = _distinct(table["cluster"])
    matched = {}
    for model, rows in table.groupby("model", sort=False):
        classes = _distinct(rows["class"])
        shared = _grid(rows, clusters, classes, ["cluster", "class"])
        labels, places = match_by_patients(clusters, classes, shared)
        matched[str(model)] = {k: labels[i] for k, i in zip(classes, places, strict=True)}
    return matched


def _distinct(numbers: pd.Series) -> list[int]:
    return sorted({int(number) for number in numbers})


def _grid(
    table: pd.DataFrame, rows: list[int], columns: list[int], names: list[str]
) -> NDArray[np.float64]:
    """The numbers of patients by two columns."""
    counts = table.pivot_table("patients", *names, aggfunc="sum")
    grid: NDArray[np.float64] = counts.reindex(index=rows, columns=columns).fillna(0.0).to_numpy()
    return grid


def _steps_grid(table: pd.DataFrame, classes: list[int], states: list[str]) -> NDArray[np.float64]:
    """Steps and first states of the classes of a site's own model."""
    before, to = [*states, None], states
    cells = table[["group", "from", "to", "count"]].to_numpy()
    counts = {tuple(cell): n for *cell, n in cells}
    return np.array([[[counts.get((k, i, j), 0.0) for j in to] for i in before] for k in classes])


# --- differences between sites ----------------------------------------------------------


def site_differences_of(results: Results, *, n_boot: int, seed: int) -> SiteDifferences | None:
    """Differences between the sites by the ensemble and by the sites' own models.

    None if there is one site. With a single class there is one membership: all patients.
    """
    if len(results) == 1:
        return None
    alone = (results[next(iter(results))].tables["step_rows"]["view"] == ONLY).any()
    rules = {"ensemble": counted(results, ONLY if alone else ENSEMBLE)}
    if not alone:
        matched = matched_classes(results)
        if len(matched) == len(results):
            rules["local"] = counted(results, OWN, numbers=matched)
        everywhere = classes_everywhere(results) if len(results) <= MOST_SITES else {}
        for model, names in everywhere.items():
            numbers = dict.fromkeys(results, names)
            rules[f"{model} everywhere"] = counted(results, EVERYWHERE, model, numbers)
    return _compare(results, rules, n_boot=n_boot, seed=seed)


def refined_differences_of(results: Results, *, n_boot: int, seed: int) -> SiteDifferences | None:
    """Differences between the sites by the refined clusters; None where there are none."""
    rule = counted(results, REFINED)
    if not rule.labels or len(results) == 1:
        return None
    return _compare(results, {"refined": rule}, n_boot=n_boot, seed=seed)


def _compare(
    results: Results, rules: Mapping[str, Counted], *, n_boot: int, seed: int
) -> SiteDifferences:
    """Differences between the sites under some rules."""
    unit = max(result.unit for result in results.values())
    return compare_rules(
        rules,
        states_of(results),
        n_boot=n_boot,
        seed=seed,
        unit=unit,
        with_others=len(results) > MOST_SITES,
    )


def states_of(results: Results) -> list[str]:
    """The states of any site, in their order."""
    states = [state for result in results.values() for state in result.tables["states"]["state"]]
    return list(dict.fromkeys(states))


def counted(
    results: Results,
    view: str,
    model: str | None = None,
    numbers: Numbers | None = None,
) -> Counted:
    """The steps of the groups of a view at each site; `model` is that of the table "steps".

    Without `numbers` the groups have the same numbers at all sites.
    """

    def of_site(site: str, name: str) -> pd.DataFrame:
        table = results[site].tables[name]
        rows = table["view"] == view
        table = table[rows if model is None else rows & (table["model"] == model)]
        if numbers is None:
            return table
        # a class whose patients are rounded to nobody may have no number
        return table.assign(group=table["group"].map(numbers[site])).dropna(subset=["group"])

    parts = {site: (of_site(site, "steps"), of_site(site, "step_rows")) for site in results}
    labels = sorted({int(group) for _, rows in parts.values() for group in rows["group"]})
    states = states_of(results)
    return Counted(
        labels,
        {site: _arrays(steps, rows, labels, states) for site, (steps, rows) in parts.items()},
    )


def _arrays(
    steps: pd.DataFrame, rows: pd.DataFrame, labels: list[int], states: list[str]
) -> ClusterSteps:
    group = {label: k for k, label in enumerate(labels)}
    place = {state: i for i, state in enumerate([*states, None])}
    shape = (len(labels), len(states) + 1)
    count, patients = np.zeros((2, *shape, len(states)))
    at: Any = tuple(
        [places[value] for value in steps[name]]
        for name, places in (("group", group), ("from", place), ("to", place))
    )
    count[at], patients[at] = steps["count"], steps["patients"]
    leaving, dispersion = np.zeros(shape), np.full(shape, np.nan)
    at = tuple([places[v] for v in rows[n]] for n, places in (("group", group), ("from", place)))
    leaving[at], dispersion[at] = rows["patients"], rows["dispersion"]
    return ClusterSteps(count, patients, leaving, dispersion)
