"""Writes that happen wholly or not at all."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from font import files
from font.files import atomic, atomic_write, hold


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    atomic_write(path, b"old")
    with pytest.raises(TypeError), atomic(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["table.csv"]


def test_folders_are_made(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a" / "b" / "c", b"data")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"data"


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out.csv"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)  # at the target: replaced
    atomic_write(path, b"data")
    assert (victim.read_bytes(), path.read_bytes(), path.is_symlink()) == (
        b"precious",
        b"data",
        False,
    )
    # even a guessed temporary name is refused rather than followed
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "guessed")
    (tmp_path / ".out.csv.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        atomic_write(path, b"other")
    assert victim.read_bytes() == b"precious"
    assert path.read_bytes() == b"data"


def test_temporary_names_cannot_be_guessed(tmp_path: Path) -> None:
    seen = set()
    for _ in range(3):
        with atomic(tmp_path / "f"):
            seen |= {name for name in names(tmp_path) if name.endswith(".tmp")}
    assert len(seen) == 3
    assert not any(str(os.getpid()) in name for name in seen)


@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        atomic_write(tmp_path / "open", b"")
        atomic_write(tmp_path / "private", b"", private=True)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "private")]
    assert modes == [0o644, 0o600]


PATTERN = ".ids.csv.0123456789abcdef.tmp"


def old(path: Path, content: bytes = b"P-1") -> Path:
    """A file that is older than this process."""
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))
    return path


def test_what_a_killed_program_left_is_removed_at_the_next_write(tmp_path: Path) -> None:
    stale = old(tmp_path / PATTERN)
    atomic_write(tmp_path / "other.csv", b"data")
    assert not stale.exists()
    assert names(tmp_path) == ["other.csv"]


@pytest.mark.skipif(os.name != "posix", reason="links and locks of POSIX")
def test_nothing_but_unfinished_files_of_dead_programs_is_removed(tmp_path: Path) -> None:
    kept = [
        old(tmp_path / name)
        for name in (".ids.csv.tmp", "ids.csv.0123456789abcdef.tmp", ".a.0123456789ABCDEF.tmp")
    ]
    young = tmp_path / ".young.0123456789abcdef.tmp"
    young.write_bytes(b"being written")
    link = tmp_path / ".link.0123456789abcdef.tmp"
    link.symlink_to(kept[0])
    (tmp_path / ".dir.0123456789abcdef.tmp").mkdir()
    os.mkfifo(tmp_path / ".fifo.0123456789abcdef.tmp")
    with atomic(tmp_path / "slow.csv") as file:  # someone writes for a long time
        file.write(b"half")
        file.flush()
        (busy,) = tmp_path.glob(".slow.csv.*.tmp")
        os.utime(busy, (1e9, 1e9))
        before = names(tmp_path)
        files.clear_unfinished(tmp_path)
        assert names(tmp_path) == before
    assert (tmp_path / "slow.csv").read_bytes() == b"half"


@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_a_folder_made_for_private_files_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    atomic_write(tmp_path / "site" / "ledger.json", b"", private=True)
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700
    atomic_write(tmp_path / "ledger.json", b"", private=True)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755, "a user's own folder stays as it is"


def test_inputs_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"data")
    (tmp_path / "other.csv").write_bytes(b"data")
    files.keep_inputs([tmp_path / "other.csv", tmp_path / "new.csv"], [tmp_path / "in.csv", None])
    with pytest.raises(ValueError, match=r"in\.csv is an input and would be overwritten; choose"):
        files.keep_inputs([tmp_path / "in.csv"], [tmp_path / "in.csv"])
    (tmp_path / "sub").mkdir()
    with pytest.raises(ValueError, match="is an input"):
        files.keep_inputs([tmp_path / "sub" / ".." / "in.csv"], [tmp_path / "in.csv"])


HOLD = """
import sys
from font.files import hold
with hold(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another program that uses a folder until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(files.__file__).parents[1])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def test_the_second_in_a_folder_is_told_who_the_first_is(tmp_path: Path) -> None:
    process = holder(tmp_path / "out")
    who = rf"out is in use by process {process.pid} of '.+' on '.+' since 20.+; wait until it has"
    with pytest.raises(BlockingIOError, match=who), hold(tmp_path / "out"):
        pass
    process.communicate("")
    with hold(tmp_path / "out"):
        note = json.loads((tmp_path / "out" / ".mmlca.lock").read_text())
        assert note["pid"] == os.getpid()
    assert not names(tmp_path / "out")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_the_lock_of_a_killed_program_is_taken_over(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    process.communicate()
    assert names(tmp_path) == [".mmlca.lock"]
    with hold(tmp_path):
        assert json.loads((tmp_path / ".mmlca.lock").read_text())["pid"] == os.getpid()


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_a_planted_lock_does_no_harm(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for number, plant in enumerate(
        (
            lambda path: path.symlink_to(victim),
            lambda path: path.hardlink_to(victim),
            os.mkfifo,
            lambda path: path.mkdir(),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        plant(folder / ".mmlca.lock")
        with pytest.raises(OSError, match=r"cannot write to|is not a lock"), hold(folder):
            pass
    assert victim.read_bytes() == b"precious"


def test_spreadsheets_run_nothing_that_a_table_holds() -> None:
    evil = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0"]
    evil += ["-2 +3", "-1.2 (cmd)", "-1(2)+A1"]
    good = ["-1.5", "+2", "-inf", "a=b", "", "–", "-1.2 (0.4)", "-1.2 [-3.0, 4]", "-3e-05", "-5%"]
    for dtype in ("object", "category", "str"):
        table = pd.DataFrame({"=x": pd.Series([*evil, *good], dtype=dtype), "n": -1.5})
        table.index = pd.Index([*evil, *good], name="id")
        lines = pd.read_csv(StringIO(files.csv_text(table, index=True)), dtype=str).fillna("")
        assert list(lines) == ["id", "'=x", "n"]
        for column in ("id", "'=x"):
            assert lines[column].tolist() == [*(f"'{text}" for text in evil), *good]
        assert set(lines["n"]) == {"-1.5"}
        assert list(table) == ["=x", "n"], "the table itself stays as it is"


def test_tables_without_formulas_are_written_as_pandas_writes_them() -> None:
    table = pd.DataFrame({"a": ["x", None, 'y"z'], "b": [1.5, None, -2], "a ": [True, False, None]})
    assert files.csv_text(table) == table.to_csv(index=False, lineterminator="\n")
    twice = pd.concat([table, table], axis=1)
    assert files.csv_text(twice) == twice.to_csv(index=False, lineterminator="\n")
