import matplotlib as mpl
import numpy as np
import pytest

import font
from font.plots import agreement_table, weight_table

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


@pytest.mark.parametrize("name", ["weights", "agreement"])
def test_figures_draw_on_given_or_new_axes(ensemble, name):
    import matplotlib.pyplot as plt

    draw = getattr(font, f"plot_{name}")
    ax = draw(ensemble)
    ax.figure.canvas.draw()
    _, given = plt.subplots()
    assert draw(ensemble, ax=given) is given


def test_weights_figure_shows_its_table(ensemble):
    table = weight_table(ensemble)
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
    table = agreement_table(ensemble)
    np.testing.assert_allclose(table["agreement"], drawn[above])
    np.testing.assert_allclose(table["centred"], drawn.T[above])


@pytest.mark.parametrize("name", ["weights", "agreement"])
def test_letters_are_as_large_as_in_other_figures(ensemble, name):
    figure = getattr(font, f"plot_{name}")(ensemble).figure
    figure.canvas.draw()
    sizes = {t.get_fontsize() for t in figure.findobj(mpl.text.Text) if t.get_text()}
    assert sizes <= {6.0, 7.0}


def test_the_legend_stays_inside_given_axes(ensemble):
    figure = mpl.figure.Figure(layout="constrained")
    ax = font.plot_weights(ensemble, ax=figure.subplots())
    figure.canvas.draw()
    legend, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert (legend.x1, legend.y1) <= (panel.x1 + 1, panel.y1 + 1)


@pytest.mark.parametrize("name", ["weights", "agreement"])
def test_an_ensemble_that_is_not_fitted_gets_one_sentence(name):
    with pytest.raises(ValueError, match="the ensemble is not fitted; call its fit first"):
        getattr(font, f"plot_{name}")(font.Ensemble(2))
    with pytest.raises(TypeError, match="found dict, expected a fitted Ensemble"):
        getattr(font, f"plot_{name}")({})
