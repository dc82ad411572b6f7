import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import DBSCAN, KMeans
from sklearn.mixture import GaussianMixture

import font
from font import LatentClass, LocalModel, SklearnModel, label
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


def simulate(n=2000, seed=0, weights=(0.6, 0.4)):
    rng = np.random.default_rng(seed)
    yes = np.array([[0.9, 0.8, 0.9, 0.7, 0.85], [0.1, 0.2, 0.15, 0.2, 0.1]])
    truth = rng.choice(2, p=weights, size=n)
    answers = rng.random((n, 5)) < yes[truth]
    frame = pd.DataFrame(np.where(answers, "yes", "no"), columns=list("abcde"))
    return truth, frame, yes


def test_parameters_are_recovered_and_classes_ordered_by_size():
    truth, answers, yes = simulate()
    model = LatentClass(2, seed=1).fit(answers)
    assert isinstance(model, LocalModel)
    assert model.converged_
    np.testing.assert_allclose(model.weights_, [0.6, 0.4], atol=0.04)
    np.testing.assert_allclose(model.class_parameters_[:, 1::2], yes, atol=0.05)
    np.testing.assert_allclose(model.class_parameters_[:, ::2], 1 - yes, atol=0.05)
    assert font.compare_clusterings(truth, model.predict(answers))["matched"] > 0.95
    assert model.bic(2000) < LatentClass(1).fit(answers).bic(2000)
    assert model.bic(2000) < LatentClass(3, n_init=5).fit(answers).bic(2000)


def test_the_likelihood_is_that_of_the_formula_and_missing_answers_drop_out():
    _, answers, _ = simulate(200)
    answers = answers.mask(np.random.default_rng(1).random(answers.shape) < 0.2)
    model = LatentClass(2, n_init=3, seed=1).fit(answers)
    total = 0.0
    for row in answers.to_numpy():
        joint = model.weights_.copy()
        for j, answer in enumerate(row):
            if isinstance(answer, str):
                joint *= model.class_parameters_[:, 2 * j + (answer == "yes")]
        total += np.log(joint.sum())
    assert model.loglik_ == pytest.approx(total)


def test_one_class_has_the_observed_shares():
    answers = np.array([[0, 1], [0, 1], [1, 2], [0, 0]])
    model = LatentClass(1, prior=0, n_init=1).fit(answers)
    np.testing.assert_allclose(model.class_parameters_, [[0.75, 0.25, 0.25, 0.5, 0.25]])
    smooth = LatentClass(1, prior=1, n_init=1).fit(answers)
    np.testing.assert_allclose(smooth.class_parameters_[0, :2], [3.5 / 5, 1.5 / 5])


def test_each_step_raises_the_likelihood_and_weights_are_copies():
    _, answers, _ = simulate(300, seed=3)
    paths = [
        LatentClass(3, n_init=1, prior=0, max_iter=steps, seed=5).fit(answers).loglik_
        for steps in (1, 2, 5, 20, 80)
    ]
    assert (np.diff(paths) >= 0).all()
    doubled = pd.concat([answers, answers[:100]], ignore_index=True)
    weights = np.where(np.arange(300) < 100, 2.0, 1.0)
    a = LatentClass(2, seed=1, prior=0).fit(answers, weights)
    b = LatentClass(2, seed=1, prior=0).fit(doubled)
    np.testing.assert_allclose(a.class_parameters_, b.class_parameters_, atol=1e-6)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (pd.DataFrame({"a": ["yes", "maybe"], "b": ["no", "no"]}), "'maybe', the model knows 'no'"),
        (pd.DataFrame({"b": ["yes"], "a": ["no"]}), "same items in the same order"),
    ],
)
def test_unknown_answers_are_refused(answers, message):
    model = LatentClass(1, n_init=1).fit(pd.DataFrame({"a": ["yes", "no"], "b": ["no", "yes"]}))
    with pytest.raises(ValueError, match=message):
        model.predict(answers)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="n_classes must be a whole number of at least 1"):
        LatentClass(0)
    with pytest.raises(ValueError, match="people and items are needed"):
        LatentClass(1).fit(pd.DataFrame({"a": []}))
    with pytest.raises(ValueError, match="nobody answered the items 'b'"):
        LatentClass(1).fit(pd.DataFrame({"a": ["x"], "b": [None]}))
    with pytest.raises(ValueError, match="found 1 dimensions"):
        LatentClass(1).fit([1, 2])
    with pytest.raises(ValueError, match="all case weights are 0"):
        LatentClass(1).fit([[1], [2]], [0, 0])


def test_categorical_columns_keep_categories_that_nobody_chose():
    answers = pd.DataFrame({"a": ["x", "y", "x"], "b": ["no", "no", "yes"]})
    answers["a"] = pd.Categorical(answers["a"], ["x", "y", "z"])
    model = LatentClass(1, n_init=1).fit(answers)
    assert model.categories_ == {"a": ["x", "y", "z"], "b": ["no", "yes"]}
    assert model.n_parameters_ == 2  # what nobody chose is not counted
    new = pd.DataFrame({"a": ["z"], "b": ["no"]})
    assert np.isfinite(model.score_samples(new)).all()


def test_groups_share_classes_and_have_proportions_of_their_own():
    truth, answers, _ = simulate(600)
    groups = np.where(np.random.default_rng(2).random(600) < np.where(truth, 0.9, 0.3), "p", "q")
    model = LatentClass(2, seed=1).fit(answers, groups=groups)
    assert model.group_weights_.index.tolist() == ["p", "q"]
    first = model.group_weights_[0]  # the larger class is that of truth 0
    share = [1 - truth[groups == g].mean() for g in "pq"]
    np.testing.assert_allclose(first, share, atol=0.08)
    overall = pd.Series(groups).value_counts(normalize=True) @ model.group_weights_
    np.testing.assert_allclose(model.weights_, overall)
    assert model.score_samples(answers, groups).sum() == pytest.approx(model.loglik_)
    with pytest.raises(ValueError, match="among those of the fit"):
        model.predict(answers[:1], ["r"])
    with pytest.raises(ValueError, match="groups must be 600 labels"):
        LatentClass(2).fit(answers, groups=["p"])


def test_a_thorough_search_follows_every_start():
    _, answers, _ = simulate(200, seed=4)
    quick = LatentClass(3, n_init=8, seed=2).fit(answers)
    thorough = LatentClass(3, n_init=8, seed=2, search="thorough").fit(answers)
    assert (quick.n_searches_, thorough.n_searches_) == (2, 8)
    assert quick.starts_["followed"].sum() == 2
    assert thorough.starts_["log_posterior"].max() >= quick.starts_["log_posterior"].max() - 1e-9


def test_sparse_and_plain_answers_give_the_same_model(monkeypatch):
    _, answers, _ = simulate(200, seed=5)
    answers = answers.mask(np.random.default_rng(1).random(answers.shape) < 0.2)
    plain = LatentClass(2, n_init=3, seed=1).fit(answers)
    monkeypatch.setattr("font.models._DENSE", 0)
    sparse = LatentClass(2, n_init=3, seed=1).fit(answers)
    np.testing.assert_allclose(plain.class_parameters_, sparse.class_parameters_, atol=1e-9)
    np.testing.assert_allclose(plain.predict_proba(answers), sparse.predict_proba(answers))
    member = plain.predict_proba(answers)
    np.testing.assert_allclose(
        plain.statistics(answers, member), sparse.statistics(answers, member)
    )
