"""`--by course` of the commands, and what a study file says to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal

import mmlca
from font.errors import InputError
from mmlca.study.study_file import read_study


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    when = np.where(np.arange(120) < 70, 1, 4) + rng.integers(0, 2, 120)
    codes = (np.arange(6) >= when[:, None]).astype(np.int8)
    mmlca.Sequences.from_codes(codes, ["A", "B"]).write(tmp_path / "s.csv")
    return tmp_path / "s.csv"


def test_classes_of_the_time_course_by_command(sequences: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    said = mmlca_does("fit", sequences, "-k", 2, "--by", "course", "--n-init", 8, "--out", out)
    model = mmlca.CourseClasses.load(out / "model.json")
    data = mmlca.Sequences.read(sequences)
    expected = mmlca.CourseClasses(2, n_init=8, seed=1).fit(data)
    assert (model.predict(data) == expected.labels_).all()
    courses = pd.read_csv(out / "summary.csv")["course"]
    assert all(f"class {k}: {course}" in said for k, course in enumerate(courses, 1))
    assert f"BIC {expected.bic():,.2f}" in said
    assert "starts that were followed reached the maximum" in said
    names = {path.name for path in out.iterdir()}
    assert names >= {"patients.csv", "starts.csv", "transitions.csv", "state_distribution.png"}
    assert pd.read_csv(out / "patients.csv")["class"].tolist() == (expected.labels_ + 1).tolist()


def test_the_number_of_classes_by_command(sequences: Path, tmp_path: Path) -> None:
    select = ("select", sequences, "-k", "1-3", "--by", "course", "--n-init", 8)
    said = mmlca_does(*select, "--out", tmp_path / "selection")
    table = pd.read_csv(tmp_path / "selection/selection.csv")
    data = mmlca.Sequences.read(sequences)
    expected = mmlca.select_n_classes(data, [1, 2, 3], 1, by="course", n_init=8)
    np.testing.assert_allclose(table["bic"], expected["bic"])
    assert f"BIC chooses {mmlca.vote(expected)} class" in said


@pytest.mark.parametrize(
    "option",
    ["--stays 2", "--periods 3", "--se", "--bootstrap 5", "--missing drop", "--n-jobs 2"],
)
def test_options_of_chains_are_refused(sequences: Path, option: str) -> None:
    said = refusal("fit", sequences, "-k", 2, "--by", "course", *option.split())
    name = option.split()[0]
    assert said == f"mmlca: {name} does not go with --by course; leave one of them out.\n"


def test_tests_of_chains_are_refused(sequences: Path) -> None:
    assert "--blrt does not go with --by course" in refusal(
        "select", sequences, "--by", "course", "--blrt"
    )


def test_few_patients_for_many_parameters_are_noted(sequences: Path, tmp_path: Path) -> None:
    from commands import invoke

    data = mmlca.Sequences.read(sequences)
    data[::10].write(tmp_path / "few.csv")
    options = ("--by", "course", "--no-figures", "--out", tmp_path / "fit")
    done = invoke("fit", tmp_path / "few.csv", "-k", 3, *options)
    assert "3 classes have 14 free parameters for 12 patients" in done.stderr


def test_a_study_file_refuses_it_with_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "r.csv").touch()
    path = tmp_path / "study.toml"
    path.write_text('name = "S"\n[sites.A]\nrecords = "r.csv"\n[model]\nby = "course"\n')
    with pytest.raises(InputError, match=r'by = "course" under \[model\].*mmlca fit --by course'):
        read_study(path)
