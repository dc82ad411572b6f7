"""Labels: what a local model must offer, its class for each patient, and counts of label patterns.

The ensemble uses three things of a model: a label for each patient (`predict`), the parameters of
its classes (`class_parameters_`, one row per class), and, only where class proportions are
re-estimated at the receiving site, `predict_proba` with the proportions behind it.

All that the ensemble needs from a site is how many of its patients have which combination of
labels. Rows are never compared pairwise: a pattern is a number in mixed radix, and pandas counts
numbers with a hash table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import (
    Integers,
    LabelTables,
    Models,
    case_weights,
    check_dict,
    check_same_names,
    label_columns,
    one_of,
    some,
    whole_number,
)
from font.errors import InputError
from font.models.sklearn_models import wrap

_BLOCK = 1 << 18


@runtime_checkable
class LocalModel(Protocol):
    """A clustering model that a site fits.

    Models with class proportions also have `predict_proba(data)` (n, K) and `weights_` (K,),
    or `class_weights_` where the proportions behind `predict_proba` differ from `weights_`.
    """

    n_classes: int

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """(K, d), one row per class; distances between rows are distances between classes."""

    def fit(self, data: Any, weights: Any = None) -> Any:
        """Estimate the model and return it."""

    def predict(self, data: Any) -> NDArray[np.integer[Any]]:
        """The class of each patient, 0 … K − 1."""


def label(models: Models, data: Any, *, proportions: str = "model") -> pd.DataFrame:
    """Give every patient a label from every model.

    Parameters
    ----------
    models : {name: model}
        Anything with `predict(data)`; fitted K-means and Gaussian mixtures of scikit-learn
        work as they are.
    data
        What the models take: sequences, an array, a DataFrame. Patient ids come from its
        `ids`, or from the index of a DataFrame.
    proportions : "model" or "site"
        Class proportions of the sending model, or re-estimated on `data` by EM with all other
        parameters fixed (see `site_proportions`); the latter needs models with
        `predict_proba` and `class_weights_` or `weights_`.

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
    one_of(proportions, ("model", "site"), "proportions")
    check_dict(models, "models must be a dict {name: model}")
    n = n_patients(data)
    columns = [predict_labels(wrap(m), data, n, proportions, name) for name, m in models.items()]
    highest = max((int(c.max()) for c in columns if n), default=0)
    table = np.empty((len(columns), n), dtype=np.min_scalar_type(-highest - 1))
    for row, column in zip(table, columns, strict=True):
        row[:] = column
    return pd.DataFrame(
        table.T, index=patient_ids(data), columns=pd.Index(list(models)), copy=False
    )


def predict_labels(
    model: Any, data: Any, n: int, proportions: str, name: Hashable
) -> NDArray[np.integer[Any]]:
    """The labels (n,) that a model gives, checked."""
    if not hasattr(model, "predict"):
        raise TypeError(f"the model {name!r} ({type(model).__name__}) has no method predict(data).")
    if not n:  # many models refuse an empty table, but a site without patients is not an error
        return np.zeros(0, dtype=np.int8)
    if proportions == "model":
        labels = np.asarray(model.predict(data))
    else:
        labels = _site_labels(model, data, name)
    if labels.shape != (n,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise InputError(
            f"the model {name!r} should predict {n:,} whole numbers from 0, one for each patient; "
            f"it gave an array of {labels.dtype} of shape {labels.shape}"
            + (f" with the label {labels.min()}." if labels.dtype.kind in "iu" else ".")
        )
    return labels


def _site_labels(model: Any, data: Any, name: Hashable) -> NDArray[np.integer[Any]]:
    own = getattr(model, "class_weights_", getattr(model, "weights_", None))
    if own is None or not hasattr(model, "predict_proba"):
        raise InputError(
            f"the model {name!r} has no class proportions to re-estimate (it needs predict_proba, "
            'and class_weights_ or weights_); label its patients with proportions="model".'
        )
    own = np.asarray(own, dtype=float)  # a labelled Series is as good as an array
    shares = np.asarray(model.predict_proba(data), dtype=float)
    site = site_proportions(shares, own, weights=own_weights(data))
    ratio = np.divide(site, own, out=np.zeros_like(site), where=own > 0)
    return np.asarray(np.argmax(shares * ratio, axis=1))


def site_proportions(
    probabilities: ArrayLike,
    proportions: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    prior: float = 0.0,
    max_iter: int = 100,
    tol: float = 1e-6,
) -> NDArray[np.float64]:
    """A site's own class proportions, all other parameters of the model kept.

    EM on the proportions alone: r_ik ∝ p_ik·π_k / π⁰_k, then π_k = mean of r_ik over
    patients, where p are the probabilities under the sender's proportions π⁰.

    Parameters
    ----------
    probabilities : (n, K)
        As `predict_proba` gives them.
    proportions : (K,)
        The proportions behind them.
    weights : (n,), optional
        Case weights.
    prior : float
        Pseudo-count of each class.
    max_iter, tol
        Updates at most, and the change of a proportion below which to stop.

    Examples
    --------
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


def own_weights(data: Any) -> NDArray[np.float64]:
    """The case weights that data bring along, else ones, (n,); a column of data is not one."""
    weights = None if hasattr(data, "columns") else getattr(data, "weights", None)
    return np.ones(n_patients(data)) if weights is None else np.asarray(weights, dtype=float)


# --- label patterns ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class LabelPatterns:
    """Distinct label patterns and how many patients of each site have them.

    Build it with `from_labels`; join the tables of several sites with `merge`.

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
    withheld : (sites,) int64
        Patients whose pattern was too rare to be shared.

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
    withheld: NDArray[np.int64]

    @classmethod
    def from_labels(cls, labels: LabelTables, *, min_count: int = 1) -> Self:
        """Count the patterns in the sites' label tables.

        Parameters
        ----------
        labels : {site: table}
            As `label` returns them; the columns may come in any order, and a table may be
            empty.
        min_count : int
            A site withholds the patterns that fewer of its patients have.
        """
        check_dict(labels, "labels must be a dict {site: label table}")
        first = next(iter(labels.values()))
        models = tuple(getattr(first, "columns", ()))
        parts = []
        for site, table in labels.items():
            columns = label_columns(table, models, f"the label table of {site!r}")
            if not columns:
                raise InputError(
                    f"the label table of {site!r} has no columns; one per model is needed."
                )
            patterns, counts = count_rows(columns)
            withheld = np.zeros(1, dtype=np.int64)
            parts.append(cls(models, (site,), patterns, counts[:, None], withheld))
        return cls.merge(parts).withhold(min_count)

    @classmethod
    def merge(cls, parts: Iterable[LabelPatterns]) -> Self:
        """One table from several, each of other sites."""
        tables = list(parts)
        if not tables:
            raise InputError("nothing to merge: give at least one LabelPatterns.")
        models = tables[0].models
        tables = [table.reorder(models) for table in tables]
        sites = tuple(site for table in tables for site in table.sites)
        if len(set(sites)) != len(sites):
            twice = [site for site in dict.fromkeys(sites) if sites.count(site) > 1]
            raise InputError(
                f"the sites {some(twice)} occur more than once; merge one table of each site."
            )
        stacked = np.concatenate([table.patterns for table in tables])
        patterns, number = distinct_rows(list(stacked.T))
        counts = np.zeros((len(patterns), len(sites)), dtype=np.int64)
        row = column = 0
        for table in tables:
            n, width = table.counts.shape
            counts[number[row : row + n], column : column + width] = table.counts
            row, column = row + n, column + width
        return cls(models, sites, patterns, counts, np.concatenate([t.withheld for t in tables]))

    @property
    def n_patients(self) -> int:
        """Patients counted, without those withheld."""
        return int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.patterns)

    def __repr__(self) -> str:
        lines = [f"LabelPatterns: {len(self):,} patterns of {len(self.models)} models"]
        for site, n, gone in zip(self.sites, self.counts.sum(axis=0), self.withheld, strict=True):
            lines.append(f"  {site}  {n:,} patients" + (f", {gone:,} withheld" if gone else ""))
        return "\n".join(lines)

    def withhold(self, min_count: int) -> Self:
        """Without the patterns that fewer than `min_count` patients of a site have.

        The centre clusters the rest; a site places its withheld patients itself, since an
        `Ensemble` has a cluster for every pattern.
        """
        whole_number(min_count, 1, "min_count")
        rare = self.counts < min_count
        if min_count == 1 or not rare.any():
            return self
        withheld = self.withheld + np.where(rare, self.counts, 0).sum(axis=0)
        kept = np.where(rare, 0, self.counts)
        seen = kept.any(axis=1)
        return type(self)(self.models, self.sites, self.patterns[seen], kept[seen], withheld)

    def reorder(self, models: Sequence[Hashable]) -> Self:
        """The same table with the models in this order."""
        check_same_names(self.models, models, "the table of label patterns")
        order = [self.models.index(name) for name in models]
        if order == list(range(len(order))):
            return self
        patterns, number = distinct_rows([self.patterns[:, m] for m in order])
        counts = np.empty_like(self.counts)
        counts[number] = self.counts
        return type(self)(tuple(models), self.sites, patterns, counts, self.withheld)

    def to_frame(self) -> pd.DataFrame:
        """Patterns as the index (one level per model), one column of counts per site."""
        index = pd.MultiIndex.from_arrays(list(self.patterns.T), names=list(self.models))
        return pd.DataFrame(self.counts, index=index, columns=pd.Index(list(self.sites)))


# --- distinct rows ---------------------------------------------------------------------


def count_rows(columns: Sequence[Integers]) -> tuple[Integers, NDArray[np.int64]]:
    """Distinct rows (P, M) of a table given by columns, in lexicographic order, and how often
    each occurs. Long tables are reduced block by block, which stays in the cache."""
    parts, times = [], []
    for rows in _blocks(len(columns[0])):
        part, number = _distinct([column[rows] for column in columns])
        parts.append(part)
        times.append(np.bincount(number, minlength=len(part)))
    patterns, place = _distinct(list(np.concatenate(parts).T))
    counts = np.zeros(len(patterns), dtype=np.int64)
    np.add.at(counts, place, np.concatenate(times))
    return patterns, counts


def distinct_rows(columns: Sequence[Integers]) -> tuple[Integers, NDArray[np.int32]]:
    """Distinct rows (P, M) in lexicographic order, and the number (n,) of each row."""
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
    columns: Sequence[Integers],
    value_of: Callable[[Integers, NDArray[np.int64]], NDArray[Any]],
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
