"""Standard errors, fit, covariates, outcomes and survival in a study."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import mmlca
from mmlca.model.inference import OverlapWarning
from mmlca.study import read_study, run_study
from mmlca.study.results import models as results_of_models
from mmlca.study.results.fit import Fits
from mmlca.study.results.models import fit_table
from mmlca.study.sections import covariates, fit, outcomes, registry
from mmlca.study.site_data import event_times
from mmlca.tables.cluster_effects import one_step_effects
from mmlca.tables.disclosure import is_small
from mmlca.tables.shared_chains import cluster_chains

SETTINGS = """
[rules]
max_windows = 6
[classes]
number = 3
[pseudo_sites]
per_site = 0
[model]
n_init = 8
[covariates]
columns = ["age", "sex"]
[outcomes]
columns = ["score", "remission"]
event = "death_date"
[inference]
simulations = 9
[outputs]
bootstrap = 0
figures = {figures}
dpi = 50
[table_one]
variables = ["age", "sex"]
"""


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic cohort with outcomes that depend on nothing but the true class."""
    folder = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1, scale=0.2).write(folder)
    rng = np.random.default_rng(1)
    for site in ("MGB", "VA"):
        people = pd.read_csv(folder / site / "patients.csv")
        n = len(people)
        dead = rng.random(n) < 0.4
        people["score"] = np.where(rng.random(n) < 0.02, np.nan, rng.normal(size=n).round(3))
        people["remission"] = np.where(rng.random(n) < 0.4, "yes", "no")
        people["death_date"] = people["follow_up_end"].where(dead)
        people.to_csv(folder / site / "patients.csv", index=False)
    return folder


def write(folder: Path, sites: tuple[str, ...], more: str = "", figures: str = "false") -> Path:
    lines = ['name = "Outcomes"', "synthetic = true"]
    for site in sites:
        lines += [f"[sites.{site}]", f'records = "{site}/medications.csv"', 'drugs = "ra"']
        lines += [f'patients = "{site}/patients.csv"']
    path = folder / f"study_{'_'.join(sites)}.toml"
    path.write_text("\n".join(lines) + SETTINGS.format(figures=figures) + more)
    return path


@pytest.fixture(scope="module")
def done(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        # other tests draw the figures of the other sections
        patch.setattr(registry, "RESULTS", (covariates.SECTION, outcomes.SECTION))
        patch.setattr(registry, "DIAGNOSTICS", (fit.SECTION,))
        return out, run_study(read_study(write(cohort, ("MGB", "VA"), figures="true")), out)


def test_every_part_is_in_the_report(done: tuple[Path, dict[str, Any]]) -> None:
    out, content = done
    names = {path.stem for folder in ("tables", "figures") for path in (out / folder).iterdir()}
    expected = "fit_tests classification effects effects_pooled outcomes outcome_tests "
    expected += "outcomes_pooled survival survival_tests survival_hazards survival_pooled "
    expected += "survival_excluded "
    by_site = ("residuals", "stays", "steps", "parameters")
    expected += " ".join(f"{n}_{s}" for n in by_site for s in ("MGB", "VA"))
    assert set(expected.split()) <= names
    sections = [section["id"] for section in content["sections"]]
    assert {"fit", "covariates", "outcomes"} <= set(sections)
    for words in ("robust (sandwich)", "multinomial logit", "Bolck", "landmark 1.5 years"):
        assert words in content["methods"]
    assert any("associations" in text for text in content["careful"])
    assert json.loads((out / "results.json").read_text()) == content


@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_the_numbers_are_those_of_the_library(
    cohort: Path, done: tuple[Path, dict[str, Any]]
) -> None:
    out, _ = done
    sequences, clusters, people = {}, {}, {}
    for site in ("MGB", "VA"):
        folder = cohort / site
        records = ehr_prep.read_records(
            folder / "medications.csv", drugs="ra", patients=folder / "patients.csv"
        )
        sequences[site] = ehr_prep.build_sequences(records, max_windows=6)
        table = pd.read_csv(out / f"patients/{site}_clusters.csv", index_col="id")
        clusters[site], people[site] = table["cluster"], sequences[site].patients
    found = {}
    for site, data in sequences.items():  # chains of each site, at convergence
        members = mmlca.cluster_memberships({site: data}, {site: clusters[site]})[site]
        found[site] = mmlca.three_step(
            members, people[site]["remission"], assignment=clusters[site]
        )
    weights = np.array([part["patients"] for part in found.values()], dtype=float)
    both = np.average([part["estimate"] for part in found.values()], axis=0, weights=weights)
    stored = pd.read_csv(out / "tables/outcomes.csv").query("outcome == 'remission'")
    shown = stored["estimate"].notna().to_numpy()
    assert shown.any()
    assert stored["estimate"].to_numpy()[shown] == pytest.approx(
        both[shown],
        rel=5.1e-3,
        abs=5.1e-4,  # three digits are written, so that no count follows
    )
    effects = pd.read_csv(out / "figures/effects.csv").query("site == 'VA'")
    alone = mmlca.three_step(
        members,
        covariates=people["VA"][["age", "sex"]],
        correction="ML",
        assignment=clusters["VA"],
    )
    shown = effects["estimate"].notna().to_numpy()
    assert effects["estimate"].to_numpy()[shown] == pytest.approx(
        alone["estimate"].to_numpy()[shown], rel=5.1e-3, abs=5.1e-4
    )
    model = mmlca.MixtureMarkov.load(out / "models/MGB.json")
    errors = model.standard_errors(sequences["MGB"])
    stored = pd.read_csv(out / "figures/parameters_MGB.csv")
    stored["class"] = stored["class"].str.extract(r"^class (\d+)", expand=False).astype(int)
    shown = stored["se"].notna().to_numpy()
    assert shown.sum() > 3
    expected = errors["se"].to_numpy()[shown]
    assert stored["se"].to_numpy()[shown] == pytest.approx(expected, rel=5.1e-3, abs=5.1e-4)
    # what is shown rests on enough patients assigned to the class
    stored["class"] = errors["class"].to_numpy()  # by number, not by name
    label = model.predict(sequences["MGB"]) + 1
    codes, states = sequences["MGB"].codes, sequences["MGB"].states
    for row in stored[shown].to_dict("records"):
        mine = codes[label == row["class"]]
        if row["parameter"] == "transition":
            a, b = states.index(row["from"]), states.index(row["to"])
            mine = mine[((mine[:, :-1] == a) & (mine[:, 1:] == b)).any(axis=1)]
        elif row["parameter"] == "initial":
            mine = mine[mine[:, 0] == states.index(row["to"])]
        assert len(mine) >= 11


def test_no_small_number_leaves(done: tuple[Path, dict[str, Any]], cohort: Path) -> None:
    out, content = done
    outcomes = pd.read_csv(out / "tables/outcomes.csv")
    assert not is_small(outcomes[["patients", "cases"]].fillna(0), 11).any()
    curves = pd.read_csv(out / "figures/survival.csv")
    assert not is_small(curves[["at_risk", "events", "left"]].fillna(0), 11).any()
    excluded = pd.read_csv(out / "tables/survival_excluded.csv").set_index("group")
    assert not is_small(excluded.fillna(0), 11).any()
    clusters = pd.concat(
        {s: pd.read_csv(out / f"patients/{s}_clusters.csv")["cluster"] for s in ("MGB", "VA")}
    )
    sizes = clusters.value_counts()
    of_score = outcomes.query("outcome == 'score'").dropna(subset="patients")
    for row in of_score.to_dict("records"):  # how many lack the outcome
        assert not is_small(sizes[int(row["class"].split()[-1])] - row["patients"], 11)
    # the sentence on missing outcomes does not tell a small number either
    (text,) = [t for t in content["careful"] if "lack the outcome score" in t]
    missing = sum(
        pd.read_csv(cohort / s / "patients.csv")["score"].isna().sum() for s in ("MGB", "VA")
    )
    assert ("<11" in text) == is_small(missing, 11)


def test_one_site_has_classes_and_its_models_uncertainty(cohort: Path, tmp_path: Path) -> None:
    path = write(cohort, ("MGB",), "[privacy]\nmin_count = 1\n")
    study = read_study(path).changed(inference={"bootstrap": 3, "diagnostics": False})
    content = run_study(study, tmp_path)
    assert "the uncertainty of the model is part of" in content["methods"]
    stability = pd.read_csv(tmp_path / "tables/stability.csv")
    assert len(stability) == 3
    assert not (tmp_path / "tables/fit_tests.csv").exists()
    effects = pd.read_csv(tmp_path / "figures/effects.csv")
    assert [name[:3] for name in effects["class"].unique()] == ["2: ", "3: "]


def test_overlapping_classes_have_intervals_from_refits_or_a_caution() -> None:
    """Intervals from standard errors are too narrow where classes overlap."""
    two = mmlca.MarkovParams(
        [0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], [[[0.8, 0.2], [0.4, 0.6]], [[0.5, 0.5], [0.2, 0.8]]]
    )
    data, _ = mmlca.simulate(two, 200, 8, seed=1)
    model = mmlca.MixtureMarkov(2, init=two).fit(data)
    assert model.entropy() < 0.7
    refits = mmlca.bootstrap(model, data, 20, seed=1)
    for n in (0, 20):
        study: Any = SimpleNamespace(
            inference=SimpleNamespace(bootstrap=n),
            sites={"A": None},
            privacy=SimpleNamespace(min_count=11),
        )
        table = results_of_models._parameters(study, model, data, refits if n else None)
        with pytest.warns(OverlapWarning):
            plain = model.standard_errors(data)
        low = (refits.intervals if n else plain)["low"].to_numpy()[: len(table)]
        inside = ~plain["boundary"].to_numpy() & table["low"].notna().to_numpy()
        assert inside.any()
        np.testing.assert_array_equal(table["low"].to_numpy()[inside], low[inside])
        fitted = fit_table({"A": model}, pd.DataFrame({"A": model.predict(data)})).assign(site="A")
        fits = Fits(fitted, None, table.assign(site="A"), None, None, None, {}, None)
        findings: Any = SimpleNamespace(fits=fits, sites=["A"])
        cautions = fit.cautions(study, findings)
        (method,) = fit.methods(study, findings)
        limits = fit._estimates(study, "A", list(data.states), table, {1: "a", 2: "b"}).caption
        for text in (limits, method):
            assert ("from 20 refits" in text) == (n > 0)
        assert len(cautions) == (n == 0)
        if not n:
            assert "may be too narrow; bootstrap = 500 under [inference]" in cautions[0]


@pytest.mark.filterwarnings("ignore:the best of all maxima")  # of the models that are tested
def test_covariates_inside_the_model_and_tests_of_the_number(cohort: Path, tmp_path: Path) -> None:
    """Two sites in one step: the numbers of the library; one site's tests around K."""
    study = read_study(write(cohort, ("MGB", "VA"), "[privacy]\nmin_count = 1\n")).changed(
        inference={"diagnostics": False, "standard_errors": False, "blrt": 3},
        covariates={"method": "one-step"},
        outcomes={"columns": (), "event": None},
    )
    content = run_study(study, tmp_path)
    assert "inside the mixture, estimated together with the chains" in content["methods"]
    assert "at most 3 samples from the smaller model" in content["methods"]
    tests = pd.read_csv(tmp_path / "tables/class_tests.csv")
    assert tests[["site", "classes", "against"]].to_numpy().tolist() == [
        *(["MGB", 3, 2], ["MGB", 4, 3], ["VA", 3, 2], ["VA", 4, 3])
    ]
    assert tests["p_value"].between(0.25, 1).all()
    sequences, clusters, people = {}, {}, {}
    for site in ("MGB", "VA"):
        folder = cohort / site
        records = ehr_prep.read_records(
            folder / "medications.csv", drugs="ra", patients=folder / "patients.csv"
        )
        sequences[site] = ehr_prep.build_sequences(records, max_windows=6)
        clusters[site] = pd.read_csv(tmp_path / f"patients/{site}_clusters.csv", index_col="id")[
            "cluster"
        ]
        people[site] = sequences[site].patients[["age", "sex"]]
    with pytest.warns(OverlapWarning) as raised:
        expected = one_step_effects(
            sequences["VA"],
            people["VA"],
            clusters["VA"],
            cluster_chains({"VA": sequences["VA"]}, {"VA": clusters["VA"]}),
            [1, 2, 3],
        ).table
    assert f"Effects of the covariates at VA: {raised[0].message}" in content["careful"]
    stored = pd.read_csv(tmp_path / "figures/effects.csv").query("site == 'VA'")
    np.testing.assert_allclose(stored["estimate"], expected["estimate"], atol=5.1e-4)
    np.testing.assert_allclose(stored["se"], expected["se"], atol=5.1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcomes": {"columns": ("weight",)}}, "outcomes.columns names weight"),
        ({"covariates": {"columns": ("weight",)}}, "covariates.columns names weight"),
        ({"outcomes": {"event": "relapse"}}, "outcomes names the dates relapse"),
        ({"outcomes": {"event": "remission", "columns": ()}}, "are not dates such as"),
        ({"outcomes": {"landmark": 0.5}}, "lies inside the windows"),
    ],
)
def test_mistakes_in_the_study_file(
    cohort: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    study = read_study(write(cohort, ("MGB",))).changed(
        inference={"diagnostics": False, "standard_errors": False}
    )
    with pytest.raises(ValueError, match=message):
        run_study(study.changed(**change), tmp_path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[outcomes]\ncompeting = 'x'\n", "need event"),
        ("[outcomes]\nevent = 'x'\ncompeting = 'x'\n", "as event and as competing"),
        ("[inference]\nbootstrap = 1\n", "at least 2 refits"),
        ("[inference]\nsimulation = 9\n", "did you mean inference.simulations"),
        ("[covariates]\ncorrection = 'bch'\n", "covariates.correction is 'bch'"),
    ],
)
def test_mistakes_that_the_study_file_shows(tmp_path: Path, more: str, message: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "x"\n[sites.A]\nsequences = "a.csv"\n' + more)
    with pytest.raises(ValueError, match=message):
        read_study(path, files=False)


def test_event_times_by_hand() -> None:
    day = pd.Timestamp
    people = pd.DataFrame(
        {
            "index_date": [day("2010-01-01")] * 5,
            "follow_up_end": [day("2014-01-01")] * 5,
            "death": ["2012-01-01", "", "2015-01-01", "2012-06-01", "2013-01-01"],
            "stroke": ["", "2011-01-01", None, "2012-01-01", "2013-01-01"],
        }
    )
    found = event_times(people, "death", "stroke")
    assert found["event"].tolist() == [1, 2, 0, 2, 1]  # after follow-up: none; a tie: the event
    assert found["time"].round(2).tolist() == [2.0, 1.0, 4.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="1 dates of 'death' or None lie before"):
        event_times(people.assign(death="2009-01-01")[:1], "death", None)
