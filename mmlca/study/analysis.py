"""The analysis of a study: classes, models, clusters. It composes; the libraries compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ehr_prep.bootstrap import pseudo_sites
from font.ensemble import Ensemble
from font.labels import LabelPatterns, label
from mmlca.memberships import memberships
from mmlca.model import MixtureMarkov
from mmlca.selection import select_n_classes, vote
from mmlca.sequences import Sequences

if TYPE_CHECKING:
    from mmlca.study.config import Study

Models = dict[str, MixtureMarkov]
Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a study finds.

    Parameters
    ----------
    sequences : {site: Sequences}
    models : {pseudo-site: model}
        Those that make the ensemble.
    own : {site: model}
        One fitted to all patients of each site.
    ensemble, centred : Ensemble or None
        With the weights of the study and with centred ones; None if there is one site.
    labels : {site: DataFrame}
        The labels that `models` give.
    clusters, local : {site: Series by id}
        Numbered from 1: the ensemble's clusters, and each site's own classes under the names
        of the clusters that they match. With one site both are the classes of its model.
    """

    sequences: dict[str, Sequences]
    models: Models
    own: Models
    ensemble: Ensemble | None
    centred: Ensemble | None
    labels: dict[str, pd.DataFrame]
    clusters: dict[str, pd.Series]
    local: dict[str, pd.Series]


def resample(study: Study, data: Mapping[str, Sequences]) -> dict[str, Sequences]:
    """The pseudo-sites, or the sites themselves where none are wanted or there is one site."""
    rules = study.pseudo_sites
    if not rules.per_site or len(data) == 1:
        return dict(data)
    return pseudo_sites(data, n_per_site=rules.per_site, fraction=rules.fraction, seed=study.seed)


def compare_numbers(
    study: Study, resamples: Mapping[str, Sequences], progress: Progress | None = None
) -> pd.DataFrame:
    """Fits for each candidate number of classes at each pseudo-site."""
    rules = study.classes
    return select_n_classes(
        dict(resamples),
        rules.candidates,
        study.seed,
        criterion=rules.criterion,
        n=rules.count,
        progress=None if progress is None else lambda site, k: progress(f"{site}, K = {k}"),
        n_init=rules.starts,
        prior=study.model.prior,
        n_jobs=study.threads or -1,
    )


def chosen_number(study: Study, choice: pd.DataFrame | None) -> int:
    number = study.classes.number
    return number if isinstance(number, int) else vote(choice)


def fit_models(
    study: Study,
    data: Mapping[str, Sequences],
    n_classes: int,
    progress: Progress | None = None,
) -> Models:
    """One model for each of the data sets."""
    models = {}
    for name, part in data.items():
        if progress is not None:
            progress(name)
        model = MixtureMarkov(
            n_classes,
            n_init=study.model.starts,
            prior=study.model.prior,
            seed=study.seed,
            n_jobs=study.threads or -1,
        )
        with warnings.catch_warnings():
            # the table of fits says so in its columns "replicated" and "converged"
            warnings.filterwarnings("ignore", "the best of|EM stopped")
            try:
                models[name] = model.fit(part)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return models


def combine(
    study: Study, data: Mapping[str, Sequences], models: Models, own: Models, n_clusters: int
) -> Analysis:
    """The ensemble of the models, and every patient's cluster."""
    labels = {site: label(models, part) for site, part in data.items()}
    if len(data) == 1:
        (site,) = data
        classes = {site: labels[site][site].rename("cluster") + 1}
        return Analysis(dict(data), models, own, None, None, labels, classes, classes)
    rules, patterns = study.ensemble, LabelPatterns.from_labels(labels)
    said: dict[str, Any] = {"distance": rules.distance, "method": rules.method, "seed": study.seed}
    ensemble = Ensemble(n_clusters, weights=rules.weights, **said).fit(models, patterns)
    centred = Ensemble(n_clusters, weights="centred", **said).fit(models, patterns)
    clusters = {site: ensemble.predict(table) + 1 for site, table in labels.items()}
    matched = memberships(data, clusters, None, own)["local"]
    local = {
        site: pd.Series([matched.labels[i] for i in codes], data[site].ids, name="cluster")
        for site, codes in matched.codes.items()
    }
    return Analysis(dict(data), models, own, ensemble, centred, labels, clusters, local)
