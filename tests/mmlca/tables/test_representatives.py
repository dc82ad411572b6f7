"""Representative sequences against all choices of medoids, and what they must not reveal."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import mmlca
from mmlca import Sequences
from mmlca.tables.clusters import percent_text


def unlike(a: list[str], b: list[str]) -> float:
    longest = max(len(a), len(b))
    pairs = zip([*a, *[None] * (longest - len(a))], [*b, *[None] * (longest - len(b))], strict=True)
    return sum(x != y for x, y in pairs) / longest


def test_they_are_the_best_choice() -> None:
    rng = np.random.default_rng(3)
    kinds = [list(rng.choice(list("ABC"), rng.integers(2, 6))) for _ in range(7)]
    lists = [kinds[k] for k in rng.choice(7, 120)]
    table = mmlca.representative_sequences(Sequences.from_lists(lists), n=3, shared_by=5)
    best = min(
        sum(min(unlike(row, kinds[k]) for k in chosen) for row in lists)
        for chosen in combinations(range(7), 3)
    )
    assert (table["distance"] * table["count"]).sum() == pytest.approx(best)
    assert table["count"].sum() == 120
    assert table["count"].is_monotonic_decreasing


def test_nobodys_own_course_and_nobody_by_subtraction() -> None:
    lists = [["A", "A"]] * 20 + [["B", "B"]] * 15 + [["A", "C"]] * 3 + [["C", "C"]]
    s = Sequences.from_lists(lists)
    table = mmlca.representative_sequences(s, n=3, min_count=11)
    assert table["sequence"].tolist() == ["A×2", "B×2"]  # the others are those of few patients
    assert table[["count", "share", "distance"]].isna().all(axis=None)  # 24 − 20 would be 4
    enough = mmlca.representative_sequences(s[:35], n=3, min_count=11)
    assert enough["count"].tolist() == [20, 15]
    assert len(mmlca.representative_sequences(s, shared_by=30)) == 0


def test_the_figure_draws_the_table() -> None:
    s = Sequences.from_lists([["A", "A"]] * 20 + [["B", "B"]] * 15 + [["A", "B"]] * 5)
    ax = mmlca.plot_representatives(s, n=2)
    table = mmlca.representative_sequences(s, n=2)
    assert [text.get_text() for text in ax.texts] == [percent_text(v) for v in table["share"]]
    hidden = mmlca.plot_representatives(s, n=2, min_count=11)
    assert [text.get_text() for text in hidden.texts] == ["–", "–"]
    none = mmlca.plot_representatives(s, shared_by=30)
    assert none.texts[0].get_text().startswith("no course that\n")
