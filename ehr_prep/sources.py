"""Tables as they come from a hospital: files, column names, ids and dates."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.checks import some

NO_DATE = np.iinfo(np.int32).min
"""The day number that stands for a missing or unreadable date."""

_EPOCH = dt.date(1970, 1, 1).toordinal()
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?|(\d{4})(\d\d)(\d\d)(?:T.*|\.0)?")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")

# Column names as exports and the OMOP model spell them, the likeliest first.
GUESSES = {
    "patient": "patient_id patient person_id subject_id patientid pat_id patid patient_num mrn id",
    "date": "date start_date start date_start drug_exposure_start_date medication_date med_date "
    "order_date dispense_date fill_date administration_date rx_date exposure_date "
    "lab_date measurement_date result_date collection_date",
    "drug": "drug drug_name medication medication_name med_name ingredient drug_source_value "
    "rxcui rxnorm atc atc_code ndc drug_code code",
    "end": "end_date end stop_date date_end drug_exposure_end_date",
    "supply": "days_supply supply days_supplied supply_days",
    "site": "site hospital centre center",
    "follow_up_end": "follow_up_end followup_end end_of_follow_up last_visit last_visit_date "
    "last_contact observation_period_end_date censor_date",
    "value": "value result value_as_number lab_value result_value numeric_value measurement_value",
    "test": "test test_name lab lab_name lab_test measurement measurement_source_value component",
    "birth_date": "birth_date date_of_birth dob birthdate birth_datetime",
}


def guess_columns(
    found: list[Any], given: Mapping[str, Any], needed: tuple[str, ...], name: str
) -> dict[str, Any]:
    """Which column plays which role: as given, else by its name; optional ones may be absent."""
    absent = [column for column in given.values() if column is not None and column not in found]
    if absent:
        raise ValueError(f"{name} has no column {some(absent)}; it has {some_columns(found)}.")
    plain: dict[str, Any] = {}
    for column in found:
        plain.setdefault(re.sub(r"[^0-9a-z]+", "_", str(column).casefold()).strip("_"), column)
    taken = {column for column in given.values() if column is not None}
    roles: dict[str, Any] = {}
    for role, column in given.items():
        matches = [plain[g] for g in GUESSES[role].split() if g in plain and plain[g] not in taken]
        if column is None and matches:
            column = matches[0]
            taken.add(column)
        if column is not None:
            roles[role] = column
        elif role in needed:
            raise ValueError(
                f"no column of {name} looks like the {role}: it has {some_columns(found)}; "
                f'rename it, or say which one it is, as in {role}="{found[0]}".'
            )
    return roles


def some_columns(found: list[Any]) -> str:
    shown = ", ".join(repr(c) for c in found[:20])
    return f"{shown}, …" if len(found) > 20 else shown


def source_name(source: Any) -> str:
    return "the table" if isinstance(source, pd.DataFrame) else Path(source).name


def read_table(
    source: pd.DataFrame | str | os.PathLike[str],
    given: Mapping[str, Any],
    needed: tuple[str, ...],
    *,
    all_columns: bool = False,
    encoding: str = "utf-8",
) -> tuple[pd.DataFrame, dict[str, Any], int]:
    """The columns that play a role, which they are, and how many rows of a file are broken.

    Columns with a role come from a file as categoricals, integers with a small dictionary:
    a file of gigabytes becomes a few bytes a record.
    """
    name = source_name(source)
    if isinstance(source, pd.DataFrame):
        found = list(source.columns)
        _need_unique(found, name)
        roles = guess_columns(found, given, needed, name)
        frame = source if all_columns else source[list(roles.values())]
        return frame, roles, 0
    path = Path(source)
    if path.suffix.lower() == ".parquet":
        return *_read_parquet(path, given, needed, all_columns), 0
    if not path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
        raise ValueError(f"{name!r} must end in .csv, .csv.gz, .tsv, .txt or .parquet.")
    return _read_csv(path, given, needed, all_columns, encoding)


def _need_unique(found: list[Any], name: str) -> None:
    if len(set(found)) < len(found):
        twice = [c for i, c in enumerate(found) if c in found[:i]]
        raise ValueError(f"{name} has several columns called {some(twice)}; rename them.")


def _read_csv(
    path: Path, given: Mapping[str, Any], needed: tuple[str, ...], everything: bool, encoding: str
) -> tuple[pd.DataFrame, dict[str, Any], int]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(
            path, "rt", encoding=encoding.replace("utf-8", "utf-8-sig"), newline=""
        ) as file:
            header = file.readline()
    except UnicodeDecodeError:
        raise ValueError(_not_text(path, encoding)) from None
    if not header.strip():
        raise ValueError(f"{path.name} is empty; a header and one row for each record are needed.")
    separator = max(",;\t|", key=header.count)
    found = next(csv.reader([header], delimiter=separator))
    _need_unique(found, path.name)
    roles = guess_columns(found, given, needed, path.name)
    columns = found if everything else list(roles.values())
    broken = []

    def skip(row: Any) -> str:
        broken.append(row.number)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(encoding=encoding),
            arrow_csv.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=skip
            ),
            arrow_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(roles.values(), pa.dictionary(pa.int32(), pa.string())),
                strings_can_be_null=True,
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if "utf8" in str(error).casefold() or isinstance(error, UnicodeDecodeError):
            raise ValueError(_not_text(path, encoding)) from None
        raise ValueError(f"{path.name} is not a readable CSV file ({error}).") from None
    return table.unify_dictionaries().to_pandas(), roles, len(broken)


def _not_text(path: Path, encoding: str) -> str:
    return f'{path.name} is not {encoding} text; state its encoding, as in encoding="latin-1".'


def _read_parquet(
    path: Path, given: Mapping[str, Any], needed: tuple[str, ...], everything: bool
) -> tuple[pd.DataFrame, dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} is not a readable Parquet file ({error}).") from None
    roles = guess_columns(list(schema.names), given, needed, path.name)
    columns = list(schema.names) if everything else list(roles.values())
    text = [c for c in roles.values() if pa.types.is_string(schema.field(c).type)]
    table = pq.read_table(path, columns=columns, read_dictionary=text)
    frame = table.unify_dictionaries().to_pandas(date_as_object=False, ignore_metadata=True)
    return frame, roles


def factorize(column: pd.Series) -> tuple[NDArray[np.integer[Any]], pd.Index]:
    """Codes (−1: missing) and the distinct values that occur."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, values = column.cat.codes.to_numpy(), column.cat.categories
        used = np.zeros(len(values) + 1, dtype=bool)
        used[codes] = True
        if used[:-1].all():
            return codes, values
        number = np.append(np.cumsum(used[:-1], dtype=np.int32) - 1, np.int32(-1))
        return number[codes], values[used[:-1]]
    codes, values = pd.factorize(column)
    return codes, pd.Index(values)


def encode_ids(column: pd.Series) -> tuple[NDArray[np.int32], pd.Index, NDArray[np.bool_] | None]:
    """Each row's position in the sorted ids (−1: none), the ids, and which rows differ in type.

    Ids are whole numbers where all of them can be (1, 1.0 and "1" are the same patient, but
    "01" makes all of them text), and text otherwise.
    """
    codes, values = factorize(column)
    odd = None
    if values.dtype.kind not in "iu":
        listed = values.tolist()
        texts = [_id_text(value) for value in listed]
        is_text = np.array([isinstance(value, str) for value in listed], dtype=bool)
        if is_text.any() and not is_text.all():
            odd = np.append(~is_text, False)[codes]
        whole = all(_WHOLE.fullmatch(text) for text in texts if text)
        again, unique = pd.factorize(pd.Series([t or None for t in texts], dtype=object))
        codes = np.append(again, -1)[codes]
        values = pd.Index(np.asarray(unique).astype(np.int64) if whole else unique)
    order = np.argsort(values.to_numpy(), kind="stable")
    rank = np.empty(len(values) + 1, dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1
    ids = values[order]
    return rank[codes], ids.astype(np.int64 if ids.dtype.kind in "iu" else str), odd


def _id_text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def match_ids(wanted: pd.Index, table: pd.Index) -> NDArray[np.intp]:
    """Position in `table` of each id (−1: none); whole numbers and their texts agree."""
    if wanted.dtype.kind != table.dtype.kind:
        wanted, table = wanted.astype(str), table.astype(str)
    positions: NDArray[np.intp] = table.get_indexer(wanted)
    return positions


def to_days(column: pd.Series, date_format: str | None = None) -> NDArray[np.int32]:
    """Days since 1970-01-01, `NO_DATE` where missing or unreadable.

    The calendar date is taken as written: clock time and time zone are ignored, so that a
    dose given at 23:30 stays on its day.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_localize(None)
    if column.dtype.kind == "M" and isinstance(column.dtype, np.dtype):
        return _clip(column.to_numpy().astype("datetime64[D]").astype(np.int64))
    codes, values = factorize(column)
    days = np.array([*(_day(value, date_format) for value in values), NO_DATE], dtype=np.int32)
    return np.take(days, codes)


def one_day(date: Any, what: str) -> int:
    """The day number of a date given as an argument."""
    day = _day(date, None)
    if day == NO_DATE:
        raise ValueError(f'{what} must be a date such as "2008-01-01", found {date!r}.')
    return day


def day_text(day: int) -> str:
    return dt.date.fromordinal(int(day) + _EPOCH).isoformat()


def to_dates(days: NDArray[np.int32]) -> NDArray[np.datetime64]:
    """datetime64[s]: pandas has no whole days, and nanoseconds end in 2262."""
    dates = days.astype("datetime64[D]").astype("datetime64[s]")
    dates[days == NO_DATE] = np.datetime64("NaT", "s")
    return dates


def _clip(days: NDArray[np.int64]) -> NDArray[np.int32]:
    absent = days == np.iinfo(np.int64).min
    in_calendar = np.clip(days, 1 - _EPOCH, dt.date.max.toordinal() - _EPOCH).astype(np.int32)
    in_calendar[absent] = NO_DATE
    return in_calendar


def _day(value: Any, date_format: str | None) -> int:
    try:
        if isinstance(value, np.datetime64):
            return int(_clip(value.astype("datetime64[D]").astype(np.int64).reshape(1))[0])
        if isinstance(value, dt.datetime):
            date = value.date()
        elif isinstance(value, dt.date):
            date = value
        elif date_format is not None:
            date = dt.datetime.strptime(str(value).strip(), date_format).date()
        else:
            match = _ISO.fullmatch(str(value).strip())
            if match is None:
                return NO_DATE
            year, month, day = (int(g) for g in match.groups() if g is not None)
            date = dt.date(year, month, day)
    except (ValueError, TypeError):
        return NO_DATE
    return date.toordinal() - _EPOCH
