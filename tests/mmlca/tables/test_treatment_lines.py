"""Treatment paths against counting by hand, and that nothing smaller follows from what is shown."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmlca
from mmlca import Sequences
from mmlca.tables.treatment_lines import branch_names

states = st.sampled_from(["A", "B", "C", None])
courses = st.lists(st.lists(states, min_size=1, max_size=6), min_size=1, max_size=40)


def lines_of(course: list[str | None]) -> list[str]:
    return [state for state, _ in groupby(s for s in course if s is not None)]


@given(courses)
def test_paths_are_those_counted_by_hand(lists: list[list[str | None]]) -> None:
    lists = [["A", *course] for course in lists]
    expected: Counter[str] = Counter()
    for course in lists:
        lines = lines_of(course)[:4]
        lines += ["no further"] if len(lines) < 4 else []
        expected.update(" → ".join(lines[:k]) for k in range(1, len(lines) + 1))
    table = mmlca.treatment_paths(Sequences.from_lists(lists, states=["A", "B", "C"]))
    assert dict(zip(table["path"], table["patients"], strict=True)) == dict(expected)


@pytest.mark.parametrize("n", [5, 30, 150, 600])
@pytest.mark.parametrize("seed", range(5))
def test_all_that_is_shown_are_sums_of_large_enough_sets(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.choice(4, (n, 5), p=[0.7, 0.2, 0.07, 0.03])
    data = Sequences.from_codes(codes, list("ABCD"))
    table = mmlca.treatment_paths(data, min_count=11)
    size = dict(zip(table["path"], table["patients"], strict=True))
    assert (table["patients"] >= 11).all()
    if n < 11:
        assert not len(table)
        return
    for parent in {*table["parent"]}:  # the leaves are a partition of the patients
        children = table.loc[table["parent"] == parent, "patients"]
        assert children.sum() == size.get(parent, n)
    flows = mmlca.treatment_lines(data, min_count=11)
    sums = table[table["line"] > 1].groupby(["line", "before", "state"])["patients"].sum()
    for row in flows.itertuples():
        assert sums[row.line + 1, row[2], row.to] == row.patients


def test_states_may_be_called_like_the_rest() -> None:
    assert branch_names(["no further", "others"])[-2:] == ["no further*", "others*"]
    data = Sequences.from_lists([["no further", "A"]] * 12 + [["A"]] * 12)
    assert "no further*" in set(mmlca.treatment_paths(data, min_count=11)["state"])
    mmlca.plot_lines(data, min_count=11)


def test_time_off_treatment_and_death_are_not_lines() -> None:
    data = Sequences.from_lists([["A", "none", "A", "B", "dead"], ["A", "none", "none", "none"]])
    assert mmlca.treatment_paths(data)["path"].tolist() == [
        "A",
        "A → B",
        "A → B → no further",
        "A → no further",
    ]
    every = mmlca.treatment_paths(data, not_lines=[])["path"]
    assert "A → none → A → B" in set(every)
    with pytest.raises(ValueError, match="not_lines names 'off', which are not among the states"):
        mmlca.treatment_lines(data, not_lines=["off"])
