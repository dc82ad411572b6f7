"""A linear mixed model with a random intercept, solved by sums over patients."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_MOST_CORRELATED = 1 - 1e-6

Floats = NDArray[np.float64]


def natural_spline(years: Floats, knots: Floats) -> Floats:
    """Natural cubic splines (n, K) that are 1 at one knot and 0 at the others; lines for two.

    >>> basis = natural_spline(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0]))
    >>> basis[1].tolist(), basis.sum(axis=1).round(12).tolist()
    ([0.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    """
    from scipy.interpolate import CubicSpline

    basis: Floats = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")(years)
    return basis


class Curve(NamedTuple):
    """A group's curve: its `knots` (K,), its heights there `beta` (K,), and their `covariance`.

    The covariance (K, K) is NaN where too few patients allow none; `n_free` is the number of
    patients less that of knots.
    """

    group: Any
    knots: Floats
    beta: Floats
    covariance: Floats
    n_free: int


class Fit(NamedTuple):
    """The curve of each group, and the variances that they share."""

    curves: list[Curve]
    variances: dict[str, float]


def fit_curves(
    y: Floats,
    years: Floats,
    group: pd.Series,
    patient: NDArray[np.int32],
    knots: Mapping[Any, Floats],
) -> Fit:
    """A curve for each group with its sandwich covariance, patients as clusters; see `trend`."""
    present = group.cat.remove_unused_categories()
    code = present.cat.codes.to_numpy()
    groups = list(present.cat.categories)
    begins = np.cumsum([0, *(len(knots[name]) for name in groups)])
    blocks = [slice(begin, end) for begin, end in pairwise(begins)]
    x = np.zeros((len(y), begins[-1]))
    for g, (name, block) in enumerate(zip(groups, blocks, strict=True)):
        x[code == g, block] = natural_spline(years[code == g], knots[name])
    _, who = np.unique(patient, return_inverse=True)
    centre = y.mean()  # sums of squares lose no digits then; the splines add up to 1
    y = y - centre
    ratio, loglik = reml_ratio(y, x, who)
    beta, bread, within = _weighted(ratio, *_sums(y, x, who))

    left = y - x @ beta
    size = np.bincount(who)
    shrink = ratio / (1 + ratio * size)
    score = _by_who(x * (left - (shrink * np.bincount(who, left))[who])[:, None], who)
    their = np.empty(len(size), dtype=np.int64)
    their[who] = code
    inverse, curves = np.linalg.inv(bread), []
    for g, (name, block) in enumerate(zip(groups, blocks, strict=True)):
        n_patients, n_knots = int((their == g).sum()), len(knots[name])
        covariance = np.full((n_knots, n_knots), np.nan)
        if n_patients > n_knots:  # with fewer, the scores do not span the curve
            half = score[their == g, block] @ inverse[block, block]
            covariance = half.T @ half * n_patients / (n_patients - 1)
        curves.append(
            Curve(name, knots[name], centre + beta[block], covariance, n_patients - n_knots)
        )
    variances = {
        "between": float(np.sqrt(ratio * within)),
        "within": float(np.sqrt(within)),
        "correlation": ratio / (1 + ratio),
        "loglik": loglik,
    }
    return Fit(curves, variances)


def whole_curve_quantile(basis: Floats, covariance: Floats, n_free: int, level: float) -> float:
    r"""How many standard errors wide a band must be that holds a whole curve.

    With κ the length of the path of the standardised curve and T a t-distributed variable with ν =
    `n_free` degrees of freedom, the curve leaves a band of ±c standard errors somewhere with a
    probability of at most

    .. math:: \frac{κ}{π} (1 + c^2/ν)^{-ν/2} + P(|T| > c),

    nearly with equality: the tube formula. `basis` (n, K) is at many times in order, and
    `covariance` (K, K) is that of the curve's coefficients; NaN gives NaN.

    >>> constant = np.ones((2, 1))  # the band of a single number
    >>> round(whole_curve_quantile(constant, np.eye(1), 10**6, 0.95), 3)
    1.96
    """
    from scipy.optimize import brentq
    from scipy.special import stdtr

    if not np.isfinite(covariance).all():
        return np.nan
    values, vectors = np.linalg.eigh(covariance)
    path = basis @ vectors * np.sqrt(np.maximum(values, 0))
    norm = np.linalg.norm(path, axis=1, keepdims=True)
    path = np.divide(path, norm, out=np.zeros_like(path), where=norm > 0)
    length = float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())

    def excess(c: float) -> float:
        tube = length / np.pi * (1 + c**2 / n_free) ** (-n_free / 2)
        return float(tube + 2 * stdtr(n_free, -c)) - (1 - level)

    return float(brentq(excess, 0, 1e9))


def reml_ratio(y: Floats, x: Floats, who: NDArray[np.intp]) -> tuple[float, float]:
    r"""The ratio of variances τ²/σ² that maximises the restricted likelihood, and its log.

    With a random intercept each patient's inverse covariance is
    :math:`I - \frac{\lambda}{1 + \lambda n_i} J`, so that sums over patients are all that is
    needed, and the rest is a search over the correlation λ/(1 + λ). The columns of `x` (n, p) are
    independent, n > p, and `who` (n,) numbers the patients from 0.

    >>> reml_ratio(np.array([1.0, 1.2, 3.0, 3.3]), np.ones((4, 1)), np.array([0, 0, 1, 1]))[0] > 50
    True
    """
    from scipy.optimize import minimize_scalar

    sums = _sums(y, x, who)
    if sums[-1].max() == 1:  # a single lab each: levels and noise cannot be distinguished
        return 0.0, -_criterion(0.0, *sums) / 2

    def cost(correlation: float) -> float:
        return _criterion(correlation / (1 - correlation), *sums)

    optimum = minimize_scalar(
        cost, bounds=(0, _MOST_CORRELATED), method="bounded", options={"xatol": 1e-9}
    )
    # a flat likelihood, as with a single patient, says nothing about a correlation
    best = 0.0 if cost(0.0) <= optimum.fun + 1e-7 else float(optimum.x)
    return best / (1 - best), -cost(best) / 2


def _sums(y: Floats, x: Floats, who: NDArray[np.intp]) -> tuple[Any, ...]:
    """x'x, x'y, y'y, and by patient the sums of x and y and the number of labs."""
    return x.T @ x, x.T @ y, float(y @ y), _by_who(x, who), np.bincount(who, y), np.bincount(who)


def _by_who(rows: Floats, who: NDArray[np.intp]) -> Floats:
    order = np.argsort(who, kind="stable")
    begins = np.searchsorted(who[order], np.arange(who.max() + 1))
    total: Floats = np.add.reduceat(rows[order], begins, axis=0)
    return total


def _weighted(
    ratio: float,
    xx: Floats,
    xy: Floats,
    yy: float,
    sx: Floats,
    sy: Floats,
    size: NDArray[np.intp],
) -> tuple[Floats, Floats, float]:
    """Weighted least squares at a given ratio: β, the matrix x'V⁻¹x, and σ²."""
    shrink = ratio / (1 + ratio * size)
    a = xx - (sx * shrink[:, None]).T @ sx
    b = xy - sx.T @ (shrink * sy)
    beta = np.linalg.solve(a, b).astype(np.float64)
    rest = yy - float(shrink @ sy**2) - float(b @ beta)
    n_free = int(size.sum()) - len(beta)
    return beta, a, max(rest, 1e-12 * max(yy, 1e-300)) / n_free


def _criterion(ratio: float, *sums: Any) -> float:
    """−2 × the restricted log-likelihood, σ² profiled out."""
    size = sums[-1]
    beta, a, within = _weighted(ratio, *sums)
    n_free = int(size.sum()) - len(beta)
    spread = np.log1p(ratio * size).sum() + np.linalg.slogdet(a)[1]
    return float(n_free * (np.log(2 * np.pi * within) + 1) + spread)
