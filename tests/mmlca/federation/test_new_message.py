"""A message of one module and one line of the registry goes everywhere that the others go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital
from commands import mmlca_does, refusal

import font
from font.errors import InputError
from font.exchange import registry
from font.exchange.envelope import file_names, fingerprint, read_file
from font.exchange.explain import json_schema, specification
from font.exchange.replies import Reply
from font.exchange.rounds import run_round, steps


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._MESSAGES, "sizes", "sizes_message:MESSAGE")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sizes")
    combined(root, 11)
    return root


def test_a_site_answers_and_the_ledger_repeats_it(study: Path) -> None:
    site = hospital(study, "north", 11)
    path = site.answer("sizes", study / "ensemble.json")
    assert path.name == "north.sizes-0.json"
    assert path.parent.name == "to_centre"
    again = site.answer("sizes", study / "ensemble.json")
    assert again.read_bytes() == path.read_bytes()
    patients = np.array(read_file(path, site.header(), kind="sizes").payload["patients"])
    clusters = site.assign(study / "ensemble.json")["cluster"]
    exact = np.bincount(clusters - 1, minlength=len(patients))
    assert (patients % 11 == 0).all()
    assert (np.abs(patients - exact) < 11).all()
    other = hospital(study, "north", 22)
    with pytest.raises(InputError, match="released other sizes 0 files"):
        other.answer("sizes", study / "ensemble.json")


def test_counts_that_were_not_rounded_are_refused(study: Path, tmp_path: Path) -> None:
    path = hospital(study, "north", 11).answer("sizes", study / "ensemble.json")
    content = json.loads(path.read_bytes())
    content["payload"]["patients"][0] += 1
    content["sha256"] = fingerprint(content["payload"])
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="not a multiple of its min_count 11"):
        read_file(tmp_path / "bad.json")


def test_commands_explanations_and_specification_know_it(study: Path, tmp_path: Path) -> None:
    site = hospital(study, "west", 11)
    table = pd.DataFrame(site.sequences.to_frame())
    table.rename_axis("id").to_csv(tmp_path / "sequences.csv")
    where = ("--study", STUDY, "--site", "west", "--folder", site.folder)
    said = mmlca_does(
        *("site", "answer", "sizes", study / "ensemble.json", *where),
        *("--sequences", tmp_path / "sequences.csv"),
    )
    path = site.folder / "to_centre" / "west.sizes-0.json"
    assert path.name in said
    shown = mmlca_does("exchange", "check", path)
    assert "patients by cluster" in shown
    assert "rounded at random" in shown
    assert "patients by cluster, rounded" in specification()
    assert json_schema()["sizes"]["properties"]["kind"] == {"const": "sizes"}
    assert "the kind 'plans' is unknown" in refusal(
        *("site", "answer", "plans", study / "ensemble.json", *where),
        *("--sequences", tmp_path / "sequences.csv"),
    )
    assert "the kind 'labels' does not answer" in refusal(
        *("site", "answer", "labels", study / "ensemble.json", *where),
        *("--sequences", tmp_path / "sequences.csv"),
    )


def test_a_round_over_a_network_collects_it(tmp_path: Path) -> None:
    assert "answer sizes" in steps()
    homes = {site: hospital(tmp_path, site, 11) for site in SITES}

    def reply(site: str, step: str, files: Sequence[bytes]) -> Reply:
        home = homes[site]
        if step == "fit":
            return Reply(site, tuple(path.read_bytes() for path in home.fit()))
        if step == "label":
            return Reply(site, (home.label(files).read_bytes(),))
        if step == "assign":
            home.assign(files[0])
            return Reply(site)
        kind = step.removeprefix("answer ")
        return Reply(site, (home.answer(kind, files[0]).read_bytes(),))

    run_round(
        lambda step, files, to: [reply(site, step, files) for site in to or SITES],
        font.Header(study=STUDY),
        out=tmp_path / "centre",
        n_clusters=2,
        answers=["sizes"],
    )
    names = {path.name for path in (tmp_path / "centre" / "sizes").iterdir()}
    assert names == set(file_names(SITES, "sizes").values())
