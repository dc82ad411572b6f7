"""Tables and figures of a simulation study. Each figure draws the table of `simulation_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.checks import one_of, some
from font.simulation import MEASURES, METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# oracles are grey and hollow: they know what no method may know
_COLOURS = dict(
    zip(
        METHODS,
        ("#DDAA33", "#AA4499", "#CC6677", "#117733", "#88CCEE", "#332288", "#555555", "#999999"),
        strict=True,
    )
)
_MARKERS = dict(zip(METHODS, "vsDPXo^^", strict=True))
_AXES = ("setting", "n_sites", "variance")
_LINES = ("#332288", "#117733", "#DDAA33", "#AA4499", "#88CCEE", "#CC6677")


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
    >>> from font import run_simulation
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


# --- figures -----------------------------------------------------------------------------


def plot_simulation(results: pd.DataFrame, measure: str = "ari") -> Figure:
    """Means and 95 % intervals of each method: a row a setting, a column a number of sites.

    Within a panel the noise variance runs to the right. The interval is that of the mean,
    ± 1.96 standard errors; with one replicate there is none.

    Parameters
    ----------
    results : as `run_simulation` returns
    measure : as in `simulation_table`

    Returns
    -------
    Figure
    """
    table = simulation_table(results, measure)
    settings, sizes, variances = _levels(table)
    methods = list(dict.fromkeys(table.columns.get_level_values(0)))
    what = "adjusted Rand index" if measure == "ari" else measure
    figure, axes = _panels(settings, sizes)
    step = 0.8 / len(methods)
    for (row, setting), (column, n_sites) in _pairs(settings, sizes):
        ax = axes[row, column]
        for i, method in enumerate(methods):
            means, errors = _line(table, setting, n_sites, variances, method)
            ax.errorbar(
                np.arange(len(variances)) + (i - (len(methods) - 1) / 2) * step,
                means,
                yerr=1.96 * np.nan_to_num(errors),
                fmt=_MARKERS.get(method, "o"),
                color=_COLOURS.get(method, "#333333"),
                mfc="white" if method in ("pooled", "best local") else None,
                ms=4.5,
                lw=1.2,
                label=method,
            )
        _label(ax, row, column, len(settings), f"{setting}\n{what}", n_sites, variances)
    _legend(figure, axes)
    return figure


def plot_weight_correlation(results: pd.DataFrame, measure: str = "correlation") -> Figure:
    """How well the weights follow the models' accuracy, by number of sites and noise variance.

    Parameters
    ----------
    results : as `run_simulation` returns
    measure : "correlation", "concordance" or "angle"
        With the models' adjusted Rand index; with cos(f_m, f_0), the theorem's own measure; or
        the angle between weights and these cosines, in degrees.

    Returns
    -------
    Figure
    """
    one_of(measure, ("correlation", "concordance", "angle"), "measure")
    table = simulation_table(results, measure)
    if "FONT" not in table.columns.get_level_values(0):
        raise ValueError("the results hold no weights; run the simulation with the method 'FONT'.")
    settings, sizes, variances = _levels(table)
    figure, axes = _panels(["all"], settings)
    for column, setting in enumerate(settings):
        ax = axes[0, column]
        for i, variance in enumerate(variances):
            cells = [_line(table, setting, n, [variance], "FONT") for n in sizes]
            means, errors = (np.concatenate(part) for part in zip(*cells, strict=True))
            x = np.arange(len(sizes)) + 0.08 * (i - (len(variances) - 1) / 2)
            ax.errorbar(
                x,
                means,
                yerr=1.96 * np.nan_to_num(errors),
                fmt=f"{'osD^vP'[i % 6]}-",
                color=_LINES[i % len(_LINES)],
                ms=4.5,
                lw=1.2,
                label=f"σ² = {variance:g}",
            )
        ax.set_title(setting, fontsize=10)
        ax.set_xticks(range(len(sizes)), [f"{n:g}" for n in sizes])
        ax.set_xlabel("sites")
        _tidy(ax)
    names = {
        "correlation": "correlation of weight and accuracy",
        "concordance": "correlation of weight and cos(f_m, f_0)",
        "angle": "angle of weights to oracle (degrees)",
    }
    axes[0, 0].set_ylabel(names[measure])
    _legend(figure, axes)
    return figure


def _levels(table: pd.DataFrame) -> tuple[list[Any], list[Any], list[Any]]:
    if table.index.duplicated().any() or table.index.nlevels > 3:
        extra = [name for name in table.index.names if name not in _AXES]
        raise ValueError(
            f"the results also vary in {some(extra)}, which the figure cannot show; choose the "
            "rows of one value and leave that column out."
        )
    settings, sizes, variances = (table.index.get_level_values(name) for name in _AXES)
    return list(dict.fromkeys(settings)), sorted(set(sizes)), sorted(set(variances))


def _pairs(rows: list[Any], columns: list[Any]) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    return [(r, c) for r in enumerate(rows) for c in enumerate(columns)]


def _line(
    table: pd.DataFrame, setting: Any, n_sites: Any, variances: list[Any], method: str
) -> tuple[Any, Any]:
    """Means and standard errors along the variances; NaN where the grid has no such cell."""
    wanted = pd.MultiIndex.from_tuples([(setting, n_sites, v) for v in variances], names=_AXES)
    part = table[method].reindex(wanted)
    return part["mean"].to_numpy(float), part["se"].to_numpy(float)


def _panels(rows: list[Any], columns: list[Any]) -> tuple[Figure, Any]:
    import matplotlib.pyplot as plt

    size = (1.2 + 2.9 * len(columns), 1.0 + 2.2 * len(rows))
    return plt.subplots(
        len(rows), len(columns), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )


def _label(
    ax: Any, row: int, column: int, n_rows: int, name: str, n_sites: int, variances: list[Any]
) -> None:
    ax.set_xticks(range(len(variances)), [f"{v:g}" for v in variances])
    ax.set_xlim(-0.5, len(variances) - 0.5)
    for edge in np.arange(len(variances) - 1) + 0.5:
        ax.axvline(edge, color="#DDDDDD", lw=0.8, zorder=0)
    if row == 0:
        ax.set_title(f"{n_sites} sites", fontsize=10)
    if column == 0:
        ax.set_ylabel(name)
    if row == n_rows - 1:
        ax.set_xlabel("noise variance σ²")
    _tidy(ax)


def _tidy(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#EEEEEE", lw=0.8)
    ax.set_axisbelow(True)


def _legend(figure: Figure, axes: Any) -> None:
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
