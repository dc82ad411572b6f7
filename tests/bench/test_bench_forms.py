"""Chains by time in state: cost of an update and of a fit, beside those of plain chains."""

from __future__ import annotations

import pytest
from ra_like import cpu, ra_like

from mmlca import MixtureMarkov, Sequences
from mmlca.model import em
from mmlca.sequences.forms import PLAIN, Form

pytestmark = pytest.mark.bench

THREE_BINS = Form((2, 4))


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
