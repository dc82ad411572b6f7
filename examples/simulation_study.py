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
    """One claim: it holds where all cells support it, in part where only some do."""
    table = font.compare_methods(results, "FONT", other)
    n = {v: int((table["verdict"] == v).sum()) for v in ("better", "equal", "worse", "open")}
    support = n["better"] + (n["equal"] if wanted == "equal" else 0)
    against = len(table) - n["open"] - support
    return {
        "claim": claim,
        "measured": f"{table['FONT'].mean():.3f} : {table[other].mean():.3f}",
        **n,
        "verdict": verdict(support, against, n["open"]),
    }


def verdict(support: int, against: int, undecided: int) -> str:
    if support and against:
        return f"in part, {support} of {support + against + undecided} cells"
    if undecided and not against:
        return "open" if not support else f"open, {support} cells support it"
    if undecided:
        return "in no cell so far"
    return "holds" if support else "does not hold"


def weight_rows(results: pd.DataFrame) -> list[dict[str, object]]:
    """Do the weights follow the models' accuracy, and more so with more sites?"""
    rows: list[dict[str, object]] = []
    for measure, what in (("correlation", "ARI"), ("concordance", "cos(f_m, f_0)")):
        table = font.simulation_table(results, measure)["FONT"].dropna()
        sure = table["mean"] > 2 * table["se"]
        against = int((table["mean"] < -2 * table["se"]).sum())
        by_sites = table.groupby(level="n_sites")
        mean = by_sites["mean"].mean()
        error = by_sites["se"].agg(lambda se: (se**2).sum() ** 0.5 / len(se))
        rise, room = mean.iloc[-1] - mean.iloc[0], 2 * (error.iloc[[0, -1]] ** 2).sum() ** 0.5
        numbers = " → ".join(f"{value:.2f}" for value in mean)
        n = int(sure.sum())
        rows += [
            {
                "claim": f"Weights correlate with the models' {what}",
                "measured": f"{table['mean'].mean():.2f}",
                "verdict": verdict(n, against, len(table) - n - against),
            },
            {
                "claim": "… and the more so, the more sites",
                "measured": numbers,
                "verdict": verdict(int(rise > room), int(rise < -room), int(abs(rise) <= room)),
            },
        ]
    return rows


def show(results: pd.DataFrame, title: str) -> None:
    means = font.simulation_table(results).xs("mean", axis=1, level=1)
    largest = font.simulation_table(results).xs("se", axis=1, level=1).max().max()
    claims = [claim_row(results, *claim) for claim in CLAIMS] + weight_rows(results)
    print(f"\n{title}\n{'=' * len(title)}")
    print(f"Mean adjusted Rand index, standard errors up to {largest:.3f}.")
    print("Pooled and best local are oracles.\n")
    print(means.round(3).to_string(), "\n")
    table = pd.DataFrame(claims)
    counts = ["better", "equal", "worse", "open"]
    table[counts] = table[counts].map(lambda n: "" if pd.isna(n) else f"{n:.0f}")
    print(table.to_string(index=False))


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
    print(
        "\nNumber of cells where FONT is better, equal (within 0.01), worse, or where the "
        "replicates are too few to tell; intervals of two standard errors."
    )


if __name__ == "__main__":
    main()
