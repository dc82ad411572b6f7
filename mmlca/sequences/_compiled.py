"""How loops are compiled, and kept on disk wherever that is possible.

numba stores compiled loops in files, so that only the first use of a version waits for the
compiler. By itself it would end the program where no folder can be written, where the disk is full
and where a stored file is damaged. A loop decorated with `entry` runs in all of these cases: it is
compiled again, and stored only where that works.

The SHA-256 of every stored file is in a file of the same name with the ending `.sha256`.
Files without it, or with another content, are removed before numba reads them: a single changed bit
in machine code can end the program or, worse, change its results.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config  # without a type for its members
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # divisions do not check for 0

inner: Any = numba.njit(**_OPTIONS)
"""Decorates loops that only other loops call."""


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a loop that Python calls: compiled on first use, and stored."""
    stored: Any = numba.njit(cache=True, **_OPTIONS)(function)
    folder = Path(stored.stats.cache_path)
    pattern = f"*{function.__qualname__}-{function.__code__.co_firstlineno}.py*.nb?"
    _remove_damaged(folder, pattern)
    compiled, n_versions = stored, 0

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal compiled, n_versions
        try:
            result = compiled(*arguments)
        except OSError:  # the file cannot be read or written; the loop itself raises no errors
            compiled = numba.njit(**_OPTIONS)(function)
            return compiled(*arguments)
        if compiled is stored and len(stored.overloads) > n_versions:
            n_versions = len(stored.overloads)
            if stored.stats.cache_misses:
                _write_checksums(folder, pattern)
        return result

    return call


def _remove_damaged(folder: Path, pattern: str) -> None:
    """Remove stored files that are not as they were written."""
    for file in folder.glob(pattern):
        if file.is_file() and not _is_whole(file):
            with contextlib.suppress(OSError):  # numba reports a file that it cannot replace
                file.unlink()


def _is_whole(file: Path) -> bool:
    try:
        return _checksum_file(file).read_text() == _checksum(file)
    except (OSError, UnicodeDecodeError):
        return False


def _write_checksums(folder: Path, pattern: str) -> None:
    """Write the checksums of stored files; without them the next program compiles again."""
    for file in folder.glob(pattern):
        with contextlib.suppress(OSError):
            _checksum_file(file).write_text(_checksum(file))


def _checksum_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _checksum(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def _choose_folder() -> None:
    """Where numba finds no folder for its files, give it one that lasts as long as this process.

    Processes that this one starts share it. Its name cannot be guessed: whoever could write into
    it could run programs of their own here.
    """
    try:
        numba.njit(cache=True)(_choose_folder)
    except RuntimeError:
        folder = tempfile.mkdtemp(prefix="mmlca-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _config.CACHE_DIR = folder
        os.environ["NUMBA_CACHE_DIR"] = folder


_choose_folder()
