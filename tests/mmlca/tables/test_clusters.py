"""Clusters in numbers and in words, against numbers worked out by hand."""

from __future__ import annotations

import pytest

import mmlca
from mmlca import Sequences
from mmlca.tables.clusters import name_clusters

COURSES = Sequences.from_lists(
    [
        ["A", "A", "A", "A"],
        ["A", "A", "A", "A"],
        ["A", "B", "A", "A"],
        ["A", "B", "B", "B"],
        ["A", None, "C", "C"],
        ["A", "B", "C"],
    ]
)


def test_clusters_in_numbers() -> None:
    table = mmlca.describe_clusters(COURSES, [1, 1, 1, 2, 2, 2]).set_index("cluster")
    assert table["n"].tolist() == [3, 3]
    assert table["share"].tolist() == [0.5, 0.5]
    assert table["first"].tolist() == ["A", "A"]
    assert table["first_share"].tolist() == [1, 1]
    assert table["time"].tolist() == ["4", "4"]
    assert table["n_then"].tolist() == [3, 2]
    assert table["still"].tolist() == [1, 0]
    assert table["switch_to"].tolist() == ["B", "B"]
    assert table["switch_share"].tolist() == pytest.approx([1, 2 / 3])
    assert table["switches"].tolist() == pytest.approx([2 / 3, 4 / 3])


def test_clusters_in_words() -> None:
    table = mmlca.describe_clusters(COURSES, [1, 1, 1, 2, 2, 2], after="4 years", window="quarter")
    assert table["description"].tolist() == [
        "50 %: most often A (67 %) and A → B → A (33 %); median follow-up 4 quarters, quartiles 4 "
        "and 4; 100 % start on A; first switch after 1 quarter (median of those who switch); "
        "100 % end on A; 100 % of those still observed after 4 years are on A; 0.67 switches per "
        "patient",
        "50 %: most often A → B (33 %) and A → B → … (33 %); median follow-up 4 quarters, "
        "quartiles 3 and 4; 100 % start on A; first switch after 1 quarter (median of those who "
        "switch); 67 % end on C; 0 % of those still observed after 4 years are on A; 1.3 switches "
        "per patient",
    ]
    most = Sequences.from_lists([["A", "A"]] * 1999 + [["A", "B"]])
    assert mmlca.describe_clusters(most, [1] * 2000, after="a year")["description"][0] == (
        "100 %: >99.9 % never leave A during a median follow-up of 2 times, quartiles 2 and 2; "
        ">99.9 % of those still observed after a year are on A; <0.01 switches per patient"
    )
    one_way = mmlca.describe_clusters(COURSES[3:4], [1])["description"][0]
    assert one_way.startswith("100 %: 100 % take A → B; median follow-up 4 times")


def test_paths_are_cut_where_few_take_them() -> None:
    """At most three states of a path that half take, two of others; the rest is an ellipsis."""
    ways = [["A", "B", "A", "B"], ["A", "B", "C", "B"], ["A", "C", "A"], ["B", "A"]]
    table = mmlca.describe_clusters(Sequences.from_lists(ways * 2), [1] * 8)
    found = table.iloc[0]
    assert (found["path"], found["path_share"]) == ("A → B → …", 0.5)
    assert (found["second_path"], found["second_path_share"]) == ("A → C → …", 0.25)
    table = mmlca.describe_clusters(Sequences.from_lists([ways[0]] * 2 + [ways[2]]), [1] * 3)
    assert table["path"][0] == "A → B → A → …"
    assert table["second_path"][0] == "A → C → A"


def test_follow_up_is_counted_to_the_last_observed_time() -> None:
    data = Sequences.from_lists([["A"], ["A", "A"], ["A", None, "A", None], ["A"] * 6])
    row = mmlca.describe_clusters(data, [1] * 4).iloc[0]
    assert [row["followed_q25"], row["followed"], row["followed_q75"]] == [1, 2, 3]
    heavy = mmlca.describe_clusters(data.reweight([0, 0, 1, 9]), [1] * 4).iloc[0]
    assert [heavy["followed_q25"], heavy["followed"]] == [6, 6]


def test_the_first_state_is_the_first_observed_one() -> None:
    """A first time that is missing for everyone is no reason to take the first state of all."""
    data = Sequences.from_lists([[None, "B", "B"]] * 3, states=["A", "B"])
    row = mmlca.describe_clusters(data, [1] * 3).iloc[0]
    assert (row["first"], row["first_share"], row["switches"]) == ("B", 1, 0)
    assert name_clusters(mmlca.describe_clusters(data, [1] * 3)) == ["B persisters"]


def test_clusters_together_and_by_site() -> None:
    sites = {"x": COURSES[:3], "y": COURSES[3:]}
    clusters = {"x": [1, 1, 2], "y": [1, 1, 1]}
    together = mmlca.describe_clusters(sites, clusters)
    assert together.columns[0] == "cluster"
    assert together["n"].tolist() == [5, 1]
    by_site = mmlca.describe_clusters(sites, clusters, by_site=True)
    assert by_site["site"].tolist() == ["x", "x", "y", "y"]
    assert by_site["share"].tolist() == pytest.approx([2 / 3, 1 / 3, 1, 0])
    assert by_site["description"].tolist()[-1] == "no patients"
    weighted = mmlca.describe_clusters(COURSES.reweight([2, 0, 0, 1, 0, 0]), [1, 1, 1, 2, 2, 2])
    assert weighted["n"].tolist() == [2, 1]
    with pytest.raises(ValueError, match="found 2 clusters for 6 patients; give"):
        mmlca.describe_clusters(COURSES, [1, 2])
