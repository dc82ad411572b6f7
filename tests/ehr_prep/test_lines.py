"""Lines of treatment: cases by hand, and random records against a version that walks over days."""

from __future__ import annotations

import datetime as dt
import warnings
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehr_prep

DRUGS = {"a": "A", "b": "B", "c": "C"}
START = dt.date(2010, 1, 1).toordinal()


def day(n: int) -> dt.date:
    return dt.date.fromordinal(START + n)


def records(rows: list[tuple[int, str, int, int]], people: dict[int, Any]) -> ehr_prep.Records:
    """Records (patient, drug, first day, days); people {patient: (end of follow-up, death)}."""
    frame = pd.DataFrame(
        [(who, drug, day(a), n) for who, drug, a, n in rows],
        columns=["id", "drug", "date", "days_supply"],
    )
    patients = pd.DataFrame(
        {
            "id": list(people),
            "follow_up_end": pd.to_datetime([day(end) for end, _ in people.values()]),
            "death_date": pd.to_datetime(
                [None if died is None else day(died) for _, died in people.values()]
            ),
        }
    )
    return ehr_prep.read_records(frame, DRUGS, patients=patients)


def shown(lines: pd.DataFrame) -> list[tuple[Any, ...]]:
    since = pd.Timestamp(day(0))
    columns = ((lines["start"] - since).dt.days, (lines["end"] - since).dt.days)
    return [
        (who, a, b, str(regimen), str(reason))
        for who, a, b, regimen, reason in zip(
            lines["id"], *columns, lines["regimen"], lines["reason"], strict=True
        )
    ]


CASES = {
    "one era over a gap of 30 days": ("a 0 30, a 60 30", [(0, 89, "A", "stop")]),
    "a longer gap is a stop": ("a 0 30, a 61 30", [(0, 29, "A", "stop"), (61, 90, "A", "stop")]),
    "a switch at once": ("a 0 60, b 60 60", [(0, 59, "A", "switch"), (60, 119, "B", "stop")]),
    "a switch after a pause": ("a 0 60, b 90 60", [(0, 59, "A", "switch"), (90, 149, "B", "stop")]),
    "another after a long pause": (
        "a 0 60, b 91 60",
        [(0, 59, "A", "stop"), (91, 150, "B", "stop")],
    ),
    "a short overlap is a switch": (
        "a 0 60, b 31 100",
        [(0, 30, "A", "switch"), (31, 130, "B", "stop")],
    ),
    "a long overlap is an add-on": (
        "a 0 60, b 30 100",
        [(0, 29, "A", "add-on"), (30, 59, "A+B", "drop"), (60, 129, "B", "stop")],
    ),
    "a short visitor leaves no trace": ("a 0 120, b 40 29", [(0, 119, "A", "stop")]),
    "a short overlap at the end": ("a 0 60, b 40 20", [(0, 59, "A", "stop")]),
    "a short overlap alone stays": ("a 0 20, b 0 20", [(0, 19, "A+B", "stop")]),
    "a fixed combination": ("a/b 0 40", [(0, 39, "A+B", "stop")]),
    "two add-ons": (
        "a 0 120, b 40 120, c 80 120",
        [
            (0, 39, "A", "add-on"),
            (40, 79, "A+B", "add-on"),
            (80, 119, "A+B+C", "drop"),
            (120, 159, "B+C", "drop"),
            (160, 199, "C", "stop"),
        ],
    ),
    "follow-up ends": ("a 0 390", [(0, 389, "A", "end of follow-up")]),
    "supply beyond follow-up": ("a 0 500", [(0, 400, "A", "end of follow-up")]),
}


@pytest.mark.parametrize("case", CASES)
def test_by_hand(case: str) -> None:
    text, expected = CASES[case]
    words = [part.split() for part in text.split(", ")]
    rows = [(1, drug, int(a), int(n)) for drug, a, n in words]
    lines = ehr_prep.patient_lines(records(rows, {1: (400, None)}))
    assert shown(lines) == [(1, *line) for line in expected]
    assert lines["line"].to_list() == [*range(1, len(expected) + 1)]
    assert ((lines["end"] - lines["start"]).dt.days + 1 == lines["days"]).all()


def test_death_is_a_reason_only_while_treated() -> None:
    rows = [(1, "a", 0, 100), (2, "a", 0, 100), (3, "a", 0, 100)]
    lines = ehr_prep.patient_lines(records(rows, {1: (400, 129), 2: (400, 131), 3: (50, 90)}))
    assert shown(lines) == [
        (1, 0, 99, "A", "death"),
        (2, 0, 99, "A", "stop"),
        (3, 0, 50, "A", "end of follow-up"),
    ]


def test_short_eras_can_be_ignored() -> None:
    made = records([(1, "a", 0, 90), (1, "b", 90, 10), (1, "c", 100, 90)], {1: (400, None)})
    lines = ehr_prep.patient_lines(made, min_era_days=11)
    assert shown(lines) == [(1, 0, 89, "A", "switch"), (1, 100, 189, "C", "stop")]


def test_lines_need_supplies_and_fair_numbers() -> None:
    bare = ehr_prep.read_records(
        pd.DataFrame({"id": [1], "date": ["2010-01-01"], "drug": ["a"]}), DRUGS
    )
    with pytest.raises(ValueError, match="patient_lines needs to know how long a record lasts"):
        ehr_prep.patient_lines(bare)
    made = records([(1, "a", 0, 90)], {1: (400, None)})
    with pytest.raises(ValueError, match="gap_days is -1 and should be at least 0"):
        ehr_prep.patient_lines(made, gap_days=-1)
    with pytest.raises(TypeError, match="must come from read_records"):
        ehr_prep.patient_lines(pd.DataFrame())  # type: ignore[arg-type]


# --- day by day -------------------------------------------------------------------------------


def slow(rows: list[Any], end: int, died: int | None, gap: int, least: int, shortest: int) -> Any:
    """The lines of one patient."""
    last = end if died is None else min(end, died)
    index = min(a for _, a, _ in rows)
    if last < index:
        return None
    active: dict[int, set[str]] = {}
    for c in "ABC":
        covered = {
            d for drug, a, n in rows if a <= last and c.lower() in drug for d in range(a, a + n)
        }
        joined = set(covered)
        for d in covered:
            ahead = [e for e in covered if d < e <= d + gap + 1]
            joined |= set(range(d, max(ahead, default=d)))
        days = sorted(joined)
        groups = groupby(enumerate(days), key=lambda pair: pair[1] - pair[0])
        for _, era in groups:
            stretch = [d for _, d in era]
            if len(stretch) >= shortest:
                for d in stretch:
                    if d <= last:
                        active.setdefault(d, set()).add(c)
    days = sorted(active)
    runs: list[list[Any]] = []
    for d in days:
        if runs and runs[-1][1] == d - 1 and runs[-1][2] == active[d]:
            runs[-1][1] = d
        else:
            runs.append([d, d, active[d]])
    brief = [len(r[2]) > 1 and r[1] - r[0] + 1 < least for r in runs]
    resolved = [None if b else r[2] for b, r in zip(brief, runs, strict=True)]
    for i in reversed(range(len(runs) - 1)):
        if resolved[i] is None and runs[i + 1][0] == runs[i][1] + 1:
            resolved[i] = resolved[i + 1]
    for i in range(1, len(runs)):
        if resolved[i] is None and runs[i][0] == runs[i - 1][1] + 1:
            resolved[i] = resolved[i - 1]
    lines: list[list[Any]] = []
    for (a, b, own), regimen in zip(runs, resolved, strict=True):
        regimen = regimen or own
        if lines and lines[-1][1] == a - 1 and lines[-1][2] == regimen:
            lines[-1][1] = b
        else:
            lines.append([a, b, regimen])
    out = []
    for i, (a, b, regimen) in enumerate(lines):
        if i + 1 < len(lines):
            pause, then = lines[i + 1][0] - b - 1, lines[i + 1][2]
            if pause == 0 and regimen < then:
                reason = "add-on"
            elif pause == 0 and then < regimen:
                reason = "drop"
            else:
                reason = "switch" if pause <= gap and then != regimen else "stop"
        elif last - b > gap:
            reason = "stop"
        else:
            reason = "death" if died == last else "end of follow-up"
        out.append((a, b, "+".join(sorted(regimen)), reason))
    return out


row = st.tuples(st.sampled_from(["a", "b", "c", "a/b"]), st.integers(0, 120), st.integers(1, 60))
person = st.tuples(st.integers(0, 200), st.one_of(st.none(), st.integers(0, 200)))


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.integers(1, 3), st.tuples(st.lists(row, min_size=1, max_size=7), person), min_size=1
    ),
    st.sampled_from([0, 5, 30]),
    st.sampled_from([1, 10, 30]),
    st.sampled_from([1, 1, 15]),
)
def test_lines_agree_with_the_slow_version(
    people: dict[int, Any], gap: int, least: int, shortest: int
) -> None:
    made = records(
        [(who, *r) for who, (rows, _) in people.items() for r in rows],
        {who: about for who, (_, about) in people.items()},
    )
    expected = {
        who: slow(rows, *about, gap, least, shortest) for who, (rows, about) in people.items()
    }
    rules = {"gap_days": gap, "combination_days": least, "min_era_days": shortest}
    if all(lines is None for lines in expected.values()):
        with pytest.raises(ValueError, match="is eligible"):
            ehr_prep.patient_lines(made, **rules)
        return
    wanted = [(who, *line) for who in sorted(expected) for line in expected[who] or []]
    assert shown(ehr_prep.patient_lines(made, **rules)) == wanted


REGIMENS = {
    "a dropped partner stays on the line": (
        "a 0 120, b 0 60, c 120 60",
        {},
        [(0, 119, "A+B", "switch"), (120, 179, "C", "stop")],
    ),
    "and the partner may come back": (
        "a 0 180, b 0 60, b 120 60",
        {},
        [(0, 179, "A+B", "stop")],
    ),
    "a new class is a new line": (
        "a 0 120, b 0 120, c 60 120",
        {},
        [(0, 59, "A+B", "add-on"), (60, 179, "A+B+C", "stop")],
    ),
    "maintenance may come later, with another class": (
        "a 0 60, b 0 60, c 115 100",
        {"maintenance": ["C"]},
        [(0, 214, "A+B", "stop")],
    ),
    "but not as late as that": (
        "a 0 60, b 0 60, c 121 100",
        {"maintenance": ["C"]},
        [(0, 59, "A+B", "stop"), (121, 220, "C", "stop")],
    ),
    "what comes after maintenance is a line": (
        "a 0 60, c 60 60, b 120 60",
        {"maintenance": ["C"]},
        [(0, 119, "A", "switch"), (120, 179, "B", "stop")],
    ),
    "nobody begins with maintenance": (
        "c 0 60, c 200 60",
        {"maintenance": ["C"]},
        [(0, 59, "C", "stop"), (200, 259, "C", "stop")],
    ),
    "names": (
        "a 0 60, b 0 60, c 60 60",
        {"aliases": {"B+A": "AB"}},
        [(0, 59, "AB", "switch"), (60, 119, "C", "stop")],
    ),
}


@pytest.mark.parametrize("case", REGIMENS)
def test_lines_by_the_rules_of_oncology(case: str) -> None:
    text, options, expected = REGIMENS[case]
    words = [part.split() for part in text.split(", ")]
    made = records([(1, drug, int(a), int(n)) for drug, a, n in words], {1: (400, None)})
    lines = ehr_prep.patient_lines(made, drop="same line", **options)
    assert shown(lines) == [(1, *line) for line in expected]


def test_unknown_regimens_are_named() -> None:
    made = records([(1, "a", 0, 60)], {1: (400, None)})
    with pytest.raises(ValueError, match=r"maintenance names 'D', which are not made of the class"):
        ehr_prep.patient_lines(made, maintenance=["D"])
    with pytest.raises(ValueError, match=r"aliases names 'A\+D'"):
        ehr_prep.patient_lines(made, aliases={"A+D": "AD"})
    with pytest.raises(ValueError, match="drop"):
        ehr_prep.patient_lines(made, drop="no line")  # type: ignore[arg-type]


def test_time_to_the_next_line_is_that_of_lifelines() -> None:
    """Quartiles of Kaplan–Meier, and of Aalen–Johansen where death competes."""
    lifelines = pytest.importorskip("lifelines")
    rng = np.random.default_rng(1)
    n = 200
    switch, death = rng.integers(30, 900, n), rng.integers(100, 2000, n)
    end = rng.integers(200, 700, n)
    until = np.minimum(death, end)
    rows = [
        (i, drug, int(a), int(b - a + 1))
        for i in range(n)
        for drug, a, b in (("a", 0, min(switch[i] - 1, until[i])), ("b", switch[i], until[i]))
        if a <= b
    ]
    died = {i: int(death[i]) if death[i] <= end[i] else None for i in range(n)}
    lines = ehr_prep.patient_lines(records(rows, {i: (int(end[i]), died[i]) for i in range(n)}))
    next_line = switch <= until
    time = np.where(next_line, switch, until).astype(float)
    dies = np.array([d is not None for d in died.values()]) & ~next_line
    row = ehr_prep.time_to_next_line(lines, max_lines=2).iloc[0]
    curve = lifelines.KaplanMeierFitter().fit(time, next_line | dies)
    assert row[["patients", "next_line", "died"]].tolist() == [n, next_line.sum(), dies.sum()]
    for name, level in {"q25": 0.75, "median": 0.5, "q75": 0.25}.items():
        wanted = lifelines.utils.qth_survival_time(level, curve.survival_function_)
        assert row[name] == wanted or (np.isinf(wanted) and np.isnan(row[name])), name
    limits = curve.confidence_interval_
    low, high = (lifelines.utils.qth_survival_time(0.5, limits[[name]]) for name in limits)
    assert row[["low", "high"]].tolist() == [low, high]
    rivals = lifelines.AalenJohansenFitter(jitter_level=0, calculate_variance=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ties
        rivals.fit(time + 1e-6 * rng.random(n), np.where(next_line, 1, 2 * dies), 1)
    share = rivals.cumulative_density_.iloc[:, 0]
    competing = ehr_prep.time_to_next_line(lines, death="competing").iloc[0]
    for name, level in {"q25": 0.25, "median": 0.5}.items():
        assert competing[name] == pytest.approx(share.index[share >= level][0], abs=1e-3)


def test_time_to_the_next_line_hides_small_numbers() -> None:
    rows = [(i, "a", 0, 100) for i in range(30)] + [(i, "b", 100 + i, 100) for i in range(5)]
    lines = ehr_prep.patient_lines(records(rows, dict.fromkeys(range(30), (400, None))))
    shown_rows = ehr_prep.time_to_next_line(lines, min_count=11)
    assert shown_rows["line"].tolist() == [1]
    assert shown_rows[["next_line", "died", "censored"]].isna().all(axis=None)
    with pytest.raises(ValueError, match="lines has no column 'followed_until'"):
        ehr_prep.time_to_next_line(lines.drop(columns="followed_until"))
