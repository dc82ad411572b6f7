"""`mmlca simulate`: the study from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from typer.testing import CliRunner

from mmlca import cli

run = CliRunner().invoke
SMALL = ["simulate", "--sites", "3", "--replicates", "2", "--no-extensions", "--settings"]


@pytest.fixture(autouse=True)
def _no_window() -> None:
    matplotlib.use("Agg")


def test_it_writes_tables_and_figures_and_takes_up_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "new"
    command = [*SMALL, "imbalanced,contaminated", "--variances", "0.1", "--out", str(out)]
    done = run(cli.app, command)
    assert done.exit_code == 0, done.output
    assert "FONT is better than k-FED" in done.output
    assert "Local models from 1 start\n" in done.output
    table = pd.read_csv(out / "table.csv")
    assert table[["n_starts", "setting"]].to_numpy().tolist() == [
        *([10, "imbalanced"], [10, "contaminated"]),
        *([1, "imbalanced"], [1, "contaminated"]),
    ]
    for name in ("results.csv", "claims.csv", "study.md", "accuracy_10.png", "weights_1.png"):
        assert (out / name).stat().st_size > 0
    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    again = run(cli.app, [*command, "--quiet"])
    assert again.output == ""
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells
    pd.testing.assert_frame_equal(pd.read_csv(out / "table.csv"), table)


def test_sequences_instead_of_gaussians(tmp_path: Path) -> None:
    command = [*SMALL, "imbalanced", "--data", "chains", "--quarters", "8", "--starts", "2"]
    done = run(cli.app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "quarters" in pd.read_csv(tmp_path / "table.csv")


def test_errors_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for more, message in (
        (["--sites", "five"], "--sites takes values separated by commas"),
        (["--data", "x"], "--data takes gaussian or chains, found 'x'"),
        (["--settings", "odd"], "setting must be one of"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mmlca.cli", "simulate", "--out", str(tmp_path), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
