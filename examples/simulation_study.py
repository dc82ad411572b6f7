"""Does one-shot ensemble clustering work? Claims about it beside simulated numbers.

Sites draw patients from one Gaussian mixture; some have few patients of a class, some have
outlying points. By default a small grid that runs in seconds; `--full` runs all 27 cells with
100 replicates, and takes up again where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

import font

SMALL = {"setting": ["homogeneous", "imbalanced", "contaminated"], "n_sites": [5, 10]}
CLAIMS = [  # the claim, the method it is about, and whom it is to beat (or at least to equal)
    ("FONT is better than one site's model", "local", "better"),
    ("FONT is better than k-FED", "k-FED", "better"),
    ("FONT is better than consensus", "consensus", "better"),
    ("FONT is as good as consensus", "consensus", "equal"),
    ("FONT is better than pooled K-means", "pooled", "better"),
    ("FONT is as good as pooled K-means", "pooled", "equal"),
    ("FONT is as good as the best local model", "best local", "equal"),
    ("The weights matter: better than equal ones", "FONT equal", "better"),
]


def claim_row(results: pd.DataFrame, claim: str, other: str, wanted: str) -> dict[str, object]:
    table = font.compare_methods(results, "FONT", other)
    better, worse = (int((table["verdict"] == v).sum()) for v in ("better", "worse"))
    holds = better == len(table) if wanted == "better" else worse == 0
    partly = better > 0 and worse == 0 if wanted == "better" else worse < len(table) / 2
    numbers = f"{table['FONT'].mean():.3f} : {table[other].mean():.3f}"
    counts = f"{better} / {len(table) - better - worse} / {worse}"
    verdict = "holds" if holds else "in part" if partly else "does not hold"
    return {"claim": claim, "mean ARI": numbers, "better/equal/worse": counts, "verdict": verdict}


def weight_rows(results: pd.DataFrame) -> list[dict[str, object]]:
    rows = []
    for measure, what in (("correlation", "ARI"), ("concordance", "cos(f_m, f_0)")):
        means = font.simulation_table(results, measure)["FONT"]["mean"]
        by_sites = means.groupby(level="n_sites").mean()
        positive, grows = (means > 0).mean(), by_sites.is_monotonic_increasing
        numbers = " → ".join(f"{value:.2f}" for value in by_sites)
        for claim, share, verdict in (
            (f"Weights rise with the models' {what}", f"{positive:.0%} of cells", positive == 1),
            ("… and the more so, the more sites", "", grows),
        ):
            outcome = "holds" if verdict else "does not hold"
            row = {"claim": claim, "mean ARI": numbers, "better/equal/worse": share}
            rows.append(row | {"verdict": outcome})
    return rows


def show(results: pd.DataFrame, title: str) -> None:
    means = font.simulation_table(results).xs("mean", axis=1, level=1)
    errors = font.simulation_table(results).xs("se", axis=1, level=1)
    claims = [claim_row(results, *claim) for claim in CLAIMS] + weight_rows(results)
    print(f"\n{title}\n{'=' * len(title)}\nMean adjusted Rand index (largest standard error")
    print(f"{errors.max().max():.3f}); pooled and best local are oracles:\n")
    print(means.round(3).to_string(), "\n")
    print(pd.DataFrame(claims).rename(columns={"mean ARI": "measured"}).to_string(index=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all 27 cells, 100 replicates")
    parser.add_argument("--replicates", type=int, help="in each cell")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="folder for results, tables and figures")
    given = parser.parse_args()
    out = given.out or (Path("simulation") if given.full else None)
    grid = None if given.full else SMALL | {"variance": [0.1]}
    replicates = given.replicates or (100 if given.full else 4)
    for n_starts, title in (
        (10, "Local and pooled K-means with ten starts"),
        (1, "With a single start, nearer to the paper"),
    ):
        results = font.run_simulation(
            grid,
            replicates,
            seed=1,
            n_jobs=given.jobs,
            n_starts=n_starts,
            folder=out and out / "cells",
            progress=lambda done, n: sys.stderr.write(f"\r{done} of {n}") if out else None,
        )
        show(results, title)
        if out:
            name = f"starts_{n_starts}"
            font.simulation_table(results).to_csv(out / f"{name}.csv")
            font.plot_simulation(results).savefig(out / f"{name}.png", dpi=150)
            figure = font.plot_weight_correlation(results)
            figure.savefig(out / f"{name}_weights.png", dpi=150)
    print("\nBetter and worse: a mean difference beyond 0.005 and two standard errors.")


if __name__ == "__main__":
    main()
