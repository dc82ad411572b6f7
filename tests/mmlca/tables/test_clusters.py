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
        "50 %: stay on A; 100 % of those still observed after 4 years are on A; "
        "0.67 switches per patient",
        "50 %: start on A, then B, after 1 quarter (median); the most common path is A → B (33 %); "
        "67 % end on C; 0 % of those still observed after 4 years are on A; 1.3 switches per "
        "patient",
    ]
    plain = mmlca.describe_clusters(COURSES, [1] * 6)["description"][0]
    assert plain == (
        "100 %: mostly on A, with a first switch after 1 time (median); the most common path is A "
        "(33 %); 50 % end on A; 60 % of those observed at time 4 are on A; 1.0 switches per patient"
    )
    most = Sequences.from_lists([["A", "A"]] * 1999 + [["A", "B"]])
    assert mmlca.describe_clusters(most, [1] * 2000, after="a year")["description"][0] == (
        "100 %: stay on A; >99.9 % of those still observed after a year are on A; "
        "<0.01 switches per patient"
    )
    several = Sequences.from_lists([["A", "B"], ["A", "C"], ["A", "D"]])
    text = mmlca.describe_clusters(several, [1, 1, 1])["description"][0]
    assert "start on A, then go on to several, most often B, after 1 time (median)" in text


def test_clusters_with_the_same_switch_are_told_apart() -> None:
    """By the path, else by the last state, else by how early; rare paths are not told."""
    early, late = ["A", "B", "C", "C"], ["A", "B", "B", "B"]
    data = Sequences.from_lists([early] * 12 + [late] * 12)
    described = mmlca.describe_clusters(data, [1] * 12 + [2] * 12)
    assert name_clusters(described) == ["A → B → C", "A → B"]
    assert name_clusters(described, min_count=13) == ["A → B (early)", "A → B (late)"]
    ends = Sequences.from_lists([["A", "B", "A", "B"]] * 5 + [["A", "B", "A", "C"]] * 5)
    described = mmlca.describe_clusters(ends, [1] * 5 + [2] * 5)
    assert described["path"].nunique() == 1
    assert name_clusters(described) == ["A → B, ending on B", "A → B, ending on C"]


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


def test_those_who_leave_and_return_are_told_from_those_who_stay() -> None:
    stay, pause = ["A"] * 5, ["A", "none", "A", "A", "A"]
    data = mmlca.Sequences.from_lists([stay] * 4 + [pause] * 4)
    described = mmlca.describe_clusters(data, [1] * 4 + [2] * 4, window="quarter")
    assert name_clusters(described) == ["A persisters", "A → none → A"]
    assert (
        "mostly on A, with a first switch after 1 quarter (median); the most common path is"
        in (described["description"][1])
    )
    assert described["description"][0].startswith("50 %: stay on A;")


def test_those_who_switch_are_not_called_persisters() -> None:
    ways = [["A", "B", "A", "A"], ["A", "C", "A", "A"], ["A", "A", "D", "A"], ["A", "B", "C", "B"]]
    stay = [["A"] * 4] * 3 + [["A", "B", "A", "A"]]
    described = mmlca.describe_clusters(
        mmlca.Sequences.from_lists([*ways, *stay]), [1] * 4 + [2] * 4
    )
    assert described["switches"].tolist() == [2.25, 0.5]
    assert name_clusters(described) == ["mostly A", "A persisters"]
    one_path = mmlca.describe_clusters(
        mmlca.Sequences.from_lists([["A", "B", "A"]] * 3 + [["A", "C", "A"]]), [1] * 4
    )
    assert name_clusters(one_path) == ["A → B → A"]
    assert name_clusters(one_path, min_count=4) == ["mostly A"]
