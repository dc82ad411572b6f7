"""What a study's centre knows besides the results of its sites: the ensemble and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from font.ensemble import Ensemble
    from mmlca.tables.shared_chains import SharedChains


class Refinement(NamedTuple):
    """How the clusters of an ensemble were refined."""

    n_steps: int
    converged: bool

    @classmethod
    def after(cls, n_steps: int) -> Refinement:
        """A refinement between sites, which ends early if it has converged."""
        from font.exchange.messages.refinement import MOST_STEPS

        return cls(n_steps, n_steps < MOST_STEPS)


@dataclass(frozen=True, eq=False)
class Combined:
    """How the models of the sites were combined.

    A study in one place takes it from its analysis, a network from the exchange files.

    Parameters
    ----------
    n_groups : int
        The number of clusters, or of classes where there is no ensemble.
    ensemble : Ensemble or None
        None if there is one site or one class.
    models : {model: its site}
        The models of the ensemble; where there is none, those of the sites.
    refined : Refinement or None
        How the clusters were refined, if they were.
    shared : SharedChains or None
        The test of chains that the sites share; None if there is one site, or if the patients of
        the sites are not in one place.
    influence : DataFrame or None
        Patients who would change cluster without a site, as the release shows them; None if there
        is no ensemble, or if the centre knows only cross-tables of labels.
    absent : tuple of str
        Sentences about sites that a step went on without.
    by_files : bool
        Whether the sites exchanged files, so that their patients were never in one place.
    suggested : DataFrame or None
        Numbers of clusters that models with more classes suggest, which takes the patients of all
        sites in one place; see `mmlca.study.analysis.free_numbers`.
    """

    n_groups: int
    ensemble: Ensemble | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    refined: Refinement | None = None
    shared: SharedChains | None = None
    influence: pd.DataFrame | None = None
    absent: tuple[str, ...] = ()
    by_files: bool = False
    suggested: pd.DataFrame | None = None
