"""The courses of the classes of one model, outside a study."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.figures.courses import plot_frequencies
from mmlca.figures.distribution import plot_state_distribution
from mmlca.figures.transitions import plot_transitions
from mmlca.study.results.courses import SHARED_BY
from mmlca.tables.clusters import describe_clusters, name_clusters
from mmlca.tables.course_tables import courses_by_group
from mmlca.tables.describe import frequency_spells, sequence_frequencies
from mmlca.tables.disclosure import is_small

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences


def class_courses(
    model: MixtureMarkov, data: Sequences, site: str, min_count: int
) -> tuple[pd.DataFrame, list[Callable[[], Any]]] | None:
    """The table of transitions by class, and functions that draw the state distribution, the
    most frequent courses and the transitions.

    None if every class has fewer than `min_count` patients.
    """
    classes = model.posterior_.set_index("id")["class"]
    data = data.select(list(classes.index))  # without those who lacked covariates
    described = describe_clusters(data, classes)
    short = zip(described["cluster"], name_clusters(described, min_count), strict=True)
    names = {k: f"class {k}" if name is None else f"{k}: {name}" for k, name in short}
    order = pd.CategoricalDtype(list(names.values()), ordered=True)
    groups = {site: classes.map(names).astype(order)}
    part = {site: data}
    if is_small(classes.value_counts(), min_count).all():
        return None
    courses = courses_by_group(part, groups, min_count)
    least = max(SHARED_BY, min_count)
    frequencies = courses.with_sizes(sequence_frequencies(part, groups, 30, min_count=least))
    spells = frequency_spells(part, groups, 30, min_count=least)
    return courses.shown("transitions"), [
        lambda: plot_state_distribution(
            part, groups, table=courses.distribution, min_count=min_count
        ),
        lambda: plot_frequencies(
            part, groups, table=frequencies, spells=spells, min_count=min_count
        ),
        lambda: plot_transitions(part, groups, table=courses.transitions, min_count=min_count),
    ]
