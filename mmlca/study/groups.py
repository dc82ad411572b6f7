"""The groups of a study's patients under every membership, and what these groups are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.tables.matching import memberships

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis


def views(analysis: Analysis) -> list[tuple[str | None, dict[str, pd.Series]]]:
    """The memberships that the report shows, by name; one without a name for a single site."""
    if analysis.ensemble is None:
        return [(None, analysis.clusters)]
    return [("ensemble", analysis.clusters), ("local", analysis.local)]


def course_views(analysis: Analysis) -> list[tuple[str | None, dict[str, pd.Series]]]:
    """The same and the refined clusters, for what is computed from rounded counts alone."""
    more = [("refined", analysis.refined_clusters)] if analysis.refined is not None else []
    return [*views(analysis), *more]


def all_memberships(analysis: Analysis) -> dict[str | None, dict[str, pd.Series]]:
    """The group of each patient under every rule; see `course_views` for those in the report."""
    rules = dict(course_views(analysis))
    if analysis.ensemble is None:
        return rules
    data = analysis.sequences
    everywhere = {name: {site: analysis.labels[site][name] for site in data} for name in data}
    for name, rule in memberships(data, analysis.clusters, None, everywhere).items():
        labels = {
            site: pd.Series([rule.labels[i] for i in codes], data[site].ids, name="cluster")
            for site, codes in rule.codes.items()
        }
        rules.setdefault(name, labels)
    return rules


def named_groups(
    analysis: Analysis, groups: Mapping[str, pd.Series], view: str | None
) -> dict[str, pd.Series]:
    """Each patient's group by name, such as "1: TNFi persisters", in the order of the numbers."""
    names = analysis.group_names[view]
    named = {}
    for site, part in groups.items():
        here = {*part.unique()}
        order = pd.CategoricalDtype([n for g, n in names.items() if g in here], ordered=True)
        named[site] = part.map(names).astype(order)
    return named


def cluster_names(analysis: Analysis) -> dict[Any, str]:
    """What the clusters are called, or the classes where there is no ensemble."""
    return analysis.group_names[views(analysis)[0][0]]


def own_classes(analysis: Analysis) -> dict[str, pd.Series]:
    """The class of each patient by the model of the site, numbered from 1."""
    return {site: labels[site] + 1 for site, labels in analysis.labels.items()}


def class_names(analysis: Analysis, site: str) -> dict[int, str]:
    """The classes of a site's own model, with short names from their own courses."""
    labels, matched = analysis.labels[site][site], analysis.local[site]
    classes = {}
    for k in range(analysis.own[site].params_.n_classes):
        here = matched[labels == k]
        short = analysis.own_names[site].get(here.iloc[0]) if len(here) else None
        classes[k + 1] = f"class {k + 1}" if short is None else f"class {k + 1}: {short}"
    return classes
