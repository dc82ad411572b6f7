"""The competitors of the ensemble: dense versions, hand-made cases, errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from font.simulation import competitors
from font.simulation.competitors import (
    consensus,
    fit_kmeans,
    k_fed,
    rand_index,
)
from font.simulation.sources import simulate_gaussian


def dense_rows(labels: pd.DataFrame) -> np.ndarray:
    """All rows of Ū = VΛ^½ from the N×N mean connectivity S̄ = VΛVᵀ."""
    table = labels.to_numpy()
    connectivity = (table[:, None, :] == table[None, :, :]).mean(axis=2)
    values, vectors = np.linalg.eigh(connectivity)
    return vectors * np.sqrt(np.maximum(values, 0))


def inertia(points: np.ndarray, clusters: np.ndarray) -> float:
    groups = (points[clusters == k] for k in np.unique(clusters))
    return sum(((rows - rows.mean(axis=0)) ** 2).sum() for rows in groups)


@pytest.mark.parametrize("accuracy", [0.9, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_consensus_is_kmeans_on_the_rows_of_the_root_of_the_connectivity(make_case, seed, accuracy):
    from sklearn.cluster import KMeans

    case = make_case(80, 5, 3, accuracy=accuracy, seed=seed)
    rows = dense_rows(case.labels)
    clusters = consensus({"here": case.labels}, 3, seed=0)["here"].to_numpy()
    dense = KMeans(3, n_init=50, tol=0, random_state=0).fit(rows)
    assert inertia(rows, clusters) == pytest.approx(dense.inertia_, rel=1e-3)
    one_hot = pd.get_dummies(case.labels.astype(str)).to_numpy(float) / np.sqrt(5)
    assert inertia(one_hot, clusters) == pytest.approx(inertia(rows, clusters), abs=1e-9)
    if accuracy == 0.9:
        assert adjusted_rand_score(dense.labels_, clusters) == 1


def test_consensus_keeps_sites_and_ids_apart(make_case):
    case = make_case(50, 3, 3, seed=2)
    both = {"A": case.labels[:20], "B": case.labels[20:][["m2", "m0", "m1"]]}
    found = consensus(both, 3)
    assert found["A"].index.equals(both["A"].index)
    together = consensus({"all": case.labels}, 3)["all"]
    assert adjusted_rand_score(together, pd.concat([found["A"], found["B"]])) == 1


def groups(*centres: float) -> np.ndarray:
    """Four points close to each centre."""
    return np.array([[c + d] for c in centres for d in (-0.2, -0.1, 0.1, 0.2)])


@pytest.mark.parametrize("assign", ["faithful", "nearest"])
def test_k_fed_joins_what_two_sites_share_and_adds_what_only_one_has(assign):
    data = {"A": groups(0, 10), "B": groups(10, 20)}
    found = k_fed(data, 3, n_local=2, first="A", n_init=5)[assign]
    low, middle = found["A"][0], found["A"][4]
    assert found["A"].tolist() == [low] * 4 + [middle] * 4
    assert found["B"].tolist()[:4] == [middle] * 4
    assert len({low, middle, found["B"][4]}) == 3
    assert len(set(found["B"][4:])) == 1


def test_k_fed_as_published_follows_the_local_cluster():
    data = {"A": np.array([[0.0], [0.0], [0.0], [8.0]]), "B": np.array([[10.0]] * 3)}
    faithful, nearest = k_fed(data, 2, n_local=1, first="A").values()
    assert faithful["A"].tolist() == [0, 0, 0, 0]
    assert nearest["A"].tolist() == [0, 0, 0, 1]
    assert faithful["B"].tolist() == nearest["B"].tolist() == [1, 1, 1]


def test_rounds_of_lloyd_at_the_centre_of_k_fed():
    points = np.array([[0.0], [1.0], [3.0], [4.0], [10.0]])
    chosen = np.array([[0.0], [1.0]])
    # by hand: {0} {1 3 4 10} → means 0, 4.5 → {0 1} {3 4 10} → 0.5, 5.67 → {0 1 3} {4 10}
    # → 1.33, 7 → {0 1 3 4} {10} → 2, 10, and so it stays
    for rounds, expected in ((0, "01111"), (1, "00111"), (2, "00011"), (3, "00001"), (9, "00001")):
        group, means = competitors._lloyd_rounds(points, chosen, rounds)
        assert "".join(map(str, group)) == expected
        assert means[1] == pytest.approx(points[group == 1].mean())
    data = {"A": groups(0, 10), "B": groups(0, 10)}
    for rounds in (0, 1, None):
        found = k_fed(data, 2, rounds=rounds)["faithful"]
        assert found["A"].tolist() == found["B"].tolist()


def test_plain_seeding_is_as_good_as_greedy_seeding():
    from sklearn.cluster import KMeans

    sites = simulate_gaussian("homogeneous", 1, 0.3, seed=2, sizes=(400, 400))
    model = fit_kmeans(sites.data["site 1"], 5, 20, 1, "site 1")
    best = KMeans(5, n_init=20, random_state=0).fit(sites.data["site 1"])
    assert model.inertia_ == pytest.approx(best.inertia_, rel=1e-3)


def test_farthest_first_starts_with_one_site():
    centres = np.array([[0.0], [1.0], [5.0], [9.0], [2.0]])
    assert competitors._farthest_first(centres, np.array([0, 1]), 4) == [0, 1, 3, 2]
    with pytest.raises(ValueError, match="only 1 different"):
        competitors._farthest_first(np.zeros((3, 1)), np.array([0]), 2)


def test_outlying_patients_are_not_scored():
    assert rand_index([0, 0, 1, 1, 0], [2, 2, 0, 0, -1]) == 1


def test_errors_say_how_to_fix_it():
    labels = {"A": pd.DataFrame({"m": [0, 1]})}
    data = {"A": groups(0, 10)}
    for call, message in (
        (lambda: consensus({"A": labels["A"][:0]}, 2), "no patients"),
        (lambda: k_fed(data, 9), "8 patients, too few for 9 clusters"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for wrong in ({}, [1]):
        with pytest.raises(TypeError, match=r"must be a dict \{site: .*, with at least one"):
            consensus(wrong, 2)
