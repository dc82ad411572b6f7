"""Does one-shot ensemble clustering work? Claims about it beside simulated numbers.

Sites draw patients from one Gaussian mixture; some have few patients of a class, some have
outlying points. With so few replicates the numbers are rough; `python simulation_study.py 100 2`
takes 100 of them on two processes, and `make simulation` runs the whole grid.
"""

from __future__ import annotations

import sys

import font

GRID = {
    "setting": ["homogeneous", "imbalanced", "contaminated"],
    "n_sites": [5, 10],
    "variance": 0.1,
}


def main(replicates: int = 4, n_jobs: int = 1) -> None:
    results = {
        n_init: font.run_simulation(GRID, replicates, seed=1, n_jobs=n_jobs, n_init=n_init)
        for n_init in (10, 1)  # starts of K-means at each site
    }
    extensions = font.run_extensions(None, max(replicates // 2, 2), seed=1, n_jobs=n_jobs)
    print(font.simulation_text(results, extensions))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
