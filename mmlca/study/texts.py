"""A study in sentences: its result, its methods, and what to be careful about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.ensemble import site_of
from font.n_clusters import RECORD
from mmlca import __version__
from mmlca.sequences.checks import listed
from mmlca.study.inference_texts import inference_cautions, inference_methods
from mmlca.study.numbers import DOUBTFUL, Kind, pick, votes
from mmlca.study.words import (
    group_name,
    groups_word,
    number_word,
    period,
    span,
    window_name,
    windows_name,
)
from mmlca.tables.clusters import percent_text, rate_text
from mmlca.tables.norm_texts import p_text
from mmlca.tables.suppress import few_patients, hides, is_small

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


# --- the result -------------------------------------------------------------------------


def summary(study: Study, findings: Findings) -> list[str]:
    """The result in a few points, for someone who reads nothing else."""
    sequences = findings.analysis.sequences
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    sizes = listed([f"{len(data):,} at {site}" for site, data in sequences.items()])
    total = sum(map(len, sequences.values()))
    where = f" ({sizes})" if len(sequences) > 1 else f" of {listed(list(sequences))}"
    one_class = clusters.value == 1
    if findings.analysis.ensemble is not None:
        last = _of_sites(study, findings)
    else:
        last = _of_one_class(findings) if one_class else _of_one_model(findings)
    verb = (
        "are best described by a single class: no groups of courses can be told apart"
        if one_class
        else f"fall into {number_word(int(clusters.value))} {groups_word(study)}"
    )
    return [
        f"The treatment courses of {total:,} {'synthetic ' * study.synthetic}patients{where}, "
        f"observed for up to {period(study, sequences)}, {verb}.",
        _course_sentence(study, findings),
        _choice(study, findings),
        *last,
    ]


def _course_sentence(study: Study, findings: Findings) -> str:
    """The share, name and main numbers of each cluster, in one sentence."""
    courses, after = [], period(study, findings.analysis.sequences)
    for row in findings.described.to_dict("records"):
        name = group_name(study, row["cluster"])
        if row["name"] is None or pd.isna(row["name"]) or pd.isna(row["switches"]):
            courses.append(f"{name}: {row['description']}")
            continue
        still = ""
        if row["still"] >= 0.5:
            still = f"{percent_text(row['still'])} of those still observed after {after} are on "
            still += f"{row['first']}; "
        courses.append(
            f"{percent_text(row['share'])} are {row['name']} ({name}; {still}"
            f"{rate_text(row['switches'])} switches per patient)"
        )
    return f"{listed(courses)}."


def _choice(study: Study, findings: Findings) -> str:
    choice = findings.choice
    if choice is None:
        return f"The number of {groups_word(study)} was fixed beforehand."
    name, tried = study.classes.criterion.upper(), span(study.classes.candidates)
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    if len(sites) == 1:
        return f"{name} chose {_classes(k)}, among {tried}."
    if (sites == k).all():
        text = f"At each site {name} chose {_classes(k)} for the site's own data, among {tried}."
    else:
        chosen = listed([f"{number} at {site}" for site, number in sites.items()])
        counts = sites.value_counts()
        tied = (counts == counts.max()).sum() > 1
        rule = "of equally frequent numbers the smaller" if tied else "the most frequent number"
        text = (
            f"For the sites' own data {name} chose different numbers of classes, among {tried}: "
            f"{chosen}; {rule}, {k}, was taken."
        )
    if len(resamples):
        n = int((resamples == k).sum())
        text = text.removesuffix(".") + (
            f"; of {len(resamples)} resamples {n} chose {k}, but they hold the same patients "
            "again, so that this shows stability and is no further evidence."
        )
    return text


def _classes(k: int) -> str:
    return f"{k} class{'es' * (k > 1)}"


def _of_one_class(findings: Findings) -> list[str]:
    """What is left to say where all patients are alike: how the sites differ."""
    kinds = {"quantity": "transition", "weighting": "occupancy"}
    norms = pick(findings.numbers, Kind.DIFFERENCE, **kinds)
    if not norms:
        return []
    mean = np.mean([norm.value for norm in norms])
    each = "" if len(norms) == 1 else ", on average over pairs of sites"
    p = "" if np.isnan(norms[0].p_value) else f"; {p_text(norms[0].p_value, norms[0].n_boot)}"
    more = f"{p} for no difference" if p and len(norms) == 1 else ""
    return [
        f"The transition probabilities of the sites differ by {mean:.3f} (norm weighted by "
        f"occupancy{each}{more})."
    ]


def _of_one_model(findings: Findings) -> list[str]:
    (model,) = findings.analysis.own.values()
    (certainty,) = findings.analysis.certainty.values()
    n, searches = model.n_replicated_, model.n_searches_
    confirmed = f"{n} of {searches} independent searches reached the best likelihood"
    if n < 2:
        confirmed += ", so that a better model may exist"
    return [
        f"Patients belong to their class with a mean probability of "
        f"{certainty['probability'].mean():.2f} (entropy R² {model.entropy():.2f}).",
        f"{confirmed}{'' if model.converged_ else '; the best of them did not converge'}.",
    ]


def _of_sites(study: Study, findings: Findings) -> list[str]:
    assert findings.influence is not None
    (vote_share,) = pick(findings.numbers, Kind.VOTE_SHARE)
    return [
        f"{_certainty(findings)}On average {percent_text(vote_share.value)} of the models' weight "
        "votes for a patient's cluster, which shows how stable the clusters are, not how certain, "
        "since models of resamples of the same patients agree with each other; without one of the "
        f"sites at most {_share(study, findings.influence['share'].max())} would change cluster.",
        _site_sentence(findings),
    ]


def _certainty(findings: Findings) -> str:
    """How certain patients' clusters are under the refined model, if there is one."""
    refined = findings.analysis.refined
    if refined is None:
        return ""
    sure = np.concatenate(
        [t.to_numpy().max(axis=1) for t in findings.analysis.memberships.values()]
    )
    rounds = f"{refined.n_rounds_} round{'s' * (refined.n_rounds_ != 1)}"
    return (
        f"After {rounds} of refinement, with shared courses and each site's own proportions, "
        f"patients belong to their cluster with a mean probability of {sure.mean():.2f}, as far as "
        "the model holds. "
    )


def _share(study: Study, share: float) -> str:
    """A share of the patients, which is NaN if it rests on too few."""
    if np.isnan(share):
        return few_patients(study.privacy.min_count)
    return f"{percent_text(share)} of the patients"


def _site_sentence(findings: Findings) -> str:
    """How much the sites differ within clusters, against each site's own model."""
    kinds = {"quantity": "transition", "weighting": "occupancy"}
    ensemble, local = (
        pick(findings.numbers, Kind.DIFFERENCE, membership=name, **kinds)
        for name in ("ensemble", "local")
    )
    ours, theirs = (np.mean([one.value for one in part]) for part in (ensemble, local))
    less = "less" if ours < theirs else "no less"
    each = "" if len(ensemble) == 1 else ", on average over pairs of sites"
    more, own = "", ""
    if len(ensemble) == 1 and not np.isnan(ensemble[0].debiased):
        first, own = ensemble[0], f"; {local[0].debiased:.3f} without that part"
        more = (
            f"; {first.debiased:.3f} without the part that sampling adds, 95 % interval "
            f"{first.low:.3f} to {first.high:.3f}; {p_text(first.p_value, first.n_boot)} for no "
            "difference"
        )
    return (
        f"Within the clusters the transition probabilities of the sites differ by {ours:.3f} (norm "
        f"weighted by occupancy{each}{more}), {less} than with each site's own model "
        f"({theirs:.3f}{own}); any common rule lowers such differences, so that this does not show "
        "that the clusters are better."
    )


# --- methods ------------------------------------------------------------------------------


def methods(study: Study, findings: Findings, n_classes: int) -> str:
    """A paragraph for a paper, with the settings that were used."""
    analysis = findings.analysis
    text = [_data_methods(study, analysis), _model_methods(study, analysis, n_classes)]
    if study.classes.number == "vote":
        who = "for most sites' own data (of equals, the smaller number)"
        text.append(
            f"The number of classes was that with the smallest {study.classes.criterion.upper()} "
            f"{who if len(analysis.sequences) > 1 else ''}".rstrip()
            + f", among {span(study.classes.candidates)} (n: {study.classes.count}); these fits "
            "had the same starts, and those with the chosen number are the models."
        )
    if analysis.ensemble is not None:
        text += _ensemble_methods(study, analysis, n_classes)
    if findings.trends:
        text.append(
            "The course of the laboratory value was estimated at each site by a linear mixed "
            "model of its logarithm with a natural cubic spline of time for each group and a "
            "random intercept for each patient, by restricted maximum likelihood; curves are "
            "geometric means, with pointwise 95 % bands from the sandwich estimator with patients "
            "as clusters, and values given as a limit (such as <2) were left out."
        )
    text += inference_methods(study, findings)
    text.append(f"All was done with mmlca {__version__}, seed {study.seed}.")
    return " ".join(text)


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


def _ensemble_methods(study: Study, analysis: Analysis, n_classes: int) -> list[str]:
    distance = study.ensemble.distance.replace("euclid", "Euclid")
    n_boot = study.outputs.bootstrap
    inference = (
        f" From {n_boot:,} bootstrap samples of each site's patients we estimated what sampling "
        "adds to the squared norms, subtracted it (debiased norm), and took as 95 % interval the "
        "multiples of the observed difference under which the observed norm is neither among the "
        f"2.5 % largest nor smallest; p-values of no difference are from {n_boot:,} permutations "
        "of the patients of a cluster between the sites (Monte-Carlo standard error at most "
        f"{0.5 / max(n_boot, 1) ** 0.5:.2g}). Memberships were held fixed, so that the uncertainty "
        "of the clustering is in none of these."
    )
    return [
        f"The {len(analysis.models)} models were combined by federated one-shot ensemble "
        "clustering: every patient was labelled by every model, models were weighted "
        f"({study.ensemble.weights} weights) by the agreement of their {distance} class "
        f"distances, and the weighted distances were clustered ({_METHODS[study.ensemble.method]}) "
        f"into {n_classes} clusters, from counts of label patterns alone.",
        "Differences between sites are Frobenius norms of differences of empirical transition "
        "matrices, averaged over clusters, plain and with states weighted by occupancy."
        + (inference if n_boot else ""),
    ]


# --- cautions -------------------------------------------------------------------------------


def cautions(study: Study, findings: Findings, warned: list[str]) -> list[str]:
    """What a reader should know before believing the numbers."""
    analysis = findings.analysis
    notes = []
    if study.synthetic:
        notes.append(
            "The patients are synthetic. The numbers show what the method does, and nothing about "
            "any hospital."
        )
    notes += _about_fits(study, analysis)
    notes += _about_choice(study, findings)
    notes += _about_windows(study, analysis)
    notes.append(
        f"The {groups_word(study)} are made from the treatment courses: that their patients take "
        "the drug classes which describe them is how they were formed, not a finding. Shares at "
        "the last time are of those still observed then."
    )
    if analysis.ensemble is not None:
        (doubtful,) = pick(findings.numbers, Kind.DOUBTFUL)
        notes += analysis.ensemble.cautions(about_number=findings.suggested is None)
        notes.append(
            f"The vote share of {_share(study, doubtful.value)} is below {DOUBTFUL}; the folder "
            "patients says whose. A vote share is the share of the models' weight that votes for "
            "the cluster, not the probability that the cluster is right."
        )
    if findings.differences is not None:
        if analysis.ensemble is not None:
            notes += findings.differences.cautions()
        notes.append(
            "Intervals and p-values of the site differences hold the clusters fixed; the "
            "uncertainty of the clustering is not in them. The norms themselves are larger than 0 "
            "by sampling alone: compare the debiased ones."
        )
    if findings.trends:
        notes.append(
            "Laboratory values before the first prescription are grouped by treatment that came "
            "later, so that differences between groups there may be causes of the treatment."
        )
    notes += inference_cautions(study, findings)
    if study.published is not None:
        notes.append(
            "The published numbers come from other patients; they stand beside these for "
            "orientation and are not a target."
        )
    return notes + warned


def _about_fits(study: Study, analysis: Analysis) -> list[str]:
    models = {**analysis.models, **analysis.own}
    once = [name for name, model in models.items() if model.n_replicated_ < 2]
    unfinished = [name for name, model in models.items() if not model.converged_]
    notes = []
    if once:
        notes.append(
            f"The maximum of {_models(once)} was reached by fewer than two independent searches; a "
            f"better one may exist: {_search_longer(study)}."
        )
    if unfinished:
        notes.append(f"The fit of {_models(unfinished)} did not converge.")
    large = [name for name, model in models.items() if model.n_parameters_ > model.n_sequences_]
    if large:
        notes.append(
            f"{_models(large)[0].upper()}{_models(large)[1:]} have more free parameters than "
            "patients; fewer classes would say more."
        )
    used = {name: analysis.labels[str(site_of(name))][name].nunique() for name in models}
    empty = [name for name, model in models.items() if used[name] < model.params_.n_classes]
    if empty:
        notes.append(
            f"In {_models(empty)} some classes are no patient's likeliest; fewer classes would do."
        )
    return notes


def _search_longer(study: Study) -> str:
    if study.model.search == "default":
        return 'set model.search = "thorough", which takes several times as long'
    return f"raise model.n_init (now {study.model.n_init})"


def _models(names: list[str]) -> str:
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} model{'s' * (len(names) > 1)} ({listed(names[:5])}{more})"


def _about_choice(study: Study, findings: Findings) -> list[str]:
    choice = findings.choice
    if choice is None:
        return []
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    others = {site: str(chosen) for site, chosen in sites.items() if chosen != k}
    counts = resamples[resamples != k].value_counts()
    others |= {f"{n} of {len(resamples)} resamples": str(c) for c, n in counts.items()}
    notes = []
    if others:
        notes.append(
            "Not all data sets chose the same number of classes: "
            + listed([f"{name} chose {chosen}" for name, chosen in others.items()])
            + ". `mmlca study sensitivity` shows how much another number changes."
        )
    if k == choice["classes"].max() > 1:
        notes.append(f"The largest number of classes tried ({k}) was chosen; try larger ones.")
    suggested = findings.suggested
    if suggested is not None:
        pairs = list(zip(suggested["suggested"], suggested["sure"], strict=True))
        same = len(set(pairs)) == 1
        numbers = listed([f"{number} ({sure})" for number, sure in pairs[: 1 if same else None]])
        asked = listed([str(c) for c in suggested["classes"] if c != "all"])
        joint = ", and of all of these together," if "all" in [*suggested["classes"]] else ""
        notes.append(
            f"Models with {k} classes tell {k} groups apart, so that the spectrum of their "
            f"ensemble suggests {k} clusters partly because it must. Ensembles of models with "
            f"{asked} classes{joint} suggest {numbers} clusters. "
            f"{RECORD[suggested['sure'].iloc[-1]]}"
        )
    n = int((~choice["converged"]).sum())
    if n:
        notes.append(
            f"{n} of the {len(choice)} fits that compare numbers of classes did not converge (see "
            "the column “converged” of their table)."
        )
    return notes


def _about_windows(study: Study, analysis: Analysis) -> list[str]:
    notes = []
    for site, data in analysis.sequences.items():
        windows = data.account and data.account.settings["windows"]
        if windows and windows["followed_up"]:
            kinds = ("without_record", "tied", "several_classes")
            empty, tied, several = (
                _window_share(windows[kind], windows["followed_up"], data.shape[1], study)
                for kind in kinds
            )
            done = "filled in" if study.rules.impute != "missing" else "left missing"
            notes.append(
                f"At {site} {empty} of the {windows_name(study)} had no record and were {done}; "
                f"{several} had two or more drug classes, which were tied in {tied}."
            )
    return notes


def _window_share(windows: int, every: int, per_patient: int, study: Study) -> str:
    """A share of all windows in words; a bound where the windows could be those of few patients."""
    most = study.privacy.min_count * per_patient
    if hides(study.privacy.min_count) and is_small(windows, most):
        return f"less than {np.ceil(100 * min(most / every, 1)):.0f} %"
    return percent_text(windows / every)
