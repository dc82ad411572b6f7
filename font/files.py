"""Files that are written wholly or not at all, and folders that one program uses at a time.

All three packages write with it.

An unfinished file has a name that begins with a dot and ends in a secret and ".tmp"; what a killed
program left is removed when another one writes into the same folder.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from font.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_STARTED = time.time()
_LOCK = ".mmlca.lock"
_HELD = threading.local()  # the folders that this thread holds
_TEMPORARY = re.compile(r"\..{1,50}\.[0-9a-f]{16}\.tmp", re.DOTALL)


@contextmanager
def atomic(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends; if the block fails, nothing changes.

    The content goes to a temporary file in the same folder, whose name cannot be guessed and which
    must not exist yet, so that a link planted in the folder is never followed. It is flushed to the
    disk and then renamed. A link at `path` itself is replaced, not followed. Unfinished files that
    a killed program left in the folder are removed. Only the owner may read a `private` file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic(Path(folder, "note.txt")) as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "note.txt").read_bytes()
    b'whole'
    """
    target = Path(path)
    _clear_once(os.path.abspath(target.parent))
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    mode = 0o600 if private else 0o666
    # "x" creates the file and fails if anything, a link included, has that name
    file = open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    try:
        with file:
            _lock(file.fileno())  # so that no other program takes the file for left behind
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> None:
    """Write `data` as a file, wholly or not at all; folders that do not exist are made."""
    folder = Path(path).parent
    private_folder(folder) if private else folder.mkdir(parents=True, exist_ok=True)
    with atomic(path, private=private) as file:
        file.write(data)


def private_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter; one that exists stays as it is."""
    folder = Path(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def keep_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse to write a file over one that is read; inputs that were not given are None."""
    read = [path for path in inputs if path is not None and path.exists()]
    for output in outputs:
        if output.exists() and any(output.samefile(path) for path in read):
            raise InputError(
                f"{output} is an input and would be overwritten; choose another --out."
            )


def check_regular(path: Path) -> None:
    """Refuse pipes and devices, which never end, and files of the running system."""
    real = path.resolve()
    if not real.is_file() or real.parts[1:2] in (("proc",), ("sys",)):
        raise InputError(
            f"{path} is not a plain file but a pipe, a device or part of the running system; copy "
            "what it holds into a file first."
        )


# --- tables for people ------------------------------------------------------------------------


def csv_text(table: pd.DataFrame, *, index: bool = False, **options: Any) -> str:
    """A table as CSV for people, who open it in a spreadsheet.

    Texts that a spreadsheet would run as formulas, those that begin with = + - or @ and have more
    than numbers in them, get an apostrophe before them; "-1.2 (0.4)" stays as it is. `options` go
    to `DataFrame.to_csv`. Files that this program reads again, such as sequences, are not written
    by it.
    """
    safe = table.copy(deep=False)
    for i in range(safe.shape[1]):
        safe.isetitem(i, _harmless_column(safe.iloc[:, i]))
    safe.columns = safe.columns.map(_harmless)
    if index:
        safe.index = _harmless_column(safe.index)
    text: str = safe.to_csv(index=index, lineterminator="\n", **options)
    return text


_NUMBER = r"[+-]?(?:\d[\d.,]*(?:e[+-]?\d+)?%?|inf|nan)"
_NUMBERS = re.compile(rf"{_NUMBER}(?: ?[(\[,;–] ?{_NUMBER}[)\]]*)*")


def _harmless_column(column: Any) -> Any:
    return column.map(_harmless) if column.dtype.kind == "O" else column


def _harmless(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    return value if _NUMBERS.fullmatch(value) else f"'{value}"


# --- pages for people -------------------------------------------------------------------------


def content_policy(style: str, script: str = "") -> str:
    """The Content-Security-Policy of a page that holds its own style, script and pictures.

    Only this style and this script apply, known by their hashes, and nothing is fetched or sent.
    """
    rules = ["default-src 'none'", "img-src data:", f"style-src {_hash(style)}"]
    if script:
        rules.append(f"script-src {_hash(script)}")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# --- one program at a time --------------------------------------------------------------------


@contextmanager
def hold(folder: str | os.PathLike[str], *, private: bool = False) -> Iterator[None]:
    """Use a folder alone; it is made if need be, for its owner only if `private`.

    A file in it says who uses it and since when. Whoever comes second gets an OSError that repeats
    that. The lock of a program that died does not count, since the system releases it. Inside the
    block the same thread may hold the folder again, so that a command and the function that it
    calls can both ask for it. If the block fails, folders that were made for it and are still empty
    go again.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, hold(folder), hold(folder):
    ...     Path(folder, ".mmlca.lock").exists()
    True
    """
    place = Path(folder)
    held = _HELD.__dict__.setdefault("folders", set())
    if place.resolve() in held:
        yield
        return
    made = [part for part in (place, *place.parents) if not part.exists()]
    try:
        private_folder(place) if private else place.mkdir(parents=True, exist_ok=True)
        file = _hold_file(place / _LOCK)
    except OSError as error:
        _remove_empty(made)
        if error.strerror is None:
            raise
        raise OSError(
            f"cannot write to {place} ({error.strerror}); choose another folder."
        ) from None
    name = place.resolve()
    held.add(name)
    done = False
    try:
        yield
        done = True
    finally:
        held.discard(name)
        with suppress(OSError):  # still locked, so that it is our own file
            (place / _LOCK).unlink()
        os.close(file)
        if not done:
            _remove_empty(made)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, up to the first that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _hold_file(path: Path) -> int:
    """The lock file, open and locked, with our name in it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            os.close(file)
            raise OSError(f"{path} is not a lock of this program; remove it.")
        if not _lock(file):
            holder = os.read(file, 2000)
            os.close(file)
            raise BlockingIOError(_in_use(path.parent, holder))
        try:
            if os.path.samestat(about, os.lstat(path)):
                break
        except FileNotFoundError:  # its last owner removed it after we had opened it
            pass
        os.close(file)
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        user = "unknown"
    since = datetime.now(UTC).isoformat(" ", timespec="seconds")
    me = {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since": since}
    os.ftruncate(file, 0)
    os.write(file, json.dumps(me).encode())
    return file


def _in_use(folder: Path, holder: bytes) -> str:
    try:
        by = json.loads(holder)
        who = f"process {by['pid']} of {by['user']!r} on {by['host']!r} since {by['since']}"
    except (ValueError, KeyError, TypeError):
        who = "another program"
    return f"{folder} is in use by {who}; wait until it has finished, or choose another folder."


# --- what killed programs left ----------------------------------------------------------------


def clear_unfinished(folder: str | os.PathLike[str]) -> None:
    """Remove the unfinished files of programs that were killed, in one folder.

    Only files of this user with a temporary name of `atomic` that are older than this process and
    that no program is writing.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_unfinished(entry.path)


@cache
def _clear_once(folder: str) -> None:
    """The first time is enough, since files younger than this process are not touched."""
    clear_unfinished(folder)


def _remove_unfinished(path: str) -> None:
    about = os.lstat(path)
    mine = os.name != "posix" or about.st_uid == os.getuid()
    if not (stat.S_ISREG(about.st_mode) and mine and about.st_mtime < _STARTED):
        return
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        unused = _lock(file)
    finally:
        os.close(file)
    if unused:
        os.unlink(path)


def _lock(file: int) -> bool:
    """Lock an open file until it is closed or its program dies; False if another one has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            place = os.lseek(file, 0, os.SEEK_CUR)
            os.lseek(file, 1 << 30, os.SEEK_SET)  # a locked byte could not be read
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, place, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    return True
