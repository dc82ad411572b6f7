"""Survival by cluster: lifelines as the oracle, the landmark, and attacks on small numbers."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.tables.disclosure import coarse_times, is_small
from mmlca.tables.survival import incidence_curve

lifelines = pytest.importorskip("lifelines")


def patients(seed: int, n: int = 600, ties: bool = True) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    group = rng.choice([1, 2, 3], n, p=[0.5, 0.3, 0.2])
    ends = [rng.exponential(6.0 * group), rng.exponential(25.0, n), rng.uniform(2, 14, n)]
    if ties:
        ends = [np.ceil(end * 4) / 4 for end in ends]
    kind = np.argmin(ends, axis=0)
    frame = pd.DataFrame({"time": np.min(ends, axis=0), "event": np.array([1, 2, 0])[kind]})
    frame["cluster"] = group
    return frame.assign(age=rng.normal(size=n), sex=rng.choice(["F", "M"], n))


def test_curves_are_those_of_lifelines() -> None:
    data = patients(1, ties=False)
    late = data[data["time"] > 4]
    plain = mmlca.survival_by_cluster(data["time"], data["event"] == 1, data["cluster"], window=4)
    rival = mmlca.survival_by_cluster(
        data["time"], data["event"], data["cluster"], window=4, competing=2
    )
    assert rival.competing
    assert not plain.competing
    for group in (1, 2, 3):
        mine = late[late["cluster"] == group]
        curve = plain.curves[plain.curves["group"] == group]
        kaplan = lifelines.KaplanMeierFitter().fit(mine["time"] - 4, mine["event"] == 1)
        assert curve["survival"].to_numpy() == pytest.approx(
            kaplan.survival_function_.to_numpy()[1:, 0]
        )
        inside = curve["survival"].between(0.001, 0.999).to_numpy()
        band = kaplan.confidence_interval_.to_numpy()[1:][inside]
        assert curve[["low", "high"]].to_numpy()[inside] == pytest.approx(band)
        curve = rival.curves[rival.curves["group"] == group]
        aalen = lifelines.AalenJohansenFitter().fit(mine["time"] - 4, mine["event"], 1)
        assert 1 - curve["survival"].to_numpy() == pytest.approx(
            aalen.cumulative_density_.to_numpy()[1:, 0]
        )
        kinds = mine["event"].map({1: "events", 0: "left", 2: "left"}).value_counts()
        assert curve[["events", "left"]].sum().to_dict() == kinds.to_dict()


def test_incidence_by_hand() -> None:
    # 5 at risk: 1 event, 1 rival; then 3 at risk, of whom 1 has the event
    share, variance = incidence_curve([5, 3], [1, 1], [1, 0])
    assert share.tolist() == pytest.approx([0.2, 0.2 + 0.6 / 3])
    assert variance[0] == pytest.approx(0.2 * 0.8 / 5)  # binomial until someone leaves


def test_tests_and_regression_are_those_of_lifelines() -> None:
    data = patients(2)
    late = data[data["time"] > 4].assign(
        time=lambda f: f["time"] - 4, hit=lambda f: f["event"] == 1
    )
    found = mmlca.survival_by_cluster(
        data["time"],
        data["event"],
        data["cluster"],
        window=4,
        competing=2,
        covariates=data[["age", "sex"]],
    )
    test = lifelines.statistics.multivariate_logrank_test(
        late["time"], late["cluster"], late["hit"]
    )
    assert found.tests["p_value"][0] == pytest.approx(test.p_value)
    assert found.tests["p_holm"][1:].ge(found.tests["p_value"][1:]).all()
    frame = late.assign(
        two=late["cluster"] == 2, three=late["cluster"] == 3, male=late["sex"] == "M"
    )[["time", "hit", "two", "three", "age", "male"]].astype(float)
    cox = lifelines.CoxPHFitter().fit(frame, "time", "hit")
    assert found.hazards["term"].tolist() == ["2 against 1", "3 against 1", "age", "sex[M]"]
    assert found.hazards["hazard_ratio"].to_numpy() == pytest.approx(cox.hazard_ratios_.to_numpy())
    with_strata = mmlca.survival_by_cluster(
        data["time"], data["event"] == 1, data["cluster"], window=4, strata=data["sex"]
    )
    assert np.isfinite(with_strata.hazards["hazard_ratio"]).all()


def test_the_landmark_protects_from_immortal_time() -> None:
    """Clusters of those who lived to be treated: the naive comparison sees an effect, ours none."""
    rng = np.random.default_rng(3)
    death, start = rng.exponential(5.0, 4_000), rng.uniform(0, 3, 4_000)
    treated = start < death
    group = np.where(treated & (start > 0.5), 2, 1)
    time, event = np.minimum(death, 10), death < 10
    naive = lifelines.statistics.logrank_test(
        time[group == 1], time[group == 2], event[group == 1], event[group == 2]
    )
    found = mmlca.survival_by_cluster(time, event, group, window=3)
    assert naive.p_value < 1e-6
    assert found.tests["p_value"][0] > 0.01
    counted = found.excluded.set_index("group")
    assert counted.loc[1, "event"] == (time[group == 1] <= 3).sum()
    assert counted["all"].sum() == 4_000
    assert found.curves.groupby("group")["at_risk"].first().tolist() == [
        ((group == k) & (time > 3)).sum() for k in (1, 2)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"landmark": 3}, "lies inside the window of 4"),
        ({"window": 0}, "window must be a length"),
        ({"window": 40}, "nobody is followed beyond the landmark at 40"),
        ({"event": [0, 1, 2, 0] * 150}, "name these in competing"),
        ({"event": [0] * 600}, "no patient has the event"),
        ({"clusters": [1] * 600}, "single cluster"),
        ({"time": [-1.0] * 600}, "times must be at least 0"),
        ({"event": [1, 0]}, "found 2 values of event"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    data = patients(4)
    given = {"time": data["time"], "event": data["event"] == 1, "clusters": data["cluster"]}
    with pytest.raises(ValueError, match=message):
        mmlca.survival_by_cluster(**({**given, "window": 4} | change))


def test_missing_values_are_counted_and_lifelines_is_named(monkeypatch) -> None:
    data = patients(5)
    with pytest.warns(UserWarning, match="7 of 600 patients lack"):
        mmlca.survival_by_cluster(
            data["time"].mask(data.index < 7), data["event"] == 1, data["cluster"], window=4
        )
    monkeypatch.setitem(sys.modules, "lifelines.statistics", None)
    with pytest.raises(ImportError, match=r"install mmlca\[survival\]"):
        mmlca.survival_by_cluster(data["time"], data["event"] == 1, data["cluster"], window=4)


# --- attacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_no_stretch_of_a_shown_curve_rests_on_few(seed: int) -> None:
    data = patients(seed, n=400, ties=bool(seed % 2))
    full = mmlca.survival_by_cluster(
        data["time"], data["event"], data["cluster"], window=4, competing=2
    )
    shown = full.shown(11)
    late = data[data["time"] > 4].assign(time=lambda f: f["time"] - 4)
    for group, rows in shown.curves.groupby("group"):
        mine, before = late[late["cluster"] == group], 0.0
        assert rows["time"].iloc[-1] >= mine["time"].max() - 1e-9  # nobody is left over
        for time in rows["time"]:
            here = mine[(mine["time"] > before + 1e-9) & (mine["time"] <= time + 1e-9)]
            hits = (here["event"] == 1).sum()
            assert not is_small([hits, len(here) - hits], 11).any()
            before = time
        drops = np.diff(np.append(rows["at_risk"], 0))
        assert not is_small(-drops, 11).any()
        # the times shown are round, not those of a patient
        assert np.allclose(rows["time"] * 20, np.round(rows["time"] * 20))
    table = shown.excluded.set_index("group")
    assert not is_small(table.fillna(0), 11).any()
    for group, row in table.iterrows():  # sizes are known from elsewhere
        lost = (data["cluster"] == group).sum() - len(late[late["cluster"] == group])
        if is_small(lost, 11):
            assert shown.curves.loc[shown.curves["group"] == group, "at_risk"].isna().all()
            assert row["included"] is np.nan or np.isnan(row["included"])


def test_few_events_hide_group_test_and_ratio() -> None:
    rng = np.random.default_rng(9)
    group = np.repeat([1, 2, 3], [300, 200, 60])
    death = rng.exponential(np.where(group == 3, 200.0, 10.0))
    time = np.minimum(death, rng.uniform(3, 12, 560))
    full = mmlca.survival_by_cluster(time, death == time, group, window=2)
    events = full.curves.groupby("group")["events"].sum()
    assert is_small(events[3], 11)
    shown = full.shown(11)
    assert set(shown.curves["group"]) == {1, 2}
    tests = shown.tests.set_index("test")["p_value"]
    assert tests.notna().to_dict() == {
        "all groups equal": False,
        "1 and 2": True,
        "1 and 3": False,
        "2 and 3": False,
    }
    assert shown.hazards["hazard_ratio"].notna().tolist() == [True, False]
    assert full.shown(1) is full


def test_coarse_times_against_all_subsets() -> None:
    """What is kept is allowed, and the first time shown is the earliest that can be."""
    rng = np.random.default_rng(10)
    for _ in range(200):
        counts = rng.integers(0, 6, size=(rng.integers(1, 8), 2))
        kept = coarse_times(counts, 5)
        ends = np.concatenate([[-1], kept])
        parts = [
            counts[a + 1 : b + 1].sum(axis=0) for a, b in zip(ends[:-1], ends[1:], strict=True)
        ]
        assert not any(is_small(part, 5).any() for part in parts)
        if len(kept):
            assert counts[kept[-1] + 1 :].sum() == 0
        elif counts.sum():
            assert is_small(counts.sum(axis=0), 5).any()


def test_the_figure_draws_the_shown_table() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    data = patients(11)
    result = mmlca.survival_by_cluster(data["time"], data["event"] == 1, data["cluster"], window=4)
    ax = mmlca.plot_survival(result, min_count=11, unit="years")
    curves = result.shown(11).curves
    for line, (_, rows) in zip(ax.get_lines(), curves.groupby("group"), strict=True):
        assert line.get_xdata()[1:].tolist() == rows["time"].tolist()
        assert line.get_ydata()[1:].tolist() == rows["survival"].tolist()
    numbers = {float(t.get_text().replace(",", "")) for t in ax.texts if t.get_text()[0].isdigit()}
    assert numbers <= set(curves["at_risk"])
    plt.close(ax.figure)
    with pytest.raises(ValueError, match="nothing to draw"):
        mmlca.plot_survival(result, min_count=500)


def test_the_end_of_a_curve_does_not_tell_what_the_last_patient_had() -> None:
    """The estimate falls to 0 where the last of a group has the event, and only there."""
    rng = np.random.default_rng(12)
    group = np.repeat([1, 2], 200)
    time = 2 + rng.uniform(0.1, 8, 400)
    event = rng.random(400) < 0.4
    curves = {}
    for last in (True, False):
        time[0], time[1] = 10.5, 10.45  # one of these two of group 1 has the event
        event[:2] = last, not last
        full = mmlca.survival_by_cluster(time, event, group, window=2)
        ends = full.curves[full.curves["group"] == 1]["survival"].iloc[-1]
        assert (ends < 1e-12) == last
        curves[last] = full.shown(11).curves
    pd.testing.assert_frame_equal(curves[True], curves[False])
