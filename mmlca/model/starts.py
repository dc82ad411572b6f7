"""Where EM begins: random and data-driven starting values, and kicks out of local maxima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from font.probabilities import probabilities
from mmlca.model.params import Floats
from mmlca.sequences.patterns import Patterns

Start = tuple[Floats, Floats]  # cells (K, C), shares (K,) or (H, K)
Memberships = Floats  # (U, K): each pattern's class probabilities

_POOLED = 0.5  # pseudo-count of each cell of the chain of all patients, which smooths the others

KINDS = ("seeded", "random", "seeded", "partition")
KICKS = ("reassign", "split", "swap", "cross", "classes", "states")


def reassigned(
    memberships: Memberships, shares: Sequence[float], rng: np.random.Generator
) -> Memberships:
    """Memberships (R, K) after one of these shares of the rows got any class."""
    n_rows, k = memberships.shape
    changed = memberships.copy()
    moved = np.flatnonzero(rng.random(n_rows) < rng.choice(shares))
    changed[moved] = np.eye(k)[rng.integers(k, size=len(moved))]
    return changed


class Place(NamedTuple):
    """Parameters, with shares (K,) or by group (H, K), and the memberships (U, K) they give."""

    cells: Floats
    shares: Floats
    posterior: Memberships


class Starter:
    """Draws starting values for K classes from a pattern table; steps over gaps are left out."""

    def __init__(self, patterns: Patterns, n_classes: int, rng: np.random.Generator) -> None:
        self.n_states = patterns.n_states
        self.n_classes = n_classes
        self.rng = rng
        cell = patterns.cell[patterns.tokens]
        plain = cell < patterns.n_cells
        row = np.repeat(np.arange(len(patterns)), np.diff(patterns.indptr))[plain]
        count = patterns.times[patterns.tokens][plain].astype(float)
        shape = (len(patterns), patterns.n_cells)
        self.counts = sparse.csr_array((count, (row, cell[plain])), shape)
        self.visitors = sparse.csc_array(self.counts)  # column c: the patterns that visit cell c
        self.weights = patterns.weights
        self.pooled = self._rows(self.weights @ self.counts, _POOLED)
        self.own = self._own_likelihoods()
        share = self.weights @ (self.counts > 0) / self.weights.sum()
        self.common = np.clip(share, 1e-9, 1 - 1e-9)

    # --- starts -----------------------------------------------------------------------

    def draw(self, kind: str) -> Start:
        """A start of the given kind: "seeded", "random" or "partition"."""
        if kind == "random":
            cells = self.rng.standard_exponential((self.n_classes, len(self.pooled)))
            return self._rows(cells), np.full(self.n_classes, 1 / self.n_classes)
        if kind == "partition":
            classes = self.rng.integers(self.n_classes, size=len(self.weights))
        else:
            classes = self._seeded_classes()
        return self._from_memberships(np.eye(self.n_classes)[classes], 1.0)

    def grow(self, posterior: Memberships) -> Start:
        """From a maximum with one class fewer: the new class is a pattern and some that share
        a rare step with it."""
        rng = self.rng
        memberships = np.hstack([posterior, np.zeros((len(self.weights), 1))])
        seed = rng.choice(len(self.weights), p=self.weights / self.weights.sum())
        moved = np.array([seed])
        begin, end = self.counts.indptr[seed : seed + 2]
        if end > begin:  # a pattern may consist of gaps alone
            cells = self.counts.indices[begin:end]
            rare = 1 / self.common[cells]
            visitors = self._visitors(rng.choice(cells, p=rare / rare.sum()))
            alike = visitors[rng.random(len(visitors)) < rng.choice([0.3, 1.0])]
            moved = np.append(alike, seed)
        memberships[moved] = np.eye(self.n_classes)[-1]
        return self._from_memberships(memberships, 0.1)

    # --- kicks ------------------------------------------------------------------------

    def kick(self, kind: str, here: Place, others: Sequence[Place]) -> Start:
        """Out of a local maximum, given other maxima.

        "reassign": some patterns get any class. "swap": those that share a step or a state
        change between two classes. "split": one class is dropped and another split. With
        another maximum, its classes matched to these: "cross", patterns that share a step or a
        state get the memberships they have there; "classes" and "states", some classes, or all
        rows of some states, are taken from there.
        """
        rng, k = self.rng, self.n_classes
        if kind == "split":
            return self._split(here)
        if kind in ("cross", "classes", "states") and others:
            other = self._match_classes(others[int(rng.integers(len(others)))], here)
            if kind != "cross":
                return self._mix(here, other, kind)
        else:
            other = here
        if kind == "reassign":
            memberships = reassigned(here.posterior, [0.05, 0.15, 0.3], rng)
        else:
            memberships = here.posterior.copy()
            moved = self._choose_alike()
            if other is not here:
                memberships[moved] = other.posterior[moved]
            else:
                pair = rng.choice(k, 2, replace=False)
                memberships[np.ix_(moved, pair)] = memberships[np.ix_(moved, pair[::-1])]
        return self._from_memberships(memberships, 0.1)

    def _match_classes(self, other: Place, here: Place) -> Place:
        """Another maximum with its classes in the order of those here that share most patients."""
        overlap = (here.posterior * self.weights[:, None]).T @ other.posterior
        order = linear_sum_assignment(-overlap)[1]
        return Place(other.cells[order], other.shares[..., order], other.posterior[:, order])

    def _mix(self, here: Place, other: Place, kind: str) -> Start:
        """Half of the classes, or of the states' rows, from another maximum."""
        rows = (self.n_classes, self.n_states + 1, self.n_states)
        if kind == "classes":
            taken = self.rng.random(self.n_classes) < 0.5
            shares = np.where(taken, other.shares, here.shares)
            chosen = taken[:, None, None]
        else:
            shares = here.shares
            chosen = (self.rng.random(self.n_states + 1) < 0.4)[:, None]
        cells = np.where(chosen, other.cells.reshape(rows), here.cells.reshape(rows))
        shares = shares / shares.sum(axis=-1, keepdims=True)
        return self._rows(cells.reshape(here.cells.shape), 1e-6), shares

    def _split(self, here: Place) -> Start:
        cells, shares = here.cells.copy(), here.shares.copy()
        dropped, split = self.rng.choice(self.n_classes, 2, replace=False)
        noise = self.rng.standard_exponential(cells.shape[1])
        cells[dropped] = self._rows(cells[split] * noise, 1e-4)
        shares[..., split] /= 2
        shares[..., dropped] = shares[..., split]
        return cells, shares / shares.sum(axis=-1, keepdims=True)

    def _choose_alike(self) -> NDArray[Any]:
        """The patterns that visit a random step, or a random state."""
        if self.rng.random() < 0.5:
            spread = np.sqrt(self.common * (1 - self.common))
            return self._visitors(self.rng.choice(len(spread), p=spread / spread.sum()))
        into = range(self.rng.integers(self.n_states), len(self.common), self.n_states)
        rows = np.concatenate([self._visitors(cell) for cell in into])
        return np.unique(rows)

    def _visitors(self, cell: int) -> NDArray[Any]:
        begin, end = self.visitors.indptr[cell : cell + 2]
        rows: NDArray[Any] = self.visitors.indices[begin:end]
        return rows

    # --- inside -----------------------------------------------------------------------

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

    def _own_likelihoods(self) -> Floats:
        """Each pattern's log-likelihood under a chain fitted to it alone, smoothed."""
        if not self.counts.nnz:  # all patterns consist of gaps alone
            return np.zeros(len(self.weights))
        row = np.repeat(np.arange(len(self.weights)), np.diff(self.counts.indptr))
        state = self.counts.indices // self.n_states
        left = sparse.csr_array(
            (self.counts.data, (row, state)), (len(self.weights), self.n_states + 1)
        )
        rate = (self.counts.data + self.pooled[self.counts.indices]) / (left[row, state] + 1)
        terms = self.counts.data * np.log(rate)
        return np.bincount(row, weights=terms, minlength=len(self.weights)).astype(float)

    def _from_memberships(self, memberships: Floats, smooth: float) -> Start:
        """Chains fitted to memberships (U, K), smoothed by the pooled chain."""
        weighted = memberships * self.weights[:, None]
        cells = self._rows((self.counts.T @ weighted).T, smooth * self.pooled)
        return cells, probabilities(weighted.sum(axis=0), smooth)

    def _rows(self, cells: Floats, prior: Floats | float = 0.0) -> Floats:
        """Cells made to sum to one in each row of states."""
        table = (cells + prior).reshape(*cells.shape[:-1], self.n_states + 1, self.n_states)
        return probabilities(table).reshape(cells.shape)
