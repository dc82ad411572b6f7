"""The third step: peers' numbers, hand numbers, coverage, and what is refused."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from paths import PEERS

import mmlca
from mmlca.model.outcomes import Row, wald_tests

# most classes here overlap on purpose; one test is about the warning
pytestmark = pytest.mark.filterwarnings("ignore:the classes overlap")

CHAINS = mmlca.MarkovParams(
    [0.5, 0.3, 0.2],
    [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]],
    [
        [[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.4, 0.1, 0.5]],
        [[0.4, 0.5, 0.1], [0.1, 0.8, 0.1], [0.1, 0.5, 0.4]],
        [[0.4, 0.1, 0.5], [0.1, 0.4, 0.5], [0.1, 0.1, 0.8]],
    ],
)


@pytest.fixture(scope="module")
def peer() -> tuple[pd.DataFrame, np.ndarray, dict[str, dict[str, list[list[float]]]]]:
    if not (PEERS / "stepmix_three_step.csv").exists():
        pytest.skip("no reference data beside the checkout")
    frame = pd.read_csv(PEERS / "stepmix_three_step.csv")
    values = json.loads((PEERS / "stepmix_three_step.json").read_text())
    return frame, frame[[f"posterior{k}" for k in range(3)]].to_numpy(), values


@pytest.mark.parametrize("correction", [None, "BCH", "ML"])
@pytest.mark.parametrize("assignment", ["modal", "proportional"])
def test_the_estimates_are_those_of_stepmix(peer, assignment: str, correction: str | None) -> None:
    frame, posterior, values = peer
    ending = f"|{assignment.replace('proportional', 'soft')}|{correction}"
    if f"binary{ending}" not in values:
        pytest.skip("the peer has no value")
    options = {"correction": correction, "assignment": assignment}
    for name, key in (("continuous", "means"), ("binary", "pis")):
        reference = f"{name}_var{ending}" if name == "continuous" else name + ending
        found = mmlca.three_step(posterior, frame[name], **options)
        assert found["estimate"].tolist() == pytest.approx(
            np.ravel(values[reference][key]), abs=5e-6
        )
    found = mmlca.three_step(posterior, covariates=frame[["z1", "z2"]], **options)
    beta = np.array(values[f"covariate{ending}"]["beta"])
    assert found["estimate"].tolist() == pytest.approx((beta - beta[0])[1:].ravel(), abs=3e-5)


def test_without_errors_all_corrections_are_plain_means() -> None:
    rng = np.random.default_rng(1)
    group = np.repeat([0, 1, 2], [30, 20, 10])
    y = group + rng.normal(size=60)
    for correction in (None, "BCH", "ML"):
        found = mmlca.three_step(np.eye(3)[group], y, correction=correction)
        means = [y[group == k].mean() for k in range(3)]
        se = [y[group == k].std() / np.sqrt((group == k).sum()) for k in range(3)]
        assert found["estimate"].tolist() == pytest.approx(means)
        assert found["se"].tolist() == pytest.approx(se, rel=1e-6)
        assert found["patients"].tolist() == [30, 20, 10]


def test_bch_by_hand() -> None:
    # Two classes; nine in ten of each are given the right one, so that assigned means of
    # 1.2 and 2.8 come from true means of 1 and 3: 1.2 = 0.9·1 + 0.1·3.
    posterior = np.array([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50)
    y = np.repeat([1.2, 2.8], 50)
    found = mmlca.three_step(posterior, y + np.tile([-0.1, 0.1], 50))
    assert found["estimate"].tolist() == pytest.approx([1.0, 3.0])
    assert found.errors.to_numpy().tolist() == pytest.approx(np.array([[0.9, 0.1], [0.1, 0.9]]))
    pair = found.tests.set_index("test").loc["class 2 − class 1"]
    assert pair["estimate"] == pytest.approx(2.0)
    overall = found.tests.set_index("test").loc["all equal"]
    assert overall["statistic"] == pytest.approx((pair["estimate"] / pair["se"]) ** 2)


def test_without_correction_regressions_are_those_of_statsmodels() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(2)
    n = 400
    group, z = rng.integers(3, size=n), rng.normal(size=n)
    frame = pd.DataFrame({"z": z, "sex": rng.choice(["F", "M"], n)})
    posterior = np.eye(3)[group]
    y = group + 0.5 * z + rng.normal(size=n)
    sick = rng.random(n) < 1 / (1 + np.exp(0.5 - 0.4 * group - 0.7 * z))
    x = np.column_stack([z, frame["sex"] == "M"])
    full = np.column_stack([posterior, x - x.mean(axis=0)])
    line = sm.OLS(y, full).fit(cov_type="HC0")
    found = mmlca.three_step(posterior, y, frame, correction=None)
    assert found["term"].tolist() == ["mean"] * 3 + ["z", "sex[M]"]
    assert found["estimate"].tolist() == pytest.approx(line.params)
    assert found["se"].tolist() == pytest.approx(line.bse, rel=1e-5)
    logit = sm.GLM(sick, full, family=sm.families.Binomial()).fit(cov_type="HC0")
    found = mmlca.three_step(posterior, sick, frame, correction=None)
    assert found["estimate"].tolist() == pytest.approx(logit.params, abs=1e-6)
    assert found["se"].tolist() == pytest.approx(logit.bse, rel=1e-4)
    many = sm.MNLogit(group, sm.add_constant(x)).fit(disp=0, cov_type="HC0")
    found = mmlca.three_step(posterior, covariates=frame, correction=None)
    assert found["estimate"].tolist() == pytest.approx(many.params.T.ravel(), abs=1e-5)
    assert found["se"].tolist() == pytest.approx(many.bse.T.ravel(), rel=1e-3)


def test_a_categorical_outcome_and_binary_agree() -> None:
    rng = np.random.default_rng(3)
    p = rng.dirichlet([1, 1], size=300)
    level = pd.Series(rng.choice(["a", "b", "c"], 300))
    for correction in ("BCH", "ML"):
        found = mmlca.three_step(p, level, correction=correction).set_index(["class", "term"])
        assert set(found.index.get_level_values("term")) == {"share of b", "share of c"}
        if correction == "BCH":  # each category is then a binary outcome of its own
            alone = mmlca.three_step(p, level == "b")
            of_b = found.xs("share of b", level="term")
            assert of_b["estimate"].tolist() == pytest.approx(alone["estimate"])
            assert of_b["se"].tolist() == pytest.approx(alone["se"], rel=1e-6)
    both = mmlca.three_step(p, level, pd.DataFrame({"z": rng.normal(size=300)}), correction="ML")
    assert np.isfinite(both["se"]).all()
    assert len(both) == 2 * (2 + 1)


def test_shares_of_nobody_have_exact_limits() -> None:
    group = np.repeat([0, 1], 20)
    found = mmlca.three_step(np.eye(2)[group], np.where(group, np.arange(40) % 2, 0))
    assert found["high"][0] == pytest.approx(1 - 0.025 ** (1 / 20))
    assert found["low"][0] == 0
    overlapping = np.where(np.eye(2)[group] > 0, 0.7, 0.3)
    with pytest.warns(UserWarning, match="shares of class 1 are not between 0 and 1"):
        mmlca.three_step(overlapping, np.where(group, np.arange(40) % 2, 0))


def test_weights_count_like_repeated_patients() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet([2, 1], size=80)
    y, w = rng.normal(size=80), rng.integers(1, 4, size=80)
    for correction in ("BCH", "ML"):
        once = mmlca.three_step(p, y, correction=correction, weights=w)
        again = mmlca.three_step(np.repeat(p, w, axis=0), np.repeat(y, w), correction=correction)
        assert once["estimate"].tolist() == pytest.approx(again["estimate"], abs=1e-6)


def test_ids_are_matched_and_missing_outcomes_counted() -> None:
    rng = np.random.default_rng(5)
    ids = [f"p{i}" for i in range(60)]
    p = pd.DataFrame(rng.dirichlet([1, 1], size=60), ids, ["A", "B"])
    y = pd.Series(rng.normal(size=60), ids)
    shuffled = y.sample(frac=1, random_state=1)
    assert mmlca.three_step(p, shuffled).equals(mmlca.three_step(p, y))
    with pytest.warns(UserWarning, match="the outcome is missing for 10 of 60"):
        found = mmlca.three_step(p, y[10:])
    assert found["patients"].sum() == 50
    assert found["class"].tolist() == ["A", "B"]


def test_clusters_given_by_another_rule() -> None:
    """Labels worse than modal ones: their errors are larger, and corrected all the same."""
    rng = np.random.default_rng(6)
    n = 20_000
    second = rng.beta(0.5, 0.5, size=n)
    truth = rng.random(n) < second
    label = np.where(rng.random(n) < 0.8, second > 0.5, rng.random(n) < 0.5).astype(int) + 1
    y = truth * 2 + rng.normal(size=n)
    p = np.column_stack([1 - second, second])
    plain = mmlca.three_step(p, y, correction=None, assignment=label)["estimate"]
    found = mmlca.three_step(p, y, assignment=label)
    assert plain.iloc[1] < 1.6
    assert found["estimate"].tolist() == pytest.approx([0, 2], abs=0.08)


def test_shifted_classes_are_reported() -> None:
    """An outcome with two groups of its own takes the classes over."""
    rng = np.random.default_rng(7)
    second = rng.beta(1.5, 1.5, size=2_000)
    y = np.where(rng.random(2_000) < 0.35 + 0.3 * second, 0, 8) + rng.normal(size=2_000)
    p = np.column_stack([1 - second, second])
    with pytest.warns(UserWarning, match="the classes shift"):
        found = mmlca.three_step(p, y, correction="ML")
    assert found.moved > 0.2
    assert abs(mmlca.three_step(p, y)["estimate"].diff().iloc[1]) < 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": None}, "give an outcome, covariates, or both"),
        ({"correction": "bch"}, "correction must be one of"),
        ({"assignment": "soft"}, "assignment must be one of"),
        ({"assignment": [1, 2, 9]}, "labels that are not classes"),
        ({"posterior": [[0.5, 0.2]] * 3}, "add up to 1"),
        ({"posterior": [1.0, 0.0, 0.0]}, "one row per patient"),
        ({"outcome": [1.0, 2.0]}, "found 2 values of outcome for 3 patients"),
        ({"outcome": ["a", "a", "a"]}, "single value"),
        ({"outcome": [1.0, np.inf, 0.5]}, "infinite"),
        ({"covariates": pd.DataFrame({"z": [1, 1, 1]})}, "the same for all patients"),
        ({"posterior": [[0.5, 0.5]] * 3}, "fewer than 2 patients"),
        ({"sequences": [[0]]}, "belong to a model"),
        ({"posterior": mmlca.MixtureMarkov(2)}, "sequences= is needed"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    given = {"posterior": [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]], "outcome": [1.0, 2.0, 3.0]}
    with pytest.raises((ValueError, TypeError), match=message):
        mmlca.three_step(**(given | change))


def test_classes_that_cannot_be_told_apart_are_refused() -> None:
    label = np.arange(40) % 3 + 1
    with pytest.raises(ValueError, match="not separated"):
        mmlca.three_step(np.tile([[0.4, 0.3, 0.3]], (40, 1)), np.arange(40.0), assignment=label)


def test_a_covariate_that_determines_the_class_is_refused() -> None:
    group = np.repeat([0, 1], 30)
    with pytest.raises(ValueError, match="no finite solution"):
        mmlca.three_step(np.eye(2)[group], covariates=pd.DataFrame({"z": group * 1.0}))


def _estimates(seed: int, n: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates and standard errors of BCH with and without the model, aligned to the truth."""
    sequences, truth = mmlca.simulate(CHAINS, n, length, seed=seed)
    y = np.array([0.0, 1.0, 2.0])[truth] + np.random.default_rng(seed).normal(size=n)
    model = mmlca.MixtureMarkov(3, init=CHAINS, tol=1e-5).fit(sequences)
    with_model = mmlca.three_step(model, y, sequences=sequences)
    alone = mmlca.three_step(model.predict_proba(sequences), y)
    order = np.argsort(with_model["estimate"].to_numpy())
    columns = [with_model["estimate"], with_model["se"], alone["se"]]
    return tuple(column.to_numpy()[order] for column in columns)  # type: ignore[return-value]


def test_the_model_adds_uncertainty() -> None:
    _, full, alone = _estimates(1, 600, 6)
    assert (full > alone).all()


@pytest.mark.slow
def test_intervals_cover_where_classes_overlap() -> None:
    """At an entropy R² of about .64, of the means of all classes; without the model they do not."""
    found = np.array([_estimates(seed, 800, 6) for seed in range(150)])
    error = np.abs(found[:, 0] - [0, 1, 2])
    assert (error <= 1.96 * found[:, 1]).mean(axis=0).min() >= 0.91  # 93 % but for chance
    assert (error <= 1.96 * found[:, 2]).mean(axis=0).min() < 0.85


@pytest.mark.slow
def test_intervals_of_bch_means_cover() -> None:
    """With the model's uncertainty 95 % intervals cover; without it they do not."""
    found = np.array([_estimates(seed, 1_500, 10) for seed in range(200)])
    error = np.abs(found[:, 0] - [0, 1, 2])
    full = (error <= 1.96 * found[:, 1]).mean(axis=0)
    alone = (error <= 1.96 * found[:, 2]).mean(axis=0)
    assert (full > 0.90).all()
    assert (full < 0.985).all()
    assert (alone <= full).all()


def test_memberships_without_their_model_are_a_warning_where_classes_overlap() -> None:
    sequences, truth = mmlca.simulate(CHAINS, 400, 4, seed=1)
    model = mmlca.MixtureMarkov(3, init=CHAINS, tol=1e-4).fit(sequences)
    posterior, y = model.predict_proba(sequences), truth.to_numpy() * 1.5
    with pytest.warns(UserWarning, match=r"the classes overlap \(entropy R² 0\.\d\d, below 0\.7\)"):
        mmlca.three_step(posterior, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mmlca.three_step(posterior, y, correction=None)  # nothing is corrected
        found = mmlca.three_step(model, y, sequences=sequences)  # its uncertainty is known
    again = mmlca.three_step(model, y, sequences=sequences)
    pd.testing.assert_frame_equal(pd.DataFrame(again), pd.DataFrame(found))


def test_what_cannot_be_compared_is_said_in_a_sentence() -> None:
    rng = np.random.default_rng(1)
    group = np.repeat([0, 1], 40)
    p = np.where(np.eye(2)[group] > 0, 0.95, 0.05)
    with pytest.raises(ValueError, match=r"single value 2\.5"):
        mmlca.three_step(p, np.full(80, 2.5), correction="ML")
    with pytest.raises(ValueError, match="without columns"):
        mmlca.three_step(p, covariates=pd.DataFrame(index=range(80)))
    z = np.where(np.arange(80) % 40 == 0, 1 - group, group) * 1.0  # fewer errors than expected
    with pytest.warns(UserWarning, match="separates classes"):
        mmlca.three_step(p, covariates=pd.DataFrame({"z": z}), correction="ML")
    codes = np.where(rng.random((80, 6)) < 0.8, group[:, None], 1 - group[:, None])
    data = mmlca.Sequences.from_codes(codes, ["a", "b"])
    frame = pd.DataFrame({"x": rng.normal(size=80)})
    model = mmlca.MixtureMarkov(2, n_init=2, seed=1).fit(data, covariates=frame)
    with pytest.raises(ValueError, match="give its memberships in its place"):
        mmlca.three_step(model, frame["x"], sequences=data)


def test_one_class_alone_is_compared_with_nothing() -> None:
    """Between sites the estimates of all other classes may be hidden."""
    tests = wald_tests([Row("1", "share of x", 0)], np.array([0.2]), np.eye(1))
    assert tests.empty
    assert "p_holm" in tests
