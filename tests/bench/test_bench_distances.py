"""Clusters of sequences: a million patients, and as many distinct sequences as are not sampled."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from memory import PEAK
from paths import ROOT
from ra_like import cpu, ra_like

from mmlca import Sequences, cluster_sequences

pytestmark = pytest.mark.bench


def many(n: int, n_distinct: int) -> Sequences:
    """n patients with so many distinct sequences, a few of which most patients share."""
    data = ra_like(10 * n_distinct)
    first, number = data.distinct()
    common = np.argsort(-np.bincount(number), kind="stable")[:n_distinct]
    assert len(common) == n_distinct
    rng = np.random.default_rng(1)
    share = 1 / np.arange(1, n_distinct + 1) ** 0.8
    drawn = rng.choice(n_distinct, n - n_distinct, p=share / share.sum())
    rows = first[common][np.append(np.arange(n_distinct), drawn)]
    return Sequences.from_codes(data.codes[rows], data.states, lengths=data.lengths[rows])


@pytest.mark.parametrize("linkage", ["pam", "ward"])
@pytest.mark.parametrize(
    ("method", "costs"),
    [("hamming", "constant"), ("dynamic_hamming", "constant"), ("om", "rates")],
)
def test_a_million_patients_with_50_000_distinct_sequences(
    method: str, costs: str, linkage: str
) -> None:
    data = many(1_000_000, 50_000)
    assert data.n_distinct == 50_000
    small = many(300, 60)
    cluster_sequences(small, 3, method, linkage, costs=costs)
    again = Sequences.from_codes(data.codes, data.states, lengths=data.lengths)
    taken = cpu(
        lambda: cluster_sequences(again, range(2, 9), method, linkage, costs=costs, seed=1),
        repeat=1,
    )
    print(f"\n{method}, {linkage}, K from 2 to 8: {taken:.1f} s CPU")
    assert taken < 60


PROGRAM = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests/helpers")!r}, {str(ROOT / "tests/bench")!r}]
{PEAK}
from test_bench_distances import many
from mmlca import cluster_sequences
import time
data = many(100_000, 20_000)
cluster_sequences(many(300, 60), 3, "om", sys.argv[1])
before, start = peak(), time.process_time()
cluster_sequences(data, range(2, 9), "om", sys.argv[1])
print((peak() - before) / 1e9, time.process_time() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("linkage", ["pam", "ward"])
def test_twenty_thousand_distinct_sequences_are_compared_without_samples(linkage: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, linkage], capture_output=True, text=True, check=True
    )
    memory, taken = (float(word) for word in done.stdout.split())
    print(f"\n20,000 distinct, om, {linkage}, K from 2 to 8: {taken:.0f} s CPU, {memory:.2f} GB")
    assert memory < 2.2
