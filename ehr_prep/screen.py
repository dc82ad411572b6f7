"""Which records are usable, which look odd, and the order in which they go on."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.sources import NO_DATE, day_text, factorize, to_days
from mmlca.checks import some

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


class Issue(NamedTuple):
    """A kind of oddity: how often, what was done about it, and up to five examples."""

    issue: str
    n: int
    action: str
    examples: str


def count_odd(
    issue: str,
    which: NDArray[np.bool_] | None,
    action: str,
    who: NDArray[np.int32],
    ids: pd.Index,
    shown: pd.Series | NDArray[np.int32],
) -> Issue:
    """Count the rows, and show patient and value of the first five; day numbers as dates."""
    found = np.arange(0) if which is None else np.flatnonzero(which)
    examples = []
    for row in found[:5]:
        name = ids[who[row]] if who[row] >= 0 else "no id"
        value = some([shown.iat[row]]) if isinstance(shown, pd.Series) else day_text(shown[row])
        examples.append(f"{name}: {value}")
    return Issue(issue, len(found), action, "; ".join(examples))


def issue_table(issues: list[Issue]) -> pd.DataFrame:
    found = [issue for issue in issues if issue.n]
    return pd.DataFrame(found, columns=list(Issue._fields))


def unusable(
    rows: Rows, state_of: NDArray[np.int8], span: tuple[int, int], people: pd.DataFrame | None
) -> tuple[list[str], NDArray[np.int8]]:
    """The reasons in order, the drug map's last, and the first that applies to each record."""
    day = rows.day
    tests = {
        "no patient id": rows.who < 0,
        "no drug": rows.drug < 0,
        "date missing or unreadable": day == NO_DATE,
        f"date before {day_text(span[0])}": day < span[0],
        f"date after {day_text(span[1])}": day > span[1],
    }
    if people is not None and "birth_date" in people:
        birth = np.append(to_days(people["birth_date"]), np.int32(NO_DATE))
        tests["date before birth"] = day < birth[rows.who]
    tests["drug not in the map"] = state_of[rows.drug] < 0
    dropped_for = np.zeros(len(day), dtype=np.int8)
    for number, fails in enumerate(tests.values(), start=1):
        if fails.any():
            dropped_for[fails & (dropped_for == 0)] = number
    return list(tests), dropped_for


def last_days(
    frame: pd.DataFrame,
    columns: dict[str, Any],
    rows: Rows,
    ids: pd.Index,
    date_format: str | None,
) -> tuple[NDArray[np.int32] | None, list[Issue]]:
    """The last day each record covers: its end, else by its supply, else its only day."""
    if "end" not in columns and "supply" not in columns:
        return None, []
    who, day = rows.who, rows.day
    last, issues = day.copy(), []
    if "supply" in columns:
        raw = frame[columns["supply"]]
        codes, values = factorize(raw)
        number = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
        days = np.append(number.to_numpy(float), 1.0)[codes]
        odd = ~((days >= 1) & (days <= MAX_DAYS))
        issues.append(count_odd("impossible supply", odd, "supply ignored", who, ids, raw))
        last += np.where(odd, 0, np.ceil(days) - 1).astype(np.int32)
    if "end" in columns:
        raw = frame[columns["end"]]
        end = to_days(raw, date_format)
        known = end != NO_DATE
        tests = {
            "end before start": known & (end < day),
            f"end covers more than {MAX_DAYS} days": known & (end - day >= MAX_DAYS),
            "end unreadable": ~known & raw.notna().to_numpy(),
        }
        for issue, odd in tests.items():
            issues.append(count_odd(issue, odd, "end ignored", who, ids, raw))
            known &= ~odd
        last = np.where(known, end, last)
    return last, issues


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
