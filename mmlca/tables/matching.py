"""Cluster memberships under several rules, and the matching of their groups to the clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.sequences.checks import some
from mmlca.tables.counts import cluster_steps, rates
from mmlca.tables.groups import LabelsBySite, SequencesBySite, plain_labels


class Membership(NamedTuple):
    """The clusters' labels, and each patient's position among them, by site."""

    labels: list[Any]
    codes: dict[str, NDArray[np.intp]]


def memberships(
    sites: SequencesBySite,
    clusters: LabelsBySite,
    local: LabelsBySite | None,
    models: Mapping[str, Any] | None,
) -> dict[str, Membership]:
    """All rules that the arguments of `site_differences` give, under the clusters' names."""
    ensemble = common_membership(sites, clusters, "clusters")
    rules = {"ensemble": ensemble}
    predicted = {
        name: model
        if isinstance(model, Mapping)
        else {site: model.predict(data) for site, data in sites.items()}
        for name, model in _checked_models(sites, models).items()
    }
    if local is None and len(predicted) == len(sites):
        local = {site: predicted[site][site] for site in sites}
    if local is not None:
        rules["local"] = _matched_local(sites, local, ensemble)
    for name, labels in predicted.items():
        everywhere = common_membership(sites, labels, "predictions")
        rules[f"{name} everywhere"] = _named_after(everywhere, ensemble, list(sites))
    return rules


def common_membership(sites: SequencesBySite, labels: LabelsBySite, name: str) -> Membership:
    """One set of labels for all sites."""
    values = plain_labels(sites, labels, name)
    distinct = {label for part in values.values() for label in part}
    try:
        ordered = sorted(distinct)  # type: ignore[type-var]
    except TypeError:
        raise TypeError(
            f"{name} mix kinds of labels ({some(distinct)}); use whole numbers or text throughout."
        ) from None
    place = {label: i for i, label in enumerate(ordered)}
    codes = {
        site: np.array([place[label] for label in part], dtype=np.intp)
        for site, part in values.items()
    }
    return Membership(ordered, codes)


def _matched_local(sites: SequencesBySite, local: LabelsBySite, ensemble: Membership) -> Membership:
    """Each site's own classes, those of later sites under the names of the first one's."""
    own = {
        site: common_membership({site: data}, local, "local classes")
        for site, data in sites.items()
    }
    first = next(iter(sites))
    labels, places = match_classes(
        ensemble.labels,
        {site: classes.labels for site, classes in own.items()},
        _shared(ensemble, own[first], [first]),
        {
            site: cluster_steps(data, own[site].codes[site], len(own[site].labels)).steps
            for site, data in sites.items()
        },
    )
    return Membership(labels, {site: places[site][own[site].codes[site]] for site in sites})


def _named_after(classes: Membership, ensemble: Membership, sites: list[str]) -> Membership:
    """The same groups under the labels of the clusters that they share most patients with."""
    shared = _shared(ensemble, classes, sites)
    labels, place = match_by_patients(ensemble.labels, classes.labels, shared)
    return Membership(labels, {site: place[codes] for site, codes in classes.codes.items()})


def _shared(ensemble: Membership, classes: Membership, sites: list[str]) -> NDArray[np.float64]:
    """The number of patients by cluster and class."""
    shared = np.zeros((len(ensemble.labels), len(classes.labels)))
    for site in sites:
        np.add.at(shared, (ensemble.codes[site], classes.codes[site]), 1)
    return shared


# --- from counts alone --------------------------------------------------------------------


def match_by_patients(
    clusters: list[Any], classes: list[Any], shared: NDArray[np.float64]
) -> tuple[list[Any], NDArray[np.intp]]:
    """Match classes to the clusters with which they share most patients in total.

    Parameters
    ----------
    clusters, classes : lists of K and C labels
    shared : (K, C)
        Numbers of patients by cluster and class.

    Returns
    -------
    list, (C,) array
        The labels of the clusters that are matched, in their order, and behind them new ones if
        there are more classes than clusters; and the position of each class among these.

    Examples
    --------
    >>> match_by_patients([1, 2, 3], [1, 2], np.array([[1, 9], [0, 0], [8, 2]]))
    ([1, 3], array([1, 0]))
    """
    labels = list(clusters)
    place = _places(-shared, labels, [("own", label) for label in classes])
    used, position = np.unique(place, return_inverse=True)
    return [labels[i] for i in used], position


def match_classes(
    clusters: list[Any],
    classes: Mapping[str, list[Any]],
    shared: NDArray[np.float64],
    steps: Mapping[str, NDArray[np.float64]],
) -> tuple[list[Any], dict[str, NDArray[np.intp]]]:
    """Match the classes of every site's own model to the clusters.

    Those of the first site are matched by the patients that they share with the clusters. Those of
    each other site are matched to the first site's so that the sum of the distances between
    transition rates and shares of first states is smallest.

    Parameters
    ----------
    clusters : list of K labels
    classes : {site: list of C labels}
    shared : (K, C)
        Numbers of patients of the first site by cluster and class.
    steps : {site: (C, S + 1, S)}
        Of each class, first states in the last row; see `cluster_steps`.

    Returns
    -------
    list, {site: (C,) array}
        Labels, and the position of each class among these, as from `match_by_patients`.
    """
    first, *others = classes
    labels, place = match_by_patients(clusters, classes[first], shared)
    places = {first: place}
    in_order = np.zeros((len(labels), *steps[first].shape[1:]))
    in_order[place] = steps[first]
    reference = _class_parameters(in_order)
    for site in others:
        parameters = _class_parameters(steps[site])
        far = np.linalg.norm(reference[:, None] - parameters[None], axis=2)
        places[site] = _places(far, labels, [(site, label) for label in classes[site]])
    return labels, places


def _places(
    cost: NDArray[np.float64], labels: list[Any], own: list[tuple[str, Any]]
) -> NDArray[np.intp]:
    """The row matched to each column; a column without one gets a new label at the end."""
    from scipy.optimize import linear_sum_assignment

    place = np.full(cost.shape[1], -1, dtype=np.intp)
    rows, columns = linear_sum_assignment(cost)
    place[columns] = rows
    for column in np.flatnonzero(place < 0):
        place[column] = len(labels)
        site, label = own[column]
        whole = all(isinstance(known, int) for known in labels)
        labels.append(max(labels, default=0) + 1 if whole else f"{site}: {label}")
    return place


def _class_parameters(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Empirical transitions and first states, one row per class; even where nobody has any."""
    share = rates(steps)
    share[np.isnan(share)] = 1 / steps.shape[-1]
    return share.reshape(len(steps), -1)


def _checked_models(sites: SequencesBySite, models: Any) -> dict[str, Any]:
    if models is None:
        return {}
    if not isinstance(models, Mapping):
        raise TypeError(
            f"models must be a dict {{site: model}}, found {type(models).__name__}; name the site "
            "that each model is from."
        )
    unknown = [name for name in models if name not in sites]
    if unknown:
        raise InputError(
            f"models are given for {some(unknown)}, but the sites are {some(sites)}; give one "
            "model per site under the site's name."
        )
    for name, model in models.items():
        if not isinstance(model, Mapping) and not hasattr(model, "predict"):
            raise TypeError(
                f"the model of {name!r} is {type(model).__name__}, without predict; give a fitted "
                "MixtureMarkov, or its labels as a dict {site: labels}."
            )
    return dict(models)
