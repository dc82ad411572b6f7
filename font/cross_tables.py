"""Cross-tables of labels: for every pair of models, how many patients have which two labels.

They are the blocks of S = ZᵀZ (see `font.weights`), a sum over patients, and so over sites. What
the labels say of latent clusters can be estimated from them too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import label_columns, some
from font.errors import InputError

Floats = NDArray[np.float64]

_FEW_UPDATES, _MOST_UPDATES, _GAIN = 30, 1_000, 1e-11
_BLOCK = 1 << 12  # patients; fewer than 2²⁴, up to which single precision counts
_PSEUDO = 0.5  # patients added to each cell of a confusion table, so that none is impossible


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
    def from_labels(cls, labels: Mapping[Any, pd.DataFrame], n_classes: Mapping[Any, int]) -> Self:
        """Count the labels of all sites' patients.

        Parameters
        ----------
        labels : {site: table}
            As `font.label` returns them.
        n_classes : {model: K}
            In the order that the models shall have.
        """
        models, sizes = tuple(n_classes), tuple(n_classes.values())
        tables = {}
        for site, table in labels.items():
            columns = label_columns(table, models, f"the label table of {site!r}")
            for name, column, size in zip(models, columns, sizes, strict=True):
                if len(column) and column.max() >= size:
                    raise InputError(
                        f"the label table of {site!r} has the label {column.max()} from the model "
                        f"{name!r}, which has {size} classes."
                    )
            tables[site] = _tally(columns, sizes)
        return cls(models, sizes, tables)

    @staticmethod
    def merge(parts: Iterable[CrossTables]) -> AddedTables:
        """Add up the tables of several sites, each of which may occur once.

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
    down; that is why its table is kept apart.

    Parameters
    ----------
    models, n_classes
        As in `CrossTables`.
    sizes : {site: (ΣK,)}
        The site's patients by class of each model.
    largest : (ΣK, ΣK)
        The table of the site with most patients.
    others : (ΣK, ΣK)
        The sum of all other sites' tables.
    """

    models: tuple[Hashable, ...]
    n_classes: tuple[int, ...]
    sizes: Mapping[Hashable, Floats]
    largest: Floats
    others: Floats

    @property
    def offsets(self) -> NDArray[np.intp]:
        """Where each model's classes begin, (M + 1,)."""
        return np.cumsum([0, *self.n_classes])

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


def _tally(columns: Sequence[NDArray[np.integer[Any]]], sizes: Sequence[int]) -> Floats:
    """S = ZᵀZ of labels, in blocks of patients whose counts single precision holds exactly.

    Patterns of many models are nearly all distinct, so that nothing is gained by counting them
    first; one product of matrices counts all pairs of models at once.
    """
    n_classes = sum(sizes)
    total = np.zeros((n_classes, n_classes))
    for begin in range(0, len(columns[0]), _BLOCK):
        block = [column[begin : begin + _BLOCK] for column in columns]
        rows = np.empty((n_classes, len(block[0])), dtype=np.float32)
        model_rows = np.split(rows, np.cumsum(sizes)[:-1])
        for part, column in zip(model_rows, block, strict=True):
            np.equal(column, np.arange(len(part))[:, None], out=part)
        total += rows @ rows.T
    return total


def latent_clusters(
    total: Floats, offsets: NDArray[np.intp], starts: Sequence[Floats], share: Floats | None = None
) -> tuple[Floats, Floats]:
    """Proportions (C,) and confusion tables (ΣK, C) of the latent clusters behind all labels.

    EM on the pairs of models, by multiplicative updates. All starts make a few updates, and the
    best goes on. A patient stands in every pair, so that this is a composite likelihood, not the
    full one; and as pairs do not tell everything that triples would, several solutions may fit
    alike, of which one near the beginning is found.

    Parameters
    ----------
    total : (ΣK, ΣK)
        Cross-tables, of which only those of two different models are used.
    offsets : (M + 1,)
    starts : list of (ΣK, C)
        How far each class belongs to each cluster, to begin with.
    share : (M,), optional
        How far each model counts.
    """
    sizes = np.diff(offsets)
    n_models = len(sizes)
    rho = np.repeat(np.ones(n_models) if share is None else share, sizes)
    same = np.repeat(np.arange(n_models), sizes)
    pairs = np.where(same[:, None] == same[None, :], 0.0, total * rho[:, None] * rho[None, :])
    if n_models == 1:
        pairs = total * np.eye(len(total))  # a model read twice, for want of another
    pseudo = _PSEUDO * max(pairs.sum() / max(np.trace(total), 1e-300), 1e-300)

    def normalised(weights: Floats) -> Floats:
        sums = np.add.reduceat(weights, offsets[:-1], axis=0)
        return np.asarray(weights / np.repeat(sums, sizes, axis=0))

    def updated(proportions: Floats, confusion: Floats, n_updates: int) -> _Latent:
        before = -np.inf
        for _ in range(n_updates):
            chance = (confusion * proportions) @ confusion.T
            value = float((pairs * np.log(np.maximum(chance, 1e-300))).sum())
            value += pseudo * float(np.log(confusion).sum())
            ratio = np.divide(pairs, chance, out=np.zeros_like(pairs), where=pairs > 0)
            expected = confusion * (ratio @ confusion) * proportions
            proportions = expected.sum(axis=0) / expected.sum()
            confusion = normalised(expected + pseudo)
            if value - before < _GAIN * abs(value):
                break
            before = value
        return _Latent(before, proportions, confusion)

    runs = []
    for member in starts:
        proportions = np.diag(total) @ member + _PSEUDO
        confusion = normalised(pairs @ member + pseudo)
        runs.append(updated(proportions / proportions.sum(), confusion, _FEW_UPDATES))
    best = max(runs, key=lambda run: run.value)
    return updated(best.proportions, best.confusion, _MOST_UPDATES)[1:]


class _Latent(NamedTuple):
    """Where a run of EM is: the penalised composite log-likelihood, and the parameters."""

    value: float
    proportions: Floats
    confusion: Floats
