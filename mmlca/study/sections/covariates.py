"""Who is in which group: effects of covariates on membership."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmlca.figures.forest import plot_effects
from mmlca.sequences.checks import listed
from mmlca.study.release import shown_indices
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import group_name, group_word, groups_word, sentences
from mmlca.tables.disclosure import hidden_note

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_TITLE = "Who is in which group"
CORRECTED = {
    "BCH": "corrected for wrong assignments (BCH)",
    "ML": "corrected for wrong assignments (maximum likelihood)",
    None: "not corrected for wrong assignments",
}
"""How an analysis after classification allows for wrong assignments, for captions."""
CORRECTION = {
    "BCH": "with the weights of Bolck, Croon and Hagenaars (BCH), which correct for wrong "
    "assignments",
    "ML": "by maximum likelihood with the classification errors fixed, which corrects for wrong "
    "assignments",
    None: "with assignments taken as true",
}
"""The same for the methods."""


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Effects by site, and over all sites."""
    effects, pooled = findings.outcomes.effects, findings.outcomes.pooled
    if effects is None:
        return
    effects = shown_indices(study, "effects", effects)
    if pooled is not None:
        pooled = shown_indices(study, "pooled", pooled)
    group = group_word(study)
    how = CORRECTED[study.covariates.correction]
    if _in_one_step(study):
        how = "estimated together with the chains of the site's own patients"
    first = min(c for part in findings.analysis.clusters.values() for c in part.unique())
    yield Item(
        "effects",
        f"Effects on membership in a {group}",
        sentences(
            f"Log-odds of each {group} against the first, "
            f"{group_name(study, first, findings.analysis.names)}, per unit of a number or against "
            f"the first level; {how}, with 95 % intervals.",
            hidden_note(study.privacy.min_count),
            "" if pooled is None else "The diamonds are all sites together.",
        ),
        effects,
        Plain(n_keys=3, empty={"estimate": "–"}, labels={"class": group}),
        lambda: plot_effects(effects, pooled),
        f"Dot plot of the effects of covariates on membership in each {group}, by site.",
    )
    if pooled is not None:
        yield Item(
            "effects_pooled",
            "Effects over all sites",
            "The sites' effects, weighted by the inverse of their variances; Q, its p-value and I² "
            "show how much the sites differ. Effects that are hidden at a site do not contribute.",
            pooled,
            Plain(shares=("i2",), n_keys=2, labels={"class": group}),
        )


def _in_one_step(study: Study) -> bool:
    return study.covariates.method == "one-step"


def methods(study: Study, findings: Findings) -> list[str]:
    """How the effects were estimated."""
    if findings.outcomes.effects is None:
        return []
    how = f"after classification, {CORRECTION[study.covariates.correction]}"
    if _in_one_step(study):
        how = (
            "inside the mixture, estimated together with the chains, starting from those of the "
            f"{groups_word(study)}, with robust (sandwich) standard errors that allow for unknown "
            "classes"
        )
    where = ", at each site" if len(study.sites) > 1 else ""
    pooled = findings.outcomes.pooled is not None
    together = " and pooled with inverse-variance weights" if pooled else ""
    effects = (
        f"Effects of {listed(list(study.covariates.columns))} on membership are from a multinomial "
        f"logit {how}{where}{together}."
    )
    return [effects] if _in_one_step(study) else [memberships(findings), effects]


def memberships(findings: Findings) -> str:
    """Which probabilities an analysis after classification uses."""
    if findings.analysis.ensemble is None:
        return (
            "Classification errors are those that the model's memberships imply, and the "
            "uncertainty of the model is part of the standard errors."
        )
    return (
        "The clusters of an ensemble have no memberships of their own, so we used those of Markov "
        "chains that all sites share, estimated by EM from the clusters to convergence, with the "
        "proportions of each site. They are taken as known, so standard errors leave out the "
        "uncertainty of the clustering."
    )


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Whether the analysis of covariates can be repeated."""
    if not study.covariates.columns:
        return {"8": "does not apply: no covariates were used"}
    done = findings.outcomes.effects is not None
    return {"8": f"section “{_TITLE}”, and the methods" if done else NOT_DONE}


SECTION = Section("covariates", _TITLE, items, methods, answers=answers)
