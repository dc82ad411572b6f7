"""Chains whose steps depend on covariates, against slow versions and independent programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp
from step_chains import draw, people, row_likelihood

import mmlca
from mmlca import InputError, MixtureMarkov, Sequences
from mmlca.model import step_inference
from mmlca.model.step_covariates import (
    StepMixture,
    StepParams,
    log_likelihoods,
    read_step_covariates,
    step_patterns,
)
from mmlca.sequences.forms import Form

DATA, CLASSES = draw(500, seed=1)
MODEL = MixtureMarkov(2, seed=1, n_init=8, transitions="age + sex").fit(DATA)
SHARED: dict[str, Any] = {"shared": "destinations"}
COMMON = SHARED | {"common_effects": True}
FORMS = [
    Form(transitions="x"),
    Form((2, 4), (), None, "x"),
    Form((2,), (3,), None, "x"),
    Form((), (3,), "destinations", "x"),
]


def by_window(n: int, n_times: int, seed: int) -> pd.DataFrame:
    """A number for each patient and window."""
    rng = np.random.default_rng(seed)
    grid = pd.MultiIndex.from_product(
        [range(1, n + 1), range(1, n_times + 1)], names=["id", "time"]
    )
    return pd.DataFrame({"x": rng.normal(size=len(grid)).round(1)}, grid).reset_index()


# --- the likelihood and the fit ----------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_the_likelihood_window_by_window(form: Form) -> None:
    rng = np.random.default_rng(2)
    n, n_times, s = 40, 7, 3
    lengths = rng.integers(1, n_times + 1, n)
    codes = rng.integers(0, s, (n, n_times))
    codes[np.arange(n_times) >= lengths[:, None]] = -1
    table = by_window(n, n_times, 1)
    data = Sequences.from_codes(codes, range(s)).with_step_covariates(table)
    design, rows = read_step_covariates(data, form, "error")
    sizes = StepParams.shapes(form, s, 1)
    vector = rng.normal(size=(2, sum(int(np.prod(shape)) for shape in sizes)))
    params = StepParams.from_vector(vector, form, s, 1)
    params.destination[..., np.arange(s), np.arange(s)] = -800
    params.destination_slopes[:] *= form.shared is None
    patterns = step_patterns(data, form, rows)
    logs = log_likelihoods(params, patterns, rows)[patterns.inverse]
    z = ((table["x"].to_numpy() - design.shift[0]) / design.scale[0]).reshape(n, n_times, 1)
    wanted = [
        [np.log(row_likelihood(row, z[i], params, form, k)) for k in range(2)]
        for i, row in enumerate(data.codes.tolist())
    ]
    np.testing.assert_allclose(logs, wanted, rtol=1e-12, atol=1e-12)


def test_one_class_is_the_multinomial_logit_of_statsmodels() -> None:
    api = pytest.importorskip("statsmodels.api")
    model = MixtureMarkov(1, prior=0, transitions="age + sex").fit(DATA)
    table = model.step_coefficients(DATA, information="observed").set_index(["from", "to", "term"])
    design = DATA.step_covariates
    assert design is not None
    columns = np.column_stack([np.ones(500), design["age"], design["sex"] == "M"])
    logs = 0.0
    for i, state in enumerate("abc"):
        patient, t = np.nonzero((DATA.codes[:, :-1] == i) & (DATA.codes[:, 1:] >= 0))
        into = DATA.codes[patient, t + 1]
        leave = api.Logit((into != i).astype(float), columns[patient]).fit(
            disp=0, tol=1e-14, maxiter=100
        )
        ours = table.loc[(state, "")]
        np.testing.assert_allclose(ours["estimate"], leave.params, atol=1e-8, rtol=1e-8)
        np.testing.assert_allclose(ours["se"], leave.bse, rtol=1e-8)
        others = [j for j in range(3) if j != i]
        first = max(others, key=lambda j: (into == j).sum())  # the most frequent is the reference
        second = next(j for j in others if j != first)
        gone = into != i
        fit = api.MNLogit((into[gone] == second).astype(int), columns[patient[gone]]).fit(
            disp=0, tol=1e-14, maxiter=100
        )
        ours = table.loc[(state, "abc"[second])]
        np.testing.assert_allclose(ours["estimate"], fit.params.ravel(), atol=1e-8, rtol=1e-8)
        np.testing.assert_allclose(ours["se"], fit.bse.ravel(), rtol=1e-8)
        logs += leave.llf + fit.llf
    share = np.bincount(DATA.codes[:, 0]) / 500
    assert model.loglik_ == pytest.approx(logs + 500 * (share * np.log(share)).sum(), abs=1e-8)


def test_more_than_two_destinations_are_the_logit_of_statsmodels() -> None:
    api = pytest.importorskip("statsmodels.api")
    data, _ = draw(800, seed=4, n_states=4)
    model = MixtureMarkov(1, prior=0, transitions="age").fit(data)
    table = model.step_coefficients(data, information="observed")
    assert data.step_covariates is not None
    age = data.step_covariates["age"].to_numpy()
    for i, state in enumerate("abcd"):
        patient, t = np.nonzero((data.codes[:, :-1] == i) & (data.codes[:, 1:] >= 0))
        into = data.codes[patient, t + 1]
        gone = into != i
        count = np.bincount(into[gone], minlength=4).astype(float)
        count[i] = -1
        order = np.argsort(-count, kind="stable")[:3]
        answer = np.array([order.tolist().index(j) for j in into[gone]])
        design = np.column_stack([np.ones(gone.sum()), age[patient[gone]]])
        fit = api.MNLogit(answer, design).fit(disp=0, tol=1e-14, maxiter=100)
        for column, j in enumerate(order[1:]):
            ours = table[(table["from"] == state) & (table["to"] == "abcd"[j])]
            np.testing.assert_allclose(ours["estimate"], fit.params[:, column], rtol=1e-8)
            np.testing.assert_allclose(ours["se"], fit.bse[:, column], rtol=1e-8)


@pytest.mark.filterwarnings("ignore:the classes overlap")
@pytest.mark.parametrize("common", [False, True])
def test_an_independent_maximiser_finds_the_same_maximum(common: bool) -> None:
    """Two states and classes, as seqHMM 2 can have them: BFGS on a likelihood by patients."""
    data, _ = draw(150, seed=6, n_states=2, n_times=8)
    assert data.step_covariates is not None
    z = (data.step_covariates["age"].to_numpy() - 60) / 10
    model = MixtureMarkov(
        2, prior=0, seed=1, tol=1e-11, transitions="age", common_effects=common
    ).fit(data)
    codes = data.codes.astype(int)

    def logliks(theta: np.ndarray) -> float:
        share, start, odds = theta[0], theta[1:3], theta[3:7].reshape(2, 2)
        slopes = np.tile(theta[7:9], (2, 1)) if common else theta[7:11].reshape(2, 2)
        joint = np.empty((150, 2))
        for k in range(2):
            total = log_expit(np.where(codes[:, 0] == 1, start[k], -start[k]))
            for t in range(7):
                now = codes[:, t]
                logit = odds[k, now] + slopes[k, now] * z
                total = total + log_expit(np.where(codes[:, t + 1] != now, logit, -logit))
            joint[:, k] = total + log_expit(share if k else -share)
        return -float(logsumexp(joint, axis=1).sum())

    p, scale = model.step_params_, model._step_design.scale[0] / 10
    shift = (model._step_design.shift[0] - 60) / 10
    slopes = p.leaving_slopes[:, :, 0] / scale
    start = np.concatenate(
        [
            [np.log(model.params_.weights[1] / model.params_.weights[0])],
            p.initial[:, 1] - p.initial[:, 0],
            (p.leaving[:, 0, 0] - slopes * shift).ravel(),
            slopes[0] if common else slopes.ravel(),
        ]
    )
    assert -logliks(start) == pytest.approx(model.loglik_, abs=1e-8)
    moved = start + np.random.default_rng(1).normal(0, 0.05, len(start))
    end = minimize(logliks, moved, method="BFGS", options={"maxiter": 2_000, "gtol": 1e-7})
    assert model.loglik_ == pytest.approx(-end.fun, abs=1e-6)
    # the reported coefficients are per year
    table = model.step_coefficients(data)
    ages = table.loc[table["term"] == "age", "estimate"].to_numpy()
    np.testing.assert_allclose(10 * ages, end.x[7:], atol=2e-4)


def test_the_path_never_falls() -> None:
    other = MixtureMarkov(
        3, seed=1, n_init=4, prior=0.5, stays=(2,), transitions="age", max_iter=60
    )
    for model in (MODEL, other.fit(DATA[:100])):
        assert np.diff(model.penalised_path_).min() > -1e-9


@pytest.mark.filterwarnings("ignore:the classes overlap")
@pytest.mark.parametrize("common", [False, True])
def test_information_is_the_curvature_of_the_log_likelihood(common: bool) -> None:
    """With a prior that counts, so that its part is tested, too."""
    model = MixtureMarkov(
        2, seed=1, prior=0.5, n_init=2, tol=1e-10, transitions="age", common_effects=common
    ).fit(DATA[:200])
    point = step_inference.StepPoint(model, model._patients_of(DATA[:200], None))
    parts = step_inference.information(point)

    def value(theta: np.ndarray) -> float:
        coefficients = point.coefficients.copy()
        n = point.n_coefficients
        coefficients[:, 1:] += theta[:n].reshape(coefficients[:, 1:].T.shape).T
        chains = point.chains.copy()
        for k in range(2):
            for block, place in zip(point.blocks, point.places[k], strict=True):
                known = place >= 0
                chains[k, block.numbers[known]] += theta[place[known]]
        mixture = StepMixture(point.rows, point.mixture.values, point.blocks, point.prior, common)
        return mixture.e_step(chains, coefficients).value

    h, size = 1e-3, point.size
    units = np.eye(size) * h
    chosen = np.random.default_rng(1).integers(size, size=(25, 2))
    wanted = (parts.observed + parts.prior) * parts.unit
    for i, j in chosen:
        up = value(units[i] + units[j]) - value(units[i] - units[j])
        down = value(units[j] - units[i]) - value(-units[i] - units[j])
        assert -(up - down) / (4 * h * h) == pytest.approx(wanted[i, j], rel=1e-4, abs=2e-3)
    gradient = [(value(u) - value(-u)) / (2 * h) for u in units]
    assert np.abs(gradient[point.n_coefficients :]).max() < 1e-2


def test_levels_of_one_covariate_are_periods() -> None:
    """A flag by window with effects of its own in each class gives what `periods` give."""
    flags = by_window(500, 12, 1)
    flags["late"] = np.where(flags["time"] >= 5, "yes", "no")
    data = DATA
    options: dict[str, Any] = {"prior": 0, "seed": 1, "tol": 1e-9}
    periods = MixtureMarkov(2, periods=(5,), **options).fit(data)
    flag = MixtureMarkov(2, transitions="late", **options).fit(
        data.with_step_covariates(flags.drop(columns="x"))
    )
    assert flag.loglik_ == pytest.approx(periods.loglik_, abs=1e-5)
    assert flag.n_parameters_ == periods.n_parameters_
    assert (flag.labels_ == periods.labels_).mean() > 0.99


def test_classes_and_effects_are_found() -> None:
    assert (MODEL.labels_ == CLASSES.to_numpy()).mean() > 0.85
    table = MODEL.step_coefficients(DATA)
    leaving = table[(table["to"] == "") & (table["term"] == "age")]
    truth = np.repeat([0.05, -0.04], 3)
    assert (np.abs(leaving["estimate"] - truth) < 4 * leaving["se"]).all()
    assert MODEL.leaving_["leaving"].between(0, 1).all()
    assert MODEL.summary().loc[1, "leaves"].endswith(MODEL.summary().loc[1, "starts with"][0])


# --- what data may be ------------------------------------------------------------------------


def test_weights_are_copies_and_the_order_does_not_matter() -> None:
    data = DATA[:150]
    options: dict[str, Any] = {"seed": 1, "n_init": 2, "transitions": "age"} | COMMON
    model = MixtureMarkov(2, **options).fit(data)
    double = MixtureMarkov(2, prior=2e-4, **options).fit(data.reweight(np.full(150, 2.0)))
    assert double.loglik_ == pytest.approx(2 * model.loglik_, rel=1e-7)
    other = data[::-1]
    np.testing.assert_allclose(
        model.predict_proba(other)[::-1], model.predict_proba(data), atol=1e-12
    )
    again = MixtureMarkov(2, n_jobs=2, **options).fit(data)
    assert np.array_equal(again.step_params_.vector, model.step_params_.vector)


def test_groups_and_covariates_of_membership() -> None:
    data, n = DATA[:300], 300
    site = np.where(np.arange(n) % 3 == 0, "A", "B")
    options: dict[str, Any] = {"seed": 1, "n_init": 2, "transitions": "age"} | COMMON
    model = MixtureMarkov(2, **options).fit(data, groups=site)
    for name in "AB":
        mean = model.predict_proba(data, groups=site)[site == name].mean(axis=0)
        np.testing.assert_allclose(model.group_weights_.loc[name], mean, atol=1e-4)
    assert model.step_coefficients(data, groups=site)["se"].notna().all()
    table = pd.DataFrame({"older": CLASSES.to_numpy()[:n] * 0.7 + people(n, 9)["age"] / 20})
    model = MixtureMarkov(2, **options).fit(data, covariates=table)
    effect = model.coefficient_table(data, table).set_index("term").loc["older"]
    assert effect["p"] < 0.01
    assert effect["se"] > 0
    assert model.term_tests(data, table).loc[0, "p"] == pytest.approx(effect["p"], rel=1e-6)
    assert model.score(data, covariates=table) * n == pytest.approx(model.loglik_)
    with pytest.raises(InputError, match="no likelihood-ratio tests of membership"):
        model.term_tests(data, table, test="lr")


def test_missing_windows_and_covariates_are_left_out_and_counted() -> None:
    codes = DATA.codes[:100].copy()
    codes[3, 4] = -1
    table = people(100, 1)
    gap = Sequences.from_codes(codes, DATA.states).with_step_covariates(table)
    with pytest.warns(UserWarning, match="2 steps of 1 of 100 patients are left out"):
        model = MixtureMarkov(1, transitions="age").fit(gap)
    flags = table.assign(age=table["age"].where(np.arange(100) != 7))
    lacking = Sequences.from_codes(DATA.codes[:100], DATA.states).with_step_covariates(flags)
    with pytest.raises(InputError, match=r"11 of 1,100 steps lack a covariate \(patients 8\)"):
        MixtureMarkov(2, transitions="age").fit(lacking)
    with pytest.raises(InputError, match="steps lack a covariate"):
        model.predict(lacking)
    with pytest.warns(UserWarning, match="11 steps of 1 of 100 patients are left out because they"):
        dropped = MixtureMarkov(1, transitions="age", missing="drop").fit(lacking)
    # as a patient of whom only the first state is known
    short = DATA.codes[:100].copy()
    short[7, 1:] = -1
    wanted = MixtureMarkov(1, transitions="age").fit(
        Sequences.from_codes(short, DATA.states).with_step_covariates(table)
    )
    assert dropped.loglik_ == pytest.approx(wanted.loglik_, abs=1e-6)


@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_absorbing_states_and_zeros() -> None:
    codes = DATA.codes[:200].copy()
    dead = np.maximum.accumulate(codes == 2, axis=1)
    codes[dead] = 2
    data = Sequences.from_codes(codes, DATA.states).absorb("c")
    data = data.with_step_covariates(people(200, 1))
    model = MixtureMarkov(2, seed=1, n_init=2, transitions="age", common_effects=True).fit(data)
    assert not model.params_.leaving[..., 2].any()
    table = model.step_coefficients(data)
    assert set(table["from"]) == {"a", "b"}
    shown = model.marginal_predictions(data, {"age": [50, 60]}, states=["c"])
    assert (shown["probability"] < 1e-300).all()
    drawn, _ = model.sample(300, 10, seed=1, step_covariates=people(300, 2))
    after = np.maximum.accumulate(drawn.codes == 2, axis=1)
    assert (drawn.codes[after] == 2).all()


def test_a_step_that_nobody_makes_has_no_effect() -> None:
    """Its probability comes from the prior; there is no coefficient to be reported as one."""
    codes = np.where(DATA.codes[:200] == 2, 1, DATA.codes[:200])
    codes[0, 0] = 2
    data = Sequences.from_codes(codes, DATA.states).with_step_covariates(people(200, 1))
    model = MixtureMarkov(1, transitions="age").fit(data)
    table = model.step_coefficients(data)
    nobody = table[(table["to"] == "c")]
    assert len(nobody)
    assert nobody["se"].isna().all()
    assert np.isfinite(model.params_.class_parameters).all()


# --- using it ----------------------------------------------------------------------------------


def test_new_patients_files_and_samples(tmp_path: Path) -> None:
    new, truth = draw(200, seed=8)
    assert (MODEL.predict(new) == truth.to_numpy()).mean() > 0.85
    swapped = Sequences.from_lists(
        [[new.states[c] for c in row] for row in new.codes], ["c", "b", "a"]
    ).with_step_covariates(new.step_covariates)
    np.testing.assert_allclose(MODEL.predict_proba(swapped), MODEL.predict_proba(new), atol=1e-12)
    MODEL.save(tmp_path / "model.json")
    loaded = MixtureMarkov.load(tmp_path / "model.json")
    assert np.array_equal(loaded.predict_proba(new), MODEL.predict_proba(new))
    assert loaded.form == MODEL.form
    pd.testing.assert_frame_equal(loaded.step_coefficients(DATA), MODEL.step_coefficients(DATA))
    stored = MODEL.to_dict()
    stored["steps"]["numbers"][0].append(1.0)
    with pytest.raises(InputError, match="2 rows of 39 numbers"):
        MixtureMarkov.from_dict(stored)
    del stored["steps"]
    with pytest.raises(InputError, match="do not fit together"):
        MixtureMarkov.from_dict(stored)
    # a sample has the frequencies that the model gives to its covariates
    table = pd.DataFrame({"age": np.full(4_000, 70.0), "sex": "F"})
    drawn, classes = loaded.sample(4_000, 5, seed=1, step_covariates=table)
    shown = loaded.marginal_predictions(DATA, {"age": 70.0, "sex": "F"}, windows=4, states=["a"])
    for k in range(2):
        mine = drawn.codes[(classes == k) & (drawn.codes[:, 0] == 0).squeeze()]
        left = (mine != 0).any(axis=1)
        wanted = shown.loc[(shown["class"] == k + 1) & (shown["to"] == ""), "probability"].item()
        assert left.mean() == pytest.approx(wanted, abs=4 * np.sqrt(0.25 / len(mine)))


def test_predictions_by_hand() -> None:
    """One class: averages over the patients of products of logistic probabilities."""
    data = DATA[:200]
    model = MixtureMarkov(1, stays=(2,), transitions="age + sex").fit(data)
    shown = model.marginal_predictions(data, {"age": [40, 60]}, windows=3, states=["b"])
    c = model.step_coefficients(data)
    leaving = c[(c["from"] == "b") & (c["to"] == "")].set_index(["term", "stay"])["estimate"]
    assert data.step_covariates is not None
    male = (data.step_covariates["sex"] == "M").to_numpy()
    for age, part in shown.groupby("age"):
        odds = leaving["age", ""] * float(str(age)) + leaving["sex[M]", ""] * male
        first = 1 / (1 + np.exp(-leaving["(Intercept)", "1"] - odds))
        later = 1 / (1 + np.exp(-leaving["(Intercept)", "2+"] - odds))
        wanted = (1 - (1 - first) * (1 - later) ** 2).mean()
        row = part.set_index("to")
        assert row.loc["", "probability"] == pytest.approx(wanted, abs=1e-9)
        assert row.loc[["a", "c"], "probability"].sum() == pytest.approx(wanted, abs=1e-9)
        assert ((row["low"] < row["probability"]) & (row["probability"] < row["high"])).all()
    young, old = (part.set_index("to")["probability"] for _, part in shown.groupby("age"))
    gap = shown[shown["age"] == 60].set_index("to")["difference"]
    np.testing.assert_allclose(gap, old - young, atol=1e-12)


def test_tests_of_terms() -> None:
    data = DATA[:250]
    options: dict[str, Any] = {"seed": 1, "n_init": 2, "tol": 1e-7, "shared": "destinations"}
    both = MixtureMarkov(2, transitions="age + sex", **options).fit(data)
    alone = MixtureMarkov(2, transitions="age", **options).fit(data)
    wald, ratio = both.step_tests(data), both.step_tests(data, test="lr")
    np.testing.assert_allclose(wald["statistic"], ratio["statistic"], rtol=0.4, atol=3)
    test = ratio.set_index("term").loc["sex"]
    assert test["statistic"] == pytest.approx(2 * (both.loglik_ - alone.loglik_), abs=1e-2)
    assert both.n_parameters_ - alone.n_parameters_ == test["df"] == 6


def test_forms_are_chosen_together() -> None:
    table = mmlca.select_n_classes(
        DATA, [1, 2], seed=1, n_init=2, forms=["plain", {"transitions": "age + sex"} | SHARED]
    )
    chosen = table.loc[table["chosen"]].iloc[0]
    assert (chosen["form"], chosen["classes"]) == (
        "by covariates (age + sex), shared destinations",
        2,
    )


# --- what cannot be ----------------------------------------------------------------------------


def test_what_cannot_be_fitted_says_so_in_a_sentence() -> None:
    data = DATA[:60]
    cases: list[tuple[Any, str, str]] = [
        (people(60, 1).assign(age=50), "age", "is the same for all steps"),
        (people(60, 1), "weight", "names 'weight', which is not a column"),
        (people(60, 1).assign(twice=lambda x: 2 * x["age"]), "age + twice", "follows from"),
        (pd.DataFrame({"u": np.arange(60).astype(str)}), "u", "60 different texts"),
    ]
    for table, formula, words in cases:
        with pytest.raises(InputError, match=words):
            MixtureMarkov(1, transitions=formula).fit(data.with_step_covariates(table))
    bare = Sequences.from_codes(data.codes, data.states)
    with pytest.raises(InputError, match="the sequences have none; give them with"):
        MixtureMarkov(1, transitions="age").fit(bare)
    many = by_window(2, 12, 1)
    for number in range(9):
        many[f"v{number}"] = np.random.default_rng(number).normal(size=24)
    with pytest.raises(InputError, match=r"30 coefficients in each class.*more than the 22 steps"):
        MixtureMarkov(1, transitions="+".join(many.columns[3:])).fit(
            data[:2].with_step_covariates(many)
        )
    with pytest.raises(InputError, match="no patient has covariates"):
        bare.with_step_covariates(people(60, 1).assign(id=[f"p{i}" for i in range(60)]))
    with pytest.raises(InputError, match="the times 99, which the sequences do not have"):
        bare.with_step_covariates(by_window(60, 12, 1).replace({"time": {3: 99}}))
    with pytest.raises(InputError, match="several rows for the same patient and time"):
        bare.with_step_covariates(by_window(60, 12, 1).replace({"time": {3: 4}}))
    with pytest.raises(InputError, match='need a column "id"'):
        bare.with_step_covariates(by_window(60, 12, 1).drop(columns="id"))
    with pytest.raises(TypeError, match="transitions must be a formula"):
        MixtureMarkov(1, transitions=["age"]).fit(data)  # type: ignore[arg-type]


def test_a_covariate_that_separates_is_named() -> None:
    """Those with the flag always leave, the others never do."""
    flag = np.arange(200) % 2
    codes = np.tile(np.arange(200)[:, None] // 2 % 2, (1, 6))
    for t in range(1, 6):
        codes[:, t] = np.where(flag == 1, 1 - codes[:, t - 1], codes[:, t - 1])
    data = Sequences.from_codes(codes, ["a", "b"]).with_step_covariates(
        pd.DataFrame({"flag": flag})
    )
    with pytest.warns(UserWarning, match=r"covariates separate steps .*\('flag in a'"):
        MixtureMarkov(1, transitions="flag").fit(data)


def test_what_there_is_not_for_such_chains_says_so() -> None:
    about = "for chains whose steps depend on covariates"
    with pytest.raises(InputError, match=about):
        MODEL.standard_errors(DATA)
    with pytest.raises(InputError, match=about):
        mmlca.bootstrap(MODEL, DATA, 5)
    with pytest.raises(InputError, match=about):
        MODEL.statistics(DATA, MODEL.predict_proba(DATA))
    with pytest.raises(InputError, match=about):
        mmlca.diagnose(MODEL, DATA, n_sim=5)
    with pytest.raises(InputError, match="so that the probability of leaving a state is the same"):
        mmlca.plot_leaving(MODEL)
    with pytest.raises(InputError, match="plain chains alone"):
        mmlca.plot_transitions(MODEL)
    with pytest.raises(InputError, match="step_covariates"):
        MODEL.sample(5)
    with pytest.raises(InputError, match="averages over covariates of the steps"):
        mmlca.simulate(MODEL.params_, 5)
    with pytest.raises(InputError, match="averages over covariates of the steps"):
        mmlca.bootstrap_lrt(DATA[:200], 2, n=2, n_init=2, transitions="age", **COMMON)
    with pytest.raises(InputError, match=about):
        mmlca.three_step(MODEL, np.arange(500.0), sequences=DATA)
    plain = MixtureMarkov(1).fit(DATA)
    with pytest.raises(InputError, match="do not depend on covariates"):
        plain.step_coefficients(DATA)
    with pytest.raises(InputError, match="do not depend on covariates"):
        plain.sample(5, step_covariates=people(5, 1))
    with pytest.raises(InputError, match="the steps do not depend on 'weight'"):
        MODEL.marginal_predictions(DATA, {"weight": [1, 2]})
    with pytest.raises(InputError, match="there is no state"):
        MODEL.marginal_predictions(DATA, {"age": [1, 2]}, states=["z"])


def test_the_figure_of_leaving_is_that_of_the_averages() -> None:
    model = MixtureMarkov(1, stays=(3,), transitions="age").fit(DATA)
    axes = mmlca.plot_leaving(model, "a")
    lines = model.leaving_.query("state == 'a'")["leaving"]
    drawn = np.asarray(axes.lines[0].get_ydata(), dtype=float)
    np.testing.assert_allclose(drawn, lines)
    plt.close("all")
