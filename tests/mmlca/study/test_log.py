"""The log of a study: what it holds, and that it holds no patient."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mmlca.study import read_study, run_study, steps

STUDY = """
name = "Log"
[sites.A]
records = "records.csv"
drugs = "ra"
[classes]
number = 2
[model]
n_init = 2
[outputs]
figures = false
[inference]
standard_errors = false
diagnostics = false
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    rng, n = np.random.default_rng(1), 60
    ids = np.array([f"Zürich-{i:05d}" for i in range(n)])
    day = np.datetime64("2010-01-01") + rng.integers(0, 1000, 8 * n)
    taken = rng.choice(["Humira", "Orencia"], (n, 1)).repeat(8, axis=1).ravel()
    frame = pd.DataFrame({"id": ids.repeat(8), "date": day, "drug": taken})
    # an encoding that must be guessed, of which a warning shows a patient's id
    frame.to_csv(tmp_path / "records.csv", index=False, encoding="cp1252")
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_the_log_has_steps_settings_and_warnings_but_no_ids(
    study_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="Zürich"):
        content = run_study(read_study(study_file), tmp_path / "out")
    log = (tmp_path / "out/run.log").read_text(encoding="utf-8")
    for part in ("mmlca 0.", "numpy ", "n_init = 2", "step describe", "fit: ", " UTC INFO "):
        assert part in log
    (warned,) = [text for text in content["careful"] if "is not UTF-8" in text]
    assert f"WARNING mmlca.study.cache: {warned[0].lower()}{warned[1:]}" in log
    assert "Zürich" not in log
    assert "Z\u00fc" not in json.dumps(log, ensure_ascii=False)
    assert capsys.readouterr() == ("", "")  # a library prints nothing
    with pytest.warns(UserWarning, match="Zürich"):
        again = run_study(read_study(study_file), tmp_path / "out")
    assert again["careful"] == content["careful"]
    assert "fit: done by an earlier run" in (tmp_path / "out/run.log").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*is not UTF-8")
def test_a_bug_is_logged_with_its_place_but_not_its_text(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("Zürich-00007")

    monkeypatch.setattr(steps.analyse, "combine", fail)
    with pytest.raises(KeyError):
        run_study(read_study(study_file), tmp_path / "out")
    log = (tmp_path / "out/run.log").read_text(encoding="utf-8")
    assert "stopped by KeyError" in log
    assert "test_log.py, line" in log
    assert "Zürich" not in log
    assert not [h for h in logging.getLogger("mmlca").handlers if "Null" not in type(h).__name__]
