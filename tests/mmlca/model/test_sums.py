"""Sums over patients by class: against enumeration, and against one update of EM."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from oracle import brute_force, random_params

from mmlca import MarkovParams, MixtureMarkov, Sequences


def gappy(seed: int = 1, n: int = 12, s: int = 3) -> Sequences:
    """Short sequences with gaps anywhere, weights, and patients alike."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, s, size=(n, 5))
    codes[:, -1] = rng.integers(0, s, size=n)
    codes[-3:] = codes[:3]
    return Sequences.from_codes(codes, range(s), weights=rng.uniform(0.5, 2, n))


def one_model(params: MarkovParams, **settings: object) -> MixtureMarkov:
    model = MixtureMarkov(params.n_classes, **settings)
    model._set_params_(params, tuple(str(i) for i in range(params.n_states)))
    return model


@pytest.mark.parametrize("seed", range(4))
def test_sums_and_likelihoods_by_enumeration(seed: int) -> None:
    data, p = gappy(seed), random_params(3, 3, seed)
    expected = brute_force(data.codes, p, data.weights)
    model = one_model(p)
    total = model.statistics(data, expected["posterior"])
    assert total[:, 0] == pytest.approx(expected["members"])
    assert total[:, 1:4] == pytest.approx(expected["initial"])
    assert total[:, 4:].reshape(3, 3, 3) == pytest.approx(expected["transition"])
    logs = model.log_likelihoods(data)
    joint = np.log(p.weights) + logs
    assert np.logaddexp.reduce(joint, axis=1) == pytest.approx(expected["logs"])
    shares = np.exp(joint - expected["logs"][:, None])
    assert shares == pytest.approx(expected["posterior"])


@pytest.mark.parametrize("prior", [0.0, 0.5])
@pytest.mark.parametrize("zeros", [None, [("0", "2"), (None, "1")]])
def test_sums_give_one_update_of_em(
    prior: float, zeros: list[tuple[str | None, str]] | None
) -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 3, size=(40, 6))
    if zeros:
        codes[:, 0] = 0
        for t in range(1, 6):
            codes[:, t] = np.where((codes[:, t - 1] == 0) & (codes[:, t] == 2), 1, codes[:, t])
    data = Sequences.from_codes(codes, range(3))
    start = random_params(2, 3, 5)
    if zeros:
        initial, steps = start.initial.copy(), start.transition.copy()
        initial[:, 1], steps[:, 0, 2] = 0, 0
        start = MarkovParams(
            start.weights,
            initial / initial.sum(axis=1, keepdims=True),
            steps / steps.sum(axis=2, keepdims=True),
        )
    model = one_model(start, prior=prior, zeros=zeros)
    again = model.from_statistics(model.statistics(data, model.predict_proba(data)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        once = MixtureMarkov(2, init=start, prior=prior, zeros=zeros, max_iter=1, tol=0).fit(data)
    order = np.argsort(-again.params_.weights)
    assert again.params_.weights[order] == pytest.approx(once.params_.weights, abs=1e-12)
    assert again.class_parameters_[order] == pytest.approx(once.class_parameters_, abs=1e-12)
    assert again.get_params()["prior"] == prior


def test_one_class_fills_gaps_for_all_and_no_count_gives_even_rows() -> None:
    data, p = gappy(3), random_params(1, 3, 3)
    member = np.random.default_rng(0).dirichlet(np.ones(4), len(data))
    total = one_model(p).statistics(data, member)
    whole = one_model(p).statistics(data, np.ones((len(data), 1)))
    assert total.sum(axis=0) == pytest.approx(whole[0])
    empty = one_model(p, prior=0).from_statistics(np.zeros((2, 13)))
    assert empty.params_.transition == pytest.approx(1 / 3)
    assert empty.params_.weights == pytest.approx(0.5)


def test_distinct_patients_stand_for_all() -> None:
    data, p = gappy(4), random_params(2, 3, 4)
    model = one_model(p)
    few = model.distinct(data)
    assert len(few) < len(data)
    assert few.weights.sum() == pytest.approx(data.weights.sum())
    whole = model.statistics(data, model.predict_proba(data))
    assert model.statistics(few, model.predict_proba(few)) == pytest.approx(whole)


def test_an_impossible_step_has_no_likelihood_in_its_class() -> None:
    p = MarkovParams([0.5, 0.5], [[1, 0], [0.5, 0.5]], [np.eye(2), np.full((2, 2), 0.5)])
    logs = one_model(p).log_likelihoods(Sequences.from_codes([[0, 1]], range(2)))
    assert np.isneginf(logs[0, 0])
    assert logs[0, 1] == pytest.approx(np.log(0.25))


@pytest.mark.parametrize(
    ("membership", "words"),
    [
        (np.ones((3, 2)), "12 patients"),
        (np.ones((12, 3)), "3 classes, the model 2"),
        (-np.ones((12, 2)), "0 or more"),
        (np.ones(12), "shape"),
    ],
)
def test_memberships_that_do_not_fit(membership: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        one_model(random_params(2, 3, 1)).statistics(gappy(), membership)


@pytest.mark.parametrize(
    "total",
    [np.zeros((2, 12)), np.full((2, 13), np.nan), np.zeros(13), [[9.0] * 12 + [-1.0]] * 2],
)
def test_sums_that_do_not_fit(total: np.ndarray) -> None:
    with pytest.raises(ValueError, match="sums must"):
        one_model(random_params(2, 3, 1)).from_statistics(total)
