"""The folder of results: what it overwrites, removes, and keeps from others."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pandas as pd
import pytest

from mmlca.study.cache import Results


def plant(folder: Path, files: dict[str, str]) -> Results:
    """Results whose earlier steps are what someone else wrote into `provenance.json`."""
    steps = {"old": {"key": "k", "seconds": 0.0, "files": files}}
    (folder / "provenance.json").write_text(json.dumps({"steps": steps}))
    return Results(folder, {})


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_planted_provenance_removes_nothing_that_the_program_did_not_write(
    tmp_path: Path,
) -> None:
    out, outside = tmp_path / "out", tmp_path / "precious.csv"
    (out / "tables").mkdir(parents=True)
    (out / "figures").symlink_to(tmp_path)
    (out / "tables" / "link.csv").symlink_to(outside)
    thesis, edited = out / "thesis.docx", out / "tables" / "edited.csv"
    notes = out / "patients" / "notes.csv"
    notes.parent.mkdir()
    for path in (outside, thesis, edited, notes):
        path.write_text(path.name)
    planted = {
        "../precious.csv": sha(outside),
        str(outside): sha(outside),
        "tables/../../precious.csv": sha(outside),
        "figures/precious.csv": sha(outside),
        "tables/link.csv": sha(outside),
        "thesis.docx": sha(thesis),
        "tables/edited.csv": "0" * 64,
        "patients/notes.csv": sha(notes),
    }
    results = plant(out, planted)
    results.keep_only([])
    assert all(path.exists() for path in (outside, thesis, edited, notes))
    assert (out / "tables" / "link.csv").is_symlink()


def test_files_of_earlier_steps_are_removed(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    with results.step("old", "k"):
        results.text("tables/a.csv", "a")
        results.text("tables/changed.csv", "b")
    (tmp_path / "tables" / "changed.csv").write_text("by hand")
    Results(tmp_path, {}).keep_only([])
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["changed.csv"]


def test_inputs_are_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "patients" / "MGB_sequences.csv"
    path.parent.mkdir()
    path.write_text("id,1\n")
    steps = {
        "old": {"key": "k", "seconds": 0.0, "files": {"patients/MGB_sequences.csv": sha(path)}}
    }
    (tmp_path / "provenance.json").write_text(json.dumps({"steps": steps}))
    results = Results(tmp_path, {}, [path])
    for write in (
        lambda: results.table("patients/MGB_sequences.csv", pd.DataFrame()),
        lambda: results.keep_only([]),
    ):
        with pytest.raises(ValueError, match=r"is an input and would be overwritten; choose"):
            write()
    assert path.read_text() == "id,1\n"


@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_files_of_patients_are_private(tmp_path: Path) -> None:
    (tmp_path / "patients").mkdir(mode=0o755)  # as an earlier version made it
    results = Results(tmp_path, {})
    results.text("patients/MGB_clusters.csv", "id\n")
    results.text("tables/a.csv", "a\n")
    modes = {
        name: stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in ("patients", "patients/MGB_clusters.csv")
    }
    assert modes == {"patients": 0o700, "patients/MGB_clusters.csv": 0o600}
    assert stat.S_IMODE((tmp_path / "tables").stat().st_mode) & 0o055


@pytest.mark.parametrize("name", ["patients/MGB_clusters.csv", "tables/sizes.csv"])
def test_a_planted_link_takes_no_files_to_another_place(tmp_path: Path, name: str) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / name).parent.symlink_to(elsewhere)
    (out / ".probe").symlink_to(tmp_path / "made")
    results = Results(out, {})
    with pytest.raises(OSError, match="is a link to another place"):
        results.text(name, "id\n")
    assert not list(elsewhere.iterdir())
    assert not (tmp_path / "made").exists()


def test_what_a_killed_run_left_of_patients_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / "patients" / ".MGB_clusters.csv.0123456789abcdef.tmp"
    stale.parent.mkdir()
    stale.write_text("id\nP-1\n")
    os.utime(stale, (1e9, 1e9))
    Results(tmp_path, {})
    assert not stale.exists()


def test_a_run_that_hides_numbers_leaves_no_exact_ones_of_an_earlier_run(tmp_path: Path) -> None:
    """The two record hashes with a key and without one."""
    exact = Results(tmp_path, {})
    with exact.step("figure lab_local", "1"):
        exact.text("figures/lab_local.csv", "n\n3\n")
    hiding = Results(tmp_path, {}, keyed=True)
    hiding.keep_only([])
    assert not (tmp_path / "figures/lab_local.csv").exists()
    with hiding.step("figure lab_local", "2"):
        hiding.text("figures/lab_local.csv", "n\n\n")
    Results(tmp_path, {}).keep_only([])
    assert not (tmp_path / "figures/lab_local.csv").exists()
