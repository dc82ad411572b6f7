import json
from itertools import product
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import font
from font import weights as weighing
from font.clustering import LINKAGES, METHODS, positions
from font.exchange.messages.ensemble import ensemble_content, ensemble_from
from font.labels import distinct_rows
from font.settings import EnsembleSettings

KMEANS_LIKE = ("kmeans", "kmeans-distance", "spectral")


def squared(points):
    return ((points[:, None] - points[None]) ** 2).sum(axis=2)


def sum_of_squares(points, labels):
    groups = (points[labels == k] for k in np.unique(labels))
    return sum(((rows - rows.mean(axis=0)) ** 2).sum() for rows in groups)


def fitted(case, k=3, **settings):
    patterns = font.LabelPatterns.from_labels(
        {"here": case.labels[::2], "there": case.labels[1::2]}
    )
    return font.Ensemble(k, **settings).fit(case.models, patterns)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 5), st.integers(15, 70))
def test_everything_equals_the_dense_version(dense, make_case, seed, m, k, n):
    case = make_case(n, m, k, seed=seed)
    expected = dense(case.models, case.labels)
    ensemble = fitted(case, 2, seed=seed)
    np.testing.assert_allclose(ensemble.agreement_, expected.cosines, atol=1e-12)
    np.testing.assert_allclose(ensemble.weights_, expected.weights, atol=1e-9)

    codes = case.labels.to_numpy()
    rows = positions(codes, np.arange(0, k * m + 1, k), ensemble._axes)
    scale = np.linalg.norm(expected.combined) ** 2
    np.testing.assert_allclose(squared(rows), squared(expected.combined), atol=1e-11 * scale)

    centring = np.eye(n) - 1 / n
    spectrum = np.linalg.eigvalsh(-centring @ expected.combined @ centring)[::-1]
    ours = ensemble.spectrum_.to_numpy()
    size = min(len(ours), n)
    np.testing.assert_allclose(
        np.maximum(ours[:size], 0), np.maximum(spectrum[:size], 0), atol=1e-9 * spectrum[0]
    )

    labels = ensemble.predict(case.labels).to_numpy()
    theirs = KMeans(2, n_init=10, random_state=seed).fit(expected.combined)
    assert sum_of_squares(expected.combined, labels) <= 1.02 * theirs.inertia_ + 1e-9 * scale


def test_clusters_are_nearly_always_the_best_of_all_partitions(dense, make_case):
    """K-means promises no global optimum; compared with every split of the patterns in two."""
    n_best = n_cases = 0
    for seed in range(60):
        case = make_case(20 + seed, 1 + seed % 3, 2 + seed % 2, seed=seed)
        combined = dense(case.models, case.labels).combined
        patterns, number = distinct_rows(list(case.labels.to_numpy().T))
        if len(patterns) > 9:
            continue
        splits = list(product([0, 1], repeat=len(patterns) - 1))[1:]
        values = [sum_of_squares(combined, np.array([0, *split])[number]) for split in splits]
        labels = fitted(case, 2, seed=seed).predict(case.labels).to_numpy()
        found, tiny = sum_of_squares(combined, labels), 1e-9 * np.linalg.norm(combined) ** 2
        assert found <= 1.02 * min(values) + tiny
        n_cases += 1
        n_best += found <= min(values) + tiny
        if found <= min(values) + tiny < sorted([*values, np.inf])[1]:
            best = np.array([0, *splits[int(np.argmin(values))]])[number]
            assert adjusted_rand_score(labels, best) == 1
    assert n_cases > 40
    assert n_best >= 0.95 * n_cases


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(15, 60))
def test_the_combined_distance_itself_is_a_squared_distance(dense, make_case, seed, m, n):
    case = make_case(n, m, 3, seed=seed)
    expected = dense(case.models, case.labels)
    ensemble = fitted(case, 2, method="kmeans-distance", seed=seed)
    points = positions(case.labels.to_numpy(), np.arange(0, 3 * m + 1, 3), ensemble._axes)
    np.testing.assert_allclose(squared(points), expected.combined, atol=1e-9)
    labels = ensemble.predict(case.labels).to_numpy()
    theirs = KMeans(2, n_init=10, random_state=0).fit(points)
    assert sum_of_squares(points, labels) <= 1.02 * theirs.inertia_ + 1e-9 * points.size


@pytest.mark.parametrize("method", ["average", "complete", "ward"])
@pytest.mark.parametrize("seed", range(5))
def test_linkage_equals_scipy_on_the_full_matrix(dense, make_case, method, seed):
    case = make_case(80, 3, 3, seed=seed)
    tree = linkage(squareform(dense(case.models, case.labels).combined, checks=False), method)
    labels = fitted(case, 3, method=method).predict(case.labels)
    assert adjusted_rand_score(labels, fcluster(tree, 3, "maxclust")) == 1


@pytest.mark.parametrize("method", [*KMEANS_LIKE, *LINKAGES])
def test_every_method_recovers_clear_clusters(make_case, method):
    case = make_case(1500, 6, 4, 0.92, seed=2)
    ensemble = fitted(case, 4, method=method, seed=1)
    clusters = ensemble.predict(case.labels)
    floor = 0.6 if method == "complete" else 0.97  # complete linkage follows single outliers
    assert adjusted_rand_score(case.truth, clusters) > floor
    sizes = ensemble.cluster_sizes_.sum(axis=1)
    assert sizes.is_monotonic_decreasing
    assert sizes.tolist() == clusters.value_counts().sort_index().tolist()
    assert list(ensemble.cluster_sizes_.columns) == ["here", "there"]
    again = fitted(case, 4, method=method, seed=1).predict(case.labels)
    assert (again == clusters).all()


@pytest.mark.parametrize("weights", ["spectral", "centred", "equal", "prior", "sparse"])
def test_every_weighting_gives_unit_weights(make_case, weights):
    case = make_case(300, 4, 3, [0.9, 0.8, 0.9, 0.85])
    reliability = {"m0": 1, "m1": 0.5, "m2": 1, "m3": 1}
    ensemble = fitted(case, 3, weights=weights, reliability=reliability)
    assert np.linalg.norm(ensemble.weights_) == pytest.approx(1)
    assert ensemble.weights_.index.tolist() == list(case.models)


def test_centred_weights_recover_what_colluding_sites_spoil(make_case):
    scores = {"spectral": [], "centred": [], "sparse": []}
    for seed in range(6):
        case = make_case(6000, 5, 4, [0.92, 0.92, 0.92, 0, 0], seed=seed)
        labels = case.labels.assign(m4=case.labels["m3"])  # two sites send the same nonsense
        chance = np.array([1.0, 0.5, 0.3, 0.2])[case.truth]  # groups of unequal size
        kept = np.random.default_rng(seed).random(6000) < chance
        for weights, values in scores.items():
            ensemble = font.Ensemble(4, weights=weights, seed=1)
            clusters = ensemble.fit(case.models, {"here": labels[kept]}).predict(labels[kept])
            values.append(adjusted_rand_score(case.truth[kept], clusters))
    mean = {weights: np.mean(values) for weights, values in scores.items()}
    assert mean["centred"] > 0.95
    assert mean["sparse"] > 0.95
    assert mean["spectral"] < mean["centred"] - 0.05


def test_n_clusters_is_read_off_the_spectrum(make_case):
    case = make_case(3000, 8, 5, 0.9, seed=1)
    ensemble = fitted(case, None)
    assert ensemble.n_clusters_ == 5
    assert ensemble.n_clusters_choice_.sure == "clear"
    assert "suggests 5 clusters; this is clear" in ensemble.summary()
    assert "The ensemble has 6." in fitted(case, 6).summary()


# --- prediction --------------------------------------------------------------------------


def test_predict_aligns_columns_by_name_and_keeps_the_index(make_case):
    case = make_case(100, 3, 3)
    ensemble = fitted(case)
    table = case.labels.set_index(pd.Index([f"p{i}" for i in range(100)], name="id"))
    clusters = ensemble.predict(table[["m2", "m0", "m1"]])
    assert clusters.index.equals(table.index)
    assert clusters.dtype == np.int64
    assert clusters.tolist() == ensemble.predict(case.labels).tolist()
    turned = font.LabelPatterns.from_labels({"here": case.labels[["m1", "m2", "m0"]]})
    again = font.Ensemble(3).fit(case.models, turned)
    np.testing.assert_allclose(again.weights_, ensemble.weights_)
    assert (again.predict(case.labels) == ensemble.predict(case.labels)).all()


def test_new_patterns_go_to_the_nearest_centre(make_case):
    case = make_case(2000, 5, 3, 0.9, seed=7)
    shared = font.LabelPatterns.from_labels({"here": case.labels[:300]})
    ensemble = font.Ensemble(3).fit(case.models, shared)
    assert len(shared) < len(case.labels.drop_duplicates())
    clusters = ensemble.predict(case.labels)
    assert adjusted_rand_score(case.truth, clusters) > 0.97
    unseen = pd.DataFrame(0, index=[0], columns=list(case.models))
    unseen.loc[0, ["m0"]] = 1
    points = positions(unseen.to_numpy(), np.arange(0, 16, 3), ensemble._axes)
    nearest = np.linalg.norm(points - ensemble._centres, axis=1).argmin()
    assert ensemble.predict(unseen).tolist() == [nearest]
    assert ensemble.predict(case.labels[:0]).shape == (0,)


def test_known_patterns_are_at_their_nearest_centre_under_kmeans(make_case):
    case = make_case(500, 4, 3, 0.7, seed=3)
    for method in KMEANS_LIKE:
        ensemble = fitted(case, 3, method=method)
        confidence = ensemble.confidence(case.labels)
        assert (confidence["margin"] >= -1e-9).all()
        assert (confidence["margin"] <= 1).all()


def test_confidence_by_hand():
    models = {"A": np.array([[0.0], [1.0]]), "B": np.array([[0.0], [1.0]])}
    table = pd.DataFrame({"A": [0] * 6 + [1] * 4 + [1], "B": [0] * 6 + [1] * 4 + [0]})
    ensemble = font.Ensemble(2).fit(models, {"here": table})
    confidence = ensemble.confidence(table)
    assert confidence.columns.tolist() == ["cluster", "runner_up", "margin", "vote_share"]
    divided = confidence.iloc[-1]
    assert divided["vote_share"] == pytest.approx(0.5, abs=0.01)
    assert divided["margin"] < 0.5 < confidence["margin"].iloc[0]
    assert (confidence["vote_share"].iloc[:10] == 1).all()
    assert (confidence["runner_up"] == 1 - confidence["cluster"]).all()
    single = font.Ensemble(1).fit(models, {"here": table}).confidence(table)
    assert (single["cluster"] == 0).all()
    assert (single["runner_up"] == -1).all()
    assert (single["margin"] == 1).all()


def test_confidence_is_higher_where_the_cluster_is_right(make_case):
    case = make_case(3000, 5, 4, 0.7, seed=5)
    confidence = fitted(case, 4).confidence(case.labels)
    partner = font.match_labels(case.truth, confidence["cluster"])
    right = confidence["cluster"].map(partner).to_numpy() == case.truth
    for column in ("margin", "vote_share"):
        assert confidence[column][right].mean() > confidence[column][~right].mean() + 0.1


# --- words and files ---------------------------------------------------------------------


def test_the_summary_says_when_centred_weights_disagree(make_case):
    quiet = fitted(make_case(2000, 5, 4, 0.9), 4).summary()
    assert "agree with the weights used" in quiet
    loud = fitted(make_case(2000, 5, 4, [0.9, 0.9, 0.9, 0.9, 0.0]), 4).summary()
    assert "disagree with the weights used: they are far lower for 'm4' (0." in loud
    assert "'m3'" not in loud.split("far lower for")[1]
    assert "2,000 patients at 2 sites" in loud


def test_the_summary_numbers_clusters_from_1(make_case):
    lines = fitted(make_case(300, 3, 3), 3).summary().splitlines()
    sizes = lines[lines.index(next(line for line in lines if line.startswith("cluster"))) + 1 :]
    assert [line.split()[0] for line in sizes[:3]] == ["1", "2", "3"]


def test_votes_of_resamples_are_no_proof(make_case):
    case = make_case(300, 3, 3)
    assert "vote share" not in fitted(case, 3).summary()
    names = {"m0": "MGB/1", "m1": "MGB/2", "m2": "VA/1"}
    models = {names[name]: model for name, model in case.models.items()}
    ensemble = font.Ensemble(3).fit(models, {"here": case.labels.rename(columns=names)})
    assert "a high vote share does not mean that a patient's cluster is right" in ensemble.summary()


@pytest.mark.parametrize("method", KMEANS_LIKE)
def test_the_content_of_a_file_alone_classifies_and_describes(make_case, method):
    case = make_case(400, 4, 3, 0.8)
    ensemble = fitted(case, 3, method=method)
    content = json.loads(json.dumps(ensemble_content(ensemble), allow_nan=False))
    again = ensemble_from(content)
    new = make_case(300, 4, 3, 0.3, seed=99).labels  # many patterns not seen before
    for labels in (case.labels, new):
        pd.testing.assert_series_equal(again.predict(labels), ensemble.predict(labels))
        pd.testing.assert_frame_equal(again.confidence(labels), ensemble.confidence(labels))
    pd.testing.assert_series_equal(again.weights_, ensemble.weights_)
    pd.testing.assert_series_equal(again.spectrum_, ensemble.spectrum_)
    pd.testing.assert_frame_equal(again.agreement_, ensemble.agreement_)
    pd.testing.assert_frame_equal(again.cluster_sizes_, ensemble.cluster_sizes_)
    assert again.cautions() == ensemble.cautions()
    assert ensemble_content(again) == ensemble_content(ensemble)


@pytest.mark.parametrize("method", LINKAGES)
def test_clusters_of_linkage_have_no_file(make_case, method):
    with pytest.raises(ValueError, match=f"clusters of {method} linkage are known by"):
        ensemble_content(fitted(make_case(50, 2, 2), 2, method=method))


def test_a_function_as_distance_and_its_file(make_case):
    case = make_case(200, 3, 3)

    def cityblock(beta):
        return np.abs(beta[:, None] - beta[None]).sum(axis=2)

    ensemble = fitted(case, 3, distance=cityblock)
    other = fitted(case, 3, distance="total-variation")  # half of it: the scale cancels
    np.testing.assert_allclose(ensemble.weights_, other.weights_)
    again = ensemble_from(ensemble_content(ensemble))
    assert (again.predict(case.labels) == ensemble.predict(case.labels)).all()
    with pytest.raises(ValueError, match="files do not carry"):
        again.fit(case.models, {"here": case.labels})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": [0]}, "does not fit together in 'votes'"),
        ({"centres": [[0.0]]}, "does not fit together in 'centres'"),
        ({"centres": [[0.0, 1.0], [1.0]]}, "no table of numbers in 'centres'"),
        ({"weights": [1.0]}, "does not fit together in 'weights'"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(make_case, change, message):
    content = ensemble_content(fitted(make_case(50, 2, 2), 2)) | change
    with pytest.raises(ValueError, match=message):
        ensemble_from(content)


# --- degenerate input --------------------------------------------------------------------


def test_one_model_gives_its_own_classes(make_case):
    case = make_case(100, 1, 3)
    ensemble = fitted(case, 3)
    assert ensemble.weights_.tolist() == [1.0]
    assert adjusted_rand_score(case.labels["m0"], ensemble.predict(case.labels)) == 1
    assert "Ensemble of 1 model:" in ensemble.summary()
    assert fitted(case, None).n_clusters_ == 3


def test_identical_models_give_their_common_classes(make_case):
    case = make_case(100, 1, 3)
    models = dict.fromkeys("ABC", case.models["m0"])
    labels = pd.DataFrame(dict.fromkeys("ABC", case.labels["m0"]))
    ensemble = font.Ensemble(3).fit(models, {"here": labels})
    np.testing.assert_allclose(ensemble.weights_, 3**-0.5)
    assert adjusted_rand_score(labels["A"], ensemble.predict(labels)) == 1


def test_a_model_with_everybody_in_one_class_gets_weight_0(make_case):
    case = make_case(300, 3, 3)
    models = {**case.models, "lazy": np.eye(3)}
    labels = case.labels.assign(lazy=1)
    for weights in ("spectral", "centred", "equal", "sparse"):
        with pytest.warns(UserWarning, match="'lazy' put all patients in one class"):
            ensemble = font.Ensemble(3, weights=weights).fit(models, {"here": labels})
        assert ensemble.weights_["lazy"] == 0
        without = font.Ensemble(3, weights=weights).fit(case.models, {"here": case.labels})
        np.testing.assert_allclose(ensemble.weights_[:3], without.weights_)
        assert (ensemble.predict(labels) == without.predict(case.labels)).all()
        # another label of that model changes nothing
        assert (ensemble.predict(labels.assign(lazy=2)) == without.predict(case.labels)).all()


def test_if_no_model_separates_anybody_there_is_nothing_to_cluster():
    labels = pd.DataFrame({"A": [0, 0], "B": [1, 1]})
    with pytest.raises(ValueError, match="no model distinguishes any patients"):
        font.Ensemble(1).fit({"A": np.eye(2), "B": np.eye(2)}, {"here": labels})
    with pytest.raises(ValueError, match="no model distinguishes any patients"):
        font.Ensemble(2).fit({"A": np.ones((2, 2))}, {"here": pd.DataFrame({"A": [0, 1]})})


def test_a_reliability_of_0_may_leave_nothing_to_cluster():
    labels = pd.DataFrame({"A": [0, 1, 1], "lazy": [0, 0, 0]})
    models = {"A": np.eye(2), "lazy": np.eye(2)}
    ensemble = font.Ensemble(2, weights="prior", reliability={"A": 0, "lazy": 1})
    with pytest.raises(ValueError, match="distinguish patients, 'A', all have the reliability 0"):
        ensemble.fit(models, {"here": labels})


def test_models_with_different_numbers_of_classes(dense):
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=200)
    models = {"coarse": np.eye(2), "fine": rng.normal(size=(6, 3)), "right": 3 * np.eye(4)}
    labels = pd.DataFrame(
        {
            "coarse": truth // 2,
            "fine": np.where(truth == 3, truth + truth % 2, truth),
            "right": truth,
        }
    )
    expected = dense(models, labels)
    ensemble = font.Ensemble(4).fit(models, {"here": labels})
    np.testing.assert_allclose(ensemble.agreement_, expected.cosines, atol=1e-12)
    assert adjusted_rand_score(truth, ensemble.predict(labels)) == 1
    unused = labels.assign(fine=5)  # a class that nobody had
    assert ensemble.predict(unused).between(0, 3).all()
    assert (ensemble.confidence(unused)["vote_share"] < 1).all()


@pytest.mark.parametrize("method", METHODS)
def test_more_clusters_than_patterns(method):
    labels = pd.DataFrame({"A": [0, 1, 1], "B": [0, 1, 1]})
    models = {"A": np.eye(2), "B": np.eye(2)}
    with pytest.raises(ValueError, match=r"5 clusters are too many: .* only 2 ways"):
        font.Ensemble(5, method=method).fit(models, {"here": labels})
    as_many = font.Ensemble(2, method=method).fit(models, {"here": labels})
    assert as_many.predict(labels).tolist() == [1, 0, 0]


def test_a_site_with_no_patients_changes_nothing(make_case):
    case = make_case(200, 3, 3)
    both = font.Ensemble(3).fit(case.models, {"here": case.labels, "none": case.labels[:0]})
    assert both.cluster_sizes_["none"].tolist() == [0, 0, 0]
    alone = font.Ensemble(3).fit(case.models, {"here": case.labels})
    pd.testing.assert_series_equal(both.weights_, alone.weights_)
    with pytest.raises(ValueError, match="no patients to cluster"):
        font.Ensemble(3).fit(case.models, {"none": case.labels[:0]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="m1"), "no label column for the models 'm1'"),
        (lambda t: t.assign(site="x"), "the columns 'site', which are not models"),
        (
            lambda t: t.assign(m0=7),
            "the label 7 from the model 'm0', whose 3 classes are numbered 0 to 2",
        ),
    ],
)
def test_wrong_tables_are_refused_in_fit_and_predict(make_case, change, message):
    case = make_case(50, 3, 3)
    ensemble = fitted(case)
    with pytest.raises(ValueError, match=message):
        ensemble.predict(change(case.labels))
    if "site" not in message:
        with pytest.raises(ValueError, match=message):
            font.Ensemble(3).fit(case.models, {"here": change(case.labels)})


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "models must be a dict"),
        ({"A": object()}, "'A' .object. has no class_parameters_"),
        ({"A": np.ones(3)}, "shape \\(3,\\)"),
        ({"A": np.array([[0.0], [np.nan]])}, "1 values that are not finite"),
        ({"A": np.array([["x"]])}, "not a table of numbers"),
    ],
)
def test_wrong_models_are_refused(models, message):
    with pytest.raises((TypeError, ValueError), match=message):
        font.Ensemble(2).fit(models, {"here": pd.DataFrame({"A": [0, 1]})})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_clusters": 0}, "n_clusters, unless None, must be a whole number"),
        ({"n_clusters": 2.5}, "found 2.5"),
        ({"weights": "best"}, "weights must be one of 'spectral'"),
        ({"method": "dbscan"}, "method must be one of 'kmeans'"),
        ({"distance": "cosine"}, "must be one of 'euclidean'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        font.Ensemble(**settings)


def test_the_settings_of_a_study_offer_what_the_ensemble_knows():
    fields = EnsembleSettings.model_fields
    offered = {name: set(get_args(fields[name].annotation)) for name in fields}
    assert offered["weights"] | {"prior"} == set(weighing.METHODS)  # reliabilities cannot be set
    assert offered["distance"] == set(weighing.DISTANCES)
    assert offered["method"] | {"latent"} == set(METHODS)


def test_prior_weights_need_reliabilities(make_case):
    with pytest.raises(ValueError, match="needs reliability="):
        fitted(make_case(50, 2, 2), 2, weights="prior")


def test_the_hard_case_of_mostly_distinct_rows_stays_small(make_case):
    case = make_case(3000, 50, 5, 0.3, seed=1)
    patterns = font.LabelPatterns.from_labels({"here": case.labels})
    assert len(patterns) == 3000
    ensemble = font.Ensemble(5, seed=1).fit(case.models, patterns)
    assert adjusted_rand_score(case.truth, ensemble.predict(case.labels)) > 0.95


def test_centred_agreement_is_that_of_double_centred_distances() -> None:
    rng = np.random.default_rng(5)
    models = {name: rng.normal(size=(3, 2)) for name in "AB"}
    table = pd.DataFrame({name: rng.integers(0, 3, 40) for name in "AB"})
    patterns = font.LabelPatterns.from_labels({"here": table})
    found = font.Ensemble(2, seed=1).fit(models, patterns)
    flat = []
    for name, parameters in models.items():
        points = parameters[table[name]]
        far = np.linalg.norm(points[:, None] - points[None], axis=2)
        centring = np.eye(40) - 1 / 40
        flat.append((centring @ far @ centring).ravel())
    cosine = flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1])
    assert found.centred_agreement_.loc["A", "B"] == pytest.approx(cosine)
    assert found.centred_agreement_.loc["A", "A"] == pytest.approx(1)
