"""Medication, classes and patients by sex, age group, calendar year or what else divides them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from mmlca.figures.distribution import plot_state_distribution
from mmlca.sequences.checks import listed
from mmlca.study.release import count_note, is_public
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.results.site import ALL_SITES
from mmlca.study.results.strata import UNKNOWN
from mmlca.study.sections.covariates import memberships
from mmlca.study.sections.section import Section, rests_on
from mmlca.study.words import (
    dead_included,
    group_word,
    groups_word,
    sentences,
    window_name,
    windows_name,
)
from mmlca.tables.clusters import percent_text
from mmlca.tables.disclosure import hidden_note, hides
from mmlca.tables.settings import SITE

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.results.strata import Strata, Stratum
    from mmlca.study.settings import Study

_LEVEL = 0.05


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """For each variable: states by window, shares of the clusters, and Table 1; then the tests."""
    found = findings.strata
    if found is None:
        return
    for number, part in enumerate(found.parts, 1):
        slug = "_".join(re.findall(r"[a-z0-9]+", part.name.lower())) or "variable"
        file = f"{number}_{slug}"
        yield _medication(study, findings, part, file)
        yield _shares(study, part, file)
        if part.people is not None:
            yield _people(study, part, file)
    if len(found.tests):
        yield Item(
            "strata_tests",
            f"Do the shares of the {groups_word(study)} differ?",
            sentences(
                f"Score tests that the shares of the {groups_word(study)} are the same in all "
                f"strata{' within each site' if len(findings.sites) > 1 else ''}, with p-values "
                "adjusted for the number of tests (Holm).",
                *differences(study, found),
            ),
            found.tests,
            Plain(),
            note=hidden_note(study.privacy.min_count) if not is_public(study) else "",
        )


def _keys(part: Stratum) -> tuple[str, ...]:
    """What names a row; a site is its own stratum."""
    return ("stratum",) if part.name == SITE else ("site", "stratum")


def panels(part: Stratum) -> pd.DataFrame:
    """The table of the figure, with the keys of its panels."""
    table = part.courses.distribution
    return table.drop(columns="group") if part.name == SITE else table


def _medication(study: Study, findings: Findings, part: Stratum, file: str) -> Item:
    courses, min_count = part.courses, study.privacy.min_count
    window, several = window_name(study), len(findings.sites) > 1
    grey = (
        f"Grey: drug classes of fewer than {min_count} patients; where their number would follow "
        "from the rest, the share of the most common class is a lower bound."
    )
    return Item(
        f"strata_{file}",
        f"Treatment by {window} and {part.label}",
        sentences(
            f"Share of each drug class in each {window} among the patients observed in that "
            f"{window}{dead_included(findings.results)}, by {part.label}"
            f"{' and site' if several and part.name != SITE else ''}. Below the axis: the "
            f"{window}, and the number of patients.",
            grey if hides(min_count) and not courses.rounded else "",
        ),
        courses.shown("distribution").rename(columns={"group": "stratum"}),
        Grid(
            (*_keys(part), "state"),
            "time",
            "share",
            ("count", "n"),
            rests_on,
            text=f"Shares of patients in %; columns: {windows_name(study)}.",
        ),
        partial(
            plot_state_distribution,
            part.infos,
            table=panels(part),
            min_count=min_count,
            xlabel=window.capitalize(),
        ),
        f"Stacked bars of the drug classes by {window}, one panel for each stratum of {part.label} "
        f"at {listed(findings.sites)}.",
        note=count_note(study),
    )


def _shares(study: Study, part: Stratum, file: str) -> Item:
    groups, group = groups_word(study), group_word(study)
    return Item(
        f"strata_shares_{file}",
        f"Shares of the {groups} by {part.label}",
        f"Patients of each stratum, and the share of them in each {group}.",
        part.shares,
        Grid(
            _keys(part),
            "cluster",
            "share",
            ("count", "n"),
            rests_on,
            text=f"Shares of the patients of a stratum in %; columns: {groups}.",
        ),
        note=count_note(study),
    )


def _people(study: Study, part: Stratum, file: str) -> Item:
    assert part.people is not None
    frame = part.people.copy()
    frame.columns = pd.Index([", ".join(c) if isinstance(c, tuple) else c for c in frame])
    left_out = (
        f"Left out, because patients are divided by it in this table or in one before: "
        f"{listed(part.left_out)}."
    )
    return Item(
        f"strata_table_one_{file}",
        f"Patients by {part.label}",
        sentences(
            f"Number (%), or {study.table_one.continuous} of numbers, as in the table “Patients by "
            f"{group_word(study)}”, which has the same column of all patients.",
            left_out if part.left_out else "",
        ),
        frame.reset_index(names=["variable", "level"]),
        Plain(n_keys=2, sortable=False, empty={"level": ""}, figures=tuple(frame.columns)),
        note=count_note(study),
    )


# --- in words -------------------------------------------------------------------------------


def differences(study: Study, found: Strata) -> list[str]:
    """What each test says, with the largest difference of those shares that are shown."""
    texts = []
    for label, p in found.tests[["variable", "p_holm"]].itertuples(index=False):
        part = next(part for part in found.parts if part.label == label)
        adjusted = "adjusted p < 0.001" if p < 0.001 else f"adjusted p = {p:.3f}"
        if p >= _LEVEL:
            texts.append(
                f"No difference by {label} was found ({adjusted}), which does not show that there "
                "is none."
            )
            continue
        texts.append(f"The shares differ by {label} ({adjusted}){_largest(study, part)}.")
    return texts


def _largest(study: Study, part: Stratum) -> str:
    """The largest difference, as the end of a sentence: in the table of shares, of all sites."""
    table = part.shares
    several = (table["site"] == ALL_SITES).any()
    table = table[(table["site"] == ALL_SITES) if several else table["share"].notna()]
    table = table[table["share"].notna() & (table["stratum"] != UNKNOWN)]
    by_cluster = table.groupby("cluster", sort=False)["share"]
    spread = by_cluster.max() - by_cluster.min()
    if not len(spread) or not spread.max() > 0:
        return ""
    cluster = spread.idxmax()
    rows = table[table["cluster"] == cluster]
    high, low = rows.loc[rows["share"].idxmax()], rows.loc[rows["share"].idxmin()]
    where = " at all sites together" if several else ""
    return (
        f"; the largest difference of the shares shown{where} is that of {cluster}: "
        f"{percent_text(high['share'])} of “{high['stratum']}” and {percent_text(low['share'])} of "
        f"“{low['stratum']}”"
    )


def methods(study: Study, findings: Findings) -> list[str]:
    """How strata were compared."""
    found = findings.strata
    if found is None:
        return []
    labels, groups = listed([part.label for part in found.parts]), groups_word(study)
    texts = [f"We described medication, {groups} and patients by {labels}."]
    if len(found.tests):
        texts += [
            f"Whether the shares of the {groups} are the same in all strata was tested by the "
            "scores of equal shares in a mixture with common chains: the sums of the memberships "
            "of each stratum less those expected, with a robust covariance. The model does not "
            "know the strata, so that the tests are valid where memberships are uncertain. The "
            "shares in the tables are those of assigned patients."
        ]
        if len(findings.sites) > 1:
            texts.append("Scores were calculated within each site and added up over the sites.")
        if is_public(study):
            texts.append(
                "They are rounded at random to whole standard errors, which the tests allow for."
            )
        if findings.combined.ensemble is not None and not _said(study):
            texts.append(memberships(study, findings))
    return texts


def _said(study: Study) -> bool:
    """Whether another section says which memberships are used."""
    return bool(study.covariates.columns or study.outcomes.columns)


SECTION = Section("strata", "Strata of patients", items, methods)
