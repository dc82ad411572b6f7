"""Where EM begins: random and data-driven starting values, and kicks out of local maxima.

Parameters are handled here as rows of cells (K, C), C = S·(S + 1): transitions row by row,
then the initial distribution (see `mmlca.patterns.Patterns`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mmlca.patterns import Patterns

Start = tuple[NDArray[np.float64], NDArray[np.float64]]  # cells (K, C), shares (K,)

KINDS = ("seeded", "random", "seeded", "partition")


class Starter:
    """Draws starting values for K classes from a pattern table; steps over gaps are left out."""

    def __init__(self, patterns: Patterns, n_classes: int, rng: np.random.Generator) -> None:
        self.n_states = patterns.n_states
        self.n_classes = n_classes
        self.rng = rng
        n_cells = self.n_states * (self.n_states + 1)
        cell = patterns.cell[patterns.tokens]
        plain = cell < n_cells
        row = np.repeat(np.arange(len(patterns)), np.diff(patterns.indptr))[plain]
        count = patterns.times[patterns.tokens][plain].astype(float)
        self.counts = sparse.csr_array((count, (row, cell[plain])), (len(patterns), n_cells))
        self.weights = patterns.weights
        self.pooled = self._rows(self.weights @ self.counts + 0.5)
        self.own = self._own_likelihoods()

    def draw(self, kind: str) -> Start:
        """A start of the given kind: "seeded", "random" or "partition"."""
        if kind == "random":
            cells = self.rng.standard_exponential((self.n_classes, len(self.pooled)))
            return self._rows(cells), np.full(self.n_classes, 1 / self.n_classes)
        if kind == "partition":
            return self._from_classes(self.rng.integers(self.n_classes, size=len(self.weights)))
        return self._from_classes(self._seeded_classes())

    def kick(self, start: Start, shake: bool = False) -> Start:
        """Out of a local maximum: drop one class and split another, or shake all probabilities."""
        cells, shares = start[0].copy(), start[1].copy()
        if shake:
            return self._rows(cells * self.rng.standard_gamma(2.0, cells.shape) + 1e-4), shares
        dropped, split = self.rng.choice(self.n_classes, 2, replace=False)
        noise = self.rng.standard_exponential(cells.shape[1])
        cells[dropped] = self._rows(cells[split] * noise + 1e-4)
        shares[dropped] = shares[split] = shares[split] / 2
        return cells, shares / shares.sum()

    def _seeded_classes(self) -> NDArray[np.intp]:
        """As k-means++: patterns far from the seeds so far (in likelihood) become seeds."""
        likelihood = np.empty((self.n_classes, len(self.weights)))
        chance = self.weights
        for k in range(self.n_classes):
            seed = self.rng.choice(len(chance), p=chance / chance.sum())
            chain = self.pooled.copy()
            begin, end = self.counts.indptr[seed : seed + 2]
            chain[self.counts.indices[begin:end]] += self.counts.data[begin:end]
            likelihood[k] = self.counts @ np.log(self._rows(chain))
            chance = self.weights * np.maximum(self.own - likelihood[: k + 1].max(axis=0), 0)
            if not chance.sum() > 0:
                chance = self.weights
        best: NDArray[np.intp] = likelihood.argmax(axis=0)
        return best

    def _own_likelihoods(self) -> NDArray[np.float64]:
        """Each pattern's log-likelihood under a chain fitted to it alone, smoothed."""
        row = np.repeat(np.arange(len(self.weights)), np.diff(self.counts.indptr))
        state = self.counts.indices // self.n_states
        left = sparse.csr_array(
            (self.counts.data, (row, state)), (len(self.weights), self.n_states + 1)
        )
        rate = (self.counts.data + self.pooled[self.counts.indices]) / (left[row, state] + 1)
        terms = self.counts.data * np.log(rate)
        return np.bincount(row, weights=terms, minlength=len(self.weights)).astype(float)

    def _from_classes(self, classes: NDArray[np.intp]) -> Start:
        """Chains fitted to the patterns of each class, smoothed by the pooled chain."""
        member = sparse.csr_array(
            (self.weights, (classes, np.arange(len(classes)))), (self.n_classes, len(classes))
        )
        shares = member.sum(axis=1) + 1
        return self._rows((member @ self.counts).toarray() + self.pooled), shares / shares.sum()

    def _rows(self, cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cells made to sum to one in each row of states."""
        table = cells.reshape(*cells.shape[:-1], self.n_states + 1, self.n_states)
        rows: NDArray[np.float64] = table / table.sum(axis=-1, keepdims=True)
        return rows.reshape(cells.shape)
