"""The refinement beside the published ensemble: tables, and what must not follow from them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_attack import moved_system

import font.metrics
from font.metrics import compare_clusterings
from mmlca import MarkovParams, MixtureMarkov, simulate
from mmlca.study import site_data
from mmlca.study.analysis import Analysis
from mmlca.study.analysis import refined as add_refinement
from mmlca.study.combined import site_patients
from mmlca.study.results.certainty import (
    doubtful_share,
    mean_of,
    moves_of,
    proportions_of,
    reliability_of,
    same_as_own,
    truth_indices,
)
from mmlca.study.results.registry import FOR_HEADLINE, TABLES, site_results
from mmlca.study.results.site import ENSEMBLE, REFINED, SiteResults, stacked
from mmlca.study.sections import refinement
from mmlca.tables.disclosure import is_small
from mmlca.tables.matching import memberships
from mmlca.tables.moves import count_moves, share_alike

CHAINS = MarkovParams(
    [0.5, 0.5],
    [[0.8, 0.2], [0.3, 0.7]],
    [[[0.85, 0.15], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]],
)


def study_with(min_count: int) -> Any:
    place = SimpleNamespace(truth=Path("truth.csv"), labs=None)
    release = "public" if min_count > 1 else "inside"
    return SimpleNamespace(
        privacy=SimpleNamespace(min_count=min_count, release=release),
        sites={"A": place, "B": place},
    )


@pytest.fixture(scope="module")
def case() -> tuple[Analysis, dict[str, np.ndarray]]:
    data, truth = {}, {}
    for i, (site, share) in enumerate((("A", 0.85), ("B", 0.4))):
        chains = MarkovParams([share, 1 - share], CHAINS.initial, CHAINS.transition)
        data[site], true = simulate(chains, 400, 10, seed=i + 1)
        truth[site] = true.to_numpy()
    models = {s: MixtureMarkov(2, n_init=4, seed=1).fit(x) for s, x in data.items()}
    labels = {s: font.label(models, x) for s, x in data.items()}
    ensemble = font.Ensemble(2, seed=1).fit(models, labels)
    certainty = {s: ensemble.confidence(t) for s, t in labels.items()}
    clusters = {s: t["cluster"] + 1 for s, t in certainty.items()}
    plain = Analysis(data, models, models, ensemble, labels, clusters, clusters, certainty)
    return add_refinement(plain, 1, seed=1), truth


def test_the_published_clusters_stay_and_the_probability_leads(case: Any) -> None:
    analysis, _ = case
    for site, table in analysis.certainty.items():
        assert list(table)[:3] == ["refined_cluster", "probability", "cluster"]
        published = analysis.ensemble.predict(analysis.labels[site]) + 1
        assert (analysis.clusters[site] == published).all()
        expected = analysis.refined.predict_proba(analysis.sequences[site], site).max(axis=1)
        assert table["probability"].to_numpy() == pytest.approx(expected.to_numpy())


def results_of(case: Any, min_count: int = 1) -> dict[str, SiteResults]:
    """The results of both sites, with the true classes."""
    analysis, truth = case
    study = study_with(min_count)
    made = {}
    for site in analysis.sequences:
        patients = site_patients(study, analysis, site)
        classes = pd.Series(truth[site], analysis.sequences[site].ids).astype(str)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site_data, "read_truth", lambda path, data, c=classes: c)
            made[site] = site_results(study, patients, FOR_HEADLINE)
    return made


def test_tables_count_what_they_say(case: Any) -> None:
    analysis, _ = case
    results = results_of(case)
    moves, names = moves_of(results, {}, 1), {1: "cluster 1", 2: "cluster 2"}
    proportions = proportions_of(results)
    sizes = refinement.size_table(names, proportions, moves, 1).set_index(["site", "group"])
    for site, part in analysis.refined_clusters.items():
        for k, n in part.value_counts().items():
            assert sizes.at[(site, f"cluster {k}"), "refined"] == n
            share = analysis.refined.proportions_.at[site, k - 1]
            assert sizes.at[(site, f"cluster {k}"), "proportion"] == pytest.approx(share, abs=1e-6)
    moved = refinement.moved_table(names, moves).set_index("ensemble")
    both = [
        np.concatenate(list(p.values())) for p in (analysis.clusters, analysis.refined_clusters)
    ]
    assert moved.at["cluster 1", "cluster 2"] == ((both[0] == 1) & (both[1] == 2)).sum()
    assert moved.at["all", "all"] == 800
    same = same_as_own(results, 1)
    sure = stacked(results, "certainty")["probability"]
    by_site = refinement.site_table(moves, sure, same).set_index("site")
    assert by_site["moved"].sum() == (both[0] != both[1]).sum()
    assert by_site["probability"].to_dict() == pytest.approx(
        {site: part.max(axis=1).mean() for site, part in analysis.memberships.items()}, abs=1e-12
    )
    labels = {site: table[site].to_numpy() for site, table in analysis.labels.items()}
    local = memberships(analysis.sequences, analysis.clusters, labels, None)["local"]
    own = {
        site: np.mean([local.labels[i] for i in local.codes[site]] == part)
        for site, part in analysis.refined_clusters.items()
    }
    assert by_site["same by own model"].to_dict() == pytest.approx(own)
    assert same["all"] == pytest.approx(np.mean(list(own.values())))


def test_certainty_and_truth_are_those_of_all_patients(case: Any) -> None:
    analysis, truth = case
    results = results_of(case)
    votes = pd.concat(list(analysis.certainty.values()))["vote_share"]
    assert mean_of(results, "vote_share") == pytest.approx(votes.mean(), abs=1e-12)
    assert doubtful_share(results, 1) == pytest.approx((votes < 0.6).mean(), abs=1e-12)
    true = np.concatenate(list(truth.values()))
    for view, clusters in ((ENSEMBLE, analysis.clusters), (REFINED, analysis.refined_clusters)):
        index = truth_indices(results, view)
        expected = compare_clusterings(true, np.concatenate(list(clusters.values())))
        assert index["all"] == pytest.approx(expected["adjusted_rand_index"], abs=1e-12)
        for site, part in clusters.items():
            expected = compare_clusterings(truth[site], part.to_numpy())
            assert index[site] == pytest.approx(expected["adjusted_rand_index"], abs=1e-12)
    accuracy = refinement.accuracy_table(results).set_index("membership")
    assert accuracy.at["refined", "all"] > accuracy.at["ensemble", "all"] - 0.02
    member = np.concatenate([part.to_numpy() for part in analysis.memberships.values()])
    pd.testing.assert_frame_equal(
        reliability_of(results, 1),
        font.metrics.reliability_from(font.metrics.reliability_counts(member, true)),
        check_dtype=False,
        rtol=0,
        atol=1e-12,
    )
    few = reliability_of(results, 10**6)
    assert few is not None
    assert few["patients"].isna().all()


def test_rounded_results_are_counted_in_units_and_nearly_those_of_all_patients(case: Any) -> None:
    exact, rounded = results_of(case), results_of(case, min_count=11)
    for name in ("certainty", "truth", "reliability"):
        table = stacked(rounded, name)
        for column, spec in TABLES[name].items():
            if spec.kind == "count":
                assert (table[column].dropna() % 11 == 0).all(), (name, column)
    sure = stacked(rounded, "certainty")[["vote_share", "probability"]].to_numpy().ravel()
    assert [float(f"{value:.3g}") for value in sure] == sure.tolist()
    assert stacked(rounded, "proportions")["proportion"].to_numpy() == pytest.approx(
        stacked(exact, "proportions")["proportion"].to_numpy(), abs=11 / 400
    )
    bins = stacked(rounded, "reliability")
    assert bins.loc[bins["patients"] == 0, "probability"].isna().all()
    near = {k: pytest.approx(v, abs=0.1) for k, v in truth_indices(exact, REFINED).items()}
    assert truth_indices(rounded, REFINED) == near
    assert same_as_own(rounded, 11)["all"] == pytest.approx(same_as_own(exact, 1)["all"], abs=0.1)


def test_shares_of_few_patients_do_not_show_beside_a_probability() -> None:
    counts = pd.DataFrame({"same": [395.0, 350.0], "patients": [400.0, 400.0]}, ["A", "B"])
    same = share_alike(counts, 11)
    assert same["B"] == 0.875
    assert same[["A", "all"]].isna().all()  # five at A, which would follow from the share of all


@pytest.mark.parametrize("seed", range(20))
def test_no_small_move_follows_from_all_tables_together(seed: int) -> None:
    """Sizes by site, who moved and how many at each site: what do they tell of each move?"""
    rng = np.random.default_rng(seed)
    sites, k = ["A", "B", "C"][: 1 + seed % 3], 2 + seed % 2
    counts = np.zeros((len(sites), k, k))
    for i in range(len(sites)):
        before = rng.integers(0, k, 300)
        after = before.copy()
        movers = rng.choice(300, rng.integers(1, 60), replace=False)
        after[movers] = rng.choice(k, len(movers), p=rng.dirichlet(np.ones(k)))
        np.add.at(counts[i], (before, after), 1)
    numbers = list(range(1, k + 1))
    moves, names = count_moves(sites, numbers, counts, 11), {n: f"cluster {n}" for n in numbers}
    sizes = refinement.size_table(names, pd.DataFrame(1 / k, sites, numbers), moves, 11)
    net = (sizes["refined"] - sizes["ensemble"]).abs()
    assert not is_small(net.fillna(0), 11).any()
    assert sizes.loc[sizes["refined"].isna(), "proportion"].isna().all()
    moved, unknown = refinement.moved_table(names, moves), pd.Series(np.nan, sites)
    by_site = refinement.site_table(moves, pd.Series(0.9, sites), unknown)
    system = moved_system(moved, sizes, by_site)
    for site, pairs in (
        {"all": counts.sum(axis=0)} | dict(zip(sites, counts, strict=True))
    ).items():
        for before, after in np.argwhere(is_small(pairs, 11)):
            low, high = system.range_of((site, str(before + 1), str(after + 1)))
            assert low - 1e-6 <= pairs[before, after] <= high + 1e-6
            assert high - low > 9 - 1e-6, (site, before, after)
