"""Types of what users bring, and its checks. Each failure is one sentence: what was found, and how
to fix it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError

# What functions of font take.
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]
Models: TypeAlias = Mapping[Any, Any]  # {name: model with class_parameters_, or the array itself}
LabelTables: TypeAlias = "Mapping[Any, pd.DataFrame]"  # {site: patients × models}
Clustering: TypeAlias = "ArrayLike | pd.Series"  # the group of each patient


def some(values: Iterable[Any]) -> str:
    """At most five values for a message."""
    shown = [repr(v.item() if isinstance(v, np.generic) else v) for v, _ in zip(values, range(6))]  # noqa: B905
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")


def listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(n: int, one: str, several: str) -> str:
    """A number and what it counts, in the singular or in the plural.

    >>> counted(1, "patient has", "patients have"), counted(1200, "patient has", "patients have")
    ('1 patient has', '1,200 patients have')
    """
    return f"{n:,} {one if n == 1 else several}"


def one_of(value: object, choices: Iterable[str], what: str) -> None:
    if value not in (allowed := list(choices)):
        raise InputError(f"{what} must be one of {', '.join(map(repr, allowed))}; found {value!r}.")


def of_type(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Refuse a value of another type; `what` says what is expected and what gives it."""
    if not isinstance(value, kind):
        raise TypeError(f"found {type(value).__name__}, expected {what}.")


def check_dict(value: object, what: str) -> None:
    """Refuse what is not a dict, or an empty one; `what` is its name and its content."""
    if not isinstance(value, Mapping) or not value:
        found = "an empty one" if isinstance(value, Mapping) else type(value).__name__
        raise TypeError(f"{what}, with at least one; found {found}.")


def check_same_names(columns: Iterable[Hashable], models: Iterable[Hashable], what: str) -> None:
    """The columns of a label table must be the models, in any order."""
    columns, models = list(columns), list(models)
    absent = [name for name in models if name not in columns]
    unknown = [name for name in columns if name not in models]
    if absent or unknown or len(columns) != len(models):
        wrong = [f"no label column for the models {some(absent)}"] if absent else []
        wrong += [f"the columns {some(unknown)}, which are not models"] if unknown else []
        raise InputError(
            f"{what} must have one column for each model, by name, in any order; found "
            f"{' and '.join(wrong) or 'repeated columns'}: label with the ensemble's models, and "
            "keep other columns out or in the index."
        )


def label_columns(table: pd.DataFrame, models: Sequence[Hashable], what: str) -> list[Integers]:
    """The labels as one array per model, in the models' order, checked but not copied."""
    if not isinstance(table, pd.DataFrame):
        raise TypeError(
            f"{what} must be a DataFrame, patients × models, as font.label returns; found "
            f"{type(table).__name__}."
        )
    check_same_names(table.columns, models, what)
    return [_labels_of(table[name].to_numpy(), name, what) for name in models]


def _labels_of(column: NDArray[Any], name: Hashable, what: str) -> Integers:
    if column.dtype.kind not in "iu":
        numbers = pd.to_numeric(pd.Series(column, dtype=object), errors="coerce").to_numpy(float)
        bad = ~(numbers == np.round(numbers))  # also true of NaN
        if bad.any():
            raise InputError(
                f"{what} gives {bad.sum():,} patients no whole-numbered label from the model "
                f"{name!r} (found {some(column[bad])}); every patient needs one from every model."
            )
        column = numbers.astype(np.int64)
    if column.size and column.min() < 0:
        raise InputError(
            f"{what} has the label {column.min()} from the model {name!r}; labels count from 0."
        )
    return column


def check_known_labels(
    columns: Sequence[Integers], n_classes: Sequence[int], models: Sequence[Hashable], what: str
) -> None:
    """Refuse labels of classes that the models do not have."""
    for name, column, size in zip(models, columns, n_classes, strict=True):
        if len(column) and column.max() >= size:
            raise InputError(
                f"{what} has the label {column.max()} from the model {name!r}, whose {size} "
                f"classes are numbered 0 to {size - 1}; label with the models given to the "
                "ensemble."
            )


def class_parameters(model: Any, name: Hashable) -> Floats:
    """The (K, d) parameters of a model, or of a bare array."""
    values = model
    for attribute in ("class_parameters_", "cluster_centers_", "means_"):
        if hasattr(model, attribute):
            values = getattr(model, attribute)
            break
    else:
        if not isinstance(model, (np.ndarray, list)):
            raise TypeError(
                f"the model {name!r} ({type(model).__name__}) has no class_parameters_; fit it "
                "first, and give it that attribute: one row per class."
            )
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"the class parameters of {name!r} are not a table of numbers.") from None
    if array.ndim != 2 or not array.size:
        raise InputError(
            f"the class parameters of {name!r} have the shape {array.shape}; one row per class and "
            "at least one column are needed."
        )
    if not np.isfinite(array).all():
        raise InputError(
            f"the class parameters of {name!r} hold {(~np.isfinite(array)).sum():,} values that "
            "are not finite; fit the model again without them."
        )
    return array


def whole_number(value: Any, low: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise InputError(f"{what} must be a whole number of at least {low}; found {value!r}.")
    return int(value)


def case_weights(weights: ArrayLike | None, n: int) -> Floats:
    if weights is None:
        return np.ones(n)
    array = np.asarray(weights, dtype=float)
    if array.shape != (n,) or not (np.isfinite(array) & (array >= 0)).all():
        raise InputError(
            f"weights must be {n:,} finite numbers of 0 or more, one for each patient; found an "
            f"array of shape {array.shape}."
        )
    return array


def memberships(values: ArrayLike, n: int, n_classes: int) -> Floats:
    """Class probabilities (n, K) for a model with K classes, or with one that stands for all."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 2 or array.shape[0] != n or array.shape[1] < 1:
        raise InputError(
            f"membership must be a table of {n:,} patients × classes; found the shape "
            f"{array.shape}."
        )
    if n_classes not in (1, array.shape[1]):
        raise InputError(
            f"membership has {array.shape[1]} classes, the model {n_classes}; give one column for "
            "each class of the model."
        )
    if not (np.isfinite(array) & (array >= 0)).all():
        raise InputError("membership must be finite numbers of 0 or more.")
    return array


def check_sums(total: ArrayLike, n_columns: int, *, counts: bool = False) -> Floats:
    """Sums by class (K, n_columns), the first column the patients; with `counts` all are counts."""
    array = np.asarray(total, dtype=float)
    if array.ndim != 2 or array.shape[1] != n_columns or not len(array):
        raise InputError(
            f"sums must be a table of classes × {n_columns}, as `statistics` gives it; found the "
            f"shape {array.shape}."
        )
    if not np.isfinite(array).all() or (array[:, : None if counts else 1] < 0).any():
        what = "counts" if counts else "the numbers of patients"
        raise InputError(
            f"sums must be finite, and {what} 0 or more; add up the sites' sums again."
        )
    return array
