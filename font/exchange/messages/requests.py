"""The *requests* message, centre → all: the steps that the centre asks for, in their order.

Where files go through folders, a site sees from it which files belong to a step and whether it has
all of them. A later file of the same round has the steps of the earlier ones first. The payload is:

=================== =========================================================================
min_count           that of the study
steps               list of {step, files, sites}: "label", "assign", "refine", "results" or "answer
                    KIND"; the SHA-256 of the payload of each file that goes with it; who is asked
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from font.exchange.envelope import write_file
from font.exchange.fields import MOST_MODELS, MOST_SITES, Hash, Least, Site, Strict, size
from font.exchange.header import Header
from font.exchange.parse import Path_
from font.exchange.registry import Message


class Request(Strict):
    """A step that the centre asks for."""

    step: Annotated[str, Field(pattern="^(label|assign|refine|results|answer [a-z ]{1,40})$")]
    files: Annotated[list[Hash], size(1, MOST_MODELS + MOST_SITES)]
    sites: Annotated[list[Site], size(1, MOST_SITES)]


class RequestsPayload(Strict):
    """All steps so far."""

    min_count: Least
    steps: Annotated[list[Request], size(1, 200)]


def write_requests(
    path: Path_ | None, requests: Sequence[Request], header: Header, *, min_count: int
) -> bytes:
    """Write the steps that the centre asked for so far."""
    steps = [request.model_dump() for request in requests]
    return write_file(path, "requests", {"min_count": min_count, "steps": steps}, header)[1]


def requests_in(payload: Mapping[str, Any]) -> list[Request]:
    """The steps in the payload of a file that was read."""
    return [Request.model_validate(step) for step in payload["steps"]]


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    contains = [
        f"the step {request.step!r}, asked of {', '.join(request.sites)}, with "
        f"{len(request.files)} file{'' if len(request.files) == 1 else 's'}"
        for request in requests_in(payload)
    ]
    return contains, ["which sites take part, and nothing about patients"]


MESSAGE = Message(payload=RequestsPayload, explain=_explain, sender="centre", receiver="all")
