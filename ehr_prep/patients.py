"""The patients' table: end of follow-up, birth date, and what describes the patients."""

from __future__ import annotations

import os
from typing import TypeAlias

import numpy as np
import pandas as pd

from ehr_prep.sources import encode_ids, match_ids, read_table, source_name, to_dates, to_days
from mmlca.checks import some

Source: TypeAlias = pd.DataFrame | str | os.PathLike[str]


def read_patients(
    path_or_frame: Source,
    *,
    patient: str | None = None,
    follow_up_end: str | None = None,
    birth_date: str | None = None,
    date_format: str | None = None,
    encoding: str = "utf-8",
) -> pd.DataFrame:
    """A patients' table with ids as index, `follow_up_end` and `birth_date` as dates.

    All other columns (sex, race, …) stay as they are. The columns are guessed from their
    names unless given; both dates are optional. Unreadable dates are missing.

    Examples
    --------
    >>> frame = pd.DataFrame({"person_id": [1, 2], "dob": ["1950-02-03", None], "sex": ["F", "M"]})
    >>> read_patients(frame).loc[1].to_list()
    [Timestamp('1950-02-03 00:00:00'), 'F']
    """
    if isinstance(path_or_frame, pd.DataFrame) and path_or_frame.index.name == "id":
        path_or_frame = path_or_frame.reset_index()
    given = {"patient": patient, "follow_up_end": follow_up_end, "birth_date": birth_date}
    frame, columns, n_broken = read_table(
        path_or_frame, given, ("patient",), all_columns=True, encoding=encoding
    )
    name = source_name(path_or_frame)
    row, ids, _ = encode_ids(frame[columns["patient"]])
    count = np.bincount(row[row >= 0], minlength=len(ids))
    if n_broken or (row < 0).any() or (count > 1).any():
        raise ValueError(
            f"{name} must have one row a patient: {n_broken:,} rows have the wrong number of "
            f"fields, {(row < 0).sum():,} have no id, and {(count > 1).sum():,} ids repeat "
            f"({some(ids[count > 1])}); mend these."
        )
    table = frame.set_axis(ids[row].rename("id")).drop(columns=columns.pop("patient"))
    for role, column in columns.items():
        dates = to_dates(to_days(table.pop(column), date_format))
        table.insert(0, role, dates)
    return table


def align_patients(people: pd.DataFrame, ids: pd.Index) -> tuple[pd.DataFrame, int]:
    """One row for each of `ids`, and how many the table lacks."""
    row = match_ids(ids, people.index)
    rows = people.reset_index(drop=True).reindex(np.where(row < 0, len(people), row))
    return rows.set_axis(ids.rename("id")), int((row < 0).sum())
