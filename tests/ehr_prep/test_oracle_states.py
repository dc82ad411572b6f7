"""Combinations, stopping, death and observation against plain Python that looks at every day.

In most examples all days, lengths and rules are multiples of 5 or 10 days, so that supplies end and
gaps close exactly where a rule begins to hold: a day more or less anywhere changes the states.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from itertools import combinations as subsets
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehr_prep

DRUGS = {"alpha": "A", "beta": "B", "gamma": "C", "delta": "D"}
CLASSES = {drug: [c] for drug, c in DRUGS.items()} | {"gamma 5/alpha 10 mg": ["A", "C"]}
STATES = ("A", "B", "C", "D")
START = dt.date(2010, 1, 1).toordinal()
DEFAULT = {"A": 20, "beta": 15}  # B's days are those of its drug; other classes cover one day


def supply(drug: str) -> int:
    return {"alpha": 20, "beta": 15, "gamma 5/alpha 10 mg": 20}.get(drug, 1)


def end_of_data(rows: list[Any], people: dict[int, Any], periods: dict[int, Any]) -> int:
    """The latest day on which any patient with a usable record is followed."""
    days = []
    for who in {r["who"] for r in rows}:
        own = [r["day"] for r in rows if r["who"] == who]
        if periods:
            own = [d for d in own if any(a <= d <= b for a, b in periods.get(who, []))]
        if own:
            stated = people.get(who, {}).get("end")
            ends = [b for _, b in periods.get(who, [])]
            days.append(max(ends) if periods else stated or max(own))
    return max(days, default=0)


def slow(
    rows: list[Any], people: dict[int, Any], periods: dict[int, Any], o: dict[str, Any]
) -> Any:
    """{patient: states}, combinations and windows with several classes; None if nobody is left."""
    out: dict[int, list[str | None]] = {}
    several, outside = 0, 0
    data_end = end_of_data(rows, people, periods)
    for who in sorted({r["who"] for r in rows}):
        own = sorted((r for r in rows if r["who"] == who), key=lambda r: (r["day"], r["drug"]))
        seen_days = None
        if periods:
            seen_days = {d for a, b in periods.get(who, []) for d in range(a, b + 1)}
            outside += sum(r["day"] not in seen_days for r in own)
            own = [r for r in own if r["day"] in seen_days]
        if not own:
            continue
        index, last_record = own[0]["day"], own[-1]["day"]
        died = people.get(who, {}).get("died")
        stated = people.get(who, {}).get("end") if people else None
        if periods:
            stated = max(seen_days or ())
        last = last_record if stated is None else stated
        late = died is not None and stated is not None and died > stated
        if o["death"] == "state" and died is not None and (late or died > data_end):
            died = None
        if died is not None:
            last = died if o["death"] == "state" else min(last, died)
        if last < index:
            continue
        own = [r for r in own if r["day"] <= last]
        n_days, n_windows = o["days"], o["max_windows"]
        own = [r for r in own if r["day"] < index + n_days * n_windows]
        windows = []
        for w in range(n_windows):
            a = index + w * n_days
            if a <= last:
                windows.append(range(a, a + n_days))
        for r in own:
            r["until"] = r["last"] if r["last"] is not None else r["day"] + supply(r["drug"]) - 1
        cover = {
            c: {d for r in own if c in CLASSES[r["drug"]] for d in range(r["day"], r["until"] + 1)}
            for c in STATES
        }
        if o["states"] == "combinations":
            for c in STATES:
                filled = sorted(cover[c])
                for a, b in zip(filled, filled[1:], strict=False):
                    if b - a - 1 <= o["gap_days"]:
                        cover[c] |= set(range(a, b))
        states: list[str | None] = []
        carried, run = "", 0
        for w, window in enumerate(windows):
            records = {
                c: [r["day"] for r in own if r["day"] in window and c in CLASSES[r["drug"]]]
                for c in STATES
            }
            days = {c: sorted(cover[c] & set(window)) for c in STATES}
            if o["by"] == "days" or (o["states"] == "combinations" and not any(records.values())):
                marks = days
            else:
                marks = records
            active = [c for c in STATES if (days[c] if o["states"] == "combinations" else marks[c])]
            several += len(active) > 1
            state = together(days, o) if o["states"] == "combinations" else None
            if state is None and any(marks.values()):
                most = max(map(len, marks.values()))
                tied = [c for c in STATES if len(marks[c]) == most]
                before = (states[-1] or "").split("+") if states else []
                supplied = {
                    c: sum(
                        r["until"] - r["day"] + 1
                        for r in own
                        if r["day"] in window and c in CLASSES[r["drug"]]
                    )
                    for c in tied
                }
                ranks = {
                    c: (
                        o["ties"] == "previous" and c not in before,
                        -marks[c][-1] if o["ties"] == "latest" else marks[c][0],
                        -supplied[c],
                        c not in carried.split("+"),
                        c,
                    )
                    for c in tied
                }
                state = min(tied, key=lambda c: ranks[c])
            if state is not None:
                carried, run = state, 0
                states.append(state)
                continue
            run += 1
            off = None if o["off_treatment"] == "missing" else o["off_treatment"]
            looked = [d for d in window if d <= last]
            if seen_days is not None and 2 * len(seen_days & set(looked)) < len(looked):
                states.append(None)
                continue
            if o["impute"] == "missing":
                states.append(None)
            elif o["impute"] == "carry_forward":
                states.append(carried)
            elif o["impute"] == "carry_forward_max":
                states.append(carried if run <= o["max_carry"] else off)
            else:
                reaches = [
                    (c, r["until"]) for r in own if r["day"] < window[0] for c in CLASSES[r["drug"]]
                ]
                reach = {c: max(d for other, d in reaches if other == c) for c, _ in reaches}
                on = [c for c in reach if reach[c] + o["gap_days"] >= window[0]]
                if set(carried.split("+")) <= set(on):
                    states.append(carried)
                elif on:
                    carried = max(on, key=lambda c: (reach[c], -STATES.index(c)))
                    states.append(carried)
                else:
                    states.append(off)
            assert w > 0  # the index date is in the first window
        if died is not None and o["death"] == "state":
            for w in range(n_windows):
                if died < index + w * n_days <= data_end:
                    assert w >= len(states)
                    states.append("dead")
        out[who] = states
    return (out, several, outside) if out else None


def together(days: dict[str, list[int]], o: dict[str, Any]) -> str | None:
    """The largest set of classes that share enough days, by trying all."""
    candidates = []
    for size in range(len(STATES), 1, -1):
        for chosen in subsets(STATES, size):
            common = set.intersection(*(set(days[c]) for c in chosen))
            if len(common) >= o["combination_days"]:
                candidates.append((-len(common), min(common), chosen))
        if candidates:
            return "+".join(min(candidates)[2])
    return None


def pooled(states: dict[int, list[str | None]], o: dict[str, Any]) -> Any:
    """Give rare combinations, or those that are not named, one name."""
    return {
        who: [
            s if s is None or "+" not in s or s in o["kept"] else "other combination" for s in row
        ]
        for who, row in states.items()
    }


days = st.integers(0, 150)
later = st.one_of(st.none(), st.integers(120, 350), st.integers(0, 350))
a_record = st.fixed_dictionaries(
    {
        "who": st.sampled_from([1, 1, 1, 1, 2, 2, 3]),
        "day": days.map(lambda n: START + n),
        "drug": st.sampled_from([*CLASSES, *CLASSES, "alpha", "beta"]),
        "length": st.one_of(st.none(), st.integers(1, 30), st.integers(1, 90)),
        "stated": st.sampled_from(["end", "supply", "both"]),
    }
)
a_person = st.fixed_dictionaries(
    {
        "end": later.map(lambda n: None if n is None else START + n),
        "died": later.map(lambda n: None if n is None else START + n),
    }
)
a_period = st.tuples(days, st.integers(20, 200)).map(lambda t: (START + t[0], START + sum(t)))
rules = st.fixed_dictionaries(
    {
        "tick": st.sampled_from([1, 5, 10]),
        "days": st.sampled_from([20, 31, 61]),
        "max_windows": st.sampled_from([1, 4, 8, 12]),
        "states": st.sampled_from(["combinations", "combinations", "most_frequent"]),
        "by": st.sampled_from(["records", "days"]),
        "ties": st.sampled_from(["first", "latest", "previous"]),
        "gap_days": st.sampled_from([0, 3, 10, 30]),
        "combination_days": st.sampled_from([1, 4, 10, 15]),
        "max_combinations": st.sampled_from([1, 2, 10]),
        "min_combination_patients": st.sampled_from([1, 1, 2]),
        "named": st.sampled_from([None, None, ["A+B", "C+A"]]),
        "impute": st.sampled_from(
            ["carry_forward", "carry_forward_supplied", "carry_forward_max", "missing"]
        ),
        "max_carry": st.integers(0, 2),
        "off_treatment": st.sampled_from(["none", "off", "missing"]),
        "death": st.sampled_from(["end", "state"]),
    }
)


def on_grid(n: int, tick: int) -> int:
    return n // tick * tick


def end_and_supply(r: dict[str, Any]) -> tuple[dt.date | None, int | None]:
    """How a record says its length: with both, the end counts."""
    if r["stated"] == "supply":
        return None, r["length"]
    wrong = None if r["length"] is None or r["stated"] == "end" else r["length"] + 7
    return date(r["last"]), wrong


def date(day: int | None) -> dt.date | None:
    return None if day is None else dt.date.fromordinal(day)


@pytest.mark.filterwarnings("ignore:only .* patients of the table are in")
@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.lists(a_record, min_size=6, max_size=16), st.lists(a_record, min_size=1, max_size=16)
    ),
    st.fixed_dictionaries(dict.fromkeys((1, 2, 3), a_person)),
    st.one_of(
        st.just({}),
        st.dictionaries(st.sampled_from([1, 2, 3]), st.lists(a_period, min_size=1, max_size=3)),
    ),
    rules,
)
def test_states_agree_with_the_slow_version(
    rows: list[dict[str, Any]],
    people: dict[int, Any],
    periods: dict[int, list[tuple[int, int]]],
    options: dict[str, Any],
) -> None:
    tick = options.pop("tick")
    rows = [
        dict(
            r,
            day=START + on_grid(r["day"] - START, tick),
            length=None if r["length"] is None else max(on_grid(r["length"], tick), tick),
        )
        for r in rows
    ]
    for rule in ("days", "gap_days", "combination_days"):
        options[rule] = max(on_grid(options[rule], tick), int(rule != "gap_days"))
    distinct = {(r["who"], r["day"], r["drug"], r["length"]): r for r in rows}
    rows = [
        dict(r, last=None if r["length"] is None else r["day"] + r["length"] - 1)
        for r in distinct.values()
    ]
    # a record whose end is that of its default supply is the same record
    rows = list(
        {
            (r["who"], r["day"], r["drug"], r["last"] or r["day"] + supply(r["drug"]) - 1): r
            for r in rows
        }.values()
    )
    frame = pd.DataFrame(
        [(r["who"], date(r["day"]), r["drug"], *end_and_supply(r)) for r in rows],
        columns=["id", "date", "drug", "end", "days_supply"],
        dtype=object,
    )
    patients = pd.DataFrame(
        {
            "id": list(people),
            "follow_up_end": [date(p["end"]) for p in people.values()],
            "death_date": [date(p["died"]) for p in people.values()],
        }
    )
    observation = pd.DataFrame(
        [(who, date(a), date(b)) for who, own in periods.items() for a, b in own],
        columns=["id", "start", "end"],
    )
    named = options.pop("named")
    wanted = slow([dict(r) for r in rows], people, periods, options)
    combine = options["states"] == "combinations"

    def ours() -> Any:
        records = ehr_prep.read_records(
            frame,
            DRUGS,
            patients=patients,
            observation=observation if periods else None,
            default_supply=DEFAULT,
        )
        return ehr_prep.build_sequences(records, combinations=named if combine else None, **options)

    if wanted is None:
        with pytest.raises(ValueError, match=r"\.$"):
            ours()
        return
    sequences = ours()
    states, several, outside = wanted
    taken = Counter(s for row in states.values() for s in row if s is not None and "+" in s)
    carried = sequences.settings["combinations_taken"]
    assert carried == dict(taken)  # a carried combination counts, too
    takers = Counter(s for row in states.values() for s in set(row) if s is not None and "+" in s)
    assert sequences.settings["combination_patients"] == dict(takers)
    common = [s for s in carried if takers[s] >= options["min_combination_patients"]]
    kept = {"A+B", "A+C"} if named else set(common[: options["max_combinations"]])
    assert sorted(taken.values(), reverse=True) == list(carried.values())
    found = {
        i: [sequences.states[c] if c >= 0 else None for c in row[:n]]
        for i, row, n in zip(sequences.ids, sequences.codes, sequences.lengths, strict=True)
    }
    assert found == pooled(states, {"kept": kept})
    windows = sequences.settings["windows"]
    assert windows["several_classes"] == several
    assert windows.get("combination", 0) == sum(taken.values())
    dead = sum(row.count("dead") for row in states.values())
    assert windows.get("dead", 0) == dead
    assert windows["followed_up"] + dead == sum(map(len, states.values()))
    assert ("dead" in sequences.states) == (options["death"] == "state")
    flow = sequences.flow.set_index("reason")["records"]
    assert flow.get("outside the observation periods", 0) == outside
    assert flow.sum() + sequences.account.n_records.sum() == len(rows)


@pytest.mark.parametrize("gap", [1, 7, 30])
def test_an_era_ends_with_the_first_day_beyond_the_gap(gap: int) -> None:
    """A pauses for exactly `gap` days while B goes on; together for 20 days and the pause."""
    dates = [START, START + 10 + gap, START]
    frame = pd.DataFrame(
        {
            "id": 1,
            "date": [date(day) for day in dates],
            "drug": ["alpha", "alpha", "beta"],
            "days_supply": [10, 10, 100],
        }
    )
    records = ehr_prep.read_records(frame, DRUGS)

    def state(gap_days: int, combination_days: int) -> str:
        sequences = ehr_prep.build_sequences(
            records,
            days=100,
            states="combinations",
            by="days",
            gap_days=gap_days,
            combination_days=combination_days,
            min_combination_patients=1,
        )
        return str(sequences.to_frame().iloc[0, 0])

    assert state(gap, 20 + gap) == "A+B"
    assert state(gap, 21 + gap) == "B"
    assert state(gap - 1, 20 + gap) == "B"
    assert state(gap - 1, 20) == "A+B"
    assert state(gap - 1, 21) == "B"
