"""The secret of a site's masks in secure sums: one for each study and round, never used twice.

Two different tables under the same masks can be subtracted, and what remains is readable. The
ledger refuses the second one, but a ledger that was restored from a backup or copied to another
computer does not know what has been masked since. So the secret is kept in a file of its own,
`masks-….key` in the site's folder, that notices both. It holds its own inode number; the request of
every answer that was masked with it, all of which the ledger must know; and the time at which it
was written last, which must be that of the file system. A copy has another inode. What is restored
in place, or gets the inode of a file that was removed, has another time of change, which no program
can set. Only a snapshot of the whole disk that is put back goes unnoticed, and on Windows, which
has no such time, a file that is restored in place.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from font.files import atomic, private_folder

WITHIN = 2 * 10**9  # nanoseconds between the two writes of a time
_AT, _NONE = "at ", "-"  # what a line with the time begins with; instead of requests


def make_mask_secret(path: Path) -> None:
    """Write a file with a new secret, instead of one that was not used."""
    private_folder(path.parent)
    with atomic(path, private=True) as file:
        content = {"inode": os.fstat(file.fileno()).st_ino, "secret": secrets.token_hex(32)}
        file.write(json.dumps(content).encode() + b"\n")
    _append(path, [])


def read_mask_secret(path: Path, answered: Iterable[str]) -> bytes | None:
    """The secret, 32 bytes; None if masks with it might be used a second time.

    Parameters
    ----------
    path : Path
    answered : list of str
        The requests that were answered under masks, according to the ledger. Those that the file
        does not have are added to it.
    """
    known = list(answered)
    if not path.exists():
        return None
    first, *lines = path.read_text(encoding="ascii").splitlines()
    content, last = json.loads(first), lines[-1] if lines else ""
    used = [line for line in lines if line != _NONE and not line.startswith(_AT)]
    state = path.stat()
    if content["inode"] != state.st_ino or not set(used) <= set(known):
        return None
    if not last.startswith(_AT) or not 0 <= state.st_ctime_ns - int(last[len(_AT) :]) <= WITHIN:
        return None
    unnoted = [request for request in known if request not in used]
    if unnoted:
        _append(path, unnoted)
    return bytes.fromhex(content["secret"])


def _append(path: Path, requests: list[str]) -> None:
    """Add requests and the time, by the clock of the file system; the inode stays."""
    with path.open("a", encoding="ascii") as file:
        file.writelines(f"{request}\n" for request in requests or [_NONE])
        file.flush()
        os.fsync(file.fileno())
        file.write(f"{_AT}{os.fstat(file.fileno()).st_ctime_ns}\n")
        file.flush()
        os.fsync(file.fileno())
