"""The patients' table: end of follow-up, birth, death, and what describes the patients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.dates import read_dates, to_dates
from ehr_prep.files import Source, source_name
from ehr_prep.readers import encode_ids, match_ids, read_table
from font.checks import some

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
    names unless given; the dates are optional. Unreadable dates are missing. `encoding`,
    `delimiter` and `where` are those of `read_records`; `about` is what messages call the options
    of this table, "patients" where records are read with it.

    Examples
    --------
    >>> frame = pd.DataFrame({"person_id": [1, 2], "dob": ["1950-02-03", None], "sex": ["F", "M"]})
    >>> read_patients(frame).loc[1].to_list()
    [Timestamp('1950-02-03 00:00:00'), 'F']
    """
    if isinstance(path_or_frame, pd.DataFrame) and path_or_frame.index.name == "id":
        path_or_frame = path_or_frame.reset_index()
    named = {
        "patient": patient,
        "follow_up_end": follow_up_end,
        "birth_date": birth_date,
        "death_date": death_date,
    }
    frame, columns, n_broken, _ = read_table(
        path_or_frame,
        named,
        ("patient",),
        all_columns=True,
        encoding=encoding,
        delimiter=delimiter,
        where=where,
        about=about,
    )
    name = source_name(path_or_frame)
    row, ids, _ = encode_ids(frame[columns["patient"]])
    count = np.bincount(row[row >= 0], minlength=len(ids))
    if n_broken or (row < 0).any() or (count > 1).any():
        raise ValueError(
            f"{name} must have one row per patient: {n_broken:,} rows have the wrong number of "
            f"fields, {(row < 0).sum():,} have no id, and {(count > 1).sum():,} ids repeat "
            f"({some(ids[count > 1])}); mend these."
        )
    table = frame.set_axis(ids[row].rename("id")).drop(columns=columns.pop("patient"))
    dates = {role: table.pop(column) for role, column in columns.items()}
    days, _ = read_dates(dates, date_format, name)
    for role in columns:
        table.insert(0, role, to_dates(days[role]))
    return table


def align_patients(people: pd.DataFrame, ids: pd.Index) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """One row for each of `ids`, and which of them the table lacks."""
    row = match_ids(ids, people.index)
    rows = people.reset_index(drop=True).reindex(np.where(row < 0, len(people), row))
    return rows.set_axis(ids.rename("id")), row < 0
