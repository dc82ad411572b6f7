"""`mmlca fit` and `mmlca select` with chains by time in state and by period."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal
from stay_chains import two_classes
from step_chains import draw, people

from mmlca import MixtureMarkov, Sequences, simulate


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "MGB.csv"
    simulate(two_classes(), 400, 12, states=["TNFi", "IL6R", "JAK", "none"], seed=1)[0].write(path)
    return path


def test_fit(sequences: Path, tmp_path: Path) -> None:
    common = ["-k", "2", "--n-init", "8", "--seed", "3", "--no-figures", "--out", tmp_path]
    said = mmlca_does("fit", sequences, *common, "--stays", "2,4", "--periods", "5", "--se")
    assert " % after 4+" in said
    data = Sequences.read(sequences)
    model = MixtureMarkov(2, n_init=8, seed=3, stays=(2, 4), periods=(5,)).fit(data)
    assert MixtureMarkov.load(tmp_path / "model.json").params_ == model.params_
    leaving = pd.read_csv(tmp_path / "leaving.csv")
    assert len(leaving) == 2 * 4 * 3 * 2
    assert leaving["leaving"].to_numpy() == pytest.approx(model.leaving_["leaving"].to_numpy())
    intervals = pd.read_csv(tmp_path / "intervals.csv")
    assert {"leave", "destination"} < set(intervals["parameter"])
    common[-1] = tmp_path / "shared"
    mmlca_does("fit", sequences, *common, "--periods", "5", "--shared", "destinations")
    loaded = MixtureMarkov.load(tmp_path / "shared/model.json")
    assert loaded.form.title == "by period (1–4, 5+), shared destinations"


def test_select(sequences: Path, tmp_path: Path) -> None:
    said = mmlca_does(
        "select", sequences, "-k", "1-3", "--n-init", "8", "--stays", "2,4", "--out", tmp_path
    )
    table = pd.read_csv(tmp_path / "selection.csv")
    assert table["form"].unique().tolist() == ["plain", "by time in state (1, 2–3, 4+)"]
    assert table["chosen"].sum() == 1
    assert "BIC chooses by time in state (1, 2–3, 4+) chains with 2 classes; plain chains" in said
    assert (tmp_path / "selection.png").exists()


def test_covariates_of_the_steps(tmp_path: Path) -> None:
    data, _ = draw(250, seed=1)
    path, out = tmp_path / "MGB.csv", tmp_path / "fit"
    data.write(path)
    table = people(250, 1).assign(id=data.ids)
    table.to_csv(tmp_path / "people.csv", index=False)
    common = ["fit", path, "-k", "1", "--no-figures", "--out", out]
    steps = ["--step-covariates", tmp_path / "people.csv"]
    said = mmlca_does(*common, *steps)
    model = MixtureMarkov(1, seed=1, transitions="age + sex").fit(data)
    loaded = MixtureMarkov.load(out / "model.json")
    assert loaded.form.transitions == "age + sex"
    assert loaded.step_params_.vector == pytest.approx(model.step_params_.vector)
    effects = pd.read_csv(out / "step_coefficients.csv", keep_default_na=False)
    expected = model.step_coefficients(data)
    assert effects["se"].astype(float).to_numpy() == pytest.approx(expected["se"].to_numpy())
    assert pd.read_csv(out / "step_terms.csv")["term"].tolist() == ["age", "age", "sex", "sex"]
    assert "sex[M]" in said
    by_window = pd.DataFrame(
        {"id": np.repeat(data.ids, 12), "time": np.tile(range(1, 13), 250)}
    ).assign(line=lambda x: np.where(x["time"] > 4, "second", "first"))
    by_window.to_csv(tmp_path / "lines.csv", index=False)
    options = ["--transitions", "line", "--shared", "destinations"]
    mmlca_does(*common, "--step-covariates", tmp_path / "lines.csv", *options)
    form = MixtureMarkov.load(out / "model.json").form
    assert form.title == "by covariates (line), shared destinations"
    by_window[10:].to_csv(tmp_path / "lines.csv", index=False)
    lacking = refusal(*common, "--step-covariates", tmp_path / "lines.csv", *options)
    assert "10 of 2,750 steps lack a covariate" in lacking
    assert "--missing drop" in lacking
    assert "--se and --bootstrap" in refusal(*common, *steps, "--se")
    assert "--common-effects" in refusal(*common, "--common-effects")
    assert "the sequences have none" in refusal(*common, "--transitions", "age")


def test_mistakes(sequences: Path, tmp_path: Path) -> None:
    common = ["fit", sequences, "-k", "1", "--out", tmp_path]
    assert "--stays must be increasing" in refusal(*common, "--stays", "4,2")
    assert "stays" in refusal(*common, "--stays", "two")
    assert "--shared" in refusal(*common, "--stays", "2", "--shared", "destinations")
    late = refusal(*common, "--stays", "2,20")
    assert "too late: nobody is in a state for 20+ windows" in late
