"""What a step of a study depends on: everything, unless it says otherwise."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel

from mmlca.study import read_study, run_study
from mmlca.study.cache import NO_RESULT, settings_key
from mmlca.study.run import STEPS
from mmlca.study.settings import Study
from mmlca.study.study_file import input_files

IRRELEVANT = {step.name: step.irrelevant for step in STEPS if step.irrelevant}
STUDY: dict[str, Any] = {
    "name": "Keys",
    "sites": {"A": {"records": "a.csv"}},
    "concepts": {"TNFi": [1, 2]},
    "published": {"source": "x"},
}


def leaves(part: BaseModel, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The place of every setting, those of sites included."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if name == "sites":
            for site, own in value.items():
                yield from leaves(own, (*place, name, site))
        elif isinstance(value, BaseModel):
            yield from leaves(value, (*place, name))
        else:
            yield (*place, name)


def other(name: str, value: Any) -> Any:
    """Another value of about the same kind."""
    if name in ("omop", "warehouse"):
        return "parquet:folder"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return (*value, 7)
    if isinstance(value, dict):
        return {**value, "another": {"patient": "x"}}
    return f"{value}x"


def changed(part: Any, place: tuple[str, ...]) -> Any:
    """A copy of a study with another value at one place, whatever is allowed there."""
    name, *rest = place
    if isinstance(part, dict):
        return {**part, name: changed(part[name], tuple(rest))}
    value = getattr(part, name)
    new = changed(value, tuple(rest)) if rest else other(name, value)
    return part.model_copy(update={name: new})


def same_key(study: Study, place: tuple[str, ...], *irrelevant: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # values of other types
        return settings_key(changed(study, place), *irrelevant) == settings_key(study, *irrelevant)


def test_every_setting_is_in_the_key_unless_it_is_declared_irrelevant() -> None:
    """Keys once listed what counts, without [patients], [observation], [labs] and [concepts]."""
    study = Study.model_validate(STUDY)
    places = list(leaves(study))
    assert len(places) > 120
    for step in ("read", "describe", *IRRELEVANT):
        irrelevant = IRRELEVANT.get(step, ())
        unchanged = {place[0] for place in places if same_key(study, place, *irrelevant)}
        assert unchanged == {*NO_RESULT, *irrelevant}, step


def test_what_fits_do_not_depend_on() -> None:
    """A longer list needs a reason; outputs are here, so that another dpi fits nothing again."""
    assert set(NO_RESULT) == {"n_jobs", "sensitivity", "centre"}
    after = {"name", "synthetic", "labs", "ensemble", "inference", "covariates", "outcomes"}
    after |= {"strata", "outputs", "table_one", "published"}
    assert {step: set(sections) for step, sections in IRRELEVANT.items()} == {
        "choose": after,  # its criteria count the transitions of privacy.min_count patients
        "fit": {*after, "classes"},
        "suggest": {*after, "privacy"} - {"ensemble"},
    }


def test_files_of_concepts_and_conditions_are_inputs(tmp_path: Path) -> None:
    """Their content counts, not only their names."""
    site = {"omop": "parquet:omop", "condition": "ra.json"}
    study = Study.model_validate(
        {"name": "x", "sites": {"A": site}, "concepts": {"TNFi": [1, "L04*", "tnfi.json"]}}
    )
    assert input_files(study, tmp_path) == {
        "A.condition": tmp_path / "ra.json",
        "concepts.TNFi (tnfi.json)": tmp_path / "tnfi.json",
    }


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """One site whose tables have two columns for everything."""
    rng, n = np.random.default_rng(1), 60
    who = np.repeat(np.arange(n), 8)
    day = np.datetime64("2010-01-01") + rng.integers(0, 1000, len(who))
    taken = rng.choice(["Humira", "Orencia"], (n, 1)).repeat(8, axis=1).ravel()
    pd.DataFrame({"id": who, "date": day, "later": day + 100, "drug": taken}).to_csv(
        tmp_path / "records.csv", index=False
    )
    day = np.datetime64("2012-01-01") + rng.integers(0, 300, n)
    people = {"id": np.arange(n), "last_visit": day, "registry_end": day + 200}
    pd.DataFrame({**people, "sex": "F"}).to_csv(tmp_path / "patients.csv", index=False)
    periods = {"id": np.arange(n), "start": "2009-01-01", "end": day, "other": day - 300}
    pd.DataFrame(periods).to_csv(tmp_path / "periods.csv", index=False)
    path = tmp_path / "study.toml"
    path.write_text(
        'name = "Keys"\n[sites.A]\nrecords = "records.csv"\ndrugs = "ra"\n'
        'patients = "patients.csv"\n'
        "[classes]\nnumber = 2\n[model]\nn_init = 2\n[outputs]\nfigures = false\n"
        "[inference]\nstandard_errors = false\ndiagnostics = false\n[privacy]\nmin_count = 1\n"
    )
    return path


def tables(folder: Path) -> dict[str, str]:
    """Every result of a study as text, but for times."""
    kept = (".csv", ".json", ".md", ".tex")
    files = [f for f in sorted(folder.rglob("*")) if f.suffix in kept]
    return {f.name: f.read_text() for f in files if f.name != "provenance.json"}


@pytest.mark.parametrize(
    "change",
    [
        '[patients.columns]\nfollow_up_end = "registry_end"\n',
        pytest.param('[records.columns]\ndate = "later"\n', marks=pytest.mark.slow),
        pytest.param("[rules]\nmonths = 6\n", marks=pytest.mark.slow),
        pytest.param("[ensemble]\nrefine = 0\n", marks=pytest.mark.slow),
        pytest.param("[outputs]\ntop = 3\nfigures = false\n", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_a_fresh_one(study_file: Path, tmp_path: Path, change: str) -> None:
    """It once kept the models of the old columns beside the new ones' settings."""
    run_study(read_study(study_file), tmp_path / "resumed")
    text = study_file.read_text()
    if change.startswith("[outputs]"):
        text = text.replace("[outputs]\nfigures = false\n", "")
    study_file.write_text(text + change)
    study = read_study(study_file)
    run_study(study, tmp_path / "resumed")
    run_study(study, tmp_path / "fresh")
    resumed, fresh = tables(tmp_path / "resumed"), tables(tmp_path / "fresh")
    assert resumed.keys() == fresh.keys()
    assert [name for name in fresh if fresh[name] != resumed[name]] == []
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "resumed").rglob("*") if p.is_file()}
    run_study(study, tmp_path / "resumed")  # nothing changed, nothing is done
    touched = {p.name for p, t in before.items() if p.stat().st_mtime_ns != t}
    assert touched == {"provenance.json", "run.log"}


@pytest.mark.slow
def test_columns_of_observation_periods_count(study_file: Path, tmp_path: Path) -> None:
    text = study_file.read_text().replace("[classes]", 'observation = "periods.csv"\n[classes]')
    likelihoods = []
    for more in ("", '[observation.columns]\nobservation_end = "other"\n'):
        study_file.write_text(text + more)
        run_study(read_study(study_file), tmp_path / "resumed")
        model = json.loads((tmp_path / "resumed/models/A.json").read_text())
        likelihoods.append(model["loglik"])
    run_study(read_study(study_file), tmp_path / "fresh")
    model = json.loads((tmp_path / "fresh/models/A.json").read_text())
    assert likelihoods[1] == model["loglik"] != likelihoods[0]


@pytest.mark.slow
def test_another_picture_fits_nothing_again(study_file: Path, tmp_path: Path) -> None:
    """The number of classes is chosen here; figures and their resolution come after it."""
    text = study_file.read_text().replace("number = 2", "candidates = [1, 2]")
    study_file.write_text(text)
    run_study(read_study(study_file), tmp_path / "out")
    models = list((tmp_path / "out/models").iterdir())
    before = {p: p.stat().st_mtime_ns for p in models}
    assert {p.name for p in models} == {"selection.json", "A.json"}
    told: list[str] = []
    study_file.write_text(text.replace("figures = false", "figures = true\ndpi = 50"))
    study = read_study(study_file)
    run_study(study, tmp_path / "out", progress=lambda text, share: told.append(text))
    assert (tmp_path / "out/models/alternatives_A.png").exists()
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())
    assert not [text for text in told if text.startswith(("Fitting: ", "Comparing models"))]


def test_more_numbers_to_compare_are_drawn_again(study_file: Path, tmp_path: Path) -> None:
    pictures = []
    text = study_file.read_text().replace("figures = false", "dpi = 50")
    for numbers in ("[1, 2]", "[1, 2, 3]"):
        study_file.write_text(text.replace("number = 2", f"candidates = {numbers}"))
        run_study(read_study(study_file), tmp_path / "out")
        pictures.append((tmp_path / "out/figures/selection.png").read_bytes())
    assert pictures[0] != pictures[1]
