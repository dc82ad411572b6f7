"""What reporting guidelines ask of such a study, and where this report answers.

The questions are those of GRoLTS (guidelines for reporting on latent trajectory studies, van de
Schoot and others, 2017, doi 10.1080/10705511.2016.1247646) and, for routinely collected data, some
of RECORD-PE (Langan and others, 2018, doi 10.1136/bmj.k3532), in words of our own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.study.words import group_word, period, span, window_name, windows_name
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

NOT_DONE = "not done"


def checklist(study: Study, findings: Findings, names: Collection[str]) -> pd.DataFrame:
    """The questions of both guidelines with the answers of this report.

    Parameters
    ----------
    study, findings
    names : names of the items that the report has

    Returns
    -------
    DataFrame
        guideline, item, question and answer.
    """
    rows = [("GRoLTS", *row) for row in _grolts(study, findings, set(names))]
    if study.from_records:
        rows += [("RECORD-PE", *row) for row in _record_pe(study)]
    return pd.DataFrame(rows, columns=["guideline", "item", "question", "answer"])


def _grolts(study: Study, findings: Findings, names: set[str]) -> Iterator[tuple[str, str, str]]:
    def there(name: str, text: str) -> str:
        return text if any(part.startswith(name) for part in names) else NOT_DONE

    def there_also(name: str, text: str) -> str:
        return text if any(part.startswith(name) for part in names) else ""

    data = findings.analysis.sequences
    window, windows = window_name(study), windows_name(study)
    hides_few = hides(study.privacy.min_count)
    choice, covariates = (
        findings.choice,
        there("effects", "section “Who is in which group”, and the methods")
        if study.covariates.columns
        else "does not apply: no covariates were used",
    )
    missing = any(_has_gaps(part) for part in data.values())
    at_sites = " and site" * (len(data) > 1)
    fit = "section “How well the models fit”"
    yield (
        *("1", "Which unit of time the model uses"),
        f"one {window}, up to {period(study, data)}",
    )
    yield (
        *("2", "Mean and variance of time within a wave"),
        f"does not apply: time is counted in {windows} from each patient's first treatment",
    )
    yield (
        *("3a", "Why values are missing"),
        "methods: assumed to be missing at random, which these data cannot show",
    )
    yield (
        *("3b", "What missing values are related to"),
        f"end of follow-up by {group_word(study)}{at_sites}: the table “Who is observed to the "
        f"end”; other variables: {NOT_DONE}",
    )
    yield (
        *("3c", "How missing values were handled"),
        "methods; missing states are summed over in the likelihood"
        if missing
        else f"methods; no {window} is missing between the first and the last",
    )
    yield (
        "4",
        "Distribution of the observed variables",
        f"the figure “Treatment by {window}” and the table of patients by {group_word(study)}",
    )
    yield "5", "Software", "methods and provenance, with versions"
    yield (
        *("6a", "Other forms of differences within a class"),
        "in a class all patients have the same chain; other forms as models of their own: "
        + f"{NOT_DONE}{there_also('fit_tests', f'; {fit} tests whether one step is enough')}",
    )
    yield (
        *("6b", "Other forms of differences between classes"),
        "every class has first states and steps of its own; classes that share some: " + NOT_DONE,
    )
    yield (
        *("7", "Other shapes of the trajectories"),
        "steps do not change with time; models in which they do: "
        + f"{NOT_DONE}{there_also('steps', f'; {fit} compares both halves of the time')}",
    )
    yield "8", "Covariates, so that the analysis can be repeated", covariates
    yield (
        *("9", "Numbers of random starts and of iterations"),
        "starts: methods; searches, and whether the best run converged: the table “Models”; number "
        f"of iterations: {NOT_DONE}",
    )
    yield (
        *("10", "How models were compared"),
        f"{study.classes.criterion.upper()}; methods; other criteria: the table behind the figure "
        "of the criterion"
        if choice is not None
        else "the number of classes was given beforehand",
    )
    tried = None if choice is None else tuple(sorted({int(k) for k in choice["classes"]}))
    one = tried is not None and 1 in tried
    yield (
        *("11", "All models fitted, that with one class among them"),
        NOT_DONE
        if tried is None
        else f"{span(tried)} classes{'' if one else '; one class was not tried'}: the table behind "
        "the figure of the criterion",
    )
    yield (
        *("12", "Class sizes of every model"),
        ("the same table" + "; blank where a class has too few patients to show" * hides_few)
        if choice is not None
        else "of the chosen models: the tables of clusters and of how sure the assignments are",
    )
    also = "" if choice is None else ", and the table behind the figure of the criterion"
    yield "13", "Entropy", f"the table “Models”{also}"
    yield "14a", "Plot of the final classes", f"the figure “Treatment by {window}”"
    drawn = choice is not None and study.outputs.figures
    yield (
        *("14b", "Plots of the models with other numbers of classes"),
        "models/alternatives_SITE.png for each site; they show exact parameters and stay inside "
        "the hospital"
        if drawn
        else NOT_DONE,
    )
    yield (
        *("14c", "Plot of single courses beside the estimated ones"),
        f"the most frequent courses and representative ones of each {group_word(study)}; "
        + (
            "single courses: patients/SITE_courses.png for each site, which stays inside the "
            "hospital"
            if study.outputs.figures
            else f"single courses: {NOT_DONE}"
        ),
    )
    yield (
        *("15", "Final classes in numbers, with standard errors"),
        there("parameters", "section “How well the models fit”, with standard errors")
        if any(part.startswith("parameters") for part in names)
        else "numbers without standard errors",
    )
    yield "16", "Code", "the settings below and mmlca give the same numbers again"


def _has_gaps(data: Sequences) -> bool:
    return int((data.codes >= 0).sum()) < int(data.lengths.sum(dtype=np.int64))


def _record_pe(study: Study) -> Iterator[tuple[str, str, str]]:
    several = len(study.sites) > 1
    yield "4.a", "The design of the study", "methods: a cohort followed from the first treatment"
    yield (
        *("6.1", "How patients were selected, in which order"),
        f"methods, and the flow of patients{' at each site' * several}",
    )
    yield (
        *("7.1", "How exposure was defined, with the codes"),
        "methods; the drug map is in the settings or the file that they name",
    )
    yield (
        *("7.1.c", "The time in which a patient counts as exposed"),
        f"methods: {windows_name(study)}, and what happens to those without a record; why they are "
        f"so long: {NOT_DONE}",
    )
    yield "7.1.g", "Patients with several drugs at once", "methods: the state of a window"
    yield "8.a", "The health care system and how records arise", f"{NOT_DONE}: describe them"
    yield "12.1", "Access of the investigators to the database", f"{NOT_DONE}: describe it"
    yield (
        *("12.2", "Cleaning of the data"),
        f"flow of patients and odd records{' at each site' * several}",
    )
    yield "12.3", "Linkage of databases", f"{NOT_DONE}: describe it if there was any"
    yield (
        *("13.1", "Numbers of patients at each stage of the selection"),
        f"flow of patients{' at each site' * several}",
    )
    yield "19.1", "Limits of data not collected for research", "“What to be careful about”"
    yield "22.1", "Protocol, data and code", f"the settings below; protocol and data: {NOT_DONE}"
