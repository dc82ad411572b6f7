import pytest

import font
from font.simulation.competitors import fit_kmeans
from font.simulation.sources import simulate_gaussian
from font.stability import vote


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
