"""How synthetic patients come about: their states, their courses of drugs, and the records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.dates import one_day
from ehr_prep.states import window_edges

WINDOWS = 16
"""Quarters with a true state."""

_BEYOND = 1  # quarters after these that still have records
_FIRST, _LAST, _CUT = "2008-01-01", "2019-04-30", "2019-07-31"  # index dates, data cut
_EARLY = "2004-01-01"  # the first index date of those who are not eligible
_HEAD_START = 365  # days before its approval from which one may lean to a class of drugs
_MOST_JITTER = 40  # days; courses of one quarter stay in order
SEVERAL = "multiple b/tsDMARDs"

Days = NDArray[np.int32]
Rng = np.random.Generator


@cache
def parameters() -> dict[str, Any]:
    """The contents of ra_cohort.json."""
    text = Path(__file__).with_name("ra_cohort.json").read_text(encoding="utf-8")
    contents: dict[str, Any] = json.loads(text)
    return contents


class People(NamedTuple):
    """Arrays over the patients of a site; `edges` (n, quarters + 1), `states` (n, quarters)."""

    group: NDArray[np.int64]  # the latent class
    leans_jak: NDArray[np.bool_]
    eligible: NDArray[np.bool_]
    treated: NDArray[np.bool_]
    start: Days
    last: Days
    edges: Days
    states: NDArray[np.int8]


class Courses(NamedTuple):
    """Arrays over the courses of one drug, in the order of patients and time."""

    who: NDArray[np.int64]
    drug: NDArray[np.int64]
    first: Days
    last: Days


def draw_people(
    site: Mapping[str, Any], counts: NDArray[np.int64], assume: Mapping[str, float], rng: Rng
) -> People:
    """The patients of a site, in random order, with those on top who are not eligible."""
    n_eligible = int(counts.sum())
    share = assume["p_ineligible"]
    n = n_eligible + round(n_eligible * share / (1 - share))
    group = np.repeat(np.arange(len(counts)), counts)
    group = np.append(group, rng.choice(len(counts), n - n_eligible, p=counts / counts.sum()))
    order = rng.permutation(n)
    group, eligible = group[order], order < n_eligible
    # of those not eligible, two thirds were treated too early and one third never
    treated = eligible | (rng.random(n) < 2 / 3)
    leans_jak = rng.random(n) < site["JAK_leaning"]
    index = _draw_index(group, leans_jak, eligible, rng)
    edges = window_edges(index, WINDOWS + _BEYOND)
    quarters = rng.geometric(max(site["dropout"], 1e-9), n)
    until = index + ((quarters - rng.random(n)) * 91.3125).astype(np.int64)
    end = np.minimum(until, one_day(_CUT, "cut")).astype(np.int32)
    states = _draw_states(site, group, leans_jak, edges[:, :-1], assume, rng)
    end = _lose_at_switch(states, edges, end, assume["p_lost_at_switch"], rng)
    return People(group, leans_jak, eligible, treated, index, end, edges, states)


def _draw_index(
    group: NDArray[np.int64],
    leans_jak: NDArray[np.bool_],
    eligible: NDArray[np.bool_],
    rng: Rng,
) -> Days:
    """Index dates; who leans to a class of drugs starts at most a year before its approval."""
    begin, end, early = (one_day(day, "index") for day in (_FIRST, _LAST, _EARLY))
    several = group == parameters()["classes"].index(SEVERAL)
    since = _approvals()
    lean = np.where(leans_jak, since["JAK"], since["IL6R"]) - _HEAD_START
    first = np.where(several, np.maximum(lean, begin), begin)
    first, stop = np.where(eligible, first, early), np.where(eligible, end + 1, begin)
    return rng.integers(first, stop).astype(np.int32)


def _lose_at_switch(states: NDArray[np.int8], edges: Days, end: Days, p: float, rng: Rng) -> Days:
    """The last day of follow-up; with probability p it is the one before a switch."""
    if not p:
        return end
    lost = (states[:, 1:] != states[:, :-1]) & (rng.random(states[:, 1:].shape) < p)
    quarter = lost.argmax(axis=1) + 1
    before = edges[np.arange(len(edges)), quarter] - 1
    last: Days = np.where(lost.any(axis=1), np.minimum(end, before), end)
    return last


def _approvals() -> dict[str, int]:
    """The day on which the first drug of each class was approved."""
    days: dict[str, int] = {}
    for drug in parameters()["drugs"].values():
        day = one_day(drug["approved"], "approved")
        days[drug["class"]] = min(day, days.get(drug["class"], day))
    return days


def _draw_states(
    site: Mapping[str, Any],
    group: NDArray[np.int64],
    leans_jak: NDArray[np.bool_],
    starts: Days,
    assume: Mapping[str, float],
    rng: Rng,
) -> NDArray[np.int8]:
    """True states (n, quarters) of each patient's chain, none before its first approval."""
    facts = parameters()
    initial = np.array([site["initial"][c] for c in facts["classes"]])
    transition = np.array([facts["transition"][c] for c in facts["classes"]])
    alike = assume["class_overlap"]
    initial, transition = (
        (1 - alike) * part + alike * part.mean(axis=0) for part in (initial, transition)
    )
    several, apart = facts["classes"].index(SEVERAL), assume["subtype_separation"]
    for subtype in facts["subtypes"].values():
        start = apart * np.array(subtype["initial"]) + (1 - apart) * initial[several]
        move = apart * np.array(subtype["transition"]) + (1 - apart) * transition[several]
        initial, transition = np.vstack([initial, [start]]), np.concatenate([transition, [move]])
    chain = np.where(group == several, len(facts["classes"]) + leans_jak, group)
    approved = _approvals()
    since = np.array([approved[s] for s in facts["states"]])
    states = np.empty(starts.shape, dtype=np.int8)
    stayed = np.zeros(len(starts), dtype=np.int64)  # quarters on the present drug class before
    for quarter in range(starts.shape[1]):
        before = states[:, quarter - 1]
        rows = initial[chain] if quarter == 0 else transition[chain, before]
        if quarter and assume["stay_memory"]:
            rows = _remember(rows, before, stayed, assume["stay_memory"])
        allowed = rows * (starts[:, quarter, None] >= since)
        states[:, quarter] = _draw_columns(allowed, rng)
        stayed = np.where(states[:, quarter] == before, stayed + 1, 0) if quarter else stayed
    return states


def _remember(
    rows: NDArray[np.float64], state: NDArray[np.int8], stayed: NDArray[np.int64], memory: float
) -> NDArray[np.float64]:
    """Rows of a chain in which leaving a drug becomes less likely in the course of a year.

    The probability to leave is multiplied by 1 + `memory` after the first quarter on the drug, by
    1 − `memory` after the fourth and later ones, and by what lies between before that.
    """
    who = np.arange(len(rows))
    leave = 1 - rows[who, state]
    factor = 1 + memory * (1 - 2 * np.minimum(stayed, 3) / 3)
    factor = np.minimum(factor, 1 / np.maximum(leave, 1e-9))
    rows = rows * factor[:, None]
    rows[who, state] = 1 - leave * factor
    return rows


def _draw_columns(weights: NDArray[np.float64], rng: Rng) -> NDArray[np.int64]:
    """One column per row, with probabilities in proportion to the weights."""
    below = weights.cumsum(axis=1)
    drawn = rng.random(len(weights)) * below[:, -1]
    column: NDArray[np.int64] = (below <= drawn[:, None]).sum(axis=1)
    return column


def draw_courses(
    people: People, preference: Mapping[str, float], assume: Mapping[str, float], rng: Rng
) -> tuple[Courses, Days]:
    """Courses of one drug each, and the gap that begins in each quarter (n, quarters, 2)."""
    drugs, names = parameters()["drugs"], parameters()["states"]
    states, edges = people.states, people.edges
    shape = states.shape
    followed = (edges[:, :-1] <= people.last[:, None]) & people.treated[:, None]
    new = np.ones(shape, dtype=bool)
    new[:, 1:] = states[:, 1:] != states[:, :-1]
    new |= (states == names.index("TNFi")) & (rng.random(shape) < assume["p_cycle_tnf"])
    who, quarter = np.nonzero(new & followed)

    jitter = rng.normal(0, assume["switch_jitter_sd"], len(who))
    late = rng.random(len(who)) < assume["p_late_switch"]
    jitter = np.where(late, np.abs(jitter), jitter).clip(-_MOST_JITTER, _MOST_JITTER)
    first = edges[who, quarter] + np.where(quarter > 0, jitter, 0).astype(np.int32)
    drug = np.empty(len(who), dtype=np.int64)
    weight = np.array([preference[d] for d in drugs])
    since = np.array([one_day(d["approved"], "approved") for d in drugs.values()])
    state_of = np.array([names.index(d["class"]) for d in drugs.values()])
    previous = np.full(shape[0], -1)
    for q in range(shape[1]):
        now = np.flatnonzero(quarter == q)
        begins = edges[who[now], q]
        fits = (state_of == states[who[now], q, None]) & (since <= begins[:, None])
        fits &= np.arange(len(drugs)) != previous[who[now], None]
        drug[now] = previous[who[now]] = _draw_columns(weight * fits, rng)
    first = np.maximum(first, since[drug]).astype(np.int32)

    same = np.append(who[1:] == who[:-1], False)
    end = np.minimum(people.last, edges[:, -1] - 1)[who]
    last = np.where(same, np.append(first[1:], 0) - 1, end)
    overlap = same & (rng.random(len(who)) < assume["p_overlap"])
    covered = np.where(overlap, last + rng.integers(14, 91, len(who)), last)
    covered = np.minimum(covered, end).astype(np.int32)

    # a gap never begins in the first quarter of a course, and ends with it
    course = np.full(shape, -1)
    course[who, quarter] = np.arange(len(who))
    course = np.maximum.accumulate(course, axis=1)
    begins = edges[:, :-1] + rng.integers(0, 90, shape)
    lasts = rng.exponential(max(assume["gap_mean_quarters"], 1e-9) * 91.3125, shape)
    has_one = followed & ~new & (rng.random(shape) < assume["p_gap"])
    ends = np.minimum(begins + lasts, last[course]) if len(who) else begins
    gaps = np.stack([begins, np.where(has_one, ends, begins - 1)], axis=2).astype(np.int32)
    return Courses(who, drug, first, covered), gaps


def draw_background(people: People, rng: Rng) -> Courses:
    """Courses of drugs outside the five classes, from up to a year before to the end."""
    share = np.array([d["share"] for d in parameters()["background"].values()])
    who, drug = np.nonzero(rng.random((len(people.start), len(share))) < share)
    end = np.minimum(people.last, people.edges[:, -1])[who]
    first = people.start[who] - rng.integers(0, 366, len(who))
    stop = first + rng.exponential(4 * 365, len(who))
    return Courses(who, drug, first.astype(np.int32), np.minimum(stop, end).astype(np.int32))


# --- records ----------------------------------------------------------------------------


def dispense(courses: Courses, drugs: Mapping[str, Any], rng: Rng) -> pd.DataFrame:
    """Records of the courses at the rhythm of their drugs: who, day, last day, text."""
    facts = list(drugs.values())
    longest = max(len(f.get("induction", ())) for f in facts) + 1
    step = np.array(
        [[*(i := f.get("induction", [])), *[f["every"]] * (longest - len(i))] for f in facts]
    )
    shortest = step.min(axis=1)
    spread, supply = (np.array([f[key] for f in facts]) for key in ("spread", "supply"))
    texts = np.array([text for f in facts for text in f["names"]], dtype=object)
    n_texts = np.array([len(f["names"]) for f in facts])

    # more steps than a course can hold, then those that are too late are dropped
    days = np.maximum(courses.last - courses.first + 1, 0)
    n_records = np.where(days > 0, np.ceil(days / (shortest[courses.drug] / 2)).astype(int), 0)
    course = np.repeat(np.arange(len(days)), n_records)
    starts = np.cumsum(n_records) - n_records
    number = np.arange(len(course)) - starts[course]
    drug = courses.drug[course]
    usual = step[drug, np.minimum(number - 1, longest - 1)]
    noise = rng.normal(0, 1, len(course)) * np.minimum(spread[drug], usual / 7)
    taken = np.where(number == 0, 0, np.maximum(np.rint(usual + noise), usual / 2))
    run = taken.cumsum()
    day = courses.first[course] + (run - (run - taken)[starts[course]]).astype(np.int64)
    keep = day <= courses.last[course]
    text = (np.cumsum(n_texts) - n_texts)[courses.drug]
    text = text + rng.integers(0, n_texts[courses.drug])
    frame = {
        "who": courses.who[course],
        "day": day,
        "end": day + supply[drug] - 1,
        "drug": texts[text[course]],
    }
    return pd.DataFrame({name: column[keep] for name, column in frame.items()})


def in_gap(treatment: pd.DataFrame, gaps: Days) -> NDArray[np.bool_]:
    who, day = treatment["who"].to_numpy(), treatment["day"].to_numpy()
    inside = np.zeros(len(treatment), dtype=bool)
    for quarter in range(gaps.shape[1]):
        inside |= (day >= gaps[who, quarter, 0]) & (day <= gaps[who, quarter, 1])
    return inside
