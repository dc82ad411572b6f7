"""A study in folders, one command per turn, with nothing but files carried between them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from commands import mmlca_does
from ra_like import ra_like

import font
import mmlca
from font.exchange.rounds import run_round
from font.exchange.site_part import in_memory
from mmlca.federation.hospital import SOFTWARE

SITES = {"north": 300, "south hospital": 250, "west": 250}
SECRET = {"format": "mmlca ledger", "version": 1, "secret": "5e" * 32, "releases": []}
STUDY = """
name = "switching"
[classes]
number = 2
[model]
n_init = 4
[pseudo_sites]
per_site = 0
[ensemble]
refine = {refine}
[privacy]
min_count = 11
"""


class Network:
    """The folders of three sites and a centre."""

    def __init__(self, root: Path, refine: object = '"none"', more: str = "") -> None:
        self.root, self.study = root, root / "study.toml"
        text = STUDY.format(refine=refine)
        for site, n in SITES.items():
            private = root / site / "private"
            private.mkdir(parents=True)
            (private / "ledger.json").write_text(json.dumps(SECRET))  # the same draws every time
            ra_like(n, seed=n).write(root / f"{site}.csv")
            text += f'[sites."{site}"]\nsequences = "{site}.csv"\n'
        self.study.write_text(text + more)

    def site(self, site: str, *more: object) -> str:
        return mmlca_does("site", "run", *self.of(site), *more)

    def of(self, site: str) -> list[object]:
        return [self.study, "--site", site, "--folder", self.root / site]

    def centre(self, *more: object, folder: str = "centre") -> str:
        return mmlca_does("centre", "run", self.study, "--folder", self.root / folder, *more)

    def post(self, *sites: str, centre: str = "centre") -> None:
        """Carry the outboxes of these sites to the centre."""
        for site in sites or SITES:
            copy(self.root / site / "outbox", self.root / centre / "inbox")

    def answer(self, *sites: str, centre: str = "centre") -> None:
        """Carry the centre's outbox to these sites."""
        for site in sites or SITES:
            copy(self.root / centre / "outbox", self.root / site / "inbox")

    def files(self) -> dict[str, bytes]:
        """All files of all folders, but locks."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {str(p.relative_to(self.root)): p.read_bytes() for p in paths if p.name[0] != "."}

    def play(self, turns: int) -> list[str]:
        """So many turns of all sites; what the centre said."""
        said = []
        for _ in range(turns):
            for site in SITES:
                self.site(site)
            self.post()
            said.append(self.centre())
            self.answer()
        return said


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)


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


def again(fitted: Network, root: Path) -> Network:
    """The same folders in another place."""
    shutil.copytree(fitted.root, root, dirs_exist_ok=True)
    network = Network.__new__(Network)
    network.root, network.study = root, root / "study.toml"
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
            alone.study, site, folder=alone.root / site / "private", fewer_classes=True
        )
        for site in SITES
    }
    out = tmp_path / "out"
    run_round(
        in_memory(homes),
        font.Header(study="switching", software=SOFTWARE),
        out=out,
        sites=list(SITES),
        n_clusters=2,
        refine=None if refine == '"none"' else int(refine),
        results=True,
    )
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
