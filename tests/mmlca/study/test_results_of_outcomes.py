"""Effects, outcomes, survival and labs in the results of sites: exact, rounded, put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import mmlca
from mmlca.sequences.type import Account, Sequences
from mmlca.study import site_data
from mmlca.study.results import about, effects, labs, survival
from mmlca.study.results.effects import Outcomes, outcomes_of
from mmlca.study.results.labs import trends_of
from mmlca.study.results.registry import TABLES
from mmlca.study.results.site import ENSEMBLE, SitePatients, SiteResults, typed
from mmlca.study.settings import Study
from mmlca.tables.cluster_effects import ERRORS
from mmlca.tables.disclosure import Rounding, few_digits
from mmlca.tables.survival import survival_by_cluster

pytest.importorskip("lifelines")
UNIT, SITES = 11, ("X", "Y", "Z")
NAMES = {1: "1: stay", 2: "2: switch", 3: "3: leave"}
PARTS = (effects.PART, survival.PART, labs.PART, about.TABLE_ONE)
CHAINS = mmlca.MarkovParams(
    [0.5, 0.3, 0.2],
    [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]],
    [[[0.95, 0.05], [0.6, 0.4]], [[0.4, 0.6], [0.6, 0.4]], [[0.4, 0.6], [0.05, 0.95]]],
)
START = pd.Timestamp("2010-01-01")
DAY = pd.Timedelta(days=1)


class Cohort:
    """Patients of three sites, whose labs, outcomes and deaths depend on the cluster."""

    def __init__(self, n: int = 400, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.data: dict[str, Sequences] = {}
        self.people: dict[str, pd.DataFrame] = {}
        self.clusters: dict[str, pd.Series] = {}
        self.labs: dict[str, pd.DataFrame] = {}
        for i, site in enumerate(SITES):
            data, truth = mmlca.simulate(CHAINS, n, 8, seed=seed + i)
            ids = [f"{site}{j}" for j in range(n)]
            group = truth.to_numpy() + 1
            death = rng.exponential(4.0 * group) + 0.5
            end = rng.uniform(1, 9, n)
            people = pd.DataFrame(
                {
                    "age": rng.normal(50 + 3 * group, 10).round(),
                    "sex": rng.choice(["f", "m"], n),
                    "score": np.where(rng.random(n) < 0.05, np.nan, rng.normal(group)),
                    "remission": np.where(rng.random(n) < 0.2 * group, "yes", "no"),
                    "index_date": START,
                    "follow_up_end": START + np.round(np.minimum(death, end) * 365) * DAY,
                },
                ids,
            )
            people["death_date"] = people["follow_up_end"].where(death < end)
            account = Account(pd.DataFrame(), pd.DataFrame(), people, np.ones(n, np.int64), {})
            self.data[site] = replace(data, ids=pd.Index(ids), account=account)
            self.people[site] = people.drop(columns=["index_date", "follow_up_end", "death_date"])
            self.clusters[site] = pd.Series(group, ids)
            who = np.repeat(np.arange(n), 5)
            value = np.exp(3 + 0.2 * group[who] + rng.normal(0, 0.4, len(who)) + 0.05 * i)
            days = rng.integers(-350, 1000, len(who))
            self.labs[site] = pd.DataFrame(
                {"patient_id": np.array(ids)[who], "date": START + days * DAY, "value": value}
            )

    def study(self, folder: Path, release: str, min_count: int, **changes: object) -> Study:
        sites = {}
        for site in SITES:
            sites[site] = {"records": folder / f"{site}.csv", "labs": folder / f"{site}.csv"}
        settings = {
            "name": "outcomes",
            "sites": sites,
            "rules": {"max_windows": 4},
            "privacy": {"release": release, "min_count": min_count},
            "covariates": {"columns": ("age", "sex")},
            "outcomes": {"columns": ("score", "remission"), "event": "death_date"},
        }
        return Study.model_validate(settings | changes)

    def results(self, study: Study, rounded: bool) -> dict[str, SiteResults]:
        results = {}
        for site, data in self.data.items():
            groups = {ENSEMBLE: self.clusters[site]}
            rounding = Rounding(b"secret", UNIT, {site: groups[ENSEMBLE]}) if rounded else None
            empty = pd.DataFrame(index=data.ids)
            alone = SitePatients(site, data, groups, empty, empty, rounding=rounding)
            tables = {name: typed(pd.DataFrame(columns=list(c)), c) for name, c in TABLES.items()}
            for part in PARTS:
                tables |= part.results(study, alone)
            results[site] = SiteResults(site, UNIT if rounded else 1, tables)
        return results


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return Cohort()


@pytest.fixture(autouse=True)
def files(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a site reads is in memory."""
    monkeypatch.setattr(site_data, "patients_of", lambda study, site, data: cohort.people[site])
    monkeypatch.setattr(site_data, "read_labs", lambda study, site: cohort.labs[site])


@pytest.fixture(scope="module")
def exact(cohort: Cohort, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteResults]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_data, "patients_of", lambda study, site, data: cohort.people[site])
        patch.setattr(site_data, "read_labs", lambda study, site: cohort.labs[site])
        study = cohort.study(tmp_path_factory.mktemp("x"), "inside", 1)
        return cohort.results(study, rounded=False)


@pytest.fixture(scope="module")
def rounded(cohort: Cohort, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteResults]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_data, "patients_of", lambda study, site, data: cohort.people[site])
        patch.setattr(site_data, "read_labs", lambda study, site: cohort.labs[site])
        study = cohort.study(tmp_path_factory.mktemp("x"), "public", UNIT)
        return cohort.results(study, rounded=True)


def found(cohort: Cohort, results: dict[str, SiteResults], min_count: int = 1) -> Outcomes:
    release = "public" if results["X"].rounded else "inside"
    return outcomes_of(cohort.study(Path(), release, min_count), results, NAMES, {})


# --- exact results --------------------------------------------------------------------------


def test_outcomes_without_correction_are_those_of_all_patients(
    cohort: Cohort, tmp_path: Path
) -> None:
    """Means and shares of all sites do not depend on which site a patient is at."""
    rules = {"columns": ("score", "remission"), "correction": None}
    study = cohort.study(tmp_path, "inside", 1, outcomes=rules, covariates={})
    made = outcomes_of(study, cohort.results(study, rounded=False), NAMES, {})
    assert made.outcomes is not None
    labels = pd.concat(cohort.clusters.values())
    values = pd.concat(cohort.people.values())
    for name in ("score", "remission"):
        posterior = pd.DataFrame(np.eye(3)[labels - 1], labels.index, list(NAMES.values()))
        with pytest.warns() if name == "score" else pytest.MonkeyPatch.context():
            expected = mmlca.three_step(posterior, values[name], correction=None)
        table = made.outcomes[made.outcomes["outcome"] == name]
        np.testing.assert_allclose(table["estimate"], expected["estimate"], atol=1e-12)
        for column in ("patients", "cases"):
            np.testing.assert_allclose(table[column], expected[column])
        np.testing.assert_allclose(table["se"], expected["se"], rtol=0.02)
        assert table["class"].tolist() == expected["class"].tolist()


def test_curves_and_stratified_tests_are_those_of_all_patients(
    cohort: Cohort, exact: dict[str, SiteResults]
) -> None:
    import lifelines

    made = found(cohort, exact)
    assert made.survival is not None
    times = pd.concat(
        site_data.event_times(d.patients, "death_date", None).assign(site=s)
        for s, d in cohort.data.items()
    )
    labels = pd.concat(cohort.clusters.values())
    expected = survival_by_cluster(
        times["time"], times["event"], labels, window=1.0, strata=times["site"]
    )
    shown = made.survival.curves.drop(columns="group")
    np.testing.assert_allclose(
        shown.to_numpy(float), expected.curves.drop(columns="group").to_numpy(float), atol=1e-12
    )
    for group, rows in made.survival.curves.groupby("group"):
        mine = times[(labels.map(NAMES) == group).to_numpy() & (times["time"] > 1).to_numpy()]
        kaplan = lifelines.KaplanMeierFitter().fit(mine["time"] - 1, mine["event"] == 1)
        np.testing.assert_allclose(
            rows["survival"], kaplan.survival_function_.to_numpy()[1:, 0], atol=1e-8
        )
    numbers = ["statistic", "df", "p_value"]
    np.testing.assert_allclose(
        made.survival.tests[numbers], expected.tests[numbers], rtol=1e-10, atol=1e-12
    )
    counts = made.survival.excluded.drop(columns="group")
    expected_counts = expected.excluded.drop(columns="group")
    # a covariate is missing for nobody
    pd.testing.assert_frame_equal(counts, expected_counts, check_dtype=False)


def test_hazards_are_those_of_each_site_and_pooled(
    cohort: Cohort, exact: dict[str, SiteResults]
) -> None:
    made = found(cohort, exact)
    assert made.survival is not None
    assert made.hazards is not None
    data = cohort.data["Y"].patients
    times = site_data.event_times(data, "death_date", None)
    alone = survival_by_cluster(
        times["time"], times["event"], cohort.clusters["Y"], window=1.0,
        covariates=data[["age", "sex"]],
    ).hazards  # fmt: skip
    mine = made.survival.hazards.query("site == 'Y'")
    for name in ("hazard_ratio", "low", "high", "p_value", "p_proportional"):
        np.testing.assert_allclose(mine[name].astype(float), alone[name].astype(float))
    assert mine["term"].tolist() == [
        "2: switch against 1: stay", "3: leave against 1: stay", "age", "sex[m]",
    ]  # fmt: skip
    pooled = made.hazards.set_index("term")
    assert (pooled["sites"] == 3).all()
    assert (pooled["hazard_ratio"][:2] < 1).all()
    logs = np.log(made.survival.hazards.query("term == 'age'")["hazard_ratio"].astype(float))
    assert logs.min() < np.log(pooled.loc["age", "random"]) < logs.max()


def test_effects_are_those_of_each_site(cohort: Cohort, exact: dict[str, SiteResults]) -> None:
    made = found(cohort, exact)
    assert made.effects is not None
    assert made.pooled is not None
    site, labels = "Z", cohort.clusters["Z"]
    members = mmlca.cluster_memberships({site: cohort.data[site]}, {site: labels})[site]
    covariates = cohort.people[site][["age", "sex"]]
    alone = mmlca.three_step(members, None, covariates, "ML", assignment=labels)
    mine = made.effects[made.effects["site"] == site]
    np.testing.assert_allclose(mine["estimate"], alone["estimate"], rtol=1e-6)
    np.testing.assert_allclose(mine["low"], alone["low"], rtol=1e-5)
    assert set(made.pooled["term"]) == {"age", "sex[m]"}  # intercepts are not alike


def test_lab_curves_are_those_of_all_labs(
    cohort: Cohort, exact: dict[str, SiteResults], tmp_path: Path
) -> None:
    study = cohort.study(tmp_path, "inside", 1)
    for bands in ("pointwise", "simultaneous"):
        rules = study.changed(outputs={"lab_bands": bands})
        made = trends_of(rules, exact, {"ensemble": NAMES})["ensemble"]
        named = {
            s: part.map(NAMES).astype(pd.CategoricalDtype(list(NAMES.values()), ordered=True))
            for s, part in cohort.clusters.items()
        }
        expected = ehr_prep.trend(cohort.labs, named, cohort.data, bands=bands)
        for name in ("curves", "counts", "censored", "support"):
            pd.testing.assert_frame_equal(
                getattr(made, name), getattr(expected, name), check_dtype=False, rtol=1e-9
            )
        assert made.pooled is not None
        row = made.pooled.query("group == '2: switch'").iloc[40]
        sites = expected.curves.query("group == '2: switch'")
        sites = sites[np.isclose(sites["years"], row["years"])]
        assert len(sites) == row["sites"] == 3
        assert sites["estimate"].min() < row["estimate"] < sites["estimate"].max()
        if bands == "pointwise":
            se = np.log(sites["high"] / sites["estimate"]) / 1.959964
            weight = 1 / se**2
            mean = (weight * np.log(sites["estimate"])).sum() / weight.sum()
            assert np.log(row["estimate"]) == pytest.approx(mean)
            assert np.log(row["high"]) == pytest.approx(mean + 1.959964 * weight.sum() ** -0.5)


def test_small_numbers_are_hidden_when_exact_results_are_put_together(
    cohort: Cohort, exact: dict[str, SiteResults]
) -> None:
    made = found(cohort, exact, UNIT)
    assert made.survival is not None
    times = pd.concat(
        site_data.event_times(d.patients, "death_date", None) for d in cohort.data.values()
    )
    labels = pd.concat(cohort.clusters.values())
    full = survival_by_cluster(times["time"], times["event"], labels, window=1.0)
    columns = ["time", "at_risk", "events", "left", "survival"]
    pd.testing.assert_frame_equal(made.survival.curves[columns], full.shown(UNIT).curves[columns])
    assert "site" not in made.survival.curves


# --- rounded results ------------------------------------------------------------------------


def test_what_leaves_is_rounded_and_has_few_digits(rounded: dict[str, SiteResults]) -> None:
    for result in rounded.values():
        for part in PARTS[:3]:
            for name, columns in part.tables.items():
                table = result.tables[name]
                for column, spec in columns.items():
                    values = table[column].dropna()
                    if spec.kind == "count":
                        assert (values % UNIT == 0).all(), (name, column)
                    elif spec.kind == "number" and name not in ("lab_curves", "covariate_effects"):
                        few = (
                            values
                            if column in ("years", "other_years", "time")
                            else few_digits(values, 3)
                        )
                        np.testing.assert_allclose(values, few, rtol=1e-12, err_msg=name)
        table = result.tables["covariate_effects"]
        assert set(table["term"]) == {"age", "sex[m]"}
        assert set(table["se"].dropna()) <= set(ERRORS)
        multiples = table["estimate"] / table["se"]
        np.testing.assert_allclose(multiples, multiples.round(), atol=1e-6)


def test_rounded_results_are_near_the_exact_ones(
    cohort: Cohort, exact: dict[str, SiteResults], rounded: dict[str, SiteResults], tmp_path: Path
) -> None:
    true, shown = found(cohort, exact), found(cohort, rounded, UNIT)
    assert true.outcomes is not None
    assert shown.outcomes is not None
    errors = (shown.outcomes["estimate"] - true.outcomes["estimate"]).abs()
    assert (errors < 0.2 * true.outcomes["se"]).all()
    assert true.survival is not None
    assert shown.survival is not None
    curves = shown.survival.curves
    assert list(dict.fromkeys(curves["site"])) == [*SITES, "all sites"]
    everyone = curves["site"] == "all sites"
    for group, rows in curves[everyone].groupby("group"):
        steps = true.survival.curves[true.survival.curves["group"] == group]
        at = np.searchsorted(steps["time"], rows["time"] + 1e-9) - 1
        error = np.abs(steps["survival"].to_numpy()[at] - rows["survival"].to_numpy())
        of_sites = curves[~everyone & (curves["group"] == group)].groupby("site")["time"]
        last = of_sites.apply(lambda times: times.iloc[-2] if len(times) > 1 else 0).min()
        assert error[rows["time"] <= last].max(initial=0) < 0.013
        assert error.max() < 0.07  # the last stretch of a site's curve is a life table's
    assert (shown.survival.excluded.drop(columns="group") % UNIT == 0).all(axis=None)
    np.testing.assert_allclose(
        shown.survival.tests["statistic"], true.survival.tests["statistic"], rtol=0.05
    )
    assert shown.hazards is not None
    assert true.hazards is not None
    np.testing.assert_allclose(
        shown.hazards["hazard_ratio"], true.hazards["hazard_ratio"], rtol=0.01
    )
    study = cohort.study(tmp_path, "public", UNIT)
    labs_true, labs_shown = (
        trends_of(study, results, {"ensemble": NAMES})["ensemble"] for results in (exact, rounded)
    )
    both = labs_true.curves.merge(labs_shown.curves, on=["site", "group", "years"])
    assert len(both) > 400
    assert np.abs(np.log(both["estimate_x"] / both["estimate_y"])).max() < 0.02
    width = np.log(both["high_x"] / both["low_x"]) / np.log(both["high_y"] / both["low_y"])
    assert width.between(0.95, 1.05).all()


def test_clusters_with_few_cases_at_a_site_do_not_leave(tmp_path: Path) -> None:
    cohort = Cohort(n=150, seed=5)
    cohort.people["X"]["remission"] = np.where(np.arange(150) < 8, "yes", "no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_data, "patients_of", lambda study, site, data: cohort.people[site])
        patch.setattr(site_data, "read_labs", lambda study, site: cohort.labs[site])
        results = cohort.results(cohort.study(tmp_path, "public", UNIT), rounded=True)
    table = results["X"].tables["outcome_estimates"].query("outcome == 'remission'")
    assert table["estimate"].isna().all()
    assert table["patients"].notna().all()
    spread = results["X"].tables["outcome_covariances"].query("outcome == 'remission'")
    assert spread["covariance"].isna().all()
    made = found(cohort, results, UNIT)
    assert made.outcomes is not None
    assert any("The outcome remission at X is left out" in note for note in made.left_out)


def test_nobody_at_the_landmark_has_no_hazard_ratio() -> None:
    times = pd.Series([1.0, 2.0, 3.0])
    cases = survival.read_cases(times, times > 1, pd.Series([1, 2, 2]), None, None, None)
    late, excluded = survival.after_landmark(cases, 5.0)
    assert len(late.time) == 0
    assert excluded[["event", "left", "included"]].sum().tolist() == [2, 1, 0]
    assert survival._hazards(late).empty
