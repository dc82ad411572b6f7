"""Benchmarks that compare with other programs add rows to one table, which `make bench` writes.

With BENCH_OUT set to a folder, the rows go to `benchmarks.json` in it and, as a table, between the
two markers of its `benchmarks.md`. Both numbers of a row come from the same run; a run of a few
benchmarks replaces their rows alone.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import mmlca

MARKERS = ("<!-- written by make bench -->", "<!-- end -->")
USED = ("numpy", "numba", "pandas", "duckdb")

Compare = Callable[..., None]


@pytest.fixture(scope="session")
def compare() -> Compare:
    """Add a row: the task, our CPU seconds, the other program and its CPU seconds."""

    def add(task: str, ours: float, peer: str, theirs: float, note: str = "") -> None:
        times = f"{seconds(ours)}; {peer} {seconds(theirs)}, {ratio(theirs / ours)}"
        print(f"\n{task}: {times}")  # noqa: T201 - what a benchmark is run for
        row = {"task": task, "ours": ours, "peer": peer, "theirs": theirs, "note": note}
        if "BENCH_OUT" in os.environ:
            write(Path(os.environ["BENCH_OUT"]), row)

    return add


def write(folder: Path, row: dict[str, Any]) -> None:
    """Put a row into the JSON file and the page, instead of one of the same task and program."""
    file = folder / "benchmarks.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    merged = {(row["task"], row["peer"]): row for row in [*before, row]}
    content = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {"mmlca": mmlca.__version__} | {name: version(name) for name in USED},
        "rows": [merged[key] for key in sorted(merged)],
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = folder / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    table = f"{MARKERS[0]}\n{markdown(content)}{MARKERS[1]}"
    pattern = re.escape(MARKERS[0]) + ".*" + re.escape(MARKERS[1])
    page.write_text(re.sub(pattern, lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


def markdown(content: dict[str, Any]) -> str:
    """The table of a page, with a line that says what it was measured with."""
    lines = ["| task | mmlca | other program | its time | ratio |", "|---|---|---|---|---|"]
    for row in content["rows"]:
        note = f" ({row['note']})" if row["note"] else ""
        lines.append(
            f"| {row['task']} | {seconds(row['ours'])} | {row['peer']}{note} | "
            f"{seconds(row['theirs'])} | {ratio(row['theirs'] / row['ours'])} |"
        )
    used = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    return "\n".join([*lines, "", f"{content['date']}; Python {content['python']}, {used}.", ""])


def seconds(value: float) -> str:
    """CPU seconds in a unit that is easy to read."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{1e6 * value:.3g} µs"


def ratio(value: float) -> str:
    return f"{value:,.0f}×" if value >= 10 else f"{value:.2g}×"
