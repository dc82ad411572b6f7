from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from font import clustering
from font.clustering import kmeans, linkage, same_positions
from font.errors import InputError
from font.weights import read_spectrum


def inertia(points, weights, labels):
    total = 0.0
    for k in np.unique(labels):
        rows, w = points[labels == k], weights[labels == k]
        total += (w[:, None] * (rows - np.average(rows, axis=0, weights=w)) ** 2).sum()
    return total


@pytest.mark.parametrize("seed", range(8))
def test_kmeans_is_the_best_of_all_partitions_of_few_weighted_points(seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(8, 2)), rng.exponential(size=8) + 0.01
    splits = (np.array([0, *split]) for split in product(range(3), repeat=7))
    best = min(inertia(points, weights, split) for split in splits if len(set(split)) == 3)
    assert inertia(points, weights, kmeans(points, weights, 3, seed)) == pytest.approx(best)


def test_a_weight_counts_like_so_many_patients():
    rng = np.random.default_rng(1)
    points, counts = rng.normal(size=(30, 2)), rng.integers(1, 20, size=30)
    labels = kmeans(points, counts.astype(float), 4, 0)
    person = np.repeat(np.arange(30), counts)
    everyone = KMeans(4, n_init=50, random_state=0).fit(points[person])
    assert inertia(points, counts, labels) == pytest.approx(everyone.inertia_)


def test_clusters_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(2)
    points, weights = rng.normal(size=(3000, 20)), rng.exponential(size=3000)
    with threadpool_limits(1):
        alone = kmeans(points, weights, 6, 1)
    with threadpool_limits(2):
        assert (kmeans(points, weights, 6, 1) == alone).all()


def test_kmeans_ends_in_a_fixed_point_and_repeats_itself():
    rng = np.random.default_rng(3)
    points, weights = rng.normal(size=(200, 4)), rng.exponential(size=200)
    labels = kmeans(points, weights, 5, 1)
    centres = np.array(
        [np.average(points[labels == k], axis=0, weights=weights[labels == k]) for k in range(5)]
    )
    nearest = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).all()
    assert (kmeans(points, weights, 5, 1) == labels).all()


def test_equal_positions_are_found_despite_rounding():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(5, 3))
    number = np.array([0, 1, 2, 3, 4, 0, 2, 2])
    points = base[number] + 1e-15 * rng.normal(size=(8, 3))
    first, found = same_positions(points)
    assert len(first) == 5
    assert adjusted_rand_score(number, found) == 1
    np.testing.assert_allclose(points[first][found], points, atol=1e-14)


def test_more_clusters_than_positions():
    points = np.array([[0.0], [0.0], [1.0]])
    assert kmeans(points, np.ones(3), 2, 0).tolist() == [0, 0, 1]
    with pytest.raises(InputError, match=r"3 clusters are too many: .* only 2 ways"):
        kmeans(points, np.ones(3), 3, 0)
    far = squareform(pdist(points))
    with pytest.raises(InputError, match=r"3 clusters are too many: .* only 2 ways"):
        linkage(far, np.ones(3), 3, "average")
    assert kmeans(points, np.ones(3), 1, 0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", ["average", "complete", "ward"])
def test_weighted_linkage_equals_scipy_on_every_patient(method):
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10_000), st.integers(3, 15), st.integers(1, 3))
    def check(seed, n, k):
        rng = np.random.default_rng(seed)
        far = squareform(rng.uniform(0.1, 1.0, size=n * (n - 1) // 2))  # not even a metric
        sizes = rng.integers(1, 6, size=n)
        labels = linkage(far, sizes, k, method)
        person = np.repeat(np.arange(n), sizes)
        tree = scipy_linkage(squareform(far[np.ix_(person, person)]), method)
        theirs = fcluster(tree, k, "maxclust")
        assert adjusted_rand_score(labels[person], theirs) == 1

    check()


def test_linkage_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"20,000 label patterns.*method='kmeans'"):
        clustering.check_linkage_size(20_000, "ward")


def test_the_spectrum_is_read_at_a_tenth():
    choice = read_spectrum([1.0, 8.0, 10.0, 0.3])  # in any order
    assert choice.n_clusters == 3
    assert (choice.low, choice.high) == (0.1, 0.8)
    assert choice.sure == "doubtful"
    assert read_spectrum([10, 8, 3, 0.65, -1]).sure == "fair"
    assert read_spectrum([10, 8, 3, -1]) == (4, 0.0, 0.3, "clear")
    assert read_spectrum([5.0]).n_clusters == 2
    assert read_spectrum([0.0, -1.0]).n_clusters == 1
    assert read_spectrum([]).n_clusters == 1
