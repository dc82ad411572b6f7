"""Commands that are killed leave the old files or the new ones, and run again as if nothing was."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import mmlca_does
from ra_like import ra_like

import mmlca
from mmlca.federation.ledger import Ledger

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
STUDY = ("--study", "ra", "--site", "north")


class Case:
    """A command, and an older version of it that leaves other files in the same place."""

    def __init__(self, name: str, root: Path) -> None:
        home, self.out = root / "home", root / "out" / name
        data, other = home / "new.csv", home / "old.csv"
        ensemble = home / "e" / "ensemble.json"
        models, labels = sorted((home / "to_all").iterdir()), home / "to_centre"
        self.folder, older = root / name / "new", root / name / "old"
        for folder in (self.folder, older):  # two ledgers that begin alike
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(home / f"ledger before {name}.json", folder / "ledger.json")
        self.ledger = (self.folder / "ledger.json").read_bytes()
        out = ("--out", self.out / "clusters.csv" if name == "assign" else self.out)
        fit = ("-k", 2, "--pseudo-sites", 2, "--n-init", 4, *out, "--folder")
        combine = ("centre", "combine", *models, *labels.iterdir(), *STUDY[:2], *out)
        self.new, self.old = {
            "fit": (
                ("site", "fit", data, *STUDY, *fit, self.folder),
                ("site", "fit", other, *STUDY, *fit, older),
            ),
            "label": (
                *(
                    ("site", "label", *models, "--sequences", part, *STUDY, *out, "--folder", own)
                    for part, own in ((data, self.folder), (other, older))
                ),
            ),
            "combine": (combine, (*combine, "--weights", "equal")),
            "assign": (
                *(
                    (
                        "site",
                        "assign",
                        ensemble,
                        "--sequences",
                        part,
                        *STUDY[:2],
                        *out,
                        "--folder",
                        own,
                    )
                    for part, own in ((data, self.folder), (other, older))
                ),
            ),
        }[name]

    def forget(self) -> None:
        """The ledger as it was before the command."""
        (self.folder / "ledger.json").write_bytes(self.ledger)

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

    def note(step: str) -> None:
        shutil.copy(home / "ledger.json", home / f"ledger before {step}.json")

    fit = ("site", "fit", home / "new.csv", *STUDY[2:], "--n-init", 4, "--folder", home, "-k", 2)
    mmlca_does(*fit, "--study", "another study", "--out", home / "other")
    for step in ("fit", "combine"):
        note(step)
    mmlca_does(*fit, *STUDY[:2], "--pseudo-sites", 3)
    note("label")
    models = sorted((home / "to_all").iterdir())
    data = ("--sequences", home / "new.csv", "--folder", home)
    mmlca_does("site", "label", *models, *data, *STUDY)
    note("assign")
    counts = (home / "to_centre").iterdir()
    mmlca_does("centre", "combine", *models, *counts, *STUDY[:2], "--out", home / "e")
    return root


def killed(case: Case, moment: float | None) -> bool:
    """Start the command and kill it after so long, or as soon as it writes; whether it lived."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mmlca", *map(str, case.new)],
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
        case.forget()
        hits += killed(case, None if i % 2 == 0 else rng.uniform(0.3, 1) * usual)
        for file, data in case.files().items():
            assert data in (old[file], new[file]), f"{file} is torn"
        Ledger(case.folder, "ra", "north", 1)  # readable, whatever happened
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
