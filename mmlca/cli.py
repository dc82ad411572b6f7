"""The command line. Commands parse, call the library and print; they compute nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mmlca import __version__

app = typer.Typer(
    name="mmlca",
    help="Mixture-Markov latent class analysis of treatment sequences, federated across hospitals.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmlca {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command. What is wrong with the input is one sentence on stderr and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"mmlca: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
