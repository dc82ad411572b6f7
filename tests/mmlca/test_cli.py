"""The command line as a user meets it."""

from __future__ import annotations

from typer.testing import CliRunner

import mmlca
from mmlca import cli

run = CliRunner().invoke


def test_version_and_help() -> None:
    done = run(cli.app, ["--version"])
    assert done.exit_code == 0
    assert done.output == f"mmlca {mmlca.__version__}\n"
    done = run(cli.app, ["--help"])
    assert done.exit_code == 0
    assert "treatment sequences" in done.output
