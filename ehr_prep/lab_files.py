"""Tables of lab tests: read, with dates as dates and numbers as numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ehr_prep.dates import read_dates, to_dates
from ehr_prep.files import Source, source_name
from ehr_prep.numbers import check_decimal, read_numbers
from ehr_prep.readers import factorize, read_table

LAB_ROLES = ("patient", "date", "value", "test", "unit")
"""What the columns of a table of labs may be."""


def read_labs(
    path_or_frame: Source,
    *,
    patient: str | None = None,
    date: str | None = None,
    value: str | None = None,
    test: str | None = None,
    unit: str | None = None,
    date_format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
) -> pd.DataFrame:
    """Lab tests from a file, several files or a DataFrame, one row for each.

    Parameters
    ----------
    path_or_frame : see `read_records`
    patient, date, value, test, unit : column names, optional
        Default: guessed from the names. `test` says which test it was and `unit` in which unit
        its value is; both may be absent.
    date_format, encoding, delimiter, where
        See `read_records`.
    decimal : "." or ",", optional
        Default: what the values show.
    about : str
        What messages call the options of this table; "labs" where records are read with it.

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
    named = {"patient": patient, "date": date, "value": value, "test": test, "unit": unit}
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
    columns = {
        "patient_id": frame[roles["patient"]].to_numpy(),
        "date": to_dates(days["date"]),
        "value": read[codes],
    }
    for role in ("test", "unit"):
        if role in roles:
            columns[role] = frame[roles[role]].to_numpy()
    return pd.DataFrame(columns)
