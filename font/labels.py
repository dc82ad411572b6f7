"""Labels: each model's class for each patient, and the counts of distinct label patterns.

All that the ensemble needs from a site is how many of its patients have which combination
of labels. Rows are never compared pairwise: a pattern is a number in mixed radix, counted
directly where the possible patterns are few and through a hash table where they are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import label_columns, one_of, same_names, some, whole_number
from font.protocol import predict_labels

_BLOCK = 1 << 16
_MOST_CELLS = 1 << 22


def label(models: Mapping[Any, Any], data: Any, *, proportions: str = "model") -> pd.DataFrame:
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
        One row a patient, one column a model, whole numbers from 0.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> data = np.array([[0.0], [0.1], [5.0]])
    >>> label({"A": KMeans(2, n_init=1, random_state=0).fit(data)}, data)["A"].nunique()
    2
    """
    one_of(proportions, ("model", "site"), "proportions")
    if not isinstance(models, Mapping) or not models:
        raise TypeError(
            f"models must be a dict {{name: model}} with at least one; found {models!r}."
        )
    is_frame = isinstance(data, pd.DataFrame)
    n = data.shape[0] if hasattr(data, "shape") else len(data)
    ids = data.index if is_frame else getattr(data, "ids", pd.RangeIndex(n))
    columns = [predict_labels(m, data, n, proportions, name) for name, m in models.items()]
    highest = max((int(c.max()) for c in columns if n), default=0)
    table = np.empty((len(columns), n), dtype=np.min_scalar_type(-highest - 1))
    for row, column in zip(table, columns, strict=True):
        row[:] = column
    return pd.DataFrame(table.T, index=ids, columns=pd.Index(list(models)), copy=False)


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
    patterns: NDArray[np.integer[Any]]
    counts: NDArray[np.int64]
    withheld: NDArray[np.int64]

    @classmethod
    def from_labels(cls, labels: Mapping[Any, pd.DataFrame], *, min_count: int = 1) -> Self:
        """Count the patterns in the sites' label tables.

        Parameters
        ----------
        labels : {site: table}
            As `label` returns them; the columns may come in any order, and a table may be
            empty.
        min_count : int
            A site withholds the patterns that fewer of its patients have.
        """
        if not isinstance(labels, Mapping) or not labels:
            raise TypeError(
                "labels must be a dict {site: table} with at least one site; found "
                f"{type(labels).__name__}."
            )
        first = next(iter(labels.values()))
        models = tuple(getattr(first, "columns", ()))
        parts = []
        for site, table in labels.items():
            columns = label_columns(table, models, f"the label table of {site!r}")
            if not columns:
                raise ValueError(f"the label table of {site!r} has no columns; one a model.")
            patterns, counts = count_rows(columns)
            withheld = np.zeros(1, dtype=np.int64)
            parts.append(cls(models, (site,), patterns, counts[:, None], withheld))
        return cls.merge(parts).withhold(min_count)

    @classmethod
    def merge(cls, parts: Iterable[LabelPatterns]) -> Self:
        """One table from several; each site may occur once."""
        tables = list(parts)
        if not tables:
            raise ValueError("nothing to merge: give at least one LabelPatterns.")
        models = tables[0].models
        tables = [table.reorder(models) for table in tables]
        sites = tuple(site for table in tables for site in table.sites)
        if len(set(sites)) != len(sites):
            twice = [site for site in dict.fromkeys(sites) if sites.count(site) > 1]
            raise ValueError(
                f"the sites {some(twice)} occur more than once; merge each site's table once."
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

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Self:
        """From a table as `to_frame` returns it: labels in the index, one column a site."""
        counts = frame.to_numpy()
        if counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
            raise ValueError(
                "the counts of label patterns must be whole numbers of 0 or more; found "
                f"{counts.dtype}" + ("." if counts.dtype.kind not in "iu" else " below 0.")
            )
        labels = frame.index.to_frame(index=False)
        models = tuple(frame.index.names)
        stacked = label_columns(labels, models, "the index of the table of patterns")
        patterns, number = distinct_rows(stacked)
        summed = np.zeros((len(patterns), frame.shape[1]), dtype=np.int64)
        np.add.at(summed, number, counts)
        none = np.zeros(frame.shape[1], dtype=np.int64)
        return cls(models, tuple(frame.columns), patterns, summed, none)._without_empty()

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
        return type(self)(self.models, self.sites, self.patterns, kept, withheld)._without_empty()

    def reorder(self, models: Sequence[Hashable]) -> Self:
        """The same table with the models in this order."""
        same_names(self.models, models, "the table of label patterns")
        order = [self.models.index(name) for name in models]
        if order == list(range(len(order))):
            return self
        patterns, number = distinct_rows([self.patterns[:, m] for m in order])
        counts = np.empty_like(self.counts)
        counts[number] = self.counts
        return type(self)(tuple(models), self.sites, patterns, counts, self.withheld)

    def to_frame(self) -> pd.DataFrame:
        """Patterns as the index (one level a model), one column of counts a site."""
        index = pd.MultiIndex.from_arrays(list(self.patterns.T), names=list(self.models))
        return pd.DataFrame(self.counts, index=index, columns=pd.Index(list(self.sites)))

    def _without_empty(self) -> Self:
        seen = self.counts.any(axis=1)
        if seen.all():
            return self
        rows, counts = self.patterns[seen], self.counts[seen]
        return type(self)(self.models, self.sites, rows, counts, self.withheld)


# --- distinct rows ---------------------------------------------------------------------


def count_rows(
    columns: Sequence[NDArray[np.integer[Any]]],
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Distinct rows (P, M) of a table given by columns, in lexicographic order, and how often."""
    sizes = _sizes(columns)
    if _is_dense(columns, sizes):
        total = np.zeros(math.prod(sizes), dtype=np.int64)
        for _, key in _keys(columns, sizes):
            total += np.bincount(key, minlength=len(total))
        cells = np.flatnonzero(total)
        return _decode(cells, sizes), total[cells]
    patterns, number = distinct_rows(columns)
    return patterns, np.bincount(number, minlength=len(patterns))


def map_rows(
    columns: Sequence[NDArray[np.integer[Any]]],
    value_of: Callable[[NDArray[np.integer[Any]]], NDArray[Any]],
) -> NDArray[Any]:
    """`value_of` on the distinct rows (P, M), handed to each row of the table."""
    sizes = _sizes(columns)
    if not _is_dense(columns, sizes):
        patterns, number = distinct_rows(columns)
        return value_of(patterns)[number]
    seen = np.zeros(math.prod(sizes), dtype=bool)
    for _, key in _keys(columns, sizes):
        seen[key] = True
    cells = np.flatnonzero(seen)
    values = value_of(_decode(cells, sizes))
    lookup = np.zeros((len(seen), *values.shape[1:]), dtype=values.dtype)
    lookup[cells] = values
    out = np.empty((len(columns[0]), *values.shape[1:]), dtype=values.dtype)
    for rows, key in _keys(columns, sizes):
        np.take(lookup, key, axis=0, out=out[rows], mode="clip")  # "raise" would buffer the output
    return out


def distinct_rows(
    columns: Sequence[NDArray[np.integer[Any]]],
) -> tuple[NDArray[np.integer[Any]], NDArray[np.intp]]:
    """Distinct rows (P, M) in lexicographic order, and the number (n,) of each row."""
    span = 1
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, _sizes(columns), strict=True):
        if span * size >= 2**62:  # the rows so far have few enough values to start afresh
            key, values = pd.factorize(key)
            span = max(len(values), 1)
        key = key * size
        key += column
        span *= size
    number, _ = pd.factorize(key)
    is_first = np.diff(np.maximum.accumulate(number), prepend=-1) > 0
    rows = np.stack([column[is_first] for column in columns], axis=1)
    order = np.lexsort(rows.T[::-1])
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    return rows[order], rank[number]


def _sizes(columns: Sequence[NDArray[np.integer[Any]]]) -> list[int]:
    return [int(column.max()) + 1 if len(column) else 1 for column in columns]


def _is_dense(columns: Sequence[NDArray[np.integer[Any]]], sizes: list[int]) -> bool:
    """Whether a table with one cell for every possible pattern is small beside the labels."""
    return math.prod(sizes) <= min(max(1 << 12, len(columns[0]) // 8), _MOST_CELLS)


def _keys(
    columns: Sequence[NDArray[np.integer[Any]]], sizes: list[int]
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows as numbers in mixed radix, in blocks that stay in the cache."""
    n, cells = len(columns[0]), math.prod(sizes)
    block = max(_BLOCK, cells)
    dtype = np.dtype(np.uint16 if cells < 1 << 16 else np.uint32)
    buffer = np.empty(min(block, n), dtype=dtype)
    for begin in range(0, n, block):
        rows = slice(begin, min(begin + block, n))
        key = buffer[: rows.stop - begin]
        key[:] = columns[0][rows]
        for column, size in zip(columns[1:], sizes[1:], strict=True):
            np.multiply(key, dtype.type(size), out=key)
            np.add(key, column[rows], out=key, dtype=dtype, casting="unsafe")
        yield rows, key


def _decode(cells: NDArray[np.intp], sizes: list[int]) -> NDArray[np.integer[Any]]:
    dtype = np.min_scalar_type(-max(sizes))
    patterns = np.empty((len(cells), len(sizes)), dtype=dtype)
    for m in range(len(sizes) - 1, -1, -1):
        patterns[:, m] = cells % sizes[m]
        cells = cells // sizes[m]
    return patterns
