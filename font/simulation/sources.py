"""Simulated sites: patients of one Gaussian mixture, with unequal proportions and outliers.

`Source` is what the simulation study asks of a kind of data; `GaussianSource` is the paper's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, Integers, one_of, whole_number
from font.errors import InputError
from font.simulation.competitors import fit_kmeans

SETTINGS = ("homogeneous", "imbalanced", "contaminated")


class GaussianSites(NamedTuple):
    """Simulated sites: data (n, p) and classes (n,) by site, where −1 is an outlying point, not to
    be scored.

    `means` (K, p) are those of the classes; `contaminated` names the sites with outlying points.
    """

    data: dict[str, Floats]
    truth: dict[str, Integers]
    means: Floats
    contaminated: tuple[str, ...]


def simulate_gaussian(
    setting: str,
    n_sites: int,
    variance: float,
    seed: int | np.random.Generator = 0,
    *,
    n_classes: int = 5,
    n_features: int = 10,
    sizes: tuple[int, int] = (50, 500),
    concentration: float = 1.0,
    contaminated_sites: float = 0.2,
    outlying: float = 0.2,
    outlier_means: str = "point",
    outlier_points: str = "add",
    absent_classes: int = 0,
) -> GaussianSites:
    """Sites whose patients come from one Gaussian mixture.

    x | class k ~ N(μ_k, σ²I), the entries of μ_k uniform on [−1, 1], the same at all sites; the
    number of patients uniform on the whole numbers of `sizes`.

    Parameters
    ----------
    setting : "homogeneous", "imbalanced" or "contaminated"
        Equal class proportions; proportions of each site from a Dirichlet distribution; the same
        with outlying points at some sites.
    variance : float
        σ², of the noise (not its standard deviation).
    concentration : float
        All parameters of the Dirichlet distribution.
    contaminated_sites, outlying : float
        Share of the sites with outlying points (at least one), and the number of such points there,
        as a share of the site's number of patients.
    outlier_means : "point" or "site"
        Whether each outlying point has a mean of its own or all of a site the same, uniform on [−5,
        5]; the paper leaves it open.
    outlier_points : "add" or "replace"
        Whether they come on top of the site's patients or are part of them; the paper leaves that
        open too. With "add" a contaminated site is an imbalanced one with outlying points besides.
    absent_classes : int
        So many of the classes, drawn anew for each site, have no patients there.
    """
    _check_setting(setting, variance, contaminated_sites, outlying)
    one_of(outlier_means, ("point", "site"), "outlier_means")
    one_of(outlier_points, ("replace", "add"), "outlier_points")
    n_sites = whole_number(n_sites, 1, "n_sites")
    if whole_number(absent_classes, 0, "absent_classes") >= n_classes:
        raise InputError(
            f"{absent_classes} of {n_classes} classes cannot be absent from a site; at least one "
            "must have patients."
        )
    rng = np.random.default_rng(seed)
    means = rng.uniform(-1, 1, (n_classes, n_features))
    names = [f"site {i + 1}" for i in range(n_sites)]
    n_dirty = max(1, round(contaminated_sites * n_sites)) if setting == "contaminated" else 0
    dirty = set(rng.choice(n_sites, n_dirty, replace=False).tolist())
    data, truth = {}, {}
    for number, name in enumerate(names):
        n = int(rng.integers(sizes[0], sizes[1] + 1))
        share = np.full(n_classes, 1 / n_classes)
        if setting != "homogeneous":
            share = rng.dirichlet(np.full(n_classes, concentration))
        if absent_classes:
            share[rng.choice(n_classes, absent_classes, replace=False)] = 0
            share /= share.sum()
        n_out = round(outlying * n) if number in dirty else 0
        classes = rng.choice(n_classes, n - n_out if outlier_points == "replace" else n, p=share)
        wild = rng.uniform(-5, 5, (n_out if outlier_means == "point" else 1, n_features))
        centres = np.concatenate([means[classes], np.broadcast_to(wild, (n_out, n_features))])
        data[name] = centres + rng.normal(scale=np.sqrt(variance), size=centres.shape)
        truth[name] = np.append(classes, np.full(n_out, -1))
    return GaussianSites(data, truth, means, tuple(names[i] for i in sorted(dirty)))


def _check_setting(setting: str, variance: float, contaminated: float, outlying: float) -> None:
    one_of(setting, SETTINGS, "setting")
    if not variance > 0:
        raise InputError(f"variance must be more than 0; found {variance!r}.")
    for value, what in ((contaminated, "contaminated_sites"), (outlying, "outlying")):
        if not 0 <= value < 1:
            raise InputError(f"{what} is a share, from 0 to less than 1; found {value!r}.")


# --- what the study asks of its data ----------------------------------------------------------


class Source(Protocol):
    """A kind of data for `font.run_simulation`; it must survive pickling.

    `axis` names the third argument of a scenario, after `setting` and `n_sites`: how hard the data
    are; `levels` are its values in the default grid. `defaults` are the further arguments of
    `simulate` (`n_classes` among them), `methods` those methods that work.
    """

    @property
    def axis(self) -> str: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

    @property
    def defaults(self) -> Mapping[str, Any]: ...

    @property
    def methods(self) -> tuple[str, ...]: ...

    def simulate(self, rng: np.random.Generator, **scenario: Any) -> Any:
        """Anything with `data`, `truth`, `means` and `contaminated`, see `GaussianSites`."""

    def fit(self, data: Any, n_classes: int, n_init: int, seed: int) -> Any:
        """A model for `font.label` and `font.Ensemble`."""

    def take(self, data: Any, rows: NDArray[np.intp]) -> Any:
        """Some of the patients."""

    def join(self, parts: Sequence[Any]) -> Any:
        """The patients of several sites, in order."""


def keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function's keyword arguments are unless given."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


class GaussianSource:
    """`simulate_gaussian` with K-means as the local model."""

    axis = "variance"
    levels = (0.05, 0.1, 0.3)
    defaults: Mapping[str, Any] = keyword_defaults(simulate_gaussian)
    methods = (
        "local",
        "k-FED",
        "k-FED nearest",
        "consensus",
        "FONT equal",
        "FONT",
        "FONT refined 0",
        "FONT refined 1",
        "FONT refined converge",
        "pooled",
        "pooled site proportions",
        "best local",
    )

    def simulate(self, rng: np.random.Generator, **scenario: Any) -> GaussianSites:
        return simulate_gaussian(**scenario, seed=rng)

    def fit(self, data: Floats, n_classes: int, n_init: int, seed: int) -> Any:
        return fit_kmeans(data, n_classes, n_init, seed, "a site")

    def take(self, data: Floats, rows: NDArray[np.intp]) -> Floats:
        return data[rows]

    def join(self, parts: Sequence[Floats]) -> Floats:
        return np.concatenate(parts)
