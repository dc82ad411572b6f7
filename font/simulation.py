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
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import baselines
from font.checks import one_of, some, whole_number
from font.ensemble import Ensemble
from font.gaussian_sites import SETTINGS, GaussianSites, simulate_gaussian
from font.labels import LabelPatterns, label
from font.weights import class_distances

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

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
    done = [_read(folder, cell, options) for cell in cells]
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
    table = pd.DataFrame(
        [
            {name: _shown(cell, name) for name in shown} | row
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
    patterns = LabelPatterns.from_labels(labels)
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
            ensemble = Ensemble(k, weights=weights, seed=seed).fit(models, patterns)
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
    truth, true, k = truth[scored], class_distances(sites.means, "euclidean"), len(sites.means)
    size = np.bincount(truth, minlength=k)
    cosines = np.zeros(len(models))
    for m, (name, means) in enumerate(models.items()):
        distances = class_distances(means, "euclidean")
        cell = table[name].to_numpy()[scored] * k + truth
        cross = np.bincount(cell, minlength=len(means) * k).reshape(len(means), k)
        used = cross.sum(axis=1)
        lengths = np.sqrt((used @ distances**2 @ used) * (size @ true**2 @ size))
        if lengths > 0:
            cosines[m] = np.sum(distances * (cross @ true @ cross.T)) / lengths
    return cosines


def _correlation(first: Floats, second: Floats) -> float:
    if min(np.ptp(first), np.ptp(second)) < 1e-12:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _angle(first: Floats, second: Floats) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    if lengths == 0:
        return float("nan")
    cosine = first @ second / lengths
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


# --- finished cells ----------------------------------------------------------------------


def _number(content: Any) -> int:
    """A whole number that stands for plain values, the same on every machine."""
    text = json.dumps(content, sort_keys=True, default=_plain)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _shown(cell: Mapping[str, Any], name: str) -> Any:
    """The value of a cell's setting for the table of results, given or not."""
    value = (_DATA | _MODELS | dict(cell))[name]
    if name == "n_local" and value is None:
        value = cell.get("n_classes", _DATA["n_classes"])
    return "–".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _path(folder: str | Path, cell: Mapping[str, Any], options: Mapping[str, Any]) -> Path:
    name = "{setting}_{n_sites}_{variance}".format(**cell)
    return Path(folder) / f"{name}_{_number([cell, options]):016x}.json"


def _read(
    folder: str | Path | None, cell: Mapping[str, Any], options: Mapping[str, Any]
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
