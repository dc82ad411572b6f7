"""What the uncertainty of a model's parameters does to memberships, for the third step.

The parameters are moved one at a time (on the scale of logits, so that rows still add up to 1), and
an E-step on the pattern table shows how likelihoods and memberships follow. This covers missing
states too, and costs two E-steps per parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmlca.model import em
from mmlca.model.params import MarkovParams
from mmlca.model.third_step import Floats
from mmlca.sequences.type import Sequences

_STEP = 1e-4
_EMPTY = 1e-6


class FirstStep(NamedTuple):
    """How each patient moves the parameters, (n, P), and how these move D and the shares.

    `errors` (K·K, P): derivatives of D; `shares` (K, P): of the classes' sizes.
    """

    terms: Floats
    errors: Floats
    shares: Floats


def first_step(params: MarkovParams, data: Sequences, assigned: Floats, case: Floats) -> FirstStep:
    """The effects of a model's parameters on D, given assignments (n, K) and case weights."""
    inverse, total = data.patterns.inverse, case.sum()
    n_patterns = len(data.patterns)
    weight = np.bincount(inverse, weights=case, minlength=n_patterns)
    given = np.column_stack(  # cases of each pattern by assigned class
        [np.bincount(inverse, weights=case * w, minlength=n_patterns) for w in assigned.T]
    )
    base = em.e_step(data.patterns, params)
    table = base.posterior.T @ given / total
    share = base.posterior.T @ weight / total
    scores, errors, shares = [], [], []
    possible = np.isfinite(base.logliks)  # patients without weight may be impossible
    for up, down, width in _moved(params):
        above, below = em.e_step(data.patterns, up), em.e_step(data.patterns, down)
        slope = (above.posterior - below.posterior) / width
        change = np.subtract(above.logliks, below.logliks, out=np.zeros(n_patterns), where=possible)
        scores.append(change / width)
        moved = slope.T @ weight / total
        shares.append(moved)
        by_class = slope.T @ given / total
        errors.append((by_class - table / share[:, None] * moved[:, None]) / share[:, None])
    score = np.column_stack(scores) if scores else np.zeros((n_patterns, 0))
    information = (score * weight[:, None]).T @ score / total
    influence = score @ np.linalg.pinv(information, rcond=1e-9, hermitian=True)
    terms = influence[inverse] * (case / case.mean())[:, None]
    k = params.n_classes
    return FirstStep(
        terms,
        np.array(errors).reshape(-1, k * k).T,
        np.array(shares).reshape(-1, k).T,
    )


def _moved(params: MarkovParams) -> Iterator[tuple[MarkovParams, MarkovParams, float]]:
    """Each free logit moved up and down, and the distance between the two."""
    k, s = params.initial.shape
    rows = [params.weights[None], params.initial, params.transition.reshape(k * s, s)]
    for part, table in enumerate(rows):
        for r, row in enumerate(table):
            free = np.flatnonzero(row > _EMPTY)
            for j in free[1:]:  # the first free cell of a row is its reference
                pair = []
                for sign in (1, -1):
                    moved = [t.copy() for t in rows]
                    moved[part][r] = _tilted(row, j, sign * _STEP)
                    weights, initial, transition = moved
                    pair.append(MarkovParams(weights[0], initial, transition.reshape(k, s, s)))
                yield pair[0], pair[1], 2 * _STEP


def _tilted(row: NDArray[np.float64], j: int, by: float) -> NDArray[np.float64]:
    odds = row.copy()
    odds[j] *= np.exp(by)
    odds /= odds.sum()
    return odds
