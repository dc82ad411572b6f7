"""Compiled loops where their files cannot be written, and where they are damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mmlca

ROOT = Path(mmlca.__file__).parents[1]
LOOP = """
from mmlca.sequences._compiled import entry, inner


@inner
def double(x):
    return 2 * x


@entry
def answer(x):
    return double(x)
"""
CALL = """
from loop import answer
from numba.core import event
compiled = []
class Watch(event.Listener):
    def on_start(self, one): compiled.append(one)
    def on_end(self, one): pass
with event.install_listener("numba:compile", Watch()):
    print(answer(21), "read" if not compiled else "compiled")
"""


def run(folder: Path, call: str = CALL, **more: str) -> list[str]:
    """What calling the loop gives, and whether it was compiled for it or read from disk."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-B", "-c", call],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])} | more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the loop was compiled and read once."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "loop.py").write_text(LOOP)
    assert run(folder) == ["42", "compiled"]
    assert run(folder) == ["42", "read"]
    return folder


def stored(compiled: Path, folder: Path, ending: str) -> Path:
    """The only stored file with this ending in a copy of the compiled loop."""
    shutil.copytree(compiled, folder, dirs_exist_ok=True)
    (file,) = (folder / "__pycache__").glob(f"*{ending}")
    return file


@pytest.mark.parametrize(
    ("ending", "damage"), [(".nbi", b""), (".nbc", b""), (".nbi", b"hello"), (".nbc", b"\x80")]
)
def test_a_damaged_file_is_written_again(
    compiled: Path, tmp_path: Path, ending: str, damage: bytes
) -> None:
    stored(compiled, tmp_path, ending).write_bytes(damage)
    assert run(tmp_path) == ["42", "compiled"]
    assert run(tmp_path) == ["42", "read"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_file_with_a_single_changed_bit_is_written_again(
    compiled: Path, tmp_path: Path, ending: str
) -> None:
    """Attack: change one bit, wherever it is. Read as it is, the code ended the program in most
    places, each time it was started; in others it ran."""
    file = stored(compiled, tmp_path, ending)
    whole = file.read_bytes()
    for place in range(3, len(whole), max(len(whole) // 8, 1)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert run(tmp_path) == ["42", "compiled"], place
    assert run(tmp_path) == ["42", "read"]


@pytest.mark.parametrize("checksum", [None, "0" * 64, ""])
def test_a_file_with_no_or_another_checksum_is_written_again(
    compiled: Path, tmp_path: Path, checksum: str | None
) -> None:
    """As a program leaves them that is killed between the two writes."""
    file = stored(compiled, tmp_path, ".nbc.sha256")
    if checksum is None:
        file.unlink()
    else:
        file.write_text(checksum)
    assert run(tmp_path) == ["42", "compiled"]
    assert run(tmp_path) == ["42", "read"]


def test_a_second_version_of_a_loop_is_stored_beside_the_first(
    compiled: Path, tmp_path: Path
) -> None:
    stored(compiled, tmp_path, ".nbi")
    other = CALL.replace("answer(21)", "answer(21.0)")
    assert run(tmp_path, other) == ["42.0", "compiled"]
    assert run(tmp_path, other) == ["42.0", "read"]
    assert run(tmp_path) == ["42", "read"]


def test_a_full_disk_keeps_no_loop_from_running(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the folder can be written, files not."""
    (tmp_path / "loop.py").write_text(LOOP)
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    assert run(tmp_path, full + CALL) == ["42", "compiled"]
    assert not list((tmp_path / "__pycache__").glob("*.tmp.*"))
    assert run(tmp_path) == ["42", "compiled"]
    assert run(tmp_path) == ["42", "read"]


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_file_that_can_be_neither_read_nor_replaced(
    compiled: Path, tmp_path: Path, ending: str
) -> None:
    """As that of another user; a folder instead of the file keeps even the superuser out."""
    file = stored(compiled, tmp_path, ending)
    file.unlink()
    file.mkdir()
    for _ in range(2):
        assert run(tmp_path) == ["42", "compiled"]


def test_loops_are_compiled_where_no_folder_can_be_written(tmp_path: Path) -> None:
    # a file where a folder is wanted keeps even the superuser from writing
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "__pycache__").write_text("")
    home = tmp_path / "mmlca" / "sequences"
    home.mkdir(parents=True)
    (home.parent / "__init__.py").write_text("")
    (home / "__init__.py").write_text("")
    (home / "_compiled.py").write_bytes((ROOT / "mmlca/sequences/_compiled.py").read_bytes())
    (home / "__pycache__").write_text("")
    place = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(tmp_path / "loop.py"))
    call = CALL + "import os; print(os.environ['NUMBA_CACHE_DIR'])"
    *printed, folder = run(tmp_path, call, **place, TMPDIR=str(tmp_path))
    assert printed == ["42", "compiled"]
    assert Path(folder).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("mmlca-*")), "the temporary folder stays behind"


def test_other_programs_keep_their_settings_of_numba() -> None:
    code = (
        "import gc, numba; before = numba.config.OPT, numba.config.CACHE_DIR\n"
        "import mmlca.sequences._compiled\n"
        "print(before == (numba.config.OPT, numba.config.CACHE_DIR), gc.isenabled())"
    )
    assert run(ROOT, code) == ["True", "True"]
