"""The models: how they were fitted, and whether they reached their maximum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from font.ensemble import site_of
from mmlca.model.search import is_confirmed, search_text
from mmlca.sequences.checks import listed
from mmlca.study.release import rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.digits import shown_fits
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import counted

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.analysis import Analysis
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study


# --- tables -------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The fits of all models."""
    analysis = findings.analysis
    yield Item(
        "models",
        "Models",
        "Log-likelihood, BIC and entropy R² of each model, the share of its smallest class, how "
        "many of the independent searches reached the maximum (each has its own starts and knows "
        "nothing of the others; what they reach together does not count), and whether the best one "
        "converged.",
        shown_fits(
            _fit_table({**analysis.models, **analysis.own}),
            analysis.n_patients(),
            study.privacy.min_count,
            rounding_of(study, analysis.clusters),
        ),
        Plain(shares=("smallest",)),
    )


def _fit_table(models: Mapping[str, MixtureMarkov]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "classes": len(model.weights_),
                "parameters": model.n_parameters_,
                "loglik": model.loglik_,
                "bic": model.bic(),
                "entropy": model.entropy(),
                "smallest": float(model.params_.weights.min()),
                "replicated": model.n_replicated_,
                "searches": model.n_searches_,
                "converged": model.converged_,
            }
            for name, model in models.items()
        ]
    )


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """What was fitted to what, how the maximum was searched for, and what is assumed."""
    n_classes = next(iter(findings.analysis.own.values())).params_.n_classes
    return [
        *_fitted(study, n_classes),
        "The models assume that the end of follow-up and missing states depend only on states that "
        "were observed, not on those that were not (missing at random); these data cannot test "
        "this assumption.",
    ]


def _fitted(study: Study, n_classes: int) -> list[str]:
    how = f"(expectation-maximisation, Dirichlet pseudo-count {study.model.reported_prior:g})"
    chains = f"a mixture of {n_classes} Markov chains" if n_classes > 1 else "one Markov chain"
    search = search_text(study.model.n_init, study.model.search == "thorough")
    per_site, n_sites = study.pseudo_sites.per_site, len(study.sites)
    if n_sites == 1:
        return [f"We fitted {chains} {how}.", search]
    if not per_site:
        return [f"At each site we fitted {chains} {how}.", search]
    return [
        f"From each site we drew {per_site} resamples with replacement, each of "
        f"{100 * study.pseudo_sites.fraction:g} % of its patients, and fitted {chains} to each "
        f"resample and to each whole site {how}.",
        search,
        "The models of one site's resamples share its patients and its peculiarities: "
        f"{per_site * n_sites} models of {n_sites} sites show how stable the clusters are under "
        f"resampling, but they are not {per_site * n_sites} independent sites.",
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """Models that may not have reached their maximum, or have too many classes."""
    return _about_fits(study, findings.analysis)


def _about_fits(study: Study, analysis: Analysis) -> list[str]:
    models = {**analysis.models, **analysis.own}
    doubtful = [
        name
        for name, model in models.items()
        if not is_confirmed(model.n_replicated_, model.n_searches_)
    ]
    unfinished = [name for name, model in models.items() if not model.converged_]
    large = [name for name, model in models.items() if model.n_parameters_ > model.n_sequences_]
    used = {name: analysis.labels[str(site_of(name))][name].nunique() for name in models}
    empty = [name for name, model in models.items() if used[name] < model.params_.n_classes]
    notes = []
    if doubtful:
        notes.append(
            f"The maximum of {_models(doubtful)} was reached by fewer than two independent "
            "searches, or by fewer than half of them; a better one may exist: "
            f"{_search_longer(study)}."
        )
    if unfinished:
        notes.append(f"The fit of {_models(unfinished)} did not converge.")
    if large:
        verb = "has" if len(large) == 1 else "have"
        notes.append(
            f"{_models(large)} {verb} more free parameters than patients; use fewer classes."
        )
    if empty:
        notes.append(
            f"In {_models(empty)}, some classes are not the most likely class of any patient; "
            "fewer classes would be enough."
        )
    return notes


def _search_longer(study: Study) -> str:
    if study.model.search == "default":
        return 'set model.search = "thorough", which takes several times as long'
    return f"raise model.n_init (now {study.model.n_init})"


def _models(names: list[str]) -> str:
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{counted(len(names), 'model')} ({listed(names[:5])}{more})"


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """What the models have in common, and how their maximum was searched for."""
    also = "" if findings.choice is None else ", and the table behind the figure of the criterion"
    return {
        "6b": "every class has its own first states and transitions; classes that share some: "
        f"{NOT_DONE}",
        "9": "starts: methods; searches, and whether the best run converged: the table “Models”; "
        f"number of iterations: {NOT_DONE}",
        "13": f"the table “Models”{also}",
    }


SECTION = Section("models", "Models", items, methods, cautions, answers)
