"""Sums over patients that means and covariances are estimated from, and Gaussian likelihoods.

The sums are a table (K, 1 + d + q): for each class the patients, the sums of each column, and sums
of products: of all pairs of columns (covariances "full" and "tied", q = d(d + 1)/2), of each column
with itself ("diag", q = d), or of all squares together ("spherical", and "equal" for K-means,
whose classes share one variance; q = 1). Columns are counted from an `origin` near the data, so
that nothing is lost where values are large and spread little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from font.checks import Floats

FORMS = ("full", "tied", "diag", "spherical", "equal")


class Gaussians(NamedTuple):
    """Proportions (K,), means (K, d), and covariances: (K, d, d), (d, d), (K, d), (K,) or ()."""

    weights: Floats
    means: Floats
    covariances: Floats


def n_products(form: str, d: int) -> int:
    """How many sums of products a class has."""
    return {"full": d * (d + 1) // 2, "tied": d * (d + 1) // 2, "diag": d}.get(form, 1)


def sums_by_class(points: Floats, membership: Floats, form: str, origin: Floats) -> Floats:
    """The table (K, 1 + d + q) for points (n, d) and memberships (n, K)."""
    centred = points - origin
    if form in ("full", "tied"):
        first, second = np.triu_indices(points.shape[1])
        products = centred[:, first] * centred[:, second]
    else:
        products = centred**2
        if form != "diag":
            products = products.sum(axis=1, keepdims=True)
    weighted = membership.T
    return np.hstack([weighted.sum(axis=1)[:, None], weighted @ centred, weighted @ products])


def gaussians_from_sums(total: Floats, form: str, origin: Floats, floor: float) -> Gaussians:
    """The maximum of the likelihood; `floor` is added to every variance."""
    d = len(origin)
    people = np.maximum(total[:, 0], 10 * np.finfo(float).eps)
    means, products = total[:, 1 : 1 + d] / people[:, None], total[:, 1 + d :]
    if form in ("full", "tied"):
        first, second = np.triu_indices(d)
        own = products - people[:, None] * means[:, first] * means[:, second]
        own = own.sum(axis=0)[None] / people.sum() if form == "tied" else own / people[:, None]
        spread = np.empty((len(own), d, d))
        spread[:, first, second] = spread[:, second, first] = own
        spread[:, np.arange(d), np.arange(d)] += floor
        spread = spread[0] if form == "tied" else spread
    elif form == "diag":
        spread = np.maximum(products / people[:, None] - means**2, 0.0) + floor
    else:
        left = products[:, 0] - people * (means**2).sum(axis=1)
        spread = left / (d * people) if form == "spherical" else left.sum() / (d * people.sum())
        spread = np.maximum(spread, 0.0) + floor
    return Gaussians(total[:, 0] / people.sum(), means + origin, np.asarray(spread))


def precisions(covariances: Floats, form: str) -> Floats:
    """The inverse of the Cholesky factor, as scikit-learn computes it."""
    from scipy.linalg import cholesky, solve_triangular

    if form not in ("full", "tied"):
        return np.asarray(1.0 / np.sqrt(covariances))
    matrices = covariances if form == "full" else covariances[None]
    even = np.eye(matrices.shape[-1])
    out = [solve_triangular(cholesky(c, lower=True), even, lower=True).T for c in matrices]
    return np.array(out) if form == "full" else np.asarray(out[0])


def log_densities(points: Floats, means: Floats, roots: Floats, form: str) -> Floats:
    """Log density of each point in each class, (n, K), from `precisions`."""
    n, d = points.shape
    logs = np.empty((n, len(means)))
    for k, mean in enumerate(means):
        root = roots if form in ("tied", "equal") else roots[k]
        scaled = (points - mean) @ root if np.ndim(root) == 2 else (points - mean) * root
        diagonal = np.diag(root) if np.ndim(root) == 2 else np.broadcast_to(root, d)
        logs[:, k] = np.log(diagonal).sum() - 0.5 * (
            d * np.log(2 * np.pi) + (scaled**2).sum(axis=1)
        )
    return logs
