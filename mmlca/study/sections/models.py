"""The models: how they were fitted, and whether they reached their maximum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from font.probabilities import PRIOR_OF_SENT_FITS
from mmlca.model.search import is_confirmed, search_text
from mmlca.sequences.checks import listed
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.registry import whole_numbers
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import counted
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    from mmlca.study.combined import Combined
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study


_COLUMNS = (
    "model", "patients", "classes", "parameters", "loglik", "bic", "entropy", "smallest",
    "replicated", "searches", "converged",
)  # fmt: skip

# --- tables -------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The fits of all models."""
    models = findings.fits.models
    if len(models):
        yield Item(
            "models",
            "Models",
            "Log-likelihood, BIC and entropy R² of each model, the share of its smallest class, "
            "how many of the independent searches reached the maximum (each has its own starts and "
            "knows nothing of the others; what they reach together does not count), and whether "
            "the best one converged. The file also has the form of the chains, and the textbook's "
            "number of parameters with its BIC.",
            whole_numbers(models.drop(columns=["site", "all_used"]), "models"),
            Plain(shares=("smallest",), columns=_COLUMNS),
        )


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """What was fitted to what, how the maximum was searched for, and what is assumed."""
    return [
        *_fitted(study, findings.combined),
        *_sent(study, findings.combined),
        "The models assume that the end of follow-up and missing states depend only on states that "
        "were observed, not on those that were not (missing at random); these data cannot test "
        "this assumption.",
    ]


def _fitted(study: Study, combined: Combined) -> list[str]:
    how = f"(expectation-maximisation, Dirichlet pseudo-count {study.model.reported_prior:g})"
    k = combined.n_groups
    chains = f"a mixture of {k} Markov chains" if k > 1 else "one Markov chain"
    search = search_text(study.model.n_init, study.model.search == "thorough")
    per_site, n_models = study.pseudo_sites.per_site, len(combined.models)
    if len(study.sites) == 1:
        return [f"We fitted {chains} {how}.", search]
    if not per_site:
        return [f"At each site we fitted {chains} {how}.", search]
    return [
        f"From each site we drew {per_site} resamples with replacement, each of "
        f"{100 * study.pseudo_sites.fraction:g} % of its patients, and fitted {chains} to each "
        f"resample and to each whole site {how}.",
        search,
        "The models of one site's resamples share its patients and its peculiarities: "
        f"{n_models} models of {len(set(combined.models.values()))} sites show how stable the "
        f"clusters are under resampling, but they are not {n_models} independent sites.",
    ]


def _sent(study: Study, combined: Combined) -> list[str]:
    """How models between hospitals differ from those that the sites report."""
    if not combined.by_files:
        return []
    with_models = set(combined.models.values())
    sentences = [
        f"{site} took part without a model of its own in the ensemble."
        for site in study.sites
        if site not in with_models
    ]
    if study.model.prior is None:
        sentences.append(
            "The models that the sites sent to each other had a larger pseudo-count "
            f"({PRIOR_OF_SENT_FITS:g} with up to six states, and less with more)."
        )
    if hides(study.privacy.min_count):
        sentences.append(
            "Models were sent as expected numbers of patients and steps, rounded at random to "
            f"multiples of {study.privacy.min_count}, from which their probabilities follow."
        )
    return sentences


def cautions(study: Study, findings: Findings) -> list[str]:
    """Models that may not have reached their maximum, or have too many classes."""
    models = findings.fits.models
    confirmed = [
        is_confirmed(int(n), int(searches))
        for n, searches in zip(models["replicated"], models["searches"], strict=True)
    ]
    doubtful = models["model"][~np.array(confirmed, dtype=bool)].tolist()
    unfinished = models["model"][~models["converged"]].tolist()
    large = models["model"][models["parameters"] > models["patients"]].tolist()
    empty = models["model"][~models["all_used"]].tolist()
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
    also = (
        "" if findings.fits.choice is None else ", and the table behind the figure of the criterion"
    )
    return {
        "6b": "every class has its own first states and transitions; classes that share some: "
        f"{NOT_DONE}",
        "9": "starts: methods; searches, and whether the best run converged: the table “Models”; "
        f"number of iterations: {NOT_DONE}",
        "13": f"the table “Models”{also}",
    }


SECTION = Section("models", "Models", items, methods, cautions, answers)
