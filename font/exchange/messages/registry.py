"""All messages by the word in a file's field `kind`: one line for each.

What reads files, explains and specifies them, the ledger, the commands and Flower look here. A
message's module is loaded when the first file of its kind is read or written.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from font.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Payload = Mapping[str, Any]

_MESSAGES = {
    "model": "font.exchange.messages.model",
    "labels": "font.exchange.messages.labels",
    "ensemble": "font.exchange.messages.ensemble",
    "sums": "font.exchange.messages.sums",
    "shared": "font.exchange.messages.shared",
    "key": "font.exchange.messages.mask_key",
    "masked labels": "font.exchange.messages.masked_labels",
    "masked sums": "font.exchange.messages.masked_sums",
    "requests": "font.exchange.messages.requests",
    "results": "font.exchange.messages.results",
}
KINDS = _MESSAGES.keys()


@dataclass(frozen=True, kw_only=True)
class Message:
    """A type of exchange file. A module of `font.exchange.messages` has one, called `MESSAGE`.

    Parameters
    ----------
    payload : pydantic model
        The fields, with their bounds.
    explain : payload → what it contains, what it reveals: two lists of sentences
    check : payload, site, name of the file → None, optional
        Raises `font.exchange.fields.misfit` where fields of the right form do not fit together.
    sender : "site" or "centre"
        Whose signature a file needs where keys are pinned.
    receiver : "all" or "centre"
        To whom it goes.
    units : payload → the min_count of every part
    answer : `font.exchange.messages.shared.Question` → payload, optional
        What a site says to the centre's ensemble or shared file. With it, `Hospital.answer`,
        `mmlca site answer` and the round over Flower write the message.
    shown : payload → payload as the page of `mmlca exchange check --html` has it
    """

    payload: type[BaseModel]
    explain: Callable[[Payload], tuple[list[str], list[str]]]
    check: Callable[[Payload, str, str], None] = lambda payload, site, origin: None
    sender: Literal["site", "centre"] = "site"
    receiver: Literal["all", "centre"] = "centre"
    units: Callable[[Payload], list[int]] = lambda payload: [payload["min_count"]]
    answer: Callable[[Any], dict[str, Any]] | None = None
    shown: Callable[[Payload], Payload] = lambda payload: payload


def message_of(kind: str) -> Message:
    """The message of a kind."""
    if kind not in KINDS:
        raise InputError(f"the kind {ascii(kind)[:60]} is unknown; known are {', '.join(KINDS)}.")
    message: Message = pkgutil.resolve_name(f"{_MESSAGES[kind]}:MESSAGE")
    return message


def specification_of(kind: str) -> str:
    """What the specification says of a message."""
    text: str = pkgutil.resolve_name(_MESSAGES[kind]).__doc__
    return text


def masked(kind: str) -> str:
    """The kind of message that carries the same numbers under masks."""
    return f"masked {kind}"


def unmasked(kind: str) -> str:
    """The kind of message whose numbers this one carries, under masks or not."""
    return kind.removeprefix("masked ")
