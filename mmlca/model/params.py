"""Parameters of a mixture of Markov chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.sequences.checks import MAX_STATES

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
