"""Which class of a site's own model corresponds to which cluster, from what sites release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mmlca.study.results.patients import ENSEMBLE, OWN
from mmlca.study.results.site import stacked
from mmlca.tables.matching import match_by_patients, match_classes

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from mmlca.study.results.site import SiteResults


def matched_classes(results: Mapping[str, SiteResults]) -> dict[str, dict[int, int]]:
    """The number of the cluster that each class of a site's own model has in the report.

    The classes of the first site have the numbers of the clusters with which they share most
    patients; those of each other site are matched to these by their transition rates and first
    states. A class without a match has a new number. Sites without a model of their own, and all
    sites where there is no ensemble, have no classes here.

    Parameters
    ----------
    results : {site: SiteResults}
    """
    overlaps, groups = stacked(results, "overlaps"), stacked(results, "groups")
    shared = overlaps[(overlaps["view"] == ENSEMBLE) & (overlaps["other"] == OWN)]
    steps = stacked(results, "steps")
    steps = steps[steps["view"] == OWN]
    own = groups[groups["view"] == OWN]
    classes = {site: _whole(rows["group"]) for site, rows in own.groupby("site", sort=False)}
    if not classes:
        return {}
    first = next(iter(classes))
    states = results[first].tables["states"]["state"].tolist()
    clusters = _whole(groups.loc[groups["view"] == ENSEMBLE, "group"])
    here = shared[shared["site"] == first]
    labels, places = match_classes(
        clusters,
        classes,
        _grid(here, clusters, classes[first], ["group", "other_group"]),
        {site: _steps(steps[steps["site"] == site], classes[site], states) for site in classes},
    )
    return {
        site: {k: labels[place] for k, place in zip(classes[site], places[site], strict=True)}
        for site in classes
    }


def classes_everywhere(results: Mapping[str, SiteResults]) -> dict[str, dict[int, int]]:
    """The number of the cluster of each class of each site's model at all sites together.

    Parameters
    ----------
    results : {site: SiteResults}

    Returns
    -------
    dict
        {site of the model: {class, from 1: number}}; each class has the number of the cluster
        with which it shares most patients at all sites that know the model.
    """
    table = stacked(results, "classes_everywhere")
    clusters = _whole(table["cluster"])
    matched = {}
    for model, rows in table.groupby("model", sort=False):
        classes = _whole(rows["class"])
        shared = _grid(rows, clusters, classes, ["cluster", "class"])
        labels, places = match_by_patients(clusters, classes, shared)
        matched[str(model)] = {k: labels[i] for k, i in zip(classes, places, strict=True)}
    return matched


def _whole(numbers: pd.Series) -> list[int]:
    return sorted({int(number) for number in numbers})


def _grid(
    table: pd.DataFrame, rows: list[int], columns: list[int], names: list[str]
) -> NDArray[np.float64]:
    """The numbers of patients by two columns."""
    counts = table.pivot_table("patients", *names, aggfunc="sum")
    grid: NDArray[np.float64] = counts.reindex(index=rows, columns=columns).fillna(0.0).to_numpy()
    return grid


def _steps(table: pd.DataFrame, classes: list[int], states: list[str]) -> NDArray[np.float64]:
    """Steps and first states of the classes of a site's own model."""
    before, to = [*states, None], states
    cells = table[["group", "from", "to", "count"]].to_numpy()
    counts = {tuple(cell): n for *cell, n in cells}
    return np.array([[[counts.get((k, i, j), 0.0) for j in to] for i in before] for k in classes])
