"""Combinations, stopping, death and observation on a few records made by hand.

The overlaps are those with which docs/treatment_patterns.md compares the settings of the R package
TreatmentPatterns with ours. Windows have 100 days and begin on day 0 of the patient.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import mmlca
from font.errors import InputError, ReportWarning

DRUGS = {"a": "A", "b": "B", "c": "C"}


def day(n: int | None) -> dt.date | None:
    return None if n is None else dt.date(2010, 1, 1) + dt.timedelta(n)


def read(text: str, end: int | None = None, died: int | None = None, **options: Any) -> Any:
    """Records of patient 1 from words such as "a 0 30": drug, first day, days of supply."""
    words = [part.split() for part in text.split(", ")]
    frame = pd.DataFrame(
        [(1, day(int(a)), drug, rest[0] if rest else None) for drug, a, *rest in words],
        columns=["id", "date", "drug", "days_supply"],
    )
    about = {"id": [1], "follow_up_end": [day(end)]}
    if died is not None:
        about["death_date"] = [day(died)]
    patients = pd.DataFrame(about) if end is not None or died is not None else None
    return ehr_prep.read_records(frame, DRUGS, patients=patients, **options)


def build(records: Any, **rules: Any) -> mmlca.Sequences:
    combine = {"days": 100, "max_windows": 4, "states": "combinations"}
    combine |= {"min_combination_patients": 1, **rules}
    return ehr_prep.build_sequences(records, **combine)


def states(sequences: mmlca.Sequences) -> list[str | None]:
    """The states of the first patient's windows."""
    codes = sequences.codes[0, : sequences.lengths[0]]
    return [sequences.states[c] if c >= 0 else None for c in codes]


@pytest.mark.parametrize(
    ("text", "rules", "expected"),
    [
        # combinationWindow: 29 days together are a switch, 30 a combination
        ("a 0 60, b 31 60", {}, "A"),
        ("a 0 60, b 30 60", {}, "A+B"),
        ("a 0 60, b 31 60", {"combination_days": 29}, "A+B"),
        # eraCollapseSize: two supplies of A with 30 days between are one era, with 31 two
        ("a 0 30, a 60 30, b 25 40", {}, "A+B"),
        ("a 0 30, a 61 30, b 25 40", {}, "A"),
        ("a 0 30, a 61 30, b 25 40", {"gap_days": 31}, "A+B"),
        # the order of the names is that of the map, not of the records
        ("b 0 60, a 10 60", {}, "A+B"),
        ("c 0 60, a 0 60, b 0 60", {}, "A+B+C"),
        # days together need not be consecutive: 20 + 20 days
        ("a 0 100, b 0 20, b 70 20", {"gap_days": 5}, "A+B"),
        # A+B for 20 days and A+B+C for 20 days: A and B were together for 40
        ("a 0 40, b 0 40, c 20 20", {}, "A+B"),
        # of pairs the one that lasts longer
        ("a 0 90, b 0 30, c 40 31", {}, "A+C"),
        # then the one that began first
        ("a 0 90, b 50 30, c 10 30", {"combination_days": 30}, "A+C"),
        # a combination that lasts into a window without a record
        ("a 0 150, b 0 150, c 250", {}, "A+B A+B C"),
        ("a 0 129, b 0 129, c 250", {}, "A+B A C"),
        # too short to combine: the most records, or the most days
        ("a 0 10, a 10 10, b 20 70", {}, "A"),
        ("a 0 10, a 10 10, b 20 70", {"by": "days"}, "B"),
    ],
)
def test_overlaps(text: str, rules: dict[str, Any], expected: str) -> None:
    assert states(build(read(text), **rules)) == expected.split()


def test_rare_combinations_are_one_state_and_counted() -> None:
    text = "a 0 100, b 0 100, a 100 100, c 100 100, a 200 100, b 200 100, b 300 90, c 300 90"
    sequences = build(read(text), max_combinations=1)
    assert sequences.states == ("A", "B", "C", "A+B", "other combination", "none")
    assert states(sequences) == ["A+B", "other combination", "A+B", "other combination"]
    assert sequences.settings["combinations_taken"] == {"A+B": 2, "A+C": 1, "B+C": 1}
    windows = sequences.settings["windows"]
    assert (windows["combination"], windows["other_combination"]) == (4, 2)
    assert windows["several_classes"] == 4
    assert sequences.settings["combination_patients"] == {"A+B": 1, "A+C": 1, "B+C": 1}
    default = build(read(text), min_combination_patients=11)
    assert default.states == ("A", "B", "C", "other combination", "none")
    named = build(read(text), combinations=["C+B"])
    assert named.states == ("A", "B", "C", "B+C", "other combination", "none")
    assert states(named) == [*["other combination"] * 3, "B+C"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "A A A none C"),
        ({"max_carry": 0}, "A none none none C"),
        ({"impute": "carry_forward"}, "A A A A C"),
        # supply ends on day 89; 30 days later it has ended for good
        ({"impute": "carry_forward_supplied"}, "A A none none C"),
        ({"impute": "carry_forward_supplied", "gap_days": 10}, "A none none none C"),
        ({"impute": "carry_forward_supplied", "gap_days": 11}, "A A none none C"),
        ({"impute": "carry_forward_supplied", "off_treatment": "off"}, "A A off off C"),
        ({"impute": "carry_forward_supplied", "off_treatment": "missing"}, "A A ? ? C"),
        ({"impute": "missing"}, "A ? ? ? C"),
    ],
)
def test_rules_for_windows_without_a_record(rules: dict[str, Any], expected: str) -> None:
    records = read("a 0 90, c 400 30")
    sequences = build(records, states="most_frequent", max_windows=5, **rules)
    assert [s or "?" for s in states(sequences)] == expected.split()


def test_a_class_that_is_still_supplied_follows_one_that_is_not() -> None:
    records = read("a 0 10, a 20 10, b 50 100, c 350 10")
    rules = {"states": "most_frequent", "impute": "carry_forward_supplied"}
    assert states(build(records, **rules)) == ["A", "B", "none", "C"]


# --- death ---------------------------------------------------------------------------------------


def test_death_ends_follow_up_and_later_records_are_an_issue() -> None:
    records = read("a 0 30, b 150 30, a 260 30", died=180)
    with pytest.warns(ReportWarning, match="1 records .* after the patient's death") as caught:
        sequences = build(records)
    (warning,) = caught
    assert not any(sign.isdigit() for sign in warning.message.public)  # type: ignore[union-attr]
    assert states(sequences) == ["A", "B"]
    (issue,) = sequences.issues.query("issue == 'record after death'").to_dict("records")
    assert (issue["n"], issue["action"], issue["examples"]) == (1, "dropped", "1: 2010-09-18")
    flow = sequences.flow.set_index("reason")["records"]
    assert flow["after the end of follow-up"] == 1


def test_death_is_an_absorbing_state() -> None:
    records = read("a 0 30, b 150 30", died=250)
    sequences = build(records, death="state", data_cut=day(1000))
    assert states(sequences) == ["A", "B", "B", "dead"]
    assert sequences.absorbing == ("dead",)
    assert states(build(records, death="state", data_cut=day(299))) == ["A", "B", "B"]
    late = build(read("a 0 30, b 150 30", end=200, died=250), death="state")
    assert states(late) == ["A", "B", "B"]
    assert "death after the end of follow-up" in late.issues["issue"].to_list()


@pytest.mark.parametrize("known_by", ["patients", "observation", "last_record"])
def test_the_dead_leave_with_the_living_at_the_end_of_the_data(known_by: str) -> None:
    """They stayed to the last window, after the living with the same index date had left."""
    frame = pd.DataFrame(
        {"id": [1, 2, 2, 3, 3], "date": [day(n) for n in (0, 0, 250, 100, 320)], "drug": "a"}
    )
    people = pd.DataFrame({"id": [1, 2, 3], "death_date": [day(90), None, None]})
    ends = [day(90), day(250), day(320)]
    periods = pd.DataFrame({"id": [1, 2, 3], "start": [day(0)] * 3, "end": ends})
    if known_by == "patients":
        people["follow_up_end"] = ends
    records = ehr_prep.read_records(
        frame, DRUGS, patients=people, observation=periods if known_by == "observation" else None
    )
    rules: dict[str, Any] = {"days": 100, "max_windows": 9, "death": "state"}
    sequences = ehr_prep.build_sequences(records, **rules)
    assert sequences.settings["follow_up_by"] == known_by
    assert sequences.settings["data_end"] == str(day(320))
    assert states(sequences) == ["A", "dead", "dead", "dead"]
    assert sequences.lengths.tolist() == [4, 3, 3]  # patient 2 left alive, before the data ended
    assert sequences.settings["left_alive"] == 1
    cut = ehr_prep.build_sequences(records, **rules, data_cut=day(299))
    assert (states(cut), cut.settings["data_end"]) == (["A", "dead", "dead"], str(day(299)))


def test_the_share_of_the_dead_is_that_of_kaplan_and_meier() -> None:
    """Patients enter over nine years; the living leave at the end of the data and nowhere else."""
    from lifelines import KaplanMeierFitter

    rng, n, cut = np.random.default_rng(3), 3000, 3651
    entry = rng.integers(0, 3286, n)
    lives = np.maximum(rng.exponential(2500, n).astype(int), 1)
    dead = entry + lives <= cut
    frame = pd.DataFrame({"id": np.arange(n), "date": [day(int(d)) for d in entry], "drug": "a"})
    people = pd.DataFrame({"id": np.arange(n), "follow_up_end": day(cut)})
    died = [day(int(d)) if seen else None for d, seen in zip(entry + lives, dead, strict=True)]
    people["death_date"] = died
    records = ehr_prep.read_records(frame, DRUGS, patients=people)
    sequences = ehr_prep.build_sequences(records, days=182.625, max_windows=18, death="state")
    followed = np.arange(18) < sequences.lengths[:, None]
    n_in = followed.sum(axis=0)
    share = ((sequences.codes == sequences.states.index("dead")) & followed).sum(axis=0) / n_in
    time = np.where(dead, lives, cut - entry)
    curve = KaplanMeierFitter().fit(time, dead)
    risk = 1 - curve.predict(np.ceil(np.arange(1, 18) * 182.625) - 1).to_numpy()
    assert 0.6 < risk[-1] < 0.8
    assert sequences.settings["left_alive"] == 0
    assert share[0] == 0
    assert (np.abs(share[1:] - risk) < 3 * np.sqrt(risk * (1 - risk) / n_in[1:])).all()


def test_a_death_after_the_last_day_of_anyone_is_ignored_and_counted() -> None:
    sequences = build(read("a 0 30, b 150 30", died=250), death="state")
    assert states(sequences) == ["A", "B"]
    issues = dict(zip(sequences.issues["issue"], sequences.issues["n"], strict=True))
    assert issues["death after the end of the data, 2010-05-31"] == 1


def test_death_as_a_state_needs_deaths_and_its_name() -> None:
    with pytest.raises(ValueError, match="death='state' needs dates of death"):
        build(read("a 0 30"), death="state")
    with pytest.raises(ValueError, match="adds the state 'dead'"):
        build(read("a 0 30", died=50), death="state", off_treatment="dead")


def test_nobody_leaves_an_absorbing_state_in_the_model() -> None:
    rows = [["A", "A", "B", "dead"], ["A", "B", "dead", "dead"], ["B", "B", "B", "B"]] * 20
    sequences = mmlca.Sequences.from_lists(rows).absorb("dead")
    for data in (sequences, sequences[:59], sequences.reweight(np.ones(60))):
        model = mmlca.MixtureMarkov(2, n_init=4, prior=0.1, seed=1).fit(data)
        dead = model.transition_.xs("dead", level="from")
        assert (dead.to_numpy() == [0, 0, 1]).all()
    assert mmlca.Sequences.concat({"x": sequences, "y": sequences}).absorbing == ("dead",)
    with pytest.raises(ValueError, match="20 patients leave the state 'A'"):
        sequences[::3].absorb("A")
    with pytest.raises(ValueError, match="there is no state 'gone'"):
        sequences.absorb("gone")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_absorbing_states_are_kept_in_files(tmp_path: Any, suffix: str) -> None:
    sequences = mmlca.Sequences.from_lists([["A", "dead"], ["A", "A"]]).absorb("dead")
    sequences.write(tmp_path / f"s{suffix}")
    assert mmlca.Sequences.read(tmp_path / f"s{suffix}") == sequences


# --- observation ---------------------------------------------------------------------------------


def test_a_gap_in_observation_is_missing_and_records_in_it_are_counted() -> None:
    starts, ends = (-50, 30, 350), (40, 120, 460)
    periods = pd.DataFrame(
        {"id": [1, 1, 1], "start": [day(n) for n in starts], "end": [day(n) for n in ends]}
    )
    records = read("a 0 30, b 200 30, a 390 10", observation=periods)
    assert len(records) == 2
    sequences = build(records, max_windows=6, max_carry=0)
    # windows 2 and 3 were not observed, of window 4 half was
    assert states(sequences) == ["A", None, None, "A", "none"]
    assert sequences.settings["windows"]["unobserved"] == 2
    flow = sequences.flow.set_index("reason")["records"]
    assert flow["outside the observation periods"] == 1
    known = build(records, min_history_days=50)
    assert len(known) == 1
    with pytest.raises(ValueError, match="known for less than 51 days"):
        build(records, min_history_days=51)


def test_invalid_periods_are_counted() -> None:
    periods = pd.DataFrame(
        {
            "id": [1, 1, 1, 9],
            "start": ["2009-01-01", "2012-01-01", None, "2010-01-01"],
            "end": ["2010-12-31", "2011-01-01", "2013-01-01", "2010-02-01"],
        }
    )
    issues = read("a 0 30", observation=periods).issues.set_index("issue")["n"]
    assert issues["observation period ends before it starts"] == 1
    assert issues["observation period without a date"] == 1
    with pytest.raises(ValueError, match="follow_up='observation' needs observation periods"):
        build(read("a 0 30"), follow_up="observation")


# --- supplies ------------------------------------------------------------------------------------


def test_default_supplies_by_drug_and_class_are_in_the_account() -> None:
    records = read("a 0, b 10 40, c 300", default_supply={"A": 50, "c": 7})
    lengths = records.end - records.date + 1  # type: ignore[operator]
    assert lengths.tolist() == [50, 40, 7]
    (issue,) = records.issues.query("issue == 'no end or supply'").to_dict("records")
    assert (issue["n"], issue["action"]) == (2, "default of 1 to 50 days")
    assert build(records).settings["default_supply"] == {"A": 50, "c": 7}
    assert states(build(records))[0] == "A+B"
    for wrong, message in (
        ({"x": 7}, "default_supply names 'x', which are neither classes nor ingredients"),
        ({"A": 0}, "default_supply should be a whole number of days, at least 1, for 'A'; found 0"),
        (1000, "default_supply is 1,000 days; one record covers at most"),
    ):
        with pytest.raises(ValueError, match=message):
            read("a 0", default_supply=wrong)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"states": "all"}, "states is 'all' and should be 'most_frequent' or 'combinations'"),
        ({"combination_days": 0}, "combination_days is 0 and should be at least 1"),
        ({"combinations": ["A+X"]}, "combinations names 'A\\+X', which is not made of"),
        ({"combinations": ["A"]}, "combinations names 'A', which is not made of"),
        ({"states": "most_frequent", "combinations": ["A+B"]}, "belongs to states='combinations'"),
        ({"off_treatment": "A"}, "off_treatment='A' is a class of the drug map"),
        ({"off_treatment": ""}, "off_treatment is '' and should have at least 1 character"),
        ({"preset": "oa"}, "preset must be one of 'ra'; found 'oa'"),
    ],
)
def test_wrong_rules_are_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(read("a 0 30"), **rules)


def test_rules_that_need_supplies_say_so() -> None:
    frame = pd.DataFrame({"id": [1], "date": ["2010-01-01"], "drug": ["a"]})
    bare = ehr_prep.read_records(frame, DRUGS)
    for rules in ({"states": "combinations"}, {"impute": "carry_forward_supplied"}):
        with pytest.raises(ValueError, match=r"needs to know how long a record lasts.*=30"):
            ehr_prep.build_sequences(bare, **rules)


def test_what_is_given_overrides_a_preset() -> None:
    records = read("a 0 30, b 350 30")
    plain = {"states": "most_frequent"}
    assert states(build(records, preset="ra", **plain)) == ["A", "A", "A", "B"]
    rules = {"impute": "carry_forward_max", "max_carry": 1, **plain}
    assert states(build(records, preset="ra", **rules)) == ["A", "A", "none", "B"]


def test_states_have_the_order_of_the_rules() -> None:
    text, rules = "a 0 60, b 30 60, c 200 60", {"impute": "carry_forward_max", "max_windows": 5}
    plain = build(read(text), **rules)
    ordered = build(read(text), state_order=["none", "C"], **rules)
    assert ordered.states == ("none", "C", *(s for s in plain.states if s not in ("none", "C")))
    assert plain.states[0] != "none"
    assert states(ordered) == states(plain)
    assert build(read(text), state_order=[*plain.states], **rules).states == plain.states
    with pytest.raises(InputError, match="names 'X', but the states are A, B, C"):
        build(read(text), state_order=["A", "X"], **rules)
