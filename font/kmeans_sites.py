"""K-means on the data of several sites: local models, the pooled oracle, and k-FED.

Data are {site: (n, p)}; clusterings come back as {site: clusters}.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font import clustering
from font.baselines import Clusters, split
from font.checks import one_of, some, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

ASSIGNMENTS = ("faithful", "nearest")
SEEDINGS = ("plain", "greedy")
_SMALL = 500  # patients; below, starts run faster together than one after the other


def local_kmeans(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    seed: int = 0,
) -> dict[Any, Any]:
    """Scikit-learn's K-means fitted at each site: local models for `font.label`.

    Parameters
    ----------
    data : {site: (n, p)}
    n_clusters : int
    n_starts : int
        Runs, of which the best is kept.
    seeding : "plain" or "greedy"
        k-means++ as published, each next seed drawn in proportion to squared distance; or the
        best of several such draws, scikit-learn's default. It matters where n_starts is 1.
    seed : int

    Examples
    --------
    >>> models = local_kmeans({"here": np.array([[0.0], [0.2], [5.0]])}, 2)
    >>> np.sort(models["here"].cluster_centers_.ravel()).round(1).tolist()
    [0.1, 5.0]
    """
    arrays = _arrays(data)
    seeds = np.random.SeedSequence(seed).generate_state(len(arrays))
    return {
        site: fit_kmeans(points, n_clusters, n_starts, int(state), f"the site {site!r}", seeding)
        for (site, points), state in zip(arrays.items(), seeds, strict=True)
    }


def pooled(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    seed: int = 0,
) -> Clusters:
    """K-means on the data of all sites together: an oracle, since no site may share its data.

    Parameters as in `local_kmeans`.

    Examples
    --------
    >>> data = {"A": np.array([[0.0], [5.0]]), "B": np.array([[0.1], [5.1]])}
    >>> found = pooled(data, 2)
    >>> bool((found["A"].to_numpy() == found["B"].to_numpy()).all())
    True
    """
    arrays = _arrays(data)
    points = np.concatenate(list(arrays.values()))
    fitted = fit_kmeans(points, n_clusters, n_starts, seed, "all sites together", seeding)
    return split(fitted.labels_, {site: _index(data[site], len(a)) for site, a in arrays.items()})


def k_fed(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_local: int | None = None,
    assign: str = "faithful",
    n_starts: int = 1,
    rounds: int | None = 1,
    first: Any = None,
    seed: int = 0,
) -> Clusters:
    """One-shot federated K-means, k-FED of Dennis, Li and Smith (2021).

    At each site, the K-means of Awasthi and Sheffet (2012): project the rows A on the K leading
    singular vectors, run K-means there (centres ν), let S_r be the rows with
    ‖Â_i − ν_r‖ ≤ ⅓ ‖Â_i − ν_s‖ for all s ≠ r, and start Lloyd's steps on A from the means of the
    S_r. At the centre: begin with the centres of one site, add the centre farthest from those
    chosen until there are K, and run one round of Lloyd on all sites' centres: group them, take
    the groups' means, and group them by these.

    Parameters
    ----------
    data : {site: (n, p)}
    n_clusters : int
    n_local : int, optional
        Clusters at each site; n_clusters unless given.
    assign : "faithful" or "nearest"
        "faithful", as published: a patient follows the own local cluster. "nearest": each
        patient goes to the nearest of the final centres.
    n_starts : int
        Of K-means on the projected rows, seeded by plain k-means++. One start already is an
        approximation of the kind the algorithm asks for; more make it stronger than published.
    rounds : int or None
        Of Lloyd at the centre. The paper says one; 0 groups the sites' centres by those chosen
        first, and None goes on until nothing changes, as the authors' own program does.
    first : site, optional
        Whose centres the centre begins with (the paper: any); drawn at random unless given.
    seed : int

    Notes
    -----
    Where no row is that much nearer to ν_r than to the others, S_r is empty; the mean of all
    rows nearest to ν_r then takes its place.

    The paper does not say whether a round of Lloyd ends with the means or with the grouping by
    them. The latter is the default because, of the readings tried, it is one that agrees with
    another implementation in all cells compared; the authors' program (rounds=None, and ν just
    the seeds) agrees as well, rounds=0 less: its index is lower by 0.02 to 0.04 where class
    proportions differ between sites.

    Examples
    --------
    >>> data = {"A": np.array([[0.0], [0.2], [5.0]]), "B": np.array([[5.1], [4.9], [0.1]])}
    >>> low, _, high = k_fed(data, 2, first="A")["A"]
    >>> k_fed(data, 2, first="A")["B"].tolist() == [high, high, low]
    True
    """
    one_of(assign, ASSIGNMENTS, "assign")
    found = k_fed_assignments(
        data, n_clusters, n_local=n_local, n_starts=n_starts, rounds=rounds, first=first, seed=seed
    )
    return found[assign]


def k_fed_assignments(
    data: Mapping[Any, ArrayLike],
    n_clusters: int,
    *,
    n_local: int | None = None,
    n_starts: int = 1,
    rounds: int | None = 1,
    first: Any = None,
    seed: int = 0,
) -> dict[str, Clusters]:
    """Both assignments of `k_fed` from the same local fits, {"faithful": …, "nearest": …}."""
    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_local = n_clusters if n_local is None else whole_number(n_local, 1, "n_local, unless None,")
    n_starts = whole_number(n_starts, 1, "n_starts")
    rounds = 1000 if rounds is None else whole_number(rounds, 0, "rounds, unless None,")
    arrays = _arrays(data)
    rng = np.random.default_rng(seed)
    sites = list(arrays)
    if first is None:
        first = sites[rng.integers(len(sites))]
    elif first not in arrays:
        raise ValueError(f"there is no site {first!r}; name one of {some(sites)}.")
    with one_thread():
        fits = [
            _awasthi_sheffet(points, n_local, n_starts, rng, site)
            for site, points in arrays.items()
        ]
    centres = np.concatenate([means for means, _ in fits])
    owner = np.repeat(np.arange(len(sites)), n_local)
    chosen = _farthest_first(centres, np.flatnonzero(owner == sites.index(first)), n_clusters)
    group, final = _lloyd_rounds(centres, centres[chosen], rounds)
    follow = [group[owner == i][labels] for i, (_, labels) in enumerate(fits)]
    index = {site: _index(data[site], len(points)) for site, points in arrays.items()}
    nearest = _squared(np.concatenate(list(arrays.values())), final).argmin(axis=1)
    return {"faithful": split(np.concatenate(follow), index), "nearest": split(nearest, index)}


def _awasthi_sheffet(
    points: Floats, n_clusters: int, n_starts: int, rng: np.random.Generator, site: Any
) -> tuple[Floats, Integers]:
    """Centres (K, p) and labels (n,) of one site."""
    _refuse_few(points, n_clusters, f"the site {site!r}")
    ones = np.ones(len(points))
    axes = np.linalg.svd(points, full_matrices=False)[2][:n_clusters]
    projected = points @ axes.T  # coordinates in the subspace: the same distances
    seeds = clustering.plus_plus(projected, ones, n_clusters, n_starts, rng)
    ends, _, inertia = clustering.lloyd(projected, ones, seeds)
    far = np.sqrt(_squared(projected, ends[int(inertia.argmin())]))
    near = np.sort(far, axis=1)
    core = near[:, 0] <= near[:, 1] / 3 if n_clusters > 1 else np.ones(len(points), dtype=bool)
    labels = far.argmin(axis=1)
    means = np.empty((n_clusters, points.shape[1]))
    for k in range(n_clusters):
        own = labels == k
        clear = core & own
        means[k] = points[clear if clear.any() else own].mean(axis=0)
    centres, found, _ = clustering.lloyd(points, ones, means[None])
    return centres[0], found[:, 0]


def _farthest_first(centres: Floats, start: NDArray[np.intp], n: int) -> list[int]:
    """Numbers of n centres: those of one site, then always the farthest from all chosen."""
    chosen = [int(i) for i in start[:n]]
    nearest = _squared(centres, centres[chosen]).min(axis=1)
    while len(chosen) < n:
        if nearest.max() == 0:
            raise ValueError(
                f"the sites' centres are only {len(chosen)} different points, too few for {n} "
                "clusters; ask for fewer, or for more clusters at each site (n_local)."
            )
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, _squared(centres, centres[chosen[-1:]])[:, 0])
    return chosen


def _lloyd_rounds(points: Floats, centres: Floats, rounds: int) -> tuple[Integers, Floats]:
    """The group of each point, and the groups' means; a group left empty keeps its centre."""

    def means(group: Integers) -> Floats:
        return np.array(
            [
                points[group == k].mean(axis=0) if (group == k).any() else centre
                for k, centre in enumerate(centres)
            ]
        )

    group = _squared(points, centres).argmin(axis=1)
    for _ in range(rounds):
        centres = means(group)
        before, group = group, _squared(points, centres).argmin(axis=1)
        if (before == group).all():
            break
    return group, means(group)


def _squared(points: Floats, centres: Floats) -> Floats:
    columns = [((points - centre) ** 2).sum(axis=1) for centre in centres]
    return np.stack(columns, axis=1)


def fit_kmeans(
    points: Floats, n_clusters: int, n_starts: int, seed: int, what: str, seeding: str
) -> Any:
    """Scikit-learn's K-means on the rows, which errors call `what`."""
    from sklearn.cluster import KMeans

    n_clusters = whole_number(n_clusters, 1, "n_clusters")
    n_starts = whole_number(n_starts, 1, "n_starts")
    one_of(seeding, SEEDINGS, "seeding")
    _refuse_few(points, n_clusters, what)
    start: Any = _plain_seeds if seeding == "plain" else "k-means++"
    with one_thread():
        if seeding == "plain" and n_starts > 1 and len(points) <= _SMALL:
            start, n_starts = _best_start(points, n_clusters, n_starts, seed), 1
        return KMeans(n_clusters, init=start, n_init=n_starts, random_state=seed).fit(points)


def _best_start(points: Floats, n_clusters: int, n_starts: int, seed: int) -> Floats:
    """Where the best of several starts ends; all advance together, which suits small sites."""
    rows, ones = points - points.mean(axis=0), np.ones(len(points))
    rng = np.random.default_rng(seed)
    seeds = clustering.plus_plus(rows, ones, n_clusters, n_starts, rng)
    ends, _, inertia = clustering.lloyd(rows, ones, seeds)
    return np.asarray(ends[int(inertia.argmin())] + points.mean(axis=0))


def _plain_seeds(points: Floats, n_clusters: int, random_state: Any) -> Floats:
    """k-means++ as published: each next seed is drawn in proportion to squared distance."""
    n = len(points)
    seeds = np.empty((n_clusters, points.shape[1]))
    seeds[0] = points[int(random_state.random_sample() * n)]
    norms = np.einsum("ij,ij->i", points, points)
    nearest = np.full(n, np.inf)
    for k in range(1, n_clusters):
        last = seeds[k - 1]
        far = norms - 2 * (points @ last) + last @ last
        np.minimum(nearest, np.maximum(far, 0.0, out=far), out=nearest)
        mass = np.cumsum(nearest)
        drawn = np.searchsorted(mass, random_state.random_sample() * mass[-1], side="right")
        seeds[k] = points[min(int(drawn), n - 1)]
    return seeds


@contextmanager
def one_thread() -> Iterator[None]:
    """Without scikit-learn's threads and repeated checks, which cost more than small sites do."""
    from sklearn import config_context

    with ExitStack() as stack:
        stack.enter_context(_thread_pools().limit(limits=1))
        stack.enter_context(config_context(assume_finite=True, skip_parameter_validation=True))
        yield


@cache
def _thread_pools() -> Any:
    import sklearn.cluster  # noqa: F401 - loads the pools to be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _arrays(data: Mapping[Any, ArrayLike]) -> dict[Any, Floats]:
    if not isinstance(data, Mapping) or not data:
        raise TypeError(
            f"data must be a dict {{site: (n, p)}} with at least one site; found "
            f"{type(data).__name__}."
        )
    arrays = {site: np.asarray(points, dtype=float) for site, points in data.items()}
    shapes = {site: points.shape for site, points in arrays.items()}
    width = next(iter(shapes.values()))[1:]
    if wrong := [s for s, shape in shapes.items() if len(shape) != 2 or shape[1:] != width]:
        raise ValueError(
            f"every site needs a table of patients × the same variables; found the shapes "
            f"{some(shapes[site] for site in wrong)} at the sites {some(wrong)}."
        )
    if wrong := [site for site, points in arrays.items() if not np.isfinite(points).all()]:
        raise ValueError(
            f"the data of the sites {some(wrong)} hold missing or infinite values; fill them or "
            "leave these patients out."
        )
    return arrays


def _refuse_few(points: Floats, n_clusters: int, what: str) -> None:
    if len(points) < n_clusters:
        raise ValueError(
            f"{what} has {len(points)} patients, too few for {n_clusters} clusters; ask for fewer "
            "clusters or leave the site out."
        )


def _index(data: Any, n: int) -> pd.Index:
    return data.index if isinstance(data, pd.DataFrame) else pd.RangeIndex(n)
