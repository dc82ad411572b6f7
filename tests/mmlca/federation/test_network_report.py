"""The report at the end of a network, whatever happened before: a page, or one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from commands import invoke, mmlca_does, refusal
from network_folders import SITES, Network, again

import mmlca

ENV = os.environ | {"PYTHONPATH": str(Path(mmlca.__file__).parents[1])}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """After the last turn of all sites, whose results have not been sent."""
    network = Network(tmp_path_factory.mktemp("ready"))
    for turn in range(3):
        for site in SITES:
            network.site(site)
        if turn < 2:
            network.post()
            network.centre()
            network.answer()
    return network


def page(network: Network) -> str:
    """The page, which is in the outbox as it is in the folder of the report."""
    data = (network.root / "centre" / "report" / "report.html").read_bytes()
    assert (network.root / "centre" / "outbox" / "report.html").read_bytes() == data
    text = data.decode()
    assert text.rstrip().endswith("</html>")
    return text


def content(network: Network) -> dict:
    return json.loads((network.root / "centre" / "report" / "results.json").read_bytes())


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_report_that_was_killed_is_completed_by_the_next_run(
    ready: Network, tmp_path: Path
) -> None:
    whole, killed = (again(ready, tmp_path / name) for name in ("whole", "killed"))
    whole.post()
    assert "The round is over" in whole.centre()
    assert "<title>" in page(whole)
    killed.post()
    report = killed.root / "centre" / "report"
    command = ("centre", "run", killed.study, "--folder", killed.root / "centre")
    for moment in ("report.md", "tables", "results.json"):
        process = subprocess.Popen(
            [sys.executable, "-m", "mmlca", *map(str, command)],
            env=ENV,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 120
        while not (report / moment).exists() and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
        process.wait()
        sent = killed.root / "centre" / "outbox" / "report.html"
        assert not sent.exists() or process.returncode == 0  # a page is whole, or not sent
    assert "The round is over" in killed.centre()
    assert content(killed) == content(whole)
    page(killed)
    for path in (whole.root / "centre" / "report" / "tables").iterdir():
        assert (report / "tables" / path.name).read_bytes() == path.read_bytes()


def test_a_site_that_dropped_out_after_the_models_is_named_on_the_page(
    ready: Network, tmp_path: Path
) -> None:
    network = again(ready, tmp_path)
    network.post("north", "west")
    assert "south hospital: nothing has come" in network.centre()
    network.centre("--without", "south hospital")
    text = page(network)
    assert "south hospital has no part in the results" in text
    assert content(network)["sites"] == ["north", "west"]


def test_results_that_are_refused_are_named_and_the_others_make_a_page(
    ready: Network, tmp_path: Path
) -> None:
    network = again(ready, tmp_path)
    network.post()
    path = network.root / "centre" / "inbox" / "west.results.json"
    path.write_bytes(path.read_bytes().replace(b'"min_count":11', b'"min_count":10'))
    command = ("centre", "run", network.study, "--folder", network.root / "centre")
    said = network.notes(*command)
    assert "west.results.json" in said
    assert "Waiting for results of 1 site" in network.centre()
    assert not (network.root / "centre" / "report").exists()
    network.centre("--without", "west")
    assert "west has no part in the results" in page(network)


def test_a_hospital_reports_its_own_exact_numbers(ready: Network, tmp_path: Path) -> None:
    network = again(ready, tmp_path)
    said = mmlca_does("site", "report", *network.of("west"))
    own = network.root / "west" / "private" / "report"
    assert str(own / "report.html") in said.replace("\n", "")
    sizes = pd.read_csv(own / "tables" / "headline.csv").query("kind == 'patients'")
    assert sizes["value"].tolist() == [SITES["west"]]
    results = json.loads((own / "results.json").read_bytes())
    assert results["sites"] == ["west"]
    assert results["release"] == "inside"
    early = Network(tmp_path / "early")
    assert "has no results of north yet" in refusal("site", "report", *early.of("north"))


def test_two_sites_and_one_without_a_model_of_its_own(tmp_path: Path) -> None:
    sites = {"a": 240, "b": 220, "few": 20}
    network = Network(tmp_path / "joins", '"none"', sites=sites)
    assert "The round is over" in network.play(3)[-1]
    assert content(network)["sites"] == list(sites)
    assert "few took part without a model of its own in the ensemble." in page(network)
    assert "rounded at random to multiples of 11, from which" in page(network)
    two = Network(tmp_path / "two", '"none"', sites={"a": 240, "b": 220})
    assert "The round is over" in two.play(3)[-1]
    assert content(two)["sites"] == ["a", "b"]
    assert "Differences between the sites" in page(two)
    command = ("centre", "run", two.study, "--folder", two.root / "centre")
    assert invoke(*command).exit_code == 0  # once more, with nothing new
