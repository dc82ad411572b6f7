"""What a section of the report is: its tables and figures, and what other parts say about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.report.content import Item
    from mmlca.study.settings import Study

NOT_DONE = "not done"


def _no_texts(study: Study, findings: Findings) -> list[str]:
    return []


def _no_answers(study: Study, findings: Findings) -> dict[str, str]:
    return {}


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
        Its answers to questions of reporting guidelines, see `checklist`, by number of the item.
    """

    key: str
    title: str
    items: Callable[[Study, Findings], Iterable[Item]]
    methods: Callable[[Study, Findings], Iterable[str]] = _no_texts
    cautions: Callable[[Study, Findings], Iterable[str]] = _no_texts
    answers: Callable[[Study, Findings], Mapping[str, str]] = _no_answers
