"""The command line. Commands parse, call the library and print; they compute nothing.

Exit codes: 0 done; 2 the input or a file is at fault (`InputError`, or the operating system's own
error), said in one sentence on standard error; 1 anything else, which is a bug or an interruption.
"""

from __future__ import annotations

import atexit
import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from font.errors import InputError, spelled
from mmlca import __version__
from mmlca.cli.centre import centre_app, exchange_app, network_app
from mmlca.cli.data import fit, prep, select
from mmlca.cli.options import PLAIN, STOPPED, as_option
from mmlca.cli.site import site_app
from mmlca.cli.study import demo, simulate, study_app

_LONGEST = 2_000  # letters of a message
_debug: ContextVar[bool] = ContextVar("debug", default=False)
UsageError: Any = typer.BadParameter.__base__  # typer has no other public name for it


class Commands(TyperGroup):
    """All commands, in the order in which a newcomer needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        first = ["demo", "study", "prep", "fit", "select", "site", "centre", "network", "exchange"]
        return [*first, *(name for name in super().list_commands(ctx) if name not in first)]

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _one_sentence():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _one_sentence(), spelled(as_option):
            return super().invoke(ctx)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn what is wrong with the input into a sentence and an exit code."""
    code = 2
    try:
        yield
        return
    except BrokenPipeError:  # the reader of a pipe has left; typer ends quietly
        raise
    except UsageError as error:
        if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        end = "" if message.endswith("?") else "."
        sentence = f"{message}{end} See `{error.ctx.command_path} --help`."
    except OSError as error:
        place = "" if error.filename is None else f": {error.filename}"
        sentence = f"{error}" if error.strerror is None else f"{error.strerror}{place}."
    except InputError as error:
        sentence = f"{error}"
    except RecursionError:
        sentence = "a file is nested too deeply to be read; ask its sender for another."
    except MemoryError:
        sentence = "this computer has too little memory for this; use less data."
    except KeyboardInterrupt as error:
        code, sentence = 1, f"{error}" or STOPPED
    except Exception as error:
        if isinstance(error, typer.Exit | typer.Abort) or _debug.get():
            raise
        code, sentence = 1, _bug(error)
    line = " ".join(sentence.splitlines())
    if len(line) > _LONGEST:  # a name in a file may have millions of letters
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    typer.echo(f"mmlca: {line}", err=True)
    raise typer.Exit(code)


def _bug(error: Exception) -> str:
    """What is said of an error that is not the user's; its own text may hold patients' data."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"this is a bug in mmlca ({type(error).__name__} in {Path(where.filename).name}, line "
        f"{where.lineno}); please report it. `mmlca --debug` before the command shows where it "
        "happened, with values that may come from your data."
    )


app = typer.Typer(
    name="mmlca",
    help="Mixture-Markov latent class analysis of treatment sequences, federated across hospitals.",
    cls=Commands,
    pretty_exceptions_enable=False,
    **PLAIN,
)
for _command in (demo, prep, fit, select, simulate):
    app.command()(_command)
for _group in (study_app, site_app, centre_app, network_app, exchange_app):
    app.add_typer(_group)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmlca {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where a bug happened, in full.")
    ] = False,
) -> None:
    _debug.set(debug)
    os.environ["MPLBACKEND"] = "agg"  # a command draws into files and needs no screen


def main() -> None:
    """Run the command that the user typed."""
    atexit.register(gc.freeze)  # looking for garbage at the very end takes half a second
    app()
