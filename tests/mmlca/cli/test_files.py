"""Files of commands: inputs stay as they are, patients' files are for their owner alone, and two
commands do not work in one folder.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import mmlca_does, refusal
from ra_like import ra_like

import font
import mmlca
from font.files import hold
from mmlca.study.run import run_study
from mmlca.study.sensitivity import run_sensitivity
from mmlca.study.study_file import read_study

SITE = ("--study", "s", "--site", "A")
STUDY = 'name = "S"\n[sites.A]\nsequences = "clusters.csv"\n'


@pytest.mark.parametrize(
    "command",
    [
        ("prep", "records.csv", "--out", "records.csv"),
        ("prep", "x.csv", "--patients", "records.csv", "--out", "./records.csv"),
        ("prep", "x.csv", "--drugs", "y.flow.csv", "--out", "y.csv"),
        ("fit", "patients.csv", "-k", 2, "--out", "."),
        ("fit", "summary.csv", "-k", 2, "--out", "."),
        ("select", "x.csv", "selection.csv", "--out", "."),
        ("centre", "combine", "x.csv", "ensemble.json", "--study", "s", "--out", "."),
        ("exchange", "check", "ensemble.json", "--html", "ensemble.json"),
        ("site", "assign", "ensemble.json", "--study", "s", "--out", "ensemble.json"),
        ("site", "assign", "ensemble.json", "--study", "s", "--sequences", "clusters.csv"),
        ("site", "assign", "ensemble.json", "--study-file", "s.toml"),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_no_input_is_overwritten(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("records", "x", "y.flow", "patients", "summary", "selection", "clusters"):
        (tmp_path / f"{name}.csv").write_text("id,1\n1,A\n")
    (tmp_path / "ensemble.json").write_text("{}")
    (tmp_path / "s.toml").write_text(STUDY)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert "is an input and would be overwritten; choose another --out" in refusal(*command)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_files_of_patients_are_private(tmp_path: Path) -> None:
    ra_like(60, seed=1).write(tmp_path / "s.csv")
    records = "".join(f"{i},2010-0{1 + i % 9}-15,Humira\n" for i in range(20))
    (tmp_path / "r.csv").write_text(f"patient_id,date,drug\n{records}20,2010-13-45,Humira\n")
    mmlca_does("fit", tmp_path / "s.csv", "-k", 1, "--n-init", 2, "--out", tmp_path / "fit")
    mmlca_does("prep", tmp_path / "r.csv", "--drugs", "ra", "--out", tmp_path / "prep" / "out.csv")
    private = ["fit/patients.csv", "prep/out.csv", "prep/out.issues.csv"]
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in private}
    assert modes == dict.fromkeys(private, 0o600)
    for name in ("fit", "prep"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """A folder that another thread uses; the same one may use it again."""
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        with hold(folder):
            ready.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    "command",
    [
        ("study", "run", "s.toml", "--out", "out"),
        ("study", "sensitivity", "s.toml", "--out", "out"),
        ("demo", "--scale", 0.02, "--out", "out"),
        ("simulate", "--replicates", 2, "--out", "out"),
        ("site", "fit", "--study-file", "s.toml", "-k", 1, "--folder", "out", "--out", "x"),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_two_commands_do_not_work_in_one_folder(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ra_like(60, seed=1).write(tmp_path / "clusters.csv")
    (tmp_path / "s.toml").write_text(STUDY)
    with held_elsewhere(tmp_path / "out"):
        assert f"out is in use by process {os.getpid()} of" in refusal(*command)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".mmlca.lock"]


def test_library_calls_do_not_work_in_one_folder(tmp_path: Path) -> None:
    data = ra_like(60, seed=1)
    data.write(tmp_path / "clusters.csv")
    (tmp_path / "s.toml").write_text(STUDY)
    study, out = read_study(tmp_path / "s.toml"), tmp_path / "out"
    site = mmlca.Hospital(study="s", site="A", sequences=data, folder=out, n_classes=1, starts=2)
    models = [font.write_model(None, fitted(data), data, font.Header(study="s", site="A")).data]
    with held_elsewhere(out):
        for call in (
            lambda: run_study(study, out),
            lambda: run_sensitivity(study, out),
            lambda: site.fit(),
            lambda: site.label(models),
            lambda: site.release({"A": fitted(data)}),
        ):
            with pytest.raises(BlockingIOError, match="out is in use by process"):
                call()
    assert not list(out.iterdir())
    with hold(out):  # whoever holds it may go on
        assert [path.name for path in site.fit()] == ["A.model.json"]


def fitted(data: mmlca.Sequences) -> mmlca.MixtureMarkov:
    return mmlca.MixtureMarkov(1, n_init=1, seed=1).fit(data)


@pytest.mark.parametrize(
    "command",
    [
        ("study", "run", "bad.toml", "--out", "a/b"),
        ("study", "sensitivity", "bad.toml", "--out", "a/b"),
        ("site", "label", "m.json", "--sequences", "clusters.csv", *SITE, "--folder", "a/b"),
        ("site", "fit", "clusters.csv", *SITE, "-k", 9, "--folder", "a/b", "--out", "a/c"),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_a_refused_command_leaves_no_empty_folder(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ra_like(60, seed=1)
    data.write(tmp_path / "clusters.csv")
    (tmp_path / "bad.csv").write_text("id,1,2\n")
    (tmp_path / "bad.toml").write_text(STUDY.replace("clusters.csv", "bad.csv"))
    font.write_model("m.json", fitted(data), data, font.Header(study="s", site="A"))
    refusal(*command)
    assert not (tmp_path / "a").exists()
