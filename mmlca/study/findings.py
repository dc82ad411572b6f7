"""What a study finds: everything that its tables, figures and texts are made of.

It is put together from the results of the sites and from what the centre knows, in a study in one
place and between hospitals alike. Nothing here sees a patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.study.combined import Combined
from mmlca.study.headline import Number, headline
from mmlca.study.results.about import table_one_of
from mmlca.study.results.effects import Outcomes, outcomes_of
from mmlca.study.results.fit import Fits, fits_of
from mmlca.study.results.groups import refined_differences_of, site_differences_of, states_of
from mmlca.study.results.labs import trends_of
from mmlca.study.results.opinions import Opinions, opinions_of
from mmlca.study.results.shown_courses import (
    GroupCourses,
    Groups,
    courses_of,
    described_of,
    groups_of,
    views_of,
)
from mmlca.study.results.site import OWN, SHOWN, SiteResults
from mmlca.study.results.strata import Strata, strata_of
from mmlca.study.words import Names, group_name, group_word, name_groups, period, window_name
from mmlca.tables.site_differences import SiteDifferences

if TYPE_CHECKING:
    from mmlca.study.settings import Study
    from mmlca.tables.lab_trends import Trend
    from mmlca.tables.table_one import TableOne


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that a study computes, for its tables, figures and texts.

    Parameters
    ----------
    results : {site: SiteResults}
    combined : Combined
    sites : list of str
    states, times : list of str
        The drug classes of any site in their order, and the windows of the longest sequences.
    names : Names
    class_names : {site: {class: name}}
        What the classes of a site's own model are called, numbered from 1 as in the model.
    sizes : {view of the report: DataFrame}
        The sizes of the groups, as the release shows them.
    courses : {view of the report: GroupCourses}
    described, described_by_site : DataFrame
        The clusters in numbers and words, of all sites together and of each.
    table_one : TableOne
    fits : Fits
        The sites' models, how they were chosen and how well they fit.
    opinions : Opinions or None
        Whether other methods find the same groups.
    differences, refined_differences : SiteDifferences or None
        None if there is one site.
    trends : {view of the report: Trend}
        The course of the lab.
    outcomes : Outcomes
        What follows from the clusters.
    strata : Strata or None
        Medication, cluster shares and Table 1 by stratum; None if the study does not ask for it.
    numbers : list of Number
    """

    results: Mapping[str, SiteResults]
    combined: Combined
    sites: list[str]
    states: list[str]
    times: list[str]
    names: Names
    class_names: dict[str, dict[int, str]]
    sizes: dict[str | None, pd.DataFrame]
    courses: dict[str | None, GroupCourses]
    described: pd.DataFrame
    described_by_site: pd.DataFrame
    table_one: TableOne
    fits: Fits
    opinions: Opinions | None
    differences: SiteDifferences | None
    refined_differences: SiteDifferences | None
    trends: dict[str | None, Trend]
    outcomes: Outcomes
    strata: Strata | None
    numbers: list[Number]

    @property
    def view(self) -> str | None:
        """The view whose groups the report describes."""
        return None if self.combined.ensemble is None else "ensemble"

    @property
    def cluster_names(self) -> dict[int, str]:
        """What the clusters are called, or the classes where there is no ensemble."""
        return self.names.groups[self.view]


def describe(
    study: Study,
    results: Mapping[str, SiteResults],
    combined: Combined,
    names_given: Callable[[list[str | None]], Mapping[str, str]],
) -> Findings:
    """Put the results of all sites together.

    `names_given` says which course each name of the study file belongs to, given the courses of
    the clusters.
    """
    min_count, n_boot = study.privacy.min_count, study.outputs.bootstrap
    views = {view: groups_of(results, view, min_count) for view in views_of(results)}
    first = next(iter(views.values()))
    times = _longest_times(results)
    words = period(study, len(times)), window_name(study)
    described = described_of(results, first, *words)
    names = name_groups(study, results, views, described, names_given)
    short = pd.Series([names.clusters.get(k) for k in described["cluster"]], dtype=object)
    described.insert(1, "name", short)
    by_site = described_of(results, first, *words, by_site=True).drop(columns="description")
    by_site.insert(2, "name", by_site["cluster"].map(names.clusters))
    texts = zip(described["cluster"], described["description"], strict=True)
    cluster_names = names.groups[SHOWN[first.view]]
    table_one = table_one_of(
        study,
        results,
        cluster_names,
        {group_name(study, c, names.clusters): text for c, text in texts},
    )
    fits = fits_of(results)
    sizes = {SHOWN[view]: groups.sizes for view, groups in views.items()}
    differences = site_differences_of(results, n_boot=n_boot, seed=study.seed)
    of_ensemble = fits.models["model"].isin(list(combined.models))
    replicated = float(fits.models["replicated"][of_ensemble].min())
    return Findings(
        results=results,
        combined=combined,
        sites=list(results),
        states=states_of(results),
        times=times,
        names=names,
        class_names=_class_names(fits, views.get(OWN, first), names),
        sizes=sizes,
        courses={
            SHOWN[view]: courses_of(results, groups, names.groups[SHOWN[view]])
            for view, groups in views.items()
        },
        described=described,
        described_by_site=by_site,
        table_one=table_one,
        fits=fits,
        opinions=opinions_of(results, min_count, group_word(study)),
        differences=differences,
        refined_differences=refined_differences_of(results, n_boot=n_boot, seed=study.seed),
        trends=trends_of(study, results, names.groups),
        outcomes=outcomes_of(study, results, cluster_names, table_one.hidden_together),
        strata=strata_of(study, results, cluster_names, table_one),
        numbers=headline(study, combined, results, sizes, fits.choice, differences, replicated),
    )


def _longest_times(results: Mapping[str, SiteResults]) -> list[str]:
    return max((result.tables["times"]["time"].tolist() for result in results.values()), key=len)


def _class_names(fits: Fits, groups: Groups, names: Names) -> dict[str, dict[int, str]]:
    """The classes of each site's own model, with short names from their own courses."""
    classes: dict[str, dict[int, str]] = {}
    for site, n in fits.own["classes"].items():
        numbers: Mapping[int, int] = groups.numbers.get(str(site), {})
        short: Mapping[int, Any] = names.own.get(str(site), {})
        named = {k: short.get(numbers.get(k, 0)) for k in range(1, int(n) + 1)}
        classes[str(site)] = {
            k: f"class {k}" if name is None else f"class {k}: {name}" for k, name in named.items()
        }
    return classes
