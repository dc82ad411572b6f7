"""The simulation study to read: tables, claims beside numbers, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from simulation_report.claims import simulation_claims
from simulation_report.figures import plot_simulation, plot_weight_correlation
from simulation_report.questions import QUESTIONS

from font.checks import counted
from font.simulation.run import simulation_table

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
    "± 2 standard errors within 0.01), worse, or where the replicates are too few to decide (open)."
)


def simulation_text(
    results: Mapping[int, pd.DataFrame], answers: Mapping[str, pd.DataFrame] | None = None
) -> str:
    """The study as Markdown: for each number of starts the table and the claims.

    `results` are by the starts of each model fitted to patients, as `run_simulation` returns them,
    `answers` as `questions.measure` returns them.
    """
    parts = []
    for n_init, table in results.items():
        se = simulation_table(table).xs("se", axis=1, level=1).max().max()
        parts += [
            f"## Local models from {counted(n_init, 'start', 'starts')}",
            _NOTE.format(se=se),
            markdown(_means(table)),
            _VERDICT_NOTE,
            markdown(simulation_claims(table)),
            *_findings(table),
        ]
    for name, table in (answers or {}).items():
        parts += [f"## {QUESTIONS[name].question}", markdown(table)]
    if results and "variance" in next(iter(results.values())):
        parts.append(_READINGS)
    return "\n\n".join(parts) + "\n"


def write_report(
    results: Mapping[int, pd.DataFrame],
    folder: Path,
    answers: Mapping[str, pd.DataFrame] | None = None,
) -> list[Path]:
    """Write the study into a folder, and return the paths.

    `study.md`, all of it to read; `claims.csv`; `question_….csv`; and for each number of starts the
    figures `accuracy_….png` and `weights_….png`.
    """
    import matplotlib.pyplot as plt

    (folder / "study.md").write_text(simulation_text(results, answers), encoding="utf-8")
    claims = [simulation_claims(part).assign(n_init=n) for n, part in results.items()]
    pd.concat(claims).to_csv(folder / "claims.csv", index=False)
    written = [folder / "study.md", folder / "claims.csv"]
    for name, part in (answers or {}).items():
        written.append(folder / f"question_{name}.csv")
        part.reset_index().to_csv(written[-1], index=False)
    for n_init, part in results.items():
        for name, draw in (("accuracy", plot_simulation), ("weights", plot_weight_correlation)):
            figure = draw(part)
            written.append(folder / f"{name}_{n_init}.png")
            figure.savefig(written[-1], dpi=200)
            plt.close(figure)
    return written


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


def markdown(table: pd.DataFrame, digits: int = 3) -> str:
    """A table as Markdown, its index as the first columns."""
    frame = table.reset_index() if table.index.names != [None] else table
    lines = [_line(frame.columns), "|" + "---|" * len(frame.columns)]
    indexed = frame.shape[1] - table.shape[1]
    for row in frame.itertuples(index=False):
        cells = [str(value) for value in row[:indexed]]
        lines.append(_line([*cells, *(_cell(value, digits) for value in row[indexed:])]))
    return "\n".join(lines)


def _cell(value: Any, digits: int) -> str:
    if value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
