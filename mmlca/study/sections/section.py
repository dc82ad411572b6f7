"""What a section of the report is: its tables and figures, and what other parts say about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.report.content import Item
    from mmlca.study.settings import Study

GROLTS, RECORD_PE = "GRoLTS", "RECORD-PE"
NOT_DONE = "not done"


class Answer(NamedTuple):
    """The answer of this report to one question of a reporting guideline."""

    item: str
    question: str
    answer: str
    guideline: str = GROLTS


def _nothing(study: Study, findings: Findings) -> list[Any]:
    return []


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Parameters
    ----------
    key : str
        Its name in `results.json`, and in links to it.
    title : str
        Its heading. “Clusters” becomes “Classes” in a study of one site.
    items : function (study, findings)
        Its tables and figures, in the order of the page.
    methods : function (study, findings), optional
        Sentences for the methods, with the settings that were used.
    cautions : function (study, findings), optional
        What readers should know before they believe the numbers.
    answers : function (study, findings), optional
        What the section answers of the questions of reporting guidelines.
    """

    key: str
    title: str
    items: Callable[[Study, Findings], Iterable[Item]]
    methods: Callable[[Study, Findings], Iterable[str]] = _nothing
    cautions: Callable[[Study, Findings], Iterable[str]] = _nothing
    answers: Callable[[Study, Findings], Iterable[Answer]] = _nothing
