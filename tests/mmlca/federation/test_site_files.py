"""What all hospitals agree on, what is a hospital's own, and files of another study file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import mmlca_does, refusal
from network_folders import SITES, Network, again

import ehr_prep
import mmlca
from font.errors import InputError
from font.exchange.envelope import read_file
from mmlca.study import read_study
from mmlca.study.settings import Place, SiteFile
from mmlca.study.study_file import read_network_study, read_site_file, write_site_file


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """After the first turn of all sites."""
    network = Network(tmp_path_factory.mktemp("fitted"))
    for site in SITES:
        network.site(site)
    return network


# --- the two files -------------------------------------------------------------------------


def test_init_writes_both_files_and_a_colleague_keeps_the_first(tmp_path: Path) -> None:
    ehr_prep.ra_cohort(1, 0.03).write(tmp_path)
    first, second = tmp_path / "MGB", tmp_path / "VA"
    command = ("study", "init", first / "study.toml", "--network", "--preset", "ra", "--name", "RA")
    said = mmlca_does(*command, "--records", f"MGB={first / 'medications.csv'}", "--site", "VA")
    assert "which is for all hospitals and the centre" in said
    assert "site.toml, which stays at MGB" in said
    agreed = (first / "study.toml").read_text()
    assert "medications" not in agreed
    assert "patient_id" not in agreed.split("[rules]")[0].replace('# patient = "patient_id"', "")
    shutil.copy(first / "study.toml", second)
    command = ("study", "init", second / "study.toml", "--network")
    said = mmlca_does(*command, "--records", f"VA={second / 'medications.csv'}")
    assert "Kept" in said
    assert (second / "study.toml").read_text() == agreed
    for folder, site in ((first, "MGB"), (second, "VA")):
        study = read_study(folder / "study.toml", site_file=folder / "site.toml")
        assert [name for name, part in study.sites.items() if not part.is_elsewhere] == [site]
        assert set(study.sites) == {"MGB", "VA"}
        assert study.sites[site].records == folder / "medications.csv"
        assert study.ensemble.method == "latent"
        assert study.rules.months == 3
    assert "exists; move it away" in refusal(
        *command, "-q", "--records", f"VA={second / 'medications.csv'}"
    )
    shutil.move(second / "site.toml", second / "kept.toml")
    records = f"BWH={second / 'medications.csv'}"
    assert "has no site 'BWH'; it has MGB, VA" in refusal(*command, "-q", "--records", records)


def test_templates_for_all_sites_name_every_setting(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    mmlca_does("study", "init", path, "--network", "--site", "A b", "--site", "C")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "site_A b.toml",
        "site_C.toml",
        "study.toml",
    ]
    assert all(place.is_elsewhere for place in read_network_study(path).sites.values())
    place = read_site_file(tmp_path / "site_A b.toml")
    assert (place.site, place.floor, place.approve) == ("A b", 11, False)
    text = (tmp_path / "site_C.toml").read_text()
    for name in set(SiteFile.model_fields) - set(Place.model_fields):
        assert f"\n{name} = " in text or f"\n# {name} = " in text


def test_what_does_not_fit_is_refused_in_one_sentence(fitted: Network, tmp_path: Path) -> None:
    study, site = tmp_path / "study.toml", tmp_path / "site.toml"
    study.write_text(fitted.study.read_text())
    cases = {
        'site = "east"\nsequences = "s.csv"': "is the file of 'east', but study.toml has the sites",
        'site = "north"': "needs exactly one of records, sequences, omop and warehouse",
        'sequences = "s.csv"': "site is missing",
        'site = "north"\nsequences = "s.csv"\nkey = "00"': "key is not known",
        'site = "north"\nsequences = "no.csv"': "has no such file",
        'site = "north"\nrecords = "a.csv"\nsequences = "s.csv"': "needs exactly one of",
    }
    (tmp_path / "s.csv").write_text("id,1\n1,a\n")
    for text, words in cases.items():
        site.write_text(text)
        command = ("site", "run", study, site, "--folder", tmp_path / "folder")
        assert words in refusal(*command), text
    site.write_text('site = "north"\nsequences = "s.csv"')
    with pytest.raises(InputError, match=r"mmlca site run study\.toml site\.toml"):
        read_study(study)
    assert "is the file of 'north', not of 'west'" in refusal(*command, "--site", "west")
    text = study.read_text().replace('[sites."north"]', '[sites."north"]\nsequences = "s.csv"')
    study.write_text(text)
    assert "both study.toml and site.toml say where" in refusal(*command)


def test_methods_of_one_place_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    network = Network(tmp_path)
    agreed = network.study.read_text()
    network.study.write_text(agreed.replace('"latent"', '"kmeans"'))
    words = "needs them in one place; between hospitals, where only tables of labels leave, set"
    assert words in refusal("site", "run", *network.of("north"))
    assert words in refusal("centre", "run", network.study, "--folder", tmp_path / "centre")
    network.study.write_text(agreed.replace('refine = "none"', 'refine = "held-out"'))
    assert '"converge" or "none"' in refusal("site", "run", *network.of("north"))


def test_the_floor_and_the_key_are_those_of_the_site_file(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    network = Network(tmp_path)
    mmlca_does("site", "keys", "--folder", tmp_path / "keys")
    own = tmp_path / "north" / "site.toml"
    own.write_text(f'{own.read_text()}floor = 20\nsigning_key = "../keys/signing.key"\n')
    assert "lets nothing leave that is rounded to less than 20" in refusal(
        "site", "run", *network.of("north")
    )
    own.write_text(own.read_text().replace("floor = 20", "floor = 5"))
    network.site("north")
    sent = tmp_path / "north" / "outbox" / "north.model.json"
    key = (tmp_path / "keys" / "signing.pub").read_text().strip()
    assert json.loads(sent.read_bytes())["signature"]["key"] == key


def test_a_site_file_without_settings_has_files_to_be_named(tmp_path: Path) -> None:
    write_site_file(tmp_path / "site.toml", "A")
    assert read_site_file(tmp_path / "site.toml").records == Path("A/medications.csv")


# --- one study file for all ----------------------------------------------------------------


def test_every_file_carries_what_was_agreed(fitted: Network) -> None:
    agreed = read_network_study(fitted.study).agreed
    sent = read_file(fitted.root / "north" / "outbox" / "north.model.json")
    assert sent.settings == agreed
    assert agreed[""]["sites"] == '["north", "south hospital", "west"]'
    assert agreed["classes"]["number"] == "2"
    assert agreed["rules"]["combinations"] == "none"
    assert "key" not in agreed["centre"]
    assert "sequences.csv" not in json.dumps(agreed)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("number = 2", "number = 3", "classes.number is 2 there and 3 here"),
        ("min_count = 11", "min_count = 5", "privacy.min_count is 11 there and 5 here"),
        ('refine = "none"', "refine = 0", 'ensemble.refine is "none" there and 0 here'),
        ("[classes]", "[rules]\nmonths = 6\n[classes]", "rules.months is 3 there and 6 here"),
    ],
)
def test_files_of_another_version_are_refused_with_the_line_that_differs(
    old: str, new: str, words: str, fitted: Network, tmp_path: Path
) -> None:
    network = again(fitted, tmp_path)
    network.post()
    network.study.write_text(network.study.read_text().replace(old, new))
    assert words in "".join(
        network.notes("centre", "run", network.study, "--folder", tmp_path / "centre")
    )
    assert "Waiting for models of 3 sites" in network.centre()


def test_the_page_may_change_and_the_keys_may_come_later(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    network.post()
    text = network.study.read_text()
    network.study.write_text(text.replace("[outputs]", '[outputs]\ndpi = 99\nnames = ["a", "b"]'))
    assert "Waiting for labels of 3 sites" in network.centre()


def test_a_site_does_not_go_on_with_another_study_file(fitted: Network, tmp_path: Path) -> None:
    network = again(fitted, tmp_path)
    network.post()
    network.centre()
    network.answer("north")
    text = network.study.read_text()
    network.study.write_text(text.replace("number = 2", "number = 3"))
    before = network.files()
    assert "Nothing new is to be done" in network.site("north")  # all of the inbox is refused
    assert network.files() == before
    network.study.write_text(text)
    assert "Labelled 300 patients" in network.site("north")


def test_the_content_of_a_drug_map_counts_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "drugs.csv").write_text("drug,class\na,A\n")
    path = tmp_path / "study.toml"
    path.write_text('name = "x"\n[sites.A]\n[sites.B]\n[records]\ndrugs = "drugs.csv"\n')
    one = read_study(path, files=False).agreed
    (tmp_path / "drugs.csv").write_text("drug,class\na,B\n")
    two = read_study(path, files=False).agreed
    assert one["records"] == two["records"]
    assert one["content of"].keys() == {"records.drugs"}
    assert one != two
    assert mmlca.Hospital(study="x", site="A", sequences=None).header().settings is None
