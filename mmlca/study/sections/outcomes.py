"""Outcomes of the groups, and the time to an event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mmlca.figures.curves import plot_survival
from mmlca.sequences.checks import listed
from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.site import ALL_SITES
from mmlca.study.sections.covariates import CORRECTED, CORRECTION, POOLING, memberships
from mmlca.study.sections.section import Section
from mmlca.study.words import group_word, groups_word, in_words, sentences
from mmlca.tables.disclosure import hidden_note, hides

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study
    from mmlca.tables.survival import Survival


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Outcomes and tests between groups; curves, tests and hazards of the time to an event."""
    yield from _outcomes(study, findings)
    survival = findings.outcomes.survival
    if survival is None:
        return
    if len(survival.curves):
        yield _curves(study, findings, survival)
    yield from _survival_tables(study, survival, findings.outcomes.hazards)


def _outcomes(study: Study, findings: Findings) -> Iterator[Item]:
    found, group = findings.outcomes, group_word(study)
    if found.outcomes is None or found.tests is None:
        return
    several = len(findings.sites) > 1
    yield Item(
        "outcomes",
        f"Outcomes of the {groups_word(study)}",
        sentences(
            f"Means and shares by {group}; {CORRECTED[study.outcomes.correction]}, with 95 % "
            "intervals.",
            "Those of the sites are weighted by their patients." if several else "",
        ),
        found.outcomes,
        Plain(n_keys=3, labels={"class": group}),
        note=count_note(study),
    )
    if found.tests is not None and len(found.tests):
        yield Item(
            "outcome_tests",
            f"Differences between the {groups_word(study)} in outcomes",
            "Wald tests that all are equal, and of each pair, with unadjusted p-values and "
            "p-values adjusted for the number of pairs (Holm).",
            found.tests,
            Plain(n_keys=2),
            note=hidden_note(study.privacy.min_count),
        )
    if found.differences is not None:
        yield Item(
            "outcomes_pooled",
            f"Differences between the {groups_word(study)} within the sites",
            f"The differences at the sites, {POOLING}",
            found.differences,
            Plain(shares=("i2",), n_keys=3),
            note=hidden_note(study.privacy.min_count),
        )


def _curves(study: Study, findings: Findings, shown: Survival) -> Item:
    event, min_count = in_words(study.outcomes.event), study.privacy.min_count
    what = (
        "one minus the cumulative incidence (Aalen–Johansen)"
        if shown.competing
        else "the Kaplan–Meier estimate"
    )
    times = (
        f"It is shown at times between which at least {min_count} patients had the event or left."
    )
    by_site = "site" in shown.curves
    if by_site:
        times = (
            "The curve of a site is given at times between which at least "
            f"{min_count} of its patients had the event or left. That of all sites falls by the "
            "mean of their falls, weighted by the patients at risk; between the times of a site "
            "its curve is taken to fall evenly, so that the curve of all sites is precise to about "
            "a hundredth, and in the last stretch of a site's curve to some hundredths."
        )
    return Item(
        "survival",
        f"Time to {event}",
        sentences(
            f"Share of patients without the event by {group_word(study)}, in years since the "
            f"landmark {shown.landmark:.3g} years after the first treatment: {what}, with 95 % "
            "intervals.",
            times if hides(min_count) else "",
            f"Only patients who reach the landmark count, in the {groups_word(study)} to which "
            "they were assigned.",
        ),
        shown.curves,
        Plain(shares=("survival", "low", "high"), n_keys=2 + by_site),
        lambda: plot_survival(_of_all(shown), unit="years", min_count=min_count, hidden=False),
        f"Curves of the share without {event} by {group_word(study)}.",
        note=count_note(study),
    )


def _of_all(found: Survival) -> Survival:
    """The curves of all sites."""
    curves = found.curves
    return (
        found
        if "site" not in curves
        else replace(found, curves=curves[curves["site"] == ALL_SITES])
    )


def _survival_tables(study: Study, shown: Survival, pooled: pd.DataFrame | None) -> Iterator[Item]:
    event, note = in_words(study.outcomes.event), count_note(study)
    several = len(study.sites) > 1
    stratified = ", stratified by site" if several else ""
    yield Item(
        "survival_tests",
        f"Log-rank tests of the time to {event}",
        f"Tests that all {groups_word(study)} have the same hazard, and of each pair{stratified}, "
        "with unadjusted p-values and p-values adjusted for the number of pairs (Holm).",
        shown.tests.drop(columns="pair"),
        note=hidden_note(study.privacy.min_count),
    )
    yield Item(
        "survival_hazards",
        f"Hazard ratios of {event}",
        sentences(
            f"Cox regression{' at each site' if several else ''}: hazard ratios with 95 % "
            "intervals and p-values; a small last p-value shows that the ratio changes with time.",
            ""
            if several
            else "Events and others: the fewest patients with and without the event on either side "
            "of the comparison.",
        ),
        shown.hazards.drop(columns="group"),
        note=note,
    )
    if pooled is not None:
        yield Item(
            "survival_pooled",
            f"Hazard ratios of {event} over all sites",
            f"The sites' log hazard ratios, {POOLING} Those that are hidden at a site do not "
            "contribute.",
            pooled,
            Plain(shares=("i2",), n_keys=1),
        )
    yield Item(
        "survival_excluded",
        "Patients before the landmark",
        "Patients who had the event or a competing one, or whose follow-up ended, before the "
        "landmark; and those who reached it.",
        shown.excluded,
        note=note,
    )


# --- methods and cautions -----------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How groups were compared in outcomes and in the time to an event."""
    found, text = findings.outcomes, []
    if found.outcomes is not None:
        if found.effects is None or study.covariates.method == "one-step":
            text.append(memberships(study, findings))  # otherwise the methods of covariates have it
        text.append(
            f"The {groups_word(study)} were compared in {listed(list(study.outcomes.columns))} "
            f"{CORRECTION[study.outcomes.correction]}, with sandwich standard errors and Wald "
            "tests (pairs adjusted by Holm's method)."
        )
        if len(findings.sites) > 1:
            text.append(
                "Outcomes were estimated at each site; means and shares of all sites are weighted "
                "by their patients, and differences within sites were pooled with fixed and random "
                "effects (DerSimonian and Laird)."
            )
    if found.survival is not None:
        text.append(_survival_methods(study, found.survival))
    return text


def _survival_methods(study: Study, full: Survival) -> str:
    curve = "one minus the Aalen–Johansen" if full.competing else "the Kaplan–Meier"
    competing = (
        f"; {in_words(study.outcomes.competing)} was a competing event, and hazards are "
        "cause-specific"
        if full.competing
        else ""
    )
    columns = study.covariates.columns
    adjusted = f" adjusted for {listed(list(columns))}" if columns else ""
    several = len(study.sites) > 1
    tests = "log-rank tests stratified by site" if several else "log-rank tests"
    where = " at each site, pooled with fixed and random effects" if several else ""
    return (
        f"Time to {in_words(study.outcomes.event)} was counted from a landmark {full.landmark:.3g} "
        f"years after the first treatment, when all windows that form the {groups_word(study)} "
        f"have passed, among those who reached it: {curve} estimate, {tests} and Cox "
        f"regression{adjusted}{where}{competing}."
    )


def cautions(study: Study, findings: Findings) -> list[str]:
    """What effects, outcomes and survival do not show, and what could not be estimated."""
    found, notes = findings.outcomes, []
    if found.effects is not None or found.outcomes is not None:
        notes.append(
            f"Effects and outcomes of the {groups_word(study)} are associations: patients were not "
            "assigned to treatments at random."
        )
    if found.survival is not None:
        group = group_word(study)
        notes.append(
            f"Survival is compared between {groups_word(study)} as assigned, without correction "
            f"for patients who belong to another {group}, and only among those who reached the "
            "landmark."
        )
    return notes + found.left_out


SECTION = Section("outcomes", "Outcomes", items, methods, cautions)
