"""Are k classes better than k − 1? The likelihood-ratio test, by simulation.

Under the hypothesis of k − 1 classes some parameters of the larger model lie on the boundary or
mean nothing, so that the ratio does not follow a χ² distribution. What it does follow is seen by
simulation from the smaller model (McLachlan 1987). The test of Vuong, Lo, Mendell and Rubin, which
uses a weighted sum of χ² in its place, is not offered: its proof needs conditions that mixtures
break (Jeffries 2003), and it rejects at another rate than it says (Nylund et al. 2007).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from os import cpu_count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from font.checks import whole_number
from font.errors import InputError
from mmlca.model.checks import AnySequences, as_sequences
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.params import MarkovParams, Seed
from mmlca.model.simulate import draw_like
from mmlca.sequences.type import Sequences

_ALPHA = 0.05  # the level that a test that ends early is clear about
_FEWEST = 10  # simulations before a test may end early
_CLEAR = 0.99  # coverage of the interval of the p-value that must exclude the level


@dataclass(frozen=True, eq=False)
class LikelihoodRatioTest:
    """What `bootstrap_lrt` gives.

    Parameters
    ----------
    k : int
        The larger number of classes; the hypothesis is that k − 1 are enough.
    statistic : float
        Twice the difference of the log-likelihoods.
    p_value : float
        (1 + simulated statistics at least as large) / (1 + simulations).
    mc_error : float
        How far the p-value may be off because simulations are few: the standard deviation of the
        share of larger statistics, given those seen and a uniform prior.
    low, high : float
        95 % interval of the p-value that endless simulation would give.
    simulated : (n,)
        The simulated statistics.
    ended_early : bool
        Whether fewer simulations than asked for made the answer clear.
    loglik : float
        Log-likelihood of the smaller model.
    """

    k: int
    statistic: float
    p_value: float
    mc_error: float
    low: float
    high: float
    simulated: NDArray[np.float64]
    ended_early: bool
    loglik: float

    def __repr__(self) -> str:
        more = "are better than" if self.p_value <= _ALPHA else "are not clearly better than"
        early = ", ended early" if self.ended_early else ""
        return (
            f"{self.k} classes {more} {self.k - 1}: 2·log ratio {self.statistic:.2f}, "
            f"p = {self.p_value:.3f} ± {self.mc_error:.3f} "
            f"({len(self.simulated)} simulations{early})"
        )


def bootstrap_lrt(
    sequences: AnySequences,
    k: int,
    n: int = 99,
    seed: Seed = None,
    *,
    n_init: int = 8,
    stop_early: bool = True,
    n_jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> LikelihoodRatioTest:
    """Test whether k classes fit better than k − 1, by simulation from k − 1 classes.

    Data of the same size, with the same lengths and the same missing states, are simulated from
    the model with k − 1 classes; both models are fitted to them. The observed ratio is compared
    with those of the simulated data. All fits, that to the observed data too, search equally hard,
    so that the comparison is fair.

    Parameters
    ----------
    sequences : Sequences, DataFrame (wide) or integer array
    k : the larger number of classes, at least 2
    n : number of simulations, at most
    seed : int or Generator, optional
    n_init : starts of each fit
    stop_early : bool
        End as soon as it is clear on which side of 0.05 the p-value lies: after ten simulations or
        more, when its 99 % interval does not contain 0.05.
    n_jobs : threads; −1: one per processor. They do not change the result
    progress : called with the number of simulations done and n
    **settings : passed to `MixtureMarkov`

    Returns
    -------
    LikelihoodRatioTest
        With `statistic`, `p_value` and `mc_error`.

    Examples
    --------
    >>> from mmlca import MarkovParams, simulate
    >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
    >>> bootstrap_lrt(simulate(two, 200, 12, seed=1)[0], 2, n=19, seed=1).p_value
    0.05
    """
    whole_number(k, 2, "k")
    whole_number(n, 1, "n")
    data = as_sequences(sequences)
    if not data.weights.sum() > 0:
        raise InputError("there is nothing to test: no sequence has a weight above 0.")
    data = data if (data.weights > 0).all() else data[data.weights > 0]
    rng = np.random.default_rng(seed)
    fit = partial(_fit, n_init=n_init, settings=settings)
    start = int(rng.integers(2**63))
    fewer = fit(data, k - 1, start)
    observed = max(0.0, 2 * (fit(data, k, start).loglik_ - fewer.loglik_))
    one = partial(_simulated, fewer.params_, data, k, fit)
    simulated: list[float] = []
    ended_early = False
    n_jobs = n_jobs if n_jobs > 0 else cpu_count() or 1
    for value in _in_order(one, rng.spawn(n), n_jobs):
        simulated.append(value)
        if progress is not None:
            progress(len(simulated), n)
        if stop_early and _FEWEST <= len(simulated) < n:
            low, high = _limits(_n_above(simulated, observed), len(simulated), _CLEAR)
            ended_early = not low <= _ALPHA <= high
            if ended_early:
                break
    above, done = _n_above(simulated, observed), len(simulated)
    p = (1 + above) / (1 + done)
    error = float(beta.std(above + 1, done - above + 1))
    limits = _limits(above, done, 0.95)
    return LikelihoodRatioTest(
        k, observed, p, error, *limits, np.array(simulated), ended_early, fewer.loglik_
    )


def _fit(
    data: Sequences, k: int, seed: int, n_init: int, settings: dict[str, Any]
) -> MixtureMarkov:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best of|EM stopped")
        return MixtureMarkov(k, n_init=n_init, seed=seed, **settings).fit(data)


def _simulated(
    params: MarkovParams,
    data: Sequences,
    k: int,
    fit: Callable[[Sequences, int, int], MixtureMarkov],
    rng: np.random.Generator,
) -> float:
    """The statistic of simulated data; 0 where they are too alike for k classes."""
    copy = Sequences.from_codes(draw_like(params, data, rng), data.states, weights=data.weights)
    if k > len(copy.patterns):
        return 0.0
    seed = int(rng.integers(2**63))
    return float(max(0.0, 2 * (fit(copy, k, seed).loglik_ - fit(copy, k - 1, seed).loglik_)))


def _in_order(
    call: Callable[[np.random.Generator], float], rngs: list[np.random.Generator], n_jobs: int
) -> Iterator[float]:
    """Results in the order of the generators, a few at a time, so that one may end early."""
    if n_jobs == 1:
        yield from map(call, rngs)
        return
    with ThreadPoolExecutor(n_jobs) as pool:
        for begin in range(0, len(rngs), n_jobs):
            yield from pool.map(call, rngs[begin : begin + n_jobs])


def _n_above(simulated: list[float], observed: float) -> int:
    return sum(value >= observed - 1e-6 for value in simulated)


def _limits(above: int, done: int, coverage: float) -> tuple[float, float]:
    """Interval of Clopper and Pearson for a share of `above` in `done`."""
    tail = (1 - coverage) / 2
    low = float(beta.ppf(tail, above, done - above + 1)) if above else 0.0
    high = float(beta.ppf(1 - tail, above + 1, done - above)) if above < done else 1.0
    return low, high
