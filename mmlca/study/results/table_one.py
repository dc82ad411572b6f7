"""The numbers of Table 1 at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmlca.study import site_data
from mmlca.study.results.part import Column, Part
from mmlca.tables.table_one_site import SUMMARIES, site_tables

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

PREFIX = "table_one_"


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
    return {f"{PREFIX}{name}": table for name, table in tables.items()}


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
