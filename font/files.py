"""Writing exchange files: checked as a reader would, then wholly or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from font.schema import FILE_LIMIT, FORMAT, VERSION, Envelope, Path_, checked, fingerprint, parse


def write_file(
    path: Path_ | None,
    kind: str,
    payload: dict[str, Any],
    study: str,
    site: str,
    software: str,
    created: str | None,
) -> Envelope:
    """Write a file that the reader accepts, or nothing."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "study": study,
        "site": site,
        "created": created or datetime.now(UTC).date().isoformat(),
        "software": software,
        "payload": payload,
    }
    try:
        content["sha256"] = fingerprint(payload)
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {kind} cannot be written as JSON: {error}.") from None
    if len(data) > FILE_LIMIT:
        raise ValueError(
            f"the {kind} file would have {len(data):,} bytes, at most {FILE_LIMIT:,} are read; "
            "raise min_count or use fewer models."
        )
    file = checked(parse(data, f"the {kind} file"), f"the {kind} file", study, kind)
    if path is not None:
        atomic_write(Path(path), data)
    return file


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file wholly or not at all: beside it, flushed to the disk, then renamed.

    Folders that are not there are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def file_name(name: str, kind: str) -> str:
    """What a site's file is called, such as "MGB-1.model.json".

    Examples
    --------
    >>> file_name("south hospital/2", "model")
    'south_hospital-2.model.json'
    """
    return f"{name.replace('/', '-').replace(' ', '_')}.{kind}.json"


def file_names(names: Iterable[str], kind: str) -> dict[str, str]:
    """The file names of several sites, no two alike.

    Examples
    --------
    >>> file_names(["a b", "a_b"], "labels")
    {'a b': 'a_b.labels.json', 'a_b': 'a_b-2.labels.json'}
    """
    found: dict[str, str] = {}
    for name in names:
        file, number = file_name(name, kind), 2
        while file in found.values():
            file, number = file_name(f"{name}-{number}", kind), number + 1
        found[name] = file
    return found
