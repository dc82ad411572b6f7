"""Files: sequences as CSV or Parquet, and writes that happen wholly or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pandas as pd

from mmlca.checks import some

if TYPE_CHECKING:
    from mmlca.sequences import Sequences

_CSV_MARK = "# mmlca sequences "
_PARQUET_KEY = b"mmlca"
_FIXED = ["id", "weight", "length"]


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends, flushed; nothing if it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_sequences(sequences: Sequences, path: Path) -> None:
    """See `Sequences.write`."""
    suffix = _suffix(path)
    table = sequences.to_frame()
    table.columns = pd.Index([f"t:{time}" for time in sequences.times])
    table.insert(0, "length", sequences.lengths)
    table.insert(0, "weight", sequences.weights)
    about = json.dumps(
        {
            "states": sequences.states,
            "times": sequences.times,
            "ids": "integer" if sequences.ids.dtype.kind in "iu" else "text",
        },
        ensure_ascii=False,
    )
    with atomic(path) as file:
        if suffix == ".csv":
            file.write(f"{_CSV_MARK}{about}\n".encode())
            table.to_csv(file, encoding="utf-8", lineterminator="\n")
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            arrow = pa.Table.from_pandas(table.reset_index(), preserve_index=False)
            pq.write_table(arrow.replace_schema_metadata({_PARQUET_KEY: about.encode()}), file)


def read_sequences(path: Path, states: Iterable[Any] | None) -> Sequences:
    """See `Sequences.read`."""
    from mmlca.sequences import Sequences

    table, about = _read_csv(path) if _suffix(path) == ".csv" else _read_parquet(path)
    if about is None:
        extra = {c: pd.to_numeric(table[c]) for c in ("weight", "length") if c in table.columns}
        return Sequences.from_frame(
            table.assign(**extra),
            states=states,
            weights="weight" if "weight" in extra else None,
            lengths="length" if "length" in extra else None,
        )
    try:
        described = json.loads(about)
        times, kind, labels = described["times"], described["ids"], described["states"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} starts as a file of sequences but its description is damaged ({error}); "
            "write it again."
        ) from None
    columns = [f"t:{time}" for time in times]
    if list(table.columns) != _FIXED + columns:
        raise ValueError(
            f"{path} should have the columns {some(_FIXED + columns)}, found {some(table.columns)}."
        )
    table["id"] = table["id"].astype("int64" if kind == "integer" else str)
    table["weight"] = table["weight"].astype(float)
    table["length"] = table["length"].astype("int64")
    return Sequences.from_frame(
        table, states=labels, weights="weight", lengths="length", times=times
    )


def _read_csv(path: Path) -> tuple[pd.DataFrame, str | None]:
    with path.open(encoding="utf-8", newline="") as file:
        first = file.readline()
        ours = first.startswith(_CSV_MARK)
        if not ours:
            file.seek(0)
        try:
            # a state may be called "NA": in our own files only "" is missing
            table = pd.read_csv(file, dtype=str, keep_default_na=not ours)
        except pd.errors.EmptyDataError:
            raise ValueError(f"{path} is empty; a header and rows are needed.") from None
    return table, first.removeprefix(_CSV_MARK) if ours else None


def _read_parquet(path: Path) -> tuple[pd.DataFrame, str | None]:
    import pyarrow.parquet as pq

    arrow = pq.read_table(path)
    about = (arrow.schema.metadata or {}).get(_PARQUET_KEY)
    return arrow.to_pandas(), about.decode() if about else None


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path.name!r} must end in .csv or .parquet.")
    return path.suffix.lower()
