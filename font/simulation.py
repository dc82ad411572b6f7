"""The simulation study: Gaussian sites, all methods on the same data, one tidy table.

Every replicate of every cell draws its own random numbers from the seed, the cell and its number,
so that a cell gives the same results in any grid, in any order and on any number of processes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import baselines
from font.checks import one_of, some, whole_number
from font.ensemble import Ensemble
from font.labels import LabelPatterns, label
from font.weights import agreement, class_distances, cross_tabulate

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

SETTINGS = ("homogeneous", "imbalanced", "contaminated")
METHODS = (
    *("local", "k-FED", "k-FED nearest", "consensus", "FONT equal", "FONT"),
    *("pooled", "best local"),
)
PAPER_GRID = {"setting": SETTINGS, "n_sites": (5, 10, 50), "variance": (0.05, 0.1, 0.3)}
MEASURES = ("ari", "correlation", "concordance", "angle", "suggested")

_CELL = ("setting", "n_sites", "variance")
_DATA: dict[str, Any] = {
    "n_classes": 5,
    "n_features": 10,
    "sizes": (50, 500),
    "concentration": 1.0,
    "contaminated_sites": 0.2,
    "outlying": 0.2,
    "outlier_means": "point",
    "outlier_points": "replace",
}
_MODELS: dict[str, Any] = {"n_local": None, "resamples": 0, "noise_sites": 0}


class GaussianSites(NamedTuple):
    """Simulated sites.

    Parameters
    ----------
    data : {site: (n, p)}
    truth : {site: (n,)} class of each patient; −1 is an outlying point, not to be scored
    means : (K, p) of the classes
    contaminated : names of the sites with outlying points
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
    outlier_points: str = "replace",
) -> GaussianSites:
    """Sites whose patients come from one Gaussian mixture.

    x | class k ~ N(μ_k, σ²I), the entries of μ_k uniform on [−1, 1], the same at all sites; the
    number of patients uniform on the whole numbers of `sizes`.

    Parameters
    ----------
    setting : "homogeneous", "imbalanced" or "contaminated"
        Equal class proportions; proportions of each site from a Dirichlet distribution; the
        same with outlying points at some sites.
    n_sites : int
    variance : float
        σ², of the noise (not its standard deviation).
    seed : int or Generator
    n_classes, n_features, sizes
        K, p, and the smallest and largest number of patients.
    concentration : float
        All parameters of the Dirichlet distribution.
    contaminated_sites, outlying : float
        Share of the sites with outlying points (at least one), and of such points there.
    outlier_means : "point" or "site"
        The paper leaves open how many Gaussians the outlying points come from: each from one of
        its own, or all of a site from the same. Mean entries are uniform on [−5, 5].
    outlier_points : "replace" or "add"
        Whether they are part of the site's number of patients or come on top.

    Examples
    --------
    >>> sites = simulate_gaussian("contaminated", 5, 0.1, seed=1)
    >>> len(sites.data), sites.means.shape, len(sites.contaminated)
    (5, (5, 10), 1)
    """
    _check_setting(setting, variance, contaminated_sites, outlying)
    one_of(outlier_means, ("point", "site"), "outlier_means")
    one_of(outlier_points, ("replace", "add"), "outlier_points")
    n_sites = whole_number(n_sites, 1, "n_sites")
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
        raise ValueError(f"variance must be more than 0; found {variance!r}.")
    for value, what in ((contaminated, "contaminated_sites"), (outlying, "outlying")):
        if not 0 <= value < 1:
            raise ValueError(f"{what} is a share, from 0 to less than 1; found {value!r}.")


# --- the study ---------------------------------------------------------------------------


def run_simulation(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
    replicates: int = 100,
    seed: int = 0,
    n_jobs: int = 1,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    k_fed_starts: int = 1,
    methods: Iterable[str] = METHODS,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Run all methods on simulated sites.

    Parameters
    ----------
    grid : {name: values}, or a list of cells {name: value}; the paper's 27 cells unless given
        A dict means all combinations. `setting`, `n_sites` and `variance` are needed; any
        argument of `simulate_gaussian` may follow, and

        - `n_local`: classes of the local models, where not the true number;
        - `resamples`: this many models a site, each fitted to 80 % of its patients drawn
          without replacement (pseudo-sites), instead of one;
        - `noise_sites`: so many sites send a model whose labels are drawn at random.
    replicates : int
        In each cell.
    seed : int
    n_jobs : int
        Processes. A script that asks for more than one needs `if __name__ == "__main__":`.
    n_starts, seeding
        Of local and pooled K-means, see `local_kmeans`; one start is nearest to the paper.
    k_fed_starts : int
        Of the local K-means inside k-FED, see `k_fed`.
    methods : names among `METHODS`
        "local" is the mean over the models, what a site chosen at random would give; "FONT
        equal" is the ensemble with equal weights; "pooled" and "best local" are oracles.
    folder : path, optional
        Each finished cell is written there, and read instead of run the next time.
    progress : function (replicates done, all), optional

    Returns
    -------
    DataFrame
        The cell, `replicate`, `method` and `ari`, the adjusted Rand index on all patients but
        outlying ones; and for methods with weights w: `correlation`, of w_m with the index of
        model m (the paper's figure 2); `concordance`, of w_m with cos(f_m, f_0), where f_m are
        the distances between patients under model m and f_0 the true ones; `angle`, in degrees,
        between w and these cosines (Theorem 1); `suggested`, the number of clusters read off
        the spectrum.

    Examples
    --------
    >>> cell = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> results = run_simulation([cell], replicates=2, methods=["local", "FONT"])
    >>> results[["replicate", "method"]].to_numpy().tolist()
    [[0, 'local'], [0, 'FONT'], [1, 'local'], [1, 'FONT']]
    """
    cells = grid_cells(grid)
    replicates = whole_number(replicates, 1, "replicates")
    n_jobs = whole_number(n_jobs, 1, "n_jobs")
    methods = list(methods)
    for method in methods:
        one_of(method, METHODS, "each of methods")
    one_of(seeding, baselines.SEEDINGS, "seeding")
    options = {
        "seed": whole_number(seed, 0, "seed"),
        "n_starts": whole_number(n_starts, 1, "n_starts"),
        "seeding": seeding,
        "k_fed_starts": whole_number(k_fed_starts, 1, "k_fed_starts"),
        "methods": methods,
    }
    done = [_read(folder, cell, options, replicates) for cell in cells]
    tasks = [
        (i, (cell, replicate, options))
        for i, (cell, rows) in enumerate(zip(cells, done, strict=True))
        for replicate in range(replicates)
        if replicate not in {row["replicate"] for row in rows}
    ]
    waiting = [sum(i == j for j, _ in tasks) for i in range(len(cells))]
    total = replicates * len(cells)
    results = _map(_replicate, [task for _, task in tasks], n_jobs)
    for finished, ((i, _), rows) in enumerate(zip(tasks, results, strict=True), 1):
        done[i] += rows
        waiting[i] -= 1
        if not waiting[i]:
            _write(folder, cells[i], options, done[i])
        if progress is not None:
            progress(total - len(tasks) + finished, total)
    shown = list(dict.fromkeys([*_CELL, *itertools.chain.from_iterable(cells)]))
    every = _DATA | _MODELS
    table = pd.DataFrame(
        [
            {name: _text(cell.get(name, every.get(name))) for name in shown} | row
            for cell, rows in zip(cells, done, strict=True)
            for row in rows
            if row["replicate"] < replicates
        ]
    )
    return table[[*shown, "replicate", "method", *MEASURES]]


def grid_cells(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The cells of a grid, checked: all combinations of a dict's values, or a list as it is.

    Examples
    --------
    >>> grid_cells({"setting": ["homogeneous"], "n_sites": [5, 10], "variance": [0.1]})[1]
    {'setting': 'homogeneous', 'n_sites': 10, 'variance': 0.1}
    """
    grid = PAPER_GRID if grid is None else grid
    if isinstance(grid, Mapping):
        values = [[v] if isinstance(v, str) or np.isscalar(v) else list(v) for v in grid.values()]
        cells = [dict(zip(grid, row, strict=True)) for row in itertools.product(*values)]
    else:
        cells = [dict(cell) for cell in grid]
    if not cells:
        raise ValueError("the grid has no cells; give at least one value of each argument.")
    for cell in cells:
        if absent := [name for name in _CELL if name not in cell]:
            raise ValueError(f"the cell {cell} lacks {some(absent)}; every cell needs all three.")
        if unknown := [name for name in cell if name not in (*_CELL, *_DATA, *_MODELS)]:
            raise ValueError(
                f"the cell {cell} has the unknown names {some(unknown)}; besides the arguments of "
                f"simulate_gaussian there are {some(_MODELS)}."
            )
        one_of(cell["setting"], SETTINGS, "setting")
    return cells


def _map(
    function: Callable[..., Any], tasks: list[tuple[Any, ...]], n_jobs: int
) -> Iterator[list[dict[str, Any]]]:
    """Results in the order of the tasks, which come cell by cell."""
    if n_jobs == 1 or len(tasks) < 2:
        yield from itertools.starmap(function, tasks)
        return
    from multiprocessing import get_context

    # a fresh interpreter: forking a process that has threads may lock up
    with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(function, *zip(*tasks, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)


# --- one replicate -----------------------------------------------------------------------


def _replicate(
    cell: Mapping[str, Any], replicate: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    with baselines.one_thread():
        return _replicate_rows(cell, replicate, options)


def _replicate_rows(
    cell: Mapping[str, Any], replicate: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The rows of one replicate: data, local models, labels, then each method on them."""
    arguments = {name: value for name, value in cell.items() if name not in _MODELS}
    # the data do not depend on the models' settings, so that these are compared on the same
    stream = [options["seed"], replicate, _number(arguments)]
    sites = simulate_gaussian(**arguments, seed=np.random.default_rng([0, *stream]))
    rng = np.random.default_rng([1, *stream])
    models, table = _models_and_labels(sites, _MODELS | dict(cell), options, rng)
    seed = int(rng.integers(2**31))
    truth = {"all": np.concatenate(list(sites.truth.values()))}
    labels, k = {"all": table}, len(sites.means)
    scores = baselines.local_scores(labels, truth)
    cosines = _true_cosines(models, table, sites)
    found: dict[str, baselines.Clusters] = {}
    rows = []
    for method in options["methods"]:
        row: dict[str, Any] = {"replicate": replicate, "method": method}
        row |= dict.fromkeys(MEASURES, np.nan)
        if method == "local":
            row["ari"] = float(scores.mean())
        elif method == "best local":
            row["ari"] = float(scores.max())
        elif method.startswith("FONT"):
            weights = "equal" if method == "FONT equal" else "spectral"
            ensemble = Ensemble(k, weights=weights, seed=seed)
            ensemble.fit(models, LabelPatterns.from_labels(labels))
            row["ari"] = baselines.rand_index({"all": ensemble.predict(table)}, truth)
            row["suggested"] = ensemble.n_clusters_choice_.n_clusters
            w = ensemble.weights_.to_numpy()
            row["correlation"] = _correlation(w, scores.to_numpy())
            row["concordance"] = _correlation(w, cosines)
            row["angle"] = _angle(w, cosines)
        else:
            if method not in found:
                found |= _competitor(method, sites, labels, options, seed)
            joined = np.concatenate([part.to_numpy() for part in found[method].values()])
            row["ari"] = baselines.rand_index({"all": joined}, truth)
        rows.append(row)
    return rows


def _competitor(
    method: str,
    sites: GaussianSites,
    labels: dict[str, pd.DataFrame],
    options: Mapping[str, Any],
    seed: int,
) -> dict[str, baselines.Clusters]:
    """The clusters under this method, and under others that come with it."""
    k = len(sites.means)
    if method == "consensus":
        return {method: baselines.consensus(labels, k, seed=seed)}
    if method == "pooled":
        starts = {"n_starts": options["n_starts"], "seeding": options["seeding"]}
        return {method: baselines.pooled(sites.data, k, **starts, seed=seed)}
    both = baselines.k_fed_assignments(sites.data, k, n_starts=options["k_fed_starts"], seed=seed)
    return {"k-FED": both["faithful"], "k-FED nearest": both["nearest"]}


def _models_and_labels(
    sites: GaussianSites,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Each site's models, and the labels of all patients under all of them."""
    k = settings["n_local"] or len(sites.means)
    training = sites.data
    if settings["resamples"]:
        training = {
            f"{site}/{i + 1}": points[rng.permutation(len(points))[: round(0.8 * len(points))]]
            for site, points in sites.data.items()
            for i in range(settings["resamples"])
        }
    seed = int(rng.integers(2**31))
    fitted = baselines.local_kmeans(
        training, k, n_starts=options["n_starts"], seeding=options["seeding"], seed=seed
    )
    table = label(fitted, np.concatenate(list(sites.data.values()))).astype(np.int64)
    models = {name: model.cluster_centers_ for name, model in fitted.items()}
    for name in list(models)[: settings["noise_sites"]]:
        models[name] = rng.uniform(-1, 1, models[name].shape)
        table[name] = rng.integers(k, size=len(table))
    return models, table


def _true_cosines(
    models: Mapping[str, Floats], table: pd.DataFrame, sites: GaussianSites
) -> Floats:
    """cos(f_m, f_0) (M,): how near each model's distances between patients are to the true ones."""
    truth = np.concatenate(list(sites.truth.values()))
    scored = truth >= 0
    rows = np.column_stack([table.to_numpy()[scored], truth[scored]])
    distances = [class_distances(means, "euclidean") for means in (*models.values(), sites.means)]
    offsets = np.cumsum([0, *map(len, distances)])
    tables = cross_tabulate(rows, np.ones(len(rows)), offsets)
    return agreement(distances, tables)[1][:-1, -1]


def _correlation(first: Floats, second: Floats) -> float:
    if min(np.ptp(first), np.ptp(second)) < 1e-12:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _angle(first: Floats, second: Floats) -> float:
    cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


# --- finished cells ----------------------------------------------------------------------


def _number(content: Any) -> int:
    """A whole number that stands for plain values, the same on every machine."""
    text = json.dumps(content, sort_keys=True, default=_plain)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _text(value: Any) -> Any:
    return "–".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _path(folder: str | Path, cell: Mapping[str, Any], options: Mapping[str, Any]) -> Path:
    name = "{setting}_{n_sites}_{variance}".format(**cell)
    return Path(folder) / f"{name}_{_number([cell, options]):016x}.json"


def _read(
    folder: str | Path | None, cell: Mapping[str, Any], options: Mapping[str, Any], n: int
) -> list[dict[str, Any]]:
    if folder is None or not (path := _path(folder, cell, options)).exists():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path.name} in the folder of results cannot be read; delete it to run its cell again."
        ) from None
    return [row | {m: np.nan for m in MEASURES if row[m] is None} for row in rows]


def _write(
    folder: str | Path | None,
    cell: Mapping[str, Any],
    options: Mapping[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    """All or nothing: a run that is stopped leaves no half file behind."""
    if folder is None:
        return
    path = _path(folder, cell, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    clean = [row | {m: None for m in MEASURES if np.isnan(row[m])} for row in rows]
    content = {"cell": dict(cell), "options": dict(options), "rows": clean}
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(json.dumps(content, default=_plain), encoding="utf-8")
    os.replace(half, path)


# --- tables ------------------------------------------------------------------------------


def simulation_table(results: pd.DataFrame, measure: str = "ari") -> pd.DataFrame:
    """Mean and standard error of a measure, cells × methods.

    Parameters
    ----------
    results : as `run_simulation` returns
    measure : "ari", "correlation", "concordance", "angle" or "suggested"
        Methods that do not have it are left out, and so are replicates where a correlation is
        not defined, since all models are equally good.

    Returns
    -------
    DataFrame
        One row a cell; columns (method, "mean") and (method, "se").

    Examples
    --------
    >>> cell = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> results = run_simulation([cell], replicates=2, methods=["FONT"])
    >>> list(simulation_table(results).columns)
    [('FONT', 'mean'), ('FONT', 'se')]
    """
    one_of(measure, MEASURES, "measure")
    if absent := [name for name in ("replicate", "method", measure) if name not in results]:
        raise ValueError(
            f"the results lack the columns {some(absent)}; give what run_simulation returns."
        )
    cell = [name for name in results if name not in (*MEASURES, "replicate", "method")]
    rows = results.dropna(subset=[measure])
    values = rows.groupby([*cell, "method"], sort=False, dropna=False)[measure]
    table = pd.DataFrame({"mean": values.mean(), "se": values.sem(ddof=1)}).unstack("method")
    order = [method for method in dict.fromkeys(results["method"]) if method in set(rows["method"])]
    table = table.swaplevel(axis=1)[[(m, part) for m in order for part in ("mean", "se")]]
    cells = results[cell].drop_duplicates()
    ordered: pd.DataFrame = table.reindex(pd.MultiIndex.from_frame(cells))
    return ordered


def compare_methods(
    results: pd.DataFrame, method: str, other: str, *, margin: float = 0.01
) -> pd.DataFrame:
    """Where one method beats another: differences of the adjusted Rand index on the same data.

    Parameters
    ----------
    results : as `run_simulation` returns
    method, other : names among its methods
    margin : float
        A difference too small to matter.

    Returns
    -------
    DataFrame
        One row a cell: the two means, `difference` with its standard error `se`, and `verdict`:
        "equal" if difference ± 2 se lies within ± margin, else "better" or "worse" if it lies on
        one side of 0, else "open": the replicates are too few to tell.

    Examples
    --------
    >>> results = pd.DataFrame(
    ...     [("homogeneous", 5, 0.1, r, m, 0.9 + 0.01 * r - 0.05 * (m == "local"))
    ...      for r in range(3) for m in ("FONT", "local")],
    ...     columns=["setting", "n_sites", "variance", "replicate", "method", "ari"],
    ... )
    >>> compare_methods(results, "FONT", "local")[["difference", "verdict"]].values.tolist()
    [[0.05, 'better']]
    """
    if method == other:
        raise ValueError(f"two different methods are needed; found {method!r} twice.")
    for name in (method, other):
        one_of(name, dict.fromkeys(results["method"]), "the methods to compare")
    cell = [name for name in results if name not in (*MEASURES, "replicate", "method")]
    pairs = results[results["method"].isin([method, other])]
    wide = pairs.set_index([*cell, "replicate", "method"])["ari"].unstack("method")
    wide["difference"] = wide[method] - wide[other]
    groups = wide.groupby(level=list(range(len(cell))), sort=False, dropna=False)
    table: pd.DataFrame = groups[[method, other, "difference"]].mean()
    table["se"] = groups["difference"].sem(ddof=1)
    size, room = table["difference"].abs(), 2 * table["se"].fillna(np.inf)
    sign = np.where(table["difference"] > 0, "better", "worse")
    table["verdict"] = np.where(size + room <= margin, "equal", np.where(size > room, sign, "open"))
    table["difference"] = table["difference"].round(12)
    return table.reindex(pd.MultiIndex.from_frame(results[cell].drop_duplicates()))
