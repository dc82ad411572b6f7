"""The result of a study in five sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.search import is_confirmed
from mmlca.sequences.checks import listed
from mmlca.study.groups import same_as_own
from mmlca.study.numbers import Kind, pick, votes
from mmlca.study.release import count_text, rounding_of
from mmlca.study.words import (
    group_name,
    groups_word,
    number_word,
    period,
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
    shown_sizes,
)
from mmlca.tables.norm_texts import p_text

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_NORM = "norm of the differences in transition probabilities; 0: alike; common steps count more"


def summary(study: Study, findings: Findings) -> list[str]:
    """The result in a few points, for someone who reads nothing else."""
    sequences = findings.analysis.sequences
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    patients = shown_sizes(
        findings.analysis.clusters, 0, rounding_of(study, findings.analysis.clusters)
    )["all"]
    sizes = listed([f"{count_text(study, patients[site])} at {site}" for site in sequences])
    total = count_text(study, patients["all"])
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
        f"The treatment courses of {total} {'synthetic ' * study.synthetic}patients{where}, "
        f"observed for up to {period(study, sequences)}, {verb}.",
        _course_sentence(study, findings),
        _choice(study, findings),
        *last,
    ]


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
        told = "; ".join([*parts, f"{rate_text(row['switches'])} switches per patient"])
        if len(findings.described) == 1:
            return f"Together their course is {name} ({told})."
        courses.append(f"{percent_text(row['share'])} are {name} ({group}; {told})")
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
    each = "" if len(norms) == 1 else "; mean over pairs of sites"
    return [
        f"What patients take next differs between the sites by {mean:.3f} ({_NORM}{each})"
        f"{_apart(findings)}."
    ]


def _of_one_model(findings: Findings) -> list[str]:
    (model,) = findings.analysis.own.values()
    (certainty,) = findings.analysis.certainty.values()
    n, searches = model.n_replicated_, model.n_searches_
    confirmed = f"{n} of {searches} independent searches reached the best likelihood"
    if not is_confirmed(n, searches):
        confirmed += ", so that a better model may exist"
    return [
        f"Patients belong to their class with a mean probability of "
        f"{certainty['probability'].mean():.2f} (entropy R² {model.entropy():.2f}), if the model "
        f"is right{_against(findings)}.",
        f"{confirmed}{'' if model.converged_ else '; the best of them did not converge'}.",
    ]


def _against(findings: Findings) -> str:
    """How many tests of its fit speak against the model of a single site."""
    for found in findings.inference.diagnostics.values():
        n = int((found.tests["p_holm"] <= 0.05).sum())
        say = "say" if n > 1 else "says"
        return f"; {n or 'none'} of the {len(found.tests)} tests of its fit {say} that it is not"
    return ""


def _of_sites(study: Study, findings: Findings) -> list[str]:
    assert findings.influence is not None
    most = findings.influence["share"].max()
    changed = f"{'' if np.isnan(most) else 'at most '}{share_of_patients(study, most)}"
    return [
        f"{_certainty(study, findings)}; {changed} would change cluster if one of the sites had "
        "not taken part.",
        _site_sentence(findings),
    ]


def _certainty(study: Study, findings: Findings) -> str:
    """How certain patients' clusters are under the refined model, if there is one."""
    if findings.analysis.refined is None:
        (vote_share,) = pick(findings.numbers, Kind.VOTE_SHARE)
        share = percent_text(vote_share.value)
        return f"On average {share} of the models' weight votes for a patient's cluster"
    tables = findings.analysis.memberships.values()
    sure = np.concatenate([table.to_numpy().max(axis=1) for table in tables])
    rounding = rounding_of(study, findings.analysis.clusters)
    same = same_as_own(findings.analysis, study.privacy.min_count, rounding)["all"]
    told = f"; {percent_text(same)} have the same cluster by their site's own model"
    return (
        f"Patients belong to their cluster with a mean probability of {sure.mean():.2f} (refined "
        f"model, if it is right{'' if np.isnan(same) else told})"
    )


def _site_sentence(findings: Findings) -> str:
    """How much the sites differ within clusters, against each site's own model."""
    kinds = {"quantity": "transition", "weighting": "occupancy"}
    ensemble, local = (
        pick(findings.numbers, Kind.DIFFERENCE, membership=name, **kinds)
        for name in ("ensemble", "local")
    )
    ours, theirs = (np.mean([one.value for one in part]) for part in (ensemble, local))
    each = "" if len(ensemble) == 1 else "; mean over pairs of sites"
    reserve = (
        ", but a common rule often lowers such a number, so that this does not show that the "
        "clusters are better"
    )
    return (
        f"Within the clusters, what patients take next differs between the sites by {ours:.3f} "
        f"({_NORM}{each}); under each site's own model by {theirs:.3f}"
        f"{reserve if ours < theirs else ''}{_apart(findings)}."
    )


def _apart(findings: Findings) -> str:
    """Whether sites share the chains, and how far these are apart: more to end a sentence with."""
    first, *pairs = pick(findings.numbers, Kind.SHARED)
    p = p_text(first.p_value, first.n_boot)
    kinds = {"quantity": "transition", "weighting": "occupancy"}
    norms = pick(findings.numbers, Kind.APART, **kinds)
    if len(norms) == 1:
        (norm,) = norms
        return (
            ". Without assigning anybody to a cluster, and without what sampling adds, the "
            f"difference is {norm.debiased:.3f} (95 % interval {norm.low:.3f} to {norm.high:.3f}); "
            f"a likelihood-ratio test that the sites share all courses gives {p}"
        )
    differ = sum(pair.p_value <= 0.05 for pair in pairs)
    verb = "differs" if differ == 1 else "differ"
    told = f"; {differ} of the {len(pairs)} pairs of sites {verb} (adjusted by Holm's method)"
    text = f". A likelihood-ratio test that all sites share all courses gives {p}"
    return text + told * bool(pairs)
