"""Who is in which cluster under several rules, and which of two rules' groups correspond."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.checks import some
from mmlca.sequences import Sequences


class Membership(NamedTuple):
    """The clusters' labels, and each patient's position among them, by site."""

    labels: list[Any]
    codes: dict[str, NDArray[np.intp]]


def memberships(
    sites: Mapping[str, Sequences], clusters: Any, local: Any, models: Any
) -> dict[str, Membership]:
    """All rules that the arguments of `site_differences` give, under the clusters' names."""
    ensemble = common(sites, clusters, "clusters")
    found = {"ensemble": ensemble}
    predicted = {
        name: {site: model.predict(data) for site, data in sites.items()}
        for name, model in _checked_models(sites, models).items()
    }
    if local is None and len(predicted) == len(sites):
        local = {site: predicted[site][site] for site in sites}
    if local is not None:
        found["local"] = _matched_local(sites, local, ensemble)
    for name, labels in predicted.items():
        everywhere = common(sites, labels, "predictions")
        found[f"{name} everywhere"] = _named_after(everywhere, ensemble, list(sites))
    return found


def common(sites: Mapping[str, Sequences], given: Any, what: str) -> Membership:
    """One set of labels for all sites."""
    values = _labels_by_site(sites, given, what)
    labels = _sorted({label for part in values.values() for label in part}, what)
    place = {label: i for i, label in enumerate(labels)}
    codes = {
        site: np.array([place[label] for label in part], dtype=np.intp)
        for site, part in values.items()
    }
    return Membership(labels, codes)


def _matched_local(sites: Mapping[str, Sequences], local: Any, ensemble: Membership) -> Membership:
    """Each site's own classes, those of later sites under the names of the first one's."""
    own = {site: common({site: data}, local, "local classes") for site, data in sites.items()}
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


def _named_after(given: Membership, ensemble: Membership, sites: list[str]) -> Membership:
    """The same groups under the labels of the clusters that they share most patients with."""
    n, k = len(ensemble.labels), len(given.labels)
    shared = np.zeros((n, k))
    for site in sites:
        np.add.at(shared, (ensemble.codes[site], given.codes[site]), 1)
    labels = list(ensemble.labels)
    place = _places(-shared, labels, [("own", label) for label in given.labels])
    used = np.unique(place)
    codes = {site: np.searchsorted(used, place[given.codes[site]]) for site in given.codes}
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


# --- counts ------------------------------------------------------------------------------


class Cells(NamedTuple):
    """Every step, and every first state, of every patient: who and which of the S·(S + 1)."""

    patient: NDArray[np.intp]
    cell: NDArray[np.intp]


def cells(data: Sequences) -> Cells:
    """Steps i·S + j, with both states observed, and first states S² + j."""
    s = data.n_states
    before, after = data.codes[:, :-1], data.codes[:, 1:]
    patient, time = np.nonzero((before >= 0) & (after >= 0))
    step = before[patient, time].astype(np.intp) * s + after[patient, time]
    begins = np.flatnonzero(data.codes[:, 0] >= 0)
    first = s * s + data.codes[begins, 0].astype(np.intp)
    return Cells(np.concatenate([patient, begins]), np.concatenate([step, first]))


def _class_parameters(
    data: Sequences, codes: NDArray[np.intp], n_classes: int
) -> NDArray[np.float64]:
    """Empirical first states and transitions, a row a class; even where nobody informs them."""
    steps = cells(data)
    n_cells = data.n_states * (data.n_states + 1)
    count = np.bincount(
        codes[steps.patient] * n_cells + steps.cell,
        weights=data.weights[steps.patient],
        minlength=n_classes * n_cells,
    )
    found = rates(count.astype(float).reshape(n_classes, data.n_states + 1, data.n_states))
    found[np.isnan(found)] = 1 / data.n_states
    return found.reshape(n_classes, -1)


def rates(count: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts as shares of their row; NaN in a row without any."""
    total = count.sum(axis=-1, keepdims=True)
    share = np.full_like(count, np.nan)
    np.divide(count, total, out=share, where=total > 0)
    return share


# --- checks ------------------------------------------------------------------------------


def checked_sites(sequences: Any, at_least: int = 2) -> dict[str, Sequences]:
    if not isinstance(sequences, Mapping):
        raise TypeError(
            f"sequences must be a dict {{site: Sequences}}, found {type(sequences).__name__}; "
            "put each site's patients under the site's name."
        )
    sites = dict(sequences)
    if len(sites) < at_least:
        raise ValueError(
            f"found {len(sites)} site{'' if len(sites) == 1 else 's'} ({some(sites)}), at least "
            f"{at_least} are needed; give sequences as {{site: Sequences}}."
        )
    for site, data in sites.items():
        if not isinstance(data, Sequences):
            raise TypeError(f"site {site!r} holds {type(data).__name__}, Sequences are needed.")
        if not data.weights.sum() > 0:
            raise ValueError(f"site {site!r} has no patients; leave it out.")
    first, *others = sites
    for site in others:
        if sites[site].states != sites[first].states:
            raise ValueError(
                f"the states differ: {list(sites[first].states)} at {first!r}, "
                f"{list(sites[site].states)} at {site!r}; build all with the same states=."
            )
    return sites


def _checked_models(sites: Mapping[str, Sequences], models: Any) -> dict[str, Any]:
    if models is None:
        return {}
    if not isinstance(models, Mapping):
        raise TypeError(
            f"models must be a dict {{site: model}}, found {type(models).__name__}; name the site "
            "that each model is from."
        )
    unknown = [name for name in models if name not in sites]
    if unknown:
        raise ValueError(
            f"models are given for {some(unknown)}, but the sites are {some(sites)}; give one "
            "model a site under the site's name."
        )
    for name, model in models.items():
        if not hasattr(model, "predict"):
            raise TypeError(
                f"the model of {name!r} is {type(model).__name__}, without predict; give a fitted "
                "MixtureMarkov."
            )
    return dict(models)


def _labels_by_site(
    sites: Mapping[str, Sequences], given: Any, what: str
) -> dict[str, list[Hashable]]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"sequences come by site, so {what} must be a dict {{site: Series by id}} too; found "
            f"{type(given).__name__}."
        )
    absent = [site for site in sites if site not in given]
    if absent:
        raise ValueError(f"{what} are missing for the sites {some(absent)}; give them for all.")
    return {site: _labels(data, given[site], what, site) for site, data in sites.items()}


def _labels(data: Sequences, given: Any, what: str, site: str) -> list[Hashable]:
    """Each patient's label as a plain value."""
    where = f" at site {site!r}" if site else ""
    if isinstance(given, pd.Series):
        if not given.index.is_unique:
            twice = given.index[given.index.duplicated()].unique()
            raise ValueError(
                f"{what} name {len(twice):,} patients{where} more than once ({some(twice)}); give "
                "one label for each."
            )
        place = given.index.get_indexer(data.ids)
        if (place < 0).any():
            raise ValueError(
                f"{what} are missing for {(place < 0).sum():,} of {len(data):,} patients{where} "
                f"({some(data.ids[place < 0])}); give one label for each, by id."
            )
        labels = given.iloc[place]
    else:
        labels = pd.Series(np.asarray(given))
        if len(labels) != len(data):
            raise ValueError(
                f"found {len(labels):,} {what} for {len(data):,} patients{where}; give one for "
                "each, or a Series indexed by id."
            )
    unknown = labels.isna().to_numpy()
    if unknown.any():
        raise ValueError(
            f"{what} are missing for {unknown.sum():,} of {len(data):,} patients{where} "
            f"({some(data.ids[unknown])}); give one label for each, by id."
        )
    if labels.dtype.kind == "f" and (labels == labels.round()).all():
        labels = labels.astype(int)
    plain: list[Hashable] = labels.tolist()
    return plain


def _sorted(labels: set[Any], what: str) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError:
        raise TypeError(
            f"{what} mix kinds of labels ({some(labels)}); use whole numbers or text throughout."
        ) from None
