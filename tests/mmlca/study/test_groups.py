"""What the groups of a study are called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from released import release

from mmlca import Sequences
from mmlca.study.findings import _class_names
from mmlca.study.results.shown_courses import described_of, groups_of, views_of
from mmlca.study.results.site import ENSEMBLE, OWN, REFINED
from mmlca.study.settings import Study
from mmlca.study.words import Names, jaccard, name_groups

STAY, SWITCH = ["A"] * 4, ["A", "B", "B", "B"]


def study(min_count: int, names: dict[str, str]) -> Study:
    settings = {
        "name": "names",
        "sites": {site: {"records": Path(f"{site}.csv")} for site in ("X", "Y")},
        "privacy": {"min_count": min_count},
        "outputs": {"names": names or None},
    }
    return Study.model_validate(settings)


def named(
    own: dict[str, list[int]],
    min_count: int = 1,
    names: dict[str, str] | None = None,
    refined: bool = False,
) -> tuple[Names, dict[str, dict[int, str]]]:
    """Names of groups and classes.

    Two sites have twenty stayers and twenty switchers each, who are the two clusters; `own` are
    the classes of the sites' own models, and, if asked for, the refined clusters too.
    """
    data = {site: Sequences.from_lists([STAY] * 20 + [SWITCH] * 20) for site in own}
    views: dict[str, Any] = {ENSEMBLE: dict.fromkeys(own, [1] * 20 + [2] * 20), OWN: own}
    results = release(data, views | ({REFINED: own} if refined else {}), min_count)
    groups = {view: groups_of(results, view, min_count) for view in views_of(results)}
    described = described_of(results, groups[ENSEMBLE], "a year", "quarter")
    rules = study(min_count, names or {})
    made = name_groups(rules, results, groups, described, lambda courses: names or {})
    fits: Any = SimpleNamespace(own=pd.DataFrame({"classes": 2}, index=list(own)))
    return made, _class_names(fits, groups[OWN], made)


def test_a_class_that_matches_has_the_name_of_the_cluster() -> None:
    mostly = [1] * 18 + [2] * 22  # two of twenty are elsewhere
    names, classes = named({"X": mostly, "Y": mostly})
    assert names.groups["local"] == {1: "1: A persisters", 2: "2: A → B"}
    assert names.groups["ensemble"] == {1: "1: A persisters", 2: "2: A → B"}
    assert classes["X"] == {1: "class 1: A persisters", 2: "class 2: A → B"}


def test_a_class_whose_patients_belie_the_clusters_name_does_not_get_it() -> None:
    """The first class matches the cluster of persisters, but only 20 of its 36 patients stay."""
    own = [1] * 36 + [2] * 4
    given = {"stayers": "A persisters"}
    names, classes = named({"X": own, "Y": own}, names=given, refined=True)
    assert names.groups["local"][1] == "like cluster 1"
    assert classes["X"][1] == "class 1: mixed: A, A → B"
    assert names.groups["refined"] == {1: "cluster 1", 2: "2: A → B"}
    assert names.groups["ensemble"] == {1: "1: stayers", 2: "2: A → B"}


def test_the_index_of_a_match_is_that_of_the_worst_site() -> None:
    """At Y the second class holds most patients of both clusters."""
    rows = [
        ("X", 1, 1, 20),
        ("X", 2, 2, 20),
        ("Y", 1, 1, 4),
        ("Y", 1, 2, 16),
        ("Y", 2, 2, 20),
    ]
    pairs = pd.DataFrame(rows, columns=["site", "cluster", "number", "patients"])
    assert jaccard(pairs) == pytest.approx({1: 4 / 20, 2: 20 / 36})


def test_a_class_that_matches_poorly_at_one_site_is_called_by_its_own_courses() -> None:
    names, classes = named({"X": [1] * 20 + [2] * 20, "Y": [1] * 4 + [2] * 36})
    local = names.groups["local"]
    assert local[1] == "own class 1: A persisters"
    assert classes["X"] == {1: "class 1: A persisters", 2: "class 2: A → B"}
    assert local[2] == "2: A → B"  # 20 of the 36 who are in either, and more than half switch
    assert names.groups["ensemble"] == {1: "1: A persisters", 2: "2: A → B"}


def test_classes_that_differ_between_the_sites_keep_the_names_of_their_courses() -> None:
    """Classes of the same number are other courses at X and Y, and are matched by these."""
    names, classes = named({"X": [1] * 20 + [2] * 20, "Y": [2] * 20 + [1] * 20})
    assert names.groups["local"] == {1: "1: A persisters", 2: "2: A → B"}
    assert classes["X"][1] == "class 1: A persisters"
    assert classes["Y"][1] == "class 1: A → B"


def test_names_of_few_patients_are_not_shown() -> None:
    few = [1] * 3 + [2] * 37
    names, classes = named({"X": few, "Y": few}, 11)
    assert names.groups["local"][1] == "own class 1"
    assert classes["X"][1] == "class 1"
