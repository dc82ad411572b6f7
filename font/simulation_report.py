"""The simulation study as files: tidy results, tables, claims beside numbers, and figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from font.simulation_extensions import EXTENSIONS
from font.simulation_plots import plot_simulation, plot_weight_correlation
from font.simulation_tables import markdown, simulation_claims, simulation_table

_NOTE = (
    "Mean adjusted Rand index; the largest standard error is {se:.3f}. Pooled and best local are "
    "oracles: no method may know what they know."
)
_VERDICT_NOTE = (
    "FONT : the other, means over the cells. Cells where FONT is better, equal (difference ± 2 "
    "standard errors within 0.01), worse, or where the replicates are too few to tell (open)."
)


def simulation_text(
    results: Mapping[int, pd.DataFrame], extensions: Mapping[str, pd.DataFrame] | None = None
) -> str:
    """The study as Markdown: for each number of starts the table and the claims.

    Parameters
    ----------
    results : {starts of local and pooled models: as `run_simulation` returns}
    extensions : as `run_extensions` returns, optional
    """
    parts = []
    for n_starts, table in results.items():
        se = simulation_table(table).xs("se", axis=1, level=1).max().max()
        parts += [
            f"## Local models from {n_starts} start{'s' * (n_starts != 1)}",
            _NOTE.format(se=se),
            markdown(_means(table)),
            _VERDICT_NOTE,
            markdown(simulation_claims(table)),
            *_findings(table),
        ]
    for name, table in (extensions or {}).items():
        parts += [f"## {EXTENSIONS[name].question}", markdown(table)]
    return "\n\n".join(parts) + "\n"


def write_simulation(
    results: Mapping[int, pd.DataFrame],
    folder: str | Path,
    extensions: Mapping[str, pd.DataFrame] | None = None,
) -> list[Path]:
    """Write the study into a folder.

    Parameters
    ----------
    results, extensions : as in `simulation_text`
    folder : path

    Returns
    -------
    list of paths
        `results.csv`, a row a replicate and method; `table.csv`, means and standard errors;
        `claims.csv`; `study.md`, all of it to read; `extension_….csv`; and for each number of
        starts the figures `accuracy_….png` and `weights_….png`.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def put(name: str, write: Callable[[Path], Any]) -> None:
        half = out / f".{os.getpid()}.{name}"
        write(half)
        os.replace(half, out / name)
        written.append(out / name)

    tidy = _stacked(results)
    put("results.csv", lambda path: tidy.to_csv(path, index=False))
    table = _stacked({n: _flat(simulation_table(part)) for n, part in results.items()})
    put("table.csv", lambda path: table.to_csv(path, index=False))
    claims = _stacked({n: simulation_claims(part) for n, part in results.items()})
    put("claims.csv", lambda path: claims.to_csv(path, index=False))
    text = simulation_text(results, extensions)
    put("study.md", lambda path: path.write_text(text, encoding="utf-8"))
    for name, part in (extensions or {}).items():
        put(f"extension_{name}.csv", part.reset_index().to_csv)
    for n_starts, part in results.items():
        for name, draw in (("accuracy", plot_simulation), ("weights", plot_weight_correlation)):
            figure = draw(part)
            put(f"{name}_{n_starts}.png", lambda path, f=figure: _save(f, path))  # type: ignore[misc]
    return written


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=200, format="png")
    plt.close(figure)


def _stacked(parts: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    frames = [part.assign(n_starts=n_starts) for n_starts, part in parts.items()]
    table = pd.concat(frames, ignore_index=True)
    return table[["n_starts", *table.columns.drop("n_starts")]]


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_axis([" ".join(pair) for pair in table.columns], axis=1).reset_index()


def _means(results: pd.DataFrame) -> pd.DataFrame:
    """Means of the methods by cell, and how FONT's weights correlate with accuracy."""
    means: pd.DataFrame = simulation_table(results).xs("mean", axis=1, level=1).copy()
    if "FONT" in means and results["correlation"].notna().any():
        means["weights ~ ARI"] = simulation_table(results, "correlation")["FONT"]["mean"]
        means["weights ~ cos"] = simulation_table(results, "concordance")["FONT"]["mean"]
    means.columns.name = None
    return means


def _findings(results: pd.DataFrame) -> list[str]:
    """What the numbers say plainly, and the claims may hide."""
    means = simulation_table(results).xs("mean", axis=1, level=1)
    dirty = means.index.get_level_values("setting") == "contaminated"
    lines = []
    if "FONT equal" in means:
        apart = (means["FONT"] - means["FONT equal"]).abs()
        if (~dirty).any():
            lines.append(
                "Without outlying points the weights are nearly equal: FONT and FONT with equal "
                f"weights differ by at most {apart[~dirty].max():.3f}."
            )
        if dirty.any():
            gain = (means["FONT"] - means["FONT equal"])[dirty]
            lines.append(
                f"With outlying points FONT's weights change it by {gain.min():+.3f} to "
                f"{gain.max():+.3f}."
            )
    for other in ("consensus", "pooled"):
        for where, part in (("Without", means[~dirty]), ("With", means[dirty])):
            if other not in means or part.empty:
                continue
            behind = part[other] - part["FONT"]
            lines.append(
                f"{where} outlying points the mean of {other} is above FONT's in "
                f"{int((behind > 0).sum())} of {len(part)} cells, by at most "
                f"{max(behind.max(), 0):.3f}, and below by at most {max(-behind.min(), 0):.3f}."
            )
    return ["\n".join(f"- {line}" for line in lines)] if lines else []
