"""The same study under other choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import ehr_prep
from mmlca.study import read_study, run_sensitivity, run_study
from mmlca.study.sensitivity import Outcome, Variant, plot_pairs, variants

FILE = """
name = "Small study"
[sites.MGB]
records = "MGB/medications.csv"
drugs = "ra"
patients = "MGB/patients.csv"
[sites.VA]
records = "VA/medications.csv"
drugs = "ra"
patients = "VA/patients.csv"
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
[classes]
number = 4
[pseudo_sites]
per_site = 2
[model]
n_init = 8
[inference]
simulations = 19
diagnostics = false
standard_errors = false
[outputs]
figures = false
bootstrap = 0
dpi = 60
[sensitivity]
months = [6]
ties = ["first", "latest"]
by = []
impute = ["carry_forward_max"]
max_carry = [1]
classes = [3]
forms = []
per_site = [3]
fraction = []
weights = ["equal"]
seeds = [2]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1, scale=0.15).write(folder)
    (folder / "study.toml").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Any]:
    return run_sensitivity(read_study(folder / "study.toml"), folder / "out")


def test_each_choice_is_varied_alone_and_the_main_one_is_not_repeated(folder: Path) -> None:
    found = variants(read_study(folder / "study.toml"))
    assert [v.choices for v in found] == [
        {"months": 6},
        {"ties": "latest"},
        {"impute": "carry_forward_max"},
        {"max_carry": 1},
        {"classes": 3},
        {"per_site": 3},
        {"weights": "equal"},
        {"seeds": 2},
    ]
    by_name = {next(iter(v.choices)): v.study for v in found}
    assert by_name["months"].rules.max_windows == 8  # the same four years
    assert by_name["max_carry"].rules.impute == "carry_forward_max"
    assert by_name["seeds"].seed == 2


def test_the_index_is_that_of_two_runs_of_the_study(
    folder: Path, done: dict[str, Any], tmp_path: Path
) -> None:
    study = read_study(folder / "study.toml")
    run_study(study, tmp_path / "main")
    run_study(study.changed(rules={"ties": "latest"}), tmp_path / "latest")
    both = [
        pd.concat(
            [pd.read_csv(tmp_path / name / f"patients/{s}_clusters.csv") for s in ("MGB", "VA")]
        )
        for name in ("main", "latest")
    ]
    table = pd.read_csv(folder / "out/sensitivity.csv").set_index("variant")
    expected = adjusted_rand_score(both[0]["cluster"], both[1]["cluster"])
    shown = table.loc["ties: latest", "adjusted_rand_index"]
    assert shown == pytest.approx(expected, abs=0.005)  # two decimals
    numbers = pd.read_csv(folder / "out/numbers.csv", index_col="name")
    headline = pd.read_csv(tmp_path / "main/tables/headline.csv", index_col="name")["value"]
    named = r"^share of (\d+)(?:: .*)?, (\w+)$"  # where clusters have names of their own
    headline.index = headline.index.str.replace(named, r"share of cluster \1, \2", regex=True)
    off = (numbers["main"] - headline.reindex(numbers.index)).abs()
    rounded = numbers.index.str.startswith(("patients", "distinct"))
    shares = numbers.index.str.startswith("share of cluster")  # of rounded numbers
    assert off[rounded].max() < study.privacy.min_count
    assert off[shares].max() < study.privacy.min_count / 300
    assert off[~rounded & ~shares].max() <= 0.005 + 1e-12  # two decimals


def test_tables_ranges_and_picture(folder: Path, done: dict[str, Any]) -> None:
    table = pd.read_csv(folder / "out/sensitivity.csv")
    assert len(table) == done["n"] == 8
    assert done["failed"] == 0
    assert table["adjusted_rand_index"].between(0.3, 1).all()
    numbers = pd.read_csv(folder / "out/numbers.csv", index_col="name")
    ranges = pd.read_csv(folder / "out/ranges.csv", index_col="name")
    shown = ranges[ranges["main"].notna()]  # small clusters do not show
    assert len(shown) > 20
    assert (shown["smallest"] <= shown["main"]).all()
    assert (shown["main"] <= shown["largest"]).all()
    name = "share of cluster 1, VA"
    assert ranges.loc[name, "largest"] == pytest.approx(numbers.loc[name].max())
    assert numbers.loc[name, ranges.loc[name, "largest with"]] == ranges.loc[name, "largest"]
    assert ranges.loc["number of groups", "smallest with"] == "classes: 3"
    assert (folder / "out/sensitivity.png").stat().st_size > 5_000
    assert "adjusted Rand index" in done["summary"][0]


def test_a_second_run_computes_nothing_and_says_the_same(
    folder: Path, done: dict[str, Any]
) -> None:
    study, out = read_study(folder / "study.toml"), folder / "out"
    before = {p: p.stat().st_mtime_ns for p in (out / "variants").iterdir()}
    assert run_sensitivity(study, out) == done
    assert {p: p.stat().st_mtime_ns for p in (out / "variants").iterdir()} == before


def test_what_was_compared_with_another_main_analysis_is_not_used_again(
    folder: Path, tmp_path: Path
) -> None:
    nothing = dict.fromkeys(("months", "impute", "max_carry", "classes", "per_site", "weights"), ())
    study = read_study(folder / "study.toml").changed(
        sensitivity={**nothing, "ties": ("latest",), "seeds": ()}
    )
    run_sensitivity(study.changed(rules={"ties": "previous"}), tmp_path / "used")
    run_sensitivity(study, tmp_path / "used")  # the same other analysis, another main one
    run_sensitivity(study, tmp_path / "new")
    used, new = (tmp_path / name / "sensitivity.csv" for name in ("used", "new"))
    assert used.read_text() == new.read_text()


def test_windows_of_another_length_cover_the_same_time(folder: Path) -> None:
    study = read_study(folder / "study.toml").changed(rules={"days": 91.3125})
    by_name = {next(iter(v.choices)): v.study for v in variants(study)}
    assert by_name["months"].rules.max_windows == 8
    assert by_name["months"].rules.days is None


def test_a_choice_that_cannot_be_made_is_told_and_does_not_stop_the_others(
    folder: Path, tmp_path: Path
) -> None:
    study = read_study(folder / "study.toml").changed(
        sensitivity={
            **dict.fromkeys(("months", "ties", "impute", "max_carry", "per_site"), ()),
            "classes": (2000,),
            "weights": ("equal",),
            "seeds": (),
        }
    )
    found = run_sensitivity(study, tmp_path)
    assert (found["n"], found["failed"]) == (2, 1)
    assert "classes: 2000" in found["summary"][-1]
    table = pd.read_csv(tmp_path / "sensitivity.csv")
    assert table["error"].notna().tolist() == [True, False]


def test_all_combinations(folder: Path) -> None:
    study = read_study(folder / "study.toml")
    few = {"months": (6,), "ties": ("latest",), "impute": (), "max_carry": (1,), "classes": ()}
    rest = {"per_site": (), "fraction": (), "weights": (), "seeds": (2,), "crossed": True}
    found = variants(study.changed(sensitivity=few | rest))
    assert len(found) == 2**4 - 1
    many = {"seeds": tuple(range(2, 700)), "crossed": True}
    with pytest.raises(ValueError, match=r"asks for [\d,]+ analyses, but at most 500"):
        variants(study.changed(sensitivity=many))
    with pytest.raises(ValueError, match="names nothing that differs"):
        variants(study.changed(sensitivity=dict.fromkeys([*few, *rest], ()) | {"crossed": False}))
    with pytest.raises(ValueError, match=r"sensitivity\.ties is 'lst' and should be"):
        variants(study.changed(sensitivity={"ties": ("lst",)}))


def test_the_picture_of_combinations_shows_means(folder: Path) -> None:
    study = read_study(folder / "study.toml")
    choices: list[dict[str, Any]] = [{"ties": "latest", "seeds": 2}, {"ties": "latest"}]
    others = [Variant(choice, study) for choice in [*choices, {"seeds": 2}]]
    outcomes = [Outcome({"all": index}) for index in (0.6, 0.8, 1.0)]
    figure = plot_pairs(others, outcomes)
    plt.close(figure)
    (image,) = figure.axes[0].images
    assert np.asarray(image.get_array()) == pytest.approx(np.array([[0.7, 0.6], [0.6, 0.8]]))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:2] == ["ties: latest", "seed: 2"]
