"""The simulation study: its data, reproducibility, resuming, and bounds on the numbers."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest

import font
from font.clustering import plain_seeds
from font.simulation import competitors, replicate
from font.simulation import run as simulation
from font.simulation.competitors import fit_kmeans, k_fed
from font.simulation.run import run_simulation, simulation_table
from font.simulation.sources import simulate_gaussian

SMALL = {"setting": "imbalanced", "n_sites": 3, "variance": 0.1, "sizes": (50, 70)}


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    grid = {"setting": simulation.SETTINGS, "n_sites": [5], "variance": [0.1]}
    return run_simulation(grid, replicates=8, seed=3)


@pytest.mark.parametrize("setting", simulation.SETTINGS)
def test_the_sites_are_as_described(setting):
    sites = simulate_gaussian(setting, 10, 0.1, seed=4)
    assert all(50 <= (truth >= 0).sum() <= 500 for truth in sites.truth.values())
    assert np.abs(sites.means).max() <= 1
    assert len(sites.contaminated) == (2 if setting == "contaminated" else 0)
    for site, points in sites.data.items():
        truth = sites.truth[site]
        outlying = (truth < 0).mean()
        assert outlying == pytest.approx(0.2 / 1.2 if site in sites.contaminated else 0.0, abs=0.01)
        noise = (points - sites.means[truth])[truth >= 0]
        assert noise.var() == pytest.approx(0.1, rel=0.2)
    every = np.concatenate(list(sites.truth.values()))
    if setting == "homogeneous":
        assert np.bincount(every) == pytest.approx(len(every) / 5, rel=0.2)


def test_readings_the_paper_leaves_open():
    one = simulate_gaussian("contaminated", 5, 0.01, seed=1, outlier_means="site")
    each = simulate_gaussian("contaminated", 5, 0.01, seed=1)
    spread = [
        s.data[s.contaminated[0]][s.truth[s.contaminated[0]] < 0].std(axis=0).mean()
        for s in (one, each)
    ]
    assert spread[0] < 0.2 < 2 < spread[1]
    for how, n in (("add", 120), ("replace", 100)):
        more = simulate_gaussian(
            "contaminated", 5, 0.1, seed=1, outlier_points=how, sizes=(100, 100)
        )
        assert len(more.data[more.contaminated[0]]) == n
        assert (more.truth[more.contaminated[0]] < 0).sum() == 20


def test_numbers_of_the_small_grid(results):
    mean = simulation_table(results).xs("mean", axis=1, level=1).droplevel([1, 2])
    assert mean.loc["homogeneous", "FONT"] > 0.97
    assert (mean["FONT"] > 0.9).all()
    assert (mean["FONT"] > mean["local"] - 0.005).all()
    assert mean.loc["imbalanced", "FONT"] > mean.loc["imbalanced", "local"] + 0.05
    assert mean.loc["contaminated", "FONT"] > mean.loc["contaminated", "k-FED"] + 0.1
    assert (mean["best local"] >= mean["local"]).all()
    assert ((mean["FONT"] - mean["consensus"]).abs() < 0.05).all()


def test_weights_follow_accuracy(results):
    concordance = simulation_table(results, "concordance")
    assert list(concordance.columns.levels[0]) == ["FONT"]
    assert concordance.loc["contaminated", ("FONT", "mean")].item() > 0.9
    angle = simulation_table(results, "angle").xs("mean", axis=1, level=1)
    assert (angle["FONT"] < angle["FONT equal"]).all()
    assert (angle["FONT"] < 10).all()


def test_every_model_fitted_to_patients_has_the_same_number_of_starts(monkeypatch):
    """A comparison in which one method has fewer starts measures the starts, not the method."""
    starts = []
    fit = competitors._kmeans

    def counted(n_clusters, init, n_init, seed, points):
        if init is plain_seeds:  # k-FED's last fit begins at given means instead
            starts.append((n_init, len(points)))
        return fit(n_clusters, init, n_init, seed, points)

    monkeypatch.setattr(competitors, "_kmeans", counted)
    methods = ["local", "k-FED", "pooled"]
    run_simulation([SMALL], 1, seed=5, n_init=4, methods=methods)
    assert {n_init for n_init, _ in starts} == {4}
    sites = [n for _, n in starts[:3]]  # each site's own, each inside k-FED, all together
    assert [n for _, n in starts] == [*sites, *sites, sum(sites)]
    defaults = [
        inspect.signature(function).parameters["n_init"].default
        for function in (k_fed, run_simulation)
    ]
    assert set(defaults) == {10}


def test_cosines_with_the_truth_are_those_of_the_dense_matrices(dense):
    sites = simulate_gaussian("contaminated", 2, 0.3, seed=2, outlying=0.05)
    fitted = {site: fit_kmeans(x, 30, 10, 1, site) for site, x in sites.data.items()}
    models = {name: model.cluster_centers_ for name, model in fitted.items()}
    table = font.label(fitted, np.concatenate(list(sites.data.values()))).astype(int)
    truth = np.concatenate(list(sites.truth.values()))
    rows = table.assign(truth=truth)[truth >= 0]
    expected = dense(models | {"truth": sites.means}, rows).cosines[:-1, -1]
    np.testing.assert_allclose(replicate.true_cosines(models, table, truth, sites.means), expected)


def test_the_same_numbers_on_any_number_of_processes_and_in_any_grid():
    options = {"replicates": 3, "seed": 5, "n_init": 2}
    alone = run_simulation([SMALL], **options)
    pair = run_simulation([SMALL | {"variance": 0.3}, SMALL], n_jobs=2, **options)
    again = pair[pair["variance"] == 0.1].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, again, check_exact=True)
    other = run_simulation([SMALL], **options | {"seed": 6})
    assert not other["ari"].equals(alone["ari"])


def test_finished_scenarios_are_read_and_not_run_again(tmp_path, monkeypatch):
    calls = []
    run = simulation.replicate_rows
    monkeypatch.setattr(simulation, "replicate_rows", lambda *a: calls.append(a) or run(*a))
    options = {"seed": 5, "n_init": 1, "folder": tmp_path / "new"}
    first = run_simulation([SMALL], 2, **options)
    assert len(calls) == 2
    pd.testing.assert_frame_equal(run_simulation([SMALL], 2, **options), first)
    assert len(calls) == 2
    seen = []
    more = run_simulation([SMALL], 3, progress=lambda *a: seen.append(a), **options)
    assert len(calls) == 3
    assert seen == [(3, 3)]
    pd.testing.assert_frame_equal(more[more["replicate"] < 2], first)
    pd.testing.assert_frame_equal(
        run_simulation([SMALL], 1, **options), first[: len(simulation.METHODS)]
    )
    run_simulation([SMALL], 1, **options | {"n_init": 2})
    assert len(calls) == 4
    files = list((tmp_path / "new").iterdir())
    assert {path.suffix for path in files} == {".json"}
    for path in files:
        path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="delete it"):
        run_simulation([SMALL], 1, **options)


def test_variations_of_the_local_models():
    scenarios = [
        SMALL,
        SMALL | {"n_local": 7},
        SMALL | {"resamples": 3},
        SMALL | {"noise_sites": 1},
    ]
    found = run_simulation(scenarios, 3, seed=1, methods=["FONT", "local", "pooled"])
    table = simulation_table(found).xs("mean", axis=1, level=1)
    assert len(table) == 4
    assert table["pooled"].round(9).nunique() <= 3  # the same data, other random starts
    assert table["FONT"].iloc[1] > table["FONT"].iloc[0] - 0.1
    assert table["local"].iloc[3] < table["local"].iloc[0] - 0.1


def test_sites_that_do_harm_and_weights_that_know():
    scenario = {"setting": "imbalanced", "n_sites": 6, "variance": 0.05, "sizes": (80, 120)}
    scenarios = [scenario | {"noise_sites": 3}, scenario | {"adversarial_sites": 2}]
    methods = ["FONT", "FONT centred", "FONT sparse", "FONT prior", "FONT any K"]
    found = run_simulation(scenarios, 4, seed=1, methods=methods)
    weight = simulation_table(found, "bad_weight").xs("mean", axis=1, level=1)
    assert (weight["FONT"] > 0.75).all()  # the paper's weights hardly see it
    assert (weight["FONT centred"] < 0.2).all()
    assert (weight["FONT sparse"] == 0).all()
    assert (weight["FONT prior"] < weight["FONT"]).all()
    mean = simulation_table(found).xs("mean", axis=1, level=1)
    assert (mean["FONT sparse"] > 0.9).all()


def test_rounded_tables_find_the_groups_too():
    grid = {"setting": simulation.SETTINGS, "n_sites": [5], "variance": [0.05]}
    methods = ["FONT", "tables kmeans", "tables latent"]
    found = run_simulation(grid, 4, seed=2, methods=methods)
    mean = simulation_table(found).xs("mean", axis=1, level=1)
    assert (mean["tables latent"] > mean["FONT"] - 0.02).all()
    assert (mean["tables kmeans"] > 0.8).all()


def test_fewer_clusters_where_the_models_distinguish_fewer():
    scenario = {"setting": "homogeneous", "n_sites": 3, "variance": 0.0001, "n_local": 2}
    scenarios = [scenario | {"sizes": (50, 60)}]
    found = run_simulation(scenarios, 3, seed=2, methods=["consensus", "FONT"])
    assert found["ari"].between(0.1, 1).all()


def test_sites_that_lack_classes():
    sites = simulate_gaussian("homogeneous", 4, 0.1, seed=1, absent_classes=2)
    assert [len(np.unique(truth)) for truth in sites.truth.values()] == [3, 3, 3, 3]
    assert len(np.unique(np.concatenate(list(sites.truth.values())))) == 5
    with pytest.raises(ValueError, match="5 of 5 classes cannot be absent"):
        simulate_gaussian("homogeneous", 4, 0.1, absent_classes=5)


def test_a_default_spelled_out_gives_the_same_data():
    spelled = SMALL | {"outlier_means": "point", "absent_classes": 0}
    one, other = (
        run_simulation([scenario], 2, methods=["pooled", "local"]) for scenario in (SMALL, spelled)
    )
    assert one["ari"].tolist() == other["ari"].tolist()


def test_replicates_are_added_until_the_numbers_are_precise(tmp_path):
    options = {"seed": 5, "n_init": 1, "methods": ["local", "FONT"], "folder": tmp_path}
    found = run_simulation([SMALL], 4, precision=0.03, **options)
    se = simulation_table(found).xs("se", axis=1, level=1)
    assert se.max().max() <= 0.031
    n = found["replicate"].nunique()
    assert n > 4
    capped = run_simulation([SMALL], 4, precision=0.001, most=6, **options)
    assert capped["replicate"].nunique() == 6
    again = run_simulation([SMALL], 4, precision=0.03, resume=False, **options)
    pd.testing.assert_frame_equal(again, found)
    with pytest.raises(ValueError, match="precision must be more than 0"):
        run_simulation([SMALL], 4, precision=0)


EXPECTED = {  # local, k-FED, consensus, FONT, pooled, best local; correlation of the weights
    ("homogeneous", 5, 0.1): (0.991, 0.845, 0.992, 0.992, 0.992, 0.993, 0.33),
    ("homogeneous", 10, 0.3): (0.836, 0.748, 0.857, 0.856, 0.858, 0.856, 0.88),
    ("imbalanced", 5, 0.05): (0.927, 0.835, 0.996, 0.999, 1.000, 1.000, 0.90),
    ("imbalanced", 5, 0.3): (0.667, 0.687, 0.824, 0.827, 0.853, 0.827, 0.87),
    ("imbalanced", 50, 0.1): (0.874, 0.818, 0.993, 0.993, 0.993, 0.993, 0.90),
    ("contaminated", 5, 0.1): (0.787, 0.570, 0.977, 0.979, 0.891, 0.990, 0.92),
    ("contaminated", 10, 0.3): (0.595, 0.548, 0.841, 0.827, 0.831, 0.831, 0.88),
}


@pytest.mark.slow
def test_numbers_agree_with_an_independent_prototype():
    """Means of 50 to 100 replicates of another program; both have Monte-Carlo error.

    It guards against changes. As evidence it is weaker than it looks: k-FED's round and where
    outlying points go were first chosen with these numbers in view.
    """
    names = ("setting", "n_sites", "variance")
    scenarios = [dict(zip(names, scenario, strict=True)) for scenario in EXPECTED]
    methods = ("local", "k-FED", "consensus", "FONT", "pooled", "best local")
    others = [method for method in methods if method != "k-FED"]
    found = run_simulation(scenarios, 80, seed=1, n_jobs=2, methods=others)
    # the prototype's k-FED has one start
    single = run_simulation(scenarios, 80, seed=1, n_jobs=2, n_init=1, methods=["k-FED"])
    ari = simulation_table(found).join(simulation_table(single))
    correlation = simulation_table(found, "correlation")["FONT"]
    for scenario, expected in EXPECTED.items():
        for method, value in zip(methods, expected, strict=False):
            mean, se = ari.loc[scenario, (method, "mean")], ari.loc[scenario, (method, "se")]
            # the prototype's error is taken to be that of 60 replicates; 0.004 is its rounding
            # and what differs between programs
            room = 3 * se * np.sqrt(1 + 80 / 60) + 0.004
            assert mean == pytest.approx(value, abs=room), (scenario, method)
        mean, se = correlation.loc[scenario, "mean"], correlation.loc[scenario, "se"]
        assert mean == pytest.approx(expected[-1], abs=3 * se * np.sqrt(1 + 80 / 60) + 0.02), (
            scenario
        )


def test_errors_say_how_to_fix_it():
    for call, message in (
        (lambda: simulate_gaussian("uneven", 5, 0.1), "setting must be one of"),
        (lambda: simulate_gaussian("homogeneous", 5, 0), "variance must be more than 0"),
        (lambda: simulate_gaussian("homogeneous", 5, 1, outlying=1), "outlying is a share"),
        (lambda: run_simulation([{"setting": "homogeneous"}]), "lacks 'n_sites', 'variance'"),
        (lambda: run_simulation([SMALL | {"x": 1}]), "unknown names 'x'"),
        (lambda: run_simulation([]), "no scenarios"),
        (lambda: run_simulation([SMALL | {"noise_sites": 4}]), "spoils 4 of 3 models"),
        (lambda: run_simulation([SMALL], methods=["x"]), "each of methods must be one of"),
        (lambda: simulation_table(pd.DataFrame({"a": [1]})), "lack the columns"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# --- refinement --------------------------------------------------------------------------

REFINED = ("FONT refined 0", "FONT refined 1", "FONT refined converge", "pooled site proportions")


def test_refined_methods_run_and_repeat():
    methods = ["FONT", *REFINED]
    first = run_simulation([SMALL], replicates=1, seed=3, methods=methods)
    again = run_simulation([SMALL], replicates=1, seed=3, methods=methods[::-1])
    assert first["ari"].notna().all()
    scores = [table.set_index("method")["ari"].sort_index() for table in (first, again)]
    assert scores[0].equals(scores[1])


@pytest.mark.slow
def test_refining_gains_where_sites_are_unequal_and_data_hard():
    scenario = {"setting": "imbalanced", "n_sites": 5, "variance": 0.3}
    results = run_simulation([scenario], replicates=8, seed=19, methods=["FONT", *REFINED])
    mean = results.groupby("method")["ari"].mean()
    assert mean["FONT refined 1"] > mean["FONT"] + 0.02
    assert mean["FONT refined converge"] > mean["FONT refined 1"] - 0.01
    assert mean["FONT refined converge"] == pytest.approx(mean["pooled site proportions"], abs=0.05)
