"""Courses that are drawn from patients, inside the hospital: single ones, and those of one model.

The report draws its courses from the results of sites instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.figures.courses import plot_frequencies, plot_index
from mmlca.figures.distribution import plot_state_distribution
from mmlca.figures.transitions import plot_transitions
from mmlca.study.results import about, groups
from mmlca.study.results import courses as results_of_courses
from mmlca.study.results.registry import site_results
from mmlca.study.results.shown_courses import courses_of, groups_of
from mmlca.study.results.site import ONLY, SitePatients
from mmlca.study.settings import Privacy, Site, Study
from mmlca.study.words import window_name
from mmlca.tables.clusters import describe_clusters, name_clusters
from mmlca.tables.disclosure import is_small

if TYPE_CHECKING:
    from mmlca.model.course import CourseClasses
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences

_MOST_LINES = 5000


def draw_single_courses(
    study: Study, data: Sequences, clusters: pd.Series, names: Mapping[int, str]
) -> Callable[[], Any]:
    """A function that draws the course of every patient of a site, or of 5,000 drawn at random.

    The picture shows single patients, so it must stay inside the hospital.
    """
    here = [names[k] for k in names if (clusters == k).any()]
    groups = clusters.map(names).astype(pd.CategoricalDtype(here, ordered=True))
    if len(data) > _MOST_LINES:
        rng = np.random.default_rng(study.seed)
        rows = np.sort(rng.choice(len(data), _MOST_LINES, replace=False))
        data, groups = data[rows], groups.iloc[rows]
    return partial(plot_index, data, groups, xlabel=window_name(study).capitalize())


def class_courses(
    model: MixtureMarkov | CourseClasses, data: Sequences, site: str, min_count: int
) -> tuple[pd.DataFrame, list[Callable[[], Any]]] | None:
    """The transitions by class of one model outside a study, and functions that draw its courses.

    They draw the state distribution, the most frequent courses and the transitions. None if every
    class has fewer than `min_count` patients.
    """
    classes = model.posterior_.set_index("id")["class"]
    data = data.select(list(classes.index))  # without those who lacked covariates
    if is_small(classes.value_counts(), min_count).all():
        return None
    privacy = Privacy.model_construct(min_count=min_count)
    study = Study(name="one model", sites={"site": Site()}).model_copy(
        update={"sites": {site: Site()}, "privacy": privacy}
    )
    nothing = pd.DataFrame(index=data.ids)
    patients = SitePatients(site, data, {ONLY: classes}, nothing, nothing)
    parts = (about.DATA, groups.PART, results_of_courses.PART)
    results = {site: site_results(study, patients, parts)}
    described = describe_clusters(data, classes)
    short = zip(described["cluster"], name_clusters(described, min_count), strict=True)
    names = {k: f"class {k}" if name is None else f"{k}: {name}" for k, name in short}
    courses = courses_of(results, groups_of(results, ONLY, min_count), names)
    tables, spells = courses.tables, courses.spells[results_of_courses.FREQUENT]
    return tables.shown("transitions"), [
        partial(plot, courses.infos, min_count=min_count, **arguments)
        for plot, arguments in (
            (plot_state_distribution, {"table": tables.distribution}),
            (plot_frequencies, {"table": courses.frequencies, "spells": spells}),
            (plot_transitions, {"table": tables.transitions}),
        )
    ]
