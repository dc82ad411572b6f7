"""Whether other methods find the same groups at a site, and whether each group has one course.

At each site other methods make as many groups of its patients as there are clusters. The site
releases how many patients of each cluster are in each of their groups. All indices and sentences
follow from these numbers as the report may show them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.release import round_indices
from mmlca.study.results.shown_courses import sizes_of
from mmlca.study.results.site import REFINED, Column, Part, Results, is_rounded, stacked
from mmlca.tables.course_fit import course_cautions, course_fit
from mmlca.tables.disclosure import EVERYONE, count_note
from mmlca.tables.second_opinion import (
    APART_COLUMNS,
    DISTANCES,
    SecondOpinion,
    Shown,
    apart_courses,
    course_opinions,
    numbered,
    opinion_of,
    patients_by_group,
    shown_cells,
    verdict,
)
from mmlca.tables.sequence_clusters import cluster_sequences

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding

MOST_STARTS = 20
"""Random starts of latent classes, unless a study has fewer for its chains."""
MOST_DISTINCT = 5_000
"""Distances of more distinct courses than this are those of a sample."""


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    if not study.inference.second_opinion or patients.own is None:
        return {}
    view = REFINED if REFINED in patients.groups else patients.first_view
    there = np.flatnonzero(patients.sequences.weights > 0)
    data = patients.sequences[there]
    clusters = patients.groups[view].astype(int).iloc[there].set_axis(data.ids)
    rounding, min_count = patients.rounding_of(view), study.privacy.min_count
    n_clusters = patients.own.n_classes
    opinions = other_groups(study, data, n_clusters)
    tables = _compared(data, clusters, opinions, n_clusters, min_count, rounding)
    fit = course_fit(data, clusters, min_count=min_count, rounding=rounding, seed=study.seed)
    tables["course_fit"] = fit if rounding is None else round_indices("course_fit", fit)
    return {
        name: table.assign(view=view)[list(PART.tables[name])] for name, table in tables.items()
    }


def other_groups(study: Study, data: Sequences, n_clusters: int) -> dict[str, pd.Series]:
    """The groups of other methods, by method; none for which there are too few courses."""
    n_distinct = len(np.unique(data.codes, axis=0))
    if n_distinct < n_clusters:
        return {}
    rules = study.model
    with warnings.catch_warnings():  # a maximum that one start found is still another opinion
        warnings.filterwarnings("ignore", "the best of|EM stopped")
        found = course_opinions(
            data,
            n_clusters,
            [k for k in study.classes.candidates if k <= n_distinct] or [1],
            min(rules.n_init, MOST_STARTS),
            rules.search,
            study.seed,
        )
    if n_clusters > 1:
        by_distance = cluster_sequences(
            data, n_clusters, "hamming", "ward", most_distinct=MOST_DISTINCT, seed=study.seed
        )
        found[DISTANCES] = by_distance.labels + 1
    return found


def _compared(
    data: Sequences,
    clusters: pd.Series,
    opinions: Mapping[str, pd.Series],
    n_clusters: int,
    min_count: int,
    rounding: Rounding | None,
) -> dict[str, pd.DataFrame]:
    """Patients by cluster and group, zeros too, and what those do whom methods see differently."""
    counts: list[pd.DataFrame] = []
    courses: list[dict[str, Any]] = []
    every = range(1, n_clusters + 1)
    for method, groups in opinions.items():
        cells, sizes = patients_by_group(clusters, groups, rounding)
        table = cells.reindex(index=every, columns=range(1, int(groups.max()) + 1), fill_value=0.0)
        long = table.rename_axis(index="cluster", columns="group").stack().rename("patients")
        counts.append(long.reset_index().assign(method=method))
        shown = shown_cells(cells, sizes, min_count, rounded=rounding is not None)
        apart = apart_courses(data, clusters, groups, shown, min_count, rounding)
        courses += [{"method": method, **row} for row in apart]
    if not counts:
        return {}
    return {
        "opinions": pd.concat(counts, ignore_index=True),
        "opinion_courses": pd.DataFrame(courses, columns=["method", *APART_COLUMNS]),
    }


_VIEW = Column("text", "the rule that groups the patients into clusters")
_METHOD = Column("text", "another method, which groups the patients of this site")
_CLUSTER = Column("whole", "the number of a cluster")
_GROUP = Column("whole", "the number of a group of the other method, from 1")
PART = Part(
    {
        "opinions": {
            "view": _VIEW,
            "method": _METHOD,
            "cluster": _CLUSTER,
            "group": _GROUP,
            "patients": Column("count", "patients in both"),
        },
        "opinion_courses": {
            "view": _VIEW,
            "method": _METHOD,
            "cluster": _CLUSTER,
            "group": _GROUP,
            "path": Column("text", "the most common path of the patients in both"),
            "path_patients": Column("count", "those who take it"),
            "sequence": Column("text", "the most frequent course of the patients in both"),
            "sequence_patients": Column("count", "those who have it"),
        },
        "course_fit": {
            "view": _VIEW,
            "cluster": _CLUSTER,
            "course": Column("text", "the course from which its patients differ least"),
            "sharing": Column("number", "share of its patients who have this course"),
            "distance": Column("number", "mean number of windows in which patients differ from it"),
            "within": Column("number", "the same between two patients of the cluster"),
            "nearest": Column("whole", "the cluster from which its patients differ least"),
            "between": Column("number", "windows in which they differ from patients of that one"),
            "silhouette": Column("number", "mean silhouette on the number of differing windows"),
            "two_courses": Column("flag", "whether it contains two well-separated groups"),
            "smaller": Column("number", "share of the smaller one of these"),
            "larger_course": Column("text", "typical course of the larger one"),
            "smaller_course": Column("text", "typical course of the smaller one"),
            "alike": Column("flag", "whether the cluster and the nearest one are nearly the same"),
        },
    },
    make,
)


# --- all sites --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opinions:
    """What other methods find at each site, beside the clusters.

    Parameters
    ----------
    view : str
        The view whose groups are compared.
    sites : {site: SecondOpinion}
        Of sites where other methods could be compared. Groups have the numbers of the clusters to
        which they correspond.
    noun : str
        "cluster", or "class" in a study of one site.
    course_fit : DataFrame
        Of all sites, as `mmlca.tables.course_fit.course_fit` returns it; without clusters whose
        size is hidden.
    """

    view: str
    sites: Mapping[str, SecondOpinion]
    noun: str
    course_fit: pd.DataFrame

    @property
    def n_clusters(self) -> int:
        """The number of clusters, those included whose size is hidden."""
        return max(part.n_clusters for part in self.sites.values())

    @property
    def agreement(self) -> pd.DataFrame:
        """The agreement of all methods at all sites, with what differs in words."""
        parts = [
            part.agreement.assign(site=site, in_words=part.in_words())
            for site, part in self.sites.items()
        ]
        return pd.concat(parts, ignore_index=True)

    def table(self, name: str) -> pd.DataFrame:
        """The table "cross" or "courses" of all sites."""
        parts = {site: getattr(part, name) for site, part in self.sites.items()}
        kept = [table.assign(site=site) for site, table in parts.items() if len(table)]
        first = next(iter(parts.values())).assign(site="")
        return pd.concat(kept, ignore_index=True) if kept else first

    def verdict(self) -> str:
        """What the methods at all sites mean together."""
        return verdict(self.agreement, self.n_clusters, self.noun)

    def course_cautions(self) -> list[str]:
        """What the numbers of `course_fit` say against the clusters."""
        table, several = self.course_fit, len(self.sites) > 1
        return course_cautions(table if several else table.drop(columns="site"), self.noun)


def opinions_of(results: Results, min_count: int, noun: str) -> Opinions | None:
    """The second opinions of all sites; None where there are none."""
    counts, fit = stacked(results, "opinions"), stacked(results, "course_fit")
    if not len(fit):
        return None
    view, rounded = str(fit["view"].iloc[0]), is_rounded(results)
    sizes = sizes_of(results, view, min_count)
    courses = stacked(results, "opinion_courses")
    sites = {}
    for site, rows in counts.groupby("site", sort=False):
        mine = courses[courses["site"] == site]
        sites[str(site)] = _opinion(rows, mine, sizes.loc[str(site)], min_count, rounded, noun)
    return Opinions(view, sites, noun, _with_shown_sizes(fit.drop(columns="view"), sizes))


def _with_shown_sizes(fit: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """The rows of clusters whose size is shown, without distances from other clusters."""
    size = {
        (str(site), float(k)): n
        for site, row in sizes.drop(columns=EVERYONE).iterrows()
        for k, n in row.items()
    }

    def shown(column: str) -> list[bool]:
        keys = zip(fit["site"], fit[column], strict=True)
        return [not np.isnan(size.get(key, np.nan)) for key in keys]

    far = ~np.array(shown("nearest"), dtype=bool)
    numbers = {name: fit[name].mask(far) for name in ("nearest", "between")}
    fit = fit.assign(**numbers, alike=fit["alike"] & ~far)
    return fit[shown("cluster")].reset_index(drop=True)


def _opinion(
    counts: pd.DataFrame,
    courses: pd.DataFrame,
    sizes: pd.Series,
    min_count: int,
    rounded: bool,
    noun: str,
) -> SecondOpinion:
    """The second opinion at one site, from its tables and the sizes that the page shows."""
    shown: dict[str, Shown] = {}
    apart: list[dict[str, Any]] = []
    for method, rows in counts.groupby("method", sort=False):
        cells = rows.astype({"cluster": int, "group": int})
        table = cells.pivot(index="cluster", columns="group", values="patients")
        n_clusters = len(table)
        known = sizes.reindex(table.index, fill_value=0.0)
        part, number = numbered(shown_cells(table, known, min_count, rounded=rounded), n_clusters)
        shown[str(method)] = part
        seen = {cell: n for cell, n in part.cells.stack().items() if n > 0}
        for row in courses[courses["method"] == method].to_dict("records"):
            cell = int(row["cluster"]), number.get(int(row["group"]))
            if cell in seen:
                apart.append({**row, "cluster": cell[0], "group": cell[1], "patients": seen[cell]})
    every = pd.DataFrame(apart, columns=["method", *APART_COLUMNS])
    return opinion_of(shown, every, count_note(min_count, rounded), n_clusters, noun)
