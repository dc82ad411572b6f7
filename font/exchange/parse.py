"""From bytes to JSON, in one pass, whoever sent them.

A file is looked at in the order of cost: what kind of file it is and how large, how many values and
texts it has and how deeply they nest, and only then JSON. What passes needs at most about a second
and 200 MB, whatever it says.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from font.errors import InputError
from font.files import check_regular

FILE_LIMIT = 8 * 2**20
_MOST_VALUES, _MOST_TEXTS, _DEEPEST = 600_000, 100_000, 12
_MOST_FIELDS = 100  # of one object: each unknown one would be remembered to be complained about

Path_ = str | os.PathLike[str]
Source = Path_ | bytes


def read_bytes(source: Source) -> bytes:
    """The bytes of a regular file that is not too large."""
    if isinstance(source, bytes):
        data = source
    else:
        path = Path(source)
        size = path.stat().st_size
        check_regular(path)  # before it is opened: a pipe would wait for ever
        if size > FILE_LIMIT:
            raise _too_large(str(path), size)
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)  # it may have grown
    if len(data) > FILE_LIMIT:
        raise _too_large(name_of(source), len(data))
    return data


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which JSON has none of: it would go over the hundred
    thousand lists of a large file again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def name_of(source: Source) -> str:
    """What messages call a file."""
    return "the file received" if isinstance(source, bytes) else str(source)


def parse(data: bytes, origin: str) -> Any:
    """The JSON in a file, or an `InputError`."""
    if data.count(b'"') > 2 * _MOST_TEXTS:
        raise _too_many(origin, "texts", _MOST_TEXTS)
    if b"\\" in data:
        # possessive, and the last quote optional: no file makes it start over
        bare = re.sub(rb'"(?:[^"\\]++|\\.)*+"?', b"", data, flags=re.DOTALL)
    else:  # nothing is escaped: every second part is a text
        bare = b"".join(data.split(b'"')[::2])
    if bare.count(b",") + bare.count(b"[") > _MOST_VALUES:
        raise _too_many(origin, "values", _MOST_VALUES)
    _refuse_towers(bare.translate(_STEPS, _NO_BRACKETS), origin)
    if re.search(rb"[0-9]{31}", bare):
        raise InputError(
            f"{origin} has a number of more than 30 digits; ask the sender to write it again."
        )
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise InputError(f"{origin} is not UTF-8 text; ask the sender to write it again.") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{origin} is not JSON (line {error.lineno}: {error.msg}); ask the sender to send it "
            "again."
        ) from None
    except InputError as error:
        raise InputError(f"{origin} {error}; ask the sender to write it again.") from None


def shorten(value: Any, most: int = 60) -> str:
    """Something from a stranger's file for a message: on one line, not long."""
    text = ascii(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _too_large(origin: str, size: int) -> InputError:
    return InputError(
        f"{origin} has {size:,} bytes or more, at most {FILE_LIMIT:,} are read; ask the sender for "
        "a file of fewer models."
    )


def _too_many(origin: str, things: str, most: int) -> InputError:
    return InputError(
        f"{origin} has more than {most:,} {things}, which no exchange file has; ask the sender to "
        "write it again."
    )


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: up, down
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _refuse_towers(brackets: bytes, origin: str) -> None:
    """Refuse what nests deeply."""
    steps = np.frombuffer(brackets, dtype=np.int8)
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > _DEEPEST:
        raise InputError(
            f"{origin} is nested more than {_DEEPEST} deep, which no exchange file is; ask the "
            "sender to write it again."
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict, unless a key comes twice or there are too many."""
    if len(pairs) > _MOST_FIELDS:
        raise InputError(f"has an object of {len(pairs):,} fields, at most {_MOST_FIELDS} are read")
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise InputError(f"has the field {shorten(key)} twice")
        content[key] = value
    return content


def _no_constant(word: str) -> float:
    raise InputError(f"has the value {word}, which is not a number of JSON")
