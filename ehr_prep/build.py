"""Records become sequences, one state for each window of each eligible patient, and resamples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.records import Records
from ehr_prep.settings import DEAD, PRESETS, PseudoSites, Rules
from ehr_prep.states import Assigned, Frame, assign_states, check_rules, window_edges
from ehr_prep.values import NO_DATE, Issue, day_text, one_day, to_dates, to_days
from font.checks import one_of, some, whole_number
from font.errors import InputError, ReportWarning, option, option_name
from font.settings import change
from mmlca.sequences.type import Account, Sequences, Step, add_steps

_RESAMPLES = PseudoSites()


def build_sequences(
    records: Records,
    rules: Rules | None = None,
    *,
    preset: str | None = None,
    **changes: Any,
) -> Sequences:
    """Turn records into sequences of drug classes, one for each eligible patient.

    The result has an account: `.flow`, `.issues`, `.patients` and `.settings`, see
    `mmlca.sequences.type.Account`.

    Parameters
    ----------
    records : Records
        From `read_records` or `read_omop`.
    rules : Rules, optional
        How windows get their states and who is eligible; see `ehr_prep.Rules`.
    preset : "ra", optional
        Start from the rules of a known study, see `ehr_prep.PRESETS`.
    **changes
        Any field of `ehr_prep.Rules`, such as `months=6`; it overrides `rules` and the preset.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 7], "drug": ["Humira", "Humira", "Orencia"],
    ...                       "date": ["2010-01-15", "2010-02-15", "2011-01-20"]})
    >>> records = read_records(frame, drugs="ra")
    >>> sequences = build_sequences(records, max_windows=6)
    >>> sequences.to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'none', 'CTLA4-Ig', nan]
    >>> build_sequences(records, preset="ra", max_windows=6).to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'TNFi', 'CTLA4-Ig', nan]
    >>> sequences.flow["records_left"].to_list()[-1]
    3
    """
    if preset is not None:
        one_of(preset, PRESETS, "preset")
        if rules is not None:
            raise InputError(f"found both rules and preset={preset!r}; give one of them.")
        rules = PRESETS[preset]
    rules = change(rules or Rules(), changes)
    check_records(records)
    check_rules(rules, records.states)
    if rules.combine:
        check_has_supply(records, option("states", "combinations"))
    if rules.impute == "carry_forward_supplied":
        check_has_supply(records, option("impute", rules.impute))
    cohort = choose_cohort(records, rules)
    check_eligible(cohort)
    kept = cohort.eligible
    index, last = cohort.start[kept], cohort.last[kept]
    edges = window_edges(index, rules.max_windows, rules.months, rules.days)
    observed = None
    if records.observation is not None:
        observed = records.observation.take(kept).windows(edges, last)
    died = None if cohort.died is None else cohort.died[kept]
    frame = Frame(edges, last, observed, died, cohort.data_end)
    done = _in_order(assign_states(records, kept, frame, rules), rules)
    reasons = (
        "before the index date",
        "after the end of follow-up",
        f"after the last of {rules.max_windows} windows",
    )
    steps = [
        Step("sequences", reason, 0, n) for reason, n in zip(reasons, done.dropped, strict=True)
    ]
    account = Account(
        flow=add_steps(records.flow, [*cohort.steps, *steps]),
        issues=_more_issues(records.issues, cohort.issues),
        patients=_patients(records, kept, index, last),
        n_records=done.n_records,
        unmapped=records.unmapped,
        settings={
            **records.settings,
            "preset": preset,
            **rules.model_dump(mode="json"),
            "state_rule": rules.states,
            "states": list(done.states),
            "windows": done.windows,
            "combinations_taken": done.combinations,
            "combination_patients": done.takers,
            "follow_up_by": cohort.follow_up,
            **_end_of_data(frame, done.lengths),
        },
    )
    sequences = Sequences.from_codes(
        done.codes, done.states, ids=records.ids[kept], lengths=done.lengths
    )
    absorbing = (DEAD,) if rules.death == "state" else ()
    return replace(sequences, account=account, absorbing=absorbing)


def _in_order(done: Assigned, rules: Rules) -> Assigned:
    """The same with the states in the order of the rules."""
    first = list(dict.fromkeys(rules.state_order or ()))
    if unknown := [state for state in first if state not in done.states]:
        raise InputError(
            f"{option('state_order', first)} names {some(unknown)}, but the states are "
            f"{', '.join(done.states)}; correct the names, or leave them out."
        )
    states = (*first, *(state for state in done.states if state not in first))
    place = np.array([states.index(state) for state in done.states])
    codes = np.where(done.codes >= 0, place[done.codes], done.codes).astype(done.codes.dtype)
    return done._replace(codes=codes, states=states)


def check_records(records: object) -> None:
    if not isinstance(records, Records):
        raise TypeError(
            "records must come from read_records or read_omop, found "
            f"{type(records).__name__}; read them first."
        )


def check_has_supply(records: Records, what: str) -> None:
    if records.end is None:
        raise InputError(
            f"{what} needs to know how long a record lasts, and the records have neither end dates "
            f"nor days' supply; name a column as {option_name('end')} or {option_name('supply')}, "
            f"or say how many days a record covers, as in {option('default_supply', 30)}."
        )


def check_eligible(cohort: Cohort) -> None:
    if not cohort.eligible.any():
        reasons = ", ".join(f"{s.reason} ({s.patients:,})" for s in cohort.steps if s.patients)
        raise InputError(
            f"none of the {len(cohort.eligible):,} patients with a mapped drug is eligible: "
            f"{reasons}; relax these rules."
        )


# --- resamples ----------------------------------------------------------------------------


def pseudo_sites(
    sequences_by_site: Mapping[str, Sequences],
    n_per_site: int = _RESAMPLES.per_site,
    fraction: float = _RESAMPLES.fraction,
    seed: int | np.random.Generator | None = None,
) -> dict[str, Sequences]:
    """Resample every site with replacement, `n_per_site` times.

    A pseudo-site has all the patients of its site, with the number of times that each was
    drawn as weight: nothing is copied, and the distinct patterns are computed once per site.

    Parameters
    ----------
    sequences_by_site : dict {site: Sequences}
    n_per_site : int
    fraction : float
        How many patients are drawn, as a share of the site's (of its summed weights, if
        it has weights; then patients are drawn in proportion to them).
    seed : int or numpy Generator
        With a number, the draws of a site do not depend on which other sites there are: a hospital
        alone gets the same resamples as in a study of all.

    Returns
    -------
    dict
        {"MGB/1": Sequences, "MGB/2": …}

    Examples
    --------
    >>> site = Sequences.from_lists([["TNFi", "JAK"]] * 5)
    >>> {name: float(s.weights.sum()) for name, s in pseudo_sites({"MGB": site}, 2, seed=1).items()}
    {'MGB/1': 4.0, 'MGB/2': 4.0}
    """
    if not isinstance(sequences_by_site, Mapping):
        raise TypeError(
            "sequences must come by site, as a dict {site: Sequences}; found "
            f"{type(sequences_by_site).__name__}."
        )
    whole_number(n_per_site, 1, "n_per_site")
    if not fraction > 0 or not np.isfinite(fraction):
        raise InputError(f"fraction must be more than 0, found {fraction!r}.")
    resamples: dict[str, Sequences] = {}
    for site, sequences in sequences_by_site.items():
        rng = np.random.default_rng(seed)
        total = sequences.weights.sum()
        n_drawn = round(fraction * total)
        if n_drawn < 1:
            raise InputError(
                f"{fraction:g} of the {total:g} patients of {site!r} is less than one; "
                "choose a larger fraction."
            )
        _ = sequences.patterns  # computed here, reused by every reweight
        for number in range(1, n_per_site + 1):
            drawn = rng.multinomial(n_drawn, sequences.weights / total)
            resamples[f"{site}/{number}"] = sequences.reweight(drawn)
    return resamples


# --- inside ----------------------------------------------------------------------------


def _end_of_data(frame: Frame, lengths: NDArray[np.int64]) -> dict[str, Any]:
    """The end of the data where death is a state, and who left alive in a window before it."""
    if frame.died is None or frame.data_end is None:
        return {}
    possible = (frame.edges[:, :-1] <= frame.data_end).sum(axis=1)
    left = (frame.died == NO_DATE) & (lengths < possible)
    return {"data_end": day_text(frame.data_end), "left_alive": int(left.sum())}


def _more_issues(issues: pd.DataFrame, more: list[Issue]) -> pd.DataFrame:
    rows = [issue for issue in more if issue.n]
    if not rows:
        return issues
    return pd.DataFrame([*issues.itertuples(index=False), *rows], columns=list(Issue._fields))


def _patients(
    records: Records,
    kept: NDArray[np.bool_],
    index: NDArray[np.int32],
    last: NDArray[np.int32],
) -> pd.DataFrame:
    ids = records.ids[kept].rename("id")
    dates = {"index_date": to_dates(index), "follow_up_end": to_dates(last)}
    table = pd.DataFrame(dates, index=ids)
    if records.patients is None:
        return table
    known = records.patients[kept].drop(columns="follow_up_end", errors="ignore")
    if "birth_date" in known and "age" not in known:
        table["age"] = completed_years(to_days(known["birth_date"]), index)
    return table.join(known)


# --- which patients are studied, from which day and until when --------------------------------


class Cohort(NamedTuple):
    """The rules applied to the P patients of a `Records`; days are counted from 1970-01-01.

    Parameters
    ----------
    eligible : (P,) bool
    start, last : (P,) int32
        Index date, and last day of follow-up.
    steps : list of Step
        Patients dropped, with their records, by the first rule that they fail.
    issues : list of Issue
        Patients whose end of follow-up is not in the patients' table; records and deaths that
        contradict each other.
    died : (P,) int32, optional
        Day of death, `NO_DATE` for the others, where death is a state; None: it is not.
    data_end : int, optional
        The day after which nothing is known of anyone; None: there is no such day. Where death is
        a state there always is one: unless stated, the latest day on which anyone is followed.
    follow_up : str
        What ends follow-up: "patients", "observation", "last_record" or "date".
    """

    eligible: NDArray[np.bool_]
    start: NDArray[np.int32]
    last: NDArray[np.int32]
    steps: list[Step]
    issues: list[Issue]
    died: NDArray[np.int32] | None
    data_end: int | None
    follow_up: str


_ENDS = {
    "patients": "on the date in the patients' table, otherwise with the last record",
    "observation": "with the last observation period",
    "last_record": "with the last record of any kind",
    "date": "on the same day for all",
}


def follow_up_text(settings: dict[str, Any]) -> str:
    """How follow-up ends, from the settings of sequences, as a line to print."""
    text = f"Follow-up ends {_ENDS[settings['follow_up_by']]}"
    if settings["data_cut"]:
        text += f", at the latest on {settings['data_cut']}"
    if "data_end" in settings:
        text += (
            f"; patients who died are in the state {DEAD!r} until the end of the data, "
            f"{settings['data_end']}, before which {settings['left_alive']:,} patients left alive"
        )
    return f"{text}."


def choose_cohort(records: Records, rules: Rules) -> Cohort:
    """Apply the rules that choose patients and their follow-up, in order."""
    first = rules.first_on_or_after
    start = None if first is None else one_day(first, "first_on_or_after")
    index, starts = _index_date(records, start, rules.washout_days)
    kind, last, stated, data_end = _end_of_follow_up(records, rules)
    n_without_end = int((~stated).sum()) if kind == "patients" else 0
    issues = [Issue("patient without an end of follow-up", n_without_end, "last record taken", "")]
    people, died = records.patients, None
    if people is not None and "death_date" in people:
        died = to_days(people["death_date"])
    elif rules.death == "state":
        raise InputError(
            f"{option('death', 'state')} needs dates of death; give "
            f"{option_name('patients')} a table with a column death_date."
        )
    if died is not None:
        late = _after_death(records, died)
        if late.n:
            what = "of mapped drugs are dated after the patient's death and are dropped"
            public = f"records {what}; check the dates of death."
            text = f"{late.n:,} records {what} ({late.examples}); check the dates of death."
            warnings.warn(ReportWarning(text, public), stacklevel=3)
        issues.append(late)
        if rules.death == "state":
            if data_end is None:
                data_end = int(last.max())
            last, died, unseen = _until_death(last, died, stated, data_end)
            issues += [Issue(reason, n, "death ignored", "") for reason, n in unseen.items()]
        else:
            last = np.where(died == NO_DATE, last, np.minimum(last, died))
    fails = _failing(records, rules, (index, starts), start, last)
    eligible = np.ones(len(records.ids), dtype=bool)
    n_records = np.diff(records.indptr)
    steps = []
    for reason, failing in fails.items():
        out = eligible & failing
        steps.append(Step("eligible", reason, int(out.sum()), int(n_records[out].sum())))
        eligible &= ~failing
    if rules.death != "state":
        died = None
    return Cohort(eligible, index, last, steps, issues, died, data_end, kind)


def _failing(
    records: Records,
    rules: Rules,
    index: tuple[NDArray[np.int32], NDArray[np.bool_]],
    start: int | None,
    last: NDArray[np.int32],
) -> dict[str, NDArray[np.bool_]]:
    """Which patients fail each rule, by reason, in order; `index` as `_index_date` gives it."""
    (index_date, starts), washout_days = index, rules.washout_days
    since = "" if start is None else f" on or after {day_text(start)}"
    fails = {}
    if start is not None and washout_days is None:
        fails[f"first treatment before {day_text(start)}"] = ~starts
    elif washout_days is not None:
        fails[f"no treatment{since} after {washout_days} days without any"] = ~starts
    if rules.min_history_days is not None:
        since_day = records.first_seen
        if (periods := records.observation) is not None:
            since_day = periods.start[periods.holding(np.arange(len(index_date)), index_date)]
        known_for = index_date - since_day
        fails[f"known for less than {rules.min_history_days} days before"] = (
            known_for < rules.min_history_days
        )
    if rules.min_age is not None or rules.max_age is not None:
        age = _age(records.patients, index_date)
        fails["birth date not known"] = np.isnan(age)
        if rules.min_age is not None:
            fails[f"younger than {rules.min_age:g}"] = age < rules.min_age
        if rules.max_age is not None:
            fails[f"older than {rules.max_age:g}"] = np.floor(age) > rules.max_age
    fails["follow-up ends before the first treatment"] = last < index_date
    if rules.min_follow_up_days is not None:
        followed = last.astype(np.int64) - index_date
        fails[f"followed up for less than {rules.min_follow_up_days} days"] = (
            followed < rules.min_follow_up_days
        )
    return fails


def _index_date(
    records: Records, start: int | None, washout_days: int | None
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Each patient's index date, and whether they have one that fulfils the rule.

    Without a washout it is the first record, which must be on or after `start`. With one
    it is the first record on or after `start` with no other in the days before it.
    """
    first = records.date[records.indptr[:-1]]
    if washout_days is None:
        return first, np.ones(len(first), dtype=bool) if start is None else first >= start
    new = np.ones(len(records), dtype=bool)
    new[1:] = records.date[1:] - records.date[:-1] > washout_days
    new[records.indptr[:-1]] = True
    if start is not None:
        new &= records.date >= start
    position = np.flatnonzero(new)
    where = np.searchsorted(position, records.indptr[:-1])
    first_new = np.append(position, len(records))[where]
    has_one = first_new < records.indptr[1:]
    return np.where(has_one, records.date[np.where(has_one, first_new, 0)], first), has_one


def _end_of_follow_up(
    records: Records, rules: Rules
) -> tuple[str, NDArray[np.int32], NDArray[np.bool_], int | None]:
    """What ends follow-up, each patient's last day, whether it was stated, the end of all data.

    By default the first of these that is known: observation periods, the patients' table, the last
    record. A patient's last record is not a stated end: they may have been followed for longer.
    """
    people, periods = records.patients, records.observation
    known = [] if periods is None else ["observation"]
    known += ["patients"] if people is not None and "follow_up_end" in people else []
    kind = rules.follow_up or [*known, "last_record"][0]
    if kind == "patients" and kind not in known:
        raise InputError(
            f"{option('follow_up', 'patients')} needs a patients' table with the end of "
            f"follow-up; give it as {option('patients')}, or use "
            f"{option('follow_up', 'last_record')}."
        )
    if kind == "observation" and kind not in known:
        raise InputError(
            f"{option('follow_up', 'observation')} needs observation periods; give them as "
            f"{option('observation')}."
        )
    last, stated = records.last_seen, np.full(len(records.ids), kind != "last_record")
    data_end = None
    if kind == "patients" and people is not None:
        end = to_days(people["follow_up_end"])
        stated = end != NO_DATE
        last = np.where(stated, end, last)
    elif kind == "observation" and periods is not None:
        last = periods.end[periods.indptr[1:] - 1]
    elif kind != "last_record":
        kind, data_end = "date", one_day(kind, "follow_up")
        last = np.full(len(last), data_end, dtype=np.int32)
    if rules.data_cut is not None:
        cut = one_day(rules.data_cut, "data_cut")
        last = np.minimum(last, np.int32(cut))
        data_end = cut if data_end is None else min(data_end, cut)
    return str(kind), last, stated, data_end


def _after_death(records: Records, died: NDArray[np.int32]) -> Issue:
    """Records of the dead, who have none after their death."""
    dead = np.flatnonzero(died != NO_DATE)
    late = [
        (p, records.indptr[p] + i)
        for p in dead[records.date[records.indptr[dead + 1] - 1] > died[dead]].tolist()
        for i in np.flatnonzero(
            records.date[records.indptr[p] : records.indptr[p + 1]] > died[p]
        ).tolist()
    ]
    examples = [f"{records.ids[p]}: {day_text(records.date[r])}" for p, r in late[:5]]
    return Issue("record after death", len(late), "dropped", "; ".join(examples))


def _until_death(
    last: NDArray[np.int32], died: NDArray[np.int32], stated: NDArray[np.bool_], data_end: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], dict[str, int]]:
    """Follow-up that ends with death, the deaths that were seen, and how many were not and why.

    Where follow-up ends with the last record a later death still is seen; where its end was stated
    a later death is not, or else only the dead among those lost to follow-up would be known. After
    the end of the data nobody is seen to live.
    """
    known = died != NO_DATE
    late = known & stated & (died > last)
    beyond = known & ~late & (died > data_end)
    seen = known & ~late & ~beyond
    died = np.where(seen, died, np.int32(NO_DATE)).astype(np.int32)
    unseen = {
        "death after the end of follow-up": int(late.sum()),
        f"death after the end of the data, {day_text(data_end)}": int(beyond.sum()),
    }
    return np.where(seen, died, last).astype(np.int32), died, unseen


def _age(people: pd.DataFrame | None, index: NDArray[np.int32]) -> NDArray[np.float64]:
    """Completed years on the index date, as whole numbers; NaN without a birth date."""
    if people is None or "birth_date" not in people:
        raise InputError(
            f"{option_name('min_age')} and {option_name('max_age')} need birth "
            f"dates; give {option_name('patients')} a table with a column birth_date."
        )
    return completed_years(to_days(people["birth_date"]), index)


def completed_years(birth: NDArray[np.int32], day: NDArray[np.int32]) -> NDArray[np.float64]:
    """Age in whole years; NaN where the birth date is missing."""
    born, now = birth.astype("datetime64[D]"), day.astype("datetime64[D]")
    born_month, month = born.astype("datetime64[M]"), now.astype("datetime64[M]")
    months = (month - born_month).astype(np.int64)
    months -= (now - month).astype(np.int64) < (born - born_month).astype(np.int64)
    return np.where(birth == NO_DATE, np.nan, months // 12)
