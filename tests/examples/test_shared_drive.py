"""The example of a shared drive: everybody runs it again and again, until the report is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from network_folders import Network
from paths import ROOT

MORE = "[outputs]\nfigures = false\nbootstrap = 20\n[inference]\nsimulations = 19\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_study_over_a_shared_drive_ends_with_the_report_at_all_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(tmp_path, more=MORE, sites={"a": 120, "b": 130})
    main = runpy.run_path(str(ROOT / "examples" / "shared_drive.py"))["main"]
    drive = tmp_path / "drive"

    def everyone_runs_it() -> None:
        for home in (*network.sites, "centre"):
            (tmp_path / home).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / home)
            own = None if home == "centre" else tmp_path / home / "site.toml"
            main(drive, network.study, own)

    for _ in range(4):  # the last one carries the report to the sites
        everyone_runs_it()
    page = (tmp_path / "centre" / "mmlca" / "report" / "report.html").read_bytes()
    for site in network.sites:
        assert (tmp_path / site / "mmlca" / "inbox" / "report.html").read_bytes() == page
    on_drive = {path.name for path in drive.rglob("*") if path.is_file()}
    assert "clusters.csv" not in on_drive
    assert "ledger.json" not in on_drive
    before = {path: path.read_bytes() for path in drive.rglob("*") if path.is_file()}
    everyone_runs_it()
    assert {path: path.read_bytes() for path in drive.rglob("*") if path.is_file()} == before
