"""Lines of treatment: what each patient took from when to when, and why it changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.build import check_eligible, check_has_supply, check_records, choose_cohort
from ehr_prep.records import Records
from ehr_prep.settings import Rules
from ehr_prep.states import MOST_CLASSES, set_name
from ehr_prep.values import NO_DATE, to_dates, to_days
from font.checks import one_of, some, whole_number
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


def patient_lines(
    records: Records,
    *,
    min_era_days: int = 1,
    drop: Literal["new line", "same line"] = "new line",
    maintenance: Collection[str] = (),
    maintenance_days: int = 60,
    aliases: Mapping[str, str] | None = None,
    **rules: Any,
) -> pd.DataFrame:
    """Lines of treatment by date: one row per patient and line.

    Unlike `mmlca.treatment_lines`, which counts the changes of sequences of windows, this looks
    at days. A line is a stretch of time on one regimen, that is one class or several together.
    Time without any class is not a line.

    Parameters
    ----------
    records : Records
        With an end or a supply, or a `default_supply`; see `read_records`.
    min_era_days : int
        Shorter eras are ignored.
    drop : "new line" or "same line"
        Whether a new line begins when a part of the regimen is dropped. With "same line", as in
        oncology, whatever is left of the line's first regimen continues the line if it follows
        within `gap_days`; so does a return to all of it.
    maintenance : list of regimens
        These continue the line before, whatever that was, if they follow within
        `maintenance_days`, such as ["lenalidomide"] after an induction.
    maintenance_days : int
        The longest pause before maintenance, in days.
    aliases : {regimen: name}, optional
        Names of regimens, such as {"V+R+d": "VRd"}; the order of the classes does not matter.
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
        follow-up; `days`; `regimen`, such as "A+B", the one with which the line began; `reason`,
        why the line ended:

        - "switch": another regimen follows within `gap_days`;
        - "add-on": the same with a further class follows at once;
        - "drop": a part of the same follows at once;
        - "stop": nothing for more than `gap_days`;
        - "death" or "end of follow-up" within `gap_days` of the last day;

        `followed_until`, the patient's last day of follow-up, and `died`, whether of death.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"id": [7, 7], "date": ["2010-01-01", "2010-03-01"],
    ...                       "drug": ["Humira", "Orencia"], "days_supply": [90, 120]})
    >>> patients = pd.DataFrame({"id": [7], "follow_up_end": ["2010-12-31"]})
    >>> records = read_records(frame, drugs="ra", patients=patients)
    >>> patient_lines(records)[["line", "days", "regimen", "reason"]]
       line  days        regimen  reason
    0     1    59           TNFi  add-on
    1     2    31  TNFi+CTLA4-Ig    drop
    2     3    89       CTLA4-Ig    stop
    >>> named = {"CTLA4-Ig+TNFi": "both"}
    >>> lines = patient_lines(records, drop="same line", aliases=named)
    >>> lines[["line", "days", "regimen", "reason"]]
       line  days regimen  reason
    0     1    59    TNFi  add-on
    1     2   120    both    stop
    """
    for name in rules:
        if name not in RULES:
            raise TypeError(f"{name} is not an option of patient_lines; known: {', '.join(RULES)}.")
    checked = change(Rules(), rules)
    check_records(records)
    whole_number(min_era_days, 1, "min_era_days")
    whole_number(maintenance_days, 0, "maintenance_days")
    one_of(drop, ("new line", "same line"), "drop")
    check_has_supply(records, "patient_lines")
    if len(records.states) > MOST_CLASSES:
        raise InputError(
            f"lines of more than {MOST_CLASSES} classes cannot be distinguished, the drug map has "
            f"{len(records.states)}; map drugs to fewer classes."
        )
    kept_up = _sets(maintenance, records.states, "maintenance")
    aliases = aliases or {}
    named = dict(zip(_sets(aliases, records.states, "aliases"), aliases.values(), strict=True))
    cohort = choose_cohort(records, checked)
    check_eligible(cohort)
    kept = cohort.eligible
    people = records.patients
    died = np.full(int(kept.sum()), NO_DATE, dtype=np.int32)
    if people is not None and "death_date" in people:
        died = to_days(people["death_date"])[kept]
    until = cohort.last[kept]
    lengths = (checked.gap_days, checked.combination_days, min_era_days)
    found = _regimens(records, kept, (cohort.start[kept], until), lengths)
    lines = _join(found, checked.gap_days, drop == "same line", kept_up, maintenance_days)
    reason = _reasons(lines, checked.gap_days, until, died == until)
    patient = lines.patient
    line = np.arange(len(patient)) - np.searchsorted(patient, patient) + 1
    sets, code = np.unique(lines.classes, return_inverse=True)
    names = [named.get(key, set_name(key, records.states)) for key in sets.tolist()]
    return pd.DataFrame(
        {
            "id": records.ids[kept][patient],
            "line": line,
            "start": to_dates(lines.start),
            "end": to_dates(lines.end),
            "days": lines.end - lines.start + 1,
            "regimen": pd.Categorical(np.array(names, dtype=object)[code], dict.fromkeys(names)),
            "reason": pd.Categorical.from_codes(reason, list(REASONS)),
            "followed_until": to_dates(until[patient]),
            "died": (died == until)[patient],
        }
    )


class _Lines(NamedTuple):
    """Rows by patient and date: patient, first and last day, and the set of classes."""

    patient: NDArray[np.int64]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    classes: NDArray[np.int64]


def _sets(regimens: Iterable[str], classes: tuple[str, ...], name: str) -> list[int]:
    """The set of classes of each regimen."""
    number = {state: i for i, state in enumerate(classes)}
    parts = {text: [part.strip() for part in str(text).split("+")] for text in regimens}
    unknown = [text for text, names in parts.items() if not all(part in number for part in names)]
    if unknown:
        raise InputError(
            f"{name} names {some(unknown)}, which are not made of the classes {some(classes)}; "
            f"write regimens as in {'+'.join(classes[:2])!r}."
        )
    return [sum({1 << number[part] for part in names}) for names in parts.values()]


def _regimens(
    records: Records,
    kept: NDArray[np.bool_],
    days: tuple[NDArray[np.int32], NDArray[np.int32]],
    rules: tuple[int, int, int],
) -> _Lines:
    from ehr_prep import _kernels

    assert records.end is not None
    span = records.indptr[:-1][kept], records.indptr[1:][kept]
    most = 2 * int((span[1] - span[0]).sum()) * records.members.shape[1]
    types = (np.int64, np.int32, np.int32, np.int64)
    room: Any = tuple(np.empty(most, dtype=dtype) for dtype in types)
    columns = (records.date, records.end, records.state)
    n = _kernels.find_regimens(span, columns, days, records.members, rules, room)
    return _Lines(*(column[:n] for column in room))


def _join(
    found: _Lines, gap: int, drops: bool, maintenance: list[int], maintenance_days: int
) -> _Lines:
    """Join the regimens that continue a line; a line has the classes with which it began."""
    first = np.searchsorted(found.patient, found.patient)
    place = np.arange(len(first)) - first
    pause = np.zeros(len(first), dtype=np.int64)
    pause[1:] = found.start[1:].astype(np.int64) - found.end[:-1] - 1
    kept_up = np.isin(found.classes, maintenance) & (pause <= maintenance_days)
    classes, new = found.classes.copy(), np.ones(len(first), dtype=bool)
    if drops or maintenance:
        for k in range(1, int(place.max(initial=0)) + 1):
            row = np.flatnonzero(place == k)
            begun = classes[row - 1]
            part = drops & (found.classes[row] & ~begun == 0) & (pause[row] <= gap)
            new[row] = ~(part | kept_up[row])
            classes[row] = np.where(new[row], found.classes[row], begun)
    begins = np.flatnonzero(new)
    ends = np.flatnonzero(np.append(new[1:], True)[: len(new)])
    return _Lines(found.patient[begins], found.start[begins], found.end[ends], classes[begins])


def _reasons(
    lines: _Lines, gap: int, until: NDArray[np.int32], died: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Why each line ended, as an index into `REASONS`."""
    patient, start, end, now = lines
    n = len(patient)
    last = np.append(patient[1:] != patient[:-1], True)[:n]
    then = np.append(now[1:], 0)[:n]
    pause = np.append(start[1:], 0)[:n].astype(np.int64) - end - 1
    left = until[patient].astype(np.int64) - end
    return np.select(
        [
            last & (left > gap),
            last & died[patient],
            last,
            (pause == 0) & (now & then == now),
            (pause == 0) & (now & then == then),
            (pause <= gap) & (now != then),
        ],
        [
            REASONS.index(r)
            for r in ("stop", "death", "end of follow-up", "add-on", "drop", "switch")
        ],
        REASONS.index("stop"),
    ).astype(np.int8)
