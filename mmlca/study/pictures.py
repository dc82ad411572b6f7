"""Figures as files, several drawn at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pictures = dict[str, bytes]
"""The files of one figure by format."""


def to_pictures(draw: Callable[[], Any], dpi: int, formats: Collection[str] = ("png",)) -> Pictures:
    """The picture in each format; settings and open figures of a caller have no part in it."""
    import matplotlib.pyplot as plt

    look: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "mmlca"}
    look |= {"font.size": 7, "axes.titlesize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6}
    about = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    pictures = {}
    with plt.style.context(["default", look]), plt.ioff():  # a state may be called "$x^$"
        drawn = draw()
        figure: Figure = drawn if hasattr(drawn, "savefig") else drawn.figure
        figure.set_dpi(dpi)
        _place(figure)
        for name in formats:
            buffer = BytesIO()
            figure.savefig(buffer, dpi=dpi, format=name, metadata=about[name])
            pictures[name] = buffer.getvalue()
        plt.close(figure)
    return pictures


def _place(figure: Figure) -> None:
    """Lay a figure out once and for all; else each saving draws it a second time to do so."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def start_processes(n_jobs: int) -> Iterator[None]:
    """Start the processes of `draw_all` while this one goes on; exhaust the result before it."""
    from joblib import Parallel, delayed, effective_n_jobs

    if effective_n_jobs(n_jobs) == 1:
        return iter(())
    work = Parallel(n_jobs=n_jobs, return_as="generator")
    ready: Iterator[None] = work(delayed(_load)() for _ in range(effective_n_jobs(n_jobs)))
    return ready


def _load() -> None:
    import matplotlib as mpl

    mpl.use("agg")  # a process of its own needs no window
    import matplotlib.pyplot as plt

    import mmlca.study.items  # noqa: F401

    plt.close(plt.figure())
    gc.freeze()  # what was imported is no garbage; figures are, and it is looked for often


def draw_all(
    draws: Iterable[Callable[[], Any]], dpi: int, formats: Collection[str], n_jobs: int
) -> Iterator[Pictures]:
    """The pictures of each figure, in this order, drawn by several processes at a time."""
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.externals.loky import get_reusable_executor

    work = Parallel(n_jobs=n_jobs, return_as="generator", batch_size=1, pre_dispatch="all")
    try:
        yield from work(delayed(to_pictures)(draw, dpi, formats) for draw in draws)
    finally:
        if effective_n_jobs(n_jobs) > 1:  # else the end of this process waits for theirs
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
