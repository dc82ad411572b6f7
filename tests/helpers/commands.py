"""Commands of `mmlca`, run in this process."""

from __future__ import annotations

import shlex
from typing import Any

from typer.testing import CliRunner

from mmlca.cli.app import app


def invoke(command: object, *arguments: object) -> Any:
    """The result of a command: `exit_code`, `stdout` and `stderr`; a bug is raised.

    The command is one word, or a line as a user types it.
    """
    done = CliRunner().invoke(app, [*shlex.split(str(command)), *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def mmlca_does(*arguments: object) -> str:
    """What a command that succeeds prints."""
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def refusal(*arguments: object) -> str:
    """The sentence on standard error of a command that refuses its input with exit code 2."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("mmlca: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return str(done.stderr)
