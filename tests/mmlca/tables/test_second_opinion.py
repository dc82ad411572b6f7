"""Clusters beside the groups of other methods: numbers, sentences, and what they may not reveal."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from font.errors import InputError
from mmlca import Sequences
from mmlca.tables.clusters import percent_text
from mmlca.tables.disclosure import Rounding
from mmlca.tables.second_opinion import LEVELS, SecondOpinion, second_opinion


def labels_of(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cluster and the group of each patient of a cross table."""
    cluster, group = np.nonzero(table)
    n = table[cluster, group]
    return np.repeat(cluster + 1, n), np.repeat(group + 1, n)


def compared(table: np.ndarray, min_count: int = 0, **options: Any) -> SecondOpinion:
    clusters, groups = labels_of(table)
    data = Sequences.from_lists([["A", "B"]] * len(clusters))
    return second_opinion(
        data, clusters, {"another method": groups}, ks=None, min_count=min_count, **options
    )


TABLES = arrays(int, st.tuples(st.integers(1, 4), st.integers(1, 4)), elements=st.integers(0, 60))


@settings(max_examples=15, deadline=None)
@given(TABLES)
def test_without_hidden_numbers_the_index_is_scikit_learns(table: np.ndarray) -> None:
    if not table.sum():
        return
    clusters, groups = labels_of(table)
    row = compared(table).agreement.iloc[0]
    exact = adjusted_rand_score(clusters, groups)
    assert row["adjusted_rand_index"] == pytest.approx(exact, abs=0.0051)
    assert row["patients"] == table.sum()


@settings(max_examples=15, deadline=None)
@given(TABLES)
def test_hidden_numbers_cost_little_and_do_not_follow(table: np.ndarray) -> None:
    """Another table with other small numbers would have been shown in the same way."""
    if not table.sum():
        return
    found = compared(table, 11)
    cross = found.cross.dropna(subset=["patients"])
    assert not ((cross["patients"] > 0) & (cross["patients"] < 11)).any()
    bounds = found.cross.dropna(subset=["at_least"])
    exact = np.array([table[k - 1].sum() for k in bounds["cluster"]], dtype=float)
    share = bounds["share"].to_numpy(dtype=float)
    assert (share <= bounds["at_least"].to_numpy(dtype=float) / exact).all()
    np.testing.assert_allclose(100 * share, np.round(100 * share), atol=1e-9)  # as it is printed
    for _, cells in found.cross.groupby("cluster"):
        small = cells["patients"].isna() & cells["at_least"].isna()
        if small.sum() == 1:  # it is not what is left: a bound stands beside it
            assert cells["at_least"].notna().any()


def test_the_same_page_for_every_value_of_a_small_number() -> None:
    """The attack: all values of the one small cell, the sizes of the clusters being known."""
    pages = set()
    for few in range(1, 11):
        found = compared(np.array([[120 - few, few], [0, 80]]), 11)
        page = found.cross.to_csv() + found.agreement.to_csv() + found.summary()
        pages.add(page)
    assert len(pages) == 1
    assert "at_least" in page


def test_the_index_is_close_to_the_exact_one_where_small_cells_are_hidden() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        table = rng.integers(0, 9, (4, 4)) + np.diag(rng.integers(40, 200, 4))
        table[0, 1] += rng.integers(0, 80)
        clusters, groups = labels_of(table)
        row = compared(table, 11).agreement.iloc[0]
        exact = adjusted_rand_score(clusters, groups)
        assert row["adjusted_rand_index"] == pytest.approx(exact, abs=0.05)


@settings(max_examples=20, deadline=None)
@given(TABLES, st.sampled_from([0, 11]))
def test_sentences_say_what_the_numbers_say(table: np.ndarray, min_count: int) -> None:
    if not table.sum():
        return
    found = compared(table, min_count)
    sentence, verdict = found.sentences()
    row = found.agreement.iloc[0]
    exact = pd.DataFrame(dict(zip(("k", "g"), labels_of(table), strict=True)))
    if 1 in (row["groups"], found.n_clusters):
        assert re.search(r": \d groups? beside \d clusters?\.$", sentence)
        return
    if np.isnan(row["adjusted_rand_index"]):
        assert "no cluster is large enough" in sentence
        return
    index = float(re.search(r"index (-?\d\.\d\d)", sentence)[1])  # type: ignore[index]
    assert f"{percent_text(row['same'])} of the" in sentence
    if min_count == 0:  # the best of all ways to pair groups with clusters
        whole = pd.crosstab(exact["k"], exact["g"]).to_numpy()
        assert row["same"] == pytest.approx(
            whole[linear_sum_assignment(-whole)].sum() / whole.sum()
        )
    level = re.search(r"\): (.*) groups, adjusted", sentence)[1]  # type: ignore[index]
    assert level == next(words for least, words in LEVELS if index >= least)
    for cluster, parts in re.findall(r"cluster (\d) is divided \((.*?)\)", sentence):
        own = exact[exact["k"] == int(cluster)]
        shares = re.findall(r"(at least )?(\d+(?:\.\d)?) % in group (\d)", parts)
        assert len(shares) > 1
        for bound, percent, group in shares:
            share = 100 * (own["g"] == int(group)).mean()
            assert share >= 25 - 1e-9
            assert float(percent) <= share + (1e-9 if bound else 0.51)
    for group, parts in re.findall(
        r"group (\d) has most of each of the clusters ([\d, and]+)", sentence
    ):
        members = re.findall(r"\d", parts)
        assert len(members) > 1
        for cluster in members:
            own = exact[exact["k"] == int(cluster)]
            assert (own["g"] == int(group)).mean() >= 0.5 - 1e-9
    assert ("do not depend" in verdict) == (index >= 0.8)
    assert ("Part of the clusters" in verdict) == (0.6 <= index < 0.8)


def test_rounded_numbers_are_multiples_and_the_rest_follows_from_them() -> None:
    table = np.array([[90, 33, 4], [7, 140, 0], [0, 25, 61]])
    clusters, groups = labels_of(table)
    data = Sequences.from_lists([["A", "B"]] * len(clusters))
    rounding = Rounding(b"a secret", 11, {"x": pd.Series(clusters, data.ids)})
    found = second_opinion(data, clusters, {"m": groups}, ks=None, min_count=11, rounding=rounding)
    assert not (found.cross["patients"] % 11).any()
    assert not (found.courses.filter(like="patients").fillna(0) % 11).any(axis=None)
    counts = found.cross.pivot(index="cluster", columns="group", values="patients")
    rows, columns = labels_of(counts.to_numpy().astype(int))
    index = found.agreement["adjusted_rand_index"].item()
    assert index == pytest.approx(adjusted_rand_score(rows, columns), abs=0.0051)


@pytest.mark.parametrize("n", [3, 8])
def test_a_course_that_few_share_is_not_named_whatever_it_is_rounded_to(n: int) -> None:
    """The attack: names of courses with each of many secrets."""
    rows = [["A", "A", "B"]] * 40 + [["A", "C", "C"]] * n
    data = Sequences.from_lists(rows)
    clusters, groups = np.ones(40 + n, dtype=int), np.repeat([1, 2], [40, n])
    for secret in range(30):
        rounding = Rounding(bytes([secret]) * 32, 11, {"x": pd.Series(clusters, data.ids)})
        courses = second_opinion(
            data, clusters, {"m": groups}, ks=None, min_count=11, rounding=rounding
        ).courses
        assert courses[["path", "sequence"]].isna().all(axis=None)


def test_the_courses_are_those_of_patients_whom_the_methods_see_differently() -> None:
    rows = [["A", "A", "B"]] * 40 + [["A", "B", "B"]] * 30 + [["A", "C", "C"]] * 5
    data = Sequences.from_lists(rows)
    clusters = [1] * 40 + [1] * 30 + [2] * 5
    groups = ["x"] * 40 + ["y"] * 30 + ["y"] * 5
    courses = second_opinion(data, clusters, {"m": groups}, ks=None).courses
    first = courses.iloc[0]
    assert first[["cluster", "group", "patients", "path"]].tolist() == [1, "y", 30, "A → B"]
    assert first["sequence"] == "A×1 → B×2"
    hidden = second_opinion(data, clusters, {"m": groups}, ks=None, min_count=11).courses
    assert not hidden["path_patients"].lt(11).any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 16), min_size=4, max_size=4))
def test_what_is_left_of_the_courses_is_not_few_patients(sizes: list[int]) -> None:
    """The attack: what path and sequence leave of a cell, and the sequence of its path."""
    courses = [["A", "B", "B"], ["A", "A", "B"], ["A", "A", "A"], ["C", "C", "C"]]
    rows = [["B", "B", "B"]] * 60
    for course, n in zip(courses, sizes, strict=True):
        rows += [course] * n
    clusters = np.ones(len(rows), dtype=int)
    groups = np.where(np.arange(len(rows)) < 60, 1, 2)
    found = second_opinion(
        Sequences.from_lists(rows), clusters, {"m": groups}, ks=None, min_count=11
    ).courses
    for row in found.to_dict("records"):
        n, path, same = (row[c] for c in ("patients", "path_patients", "sequence_patients"))
        known = [n, path, same, n - path, n - same]
        if row["path"] and row["sequence"]:
            words = re.findall(r"[ABC](?=×)", row["sequence"])
            known.append(path - same if words == row["path"].split(" → ") else n - path - same)
        assert not [k for k in known if 0 < k < 11]


def test_latent_classes_of_the_time_course_are_fitted() -> None:
    """Chains see one group where courses differ by when patients switch."""
    rng = np.random.default_rng(1)
    when = np.r_[np.full(60, 2), np.full(60, 6)] + rng.integers(-1, 2, 120)
    codes = (np.arange(8) >= when[:, None]).astype(np.int8)
    data = Sequences.from_codes(codes, ["A", "B"])
    truth = np.repeat([1, 2], 60)
    found = second_opinion(data, truth, ks=range(1, 4), n_init=8, seed=1)
    names = found.agreement["method"].tolist()
    assert names[0] == "latent classes of the time course"
    assert found.agreement["adjusted_rand_index"][0] == 1
    assert found.verdict() == "The clusters do not depend on which of these methods is used."
    mixed = second_opinion(data, np.tile([1, 2], 60), ks=range(1, 4), n_init=8, seed=1)
    assert mixed.agreement["adjusted_rand_index"][0] < 0.1
    assert "depend on the method" in mixed.verdict()


def test_one_cluster_is_not_called_stable() -> None:
    rng = np.random.default_rng(1)
    when = np.r_[np.full(60, 2), np.full(60, 6)] + rng.integers(-1, 2, 120)
    data = Sequences.from_codes((np.arange(8) >= when[:, None]).astype(np.int8), ["A", "B"])
    found = second_opinion(data, [1] * 120, ks=range(1, 4), n_init=8, seed=1)
    assert len(found.agreement) == 1
    groups = found.agreement["groups"].item()
    assert groups > 1
    assert f": {groups} groups beside 1 cluster." in found.sentences()[0]
    assert "There is one cluster" in found.verdict()
    same = second_opinion(data, [1] * 120, {"m": [1] * 120}, ks=None)
    assert same.verdict() == "None of these methods finds more than one group."


def test_patients_of_weight_0_do_not_count_and_labels_are_matched_by_id() -> None:
    data = Sequences.from_lists([["A", "B"]] * 30, ids=[f"p{i}" for i in range(30)])
    clusters = pd.Series([1] * 20 + [2] * 10, data.ids)
    weighted = data.reweight(np.where(np.arange(30) < 25, 1.0, 0.0))
    found = second_opinion(weighted, clusters[::-1], {"m": clusters}, ks=None)
    assert found.agreement.loc[0, ["adjusted_rand_index", "patients"]].tolist() == [1, 25]


def test_mistakes_are_refused() -> None:
    data = Sequences.from_lists([["A", "B"]] * 4)
    with pytest.raises(InputError, match="nothing to compare with"):
        second_opinion(data, [1, 1, 2, 2], ks=None)
    with pytest.raises(InputError, match="3 groups of m for 4 patients"):
        second_opinion(data, [1, 1, 2, 2], {"m": [1, 2, 3]}, ks=None)
    with pytest.raises(InputError, match="min_count must be"):
        second_opinion(data, [1, 1, 2, 2], {"m": [1, 2, 3, 1]}, ks=None, min_count=-1)
