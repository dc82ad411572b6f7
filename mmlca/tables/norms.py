"""Norms of the differences between two sites, with intervals by resampling patients.

Counts have the shape (…, K, R, S) for K clusters, R = S + 1 rows and S states: row i < S holds
the steps from state i, row S the first states. Patients that are alike in all that is counted
form one *group*; a resample is a number of patients for each group, so that it costs the same
however many patients there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.sequences.type import Sequences
from mmlca.tables.counts import pattern_steps, rates
from mmlca.tables.matching import Membership

KINDS = (("transition", "plain"), ("transition", "occupancy"), ("initial", "plain"))
_TAILS = (0.025, 0.975)
_RARE = 10  # patients below which a bootstrap of a row varies too little
_BLOCK = 1 << 22  # numbers held at a time


class Grouped(NamedTuple):
    """The groups of one site's patients.

    `size` is the number of patients of each group, `steps` (groups, R·S) the weighted counts of
    one such patient (sparse), `member` the cluster of each group by membership.
    """

    size: NDArray[np.intp]
    steps: Any
    member: dict[str, NDArray[np.intp]]
    n_states: int


class Comparison(NamedTuple):
    """Two sites under one membership; each array has one entry per kind of norm.

    `replicates` are the norms of the bootstrap samples, (n_boot, 3).
    """

    norm: NDArray[np.float64]
    debiased: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    replicates: NDArray[np.float64]


def group_patients(data: Sequences, site: str, rules: Mapping[str, Membership]) -> Grouped:
    """Group patients of weight above 0 by transition pattern, weight and all memberships."""
    alike = pd.DataFrame({"pattern": data.patterns.inverse, "weight": data.weights})
    for i, membership in enumerate(rules.values()):
        alike[i] = membership.codes[site]
    distinct = alike[alike["weight"] > 0].value_counts(sort=False).reset_index()
    steps = pattern_steps(data)[distinct["pattern"].to_numpy()]
    return Grouped(
        distinct["count"].to_numpy(),
        steps.multiply(distinct["weight"].to_numpy()[:, None]).tocsr(),
        {name: distinct[i].to_numpy() for i, name in enumerate(rules)},
        data.n_states,
    )


def group_counts(
    grouped: Grouped, name: str, n_clusters: int, patients: NDArray[Any]
) -> NDArray[np.float64]:
    """Counts (B, K, R, S) if there are `patients` (B, groups) of each group."""
    s = grouped.n_states
    table = np.zeros((len(patients), n_clusters, s + 1, s))
    for k in range(n_clusters):
        rows = np.flatnonzero(grouped.member[name] == k)
        table[:, k] = (patients[:, rows] @ grouped.steps[rows]).reshape(-1, s + 1, s)
    return table


def counted_patients(grouped: Grouped, name: str, n_clusters: int) -> NDArray[np.intp]:
    """Number of patients in each cluster who have a count in each cell, (K, R, S)."""
    s = grouped.n_states
    table = np.zeros((n_clusters, s + 1, s), dtype=np.intp)
    for k in range(n_clusters):
        rows = np.flatnonzero(grouped.member[name] == k)
        table[k] = (grouped.size[rows] @ (grouped.steps[rows] > 0)).reshape(s + 1, s)
    return table


def leaving_patients(grouped: Grouped, name: str, n_clusters: int) -> NDArray[np.intp]:
    """Number of patients in each cluster who have a count in each row, (K, R)."""
    s = grouped.n_states
    by_row = grouped.steps @ np.kron(np.eye(s + 1), np.ones((s, 1)))
    table = np.zeros((n_clusters, s + 1), dtype=np.intp)
    np.add.at(table, grouped.member[name], grouped.size[:, None] * (by_row > 0))
    return table


# --- norms -------------------------------------------------------------------------------


def row_weights(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
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


def count_norms(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The three norms of KINDS from counts (…, K, R, S) of two sites, (…, 3)."""
    weights = row_weights(a, b)
    square = (np.nan_to_num(rates(a) - rates(b)) ** 2).sum(axis=-1)
    by_cluster = (weights * square[..., None, :, :]).sum(axis=-1)
    return _mean_norm(by_cluster, weights)


def _mean_norm(square: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Square roots (…, 3, K) averaged over the clusters with any weight (…, 3, K, R); else NaN."""
    there = np.asarray((weights > 0).any(axis=-1))
    n = np.broadcast_to(there.sum(axis=-1), square.shape[:-1])
    total = np.where(there, np.sqrt(np.maximum(square, 0.0)), 0.0).sum(axis=-1)
    mean: NDArray[np.float64] = np.full(total.shape, np.nan)
    np.divide(total, n, out=mean, where=n > 0)
    return mean


class Noise:
    """What sampling adds to the differences D (K, R, S) of the rows: deviations E.

    Kept are `size`, ‖D‖² by cluster and row (K, R), and of each sample `square`, ‖E‖², and `cross`,
    ⟨D, E⟩ (n_boot, K, R). `weights` (3, K, R) are those of the rows in each kind of norm.
    """

    def __init__(self, difference: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        self.difference, self.weights = difference, weights
        self.size = (difference**2).sum(axis=-1)
        self.square, self.cross = np.empty((2, 0, *self.size.shape))

    def add(self, deviations: NDArray[np.float64]) -> None:
        """Deviations of more samples, (n, K, R, S)."""
        self.square = np.concatenate([self.square, (deviations**2).sum(axis=-1)])
        self.cross = np.concatenate([self.cross, (self.difference * deviations).sum(axis=-1)])

    def replace_row(self, k: int, i: int, deviations: NDArray[np.float64]) -> None:
        """Other deviations (n, S) of row i of cluster k, in all samples."""
        self.square[:, k, i] = (deviations**2).sum(axis=-1)
        self.cross[:, k, i] = deviations @ self.difference[k, i]

    def norm(self) -> NDArray[np.float64]:
        """The norms of the differences themselves, (3,)."""
        return _mean_norm(self._total(self.size), self.weights)

    def interval(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The debiased norms and both limits, (3,) each.

        Debiased is √(‖D‖² − mean ‖E‖²) of each cluster, at least 0, averaged. The limits are those
        of factors c at which few of ‖c·D + E‖ lie above, or below, the norm. With few patients many
        of them equal it; these count for neither limit, so that the interval is rather too wide. No
        norm is larger than if all rows had nothing in common.
        """
        norm = self.norm()
        low, high = (
            norm * self._factor(norm + slack, tail)
            for slack, tail in zip((-1e-9, 1e-9), _TAILS, strict=True)
        )
        high = np.minimum(high, _mean_norm(2 * self.weights.sum(axis=-1), self.weights))
        debiased = _mean_norm(self._total(self.size - self.square.mean(axis=0)), self.weights)
        return np.clip(debiased, low, high), low, high

    def _total(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weighted sums over rows, (…, 3, K)."""
        total: NDArray[np.float64] = np.einsum("...kr,jkr->...jk", rows, self.weights)
        return total

    def _factor(self, norm: NDArray[np.float64], tail: float) -> NDArray[np.float64]:
        """The smallest c ≥ 0 at which a share `tail` of ‖c·D + E‖ reaches the norm."""
        size, cross, square = (self._total(part) for part in (self.size, self.cross, self.square))

        def enough(c: NDArray[np.float64]) -> NDArray[np.bool_]:
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


# --- resampling --------------------------------------------------------------------------


def compare_sites(
    a: Grouped, b: Grouped, name: str, n_clusters: int, n_boot: int, seeds: tuple[int, int, int]
) -> Comparison:
    """Norms under the membership `name`, with what resampling says about them.

    Seeds are those of the bootstrap samples of either site, and that of the rare rows.
    """
    count_a, count_b = (group_counts(g, name, n_clusters, g.size[None])[0] for g in (a, b))
    norm = count_norms(count_a, count_b)
    if not n_boot:
        none = np.full(len(KINDS), np.nan)
        return Comparison(norm, none, none, none, np.empty((0, len(KINDS))))
    most = max(len(a.size) + len(b.size), count_a.size)
    blocks = np.diff([*range(0, n_boot, max(1, _BLOCK // most)), n_boot])
    resampled = _Resampled(a, b, name, count_a, count_b)
    streams = (np.random.default_rng(seeds[0]), np.random.default_rng(seeds[1]))
    replicates = np.concatenate([resampled.add(n, streams) for n in blocks])
    resampled.exchange_rare_rows(n_boot, np.random.default_rng(seeds[2]))
    return Comparison(norm, *resampled.noise.interval(), replicates)


class _Resampled:
    """The noise in the differences of two sites, by drawing their patients again."""

    def __init__(
        self,
        a: Grouped,
        b: Grouped,
        name: str,
        count_a: NDArray[np.float64],
        count_b: NDArray[np.float64],
    ) -> None:
        self.groups, self.name, self.counts = (a, b), name, (count_a, count_b)
        difference = np.nan_to_num(rates(count_a) - rates(count_b))
        self.noise = Noise(difference, row_weights(count_a, count_b))
        self.patients = [leaving_patients(g, name, len(count_a)) for g in (a, b)]

    def add(
        self, n: int, streams: tuple[np.random.Generator, np.random.Generator]
    ) -> NDArray[np.float64]:
        """Draw each site's patients with replacement n times; return the samples' norms, (n, 3).

        Deviations are widened by √(m/(m − 1)) for m patients, since those of m drawn from m are
        too small by that.
        """
        deviation: Any = 0.0
        samples = []
        for g, count, m, rng, sign in zip(
            self.groups, self.counts, self.patients, streams, (1, -1), strict=True
        ):
            drawn = rng.multinomial(g.size.sum(), g.size / g.size.sum(), size=n)
            samples.append(group_counts(g, self.name, len(count), drawn))
            wider = np.sqrt(m / np.maximum(m - 1, 1))[..., None]
            deviation = deviation + sign * wider * np.nan_to_num(rates(samples[-1]) - rates(count))
        self.noise.add(deviation)
        return count_norms(*samples)

    def exchange_rare_rows(self, n: int, rng: np.random.Generator) -> None:
        """Replace the deviations of rows that few patients leave at one of the sites.

        A bootstrap of one or two patients varies hardly or not at all. There, the patients who
        leave the state are dealt to the two sites at random, as many to each as it has.
        """
        m_a, m_b = self.patients
        rare = (np.minimum(m_a, m_b) < _RARE) & (m_a > 0) & (m_b > 0)
        for k, i in np.argwhere(rare):
            parts, size = self._leavers(k, i)
            dealt = rng.multivariate_hypergeometric(size, m_a[k, i], n, method="marginals")
            deviation = rates(dealt @ parts) - rates((size - dealt) @ parts)
            self.noise.replace_row(k, i, deviation)

    def _leavers(self, k: int, i: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Distinct counts of row i of both sites' patients in cluster k, and how many have them."""
        parts, sizes = [], []
        for g in self.groups:
            s = g.n_states
            rows = np.flatnonzero(g.member[self.name] == k)
            part = g.steps[rows][:, i * s : (i + 1) * s].toarray()
            leaves = part.any(axis=1)
            parts.append(part[leaves])
            sizes.append(g.size[rows][leaves])
        distinct, number = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
        return distinct, np.bincount(number.ravel(), np.concatenate(sizes)).astype(np.intp)
