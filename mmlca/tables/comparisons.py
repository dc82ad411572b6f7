"""How much groups of patients differ: p-values and standardised mean differences."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

N_PERMUTATIONS = 9_999
_SMALL_EXPECTED = 5  # with smaller expected counts the chi-squared distribution is a poor guide

Floats = NDArray[np.float64]


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
    r"""The p-value of Pearson's :math:`\chi^2`, and whether it comes from permutations.

    Where an expected count is below 5, the statistic is compared with those of 9,999 random
    tables that have the same margins, as if the patients' groups were shuffled:

    .. math:: p = \frac{1 + \#\{\chi^2_r \ge \chi^2\}}{1 + 9999}.

    The same table always gives the same p-value.

    Parameters
    ----------
    table : (groups, levels), without empty rows and columns

    Examples
    --------
    >>> p_categories(np.array([[30.0, 20.0], [20.0, 30.0]]))[1]
    False
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
