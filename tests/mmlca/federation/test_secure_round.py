"""A round with secure sums, and sites that take part without a model of their own."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import mmlca_does, refusal
from site_folders import duplicate

import font
import mmlca
from font.errors import InputError
from font.exchange.disclosure import SecretDraws, round_total
from font.exchange.envelope import file_names
from font.exchange.masked import MaskedFile, add_masked, read_masked
from font.exchange.messages.labels import sum_of_labels
from font.exchange.messages.refinement import (
    Question,
    exact_sums,
    own_sums,
    read_shared,
    read_step,
    share_masked,
)
from font.refinement import one_class, site_memberships
from mmlca.federation import ledger
from mmlca.federation.markov_kind import markov_blocks, markov_shares

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
            self.home(site, without=without).label(self.models, secure=keys)
            for site in SITES
            if site not in without
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
    duplicate(template, tmp_path)
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
    parts = [read_masked(path, font.Header(study=STUDY), min_count=11) for path in paths]
    total = sum_of_labels(parts, models)
    exact = exact_total(study)
    assert abs(total.total() - exact).max() < 11  # rounded once, not four times
    ensemble, _ = font.combine(models, [total], n_clusters=2)
    path = study.root / "ensemble.json"
    font.write_ensemble(path, ensemble, models, font.Header(study=STUDY))
    for site, n in SITES.items():
        table = study.home(site).assign(path)
        assert len(table) == n
        assert set(table["cluster"]) <= {1, 2}


def test_a_request_is_answered_once(study: Study) -> None:
    keys = list(study.keys.values())
    with pytest.raises(InputError, match="key of 'north' in the list is missing"):
        study.home("north").label(study.models, secure=keys[1:])
    first = study.home("north").label(study.models, secure=keys).read_bytes()
    again = study.home("north").label(study.models, secure=keys[::-1]).read_bytes()
    assert first == again
    fewer = sequences_of("north")
    fewer = fewer.select(fewer.ids[:259])
    for override in (None, "somebody asked for it"):  # the same masks: never
        home = study.home("north", sequences=fewer, override=override)
        with pytest.raises(InputError, match="same masks, so begin a new round"):
            home.label(study.models, secure=keys)
    with pytest.raises(InputError, match="with secure sums; a round takes one"):
        study.home("north").label(study.models)


def test_without_a_dropped_site_the_others_answer_once_more_if_a_person_agrees(
    study: Study,
) -> None:
    """A centre that has all files and says that one is missing would read that site's table."""
    study.secure()
    keys = list(study.keys.values())
    three = [study.keys[site] for site in SITES if site != "west"]
    with pytest.raises(InputError, match=r"larger set of sites, with 'west'.*--without west"):
        study.home("north").label(study.models, secure=three)
    with pytest.raises(InputError, match="--without west"):
        study.home("north", without=["clinic"]).label(study.models, secure=three)
    again = [read_masked(path) for path in study.secure("west")]
    total = sum_of_labels(again, font.read_models(study.models))
    assert total.n_patients().sum() == pytest.approx(260 + 220 + 30, abs=22)
    assert study.home("north").ledger().released("masked labels").override == "without west"
    first = study.home("north").label(study.models, secure=keys)  # the old answer, byte for byte
    assert set(read_masked(first).keys) == set(SITES)
    with pytest.raises(InputError, match="at least 3 sites, found 2"):
        study.home("north").label(study.models, secure=keys[:2])


@pytest.mark.parametrize("override", [None, "asked by the centre"])
def test_a_round_shrinks_once(study: Study, override: str | None) -> None:
    """Each further set would be another equation for the centre."""
    study.secure()
    study.secure("west")
    for other in ("clinic", "south hospital"):
        home = study.home("north", without=[other], override=override)
        keys = [study.keys[site] for site in SITES if site != other]
        with pytest.raises(InputError, match="one set of sites, and one smaller one"):
            home.label(study.models, secure=keys)


def test_labels_and_sums_of_a_round_are_of_one_set(refining: Study) -> None:
    """From sizes of clusters by all sites and by fewer, the difference could be read as well."""
    keys = [refining.keys[site] for site in SITES if site != "west"]
    with pytest.raises(InputError, match="--without west"):
        refining.home("north").refine(refining.root / "ensemble.json", secure=keys)
    home = refining.home("north", without=["west"])
    assert home.refine(refining.root / "ensemble.json", secure=keys).sums is not None


@pytest.mark.parametrize("what", ["folder", "ledger", "masks", "in place", "masks lost"])
def test_a_copied_or_restored_ledger_masks_nothing_more(
    study: Study, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables under the same masks: their difference was one patient's labels. Files that were
    written over ("in place"), or removed and restored with the freed inode ("masks", in 20 of 20
    trials on ext4), were taken for those that had always been there."""
    monkeypatch.setattr(ledger, "MASKS_WITHIN", 2 * 10**8)
    time.sleep(0.3)
    folder, backup = study.root / "west", study.root / "backup"
    keys = study.keys.values()
    shutil.copytree(folder, backup)
    study.home("west").label(study.models, secure=keys)
    fewer = sequences_of("west")[1:]
    home = study.home("west", sequences=fewer)
    (masks,) = folder.glob("masks-*.key")
    if what == "folder":  # the copy goes on elsewhere
        home = study.home("west", sequences=fewer, folder=backup)
    elif what == "ledger":
        shutil.copy2(backup / "ledger.json", folder / "ledger.json")
    else:
        shutil.copy2(backup / "ledger.json", folder / "ledger.json")
        if what != "in place":
            masks.unlink()
        if what != "masks lost":
            shutil.copy2(backup / masks.name, masks)
    for attempt in (lambda: home.label(study.models, secure=keys), home.mask_key):
        with pytest.raises(InputError, match=r"copied or restored from a backup.*a new round"):
            attempt()
    later = study.home("west", sequences=fewer, round=2)
    assert later.mask_key().exists()


def test_copies_of_a_ledger_have_different_keys_in_the_next_round(study: Study) -> None:
    shutil.copytree(study.root / "west", study.root / "copy")
    one = study.home("west", round=2).mask_key().read_text()
    two = study.home("west", round=2, folder=study.root / "copy").mask_key().read_text()
    assert json.loads(one)["payload"]["public"] != json.loads(two)["payload"]["public"]


def test_a_site_without_a_model_takes_part(study: Study) -> None:
    with pytest.raises(InputError, match=r"to take part without a model, say which list"):
        study.home("clinic", agreed=None).label(study.models)
    with pytest.raises(InputError, match="not the agreed"):
        study.home("clinic", agreed="0" * 64).label(study.models)
    labels = [study.home(site).label(study.models) for site in SITES]
    models = font.read_models(study.models)
    parts = [font.read_labels(path, models) for path in labels]
    ensemble, tables = font.combine(models, parts, n_clusters=2)
    text = font.round_report(ensemble, models, tables, study=STUDY)
    assert "| clinic " in text
    path = study.root / "ensemble.json"
    font.write_ensemble(path, ensemble, models, font.Header(study=STUDY))
    assert len(study.home("clinic").assign(path)) == SITES["clinic"]
    refined = study.home("clinic").refine(path)
    assert refined.sums is not None


def test_a_foreign_model_in_the_name_of_a_site_without_one(study: Study, tmp_path: Path) -> None:
    other = hospital(tmp_path / "fake", "clinic", sequences=sequences_of("west")).fit()
    files = [*study.models, *other]
    agreed = font.list_fingerprint(font.read_models(files))
    with pytest.raises(InputError, match="are not those that it sent"):
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
    assert "their total was rounded" in said
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


# --- the refinement ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Path:
    """A study whose four sites have labelled with secure sums, with its ensemble file."""
    root = tmp_path_factory.mktemp("labelled")
    duplicate(template, root)
    study = Study(root)
    models = font.read_models(study.models)
    total = sum_of_labels([read_masked(path) for path in study.secure()], models)
    ensemble, _ = font.combine(models, [total], n_clusters=2)
    font.write_ensemble(root / "ensemble.json", ensemble, models, font.Header(study=STUDY))
    return root


@pytest.fixture
def refining(tmp_path: Path, labelled: Path) -> Study:
    duplicate(labelled, tmp_path)
    return Study(tmp_path)


def masked_step(study: Study, source: Path, *without: str) -> list[MaskedFile]:
    """What the sites send in answer to a file."""
    keys = [path for site, path in study.keys.items() if site not in without]
    results = [
        study.home(site, without=without).refine(source, secure=keys)
        for site in SITES
        if site not in without
    ]
    return [read_masked(result.sums) for result in results if result.sums is not None]


def exact_step(source: Path, sites: Any = SITES) -> tuple[Any, Any, Any]:
    """The sums, the support and the shares of all sites in one process, unrounded."""
    before = read_step(source)
    sums = []
    for site in sites:
        data = sequences_of(site)
        if before.shared is not None:
            model = before.shared.model
            membership = site_memberships(model, data)
        else:
            models = {name: file.model for name, file in before.ensemble.models.items()}
            clusters = before.ensemble.ensemble.predict(font.label(models, data))
            model = one_class(next(iter(models.values())), data)
            membership = np.eye(2)[clusters.to_numpy()]
        shares = markov_shares(model, data, membership)
        sums.append((*exact_sums(Question(before, model, data, membership)), shares))
    return tuple(np.sum(part, axis=0) for part in zip(*sums, strict=True))


def test_the_sum_of_a_refinement_is_the_exact_one_rounded_once(refining: Study) -> None:
    """Three steps by files; each total is that of one process, to the last part in a million."""
    source = refining.root / "ensemble.json"
    for step in range(3):
        parts = masked_step(refining, source)
        exact, support, shares = exact_step(source)
        summed = add_masked(parts).values[:-8].reshape(3, *exact.shape) / 1e6
        assert np.abs(summed - np.stack([exact, support, shares])).max() < 1e-5
        path = refining.root / f"shared-{step}.json"
        shared = share_masked(
            read_step(source), parts, font.Header(study=STUDY), rounds=2, path=path
        )
        known = support >= 11
        unit = 11 * np.ceil(exact[known] / support[known] - 1e-9)
        assert (np.abs(shared.total - exact)[known] < unit).all()
        assert (shared.total[known] % unit == 0).all()
        seed = hashlib.sha256(add_masked(parts).values[-8:].tobytes()).digest()
        blocks = markov_blocks({"states": ["a", "b", "c"]})
        once = round_total(exact, support, shares, blocks, 11, SecretDraws(seed, "sums"))
        assert shared.payload["sums"] == once.values.tolist()
        assert sorted(shared.sites) == sorted(SITES)
        source = path
    assert read_shared(source).last
    for site, n in SITES.items():
        result = refining.home(site).refine(source, secure=refining.keys.values())
        assert result.sums is None
        assert len(result.clusters) == n
        assert sorted(result.loglik) == [0, 1, 2]


def test_all_steps_are_rounded_with_the_same_draws(refining: Study) -> None:
    """What the centre broadcasts at several steps cannot be averaged."""
    source = refining.root / "ensemble.json"
    before = read_step(source)
    parts = masked_step(refining, source)
    first = share_masked(
        before, parts, font.Header(study=STUDY), rounds=9, path=refining.root / "s0.json"
    )
    seeds = {add_masked(parts).values[-8:].tobytes()}
    seeds.add(add_masked(masked_step(refining, refining.root / "s0.json")).values[-8:].tobytes())
    assert len(seeds) == 1
    again = share_masked(before, parts[::-1], font.Header(study=STUDY), rounds=9)
    assert (again.total == first.total).all()


def test_masks_of_steps_and_sets_have_nothing_in_common(refining: Study) -> None:
    source = refining.root / "ensemble.json"
    parts = masked_step(refining, source)
    share_masked(
        read_step(source), parts, font.Header(study=STUDY), rounds=9, path=refining.root / "s0.json"
    )
    following = masked_step(refining, refining.root / "s0.json")
    fewer = masked_step(refining, source, "west")
    for part in (following[0], fewer[0]):
        gap = part.values - parts[0].values  # of nearly equal sums, modulo 2⁶⁴
        far = (gap > 2**50) & (gap < 2**64 - 2**50)  # a random gap is, but for 1 in 8,192
        assert far.mean() > 0.95
    assert own_sums(parts[0], refining.home("north").ledger().mask_secret())[0][0] > 0


def test_a_site_that_drops_out_of_a_refinement(refining: Study) -> None:
    source = refining.root / "ensemble.json"
    before = read_step(source)
    parts = masked_step(refining, source)
    with pytest.raises(InputError, match="masked files of 'west' are missing"):
        share_masked(before, [p for p in parts if p.site != "west"], font.Header(study=STUDY))
    fewer = masked_step(refining, source, "west")
    shared = share_masked(
        before, fewer, font.Header(study=STUDY), rounds=2, path=refining.root / "shared-0.json"
    )
    assert "west" not in shared.sites
    three = [site for site in SITES if site != "west"]
    exact, support, _ = exact_step(source, three)
    known = support >= 11
    unit = 11 * np.ceil(exact[known] / support[known] - 1e-9)
    assert (np.abs(shared.total - exact)[known] < unit).all()
    with pytest.raises(InputError, match="was made without the sums that this site"):
        refining.home("west").refine(refining.root / "shared-0.json")
    with pytest.raises(InputError, match="'west' were not part of the step before"):
        masked_step(refining, refining.root / "shared-0.json")
    assert len(masked_step(refining, refining.root / "shared-0.json", "west")) == 3


def test_a_step_is_answered_once_and_in_one_way(refining: Study) -> None:
    source, keys = refining.root / "ensemble.json", list(refining.keys.values())
    home = refining.home("north")
    first = home.refine(source, secure=keys).sums.read_bytes()
    assert home.refine(source, secure=keys[::-1]).sums.read_bytes() == first
    fewer = sequences_of("north")[1:]
    for override in (None, "somebody asked for it"):  # the same masks: never
        other = refining.home("north", sequences=fewer, override=override)
        with pytest.raises(InputError, match="same masks, so begin a new round"):
            other.refine(source, secure=keys)
    with pytest.raises(InputError, match=r"sums 0 in round 1 .* with secure sums; a round takes"):
        home.refine(source)
    with pytest.raises(InputError, match="at least 3 sites, found 2"):
        home.refine(source, secure=keys[:2])


def test_a_total_smaller_than_a_masked_part_is_refused(refining: Study) -> None:
    source = refining.root / "ensemble.json"
    shared = refining.root / "shared-0.json"
    share_masked(
        read_step(source),
        masked_step(refining, source),
        font.Header(study=STUDY),
        rounds=2,
        path=shared,
    )
    content = json.loads(shared.read_text(encoding="utf-8"))
    content["payload"]["sums"] = [[1100] * 13] * 2
    from font.exchange.envelope import fingerprint

    content["sha256"] = fingerprint(content["payload"])
    shared.write_text(json.dumps(content), encoding="utf-8")
    home = refining.home("north")
    with pytest.raises(InputError, match="smaller sums than this site"):
        home.refine(shared, secure=refining.keys.values())
    assert not (refining.root / "north" / "clusters.csv").exists()


def test_the_commands_refine_with_secure_sums(refining: Study) -> None:
    root, name = refining.root, ("--study", STUDY)
    for site in SITES:
        sequences_of(site).write(root / site / "sequences.csv")
    keys, source = list(refining.keys.values()), root / "ensemble.json"

    def asks(site: str) -> tuple[Any, ...]:
        return (
            *("site", "refine", *name, "--site", site, "--folder", root / site),
            *("--sequences", root / site / "sequences.csv", "--out", root / "sums"),
        )

    assert "goes with --secure" in refusal(*asks("north"), source, keys[0])
    assert "found 0 files to answer" in refusal(*asks("north"), *keys, "--secure")
    for step in range(2):
        for site in SITES:
            said = " ".join(mmlca_does(*asks(site), source, *keys, "--secure").split())
            assert f"Step {step} of the refinement" in said
            assert "only their sum over the 4 sites" in said
        sums = sorted((root / "sums").glob(f"*.masked-sums-{step}.json"))
        assert len(sums) == 4
        centre = ("centre", "refine", source, *sums, *name, "--out", root / "to_sites")
        assert "masked files go with --secure" in refusal(*centre)
        assert "under masks" in mmlca_does("exchange", "check", sums[0])
        said = " ".join(mmlca_does(*centre, "--secure").split())
        assert "their total was rounded at random" in said
        source = root / "to_sites" / f"shared-{step}.json"
    said = mmlca_does(*asks("clinic"), source)
    assert "ended with step 1" in said
    assert (root / "clinic" / "clusters.csv").exists()
