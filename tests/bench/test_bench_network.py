"""A network of 50 hospitals in folders on one machine: processor time and memory."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_folders import Network

from mmlca.federation import centre_run
from mmlca.federation.centre_run import run_centre
from mmlca.federation.site_run import run_site

pytestmark = pytest.mark.bench
TURNS = 5  # fit, label, two steps of the refinement, results


def cpu() -> float:
    """Seconds of this process and of those that it has started and ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def test_fifty_hospitals_take_ten_minutes_and_two_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    sites = {f"hospital {i + 1}": int(n) for i, n in enumerate(rng.integers(250, 550, 50))}
    network = Network(tmp_path, refine="1", more="[outputs]\nfigures = false\n", sites=sites)
    text = network.study.read_text().replace("number = 2", "number = 4")
    network.study.write_text(text.replace("n_init = 4", "n_init = 10"))
    spent = {"sites": 0.0, "centre": 0.0, "page": 0.0}

    def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        begin = cpu()
        result = function(*arguments)
        spent[name] += cpu() - begin
        return result

    write = centre_run.write_report
    monkeypatch.setattr(centre_run, "write_report", lambda *made: timed("page", write, *made))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(TURNS):
            for site in network.sites:
                home = network.root / site
                timed("sites", run_site, network.study, home / "site.toml", home)
            network.post()
            turn = timed("centre", run_centre, network.study, network.root / "centre")
            network.answer()
    assert turn.result is not None
    assert (network.root / "centre" / "outbox" / "report.html").exists()
    spent["centre"] -= spent["page"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{sum(sites.values()):,} patients,", {k: round(v, 1) for k, v in spent.items()}, "s,")
    print(f"{memory:.2f} GB")
    assert sum(spent.values()) < 600
    assert spent["centre"] < 30
    assert memory < 2
