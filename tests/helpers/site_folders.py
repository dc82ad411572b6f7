"""Folders of sites that tests begin with, made once and copied for each test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mmlca.federation import ledger


def duplicate(source: Path, target: Path) -> None:
    """Copy the folders of sites so that they do not notice it, as if made in `target` anew."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for path in target.rglob("masks-*.key"):
        first, *lines = path.read_text().splitlines()
        own = json.loads(first) | {"inode": path.stat().st_ino}
        path.write_text(json.dumps(own) + "\n")  # in place: a new file would have another inode
        ledger.append_masked(path, [line for line in lines if not line.startswith(("at ", "-"))])
