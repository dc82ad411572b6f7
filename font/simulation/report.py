"""The simulation study as files: tidy results, tables, claims beside numbers, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pandas as pd

from font.files import atomic
from font.simulation.extensions import EXTENSIONS
from font.simulation.plots import plot_simulation, plot_weight_correlation
from font.simulation.tables import markdown, simulation_claims, simulation_table

_NOTE = (
    "Mean adjusted Rand index; the largest standard error is {se:.3f}. Pooled and best local are "
    "oracles: no method may know what they know."
)
_READINGS = """## How the papers were read

- **Consensus** is K-means on the rows of Ū, where S̄ = ŪŪᵀ is the mean connectivity matrix: all
  columns, none rescaled, which is K-means on the one-hot labels of all models.
- **Outlying points** come on top of a contaminated site's own patients. The settings build on
  each other, so that a contaminated site is an imbalanced one with outlying points besides; were
  they part of its number, such a site would also have fewer patients, and two things would differ
  at once. `outlier_points="replace"` is the other reading.
- **k-FED's one round of Lloyd at the centre** takes the means of the groups once and groups the
  sites' centres by these means. The result that the sites use is the grouping; a round that ended
  with the means would leave it as it was before the round. `rounds=0` is that reading,
  `rounds=None` goes on until nothing changes.
- **K-means at the sites** is seeded by k-means++ as published, one draw per seed."""
_VERDICT_NOTE = (
    "FONT : the other, means over the scenarios. Scenarios where FONT is better, equal (difference "
    "± 2 standard errors within 0.01), worse, or where the replicates are too few to tell (open)."
)


def simulation_text(
    results: Mapping[int, pd.DataFrame], extensions: Mapping[str, pd.DataFrame] | None = None
) -> str:
    """The study as Markdown: for each number of starts the table and the claims.

    Parameters
    ----------
    results : {starts of each model fitted to patients: as `run_simulation` returns}
    extensions : as `run_extensions` returns, optional
    """
    parts = []
    for n_init, table in results.items():
        se = simulation_table(table).xs("se", axis=1, level=1).max().max()
        parts += [
            f"## Local models from {n_init} start{'s' * (n_init != 1)}",
            _NOTE.format(se=se),
            markdown(_means(table)),
            _VERDICT_NOTE,
            markdown(simulation_claims(table)),
            *_findings(table),
        ]
    for name, table in (extensions or {}).items():
        parts += [f"## {EXTENSIONS[name].question}", markdown(table)]
    if results and "variance" in next(iter(results.values())):
        parts.append(_READINGS)
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
        `results.csv`, one row per replicate and method; `table.csv`, means and standard errors;
        `claims.csv`; `study.md`, all of it to read; `extension_….csv`; and for each number of
        starts the figures `accuracy_….png` and `weights_….png`.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def put(name: str, write: Callable[[IO[bytes]], Any]) -> None:
        with atomic(out / name) as file:
            write(file)
        written.append(out / name)

    tidy = _stacked(results)
    put("results.csv", lambda file: tidy.to_csv(file, index=False))
    table = _stacked({n: _flat(simulation_table(part)) for n, part in results.items()})
    put("table.csv", lambda file: table.to_csv(file, index=False))
    claims = _stacked({n: simulation_claims(part) for n, part in results.items()})
    put("claims.csv", lambda file: claims.to_csv(file, index=False))
    text = simulation_text(results, extensions)
    put("study.md", lambda file: file.write(text.encode()))
    for name, part in (extensions or {}).items():
        put(f"extension_{name}.csv", part.reset_index().to_csv)
    for n_init, part in results.items():
        for name, draw in (("accuracy", plot_simulation), ("weights", plot_weight_correlation)):
            figure = draw(part)
            put(f"{name}_{n_init}.png", lambda file, f=figure: _save(f, file))  # type: ignore[misc]
    return written


def _save(figure: Any, file: IO[bytes]) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(file, dpi=200, format="png")
    plt.close(figure)


def _stacked(parts: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    frames = [part.assign(n_init=n_init) for n_init, part in parts.items()]
    table = pd.concat(frames, ignore_index=True)
    return table[["n_init", *table.columns.drop("n_init")]]


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_axis([" ".join(pair) for pair in table.columns], axis=1).reset_index()


def _means(results: pd.DataFrame) -> pd.DataFrame:
    """Means of the methods per scenario, and how FONT's weights correlate with accuracy."""
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
                f"{int((behind > 0).sum())} of {len(part)} scenarios, by at most "
                f"{max(behind.max(), 0):.3f}, and below by at most {max(-behind.min(), 0):.3f}."
            )
    return ["\n".join(f"- {line}" for line in lines)] if lines else []
