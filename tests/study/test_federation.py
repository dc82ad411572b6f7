"""Three hospitals in three folders, with nothing but files between them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ra_like import ra_like
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

import ehr_prep
import font
import mmlca
from mmlca import cli

SITES = {"north": 700, "south hospital": 600, "west": 500}
LEAST = 11


def sequences_of(site: str) -> mmlca.Sequences:
    n = SITES[site]
    made = ra_like(n, seed=n)
    ids = [f"PID{n}{i:06d}" for i in range(n)]
    return mmlca.Sequences.from_codes(made.codes, made.states, ids=ids)


def mmlca_does(*arguments: object) -> str:
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def play(root: Path, *, min_count: int, rare: str = "withhold") -> dict[str, str]:
    """The whole round; what each command said."""
    said = {}
    study = ("--study", "ra switching")
    for site in SITES:
        home = root / site
        home.mkdir(parents=True)
        sequences_of(site).write(home / "sequences.csv")
        said[f"fit {site}"] = mmlca_does(
            *("site", "fit", home / "sequences.csv", *study, "--site", site, "-k", 4),
            *("--pseudo-sites", 2, "--starts", 8, "--min-count", min_count),
            *("--out", root / "to_all"),
        )
    models = sorted((root / "to_all").iterdir())
    for site in SITES:
        said[f"label {site}"] = mmlca_does(
            *("site", "label", root / site / "sequences.csv", *models, *study, "--site", site),
            *("--min-count", min_count, "--rare", rare, "--out", root / "to_centre"),
        )
    counts = sorted((root / "to_centre").iterdir())
    said["combine"] = mmlca_does(
        *("centre", "combine", *counts, *models, *study, "-k", 4, "--out", root / "to_sites")
    )
    for site in SITES:
        said[f"assign {site}"] = mmlca_does(
            *("site", "assign", root / "to_sites" / "ensemble.json"),
            *(root / site / "sequences.csv", *study, "--out", root / site / "clusters.csv"),
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
        site: pd.read_csv(root / site / "clusters.csv", index_col="id")["cluster"] for site in SITES
    }


def fitted_in_process() -> dict[str, mmlca.MixtureMarkov]:
    models = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for site in sorted(SITES):
            resamples = ehr_prep.pseudo_sites({site: sequences_of(site)}, 2, 0.8, seed=1)
            for name, data in resamples.items():
                models[name] = mmlca.MixtureMarkov(4, n_init=8, seed=1).fit(data)
    return models


def ensemble_of(models: dict[str, mmlca.MixtureMarkov]) -> tuple[font.Ensemble, dict]:
    labels = {site: font.label(models, sequences_of(site)) for site in sorted(SITES)}
    patterns = font.LabelPatterns.from_labels(labels)
    return font.Ensemble(4, seed=1).fit(models, patterns), labels


def test_three_folders_give_the_in_process_result(open_round: Path, tmp_path: Path) -> None:
    models = fitted_in_process()
    rounded = {
        name: mmlca.MixtureMarkov.from_dict(
            font.write_model(
                None, model, study="x", site=name.partition("/")[0], name=name, min_count=1
            ).content
        )
        for name, model in models.items()
    }
    ensemble, labels = ensemble_of(rounded)
    result = font.read_ensemble(open_round / "to_sites" / "ensemble.json")
    assert result.ensemble.to_dict() == ensemble.to_dict()  # to the last bit
    found = clusters_in(open_round)
    for site, table in labels.items():
        assert found[site].index.tolist() == table.index.tolist()
        assert (found[site].to_numpy() == ensemble.predict(table).to_numpy()).all()
    unrounded, exact = ensemble_of(models)
    for site, table in exact.items():
        assert (found[site].to_numpy() == unrounded.predict(table).to_numpy()).all()


def test_suppression_changes_little(
    open_round: Path, closed_round: tuple[Path, dict[str, str]]
) -> None:
    free, kept = clusters_in(open_round), clusters_in(closed_round[0])
    whole = np.concatenate([free[site] for site in SITES])
    assert adjusted_rand_score(whole, np.concatenate([kept[site] for site in SITES])) > 0.9


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
        for name, count in counts_in(stored):
            assert count == 0 or count >= LEAST, (path.name, name, count)
    for text in said.values():
        assert "PID" not in text


def counts_in(stored: dict) -> list[tuple[str, float]]:
    """Every number of patients in a file."""
    payload = stored["payload"]
    if stored["kind"] == "model":
        model = payload["model"]
        return [("class", w * model["n_sequences"]) for w in model["params"]["weights"]]
    if stored["kind"] == "labels":
        return [("count", c) for c in payload["counts"]] + [("withheld", payload["n_withheld"])]
    part = payload["ensemble"]
    cells = [("size", c) for row in part["cluster_sizes"] for c in row]
    inner = [counts_in({"kind": "model", "payload": model}) for model in payload["models"]]
    return [*cells, ("withheld", part["n_withheld"]), *(cell for row in inner for cell in row)]


def test_a_few_withheld_patients_are_not_counted_exactly(tmp_path: Path) -> None:
    truth = mmlca.MarkovParams([1.0], [[0.5, 0.5]], [[[0.9, 0.1], [0.1, 0.9]]])
    data, _ = mmlca.simulate(truth, 300, 8, states=["A", "B"], seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mmlca.MixtureMarkov(2, n_init=4, seed=1).fit(data)
    sent = font.write_model(tmp_path / "m.json", model, study="s", site="x")
    table = pd.DataFrame({"x": [0] * 200 + [1] * 3})
    patterns = font.LabelPatterns.from_labels({"x": table})
    out = font.write_labels(tmp_path / "l.json", patterns, {"x": sent}, study="s", rare="withhold")
    assert out.n_rare == 3
    assert json.loads((tmp_path / "l.json").read_text())["payload"]["n_withheld"] == LEAST
    few = font.LabelPatterns.from_labels({"x": table[200:]})
    with pytest.raises(ValueError, match="nothing to send"):
        font.write_labels(tmp_path / "none.json", few, {"x": sent}, study="s")
    assert not (tmp_path / "none.json").exists()


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
        ("exchange check {root}/north/sequences.csv", "is not JSON"),
        ("centre combine {models} --study 'ra switching'", "no labels file"),
        ("centre combine {models} --study other", "belongs to the study"),
        ("site fit --study s --site w -k 2", "there is nothing to read"),
        ("site fit {root}/west/sequences.csv --study s -k 2", "give it with --site"),
        ("site fit {root}/west/sequences.csv --study s --site w", "number of classes is not said"),
        ("site label {models} --study none.toml --site w", "there is no study file none.toml"),
        (
            "site label {root}/west/sequences.csv {root}/west/clusters.csv --study s --site w",
            "found 2 files of sequences",
        ),
        (
            "site label {root}/north/sequences.csv {models} {models} --study 'ra switching' "
            "--site north",
            "comes twice",
        ),
        ("site fit {root}/west/sequences.csv --study s --site ../up -k 2", "the site '../up'"),
        (
            "site fit {root}/west/sequences.csv --study s --site w -k 2 --starts 2 --min-count 400",
            "fewer than 400; fit fewer classes",
        ),
    ],
)
def test_a_refusal_is_one_sentence_and_writes_nothing(
    closed_round: tuple[Path, dict[str, str]], tmp_path: Path, arguments: str, message: str
) -> None:
    root, _ = closed_round
    models = " ".join(str(path) for path in sorted((root / "to_all").iterdir()))
    filled = shlex.split(arguments.format(root=root, models=models))
    done = subprocess.run(
        [sys.executable, "-m", "mmlca.cli", *filled],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(mmlca.__file__).parents[1]), "PATH": ""},
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


STUDY_FILE = """
name = "RA, two hospitals"
seed = 3
[sites.MGB]
records = "MGB/medications.csv"
patients = "MGB/patients.csv"
[sites.VA]
records = "VA/medications.csv"
[rules]
max_windows = 8
[classes]
number = 2
[pseudo_sites]
per_site = 2
[model]
starts = 4
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
    study = ("--study", hospital / "study.toml", "--site", "MGB")
    said = mmlca_does("site", "fit", *study, "--out", tmp_path / "to_all")
    assert "2 models with 2 classes" in said
    files = font.read_models((tmp_path / "to_all").iterdir(), study="RA, two hospitals")
    assert list(files) == ["MGB/1", "MGB/2"]
    assert {file.payload["min_count"] for file in files.values()} == {12}
    records = ehr_prep.read_records(
        hospital / "MGB" / "medications.csv", patients=hospital / "MGB" / "patients.csv"
    )
    data = ehr_prep.build_sequences(records, first_on_or_after="2008-01-01", max_windows=8)
    for name, part in ehr_prep.pseudo_sites({"MGB": data}, 2, 0.8, seed=3).items():
        by_hand = mmlca.MixtureMarkov(2, n_init=4, seed=3).fit(part)
        initial = np.array(files[name].content["params"]["initial"])
        assert initial == pytest.approx(by_hand.params_.initial, abs=2e-6)
        assert files[name].content["loglik"] == pytest.approx(by_hand.loglik_, abs=1e-6)
    models = sorted((tmp_path / "to_all").iterdir())
    mmlca_does("site", "label", *models, *study, "--out", tmp_path / "to_centre")
    counts = (tmp_path / "to_centre").iterdir()
    said = mmlca_does(
        *("centre", "combine", *models, *counts, "--study", hospital / "study.toml"),
        *("--out", tmp_path / "to_sites"),
    )
    assert "| VA   | models | no model came |" in said
    assert "seed 3" in said
    ensemble = tmp_path / "to_sites" / "ensemble.json"
    mmlca_does("site", "assign", ensemble, *study, "--out", tmp_path / "clusters.csv")
    assert len(pd.read_csv(tmp_path / "clusters.csv")) == len(data)
    mmlca_does(
        *("site", "fit", *study, "-k", 3, "--pseudo-sites", 0, "--seed", 1),
        *("--out", tmp_path / "other"),
    )
    (other,) = font.read_models((tmp_path / "other").iterdir()).values()
    assert (other.name, other.n_classes) == ("MGB", 3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_records_do_without_a_study_file(hospital: Path, tmp_path: Path) -> None:
    own = hospital / "MGB"
    data = ("--records", own / "medications.csv", "--patients", own / "patients.csv")
    study = ("--study", "ra", "--site", "MGB")
    plain = ["site", "fit", str(data[1]), *study, "-k", "2"]
    assert "with --records" in str(CliRunner().invoke(cli.app, plain).exception)
    both = ["site", "fit", "--study", str(hospital / "study.toml")]
    assert "say which one this is" in str(CliRunner().invoke(cli.app, both).exception)
    mmlca_does("site", "fit", *data, *study, "-k", 2, "--starts", 4, "--out", tmp_path / "a")
    built = ehr_prep.build_sequences(ehr_prep.read_records(data[1], patients=data[3]))
    built.write(tmp_path / "s.parquet")
    mmlca_does(
        *("site", "fit", tmp_path / "s.parquet", *study, "-k", 2, "--starts", 4),
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
    path, study = tmp_path / "m.json", ("--study", "ra", "--site", "here")
    names, support = list(table.columns), np.bincount(model.labels_)
    font.write_model(path, model, study="ra", site="here", support=support, variables=names)
    table.rename_axis("id").to_csv(tmp_path / "t.csv")
    mmlca_does("site", "label", tmp_path / "t.csv", path, *study, "--out", tmp_path)
    mmlca_does(
        *("centre", "combine", path, tmp_path / "here.labels.json", "--study", "ra"),
        *("--out", tmp_path),
    )
    mmlca_does(
        *("site", "assign", tmp_path / "ensemble.json", tmp_path / "t.csv", *study),
        *("--out", tmp_path / "c.csv"),
    )
    found = pd.read_csv(tmp_path / "c.csv")
    assert adjusted_rand_score(found["cluster"], model.labels_) == 1
    table[["das28"]].rename_axis("id").to_csv(tmp_path / "short.csv")
    done = CliRunner().invoke(
        cli.app, ["site", "label", str(tmp_path / "short.csv"), str(path), *study]
    )
    assert "lacks the columns 'crp'" in str(done.exception)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_small_classes_are_refused_or_done_without(tmp_path: Path) -> None:
    data = sequences_of("west")
    said = {"study": "s", "site": "w", "sequences": data, "starts": 4, "min_count": 100}
    with pytest.raises(ValueError, match="fewer than 100; fit fewer classes"):
        mmlca.Hospital(**said, n_classes=4, folder=tmp_path).fit()
    assert list(tmp_path.iterdir()) == []
    (path,) = mmlca.Hospital(**said, n_classes=4, fewer_classes=True, folder=tmp_path).fit()
    sent = font.read_model(path)
    assert 1 <= sent.n_classes < 4
    (alone,) = mmlca.Hospital(**said, n_classes=sent.n_classes, folder=tmp_path / "2").fit()
    assert font.read_model(alone).fingerprint == sent.fingerprint


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_counts_leave_once(tmp_path: Path) -> None:
    said = {"study": "s", "sequences": sequences_of("west"), "starts": 4, "n_classes": 2}
    one = mmlca.Hospital(**said, site="one", folder=tmp_path / "one")
    other = mmlca.Hospital(**said, site="other", folder=tmp_path / "other", seed=2)
    models = [*one.fit(), *other.fit()]
    path = one.label(models)
    sent = path.read_bytes()
    assert one.label(models[::-1]) == path  # the same again is the same
    assert path.read_bytes() == sent
    with pytest.raises(ValueError, match="delete it to let another one leave"):
        one.label(models[:1])
    assert path.read_bytes() == sent
    path.unlink()
    assert one.label(models[:1]) == path
