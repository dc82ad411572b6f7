import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import font
from font.plots import CLUSTER_COLOURS, cluster_colour, text_on
from font.simulation import run as simulation

mpl.use("Agg")


@pytest.fixture(scope="module")
def ensemble(make_case):
    case = make_case(600, 4, 3, [0.9, 0.9, 0.8, 0.0], seed=1)
    return font.Ensemble(3, seed=1).fit(
        case.models, {"A": case.labels[:400], "B": case.labels[400:], "empty": case.labels[:0]}
    )


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.parametrize("name", ["weights", "agreement", "spectrum", "cluster_sizes", "patterns"])
def test_figures_draw_on_given_or_new_axes(ensemble, name):
    import matplotlib.pyplot as plt

    draw = getattr(font, f"plot_{name}")
    ax = draw(ensemble)
    ax.figure.canvas.draw()
    _, given = plt.subplots()
    assert draw(ensemble, ax=given) is given


def test_weights_figure_shows_its_table(ensemble):
    table = font.weight_table(ensemble)
    assert table["weight"].tolist() == ensemble.weights_.tolist()
    assert table["weight share"].max() == 1
    ax = font.plot_weights(ensemble)
    drawn = {line.get_label(): line.get_xdata() for line in ax.lines}
    np.testing.assert_allclose(drawn["used (spectral)"], table["weight share"])
    np.testing.assert_allclose(drawn["centred"], table["centred share"])


def test_agreement_figure_shows_the_matrix(ensemble):
    ax = font.plot_agreement(ensemble)
    drawn, n = ax.images[0].get_array(), len(ensemble.agreement_)
    above, below = np.triu_indices(n, 1), np.tril_indices(n, -1)
    np.testing.assert_allclose(drawn[above], ensemble.agreement_.to_numpy()[above])
    np.testing.assert_allclose(drawn[below], ensemble.centred_agreement_.to_numpy()[below])
    assert np.ma.getmaskarray(drawn).diagonal().all()
    assert ax.images[0].get_clim() == (0, 1)
    table = font.plots.agreement_table(ensemble)
    np.testing.assert_allclose(table["agreement"], drawn[above])
    np.testing.assert_allclose(table["centred"], drawn.T[above])


def test_spectrum_figure_shows_its_table(ensemble):
    table = font.spectrum_table(ensemble, top=8)
    assert len(table) == 8
    assert table["counted"].sum() == ensemble.n_clusters_choice_.n_clusters - 1
    assert (table["counted"] == (table["share"] > 0.1)).all()
    ax = font.plot_spectrum(ensemble, top=8)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], table["share"])


def test_cluster_sizes_figure_shows_its_table(ensemble):
    table = font.cluster_size_table(ensemble)
    assert table["n"].sum() == 600
    by_site = table.groupby("site")["share"].sum()
    np.testing.assert_allclose(by_site[["A", "B"]], 1)
    assert table.query("site == 'empty'")["share"].isna().all()
    ax = font.plot_cluster_sizes(ensemble)
    widths = [bar.get_width() for bar in ax.patches]
    wide = table.pivot(index="cluster", columns="site", values="share").fillna(0)
    np.testing.assert_allclose(widths, wide[["A", "B", "empty"]].to_numpy().ravel())
    colours = [mpl.colors.to_hex(bar.get_facecolor()).upper() for bar in ax.patches[::3]]
    assert colours == list(CLUSTER_COLOURS[:3])


def test_pattern_figure_shows_its_table(ensemble):
    everything = font.pattern_table(ensemble, top=None)
    assert everything["n"].sum() == 600
    assert everything["share"].sum() == pytest.approx(1)
    assert everything["cluster"].is_monotonic_increasing
    again = ensemble.predict(everything[list(ensemble.models_)])
    assert again.tolist() == everything["cluster"].tolist()
    table = font.pattern_table(ensemble, top=6)
    assert len(table) == 6
    assert table["n"].sum() == everything["n"].nlargest(6).sum()
    ax = font.plot_patterns(ensemble, top=6)
    shown = np.array([text.get_text() for text in ax.texts]).reshape(6, -1).astype(int)
    assert (shown == table[list(ensemble.models_)].to_numpy() + 1).all()  # people count from 1
    assert ax.get_yticklabels()[0].get_text().startswith("Cluster 1, n = ")
    with pytest.raises(ValueError, match="top, unless None, must be"):
        font.pattern_table(ensemble, top=0)


def test_a_model_may_be_called_n_or_cluster():
    models = {"n": np.eye(2), "cluster": np.eye(2)}
    labels = pd.DataFrame({"n": [0, 0, 1], "cluster": [0, 0, 1]})
    ensemble = font.Ensemble(2).fit(models, {"here": labels})
    font.plot_patterns(ensemble).figure.canvas.draw()


def test_colours_repeat_after_the_last():
    assert cluster_colour(0) == "#332288"
    assert cluster_colour(len(CLUSTER_COLOURS)) == "#332288"


def test_text_can_be_read_on_every_colour():
    assert (text_on("#332288"), text_on("#88CCEE")) == ("white", "black")


@pytest.mark.parametrize("name", ["weights", "agreement", "spectrum", "cluster_sizes", "patterns"])
def test_letters_are_as_large_as_in_other_figures(ensemble, name):
    figure = getattr(font, f"plot_{name}")(ensemble).figure
    figure.canvas.draw()
    sizes = {t.get_fontsize() for t in figure.findobj(mpl.text.Text) if t.get_text()}
    assert sizes <= {6.0, 7.0}


@pytest.mark.parametrize("name", ["weights", "cluster_sizes"])
def test_the_legend_stays_inside_given_axes(ensemble, name):
    figure = mpl.figure.Figure(layout="constrained")
    ax = getattr(font, f"plot_{name}")(ensemble, ax=figure.subplots())
    figure.canvas.draw()
    legend, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert (legend.x1, legend.y1) <= (panel.x1 + 1, panel.y1 + 1)


@pytest.mark.parametrize("name", ["weights", "agreement", "spectrum", "cluster_sizes", "patterns"])
def test_an_ensemble_that_is_not_fitted_gets_one_sentence(name):
    with pytest.raises(ValueError, match="the ensemble is not fitted; call its fit first"):
        getattr(font, f"plot_{name}")(font.Ensemble(2))
    with pytest.raises(TypeError, match="found dict, expected a fitted Ensemble"):
        getattr(font, f"plot_{name}")({})


def test_the_legend_of_cluster_sizes_covers_no_bar_in_given_axes(ensemble):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(7.2, 5), layout="constrained")
    ax = font.plot_cluster_sizes(ensemble, axes[0, 0])
    figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 >= ax.transData.transform((1, 0))[0]
    assert legend.x1 <= ax.get_window_extent().x1 + 1


def simulated(measures: dict[str, list[float]]) -> pd.DataFrame:
    """Results of a simulation with all methods in one scenario of two replicates."""
    scenario = {"setting": "homogeneous", "n_sites": 5, "variance": 0.1}
    rows = [
        {**scenario, "method": method, "replicate": i}
        | {measure: values[i] for measure, values in measures.items()}
        for method in simulation.METHODS
        for i in range(2)
    ]
    return pd.DataFrame(rows)


def test_a_narrow_simulation_figure_holds_its_legend_and_oracles_are_hollow():
    figure = font.plot_simulation(simulated({"ari": [0.2, 0.9]}))
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
    low, high = font.plot_weight_correlation(results, measure).axes[0].get_ylim()
    assert limits[0] <= low < high <= limits[1]
