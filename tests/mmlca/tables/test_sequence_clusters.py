"""PAM and Ward on weighted sequences: brute force, scipy, scikit-learn, samples, what may show."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score, silhouette_samples

import mmlca
from mmlca.tables import _kernels
from mmlca.tables.sequence_clusters import draw_sequences, pam, silhouettes, ward


def points(seed: int, n: int = 11) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points in the plane without equal distances, whole weights, and their distances."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) + 3 * rng.integers(0, 2, (n, 1))
    square = np.linalg.norm(x[:, None] - x[None], axis=2).astype(np.float32)
    return x, rng.integers(1, 5, n).astype(float), square


def cost_of(square: np.ndarray, weight: np.ndarray, medoids: tuple[int, ...]) -> float:
    return float(weight @ square[:, list(medoids)].min(axis=1))


def planted(n: int = 400, seed: int = 1) -> tuple[mmlca.Sequences, np.ndarray]:
    """Three courses of 10 windows, of each of which one window in ten is replaced."""
    rng = np.random.default_rng(seed)
    courses = np.array([[0] * 10, [0] * 3 + [1] * 7, [2] * 10], dtype=np.int8)
    group = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    codes = courses[group]
    other = rng.random(codes.shape) < 0.1
    codes[other] = rng.integers(0, 3, other.sum())
    return mmlca.Sequences.from_codes(codes, list("ABC")), group


# --- oracles ----------------------------------------------------------------------------------


def test_pam_finds_the_medoids_of_brute_force_or_nearly() -> None:
    best_of_all = []
    for seed, k in itertools.product(range(8), (1, 2, 3)):
        _, weight, square = points(seed)
        (medoids,) = pam(square, weight, [k])
        found = cost_of(square, weight, tuple(medoids))
        every = itertools.combinations(range(len(square)), k)
        best = min(cost_of(square, weight, some) for some in every)
        assert best * (1 - 1e-6) <= found <= 1.15 * best
        best_of_all.append(found == pytest.approx(best))
    assert sum(best_of_all) >= 20


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(2, 4))
def test_no_exchange_makes_the_medoids_better(seed: int, k: int) -> None:
    _, weight, square = points(seed, 14)
    for medoids in pam(square, weight, [k]):
        found = cost_of(square, weight, tuple(medoids))
        assert len(set(medoids)) == k
        for out, new in itertools.product(range(k), range(14)):
            other = [*np.delete(medoids, out), new]
            assert cost_of(square, weight, tuple(other)) >= found * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_ward_with_weights_is_scipys_of_repeated_rows(seed: int) -> None:
    x, weight, square = points(seed)
    before, n = square.copy(), len(square)
    repeated = np.repeat(np.arange(n), weight.astype(int))
    tree = linkage(x[repeated], "ward")
    merges = np.empty((n - 1, 2), dtype=np.int64)
    heights = _kernels.ward_merges(square.copy(), weight, merges)
    assert np.sort(heights) == pytest.approx(tree[-(n - 1) :, 2], rel=1e-5)
    for k, labels in zip(range(1, 7), ward(square, weight, list(range(1, 7))), strict=True):
        theirs = fcluster(tree, k, "maxclust")
        assert adjusted_rand_score(theirs, labels[repeated]) == 1
        assert labels.max() == k - 1
    assert (square == before).all()


@pytest.mark.parametrize("seed", range(5))
def test_silhouettes_are_scikit_learns_of_repeated_rows(seed: int) -> None:
    _, weight, square = points(seed)
    labels = np.random.default_rng(seed).integers(0, 3, len(square))
    labels[:3] = [0, 1, 2]
    repeated = np.repeat(np.arange(len(square)), weight.astype(int))
    large = square.astype(float)[np.ix_(repeated, repeated)]
    theirs = silhouette_samples(large, labels[repeated], metric="precomputed")
    assert silhouettes(square, weight, labels, 3)[repeated] == pytest.approx(theirs, abs=1e-6)


def test_silhouettes_by_hand() -> None:
    line = np.array([0.0, 1, 5, 6])
    square = np.abs(line[:, None] - line[None]).astype(np.float32)
    found = silhouettes(square, np.array([1.0, 1, 1, 2]), np.array([0, 0, 1, 1]), 2)
    # first: a = 1, b = (5 + 6 + 6)/3; the last stands for two patients: a = (1 + 0)/2, b = 5.5
    assert found[[0, 3]] == pytest.approx([1 - 3 / 17, 1 - 0.5 / 5.5])
    alone = silhouettes(square, np.ones(4), np.array([0, 0, 0, 1]), 2)
    assert alone[3] == 0
    assert np.isnan(silhouettes(square, np.ones(4), np.zeros(4, dtype=int), 1)).all()


# --- clusters of sequences --------------------------------------------------------------------


@pytest.mark.parametrize("method", ["hamming", "dynamic_hamming", "lcs", "om"])
@pytest.mark.parametrize("join", ["pam", "ward"])
def test_planted_groups_are_found_and_their_number(method: str, join: str) -> None:
    s, group = planted()
    found = mmlca.cluster_sequences(s, range(2, 6), method, join)
    assert len(found.sizes) == 3
    assert adjusted_rand_score(group, found.labels) > 0.95
    assert found.choice["k"].tolist() == [2, 3, 4, 5]
    assert found.choice["silhouette"].idxmax() == 1
    assert (np.diff(found.sizes) <= 0).all()
    assert found.sizes.sum() == len(s)
    assert not found.sampled
    # numbers of the result are those of the table of all distances
    square = mmlca.distances(s, method)
    theirs = silhouette_samples(square, found.labels, metric="precomputed")
    assert found.silhouettes.to_numpy() == pytest.approx(theirs, abs=1e-5)
    medoid = found.medoids[found.labels]
    assert found.distances.to_numpy() == pytest.approx(square[np.arange(len(s)), medoid])
    for k in range(3):
        mine = np.flatnonzero(found.labels == k)
        inside = square[np.ix_(mine, mine)].sum(axis=1)
        assert inside[mine == found.medoids[k]] == pytest.approx(inside.min())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), join=st.sampled_from(["pam", "ward"]))
def test_weights_are_repeated_rows_and_order_is_nothing(seed: int, join: str) -> None:
    rng = np.random.default_rng(seed)
    s, _ = planted(60, seed)
    s = s.reweight(rng.integers(1, 4, len(s)))
    found = mmlca.cluster_sequences(s, range(2, 5), linkage=join)
    order = rng.permutation(np.repeat(np.arange(len(s)), s.weights.astype(int)))
    rows = mmlca.Sequences.from_codes(s.codes[order], s.states)
    again = mmlca.cluster_sequences(rows, range(2, 5), linkage=join)
    assert again.labels.to_numpy().tolist() == found.labels.to_numpy()[order].tolist()
    assert (rows.codes[again.medoids] == s.codes[found.medoids]).all()
    assert again.choice["silhouette"].tolist() == pytest.approx(found.choice["silhouette"].tolist())
    assert again.sizes.tolist() == found.sizes.tolist()


@pytest.mark.parametrize("join", ["pam", "ward"])
def test_patients_without_weight_join_and_count_for_nothing(join: str) -> None:
    s, _ = planted(200)
    weights = np.ones(200)
    weights[::5] = 0
    found = mmlca.cluster_sequences(s.reweight(weights), 3, linkage=join)
    alone = mmlca.cluster_sequences(s[weights > 0], 3, linkage=join)
    assert found.labels[weights > 0].tolist() == alone.labels.tolist()
    assert found.sizes.tolist() == alone.sizes.tolist()
    assert found.labels.between(0, 2).all()
    assert (s.codes[found.medoids] == s[weights > 0].codes[alone.medoids]).all()


# --- samples ----------------------------------------------------------------------------------


def test_a_sample_has_the_right_expectation() -> None:
    rng = np.random.default_rng(1)
    weight = np.append(rng.integers(1, 30, 200), [4_000, 900]).astype(float)
    value = rng.normal(size=202) + 5
    draws = [draw_sequences(weight, 50, rng) for _ in range(2_000)]
    assert {len(sample.rows) for sample in draws} == {50}
    assert all(len(set(sample.rows)) == 50 for sample in draws)
    assert all({200, 201} <= set(sample.rows) for sample in draws)
    sums = [sample.weight @ value[sample.rows] for sample in draws]
    error = np.std(sums) / np.sqrt(len(sums))
    assert np.mean(sums) == pytest.approx(weight @ value, abs=4 * error)
    assert np.mean([sample.weight.sum() for sample in draws]) == pytest.approx(weight.sum())


@pytest.mark.parametrize("join", ["pam", "ward"])
def test_samples_find_the_groups_too(join: str) -> None:
    s, group = planted(4_000)
    exact = mmlca.cluster_sequences(s, range(2, 5), linkage=join)
    found = mmlca.cluster_sequences(s, range(2, 5), linkage=join, most_distinct=200, seed=1)
    again = mmlca.cluster_sequences(s, range(2, 5), linkage=join, most_distinct=200, seed=1)
    assert found.sampled
    assert len(found.sizes) == 3
    assert adjusted_rand_score(group, found.labels) > 0.9
    assert found.choice["silhouette"][1] == pytest.approx(exact.choice["silhouette"][1], abs=0.05)
    assert found.choice["distance"][1] == pytest.approx(exact.choice["distance"][1], rel=0.1)
    assert (found.labels == again.labels).all()
    assert found.choice.equals(again.choice)
    assert 0 < found.silhouettes.notna().mean() < 1
    assert found.summary()["silhouette"].notna().all()


# --- what people see --------------------------------------------------------------------------


def test_the_summary_hides_small_numbers_and_rare_courses() -> None:
    s = mmlca.Sequences.from_lists(
        [["A"] * 6] * 40
        + [["A", "A", "A", "A", "A", "B"]] * 15
        + [["B"] * 6] * 20
        + [["C"] * 6] * 3
    )
    found = mmlca.cluster_sequences(s, 3)
    exact = found.summary(min_count=0)
    assert exact["count"].tolist() == [55, 20, 3]
    assert exact["sharing"].tolist() == pytest.approx([40 / 55, 1, 1])
    assert exact["distance"].tolist() == pytest.approx([15 / 55, 0, 0])
    shown = found.summary(min_count=11)
    assert shown["medoid"].tolist()[:2] == ["A×6", "B×6"]
    assert shown["medoid"].isna()[2]
    # the smallest cluster is hidden, and another one from which it would follow
    assert shown["count"].isna().sum() == 2
    assert shown.iloc[2][["sharing", "distance", "silhouette"]].isna().all()
    assert shown["sharing"][0] == 0.73
    few = mmlca.cluster_sequences(s[: 40 + 4], 1).summary(min_count=11)
    assert few["medoid"][0] == "A×6"  # and nothing tells what the four others do
    assert few[["sharing", "distance", "silhouette"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1; found 0"),
        ({"k": []}, "k names no number of clusters"),
        ({"k": [1, 2]}, "begin with 2"),
        ({"k": 40}, "there cannot be more clusters than distinct sequences"),
        ({"k": 2, "linkage": "single"}, "linkage must be one of 'pam', 'ward'"),
        ({"k": 3, "most_distinct": 2}, "most_distinct must be a whole number of at least 3"),
    ],
)
def test_messages(arguments: dict[str, object], message: str) -> None:
    s, _ = planted(20)
    with pytest.raises(mmlca.InputError, match=message):
        mmlca.cluster_sequences(s, **arguments)
