"""Attacks on the sizes of groups, which stand beside courses and differences too."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.study import courses as study_courses
from mmlca.study.cautions import _about_deaths
from mmlca.study.courses import _without_revealing_groups, draw_single_courses
from mmlca.study.words import dead_included
from mmlca.tables.clusters import describe_clusters, hidden_sizes
from mmlca.tables.rounded import (
    Courses,
    data_draws,
    rounded_clusters,
    rounded_courses,
)
from mmlca.tables.suppress import round_row

SIZES = {"A": [200, 100, 80], "B": [150, 3, 60], "C": [90, 70, 40]}
CLUSTERS = {site: pd.Series(np.repeat([1, 2, 3], n)) for site, n in SIZES.items()}


def unknown_in_each_line(shown: np.ndarray) -> set[int]:
    """How many sizes of each site and of each cluster are not shown."""
    return {*(~shown).sum(axis=0), *(~shown).sum(axis=1)}


def test_the_sizes_of_groups_that_are_drawn_do_not_give_a_small_one() -> None:
    kept = _without_revealing_groups(CLUSTERS, 11)
    drawn = np.array([[(kept[s] == k).sum() >= 11 for k in (1, 2, 3)] for s in "ABC"])
    assert not drawn[1, 1]
    assert unknown_in_each_line(drawn) == {0, 2}
    assert (kept["B"] == 2).sum() == 3  # the figures themselves leave it out, and say so
    everyone = _without_revealing_groups(CLUSTERS, 1)
    assert all(everyone[site].equals(CLUSTERS[site]) for site in SIZES)


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
    hidden = hidden_sizes({"A": pd.Series([1] * 90 + [2] * 20 + [3] * 3)}, 11)
    assert hidden.loc["A"].to_list() == [False, True, True, False]
    assert hidden.loc["all"].to_list() == [False, True, True, False]


def one_group(n: int, unit: int) -> tuple[mmlca.Sequences, Courses]:
    """`n` patients of whom 3 leave A, and 4 others are not observed to the end."""
    rows = [["A", "A", "A"]] * (n - 7) + [["A", "A"]] * 4 + [["A", "B", "B"]] * 3
    data = mmlca.Sequences.from_lists(rows)
    return data, rounded_courses({"x": data}, {"x": pd.Series(1, index=data.ids)}, unit)


def test_shares_of_a_cluster_do_not_give_small_numbers() -> None:
    data, courses = one_group(65, 11)
    table = describe_clusters(data, [1] * 65)
    draws = {"": data_draws(data)}
    shown = rounded_clusters(table.assign(group=1), {"": courses}, [False], 11, draws).iloc[0]
    assert shown[["until_switch"]].isna().all()
    assert shown["switchers"] in (0, 11)
    assert shown["path_share"] in (55 / 65, 1.0)  # 62 as 55 or 66, which is all of them
    assert shown["end_share"] in (55 / 65, 1.0)
    assert shown["n"] == 65
    assert shown["n_then"] % 11 == 0
    assert round(shown["still"] * shown["n_then"]) % 11 == 0
    assert shown["switches"] == 0  # steps that few patients make do not count
    blank = rounded_clusters(table.assign(group=1), {"": courses}, [True], 11, draws)
    assert blank.drop(columns="cluster").isna().all(axis=None)
    plain = {"": one_group(65, 1)[1]}
    exact = rounded_clusters(table.assign(group=1), plain, [False], 1, draws)
    pd.testing.assert_frame_equal(exact, table, check_dtype=False)


def test_without_a_threshold_the_tables_are_those_of_the_library() -> None:
    data, courses = one_group(65, 1)
    groups = {"x": pd.Series(1, index=data.ids)}
    for name, function in (
        ("distribution", mmlca.state_distribution),
        ("transitions", mmlca.transition_counts),
        ("paths", mmlca.treatment_paths),
    ):
        table, plain = courses.shown(name), function({"x": data}, groups)
        pd.testing.assert_frame_equal(table, plain[list(table)], check_dtype=False)


def test_rounding_is_unbiased_and_the_same_for_the_same_data() -> None:
    courses = one_group(65, 11)[1]
    again = one_group(65, 11)[1]
    assert all(a.equals(b) for a, b in zip(courses, again, strict=True))
    rng = np.random.default_rng(1)
    drawn = [
        round_row([40, 3], ["a", "b"], 1e9, 11, lambda name: float(rng.random()))
        for _ in range(4000)
    ]
    error = 11 * np.sqrt(0.25 / 4000)
    assert np.abs(np.mean(drawn, axis=0) - [40, 3]).max() < 4 * error


def test_the_size_of_a_group_does_not_narrow_a_small_number_down() -> None:
    """With 24 patients, 23 written as 33 and 1 as 11 could be nothing but 23 and 1."""
    rng = np.random.default_rng(1)
    for _ in range(3000):
        counts = rng.integers(0, 40, int(rng.integers(2, 5)))
        told = round_row(
            counts.tolist(),
            list("abcd")[: len(counts)],
            counts.sum(),
            11,
            lambda name: float(rng.random()),
        )
        low = np.maximum(told - 10, 0)
        high = np.minimum(told + 10, counts.sum() - (low.sum() - low))
        small = (counts > 0) & (counts < 11)
        enough = np.minimum(9, counts.sum() - 1)  # so few patients in all that nothing helps
        assert ((high - low)[small] >= enough).all(), (counts, told)


def test_another_name_does_not_draw_again() -> None:
    """Two roundings of the same patients could be averaged."""
    states = np.random.default_rng(1).choice(["A", "B", "C"], (200, 5))
    data = mmlca.Sequences.from_lists(states.tolist())
    tables = [
        rounded_courses({"x": data}, {"x": pd.Series(name, index=data.ids)}, 11, {name: 1})
        for name in ("1: A persisters", "own class 1: differs between the sites")
    ]
    for table in ("distribution", "transitions", "paths"):
        first, second = (part.shown(table).drop(columns="group") for part in tables)
        pd.testing.assert_frame_equal(first, second)


def test_two_groupings_share_their_draws() -> None:
    """The same patients under two names would else be two draws, to be averaged."""
    data, courses = one_group(65, 11)
    other = rounded_courses({"x": data}, {"x": pd.Series(1.0, index=data.ids).astype(int)}, 11)
    pd.testing.assert_frame_equal(courses.distribution, other.distribution)


def test_single_courses_of_a_large_site_are_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_courses, "_MOST_LINES", 60)
    data = mmlca.Sequences.from_lists([["A", "A"]] * 80 + [["A", "B"]] * 20)
    clusters = pd.Series([1] * 80 + [2] * 20, index=data.ids)
    analysis = SimpleNamespace(
        sequences={"X": data},
        clusters={"X": clusters},
        ensemble=None,
        group_names={None: {1: "1: A persisters", 2: "2: A → B"}},
    )
    study = SimpleNamespace(seed=1, outputs=SimpleNamespace(time="quarter"))
    draws = [draw_single_courses(study, analysis, "X") for _ in range(2)]  # type: ignore[arg-type]
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
    assert dead_included({"X": data}) == ""
    data = data.absorb("dead")
    assert dead_included({"X": data}) == ", the dead included until the end of the data"

    def notes(left: int) -> list[str]:
        account: Any = SimpleNamespace(settings={"left_alive": left})
        study: Any = SimpleNamespace(privacy=SimpleNamespace(min_count=11))
        analysis: Any = SimpleNamespace(sequences={"X": replace(data, account=account)})
        return _about_deaths(study, analysis)

    (note,) = notes(30)
    assert note.startswith("Of all patients, 30 % at X left alive before the end of the data")
    assert notes(0) == notes(5) == notes(10) == notes(95) == []  # few, or too few to show
