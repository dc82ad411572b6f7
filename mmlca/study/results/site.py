"""The results of one site: made from its patients, and put together with those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.study.results.part import Column
from mmlca.study.results.registry import PARTS, TABLES

if TYPE_CHECKING:
    from mmlca.study.results.part import Columns, Part
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

_SITE = Column("text", "the site")
_TYPES = {"text": object, "count": float, "whole": float, "number": float, "flag": bool}


@dataclass(frozen=True, eq=False)
class SiteResults:
    """Every number of a site that the report needs.

    Parameters
    ----------
    site : str
    unit : int
        All counts are rounded at random to multiples of it; 1: they are exact.
    tables : {name: DataFrame}
        Those of `mmlca.study.results.registry.TABLES`, with their columns.
    """

    site: str
    unit: int
    tables: Mapping[str, pd.DataFrame]

    @property
    def rounded(self) -> bool:
        return self.unit > 1

    @property
    def from_records(self) -> bool:
        """Whether the sequences were built from records, of which there is an account."""
        return bool(self.tables["about"]["from_records"].item())


def site_results(
    study: Study, patients: SitePatients, parts: Sequence[Part] = PARTS
) -> SiteResults:
    """The results of a site, or some parts of them, from its patients."""
    tables: dict[str, pd.DataFrame] = {}
    for part in parts:
        made = part.make(study, patients)
        if made.keys() != part.tables.keys():
            raise ValueError(f"a part makes the tables {list(made)}, not {list(part.tables)}")
        tables |= {name: typed(table, part.tables[name]) for name, table in made.items()}
    unit = 1 if patients.rounding is None else patients.rounding.unit
    return SiteResults(patients.site, unit, tables)


def typed(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """The columns of a table in their order and with their types; missing texts are None."""
    frame = pd.DataFrame(
        {name: table[name].to_numpy(object) for name in columns}, index=range(len(table))
    )
    for name, column in columns.items():
        missing = None if column.kind == "text" else np.nan
        values = [missing if pd.isna(value) else value for value in frame[name]]
        frame[name] = pd.Series(values, frame.index, dtype=_TYPES[column.kind])
    return frame


def is_rounded(results: Mapping[str, SiteResults]) -> bool:
    """Whether the counts of any site are rounded."""
    return any(result.rounded for result in results.values())


def stacked(results: Mapping[str, SiteResults], name: str) -> pd.DataFrame:
    """A table of all sites, one below the other, behind a column "site"."""
    parts = []
    for site, result in results.items():
        frame = result.tables[name].copy()
        frame.insert(0, "site", site)
        parts.append(frame)
    kept = [part for part in parts if len(part)] or parts[:1]
    return typed(pd.concat(kept, ignore_index=True), {"site": _SITE, **TABLES[name]})


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
