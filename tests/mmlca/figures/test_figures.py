"""The numbers that each figure shows, and figures of unusual input."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import matplotlib as mpl
import matplotlib.collections
import matplotlib.pyplot as plt
import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from paths import ROOT
from released import courses_by_group

import ehr_prep
import mmlca
from mmlca import Sequences
from mmlca.figures.canvas import decimal_text
from mmlca.figures.colours import MISSING, PALE, own_colours
from mmlca.tables.describe import frequency_spells
from mmlca.tables.disclosure import Rounding

mpl.use("Agg")

# A A B | A - A (weight 2) | B
S = Sequences.from_lists([["A", "A", "B"], ["A", None, "A"], ["B"]], weights=[1, 2, 1])
PANELS = (
    "state_distribution",
    "index",
    "frequencies",
    "time_in_state",
    "transitions",
    "lines",
)
SIMPLE = "entropy"
TABLES = {  # the function whose table is drawn, and a column that the figure shows
    "state_distribution": ("state_distribution", "share"),
    "time_in_state": ("time_in_state", "mean"),
    "entropy": ("entropy_by_time", "entropy"),
    "transitions": ("transition_counts", "rate"),
    "lines": ("treatment_paths", "count"),
    "frequencies": ("sequence_frequencies", "count"),
}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def many() -> Sequences:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 9, 400)
    codes = rng.choice(3, (400, 8), p=[0.6, 0.3, 0.1]).astype(np.int8)
    codes[np.arange(8) >= lengths[:, None]] = -1
    codes[:40, 0] = codes[:40, 1]
    codes[codes[:, 0] < 0, 0] = 0
    return Sequences.from_codes(codes, ["TNFi", "JAK", "IL6R"])


def boxes(collection) -> np.ndarray:
    """left, bottom, width, height of each bar."""
    return np.array([path.get_extents().bounds for path in collection.get_paths()])


def by_label(ax) -> dict:
    return {c.get_label(): c for c in ax.collections}


def draw(whole):
    figure = whole if hasattr(whole, "savefig") else whole.figure
    figure.canvas.draw()
    return figure


def words(whole) -> str:
    """All text of a figure, its lines joined."""
    texts = draw(whole).findobj(mpl.text.Text)
    return " ".join(text.get_text() for text in texts).replace("\n", " ")


# --- colours ---------------------------------------------------------------------------


def test_the_classes_of_the_map_of_rheumatoid_arthritis_keep_their_colours() -> None:
    colours = {
        "TNFi": "#0072B2",
        "CTLA4-Ig": "#E69F00",
        "IL6R": "#009E73",
        "JAK": "#CC79A7",
        "anti-CD20": "#D55E00",
        "none": "#BBBBBB",
    }
    table = pd.DataFrame({"patient_id": [1], "date": ["2010-01-01"], "drug": ["Xeljanz"]})
    records = ehr_prep.read_records(table, drugs="ra")
    assert mmlca.state_colours([*records.states, "none"]) == colours


def test_no_state_has_a_colour_by_its_name_except_none_and_missing() -> None:
    first, second = mmlca.state_colours(["JAK", "TNFi"]), mmlca.state_colours(["insulin", "statin"])
    assert list(first.values()) == list(second.values()) == ["#0072B2", "#E69F00"]


def test_colours_for_none_of_the_states_are_refused() -> None:
    with pytest.raises(ValueError, match="colours names 'X', none of the states 'A', 'B'; give a"):
        mmlca.state_colours(["A", "B"], {"X": "red"})
    assert mmlca.state_colours(["A"], {"A": "red", "X": "blue"}) == {"A": "red"}


def test_colours_of_a_study_are_those_of_all_its_figures() -> None:
    before = mmlca.state_colours(["A", "B", "none"])
    with own_colours({"B": before["A"], "none": "#123456", "other": "#000000"}):
        inside = mmlca.state_colours(["A", "B", "none"])
        given = mmlca.state_colours(["A", "B"], {"B": "red"})
    assert inside == {"A": "#E69F00", "B": before["A"], "none": "#123456"}  # A has the next one
    assert given == {"A": before["A"], "B": "red"}
    assert mmlca.state_colours(["A", "B", "none"]) == before


def test_up_to_127_states_have_different_colours() -> None:
    names = ["TNFi", "none", *(f"state {i}" for i in range(125))]
    colours = mmlca.state_colours(names)
    assert list(colours) == names
    assert len(set(colours.values())) == 127
    assert colours["none"] == "#BBBBBB"
    assert not {PALE, MISSING} & set(colours.values())  # which are no state
    assert mmlca.state_colours(names[:9]) == {name: colours[name] for name in names[:9]}


DEUTERANOPIA = np.array(  # of linear red, green and blue (Machado, Oliveira & Fernandes, 2009)
    [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
)


def lightness_and_hue(colours: list[str], seen: np.ndarray) -> np.ndarray:
    """CIELAB of colours as they are seen."""
    rgb = np.array([mpl.colors.to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ seen.T
    to_xyz = np.array([[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]])
    x, y, z = np.cbrt(np.clip(linear, 0, 1) @ to_xyz.T).T
    return np.column_stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA], ids=["all", "deuteranopia"])
def test_drug_classes_and_none_differ_for_all_eyes(seen: np.ndarray) -> None:
    states = ["TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20", "none"]
    lab = lightness_and_hue(list(mmlca.state_colours(states).values()), seen)
    apart = np.linalg.norm(lab[:, None] - lab, axis=2)[np.triu_indices(len(lab), 1)]
    assert apart.min() > 12


def test_given_colours_are_taken_and_not_given_twice() -> None:
    colours = mmlca.state_colours(["A", "B"], {"B": "#0072b2", "elsewhere": "red"})
    assert colours["B"] == "#0072b2"
    assert colours["A"] == "#E69F00"


# --- numbers ---------------------------------------------------------------------------


def test_bars_are_the_shares_of_the_table() -> None:
    ax = mmlca.plot_state_distribution(S)
    table = mmlca.state_distribution(S)
    for state in S.states:
        share = table.loc[table["state"] == state, "share"].to_numpy()
        assert boxes(by_label(ax)[state])[:, 3] == pytest.approx(share)
    first, second = boxes(by_label(ax)["A"]), boxes(by_label(ax)["B"])
    assert second[:, 1] == pytest.approx(first[:, 3])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1\n4", "2\n1", "3\n3"]
    assert ax.get_title() == "n = 3 (weight 4)"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B"]


def test_ticks_at_quarters_1_4_8_12_16() -> None:
    s = Sequences.from_codes(np.zeros((50, 16), dtype=int), ["TNFi"])
    labels = [label.get_text() for label in mmlca.plot_state_distribution(s).get_xticklabels()]
    assert labels == ["1\n50", "4\n50", "8\n50", "12\n50", "16\n50"]


def test_sites_are_rows_and_groups_columns(many: Sequences) -> None:
    sites = {"MGB": many[:300], "VA": many[300:]}
    groups = {"MGB": np.arange(300) % 2, "VA": pd.Series(1, index=many.ids[300:])}
    figure = mmlca.plot_state_distribution(sites, groups)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["MGB, group 0\nn = 150", "MGB, group 1\nn = 150", "VA, group 1\nn = 100"]
    assert [ax.axison for ax in figure.axes] == [True, True, False, True]
    table = mmlca.state_distribution(sites, groups)
    mine = table[(table["site"] == "VA") & (table["state"] == "JAK")]["share"].to_numpy()
    assert boxes(by_label(figure.axes[3])["JAK"])[:, 3] == pytest.approx(mine)
    assert len(figure.legends) == 1


def test_index_draws_every_patient_in_order() -> None:
    a, b = (np.round(255 * np.array(mpl.colors.to_rgb(c))) for c in ("#0072B2", "#E69F00"))
    grey, white = np.full(3, 230), np.full(3, 255)
    picture = mmlca.plot_index(S).images[0].get_array()[..., :3]
    assert (picture == [[a, a, b], [a, grey, a], [b, white, white]]).all()
    backwards = mmlca.plot_index(S, sort="end").images[0].get_array()[..., :3]
    assert (backwards == [[a, grey, a], [a, a, b], [b, white, white]]).all()
    as_given = mmlca.plot_index(S[[2, 0]], sort=None).images[0].get_array()[..., :3]
    assert (as_given == [[b, white, white], [a, a, b]]).all()
    with pytest.raises(ValueError, match='"start", "end" or None'):
        mmlca.plot_index(S, sort="up")


def test_index_of_many_keeps_the_scale() -> None:
    codes = np.repeat([0, 1], [30_000, 10_000])[:, None]
    ax = mmlca.plot_index(Sequences.from_codes(codes))
    picture = ax.images[0].get_array()
    assert picture.shape[0] == 10_000
    assert (picture[:, 0] == picture[0, 0]).all(axis=1).mean() == pytest.approx(0.75, abs=1e-3)
    assert ax.get_ylim() == (40_000, 0)
    assert ax.get_yticklabels()[1].get_text() == "40,000"


def test_frequencies_are_as_high_as_their_share() -> None:
    ax = mmlca.plot_frequencies(S, shared_by=1)
    table = mmlca.sequence_frequencies(S)
    drawn = np.concatenate([boxes(c) for c in ax.collections if c.get_label() in "AB not known"])
    first = drawn[np.isclose(drawn[:, 0], 0.5)]
    first = first[np.argsort(first[:, 1])]
    assert first[:, 3] == pytest.approx(table["share"].to_numpy())
    assert first[:, 1] + first[:, 3] == pytest.approx(table["cumulative"].to_numpy())
    assert ax.get_title() == "n = 3 (weight 4); 3 courses: 100 %"
    one = mmlca.plot_frequencies(S, top=1, shared_by=1)
    assert one.get_title().endswith("1 course: 50 %")
    assert one.get_ylim() == (1, 0)  # the height is that of all patients
    assert "fewer than 1 " not in words(one)


def test_time_in_state_bars() -> None:
    ax = mmlca.plot_time_in_state(S)
    assert boxes(ax.collections[0])[:, 2] == pytest.approx(mmlca.time_in_state(S)["mean"])
    assert [text.get_text() for text in ax.texts] == ["1.5", "0.50"]


def test_entropy_lines(many: Sequences) -> None:
    groups = np.arange(len(many)) % 2
    ax = mmlca.plot_entropy(many, groups)
    table = mmlca.entropy_by_time(many, groups)
    for level, line in enumerate(ax.get_lines()):
        mine = table.loc[table["group"] == level, "entropy"]
        assert line.get_ydata() == pytest.approx(mine.to_numpy())
        assert line.get_label() == f"Group {level} (n = 200)"
    assert ax.get_lines()[0].get_color() != ax.get_lines()[1].get_color()
    rare = np.where(np.arange(len(many)) < 5, 0, 1)
    alone = mmlca.plot_entropy(many, rare, min_count=11).get_lines()
    assert [line.get_color() for line in alone] == [ax.get_lines()[1].get_color()]


def test_transitions_show_the_rates_and_mark_weak_rows() -> None:
    s = Sequences.from_lists([["A", "A", "B"]] * 15 + [["B", "A"]] * 3, states=["A", "B", "C"])
    ax = mmlca.plot_transitions(s)
    rates = mmlca.transition_rates(s).iloc[:, 1:].to_numpy()
    assert ax.images[0].get_array().filled(np.nan) == pytest.approx(rates, nan_ok=True)
    written = [text.get_text() for text in ax.texts]
    assert written == [".50", ".50", "0", "30", "1", "0", "0", "3*", "0"]
    assert "*: fewer than 20" in words(ax)
    assert "Rate" in words(ax)  # the colour bar


def test_small_rates_are_not_called_nothing() -> None:
    from mmlca.figures.transitions import rate_text

    shown = [rate_text(rate) for rate in (0, 0.001, 0.25, 0.999, 1)]
    assert shown == ["0", "<.01", ".25", ">.99", "1"]


def test_treatment_lines_by_hand() -> None:
    s = Sequences.from_lists(
        [["A", "A", "B", "A"], ["A", None, "A", None], ["B", None, "A", "A"], ["A", "B", "B", "B"]],
        weights=[1, 2, 1, 1],
    )
    table = mmlca.treatment_lines(s)
    assert table["line"].tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert table["from"].tolist() == ["A", "A", "B", "A", "B", "B", "A"]
    ended = table["to"].astype(str).replace("no further", "-")
    assert ended.tolist() == list("B-A-A--")
    assert table["count"].tolist() == [2, 2, 1, 1, 1, 1, 1]
    assert table["patients"].tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert table["share"].tolist() == [0.5, 0.5, 1, 1, 0.5, 0.5, 1]
    assert set(mmlca.treatment_lines(s, max_lines=2)["line"]) == {1}
    with pytest.raises(ValueError, match="max_lines must be at least 2"):
        mmlca.treatment_lines(s, max_lines=1)


def test_blocks_and_ribbons_are_the_counts(many: Sequences) -> None:
    ax = mmlca.plot_lines(many)
    table = mmlca.treatment_lines(many)
    first = table[table["line"] == 1].groupby("from", observed=True)["count"].sum() / 400
    second = table[table["line"] == 1].groupby("to", observed=True)["count"].sum() / 400
    for state in many.states:
        bars = boxes(by_label(ax)[state])
        assert bars[0, 3] == pytest.approx(first[state])
        assert bars[1, 3] == pytest.approx(second[state])
    flows = next(c for c in ax.collections if c.get_gid() == "flows")
    start = [np.ptp(p.vertices[[0, -2], 1]) for p in flows.get_paths()]
    assert start == pytest.approx((table["count"] / 400).tolist())
    ended = table[(table["line"] == 1) & (table["to"] == "no further")]["count"].sum() / 400
    assert boxes(by_label(ax)["no further"])[0, 3] == pytest.approx(ended)
    assert {"TNFi", "no further"} <= {text.get_text() for text in ax.texts}
    n = [label.get_text() for label in ax.get_xticklabels()]
    assert n[0] == "1\n400"
    assert n[1] == f"2\n{(second.sum() - second['no further']) * 400:.0f}"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_was_computed_already_is_drawn(name: str, many: Sequences) -> None:
    table_of, column = TABLES[name]
    plot = getattr(mmlca, f"plot_{name}")
    sites = {"MGB": many[:300], "VA": many[300:]}
    groups = {"MGB": np.arange(300) % 2, "VA": pd.Series(1, index=many.ids[300:])}
    table = getattr(mmlca, table_of)(
        sites, groups, **({"top": 30, "min_count": 5} if name == "frequencies" else {})
    )
    spells = {"spells": frequency_spells(sites, groups, 30, min_count=5)}
    spells = spells if name == "frequencies" else {}
    own, drawn = draw(plot(sites, groups)), draw(plot(sites, groups, table=table, **spells))
    assert pixels(own) == pixels(drawn)
    halved = table.assign(**{column: table[column] / 2})
    if name not in ("frequencies", "lines"):  # counts are compared with the sequences'
        assert pixels(draw(plot(sites, groups, table=halved))) != pixels(own)
    with pytest.raises(ValueError, match=r"the table has .*, expected .*; give the table of the"):
        plot(many, table=table, **spells)


def pixels(figure) -> bytes:
    return bytes(figure.canvas.buffer_rgba())


def test_a_model_in_place_of_sequences_or_groups(many: Sequences) -> None:
    model = mmlca.MixtureMarkov(2, n_init=2, seed=1).fit(many)
    figure = mmlca.plot_transitions(model)
    first, second = (ax.images[0].get_array() for ax in figure.axes[:2])
    np.testing.assert_allclose(first[0], model.params_.initial[0])
    np.testing.assert_allclose(second[1:], model.params_.transition[1])
    cell = {"parameter": "transition", "class": 1, "from": "TNFi", "to": "JAK"}
    errors = pd.DataFrame([{**cell, "low": 0.123, "high": 0.456}])
    assert ".12–.46" in words(mmlca.plot_transitions(model, errors=errors))
    with pytest.raises(ValueError, match="errors belong to a model"):
        mmlca.plot_transitions(many, errors=errors)
    with pytest.raises(TypeError, match="MixtureMarkov that is not fitted"):
        mmlca.plot_transitions(mmlca.MixtureMarkov(2))
    for option in ({"lag": 2}, {"min_count": 11}):
        with pytest.raises(ValueError, match="lag and min_count belong to sequences"):
            mmlca.plot_transitions(model, **option)
    with pytest.raises(ValueError, match="a model gets a figure of its own"):
        mmlca.plot_transitions(model, figure=figure)
    by_class = mmlca.state_distribution(many, model)
    named = pd.Categorical([f"class {code + 1}" for code in model.predict(many)])
    same = mmlca.state_distribution(many, named)
    pd.testing.assert_frame_equal(by_class, same)
    assert "class 2" in words(mmlca.plot_state_distribution(many, model))


def test_colours_as_a_list_and_slips_in_a_dict() -> None:
    assert mmlca.state_colours(["A", "B"], ["red", "blue"]) == {"A": "red", "B": "blue"}
    with pytest.raises(ValueError, match="found 1 colours for 2 states"):
        mmlca.state_colours(["A", "B"], ["red"])
    with pytest.raises(ValueError, match="'TNFI', which is not a state; did you mean 'TNFi'"):
        mmlca.state_colours(["TNFi", "JAK"], {"TNFI": "red"})
    with pytest.raises(TypeError, match="a list of colours, found 'red'"):
        mmlca.state_colours(["A"], "red")


def test_the_legend_stays_inside_a_given_axes(many: Sequences) -> None:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    left = figure.subplots(1, 2)[0]
    mmlca.plot_state_distribution(many, ax=left)
    figure.canvas.draw()
    assert left.get_legend().get_window_extent().x1 <= left.get_window_extent().x1 + 1


# --- small counts ----------------------------------------------------------------------


def test_small_groups_and_times_are_left_out_and_counted(many: Sequences) -> None:
    groups = np.where(np.arange(len(many)) < 5, "rare", "common")
    figure = draw(mmlca.plot_state_distribution(many, groups, min_count=60))
    assert "rare" not in words(figure)
    assert "1 group of fewer than 60 patients not shown" in words(figure)
    seen = (many[5:].codes >= 0).sum(axis=0)
    bars = boxes(by_label(figure.axes[0])["TNFi"])
    assert len(bars) == (seen >= 60).sum() < 8
    hidden = int((seen < 60).sum())
    assert f"{hidden} time{'s' * (hidden > 1)} of fewer than 60" in words(figure)
    assert "8\n<60" in [label.get_text() for label in figure.axes[0].get_xticklabels()]


def test_a_rare_state_does_not_follow_from_the_others() -> None:
    s = Sequences.from_lists([["A"]] * 50 + [["B"]] * 20 + [["C"]] * 3)
    figure = mmlca.plot_state_distribution(s, min_count=11)
    heights = {state: boxes(by_label(figure)[state])[0][3] for state in "ABC"}
    assert heights == {"A": pytest.approx((53 - 11) / 73), "B": pytest.approx(20 / 73), "C": 0}
    steps = Sequences.from_lists([["A", "A"]] * 50 + [["A", "B"]] * 20 + [["A", "C"]] * 3)
    heat = mmlca.plot_transitions(steps, min_count=11)
    kept = np.isfinite(heat.images[0].get_array().filled(np.nan))
    assert kept[0].tolist() == [True, True, False]
    assert "≥.58" in [text.get_text() for text in heat.texts]  # at least 42 of 73
    assert "1 rate of fewer than 11 patients not shown" in words(heat)


def test_rare_sequences_are_left_out_and_counted() -> None:
    s = Sequences.from_lists([["A", "B"]] * 12 + [["B", "B"]] * 8 + [["B"]] * 4)
    ax = mmlca.plot_frequencies(s, min_count=11)
    assert ax.get_title() == "n = 24; 1 course: 50 %"
    assert "Pale: rarer courses, or those of fewer than 11 patients" in words(ax)
    assert len(mmlca.sequence_frequencies(s, min_count=11)) == 1
    index = mmlca.plot_index(s, min_count=11)
    assert index.images[0].get_array().shape[0] == 12
    assert "12 patients with a rare course not shown" in words(index)
    none = mmlca.plot_frequencies(s[:22], min_count=11)  # else the others would be 10
    assert none.texts[0].get_text() == "no course that\n11 patients share"
    draw(none)


def test_rare_rows_and_flows_are_left_out_and_counted() -> None:
    s = Sequences.from_lists([["A", "A"]] * 12 + [["A", "B"]] * 11 + [["B", "A"]] * 3)
    heat = mmlca.plot_transitions(s, min_count=11)
    kept = np.isfinite(heat.images[0].get_array().filled(np.nan))
    assert kept.tolist() == [[True, True], [False, False]]
    assert "2 rates of fewer than 11 patients not shown" in words(heat)
    assert "–" in [text.get_text() for text in heat.texts]
    lists = [["A", "A"]] * 12 + [["A", "B"]] * 11 + [["B", "A"]] * 3 + [["C", "C"]] * 12
    lines = mmlca.plot_lines(Sequences.from_lists(lists), min_count=11)
    assert boxes(by_label(lines)["others"])[0, 3] == pytest.approx(15 / 38)  # B with C
    assert len(boxes(by_label(lines)["B"])) == 1
    assert "C" not in by_label(lines)
    with pytest.raises(ValueError, match="every group has fewer than min_count = 99"):
        mmlca.plot_lines(s, min_count=99)
    with pytest.raises(ValueError, match="min_count must be a whole number"):
        mmlca.plot_lines(s, min_count=-1)


# --- unusual input ---------------------------------------------------------------------

ODD = {
    "one patient": (Sequences.from_lists([["A", "B", "A"]]), None),
    "one state": (Sequences.from_lists([["A", "A"], ["A"]]), None),
    "one time": (Sequences.from_lists([["A"], ["B"]]), None),
    "next to nothing": (Sequences.from_lists([["A"]]), None),
    "missing": (S.reweight([0, 2, 1]), None),
    "an empty group": (S, pd.Categorical(["x", "x", "x"], categories=["x", "y"])),
    "unlike sites": (
        {"MGB": S, "VA": Sequences.from_lists([["C"]])},
        {"MGB": [0, 1, 1], "VA": [1]},
    ),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("name", [*PANELS, SIMPLE])
def test_odd_input(name: str, case: str) -> None:
    sequences, groups = ODD[case]
    figure = draw(getattr(mmlca, f"plot_{name}")(sequences, groups))
    assert ("1 group without patients left out" in words(figure)) == (case == "an empty group")


@pytest.mark.parametrize("name", [*PANELS, SIMPLE])
def test_127_states(name: str) -> None:
    codes = np.random.default_rng(1).integers(0, 127, (40, 5))
    s = Sequences.from_codes(codes, [f"s{i}" for i in range(127)])
    figure = draw(getattr(mmlca, f"plot_{name}")(s))
    if name in ("state_distribution", "index", "lines"):
        n = len(np.unique(codes[:, :4] if name == "lines" else codes))  # only what occurs
        more = int(re.search(r"and (\d+) more", words(figure))[1])
        assert more == n - 14 or name == "lines"


@pytest.mark.parametrize("name", [*PANELS, SIMPLE])
def test_given_axes_are_used_without_pyplot(name: str) -> None:
    from matplotlib.figure import Figure

    plot = getattr(mmlca, f"plot_{name}")
    ax = Figure().subplots()
    assert plot(S, ax=ax) is ax
    assert plot({"MGB": S}, ax=Figure().subplots()).figure is not None
    if name == SIMPLE:
        return
    figure = Figure()
    assert plot({"MGB": S, "VA": S}, figure=figure) is figure
    assert len([a for a in figure.axes if a.get_title()]) == 2
    with pytest.raises(ValueError, match="one Axes cannot hold 2 panels"):
        plot({"MGB": S, "VA": S}, ax=ax)
    with pytest.raises(ValueError, match="both ax and figure"):
        plot(S, ax=ax, figure=figure)


def test_pyplot_is_loaded_only_when_needed() -> None:
    code = (
        "import sys, mmlca\nfrom matplotlib.figure import Figure\n"
        "s = mmlca.Sequences.from_lists([['A', 'B']])\n"
        f"for name in {[*PANELS, SIMPLE]}:\n"
        "    getattr(mmlca, 'plot_' + name)(s, ax=Figure().subplots())\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "False"


def test_subfigures() -> None:
    import matplotlib.pyplot as plt

    left, right = plt.figure().subfigures(1, 2)
    assert mmlca.plot_state_distribution({"MGB": S}, figure=left) is left
    assert mmlca.plot_lines({"MGB": S}, figure=right) is right
    left.figure.canvas.draw()


@pytest.mark.parametrize("name", PANELS)
def test_nothing_is_cut_off_or_overlaps(name: str) -> None:
    """At two columns, all lies inside the figure, and no title or tick label touches another."""
    rng = np.random.default_rng(1)
    states = ["TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20"]
    sites = {
        site: Sequences.from_codes(rng.choice(5, (1_200, 16), p=[0.6, 0.1, 0.1, 0.1, 0.1]), states)
        for site in ("Hospital A", "Hospital B")
    }
    names = np.array(["stay", "to JAK or IL6R", "a long name of very many words indeed", "last"])
    groups = {site: names[np.arange(1_200) % 4] for site in sites}
    figure = draw(getattr(mmlca, f"plot_{name}")(sites, groups))
    assert figure.get_size_inches()[0] == pytest.approx(7.2)
    inked = figure.get_tightbbox()
    assert min(inked.x0, inked.y0) >= -0.01
    assert (inked.x1, inked.y1) <= tuple(figure.get_size_inches() + 0.01)
    texts = [t for t in figure.findobj(mpl.text.Text) if "\n" in t.get_text()]
    ticks = [t.get_window_extent() for t in dict.fromkeys(texts) if t.axes and t.axes.axison]
    for i, one in enumerate(ticks):
        assert not any(one.overlaps(other) for other in ticks[:i])


def test_gaps_between_blocks_do_not_tell_how_high_a_hidden_one_is() -> None:
    """B is drawn together with C, which it would follow from, whatever share of both it has."""
    edges = []
    for n in (2, 9):
        rows = [["A", "A"]] * 60 + [["B", "B"]] * n + [["C", "C"]] * (23 - n) + [["D", "D"]] * 40
        ax = mmlca.plot_lines(Sequences.from_lists(rows), min_count=11)
        bars = [part for part in ax.collections if part.get_label() in "ABCD"]
        edges.append(
            {b.get_label(): [p.vertices[:4, 1].tolist() for p in b.get_paths()] for b in bars}
        )
    assert edges[0] == edges[1]
    assert edges[0]["A"]
    assert edges[0]["D"]
    assert not {"B", "C"} & set(edges[0])


def test_something_else_than_sequences_gets_one_sentence() -> None:
    model = mmlca.MixtureMarkov(1, seed=1).fit(Sequences.from_lists([["A", "B"], ["A", "A"]]))
    with pytest.raises(TypeError, match=r"found MixtureMarkov .* give the sequences first"):
        mmlca.plot_state_distribution(model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"found a DataFrame .* Sequences.from_frame"):
        mmlca.plot_index(pd.DataFrame({"t1": ["A"]}))  # type: ignore[arg-type]


def test_alternatives_have_one_panel_per_class_and_the_expected_shares() -> None:
    from mmlca.figures.models import plot_alternatives

    one = mmlca.MarkovParams([1.0], [[1.0, 0.0]], [[[0.5, 0.5], [0.0, 1.0]]])
    two = mmlca.MarkovParams([0.3, 0.7], [[1.0, 0.0], [0.0, 1.0]], [np.eye(2), np.eye(2)])
    (ax,) = plot_alternatives({1: one, 2: two}, ["A", "B"], 3).axes
    first, largest, _ = (np.asarray(picture.get_array()) for picture in ax.images)
    colour = mmlca.state_colours(["A", "B"])
    of_a = np.isclose(first, mpl.colors.to_rgb(colour["A"])).all(axis=2)
    assert of_a.mean(axis=0).tolist() == [1.0, 0.5, 0.25]
    assert of_a[-1].all()  # the first state is below
    assert np.isclose(largest, mpl.colors.to_rgb(colour["B"])).all()
    assert {"100 %", "70 %", "30 %"} <= {text.get_text() for text in ax.texts}


@pytest.mark.parametrize("public", [False, True])
def test_titles_have_the_sizes_of_the_table_that_is_drawn(public: bool) -> None:
    """One n in all figures: exact, or rounded as everything else."""
    data = Sequences.from_lists([["A", "A", "B"]] * 30 + [["B", "B", "A"]] * 25)
    groups = {"x": pd.Series(["one"] * 30 + ["two"] * 25, index=data.ids, dtype="category")}
    rounding = Rounding(b"secret", 11, groups) if public else None
    shown = courses_by_group({"x": data}, groups, 11, b"secret" if public else None)
    courses, frequencies, spells = shown.tables, shown.frequencies, shown.spells["frequent"]
    for plot, table in (
        (mmlca.plot_state_distribution, courses.distribution),
        (mmlca.plot_transitions, courses.transitions),
        (mmlca.plot_lines, courses.paths),
        (partial(mmlca.plot_frequencies, spells=spells), frequencies),
    ):
        figure = plot({"x": data}, groups, table=table, min_count=11)
        titles = [ax.get_title().split("; ")[0] for ax in figure.axes if ax.get_title()]
        sizes = ["n = 30", "n = 25"]
        if rounding is not None:
            sizes = [f"n ≈ {rounding(n, 'x', g):.0f}" for n, g in ((30, "one"), (25, "two"))]
        assert titles == [f"x, {name}\n{n}" for name, n in zip(("one", "two"), sizes, strict=True)]
        plt.close(figure)


SIZES = {"A": [200, 100, 80], "B": [150, 3, 60], "C": [90, 70, 40]}


def three_sites() -> tuple[dict[str, Sequences], dict[str, pd.Series]]:
    """Cluster 2 has three patients at site B."""
    data, groups = {}, {}
    for site, sizes in SIZES.items():
        rows = [["A", "A", "AAB"[k]] for k, n in enumerate(sizes) for _ in range(n)]
        data[site] = Sequences.from_lists(rows, states=["A", "B"])
        labels = np.repeat(["one", "two", "three"], sizes)
        order = pd.CategoricalDtype(["one", "two", "three"], ordered=True)
        groups[site] = pd.Series(labels, data[site].ids).astype(order)
    return data, groups


def test_one_small_group_takes_no_panel_of_others_away() -> None:
    """A group of three at one site once took three panels of larger groups away, unsaid."""
    data, groups = three_sites()
    courses = courses_by_group(data, groups, 11).tables
    for plot, table in (
        (mmlca.plot_state_distribution, courses.distribution),
        (mmlca.plot_transitions, courses.transitions),
        (mmlca.plot_lines, courses.paths),
    ):
        figure = plot(data, groups, table=table, min_count=11)
        titles = {ax.get_title() for ax in figure.axes if ax.get_title()}
        assert {title.split("\n")[0] for title in titles} == {
            f"{site}, {group}" for site in data for group in ("one", "two", "three")
        } - {"B, two"}
        unsized = {title for title in titles if "n = " not in title}
        assert len(unsized) == 3  # the smallest set from which the three do not follow
        note = figure.get_supxlabel().replace("\n", " ")
        assert "1 group of fewer than 11 patients not shown" in note
        assert "izes of 3 groups not shown, because" in note
        plt.close(figure)


def test_numbers_observed_of_a_group_without_a_size_are_not_written() -> None:
    data, groups = three_sites()
    courses = courses_by_group(data, groups, 11).tables
    figure = mmlca.plot_state_distribution(data, groups, table=courses.distribution, min_count=11)
    for ax in (ax for ax in figure.axes if ax.get_title()):
        below = {tick.get_text().split("\n")[1] for tick in ax.get_xticklabels()}
        assert (below == {"–"}) == ("n = " not in ax.get_title())
    plt.close(figure)


def test_all_small_groups_are_counted_in_the_note() -> None:
    """A site all of whose groups are small was once left out without a word."""
    data = {"x": Sequences.from_lists([["A", "B"]] * 40), "y": Sequences.from_lists([["A"]] * 9)}
    groups = {"x": pd.Series(1, data["x"].ids), "y": pd.Series([1] * 5 + [2] * 4, data["y"].ids)}
    figure = mmlca.plot_state_distribution(data, groups, min_count=11)
    assert "2 groups of fewer than 11 patients not shown" in figure.get_supxlabel()
    plt.close(figure)


def test_a_figure_of_small_groups_alone_does_not_tell_how_small_they_are() -> None:
    data = Sequences.from_lists([["A", "B"]] * 7)
    with pytest.raises(ValueError, match="every group has fewer than min_count = 11 patients"):
        mmlca.plot_state_distribution(data, min_count=11)


def test_where_few_would_follow_from_the_rest_the_largest_share_is_a_lower_bound() -> None:
    """A panel of 700 patients of whom 5 were elsewhere was once grey all over."""
    data = Sequences.from_lists([["A", "A"]] * 695 + [["A", "B"]] * 5)
    ax = mmlca.plot_state_distribution(data, min_count=11)
    bars = by_label(ax)
    heights = boxes(bars["A"])[:, 3]
    assert heights.tolist() == [1.0, (700 - 11) / 700]
    assert "fewer than 11 patients" in [text.get_text() for text in ax.get_legend().get_texts()]
    heat = mmlca.plot_transitions(data, min_count=11)
    texts = [text.get_text() for text in heat.texts]
    assert "≥.98" in texts
    assert "–" in texts
    plt.close("all")


# --- looks -----------------------------------------------------------------------------


def test_long_sequences_have_no_seams(many: Sequences) -> None:
    """A run of one state is one shape: adjoining bars show white stripes in vector files."""
    codes = np.zeros((60, 70), dtype=int)
    codes[:30, 20:] = 1
    long = Sequences.from_codes(codes, ["A", "B"])
    areas = by_label(mmlca.plot_state_distribution(long))
    assert len(areas["A"].get_paths()) == 1
    assert boxes(areas["A"])[0].tolist() == [0.5, 0, 70, 1]
    assert boxes(areas["B"])[0].tolist() == [20.5, 0.5, 50, 0.5]
    courses = by_label(mmlca.plot_frequencies(long))
    assert sorted(boxes(courses["A"])[:, 2].tolist()) == [20, 70]
    assert boxes(courses["B"])[:, 2].tolist() == [50]
    codes[:, 40] = -1  # nobody is observed
    split = by_label(mmlca.plot_state_distribution(Sequences.from_codes(codes, ["A", "B"])))
    assert len(split["A"].get_paths()) == 2


@pytest.mark.parametrize("name", ["state_distribution", "index", "frequencies", "representatives"])
def test_the_legend_names_only_what_is_drawn(name: str) -> None:
    rows = [["A", "A"]] * 9 + [["B"], ["B", "B"], ["B", "A"]] * 2
    ax = getattr(mmlca, f"plot_{name}")(Sequences.from_lists(rows, states=["A", "B", "C"]))
    drawn = {
        "state_distribution": ["A", "B"],
        "index": ["A", "B"],
        "frequencies": ["A"],
        "representatives": ["A"],
    }
    assert [text.get_text() for text in ax.get_legend().get_texts()] == drawn[name]
    assert ("White: after the end of follow-up" in words(ax)) == (name == "index")


@pytest.mark.parametrize("name", [*PANELS, "representatives"])
def test_long_names_neither_cut_nor_squeeze_a_single_panel(name: str) -> None:
    states = [f"a treatment with a very long name, number {i}" for i in range(10)]
    codes = np.repeat(np.random.default_rng(1).integers(0, 10, (20, 8)), 6, axis=0)
    ax = getattr(mmlca, f"plot_{name}")(Sequences.from_codes(codes, states), min_count=5)
    figure = draw(ax)
    inked = figure.get_tightbbox()
    assert min(inked.x0, inked.y0) >= -0.01
    assert (inked.x1, inked.y1) <= tuple(figure.get_size_inches() + 0.01)
    assert ax.get_window_extent().width / figure.dpi > 1.2


def test_shares_of_representatives_overlap_neither_each_other_nor_the_legend() -> None:
    rows = [["A"] * 8] * 500 + [["B"] * 8] * 8 + [["C"] * 8] * 7 + [["D"] * 8] * 6
    ax = mmlca.plot_representatives(Sequences.from_lists(rows))
    draw(ax)
    places = [text.get_window_extent() for text in ax.texts] + [ax.get_legend().get_window_extent()]
    assert len(places) == 5
    for i, one in enumerate(places):
        assert not any(one.overlaps(other) for other in places[:i])


def test_names_of_treatment_lines_do_not_overlap() -> None:
    states = ["employment", "joblessness", "training"]
    codes = np.random.default_rng(1).integers(0, 3, (300, 12))
    ax = mmlca.plot_lines(Sequences.from_codes(codes, states))
    draw(ax)
    places = [text.get_window_extent() for text in ax.texts]
    assert len(places) == 12
    for i, one in enumerate(places):
        assert not any(
            one.overlaps(other) for other in [*places[:i], ax.get_legend().get_window_extent()]
        )


def test_values_fit_into_the_cells_of_six_states_and_four_classes() -> None:
    states = [f"state {i}" for i in range(6)]
    codes = np.random.default_rng(1).integers(0, 6, (400, 12))
    s = Sequences.from_codes(codes, states)
    figure = draw(mmlca.plot_transitions(s, np.arange(400) % 4))
    assert len(figure.axes[0].texts) == 36 + 6
    model = mmlca.MixtureMarkov(4, n_init=1, seed=1, max_iter=5)
    with pytest.warns(UserWarning, match=r"\w"):  # it is far from converged
        model.fit(s)
    errors = pd.DataFrame(
        [
            {"parameter": "transition", "class": 1, "from": a, "to": b, "low": 0.12, "high": 0.46}
            for a in states
            for b in states
        ]
    )
    figure = draw(mmlca.plot_transitions(model, errors=errors))
    ax = figure.axes[0]
    cell = ax.get_window_extent().width / 6
    assert max(text.get_window_extent().width for text in ax.texts) <= cell


def test_given_axes_keep_the_legend_of_entropy_inside(many: Sequences) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    ax = figure.subplots(1, 2)[0]
    mmlca.plot_entropy(many, np.arange(len(many)) % 3, ax=ax)
    figure.canvas.draw()
    legend, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.y1 <= panel.y1 + 1
    assert legend.x1 <= panel.x1 + 1


def test_many_classes_wrap_into_rows(many: Sequences) -> None:
    figure = mmlca.plot_state_distribution(many, np.arange(len(many)) % 9)
    assert [ax.get_subplotspec().rowspan.start for ax in figure.axes] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert figure.get_size_inches()[0] == pytest.approx(7.2)


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "selection": "the table that select_n_classes returns",
        "intervals": "a table of standard_errors, coefficient_table or bootstrap",
        "effects": "the table that three_step returns",
        "residuals": r"what diagnose\(model, sequences\) returns",
        "stays": r"what diagnose\(model, sequences\) returns",
        "survival": "what survival_by_cluster returns",
        "site_differences": "what site_differences returns",
    }.items(),
)
def test_a_figure_of_something_else_says_what_it_draws(name: str, expected: str) -> None:
    with pytest.raises(TypeError, match=f"^found MixtureMarkov, expected {expected}.$"):
        getattr(mmlca, f"plot_{name}")(mmlca.MixtureMarkov(2))


def test_groups_that_are_none_and_empty_selections_say_how_to_mend_it(many: Sequences) -> None:
    with pytest.raises(TypeError, match=r"found a DataFrame: give one of its columns\.$"):
        mmlca.plot_index(many, pd.DataFrame({"class": np.ones(len(many))}))
    with pytest.raises(TypeError, match=r"found a class: give what its fit returns\.$"):
        mmlca.plot_index(many, mmlca.MixtureMarkov)
    for nothing in (many[:0], {}):
        with pytest.raises(ValueError, match="there are no patients; select some"):
            mmlca.plot_index(nothing)
    model = mmlca.MixtureMarkov(1, seed=1).fit(many)
    with pytest.raises(ValueError, match="give the model alone, or the sequences with the model"):
        mmlca.plot_transitions(model, np.ones(len(many)))
    with pytest.raises(ValueError, match="'tnfi', which is not a state; did you mean 'TNFi'"):
        mmlca.plot_index(many, colours={"tnfi": "red", "JAK": "blue"})
    with pytest.raises(ValueError, match="the table has no column 'bic'; it has 'classes'"):
        mmlca.plot_selection(pd.DataFrame({"classes": [1]}))
    with pytest.raises(ValueError, match="the table has no rows"):
        mmlca.plot_selection(pd.DataFrame({"classes": [], "bic": []}))


def test_an_axis_of_numbers_observed_says_that_the_dead_are_among_them() -> None:
    """Where death is a state, a share over time means little without its denominator."""
    data = Sequences.from_lists([["A", "A", "B"], ["A", "dead", "dead"]])
    label = "Quarter (below: number observed, dead included)"
    draw = mmlca.plot_state_distribution
    assert draw(data.absorb("dead"), xlabel="Quarter").get_xlabel() == label
    assert draw(data, xlabel="Quarter").get_xlabel() == "Quarter (below: number observed)"


def test_decimals_without_the_leading_zero() -> None:
    values = [0.0, -0.004, 0.123, -0.5, 1.0, -1.0, 0.996]
    assert [decimal_text(v) for v in values] == ["0", "0", ".12", "−.50", "1", "−1", "1"]
