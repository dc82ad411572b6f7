"""`mmlca prep`, `fit` and `select` as a user meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import invoke, mmlca_does, refusal

import mmlca
from mmlca import MarkovParams, MixtureMarkov, simulate

TWO = MarkovParams(
    [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], [[[0.95, 0.05], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "MGB.csv"
    simulate(TWO, 400, 10, states=["TNFi", "JAK"], seed=1)[0].write(path)
    return path


def test_fit(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    said = mmlca_does("fit", site, "-k", "2", "--out", out, "--seed", "3")
    assert "400 patients" in said
    assert "BIC" in said
    data = mmlca.Sequences.read(site)
    expected = MixtureMarkov(2, seed=3).fit(data)
    assert MixtureMarkov.load(out / "model.json").params_ == expected.params_
    patients = pd.read_csv(out / "patients.csv")
    assert patients["class"].tolist() == (expected.labels_ + 1).tolist()
    assert patients["id"].tolist() == list(data.ids)
    assert len(pd.read_csv(out / "starts.csv")) >= 40
    assert pd.read_csv(out / "summary.csv")["patients"].sum() == 400
    steps = pd.read_csv(out / "transitions.csv")
    assert (steps["count"].dropna().isin([0]) | (steps["count"].dropna() >= 11)).all()
    exact = mmlca.transition_counts(data, expected.labels_ + 1)
    np.testing.assert_array_equal(  # what is shown is exact
        steps["count"].dropna(), exact["count"][steps["count"].notna()]
    )
    assert steps["group"].nunique() == 2
    for name in ("state_distribution", "frequencies", "transitions"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_fit_without_figures_and_with_classes_too_small_to_show(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    mmlca_does("fit", site, "-k", "2", "--out", out, "--n-init", "4", "--no-figures")
    assert (out / "transitions.csv").exists()
    assert not list(out.glob("*.png"))
    done = invoke("fit", site, "-k", "2", "--out", tmp_path / "b", "--min-count", "399")
    assert done.exit_code == 0
    assert "no class has 399 patients" in done.stderr
    assert not list((tmp_path / "b").glob("*.png"))
    assert not (tmp_path / "b/transitions.csv").exists()


def test_fit_with_errors_bootstrap_and_covariates(site: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "results", tmp_path / "covariates.csv"
    data = mmlca.Sequences.read(site)
    rng = np.random.default_rng(1)
    covariates = pd.DataFrame(
        {
            "id": data.ids,
            "age": rng.normal(60, 10, 400).round(1),
            "sex": rng.choice(["f", "m"], 400),
        }
    )
    covariates[::-1].to_csv(table, index=False)
    common = ["fit", site, "-k", "2", "--out", out, "--seed", "3", "--n-init", "8"]
    said = mmlca_does(*common, "--se", "--bootstrap", "3", "--covariates", table)
    model = MixtureMarkov(2, seed=3, n_init=8).fit(data, covariates=covariates)
    saved = MixtureMarkov.load(out / "model.json")
    pd.testing.assert_frame_equal(saved.coefficients_, model.coefficients_)
    effects = pd.read_csv(out / "coefficients.csv")
    assert effects["term"].tolist() == ["(Intercept)", "age", "sex[m]"]
    assert "sex[m]" in said
    assert "found_again" in said
    intervals = pd.read_csv(out / "intervals.csv")
    expected = model.standard_errors(data, covariates)
    np.testing.assert_allclose(intervals["se"], expected["se"], rtol=1e-6)
    assert len(pd.read_csv(out / "bootstrap.csv")) == len(expected) + 4 + 3
    assert pd.read_csv(out / "stability.csv")["class"].tolist() == [1, 2]
    assert pd.read_csv(out / "terms.csv")["term"].tolist() == ["age", "sex"]
    mmlca_does(*common, "--covariates", table, "--formula", "sex")
    assert len(pd.read_csv(out / "coefficients.csv")) == 2
    covariates[:390].to_csv(table, index=False)
    sentence = refusal(*common, "--covariates", table)
    assert "10 of 400 patients lack covariates" in sentence
    assert "--missing drop" in sentence
    mmlca_does(*common, "--covariates", table, "--missing", "drop", "--formula", "sex")
    assert len(pd.read_csv(out / "patients.csv")) == 390
    assert "log(age)" in refusal(*common, "--covariates", table, "--formula", "log(age)")
    assert "give covariates" in refusal(*common, "--formula", "age")
    covariates.drop(columns="id").to_csv(table, index=False)
    assert "has no column 'id'" in refusal(*common, "--covariates", table)
    assert "at least 2 refits" in refusal(*common, "--bootstrap", "1")


def test_select_with_tests(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    common = ["-k", "1-2", "--out", out, "--n-init", "4", "--blrt", "--simulations", "3"]
    said = mmlca_does("select", site, *common)
    assert pd.read_csv(out / "selection.csv")["blrt_p"].round(2).tolist()[1:] == [0.25]
    assert "the bootstrap test chooses 1 class" in said


def test_select_one_site_and_two(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "VA.parquet"
    simulate(TWO, 500, 10, states=["TNFi", "JAK"], seed=2)[0].write(other)
    out = tmp_path / "results"
    common = ["--classes", "1-2,3", "--out", out, "--n-init", "8"]
    assert "BIC chooses 2 classes." in mmlca_does("select", site, other, *common)
    assert pd.read_csv(out / "selection.csv")["site"].tolist() == ["MGB"] * 3 + ["VA"] * 3
    assert (out / "selection.png").stat().st_size > 5_000
    assert mmlca_does("select", site, *common, "--quiet") == ""
    assert "site" not in pd.read_csv(out / "selection.csv").columns


def test_prep(tmp_path: Path) -> None:
    records = tmp_path / "medications.csv"
    records.write_text(
        "patient_id,date,drug\n1,2010-01-15,Humira\n1,2010-09-20,Orencia\n2,2007-01-01,Enbrel\n"
        "3,2012-01-01,adalimunab\n"
    )
    out = tmp_path / "made" / "sequences.parquet"
    said = mmlca_does("prep", records, "--out", out, "--preset", "ra", "--windows", "4")
    assert "first treatment before 2008-01-01" in said
    assert "adalimumab" in said  # the near miss of the unmapped name
    made = mmlca.Sequences.read(out)
    assert made.to_frame().iloc[0].dropna().tolist() == ["TNFi", "TNFi", "CTLA4-Ig"]
    assert made.lengths.tolist() == [3]
    flow = pd.read_csv(out.with_suffix(".flow.csv"))
    assert flow["records"].sum() + flow["records_left"].iloc[-1] == 4
    assert out.with_suffix(".settings.json").exists()


def test_prep_with_combinations_stopping_death_and_observation(tmp_path: Path) -> None:
    files = {
        "records.csv": "patient_id,date,drug,days_supply\n1,2010-01-01,Humira,90\n"
        "1,2010-01-10,Orencia,60\n2,2010-01-01,Humira,30\n2,2011-12-01,Humira,30\n",
        "patients.csv": "patient_id,death_date\n1,2010-10-15\n2,\n",
        "periods.csv": "patient_id,start_date,end_date\n1,2009-01-01,2010-10-15\n"
        "2,2009-01-01,2010-06-30\n2,2011-04-01,2011-12-31\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "sequences.csv"
    options = "--states combinations --death state --impute carry_forward_supplied --gap-days 20"
    options += " --min-combination-patients 1"
    mmlca_does(
        f"prep {tmp_path}/records.csv --patients {tmp_path}/patients.csv --out {out} "
        f"--observation {tmp_path}/periods.csv --windows 8 --drugs ra",
        *options.split(),
    )
    made = mmlca.Sequences.read(out)
    assert made.absorbing == ("dead",)
    assert made.states[5:] == ("TNFi+CTLA4-Ig", "none", "dead")
    first, second = made.to_frame().astype(object).where(lambda t: t.notna(), None).to_numpy()
    assert [*first] == ["TNFi+CTLA4-Ig", "TNFi", "none", "none", *["dead"] * 4]
    assert [*second] == ["TNFi", "none", None, None, None, "none", "none", "TNFi"]
    refused = refusal(
        f"prep {tmp_path}/patients.csv --drugs ra --out {out} --drug-column death_date"
    )
    assert "no column of patients.csv looks like the date" in refused
    (tmp_path / "bare.csv").write_text("patient_id,date,drug\n1,2010-01-15,Humira\n")
    refused = refusal(f"prep {tmp_path}/bare.csv --drugs ra --out {out} --states combinations")
    assert "--default-supply 30" in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit {site} -k 500", "500 classes cannot be distinguished"),
        ("fit {site}", "Missing option '--classes' / '-k'. See `"),
        ("fit {folder}/plain.csv -k 2 --states A,B", "found 'X' where the states are 'A', 'B'"),
        ("fit {folder}/none.csv -k 2", "none.csv' does not exist"),
        ("fit {folder} -k 2", "is a directory"),
        ("fit {folder}/notes.txt -k 2", "must end in .csv or .parquet"),
        ("fit {folder}/records.csv -k 2", "become sequences with `mmlca prep`"),
        ("select {site} -k many", "--classes takes whole numbers from 1 such as 1-8 or 2,3,5"),
        ("select {site} -k 8-1", "--classes takes whole numbers from 1 such as 1-8 or 2,3,5"),
        ("select {site} -k 0-3", "--classes takes whole numbers from 1 such as 1-8 or 2,3,5"),
        ("select {site} --criterion best", "'--criterion': 'best' is not one of 'bic', 'aic'"),
        ("select {site} {site}", "two files have the same name"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(
    site: Path, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.parent
    (folder / "notes.txt").write_text("hello")
    (folder / "plain.csv").write_text("id,t1\n1,X\n")
    (folder / "records.csv").write_text("patient_id,date,drug\n1,2010-01-15,Humira\n")
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    assert message in refusal(*arguments.format(site=site, folder=folder).split())
    assert set(folder.iterdir()) == before
