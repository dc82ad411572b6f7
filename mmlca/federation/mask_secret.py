"""The secret of a site's masks in secure sums: one for each study and round, never used twice.

Two different tables under the same masks can be subtracted, and what remains is readable. The
ledger refuses the second one, but a ledger that was restored from a backup or copied to another
computer does not know what has been masked since. So the secret is kept in a file of its own,
`masks-….key` in the site's folder, that notices both: it holds its own inode number, which a copy
or a restored file does not have, and the request of every answer that was masked with it, all of
which the ledger must know. Only a snapshot of the whole disk that is put back goes unnoticed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from font.files import atomic, private_folder


def make_mask_secret(path: Path) -> None:
    """Write a file with a new secret, in place of one that was not used."""
    private_folder(path.parent)
    with atomic(path, private=True) as file:
        content = {"inode": os.fstat(file.fileno()).st_ino, "secret": secrets.token_hex(32)}
        file.write(json.dumps(content).encode() + b"\n")


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
    first, *used = path.read_text(encoding="ascii").splitlines()
    content = json.loads(first)
    if content["inode"] != path.stat().st_ino or not set(used) <= set(known):
        return None
    unnoted = [request for request in known if request not in used]
    if unnoted:
        with path.open("a", encoding="ascii") as file:  # not anew: the inode must stay
            file.writelines(f"{request}\n" for request in unnoted)
            file.flush()
            os.fsync(file.fileno())
    return bytes.fromhex(content["secret"])
