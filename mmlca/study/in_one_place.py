"""What the patients of all sites give where they are in one place: as `Combined` and by site."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.ensemble import site_of
from font.stability import influence
from mmlca.study.combined import Combined, Refinement
from mmlca.study.release import is_public, rounding_of
from mmlca.study.results.models import fit_table
from mmlca.study.results.site import ENSEMBLE, ONLY, OWN, REFINED, SitePatients
from mmlca.tables.disclosure import EVERYONE, Rounding, is_small
from mmlca.tables.shared_chains import SharedChains, shared_chain_test

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study

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
    n = study.inference.simulations_for(1)  # enough for the pairs of sites that are tested
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
