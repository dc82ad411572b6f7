"""`mmlca simulate`: the study from the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from commands import mmlca_does, refusal

SMALL = ["simulate", "--sites", "3", "--replicates", "2", "--settings"]


def test_it_writes_tables_and_takes_up_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "new"
    command = [*SMALL, "imbalanced,contaminated", "--variances", "0.1", "--out", str(out)]
    said = mmlca_does(*command)
    assert "Mean adjusted Rand index, local models from 1 start; the largest standard error" in said
    table = pd.read_csv(out / "table.csv")
    assert table[["n_init", "setting"]].to_numpy().tolist() == [
        [n, setting] for n in (10, 1) for setting in ("imbalanced", "contaminated")
    ]
    results = pd.read_csv(out / "results.csv")
    mean = results[results["method"] == "FONT"].groupby(["n_init", "setting"], sort=False)["ari"]
    assert mean.mean().tolist() == pytest.approx(table["FONT mean"].tolist())
    assert f"{table['FONT mean'].iloc[0]:.3f}" in said
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
