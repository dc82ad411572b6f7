"""The hospital's secret, from which the rounding of public releases is drawn.

It is a file of 64 hexadecimal digits that only its owner can read, in the user's folder of settings
and never among results: with it all rounding could be undone by trying. The same secret rounds the
same counts alike in every run. Keep it, and give it to nobody: with another one the counts would be
drawn anew, and averages of old and new releases tell more than either.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from font.errors import InputError
from font.files import private_folder

VARIABLE = "MMLCA_SECRET"
"""The environment variable that names another file, such as one for all users of a hospital."""


def secret_file() -> Path:
    """Where the secret is kept."""
    from typer import get_app_dir

    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(get_app_dir("mmlca")) / "secret"


def hospital_secret() -> bytes:
    """The secret, 32 bytes; the first call makes it."""
    path = secret_file()
    try:
        if not path.exists():
            _make(path)
        text = path.read_bytes()[:200].strip()
    except OSError as error:
        raise OSError(
            f"cannot read or make the secret {path} that public releases are rounded with "
            f"({error.strerror}); name another place in the environment variable {VARIABLE}."
        ) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", text):
        raise InputError(
            f"{path} is not a secret that this program wrote (64 hexadecimal digits), or it is "
            "damaged; restore it from a backup, since counts that are drawn anew reveal more than "
            "they should."
        )
    return bytes.fromhex(text.decode())


def _make(path: Path) -> None:
    """Make the file whole or not at all; if another program was faster, its file stays."""
    private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_hex(32).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
