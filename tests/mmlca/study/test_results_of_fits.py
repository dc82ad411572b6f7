"""Models, their fit and their certainty in the results of sites."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.study.results import fit, models
from mmlca.study.results.fit import Fits, fits_of
from mmlca.study.results.registry import TABLES
from mmlca.study.results.site import ALL_SITES, ENSEMBLE, OWN, SitePatients, SiteResults, typed
from mmlca.study.sections import classes
from mmlca.study.sections import fit as fit_section
from mmlca.study.sections import models as models_section
from mmlca.study.settings import Study
from mmlca.tables.diagnostics import add_up_tests, diagnose, diagnose_clusters
from mmlca.tables.disclosure import Rounding

UNIT, N_SIM = 11, 9
CHAINS = mmlca.MarkovParams(
    [0.6, 0.4], [[0.95, 0.05], [0.05, 0.95]], [[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]]
)
PARTS = (models.PART, fit.PART)
OTHERS = [name for name in TABLES if not any(name in part.tables for part in PARTS)]


def study_of(min_count: int, release: str = "inside") -> Study:
    return Study.model_validate(
        {
            "name": "x",
            "sites": {site: {"sequences": f"{site}.csv"} for site in "AB"},
            "privacy": {"min_count": min_count, "release": release},
            "inference": {"simulations": N_SIM, "bootstrap": 3, "blrt": 2},
            "model": {"n_init": 4},
        }
    )


@pytest.fixture(scope="module")
def patients() -> dict[str, SitePatients]:
    """Two sites with models of their own, and clusters that are nearly these."""
    sites = {}
    for seed, site in enumerate("AB"):
        data, truth = mmlca.simulate(CHAINS, 150 + 40 * seed, 12, seed=seed)
        model = mmlca.MixtureMarkov(2, init=CHAINS).fit(data)
        fits = {(site, k): mmlca.MixtureMarkov(k, n_init=4, seed=1).fit(data) for k in (1, 2)}
        labels = pd.DataFrame({site: model.predict(data)}, data.ids)
        groups = {ENSEMBLE: pd.Series(truth + 1, data.ids), OWN: labels[site] + 1}
        sites[site] = SitePatients(
            site,
            data,
            groups,
            labels,
            pd.DataFrame(),
            own=model,
            fits=models.fit_table({site: model}, labels),
            choice=models.comparison(fits, "bic", "sequences"),
        )
    return sites


def results_of(study: Study, patients: dict[str, SitePatients]) -> dict[str, SiteResults]:
    results = {}
    for site, one in patients.items():
        tables = {name: typed(pd.DataFrame(columns=list(TABLES[name])), TABLES[name])
                  for name in OTHERS}  # fmt: skip
        for part in PARTS:
            tables |= part.results(study, one)
        results[site] = SiteResults(site, 1 if one.rounding is None else UNIT, tables)
    return results


@pytest.fixture(scope="module")
def exact(patients: dict[str, SitePatients]) -> Fits:
    return fits_of(results_of(study_of(1), patients))


def test_exact_results_are_what_the_libraries_compute(
    exact: Fits, patients: dict[str, SitePatients]
) -> None:
    n_sim = exact.diagnostics["A"].n_sim
    for site, one in patients.items():
        found, own = exact.diagnostics[site], one.own
        assert own is not None
        expected = diagnose(own, one.sequences, n_sim=n_sim, seed=study_of(1).seed)
        assert found.cautions()[:1] == expected.cautions()[:1]
        for name in ("states", "stays"):
            pd.testing.assert_frame_equal(
                getattr(found, name), getattr(expected, name), check_dtype=False, rtol=1e-12
            )
        np.testing.assert_allclose(found.classification, expected.classification, rtol=1e-12)
        np.testing.assert_allclose(found.drawn, expected.drawn, rtol=1e-12)
        columns = ["statistic", "typical", "effect", "p_value", "events"]
        np.testing.assert_allclose(found.tests[columns], expected.tests[columns], rtol=1e-12)
        errors = own.standard_errors(one.sequences)
        assert exact.parameters is not None
        mine = exact.parameters[exact.parameters["site"] == site]
        np.testing.assert_allclose(mine["estimate"], errors["estimate"], rtol=1e-12)
        refits = mmlca.bootstrap(own, one.sequences, 3, seed=study_of(1).seed)
        assert exact.stability is not None
        mine = exact.stability[exact.stability["site"] == site]
        np.testing.assert_allclose(mine["jaccard"], refits.stability["jaccard"], rtol=1e-12)
    assert exact.choice is not None
    assert exact.choice["site"].tolist() == ["A", "A", "B", "B"]
    assert [sum(sizes) for sizes in exact.choice["sizes"]] == pytest.approx([1] * 4)
    assert exact.own["classes"].tolist() == [2, 2]


def test_tests_of_all_sites_are_sums(exact: Fits, patients: dict[str, SitePatients]) -> None:
    n_sim, seed = exact.diagnostics["A"].n_sim, study_of(1).seed
    parts = []
    for site, one in patients.items():
        rng = np.random.default_rng([seed, *site.encode()])
        clusters = {site: one.groups[ENSEMBLE]}
        parts.append(diagnose_clusters({site: one.sequences}, clusters, n_sim=n_sim, seed=rng))
    assert exact.tests is not None
    found = exact.tests[exact.tests["site"] == ALL_SITES].reset_index(drop=True)
    total = sum(part.tests["statistic"] for part in parts)
    drawn = np.sum([part.drawn for part in parts], axis=0)
    np.testing.assert_allclose(found["statistic"], total, rtol=1e-12)
    np.testing.assert_allclose(found["typical"], drawn.mean(axis=0), rtol=1e-12)
    larger = (drawn >= total.to_numpy()).sum(axis=0)
    np.testing.assert_allclose(found["p_value"], (1 + larger) / (1 + n_sim), rtol=1e-12)
    assert len(exact.tests) == 12
    assert (exact.tests["p_holm"] >= exact.tests["p_value"]).all()


def test_added_tests_by_hand() -> None:
    gains = [[4.0, -9.0, np.nan, 1.0], [2.0, 3.0, np.nan, 1.0]]
    tests = [
        pd.DataFrame({"statistic": [10.0] * 4, "events": [100.0] * 4, "bic_gain": gains[0]}),
        pd.DataFrame({"statistic": [30.0] * 4, "events": [300.0] * 4, "bic_gain": gains[1]}),
    ]
    drawn = [np.full((3, 4), 8.0), np.array([[20.0] * 4, [28.0] * 4, [40.0] * 4])]
    found = add_up_tests(tests, drawn)
    assert found["statistic"].tolist() == [40.0] * 4
    assert found["typical"].tolist() == pytest.approx([8 + 88 / 3] * 4)
    assert found["p_value"].tolist() == [0.5] * 4  # one of three sets reaches 40
    assert found["bic_gain"].tolist() == pytest.approx([6, -6, np.nan, 2], nan_ok=True)
    assert found["effect"].tolist() == pytest.approx([np.sqrt((40 - 8 - 88 / 3) / 400)] * 4)


def test_rounded_results_have_few_digits_and_no_exact_shares(
    patients: dict[str, SitePatients],
) -> None:
    rounded = {
        site: replace(one, rounding=Rounding(b"secret", UNIT, {site: one.groups[ENSEMBLE]}))
        for site, one in patients.items()
    }
    results = results_of(study_of(UNIT, "public"), rounded)
    for result in results.values():
        for name in (name for part in PARTS for name in part.tables):
            table = result.tables[name]
            for column, spec in TABLES[name].items():
                values = table[column].dropna()
                if spec.kind == "count":
                    assert (values % UNIT == 0).all(), (name, column)
                elif spec.kind == "number":
                    digits = [len(f"{abs(x):.10g}".replace(".", "").strip("0")) for x in values]
                    assert max(digits, default=0) <= 5, (name, column)
        for name in ("fit_states", "fit_steps"):
            table = result.tables[name]
            assert table[["observed", "expected", "n", "patients"]].isna().all(axis=None)
            assert table["residual"].notna().any()
    fits = fits_of(results)
    assert "observed" not in fits.diagnostics["A"].states
    assert set(fits.diagnostics["A"].stays) == {"class", "state", "duration", "leaving", "expected"}


def test_a_site_without_a_model_of_its_own_is_left_out(patients: dict[str, SitePatients]) -> None:
    few = replace(patients["B"], own=None, fits=None, choice=None)
    fits = fits_of(results_of(study_of(1), patients | {"B": few}))
    assert list(fits.diagnostics) == ["A"]
    assert fits.own.index.tolist() == ["A"]
    nobody = {site: replace(few, site=site) for site in "AB"}
    fits = fits_of(results_of(study_of(1), nobody))
    assert fits.tests is fits.parameters is fits.choice is fits.stability is None
    findings: Any = SimpleNamespace(
        fits=fits,
        combined=SimpleNamespace(suggested=None, n_groups=2, models={}, by_files=False),
        class_names={},
        sites="AB",
    )
    study = study_of(1)
    for section in (classes, fit_section, models_section):
        assert list(section.items(study, findings)) == []
        assert section.cautions(study, findings) == []
        section.methods(study, findings)
        section.answers(study, findings)


# --- how sure the number of classes is --------------------------------------------------------


def test_the_support_of_a_number_is_that_of_the_tables_beside_it() -> None:
    """Few digits may reverse a close choice; the table still has the number that was chosen."""
    choice = pd.DataFrame(
        {"site": ["A"] * 3 + ["B"] * 3, "form": "plain", "classes": [1, 2, 3] * 2}
    )
    choice["chosen"] = [False, True, False, False, False, True]
    choice["bic"] = [90.0, 81.0, 80.0, 95.0, 90.0, 88.0]  # A chose 2 by exact numbers
    for name in ("aic", "sabic", "caic", "icl", "bic_all"):
        choice[name] = [3.0, 1.0, 2.0, 1.0, 2.0, 3.0]
    found: Any = SimpleNamespace(
        choice=choice,
        form="plain",
        choices=pd.DataFrame(
            {
                "site": ["A"] * 3 + ["B"] * 3,
                "classes": [1, 2, 3] * 2,
                "resamples": [0, 9, 1, 6, 0, 4],
            }
        ),
        stability=pd.DataFrame({"site": ["A", "A"], "jaccard": [0.9, 0.6]}),
        own=pd.DataFrame({"classes": [2, 2]}, index=["A", "B"]),
    )
    study, findings = study_of(11), SimpleNamespace(fits=found)
    item = classes._support_item(study, findings)  # type: ignore[arg-type]
    table = item.table.set_index("site")
    assert table.loc["A", ["bic", "aic", "bic_all"]].tolist() == [2, 2, 2]
    assert table.loc["B", ["bic", "aic", "bic_all"]].tolist() == [3, 1, 1]
    assert table["resamples_agree"].tolist() == [9, 4]
    assert table["resamples"].tolist() == [10, 10]
    assert table["jaccard_least"].iloc[0] == 0.6
    assert np.isnan(table["jaccard_least"].iloc[1])  # its own model has another number
    assert "A: All criteria choose 2 classes." in item.caption
    assert "A: Of 10 resamples of the patients, 9 choose 2 classes, 1 chooses 3." in item.caption
    notes = classes._criteria_that_disagree(study, findings)  # type: ignore[arg-type]
    assert [note.split(":")[0] for note in notes] == ["The criteria disagree at B", "A", "B"]
    assert "mean Jaccard index of 0.60" in notes[1]
    assert notes[2].endswith(
        "4 choose 3 classes, 6 choose 1; most do not choose the number of all patients."
    )
