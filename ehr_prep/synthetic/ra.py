"""A synthetic rheumatoid arthritis cohort: made-up records of made-up patients.

Class sizes, age, sex and race follow a published two-site study (the FONT method, Table 1).
Everything else is an assumption: see ra_cohort.json beside this file. Nothing here describes a real
patient, and nothing learnt from it is a clinical finding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.states import window_edges
from ehr_prep.values import day_text, one_day, to_dates
from font.checks import some, whole_number
from font.errors import InputError
from font.files import atomic_write

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
_BAD_DATES = ("unknown", "00/00/0000", "2013-02-31", "see chart", "")
_SHARES = ("p_", "subtype", "class_overlap", "stay_memory")  # assumptions from 0 to 1
_BAD_VALUES = ("<2", "hemolyzed", ">130", "see note", "")

NOTE = "SYNTHETIC: made-up records of made-up patients, not data of any hospital."


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticSite:
    """One site of a synthetic cohort; `synthetic` is always true.

    Parameters
    ----------
    records : DataFrame
        `patient_id`, `date`, `end_date`, `drug`, all text, as in an export.
    patients : DataFrame
        `patient_id`, `birth_date`, `sex`, `race`, `follow_up_end`.
    labs : DataFrame
        `patient_id`, `date`, `test` (ESR, in mm/h), `value`, all text.
    truth : DataFrame
        By patient_id, for those eligible: `class`, `subtype` (of those with several drugs),
        `index_date`, and the true state of each quarter, "q1" to "q16".
    """

    records: pd.DataFrame
    patients: pd.DataFrame
    labs: pd.DataFrame
    truth: pd.DataFrame
    synthetic: bool = field(default=True, init=False)

    def __repr__(self) -> str:
        return (
            f"SyntheticSite: {len(self.truth):,} eligible of {len(self.patients):,} made-up "
            f"patients, {len(self.records):,} records, {len(self.labs):,} labs"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticCohort(Mapping[str, SyntheticSite]):
    """Sites by name, as in a dict; `synthetic` is always true. Made by `ra_cohort`."""

    sites: dict[str, SyntheticSite]
    settings: dict[str, Any]
    synthetic: bool = field(default=True, init=False)

    def __getitem__(self, site: str) -> SyntheticSite:
        return self.sites[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        lines = [f"{site}: {data!r}" for site, data in self.sites.items()]
        return "\n".join([f"SyntheticCohort, seed {self.settings['seed']}", *lines])

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write {site}/medications.csv, patients.csv and labs.csv; returns the paths.

        The truth goes to truth/synthetic_{site}.csv, apart from what an analysis reads.
        SYNTHETIC.json says that all of it is made up, with the settings. Each file appears
        whole or not at all.
        """
        root, tables = Path(folder), {}
        for site, data in self.sites.items():
            tables[root / site / "medications.csv"] = data.records
            tables[root / site / "patients.csv"] = data.patients
            tables[root / site / "labs.csv"] = data.labs
            tables[root / "truth" / f"synthetic_{site}.csv"] = data.truth.reset_index()
        for path, table in tables.items():
            write_csv(path, table)
        self.write_note(root)
        return [*tables, root / "SYNTHETIC.json"]

    def write_note(self, folder: Path) -> None:
        """SYNTHETIC.json, which says that everything beside it is made up."""
        about = json.dumps({"note": NOTE, **self.settings}, indent=2, ensure_ascii=False)
        atomic_write(folder / "SYNTHETIC.json", f"{about}\n".encode())


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table of a synthetic cohort, wholly or not at all."""
    text = table.to_csv(index=False, lineterminator="\n", date_format="%Y-%m-%d")
    atomic_write(path, text.encode())


def ra_cohort(
    seed: int,
    scale: float = 1.0,
    sites: Mapping[str, int] | Iterable[str] | None = None,
    *,
    dirt: bool = True,
    **assumptions: float,
) -> SyntheticCohort:
    r"""Make up a rheumatoid arthritis cohort: records, patients and labs. SYNTHETIC.

    A patient of class k starts in state s with probability :math:`u_k(s)` and moves each
    quarter by :math:`T_k`; a state is impossible before the first drug of its class was
    approved, and the other probabilities then share its own:

    .. math:: P(x_q = s \mid x_{q-1} = r) =
        T_k(r, s) a_q(s) \big/ \textstyle\sum_t T_k(r, t) a_q(t), \quad a_q(s) \in \{0, 1\}.

    The states become courses of drugs, and these records at the rhythm of each drug, with
    late switches, overlaps and gaps. Background drugs are recorded too.

    Parameters
    ----------
    seed : int
        Each site has its own random numbers, so that adding a site changes no other.
    scale : float
        Multiplies the number of patients.
    sites : dict {name: eligible patients} or names, optional
        Default: MGB (2,164) and VA (3,158) as published. Other names are made like MGB and
        VA in turn.
    dirt : bool
        Add the mistakes of real exports: repeated records, unreadable dates, ends before starts,
        misspelt drugs, labs without a number. A patient's first record stays clean, so that
        the number of eligible patients is exact. Patients who are not eligible come on top
        in any case (`p_ineligible`).
    **assumptions : float
        Any of the "assumptions" in ra_cohort.json, such as `p_gap=0.1`. By default the courses
        are easy for a mixture of Markov chains: every class is a chain, the chains differ clearly,
        and follow-up ends whatever the patient takes. Four assumptions make them harder:
        `class_overlap` (0: the classes' chains, 1: all chains are their mean), `stay_memory` (by
        what part leaving a drug is more likely in the first quarter on it and less likely after
        a year; 0: a Markov chain), `p_lost_at_switch` (probability that follow-up ends before
        a switch, so that nobody sees it) and `subtype_separation` (0: the class of several drugs
        is one chain, 1: it consists of two that a model can distinguish).

    Returns
    -------
    SyntheticCohort
        A mapping {site: SyntheticSite} with `.write(folder)`.

    Examples
    --------
    >>> cohort = ra_cohort(seed=1, scale=0.02)
    >>> cohort["MGB"].truth["class"].value_counts(sort=False).to_dict()
    {'TNFi to CTLA4-Ig': 4, 'TNFi to anti-CD20': 6, 'multiple b/tsDMARDs': 5, 'TNFi persisters': 28}
    >>> cohort.synthetic
    True
    """
    known = parameters()["assumptions"]
    _check_settings(seed, scale, assumptions, known)
    chosen = {**known, **assumptions}
    by_name = {}
    for name, (like, counts) in _site_plan(sites, scale).items():
        rng = np.random.default_rng([int(seed), *name.encode()])
        by_name[name] = _make_site(name, like, counts, dirt, chosen, rng)
    sizes = {name: len(site.truth) for name, site in by_name.items()}
    settings = {"seed": int(seed), "patients": sizes, "dirt": bool(dirt), "assumptions": chosen}
    return SyntheticCohort(by_name, settings)


# --- what is asked for ------------------------------------------------------------------


def _check_settings(
    seed: Any, scale: float, assumptions: Mapping[str, float], known: Mapping[str, float]
) -> None:
    whole_number(seed, 0, "seed")
    if not 0 < scale < np.inf:
        raise InputError(f"scale must be a positive number, found {scale!r}.")
    for name, value in assumptions.items():
        if name not in known:
            raise TypeError(f"{name!r} is not an assumption of the cohort; there are {[*known]}.")
        top = 1.0 if name.startswith(_SHARES) else np.inf
        if not 0 <= value <= top or value == np.inf or (name == "p_ineligible" and value == 1):
            raise InputError(f"{name} must be from 0 to {top:g}, found {value!r}.")


def _site_plan(
    sites: Mapping[str, int] | Iterable[str] | None, scale: float
) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """For each site, the published one it resembles and its patients by class."""
    published = parameters()["sites"]
    names = list(published)
    if isinstance(sites, str):
        raise TypeError(f"sites must be names or {{name: patients}}, found the text {sites!r}.")
    asked = names if sites is None else list(sites)
    if not asked or any(not isinstance(n, str) or not n or set(n) & set("/\\\0") for n in asked):
        raise InputError(
            f"sites must be one or more names that can be folders, found {some(asked)}."
        )
    if len(set(asked)) < len(asked) or "truth" in asked or "." in asked or ".." in asked:
        raise InputError(f"sites must have different names, and none “truth”, found {some(asked)}.")
    plan = {}
    others = 0
    for name in asked:
        like = name if name in published else names[others % len(names)]
        others += name not in published
        counts = np.array(published[like]["patients"])
        total: Any = sites[name] if isinstance(sites, Mapping) else int(counts.sum())
        if not isinstance(total, Integral) or round(int(total) * scale) < 1:
            raise InputError(
                f"site {name} would have {total!r} × {scale:g} patients; at least 1 is needed."
            )
        plan[name] = like, apportion(counts, round(int(total) * scale))
    return plan


def apportion(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """`total` in the proportions of `counts`, in whole numbers (largest remainders).

    Examples
    --------
    >>> apportion(np.array([1, 1, 2]), 10).tolist()
    [3, 2, 5]
    """
    share = counts * total / counts.sum()
    whole: NDArray[np.int64] = np.floor(share).astype(np.int64)
    order = np.argsort(whole - share, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole


# --- one site ---------------------------------------------------------------------------


def _make_site(
    name: str,
    like: str,
    counts: NDArray[np.int64],
    dirt: bool,
    assume: Mapping[str, float],
    rng: Rng,
) -> SyntheticSite:
    site = parameters()["sites"][like]
    people = draw_people(site, counts, assume, rng)
    n = len(people.start)
    ids = np.array([f"SYN-{name}-{i:05d}" for i in range(1, n + 1)], dtype=object)
    courses, quiet = draw_courses(people, site["drugs"], assume, rng)
    treatment = dispense(courses, parameters()["drugs"], rng)
    treatment = treatment[~in_gap(treatment, quiet)]
    background = dispense(draw_background(people, rng), parameters()["background"], rng)
    log = _log_book([treatment, background], people.last)
    if dirt:
        log = _soil(log, assume, rng)
    tables = (
        _record_table(log, ids),
        _patient_table(people, site, ids, rng),
        _lab_table(people, site, ids, dirt, assume, rng),
        _truth_table(people, ids),
    )
    for table in tables:
        table.attrs["synthetic"] = NOTE
    return SyntheticSite(*tables)


# --- patients, their states and their courses of drugs ----------------------------------------


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


# --- records ----------------------------------------------------------------------------


def _log_book(parts: list[pd.DataFrame], last: Days) -> pd.DataFrame:
    """All records of a site by patient and day; `ours` are those of the classes studied."""
    log = pd.concat(
        [part.assign(ours=number == 0) for number, part in enumerate(parts)], ignore_index=True
    )
    log = log[log["day"] <= last[log["who"]]]
    log = log.sort_values(["who", "day"], kind="stable", ignore_index=True)
    own = log[log["ours"]]
    clean = np.zeros(len(log), dtype=bool)
    clean[own.index[~own["who"].duplicated()]] = True
    texts = pd.Series(_day_texts(log["day"].to_numpy()), dtype=object)
    ends = pd.Series(_day_texts(log["end"].to_numpy()), dtype=object)
    return log.assign(date=texts, end_date=ends, clean=clean)


def _soil(log: pd.DataFrame, assume: Mapping[str, float], rng: Rng) -> pd.DataFrame:
    """The dirt of exports; the first record of each patient's treatment stays clean."""
    n, clean = len(log), log["clean"].to_numpy()
    date, end, drug = (log[c].to_numpy().copy() for c in ("date", "end_date", "drug"))
    wrong = (rng.random(n) < assume["p_end_before_start"]) & ~clean
    end[wrong] = _day_texts((log["day"].to_numpy() - rng.integers(1, 400, n))[wrong])
    misspelt = (rng.random(n) < assume["p_unmapped"]) & ~clean & log["ours"].to_numpy()
    drug[misspelt] = [f"{text[:3]}{text[4:]}" for text in drug[misspelt]]
    unreadable = np.flatnonzero((rng.random(n) < assume["p_bad_date"]) & ~clean)
    date[unreadable] = np.array(_BAD_DATES, dtype=object)[
        rng.integers(0, len(_BAD_DATES), len(unreadable))
    ]
    times = 1 + (rng.random(n) < assume["p_duplicate"])
    dirty = log.assign(date=date, end_date=end, drug=drug)
    return dirty.iloc[np.repeat(np.arange(n), times)]


def _day_texts(days: NDArray[np.integer[Any]]) -> NDArray[np.object_]:
    if not len(days):
        return np.array([], dtype=object)
    first = int(days.min())
    calendar = [day_text(day) for day in range(first, int(days.max()) + 1)]
    texts: NDArray[np.object_] = np.array(calendar, dtype=object)[days - first]
    return texts


# --- tables -----------------------------------------------------------------------------


def _record_table(log: pd.DataFrame, ids: NDArray[np.object_]) -> pd.DataFrame:
    table = {"patient_id": ids[log["who"].to_numpy()]}
    table |= {column: log[column].to_numpy() for column in ("date", "end_date", "drug")}
    return pd.DataFrame(table)


def _patient_table(
    people: People, site: Mapping[str, Any], ids: NDArray[np.object_], rng: Rng
) -> pd.DataFrame:
    """Age is the truncated normal of the class, rounded: the completed years at the index."""
    from scipy.special import ndtr, ndtri

    n = len(ids)
    mean, sd = np.array(site["age"])[people.group].T
    low, high = ndtr((18 - mean) / sd), ndtr((95 - mean) / sd)
    age = np.rint(mean + sd * ndtri(low + (high - low) * rng.random(n)))
    birth = people.start - np.ceil((age + rng.uniform(0.003, 0.997, n)) * 365.2425)
    female = rng.random(n) < np.array(site["female"])[people.group]
    white = rng.random(n) < np.array(site["white"])[people.group]
    others = site["not_white"]
    other = rng.choice(list(others), n, p=list(others.values()))
    return pd.DataFrame(
        {
            "patient_id": ids,
            "birth_date": to_dates(birth.astype(np.int32)),
            "sex": np.where(female, "F", "M").astype(object),
            "race": np.where(white, "White", other).astype(object),
            "follow_up_end": to_dates(people.last),
        }
    )


def _lab_table(
    people: People,
    site: Mapping[str, Any],
    ids: NDArray[np.object_],
    dirt: bool,
    assume: Mapping[str, float],
    rng: Rng,
) -> pd.DataFrame:
    """ESR: the class's mean on the log scale, a patient's own level and slope, and noise."""
    esr, classes, n = parameters()["esr"], parameters()["classes"], len(ids)
    sd = np.array([esr["sd_intercept"], esr["sd_slope"]])
    between = np.outer(sd, sd) * np.array([[1, esr["correlation"]], [esr["correlation"], 1]])
    level, slope = rng.multivariate_normal([0, 0], between, n).T
    begin, stop = people.start - 450, np.minimum(people.last, people.start + 1200)
    years = (stop - begin + 1) / 365.25
    who = np.repeat(np.arange(n), rng.poisson(assume["labs_mean"] / 4 * years))
    day = begin[who] + np.floor(rng.random(len(who)) * (stop - begin + 1)[who]).astype(np.int64)
    order = np.lexsort((day, who))
    who, day = who[order], day[order]
    since = (day - people.start[who]) / 365.25
    mean = np.empty(len(who))
    for number, name in enumerate(classes):
        mine = people.group[who] == number
        mean[mine] = np.interp(since[mine], esr["years"], esr["log_mean"][name])
    noise = rng.normal(0, esr["sd_residual"], len(who))
    log_value = mean + site["esr_offset"] + level[who] + slope[who] * since + noise
    value = np.rint(np.exp(log_value)).clip(1, 140).astype(int).astype(str).astype(object)
    if dirt:
        bad = np.flatnonzero(rng.random(len(who)) < assume["p_bad_lab"])
        value[bad] = np.array(_BAD_VALUES, dtype=object)[
            rng.integers(0, len(_BAD_VALUES), len(bad))
        ]
    table = {"patient_id": ids[who], "date": _day_texts(day), "test": "ESR", "value": value}
    return pd.DataFrame(table)


def _truth_table(people: People, ids: NDArray[np.object_]) -> pd.DataFrame:
    chosen = people.eligible
    classes = np.array(parameters()["classes"], dtype=object)
    names = np.array([*parameters()["states"], None], dtype=object)
    followed = people.edges[:, :WINDOWS] <= people.last[:, None]
    states = np.where(followed, people.states[:, :WINDOWS], -1)[chosen]
    group = people.group[chosen]
    lean = np.where(people.leans_jak[chosen], "JAK leaning", "IL6R leaning").astype(object)
    lean[classes[group] != SEVERAL] = ""
    table = pd.DataFrame(
        {
            "class": pd.Categorical(classes[group], categories=list(classes), ordered=True),
            "subtype": lean,
            "index_date": to_dates(people.start[chosen]),
        },
        index=pd.Index(ids[chosen], name="patient_id"),
    )
    table[[f"q{q + 1}" for q in range(WINDOWS)]] = names[states]
    return table
