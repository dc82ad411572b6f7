"""Survival of uncertain classes: R and lifelines where classes are certain, simulation where not."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from paths import ROOT

import mmlca
from mmlca.tables.survival import Survival

lifelines = pytest.importorskip("lifelines")

EXACT = {"abs": 1e-8, "rel": 1e-8}


@pytest.fixture(scope="module")
def recorded() -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Patients, and what R's package survival says about them."""
    values = json.loads((ROOT / "tests" / "golden" / "r_survival.json").read_text())
    names = ["time", "event", "group", "z", "stratum"]
    numbers = {
        name: np.array(v) for name, v in values.items() if name[:2] in ("km", "aj", "co", "st")
    }
    return pd.DataFrame({name: values[name] for name in names}), numbers


def certain(data: pd.DataFrame, event: pd.Series, **options: object) -> Survival:
    """With memberships of 0 and 1; the landmark changes only the origin of time."""
    return mmlca.survival_by_cluster(
        data["time"] + 1,
        event,
        window=1,
        posterior=np.eye(3)[data["group"] - 1],
        covariates=data[["z"]],
        **options,
    )


def test_certain_classes_have_the_curves_of_r(recorded) -> None:
    data, r = recorded
    for name, event, competing in (("km", data["event"] == 1, None), ("aj", data["event"], 2)):
        found = certain(data, event, competing=competing).curves
        share = r[f"{name}_surv"] if name == "km" else 1 - r["aj_pstate"]
        assert found["time"].to_numpy() == pytest.approx(r[f"{name}_time"], **EXACT)
        assert found.groupby("group").size().tolist() == r[f"{name}_strata"].tolist()
        assert found["survival"].to_numpy() == pytest.approx(share, **EXACT)
        known = np.isfinite(r[f"{name}_se"])  # R has none where a curve ends at 0
        assert found["se"][known].to_numpy() == pytest.approx(r[f"{name}_se"][known], **EXACT)
        assert found["effective"].to_numpy() == pytest.approx(found["at_risk"].to_numpy())


@pytest.mark.parametrize("strata", [None, "stratum"])
def test_certain_classes_have_the_hazard_ratios_of_r(recorded, strata: str | None) -> None:
    data, r = recorded
    name = "cox" if strata is None else "strata"
    found = certain(
        data, data["event"], competing=2, strata=None if strata is None else data[strata]
    ).hazards
    assert np.log(found["hazard_ratio"].to_numpy(float)) == pytest.approx(
        r[f"{name}_coef"], **EXACT
    )
    se = np.log(found["high"] / found["low"]).to_numpy(float) / (2 * 1.959963984540054)
    assert se == pytest.approx(np.sqrt(r[f"{name}_robust"].reshape(3, 3).diagonal()), **EXACT)


def test_certain_classes_are_those_of_lifelines(recorded) -> None:
    data, _ = recorded
    found = certain(data, data["event"] == 1)
    for group, mine in data.groupby("group"):
        curve = found.curves[found.curves["group"] == group]
        kaplan = lifelines.KaplanMeierFitter().fit(mine["time"], mine["event"] == 1)
        expected = kaplan.survival_function_.to_numpy()[1:, 0]
        assert curve["survival"].to_numpy() == pytest.approx(expected, **EXACT)
        inside = curve["low"].notna().to_numpy()
        band = kaplan.confidence_interval_.to_numpy()[1:][inside]
        assert curve[["low", "high"]].to_numpy()[inside] == pytest.approx(band, **EXACT)
    frame = data.assign(hit=data["event"] == 1, two=data["group"] == 2, three=data["group"] == 3)[
        ["time", "hit", "two", "three", "z"]
    ].astype(float)
    cox = lifelines.CoxPHFitter().fit(frame, "time", "hit", fit_options={"precision": 1e-12})
    assert np.log(found.hazards["hazard_ratio"].to_numpy(float)) == pytest.approx(
        cox.params_.to_numpy(), **EXACT
    )


def test_certain_classes_have_the_incidence_of_lifelines(recorded) -> None:
    data, _ = recorded
    rng = np.random.default_rng(1)
    data = data.assign(time=data["time"] + rng.uniform(0, 0.01, len(data)))  # without ties
    found = certain(data, data["event"], competing=2).curves
    for group, mine in data.groupby("group"):
        aalen = lifelines.AalenJohansenFitter().fit(mine["time"], mine["event"], 1)
        expected = aalen.cumulative_density_.to_numpy()[1:, 0]
        share = 1 - found[found["group"] == group]["survival"].to_numpy()
        assert share == pytest.approx(expected, **EXACT)
