"""The report of the simulation study: claims, figures, further questions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from font.simulation.run import METHODS, SETTINGS, run_simulation, simulation_table

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from simulation_report.claims import _verdict, compare_methods, simulation_claims  # noqa: E402
from simulation_report.figures import plot_simulation, plot_weight_correlation  # noqa: E402
from simulation_report.questions import measure  # noqa: E402
from simulation_report.report import write_report  # noqa: E402


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    grid = {"setting": SETTINGS, "n_sites": [5], "variance": [0.1]}
    return run_simulation(grid, replicates=8, seed=3)


def test_claims_stand_beside_numbers(results):
    claims = simulation_claims(results).set_index("claim")
    row = claims.loc["FONT is better than k-FED"]
    table = compare_methods(results, "FONT", "k-FED")
    assert row["measured"] == f"{table['FONT'].mean():.3f} : {table['k-FED'].mean():.3f}"
    assert row["better"] == (table["verdict"] == "better").sum()
    assert row[["better", "equal", "worse", "open"]].sum() == 3
    assert claims.loc["FONT is better than one site's model", "worse"] == 0
    assert "homogeneous 5 0.1 (" in claims.loc["FONT is better than one site's model", "against"]
    lost = claims.loc["Outlying points cost FONT less than one site's model"]
    mean = simulation_table(results)["FONT"]["mean"].droplevel([1, 2])
    assert lost["measured"].split(" : ")[0] == f"{mean['imbalanced'] - mean['contaminated']:.3f}"
    assert claims.loc["The weights correlate with the models' cos(f_m, f_0)", "verdict"] == "holds"
    with pytest.raises(ValueError, match="no method 'FONT'"):
        simulation_claims(results[results["method"] == "local"])


def test_verdicts():
    assert _verdict(3, 0, 0) == "holds"
    assert _verdict(0, 3, 0) == "does not hold"
    assert _verdict(2, 1, 0) == "in part, in 2 of 3 scenarios"
    assert _verdict(2, 0, 1) == "holds in 2 of 3 scenarios, 1 open"
    assert _verdict(0, 2, 1) == "in none of 3 scenarios, 1 open"
    assert _verdict(0, 0, 3) == "open"


def test_the_study_as_files(results, tmp_path):
    noise = measure(["noise"], 2, seed=1)
    assert noise["noise"]["bad weight"].isna().tolist() == [True] + [False] * 4
    assert noise["noise"].index.names == ["setting", "n_sites", "variance", "noise_sites"]
    names = [path.name for path in write_report({10: results}, tmp_path, noise)]
    expected = ["study.md", "claims.csv", "question_noise.csv", "accuracy_10.png", "weights_10.png"]
    assert names == expected
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    text = (tmp_path / "study.md").read_text(encoding="utf-8")
    assert "| FONT is better than k-FED |" in text
    assert "What do sites without information do" in text
    assert "differ by at most" in text
    with pytest.raises(ValueError, match="each question must be one of"):
        measure(["x"])


def test_the_script_reports_on_the_command_s_results(results, tmp_path):
    part = results.rename(columns={"variance": "quarters"})  # no questions, which take long
    part.assign(n_init=10).to_csv(tmp_path / "results.csv", index=False)
    subprocess.run(
        [sys.executable, EXAMPLES / "simulation_study.py", tmp_path, "1"],
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(EXAMPLES.parent), "MPLBACKEND": "Agg"},
    )
    claims = pd.read_csv(tmp_path / "claims.csv").drop(columns="n_init")
    expected = simulation_claims(part)
    assert claims["measured"].tolist() == expected["measured"].tolist()
    assert claims["verdict"].tolist() == expected["verdict"].tolist()


@pytest.mark.slow
def test_what_the_study_finds():
    tables = measure(["resamples", "n_local", "outliers"], 60, seed=1, n_jobs=2)
    two = tables["resamples"]["FONT"].loc["imbalanced", 2, 0.3]
    assert two[4] > two[0] + 0.03  # resampled pseudo-sites help
    for scenario, part in tables["n_local"]["FONT"].groupby(level=[0, 1, 2]):
        cost = (part.xs(5, level="n_local").iloc[0] - part).droplevel([0, 1, 2])
        assert cost[[6, 7, 8]].max() < 0.03, scenario  # too many local classes cost little
        assert cost[4] < 0.2, scenario  # too few cost more
    one = tables["outliers"].xs("site", level="outlier_means").loc["contaminated", 5].mean()
    assert one["consensus"] > one["FONT"]


def test_figures(results):
    import matplotlib.pyplot as plt

    figure = plot_simulation(results)
    assert len(figure.axes) == 3
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(METHODS)
    for value in ("correlation", "concordance", "angle"):
        assert len(plot_weight_correlation(results, value).axes) == 3
    with pytest.raises(ValueError, match="hold no weights"):
        plot_weight_correlation(results[results["method"] == "local"])
    with pytest.raises(ValueError, match="also vary in 'n_local'"):
        plot_simulation(results.assign(n_local=5))
    plt.close("all")


def simulated(measures: dict[str, list[float]]) -> pd.DataFrame:
    """Results of a simulation with all methods in one scenario of two replicates."""
    scenario = {"setting": "homogeneous", "n_sites": 5, "variance": 0.1}
    rows = [
        {**scenario, "method": method, "replicate": i}
        | {measure: values[i] for measure, values in measures.items()}
        for method in METHODS
        for i in range(2)
    ]
    return pd.DataFrame(rows)


def test_a_narrow_simulation_figure_holds_its_legend_and_oracles_are_hollow():
    figure = plot_simulation(simulated({"ari": [0.2, 0.9]}))
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.width
    filled = {
        bars.get_label(): bars.lines[0].get_markerfacecolor() != "white"
        for bars in figure.axes[0].containers
    }
    hollow = {"pooled", "pooled site proportions", "best local"}
    assert {name for name, is_filled in filled.items() if not is_filled} == hollow & set(filled)


@pytest.mark.parametrize(
    ("measure", "limits"), [("correlation", (-1.1, 1.1)), ("angle", (-9, 400))]
)
def test_axes_of_weights_end_where_their_values_end(measure, limits):
    results = simulated({"ari": [0.2, 0.9], measure: [-0.9, 0.95] if limits[1] < 2 else [1, 99]})
    low, high = plot_weight_correlation(results, measure).axes[0].get_ylim()
    assert limits[0] <= low < high <= limits[1]


def test_comparison_says_who_is_better(results):
    against = compare_methods(results, "FONT", "k-FED")
    assert against["verdict"].droplevel([1, 2])["contaminated"] == "better"
    assert compare_methods(results, "k-FED", "FONT")["difference"].tolist() == pytest.approx(
        (-against["difference"]).tolist()
    )
    with pytest.raises(ValueError, match="two different methods"):
        compare_methods(results, "FONT", "FONT")
    with pytest.raises(ValueError, match="the methods to compare must be one of"):
        compare_methods(results, "FONT", "x")
