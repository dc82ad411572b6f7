"""Table 1: the numbers of a site, and the table of all sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.study import site_data
from mmlca.study.results.part import Column, Part
from mmlca.tables.table_one import TableOne, put_together
from mmlca.tables.table_one_site import SUMMARIES, site_tables

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study

_PREFIX = "table_one_"
_NAMES = ("variables", "counts", "summaries", "comparisons")


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    people = site_data.patients_of(study, patients.site, patients.sequences)
    clusters = patients.groups[patients.first_view]
    tables = site_tables(
        people.loc[clusters.index],
        clusters.to_numpy(),
        study.table_one,
        study.privacy.min_count,
        patients.rounding,
    )
    return {f"{_PREFIX}{name}": table for name, table in tables.items()}


def table_of(
    study: Study,
    results: Mapping[str, SiteResults],
    names: Mapping[Any, str],
    descriptions: Mapping[str, str],
) -> TableOne:
    """Table 1 of all sites.

    Parameters
    ----------
    names : {cluster: name}
    descriptions : {name: what the cluster is}
    """
    several = len(results) > 1
    return put_together(
        {site if several else "": _tables(result) for site, result in results.items()},
        study.table_one,
        names=names,
        descriptions=descriptions,
        min_count=study.privacy.min_count,
        together=study.outcomes.columns,
        rounded=any(result.rounded for result in results.values()),
        all_sites=True,
    )


def _tables(result: SiteResults) -> dict[str, pd.DataFrame]:
    """The tables of a site as they are computed, without their prefix; clusters are whole."""
    tables = {name: result.tables[f"{_PREFIX}{name}"] for name in _NAMES}
    for name in ("counts", "summaries"):
        groups = [None if pd.isna(g) else int(g) for g in tables[name]["group"]]
        tables[name] = tables[name].assign(group=pd.Series(groups, dtype=object))
    return tables


_VARIABLE = Column("text", "the variable: a column of the patients' table")
_ROW = Column(
    "text",
    "what is counted: size (patients), level (those with this category), known (those with any "
    "value) or missing (those without)",
)
_GROUP = Column("whole", "the cluster; missing: all patients")
_MEANINGS = {
    "mean": "the mean of the known values",
    "sd": "their standard deviation",
    "low": "the first quartile",
    "median": "the median",
    "high": "the third quartile",
}

PART = Part(
    {
        "table_one_variables": {
            "variable": _VARIABLE,
            "kind": Column("text", "whole, number or text; missing where no text is known"),
            "continuous": Column("flag", "whether it is a number with more than two values"),
        },
        "table_one_counts": {
            "variable": _VARIABLE,
            "row": _ROW,
            "level": Column("text", "the category"),
            "group": _GROUP,
            "count": Column("count", "patients"),
        },
        "table_one_summaries": {
            "variable": _VARIABLE,
            "group": _GROUP,
            **{name: Column("number", _MEANINGS[name]) for name in SUMMARIES},
        },
        "table_one_comparisons": {
            "variable": _VARIABLE,
            "row": Column("text", "level (compared by categories) or known (as numbers)"),
            "comparison": Column("text", "p (a p-value) or smd (standardised mean difference)"),
            "value": Column(
                "number", "of the clusters; a rounded p-value is the next of 0.001, 0.01, 0.05, 1"
            ),
            "permuted": Column("flag", "whether the p-value is from random permutations"),
        },
    },
    make,
)
