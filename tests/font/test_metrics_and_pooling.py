import numpy as np
import pandas as pd
import pytest

from font import (
    agreement,
    cluster_parameters,
    cross_table,
    match_classes,
    match_labels,
    sum_by_cluster,
)


def test_agreement_by_hand():
    first = [0, 0, 0, 1, 1, 1]
    second = ["b", "b", "a", "a", "a", "a"]
    values = agreement(first, second)
    assert values["matched"] == pytest.approx(5 / 6)
    assert values["purity"] == pytest.approx(5 / 6)
    # pairs together in both 4, in the first 6, in the second 7, of 15
    expected = 6 * 7 / 15
    assert values["ari"] == pytest.approx((4 - expected) / ((6 + 7) / 2 - expected))
    assert values["n"] == 6
    assert cross_table(first, second).to_dict() == {"a": {0: 1, 1: 3}, "b": {0: 2, 1: 0}}


def test_series_are_matched_on_their_index():
    a = pd.Series([0, 0, 1], index=["x", "y", "z"])
    b = pd.Series([1, 5, 5], index=["z", "x", "y"])
    assert agreement(a, b)["ari"] == 1
    assert match_labels(a, b) == {1: 1, 5: 0}
    with pytest.raises(ValueError, match="differ in 2 patients"):
        agreement(a, b.rename({"z": "q"}))


def test_groups_without_partner_map_to_none():
    assert match_labels([0, 0, 0, 0], [0, 0, 0, 1]) == {0: 0, 1: None}
    assert match_classes(np.array([[5.0]]), np.array([[0.0], [5.1], [9.0]])) == {
        0: None,
        1: 0,
        2: None,
    }


def test_comparisons_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="same length"):
        agreement([0, 1], [0])
    with pytest.raises(ValueError, match="1 patients have no label"):
        cross_table([0.0, np.nan], [0, 1])
    with pytest.raises(ValueError, match="no patients to compare"):
        agreement([], [])
    with pytest.raises(ValueError, match="have 1 and 2 parameters"):
        match_classes(np.ones((2, 1)), np.ones((2, 2)))


def test_pooled_parameters_equal_those_of_all_patients_together():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, size=(60, 4))
    clusters = rng.integers(2, size=60)
    groups = ["row 1", "row 1", "row 2", "row 2"]
    sums = {
        "here": sum_by_cluster(counts[:20], clusters[:20], 3),
        "there": sum_by_cluster(counts[20:], clusters[20:], 3),
    }
    pooled = cluster_parameters(sums, groups)
    for k in (0, 1):
        total = counts[clusters == k].sum(axis=0)
        expected = np.concatenate([total[:2] / total[:2].sum(), total[2:] / total[2:].sum()])
        np.testing.assert_allclose(pooled.loc[k], expected)
    assert pooled.loc[2].isna().all()
    means = cluster_parameters(sums)
    np.testing.assert_allclose(means.loc[0], counts[clusters == 0].mean(axis=0))
    assert sums["here"]["n"].sum() == 20


def test_statistics_are_matched_with_clusters_by_patient_and_rare_clusters_withheld():
    statistics = pd.DataFrame({"x": [1.0, 2.0, 4.0]}, index=["a", "b", "c"])
    clusters = pd.Series([1, 0, 0], index=["c", "a", "b"])
    assert sum_by_cluster(statistics, clusters, 2)["x"].tolist() == [3.0, 4.0]
    assert sum_by_cluster(statistics, clusters, 2, min_count=2).to_numpy().tolist() == [
        [2, 3.0],
        [0, 0.0],
    ]


def test_sums_are_refused_in_one_sentence():
    statistics = pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"])
    with pytest.raises(ValueError, match=r"of the same patients; .*'q'"):
        sum_by_cluster(statistics, pd.Series([0, 0], index=["a", "q"]), 1)
    with pytest.raises(ValueError, match="between 0 and 1 are needed"):
        sum_by_cluster(statistics, [0, 2], 2)
    with pytest.raises(ValueError, match="no sums to pool"):
        cluster_parameters({})
    here = sum_by_cluster(statistics, [0, 0], 1)
    with pytest.raises(ValueError, match="'there' have other rows or columns"):
        cluster_parameters({"here": here, "there": here.rename(columns={"x": "y"})})
    with pytest.raises(ValueError, match="each of the 1 statistics; found 2"):
        cluster_parameters({"here": here}, [0, 0])
