"""The outside of every exchange file, and the reader that refuses what does not fit.

`font.exchange.spec` has the specification in words. After `font.exchange.parse` come the outer
fields, the checksum, the fields of the payload with their bounds, whether its numbers fit together
(both in the message's module, see `font.exchange.messages`), and last whether the file is one of
the reader's study and round, signed by its sender.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from font.errors import InputError
from font.exchange.fields import (
    AgreedSettings,
    Hash,
    Round,
    SignaturePart,
    Site,
    Strict,
    Study,
    Text,
    validated,
)
from font.exchange.header import Header
from font.exchange.parse import (
    FILE_LIMIT,
    Path_,
    Source,
    name_of,
    no_collection,
    parse,
    read_bytes,
    shorten,
)
from font.exchange.registry import KINDS, all_families, message_of
from font.exchange.signatures import sign, verify
from font.files import atomic_write

FORMAT, VERSION = "font exchange", 2


def fingerprint(payload: Mapping[str, Any]) -> str:
    """SHA-256 of a payload as canonical JSON: keys sorted, no spaces, UTF-8.

    Examples
    --------
    >>> fingerprint({"b": 1, "a": [0.5]}) == fingerprint({"a": [0.5], "b": 1})
    True
    """
    text = json.dumps(
        payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"should be one of {', '.join(KINDS)}")
    return kind


class Envelope(Strict):
    """What all files have."""

    format: Literal["font exchange"]
    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    kind: Annotated[str, AfterValidator(_check_kind)]
    study: Study
    round: Round
    site: Site
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    software: Text
    settings: AgreedSettings | None = None
    payload: dict[str, Any]
    sha256: Hash
    signature: SignaturePart | None = None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of each message, {"model": …, "labels": …, "ensemble": …, …}.

    The content of each registered family of models is in "models".
    """
    schemas: dict[str, Any] = {}
    for kind in KINDS:
        schema = Envelope.model_json_schema()
        inner = message_of(kind).payload.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] = schema.get("$defs", {}) | inner.pop("$defs", {})
        schema["properties"] |= {"payload": inner, "kind": {"const": kind}}
        schemas[kind] = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    schemas["models"] = {
        format: family.schema.model_json_schema() for format, family in all_families().items()
    }
    return schemas


# --- reading and writing -------------------------------------------------------------------


def read_file(
    source: Source, header: Header | None = None, *, kind: str | None = None, min_count: int = 1
) -> Envelope:
    """Read and check an exchange file.

    Parameters
    ----------
    source : the file, or its bytes
    header : Header, optional
        The reader's: refuse files of another study or round, or that its keys do not fit.
    kind : str, optional
        Such as "model"; refuse other messages.
    min_count : int
        The study's: refuse files whose counts were rounded to multiples of less.
    """
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
        file = check_content(content, origin, kind)
    message = message_of(file.kind)
    sender = "centre" if message.sender == "centre" else file.site
    if header is None:
        verify(content, sender, None, origin)
    else:
        header.check(content, sender, origin)
    lowest = min(message.units(file.payload))
    if lowest < min_count:
        raise InputError(
            f"{origin} was written with min_count {lowest}, the study asks for {min_count}; have "
            "the site write it again."
        )
    return file


def claimed_kind(source: Source) -> str:
    """The kind of message that a file says it is; nothing else in it is checked."""
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
    _check_format(content, origin)
    return str(content.get("kind"))


def write_file(
    path: Path_ | None, kind: str, payload: dict[str, Any], header: Header
) -> tuple[Envelope, bytes]:
    """Write a file that the reader accepts, or nothing; without a path only the bytes are made."""
    content = {"format": FORMAT, "version": VERSION, "kind": kind} | header.fields()
    origin = f"the {kind} file"
    try:
        content |= {"payload": payload, "sha256": fingerprint(payload)}
        if header.signing_key is not None:
            content["signature"] = sign(content, header.signing_key)
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode() + b"\n"
    except InputError:  # of the key to sign with
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{origin} cannot be written as JSON: {error}.") from None
    if len(data) > FILE_LIMIT:
        raise InputError(
            f"{origin} would have {len(data):,} bytes, at most {FILE_LIMIT:,} are read; use fewer "
            "models."
        )
    file = check_content(parse(data, origin), origin, kind)
    if path is not None:
        atomic_write(Path(path), data)
    return file, data


def check_content(content: Any, origin: str, kind: str | None = None) -> Envelope:
    """The file, if everything in it fits; otherwise one sentence."""
    _check_format(content, origin)
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise InputError(
            f"{origin} has the version {shorten(content.get('version'))}, this program reads "
            f"{VERSION}; use the same release of mmlca at all sites."
        )
    file: Envelope = validated(Envelope, content, origin)
    if kind is not None and file.kind != kind:
        raise InputError(f"{origin} is a file of the kind {file.kind!r}; give one of {kind!r}.")
    try:
        mark = fingerprint(file.payload)
    except ValueError:  # 1e999 becomes infinite; half a surrogate pair is not text
        raise InputError(
            f"{origin} has a number or a text that JSON cannot hold; ask the sender to write it "
            "again."
        ) from None
    if mark != file.sha256:
        raise InputError(
            f"{origin} was changed or damaged after it was written: its checksum does not match; "
            "ask the sender to send it again."
        )
    message = message_of(file.kind)
    validated(message.payload, file.payload, origin, "payload.")
    message.check(file.payload, file.site, origin)
    return file


def _check_format(content: Any, origin: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"{origin} is not an exchange file: its format should be {FORMAT!r}; give a file that "
            "mmlca wrote for exchange."
        )


# --- names of files ------------------------------------------------------------------------


def file_name(name: str, kind: str) -> str:
    """What a site's file is called, such as "MGB-1.model.json".

    Examples
    --------
    >>> file_name("south hospital/2", "masked labels")
    'south_hospital-2.masked-labels.json'
    """
    return f"{name.replace('/', '-').replace(' ', '_')}.{kind.replace(' ', '-')}.json"


def file_names(names: Iterable[str], kind: str) -> dict[str, str]:
    """The file names of several sites, no two alike.

    Examples
    --------
    >>> file_names(["a b", "a_b"], "labels")
    {'a b': 'a_b.labels.json', 'a_b': 'a_b-2.labels.json'}
    """
    files: dict[str, str] = {}
    for name in names:
        file, number = file_name(name, kind), 2
        while file in files.values():
            file, number = file_name(f"{name}-{number}", kind), number + 1
        files[name] = file
    return files
