"""How certain results are: standard errors, tests of the number of classes, stability and fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.model.criteria import OVERLAP
from mmlca.model.inference import OverlapWarning
from mmlca.model.resampling import Bootstrap, bootstrap
from mmlca.model.selection import bootstrap_lrt
from mmlca.study.groups import own_classes
from mmlca.study.processes import Processes
from mmlca.study.release import rounding_of
from mmlca.tables.describe import state_distribution, transition_counts
from mmlca.tables.diagnostics import (
    N_TESTS,
    Diagnostics,
    adjust_together,
    diagnose,
    diagnose_clusters,
)
from mmlca.tables.disclosure import hide_parts, hides, show_counts

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study

SHARED = "all sites"
"""Whose fit it is, where it is that of the model that the sites share."""


@dataclass(frozen=True, eq=False)
class Inference:
    """What `infer` found; parts that a study does not ask for are empty or None.

    `diagnostics` are those of each site's own model, `shared_fit` those of the model that the sites
    share. Small numbers are hidden in `parameters`, and not yet in `diagnostics` and `shared_fit`,
    which have `shown`.
    """

    parameters: pd.DataFrame | None = None
    class_tests: pd.DataFrame | None = None
    stability: pd.DataFrame | None = None
    diagnostics: dict[str, Diagnostics] = field(default_factory=dict)
    shared_fit: Diagnostics | None = None


def diagnostics(
    study: Study, analysis: Analysis, processes: Processes
) -> Callable[[], dict[str, Diagnostics]]:
    """How well each site's own model fits, and under `SHARED` the one that they share.

    Once it is called for; empty if it is not wanted.
    """
    rules, sites = study.inference, analysis.sequences
    if not rules.diagnostics:
        return dict
    n_models = len(sites) + (analysis.ensemble is not None)
    n_sim = rules.simulations_for(N_TESTS * n_models)
    settings: dict[str, Any] = {"n_sim": n_sim, "seed": study.seed}
    own = partial(diagnose, **settings)
    tasks = {site: processes.submit(own, analysis.own[site], data) for site, data in sites.items()}
    if analysis.ensemble is not None:
        shared = partial(diagnose_clusters, **settings)
        tasks[SHARED] = processes.submit(shared, sites, analysis.clusters)
    return lambda: adjust_together({name: task() for name, task in tasks.items()})


def infer(
    study: Study,
    analysis: Analysis,
    diagnosed: Mapping[str, Diagnostics],
) -> Inference:
    """Everything of `[inference]`; `diagnosed` comes from `diagnostics`."""
    rules = study.inference
    sites, own = analysis.sequences, analysis.own
    parts: dict[str, Any] = {}
    refits: dict[str, Bootstrap] = {}
    if rules.bootstrap:
        refits = {s: bootstrap(own[s], sites[s], rules.bootstrap, study.seed) for s in sites}
    if rules.standard_errors:
        parts["parameters"] = _by_site(
            {s: _parameters(study, own[s], sites[s], refits.get(s)) for s in sites}
        )
    if rules.blrt:
        parts["class_tests"] = _by_site({s: _class_tests(study, own[s], sites[s]) for s in sites})
    if refits:
        found = _by_site({site: result.stability for site, result in refits.items()})
        parts["stability"] = show_counts(
            found.assign(group=found["class"]),
            {"patients": []},
            study.privacy.min_count,
            rounding_of(study, own_classes(analysis)),
            beside=["jaccard", "found_again", "dissolved"],
            adds_up=("patients", ["site"]),
        ).drop(columns="group")
    parts["diagnostics"] = {name: part for name, part in diagnosed.items() if name != SHARED}
    parts["shared_fit"] = diagnosed.get(SHARED)
    return Inference(**parts)


def _by_site(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    parts = [table.assign(site=site) for site, table in tables.items()]
    frame = pd.concat(parts, ignore_index=True)
    return frame[["site", *(name for name in frame if name != "site")]]


# --- the models' own parameters -------------------------------------------------------------


def uses_refits(study: Study, model: Any) -> bool:
    """Whether the intervals of a model are from the bootstrap: its classes overlap."""
    return study.inference.bootstrap > 0 and model.entropy() < OVERLAP


def _intervals(study: Study, model: Any, data: Any, refits: Bootstrap | None) -> pd.DataFrame:
    """Probabilities with standard errors and limits, on the boundary always the exact ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # `inference_cautions` says so
        table: pd.DataFrame = model.standard_errors(data)
    if refits is not None and uses_refits(study, model):
        inside, numbers = ~table["boundary"].to_numpy(), ["se", "low", "high"]
        table.loc[inside, numbers] = refits.intervals[numbers].to_numpy()[: len(table)][inside]
    return table


def _parameters(study: Study, model: Any, data: Any, refits: Bootstrap | None) -> pd.DataFrame:
    """Probabilities with their intervals; those based on few patients are blank.

    They are based on the patients assigned to the class who begin in the state, or make the step.
    """
    table = _intervals(study, model, data, refits).drop(columns=["boundary", "note"])
    k, classes = model.params_.n_classes, pd.Series(model.predict(data) + 1, data.ids)
    labels = classes.astype(pd.CategoricalDtype(list(range(1, k + 1))))
    first = state_distribution(data, labels)
    first = first[first["time"] == data.times[0]]
    steps = transition_counts(data, labels)
    size = classes.value_counts().reindex(range(1, k + 1), fill_value=0)
    counts = pd.concat(
        [
            pd.Series(size.to_numpy(float)),
            pd.Series(first["count"].to_numpy(float)),
            pd.Series(steps["patients"].to_numpy(float)),
        ],
        ignore_index=True,
    )
    # nobody assigned is few as well: the number then comes from shares of uncertain patients
    table = table.assign(patients=np.maximum(counts.to_numpy(), 1.0))
    table["set"] = table["class"].where(table["parameter"] != "weight", 0)
    numbers = ["estimate", "se", "low", "high"]
    by = ["parameter", "set", "from"]
    shown = hide_parts(table, by, numbers, study.privacy.min_count, count="patients")
    return shown.drop(columns=["patients", "set"])


def _class_tests(study: Study, model: Any, data: Any) -> pd.DataFrame:
    """Bootstrap tests around the site's number of classes: against one fewer, and one more.

    Where log-likelihoods are shown as whole numbers, the statistic is that of the whole numbers:
    more digits of it would give more digits of them.
    """
    k, rules, rows = model.params_.n_classes, study.inference, []
    for larger in range(max(k, 2), min(k + 1, data.n_distinct) + 1):
        test = bootstrap_lrt(
            data,
            larger,
            rules.blrt,
            study.seed,
            n_jobs=study.n_jobs or -1,
            prior=study.model.reported_prior,
        )
        statistic = test.statistic
        if hides(study.privacy.min_count):
            statistic = 2 * (round(test.loglik + statistic / 2) - round(test.loglik))
        rows.append(
            {
                "classes": larger,
                "against": larger - 1,
                "statistic": float(statistic),
                "p_value": test.p_value,
                "mc_error": test.mc_error,
                "simulations": len(test.simulated),
            }
        )
    names = ["classes", "against", "statistic", "p_value", "mc_error", "simulations"]
    return pd.DataFrame(rows, columns=names)
