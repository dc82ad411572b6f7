"""The sections of the report in the order of the page, and what they make together.

The questions of the checklist are those of GRoLTS (guidelines for reporting on latent trajectory
studies, van de Schoot and others, 2017, doi 10.1080/10705511.2016.1247646) and, for routinely
collected data, some of RECORD-PE (Langan and others, 2018, doi 10.1136/bmj.k3532), in words of our
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from mmlca import __version__
from mmlca.figures.colours import draw_with, own_colours
from mmlca.study.headline import numbers_table
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
    leaving,
    models,
    opinions,
    outcomes,
    patients,
    refinement,
    sites,
    strata,
)
from mmlca.study.sections.section import NOT_DONE, Section
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


GROLTS = {
    "1": "Unit of time in the model",
    "2": "Mean and variance of time within a wave",
    "3a": "Why values are missing",
    "3b": "What missing values are related to",
    "3c": "How missing values were handled",
    "4": "Distribution of the observed variables",
    "5": "Software",
    "6a": "Other forms of differences within a class",
    "6b": "Other forms of differences between classes",
    "7": "Other shapes of the trajectories",
    "8": "Covariates, so that the analysis can be repeated",
    "9": "Numbers of random starts and of iterations",
    "10": "How models were compared",
    "11": "All models fitted, including the model with one class",
    "12": "Class sizes of every model",
    "13": "Entropy",
    "14a": "Plot of the final classes",
    "14b": "Plots of the models with other numbers of classes",
    "14c": "Plot of single courses beside the estimated ones",
    "15": "Final classes in numbers, with standard errors",
    "16": "Code",
}
RECORD_PE = {
    "4.a": "Study design",
    "6.1": "How patients were selected, and in which order",
    "7.1": "How exposure was defined, with the codes",
    "7.1.c": "The time during which a patient counts as exposed",
    "7.1.g": "Patients who take several drugs at once",
    "8.a": "The health care system, and how records arise in it",
    "12.1": "The investigators' access to the database",
    "12.2": "Cleaning of the data",
    "12.3": "Linkage of databases",
    "13.1": "Numbers of patients at each stage of the selection",
    "19.1": "Limits of data that were not collected for research",
    "22.1": "Protocol, data and code",
}
_OF_THE_PAGE = {
    "5": "methods and provenance, with versions",
    "16": "the settings below and mmlca give the same numbers again",
    "8.a": f"{NOT_DONE}: describe them",
    "12.1": f"{NOT_DONE}: describe it",
    "12.3": f"{NOT_DONE}: describe it if there was any",
    "19.1": "“What to be careful about”",
    "22.1": f"the settings below; protocol and data: {NOT_DONE}",
}


def _checklist(study: Study, findings: Findings) -> Iterator[Item]:
    """The questions of the guidelines with the answers of all sections, by number of the item."""
    answers = dict(_OF_THE_PAGE)
    for section in (*RESULTS, *DIAGNOSTICS):
        answers |= section.answers(study, findings)
    guidelines = {"GRoLTS": GROLTS, "RECORD-PE": RECORD_PE if study.from_records else {}}
    rows = [
        (guideline, item, question, answers[item])
        for guideline, questions in guidelines.items()
        for item, question in questions.items()
    ]
    yield Item(
        "checklist",
        "What reporting guidelines ask, and where this report answers",
        "Questions of GRoLTS, the guidelines for latent trajectory studies, and of RECORD-PE, the "
        "guidelines for studies of drugs in routinely collected data, in words of our own.",
        pd.DataFrame(rows, columns=["guideline", "item", "question", "answer"]),
        Plain(n_keys=2, sortable=False),
    )


RESULTS = (
    courses.SECTION,
    leaving.SECTION,
    clusters.SECTION,
    sites.SECTION,
    labs.SECTION,
    covariates.SECTION,
    outcomes.SECTION,
    strata.SECTION,
    refinement.SECTION,
)
"""The sections that answer clinical questions; cautions and methods follow them on the page."""

DIAGNOSTICS = (
    patients.SECTION,
    classes.SECTION,
    models.SECTION,
    fit.SECTION,
    opinions.SECTION,
    ensemble.SECTION,
    Section("numbers", "All numbers", _numbers),
    Section("checklist", "Reporting checklist", _checklist),
)

PARAGRAPHS = (
    (patients.SECTION, clusters.SECTION, courses.SECTION),
    (models.SECTION, leaving.SECTION, classes.SECTION),
    (ensemble.SECTION, refinement.SECTION, opinions.SECTION, sites.SECTION),
    (labs.SECTION, fit.SECTION, covariates.SECTION, outcomes.SECTION, strata.SECTION),
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
