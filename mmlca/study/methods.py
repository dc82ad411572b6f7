"""The methods of a study, with the settings that were used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmlca import __version__
from mmlca.sequences.checks import listed
from mmlca.study.inference_texts import inference_methods
from mmlca.study.words import (
    span,
    window_name,
    windows_name,
)

if TYPE_CHECKING:
    from mmlca.study.analyse import Analysis, Findings
    from mmlca.study.config import Study

_METHODS = {
    "kmeans": "K-means on their rows",
    "kmeans-distance": "K-means with them as squared distances",
    "average": "average linkage",
    "complete": "complete linkage",
    "ward": "Ward's linkage",
    "spectral": "K-means on their principal coordinates",
}


def methods(study: Study, findings: Findings, n_classes: int) -> str:
    """The methods for a paper, with the settings that were used.

    Paragraphs, with an empty line between two: data, models, ensemble and sites, laboratory values
    and inference, software.
    """
    analysis = findings.analysis
    models = [_model_methods(study, analysis, n_classes)]
    if study.classes.number == "vote":
        who = "for most sites' own data (of equals, the smaller number)"
        models.append(
            f"The number of classes was that with the smallest {study.classes.criterion.upper()} "
            f"{who if len(analysis.sequences) > 1 else ''}".rstrip()
            + f", among {span(study.classes.candidates)} (n: {study.classes.count}); these fits "
            "had the same starts, and those with the chosen number are the models."
        )
    models.append(
        "The models take it that follow-up ends, and that a state is missing, for reasons which do "
        "not depend on the states that were not seen, given those that were (missing at random); "
        "this was assumed and cannot be tested with these data."
    )
    ensemble = [] if analysis.ensemble is None else _ensemble_methods(study, findings, n_classes)
    later = []
    if findings.trends:
        where = " at each site" * (len(analysis.sequences) > 1)
        later.append(
            f"The course of the laboratory value was estimated{where} by a linear mixed model of "
            "its logarithm with a natural cubic spline of time for each group and a "
            "random intercept for each patient, by restricted maximum likelihood; curves are "
            "geometric means, with pointwise 95 % bands from the sandwich estimator with patients "
            "as clusters, and values given as a limit (such as <2) were left out."
        )
    later += inference_methods(study, findings)
    software = [f"All was done with mmlca {__version__}, seed {study.seed}."]
    parts = [[_data_methods(study, analysis)], models, ensemble, later, software]
    return "\n\n".join(" ".join(part) for part in parts if part)


def _data_methods(study: Study, analysis: Analysis) -> str:
    rules, window = study.rules, window_name(study)
    states = listed([str(s) for s in next(iter(analysis.sequences.values())).states])
    if not study.from_records:
        return f"We analysed sequences of the states {states}."
    since = rules.first_on_or_after
    when = "at any time" if since is None else f"on or after {since.isoformat()}"
    most = {"records": "was recorded most often", "days": "covered most days"}[rules.by]
    tie = {
        "first": "recorded first in it",
        "latest": "recorded last in it",
        "previous": f"of the {window} before",
    }[rules.ties]
    text = [
        f"We included patients whose first treatment was {when} and followed them from that day "
        f"for up to {rules.max_windows} {windows_name(study)}.",
        f"In each {window} a patient's state was the drug class ({states}) that {most}; of classes "
        f"recorded equally often, the one {tie}."
        if rules.states == "most_frequent"
        else _combination_methods(study, states, most, tie),
        f"In a {window} without a record {_stopping_methods(study)}.",
    ]
    if study.records.default_supply is not None:
        text.append(_supply_methods(study))
    if rules.death == "state":
        text.append(
            f"A {window} that began after a patient's death was in the state “dead”, which has no "
            "way out in the model."
        )
    elif _known_to_have_died(analysis):
        text.append("Death ended follow-up.")
    if any(site.observation is not None for site in study.sites.values()):
        text.append(
            "Follow-up ended with the last observation period; records outside the periods were "
            f"dropped, and a {window} without a record of which less than half was observed was "
            "missing."
        )
    return " ".join(text)


def _combination_methods(study: Study, states: str, most: str, tie: str) -> str:
    rules, window = study.rules, window_name(study)
    rest = (
        "all other combinations are one state"
        if rules.combinations is not None
        else f"the {rules.max_combinations} most frequent combinations are states of their own, "
        "the others one together"
    )
    return (
        f"Supplies of a drug class that were at most {rules.gap_days} days apart were joined. The "
        f"states were {states}: classes in use together for at least {rules.combination_days} days "
        f"of a {window} made a combination ({rest}); otherwise a patient's state was the class "
        f"that {most} in the {window}, and of equals the one {tie}."
    )


def _stopping_methods(study: Study) -> str:
    """What became of windows in which nothing counts, as the end of a sentence."""
    rules = study.rules
    off = (
        "the state was missing and summed over in the likelihood"
        if rules.off_treatment == "missing"
        else f"the state was “{rules.off_treatment}” (off treatment)"
    )
    return {
        "carry_forward": "the last state was carried forward",
        "carry_forward_supplied": "the last state was carried forward while its supply had not "
        f"ended for more than {rules.gap_days} days; after that {off}",
        "carry_forward_max": f"the last state was carried forward at most {rules.max_carry} times; "
        f"after that {off}",
        "missing": "the state was missing and summed over in the likelihood",
    }[rules.impute]


def _supply_methods(study: Study) -> str:
    supply = study.records.default_supply
    assert supply is not None
    if isinstance(supply, int):
        return f"A record without an end or a supply was taken to cover {supply} days."
    days = listed([f"{n} days of {name}" for name, n in supply.items()])
    return f"A record without an end or a supply was taken to cover {days}."


def _known_to_have_died(analysis: Analysis) -> bool:
    accounts = [data.account for data in analysis.sequences.values() if data.account is not None]
    return any("death_date" in account.patients for account in accounts)


def _model_methods(study: Study, analysis: Analysis, n_classes: int) -> str:
    search = (
        f"(expectation-maximisation from {study.model.n_init} random starts"
        f"{', thorough search' * (study.model.search == 'thorough')}, Dirichlet pseudo-count "
        f"{study.model.reported_prior:g})"
    )
    chains = f"a mixture of {n_classes} Markov chains" if n_classes > 1 else "one Markov chain"
    if len(analysis.sequences) == 1:
        return f"We fitted {chains} {search}."
    if not study.pseudo_sites.per_site:
        return f"At each site we fitted {chains} {search}."
    return (
        f"From each site we drew {study.pseudo_sites.per_site} resamples with replacement of "
        f"{100 * study.pseudo_sites.fraction:g} % of its patients and fitted {chains} to each of "
        f"them and to each whole site {search}."
    )


def _ensemble_methods(study: Study, findings: Findings, n_classes: int) -> list[str]:
    analysis, shared = findings.analysis, findings.shared
    assert shared is not None
    distance = study.ensemble.distance.replace("euclid", "Euclid")
    n_boot = study.outputs.bootstrap
    debiased = (
        f" From {n_boot:,} bootstrap samples of each site's patients we estimated what sampling "
        "adds to the squared norms, and subtracted it (debiased norm); memberships were held fixed."
    )
    tested = (
        " Whether sites share the Markov chains of the clusters was tested without assigning "
        "patients: twice the difference of the log-likelihoods of a mixture with chains of each "
        "site's own and of one with shared chains, each with the sites' own proportions and both "
        "by EM from the clusters and other starts, compared with those of "
        f"{shared.n:,} data sets simulated from the shared chains (parametric bootstrap; pairs of "
        "sites adjusted by Holm's method). For the "
        "norms of the differences between the sites' own chains, 95 % intervals are the multiples "
        "of the observed difference under which the observed norm is neither among the 2.5 % "
        f"largest nor smallest, with noise from {shared.n:,} data sets simulated from the sites' "
        "own mixtures and fitted again."
    )
    return [
        f"The {len(analysis.models)} models were combined by federated one-shot ensemble "
        "clustering: every patient was labelled by every model, models were weighted "
        f"({study.ensemble.weights} weights) by the agreement of their {distance} class "
        f"distances, and the weighted distances were clustered ({_METHODS[study.ensemble.method]}) "
        f"into {n_classes} clusters, from counts of label patterns alone.",
        "Differences between sites are Frobenius norms of differences of empirical transition "
        "matrices, averaged over clusters, plain and with states weighted by occupancy."
        + (debiased if n_boot else "")
        + tested,
    ]
