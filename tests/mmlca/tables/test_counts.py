"""Counts against loops over patients and times, and the hiding of small numbers."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from paths import ROOT

import mmlca
from mmlca import Sequences
from mmlca.tables import counts, disclosure


@pytest.fixture(scope="module")
def odd() -> Sequences:
    """Weights of 0, missing states, and sequences of different lengths."""
    rng = np.random.default_rng(1)
    codes = rng.integers(-1, 3, (40, 6))
    codes[:, 0] = np.where((codes < 0).all(axis=1), 0, codes[:, 0])
    return Sequences.from_codes(codes, ["A", "B", "C"], weights=rng.integers(0, 3, 40))


@pytest.mark.parametrize("lag", [1, 2, 5, 6, 9])
def test_steps_as_a_loop_counts_them(odd: Sequences, lag: int) -> None:
    count, who = np.zeros((3, 3)), [[set() for _ in range(3)] for _ in range(3)]
    for i, row in enumerate(odd.codes):
        for t in range(len(row) - lag):
            if row[t] >= 0 and row[t + lag] >= 0:
                count[row[t], row[t + lag]] += odd.weights[i]
                if odd.weights[i] > 0:
                    who[row[t]][row[t + lag]].add(i)
    np.testing.assert_array_equal(counts.step_counts(odd, lag), count)
    patients = [[len(cell) for cell in row] for row in who]
    assert counts.step_patients(odd, lag).tolist() == patients
    assert counts.leaving_patients(odd, lag).tolist() == [len(set().union(*row)) for row in who]
    table = mmlca.transition_counts(odd, lag=lag)
    assert table["count"].tolist() == count.ravel().tolist()
    assert table["patients"].tolist() == np.ravel(patients).tolist()
    assert table["n_patients"].tolist() == np.repeat(counts.leaving_patients(odd, lag), 3).tolist()
    wide = mmlca.transition_rates(odd, lag=lag).iloc[:, 1:].to_numpy()
    np.testing.assert_array_equal(table["rate"], wide.ravel())


def test_steps_of_patterns_are_those_of_the_patients(odd: Sequences) -> None:
    table = counts.pattern_steps(odd).toarray()
    assert table.shape == (len(odd.patterns), 12)
    summed = (odd.patterns.weights @ table).reshape(4, 3)
    np.testing.assert_allclose(summed[:3], counts.step_counts(odd))
    first = [odd.weights[odd.codes[:, 0] == k].sum() for k in range(3)]
    np.testing.assert_allclose(summed[3], first)


def test_patients_by_time(odd: Sequences) -> None:
    for t in range(odd.shape[1]):
        for k in range(3):
            there = odd.codes[:, t] == k
            assert counts.state_counts(odd)[t, k] == odd.weights[there].sum()
            assert counts.state_patients(odd)[t, k] == (odd.weights[there] > 0).sum()


def test_rates_of_an_empty_row_are_unknown() -> None:
    share = counts.rates(np.array([[1.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(share, [[0.25, 0.75], [np.nan, np.nan]])


# --- small numbers ---------------------------------------------------------------------


def test_hidden_numbers() -> None:
    table = pd.DataFrame({"state": list("ABC"), "count": [0, 5, 50], "n": [100, 100, 7]})
    shown = disclosure.hide(table, ["count"], ["count", "n"], min_count=11)
    assert shown["count"].isna().tolist() == [False, True, True]
    assert shown["n"].tolist() == [100, 100, 7]
    assert table["count"].tolist() == [0, 5, 50]
    pd.testing.assert_frame_equal(
        disclosure.hide(shown, ["count"], ["count", "n"], min_count=11), shown
    )
    for nothing in (0, 1):
        assert disclosure.hide(table, ["count"], ["count"], nothing)["count"].notna().all()
        assert disclosure.hidden_note(nothing) == ""


def test_min_count_is_checked() -> None:
    assert disclosure.check_min_count(11) == 11
    for bad in (-1, 2.5, True):
        with pytest.raises(ValueError, match="min_count must be a whole number of at least 0"):
            disclosure.check_min_count(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_count must be a whole number"):
        mmlca.plot_index(Sequences.from_lists([["A"]]), min_count=-1)


def test_one_module_compares_with_min_count() -> None:
    """But for `mmlca/federation`, which decides what may leave a site."""
    compared = re.compile(r"[<>]=? *[\w.]*min_count|max\([\w.]*min_count|min_count *[<>]")
    for path in (ROOT / "mmlca").rglob("*.py"):
        if path.parent.name not in ("disclosure", "federation"):
            code = [line for line in path.read_text("utf-8").splitlines() if "def " not in line]
            assert not [line for line in code if compared.search(line)], path


def test_groups_in_which_nothing_is_shown_join_the_others() -> None:
    data = mmlca.Sequences.from_lists([["A", "B"]] * 12 + [["A", "A"]] * 3 + [["B", "B"]] * 12)
    groups = np.repeat(["big", "small", "stays"], [12, 3, 12])
    paths = mmlca.treatment_paths(data, groups, min_count=11)
    assert set(paths["group"]) >= {"big", "stays"}
    assert paths["patients"].min() >= 11
