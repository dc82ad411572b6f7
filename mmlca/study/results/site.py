"""What a site computes its results from, what the results are, and those of all sites together.

The results are tables with documented columns; each part of them is a module beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from mmlca.tables.disclosure import EVERYONE

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding


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
_TYPES = {"text": object, "count": float, "whole": float, "number": float, "flag": bool}


def typed(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """The columns of a table in their order and with their types; missing texts are None.

    A table without rows may lack columns.
    """
    cells = {name: table[name].to_numpy(object) if len(table) else [] for name in columns}
    frame = pd.DataFrame(cells, index=range(len(table)), dtype=object)
    for name, column in columns.items():
        missing = None if column.kind == "text" else np.nan
        values = [missing if pd.isna(value) else value for value in frame[name]]
        frame[name] = pd.Series(values, frame.index, dtype=_TYPES[column.kind])
    return frame


@dataclass(frozen=True)
class Part:
    """A part of a site's results.

    Parameters
    ----------
    tables : {name of the table: {name of the column: Column}}
    make : function (study, patients) → {name of the table: DataFrame}
        Those of these tables that have rows, with all of their columns. Counts are rounded by
        `patients.rounding` where it is not None, and whatever else is in the tables then rests
        on at least `study.privacy.min_count` patients or has few digits.
    """

    tables: Mapping[str, Columns]
    make: Callable[[Study, SitePatients], Mapping[str, pd.DataFrame]]

    def results(self, study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
        """All tables of the part, empty ones too, with their types."""
        made = self.make(study, patients)
        if unknown := made.keys() - self.tables.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: not among the tables of the part")
        nothing = pd.DataFrame()
        return {
            name: typed(made.get(name, nothing), columns) for name, columns in self.tables.items()
        }


ENSEMBLE, OWN, REFINED, ONLY = "ensemble", "own", "refined", ""
"""The views of a study, that is, the rules that group the patients of a site: the clusters of the
ensemble, the classes of the site's own model, and the refined clusters. Where there is no ensemble
(one site, or one class) the only view is that of the model, without a name."""
SHOWN = {ONLY: None, ENSEMBLE: "ensemble", OWN: "local", REFINED: "refined"}
"""What the report calls the views."""
ALL_SITES = "all sites"
"""What tables and figures call all sites together."""


@dataclass(frozen=True, eq=False)
class SitePatients:
    """The patients of a site, and their groups by all rules.

    Parameters
    ----------
    site : str
    sequences : Sequences
    groups : {view: Series by id}
        The number of each patient's group, from 1. `ENSEMBLE` and `REFINED` are numbered alike at
        all sites; classes of the site's own model (`OWN`) as in the model.
    labels : DataFrame by id
        The class of each patient, from 0, by each model that labelled the site's patients.
    certainty : DataFrame by id
        How clear each patient's cluster is: of an ensemble the columns of `Ensemble.confidence`,
        otherwise `probability`.
    own : MixtureMarkov or None
        The model of all patients of the site; None if there are too few for one.
    fits : DataFrame, optional
        How the models of the site and of resamples of its patients were fitted, see
        `mmlca.study.results.models.fit_table`.
    choice : DataFrame, optional
        Numbers of classes compared for the same, see `mmlca.study.results.models.comparison`; None
        if the number was given.
    memberships : DataFrame by id, optional
        The probability of each refined cluster.
    rounding : Rounding, optional
        Of the groups of the first view: all counts leave rounded. None: all numbers are exact.
    """

    site: str
    sequences: Sequences
    groups: Mapping[str, pd.Series]
    labels: pd.DataFrame
    certainty: pd.DataFrame
    own: MixtureMarkov | None = None
    fits: pd.DataFrame | None = None
    choice: pd.DataFrame | None = None
    memberships: pd.DataFrame | None = None
    rounding: Rounding | None = None

    @property
    def first_view(self) -> str:
        """The view whose groups the report describes: that of the ensemble, if there is one."""
        return ENSEMBLE if ENSEMBLE in self.groups else ONLY

    @property
    def own_view(self) -> str:
        """The view whose groups are the classes of the site's own model."""
        return OWN if OWN in self.groups else self.first_view

    def count(self, n: float, *what: str) -> float:
        """A number of all patients, or of what else is counted of them, as it may leave."""
        if self.rounding is None:
            return float(n)
        if not what:
            return self.rounding(n, self.site)
        return self.rounding(n, self.site, EVERYONE, *what)

    def rounding_of(self, view: str) -> Rounding | None:
        """The rounding of counts of the groups of a view."""
        if self.rounding is None or view == self.first_view:
            return self.rounding
        return self.rounding.of({self.site: self.groups[view]})


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


Results = Mapping[str, SiteResults]


def is_rounded(results: Results) -> bool:
    """Whether the counts of any site are rounded."""
    return any(result.rounded for result in results.values())


def stacked(results: Results, name: str) -> pd.DataFrame:
    """A table of all sites, one below the other, behind a column "site"."""
    tables = {site: result.tables[name] for site, result in results.items()}
    kept = [site for site, table in tables.items() if len(table)] or list(tables)[:1]
    stack = pd.concat([tables[site] for site in kept], ignore_index=True)
    sites = [site for site in kept for _ in range(len(tables[site]))]
    stack.insert(0, "site", pd.Series(sites, dtype=object))
    return stack
