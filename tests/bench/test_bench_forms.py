"""Chains by time in state and covariates: cost of an update and of a fit, beside plain chains."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ra_like import cpu, ra_like

from mmlca import MixtureMarkov, Sequences
from mmlca.model import em
from mmlca.sequences.forms import PLAIN, Form

pytestmark = pytest.mark.bench

THREE_BINS = Form((2, 4))
ROOT = Path(__file__).parents[2]
BEFORE = "1a10426"  # the last commit that had plain chains alone
MEASURE = """
import sys
sys.path.insert(0, "tests/helpers")
import numpy as np
from ra_like import PARAMS, cpu, ra_like
from mmlca import MixtureMarkov, Sequences
from mmlca.model import em

data = ra_like(5_322)
cells = np.hstack([PARAMS.transition.reshape(4, -1), PARAMS.initial])
settings = em.Settings(0.0, np.zeros(30, dtype=bool), 200, 0.0, False)
update = lambda: em.run_em(data.patterns, cells, PARAMS.weights, settings)
fit = lambda: MixtureMarkov(4, seed=1).fit(Sequences.from_codes(data.codes, data.states))
update(), fit()
print(cpu(update, repeat=60) / 200, cpu(fit, repeat=12))
"""


def update(data: Sequences, form: Form, n: int = 200) -> float:
    """CPU seconds of one plain EM update, with four classes."""
    patterns = data.patterns_of(form)
    model = MixtureMarkov(4, seed=1, n_init=4, **form._asdict()).fit(data)
    cells, shares = em.cells_of(model.params_), model.params_.weights
    settings = em.Settings(0.0, patterns.layout.closed, n, 0.0, False)
    return cpu(lambda: em.run_em(patterns, cells, shares, settings), repeat=5) / n


def test_update() -> None:
    data = ra_like(5_322)
    plain = min(update(data, PLAIN) for _ in range(3))
    by_time = min(update(data, THREE_BINS) for _ in range(3))
    print(f"\none EM update: plain {1e6 * plain:.0f} µs, three bins {1e6 * by_time:.0f} µs")
    assert by_time < 2 * plain


def test_default_fit() -> None:
    codes, states = ra_like(5_322).codes, ra_like(10).states
    MixtureMarkov(4, seed=1, stays=(2, 4)).fit(ra_like(3_000))
    taken = cpu(
        lambda: MixtureMarkov(4, seed=1, stays=(2, 4)).fit(Sequences.from_codes(codes, states))
    )
    print(f"\ndefault fit of 5,322 patients by time in state, K = 4: {taken:.3f} s CPU")
    assert taken < 3


def test_plain_chains_cost_what_they_did_before_there_were_others(tmp_path: Path) -> None:
    """Update and default fit, as ratios to those of an earlier commit, measured by turns."""
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the commit {BEFORE} is not in this checkout")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path, filter="data")

    def measure(tree: Path) -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=True,
        )
        return [float(x) for x in done.stdout.split()]

    turns = np.array([[measure(tree) for tree in (tmp_path, ROOT)] for _ in range(5)])
    before, now = turns.min(axis=0)
    print(
        f"\nplain chains against {BEFORE}: update {1e6 * now[0]:.1f} µs, ratio "
        f"{now[0] / before[0]:.3f}; default fit {1e3 * now[1]:.1f} ms, ratio "
        f"{now[1] / before[1]:.3f}"
    )
    assert (now / before < 1.05).all()


def test_default_fit_with_covariates_of_the_steps() -> None:
    """An age for each patient, which makes nearly all patients different."""
    data = ra_like(5_322)
    ages = np.random.default_rng(1).normal(60, 10, len(data)).round()
    people = data.with_step_covariates(pd.DataFrame({"age": ages}))
    model = MixtureMarkov(4, seed=1, transitions="age", shared="destinations")
    taken = cpu(lambda: model.fit(people), repeat=1)
    plain = cpu(lambda: MixtureMarkov(4, seed=1).fit(data))
    print(
        f"\ndefault fit of 5,322 patients whose leaving depends on age, K = 4: {taken:.1f} s CPU, "
        f"{taken / plain:.0f}× plain chains"
    )
    assert taken < 60
