import time

import numpy as np
import pandas as pd
import pytest

import font
from font import influence
from font.exchange.messages.ensemble import ensemble_content, ensemble_from
from font.simulation.competitors import fit_kmeans
from font.simulation.sources import simulate_gaussian
from font.stability import vote


@pytest.fixture(scope="module")
def study(make_case):
    """Two good sites with two models each, and one whose models are useless."""
    case = make_case(3000, 6, 3, [0.9, 0.9, 0.9, 0.9, 0.2, 0.2], seed=1)
    names = ["A/1", "A/2", "B/1", "B/2", "C/1", "C/2"]
    models = dict(zip(names, case.models.values(), strict=True))
    labels = case.labels.set_axis(names, axis=1)
    sites = {"A": labels[:1200], "B": labels[1200:2500], "C": labels[2500:]}
    return models, sites


def test_influence_equals_fitting_without_the_site(study):
    models, sites = study
    ensemble = font.Ensemble(3, seed=1).fit(models, sites)
    table = influence(ensemble)
    assert table.index.tolist() == ["A", "B", "C"]
    assert table["models"].tolist() == [2, 2, 2]
    for site in "ABC":
        rest = [name for name in models if not name.startswith(site)]
        again = font.Ensemble(3, seed=1).fit(
            {name: models[name] for name in rest},
            {other: labels[rest] for other, labels in sites.items() if other != site},
        )
        everyone = pd.concat(sites.values())
        old, new = ensemble.predict(everyone), again.predict(everyone[rest])
        partner = font.match_labels(old, new)
        assert table.loc[site, "changed"] == (new.map(partner) != old).sum()
    by_site = [f"changed at {site}" for site in "ABC"]
    assert (table[by_site].sum(axis=1) == table["changed"]).all()
    np.testing.assert_allclose(table["share"], table["changed"] / 3000)
    assert table.loc["C", "changed"] < table.loc["A", "changed"]


def test_influence_takes_milliseconds(study):
    ensemble = font.Ensemble(3, seed=1).fit(*study)
    influence(ensemble)
    begin = time.process_time()
    influence(ensemble)
    assert time.process_time() - begin < 0.5


def test_influence_of_models_alone_and_of_what_cannot_be_left_out(study):
    models, sites = study
    ensemble = font.Ensemble(3, seed=1).fit(models, {"all": pd.concat(sites.values())})
    table = influence(ensemble)
    assert table.index.tolist() == [*dict.fromkeys(name.split("/")[0] for name in models), "all"]
    assert np.isnan(table.loc["all", "changed"])  # nobody is left
    single = font.Ensemble(3).fit(
        {"A": models["A/1"]}, {"A": sites["A"][["A/1"]].set_axis(["A"], axis=1)}
    )
    with pytest.raises(ValueError, match="needs two sites at least"):
        influence(single)


def test_an_ensemble_from_a_file_cannot_be_refitted(study):
    ensemble = ensemble_from(ensemble_content(font.Ensemble(3).fit(*study)))
    with pytest.raises(ValueError, match="needs the counts of label patterns"):
        influence(ensemble)


def _kmeans(data, seed):
    from sklearn.cluster import KMeans

    return {
        site: KMeans(3, n_init=2, random_state=seed).fit(np.asarray(x)) for site, x in data.items()
    }


def _blobs(spread, seed=1):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    return {
        site: centres[rng.choice(3, n, p=[0.5, 0.3, 0.2])] + spread * rng.normal(size=(n, 2))
        for site, n in (("A", 150), ("B", 250))
    }


def test_clear_clusters_are_found_again_and_shares_have_binomial_errors():
    data = _blobs(0.3)
    seen = []
    ensemble = font.Ensemble(3)
    result = font.bootstrap_clusters(
        data, _kmeans, ensemble, 40, seed=1, progress=lambda done, n: seen.append((done, n))
    )
    assert result.n_failed == 0
    assert seen[-1] == (40, 40)
    assert not hasattr(ensemble, "weights_")  # the caller's stays unfitted
    assert (result.clusters["found_again"] == 1).all()
    assert (result.clusters["jaccard"] > 0.99).all()
    assert result.clusters["patients"].tolist() == sorted(result.clusters["patients"])[::-1]
    shares = result.shares
    assert shares["site"].tolist() == ["A"] * 3 + ["B"] * 3
    sums = shares.groupby("site")["share"].sum()
    np.testing.assert_allclose(sums, 1)
    size = shares["site"].map({"A": 150, "B": 250})
    binomial = np.sqrt(shares["share"] * (1 - shares["share"]) / size)
    np.testing.assert_allclose(shares["se"], binomial, rtol=0.4)
    assert ((shares["low"] <= shares["share"]) & (shares["share"] <= shares["high"])).all()
    assert [len(kept) for kept in result.kept.values()] == [150, 250]
    again = font.bootstrap_clusters(data, _kmeans, ensemble, 40, seed=1)
    pd.testing.assert_frame_equal(again.shares, shares)


def test_noise_is_not_found_again():
    data = {site: np.random.default_rng(i).normal(size=(80, 2)) for i, site in enumerate("AB")}
    clusters = font.bootstrap_clusters(data, _kmeans, font.Ensemble(3), 20, seed=1).clusters
    assert clusters["found_again"].min() < 0.7


def test_cluster_bootstrap_of_tables_and_wrong_arguments():
    frames = {
        site: pd.DataFrame(part, index=[f"{site}{i}" for i in range(len(part))], columns=["x", "y"])
        for site, part in _blobs(0.3).items()
    }
    result = font.bootstrap_clusters(frames, _kmeans, font.Ensemble(3), 3)
    assert result.kept["A"].index[0] == "A0"
    with pytest.raises(ValueError, match="n must be a whole number of at least 2"):
        font.bootstrap_clusters(frames, _kmeans, font.Ensemble(3), 1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        font.bootstrap_clusters(frames, _kmeans, font.Ensemble(3), 3, level=95)
    with pytest.raises(TypeError, match="must be a dict"):
        font.bootstrap_clusters([], _kmeans, font.Ensemble(3), 3)


def local_kmeans(data, k):
    return {site: fit_kmeans(x, k, 10, 1, site) for site, x in data.items()}


@pytest.fixture(scope="module")
def data():
    return simulate_gaussian("imbalanced", 4, 0.05, seed=3, n_classes=4).data


def test_models_with_too_many_classes_suggest_the_true_number(data):
    models = {k: local_kmeans(data, k) for k in (4, 5, 6, 7)}
    table = font.suggest_n_clusters(models, data)
    assert table["suggested"].to_dict() == {4: 4, 5: 4, 6: 4, 7: 4, "all": 4}
    labels = {site: font.label(models[5], part) for site, part in data.items()}
    choice = font.Ensemble(None).fit(models[5], labels).n_clusters_choice_
    assert table.loc[5].tolist() == [choice.n_clusters, choice.sure, choice.low, choice.high]
    with pytest.raises(ValueError, match="there are no models"):
        font.suggest_n_clusters({}, data)


def test_the_summary_says_what_the_spectrum_can_say(data):
    for k, sentence in ((4, "partly by construction"), (6, "such models were right in")):
        models = local_kmeans(data, k)
        labels = {site: font.label(models, part) for site, part in data.items()}
        assert sentence in font.Ensemble(4).fit(models, labels).summary()


def test_the_votes_and_ties_go_to_more():
    assert vote({"a": 4, "b": 5, "c": 4}) == 4
    assert vote([5, 4, 5, 4]) == 5
    assert vote([3]) == 3


def test_a_small_site_does_not_vote_the_clusters_of_others_away():
    """Few patients show fewer classes than there are; a large site does not decide alone."""
    votes = {"a": 4, "b": 3, "c": 1}
    assert vote(votes) == 4
    assert vote(votes, {"a": 300, "b": 900, "c": 60}) == 3
    many = {"large": 4, **{f"small {i}": 1 for i in range(3)}}
    assert (
        vote(many, {"large": 5000, **dict.fromkeys([*many][1:], 50)}) == 4
    )  # of equals the larger
    assert vote({"large": 2, "b": 3, "c": 3}, {"large": 5000, "b": 60, "c": 60}) == 3


def test_what_is_no_vote_is_refused():
    with pytest.raises(ValueError, match="no votes"):
        vote([])
    with pytest.raises(ValueError, match=r"found 0, 2\.5"):
        vote([3, 0, 2.5])
