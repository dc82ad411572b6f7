"""Slow and obvious versions of what the engine does, and data to try it on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from paths import PEERS, ROOT

from mmlca import MarkovParams, Sequences

needs_peers = pytest.mark.skipif(
    not PEERS.exists(),
    reason=f"needs the data files of R packages in {PEERS.parent.name}/{PEERS.name}",
)


def random_params(n_classes: int, n_states: int, seed: int) -> MarkovParams:
    rng = np.random.default_rng(seed)
    ones = np.ones(n_states)
    return MarkovParams(
        rng.dirichlet(np.ones(n_classes)),
        rng.dirichlet(ones, n_classes),
        rng.dirichlet(ones, (n_classes, n_states)),
    )


def completions(row: list[int], n_states: int) -> list[tuple[int, ...]]:
    """All ways to fill the missing states before the last observed one."""
    last = max(t for t, code in enumerate(row) if code >= 0)
    choices = [[code] if code >= 0 else list(range(n_states)) for code in row[: last + 1]]
    return list(itertools.product(*choices))


def joint(path: tuple[int, ...], p: MarkovParams, k: int) -> float:
    value = p.weights[k] * p.initial[k, path[0]]
    for i, j in itertools.pairwise(path):
        value *= p.transition[k, i, j]
    return float(value)


def brute_force(codes: np.ndarray, p: MarkovParams, weights: np.ndarray) -> dict[str, Any]:
    """Likelihoods, posteriors and one EM update by enumeration."""
    k_all, s = p.n_classes, p.n_states
    logs, posterior = [], []
    members = np.zeros(k_all)
    first, moves = np.zeros((k_all, s)), np.zeros((k_all, s, s))
    for row, weight in zip(codes.tolist(), weights, strict=True):
        paths = completions(row, s)
        table = np.array([[joint(path, p, k) for path in paths] for k in range(k_all)])
        total = table.sum()
        logs.append(np.log(total))
        posterior.append(table.sum(axis=1) / total)
        for k, path_number in itertools.product(range(k_all), range(len(paths))):
            share = weight * table[k, path_number] / total
            path = paths[path_number]
            members[k] += share
            first[k, path[0]] += share
            for i, j in itertools.pairwise(path):
                moves[k, i, j] += share
    return {
        "logs": np.array(logs),
        "posterior": np.array(posterior),
        "members": members,
        "initial": first,
        "transition": moves,
    }


def updated(expected: dict[str, Any]) -> MarkovParams:
    """The M-step without a prior; rows nobody visits are even."""
    moves = expected["transition"]
    total = moves.sum(axis=2, keepdims=True)
    even = np.full_like(moves, 1 / moves.shape[-1])
    return MarkovParams(
        expected["members"] / expected["members"].sum(),
        expected["initial"] / expected["initial"].sum(axis=1, keepdims=True),
        np.divide(moves, total, out=even, where=total > 0),
    )


def peer(name: str, states: list[str] | None = None) -> Sequences:
    """Sequences of a public data set; their columns are t1, t2, …"""
    frame = pd.read_csv(PEERS / f"{name}.csv")
    columns = [c for c in frame.columns if c[0] == "t" and c[1:].isdigit()]
    return Sequences.from_frame(frame, states=states, columns=columns)


def recorded(case: str) -> dict[str, Any]:
    """What seqHMM 1.2.6 (R, `build_mmm`, EM from `start`) gave for a public data set.

    The numbers are here; the data sets are not part of this project and lie in `PEERS`.
    """
    values: dict[str, Any] = json.loads((ROOT / "tests/golden/seqhmm.json").read_text())[case]
    return values


def start_of(case: dict[str, Any]) -> MarkovParams:
    return MarkovParams(*(case["start"][name] for name in ("weights", "initial", "transition")))
