"""Attacks on the fit of models: do criteria and tests reveal more digits than a study shows?

A log-likelihood is shown as a whole number, because many digits of a number based on all
patients reveal counts. AIC, BIC and the like are sums of it and of known numbers; each rounded by
itself is another window on the same number, and all of them together give it to about a quarter.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehr_prep
from mmlca.model.settings import CRITERIA
from mmlca.study import read_study, run_study
from mmlca.study.results.models import shown_fits
from mmlca.tables.disclosure import Rounding

M, N, TIMES = 11, 330, 4100


def exact_fits(logliks: list[float], entropies: list[float], counted: float = N) -> pd.DataFrame:
    """The fits of 1, 2, … classes with five states at a site of N patients."""
    rows = []
    for k, (loglik, entropy) in enumerate(zip(logliks, entropies, strict=True), start=1):
        p = (k - 1) + 4 * k + 20 * k
        bic = -2 * loglik + p * np.log(counted)
        rows.append(
            {
                "model": "VA",
                "patients": N,
                "classes": k,
                "loglik": loglik,
                "parameters": p,
                "aic": -2 * loglik + 2 * p,
                "bic": bic,
                "sabic": -2 * loglik + p * np.log((counted + 2) / 24),
                "caic": bic + p,
                "icl": bic + 2 * (1 - entropy) * N * np.log(k),
                "entropy": entropy,
                "smallest": 0.2,
                "chosen": k == 2,
            }
        )
    return pd.DataFrame(rows)


def likelihood_range(row: pd.Series, n: float) -> tuple[float, float]:
    """What whole numbers of a row tell of the log-likelihood, if each was rounded by itself."""
    p = row["parameters"]
    penalty = {
        "aic": 2 * p,
        "bic": p * np.log(n),
        "sabic": p * np.log((n + 2) / 24),
        "caic": p * (np.log(n) + 1),
    }
    ends = [(row["loglik"] - 0.5, row["loglik"] + 0.5)]
    for name, more in penalty.items():
        ends.append(((more - row[name] - 0.5) / 2, (more - row[name] + 0.5) / 2))
    return max(low for low, _ in ends), min(high for _, high in ends)


def random_fits(rng: np.random.Generator) -> pd.DataFrame:
    return exact_fits((-1500 + 400 * rng.random(6)).tolist(), rng.uniform(0.6, 1, 6).tolist())


def test_criteria_that_are_each_rounded_give_the_likelihood_to_a_quarter() -> None:
    """The attack works on the rule that was: every column rounded by itself."""
    rng, widths = np.random.default_rng(1), []
    for _ in range(50):
        fits = random_fits(rng)
        for i, row in fits.round(0).iterrows():
            low, high = likelihood_range(row, N)
            assert low - 1e-9 <= fits.at[i, "loglik"] <= high + 1e-9
            widths.append(high - low)
    assert np.mean(widths) < 0.27


@pytest.mark.parametrize("counted", [N, TIMES])
@pytest.mark.parametrize("public", [False, True])
def test_no_criterion_tells_more_of_the_likelihood_than_the_likelihood_does(
    counted: float, public: bool
) -> None:
    """Any log-likelihood and entropy that round to the numbers shown give the same row."""
    rng = np.random.default_rng(2)
    ids = pd.Series(1, [f"p{i}" for i in range(N)])
    rounding = Rounding(b"s" * 32, M, {"VA": ids}) if public else None
    whole = rng.integers(-1500, -1100, 6).astype(float)
    digits = rng.integers(60, 100, 6) / 100
    shown = []
    for _ in range(40):
        logliks = whole + rng.uniform(-0.499, 0.499, 6)
        entropies = np.minimum(digits + rng.uniform(-0.00499, 0.00499, 6), 1)
        fits = exact_fits(logliks.tolist(), entropies.tolist(), counted)
        shown.append(shown_fits(fits, "VA", M, rounding))
    for table in shown[1:]:
        pd.testing.assert_frame_equal(table, shown[0])
    assert (shown[0]["loglik"] == whole).all()
    exact = exact_fits(whole.tolist(), digits.tolist(), counted)
    near = 1.5 + public * exact["parameters"].max() * np.log(1 + M / N)
    for name in CRITERIA:  # and they are what they say they are
        assert (shown[0][name] - exact[name]).abs().max() < near


def test_criteria_of_a_public_release_tell_nothing_of_the_exact_number_of_patients() -> None:
    """Any number of patients that is rounded to the one shown gives the same table."""
    tables = []
    for n in range(N - 4, N + 5):
        ids = pd.Series(1, [f"p{i}" for i in range(N + 10)])
        rounding = Rounding(b"s" * 32, M, {"VA": ids})
        if rounding(n, "VA") != rounding(N, "VA"):
            continue
        fits = exact_fits([-900.0] * 6, [0.9] * 6, n)
        tables.append(shown_fits(fits.assign(patients=n), "VA", M, rounding))
    assert len(tables) > 4
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


STUDY = """
name = "Criteria"
[sites.VA]
records = "VA/medications.csv"
drugs = "ra"
patients = "VA/patients.csv"
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
[classes]
candidates = [1, 2, 3]
[model]
n_init = 4
[inference]
standard_errors = false
diagnostics = false
blrt = 10
[outputs]
figures = false
[privacy]
release = "{release}"
"""


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("criteria")
    ehr_prep.ra_cohort(seed=1, scale=0.1).write(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("release", ["inside", "public"])
def test_all_criteria_of_a_study_follow_from_numbers_beside_them(
    cohort: Path, release: str
) -> None:
    """Tables, page and tests: nothing holds a window of its own on a log-likelihood."""
    (cohort / f"{release}.toml").write_text(STUDY.format(release=release))
    out = cohort / release
    run_study(read_study(cohort / f"{release}.toml"), out)
    headline = pd.read_csv(out / "tables/headline.csv").query("kind == 'patients'")
    n = float(headline["value"].iloc[0])
    selection = pd.read_csv(out / "figures/selection.csv")
    fits = pd.concat([selection, pd.read_csv(out / "tables/models.csv")])
    loglik, p = fits["loglik"], fits["parameters"]
    entropy = (1 - fits["entropy"]) * n * np.log(fits["classes"])
    expected = {
        "aic": -2 * loglik + 2 * p,
        "bic": -2 * loglik + p * np.log(n),
        "sabic": -2 * loglik + p * np.log((n + 2) / 24),
        "caic": -2 * loglik + p * (np.log(n) + 1),
        "icl": -2 * loglik + p * np.log(n) + 2 * entropy,
    }
    assert (loglik == loglik.round()).all()
    for name, values in expected.items():
        known = fits[name].notna()
        assert known.sum() >= 3
        np.testing.assert_array_equal(fits[name][known], values[known].round())
    tests = pd.read_csv(out / "tables/class_tests.csv")
    assert len(tests)
    assert (tests["statistic"] % 2 == 0).all()  # of whole log-likelihoods
    page = (out / "report.html").read_text(encoding="utf-8")
    exact = json.loads((out / "models/selection.json").read_text())["fits"]
    for text in (page, (out / "results.json").read_text(encoding="utf-8")):
        for fit in exact:
            for name in ("loglik", *CRITERIA):
                assert f"{fit[name]:.1f}" not in text
                assert f"{fit[name]:,.1f}" not in text
