"""A round with secure sums, and sites that take part without a model of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import mmlca_does, refusal

import font
import mmlca
from font.exchange.files import file_names
from font.exchange.secure import read_masked, sum_of_labels

STUDY = "ra switching"
SITES = {"north": 260, "south hospital": 220, "west": 180, "clinic": 30}  # the last sends no model
CHAINS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.8, 0.15, 0.05], [0.2, 0.3, 0.5]],
    [
        [[0.85, 0.1, 0.05], [0.4, 0.5, 0.1], [0.4, 0.1, 0.5]],
        [[0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9]],
    ],
)


def sequences_of(site: str) -> mmlca.Sequences:
    n = SITES[site]
    drawn, _ = mmlca.simulate(CHAINS, n, 8, seed=n)
    ids = [f"PID{n}{i:05d}" for i in range(n)]
    return mmlca.Sequences.from_codes(drawn.codes, ["a", "b", "c"], ids=ids)


def hospital(root: Path, site: str, **changes: Any) -> mmlca.Hospital:
    settings: dict[str, Any] = {
        "sequences": sequences_of(site),
        "folder": root / site,
        "n_classes": 2,
        "starts": 3,
    }
    return mmlca.Hospital(study=STUDY, site=site, **(settings | changes))


class Study:
    """Models of three sites and keys of four, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models = sorted((root / "to_all").iterdir())
        self.agreed = font.list_fingerprint(font.read_models(self.models))
        files = file_names(SITES, "key")
        self.keys = {site: root / "keys" / file for site, file in files.items()}

    def home(self, site: str, **changes: Any) -> mmlca.Hospital:
        return hospital(self.root, site, **({"agreed": self.agreed} | changes))

    def secure(self, *without: str) -> list[Path]:
        keys = [path for site, path in self.keys.items() if site not in without]
        return [
            self.home(site).label(self.models, secure=keys) for site in SITES if site not in without
        ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("secure")
    for site in list(SITES)[:3]:
        hospital(root, site).fit(root / "to_all")
    for site in SITES:
        hospital(root, site).mask_key(root / "keys")
    return root


@pytest.fixture
def study(tmp_path: Path, template: Path) -> Study:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path)


def exact_total(study: Study) -> Any:
    files = font.read_models(study.models)
    sizes = {name: file.n_classes for name, file in files.items()}
    models = {name: file.model for name, file in files.items()}
    labels = {site: font.label(models, sequences_of(site)) for site in SITES}
    return font.CrossTables.from_labels(labels, sizes).total()


def test_the_centre_reads_the_sum_and_every_site_gets_its_clusters(study: Study) -> None:
    paths = study.secure()
    models = font.read_models(study.models)
    parts = [read_masked(path, study=STUDY, min_count=11) for path in paths]
    total = sum_of_labels(parts, models)
    exact = exact_total(study)
    assert abs(total.total() - exact).max() < 11  # rounded once, not four times
    ensemble, _ = font.combine(models, [total], n_clusters=2)
    path = study.root / "ensemble.json"
    font.write_ensemble(path, ensemble, models, study=STUDY)
    for site, n in SITES.items():
        table = study.home(site).assign(path)
        assert len(table) == n
        assert set(table["cluster"]) <= {1, 2}


def test_a_request_is_answered_once(study: Study) -> None:
    keys = list(study.keys.values())
    first = study.home("north").label(study.models, secure=keys).read_bytes()
    again = study.home("north").label(study.models, secure=keys[::-1]).read_bytes()
    assert first == again
    fewer = sequences_of("north")
    fewer = fewer.select(fewer.ids[:259])
    for override in (None, "somebody asked for it"):  # the same masks: never
        home = study.home("north", sequences=fewer, override=override)
        with pytest.raises(ValueError, match="same masks, so begin a new round"):
            home.label(study.models, secure=keys)
    with pytest.raises(ValueError, match="with secure sums; a round takes one"):
        study.home("north").label(study.models)


def test_without_a_dropped_site_the_others_answer_again_and_only_so(study: Study) -> None:
    study.secure()
    again = [read_masked(path) for path in study.secure("west")]
    total = sum_of_labels(again, font.read_models(study.models))
    assert total.n_patients().sum() == pytest.approx(260 + 220 + 30, abs=22)
    keys = list(study.keys.values())
    first = study.home("north").label(study.models, secure=keys)  # the old answer, byte for byte
    assert set(read_masked(first).keys) == set(SITES)
    others = [study.keys[site] for site in ("north", "south hospital", "west")]
    with pytest.raises(ValueError, match="released other masked labels"):
        study.home("north").label(study.models, secure=others)
    with pytest.raises(ValueError, match="at least 3 sites, found 2"):
        study.home("north").label(study.models, secure=keys[:2])
    with pytest.raises(ValueError, match="key of 'north' in the list is missing"):
        study.home("north", override="asked by the centre").label(study.models, secure=keys[1:])


def test_a_new_ledger_has_another_key(study: Study) -> None:
    """Who lost the ledger can't mask anything a second time with the same masks."""
    old = (study.root / "west" / "ledger.json").read_text(encoding="utf-8")
    content = json.loads(old) | {"secret": "0" * 64}
    (study.root / "west" / "ledger.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="key of 'west' in the list is another"):
        study.home("west").label(study.models, secure=study.keys.values())
    with pytest.raises(ValueError, match="released other key files"):
        study.home("west").mask_key()


def test_a_site_without_a_model_takes_part(study: Study) -> None:
    with pytest.raises(ValueError, match=r"to take part without a model, say which list"):
        study.home("clinic", agreed=None).label(study.models)
    with pytest.raises(ValueError, match="not the agreed"):
        study.home("clinic", agreed="0" * 64).label(study.models)
    labels = [study.home(site).label(study.models) for site in SITES]
    models = font.read_models(study.models)
    parts = [font.read_labels(path, models) for path in labels]
    ensemble, tables = font.combine(models, parts, n_clusters=2)
    text = font.round_report(ensemble, models, tables, study=STUDY)
    assert "| clinic " in text
    path = study.root / "ensemble.json"
    font.write_ensemble(path, ensemble, models, study=STUDY)
    assert len(study.home("clinic").assign(path)) == SITES["clinic"]
    refined = study.home("clinic").refine(path)
    assert refined.sums is not None


def test_a_foreign_model_in_the_name_of_a_site_without_one(study: Study, tmp_path: Path) -> None:
    other = hospital(tmp_path / "fake", "clinic", sequences=sequences_of("west")).fit()
    files = [*study.models, *other]
    agreed = font.list_fingerprint(font.read_models(files))
    with pytest.raises(ValueError, match="are not those that it sent"):
        study.home("clinic", agreed=agreed).label(files)


def test_the_commands_play_a_secure_round(study: Study) -> None:
    root, name = study.root, ("--study", STUDY)
    for site in SITES:
        sequences_of(site).write(root / site / "sequences.csv")
        said = mmlca_does(
            *("site", "mask-key", *name, "--site", site, "--folder", root / site),
            *("--out", root / "keys2"),
        )
        assert "Next: send" in said
    keys = sorted((root / "keys2").iterdir())
    for site in SITES:
        said = mmlca_does(
            *("site", "label", *keys, *study.models, "--secure", *name, "--site", site),
            *("--sequences", root / site / "sequences.csv", "--folder", root / site),
            *("--agreed", study.agreed[:16], "--out", root / "to_centre"),
        )
        assert "only their sum over the 4 sites" in said
        assert "set of sites has the fingerprint" in said
    files = [*study.models, *sorted((root / "to_centre").iterdir())]
    combine = ("centre", "combine", *files, *name, "-k", 2, "--out", root / "to_sites")
    assert "masked files go with --secure" in refusal(*combine)
    assert "'clinic' are missing" in refusal(
        *("centre", "combine", *(f for f in files if "clinic" not in f.name), *name, "--secure")
    )
    said = mmlca_does(*combine, "--secure", "--expect", "north,clinic,east")
    assert "their sum was rounded" in said
    assert "| clinic " not in said
    assert "| east " in said  # it is missing
    for site in SITES:
        mmlca_does(
            *("site", "assign", root / "to_sites" / "ensemble.json", *name, "--folder"),
            *(root / site, "--sequences", root / site / "sequences.csv"),
        )
        assert (root / site / "clusters.csv").exists()
    assert "goes with --secure" in refusal(
        *("site", "label", *keys, *study.models, *name, "--site", "west"),
        *("--sequences", root / "west" / "sequences.csv", "--folder", root / "west"),
    )
    assert "no model files" in refusal("site", "label", *keys, "--secure", *name, "--site", "west")
