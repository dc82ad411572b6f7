"""What a whole study costs: the demo, step by step, and doing it again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmlca.cli.app import app

pytestmark = pytest.mark.bench


def seconds(out: Path) -> float:
    start = time.perf_counter()
    run = CliRunner().invoke(app, ["demo", "--out", str(out), "--seed", "1", "--quiet"])
    assert run.exit_code == 0, run.output
    return time.perf_counter() - start


def test_demo(tmp_path: Path) -> None:
    seconds(tmp_path / "compile")  # compiles, if nothing has
    first = seconds(tmp_path / "demo")
    steps = json.loads((tmp_path / "demo/provenance.json").read_text())["steps"]
    fits = steps["choose"]["seconds"] + steps["fit"]["seconds"]
    drawing = sum(step["seconds"] for name, step in steps.items() if name.startswith("figure"))
    again = seconds(tmp_path / "demo")
    print(
        f"\ndemo {first:.1f} s: fits {fits:.1f} s ({fits / first:.2f} of all), {len(steps)} steps, "
        f"figures {drawing:.1f} s; again with nothing to do {again:.1f} s ({again / first:.2f})"
    )
    assert fits < 0.6 * first
    assert again < 0.4 * first
