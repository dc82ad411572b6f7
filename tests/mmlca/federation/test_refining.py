"""A refinement between three folders: the in-process result, and files that must be refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital, refine_by_files, sequences_of
from commands import mmlca_does, refusal

import font
import mmlca
from font.errors import InputError
from font.exchange.disclosure import SecretDraws, round_sums
from font.exchange.envelope import fingerprint, read_file, write_file
from font.exchange.messages.refinement import read_shared, read_step, read_sums, share
from font.refinement import site_step


@pytest.fixture(scope="module")
def open_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("open")
    combined(root, 1)
    return root


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Refined with one round; everything is rounded to multiples of 11."""
    root = tmp_path_factory.mktemp("closed")
    combined(root, 11)
    refine_by_files(root, 11, rounds=1)
    return root


@pytest.mark.parametrize("rounds", [0, 2])
def test_three_folders_give_the_in_process_result(
    open_study: Path, tmp_path: Path, rounds: int
) -> None:
    root = tmp_path / "again"
    shutil.copytree(open_study, root)
    by_files = refine_by_files(root, 1, rounds)
    result = font.read_ensemble(root / "ensemble.json")
    models = {name: file.model for name, file in result.models.items()}
    data = {site: sequences_of(site) for site in SITES}
    together = font.refine(result.ensemble, models, data, rounds=rounds)
    assert by_files["shared"].step == rounds
    assert by_files["shared"].model.class_parameters_ == pytest.approx(
        together.class_parameters_, abs=1e-7
    )
    for site, table in by_files["tables"].items():
        probabilities = together.predict_proba(data[site], site)
        assert table["probability"].to_numpy() == pytest.approx(
            probabilities.max(axis=1).to_numpy(), abs=1e-5
        )
        assert (table["cluster"].to_numpy() - 1 == together.predict(data[site], site)).all()
        written = pd.read_csv(root / site / "clusters.csv", index_col="id")
        assert written.index.tolist() == data[site].ids.tolist()
        assert list(written) == ["cluster", "probability", "runner_up", "runner_up_probability"]


def test_rounding_costs_little_and_is_what_the_rule_says(study: Path) -> None:
    result = font.read_ensemble(study / "ensemble.json")
    models = {name: file.model for name, file in result.models.items()}
    data = {site: sequences_of(site) for site in SITES}
    exact = font.refine(result.ensemble, models, data, rounds=1)
    shared = read_shared(study / "shared-1.json")
    assert shared.last
    off = np.abs(shared.model.class_parameters_ - exact.class_parameters_)
    assert off.mean() < 0.04  # at most 0.021 in 85 studies with secrets of their own
    assert off.max() < 0.2  # at most 0.109
    for site, own in data.items():
        for step in (0, 1):
            name = f"{site.replace(' ', '_')}.sums-{step}.json"
            part = read_sums(study / site / "to_centre" / name)
            values = np.array(part.payload["sums"])
            few = values == round(1100 * part.payload["per_patient"])
            assert (values[~few] % 1100 == 0).all()
            assert "PID" not in (study / site / "to_centre" / name).read_text()
        again = site_step(shared.model, own).membership.max(axis=1)
        table = pd.read_csv(study / site / "clusters.csv", index_col="id")
        assert table["probability"].to_numpy() == pytest.approx(again, abs=1e-6)


def test_converge_ends_by_itself(tmp_path: Path) -> None:
    combined(tmp_path, 11)
    shared = refine_by_files(tmp_path, 11, "converge")["shared"]
    assert shared.last
    assert 1 <= shared.step <= 50  # rounding may keep it moving until the limit
    changes = [
        abs(
            read_shared(tmp_path / f"shared-{k}.json").model.class_parameters_
            - read_shared(tmp_path / f"shared-{k - 1}.json").model.class_parameters_
        ).max()
        for k in range(1, shared.step + 1)
    ]
    assert changes[-1] < 1e-3 or shared.step == 50
    assert all(change >= 1e-3 for change in changes[:-1])


def test_commands_say_the_step_and_what_to_send_to_whom(tmp_path: Path) -> None:
    ensemble = combined(tmp_path, 11)
    for site in SITES:
        sequences_of(site).write(tmp_path / site / "sequences.csv")
    source, step = ensemble, 0
    for _ in range(3):
        said = {
            site: mmlca_does(
                *("site", "refine", source, "--sequences", tmp_path / site / "sequences.csv"),
                *("--study", STUDY, "--site", site, "--folder", tmp_path / site),
            )
            for site in SITES
        }
        if step == 2:
            break
        assert f"Step {step} of the refinement" in said["west"]
        assert f"send west.sums-{step}.json to the centre" in " ".join(said["west"].split())
        sums = [
            tmp_path / s / "to_centre" / f"{s.replace(' ', '_')}.sums-{step}.json" for s in SITES
        ]
        text = mmlca_does(
            *("centre", "refine", source, *sums, "--study", STUDY, "--out", tmp_path / "to_sites"),
            *("--expect", "north,east"),
        )
        assert f"send shared-{step}.json to all sites" in " ".join(text.split())
        assert "No sums came from 'east'" in text
        source, step = tmp_path / "to_sites" / f"shared-{step}.json", step + 1
    assert "The refinement ended with step 1" in said["north"]
    assert "cluster 1:" in said["north"]
    checked = mmlca_does("exchange", "check", sums[0])
    assert "step 1 of a refinement" in checked
    assert "multiple of 11" in checked
    assert "the last" in mmlca_does("exchange", "check", source)


# --- the ledger, and files that must be refused --------------------------------------------


def test_the_same_bytes_leave_again_and_nothing_else(study: Path) -> None:
    home = hospital(study, "west", 11)
    path = home.refine(study / "ensemble.json").sums
    assert path is not None
    before = path.read_bytes()
    path.unlink()
    assert home.refine(study / "ensemble.json").sums.read_bytes() == before
    fewer = hospital(study, "west", 11, sequences=sequences_of("west")[1:])
    with pytest.raises(InputError, match="released other sums 0 files"):
        fewer.refine(study / "ensemble.json")


def spoiled(path: Path, out: Path, **changes: Any) -> Path:
    """A file with other values and a good checksum."""
    content = json.loads(path.read_text())
    for key, value in changes.items():
        part = content["payload"] if key in content["payload"] else content
        part[key] = value
    content["sha256"] = fingerprint(content["payload"])
    out.write_text(json.dumps(content))
    return out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sums": [[1100, 500] + [0] * 11] * 2}, "not a multiple of its min_count"),
        ({"sums": [[1100] * 13, [1100] * 12]}, "unequal length"),
        ({"sums": [[-1100] * 13] * 2}, "does not fit the specification"),
        ({"sums": [[1.5] * 13] * 2}, "does not fit the specification"),
        ({"sums": [[10**16] * 13] * 2}, "does not fit the specification"),
        ({"sums": [[1100] * 13] * 101}, "does not fit the specification"),
        ({"scale": 7}, "scale 7 instead of 100"),
        ({"step": 51}, "does not fit the specification"),
        ({"step": True}, "does not fit the specification"),
        ({"per_patient": 0.5}, "does not fit the specification"),
        ({"min_count": 5}, "min_count 5"),
        ({"format": "os.system"}, "is unknown"),
        ({"of": "0" * 63}, "does not fit the specification"),
        ({"extra": 1}, "does not fit the specification"),
        ({"kind": "labels"}, "does not fit the specification"),
        ({"study": "other"}, "belongs to the study"),
    ],
)
def test_hostile_sums_are_refused(
    study: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    good = study / "west" / "to_centre" / "west.sums-0.json"
    path = spoiled(good, tmp_path / "bad.json", **changes)
    if "kind" in changes:
        path = spoiled(good, tmp_path / "bad.json", kind="labels")
    with pytest.raises(InputError, match=words):
        read_file(path, font.Header(study=STUDY), min_count=11)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sums": [[1100] * 12] * 2}, "12 sums per cluster instead of 13"),
        ({"sums": [[0] * 13] * 2}, "cluster without patients"),
        ({"sites": ["west", "west"]}, "repeats"),
        ({"model": {"format": "font k-means"}}, "does not fit the specification"),
        ({"last": 1}, "does not fit the specification"),
        ({"ensemble": "x"}, "does not fit the specification"),
    ],
)
def test_hostile_shared_models_are_refused(
    study: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = spoiled(study / "shared-0.json", tmp_path / "bad.json", **changes)
    with pytest.raises(InputError, match=words):
        read_shared(path, font.Header(study=STUDY))


def test_a_site_answers_only_what_its_own_sums_are_part_of(study: Path, tmp_path: Path) -> None:
    home = hospital(study, "west", 11)
    good = study / "shared-0.json"
    sums = np.array(json.loads(good.read_text())["payload"]["sums"])
    for changes, words in [
        ({"ensemble": "0" * 64}, "another ensemble"),
        ({"of": "0" * 64}, "without the sums that this site"),
        ({"sites": ["north"]}, "without the sums that this site"),
        ({"sums": (sums // 11000 * 1100).tolist()}, "smaller sums than this site"),
        ({"sums": [*sums.tolist(), sums[0].tolist()]}, "without the sums that this site"),
    ]:
        path = spoiled(good, tmp_path / "bad.json", **changes)
        with pytest.raises(InputError, match=words):
            home.refine(path)
    newcomer = hospital(tmp_path, "west", 11)
    with pytest.raises(InputError, match="sent no sums of step 0"):
        newcomer.refine(good)
    with pytest.raises(InputError, match="has not labelled"):
        newcomer.refine(study / "ensemble.json")


def test_the_centre_refuses_sums_that_do_not_belong_together(study: Path, tmp_path: Path) -> None:
    def sums(site: str, step: int) -> Path:
        name = f"{site.replace(' ', '_')}.sums-{step}.json"
        return study / site / "to_centre" / name

    common = ("centre", "refine", "--study", STUDY, "--out", tmp_path)
    ensemble, shared = study / "ensemble.json", study / "shared-0.json"
    assert "answer another file" in refusal(*common, ensemble, sums("west", 1))
    assert "no sums file" in refusal(*common, ensemble)
    assert "found 0 ensemble or shared" in refusal(*common, sums("west", 0))
    assert "found 2 ensemble or shared" in refusal(*common, ensemble, shared, sums("west", 0))
    copy = tmp_path / "copy.json"
    copy.write_bytes(sums("west", 0).read_bytes())
    assert "sent sums twice" in refusal(*common, ensemble, sums("west", 0), copy)
    alien = spoiled(sums("west", 1), tmp_path / "alien.json", site="east")
    assert "not part of the step before" in refusal(*common, shared, alien)
    wide = spoiled(sums("west", 0), tmp_path / "wide.json", sums=[[1100] * 21] * 2)
    assert "is needed" in refusal(*common, ensemble, wide)
    assert "--rounds takes" in refusal(*common, ensemble, sums("west", 0), "--rounds", "many")
    assert "at most 50" in refusal(*common, ensemble, sums("west", 0), "--rounds", "51")
    empty = spoiled(sums("west", 0), tmp_path / "empty.json", sums=[[0] * 13] * 2)
    assert "no patients left" in refusal(*common, ensemble, empty)
    model = next((study / "west" / "to_all").iterdir())
    assert "sums files only" in refusal(*common, ensemble, model)
    assert not (tmp_path / "shared-0.json").exists()


# --- a site that makes up its sums ---------------------------------------------------------


def swollen(path: Path, out: Path, factor: int) -> Path:
    """A site's sums times a factor."""
    sums = np.array(json.loads(path.read_text())["payload"]["sums"])
    return spoiled(path, out, sums=(factor * sums).tolist())


def test_a_site_cannot_claim_more_patients_than_it_labelled(study: Path, tmp_path: Path) -> None:
    """3,300 patients claimed instead of 300 dragged all honest sites' clusters along."""
    before = read_step(study / "ensemble.json")
    parts = {site: study / site / "to_centre" / f"{site}.sums-0.json" for site in SITES}
    parts["south hospital"] = next((study / "south hospital" / "to_centre").glob("*sums-0*"))
    parts["west"] = swollen(parts["west"], tmp_path / "west.json", 11)
    with pytest.raises(InputError, match=r"'west' count about 3,\d+ patients, but at most 3\d\d"):
        share(before, map(read_sums, parts.values()), font.Header(study=STUDY))
    later = read_step(study / "shared-0.json")  # the limit goes on with the steps
    assert later.labelled == before.labelled
    assert 300 <= later.labelled["west"] < 400


def test_a_site_that_lies_from_the_start_counts_no_more_than_all_others(
    study: Path, tmp_path: Path
) -> None:
    """It may have claimed as many patients in its labels file."""
    before = read_step(study / "ensemble.json")
    before.labelled["west"] = 4_000
    parts = [
        study / "north" / "to_centre" / "north.sums-0.json",
        next((study / "south hospital" / "to_centre").glob("*sums-0*")),
        swollen(study / "west" / "to_centre" / "west.sums-0.json", tmp_path / "west.json", 11),
    ]
    sums = [read_sums(path) for path in parts]
    patients = [part.sums[:, 0].sum() for part in sums]
    total = share(before, sums, font.Header(study=STUDY)).total[:, 0].sum()
    assert total == pytest.approx(2 * sum(patients[:2]), abs=1)


def test_a_first_model_that_contradicts_the_clusters_is_refused(
    study: Path, tmp_path: Path
) -> None:
    """Whoever swaps the clusters in the sums, the site's own patients show it."""
    root = tmp_path / "copy"
    shutil.copytree(study, root)
    home, clusters = hospital(root, "north", 11), root / "north" / "clusters.csv"
    home.refine(root / "ensemble.json")
    kept = clusters.read_bytes()
    sums = np.array(json.loads((root / "shared-0.json").read_text())["payload"]["sums"])
    swapped = (sums + 10 * np.roll(sums, 1, axis=0)).tolist()
    bad = spoiled(root / "shared-0.json", root / "bad.json", sums=swapped)
    with pytest.raises(InputError, match=r"\d+% of this site's patients have another cluster"):
        home.refine(bad)
    assert clusters.read_bytes() == kept
    assert len(home.refine(root / "shared-0.json").clusters) == SITES["north"]


def test_a_site_larger_than_all_others_recognises_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums are scaled down, so the total may be smaller than what it sent itself."""
    monkeypatch.setitem(SITES, "north", 2_500)
    combined(tmp_path, 11)
    shared = refine_by_files(tmp_path, 11, rounds=0)["shared"]
    own = read_sums(tmp_path / "north" / "to_centre" / "north.sums-0.json").sums
    assert shared.total[:, 0].sum() < own[:, 0].sum()


def test_a_step_that_makes_the_patients_unlikely_overwrites_nothing(
    study: Path, tmp_path: Path
) -> None:
    """Sums of a hostile site drown those of the others; each site sees it by its own patients."""
    root = tmp_path / "again"
    shutil.copytree(study, root)
    home = hospital(root, "west", 11)
    clusters = root / "west" / "clusters.csv"
    home.refine(root / "shared-0.json")
    before = clusters.read_bytes()
    good = root / "shared-1.json"
    sums = np.array(json.loads(good.read_text())["payload"]["sums"])
    drowned = spoiled(good, root / "bad.json", sums=(sums + 1100 * 10**5).tolist())
    with pytest.raises(InputError, match=r"log-likelihood of this site's patients falls from -"):
        home.refine(drowned)
    assert clusters.read_bytes() == before
    result = hospital(root, "west", 11, override="we know about it").refine(drowned)
    assert result.loglik[1] < 1.05 * result.loglik[0]
    assert hospital(root, "west", 11).refine(good).loglik[1] > result.loglik[1]


def test_kinds_without_counts_are_refused_kindly(tmp_path: Path) -> None:
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(1)
    data = pd.DataFrame(rng.normal(size=(200, 2)) + 4 * rng.integers(2, size=(200, 1)))
    fits = {
        name: KMeans(2, n_init=3, random_state=i).fit(data.to_numpy())
        for i, name in enumerate(["west/1", "west/2"])
    }
    data.columns = ["x", "y"]
    home = mmlca.Hospital(study=STUDY, site="west", sequences=data, folder=tmp_path)
    models = home.release(fits)
    labels = home.label(models)
    files = font.read_models(models)
    ensemble, _ = font.combine(files, [font.read_labels(labels, files)], n_clusters=2)
    font.write_ensemble(tmp_path / "ensemble.json", ensemble, files, font.Header(study=STUDY))
    with pytest.raises(InputError, match="its sums are not counts"):
        home.refine(tmp_path / "ensemble.json")


# --- attacks -------------------------------------------------------------------------------


def test_a_patient_whom_the_centre_singles_out_rarely_shows_and_all_at_once() -> None:
    """A cluster that holds one patient only: its sums show together, in 1 of 11 cases."""
    sums = np.array([[1.0, 1, 0, 0, 0, 3, 1, 1, 0, 0, 0, 2, 0], [300.0, 100, 100, 100, *[90] * 9]])
    support = np.array([[1.0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0], sums[1]])
    shown = []
    for i in range(600):
        rounded = round_sums(sums, support, 11, SecretDraws(i.to_bytes(32))).values[0]
        there = rounded[support[0] > 0] > 0
        assert there.all() or not there.any()
        assert (rounded[support[0] == 0] == 0).all()
        shown.append(there.any())
    assert np.mean(shown) == pytest.approx(1 / 11, abs=0.04)


def test_repeating_steps_with_other_clusters_tells_no_more_than_one() -> None:
    """A centre that moves its target from cluster to cluster meets the same draw each time."""
    for i in range(200):
        seen = set()
        for cluster in range(4):
            sums = np.full((4, 5), 200.0)
            sums[cluster] = [1, 1, 0, 2, 1]
            support = np.minimum(sums, np.where(sums < 11, 1, sums))
            draws = SecretDraws(i.to_bytes(32))  # what the ledger gives at every step
            seen.add(bool(round_sums(sums, support, 11, draws).values[cluster, 0] > 0))
        assert len(seen) == 1


def test_large_sums_keep_their_draw_at_all_steps() -> None:
    """The same counts at two steps leave as the same numbers: nothing can be averaged."""
    sums = np.array([[205.0, 77.0, 128.0], [390.0, 200.0, 190.0]])
    first = round_sums(sums, sums, 11, SecretDraws(b"k" * 32)).values
    second = round_sums(sums + 0.0, sums, 11, SecretDraws(b"k" * 32)).values
    assert (first == second).all()


def test_rounded_sums_are_unbiased() -> None:
    sums = np.array([[205.0, 7.0, 30.0], [39.0, 4.0, 12.0]])
    support = np.array([[205.0, 7.0, 10.0], [39.0, 4.0, 6.0]])
    mean = np.mean(
        [
            round_sums(sums, support, 11, SecretDraws(i.to_bytes(32))).values / 100
            for i in range(4000)
        ],
        axis=0,
    )
    per_patient = round(sums[support < 11].sum() / support[support < 11].sum(), 2)
    expected = np.where(support < 11, support * per_patient, sums)
    assert mean == pytest.approx(expected, abs=0.6)


def test_a_file_that_is_written_is_one_that_can_be_read(study: Path) -> None:
    shared = read_shared(study / "shared-1.json")
    data = write_file(None, "shared", shared.payload, font.Header(study=STUDY)).data
    assert read_shared(data).model.class_parameters_ == pytest.approx(
        shared.model.class_parameters_
    )


# --- over a network ------------------------------------------------------------------------


def network(root: Path, silent: dict[str, str], min_count: int = 11) -> Any:
    """Asks hospitals in this process; `silent` are sites and the step from which they are."""
    from font.exchange.replies import Reply

    homes = {site: hospital(root, site, min_count) for site in SITES}
    asked: list[str] = []

    def ask(step: str, files: Any, senders: Any) -> list[Reply]:
        asked.append(step)
        replies = []
        for site in senders or homes:
            home = homes[site]
            if silent.get(site) == f"{step} {asked.count(step)}":
                replies.append(Reply(site, trouble="it did not answer"))
            elif step == "fit":
                replies.append(Reply(site, tuple(p.read_bytes() for p in home.fit())))
            elif step == "label":
                replies.append(Reply(site, (home.label(files).read_bytes(),)))
            elif step == "assign":
                home.assign(files[0])
                replies.append(Reply(site))
            else:
                sums = home.refine(files[0]).sums
                replies.append(Reply(site, () if sums is None else (sums.read_bytes(),)))
        return replies

    return ask


def test_a_round_with_a_refinement_is_that_of_the_files(tmp_path: Path) -> None:
    from font.exchange.rounds import run_round

    result = run_round(
        network(tmp_path / "a", {}, 1),
        font.Header(study=STUDY),
        out=tmp_path / "centre",
        n_clusters=2,
        min_count=1,
        refine=1,
    )
    assert result.shared is not None
    assert result.shared.last
    assert result.shared.sites == tuple(sorted(SITES))
    assert sorted(p.name for p in (tmp_path / "centre").glob("shared-*")) == [
        "shared-0.json",
        "shared-1.json",
    ]
    models = {name: file.model for name, file in result.models.items()}
    data = {site: sequences_of(site) for site in SITES}
    together = font.refine(result.ensemble, models, data)
    assert result.shared.model.class_parameters_ == pytest.approx(
        together.class_parameters_, abs=1e-7
    )
    table = pd.read_csv(tmp_path / "a" / "west" / "clusters.csv")
    assert "probability" in table


def test_a_site_that_misses_a_step_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    from font.exchange.rounds import run_round

    result = run_round(
        network(tmp_path / "a", {"west": "refine 2"}),
        font.Header(study=STUDY),
        out=tmp_path / "centre",
        n_clusters=2,
        refine=2,
    )
    assert result.shared is not None
    assert result.shared.step == 2
    assert result.shared.sites == ("north", "south hospital")
    assert [(who.site, who.step) for who in result.absent] == [("west", "refine")]
    assert "refinement" in result.report
