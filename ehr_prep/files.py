"""Tables as they come from a hospital: CSV, Parquet or Excel files, packed or not."""

from __future__ import annotations

import glob
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from ehr_prep.columns import Header, check_by_file, columns_of_file, guess_columns, some_columns
from ehr_prep.values import factorize
from font.checks import counted, some
from font.errors import InputError, ReportWarning, option, option_name
from font.sniff import DELIMITERS, FALLBACK, not_text, open_bytes, sniff

Source: TypeAlias = pd.DataFrame | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A table: a DataFrame, a file, several files, or a pattern such as "records_*.csv"."""

_TEXT = (".csv", ".tsv", ".txt")
_PACKED = (".gz", ".bz2", ".zst")
ENDINGS = ".csv, .tsv or .txt (also .gz or .zst), .parquet or .xlsx"
Choose: TypeAlias = Callable[[list[Any], list[list[Any]]], tuple[dict[str, Any], list[Any]]]
"""Given the header and the first rows: the column of each role, and the columns to read."""


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
        roles = guess_columns(Header(columns, name, rows, about, file), own, needed)
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


# --- single files -------------------------------------------------------------------------


class Loaded(NamedTuple):
    """One file that was read.

    Parameters
    ----------
    table : arrow table or DataFrame
    roles : {role: column}
    n_broken : int
        Rows with the wrong number of fields.
    written : dict
        How the file is written: its name, encoding and delimiter, or its sheet.
    doubtful_text : str, optional
        A text with letters that another encoding would show otherwise, where the encoding was
        neither stated nor UTF-8.
    """

    table: Any
    roles: dict[str, Any]
    n_broken: int
    written: dict[str, str]
    doubtful_text: str | None = None


def files_of(source: Any) -> list[Path]:
    """The files that a path, a pattern or a list of them names; each must exist.

    Examples
    --------
    >>> files_of("no_such_folder/*.csv")
    Traceback (most recent call last):
    font.errors.InputError: no file matches 'no_such_folder/*.csv'; correct the path.
    """
    if not isinstance(source, (str, os.PathLike)):
        paths = [path for part in source for path in files_of(part)]
        if not paths:
            raise InputError("the list of files is empty; name at least one.")
        twice = [path.name for i, path in enumerate(paths) if path in paths[:i]]
        if twice:
            raise InputError(f"the files {some(twice)} are named twice; name each once.")
        return paths
    path = Path(source)
    if path.is_dir():
        inside = sorted(
            p.suffix for p in path.iterdir() if p.suffix.lower() in (*_TEXT, ".parquet")
        )
        like = f"{path.name}/*{inside[0] if inside else '.csv'}"
        raise InputError(f"{path.name} is a folder; name the files in it, as in {like!r}.")
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = sorted(Path(name) for name in glob.glob(str(source)) if Path(name).is_file())
    if not matches:
        raise InputError(f"no file matches {str(source)!r}; correct the path.")
    return matches


def source_name(source: Any) -> str:
    if isinstance(source, pd.DataFrame):
        return "the table"
    if isinstance(source, (str, os.PathLike)):
        return Path(source).name
    first, *others = source
    more = f" and {counted(len(others), 'other file', 'other files')}" if others else ""
    return f"{Path(first).name}{more}"


def load_file(path: Path, choose: Choose, encoding: str | None, delimiter: str | None) -> Loaded:
    """The columns that `choose` picks; texts of columns with a role as dictionaries."""
    ending = _ending(path)
    if ending == ".parquet":
        return _load_parquet(path, choose)
    if ending in EXCEL:
        return _load_excel(path, choose)
    return _load_text(path, choose, encoding, delimiter)


def is_text(path: Path) -> bool:
    """Whether a file is delimited text, packed or not."""
    return _ending(path) == ".csv"


def join_files(parts: list[Loaded]) -> tuple[pd.DataFrame, dict[str, Any], int]:
    """One table of all files; a column that a file lacks is missing in its rows.

    A role has the name that it has in the first file with it.
    """
    import pyarrow as pa

    roles: dict[str, Any] = {}
    for part in parts:
        roles = {**part.roles, **roles}
    tables = [_renamed(part, roles) for part in parts]
    n_broken = sum(part.n_broken for part in parts)
    if any(isinstance(table, pd.DataFrame) for table in tables):
        frames = [t if isinstance(t, pd.DataFrame) else _to_pandas(t) for t in tables]
        plain = [frame.astype(object) for frame in frames] if len(frames) > 1 else frames
        joined = pd.concat(plain, ignore_index=True).infer_objects()
        return joined, roles, n_broken
    if len({table.schema.remove_metadata() for table in tables}) > 1:
        tables = _alike(tables)
    return _to_pandas(pa.concat_tables(tables)), roles, n_broken


# --- inside ----------------------------------------------------------------------------


def _ending(path: Path) -> str:
    name = path.name.lower()
    for packed in _PACKED:
        if name.endswith(packed) and name.removesuffix(packed).endswith(_TEXT):
            return ".csv"
    suffix = path.suffix.lower()
    if suffix in _TEXT:
        return ".csv"
    if suffix == ".parquet" or suffix in EXCEL:
        return suffix
    advice = {
        ".xls": "; open it in Excel and save it as .xlsx",
        ".zip": "; unpack it first",
        ".ods": "; save it as .xlsx or CSV",
    }.get(suffix, "")
    raise InputError(f"{path.name!r} must end in {ENDINGS}{advice}.")


def _load_text(path: Path, choose: Choose, encoding: str | None, delimiter: str | None) -> Loaded:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    text = sniff(path, encoding, delimiter)
    if not text.lines:
        raise InputError(f"{path.name} is empty; a header and one row for each record are needed.")
    roles, columns = choose(text.lines[0], text.lines[1:])
    broken: list[int] = []

    def skip(row: Any) -> str:
        broken.append(row.number)
        return "skip"

    def read_with(encoding: str, on_broken: Callable[[Any], str] | None) -> Any:
        # Arrow's threads may outlive the read, and a thread that still holds a Python object when
        # the interpreter ends aborts the process: so no threads where Arrow calls Python.
        plain = encoding == "utf-8"
        return arrow_csv.read_csv(
            path if plain else open_bytes(path),
            arrow_csv.ReadOptions(encoding=encoding, use_threads=plain and on_broken is None),
            arrow_csv.ParseOptions(
                delimiter=text.delimiter, newlines_in_values=True, invalid_row_handler=on_broken
            ),
            arrow_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(roles.values(), pa.dictionary(pa.int32(), pa.string())),
                strings_can_be_null=True,
            ),
        )

    def read(encoding: str) -> Any:
        broken.clear()
        try:
            return read_with(encoding, None)
        except pa.ArrowInvalid as error:
            if "csv parse error" not in str(error).casefold():
                raise
            return read_with(encoding, skip)

    used = text.encoding
    try:
        try:
            table = read(used)
        except pa.ArrowInvalid as error:
            if not text.detected or "utf8" not in str(error).casefold():
                raise
            used = FALLBACK  # the first bytes were plain
            table = read(used)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if "utf8" in str(error).casefold() or isinstance(error, UnicodeDecodeError):
            raise InputError(not_text(path, used, text.detected)) from None
        raise InputError(f"{path.name} is not a readable CSV file ({error}).") from None
    last = table.slice(max(table.num_rows - 1, 0)).to_pylist()
    if any("\n" in str(value) for row in last for value in row.values()) and _open_quote(path):
        raise InputError(
            f"{path.name} has a quotation mark that is never closed, so that the last record "
            "swallows the lines after it; close it, or remove it."
        )
    written = {
        "file": path.name,
        "encoding": used,
        "delimiter": DELIMITERS.get(text.delimiter, text.delimiter),
    }
    guessed = text.detected and used == FALLBACK
    return Loaded(table, roles, len(broken), written, _first_not_ascii(table) if guessed else None)


def _first_not_ascii(table: Any) -> str | None:
    """The first name or text of a table that is not plain ASCII."""
    import pyarrow as pa

    texts = list(table.column_names)
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            texts += [text for chunk in column.chunks for text in chunk.dictionary.to_pylist()]
    return next((text for text in texts if not text.isascii()), None)


def _open_quote(path: Path) -> bool:
    """Whether a file has an odd number of quotation marks."""
    n = 0
    with open_bytes(path) as file:
        while block := file.read(2**20):
            n += bytes(block).count(b'"')
    return n % 2 == 1


def _load_parquet(path: Path, choose: Choose) -> Loaded:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path.name} is not a readable Parquet file ({error}).") from None
    roles, columns = choose(list(schema.names), [])
    text = [c for c in roles.values() if pa.types.is_string(schema.field(c).type)]
    table = pq.read_table(path, columns=columns, read_dictionary=text)
    return Loaded(table, roles, 0, {"file": path.name})


def _load_excel(path: Path, choose: Choose) -> Loaded:
    """The first sheet that has the columns needed, as a DataFrame of objects."""
    sheets = read_excel(path)
    failed: ValueError | None = None
    for name, sheet in sheets.items():
        frame = sheet.infer_objects()
        if not len(frame.columns):
            continue
        rows = [list(row) for row in frame.head(20).itertuples(index=False)]
        try:
            roles, columns = choose(list(frame.columns), rows)
        except ValueError as error:
            failed = failed or error
            continue
        return Loaded(frame[columns], roles, 0, {"file": path.name, "sheet": str(name)})
    if failed is None:
        raise InputError(f"{path.name} is empty; a header and one row for each record are needed.")
    if len(sheets) > 1:
        raise InputError(
            f"no sheet of {path.name} ({some(sheets)}) can be used; in the first, {failed}"
        )
    raise failed


def _renamed(part: Loaded, roles: dict[str, Any]) -> Any:
    """The table of a file, its columns with a role called as in all files."""
    called = {column: roles[role] for role, column in part.roles.items()}
    table = part.table
    is_frame = isinstance(table, pd.DataFrame)
    before = list(table.columns) if is_frame else table.column_names
    after = [called.get(column, column) for column in before]
    for role, name in roles.items():
        if name in before and name not in called:
            raise InputError(
                f"{part.written['file']} has a column {name!r}, which is the "
                f"{role.replace('_', ' ')} in another file and not here; rename it."
            )
    return table.set_axis(after, axis=1) if is_frame else table.rename_columns(after)


def _to_pandas(table: Any) -> pd.DataFrame:
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas(
        date_as_object=False, ignore_metadata=True
    )
    return frame


def _alike(tables: list[Any]) -> list[Any]:
    """Tables with the columns of all; where types differ, numbers if all are, otherwise text."""
    import pyarrow as pa

    names = dict.fromkeys(name for table in tables for name in table.column_names)
    columns: dict[str, list[Any]] = {}
    for name in names:
        parts = [table[name] if name in table.column_names else None for table in tables]
        kinds = {part.type for part in parts if part is not None}
        number = all(pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds)
        if len(kinds) > 1 and number:
            parts = [None if p is None else p.cast(pa.float64()) for p in parts]
        elif len(kinds) > 1:
            text = [None if p is None else p.cast(pa.string()) for p in parts]
            parts = [None if p is None else p.dictionary_encode() for p in text]
        kind = next(part.type for part in parts if part is not None)
        columns[name] = [
            pa.nulls(table.num_rows, kind) if part is None else part
            for table, part in zip(tables, parts, strict=True)
        ]
    return [
        pa.table({name: parts[number] for name, parts in columns.items()})
        for number in range(len(tables))
    ]


# --- Excel ------------------------------------------------------------------------------------
#
# A workbook is a zip archive of XML. A small archive can unpack to gigabytes, and a single cell in
# the last corner of a sheet makes a table of 17 billion cells. Both are found by unpacking the
# archive piece by piece, which needs little memory and a fraction of the time of reading it.


EXCEL = (".xlsx", ".xlsm")

_PIECE = 1 << 20
_LARGE = 50 * 2**20  # bytes of XML below which nothing is refused
_MOST_PACKED = 200  # times that ordinary XML shrinks at most; 10 to 50 are usual
_MANY_CELLS = 5_000_000
_MOST_EMPTY = 50  # cells of the table for each one that is filled
_CELL = re.compile(rb'<c\b[^>]{0,200}?\br="([A-Z]{1,3})([0-9]{1,7})"')


def read_excel(path: Path) -> dict[str, pd.DataFrame]:
    """The sheets of an Excel file without their blank rows, by name."""
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise InputError(
            f"{path.name} is an Excel file, and openpyxl, which reads it, is not installed; "
            "install the extra with `pip install 'mmlca[files]'`, or save the sheet as CSV."
        ) from None
    check_workbook(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # styles that openpyxl does not know
        try:
            sheets = pd.read_excel(path, sheet_name=None, dtype=object, engine="openpyxl")
        except Exception as error:  # openpyxl lets many kinds through
            raise InputError(f"{path.name} is not a readable Excel file ({error}).") from None
    return {str(name): sheet.dropna(how="all") for name, sheet in sheets.items()}


class Extent(NamedTuple):
    """How far a sheet reaches, and how many cells it has."""

    rows: int
    columns: int
    cells: int


def check_workbook(path: Path) -> None:
    """Refuse a workbook that unpacks to much more than it holds, or whose cells lie far apart."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        return  # its reader says what it is instead
    with archive:
        for entry in archive.infolist():
            sheet = entry.filename.startswith("xl/worksheets/") and entry.filename.endswith(".xml")
            extent = _unpack(archive, entry, path.name, sheet)
            table = extent.rows * extent.columns
            if table > _MANY_CELLS and table > _MOST_EMPTY * extent.cells:
                raise InputError(
                    f"a sheet of {path.name} reaches to row {extent.rows:,} and column "
                    f"{extent.columns:,} but has {extent.cells:,} cells; delete the stray cells "
                    "far from the table, or save the table as CSV."
                )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, sheet: bool) -> Extent:
    """Unpack an entry piece by piece; of a sheet, find its extent."""
    rows = columns = cells = size = 0
    rest = b""
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > _LARGE and size > _MOST_PACKED * max(entry.compress_size, 1):
                raise InputError(
                    f"{name} unpacks to more than {_MOST_PACKED} times its size, which no ordinary "
                    "Excel file does; open it, and save the table as CSV."
                )
            if not sheet:
                continue
            text = rest + piece
            end = 0
            for cell in _CELL.finditer(text):
                cells, end = cells + 1, cell.end()
                columns = max(columns, _column(cell[1]))
                rows = max(rows, int(cell[2]))
            rest = text[max(end, len(text) - 300) :]  # a cell may begin here and end in the next
    return Extent(rows, columns, cells)


def _column(letters: bytes) -> int:
    """The number of a column, from 1.

    >>> _column(b"A"), _column(b"XFD")
    (1, 16384)
    """
    number = 0
    for letter in letters:
        number = 26 * number + letter - ord("A") + 1
    return number
