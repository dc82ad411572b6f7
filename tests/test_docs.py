"""Examples in docstrings, README and scripts run and give what they show."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mmlca", "font", "ehr_prep")
MODULES = [
    info.name
    for package in PACKAGES
    for info in pkgutil.walk_packages(
        importlib.import_module(package).__path__, prefix=f"{package}."
    )
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0


def test_the_readme_shows_the_true_output(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```")
    code = next(b for b in blocks if b.startswith("python\n")).removeprefix("python\n")
    shown = next(b for b in blocks if b.startswith("text\n")).removeprefix("text\n")
    exec(code, {})
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()] == [
        line.split() for line in shown.splitlines()
    ]


ELSEWHERE = ("ra_study.py",)  # run and checked in tests/study/test_run.py
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.name not in ELSEWHERE]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
