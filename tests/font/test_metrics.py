import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from font.metrics import (
    compare_clusterings,
    cross_table,
    match_labels,
    reliability_counts,
    reliability_from,
)


def test_a_comparison_by_hand():
    first = [0, 0, 0, 1, 1, 1]
    second = ["b", "b", "a", "a", "a", "a"]
    values = compare_clusterings(first, second)
    assert values["matched"] == pytest.approx(5 / 6)
    assert values["purity"] == pytest.approx(5 / 6)
    # pairs together in both 4, in the first 6, in the second 7, of 15
    expected = 6 * 7 / 15
    assert values["adjusted_rand_index"] == pytest.approx((4 - expected) / ((6 + 7) / 2 - expected))
    assert values["n"] == 6
    assert cross_table(first, second).to_dict() == {"a": {0: 1, 1: 3}, "b": {0: 2, 1: 0}}


def test_series_are_matched_on_their_index():
    a = pd.Series([0, 0, 1], index=["x", "y", "z"])
    b = pd.Series([1, 5, 5], index=["z", "x", "y"])
    assert compare_clusterings(a, b)["adjusted_rand_index"] == 1
    assert match_labels(a, b) == {1: 1, 5: 0}
    with pytest.raises(ValueError, match="differ in 2 patients"):
        compare_clusterings(a, b.rename({"z": "q"}))


def test_groups_without_partner_map_to_none():
    assert match_labels([0, 0, 0, 0], [0, 0, 0, 1]) == {0: 0, 1: None}


def test_comparisons_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="same length"):
        compare_clusterings([0, 1], [0])
    with pytest.raises(ValueError, match="1 patient has no label"):
        cross_table([0.0, np.nan], [0, 1])
    with pytest.raises(ValueError, match="no patients to compare"):
        compare_clusterings([], [])


@pytest.mark.parametrize("seed", range(5))
def test_the_adjusted_rand_index_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(4, size=50), rng.integers(1 + seed, size=50)
    ours = compare_clusterings(a, b)["adjusted_rand_index"]
    assert ours == pytest.approx(adjusted_rand_score(a, b))
    assert compare_clusterings(a * 0, a * 0)["adjusted_rand_index"] == 1


def test_reliability_by_hand():
    member = np.array(
        [[0.92, 0.08], [0.96, 0.04], [0.35, 0.65], [0.45, 0.55], [0.92, 0.08], [0.2, 0.8]]
    )
    truth = [1, 1, 0, 1, 0, -1]  # cluster 0 stands for class 1; the last patient has no class
    table = reliability_from(reliability_counts(member, truth))
    assert table["from"].tolist() == [0.5, 0.6, 0.9, 0.95]
    assert table["patients"].tolist() == [1, 1, 2, 1]
    assert table["right"].tolist() == [0.0, 1.0, 0.5, 1.0]
    assert table["probability"].to_numpy() == pytest.approx([0.55, 0.65, 0.92, 0.96])
    assert table["se"].iloc[2] == pytest.approx(np.sqrt(2 * 0.92 * 0.08 / 2) / np.sqrt(2))
    with pytest.raises(ValueError, match="one row for each patient"):
        reliability_counts(member, [0])


def test_probabilities_that_are_right_are_within_their_error():
    rng = np.random.default_rng(1)
    p = rng.uniform(0.5, 1, 20_000)
    truth = (rng.random(20_000) > p).astype(int)
    table = reliability_from(reliability_counts(np.column_stack([p, 1 - p]), truth))
    assert (np.abs(table["probability"] - table["right"]) < 4 * table["se"]).all()
