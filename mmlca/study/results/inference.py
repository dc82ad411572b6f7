"""How certain a site's own model is: errors of its parameters, other numbers of classes, stability.

These numbers concern one site alone and are as the site shows them: without those that are based on
few patients, and in a public release with few digits.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.inference import OVERLAP, OverlapWarning
from mmlca.model.resampling import Bootstrap, bootstrap
from mmlca.model.selection import bootstrap_lrt
from mmlca.study.release import round_indices
from mmlca.study.results.part import Column, Part
from mmlca.tables.describe import state_distribution, transition_counts
from mmlca.tables.disclosure import hide_parts, hides, show_counts

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    rules, model, data = study.inference, patients.own, patients.sequences
    tables = {name: pd.DataFrame(columns=list(columns)) for name, columns in PART.tables.items()}
    if model is None:
        return tables
    refits = bootstrap(model, data, rules.bootstrap, study.seed) if rules.bootstrap else None
    if rules.standard_errors:
        tables["parameters"] = _parameters(study, model, data, refits)
    if rules.blrt:
        tables["class_tests"] = _class_tests(study, model, data)
    if refits is not None:
        tables["stability"] = _stability(study, patients, refits)
    if patients.rounding is None:
        return tables
    return {name: round_indices(name, table) for name, table in tables.items()}


# --- parameters ---------------------------------------------------------------------------


def _intervals(model: MixtureMarkov, data: Sequences, refits: Bootstrap | None) -> pd.DataFrame:
    """Probabilities with standard errors and limits, on the boundary always the exact ones.

    They are from refits where the classes overlap.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # the cautions of the report say so
        table: pd.DataFrame = model.standard_errors(data)
    overlap = refits is not None and model.entropy() < OVERLAP
    if refits is not None and overlap:
        inside, numbers = ~table["boundary"].to_numpy(), ["se", "low", "high"]
        table.loc[inside, numbers] = refits.intervals[numbers].to_numpy()[: len(table)][inside]
    return table.assign(refits=overlap)


def _parameters(
    study: Study, model: MixtureMarkov, data: Sequences, refits: Bootstrap | None
) -> pd.DataFrame:
    """Probabilities with their intervals; those based on few patients are blank.

    They are based on the patients assigned to the class who begin in the state, or make the step.
    """
    table = _intervals(model, data, refits)
    k, classes = model.params_.n_classes, pd.Series(model.predict(data) + 1, data.ids)
    labels = classes.astype(pd.CategoricalDtype(list(range(1, k + 1))))
    first = state_distribution(data, labels)
    first = first[first["time"] == data.times[0]]
    steps = transition_counts(data, labels)
    size = classes.value_counts().reindex(range(1, k + 1), fill_value=0)
    counts = np.concatenate([size, first["count"], steps["patients"]]).astype(float)
    # nobody assigned is few as well: the number then comes from shares of uncertain patients
    table = table.assign(patients=np.maximum(counts, 1.0))
    table["set"] = table["class"].where(table["parameter"] != "weight", 0)
    numbers, by = ["estimate", "se", "low", "high"], ["parameter", "set", "from"]
    return hide_parts(table, by, numbers, study.privacy.min_count, count="patients")


# --- number and stability of classes ------------------------------------------------------


def _class_tests(study: Study, model: MixtureMarkov, data: Sequences) -> pd.DataFrame:
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
    return pd.DataFrame(rows, columns=list(PART.tables["class_tests"]))


def _stability(study: Study, patients: SitePatients, refits: Bootstrap) -> pd.DataFrame:
    found = refits.stability.assign(site=patients.site, group=refits.stability["class"])
    return show_counts(
        found,
        {"patients": []},
        study.privacy.min_count,
        patients.rounding_of(patients.own_view),
        beside=["jaccard", "found_again", "dissolved"],
        adds_up=("patients", ["site"]),
    )


_CLASS = Column("whole", "class of the site's own model, from 1")
PART = Part(
    {
        "parameters": {
            "parameter": Column("text", "weight, initial or transition"),
            "class": _CLASS,
            "from": Column("text", "state before a transition"),
            "to": Column("text", "first state, or state after a transition"),
            "estimate": Column("number", "probability"),
            "se": Column("number", "standard error"),
            "low": Column("number", "lower limit (95 %)"),
            "high": Column("number", "upper limit"),
            "refits": Column("flag", "whether limits inside 0 and 1 are from the bootstrap"),
        },
        "class_tests": {
            "classes": Column("whole", "number of classes"),
            "against": Column("whole", "one fewer"),
            "statistic": Column("number", "twice the difference in log-likelihood"),
            "p_value": Column("number", "bootstrap p-value"),
            "mc_error": Column("number", "Monte-Carlo error of the p-value"),
            "simulations": Column("whole", "samples from the smaller model"),
        },
        "stability": {
            "class": _CLASS,
            "patients": Column("count", "patients assigned to the class"),
            "jaccard": Column("number", "mean Jaccard index with its counterpart in refits"),
            "found_again": Column("number", "share of refits in which it was found again"),
            "dissolved": Column("number", "share of refits in which it dissolved"),
        },
    },
    make,
)
