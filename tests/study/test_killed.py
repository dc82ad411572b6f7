"""Commands that are killed leave the old files or the new ones, and run again as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ra_like import ra_like
from typer.testing import CliRunner

import mmlca
from mmlca import cli

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
STUDY = ("--study", "ra", "--site", "north")


def mmlca_does(*arguments: object) -> None:
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output


class Case:
    """A command, and an older version of it that leaves other files in the same place."""

    def __init__(self, name: str, root: Path) -> None:
        home, self.out = root / "home", root / "out" / name
        data, other = home / "new.csv", home / "old.csv"
        models, labels = sorted((home / "to_all").iterdir()), home / "to_centre"
        out = ("--out", self.out / "clusters.csv" if name == "assign" else self.out)
        fit = ("-k", 2, "--pseudo-sites", 2, "--starts", 4)
        self.new, self.old = {
            "fit": (
                ("site", "fit", data, *STUDY, *fit, *out),
                ("site", "fit", other, *STUDY, *fit, *out),
            ),
            "label": (
                ("site", "label", data, *models, *STUDY, *out),
                ("site", "label", other, *models, *STUDY, *out),
            ),
            "combine": (
                ("centre", "combine", *models, *labels.iterdir(), *STUDY[:2], *out),
                (
                    "centre",
                    "combine",
                    *models,
                    *labels.iterdir(),
                    *STUDY[:2],
                    *out,
                    "--weights",
                    "equal",
                ),
            ),
            "assign": (
                ("site", "assign", home / "e" / "ensemble.json", data, *STUDY[:2], *out),
                ("site", "assign", home / "e" / "ensemble.json", other, *STUDY[:2], *out),
            ),
        }[name]

    def files(self) -> dict[str, bytes]:
        """What is there, but for unfinished files, whose names begin with a dot."""
        return {p.name: p.read_bytes() for p in self.out.iterdir() if p.name[0] != "."}

    def is_writing(self) -> bool:
        return any(name.startswith(".") for name in os.listdir(self.out))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A round of one site, up to its ensemble."""
    root = tmp_path_factory.mktemp("killed")
    home = root / "home"
    home.mkdir()
    ra_like(600, seed=1).write(home / "new.csv")
    ra_like(500, seed=2).write(home / "old.csv")
    mmlca_does(
        *("site", "fit", home / "new.csv", *STUDY, "-k", 2, "--pseudo-sites", 3, "--starts", 4),
        *("--out", home / "to_all"),
    )
    models = sorted((home / "to_all").iterdir())
    mmlca_does("site", "label", home / "new.csv", *models, *STUDY, "--out", home / "to_centre")
    counts = (home / "to_centre").iterdir()
    mmlca_does("centre", "combine", *models, *counts, *STUDY[:2], "--out", home / "e")
    return root


def killed(case: Case, moment: float | None) -> bool:
    """Start the command and kill it after so long, or as soon as it writes; whether it lived."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mmlca.cli", *map(str, case.new)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(mmlca.__file__).parents[1])},
    )
    end = time.monotonic() + (60 if moment is None else moment)
    while process.poll() is None and time.monotonic() < end:
        if moment is None and case.is_writing():
            break
        time.sleep(0.0005 if moment is None else 0.005)
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def check(name: str, root: Path, n: int) -> None:
    case, rng = Case(name, root), random.Random(name)
    mmlca_does(*case.new)
    new = case.files()
    mmlca_does(*case.old)
    old = case.files()
    assert old.keys() == new.keys()
    assert all(old[file] != new[file] for file in new)
    usual, hits = 0.0, 0
    if n > 1:
        start = time.monotonic()
        assert not killed(case, 60)  # to its end
        usual = time.monotonic() - start
        assert case.files() == new
    for i in range(n):
        for path in case.out.iterdir():
            path.unlink()
        for file, data in old.items():
            (case.out / file).write_bytes(data)
        hits += killed(case, None if i % 2 == 0 else rng.uniform(0.3, 1) * usual)
        for file, data in case.files().items():
            assert data in (old[file], new[file]), f"{file} is torn"
    assert hits >= n // 2
    mmlca_does(*case.new)
    assert case.files() == new


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_killed_while_writing(root: Path) -> None:
    check("label", root, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fit", "label", "combine", "assign"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_killed_five_times(name: str, root: Path) -> None:
    check(name, root, 5)
