"""The sections of the report in the order of the page, and what they make together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mmlca import __version__
from mmlca.figures.colours import draw_with, own_colours
from mmlca.study.numbers import numbers_table
from mmlca.study.release import shown_indices
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections import (
    classes,
    clusters,
    courses,
    covariates,
    ensemble,
    fit,
    labs,
    models,
    outcomes,
    patients,
    refinement,
    sites,
)
from mmlca.study.sections.checklist import checklist
from mmlca.study.sections.section import Section
from mmlca.study.words import group_name, sentences

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study


def _numbers(study: Study, findings: Findings) -> Iterator[Item]:
    names = {group_name(study, c): name for c, name in findings.cluster_names.items()}
    named = [replace(n, group=names.get(n.group, n.group)).name for n in findings.numbers]
    yield Item(
        "headline",
        "The main numbers",
        "Intervals for the differences between sites are in the section on these differences.",
        numbers_table(findings.numbers).assign(name=named),
        Plain(columns=("name", "value"), unit="unit"),
    )


def _checklist(study: Study, findings: Findings) -> Iterator[Item]:
    answers: dict[str, str] = {}
    for section in (*RESULTS, *DIAGNOSTICS):
        answers |= section.answers(study, findings)
    yield checklist(study, answers)


RESULTS = (
    courses.SECTION,
    clusters.SECTION,
    sites.SECTION,
    labs.SECTION,
    covariates.SECTION,
    outcomes.SECTION,
    refinement.SECTION,
)
"""The sections that answer clinical questions; cautions and methods follow them on the page."""

DIAGNOSTICS = (
    patients.SECTION,
    classes.SECTION,
    models.SECTION,
    fit.SECTION,
    ensemble.SECTION,
    Section("numbers", "All numbers", _numbers),
    Section("checklist", "Reporting checklist", _checklist),
)

PARAGRAPHS = (
    (patients.SECTION, clusters.SECTION, courses.SECTION),
    (models.SECTION, classes.SECTION),
    (ensemble.SECTION, refinement.SECTION, sites.SECTION),
    (labs.SECTION, fit.SECTION, covariates.SECTION, outcomes.SECTION),
)
"""The order of the analysis, which methods and cautions follow; each row is one paragraph."""


def all_items(study: Study, findings: Findings) -> list[Item]:
    """Every table and figure of the report, in the order of the page."""
    colours = study.outputs.colours
    with own_colours(colours):
        return [
            replace(
                item,
                section=section.key,
                caption=sentences(item.caption, item.note),
                table=shown_indices(study, item.name, item.table),
                draw=None if item.draw is None else partial(draw_with, colours, item.draw),
            )
            for section in (*RESULTS, *DIAGNOSTICS)
            for item in section.items(study, findings)
        ]


def methods(study: Study, findings: Findings) -> str:
    """The methods for a paper, with the settings that were used.

    Paragraphs, with an empty line between two: data, models, ensemble and sites, laboratory values
    and inference, software.
    """
    paragraphs = [
        " ".join(sentence for section in part for sentence in section.methods(study, findings))
        for part in PARAGRAPHS
    ]
    software = f"All analyses were done with mmlca {__version__} and seed {study.seed}."
    return "\n\n".join(filter(None, [*paragraphs, software]))


def cautions(study: Study, findings: Findings, warned: list[str]) -> list[str]:
    """What a reader should know before believing the numbers; `warned` are warnings of the run."""
    notes = [
        note
        for part in PARAGRAPHS
        for section in part
        for note in section.cautions(study, findings)
    ]
    return notes + [f"{text[:1].upper()}{text[1:]}" for text in warned]
