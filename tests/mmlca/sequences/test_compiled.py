"""Compiled loops where their cache cannot be written, and where it is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mmlca

ROOT = Path(mmlca.__file__).parents[1]
LOOP = """
from numba import njit

import mmlca.sequences._compiled


@njit(cache=True)
def double(x):
    return 2 * x
"""
CALL = """
import sys
from loop import double
print(double(21), sum(double.stats.cache_hits.values()), double._cache.cache_path)
"""


def run(folder: Path, call: str = CALL, **more: str) -> list[str]:
    """What calling the loop gives: its value, hits of the cache, and where the cache is."""
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


@pytest.mark.parametrize(
    ("ending", "damage"), [(".nbi", b""), (".nbc", b""), (".nbi", b"hello"), (".nbc", b"\x80")]
)
def test_a_damaged_cache_is_built_anew(tmp_path: Path, ending: str, damage: bytes) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert run(tmp_path)[:2] == ["42", "0"]
    (file,) = (tmp_path / "__pycache__").glob(f"*{ending}")
    assert run(tmp_path)[:2] == ["42", "1"]
    file.write_bytes(damage)
    assert run(tmp_path)[:2] == ["42", "0"]
    assert run(tmp_path)[:2] == ["42", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_cache_with_single_bits_changed_is_built_anew(tmp_path: Path, ending: str) -> None:
    """Attack: change one bit, wherever it is. In most places of the code the program ended with an
    error of LLVM before, each time it was started; in others it ran what it had read."""
    (tmp_path / "loop.py").write_text(LOOP)
    run(tmp_path)
    (file,) = (tmp_path / "__pycache__").glob(f"*{ending}")
    whole = file.read_bytes()
    # the seal itself is not sealed: without it a file is read as numba reads it
    content = whole.rpartition(b"mmlca sha256 ")[0] or whole
    for place in range(3, len(content), max(len(content) // 8, 1)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert run(tmp_path)[:2] == ["42", "0"], place
    assert run(tmp_path)[:2] == ["42", "1"]


def test_files_that_another_program_wrote_are_read(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    run(tmp_path)
    for file in (tmp_path / "__pycache__").glob("*.nb?"):
        file.write_bytes(file.read_bytes().rpartition(b"mmlca sha256 ")[0])
    assert run(tmp_path)[:2] == ["42", "1"]


def test_a_full_disk_keeps_no_loop_from_running(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the folder can be written, files not."""
    (tmp_path / "loop.py").write_text(LOOP)
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    assert run(tmp_path, full + CALL)[:2] == ["42", "0"]
    assert not list((tmp_path / "__pycache__").glob("*.tmp.*"))
    assert run(tmp_path)[:2] == ["42", "0"]
    assert run(tmp_path)[:2] == ["42", "1"]


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_cache_that_can_be_neither_read_nor_replaced(tmp_path: Path, ending: str) -> None:
    """As that of another user; a folder in place of the file keeps even the superuser out."""
    (tmp_path / "loop.py").write_text(LOOP)
    run(tmp_path)
    (file,) = (tmp_path / "__pycache__").glob(f"*{ending}")
    file.unlink()
    file.mkdir()
    for _ in range(2):
        assert run(tmp_path)[:2] == ["42", "0"]


def test_loops_are_compiled_where_no_cache_can_be_written(tmp_path: Path) -> None:
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
    value, _, folder = run(tmp_path, **place, TMPDIR=str(tmp_path))
    assert value == "42"
    assert Path(folder).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("mmlca-*")), "the temporary cache stays behind"


def test_only_loops_of_this_project_are_compiled_with_little_delay(tmp_path: Path) -> None:
    source = "import gc, numba, mmlca.sequences._compiled, numba.core.event as event\n" + (
        "seen = []\n"
        "class Look(event.Listener):\n"
        "    def on_start(self, one): seen.append((int(numba.config.OPT), gc.isenabled()))\n"
        "    def on_end(self, one): pass\n"
        "event.register('numba:compile', Look())\n"
        "def mine(x): return x + 1\n"
        "numba.njit(mine)(1)\n"
        "mine.__module__ = 'mmlca.mine'\n"
        "numba.njit(mine)(1.0)\n"
        "print([*seen, (int(numba.config.OPT), gc.isenabled())])\n"
    )
    for more, levels in [({}, (3, 2, 3)), ({"NUMBA_OPT": "1"}, (1, 1, 1))]:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k != "NUMBA_OPT"}
            | {"PYTHONPATH": str(ROOT)}
            | more,
        )
        assert done.stdout.strip() == str(list(zip(levels, (True, False, True), strict=True)))


def test_inner_loops_become_machine_code_only_where_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(
        "from mmlca.sequences._compiled import entry, inner\n"
        "@inner\n"
        "def part(x): return 2 * x\n"
        "@entry\n"
        "def whole(x): return part(x) + 1\n"
        "value = whole(20)\n"
        "codes = [one.library._finalized and one.library.get_pointer_to_function('')\n"
        "         for one in part.overloads.values()]\n"
        "print(value, codes, sum(whole.stats.cache_hits.values()))\n"
    )
    place = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    printed = [
        subprocess.run(
            [sys.executable, "both.py"],
            cwd=tmp_path,
            env=os.environ | place,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert printed == ["41 [0] 0", "41 [] 1"]  # compiled, then from the cache
