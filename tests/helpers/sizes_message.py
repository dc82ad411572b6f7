"""A message as a newcomer would add it: how many patients of a site are in each cluster.

The payload is:

=================== =========================================================================
of                  SHA-256 of the payload of the ensemble or shared file
min_count           the unit of the counts
patients            patients by cluster, rounded
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from font.exchange.disclosure import (
    hints_of_counts,
    round_counts,
    rounding_in_words,
    unrounded,
)
from font.exchange.fields import Hash, Least, Patients, Strict, misfit
from font.exchange.messages.refinement import Question
from font.exchange.registry import Message


class SizesPayload(Strict):
    of: Hash
    min_count: Least
    patients: Patients


def answer(question: Question) -> dict[str, Any]:
    sizes, unit = question.membership.sum(axis=0), question.min_count
    return {
        "of": question.step.fingerprint,
        "min_count": unit,
        "patients": round_counts(sizes, unit, question.draws).tolist(),
    }


def check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    wrong = unrounded(payload["patients"], payload["min_count"])
    if wrong is not None:
        raise misfit(origin, f"it has {wrong}")


def explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    unit = payload["min_count"]
    return ["patients by cluster", rounding_in_words(unit)], hints_of_counts(unit)


MESSAGE = Message(payload=SizesPayload, explain=explain, check=check, answer=answer)
