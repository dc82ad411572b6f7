"""A run that goes on after any setting has changed equals a fresh one."""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel

from mmlca.study import read_study, run_study
from mmlca.study.settings import Study
from mmlca.study.study_file import to_toml

BASE: dict[str, Any] = {
    "name": "Resumed",
    "sites.A.records": "a.csv",
    "sites.A.patients": "people.csv",
    "sites.A.labs": "labs.csv",
    "sites.B.records": "b.csv",
    "sites.B.patients": "people.csv",
    "records.drugs": "ra",
    "records.default_supply": 30,
    "classes.number": 2,
    "pseudo_sites.per_site": 1,
    "model.n_init": 2,
    "outputs.figures": False,
    "outputs.bootstrap": 0,
    "inference.standard_errors": False,
    "inference.diagnostics": False,
    "inference.second_opinion": False,
    "inference.simulations": 19,
    "privacy.min_count": 1,  # otherwise a run warns of the earlier one in its folder
}
COLUMNS = {
    "records": {"patient": "who", "date": "later", "drug": "second", "end": "until", "supply": "n"},
    "patients": {
        "patient": "who",
        "follow_up_end": "later",
        "birth_date": "born",
        "death_date": "died",
    },
    "observation": {"patient": "who", "observation_start": "since", "observation_end": "until"},
    "labs": {"patient": "who", "date": "later", "value": "second", "test": "name", "unit": "sort"},
}
READING: dict[str, Any] = {
    "drugs": "drugs.csv",
    "drug_names": "names.csv",
    "date_format": "%Y-%d-%m",
    "encoding": "cp1252",
    "delimiter": ",",
    "decimal": ".",
    "duplicates": "keep",
    "latest": dt.date(2011, 6, 1),
    "default_supply": 40,
    "strict": True,
}
OTHER: dict[str, Any] = {
    **{f"{place}.{name}": v for place in ("records", "sites.A") for name, v in READING.items()},
    **{
        f"{place}.{n}": v for place in ("records", "sites.A") for n, v in COLUMNS["records"].items()
    },
    **{f"{t}.columns.{role}": c for t, roles in COLUMNS.items() for role, c in roles.items()},
    **{f"sites.A.{t}_columns.{role}": c for t, rs in COLUMNS.items() for role, c in rs.items()},
    "name": "Another",
    "seed": 2,
    "n_jobs": 1,
    "synthetic": True,
    "sites.A.records": "b.csv",
    "sites.A.sequences": "sequences2.csv",
    "sites.A.columns": "1:3",
    "sites.A.patients": "people2.csv",
    "sites.A.labs": "labs2.csv",
    "sites.A.observation": "periods.csv",
    "sites.A.truth": "truth.csv",
    "sites.A.key": "a" * 64,
    "sites.A.where": {"place": "here"},
    "sites.A.file_columns": {"a.csv": {"date": "later", "patient": "id", "drug": "drug"}},
    "rules.first_on_or_after": dt.date(2010, 1, 20),
    "rules.washout_days": 30,
    "rules.min_history_days": 400,
    "rules.min_follow_up_days": 400,
    "rules.min_age": 45,
    "rules.max_age": 60,
    "rules.follow_up": "last_record",
    "rules.data_cut": dt.date(2011, 9, 1),
    "rules.death": "state",
    "rules.months": 6,
    "rules.days": 60,
    "rules.max_windows": 5,
    "rules.states": "combinations",
    "rules.by": "days",
    "rules.ties": "latest",
    "rules.gap_days": 5,
    "rules.combination_days": 5,
    "rules.max_combinations": 1,
    "rules.min_combination_patients": 1,
    "rules.combinations": ("CTLA4-Ig+TNFi",),
    "rules.impute": "carry_forward",
    "rules.max_carry": 1,
    "rules.off_treatment": "nothing",
    "rules.state_order": ("IL6R",),
    "classes.number": 3,
    "classes.candidates": (1, 2),
    "classes.criterion": "aic",
    "classes.count": "timepoints",
    "classes.stability": False,
    "pseudo_sites.per_site": 2,
    "pseudo_sites.fraction": 0.6,
    "model.n_init": 3,
    "model.search": "thorough",
    "model.prior": 0.1,
    "model.stays": (3,),
    "model.periods": (3,),
    "model.shared": "destinations",
    "model.form": "given",
    "ensemble.weights": "equal",
    "ensemble.distance": "hellinger",
    "ensemble.method": "average",
    "ensemble.refine": 2,
    "inference.standard_errors": True,
    "inference.diagnostics": True,
    "inference.second_opinion": True,
    "inference.simulations": 39,
    "inference.bootstrap": 9,
    "inference.blrt": 3,
    "inference.choices": 2,
    "covariates.columns": ("sex",),
    "covariates.method": "one-step",
    "covariates.correction": "BCH",
    "outcomes.columns": ("sex",),
    "outcomes.correction": "ML",
    "outcomes.event": "event",
    "outcomes.competing": "rival",
    "outcomes.landmark": 5,
    "strata.columns": ("sex", "index_year"),
    "strata.cut_points": {"age": (45,)},
    "outputs.figures": True,
    "outputs.dpi": 60,
    "outputs.formats": ("svg",),
    "outputs.top": 3,
    "outputs.bootstrap": 5,
    "outputs.time": "Quarter",
    "outputs.names": ("one", "two"),
    "outputs.colours": {"TNFi": "#000000"},
    "outputs.lab": "CRP",
    "outputs.lab_label": "A lab",
    "outputs.lab_bands": "simultaneous",
    "table_one.variables": ("sex",),
    "table_one.columns": ("p",),
    "table_one.continuous": "median",
    "privacy.min_count": 5,
    "privacy.release": "public",
    "centre.key": "b" * 64,
    "centre.round": 2,
    "centre.secure": True,
    "published.source": "a paper",
    "published.transition_ensemble": 0.4,
    "published.transition_local": 0.4,
    "published.initial_ensemble": 0.4,
    "published.initial_local": 0.4,
}
NO_SUCH = object()
EVENT = {"outcomes.event": "event", "rules.max_windows": 4}
COMBINATIONS = {"rules.states": "combinations"}
COVARIATES = {"covariates.columns": ("sex",)}
GIVEN = {"model.form": "given", "model.stays": (2,)}
CHOSEN = {"classes.number": "vote", "classes.candidates": (2, 3)}
SEQUENCES: dict[str, Any] = {"sites.A.labs": NO_SUCH}
SEQUENCES |= {f"sites.{site}.records": NO_SUCH for site in "AB"}
SEQUENCES |= {f"sites.{site}.sequences": "sequences.csv" for site in "AB"}
PERIODS = {f"sites.{site}.observation": "periods.csv" for site in "AB"}
PERIODS |= {"rules.follow_up": "observation"}
CLEAN = {"sites.A.records": "clean.csv", "sites.B.records": "clean.csv"}
BOTH: dict[str, dict[str, Any]] = {
    "records.strict": CLEAN,
    "sites.A.strict": CLEAN,
    "sites.A.sequences": SEQUENCES,
    "sites.A.columns": SEQUENCES,
    "rules.min_history_days": PERIODS,
    "rules.max_carry": {"rules.impute": "carry_forward_max"},
    "rules.gap_days": COMBINATIONS,
    "rules.combination_days": COMBINATIONS,
    "rules.max_combinations": COMBINATIONS,
    "rules.min_combination_patients": COMBINATIONS,
    "rules.combinations": COMBINATIONS,
    "model.stays": GIVEN,
    "model.periods": GIVEN,
    "model.shared": {**GIVEN, "model.periods": (3,)},
    "classes.number": CHOSEN,
    "classes.candidates": CHOSEN,
    "classes.criterion": CHOSEN,
    "classes.count": CHOSEN,
    "classes.stability": CHOSEN,
    "inference.simulations": {"inference.diagnostics": True},
    "covariates.method": COVARIATES,
    "covariates.correction": COVARIATES,
    "outcomes.correction": {"outcomes.columns": ("sex",)},
    "outcomes.event": {"rules.max_windows": 4},
    "outcomes.competing": EVENT,
    "outcomes.landmark": EVENT,
    "strata.cut_points": {"strata.columns": ("age",)},
    "outputs.dpi": {"outputs.figures": True, "outputs.dpi": 50},
    "outputs.formats": {"outputs.figures": True, "outputs.dpi": 50},
    "outputs.figures": {"outputs.dpi": 50},
    "sites.A.labs_columns.test": {"outputs.lab": "CRP"},
    "labs.columns.test": {"outputs.lab": "CRP"},
    **{f"observation.columns.{role}": PERIODS for role in COLUMNS["observation"]},
    **{f"sites.A.observation_columns.{role}": PERIODS for role in COLUMNS["observation"]},
}
"""What both studies have besides, so that the setting matters."""
WITH: dict[str, dict[str, Any]] = {"privacy.release": {"privacy.min_count": 11}}
"""What the changed study needs as well."""
DATABASE = {"omop", "warehouse", "cdm_schema", "condition", "cohort", "table", "concepts"}
DATABASE |= {"patients_table", "observation_table"}
"""Settings of databases, whose content is in the key: see `test_omop_study.py`."""
REFUSED = {"model.by"}
"""Settings whose other values a study refuses."""
QUICK = ("seed", "rules.months", "ensemble.weights")  # `test_keys.py` changes a column


def places(kind: type[BaseModel], study: Any, place: str = "") -> Iterator[str]:
    """Every setting of a study file, but for those of databases and of sensitivity analyses."""
    for name in kind.model_fields:
        part = getattr(study, name)
        if name == "sites":
            yield from places(type(part["A"]), part["A"], "sites.A.")
        elif isinstance(part, BaseModel):
            yield from places(type(part), part, f"{place}{name}.")
        else:
            yield f"{place}{name}"


def every_place() -> list[str]:
    study = Study.model_validate(
        {"name": "x", "sites": {"A": {"records": "a.csv"}}, "published": {"source": "x"}}
    )
    found = [place for place in places(Study, study) if place not in REFUSED]
    return [p for p in found if p.split(".")[-1] not in DATABASE and not p.startswith("sensitiv")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites whose tables have two columns for everything."""
    folder, rng, n = tmp_path_factory.mktemp("data"), np.random.default_rng(1), 60
    ids = np.arange(n)
    for site in "ab":
        who = ids.repeat(8)
        day = np.datetime64("2010-01-01") + rng.integers(0, 500, len(who))
        taken = rng.choice(["Humira", "Orencia"], (n, 1)).repeat(8, axis=1).ravel()
        taken = np.where(rng.random(len(who)) < 0.2, "Actemra", taken)
        pd.DataFrame(
            {
                "id": who,
                "who": n - 1 - who,
                "date": day,
                "later": day + 50,
                "drug": taken,
                "second": rng.permutation(taken),
                "until": day + 45,
                "n": 20,
                "place": np.where(who < 50, "here", "there"),
            }
        ).to_csv(folder / f"{site}.csv", index=False)
    records = pd.read_csv(folder / "a.csv")
    records = records.drop_duplicates(["id", "date", "drug"]).assign(end_date=records["until"])
    records.to_csv(folder / "clean.csv", index=False)
    born = np.datetime64("1960-01-01") + rng.integers(-4000, 4000, n)
    end = np.datetime64("2012-01-01") + rng.integers(0, 300, n)
    died = pd.Series(end).where(ids % 5 == 0)
    people = {
        "id": ids,
        "who": ids[::-1],
        "follow_up_end": end,
        "later": end - 200,
        "birth_date": born,
        "born": born - 2000,
        "death_date": died,
        "died": died - np.timedelta64(30, "D"),
        "event": pd.Series(end - np.timedelta64(100, "D")).where(ids % 3 == 0),
        "rival": pd.Series(end - np.timedelta64(50, "D")).where(ids % 4 == 0),
        "sex": rng.choice(["F", "M"], n),
    }
    pd.DataFrame(people).to_csv(folder / "people.csv", index=False)
    pd.DataFrame({**people, "sex": rng.permutation(people["sex"])}).to_csv(
        folder / "people2.csv", index=False
    )
    begin = np.datetime64("2009-01-01")
    periods = {"id": ids, "who": ids[::-1], "start": begin, "since": begin + 200, "end": end}
    pd.DataFrame({**periods, "until": end - 250}).to_csv(folder / "periods.csv", index=False)
    for name in ("labs", "labs2"):
        who = ids.repeat(10)
        day = np.datetime64("2009-06-01") + rng.integers(0, 900, len(who))
        labs = {"id": who, "who": n - 1 - who, "date": day, "later": day + 30}
        labs |= {"value": rng.normal(30, 5, len(who)), "second": rng.normal(20, 5, len(who))}
        labs |= {"test": "CRP", "name": "CRP", "unit": "mg/l", "sort": "mg/dl"}
        pd.DataFrame(labs).to_csv(folder / f"{name}.csv", index=False)
    classes = ["TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20"]  # those of the built-in map
    maps = {"name": ["Orencia", "Humira", "Actemra", "Olumiant", "Rituxan"], "class": classes}
    pd.DataFrame(maps).to_csv(folder / "drugs.csv", index=False)
    codes = {"code": ["Humira", "Other"], "name": ["Orencia", "Humira"]}
    pd.DataFrame(codes).to_csv(folder / "names.csv", index=False)
    pd.DataFrame({"id": ids, "class": ids % 2}).to_csv(folder / "truth.csv", index=False)
    states = rng.choice(["TNFi", "CTLA4-Ig", "IL6R"], (n, 6))
    wide = pd.DataFrame(states, ids, list("123456")).rename_axis("id").reset_index()
    wide.to_csv(folder / "sequences.csv", index=False)
    wide.iloc[::-1].assign(id=ids).to_csv(folder / "sequences2.csv", index=False)
    return folder


def study_of(folder: Path, settings: dict[str, Any]) -> Study:
    """Each setting is one line with a dotted key."""
    lines = [f"{key} = {to_toml(v)}" for key, v in settings.items() if v is not NO_SUCH]
    path = folder / "study.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_study(path)


def results(folder: Path) -> dict[str, bytes]:
    """Every result of a study but its page and records, which hold times."""
    own = {"provenance.json", "run.log", "report.html", "hash.key", "cohorts.json"}
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.name not in own]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def run_before(folder: Path, settings: dict[str, Any]) -> Path:
    """The results of a study before any change, which many changes begin with."""
    study = study_of(folder, settings)
    text = (folder / "study.toml").read_text(encoding="utf-8")
    out = folder / "before" / hashlib.sha256(text.encode()).hexdigest()
    if not out.exists():
        run_study(study, out)
    return out


def check(folder: Path, tmp_path: Path, place: str) -> None:
    before = BASE | BOTH.get(place, {})
    shutil.copytree(run_before(folder, before), tmp_path / "resumed")
    study = study_of(folder, before | WITH.get(place, {}) | {place: OTHER[place]})
    run_study(study, tmp_path / "resumed")
    run_study(study, tmp_path / "fresh")
    resumed, fresh = results(tmp_path / "resumed"), results(tmp_path / "fresh")
    assert resumed.keys() == fresh.keys()
    assert [name for name in fresh if fresh[name] != resumed[name]] == []


def test_every_setting_has_another_value_here() -> None:
    assert set(every_place()) == set(OTHER)
    assert {*BOTH, *WITH, *QUICK} <= set(OTHER)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", QUICK)
def test_a_run_after_a_change_equals_a_fresh_one(folder: Path, tmp_path: Path, place: str) -> None:
    check(folder, tmp_path, place)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", [p for p in OTHER if p not in QUICK])
def test_a_run_after_any_other_change_equals_a_fresh_one(
    folder: Path, tmp_path: Path, place: str
) -> None:
    check(folder, tmp_path, place)
