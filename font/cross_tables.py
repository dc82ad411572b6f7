"""Cross-tables of labels: for every pair of models, how many patients have which two labels.

They are the blocks of S = ZᵀZ (see `font.weights`), a sum over patients, and so over sites: all
that the agreement, the weights and the geometry of an ensemble need. A site that gives them does
not say how many patients have which combination of labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import Floats, LabelTables, check_known_labels, label_columns, some
from font.errors import InputError
from font.labels import LabelPatterns
from font.weights import cross_tabulate


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
