"""Which parameters the criteria count, what that reveals, and how sure the choice by them is."""

from __future__ import annotations

import importlib
import itertools
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

import mmlca
from font.errors import InputError
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.federation.markov_kind import _compare
from mmlca.model.selection import number_by_criterion, resampled_choices
from mmlca.model.settings import CRITERIA

TWO = MarkovParams(
    [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [[[0.95, 0.05], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
)


def naive_count(rows: np.ndarray, weights: np.ndarray, k: int, least: int) -> int:
    """Free parameters of the first states and steps of at least `least` patients."""
    makers: dict[tuple[int, int], set[int]] = {}
    for i, row in enumerate(rows):
        if weights[i] > 0:
            for before, after in zip([-1, *row[:-1]], row, strict=True):
                makers.setdefault((before, after), set()).add(i)
    made = [cell for cell, patients in makers.items() if len(patients) >= least]
    rows_of = [before for before, _ in made]
    return k - 1 + k * sum(rows_of.count(before) - 1 for before in set(rows_of))


@pytest.mark.filterwarnings("ignore:the best of")  # runs are cut short
@pytest.mark.parametrize("least", [1, 2, 5])
def test_parameters_are_those_of_steps_that_patients_make(least: int) -> None:
    rng = np.random.default_rng(least)
    for _ in range(4):
        codes = np.minimum(rng.geometric(0.5, (12, 4)) - 1, 4)
        weights = rng.integers(0, 3, 12).astype(float)
        weights[:2] = 1
        data = Sequences.from_codes(codes, list("ABCDE"), weights=weights)
        for k in (1, 2):
            model = MixtureMarkov(k, n_init=1, max_iter=3, tol=0, min_patients=least, seed=1)
            model.fit(data)
            assert model.n_parameters_ == naive_count(codes, weights, k, least)
            assert model.n_cells_ == k - 1 + k * (4 + 5 * 4)
            p, textbook = model.n_parameters_, model.n_cells_
            size, loglik = weights.sum(), model.loglik_
            assert model.bic() == pytest.approx(-2 * loglik + p * np.log(size))
            of_all = model.criteria(all_cells=True)
            assert of_all["bic"] == pytest.approx(-2 * loglik + textbook * np.log(size))


def test_four_classes_of_eleven_states_have_483_parameters_in_textbooks() -> None:
    codes = np.tile(np.arange(11), (20, 1))
    codes[10:] = codes[10:, ::-1]
    model = MixtureMarkov(4, init=even(4, 11), max_iter=1, tol=0)
    model.fit(Sequences.from_codes(codes))
    assert model.n_cells_ == 483
    assert model.n_parameters_ == 3 + 4 * (1 + 9)  # inner states have two ways on, the others one


def even(k: int, s: int) -> MarkovParams:
    return MarkovParams(np.full(k, 1 / k), np.full((k, s), 1 / s), np.full((k, s, s), 1 / s))


def fillable(gap: tuple[int, ...], steps: set[tuple[int, int]], s: int) -> bool:
    before, *missing, after = gap
    return any(
        all(step in steps for step in itertools.pairwise((before, *path, after)))
        for path in itertools.product(range(s), repeat=len(missing))
    )


@pytest.mark.filterwarnings("ignore:no patient is observed before")
def test_gaps_count_steps_only_where_no_observed_steps_fill_them() -> None:
    """Against all ways through each gap; −1 is missing, and before the first state stands s."""
    rng, s = np.random.default_rng(3), 3
    n_filled = n_not = 0
    for _ in range(40):
        codes = rng.integers(0, s, (3, 5))
        codes[rng.random((3, 5)) < 0.45] = -1
        codes = codes[(codes >= 0).any(axis=1)]
        if len(codes) == 0:
            continue
        seen: set[tuple[int, int]] = set()
        gaps: set[tuple[int, ...]] = set()
        for row in codes:
            path = (s, *row[: np.flatnonzero(row >= 0).max() + 1].tolist())
            known = [i for i, state in enumerate(path) if state >= 0]
            parts = [path[i : j + 1] for i, j in itertools.pairwise(known)]
            seen |= {(part[0], part[1]) for part in parts if len(part) == 2}
            gaps |= {part for part in parts if len(part) > 2}
        states = sorted({int(x) for x in codes.ravel() if x >= 0})
        counted = set(seen)
        for gap in gaps:
            if fillable(gap, seen, s):
                n_filled += 1
                continue
            n_not += 1
            before, *missing, after = gap
            for path in itertools.product(states, repeat=len(missing)):
                counted |= set(itertools.pairwise((before, *path, after)))
        firsts = [before for before, _ in counted]
        expected = sum(firsts.count(before) - 1 for before in set(firsts))
        model = MixtureMarkov(1, init=even(1, s), max_iter=0, tol=0).fit(
            Sequences.from_codes(codes, list("ABC"))
        )
        assert model.n_parameters_ == expected
    assert min(n_filled, n_not) > 5


def test_files_keep_both_counts_and_older_files_have_the_textbook_s() -> None:
    data = Sequences.from_lists([["A", "B", "C"], ["A", "B", "B"], ["A", "A", "B"]])
    model = MixtureMarkov(1).fit(data)
    stored = model.to_dict()
    again = MixtureMarkov.from_dict(stored)
    assert (again.n_parameters_, again.n_cells_) == (model.n_parameters_, model.n_cells_) == (2, 8)
    del stored["n_cells"]
    assert MixtureMarkov.from_dict(stored).n_cells_ == 2
    with pytest.raises(InputError, match="min_patients must be"):
        MixtureMarkov(1, min_patients=0).fit(data)


# --- what a count reveals ---------------------------------------------------------------------


def released(data: Sequences, least: int) -> pd.DataFrame:
    """What a hospital compares, and so what its vote rests on."""
    return _compare(
        data, [1, 2], "bic", prior=None, n_init=2, search="default", seed=1, n_jobs=1,
        min_patients=least,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:the best of")
def test_a_patient_with_a_step_of_his_own_does_not_change_what_is_counted() -> None:
    """The attack works where every step counts: BIC's difference between sites' K jumps by it."""
    three = MarkovParams(
        [0.6, 0.4], [[0.9, 0.1, 0]] * 2, [[[0.9, 0.1, 0], [0.1, 0.7, 0.2], [0, 0.1, 0.9]],
                                          [[0.3, 0.7, 0], [0.2, 0.2, 0.6], [0, 0.7, 0.3]]],
    )  # fmt: skip
    data, _ = simulate(three, 300, 10, seed=1)
    assert not ((data.codes[:, :-1] == 2) & (data.codes[:, 1:] == 0)).any()
    own = np.zeros((1, 10), dtype=np.int8)
    own[0, :3] = [0, 1, 2]  # and from state 2 back to 0, which nobody else does
    usual = own.copy()
    usual[0, 3:] = 2
    with_him = Sequences.from_codes(np.vstack([data.codes, own]), data.states)
    without = Sequences.from_codes(np.vstack([data.codes, usual]), data.states)
    counts, above = {}, {}
    for least in (1, 11):
        tables = released(without, least), released(with_him, least)
        counts[least] = [table["parameters"].tolist() for table in tables]
        above[least] = [float(np.diff(table["bic"])[0]) for table in tables]
        assert tables[0]["parameters_all"].tolist() == tables[1]["parameters_all"].tolist()
    assert np.subtract(*counts[1]).tolist() == [-1, -2]
    assert counts[11][0] == counts[11][1]
    by_every_step, by_steps_of_many = (abs(np.subtract(*above[least])) for least in (1, 11))
    assert by_every_step > by_steps_of_many + 0.9 * np.log(301)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best of")
@pytest.mark.filterwarnings("ignore:EM stopped")
def test_counting_steps_that_occur_finds_more_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements of docs/inference.md on six of its studies with eight states."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module("number_of_classes")
    rows = [row for replicate in range(6) for row in example.choices(8, 1_000, replicate)]
    table = pd.DataFrame(rows)
    assert (table["chosen"] <= table["classes"]).all()
    right = (table["chosen"] == table["classes"]).groupby(table["steps counted"]).sum()
    assert right["all"] <= right["somebody's"] < right["11 patients'"]


# --- how sure the choice is -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the best of")
def test_the_choice_of_resamples_is_that_of_a_loop() -> None:
    data, _ = simulate(TWO, 60, 6, seed=4)
    data = data.reweight(np.where(np.arange(60) < 3, 0.0, 1.0))  # three patients do not count
    given: dict[str, Any] = {"n_init": 2, "seed": 7}
    ks, n = (1, 2, 3), 5
    table = mmlca.select_n_classes(data, ks, 7, n_init=2, resamples=n)
    loop = []
    for rng in np.random.default_rng(7).spawn(n):
        times = rng.multinomial(57, np.full(57, 1 / 57))
        drawn = Sequences.from_codes(np.repeat(data.codes[3:], times, axis=0), data.states)
        bic = [MixtureMarkov(k, **given).fit(drawn).bic() for k in ks]
        loop.append(ks[int(np.argmin(bic))])
    models = {k: MixtureMarkov(k, **given) for k in ks}
    threads = resampled_choices(models, data, n, 7, "bic", "sequences", n_jobs=2)
    assert threads == loop
    assert table["resampled"].tolist() == [loop.count(k) for k in ks]
    assert table["jaccard"].iloc[0] == pytest.approx(1)
    two = MixtureMarkov(2, **given).fit(data)
    stability = mmlca.bootstrap(two, data, n, 7).stability
    assert table["jaccard"].iloc[1] == stability["jaccard"].min()
    with pytest.raises(InputError, match="resamples are at least 2"):
        mmlca.select_n_classes(data, ks, 7, resamples=1)
    with pytest.raises(InputError, match="leave out forms"):
        mmlca.select_n_classes(data, ks, 7, resamples=2, forms=["plain"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans())
def test_sentences_say_what_the_table_says(seed: int, n_rows: int, tested: bool) -> None:
    """Every number named by the sentence is the one that the criterion chooses, and none lacks."""
    rng = np.random.default_rng(seed)
    classes = np.arange(1, n_rows + 1)
    table = pd.DataFrame({"classes": classes})
    for name in (*CRITERIA, "bic_all"):
        table[name] = rng.integers(0, 3, n_rows).astype(float) + (rng.random() < 0.5) * classes
    if tested:
        table["blrt_p"] = rng.random(n_rows) * 0.1
    table["resampled"] = rng.multinomial(20, rng.dirichlet(np.ones(n_rows)))
    table["jaccard"] = rng.random(n_rows)
    numbers = number_by_criterion(table)
    for name, title in [(name, name.upper()) for name in CRITERIA]:
        assert numbers[title] == classes[np.argmin(table[name])]
    assert numbers["the textbook's BIC"] == classes[np.argmin(table["bic_all"])]
    said = mmlca.compare_criteria(table)
    first, _, rest = said.partition(" Of ")
    assert first.startswith("All criteria choose ") == (len(set(numbers.values())) == 1)
    assert ("the largest number tried" in first) == (n_rows in numbers.values())
    if not first.startswith("All"):
        first = first.replace(", the largest number tried: try more", "").rstrip(".")
        pairs = re.findall(r"(?:^|, )?(.+?) (?:chooses? )?(\d+)(?: class(?:es)?)?(?=,|$)", first)
        found = {
            name: int(number)
            for names, number in pairs
            for name in re.split(r", | and ", names.removeprefix(", "))
        }
        assert found == numbers
    k = numbers["BIC"]
    same = int(table["resampled"].iloc[k - 1])
    match = re.match(r"20 resamples of the patients, (\d+) choose (\d+) class(?:es)?([^;.]*)", rest)
    assert match is not None
    assert (int(match[1]), int(match[2])) == (same, k)
    others = {int(j): int(m) for m, j in re.findall(r", (\d+) (\d+)", match[3])}
    drawn = dict(zip(classes.tolist(), table["resampled"].tolist(), strict=True))
    assert others == {j: m for j, m in drawn.items() if m and j != k}
    assert ("most do not" in rest) == (same < 10)
    assert ("Not all of the" in rest) == (k > 1 and table["jaccard"].iloc[k - 1] < 0.75)
