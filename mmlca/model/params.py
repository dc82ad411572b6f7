"""Parameters of a mixture of Markov chains, sequences drawn from it, and what it is fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.sequences.checks import MAX_STATES, some
from mmlca.sequences.forms import PLAIN, Form, bins_of, layout_of, make_form
from mmlca.sequences.type import Sequences

Floats: TypeAlias = NDArray[np.float64]
Seed = int | np.random.Generator | None
AnySequences: TypeAlias = Sequences | pd.DataFrame | ArrayLike

_SUM_TOLERANCE = 1e-4
_FIELDS = ("weights", "initial", "transition")
_FORM_FIELDS = ("weights", "initial", "leaving", "destination")


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
    form: ClassVar[Form] = PLAIN

    def __init__(self, weights: ArrayLike, initial: ArrayLike, transition: ArrayLike) -> None:
        given = {"weights": weights, "initial": initial, "transition": transition}
        arrays, k, s = _read_arrays(given)
        _check_shapes(arrays, {"weights": (k,), "initial": (k, s), "transition": (k, s, s)})
        for name, array in arrays.items():
            _check_sums(name, array)
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


@dataclass(frozen=True, eq=False)
class FormParams:
    """K chains of a form other than plain, over S states, and how common each is. Immutable.

    In class k a patient who is in state i, in bin b of time in state and in period p, leaves it
    with probability leaving[k, p, b, i], and then goes to j with probability
    destination[k, q, i, j], where q is the period, or 0 if the periods share destinations.

    Parameters
    ----------
    form : Form
        With B bins of time in state, P periods and Q destinations (P, or 1 if they are shared).
    weights : (K,)
        Share of each class.
    initial : (K, S)
        Probability of each first state.
    leaving : (K, P, B, S)
        Probability of leaving each state.
    destination : (K, Q, S, S)
        Probability of each next state (last axis) of those who leave; 0 for the state itself. A row
        of zeros is one of a state that nobody leaves.

    Examples
    --------
    >>> p = FormParams(Form((3,)), [1], [[1, 0]], [[[[0.4, 0.2], [0.1, 0.2]]]],
    ...                [[[[0, 1], [1, 0]]]])
    >>> p.steps[0, 0].round(2).tolist()
    [[[0.6, 0.4], [0.2, 0.8]], [[0.9, 0.1], [0.2, 0.8]]]
    """

    form: Form
    weights: Floats
    initial: Floats
    leaving: Floats
    destination: Floats

    def __init__(
        self,
        form: Form,
        weights: ArrayLike,
        initial: ArrayLike,
        leaving: ArrayLike,
        destination: ArrayLike,
    ) -> None:
        if not isinstance(form, Form) or form == PLAIN:
            raise TypeError(
                f"form must be a Form with stays, periods or transitions, found {form!r}."
            )
        given = {"weights": weights, "initial": initial}
        given |= {"leaving": leaving, "destination": destination}
        arrays, k, s = _read_arrays(given)
        shapes = {"weights": (k,), "initial": (k, s)}
        shapes["leaving"] = (k, form.n_periods, form.n_bins, s)
        shapes["destination"] = (k, form.n_destinations, s, s)
        if (most := float(arrays["leaving"].max(initial=0))) > 1 + _SUM_TOLERANCE:
            raise InputError(f"leaving must be probabilities, found {most:.6g}.")
        arrays["leaving"] = np.minimum(arrays["leaving"], 1)  # what is left of 1 is staying
        _check_shapes(arrays, shapes)
        if arrays["destination"].diagonal(axis1=2, axis2=3).any():
            raise InputError("destination must be 0 for the state that is left.")
        nobody = np.asarray(arrays["destination"].sum(axis=-1) == 0)  # (K, Q, S)
        left = np.asarray(arrays["leaving"].max(axis=(1, 2)) > 0)  # (K, S)
        if (nobody & left[:, None]).any():
            raise InputError("destination must sum to 1 in each row of a state that can be left.")
        for name in ("weights", "initial"):
            _check_sums(name, arrays[name])
        _check_sums("destination", arrays["destination"], nobody)
        object.__setattr__(self, "form", form)
        for name, array in arrays.items():
            object.__setattr__(self, name, array)

    @property
    def n_classes(self) -> int:
        return len(self.weights)

    @property
    def n_states(self) -> int:
        return int(self.initial.shape[1])

    @property
    def steps(self) -> Floats:
        """Probabilities of the steps, (K, P, B, S, S)."""
        moves = self.leaving[..., None] * self.destination[:, :, None]
        stays: Floats = (1 - self.leaving)[..., None] * np.eye(self.n_states)
        return stays + moves

    @property
    def class_parameters(self) -> Floats:
        """One row per class: initial, leaving and destination, flattened."""
        parts = (self.initial, self.leaving, self.destination)
        return np.hstack([part.reshape(self.n_classes, -1) for part in parts])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FormParams):
            return NotImplemented
        same = all(np.array_equal(getattr(self, n), getattr(other, n)) for n in _FORM_FIELDS)
        return self.form == other.form and same

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, as in a JSON file."""
        form = self.form
        cuts: dict[str, Any] = {"stays": list(form.stays), "periods": list(form.periods)}
        cuts["shared"] = form.shared
        cuts |= {"transitions": form.transitions} if form.transitions else {}
        lists = {name: getattr(self, name).tolist() for name in _FORM_FIELDS}
        return {"form": cuts} | lists

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        absent = [name for name in ("form", *_FORM_FIELDS) if name not in stored]
        if absent:
            raise InputError(f"the parameters lack {', '.join(absent)}.")
        return cls(make_form(**stored["form"]), *(stored[name] for name in _FORM_FIELDS))


AnyParams: TypeAlias = MarkovParams | FormParams


def read_params(stored: Mapping[str, Any]) -> AnyParams:
    """Parameters of any form, as `to_dict` gives them."""
    return (FormParams if "form" in stored else MarkovParams).from_dict(stored)


def _read_arrays(given: Mapping[str, ArrayLike]) -> tuple[dict[str, Floats], int, int]:
    """Parameters as arrays of floats, and the numbers of classes and states."""
    arrays = {}
    for name, values in given.items():
        try:
            arrays[name] = np.array(values, dtype=float)
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be a rectangular array of numbers.") from None
    shape = arrays["initial"].shape
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"initial must have the shape (classes, states), found {shape}.")
    if shape[1] > MAX_STATES:
        raise InputError(f"found {shape[1]:,} states, at most {MAX_STATES} are possible.")
    return arrays, *shape


def _check_shapes(arrays: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays of other shapes, and what is not a probability; make them read-only."""
    k, s = shapes["initial"]
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise InputError(
                f"{name} must have the shape {shapes[name]} ({k} classes, {s} states), "
                f"found {array.shape}."
            )
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise InputError(f"{name} must be probabilities, found {array.min():.6g}.")
        array.flags.writeable = False


def _check_sums(name: str, array: Floats, empty: NDArray[np.bool_] | bool = False) -> None:
    """Refuse rows that do not sum to 1, except those that are empty."""
    sums = np.where(empty, 1.0, array.sum(axis=-1))
    worst = float(sums.flat[np.abs(sums - 1).argmax()])
    if abs(worst - 1) > _SUM_TOLERANCE:
        raise InputError(f"{name} must sum to 1 in each row, found a sum of {worst:.6g}.")


# --- sequences drawn from a mixture ---------------------------------------------------


def simulate(
    params: AnyParams,
    n: int,
    lengths: ArrayLike = 16,
    seed: Seed = None,
    *,
    states: Iterable[Any] | None = None,
) -> tuple[Sequences, pd.Series]:
    """Draw n sequences and the class each comes from.

    Parameters
    ----------
    params : MarkovParams or FormParams
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
    length = check_lengths(n, lengths)
    codes, classes = draw_codes(params, length, np.random.default_rng(seed))
    sequences = Sequences.from_codes(codes, range(params.n_states) if states is None else states)
    return sequences, pd.Series(classes, index=sequences.ids, name="class")


def check_lengths(n: int, lengths: ArrayLike) -> NDArray[Any]:
    """The lengths (n,) of sequences to be drawn."""
    if n < 1:
        raise InputError(f"n must be at least 1, found {n}.")
    length = np.broadcast_to(np.asarray(lengths), (n,))
    if length.dtype.kind not in "iu" or length.min() < 1:
        raise InputError("lengths must be whole numbers of at least 1.")
    return length


def draw_like(params: AnyParams, data: Sequences, rng: np.random.Generator) -> NDArray[np.int8]:
    """Codes of as many patients as in `data`, each as long and with the same states missing."""
    codes: NDArray[np.int8] = np.full(data.codes.shape, -1, dtype=np.int8)
    drawn, _ = draw_codes(params, np.maximum(data.lengths, 1), rng)
    codes[:, : drawn.shape[1]] = drawn
    codes[data.codes < 0] = -1
    return codes


def draw_codes(
    params: AnyParams, lengths: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[np.int8], NDArray[np.intp]]:
    """Codes (n, longest) of patients with these lengths, and the class of each."""
    n, s, form = len(lengths), params.n_states, params.form
    if form.transitions:
        raise InputError(
            f"these chains are averages over covariates of the steps ({form.transitions}), from "
            "which nothing can be drawn; use the sample of the model, with step_covariates."
        )
    chains = params.transition if isinstance(params, MarkovParams) else params.steps
    # one sorted array holds every row's cumulated probabilities, row r between r and r + 1
    rows = np.concatenate([params.initial, chains.reshape(-1, s)])
    steps = (np.cumsum(rows / rows.sum(axis=1, keepdims=True), axis=1)).clip(max=1)
    steps[:, -1] = 1
    ladder = (steps + np.arange(len(rows))[:, None]).ravel()
    classes = rng.choice(params.n_classes, size=n, p=params.weights / params.weights.sum())
    codes = np.full((n, int(lengths.max())), -1, dtype=np.int8)
    row = context = classes
    period = bins_of(form.periods, np.arange(1, codes.shape[1] + 1))
    spent = np.zeros(n, dtype=np.int64)  # windows in the present state
    for t in range(codes.shape[1]):
        state = np.searchsorted(ladder, row + rng.random(n), side="right") - row * s
        state = np.minimum(state, s - 1)  # rounding of row + random number
        codes[:, t] = np.where(t < lengths, state, -1)
        if form != PLAIN:
            spent = np.where(codes[:, t] == codes[:, t - 1], spent, 0) + 1 if t else spent + 1
            context = classes * form.n_periods + period[t]
            context = context * form.n_bins + bins_of(form.stays, spent)
        row = params.n_classes + context * s + state
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
    coded = Sequences.from_codes(
        lookup[sequences.codes], states, ids=sequences.ids, weights=sequences.weights
    ).absorb(*sequences.absorbing)
    return replace(
        coded, step_covariates=sequences.step_covariates, covariates=sequences.covariates
    )


def count_patients(data: Sequences) -> tuple[Sequences, float]:
    """The sequences with weights that count patients, and the unit they were divided by.

    The unit is the mean of all positive weights, at most 1. So the prior and all tolerances, which
    are in patients, mean the same for weights that sum to 1, say, as without weights.
    """
    positive = data.weights[data.weights > 0]
    unit = min(float(positive.mean()), 1.0) if len(positive) else 1.0
    return (data if unit == 1 else data.reweight(data.weights / unit)), unit


def forbidden_cells(
    zeros: Iterable[tuple[Any, Any]] | None, data: Sequences, form: Form = PLAIN
) -> NDArray[np.bool_]:
    """The cells that must be zero, (C,): pairs (from, to), and out of absorbing states.

    No patient may use them.
    """
    leaving = [(a, b) for a in data.absorbing for b in data.states if a != b]
    mask = zero_cells([*(zeros or ()), *leaving], data.states, form)
    layout, seen = layout_of(form, data.n_states), data.patterns_of(form).cell
    seen = seen[seen < mask.size]
    broken = np.unique(
        seen[mask[seen] & (layout.after[seen] >= 0)]
    )  # not leaving: it goes somewhere
    if len(broken):
        origins = [*data.states, "the start"]
        pairs = dict.fromkeys(zip(layout.before[broken], layout.after[broken], strict=True))
        steps = [f"{origins[i]} → {data.states[j]}" for i, j in pairs]
        raise InputError(
            f"patients make steps that zeros forbids ({', '.join(steps[:5])}); allow them or "
            "correct the data."
        )
    return mask


def zero_cells(
    zeros: Iterable[tuple[Any, Any]] | None, states: tuple[str, ...], form: Form = PLAIN
) -> NDArray[np.bool_]:
    """The cells that must be zero, (C,), from pairs of states (from, to)."""
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
    if form == PLAIN:
        return mask.ravel()
    layout = layout_of(form, s)
    closed = mask[layout.before, layout.after] | layout.closed
    stuck = np.all(mask | np.eye(s + 1, s, dtype=bool), axis=1)  # nowhere else to go
    closed[layout.after < 0] = stuck[layout.before[layout.after < 0]]
    return np.asarray(closed)
