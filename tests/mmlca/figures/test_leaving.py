"""The figure of leaving by time in state and period."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from stay_chains import two_classes

import mmlca
from mmlca import InputError, MixtureMarkov, simulate

DATA, _ = simulate(two_classes(), 400, 12, states=["TNFi", "IL6R", "JAK", "none"], seed=1)
MODEL = MixtureMarkov(2, seed=1, stays=(2, 4), n_init=8).fit(DATA)


def test_lines_are_the_table_with_intervals() -> None:
    errors = MODEL.standard_errors(DATA)
    ax = mmlca.plot_leaving(MODEL, "JAK", errors=errors)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "2–3", "4+"]
    assert ax.get_ylabel() == "Probability of leaving JAK"
    for number, bars in enumerate(ax.containers, 1):
        wanted = MODEL.leaving_[MODEL.leaving_["class"] == number]
        wanted = wanted.loc[wanted["state"] == "JAK", "leaving"]
        np.testing.assert_array_equal(bars.lines[0].get_ydata(), wanted)
        limits = errors[(errors["parameter"] == "leave") & (errors["class"] == number)]
        limits = limits.loc[limits["from"] == "JAK", ["low", "high"]]
        ends = np.array([segment[:, 1] for segment in bars.lines[2][0].get_segments()])
        np.testing.assert_allclose(ends, limits)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Class 1", "Class 2"]
    _, mine = plt.subplots()
    assert mmlca.plot_leaving(MODEL, ax=mine) is mine
    plt.close("all")


def test_periods() -> None:
    both = MixtureMarkov(1, stays=(2,), periods=(5,), shared="destinations").fit(DATA)
    ax = mmlca.plot_leaving(both, "TNFi")
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["Class 1, windows 1–4", "Class 1, windows 5+"]
    alone = MixtureMarkov(1, periods=(5, 9)).fit(DATA)
    loaded = MixtureMarkov.from_dict(alone.to_dict())  # without patients: no intervals
    ax = mmlca.plot_leaving(loaded, "TNFi")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1–4", "5–8", "9+"]
    plt.close("all")


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="the model's chains are plain"):
        mmlca.plot_leaving(MixtureMarkov(1).fit(DATA))
    with pytest.raises(InputError, match="the model has no state 'CTLA4'; it has 'TNFi'"):
        mmlca.plot_leaving(MODEL, "CTLA4")
    with pytest.raises(TypeError, match="plot_leaving draws a fitted model, found str"):
        mmlca.plot_leaving("model")


def test_intervals_name_the_windows() -> None:
    ax = mmlca.plot_intervals(MODEL.standard_errors(DATA), "leave", classes=[1])
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names[:2] == ["1: TNFi, 1", "1: IL6R, 1"]
    assert names[-1] == "1: none, 4+"
    plt.close("all")


def test_selection_has_a_line_for_each_form() -> None:
    table = mmlca.select_n_classes(
        DATA, [1, 2, 3], seed=1, n_init=8, forms=["plain", {"stays": (2, 4)}]
    )
    ax = mmlca.plot_selection(table)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["plain", "by time in state (1, 2–3, 4+)"]
    chosen = table.loc[table["chosen"], "classes"].item()
    assert [text.get_text() for text in ax.texts] == [str(chosen)]
    lines = [line.get_ydata() for line in ax.lines if len(line.get_xdata()) == 3]
    bic = table["bic"].to_numpy().reshape(2, 3)
    np.testing.assert_allclose(lines, bic - bic.min())
    twice = pd.concat([table.assign(site=site) for site in "AB"])
    assert len(mmlca.plot_selection(twice.reset_index(drop=True)).get_legend().get_texts()) == 4
    plt.close("all")
