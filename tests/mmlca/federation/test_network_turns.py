"""What goes wrong between hospitals: a sentence says so, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import invoke, mmlca_does, refusal
from network_folders import SITES, Network, again, copy

import mmlca
from font.errors import InputError
from mmlca.federation.ledger import Ledger

ENV = os.environ | {"PYTHONPATH": str(Path(mmlca.__file__).parents[1])}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """After the first turn of all sites."""
    network = Network(tmp_path_factory.mktemp("fitted"))
    for site in SITES:
        network.site(site)
    return network


@pytest.fixture(scope="module")
def labelled(fitted: Network, tmp_path_factory: pytest.TempPathFactory) -> Network:
    """After the second turn of all sites, whose files have not been sent."""
    network = again(fitted, tmp_path_factory.mktemp("labelled"))
    network.post()
    network.centre()
    network.answer()
    for site in SITES:
        network.site(site)
    return network


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mmlca", *map(str, arguments)]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# --- turns -----------------------------------------------------------------------------------


def test_a_turn_that_finds_nothing_new_changes_nothing(labelled: Network, tmp_path: Path) -> None:
    network = again(labelled, tmp_path)
    before = network.files()
    for site in SITES:
        assert "Nothing new is to be done" in network.site(site)
    assert "Waiting for labels of 3 sites" in network.centre()
    status = mmlca_does("network", "status", network.study, "--folder", tmp_path / "centre")
    assert "nothing has come" in status
    assert "Next: north, south hospital, west must send their labels" in status
    assert network.files() == before


def test_a_site_that_drops_out_is_named_and_may_come_too_late(
    labelled: Network, tmp_path: Path
) -> None:
    network = again(labelled, tmp_path)
    network.post("north", "west")
    assert "south hospital: nothing has come" in network.centre()
    said = network.centre("--without", "south hospital")
    assert "Waiting for results of 2 sites" in said
    network.post("south hospital")
    command = ("centre", "run", network.study, "--folder", tmp_path / "centre")
    assert "came late: the study went on without south hospital" in network.notes(*command)
    network.answer()
    assert "The centre went on without this site" in network.site("south hospital")
    assert (tmp_path / "south hospital" / "private" / "clusters.csv").exists()  # it has clusters
    for site in ("north", "west"):
        network.site(site)
    network.post("north", "west")
    assert "The round is over" in network.centre()
    report = (tmp_path / "centre" / "report" / "report.md").read_text()
    assert "south hospital" in report.split("## Who is missing")[1].split("##")[0]
    status = mmlca_does("network", "status", network.study, "--folder", tmp_path / "centre")
    assert "without" in status
    assert "The round is over" in status


# --- what leaves after somebody said yes -----------------------------------------------------


def test_nothing_leaves_before_somebody_said_yes(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    network.post()
    network.centre()
    network.answer()
    home = tmp_path / "north"
    command = ("site", "run", *network.of("north"))
    sent = home / "outbox" / "north.labels.json"
    refused = refusal(*command, "--approve")
    assert "nobody can be asked here" in refused
    assert "leaving.html" in refused
    page = (home / "private" / "leaving.html").read_text()
    assert not sent.exists()
    text = (home / "site.toml").read_text()
    (home / "site.toml").write_text(text + "approve = true\n")  # what the site file says holds
    assert "nobody can be asked here" in refusal(*command)
    assert not sent.exists()
    mmlca_does(*command, "--approved-by", "A. Officer")
    sizes = json.loads(sent.read_bytes())["payload"]["classes"]
    assert all(f">{n:,}<" in page for part in sizes for n in part)
    ledger = json.loads((home / "private" / "ledger.json").read_bytes())
    approved = {release["kind"]: release["approved_by"] for release in ledger["releases"]}
    assert approved == {"model": None, "labels": "A. Officer"}
    assert ledger["releases"][1]["approved"] >= ledger["releases"][1]["when"]
    assert "Nothing new is to be done" in network.site("north")  # and nobody is asked again


# --- files and folders that do not belong ----------------------------------------------------


def test_files_of_another_study_and_round_are_notes(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    network.post()
    inbox = tmp_path / "centre" / "inbox"
    sent = (inbox / "north.model.json").read_bytes()
    for name, old, new in (
        ("study", b'"study":"switching"', b'"study":"another"'),
        ("round", b'"round":1', b'"round":2'),
    ):
        (inbox / f"{name}.json").write_bytes(sent.replace(old, new))
    (inbox / "torn.json").write_bytes(sent[: len(sent) // 2])
    (inbox / "letter.json").write_text("{}")
    (inbox / "notes.txt").write_text("not looked at")
    said = network.notes("centre", "run", network.study, "--folder", tmp_path / "centre")
    assert "study.json belongs to the study 'another'" in said
    assert "round.json belongs to round 2" in said
    assert "torn.json is not JSON" in said
    assert "letter.json is not an exchange file" in said
    assert "Waiting for labels of 3 sites" in network.centre()


def test_a_file_in_the_wrong_inbox_is_a_note(labelled: Network, tmp_path: Path) -> None:
    network = again(labelled, tmp_path)
    copy(tmp_path / "north" / "outbox", tmp_path / "west" / "inbox")
    said = network.notes("site", "run", *network.of("west"))
    assert "north.labels.json is a file of the kind 'labels', for the centre" in said
    copy(tmp_path / "centre" / "outbox", tmp_path / "centre" / "inbox")
    said = network.notes("centre", "run", network.study, "--folder", tmp_path / "centre")
    assert "requests.json is a file of the kind 'requests', which a centre sent" in said


def test_the_folder_of_another_site_is_refused(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    before = network.files()
    command = ("site", "run", network.study, tmp_path / "north" / "site.toml", "--folder")
    words = "is the folder of 'west' in the study 'switching', not of 'north'"
    assert words in refusal(*command, tmp_path / "west")
    assert network.files() == before


def test_notes_that_are_damaged_are_no_loss(labelled: Network, tmp_path: Path) -> None:
    network = again(labelled, tmp_path)
    notes = tmp_path / "north" / "private" / "answered.json"
    before = {name: data for name, data in network.files().items() if "answered" not in name}
    notes.write_text("{")
    assert "remove it: the ledger keeps what left" in refusal("site", "run", *network.of("north"))
    notes.unlink()
    network.site("north")
    after = {name: data for name, data in network.files().items() if "answered" not in name}
    assert after == before  # the same files once more
    (tmp_path / "centre" / "private" / "centre.json").write_text("{")
    command = ("centre", "run", network.study, "--folder", tmp_path / "centre")
    assert "restore it from a backup, or begin in a new folder" in refusal(*command)


def test_two_centres_are_noticed(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    network.post()
    network.post("north", "west", centre="other")
    network.centre()
    network.centre("--without", "south hospital", folder="other")
    network.answer("north")
    own = tmp_path / "north" / "inbox"
    (tmp_path / "other" / "outbox" / "requests.json").replace(own / "more.json")
    assert "requests of two centres" in refusal("site", "run", *network.of("north"))
    (own / "more.json").replace(own / "requests.json")  # the other centre alone
    network.site("north")
    network.answer("north")
    words = "has other requests than those that this site has answered already in round 1"
    assert words in refusal("site", "run", *network.of("north"))


def test_a_centre_that_asks_for_sums_nobody_agreed_on_gets_none(
    labelled: Network, tmp_path: Path
) -> None:
    network = again(labelled, tmp_path)
    network.post()
    network.centre()
    site = mmlca.Hospital.from_study(
        network.study,
        site_file=tmp_path / "north" / "site.toml",
        folder=tmp_path / "north" / "private",
    )
    with pytest.raises(InputError, match=r'sums of step 0 .* refine = "none"'):
        site.refine(tmp_path / "centre" / "outbox" / "ensemble.json")
    assert not list((tmp_path / "north").rglob("*sums*"))


# --- two processes, and processes that are killed --------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_processes_race_for_one_folder(tmp_path: Path) -> None:
    network = Network(tmp_path)
    racers = [start("site", "run", *network.of("north")) for _ in range(3)]
    ends = [racer.communicate() for racer in racers]
    codes = sorted(racer.returncode for racer in racers)
    assert codes[0] == 0
    for racer, (_, errors) in zip(racers, ends, strict=True):
        assert racer.returncode == 0 or b"another" in errors, errors
    ledger = json.loads((tmp_path / "north" / "private" / "ledger.json").read_bytes())
    assert [release["kind"] for release in ledger["releases"]] == ["model"]
    assert "Nothing new" in network.site("north")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("who", ["site", "centre"])
def test_killed_turns_end_as_if_nothing_was(
    who: str, fitted: Network, labelled: Network, tmp_path: Path
) -> None:
    rng = random.Random(who)
    for i in range(4):
        network = again(fitted if who == "site" else labelled, tmp_path / str(i))
        if who == "site":
            network.post()
            network.centre()
            network.answer()
            command: tuple[object, ...] = ("site", "run", *network.of("north"))
        else:
            network.post()
            command = ("centre", "run", network.study, "--folder", network.root / "centre")
        process = start(*command)
        time.sleep(rng.uniform(0.2, 1.2))
        process.kill()
        process.communicate()
        Ledger(network.root / "north" / "private", "switching", "north", 1)  # readable
        assert invoke(*command).exit_code == 0
        found = {n: d for n, d in network.files().items() if "/outbox/" in n}
        if i == 0:
            first = found
        assert found == first


# --- sites with few patients ------------------------------------------------------------------


def test_a_site_with_few_patients_takes_part_by_labels(tmp_path: Path) -> None:
    network = Network(tmp_path, "0", sites={"a": 300, "b": 250, "few": 20})
    assert "takes part by labels: 20 patients are too few" in network.site("few")
    sent = tmp_path / "few" / "outbox" / "few.joins.json"
    said = mmlca_does("exchange", "check", sent)
    assert "takes part without a model of its own" in said
    said = network.play(4)[-1]
    assert "The round is over" in said
    report = (tmp_path / "centre" / "report" / "report.md").read_text()
    (row,) = (line for line in report.splitlines() if line.startswith("| few "))
    assert row.split("|")[2].strip() == "0"  # models
    assert "Nobody." in report
    clusters = (tmp_path / "few" / "private" / "clusters.csv").read_text().splitlines()
    assert len(clusters) == 21
    assert (tmp_path / "few" / "outbox" / "few.results.json").exists()


def test_small_sites_do_not_make_one_cluster_of_everybody(tmp_path: Path) -> None:
    """With fewer patients than the numbers of classes compared need, a site has no vote."""
    sizes = {"a": 240, **{f"few {i}": 40 - i for i in range(8)}}
    network = Network(tmp_path, sites=sizes)
    text = network.study.read_text().replace(
        "number = 2", 'number = "vote"\ncandidates = [1, 2, 3, 4]'
    )
    network.study.write_text(text)
    network.play(2)
    votes = {}
    for path in (tmp_path / "centre" / "inbox").glob("*.model.json"):
        content = json.loads(path.read_bytes())
        bic = {row["n_classes"]: row["above_best"] for row in content["payload"]["bic"]}
        votes[content["site"]] = min(bic, key=lambda k: (bic[k], k))
    assert votes.pop("a") > 1
    assert set(votes.values()) == {1}
    assert sum(sizes[site] for site in votes) > sizes["a"]  # they would win
    ensemble = json.loads((tmp_path / "centre" / "outbox" / "ensemble.json").read_bytes())
    assert ensemble["payload"]["ensemble"]["settings"]["n_clusters"] > 1
