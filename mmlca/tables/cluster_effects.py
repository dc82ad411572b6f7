"""Covariates and outcomes of clusters: at a site, of all sites together, and what may be shown.

The memberships of an ensemble's clusters come from `mmlca.tables.shared_chains`;
`mmlca.three_step` takes them with the clusters as the assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from font.errors import InputError
from font.probabilities import PRIOR_OF_FITS, PRIOR_OF_MEMBERSHIPS, probabilities
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.outcomes import (
    Z95,
    Correction,
    Row,
    ThreeStep,
    design,
    intervals,
    read_outcome,
    three_step,
    wald_tests,
)
from mmlca.model.params import AnyParams
from mmlca.sequences.forms import PLAIN, Form
from mmlca.sequences.type import Sequences
from mmlca.tables.disclosure import (
    Rounding,
    few_digits,
    fewest_patients,
    hidden_parts,
    hide_rows,
    hides,
    is_small,
)
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.shared_chains import cluster_memberships, open_cells

Floats = NDArray[np.float64]
INTERCEPT = "intercept"
_DIGITS = 3
_FEWEST = 2  # patients that a third step needs in a class


# --- covariates inside the model ------------------------------------------------------------


class OneStep(NamedTuple):
    """Effects of covariates estimated together with the chains.

    `table`: `class`, `term`, `estimate`, `se`, `low`, `high`, log-odds against the first class;
    `covariance` of its rows.
    """

    table: pd.DataFrame
    covariance: Floats


def one_step_effects(
    sequences: Sequences,
    covariates: pd.DataFrame,
    clusters: pd.Series,
    chains: AnyParams,
    labels: Sequence[Hashable],
    *,
    prior: float = PRIOR_OF_FITS,
) -> OneStep:
    """Effects of covariates on membership, with the model estimated anew from the clusters' chains.

    The mixture is fitted to the site's patients with the covariates (by id) in it, in one run from
    the `chains` of the clusters, which are in the order of `labels`, the first the reference; see
    `cluster_chains`. Its classes are then paired with the `clusters` (by id) by the patients they
    share. Patients who lack a covariate are left out.
    """
    start = open_cells(chains, sequences)
    form = start.form._asdict()
    model = MixtureMarkov(len(labels), init=start, prior=prior, missing="drop", **form)
    model.fit(sequences, covariates=covariates)
    paired = clusters.reindex(model.posterior_["id"])
    overlap = np.zeros((len(labels), len(labels)))
    np.add.at(overlap, (pd.Index(labels).get_indexer(paired), model.labels_), 1.0)
    order = linear_sum_assignment(-overlap)[1]  # the class that corresponds to each cluster
    terms = list(model.coefficients_.index)
    spread = model.coefficient_covariance(sequences, covariates).to_numpy()
    # log-odds against the class of the first cluster: differences of those against class 1
    pick = (np.eye(len(labels))[order[1:]] - np.eye(len(labels))[order[0]])[:, 1:]
    change = np.kron(pick, np.eye(len(terms)))
    estimate = change @ model.coefficients_.to_numpy()[:, 1:].T.ravel()
    covariance = change @ spread @ change.T
    se = np.sqrt(np.diagonal(covariance))
    table = pd.DataFrame(
        {
            "class": np.repeat(np.array(labels[1:], dtype=object), len(terms)),
            "term": [INTERCEPT, *terms[1:]] * (len(labels) - 1),
            "estimate": estimate,
            "se": se,
            "low": estimate - Z95 * se,
            "high": estimate + Z95 * se,
        }
    )
    return OneStep(table, covariance)


# --- after classification, at a site ---------------------------------------------------------


class Members(NamedTuple):
    """The clusters of a site's patients, and how probable each is.

    `clusters`: Series by id, the number of each patient's cluster; `posterior`: DataFrame by id,
    the probability of each cluster, or the model whose classes they are, with its `sequences`.
    """

    clusters: pd.Series
    posterior: pd.DataFrame | MixtureMarkov
    sequences: Sequences | None = None


def site_members(sequences: Sequences, clusters: pd.Series, form: Form = PLAIN) -> Members:
    """The clusters of a site's patients, with the probabilities under chains of this site.

    The chains are those of the mixture that EM reaches from the site's own clusters.
    """
    posterior = cluster_memberships({"": sequences}, {"": clusters}, form)[""]
    return Members(clusters, posterior)


def third_step(
    members: Members,
    fewest: int,
    correction: Correction,
    outcome: pd.Series | None = None,
    covariates: pd.DataFrame | None = None,
) -> ThreeStep:
    """`mmlca.three_step` at a site, for clusters with enough patients whose values are known.

    Clusters with fewer than `fewest` patients, at least 2, are left out with their patients; not
    those that are the classes of a model.
    """
    labels = members.clusters
    if isinstance(members.posterior, MixtureMarkov):
        data = members.sequences
        return three_step(members.posterior, outcome, covariates, correction, sequences=data)
    known = pd.Series(True, labels.index)
    for values in (outcome, covariates):
        if values is not None:
            here = values.reindex(labels.index).notna()
            known &= here if isinstance(here, pd.Series) else here.all(axis=1)
    sizes, needed = labels[known].value_counts(), fewest_patients(fewest, _FEWEST)
    kept = sorted(sizes.index[sizes >= needed])
    if len(kept) < 2:
        raise InputError(f"fewer than two clusters have {needed} patients whose values are known.")
    mine = labels.isin(kept)
    p = probabilities(members.posterior.loc[mine, kept].to_numpy(), PRIOR_OF_MEMBERSHIPS)
    return three_step(
        pd.DataFrame(p, labels.index[mine], kept),
        None if outcome is None else outcome.reindex(labels.index[mine]),
        None if covariates is None else covariates.reindex(labels.index[mine]),
        correction,
        assignment=labels[mine],
    )


def site_effects(
    members: Members, covariates: pd.DataFrame, min_count: int, correction: Correction = "ML"
) -> pd.DataFrame:
    """Effects of covariates on membership in the clusters of a site, against cluster 1.

    `class`, `term`, `estimate` and `se`; effects on which fewer than `min_count` patients have a
    bearing are missing, see `hide_effects`. Patients who lack a covariate are left out.
    """
    found = third_step(members, min_count, correction, covariates=covariates)
    if found.errors.index[0] != 1:
        raise InputError("too few patients of cluster 1 have covariates to compare others with it.")
    table = pd.DataFrame(found)[["class", "term", "estimate", "se"]]
    return hide_effects(table, covariates, members.clusters, 1, min_count)


# --- effects that may be shown --------------------------------------------------------------


def support(columns: Floats) -> Floats:
    """The fewest patients that contribute to each column (n, q) of covariates.

    These are the patients with another value than the most frequent one, those with that value in
    a column of two values, or the effective number (Σ|x − mean|)² / Σ(x − mean)² where a few
    extreme values carry the column.

    >>> support(np.array([[0.0], [0.0], [0.0], [1.0]])).tolist()
    [1.0]
    """
    fewest = []
    for column in columns.T:
        _, counts = np.unique(column, return_counts=True)
        parts = [len(column) - counts.max(initial=0)]
        if len(counts) == 2:
            parts.append(counts.min())
        away = np.abs(column - column.mean()) if len(column) else column
        if away.any():
            parts.append(away.sum() ** 2 / (away**2).sum())
        fewest.append(float(min(parts)))
    return np.array(fewest)


def hide_effects(
    effects: pd.DataFrame,
    covariates: pd.DataFrame,
    clusters: pd.Series,
    reference: Hashable,
    min_count: int,
) -> pd.DataFrame:
    """Effects of covariates on membership without those to which few patients contribute.

    An effect, as `mmlca.three_step` gives it for these covariates, compares a class with the
    `reference`. It is blank where one of the two has few patients, or few that contribute to the
    column of the covariates, see `support`.
    """
    terms, x = design(covariates, len(covariates), covariates.index)
    known = ~np.isnan(x).any(axis=1)
    label = clusters.reindex(covariates.index).to_numpy()
    fewest = {
        group: dict(zip(terms, support(x[known & (label == group)]), strict=True))
        for group in {reference, *effects["class"]}
    }
    sizes = {group: int((known & (label == group)).sum()) for group in fewest}
    rests = [
        min(fewest[group].get(row["term"], sizes[group]) for group in (row["class"], reference))
        for row in effects.to_dict("records")
    ]
    hidden = is_small(rests, min_count) | (hides(min_count) & (np.array(rests) < 1))
    return hide_rows(effects, ["class", "term"], hidden)


ERRORS = np.array(
    [
        float(f"{digits}e{power}")
        for power in range(-9, 10)
        for digits in (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
    ]
)
"""The standard errors that rounded effects may have: twelve for each power of ten."""
_ADDED = 6 / 5  # rounding at random to multiples of s adds s²/6: 6/5 of a variance has room for it


def rounded_effects(effects: pd.DataFrame, uniform: Floats) -> pd.DataFrame:
    """Effects at random rounded to whole standard errors, and these to the steps of `ERRORS`.

    Both are right on average, and the errors include what rounding adds: they are larger by 10 %.
    The intercepts are left out, and the effects of a class are blank if one of them is. `uniform`
    (rows, 2) are random numbers: of each effect, and of its error.

    Notes
    -----
    Someone who knows the clusters and covariates of all patients, and of one patient all but the
    sex, finds that out from the effects with the areas under the curve below (three clusters, age
    and sex, the best test, means of 24 patients). Where numbers were rounded to the nearest
    (coefficients to a power of ten of at most half a standard error, standard errors to two
    digits) and correlations left too, to two decimals, they were different for the other sex in
    the shares of cases in the last row, and the sex could be read off with certainty.

    ===================================== ===== ===== ===== =====
    patients                              120   300   600   2,000
    ===================================== ===== ===== ===== =====
    area under the curve                  0.66  0.58  0.58  0.54
    rounded to the nearest: read exactly  1.00  0.97  0.90  0.90
    ===================================== ===== ===== ===== =====
    """
    slopes = (effects["term"] != INTERCEPT).to_numpy()
    table, draws = effects[slopes].reset_index(drop=True), uniform[slopes]
    se = np.sqrt(_ADDED) * table["se"].to_numpy(float)
    few = ~((se > ERRORS[0]) & (se < ERRORS[-1]))
    blank = pd.Series(few).groupby(table["class"].to_numpy()).transform("any").to_numpy()
    place = np.clip(np.searchsorted(ERRORS, se, side="right") - 1, 0, len(ERRORS) - 2)
    low, high = ERRORS[place], ERRORS[place + 1]
    errors = np.where(draws[:, 1] < (se - low) / (high - low), high, low)
    multiples = table["estimate"].to_numpy(float) / errors
    multiples = np.floor(multiples) + (draws[:, 0] < multiples - np.floor(multiples))
    values = [float(f"{value:.10g}") for value in multiples * errors]
    return hide_rows(table.assign(estimate=values, se=errors), ["class", "term"], blank)


# --- outcomes at a site ---------------------------------------------------------------------


class Outcome(NamedTuple):
    """An outcome of the clusters at a site.

    `table`: `class`, `level` (a category; None: the mean of numbers), `estimate`, `patients` (with
    a value) and `cases` (of these, in the category; NaN for means), with the same levels in each
    class; `covariance` of its rows, NaN for those without an estimate.
    """

    table: pd.DataFrame
    covariance: Floats


def site_outcome(
    members: Members, outcome: pd.Series, fewest: int, correction: Correction
) -> Outcome:
    """An outcome (by id) by cluster at a site, in three steps.

    Clusters with fewer than `fewest` patients have no estimate; nor has any if there is no
    solution.
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


# --- outcomes of all sites together ---------------------------------------------------------


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
    sites are of all patients. Sites without an estimate of a class do not contribute to it. `names`
    are those of the classes.
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
    frame = frame[shown].reset_index(drop=True)
    numbers = (frame[name].to_numpy(float) for name in ("estimate", "se", "patients"))
    estimates, errors, patients = numbers
    limits = intervals(estimates, errors, np.full(len(frame), not continuous), patients)
    for place, name, values in zip((4, 5), ("low", "high"), limits, strict=True):
        frame.insert(place, name, values)
    return Outcomes(
        frame, tests, _differences(dict(zip(sites, grids, strict=True)), cells, names, shown)
    )


def _term(level: str | None) -> str:
    return "mean" if level is None else f"share of {level}"


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


# --- outcomes that may be shown -------------------------------------------------------------


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
    Numbers of patients are blank where few of the class lack the outcome: `sizes`, with and without
    the outcome, are known from elsewhere. `known_hidden` are (class, level) of numbers that another
    table hides: the class's share is blank if it is of that level, or of the only other one.

    The tables are those of `mmlca.three_step` or `pool_outcome`, or any tests with a `pair`.
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
