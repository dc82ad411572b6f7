"""One replicate of the simulation study: data, local models, labels, then every method on them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import Floats, class_parameters
from font.clustering import TooManyClusters, one_thread
from font.ensemble import Ensemble
from font.exchange.disclosure import MIN_COUNT, label_unit, round_counts, shared_draws
from font.labels import CrossTables, LabelPatterns, label
from font.models import wrap
from font.refinement import refine_clusters
from font.simulation.competitors import by_site, consensus, k_fed, rand_index
from font.weights import class_distances

if TYPE_CHECKING:
    from font.simulation.sources import Source


MEASURES = ("ari", "correlation", "concordance", "angle", "suggested", "bad_weight")
# the tables see nothing but cross-tables of labels, rounded at random at each site
VARIANTS = (
    "FONT centred",
    "FONT sparse",
    "FONT prior",
    "FONT any K",
    "tables kmeans",
    "tables latent",
)
MODELS: dict[str, Any] = {
    "n_local": None,
    "resamples": 0,
    "noise_sites": 0,
    "adversarial_sites": 0,
}
_DOUBT = 0.25


def replicate_rows(
    source: Source, scenario: Mapping[str, Any], replicate: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One row per method, with the MEASURES that it has."""
    with one_thread():
        return _rows(source, scenario, replicate, options)


def _rows(
    source: Source, scenario: Mapping[str, Any], replicate: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    arguments = {name: value for name, value in scenario.items() if name not in MODELS}
    # the data do not depend on the models' settings, so that these are compared on the same,
    # nor on whether a default was spelled out
    own = {name: v for name, v in arguments.items() if source.defaults.get(name, ...) != v}
    stream = [options["seed"], replicate, number_of(own)]
    sites = source.simulate(np.random.default_rng([0, *stream]), **arguments)
    rng = np.random.default_rng([1, *stream])
    everyone = source.join(list(sites.data.values()))
    models, table, bad, template = _local_models(
        source, sites, everyone, MODELS | dict(scenario), options, rng
    )
    seed = int(rng.integers(2**31))
    truth = np.concatenate(list(sites.truth.values()))
    labels, k = {"all": table}, len(sites.means)
    patterns = LabelPatterns.from_labels(labels)
    scores = np.array([rand_index(table[name], truth) for name in table])
    cosines = true_cosines(models, table, truth, sites.means)
    clusters: dict[str, Any] = {}
    rows = []
    for method in options["methods"]:
        row: dict[str, Any] = {"replicate": replicate, "method": method}
        row |= dict.fromkeys(MEASURES, np.nan)
        if method == "local":
            row["ari"] = float(scores.mean())
        elif method == "best local":
            row["ari"] = float(scores.max())
        elif method.startswith("FONT refined"):
            ensemble = _fit_at_most(k, partial(_fitted, "FONT", models, patterns, bad, seed))
            rounds = method.removeprefix("FONT refined ")
            begin = by_site(ensemble.predict(table).to_numpy(), sites.truth)
            placed = _refined(template, sites, begin, ensemble.n_clusters_, rounds)
            row["ari"] = rand_index(placed, truth)
        elif method.startswith("FONT"):
            ensemble = _fit_at_most(k, partial(_fitted, method, models, patterns, bad, seed))
            row["ari"] = rand_index(ensemble.predict(table), truth)
            row["suggested"] = ensemble.n_clusters_choice_.n_clusters
            w = ensemble.weights_.to_numpy()
            row["correlation"] = _correlation(w, scores)
            row["concordance"] = _correlation(w, cosines)
            row["angle"] = _angle(w, cosines)
            row["bad_weight"] = _bad_weight(ensemble.weights_, bad)
        elif method.startswith("tables"):
            fit = partial(_from_tables, method, models, by_site(table, sites.truth), seed)
            placed, ensemble = _fit_at_most(k, fit)
            row["ari"] = rand_index(placed, truth)
            row["bad_weight"] = _bad_weight(ensemble.weights_, bad)
        else:
            if method not in clusters:
                clusters |= _competitor(method, source, sites, everyone, labels, options, seed)
            row["ari"] = rand_index(clusters[method], truth)
        rows.append(row)
    return rows


def _fit_at_most(k: int, fit: Callable[[int], Any]) -> Any:
    """`fit(k)`, or with fewer clusters where all models together distinguish fewer."""
    try:
        return fit(k)
    except TooManyClusters as error:
        return fit(error.n_positions)


def _fitted(
    method: str,
    models: Mapping[str, Floats],
    patterns: LabelPatterns,
    bad: list[str],
    seed: int,
    n_clusters: int,
) -> Ensemble:
    if method == "FONT any K":
        return Ensemble(None, seed=seed).fit(models, patterns)
    weights = method.removeprefix("FONT").strip() or "spectral"
    reliability = None
    if weights == "prior":
        reliability = {name: _DOUBT if name in bad else 1.0 for name in models}
    ensemble = Ensemble(n_clusters, weights=weights, reliability=reliability, seed=seed)
    return ensemble.fit(models, patterns)


def _from_tables(
    method: str,
    models: Mapping[str, Floats],
    labels: dict[str, pd.DataFrame],
    seed: int,
    n_clusters: int,
) -> tuple[NDArray[np.int64], Ensemble]:
    """Each site's patients placed by itself, from rounded cross-tables of all sites' labels."""
    tables = CrossTables.from_labels(labels, {name: len(beta) for name, beta in models.items()})
    draws = np.random.default_rng(seed)
    unit = label_unit(MIN_COUNT, len(models))
    rounded = {
        site: round_counts(exact, unit, shared_draws(exact, tables.offsets, draws)).astype(float)
        for site, exact in tables.tables.items()
    }
    ensemble = Ensemble(n_clusters, method=method.removeprefix("tables "), seed=seed)
    ensemble.fit(models, CrossTables(tables.models, tables.n_classes, rounded))
    placed = [ensemble.predict(table).to_numpy() for table in labels.values()]
    return np.concatenate(placed), ensemble


def _refined(
    template: Any, sites: Any, clusters: Mapping[str, NDArray[Any]], k: int, rounds: str
) -> NDArray[Any]:
    """Everyone's clusters after a refinement with so many rounds."""
    number: int | str = rounds if rounds == "converge" else int(rounds)
    with warnings.catch_warnings():  # a slow run does not matter among a thousand
        warnings.simplefilter("ignore", UserWarning)
        result = refine_clusters(template, sites.data, clusters, k, number)
    return np.concatenate([result.predict(part, site) for site, part in sites.data.items()])


def _competitor(
    method: str,
    source: Source,
    sites: Any,
    everyone: Any,
    labels: dict[str, pd.DataFrame],
    options: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """The clusters of everyone under this method, and under others that come with it."""
    k = len(sites.means)
    if method == "consensus":
        return {method: _fit_at_most(k, lambda n: consensus(labels, n, seed=seed))["all"]}
    if method.startswith("pooled"):
        fit_groups = getattr(source, "fit_groups", None)
        if method == "pooled site proportions" and fit_groups is not None:
            groups = np.repeat(list(sites.truth), [len(part) for part in sites.truth.values()])
            return {method: fit_groups(everyone, groups, k, options["n_init"], seed)}
        fitted = source.fit(everyone, k, options["n_init"], seed)
        clusters = label({"pooled": fitted}, everyone)["pooled"]
        if method == "pooled":
            return {method: clusters}
        begin = by_site(clusters.to_numpy(), sites.truth)
        return {method: _refined(wrap(fitted), sites, begin, k, "converge")}
    both = k_fed(
        sites.data,
        k,
        n_init=options["n_init"],
        rounds=options["k_fed_rounds"],
        seed=seed,
    )
    names = {"k-FED": "faithful", "k-FED nearest": "nearest"}
    return {name: np.concatenate(list(both[how].values())) for name, how in names.items()}


def _local_models(
    source: Source,
    sites: Any,
    everyone: Any,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[dict[str, Floats], pd.DataFrame, list[str], Any]:
    """Class parameters and labels of each model, the models of sites that do harm, a fit."""
    k = settings["n_local"] or len(sites.means)
    training = dict(sites.data)
    if settings["resamples"]:
        training = {
            f"{site}/{i + 1}": source.take(
                data, np.sort(rng.permutation(len(data))[: round(0.8 * len(data))])
            )
            for site, data in sites.data.items()
            for i in range(settings["resamples"])
        }
    seeds = np.random.SeedSequence(int(rng.integers(2**31))).generate_state(len(training))
    fitted = {
        name: source.fit(data, k, options["n_init"], int(seed))
        for (name, data), seed in zip(training.items(), seeds, strict=True)
    }
    table = label(fitted, everyone).astype(np.int64)
    models = {name: class_parameters(model, name) for name, model in fitted.items()}
    names = list(models)
    noisy = names[: settings["noise_sites"]]
    liars = names[len(noisy) : len(noisy) + settings["adversarial_sites"]]
    for name in noisy:
        models[name] = rng.permuted(models[name], axis=0)
        table[name] = rng.integers(k, size=len(table))
    if liars:
        lie = rng.integers(k, size=len(table))
        for name in liars:
            models[name], table[name] = models[liars[0]], lie
    dirty = set(sites.contaminated)
    bad = [name for name in names if name in {*noisy, *liars} or name.partition("/")[0] in dirty]
    return models, table, bad, wrap(next(iter(fitted.values())))


# --- measures ---------------------------------------------------------------------------------


def true_cosines(
    models: Mapping[str, Floats], table: pd.DataFrame, truth: NDArray[Any], means: Floats
) -> Floats:
    """cos(f_m, f_0) (M,): how near each model's distances between patients are to the true ones."""
    scored = truth >= 0
    truth, true, k = truth[scored], class_distances(means, "euclidean"), len(means)
    size = np.bincount(truth, minlength=k)
    cosines = np.zeros(len(models))
    for m, (name, parameters) in enumerate(models.items()):
        distances = class_distances(parameters, "euclidean")
        pair = table[name].to_numpy()[scored] * k + truth
        cross = np.bincount(pair, minlength=len(distances) * k).reshape(len(distances), k)
        used = cross.sum(axis=1)
        lengths = np.sqrt((used @ distances**2 @ used) * (size @ true**2 @ size))
        if lengths > 0:
            cosines[m] = np.sum(distances * (cross @ true @ cross.T)) / lengths
    return cosines


def _bad_weight(weights: pd.Series, bad: list[str]) -> float:
    """Mean weight of the models of harmful sites, as a share of the mean over all models."""
    harmful = weights.index.isin(bad)
    return float(weights[harmful].mean() / weights.mean()) if harmful.any() else float("nan")


def _correlation(first: Floats, second: Floats) -> float:
    if min(np.ptp(first), np.ptp(second)) < 1e-12:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _angle(first: Floats, second: Floats) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    if lengths == 0:
        return float("nan")
    cosine = first @ second / lengths
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


# --- plain values -----------------------------------------------------------------------------


def number_of(content: Any) -> int:
    """A whole number that stands for plain values, the same on every machine."""
    text = json.dumps(content, sort_keys=True, default=plain)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
