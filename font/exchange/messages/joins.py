"""The *joins* message, site → centre: a site without a model of its own takes part by labels.

A site that has too few patients for a model sends this instead. It labels its patients with the
models of the others, and has a part in all that follows. The payload is:

=================== =========================================================================
min_count           that of the study
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from font.exchange.envelope import read_file, write_file
from font.exchange.fields import Least, Strict
from font.exchange.header import Header
from font.exchange.parse import Source
from font.exchange.registry import Message


class JoinsPayload(Strict):
    """That a site takes part."""

    min_count: Least


def write_joins(header: Header, *, min_count: int) -> bytes:
    """Write that the site of the header takes part by labels."""
    return write_file(None, "joins", {"min_count": min_count}, header)[1]


def read_joins(source: Source, header: Header | None = None, *, min_count: int = 1) -> str:
    """The site that takes part by labels."""
    return read_file(source, header, kind="joins", min_count=min_count).site


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    contains = ["that the site takes part without a model of its own"]
    return contains, ["that the site has few patients, and nothing else about them"]


MESSAGE = Message(payload=JoinsPayload, explain=_explain)
