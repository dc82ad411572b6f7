"""Does one-shot ensemble clustering work? Claims about it, tested with simulated numbers.

Sites draw patients from one Gaussian mixture; some have few patients of a class, some have
outliers. `python simulation_study.py` simulates a few sites and prints the results, with so few
replicates that the numbers are rough. `make simulation` runs the whole grid with `mmlca simulate`
and then this script, which answers the further questions in `simulation_report/questions.py` and
writes a report with figures into the results folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from simulation_report.questions import measure
from simulation_report.report import simulation_text, write_report

from font import run_simulation

GRID = {
    "setting": ["homogeneous", "imbalanced", "contaminated"],
    "n_sites": [5, 10],
    "variance": 0.1,
}


def small() -> str:
    """A few replicates of a part of the grid."""
    results = {
        n_init: run_simulation(GRID, replicates=4, seed=1, n_init=n_init)
        for n_init in (10, 1)  # starts of K-means at each site
    }
    return simulation_text(results, measure(replicates=2, seed=1))


def whole(folder: Path, n_jobs: int) -> str:
    """A report on what `mmlca simulate --out folder` measured, and on the further questions."""
    tidy = pd.read_csv(folder / "results.csv")
    results = {
        int(n_init): part.drop(columns="n_init").reset_index(drop=True)
        for n_init, part in tidy.groupby("n_init", sort=False)
    }
    answers = None
    if "variance" in tidy:  # Gaussian mixtures, which the questions are about
        answers = measure(seed=1, n_jobs=n_jobs, folder=folder / "scenarios")
    return "\n".join(map(str, write_report(results, folder, answers)))


if __name__ == "__main__":
    print(whole(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else small())
