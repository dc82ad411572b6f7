"""The folders of a study between hospitals, and what is carried between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from commands import invoke, mmlca_does
from ra_like import ra_like

SITES = {"north": 300, "south hospital": 250, "west": 250}
SECRET = {"format": "mmlca ledger", "version": 1, "secret": "5e" * 32, "releases": []}
STUDY = """
name = "switching"
[classes]
number = 2
[model]
n_init = 4
{model}
[pseudo_sites]
per_site = 0
[ensemble]
method = "latent"
refine = {refine}
[privacy]
min_count = 11
"""
NO_FIGURES = "[outputs]\nfigures = false\nbootstrap = 20\n[inference]\nsimulations = 19\n"


class Network:
    """The folders of three sites and a centre."""

    def __init__(
        self,
        root: Path,
        refine: object = '"none"',
        more: str = NO_FIGURES,
        sites: Mapping[str, int] = SITES,
        model: str = "",
    ) -> None:
        self.root, self.study, self.sites = root, root / "study.toml", list(sites)
        text = STUDY.format(refine=refine, model=model)
        for site, n in sites.items():
            private = root / site / "private"
            private.mkdir(parents=True)
            (private / "ledger.json").write_text(json.dumps(SECRET))  # the same draws every time
            ra_like(n, seed=n).write(root / site / "sequences.csv")
            own = f'site = "{site}"\nsequences = "sequences.csv"\n'
            (root / site / "site.toml").write_text(own)
            text += f'[sites."{site}"]\n'
        self.study.write_text(text + more)

    def site(self, site: str, *more: object) -> str:
        return mmlca_does("site", "run", *self.of(site), *more)

    def of(self, site: str) -> list[object]:
        return [self.study, self.root / site / "site.toml", "--folder", self.root / site]

    def centre(self, *more: object, folder: str = "centre") -> str:
        return mmlca_does("centre", "run", self.study, "--folder", self.root / folder, *more)

    def notes(self, *arguments: object) -> str:
        """What a command says on standard error."""
        done = invoke(*arguments)
        assert done.exit_code == 0, done.output
        return str(done.stderr)

    def post(self, *sites: str, centre: str = "centre") -> None:
        """Carry the outboxes of these sites to the centre."""
        for site in sites or self.sites:
            copy(self.root / site / "outbox", self.root / centre / "inbox")

    def answer(self, *sites: str, centre: str = "centre") -> None:
        """Carry the centre's outbox to these sites."""
        for site in sites or self.sites:
            copy(self.root / centre / "outbox", self.root / site / "inbox")

    def files(self) -> dict[str, bytes]:
        """All files of all folders, but locks."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {str(p.relative_to(self.root)): p.read_bytes() for p in paths if p.name[0] != "."}

    def play(self, turns: int) -> list[str]:
        """So many turns of all sites; what the centre said."""
        said = []
        for _ in range(turns):
            for site in self.sites:
                self.site(site)
            self.post()
            said.append(self.centre())
            self.answer()
        return said


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)


def again(fitted: Network, root: Path) -> Network:
    """The same folders in another place."""
    shutil.copytree(fitted.root, root, dirs_exist_ok=True)
    network = Network.__new__(Network)
    network.root, network.study, network.sites = root, root / "study.toml", fitted.sites
    return network
