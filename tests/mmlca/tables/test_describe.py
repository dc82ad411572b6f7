"""Descriptive tables against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from paths import PEERS

import mmlca
from mmlca import Sequences

# A A B | A - A (weight 2) | B
S = Sequences.from_lists([["A", "A", "B"], ["A", None, "A"], ["B"]], weights=[1, 2, 1])


def test_state_distribution() -> None:
    table = mmlca.state_distribution(S)
    assert table["count"].tolist() == [3, 1, 1, 0, 2, 1]
    assert table["n"].tolist() == [4, 4, 1, 1, 3, 3]
    assert table["share"].to_numpy() == pytest.approx([0.75, 0.25, 1, 0, 2 / 3, 1 / 3])
    assert table["time"].tolist() == ["1", "1", "2", "2", "3", "3"]


def test_nobody_observed_is_nan_not_zero() -> None:
    table = mmlca.state_distribution(S, [1, 1, 2])
    last = table[(table["group"] == 2) & (table["time"] == "3")]
    assert last["n"].tolist() == [0, 0]
    assert last["share"].isna().all()


def test_sequence_frequencies() -> None:
    table = mmlca.sequence_frequencies(S)
    assert table["sequence"].tolist() == ["A×1 → ?×1 → A×1", "A×2 → B×1", "B×1"]
    assert table["count"].tolist() == [2, 1, 1]
    assert table["share"].tolist() == [0.5, 0.25, 0.25]
    assert table["cumulative"].tolist() == [0.5, 0.75, 1]
    assert len(mmlca.sequence_frequencies(S, top=1)) == 1
    assert len(mmlca.sequence_frequencies(S, top=None)) == 3
    with pytest.raises(ValueError, match="top must be at least 1"):
        mmlca.sequence_frequencies(S, top=0)


def test_transition_rates() -> None:
    counts = mmlca.transition_counts(S)
    assert counts["count"].tolist() == [1, 1, 0, 0]
    assert counts["n"].tolist() == [2, 2, 0, 0]
    assert counts["patients"].tolist() == [1, 1, 0, 0]
    rates = mmlca.transition_rates(S)
    assert rates[["A", "B"]].to_numpy()[0].tolist() == [0.5, 0.5]
    assert rates[["A", "B"]].iloc[1].isna().all()
    two_apart = mmlca.transition_counts(S, lag=2)
    assert two_apart["count"].tolist() == [2, 1, 0, 0]
    with pytest.raises(ValueError, match="lag"):
        mmlca.transition_rates(S, lag=0)
    assert mmlca.transition_counts(S, lag=5)["count"].sum() == 0


def test_time_in_state() -> None:
    table = mmlca.time_in_state(S)
    assert table["mean"].tolist() == [6 / 4, 2 / 4]
    assert table["share"].tolist() == [6 / 8, 2 / 8]


def test_entropy_by_time() -> None:
    table = mmlca.entropy_by_time(S)
    p = 0.75
    expected = -(p * np.log(p) + (1 - p) * np.log(1 - p)) / np.log(2)
    assert table["entropy"].tolist()[:2] == [pytest.approx(expected), 0]
    even = Sequences.from_lists([["A"], ["B"], ["C"]])
    assert mmlca.entropy_by_time(even)["entropy"][0] == pytest.approx(1)
    assert mmlca.entropy_by_time(Sequences.from_lists([["A", "A"]]))["entropy"].tolist() == [0, 0]


def test_groups_by_id_and_sites() -> None:
    groups = pd.Series(["x", "y", "y"], index=[3, 1, 2])
    table = mmlca.time_in_state(S, groups)
    assert table["group"].tolist() == ["x", "x", "y", "y"]
    assert table["mean"].tolist() == [0, 1, 2, 1 / 3]
    both = mmlca.time_in_state({"MGB": S, "VA": S[:1]}, {"MGB": groups, "VA": [7]})
    assert both["site"].tolist() == ["MGB"] * 4 + ["VA"] * 2
    assert both["group"].tolist()[-1] == 7
    alone = mmlca.time_in_state({"MGB": S, "VA": S[:1]})
    assert alone.columns[0] == "site"
    assert len(alone) == 4


def test_bad_groups() -> None:
    with pytest.raises(ValueError, match="found 2 groups for 3 patients"):
        mmlca.time_in_state(S, [1, 2])
    with pytest.raises(ValueError, match=r"groups are missing for 1 of 3 patients \(3\)"):
        mmlca.time_in_state(S, pd.Series([1, 1], index=[1, 2]))
    with pytest.raises(TypeError, match="dict"):
        mmlca.time_in_state({"MGB": S}, [1, 1, 1])
    with pytest.raises(ValueError, match="missing for the sites 'VA'"):
        mmlca.time_in_state({"VA": S}, {"MGB": [1, 1, 1]})
    with pytest.raises(ValueError, match="no patients"):
        mmlca.time_in_state({})


def test_a_state_called_from_does_no_harm() -> None:
    s = Sequences.from_lists([["from", "share"], ["from", "from"]])
    table = mmlca.transition_rates(s)
    assert table.iloc[0].tolist() == ["from", 0.5, 0.5]
    assert mmlca.state_distribution(s)["count"].sum() == 4


@pytest.mark.skipif(not PEERS.exists(), reason="reference data not at hand")
def test_mvad_as_traminer_shows_it() -> None:
    # seqtab(mvad.seq) in TraMineR's manual: EM/70 50 (7.02 %), TR/22-EM/48 18, FE/22-EM/48 17
    s = Sequences.from_frame(pd.read_csv(PEERS / "mvad.csv"))
    table = mmlca.sequence_frequencies(s, top=3)
    assert table["sequence"].tolist() == [
        "employment×70",
        "training×22 → employment×48",
        "FE×22 → employment×48",
    ]
    assert table["count"].tolist() == [50, 18, 17]
    assert table["share"][0] == pytest.approx(0.0702, abs=5e-5)
