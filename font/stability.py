"""How far to trust a result: leave-one-site-out, resampling, and the number of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import Floats, Models, check_dict, some, whole_number
from font.clustering import cluster_patterns, distances_to, positions
from font.ensemble import Ensemble, site_of
from font.errors import InputError
from font.labels import LabelPatterns, distinct_rows, label
from font.weights import weigh

STABLE, DISSOLVED = 0.75, 0.5  # Jaccard similarities of Hennig (2007)


def influence(ensemble: Ensemble) -> pd.DataFrame:
    """How many patients would change cluster if a site had not taken part.

    A site takes its models and its patients with it; a model belongs to the site of its name up to
    the last "/" ("MGB" for "MGB/1"). The ensemble is fitted again from the pattern table without
    them, clusters are paired with the present ones, and every patient is placed again, the absent
    site's too.

    Returns
    -------
    DataFrame
        One row per site left out: `models` that went with it, `changed` patients, their `share`,
        and the changed patients at each site. NaN where the rest could not be clustered.
    """
    patterns = _patterns_of(ensemble)
    if ensemble.clusters_ is None:
        raise InputError('with method="latent" no pattern has a cluster of its own to compare.')
    owner = {name: site_of(name) for name in ensemble.models_}
    left_out = list(dict.fromkeys([*owner.values(), *patterns.sites]))
    if len(left_out) < 2:
        raise InputError(
            f"all models and patients come from {some(left_out)}; leaving a site out needs "
            "two sites at least."
        )
    rows = {}
    with clustering.one_thread():
        for site in left_out:
            kept = [m for m, name in enumerate(ensemble.models_) if owner[name] != site]
            here = np.array([s != site for s in patterns.sites])
            moved = _moved(ensemble, kept, here)
            total = np.nan if moved is None else moved.sum()
            by_site = np.full(len(patterns.sites), np.nan) if moved is None else moved
            rows[site] = [
                len(ensemble.models_) - len(kept),
                total,
                total / patterns.n_patients,
                *by_site,
            ]
    columns = ["models", "changed", "share", *(f"changed at {site}" for site in patterns.sites)]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return frame.rename_axis("without")


def _moved(ensemble: Ensemble, kept: list[int], here: NDArray[np.bool_]) -> Floats | None:
    """Patients of each site who change cluster, or None if the rest cannot be clustered."""
    patterns, old = _patterns_of(ensemble), np.asarray(ensemble.clusters_)
    counts = patterns.counts[:, here].sum(axis=1)
    if not kept or not counts.any():
        return None
    rows, number = distinct_rows([patterns.patterns[:, m] for m in kept])
    weight = np.bincount(number, weights=counts, minlength=len(rows))
    fitted = weight > 0
    names = [ensemble.models_[m] for m in kept]
    distances = {name: ensemble.class_distances_[name] for name in names}
    offsets = np.cumsum([0, *map(len, distances.values())])
    total = weighing.cross_tabulate(list(rows[fitted].T), offsets, weight[fitted])
    try:
        weighed = weigh(
            distances, total, ensemble.weights, ensemble.reliability, ensemble._shares[kept]
        )
        found = cluster_patterns(
            weighed,
            rows[fitted],
            weight[fitted, None],
            ensemble.n_clusters_,
            ensemble.method,
            ensemble.seed,
        )
    except InputError:  # too few patterns differ without the site
        return None
    points = positions(rows, offsets, found.axes)
    clusters = np.argmin(distances_to(points, found.centres), axis=1)
    clusters[fitted] = found.labels
    paired = _paired(old, clusters[number], ensemble.n_clusters_, patterns.counts.sum(axis=1))
    moved: Floats = patterns.counts[paired != old].sum(axis=0).astype(float)
    return moved


@dataclass(frozen=True, eq=False)
class ClusterStability:
    """What `bootstrap_clusters` gives.

    `clusters` has one row per cluster, from 1: `patients`, mean `jaccard` similarity to the cluster
    in the replicates, and the shares of replicates where it was `found_again` (similarity of at
    least 0.75) or `dissolved` (below 0.5). `shares` has for each site and cluster the `share` of
    the site's patients, its standard error `se`, and the limits `low` and `high`. `kept` is for
    each patient, by site, the share of replicates that left them in their cluster. `n_failed`
    replicates could not be clustered and do not count.
    """

    clusters: pd.DataFrame
    shares: pd.DataFrame
    kept: dict[Any, pd.Series]
    n_failed: int


def bootstrap_clusters(
    data: Mapping[Any, Any],
    fit: Callable[[Mapping[Any, Any], int], Models],
    ensemble: Ensemble,
    n: int = 50,
    seed: int = 0,
    *,
    level: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
) -> ClusterStability:
    """Repeat everything from the models to the clusters on resampled patients.

    Each replicate draws every site's patients with replacement, fits the models and the ensemble
    anew, places all original patients, and pairs its clusters with those of the whole data. It
    needs all sites' data in one process: for a simulation, or a study whose data are together.

    Parameters
    ----------
    data : {site: data}
        Sequences, or anything with `reweight(weights)`; else arrays or DataFrames, whose rows are
        drawn.
    fit : function ({site: data}, seed) → {name: model}
        Fits the models, to the sites or to pseudo-sites of them.
    ensemble : Ensemble
        Its settings are used; it need not be fitted, and is not changed.
    n : number of replicates
    seed : int
    level : of the intervals
    progress : called with the number of replicates done and n

    Returns
    -------
    ClusterStability
        With the tables `clusters` and `shares`.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> rng = np.random.default_rng(1)
    >>> sites = {s: rng.normal(size=(60, 1)) + 9 * (np.arange(60) % 2)[:, None] for s in "AB"}
    >>> def fit(data, seed):
    ...     return {s: KMeans(2, n_init=1, random_state=seed).fit(x) for s, x in data.items()}
    >>> bootstrap_clusters(sites, fit, Ensemble(2), n=5).clusters["found_again"].tolist()
    [1.0, 1.0]
    """
    whole_number(n, 2, "n")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, such as 0.95; found {level!r}.")
    check_dict(data, "data must be a dict {site: data}")
    sites = list(data)
    sizes = [len(part) for part in data.values()]
    seeds = np.random.SeedSequence(seed).generate_state(n + 1)
    everyone = [np.ones(size, dtype=np.int64) for size in sizes]
    whole, tables = _clusters(data, everyone, fit, ensemble, int(seeds[0]), ensemble.n_clusters)
    mine = np.concatenate([whole.predict(tables[site]).to_numpy() for site in sites])
    replicates = []
    for number in range(1, n + 1):
        found = _replicate(data, fit, ensemble, int(seeds[number]), mine, whole.n_clusters_)
        if found is not None:
            replicates.append(found)
        if progress is not None:
            progress(number, n)
    n_failed = n - len(replicates)
    if len(replicates) < 2:
        raise InputError(
            f"{n_failed} of {n} resamples could not be clustered; ask for fewer clusters."
        )
    jaccard, sample, kept = (np.array(part) for part in zip(*replicates, strict=True))
    tail = (1 - level) / 2
    low, high = np.quantile(sample, [tail, 1 - tail], axis=0)
    cluster = 1 + np.arange(whole.n_clusters_)
    parts = np.split(mine, np.cumsum(sizes)[:-1])
    observed = np.array([np.bincount(part, minlength=len(cluster)) for part in parts])
    by_cluster = {
        "cluster": cluster,
        "patients": observed.sum(axis=0),
        "jaccard": jaccard.mean(axis=0),
        "found_again": (jaccard >= STABLE).mean(axis=0),
        "dissolved": (jaccard < DISSOLVED).mean(axis=0),
    }
    by_site = {
        "site": np.repeat(np.array(sites, dtype=object), len(cluster)),
        "cluster": np.tile(cluster, len(sites)),
        "share": (observed / observed.sum(axis=1, keepdims=True)).ravel(),
        "se": sample.std(axis=0, ddof=1).ravel(),
        "low": low.ravel(),
        "high": high.ravel(),
    }
    shares = np.split(kept.mean(axis=0), np.cumsum(sizes)[:-1])
    by_patient = {
        site: pd.Series(share, index=tables[site].index, name="kept")
        for site, share in zip(sites, shares, strict=True)
    }
    return ClusterStability(pd.DataFrame(by_cluster), pd.DataFrame(by_site), by_patient, n_failed)


def _replicate(
    data: Mapping[Any, Any],
    fit: Callable[[Mapping[Any, Any], int], Models],
    ensemble: Ensemble,
    seed: int,
    mine: NDArray[np.int64],
    k: int,
) -> tuple[Floats, Floats, NDArray[np.bool_]] | None:
    """Clusters of resampled patients, compared with those (N,) of the whole data.

    The Jaccard similarity of each cluster, the clusters' shares of each site's resample, and who
    stays in the cluster; None if the resample cannot be clustered.
    """
    rng = np.random.default_rng(seed)
    sizes = [len(part) for part in data.values()]
    times = [rng.multinomial(size, np.full(size, 1 / size)) for size in sizes]
    try:
        other, labels = _clusters(data, times, fit, ensemble, seed, k)
    except InputError:  # too few patterns differ in the resample
        return None
    theirs = [other.predict(table).to_numpy() for table in labels.values()]
    paired = _paired(mine, np.concatenate(theirs), k)
    belongs, same = mine[:, None] == np.arange(k), paired[:, None] == np.arange(k)
    both, either = (belongs & same).sum(axis=0), (belongs | same).sum(axis=0)
    counts = np.zeros((len(sizes), k))
    np.add.at(counts, (np.repeat(np.arange(len(sizes)), sizes), paired), np.concatenate(times))
    shares = counts / counts.sum(axis=1, keepdims=True)
    return both / np.maximum(either, 1), shares, paired == mine


def _clusters(
    data: Mapping[Any, Any],
    times: list[NDArray[np.int64]],
    fit: Callable[[Mapping[Any, Any], int], Models],
    ensemble: Ensemble,
    seed: int,
    n_clusters: int | None,
) -> tuple[Ensemble, dict[Any, pd.DataFrame]]:
    """An ensemble of models of resampled sites, and the labels of all their original patients."""
    drawn = {
        site: _resampled(part, count)
        for (site, part), count in zip(data.items(), times, strict=True)
    }
    models = fit(drawn, seed)
    labels = {site: label(models, part) for site, part in data.items()}
    counted = {
        site: table.take(np.repeat(np.arange(len(table)), count))
        for (site, table), count in zip(labels.items(), times, strict=True)
    }
    fitted = copy(ensemble)
    fitted.n_clusters = n_clusters
    return fitted.fit(models, counted), labels


def _resampled(part: Any, times: NDArray[np.int64]) -> Any:
    """Data in which each patient occurs as often as drawn: by weight, or by row."""
    if hasattr(part, "reweight"):
        return part.reweight(times * np.asarray(getattr(part, "weights", 1.0)))
    rows = np.repeat(np.arange(len(times)), times)
    return part.take(rows) if isinstance(part, pd.DataFrame) else np.asarray(part)[rows]


def _paired(
    reference: NDArray[Any], clusters: NDArray[Any], k: int, patients: Any = 1
) -> NDArray[np.intp]:
    """Clusters renumbered so that most patients keep theirs."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((k, k))
    np.add.at(table, (reference, clusters), patients)
    partner = np.empty(k, dtype=np.intp)
    old, new = linear_sum_assignment(-table)
    partner[new] = old
    paired: NDArray[np.intp] = partner[clusters]
    return paired


def _patterns_of(ensemble: Ensemble) -> LabelPatterns:
    if ensemble.patterns_ is None:
        raise InputError(
            "this needs the counts of label patterns, which cross-tables and the ensemble file do "
            "not have; use an ensemble fitted to them."
        )
    return ensemble.patterns_


# --- the number of clusters -------------------------------------------------------------------


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
    if what they suggest is "clear" or "fair".

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
    >>> from sklearn.cluster import KMeans
    >>> from font.simulation.sources import simulate_gaussian
    >>> data = simulate_gaussian("homogeneous", 4, 0.05, seed=1, n_classes=3).data
    >>> models = {k: {site: KMeans(k, n_init=10, random_state=1).fit(x)
    ...               for site, x in data.items()} for k in (4, 5)}
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
