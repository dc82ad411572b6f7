"""Run a study: the list of its steps, and what does them one after the other."""

from __future__ import annotations

import inspect
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, NamedTuple

from font.errors import InputError
from font.files import hold
from mmlca.study import steps
from mmlca.study.cache import FOR_REPORT, Progress, make_key, open_results, report_warnings
from mmlca.study.combined import Combined
from mmlca.study.processes import Processes
from mmlca.study.results.site import SiteResults
from mmlca.study.settings import Study
from mmlca.study.study_file import settings_text

_log = logging.getLogger(__name__)
_PACKAGES = ("mmlca", "font", "ehr_prep")
_FORMAT = "%(asctime)s UTC %(levelname)s %(name)s: %(message)s"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


class Step(NamedTuple):
    """One step of a study.

    Parameters
    ----------
    name : str
        In `provenance.json` and in the log.
    do : function of a `steps.Run` and of what earlier steps made, as arguments of these names
    makes : str, optional
        What later steps call the result; without it the step only writes files.
    irrelevant : sections of a study file
        Settings on which the files of the step do not depend. They depend on all others, on the
        data and on what earlier steps chose: if any of it has changed, the step is done again.
    """

    name: str
    do: Callable[..., Any]
    makes: str | None = None
    irrelevant: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of what earlier steps made: the arguments of the function after the run."""
        return tuple(inspect.signature(self.do).parameters)[1:]


_AFTER_SUGGEST = (*FOR_REPORT, "privacy")
_AFTER_FITS = (*FOR_REPORT, "ensemble")  # criteria depend on min_count

PATIENTS = (
    # each site prepares its patients' data and fits models to them
    Step("read", steps.read, "sequences"),
    Step("resample", steps.resample, "resamples"),
    Step("choose", steps.choose, "choice", _AFTER_FITS),
    Step("fit", steps.fit, "models", (*_AFTER_FITS, "classes")),
    # the centre combines the models, and every patient gets a cluster
    Step("suggest", steps.suggest, "suggested", _AFTER_SUGGEST),
    Step("combine", steps.combine, "analysis"),
    # what the report needs of each site, and what stays inside the hospital
    Step("describe", steps.describe_sites, "released"),
    Step("clusters", steps.write_clusters),
)
"""The steps that see patients."""

FIND = Step("find", steps.find, "findings")
REPORT = (
    Step("content", steps.content, "report"),
    Step("tables", steps.write_tables),
    Step("word", steps.write_word),
    Step("draw", steps.begin_drawing, "drawings"),
    Step("results", steps.write_results),
    Step("sections", steps.lay_out, "sections"),  # while others draw
    Step("figures", steps.write_figures, "pictures"),
)
PAGE = Step("report", steps.write_page)

STEPS = (
    *PATIENTS,
    FIND,
    Step("begin", steps.begin_single_courses, "single"),
    *REPORT,
    Step(steps.SINGLE, steps.write_single_courses),
    PAGE,
)
OF_NETWORK = (FIND, *REPORT, PAGE)
"""The steps that make the report where sites exchange files, from what they released."""


def run_study(
    study: Study,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Run the whole study, and write its results to a folder.

    An interrupted run goes on where it stopped, and a finished one is not repeated: models are
    fitted and figures drawn again only if a setting or a file that they depend on has changed.

    Parameters
    ----------
    study : Study
        From `read_study`.
    out : path
        The folder gets `report.html`, `results.json` (numbers and texts), `provenance.json`
        (settings, versions, hashes, times), `run.log` (what was done when), `tables/`, `figures/`
        with a table beside each figure, and two folders that must stay inside the hospital:
        `patients/`, which holds ids, and `models/`, from whose exact numbers small counts follow.
        One run at a time: a second one in the same folder is refused with an OSError.
    progress : function (text, share), optional
    processes : Processes, optional
        Those to use, if they were started before; otherwise `study.n_jobs` are started.

    Returns
    -------
    dict
        The content of `results.json`.
    """
    return _run(study, out, STEPS, {}, progress, processes)


def report_results(
    study: Study,
    out: str | os.PathLike[str],
    results: Mapping[str, SiteResults],
    combined: Combined,
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the report of what sites released, which needs none of their patients.

    Parameters
    ----------
    study : Study
        What all sites agreed on, see `read_network_study`.
    out : path
        The folder gets the files that `run_study` writes, but for those of patients and models.
    results : {site: SiteResults}
    combined : Combined
        What the centre knows besides.
    progress : function (text, share), optional

    Returns
    -------
    dict
        The content of `results.json`.
    """
    released = steps.Released(dict(results), combined)
    return _run(study, out, OF_NETWORK, {"released": released}, progress, None)


def _run(
    study: Study,
    out: str | os.PathLike[str],
    todo: Sequence[Step],
    made: dict[str, Any],
    progress: Progress | None,
    processes: Processes | None,
) -> dict[str, Any]:
    tell = progress or (lambda text, share: None)
    with hold(out), processes or Processes(study.n_jobs) as used:
        tell("Reading", 0.0)
        released = made.get("released")
        results, key = open_results(study, out, reads=released is None)
        if released is not None:
            key = make_key(key, released.hashes())
        with run_log(results.log_file()) as write_log:
            return _do_steps(steps.Run(study, results, tell, used, key), todo, made, write_log)


def _do_steps(
    run: steps.Run,
    todo: Sequence[Step],
    made: dict[str, Any],
    write_log: Callable[[], None],
) -> dict[str, Any]:
    software, settings = run.results.about["software"], run.results.about["settings"]
    _log.info(", ".join(f"{name} {version}" for name, version in software.items()))
    _log.info("settings\n%s", settings_text(settings))
    if run.study.outputs.figures and not run.results.record["steps"]:
        run.processes.start()  # figures will need them, and they have loaded when fits begin
    for step in todo:
        _log.info("step %s", step.name)
        run.begin(step.name, step.irrelevant)
        with report_warnings() as texts:
            result = step.do(run, **{name: made[name] for name in step.needs})
        run.results.warn(texts)
        if step is todo[0]:  # the data can be used: what is wrong with them is found there
            write_log()
        if step.makes is not None:
            made[step.makes] = result
    run.finish()
    content: dict[str, Any] = made["report"].plain()
    return content


# --- the log ------------------------------------------------------------------------------


@contextmanager
def run_log(path: Path) -> Iterator[Callable[[], None]]:
    """Log what the packages do, and write it to a file from the call of what is yielded.

    Until then a study may be refused for a mistake of the user, and leaves no file behind. What an
    earlier run logged is replaced. The log holds neither patients' ids nor numbers of patients: of
    warnings it has what the report shows, and of errors where they happened, without their text.
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
