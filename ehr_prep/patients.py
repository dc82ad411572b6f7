"""The patients' table: end of follow-up, birth, death, and what describes the patients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import some_columns
from ehr_prep.dates import read_dates, to_dates
from ehr_prep.files import Source, source_name
from ehr_prep.readers import encode_ids, factorize, read_table
from font.checks import some
from font.errors import InputError
from mmlca.sequences.checks import match_ids

PATIENT_ROLES = ("patient", "follow_up_end", "birth_date", "death_date")
"""What the columns of a patients' table may be."""


def read_patients(
    path_or_frame: Source,
    *,
    patient: str | None = None,
    follow_up_end: str | None = None,
    birth_date: str | None = None,
    death_date: str | None = None,
    date_format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
) -> pd.DataFrame:
    """A patients' table with ids as index; `follow_up_end`, `birth_date`, `death_date` as dates.

    All other columns (sex, race, …) stay as they are. The columns are guessed from their
    names unless given ("DateOfDeath", "dod", "last_seen", …); the dates are optional. Of many
    dates a few that cannot be read are missing; if more cannot, that is an error. If `death_date`
    names another column than the one called so, that one becomes `other_death_date`. `encoding`,
    `delimiter` and `where` are those of `read_records`; `about` is what messages call the options
    of this table, "patients" where records are read with it.

    Examples
    --------
    >>> frame = pd.DataFrame({"person_id": [1, 2], "dob": ["1950-02-03", None], "sex": ["F", "M"]})
    >>> read_patients(frame).loc[1].to_list()
    [Timestamp('1950-02-03 00:00:00'), 'F']
    """
    named = {
        "patient": patient,
        "follow_up_end": follow_up_end,
        "birth_date": birth_date,
        "death_date": death_date,
    }
    table, _ = load_patients(
        path_or_frame,
        {role: column for role, column in named.items() if column is not None},
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
    date_format: str | None = None,
    about: str = "",
    **reading: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The patients' table, and what its columns were taken for; see `read_patients`.

    Parameters
    ----------
    named : {role: column}
        Other roles are guessed.
    reading : options of `read_table`

    Returns
    -------
    The table; {role: column}, with None for a role that no column has, and under "others" the
    list of all other columns.
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
    name = source_name(source)
    row, ids, _ = encode_ids(frame[columns["patient"]])
    count = np.bincount(row[row >= 0], minlength=len(ids))
    if n_broken or (row < 0).any() or (count > 1).any():
        raise InputError(
            f"{name} must have one row per patient: {n_broken:,} rows have the wrong number of "
            f"fields, {(row < 0).sum():,} have no id, and {(count > 1).sum():,} ids repeat "
            f"({some(ids[count > 1])}); correct these."
        )
    taken = describe_columns(columns, list(frame.columns))
    table = frame.set_axis(ids[row].rename("id")).drop(columns=columns.pop("patient"))
    dates = {role: table.pop(column) for role, column in columns.items()}
    # a column with the name of a role that another column has
    table = table.rename(columns={role: f"other_{role}" for role in columns if role in table})
    days, _ = read_dates(dates, date_format, name)
    for role in columns:
        table.insert(0, role, to_dates(days[role]))
    return table, taken


def describe_columns(roles: Mapping[str, Any], columns: list[Any]) -> dict[str, Any]:
    """What the columns of a patients' table were taken for; see `load_patients`."""
    taken: dict[str, Any] = {
        role: str(roles[role]) if role in roles else None for role in PATIENT_ROLES
    }
    used = set(roles.values())
    return {**taken, "others": [str(column) for column in columns if column not in used]}


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
