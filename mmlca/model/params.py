"""Parameters of a mixture of Markov chains, and sequences drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.sequences.checks import MAX_STATES
from mmlca.sequences.type import Sequences

Floats: TypeAlias = NDArray[np.float64]
Seed = int | np.random.Generator | None

_SUM_TOLERANCE = 1e-4
_FIELDS = ("weights", "initial", "transition")


@dataclass(frozen=True, eq=False)
class MarkovParams:
    """K Markov chains over S states and how common each is. Immutable; nothing is normalised.

    Parameters
    ----------
    weights : (K,)
        Share of each class.
    initial : (K, S)
        Probability of each first state.
    transition : (K, S, S)
        Probability of each next state (last axis) given the present one.

    Examples
    --------
    >>> p = MarkovParams([1], [[0.9, 0.1]], [[[0.8, 0.2], [0.5, 0.5]]])
    >>> p.n_classes, p.n_states
    (1, 2)
    """

    weights: Floats
    initial: Floats
    transition: Floats

    def __init__(self, weights: ArrayLike, initial: ArrayLike, transition: ArrayLike) -> None:
        arrays = {}
        for name, values in zip(_FIELDS, (weights, initial, transition), strict=True):
            try:
                arrays[name] = np.array(values, dtype=float)
            except (TypeError, ValueError):
                raise TypeError(f"{name} must be a rectangular array of numbers.") from None
        shape = arrays["initial"].shape
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"initial must have the shape (classes, states), found {shape}.")
        k, s = shape
        if s > MAX_STATES:
            raise InputError(f"found {s:,} states, at most {MAX_STATES} are possible.")
        expected = {"weights": (k,), "initial": (k, s), "transition": (k, s, s)}
        for name, array in arrays.items():
            if array.shape != expected[name]:
                raise InputError(
                    f"{name} must have the shape {expected[name]} ({k} classes, {s} states), "
                    f"found {array.shape}."
                )
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise InputError(f"{name} must be probabilities, found {array.min():.6g}.")
            sums = array.sum(axis=-1)
            worst = float(sums.flat[np.abs(sums - 1).argmax()])
            if abs(worst - 1) > _SUM_TOLERANCE:
                raise InputError(f"{name} must sum to 1 in each row, found a sum of {worst:.6g}.")
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def n_classes(self) -> int:
        return len(self.weights)

    @property
    def n_states(self) -> int:
        return int(self.initial.shape[1])

    @property
    def class_parameters(self) -> Floats:
        """One row per class: initial probabilities, then transitions row by row, (K, S + S²)."""
        return np.hstack([self.initial, self.transition.reshape(self.n_classes, -1)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkovParams):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, as in a JSON file."""
        return {name: getattr(self, name).tolist() for name in _FIELDS}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        absent = [name for name in _FIELDS if name not in stored]
        if absent:
            raise InputError(f"the parameters lack {', '.join(absent)}.")
        return cls(*(stored[name] for name in _FIELDS))


# --- sequences drawn from a mixture ---------------------------------------------------


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
