"""Checks of single records: which are usable, and what is unusual about them; and sorting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap, Texts
from ehr_prep.patients import Observation
from ehr_prep.settings import Reading
from ehr_prep.values import NO_DATE, Issue, count_rows, day_text, factorize, read_numbers, to_days
from font.checks import some
from font.errors import InputError, option_name

MAX_DAYS = 730
"""One record cannot cover more days than this: a longer supply or a later end is a mistake."""


class Rows(NamedTuple):
    """Records as integers, (n,) each.

    Parameters
    ----------
    who : int32
        Position among the ids, −1 if none.
    day : int32
        Days since 1970-01-01, or `NO_DATE`.
    drug : int32
        Position among the drug texts, −1 if none.
    last : int32 or None
        The last day covered.
    """

    who: NDArray[np.int32]
    day: NDArray[np.int32]
    drug: NDArray[np.int32]
    last: NDArray[np.int32] | None

    def keep(self, which: NDArray[np.bool_]) -> Self:
        last = None if self.last is None else self.last[which]
        return type(self)(self.who[which], self.day[which], self.drug[which], last)


class Checks(NamedTuple):
    """What records are checked against; `people`, `periods` and `entry` are in the order of `ids`.

    Parameters
    ----------
    name : of the table, for messages
    entry : name and (P,) int32, optional
        What patients enter by, and on which day.
    suggest : bool
        Look for a known name that each unknown text resembles.
    """

    name: str
    ids: pd.Index
    texts: Texts
    known: DrugMap
    span: tuple[int, int]
    people: pd.DataFrame | None = None
    periods: Observation | None = None
    entry: tuple[str, NDArray[np.int32]] | None = None
    reading: Reading = Reading()
    suggest: bool = True


class Checked(NamedTuple):
    """Usable records, sorted and without repetitions, and what was dropped and why.

    Parameters
    ----------
    rows : Rows
    reasons : list of str
    dropped : (1 + reasons,)
        Records by reason; 0 are the usable ones, repetitions included.
    leaves_at : (P,)
        See `last_reasons`.
    again : int
        Repetitions that were dropped.
    issues : list of Issue
    """

    rows: Rows
    reasons: list[str]
    dropped: NDArray[np.int64]
    leaves_at: NDArray[np.int8]
    again: int
    issues: list[Issue]


class Others(NamedTuple):
    """What is known besides the records that were read, or fetched, and can be used.

    Parameters
    ----------
    patients, records, broken : int
        How many there were, and rows with the wrong number of fields.
    left_out : {reason: (patients, records)}
        Those of a database that were dropped there.
    unmapped : (texts,)
        Number of patients with each drug text, by its row label, where that has no class.
    lost : (P,)
        Each patient's records of drugs that the map does not know.
    first, last : (P,) int32
        First and last day with such a record, or a lab test; the last before the first if there
        is none.
    """

    patients: int
    records: int
    broken: int
    left_out: Mapping[str, tuple[int, int]]
    unmapped: NDArray[np.int64]
    lost: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]

    def widen(self, who: NDArray[np.integer], day: NDArray[np.int32]) -> None:
        """Widen each patient's first and last day, in place."""
        np.minimum.at(self.first, who, day)
        np.maximum.at(self.last, who, day)


def check_rows(
    frame: pd.DataFrame,
    columns: Mapping[str, Any],
    rows: Rows,
    end: NDArray[np.int32] | None,
    checks: Checks,
) -> Checked:
    """Drop what cannot be used, find the last day that each record covers, and sort.

    `frame` holds the records as they were read: all of a file, or those of mapped drugs in a
    database; `rows` are the same as numbers, without last days, and `end` their end dates.
    """
    ids = checks.ids
    reasons, dropped_for = unusable(rows, checks)
    written = frame[columns["date"]]
    issues = [
        count_rows(reason, dropped_for == number, "dropped", rows.who, ids, written)
        for number, reason in enumerate(reasons, start=1)
        if reason.startswith("date")
    ]
    kept = dropped_for == 0
    leaves_at = last_reasons(rows.who, dropped_for, len(ids))
    covered = frame[[columns[role] for role in ("end", "supply") if role in columns]]
    if not kept.all():
        covered, rows = covered[kept], rows.keep(kept)
        end = None if end is None else end[kept]
    last, unusual = last_days(covered, columns, rows, end, checks)
    rows = sort_records(rows._replace(last=last)) if len(rows.who) else rows._replace(last=last)
    again = repeats(rows)
    drop = checks.reading.duplicates != "keep"
    done = "dropped" if drop else "kept"
    issues += [
        *unusual,
        count_rows("repeats another record", again, done, rows.who, ids, rows.day),
    ]
    if drop and again.any():
        rows = rows.keep(~again)
    dropped = np.bincount(dropped_for, minlength=len(reasons) + 1)
    return Checked(rows, reasons, dropped, leaves_at, int(again.sum()) if drop else 0, issues)


def days_unknown(n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """First and last days of patients of whom nothing is known yet."""
    most = np.iinfo(np.int32).max
    return np.full(n, most, dtype=np.int32), np.full(n, -most, dtype=np.int32)


NO_ID, NO_DRUG, NOT_MAPPED = "no patient id", "no drug", "drug not in the map"


def unusable(rows: Rows, checks: Checks) -> tuple[list[str], NDArray[np.int8]]:
    """The reasons in order, and the first that applies to each record: 0 for none, or from 1."""
    day, (first, last), people, entry = rows.day, checks.span, checks.people, checks.entry
    not_mapped = checks.texts.state_of[rows.drug] < 0
    tests = {NO_ID: rows.who < 0, NO_DRUG: rows.drug < 0, NOT_MAPPED: not_mapped}
    if entry is not None:
        name, entered = entry[0], np.append(entry[1], np.int32(NO_DATE))[rows.who]
        tests[f"patient without {name}"] = entered == NO_DATE
    tests["date missing or unreadable"] = day == NO_DATE
    tests[f"date before {day_text(first)}"] = day < first
    tests[f"date after {day_text(last)}"] = day > last
    if people is not None and "birth_date" in people:
        birth = np.append(to_days(people["birth_date"]), np.int32(NO_DATE))
        tests["date before birth"] = day < birth[rows.who]
    if checks.periods is not None:
        tests["outside the observation periods"] = checks.periods.holding(rows.who, day) < 0
    if entry is not None:
        tests[f"before {name}"] = day < entered
    dropped_for = np.zeros(len(day), dtype=np.int8)
    for number, fails in enumerate(tests.values(), start=1):
        if fails.any():
            dropped_for[fails & (dropped_for == 0)] = number
    return list(tests), dropped_for


def last_reasons(
    patient: NDArray[np.integer[Any]], dropped_for: NDArray[np.int8], n_patients: int
) -> NDArray[np.int8]:
    """Why each patient leaves: with their last record, the latest of the reasons that took one.

    It is 0 for patients with a record that is kept, and for those without any record. `patient` is
    −1 for a record that names none.
    """
    dropped = np.flatnonzero(dropped_for)
    stays = np.zeros(n_patients, dtype=bool)
    stays[patient if not len(dropped) else patient[dropped_for == 0]] = True
    named = dropped[patient[dropped] >= 0]
    leaves_at = np.zeros(n_patients, dtype=np.int8)
    np.maximum.at(leaves_at, patient[named], dropped_for[named])
    leaves_at[stays] = 0
    return leaves_at


def last_days(
    frame: pd.DataFrame,
    columns: Mapping[str, Any],
    rows: Rows,
    end: NDArray[np.int32] | None,
    checks: Checks,
) -> tuple[NDArray[np.int32] | None, list[Issue]]:
    """The last day each record covers: its end, else by its supply, else by the default."""
    ids, default = checks.ids, supply_by_text(checks)
    if end is None and "supply" not in columns and default is None:
        return None, []
    who, day = rows.who, rows.day
    last, issues = day.copy(), []
    silent = np.ones(len(day), dtype=bool)
    if "supply" in columns:
        raw = frame[columns["supply"]]
        codes, values = factorize(raw)
        number = read_numbers(values, checks.reading.decimal, checks.name)
        days = np.append(number, 1.0)[codes]
        impossible = ~((days >= 1) & (days <= MAX_DAYS))
        issues.append(count_rows("impossible supply", impossible, "supply ignored", who, ids, raw))
        last += np.where(impossible, 0, np.ceil(days) - 1).astype(np.int32)
        silent = impossible | (codes < 0)
    if end is not None:
        raw = frame[columns["end"]]
        known = end != NO_DATE
        tests = {
            "end before start": known & (end < day),
            f"end covers more than {MAX_DAYS} days": known & (end - day >= MAX_DAYS),
            "end unreadable": ~known & raw.notna().to_numpy(),
        }
        for issue, found in tests.items():
            issues.append(count_rows(issue, found, "end ignored", who, ids, raw))
            known &= ~found
        last = np.where(known, end, last)
        silent &= ~known
    if default is not None:
        last = np.where(silent, day + default[rows.drug] - 1, last)
        shortest, longest = int(default.min()), int(default.max())
        span = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        issues.append(
            count_rows("no end or supply", silent, f"default of {span} days", who, ids, day)
        )
    return last, issues


def supply_by_text(checks: Checks) -> NDArray[np.int32] | None:
    """The days that a record of each drug text covers by default; None without a default."""
    default, known, texts = checks.reading.default_supply, checks.known, checks.texts.table
    if default is None:
        return None
    called = option_name("default_supply")
    most = max(default.values()) if isinstance(default, dict) else default
    if most > MAX_DAYS:
        raise InputError(f"{called} is {most:,} days; one record covers at most {MAX_DAYS}.")
    days = np.ones(int(texts.index.max()) + 1 if len(texts) else 1, dtype=np.int32)
    if not isinstance(default, Mapping):
        days[:] = default
        return days
    ingredients = {name for names in known.ingredients.values() for name in names}
    unknown = [name for name in default if name not in ingredients and name not in known.states]
    if unknown:
        raise InputError(
            f"{called} names {some(unknown)}, which are neither classes nor ingredients of "
            f"the drug map; its classes are {some(known.states)}."
        )
    columns = (texts[name] for name in ("ingredient", "matched", "class"))
    for number, *described in zip(texts.index, *columns, strict=True):
        parts = [part for text in described if isinstance(text, str) for part in text.split(" + ")]
        days[number] = next((default[part] for part in parts if part in default), 1)
    return days


def sort_records(rows: Rows) -> Rows:
    """Sort by patient, day, drug and end.

    The columns are small numbers that together nearly always fit into 63 bits: sorting one
    array of integers is several times faster than sorting positions by several columns.
    """
    first_day = rows.day.min()
    columns = [rows.who, rows.day - first_day, rows.drug]
    if rows.last is not None:
        columns.append(rows.last - rows.day)
    bits = [int(column.max()).bit_length() for column in columns]
    if sum(bits) > 63:
        order = np.lexsort(columns[::-1])
        columns = [column[order] for column in columns]
    else:
        key = columns[0].astype(np.int64)
        for column, n_bits in zip(columns[1:], bits[1:], strict=True):
            key <<= n_bits
            key |= column
        key.sort()
        for position in range(len(columns) - 1, 0, -1):
            columns[position] = (key & ((1 << bits[position]) - 1)).astype(np.int32)
            key >>= bits[position]
        columns[0] = key.astype(np.int32)
    who, day, drug = columns[0], columns[1] + first_day, columns[2]
    return Rows(who, day, drug, None if rows.last is None else day + columns[3])


def repeats(rows: Rows) -> NDArray[np.bool_]:
    """Which of the sorted records agree with the one before in everything."""
    again = np.zeros(len(rows.who), dtype=bool)
    again[1:] = np.logical_and.reduce([c[1:] == c[:-1] for c in rows if c is not None])
    return again
