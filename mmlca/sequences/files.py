"""Files of sequences: CSV or Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from font.checks import some
from font.errors import InputError
from font.files import atomic as atomic
from font.files import atomic_write, csv_text
from font.sniff import FALLBACK, sniff

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences

_CSV_MARK = "# mmlca sequences "
_PARQUET_KEY = b"mmlca"
_FIXED = ["id", "weight", "length"]


def write(sequences: Sequences, path: str | os.PathLike[str]) -> None:
    """Write a .csv or .parquet file that `read` gives back exactly.

    The table is wide (id, weight, length, one column per time). The order of the
    states is kept in the Parquet metadata, or in a first line of the CSV file that
    starts with "#". The file appears whole or not at all, and only its owner may read it.
    """
    path = Path(path)
    suffix = _suffix(path)
    table = sequences.to_frame()
    table.columns = pd.Index([f"t:{time}" for time in sequences.times])
    table.insert(0, "length", sequences.lengths)
    table.insert(0, "weight", sequences.weights)
    described: dict[str, Any] = {
        "states": sequences.states,
        "times": sequences.times,
        "ids": "integer" if sequences.ids.dtype.kind in "iu" else "text",
    }
    if sequences.absorbing:
        described["absorbing"] = sequences.absorbing
    about = json.dumps(described, ensure_ascii=False)
    with atomic(path, private=True) as file:
        if suffix == ".csv":
            file.write(f"{_CSV_MARK}{about}\n".encode())
            table.to_csv(file, encoding="utf-8", lineterminator="\n")
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            arrow = pa.Table.from_pandas(table.reset_index(), preserve_index=False)
            pq.write_table(arrow.replace_schema_metadata({_PARQUET_KEY: about.encode()}), file)


def write_all(sequences: Sequences, path: str | os.PathLike[str]) -> list[Path]:
    """Write the sequences to `path` and their account beside it; returns all the paths.

    With "out/mgb.parquet" these are mgb.flow.csv, mgb.issues.csv, mgb.settings.json and
    mgb.unmapped.csv. The table of patients is not written.
    """
    path, account = Path(path), sequences.known_account()
    write(sequences, path)
    texts = {
        ".flow.csv": csv_text(account.flow),
        ".issues.csv": csv_text(account.issues),
        ".settings.json": json.dumps(account.settings, indent=2, ensure_ascii=False) + "\n",
    }
    if account.unmapped is not None:
        texts[".unmapped.csv"] = csv_text(account.unmapped)
    written = [path.with_suffix(suffix) for suffix in texts]
    for beside, text in zip(written, texts.values(), strict=True):
        atomic_write(beside, text.encode(), private=True)
    return [path, *written]


def holds_sequences(path: Path) -> bool:
    """Whether a file is one that `Sequences.write` wrote."""
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            file.seek(0)
            return file.read(len(_CSV_MARK)) == _CSV_MARK.encode()
    return _read_parquet(path)[1] is not None


def read(
    cls: type[Sequences],
    path: str | os.PathLike[str],
    states: Iterable[Any] | None = None,
    columns: str | Sequence[Hashable] | None = None,
) -> Sequences:
    """Read what `write` wrote, or any wide .csv or .parquet table with a column "id".

    Columns called "weight" and "length" are taken as such. `states` (labels in order) and
    `columns` (see `from_frame`) are for tables that do not say.
    """
    path = Path(path)
    table, about = _read_csv(path) if _suffix(path) == ".csv" else _read_parquet(path)
    if about is None:
        if "id" not in table.columns:
            raise InputError(
                f"{path} has no column 'id', found {some(table.columns)}; a file of sequences has "
                "one row per patient, `id` and one column per time. Medication records become "
                "sequences with `mmlca prep`."
            )
        if not len(table):
            raise InputError(f"{path} has a header but no rows; one row per patient is needed.")
        return cls.from_frame(
            table,
            states=states,
            columns=columns,
            weights="weight" if "weight" in table.columns else None,
            lengths="length" if "length" in table.columns else None,
        )
    if columns is not None:
        raise InputError(f"{path} says itself which columns hold the states; leave columns out.")
    try:
        described = json.loads(about)
        times, id_type = list(described["times"]), described["ids"]
        labels = list(described["states"])
        absorbing = [str(state) for state in described.get("absorbing", [])]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} starts as a file of sequences but its description is damaged ({error}); "
            "write it again."
        ) from None
    columns = [f"t:{time}" for time in times]
    if list(table.columns) != _FIXED + columns:
        raise InputError(
            f"{path} should have the columns {some(_FIXED + columns)}, found {some(table.columns)}."
        )
    try:
        table["id"] = table["id"].astype("int64" if id_type == "integer" else str)
        table["weight"] = table["weight"].astype(float)
        table["length"] = table["length"].astype("int64")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} has ids, weights or lengths of another kind than its description says "
            f"({error}); write it again."
        ) from None
    states = labels if states is None else states
    sequences = cls.from_frame(
        table, states=states, weights="weight", lengths="length", times=times
    )
    return sequences.absorb(*absorbing)


def read_table(path: Path) -> pd.DataFrame:
    """A table of anything by patient, with a column `id`; columns of numbers become numbers."""
    table, _ = _read_csv(path) if _suffix(path) == ".csv" else _read_parquet(path)
    if "id" not in table.columns:
        raise InputError(
            f"{path} has no column 'id', found {some(table.columns)}; give the column of the "
            "patients' ids that name."
        )
    for name in table.columns.drop("id"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        if not (numbers.isna() & table[name].notna()).any():
            table[name] = numbers
    return table


def _read_csv(path: Path) -> tuple[pd.DataFrame, str | None]:
    with path.open("rb") as file:
        first = file.readline(1 << 20).removeprefix(b"\xef\xbb\xbf")
    ours = first.startswith(_CSV_MARK.encode())
    try:
        if ours:
            # a state may be called "NA": in our own files only "" is missing
            table = pd.read_csv(path, skiprows=1, dtype=str, keep_default_na=False)
            return table, first.decode().removeprefix(_CSV_MARK)
        text = sniff(path)
        try:
            return pd.read_csv(path, sep=text.delimiter, encoding=text.encoding, dtype=str), None
        except UnicodeDecodeError:  # the first bytes were plain
            return pd.read_csv(path, sep=text.delimiter, encoding=FALLBACK, dtype=str), None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not encoded in UTF-8; save it as CSV in UTF-8.") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; a header and rows are needed.") from None
    except pd.errors.ParserError as error:
        raise InputError(f"{path} is not a table: {str(error).strip()}.") from None


def _read_parquet(path: Path) -> tuple[pd.DataFrame, str | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        arrow = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError):  # its metadata may not be JSON, for one
        raise InputError(
            f"{path} is not a Parquet file that can be read; write it again."
        ) from None
    nested = [field.name for field in arrow.schema if pa.types.is_nested(field.type)]
    if nested:
        raise InputError(f"{path} has lists or structures in {some(nested)}; give plain columns.")
    # what pandas says about a file may be wrong; an index without a name is not a column
    unnamed = [name for name in arrow.column_names if name.startswith("__index_level_")]
    about = (arrow.schema.metadata or {}).get(_PARQUET_KEY)
    table = arrow.replace_schema_metadata().drop_columns(unnamed).to_pandas()
    return table, about.decode(errors="replace") if about else None


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path.name!r} must end in .csv or .parquet.")
    return path.suffix.lower()
