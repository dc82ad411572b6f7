"""The *results* message, site → centre: tables of a site's clusters, for the report of all sites.

Which tables there are, and what their columns mean, is not said in the file: the package whose
study it is registers the format (`font.exchange.registry`), and a reader refuses tables and columns
that the format does not have, and files that lack one. The payload is:

=================== =========================================================================
format              the word under which the tables were registered
of                  SHA-256 of the payload of the ensemble or shared file whose clusters these are
min_count           the unit: every count is a multiple of it
tables              list of {name, columns}; columns is a list of {kind, name, values}, all of one
                    length, in which null is a missing value
=================== =========================================================================

The kinds of columns are:

=================== =========================================================================
text                has `levels`, the different texts, none twice; values are their numbers, from 0
count               numbers of patients, or of what patients did: multiples of min_count
whole               whole numbers of something else, such as the number of a cluster
number              any number; it is read back bit for bit
flag                true or false, never null
=================== =========================================================================

Counts are rounded before the tables are made, so that shares and rates of them come from rounded
counts too; what else is a number rests on at least min_count patients or has few digits.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from font.checks import some
from font.errors import InputError
from font.exchange.disclosure import hints_of_counts, rounding_in_words, unrounded
from font.exchange.fields import PRINTED, Count, Hash, Label, Least, Number, Strict, misfit, size
from font.exchange.registry import Kind, Message, tables_of

MOST_TABLES, MOST_COLUMNS, MOST_ROWS, MOST_LETTERS = 300, 100, 200_000, 1_000
Cell = Annotated[str, Field(max_length=MOST_LETTERS, pattern=PRINTED + "*$")]


class TextColumn(Strict):
    """Texts, as numbers of the different ones."""

    kind: Literal["text"]
    name: Label
    levels: Annotated[list[Cell], size(0, MOST_ROWS)]
    values: Annotated[
        list[Annotated[int, Field(ge=0, lt=MOST_ROWS)] | None],
        size(0, MOST_ROWS),
    ]


class CountColumn(Strict):
    """Numbers of patients, or of what patients did."""

    kind: Literal["count"]
    name: Label
    values: Annotated[list[Count | None], size(0, MOST_ROWS)]


class WholeColumn(Strict):
    """Whole numbers that do not count patients."""

    kind: Literal["whole"]
    name: Label
    values: Annotated[
        list[Annotated[int, Field(ge=-(10**9), le=10**9)] | None],
        size(0, MOST_ROWS),
    ]


class NumberColumn(Strict):
    """Any numbers."""

    kind: Literal["number"]
    name: Label
    values: Annotated[list[Number | None], size(0, MOST_ROWS)]


class FlagColumn(Strict):
    """True or false."""

    kind: Literal["flag"]
    name: Label
    values: Annotated[list[bool], size(0, MOST_ROWS)]


ColumnPart = Annotated[
    TextColumn | CountColumn | WholeColumn | NumberColumn | FlagColumn,
    Field(discriminator="kind"),
]


class TablePart(Strict):
    """A table, column by column."""

    name: Label
    columns: Annotated[list[ColumnPart], size(1, MOST_COLUMNS)]


class ResultsPayload(Strict):
    """Tables of a site's clusters."""

    format: Label
    of: Hash
    min_count: Least
    tables: Annotated[list[TablePart], size(1, MOST_TABLES)]


def column_part(kind: Kind, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """A column of a file; None is a missing value.

    >>> column_part("text", "sex", ["f", None, "m", "f"])
    {'kind': 'text', 'name': 'sex', 'levels': ['f', 'm'], 'values': [0, None, 1, 0]}
    """
    if kind != "text":
        return {"kind": kind, "name": name, "values": list(values)}
    texts = [None if text is None else printed(str(text)) for text in values]
    levels = {text: i for i, text in enumerate(dict.fromkeys(t for t in texts if t is not None))}
    codes = [None if text is None else levels[text] for text in texts]
    return {"kind": kind, "name": name, "levels": list(levels), "values": codes}


def printed(text: str) -> str:
    """A text as a file may hold it: on one line, nothing that hides or turns it, not too long."""
    shown = "".join(
        " " if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c for c in text
    )
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 1] + "…"


def column_values(column: Mapping[str, Any]) -> list[Any]:
    """The values of a column of a file, texts as texts; None is a missing value."""
    values: list[Any] = column["values"]
    if column["kind"] != "text":
        return values
    levels = column["levels"]
    return [None if code is None else levels[code] for code in values]


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    known = tables_of(payload["format"], f"{origin}: ")
    names = [table["name"] for table in payload["tables"]]
    _check_names(names, list(known), "tables", origin)
    for table in payload["tables"]:
        where, columns = f"the table {table['name']!r}", table["columns"]
        expected = known[table["name"]]
        _check_names([c["name"] for c in columns], list(expected), f"columns of {where}", origin)
        lengths = {len(column["values"]) for column in columns}
        if len(lengths) > 1:
            raise misfit(origin, f"{where} has columns of {some(sorted(lengths))} rows")
        for column in columns:
            kind = expected[column["name"]].kind
            if column["kind"] != kind:
                raise misfit(
                    origin,
                    f"the column {column['name']!r} of {where} is of the kind {column['kind']!r} "
                    f"instead of {kind!r}",
                )
            if wrong := _find_fault(column, payload["min_count"]):
                raise misfit(origin, f"the column {column['name']!r} of {where} has {wrong}")


def _check_names(found: list[str], expected: list[str], what: str, origin: str) -> None:
    """Refuse names that repeat, that the format does not have, or that are absent."""
    unknown = [name[:60] for name in dict.fromkeys(found) if name not in expected]
    absent = [name for name in expected if name not in found]
    for wrong, names in (("does not know", unknown), ("needs, but the file lacks", absent)):
        if names:
            raise InputError(
                f"{origin} does not have the {what} that this program expects: it {wrong} "
                f"{some(names)}; use the same release of mmlca at all sites."
            )
    if len(found) > len(expected):
        raise misfit(origin, f"it has {what} with repeats")


def _find_fault(column: Mapping[str, Any], unit: int) -> str | None:
    """What is wrong with the values of a column; None if nothing is."""
    values = [value for value in column["values"] if value is not None]
    if column["kind"] == "count" and values:
        return unrounded(values, unit)
    if column["kind"] == "text":
        if len(set(column["levels"])) < len(column["levels"]):
            return "a text twice among its levels"
        if max(values, default=-1) >= len(column["levels"]):
            return f"the text number {max(values)} of {len(column['levels'])} levels"
    return None


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    known, unit = tables_of(payload["format"]), payload["min_count"]
    contains = [
        f"{len(payload['tables'])} tables about the patients of the site by cluster, for the "
        "report of all sites:"
    ]
    for table in payload["tables"]:
        rows = len(table["columns"][0]["values"])
        meanings = "; ".join(known[table["name"]][c["name"]].meaning for c in table["columns"])
        contains.append(f"{table['name']} ({rows:,} row{'' if rows == 1 else 's'}): {meanings}")
    if unit == 1:
        return contains, [
            "exact numbers of patients, also of few and of one, since min_count is 1: whoever has "
            "the file may recognise single patients"
        ]
    contains.append(rounding_in_words(unit))
    reveals = [
        "how the patients of each cluster were treated, who they are and what became of them, in "
        "rounded numbers",
        "other numbers, such as means and estimates, that are based on at least "
        f"{unit} patients or have few digits",
        *hints_of_counts(unit),
    ]
    return contains, reveals


def _shown(payload: Mapping[str, Any]) -> dict[str, Any]:
    tables = {}
    for table in payload["tables"]:
        columns = {column["name"]: column_values(column) for column in table["columns"]}
        rows = zip(*columns.values(), strict=True)
        tables[table["name"]] = [dict(zip(columns, row, strict=True)) for row in rows]
    return {**payload, "tables": tables}


MESSAGE = Message(payload=ResultsPayload, explain=_explain, check=_check, shown=_shown)
