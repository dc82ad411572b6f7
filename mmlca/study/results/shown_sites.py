"""Differences between sites, put together from the steps that each site counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mmlca.study.results.matching import classes_everywhere, matched_classes
from mmlca.study.results.patients import ENSEMBLE, ONLY, OWN, REFINED
from mmlca.study.results.steps import EVERYWHERE
from mmlca.tables.counts import ClusterSteps
from mmlca.tables.site_differences import Counted, SiteDifferences, compare_rules

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.results.site import SiteResults

MOST_SITES = 5
"""The most sites of which all pairs are compared; of more, each is compared with all others."""
Numbers = Mapping[str, Mapping[int, int]]
"""The number in the report of each group of each site."""


def site_differences_of(
    results: Mapping[str, SiteResults], *, n_boot: int, seed: int
) -> SiteDifferences | None:
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


def refined_differences_of(
    results: Mapping[str, SiteResults], *, n_boot: int, seed: int
) -> SiteDifferences | None:
    """Differences between the sites by the refined clusters; None where there are none."""
    rule = counted(results, REFINED)
    if not rule.labels or len(results) == 1:
        return None
    return _compare(results, {"refined": rule}, n_boot=n_boot, seed=seed)


def _compare(
    results: Mapping[str, SiteResults], rules: Mapping[str, Counted], *, n_boot: int, seed: int
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


def states_of(results: Mapping[str, SiteResults]) -> list[str]:
    """The states of any site, in their order."""
    states = [state for result in results.values() for state in result.tables["states"]["state"]]
    return list(dict.fromkeys(states))


def counted(
    results: Mapping[str, SiteResults],
    view: str,
    model: str | None = None,
    numbers: Numbers | None = None,
) -> Counted:
    """The steps of the groups of a view at each site.

    Parameters
    ----------
    results : {site: SiteResults}
    view, model : as in the table "steps"
    numbers : {site: {group: number in the report}}, optional
        Default: the groups have the same numbers at all sites.
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
