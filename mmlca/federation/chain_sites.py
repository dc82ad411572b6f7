"""Simulated sites of treatment sequences: the simulation study's grid with mixtures of chains."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, one_of, whole_number
from font.probabilities import PRIOR_OF_SENT_FITS
from font.simulation.sources import SETTINGS, GaussianSource, keyword_defaults
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.params import MarkovParams, simulate
from mmlca.sequences.type import Sequences


class ChainSites(NamedTuple):
    """Simulated sites: sequences and classes (n,) by site, where −1 is an outlying patient, not to
    be scored.

    `means` (K, S + S²) are the initial and transition probabilities of the classes; `contaminated`
    names the sites with outlying patients.
    """

    data: dict[str, Sequences]
    truth: dict[str, NDArray[np.int64]]
    means: Floats
    contaminated: tuple[str, ...]


def simulate_chains(
    setting: str,
    n_sites: int,
    quarters: int,
    seed: int | np.random.Generator = 0,
    *,
    n_classes: int = 3,
    n_states: int = 4,
    stay: float = 2.0,
    sizes: tuple[int, int] = (50, 500),
    concentration: float = 1.0,
    contaminated_sites: float = 0.2,
    outlying: float = 0.2,
) -> ChainSites:
    """Sites whose patients' sequences come from one mixture of Markov chains.

    The classes' first states are Dirichlet(1, …, 1), their transition rows the same with `stay`
    more on the present state. Shorter sequences make the classes harder to distinguish.

    Parameters
    ----------
    setting : "homogeneous", "imbalanced" or "contaminated"
        Equal class proportions; proportions of each site from a Dirichlet distribution; the
        same with patients at some sites who each have chains of their own.
    n_sites, quarters : int
        Sites, and the length of every sequence.
    seed : int or Generator
    n_classes, n_states, stay, sizes, concentration
        As described; the smallest and largest number of patients of a site; the parameter of
        the Dirichlet distribution of its class proportions.
    contaminated_sites, outlying : float
        Share of the sites with outlying patients (at least one), and how many come on top of
        the site's own, as a share of these.

    Examples
    --------
    >>> sites = simulate_chains("contaminated", 5, 16, seed=1)
    >>> len(sites.data), sites.means.shape, len(sites.contaminated)
    (5, (3, 20), 1)
    """
    one_of(setting, SETTINGS, "setting")
    n_sites = whole_number(n_sites, 1, "n_sites")
    quarters = whole_number(quarters, 1, "quarters")
    n_classes = whole_number(n_classes, 1, "n_classes")
    rng = np.random.default_rng(seed)
    classes = _chains(n_classes, n_states, stay, rng)
    n_dirty = max(1, round(contaminated_sites * n_sites)) if setting == "contaminated" else 0
    dirty = set(rng.choice(n_sites, n_dirty, replace=False).tolist())
    data, truth = {}, {}
    for number in range(n_sites):
        n = int(rng.integers(sizes[0], sizes[1] + 1))
        share = np.full(n_classes, 1 / n_classes)
        if setting != "homogeneous":
            share = rng.dirichlet(np.full(n_classes, concentration))
        n_out = round(outlying * n) if number in dirty else 0
        chains = MarkovParams(share, classes.initial, classes.transition)
        drawn, true = simulate(chains, n, quarters, rng)
        outliers = (_chains(1, n_states, 0.0, rng) for _ in range(n_out))
        strange = [simulate(one, 1, quarters, rng)[0].codes for one in outliers]
        name = f"site {number + 1}"
        data[name] = Sequences.from_codes(np.concatenate([drawn.codes, *strange]), range(n_states))
        truth[name] = np.append(true.to_numpy(), np.full(n_out, -1))
    means = np.hstack([classes.initial, classes.transition.reshape(n_classes, -1)])
    return ChainSites(data, truth, means, tuple(f"site {i + 1}" for i in sorted(dirty)))


def _chains(n: int, n_states: int, stay: float, rng: np.random.Generator) -> MarkovParams:
    initial = rng.dirichlet(np.ones(n_states), n)
    rows = [rng.dirichlet(1 + stay * np.eye(n_states)[i], n) for i in range(n_states)]
    return MarkovParams(np.full(n, 1 / n), initial, np.stack(rows, axis=1))


class ChainSource:
    """Sequences for `font.run_simulation(source=…)`, with mixtures of chains as local models."""

    axis = "quarters"
    levels = (8, 16, 32)
    defaults: Mapping[str, Any] = keyword_defaults(simulate_chains)
    methods = tuple(name for name in GaussianSource.methods if not name.startswith("k-FED"))

    def simulate(self, rng: np.random.Generator, **scenario: Any) -> ChainSites:
        return simulate_chains(**scenario, seed=rng)

    def fit(self, data: Sequences, n_classes: int, n_init: int, seed: int) -> Any:
        return _fit(data, n_classes, n_init, seed)

    def fit_groups(
        self, data: Sequences, groups: NDArray[Any], n_classes: int, n_init: int, seed: int
    ) -> NDArray[Any]:
        """Everyone's classes under one model with class proportions of each site."""
        labels: NDArray[Any] = _fit(data, n_classes, n_init, seed, groups=groups).labels_
        return labels

    def take(self, data: Sequences, rows: NDArray[np.intp]) -> Sequences:
        return data[rows]

    def join(self, parts: Sequence[Sequences]) -> Sequences:
        return Sequences.from_codes(np.concatenate([p.codes for p in parts]), parts[0].states)


def _fit(data: Sequences, n_classes: int, n_init: int, seed: int, **groups: Any) -> MixtureMarkov:
    model = MixtureMarkov(n_classes, n_init=n_init, prior=PRIOR_OF_SENT_FITS, seed=seed)
    with warnings.catch_warnings():  # a maximum found only once is usual in a thousand fits
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(data, **groups)
