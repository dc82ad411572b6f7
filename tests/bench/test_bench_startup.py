"""What starting costs: the command line, and compiling the kernels once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

TIMED = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
FIT = (
    "import numpy as np; from mmlca import MixtureMarkov;"
    "MixtureMarkov(2, seed=1).fit(np.array([[0, 1, 1, 0], [0, 0, 0, 0], [1, -1, 1, 1]]))"
)
PREP = (
    "import pandas as pd, ehr_prep;"
    "records = {'id': [1, 1], 'date': ['2010-01-01', '2010-06-01'], 'drug': ['Humira', 'Orencia']};"
    "ehr_prep.build_sequences(ehr_prep.read_records(pd.DataFrame(records), 'ra'))"
)
LOOP = (  # what numba itself needs: one loop that sums an array
    "import numba, numpy as np;"
    "exec('def total(x):\\n s = 0.0\\n for v in x: s += v\\n return s');"
    "numba.njit(total)(np.ones(3))"
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


def spent(work: str, cache: Path, **more: str) -> float:
    """CPU seconds of some work in a new process, whose compiled loops are in `cache`."""
    command = [sys.executable, "-c", TIMED.format(work)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)} | more
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


@pytest.mark.parametrize(("name", "most"), [("fit", 15), ("prep", 5)])
def test_first_use(name: str, most: float, tmp_path: Path) -> None:
    """Compiling all loops of a fit or of prep, in units of compiling one small loop."""
    work = {"fit": FIT, "prep": PREP}[name]
    cold, warm = spent(work, tmp_path), spent(work, tmp_path)
    loop = spent(LOOP, tmp_path)
    print(
        f"\nimport and first {name}: {cold:.1f} s CPU when compiling, {warm:.1f} s from the cache; "
        f"compiling takes {(cold - warm) / loop:.1f}× as long as importing numba and one loop "
        f"({loop:.2f} s)"
    )
    assert cold - warm < most * loop
