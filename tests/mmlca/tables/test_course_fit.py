"""One course in a class or several: naive numbers, the rules' errors, sentences, small numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples

import mmlca
from mmlca.tables import course_fit as module
from mmlca.tables.course_fit import course_cautions, course_fit
from mmlca.tables.disclosure import Rounding

T = 16
Codes = np.ndarray
Draw = Callable[[np.random.Generator, int], Codes]


# --- classes to draw ----------------------------------------------------------------------------


def replaced(codes: Codes, share: float, rng: np.random.Generator) -> Codes:
    """The same with a share of the windows replaced by any of four states."""
    other = rng.random(codes.shape) < share
    return np.where(other, rng.integers(0, 4, codes.shape), codes).astype(np.int8)


def switching(mean: float, shape: float = 6, share: float = 0.0, to: int = 1) -> Draw:
    """State 0, and from a time that has a gamma distribution another state."""

    def draw(rng: np.random.Generator, n: int) -> Codes:
        stay = np.maximum(1, rng.gamma(shape, mean / shape, (n, 1)).round())
        return replaced(np.where(np.arange(T) < stay, 0, to), share, rng)

    return draw


def staying(share: float, state: int = 0) -> Draw:
    return lambda rng, n: replaced(np.full((n, T), state), share, rng)


def chain(leave: float, back: float = 0.0) -> Draw:
    """A Markov chain with two states that begins in the first one."""

    def draw(rng: np.random.Generator, n: int) -> Codes:
        codes = np.zeros((n, T), dtype=np.int8)
        for t in range(1, T):
            before = codes[:, t - 1]
            moves = rng.random(n) < np.where(before == 0, leave, back)
            codes[:, t] = np.where(moves, 1 - before, before)
        return codes

    return draw


def ragged(draw_codes: Draw, lost: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Codes:
        codes = draw_codes(rng, n)
        codes[np.arange(T) >= np.minimum(rng.geometric(lost, n), T)[:, None]] = -1
        return codes

    return draw


def mixed(one: Draw, two: Draw, share: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Codes:
        second = round(share * n)
        return np.vstack([one(rng, n - second), two(rng, second)])

    return draw


ONE_COURSE = {
    "stay, 5 % replaced": staying(0.05),
    "stay, 15 % replaced": staying(0.15),
    "stay, 40 % replaced": staying(0.4),
    "switch, gamma of shape 2": switching(6, 2),
    "switch, gamma of shape 6": switching(6),
    "switch about window 9": switching(9),
    "switch, 10 % replaced": switching(6, share=0.1),
    "switch at any time": lambda rng, n: np.where(
        np.arange(T) < rng.integers(1, T, (n, 1)), 0, 1
    ).astype(np.int8),
    "intermittent": chain(0.15, 0.4),
    "intermittent, long stays": chain(0.07, 0.15),
    "5 % leave in a window": chain(0.05),
    "10 % leave in a window": chain(0.1),
    "20 % leave in a window": chain(0.2),
    "stay, 5 % lost in a window": ragged(staying(0.1), 0.05),
    "stay, 1.2 % lost in a window": ragged(staying(0.1), 0.012),
    "switch, 10 % lost in a window": ragged(switching(6, 4), 0.1),
}
TWO_COURSES = {
    "stay or switch in window 4, 10 % replaced": mixed(staying(0.1), switching(4, share=0.1), 0.4),
    "one state or another, 22 %": mixed(staying(0.1), staying(0.1, 1), 0.22),
    "one state or another, 30 %": mixed(staying(0.1), staying(0.1, 1), 0.3),
    "to one state or to another": mixed(switching(5), switching(5, share=0.05, to=2), 0.5),
}


def sequences(codes: Codes, weights: object = None) -> mmlca.Sequences:
    return mmlca.Sequences.from_codes(codes, list("ABCD"), weights=weights)


def alarms(draw: Draw, n: int, repeats: int) -> float:
    """How often a class has the caution."""
    found = 0
    for seed in range(repeats):
        s = sequences(draw(np.random.default_rng(seed), n))
        found += bool(course_fit(s, np.ones(len(s), dtype=int))["two_courses"].iloc[0])
    return found / repeats


# --- how often the cautions are right -----------------------------------------------------------


def test_two_courses_are_seen_and_one_is_not() -> None:
    assert max(alarms(draw, 100, 3) for draw in ONE_COURSE.values()) == 0
    assert min(alarms(draw, 200, 3) for draw in TWO_COURSES.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("n", [60, 200, 1_000])
def test_false_alarms_and_power(n: int) -> None:
    repeats = 200 if n < 1_000 else 40
    false = {name: alarms(draw, n, repeats) for name, draw in ONE_COURSE.items()}
    right = {name: alarms(draw, n, repeats) for name, draw in TWO_COURSES.items()}
    assert max(false.values()) <= 0.05
    assert np.mean(list(false.values())) <= 0.01
    assert min(right.values()) >= 0.8


@pytest.mark.slow
def test_few_leave_and_most_never_do_is_the_border() -> None:
    # 3 % leave in a window: after 16 windows 63 % have stayed, and the others left at any time
    assert alarms(chain(0.03), 1_000, 40) <= 0.05
    assert 0.05 <= alarms(chain(0.03), 60, 100) <= 0.5


def test_classes_drawn_from_one_course_are_alike_and_others_are_not() -> None:
    for seed, draw in enumerate(ONE_COURSE.values()):
        codes = draw(np.random.default_rng(seed), 300)
        half = np.arange(300) % 2
        assert course_fit(sequences(codes), half)["alike"].all()
    for seed, draw in enumerate(TWO_COURSES.values()):
        codes = draw(np.random.default_rng(seed), 300)
        share = 0.4 if seed == 0 else 0.22 if seed == 1 else 0.3 if seed == 2 else 0.5
        second = np.arange(300) >= 300 - round(share * 300)
        assert not course_fit(sequences(codes), second.astype(int))["alike"].any()


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_naive_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = ragged(mixed(switching(4, share=0.1), staying(0.2), 0.5), 0.02)(rng, 60)
    weights = rng.integers(0, 3, 60)
    s = sequences(codes, weights)
    group = rng.integers(1, 4, 60)
    found = course_fit(s, group).set_index("cluster")
    rows = np.repeat(np.arange(60), weights)
    square = mmlca.distances(s)[np.ix_(rows, rows)]
    width = silhouette_samples(square, group[rows], metric="precomputed")
    texts = np.array([str(c) for c in s.codes[rows]])
    for k, row in found.iterrows():
        mine = np.flatnonzero(group[rows] == k)
        m = len(mine)
        assert row["n"] == m
        inside = square[np.ix_(mine, mine)]
        assert row["within"] == pytest.approx(inside.sum() / m / (m - 1))
        other = square[np.ix_(mine, np.flatnonzero(group[rows] == row["nearest"]))]
        assert row["between"] == pytest.approx(other.mean())
        assert row["silhouette"] == pytest.approx(width[mine].mean(), abs=1e-6)
        if row["course"] is not None:
            _, first, count = np.unique(texts[mine], return_index=True, return_counts=True)
            common = [i for i in first if (s.codes[group == k] == s.codes[rows[mine[i]]]).all(1)[
                weights[group == k] > 0].sum() >= 5]  # fmt: skip
            best = min(inside[i].mean() for i in common)
            assert row["distance"] == pytest.approx(best)
            shares = count[[i in common for i in first]] / m
            assert any(row["sharing"] == pytest.approx(share) for share in shares)


def test_weights_are_repeated_rows_and_order_is_nothing() -> None:
    rng = np.random.default_rng(1)
    codes = TWO_COURSES["stay or switch in window 4, 10 % replaced"](rng, 120)
    group = np.arange(120) % 7 // 5
    weights = rng.integers(1, 4, 120)
    found = course_fit(sequences(codes, weights), group)
    rows = rng.permutation(np.repeat(np.arange(120), weights))
    again = course_fit(sequences(codes[rows]), group[rows])
    names = ["n", "within", "between", "silhouette", "nearest", "alike"]
    pd.testing.assert_frame_equal(found[names], again[names])


def test_sites_are_compared_inside() -> None:
    rng = np.random.default_rng(2)
    sites = {name: sequences(staying(0.1)(rng, 90)) for name in ("MGB", "VA")}
    groups = {name: pd.Series([1] * 60 + [2] * 30, data.ids) for name, data in sites.items()}
    found = course_fit(sites, groups)
    assert found["site"].tolist() == ["MGB", "MGB", "VA", "VA"]
    alone = course_fit(sites["VA"], groups["VA"])
    pd.testing.assert_frame_equal(
        found[found["site"] == "VA"].drop(columns="site").reset_index(drop=True), alone
    )
    assert course_cautions(found, "class")[1].startswith(
        "Classes 1 and 2 at VA are nearly the same"
    )


def test_a_cluster_alone_or_of_one_patient_has_no_distances() -> None:
    s = sequences(np.zeros((6, 4), dtype=np.int8))
    alone = course_fit(s, [1] * 6).iloc[0]
    assert (alone["course"], alone["sharing"], alone["within"]) == ("A×4", 1, 0)
    assert alone["nearest"] is None
    assert np.isnan(alone["silhouette"])
    assert not alone["alike"]
    one = course_fit(s, [1] * 5 + [2]).iloc[1]
    assert one["course"] is None
    assert np.isnan(one["within"])
    assert not course_cautions(course_fit(s, [1] * 5 + [2]))


def test_a_sample_gives_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    codes = np.vstack([switching(4, share=0.15)(rng, 1_500), staying(0.15, 2)(rng, 1_000)])
    s, group = sequences(codes), [1] * 1_500 + [2] * 1_000
    exact = course_fit(s, group)
    monkeypatch.setattr(module, "_MOST_DISTINCT", 400)
    found = course_fit(s, group, seed=1)
    assert found.equals(course_fit(s, group, seed=1))
    for name in ("within", "between", "silhouette"):
        assert found[name].tolist() == pytest.approx(exact[name].tolist(), rel=0.05, abs=0.02)
    for name in ("n", "sharing", "distance", "course", "two_courses"):
        assert found[name].equals(exact[name])


# --- sentences ----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_sentences_say_what_the_numbers_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws = [*ONE_COURSE.values(), *TWO_COURSES.values()]
    picked = rng.integers(0, len(draws), 3)
    parts = [draws[i](rng, int(n)) for i, n in zip(picked, rng.integers(30, 120, 3), strict=True)]
    group = np.repeat([1, 2, 3], [len(part) for part in parts])
    s = sequences(np.vstack(parts))
    table = course_fit(s, group, min_count=11)
    square = mmlca.distances(s)
    inside = {}
    for k in (1, 2, 3):
        mine = square[np.ix_(group == k, group == k)]
        inside[k] = mine.sum() / len(mine) / (len(mine) - 1)
    notes = course_cautions(table)
    for a, b in itertools.combinations((1, 2, 3), 2):
        between = square[np.ix_(group == a, group == b)].mean()
        near = between <= 1.1 * (inside[a] + inside[b]) / 2 + 1e-6
        said = [n for n in notes if re.match(f"Clusters ({a} and {b}|{b} and {a}) are nearly", n)]
        assert len(said) <= near
        for number in re.findall(r"differ in ([\d.]+) windows", " ".join(said)):
            assert float(number) == pytest.approx(between, abs=0.06)
    for k in (1, 2, 3):
        said = [n for n in notes if n.startswith(f"Cluster {k} contains two")]
        row = table.set_index("cluster").loc[k]
        assert len(said) == row["two_courses"]
        for shares in re.findall(r"(\d+) %.* (\d+) %", " ".join(said)):
            assert sum(map(int, shares)) in (99, 100, 101)
            assert min(map(int, shares)) >= 20
        for course in re.findall(r"[A-D]×\d+(?: → [A-D]×\d+)*", " ".join(said)):
            spells = [spell.split("×") for spell in course.split(" → ")]
            codes = np.repeat(["ABCD".index(a) for a, _ in spells], [int(n) for _, n in spells])
            padded = np.append(codes, np.full(T - len(codes), -1))
            assert (s.codes[group == k] == padded).all(axis=1).sum() >= 11  # enough share it


def test_sentences_leave_out_what_may_not_be_shown() -> None:
    # both clusters follow one course but for three patients: they are alike, no number is shown
    codes = np.zeros((100, T), dtype=np.int8)
    codes[[0, 1, 2, 60, 61, 62], 3] = 1
    fit = course_fit(sequences(codes), [1] * 60 + [2] * 40, min_count=11)
    assert course_cautions(fit, "class") == ["Classes 1 and 2 are nearly the same."]
    # two groups of courses that no two patients share
    rng = np.random.default_rng(1)
    s = sequences(mixed(staying(0.25), staying(0.25, 1), 0.4)(rng, 100))
    fit = course_fit(s, [1] * 100, min_count=11)
    (text,) = course_cautions(fit)
    shares = r"of (59|60) % and (40|41) % of its patients"
    assert re.fullmatch(rf"Cluster 1 contains two well-separated groups, {shares}\.", text)
    # the smaller group has ten patients, a fifth of 50, and the larger course may be named
    codes = np.repeat([0, 1], [40, 10])[:, None] * np.ones(T, dtype=np.int8)
    fit = course_fit(sequences(codes), [1] * 50, min_count=11)
    assert fit["two_courses"].all()
    assert fit["smaller"].isna().all()
    assert course_cautions(fit) == ["Cluster 1 contains two well-separated groups."]
    named = fit.assign(smaller_course="B×16")
    assert course_cautions(named) == [
        "Cluster 1 contains two well-separated groups, near A×16 and near B×16."
    ]


# --- small numbers ------------------------------------------------------------------------------


def test_small_clusters_are_blank_and_others_do_not_depend_on_them() -> None:
    rng = np.random.default_rng(4)
    codes = np.vstack([staying(0.2)(rng, 60), switching(5, share=0.2)(rng, 40)])
    few = np.full((4, T), 1, dtype=np.int8)
    s = sequences(np.vstack([codes, few]))
    group = [1] * 60 + [2] * 40 + [3] * 4
    shown = course_fit(s, group, min_count=11)
    last = shown.iloc[2]
    assert last.drop(["cluster", "two_courses", "alike"]).isna().all()
    assert shown["n"].isna().sum() == 2  # the smallest, and another one from which it would follow
    changed = sequences(np.vstack([codes, 3 - few]))
    assert course_fit(changed, group, min_count=11).iloc[:2].equals(shown.iloc[:2])


def test_what_few_patients_do_does_not_show_in_means() -> None:
    """Three patients of 60 differ in one window or in eight: no number tells."""
    shown = []
    for differing in (1, 8):
        codes = np.zeros((100, T), dtype=np.int8)
        codes[:3, :differing] = 1
        codes[60:] = 2
        shown.append(course_fit(sequences(codes), [1] * 60 + [2] * 40, min_count=11))
    assert shown[0].equals(shown[1])
    assert shown[0].loc[0, ["sharing", "distance", "within", "between", "silhouette"]].isna().all()
    assert np.isnan(shown[0].loc[1, "between"])  # it rests on the three as well
    assert shown[0].loc[0, "course"] == "A×16"


def test_a_public_release_has_rounded_counts() -> None:
    rng = np.random.default_rng(5)
    draw = mixed(staying(0.02), staying(0.02, 1), 0.3)
    s = sequences(np.vstack([draw(rng, 200), staying(0.02, 2)(rng, 95)]))
    group = pd.Series([1] * 200 + [2] * 95, s.ids)
    rounding = Rounding(b"a secret", 11, {"VA": group})
    found = course_fit({"VA": s}, {"VA": group}, min_count=11, rounding=rounding)
    assert (found["n"] % 11 == 0).all()
    for share in ("sharing", "smaller"):
        counts = found[share] * found["n"]
        assert ((counts / 11 - (counts / 11).round()).abs().dropna() * 11 < 0.006 * 211).all()
    text = course_cautions(found)[0]
    assert text.startswith("Cluster 1 at VA contains two well-separated groups: ")
    assert f"{100 * found['smaller'][0]:.0f} % B×16" in text
