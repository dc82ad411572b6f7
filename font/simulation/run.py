"""The simulation study: sites of one mixture, all methods on the same data, one tidy table.

A scenario is one point of the grid: a setting (equal class proportions, unequal ones, outlying
points) with a number of sites, a noise variance and what else varies. Every replicate of every
scenario draws its own random numbers from the seed, the scenario and its number, so that a
scenario gives the same results in any grid, in any order and on any number of processes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from font.checks import one_of, some, whole_number
from font.errors import InputError
from font.files import atomic_write
from font.simulation.replicate import MEASURES, MODELS, VARIANTS, number_of, plain, replicate_rows
from font.simulation.sources import SETTINGS, GaussianSource, Source

METHODS = GaussianSource.methods
SITES = (5, 10, 50)

_VERSION = 4  # of what a finished scenario means; raise it when the numbers change
_BATCH = 50  # replicates of a scenario after which it is written


def run_simulation(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
    replicates: int = 100,
    seed: int = 0,
    n_jobs: int = 1,
    *,
    n_init: int = 10,
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
    grid : {name: values}, or a list of scenarios {name: value}
        The paper's 27 scenarios unless given. A dict means all combinations. `setting`, `n_sites`
        and `variance` are needed; any argument of `simulate_gaussian` may follow, and `n_local`
        (classes of the local models), `resamples` (models per site, each fitted to 80 % of its
        patients), `noise_sites` (sites whose labels are drawn at random) and `adversarial_sites`
        (sites that all send the same model with random labels).
    replicates : int
        Per scenario; more, but at most `most`, where a method's mean has a standard error larger
        than `precision`.
    n_jobs : int
        Processes.
    n_init : int
        Starts of every model fitted to patients, of which the best is kept.
    k_fed_rounds : int or None
        Rounds of Lloyd at the centre of k-FED, see `k_fed`.
    methods : names among `METHODS` and `VARIANTS`, the former unless given
        "local" is the mean over the models, what a site chosen at random would give; "FONT
        refined 0", … are the ensemble refined with so many rounds, see `font.refine`; "pooled",
        "pooled site proportions" (one model of all patients together, with class proportions of
        each site) and "best local" are oracles. "FONT prior" knows the sites that do harm, and
        gives them a quarter of the reliability; "FONT any K" reads the number of clusters off the
        spectrum; the "tables" see nothing but cross-tables of labels rounded at random.
    source : Source, optional
        Another kind of data with its own local model; Gaussian mixtures and K-means unless
        given. Its `axis` then stands for `variance` in the scenarios.
    folder : path, optional
        Finished replicates are written there, and read the next time unless `resume` is False.
    progress : function (replicates done, all), optional

    Returns
    -------
    DataFrame
        The scenario, `replicate`, `method` and `ari`, the adjusted Rand index on all patients but
        outlying ones; and for methods with weights w: `correlation`, of w_m with the index of
        model m (the paper's figure 2); `concordance`, of w_m with cos(f_m, f_0), where f_m are
        the distances between patients under model m and f_0 the true ones; `angle`, in degrees,
        between w and these cosines (Theorem 1); `suggested`, the number of clusters read off
        the spectrum; `bad_weight`, the mean weight of contaminated, noise and adversarial sites
        as a share of the mean over all.

    Examples
    --------
    >>> scenario = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> results = run_simulation([scenario], replicates=2, methods=["local", "FONT"])
    >>> results[["replicate", "method"]].to_numpy().tolist()
    [[0, 'local'], [0, 'FONT'], [1, 'local'], [1, 'FONT']]
    """
    source = GaussianSource() if source is None else source
    scenarios = grid_scenarios(grid, source)
    replicates = whole_number(replicates, 1, "replicates")
    if precision is not None:
        replicates = max(replicates, 2)  # one has no standard error
        if not precision > 0:
            raise InputError(f"precision must be more than 0; found {precision!r}.")
    n_jobs = whole_number(n_jobs, 1, "n_jobs")
    methods = list(source.methods if methods is None else methods)
    for method in methods:
        one_of(method, (*source.methods, *VARIANTS), "each of methods")
    if k_fed_rounds is not None:
        whole_number(k_fed_rounds, 0, "k_fed_rounds, unless None,")
    options = {
        "version": _VERSION,
        "source": type(source).__name__,
        "seed": whole_number(seed, 0, "seed"),
        "n_init": whole_number(n_init, 1, "n_init"),
        "k_fed_rounds": k_fed_rounds,
        "methods": methods,
    }
    paths = [_path(folder, scenario, options, source) for scenario in scenarios]
    done = [_read(path) if resume else [] for path in paths]
    goals = [replicates] * len(scenarios)
    while True:
        tasks = [
            (i, (source, scenario, replicate, options))
            for i, (scenario, rows, goal) in enumerate(zip(scenarios, done, goals, strict=True))
            for replicate in sorted(set(range(goal)) - {row["replicate"] for row in rows})
        ]
        waiting = [sum(i == j for j, _ in tasks) for i in range(len(scenarios))]
        calls = (delayed(replicate_rows)(*task) for _, task in tasks)
        results = Parallel(n_jobs, return_as="generator")(calls)
        for finished, ((i, _), rows) in enumerate(zip(tasks, results, strict=True), 1):
            done[i] += rows
            waiting[i] -= 1
            if waiting[i] % _BATCH == 0:
                _write(paths[i], scenarios[i], options, done[i])
            if progress is not None:
                progress(sum(goals) - len(tasks) + finished, sum(goals))
        if precision is None:
            break
        needed = [_needed(rows, goal, precision) for rows, goal in zip(done, goals, strict=True)]
        wanted = [max(goal, min(n, most)) for goal, n in zip(goals, needed, strict=True)]
        if wanted == goals:
            break
        goals = wanted
    return _table(source, scenarios, done, goals)


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
    scenarios: list[dict[str, Any]],
    done: list[list[dict[str, Any]]],
    goals: list[int],
) -> pd.DataFrame:
    shown = list(
        dict.fromkeys(
            ["setting", "n_sites", source.axis, *itertools.chain.from_iterable(scenarios)]
        )
    )
    table = pd.DataFrame(
        [
            {name: _shown(scenario, name, source) for name in shown} | row
            for scenario, rows, goal in zip(scenarios, done, goals, strict=True)
            for row in sorted(rows, key=lambda row: row["replicate"])
            if row["replicate"] < goal
        ]
    )
    return table[[*shown, "replicate", "method", *MEASURES]]


def grid_scenarios(
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]] | None = None,
    source: Source | None = None,
) -> list[dict[str, Any]]:
    """The scenarios of a grid, checked: all combinations of a dict's values, or a list as it is."""
    source = GaussianSource() if source is None else source
    needed = ("setting", "n_sites", source.axis)
    if grid is None:
        grid = dict(zip(needed, (SETTINGS, SITES, source.levels), strict=True))
    if isinstance(grid, Mapping):
        values = [[v] if isinstance(v, str) or np.isscalar(v) else list(v) for v in grid.values()]
        scenarios = [dict(zip(grid, row, strict=True)) for row in itertools.product(*values)]
    else:
        scenarios = [dict(scenario) for scenario in grid]
    if not scenarios:
        raise InputError("the grid has no scenarios; give at least one value of each argument.")
    for scenario in scenarios:
        if absent := [name for name in needed if name not in scenario]:
            raise InputError(
                f"the scenario {scenario} lacks {some(absent)}; every scenario needs all three."
            )
        if unknown := [
            name for name in scenario if name not in (*needed, *source.defaults, *MODELS)
        ]:
            raise InputError(
                f"the scenario {scenario} has the unknown names {some(unknown)}; besides the "
                f"arguments of the simulated data there are {some(MODELS)}."
            )
        one_of(scenario["setting"], SETTINGS, "setting")
        spoiled = sum(scenario.get(name, 0) for name in ("noise_sites", "adversarial_sites"))
        n_models = scenario["n_sites"] * max(scenario.get("resamples", 0), 1)
        if spoiled > n_models:
            raise InputError(
                f"the scenario {scenario} spoils {spoiled} of {n_models} models; spoil fewer."
            )
    return scenarios


def simulation_table(results: pd.DataFrame, measure: str = "ari") -> pd.DataFrame:
    """Mean and standard error of a measure, such as "ari" or "correlation", scenarios × methods.

    Methods that do not have the measure are left out, and so are replicates where a correlation is
    not defined, since all models are equally good. Columns are (method, "mean") and (method, "se").

    >>> scenario = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> results = run_simulation([scenario], replicates=2, methods=["FONT"])
    >>> list(simulation_table(results).columns)
    [('FONT', 'mean'), ('FONT', 'se')]
    """
    one_of(measure, MEASURES, "measure")
    if absent := [name for name in ("replicate", "method", measure) if name not in results]:
        raise InputError(
            f"the results lack the columns {some(absent)}; give what run_simulation returns."
        )
    scenario = [name for name in results if name not in (*MEASURES, "replicate", "method")]
    rows = results.dropna(subset=[measure])
    values = rows.groupby([*scenario, "method"], sort=False, dropna=False)[measure]
    table = pd.DataFrame({"mean": values.mean(), "se": values.sem(ddof=1)}).unstack("method")
    order = [method for method in dict.fromkeys(results["method"]) if method in set(rows["method"])]
    table = table.swaplevel(axis=1)[[(m, part) for m in order for part in ("mean", "se")]]
    scenarios = results[scenario].drop_duplicates()
    ordered: pd.DataFrame = table.reindex(pd.MultiIndex.from_frame(scenarios))
    return ordered


# --- finished scenarios -----------------------------------------------------------------------


def _shown(scenario: Mapping[str, Any], name: str, source: Source) -> Any:
    """The value of a scenario's setting for the table of results, given or not."""
    value = (MODELS | dict(source.defaults) | dict(scenario))[name]
    if name == "n_local" and value is None:
        value = scenario.get("n_classes", source.defaults["n_classes"])
    return "–".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _path(
    folder: str | Path | None,
    scenario: Mapping[str, Any],
    options: Mapping[str, Any],
    source: Source,
) -> Path | None:
    if folder is None:
        return None
    name = "_".join(str(scenario[part]) for part in ("setting", "n_sites", source.axis))
    return Path(folder) / f"{name}_{number_of([scenario, options]):016x}.json"


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path.name} in the folder of results cannot be read; delete it to run it again."
        ) from None
    return [row | {m: np.nan for m in MEASURES if row[m] is None} for row in rows]


def _write(
    path: Path | None,
    scenario: Mapping[str, Any],
    options: Mapping[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    """All or nothing: a run that is stopped leaves no half file behind."""
    if path is None:
        return
    clean = [row | {m: None for m in MEASURES if np.isnan(row[m])} for row in rows]
    content = {"scenario": dict(scenario), "options": dict(options), "rows": clean}
    atomic_write(path, json.dumps(content, default=plain).encode())
