"""`mmlca simulate`: the study from the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from commands import mmlca_does, refusal

SMALL = ["simulate", "--sites", "3", "--replicates", "2", "--no-extensions", "--settings"]


def test_it_writes_tables_and_figures_and_takes_up_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "new"
    command = [*SMALL, "imbalanced,contaminated", "--variances", "0.1", "--out", str(out)]
    said = mmlca_does(*command)
    assert "FONT is better than k-FED" in said
    assert "Local models from 1 start\n" in said
    table = pd.read_csv(out / "table.csv")
    assert table[["n_init", "setting"]].to_numpy().tolist() == [
        *([10, "imbalanced"], [10, "contaminated"]),
        *([1, "imbalanced"], [1, "contaminated"]),
    ]
    for name in ("results.csv", "claims.csv", "study.md", "accuracy_10.png", "weights_1.png"):
        assert (out / name).stat().st_size > 0
    finished = {path: path.stat().st_mtime_ns for path in (out / "scenarios").iterdir()}
    assert mmlca_does(*command, "--quiet") == ""
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    pd.testing.assert_frame_equal(pd.read_csv(out / "table.csv"), table)


def test_sequences_instead_of_gaussians(tmp_path: Path) -> None:
    command = [*SMALL, "imbalanced", "--data", "chains", "--quarters", "8", "--n-init", "2"]
    mmlca_does(*command, "--out", tmp_path)
    assert "quarters" in pd.read_csv(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--sites", "five", "--sites takes values separated by commas"),
        ("--data", "x", "'--data': 'x' is not one of 'gaussian', 'chains'"),
        ("--settings", "odd", "setting must be one of"),
    ],
)
def test_wrong_options_are_refused(option: str, value: str, message: str, tmp_path: Path) -> None:
    assert message in refusal("simulate", "--out", tmp_path / "new", option, value)
    assert not (tmp_path / "new").exists()
