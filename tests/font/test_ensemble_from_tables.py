"""The ensemble from cross-tables alone: exact where it must be, close elsewhere, hard to bend."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import font
from font import clustering
from font.clustering import latent_clusters
from font.exchange.disclosure import round_counts
from font.exchange.messages.ensemble import ensemble_content, ensemble_from


def tables_of(labels: dict[str, pd.DataFrame], k: int, models: dict) -> font.CrossTables:
    return font.CrossTables.from_labels(labels, dict.fromkeys(models, k))


def in_parts(labels: pd.DataFrame, n_sites: int = 3) -> dict[str, pd.DataFrame]:
    return {f"s{i}": labels[i::n_sites] for i in range(n_sites)}


def rounded(tables: font.CrossTables, seed: int, unit: int = 11) -> font.CrossTables:
    rng = np.random.default_rng(seed)
    parts = {}
    for site, table in tables.tables.items():
        upper = round_counts(np.triu(table), unit, rng)
        parts[site] = (upper + np.triu(upper, 1).T).astype(float)
    return font.CrossTables(tables.models, tables.n_classes, parts)


@pytest.mark.parametrize("weights", ["spectral", "centred", "equal", "sparse"])
@pytest.mark.parametrize("seed", range(3))
def test_agreement_and_weights_are_exact(make_case, dense, weights: str, seed: int) -> None:
    case = make_case(400, 5, 3, [0.9, 0.8, 0.7, 0.9, 0.3], seed=seed)
    own = {name: f"s{i % 3}" for i, name in enumerate(case.models)}
    tables = tables_of(in_parts(case.labels), 3, case.models)
    ours = font.Ensemble(3, weights=weights, method="latent").fit(case.models, tables)
    theirs = font.Ensemble(3, weights=weights).fit(case.models, in_parts(case.labels))
    for name in ("weights_", "centred_weights_", "agreement_", "centred_agreement_", "spectrum_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-12)
    assert ours.n_clusters_choice_.n_clusters == theirs.n_clusters_choice_.n_clusters
    textbook = dense(case.models, case.labels)
    np.testing.assert_allclose(ours.agreement_, textbook.cosines, atol=1e-12)
    if weights == "spectral":
        np.testing.assert_allclose(ours.weights_, textbook.weights, atol=1e-12)
        equal = {name: name for name in own}  # one model each: the paper's weights
        shared = font.Ensemble(3).fit(case.models, tables, equal)
        np.testing.assert_allclose(shared.weights_, textbook.weights, atol=1e-12)


def test_positions_are_those_of_the_rows_of_the_combined_distances(make_case, dense) -> None:
    case = make_case(150, 4, 3, 0.8)
    tables = tables_of({"all": case.labels}, 3, case.models)
    ensemble = font.Ensemble(3, method="kmeans").fit(case.models, tables)
    one_hot = np.hstack([np.eye(3)[case.labels[name]] for name in case.models])
    points = one_hot @ ensemble._axes
    rows = dense(case.models, case.labels).combined
    ours = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    theirs = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(ours, theirs, atol=1e-6 * theirs.max())


@pytest.mark.parametrize("method", ["kmeans", "latent"])
def test_clusters_are_nearly_those_of_the_patients_themselves(make_case, method: str) -> None:
    case = make_case(3000, 6, 4, 0.85, seed=2)
    together = font.Ensemble(4, seed=1).fit(case.models, in_parts(case.labels))
    best = adjusted_rand_score(case.truth, together.predict(case.labels))
    tables = tables_of(in_parts(case.labels), 4, case.models)
    for given in (tables, rounded(tables, 1)):
        ensemble = font.Ensemble(4, method=method, seed=1).fit(case.models, given)
        labels = ensemble.predict(case.labels)
        assert adjusted_rand_score(case.truth, labels) > best - 0.02
        assert (np.diff(ensemble.cluster_sizes_.sum(axis=1)) <= 3).all()  # whole numbers per site
        n = ensemble.cluster_sizes_.to_numpy().sum()
        assert abs(n - 3000) < 150


def test_latent_clusters_reproduce_exact_tables() -> None:
    """Four readings with known errors: the tables come back, and nearly π and the confusion."""
    pi = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(1)
    confusion = [0.7 * np.eye(3) + 0.3 * rng.dirichlet(np.ones(3), 3).T for _ in range(4)]
    stacked = np.vstack(confusion)
    n = 1e7  # so many that half a patient more in each cell does not matter
    total = n * (stacked * pi) @ stacked.T
    for m in range(4):
        block = slice(3 * m, 3 * m + 3)
        total[block, block] = n * np.diag(confusion[m] @ pi)
    member = np.tile(np.eye(3), (4, 1))
    proportions, tables = latent_clusters(total, np.arange(0, 13, 3), [member])
    chance = (tables * proportions) @ tables.T
    pairs = np.repeat(np.arange(4), 3)[:, None] != np.repeat(np.arange(4), 3)
    np.testing.assert_allclose(chance[pairs], total[pairs] / n, atol=1e-4)
    np.testing.assert_allclose(proportions, pi, atol=0.05)
    np.testing.assert_allclose(tables, stacked, atol=0.05)


def test_each_update_of_the_latent_clusters_raises_their_likelihood(make_case) -> None:
    case = make_case(500, 5, 3, 0.6)
    tables = tables_of({"all": case.labels}, 3, case.models)
    total, offsets = tables.total(), tables.offsets
    member = np.random.default_rng(1).dirichlet(np.ones(3), 15)

    def likelihood(n_updates: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clustering, "_FEW_UPDATES", n_updates)
            patch.setattr(clustering, "_MOST_UPDATES", 0)
            patch.setattr(clustering, "_PSEUDO", 1e-9)
            pi, confusion = latent_clusters(total, offsets, [member])
        chance = (confusion * pi) @ confusion.T
        pairs = itertools.combinations(range(5), 2)
        cells = [(slice(3 * t, 3 * t + 3), slice(3 * s, 3 * s + 3)) for t, s in pairs]
        return float(sum((total[cell] * np.log(chance[cell])).sum() for cell in cells))

    path = [likelihood(n) for n in range(12)]
    assert (np.diff(path) > 0).all()


def test_posteriors_by_enumeration_with_the_sites_own_proportions(make_case) -> None:
    case = make_case(300, 3, 2, 0.8)
    tables = tables_of({"all": case.labels}, 2, case.models)
    ensemble = font.Ensemble(2, method="latent").fit(case.models, tables)
    site = case.labels[case.truth == 0]  # a site of one kind of patients
    shares = ensemble.predict_proba(site)
    logs = np.log(ensemble.confusion_)
    like = np.array(
        [
            [np.exp(sum(logs[2 * m + y, c] for m, y in enumerate(row))) for c in (0, 1)]
            for row in site.to_numpy()
        ]
    )
    pi = shares.mean(axis=0).to_numpy()  # at the fixed point the mean posterior
    expected = like * pi / (like @ pi)[:, None]
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    assert np.abs(shares.mean(axis=0).to_numpy() - ensemble.proportions_).max() > 0.1
    table = ensemble.confidence(site)
    assert (table["cluster"] == shares.to_numpy().argmax(axis=1)).all()
    np.testing.assert_allclose(table["margin"], np.abs(shares[0] - shares[1]))


@pytest.mark.parametrize("method", ["kmeans", "latent"])
def test_the_content_of_a_file_places_patients_alike(make_case, method: str) -> None:
    case = make_case(400, 4, 3, 0.8)
    tables = tables_of(in_parts(case.labels), 3, case.models)
    ensemble = font.Ensemble(3, method=method, seed=1).fit(case.models, tables)
    again = ensemble_from(ensemble_content(ensemble))
    assert (again.confidence(case.labels) == ensemble.confidence(case.labels)).all(axis=None)
    assert ensemble_content(again) == ensemble_content(ensemble)
    assert "3 clusters" in again.summary()
    n_classes = sum(len(beta) for beta in case.models.values())
    without = ensemble_content(ensemble) | {"axes": [[]] * n_classes, "centres": [[]] * 3}
    if method == "latent":  # which needs no axes: they would be most of the file
        assert without == ensemble_content(ensemble)
    else:
        with pytest.raises(ValueError, match="has no axes"):
            ensemble_from(without)


def test_latent_clusters_of_patterns_are_those_of_their_tables(make_case) -> None:
    case = make_case(600, 5, 3, 0.8)
    sites = in_parts(case.labels)
    given = (sites, tables_of(sites, 3, case.models))
    ours, theirs = (font.Ensemble(3, method="latent", seed=1).fit(case.models, x) for x in given)
    assert ensemble_content(ours) == ensemble_content(theirs)
    assert ours.patterns_ is not None
    with pytest.raises(ValueError, match="no pattern has a cluster of its own"):
        font.influence(ours)


def test_a_single_model_gives_its_own_classes(make_case) -> None:
    case = make_case(200, 1, 3, 0.9)
    tables = tables_of({"all": case.labels}, 3, case.models)
    for method in ("kmeans", "latent"):
        ensemble = font.Ensemble(3, method=method).fit(case.models, tables)
        assert adjusted_rand_score(case.labels["m0"], ensemble.predict(case.labels)) == 1


def test_wrong_tables_are_refused(make_case) -> None:
    case = make_case(50, 2, 2)
    tables = tables_of({"all": case.labels}, 2, case.models)
    with pytest.raises(ValueError, match="one of 'kmeans', 'latent'"):
        font.Ensemble(2, method="ward").fit(case.models, tables)
    with pytest.raises(ValueError, match="other numbers of classes"):
        font.Ensemble(2).fit({"m0": np.eye(3), "m1": np.eye(2)}, tables)
    with pytest.raises(ValueError, match="in the order of the cross-tables"):
        font.Ensemble(2).fit(dict(reversed(case.models.items())), tables)
    with pytest.raises(ValueError, match="has the label 1 from the model 'm0'"):
        tables_of({"all": case.labels}, 1, case.models)
    with pytest.raises(ValueError, match="'all' occur more than once"):
        font.CrossTables.merge([tables, tables])
    empty = font.CrossTables(tables.models, tables.n_classes, {"all": np.zeros((4, 4))})
    with pytest.raises(ValueError, match="no patients to cluster"):
        font.Ensemble(2).fit(case.models, empty)


# --- one site must not outvote the others ------------------------------------------------


@pytest.mark.parametrize("weights", ["spectral", "centred", "equal"])
def test_copies_of_a_model_share_its_weight(make_case, weights: str) -> None:
    case = make_case(1000, 4, 3, [0.9, 0.8, 0.7, 0.85])
    single = font.Ensemble(3, weights=weights, method="latent").fit(
        case.models, tables_of({"all": case.labels}, 3, case.models)
    )
    models, labels = dict(case.models), case.labels.copy()
    sites = {name: name for name in models}
    for i in range(30):
        models[f"copy {i}"], labels[f"copy {i}"] = models["m3"], labels["m3"]
        sites[f"copy {i}"] = "m3"
    many = font.Ensemble(3, weights=weights, method="latent").fit(
        models, tables_of({"all": labels}, 3, models), sites
    )
    by_site = many.weights_.groupby(sites).sum()
    np.testing.assert_allclose(by_site / by_site.sum(), single.weights_ / single.weights_.sum())
    assert (many.predict(labels) == single.predict(case.labels)).mean() > 0.99


@pytest.mark.parametrize("method", ["kmeans", "latent"])
@pytest.mark.parametrize("lie", ["noise", "one class", "swapped"])
def test_absurd_counts_of_one_site_do_not_move_the_others_patients(
    make_case, method: str, lie: str
) -> None:
    case = make_case(2400, 5, 4, 0.85, seed=3)
    parts = in_parts(case.labels, 4)
    rng = np.random.default_rng(1)
    made_up = {
        "noise": pd.DataFrame(rng.integers(4, size=(600, 5)), columns=case.labels.columns),
        "one class": pd.DataFrame(np.zeros((600, 5), dtype=int), columns=case.labels.columns),
        "swapped": parts["s3"].assign(m0=parts["s3"]["m1"].to_numpy()[::-1]),
    }[lie]
    honest = {site: parts[site] for site in ("s0", "s1", "s2")}
    fair = font.Ensemble(4, method=method, seed=1).fit(
        case.models, tables_of(honest, 4, case.models)
    )
    tables = tables_of(honest | {"s3": made_up}, 4, case.models)
    tables.tables["s3"] *= 1e9
    bent = font.Ensemble(4, method=method, seed=1).fit(case.models, tables)
    for table in honest.values():
        assert adjusted_rand_score(fair.predict(table), bent.predict(table)) > 0.9
    assert tables.total(capped=True).sum() == pytest.approx(
        2 * tables_of(honest, 4, case.models).total().sum()
    )


def test_no_site_is_scaled_where_none_has_the_majority(make_case) -> None:
    case = make_case(300, 2, 2)
    tables = tables_of(in_parts(case.labels), 2, case.models)
    np.testing.assert_allclose(tables.total(capped=True), tables.total())


@pytest.mark.parametrize("shares", [(40, 70, 290), (120, 130, 150), (390, 10, 0)])
def test_tables_are_added_one_by_one_as_by_hand(make_case, shares: tuple[int, ...]) -> None:
    """In any order, and without two of them at a time; the largest site counts as the others do."""
    case = make_case(400, 3, 2)
    cuts = np.cumsum([0, *shares])
    labels = {f"s{i}": case.labels[cuts[i] : cuts[i + 1]] for i in range(3)}
    one_hot = {
        site: np.hstack([np.eye(2)[table[name]] for name in table])
        for site, table in labels.items()
    }
    tables = {site: z.T @ z for site, z in one_hot.items()}
    largest = max(labels, key=lambda site: len(labels[site]))
    others = 400 - len(labels[largest])
    scale = dict.fromkeys(labels, 1.0)
    scale[largest] = min(1.0, others / len(labels[largest]))
    for order in itertools.permutations(labels):
        alive: list[weakref.ref[font.CrossTables]] = []

        def parts(order: tuple[str, ...] = order, alive: list[Any] = alive) -> Iterator[Any]:
            for site in order:
                assert not any(part() for part in alive[:-1])  # only the last may be in use
                part = tables_of({site: labels[site]}, 2, case.models)
                alive.append(weakref.ref(part))
                yield part

        added = font.CrossTables.merge(parts())
        assert added.n_patients().to_dict() == {site: len(labels[site]) for site in order}
        assert (added.total() == sum(tables.values())).all()
        capped = sum(scale[site] * table for site, table in tables.items())
        np.testing.assert_allclose(added.total(capped=True), capped, rtol=1e-12)


def test_a_site_whose_models_agree_with_nobody_is_named(make_case) -> None:
    case = make_case(2000, 8, 3, [0.95] * 6 + [0.0] * 2)
    models = {f"s{i // 2}/{i % 2}": beta for i, beta in enumerate(case.models.values())}
    labels = case.labels.set_axis(list(models), axis=1)
    tables = tables_of({"all": labels}, 3, models)
    ensemble = font.Ensemble(3, method="latent").fit(models, tables)
    assert "The models of 's3' agree with those of the other sites less" in ensemble.summary()
    fine = make_case(2000, 8, 3, 0.9)
    tables = tables_of({"all": fine.labels.set_axis(list(models), axis=1)}, 3, models)
    assert "of the other sites less" not in font.Ensemble(3).fit(models, tables).summary()


def test_cross_tables_count_as_pandas_does() -> None:
    """Models of unequal size, more patients than a block, a site without patients."""
    rng = np.random.default_rng(4)
    sizes = {"A": 3, "B": 1, "C": 5}
    labels = pd.DataFrame({name: rng.integers(k, size=9_001) for name, k in sizes.items()})
    tables = font.CrossTables.from_labels({"here": labels, "empty": labels[:0]}, sizes)
    total, cuts = tables.tables["here"], np.cumsum([0, *sizes.values()])
    for t, one in enumerate(sizes):
        for s, two in enumerate(sizes):
            block = total[cuts[t] : cuts[t + 1], cuts[s] : cuts[s + 1]]
            table = pd.crosstab(labels[one], labels[two]).to_numpy()
            assert (block == table).all()
    assert not tables.tables["empty"].any()


def test_if_no_model_separates_anybody_there_is_nothing_to_cluster() -> None:
    labels = {"here": pd.DataFrame({"A": [0, 0, 0], "B": [1, 1, 1]})}
    models = {"A": np.eye(2), "B": np.eye(2)}
    with pytest.raises(ValueError, match="no model distinguishes any patients"):
        font.Ensemble(2).fit(models, tables_of(labels, 2, models))
    alike = {"A": np.ones((2, 2))}
    labels = {"here": pd.DataFrame({"A": [0, 1, 1]})}
    with pytest.raises(ValueError, match="no model distinguishes any patients"):
        font.Ensemble(2).fit(alike, tables_of(labels, 2, alike))


def test_a_reliability_of_0_may_leave_nothing_to_cluster() -> None:
    labels = {"here": pd.DataFrame({"A": [0, 1, 1], "lazy": [0, 0, 0]})}
    models = {"A": np.eye(2), "lazy": np.eye(2)}
    ensemble = font.Ensemble(2, weights="prior", reliability={"A": 0, "lazy": 1})
    with pytest.raises(ValueError, match="distinguish patients, 'A', all have the reliability 0"):
        ensemble.fit(models, tables_of(labels, 2, models))


def test_a_model_of_one_class_makes_no_cluster() -> None:
    """Its class lies in the middle of everybody, and must not make a cluster of nobody."""
    rng = np.random.default_rng(1)
    truth = np.repeat([0, 1, 2, 3], [300, 150, 100, 60])
    noisy = np.where(rng.random(610) < 0.1, rng.integers(4, size=610), truth)
    labels = pd.DataFrame({"A": noisy, "B": np.where(truth == 3, 1, truth), "C": 0})
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 2.0]])
    models = {"A": corners, "B": corners[:3], "C": corners[:1]}
    sizes = {name: len(beta) for name, beta in models.items()}
    tables = font.CrossTables.from_labels({"here": labels}, sizes)
    ensemble = font.Ensemble(4, method="kmeans").fit(models, tables)
    assert ensemble.weights_["C"] == 0
    assert (ensemble.cluster_sizes_["here"] > 20).all()
    assert adjusted_rand_score(truth, ensemble.predict(labels)) > 0.8
