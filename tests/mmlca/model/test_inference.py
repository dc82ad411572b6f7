"""Standard errors: against numerical derivatives of the likelihood by enumeration, and coverage."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from oracle import brute_force, needs_peers, peer, random_params, recorded
from paths import PEERS
from scipy.special import softmax

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.covariates import Mixture, make_rows
from mmlca.model.em import Settings, Visits, cells_of, params_of, passes, rows_of, sum_over_gaps
from mmlca.model.inference import OverlapWarning
from mmlca.model.information import Point, covariance, information

TWO = MarkovParams(
    [0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [[[0.85, 0.15], [0.4, 0.6]], [[0.5, 0.5], [0.2, 0.8]]]
)


def with_gaps(n: int, seed: int, n_states: int = 2) -> tuple[Sequences, MarkovParams]:
    """Short sequences of unequal length, a part of their states missing; with weights."""
    rng = np.random.default_rng(seed)
    drawn = random_params(2, n_states, seed)
    parts = (drawn.weights, drawn.initial, drawn.transition)
    params = MarkovParams(*(0.6 * part + 0.4 / part.shape[-1] for part in parts))
    codes = simulate(params, n, rng.integers(2, 6, n), seed=rng)[0].codes.copy()
    codes[(rng.random(codes.shape) < 0.25) & (codes >= 0)] = -1
    codes[(codes < 0).all(axis=1), 0] = 0
    weights = rng.choice([1.0, 2.0, 0.5], n)
    return Sequences.from_codes(codes, range(n_states), weights=weights), params


def point_at(data: Sequences, params: MarkovParams, prior: float = 0.0) -> Point:
    logits = np.log(params.weights / params.weights[0])[None]
    rows = make_rows(data.patterns, data.weights)
    return Point(rows, params, logits, prior, prior)


def moved(point: Point, step: np.ndarray) -> MarkovParams:
    """Parameters a step away in the free log-odds."""
    k = len(point.cells)
    shares = softmax(point.coefficients[0] + np.r_[0.0, step[: k - 1]])
    logits = np.log(point.cells)
    for c in range(k):
        logits[c, point.free[c]] += step[point.place(c)]
    rows = rows_of(logits, point.visits.n_states)
    return params_of(softmax(rows, axis=-1).reshape(point.cells.shape), shares)


def penalised(data: Sequences, params: MarkovParams, prior: float) -> float:
    logs = brute_force(data.codes, params, data.weights)["logs"]
    penalty = np.log(cells_of(params)).sum() + np.log(params.weights).sum()
    return float(data.weights @ logs + prior * penalty)


@pytest.mark.parametrize(("n_states", "prior"), [(2, 0.0), (2, 0.7), (3, 0.0)])
def test_observed_information_is_the_curvature_of_the_likelihood(
    n_states: int, prior: float
) -> None:
    data, params = with_gaps(40, 3, n_states)
    point = point_at(data, params, prior)
    assert point.size == 1 + 2 * (n_states + 1) * (n_states - 1)
    parts = information(point)
    h, size = 1e-3, point.size
    numerical = np.empty((size, size))
    eye = h * np.eye(size)
    for a in range(size):
        for b in range(a, size):
            four = [
                penalised(data, moved(point, i * eye[a] + j * eye[b]), prior)
                for i in (1, -1)
                for j in (1, -1)
            ]
            numerical[a, b] = numerical[b, a] = -(four[0] - four[1] - four[2] + four[3]) / 4 / h**2
    analytic = (parts.observed + parts.prior) * parts.unit
    np.testing.assert_allclose(analytic, numerical, rtol=1e-4, atol=2e-4)


def test_scores_are_the_slopes_of_each_patients_likelihood() -> None:
    data, params = with_gaps(40, 4)
    point = point_at(data, params)
    h = 1e-5
    slopes = np.empty((len(data), point.size))
    for a, step in enumerate(h * np.eye(point.size)):
        ahead, behind = (
            brute_force(data.codes, moved(point, x), data.weights)["logs"] for x in (step, -step)
        )
        slopes[:, a] = (ahead - behind) / 2 / h
    parts = information(point)
    outer = slopes.T @ (slopes * data.weights[:, None])
    np.testing.assert_allclose(parts.outer * parts.unit, outer, rtol=1e-6, atol=1e-6)
    squares = slopes.T @ (slopes * data.weights[:, None] ** 2)
    np.testing.assert_allclose(parts.squares * parts.unit**2, squares, rtol=1e-6, atol=1e-6)


def test_visits_in_gaps_agree_with_their_sum() -> None:
    data, params = with_gaps(60, 5, 3)
    visits = Visits(data.patterns)
    gaps, rows = visits.gaps, rows_of(cells_of(params), visits.n_states)[0]
    assert len(gaps) > 5
    each = passes(gaps, rows)
    steps = gaps.length + 1  # a gap of g unobserved times is g + 1 steps
    np.testing.assert_allclose(each.sum(axis=1), steps, rtol=1e-12)
    passed = np.random.default_rng(1).random(len(gaps))
    np.testing.assert_allclose(
        sum_over_gaps(gaps, passed, rows).ravel(), passed @ each, rtol=1e-12, atol=1e-12
    )


def test_one_class_without_gaps_has_the_textbook_errors() -> None:
    data, _ = simulate(TWO, 300, 8, seed=1)
    model = MixtureMarkov(1, prior=0).fit(data)
    table = model.standard_errors(data, information="observed")
    counts = np.zeros((2, 2))
    for row in data.codes:
        np.add.at(counts, (row[:-1], row[1:]), 1)
    p = counts / counts.sum(axis=1, keepdims=True)
    se = np.sqrt(p * (1 - p) / counts.sum(axis=1, keepdims=True))
    shown = table[table["parameter"] == "transition"]
    np.testing.assert_allclose(shown["estimate"], p.ravel(), rtol=1e-12)
    np.testing.assert_allclose(shown["se"], se.ravel(), rtol=1e-9)
    logit, width = np.log(p / (1 - p)), 1.959964 * se / (p * (1 - p))
    np.testing.assert_allclose(shown["low"], (1 / (1 + np.exp(width - logit))).ravel(), rtol=1e-6)
    only = table[table["parameter"] == "weight"].iloc[0]
    assert (only["estimate"], only["se"], only["low"], only["note"]) == (1, 0, 1, "fixed")


def test_the_table_and_its_three_kinds() -> None:
    data, _ = simulate(TWO, 1500, 24, seed=2)
    model = MixtureMarkov(2, seed=1).fit(data)
    tables = {kind: model.standard_errors(data, information=kind) for kind in
              ("observed", "opg", "sandwich")}  # fmt: skip
    table = tables["sandwich"]
    pd.testing.assert_frame_equal(table, model.standard_errors(data))
    assert table.columns.tolist()[:8] == [
        "parameter", "class", "from", "to", "estimate", "se", "low", "high",
    ]  # fmt: skip
    assert len(table) == 2 + 4 + 8
    assert not table["boundary"].any()
    assert ((table["low"] < table["estimate"]) & (table["estimate"] < table["high"])).all()
    for other in tables.values():  # they agree where the model is right and data are many
        np.testing.assert_allclose(other["se"], table["se"], rtol=0.25)
    wide = model.standard_errors(data, level=0.99)
    assert (wide["low"] < table["low"]).all()


def test_overlapping_classes_are_said_to_have_narrow_intervals() -> None:
    """Where entropy R² is below 0.7, in tables and summaries; not where classes are clear."""
    data, _ = simulate(TWO, 300, 8, seed=2)
    model = MixtureMarkov(2, seed=1).fit(data)
    assert model.entropy() < 0.7
    for errors in (lambda: model.standard_errors(data), model.summary):
        with pytest.warns(OverlapWarning, match=r"below 0\.7.*mmlca\.bootstrap"):
            errors()
    clear, _ = simulate(TWO, 300, 40, seed=2)
    model = MixtureMarkov(2, seed=1).fit(clear)
    assert model.entropy() > 0.8
    assert model.summary()["weight low"].notna().all()  # warnings are errors here


def test_weights_as_counts_and_as_weights() -> None:
    data, _ = simulate(TWO, 400, 24, seed=3)
    model = MixtureMarkov(2, seed=1).fit(data)
    twice = data.reweight(np.full(len(data), 2.0))
    for kind in ("observed", "opg"):  # two patients for each
        one, two = (model.standard_errors(x, information=kind)["se"] for x in (data, twice))  # type: ignore[arg-type]
        np.testing.assert_allclose(two, one / np.sqrt(2), rtol=1e-3)
    one, two = (model.standard_errors(x)["se"] for x in (data, twice))
    np.testing.assert_allclose(two, one, rtol=1e-3)  # the same patients: no more is known


def test_the_boundary_is_flagged_and_has_exact_limits() -> None:
    stay = MarkovParams([1.0], [[1, 0]], [[[0.9, 0.1], [0, 1]]])
    data, _ = simulate(stay, 50, 6, seed=1)
    table = MixtureMarkov(1).fit(data).standard_errors(data).set_index(["parameter", "from", "to"])
    back = table.loc[("transition", "1", "0")]
    visits = (data.codes[:, :-1] == 1).sum()
    assert back["boundary"]
    assert np.isnan(back["se"])
    assert back["low"] == 0
    assert back["high"] == pytest.approx(1 - 0.025 ** (1 / visits), rel=1e-3)
    assert back["note"] == "never or hardly ever"
    on = table.loc[("transition", "1", "1")]
    assert on["boundary"]
    assert (on["high"], on["low"]) == (1, pytest.approx(0.025 ** (1 / visits), rel=1e-3))
    assert not table.loc[("transition", "0", "1"), "boundary"]
    assert table[["low", "high", "estimate"]].notna().all(axis=None)


def test_forbidden_steps_are_fixed() -> None:
    data, _ = simulate(MarkovParams([1.0], [[1, 0]], [[[0.9, 0.1], [0, 1]]]), 50, 6, seed=1)
    for prior in (0.0, 1e-4):
        model = MixtureMarkov(1, zeros=[("1", "0")], prior=prior).fit(data)
        table = model.standard_errors(data).set_index(["parameter", "from", "to"])
        row = table.loc[("transition", "1", "0")]
        assert (row["estimate"], row["se"], row["high"], row["note"]) == (0, 0, 0, "fixed")


def test_degenerate_data_leave_no_table_of_nan() -> None:
    same = Sequences.from_codes(np.zeros((5, 4), dtype=int), ["A", "B"])
    table = MixtureMarkov(1).fit(same).standard_errors(same)
    assert table[["estimate", "low", "high"]].notna().all(axis=None)
    unseen = table[table["from"] == "B"]
    assert (unseen["note"] == "no patient is ever in this state").all()
    assert unseen[["low", "high"]].to_numpy().tolist() == [[0, 1], [0, 1]]
    one = Sequences.from_codes([[0, 1, 0]])
    assert MixtureMarkov(1).fit(one).standard_errors(one)["high"].notna().all()


@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_what_the_data_do_not_determine_is_said() -> None:
    """Two classes from sequences of length one: shares and first states cannot be told apart."""
    data = Sequences.from_codes(np.repeat([[0], [1]], [30, 20], axis=0))
    init = MarkovParams([0.5, 0.5], [[0.7, 0.3], [0.5, 0.5]], np.full((2, 2, 2), 0.5))
    model = MixtureMarkov(2, init=init, prior=0).fit(data)
    with pytest.warns(UserWarning, match="do not determine"):
        table = model.standard_errors(data)
    assert (
        table.loc[table["parameter"] == "initial", "note"] == "not determined by the data"
    ).all()
    assert table[["low", "high"]].notna().all(axis=None)


def test_many_states_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 patients with 120 states once took 6.6 GB; too many parameters are refused in words."""
    codes = np.random.default_rng(1).integers(0, 120, (12, 10))
    codes[:3, 4] = -1
    data = Sequences.from_codes(codes, range(120))
    model = MixtureMarkov(1, seed=1).fit(data)
    tracemalloc.start()
    table = model.standard_errors(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert len(table) == 1 + 120 + 120**2
    monkeypatch.setattr(mmlca.model.information, "_MOST", 5)
    with pytest.raises(ValueError, match=r"would take too much memory .* fewer cla"):
        model.standard_errors(data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"information": "fisher"}, "information must be one of"),
        ({"level": 95}, "between 0 and 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    data, _ = simulate(TWO, 50, 5, seed=1)
    with pytest.raises(ValueError, match=words):
        MixtureMarkov(1).fit(data).standard_errors(data, **arguments)  # type: ignore[arg-type]


@needs_peers
@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_standard_errors_of_seqhmm() -> None:
    """Class membership by sex and year of birth: coefficients and their errors, two kinds."""
    case = recorded("biofam_cov_K3")
    data, table = peer("biofam_covariates", case["states"]), _biofam()
    fitted = case["converged"]["params"]
    params = MarkovParams(*(fitted[name] for name in ("weights", "initial", "transition")))
    model = MixtureMarkov(3, init=params, prior=0, tol=1e-10).fit(data, covariates=table)
    assert model.loglik_ == pytest.approx(case["converged"]["logLik"], abs=1e-5)
    order = [1, 0, 2]  # ours are sorted by size; theirs have the second largest first
    ours = model.coefficients_.to_numpy()[:, order]
    covariates = case["covariates"]
    np.testing.assert_allclose(ours - ours[:, :1], covariates["coefficients"], atol=3e-4)
    full = model.coefficient_table(data, table, information="observed")
    # class 2 against class 1 is the same comparison in both, with the sign turned
    np.testing.assert_allclose(full["se"][:3], covariates["se_full"][:3], rtol=2e-3)


@needs_peers
def test_updates_of_seqhmm_with_covariates() -> None:
    case = recorded("biofam_cov_K3")
    data, table = peer("biofam_covariates", case["states"]), _biofam()
    design = np.column_stack([np.ones(len(table)), table["sex"] == "woman", table["birth"]])
    start = MarkovParams(*(case["start"][n] for n in ("weights", "initial", "transition")))
    settings = Settings(0.0, np.zeros(72, dtype=bool), 5, 0.0, False)
    mixture = Mixture(
        make_rows(data.patterns, data.weights, design.astype(float)),
        settings,
        np.zeros((3, 72), dtype=bool),
    )
    coefficients = np.array(case["start"]["coefficients"])
    path = mixture.run(cells_of(start), coefficients, 5, 0.0, False).path[:, 0]
    names = ("logLik_start", "logLik_after_1_update", "logLik_after_5_updates")
    np.testing.assert_allclose(path[[0, 1, 5]], [case[name] for name in names], rtol=1e-11)


def _biofam() -> pd.DataFrame:
    frame = pd.read_csv(PEERS / "biofam_covariates.csv")
    return frame[["sex"]].assign(birth=(frame["birthyr"] - 1940) / 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["observed", "opg"])
def test_intervals_cover(kind: str) -> None:
    """Over 300 samples of 400 patients the 95 % intervals hold the truth nearly as often."""
    covered, n_runs = [], 300
    truth = mmlca.model.inference.parameter_values(TWO)
    for seed in range(n_runs):
        data, _ = simulate(TWO, 400, 12, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MixtureMarkov(2, init=TWO).fit(data)
            table = model.standard_errors(data, information=kind)  # type: ignore[arg-type]
        covered.append((table["low"] <= truth) & (truth <= table["high"]))
    share = np.mean(covered, axis=0)
    assert share.mean() == pytest.approx(0.95, abs=0.02)
    assert share.min() > 0.90


def test_covariance_kinds_on_a_given_matrix() -> None:
    data, params = with_gaps(40, 6)
    parts = information(point_at(data, params))
    inverse, lost = covariance(parts, "opg")
    product = inverse @ parts.outer * parts.unit
    np.testing.assert_allclose(product, np.eye(len(inverse)), atol=1e-6)
    assert not lost.any()


@pytest.mark.parametrize("factor", [1e-250, 1e250])
def test_weights_of_any_size_have_the_same_sandwich(factor: float) -> None:
    """Only ratios of weights matter to it; the other kinds are in proportion to the weights."""
    data, params = with_gaps(200, 6)
    plain = information(point_at(data, params))
    scaled = information(point_at(data.reweight(data.weights * factor), params))
    assert scaled.unit == pytest.approx(plain.unit * factor)
    if factor > 1:  # tiny weights leave no cell with half a visit
        for kind in ("opg", "observed", "sandwich"):
            expected, lost_before = covariance(plain, kind)  # type: ignore[arg-type]
            found, lost = covariance(scaled, kind)  # type: ignore[arg-type]
            times = 1.0 if kind == "sandwich" else factor
            np.testing.assert_allclose(found * times, expected, rtol=1e-6, atol=1e-12)
            assert (lost == lost_before).all()


def test_a_matrix_without_information_is_inverted_without_an_error() -> None:
    """Rounding may leave zeros on the diagonal beside large numbers: such parameters are lost."""
    data, params = with_gaps(40, 6)
    parts = information(point_at(data, params))
    size = len(parts.observed)
    broken = parts.observed.copy()
    broken[0, 0], broken[0, 1:], broken[1:, 0] = 0.0, 1e280, 1e280
    for matrix in (broken, np.full((size, size), np.nan), np.full((size, size), np.inf)):
        for kind in ("observed", "sandwich"):
            spread, lost = covariance(parts._replace(observed=matrix), kind)  # type: ignore[arg-type]
            assert np.isfinite(spread).all()
            assert lost[0]
