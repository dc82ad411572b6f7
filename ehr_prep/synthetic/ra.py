"""A synthetic rheumatoid arthritis cohort: made-up records of made-up patients.

Class sizes, age, sex and race follow a published two-site study (the FONT method, Table 1).
Everything else is an assumption: see ra_cohort.json beside this file, and simulate.py for
the rules and the calendar. Nothing here describes a real patient, and nothing learnt from
it is a clinical finding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.dates import day_text, to_dates
from ehr_prep.synthetic.simulate import (
    SEVERAL,
    WINDOWS,
    Days,
    People,
    Rng,
    dispense,
    draw_background,
    draw_courses,
    draw_people,
    in_gap,
    parameters,
)
from font.checks import some, whole_number
from font.errors import InputError
from font.files import atomic_write

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
