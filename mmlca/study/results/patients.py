"""What a site computes its results from. It stays at the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmlca.tables.disclosure import EVERYONE

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences
    from mmlca.tables.disclosure import Rounding

ENSEMBLE, OWN, REFINED, ONLY = "ensemble", "own", "refined", ""
"""The views of a study, that is, the rules that group the patients of a site: the clusters of the
ensemble, the classes of the site's own model, and the refined clusters. Where there is no ensemble
(one site, or one class) the only view is that of the model, without a name."""


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
