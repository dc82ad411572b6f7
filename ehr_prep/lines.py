"""Lines of treatment: what each patient took from when to when, and why it changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.build import check_eligible, check_has_supply, check_records, choose_cohort
from ehr_prep.records import Records
from ehr_prep.settings import Rules
from ehr_prep.states import MOST_CLASSES, set_name
from ehr_prep.values import NO_DATE, to_dates, to_days
from font.checks import whole_number
from font.errors import InputError
from font.settings import change

REASONS = ("switch", "add-on", "drop", "stop", "death", "end of follow-up")
"""Why a line ends, see `patient_lines`."""
RULES = (
    "gap_days",
    "combination_days",
    "first_on_or_after",
    "washout_days",
    "min_history_days",
    "min_follow_up_days",
    "min_age",
    "max_age",
    "follow_up",
    "data_cut",
)
"""The rules of `build_sequences` that lines follow too."""


def patient_lines(records: Records, *, min_era_days: int = 1, **rules: Any) -> pd.DataFrame:
    """Lines of treatment by date: one row per patient and line.

    Unlike `mmlca.treatment_lines`, which counts the changes of sequences of windows, this looks
    at days. A line is a stretch of time on one regimen, that is one class or several together.

    Parameters
    ----------
    records : Records
        With an end or a supply, or a `default_supply`; see `read_records`.
    min_era_days : int
        Shorter eras are ignored.
    **rules
        `gap_days`: covers of one class with at most so many uncovered days between them are one
        era; a patient without any class for longer has stopped. `combination_days`: classes in use
        together for fewer days are not a combination, and these days belong to the regimen that
        follows without a break, else to the one before. `first_on_or_after`, `washout_days`,
        `min_history_days`, `min_follow_up_days`, `min_age`, `max_age`, `follow_up` and `data_cut`
        say who is eligible and followed for how long; see `Rules`. Death ends follow-up.

    Returns
    -------
    DataFrame
        `id`; `line`, counted from 1; `start` and `end`, both inclusive, cut at the end of
        follow-up; `days`; `regimen`, such as "A+B"; `reason`, why the line ended:

        - "switch": another regimen follows within `gap_days`;
        - "add-on": the same with a further class follows at once;
        - "drop": a part of the same follows at once;
        - "stop": nothing for more than `gap_days`;
        - "death" or "end of follow-up" within `gap_days` of the last day.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"id": [7, 7], "date": ["2010-01-01", "2010-03-01"],
    ...                       "drug": ["Humira", "Orencia"], "days_supply": [90, 120]})
    >>> patients = pd.DataFrame({"id": [7], "follow_up_end": ["2010-12-31"]})
    >>> lines = patient_lines(read_records(frame, drugs="ra", patients=patients))
    >>> lines[["line", "days", "regimen", "reason"]]
       line  days        regimen  reason
    0     1    59           TNFi  add-on
    1     2    31  TNFi+CTLA4-Ig    drop
    2     3    89       CTLA4-Ig    stop
    """
    for name in rules:
        if name not in RULES:
            raise TypeError(f"{name} is not an option of patient_lines; known: {', '.join(RULES)}.")
    checked = change(Rules(), rules)
    check_records(records)
    whole_number(min_era_days, 1, "min_era_days")
    check_has_supply(records, "patient_lines")
    if len(records.states) > MOST_CLASSES:
        raise InputError(
            f"lines of more than {MOST_CLASSES} classes cannot be distinguished, the drug map has "
            f"{len(records.states)}; map drugs to fewer classes."
        )
    cohort = choose_cohort(records, checked)
    check_eligible(cohort)
    kept = cohort.eligible
    people = records.patients
    died = np.full(int(kept.sum()), NO_DATE, dtype=np.int32)
    if people is not None and "death_date" in people:
        died = to_days(people["death_date"])[kept]
    lengths = (checked.gap_days, checked.combination_days, min_era_days)
    patient, start, end, classes, reason = _lines(
        records, kept, (cohort.start[kept], cohort.last[kept], died), lengths
    )
    line = np.arange(len(patient)) - np.searchsorted(patient, patient) + 1
    sets, code = np.unique(classes, return_inverse=True)
    names = [set_name(key, records.states) for key in sets.tolist()]
    return pd.DataFrame(
        {
            "id": records.ids[kept][patient],
            "line": line,
            "start": to_dates(start),
            "end": to_dates(end),
            "days": end - start + 1,
            "regimen": pd.Categorical.from_codes(code, names),
            "reason": pd.Categorical.from_codes(reason, list(REASONS)),
        }
    )


def _lines(
    records: Records,
    kept: NDArray[np.bool_],
    days: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    rules: tuple[int, int, int],
) -> Any:
    from ehr_prep import _kernels

    assert records.end is not None
    span = records.indptr[:-1][kept], records.indptr[1:][kept]
    most = 2 * int((span[1] - span[0]).sum()) * records.members.shape[1]
    types = (np.int64, np.int32, np.int32, np.int64, np.int8)
    room: Any = tuple(np.empty(most, dtype=dtype) for dtype in types)
    columns = (records.date, records.end, records.state)
    n = _kernels.find_lines(span, columns, days, records.members, rules, room)
    return tuple(column[:n] for column in room)
