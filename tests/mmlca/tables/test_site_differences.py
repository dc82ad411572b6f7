"""Differences between sites and clusters in words, against numbers worked out by hand."""

from __future__ import annotations

import matplotlib

matplotlib.use("agg")

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import mmlca
from mmlca import MarkovParams, Sequences
from mmlca.tables.site_differences import SiteDifferences

# steps: A→A 1, A→B 1, B→B 2 | A→B 1, B→B 3
MGB = Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"]])
VA = Sequences.from_lists([["A", "B", "B"], ["B", "B", "B"]])
SITES = {"MGB": MGB, "VA": VA}
ONE = {"MGB": [1, 1], "VA": [1, 1]}

PARAMS = MarkovParams(
    [0.6, 0.4],
    [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]],
    [
        [[0.9, 0.05, 0.05], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]],
        [[0.3, 0.1, 0.6], [0.1, 0.3, 0.6], [0.05, 0.05, 0.9]],
    ],
)


def norm(
    found: SiteDifferences,
    membership: str = "ensemble",
    kind: tuple[str, str] = ("transition", "plain"),
) -> pd.Series:
    table = found.norms
    rows = table[
        (table["membership"] == membership)
        & (table["quantity"] == kind[0])
        & (table["weighting"] == kind[1])
    ]
    assert len(rows) == 1
    return rows.iloc[0]


def simulated(n: int, seed: int, params: MarkovParams = PARAMS) -> tuple[Sequences, pd.Series]:
    return mmlca.simulate(params, n, 10, states=["A", "B", "C"], seed=seed)


@pytest.fixture(scope="module")
def two_sites() -> tuple[dict[str, Sequences], dict[str, pd.Series]]:
    other = MarkovParams(
        PARAMS.weights, PARAMS.initial[::-1], 0.9 * PARAMS.transition + 0.1 / PARAMS.n_states
    )
    parts = {"MGB": simulated(400, 1), "VA": simulated(500, 2, other)}
    return {s: p[0] for s, p in parts.items()}, {s: p[1] for s, p in parts.items()}


# --- matrices and norms --------------------------------------------------------------------


def test_matrices_by_hand() -> None:
    table = mmlca.site_differences(SITES, ONE, n_boot=0, min_support=2).matrices
    mgb = table[table["site"] == "MGB"]
    assert mgb["quantity"].tolist() == ["transition"] * 4 + ["initial"] * 2
    assert mgb["from"].tolist()[:4] == ["A", "A", "B", "B"]
    assert mgb["from"].isna().tolist() == [False] * 4 + [True] * 2
    assert mgb["to"].tolist() == ["A", "B"] * 3
    assert mgb["count"].tolist() == [1, 1, 0, 2, 1, 1]
    assert mgb["n"].tolist() == [2, 2, 2, 2, 2, 2]
    assert mgb["probability"].tolist() == [0.5, 0.5, 0, 1, 0.5, 0.5]
    assert mgb["supported"].all()
    va = table[table["site"] == "VA"]
    assert va["count"].tolist() == [0, 1, 0, 3, 1, 1]
    assert va["supported"].tolist() == [False, False, True, True, True, True]


def test_differences_and_norms_by_hand() -> None:
    found = mmlca.site_differences(SITES, ONE, n_boot=0, min_support=2)
    assert found.differences["difference"].tolist() == [0.5, -0.5, 0, 0, 0, 0]
    assert found.differences["n_first"].tolist() == [2, 2, 2, 2, 2, 2]
    assert found.differences["n_second"].tolist() == [1, 1, 3, 3, 2, 2]
    assert found.differences["sites"].unique().tolist() == ["MGB − VA"]
    assert found.differences["supported"].tolist() == [False, False, True, True, True, True]
    assert norm(found)["norm"] == pytest.approx(np.sqrt(0.5))
    # 3 of the 8 steps of both sites begin in A
    occupancy = norm(found, kind=("transition", "occupancy"))["norm"]
    assert occupancy == pytest.approx(np.sqrt(3 / 8 * 0.5))
    assert norm(found, kind=("initial", "plain"))["norm"] == 0
    assert found.norms["rows_left_out"].tolist() == [0, 0, 0]
    assert found.norms[["low", "high"]].isna().all().all()
    assert (found.norms["debiased"] <= found.norms["norm"]).all()
    # a test that holds estimated clusters fixed rejects too often: `shared_chain_test` does not
    assert not {"p_value", "chance"} & set(found.norms)


def test_the_norm_is_the_mean_over_clusters() -> None:
    both = {
        site: Sequences.from_codes(np.vstack([first.codes, VA.codes]), ["A", "B"])
        for site, first in SITES.items()
    }
    found = mmlca.site_differences(both, {site: [1, 1, 2, 2] for site in both}, n_boot=0)
    assert norm(found)["norm"] == pytest.approx(np.sqrt(0.5) / 2)
    assert norm(found)["clusters"] == 2


def test_weights_count_as_patients() -> None:
    heavy = Sequences.from_lists([["A", "A"], ["A", "B"]], weights=[3, 1])
    copies = Sequences.from_lists([["A", "A"]] * 3 + [["A", "B"]])
    sites = {"x": heavy, "y": copies}
    found = mmlca.site_differences(sites, {"x": [0, 0], "y": [0] * 4}, n_boot=20, seed=1)
    assert found.norms["norm"].tolist() == [0, 0, 0]
    assert found.matrices["n"].max() == 4


def test_counts_are_whole_numbers() -> None:
    data = Sequences.from_codes(np.arange(49)[:, None] * [1, 1] % 2, ["A", "B"])
    found = mmlca.site_differences(
        {"x": data, "y": data}, {"x": [1] * 49, "y": [1] * 49}, n_boot=0, min_support=24
    )
    assert set(found.matrices["n"]) == {24, 25, 49}
    assert found.matrices["supported"].all()


def test_missing_states_make_no_step() -> None:
    gap = Sequences.from_lists([["A", None, "B", "B"], [None, "A", "A"]], states=["A", "B"])
    found = mmlca.site_differences({"x": gap, "y": gap}, {"x": [1, 1], "y": [1, 1]}, n_boot=0)
    at_x = found.matrices[found.matrices["site"] == "x"]
    assert at_x["count"].tolist() == [1, 0, 0, 1, 1, 0]


def test_counts_agree_with_transition_rates(
    two_sites: tuple[dict[str, Sequences], dict[str, pd.Series]],
) -> None:
    sequences, clusters = two_sites
    found = mmlca.site_differences(sequences, clusters, n_boot=0).matrices
    rates = mmlca.transition_rates(sequences, clusters)
    ours = found.loc[found["quantity"] == "transition", "probability"].to_numpy()
    np.testing.assert_allclose(ours, rates[["A", "B", "C"]].to_numpy().ravel())


def test_identical_sites_do_not_differ() -> None:
    data, clusters = simulated(200, 3)
    found = mmlca.site_differences({"x": data, "y": data}, {"x": clusters, "y": clusters}, seed=1)
    assert found.norms["norm"].tolist() == [0, 0, 0]
    assert (found.differences["difference"] == 0).all()
    assert (found.norms["high"] == 0).all()


# --- rows and clusters that are not there --------------------------------------------------


def test_never_visited_rows_are_left_out_and_counted() -> None:
    stay = Sequences.from_lists([["A", "A"], ["A", "B"]], states=["A", "B", "C"])
    move = Sequences.from_lists([["A", "B", "A"], ["A", "A"]], states=["A", "B", "C"])
    found = mmlca.site_differences(
        {"x": stay, "y": move}, {"x": [1, 1], "y": [1, 1]}, n_boot=0, min_support=1
    )
    assert norm(found)["rows_left_out"] == 2  # nobody leaves B at x, nobody is ever in C
    assert norm(found)["norm"] == 0
    table = found.differences[found.differences["quantity"] == "transition"]
    assert table["difference"].isna().tolist() == [False] * 3 + [True] * 6
    assert table["supported"].tolist() == [True] * 3 + [False] * 6


def test_what_nobody_does_is_not_known() -> None:
    late = Sequences.from_lists([[None, "A", "B"], ["A", None, "B"]])
    found = mmlca.site_differences({"x": late, "y": late[:1]}, {"x": [1, 1], "y": [1]}, seed=1)
    assert found.norms["norm"].tolist()[:2] == [0, 0]
    assert found.norms.iloc[2][["norm", "debiased", "low", "high"]].isna().all()
    assert "first states not known" in found.summary()
    assert (
        "; 1 row (cluster and state) that nobody leaves at one of the sites is" in found.summary()
    )


def test_a_cluster_missing_at_one_site() -> None:
    found = mmlca.site_differences(SITES, {"MGB": [1, 2], "VA": [1, 1]}, n_boot=10, seed=1)
    assert norm(found)["clusters"] == 1
    assert norm(found)["rows_left_out"] == 3  # both rows of cluster 2; B in cluster 1 at MGB
    assert "; 3 rows (cluster and state)" in found.summary()
    assert norm(found)["norm"] == pytest.approx(np.sqrt(0.5))
    assert norm(found, kind=("initial", "plain"))["rows_left_out"] == 1
    with pytest.raises(ValueError, match="no cluster of the membership 'ensemble' has patients"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": [2, 2]})


# --- sampling ------------------------------------------------------------------------------


def test_intervals_are_reproducible_and_hold_the_debiased_norm(
    two_sites: tuple[dict[str, Sequences], dict[str, pd.Series]],
) -> None:
    first = mmlca.site_differences(*two_sites, seed=5)
    again = mmlca.site_differences(*two_sites, seed=5)
    other = mmlca.site_differences(*two_sites, seed=6)
    pd.testing.assert_frame_equal(first.norms, again.norms)
    assert not first.norms["low"].equals(other.norms["low"])
    assert (first.norms["low"] <= first.norms["debiased"]).all()
    assert (first.norms["debiased"] <= first.norms["high"]).all()
    assert (first.norms["debiased"] < first.norms["norm"]).all()
    none = mmlca.site_differences(*two_sites, n_boot=0)  # from the variances alone
    assert none.norms["debiased"].to_numpy() == pytest.approx(first.norms["debiased"].to_numpy())
    assert (first.norms["rounding"] == 0).all()


# --- memberships ---------------------------------------------------------------------------


def test_matching_undoes_a_permutation() -> None:
    parts = {"MGB": simulated(600, 1), "VA": simulated(600, 2)}
    sites, truth = ({s: p[i] for s, p in parts.items()} for i in (0, 1))
    local = {"MGB": truth["MGB"].map({0: 7, 1: 3}), "VA": truth["VA"].map({0: 1, 1: 0})}
    found = mmlca.site_differences(sites, truth, local=local, seed=1, n_boot=20)
    for kind in (("transition", "plain"), ("transition", "occupancy"), ("initial", "plain")):
        assert norm(found, "local", kind)["norm"] == pytest.approx(norm(found, kind=kind)["norm"])
    by_rule = {n: t.reset_index(drop=True) for n, t in found.matrices.groupby("membership")}
    pd.testing.assert_frame_equal(
        by_rule["local"].drop(columns="membership"),
        by_rule["ensemble"].drop(columns="membership"),
    )
    by_rule = {n: t.reset_index(drop=True) for n, t in found.norms.groupby("membership")}
    pd.testing.assert_frame_equal(
        by_rule["local"].drop(columns="membership"), by_rule["ensemble"].drop(columns="membership")
    )


def test_a_class_without_a_partner_is_left_out() -> None:
    data, truth = simulated(300, 1)
    third = truth.copy()
    third.iloc[:40] = 2
    sites, clusters = {"x": data, "y": data}, {"x": truth, "y": truth}
    found = mmlca.site_differences(sites, clusters, local={"x": truth, "y": third}, n_boot=0)
    assert found.matrices.query("membership == 'local'")["cluster"].unique().tolist() == [0, 1, 2]
    assert norm(found, "local")["clusters"] == 2
    assert norm(found, "local")["rows_left_out"] == 3
    named = {s: labels.map({0: "a", 1: "b"}) for s, labels in clusters.items()}
    found = mmlca.site_differences(sites, named, local={"x": truth, "y": third}, n_boot=0)
    labels = found.matrices.query("membership == 'local'")["cluster"].unique().tolist()
    assert labels[:2] == ["a", "b"]
    assert labels[2].startswith("y: ")


@pytest.fixture(scope="module")
def with_models(
    two_sites: tuple[dict[str, Sequences], dict[str, pd.Series]],
) -> SiteDifferences:
    sequences, clusters = two_sites
    models = {
        site: mmlca.MixtureMarkov(2, init=PARAMS, max_iter=500, seed=1).fit(data)
        for site, data in sequences.items()
    }
    return mmlca.site_differences(sequences, clusters, models=models, seed=1, n_boot=50)


def test_models_give_local_and_everywhere(with_models: SiteDifferences) -> None:
    assert with_models.norms["membership"].unique().tolist() == [
        "ensemble",
        "local",
        "MGB everywhere",
        "VA everywhere",
    ]
    assert with_models.norms["norm"].notna().all()


def test_one_model_gives_no_local(
    two_sites: tuple[dict[str, Sequences], dict[str, pd.Series]],
) -> None:
    sequences, clusters = two_sites
    model = mmlca.MixtureMarkov(2, init=PARAMS, max_iter=0, tol=0).fit(sequences["VA"])
    found = mmlca.site_differences(sequences, clusters, models={"VA": model}, n_boot=0)
    assert found.norms["membership"].unique().tolist() == ["ensemble", "VA everywhere"]
    wanted = {s: model.predict(d) for s, d in sequences.items()}
    direct = mmlca.site_differences(sequences, wanted, n_boot=0)
    assert norm(found, "VA everywhere")["norm"] == pytest.approx(norm(direct)["norm"])
    with pytest.raises(ValueError, match="models are given for 'UK', but the sites are"):
        mmlca.site_differences(sequences, clusters, models={"UK": model})
    with pytest.raises(TypeError, match="the model of 'VA' is str, without predict"):
        mmlca.site_differences(sequences, clusters, models={"VA": "model.json"})
    with pytest.raises(TypeError, match="models must be a dict"):
        mmlca.site_differences(sequences, clusters, models=model)  # type: ignore[arg-type]


def test_all_pairs_of_three_sites() -> None:
    sites = {**SITES, "UK": VA}
    found = mmlca.site_differences(sites, {**ONE, "UK": [1, 1]}, n_boot=5, seed=1)
    assert found.norms["sites"].unique().tolist() == ["MGB − VA", "MGB − UK", "VA − UK"]
    plain = found.norms[
        found.norms["weighting"].eq("plain") & found.norms["quantity"].eq("transition")
    ]
    assert plain["norm"].to_numpy() == pytest.approx([np.sqrt(0.5), np.sqrt(0.5), 0])
    assert found.summary().count("Differences between the sites") == 3
    rules, rare = found.cautions()  # about all pairs together
    assert rules.startswith("A common rule often lowers the difference, because it divides the")
    assert rare == "The plain norm is dominated by rarely visited states."
    apart = {"MGB": [1, 2], "VA": [1, 1], "UK": [1, 1]}
    _, rare = mmlca.site_differences(sites, apart, n_boot=0).cautions()
    assert "; 2 to 3 rows (cluster and state) that nobody leaves at one of the sites of" in rare


def test_summary_in_words(with_models: SiteDifferences) -> None:
    text = with_models.summary()
    assert text == repr(with_models)
    own, local = norm(with_models)["norm"], norm(with_models, "local")["norm"]
    assert f"ensemble: transitions {own:.3f} [" in text
    assert "as if the clusters were known." in text
    assert "Whether the sites differ is tested by shared_chain_test." in text
    assert "p ≤" not in text
    assert "A common rule often lowers the difference" in text
    sentence = next(line for line in text.splitlines() if line.startswith("With the ensemble"))
    less = sentence.split("no less than")[0]
    assert ("local" in less) == (own < local)
    assert ("(as a common rule often makes them)" in less) == (own < local)


def test_the_summary_says_so_if_a_common_rule_is_higher() -> None:
    norms = mmlca.site_differences(SITES, ONE, local=ONE, n_boot=0)
    table = norms.norms.copy()
    extra = table.iloc[:3].assign(membership="VA everywhere", norm=[0.9, 0.9, 0.9])
    changed = SiteDifferences(
        pd.concat([table, extra], ignore_index=True),
        norms.matrices,
        norms.differences,
        norms.states,
        20,
    )
    assert "though not every one does (here VA everywhere 0.900, local 0.707)" in changed.summary()
    assert "no less than with local" in changed.summary()


# --- what users may get wrong --------------------------------------------------------------


def test_wrong_sites() -> None:
    with pytest.raises(ValueError, match=r"found 1 site \('MGB'\), at least 2 are needed"):
        mmlca.site_differences({"MGB": MGB}, {"MGB": [1, 1]})
    with pytest.raises(TypeError, match="must be a dict"):
        mmlca.site_differences(MGB, [1, 1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="site 'VA' holds list"):
        mmlca.site_differences({"MGB": MGB, "VA": [1]}, ONE)  # type: ignore[dict-item]
    other = Sequences.from_lists([["A", "C"]])
    with pytest.raises(ValueError, match=r"the states differ: \['A', 'B'\] at 'MGB'"):
        mmlca.site_differences({"MGB": MGB, "UK": other}, {"MGB": [1, 1], "UK": [1]})
    with pytest.raises(ValueError, match="site 'VA' has no patients"):
        mmlca.site_differences({"MGB": MGB, "VA": VA.reweight([0, 0])}, ONE)


def test_wrong_memberships() -> None:
    with pytest.raises(TypeError, match="clusters must be a dict"):
        mmlca.site_differences(SITES, [1, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clusters are missing for the sites 'VA'"):
        mmlca.site_differences(SITES, {"MGB": [1, 1]})
    with pytest.raises(ValueError, match=r"missing for 1 of 2 patients at site 'VA' \(2\)"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": pd.Series([1], index=[1])})
    with pytest.raises(ValueError, match=r"missing for 1 of 2 patients at site 'VA' \(2\)"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": [1, np.nan]})
    with pytest.raises(ValueError, match="found 3 clusters for 2 patients at site 'VA'"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": [1, 1, 1]})
    twice = pd.Series([1, 1, 1], index=[1, 2, 2])
    with pytest.raises(ValueError, match=r"name 1 patients at site 'VA' more than once \(2\)"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": twice})
    with pytest.raises(TypeError, match="mix kinds of labels"):
        mmlca.site_differences(SITES, {"MGB": [1, 1], "VA": ["a", "b"]})
    with pytest.raises(ValueError, match="local classes are missing for the sites 'VA'"):
        mmlca.site_differences(SITES, ONE, local={"MGB": [1, 1]})


def test_wrong_settings() -> None:
    for bad in (-1, 2.5, True):
        with pytest.raises(ValueError, match="n_boot must be a whole number"):
            mmlca.site_differences(SITES, ONE, n_boot=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_support must be a number"):
        mmlca.site_differences(SITES, ONE, min_support=-1)


def test_labels_are_found_by_id_and_may_be_floats_or_categories() -> None:
    shuffled = {"MGB": pd.Series([2.0, 1.0, 9.0], index=[2, 1, 8]), "VA": [1, 2]}
    found = mmlca.site_differences(SITES, shuffled, n_boot=0)
    assert found.matrices["cluster"].unique().tolist() == [1, 2]
    named = pd.Series(["x", "x"], index=[1, 2], dtype="category")
    found = mmlca.site_differences(SITES, {"MGB": named, "VA": named}, n_boot=0)
    assert found.matrices["cluster"].unique().tolist() == ["x"]


# --- figure --------------------------------------------------------------------------------


def shown(ax: object) -> list[str]:
    return [text.get_text() for text in ax.texts]  # type: ignore[attr-defined]


def test_the_figure_shows_the_differences() -> None:
    found = mmlca.site_differences(SITES, ONE, n_boot=0, min_support=2)
    figure = mmlca.plot_site_differences(found)
    assert isinstance(figure, Figure)
    transitions, first, text, scale, _ = figure.axes
    assert shown(transitions) == [".50", "−.50", "0", "0"]
    np.testing.assert_allclose(transitions.images[0].get_array(), [[0.5, -0.5], [0, 0]])
    assert transitions.images[0].get_clim() == (-1, 1)
    assert shown(first) == ["0", "0"]
    assert transitions.get_title() == "Cluster 1\nn = 2 and 2"
    assert shown(text) == [
        "Ensemble: norm of the transitions 0.71, without what sampling adds 0.00\n"
        "by occupancy 0.433, without what sampling adds 0.000"
    ]
    assert "MGB − VA" in scale.get_xlabel()
    hatched = [patch.get_y() for patch in transitions.patches if patch.get_hatch()]
    assert hatched == [-0.5]  # A has one step at VA


def test_never_visited_rows_are_grey_and_bare() -> None:
    found = mmlca.site_differences(SITES, {"MGB": [1, 2], "VA": [1, 1]}, n_boot=0, min_support=0)
    figure = mmlca.plot_site_differences(found)
    one, two, first = figure.axes[:3]
    assert shown(one) == [".50", "−.50"]
    assert shown(two) == []
    assert shown(first) == [".50", "−.50"]
    assert two.images[0].get_array().mask.all()
    assert not one.patches


def test_rows_of_few_patients_are_grey_too() -> None:
    many = Sequences.from_lists([["A", "A", "B"]] * 12 + [["B", "A", "B"]] * 3)
    sites, clusters = {"x": many, "y": many}, {"x": [1] * 15, "y": [1] * 15}
    found = mmlca.site_differences(sites, clusters, n_boot=0)
    table = found.differences
    assert table["patients_first"].tolist() == [15, 15, 3, 3, 15, 15]
    figure = mmlca.plot_site_differences(found, min_count=11)
    assert figure.axes[0].images[0].get_array().mask.tolist() == [[False] * 2, [True] * 2]
    assert figure.axes[0].get_title() == "Cluster 1\nn = 15 and 15"
    key = figure.axes[-1].get_legend().get_texts()[-1].get_text().replace("\n", " ")
    assert key == "nobody at a site, not in the norm; or fewer than 11 patients"
    few = mmlca.plot_site_differences(found, min_count=16)
    assert few.axes[0].get_title() == "Cluster 1\nn = few and few"


def test_differences_do_not_give_small_numerators_away() -> None:
    """With both n known, most differences of fractions give both numerators."""
    rng = np.random.default_rng(2)
    sites = {
        site: Sequences.from_codes(rng.choice([0, 0, 0, 0, 1, 1, 2, 3], (n, 6)), list("ABCD"))
        for site, n in (("x", 160), ("y", 90))
    }
    clusters = {site: rng.integers(1, 4, len(data)) for site, data in sites.items()}
    result = mmlca.site_differences(sites, clusters, n_boot=0)
    table = result.shown(11)
    pair = [result.matrices[result.matrices["site"] == site] for site in "xy"]
    first, second = (part.reset_index(drop=True) for part in pair)
    small = np.zeros(len(table), dtype=bool)
    for part in (first, second):
        small |= part["count_patients"].between(1, 10).to_numpy()
    assert small.sum() > 20
    assert table.loc[small, "difference"].isna().all()
    assert table["difference"].notna().any()
    rows = table.groupby(["cluster", "quantity", "from"], dropna=False, observed=True)
    assert 1 not in set(rows["difference"].agg(lambda d: d.isna().sum()))  # a row adds up to 0
    for part in (first, second):
        hidden = part["count"].where(table["difference"].isna()).fillna(0)
        left = hidden.groupby(table.index // 4).sum()  # what the others leave of n
        assert not left.between(1, 10).any()
    pd.testing.assert_frame_equal(result.shown(1), result.differences, check_dtype=False)


def test_figure_by_default_and_its_choices(with_models: SiteDifferences) -> None:
    import matplotlib.pyplot as plt

    figure = mmlca.plot_site_differences(with_models)
    assert figure.get_size_inches()[0] == pytest.approx(7.2)
    assert len(figure.axes) == 2 * (3 + 1) + 2
    row = with_models.norms.iloc[0]
    assert shown(figure.axes[3])[0].split("\n")[0] == (
        f"Ensemble: norm of the transitions {row['norm']:.2f}, without what sampling adds "
        f"{row['debiased']:.2f}"
    )
    plt.close(figure)
    chosen = mmlca.plot_site_differences(
        with_models, sites="MGB − VA", memberships=["VA everywhere"]
    )
    assert shown(chosen.axes[3])[0].startswith("VA everywhere: ")
    one = mmlca.plot_site_differences(with_models, memberships="local")
    assert shown(one.axes[3])[0].startswith("Local: ")
    with pytest.raises(ValueError, match="sites must be one of 'MGB − VA', found 'VA − MGB'"):
        mmlca.plot_site_differences(with_models, sites="VA − MGB")
    with pytest.raises(ValueError, match="memberships must be some of"):
        mmlca.plot_site_differences(with_models, memberships=["nobody's"])


def test_many_states_and_an_unmatched_class_can_be_drawn() -> None:
    rng = np.random.default_rng(1)
    data = Sequences.from_codes(rng.integers(0, 10, size=(60, 8)), range(10))
    half, thirds = np.arange(60) % 2, np.arange(60) % 3
    sites, clusters = {"x": data, "y": data}, {"x": half, "y": half}
    found = mmlca.site_differences(sites, clusters, local={"x": half, "y": thirds}, n_boot=0)
    figure = mmlca.plot_site_differences(found)
    figure.draw_without_rendering()
    assert shown(figure.axes[0]) == []
    assert len(figure.axes) == 2 * (4 + 1) + 2
