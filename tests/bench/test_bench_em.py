"""The engine: cost of an update, of a fit, of ten million patients; and the search."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from ra_like import PARAMS, cpu, ra_like

from mmlca import MixtureMarkov, Sequences, em

pytestmark = pytest.mark.bench

CELLS = np.hstack([PARAMS.transition.reshape(4, -1), PARAMS.initial])
SEQHMM_UPDATE = 0.9  # CPU s, 20,000 patients × 16, 5 states, K = 4 (seqHMM 1.2.6, one core)


def vectorised_update(codes: np.ndarray, cells: np.ndarray) -> Callable[[], float]:
    """One EM update in numpy over all patients at once, as a careful person would write it."""
    before = np.concatenate([np.full((len(codes), 1), 5), codes[:, :-1]], axis=1)
    index = np.where((codes >= 0) & (before >= 0), before.astype(np.intp) * 5 + codes, 30)
    flat = index.ravel()

    def update() -> float:
        logs = np.hstack([np.log(cells), np.zeros((4, 1))])
        joint = np.log(PARAMS.weights)[:, None] + logs[:, index].sum(axis=2)
        top = joint.max(axis=0)
        joint = np.exp(joint - top)
        total = joint.sum(axis=0)
        joint /= total
        counts = [
            np.bincount(flat, weights=np.repeat(r, codes.shape[1]), minlength=31)[:30]
            for r in joint
        ]
        rows = np.array(counts).reshape(4, 6, 5)
        rows /= rows.sum(axis=2, keepdims=True)
        return float((np.log(total) + top).sum())

    return update


def our_update(sequences: Sequences, n: int = 200) -> float:
    """CPU seconds of one plain EM update."""
    settings = em.Settings(0.0, np.zeros(30, dtype=bool), n, 0.0, False)
    patterns = sequences.patterns
    return cpu(lambda: em.run_em(patterns, CELLS, PARAMS.weights, settings), repeat=5) / n


def test_update() -> None:
    small, middle = ra_like(5_322), ra_like(20_000)
    ours = our_update(small)
    numpy = cpu(vectorised_update(small.codes, CELLS), repeat=20)
    ours_20k = our_update(middle)
    print(
        f"\nan EM update, 5,322 patients ({len(small.patterns):,} patterns): {1e3 * ours:.4f} ms; "
        f"numpy over patients {1e3 * numpy:.2f} ms, {numpy / ours:.0f}× as long"
        f"\n20,000 patients ({len(middle.patterns):,} patterns): {1e3 * ours_20k:.4f} ms; "
        f"seqHMM's recorded {SEQHMM_UPDATE} s is {SEQHMM_UPDATE / ours_20k:,.0f}× as long"
    )
    assert numpy > 100 * ours
    assert ours_20k * 1_000 < SEQHMM_UPDATE


def test_default_fit_of_the_study() -> None:
    codes, states = ra_like(5_322).codes, ra_like(10).states
    MixtureMarkov(4, seed=1).fit(ra_like(3_000))
    taken = cpu(lambda: MixtureMarkov(4, seed=1).fit(Sequences.from_codes(codes, states)))
    print(f"\ndefault fit of 5,322 patients, K = 4, all starts: {taken:.3f} s CPU")
    assert taken < 0.2


def test_ten_million_patients() -> None:
    codes = ra_like(10_000_000).codes
    MixtureMarkov(4, seed=1).fit(ra_like(3_000))
    start = time.process_time()
    sequences = Sequences.from_codes(codes, ra_like(10).states)
    model = MixtureMarkov(4, seed=1).fit(sequences)
    taken = time.process_time() - start
    worst = np.abs(model.params_.transition - PARAMS.transition).max()
    print(
        f"\n10 million patients, K = 4, reduction and default fit: {taken:.2f} s CPU "
        f"({len(sequences.patterns):,} patterns; largest error of a transition probability "
        f"{worst:.4f})"
    )
    assert taken < 6


def test_search_reaches_the_best_known_maximum() -> None:
    from pathlib import Path

    folder = Path(__file__).parents[3] / "shared" / "peers"
    if not folder.exists():
        pytest.skip("reference data not at hand")
    import json

    import pandas as pd

    recorded = json.loads((folder / "seqhmm.json").read_text())
    mvad = Sequences.from_frame(pd.read_csv(folder / "mvad.csv"))
    for k in (2, 3, 4):
        best = recorded[f"mvad_K{k}"]["best_known_logLik"]
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [MixtureMarkov(k, seed=seed).fit(mvad).loglik_ for seed in range(10)]
        taken = (time.process_time() - start) / 10
        reached = sum(loglik > best - 0.05 for loglik in found)
        print(
            f"\nmvad K = {k}: {reached} of 10 seeds within 0.05 of {best:.3f} or above "
            f"(from {min(found) - best:+.3f} to {max(found) - best:+.3f}), {taken:.2f} s CPU each"
        )
        assert reached >= (9 if k == 4 else 10)
