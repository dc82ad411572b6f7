"""What a study's centre knows besides the results of its sites: the ensemble and its models.

Where the patients of all sites are in one place, it follows from the analysis, as does what each
site computes its results from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from font.ensemble import site_of
from font.stability import influence
from mmlca.study.release import is_public, rounding_of
from mmlca.study.results.models import fit_table
from mmlca.study.results.site import ENSEMBLE, ONLY, OWN, REFINED, SitePatients
from mmlca.tables.disclosure import EVERYONE, Rounding, is_small
from mmlca.tables.shared_chains import SharedChains, shared_chain_test

if TYPE_CHECKING:
    import pandas as pd

    from font.ensemble import Ensemble
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study
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


# --- of patients in one place -----------------------------------------------------------


_PUBLIC_DECIMALS = 2


def combine_in_memory(analysis: Analysis) -> Combined:
    """What the centre of a network would know of an analysis in one place."""
    refined, groups = analysis.refined, pd.concat(list(analysis.clusters.values()))
    return Combined(
        n_groups=groups.nunique(),
        ensemble=analysis.ensemble,
        models={name: str(site_of(name)) for name in analysis.models},
        refined=None if refined is None else Refinement(refined.n_steps_, refined.converged_),
    )


def compare_chains(study: Study, analysis: Analysis) -> SharedChains | None:
    """Whether the sites share the chains of the clusters, each with its own proportions."""
    if len(analysis.sequences) == 1:
        return None
    n = study.inference.simulations
    found = shared_chain_test(analysis.sequences, analysis.clusters, n=n, seed=study.seed)
    if not is_public(study):
        return found
    digits = dict.fromkeys(("norm", "debiased", "low", "high"), _PUBLIC_DECIMALS)
    return replace(found, norms=found.norms.round(digits))  # they are of exact counts


def site_patients(
    study: Study, analysis: Analysis, site: str, choice: pd.DataFrame | None = None
) -> SitePatients:
    """The patients of a site in a study in one place.

    `choice` is the table of numbers of classes of all sites and resamples, see `compare_numbers`.
    """
    models = {
        name: model
        for name, model in (*analysis.models.items(), *analysis.own.items())
        if site_of(name) == site
    }
    if choice is not None:
        choice = choice.rename(columns={"site": "model"})
        choice = choice[choice["model"].map(site_of) == site]
    alone = analysis.ensemble is None
    groups = {ONLY if alone else ENSEMBLE: analysis.clusters[site]}
    if not alone:
        groups[OWN] = analysis.labels[site][site] + 1
    if analysis.refined is not None:
        groups[REFINED] = analysis.refined_clusters[site]
    return SitePatients(
        site=site,
        sequences=analysis.sequences[site],
        groups=groups,
        labels=analysis.labels[site],
        certainty=analysis.certainty[site],
        own=analysis.own[site],
        fits=fit_table(models, analysis.labels[site]),
        choice=choice,
        memberships=analysis.memberships.get(site),
        rounding=rounding_of(study, {site: analysis.clusters[site]}),
    )


# --- influence of a site ------------------------------------------------------------------


def site_influence(study: Study, analysis: Analysis) -> pd.DataFrame | None:
    """Patients who would change cluster without a site.

    Small numbers are hidden, and so are totals from which they would follow; or all are rounded.
    """
    if analysis.ensemble is None or analysis.ensemble.clusters_ is None:  # not from patterns
        return None
    table, min_count = influence(analysis.ensemble), study.privacy.min_count
    if rounding := rounding_of(study, analysis.clusters):
        return _rounded_influence(table, analysis, rounding)
    few = pd.DataFrame(
        {
            f"changed at {site}": is_small(table[f"changed at {site}"], min_count)
            | is_small(len(data) - table[f"changed at {site}"], min_count)
            for site, data in analysis.sequences.items()
        },
        table.index,
    )
    table[list(few)] = table[list(few)].mask(few)
    total = few.any(axis=1) | is_small(table["changed"], min_count)
    return table.assign(changed=table["changed"].mask(total), share=table["share"].mask(total))


def _rounded_influence(table: pd.DataFrame, analysis: Analysis, rounding: Rounding) -> pd.DataFrame:
    sizes = {site: len(data) for site, data in analysis.sequences.items()}
    places = {"changed": EVERYONE, **{f"changed at {site}": site for site in sizes}}
    new: dict[str, list[float]] = {name: [] for name in (*places, "share")}
    for without, row in table.iterrows():
        cell = ("without", rounding.key(str(without)))
        for name, place in places.items():
            new[name].append(rounding(row[name], place, EVERYONE, *cell, "change"))
        stay = rounding(sum(sizes.values()) - row["changed"], EVERYONE, EVERYONE, *cell)
        whole = new["changed"][-1] + stay
        new["share"].append(new["changed"][-1] / whole if whole else np.nan)
    return table.assign(**new)
