"""Chains by time in state and by period, against slow versions and independent programs."""

from __future__ import annotations

import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_params
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from stay_chains import (
    HAZARDS,
    THREE_BINS,
    log_likelihood,
    random_form_params,
    two_classes,
)

import font
import mmlca
from mmlca import InputError, MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model import em
from mmlca.model.forms import state_shares
from mmlca.model.params import FormParams
from mmlca.sequences.forms import PLAIN, Form, make_form

FORMS = [
    Form((2,)),
    Form((2, 4)),
    Form((), (3,)),
    Form((), (2, 4), "destinations"),
    Form((2,), (3,)),
    Form((3,), (2,), "destinations"),
]
DATA, TRUTH = simulate(two_classes(), 1_000, 16, seed=1)
MODEL = MixtureMarkov(2, seed=1, stays=(2, 4)).fit(DATA)


def parts(form: Form) -> dict[str, Any]:
    return form._asdict()


@st.composite
def tiny(draw: st.DrawFn) -> tuple[Sequences, FormParams]:
    """Few states and short sequences with gaps anywhere, and parameters to go with them."""
    form, n_states = draw(st.sampled_from(FORMS)), draw(st.integers(2, 3))
    n, n_times = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    codes = np.array(
        [
            [draw(st.integers(-1, n_states - 1)) for _ in range(n_times - 1)]
            + [draw(st.integers(0, n_states - 1))]
            for _ in range(n)
        ]
    )
    params = random_form_params(form, draw(st.integers(1, 5)), n_states, draw(st.integers(0, 999)))
    return Sequences.from_codes(codes, range(n_states)), params


# --- the likelihood and the fit ----------------------------------------------------------


@given(tiny())
@settings(max_examples=150)
def test_the_likelihood_window_by_window(case: tuple[Sequences, FormParams]) -> None:
    data, p = case
    patterns = data.patterns_of(p.form)
    logs = em.e_step(patterns, p).logliks[patterns.inverse]
    assert logs == pytest.approx(log_likelihood(data.codes, p), rel=1e-12, abs=1e-12)
    assert patterns.weights.sum() == len(data)


def test_steps_left_out_by_hand() -> None:
    # Windows 1 to 7 of one patient: A A ? A A B B, with the bins 1, 2 and 3+. After the gap A may
    # be in its 1st to 4th window and then in its 2nd to 5th, so neither step is known.
    data = Sequences.from_lists([["A", "A", None, "A", "A", "B", "B"]])
    table = data.patterns_of(Form((2, 3)))
    assert table.left_out == (4, 1)  # into and out of the gap, A → A and A → B after it
    assert table.token_counts.sum() == 3  # A first; A → A in window 1; B → B in window 6
    # with the bins 1 and 2+ the step from the second window after the gap is known
    assert data.patterns_of(Form((2,))).left_out == (3, 1)
    assert data.patterns_of(Form((), (3,))).left_out == (2, 1)


def test_order_of_patients_does_not_matter() -> None:
    order = np.random.default_rng(1).permutation(len(DATA))
    table, other = DATA.patterns_of(THREE_BINS), DATA[order].patterns_of(THREE_BINS)
    for name in ("indptr", "tokens", "cell", "times", "weights"):
        assert (getattr(table, name) == getattr(other, name)).all()
    assert (table.inverse[order] == other.inverse).all()
    assert DATA.reweight(np.full(len(DATA), 2.0)).patterns_of(THREE_BINS).weights.sum() == 2_000
    assert DATA.patterns_of(PLAIN) is DATA.patterns


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_one_class_has_the_frequencies(form: Form) -> None:
    data = DATA[:200]
    model = MixtureMarkov(1, prior=0, **parts(form)).fit(data)
    rows = []
    for row in data.codes.tolist():
        spent = 1
        for t in range(15):
            b, p = (
                sum(c <= n for c in cuts)
                for cuts, n in ((form.stays, spent), (form.periods, t + 1))
            )
            rows.append((row[t], b, p, row[t + 1] != row[t], row[t + 1]))
            spent = 1 if row[t + 1] != row[t] else spent + 1
    table = pd.DataFrame(rows, columns=["state", "bin", "period", "left", "to"])
    rate = table.groupby(["period", "bin", "state"])["left"].mean()
    found = pd.Series(model.params_.leaving[0].ravel(), pd.MultiIndex.from_product(
        [range(form.n_periods), range(form.n_bins), range(4)], names=rate.index.names))  # fmt: skip
    np.testing.assert_allclose(found[rate.index], rate, atol=1e-10)
    gone = table[table["left"]].assign(period=0 if form.shared else table["period"])
    share = gone.groupby(["period", "state"])["to"].value_counts(normalize=True)
    for (period, state, to), value in share.items():
        assert model.params_.destination[0, period, state, to] == pytest.approx(value, abs=1e-10)
    logs = log_likelihood(data.codes, model.params_)
    assert model.loglik_ == pytest.approx(logs.sum(), abs=1e-8)


def test_one_class_is_the_multinomial_logit_of_statsmodels() -> None:
    """The steps from one state: stay or where to, by bin and destination as a nested logit."""
    api = pytest.importorskip("statsmodels.api")
    data = DATA[:300]
    model = MixtureMarkov(1, prior=0, stays=(2, 4)).fit(data)
    logs = 0.0
    for state in range(4):
        bins, left, to = [], [], []
        for row in data.codes.tolist():
            spent = 1
            for t in range(15):
                if row[t] == state:
                    bins.append(sum(c <= spent for c in (2, 4)))
                    left.append(row[t + 1] != state)
                    to.append(row[t + 1])
                spent = spent + 1 if row[t + 1] == row[t] else 1
        design = np.eye(3)[bins]
        leave = api.Logit(np.array(left, float), design).fit(disp=0, tol=1e-14, maxiter=100)
        wanted = 1 / (1 + np.exp(-leave.params))
        assert model.params_.leaving[0, 0, :, state] == pytest.approx(wanted, abs=1e-8)
        gone = np.array(to)[left]
        others = [j for j in range(4) if j != state]
        fit = api.MNLogit(np.searchsorted(others, gone), np.ones(len(gone))).fit(
            disp=0, tol=1e-14, maxiter=100
        )
        wanted = np.exp(log_softmax(np.append(0, fit.params.ravel())))
        assert model.params_.destination[0, 0, state, others] == pytest.approx(wanted, abs=1e-8)
        logs += leave.llf + fit.llf
    first = np.bincount(data.codes[:, 0], minlength=4)
    logs += (first * np.log(first / first.sum())).sum()
    assert model.loglik_ == pytest.approx(logs, abs=1e-8)


@pytest.mark.parametrize("form", [Form((2, 4)), Form((2,), (4,), "destinations")])
def test_an_independent_maximiser_finds_the_same_maximum(form: Form) -> None:
    """Two classes, three states: BFGS on log-odds, from near the fit, ends at its likelihood."""
    truth = random_form_params(form, 2, 3, seed=4)
    data, _ = simulate(truth, 150, 8, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureMarkov(2, prior=0, seed=1, tol=1e-10, **parts(form)).fit(data)
    patterns, layout = data.patterns_of(form), data.patterns_of(form).layout
    counts, weights = patterns.token_counts.toarray(), patterns.weights

    def cells(theta: np.ndarray) -> np.ndarray:
        table = np.where(layout.closed, -np.inf, theta.reshape(2, -1))
        return np.hstack([
            log_softmax(table[:, a:b], axis=1)
            for a, b in zip(layout.bounds[:-1], layout.bounds[1:], strict=True)
        ])  # fmt: skip

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logs = np.where(layout.closed, 0.0, cells(theta[1:]))
        share = log_softmax([0.0, theta[0]])
        joint = share + counts @ logs.T
        total = logsumexp(joint, axis=1)
        posterior = np.exp(joint - total[:, None]) * weights[:, None]
        visits = posterior.T @ counts
        slope = (
            visits
            - np.exp(np.where(layout.closed, -np.inf, logs)) * layout.sums(visits)[:, layout.row]
        )
        members = posterior.sum(axis=0)
        first = members[1] - members.sum() * np.exp(share[1])
        return -float(weights @ total), -np.append(first, slope.ravel())

    start = np.log(np.maximum(em.cells_of(model.params_), 1e-6))
    start += np.random.default_rng(1).normal(0, 0.05, start.shape)
    odds = np.log(model.params_.weights[1] / model.params_.weights[0])
    end = minimize(loss, np.append(odds, start.ravel()), jac=True, method="BFGS", tol=1e-9,
                   options={"maxiter": 5_000})  # fmt: skip
    assert model.loglik_ == pytest.approx(-end.fun, abs=1e-6)


@given(tiny(), st.booleans(), st.sampled_from([0, 1e-4, 0.5]))
@settings(max_examples=60)
def test_the_path_never_falls(
    case: tuple[Sequences, FormParams], accelerate: bool, prior: float
) -> None:
    data, p = case
    patterns = data.patterns_of(p.form)
    run = em.run_em(
        patterns,
        em.cells_of(p),
        p.weights,
        em.Settings(prior, patterns.layout.closed, 40, 0.0, accelerate),
    )
    assert np.diff(run.path[:, 1]).min() >= -1e-9
    assert np.isfinite(run.cells).all()
    assert not run.cells[:, patterns.layout.closed].any()


def test_periods_alone_are_chains_of_each_period() -> None:
    """Own leaving and destinations in each period are own transition rows."""
    model = MixtureMarkov(1, prior=0, periods=(5,)).fit(DATA)
    for period, part in enumerate((slice(0, 5), slice(4, 16))):
        plain = MixtureMarkov(1, prior=0).fit(
            Sequences.from_codes(DATA.codes[:, part], DATA.states)
        )
        np.testing.assert_allclose(
            model.params_.steps[0, period, 0], plain.params_.transition[0], atol=1e-12
        )


@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_absorbing_states_and_zeros() -> None:
    codes = DATA.codes[DATA.codes[:, 0] != 3]
    dead = np.logical_or.accumulate(codes == 3, axis=1)
    data = Sequences.from_codes(np.where(dead, 3, codes), ["A", "B", "C", "dead"]).absorb("dead")
    model = MixtureMarkov(2, seed=1, stays=(2, 4), n_init=8).fit(data)
    assert not model.params_.leaving[..., 3].any()
    assert not model.params_.destination[:, :, 3].any()
    assert model.n_parameters_ == 1 + 2 * (2 + 3 * 3 + 3 * 2)  # nobody begins in "dead"
    table = model.standard_errors(data)
    assert (table.loc[table["from"] == "dead", "note"] == "fixed").all()
    again = MixtureMarkov.from_dict(model.to_dict())
    assert again.params_ == model.params_
    kept = data[~((data.codes[:, :-1] == 0) & (data.codes[:, 1:] == 1)).any(axis=1)]
    forbidden = MixtureMarkov(1, stays=(2,), zeros=[("A", "B"), (None, "dead")]).fit(
        kept[kept.codes[:, 0] != 3]
    )
    assert forbidden.params_.destination[0, 0, 0, 1] == 0 == forbidden.params_.initial[0, 3]
    with pytest.raises(InputError, match=r"steps that zeros forbids \(A → B\)"):
        MixtureMarkov(1, stays=(2,), zeros=[("A", "B")]).fit(data)


# --- what a fitted model does --------------------------------------------------------------


def test_two_classes_are_found_and_described() -> None:
    found = MODEL.params_
    order = np.argsort(-found.leaving[:, 0, 0].mean(axis=1))[::-1]
    np.testing.assert_allclose(found.leaving[order, 0].mean(axis=2), HAZARDS, atol=0.05)
    assert MODEL.n_parameters_ == 1 + 2 * (3 + 3 * 4 + 4 * 2)
    assert MODEL.class_parameters_.shape == (2, 4 + 12 + 16)
    agree = (MODEL.predict(DATA) == TRUTH).mean()
    assert max(agree, 1 - agree) > 0.9
    assert MODEL.loglik_ == pytest.approx(log_likelihood(DATA.codes, found).sum(), abs=1e-6)
    assert MODEL.score(DATA) * 1_000 == pytest.approx(MODEL.loglik_)
    summary = MODEL.summary()
    assert (summary["leaves"].str.count(" % ") == 3).all()
    assert summary["leaves"].str.match(r"\d+ % leave \d after 1 window, \d+ % after 2–3, ").all()
    assert MODEL.leaving_.columns.tolist() == ["class", "state", "stay", "period", "leaving"]
    rows = MODEL.leaving_.query("`class` == 2 and state == '1'")
    assert rows["stay"].tolist() == ["1", "2–3", "4+"]
    np.testing.assert_allclose(rows["leaving"], found.leaving[1, 0, :, 1])
    assert not hasattr(MODEL, "transition_")
    assert MODEL.destination_.loc[(1, "", "0"), "0"] == 0


def test_files(tmp_path: Any) -> None:
    for form in FORMS:
        model = MixtureMarkov(2, n_init=4, seed=1, max_iter=30, tol=0, **parts(form)).fit(DATA)
        model.save(tmp_path / "model.json")
        again = MixtureMarkov.load(tmp_path / "model.json")
        assert again.params_ == model.params_
        assert again.form == form
        np.testing.assert_array_equal(again.predict_proba(DATA), model.predict_proba(DATA))
    stored = MODEL.to_dict()
    stored["params"]["form"]["stays"] = [4, 2]
    with pytest.raises(InputError, match="stays must be increasing"):
        MixtureMarkov.from_dict(stored)
    stored["params"]["form"]["stays"] = [2]
    with pytest.raises(InputError, match=r"leaving must have the shape \(2, 1, 2, 4\)"):
        MixtureMarkov.from_dict(stored)


def test_start_values_threads_and_groups() -> None:
    again = MixtureMarkov(2, init=MODEL.params_, stays=(2, 4)).fit(DATA)
    assert again.loglik_ == pytest.approx(MODEL.loglik_, abs=1e-5)
    threads = MixtureMarkov(2, seed=1, stays=(2, 4), n_jobs=2).fit(DATA)
    assert threads.params_ == MODEL.params_
    group = np.where(np.arange(1_000) % 2, "x", "y")
    by_group = MixtureMarkov(2, seed=1, stays=(2, 4), n_init=8).fit(DATA, groups=group)
    assert by_group.loglik_ >= MODEL.loglik_ - 1e-6
    assert by_group.group_weights_.shape == (2, 2)
    assert "group weight" in set(by_group.standard_errors(DATA, groups=group)["parameter"])
    with pytest.raises(TypeError, match="init must be FormParams, found MarkovParams"):
        MixtureMarkov(2, init=random_params(2, 4, 1), stays=(2, 4)).fit(DATA)
    with pytest.raises(InputError, match=r"init is by time in state \(1, 2–3, 4\+\), the fit by"):
        MixtureMarkov(2, init=MODEL.params_, stays=(2, 3)).fit(DATA)


def test_what_the_chains_expect() -> None:
    for form in FORMS:
        p = random_form_params(form, 2, 3, seed=3)
        data, classes = simulate(p, 200_000, 7, seed=1)
        shares = state_shares(p, 7)
        assert shares.sum(axis=2) == pytest.approx(1)
        for k in range(2):
            drawn = [np.bincount(c, minlength=3) / (classes == k).sum()
                     for c in data.codes[(classes == k).to_numpy()].T]  # fmt: skip
            np.testing.assert_allclose(shares[k], drawn, atol=0.008)
        refit = MixtureMarkov(1, **parts(form)).fit(data[(classes == 0).to_numpy()])
        off = np.abs(refit.params_.leaving - p.leaving[:1])
        assert off[refit.params_.leaving != 0.5].max() < 0.03  # where somebody is


def test_standard_errors_are_those_of_the_bootstrap() -> None:
    table = MODEL.standard_errors(DATA)
    assert table["parameter"].value_counts(sort=False).to_dict() == {
        "weight": 2, "initial": 8, "leave": 24, "destination": 24,
    }  # fmt: skip
    result = mmlca.bootstrap(MODEL, DATA, 60, seed=1)
    both = table.merge(result.intervals, on=["parameter", "class", "from", "to", "stay", "period"])
    assert len(both) == len(table)
    assert (both["estimate_x"] - both["estimate_y"]).abs().max() < 1e-9
    assert (both["se_y"] / both["se_x"]).median() == pytest.approx(1, abs=0.15)
    assert (result.intervals["parameter"] == "time in state").sum() == 8
    assert result.stability["found_again"].min() > 0.9


def test_standard_errors_of_one_class_by_hand() -> None:
    model = MixtureMarkov(1, prior=0, stays=(2, 4)).fit(DATA)
    table = model.standard_errors(DATA, information="observed")
    row = table.query("parameter == 'leave' and stay == '4+' and `from` == '2'").iloc[0]
    patterns = DATA.patterns_of(THREE_BINS)
    cell = patterns.layout.context_cell(0, 2, 2)
    n = (patterns.weights @ patterns.token_counts)[[cell, cell + 1]].sum()
    assert row["se"] == pytest.approx(np.sqrt(row["estimate"] * (1 - row["estimate"]) / n))


def test_covariates_and_three_steps() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=1_000) + 0.8 * TRUTH.to_numpy()
    table = pd.DataFrame({"x": x}, index=DATA.ids)
    model = MixtureMarkov(2, seed=1, stays=(2, 4), n_init=8).fit(DATA, covariates=table)
    effect = model.coefficient_table(DATA, table).set_index("term").loc["x"]
    assert abs(effect["estimate"]) == pytest.approx(0.8, abs=0.25)
    assert model.predict(DATA, table).mean() == pytest.approx(0.5, abs=0.1)
    third = mmlca.three_step(MODEL, covariates=table, sequences=DATA)
    slope = third.query("term == 'x'")["estimate"].abs().max()
    assert slope == pytest.approx(0.8, abs=0.25)


def test_sums_by_class_give_the_model_back() -> None:
    model = MixtureMarkov(2, seed=1, stays=(2, 4), prior=0, tol=1e-9).fit(DATA)
    total = model.statistics(DATA, model.predict_proba(DATA))
    assert total.shape == (2, 1 + model.params_.form.n_bins * 8 + 16 + 4)
    again = model.from_statistics(total)
    np.testing.assert_allclose(again.params_.leaving, model.params_.leaving, atol=1e-4)
    np.testing.assert_allclose(again.log_likelihoods(DATA), model.log_likelihoods(DATA), atol=0.02)
    half = model.statistics(DATA[:400], model.predict_proba(DATA[:400]))
    rest = model.statistics(DATA[400:], model.predict_proba(DATA[400:]))
    np.testing.assert_allclose(half + rest, total)
    distinct = model.distinct(DATA)
    assert len(distinct) == len(DATA.patterns_of(THREE_BINS))
    assert model.score(distinct) == pytest.approx(model.score(DATA))


def test_bootstrap_likelihood_ratio() -> None:
    test = mmlca.bootstrap_lrt(DATA[:300], 2, n=19, seed=1, stays=(2, 4), n_init=4)
    assert test.p_value == 0.05


def test_missing_windows_are_counted_in_a_warning() -> None:
    codes = DATA.codes.copy()
    codes[0, 5] = -1
    gaps = Sequences.from_codes(codes, DATA.states)
    with pytest.warns(UserWarning, match=r"steps of 1 of 1,000 patients are left out because"):
        model = MixtureMarkov(2, seed=1, stays=(2, 4), n_init=4).fit(gaps)
    with pytest.warns(UserWarning, match="are left out because"):
        assert model.predict(gaps).shape == (1_000,)


def test_forms_are_compared_on_the_same_steps() -> None:
    codes = DATA.codes[:300].copy()
    codes[:, 1:][np.random.default_rng(1).random((300, 15)) < 0.05] = -1
    gaps = Sequences.from_codes(codes, DATA.states)
    forms: list[Any] = ["plain", {"stays": (2,)}, {"stays": (3,)}, {"periods": (5,)}]
    with pytest.warns(UserWarning, match="so that forms can be compared, all of them leave out"):
        table = mmlca.select_n_classes(gaps, [1], forms=forms).set_index("form")
    finest = Form((2, 3))
    tables = [gaps.patterns_of(make_form(**({} if f == "plain" else f)), finest) for f in forms]
    assert len({table.left_out for table in tables}) == 1
    # the same steps as transitions of one chain, by hand
    kept = [np.array(t.weights @ t.token_counts) for t in tables]
    steps = kept[0][:16].reshape(4, 4)
    rates = steps / steps.sum(axis=1, keepdims=True)
    first = kept[0][16:]
    wanted = (steps * np.log(rates)).sum() + (first * np.log(first / first.sum())).sum()
    assert table.loc["plain", "loglik"] == pytest.approx(wanted, abs=1e-3)
    for counts, layout in ((kept[1], tables[1].layout), (kept[2], tables[2].layout)):
        assert counts[: layout.first_destination].sum() == steps.sum()
    assert table.loc["by time in state (1, 2+)", "loglik"] > wanted


def test_diagnostics_of_the_right_form_find_nothing() -> None:
    checks = mmlca.diagnose(MODEL, DATA, n_sim=39, seed=1)
    assert (checks.tests["p_value"] > 0.05).all()
    stays = checks.stays
    one = stays[(stays["class"] == 1) & (stays["state"] == "0")].set_index("duration")["expected"]
    np.testing.assert_allclose(
        one.loc[[1, 2, 3, 4, 8]], MODEL.params_.leaving[0, 0, [0, 1, 1, 2, 2], 0]
    )
    steps = checks.steps.groupby(["class", "half", "from"])["expected"].sum()
    assert steps.to_numpy() == pytest.approx(1)
    assert checks.steps["residual"].abs().mean() < 1.3
    assert checks.states["residual"].abs().mean() < 1.3
    assert checks.shown(11).stays["expected"].notna().any()
    plain = mmlca.diagnose(MixtureMarkov(2, seed=1, n_init=8).fit(DATA), DATA, n_sim=39, seed=1)
    assert plain.tests.set_index("test")["p_value"]["length of stays"] < 0.05
    both = MixtureMarkov(1, stays=(2,), periods=(5,)).fit(DATA)
    late = mmlca.diagnose(both, DATA, n_sim=1, seed=1).steps
    assert late["expected"].between(0, 1).all()


def test_refining_in_one_place_is_em_with_groups() -> None:
    sites = {"A": DATA[:400], "B": DATA[400:]}
    models = {
        name: MixtureMarkov(2, seed=1, n_init=6, stays=(2, 4)).fit(data)
        for name, data in sites.items()
    }
    labels = {name: font.label(models, data) for name, data in sites.items()}
    ensemble = font.Ensemble(n_clusters=2, seed=1).fit(
        models, font.LabelPatterns.from_labels(labels)
    )
    refined = font.refine(ensemble, models, sites, rounds=150)
    group = np.repeat(["A", "B"], [400, 600])
    whole = MixtureMarkov(2, seed=1, n_init=6, stays=(2, 4)).fit(DATA, groups=group)
    order = np.argsort(-refined.params_.weights)
    np.testing.assert_allclose(refined.params_.leaving[order], whole.params_.leaving, atol=1e-3)
    np.testing.assert_allclose(
        np.asarray(refined.proportions_)[:, order], whole.group_weights_, atol=1e-3
    )


# --- forms and numbers of classes ----------------------------------------------------------


@pytest.mark.parametrize("seed", [11, *(pytest.param(s, marks=pytest.mark.slow) for s in (12, 13))])
def test_the_form_and_the_number_of_classes_are_chosen_together(seed: int) -> None:
    data, _ = simulate(two_classes(seed), 1_000, 16, seed=seed)
    table = mmlca.select_n_classes(
        data, range(1, 6), seed=1, forms=["plain", {"stays": (2, 4)}], n_init=12
    )
    by_form = table.loc[table.groupby("form")["bic"].idxmin()].set_index("form")["classes"]
    assert by_form["plain"] >= 4
    assert by_form[THREE_BINS.title] == 2
    assert table["chosen"].sum() == 1
    assert table.loc[table["chosen"], "form"].item() == THREE_BINS.title
    assert mmlca.vote(table) == 2
    words = mmlca.compare_criteria(table)
    assert words.startswith(f"BIC chooses {THREE_BINS.title} chains with 2 classes; plain chains")


def test_plain_chains_are_chosen_where_stays_are_geometric() -> None:
    two = MarkovParams(
        [0.5, 0.5], np.full((2, 3), 1 / 3), [np.eye(3) * 0.7 + 0.1, np.eye(3) * 0.1 + 0.3]
    )
    data, _ = simulate(two, 800, 14, seed=1)
    table = mmlca.select_n_classes(
        {"A": data, "B": data[:400]}, [1, 2], seed=1, forms=["plain", {"stays": (2, 4)}]
    )
    assert table.loc[table["chosen"], ["site", "form", "classes"]].to_numpy().tolist() == [
        ["A", "plain", 2], ["B", "plain", 2],
    ]  # fmt: skip
    plain = MixtureMarkov(2, seed=1).fit(data)
    row = table.query("site == 'A' and form == 'plain' and classes == 2").iloc[0]
    assert row["loglik"] == plain.loglik_
    assert row["parameters"] == plain.n_parameters_  # every cell occurs
    assert mmlca.compare_criteria(table).startswith("A: BIC chooses plain chains with 2 classes;")


def test_cells_that_do_not_occur_are_not_counted() -> None:
    """Nobody goes from A to C, or stays in C for a second window."""
    lists = [["A", "A", "B", "C", "A"], ["B", "B", "B", "A", "A"], ["B", "C", "B", "B", "B"]] * 20
    data = Sequences.from_lists(lists)
    model = MixtureMarkov(1, stays=(2,)).fit(data)
    # A always stays in its first window and leaves in a later one, and goes to B; C always leaves
    occurring = {"first states": 1, "B in window 1": 1, "B in 2+": 1, "from B": 1, "from C": 1}
    assert model.n_parameters_ == sum(occurring.values())


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stays": (4, 2)}, "stays must be increasing whole numbers from 2 to 32,767, such as 2,4"),
        ({"stays": (1, 2)}, "stays must be increasing"),
        ({"periods": (2.5,)}, "periods must be increasing"),
        ({"stays": "2,4"}, "stays must be increasing"),
        ({"stays": [10**30]}, "stays must be increasing"),
        ({"stays": [[2], [2, 4]]}, "stays must be increasing"),
        ({"periods": 2.5}, "periods must be increasing"),
        ({"stays": (2,), "shared": "destinations"}, "shared = 'destinations' is about periods"),
        ({"stays": (2,), "periods": (3,), "shared": "leaving"}, "shared must be 'destinations'"),
        ({"stays": (2, 20)}, r"stays = \(2, 20\) .* too late: nobody is in a state for 20\+"),
        ({"periods": (16,)}, r"periods = \(16,\) .* too late: nobody makes a step in 16\+"),
    ],
)
def test_bad_cut_points(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        MixtureMarkov(1, **settings).fit(DATA)


def test_more_contexts_than_steps() -> None:
    data = Sequences.from_lists([["A", "A", "B"], ["B", "A", "A"]])
    with pytest.raises(
        InputError, match=r"8 contexts \(2 states × 2 bins .* more than the 4 steps"
    ):
        MixtureMarkov(1, stays=(2,), periods=(2,)).fit(data)


def test_the_smallest_data() -> None:
    with pytest.raises(InputError, match="more than the 0 steps"):
        MixtureMarkov(1, stays=(2,)).fit(Sequences.from_lists([["A"], ["B"]]))
    one = Sequences.from_lists([["A"] * 4, ["A"] * 3])
    model = MixtureMarkov(1, stays=(2,)).fit(one)
    assert not model.params_.leaving.any()
    assert model.n_parameters_ == 0
    assert model.loglik_ == pytest.approx(0)


def test_patients_without_weight_do_not_count() -> None:
    weights = np.ones(1_000)
    weights[100:] = 0
    some = MixtureMarkov(1, stays=(2, 4)).fit(DATA[:100])
    same = MixtureMarkov(1, stays=(2, 4)).fit(DATA, weights=weights)
    assert same.loglik_ == pytest.approx(some.loglik_)
    assert same.n_parameters_ == some.n_parameters_
    np.testing.assert_allclose(same.params_.leaving, some.params_.leaving)


@pytest.mark.filterwarnings("ignore:.*are left out because")
def test_nobody_is_seen_in_the_first_window() -> None:
    codes = DATA.codes.copy()
    codes[:, 0] = -1
    with pytest.warns(UserWarning, match="first states are not known; leave out"):
        MixtureMarkov(1, stays=(2,)).fit(Sequences.from_codes(codes, DATA.states))


def test_what_is_about_plain_chains_says_so() -> None:
    with pytest.raises(InputError, match="plot_transitions draws plain chains alone"):
        mmlca.plot_transitions(MODEL)
    plt.close("all")
    with pytest.raises(InputError, match="the chains are by time in state"):
        em.e_step(DATA.patterns, MODEL.params_)
    with pytest.raises(InputError, match="stays and periods stand beside forms"):
        mmlca.select_n_classes(DATA, [1], forms=["plain"], stays=(2,))
    with pytest.raises(InputError, match="each form must be 'plain' or a dictionary"):
        mmlca.select_n_classes(DATA, [1], forms=["stays"])
    with pytest.raises(InputError, match="each of them once"):
        mmlca.select_n_classes(DATA, [1], forms=["plain", {}])


def test_parameters_are_checked() -> None:
    p = two_classes()
    given = p.to_dict()
    assert FormParams.from_dict(given) == p
    assert make_form(**given["form"]) == THREE_BINS
    for change, words in (
        ({"leaving": np.full((2, 1, 3, 4), 1.2)}, "leaving must be probabilities, found 1.2"),
        ({"leaving": np.full((2, 3, 4), 0.2)}, "leaving must have the shape"),
        ({"destination": np.full((2, 1, 4, 4), 0.25)}, "0 for the state that is left"),
        ({"destination": np.zeros((2, 1, 4, 4))}, "destination must sum to 1 in each row"),
        ({"destination": p.destination / 2}, "destination must sum to 1 .* found a sum of 0.5"),
    ):
        with pytest.raises(InputError, match=words):
            FormParams.from_dict(given | change)
    with pytest.raises(TypeError, match="form must be a Form with stays, periods or transitions"):
        FormParams(
            PLAIN, *(given[name] for name in ("weights", "initial", "leaving", "destination"))
        )
