"""Figures as files: laid out once, and the same from any number of processes."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from mmlca.study.pictures import draw_all, start_processes, to_pictures


def heat(seed: int) -> Any:
    """Panels with long labels, a colour bar and a legend outside: all that a layout must fit."""
    values = np.random.default_rng(seed).random((4, 4))
    figure, axes = plt.subplots(1, 2, figsize=(4, 2), layout="constrained")
    image = axes[0].imshow(values)
    axes[1].plot(values[0], label="a rather long name")
    axes[1].set_ylabel("what is shown here")
    figure.colorbar(image, ax=axes[0])
    figure.legend(loc="outside upper center")
    figure.supxlabel("Quarter")
    return figure


def test_laying_out_beforehand_changes_no_pixel() -> None:
    pictures = to_pictures(lambda: heat(1), 90)
    look = {"font.size": 7, "axes.titlesize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6}
    with mpl.rc_context(look):
        figure, buffer = heat(1), BytesIO()
        figure.savefig(buffer, dpi=90)
        plt.close(figure)
    first, second = (plt.imread(BytesIO(file)) for file in (pictures["png"], buffer.getvalue()))
    np.testing.assert_array_equal(first, second)


def test_settings_of_the_caller_have_no_part_in_it() -> None:
    plain = to_pictures(lambda: heat(1), 60)
    mine, before = plt.figure(), plt.get_fignums()
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert to_pictures(lambda: heat(1), 60) == plain
        assert mpl.rcParams["font.size"] == 20
    assert plt.get_fignums() == before
    plt.close(mine)


def test_the_same_pictures_from_any_number_of_processes() -> None:
    draws = [lambda seed=seed: heat(seed) for seed in range(3)]  # type: ignore[misc]
    backend = mpl.get_backend()
    formats = ("png", "svg", "pdf")
    assert start_processes(1) is None
    alone = list(draw_all(draws, 60, formats, None))
    assert list(draw_all(draws, 60, formats, start_processes(2))) == alone
    assert len({files["png"] for files in alone}) == 3
    assert mpl.get_backend() == backend


def test_a_figure_that_cannot_be_drawn_says_why_from_any_process() -> None:
    def fail() -> None:
        raise ValueError("there is nothing to draw.")

    for n_jobs in (1, 2):
        with pytest.raises(ValueError, match="there is nothing to draw"):
            list(draw_all([fail], 60, ("png",), start_processes(n_jobs)))


def test_whoever_stops_early_leaves_no_process_behind(capfd: pytest.CaptureFixture[str]) -> None:
    processes = start_processes(2)
    some = draw_all([lambda seed=seed: heat(seed) for seed in range(9)], 60, ("png",), processes)
    next(some)
    workers = list(processes._processes.values())
    some.close()
    for worker in workers:
        worker.join(60)
    assert [worker.is_alive() for worker in workers] == [False, False]
    assert capfd.readouterr() == ("", "")  # nor a message of theirs
