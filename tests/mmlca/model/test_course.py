"""Latent classes of the time course, against naive versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from paths import PEERS

import font
import mmlca
from font.errors import InputError
from mmlca import CourseClasses, Sequences
from mmlca.model.course import course_words


def planted(n: int = 300, seed: int = 0, missing: float = 0.1) -> tuple[Sequences, np.ndarray]:
    """Two groups that leave A early or late, some windows missing, follow-up of 2 to 5 windows."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(2, size=n)
    stay = np.where(truth == 0, 1, 4)[:, None]
    codes = np.where(np.arange(5) < stay, 0, 1)
    codes = np.where(rng.random(codes.shape) < 0.1, 2, codes)
    codes[rng.random(codes.shape) < missing] = -1
    codes[np.arange(5) >= rng.integers(2, 6, n)[:, None]] = -1
    codes[:, 0] = np.maximum(codes[:, 0], 0)
    return Sequences.from_codes(codes.astype(np.int8), ["A", "B", "C"]), truth


def naive_likelihoods(model: CourseClasses, data: Sequences, shares: np.ndarray) -> np.ndarray:
    """π_k ∏_t p_kt(x_t) of each patient and class, patient by patient and window by window."""
    out = np.tile(np.asarray(shares, dtype=float), (len(data), 1))
    for i, row in enumerate(data.codes):
        for k in range(len(model.weights_)):
            for time, code in zip(data.times, row, strict=True):
                if code >= 0 and time in model.times_:
                    table = model.probabilities_.loc[(k + 1, time)]
                    out[i, k] *= table[data.states[code]]
    return out


def test_the_likelihood_is_that_of_the_formula_with_missing_and_void_windows() -> None:
    data, _ = planted(60)
    model = CourseClasses(2, n_init=4, seed=1).fit(data)
    joint = naive_likelihoods(model, data, model.weights_.to_numpy())
    assert model.loglik_ == pytest.approx(np.log(joint.sum(axis=1)).sum())
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(data), expected, atol=1e-12)
    np.testing.assert_allclose(model.score_samples(data), np.log(joint.sum(axis=1)))
    assert (model.labels_ == expected.argmax(axis=1)).all()


def naive_em(codes: np.ndarray, k: int, s: int, rng: np.random.Generator) -> float:
    """Textbook EM on patients, one random start; the log-likelihood where it settles."""
    n, t = codes.shape
    member = rng.dirichlet(np.ones(k), n)
    before = -np.inf
    for _ in range(500):
        shares = member.mean(axis=0)
        p = np.ones((k, t, s)) / s
        for j in range(t):
            seen = codes[:, j] >= 0
            count = np.stack([member[seen & (codes[:, j] == a)].sum(axis=0) for a in range(s)], 1)
            p[:, j] = count / count.sum(axis=1, keepdims=True)
        joint = np.tile(shares, (n, 1))
        for j in range(t):
            seen = codes[:, j] >= 0
            joint[seen] *= p[:, j, codes[seen, j]].T
        now = float(np.log(joint.sum(axis=1)).sum())
        if now - before < 1e-7:
            return now
        before, member = now, joint / joint.sum(axis=1, keepdims=True)
    return now


@pytest.mark.filterwarnings("ignore:the best of all maxima")
def test_the_maximum_is_that_of_a_naive_em_on_distinct_courses() -> None:
    rng = np.random.default_rng(3)
    codes = np.unique(rng.integers(-1, 2, (16, 4)), axis=0)
    codes = codes[codes[:, 0] >= 0]
    data = Sequences.from_codes(codes.astype(np.int8), ["A", "B"])
    assert data.n_distinct == len(data)
    best = max(naive_em(codes, 2, 2, rng) for _ in range(12))
    model = CourseClasses(2, prior=0, tol=1e-12, search="thorough", seed=1).fit(data)
    assert model.loglik_ == pytest.approx(best, abs=1e-3)


def test_weights_are_copies_and_order_does_not_matter() -> None:
    data, _ = planted(80)
    weights = np.where(np.arange(80) < 30, 2.0, 1.0)
    rows = np.r_[np.arange(80), np.arange(30)]
    copies = Sequences.from_codes(data.codes[rows], data.states)
    a = CourseClasses(2, prior=0, seed=1, n_init=8).fit(data, weights)
    b = CourseClasses(2, prior=0, seed=1, n_init=8).fit(copies)
    np.testing.assert_allclose(a.probabilities_, b.probabilities_, atol=1e-4)
    assert a.loglik_ == pytest.approx(b.loglik_)
    tenth = CourseClasses(2, seed=1, n_init=8).fit(data, weights / 10)
    whole = CourseClasses(2, seed=1, n_init=8).fit(data, weights)
    np.testing.assert_allclose(tenth.probabilities_, whole.probabilities_, atol=1e-4)
    assert tenth.loglik_ == pytest.approx(whole.loglik_ / 10, abs=1e-4)
    back = np.arange(80)[::-1]
    turned, model = (CourseClasses(2, seed=1, n_init=8).fit(part) for part in (data[back], data))
    np.testing.assert_array_equal(turned.class_parameters_, model.class_parameters_)


def test_parameters_are_counted_where_states_occur() -> None:
    """Window 1 has A alone, window 2 A and B, window 3 all three states."""
    rows = [["A", "A", "A"], ["A", "B", "B"], ["A", "A", "C"], ["A", "B", None]]
    model = CourseClasses(2, n_init=1, seed=1).fit(Sequences.from_lists(rows * 5))
    assert model.n_parameters_ == 1 + 2 * (0 + 1 + 2)
    assert model.n_cells_ == 1 + 2 * 3 * 2
    size = np.log(20)
    assert model.bic() == pytest.approx(-2 * model.loglik_ + 7 * size)
    groups = np.tile([0, 1], 10)
    assert (
        CourseClasses(2, n_init=1, seed=1)
        .fit(Sequences.from_lists(rows * 5), groups=groups)
        .n_parameters_
        == 2 + 2 * 3
    )


def test_groups_have_proportions_of_their_own() -> None:
    data, truth = planted(400)
    groups = np.where(np.random.default_rng(1).random(400) < np.where(truth, 0.8, 0.2), "x", "y")
    model = CourseClasses(2, seed=1, n_init=8).fit(data, groups=groups)
    shares = model.group_weights_.loc[groups].to_numpy()
    joint = naive_likelihoods(model, data, [1, 1]) * shares
    assert model.loglik_ == pytest.approx(np.log(joint.sum(axis=1)).sum())
    np.testing.assert_allclose(
        model.predict_proba(data, groups), joint / joint.sum(axis=1, keepdims=True)
    )
    # at the maximum, a group's proportions are the mean memberships of its patients
    for name in "xy":
        members = model.predict_proba(data, groups)[groups == name]
        np.testing.assert_allclose(model.group_weights_.loc[name], members.mean(axis=0), atol=1e-3)
    with pytest.raises(InputError, match="found 'z'"):
        model.predict(data[:1], ["z"])


def test_patients_with_other_lengths_are_classified_by_the_windows_of_the_fit() -> None:
    data, _ = planted(200, missing=0)
    model = CourseClasses(2, n_init=8, seed=1).fit(data)
    short = Sequences.from_lists([["A", "B"], ["A", "A"]])
    joint = naive_likelihoods(model, short, model.weights_.to_numpy())
    np.testing.assert_allclose(model.predict_proba(short), joint / joint.sum(axis=1, keepdims=True))
    long = Sequences.from_lists([["A", "B", "B", "B", "B", "C"], ["A", "A", "A"]])
    cut = Sequences.from_lists([["A", "B", "B", "B", "B"], ["A", "A", "A"]], states=["A", "B", "C"])
    with pytest.warns(UserWarning, match="1 patients are observed after 5, the last of the 5"):
        late = model.predict_proba(long)
    np.testing.assert_allclose(late, model.predict_proba(cut))
    with pytest.raises(InputError, match="does not know the states 'D'"):
        model.predict(Sequences.from_lists([["A", "D"]]))


def test_a_state_that_is_new_in_a_window_and_a_window_that_nobody_was_seen_in() -> None:
    rows = [["A", None, "A", None], ["B", None, "B", None]] * 10
    data = Sequences.from_codes(Sequences.from_lists(rows).codes, ["A", "B", "C"])
    model = CourseClasses(2, n_init=4, seed=1).fit(data)
    assert model.times_ == ("1", "2", "3")
    np.testing.assert_allclose(model.probabilities_.xs("2", level="time"), 1 / 3)
    new = Sequences.from_lists([["A", "C", "C"]], states=["A", "B", "C"])
    assert np.isfinite(model.predict_proba(new)).all()
    a = model.labels_[0]
    assert model.predict(new)[0] == a


def test_the_same_seed_gives_the_same_bits() -> None:
    data, _ = planted(100)
    a, b = (CourseClasses(3, n_init=6, seed=5).fit(data) for _ in range(2))
    assert (a.class_parameters_ == b.class_parameters_).all()


def test_a_saved_model_is_the_same_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    data, _ = planted(100)
    groups = np.tile(["x", "y"], 50)
    model = CourseClasses(2, n_init=4, seed=1).fit(data, groups=groups)
    model.save(tmp_path / "m.json")
    again = CourseClasses.load(tmp_path / "m.json")
    assert (again.predict_proba(data, groups) == model.predict_proba(data, groups)).all()
    assert again.criteria() == model.criteria()
    assert again.to_dict() == model.to_dict()
    with pytest.raises(AttributeError, match="does not carry its patients"):
        again.summary()
    stored = model.to_dict()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": [0.5, 0.4]}, "do not sum to 1"),
        ({"weights": [1.0]}, "1 classes × 5 times"),
        ({"states": ["A", "B"]}, "its 2 states"),
        ({"states": ["A", "B", "B"]}, "names a state twice"),
        ({"times": ["1", "1", "2", "3", "4"]}, "names a time twice"),
        ({"format": "mmlca model"}, "not a model of mmlca: format"),
        ({"groups": [{"group": "x", "weights": [0.5, 0.6]}]}, "the sum 1"),
        ({"probabilities": [[[0.5, 0.4, 0.2]] * 5] * 2}, "do not sum to 1"),
    ]
    for change, message in wrong:
        with pytest.raises(InputError, match=message):
            CourseClasses.from_dict(stored | change)
    with pytest.raises(InputError, match="not a model of mmlca"):
        mmlca.MixtureMarkov.from_dict(stored)


def test_sums_are_one_update_of_em_and_refine_to_the_fit_of_all() -> None:
    data, _ = planted(300)
    model = CourseClasses(2, n_init=1, seed=1, max_iter=3, tol=0).fit(data)
    member = model.predict_proba(data)
    again = model.from_statistics(model.statistics(data, member))
    for k in range(2):
        for t in range(5):
            seen = data.codes[:, t] >= 0
            counts = [member[seen & (data.codes[:, t] == s), k].sum() for s in range(3)]
            expected = (np.array(counts) + model.prior) / (sum(counts) + 3 * model.prior)
            got = again.probabilities_.loc[(k + 1, str(t + 1))]
            np.testing.assert_allclose(got, expected)
    np.testing.assert_allclose(again.weights_, member.mean(axis=0))
    few = model.distinct(data)
    assert few.weights.sum() == 300
    np.testing.assert_allclose(
        model.statistics(few, model.predict_proba(few)), model.statistics(data, member)
    )


@pytest.mark.filterwarnings("ignore:.* observed after 4, the last of the 4 windows")
def test_an_ensemble_of_sites_and_its_refinement() -> None:
    """Sites of one population with other numbers of windows find the true groups."""
    sites = {"x": planted(300, 1), "y": planted(300, 2)}
    data = {name: part for name, (part, _) in sites.items()}
    data["y"] = Sequences.from_codes(data["y"].codes[:, :4], data["y"].states)
    models = {name: CourseClasses(2, n_init=8, seed=1).fit(part) for name, part in data.items()}
    labels = {name: font.label(models, part) for name, part in data.items()}
    ensemble = font.Ensemble(2, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    result = font.refine(ensemble, models, data, rounds=3)
    for name, (_, truth) in sites.items():
        followed = data[name].lengths > 2  # before, the groups do not differ
        found = result.predict(data[name], name)[followed]
        assert font.compare_clusterings(truth[followed], found)["matched"] > 0.85


def test_samples_have_the_shares_of_the_model() -> None:
    data, _ = planted(300)
    model = CourseClasses(2, n_init=4, seed=1).fit(data)
    drawn, classes = model.sample(20_000, seed=2)
    for k, t in ((0, 0), (1, 2), (0, 4)):
        rows = drawn.codes[classes.to_numpy() == k, t]
        share = np.bincount(rows, minlength=3) / len(rows)
        np.testing.assert_allclose(share, model.probabilities_.loc[(k + 1, str(t + 1))], atol=0.02)
    assert model.sample(3, lengths=[2, 1, 3], seed=1)[0].lengths.tolist() == [2, 1, 3]
    for wrong in (0, 6, 1.5):
        with pytest.raises(InputError, match="lengths must be whole numbers from 1 to 5"):
            model.sample(2, lengths=wrong)


@given(
    arrays(float, (5, 3), elements=st.floats(0.01, 1)),
    arrays(bool, 5),
)
def test_words_say_what_the_shares_say(raw: np.ndarray, observed: np.ndarray) -> None:
    shares = raw / raw.sum(axis=1, keepdims=True)
    states = ("A", "B", "C")
    words = course_words(shares, states, observed)
    described = set()
    pattern = (
        r"(?:(?P<state>[ABC])|no state of half the patients) in windows? (?P<first>\d)"
        r"(?:–(?P<last>\d))?"
        r" \((?:most often (?P<often>[ABC]), )?(?P<low>\d+)(?:–(?P<high>\d+))? %\)"
    )
    for part in re.finditer(pattern, words):
        first, low = int(part["first"]), int(part["low"])
        last, high = int(part["last"] or first), int(part["high"] or low)
        name = states.index(part["state"] or part["often"])
        for t in range(first - 1, last):
            if not observed[t]:
                continue
            described.add(t)
            percent = round(100 * shares[t].max())
            assert shares[t].argmax() == name
            assert low <= percent <= high
            assert (percent >= 50) == bool(part["state"])
    assert described == set(np.flatnonzero(observed))


def test_the_summary_and_the_posterior_describe_the_patients() -> None:
    data, _ = planted(200)
    model = CourseClasses(2, n_init=8, seed=1).fit(data)
    table = model.summary()
    assert table["patients"].tolist() == np.bincount(model.labels_).tolist()
    sure = model.predict_proba(data).max(axis=1)
    assert table["certainty"][1] == pytest.approx(sure[model.labels_ == 0].mean())
    assert model.average_posterior() == pytest.approx(sure.mean())
    assert 0 < model.entropy() < 1
    names = mmlca.state_distribution(data, model)["group"].unique().tolist()
    assert names == ["class 1", "class 2"]


def test_the_number_of_classes_is_compared() -> None:
    data, _ = planted(400)
    table = mmlca.select_n_classes(data, range(1, 4), seed=1, by="course", n_init=8)
    model = CourseClasses(2, n_init=8, seed=1).fit(data)
    row = table.set_index("classes").loc[2]
    assert row["bic"] == pytest.approx(model.bic())
    assert row["parameters"] == model.n_parameters_
    assert mmlca.vote(table) == 2
    with pytest.raises(InputError, match="it has neither forms"):
        mmlca.select_n_classes(data, [2], by="course", blrt=3)
    with pytest.raises(InputError, match="by must be one of 'steps', 'course'"):
        mmlca.select_n_classes(data, [2], by="steps and stays")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: CourseClasses(0).fit(d), "n_classes must be a whole number"),
        (lambda d: CourseClasses(2, prior=-1).fit(d), "prior must be a number of at least 0"),
        (lambda d: CourseClasses(2, search="long").fit(d), "search must be one of"),
        (lambda d: CourseClasses(9).fit(d[:3]), "9 classes cannot be distinguished among"),
        (lambda d: CourseClasses(1).fit(d, np.zeros(len(d))), "every weight is 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(make: Any, message: str) -> None:
    data, _ = planted(30)
    with pytest.raises(InputError, match=message):
        make(data)


def test_one_patient_one_window_one_class() -> None:
    model = CourseClasses(1, seed=1).fit(Sequences.from_lists([["A"]]))
    assert (model.loglik_, model.n_parameters_, model.labels_.tolist()) == (0.0, 0, [0])
    assert model.summary()["course"].item() == "A in window 1 (100 %)"


def test_memberships_are_those_of_stepmix() -> None:
    """Six binary items as six windows; the values are recorded from StepMix 3.0.0."""
    path = PEERS / "stepmix_three_step.csv"
    if not path.exists():
        pytest.skip("no reference data")
    table = pd.read_csv(path)
    items = table[[f"x{i}" for i in range(1, 7)]].to_numpy().astype(int)
    recorded = table[[f"posterior{k}" for k in range(3)]].to_numpy()
    data = Sequences.from_codes(items.astype(np.int8), ["no", "yes"])
    model = CourseClasses(3, prior=0, tol=1e-12, max_iter=5000, seed=1).fit(data)
    np.testing.assert_allclose(model.predict_proba(data), recorded, atol=2e-3)


def test_functions_about_chains_say_so() -> None:
    data, _ = planted(60)
    model = CourseClasses(2, n_init=4, seed=1).fit(data)
    for call in (
        lambda: mmlca.diagnose(model, data, n_sim=3),
        lambda: mmlca.bootstrap(model, data, 3, seed=1),
        lambda: mmlca.plot_transitions(model),
    ):
        with pytest.raises(TypeError, match="is about mixtures of Markov chains, found Course"):
            call()
