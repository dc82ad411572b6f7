"""The numbers of Table 1 of all sites: put together, and which of them may be shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError, option
from mmlca.tables.disclosure import HIDDEN, hidden_grid, hidden_parts, is_small
from mmlca.tables.table_one_site import (
    KNOWN,
    LEVEL,
    MISSING,
    SIZE,
    SUMMARIES,
    Tables,
    Values,
    check_levels,
    ordered,
)

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Variable(NamedTuple):
    """A variable of Table 1: its label, its levels (None: continuous), and whether any is missing.

    Where a value is missing at any site, there is a row for missing values at all sites.
    """

    label: str
    levels: list[str] | None
    has_missing: bool

    def rows(self) -> list[tuple[str, str | None]]:
        """What is counted in each row: levels or known values, then missing ones."""
        rows: list[tuple[str, str | None]] = [(KNOWN, None)]
        if self.levels is not None:
            rows = [(LEVEL, level) for level in self.levels]
        return rows + [(MISSING, None)] * self.has_missing


# --- the variables of all sites -----------------------------------------------------------


def common_variables(
    sites: Mapping[str, Mapping[Any, Values]], chosen: Sequence[str] | Mapping[str, str] | None
) -> dict[Any, Values]:
    """The variables that any site has, with the levels of all sites."""
    known = list(dict.fromkeys(column for part in sites.values() for column in part))
    by_column = {
        column: {site: part[column] for site, part in sites.items() if column in part}
        for column in (known if chosen is None else chosen)
    }
    return {c: _common_values(c, parts) for c, parts in by_column.items() if parts}


def _common_values(column: Any, sites: Mapping[str, Values]) -> Values:
    """The kind and the levels of a variable at all sites."""
    text = [site for site, part in sites.items() if part.kind == "text"]
    numbers = [site for site, part in sites.items() if part.kind in ("whole", "number")]
    lists = [part.levels for part in sites.values() if part.levels is not None]
    every = list(dict.fromkeys(level for levels in lists for level in levels))
    if not text and numbers:
        decimals = any(sites[site].kind == "number" for site in numbers)
        number: type[float] = float if decimals else int
        levels = tuple(map(str, sorted({number(level) for level in every})))
        continuous = len(lists) < len(sites) or len(levels) > 2
        return Values("number" if decimals else "whole", None if continuous else levels)
    if len(lists) < len(sites):
        site = next(site for site in numbers if sites[site].levels is None)
        raise InputError(
            f"{column!r} of the patients' table is a number at {site} and a text at {text[0]}; "
            "write it alike at all sites; or list the columns of Table 1, without it, with "
            f"{option('variables')}."
        )
    check_levels(column, every)
    if all(list(levels) == sorted(levels) for levels in lists):
        every = sorted(every)
    return Values("text" if every else None, tuple(every))


def variables_of(
    sites: Mapping[str, Tables], chosen: Sequence[str] | Mapping[str, str] | None
) -> tuple[dict[Any, Variable], dict[str, Tables]]:
    """The variables of Table 1, and the tables of all sites with common levels of these."""
    own = {site: _values_at(tables) for site, tables in sites.items()}
    common = common_variables(own, chosen)
    labels = chosen if isinstance(chosen, Mapping) else {}
    decimals = [c for c, part in common.items() if part.kind == "number" and part.levels]
    variables, alike = {}, {}
    for site, tables in sites.items():
        counts = tables["counts"]
        rows = counts["variable"].isin(decimals) & (counts["row"] == LEVEL)
        levels = counts["level"].where(~rows, counts["level"][rows].map(lambda x: str(float(x))))
        alike[site] = tables | {"counts": counts.assign(level=levels)}
    for column, part in common.items():
        missing = False
        for tables in sites.values():
            mine = tables["counts"][tables["counts"]["variable"] == column]
            of_all = mine[(mine["row"] == MISSING) & mine["group"].isna()]
            missing |= mine.empty or bool((of_all["count"] > 0).any())
        label = labels.get(column, str(column).replace("_", " "))
        levels = None if part.levels is None else list(part.levels)
        variables[column] = Variable(label, levels, missing)
    return variables, alike


def _values_at(tables: Tables) -> dict[Any, Values]:
    counts, values = tables["counts"], {}
    levels = counts[counts["row"] == LEVEL].groupby("variable", sort=False)["level"]
    known = {column: tuple(dict.fromkeys(part)) for column, part in levels}
    for column, kind, continuous in tables["variables"].itertuples(index=False):
        values[column] = Values(kind, None if continuous else known.get(column, ()))
    return values


# --- the numbers of a site ----------------------------------------------------------------


@dataclass(eq=False)
class SiteNumbers:
    """The numbers of one site, or of all sites together.

    `groups` are the clusters and, last, None: all of them; `sizes` are theirs. `counts` of a
    variable are (rows, groups), by `Variable.rows`; `summaries` of a variable and group are means
    and quartiles by name; `comparisons` of a variable, `LEVEL` or `KNOWN`, and a name are a value,
    and whether it is permuted. `hidden_sizes` and `hidden` are masks like `sizes` and `counts`:
    what may not be shown.
    """

    groups: list[Any]
    sizes: Floats
    counts: dict[Any, Floats]
    summaries: dict[Any, dict[Any, dict[str, float]]]
    comparisons: dict[tuple[Any, str, str], tuple[float, bool]] = field(default_factory=dict)
    hidden_sizes: Mask = field(init=False)
    hidden: dict[Any, Mask] = field(init=False)

    def __post_init__(self) -> None:
        self.hidden_sizes = np.zeros(len(self.sizes), dtype=bool)
        self.hidden = {c: np.zeros(part.shape, dtype=bool) for c, part in self.counts.items()}

    def describe_size(self, k: int) -> str:
        """The size of a group and its share of all."""
        everyone = None if self.hidden_sizes[-1] else self.sizes[:-1].sum()
        if k == len(self.sizes) - 1:
            everyone = self.sizes[-1]
        return _count(self.sizes, self.hidden_sizes, k, everyone)

    def describe(self, column: Any, variable: Variable, k: int, continuous: str) -> list[str]:
        """The cells of a variable for one group."""
        counts, hidden = self.counts[column][:, k], self.hidden[column][:, k]
        has_missing = variable.has_missing
        if variable.levels is None:
            numbers = self.summaries.get(column, {}).get(self.groups[k])
            cells = [HIDDEN if hidden[0] else _summary(numbers, continuous)]
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


def read_site(tables: Tables, variables: Mapping[Any, Variable]) -> SiteNumbers:
    """The numbers of one site from its tables; a variable that it lacks is missing there."""
    columns = ("variable", "row", "level", "group", "count")
    rows = zip(*(tables["counts"][name] for name in columns), strict=True)
    numbers = {(v, row, level, _group(g)): float(n) for v, row, level, g, n in rows}
    groups = [group for _, row, _, group in numbers if row == SIZE]
    sizes = np.array([numbers[None, SIZE, None, group] for group in groups])
    lacking = set(variables) - set(tables["variables"]["variable"])
    counts = {
        column: np.array(
            [
                sizes
                if column in lacking and row == MISSING
                else [numbers.get((column, row, level, group), 0.0) for group in groups]
                for row, level in variable.rows()
            ]
        ).reshape(len(variable.rows()), len(groups))
        for column, variable in variables.items()
    }
    summaries: dict[Any, dict[Any, dict[str, float]]] = {}
    for row in tables["summaries"].to_dict("records"):
        summaries.setdefault(row["variable"], {})[_group(row["group"])] = row
    comparisons = {
        (column, row, name): (value, bool(permuted))
        for column, row, name, value, permuted in tables["comparisons"].itertuples(index=False)
    }
    return SiteNumbers(groups, sizes, counts, summaries, comparisons)


def _group(group: Any) -> Any:
    return None if pd.isna(group) else group


def all_groups(sites: Mapping[str, SiteNumbers]) -> list[Any]:
    """The groups that any site has and, last, None."""
    return [*ordered(g for part in sites.values() for g in part.groups if g is not None), None]


def pool_sites(sites: Mapping[str, SiteNumbers], variables: Mapping[Any, Variable]) -> SiteNumbers:
    r"""All sites together: sums of counts, and means and standard deviations of all patients.

    Of sites with n known values, mean m and standard deviation s,

    .. math:: M = \frac{\sum n m}{\sum n}, \qquad
        S^2 = \frac{\sum (n - 1) s^2 + \sum n (m - M)^2}{\sum n - 1}.

    Quartiles cannot be put together, and are missing.
    """
    groups = all_groups(sites)
    counts = {column: _layers(sites, groups, column)[-1] for column in variables}
    summaries = {
        column: {g: _pooled_summary(sites, column, g) for g in groups}
        for column, variable in variables.items()
        if variable.levels is None
    }
    return SiteNumbers(groups, _sizes(sites, groups)[-1], counts, summaries)


def _pooled_summary(sites: Mapping[str, SiteNumbers], column: Any, group: Any) -> dict[str, float]:
    parts = [
        (part.counts[column][0, part.groups.index(group)], part.summaries[column][group])
        for part in sites.values()
        if group in part.groups and column in part.summaries
    ]
    known = [(n, row["mean"], row["sd"]) for n, row in parts if n > 0 and not np.isnan(row["mean"])]
    summary = dict.fromkeys(SUMMARIES, np.nan)
    if known:
        n, mean, sd = np.array(known).T
        summary["mean"] = float(n @ mean / n.sum())
        squares = (n - 1) @ np.where(n > 1, sd, 0) ** 2 + n @ (mean - summary["mean"]) ** 2
        summary["sd"] = float(np.sqrt(squares / (n.sum() - 1))) if n.sum() > 1 else np.nan
    return summary


def _sizes(sites: Mapping[str, SiteNumbers], groups: list[Any]) -> Floats:
    """The sizes of the groups at each site and, last, at all sites together."""
    sizes = np.zeros((len(sites) + 1, len(groups)))
    for row, part in enumerate(sites.values()):
        sizes[row, _at(part, groups)] = part.sizes
    sizes[-1] = sizes[:-1].sum(axis=0)
    return sizes


def _layers(sites: Mapping[str, SiteNumbers], groups: list[Any], column: Any) -> Floats:
    """The counts of a variable at each site and, last, at all sites together."""
    (first, *_) = sites.values()
    layers = np.zeros((len(sites) + 1, len(first.counts[column]), len(groups)))
    for row, part in enumerate(sites.values()):
        layers[row][:, _at(part, groups)] = part.counts[column]
    layers[-1] = layers[:-1].sum(axis=0)
    return layers


def _at(part: SiteNumbers, groups: list[Any]) -> list[int]:
    return [groups.index(group) for group in part.groups]


# --- what may be shown --------------------------------------------------------------------


def hide_numbers(
    sites: Mapping[str, SiteNumbers],
    variables: Mapping[Any, Variable],
    min_count: int,
    together: Collection[str] = (),
    pooled: SiteNumbers | None = None,
) -> dict[str, pd.DataFrame]:
    """Decide what every site hides, and then what is hidden of all sites together.

    The sizes of the clusters at all sites together may be known from elsewhere, so that hidden
    sizes must not follow from those either. Which sizes show does not depend on the variables: it
    is the same in every table of the same clusters.

    The numbers of the columns `together` at all sites together are shown elsewhere; the result says
    for each of them which may not be shown, by level and group. `pooled` are the numbers of
    `pool_sites`, if they are shown beside the sites.
    """
    groups = all_groups(sites)
    sizes = _sizes(sites, groups)
    hidden_sizes = hidden_grid(sizes, min_count)
    for row, part in enumerate(sites.values()):
        part.hidden_sizes = hidden_sizes[row, _at(part, groups)]
    if pooled is not None:
        pooled.hidden_sizes = hidden_sizes[-1]
    masks = {}
    for column, variable in variables.items():
        layers = _layers(sites, groups, column)
        joint = column in together and variable.levels is not None
        if joint and len(sites) > 1:
            cells = np.concatenate([layers, sizes[:, None, :]], axis=1)
            mask = _hidden_counts(cells, hidden_sizes, min_count)
            for row, part in enumerate(sites.values()):
                part.hidden[column] = mask[row][:, _at(part, groups)]
        else:
            mask = np.zeros(layers.shape, dtype=bool)
            for row, part in enumerate(sites.values()):
                _hide_at_site(part, column, variable, min_count)
                mask[row][:, _at(part, groups)] = part.hidden[column]
            mask[-1] = mask[0]
            if pooled is not None:
                mask[-1] = _hidden_of_all(
                    layers, sizes, hidden_sizes, mask[:-1], variable, min_count
                )
        if pooled is not None:
            pooled.hidden[column] = mask[-1]
        if joint and variable.levels is not None:
            names = ["all" if group is None else group for group in groups]
            shown = mask[-1][: len(variable.levels)]
            masks[column] = pd.DataFrame(shown, list(variable.levels), names)
    return masks


def _hide_at_site(part: SiteNumbers, column: Any, variable: Variable, min_count: int) -> None:
    """Decide which numbers of a variable are hidden at a site; the sizes that show are known."""
    counts = part.counts[column]
    if variable.levels is None:  # the number of known values does not show
        clusters, everyone = hidden_parts(counts[:, :-1], min_count)
        part.hidden[column] = np.column_stack([clusters, everyone])
    else:
        cells = np.vstack([counts, part.sizes])
        part.hidden[column] = _hidden_counts(cells, part.hidden_sizes, min_count)


def _hidden_of_all(
    layers: Floats,
    sizes: Floats,
    hidden_sizes: Mask,
    hidden: Mask,
    variable: Variable,
    min_count: int,
) -> Mask:
    """Which numbers of all sites together may not be shown beside those that the sites show."""
    known = np.concatenate([~hidden, np.zeros((1, *hidden.shape[1:]), dtype=bool)])
    if variable.levels is not None:
        cells = np.concatenate([layers, sizes[:, None, :]], axis=1)
        of_all: Mask = _hidden_counts(cells, hidden_sizes, min_count, known)[-1]
        return of_all
    rows = range(layers.shape[1])
    masks = [hidden_grid(layers[:, row], min_count, known=known[:, row])[-1] for row in rows]
    return np.array(masks, dtype=bool)


def _hidden_counts(
    cells: Floats, hidden_sizes: Mask, min_count: int, known: Mask | None = None
) -> Mask:
    """Which counts of a variable may not be shown, beside the sizes that show.

    Of the `cells` (…, rows + 1, groups + 1) the last row has the sizes of the groups, and the last
    group is all of them. With several sites there is one such table for each and, last, one for all
    sites together. Counts that are `known` (…, rows, groups + 1) are shown in any case.
    """
    small, shown = is_small(cells, min_count), np.zeros(cells.shape, dtype=bool)
    if known is not None:
        shown[..., :-1, :] = known
    small[..., -1, :], shown[..., -1, :] = hidden_sizes, ~hidden_sizes
    hidden: Mask = hidden_grid(cells, min_count, small, known=shown)[..., :-1, :]
    return hidden


# --- as texts -------------------------------------------------------------------------------


def _summary(numbers: Mapping[str, float] | None, continuous: str) -> str:
    """A mean or a median as text; nothing for the median of all sites together."""
    if numbers is None or np.isnan(numbers["mean"]):
        return "–"
    if continuous == "mean":
        spread = "–" if np.isnan(numbers["sd"]) else f"{numbers['sd']:.1f}"
        return f"{numbers['mean']:.1f} ({spread})"
    if np.isnan(numbers["median"]):
        return ""
    return f"{numbers['median']:.1f} [{numbers['low']:.1f}, {numbers['high']:.1f}]"


def _count(counts: Floats, hidden: Mask, i: int, total: float | None) -> str:
    """A count and its share of a total; no share of a total that is hidden."""
    if hidden[i]:
        return HIDDEN
    count = f"{counts[i]:,.0f}"
    if total is None:
        return count
    return f"{count} ({100 * counts[i] / total:.1f})" if total else f"{count} (–)"
