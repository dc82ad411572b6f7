import pytest

import font


@pytest.fixture(scope="module")
def data():
    return font.simulate_gaussian("imbalanced", 4, 0.05, seed=3, n_classes=4).data


def test_models_with_too_many_classes_suggest_the_true_number(data):
    models = {k: font.local_kmeans(data, k, seed=1) for k in (4, 5, 6, 7)}
    table = font.suggest_n_clusters(models, data)
    assert table["suggested"].to_dict() == {4: 4, 5: 4, 6: 4, 7: 4, "all": 4}
    labels = {site: font.label(models[5], part) for site, part in data.items()}
    choice = font.Ensemble(None).fit(models[5], labels).n_clusters_choice_
    assert table.loc[5].tolist() == [choice.n_clusters, choice.sure, choice.low, choice.high]
    with pytest.raises(ValueError, match="there are no models"):
        font.suggest_n_clusters({}, data)


def test_the_summary_says_what_the_spectrum_can_say(data):
    for k, sentence in ((4, "partly impose that number"), (6, "such models were right in")):
        models = font.local_kmeans(data, k, seed=1)
        labels = {site: font.label(models, part) for site, part in data.items()}
        assert sentence in font.Ensemble(4).fit(models, labels).summary()
