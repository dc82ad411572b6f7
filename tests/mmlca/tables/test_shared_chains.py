"""The test of shared chains and the norms beside it: oracles, size, power and coverage.

Two hospitals have the four RA-like chains of `ra_like`. Clusters are estimated as in a study: a
model of each hospital, the ensemble of both, and its clusters. The numbers in docs/inference.md
come from these functions with more data sets (`python` on this file prints them).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
from ra_like import PARAMS, STATES

import font
import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate

K, S = PARAMS.n_classes, PARAMS.n_states
PROPORTIONS = {
    "equal": ([0.25] * 4, [0.25] * 4),
    "as in the study": ([0.65, 0.12, 0.13, 0.10], [0.65, 0.17, 0.10, 0.08]),
    "unequal": ([0.55, 0.25, 0.12, 0.08], [0.20, 0.10, 0.30, 0.40]),
}
SMALL, LARGE = (400, 500), (2_172, 3_150)
Sites = dict[str, Sequences]


def two_sites(proportions: str, n: tuple[int, int], mixed: float, seed: int) -> tuple[Sites, Any]:
    """Sites x and y with 3 to 16 quarters; the transitions of y are partly even (`mixed`)."""
    rng = np.random.default_rng([15, seed])
    even = (1 - mixed) * PARAMS.transition + mixed / S
    sites, truth = {}, {}
    for i, (site, transition) in enumerate({"x": PARAMS.transition, "y": even}.items()):
        chains = MarkovParams(PROPORTIONS[proportions][i], PARAMS.initial, transition)
        lengths = rng.integers(3, 17, n[i])
        sites[site], truth[site] = simulate(chains, n[i], lengths, rng, states=STATES)
    return sites, truth


def estimated_clusters(sites: Sites, seed: int) -> dict[str, Any]:
    """Those of the ensemble of the sites' own models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {s: MixtureMarkov(K, n_init=10, seed=seed).fit(d) for s, d in sites.items()}
    labels = {site: font.label(models, data) for site, data in sites.items()}
    ensemble = font.Ensemble(K, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    return {site: ensemble.predict(table) for site, table in labels.items()}


def true_norms(proportions: str, n: tuple[int, int], mixed: float) -> pd.Series:
    """Of the chains that the patients are drawn from, with the occupancy of very many patients."""
    square = (mixed * (PARAMS.transition - 1 / S)) ** 2
    sites, truth = two_sites(proportions, (40 * n[0], 40 * n[1]), mixed, seed=0)
    steps = mmlca.transition_counts(sites, truth).groupby(["group", "from"], observed=True)
    occupancy = steps["count"].sum().to_numpy().reshape(K, S)
    occupancy = occupancy / occupancy.sum(axis=1, keepdims=True)
    plain = np.sqrt(square.sum(axis=(1, 2))).mean()
    weighted = np.sqrt((occupancy * square.sum(axis=2)).sum(axis=1)).mean()
    return pd.Series(
        [plain, weighted, 0.0], ["transition plain", "transition occupancy", "initial plain"]
    )


def study(
    proportions: str, n: tuple[int, int], mixed: float, n_sets: int, n_sim: int, first: int = 1
) -> pd.DataFrame:
    """p-values and norms of simulated studies, one row each."""
    rows = []
    for seed in range(first, first + n_sets):
        sites, _ = two_sites(proportions, n, mixed, seed)
        found = mmlca.shared_chain_test(sites, estimated_clusters(sites, seed), n=n_sim, seed=seed)
        row = {"p": found.tests["p_value"].iloc[0]}
        for kind in found.norms.itertuples(index=False):
            for name in ("norm", "debiased", "low", "high"):
                row[f"{kind.quantity} {kind.weighting}", name] = getattr(kind, name)
        rows.append(row)
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame, true: pd.Series) -> pd.Series:
    """Shares of rejections at 0.05, of intervals that hold the truth, and mean norms."""
    result = {"rejected": (table["p"] <= 0.05).mean()}
    for kind, value in true.items():
        low, high = table[kind, "low"], table[kind, "high"]
        result[f"{kind}: covered"] = ((low <= value + 1e-12) & (value <= high)).mean()
        result[f"{kind}: true"] = value
        result[f"{kind}: debiased"] = table[kind, "debiased"].mean()
        result[f"{kind}: norm"] = table[kind, "norm"].mean()
    return pd.Series(result)


if __name__ == "__main__":
    sizes = {"small": SMALL, "large": LARGE}[sys.argv[2]]
    mixed, n_sets, n_sim = float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    table = study(sys.argv[1], sizes, mixed, n_sets, n_sim)
    table.to_pickle(f"/tmp/sites/sim/{sys.argv[1]}_{sys.argv[2]}_{mixed}.pkl")
    print(
        sys.argv[1:],
        summary(table, true_norms(sys.argv[1], sizes, mixed)).round(3).to_dict(),
        flush=True,
    )
