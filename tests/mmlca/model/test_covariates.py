"""Covariates on class membership: design, fit, effects, files, and what cannot be estimated."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from oracle import brute_force
from scipy.special import softmax

from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.covariates import Design, align, fit_logit, learn

CHAINS = MarkovParams(
    [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]]
)


def drawn(n: int, seed: int, effect: float = 1.0) -> tuple[Sequences, pd.DataFrame]:
    """Class 2 is more probable with age (per 10 years) and for women."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "sex": rng.choice(["man", "woman"], n),
            "age": rng.normal(60, 10, n),
        }
    )
    logit = -0.3 + effect * (table["age"] - 60) / 10 + 0.8 * (table["sex"] == "woman")
    of_two = rng.random(n) < 1 / (1 + np.exp(-logit))
    codes = np.empty((n, 10), dtype=int)
    for k, mine in enumerate([~of_two, of_two]):
        one = MarkovParams([1.0], CHAINS.initial[[k]], CHAINS.transition[[k]])
        codes[mine] = simulate(one, int(mine.sum()), 10, seed=rng)[0].codes
    return Sequences.from_codes(codes, ["A", "B"]), table


DATA, TABLE = drawn(1500, 1)
MODEL = MixtureMarkov(2, seed=1).fit(DATA, covariates=TABLE)


def larger_is_second(model: MixtureMarkov) -> int:
    """1 if the class that begins with B is the second, −1 if it is the first."""
    return 1 if model.initial_.loc[2, "B"] > 0.5 else -1


def test_coefficients_are_near_the_truth() -> None:
    table = MODEL.coefficient_table(DATA, TABLE).set_index("term")
    sign = larger_is_second(MODEL)
    truth = {"age": 0.1, "sex[woman]": 0.8}
    for term, value in truth.items():
        assert abs(sign * table.loc[term, "estimate"] - value) < 3 * table.loc[term, "se"]
    assert table.loc["age", "odds_ratio"] == pytest.approx(np.exp(table.loc["age", "estimate"]))
    assert MODEL.coefficients_.index.tolist() == ["(Intercept)", "sex[woman]", "age"]
    assert (MODEL.coefficients_[1] == 0).all()
    assert MODEL.n_parameters_ == 1 + 2 + 4 + 2
    assert MODEL.weights_.is_monotonic_decreasing


def test_the_likelihood_by_enumeration() -> None:
    few, table = DATA[np.arange(30)], TABLE.iloc[:30].reset_index(drop=True)
    matrix = np.column_stack([np.ones(30), table["sex"] == "woman", table["age"]]).astype(float)
    shares = softmax(matrix @ MODEL.coefficients_.to_numpy(), axis=1)
    logs, posterior = [], []
    for row, share in zip(few.codes, shares, strict=True):
        params = MarkovParams(share, MODEL.params_.initial, MODEL.params_.transition)
        one = brute_force(row[None], params, np.ones(1))
        logs.append(one["logs"][0])
        posterior.append(one["posterior"][0])
    np.testing.assert_allclose(MODEL.score_samples(few, table), logs, rtol=1e-10)
    np.testing.assert_allclose(MODEL.predict_proba(few, table), posterior, atol=1e-10)
    assert MODEL.score(few, covariates=table) == pytest.approx(np.mean(logs))


def test_the_fit_is_a_maximum_and_its_path_rises() -> None:
    assert (np.diff(MODEL.penalised_path_) > -1e-8).all()
    assert MODEL.score(DATA, covariates=TABLE) * len(DATA) == pytest.approx(MODEL.loglik_)
    assert (MODEL.predict(DATA, TABLE) == MODEL.labels_).all()
    plain = MixtureMarkov(2, seed=1).fit(DATA)
    assert MODEL.loglik_ > plain.loglik_ + 50
    for h in (-1e-3, 1e-3):  # no better coefficients beside them
        beside = MixtureMarkov.from_dict(MODEL.to_dict())
        beside.coefficients_.iloc[2, 1] += h
        assert beside.score(DATA, covariates=TABLE) < MODEL.score(DATA, covariates=TABLE)


def test_units_do_not_matter() -> None:
    years = TABLE.assign(age=1000 * TABLE["age"] + 1e6)
    other = MixtureMarkov(2, seed=1).fit(DATA, covariates=years)
    assert other.loglik_ == pytest.approx(MODEL.loglik_, abs=1e-5)
    a, b = MODEL.coefficient_table(DATA, TABLE), other.coefficient_table(DATA, years)
    np.testing.assert_allclose(b["z"][1:], a["z"][1:], rtol=1e-3)


def test_logit_by_newton_is_that_of_statsmodels() -> None:
    discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
    rng = np.random.default_rng(1)
    design = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    classes = rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    ours = fit_logit(design, np.eye(3)[classes], np.zeros((3, 3)))
    theirs = discrete.MNLogit(classes, design).fit(disp=0, method="newton")
    np.testing.assert_allclose(ours[:, 1:], theirs.params, atol=1e-5)


def test_tests_of_terms() -> None:
    wald, ratio = (MODEL.term_tests(DATA, TABLE, test=test) for test in ("wald", "lr"))  # type: ignore[arg-type]
    assert wald["term"].tolist() == ["sex", "age"]
    assert (wald["df"] == 1).all()
    assert (wald["p"] < 1e-4).all()
    assert ratio["statistic"][0] == pytest.approx(wald["statistic"][0], rel=0.1)
    table = MODEL.coefficient_table(DATA, TABLE)
    np.testing.assert_allclose(wald["statistic"], table["z"][1:] ** 2, rtol=1e-9)
    plain = MixtureMarkov(2, init=MODEL.params_, tol=1e-8).fit(DATA, covariates=TABLE[["age"]])
    assert ratio["statistic"][0] == pytest.approx(2 * (MODEL.loglik_ - plain.loglik_), abs=1e-2)


def test_save_and_load(tmp_path: object) -> None:
    path = f"{tmp_path}/model.json"
    MODEL.save(path)
    loaded = MixtureMarkov.load(path)
    pd.testing.assert_frame_equal(loaded.coefficients_, MODEL.coefficients_)
    assert (loaded.predict_proba(DATA, TABLE) == MODEL.predict_proba(DATA, TABLE)).all()
    a, b = (m.coefficient_table(DATA, TABLE)["se"] for m in (loaded, MODEL))
    np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(ValueError, match="fitted with covariates"):
        loaded.predict(DATA)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["coefficients"], [[0.0, 1.0], [0.0, 1.0]], "must be 3 rows of 2"),
        (["design", "terms"], [["sex"], ["weight"]], "do not fit together"),
        (["design", "scale"], [0.0, 1.0], "greater than 0"),
        (["design", "shift"], [1.0], "do not fit together"),
        (["extra"], 1, "Extra inputs"),
    ],
)
def test_hostile_files_are_refused(path: list[str], value: object, words: str) -> None:
    content = json.loads(json.dumps(MODEL.to_dict()))
    place = content["covariates"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=words):
        MixtureMarkov.from_dict(content)


def test_covariates_and_models_must_match() -> None:
    plain = MixtureMarkov(1).fit(DATA)
    with pytest.raises(ValueError, match="fitted without covariates"):
        plain.predict(DATA, TABLE)
    with pytest.raises(ValueError, match="lack the column age"):
        MODEL.predict(DATA, TABLE[["sex"]])
    with pytest.raises(ValueError, match="levels 'other', which the model does not know"):
        MODEL.predict(DATA, TABLE.assign(sex="other"))
    with pytest.raises(ValueError, match="is a number in the model, but holds 'old'"):
        MODEL.predict(DATA, TABLE.assign(age="old"))
    with pytest.raises(ValueError, match="formula names covariates, but there are none"):
        MixtureMarkov(2).fit(DATA, formula="age")
    again = MixtureMarkov(2, seed=1).fit(DATA, covariates=TABLE).fit(DATA)
    assert not hasattr(again, "coefficients_")
    assert again.predict(DATA).shape == (len(DATA),)


def test_missing_covariates_are_counted() -> None:
    holes = TABLE.copy()
    holes.loc[[3, 5], "age"] = np.nan
    holes.loc[7, "sex"] = None
    with pytest.raises(ValueError, match=r"3 of 1,500 patients lack covariates.*missing='drop'"):
        MixtureMarkov(2).fit(DATA, covariates=holes)
    with pytest.warns(UserWarning, match="3 of 1,500 patients lack covariates and are left out"):
        model = MixtureMarkov(2, seed=1, missing="drop").fit(DATA, covariates=holes)
    assert model.n_dropped_ == 3
    assert len(model.labels_) == len(DATA) - 3
    assert model.n_sequences_ == len(DATA) - 3
    shares = model.predict_proba(DATA, holes)
    assert shares.shape == (len(DATA), 2)
    average = brute_force(DATA.codes[[3]], model.params_, np.ones(1))["posterior"][0]
    np.testing.assert_allclose(shares[3], average, atol=1e-10)
    assert np.isfinite(model.coefficient_table(DATA, holes)["se"]).all()
    with pytest.raises(ValueError, match="missing must be one of"):
        MixtureMarkov(2, missing="guess").fit(DATA, covariates=TABLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"site": "MGB"}, "'site' is the same for all patients"),
        ({"year": 5.0}, "'year' is the same for all patients"),
        ({"months": TABLE["age"] * 12}, "follows from 'months'|follows from 'age'"),
        ({"name": [f"p{i}" for i in range(len(TABLE))]}, "1,500 different texts"),
        ({"age": np.inf}, "infinite"),
        ({"day": pd.Timestamp("2020-01-01")}, "holds dates"),
    ],
)
def test_what_cannot_be_estimated_is_said(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MixtureMarkov(2).fit(DATA, covariates=TABLE.assign(**change))


def test_separation_is_said() -> None:
    label = np.where(MODEL.labels_ == 0, "x", "y")
    with pytest.warns(UserWarning, match=r"'mark\[y\]' separates classes"):
        model = MixtureMarkov(2, seed=1).fit(DATA, covariates=pd.DataFrame({"mark": label}))
    with pytest.warns(UserWarning, match="do not determine"):
        table = model.coefficient_table(DATA, pd.DataFrame({"mark": label}))
    assert np.isfinite(table["estimate"]).all()


def test_rows_are_matched_by_id() -> None:
    data = Sequences.from_codes([[0, 1], [1, 1], [0, 0]], ids=["c", "a", "b"])
    table = pd.DataFrame({"id": ["a", "b", "c", "d"], "x": [1, 2, 3, 4]})
    assert align(table, data.ids)["x"].tolist() == [3, 1, 2]
    assert align(table.set_index("id"), data.ids)["x"].tolist() == [3, 1, 2]
    assert align(pd.Series([7, 8, 9], name="x"), data.ids)["x"].tolist() == [7, 8, 9]
    assert align([7, 8, 9], data.ids)["x1"].tolist() == [7, 8, 9]
    numbered = Sequences.from_codes([[0], [1]], ids=["1", "2"])
    assert align({"id": [2, 1], "x": [5, 6]}, numbered.ids)["x"].tolist() == [6, 5]
    with pytest.raises(ValueError, match="2 rows of covariates for 3 patients"):
        align(pd.DataFrame({"x": [1, 2]}), data.ids)
    with pytest.raises(ValueError, match="several rows for 'a'"):
        align(pd.DataFrame({"id": ["a", "a"], "x": [1, 2]}), data.ids)
    with pytest.raises(ValueError, match="no patient has covariates"):
        align(pd.DataFrame({"id": ["x", "y"], "x": [1, 2]}), data.ids)


def test_formulas() -> None:
    frame = pd.DataFrame(
        {
            "sex": pd.Categorical(["w", "m", "w", "m"] * 5, ["w", "m"]),
            "age": np.arange(20.0),
            "a b": np.arange(20) % 3,
        }
    )
    one = np.ones(20)

    def columns(formula: str | None) -> list[str]:
        return learn(frame, formula, one).columns[1:]

    assert columns(None) == ["sex[m]", "age", "a b"]
    assert columns("~ 1 + sex") == ["sex[m]"]
    assert columns("sex * age") == ["sex[m]", "age", "sex[m]:age"]
    assert columns("age + C(`a b`)") == ["age", "a b[1]", "a b[2]"]
    crossed = learn(frame, "sex:age + sex + age", one)
    matrix = crossed.matrix(frame)
    assert crossed.term_of == ["(Intercept)", "sex", "age", "sex:age"]
    np.testing.assert_array_equal(matrix[:, 3], matrix[:, 1] * matrix[:, 2])
    assert Design.from_dict(crossed.to_dict()) == crossed
    back = crossed.standardised(matrix) @ np.linalg.inv(crossed.back)  # columns as given
    np.testing.assert_allclose(back, matrix, atol=1e-9)
    assert learn(frame.assign(age=frame["age"].astype(object)), "age", one).columns[1:] == ["age"]
    nullable = pd.DataFrame({"n": pd.array([1, 2, 4] * 4, dtype="Int64")})
    assert learn(nullable, None, np.ones(12)).columns[1:] == ["n"]
    for formula in ("log(age)", "age - 1", "weight", "age:age", ""):
        with pytest.raises(ValueError, match="formula"):
            columns(formula)


def test_sandwich_errors_are_the_default_of_effects_too() -> None:
    robust = MODEL.coefficient_table(DATA, TABLE, information="sandwich")
    pd.testing.assert_frame_equal(MODEL.coefficient_table(DATA, TABLE), robust)
    spread = MODEL.coefficient_covariance(DATA, TABLE)
    np.testing.assert_allclose(np.sqrt(np.diagonal(spread)), robust["se"])
    tests = [MODEL.term_tests(DATA, TABLE, **kind) for kind in ({}, {"information": "sandwich"})]  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(*tests)
    other = MODEL.coefficient_table(DATA, TABLE, information="observed")
    assert (np.abs(other["se"] / robust["se"] - 1) > 1e-4).any()


def test_weights_count_as_repeats() -> None:
    weights = np.random.default_rng(7).choice([0.0, 1.0, 2.0], len(DATA))
    model = MixtureMarkov(2, seed=1, n_init=8).fit(DATA, weights, covariates=TABLE)
    repeated = np.repeat(np.arange(len(DATA)), weights.astype(int))
    data = Sequences.from_codes(DATA.codes[repeated], DATA.states)
    table = TABLE.iloc[repeated].reset_index(drop=True)
    again = MixtureMarkov(2, init=model.params_, tol=1e-9).fit(data, covariates=table)
    assert again.loglik_ == pytest.approx(model.loglik_, abs=1e-4)
    a = model.coefficient_table(DATA.reweight(weights), TABLE, information="observed")
    b = again.coefficient_table(data, table, information="observed")
    np.testing.assert_allclose(a["se"], b["se"], rtol=1e-3)


@pytest.mark.slow
def test_intervals_of_odds_ratios_cover() -> None:
    """Over 200 samples of 500 patients; the truth is that of `drawn`."""
    truth = np.array([-0.3 - 6.0, 0.8, 0.1])
    covered = []
    for seed in range(200):
        data, table = drawn(500, 1000 + seed)
        start = MarkovParams([0.5, 0.5], CHAINS.initial, CHAINS.transition)
        model = MixtureMarkov(2, init=start).fit(data, covariates=table)
        effects = model.coefficient_table(data, table)
        sign = larger_is_second(model)
        low, high = np.sort([sign * effects["low"], sign * effects["high"]], axis=0)
        covered.append((low <= truth) & (truth <= high))
    share = np.mean(covered, axis=0)
    assert share.mean() == pytest.approx(0.95, abs=0.03)
    assert share.min() > 0.89
