"""Labels: what a local model must offer, its class for each patient, and counts of label patterns.

The ensemble uses two things of a model: a label for each patient (`predict`), and the parameters of
its classes (`class_parameters_`, one row per class).

All that the ensemble needs from a site is how many of its patients have which combination of
labels. Rows are never compared pairwise: a pattern is a number in mixed radix, and pandas counts
numbers with a hash table. Cross-tables, for every pair of models how many patients have which two
labels, say less and are nearly enough: they are the blocks of S = ZᵀZ (see `font.weights`), a sum
over patients, and so over sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import (
    Floats,
    Integers,
    LabelTables,
    Models,
    case_weights,
    check_dict,
    check_known_labels,
    check_same_names,
    label_columns,
    some,
)
from font.errors import InputError
from font.models import wrap
from font.weights import cross_tabulate

_BLOCK = 1 << 18


@runtime_checkable
class LocalModel(Protocol):
    """A clustering model that a site fits."""

    n_classes: int

    @property
    def class_parameters_(self) -> Floats:
        """(K, d), one row per class; distances between rows are distances between classes."""

    def fit(self, data: Any, weights: Any = None) -> Any:
        """Estimate the model and return it."""

    def predict(self, data: Any) -> Integers:
        """The class of each patient, 0 … K − 1."""


def label(models: Models, data: Any) -> pd.DataFrame:
    """Give every patient a label from every model.

    Parameters
    ----------
    models : {name: model}
        Anything with `predict(data)`; fitted K-means and Gaussian mixtures of scikit-learn
        work as they are.
    data
        What the models take: sequences, an array, a DataFrame. Patient ids come from its
        `ids`, or from the index of a DataFrame.

    Returns
    -------
    DataFrame
        One row per patient, one column per model, whole numbers from 0.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> data = np.array([[0.0], [0.1], [5.0]])
    >>> label({"A": KMeans(2, n_init=1, random_state=0).fit(data)}, data)["A"].nunique()
    2
    """
    check_dict(models, "models must be a dict {name: model}")
    n = n_patients(data)
    columns = [predict_labels(wrap(m), data, n, name) for name, m in models.items()]
    highest = max((int(c.max()) for c in columns if n), default=0)
    table = np.empty((len(columns), n), dtype=np.min_scalar_type(-highest - 1))
    for row, column in zip(table, columns, strict=True):
        row[:] = column
    return pd.DataFrame(
        table.T, index=patient_ids(data), columns=pd.Index(list(models)), copy=False
    )


def predict_labels(model: Any, data: Any, n: int, name: Hashable) -> Integers:
    """The labels (n,) that a model gives, checked."""
    if not hasattr(model, "predict"):
        raise TypeError(f"the model {name!r} ({type(model).__name__}) has no method predict(data).")
    if not n:  # many models refuse an empty table, but a site without patients is not an error
        return np.zeros(0, dtype=np.int8)
    labels = np.asarray(model.predict(data))
    if labels.shape != (n,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise InputError(
            f"the model {name!r} should predict {n:,} whole numbers from 0, one for each patient; "
            f"it gave an array of {labels.dtype} of shape {labels.shape}"
            + (f" with the label {labels.min()}." if labels.dtype.kind in "iu" else ".")
        )
    return labels


def site_proportions(
    probabilities: ArrayLike,
    proportions: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    prior: float = 0.0,
    max_iter: int = 100,
    tol: float = 1e-6,
) -> Floats:
    """A site's own class proportions, all other parameters of the model kept.

    EM on the proportions alone: r_ik ∝ p_ik·π_k / π⁰_k, then π_k = mean of r_ik over patients,
    where p (n, K) are the `probabilities` under the sender's `proportions` π⁰ (K,). `prior` is the
    pseudo-count of each class; it ends when no proportion changes by `tol`.

    >>> p = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> site_proportions(p, [0.5, 0.5]).round(2).tolist()
    [0.75, 0.25]
    """
    shares, old = np.asarray(probabilities, dtype=float), np.asarray(proportions, dtype=float)
    if shares.ndim != 2 or old.shape != shares.shape[1:]:
        raise InputError(
            f"probabilities of shape {shares.shape} need one proportion for each column; found "
            f"{old.shape}."
        )
    case = case_weights(weights, len(shares))
    if case.sum() == 0:
        return old
    pseudo = prior / case.sum()
    case = case / case.sum()
    likelihood = np.divide(shares, old, out=np.zeros_like(shares), where=old > 0)
    now = old
    for _ in range(max_iter):
        joint = likelihood @ now  # Σ_k p_ik π_k / π⁰_k, patient by patient
        joint[joint == 0] = 1.0
        new = now * (likelihood.T @ (case / joint))
        if pseudo:
            new = (new + pseudo) / (1 + len(old) * pseudo)
        change = np.abs(new - now).max()
        now = new
        if change < tol:
            break
    total = now.sum()
    return now / total if total > 0 else old


# --- any data ---------------------------------------------------------------------------------


def capped_site(patients: Sequence[float]) -> tuple[int, float]:
    """The site with most patients, and the factor by which its sums count.

    With three sites or more none counts for more than all the others together.

    Examples
    --------
    >>> capped_site([300, 3300, 300, 300])
    (1, 0.2727272727272727)
    >>> capped_site([2172, 3150])
    (1, 1.0)
    """
    largest = int(np.argmax(patients))
    others = sum(patients) - patients[largest]
    if len(patients) < 3 or patients[largest] <= others:
        return largest, 1.0
    return largest, others / patients[largest]


def n_patients(data: Any) -> int:
    return int(data.shape[0] if hasattr(data, "shape") else len(data))


def patient_ids(data: Any) -> pd.Index:
    """The index of a DataFrame, the `ids` of anything that has them, else the rows' numbers."""
    ids = data.index if isinstance(data, pd.DataFrame) else getattr(data, "ids", None)
    return pd.RangeIndex(n_patients(data)) if ids is None else pd.Index(ids)


def own_weights(data: Any) -> Floats:
    """The case weights that data bring along, else ones, (n,); a column of data is not one."""
    weights = None if hasattr(data, "columns") else getattr(data, "weights", None)
    return np.ones(n_patients(data)) if weights is None else np.asarray(weights, dtype=float)


# --- label patterns ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class LabelPatterns:
    """Distinct label patterns and how many patients of each site have them.

    Parameters
    ----------
    models : tuple
        M names, the columns of the label tables.
    sites : tuple
        The names of the sites.
    patterns : (P, M) integers
        The labels of each pattern, in lexicographic order, none twice.
    counts : (P, sites) int64
        Patients of each site with each pattern.

    Examples
    --------
    >>> table = pd.DataFrame({"A": [0, 0, 1], "B": [1, 1, 0]})
    >>> LabelPatterns.from_labels({"here": table, "there": table[:1]}).to_frame().reset_index()
       A  B  here  there
    0  0  1     2      1
    1  1  0     1      0
    """

    models: tuple[Hashable, ...]
    sites: tuple[Hashable, ...]
    patterns: Integers
    counts: NDArray[np.int64]

    @classmethod
    def from_labels(cls, labels: LabelTables) -> Self:
        """Count the patterns in the sites' label tables {site: table}, as `label` returns them.

        Columns may come in any order, and a table may be empty.
        """
        check_dict(labels, "labels must be a dict {site: label table}")
        models = tuple(getattr(next(iter(labels.values())), "columns", ()))
        parts = []
        for site, table in labels.items():
            columns = label_columns(table, models, f"the label table of {site!r}")
            if not columns:
                raise InputError(
                    f"the label table of {site!r} has no columns; one per model is needed."
                )
            parts.append(count_rows(columns))
        patterns, number = distinct_rows(list(np.concatenate([rows for rows, _ in parts]).T))
        counts = np.zeros((len(patterns), len(parts)), dtype=np.int64)
        ends = np.cumsum([len(rows) for rows, _ in parts])[:-1]
        for column, place in enumerate(np.split(number, ends)):
            counts[place, column] = parts[column][1]
        return cls(models, tuple(labels), patterns, counts)

    @property
    def n_patients(self) -> int:
        """Patients counted."""
        return int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.patterns)

    def __repr__(self) -> str:
        lines = [f"LabelPatterns: {len(self):,} patterns of {len(self.models)} models"]
        for site, n in zip(self.sites, self.counts.sum(axis=0), strict=True):
            lines.append(f"  {site}  {n:,} patients")
        return "\n".join(lines)

    def reorder(self, models: Sequence[Hashable]) -> Self:
        """The same table with the models in this order."""
        check_same_names(self.models, models, "the table of label patterns")
        order = [self.models.index(name) for name in models]
        if order == list(range(len(order))):
            return self
        patterns, number = distinct_rows([self.patterns[:, m] for m in order])
        counts = np.empty_like(self.counts)
        counts[number] = self.counts
        return type(self)(tuple(models), self.sites, patterns, counts)

    def to_frame(self) -> pd.DataFrame:
        """Patterns as the index (one level per model), one column of counts per site."""
        index = pd.MultiIndex.from_arrays(list(self.patterns.T), names=list(self.models))
        return pd.DataFrame(self.counts, index=index, columns=pd.Index(list(self.sites)))


# --- distinct rows ----------------------------------------------------------------------------


def count_rows(columns: Sequence[Integers]) -> tuple[Integers, NDArray[np.int64]]:
    """Distinct rows (P, M) of a table given by columns, in lexicographic order, and how often
    each occurs."""
    patterns, number = distinct_rows(columns)
    return patterns, np.bincount(number, minlength=len(patterns))


def distinct_rows(columns: Sequence[Integers]) -> tuple[Integers, NDArray[np.int32]]:
    """Distinct rows (P, M) in lexicographic order, and the number (n,) of each row.

    Long tables are reduced block by block, which stays in the cache.
    """
    blocks = _blocks(len(columns[0]))
    if len(blocks) == 1:
        return _distinct(columns)
    number = np.empty(len(columns[0]), dtype=np.int32)
    parts = []
    for rows in blocks:
        part, number[rows] = _distinct([column[rows] for column in columns])
        parts.append(part)
    patterns, place = _distinct(list(np.concatenate(parts).T))
    ends = np.cumsum([len(part) for part in parts])[:-1]
    for rows, of_part in zip(blocks, np.split(place, ends), strict=True):
        number[rows] = of_part[number[rows]]
    return patterns, number


def map_rows(
    columns: Sequence[Integers], value_of: Callable[[Integers, NDArray[np.int64]], NDArray[Any]]
) -> NDArray[Any]:
    """`value_of` the distinct rows (P, M) and their counts (P,), for each row of the table."""
    patterns, number = distinct_rows(columns)
    values = value_of(patterns, np.bincount(number, minlength=len(patterns)))
    out = np.empty((len(number), *values.shape[1:]), dtype=values.dtype)
    for rows in _blocks(len(number)):  # all at once, the index would be copied
        out[rows] = values[number[rows]]
    return out


def _distinct(columns: Sequence[Integers]) -> tuple[Integers, NDArray[np.int32]]:
    """The same in one go: a row is a number in mixed radix."""
    sizes = [int(column.max()) + 1 if len(column) else 1 for column in columns]
    if math.prod(sizes) >= 2**62:  # in two halves, whose numbers keep the order
        half = len(columns) // 2
        (left, a), (right, b) = _distinct(columns[:half]), _distinct(columns[half:])
        pairs, number = _distinct([a, b])
        return np.hstack([left[pairs[:, 0]], right[pairs[:, 1]]]), number
    fits = math.prod(sizes) < 2**31
    key: Integers = np.zeros(len(columns[0]), dtype=np.int32 if fits else np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key *= size
        key += column.astype(key.dtype, copy=False)
    number, keys = pd.factorize(key, sort=True)
    dtype = np.min_scalar_type(-max(sizes))
    return np.stack(np.unravel_index(keys, sizes), axis=1).astype(dtype), number.astype(np.int32)


def _blocks(n: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, max(n, 1), _BLOCK)]


# --- cross-tables -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CrossTables:
    """For every pair of models the table of their labels, by site.

    Parameters
    ----------
    models : tuple
        M names.
    n_classes : tuple of int
        K of each model.
    tables : {site: (ΣK, ΣK)}
        S = ZᵀZ of the site's patients: block (t, s) counts them by the labels of the models t
        and s; the diagonal holds the sizes of the classes.

    Examples
    --------
    >>> labels = pd.DataFrame({"A": [0, 0, 1], "B": [1, 1, 0]})
    >>> CrossTables.from_labels({"here": labels}, {"A": 2, "B": 2}).total()[:2, 2:].tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """

    models: tuple[Hashable, ...]
    n_classes: tuple[int, ...]
    tables: Mapping[Hashable, Floats]

    @classmethod
    def from_labels(cls, labels: LabelTables, n_classes: Mapping[Any, int]) -> Self:
        """Count the labels of all sites' patients {site: table}, as `font.label` returns them.

        `n_classes` {model: K} is in the order that the models shall have.
        """
        models, sizes = tuple(n_classes), tuple(n_classes.values())
        tables = {}
        for site, table in labels.items():
            columns = label_columns(table, models, f"the label table of {site!r}")
            check_known_labels(columns, sizes, models, f"the label table of {site!r}")
            tables[site] = cross_tabulate(columns, np.cumsum([0, *sizes]))
        return cls(models, sizes, tables)

    @classmethod
    def from_patterns(cls, patterns: LabelPatterns, n_classes: tuple[int, ...]) -> Self:
        """The tables of label patterns, site by site, for models with so many classes."""
        columns, offsets = list(patterns.patterns.T), np.cumsum([0, *n_classes])
        tables = [cross_tabulate(columns, offsets, counts) for counts in patterns.counts.T]
        return cls(patterns.models, n_classes, dict(zip(patterns.sites, tables, strict=True)))

    @staticmethod
    def merge(parts: Iterable[CrossTables]) -> AddedTables:
        """Add up the tables of several sites, none of which may occur twice.

        The parts are taken one after the other and not kept, so that an iterator that reads one
        file at a time needs no more memory for hundreds of sites than for a few.
        """
        first: CrossTables | None = None
        sizes: dict[Hashable, Floats] = {}
        most = 0.0
        for part in parts:
            if first is None:
                first = CrossTables(part.models, part.n_classes, {})
                largest, others = np.zeros((2, *[sum(part.n_classes)] * 2))
            if (part.models, part.n_classes) != (first.models, first.n_classes):
                raise InputError("the tables were made with different models; label again.")
            twice = [site for site in part.tables if site in sizes]
            if twice:
                raise InputError(f"the sites {some(twice)} occur more than once.")
            for site, table in part.tables.items():
                sizes[site] = np.diag(table).copy()
                if sizes[site].sum() > most:
                    others += largest
                    largest, most = table, float(sizes[site].sum())
                else:
                    others += table
        if first is None:
            raise InputError("nothing to merge: give at least one site's tables.")
        return AddedTables(first.models, first.n_classes, sizes, largest, others)

    @property
    def offsets(self) -> NDArray[np.intp]:
        """Where each model's classes begin, (M + 1,)."""
        return np.cumsum([0, *self.n_classes])

    def n_patients(self) -> pd.Series:
        """Patients by site; of rounded tables, the mean over the models."""
        return CrossTables.merge([self]).n_patients()

    def total(self, *, capped: bool = False) -> Floats:
        """The sum over sites; if `capped`, no site counts more than all the others together."""
        return CrossTables.merge([self]).total(capped=capped)


@dataclass(frozen=True, eq=False)
class AddedTables:
    """Cross-tables of several sites, added up: all that an ensemble needs of them.

    Only the largest site can have more patients than all the others together, and so be scaled
    down; that is why its table (ΣK, ΣK) is kept apart from the sum of all `others`. `sizes` are
    each site's patients by class of each model, (ΣK,).
    """

    models: tuple[Hashable, ...]
    n_classes: tuple[int, ...]
    sizes: Mapping[Hashable, Floats]
    largest: Floats
    others: Floats

    def n_patients(self) -> pd.Series:
        """Patients by site; of rounded tables, the mean over the models."""
        n = {site: size.sum() / len(self.models) for site, size in self.sizes.items()}
        return pd.Series(n, dtype=float)

    def total(self, *, capped: bool = False) -> Floats:
        """The sum over sites; if `capped`, no site counts more than all the others together."""
        largest, others = float(np.trace(self.largest)), float(np.trace(self.others))
        if capped and len(self.sizes) > 1 and largest > others:
            return self.others + others / largest * self.largest
        return self.others + self.largest
