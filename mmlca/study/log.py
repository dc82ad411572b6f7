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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

from font.errors import InputError, ReportWarning

_log = logging.getLogger(__name__)
_PACKAGES = ("mmlca", "font", "ehr_prep")
_FORMAT = "%(asctime)s UTC %(levelname)s %(name)s: %(message)s"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


@contextmanager
def run_log(path: Path) -> Iterator[Callable[[], None]]:
    """Log what the packages do, and write it to a file from the call of what is yielded.

    Until then a study may be refused for a mistake of the user, and leaves no file behind. What an
    earlier run logged is replaced.
    """
    loggers = [logging.getLogger(name) for name in _PACKAGES]
    levels = [logger.level for logger in loggers]
    waiting = MemoryHandler(capacity=10**6, flushLevel=logging.CRITICAL + 1)
    with ExitStack() as files:

        def write() -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK
            file = files.enter_context(
                open(path, "w", encoding="utf-8", opener=lambda name, _: os.open(name, flags))
            )
            handler = logging.StreamHandler(file)
            handler.formatter = logging.Formatter(_FORMAT)
            handler.formatter.converter = time.gmtime
            waiting.setTarget(handler)
            waiting.flush()
            waiting.capacity = 0  # from now on nothing waits

        for logger in loggers:
            logger.addHandler(waiting)
            logger.setLevel(logging.INFO)
        try:
            yield write
        except BaseException as error:
            places = traceback.extract_tb(error.__traceback__)
            where = "\n".join(f"  {p.filename}, line {p.lineno}, in {p.name}" for p in places)
            _log.error("stopped by %s\n%s", type(error).__name__, where)
            if waiting.target is None and not isinstance(error, InputError | OSError):
                write()
            raise
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.removeHandler(waiting)
                logger.setLevel(level)


@contextmanager
def report_warnings() -> Iterator[list[str]]:
    """Collect what warnings say to the readers of the report.

    Other warnings, and those with a separate public text, also reach the user who runs the study.
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
