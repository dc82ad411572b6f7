"""What a study finds: everything that its tables, figures and texts are made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.ensemble import site_of
from font.errors import ReportWarning
from font.stability import influence
from mmlca.sequences.checks import listed
from mmlca.sequences.type import Sequences
from mmlca.study import site_data
from mmlca.study.analysis import Analysis
from mmlca.study.cache import Progress
from mmlca.study.combined import Combined, Refinement
from mmlca.study.groups import (
    all_memberships,
    class_names,
    cluster_names,
    course_views,
    named_groups,
    own_classes,
    views,
)
from mmlca.study.headline import headline
from mmlca.study.inference import Inference, diagnostics, infer
from mmlca.study.names import name_groups
from mmlca.study.numbers import Number
from mmlca.study.outcomes import Outcomes, outcomes_of
from mmlca.study.processes import Processes
from mmlca.study.release import is_public, rounding_of
from mmlca.study.results.patients import ENSEMBLE, ONLY, OWN, REFINED, SitePatients
from mmlca.study.results.site import SiteResults, site_results
from mmlca.study.words import group_name, period, window_name
from mmlca.tables.clusters import describe_clusters, shown_sizes
from mmlca.tables.course_tables import (
    Courses,
    course_keys,
    courses_by_group,
    guarded_clusters,
    rounded_clusters,
)
from mmlca.tables.disclosure import EVERYONE, Rounding, is_small
from mmlca.tables.shared_chains import SharedChains, shared_chain_test
from mmlca.tables.site_differences import SiteDifferences, site_differences

if TYPE_CHECKING:
    from mmlca.study.settings import Study
    from mmlca.tables.lab_trends import Trend
    from mmlca.tables.table_one import TableOne

_PUBLIC_DECIMALS = 2


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that a study computes, for its tables, figures and texts.

    `choice` is the table of numbers of classes, None if the number was given; `suggested` is what
    models with more classes suggest (see `free_numbers`); `differences`, `shared` and `influence`
    are None if there is one site; `trends` holds a lab's course by view (see
    `views`); `described` describes the clusters in numbers and words; `inference` is how sure
    all this is; `outcomes` are what follows from the clusters; `results` are those of each site,
    from which the report is made.

    Parameters
    ----------
    combined : Combined
    sites : list of str
    states, times : list of str
        The drug classes of any site in their order, and the windows of the longest sequences.
    names : {cluster: short name}
        Of clusters that have one.
    group_names : {membership: {group: name}}
        What the groups of every membership are called, see `mmlca.study.names`.
    class_names : {site: {class: name}}
        What the classes of a site's own model are called, numbered from 1 as in the model.
    sizes : {membership: DataFrame}
        The sizes of the groups that the report shows, as `shown_sizes` gives them.
    """

    analysis: Analysis
    combined: Combined
    sites: list[str]
    states: list[str]
    times: list[str]
    names: dict[Any, str]
    group_names: dict[str | None, dict[Any, str]]
    class_names: dict[str, dict[int, str]]
    sizes: dict[str | None, pd.DataFrame]
    choice: pd.DataFrame | None
    suggested: pd.DataFrame | None
    numbers: list[Number]
    described: pd.DataFrame
    table_one: TableOne
    courses: dict[str | None, Courses]
    differences: SiteDifferences | None
    influence: pd.DataFrame | None
    trends: dict[str | None, Trend]
    inference: Inference
    outcomes: Outcomes
    results: dict[str, SiteResults]
    refined_differences: SiteDifferences | None = None
    shared: SharedChains | None = None

    @property
    def cluster_names(self) -> dict[Any, str]:
        """What the clusters are called, or the classes where there is no ensemble."""
        return self.group_names[None if self.combined.ensemble is None else "ensemble"]


def describe(
    study: Study,
    analysis: Analysis,
    choice: pd.DataFrame | None,
    suggested: pd.DataFrame | None,
    names_given: Callable[[list[str | None]], Mapping[str, str]],
    processes: Processes,
    tell: Progress,
) -> Findings:
    """Numbers and tables of the clusters, the sites and the labs.

    `names_given` says which course each name of the study file belongs to, given the courses of
    the clusters.
    """
    tell("Comparing the sites", 0.42)
    differences = processes.submit(compare_sites, study, analysis, study.outputs.bootstrap)
    shared = processes.submit(compare_chains, study, analysis)
    refined_differences = processes.submit(compare_sites_refined, study, analysis)
    diagnosed = diagnostics(study, analysis, processes)
    tasks = {
        site: processes.submit(site_results, study, site_patients(study, analysis, site))
        for site in analysis.sequences
    }
    described = describe_clusters(
        analysis.sequences,
        analysis.clusters,
        after=period(study, _most_windows(analysis)),
        window=window_name(study),
    )
    described = shown_clusters(study, analysis, described)
    analysis, described = name_groups(study, analysis, described, names_given)
    course_tables = tables_of_courses(study, analysis, processes)
    tell("Fitting the laboratory values", 0.45)
    trends = lab_trends(study, analysis)
    tell("Standard errors, fit and outcomes", 0.47)
    results = {site: task() for site, task in tasks.items()}
    table_one = describe_patients(study, analysis, described, results)
    inferred = infer(study, analysis, diagnosed())
    outcomes = outcomes_of(study, results, cluster_names(analysis), table_one.hidden_together)
    data = analysis.sequences
    return Findings(
        analysis=analysis,
        combined=combine_in_memory(analysis),
        sites=list(data),
        states=list(dict.fromkeys(str(state) for part in data.values() for state in part.states)),
        times=max(([str(time) for time in part.times] for part in data.values()), key=len),
        names=analysis.names,
        group_names=analysis.group_names,
        class_names={site: class_names(analysis, site) for site in analysis.own},
        sizes=_sizes(study, analysis),
        choice=choice,
        suggested=suggested,
        numbers=headline(study, analysis, choice, differences(), shared()),
        described=described,
        table_one=table_one,
        courses=course_tables(),
        differences=differences(),
        influence=site_influence(study, analysis),
        trends=trends,
        refined_differences=refined_differences(),
        shared=shared(),
        inference=inferred,
        outcomes=outcomes,
        results=results,
    )


def combine_in_memory(analysis: Analysis) -> Combined:
    """What the centre of a network would know of an analysis in one place."""
    refined, groups = analysis.refined, pd.concat(list(analysis.clusters.values()))
    return Combined(
        n_groups=groups.nunique(),
        ensemble=analysis.ensemble,
        models={name: str(site_of(name)) for name in analysis.models},
        refined=None if refined is None else Refinement(refined.n_steps_, refined.converged_),
    )


def site_patients(study: Study, analysis: Analysis, site: str) -> SitePatients:
    """The patients of a site in a study in one place."""
    alone = analysis.ensemble is None
    groups = {ONLY if alone else ENSEMBLE: analysis.clusters[site]}
    if not alone:
        groups[OWN] = own_classes(analysis)[site]
    if analysis.refined is not None:
        groups[REFINED] = analysis.refined_clusters[site]
    return SitePatients(
        site=site,
        sequences=analysis.sequences[site],
        groups=groups,
        labels=analysis.labels[site],
        certainty=analysis.certainty[site],
        own=analysis.own[site],
        memberships=analysis.memberships.get(site),
        rounding=rounding_of(study, {site: analysis.clusters[site]}),
    )


# --- clusters -----------------------------------------------------------------------------


def shown_clusters(
    study: Study,
    analysis: Analysis,
    described: pd.DataFrame,
    by_site: Courses | None = None,
) -> pd.DataFrame:
    """`describe_clusters` as the release shows it; guarded numbers are not for tables yet.

    `by_site` are the tables of the clusters' courses if `described` has a row for each site.
    """
    min_count, data = study.privacy.min_count, analysis.sequences
    words = period(study, _most_windows(analysis)), window_name(study)
    names = {c: group_name(study, c, analysis.names) for c in described["cluster"]}
    courses = by_site
    if courses is None:
        whole = Sequences.concat(data) if len(data) > 1 else next(iter(data.values()))
        clusters = pd.concat(list(analysis.clusters.values()))
        groups = {"": pd.Series(clusters.map(names).to_numpy(), pd.Index(whole.ids))}
        named = {site: part.map(names) for site, part in analysis.clusters.items()}
        rounding = rounding_of(study, named)
        keys = None if rounding is None else course_keys(data, named, rounding)
        courses = courses_by_group({"": whole}, groups, min_count, rounding, keys)
    if rounding := rounding_of(study, analysis.clusters):
        return rounded_clusters(described, courses, names, rounding, *words)
    sizes = shown_sizes(analysis.clusters, min_count)
    return guarded_clusters(described, courses, names, sizes, min_count, *words)


def _most_windows(analysis: Analysis) -> int:
    return max(data.shape[1] for data in analysis.sequences.values())


def _sizes(study: Study, analysis: Analysis) -> dict[str | None, pd.DataFrame]:
    min_count = study.privacy.min_count
    return {
        view: shown_sizes(groups, min_count, rounding_of(study, groups))
        for view, groups in course_views(analysis)
    }


# --- comparisons --------------------------------------------------------------------------


def compare_sites(study: Study, analysis: Analysis, n_boot: int) -> SiteDifferences | None:
    """Differences between the sites, under the ensemble and under the sites' own models.

    With a single class there is one membership: all patients of a site.
    """
    sites = analysis.sequences
    if len(sites) == 1:
        return None
    options: dict[str, Any] = {"n_boot": n_boot, "seed": study.seed}
    if analysis.ensemble is not None:
        options["models"] = {
            name: {site: analysis.labels[site][name] for site in sites} for name in sites
        }
    found = site_differences(sites, analysis.clusters, **options)
    return replace(found, norms=_shown_norms(study, found.norms))


def _shown_norms(study: Study, norms: pd.DataFrame) -> pd.DataFrame:
    """Norms with two decimals in a public release: they are of exact counts, which it rounds."""
    if not is_public(study):
        return norms
    return norms.round(dict.fromkeys(("norm", "debiased", "low", "high"), _PUBLIC_DECIMALS))


def compare_chains(study: Study, analysis: Analysis) -> SharedChains | None:
    """Whether the sites share the chains of the clusters, each with its own proportions."""
    if len(analysis.sequences) == 1:
        return None
    n = study.inference.simulations_for(1)  # enough for the pairs of sites that are tested
    found = shared_chain_test(analysis.sequences, analysis.clusters, n=n, seed=study.seed)
    return replace(found, norms=_shown_norms(study, found.norms))


def tables_of_courses(
    study: Study, analysis: Analysis, processes: Processes
) -> Callable[[], dict[str | None, Courses]]:
    """Tables of the courses by membership, as the release shows them, once they are called for."""
    tasks = {}
    for view, clusters in all_memberships(analysis).items():
        groups = named_groups(analysis, clusters, view)
        tasks[view] = processes.submit(
            courses_by_group,
            analysis.sequences,
            groups,
            study.privacy.min_count,
            rounding_of(study, groups),
        )
    return lambda: {view: task() for view, task in tasks.items()}


def compare_sites_refined(study: Study, analysis: Analysis) -> SiteDifferences | None:
    """The same differences under the refined clusters, without the other memberships."""
    if analysis.refined is None:
        return None
    found = site_differences(
        analysis.sequences,
        analysis.refined_clusters,
        n_boot=study.outputs.bootstrap,
        seed=study.seed,
    )
    return replace(found, norms=_shown_norms(study, found.norms))


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


def lab_trends(study: Study, analysis: Analysis) -> dict[str | None, Trend]:
    """The course of a lab under each membership, at the sites that have labs and dates.

    A public release has one membership: the widths of the bands under two would reveal roughly by
    how few patients these differ.
    """
    from ehr_prep.analysis import trend

    sites = [site for site, files in study.sites.items() if files.labs is not None]
    undated = [site for site in sites if analysis.sequences[site].account is None]
    if undated:
        warnings.warn(
            f"the labs of {listed(undated)} are not used: sequences from a file have no dates; "
            "give records instead.",
            ReportWarning,
            stacklevel=2,
        )
    labs = {site: site_data.read_labs(study, site) for site in sites if site not in undated}
    if not labs:
        return {}
    dates = {site: analysis.sequences[site] for site in labs}
    trends = {}
    for view, clusters in views(analysis)[: 1 if is_public(study) else None]:
        groups = named_groups(analysis, {site: clusters[site] for site in labs}, view)
        trends[view] = trend(
            labs,
            groups,
            dates,
            test=study.outputs.lab,
            bands=study.outputs.lab_bands,
            min_count=study.privacy.min_count,
            rounding=rounding_of(study, groups),
        )
    return trends


def describe_patients(
    study: Study,
    analysis: Analysis,
    described: pd.DataFrame,
    results: Mapping[str, SiteResults],
) -> TableOne:
    """Table 1: the patients of each cluster."""
    from mmlca.study.results.shown_patients import table_one_of

    texts = zip(described["cluster"], described["description"], strict=True)
    return table_one_of(
        study,
        results,
        cluster_names(analysis),
        {group_name(study, c, analysis.names): text for c, text in texts},
    )
