"""What a fit is given: sequences in any form, settings, starting values and forbidden steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from font.checks import one_of, whole_number
from font.errors import InputError
from mmlca.model.params import MarkovParams
from mmlca.model.search import SearchKind
from mmlca.sequences.checks import some
from mmlca.sequences.type import Sequences

AnySequences: TypeAlias = Sequences | pd.DataFrame | ArrayLike


def as_sequences(data: AnySequences, states: tuple[str, ...] | None = None) -> Sequences:
    """Sequences as they are; a wide DataFrame; or an integer array with −1 for missing."""
    if isinstance(data, Sequences):
        return data
    if isinstance(data, pd.DataFrame):
        if not all(dtype.kind in "iu" for dtype in data.dtypes if hasattr(dtype, "kind")):
            return Sequences.from_frame(data, id="id" if "id" in data.columns else None)
        return Sequences.from_codes(data.to_numpy(), states, ids=data.index)
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


def late_start(data: Sequences) -> str:
    """A warning if no patient is observed at the first times, or ""."""
    first = int((data.codes[data.weights > 0] >= 0).any(axis=0).argmax())
    if not first:
        return ""
    return (
        f"no patient is observed before {data.times[first]}, so the probabilities of the first "
        "states are inferred from later ones alone; leave out the times before "
        f"{data.times[first]} to begin with what is observed."
    )


def group_numbers(labels: pd.Series) -> tuple[NDArray[np.intp], tuple[Any, ...]]:
    """The number of each patient's group, and the groups: texts or whole numbers, sorted."""
    if isinstance(labels.dtype, pd.CategoricalDtype):
        labels = labels.cat.remove_unused_categories()
        names = labels.cat.categories
    else:
        try:
            names = pd.Index(np.sort(labels.unique()))
        except TypeError:
            raise TypeError(
                f"the groups mix types ({some(labels.unique())}); use texts or whole numbers."
            ) from None
    plain = tuple(name.item() if isinstance(name, np.generic) else name for name in names)
    invalid = [name for name in plain if isinstance(name, bool) or not isinstance(name, (str, int))]
    if invalid:
        raise TypeError(f"groups must be texts or whole numbers, found {some(invalid)}.")
    number: NDArray[np.intp] = pd.Index(names).get_indexer(pd.Index(labels))
    return number, plain


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse numbers out of range."""
    for name, smallest in (("n_classes", 1), ("n_init", 1), ("max_iter", 0), ("n_jobs", 1)):
        if name != "n_jobs" or settings[name] != -1:
            whole_number(settings[name], smallest, name)
    one_of(settings["search"], get_args(SearchKind), "search")
    one_of(settings["missing"], ("error", "drop"), "missing")
    for name in ("prior", "tol"):
        value = settings[name]
        if not (isinstance(value, (int, float, np.number)) and 0 <= value < np.inf):
            raise InputError(f"{name} must be a number of at least 0, found {value!r}.")


def check_distinct(data: Sequences, n_classes: int) -> None:
    """Refuse more classes than there are transition patterns."""
    n_distinct = int((data.patterns.weights > 0).sum())
    if n_classes > n_distinct:
        raise InputError(
            f"{n_classes} classes cannot be distinguished among {n_distinct} distinct transition "
            f"patterns; ask for at most {n_distinct}."
        )


def check_init(init: Any, n_classes: int, data: Sequences) -> None:
    """Refuse starting values that do not fit the data."""
    if not isinstance(init, MarkovParams):
        raise TypeError(f"init must be MarkovParams, found {type(init).__name__}.")
    if (init.n_classes, init.n_states) != (n_classes, data.n_states):
        raise InputError(
            f"init has {init.n_classes} classes and {init.n_states} states, the fit needs "
            f"{n_classes} and {data.n_states} ({some(data.states)})."
        )


def forbidden_cells(zeros: Iterable[tuple[Any, Any]] | None, data: Sequences) -> NDArray[np.bool_]:
    """The cells that must be zero, (S·(S + 1),): pairs (from, to), and out of absorbing states.

    No patient may use them.
    """
    leaving = [(a, b) for a in data.absorbing for b in data.states if a != b]
    mask = zero_cells((*(zeros or ()), *leaving), data.states)
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
