"""How many clusters there are: the sites' vote, and what models with more classes suggest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from font.checks import Models, some
from font.ensemble import Ensemble
from font.errors import InputError
from font.labels import LabelPatterns, label


def vote(
    choices: Mapping[Any, int] | Iterable[int], patients: Mapping[Any, float] | None = None
) -> int:
    """The number of clusters that most sites chose for themselves; of equals, the larger one.

    A site with few patients sees fewer classes than there are. So a vote can count as the site's
    patients, but never more than the votes of all others together. Of equals it is the larger one
    because a cluster too few hides a group, while one too many can be seen to be empty or alike.

    Parameters
    ----------
    choices : {site: number}, or numbers that count alike
    patients : {site: number of patients}, optional

    Examples
    --------
    >>> vote({"MGB": 4, "VA": 5, "BWH": 4})
    4
    >>> vote({"MGB": 4, "VA": 3, "BWH": 1}, {"MGB": 900, "VA": 700, "BWH": 100})
    4
    """
    named = dict(choices) if isinstance(choices, Mapping) else dict(enumerate(choices))
    if not named:
        raise InputError("there are no votes; give at least one site's number of clusters.")
    bad = [
        v
        for v in named.values()
        if isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1
    ]
    if bad:
        raise InputError(f"votes must be whole numbers of at least 1; found {some(bad)}.")
    weights = {site: 1.0 if patients is None else float(patients[site]) for site in named}
    total = sum(weights.values())
    votes: dict[int, float] = {}
    for site, number in named.items():
        others = total - weights[site]
        counts = min(weights[site], others) if others > 0 else weights[site]
        votes[int(number)] = votes.get(int(number), 0.0) + counts
    return max(votes, key=lambda k: (votes[k], k))


def suggest_n_clusters(
    models: Mapping[int, Models], data: Mapping[Any, Any], *, seed: int = 0, **settings: Any
) -> pd.DataFrame:
    """What the spectrum suggests for local models with more classes than clusters are expected.

    Models with K classes each lead to K clusters partly by construction. Models with K + 1 to
    K + 3 classes do not restrict the spectrum; all of them in one ensemble are the best evidence
    if what they suggest is "clear" or "fair". `read_spectrum` says how often each was right in
    simulations.

    Parameters
    ----------
    models : {number of classes: {name: model}}
        For each number of classes the models of all sites, such as those fitted to choose it.
    data : {site: data}
        What the models take; every site's patients are labelled by every model.
    seed, **settings
        Of the `Ensemble`.

    Returns
    -------
    DataFrame
        One row per number of `classes` of the local models, and one for "all" together: the
        number of clusters `suggested`, how `sure` that is, and the thresholds `low` and `high`
        between which it is the same.

    Examples
    --------
    >>> from font.simulation.competitors import local_kmeans
    >>> from font.simulation.sources import simulate_gaussian
    >>> data = simulate_gaussian("homogeneous", 4, 0.05, seed=1, n_classes=3).data
    >>> models = {k: local_kmeans(data, k) for k in (4, 5)}
    >>> suggest_n_clusters(models, data)["suggested"].to_dict()
    {4: 3, 5: 3, 'all': 3}
    """
    every = {f"{name}, {k}": model for k, part in models.items() for name, model in part.items()}
    if not every:
        raise InputError("there are no models; give those of at least one number of classes.")
    labels = {site: label(every, part) for site, part in data.items()}
    groups: dict[Any, list[str]] = {k: [f"{name}, {k}" for name in models[k]] for k in models}
    rows = {}
    for classes, keys in (groups | {"all": list(every)}).items():
        patterns = LabelPatterns.from_labels({site: table[keys] for site, table in labels.items()})
        ensemble = Ensemble(None, seed=seed, **settings)
        choice = ensemble.fit({key: every[key] for key in keys}, patterns).n_clusters_choice_
        rows[classes] = {"suggested": choice.n_clusters, **choice._asdict()}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("classes")
    return table[["suggested", "sure", "low", "high"]]
