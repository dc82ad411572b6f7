"""EM updates beside those of other programs, which `make bench-peers` installs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import Compare
from paths import ROOT
from ra_like import PARAMS, cpu

from font import LatentClass
from mmlca import MixtureMarkov, Sequences, simulate

pytestmark = pytest.mark.bench

PYTHON = ROOT / ".venv-peers/bin/python"


def measure(name: str, folder: Path, **data: Any) -> dict[str, Any]:
    """Run one measurement of `peers.py`; skip where the other programs are not installed."""
    if not PYTHON.exists():
        pytest.skip(f"{name} is not installed; `make bench-peers` does it")
    np.savez(folder / "data.npz", **data)
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run(
        [PYTHON, script, name, folder / "data.npz"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def update(sequences: Sequences, n: int = 200) -> float:
    """CPU seconds of one plain EM update of a mixture of Markov chains."""
    model = MixtureMarkov(4, init=PARAMS, prior=0, accelerate=False, max_iter=n, tol=0)
    sequences.patterns  # noqa: B018 - reduced once, as for all fits of the same data
    return cpu(lambda: model.fit(sequences)) / n


@pytest.mark.filterwarnings("ignore")
def test_sequenzo(compare: Compare, tmp_path: Path) -> None:
    n = int(os.environ.get("MMLCA_BENCH_SEQUENCES", "2000"))  # Sequenzo takes a minute for 2,000
    sequences, _ = simulate(PARAMS, n, 16, seed=1)
    theirs = measure(
        "sequenzo", tmp_path, codes=sequences.codes, weights=PARAMS.weights,
        initial=PARAMS.initial, transition=PARAMS.transition,
    )  # fmt: skip
    ours = update(sequences)
    compare(
        f"one EM update, {n:,} × 16, 5 states, 4 classes",
        ours,
        f"Sequenzo {theirs['version']} `fit_mhmm`",
        theirs["seconds"],
        "identity emissions",
    )
    assert ours < theirs["seconds"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [1_500, 50_000])
def test_stepmix(compare: Compare, tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    chances = rng.dirichlet([1, 1, 1], size=(4, 8))  # classes × items × categories
    group = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    chance = chances[group].cumsum(axis=2)
    answers = (rng.random((n, 8, 1)) > chance).sum(axis=2).clip(max=2)
    theirs = measure("stepmix", tmp_path, answers=answers, n_classes=4)

    def fit(n_updates: int) -> float:
        start = time.process_time()
        LatentClass(4, n_init=1, prior=0, tol=0, max_iter=n_updates, seed=1).fit(answers)
        return time.process_time() - start

    fit(2)
    ours = (fit(110) - fit(10)) / 100
    compare(
        f"one EM update of a latent class model, {n:,} × 8 items, 4 classes",
        ours,
        f"StepMix {theirs['version']}",
        theirs["seconds"],
    )
