"""What is known of patients besides their drugs: their table, observation periods and lab tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import some_columns
from ehr_prep.files import Source, read_table, source_name
from ehr_prep.settings import LabColumns, ObservationColumns, PatientColumns
from ehr_prep.values import (
    NO_DATE,
    Issue,
    check_decimal,
    count_rows,
    encode_ids,
    factorize,
    read_dates,
    read_numbers,
    to_dates,
)
from font.checks import some
from font.errors import InputError
from font.settings import change
from mmlca.sequences.checks import match_ids

# What the columns of a patients' table, of observation periods and of labs may be
PATIENT_ROLES = tuple(PatientColumns.model_fields)
OBSERVATION_ROLES = tuple(ObservationColumns.model_fields)
LAB_ROLES = tuple(LabColumns.model_fields)


def read_patients(
    path_or_frame: Source,
    *,
    date_format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
    **columns: str,
) -> pd.DataFrame:
    """A patients' table with ids as index; `follow_up_end`, `birth_date`, `death_date` as dates.

    All other columns (sex, race, …) stay as they are. The columns are guessed from their
    names ("DateOfDeath", "dod", "last_seen", …) unless given, as in `birth_date="Geb"`, see
    `ehr_prep.settings.PatientColumns`; the dates are optional. Of many dates a few that cannot be
    read are missing; if more cannot, that is an error. If `death_date` names another column than
    the one called so, that one becomes `other_death_date`. `encoding`, `delimiter` and `where` are
    those of `read_records`; `about` is what messages call the options of this table, "patients"
    where records are read with it.

    Examples
    --------
    >>> frame = pd.DataFrame({"person_id": [1, 2], "dob": ["1950-02-03", None], "sex": ["F", "M"]})
    >>> read_patients(frame).loc[1].to_list()
    [Timestamp('1950-02-03 00:00:00'), 'F']
    """
    table, _ = load_patients(
        path_or_frame,
        change(PatientColumns(), columns).model_dump(exclude_none=True),
        date_format=date_format,
        encoding=encoding,
        delimiter=delimiter,
        where=where,
        about=about,
    )
    return table


def load_patients(
    source: Source,
    named: Mapping[str, str],
    *,
    name: str | None = None,
    date_format: str | None = None,
    about: str = "",
    **reading: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The patients' table, and what its columns were taken for; see `read_patients`.

    Roles that are not named are guessed; `reading` are options of `read_table`. What the columns
    were taken for is {role: column}, with None for a role that no column has, and under "others"
    the list of all other columns.
    """
    if isinstance(source, pd.DataFrame) and source.index.name == "id":
        source = source.reset_index()
    wanted = {role: named.get(role) for role in PATIENT_ROLES}
    frame, columns, n_broken, *_ = read_table(
        source, wanted, ("patient",), all_columns=True, about=about, **reading
    )
    for role in [r for r in columns if r != "patient" and r not in named]:
        if not _holds_dates(frame[columns[role]]):
            del columns[role]  # such as death = 0 or 1
    name = name or source_name(source)
    row, ids, _ = encode_ids(frame[columns["patient"]])
    count = np.bincount(row[row >= 0], minlength=len(ids))
    if n_broken or (row < 0).any() or (count > 1).any():
        raise InputError(
            f"{name} must have one row per patient: {n_broken:,} rows have the wrong number of "
            f"fields, {(row < 0).sum():,} have no id, and {(count > 1).sum():,} ids repeat "
            f"({some(ids[count > 1])}); correct these."
        )
    taken: dict[str, Any] = {
        role: str(columns[role]) if role in columns else None for role in PATIENT_ROLES
    }
    taken["others"] = [str(c) for c in frame.columns if c not in columns.values()]
    table = frame.set_axis(ids[row].rename("id")).drop(columns=columns.pop("patient"))
    dates = {role: table.pop(column) for role, column in columns.items()}
    # a column with the name of a role that another column has
    table = table.rename(columns={role: f"other_{role}" for role in columns if role in table})
    days, _ = read_dates(dates, date_format, name)
    for role in columns:
        table.insert(0, role, to_dates(days[role]))
    return table, taken


def patients_text(taken: Mapping[str, Any]) -> list[str]:
    """Lines that say what the columns of the patients' table were taken for.

    >>> print(*patients_text({"patient": "id", "death_date": None, "others": ["sex"]}), sep="\\n")
      patients  patient = 'id', death_date = none found
                other columns: 'sex'
    """
    if not taken:
        return []
    roles = [
        f"{role} = {'none found' if column is None else repr(column)}"
        for role, column in taken.items()
        if role != "others"
    ]
    others = some_columns(taken["others"]) if taken["others"] else "none"
    return [f"  patients  {', '.join(roles)}", f"            other columns: {others}"]


def _holds_dates(column: pd.Series) -> bool:
    """Whether a column may hold dates: some value has the digits of a year, or there is none."""
    if column.dtype.kind in "mM" or isinstance(column.dtype, pd.DatetimeTZDtype):
        return True
    texts = [str(value) for value in factorize(column)[1]]
    return not texts or any(sum(sign.isdigit() for sign in text) >= 4 for text in texts)


def align_patients(people: pd.DataFrame, ids: pd.Index) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """One row for each of `ids`, and which of them the table lacks."""
    row = match_ids(ids, people.index)
    rows = people.reset_index(drop=True).reindex(np.where(row < 0, len(people), row))
    return rows.set_axis(ids.rename("id")), row < 0


# --- observation periods ----------------------------------------------------------------


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
    columns: Mapping[str, str] | None = None,
    *,
    date_format: str | None = None,
    **reading: Any,
) -> tuple[Observation, list[Issue]]:
    """The periods of the patients `ids`, and what was unusual: one row per period.

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
    issues = [Issue("observation period with the wrong number of fields", n_broken, "dropped", "")]
    for what, which in (("without a date", unknown), ("ends before it starts", backwards)):
        issue = f"observation period {what}"
        issues.append(count_rows(issue, which, "dropped", own, period_ids, shown))
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


# --- lab tests ----------------------------------------------------------------------------


def read_labs(
    path_or_frame: Source,
    *,
    date_format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
    **columns: str,
) -> pd.DataFrame:
    """Lab tests from a file, several files or a DataFrame, one row for each.

    Parameters
    ----------
    path_or_frame : see `read_records`
    date_format, encoding, delimiter, where
        See `read_records`.
    decimal : "." or ",", optional
        Default: what the values show.
    about : str
        What messages call the options of this table; "labs" where records are read with it.
    **columns
        Names of columns, such as `date="Tag"`, see `ehr_prep.settings.LabColumns`. Default: guessed
        from the names. `test` and `unit` may be absent.

    Returns
    -------
    DataFrame
        `patient_id`; `date`; `value`, a number, or the text where it is not one; and `test` and
        `unit`, where the table says.

    Examples
    --------
    >>> frame = pd.DataFrame({"id": [1, 1], "date": ["03.05.2010", "27.02.2017"],
    ...                       "value": ["12,5", "<2"]})
    >>> read_labs(frame)["value"].to_list()
    [12.5, '<2']
    """
    check_decimal(decimal)
    name = source_name(path_or_frame)
    named = change(LabColumns(), columns).model_dump()
    frame, roles, *_ = read_table(
        path_or_frame,
        named,
        ("patient", "date", "value"),
        encoding=encoding,
        delimiter=delimiter,
        where=where,
        about=about,
    )
    days, _ = read_dates({"date": frame[roles["date"]]}, date_format, name)
    codes, texts = factorize(frame[roles["value"]])
    values = list(texts)
    numbers = read_numbers(values, decimal, name)
    read = np.array([*values, None], dtype=object)  # the last is for rows without a value
    known = np.flatnonzero(np.isfinite(numbers))
    read[known] = numbers[known]
    table = {
        "patient_id": frame[roles["patient"]].to_numpy(),
        "date": to_dates(days["date"]),
        "value": read[codes],
    }
    for role in ("test", "unit"):
        if role in roles:
            table[role] = frame[roles[role]].to_numpy()
    return pd.DataFrame(table)
