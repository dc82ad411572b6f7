"""How often 95 % intervals hold the truth where classes overlap.

Every fit begins at the truth, so that the intervals are measured and not the search. The numbers in
the documentation come from these functions with more studies (`python` on this file prints them).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.inference import parameter_values

CHAINS = MarkovParams(
    [0.5, 0.3, 0.2],
    [[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.3, 0.2, 0.5]],
    [
        [[0.85, 0.1, 0.05], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]],
        [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]],
        [[0.5, 0.2, 0.3], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]],
    ],
)
BETA = np.array([0.0, 0.5, -0.5])  # log-odds of each class for one unit of the covariate
OTHERS: tuple[Literal["opg", "observed"], ...] = ("opg", "observed")  # than the default


def coverage(
    n: int, length: int, n_studies: int, n_boot: int = 0, n_refits: int = 200
) -> pd.DataFrame:
    """Share of studies whose interval holds the truth: one row per probability, kinds as columns.

    The first `n_boot` studies have bootstrap intervals from `n_refits` refits too. The column
    `entropy` has the mean entropy R² of the fits.
    """
    parts, entropy = [], []
    for seed in range(n_studies):
        data, _ = simulate(CHAINS, n, length, seed=seed)
        model, order = fitted(data)
        entropy.append(model.entropy())
        truth = parameter_values(
            MarkovParams(CHAINS.weights[order], CHAINS.initial[order], CHAINS.transition[order])
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tables = {kind: model.standard_errors(data, information=kind) for kind in OTHERS}
            tables["default"] = model.standard_errors(data)
        if seed < n_boot:
            result = mmlca.bootstrap(model, data, n=n_refits, seed=seed)
            tables["bootstrap"] = result.intervals.iloc[: len(truth)]
        for kind, table in tables.items():
            covered = (table["low"] <= truth) & (truth <= table["high"])
            part = table[["parameter", "class", "from", "to"]].assign(kind=kind, covered=covered)
            parts.append(part.assign(**{"class": order[part["class"].to_numpy() - 1]}))
    by = ["parameter", "class", "from", "to", "kind"]
    shares = pd.concat(parts).groupby(by, dropna=False)["covered"].mean().unstack("kind")
    return shares.assign(entropy=np.mean(entropy))


def fitted(data: Sequences, **options: Any) -> tuple[MixtureMarkov, Any]:
    """The fit that begins at the truth, and the true class behind each of its classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureMarkov(3, init=CHAINS).fit(data, **options)
    apart = model.params_.transition[:, None] - CHAINS.transition[None]
    return model, linear_sum_assignment((apart**2).sum(axis=(2, 3)))[1]


def effects(n: int, length: int, n_studies: int) -> pd.DataFrame:
    """Whether the intervals of the effects of a covariate hold the truth."""
    rows = []
    for seed in range(n_studies):
        rng = np.random.default_rng([17, seed])
        x = rng.normal(size=n)
        odds = CHAINS.weights * np.exp(x[:, None] * BETA)
        edges = (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)
        classes = (rng.random(n)[:, None] > edges).sum(axis=1)
        codes = np.empty((n, length), dtype=np.int8)
        for k in range(3):
            chain = MarkovParams([1.0], CHAINS.initial[[k]], CHAINS.transition[[k]])
            mine = classes == k
            codes[mine] = simulate(chain, int(mine.sum()), length, seed=rng)[0].codes
        data, table = Sequences.from_codes(codes), pd.DataFrame({"x": x})
        model, order = fitted(data, covariates=table)
        truth = (BETA[order] - BETA[order[0]])[1:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tables = {k: model.coefficient_table(data, table, information=k) for k in OTHERS}
            tables["default"] = model.coefficient_table(data, table)
        for kind, rows_of_all in tables.items():
            found = rows_of_all[rows_of_all["term"] == "x"]
            covered = (found["low"] <= truth) & (truth <= found["high"])
            rows += [(kind, share, model.entropy()) for share in covered]
    return pd.DataFrame(rows, columns=["kind", "covered", "entropy"])


@pytest.mark.slow
@pytest.mark.parametrize(("length", "bound"), [(10, 0.935), (8, 0.89)])
def test_default_intervals_cover_more_where_classes_overlap(length: int, bound: float) -> None:
    """Score outer products, once the default, are below these bounds; shares suffer most."""
    shares = coverage(800, length, 300)
    assert 0.5 < shares["entropy"].iloc[0] < 0.6
    assert shares["opg"].mean() < bound <= shares["default"].mean()
    weights = shares.loc["weight"]
    assert weights["opg"].min() < bound - 0.05 <= weights["default"].min()


@pytest.mark.slow
def test_default_intervals_of_effects_cover_where_classes_overlap() -> None:
    found = effects(400, 10, 150).groupby("kind").mean()
    assert 0.5 < found["entropy"].iloc[0] < 0.65
    assert found.loc["opg", "covered"] < 0.93 <= found.loc["default", "covered"]


if __name__ == "__main__":
    n_studies, n_boot, say = int(sys.argv[2]), int(sys.argv[3]), sys.stdout.write
    for n, length in ((800, 16), (800, 10), (800, 8), (400, 10), (400, 8)):
        if sys.argv[1] == "effects":
            table = effects(n, length, n_studies).groupby("kind").mean()
            say(f"{n} patients, {length} windows\n{table.round(3).to_string()}\n")
        else:
            table = coverage(n, length, n_studies, n_boot)
            shown = pd.DataFrame({"mean": table.mean(), "lowest": table.min()})
            shown["lowest share"] = table.loc["weight"].min()
            say(f"{n} patients, {length} windows\n{shown.round(3).T.to_string()}\n")
        sys.stdout.flush()
