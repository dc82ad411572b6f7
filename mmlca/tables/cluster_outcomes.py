"""Outcomes of clusters: the estimates of a site, those of all sites together, and small numbers."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.model.outcomes import Correction, Row, intervals, read_outcome, wald_tests
from mmlca.tables.cluster_effects import Members, third_step
from mmlca.tables.disclosure import Rounding, few_digits, hidden_parts, hide_rows, is_small
from mmlca.tables.pooling import inverse_variance

Floats = NDArray[np.float64]
_DIGITS = 3


class Outcome(NamedTuple):
    """An outcome of the clusters at a site.

    `table`: `class`, `level` (a category; None: the mean of numbers), `estimate`, `patients` (with
    a value) and `cases` (of these, in the category; NaN for means), with the same levels in each
    class; `covariance` of its rows, NaN for those without an estimate.
    """

    table: pd.DataFrame
    covariance: Floats


# --- at a site ------------------------------------------------------------------------------


def site_outcome(
    members: Members, outcome: pd.Series, fewest: int, correction: Correction
) -> Outcome:
    """An outcome by cluster at a site, in three steps.

    Parameters
    ----------
    members : Members
    outcome : Series by id
    fewest : int
        Clusters with fewer patients have no estimate; nor has any if there is no solution.
    correction : as in `mmlca.three_step`
    """
    values = outcome.reindex(members.clusters.index)
    levels = _levels(values)
    table = _counts(members.clusters, values, levels)
    if levels is not None and len(levels) == 1:  # everybody is a case
        return Outcome(table.assign(estimate=1.0), np.zeros((len(table), len(table))))
    covariance = np.full((len(table), len(table)), np.nan)
    try:
        found = third_step(members, fewest, correction, outcome=values)
    except (InputError, np.linalg.LinAlgError):  # too few patients, or no finite solution
        return Outcome(table, covariance)
    theta, spread = found["estimate"].to_numpy(float), np.asarray(found.covariance)
    classes = list(found["class"].unique())
    rows = table["class"].isin(classes).to_numpy()
    if levels is not None:
        here = _levels(values[members.clusters.isin(classes)]) or []
        m = len(here) - 1  # the share of the first category is what the others leave
        whole = np.vstack([np.zeros(m), np.zeros((len(levels) - 1, m))])
        constant = np.zeros(len(levels))
        constant[levels.index(here[0])] = 1.0
        whole[levels.index(here[0])] = -1.0
        for j, level in enumerate(here[1:]):
            whole[levels.index(level), j] = 1.0
        change = np.kron(np.eye(len(classes)), whole)
        theta = np.tile(constant, len(classes)) + change @ theta
        spread = change @ spread @ change.T
    table.loc[rows, "estimate"] = theta
    covariance[np.ix_(rows, rows)] = spread
    return Outcome(table, covariance)


def _levels(values: pd.Series) -> list[Any] | None:
    """The categories in their order; None for numbers."""
    seen = values.dropna()
    if seen.nunique() == 1:
        return [seen.iloc[0]]
    found = read_outcome(values, len(values), values.index)
    return None if found.continuous else found.levels


def _counts(clusters: pd.Series, values: pd.Series, levels: list[Any] | None) -> pd.DataFrame:
    rows = []
    for group in sorted(clusters.unique()):
        mine = values[(clusters == group).to_numpy()].dropna()
        row = {"class": group, "estimate": np.nan, "patients": float(len(mine))}
        for level in levels or [None]:
            cases = np.nan if level is None else float((mine == level).sum())
            rows.append({**row, "level": _text(level), "cases": cases})
    return pd.DataFrame(rows)[["class", "level", "estimate", "patients", "cases"]]


def _text(level: Any) -> str | None:
    """A category in words; a number is the same with and without decimals."""
    if level is None or isinstance(level, (bool, np.bool_)):
        return None if level is None else str(bool(level))
    return f"{level:g}" if isinstance(level, (int, float, np.number)) else str(level)


def rounded_outcome(
    found: Outcome, members: Members, outcome: pd.Series, site: str, rounding: Rounding
) -> Outcome:
    """The same as it may leave the site: rounded numbers of patients, and three digits.

    A class has no estimates if few of its patients have the outcome, or are in one of its
    categories.
    """
    table, unit = found.table, rounding.unit
    values = outcome.reindex(members.clusters.index)
    patients, cases = [], []
    for row in table.itertuples(index=False):
        group = row[0]
        patients.append(rounding(row.patients, site, group))
        if row.level is None:
            cases.append(np.nan)
            continue
        ill = (values.map(_text, na_action="ignore") == row.level).to_numpy()
        mine = ill & (members.clusters == group).to_numpy()
        whole = rounding.named(ill.sum(), rounding.key_of(values.index[ill]))
        key = rounding.key_of(values.index[mine])
        cases.append(rounding.part(mine.sum(), key, patients[-1], whole))
    few = pd.Series(is_small(table[["patients", "cases"]].fillna(0), unit).any(axis=1))
    few |= table["patients"] == 0
    hidden = few.groupby(table["class"]).transform("any").to_numpy()
    estimate = np.where(hidden, np.nan, few_digits(table["estimate"], _DIGITS))
    covariance = few_digits(found.covariance, _DIGITS)
    covariance[hidden] = covariance[:, hidden] = np.nan
    table = table.assign(estimate=estimate, patients=patients, cases=cases)
    return Outcome(table, covariance)


# --- all sites together -----------------------------------------------------------------------


class Outcomes(NamedTuple):
    """An outcome by class at all sites.

    `table`: `class`, `term` ("mean" or "share of …", but for the first category), `estimate`, `se`,
    `low`, `high`, `patients`, `cases`; `tests` as those of `mmlca.ThreeStep`; `differences` of each
    pair of classes within the sites, as `inverse_variance` pools them, empty for one site.
    """

    table: pd.DataFrame
    tests: pd.DataFrame
    differences: pd.DataFrame


def pool_outcome(sites: Mapping[str, Outcome], names: Mapping[Any, str]) -> Outcomes:
    """An outcome at all sites: means and shares of all patients, and the tests of these.

    The estimates of the sites are weighted by their patients in the class, so that those of all
    sites are of all patients. Sites without an estimate of a class do not contribute to it.

    Parameters
    ----------
    sites : {site: Outcome}
    names : {class: name}
    """
    continuous = any(part.table["level"].isna().any() for part in sites.values())
    sites = {
        site: part
        for site, part in sites.items()
        if bool(part.table["level"].isna().any()) == continuous
    }
    levels: list[str | None] = [None]
    if not continuous:
        levels = sorted({level for part in sites.values() for level in part.table["level"]})
    classes = [c for c in names if any((p.table["class"] == c).any() for p in sites.values())]
    cells = [(c, level) for c in classes for level in levels]
    grids = [_on_cells(part, cells, len(levels)) for part in sites.values()]
    weight = np.array([grid.patients * np.isfinite(grid.estimate) for grid in grids])
    total = weight.sum(axis=0)
    with np.errstate(invalid="ignore"):
        weight = weight / total
    estimate = sum(w * np.nan_to_num(g.estimate) for w, g in zip(weight, grids, strict=True))
    covariance = sum(
        np.outer(np.nan_to_num(w), np.nan_to_num(w)) * np.nan_to_num(g.covariance)
        for w, g in zip(weight, grids, strict=True)
    )
    estimate, covariance = np.asarray(estimate), np.asarray(covariance)
    frame = pd.DataFrame(
        {
            "class": [names[c] for c, _ in cells],
            "term": [_term(level) for _, level in cells],
            "estimate": np.where(total > 0, estimate, np.nan),
            "se": np.where(total > 0, np.sqrt(np.maximum(np.diag(covariance), 0.0)), np.nan),
            "patients": np.sum([grid.patients for grid in grids], axis=0),
            "cases": np.sum([grid.cases for grid in grids], axis=0),
        }
    )
    shown = np.array([continuous or len(levels) == 1 or level != levels[0] for _, level in cells])
    known = shown & (total > 0)
    rows = [Row(r["class"], r["term"], 0) for r in frame[known].to_dict("records")]
    tests = wald_tests(rows, frame["estimate"][known].to_numpy(), covariance[np.ix_(known, known)])
    frame = _with_intervals(frame[shown].reset_index(drop=True), not continuous)
    return Outcomes(
        frame, tests, _differences(dict(zip(sites, grids, strict=True)), cells, names, shown)
    )


def _term(level: str | None) -> str:
    return "mean" if level is None else f"share of {level}"


def _with_intervals(frame: pd.DataFrame, shares: bool) -> pd.DataFrame:
    estimate, se, patients = (frame[c].to_numpy(float) for c in ("estimate", "se", "patients"))
    low, high = intervals(estimate, se, np.full(len(frame), shares), patients)
    frame.insert(4, "low", low)
    frame.insert(5, "high", high)
    return frame


class _Cells(NamedTuple):
    """The estimates of a site for the classes and levels of all sites."""

    estimate: Floats
    patients: Floats
    cases: Floats
    covariance: Floats


def _on_cells(part: Outcome, cells: Sequence[tuple[Any, str | None]], n_levels: int) -> _Cells:
    """A category that nobody of a site has is one of none of its patients."""
    table = part.table
    place = {cell: i for i, cell in enumerate(zip(table["class"], table["level"], strict=True))}
    first = {c: i for (c, _), i in reversed(place.items())}
    n = len(cells)
    estimate, patients, cases = np.full(n, np.nan), np.zeros(n), np.zeros(n)
    covariance = np.zeros((n, n))
    found = {i: place[cell] for i, cell in enumerate(cells) if cell in place}
    for i, (c, _) in enumerate(cells):
        if c not in first:
            continue
        row = table.iloc[found.get(i, first[c])]
        patients[i] = row["patients"]
        estimate[i], cases[i] = row["estimate"], row["cases"]
        if i not in found:
            estimate[i], cases[i] = (0.0 if np.isfinite(row["estimate"]) else np.nan), 0.0
    at, source = list(found), list(found.values())
    covariance[np.ix_(at, at)] = part.covariance[np.ix_(source, source)]
    return _Cells(estimate, patients, cases, covariance)


def _differences(
    sites: Mapping[str, _Cells],
    cells: Sequence[tuple[Any, str | None]],
    names: Mapping[Any, str],
    shown: NDArray[np.bool_],
) -> pd.DataFrame:
    """Differences between classes within sites, pooled."""
    pairs = [
        (i, j)
        for i, j in combinations(range(len(cells)), 2)
        if shown[i] and cells[i][1] == cells[j][1]
    ]
    tables = {}
    for site, grid in sites.items():
        variance = [
            grid.covariance[i, i] + grid.covariance[j, j] - 2 * grid.covariance[i, j]
            for i, j in pairs
        ]
        tables[site] = pd.DataFrame(
            {
                "test": [f"{names[cells[j][0]]} − {names[cells[i][0]]}" for i, j in pairs],
                "pair": [(names[cells[i][0]], names[cells[j][0]]) for i, j in pairs],
                "term": [_term(cells[i][1]) for i, j in pairs],
                "estimate": [grid.estimate[j] - grid.estimate[i] for i, j in pairs],
                "se": np.sqrt(np.maximum(variance, 0.0)),
            }
        )
    pooled = inverse_variance(tables, ("test", "pair", "term"))
    return pooled if len(sites) > 1 else pooled.iloc[:0]


# --- small numbers --------------------------------------------------------------------------


def hide_outcomes(
    table: pd.DataFrame,
    tests: pd.DataFrame,
    sizes: Mapping[Hashable, float],
    min_count: int,
    known_hidden: Collection[tuple[str, str]] = (),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table and the tests of an outcome without what is based on few patients.

    An estimate is blank where few patients of the class have an outcome, or few are in one of its
    categories; then the differences from that class are blank too, since it would follow from them.
    Numbers of patients are blank where few of the class lack the outcome.

    Parameters
    ----------
    table, tests : DataFrame
        From `mmlca.three_step` or `pool_outcome`. The tests may be of any kind, with a `pair`.
    sizes : {class: patients, with and without the outcome}
        They are known from elsewhere.
    min_count : int
    known_hidden : (class, level) of numbers that another table hides
        The class's share is blank if it is of that level, or of the only other one.
    """
    seen = table.groupby("class", sort=False)["patients"].first()
    lacking = [n - seen.get(label, 0) for label, n in sizes.items()]
    known = dict(zip(sizes, ~hidden_parts(lacking, min_count)[0], strict=True))
    counted = table["class"].map(known).fillna(True).astype(bool)
    hidden = is_small(table["patients"], min_count)
    for _, rows in table[table["cases"].notna()].groupby("class", sort=False):
        first = rows["patients"].iloc[0] - rows["cases"].sum()
        parts, _ = hidden_parts([first, *rows["cases"]], min_count)
        hidden[rows.index] |= parts[1:] | (len(rows) == 1 and parts[0])
        elsewhere = {level for label, level in known_hidden if label == rows["class"].iloc[0]}
        terms = {f"share of {level}" for level in elsewhere}
        only = len(rows) == 1 and bool(elsewhere)
        hidden[rows.index] |= rows["term"].isin(terms).to_numpy() | only
    classes = set(table["class"][hidden])
    # where one category is hidden its differences are, and those of the others with them
    unsafe = [isinstance(pair, tuple) and bool(classes & set(pair)) for pair in tests["pair"]]
    shown = hide_rows(table, ["class", "term"], hidden)
    shown = shown.assign(**{name: shown[name].where(counted) for name in ("patients", "cases")})
    return shown, hide_rows(tests, ["test", "pair", "term"], unsafe).drop(columns="pair")
