"""What starting costs: the command line, and compiling the kernels once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

COLD = (
    "import time; t = time.process_time(); import numpy as np; from mmlca import MixtureMarkov;"
    "MixtureMarkov(2, seed=1).fit(np.array([[0, 1, 1, 0], [0, 0, 0, 0], [1, -1, 1, 1]]));"
    "print(time.process_time() - t)"
)


def wall(command: list[str], repeat: int = 5) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
    return best


def test_help() -> None:
    ours = wall([sys.executable, "-m", "mmlca", "--help"])
    typer = wall([sys.executable, "-c", "import typer"])
    print(f"\nmmlca --help {ours:.2f} s, {ours / typer:.2f}× import typer ({typer:.2f} s)")
    assert ours < 3 * typer


def test_first_fit(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    cold, warm = (
        float(
            subprocess.run(
                [sys.executable, "-c", COLD],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(2)
    )
    print(f"\nimport and first fit: {cold:.1f} s CPU when compiling, {warm:.1f} s from the cache")
    assert warm < cold / 2
