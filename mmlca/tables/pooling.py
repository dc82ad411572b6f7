"""Estimates of several sites put together: fixed and random effects, and heterogeneity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca.model.outcomes import Z95 as Z95

Floats = NDArray[np.float64]

POOLED = ("estimate", "se", "low", "high", "random", "random_se", "random_low", "random_high")
"""The columns of pooled estimates: with fixed effects, and with random effects."""
HETEROGENEITY = ("tau2", "q", "df", "p_heterogeneity", "i2")
"""Of the differences between sites."""


def pool(estimates: ArrayLike, errors: ArrayLike) -> pd.DataFrame:
    r"""Estimates of several sites together, each weighted by the inverse of its variance.

    With the weights :math:`w_s = 1/v_s` of the variances :math:`v_s` the fixed effect is
    :math:`\hat\theta = \sum w_s \theta_s / \sum w_s`, with the variance :math:`1/\sum w_s`, and

    .. math:: Q = \sum w_s (\theta_s - \hat\theta)^2, \quad
        \tau^2 = \max\left(0, \frac{Q - (k - 1)}{\sum w_s - \sum w_s^2 / \sum w_s}\right), \quad
        I^2 = \max\left(0, 1 - \frac{k - 1}{Q}\right)

    for k sites (DerSimonian and Laird). The weights of random effects are
    :math:`1/(v_s + \tau^2)`.

    `estimates` and `errors` are (sites, n); one that is missing, or whose error is missing or 0, is
    left out. The result has a row for each of the n: `sites` (how many contribute), and the columns
    `POOLED` and `HETEROGENEITY`, which are missing with fewer than two sites.

    >>> pool([[1.0], [2.0]], [[0.1], [0.2]])[["estimate", "random", "i2"]].round(2)
       estimate  random    i2
    0       1.2    1.48  0.95
    """
    from scipy.stats import chi2

    value, error = np.atleast_2d(np.asarray(estimates, float)), np.asarray(errors, float)
    known = np.isfinite(value) & (np.nan_to_num(error) > 0)
    value, variance = np.where(known, value, 0.0), np.where(known, error, 1.0) ** 2
    weight = known / variance
    n_sites = known.sum(axis=0)
    enough, df = n_sites > 1, n_sites - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        fixed, fixed_se = _mean(value, weight)
        q = (weight * (value - fixed) ** 2).sum(axis=0)
        total = weight.sum(axis=0)
        tau2 = np.maximum(0, (q - df) / (total - (weight**2).sum(axis=0) / total))
        random, random_se = _mean(value, known / (variance + np.where(enough, tau2, 0)))
        i2 = np.where(q > 0, np.maximum(0, 1 - df / q), 0.0)
    columns = {
        **_interval("", fixed, fixed_se),
        **_interval("random", random, random_se),
        **{"tau2": tau2, "q": q, "df": df, "p_heterogeneity": chi2.sf(q, df), "i2": i2},
    }
    table = pd.DataFrame(columns)[[*POOLED, *HETEROGENEITY]]
    table.loc[~enough] = np.nan
    table.insert(0, "sites", n_sites)
    return table


def _mean(value: Floats, weight: Floats) -> tuple[Floats, Floats]:
    total = weight.sum(axis=0)
    return (weight * value).sum(axis=0) / total, total**-0.5


def _interval(name: str, value: Floats, se: Floats) -> dict[str, Floats]:
    prefix = f"{name}_" if name else ""
    return {
        name or "estimate": value,
        f"{prefix}se": se,
        f"{prefix}low": value - Z95 * se,
        f"{prefix}high": value + Z95 * se,
    }


def inverse_variance(
    tables: Mapping[str, pd.DataFrame], by: Sequence[str] = ("class", "term")
) -> pd.DataFrame:
    """Tables of estimates of several sites together; see `mmlca.tables.pooling.pool`.

    Parameters
    ----------
    tables : {site: DataFrame with `by`, estimate and se}
        Estimates that are missing at a site are left out there.
    by : names of the columns that say what is estimated

    Returns
    -------
    DataFrame
        The columns `by`; `sites` (how many contribute); with fixed effects `estimate`, `se`, `low`
        and `high`; with random effects (DerSimonian and Laird) `random`, `random_se`, `random_low`
        and `random_high`; and of the differences between sites their variance `tau2`, `q`, `df`,
        `p_heterogeneity` and `i2` (share of the variation that sampling does not explain). Missing
        with fewer than two sites.

    Examples
    --------
    >>> a = pd.DataFrame({"class": [2], "term": ["age"], "estimate": [1.0], "se": [0.1]})
    >>> both = inverse_variance({"A": a, "B": a.assign(estimate=2.0, se=0.2)})
    >>> both[["estimate", "se"]].round(3).to_numpy().tolist()
    [[1.2, 0.089]]
    """
    names = list(by)
    every = pd.concat([table[names] for table in tables.values()], ignore_index=True)
    rows = every.drop_duplicates(ignore_index=True)
    parts = [rows.merge(table, "left", names) for table in tables.values()]
    estimates, errors = (np.array([part[c] for part in parts]) for c in ("estimate", "se"))
    return pd.concat([rows, pool(estimates, errors)], axis=1)
