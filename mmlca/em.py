"""Fitting: EM runs on a pattern table, from given values or from a search over many starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.params import MarkovParams
from mmlca.patterns import Patterns
from mmlca.starts import KINDS, Start, Starter

SAME = 0.01  # two maxima this close in log-likelihood are one

# The search, chosen by measurement on six data sets with K = 2 … 6 (tests/bench/).
_SHORT, _TRY = 15, 30  # updates of a start before they are compared, of a try to leave a maximum
_LONG, _ROUGH = 300, 1e-4  # most updates, and tolerance, of a run that is followed
_FOLLOWED = 12  # starts that are followed to their maximum
_CHAINS = 6  # different maxima from which the search goes on
_KICKS = 4  # tries to leave a maximum, of which the best is followed
_SHAKE = 3  # every third round of tries shakes all probabilities instead of splitting a class
_AGREE, _FRUITLESS = 3, 8  # chains at one maximum, and rounds without a better one, to stop
_SCREEN = 5_000  # patients in the search where there are more patterns than this


class Settings(NamedTuple):
    """How EM runs. `prior`: pseudo-count of each cell and class; `zeros` (C,): forbidden cells."""

    prior: float
    zeros: NDArray[np.bool_]
    max_iter: int
    tol: float
    accelerate: bool


@dataclass(eq=False)
class Run:
    """One EM run: where it is and how it got there."""

    cells: NDArray[np.float64]
    shares: NDArray[np.float64]
    path: NDArray[np.float64]
    converged: bool
    members: NDArray[np.float64] = field(repr=False)

    @property
    def value(self) -> float:
        """The penalised log-likelihood; −inf for a run that failed."""
        return -np.inf if self.failed else float(self.path[-1, 1])

    @property
    def failed(self) -> str:
        if not np.isfinite(self.path[-1, 1]):
            return "impossible data"
        return "a class emptied" if (self.members < 1e-6).any() else ""

    @property
    def status(self) -> str:
        if self.failed:
            return f"failed: {self.failed}"
        return "converged" if self.converged else "stopped at max_iter"


class Fit(NamedTuple):
    """A finished fit: classes by decreasing size, and the record of all starts."""

    params: MarkovParams
    path: NDArray[np.float64]
    converged: bool
    posterior: NDArray[np.float64]
    unsupported: NDArray[np.bool_]
    starts: pd.DataFrame
    n_replicated: int


def fit_from(patterns: Patterns, init: MarkovParams, settings: Settings) -> Fit:
    """One EM run from exactly the given parameters; their zeros stay zero."""
    run = run_em(patterns, _cells(init), init.weights, settings, zeros=_cells(init) == 0)
    return _finish(patterns, run, pd.DataFrame([_row("given", run)]), 1)


def fit_search(
    patterns: Patterns,
    n_classes: int,
    settings: Settings,
    n_init: int,
    rng: np.random.Generator,
    n_jobs: int,
) -> Fit:
    """The best of many starts.

    1. `n_init` starts of different kinds make a few updates; the best are followed to their
       maxima.
    2. If these differ, each becomes a chain that is kicked: one class dropped and another
       split, or everything shaken; the best of a few tries is followed and replaces the
       chain's maximum if it is better. This ends when three chains have come to the same
       maximum and stay there, or when every chain failed n_init / 2 times in a row.
    3. What was found is polished to the tolerance asked for.

    With very many patterns steps 1 and 2 look at a random sample of patients.
    """
    if n_classes == 1:
        start = (Starter(patterns, 1, rng).pooled[None], np.ones(1))
        run = run_em(patterns, *start, settings)
        return _finish(patterns, run, pd.DataFrame([_row("pooled", run)]), 1)
    sample = _sample(patterns, rng)
    starter = Starter(sample, n_classes, rng)
    rough = settings._replace(max_iter=min(_LONG, settings.max_iter), tol=_ROUGH, accelerate=True)
    with ThreadPoolExecutor(n_jobs) as pool:

        def spread(call: Callable[[Any], Run], items: list[Any]) -> list[Run]:
            return list(pool.map(call, items) if n_jobs > 1 else map(call, items))

        def begin(starts: list[Start], n_updates: int) -> list[Run]:
            short = rough._replace(max_iter=min(n_updates, settings.max_iter))
            return spread(lambda start: run_em(sample, start[0], start[1], short), starts)

        def follow(runs: list[Run]) -> list[Run]:
            return spread(lambda run: _go_on(sample, run, rough), runs)

        kinds = [KINDS[i % len(KINDS)] for i in range(n_init)]
        screened = begin([starter.draw(kind) for kind in kinds], _SHORT)
        order = sorted(range(n_init), key=lambda i: -screened[i].value)[:_FOLLOWED]
        followed = follow([screened[i] for i in order])
        first_chains = _distinct(followed)
        chains = list(first_chains)
        n_failures, n_kicks = [0] * len(chains), [0] * len(chains)
        patience = max(1, n_init // 2)
        for n_rounds in range(2 * patience):
            live = [c for c, n in enumerate(n_failures) if n < patience]
            if not live or _agreed(chains, min(n_failures)):
                break
            kicks = [
                starter.kick((chains[c].cells, chains[c].shares), n_rounds % _SHAKE == _SHAKE - 1)
                for c in live
                for _ in range(_KICKS)
            ]
            tried = begin(kicks, _TRY)
            best = [
                max(tried[i * _KICKS : (i + 1) * _KICKS], key=lambda r: r.value)
                for i in range(len(live))
            ]
            for c, run in zip(live, follow(best), strict=True):
                n_kicks[c] += _KICKS
                if run.value > chains[c].value + SAME:
                    chains[c], n_failures[c] = run, 0
                else:
                    n_failures[c] += 1
        finals = sorted(chains, key=lambda run: -run.value)[: None if sample is patterns else 2]
        ends = spread(lambda run: _go_on(patterns, run, settings, sample is patterns), finals)
    top = max(ends, key=lambda run: run.value)
    record = [_row(kind, run, "screened out") for kind, run in zip(kinds, screened, strict=True)]
    for i, run in zip(order, followed, strict=True):
        record[i] = _row(kinds[i], run)
    record += [
        _row("improved", run, n_kicks=n) for run, n in zip(chains, n_kicks, strict=True) if n
    ]
    best_found = max(run.value for run in chains)
    arrived = [run for run in followed if run not in first_chains] + chains
    n_replicated = sum(run.value > best_found - SAME for run in arrived)
    return _finish(patterns, top, pd.DataFrame(record), n_replicated)


def run_em(
    patterns: Patterns,
    cells: NDArray[np.float64],
    shares: NDArray[np.float64],
    settings: Settings,
    zeros: NDArray[np.bool_] | None = None,
) -> Run:
    """EM from cells (K, C) and shares (K,)."""
    from mmlca import _kernels

    n_classes, n_cells = cells.shape
    if settings.zeros.any():
        table = np.where(settings.zeros, 0, cells).reshape(n_classes, -1, patterns.n_states)
        sums = table.sum(axis=-1, keepdims=True)
        cells = np.divide(table, sums, out=table, where=sums > 0).reshape(cells.shape)
    forbidden = np.broadcast_to(settings.zeros, cells.shape)
    prior = np.full((n_classes, n_cells + 1), settings.prior)
    prior[:, :-1][forbidden if zeros is None else forbidden | zeros] = -1
    chance = _lanes(np.hstack([cells, np.ones((n_classes, len(patterns.gaps)))]), 0.5)
    share = _lanes(shares[:, None], 0.0)[:, 0, :].copy()
    path = np.empty((settings.max_iter + 1, 2))
    n_done, converged = _kernels.em(
        _table(patterns),
        _lanes(prior, -1.0),
        chance,
        share,
        settings.max_iter,
        settings.tol,
        settings.accelerate,
        path,
    )
    shares = share.ravel()[:n_classes].copy()
    return Run(
        _unlanes(chance, n_classes)[:, :n_cells],
        shares,
        path[: n_done + 1].copy(),
        converged,
        shares * (patterns.weights.sum() + n_classes * settings.prior) - settings.prior,
    )


class EStep(NamedTuple):
    """What an E-step gives for U patterns: everything about them, given the parameters."""

    logliks: NDArray[np.float64]
    posterior: NDArray[np.float64]
    visits: NDArray[np.float64]


def e_step(patterns: Patterns, params: MarkovParams) -> EStep:
    """Log-likelihoods (U,) and class probabilities (U, K) of patterns, expected visits (K, C)."""
    from mmlca import _kernels

    cells, n_classes = _cells(params), params.n_classes
    chance = _lanes(np.hstack([cells, np.ones((n_classes, len(patterns.gaps)))]), 0.5)
    share = _lanes(params.weights[:, None], 0.0)[:, 0, :].copy()
    expected, members = np.empty_like(chance), np.empty_like(share)
    posterior, logs = np.empty((len(share), len(patterns), 4)), np.empty(len(patterns))
    _kernels.e_step(_table(patterns), chance, share, expected, members, posterior, logs)
    of_pattern = posterior.transpose(1, 0, 2).reshape(len(patterns), -1)[:, :n_classes]
    return EStep(logs, of_pattern, _unlanes(expected, n_classes)[:, : cells.shape[1]])


# --- inside ----------------------------------------------------------------------------


def _go_on(patterns: Patterns, run: Run, settings: Settings, same: bool = True) -> Run:
    """Take a run further; its path goes on too if it was made on the same patterns."""
    further = run_em(patterns, run.cells, run.shares, settings)
    if same:
        further.path = np.concatenate([run.path[:-1], further.path])
    return further


def _finish(patterns: Patterns, run: Run, starts: pd.DataFrame, n_replicated: int) -> Fit:
    """Order the classes by size, mark rows without support, and make the final E-step."""
    s = patterns.n_states
    order = np.argsort(-run.shares, kind="stable")
    params = MarkovParams(
        run.shares[order],
        run.cells[order, s * s :],
        run.cells[order, : s * s].reshape(-1, s, s),
    )
    last = e_step(patterns, params)
    visits = last.visits.reshape(len(order), s + 1, s).sum(axis=-1)[:, :s]
    return Fit(params, run.path, run.converged, last.posterior, visits < 1e-6, starts, n_replicated)


def _distinct(runs: list[Run]) -> list[Run]:
    """The best runs that ended at different maxima."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda r: -r.value):
        if not kept or run.value < kept[-1].value - SAME:
            kept.append(run)
    return kept[:_CHAINS]


def _agreed(chains: list[Run], n_fruitless: int) -> bool:
    """One maximum from the start, or chains that came to the same one and stay there."""
    best = max(run.value for run in chains)
    n_there = sum(run.value > best - SAME for run in chains)
    return len(chains) == 1 or (n_there >= min(_AGREE, len(chains)) and n_fruitless >= _FRUITLESS)


def _row(kind: str, run: Run, status: str = "", n_kicks: int = 0) -> dict[str, Any]:
    """A line of the table of starts: what it was, and what became of it."""
    return {
        "kind": kind,
        "loglik": float(run.path[-1, 0]),
        "iterations": len(run.path) - 1,
        "kicks": n_kicks,
        "status": run.status if run.failed or not status else status,
    }


def _sample(patterns: Patterns, rng: np.random.Generator) -> Patterns:
    """The patterns, or if they are too many those of a random sample of patients."""
    if len(patterns) <= _SCREEN:
        return patterns
    counts = rng.multinomial(_SCREEN, patterns.weights / patterns.weights.sum())
    return patterns.take(np.flatnonzero(counts), counts[counts > 0].astype(float))


def _cells(params: MarkovParams) -> NDArray[np.float64]:
    return np.hstack([params.transition.reshape(params.n_classes, -1), params.initial])


def _table(patterns: Patterns) -> tuple[Any, ...]:
    return (
        patterns.n_states,
        patterns.indptr,
        patterns.tokens,
        patterns.cell,
        patterns.times,
        patterns.gaps,
        patterns.weights,
    )


def _lanes(rows: NDArray[np.float64], filler: float) -> NDArray[np.float64]:
    """(K, R) → (L, R, 4), the layout of the kernels; lanes without a class get the filler."""
    n_classes, n_rows = rows.shape
    n_lanes = -(-n_classes // 4)
    padded = np.full((4 * n_lanes, n_rows), filler)
    padded[:n_classes] = rows
    return np.ascontiguousarray(padded.reshape(n_lanes, 4, n_rows).transpose(0, 2, 1))


def _unlanes(lanes: NDArray[np.float64], n_classes: int) -> NDArray[np.float64]:
    """(L, R, 4) → (K, R)."""
    return lanes.transpose(0, 2, 1).reshape(-1, lanes.shape[1])[:n_classes]
