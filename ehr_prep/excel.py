"""Excel files: their sheets, and a check for files that need far more memory than their content.

A workbook is a zip archive of XML. A small archive can unpack to gigabytes, and a single cell in
the last corner of a sheet makes a table of 17 billion cells. Both are found by unpacking the
archive piece by piece, which needs little memory and a fraction of the time of reading it.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from font.errors import InputError

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
