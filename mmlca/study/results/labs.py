"""The course of a lab by group at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study import site_data
from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import OWN
from mmlca.tables.disclosure import few_digits
from mmlca.tables.lab_trends import SiteLabs, show_labs, site_labs

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
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
    return {
        name: pd.concat(tables, ignore_index=True)
        if tables
        else pd.DataFrame(columns=list(PART.tables[name]))
        for name, tables in parts.items()
    }


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
    digits = _exact
    if rounding is not None:
        unit, digits = rounding.unit, _few
        counts = show_labs(counts, unit, rounding, ["reason"])
        censored = show_labs(censored, unit, rounding)
        pairs = zip(n_patients, found.curves, strict=True)
        n_patients = [rounding(n, site, curve.group, "patients with labs") for n, curve in pairs]
    heights, spreads = [], []
    for curve in found.curves:
        at = {"group": curve.group, "years": curve.knots}
        heights.append(pd.DataFrame({**at, "height": digits(np.exp(curve.beta))}))
        for other, covariance in zip(curve.knots, digits(curve.covariance).T, strict=True):
            spreads.append(pd.DataFrame({**at, "other_years": other, "covariance": covariance}))
    ends = found.support.rename(columns={"patients": "fewest"}).assign(patients=n_patients)
    return {
        "labs": pd.DataFrame({"label": [found.label]}),
        "lab_counts": counts,
        "lab_limits": censored,
        "lab_curves": ends,
        "lab_heights": _below(heights, "lab_heights"),
        "lab_covariances": _below(spreads, "lab_covariances"),
    }


def _exact(values: Any) -> Any:
    return values


def _few(values: Any) -> Any:
    return few_digits(values, _DIGITS)


def _below(tables: list[pd.DataFrame], name: str) -> pd.DataFrame:
    if not tables:
        return pd.DataFrame(columns=list(PART.tables[name]))
    return pd.concat(tables, ignore_index=True)


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
