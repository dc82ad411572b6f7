"""Estimates of several sites put together by inverse variance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Z95 = 1.959963984540054
_NUMBERS = ["estimate", "se", "low", "high"]


def inverse_variance(
    tables: Mapping[str, pd.DataFrame],
    covariances: Mapping[str, NDArray[np.float64]] | None = None,
) -> pd.DataFrame:
    """Estimates of several sites together, each weighted by the inverse of its variance.

    Parameters
    ----------
    tables : {site: DataFrame with class, term, estimate and se}
        Estimates that are missing at a site are left out there.
    covariances : {site: (p, p)}, optional
        Of the rows of each table. With them all estimates are pooled together (generalised least
        squares), so that what one coefficient tells about another counts too; without them each
        is pooled by itself.

    Returns
    -------
    DataFrame
        class, term, `sites` (how many contribute), `estimate`, `se`, `low`, `high`, and of the
        differences between sites `q`, `df`, `p_heterogeneity` and `i2` (share of the
        variation that sampling does not explain); missing with fewer than two sites.

    Examples
    --------
    >>> a = pd.DataFrame({"class": [2], "term": ["age"], "estimate": [1.0], "se": [0.1]})
    >>> both = inverse_variance({"A": a, "B": a.assign(estimate=2.0, se=0.2)})
    >>> both[["estimate", "se"]].round(3).to_numpy().tolist()
    [[1.2, 0.089]]
    """
    from scipy.stats import chi2

    rows = []
    every = pd.concat(tables.values(), ignore_index=True)
    for (label, term), part in every.groupby(["class", "term"], sort=False):
        known = part[part["estimate"].notna() & (part["se"] > 0)]
        if len(known) < 2:
            rows.append({"class": label, "term": term, "sites": len(known)})
            continue
        weight = 1 / known["se"].to_numpy() ** 2
        value = known["estimate"].to_numpy()
        mean, se = weight @ value / weight.sum(), weight.sum() ** -0.5
        q, df = float(weight @ (value - mean) ** 2), len(known) - 1
        rows.append(
            {
                "class": label,
                "term": term,
                "sites": len(known),
                "estimate": mean,
                "se": se,
                "low": mean - _Z95 * se,
                "high": mean + _Z95 * se,
                "q": q,
                "df": df,
                "p_heterogeneity": float(chi2.sf(q, df)),
                "i2": max(0.0, 1 - df / q) if q > 0 else 0.0,
            }
        )
    names = ["class", "term", "sites", *_NUMBERS, "q", "df", "p_heterogeneity", "i2"]
    pooled = pd.DataFrame(rows, columns=names)
    return pooled if covariances is None else _together(pooled, tables, covariances)


def _together(
    pooled: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    covariances: Mapping[str, NDArray[np.float64]],
) -> pd.DataFrame:
    """Estimates of at least two sites by generalised least squares; differences as they were."""
    shared = pooled[pooled["sites"] > 1]
    place = {key: i for i, key in enumerate(zip(shared["class"], shared["term"], strict=True))}
    information, score = np.zeros((len(place), len(place))), np.zeros(len(place))
    for site, table in tables.items():
        keys = list(zip(table["class"], table["term"], strict=True))
        known = table["estimate"].notna() & (table["se"] > 0)
        mine = [i for i, key in enumerate(keys) if key in place and known.iloc[i]]
        at = [place[keys[i]] for i in mine]
        inverse = np.linalg.inv(covariances[site][np.ix_(mine, mine)])
        information[np.ix_(at, at)] += inverse
        score[at] += inverse @ table["estimate"].to_numpy(float)[mine]
    spread = np.linalg.inv(information)
    estimate, se = spread @ score, np.sqrt(np.diagonal(spread))
    result = pooled.copy()
    limits = (estimate, se, estimate - _Z95 * se, estimate + _Z95 * se)
    for name, values in zip(_NUMBERS, limits, strict=True):
        result.loc[shared.index, name] = values
    return result
