"""What uncertainty costs, in fits of the same data."""

from __future__ import annotations

import warnings

import pytest
from ra_like import cpu, ra_like

import ehr_prep
import mmlca
from mmlca import MixtureMarkov

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> mmlca.Sequences:
    """The 5,322 patients of the synthetic cohort, both sites together."""
    folder = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1).write(folder)
    sites = {}
    for site in ("MGB", "VA"):
        files = folder / site
        records = ehr_prep.read_records(
            files / "medications.csv", drugs="ra", patients=files / "patients.csv"
        )
        sites[site] = ehr_prep.build_sequences(records, preset="ra")
    return mmlca.Sequences.concat(sites)


def test_bootstrap_and_standard_errors(cohort: mmlca.Sequences) -> None:
    """500 refits of the cohort cost less than 20 default fits, standard errors less than one."""
    data = cohort
    assert len(data) == 5_322
    model = MixtureMarkov(4, seed=1).fit(data)
    fit = cpu(lambda: MixtureMarkov(4, seed=1).fit(data))
    mmlca.bootstrap(model, data, 2, seed=1)
    refits = cpu(lambda: mmlca.bootstrap(model, data, 500, seed=1), repeat=1)
    errors = {
        kind: cpu(lambda kind=kind: model.standard_errors(data, information=kind))
        for kind in ("opg", "observed", "sandwich")
    }
    print(
        f"\na default fit {fit:.2f} s; 500 refits {refits:.2f} s = {refits / fit:.1f} fits; "
        "standard errors " + ", ".join(f"{k} {1e3 * t:.0f} ms" for k, t in errors.items())
    )
    assert refits < 20 * fit
    assert max(errors.values()) < fit


def test_likelihood_ratio_test_ends_early() -> None:
    """Where one class more brings nothing, few simulations say so."""
    data = ra_like(2_172)
    mmlca.bootstrap_lrt(data, 2, n=1, seed=1)
    fit = cpu(lambda: MixtureMarkov(5, seed=1).fit(data), repeat=1)
    early = cpu(lambda: mmlca.bootstrap_lrt(data, 5, n=99, seed=1), repeat=1)
    print(f"\na default fit of 5 classes {fit:.2f} s; a test of 5 against 4 {early:.2f} s")
    assert early < 99 * fit / 2


def test_covariates_cost() -> None:
    import numpy as np
    import pandas as pd

    data = ra_like(2_172)
    table = pd.DataFrame({"x": np.random.default_rng(1).normal(size=len(data))})
    plain = cpu(lambda: MixtureMarkov(4, seed=1).fit(data))
    both = cpu(lambda: MixtureMarkov(4, seed=1).fit(data, covariates=table), repeat=2)
    print(f"\na fit {plain:.2f} s, with a continuous covariate {both:.2f} s")
    assert both < 10 * plain
