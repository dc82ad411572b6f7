"""Who is studied, from which day, and until when."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.flow import Step
from ehr_prep.records import Records
from ehr_prep.sources import NO_DATE, day_text, one_day, to_days


class Cohort(NamedTuple):
    """What the rules make of the P patients of a `Records`.

    Parameters
    ----------
    eligible : (P,) bool
    start : (P,) int32
        Index date, as days since 1970-01-01.
    last : (P,) int32
        Last day of follow-up.
    steps : list of Step
        Patients dropped, with their records, by the first rule that they fail.
    n_without_end : int
        Patients whose end of follow-up is not in the patients' table.
    """

    eligible: NDArray[np.bool_]
    start: NDArray[np.int32]
    last: NDArray[np.int32]
    steps: list[Step]
    n_without_end: int


def choose_cohort(
    records: Records,
    *,
    first_on_or_after: Any,
    washout_days: int | None,
    min_history_days: int | None,
    min_follow_up_days: int | None,
    min_age: float | None,
    max_age: float | None,
    follow_up: Any,
    data_cut: Any,
) -> Cohort:
    """Apply the rules of `build_sequences`, in order."""
    start = None if first_on_or_after is None else one_day(first_on_or_after, "first_on_or_after")
    index, starts = _index_date(records, start, washout_days)
    last, n_without_end = _end_of_follow_up(records, follow_up, data_cut)
    since = "" if start is None else f" on or after {day_text(start)}"
    fails = {}
    if start is not None and washout_days is None:
        fails[f"first treatment before {day_text(start)}"] = ~starts
    elif washout_days is not None:
        fails[f"no treatment{since} after {washout_days} days without any"] = ~starts
    if min_history_days is not None:
        known_for = index - records.first_seen
        fails[f"known for less than {min_history_days} days before"] = known_for < min_history_days
    if min_age is not None or max_age is not None:
        age = _age(records.patients, index)
        fails["birth date not known"] = np.isnan(age)
        if min_age is not None:
            fails[f"younger than {min_age:g}"] = age < min_age
        if max_age is not None:
            fails[f"older than {max_age:g}"] = np.floor(age) > max_age
    fails["follow-up ends before the first treatment"] = last < index
    if min_follow_up_days is not None:
        followed = last.astype(np.int64) - index
        fails[f"followed up for less than {min_follow_up_days} days"] = (
            followed < min_follow_up_days
        )
    eligible = np.ones(len(records.ids), dtype=bool)
    n_records = np.diff(records.indptr)
    steps = []
    for reason, failing in fails.items():
        out = eligible & failing
        steps.append(Step("eligible", reason, int(out.sum()), int(n_records[out].sum())))
        eligible &= ~failing
    return Cohort(eligible, index, last, steps, n_without_end)


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
    found = np.append(position, len(records))[where]
    has_one = found < records.indptr[1:]
    return np.where(has_one, records.date[np.where(has_one, found, 0)], first), has_one


def _end_of_follow_up(
    records: Records, follow_up: Any, data_cut: Any
) -> tuple[NDArray[np.int32], int]:
    people = records.patients
    in_table = people is not None and "follow_up_end" in people
    if follow_up is None:
        follow_up = "patients" if in_table else "last_record"
    last = records.last_seen
    n_without = 0
    if isinstance(follow_up, str) and follow_up == "patients":
        if people is None or not in_table:
            raise ValueError(
                'follow_up="patients" needs a patients\' table with the end of follow-up; give it '
                'to read_records as patients=, or use follow_up="last_record".'
            )
        end = to_days(people["follow_up_end"])
        n_without = int((end == NO_DATE).sum())
        last = np.where(end == NO_DATE, last, end)
    elif not (isinstance(follow_up, str) and follow_up == "last_record"):
        if isinstance(follow_up, str) and not follow_up[:1].isdigit():
            raise ValueError(
                'follow_up must be "patients", "last_record" or a date such as "2019-07-31", '
                f"found {follow_up!r}."
            )
        last = np.full(len(last), one_day(follow_up, "follow_up"), dtype=np.int32)
    if data_cut is not None:
        last = np.minimum(last, np.int32(one_day(data_cut, "data_cut")))
    return last, n_without


def _age(people: pd.DataFrame | None, index: NDArray[np.int32]) -> NDArray[np.float64]:
    """Completed years on the index date, as whole numbers; NaN without a birth date."""
    if people is None or "birth_date" not in people:
        raise ValueError(
            "min_age and max_age need birth dates; give read_records a patients= table with them."
        )
    return completed_years(to_days(people["birth_date"]), index)


def completed_years(birth: NDArray[np.int32], day: NDArray[np.int32]) -> NDArray[np.float64]:
    """Age in whole years; NaN where the birth date is missing."""
    born, now = birth.astype("datetime64[D]"), day.astype("datetime64[D]")
    born_month, month = born.astype("datetime64[M]"), now.astype("datetime64[M]")
    months = (month - born_month).astype(np.int64)
    months -= (now - month).astype(np.int64) < (born - born_month).astype(np.int64)
    return np.where(birth == NO_DATE, np.nan, months // 12)
