"""Choosing the number of classes, at one site and at many."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate

TWO = MarkovParams(
    [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [[[0.95, 0.05], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
)
SITES = {site: simulate(TWO, n, 12, seed=n)[0] for site, n in (("MGB", 500), ("VA", 700))}
TABLE = mmlca.select_n_classes(SITES, range(1, 4), seed=1)


def test_table_and_vote() -> None:
    assert TABLE.columns.tolist() == [
        "site",
        "classes",
        "loglik",
        "parameters",
        "parameters_all",
        "aic",
        "bic",
        "bic_all",
        "sabic",
        "caic",
        "icl",
        "entropy",
        "posterior",
        "smallest",
        "sizes",
        "replicated",
        "searches",
        "converged",
        "chosen",
    ]
    assert TABLE[["site", "classes"]].to_numpy().tolist() == [
        [site, k] for site in ("MGB", "VA") for k in (1, 2, 3)
    ]
    assert TABLE.loc[TABLE["chosen"], "classes"].tolist() == [2, 2]
    assert mmlca.vote(TABLE) == 2 == TABLE.attrs["n_classes"]
    assert (TABLE.groupby("site")["loglik"].diff().dropna() > 0).all()


def test_numbers_are_those_of_the_model() -> None:
    row = TABLE.query("site == 'MGB' and classes == 1").iloc[0]
    model = MixtureMarkov(1).fit(SITES["MGB"])
    assert row["loglik"] == model.loglik_
    assert row["bic"] == model.bic()
    assert row["entropy"] == 1
    assert row["smallest"] == 1
    timepoints = mmlca.select_n_classes(SITES["MGB"], [1], n="timepoints")
    assert timepoints["bic"][0] == model.bic("timepoints")
    assert "site" not in timepoints.columns


def test_sizes_caic_and_certainty() -> None:
    row = TABLE.query("site == 'MGB' and classes == 2").iloc[0]
    model = MixtureMarkov(2, seed=1).fit(SITES["MGB"])
    assert row["sizes"] == " / ".join(f"{100 * share:.1f}" for share in model.weights_)
    assert row["caic"] == model.bic() + model.n_parameters_ == model.criteria()["caic"]
    own = model.predict_proba(SITES["MGB"]).max(axis=1)
    assert row["posterior"] == pytest.approx(own.mean())


def test_criteria_in_words() -> None:
    agree = pd.DataFrame({"classes": [1, 2, 3], "bic": [3.0, 1, 2], "aic": [3.0, 1, 2]})
    assert mmlca.compare_criteria(agree) == "All criteria choose 2 classes."
    differ = agree.assign(icl=[0.0, 1, 2], sabic=[3.0, 2, 1])
    assert mmlca.compare_criteria(differ) == (
        "ICL chooses 1 class, BIC and AIC 2, SABIC 3, the largest number tried: try more."
    )
    tested = agree.assign(blrt_p=[np.nan, 0.01, 0.2])
    assert mmlca.compare_criteria(tested) == "All criteria choose 2 classes."
    tested = agree.assign(blrt_p=[np.nan, 0.3, 0.01])
    assert mmlca.compare_criteria(tested).startswith("the bootstrap test chooses 1 class")
    assert mmlca.compare_criteria(TABLE).startswith("MGB: ")


def test_blrt_in_the_table() -> None:
    data = SITES["MGB"][np.arange(150)]
    table = mmlca.select_n_classes(data, [1, 2], seed=1, n_init=4, blrt=5)
    test = mmlca.bootstrap_lrt(data, 2, 5, seed=1)
    assert np.isnan(table["blrt_p"][0])
    assert table["blrt_p"][1] == test.p_value == pytest.approx(1 / 6)
    assert table["blrt_error"][1] == test.mc_error
    assert table.columns[-3:].tolist() == ["searches", "converged", "chosen"]


def test_another_site_or_k_changes_no_other_fit() -> None:
    alone = mmlca.select_n_classes({"VA": SITES["VA"]}, [3], seed=1)
    both = TABLE.query("site == 'VA' and classes == 3").reset_index(drop=True)
    assert alone["loglik"][0] == both["loglik"][0]


def test_ties_go_to_the_smaller_number() -> None:
    table = pd.DataFrame({"classes": [2, 3, 4, 4, 2], "chosen": [True, True, True, True, True]})
    assert mmlca.vote(table) == 2


def test_progress_and_settings_are_passed_on() -> None:
    seen: list[tuple[str, int]] = []
    mmlca.select_n_classes(
        SITES, [1, 2], seed=1, n_init=4, progress=lambda site, k: seen.append((site, k))
    )
    assert seen == [("MGB", 1), ("MGB", 2), ("VA", 1), ("VA", 2)]


def test_too_few_patterns_are_said_and_left_out() -> None:
    few = Sequences.from_lists([["A", "A"], ["A", "B"], ["A", "A"]])
    with pytest.warns(UserWarning, match="the data has only 2 distinct.*K = 3, 4 cannot"):
        table = mmlca.select_n_classes(few, range(1, 5), seed=1)
    assert table["classes"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ks": []}, "ks must be"),
        ({"ks": [0]}, "ks must be"),
        ({"criterion": "BIC"}, "criterion must be one of bic"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mmlca.select_n_classes(SITES, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no sites"):
        mmlca.select_n_classes({})


def test_plot_shows_the_table() -> None:
    ax = mmlca.plot_selection(TABLE)
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) == 3]
    assert len(lines) == 2
    mgb = TABLE.query("site == 'MGB'")
    assert np.asarray(lines[0].get_ydata()) == pytest.approx(
        (mgb["bic"] - mgb["bic"].min()).to_numpy()
    )
    assert ax.get_xlabel() == "Number of classes (top: chosen)"
    _, given = plt.subplots()
    one = TABLE.query("site == 'VA'").drop(columns="site")
    assert mmlca.plot_selection(one, "aic", ax=given) is given
    assert given.get_ylabel() == "AIC above the smallest"
    with pytest.raises(ValueError, match="criterion"):
        mmlca.plot_selection(TABLE, "loglik")
    plt.close("all")
