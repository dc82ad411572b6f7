from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from font import labels as labels_module
from font.labels import LabelPatterns, count_rows, distinct_rows, label, map_rows


class Threshold:
    """Class 1 above a limit."""

    def __init__(self, limit):
        self.limit = limit

    def predict(self, data):
        values = data.values if hasattr(data, "ids") else np.asarray(data)
        return (values[:, 0] > self.limit).astype(np.int64)


@st.composite
def tables(draw):
    n = draw(st.integers(0, 40))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    return [rng.integers(size, size=n).astype(np.int8) for size in sizes]


@pytest.mark.parametrize("block", [3, 1 << 18])
def test_rows_are_counted_and_mapped_as_by_hand(block):
    @settings(max_examples=60, deadline=None)
    @given(tables())
    def check(columns):
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        by_hand = Counter(rows)
        patterns, counts = count_rows(columns)
        assert [tuple(row) for row in patterns.tolist()] == sorted(by_hand)
        assert counts.tolist() == [by_hand[tuple(row)] for row in patterns.tolist()]
        again, number = distinct_rows(columns)
        assert again[number].tolist() == [list(row) for row in rows]
        radix = 10 ** np.arange(len(columns))
        mapped = map_rows(columns, lambda p, counts: p @ radix * counts)
        assert mapped.tolist() == [int(np.array(r) @ radix) * by_hand[r] for r in rows]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "_BLOCK", block)
        check()


def test_more_patterns_than_a_64_bit_number_holds():
    rng = np.random.default_rng(0)
    table = rng.integers(5, size=(300, 50)).astype(np.int8)
    table[200:] = table[:100]
    patterns, counts = count_rows(list(table.T))
    expected, times = np.unique(table, axis=0, return_counts=True)
    assert (patterns == expected).all()
    assert (counts == times).all()


def test_blocks_join_seamlessly(monkeypatch):
    monkeypatch.setattr(labels_module, "_BLOCK", 7)
    rng = np.random.default_rng(1)
    columns = [rng.integers(k, size=5_000).astype(np.int8) for k in (3, 4, 2)]
    patterns, counts = count_rows(columns)
    expected, times = np.unique(np.column_stack(columns), axis=0, return_counts=True)
    assert (patterns == expected).all()
    assert (counts == times).all()


def test_label_gives_a_column_a_model_and_keeps_ids():
    data = SimpleNamespace(values=np.array([[0.0], [2.0], [4.0]]), ids=pd.Index(["a", "b", "c"]))
    data.shape = data.values.shape
    table = label({"low": Threshold(1), "high": Threshold(3)}, data)
    assert table.index.tolist() == ["a", "b", "c"]
    assert table.to_dict("list") == {"low": [0, 1, 1], "high": [0, 0, 1]}
    assert (table.dtypes == np.int8).all()
    frame = pd.DataFrame({"x": [0.0, 2.0]}, index=[7, 9])
    assert label({"low": Threshold(1)}, frame).index.tolist() == [7, 9]


def test_label_of_a_site_without_patients():
    table = label({"low": Threshold(1)}, np.empty((0, 1)))
    assert table.shape == (0, 1)
    both = LabelPatterns.from_labels({"none": table, "one": pd.DataFrame({"low": [1]})})
    assert both.counts.tolist() == [[0, 1]]
    assert both.sites == ("none", "one")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "at least one"),
        ([Threshold(1)], "dict"),
        ({"A": object()}, "'A' .object. has no method predict"),
        ({"A": SimpleNamespace(predict=lambda d: np.array([0, -1]))}, "'A' .*label -1"),
        ({"A": SimpleNamespace(predict=lambda d: np.array([0.5, 1]))}, "'A' .*float64"),
        ({"A": SimpleNamespace(predict=lambda d: np.array([0]))}, "2 whole numbers"),
    ],
)
def test_label_refuses_in_one_sentence(models, message):
    with pytest.raises((TypeError, ValueError), match=message):
        label(models, np.array([[0.0], [2.0]]))


HERE = pd.DataFrame({"A": [0, 0, 1, 1], "B": [0, 0, 2, 1]})
THERE = pd.DataFrame({"B": [0, 2, 2], "A": [0, 1, 1]})


def test_patterns_by_hand_with_columns_in_another_order():
    patterns = LabelPatterns.from_labels({"here": HERE, "there": THERE})
    assert patterns.models == ("A", "B")
    assert patterns.patterns.tolist() == [[0, 0], [1, 1], [1, 2]]
    assert patterns.counts.tolist() == [[2, 1], [1, 0], [1, 2]]
    assert patterns.n_patients == 7
    assert len(patterns) == 3
    assert "here  4 patients" in repr(patterns)


def test_models_in_another_order():
    patterns = LabelPatterns.from_labels({"here": HERE, "there": THERE})
    turned = patterns.reorder(("B", "A"))
    assert turned.patterns.tolist() == [[0, 0], [1, 1], [2, 1]]
    assert turned.counts.tolist() == [[2, 1], [1, 0], [1, 2]]
    pd.testing.assert_frame_equal(turned.reorder(("A", "B")).to_frame(), patterns.to_frame())


def test_the_order_of_patients_does_not_matter():
    shuffled = HERE.sample(frac=1, random_state=1)
    a = LabelPatterns.from_labels({"here": HERE}).to_frame()
    pd.testing.assert_frame_equal(a, LabelPatterns.from_labels({"here": shuffled}).to_frame())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (HERE.assign(C=1), "the columns 'C', which are not models"),
        (HERE[["A"]], "no label column for the models 'B'"),
        (HERE.assign(A=[0, np.nan, 1, 1]), "1 patients no whole-numbered label from the model 'A'"),
        (HERE.assign(B=[0, 1.5, 1, 1]), "found 1.5"),
        (HERE.assign(B=["x", "y", 1, 1]), "found 'x', 'y'"),
        (HERE - 1, "the label -1 from the model 'A'; labels count from 0"),
        (HERE.to_numpy(), "must be a DataFrame"),
    ],
)
def test_tables_are_refused_in_one_sentence(table, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LabelPatterns.from_labels({"good": HERE, "bad": table})


def test_whole_floats_are_labels():
    patterns = LabelPatterns.from_labels({"here": HERE.astype(float)})
    assert patterns.patterns.tolist() == [[0, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("labels", [HERE, {}, {"here": HERE[[]]}])
def test_from_labels_needs_sites_and_models(labels):
    with pytest.raises((TypeError, ValueError), match="one"):
        LabelPatterns.from_labels(labels)
