"""Three hospitals in three folders, with nothing but files between them."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal
from ra_like import ra_like
from sklearn.metrics import adjusted_rand_score

import ehr_prep
import font
import mmlca
from font.errors import InputError

SITES = {"north": 700, "south hospital": 600, "west": 500}
LEAST = 11


def sequences_of(site: str) -> mmlca.Sequences:
    n = SITES[site]
    made = ra_like(n, seed=n)
    ids = [f"PID{n}{i:06d}" for i in range(n)]
    return mmlca.Sequences.from_codes(made.codes, made.states, ids=ids)


def play(root: Path, *, min_count: int, method: str = "kmeans") -> dict[str, str]:
    """The whole round; what each command said."""
    said = {}
    study = ("--study", "ra switching")
    floor = ("--min-count", min_count, "--floor", min_count)
    for site in SITES:
        home = root / site
        home.mkdir(parents=True)
        sequences_of(site).write(home / "sequences.csv")
        said[f"fit {site}"] = mmlca_does(
            *("site", "fit", home / "sequences.csv", *study, "--site", site, "-k", 4),
            *("--pseudo-sites", 2, "--n-init", 8, *floor),
            *("--folder", home, "--out", root / "to_all"),
        )
    models = sorted((root / "to_all").iterdir())
    for site in SITES:
        said[f"label {site}"] = mmlca_does(
            *("site", "label", *models, "--sequences", root / site / "sequences.csv", *study),
            *("--site", site, *floor, "--folder", root / site, "--out", root / "to_centre"),
        )
    labels = sorted((root / "to_centre").iterdir())
    said["combine"] = mmlca_does(
        *("centre", "combine", *labels, *models, *study, "-k", 4, "--out", root / "to_sites"),
        *("--min-count", min_count, "--method", method),
    )
    for site in SITES:
        said[f"assign {site}"] = mmlca_does(
            *("site", "assign", root / "to_sites" / "ensemble.json"),
            *("--sequences", root / site / "sequences.csv", *study, "--folder", root / site),
        )
    return said


@pytest.fixture(scope="module")
def open_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("open")
    play(root, min_count=1)
    return root


@pytest.fixture(scope="module")
def closed_round(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    root = tmp_path_factory.mktemp("closed")
    return root, play(root, min_count=LEAST)


def clusters_in(root: Path) -> dict[str, pd.Series]:
    return {
        site: pd.read_csv(root / site / "clusters.csv", index_col="id")["cluster"] - 1
        for site in SITES
    }


def fitted_in_process() -> dict[str, mmlca.MixtureMarkov]:
    models = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for site in sorted(SITES):
            resamples = ehr_prep.pseudo_sites({site: sequences_of(site)}, 2, 0.8, seed=1)
            for name, data in resamples.items():
                models[name] = mmlca.MixtureMarkov(4, n_init=8, prior=0.5, seed=1).fit(data)
    return models


def test_three_folders_give_the_in_process_result(open_round: Path) -> None:
    """With whole counts (min_count 1) the files' ensemble is that of the same models in process."""
    result = font.read_ensemble(open_round / "to_sites" / "ensemble.json")
    models = {name: file.model for name, file in result.models.items()}
    fits = fitted_in_process()
    assert list(models) == list(fits)
    for name, model in models.items():
        np.testing.assert_allclose(model.weights_, fits[name].weights_, atol=0.01)
    labels = {site: font.label(models, sequences_of(site)) for site in sorted(SITES)}
    together = font.Ensemble(4, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    np.testing.assert_allclose(result.ensemble.agreement_, together.agreement_, atol=1e-12)
    np.testing.assert_allclose(result.ensemble.weights_, together.weights_, atol=1e-12)
    placed = clusters_in(open_round)
    for site, table in labels.items():
        assert placed[site].index.tolist() == table.index.tolist()
        assert (placed[site].to_numpy() == result.ensemble.predict(table).to_numpy()).all()
        assert adjusted_rand_score(placed[site], together.predict(table)) > 0.97


def test_rounding_changes_little(
    open_round: Path, closed_round: tuple[Path, dict[str, str]]
) -> None:
    free, kept = clusters_in(open_round), clusters_in(closed_round[0])
    whole = np.concatenate([free[site] for site in SITES])
    assert adjusted_rand_score(whole, np.concatenate([kept[site] for site in SITES])) > 0.8


def test_nothing_that_leaves_names_a_patient_a_date_or_a_small_cell(
    closed_round: tuple[Path, dict[str, str]],
) -> None:
    root, said = closed_round
    outgoing = [p for part in ("to_all", "to_centre", "to_sites") for p in (root / part).iterdir()]
    assert len(outgoing) == 6 + 3 + 2
    for path in outgoing:
        text = path.read_text(encoding="utf-8")
        assert "PID" not in text
        if path.suffix != ".json":
            continue
        stored = json.loads(text)
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", stored.pop("created"))
        assert not re.search(r"\b(19|20)\d{2}-?[01]\d-?[0-3]\d\b", json.dumps(stored))
        unit = LEAST * [*models_in(stored), {"steps_per_patient": 1}][0]["steps_per_patient"]
        for count in counts_in(stored):
            assert count % LEAST == 0 or stored["kind"] == "ensemble" or count == round(unit, 2)
            assert count == 0 or count >= LEAST
    for text in said.values():
        assert "PID" not in text


def models_in(stored: dict) -> list[dict]:
    return [stored["payload"]["model"]] if stored["kind"] == "model" else []


def counts_in(stored: dict) -> list[float]:
    """Every number of patients in a model or labels file, and of steps."""
    payload = stored["payload"]
    if stored["kind"] == "ensemble":
        parts = [{"kind": "model", "payload": model} for model in payload["models"]]
        return [count for part in parts for count in counts_in(part)]
    tables = (
        [payload["classes"], [[int(n) for n in row.split()] for row in payload["tables"]]]
        if stored["kind"] == "labels"
        else [payload["model"][key] for key in ("patients", "first", "steps")]
    )
    return [value for table in tables for value in flat(table)]


def flat(value: object) -> list[float]:
    return [v for part in value for v in flat(part)] if isinstance(value, list) else [value]


def test_each_command_says_what_it_wrote_withheld_and_what_is_next(
    closed_round: tuple[Path, dict[str, str]],
) -> None:
    root, said = closed_round
    assert "south_hospital-1.model.json" in said["fit south hospital"]
    for command, text in said.items():
        assert "Wrote" in text
        assert ("Next:" in text) == (not command.startswith("assign"))
        assert "Withheld:" in text
    assert "send west.labels.json to the centre" in said["label west"]
    report = (root / "to_sites" / "report.md").read_text(encoding="utf-8")
    assert "6 models of 3 sites" in report


def test_exchange_check(closed_round: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    file = closed_round[0] / "to_centre" / "west.labels.json"
    assert "It reveals:" in mmlca_does("exchange", "check", file)
    page = tmp_path / "made" / "page.html"
    assert "Wrote" in mmlca_does("exchange", "check", file, "--html", page)
    assert "Everything in the file" in page.read_text(encoding="utf-8")
    about = json.loads(mmlca_does("exchange", "check", file, "--json"))
    assert about["kind"] == "labels"
    assert about["site"] == "west"


def test_without_a_number_the_sites_vote_and_the_absent_are_named(
    closed_round: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    root, _ = closed_round
    counts = [p for p in (root / "to_centre").iterdir() if p.name != "west.labels.json"]
    models = (root / "to_all").iterdir()
    said = mmlca_does(
        *("centre", "combine", *models, *counts, "--study", "ra switching", "--out", tmp_path)
    )
    assert "4 clusters" in said
    assert "No counts came from west" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("centre combine {models} --study 'ra switching'", "no labels file"),
        ("centre combine {models} --study other", "belongs to the study"),
        (
            "site label {models} {models} --sequences {root}/north/sequences.csv "
            "--study 'ra switching' --site north",
            "comes twice",
        ),
        ("site fit {root}/west/sequences.csv --study s --site ../up -k 2", "the site '../up'"),
        (
            "site fit {root}/west/sequences.csv --study s --site w -k 2 --n-init 2 --min-count 400",
            "has fewer than 400 patients, so that the model may not leave; ask for fewer "
            "(--classes 1), or let the fit find how many it can have (--fewer-classes).",
        ),
    ],
)
def test_a_refusal_is_one_sentence_and_writes_nothing(
    closed_round: tuple[Path, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    message: str,
) -> None:
    root, _ = closed_round
    models = " ".join(str(path) for path in sorted((root / "to_all").iterdir()))
    monkeypatch.chdir(tmp_path)
    assert message in refusal(*shlex.split(arguments.format(root=root, models=models)))
    assert list(tmp_path.iterdir()) == []


STUDY_FILE = """
name = "RA, two hospitals"
seed = 3
[sites.MGB]
records = "MGB/medications.csv"
drugs = "ra"
patients = "MGB/patients.csv"
[sites.VA]
records = "VA/medications.csv"
drugs = "ra"
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
max_windows = 8
[classes]
number = 2
[pseudo_sites]
per_site = 2
[model]
n_init = 4
[privacy]
min_count = 12
"""


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one hospital, with the study file of both."""
    root = tmp_path_factory.mktemp("hospital")
    ehr_prep.ra_cohort(1, sites={"MGB": 300}).write(root)
    (root / "study.toml").write_text(STUDY_FILE)
    return root


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_study_file_says_all_there_is_to_say(hospital: Path, tmp_path: Path) -> None:
    study = ("--study-file", hospital / "study.toml", "--site", "MGB")
    study = (*study, "--folder", tmp_path)
    said = mmlca_does("site", "fit", *study)
    assert "2 models with 2 classes" in said
    files = font.read_models(
        (tmp_path / "to_all").iterdir(), font.Header(study="RA, two hospitals")
    )
    assert list(files) == ["MGB/1", "MGB/2"]
    assert {file.payload["min_count"] for file in files.values()} == {12}
    records = ehr_prep.read_records(
        hospital / "MGB" / "medications.csv", drugs="ra", patients=hospital / "MGB" / "patients.csv"
    )
    data = ehr_prep.build_sequences(records, preset="ra", max_windows=8)
    for name, part in ehr_prep.pseudo_sites({"MGB": data}, 2, 0.8, seed=3).items():
        by_hand = mmlca.MixtureMarkov(2, n_init=4, prior=0.5, seed=3).fit(part)
        sizes = by_hand.params_.weights * part.weights.sum()
        assert np.abs(np.array(files[name].content["patients"]) - sizes).max() < 12.1
    models = sorted((tmp_path / "to_all").iterdir())
    mmlca_does("site", "label", *models, *study)
    counts = (tmp_path / "to_centre").iterdir()
    said = mmlca_does(
        *("centre", "combine", *models, *counts, "--study-file", hospital / "study.toml"),
        *("--out", tmp_path / "to_sites"),
    )
    assert "| VA   | models | no model came |" in said
    assert "seed 3" in said
    ensemble = tmp_path / "to_sites" / "ensemble.json"
    mmlca_does("site", "assign", ensemble, *study)
    assert len(pd.read_csv(tmp_path / "clusters.csv")) == len(data)
    other_k = ("site", "fit", *study, "-k", 3, "--pseudo-sites", 0, "--seed", 1)
    assert "give an override that says in words" in refusal(*other_k)
    mmlca_does(*other_k, "--override", "the first was not sent", "--out", tmp_path / "other")
    (other,) = font.read_models((tmp_path / "other").iterdir()).values()
    assert (other.name, other.n_classes) == ("MGB", 3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_records_do_without_a_study_file(hospital: Path, tmp_path: Path) -> None:
    own = hospital / "MGB"
    data = ("--records", own / "medications.csv", "--patients", own / "patients.csv")
    data += ("--preset", "ra")
    study = ("--study", "ra", "--site", "MGB")
    assert "mmlca prep" in refusal("site", "fit", data[1], *study, "-k", "2")
    assert "with --site" in refusal("site", "fit", "--study-file", hospital / "study.toml")
    study = (*study, "--folder", tmp_path)
    mmlca_does("site", "fit", *data, *study, "-k", 2, "--n-init", 4, "--out", tmp_path / "a")
    built = ehr_prep.build_sequences(
        ehr_prep.read_records(data[1], drugs="ra", patients=data[3]), preset="ra"
    )
    built.write(tmp_path / "s.parquet")
    mmlca_does(
        *("site", "fit", tmp_path / "s.parquet", *study, "-k", 2, "--n-init", 4),
        *("--out", tmp_path / "b"),
    )
    one, other = (tmp_path / part / "MGB.model.json" for part in "ab")
    assert one.read_bytes() == other.read_bytes()
    said = mmlca_does("site", "label", one, *data, *study, "--out", tmp_path / "a")
    assert f"{len(built):,} patients labelled by 1 models" in said


def test_other_models_label_tables(tmp_path: Path) -> None:
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(1)
    table = pd.DataFrame(np.repeat([[0.0, 0], [5, 5]], 100, axis=0) + rng.normal(size=(200, 2)))
    table.columns = ["crp", "das28"]
    model = KMeans(2, n_init=3, random_state=1).fit(table.to_numpy())
    study = ("--study", "ra", "--site", "here", "--folder", tmp_path)
    here = mmlca.Hospital(study="ra", site="here", sequences=table, folder=tmp_path)
    (path,) = here.release({"here": model})
    assert here.release({"here": model}) == [path]
    table.rename_axis("id").to_csv(tmp_path / "t.csv")
    mmlca_does("site", "label", path, "--sequences", tmp_path / "t.csv", *study)
    labels = tmp_path / "to_centre" / "here.labels.json"
    mmlca_does("centre", "combine", path, labels, "--study", "ra", "--out", tmp_path)
    mmlca_does(
        *("site", "assign", tmp_path / "ensemble.json", "--sequences", tmp_path / "t.csv"), *study
    )
    placed = pd.read_csv(tmp_path / "clusters.csv")
    assert adjusted_rand_score(placed["cluster"], model.labels_) == 1
    assert (tmp_path / "clusters.csv").stat().st_mode & 0o777 == 0o600
    table[["das28"]].rename_axis("id").to_csv(tmp_path / "short.csv")
    short = refusal("site", "label", path, "--sequences", tmp_path / "short.csv", *study)
    assert "lacks the columns 'crp'" in short


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_small_classes_are_refused_or_done_without(tmp_path: Path) -> None:
    data = sequences_of("west")
    said = {"study": "s", "site": "w", "sequences": data, "starts": 4, "min_count": 100}
    with pytest.raises(InputError, match=r"fewer than 100 patients.*n_classes=3.*fewer_classes"):
        mmlca.Hospital(**said, n_classes=4, folder=tmp_path).fit()
    assert list(tmp_path.iterdir()) == []
    (path,) = mmlca.Hospital(**said, n_classes=4, fewer_classes=True, folder=tmp_path).fit()
    sent = font.read_model(path)
    assert 1 <= sent.n_classes < 4
    sizes = np.array(sent.content["patients"])
    assert sizes.min() >= 100


def with_twelve_states() -> mmlca.Sequences:
    """961 patients of four classes, each of which lives in a few of 12 states."""
    rng, s = np.random.default_rng(0), 12
    initial, transition = np.empty((4, s)), np.empty((4, s, s))
    for k in range(4):
        liked = rng.dirichlet(np.full(s, 0.25))
        initial[k] = 0.9 * liked + 0.1 / s
        for i in range(s):
            stay = rng.uniform(0.6, 0.95)
            moves = 0.9 * rng.dirichlet(np.full(s, 0.25) + 2 * liked) + 0.1 / s
            transition[k, i] = (1 - stay) * moves + stay * np.eye(s)[i]
    classes = mmlca.MarkovParams(rng.dirichlet(np.full(4, 4.0)), initial, transition)
    return mmlca.simulate(classes, 961, 12, seed=rng)[0]


@pytest.mark.filterwarnings("ignore:the best of all maxima")
def test_many_states_do_not_empty_a_class(tmp_path: Path) -> None:
    """Half a patient in each of 156 cells once made a class without patients the best one."""
    said = {"study": "s", "site": "w", "sequences": with_twelve_states(), "starts": 4}
    (path,) = mmlca.Hospital(**said, n_classes=4, folder=tmp_path / "default").fit()
    assert font.read_model(path).n_classes == 4
    hospital = mmlca.Hospital(**said, n_classes=4, folder=tmp_path / "strong", prior=0.5)
    with pytest.warns(UserWarning, match="left with hardly any patients") as raised:
        (path,) = hospital.fit()
    assert font.read_model(path).n_classes == 2
    said_of = [str(w.message) for w in raised if "hardly any" in str(w.message)]
    assert [text[:8] for text in said_of] == ["one of 4", "one of 3"]
    assert "fitted with 3; ask all sites for fewer (n_classes=3), or lower the prior" in said_of[0]


# --- signatures ------------------------------------------------------------------------------


def test_a_signed_round_by_hand(tmp_path: Path) -> None:
    """Keys are made by command and pinned in the study file; forged files are refused."""
    pytest.importorskip("cryptography")
    people = {site: ra_like(150, seed=i) for i, site in enumerate(("A", "B"))}
    text = 'name = "S"\n[model]\nn_init = 4\n[classes]\nnumber = 2\n[pseudo_sites]\nper_site = 0\n'
    for site in (*people, "centre"):
        assert "the public key: " in mmlca_does(
            "centre" if site == "centre" else "site", "keys", "--folder", tmp_path / site
        )
        key = (tmp_path / site / "signing.pub").read_text().strip()
        text += f'[{"centre" if site == "centre" else f"sites.{site}"}]\nkey = "{key}"\n'
        if site != "centre":
            people[site].write(tmp_path / site / "s.csv")
            text += f'sequences = "{site}/s.csv"\n'
    study = tmp_path / "study.toml"
    study.write_text(text)
    of = {s: ("--study-file", study, "--site", s, "--folder", tmp_path / s) for s in people}
    for site in people:
        mmlca_does("site", "fit", *of[site], "--fewer-classes")
    models = [tmp_path / site / "to_all" / f"{site}.model.json" for site in people]
    bare = tmp_path / "bare.json"
    content = json.loads(models[1].read_bytes())
    del content["signature"]
    bare.write_text(json.dumps(content))
    said = refusal("site", "label", models[0], bare, *of["A"])
    assert "bare.json is not signed, but the key of 'B' is known here" in said
    for site in people:
        mmlca_does("site", "label", *models, *of[site])
    labels = [tmp_path / site / "to_centre" / f"{site}.labels.json" for site in people]
    centre = ("--study-file", study, "--out", tmp_path / "out")
    assert "is not signed" in refusal("centre", "combine", models[0], bare, *labels, *centre)
    mmlca_does("centre", "combine", *models, *labels, *centre)
    ensemble = tmp_path / "out" / "ensemble.json"
    assert "the key of 'centre' is known here" in refusal("site", "assign", ensemble, *of["A"])
    sign = ("--signing-key", tmp_path / "centre" / "signing.key")
    mmlca_does("centre", "combine", *models, *labels, *centre, *sign)
    mmlca_does("site", "assign", ensemble, *of["A"])
    other = tmp_path / "keys.toml"
    other.write_text(f'centre = "{"0" * 64}"\n')  # overrides the study file
    assert "but that of 'centre' is 0000" in refusal(
        "site", "assign", ensemble, *of["A"], "--keys", other
    )
    study.write_text(text.replace('key = "', 'key = "x'))
    assert "should be a public key of 64" in refusal("site", "fit", *of["A"])


def test_single_steps_take_round_and_threshold_from_the_study_file(tmp_path: Path) -> None:
    """The centre once read files of round 1 only, and `site assign` could not lower the floor."""
    text = 'name = "S"\n[model]\nn_init = 4\n[classes]\nnumber = 2\n[pseudo_sites]\nper_site = 0\n'
    text += "[centre]\nround = 2\n[privacy]\nmin_count = 5\n"
    for seed, site in enumerate("AB"):
        ra_like(150, seed=seed).write(tmp_path / f"{site}.csv")
        text += f'[sites.{site}]\nsequences = "{site}.csv"\n'
    study = ("--study-file", tmp_path / "study.toml")
    study[1].write_text(text)
    of = {s: (*study, "--site", s, "--folder", tmp_path / s, "--floor", 5) for s in "AB"}
    for site in "AB":
        mmlca_does("site", "fit", *of[site])
    models = [tmp_path / site / "to_all" / f"{site}.model.json" for site in "AB"]
    for site in "AB":
        mmlca_does("site", "label", *models, *of[site])
    labels = [tmp_path / site / "to_centre" / f"{site}.labels.json" for site in "AB"]
    mmlca_does("centre", "combine", *models, *labels, *study, "--out", tmp_path)
    for site in "AB":
        assert "cluster 1: " in mmlca_does("site", "assign", tmp_path / "ensemble.json", *of[site])
    (tmp_path / "study.toml").write_text(text.replace("number = 2", "number = 3"))
    said = refusal("centre", "combine", *models, *labels, *study, "--out", tmp_path)
    assert "was made with another version of the study file: classes.number is 2" in said


def test_a_key_that_is_made_later_signs_what_was_released(tmp_path: Path) -> None:
    """The ledger's bytes stay as they are; the signature is added on the way out."""
    pytest.importorskip("cryptography")
    site = mmlca.Hospital(
        study="s", site="x", sequences=ra_like(100, seed=1), folder=tmp_path, n_classes=1, starts=2
    )
    (path,) = site.fit()
    before = json.loads(path.read_bytes())
    key = font.make_keys(tmp_path)
    (path,) = site.fit()
    after = json.loads(path.read_bytes())
    assert after.pop("signature")["key"] == key
    assert after == before
    font.read_model(path, font.Header(study="s", keys={"x": key}))


@pytest.mark.filterwarnings("ignore:the best of all maxima")
def test_fewer_classes_leave_every_class_enough_patients(tmp_path: Path) -> None:
    """Classes are counted as the file counts them, without what the prior adds to small ones."""
    for seed in range(1, 7):
        home = mmlca.Hospital(
            study="s",
            site="small",
            sequences=ra_like(50, seed=seed),
            folder=tmp_path / str(seed),
            n_classes=4,
            starts=3,
            fewer_classes=True,
        )
        (path,) = home.fit()
        assert 1 <= font.read_model(path).n_classes <= 4
