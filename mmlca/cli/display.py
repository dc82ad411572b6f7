"""What all commands show: one progress bar, notes, files written, and tables of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import pandas as pd

STOPPED = "stopped before the end; run the command again."
RESUMES = "stopped; the same command continues after the last finished step."
Show = Callable[[str, float | None], None]


@contextmanager
def working(text: str, *, quiet: bool = False, resumes: bool = False) -> Iterator[Show]:
    """A progress bar on standard error, if that is a terminal.

    Yields a function `show(text, share)`; a share of None stands for an unknown end. Warnings
    become notes when the work is done. `resumes`: the same command continues after Ctrl-C.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    task = bar.add_task(text, total=None)

    def show(text: str, share: float | None) -> None:
        bar.update(
            task, description=text, completed=share or 0.0, total=None if share is None else 1.0
        )

    try:
        with bar, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield show
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUMES if resumes else STOPPED) from None
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(quiet, message)


def note(quiet: bool, text: str) -> None:
    if not quiet:
        typer.echo(f"note: {text}", err=True)


def say(quiet: bool, *lines: str) -> None:
    if lines and not quiet:
        typer.echo("\n".join(lines))


def wrote(paths: Sequence[Path]) -> str:
    folder = paths[0].parent
    place = "this folder" if folder == Path() else folder
    return f"Wrote {', '.join(path.name for path in paths)} to {place}."


def write_table(table: pd.DataFrame, path: Path, *, private: bool = False) -> Path:
    from font.files import atomic_write, csv_text

    atomic_write(path, csv_text(table).encode(), private=private)
    return path
