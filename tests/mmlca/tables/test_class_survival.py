"""Survival of classes with memberships: R and lifelines where they are certain, else simulation."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from paths import ROOT

import mmlca
from mmlca.model.third_step import Step
from mmlca.tables.class_survival import (
    Members,
    _influence_sums,
    _newton,
    _score,
    _Stratum,
    proportions_among,
    weighted_curve,
)
from mmlca.tables.disclosure import is_small
from mmlca.tables.pooled_survival import pooled_survival
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


# --- influences, by derivatives -------------------------------------------------------------


def _uncertain(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, Members]:
    """Times with ties, events, a covariate, and classes assigned with errors."""
    rng = np.random.default_rng(seed)
    time, event = np.ceil(rng.exponential(4, n) * 2) / 2, rng.integers(0, 3, n)
    p = rng.dirichlet([0.4, 0.4, 0.4], n)
    step = Step(p, np.eye(3)[p.argmax(axis=1)], np.ones(n), np.ones(n), "BCH")
    return time, event, rng.normal(size=(n, 1)), Members(step, None)


def test_influences_on_curves_are_derivatives() -> None:
    time, event, _, members = _uncertain(1)
    weights = members.weights(members.step.errors)
    assert (weights < 0).any()
    times, place = np.unique(time, return_inverse=True)
    terms = np.random.default_rng(2).normal(size=(60, 2))
    for weight in weights.T:
        curve = weighted_curve(weight, place, event, len(times))
        known = (curve.at_risk > 0.5) & (curve.before > 0)
        known = np.cumprod(known).astype(bool)  # before a share of nobody
        v = np.empty((60, len(times)))
        for i in range(60):
            moved = []
            for by in (1 + 1e-6, 1 - 1e-6):
                other = np.where(np.arange(60) == i, by, 1.0) * weight
                moved.append(weighted_curve(other, place, event, len(times)).incidence)
            v[i] = (moved[0] - moved[1]) / 2e-6
        squares, cross = _influence_sums(curve, weight, place, event, terms)
        assert squares[known] == pytest.approx((v**2).sum(axis=0)[known], rel=1e-5, abs=1e-9)
        assert cross[known] == pytest.approx((v.T @ terms)[known], rel=1e-4, abs=1e-7)


def test_influences_on_hazards_are_derivatives() -> None:
    time, event, z, members = _uncertain(3)
    weights = members.weights(members.step.errors)
    parts = [np.arange(60)[half::2] for half in (0, 1)]
    blocks = [_Stratum(time, event == 1, z, rows, weights) for rows in parts]
    beta = _newton(blocks, weights)
    found = np.zeros((60, 3))
    for block in blocks:
        found[block.rows] = block.residuals(weights, beta)
    found = found @ np.linalg.inv(_score(blocks, weights, beta)[1]).T
    for i in range(60):
        each = []
        for by in (1 + 1e-5, 1 - 1e-5):
            factor = np.where(np.arange(60) == i, by, 1.0)[:, None]
            each.append(_newton(blocks, weights * factor))
        assert found[i] == pytest.approx((each[0] - each[1]) / 2e-5, abs=1e-6)


def test_proportions_among_those_who_reach_the_landmark() -> None:
    """If more patients of one class die early, the others' memberships have to know it."""
    rng = np.random.default_rng(4)
    second = rng.random(20_000) < 0.4
    x = rng.normal(size=20_000) + 1.5 * second
    odds = 0.4 / 0.6 * np.exp(1.5 * x - 1.5**2 / 2)
    p = np.column_stack([1 / (1 + odds), odds / (1 + odds)])
    alive = rng.random(20_000) < np.where(second, 0.3, 0.9)
    share = second[alive].mean()
    assert p[alive, 1].mean() > share + 0.05
    assert proportions_among(p, np.ones(20_000), alive)[alive, 1].mean() == pytest.approx(
        share, abs=0.015
    )


# --- what comes out, and what may be shown -----------------------------------------------------


CHAINS = mmlca.MarkovParams(
    [0.5, 0.3, 0.2],
    [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]],
    [
        [[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.4, 0.1, 0.5]],
        [[0.4, 0.5, 0.1], [0.1, 0.8, 0.1], [0.1, 0.5, 0.4]],
        [[0.4, 0.1, 0.5], [0.1, 0.4, 0.5], [0.1, 0.1, 0.8]],
    ],
)
HAZARD, RIVAL = np.array([0.1, 0.2, 0.4]), 0.05


def study(
    seed: int, n: int, length: int
) -> tuple[mmlca.MixtureMarkov, mmlca.Sequences, pd.DataFrame]:
    """A fitted model, its patients, and their times; the classes in the order of `CHAINS`."""
    sequences, truth = mmlca.simulate(CHAINS, n, length, seed=seed)
    rng = np.random.default_rng(seed + 10**6)
    ends = [
        rng.exponential(1 / HAZARD[truth]),
        rng.exponential(1 / RIVAL, n),
        rng.uniform(3, 12, n),
    ]
    frame = pd.DataFrame(
        {
            "time": length + np.min(ends, axis=0),
            "event": np.array([1, 2, 0])[np.argmin(ends, axis=0)],
            "class": np.asarray(truth) + 1,
        },
        index=sequences.ids,
    )
    return mmlca.MixtureMarkov(3, init=CHAINS, tol=1e-5).fit(sequences), sequences, frame


@pytest.fixture(scope="module")
def clear() -> tuple[Survival, pd.DataFrame]:
    model, sequences, frame = study(1, 1_000, 10)
    options = {"window": 10, "competing": 2, "posterior": model, "sequences": sequences}
    return mmlca.survival_by_cluster(frame["time"], frame["event"], **options), frame


def test_corrected_curves_are_near_the_truth(clear) -> None:
    found, frame = clear
    assert found.competing
    for group, hazard in zip((1, 2, 3), HAZARD, strict=True):
        curve = found.curves[found.curves["group"] == group].set_index("time")
        at = curve[curve.index <= 3].iloc[-1]
        truth = 1 - hazard / (hazard + RIVAL) * (1 - np.exp(-(hazard + RIVAL) * 3))
        assert abs(at["survival"] - truth) < 3 * at["se"] + 0.01
        assert curve["survival"].is_monotonic_decreasing
        assert curve["survival"].between(0, 1).all()
        assert (curve["effective"] <= curve["at_risk"] + 1e-9).all()
    ratio = found.hazards.set_index("group")["hazard_ratio"]
    assert ratio[2] == pytest.approx(2, rel=0.35)
    assert ratio[3] == pytest.approx(4, rel=0.35)
    assert found.tests["pair"].tolist() == [(1, 2, 3), (1, 2), (1, 3), (2, 3)]
    assert (found.tests["p_value"] < 0.01).all()
    z = np.log(ratio[3]) / (
        np.log(found.hazards["high"][1] / found.hazards["low"][1]) / (2 * 1.959963984540054)
    )
    assert found.tests["statistic"][2] == pytest.approx(z**2)
    plain = mmlca.survival_by_cluster(
        frame["time"], frame["event"], frame["class"], window=10, competing=2
    )
    assert "effective" not in plain.curves


def test_the_model_adds_uncertainty_and_memberships_alone_warn() -> None:
    model, sequences, frame = study(2, 500, 6)
    options = {"window": 6, "competing": 2}
    full = mmlca.survival_by_cluster(
        frame["time"], frame["event"], posterior=model, sequences=sequences, **options
    )
    with pytest.warns(UserWarning, match=r"the classes overlap \(entropy R² 0\.\d\d"):
        alone = mmlca.survival_by_cluster(
            frame["time"], frame["event"], posterior=model.predict_proba(sequences), **options
        )
    width = [np.log(found.hazards["high"] / found.hazards["low"]) for found in (full, alone)]
    assert (width[0] > width[1]).all()
    again = mmlca.survival_by_cluster(
        frame["time"], frame["event"], posterior=model, sequences=sequences, **options
    )
    pd.testing.assert_frame_equal(again.curves, full.curves)


def test_no_stretch_of_the_shown_curves_rests_on_few_of_any_class(clear) -> None:
    """From the curves of all classes follow those of the patients assigned to each."""
    full, _ = clear
    shown = full.shown(11)
    assigned, curves = full.assigned, shown.curves
    assert assigned is not None
    every = sorted(curves["time"].unique())
    assert len(every) >= 4
    assert np.allclose(np.array(every) * 20, np.round(np.array(every) * 20))
    for _, mine in assigned.groupby("group"):
        before = 0.0
        for time in every:
            here = mine[(mine["time"] > before + 1e-9) & (mine["time"] <= time + 1e-9)]
            left = (here["left"] + here["competing"]).sum()
            assert not is_small([here["events"].sum(), left], 11).any()
            before = time
    for _, curve in curves.groupby("group"):
        assert set(curve["time"]) <= set(every)
        assert (curve["at_risk"] == curve["at_risk"].round()).all()
        assert (curve["survival"].round(3) == curve["survival"]).all()


def test_numbers_at_risk_of_all_classes_hide_together() -> None:
    """One class of whom few die before the landmark; the sizes at the start are known."""
    model, sequences, frame = study(5, 900, 10)
    label = model.predict(sequences)
    early = np.flatnonzero(label == 2)[:4]
    time = frame["time"].to_numpy().copy()
    time[early] = 5.0
    full = mmlca.survival_by_cluster(
        time, frame["event"].to_numpy() > 0, window=10, posterior=model, sequences=sequences
    )
    shown = full.shown(11)
    assert len(shown.curves)
    assert shown.curves[["at_risk", "effective", "events", "left"]].isna().all(axis=None)


def test_the_figure_has_effective_numbers(clear) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    full, _ = clear
    ax = mmlca.plot_survival(full, min_count=11)
    texts = [text.get_text() for text in ax.texts]
    assert "Effective number at risk" in texts
    drawn = {float(text.replace(",", "")) for text in texts if text[:1].isdigit()}
    assert drawn <= set(full.shown(11).curves["effective"])
    plt.close(ax.figure)
    plt.close(mmlca.plot_survival(full).figure)


def test_sites_are_pooled(clear) -> None:
    one, _ = clear
    model, sequences, frame = study(6, 600, 10)
    two = mmlca.survival_by_cluster(
        frame["time"], frame["event"], window=10, competing=2, posterior=model, sequences=sequences
    )
    hazards, curves = pooled_survival({"A": one, "B": two})
    logs = [np.log(r.hazards.set_index("group")["hazard_ratio"][3]) for r in (one, two)]
    widths = [np.log(r.hazards["high"][1] / r.hazards["low"][1]) for r in (one, two)]
    weight = 1 / np.array(widths) ** 2
    third = hazards[hazards["group"] == 3].iloc[0]
    assert np.log(third["hazard_ratio"]) == pytest.approx(np.average(logs, weights=weight))
    assert third["sites"] == 2
    assert third["random_low"] <= third["random"] <= third["random_high"]
    expected, size = [], []
    for result in (one, two):
        curve = result.curves[result.curves["group"] == 1]
        size.append(curve["at_risk"].iloc[0])
        expected.append(curve[curve["time"] <= 2]["survival"].iloc[-1])
    pooled = curves[(curves["group"] == 1) & (curves["time"] <= 2)].iloc[-1]
    assert pooled["survival"] == pytest.approx(np.average(expected, weights=size))
    assert pooled["low"] < pooled["survival"] < pooled["high"]
    alone = pooled_survival({"A": one}).curves
    pd.testing.assert_series_equal(alone["survival"], one.curves["survival"])
    pd.testing.assert_series_equal(alone["se"], one.curves["se"])


# --- what is refused or said -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": -1.0}, r"times must be at least 0 and finite; found -1\.0 for 1 of 60"),
        ({"event": 7}, "found 7: name these in competing"),
        ({"clusters": None, "posterior": None}, "give the clusters of the patients"),
        ({"posterior": None, "sequences": [[0]]}, "belong to a model"),
        ({"posterior": np.full((60, 2), 0.4)}, "add up to 1"),
        ({"posterior": np.full((59, 2), 0.5)}, "found 60 times for 59 patients"),
        ({"posterior": np.tile([0.97, 0.03], (60, 1)), "clusters": None}, "single cluster"),
        ({"posterior": pd.DataFrame(np.full((60, 2), 0.5)).add_prefix("c")}, "no id in common"),
        ({"clusters": np.full(60, 9)}, "labels that are not classes"),
    ],
)
def test_bad_input_is_said_in_a_sentence(change: dict[str, object], message: str) -> None:
    rng = np.random.default_rng(7)
    ids = [f"p{i}" for i in range(60)]
    second = np.where(np.arange(60) % 2, 0.97, 0.03)
    given: dict[str, object] = {
        "time": pd.Series(4 + rng.exponential(3, 60), ids),
        "event": pd.Series(rng.integers(0, 2, 60), ids),
        "posterior": np.column_stack([1 - second, second]),
    }
    for name, value in change.items():
        if name in ("time", "event"):
            given[name] = given[name].mask(np.arange(60) == 3, value)  # type: ignore[attr-defined]
        else:
            given[name] = value
    with pytest.raises(ValueError, match=message):
        mmlca.survival_by_cluster(**given, window=4)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:the classes overlap")
def test_a_class_that_is_only_noise_is_refused() -> None:
    rng = np.random.default_rng(9)
    p = np.tile([0.45, 0.35, 0.2], (90, 1)) + rng.uniform(-0.02, 0.02, (90, 3))
    p /= p.sum(axis=1, keepdims=True)
    label = np.repeat([1, 2, 3], [40, 30, 20])
    with pytest.raises(ValueError, match="cannot be told from nobody"):
        mmlca.survival_by_cluster(
            5 + rng.exponential(3, 90), rng.random(90) < 0.7, label, window=5, posterior=p
        )


def test_patients_without_a_time_are_counted() -> None:
    rng = np.random.default_rng(8)
    ids = [f"p{i}" for i in range(80)]
    second = np.where(np.arange(80) % 2, 0.97, 0.03)
    posterior = pd.DataFrame({"A": 1 - second, "B": second}, ids)
    time = pd.Series(4 + rng.exponential(3, 70), ids[:70])
    event = pd.Series(rng.integers(0, 2, 70), ids[:70])
    with pytest.warns(UserWarning, match="10 of 80 patients with a cluster are not among those"):
        found = mmlca.survival_by_cluster(time, event, window=4, posterior=posterior)
    assert found.excluded["included"].sum() == 70
    assert found.hazards["term"].tolist() == ["B against A"]
    with pytest.warns(UserWarning, match="10 of 80 patients with a cluster"):
        mmlca.survival_by_cluster(
            time, event, posterior.idxmax(axis=1), window=4, posterior=posterior
        )
    event.iloc[:5] = np.nan
    with pytest.warns(UserWarning, match="5 of 70 patients lack a time, an event"):
        mmlca.survival_by_cluster(
            time, event.astype("Int64"), window=4, posterior=posterior.iloc[:70]
        )


@pytest.mark.slow
def test_intervals_of_classes_that_overlap_cover() -> None:
    """At an entropy R² of about .64, of hazard ratios and of incidences with competing deaths."""
    hits: list[np.ndarray] = []
    for seed in range(120):
        model, sequences, frame = study(seed, 800, 6)
        found = mmlca.survival_by_cluster(
            frame["time"], frame["event"], window=6, competing=2,
            posterior=model, sequences=sequences,
        )  # fmt: skip
        staying = np.diagonal(model.params_.transition, axis1=1, axis2=2)
        order = staying.argmax(axis=1)  # which of the true classes each is
        if order[0] != 0:
            continue  # the reference is another class
        ratios = found.hazards.iloc[:2]
        truth = HAZARD[order[1:]] / HAZARD[0]
        hit = list((ratios["low"] <= truth) & (truth <= ratios["high"]))
        for group, k in enumerate(order, start=1):
            curve = found.curves[found.curves["group"] == group]
            at = curve[curve["time"] <= 2].iloc[-1]
            both = HAZARD[k] + RIVAL
            share = 1 - HAZARD[k] / both * (1 - np.exp(-both * 2))
            hit.append(at["low"] <= share <= at["high"])
        hits.append(np.array(hit)[[*np.argsort(order[1:]), *(2 + np.argsort(order))]])
    assert len(hits) > 100
    assert np.mean(hits, axis=0).min() >= 0.91  # 93 % but for chance
