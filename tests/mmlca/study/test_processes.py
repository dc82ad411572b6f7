"""Processes that work for a study: the same results, warnings and errors, and none left behind."""

from __future__ import annotations

import os
import signal
import time
import warnings
from multiprocessing import current_process
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from font.errors import option, spelled
from mmlca.study.processes import Processes
from mmlca.study.report.exports import to_pictures


def line(slope: int) -> Any:
    figure, ax = plt.subplots(figsize=(2, 1))
    ax.plot([0, slope])
    return figure


def both() -> list[Processes]:
    """This process alone, and two others."""
    processes = [Processes(1), Processes(2)]
    for one in processes:
        one.start()
    assert [one.running for one in processes] == [False, True]
    return processes


def workers_of(processes: Processes) -> set[int]:
    """The process ids of both workers."""

    def identify() -> int:
        time.sleep(0.02)
        return os.getpid()

    found: set[int] = set()
    while len(found) < 2:
        found |= {task() for task in [processes.submit(identify) for _ in range(4)]}
        assert os.getpid() not in found
    return found


def test_the_same_pictures_from_any_number_of_processes() -> None:
    backend, results = mpl.get_backend(), []
    for processes in both():
        with processes:
            tasks = [
                processes.submit(to_pictures, lambda s=slope: line(s), 60, ("png", "svg", "pdf"))
                for slope in range(3)
            ]
            results.append([task() for task in tasks])
    assert results[0] == results[1]
    assert len({files["png"] for files in results[0]}) == 3
    assert mpl.get_backend() == backend


def test_a_task_is_done_once_and_warns_once() -> None:
    def count(calls: list[int]) -> int:
        warnings.warn("once", stacklevel=1)
        calls.append(1)
        return len(calls)

    for processes in both():
        with processes:
            task = processes.submit(count, [])
            with pytest.warns(UserWarning, match="once") as caught:
                assert [task(), task()] == [1, 1]
            assert len(caught) == 1


def test_errors_come_from_any_process_in_the_words_of_the_user() -> None:
    def fail() -> None:
        raise ValueError(f"nothing to draw; set {option('min_count', 1)}.")

    for processes in both():
        with processes, spelled(lambda name, value: f"--{name} {value}"):
            task = processes.submit(fail)
            with pytest.raises(ValueError, match="nothing to draw; set --min_count 1"):
                task()


def test_whoever_stops_early_leaves_no_process_behind(capfd: pytest.CaptureFixture[str]) -> None:
    with Processes(2) as processes:
        processes.start()
        workers = workers_of(processes)
        tasks = [processes.submit(to_pictures, lambda: line(1), 60) for _ in range(9)]
        tasks[0]()
    assert len(workers) == 2
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    assert capfd.readouterr() == ("", "")  # nor a message of theirs


def test_tasks_of_a_process_that_was_killed_are_done_all_the_same() -> None:
    with Processes(2) as processes:
        processes.start()
        workers = workers_of(processes)
        tasks = [processes.submit(to_pictures, lambda: line(1), 60) for _ in range(9)]
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        assert {task()["png"] for task in tasks} == {to_pictures(lambda: line(1), 60)["png"]}
        assert processes.submit(int, "3")() == 3


def test_a_computer_without_processes_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise PermissionError("no semaphores here")

    monkeypatch.setattr("loky.ProcessPoolExecutor", refuse)
    with Processes(2) as processes:
        processes.start()
        assert not processes.running
        assert processes.submit(int, "3")() == 3


def test_a_worker_of_another_program_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_process(), "daemon", True)
    with Processes(2) as processes:
        processes.start()
        assert not processes.running


def test_a_large_computer_is_not_filled_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loky.cpu_count", lambda: 64)
    assert (Processes().n, Processes(3).n, Processes(32).n) == (8, 3, 32)
