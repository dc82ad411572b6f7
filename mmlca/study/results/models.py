"""The models of a site: fits, numbers of classes, errors of its own model, and its stability.

These numbers concern one site alone and are as the site shows them. Where small numbers are hidden
they have few digits, since many digits of numbers based on all patients would reveal counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.estimator import MixtureMarkov
from mmlca.model.inference import OVERLAP, OverlapWarning, information_criteria
from mmlca.model.resampling import Bootstrap, bootstrap
from mmlca.model.selection import bootstrap_lrt, compare_fits, resampled_choices
from mmlca.model.settings import CRITERIA
from mmlca.sequences.forms import PLAIN
from mmlca.study.release import DECIMALS, round_indices
from mmlca.study.results.site import Column, Part
from mmlca.tables.counts import form_patients
from mmlca.tables.describe import state_distribution, transition_counts
from mmlca.tables.disclosure import EVERYONE, Rounding, hide_parts, hides, is_small, show_counts

if TYPE_CHECKING:
    from mmlca.model.settings import Criterion, SampleSize
    from mmlca.sequences.type import Sequences
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study


def fit_table(models: Mapping[str, MixtureMarkov], labels: pd.DataFrame) -> pd.DataFrame:
    """How each model was fitted, exactly.

    Parameters
    ----------
    models : {name: MixtureMarkov}
    labels : DataFrame, patients × models
        To see which classes are the most likely one of any patient.
    """
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "form": model.form.title,
                "classes": len(model.weights_),
                "parameters": model.n_parameters_,
                "parameters_all": model.n_cells_,
                "loglik": model.loglik_,
                "bic": model.bic(),
                "bic_all": model.criteria(all_cells=True)["bic"],
                "entropy": model.entropy(),
                "smallest": float(model.params_.weights.min()),
                "replicated": model.n_replicated_,
                "searches": model.n_searches_,
                "converged": model.converged_,
                "all_used": labels[name].nunique() == len(model.weights_),
            }
            for name, model in models.items()
        ]
    )


def comparison(
    fits: Mapping[tuple[str, int], MixtureMarkov],
    criterion: Criterion,
    count: SampleSize,
) -> pd.DataFrame:
    """Models of different numbers of classes compared, exactly.

    Parameters
    ----------
    fits : {(name, number of classes): MixtureMarkov}
    criterion : the one that chooses
    count : what the criteria count

    Returns
    -------
    DataFrame
        That of `select_n_classes`, with the names in `model` instead of `site`, the numbers of
        `patients`, the `form` of the chains, and `sizes` as lists of shares.
    """
    table = compare_fits(fits, criterion, count).rename(columns={"site": "model"})
    models = [fits[row] for row in zip(table["model"], table["classes"], strict=True)]
    return table.assign(
        form=[model.form.title for model in models],
        patients=[model.n_sequences_ for model in models],
        sizes=[model.params_.weights.tolist() for model in models],
    )


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    min_count, site, rounding = study.privacy.min_count, patients.site, patients.rounding
    tables = _inference(study, patients)
    if study.inference.choices and patients.choice is not None and patients.own is not None:
        tables["choices"] = _choices(study, patients.own, patients.sequences)
    if patients.fits is not None:
        tables["models"] = shown_fits(patients.fits, site, min_count, rounding)
    if patients.choice is not None:
        choice = shown_fits(patients.choice, site, min_count, rounding)
        tables["selection"] = choice
        tables["class_sizes"] = _class_sizes(choice)
    return tables


def _class_sizes(choice: pd.DataFrame) -> pd.DataFrame:
    rows = [
        (row["model"], row["form"], row["classes"], k, share)
        for row in choice.to_dict("records")
        for k, share in enumerate(row["sizes"] or (), start=1)
    ]
    return pd.DataFrame(rows, columns=list(PART.tables["class_sizes"]))


# --- few digits ---------------------------------------------------------------------------


def shown_fits(
    table: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """Fits, with few digits and without the shares of classes where the smallest has few patients.

    The shares of all classes add up, so that they show together or not at all. Criteria are those
    of the log-likelihood and the entropy as they are shown, and with a `rounding` of the rounded
    numbers of patients: several criteria that are each rounded by themselves would reveal more
    digits together.

    Parameters
    ----------
    table : DataFrame
        Of `fit_table` or `comparison`.
    site : str
        Models of other names are of resamples of its patients.
    min_count, rounding
    """
    if not hides(min_count):
        return table
    n = table["patients"].astype(float)
    few = is_small((table["smallest"] * n).round(6), min_count)
    if "sizes" in table:
        shares = [[round(x, 2) for x in sizes] for sizes in table["sizes"]]
        table = table.assign(sizes=pd.Series(shares, table.index).where(~few, None))
    if rounding is None:
        table = _of_shown_likelihood(table, n, lambda count, name: count)
    else:
        pairs = zip(n, table["model"], strict=True)
        sizes = [_rounded_size(rounding, site, *pair) for pair in pairs]
        table = table.assign(patients=sizes)
        table = _of_shown_likelihood(table, n, partial(_rounded_times, rounding, site))
    return round_indices("", table.assign(smallest=table["smallest"].mask(few)))


def _rounded_size(rounding: Rounding, site: str, n: float, name: str) -> float:
    """The number of patients of a site, or of a resample of it, rounded."""
    return rounding(n, site) if name == site else rounding(n, site, EVERYONE, "resample")


def _rounded_times(rounding: Rounding, site: str, count: float, name: str) -> float:
    """The number of observed states of a site, or of a resample of it, rounded."""
    return rounding(count, site, EVERYONE, "time points", name)


def _of_shown_likelihood(
    table: pd.DataFrame, n: pd.Series, shown_times: Callable[[float, str], float]
) -> pd.DataFrame:
    """Criteria of numbers that are shown beside them: they give no further digit of any of these.

    These are the rounded log-likelihood and entropy, and the numbers of patients (n, as the table
    has them) or of observed states (as `shown_times` gives them) that the criteria count.
    """
    loglik, p = table["loglik"].round(DECIMALS["loglik"]), table["parameters"].astype(float)
    shown = table["patients"].astype(float)
    exact = np.exp((table["bic"] + 2 * table["loglik"]) / p.where(p > 0)).fillna(n)
    counted = pd.Series(
        [
            size if abs(count - patients) < 0.5 else shown_times(count, name)
            for count, patients, size, name in zip(exact, n, shown, table["model"], strict=True)
        ],
        table.index,
    ).clip(lower=1)
    entropy = (1 - table["entropy"].round(DECIMALS["entropy"])) * shown * np.log(table["classes"])
    criteria = information_criteria(loglik, p, counted, entropy)
    shown = {c: criteria[c] for c in CRITERIA if c in table}
    if "bic_all" in table:
        p_all = table["parameters_all"].astype(float)
        shown["bic_all"] = information_criteria(loglik, p_all, counted, entropy)["bic"]
    return table.assign(loglik=loglik, **shown)


# --- how certain the site's own model is ------------------------------------------------


def _inference(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    """Errors of the parameters, tests of other numbers of classes, and stability."""
    rules, model, data = study.inference, patients.own, patients.sequences
    tables: dict[str, pd.DataFrame] = {}
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

    They are based on the patients assigned to the class who begin in the state, or make the step;
    a probability of leaving on those who leave and on those who stay.
    """
    table = _intervals(model, data, refits)
    k, classes = model.params_.n_classes, pd.Series(model.predict(data) + 1, data.ids)
    labels = classes.astype(pd.CategoricalDtype(list(range(1, k + 1))))
    first = state_distribution(data, labels)
    first = first[first["time"] == data.times[0]]
    if model.form == PLAIN:
        table = table.assign(stay="", period="")
        steps = transition_counts(data, labels)["patients"].to_numpy()
    else:
        steps = form_patients(data, classes.to_numpy() - 1, k, model.form)
    size = classes.value_counts().reindex(range(1, k + 1), fill_value=0)
    counts = np.concatenate([size, first["count"], steps]).astype(float)
    # nobody assigned is few as well: the number then comes from shares of uncertain patients
    table = table.assign(patients=np.maximum(counts, 1.0))
    table["set"] = table["class"].where(table["parameter"] != "weight", 0)
    numbers = ["estimate", "se", "low", "high"]
    by = ["parameter", "set", "from", "stay", "period"]
    return hide_parts(table, by, numbers, study.privacy.min_count, count="patients")


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
            **model.form._asdict(),
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
    return pd.DataFrame(rows)


def _choices(study: Study, model: MixtureMarkov, data: Sequences) -> pd.DataFrame:
    """How many resamples of the patients choose each number of classes, in the form used."""
    rules, form = study.classes, model.form._asdict()
    models = {
        k: MixtureMarkov(k, seed=study.seed, **study.fit_settings, **form)
        for k in sorted(set(rules.candidates))
    }
    n, n_jobs = study.inference.choices, study.n_jobs or -1
    chosen = resampled_choices(models, data, n, study.seed, rules.criterion, rules.count, n_jobs)
    return pd.DataFrame({"classes": list(models), "resamples": [chosen.count(k) for k in models]})


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


_OWN_CLASS = Column("whole", "class of the site's own model, from 1")
_MODEL = Column("text", "the site, or a resample of its patients (SITE/1)")
_CLASSES = Column("whole", "number of classes")
_FORM = Column("text", "form of the chains: plain, or by time in state and period, with their bins")
_FIT = {
    "model": _MODEL,
    "patients": Column("count", "patients that the model was fitted to"),
    "form": _FORM,
    "classes": _CLASSES,
    "parameters": Column(
        "whole",
        "free parameters of first states and transitions that at least min_count patients make",
    ),
    "parameters_all": Column("whole", "free parameters of all first states and transitions"),
    "loglik": Column("number", "log-likelihood"),
    "bic": Column("number", "Bayesian information criterion, by `parameters`"),
    "bic_all": Column("number", "the same by `parameters_all`, as textbooks count"),
    "entropy": Column("number", "entropy R²"),
    "smallest": Column("number", "share of the smallest class"),
    "replicated": Column("whole", "independent searches that reached the maximum"),
    "searches": Column("whole", "independent searches"),
    "converged": Column("flag", "whether the best search converged"),
}
PART = Part(
    {
        "models": {
            **_FIT,
            "all_used": Column("flag", "whether each class is the most likely one of a patient"),
        },
        "selection": {
            **_FIT,
            **{name: Column("number", f"{name.upper()}") for name in CRITERIA if name != "bic"},
            "posterior": Column("number", "mean probability of a patient's own class"),
            "chosen": Column(
                "flag", "whether the criterion chooses this number of classes, of the form used"
            ),
        },
        "class_sizes": {
            "model": _MODEL,
            "form": _FORM,
            "classes": _CLASSES,
            "class": Column("whole", "number of a class, from 1"),
            "share": Column("number", "its share of the patients"),
        },
        "parameters": {
            "parameter": Column("text", "weight, initial, transition, leave or destination"),
            "class": _OWN_CLASS,
            "from": Column("text", "state before a transition"),
            "to": Column("text", "first state, or state after a transition"),
            "stay": Column("text", "windows in the state so far, for the probability of leaving"),
            "period": Column("text", "windows since the start, where probabilities depend on them"),
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
        "choices": {
            "classes": _CLASSES,
            "resamples": Column("whole", "resamples of the patients that choose this number"),
        },
        "stability": {
            "class": _OWN_CLASS,
            "patients": Column("count", "patients assigned to the class"),
            "jaccard": Column("number", "mean Jaccard index with its counterpart in refits"),
            "found_again": Column("number", "share of refits in which it was found again"),
            "dissolved": Column("number", "share of refits in which it dissolved"),
        },
    },
    make,
)
