"""The refinement beside the published ensemble: tables, and what must not follow from them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_attack import moved_system

import font
from mmlca import MarkovParams, MixtureMarkov, simulate
from mmlca.study.analysis import Analysis
from mmlca.study.analysis import refined as add_refinement
from mmlca.study.groups import same_as_own
from mmlca.study.sections import refinement
from mmlca.tables.disclosure import is_small
from mmlca.tables.moves import count_moves

CHAINS = MarkovParams(
    [0.5, 0.5],
    [[0.8, 0.2], [0.3, 0.7]],
    [[[0.85, 0.15], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]],
)


def study_with(min_count: int) -> Any:
    return SimpleNamespace(
        privacy=SimpleNamespace(min_count=min_count), sites={"A": None, "B": None}
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


def test_tables_count_what_they_say(case: Any) -> None:
    analysis, truth = case
    moves = count_moves(analysis.clusters, analysis.refined_clusters, 1)
    sizes = refinement.size_table(study_with(1), analysis, moves).set_index(["site", "group"])
    for site, part in analysis.refined_clusters.items():
        for k, n in part.value_counts().items():
            assert sizes.at[(site, f"cluster {k}"), "refined"] == n
            share = analysis.refined.proportions_.at[site, k - 1]
            assert sizes.at[(site, f"cluster {k}"), "proportion"] == share
    moved = refinement.moved_table(study_with(1), analysis, moves).set_index("ensemble")
    both = [
        np.concatenate(list(p.values())) for p in (analysis.clusters, analysis.refined_clusters)
    ]
    assert moved.at["cluster 1", "cluster 2"] == ((both[0] == 1) & (both[1] == 2)).sum()
    assert moved.at["all", "all"] == 800
    same = same_as_own(analysis, 1)
    by_site = refinement.site_table(analysis, moves, same).set_index("site")
    assert by_site["moved"].sum() == (both[0] != both[1]).sum()
    own = {s: (analysis.refined_clusters[s] == analysis.local[s]).mean() for s in "AB"}
    assert by_site["same by own model"].to_dict() == pytest.approx(own)
    assert same["all"] == pytest.approx(np.mean(list(own.values())))
    accuracy = refinement.accuracy_table(analysis, truth).set_index("membership")
    assert accuracy.at["refined", "all"] > accuracy.at["ensemble", "all"] - 0.02
    table = refinement.reliability_table(analysis, truth, 1)
    assert table["patients"].sum() == 800
    assert refinement.reliability_table(analysis, truth, 10**6)["patients"].isna().all()


def test_shares_of_few_patients_do_not_show_beside_a_probability(case: Any) -> None:
    analysis, _ = case
    local = {s: part.copy() for s, part in analysis.refined_clusters.items()}
    local["A"].iloc[:5] = 3 - local["A"].iloc[:5]
    local["B"].iloc[:50] = 3 - local["B"].iloc[:50]
    same = same_as_own(replace(analysis, local=local), 11)
    assert same["B"] == 0.875
    assert same[["A", "all"]].isna().all()  # five at A, which would follow from the share of all


@pytest.mark.parametrize("seed", range(20))
def test_no_small_move_follows_from_all_tables_together(seed: int) -> None:
    """Sizes by site, who moved and how many at each site: what do they tell of each move?"""
    rng = np.random.default_rng(seed)
    sites, k = ["A", "B", "C"][: 1 + seed % 3], 2 + seed % 2
    clusters, moved_to = {}, {}
    for site in sites:
        clusters[site] = pd.Series(rng.integers(1, k + 1, 300))
        values = clusters[site].to_numpy().copy()
        movers = rng.choice(300, rng.integers(1, 60), replace=False)
        values[movers] = rng.choice(k, len(movers), p=rng.dirichlet(np.ones(k))) + 1
        moved_to[site] = pd.Series(values)
    analysis: Any = SimpleNamespace(
        clusters=clusters,
        refined_clusters=moved_to,
        refined=SimpleNamespace(proportions_=pd.DataFrame(1 / k, sites, range(k))),
        certainty={site: pd.DataFrame({"probability": [0.9]}) for site in sites},
        names={},
    )
    moves = count_moves(clusters, moved_to, 11)
    sizes = refinement.size_table(study_with(11), analysis, moves)
    net = (sizes["refined"] - sizes["ensemble"]).abs()
    assert not is_small(net.fillna(0), 11).any()
    assert sizes.loc[sizes["refined"].isna(), "proportion"].isna().all()
    moved = refinement.moved_table(study_with(11), analysis, moves)
    unknown = pd.Series(np.nan, sites)
    system = moved_system(moved, sizes, refinement.site_table(analysis, moves, unknown))
    pairs = {s: pd.crosstab(clusters[s], moved_to[s]) for s in sites}
    exact = {s: t.reindex(range(1, k + 1), columns=range(1, k + 1)) for s, t in pairs.items()}
    exact = {s: t.fillna(0).to_numpy() for s, t in exact.items()}
    for site, counts in ({"all": sum(exact.values())} | exact).items():
        for before, after in np.argwhere(is_small(counts, 11)):
            low, high = system.range_of((site, str(before + 1), str(after + 1)))
            assert low - 1e-6 <= counts[before, after] <= high + 1e-6
            assert high - low > 9 - 1e-6, (site, before, after)
