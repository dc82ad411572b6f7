"""A part of a site's results: tables with documented columns, and how a site makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

Kind = Literal["text", "count", "whole", "number", "flag"]


class Column(NamedTuple):
    """A column of a table of results.

    Parameters
    ----------
    kind : "text", "count", "whole", "number" or "flag"
        A count is of patients, or of what patients did: it is a multiple of the unit wherever
        counts are rounded. Whole numbers are of something else, such as the number of a group.
        Any value may be missing, except those of flags.
    meaning : str
        For the specification and for whoever looks at an exchange file.
    """

    kind: Kind
    meaning: str


Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Part:
    """A part of a site's results.

    Parameters
    ----------
    tables : {name of the table: {name of the column: Column}}
    make : function (study, patients) → {name of the table: DataFrame}
        All of these tables, each with all of its columns. Counts are rounded by
        `patients.rounding` where it is not None, and whatever else is in the tables then rests
        on at least `study.privacy.min_count` patients or has few digits.
    """

    tables: Mapping[str, Columns]
    make: Callable[[Study, SitePatients], Mapping[str, pd.DataFrame]]
