"""What reporting guidelines ask of such a study, and where this report answers.

The questions are those of GRoLTS (guidelines for reporting on latent trajectory studies, van de
Schoot and others, 2017, doi 10.1080/10705511.2016.1247646) and, for routinely collected data, some
of RECORD-PE (Langan and others, 2018, doi 10.1136/bmj.k3532), in words of our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.section import GROLTS, NOT_DONE, RECORD_PE, Answer

if TYPE_CHECKING:
    from mmlca.study.settings import Study

_OF_THE_PAGE = (
    Answer("5", "Software", "methods and provenance, with versions"),
    Answer("16", "Code", "the settings below and mmlca give the same numbers again"),
    Answer(
        "19.1",
        "Limits of data that were not collected for research",
        "“What to be careful about”",
        RECORD_PE,
    ),
    Answer(
        "22.1",
        "Protocol, data and code",
        f"the settings below; protocol and data: {NOT_DONE}",
        RECORD_PE,
    ),
)


def checklist(study: Study, answers: Iterable[Answer]) -> Item:
    """The questions of both guidelines in their order, with the answers of all sections."""
    every = sorted([*answers, *_OF_THE_PAGE], key=_place)
    rows = [answer for answer in every if study.from_records or answer.guideline == GROLTS]
    columns = ["guideline", "item", "question", "answer"]
    return Item(
        "checklist",
        "What reporting guidelines ask, and where this report answers",
        "Questions of GRoLTS, the guidelines for latent trajectory studies, and of RECORD-PE, the "
        "guidelines for studies of drugs in routinely collected data, in words of our own.",
        pd.DataFrame(rows)[columns],
        Plain(n_keys=2, sortable=False),
    )


def _place(answer: Answer) -> tuple[str, list[tuple[int, str]]]:
    """Where an answer stands: 3b after 3a and before 10.

    >>> items = ["10", "7.1.c", "3b", "7.1", "3a"]
    >>> [a.item for a in sorted([Answer(item, "", "") for item in items], key=_place)]
    ['3a', '3b', '7.1', '7.1.c', '10']
    """
    parts = re.findall(r"(\d+)|([a-z])", answer.item)
    return answer.guideline, [(int(number or 0), letter) for number, letter in parts]
