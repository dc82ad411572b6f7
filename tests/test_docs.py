"""Examples in docstrings, README and scripts run and give what they show."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from commands import mmlca_does

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
    if name == "font.exchange.flower":
        pytest.importorskip("flwr", reason="Flower is not installed (extra federated)")
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


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    blocks = page.read_text(encoding="utf-8").split("```")
    lines = [line for block in blocks if block.startswith("sh\n") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("mmlca ")]
    assert page.name != "README.md" or len(commands) > 8
    for _, first, second, *more in commands:
        group = first in ("study", "site", "centre", "exchange")
        offered = mmlca_does(first, *([second] if group else []), "--help")
        options = [word for word in (second, *more) if word.startswith("-")]
        assert all(re.search(rf"^  .*{option}\b", offered, flags=re.M) for option in options), first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_block_of_the_documentation_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    code = re.findall(r"^```(?:python|\{code-cell\}.*)\n(.*?)^```", text, flags=re.M | re.S)
    names: dict[str, object] = {}
    for block in code:
        exec(compile(block, page.name, "exec"), names)
    plt.close("all")


NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_notebook_runs_and_shows_its_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in code:
        exec(compile("".join(cell["source"]), path.name, "exec"), names)
    plt.close("all")
    shown = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.get("name") == "stderr" for output in shown)


def test_the_documentation_lists_all_its_pages() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert {page.stem for page in PAGES if page.stem != "index"} <= set(index.split())
    assert len(NOTEBOOKS) >= 2
    assert {f"notebooks/{path.stem}" for path in NOTEBOOKS} <= set(index.split())


ELSEWHERE = ("ra_study.py", "own_local_model.py")  # run where their numbers are tested
SLOW = ("gallery.py", "simulation_study.py")
EXAMPLES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.name not in ELSEWHERE
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("inference.md")), ids=lambda p: p.name)
def test_the_cells_of_a_page_run(path: Path) -> None:
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", path.read_text("utf-8"), flags=re.S)
    assert cells
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell, names)


def test_the_page_on_inference_names_options_that_exist() -> None:
    text = (ROOT / "docs/inference.md").read_text(encoding="utf-8")
    for line in re.findall(r"^mmlca .*$", text, flags=re.M):
        _, *words = shlex.split(line)
        command = words[: 2 if words[0] in ("site", "centre") else 1]
        offered = mmlca_does(*command, "--help")
        assert all(word in offered for word in words if word.startswith("--")), line
