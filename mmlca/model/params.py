"""Parameters of a mixture of Markov chains, sequences drawn from it, and what it is fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.sequences.checks import MAX_STATES, some
from mmlca.sequences.type import Sequences

Floats: TypeAlias = NDArray[np.float64]
Seed = int | np.random.Generator | None
AnySequences: TypeAlias = Sequences | pd.DataFrame | ArrayLike

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


# --- what a fit is given: sequences in any form, and steps that are impossible ---------


def as_sequences(data: AnySequences, states: tuple[str, ...] | None = None) -> Sequences:
    """Sequences as they are; a wide DataFrame; or an integer array with −1 for missing."""
    if isinstance(data, Sequences):
        return data
    if isinstance(data, pd.DataFrame):
        if not all(dtype.kind in "iu" for dtype in data.dtypes if hasattr(dtype, "kind")):
            return Sequences.from_frame(data, id="id" if "id" in data.columns else None)
        return Sequences.from_codes(data.to_numpy(), states, ids=data.index)
    from sklearn.utils.validation import check_array

    array = check_array(data, dtype="numeric", input_name="sequences")
    if array.dtype.kind == "f" and (array == array.round()).all():
        array = array.astype(np.int64)
    return Sequences.from_codes(array, states)


def in_states(data: AnySequences, states: tuple[str, ...]) -> Sequences:
    """Any input as sequences over the given states, in their order."""
    sequences = as_sequences(data, states)
    if sequences.states == states:
        return sequences
    unknown = [state for state in sequences.states if state not in states]
    if unknown:
        raise InputError(
            f"the model does not know the states {some(unknown)}; it knows {some(states)}."
        )
    lookup = np.array([states.index(state) for state in sequences.states] + [-1])
    return Sequences.from_codes(
        lookup[sequences.codes], states, ids=sequences.ids, weights=sequences.weights
    ).absorb(*sequences.absorbing)


def count_patients(data: Sequences) -> tuple[Sequences, float]:
    """The sequences with weights that count patients, and the unit they were divided by.

    The unit is the mean of all positive weights, at most 1. So the prior and all tolerances, which
    are in patients, mean the same for weights that sum to 1, say, as without weights.
    """
    positive = data.weights[data.weights > 0]
    unit = min(float(positive.mean()), 1.0) if len(positive) else 1.0
    return (data if unit == 1 else data.reweight(data.weights / unit)), unit


def forbidden_cells(zeros: Iterable[tuple[Any, Any]] | None, data: Sequences) -> NDArray[np.bool_]:
    """The cells that must be zero, (S·(S + 1),): pairs (from, to), and out of absorbing states.

    No patient may use them.
    """
    leaving = [(a, b) for a in data.absorbing for b in data.states if a != b]
    mask = zero_cells([*(zeros or ()), *leaving], data.states)
    seen = data.patterns.cell[data.patterns.cell < mask.size]
    broken = np.unique(seen[mask[seen]])
    if len(broken):
        s, origins = data.n_states, [*data.states, "the start"]
        steps = [f"{origins[c // s]} → {data.states[c % s]}" for c in broken]
        raise InputError(
            f"patients make steps that zeros forbids ({', '.join(steps[:5])}); allow them or "
            "correct the data."
        )
    return mask


def zero_cells(
    zeros: Iterable[tuple[Any, Any]] | None, states: tuple[str, ...]
) -> NDArray[np.bool_]:
    """The cells that must be zero, (S·(S + 1),), from pairs of states (from, to)."""
    s = len(states)
    place = {label: i for i, label in enumerate(states)}
    mask = np.zeros((s + 1, s), dtype=bool)
    for before, after in zeros or ():
        unknown = [x for x in (before, after) if x is not None and str(x) not in place]
        if unknown or after is None:
            raise InputError(f"zeros names {(before, after)}, but the states are {some(states)}.")
        mask[s if before is None else place[str(before)], place[str(after)]] = True
    origins = [*states, "the start"]
    closed = [origins[i] for i in np.flatnonzero(mask.all(axis=1))]
    if closed:
        raise InputError(f"zeros leaves no step at all from {some(closed)}; allow at least one.")
    return mask.ravel()
