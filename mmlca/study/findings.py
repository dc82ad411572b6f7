"""What a study finds: everything that its tables, figures and texts are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.sequences.type import Sequences
from mmlca.study.analysis import Analysis
from mmlca.study.cache import Progress
from mmlca.study.combined import Combined
from mmlca.study.groups import (
    all_memberships,
    class_names,
    cluster_names,
    course_views,
    named_groups,
)
from mmlca.study.headline import headline
from mmlca.study.in_one_place import (
    combine_in_memory,
    compare_chains,
    site_influence,
    site_patients,
)
from mmlca.study.names import name_groups
from mmlca.study.numbers import Number
from mmlca.study.outcomes import Outcomes, outcomes_of
from mmlca.study.processes import Processes
from mmlca.study.release import rounding_of
from mmlca.study.results.shown_fits import Fits, fits_of
from mmlca.study.results.shown_labs import trends_of
from mmlca.study.results.shown_sites import refined_differences_of, site_differences_of
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
from mmlca.tables.site_differences import SiteDifferences

if TYPE_CHECKING:
    from mmlca.study.settings import Study
    from mmlca.tables.lab_trends import Trend
    from mmlca.tables.table_one import TableOne


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that a study computes, for its tables, figures and texts.

    `differences` is None if there is one site; `trends` holds a lab's course by view (see
    `views`); `described` describes the clusters in numbers and words; `outcomes` are what follows
    from the clusters; `results` are those of each site, from which the report is made.

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
    fits : Fits
        The sites' models, how they were chosen and how well they fit.
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
    fits: Fits
    numbers: list[Number]
    described: pd.DataFrame
    table_one: TableOne
    courses: dict[str | None, Courses]
    differences: SiteDifferences | None
    trends: dict[str | None, Trend]
    outcomes: Outcomes
    results: dict[str, SiteResults]
    refined_differences: SiteDifferences | None = None

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
    shared = processes.submit(compare_chains, study, analysis)
    influence = processes.submit(site_influence, study, analysis)
    tasks = {
        site: processes.submit(site_results, study, site_patients(study, analysis, site, choice))
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
    tell("Standard errors, fit and outcomes", 0.47)
    results = {site: task() for site, task in tasks.items()}
    table_one = describe_patients(study, analysis, described, results)
    fits = fits_of(results)
    outcomes = outcomes_of(study, results, cluster_names(analysis), table_one.hidden_together)
    combined = replace(
        combine_in_memory(analysis), shared=shared(), influence=influence(), suggested=suggested
    )
    n_boot, sizes = study.outputs.bootstrap, _sizes(study, analysis)
    differences = site_differences_of(results, n_boot=n_boot, seed=study.seed)
    of_ensemble = fits.models["model"].isin(list(combined.models))
    replicated = float(fits.models["replicated"][of_ensemble].min())
    data = analysis.sequences
    return Findings(
        analysis=analysis,
        combined=combined,
        sites=list(data),
        states=list(dict.fromkeys(str(state) for part in data.values() for state in part.states)),
        times=max(([str(time) for time in part.times] for part in data.values()), key=len),
        names=analysis.names,
        group_names=analysis.group_names,
        class_names={site: class_names(analysis, site) for site in analysis.own},
        sizes=sizes,
        fits=fits,
        numbers=headline(study, combined, results, sizes, fits.choice, differences, replicated),
        described=described,
        table_one=table_one,
        courses=course_tables(),
        differences=differences,
        trends=trends_of(study, results, analysis.group_names),
        refined_differences=refined_differences_of(results, n_boot=n_boot, seed=study.seed),
        outcomes=outcomes,
        results=results,
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


# --- courses ------------------------------------------------------------------------------


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
