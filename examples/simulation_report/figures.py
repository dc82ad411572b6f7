"""Figures of a simulation study. Each draws the table of `simulation_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.checks import counted, one_of, some
from font.errors import InputError
from font.simulation.run import simulation_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {  # colour and marker; oracles are grey and hollow: they know what no method may know
    "local": ("#DDAA33", "v"),
    "k-FED": ("#AA4499", "s"),
    "k-FED nearest": ("#CC6677", "D"),
    "consensus": ("#117733", "P"),
    "FONT equal": ("#88CCEE", "X"),
    "FONT": ("#332288", "o"),
    "FONT refined 0": ("#F0A58F", "H"),
    "FONT refined 1": ("#E34A33", "8"),
    "FONT refined converge": ("#8B1A1A", "*"),
    "pooled": ("#555555", "^"),
    "pooled site proportions": ("#777777", "v"),
    "best local": ("#999999", "^"),
    "FONT centred": ("#882255", "<"),
    "FONT sparse": ("#44AA99", ">"),
    "FONT prior": ("#999933", "p"),
    "FONT any K": ("#D55E00", "h"),
    "tables kmeans": ("#0072B2", "d"),
    "tables latent": ("#E69F00", "o"),
}
GRID = "#E6E6E6"
_LINE_COLOURS = ("#332288", "#999933", "#882255", "#33BBEE", "#661100", "#777777")
_ORACLES = ("pooled", "pooled site proportions", "best local")
_TEXT, _SMALL, _WIDTH = 7, 6, 7.2
_AXIS_NAMES = {"variance": ("Noise variance σ²", "σ² = "), "quarters": ("Quarters", "quarters: ")}


def plot_simulation(results: pd.DataFrame, measure: str = "ari") -> Figure:
    """Means and 95 % intervals of each method: a row of panels per setting, a column per number of
    sites.

    Within a panel the noise variance (or what else makes the data hard) runs to the right. The
    interval is that of the mean, ± 1.96 standard errors; with one replicate there is none. Oracles
    are hollow.
    """
    table = simulation_table(results, measure)
    settings, sizes, variances = _levels(table)
    methods = list(dict.fromkeys(table.columns.get_level_values(0)))
    what = "Adjusted Rand index" if measure == "ari" else _capital(measure)
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
                fmt=_LOOKS[method][1],
                color=_LOOKS[method][0],
                mfc="white" if method in _ORACLES else None,
                ms=3.5,
                lw=1.0,
                label=method,
            )
        _label(ax, row, column, setting, n_sites, variances)
        if row == len(settings) - 1:
            ax.set_xlabel(_axis_names(table)[0], fontsize=_TEXT)
    figure.supylabel(what, fontsize=_TEXT)
    if measure == "ari":  # an interval may reach beyond, the index may not
        axes[0, 0].set_ylim(top=1.03)
    _legend(figure, axes, 4)
    return figure


def plot_weight_correlation(results: pd.DataFrame, measure: str = "correlation") -> Figure:
    """How well the weights follow the models' accuracy, by number of sites and noise variance.

    `measure` is "correlation", with the models' adjusted Rand index; "concordance", with cos(f_m,
    f_0), the theorem's own measure; or "angle", between weights and these cosines, in degrees.
    """
    one_of(measure, ("correlation", "concordance", "angle"), "measure")
    table = simulation_table(results, measure)
    if "FONT" not in table.columns.get_level_values(0):
        raise InputError("the results hold no weights; run the simulation with the method 'FONT'.")
    settings, sizes, variances = _levels(table)
    figure, axes = _panels(["all"], settings)
    for column, setting in enumerate(settings):
        ax = axes[0, column]
        for i, variance in enumerate(variances):
            points = [_line(table, setting, n, [variance], "FONT") for n in sizes]
            means, errors = (np.concatenate(part) for part in zip(*points, strict=True))
            x = np.arange(len(sizes)) + 0.08 * (i - (len(variances) - 1) / 2)
            ax.errorbar(
                x,
                means,
                yerr=1.96 * np.nan_to_num(errors),
                fmt=f"{'osD^vP'[i % 6]}-",
                color=_LINE_COLOURS[i % len(_LINE_COLOURS)],
                ms=4.5,
                lw=1.2,
                label=f"{_axis_names(table)[1]}{variance:g}",
            )
        ax.set_title(_capital(setting), fontsize=_TEXT)
        ax.set_xticks(range(len(sizes)), [f"{n:g}" for n in sizes])
        ax.set_xlim(-0.5, len(sizes) - 0.5)
        ax.set_xlabel("Number of sites", fontsize=_TEXT)
        _tidy(ax)
    names = {
        "correlation": "Correlation of weights\nand accuracy",
        "concordance": "Correlation of weights\nand cos($f_m$, $f_0$)",
        "angle": "Angle of weights\nto oracle (degrees)",
    }
    axes[0, 0].set_ylabel(names[measure], fontsize=_TEXT, linespacing=1.5)
    low, high = axes[0, 0].get_ylim()  # an interval may reach beyond, what it is of may not
    if measure == "angle":
        axes[0, 0].set_ylim(-0.04 * high, high)
    else:
        axes[0, 0].set_ylim(max(low, -1.03), min(high, 1.03))
    _legend(figure, axes, len(variances))
    return figure


def _levels(table: pd.DataFrame) -> tuple[list[Any], list[Any], list[Any]]:
    if table.index.nlevels > 3:
        extra = table.index.names[3:]
        raise InputError(
            f"the results also vary in {some(extra)}, which the figure cannot show; choose the "
            "rows of one value and leave that column out."
        )
    settings, sizes, variances = (table.index.get_level_values(level) for level in range(3))
    return list(dict.fromkeys(settings)), sorted(set(sizes)), sorted(set(variances))


def _axis_names(table: pd.DataFrame) -> tuple[str, str]:
    """The third axis under a panel, and before a value in a legend."""
    name = str(table.index.names[2])
    return _AXIS_NAMES.get(name, (_capital(name), f"{name} "))


def _pairs(rows: list[Any], columns: list[Any]) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    return [(r, c) for r in enumerate(rows) for c in enumerate(columns)]


def _line(
    table: pd.DataFrame, setting: Any, n_sites: Any, variances: list[Any], method: str
) -> tuple[Any, Any]:
    """Means and standard errors along the variances; NaN where the grid lacks the scenario."""
    scenarios = [(setting, n_sites, v) for v in variances]
    rows = pd.MultiIndex.from_tuples(scenarios, names=table.index.names)
    part = table[method].reindex(rows)
    return part["mean"].to_numpy(float), part["se"].to_numpy(float)


def _panels(rows: list[Any], columns: list[Any]) -> tuple[Figure, Any]:
    import matplotlib.pyplot as plt

    size = (min(_WIDTH, 1.2 + 2.4 * len(columns)), 0.9 + 1.75 * len(rows))
    return plt.subplots(
        len(rows),
        len(columns),
        figsize=size,
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )


def _label(ax: Any, row: int, column: int, name: str, n_sites: int, variances: list[Any]) -> None:
    ax.set_xticks(range(len(variances)), [f"{v:g}" for v in variances])
    ax.set_xlim(-0.5, len(variances) - 0.5)
    for edge in np.arange(len(variances) - 1) + 0.5:
        ax.axvline(edge, color=GRID, lw=0.8, zorder=0)
    if row == 0:
        ax.set_title(counted(n_sites, "site", "sites"), fontsize=_TEXT)
    if column == 0:
        ax.set_ylabel(_capital(name), fontsize=_TEXT)
    _tidy(ax)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _tidy(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=GRID, lw=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=_SMALL)


def _legend(figure: Figure, axes: Any, most: int) -> None:
    """The legend below, with at most so many entries in a row and no more than fit."""
    handles, names = axes[0, 0].get_legend_handles_labels()
    entry = _SMALL * (0.55 * max(map(len, names)) + 5) / 72  # inches
    fit = max(1, int(figure.get_figwidth() / entry))
    columns = min(len(names), most, fit)
    wide, high = figure.get_size_inches()
    lines = -(-len(names) // columns)
    figure.set_size_inches(wide, high + 0.13 * max(0, lines - 3))
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=_SMALL
    )
