"""How many clusters there are, from local models that have more classes than that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from font.ensemble import Ensemble
from font.errors import InputError
from font.labels import LabelPatterns, label
from font.types import Models


def suggest_n_clusters(
    models: Mapping[int, Models], data: Mapping[Any, Any], *, seed: int = 0, **settings: Any
) -> pd.DataFrame:
    """What the spectrum suggests for local models with more classes than clusters are expected.

    Models with K classes each partly impose the number K. Models with K + 1 to K + 3 classes
    leave the spectrum free; all of them in one ensemble are the best evidence, where what they
    suggest is "clear" or "fair". `read_spectrum` says how often each was right in simulations.

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
    >>> from font import local_kmeans, simulate_gaussian
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
