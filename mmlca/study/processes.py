"""Processes beside this one, which fit, compute and draw for a study."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from functools import cache, partial
from multiprocessing import current_process
from typing import Any, Self, TypeVar

from font.errors import Spell, spelled, spelling

T = TypeVar("T")

_MOST = 8  # on all cores of a large computer: each process takes up to 350 MB


class Processes:
    """Processes that work for this one, to be used in a `with` block.

    Until `start`, and always if there is one job, this process does everything itself. At the end
    of the block no process is left, also after an error or Ctrl-C.

    Parameters
    ----------
    n_jobs : int, optional
        Number of processes; all cores if not given, but at most 8.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        import loky

        self.n = n_jobs or min(loky.cpu_count(), _MOST)
        self._executor: Any = None
        self._compiled: Any = None

    @property
    def running(self) -> bool:
        return self._executor is not None

    def start(self) -> None:
        """Start the processes; they load what they need while this one continues."""
        import loky

        if self.n == 1 or self.running or current_process().daemon:  # which may start none
            return
        try:
            executor = loky.ProcessPoolExecutor(self.n, initializer=_load)
            self._compiled = executor.submit(_compile)  # by one of them; others read it
        except OSError:  # a computer that does not allow it: this process does everything
            return
        self._executor = executor

    def submit(self, call: Callable[..., T], *args: Any) -> Callable[[], T]:
        """Hand a task over.

        What is returned waits for the result and warns as the task did. Without processes the task
        is done when its result is first asked for; so it is if a process ended before its time,
        as where the computer had no memory left.
        """
        here = partial(call, *args)
        if not self.running:
            return cache(here)
        try:
            self._compiled.result()
            task = self._executor.submit(_observed, spelling(), call, args)
        except BrokenExecutor:
            return cache(here)

        def result() -> T:
            try:
                value, messages = task.result()
            except BrokenExecutor:
                return here()
            for message in messages:
                warnings.warn(message, stacklevel=2)
            return value  # type: ignore[no-any-return]

        return cache(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.running:
            self._executor.shutdown(kill_workers=True)
            self._executor = None


def _observed(
    spell: Spell, call: Callable[..., T], args: tuple[Any, ...]
) -> tuple[T, list[Warning]]:
    """The result of a task and its warnings, which are in the words of the process it is for."""
    with spelled(spell), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call(*args)
    return value, [warning.message for warning in caught if isinstance(warning.message, Warning)]


def _compile() -> None:
    """Compile the loops of a fit, at the first use of the program; later they are only loaded."""
    import numpy as np

    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = Sequences.from_codes(np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0]]))
        MixtureMarkov(2, n_init=2, max_iter=2, seed=1).fit(data)


def _load() -> None:
    """What fits and figures need."""
    import matplotlib as mpl

    mpl.use("agg")  # a process of its own needs no window
    import matplotlib.pyplot as plt

    import mmlca.figures.courses
    import mmlca.figures.sites
    import mmlca.figures.transitions
    import mmlca.figures.treatment_lines
    import mmlca.model._kernels  # noqa: F401

    plt.close(plt.figure())
    gc.freeze()  # imported modules are not garbage; figures are, and collections are frequent
