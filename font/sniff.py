"""Delimited text files as they come: their encoding, their delimiter and their first lines."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from font.errors import InputError, option, option_name

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
FALLBACK = "cp1252"
"""Text that is not UTF-8 is read so: what Windows writes in Western Europe and the Americas."""

_SAMPLE = 1 << 16
_N_LINES = 20
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


_OTHER_FILES = {
    b"PK\x03\x04": ("an Excel or zip file", ".xlsx, or unpack it"),
    b"PAR1": ("a Parquet file", ".parquet"),
    b"\x1f\x8b": ("a gzip file", ".gz"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", ".zst"),
}


class TextFormat(NamedTuple):
    """How a text file is written.

    `lines` are the fields of the first lines, the header first; `plain`: the first bytes are ASCII.
    """

    encoding: str
    delimiter: str
    detected: bool
    lines: list[list[str]]
    plain: bool


def open_bytes(path: Path) -> Any:
    """A stream of the bytes of a file, unpacked if it ends in .gz, .bz2 or .zst."""
    import pyarrow as pa

    return pa.input_stream(str(path), compression="detect")


def sniff(path: Path, encoding: str | None = None, delimiter: str | None = None) -> TextFormat:
    """The encoding and the delimiter of a file, as stated, else as its first lines show them.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_bytes("id;Stadt\\n1;Köln, Altstadt\\n".encode("cp1252"))
    >>> sniff(path)[:3]
    ('cp1252', ';', True)
    """
    if delimiter is not None:
        delimiter = check_delimiter(delimiter)
    if encoding is not None:
        check_encoding(encoding)
    try:
        with open_bytes(path) as stream:
            sample = bytes(stream.read(_SAMPLE))
    except OSError as error:
        if path.suffix.lower() in (".gz", ".bz2", ".zst"):
            raise InputError(
                f"{path.name} cannot be unpacked ({error}); check that it is a whole "
                f"{path.suffix} file, or unpack it first."
            ) from None
        raise
    for mark, (what, ending) in _OTHER_FILES.items():
        if sample.startswith(mark):
            raise InputError(f"{path.name} is not text but {what}; give it the ending {ending}.")
    name = encoding or _encoding_of(sample)
    if b"\0" in sample and encoding is None and name != "utf-16":
        raise InputError(
            f"{path.name} is not a text file: it holds zero bytes; save the table as CSV, .xlsx or "
            "Parquet."
        )
    try:
        text = _decoded(sample, name)
    except UnicodeError:
        raise InputError(not_text(path, name, encoding is None)) from None
    lines = text.splitlines()
    if len(sample) == _SAMPLE and len(lines) > 1:
        lines = lines[:-1]  # the last one may be cut
    first = [line for line in lines if line.strip()][:_N_LINES]
    chosen = delimiter or _delimiter_of(first)
    fields = list(csv.reader(first, delimiter=chosen))
    if delimiter is not None and fields and len(fields[0]) == 1 and _delimiter_of(first) != chosen:
        likely = _delimiter_of(first)
        if len(next(csv.reader(first, delimiter=likely))) > 1:
            raise InputError(
                f"{path.name} does not have the delimiter {chosen!r}: its header is "
                f"{fields[0][0]!r}; leave {option_name('delimiter')} out, or state it, as "
                f"in {option('delimiter', likely)}."
            )
    return TextFormat(name, chosen, encoding is None, fields, sample.isascii())


def not_text(path: Path, encoding: str, detected: bool) -> str:
    """Why a file cannot be read in an encoding that was stated, or concluded from its bytes."""
    if detected:
        return (
            f"{path.name} is neither utf-8 nor {encoding} text; state its encoding, as in "
            f"{option('encoding', 'latin-1')}, or save it as UTF-8."
        )
    advice = option("encoding", "latin-1" if encoding.startswith("utf") else "utf-8")
    called = option_name("encoding")
    return (
        f"{path.name} is not {encoding} text; leave {called} out to have it detected, or state it, "
        f"as in {advice}."
    )


def check_encoding(encoding: str) -> None:
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        raise InputError(
            f"the encoding {encoding!r} is not known; {option('encoding', 'latin-1')} is one."
        ) from None


def check_delimiter(delimiter: str) -> str:
    """A single character; "tab" and a typed backslash-t mean the tab."""
    called = {"tab": "\t", "\\t": "\t", **{name: sign for sign, name in DELIMITERS.items()}}
    sign = called.get(delimiter.casefold(), delimiter)
    if len(sign) != 1 or sign.isalnum() or sign in '"\n\r':
        raise InputError(
            f"{option_name('delimiter')} must be one character such as ';' or the word tab, "
            f"found {delimiter!r}."
        )
    return sign


# --- inside -----------------------------------------------------------------------------------


def read_text(path: Path) -> tuple[str, str]:
    """The text of a small file, and the delimiter of its lines, comments aside.

    Lines that begin with "#" are comments, and left out.
    """
    sniff(path)
    data = path.read_bytes()
    try:
        text = _decoded(data, _encoding_of(data), final=True)
    except UnicodeDecodeError:
        raise InputError(not_text(path, _encoding_of(data), detected=True)) from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines), _delimiter_of([line for line in lines if line.strip()][:_N_LINES])


def _encoding_of(sample: bytes) -> str:
    for mark, encoding in _MARKS.items():
        if sample.startswith(mark):
            return encoding
    try:
        _decoded(sample, "utf-8")
    except UnicodeDecodeError:
        return FALLBACK
    return "utf-8"


def _decoded(sample: bytes, encoding: str, final: bool | None = None) -> str:
    """The text; a character that the end of the sample cuts is left out."""
    plain = encoding.casefold().replace("_", "-") in ("utf-8", "utf8")
    decoder = codecs.getincrementaldecoder("utf-8-sig" if plain else encoding)()
    return decoder.decode(sample, final=len(sample) < _SAMPLE if final is None else final)


def _delimiter_of(lines: list[str]) -> str:
    """The sign that splits the header and most lines into equally many fields, several of them."""

    def quality(sign: str) -> tuple[bool, int, int]:
        counts = [len(fields) for fields in csv.reader(lines, delimiter=sign)]
        several = Counter(n for n in counts if n > 1)
        ((n_fields, n_lines),) = several.most_common(1) or [(0, 0)]
        return counts[0] > 1, n_lines, n_fields

    return max(DELIMITERS, key=quality) if lines else ","
