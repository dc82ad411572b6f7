"""Attacks on the sizes of groups, which stand beside courses and differences too."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from released import courses_by_group, one_site, shown_sizes
from study_attack import System

import ehr_prep
import mmlca
from mmlca.sequences.type import Account, flow_table
from mmlca.study import own_courses
from mmlca.study.own_courses import draw_single_courses
from mmlca.study.results import about
from mmlca.study.results.shown_courses import courses_of, described_of, groups_of
from mmlca.study.results.site import ONLY, SitePatients, SiteResults
from mmlca.study.sections.labs import items as lab_items
from mmlca.study.sections.patients import _about_deaths
from mmlca.study.settings import Study
from mmlca.study.words import dead_included
from mmlca.tables.clusters import describe_clusters
from mmlca.tables.course_tables import Courses, guarded_clusters
from mmlca.tables.disclosure import is_small, printable

SIZES = {"A": [200, 100, 80], "B": [150, 3, 60], "C": [90, 70, 40]}
CLUSTERS = {site: pd.Series(np.repeat([1, 2, 3], n)) for site, n in SIZES.items()}


def unknown_in_each_line(shown: np.ndarray) -> set[int]:
    """How many sizes of each site and of each cluster are not shown."""
    return {*(~shown).sum(axis=0), *(~shown).sum(axis=1)}


def test_the_sizes_of_groups_that_are_shown_do_not_give_a_small_one() -> None:
    shown = shown_sizes(CLUSTERS, 11)
    known = shown.loc[list("ABC"), [1, 2, 3]].notna().to_numpy()
    assert not known[1, 1]
    assert unknown_in_each_line(known) == {0, 2}
    everyone = shown_sizes(CLUSTERS, 1)
    assert everyone.loc["B"].to_list() == [150, 3, 60, 213]


def test_the_sizes_beside_differences_do_not_give_a_small_one() -> None:
    sites = {s: mmlca.Sequences.from_lists([["A", "B"]] * len(c)) for s, c in CLUSTERS.items()}
    labels = {site: part.to_numpy() for site, part in CLUSTERS.items()}
    result = mmlca.site_differences(sites, labels, n_boot=0)
    table = result.shown(11)
    first = table[(table["quantity"] == "initial") & (table["to"] == "A")]
    n = {}
    for row in first.dropna(subset=["n_first"]).itertuples():
        for site, value in zip(row.sites.split(" − "), (row.n_first, row.n_second), strict=True):
            n[site, row.cluster] = value
    shown = np.array([[(s, k) in n for k in (1, 2, 3)] for s in "ABC"])
    assert not shown[1, 1]
    assert 1 not in unknown_in_each_line(shown)
    assert shown.any()


def test_a_small_cluster_at_one_site_alone() -> None:
    hidden = shown_sizes({"A": pd.Series([1] * 90 + [2] * 20 + [3] * 3)}, 11).isna()
    assert hidden.loc["A"].to_list() == [False, True, True, False]
    assert hidden.loc["all"].to_list() == [False, True, True, False]


def one_group(n: int, unit: int) -> tuple[mmlca.Sequences, Courses]:
    """`n` patients of whom 3 leave A, and 4 others are not observed to the end."""
    rows = [["A", "A", "A"]] * (n - 7) + [["A", "A"]] * 4 + [["A", "B", "B"]] * 3
    data = mmlca.Sequences.from_lists(rows)
    groups = {"x": pd.Series(1, index=data.ids)}
    return data, courses_by_group({"x": data}, groups, unit).tables


def described(data: mmlca.Sequences, secret: bytes | None) -> tuple[pd.Series, Courses]:
    """The only cluster of a site as a release with a threshold of 11 describes it."""
    results = one_site(data, [1] * len(data), 11, secret)
    groups = groups_of(results, ONLY, 11)
    row = described_of(results, groups, "3 years", "year").iloc[0]
    return row, courses_of(results, groups, {1: "1"}).tables


def test_shares_of_a_rounded_cluster_are_those_of_rounded_counts() -> None:
    data, _ = one_group(65, 11)
    shown, courses = described(data, b"secret")
    assert np.isnan(shown["until_switch"])
    assert shown["n"] in (55, 66)
    assert shown["n"] == courses.distribution["rounded_size"].iloc[0]
    assert shown["n"] == courses.distribution["n"].iloc[0]  # observed at the first time
    assert shown["switchers"] == 0  # when few switched is not said
    for name in ("path_share", "end_share", "still", "first_share"):
        parts = [11 * k / (11 * k + 11 * j) for k in (5, 6) for j in (0, 1)]
        assert np.isclose(shown[name], parts).any(), name
    few, _ = described(data[:5], b"secret")
    assert few["n"] in (0, 11)
    assert few.drop(["cluster", "n", "share", "description"]).isna().all()
    assert few["description"] == "too few patients to be described"


def test_an_exact_cluster_tells_no_share_from_which_few_follow() -> None:
    data, courses = one_group(65, 11)
    table = describe_clusters(data, [1] * 65, after="3 years")
    sizes = shown_sizes({"x": pd.Series(1, index=data.ids)}, 11)
    guarded = guarded_clusters(table, courses.transitions, sizes, 11, "3 years")
    row = guarded.iloc[0]
    assert row["n"] == 65
    assert [str(row[name]) for name in ("still", "path_share", "end_share", "switches")] == [
        *["all but fewer than 11"] * 3,
        "few",
    ]
    assert (
        "all but fewer than 11 of those still observed after 3 years are on A"
        in (row["description"])
    )
    assert not re.search(r"9[0-9](\.[0-9])? %", row["description"])
    blank = printable(guarded).iloc[0]
    hidden = ["still", "path_share", "end_share", "switches", "switchers", "switch_share"]
    assert blank[hidden].isna().all()
    steps = one_group(65, 1)[1].transitions
    plain = guarded_clusters(table, steps, sizes, 1, "3 years")
    pd.testing.assert_frame_equal(plain, table, check_dtype=False)


def test_shares_of_an_exact_cluster_are_exact() -> None:
    """Rounded ones were once 5 points off at a single site."""
    rows = [["A", "A"]] * 43 + [["A", "B"]] * 14 + [["B", "B"]] * 12
    data = mmlca.Sequences.from_lists(rows)
    groups = {"x": pd.Series(1, index=data.ids)}
    courses = courses_by_group({"x": data}, groups, 11).tables
    table = courses.shown("distribution").set_index(["time", "state"])
    assert table.at[("1", "A"), "share"] == 57 / 69
    assert table.at[("2", "B"), "count"] == 26
    exact = describe_clusters(data, [1] * 69)
    shown = guarded_clusters(exact, courses.transitions, shown_sizes(groups, 11), 11)
    pd.testing.assert_frame_equal(shown, exact, check_dtype=False)


@pytest.mark.parametrize("seed", range(4))
def test_no_small_number_follows_inside_a_table_of_exact_courses(seed: int) -> None:
    """Parts that show, the total and lower bounds leave each small number ten values."""
    rng = np.random.default_rng(seed)
    chance = rng.dirichlet([3, 0.3, 0.3, 0.15], 3)
    rows = [[rng.choice(list("ABCD"), p=p) for p in chance] for _ in range(150)]
    data = {"x": mmlca.Sequences.from_lists(rows, states=list("ABCD"))}
    groups = {"x": pd.Series(rng.integers(1, 4, 150), index=data["x"].ids)}
    courses = courses_by_group(data, groups, 11).tables
    n_small = 0
    for name, by in (("distribution", "time"), ("transitions", "from")):
        exact = getattr(courses, name)
        for _, part in courses.shown(name).groupby(["group", by], observed=True):
            if part["n"].isna().all():
                continue
            system = System()
            for i, row in part.iterrows():
                low, high = (row["count"], row["count"]) if row["count"] >= 0 else (1, np.inf)
                least = 0.0 if np.isnan(row["at_least"]) else round(row["at_least"] * row["n"], 6)
                system.unknown((i,), max(low, least), high)
            total = part["n"].iloc[0]
            system.unknown(("n",), total, total)
            system.add([(i,) for i in part.index], ("n",))
            few = is_small(exact.loc[part.index, "count"], 11)
            for i in part.index[few]:
                n_small += 1
                low, high = system.range_of((i,))
                assert low - 1e-6 <= exact.at[i, "count"] <= high + 1e-6
                assert high - low > 9 - 1e-6, part
    assert n_small > 5


def test_without_a_threshold_the_tables_are_those_of_the_library() -> None:
    data, courses = one_group(65, 1)
    groups = {"x": pd.Series(1, index=data.ids)}
    for name, function in (
        ("distribution", mmlca.state_distribution),
        ("transitions", mmlca.transition_counts),
        ("paths", mmlca.treatment_paths),
    ):
        table, plain = courses.shown(name), function({"x": data}, groups)
        columns = [column for column in table if column != "size"]
        pd.testing.assert_frame_equal(table[columns], plain[columns], check_dtype=False)


def test_single_courses_of_a_large_site_are_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_courses, "_MOST_LINES", 60)
    data = mmlca.Sequences.from_lists([["A", "A"]] * 80 + [["A", "B"]] * 20)
    clusters = pd.Series([1] * 80 + [2] * 20, index=data.ids)
    names = {1: "1: A persisters", 2: "2: A → B"}
    study: Any = SimpleNamespace(seed=1, outputs=SimpleNamespace(time="quarter"))
    draws = [draw_single_courses(study, data, clusters, names) for _ in range(2)]
    sizes = []
    for draw in draws:
        figure = draw()
        titles = [ax.get_title() for ax in figure.axes]
        assert [title.split("\n")[0] for title in titles] == ["1: A persisters", "2: A → B"]
        sizes.append([int(title.split("= ")[1]) for title in titles])
        plt.close(figure)
    assert sizes[0] == sizes[1]
    assert sum(sizes[0]) == 60
    assert 4 <= sizes[0][1] <= 20


def test_the_report_says_whom_shares_of_the_dead_rest_on() -> None:
    """Captions name the denominator, and a caution those who left alive while the dead stay."""
    data = mmlca.Sequences.from_lists([["A", "A"]] * 80 + [["A", "dead"]] * 20)
    assert dead_included(one_site(data, [1] * 100)) == ""
    data = data.absorb("dead")
    included = dead_included(one_site(data, [1] * 100))
    assert included == ", the dead included until the end of the data"

    def notes(left: int) -> list[str]:
        windows = dict.fromkeys(("followed_up", "without_record", "several_classes", "tied"), 0)
        settings = {"left_alive": left, "windows": windows, "follow_up_by": "date"}
        nothing = pd.DataFrame({"issue": [], "n": [], "action": [], "examples": []})
        account = Account(flow_table(100, 200, []), nothing, pd.DataFrame(), np.ones(100), settings)
        study: Any = SimpleNamespace(
            privacy=SimpleNamespace(min_count=11), sites={"X": SimpleNamespace(labs=None)}
        )
        known = replace(data, account=account)
        patients = SitePatients("X", known, {}, pd.DataFrame(), pd.DataFrame())
        results = {"X": SiteResults("X", 1, about.DATA.results(study, patients))}
        return _about_deaths(study, SimpleNamespace(results=results))

    (note,) = notes(30)
    assert note.startswith("Of all patients, 30 % at X left alive before the end of the data")
    assert notes(0) == notes(5) == notes(10) == notes(95) == []  # few, or too few to show


def test_a_study_calls_its_lab_as_the_files_or_the_study_file_do() -> None:
    """Every disease's lab was once titled "ESR (mm/h)"."""
    rng = np.random.default_rng(1)
    labs = pd.DataFrame({"patient_id": np.repeat(np.arange(50), 8), "test": "HbA1c", "unit": "%"})
    days = rng.integers(-300, 1000, len(labs)) * np.timedelta64(1, "D")
    labs["date"] = np.datetime64("2010-01-01", "s") + days
    labs["value"] = rng.lognormal(2, 0.1, len(labs))
    dates = pd.Series(np.datetime64("2010-01-01", "s"), index=range(50))
    trend = ehr_prep.trend(labs, pd.Series(1, index=range(50)), dates)
    for label, name in ((None, "HbA1c (%)"), ("Sugar", "Sugar")):
        study = Study(name="x", sites={"A": {"sequences": "a.csv"}}, outputs={"lab_label": label})
        (item,) = lab_items(study, SimpleNamespace(trends={None: trend}))
        assert item.title == f"{name} around the first prescription"
        assert item.draw().axes[0].get_ylabel().startswith(f"{name}, geometric mean")
        assert item.alt.startswith(f"Curves of {name} by class")
    plt.close("all")
