"""Examples in docstrings, README and scripts run and give what they show."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from glob import glob
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from commands import mmlca_does

import ehr_prep
import mmlca
from mmlca.study.study_file import read_study

ROOT = Path(__file__).parents[1]
PACKAGES = ("mmlca", "font", "ehr_prep")
MODULES = [
    info.name
    for package in PACKAGES
    for info in pkgutil.walk_packages(
        importlib.import_module(package).__path__, prefix=f"{package}."
    )
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name == "font.exchange.flower":
        pytest.importorskip("flwr", reason="Flower is not installed (extra federated)")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0


def blocks(page: Path, *languages: str) -> list[str]:
    """The text of a page's code blocks in any of these languages, in order."""
    kinds = "|".join(re.escape(language) for language in languages)
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```(?:{kinds})[^\n]*\n(.*?)^```", text, flags=re.M | re.S)


def commands(page: Path) -> list[list[str]]:
    """The words of every `mmlca` command in a page's shell blocks."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mmlca ")]


README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
each_page = pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)


def test_the_readme_shows_the_true_output(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks(README, "python")[0], {})
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()] == [
        line.split() for line in blocks(README, "text")[0].splitlines()
    ]


@each_page
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    assert page != README or len(commands(page)) > 8
    for first, second, *more in commands(page):
        group = first in ("study", "site", "centre", "network", "exchange")
        offered = mmlca_does(first, *([second] if group else []), "--help")
        options = [word for word in (second, *more) if word.startswith("-")]
        assert all(re.search(rf"^  .*{option}\b", offered, flags=re.M) for option in options), first


@each_page
def test_every_code_block_of_the_documentation_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, as a reader would; README's second block reads the records of two sites."""
    monkeypatch.chdir(tmp_path)
    code = blocks(page, "python", "{code-cell}")
    assert code or not page.read_text(encoding="utf-8").startswith("---")  # a page with cells
    if page == README:
        for site, cohort in ehr_prep.ra_cohort(seed=1, scale=0.1).items():
            (tmp_path / site).mkdir()
            cohort.records.to_csv(tmp_path / site / "medications.csv", index=False)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        if page == README:  # so few patients that searches disagree
            warnings.filterwarnings("ignore", "the best of all maxima was reached", UserWarning)
        for block in code:
            exec(compile(block, page.name, "exec"), names)
    plt.close("all")


@each_page
def test_settings_that_are_shown_are_those_of_a_study_file(page: Path, tmp_path: Path) -> None:
    for name in ("records.csv", "tnfi.json"):
        (tmp_path / name).touch()
    for block in blocks(page, "toml"):
        site = "" if "[sites." in block else '[sites.MGB]\nrecords = "records.csv"\n'
        path = tmp_path / "study.toml"
        path.write_text(f'name = "Shown"\n{site}{block}', encoding="utf-8")
        assert read_study(path).sites


def run(words: list[str]) -> str:
    """What a command prints, with patterns of files expanded as a shell does, and quick fits."""
    arguments = [file for word in words for file in sorted(glob(word)) or [word]]
    if words[0] in ("fit", "select"):
        fewer = {"500": "2", "1-6": "2", "1-8": "2"}  # resamples, classes
        arguments = [*(fewer.get(word, word) for word in arguments), "--n-init", "2"]
        arguments += ["--simulations", "3"] if "--blrt" in words else []
    return mmlca_does(*arguments)


def other_hospitals(folder: Path, sequences: mmlca.Sequences) -> dict[str, mmlca.Hospital]:
    """Two hospitals that take part in the study of the page, each with half of these patients."""
    halves = {"VA": sequences[::2], "BMC": sequences[1::2]}
    return {
        site: mmlca.Hospital(
            study="ra", site=site, sequences=data, folder=folder / site, n_classes=4
        )
        for site, data in halves.items()
    }


def deliver(folder: Path, others: dict[str, mmlca.Hospital]) -> None:
    """The e-mail between MGB, whose commands the page shows, the other hospitals and the centre."""
    inboxes = {"model": "models", "sums-0": "sums", "sums-1": "sums"}
    for path in [*folder.glob("to_*/*.json"), *folder.glob("*/to_*/*.json")]:
        kind = path.name.split(".")[1]
        inbox = folder / inboxes.get(kind, "." if kind == "json" else kind)
        inbox.mkdir(exist_ok=True)
        shutil.copy(path, inbox)
    for site, hospital in others.items():
        answers = {path.name for path in (folder / site).glob("to_centre/*")}
        if len(list(folder.glob("models/*"))) == 3 and f"{site}.labels.json" not in answers:
            hospital.label(sorted(folder.glob("models/*")))
        for step, file in enumerate(("ensemble.json", "shared-0.json")):
            if (folder / file).exists() and f"{site}.sums-{step}.json" not in answers:
                hospital.refine(folder / file)


def test_the_commands_between_hospitals_work_as_the_page_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cohort = ehr_prep.ra_cohort(seed=1, scale=0.3)
    cohort["MGB"].records.to_csv("mgb.csv", index=False)
    records = ehr_prep.read_records(cohort["VA"].records, drugs=ehr_prep.RA_DRUGS)
    others = other_hospitals(tmp_path, ehr_prep.build_sequences(records, preset="ra"))
    for hospital in others.values():
        hospital.fit()
    shown = [words for words in commands(ROOT / "docs/single_steps.md") if words[0] != "study"]
    assert [words[:2] for words in shown[:3]] == [
        ["prep", "mgb.csv"],
        ["site", "fit"],
        ["exchange", "check"],
    ]
    for words in shown:
        for _ in range(2):  # what arrives, and what it makes the others send
            deliver(tmp_path, others)
        run(words)
    assert list(pd.read_csv("clusters.csv").columns[:3]) == ["id", "cluster", "probability"]


QUICKER = {
    "n_init = 40": "n_init = 4",
    "refine = 1": "refine = 0",
    "candidates = [1, 2, 3, 4, 5, 6, 7, 8]": "candidates = [3]",
    "standard_errors = true": "standard_errors = false",
    "diagnostics = true": "diagnostics = false",
    "simulations = 199": "simulations = 19",
    "bootstrap = 1000": "bootstrap = 20",
    "figures = true": "figures = false",
}
"""Other settings of a study whose report is tested elsewhere."""


def test_the_turns_between_hospitals_work_as_the_page_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MGB follows the page in one folder, the centre in another; two more hospitals beside it."""
    cohort = ehr_prep.ra_cohort(seed=1, scale=0.06)
    homes = {name: tmp_path / name for name in ("MGB", "VA", "BMC", "centre")}
    for name, home in homes.items():
        home.mkdir()
        source = cohort["VA" if name == "VA" else "MGB"].records
        source.to_csv(home / f"{name.lower()}.csv", index=False)
    shown = commands(ROOT / "docs/other_hospitals.md")
    (init,) = (words for words in shown if "--network" in words and "--site" in words)
    site_run, approve = [words for words in shown if words[:2] == ["site", "run"]]
    (centre_run,) = (words for words in shown if words[:2] == ["centre", "run"])
    (status,) = (words for words in shown if words[:2] == ["network", "status"])
    monkeypatch.chdir(homes["MGB"])
    mmlca_does(*init)
    study = Path("study.toml")
    text = study.read_text()
    for was, quicker in QUICKER.items():
        assert was in text
        text = text.replace(was, quicker)
    study.write_text(text)
    for name in ("VA", "BMC", "centre"):
        shutil.copy(study, homes[name])
        monkeypatch.chdir(homes[name])
        if name != "centre":
            records = f"{name}={name.lower()}.csv"
            mmlca_does("study", "init", "study.toml", "--network", "--records", records)
    for turn in range(4):
        for name in ("MGB", "VA", "BMC"):
            monkeypatch.chdir(homes[name])
            said = mmlca_does(*(site_run if turn else [*approve[:-1], "--approved-by", "me"]))
            assert "Next: send to the centre" in said
            shutil.copytree("outbox", homes["centre"] / "inbox", dirs_exist_ok=True)
        monkeypatch.chdir(homes["centre"])
        said = mmlca_does(*centre_run)
        assert ("The round is over" in said) == (turn == 3)
        assert "came" in mmlca_does(*status)
        for name in ("MGB", "VA", "BMC"):
            shutil.copytree("outbox", homes[name] / "inbox", dirs_exist_ok=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name, all of them made of one small cohort."""
    folder = tmp_path_factory.mktemp("files")
    cohort = ehr_prep.ra_cohort(seed=1, scale=0.05)
    for name in ("medications.csv", "mgb.csv"):
        cohort["MGB"].records.to_csv(folder / name, index=False)
    cohort["MGB"].patients.to_csv(folder / "patients.csv", index=False)
    cohort["VA"].records.to_excel(folder / "va.xlsx", index=False)
    ehr_prep.synthetic.write_omop(cohort["MGB"], folder / "cdm")
    (folder / "map.csv").write_text("name,class\nadalimumab,TNFi\nrituximab,anti-CD20\n")
    records = ehr_prep.read_records(cohort["MGB"].records, drugs=ehr_prep.RA_DRUGS)
    sequences = ehr_prep.build_sequences(records, preset="ra")
    sequences.write(folder / "sequences.parquet")
    sequences.to_frame().to_csv(folder / "from_r.csv")
    people = cohort["MGB"].patients[["patient_id", "sex"]].set_axis(["id", "sex"], axis=1)
    people.to_csv(folder / "covariates.csv", index=False)
    return folder


ALONE = ("first_study", "choosing_states", "warehouses", "inference", "from_r")
LONG = ("run", "sensitivity")  # of a study; run in the tests of studies


@pytest.mark.parametrize(
    "page",
    [README, *(ROOT / "docs" / f"{name}.md" for name in ALONE)],
    ids=lambda page: page.name,
)
def test_the_commands_of_one_hospital_work_as_the_page_shows_them(
    page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "files"))
    shown = [
        words
        for words in commands(page)
        if words[0] in ("prep", "fit", "select", "study") and words[1] not in LONG
    ]
    assert shown
    for words in shown:
        Path("study.toml").unlink(missing_ok=True)
        assert "Wrote" in run(words)


NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_notebook_runs_and_shows_its_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in code:
        exec(compile("".join(cell["source"]), path.name, "exec"), names)
    plt.close("all")
    shown = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.get("name") == "stderr" for output in shown)


def test_the_documentation_lists_all_its_pages() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"<([a-z_/]+)>$", index, flags=re.M))
    assert {page.stem for page in PAGES if page.stem != "index"} <= listed
    assert len(NOTEBOOKS) >= 2
    assert {f"notebooks/{path.stem}" for path in NOTEBOOKS} <= listed


ELSEWHERE = (
    "ra_study.py",
    "own_local_model.py",
    "which_method.py",
    "number_of_classes.py",
)  # run where their numbers are tested
SLOW = ("gallery.py", "simulation_study.py")
EXAMPLES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.name not in ELSEWHERE
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
