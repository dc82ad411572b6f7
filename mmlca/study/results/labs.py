"""The course of a lab by group at a site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study import site_data
from mmlca.study.results.groups import matched_classes
from mmlca.study.results.site import OWN, SHOWN, Column, Part, Results, is_rounded
from mmlca.tables.disclosure import few_digits
from mmlca.tables.lab_trends import SiteLabs, Trend, put_together, show_labs, site_labs
from mmlca.tables.mixed_model import Curve

if TYPE_CHECKING:
    from mmlca.study.results.site import SitePatients, SiteResults
    from mmlca.study.settings import Study


_DIGITS = 3


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in PART.tables}
    labs = _read(study, patients)
    if labs is not None:
        for view in _views(patients):
            found = site_labs(
                labs,
                patients.groups[view],
                patients.sequences,
                test=study.outputs.lab,
                min_count=study.privacy.min_count,
            )
            for name, table in _tables(found, patients, view).items():
                parts[name].append(table.assign(view=view))
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items() if tables}


def _read(study: Study, patients: SitePatients) -> pd.DataFrame | None:
    """The labs of the site; None if it has none, or no dates."""
    if study.sites[patients.site].labs is None:
        return None
    if patients.sequences.account is None:  # `about` says so
        return None
    from ehr_prep.values import encode_ids

    table = site_data.read_labs(study, patients.site)
    who, ids, _ = encode_ids(table["patient_id"])
    return table.assign(patient_id=pd.Categorical.from_codes(who, ids).astype(object))


def _views(patients: SitePatients) -> list[str]:
    """The groups whose curves the report shows.

    Rounded results have one grouping: the widths of the bands under two would reveal roughly by
    how few patients these differ.
    """
    views = [patients.first_view]
    if patients.rounding is None and OWN in patients.groups:
        views.append(OWN)
    return views


def _tables(found: SiteLabs, patients: SitePatients, view: str) -> dict[str, pd.DataFrame]:
    site, rounding = patients.site, patients.rounding_of(view)
    counts, censored = found.counts.assign(site=site), found.censored.assign(site=site)
    n_patients = [float(curve.n_free + len(curve.knots)) for curve in found.curves]
    digits: Callable[[Any], Any] = np.asarray
    if rounding is not None:
        unit, digits = rounding.unit, partial(few_digits, digits=_DIGITS)
        counts = show_labs(counts, unit, rounding, ["reason"])
        censored = show_labs(censored, unit, rounding)
        pairs = zip(n_patients, found.curves, strict=True)
        n_patients = [rounding(n, site, curve.group, "patients with labs") for n, curve in pairs]
    heights = [
        (curve.group, years, height)
        for curve in found.curves
        for years, height in zip(curve.knots, digits(np.exp(curve.beta)), strict=True)
    ]
    spreads = [
        (curve.group, years, other, covariance)
        for curve in found.curves
        for other, column in zip(curve.knots, digits(curve.covariance).T, strict=True)
        for years, covariance in zip(curve.knots, column, strict=True)
    ]
    ends = found.support.rename(columns={"patients": "fewest"}).assign(patients=n_patients)
    return {
        "labs": pd.DataFrame({"label": [found.label]}),
        "lab_counts": counts,
        "lab_limits": censored,
        "lab_curves": ends,
        "lab_heights": pd.DataFrame(heights, columns=list(PART.tables["lab_heights"])[1:]),
        "lab_covariances": pd.DataFrame(spreads, columns=list(PART.tables["lab_covariances"])[1:]),
    }


_VIEW = Column("text", "the rule that groups the patients")
_GROUP = Column("whole", "the number of the group")
_YEARS = Column("number", "years since the first prescription: a knot of the curve")
PART = Part(
    {
        "labs": {"view": _VIEW, "label": Column("text", "the test and its unit")},
        "lab_counts": {
            "view": _VIEW,
            "group": Column("whole", "the number of the group; missing: not known"),
            "reason": Column("text", "“used”, or why a value is left out"),
            "patients": Column("count", "patients with such values"),
            "labs": Column("count", "values"),
        },
        "lab_limits": {
            "view": _VIEW,
            "patients": Column("count", "patients with values given as limits, such as <2"),
            "labs": Column("count", "such values, which are left out"),
        },
        "lab_curves": {
            "view": _VIEW,
            "group": _GROUP,
            "patients": Column("count", "patients with values"),
            "fewest": Column("whole", "patients with values before the begin, and after the end"),
            "begin": Column("number", "where the curve begins, in years"),
            "end": Column("number", "where it ends"),
        },
        "lab_heights": {
            "view": _VIEW,
            "group": _GROUP,
            "years": _YEARS,
            "height": Column("number", "the geometric mean there"),
        },
        "lab_covariances": {
            "view": _VIEW,
            "group": _GROUP,
            "years": _YEARS,
            "other_years": Column("number", "another knot"),
            "covariance": Column("number", "covariance of the logarithms of the heights at both"),
        },
    },
    make,
)


# --- all sites together -----------------------------------------------------------------


def trends_of(
    study: Study,
    results: Results,
    group_names: Mapping[str | None, Mapping[Any, str]],
) -> dict[str | None, Trend]:
    """The course of the lab by view, at the sites that have it and at all of them.

    `group_names` are by view, as the report calls it, and by group.
    """
    views = dict.fromkeys(view for r in results.values() for view in r.tables["labs"]["view"])
    matched = matched_classes(results) if OWN in views else {}
    trends: dict[str | None, Trend] = {}
    for view in views:
        names = group_names[SHOWN[view]]
        parts = {}
        for site, result in results.items():
            numbers = matched.get(site, {}) if view == OWN else {k: k for k in names}
            here = {k: names[number] for k, number in numbers.items() if number in names}
            if (result.tables["labs"]["view"] == view).any():
                parts[site] = _labs_of(result, view, here, list(names.values()))
        trends[SHOWN[view]] = put_together(
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
