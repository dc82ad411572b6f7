"""The exchange files in a folder of received files, read strictly; what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from font.errors import InputError
from font.exchange.envelope import read_file
from font.exchange.header import Header
from font.exchange.parse import name_of, read_bytes
from font.exchange.registry import message_of


class Received(NamedTuple):
    """An exchange file: its name in the folder, what it says of itself, and its bytes.

    `mark` is the SHA-256 of the payload.
    """

    name: str
    kind: str
    site: str
    payload: dict[str, Any]
    mark: str
    data: bytes


@dataclass
class Inbox:
    """What came in.

    Parameters
    ----------
    files : list of Received
        In the order of their names; of equal files the first.
    refused : list of str
        A sentence about each of the others.
    """

    files: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Received]:
        """The files of a kind."""
        return [file for file in self.files if file.kind == kind]


def read_inbox(
    folder: Path, header: Header, *, min_count: int, reader: Literal["site", "centre"]
) -> Inbox:
    """Read all files in a folder and its subfolders whose names end in .json.

    Parameters
    ----------
    folder : path
        One that does not exist is empty.
    header : Header
        The reader's: files of another study or round, or that its keys do not fit, are refused.
    min_count : int
        The study's.
    reader : "site" or "centre"
        Files that are not for it are refused.
    """
    inbox = Inbox()
    seen = set()
    for path in _json_files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            file = read_received(read_bytes(path), name, header, min_count)
            message = message_of(file.kind)
            if reader == "centre" and message.sender == "centre":
                raise InputError(
                    f"{name} is a file of the kind {file.kind!r}, which a centre sent."
                )
            if reader == "site" and message.receiver == "centre":
                raise InputError(f"{name} is a file of the kind {file.kind!r}, for the centre.")
        except InputError as error:
            inbox.refused.append(str(error).replace(name_of(b""), name, 1))
            continue
        if (file.kind, file.site, file.mark) not in seen:
            seen.add((file.kind, file.site, file.mark))
            inbox.files.append(file)
    return inbox


def read_received(data: bytes, name: str, header: Header | None, min_count: int = 1) -> Received:
    """Read the bytes of an exchange file, as `read_file` does."""
    file = read_file(data, header, min_count=min_count)
    return Received(name, file.kind, file.site, file.payload, file.sha256, data)


def _json_files(folder: Path) -> Iterator[Path]:
    """Without unfinished files, whose names begin with a dot."""
    for path in sorted(folder.rglob("*.json")):
        if path.name[0] != ".":
            yield path
