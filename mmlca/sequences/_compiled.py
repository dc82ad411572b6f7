"""How loops are compiled: with little delay, and kept wherever the program is installed.

numba keeps compiled loops on disk. It fails where neither the folder of the program nor the user's
own can be written, where the disk is full, and at a file of its cache that is damaged. Every file
of compiled loops imports this one, so that in the first cases loops are compiled anew in each
session, and in the last once more.

Compiling is what the first use waits for. numba optimises every loop with all it has, and again in
each loop that calls it. Here level 2 of its optimiser serves, for which the loops of this project
run no slower (tests/bench/test_bench_startup.py); `inner` loops are optimised only where they are
called; and Python does not search for garbage meanwhile, which took a tenth of the time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba.core import caching, codegen, compiler, event

_config: Any = numba.config
_njit: Any = numba.njit  # the stubs lack some of its options
_Library: Any = codegen.JITCodeLibrary
_Compiler: Any = compiler.Compiler
_Cache: Any = caching.Cache
_CacheFile: Any = caching.IndexDataCacheFile
_OURS = ("mmlca", "font", "ehr_prep")
_LEVEL = 2
_SEAL = b"mmlca sha256 "  # then the hash of all that comes before


class _Linked(_Library):  # type: ignore[misc]  # of no type known to mypy
    """Code that waits until it is linked into the loops that call it.

    numba would optimise it and make machine code of it here, and then again in each of them. Its
    environment is for raising errors, which such loops do not.
    """

    codegen = SimpleNamespace(set_env=lambda name, environment: None)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _Inner(_Compiler):  # type: ignore[misc]
    """numba's compiler, for loops that only other loops call."""

    def define_pipelines(self) -> Any:
        context, name = self.state.targetctx, self.state.func_id.func_qualname
        self.state.library = _Linked(context.codegen(), name)
        return super().define_pipelines()


# What Python calls, and what only other loops call, which has neither an entry from Python nor a
# file in the cache. Divisions do not check for zero. Loops raise no errors and allocate nothing, so
# that numba need not count references to arrays: scratch comes from Python.
_options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
entry: Any = _njit(cache=True, **_options)
inner: Any = _njit(no_cpython_wrapper=True, pipeline_class=_Inner, **_options)


def _nothing() -> None:
    pass


def _find_place() -> None:
    """Where numba finds no folder for its cache, give it one that lives as long as this process.

    Its name is secret: whoever could write into it could run programs of their own here.
    """
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        folder = tempfile.mkdtemp(prefix="mmlca-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _config.CACHE_DIR = folder
        os.environ["NUMBA_CACHE_DIR"] = folder  # for processes that this one starts


def _forgive_damage() -> None:
    """Take a damaged file of numba's cache for one that does not exist, and do without one that
    cannot be written.

    What is written gets a seal at its end, which numba does not look at: a single bit that was
    changed in machine code may go unnoticed else. Files without a seal are those of other programs.
    """
    load_index, load_data = _CacheFile._load_index, _CacheFile._load_data
    save, open_for_write = _CacheFile.save, _CacheFile._open_for_write
    load_overload = _Cache._load_overload

    def index(self: Any) -> Any:
        try:
            return load_index(self) if _intact(self._index_path) else {}
        except Exception:  # unpickling raises anything
            return {}

    def data(self: Any, name: str) -> Any:
        try:
            if _intact(self._data_path(name)):
                return load_data(self, name)
        except Exception as error:
            raise OSError(f"{name} is damaged") from error  # which numba expects
        raise OSError(f"{name} is damaged")

    def overload(self: Any, *what: Any) -> Any:
        try:
            return load_overload(self, *what)
        except Exception:  # LLVM cannot read it
            return None

    def keep(self: Any, *what: Any) -> None:
        with contextlib.suppress(OSError):  # such as a full disk
            save(self, *what)

    @contextlib.contextmanager
    def sealed(self: Any, path: str) -> Iterator[io.BytesIO]:
        with open_for_write(self, path) as file:
            yield (content := io.BytesIO())
            file.write(content.getvalue() + _SEAL + sha256(content.getvalue()).digest())

    _CacheFile._load_index, _CacheFile._load_data = index, data
    _CacheFile.save, _CacheFile._open_for_write = keep, sealed
    _Cache._load_overload = overload


def _intact(path: str) -> bool:
    """Whether a file of the cache is as it was written, as far as it has a seal."""
    content, seal, digest = Path(path).read_bytes().rpartition(_SEAL)
    return not seal or sha256(content).digest() == digest


class _LittleDelay(event.Listener):
    """Lowers numba's level of optimisation while one of this project's loops is compiled.

    Python's search for garbage pauses meanwhile. numba tells of each compilation while it holds
    the lock that lets one thread compile at a time.
    """

    def __init__(self) -> None:
        self.before: list[tuple[Any, bool]] = []

    def on_start(self, event: Any) -> None:
        self.before.append((_config.OPT, gc.isenabled()))
        if event.data["dispatcher"].py_func.__module__.partition(".")[0] in _OURS:
            gc.disable()
            if "NUMBA_OPT" not in os.environ:  # else it is for the user to say
                _config.OPT = type(_config.OPT)(_LEVEL)

    def on_end(self, event: Any) -> None:
        _config.OPT, collects = self.before.pop()
        if collects:
            gc.enable()


_find_place()
_forgive_damage()
event.register("numba:compile", _LittleDelay())  # type: ignore[no-untyped-call]
