"""The refinement beside the published ensemble: tables, and what must not follow from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import font
from mmlca import MarkovParams, MixtureMarkov, simulate
from mmlca.study import refined
from mmlca.study.analyse import Analysis
from mmlca.study.analyse import refined as add_refinement

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
    return add_refinement(plain, 1), truth


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
    sizes = refined.size_table(study_with(1), analysis).set_index(["site", "group"])
    for site, part in analysis.refined_clusters.items():
        for k, n in part.value_counts().items():
            assert sizes.at[(site, f"cluster {k}"), "refined"] == n
            share = analysis.refined.proportions_.at[site, k - 1]
            assert sizes.at[(site, f"cluster {k}"), "proportion"] == share
    moved = refined.moved_table(study_with(1), analysis).set_index("published")
    both = [
        np.concatenate(list(p.values())) for p in (analysis.clusters, analysis.refined_clusters)
    ]
    assert moved.at["cluster 1", "cluster 2"] == ((both[0] == 1) & (both[1] == 2)).sum()
    assert moved.at["all", "all"] == 800
    by_site = refined.site_table(study_with(1), analysis).set_index("site")
    assert by_site["moved"].sum() == (both[0] != both[1]).sum()
    accuracy = refined.accuracy_table(analysis, truth).set_index("membership")
    assert accuracy.at["refined", "all"] > accuracy.at["published", "all"] - 0.02
    table = refined.reliability_table(analysis, truth, 1)
    assert table["patients"].sum() == 800
    assert refined.reliability_table(analysis, truth, 10**6)["patients"].isna().all()


@pytest.mark.parametrize("seed", range(20))
def test_no_small_move_follows_from_the_sizes(case: Any, seed: int) -> None:
    """A refined size next to a published one is hidden where few patients make the difference."""
    analysis, _ = case
    rng = np.random.default_rng(seed)
    changed = {}
    for site, part in analysis.clusters.items():
        values = part.to_numpy().copy()
        values[rng.choice(len(values), rng.integers(1, 40), replace=False)] = rng.integers(1, 3)
        changed[site] = pd.Series(values, index=part.index)
    other = SimpleNamespace(
        clusters=analysis.clusters,
        refined_clusters=changed,
        refined=analysis.refined,
        certainty=analysis.certainty,
        names={},
    )
    table = refined.size_table(study_with(11), other)  # type: ignore[arg-type]
    net = (table["refined"] - table["published"]).abs()
    assert not ((net > 0) & (net < 11)).any()
    for _, row in table.groupby("site"):  # one hidden size of a site would follow from the others
        assert row["refined"].isna().sum() != 1
    for _, column in table.groupby("group"):
        assert column["refined"].isna().sum() != 1
    assert table.loc[table["refined"].isna(), "proportion"].isna().all()
    moved = refined.moved_table(study_with(11), other).set_index("published")  # type: ignore[arg-type]
    assert not ((moved > 0) & (moved < 11)).any(axis=None)
    by_site = refined.site_table(study_with(11), other)  # type: ignore[arg-type]
    assert not ((by_site["moved"] > 0) & (by_site["moved"] < 11)).any()
