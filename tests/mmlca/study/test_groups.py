"""What the groups of a study are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from mmlca import Sequences
from mmlca.study.analysis import Analysis
from mmlca.study.groups import class_names, named_groups
from mmlca.study.names import match, with_names
from mmlca.study.settings import Study

STAY, SWITCH = ["A"] * 4, ["A", "B", "B", "B"]
NAMES = {1: "A persisters", 2: "A → B"}


def study(min_count: int = 1) -> Study:
    sites = {site: {"records": Path(f"{site}.csv")} for site in ("X", "Y")}
    return Study.model_validate(
        {"name": "names", "sites": sites, "privacy": {"min_count": min_count}}
    )


def analysis(own: dict[str, list[int]]) -> Analysis:
    """Two sites with twenty stayers and twenty switchers each, who are the two clusters."""
    data = {site: Sequences.from_lists([STAY] * 20 + [SWITCH] * 20) for site in own}
    labels = {
        site: pd.DataFrame(
            {name: [k - 1 for k in own[name]] for name in own}, index=list(data[site].ids)
        )
        for site in own
    }
    clusters = {site: pd.Series([1] * 20 + [2] * 20, list(data[site].ids)) for site in own}
    local = {site: pd.Series(own[site], list(data[site].ids)) for site in own}
    model = SimpleNamespace(params_=SimpleNamespace(n_classes=2))
    ensemble: Any = object()
    return Analysis(data, {}, dict.fromkeys(own, model), ensemble, labels, clusters, local, {})  # type: ignore[arg-type]


def test_a_class_that_matches_has_the_name_of_the_cluster() -> None:
    mostly = [1] * 18 + [2] * 22  # two of twenty are elsewhere
    named = with_names(study(), analysis({"X": mostly, "Y": mostly}), NAMES, NAMES)
    assert named.group_names["local"] == {1: "1: A persisters", 2: "2: A → B"}
    assert named.group_names["ensemble"] == {1: "1: A persisters", 2: "2: A → B"}
    assert class_names(named, "X") == {1: "class 1: A persisters", 2: "class 2: A → B"}


def test_a_class_whose_patients_belie_the_clusters_name_does_not_get_it() -> None:
    """The first class matches the cluster of persisters, but only 20 of its 36 patients stay."""
    own = [1] * 36 + [2] * 4
    made = analysis({"X": own, "Y": own})
    named = with_names(study(), made, {1: "stayers", 2: "A → B"}, NAMES)
    assert match(named.local, named.clusters, 1) == pytest.approx(20 / 36)
    assert named.group_names["local"][1] == "like cluster 1"
    assert class_names(named, "X")[1] == "class 1: mixed: A, A → B"
    refined = replace(made, refined=object(), refined_clusters=made.local)  # type: ignore[arg-type]
    names = with_names(study(), refined, {1: "stayers", 2: "switchers"}, NAMES).group_names
    assert names["refined"] == {1: "cluster 1", 2: "2: switchers"}
    assert names["ensemble"] == {1: "1: stayers", 2: "2: switchers"}


def test_a_class_that_matches_poorly_at_one_site_is_called_by_its_own_courses() -> None:
    """At Y the second class holds most patients of both clusters."""
    poor = [1] * 4 + [2] * 36
    named = with_names(study(), analysis({"X": [1] * 20 + [2] * 20, "Y": poor}), NAMES, NAMES)
    assert match(named.local, named.clusters, 1) == pytest.approx(4 / 20)
    assert match(named.local, named.clusters, 2) == pytest.approx(20 / 36)
    local = named.group_names["local"]
    assert local[1] == "own class 1: A persisters"
    assert class_names(named, "X") == {1: "class 1: A persisters", 2: "class 2: A → B"}
    assert local[2] == "2: A → B"  # 20 of the 36 who are in either, and more than half switch
    groups = named_groups(named, named.local, "local")
    assert list(groups["Y"].cat.categories) == list(local.values())
    assert named.group_names["ensemble"] == {1: "1: A persisters", 2: "2: A → B"}


def test_classes_that_differ_between_the_sites_have_no_common_name() -> None:
    """Class 1 holds those who stay at X, and those who switch at Y."""
    first, second = [1] * 20 + [2] * 20, [2] * 20 + [1] * 20
    named = with_names(study(), analysis({"X": first, "Y": second}), NAMES, NAMES)
    assert named.group_names["local"] == {
        1: "own class 1: differs between the sites",
        2: "own class 2: differs between the sites",
    }
    assert class_names(named, "X")[1] == "class 1: A persisters"
    assert class_names(named, "Y")[1] == "class 1: A → B"


def test_names_of_few_patients_are_not_told() -> None:
    few = [1] * 3 + [2] * 37
    named = with_names(study(11), analysis({"X": few, "Y": few}), NAMES, NAMES)
    assert named.group_names["local"][1] == "own class 1"
    assert class_names(named, "X")[1] == "class 1"
