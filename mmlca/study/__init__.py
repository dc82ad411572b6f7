"""A whole study: from a study file to tables, figures and a report.

`read_study` reads and checks the file, `run_study` does the work, `write_report` makes the page,
and `run_sensitivity` repeats the analysis under other choices.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Study": "config",
    "read_study": "config",
    "read_site": "data",
    "run_sensitivity": "sensitivity",
    "run_study": "run",
    "write_study_file": "config",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from mmlca.study.config import Study, read_study, write_study_file
    from mmlca.study.data import read_site
    from mmlca.study.run import run_study
    from mmlca.study.sensitivity import run_sensitivity


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
