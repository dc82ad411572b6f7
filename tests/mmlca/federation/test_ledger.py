"""The ledger: what left, the same bytes for the same request, and a person's word for another."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from commands import mmlca_does, refusal
from ra_like import ra_like

import font
import mmlca
from font.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DATA = ra_like(300, seed=1)


def hospital(folder: Path, **changes: Any) -> mmlca.Hospital:
    settings: dict[str, Any] = {"study": "s", "site": "x", "sequences": DATA, "folder": folder}
    settings |= {"n_classes": 2, "starts": 4}
    return mmlca.Hospital(**(settings | changes))


def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ledger.json").read_text(encoding="utf-8"))


def test_the_same_request_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = hospital(tmp_path).fit()
    sent = path.read_bytes()
    path.unlink()

    def never(*_: object) -> None:
        raise AssertionError("it was fitted again")

    monkeypatch.setattr("mmlca.federation.hospital.fit_models", never)
    for _ in range(3):
        assert hospital(tmp_path, n_jobs=2).fit()[0].read_bytes() == sent
    assert len(content(tmp_path)["releases"]) == 1


def test_labels_stay_the_same_however_often_they_are_asked_for(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    models = site.fit()
    asked = {site.label(models).read_bytes() for _ in range(300)}
    assert len(asked) == 1
    assert [release["kind"] for release in content(tmp_path)["releases"]] == ["model", "labels"]


@pytest.mark.parametrize(
    "change",
    [
        {"sequences": DATA.select(DATA.ids[:299])},
        {"n_classes": 1},
        {"seed": 2},
        {"min_count": 12},
        {"pseudo_sites": 2},
        {"starts": 5},
        {"search": "thorough"},
        {"candidates": (1, 2)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_request_is_refused_until_a_person_says_why(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (path,) = hospital(tmp_path).fit()
    sent = path.read_bytes()
    with pytest.raises(InputError, match=r"released other model files .* override that says in"):
        hospital(tmp_path, **change).fit()
    with pytest.raises(InputError, match="use at least three words"):
        hospital(tmp_path, override="yes", **change).fit()
    assert path.read_bytes() == sent
    hospital(tmp_path, override="first was never sent", **change).fit(tmp_path / "second")
    assert content(tmp_path)["releases"][-1]["override"] == "first was never sent"
    # and the new one is now the one that is repeated
    hospital(tmp_path, **change).fit(tmp_path / "third")
    second, third = (
        {p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in ("second", "third")
    )
    assert second == third


def test_studies_and_rounds_are_apart(tmp_path: Path) -> None:
    for change in ({}, {"study": "t"}, {"round": 2}):
        hospital(tmp_path, **change).fit()
    releases = content(tmp_path)["releases"]
    assert len({(r["study"], r["round"]) for r in releases}) == 3


def test_another_name_gives_no_fresh_draws(tmp_path: Path) -> None:
    """The same patients under several names could be averaged: "RA", "ra ", "MGB", "MGB2"."""
    first = hospital(tmp_path, study="RA", site="MGB")
    sent = json.loads(first.fit()[0].read_text())["payload"]
    for study in ("ra", "R A", "Ra."):
        with pytest.raises(InputError, match=r"has a study 'RA', which looks like"):
            hospital(tmp_path, study=study, site="MGB").fit()
    for site in ("mgb", "MGB2", "VA"):
        with pytest.raises(InputError, match="is the ledger of 'MGB', not of"):
            hospital(tmp_path, study="RA", site=site).fit()
    for name in ("RA ", "MGB "):
        with pytest.raises(InputError, match="ends with a space"):
            hospital(tmp_path, study=name, site=name)
    for change in ({"study": "arthritis"}, {"study": "RA", "round": 2}):
        again = hospital(tmp_path, site="MGB", **change).fit()[0]
        assert json.loads(again.read_text())["payload"] == sent


def test_labels_of_other_models_are_refused(tmp_path: Path) -> None:
    site, other = hospital(tmp_path / "x"), hospital(tmp_path / "y", site="y", seed=2)
    models = [*site.fit(), *other.fit()]
    path = site.label(models)
    sent = path.read_bytes()
    assert site.label(models[::-1]).read_bytes() == sent
    with pytest.raises(InputError, match="released other labels files"):
        site.label(models[:1])
    again = hospital(tmp_path / "x", override="the other site left")
    assert again.label(models[:1]).read_bytes() != sent


def test_the_ledger_is_private_and_whole(tmp_path: Path) -> None:
    hospital(tmp_path).fit()
    path = tmp_path / "ledger.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(content(tmp_path)["secret"])) == 32
    stored = content(tmp_path)["releases"][0]["files"]["x.model.json"]
    assert stored.encode() == (tmp_path / "to_all" / "x.model.json").read_bytes()
    assert content(tmp_path)["secret"] not in stored
    path.write_text(path.read_text()[:-100])
    with pytest.raises(InputError, match=r"damaged; restore it from a backup"):
        hospital(tmp_path).fit()


def test_secrets_differ_between_sites(tmp_path: Path) -> None:
    for name in "ab":
        hospital(tmp_path / name).fit()
    assert content(tmp_path / "a")["secret"] != content(tmp_path / "b")["secret"]


# --- the site's floor --------------------------------------------------------------------


def test_no_study_lowers_the_floor_of_a_site(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="min_count is 5, but this site lets nothing leave"):
        hospital(tmp_path, min_count=5)
    assert hospital(tmp_path, min_count=5, floor=5).min_count == 5
    (tmp_path / "study.toml").write_text(
        'name = "s"\n[sites.x]\nrecords = "r.csv"\ndrugs = "ra"\n[privacy]\nmin_count = 1\n'
    )
    (tmp_path / "r.csv").write_text("patient_id,date,drug\n1,2010-01-01,etanercept\n")
    with pytest.raises(InputError, match="min_count is 1, but this site"):
        mmlca.Hospital.from_study(tmp_path / "study.toml", "x", sequences=DATA)


def test_commands_have_the_floor_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DATA.write(tmp_path / "s.csv")
    command = ("site", "fit", tmp_path / "s.csv", "--study", "s", "--site", "x", "-k", 2)
    command = (*command, "--n-init", 4, "--folder", tmp_path, "--min-count", 1)
    assert "this site lets nothing leave" in refusal(*command)
    assert not (tmp_path / "ledger.json").exists()
    monkeypatch.setenv("MMLCA_FLOOR", "1")
    mmlca_does(*command)


def test_readers_refuse_files_below_the_studys_threshold(tmp_path: Path) -> None:
    (low,) = hospital(tmp_path / "low", min_count=2, floor=2).fit()
    site = hospital(tmp_path / "y", site="y")
    with pytest.raises(InputError, match="written with min_count 2, the study asks for 11"):
        site.label([*site.fit(), low])
    text = refusal("centre", "combine", low, "--study", "s", "--out", tmp_path / "out")
    assert "the study asks for 11" in text
    assert font.read_model(low).payload["min_count"] == 2


# --- placing patients --------------------------------------------------------------------


def test_patients_are_placed_only_with_models_the_site_labelled_with(tmp_path: Path) -> None:
    site, other = hospital(tmp_path / "x"), hospital(tmp_path / "y", site="y", seed=2)
    models = [*site.fit(), *other.fit()]
    files = font.read_models(models)
    parts = [font.read_labels(place.label(models), files) for place in (site, other)]
    ensemble, _ = font.combine(files, parts, n_clusters=2)
    sent = font.write_ensemble(None, ensemble, files, font.Header(study="s"))
    assert len(site.assign(sent)) == 300
    stranger = hospital(tmp_path / "z", site="z")
    with pytest.raises(InputError, match="this site has not labelled in round 1"):
        stranger.assign(sent)
    swapped = json.loads(sent)
    model = swapped["payload"]["models"][1]["model"]
    model["first"][0], model["first"][1] = model["first"][1], model["first"][0]
    swapped["sha256"] = font.fingerprint(swapped["payload"])
    with pytest.raises(InputError, match="other models than those that this site labelled with"):
        site.assign(json.dumps(swapped).encode())
    placed = hospital(tmp_path / "z", site="z", override="a new site of the network")
    assert len(placed.assign(sent)) == 300
