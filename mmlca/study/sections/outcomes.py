"""Outcomes of the groups, and the time to an event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmlca.figures.survival import plot_survival
from mmlca.sequences.checks import listed
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.covariates import CORRECTED, CORRECTION, memberships
from mmlca.study.sections.section import Section
from mmlca.study.words import group_name, group_word, groups_word, in_words, sentences
from mmlca.tables.disclosure import hidden_note, hides

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study
    from mmlca.tables.survival import Survival


# --- computed from patients ---------------------------------------------------------------


def _shown_survival(study: Study, findings: Findings, full: Survival) -> Survival:
    """Curves, tests and hazards as the release shows them."""
    named = {
        site: part.map(lambda c: group_name(study, c, findings.analysis.names))
        for site, part in findings.analysis.clusters.items()
    }
    return full.shown(study.privacy.min_count, rounding_of(study, named))


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Outcomes and tests between groups; curves, tests and hazards of the time to an event."""
    yield from _outcomes(study, findings)
    full = findings.outcomes.survival
    if full is None:
        return
    shown = _shown_survival(study, findings, full)
    if len(shown.curves):
        yield _curves(study, full, shown)
    yield from _survival_tables(study, shown)


def _outcomes(study: Study, findings: Findings) -> Iterator[Item]:
    found, group = findings.outcomes, group_word(study)
    if found.outcomes is None or found.tests is None:
        return
    together = "" if findings.analysis.ensemble is None else ", all sites together"
    yield Item(
        "outcomes",
        f"Outcomes of the {groups_word(study)}",
        f"Means and shares by {group}{together}; {CORRECTED[study.outcomes.correction]}, with 95 % "
        "intervals.",
        found.outcomes,
        Plain(n_keys=3, labels={"class": group}),
        note=count_note(study),
    )
    yield Item(
        "outcome_tests",
        f"Differences between the {groups_word(study)} in outcomes",
        "Wald tests that all are equal, and of each pair, with unadjusted p-values and p-values "
        "adjusted for the number of pairs (Holm).",
        found.tests,
        Plain(n_keys=2),
        note=hidden_note(study.privacy.min_count),
    )


def _curves(study: Study, full: Survival, shown: Survival) -> Item:
    event, min_count = in_words(study.outcomes.event), study.privacy.min_count
    what = (
        "one minus the cumulative incidence (Aalen–Johansen)"
        if full.competing
        else "the Kaplan–Meier estimate"
    )
    times = (
        f"It is shown at times between which at least {min_count} patients had the event or left."
    )
    return Item(
        "survival",
        f"Time to {event}",
        sentences(
            f"Share of patients without the event by {group_word(study)}, in years since the "
            f"landmark {full.landmark:.3g} years after the first treatment: {what}, with 95 % "
            "intervals.",
            times if hides(min_count) else "",
            f"Only patients who reach the landmark count, in the {groups_word(study)} to which "
            "they were assigned.",
        ),
        shown.curves,
        Plain(shares=("survival", "low", "high"), n_keys=2),
        lambda: plot_survival(full, unit="years", min_count=min_count, shown=shown),
        f"Curves of the share without {event} by {group_word(study)}.",
        note=count_note(study),
    )


def _survival_tables(study: Study, shown: Survival) -> Iterator[Item]:
    event, note = in_words(study.outcomes.event), count_note(study)
    stratified = ", stratified by site" if len(study.sites) > 1 else ""
    yield Item(
        "survival_tests",
        f"Log-rank tests of the time to {event}",
        f"Tests that all {groups_word(study)} have the same hazard, and of each pair, with "
        "unadjusted p-values and p-values adjusted for the number of pairs (Holm).",
        shown.tests.drop(columns="pair"),
        note=hidden_note(study.privacy.min_count),
    )
    yield Item(
        "survival_hazards",
        f"Hazard ratios of {event}",
        f"Cox regression{stratified}: hazard ratios with 95 % intervals and p-values; a small last "
        "p-value shows that the ratio changes with time. Events and others: the fewest patients "
        "with and without the event on either side of the comparison.",
        shown.hazards.drop(columns="group"),
        note=note,
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
            text.append(memberships(findings))  # otherwise the methods of covariates have it
        text.append(
            f"The {groups_word(study)} were compared in {listed(list(study.outcomes.columns))} "
            f"{CORRECTION[study.outcomes.correction]}, with sandwich standard errors and Wald "
            "tests (pairs adjusted by Holm's method)."
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
    strata = " and stratified by site" if len(study.sites) > 1 else ""
    return (
        f"Time to {in_words(study.outcomes.event)} was counted from a landmark {full.landmark:.3g} "
        f"years after the first treatment, when all windows that form the {groups_word(study)} "
        f"have passed, among those who reached it: {curve} estimate, log-rank tests and Cox "
        f"regression{adjusted}{strata}{competing}."
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
