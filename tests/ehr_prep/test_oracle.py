"""Random records against a slow version that follows the rules day by day with plain Python."""

from __future__ import annotations

import calendar
import datetime as dt
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehr_prep
import mmlca

DRUGS = {"alpha": "A", "beta": "B", "gamma": "C", "beta two": "B"}
CLASSES = {drug: [c] for drug, c in DRUGS.items()} | {"gamma 5/alpha 10 mg": ["A", "C"]}
STATES = ("A", "B", "C")
LATEST = dt.date(2020, 12, 31)


def read_date(text: Any) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def plus_months(day: dt.date, months: int) -> dt.date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return dt.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


class Flow:
    """Drops rows by a test and remembers how many rows and patients each test cost."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.steps: list[tuple[int, int]] = []

    def people(self) -> set[int]:
        return {r["who"] for r in self.rows if r["who"] is not None}

    def drop(self, bad: Any) -> None:
        before, people = len(self.rows), self.people()
        self.rows = [r for r in self.rows if not bad(r)]
        self.steps.append((len(people - self.people()), before - len(self.rows)))


def slow(rows: list[dict[str, Any]], people: dict[int, dict[str, Any]], o: dict[str, Any]) -> Any:
    """{patient: states of the followed-up windows} and the drops; None if nobody is left."""
    if all(read_date(r["date"]) is None for r in rows):
        return None
    if people and not {r["who"] for r in rows} & set(people):
        return None
    flow = Flow(rows)
    flow.drop(lambda r: False)  # rows with the wrong number of fields: only in files
    flow.drop(lambda r: r["who"] is None)
    flow.drop(lambda r: r["drug"] is None)
    last_seen: dict[int, dt.date] = {}

    def see(who: int, day: dt.date) -> None:
        last_seen[who] = max(last_seen.get(who, day), day)

    for r in flow.rows:
        day = read_date(r["date"])
        if r["drug"] not in CLASSES and day and dt.date(1901, 1, 1) <= day <= LATEST:
            see(r["who"], day)
    flow.drop(lambda r: r["drug"] not in CLASSES)
    flow.drop(lambda r: read_date(r["date"]) is None)
    flow.drop(lambda r: read_date(r["date"]) < dt.date(1901, 1, 1))
    flow.drop(lambda r: read_date(r["date"]) > LATEST)
    flow.drop(lambda r: r["who"] in people and read_date(r["date"]) < people[r["who"]]["born"])
    for r in flow.rows:
        r["day"] = read_date(r["date"])
        see(r["who"], r["day"])
        end = read_date(r["end"])
        fine = end is not None and r["day"] <= end and (end - r["day"]).days < 730
        r["last"] = end if fine else r["day"]
    seen = set()

    def repeated(r: dict[str, Any]) -> bool:
        key = (r["who"], r["day"], r["drug"], r["last"])
        again = key in seen
        seen.add(key)
        return again

    flow.drop(repeated)
    history: dict[int, list[dict[str, Any]]] = {}
    for r in sorted(flow.rows, key=lambda r: r["day"]):
        history.setdefault(r["who"], []).append(r)
    index, end_of = {}, {}
    for who, own in history.items():
        days = [r["day"] for r in own]
        start = o["first_on_or_after"] and dt.date.fromisoformat(o["first_on_or_after"])
        if o["washout_days"] is None:
            candidates = days[:1]
        else:
            gap = dt.timedelta(o["washout_days"])
            earlier = [[d for d in days[:i] if d >= day - gap] for i, day in enumerate(days)]
            candidates = [day for day, others in zip(days, earlier, strict=True) if not others]
        candidates = [d for d in candidates if start is None or d >= start]
        if candidates:
            index[who] = candidates[0]
        end_of[who] = last_seen[who]
        if o["follow_up"] is None and people:
            end_of[who] = people.get(who, {}).get("end") or last_seen[who]
        elif o["follow_up"] not in (None, "last_record"):
            end_of[who] = dt.date.fromisoformat(o["follow_up"])
    if o["first_on_or_after"] is not None or o["washout_days"] is not None:
        flow.drop(lambda r: r["who"] not in index)
    flow.drop(lambda r: end_of[r["who"]] < index[r["who"]])
    if o["min_follow_up_days"] is not None:
        wanted = dt.timedelta(o["min_follow_up_days"])
        flow.drop(lambda r: end_of[r["who"]] - index[r["who"]] < wanted)
    if not flow.rows:
        return None
    sequences = {}
    for who in sorted(flow.people()):
        edges = [index[who]]
        for w in range(1, o["max_windows"] + 1):
            if o["days"] is None:
                edges.append(plus_months(index[who], w * o["months"]))
            else:
                edges.append(index[who] + dt.timedelta(math.ceil(w * o["days"])))
        own = [r for r in history[who] if index[who] <= r["day"] <= end_of[who]]
        own = [r for r in own if r["day"] < edges[-1]]
        windows = [
            (a, b - dt.timedelta(1))
            for a, b in zip(edges, edges[1:], strict=False)
            if a <= end_of[who]
        ]
        counted = [(days_by_class(own, a, b, o), supply_by_class(own, a, b)) for a, b in windows]
        sequences[who] = fill(counted, o)
    flow.drop(lambda r: r["day"] < index[r["who"]])
    flow.drop(lambda r: r["day"] > end_of[r["who"]])
    edge = {}
    for who in index:
        months = plus_months(index[who], o["months"] * o["max_windows"])
        ends = o["days"] and index[who] + dt.timedelta(math.ceil(o["max_windows"] * o["days"]))
        edge[who] = ends or months
    flow.drop(lambda r: r["day"] >= edge[r["who"]])
    return sequences, flow.steps, len(flow.rows)


def days_by_class(
    own: list[dict[str, Any]], a: dt.date, b: dt.date, o: dict[str, Any]
) -> dict[str, Any]:
    """For each class, the days on which it counts in the window from a to b."""
    days: dict[str, Any] = {}
    for r in own:
        if o["by"] == "records":
            marks = [r["day"]] if a <= r["day"] <= b else []
        else:
            n = (r["last"] - r["day"]).days + 1
            marks = [r["day"] + dt.timedelta(i) for i in range(n)]
            marks = [d for d in marks if a <= d <= b]
        for c in CLASSES[r["drug"]]:
            days.setdefault(c, []).extend(marks)
    if o["by"] == "days":
        days = {c: sorted(set(marks)) for c, marks in days.items()}
    return {c: sorted(marks) for c, marks in days.items() if marks}


def supply_by_class(own: list[dict[str, Any]], a: dt.date, b: dt.date) -> dict[str, int]:
    """For each class, the days supplied by its records in the window from a to b."""
    days = dict.fromkeys(STATES, 0)
    for r in own:
        if a <= r["day"] <= b:
            for c in CLASSES[r["drug"]]:
                days[c] += (r["last"] - r["day"]).days + 1
    return days


def fill(
    windows: list[tuple[dict[str, Any], dict[str, int]]], o: dict[str, Any]
) -> list[str | None]:
    """The state of each window from the days and the supply of each class in it."""
    states: list[str | None] = []
    taken = None
    run = 0
    for days, supply in windows:
        if days:
            most = max(len(marks) for marks in days.values())
            tied = [c for c in STATES if len(days.get(c, [])) == most]
            previous = states[-1] if states else None

            ranks = {}
            for c in tied:
                when = -days[c][-1].toordinal() if o["ties"] == "latest" else days[c][0].toordinal()
                leaves = o["ties"] == "previous" and c != previous
                ranks[c] = (leaves, when, -supply[c], c != taken, c)
            taken, run = min(tied, key=ranks.__getitem__), 0
            states.append(taken)
        elif o["impute"] == "missing":
            states.append(None)
        else:
            run += 1
            limit = o["max_carry"] if o["impute"] == "carry_forward_max" else 10**6
            states.append(taken if run <= limit else "none")
    return states


START = dt.date(2007, 9, 28)
dates = st.one_of(
    st.integers(0, 700).map(lambda n: (START + dt.timedelta(n)).isoformat()),
    st.integers(0, 120).map(lambda n: (START + dt.timedelta(n)).isoformat()),
    st.sampled_from(["2008-01-31", "2008-02-29", "2008-04-30", "2008-08-31"]),
    st.sampled_from(["junk", "2008-02-30", "1900-01-01", "2999-12-31", None]),
)


@st.composite
def records(draw: Any) -> list[dict[str, Any]]:
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        date = draw(dates)
        length = draw(st.one_of(st.none(), st.integers(-4, 200), st.just(5000)))
        end = None
        if length is not None and read_date(date) and read_date(date).year < 2900:
            end = (read_date(date) + dt.timedelta(length)).isoformat()
        rows.append(
            {
                "who": draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, None])),
                "date": date,
                "drug": draw(st.sampled_from([*CLASSES, *CLASSES, *CLASSES, "unknown", None])),
                "end": end,
            }
        )
    return rows


people_tables = st.dictionaries(
    st.integers(1, 5),
    st.fixed_dictionaries(
        {
            "born": st.sampled_from([dt.date(1950, 1, 1), dt.date(2008, 3, 1)]),
            "end": st.sampled_from([None, dt.date(2007, 12, 1), dt.date(2008, 9, 15)]),
        }
    ),
)
rules = st.fixed_dictionaries(
    {
        "first_on_or_after": st.sampled_from([None, None, "2008-01-01"]),
        "washout_days": st.sampled_from([None, None, 30, 60]),
        "follow_up": st.sampled_from([None, None, "last_record", "2008-12-31"]),
        "min_follow_up_days": st.sampled_from([None, None, 40]),
        "months": st.integers(1, 4),
        "days": st.sampled_from([None, None, 30.4375]),
        "max_windows": st.integers(1, 7),
        "by": st.sampled_from(["records", "days"]),
        "ties": st.sampled_from(["first", "latest", "previous"]),
        "impute": st.sampled_from(["carry_forward", "carry_forward_max", "missing"]),
        "max_carry": st.integers(0, 2),
    }
)


@pytest.mark.filterwarnings("ignore:only .* patients of the table are in")
@settings(max_examples=250, deadline=None)
@given(records(), people_tables, rules)
def test_sequences_and_flow_agree_with_the_slow_version(
    rows: list[dict[str, Any]], people: dict[int, dict[str, Any]], options: dict[str, Any]
) -> None:
    frame = pd.DataFrame(rows, columns=["who", "date", "drug", "end"], dtype=object)
    patients = pd.DataFrame(
        {
            "id": list(people),
            "follow_up_end": [p["end"] for p in people.values()],
            "birth_date": [p["born"] for p in people.values()],
        }
    )
    expected = slow([dict(r) for r in rows], people, options)

    def ours() -> mmlca.Sequences:
        made = ehr_prep.read_records(
            frame, DRUGS, patient="who", latest=LATEST, patients=patients if people else None
        )
        return ehr_prep.build_sequences(made, **options)

    if expected is None:
        with pytest.raises(ValueError, match=r"\.$"):
            ours()
        return
    sequences = ours()
    wanted, steps, n_left = expected
    found = {
        i: [sequences.states[c] if c >= 0 else None for c in row[:n]]
        for i, row, n in zip(sequences.ids, sequences.codes, sequences.lengths, strict=True)
    }
    assert found == wanted
    flow = sequences.flow
    if not people:
        steps = steps[:7] + steps[8:]  # nobody has a birth date
    assert list(zip(flow["patients"], flow["records"], strict=True))[1:] == steps
    assert flow["records_left"].iat[-1] == n_left
    assert sequences.account is not None
    assert sequences.account.n_records.sum() == n_left
    assert flow["patients_left"].iat[-1] == len(wanted)
    assert flow["records_left"].iat[0] == len(rows)


@settings(max_examples=100, deadline=None)
@given(records(), st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(rows: list[dict[str, Any]], random: Any) -> None:
    frame = pd.DataFrame(rows, columns=["who", "date", "drug", "end"], dtype=object)
    shuffled = list(rows)
    random.shuffle(shuffled)
    other = pd.DataFrame(shuffled, columns=["who", "date", "drug", "end"], dtype=object)

    def result(table: pd.DataFrame) -> Any:
        try:
            made = ehr_prep.read_records(table, DRUGS, patient="who", latest=LATEST)
            return ehr_prep.build_sequences(made, first_on_or_after=None)
        except ValueError:
            return None

    one, two = result(frame), result(other)
    assert one == two
    if one is not None:
        pd.testing.assert_frame_equal(one.flow, two.flow)
        counted = one.issues[["issue", "n"]]
        pd.testing.assert_frame_equal(counted, two.issues[["issue", "n"]])


@settings(max_examples=60, deadline=None)
@given(records(), rules, st.permutations(list(DRUGS)), st.booleans())
def test_the_order_of_the_drug_map_changes_no_course(
    rows: list[dict[str, Any]], options: dict[str, Any], order: list[str], combine: bool
) -> None:
    """Ties on one day once went to whichever class the drug map names first."""
    frame = pd.DataFrame(rows, columns=["who", "date", "drug", "end"], dtype=object)
    if combine:
        options = {**options, "states": "combinations", "combination_days": 5}
        options |= {"max_combinations": 1, "impute": "carry_forward_supplied"}
        options |= {"min_combination_patients": 1}

    def courses(drugs: dict[str, str]) -> Any:
        try:
            made = ehr_prep.read_records(frame, drugs, patient="who", latest=LATEST)
            sequences = ehr_prep.build_sequences(made, **options)
        except ValueError:
            return None
        names = [frozenset(state.split("+")) for state in sequences.states] + [frozenset()]
        lengths = sequences.lengths.tolist()
        return lengths, [[names[code] for code in row] for row in sequences.codes]

    assert courses({drug: DRUGS[drug] for drug in order}) == courses(DRUGS)
