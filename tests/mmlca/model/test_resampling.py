"""The bootstrap: resamples are weights, classes are paired, and intervals cover."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.inference import Patients, point_at
from mmlca.model.resampling import _group_alike, _jaccard, time_in_state

TWO = MarkovParams(
    [0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]]
)
DATA = simulate(TWO, 600, 12, seed=1)[0]
MODEL = MixtureMarkov(2, seed=1).fit(DATA)
RESULT = mmlca.bootstrap(MODEL, DATA, 200, seed=1)


def test_tables() -> None:
    table = RESULT.intervals
    assert table.columns.tolist() == [
        "parameter", "class", "from", "to", "estimate", "se", "low", "high",
    ]  # fmt: skip
    assert len(table) == 2 + 4 + 8 + 4 == RESULT.replicates.shape[1]
    assert len(RESULT.replicates) == 200
    assert RESULT.n_failed == 0
    assert ((table["low"] <= table["estimate"]) & (table["estimate"] <= table["high"])).all()
    parts = table.groupby(["parameter", "class", "from"])["estimate"].sum()
    np.testing.assert_allclose(parts["time in state"], 12)
    np.testing.assert_allclose(parts["transition"], 1)
    stable = RESULT.stability
    assert stable["patients"].sum() == len(DATA)
    assert (stable["found_again"] > 0.9).all()
    assert stable["jaccard"].between(0.75, 1).all()
    assert "found again in" in repr(RESULT)


def test_errors_are_near_those_of_the_information() -> None:
    asymptotic = MODEL.standard_errors(DATA)
    np.testing.assert_allclose(RESULT.intervals["se"][:14], asymptotic["se"], rtol=0.35)


def test_threads_and_seeds() -> None:
    one, two = (mmlca.bootstrap(MODEL, DATA, 12, seed=5, n_jobs=j) for j in (1, 2))
    assert (one.replicates == two.replicates).all()
    again = mmlca.bootstrap(MODEL, DATA, 12, seed=np.random.default_rng(5))
    assert (again.replicates == one.replicates).all()
    other = mmlca.bootstrap(MODEL, DATA, 12, seed=6)
    assert (other.replicates != one.replicates).any()


def test_a_refit_is_the_fit_to_resampled_patients() -> None:
    """The naive version: draw patients, copy their sequences, and fit from the model."""
    rng = np.random.default_rng(3).spawn(2)[0]
    alike = _group_alike(point_at(MODEL, Patients(DATA)))
    times = rng.multinomial(len(DATA), alike.size / len(DATA))
    picked = [
        np.repeat(np.flatnonzero(DATA.patterns.inverse == row)[:1], count)
        for row, count in zip(alike.row, times, strict=True)
    ]
    copies = Sequences.from_codes(DATA.codes[np.concatenate(picked)], DATA.states)
    assert len(copies) == len(DATA)
    naive = MixtureMarkov(2, init=MODEL.params_).fit(copies)
    first = mmlca.bootstrap(MODEL, DATA, 2, seed=3, n_fresh=0).replicates[0]
    order = [0, 1] if naive.params_.initial[0, 0] > 0.5 else [1, 0]
    np.testing.assert_allclose(first[2:6], naive.params_.initial[order].ravel(), atol=2e-3)
    np.testing.assert_allclose(first[6:14], naive.params_.transition[order].ravel(), atol=2e-3)


def test_weights_are_drawn_with_their_patients() -> None:
    weights = np.where(np.arange(len(DATA)) < 300, 2.0, 0.0)
    data = DATA.reweight(weights)
    alike = _group_alike(point_at(MODEL, Patients(data)))
    assert alike.size.sum() == 300  # patients of weight 0 are not there
    assert (alike.weight == 2).all()
    result = mmlca.bootstrap(MixtureMarkov(2, seed=1).fit(data), data, 30, seed=1)
    half = mmlca.bootstrap(
        MixtureMarkov(2, seed=1).fit(DATA[weights > 0]), DATA[weights > 0], 30, seed=1
    )
    np.testing.assert_allclose(result.intervals["se"], half.intervals["se"], rtol=0.05)


def test_missing_states_and_covariates() -> None:
    rng = np.random.default_rng(1)
    codes = DATA.codes[:200].copy()
    codes[rng.random(codes.shape) < 0.2] = -1
    codes[(codes < 0).all(axis=1), 0] = 0
    data = Sequences.from_codes(codes, DATA.states)
    table = pd.DataFrame({"x": rng.normal(size=200)})
    model = MixtureMarkov(2, seed=1, n_init=8).fit(data, covariates=table)
    result = mmlca.bootstrap(model, data, 10, seed=1, covariates=table, n_fresh=0)
    rows = result.intervals[result.intervals["parameter"] == "coefficient"]
    assert rows["to"].tolist() == ["(Intercept)", "x"]
    np.testing.assert_allclose(rows["estimate"], model.coefficients_[2])
    np.testing.assert_allclose(rows["se"], model.coefficient_table(data, table)["se"], rtol=0.8)
    with pytest.raises(ValueError, match="fitted with covariates"):
        mmlca.bootstrap(model, data, 5)


def test_a_class_that_is_not_there_is_not_found_again() -> None:
    """Three classes fitted to two: the smallest comes and goes."""
    data = simulate(TWO, 300, 6, seed=2)[0]
    model = MixtureMarkov(3, seed=1, n_init=12).fit(data)
    table = mmlca.bootstrap(model, data, 60, seed=1).stability
    assert table["jaccard"].min() < 0.7
    assert table["found_again"].min() < 0.6


def test_time_in_state_and_jaccard_by_hand() -> None:
    one = MarkovParams([1.0], [[1, 0]], [[[0.5, 0.5], [0, 1]]])
    np.testing.assert_allclose(time_in_state(one, 3), [[1.75, 1.25]])
    point = point_at(MODEL, Patients(DATA))
    np.testing.assert_allclose(_jaccard(point, point.posterior), 1)
    mine = point.posterior.argmax(axis=1)
    everybody = np.eye(2)[np.zeros_like(mine)]
    share = point.rows.weights @ (mine == 0) / len(DATA)
    np.testing.assert_allclose(_jaccard(point, everybody), [share, 0])


def test_degenerate_data() -> None:
    same = Sequences.from_codes(np.zeros((5, 4), dtype=int), ["A", "B"])
    result = mmlca.bootstrap(MixtureMarkov(1).fit(same), same, 3, seed=1)
    assert result.intervals[["se", "low", "high"]].notna().all(axis=None)
    for arguments, words in (({"n": 1}, "n must"), ({"level": 2}, "between 0 and 1")):
        with pytest.raises(ValueError, match=words):
            mmlca.bootstrap(MODEL, DATA, **{"n": 5} | arguments)


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    mmlca.bootstrap(MODEL, DATA, 3, seed=1, progress=lambda done, n: seen.append((done, n)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_percentile_intervals_cover() -> None:
    """80 samples of 400 patients, 100 refits each: shares, first states, steps."""
    truth = mmlca.model.inference.parameter_values(TWO)
    covered = []
    for seed in range(80):
        data = simulate(TWO, 400, 12, seed=seed)[0]
        table = mmlca.bootstrap(MixtureMarkov(2, init=TWO).fit(data), data, 100, seed=1).intervals
        covered.append((table["low"][:14] <= truth) & (truth <= table["high"][:14]))
    share = np.mean(covered, axis=0)
    assert share.mean() > 0.90
    assert share.min() > 0.80
