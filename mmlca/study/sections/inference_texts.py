"""Sentences on how sure a study is: its methods, and what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmlca.model.criteria import OVERLAP
from mmlca.model.selection import compare_criteria
from mmlca.sequences.checks import listed
from mmlca.study.inference import uses_refits
from mmlca.study.words import group_word, groups_word, in_words
from mmlca.tables.norm_texts import p_text

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_CORRECTED = {
    "BCH": "with the weights of Bolck, Croon and Hagenaars (BCH), which correct for wrong "
    "assignments",
    "ML": "by maximum likelihood with the classification errors fixed, which corrects for wrong "
    "assignments",
    None: "with assignments taken as true",
}


def inference_methods(study: Study, findings: Findings) -> list[str]:
    """Sentences of the methods paragraph."""
    found, rules, text = findings.inference, study.inference, []
    several = len(findings.analysis.own) > 1
    model = "each site's own model" if several else "the model"
    if found.parameters is not None:
        text.append(
            f"Standard errors of the probabilities of {model} are robust (sandwich), with "
            f"intervals on the logit scale{_bootstrapped(study, findings)}."
        )
    if found.class_tests is not None:
        text.append(
            f"{'At each site the' if several else 'The'} number of classes was compared with one "
            "fewer and one more by "
            f"likelihood-ratio tests with at most {rules.blrt} samples from the smaller model, to "
            "which both models were fitted (parametric bootstrap)."
        )
    if found.stability is not None:
        text.append(
            f"Stability of the classes was judged by {rules.bootstrap:,} refits to patients drawn "
            "with replacement."
        )
    if found.diagnostics:
        text.append(
            f"The fit of {model} was judged by the mean probabilities of assigned classes, by "
            "residuals of the states over time, and by tests of memory beyond one "
            "step, of lengths of stays, of the states over time and of steps in the two halves of "
            "the time, with reference values from "
            f"{next(iter(found.diagnostics.values())).n_sim} sets of sequences drawn from the "
            "model and fitted again; follow-up ended in them after each state and time as often as "
            f"in the data{', and the model that the sites share was judged alike' * several}. "
            "P-values were adjusted for the number of these tests by Holm's method."
        )
    one_step = study.covariates.method == "one-step"
    if (found.effects is not None and not one_step) or found.outcomes is not None:
        text.append(_memberships(findings))
    if found.effects is not None:
        how = f"after classification, {_CORRECTED[study.covariates.correction]}"
        if one_step:
            how = (
                "inside the mixture, estimated together with the chains from those of the "
                f"{groups_word(study)} on, with robust (sandwich) standard errors that allow for "
                "unknown classes"
            )
        together = " and pooled with inverse-variance weights" if found.pooled is not None else ""
        text.append(
            f"Effects of {listed(list(study.covariates.columns))} on membership are from a "
            f"multinomial logit {how}{', at each site' * several}{together}."
        )
    if found.outcomes is not None:
        text.append(
            f"The {groups_word(study)} were compared in {listed(list(study.outcomes.columns))} "
            f"{_CORRECTED[study.outcomes.correction]}, with sandwich standard errors and Wald "
            "tests (pairs adjusted by Holm's method)."
        )
    if found.survival is not None:
        text.append(_survival(study, findings))
    return text


def _bootstrapped(study: Study, findings: Findings) -> str:
    own = findings.analysis.own
    sites = [site for site, model in own.items() if uses_refits(study, model)]
    if not sites:
        return ""
    where = f"at {listed(sites)}, " if len(own) > 1 else ""
    return (
        f"; {where}where the classes overlap (entropy R² below {OVERLAP:g}), they are from "
        f"{study.inference.bootstrap:,} refits to patients drawn with replacement"
    )


def _memberships(findings: Findings) -> str:
    if findings.analysis.ensemble is None:
        return (
            "Classification errors are those that the model's memberships imply, and the "
            "uncertainty of the model is part of the standard errors."
        )
    return (
        "The clusters of an ensemble have no memberships of their own; in their place stand those "
        "of Markov chains that all sites share, estimated by EM from the clusters to convergence, "
        "with the proportions of each site. They are taken as known, so that standard errors leave "
        "out the uncertainty of the clustering."
    )


def _survival(study: Study, findings: Findings) -> str:
    full = findings.inference.survival
    assert full is not None
    curve = "one less the Aalen–Johansen" if full.competing else "the Kaplan–Meier"
    competing = (
        f"; {in_words(study.outcomes.competing)} was a competing event, and hazards are "
        "cause-specific"
        if full.competing
        else ""
    )
    adjusted = (
        f" adjusted for {listed(list(study.covariates.columns))}"
        if study.covariates.columns
        else ""
    )
    strata = " and stratified by site" if len(study.sites) > 1 else ""
    return (
        f"Time to {in_words(study.outcomes.event)} was counted from a landmark {full.landmark:.3g} "
        "years after the first treatment, when all windows that form the "
        f"{groups_word(study)} have passed, among those who reached it: {curve} estimate, log-rank "
        f"tests and Cox regression{adjusted}{strata}{competing}."
    )


def cautions_about_number(study: Study, findings: Findings) -> list[str]:
    """Where criteria or tests disagree about the number of classes."""
    notes, choice, tests = [], findings.choice, findings.inference.class_tests
    if choice is not None:
        sentences = {
            site: [compare_criteria(rows.drop(columns="site"))]
            for site, rows in choice[choice["site"].isin(list(study.sites))].groupby("site")
        }
        notes = [
            f"The criteria disagree at {sites}: {sentence}"
            for sites, sentence in _said_of_sites(sentences)
            if not sentence.startswith("All criteria")
        ]
    if tests is None:
        return notes
    for site, model in findings.analysis.own.items():
        k = model.params_.n_classes
        for row in tests[tests["site"] == site].to_dict("records"):
            p = f"bootstrap test, p = {row['p_value']:.3g}"
            if row["classes"] > k and row["p_value"] <= 0.05:
                notes.append(
                    f"At {site} {row['classes']} classes fit better than the {k} used ({p})."
                )
            if row["classes"] == k and row["p_value"] > 0.05:
                notes.append(
                    f"At {site} the {k} classes used do not fit clearly better than {k - 1} ({p})."
                )
    return notes


def _said_of_sites(sentences: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Each sentence once, with all sites of which it is said.

    >>> _said_of_sites({"A": ["One.", "Two."], "B": ["Two."]})
    [('A', 'One.'), ('A and B', 'Two.')]
    """
    sites: dict[str, list[str]] = {}
    for site, texts in sentences.items():
        for text in texts:
            sites.setdefault(text, []).append(site)
    return [(listed(names), text) for text, names in sites.items()]


def shared_cautions(findings: Findings) -> list[str]:
    """What it means for the clusters if the sites do not share their chains."""
    shared, analysis = findings.shared, findings.analysis
    if shared is None or analysis.ensemble is None or not len(shared.rejected()):
        return []
    p = p_text(shared.tests["p_holm"].iloc[0], shared.n)
    return [
        f"The sites do not share all courses of the clusters ({p}). The ensemble, its refinement, "
        "and effects and outcomes by cluster take it that they do, up to proportions of their own. "
        "The more the sites differ, the less the probabilities of clusters can be believed, and "
        "the more a cluster may stand for another group of patients at each site. Do not refine "
        "to convergence then, and compare the clusters with each site's own model."
    ]


def inference_cautions(study: Study, findings: Findings) -> list[str]:
    """What a reader should know before believing errors, effects and outcomes."""
    found = findings.inference
    doubts = {
        site: part.shown(study.privacy.min_count).cautions()
        for site, part in found.diagnostics.items()
    }
    if found.shared_fit is not None:
        doubts["all sites together"] = found.shared_fit.shown(study.privacy.min_count).cautions()
    notes = [f"At {sites}: {text[0].lower()}{text[1:]}" for sites, text in _said_of_sites(doubts)]
    own = findings.analysis.own
    overlapping = [site for site, model in own.items() if model.entropy() < OVERLAP]
    if found.parameters is not None and overlapping and not study.inference.bootstrap:
        where = f" at {listed(overlapping)}" if len(own) > 1 else ""
        notes.append(
            f"The classes{where} overlap (entropy R² below {OVERLAP:g}), so that the intervals of "
            "their probabilities may be too narrow; bootstrap = 500 under [inference] takes them "
            "from refits instead."
        )
    if found.effects is not None or found.outcomes is not None:
        notes.append(
            f"Effects and outcomes of the {groups_word(study)} are associations: patients were not "
            "assigned to treatments at random."
        )
    if found.survival is not None:
        notes.append(
            f"Survival is compared between {groups_word(study)} as assigned, without correction "
            f"for patients who belong to another {group_word(study)}, and only among those who "
            "reached the landmark."
        )
    return notes + found.left_out
