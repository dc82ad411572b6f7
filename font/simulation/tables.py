"""Tables of a simulation study: means per scenario, and differences between methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from font.checks import one_of, some
from font.errors import InputError
from font.simulation.replicate import MEASURES

VERDICTS = ("better", "equal", "worse", "open")


def simulation_table(results: pd.DataFrame, measure: str = "ari") -> pd.DataFrame:
    """Mean and standard error of a measure, scenarios × methods.

    Parameters
    ----------
    results : as `run_simulation` returns
    measure : a column of the results, such as "ari" or "correlation"
        Methods that do not have it are left out, and so are replicates where a correlation is
        not defined, since all models are equally good.

    Returns
    -------
    DataFrame
        One row per scenario; columns (method, "mean") and (method, "se").

    Examples
    --------
    >>> scenario = {"setting": "homogeneous", "n_sites": 3, "variance": 0.05, "sizes": (50, 60)}
    >>> from font.simulation.run import run_simulation
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
        One row per scenario: the two means, `difference` with its standard error `se`, and
        `verdict`: "equal" if difference ± 2 se lies within ± margin, else "better" or "worse" if
        it lies on one side of 0, else "open": the replicates are too few to decide.

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
        raise InputError(f"two different methods are needed; found {method!r} twice.")
    for name in (method, other):
        one_of(name, dict.fromkeys(results["method"]), "the methods to compare")
    scenario = [name for name in results if name not in (*MEASURES, "replicate", "method")]
    pairs = results[results["method"].isin([method, other])]
    wide = pairs.set_index([*scenario, "replicate", "method"])["ari"].unstack("method")
    wide["difference"] = wide[method] - wide[other]
    groups = wide.groupby(level=list(range(len(scenario))), sort=False, dropna=False)
    table: pd.DataFrame = groups[[method, other, "difference"]].mean()
    table["se"] = groups["difference"].sem(ddof=1)
    table["verdict"] = judge(table["difference"], table["se"], margin)
    table["difference"] = table["difference"].round(12)
    return table.reindex(pd.MultiIndex.from_frame(results[scenario].drop_duplicates()))


def judge(difference: pd.Series, se: pd.Series, margin: float) -> Any:
    """What differences with these standard errors say, one of VERDICTS each."""
    size, room = difference.abs(), 2 * se.fillna(np.inf)
    sign = np.where(difference > 0, "better", "worse")
    return np.where(size + room <= margin, "equal", np.where(size > room, sign, "open"))
