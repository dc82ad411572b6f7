"""The numbers of Table 1 at one site, from its patients: tables that can be put together later."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError, option
from mmlca.sequences.checks import looks_like_dates
from mmlca.tables.disclosure import Rounding, is_small
from mmlca.tables.settings import TableOneSettings

SIZE, LEVEL, KNOWN, MISSING = "size", "level", "known", "missing"
"""What is counted: patients, those of a level, those with any value and those without one."""

SUMMARIES = ("mean", "sd", "low", "median", "high")
P_STEPS = (0.001, 0.01, 0.05)
N_PERMUTATIONS = 9_999
_SMALL_EXPECTED = 5  # with smaller expected counts the chi-squared distribution is a poor guide
_MAX_LEVELS = 30

Floats = NDArray[np.float64]
Tables = dict[str, pd.DataFrame]
Kind = Literal["whole", "number", "text"]


class Values(NamedTuple):
    """The values of a variable at a site.

    `kind` is "whole" or "number" (with decimals, or with missing values) or "text", and None where
    no patient has a value of a text. `levels` are the categories in order, as texts; None for a
    number with more than two different values.
    """

    kind: Kind | None
    levels: tuple[str, ...] | None


def site_tables(
    frame: pd.DataFrame,
    cluster: NDArray[Any],
    settings: TableOneSettings,
    min_count: int = 0,
    rounding: Rounding | None = None,
) -> Tables:
    """The numbers of Table 1 of one site: patients (a row each, by id) and the cluster of each.

    With a `rounding` all counts are rounded, levels whose count becomes 0 and means of fewer than
    `min_count` patients are left out, and comparisons have few digits.

    Returns
    -------
    dict
        variables : `variable`, `kind`, `continuous`; see `Values`
        counts : `variable`, `row` (`SIZE` of no variable, `LEVEL`, `KNOWN` or `MISSING`), `level`,
        `group` (None: all patients), `count`
        summaries : `variable`, `group`, `mean`, `sd`, `low`, `median`, `high` (quartiles)
        comparisons : `variable`, `row` (`LEVEL` or `KNOWN`), `comparison`, `value`, `permuted`.
        A rounded p-value is the smallest of 0.001, 0.01, 0.05 and 1 that is larger.

    Examples
    --------
    >>> frame = pd.DataFrame({"sex": list("FFM")}, index=[1, 2, 3])
    >>> counts = site_tables(frame, np.array([1, 1, 2]), TableOneSettings())["counts"]
    >>> counts.loc[counts["level"] == "F", "count"].tolist()
    [2.0, 0.0, 2.0]
    """
    groups: dict[Any, NDArray[np.bool_]] = {name: cluster == name for name in ordered(cluster)}
    groups[None] = np.ones(len(frame), dtype=bool)
    values = {c: values_of(frame[c]) for c in chosen_columns(frame, settings.variables)}
    sizes, counts = _counts(frame, values, groups, rounding)
    summaries, comparisons = [], []
    for column, (kind, levels) in values.items():
        numbers = frame[column]
        clusters = [numbers[members].dropna() for g, members in groups.items() if g is not None]
        samples = [sample for sample in clusters if len(sample)]
        if kind in ("whole", "number"):
            summaries += _summaries(numbers, groups, min_count, rounding is not None)
            comparisons += _comparisons(column, samples, None, settings)
        if levels is not None:
            comparisons += _comparisons(column, samples, levels, settings)
    compared = pd.DataFrame(
        comparisons, columns=["variable", "row", "comparison", "value", "permuted"]
    )
    if rounding is not None:
        compared["value"] = [
            coarse(*pair) for pair in zip(compared["comparison"], compared["value"], strict=True)
        ]
    kinds = [(column, part.kind, part.levels is None) for column, part in values.items()]
    return {
        "variables": pd.DataFrame(kinds, columns=["variable", "kind", "continuous"]),
        "counts": _of_groups([*sizes, *counts], ["variable", "row", "level", "group"], ["count"]),
        "summaries": _of_groups(summaries, ["variable", "group"], SUMMARIES),
        "comparisons": compared,
    }


def _of_groups(
    rows: Sequence[tuple[Any, ...]], keys: Sequence[str], numbers: Sequence[str]
) -> pd.DataFrame:
    """A table whose groups stay what they are, beside None for all patients."""
    table = pd.DataFrame(rows, columns=[*keys, *numbers], dtype=object)
    return table.astype(dict.fromkeys(numbers, float))


def chosen_columns(
    frame: pd.DataFrame, chosen: Sequence[str] | Mapping[str, str] | None
) -> list[Any]:
    """The columns that were asked for, as far as there are such; default: all but dates."""
    if chosen is not None:
        return [column for column in chosen if column in frame]
    return [column for column in frame if frame[column].dtype.kind not in "mM"]


def values_of(values: pd.Series) -> Values:
    """Of which kind a column is, and its categories in order."""
    categories = isinstance(values.dtype, pd.CategoricalDtype)
    levels = values.cat.categories if categories else values.dropna().unique()
    is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    kind: Kind | None = "text" if len(levels) else None
    if is_number and not categories:
        kind = "whole" if pd.api.types.is_integer_dtype(values) else "number"
        if len(levels) > 2:
            return Values(kind, None)
    check_levels(values.name, levels)
    order = levels if categories else ordered(np.asarray(levels, dtype=object))
    return Values(kind, tuple(str(level) for level in order))


def check_levels(name: Any, levels: Collection[Any]) -> None:
    """Refuse a variable with too many categories."""
    if len(levels) <= _MAX_LEVELS:
        return
    advice = "group them"
    if looks_like_dates(np.asarray(levels, dtype=object)):
        named = option("patients_columns", {"birth_date": str(name)})
        advice = f"if they are dates of birth, death or the last contact, say so, as in {named}"
    raise InputError(
        f"{name!r} of the patients' table has {len(levels):,} different values; "
        f"{advice}; or list the columns of Table 1, without it, with {option('variables')}."
    )


def ordered(values: Iterable[Any]) -> list[Any]:
    unique = list(dict.fromkeys(values))
    try:
        return sorted(unique)
    except TypeError:
        return sorted(unique, key=str)


# --- counts -----------------------------------------------------------------------------


def _counts(
    frame: pd.DataFrame,
    values: Mapping[Any, Values],
    groups: Mapping[Any, NDArray[np.bool_]],
    rounding: Rounding | None,
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The sizes of the groups, and the counts of all rows of all variables."""

    def count(members: NDArray[np.bool_], *totals: float) -> float:
        """Patients, rounded if all are: to no more than the totals that they are part of."""
        if rounding is None:
            return float(members.sum())
        ids = frame.index[members]
        return rounding.part(len(ids), rounding.key_of(ids), np.inf, *totals)

    size = {group: count(members) for group, members in groups.items()}
    sizes = [(None, SIZE, None, group, n) for group, n in size.items()]
    counts = []
    for column, part in values.items():
        for row, level, members in _rows(frame[column], part):
            most = count(members, size[None])
            if rounding is not None and row == LEVEL and not most:
                continue
            for group, inside in groups.items():
                n = most if group is None else count(members & inside, size[group], most)
                counts.append((column, row, level, group, n))
    return sizes, counts


def _rows(column: pd.Series, values: Values) -> list[tuple[str, str | None, NDArray[np.bool_]]]:
    """Who is in each row of a variable."""
    rows: list[tuple[str, str | None, pd.Series]] = []
    if values.levels is not None:
        texts = column.astype(object).map(str, na_action="ignore")
        rows += [(LEVEL, level, texts == level) for level in values.levels]
    rows += [(KNOWN, None, column.notna()), (MISSING, None, column.isna())]
    return [(row, level, members.to_numpy(bool, na_value=False)) for row, level, members in rows]


# --- means, quartiles and comparisons -----------------------------------------------------


def _summaries(
    values: pd.Series,
    groups: Mapping[Any, NDArray[np.bool_]],
    min_count: int,
    rounded: bool,
) -> list[tuple[Any, ...]]:
    rows = []
    for group, members in groups.items():
        known = values[members].dropna().astype(float)
        numbers = [np.nan] * len(SUMMARIES)
        if len(known) and not (rounded and is_small(len(known), min_count)):
            quartiles = known.quantile([0.25, 0.5, 0.75])
            numbers = [float(x) for x in (known.mean(), known.std(), *quartiles)]
        if rounded:  # as many digits as Table 1 shows
            numbers = [round(x, 1) for x in numbers]
        rows.append((values.name, group, *numbers))
    return rows


def _comparisons(
    column: Any,
    samples: list[pd.Series],
    levels: Sequence[str] | None,
    settings: TableOneSettings,
) -> list[tuple[Any, ...]]:
    """The comparisons of the clusters that the study wants, of a number or of its levels."""
    rows: list[tuple[Any, ...]] = []
    for name in settings.columns:
        if name == "all" or len(samples) < 2:
            continue
        permuted = False
        if levels is None:
            numbers = [sample.to_numpy(float) for sample in samples]
            value = smd(numbers) if name == "smd" else p_continuous(numbers, settings.continuous)
        else:
            texts = [sample.astype(object).map(str) for sample in samples]
            table = np.array([[(t == level).sum() for level in levels] for t in texts], float)
            table = table[:, table.sum(axis=0) > 0]
            value, permuted = (
                (smd_categories(table), False) if name == "smd" else p_categories(table)
            )
        rows.append((column, KNOWN if levels is None else LEVEL, name, value, permuted))
    return rows


# --- how much groups differ ---------------------------------------------------------------


def p_continuous(samples: list[Floats], continuous: str) -> float:
    """Analysis of variance for "mean", Kruskal–Wallis for "median"; NaN if nothing varies."""
    from scipy import stats

    pooled = np.concatenate(samples)
    if continuous == "median":
        return float(stats.kruskal(*samples).pvalue) if np.ptp(pooled) else float("nan")
    within = sum(float(((s - s.mean()) ** 2).sum()) for s in samples)
    between = sum(len(s) * float((s.mean() - pooled.mean()) ** 2) for s in samples)
    df = len(pooled) - len(samples)
    if df < 1 or within == 0:
        return float("nan")
    return float(stats.f.sf(between / (len(samples) - 1) / (within / df), len(samples) - 1, df))


def p_categories(table: Floats) -> tuple[float, bool]:
    r"""The p-value of Pearson's :math:`\chi^2` of groups × levels, and if it is by permutation.

    Where an expected count is below 5, the statistic is compared with those of 9,999 random tables
    with the same margins, :math:`p = (1 + \#\{\chi^2_r \ge \chi^2\}) / (1 + 9999)`. The same
    table always gives the same p-value.

    >>> p, permuted = p_categories(np.array([[4.0, 1.0], [0.0, 5.0]]))  # exact: 12 / 252
    >>> round(p, 2), permuted
    (0.05, True)
    """
    from scipy import stats

    if table.shape[1] < 2:
        return float("nan"), False
    test = stats.chi2_contingency(table, correction=False)
    if test.expected_freq.min() >= _SMALL_EXPECTED:
        return float(test.pvalue), False
    margins = (table.sum(axis=axis).astype(int) for axis in (1, 0))
    random = stats.random_table(*margins).rvs(N_PERMUTATIONS, random_state=0)
    statistic = ((random - test.expected_freq) ** 2 / test.expected_freq).sum(axis=(1, 2))
    n_as_large = int((statistic >= test.statistic * (1 - 1e-9)).sum())
    return (1 + n_as_large) / (1 + N_PERMUTATIONS), True


def smd(samples: list[Floats]) -> float:
    """Standardised mean difference, averaged over all pairs of groups; NaN without spread."""
    pairs = []
    for a, b in itertools.combinations(samples, 2):
        if min(len(a), len(b)) < 2:
            return float("nan")
        spread = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        if spread == 0:
            return float("nan")
        pairs.append(abs(a.mean() - b.mean()) / spread)
    return float(np.mean(pairs))


def smd_categories(table: Floats) -> float:
    """Mahalanobis distance of the shares of all levels but the first (Yang and Dalton 2012)."""
    pairs = []
    for a, b in itertools.combinations(table / table.sum(axis=1, keepdims=True), 2):
        spread = sum(np.diag(p[1:]) - np.outer(p[1:], p[1:]) for p in (a, b)) / 2
        gap = (a - b)[1:]
        inverse = np.linalg.pinv(spread)
        if not np.allclose(spread @ inverse @ gap, gap):  # no spread where they differ
            return float("nan")
        pairs.append(np.sqrt(max(float(gap @ inverse @ gap), 0.0)))
    return float(np.mean(pairs))


def coarse(comparison: str, value: float) -> float:
    """A comparison with few digits."""
    if np.isnan(value) or comparison == "smd":
        return round(value, 1)
    return next((p for p in P_STEPS if value < p), 1.0)
