"""The estimates of a third step as a table, and the tests between classes."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import listed
from font.errors import ReportWarning
from mmlca.model.outcome_inputs import Response
from mmlca.model.third_step import Floats, Logit, Membership, Part

Z95 = 1.959963984540054
_ROUNDING = 1e-9


class Row(NamedTuple):
    """One estimate: its place among the parameters, its class and term, and its category."""

    at: int
    label: Hashable
    term: str
    level: int = -1


def rows_of(
    part: Part,
    labels: Sequence[Hashable],
    terms: Sequence[str],
    outcome: Response | None,
    first: int,
) -> list[Row]:
    """What the parameters of a part are called; `first` is the place of its first one."""
    k, q = len(labels), len(terms)
    if isinstance(part, Membership):
        names = ["intercept", *terms]
        return [
            Row(first + c * len(names) + i, labels[c + 1], name)
            for c in range(k - 1)
            for i, name in enumerate(names)
        ]
    assert outcome is not None
    if outcome.continuous:
        slopes = [Row(first + k + i, "all", name) for i, name in enumerate(terms)]
        return [*(Row(first + c, labels[c], "mean") for c in range(k)), *slopes]
    m = len(outcome.levels) - 1
    if not isinstance(part, Logit):
        return [
            Row(first + c * m + j, labels[c], f"share of {outcome.levels[j + 1]}", j)
            for c in range(k)
            for j in range(m)
        ]
    several = m > 1
    return [
        Row(
            first + j * (k + q) + i,
            labels[i] if i < k else "all",
            (f"log-odds of {outcome.levels[j + 1]}" if i < k else terms[i - k])
            + (f", {outcome.levels[j + 1]}" if several and i >= k else ""),
            j if i < k else -1,
        )
        for j in range(m)
        for i in range(k + q)
    ]


def estimate_table(
    rows: Sequence[Row],
    theta: Floats,
    covariance: Floats,
    groups: NDArray[np.intp],
    labels: Sequence[Hashable],
    outcome: Response | None,
) -> pd.DataFrame:
    """class, term, estimate, se, low, high, patients and cases; `groups` are of those who count."""
    at = [row.at for row in rows]
    estimate = theta[at]
    se = np.sqrt(np.maximum(np.diag(covariance)[at], 0.0))
    place = {label: c for c, label in enumerate(labels)}
    counted = np.bincount(groups, minlength=len(labels))
    patients = [counted[place[r.label]] if r.label in place else len(groups) for r in rows]
    is_share = np.array([row.term.startswith("share of") for row in rows], dtype=bool)
    low, high = intervals(estimate, se, is_share, np.array(patients, dtype=float))
    beyond = is_share & ((estimate < -_ROUNDING) | (estimate > 1 + _ROUNDING))
    if beyond.any():
        names = [str(row.label) for row, bad in zip(rows, beyond, strict=True) if bad]
        warnings.warn(
            f"estimated shares of class {listed(list(dict.fromkeys(names)))} are not between 0 "
            "and 1, since the classes overlap or have few cases; their intervals are not reliable.",
            ReportWarning,
            stacklevel=3,
        )
    table = pd.DataFrame(
        {
            "class": [row.label for row in rows],
            "term": [row.term for row in rows],
            "estimate": estimate,
            "se": se,
            "low": low,
            "high": high,
            "patients": patients,
        }
    )
    table["cases"] = [_cases(row, groups, place, outcome) for row in rows]
    return table


def intervals(
    estimate: Floats, se: Floats, is_share: NDArray[np.bool_], patients: Floats
) -> tuple[Floats, Floats]:
    """95 % intervals of means, and of shares, which lie between 0 and 1.

    Those of shares are of logits; where nobody or everybody of the patients is a case, the limit is
    that of Clopper and Pearson, since the variance says nothing.
    """
    low, high = estimate - Z95 * se, estimate + Z95 * se
    inside = is_share & (estimate > _ROUNDING) & (estimate < 1 - _ROUNDING)
    logit = np.log(estimate[inside] / (1 - estimate[inside]))
    width = Z95 * se[inside] / (estimate[inside] * (1 - estimate[inside]))
    low[inside], high[inside] = _expit(logit - width), _expit(logit + width)
    edge = is_share & (np.minimum(np.abs(estimate), np.abs(1 - estimate)) <= _ROUNDING)
    reach = 0.025 ** (1 / np.maximum(patients, 1))
    low[edge] = np.where(estimate[edge] > 0.5, reach[edge], 0.0)
    high[edge] = np.where(estimate[edge] > 0.5, 1.0, 1 - reach[edge])
    return low, high


def _cases(row: Row, groups: Any, place: Any, outcome: Response | None) -> float:
    if outcome is None or row.level < 0:
        return np.nan
    return float(outcome.columns[groups == place[row.label], row.level].sum())


def _expit(eta: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-eta))
    return result


# --- tests ----------------------------------------------------------------------------------


def wald_tests(rows: Sequence[Row], estimate: Floats, covariance: Floats) -> pd.DataFrame:
    """Of all classes together and of each pair; of each covariate of membership."""
    by_class: dict[Hashable, list[int]] = {}
    by_term: dict[str, list[int]] = {}
    membership = not any(r.level >= 0 or r.term == "mean" for r in rows)
    for i, row in enumerate(rows):
        if membership and row.term != "intercept":
            by_term.setdefault(row.term, []).append(i)
        elif not membership and row.label != "all":
            by_class.setdefault(row.label, []).append(i)
        elif not membership:
            by_term.setdefault(row.term, []).append(i)
    tests = []
    if by_class:
        first, *others = by_class
        every = [_contrast(by_class[first], by_class[c], len(rows)) for c in others]
        tests.append({"test": "all equal", **_wald(np.vstack(every), estimate, covariance)})
        pairs = []
        for a, b in combinations(by_class, 2):
            contrast = _contrast(by_class[a], by_class[b], len(rows))
            difference: dict[str, Any] = {"test": f"{_name(b)} − {_name(a)}", "pair": (a, b)}
            if len(contrast) == 1:
                value = float((contrast @ estimate)[0])
                se = float(np.sqrt((contrast @ covariance @ contrast.T)[0, 0]))
                difference |= {"estimate": value, "se": se}
                difference |= {"low": value - Z95 * se, "high": value + Z95 * se}
            pairs.append({**difference, **_wald(contrast, estimate, covariance)})
        for pair, p in zip(pairs, holm([pair["p_value"] for pair in pairs]), strict=True):
            pair["p_holm"] = p
        tests += pairs
    for term, at in by_term.items():
        tests.append({"test": term, **_wald(np.eye(len(rows))[at], estimate, covariance)})
    names = [
        "test",
        "pair",
        "estimate",
        "se",
        "low",
        "high",
        "statistic",
        "df",
        "p_value",
        "p_holm",
    ]
    return pd.DataFrame(tests, columns=names)


def _name(label: Hashable) -> str:
    return label if isinstance(label, str) else f"class {label}"


def _contrast(a: Sequence[int], b: Sequence[int], n: int) -> Floats:
    eye = np.eye(n)
    difference: Floats = eye[list(b)] - eye[list(a)]
    return difference


def _wald(contrast: Floats, estimate: Floats, covariance: Floats) -> dict[str, float]:
    from scipy.stats import chi2

    value, spread = contrast @ estimate, contrast @ covariance @ contrast.T
    df = int(np.linalg.matrix_rank(spread))
    statistic = float(value @ np.linalg.pinv(spread, hermitian=True) @ value)
    return {"statistic": statistic, "df": df, "p_value": float(chi2.sf(statistic, max(df, 1)))}


def holm(p: Sequence[float]) -> Floats:
    """P-values adjusted for their number by Holm's method, in the same order."""
    order = np.argsort(p)
    scaled = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    result = np.empty(len(p))
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return result
