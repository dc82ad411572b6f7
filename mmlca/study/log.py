"""What a study notes while it runs: its log, and the warnings that its report shows.

The log holds neither patients' ids nor numbers of patients: of warnings it has what the report
shows, and of errors where they happened, without their text.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from font.errors import ReportWarning

_log = logging.getLogger(__name__)
_PACKAGES = ("mmlca", "font", "ehr_prep")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Write what the packages log to a file, in place of what an earlier run logged there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK
    loggers = {name: logging.getLogger(name) for name in _PACKAGES}
    levels = {name: logger.level for name, logger in loggers.items()}
    with open(path, "w", encoding="utf-8", opener=lambda name, _: os.open(name, flags)) as file:
        handler = logging.StreamHandler(file)
        handler.formatter = logging.Formatter("%(asctime)s UTC %(levelname)s %(name)s: %(message)s")
        handler.formatter.converter = time.gmtime
        for logger in loggers.values():
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        try:
            yield
        except BaseException as error:
            places = traceback.extract_tb(error.__traceback__)
            where = "\n".join(f"  {p.filename}, line {p.lineno}, in {p.name}" for p in places)
            _log.error("stopped by %s\n%s", type(error).__name__, where)
            raise
        finally:
            for name, logger in loggers.items():
                logger.removeHandler(handler)
                logger.setLevel(levels[name])


@contextmanager
def report_warnings() -> Iterator[list[str]]:
    """Collect what warnings say to the readers of the report.

    Other warnings go on to whoever runs the study, and so do those with a public text of their own.
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield texts
    for warning in caught:
        message = warning.message
        if isinstance(message, ReportWarning):
            if message.public and message.public not in texts:
                texts.append(message.public)
            if not message.is_repeated:
                continue
        _log.info("%s in %s", warning.category.__name__, Path(warning.filename).name)
        warnings.warn_explicit(message, warning.category, warning.filename, warning.lineno)
