"""Tables as they come from a hospital: their columns, the ids of patients, and numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.columns import check_by_file, columns_of_file, guess_columns, some_columns
from ehr_prep.files import Loaded, Source, files_of, join_files, load_file, source_name
from font.checks import some
from font.errors import InputError, ReportWarning, option, option_name
from mmlca.sequences.checks import match_ids

_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_AS_FLOAT = re.compile(r"(0|-?[1-9]\d{0,17})\.0+")


class Table(NamedTuple):
    """A table that was read.

    Parameters
    ----------
    frame : DataFrame
    roles : {role: column}
    n_broken : int
        Rows of a file with the wrong number of fields.
    files : list of dict
        How each file is written: its name, encoding and delimiter, or its sheet.
    file_roles : {file: {role: column}}
        The columns of each file, which may be called differently, or be absent. A file has its
        name, or with its folder where two have the same.
    """

    frame: pd.DataFrame
    roles: dict[str, Any]
    n_broken: int
    files: list[dict[str, str]]
    file_roles: dict[str, dict[str, Any]]


def read_table(
    source: Source,
    named: Mapping[str, Any],
    needed: tuple[str, ...],
    *,
    all_columns: bool = False,
    encoding: str | None = None,
    delimiter: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
    file_columns: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Read a DataFrame, a file, or several files as one table.

    Columns with a role come from a file as categoricals, integers with a small dictionary:
    a file of gigabytes becomes a few bytes per record.

    Parameters
    ----------
    named : {role: column or None}
        Columns that are None are guessed from their names.
    needed : roles without which the table cannot be used
    all_columns : bool
        Read the columns without a role too.
    encoding, delimiter, where, file_columns
        See `read_records`. Records must have the columns of `where`; in other tables those that
        are not there are passed over.
    about : str
        The table's name in advice, "" for the records.
    """
    name = source_name(source)
    kept = dict(where or {})
    paths = [] if isinstance(source, pd.DataFrame) else files_of(source)
    check_by_file(file_columns or {}, paths, named)

    def choose(
        columns: list[Any], rows: list[list[Any]], name: str, path: Path | None = None
    ) -> Any:
        _check_unique(columns, name)
        own = named if path is None else columns_of_file(path, named, file_columns or {})
        file = name if len(paths) > 1 else None
        roles = guess_columns(columns, own, needed, name, rows, about, file)
        more = [c for c in kept if c in columns and c not in roles.values()]
        if not about and (absent := [c for c in kept if c not in columns]):
            raise InputError(
                f"{name} has no column {absent[0]!r}, by which {option_name('where')} "
                f"chooses rows; it has {some_columns(columns)}."
            )
        return roles, columns if all_columns else [*roles.values(), *more]

    if isinstance(source, pd.DataFrame):
        roles, columns = choose(list(source.columns), [], name)
        table = Table(source if all_columns else source[columns], roles, 0, [], {})
    else:
        parts = [
            load_file(path, lambda c, r, p=path: choose(c, r, p.name, p), encoding, delimiter)  # type: ignore[misc]
            for path in paths
        ]
        for part in parts:
            _warn_of_encoding(part)
        files = [part.written for part in parts]
        unique = len({path.name for path in paths}) == len(paths)
        names = [path.name if unique else f"{path.parent.name}/{path.name}" for path in paths]
        own = {name: part.roles for name, part in zip(names, parts, strict=True)}
        table = Table(*join_files(parts), files, own)
    return _filtered(table, kept, name, all_columns) if kept else table


def _warn_of_encoding(part: Loaded) -> None:
    """Warn of texts that may be misread, since nothing in a file shows which encoding it has."""
    if part.doubtful_text is None:
        return
    public = f"{part.written['file']} is not UTF-8 and was read as {part.written['encoding']}"
    warning = ReportWarning(
        f"{public}, in which it holds {part.doubtful_text!r}; state the encoding, as in "
        f"{option('encoding', 'latin-1')}.",
        f"{public}; state its encoding.",
    )
    warnings.warn(warning, stacklevel=4)


def _filtered(table: Table, where: Mapping[str, str], name: str, everything: bool) -> Table:
    frame = table.frame
    present = [column for column in where if column in frame]
    for column in present:
        codes, values = factorize(frame[column])
        wanted = np.array([str(v).strip() == where[column] for v in values] + [False])
        if not wanted.any():
            raise InputError(
                f"{name} has no row with {column} = {where[column]!r}; it has {some(values)}."
            )
        frame = frame[wanted[codes]]
    if not everything:
        frame = frame[list(table.roles.values())]
    return table._replace(frame=frame)


def _check_unique(columns: list[Any], name: str) -> None:
    if len(set(columns)) < len(columns):
        twice = [c for i, c in enumerate(columns) if c in columns[:i]]
        raise InputError(f"{name} has several columns called {some(twice)}; rename them.")


# --- codes and ids ---------------------------------------------------------------------


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
    return codes, pd.Index(values, dtype=values.dtype)


def encode_ids(column: pd.Series) -> tuple[NDArray[np.int32], pd.Index, NDArray[np.bool_] | None]:
    """Each row's position in the sorted ids (−1: none), the ids, and which rows differ in type.

    Ids are whole numbers where all of them can be (1, 1.0 and "1" are the same patient, but
    "01" makes all of them text), and text otherwise.
    """
    codes, values = factorize(column)
    other_type = None
    if values.dtype.kind not in "iu":
        raw = values.tolist()
        texts = [_id_text(value) for value in raw]
        is_text = np.array([isinstance(value, str) for value in raw], dtype=bool)
        if is_text.any() and not is_text.all():
            other_type = np.append(~is_text, False)[codes]
        whole = all(_WHOLE.fullmatch(text) for text in texts if text)
        again, unique = pd.factorize(pd.Series([t or None for t in texts], dtype=object))
        codes = np.append(again, -1)[codes]
        values = pd.Index(np.asarray(unique).astype(np.int64) if whole else unique)
    order = np.argsort(values.to_numpy(), kind="stable")
    rank = np.empty(len(values) + 1, dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1
    ids = values[order]
    return rank[codes], ids.astype(np.int64 if ids.dtype.kind in "iu" else str), other_type


def _id_text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    return text.partition(".")[0] if _AS_FLOAT.fullmatch(text) else text


def check_matched(
    ids: pd.Index,
    others: pd.Index,
    matched: NDArray[np.bool_],
    names: tuple[str, str],
    *,
    enough: float = 0.95,
) -> None:
    """An error if none of the ids of one table are in another, a warning if too few are.

    `matched` says which of the ids are among the others, `names` are those of the two tables, and
    `enough` is the share without a warning.
    """
    if not len(ids) or (matched.any() and matched.mean() >= enough):
        return
    name, other = names
    strangers = others[match_ids(others, ids) < 0]
    examples = (
        f"{name} has ids such as {some(map(str, ids[~matched][:3]))}, {other} has "
        f"{some(map(str, (strangers if len(strangers) else others)[:3]))}"
    )
    if not matched.any():
        bare = [pd.Index([str(i).lstrip("0") for i in part]) for part in (ids, others)]
        zeros = (
            ", with or without leading zeros, which Excel drops"
            if bare[0].isin(bare[1]).any()
            else ""
        )
        raise InputError(
            f"none of the {len(ids):,} patients of {name} are in {other}: {examples}; write them "
            f"in the same way{zeros}."
        )
    advice = "check that both write them in the same way."
    warning = ReportWarning(
        f"only {matched.sum():,} of {len(ids):,} patients of {name} are in {other}: {examples}; "
        f"{advice}",
        f"fewer than {100 * enough:g} % of the patients of {name} are in {other}; {advice}",
    )
    warnings.warn(warning, stacklevel=3)


# --- numbers: decimal points and decimal commas -----------------------------------------------


_TOLERATED = 0.01  # share of different numbers that only the other decimal sign can read
_COMMA = re.compile(r"[+-]?\d+,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def check_decimal(decimal: str | None) -> None:
    if decimal not in (None, ".", ","):
        raise InputError(f"{option_name('decimal')} must be a point or a comma, found {decimal!r}.")


def decimal_sign(values: Iterable[Any], name: str) -> str:
    """The decimal sign of a column's texts: a comma where some have one and none has a point.

    Examples
    --------
    >>> decimal_sign(["12,5", "7", "<2"], "labs.csv"), decimal_sign(["1,234", "12.5"], "labs.csv")
    (',', '.')
    """
    texts = [value.strip() for value in values if isinstance(value, str)]
    commas = [text for text in texts if _COMMA.fullmatch(text)]
    if not commas or any(_POINT.fullmatch(text) for text in texts):
        return "."
    if all(_THOUSANDS.fullmatch(text) for text in commas):
        raise InputError(
            f"nothing shows whether the comma in {some(commas)} of {name} is a decimal comma or "
            f"sets thousands apart; state it, as in {option('decimal', ',')} or "
            f"{option('decimal', '.')}."
        )
    return ","


def read_numbers(values: Iterable[Any], decimal: str | None, name: str) -> NDArray[np.float64]:
    """Texts as numbers with the stated decimal sign, or with the one that they show.

    A stated sign that makes numbers unreadable which the other one reads is an error.
    """
    texts = list(values)
    if decimal is None:
        return to_numbers(texts, decimal_sign(texts, name))
    numbers, other = to_numbers(texts, decimal), "." if decimal == "," else ","
    lost = np.isnan(numbers) & ~np.isnan(to_numbers(texts, other))
    if lost.sum() > _TOLERATED * len(texts):
        raise InputError(
            f"{option('decimal', decimal)} cannot read {lost.sum():,} of the {len(texts):,} "
            f"different numbers of {name}, such as {some(texts[i] for i in np.flatnonzero(lost))}; "
            f"{option('decimal', other)} can."
        )
    return numbers


def to_numbers(values: Iterable[Any], decimal: str) -> NDArray[np.float64]:
    """Texts as numbers, NaN where they are not; the other sign may separate thousands.

    Examples
    --------
    >>> to_numbers(["12,5", "1.234,5", "<2"], ",").tolist()
    [12.5, 1234.5, nan]
    """
    numbers: NDArray[np.float64] = pd.to_numeric(
        pd.Series([_plain(value, decimal) for value in values], dtype=object), errors="coerce"
    ).to_numpy(float)
    return numbers


def _plain(value: Any, decimal: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    other = "." if decimal == "," else ","
    if other in text and re.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})+(\{decimal}\d*)?", text):
        text = text.replace(other, "")
    return text.replace(",", ".") if decimal == "," and "." not in text else text
