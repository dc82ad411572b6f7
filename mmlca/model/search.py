"""The search for the highest maximum: many starts, and kicks out of local maxima.

A search keeps a list of local maxima. It kicks one of them (`Starter.kick`) and runs EM from
there in stages; a run that falls behind or returns to where it came from is dropped early, the
others end at a maximum that joins the list. The next maximum to be kicked is the best one,
unless it has been kicked so often that it is the turn of another. All steps are in this file,
because they were tuned together and share the constants below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import cpu_count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from font.probabilities import probabilities
from mmlca.model.em import Run, Settings, cells_of, e_step, params_of, row_probabilities, run_em
from mmlca.model.params import AnyParams, Floats
from mmlca.sequences.patterns import Patterns

Start = tuple[Floats, Floats]  # cells (K, C), shares (K,) or (H, K)
Memberships = Floats  # (U, K): each pattern's class probabilities
Item = TypeVar("Item")
Result = TypeVar("Result")

_POOLED = 0.5  # pseudo-count of each cell of the chain of all patients, which smooths the others

KINDS = ("seeded", "random", "seeded", "partition")
KICKS = ("reassign", "split", "swap", "cross", "classes", "states")

# Chosen by measurement on three data sets with K = 4 … 6 (tests/bench/test_bench_em.py).
_SAME, _EQUAL = 0.01, 0.001  # two maxima this close count as the same; are kept as one
_SHORT = 15  # updates of a start before they are compared
_FOLLOWED = 12  # starts that are followed to their maximum
_LONG, _ROUGH = 300, 1e-4  # most updates, and tolerance, of a run that is followed
_SEARCHES, _PLAIN = 3, 2  # independent searches; of each three, from starts of the usual kinds
_KICKED = 12  # kicks of a round
_TRY = 30  # updates after a kick, then in each stage further ones if at most so far below the best
_STAGES = ((40, 8.0), (80, 4.0), (_LONG, 2.0))
_RETURNED = 0.05  # largest difference of a probability to the kicked maximum after a return
_LAST, _ALIKE = 0.05, 0.001  # log-likelihood left to a run on its last steps to a known maximum;
# largest difference of its shares to those there (maxima 0.004 apart differ by 0.002 in shares)
_KEPT, _NEAR = 24, 5.0  # most maxima in the list of a search; how far below the best they may be
_TURN = 0.06  # log-likelihood by which each kick puts a maximum back in the order of its turn
_NOTHING = 3  # rounds without gain that a round without any new maximum counts for
_ALONE, _TOGETHER = 0.75, 2.25  # patience of searches, in rounds without gain per start
_FEWER, _GROWN = 0.75, 3  # the same with one class fewer; how many of its maxima are grown from
_MORE, _MOST = 2, 12  # in a thorough search: times the searches and their patience; joint search
_ROUNDS = 0.4  # most rounds, as a part of the patience
_AGREED = 0.75  # part of it that is enough for searches that agree with each other
_SETTLED = 3  # most rounds of kicks of the final run
_SCREEN = 5_000  # patients in the search where there are more patterns than this


class Fit(NamedTuple):
    """A finished fit: classes by decreasing size, and the record of all starts.

    `unsupported` (K, R) are rows of the chains that no patient informs. `shares` (H, K) are the
    classes' proportions in each group of patients; `n_replicated` of the `n_searches` independent
    searches reached the maximum.
    """

    params: AnyParams
    shares: Floats
    path: Floats
    converged: bool
    posterior: Floats
    unsupported: NDArray[np.bool_]
    starts: pd.DataFrame
    n_replicated: int
    n_searches: int


def search_text(n_init: int, thorough: bool) -> str:
    """How `fit_search` finds a maximum, in sentences for a methods section."""
    share = {kind: KINDS.count(kind) / len(KINDS) for kind in dict.fromkeys(KINDS)}
    agree = "not all" if thorough else "fewer than half"
    more = (_MORE if thorough else 1) * _SEARCHES
    return (
        f"Each search for the maximum began from {n_init} starts ({share['seeded']:.0%} from "
        f"groups around patients with dissimilar courses, {share['random']:.0%} from random "
        f"probabilities and {share['partition']:.0%} from random groups of patients), of which "
        f"the best {min(_FOLLOWED, n_init)} were followed to their maxima. If {agree} of "
        "these ended at the best one, or if perturbing it (moving patients between classes, "
        "splitting classes, or exchanging them with those of another maximum) led to a better one, "
        f"up to {more} independent searches perturbed their maxima until there was no further "
        "gain. Unless all of them reached the same maximum, their maxima were then combined and "
        "searched further."
    ).replace("%", " %")


def is_confirmed(n_replicated: int, n_searches: int) -> bool:
    """Whether two searches, and half of all, reached the maximum: two of six may be wrong."""
    return n_replicated >= max(2, n_searches / 2)


def in_threads(
    call: Callable[[Item], Result], items: Iterable[Item], n_jobs: int
) -> Iterator[Result]:
    """Results in the order of the items, on `n_jobs` threads (−1: one per processor)."""
    if n_jobs == 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(n_jobs if n_jobs > 0 else cpu_count() or 1) as pool:
        yield from pool.map(call, items)  # if the caller stops early, what waits is cancelled


def fit_from(patterns: Patterns, init: AnyParams, settings: Settings) -> Fit:
    """One EM run from exactly the given parameters; their zeros stay zero."""
    run = run_em(patterns, cells_of(init), init.weights, settings, zeros=cells_of(init) == 0)
    return _finish(patterns, run, [start_row("given", run)], 1, 1)


def fit_search(
    patterns: Patterns,
    n_classes: int,
    settings: Settings,
    n_init: int,
    n_jobs: int,
    rng: np.random.Generator,
    thorough: bool = False,
) -> Fit:
    """The best of many starts.

    1. `n_init` starts of different kinds make a few updates; the best twelve are followed to
       their maxima. If half of them end at the best one, and a few kicks lead to none that is
       better, the search is over.
    2. Otherwise they begin the first of three searches that know nothing of each other. The
       second has `n_init` starts of its own; the third begins at maxima with one class fewer,
       from a short search of its own, to which a class is added. Each search makes rounds of
       kicks, and ends sooner if they bring nothing new.
    3. Unless all reached the same, their maxima are put together and searched further.

    4. The best run continues to the tolerance of the settings, and is kicked a last time.

    A thorough search ends with step 1 only if all of the starts that are followed end at the best
    maximum, and twice as many kicks lead to none that is better. Step 2 has twice as many searches
    of twice the patience, and step 3 is made in any case, with twelve times the patience.

    With very many patterns steps 1 to 3 look at a random sample of patients.
    """
    if n_classes == 1:
        start = (Starter(patterns, 1, rng).pooled[None], np.ones(1))
        run = run_em(patterns, *start, settings)
        return _finish(patterns, run, [start_row("pooled", run)], 1, 1)
    runs = Runs(_sample_patients(patterns, rng), settings, n_jobs, rng)
    maxima, record, n_replicated, n_searches = _find_maxima(runs, n_classes, n_init, thorough)
    same = runs.patterns is patterns
    finals = [maximum.run for maximum in maxima[: 1 if same else 3]]
    ends = runs.map(partial(_continue_run, patterns, settings=settings, same=same), finals)
    best = max(ends, key=lambda run: run.value)
    if same and len(maxima) > 1 and settings.tol > 0:
        best = _settle(runs, best, settings)
    return _finish(patterns, best, record, n_replicated, n_searches)


def _find_maxima(
    runs: Runs, n_classes: int, n_init: int, thorough: bool
) -> tuple[list[Maximum], list[dict[str, Any]], int, int]:
    """Steps 1 to 3 of `fit_search`: maxima, the best first; record; searches that reached it."""
    starter = runs.starter(n_classes)
    searches: list[Search] = []
    record: list[dict[str, Any]] = []
    more = _MORE if thorough else 1
    for i in range(more * _SEARCHES):
        if i % _SEARCHES >= _PLAIN and n_classes > 2:
            kinds = ["grown"] * n_init
            fewer = _search_one_class_fewer(runs, n_classes - 1, n_init, more)
            starts = [starter.grow(fewer[j % len(fewer)].place.posterior) for j in range(n_init)]
        else:
            kinds, starts = starter.draw_all(n_init)
        search, followed, rows = _start_search(starter, runs, kinds, starts)
        record += rows
        n_there = sum(run.value > search.best - _SAME for run in followed)
        if i == 0 and n_there >= len(followed) / (1 if thorough else 2):
            best = search.best
            if n_there < len(followed) or thorough:
                _kick_until_no_gain([search], more * _AGREED * _ALONE * n_init)
            if search.best < best + _EQUAL:
                return search.maxima, record, n_there, len(followed)
        searches.append(search)
    searches = [search for search in searches if search.maxima]
    if not searches:  # every run failed; the best of them says why
        return [Maximum(followed[0], runs.patterns)], record, 0, i + 1
    _kick_until_no_gain(searches, more * _ALONE * n_init)
    record += [start_row("search", s.maxima[0].run, n_kicks=s.n_kicks) for s in searches]
    together = Search(starter, runs, [m for search in searches for m in search.maxima])
    if thorough or _count_at(together.best, searches) < len(searches):
        _kick_until_no_gain([together], (_MOST if thorough else 1) * _TOGETHER * n_init)
        record.append(start_row("joint search", together.maxima[0].run, n_kicks=together.n_kicks))
    return together.maxima, record, _count_at(together.best, searches), len(searches)


def _start_search(
    starter: Starter, runs: Runs, kinds: list[str], starts: list[Start]
) -> tuple[Search, list[Run], list[dict[str, Any]]]:
    """A search with the maxima of its best starts; these runs; the record of all starts."""
    screened = runs.begin(starts, _SHORT)
    order = sorted(range(len(starts)), key=lambda i: -screened[i].value)[:_FOLLOWED]
    followed = runs.follow([screened[i] for i in order], _LONG)
    rows = [start_row(kind, run, "screened out") for kind, run in zip(kinds, screened, strict=True)]
    search = Search(starter, runs)
    for i, run in zip(order, followed, strict=True):
        rows[i] = start_row(kinds[i], run)
        search.add(run)
    return search, followed, rows


def _search_one_class_fewer(runs: Runs, n_classes: int, n_init: int, more: int) -> list[Maximum]:
    """The best maxima of a short search with one class fewer."""
    starter = runs.starter(n_classes)
    search, followed, _ = _start_search(starter, runs, *starter.draw_all(n_init))
    if not search.maxima:
        return [Maximum(followed[0], runs.patterns)]
    _kick_until_no_gain([search], more * _FEWER * n_init)
    return search.maxima[:_GROWN]


class Runs:
    """EM runs of a search, several at a time."""

    def __init__(
        self, patterns: Patterns, settings: Settings, n_jobs: int, rng: np.random.Generator
    ) -> None:
        self.patterns, self.n_jobs, self.rng = patterns, n_jobs, rng
        self.max_iter = settings.max_iter
        self.settings = settings._replace(tol=_ROUGH, accelerate=True, n_confirm=2)

    def starter(self, n_classes: int) -> Starter:
        """What draws starting values for so many classes."""
        return Starter(self.patterns, n_classes, self.rng)

    def map(self, call: Callable[[Item], Run], items: Iterable[Item]) -> list[Run]:
        """Runs in the order of the items."""
        return list(in_threads(call, items, self.n_jobs))

    def begin(self, starts: list[Start], n_updates: int) -> list[Run]:
        """Runs from starting values."""
        settings = self.settings._replace(max_iter=min(n_updates, self.max_iter), tol=0)
        return self.map(lambda start: run_em(self.patterns, *start, settings), starts)

    def follow(self, runs: list[Run], n_updates: int) -> list[Run]:
        """The same runs taken further."""
        settings = self.settings._replace(max_iter=min(n_updates, self.max_iter))
        return self.map(partial(_continue_run, self.patterns, settings=settings), runs)


class Maximum:
    """A local maximum: where it is, who belongs to which class there, how often it was kicked."""

    def __init__(self, run: Run, patterns: Patterns) -> None:
        self.run, self.n_kicks = run, 0
        layout = patterns.layout
        step = e_step(patterns, params_of(run.cells, run.overall, layout), run.shares)
        self.place = Place(run.cells, run.shares, step.posterior)
        supported = layout.sums(step.visits)[:, layout.row] > 0.5
        self._compared = supported & (run.cells > 0.01)

    def is_near(self, run: Run) -> bool:
        """Whether a run that left from here has returned."""
        moved = np.abs(run.cells - self.run.cells)[self._compared]
        return bool(moved.max(initial=0.0) < _RETURNED)


class Search:
    """Local maxima, the best first, and the kicks that led to them."""

    def __init__(self, starter: Starter, runs: Runs, maxima: Iterable[Maximum] = ()) -> None:
        self.starter, self.runs = starter, runs
        self.maxima: list[Maximum] = []
        self.seen: list[float] = []
        self.n_kicks = self.n_fruitless = 0
        self.n_tried, self.n_up = np.zeros(len(KICKS)), np.zeros(len(KICKS))
        for maximum in maxima:
            self._keep(maximum)

    @property
    def best(self) -> float:
        return self.maxima[0].run.value if self.maxima else -np.inf

    def add(self, run: Run) -> bool:
        """Keep a run's maximum if it is new and not far below the best; returns whether it is."""
        new = run.value > self.best - _NEAR and self._is_new(run)
        if new:
            self._keep(Maximum(run, self.runs.patterns))
        return new

    def knows(self, run: Run) -> bool:
        """Whether a run seems to be on its last steps to a maximum of the list."""
        shares = np.sort(run.overall)
        return any(
            abs(run.value - m.run.value) < _LAST
            and np.abs(shares - np.sort(m.run.overall)).max() < _ALIKE
            for m in self.maxima
        )

    def _is_new(self, run: Run) -> bool:
        return all(abs(run.value - value) >= _EQUAL for value in self.seen)

    def _keep(self, maximum: Maximum) -> None:
        if self._is_new(maximum.run):
            self.seen.append(maximum.run.value)
            self.maxima.append(maximum)
            self.maxima.sort(key=lambda m: -m.run.value)
            del self.maxima[_KEPT:]

    def kicks(self, n: int) -> tuple[list[tuple[Maximum, str]], list[Start]]:
        """The maxima whose turn it is with the kind of kick they get, and the starts from there.

        Kinds of kicks that led further up more often come more often.
        """
        kicked, starts = [], []
        share = (self.n_up + 1) / (self.n_tried + len(KICKS))
        for kind in self.starter.rng.choice(KICKS, n, p=share / share.sum()):
            one = min(self.maxima, key=lambda m: _TURN * m.n_kicks - m.run.value)
            one.n_kicks += 1
            self.n_tried[KICKS.index(kind)] += 1
            others = [m.place for m in self.maxima if m is not one]
            starts.append(self.starter.kick(kind, one.place, others))
            kicked.append((one, kind))
        self.n_kicks += n
        return kicked, starts


def _count_at(value: float, searches: list[Search]) -> int:
    """How many searches reached a maximum of this value."""
    return sum(search.best > value - _SAME for search in searches)


def _kick_until_no_gain(searches: list[Search], patience: float) -> None:
    """Rounds of kicks in each search, two fifths of `patience` at most.

    A search ends before if it has not gained for as long as `patience`; rounds that bring
    nothing new count for more than one.
    """
    runs = searches[0].runs
    for _ in range(int(_ROUNDS * patience) + 1):
        live = [s for s in searches if s.n_fruitless < patience]
        n_agreed = _count_at(max(s.best for s in searches), searches)
        if 1 < len(searches) == n_agreed:
            live = [s for s in searches if s.n_fruitless < _AGREED * patience]
        if not live:
            return
        origin: list[tuple[Search, Maximum, str]] = []
        starts: list[Start] = []
        for search in live:
            kicked, new = search.kicks(_KICKED)
            origin += [(search, maximum, kind) for maximum, kind in kicked]
            starts += new
        going = list(zip(origin, runs.begin(starts, _TRY), strict=True))
        for n_updates, most in _STAGES:
            going = [
                (where, run)
                for where, run in going
                if run.value > where[0].best - most
                and not where[1].is_near(run)
                and not where[0].knows(run)
            ]
            followed = runs.follow([run for _, run in going], n_updates)
            going = [(where, run) for (where, _), run in zip(going, followed, strict=True)]
        before = [(search.best, len(search.seen)) for search in live]
        for (search, left, kind), run in going:
            higher = run.value > left.run.value
            search.n_up[KICKS.index(kind)] += search.add(run) and higher
        for search, (best, n_seen) in zip(live, before, strict=True):
            search.n_fruitless += 1 if len(search.seen) > n_seen else _NOTHING
            if search.best > best + _EQUAL:
                search.n_fruitless = 0


def _settle(runs: Runs, run: Run, settings: Settings) -> Run:
    """Kick a converged run until no kick leads to a better end, however little better."""
    starter = runs.starter(len(run.cells))
    for _ in range(_SETTLED):
        place = Maximum(run, runs.patterns).place
        starts = [starter.kick("reassign", place, []) for _ in range(_KICKED)]
        ends = runs.map(lambda start: run_em(runs.patterns, *start, settings), starts)
        best = max(ends, key=lambda end: end.value)
        if best.value <= run.value + settings.tol:
            break
        run = best
    return run


def _continue_run(patterns: Patterns, run: Run, settings: Settings, same: bool = True) -> Run:
    """Continue a run, and its path too if it was made on the same patterns."""
    further = run_em(patterns, *run.end, settings)
    if same:
        further.path = np.concatenate([run.path[:-1], further.path])
    return further


def _finish(
    patterns: Patterns, run: Run, record: list[dict[str, Any]], n_replicated: int, n_searches: int
) -> Fit:
    """Order the classes by size, mark rows without support, and make the final E-step."""
    order = np.argsort(-run.overall, kind="stable")
    params = params_of(run.cells[order], run.overall[order], patterns.layout)
    shares = run.shares[:, order]
    last = e_step(patterns, params, shares)
    visits = patterns.layout.sums(last.visits)
    return Fit(
        params,
        shares,
        run.path,
        run.converged,
        last.posterior,
        visits < 1e-6,
        pd.DataFrame(record),
        n_replicated,
        n_searches,
    )


def start_row(kind: str, run: Any, status: str = "", n_kicks: int = 0) -> dict[str, Any]:
    """A line of the table of starts: the kind of a run, and how it ended."""
    return {
        "kind": kind,
        "loglik": float(run.path[-1, 0]),
        "iterations": len(run.path) - 1,
        "kicks": n_kicks,
        "status": run.status if run.failed or not status else status,
    }


def _sample_patients(patterns: Patterns, rng: np.random.Generator) -> Patterns:
    """The patterns, or if they are too many those of a random sample of patients."""
    if len(patterns) <= _SCREEN:
        return patterns
    counts = rng.multinomial(_SCREEN, patterns.weights / patterns.weights.sum())
    return patterns.take(np.flatnonzero(counts), counts[counts > 0].astype(float))


# --- where runs begin: random and data-driven starts, and kicks out of local maxima -----------


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
        self.layout = patterns.layout
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

    def draw_all(self, n: int) -> tuple[list[str], list[Start]]:
        """Starts of all kinds in turn, and their kinds."""
        kinds = [KINDS[i % len(KINDS)] for i in range(n)]
        return kinds, [self.draw(kind) for kind in kinds]

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
        if kind == "classes":
            taken = self.rng.random(self.n_classes) < 0.5
            shares = np.where(taken, other.shares, here.shares)
            chosen = taken[:, None]
        else:
            shares = here.shares
            chosen = (self.rng.random(self.layout.n_states + 1) < 0.4)[self.layout.before]
        cells = np.where(chosen, other.cells, here.cells)
        shares = shares / shares.sum(axis=-1, keepdims=True)
        return self._rows(cells, 1e-6), shares

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
        into = np.flatnonzero(self.layout.after == self.rng.integers(self.layout.n_states))
        rows = np.concatenate([self._visitors(cell) for cell in into.tolist()])
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
        of_chain = self.layout.row[self.counts.indices]
        shape = (len(self.weights), len(self.layout.bounds) - 1)
        left = sparse.csr_array((self.counts.data, (row, of_chain)), shape)
        rate = (self.counts.data + self.pooled[self.counts.indices]) / (left[row, of_chain] + 1)
        terms = self.counts.data * np.log(rate)
        return np.bincount(row, weights=terms, minlength=len(self.weights)).astype(float)

    def _from_memberships(self, memberships: Floats, smooth: float) -> Start:
        """Chains fitted to memberships (U, K), smoothed by the pooled chain."""
        weighted = memberships * self.weights[:, None]
        cells = self._rows((self.counts.T @ weighted).T, smooth * self.pooled)
        return cells, probabilities(weighted.sum(axis=0), smooth)

    def _rows(self, cells: Floats, prior: Floats | float = 0.0) -> Floats:
        """Cells made to sum to one in each row of the chain."""
        return row_probabilities(cells + prior, self.layout)
