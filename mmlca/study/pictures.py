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
Processes = Any
"""An executor of joblib's, or None for one that is this process."""


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


def start_processes(n_jobs: int) -> Processes:
    """Processes for `draw_all`, which load what they need while this one goes on."""
    from joblib import effective_n_jobs
    from joblib.externals.loky import ProcessPoolExecutor

    n = effective_n_jobs(n_jobs)
    if n == 1:
        return None
    processes = ProcessPoolExecutor(n, initializer=_load)
    processes.submit(int)  # else they start with the first figure
    return processes


def _load() -> None:
    import matplotlib as mpl

    mpl.use("agg")  # a process of its own needs no window
    import matplotlib.pyplot as plt

    import mmlca.study.items  # noqa: F401

    plt.close(plt.figure())
    gc.freeze()  # what was imported is no garbage; figures are, and it is looked for often


def draw_all(
    draws: Iterable[Callable[[], Any]], dpi: int, formats: Collection[str], processes: Processes
) -> Iterator[Pictures]:
    """The pictures of each figure, in this order, drawn by processes that end with the last."""
    if processes is None:
        yield from (to_pictures(draw, dpi, formats) for draw in draws)
        return
    figures = [processes.submit(to_pictures, draw, dpi, formats) for draw in draws]
    try:
        for figure in figures:
            yield figure.result()
    finally:
        for figure in figures:
            figure.cancel()
        workers = list(processes._processes.values())
        processes.shutdown(wait=False)
        for worker in workers:  # its own way of ending them fails while figures wait
            worker.terminate()
