"""Who is in which group: effects of covariates on membership."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmlca.figures.forest import plot_effects
from mmlca.sequences.checks import listed
from mmlca.study.release import is_public, shown_indices
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import group_word, groups_word, sentences
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
ROUNDED = (
    "Effects are rounded at random to whole standard errors, which allow for this and are 10 % "
    "larger for it."
)
"""What a public release does to effects."""
POOLING = (
    "weighted by the inverse of their variances: with fixed effects, and with random effects "
    "(DerSimonian and Laird); Q, its p-value and I² show how much the sites differ."
)
"""How estimates of the sites are pooled, for captions."""


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
    first = next(iter(findings.cluster_names.values()))
    yield Item(
        "effects",
        f"Effects on membership in a {group}",
        sentences(
            f"Log-odds of each {group} against the first, {first}, per unit of a number or against "
            f"the first level; {how}, with 95 % intervals.",
            hidden_note(study.privacy.min_count),
            ROUNDED if is_public(study) else "",
            ""
            if pooled is None
            else "The diamonds are all sites together, filled with fixed and "
            "open with random effects.",
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
            f"The sites' effects, {POOLING} Effects that are hidden at a site do not contribute.",
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
    together = " and pooled with fixed and random effects (DerSimonian and Laird)" if pooled else ""
    effects = (
        f"Effects of {listed(list(study.covariates.columns))} on membership are from a multinomial "
        f"logit {how}{where}{together}."
    )
    return [effects] if _in_one_step(study) else [memberships(study, findings), effects]


def memberships(study: Study, findings: Findings) -> str:
    """Which probabilities an analysis after classification uses."""
    if findings.combined.ensemble is None:
        return (
            "Classification errors are those that the model's memberships imply, and the "
            "uncertainty of the model is part of the standard errors."
        )
    if study.ensemble.refine == "converge":
        which = "the refined clusters"
    else:
        which = (
            "Markov chains that each site estimates by EM, from its patients in the clusters to "
            "convergence"
        )
    return (
        "The clusters of an ensemble have no memberships of their own, so we used those of "
        f"{which}. They are taken as known, so standard errors leave out the uncertainty of the "
        "clustering."
    )


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Whether the analysis of covariates can be repeated."""
    if not study.covariates.columns:
        return {"8": "does not apply: no covariates were used"}
    done = findings.outcomes.effects is not None
    return {"8": f"section “{_TITLE}”, and the methods" if done else NOT_DONE}


SECTION = Section("covariates", _TITLE, items, methods, answers=answers)
