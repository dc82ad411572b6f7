"""The numbers of Table 1: patients by cluster and level, and which of them may be shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.tables.disclosure import (
    HIDDEN,
    Rounding,
    hidden_grid,
    hidden_parts,
    is_small,
)


class Variable(NamedTuple):
    """A variable of Table 1: its label, its levels (None: continuous), and whether any is missing.

    Where a value is missing at any site, there is a row for missing values at all sites.
    """

    label: str
    levels: list[Any] | None
    has_missing: bool


class SiteNumbers:
    """The numbers of one site: the size of each group, and the counts of each variable's rows.

    `groups` are the clusters and, last, all of them: {name: members}. `counts` has the patients
    by row and group: the levels of a category or the known values of a continuous variable, then
    the missing ones if any site has such. `hidden` and `hidden_sizes` say which may not be shown.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        cluster: NDArray[Any],
        variables: Mapping[str, Variable],
    ) -> None:
        self.frame, self.variables = frame, variables
        self.groups = {str(level): cluster == level for level in ordered(cluster)}
        self.groups["all"] = np.ones(len(frame), dtype=bool)
        self.sizes = np.array([members.sum() for members in self.groups.values()])
        self.hidden_sizes = np.zeros(len(self.sizes), dtype=bool)
        self.counts: dict[str, NDArray[Any]] = {}
        self.hidden: dict[str, NDArray[np.bool_]] = {}
        for column in variables:
            rows = self.rows(column)
            self.counts[column] = np.array(
                [[(row & g).sum() for g in self.groups.values()] for row in rows], dtype=np.intp
            ).reshape(len(rows), len(self.groups))

    def rows(self, column: str) -> list[NDArray[np.bool_]]:
        """Who is in each row of a variable: its levels or known values, then missing ones."""
        values, (_, levels, has_missing) = self.frame[column], self.variables[column]
        rows = [values.notna()] if levels is None else [values == level for level in levels]
        rows += [values.isna()] if has_missing else []
        return [row.to_numpy(bool, na_value=False) for row in rows]

    def hide(self, column: str, min_count: int) -> None:
        """Decide which numbers of a variable are hidden; the sizes that show are known."""
        counts = self.counts[column]
        if self.variables[column].levels is None:  # the number of known values does not show
            clusters, everyone = hidden_parts(counts[:, :-1], min_count)
            self.hidden[column] = np.column_stack([clusters, everyone])
            return
        cells = np.vstack([counts, self.sizes])
        self.hidden[column] = _hidden_counts(cells, self.hidden_sizes, min_count)

    def describe_size(self, k: int) -> str:
        """The size of a group and its share of all."""
        everyone = None if self.hidden_sizes[-1] else self.sizes[:-1].sum()
        if k == len(self.sizes) - 1:
            everyone = self.sizes[-1]
        return _count(self.sizes, self.hidden_sizes, k, everyone)

    def describe(self, column: str, k: int, continuous: str) -> list[str]:
        """The cells of a variable for one group."""
        counts, hidden = self.counts[column][:, k], self.hidden[column][:, k]
        has_missing = self.variables[column].has_missing
        if self.variables[column].levels is None:
            members = list(self.groups.values())[k]
            cells = [HIDDEN if hidden[0] else _summary(self.frame[column][members], continuous)]
        else:
            n_levels = len(counts) - has_missing
            # shares of the known values would reveal how many are missing
            unknown = self.hidden_sizes[k] or (has_missing and hidden[-1])
            known = None if unknown else float(counts[:n_levels].sum())
            cells = [_count(counts, hidden, i, known) for i in range(n_levels)]
        if has_missing:
            size = None if self.hidden_sizes[k] else float(counts.sum())
            cells.append(_count(counts, hidden, len(counts) - 1, size))
        return cells


def hide_numbers(
    sites: Mapping[str, SiteNumbers], min_count: int, together: Collection[str] = ()
) -> dict[str, pd.DataFrame]:
    """Decide what every site hides.

    The sizes of the clusters at all sites together may be known from elsewhere, so that hidden
    sizes must not follow from those either. Which sizes show does not depend on the variables: it
    is the same in every table of the same clusters (`mmlca.tables.clusters.hidden_sizes`).

    Parameters
    ----------
    sites : {site: SiteNumbers}
    min_count : int
    together : columns with levels whose numbers at all sites together are shown elsewhere

    Returns
    -------
    dict
        For each column of `together`: which of these numbers may not be shown, by level and group.
    """
    names = list(dict.fromkeys(name for part in sites.values() for name in part.groups))
    names = [*(name for name in names if name != "all"), "all"]
    sizes = np.zeros((len(sites) + 1, len(names)))
    column_of = [[names.index(name) for name in part.groups] for part in sites.values()]
    for row, (part, at) in enumerate(zip(sites.values(), column_of, strict=True)):
        sizes[row, at] = part.sizes
    sizes[-1] = sizes[:-1].sum(axis=0)
    hidden = hidden_grid(sizes, min_count)
    pooled = {}
    for row, (part, at) in enumerate(zip(sites.values(), column_of, strict=True)):
        part.hidden_sizes = hidden[row, at]
    (first, *_) = sites.values()
    for column, (_, levels, _) in first.variables.items():
        joint = column in together and levels is not None
        if joint and len(sites) > 1:
            layers = np.zeros((len(sites) + 1, len(first.counts[column]), len(names)))
            for row, (part, at) in enumerate(zip(sites.values(), column_of, strict=True)):
                layers[row][:, at] = part.counts[column]
            layers[-1] = layers[:-1].sum(axis=0)
            cells = np.concatenate([layers, sizes[:, None, :]], axis=1)
            mask = _hidden_counts(cells, hidden, min_count)
            for row, (part, at) in enumerate(zip(sites.values(), column_of, strict=True)):
                part.hidden[column] = mask[row][:, at]
            everywhere = mask[-1]
        else:
            for part in sites.values():
                part.hide(column, min_count)
            everywhere = first.hidden[column]
        if joint and levels is not None:
            shown = everywhere[: len(levels)]
            pooled[column] = pd.DataFrame(shown, [str(level) for level in levels], names)
    return pooled


def round_numbers(sites: Mapping[str, SiteNumbers], rounding: Rounding, min_count: int) -> None:
    """Round all numbers of every site; means of few patients are still hidden.

    No number is larger than those it is part of, also where these are of all sites together.
    """
    every = list(sites.values())
    names = list(dict.fromkeys(name for part in every for name in part.groups if name != "all"))

    def count(rows: list[NDArray[np.bool_]], name: str, *totals: float) -> float:
        """Patients of some sites in these rows and a group."""
        mine = [
            part.frame.index[row & part.groups[name]]
            for part, row in zip(every, rows, strict=True)
            if name in part.groups
        ]
        ids = [patient for some in mine for patient in some]
        return rounding.part(len(ids), rounding.key_of(ids), *totals)

    sizes = {}
    for place, rows in _places([np.ones(len(part.frame), dtype=bool) for part in every]):
        sizes[place] = {name: count(rows, name, np.inf) for name in (*names, "all")}
    for i, part in enumerate(every):
        part.sizes = np.array([sizes[i][name] for name in part.groups])
    for column, (_, levels, _) in every[0].variables.items():
        for part in every:
            part.hidden[column] = np.zeros(part.counts[column].shape, dtype=bool)
            if levels is None:
                part.hidden[column][0] = is_small(part.counts[column][0], min_count)
            part.counts[column] = part.counts[column].astype(float)
        for row in range(len(every[0].counts[column])):
            whole: dict[str, float] = {}
            for place, rows in _places([part.rows(column)[row] for part in every]):
                most = sizes[place]
                top = count(rows, "all", most["all"], whole.get("all", np.inf))
                found = {
                    name: count(rows, name, most[name], top, whole.get(name, np.inf))
                    for name in names
                } | {"all": top}
                if place is None:
                    whole = found
                else:
                    part = every[place]
                    part.counts[column][row] = [found[name] for name in part.groups]


def _places(
    rows: list[NDArray[np.bool_]],
) -> Iterator[tuple[int | None, list[NDArray[np.bool_]]]]:
    """Rows of all sites together (None), and of each site alone."""
    yield None, rows
    for i in range(len(rows)):
        yield i, [row if i == j else np.zeros_like(row) for j, row in enumerate(rows)]


def _hidden_counts(
    cells: NDArray[np.float64], hidden_sizes: NDArray[np.bool_], min_count: int
) -> NDArray[np.bool_]:
    """Which counts of a variable may not be shown, beside the sizes that show.

    Parameters
    ----------
    cells : (…, rows + 1, groups + 1)
        The last row has the sizes of the groups, the last group is all of them. With several
        sites there is one such table for each and, last, one for all sites together.
    hidden_sizes : (…, groups + 1)
    min_count : int
    """
    small, known = is_small(cells, min_count), np.zeros(cells.shape, dtype=bool)
    small[..., -1, :], known[..., -1, :] = hidden_sizes, ~hidden_sizes
    return hidden_grid(cells, min_count, small, known=known)[..., :-1, :]


def _summary(values: pd.Series, continuous: str) -> str:
    known = values.dropna()
    if not len(known):
        return "–"
    if continuous == "mean":
        spread = f"{known.std():.1f}" if len(known) > 1 else "–"
        return f"{known.mean():.1f} ({spread})"
    low, middle, high = known.astype(float).quantile([0.25, 0.5, 0.75])
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def _count(counts: NDArray[Any], hidden: NDArray[np.bool_], i: int, total: float | None) -> str:
    """A count and its share of a total; no share of a total that is hidden."""
    if hidden[i]:
        return HIDDEN
    count = f"{counts[i]:,.0f}"
    if total is None:
        return count
    return f"{count} ({100 * counts[i] / total:.1f})" if total else f"{count} (–)"


def ordered(values: Iterable[Any]) -> list[Any]:
    unique = list(dict.fromkeys(values))
    try:
        return sorted(unique)
    except TypeError:
        return sorted(unique, key=str)
