"""Norms of the differences between two sites, with what sampling adds to them, and in words.

All is computed from what the sites count: `ClusterSteps` of each of them, which may be rounded.
Arrays have the shape (K, R, S) for K clusters, R = S + 1 rows and S states: row i < S holds the
steps from state i, row S the first states.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.sequences.checks import listed
from mmlca.tables.counts import ClusterSteps, rates

KINDS = (("transition", "plain"), ("transition", "occupancy"), ("initial", "plain"))
_KIND_NAMES = ("transitions", "transitions by occupancy", "first states")
_MOST_PAIRS = 3  # that a sentence lists
_TAILS = (0.025, 0.975)
_RARE = 10  # patients below which their variation says little
_FEW = 3  # units of rounding below which the rates of a row are mostly rounding

Floats = NDArray[np.float64]


class Comparison(NamedTuple):
    """Two sites under one membership; each array has one entry per kind of norm.

    `rounding` is by how much the rounding of counts may have changed a norm: the root of the mean
    square of what it adds.
    """

    norm: Floats
    debiased: Floats
    low: Floats
    high: Floats
    rounding: Floats


# --- norms -------------------------------------------------------------------------------


def row_weights(a: Floats, b: Floats) -> Floats:
    """Weight of each row's squared difference in each kind of norm, (…, 3, K, R).

    0 for rows that nobody leaves at one of the sites.
    """
    steps = a.sum(axis=-1) + b.sum(axis=-1)
    compared = (a.sum(axis=-1) > 0) & (b.sum(axis=-1) > 0)
    weights = np.zeros((*compared.shape[:-2], len(KINDS), *compared.shape[-2:]))
    weights[..., 0, :, :-1] = compared[..., :-1]
    weights[..., 1, :, :-1] = np.nan_to_num(rates(np.where(compared, steps, 0.0)[..., :-1]))
    weights[..., 2, :, -1] = compared[..., -1]
    return weights


def _mean_norm(square: Floats, weights: Floats) -> Floats:
    """Square roots (…, 3, K) averaged over the clusters with any weight (…, 3, K, R); else NaN."""
    there = np.asarray((weights > 0).any(axis=-1))
    n = np.broadcast_to(there.sum(axis=-1), square.shape[:-1])
    total = np.where(there, np.sqrt(np.maximum(square, 0.0)), 0.0).sum(axis=-1)
    mean: Floats = np.full(total.shape, np.nan)
    np.divide(total, n, out=mean, where=n > 0)
    return mean


class Noise:
    """What sampling adds to the differences D (K, R, S) of the rows: deviations E.

    Kept are `size`, ‖D‖² by cluster and row (K, R), and of each sample `square`, ‖E‖², and `cross`,
    ⟨D, E⟩ (n, K, R). `weights` (3, K, R) are those of the rows in each kind of norm.
    """

    def __init__(self, difference: Floats, weights: Floats) -> None:
        self.difference, self.weights = difference, weights
        self.size = (difference**2).sum(axis=-1)
        self.square, self.cross = np.empty((2, 0, *self.size.shape))

    def add(self, deviations: Floats) -> None:
        """Deviations of more samples, (n, K, R, S)."""
        self.square = np.concatenate([self.square, (deviations**2).sum(axis=-1)])
        self.cross = np.concatenate([self.cross, (self.difference * deviations).sum(axis=-1)])

    def norm(self, squares: Floats | None = None) -> Floats:
        """The norms of the differences, or of other squares of rows (K, R), (3,)."""
        squares = self.size if squares is None else squares
        return _mean_norm(self._total(squares), self.weights)

    def interval(self, expected: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """The debiased norms and both limits, (3,) each.

        Debiased is √(‖D‖² − mean ‖E‖²) of each cluster, at least 0, averaged; `expected` (K, R) are
        the means of ‖E‖² if these are known better than from the samples. The limits are those
        of factors c at which few of ‖c·D + E‖ lie above, or below, the norm. With few patients many
        of them may equal it; these count for neither limit, so that the interval is rather too
        wide. No norm is larger than if all rows had nothing in common.
        """
        norm = self.norm()
        expected = self.square.mean(axis=0) if expected is None else expected
        low, high = (
            norm * self._factor(norm + slack, tail)
            for slack, tail in zip((-1e-9, 1e-9), _TAILS, strict=True)
        )
        high = np.minimum(high, _mean_norm(2 * self.weights.sum(axis=-1), self.weights))
        return np.clip(self.norm(self.size - expected), low, high), low, high

    def _total(self, rows: Floats) -> Floats:
        """Weighted sums over rows, (…, 3, K)."""
        total: Floats = np.einsum("...kr,jkr->...jk", rows, self.weights)
        return total

    def _factor(self, norm: Floats, tail: float) -> Floats:
        """The smallest c ≥ 0 at which a share `tail` of ‖c·D + E‖ reaches the norm."""
        size, cross, square = (self._total(part) for part in (self.size, self.cross, self.square))

        def enough(c: Floats) -> NDArray[np.bool_]:
            squares = c[:, None] ** 2 * size + 2 * c[:, None] * cross + square
            reached = (_mean_norm(squares, self.weights) >= norm).mean(axis=0)
            return np.asarray(reached >= tail)

        low, high = np.zeros(len(norm)), np.ones(len(norm))
        for _ in range(20):
            high = np.where(enough(high), high, 2 * high)
        for _ in range(40):
            middle = (low + high) / 2
            passed = enough(middle)
            low, high = np.where(passed, low, middle), np.where(passed, middle, high)
        return np.where(enough(np.zeros(len(norm))), 0.0, high)


# --- two sites ---------------------------------------------------------------------------


def comparable(site: ClusterSteps, unit: int) -> ClusterSteps:
    """The steps of a site, without rows of so few patients that rounding makes up their rates."""
    if unit == 1:
        return site
    enough = (site.leaving >= _FEW * unit)[..., None]
    return site._replace(steps=np.where(enough, site.steps, 0.0))


def compare_sites(
    a: ClusterSteps, b: ClusterSteps, n: int, rng: np.random.Generator, unit: int = 1
) -> Comparison:
    """Norms of the differences between two sites, with what sampling says about them.

    `n` is the number of samples for the limits; 0 gives none. The counts were rounded at random to
    multiples of `unit`: rows that fewer than three times as many patients leave at one of the sites
    are left out; 1: counts are exact.
    """
    a, b = comparable(a, unit), comparable(b, unit)
    difference = np.nan_to_num(rates(a.steps) - rates(b.steps))
    noise = Noise(difference, row_weights(a.steps, b.steps))
    rounded = sum(_of_rounding(site, unit) for site in (a, b))
    covariance = _of_sampling(a, b) + rounded
    expected, added = (np.trace(part, axis1=-2, axis2=-1) for part in (covariance, rounded))
    norm, error = noise.norm(), noise.norm(added)
    if not n:
        none = np.full(len(KINDS), np.nan)
        return Comparison(norm, noise.norm(noise.size - expected), none, none, error)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    noise.add(np.einsum("krst,nkrt->nkrs", root, rng.standard_normal((n, *difference.shape))))
    return Comparison(norm, *noise.interval(expected), error)


def _of_sampling(a: ClusterSteps, b: ClusterSteps) -> Floats:
    """Covariances of the differences between rows of two sites, (K, R, S, S).

    A handful of patients may vary hardly or not at all. For rows that few leave at one of the
    sites, both are taken to have the rates of both together and the variation of the whole cluster.
    """
    m, patients = np.minimum(a.leaving, b.leaving), a.leaving + b.leaving
    rare = (m < _RARE) & (m > 0)
    own = np.zeros((*a.steps.shape, a.steps.shape[-1]))
    for site in (a, b):
        unknown = np.isnan(site.dispersion)
        dispersion = np.where(unknown, _of_cluster(site)[:, None], site.dispersion)
        own += (dispersion * _inverse(site.n))[..., None, None] * _multinomial(site.steps)
    common = np.fmax(_of_cluster(a), _of_cluster(b))[:, None]
    factor = common * (_inverse(a.n) + _inverse(b.n)) * patients * _inverse(patients - 1)
    pooled = factor[..., None, None] * _multinomial(a.steps + b.steps)
    return np.where(rare[..., None, None], pooled, own)


def _inverse(n: Floats) -> Floats:
    """1/n, and 0 where n is not positive."""
    return np.divide(1.0, n, out=np.zeros(n.shape), where=n > 0)


def _multinomial(count: Floats) -> Floats:
    """Covariances of one step from each row, (K, R, S, S)."""
    p = np.nan_to_num(rates(count))
    return p[..., None] * (np.eye(p.shape[-1]) - p[..., None, :])


def _of_cluster(site: ClusterSteps) -> Floats:
    """The mean dispersion of the steps of each cluster, (K,); 1 if none is known."""
    steps = np.where(np.isnan(site.dispersion), 0.0, site.n)
    total = steps.sum(axis=1)
    mean = (steps * np.nan_to_num(site.dispersion)).sum(axis=1) * _inverse(total)
    return np.where(total > 0, mean, 1.0)


def _of_rounding(site: ClusterSteps, unit: int) -> Floats:
    """Covariances that the rounding of counts adds to the rates of a site, (K, R, S, S).

    A number of patients that is rounded at random to a multiple of u differs from the true one by
    u²/6 in the mean square, over all numbers; steps are rounded as the patients who make them.
    """
    if unit == 1:
        return np.zeros((*site.steps.shape, site.steps.shape[-1]))
    each = np.nan_to_num(site.steps / np.maximum(site.patients, unit))
    variance = site.n_sites * unit**2 * (each**2 / 6 + 1 / 12)
    p = np.nan_to_num(rates(site.steps))
    away = (np.eye(p.shape[-1]) - p[..., :, None]) * _inverse(site.n)[..., None, None]
    varies = np.where(site.steps > 0, variance, 0.0)
    covariance: Floats = np.einsum("krst,krt,krut->krsu", away, varies, away)
    return covariance


# --- in words ----------------------------------------------------------------------------


def summary_of_pair(norms: pd.DataFrame) -> str:
    """The norms of one pair of sites, what the ensemble's are lower than, and the cautions."""
    pair = norms["sites"].iloc[0]
    lines = [f"Differences between the sites, {pair}: norms averaged over clusters."]
    if norms["low"].notna().any():
        lines[0] += (
            " In brackets: without what sampling adds, with its 95 % interval, as if the clusters "
            "were known. Whether the sites differ is tested by shared_chain_test."
        )
    for name, rows in norms.groupby("membership", sort=False):
        texts = [
            f"{_KIND_NAMES[i]} {_norm_text(row)}" for i, (_, row) in enumerate(rows.iterrows())
        ]
        lines.append(f"  {name}: {'; '.join(texts)}")
    for i in range(2):
        lines += _ensemble_against_others(norms.iloc[i :: len(KINDS)], _KIND_NAMES[i])
    return "\n".join([*lines, *cautions_of_pairs([norms])])


def cautions_of_pairs(pairs: list[pd.DataFrame]) -> list[str]:
    """Two sentences about the norms of all pairs of sites."""
    left_out = sorted({int(norms["rows_left_out"].iloc[0]) for norms in pairs})
    number = " to ".join(map(str, sorted({left_out[0], left_out[-1]})))
    noun, verb = ("row", "is") if left_out == [1] else ("rows", "are")
    each = " of each pair" if len(pairs) > 1 else ""
    rounded = any((norms["rounding"] > 0).any() for norms in pairs)
    who = "few patients leave" if rounded else "nobody leaves"
    rows = (
        f"; {number} {noun} (cluster and state) that {who} at one of the sites{each} {verb} not in "
        "the ensemble's"
    )
    return [
        _about_common_rules(pairs),
        f"The plain norm is dominated by rarely visited states{rows if left_out[-1] else ''}.",
    ]


def _norm_text(row: pd.Series) -> str:
    if np.isnan(row["low"]):
        return "not known" if np.isnan(row["norm"]) else f"{row['norm']:.3f}"
    return f"{row['norm']:.3f} [{row['debiased']:.3f}, {row['low']:.3f} to {row['high']:.3f}]"


def p_text(p_value: float, n_boot: int) -> str:
    """A p-value by simulation in words; the smallest possible one is an upper bound.

    >>> p_text(0.3756, 1000), p_text(1 / 1001, 1000)
    ('p = 0.38', 'p ≤ 0.001')
    """
    smallest = 1 / (n_boot + 1)
    return f"p ≤ {smallest:.1g}" if p_value <= smallest else f"p = {p_value:.2g}"


def _ensemble_against_others(rows: pd.DataFrame, kind: str) -> list[str]:
    """What the ensemble's norm is lower and not lower than."""
    own, others = rows["norm"].iloc[0], rows.iloc[1:].dropna(subset="norm")
    if np.isnan(own):
        return []
    lower = others.loc[own < others["norm"], "membership"].to_list()
    not_lower = others.loc[~(own < others["norm"]), "membership"].to_list()
    parts = [f"less than with {listed(lower)} (as a common rule often makes them)"] if lower else []
    parts += [f"no less than with {listed(not_lower)}"] if not_lower else []
    return [f"With the ensemble, {kind} differ {'; '.join(parts)}."] if parts else []


def _about_common_rules(pairs: list[pd.DataFrame]) -> str:
    text = "A common rule often lowers the difference, because it divides the sites in the same way"
    shown, holds = list[str](), True
    for norms in pairs:
        norm = norms.iloc[:: len(KINDS)].set_index("membership")["norm"]
        everywhere = norm[norm.index.str.endswith(" everywhere")]
        if "local" in norm.index and len(everywhere):
            values = listed([f"{name} {value:.3f}" for name, value in everywhere.items()])
            pair = f"{norms['sites'].iloc[0]}: " if len(pairs) > 1 else ""
            shown.append(f"{pair}{values}, local {norm['local']:.3f}")
            holds = holds and bool((everywhere < norm["local"]).all())
    text += "" if holds else ", though not every one does"
    if shown:
        more = f"; and {len(shown) - _MOST_PAIRS} more pairs" if len(shown) > _MOST_PAIRS else ""
        text += f" (here {'; '.join(shown[:_MOST_PAIRS])}{more})"
    return f"{text}; a lower norm alone does not show that the clusters are better."
