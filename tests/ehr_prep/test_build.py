"""Each rule on a few records made by hand, with the expected sequence written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import mmlca
from ehr_prep.build import completed_years, window_edges

DRUGS = {"t": "TNFi", "c": "CTLA4-Ig", "j": "JAK"}
LETTER = {"TNFi": "T", "CTLA4-Ig": "C", "JAK": "J", "none": "0"}


def records(text: str, **options: Any) -> ehr_prep.Records:
    """Records of patient 1, or "id:…", from words such as "2010-01-15t" or "2010-01-15t+30"."""
    rows = []
    for word in text.split():
        who, _, rest = word.rpartition(":")
        day, drug, supply = rest[:10], rest[10], rest[12:]
        rows.append((int(who or 1), day, drug, supply or None))
    frame = pd.DataFrame(rows, columns=["id", "date", "drug", "days_supply"], dtype=object)
    return ehr_prep.read_records(frame, DRUGS, latest="2020-12-31", **options)


def build(text: str, patients: Any = None, labs: Any = None, **options: Any) -> Any:
    made = records(text, patients=patients, labs=labs)
    return ehr_prep.build_sequences(made, **{"preset": "ra", **options})


def words(sequences: mmlca.Sequences) -> list[str]:
    """One text a patient: a letter for each followed-up window, "?" where it is missing."""
    return [
        "".join(LETTER[sequences.states[c]] if c >= 0 else "?" for c in row[:n])
        for row, n in zip(sequences.codes, sequences.lengths, strict=True)
    ]


def dropped(sequences: mmlca.Sequences) -> dict[str, tuple[int, int]]:
    flow = sequences.flow[sequences.flow["records"] > 0]
    counts = zip(flow["patients"], flow["records"], strict=True)
    return dict(zip(flow["reason"], counts, strict=True))


# --- windows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2010-01-15t", "T"),
        ("2010-01-15t 2010-04-14c", "T"),
        ("2010-01-15t 2010-04-15c", "TC"),
        ("2010-01-31t 2010-04-29c", "T"),
        ("2010-01-31t 2010-04-30c", "TC"),
        ("2010-01-31t 2010-04-30c 2010-07-30j", "TC"),
        ("2010-01-31t 2010-04-30c 2010-07-31j", "TCJ"),
        ("2008-11-30t 2009-02-27c", "T"),
        ("2008-11-30t 2009-02-28c", "TC"),
        ("2008-02-29t 2009-02-27c", "TTTC"),
        ("2008-02-29t 2009-02-28c", "TTTTC"),
    ],
)
def test_calendar_months_from_the_index_date(text: str, expected: str) -> None:
    assert words(build(text)) == [expected]


def test_months_and_days_and_the_number_of_windows() -> None:
    text = "2010-01-01t 2010-02-01c 2010-03-01j 2010-12-31t"
    assert words(build(text, months=1)) == ["TCJJJJJJJJJT"]
    assert words(build(text, months=1, max_windows=3)) == ["TCJ"]
    assert words(build(text, months=12)) == ["T"]
    # the records are 31, 59 and 364 days after the index date
    assert words(build(text, days=31)) == ["TCCCCCCCCCCT"]
    assert words(build(text, days=29.5)) == ["TCJJJJJJJJJJT"]
    sequences = build(text)
    assert sequences.shape == (1, 16)
    assert sequences.times == tuple(str(t) for t in range(1, 17))


def test_edges_of_windows_in_days_are_those_of_floor_division() -> None:
    after = np.arange(2000)
    edges = window_edges(np.array([100], dtype=np.int32), 16, days=91.3125)[0]
    window = np.searchsorted(edges, 100 + after, side="right") - 1
    np.testing.assert_array_equal(window, np.minimum(after // 91.3125, 16))
    assert edges[-1] - 100 == 1461


# --- which class a window gets ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ties", "expected"),
    [
        ("2010-01-01t 2010-01-02c 2010-01-03c", "first", "C"),
        ("2010-01-01t 2010-01-02c", "first", "T"),
        ("2010-01-01c 2010-01-02t", "first", "C"),
        ("2010-01-01t 2010-01-01c", "first", "C"),
        ("2010-01-01j 2010-01-01t 2010-01-01c", "first", "C"),
        ("2010-01-01t 2010-01-02c", "latest", "C"),
        ("2010-01-01t 2010-01-03c 2010-01-04c 2010-01-05t", "latest", "T"),
        ("2010-01-01j 2010-01-01c", "latest", "C"),
        ("2010-01-01t 2010-04-02c 2010-04-03t", "first", "TC"),
        ("2010-01-01t 2010-04-02c 2010-04-03t", "previous", "TT"),
        ("2010-01-01t 2010-07-02c 2010-07-03t", "previous", "TTT"),
        ("2010-01-01t 2010-04-02j 2010-04-03c", "previous", "TJ"),
        ("2010-01-01j 2010-01-02t", "previous", "J"),
        ("2010-01-01j 2010-04-01c 2010-04-02t 2010-04-03j", "previous", "JJ"),
    ],
)
def test_most_records_then_the_rule_for_ties(text: str, ties: str, expected: str) -> None:
    assert words(build(text, ties=ties)) == [expected]


@pytest.mark.parametrize(
    ("text", "ties", "expected"),
    [
        # the larger supply, although another class comes first by name and is taken already
        ("2010-01-01j+30 2010-04-02j+90 2010-04-02t+90 2010-04-02c+91", "first", "JC"),
        ("2010-01-01c+30 2010-04-02c+30 2010-04-02t+30 2010-04-02j+90", "latest", "CJ"),
        # the days of all records of the window are added up: 60 against 31
        ("2010-01-01t 2010-01-20t+30 2010-01-01j+30 2010-01-20j+30", "first", "J"),
        # equal supplies: the class already taken
        ("2010-01-01j+30 2010-04-02c+30 2010-04-02t+30 2010-04-02j+30", "first", "JJ"),
        ("2010-01-01t+30 2011-01-02c+30 2011-01-02t+30", "latest", "TTTTT"),
        # nothing but the name is left
        ("2010-01-01j 2010-04-02t 2010-04-02c", "first", "JC"),
        # "previous" goes before the day and the supply
        ("2010-01-01t+30 2010-04-01c+90 2010-04-02t+30", "previous", "TT"),
    ],
)
def test_ties_on_one_day_go_by_supply_then_the_class_taken_then_the_name(
    text: str, ties: str, expected: str
) -> None:
    """They once went by the order of the drug map, here T, C, J."""
    assert words(build(text, ties=ties)) == [expected]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        # T was carried into the window before
        ({"impute": "carry_forward"}, "TTTTT"),
        ({"impute": "carry_forward_max", "max_carry": 3}, "TTTTT"),
        # the window before was off treatment or missing: C was recorded first
        ({"impute": "carry_forward_max", "max_carry": 2}, "TTT0C"),
        ({"impute": "missing"}, "T???C"),
    ],
)
def test_previous_is_the_state_of_the_window_before_as_it_was_filled_in(
    rules: dict[str, Any], expected: str
) -> None:
    """It was the last class taken, however long ago."""
    text = "2010-01-01t 2011-01-02c 2011-01-03t"
    assert words(build(text, ties="previous", **rules)) == [expected]


def test_the_class_already_taken_is_known_after_a_time_off_treatment() -> None:
    rules = {"impute": "carry_forward_max", "max_carry": 0}
    assert words(build("2010-01-01t 2011-01-02c 2011-01-02t", **rules)) == ["T000T"]


def test_ties_and_empty_windows_are_counted() -> None:
    sequences = build("2010-01-01t 2010-01-02c 2010-10-01j")
    assert sequences.settings["windows"] == {
        "followed_up": 4,
        "without_record": 2,
        "tied": 1,
        "several_classes": 1,
        "carried": 2,
        "off_treatment": 0,
        "unobserved": 0,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # three records of one day each against one of 30 days
        ("2010-01-01t 2010-01-02t 2010-01-03t 2010-01-04c+30", "C"),
        # the same days covered twice count once: 30 against 31
        ("2010-01-01t+30 2010-01-01t+29 2010-01-10t+5 2010-02-10c+31", "C"),
        # overlapping supplies of one class: 40 days against 39
        ("2010-01-01t+30 2010-01-11t+30 2010-02-15c+39", "T"),
        # supply reaches into the next windows, and 1 April belongs to the second
        ("2010-01-01t+90 2010-04-30c", "TC"),
        ("2010-01-01t+91 2010-04-30c", "TT"),
        ("2010-01-01t+200 2010-04-30c 2010-09-30c", "TTT"),
        # equal days: the class covered first in the window
        ("2010-01-01t 2010-04-05c+10 2010-05-01t+10", "TC"),
        # a supply does not prolong follow-up
        ("2010-01-01t+400", "T"),
    ],
)
def test_most_days_covered(text: str, expected: str) -> None:
    assert words(build(text, by="days")) == [expected]


def test_counting_days_without_ends_counts_days_with_records() -> None:
    frame = pd.DataFrame(
        {
            "id": [1] * 4,
            "date": ["2010-01-01", "2010-01-02", "2010-01-02", "2010-01-03"],
            "drug": ["c", "t", "t2", "c"],
        }
    )
    made = ehr_prep.read_records(frame, {**DRUGS, "t2": "TNFi"})
    assert made.end is None
    assert words(ehr_prep.build_sequences(made, by="days")) == ["C"]
    assert words(ehr_prep.build_sequences(made, by="records")) == ["C"]


# --- windows without a record ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "TTTTTC"),
        ({"impute": "missing"}, "T????C"),
        ({"impute": "carry_forward_max"}, "TTT00C"),
        ({"impute": "carry_forward_max", "max_carry": 0}, "T0000C"),
        ({"impute": "carry_forward_max", "max_carry": 4}, "TTTTTC"),
    ],
)
def test_windows_without_a_record(options: dict[str, Any], expected: str) -> None:
    sequences = build("2010-01-01t 2011-04-01c", **options)
    assert words(sequences) == [expected]


def test_the_named_off_treatment_is_a_state() -> None:
    sequences = build("2010-01-01t 2011-04-01c", impute="carry_forward_max", off_treatment="off")
    assert sequences.states == ("TNFi", "CTLA4-Ig", "JAK", "off")
    with pytest.raises(ValueError, match="'JAK' is a class of the drug map"):
        build("2010-01-01t", impute="carry_forward_max", off_treatment="JAK")


# --- eligibility and index date -----------------------------------------------------------------


def test_first_record_on_or_after_the_start() -> None:
    text = "1:2007-12-31t 1:2009-01-01c 2:2008-01-01t 3:2008-01-02j"
    sequences = build(text)
    assert sequences.ids.to_list() == [2, 3]
    assert words(sequences) == ["T", "J"]
    assert dropped(sequences) == {"first treatment before 2008-01-01": (1, 2)}
    assert words(build(text, first_on_or_after=None)) == ["TTTTC", "T", "J"]


def test_washout_allows_treatment_long_before() -> None:
    text = "1:2007-01-01t 1:2008-06-01c 2:2008-03-01t 2:2008-06-01c 3:2007-12-31t 3:2008-01-15c"
    sequences = build(text, washout_days=180)
    assert sequences.ids.to_list() == [1, 2]
    assert words(sequences) == ["C", "TC"]
    assert dropped(sequences) == {
        "no treatment on or after 2008-01-01 after 180 days without any": (1, 2),
        "before the index date": (0, 1),
    }
    # exactly at the limit: day 180 still is within the washout, day 181 is not
    assert build("2007-01-01t 2008-01-01c", washout_days=364).ids.to_list() == [1]
    with pytest.raises(ValueError, match="none of the 1 patients"):
        build("2007-01-01t 2008-01-01c", washout_days=365)


def test_history_follow_up_and_age() -> None:
    text = "1:2010-01-01t 1:2010-04-01t 2:2010-01-01t 2:2010-01-20c 3:2010-01-01j"
    people = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "birth_date": ["1992-01-01", "1992-01-02", None],
            "follow_up_end": ["2010-12-31", "2010-12-31", "2009-12-31"],
        }
    )
    assert dropped(build(text, people, min_age=18)) == {
        "birth date not known": (1, 1),
        "younger than 18": (1, 2),
    }
    assert build(text, people, max_age=17).ids.to_list() == [2]
    assert dropped(build(text, people)) == {"follow-up ends before the first treatment": (1, 1)}
    short = build(text, follow_up="last_record", min_follow_up_days=20)
    assert dropped(short) == {"followed up for less than 20 days": (2, 3)}
    exact = build(text, follow_up="last_record", min_follow_up_days=19)
    assert exact.ids.to_list() == [1, 2]
    labs = pd.DataFrame({"id": [2], "date": ["2009-12-31"]})
    known = build(text, labs=labs, min_history_days=1)
    assert known.ids.to_list() == [2]
    assert dropped(known) == {"known for less than 1 days before": (2, 3)}
    with pytest.raises(ValueError, match="min_age and max_age need birth dates"):
        build(text, min_age=18)


def test_completed_years() -> None:
    dates = np.array(["2000-02-29", "2000-03-01", "1960-06-15"], dtype="datetime64[D]")
    birth = dates.astype(np.int32)
    day = np.full(3, np.datetime64("2018-02-28", "D").astype(np.int32))
    assert completed_years(birth, day).tolist() == [17, 17, 57]
    assert completed_years(birth, day + 1).tolist() == [18, 18, 57]


# --- end of follow-up -----------------------------------------------------------------------------


def test_follow_up_ends_with_the_last_record_of_any_kind() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 1],
            "date": ["2010-01-01", "2010-07-01"],
            "drug": ["t", "aspirin"],
        }
    )
    assert words(ehr_prep.build_sequences(ehr_prep.read_records(frame, DRUGS))) == ["TTT"]


def test_follow_up_from_the_patients_table_a_date_or_a_cut() -> None:
    text = "1:2010-01-01t 1:2010-06-01c 2:2010-01-01j"
    people = pd.DataFrame({"id": [1, 2], "follow_up_end": ["2010-04-30", None]})
    sequences = build(text, people)
    assert words(sequences) == ["TT", "J"]
    assert dropped(sequences) == {"after the end of follow-up": (0, 1)}
    assert sequences.issues["issue"].to_list() == ["patient without an end of follow-up"]
    assert words(build(text, people, follow_up="last_record")) == ["TC", "J"]
    assert words(build(text, people, follow_up="2010-10-01")) == ["TCCC", "JJJJ"]
    assert words(build(text, follow_up="2010-12-31", data_cut="2010-03-31")) == ["T", "J"]
    with pytest.raises(ValueError, match="needs a patients' table"):
        build(text, follow_up="patients")
    with pytest.raises(ValueError, match="'last_record' or a date such as"):
        build(text, follow_up="forever")


def test_records_after_the_last_window_are_counted() -> None:
    sequences = build("2010-01-01t 2010-06-30c 2010-07-01j 2010-08-01j", max_windows=2)
    assert words(sequences) == ["TC"]
    assert dropped(sequences) == {"after the last of 2 windows": (0, 2)}


# --- the result ---------------------------------------------------------------------------------


def test_the_result_is_a_sequences_object_with_its_account(tmp_path: Path) -> None:
    people = pd.DataFrame({"id": [1, 2], "dob": ["1950-05-01", None], "sex": ["F", "M"]})
    sequences = build("1:2010-05-01t 1:2010-08-01c 2:2010-05-01j", people)
    assert isinstance(sequences, mmlca.Sequences)
    assert mmlca.state_distribution(sequences)["count"].sum() == 3
    assert sequences.patients.loc[1, "index_date"] == pd.Timestamp("2010-05-01")
    assert sequences.patients.loc[1, "follow_up_end"] == pd.Timestamp("2010-08-01")
    assert sequences.patients.loc[1, "age"] == 60
    assert sequences.patients["sex"].to_list() == ["F", "M"]

    written = sequences.write_all(tmp_path / "out.parquet")
    names = ["out.parquet", "out.flow.csv", "out.issues.csv", "out.settings.json"]
    names.append("out.unmapped.csv")
    assert [path.name for path in written] == names
    assert mmlca.Sequences.read(written[0]) == sequences
    pd.testing.assert_frame_equal(pd.read_csv(written[1]), sequences.flow, check_dtype=False)
    settings = json.loads(written[3].read_text(encoding="utf-8"))
    assert settings == sequences.settings
    assert settings["months"] == 3
    assert settings["columns"]["patient"] == "id"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_selection_keeps_its_part_of_the_account() -> None:
    text = "1:2010-05-01t 1:2010-08-01c 2:2010-05-01j 2:2011-05-01t 3:2010-01-01t 4:2007-01-01t"
    sequences = build(text, max_windows=4)
    part = sequences.select([3, 2])
    assert part.patients.index.to_list() == [3, 2]
    assert part.patients.loc[2, "index_date"] == pd.Timestamp("2010-05-01")
    assert part.flow.iloc[:-1].equals(sequences.flow)
    assert part.flow.iloc[-1].to_dict() == {
        "stage": "selected",
        "reason": "not selected",
        "patients": 1,
        "records": 2,
        "patients_left": 2,
        "records_left": 2,  # one of patient 3, and one of the two of patient 2: see max_windows
    }
    assert part.issues is sequences.issues
    assert part.settings is sequences.settings
    assert part[:1].flow["patients_left"].iloc[-1] == 1
    first, last = part.flow.iloc[0], part.flow.iloc[-1]
    assert last["records_left"] == first["records_left"] - part.flow["records"].sum()
    assert last["patients_left"] == first["patients_left"] - part.flow["patients"].sum()
    assert sequences.select([3, 2, 1]).flow.equals(sequences.flow)  # nobody left
    assert sequences.reweight([2, 0, 1]).account is sequences.account
    assert mmlca.Sequences.concat({"A": sequences}).account is None


def test_one_patient_with_one_record() -> None:
    sequences = build("2010-01-01t")
    assert sequences.shape == (1, 16)
    assert words(sequences) == ["T"]


def test_a_plain_table_is_not_yet_records() -> None:
    with pytest.raises(
        TypeError, match="must come from read_records or read_omop, found DataFrame"
    ):
        ehr_prep.build_sequences(pd.DataFrame())


def test_everybody_before_the_start_is_one_sentence() -> None:
    message = r"none of the 2 patients .* first treatment before 2008-01-01 \(2\); relax these"
    with pytest.raises(ValueError, match=message):
        build("1:2007-01-01t 2:2007-01-01t 2:2009-01-01t")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("by", "weeks"),
        ("ties", "random"),
        ("impute", "locf"),
        ("months", 0),
        ("months", 1.5),
        ("days", 0),
        ("days", float("nan")),
        ("max_windows", 0),
        ("max_carry", -1),
        ("washout_days", 0),
        ("first_on_or_after", "never"),
        ("data_cut", "12/31/2010"),
    ],
)
def test_bad_options_name_themselves(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option} is .* and should be"):
        build("2010-01-01t", **{option: value})
