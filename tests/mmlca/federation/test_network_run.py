"""A study in folders, one command per turn, with nothing but files carried between them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from network_folders import SITES, Network

import mmlca
from font.exchange.replies import in_memory
from font.exchange.rounds import run_round
from mmlca.federation.centre_run import centre_header, round_settings
from mmlca.study.study_file import read_network_study


def clusters(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, index_col="id")


def payload(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))["payload"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """After the first turn of all sites."""
    network = Network(tmp_path_factory.mktemp("fitted"))
    for site in SITES:
        network.site(site)
    return network


@pytest.mark.parametrize(("refine", "turns"), [('"none"', 3), ("0", 4), ("1", 5)])
def test_a_study_in_folders_is_that_in_memory(refine: str, turns: int, tmp_path: Path) -> None:
    """And takes so many turns of a site."""
    network = Network(tmp_path / "folders", refine)
    said = network.play(turns)
    assert "The round is over" in said[-1]
    assert all("Waiting for" in text for text in said[:-1])
    for site in SITES:
        assert "Nothing more is to be sent" in network.site(site)
    alone = Network(tmp_path / "memory", refine)
    homes = {
        site: mmlca.Hospital.from_study(
            alone.study,
            site_file=alone.root / site / "site.toml",
            folder=alone.root / site / "private",
            fewer_classes=True,
        )
        for site in SITES
    }
    out = tmp_path / "out"
    study = read_network_study(alone.study)
    run_round(in_memory(homes), centre_header(study), out=out, **round_settings(study))
    sent = sorted(p.name for p in out.glob("*.json"))
    assert sent == ["ensemble.json", *(f"shared-{i}.json" for i in range(turns - 3))]
    for name in sent:
        ours = network.root / "centre" / "outbox" / name
        assert ours.read_bytes() == (out / name).read_bytes()
    for site in SITES:
        ours, theirs = (
            root / site / "private" / "clusters.csv" for root in (network.root, alone.root)
        )
        assert ours.read_bytes() == theirs.read_bytes()
        outbox = {p.name: p.read_bytes() for p in (network.root / site / "outbox").iterdir()}
        private = alone.root / site / "private"
        assert outbox == {
            p.name: p.read_bytes()
            for to in ("to_all", "to_centre")
            for p in (private / to).iterdir()
        }
    report = (network.root / "centre" / "report" / "report.md").read_text(encoding="utf-8")
    assert report == (out / "report.md").read_text(encoding="utf-8")
