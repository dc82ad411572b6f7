"""The estimator as a user meets it: attributes, prediction, files, extremes, bad input."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from oracle import random_params
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.search import Fit

TWO = MarkovParams(
    [0.7, 0.3], [[0.9, 0.1], [0.2, 0.8]], [[[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
)
DATA, TRUTH = simulate(TWO, 600, 12, states=["TNFi", "JAK"], seed=4)
MODEL = MixtureMarkov(2, seed=1).fit(DATA)


def test_labelled_attributes() -> None:
    assert MODEL.weights_.index.name == "class"
    assert MODEL.weights_.tolist() == sorted(MODEL.weights_, reverse=True)
    assert list(MODEL.initial_.columns) == ["TNFi", "JAK"]
    assert MODEL.transition_.loc[(1, "TNFi"), "JAK"] == MODEL.params_.transition[0, 0, 1]
    assert MODEL.transition_.sum(axis=1).to_numpy() == pytest.approx(np.ones(4))
    assert MODEL.class_parameters_.shape == (2, 6)
    assert MODEL.class_parameters_[1, :2] == pytest.approx(MODEL.initial_.loc[2].to_numpy())
    assert MODEL.states_ == ("TNFi", "JAK")
    assert MODEL.converged_
    assert len(MODEL.loglik_path_) == MODEL.n_iter_ + 1


def test_which_patients_are_in_which_class() -> None:
    table = MODEL.posterior_
    assert list(table.columns) == ["id", "class", "probability", "margin"]
    assert table["id"].tolist() == list(DATA.ids)
    proba = MODEL.predict_proba(DATA)
    assert proba.sum(axis=1) == pytest.approx(np.ones(600))
    assert table["probability"].to_numpy() == pytest.approx(proba.max(axis=1))
    assert table["margin"].to_numpy() == pytest.approx(np.abs(proba[:, 0] - proba[:, 1]))
    assert (table["class"].to_numpy() == MODEL.predict(DATA) + 1).all()
    assert (MODEL.labels_ == MODEL.predict(DATA)).all()
    assert (MODEL.fit_predict(DATA) == MODEL.labels_).all()


def test_starts_are_accounted_for() -> None:
    starts = MODEL.starts_
    assert list(starts.columns) == ["kind", "loglik", "iterations", "kicks", "status"]
    assert (~starts["kind"].str.contains("search")).sum() == MODEL.n_init
    assert {"seeded", "random", "partition"} <= set(starts["kind"])
    assert (starts["status"] == "converged").any()
    assert starts["loglik"].max() == pytest.approx(MODEL.loglik_, abs=0.01)
    assert MODEL.n_replicated_ == MODEL.n_searches_ == 12  # all that were followed


def test_searches_are_accounted_for() -> None:
    hard, _ = simulate(random_params(4, 4, 3), 300, 8, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [MixtureMarkov(4, seed=seed, n_init=12).fit(hard) for seed in range(4)]
    for model in fits:
        alone = model.starts_.loc[model.starts_["kind"] == "search"]
        assert len(alone) == model.n_searches_ == 3
        assert (alone["kicks"] > 0).all()
        assert model.n_replicated_ == (alone["loglik"] > model.loglik_ - 0.02).sum()
        joint = model.starts_.loc[model.starts_["kind"] == "joint search", "loglik"]
        assert len(joint) == (model.n_replicated_ < 3)
        assert (joint >= alone["loglik"].max() - 0.02).all()


def test_a_thorough_search_does_not_do_worse() -> None:
    hard, _ = simulate(random_params(4, 4, 3), 150, 8, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quick = [MixtureMarkov(4, seed=seed, n_init=8).fit(hard) for seed in range(4)]
        thorough = [
            MixtureMarkov(4, seed=seed, n_init=8, search="thorough").fit(hard) for seed in range(4)
        ]
    assert np.mean([m.loglik_ for m in thorough]) >= np.mean([m.loglik_ for m in quick]) - 0.01
    kicks = [sum(model.starts_["kicks"].sum() for model in fits) for fits in (quick, thorough)]
    assert kicks[1] > kicks[0]


def test_a_thorough_search_of_an_easy_problem_ends_where_all_starts_agree() -> None:
    model = MixtureMarkov(2, seed=1, search="thorough").fit(DATA)
    assert model.loglik_ == pytest.approx(MODEL.loglik_, abs=1e-4)
    assert model.n_replicated_ == model.n_searches_ == 12
    assert not model.starts_["kind"].str.contains("search").any()


def test_information_criteria_by_hand() -> None:
    p = 1 + 2 * 1 + 2 * 2 * 1
    assert MODEL.n_parameters_ == p
    assert MODEL.aic() == pytest.approx(-2 * MODEL.loglik_ + 2 * p)
    assert MODEL.bic() == pytest.approx(-2 * MODEL.loglik_ + p * np.log(600))
    assert MODEL.bic("timepoints") == pytest.approx(-2 * MODEL.loglik_ + p * np.log(600 * 12))
    assert MODEL.criteria()["sabic"] == pytest.approx(-2 * MODEL.loglik_ + p * np.log(602 / 24))
    proba = MODEL.predict_proba(DATA)
    spread = -(proba * np.log(proba)).sum()
    assert MODEL.entropy() == pytest.approx(1 - spread / (600 * np.log(2)))
    assert MODEL.icl() == pytest.approx(MODEL.bic() + 2 * spread)
    assert MODEL.score(DATA) == pytest.approx(MODEL.loglik_ / 600)
    assert MODEL.score_samples(DATA).sum() == pytest.approx(MODEL.loglik_)
    with pytest.raises(ValueError, match="n must be"):
        MODEL.bic("patients")  # type: ignore[arg-type]


def test_summary() -> None:
    table = MODEL.summary()
    assert table["patients"].sum() == 600
    assert table["weight"].sum() == pytest.approx(1)
    assert table["certainty"].between(0.5, 1).all()
    assert table.index.tolist() == MODEL.weights_.index.tolist() == [1, 2]
    assert table["starts with"][1].startswith("TNFi (")
    members = MODEL.labels_ == 0
    assert table["patients"][1] == members.sum()
    assert table["certainty"][1] == pytest.approx(MODEL.predict_proba(DATA)[members, 0].mean())
    assert table["stays"][1] == MODEL.params_.transition[0, 0, 0]


def test_new_patients_in_any_form() -> None:
    new = Sequences.from_lists([["JAK", "JAK"], ["TNFi", "TNFi", "TNFi"]])  # other order of states
    assert new.states == ("JAK", "TNFi")
    same = Sequences.from_lists([["JAK", "JAK"], ["TNFi"] * 3], ["TNFi", "JAK"])
    assert MODEL.predict_proba(new) == pytest.approx(MODEL.predict_proba(same))
    assert MODEL.predict(new).tolist() == [1, 0]
    assert MODEL.predict(np.array([[1, 1, -1], [0, 0, 0]])).tolist() == [1, 0]
    frame = pd.DataFrame({"q1": ["JAK", "TNFi"], "q2": ["JAK", "TNFi"], "q3": [None, "TNFi"]})
    assert MODEL.predict(frame).tolist() == [1, 0]
    with pytest.raises(ValueError, match="does not know the states 'IL6R'; it knows 'TNFi', 'JAK'"):
        MODEL.predict(Sequences.from_lists([["IL6R"]]))


def test_fits_on_arrays_and_frames_are_those_on_sequences() -> None:
    on_array = MixtureMarkov(2, seed=1).fit(DATA.codes)
    assert on_array.params_ == MODEL.params_
    frame = DATA.to_frame()
    assert MixtureMarkov(2, seed=1).fit(frame).params_ == MODEL.params_
    assert on_array.states_ == ("0", "1")


def test_same_seed_same_bits_on_any_number_of_threads() -> None:
    hard, _ = simulate(random_params(4, 4, 3), 300, 8, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [MixtureMarkov(4, seed=7, n_init=12, n_jobs=j).fit(hard) for j in (1, 1, 2, 5)]
        other = MixtureMarkov(4, seed=8, n_init=12).fit(hard)
    for fit in fits[1:]:
        assert fit.params_ == fits[0].params_
        assert fit.starts_.equals(fits[0].starts_)
    assert other.starts_["loglik"].tolist() != fits[0].starts_["loglik"].tolist()


def test_the_order_of_the_patients_does_not_matter() -> None:
    order = np.random.default_rng(1).permutation(600)
    shuffled = MixtureMarkov(2, seed=1).fit(DATA[order])
    assert shuffled.params_ == MODEL.params_
    assert (shuffled.labels_ == MODEL.labels_[order]).all()


def test_prior() -> None:
    s = Sequences.from_lists([["A", "A", "A"], ["A", "B", "B"]])
    strict = MixtureMarkov(1, prior=0).fit(s)
    assert strict.params_.transition[0] == pytest.approx(np.array([[2 / 3, 1 / 3], [0, 1]]))
    assert strict.params_.initial[0].tolist() == [1, 0]
    smooth = MixtureMarkov(1, prior=1).fit(s)
    assert smooth.params_.transition[0] == pytest.approx(np.array([[3 / 5, 2 / 5], [1 / 3, 2 / 3]]))
    assert smooth.params_.initial[0] == pytest.approx([3 / 4, 1 / 4])
    # what nobody did before is impossible without a prior, and merely unlikely with one
    new = Sequences.from_lists([["B", "A"]])
    assert strict.score(new) == -np.inf
    assert np.isfinite(MixtureMarkov(1).fit(s).score(new))
    assert strict.predict_proba(new).tolist() == [[1.0]]


def test_structural_zeros() -> None:
    s = Sequences.from_lists([["A", "A", "B"], ["A", "B", "B"], ["A", "C", "C"], ["A", "A", "A"]])
    model = MixtureMarkov(2, zeros=[("B", "A"), ("C", "A"), (None, "B")], prior=0.1, seed=1).fit(s)
    assert (model.params_.transition[:, 1:, 0] == 0).all()
    assert (model.params_.initial[:, 1] == 0).all()
    assert (model.params_.initial[:, 2] > 0).all()
    assert model.params_.transition.sum(axis=2) == pytest.approx(np.ones((2, 3)))
    assert model.n_cells_ == 1 + 2 * 2 + 2 * 3 * 2 - 2 * 3
    assert model.n_parameters_ == 1 + 2 * 2  # all begin in A and go on to A, B or C; others stay
    with pytest.raises(ValueError, match=r"steps that zeros forbids \(A → B\)"):
        MixtureMarkov(2, zeros=[("A", "B")]).fit(s)
    with pytest.raises(ValueError, match="no step at all from 'B'"):
        MixtureMarkov(2, zeros=[("B", x) for x in "ABC"]).fit(s)
    with pytest.raises(ValueError, match="zeros names"):
        MixtureMarkov(2, zeros=[("A", "X")]).fit(s)


def test_zeros_of_the_starting_values_stay_zero() -> None:
    start = MarkovParams([0.5, 0.5], [[1, 0], [0.5, 0.5]], [np.eye(2), [[0.5, 0.5], [0.5, 0.5]]])
    model = MixtureMarkov(2, init=start, prior=0.5).fit(DATA)
    assert 0 in model.params_.initial
    assert model.n_parameters_ == 7 - 3
    impossible = MarkovParams([1.0], [[1, 0]], [np.eye(2)])
    with pytest.raises(ValueError, match="some patients are impossible"):
        MixtureMarkov(1, init=impossible, prior=0).fit(DATA)


def test_an_emptied_class_neither_breaks_nor_passes_unseen() -> None:
    movers = DATA[(DATA.codes[:, 1:] != DATA.codes[:, :-1]).any(axis=1)]
    start = MarkovParams([0.5, 0.5], TWO.initial, [TWO.transition[0], np.eye(2)])
    model = MixtureMarkov(2, init=start, prior=0, max_iter=50, tol=0).fit(movers)
    assert model.params_.weights.tolist() == [1, 0]
    assert np.isfinite(model.params_.transition).all()
    assert model.starts_["status"].tolist() == ["failed: a class emptied"]


def _reached(n: int, of: int) -> Fit:
    """A fit whose maximum `n` of so many searches reached; nothing else of it matters."""
    params, nothing = TWO, np.zeros((1, 2))
    return Fit(params, nothing, nothing, True, nothing, nothing > 0, pd.DataFrame(), n, of)


def test_a_maximum_that_only_one_search_reached_is_said_in_words() -> None:
    noise, _ = simulate(random_params(1, 4, 3), 150, 12, seed=1)
    advice = r"reached by [01] of 3 independent searches, .*; use search='thorough' or ask for"
    with pytest.warns(UserWarning, match=advice):
        MixtureMarkov(6, seed=3, n_init=4).fit(noise)
    with pytest.warns(UserWarning, match="reached by 2 of 6 independent searches"):
        MixtureMarkov(2, n_init=4, search="thorough")._warn(_reached(2, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n, of in ((3, 6), (2, 3), (6, 12)):
            MixtureMarkov(2, n_init=4)._warn(_reached(n, of))
    with pytest.warns(UserWarning, match="stopped after max_iter = 2 updates"):
        MixtureMarkov(2, init=TWO, max_iter=2).fit(DATA)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    "codes",
    [
        np.zeros((5, 4), int),  # S = 1
        np.array([[0], [1], [1]]),  # T = 1
        np.array([[0, -1, -1], [1, 0, 1], [0, 0, 1]]),  # length 1 beside longer ones
        np.array([[0, 0, 2], [0, 1, 0], [1, 0, 1]]),  # state 2 seen only last
        np.array([[0, 0, 0], [1, 1, 1], [0, 0, 1]]),  # members who never leave a state
    ],
    ids=["one state", "one time", "lengths", "last only", "absorbing"],
)
def test_small_and_unusual_data(codes: np.ndarray, k: int) -> None:
    s = Sequences.from_codes(codes)
    if k > len(s.patterns):
        with pytest.raises(ValueError, match="2 classes cannot be distinguished among 1 distinct"):
            MixtureMarkov(k, seed=1).fit(s)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for prior in (0, 1e-4):
            model = MixtureMarkov(k, prior=prior, seed=1).fit(s)
            assert np.isfinite(model.loglik_)
            for array in (model.params_.weights, model.params_.initial, model.params_.transition):
                assert np.isfinite(array).all()
            assert model.predict_proba(s).sum(axis=1) == pytest.approx(np.ones(len(s)))


def test_a_row_nobody_informs_is_even_and_flagged() -> None:
    s = Sequences.from_codes([[0, 0, 2], [0, 1, 0]])
    model = MixtureMarkov(1, prior=0).fit(s)
    assert model.unsupported_.to_dict("records") == [{"class": 1, "state": "2"}]
    assert model.params_.transition[0, 2] == pytest.approx(np.ones(3) / 3)


def test_many_states_and_many_times() -> None:
    rng = np.random.default_rng(1)
    wide = Sequences.from_codes(rng.integers(0, 127, (20, 30)), range(127))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(MixtureMarkov(2, seed=1, n_init=2).fit(wide).loglik_)
        long = Sequences.from_codes(rng.integers(0, 3, (4, 10_000)))
        assert np.isfinite(MixtureMarkov(2, seed=1, n_init=2).fit(long).loglik_)


def test_weights_of_zero_count_for_nothing_but_are_classified() -> None:
    weights = np.ones(600)
    weights[:100] = 0
    model = MixtureMarkov(2, seed=1).fit(DATA, weights=weights)
    rest = MixtureMarkov(2, seed=1).fit(DATA[100:])
    assert model.loglik_ == pytest.approx(rest.loglik_, abs=1e-4)
    assert model.n_sequences_ == 500
    assert len(model.posterior_) == 600
    with pytest.raises(ValueError, match="every weight is 0"):
        MixtureMarkov(2).fit(DATA, weights=np.zeros(600))
    with pytest.raises(ValueError, match="no sequences"):
        MixtureMarkov(2).fit(DATA[:0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_classes": 0}, "n_classes must be a whole number of at least 1; found 0"),
        ({"n_classes": 2.5}, "n_classes must be a whole number"),
        ({"n_init": 0}, "n_init"),
        ({"prior": -1}, "prior must be a number of at least 0"),
        ({"tol": "x"}, "tol must be"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"search": "deep"}, "search must be one of 'default', 'thorough'; found 'deep'"),
        (
            {"init": random_params(3, 2, 1)},
            "init has 3 classes and 2 states, the fit needs 2 and 2",
        ),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureMarkov(**({"n_classes": 2} | settings)).fit(DATA)


def test_init_must_be_parameters() -> None:
    with pytest.raises(TypeError, match="init must be MarkovParams, found dict"):
        MixtureMarkov(2, init=TWO.to_dict()).fit(DATA)  # type: ignore[arg-type]


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    MODEL.save(path)
    again = MixtureMarkov.load(path)
    assert again.params_ == MODEL.params_
    assert again.states_ == MODEL.states_
    assert (again.predict(DATA) == MODEL.predict(DATA)).all()
    for measure in ("bic", "aic", "icl", "criteria", "entropy"):
        assert getattr(again, measure)() == getattr(MODEL, measure)()
    assert again.to_dict() == MODEL.to_dict()
    with pytest.raises(AttributeError, match="does not carry its patients"):
        again.posterior_  # noqa: B018


def test_a_saved_model_names_no_patient(tmp_path: Path) -> None:
    named = Sequences.from_codes(DATA.codes, DATA.states, ids=[f"MRN-{i}" for i in range(600)])
    path = tmp_path / "model.json"
    MixtureMarkov(2, seed=1).fit(named).save(path)
    assert "MRN" not in path.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version"),
        ({"format": "other"}, "format"),
        ({"states": ["A"]}, "2 states but names 1"),
        ({"loglik": float("nan")}, "loglik"),
        ({"extra": 1}, "extra"),
        ({"params": {"weights": [2.0], "initial": [[1.0]], "transition": [[[1.0]]]}}, "weights"),
        (
            {
                "params": {
                    "weights": [0.5, 0.4],
                    "initial": [[1.0]] * 2,
                    "transition": [[[1.0]]] * 2,
                }
            },
            "sum to 1",
        ),
        ({"params": "import os"}, "params"),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_dict() | change))
    with pytest.raises(ValueError, match=message):
        MixtureMarkov.load(path)


def test_files_that_are_not_json(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for text in ("not json", "[" * 100_000, "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a"):
            MixtureMarkov.load(path)
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(ValueError, match="larger than 64 MB"):
        MixtureMarkov.load(path)


def test_scikit_learn_conventions() -> None:
    model = MixtureMarkov(3, prior=0.5, seed=4)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(n_classes=2).fit(DATA).params_.n_classes == 2
    with pytest.raises(Exception, match="not fitted yet"):
        MixtureMarkov(2).predict(DATA)


# What scikit-learn's own checks ask for and sequences cannot give.
NOT_APPLICABLE = {
    "check_fit_score_takes_y": "the second argument of fit is the weights",
    "check_n_features_in_after_fitting": "new sequences may be longer or shorter",
    "check_fit2d_1sample": "one patient has one transition pattern, too few for two classes",
    "check_positive_only_tag_during_fit": "codes below −1 mean nothing",
    "check_pipeline_consistency": "gives labels where fit expects weights",
    "check_estimators_pickle": "gives labels where fit expects weights",
    "check_clustering": "needs continuous data",
}


def estimator_checks() -> list[Any]:
    params = []
    for estimator, check in estimator_checks_generator(
        MixtureMarkov(2, seed=1, n_init=4), legacy=True
    ):
        name, reason = check.func.__name__, NOT_APPLICABLE.get(check.func.__name__)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        params.append(pytest.param(estimator, check, id=name, marks=marks))
    return params


@pytest.mark.parametrize(("estimator", "check"), estimator_checks())
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(estimator: MixtureMarkov, check: Any) -> None:
    check(estimator)


def test_the_summary_shows_the_intervals() -> None:
    errors, table = MODEL.standard_errors(DATA), MODEL.summary()
    weight = errors[errors["parameter"] == "weight"]
    np.testing.assert_allclose(table[["weight low", "weight high"]], weight[["low", "high"]])
    for k, row in table.iterrows():
        first = row["starts with"].split()[0]
        steps = errors[(errors["parameter"] == "transition") & (errors["class"] == k)]
        stay = steps[(steps["from"] == first) & (steps["to"] == first)].iloc[0]
        assert row["stays"] == pytest.approx(stay["estimate"])
        assert (row["stays low"], row["stays high"]) == pytest.approx((stay["low"], stay["high"]))
