"""The simulation study: sites of one mixture, all methods on the same data, one tidy table.

Every replicate of every cell draws its own random numbers from the seed, the cell and its number,
so that a cell gives the same results in any grid, in any order and on any number of processes.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from font.checks import one_of, some, whole_number
from font.gaussian_sites import SETTINGS, GaussianSource, Source
from font.kmeans_sites import SEEDINGS
from font.replicate import MEASURES, MODELS, VARIANTS, number_of, plain, replicate_rows

METHODS = GaussianSource.methods
ALL_METHODS = (*METHODS, *VARIANTS)
SITES = (5, 10, 50)

_VERSION = 2  # of what a finished cell means; raise it when the numbers change
_BATCH = 50  # replicates of a cell after which it is written


def run_simulation(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
    replicates: int = 100,
    seed: int = 0,
    n_jobs: int = 1,
    *,
    n_starts: int = 10,
    seeding: str = "plain",
    k_fed_starts: int = 1,
    k_fed_rounds: int | None = 1,
    methods: Iterable[str] | None = None,
    precision: float | None = None,
    most: int = 1000,
    source: Source | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
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
        - `noise_sites`: so many sites send a model whose labels are drawn at random;
        - `adversarial_sites`: so many sites all send the same model with random labels.
    replicates : int
        In each cell.
    seed : int
    n_jobs : int
        Processes. A script that asks for more than one needs `if __name__ == "__main__":`.
    n_starts, seeding
        Of local and pooled K-means, see `local_kmeans`; one start is nearest to the paper.
    k_fed_starts, k_fed_rounds
        Of the local K-means inside k-FED and of Lloyd at its centre, see `k_fed`.
    methods : names among `METHODS` and `VARIANTS`, the former unless given
        "local" is the mean over the models, what a site chosen at random would give; "FONT
        equal" is the ensemble with equal weights; "pooled" and "best local" are oracles. The
        variants are "FONT centred", "FONT sparse", "FONT prior" (told which sites do harm, whose
        reliability is a quarter) and "FONT any K" (the number of clusters off the spectrum).
    precision : float, optional
        Run more than `replicates` in the cells where a method's mean has a larger standard
        error, but at most `most`.
    most : int
    source : Source, optional
        Another kind of data with its own local model; Gaussian mixtures and K-means unless
        given. Its `axis` then stands for `variance` in the cells.
    folder : path, optional
        Finished replicates are written there, and read instead of run the next time.
    resume : bool
        False runs all again, and replaces what is in the folder.
    progress : function (replicates done, all), optional

    Returns
    -------
    DataFrame
        The cell, `replicate`, `method` and `ari`, the adjusted Rand index on all patients but
        outlying ones; and for methods with weights w: `correlation`, of w_m with the index of
        model m (the paper's figure 2); `concordance`, of w_m with cos(f_m, f_0), where f_m are
        the distances between patients under model m and f_0 the true ones; `angle`, in degrees,
        between w and these cosines (Theorem 1); `suggested`, the number of clusters read off
        the spectrum; `bad_weight`, the mean weight of contaminated, noise and adversarial sites
        as a share of the mean over all.

    Examples
    --------
    >>> cell = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> results = run_simulation([cell], replicates=2, methods=["local", "FONT"])
    >>> results[["replicate", "method"]].to_numpy().tolist()
    [[0, 'local'], [0, 'FONT'], [1, 'local'], [1, 'FONT']]
    """
    source = GaussianSource() if source is None else source
    cells = grid_cells(grid, source)
    replicates = whole_number(replicates, 1, "replicates")
    if precision is not None:
        replicates = max(replicates, 2)  # one has no standard error
        if not precision > 0:
            raise ValueError(f"precision must be more than 0; found {precision!r}.")
    n_jobs = whole_number(n_jobs, 1, "n_jobs")
    methods = list(source.methods if methods is None else methods)
    for method in methods:
        one_of(method, (*source.methods, *VARIANTS), "each of methods")
    one_of(seeding, SEEDINGS, "seeding")
    if k_fed_rounds is not None:
        whole_number(k_fed_rounds, 0, "k_fed_rounds, unless None,")
    options = {
        "version": _VERSION,
        "source": type(source).__name__,
        "seed": whole_number(seed, 0, "seed"),
        "n_starts": whole_number(n_starts, 1, "n_starts"),
        "seeding": seeding,
        "k_fed_starts": whole_number(k_fed_starts, 1, "k_fed_starts"),
        "k_fed_rounds": k_fed_rounds,
        "methods": methods,
    }
    paths = [_path(folder, cell, options, source) for cell in cells]
    done = [_read(path) if resume else [] for path in paths]
    goals = [replicates] * len(cells)
    while True:
        tasks = [
            (i, (source, cell, replicate, options))
            for i, (cell, rows, goal) in enumerate(zip(cells, done, goals, strict=True))
            for replicate in sorted(set(range(goal)) - {row["replicate"] for row in rows})
        ]
        waiting = [sum(i == j for j, _ in tasks) for i in range(len(cells))]
        results = _map(replicate_rows, [task for _, task in tasks], n_jobs)
        for finished, ((i, _), rows) in enumerate(zip(tasks, results, strict=True), 1):
            done[i] += rows
            waiting[i] -= 1
            if waiting[i] % _BATCH == 0:
                _write(paths[i], cells[i], options, done[i])
            if progress is not None:
                progress(sum(goals) - len(tasks) + finished, sum(goals))
        if precision is None:
            break
        found = [_needed(rows, goal, precision) for rows, goal in zip(done, goals, strict=True)]
        wanted = [max(goal, min(n, most)) for goal, n in zip(goals, found, strict=True)]
        if wanted == goals:
            break
        goals = wanted
    return _table(source, cells, done, goals)


def _needed(rows: list[dict[str, Any]], goal: int, precision: float) -> int:
    """Replicates for which every method's standard error would be small enough."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["replicate"] < goal:
            scores.setdefault(row["method"], []).append(row["ari"])
    spread = max(float(np.std(values, ddof=1)) for values in scores.values())
    return int(np.ceil((spread / precision) ** 2 - 1e-9))


def _table(
    source: Source,
    cells: list[dict[str, Any]],
    done: list[list[dict[str, Any]]],
    goals: list[int],
) -> pd.DataFrame:
    shown = list(
        dict.fromkeys(["setting", "n_sites", source.axis, *itertools.chain.from_iterable(cells)])
    )
    table = pd.DataFrame(
        [
            {name: _shown(cell, name, source) for name in shown} | row
            for cell, rows, goal in zip(cells, done, goals, strict=True)
            for row in sorted(rows, key=lambda row: row["replicate"])
            if row["replicate"] < goal
        ]
    )
    return table[[*shown, "replicate", "method", *MEASURES]]


def grid_cells(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
    source: Source | None = None,
) -> list[dict[str, Any]]:
    """The cells of a grid, checked: all combinations of a dict's values, or a list as it is.

    Examples
    --------
    >>> grid_cells({"setting": ["homogeneous"], "n_sites": [5, 10], "variance": [0.1]})[1]
    {'setting': 'homogeneous', 'n_sites': 10, 'variance': 0.1}
    """
    source = GaussianSource() if source is None else source
    needed = ("setting", "n_sites", source.axis)
    if grid is None:
        grid = dict(zip(needed, (SETTINGS, SITES, source.levels), strict=True))
    if isinstance(grid, Mapping):
        values = [[v] if isinstance(v, str) or np.isscalar(v) else list(v) for v in grid.values()]
        cells = [dict(zip(grid, row, strict=True)) for row in itertools.product(*values)]
    else:
        cells = [dict(cell) for cell in grid]
    if not cells:
        raise ValueError("the grid has no cells; give at least one value of each argument.")
    for cell in cells:
        if absent := [name for name in needed if name not in cell]:
            raise ValueError(f"the cell {cell} lacks {some(absent)}; every cell needs all three.")
        if unknown := [name for name in cell if name not in (*needed, *source.defaults, *MODELS)]:
            raise ValueError(
                f"the cell {cell} has the unknown names {some(unknown)}; besides the arguments of "
                f"the simulated data there are {some(MODELS)}."
            )
        one_of(cell["setting"], SETTINGS, "setting")
        spoiled = sum(cell.get(name, 0) for name in ("noise_sites", "adversarial_sites"))
        n_models = cell["n_sites"] * max(cell.get("resamples", 0), 1)
        if spoiled > n_models:
            raise ValueError(f"the cell {cell} spoils {spoiled} of {n_models} models; spoil fewer.")
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


# --- finished cells ----------------------------------------------------------------------


def _shown(cell: Mapping[str, Any], name: str, source: Source) -> Any:
    """The value of a cell's setting for the table of results, given or not."""
    value = (MODELS | dict(source.defaults) | dict(cell))[name]
    if name == "n_local" and value is None:
        value = cell.get("n_classes", source.defaults["n_classes"])
    return "–".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _path(
    folder: str | Path | None, cell: Mapping[str, Any], options: Mapping[str, Any], source: Source
) -> Path | None:
    if folder is None:
        return None
    name = "_".join(str(cell[part]) for part in ("setting", "n_sites", source.axis))
    return Path(folder) / f"{name}_{number_of([cell, options]):016x}.json"


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path.name} in the folder of results cannot be read; delete it to run its cell again."
        ) from None
    return [row | {m: np.nan for m in MEASURES if row[m] is None} for row in rows]


def _write(
    path: Path | None,
    cell: Mapping[str, Any],
    options: Mapping[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    """All or nothing: a run that is stopped leaves no half file behind."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    clean = [row | {m: None for m in MEASURES if np.isnan(row[m])} for row in rows]
    content = {"cell": dict(cell), "options": dict(options), "rows": clean}
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(json.dumps(content, default=plain), encoding="utf-8")
    os.replace(half, path)
