"""The methods of a study, with the settings that were used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmlca import __version__
from mmlca.model.search import search_text
from mmlca.sequences.checks import listed
from mmlca.study.sections.inference_texts import inference_methods
from mmlca.study.words import (
    span,
    window_name,
    windows_name,
)

if TYPE_CHECKING:
    from font.refinement import Refined
    from mmlca.study.analysis import Analysis
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

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
            "were searched for in the same way, and those with the chosen number are the models."
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
            f"geometric means, with {study.outputs.lab_bands} 95 % bands from the sandwich "
            "estimator with patients as clusters, and end where the group has no more values; "
            "values given as a limit (such as <2) were left out."
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
    text = [
        f"We included patients whose first treatment was {when} and followed them from that day "
        f"for up to {rules.max_windows} {windows_name(study)}.",
        f"In each {window} a patient's state was the drug class ({states}) that {most}."
        if rules.states == "most_frequent"
        else _combination_methods(study, states, most),
        _tie_methods(study),
        f"In a {window} without a record {_stopping_methods(study)}.",
    ]
    if study.records.default_supply is not None:
        text.append(_supply_methods(study))
    text += _follow_up_methods(study, analysis)
    text += _death_methods(study, analysis)
    return " ".join(text)


def _follow_up_methods(study: Study, analysis: Analysis) -> list[str]:
    """How follow-up ended at each site, as the accounts of the sequences say."""
    kinds: dict[str, list[str]] = {}
    for site, data in analysis.sequences.items():
        if data.account is not None:
            kinds.setdefault(data.account.settings["follow_up_by"], []).append(site)
    window, cut = window_name(study), study.rules.data_cut
    latest = "" if cut is None else f", at the latest on {cut.isoformat()}"
    how = {
        "patients": "on the date in the patients' table (for patients without one, with their last "
        f"record of any kind){latest}",
        "observation": f"with the last observation period{latest}; records outside the periods "
        f"were dropped, and a {window} without a record of which less than half was observed was "
        "missing",
        "last_record": f"with a patient's last record of any kind{latest}, since no other end of "
        "follow-up was known",
        "date": f"for all patients on {study.rules.follow_up}{latest}",
    }
    sentences = []
    for kind, sites in kinds.items():
        where = "" if len(kinds) == 1 else f"At {listed(sites)} "
        sentence = f"{where}follow-up ended {how[kind]}."
        sentences.append(sentence[0].upper() + sentence[1:])
    return sentences


def _death_methods(study: Study, analysis: Analysis) -> list[str]:
    accounts = {s: d.account for s, d in analysis.sequences.items() if d.account is not None}
    known = [site for site, account in accounts.items() if "death_date" in account.patients]
    if not known:
        return ["Dates of death were not known."] if accounts else []
    where = "" if len(known) == len(accounts) else f" at {listed(known)}, where it was known"
    if study.rules.death == "end":
        return [f"Death ended follow-up{where}."]
    ends = {site: accounts[site].settings.get("data_end") for site in known}
    days = [f"{day} at {site}" for site, day in ends.items()]
    if len(set(ends.values())) == 1:
        days = [str(ends[known[0]])]
    return [
        f"A {window_name(study)} that began after a patient's death was in the state “dead”, which "
        "has no way out in the model. Patients who died were counted until the end of the data "
        f"({listed(days)}), as were living patients who were followed until then."
    ]


def _tie_methods(study: Study) -> str:
    """Which of several classes that count equally was the state."""
    window = window_name(study)
    equal, counted = {
        "records": ("recorded equally often", "recorded"),
        "days": ("that covered equally many days", "covered"),
    }[study.rules.by]
    one = {
        "first": f"the one {counted} first in the {window}",
        "latest": f"the one {counted} last in the {window}",
        "previous": f"the one that was the state of the {window} before, otherwise the one "
        f"{counted} first,",
    }[study.rules.ties]
    return (
        f"Of classes {equal} {one} was taken; if that was the same day, the one with the larger "
        "days' supply, then the one taken before, then the first in alphabetical order."
    )


def _combination_methods(study: Study, states: str, most: str) -> str:
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
        f"that {most} in the {window}."
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


def _model_methods(study: Study, analysis: Analysis, n_classes: int) -> str:
    how = f"(expectation-maximisation, Dirichlet pseudo-count {study.model.reported_prior:g})"
    chains = f"a mixture of {n_classes} Markov chains" if n_classes > 1 else "one Markov chain"
    search = search_text(study.model.n_init, study.model.search == "thorough")
    per_site, n_sites = study.pseudo_sites.per_site, len(analysis.sequences)
    if n_sites == 1:
        return f"We fitted {chains} {how}. {search}"
    if not per_site:
        return f"At each site we fitted {chains} {how}. {search}"
    return (
        f"From each site we drew {per_site} resamples with replacement of "
        f"{100 * study.pseudo_sites.fraction:g} % of its patients and fitted {chains} to each of "
        f"them and to each whole site {how}. {search} The models of one site's resamples share "
        f"its patients and its peculiarities: {per_site * n_sites} models of {n_sites} sites show "
        "how stable the clusters are under resampling, and do not stand for "
        f"{per_site * n_sites} independent sites."
    )


def _refinement_methods(study: Study, refined: Refined) -> str:
    n = refined.n_rounds_
    steps = {0: "", 1: ", followed by one step of expectation-maximisation across the sites"}.get(
        n, f", followed by {n:,} steps of expectation-maximisation across the sites"
    )
    until = ""
    if study.ensemble.refine == "converge":
        until = " until it converged" if refined.converged_ else ", which did not converge"
    return (
        "The clusters were then refined: a Markov chain for each cluster, shared by all sites, and "
        "proportions of the clusters at each site were estimated from the patients of the "
        f"ensemble's clusters{steps}{until} (refined model). A patient's probability of a "
        "cluster is that under the refined model, which takes it that the sites share the chains. "
        "Tables and figures show the ensemble's clusters unless they are called refined."
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
        *([] if analysis.refined is None else [_refinement_methods(study, analysis.refined)]),
        "Differences between sites are Frobenius norms of differences of empirical transition "
        "matrices, averaged over clusters, plain and with states weighted by occupancy."
        + (debiased if n_boot else "")
        + tested,
    ]
