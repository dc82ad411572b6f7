import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import DBSCAN, KMeans
from sklearn.mixture import GaussianMixture

import font
from font import LocalModel, SklearnModel, label
from font.errors import InputError
from font.labels import site_proportions


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    truth = rng.choice(3, p=[0.5, 0.3, 0.2], size=300)
    return np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])[truth] + rng.normal(size=(300, 2))


ESTIMATORS = [
    KMeans(3, n_init=5, random_state=0),
    *(GaussianMixture(3, covariance_type=c, random_state=0) for c in ("full", "tied", "diag")),
    GaussianMixture(3, covariance_type="spherical", random_state=0),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_adapters_follow_the_protocol(blobs, estimator):
    model = SklearnModel(estimator).fit(blobs)
    assert isinstance(model, LocalModel)
    assert model.n_classes == 3
    assert model.class_parameters_.shape == (3, 2)
    table = label({"bare": estimator, "adapted": model}, pd.DataFrame(blobs))
    assert (table["bare"] == table["adapted"]).all()


def test_a_whole_ensemble_of_different_models(blobs):
    models = {str(i): estimator.fit(blobs) for i, estimator in enumerate(ESTIMATORS)}
    labels = label(models, blobs)
    ensemble = font.Ensemble(3, seed=1).fit(models, {"here": labels})
    reference = ESTIMATORS[1].predict(blobs)
    assert (
        font.compare_clusterings(reference, ensemble.predict(labels))["adjusted_rand_index"] > 0.9
    )


def test_weights_are_for_kmeans_only(blobs):
    weights = np.where(blobs[:, 0] > 2, 1.0, 0.0)
    centres = SklearnModel(KMeans(1, n_init=1)).fit(blobs, weights).class_parameters_
    np.testing.assert_allclose(centres[0], blobs[weights > 0].mean(axis=0))
    with pytest.raises(InputError, match="GaussianMixture takes no case weights"):
        SklearnModel(GaussianMixture(2)).fit(blobs, weights)
    with pytest.raises(ValueError, match="weights must be 300 finite numbers"):
        SklearnModel(KMeans(2)).fit(blobs, [1.0])


def test_unknown_estimators_are_refused():
    with pytest.raises(ValueError, match=r"the estimator must be one of 'KMeans'.*found 'DBSCAN'"):
        SklearnModel(DBSCAN())


# --- proportions -------------------------------------------------------------------------


def likelihood_of(proportions, ratio):
    return np.log(ratio @ proportions).sum()


def test_site_proportions_maximise_the_likelihood():
    rng = np.random.default_rng(1)
    old = np.array([0.6, 0.3, 0.1])
    shares = rng.dirichlet([1, 1, 1], size=200) * old
    shares /= shares.sum(axis=1, keepdims=True)
    found = site_proportions(shares, old, max_iter=5000, tol=1e-10)
    assert found.sum() == pytest.approx(1)
    best = likelihood_of(found, shares / old)
    others = rng.dirichlet(50 * found + 0.1, size=300)
    assert best >= max(likelihood_of(other, shares / old) for other in others)
    doubled = site_proportions(np.concatenate([shares, shares[:50]]), old)
    weighted = site_proportions(shares, old, weights=np.where(np.arange(200) < 50, 2, 1))
    np.testing.assert_allclose(weighted, doubled, atol=1e-9)


def test_site_proportions_of_edge_cases():
    np.testing.assert_allclose(site_proportions([[1.0, 0.0]], [1.0, 0.0]), [1.0, 0.0])
    np.testing.assert_allclose(site_proportions(np.empty((0, 2)), [0.3, 0.7]), [0.3, 0.7])
    with pytest.raises(ValueError, match="one proportion for each column"):
        site_proportions([[1.0, 0.0]], [1.0])
