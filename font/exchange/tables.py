"""The formats of tables that results files may carry: a list made by code, not by a file.

A file names its format by a word. The package that knows a format registers it as its tables, each
with the kind and the meaning of every column. The module imports nothing heavy: a format is
registered by the place where it is defined, as in `font.exchange.families.registry`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Literal, Protocol

from font.errors import InputError

Kind = Literal["text", "count", "whole", "number", "flag"]


class Column(Protocol):
    """A column of a table: a count is a multiple of the file's min_count."""

    @property
    def kind(self) -> Kind: ...
    @property
    def meaning(self) -> str: ...


Tables = Mapping[str, Mapping[str, Column]]

_FORMATS: dict[str, Tables | str] = {}


def register_tables(format: str, tables: Tables | str) -> None:
    """Make a format of results files known.

    Parameters
    ----------
    format : str
        The word for it in files.
    tables : {table: {column: kind and meaning}}, or where they are, such as "package.module:NAME"
    """
    _FORMATS[format] = tables


def tables_of(format: str) -> Tables:
    """The tables of a registered format; an `InputError` for any other word."""
    tables = _FORMATS.get(format)
    if tables is None:
        raise InputError(
            f"the format of results {ascii(format)[:60]} is unknown; known are "
            f"{', '.join(map(repr, _FORMATS)) or 'none'}: import the package that registers it."
        )
    if isinstance(tables, str):
        found: Tables = pkgutil.resolve_name(tables)
        tables = _FORMATS[format] = found
    return tables
