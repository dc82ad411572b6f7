"""The courses of a lab, put together from the results of sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.matching import matched_classes
from mmlca.study.results.patients import ENSEMBLE, OWN
from mmlca.study.results.site import is_rounded
from mmlca.tables.lab_trends import SiteLabs, Trend, put_together
from mmlca.tables.mixed_model import Curve

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study

_SHOWN = {ENSEMBLE: "ensemble", OWN: "local"}
"""What the report calls the views."""


def trends_of(
    study: Study,
    results: Mapping[str, SiteResults],
    group_names: Mapping[str | None, Mapping[Any, str]],
) -> dict[str | None, Trend]:
    """The course of the lab by view, at the sites that have it and at all of them.

    Parameters
    ----------
    group_names : {view: {group: name}}
        Views as the report calls them; None: that of a study without an ensemble.
    """
    views = dict.fromkeys(view for r in results.values() for view in r.tables["labs"]["view"])
    matched = matched_classes(results) if OWN in views else {}
    trends: dict[str | None, Trend] = {}
    for view in views:
        names = group_names[_SHOWN.get(view)]
        parts = {}
        for site, result in results.items():
            numbers = matched.get(site, {}) if view == OWN else {k: k for k in names}
            here = {k: names[number] for k, number in numbers.items() if number in names}
            if (result.tables["labs"]["view"] == view).any():
                parts[site] = _labs_of(result, view, here, list(names.values()))
        trends[_SHOWN.get(view)] = put_together(
            parts,
            bands=study.outputs.lab_bands,
            min_count=study.privacy.min_count,
            rounded=is_rounded(results),
            all_sites=True,
        )
    return trends


def _labs_of(
    result: SiteResults, view: str, names: Mapping[Any, str], order: list[str]
) -> SiteLabs:
    """The labs of a site under one view, with the names of the groups in their order."""
    tables = {}
    for name in ("labs", "lab_counts", "lab_limits", "lab_curves", "lab_heights"):
        table = result.tables[name]
        tables[name] = table[table["view"] == view].drop(columns="view").reset_index(drop=True)
    curves = []
    spread = result.tables["lab_covariances"]
    spread = spread[spread["view"] == view]
    ends = tables["lab_curves"].set_index("group")
    for group, heights in tables["lab_heights"].groupby("group", sort=False):
        mine = spread[spread["group"] == group].pivot(
            index="years", columns="other_years", values="covariance"
        )
        knots = heights["years"].to_numpy(float)
        n_free = max(int(ends.loc[group, "patients"]) - len(knots), 1)
        beta = np.log(heights["height"].to_numpy(float))
        covariance = mine.loc[knots, knots].to_numpy(float)
        curves.append(Curve(names[group], knots, beta, covariance, n_free))
    counts = tables["lab_counts"]
    counts = counts.assign(group=pd.Series(counts["group"].map(names), dtype=object))
    place = {name: i for i, name in enumerate(order)}
    rank = counts["group"].map(place).fillna(len(order))
    counts = counts.iloc[np.argsort(rank, kind="stable")].reset_index(drop=True)
    curves.sort(key=lambda curve: place[curve.group])
    support = tables["lab_curves"].assign(
        group=tables["lab_curves"]["group"].map(names), patients=tables["lab_curves"]["fewest"]
    )
    label = tables["labs"]["label"].iloc[0]
    return SiteLabs(counts, tables["lab_limits"], curves, support, {}, label)
