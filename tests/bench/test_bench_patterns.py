"""From sequences to patterns: speed and memory, as ratios within one run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ra_like import cpu, peak_bytes, ra_like

from mmlca.model import em
from mmlca.model.params import simulate
from mmlca.sequences.patterns import reduce_codes

pytestmark = pytest.mark.bench


def test_ten_million_sequences() -> None:
    codes = ra_like(10_000_000).codes
    reduce_codes(codes[:10], 5)

    def factorize_bytes() -> None:
        packed, width = codes.tobytes(), codes.shape[1]
        rows = [packed[i : i + width] for i in range(0, len(packed), width)]
        pd.factorize(np.array(rows, dtype=object))

    ours = cpu(lambda: reduce_codes(codes, 5))
    one_pass = cpu(lambda: codes.sum(dtype=np.int64))
    bytes_of_rows = cpu(factorize_bytes, repeat=1)
    extra = peak_bytes(lambda: reduce_codes(codes, 5)) / codes.nbytes
    n_distinct = len(reduce_codes(codes, 5))
    print(
        f"\n10 million × 16 → {n_distinct:,} patterns: {ours:.2f} s CPU; bytes + pandas.factorize "
        f"{bytes_of_rows / ours:.1f}× as long; {ours / one_pass:.1f}× one pass (np.sum); "
        f"peak extra memory {extra:.2f}× the codes"
    )
    assert bytes_of_rows > 5 * ours
    assert ours < 20 * one_pass
    assert extra < 3


def test_few_duplicates() -> None:
    rng = np.random.default_rng(1)
    rows = 0.85 * np.eye(8) + 0.15 * rng.dirichlet(np.ones(8), (4, 8))
    from mmlca import MarkovParams

    params = MarkovParams(np.full(4, 0.25), rng.dirichlet(np.ones(8), 4), rows)
    sequences, _ = simulate(params, 100_000, 72, seed=1)
    patterns = reduce_codes(sequences.codes, 8)
    settings = em.Settings(0.0, np.zeros(72, dtype=bool), 10, 0.0, False)
    cells = np.hstack([params.transition.reshape(4, -1), params.initial])
    ten_updates = cpu(lambda: em.run_em(patterns, cells, params.weights, settings))
    ours = cpu(lambda: reduce_codes(sequences.codes, 8))
    print(
        f"\n100,000 × 72 months, 8 states → {len(patterns):,} patterns: {ours:.3f} s CPU, "
        f"{10 * ours / ten_updates:.1f} EM updates (K = 4)"
    )
    assert ours < ten_updates
