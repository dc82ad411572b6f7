"""No name and no sentence says of a cluster what its own shares deny."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from released import one_site

import mmlca
from mmlca import Sequences
from mmlca.study import Study
from mmlca.study.results.shown_courses import described_of, groups_of
from mmlca.study.results.site import ONLY
from mmlca.study.sections import summary
from mmlca.tables.clusters import name_clusters, percent_text

Path = tuple[str, ...]
SHARE = r"([<>]?[\d.]+ %)"


def paths_of(data: Sequences) -> list[Path]:
    """Each patient's states in their order, without repetition, the slow and plain way."""
    paths = []
    for row in data.to_frame().to_numpy(dtype=object):
        seen = [state for state in row if isinstance(state, str)]
        paths.append(tuple(s for i, s in enumerate(seen) if i == 0 or s != seen[i - 1]))
    return paths


def takes(path: Path, named: str) -> bool:
    """Whether a path is the named one; "…" stands for at least one further state."""
    *states, last = named.split(" → ")
    if last == "…":
        return list(path[: len(states)]) == states and len(path) > len(states)
    return list(path) == [*states, last]


def share_of(paths: list[Path], named: str) -> float:
    return float(np.mean([takes(path, named) for path in paths]))


def named_paths(name: str) -> list[str]:
    return name.removeprefix("mixed: ").split(", ")


def plain(name: str) -> str:
    """Without what distinguishes clusters of one name."""
    return re.sub(r" \((early|late|\d+)\)$", "", name)


def check_name(name: str, paths: list[Path]) -> None:
    name = plain(name)
    if name.endswith((" persisters", " only")):
        assert share_of(paths, name.rsplit(" ", 1)[0]) >= 0.75
    elif name.startswith("mixed"):
        exact = {path: paths.count(path) / len(paths) for path in paths if len(path) <= 3}
        assert not any(n > (0.5 if len(path) > 1 else 0.7499) for path, n in exact.items())
        for named in named_paths(name):
            assert share_of(paths, named) > 0
    else:
        assert share_of(paths, name) >= 0.5


def check_text(text: str, paths: list[Path]) -> None:
    """Every share of a description against the patients."""
    for share, state in re.findall(rf"{SHARE} never leave (\w+)", text):
        assert share == percent_text(share_of(paths, state))
        assert share_of(paths, state) >= 0.75
    for share, named in re.findall(rf"{SHARE} take ([^;]+);", text):
        assert share == percent_text(share_of(paths, named))
        assert share_of(paths, named) >= 0.5
    for named, share in re.findall(rf"([\w→… ]+) \({SHARE}\)", text):
        named = named.removeprefix(" and ").removeprefix("most often ").strip()
        named = re.sub(r"^.*most often ", "", named)
        assert share == percent_text(share_of(paths, named))
    for share, state in re.findall(rf"{SHARE} start on (\w+)", text):
        assert share == percent_text(float(np.mean([path[0] == state for path in paths])))
    for share, state in re.findall(rf"{SHARE} end on (\w+)", text):
        assert share == percent_text(float(np.mean([path[-1] == state for path in paths])))


def sentence(table: pd.DataFrame) -> str:
    """The sentence of the report that names the clusters."""
    study = Study.model_validate(
        {"name": "t", "sites": {"x": {"sequences": "x.csv"}}}, strict=False
    )
    findings: Any = SimpleNamespace(described=table.assign(name=name_clusters(table)))
    return summary._course_sentence(study, findings)


courses = st.lists(st.sampled_from("ABC"), min_size=1, max_size=5)
many = st.lists(st.tuples(courses, st.integers(1, 6), st.sampled_from([1, 2])), min_size=1)


@settings(max_examples=40, deadline=None)
@given(many)
def test_no_name_or_sentence_denies_the_patients(groups: list[tuple[list[str], int, int]]) -> None:
    """Exact numbers: names and descriptions against each patient's own path."""
    lists = [course for course, n, _ in groups for _ in range(n)]
    clusters = np.array([k for _, n, k in groups for _ in range(n)])
    data = Sequences.from_lists(lists, states=["A", "B", "C"])
    table = mmlca.describe_clusters(data, clusters)
    names = name_clusters(table)
    assert len({*names}) == len(names)
    whole = sentence(table)
    for name, row in zip(names, table.to_dict("records"), strict=True):
        paths = paths_of(data[clusters == row["cluster"]])
        assert name is not None
        check_name(name, paths)
        check_text(row["description"], paths)
        stated = whole if len(table) == 1 else re.split(rf"class {row['cluster']}; ", whole)[1]
        check_text(re.split(r"class \d+; ", stated)[0], paths)
    for share, state in re.findall(rf"{SHARE} are (\w+) persisters", whole):
        said = [row for row in table.to_dict("records") if percent_text(row["share"]) == share]
        assert any(row["path"] == state and row["path_share"] >= 0.75 for row in said)


def check_row(name: str, row: dict[Any, Any]) -> None:
    """A name against the numbers that stand beside it."""
    name = plain(name)
    begins, ends = name.split(" → ")[0].split(" ")[0], name.split(" → ")[-1].split(" ")[0]
    if name.endswith((" persisters", " only")):
        assert min(row["path_share"], row["first_share"], row["end_share"]) >= 0.75
        assert begins == row["path"] == row["first"] == row["end"]
        assert not name.endswith("persisters") or row["followed"] >= 2
    elif name.startswith("mixed"):
        known = [row[p] for p in ("path", "second_path") if isinstance(row[p], str)]
        assert named_paths(name) == (known or ["mixed"])  # these are short
    else:
        assert name == row["path"]
        assert row["path_share"] >= 0.5
        assert begins == row["first"]
        assert row["first_share"] >= 0.5
        assert ends == "…" or (ends == row["end"] and row["end_share"] >= 0.5)


@settings(max_examples=25, deadline=None)
@given(many, st.integers(5, 14), st.booleans())
def test_no_name_denies_the_numbers_of_a_release(
    groups: list[tuple[list[str], int, int]], times: int, public: bool
) -> None:
    """The numbers beside a name may be rounded or hidden; the name has to follow these."""
    lists = [course for course, n, _ in groups for _ in range(times * n)]
    codes = np.array([k for _, n, k in groups for _ in range(times * n)])
    data = Sequences.from_lists(lists, states=["A", "B", "C"])
    results = one_site(data, codes, 11, b"a secret" if public else None)
    table = described_of(results, groups_of(results, ONLY, 11), "a year", "month")
    for name, row in zip(name_clusters(table), table.to_dict("records"), strict=True):
        if name is not None:
            check_row(name, row)
        shares = [row["path_share"], row["second_path_share"]]
        if public:
            assert not np.nansum(shares) > 1 + 1e-9
            assert not shares[0] < shares[1]


share = st.floats(0, 1)
rows = st.fixed_dictionaries(
    {
        "n": st.integers(20, 500).map(float),
        "share": share,
        "first": st.sampled_from("AB"),
        "first_share": share,
        "path": st.sampled_from(["A", "B", "A → B", "A → B → A", "A → B → …", None]),
        "path_share": share,
        "second_path": st.sampled_from(["C", "B → A → …", None]),
        "second_path_share": share,
        "until_switch": st.sampled_from([1.0, 2.0, np.nan]),
        "followed": st.sampled_from([1.0, 2.0, 9.0]),
        "followed_q25": st.just(1.0),
        "followed_q75": st.just(12.0),
        "end": st.sampled_from("AB"),
        "end_share": share,
        "switches": st.floats(0, 5),
    }
)


@given(st.lists(rows, min_size=1, max_size=5))
def test_no_name_denies_a_table(made: list[dict[str, Any]]) -> None:
    """Random rows, in which no number needs to agree with another."""
    table = pd.DataFrame(made, dtype=object).assign(cluster=range(1, len(made) + 1))
    names = name_clusters(table)
    assert len({*names}) == len(names)
    for name, row in zip(names, table.to_dict("records"), strict=True):
        assert name is not None
        check_row(name, row)
    whole = sentence(table)
    for k, state in re.findall(r"are (\w+) persisters \(class (\d+);", whole):
        row = table.iloc[int(state) - 1]
        assert (row["path"], row["first"], row["end"]) == (k, k, k)
        assert min(row["path_share"], row["first_share"], row["end_share"]) >= 0.75


def names_of(ways: list[tuple[int, list[str]]], **options: int) -> list[str | None]:
    data = Sequences.from_lists([course for n, course in ways for _ in range(n)])
    return name_clusters(mmlca.describe_clusters(data, [1] * len(data)), **options)


def test_those_who_began_elsewhere_are_not_called_persisters() -> None:
    """A class of which 41 % began on another state and 43 % switched, though most end on one."""
    began = [(57, ["INSTI"] * 4), (41, ["NNRTI", "INSTI", "INSTI", "INSTI"]), (2, ["PI"] * 4)]
    assert names_of(began) == ["mixed: INSTI, NNRTI → INSTI"]


def test_a_path_that_most_do_not_take_is_no_name() -> None:
    """Switches go from SSRI to none more often than elsewhere, but 67 % end on SSRI."""
    back = [(40, ["SSRI", "none", "SSRI"]), (27, ["SSRI"] * 3), (33, ["SSRI", "none", "none"])]
    assert names_of(back) == ["mixed: SSRI → none → …, SSRI → none"]


def test_names_from_three_quarters_and_from_half_on() -> None:
    stay, switch = ["A"] * 4, ["A", "A", "B", "B"]
    assert names_of([(75, stay), (25, switch)]) == ["A persisters"]
    assert names_of([(74, stay), (26, switch)]) == ["mixed: A, A → B"]
    assert names_of([(50, switch), (49, stay), (1, ["B"])]) == ["A → B"]
    assert names_of([(49, switch), (48, stay), (3, ["B"])]) == ["mixed: A → B, A"]
    assert names_of([(9, ["A"])]) == ["A only"]  # seen once: nobody could leave
    assert names_of([(6, ["A", "B", "A"]), (2, ["A"])]) == ["A → B → A"]


def test_one_long_path_is_enough_for_a_name() -> None:
    far, near = "metformin+sulfonylurea", "metformin+SGLT2"
    ways = [(30, [far, near]), (22, [near, far]), (20, ["none"])]
    assert names_of(ways) == [f"mixed: {far} → {near}"]


def test_rare_paths_are_not_told() -> None:
    ways = [(30, ["A", "B"]), (22, ["A", "C"]), (20, ["B", "C"])]
    assert names_of(ways, min_count=11) == ["mixed: A → B, A → C"]
    assert names_of(ways, min_count=25) == ["mixed: A → B"]
    assert names_of(ways, min_count=40) == ["mixed"]


def test_clusters_of_the_same_course_are_told_apart() -> None:
    """By how early they switch where that differs, else by numbers."""
    early, late, stay = ["A", "B", "B", "B"], ["A", "A", "A", "B"], ["A"] * 4
    data = Sequences.from_lists([early] * 4 + [late] * 4 + [stay] * 8)
    described = mmlca.describe_clusters(data, [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4)
    assert name_clusters(described) == [
        "A → B (early)",
        "A → B (late)",
        "A persisters (1)",
        "A persisters (2)",
    ]
