"""Observation periods: when a patient was seen by the database at all, once or several times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.dates import NO_DATE, read_dates
from ehr_prep.files import Source, source_name
from ehr_prep.readers import encode_ids, read_table
from ehr_prep.screen import Issue, count_odd
from mmlca.sequences.checks import match_ids

OBSERVATION_ROLES = ("patient", "observation_start", "observation_end")
"""What the columns of a table of observation periods are."""


class Observation(NamedTuple):
    """The periods in which each of P patients was observed, in order and apart.

    Parameters
    ----------
    indptr : (P + 1,) int64
        The periods of patient p are `indptr[p]:indptr[p + 1]`; there may be none.
    start, end : (periods,) int32
        First and last day, as days since 1970-01-01.
    """

    indptr: NDArray[np.int64]
    start: NDArray[np.int32]
    end: NDArray[np.int32]

    def holding(self, who: NDArray[np.integer], day: NDArray[np.int32]) -> NDArray[np.int64]:
        """The period in which each day lies, −1 if none; `who` is the patient, −1 for no one."""
        patient = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        keys = _key(patient, self.start)
        at = np.searchsorted(keys, _key(who, day), side="right") - 1
        inside = (at >= 0) & (who >= 0)
        inside[inside] &= patient[at[inside]] == who[inside]
        inside[inside] &= self.end[at[inside]] >= day[inside]
        return np.where(inside, at, -1)

    def take(self, kept: NDArray[np.bool_]) -> Self:
        """The periods of some of the patients."""
        counts = np.diff(self.indptr)
        rows = np.repeat(kept, counts)
        indptr = np.concatenate([[0], np.cumsum(counts[kept])])
        return type(self)(indptr, self.start[rows], self.end[rows])

    def windows(self, edges: NDArray[np.int32], last: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether at least half of each window's days of follow-up were observed, (P, W)."""
        from ehr_prep import _kernels

        days = np.minimum(edges[:, 1:] - 1, last[:, None]) - edges[:, :-1] + 1
        seen = np.zeros(days.shape, dtype=np.int32)
        _kernels.observed_days(self.indptr, self.start, self.end, edges, last, seen)
        return np.asarray(2 * seen >= days)


def read_observation(
    source: Source,
    ids: pd.Index,
    date_format: str | None = None,
    columns: Mapping[str, str] | None = None,
    **reading: Any,
) -> tuple[Observation, list[Issue]]:
    """The periods of the patients `ids`, and what was odd: one row per period.

    Columns are guessed from their names unless `columns` names them by role. Periods that overlap
    or follow one another without a day between are one. `reading` are options of `read_table`.
    """
    named = {role: (columns or {}).get(role) for role in OBSERVATION_ROLES}
    frame, roles, n_broken, *_ = read_table(
        source, named, OBSERVATION_ROLES, about="observation", **reading
    )
    own, period_ids, _ = encode_ids(frame[roles["patient"]])
    who = np.append(match_ids(period_ids, ids), -1).astype(np.int64)[own]
    days, _ = read_dates(
        {role: frame[roles[role]] for role in roles if role != "patient"},
        date_format,
        source_name(source),
    )
    start, end = days["observation_start"], days["observation_end"]
    unknown = (start == NO_DATE) | (end == NO_DATE)
    backwards = ~unknown & (end < start)
    shown = frame[roles["observation_start"]]
    own_ids = own.astype(np.int32)
    issues = [
        Issue("observation period with the wrong number of fields", n_broken, "dropped", ""),
        count_odd(
            "observation period without a date", unknown, "dropped", own_ids, period_ids, shown
        ),
        count_odd(
            "observation period ends before it starts", backwards, "dropped", own_ids, period_ids,
            shown,
        ),
    ]  # fmt: skip
    usable = (who >= 0) & ~unknown & ~backwards
    return _joined(who[usable], start[usable], end[usable], len(ids)), issues


def _key(who: NDArray[np.integer], day: NDArray[np.int32]) -> NDArray[np.int64]:
    return (who.astype(np.int64) << 32) + day


def _joined(
    who: NDArray[np.int64], start: NDArray[np.int32], end: NDArray[np.int32], n: int
) -> Observation:
    """Sorted, with periods that overlap or touch made one."""
    order = np.lexsort((end, start, who))
    who, start, end = who[order], start[order], end[order]
    if len(who):
        # the latest end so far of the same patient: keys of later patients are larger
        reach = np.maximum.accumulate(_key(who, end))
        new = np.ones(len(who), dtype=bool)
        new[1:] = (who[1:] != who[:-1]) | (_key(who[1:], start[1:]) > reach[:-1] + 1)
        last = np.append(np.flatnonzero(new)[1:], len(who)) - 1
        end = (reach[last] - (who[last] << 32)).astype(np.int32)
        who, start = who[new], start[new]
    counts = np.bincount(who, minlength=n)
    return Observation(np.concatenate([[0], np.cumsum(counts)]), start, end)
