"""The result of a study in a few sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.search import is_confirmed
from mmlca.sequences.checks import listed
from mmlca.study.headline import Kind, Number, pick, votes
from mmlca.study.release import count_text
from mmlca.study.results.certainty import mean_of, same_as_own
from mmlca.study.results.site import stacked
from mmlca.study.sections.form_choice import form_sentence
from mmlca.study.sections.leaving import largest_class
from mmlca.study.words import (
    counted,
    group_name,
    groups_word,
    number_word,
    period,
    sentences,
    share_of_patients,
    span,
    window_name,
)
from mmlca.tables.clusters import (
    Course,
    course_of,
    course_text,
    end_text,
    percent_text,
    rate_text,
)
from mmlca.tables.norms import p_text

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_NORM = (
    "norm of the differences in transition probabilities, in which common transitions count more; "
    "0 means no difference"
)
_SURE = "probability"
_BY_OCCUPANCY = {"quantity": "transition", "weighting": "occupancy"}


def summary(study: Study, findings: Findings) -> list[str]:
    """The result in a few points, for someone who reads nothing else."""
    return [
        _patients(study, findings),
        _course_sentence(study, findings),
        sentences(_choice(study, findings), form_sentence(study, findings)),
        *largest_class(study, findings),
        *_certainty(study, findings),
        *_sites(findings),
    ]


def _patients(study: Study, findings: Findings) -> str:
    patients = stacked(findings.results, "about").set_index("site")["patients"]
    sizes = listed([f"{count_text(study, patients[site])} at {site}" for site in findings.sites])
    where = f" ({sizes})" if len(findings.sites) > 1 else f" at {listed(findings.sites)}"
    total = count_text(study, patients.sum())
    synthetic = "synthetic " if study.synthetic else ""
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    verb = (
        "are best described by a single class: no groups of courses can be distinguished"
        if clusters.value == 1
        else f"fall into {number_word(int(clusters.value))} {groups_word(study)}"
    )
    return (
        f"The treatment courses of {total} {synthetic}patients{where}, observed for up to "
        f"{period(study, len(findings.times))}, {verb}."
    )


def _course_sentence(study: Study, findings: Findings) -> str:
    """The share, name and main numbers of each cluster, in one sentence."""
    courses, window = [], window_name(study)
    given = study.outputs.names is not None
    for row in findings.described.to_dict("records"):
        group = group_name(study, row["cluster"])
        if row["name"] is None or pd.isna(row["name"]) or pd.isna(row["switches"]):
            courses.append(f"{group}: {row['description']}")
            continue
        name = f"“{row['name']}”" if given else str(row["name"])
        if not given and course_of(row) is Course.MIXED:
            name = "mixed"  # its paths follow with their shares
        parts = [course_text(row, window)]
        if course_of(row) is Course.MIXED and row["end_share"] >= 0.5:
            parts.append(end_text(row))
        details = "; ".join([*parts, f"{rate_text(row['switches'])} switches per patient"])
        if len(findings.described) == 1:
            return f"As a whole, they are {name} ({details})."
        courses.append(f"{percent_text(row['share'])} are {name} ({group}; {details})")
    return f"{listed(courses)}."


def _choice(study: Study, findings: Findings) -> str:
    choice = findings.fits.choice
    if choice is None or study.classes.number != "vote":
        return f"The number of {groups_word(study)} was fixed in advance."
    criterion, tried = study.classes.criterion.upper(), span(study.classes.candidates)
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    if len(sites) == 1:
        return f"{criterion} chose {counted(k, 'class')} (candidates: {tried})."
    if (sites == k).all():
        text = (
            f"At each site, {criterion} chose {counted(k, 'class')} for the site's own data "
            f"(candidates: {tried})"
        )
    else:
        chosen = listed([f"{number} at {site}" for site, number in sites.items()])
        counts = sites.value_counts()
        tied = (counts == counts.max()).sum() > 1
        rule = "the smallest of the most frequent numbers" if tied else "the most frequent number"
        text = (
            f"For the sites' own data, {criterion} chose different numbers of classes (candidates: "
            f"{tried}): {chosen}; {rule}, {k}, was used"
        )
    if len(resamples):
        n = int((resamples == k).sum())
        text += (
            f"; of {len(resamples)} resamples, {n} chose {k}, which shows stability but is no "
            "further evidence, because they contain the same patients"
        )
    return f"{text}."


# --- how certain the clusters are ---------------------------------------------------------


def _certainty(study: Study, findings: Findings) -> list[str]:
    """How certain patients' clusters are; nothing if there is a single class."""
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    if findings.combined.ensemble is not None:
        return [_of_ensemble(study, findings)]
    return [] if clusters.value == 1 else _of_one_model(findings)


def _of_one_model(findings: Findings) -> list[str]:
    (model,) = findings.fits.own.to_dict("records")
    n, searches = int(model["replicated"]), int(model["searches"])
    sure = mean_of(findings.results, _SURE)
    doubt = "" if is_confirmed(n, searches) else ", so a better model may exist"
    converged = "" if model["converged"] else "; the best of them did not converge"
    return [
        "Patients belong to their class with a mean probability of "
        f"{sure:.2f} (entropy R² {model['entropy']:.2f}), if the model is right"
        f"{_tests_against(findings)}.",
        f"{n} of {searches} independent searches reached the best likelihood{doubt}{converged}.",
    ]


def _tests_against(findings: Findings) -> str:
    """How many tests of its fit reject the model of a single site."""
    for found in findings.fits.diagnostics.values():
        n = int((found.tests["p_holm"] <= 0.05).sum())
        verb = "reject" if n > 1 else "rejects"
        return f"; {n or 'none'} of the {len(found.tests)} tests of its fit {verb} it"
    return ""


def _of_ensemble(study: Study, findings: Findings) -> str:
    """How certain the clusters are, and how many patients would change without a site."""
    influence = findings.combined.influence
    if findings.combined.refined is None:
        (vote_share,) = pick(findings.numbers, Kind.VOTE_SHARE)
        text = (
            f"On average, {percent_text(vote_share.value)} of the models' weight votes for a "
            "patient's cluster"
        )
    else:
        same = same_as_own(findings.results, study.privacy.min_count)["all"]
        own = f"; {percent_text(same)} have the same cluster under their site's own model"
        text = (
            "Patients belong to their cluster with a mean probability of "
            f"{mean_of(findings.results, _SURE):.2f} (under the refined model, if it is "
            f"right{'' if np.isnan(same) else own})"
        )
    if influence is None:
        return f"{text}."
    most = influence["share"].max()
    changed = f"{'' if np.isnan(most) else 'at most '}{share_of_patients(study, most)}"
    return f"{text}; {changed} would change cluster if one of the sites had not taken part."


# --- how much the sites differ ------------------------------------------------------------


def _sites(findings: Findings) -> list[str]:
    """How much the sites differ within clusters, against each site's own model."""
    norms = _norms(findings, "ensemble")
    if not norms:
        return []
    if findings.combined.ensemble is None:  # a single class: all patients of a site
        size = f"{_mean(norms):.3f} ({_NORM}{_averaged(norms)})"
        return [f"What patients take next differs between the sites by {size}. {_apart(findings)}."]
    return [_site_sentence(findings)]


def _site_sentence(findings: Findings) -> str:
    ensemble, local = _norms(findings, "ensemble"), _norms(findings, "local")
    own = ""
    if local:
        own = f"; under each site's own model, by {_mean(local):.3f}"
        if _mean(ensemble) < _mean(local):
            own += (
                ", but a common rule often lowers this norm, so a lower one does not show that the "
                "clusters are better"
            )
    return (
        "Within the clusters, what patients take next differs between the sites by "
        f"{_mean(ensemble):.3f} ({_NORM}{_averaged(ensemble)}){own}. {_apart(findings)}."
    )


def _norms(findings: Findings, membership: str) -> list[Number]:
    """The norms of all pairs of sites where these are known."""
    norms = pick(findings.numbers, Kind.DIFFERENCE, membership=membership, **_BY_OCCUPANCY)
    return [norm for norm in norms if not np.isnan(norm.value)]


def _mean(norms: list[Number]) -> float:
    return float(np.mean([norm.value for norm in norms]))


def _averaged(norms: list[Number]) -> str:
    return "" if len(norms) == 1 else "; mean over the comparisons of sites"


def _apart(findings: Findings) -> str:
    """Whether sites share the chains, and how far apart these are, without the full stop."""
    tests = pick(findings.numbers, Kind.SHARED)
    if not tests:
        return "Whether they differ by more than chance was not tested"
    first, *pairs = tests
    p = p_text(first.p_value, first.n_boot)
    norms = pick(findings.numbers, Kind.APART, **_BY_OCCUPANCY)
    if len(norms) == 1:
        (norm,) = norms
        return (
            "Without assigning patients to clusters, and without what sampling adds, the "
            f"difference is {norm.debiased:.3f} (95 % interval {norm.low:.3f} to {norm.high:.3f}); "
            f"a likelihood-ratio test that the sites share all courses gives {p}"
        )
    text = f"A likelihood-ratio test that all sites share all courses gives {p}"
    if not pairs:
        return text
    differ = sum(pair.p_value <= 0.05 for pair in pairs)
    verb = "differs" if differ == 1 else "differ"
    return f"{text}; {differ} of the {len(pairs)} pairs of sites {verb} (adjusted by Holm's method)"
