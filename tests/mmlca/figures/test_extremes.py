"""Figures of inference and fit with long names, many classes and extreme numbers, and in given
Axes: all inside the figure, nothing on top of anything else."""

from __future__ import annotations

import dataclasses
from typing import Any

import matplotlib as mpl
import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences
from mmlca.figures.canvas import even_lines
from mmlca.figures.models import plot_alternatives
from mmlca.tables.diagnostics import Diagnostics
from mmlca.tables.survival import Survival

mpl.use("Agg")
LONG = "a name of a treatment of forty letters ok"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def settle(whole: Any) -> Figure:
    figure = whole if isinstance(whole, Figure) else whole.figure
    figure.draw_without_rendering()
    return figure


def texts(figure: Figure) -> list[mpl.text.Text]:
    return [t for t in figure.findobj(mpl.text.Text) if t.get_text().strip() and t.get_visible()]


def check(whole: Any) -> Figure:
    """All text lies inside the figure, and neither titles nor tick labels touch each other."""
    figure = settle(whole)
    inked = figure.get_tightbbox()
    assert min(inked.x0, inked.y0) >= -0.01
    assert (np.array([inked.x1, inked.y1]) <= figure.get_size_inches() + 0.01).all()
    for ax in figure.axes:
        low, high = ax.get_xlim()
        ticks = [t for t in ax.get_xticklabels() if low <= t.get_position()[0] <= high]
        apart(t for t in ticks if t.get_text())
    apart(ax.title for ax in figure.axes if ax.get_title())
    return figure


def apart(some: Any) -> None:
    boxes = [text.get_window_extent() for text in some]
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:i])


def effects(classes: list[Any], terms: list[str], sites: list[str]) -> pd.DataFrame:
    rows = [
        {"site": site, "class": k, "term": term, "estimate": 0.2, "low": -40.0, "high": 40.4}
        for site in sites
        for k in classes
        for term in terms
    ]
    return pd.DataFrame(rows)


def ratios(low: float, high: float, n: int = 5, name: str = "age") -> pd.DataFrame:
    value = np.exp(np.linspace(np.log(low), np.log(high), n))
    limits = {"or_low": value / 1.3, "or_high": value * 1.3}
    return pd.DataFrame({"class": 2, "term": name, "odds_ratio": value, **limits})


def survival(n_groups: int = 4, names: str = "") -> Survival:
    rng = np.random.default_rng(1)
    group = rng.integers(n_groups, size=600)
    time, end = rng.exponential(5 / (1 + group)) + 4, rng.uniform(4, 12, 600)
    clusters = [f"{names} {k}" if names else k + 1 for k in group]
    return mmlca.survival_by_cluster(np.minimum(time, end), time < end, clusters, window=4)


@pytest.fixture(scope="module")
def data() -> Sequences:
    stay = 0.6 * np.eye(3) + 0.4 / 3
    params = MarkovParams([1.0], [[0.4, 0.3, 0.3]], [stay])
    return mmlca.simulate(params, 200, 8, 1, states=["TNFi", "JAK", "IL6R"])[0]


@pytest.fixture(scope="module")
def fit(data: Sequences) -> Diagnostics:
    return mmlca.diagnose(MixtureMarkov(1, seed=1).fit(data), data, n_sim=3, seed=1)


# --- effects and intervals ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "terms", "sites"),
    [
        (list(range(2, 10)), ["age"], ["MGB"]),
        ([f"{LONG} {k}" for k in range(5)], [LONG, "age"], ["MGB", "VA"]),
        ([2, 3], ["age"], [f"Hospital of the city number {k}" for k in range(10)]),
        ([2], [f"term {k}" for k in range(40)], ["MGB"]),
    ],
    ids=["nine classes", "long names", "ten sites", "forty rows"],
)
def test_effects(classes: list[Any], terms: list[str], sites: list[str]) -> None:
    figure = check(mmlca.plot_effects(effects(classes, terms, sites)))
    assert figure.axes[0].get_window_extent().width > 60


@pytest.mark.parametrize(("low", "high"), [(0.01, 100), (0.8, 1.3), (0.4, 3), (1e-6, 1e6), (2, 2)])
def test_ratios_stand_at_round_numbers_of_one_size(low: float, high: float) -> None:
    ax = mmlca.plot_intervals(ratios(low, high))
    check(ax)
    ticks = ax.get_xticklabels(which="both")
    assert {text.get_fontsize() for text in ticks if text.get_text()} == {6.0}
    shown = [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    assert 3 <= len(shown) <= 9
    assert not any("times" in text.get_text() for text in ticks)


def test_long_names_of_intervals_leave_room_for_them() -> None:
    ax = mmlca.plot_intervals(ratios(0.5, 2, name=f"{LONG} and {LONG}"))
    check(ax)
    assert ax.get_window_extent().width > 150


def test_shares_begin_at_0_and_end_at_1(data: Sequences) -> None:
    errors = MixtureMarkov(1, seed=1).fit(data).standard_errors(data)
    low, high = mmlca.plot_intervals(errors, "weight").get_xlim()
    assert -0.05 < low <= 0
    assert 1 < high < 1.05


# --- survival ----------------------------------------------------------------------------


def test_numbers_at_risk_stand_below_the_ticks() -> None:
    result = survival()
    ax = mmlca.plot_survival(result, unit="years")
    check(ax)
    numbers = [t for t in ax.texts if t.get_text() != "At risk"]
    by_group = np.array_split(numbers, 4)
    assert len({tuple(t.xy[0] for t in part) for part in by_group}) == 1  # the same times
    assert {t.xy[0] for t in numbers} <= set(ax.get_xticks())
    mine = result.curves[result.curves["group"] == 2]
    for text in by_group[1]:
        later = mine[mine["time"] >= text.xy[0]]
        assert text.get_text() == f"{later['at_risk'].max() if len(later) else 0:,.0f}"


@pytest.mark.parametrize("names", ["", LONG])
@pytest.mark.parametrize("own", [True, False])
def test_the_legend_covers_no_curve(names: str, own: bool) -> None:
    ax = None if own else Figure(figsize=(7, 6), layout="constrained").subplots(2, 2)[0, 0]
    ax = mmlca.plot_survival(survival(4, names), ax=ax)
    check(ax)
    legend = ax.get_legend().get_window_extent()
    assert legend.y0 >= ax.transData.transform((0, 1.0))[1] - 1
    if not own:
        assert legend.y1 <= ax.get_window_extent().y1 + 1


# --- fit ---------------------------------------------------------------------------------


def test_residuals_beyond_two_have_their_sign_and_the_scale_says_that_it_ends(
    fit: Diagnostics,
) -> None:
    states = fit.states.assign(residual=0.5)
    states.loc[[0, 1, 2], "residual"] = [9.0, -2.5, np.nan]
    figure = check(mmlca.plot_residuals(dataclasses.replace(fit, states=states)))
    assert sorted(t.get_text() for t in figure.axes[0].texts) == ["+", "−"]
    words = " ".join(t.get_text() for t in texts(figure))
    assert "+ and −: beyond 2 standard errors" in words
    assert "no patient is expected" in words
    assert figure.axes[0].images[0].colorbar.extend == "both"
    plain = mmlca.plot_residuals(dataclasses.replace(fit, states=states.assign(residual=0.5)))
    assert plain.axes[0].images[0].colorbar.extend == "neither"
    assert not any("beyond" in t.get_text() for t in texts(plain))


def test_states_of_stays_differ_in_their_marker_and_durations_are_whole(
    fit: Diagnostics,
) -> None:
    ax = check(mmlca.plot_stays(fit)).axes[0]
    markers = [line.get_marker() for line in ax.get_lines() if line.get_linestyle() == "None"]
    assert len(set(markers)) == 3
    first = fit.stays[fit.stays["duration"] == 1]
    ax = mmlca.plot_stays(dataclasses.replace(fit, stays=first)).axes[0]
    shown = [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    assert shown == [1]
    lines = [line for line in ax.get_lines() if line.get_linestyle() == "-"]
    assert all(np.ptp(line.get_xdata()) > 0 for line in lines)  # a line of one time is seen too


# --- Axes of the caller ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state_distribution", "index", "frequencies", "representatives"])
def test_the_legend_covers_no_patients_in_given_axes(name: str, data: Sequences) -> None:
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    axes = figure.subplots(2, 2)
    ax = getattr(mmlca, f"plot_{name}")(data, ax=axes[0, 0])
    figure.draw_without_rendering()
    legend, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 > ax.transData.transform((data.shape[1] + 0.5, 0))[0]
    assert legend.x1 <= panel.x1 + 1
    assert legend.y0 >= panel.y0 - 1
    assert figure.get_size_inches().tolist() == [7.2, 5]
    mine = ax.get_tightbbox()
    assert not any(mine.overlaps(other.get_tightbbox()) for other in axes.ravel()[1:])


@pytest.mark.parametrize("n_classes", [1, 9])
def test_alternatives_of_one_class_and_of_many_hold_their_texts(n_classes: int) -> None:
    weights = np.full(n_classes, 1 / n_classes)
    params = MarkovParams(weights, np.full((n_classes, 2), 0.5), np.full((n_classes, 2, 2), 0.5))
    check(plot_alternatives({n_classes: params}, [LONG, "none"], 16))


def test_lines_of_a_note_are_even() -> None:
    assert even_lines("", 30) == []
    note = "Right: number of transitions (*: fewer than 20)"
    assert even_lines(note, 44) == ["Right: number of transitions", "(*: fewer than 20)"]


def test_site_differences_of_many_clusters_fit_into_their_cells(data: Sequences) -> None:
    halves = {"A": data[:100], "B": data[100:]}
    groups = {site: np.arange(100) % 8 + 1 for site in halves}
    result = mmlca.site_differences(halves, groups, n_boot=0)
    figure = settle(mmlca.plot_site_differences(result))
    (ax,) = [a for a in figure.axes if a.get_title().startswith("First")]
    wide = ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0]
    assert all(t.get_window_extent().width < wide for t in ax.texts)
