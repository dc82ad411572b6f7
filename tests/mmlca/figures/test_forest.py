"""Figures of intervals draw what the tables hold."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca import MarkovParams, MixtureMarkov, simulate

TWO = MarkovParams(
    [0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [[[0.9, 0.1], [0.4, 0.6]], [[0.4, 0.6], [0.0, 1.0]]]
)
DATA = simulate(TWO, 300, 8, seed=1, states=["A", "B"])[0]
MODEL = MixtureMarkov(2, seed=1).fit(DATA)
TABLE = MODEL.standard_errors(DATA)


def lines(ax: plt.Axes) -> list[list[float]]:
    return [
        [float(x) for x in c.get_segments()[0][:, 0]]  # type: ignore[attr-defined]
        for c in ax.collections
    ]


def test_lines_are_the_intervals() -> None:
    table = TABLE.assign(boundary=TABLE.index == len(TABLE) - 2)
    ax = mmlca.plot_intervals(table, "transition")
    rows = table[table["parameter"] == "transition"]
    np.testing.assert_allclose(lines(ax), rows[["low", "high"]].to_numpy())
    points = [float(line.get_xdata()[0]) for line in ax.lines]
    np.testing.assert_allclose(points, rows["estimate"])
    hollow = [line.get_markerfacecolor() == "white" for line in ax.lines]
    assert hollow == rows["boundary"].tolist()
    assert sum(hollow) == 1
    assert ax.get_yticklabels()[1].get_text() == "1: A → B"
    assert ax.get_xlabel() == "Probability of the next state"
    one = mmlca.plot_intervals(TABLE, "transition", classes=[2])
    assert len(lines(one)) == 4
    plt.close("all")


def test_bootstrap_and_odds_ratios() -> None:
    result = mmlca.bootstrap(MODEL, DATA, 10, seed=1)
    ax = mmlca.plot_intervals(result.intervals, "time in state")
    assert ax.get_xlabel() == "Windows in the state"
    table = pd.DataFrame({"x": np.random.default_rng(1).normal(size=len(DATA))})
    model = MixtureMarkov(2, seed=1, n_init=8).fit(DATA, covariates=table)
    effects = model.coefficient_table(DATA, table)
    _, mine = plt.subplots()
    ax = mmlca.plot_intervals(effects, ax=mine)
    assert ax is mine
    assert ax.get_xscale() == "log"
    np.testing.assert_allclose(lines(ax), effects.loc[[1], ["or_low", "or_high"]])
    plt.close("all")


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ValueError, match="several parameters"):
        mmlca.plot_intervals(TABLE)
    with pytest.raises(ValueError, match="must be one of"):
        mmlca.plot_intervals(TABLE, "tempo")
    with pytest.raises(ValueError, match="lacks the columns 'low'"):
        mmlca.plot_intervals(TABLE.drop(columns="low"))
    with pytest.raises(ValueError, match="found 0 intervals"):
        mmlca.plot_intervals(TABLE, "weight", classes=[7])
    with pytest.raises(ValueError, match="expected 1 to 60"):
        mmlca.plot_intervals(pd.concat([TABLE] * 10), "transition")
