"""Estimates of several sites put together by inverse variance."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

_Z95 = 1.959963984540054


def inverse_variance(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Estimates of several sites together, each weighted by the inverse of its variance.

    Parameters
    ----------
    tables : {site: DataFrame with class, term, estimate and se}
        Estimates that are missing at a site are left out there.

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
    names = ["class", "term", "sites", "estimate", "se", "low", "high"]
    names += ["q", "df", "p_heterogeneity", "i2"]
    return pd.DataFrame(rows, columns=names)
