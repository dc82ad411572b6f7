"""The engine against enumeration, hand-computed numbers and recorded values of seqHMM."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    brute_force,
    needs_peers,
    peer,
    random_params,
    recorded,
    start_of,
    updated,
)

from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model import em, search


@st.composite
def tiny(draw: st.DrawFn) -> tuple[Sequences, MarkovParams]:
    """Few states and short sequences with gaps anywhere, and parameters to go with them."""
    n_states, n_classes = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    n, n_times = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    codes = np.array(
        [
            [draw(st.integers(-1, n_states - 1)) for _ in range(n_times - 1)]
            + [draw(st.integers(0, n_states - 1))]
            for _ in range(n)
        ]
    )
    for row, cut in enumerate(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))):
        if cut and (codes[row, :-cut] >= 0).any():
            codes[row, -cut:] = -1
    weights = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=n, max_size=n))
    weights[0] = 1.0
    sequences = Sequences.from_codes(codes, range(n_states), weights=weights)
    return sequences, random_params(n_classes, n_states, draw(st.integers(0, 10**6)))


@given(tiny())
@settings(max_examples=150)
def test_likelihood_posterior_and_counts_by_enumeration(
    case: tuple[Sequences, MarkovParams],
) -> None:
    s, p = case
    expected = brute_force(s.codes, p, s.weights)
    step = em.e_step(s.patterns, p)
    inverse = s.patterns.inverse
    assert step.logliks[inverse] == pytest.approx(expected["logs"], rel=1e-12, abs=1e-12)
    assert step.posterior[inverse] == pytest.approx(expected["posterior"], abs=1e-12)
    visits = step.visits.reshape(p.n_classes, p.n_states + 1, p.n_states)
    assert visits[:, :-1] == pytest.approx(expected["transition"], abs=1e-10)
    assert visits[:, -1] == pytest.approx(expected["initial"], abs=1e-10)


@pytest.mark.filterwarnings("ignore:no patient is observed before")
@given(tiny())
@settings(max_examples=60)
def test_one_update_by_enumeration(case: tuple[Sequences, MarkovParams]) -> None:
    s, p = case
    expected = updated(brute_force(s.codes, p, s.weights))
    model = MixtureMarkov(p.n_classes, init=p, prior=0, max_iter=1, tol=0).fit(s)
    order = np.argsort(-expected.weights, kind="stable")
    assert model.params_.weights == pytest.approx(expected.weights[order], abs=1e-12)
    if len(np.unique(expected.weights.round(9))) == p.n_classes:
        assert model.params_.initial == pytest.approx(expected.initial[order], abs=1e-9)
        assert model.params_.transition == pytest.approx(expected.transition[order], abs=1e-9)


def test_one_update_by_hand() -> None:
    # Two patients, A A and B B, two classes that lean to A and to B. Under class 0 they have
    # probability .5·.8·.9 = .36 and .5·.2·.6 = .06, under class 1 .5·.3·.5 = .075, .5·.7·.8 = .28.
    p = MarkovParams(
        [0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], [[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.2, 0.8]]]
    )
    s = Sequences.from_lists([["A", "A"], ["B", "B"]])
    model = MixtureMarkov(2, init=p, prior=0, max_iter=1, tol=0).fit(s)
    assert model.loglik_path_[0] == pytest.approx(np.log(0.36 + 0.075) + np.log(0.06 + 0.28))
    a, b = 0.36 / 0.435, 0.06 / 0.34
    assert model.params_.weights == pytest.approx([(a + b) / 2, 1 - (a + b) / 2])
    assert model.params_.initial[0] == pytest.approx([a / (a + b), b / (a + b)])
    assert model.params_.transition[0] == pytest.approx(np.eye(2))
    assert len(model.loglik_path_) == 2
    assert model.loglik_ == pytest.approx(model.score(s) * 2)


@pytest.mark.filterwarnings("ignore:no patient is observed before")
@given(tiny(), st.booleans(), st.sampled_from([0, 1e-4, 0.5]))
@settings(max_examples=80)
def test_the_path_never_falls(
    case: tuple[Sequences, MarkovParams], accelerate: bool, prior: float
) -> None:
    s, p = case
    model = MixtureMarkov(
        p.n_classes, init=p, prior=prior, accelerate=accelerate, max_iter=40, tol=0
    ).fit(s)
    steps = np.diff(model.penalised_path_)
    assert steps.min() >= -1e-9
    assert len(model.penalised_path_) == 41
    for array in (model.params_.weights, model.params_.initial, model.params_.transition):
        assert np.isfinite(array).all()
    if prior == 0:
        assert (model.loglik_path_ == model.penalised_path_).all()
    assert model.loglik_ == pytest.approx(model.score(s) * s.weights.sum(), abs=1e-9)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_information_criteria_of_seqhmm(k: int) -> None:
    """Degrees of freedom, AIC and BIC by time points, from the log-likelihood alone."""
    case = recorded(f"mvad_K{k}")
    end = case["converged"]
    params = MarkovParams(*(end["params"][name] for name in ("weights", "initial", "transition")))
    s, _ = simulate(params, 200, 10, states=case["states"], seed=1)
    stored = MixtureMarkov(k, init=start_of(case), max_iter=0, tol=0).fit(s).to_dict()
    assert stored["n_cells"] == end["df_seqhmm"]
    model = MixtureMarkov.from_dict(
        stored | {"loglik": end["logLik"], "n_timepoints": float(end["nobs_seqhmm"])}
    )
    criteria = model.criteria("timepoints", all_cells=True)
    assert criteria["aic"] == pytest.approx(end["AIC_seqhmm"], abs=1e-6)
    assert criteria["bic"] == pytest.approx(end["BIC_seqhmm"], abs=1e-6)


@needs_peers
@pytest.mark.parametrize("k", [2, 3, 4])
def test_seqhmm_after_1_and_5_updates_and_at_convergence(k: int) -> None:
    case = recorded(f"mvad_K{k}")
    s = peer("mvad", states=case["states"])

    def run(max_iter: int, tol: float = 0, accelerate: bool = False) -> MixtureMarkov:
        return MixtureMarkov(
            k,
            init=start_of(case),
            prior=0,
            max_iter=max_iter,
            tol=tol,
            accelerate=accelerate,
        ).fit(s)

    assert run(0).loglik_ == pytest.approx(case["logLik_start"], abs=1e-6)
    assert run(1).loglik_ == pytest.approx(case["logLik_after_1_update"], abs=1e-6)
    assert run(5).loglik_ == pytest.approx(case["logLik_after_5_updates"], abs=1e-6)
    end = case["converged"]
    model = run(5_000, 1e-9)
    # seqHMM stops on a tiny relative gain; where a plateau follows, going on finds a little more
    assert end["logLik"] - 1e-6 <= model.loglik_ <= end["logLik"] + 0.5
    assert model.n_parameters_ <= model.n_cells_ == end["df_seqhmm"]
    assert model.n_timepoints_ == end["nobs_seqhmm"]
    if model.loglik_ < end["logLik"] + 1e-5:
        criteria = model.criteria("timepoints", all_cells=True)
        assert criteria["bic"] == pytest.approx(end["BIC_seqhmm"], abs=1e-3)
        assert criteria["aic"] == pytest.approx(end["AIC_seqhmm"], abs=1e-3)
        order = np.argsort(-np.array(end["params"]["weights"]))
        for name in ("weights", "initial", "transition"):
            expected = np.array(end["params"][name])[order]
            assert getattr(model.params_, name) == pytest.approx(expected, abs=2e-3)
    fast = run(5_000, 1e-9, accelerate=True)
    assert fast.loglik_ > end["logLik"] - 0.1
    assert fast.n_iter_ < model.n_iter_


@needs_peers
def test_missing_values_are_marginalised_as_seqhmm_does() -> None:
    """The same sequences with and without gaps: a gap costs likelihood, never the fit."""
    whole, gaps = peer("biofam_covariates"), peer("biofam_missing_gaps")
    with_gaps = MixtureMarkov(2, seed=1, n_init=12).fit(gaps)
    without = MixtureMarkov(2, seed=1, n_init=12).fit(whole)
    assert with_gaps.loglik_ > without.loglik_
    agreement = np.mean(with_gaps.predict(gaps) == without.predict(whole))
    assert max(agreement, 1 - agreement) > 0.9


@needs_peers
@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_best_known_maximum_is_reached(k: int) -> None:
    best = recorded(f"mvad_K{k}")["best_known_logLik"]
    s = peer("mvad")
    for seed in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # K = 4: found once, and says so
            model = MixtureMarkov(k, seed=seed).fit(s)
        assert model.loglik_ > best - 0.05


def gain_of_going_on(model: MixtureMarkov, s: Sequences) -> float:
    """What 3,000 more plain updates add to the penalised log-likelihood."""
    further = MixtureMarkov(
        model.n_classes, init=model.params_, prior=model.prior, accelerate=False, max_iter=3_000,
        tol=0,
    ).fit(s)  # fmt: skip
    return float(further.penalised_path_[-1] - further.penalised_path_[0])


@pytest.mark.parametrize(("k", "n_states", "n", "n_times"), [(4, 5, 300, 8), (5, 4, 300, 6)])
def test_an_accelerated_run_does_not_stop_on_a_plateau(
    k: int, n_states: int, n: int, n_times: int
) -> None:
    """Tiny cells that grow for hundreds of updates before the log-likelihood shows it."""
    seed = 1 if k == 4 else 3
    s, _ = simulate(random_params(k, n_states, seed), n, n_times, seed=seed)
    for start in range(12):
        model = MixtureMarkov(
            k, init=random_params(k, n_states, 100 + start), prior=0, max_iter=20_000
        ).fit(s)
        assert model.converged_
        assert gain_of_going_on(model, s) < 1e-4


@needs_peers
def test_accelerated_runs_from_random_values_end_at_maxima() -> None:
    s = peer("biofam_covariates")
    for start in range(12):
        model = MixtureMarkov(
            4, init=random_params(4, s.n_states, start), prior=0, max_iter=20_000
        ).fit(s)
        assert model.converged_
        assert gain_of_going_on(model, s) < 1e-4


def test_an_accelerated_run_passes_the_test_that_a_plain_one_must_pass() -> None:
    """The last updates are plain: their gains and the gains to come are below the tolerance."""
    s, _ = simulate(random_params(3, 4, 7), 400, 8, seed=7)
    for start in range(6):
        model = MixtureMarkov(3, init=random_params(3, 4, start), tol=1e-5).fit(s)
        gains = np.diff(model.penalised_path_)[-11:]
        ratio = gains[1:] / gains[:-1]
        assert (gains < 1e-5).all()
        assert (gains[1:] * ratio < 1e-5 * (1 - ratio)).all()
        further = MixtureMarkov(3, init=model.params_, accelerate=False, tol=0, max_iter=1).fit(s)
        assert np.diff(further.penalised_path_)[0] <= gains[-1]  # it goes on as it ended


def gains_of_default_fits(names: Sequence[str], ks: Iterable[int], seeds: int) -> list[float]:
    gains = []
    for name in names:
        s = peer(name)
        for k, seed in itertools.product(ks, range(seeds)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few searches agree for large K
                gains.append(gain_of_going_on(MixtureMarkov(k, seed=seed).fit(s), s))
    return gains


@needs_peers
def test_a_few_default_fits_end_at_maxima() -> None:
    assert max(gains_of_default_fits(("mvad", "actcal", "leaves"), (2, 3), 1)) < 1e-4


@needs_peers
@pytest.mark.slow
def test_default_fits_end_at_maxima() -> None:
    names = ("mvad", "biofam_covariates", "actcal", "leaves")
    gains = gains_of_default_fits(names, range(2, 7), 5)
    assert len(gains) == 100
    assert sum(gain < 1e-4 for gain in gains) >= 99, np.sort(gains)[-3:]


def test_recovers_what_it_was_simulated_from() -> None:
    truth = MarkovParams(
        [0.6, 0.25, 0.15],
        [[0.95, 0.04, 0.01], [0.7, 0.2, 0.1], [0.5, 0.1, 0.4]],
        [
            [[0.97, 0.02, 0.01], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]],
            [[0.6, 0.35, 0.05], [0.1, 0.85, 0.05], [0.1, 0.3, 0.6]],
            [[0.6, 0.05, 0.35], [0.1, 0.6, 0.3], [0.1, 0.05, 0.85]],
        ],
    )
    s, classes = simulate(truth, 8_000, 16, seed=3)
    model = MixtureMarkov(3, seed=1).fit(s)
    assert model.params_.weights == pytest.approx(truth.weights, abs=0.02)
    assert model.params_.initial == pytest.approx(truth.initial, abs=0.04)
    # rows of rarely visited states carry the most noise
    assert model.params_.transition == pytest.approx(truth.transition, abs=0.05)
    assert (model.labels_ == classes.to_numpy()).mean() > 0.9


def test_repeating_patients_is_weighting_them() -> None:
    s, _ = simulate(random_params(2, 3, 5), 60, 8, seed=1)
    times = np.random.default_rng(1).integers(0, 4, 60)
    repeated = s.codes[np.repeat(np.arange(60), times)]
    one = MixtureMarkov(2, seed=1, n_init=12).fit(Sequences.from_codes(repeated, s.states))
    two = MixtureMarkov(2, seed=1, n_init=12).fit(s, weights=times)
    three = MixtureMarkov(2, seed=1, n_init=12).fit(s.reweight(times))
    assert two.loglik_ == three.loglik_
    assert one.loglik_ == pytest.approx(two.loglik_, abs=1e-4)
    assert one.bic() == pytest.approx(two.bic(), abs=1e-3)


@pytest.mark.parametrize("prior", [0.0, 1e-4])
@pytest.mark.parametrize("factor", [1e-5, 1e-250])
def test_small_weights_give_the_fit_of_the_patients_they_stand_for(
    prior: float, factor: float
) -> None:
    """Only ratios of small weights matter; once numpy complained of a zero-size array."""
    two = MarkovParams([0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [[[0.9, 0.1], [0.4, 0.6]]] * 2)
    s, _ = simulate(two, 60, 8, seed=1)
    times = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 1.5, 2.0], len(s))
    times /= times[times > 0].mean()
    model, small = (
        MixtureMarkov(2, prior=prior, seed=1, n_init=8).fit(s, weights=times * unit)
        for unit in (1.0, factor)
    )
    for name in ("weights", "initial", "transition"):
        np.testing.assert_allclose(
            getattr(small.params_, name), getattr(model.params_, name), atol=1e-6
        )
    assert small.loglik_ == pytest.approx(model.loglik_ * factor, rel=1e-9)
    assert small.score(s.reweight(times)) == pytest.approx(small.loglik_ / factor / times.sum())
    assert small.n_sequences_ == pytest.approx(times.sum() * factor)
    assert small.entropy() == pytest.approx(model.entropy(), abs=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the classes overlap
        errors, expected = (m.standard_errors(s.reweight(times * factor)) for m in (small, model))
    np.testing.assert_allclose(errors["low"], expected["low"], atol=1e-4)


def test_times_at_which_nobody_is_observed() -> None:
    """The likelihood sums over what may have been; once a fit raised NotImplementedError."""
    codes = np.full((50, 3), -1)
    codes[:, 2] = np.repeat([0, 1, 2], [25, 15, 10])
    s = Sequences.from_codes(codes)
    share = np.array([0.5, 0.3, 0.2])
    for k in (1, 2):
        with pytest.warns(UserWarning, match="no patient is observed before 3, .*; leave out the"):
            model = MixtureMarkov(k, prior=0, seed=1, n_init=4).fit(s)
        p = model.params_
        after = np.einsum("k,ki,kij,kjl->l", p.weights, p.initial, p.transition, p.transition)
        np.testing.assert_allclose(after, share, atol=1e-6)  # all that the data determine
        assert model.loglik_ == pytest.approx(50 * (share * np.log(share)).sum(), abs=1e-6)
        assert model.loglik_ == pytest.approx(brute_force(s.codes, p, s.weights)["logs"].sum())


def test_long_sequences_do_not_underflow() -> None:
    s, _ = simulate(random_params(2, 4, 1), 30, 3_000, seed=2)
    p = random_params(2, 4, 9)
    logs = em.e_step(s.patterns, p).logliks[s.patterns.inverse]
    row = s.codes[7]
    each = [
        np.log(p.weights[k] * p.initial[k, row[0]])
        + np.log(p.transition[k, row[:-1], row[1:]]).sum()
        for k in range(2)
    ]
    assert logs[7] == pytest.approx(np.logaddexp(*each), rel=1e-12)
    assert logs[7] < -2_000
    model = MixtureMarkov(2, seed=1, n_init=4).fit(s)
    assert np.isfinite(model.loglik_path_).all()


def test_screening_on_a_sample_finds_the_same_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    s, _ = simulate(random_params(3, 4, 2), 3_000, 10, seed=1)
    whole = MixtureMarkov(3, seed=1).fit(s)
    monkeypatch.setattr(search, "_SCREEN", 800)
    assert len(s.patterns) > 800
    sampled = MixtureMarkov(3, seed=1).fit(s)
    assert sampled.loglik_ == pytest.approx(whole.loglik_, abs=0.05)
