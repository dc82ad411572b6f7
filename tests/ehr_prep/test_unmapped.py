"""Drugs that the map does not know: counted by hand, and not shown where they are rare."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ehr_prep
from ehr_prep.drugs import unmapped_caution
from mmlca.tables.data_account import hide_unmapped


def frame(*rows: tuple[int, str]) -> pd.DataFrame:
    dates = [f"2010-01-{1 + i % 28:02d}" for i in range(len(rows))]
    table = pd.DataFrame(rows, columns=["patient_id", "drug"])
    return table.assign(date=dates)


def test_counts_by_hand() -> None:
    records = ehr_prep.read_records(
        frame((1, "Humira"), (1, "Humirra"), (2, "Humirra"), (2, "Orencia"), (2, "x"), (3, "x")),
        drugs="ra",
    )
    table = records.unmapped.set_index("drug")
    assert table.loc["Humirra", ["records", "patients", "did_you_mean"]].to_list() == [
        2,
        2,
        "Humira",
    ]
    assert table.loc["x", ["records", "patients"]].to_list() == [2, 2]
    # patients 1 and 2 have two records of known drugs and three of unknown ones
    assert records.settings["unmapped"] == {"texts": 2, "records": 4, "lost": 0.6}
    assert ehr_prep.build_sequences(records).account.unmapped is records.unmapped


def test_what_the_map_lists_as_no_drug_is_not_unknown() -> None:
    drugs = {"Humira": "TNFi", "aspirin": "-"}
    records = ehr_prep.read_records(frame((1, "Humira"), (1, "aspirin 100"), (1, "y")), drugs)
    assert records.unmapped["drug"].to_list() == ["y"]
    assert records.settings["unmapped"]["lost"] == 0.5
    assert len(ehr_prep.read_records(frame((1, "Humira")), drugs).unmapped) == 0


@pytest.mark.parametrize("seed", range(20))
def test_rare_texts_neither_show_nor_follow(seed: int) -> None:
    """An attacker knows all that is shown and the sum of all records."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    patients = rng.integers(1, 40, n)
    table = pd.DataFrame(
        {
            "drug": [f"text {i}" for i in range(n)],
            "records": patients + rng.integers(0, 30, n),
            "patients": patients,
            "did_you_mean": None,
        }
    )
    shown = hide_unmapped(table, 11)
    rare = set(table.loc[table["patients"] < 11, "drug"])
    assert not rare & set(shown["drug"])
    if rare:
        assert np.isnan(shown["records"].iloc[-1])
        frequent = len(table) - len(rare)
        assert shown["records"].isna().sum() >= min(2, 1 + frequent)
    else:
        assert shown["records"].to_list() == table["records"].to_list()


def test_a_caution_above_two_per_cent() -> None:
    table = pd.DataFrame({"drug": ["a", "Humirra"], "did_you_mean": [None, "Humira"]})
    assert unmapped_caution(table, 0.02, "f") is None
    text = unmapped_caution(table, 0.021, "f")
    assert text is not None
    assert text.startswith("2.1 % of the records of patients with a known drug")
    assert "most often a and Humirra (Humira?)" in text
    rare = hide_unmapped(table.assign(records=3, patients=2), 11)
    hidden = unmapped_caution(rare, 0.5, "f")
    assert hidden is not None
    assert hidden.startswith("More than 2 %")
    assert "Humirra" not in hidden
