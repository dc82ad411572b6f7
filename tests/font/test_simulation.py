"""The simulation study: its data, reproducibility, resuming, and bounds on the numbers."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest

import font
from font import simulation

SMALL = {"setting": "imbalanced", "n_sites": 3, "variance": 0.1, "sizes": (50, 70)}


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    grid = {"setting": simulation.SETTINGS, "n_sites": [5], "variance": [0.1]}
    return font.run_simulation(grid, replicates=8, seed=3)


@pytest.mark.parametrize("setting", simulation.SETTINGS)
def test_the_sites_are_as_described(setting):
    sites = font.simulate_gaussian(setting, 10, 0.1, seed=4)
    assert all(50 <= len(points) <= 500 for points in sites.data.values())
    assert np.abs(sites.means).max() <= 1
    assert len(sites.contaminated) == (2 if setting == "contaminated" else 0)
    for site, points in sites.data.items():
        truth = sites.truth[site]
        outlying = (truth < 0).mean()
        assert outlying == pytest.approx(0.2 if site in sites.contaminated else 0.0, abs=0.01)
        noise = (points - sites.means[truth])[truth >= 0]
        assert noise.var() == pytest.approx(0.1, rel=0.2)
    every = np.concatenate(list(sites.truth.values()))
    if setting == "homogeneous":
        assert np.bincount(every) == pytest.approx(len(every) / 5, rel=0.2)


def test_readings_the_paper_leaves_open():
    one = font.simulate_gaussian("contaminated", 5, 0.01, seed=1, outlier_means="site")
    each = font.simulate_gaussian("contaminated", 5, 0.01, seed=1)
    spread = [
        s.data[s.contaminated[0]][s.truth[s.contaminated[0]] < 0].std(axis=0).mean()
        for s in (one, each)
    ]
    assert spread[0] < 0.2 < 2 < spread[1]
    more = font.simulate_gaussian(
        "contaminated", 5, 0.1, seed=1, outlier_points="add", sizes=(100, 100)
    )
    assert len(more.data[more.contaminated[0]]) == 120


def test_numbers_of_the_small_grid(results):
    mean = font.simulation_table(results).xs("mean", axis=1, level=1).droplevel([1, 2])
    assert mean.loc["homogeneous", "FONT"] > 0.97
    assert (mean["FONT"] > 0.9).all()
    assert (mean["FONT"] > mean["local"] - 0.005).all()
    assert mean.loc["imbalanced", "FONT"] > mean.loc["imbalanced", "local"] + 0.05
    assert mean.loc["contaminated", "FONT"] > mean.loc["contaminated", "k-FED"] + 0.1
    assert (mean["best local"] >= mean["local"]).all()
    assert ((mean["FONT"] - mean["consensus"]).abs() < 0.05).all()


def test_weights_follow_accuracy(results):
    concordance = font.simulation_table(results, "concordance")
    assert list(concordance.columns.levels[0]) == ["FONT"]
    assert concordance.loc["contaminated", ("FONT", "mean")].item() > 0.9
    angle = font.simulation_table(results, "angle").xs("mean", axis=1, level=1)
    assert (angle["FONT"] < angle["FONT equal"]).all()
    assert (angle["FONT"] < 10).all()


def test_cosines_with_the_truth_are_those_of_the_dense_matrices(dense):
    sites = font.simulate_gaussian("contaminated", 2, 0.3, seed=2, outlying=0.05)
    fitted = font.local_kmeans(sites.data, 30, seed=1)
    models = {name: model.cluster_centers_ for name, model in fitted.items()}
    table = font.label(fitted, np.concatenate(list(sites.data.values()))).astype(int)
    truth = np.concatenate(list(sites.truth.values()))
    rows = table.assign(truth=truth)[truth >= 0]
    expected = dense(models | {"truth": sites.means}, rows).cosines[:-1, -1]
    np.testing.assert_allclose(simulation._true_cosines(models, table, sites), expected)


def test_the_same_numbers_on_any_number_of_processes_and_in_any_grid():
    options = {"replicates": 3, "seed": 5, "n_starts": 2}
    alone = font.run_simulation([SMALL], **options)
    pair = font.run_simulation([SMALL | {"variance": 0.3}, SMALL], n_jobs=2, **options)
    again = pair[pair["variance"] == 0.1].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, again, check_exact=True)
    other = font.run_simulation([SMALL], **options | {"seed": 6})
    assert not other["ari"].equals(alone["ari"])


def test_finished_cells_are_read_and_not_run_again(tmp_path, monkeypatch):
    calls = []
    run = simulation._replicate
    monkeypatch.setattr(simulation, "_replicate", lambda *a: calls.append(a) or run(*a))
    options = {"seed": 5, "n_starts": 1, "folder": tmp_path / "new"}
    first = font.run_simulation([SMALL], 2, **options)
    assert len(calls) == 2
    pd.testing.assert_frame_equal(font.run_simulation([SMALL], 2, **options), first)
    assert len(calls) == 2
    seen = []
    more = font.run_simulation([SMALL], 3, progress=lambda *a: seen.append(a), **options)
    assert len(calls) == 3
    assert seen == [(3, 3)]
    pd.testing.assert_frame_equal(more[more["replicate"] < 2], first)
    pd.testing.assert_frame_equal(font.run_simulation([SMALL], 1, **options), first[:8])
    font.run_simulation([SMALL], 1, **options | {"n_starts": 2})
    assert len(calls) == 4
    files = list((tmp_path / "new").iterdir())
    assert {path.suffix for path in files} == {".json"}
    for path in files:
        path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="delete it"):
        font.run_simulation([SMALL], 1, **options)


def test_variations_of_the_local_models():
    cells = [SMALL, SMALL | {"n_local": 7}, SMALL | {"resamples": 3}, SMALL | {"noise_sites": 1}]
    found = font.run_simulation(cells, 3, seed=1, methods=["FONT", "local", "pooled"])
    table = font.simulation_table(found).xs("mean", axis=1, level=1)
    assert len(table) == 4
    assert table["pooled"].round(9).nunique() <= 3  # the same data, other random starts
    assert table["FONT"].iloc[1] > table["FONT"].iloc[0] - 0.1
    assert table["local"].iloc[3] < table["local"].iloc[0] - 0.1


def test_comparison_says_who_is_better(results):
    against = font.compare_methods(results, "FONT", "k-FED")
    assert against["verdict"].droplevel([1, 2])["contaminated"] == "better"
    assert font.compare_methods(results, "k-FED", "FONT")["difference"].tolist() == pytest.approx(
        (-against["difference"]).tolist()
    )
    with pytest.raises(ValueError, match="two different methods"):
        font.compare_methods(results, "FONT", "FONT")
    with pytest.raises(ValueError, match="the methods to compare must be one of"):
        font.compare_methods(results, "FONT", "x")


def test_figures(results):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = font.plot_simulation(results)
    assert len(figure.axes) == 3
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(simulation.METHODS)
    for measure in ("correlation", "concordance", "angle"):
        assert len(font.plot_weight_correlation(results, measure).axes) == 3
    with pytest.raises(ValueError, match="hold no weights"):
        font.plot_weight_correlation(results[results["method"] == "local"])
    with pytest.raises(ValueError, match="also vary in 'n_local'"):
        font.plot_simulation(results.assign(n_local=5))
    plt.close("all")


def test_errors_say_what_to_mend():
    for call, message in (
        (lambda: font.simulate_gaussian("odd", 5, 0.1), "setting must be one of"),
        (lambda: font.simulate_gaussian("homogeneous", 5, 0), "variance must be more than 0"),
        (lambda: font.simulate_gaussian("homogeneous", 5, 1, outlying=1), "outlying is a share"),
        (lambda: font.run_simulation([{"setting": "homogeneous"}]), "lacks 'n_sites', 'variance'"),
        (lambda: font.run_simulation([SMALL | {"x": 1}]), "unknown names 'x'"),
        (lambda: font.run_simulation([]), "no cells"),
        (lambda: font.run_simulation([SMALL], methods=["x"]), "each of methods must be one of"),
        (lambda: font.simulation_table(pd.DataFrame({"a": [1]})), "lack the columns"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
