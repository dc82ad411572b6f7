"""A cache of compiled loops that works wherever the program is installed.

numba keeps compiled loops on disk. It fails where neither the folder of the program nor the user's
own can be written, and at a file of its cache that is damaged. Every file of compiled loops imports
this one, so that in the first case loops are compiled anew in each session, and in the second once
more.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Any

import numba
from numba.core import caching

_config: Any = numba.config
_CacheFile: Any = caching.IndexDataCacheFile


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
    """Take a damaged file of numba's cache for one that does not exist."""
    load_index, load_data = _CacheFile._load_index, _CacheFile._load_data

    def index(self: Any) -> Any:
        try:
            return load_index(self)
        except Exception:  # unpickling raises anything
            return {}

    def data(self: Any, name: str) -> Any:
        try:
            return load_data(self, name)
        except Exception as error:
            raise OSError(f"{name} is damaged") from error  # which numba expects

    _CacheFile._load_index, _CacheFile._load_data = index, data


_find_place()
_forgive_damage()
