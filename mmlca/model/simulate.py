"""Sequences drawn from a mixture of Markov chains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.model.params import MarkovParams, Seed
from mmlca.sequences.type import Sequences


def simulate(
    params: MarkovParams,
    n: int,
    lengths: ArrayLike = 16,
    seed: Seed = None,
    *,
    states: Iterable[Any] | None = None,
) -> tuple[Sequences, pd.Series]:
    """Draw n sequences and the class each comes from.

    Parameters
    ----------
    params : MarkovParams
    n : number of patients
    lengths : one length for all, or (n,) lengths
    seed : int or Generator, optional
    states : labels, optional

    Returns
    -------
    sequences : Sequences
    classes : Series
        The true class of each patient, 0 … K − 1, indexed by id.

    Examples
    --------
    >>> stay = MarkovParams([1.0], [[1.0, 0.0]], [[[1.0, 0.0], [0.0, 1.0]]])
    >>> simulate(stay, 2, 3, seed=1)[0].codes.tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    if n < 1:
        raise InputError(f"n must be at least 1, found {n}.")
    length = np.broadcast_to(np.asarray(lengths), (n,))
    if length.dtype.kind not in "iu" or length.min() < 1:
        raise InputError("lengths must be whole numbers of at least 1.")
    codes, classes = draw_codes(params, length, np.random.default_rng(seed))
    sequences = Sequences.from_codes(codes, range(params.n_states) if states is None else states)
    return sequences, pd.Series(classes, index=sequences.ids, name="class")


def draw_like(params: MarkovParams, data: Sequences, rng: np.random.Generator) -> NDArray[np.int8]:
    """Codes of as many patients as in `data`, each as long and with the same states missing."""
    codes: NDArray[np.int8] = np.full(data.codes.shape, -1, dtype=np.int8)
    drawn, _ = draw_codes(params, np.maximum(data.lengths, 1), rng)
    codes[:, : drawn.shape[1]] = drawn
    codes[data.codes < 0] = -1
    return codes


def draw_codes(
    params: MarkovParams, lengths: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[np.int8], NDArray[np.intp]]:
    """Codes (n, longest) of patients with these lengths, and the class of each."""
    n, s = len(lengths), params.n_states
    # one sorted array holds every row's cumulated probabilities, row r between r and r + 1
    rows = np.concatenate([params.initial, params.transition.reshape(-1, s)])
    steps = (np.cumsum(rows / rows.sum(axis=1, keepdims=True), axis=1)).clip(max=1)
    steps[:, -1] = 1
    ladder = (steps + np.arange(len(rows))[:, None]).ravel()
    classes = rng.choice(params.n_classes, size=n, p=params.weights / params.weights.sum())
    codes = np.full((n, int(lengths.max())), -1, dtype=np.int8)
    row = classes
    for t in range(codes.shape[1]):
        state = np.searchsorted(ladder, row + rng.random(n), side="right") - row * s
        state = np.minimum(state, s - 1)  # rounding of row + random number
        codes[:, t] = np.where(t < lengths, state, -1)
        row = params.n_classes + classes * s + state
    return codes, classes
