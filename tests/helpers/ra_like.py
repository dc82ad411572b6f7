"""RA-like sequences for benchmarks, and how they are measured."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from mmlca import MarkovParams, Sequences, simulate

STATES = ("TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20")
PARAMS = MarkovParams(
    [0.647, 0.167, 0.101, 0.085],
    [
        [0.985, 0.005, 0.003, 0.004, 0.003],
        [0.716, 0.033, 0.068, 0.173, 0.010],
        [0.68, 0.01, 0.01, 0.01, 0.29],
        [0.72, 0.25, 0.01, 0.01, 0.01],
    ],
    [
        [
            [0.997, 0.0009, 0.00075, 0.00075, 0.0006],
            [0.3, 0.67, 0.01, 0.01, 0.01],
            [0.3, 0.01, 0.67, 0.01, 0.01],
            [0.3, 0.01, 0.01, 0.67, 0.01],
            [0.26, 0.01, 0.01, 0.01, 0.71],
        ],
        [
            [0.64, 0.055, 0.145, 0.15, 0.01],
            [0.12, 0.5, 0.18, 0.18, 0.02],
            [0.08, 0.04, 0.74, 0.13, 0.01],
            [0.08, 0.03, 0.11, 0.77, 0.01],
            [0.1, 0.05, 0.17, 0.17, 0.51],
        ],
        [
            [0.708, 0.004, 0.004, 0.004, 0.28],
            [0.08, 0.58, 0.02, 0.02, 0.3],
            [0.08, 0.02, 0.58, 0.02, 0.3],
            [0.08, 0.02, 0.02, 0.58, 0.3],
            [0.09, 0.004, 0.004, 0.004, 0.898],
        ],
        [
            [0.688, 0.3, 0.004, 0.004, 0.004],
            [0.09, 0.898, 0.004, 0.004, 0.004],
            [0.08, 0.3, 0.58, 0.02, 0.02],
            [0.08, 0.3, 0.02, 0.58, 0.02],
            [0.06, 0.28, 0.02, 0.02, 0.62],
        ],
    ],
)


def ra_like(n: int, seed: int = 1) -> Sequences:
    """n patients, up to 16 quarters, about 1.2 % lost to follow-up each quarter."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.012, n), 16)
    return simulate(PARAMS, n, lengths, states=STATES, seed=rng)[0]


def cpu(work: Callable[[], Any], repeat: int = 3, number: int = 1) -> float:
    """CPU seconds of one call: the best of a few."""
    best = np.inf
    for _ in range(repeat):
        start = time.process_time()
        for _ in range(number):
            work()
        best = min(best, (time.process_time() - start) / number)
    return best


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most memory that the call held beyond what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
