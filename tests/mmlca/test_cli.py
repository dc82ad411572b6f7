"""The command line as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import mmlca
from mmlca import MarkovParams, MixtureMarkov, cli, simulate

run = CliRunner().invoke

TWO = MarkovParams(
    [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [[[0.95, 0.05], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "MGB.csv"
    simulate(TWO, 400, 10, states=["TNFi", "JAK"], seed=1)[0].write(path)
    return path


def test_version_and_help() -> None:
    done = run(cli.app, ["--version"])
    assert done.exit_code == 0
    assert done.output == f"mmlca {mmlca.__version__}\n"
    done = run(cli.app, ["--help"])
    assert done.exit_code == 0
    for word in ("treatment sequences", "fit", "select"):
        assert word in done.output


def test_fit(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = run(cli.app, ["fit", str(site), "-k", "2", "--out", str(out), "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "400 patients" in done.output
    assert "BIC" in done.output
    data = mmlca.Sequences.read(site)
    expected = MixtureMarkov(2, seed=3).fit(data)
    assert MixtureMarkov.load(out / "model.json").params_ == expected.params_
    patients = pd.read_csv(out / "patients.csv")
    assert patients["class"].tolist() == expected.labels_.tolist()
    assert patients["id"].tolist() == list(data.ids)
    assert len(pd.read_csv(out / "starts.csv")) >= 40
    assert pd.read_csv(out / "summary.csv")["patients"].sum() == 400


def test_select_one_site_and_two(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "VA.parquet"
    simulate(TWO, 500, 10, states=["TNFi", "JAK"], seed=2)[0].write(other)
    out = tmp_path / "results"
    common = ["--classes", "1-2,3", "--out", str(out), "--starts", "8"]
    done = run(cli.app, ["select", str(site), str(other), *common])
    assert done.exit_code == 0, done.output
    assert "BIC chooses 2 classes." in done.output
    assert pd.read_csv(out / "selection.csv")["site"].tolist() == ["MGB"] * 3 + ["VA"] * 3
    assert (out / "selection.png").stat().st_size > 5_000
    done = run(cli.app, ["select", str(site), *common, "--quiet"])
    assert done.output == ""
    assert "site" not in pd.read_csv(out / "selection.csv").columns


def test_prep(tmp_path: Path) -> None:
    records = tmp_path / "medications.csv"
    records.write_text(
        "patient_id,date,drug\n1,2010-01-15,Humira\n1,2010-09-20,Orencia\n2,2007-01-01,Enbrel\n"
        "3,2012-01-01,adalimunab\n"
    )
    out = tmp_path / "made" / "sequences.parquet"
    done = run(cli.app, ["prep", str(records), "--out", str(out), "--windows", "4"])
    assert done.exit_code == 0, done.output
    assert "first treatment before 2008-01-01" in done.output
    assert "adalimumab" in done.output  # the near miss of the unmapped name
    made = mmlca.Sequences.read(out)
    assert made.to_frame().iloc[0].dropna().tolist() == ["TNFi", "TNFi", "CTLA4-Ig"]
    assert made.lengths.tolist() == [3]
    flow = pd.read_csv(out.with_suffix(".flow.csv"))
    assert flow["records"].sum() + flow["records_left"].iloc[-1] == 4
    assert out.with_suffix(".settings.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "{site}", "-k", "500"], "500 classes cannot be told apart"),
        (["fit", "{site}", "-k", "2", "--states", "A,B"], "A"),
        (["select", "{site}", "-k", "many"], "takes numbers such as 1-8"),
        (["select", "{site}", "--criterion", "best"], "criterion must be one of"),
        (["select", "{site}", "{site}"], "two files have the same name"),
        (["fit", "{folder}/none.csv", "-k", "2"], "none.csv"),
        (["fit", "{folder}/notes.txt", "-k", "2"], "must end in .csv or .parquet"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    site: Path, arguments: list[str], message: str
) -> None:
    (site.parent / "notes.txt").write_text("hello")
    filled = [a.format(site=site, folder=site.parent) for a in arguments]
    if message == "A":
        plain = site.parent / "plain.csv"
        pd.DataFrame({"id": [1], "t1": ["X"]}).to_csv(plain, index=False)
        filled[1], message = str(plain), "found 'X' where the states are 'A', 'B'"
    done = subprocess.run(
        [sys.executable, "-m", "mmlca.cli", *filled],
        capture_output=True,
        text=True,
        check=False,
        cwd=site.parent,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (site.parent / "fit").exists()
