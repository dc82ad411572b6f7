"""Cluster memberships under several rules, and the matching of their groups to the clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.sequences.checks import some
from mmlca.sequences.type import Sequences
from mmlca.tables.counts import pattern_steps, rates
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
    first, *others = sites
    named = _named_after(own[first], ensemble, [first])
    labels, codes = list(named.labels), dict(named.codes)
    reference = _class_parameters(sites[first], codes[first], len(labels))
    for site in others:
        classes = own[site]
        at_site = classes.codes[site]
        parameters = _class_parameters(sites[site], at_site, len(classes.labels))
        far = np.linalg.norm(reference[:, None] - parameters[None], axis=2)
        place = _places(far, labels, [(site, label) for label in classes.labels])
        codes[site] = place[at_site]
    return Membership(labels, codes)


def _named_after(classes: Membership, ensemble: Membership, sites: list[str]) -> Membership:
    """The same groups under the labels of the clusters that they share most patients with."""
    n, k = len(ensemble.labels), len(classes.labels)
    shared = np.zeros((n, k))
    for site in sites:
        np.add.at(shared, (ensemble.codes[site], classes.codes[site]), 1)
    labels = list(ensemble.labels)
    place = _places(-shared, labels, [("own", label) for label in classes.labels])
    used = np.unique(place)
    codes = {site: np.searchsorted(used, place[classes.codes[site]]) for site in classes.codes}
    return Membership([labels[i] for i in used], codes)


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
        labels.append(max(labels) + 1 if whole else f"{site}: {label}")
    return place


def _class_parameters(
    data: Sequences, codes: NDArray[np.intp], n_classes: int
) -> NDArray[np.float64]:
    """Empirical transitions and first states, one row per class; even where nobody has any."""
    weight = np.zeros((n_classes, len(data.patterns)))
    np.add.at(weight, (codes, data.patterns.inverse), data.weights)
    count = weight @ pattern_steps(data)
    share = rates(count.reshape(n_classes, data.n_states + 1, data.n_states))
    share[np.isnan(share)] = 1 / data.n_states
    return share.reshape(n_classes, -1)


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
