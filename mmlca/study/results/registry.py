"""All parts of a site's results, and the specification of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmlca.study.results import (
    about,
    certainty,
    courses,
    effects,
    fit,
    groups,
    labs,
    models,
    opinions,
    strata,
    survival,
)
from mmlca.study.results.site import Columns, Part, SiteResults

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study

FOR_HEADLINE: tuple[Part, ...] = (about.DATA, certainty.PART, groups.PART)
"""The parts that the headline numbers need."""
PARTS: tuple[Part, ...] = (
    *FOR_HEADLINE,
    courses.PART,
    about.TABLE_ONE,
    models.PART,
    fit.PART,
    opinions.PART,
    effects.PART,
    survival.PART,
    strata.PART,
    labs.PART,
)
TABLES: dict[str, Columns] = {
    name: columns for part in PARTS for name, columns in part.tables.items()
}


def site_results(
    study: Study, patients: SitePatients, parts: Sequence[Part] = PARTS
) -> SiteResults:
    """The results of a site, or some parts of them, from its patients."""
    unit = 1 if patients.rounding is None else patients.rounding.unit
    tables = {
        name: table for part in parts for name, table in part.results(study, patients).items()
    }
    return SiteResults(patients.site, unit, tables)


def whole_numbers(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Some columns of a table of results, in which counts and whole numbers are integers."""
    columns = TABLES[name]
    whole = [
        column
        for column in table
        if column in columns
        and columns[str(column)].kind in ("count", "whole")
        and table[column].notna().all()
    ]
    return table.astype(dict.fromkeys(whole, int))
