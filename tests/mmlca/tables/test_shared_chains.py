"""The test of shared chains and the norms beside it: oracles, size, power and coverage.

Two hospitals have the four RA-like chains of `ra_like`. Clusters are estimated as in a study: a
model of each hospital, the ensemble of both, and its clusters. The numbers in docs/inference.md
come from these functions with more data sets (`python` on this file prints them).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ra_like import PARAMS, STATES

import font
import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.tables.shared_chains import _Sites

K, S = PARAMS.n_classes, PARAMS.n_states
PROPORTIONS = {
    "equal": ([0.25] * 4, [0.25] * 4),
    "as in the study": ([0.65, 0.12, 0.13, 0.10], [0.65, 0.17, 0.10, 0.08]),
    "unequal": ([0.55, 0.25, 0.12, 0.08], [0.20, 0.10, 0.30, 0.40]),
}
SMALL, LARGE = (400, 500), (2_172, 3_150)
Sites = dict[str, Sequences]


def two_sites(proportions: str, n: tuple[int, int], mixed: float, seed: int) -> tuple[Sites, Any]:
    """Sites x and y with 3 to 16 quarters; the transitions of y are partly even (`mixed`)."""
    rng = np.random.default_rng([15, seed])
    even = (1 - mixed) * PARAMS.transition + mixed / S
    sites, truth = {}, {}
    for i, (site, transition) in enumerate({"x": PARAMS.transition, "y": even}.items()):
        chains = MarkovParams(PROPORTIONS[proportions][i], PARAMS.initial, transition)
        lengths = rng.integers(3, 17, n[i])
        sites[site], truth[site] = simulate(chains, n[i], lengths, rng, states=STATES)
    return sites, truth


def estimated_clusters(sites: Sites, seed: int) -> dict[str, Any]:
    """Those of the ensemble of the sites' own models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {s: MixtureMarkov(K, n_init=10, seed=seed).fit(d) for s, d in sites.items()}
    labels = {site: font.label(models, data) for site, data in sites.items()}
    ensemble = font.Ensemble(K, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    return {site: ensemble.predict(table) for site, table in labels.items()}


def true_norms(proportions: str, n: tuple[int, int], mixed: float) -> pd.Series:
    """Of the chains that the patients are drawn from, with the occupancy of very many patients."""
    square = (mixed * (PARAMS.transition - 1 / S)) ** 2
    sites, truth = two_sites(proportions, (40 * n[0], 40 * n[1]), mixed, seed=0)
    steps = mmlca.transition_counts(sites, truth).groupby(["group", "from"], observed=True)
    occupancy = steps["count"].sum().to_numpy().reshape(K, S)
    occupancy = occupancy / occupancy.sum(axis=1, keepdims=True)
    plain = np.sqrt(square.sum(axis=(1, 2))).mean()
    weighted = np.sqrt((occupancy * square.sum(axis=2)).sum(axis=1)).mean()
    return pd.Series(
        [plain, weighted, 0.0], ["transition plain", "transition occupancy", "initial plain"]
    )


def p_values(proportions: str, n: tuple[int, int], mixed: float, n_sets: int, n_sim: int) -> Any:
    """Of the test of simulated studies alone."""
    found = []
    for seed in range(1, n_sets + 1):
        sites, _ = two_sites(proportions, n, mixed, seed)
        clusters = estimated_clusters(sites, seed)
        labels = {site: np.asarray(part) for site, part in clusters.items()}
        found.append(_Sites(sites, labels, np.random.default_rng(seed)).test(n_sim)[2])
    return np.array(found)


def study(
    proportions: str, n: tuple[int, int], mixed: float, n_sets: int, n_sim: int, first: int = 1
) -> pd.DataFrame:
    """p-values and norms of simulated studies, one row each."""
    rows = []
    for seed in range(first, first + n_sets):
        sites, _ = two_sites(proportions, n, mixed, seed)
        found = mmlca.shared_chain_test(sites, estimated_clusters(sites, seed), n=n_sim, seed=seed)
        row = {"p": found.tests["p_value"].iloc[0]}
        for kind in found.norms.itertuples(index=False):
            for name in ("norm", "debiased", "low", "high"):
                row[f"{kind.quantity} {kind.weighting}", name] = getattr(kind, name)
        rows.append(row)
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame, true: pd.Series) -> pd.Series:
    """Shares of rejections at 0.05, of intervals that hold the truth, and mean norms."""
    result = {"rejected": (table["p"] <= 0.05).mean()}
    for kind, value in true.items():
        low, high = table[kind, "low"], table[kind, "high"]
        result[f"{kind}: covered"] = ((low <= value + 1e-12) & (value <= high)).mean()
        result[f"{kind}: true"] = value
        result[f"{kind}: debiased"] = table[kind, "debiased"].mean()
        result[f"{kind}: norm"] = table[kind, "norm"].mean()
    return pd.Series(result)


# --- the numbers themselves -----------------------------------------------------------------

TWO = MarkovParams(
    [0.6, 0.4],
    [[0.9, 0.1], [0.2, 0.8]],
    [[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]],
)


def alike(n: tuple[int, ...], shares: tuple[float, ...], seed: int = 1) -> tuple[Sites, Any]:
    """Sites with the chains of `TWO` in other proportions, and the true classes."""
    sites, truth = {}, {}
    for i, (size, share) in enumerate(zip(n, shares, strict=True)):
        chains = MarkovParams([share, 1 - share], TWO.initial, TWO.transition)
        name = "xyzuvw"[i]
        sites[name], truth[name] = simulate(chains, size, 14, seed=10 * seed + i)
    return sites, truth


def test_with_one_cluster_it_is_the_classical_ratio() -> None:
    rng = np.random.default_rng(1)
    sites = {
        site: Sequences.from_codes(rng.choice(3, (n, 6), p=[0.5, 0.3, 0.2]))
        for site, n in (("x", 80), ("y", 50))
    }
    one = {site: np.ones(len(data)) for site, data in sites.items()}
    found = mmlca.shared_chain_test(sites, one, n=2, seed=1)
    tables = []
    for data in sites.values():
        first = np.bincount(data.codes[:, 0], minlength=3)
        steps = np.zeros((3, 3))
        np.add.at(steps, (data.codes[:, :-1].ravel(), data.codes[:, 1:].ravel()), 1)
        tables.append(np.vstack([first, steps]))
    counts = np.array(tables)
    expected = (
        counts.sum(axis=2, keepdims=True) * counts.sum(axis=0) / counts.sum(axis=(0, 2))[:, None]
    )
    by_hand = 2 * (counts * np.log(counts / expected)).sum()
    assert found.tests["statistic"][0] == pytest.approx(by_hand, abs=1e-3)


def test_the_statistic_is_that_of_the_estimators() -> None:
    sites, truth = alike((300, 200), (0.7, 0.3))
    found = mmlca.shared_chain_test(sites, truth, n=1, seed=1)
    site = np.repeat(["x", "y"], [300, 200])
    shared = MixtureMarkov(2, prior=0, seed=1).fit(Sequences.concat(sites), groups=site)
    own = [MixtureMarkov(2, prior=0, init=shared.params_).fit(data) for data in sites.values()]
    ratio = 2 * (sum(model.loglik_ for model in own) - shared.loglik_)
    assert found.tests["statistic"][0] == pytest.approx(ratio, abs=0.02)


def test_the_norms_are_those_of_the_sites_own_chains() -> None:
    sites, truth = alike((600, 500), (0.7, 0.3))
    found = mmlca.shared_chain_test(sites, truth, n=19, seed=1).norms
    chains = []
    for data in sites.values():
        params = MixtureMarkov(2, prior=0, init=TWO).fit(data).params_
        order = np.argsort(params.initial[:, 1])  # the fit orders classes by size
        chains.append(np.hstack([params.transition[order].reshape(2, 4), params.initial[order]]))
    apart = (chains[0] - chains[1]) ** 2
    plain = np.sqrt(apart[:, :4].sum(axis=1)).mean()
    first = np.sqrt(apart[:, 4:].sum(axis=1)).mean()
    assert found["norm"][[0, 2]].to_numpy() == pytest.approx([plain, first], abs=5e-3)
    assert (found["low"] <= found["debiased"]).all()
    assert (found["debiased"] <= found["high"]).all()
    assert (found["debiased"] < found["norm"]).all()
    assert found["rows_left_out"].tolist() == [0, 0, 0]


def test_unlike_proportions_are_no_difference_and_unlike_chains_are() -> None:
    """A permutation test with the same clusters held fixed called the first pair different."""
    sites, _ = two_sites("unequal", SMALL, 0.0, seed=3)
    clusters = estimated_clusters(sites, 3)
    norms = mmlca.site_differences(sites, clusters, n_boot=100, seed=1).norms
    assert norms["low"][1] > 0  # as if the clusters were known
    found = mmlca.shared_chain_test(sites, clusters, n=19, seed=1)
    assert found.tests["p_value"][0] > 0.05
    assert found.norms["low"][1] == 0
    assert not len(found.rejected())
    assert "x − y: may share the chains of their clusters" in repr(found)
    sites, truth = alike((300, 300), (0.7, 0.3))
    late = 0.8 * TWO.transition + 0.2 * TWO.transition[:, ::-1]
    chains = MarkovParams([0.3, 0.7], TWO.initial, late)
    sites["y"], truth["y"] = simulate(chains, 300, 14, seed=5)
    found = mmlca.shared_chain_test(sites, truth, n=19, seed=1)
    assert found.tests["p_value"][0] == 0.05
    assert found.norms["low"][1] > 0
    assert "x − y: do not share the chains" in repr(found)


def test_all_sites_and_each_pair() -> None:
    sites, truth = alike((150, 150, 150), (0.5, 0.6, 0.4))
    codes = 1 - sites["z"].codes  # the third one's states change places
    sites["z"] = Sequences.from_codes(codes, sites["x"].states)
    found = mmlca.shared_chain_test(sites, truth, n=39, seed=1)
    assert found.tests["sites"].tolist() == ["all sites", "x − y", "x − z", "y − z"]
    p = found.tests["p_value"].to_numpy()
    assert p[[0, 2]].tolist() == [1 / 40] * 2
    assert p[3] <= 2 / 40 < p[1]
    # Holm, over the three pairs
    by_hand = [p[0], max(p[1], 2 * p[3], 3 * p[2]), 3 * p[2], max(2 * p[3], 3 * p[2])]
    assert found.tests["p_holm"].tolist() == pytest.approx(by_hand)
    assert found.norms["sites"].unique().tolist() == ["x − y", "x − z", "y − z"]
    assert "adjusted for the number of pairs (Holm)" in found.summary()


def test_many_sites_are_tested_together() -> None:
    sites, truth = alike((40,) * 6, (0.5, 0.6, 0.4, 0.5, 0.5, 0.5))
    found = mmlca.shared_chain_test(sites, truth, n=3, seed=1)
    assert found.tests["sites"].tolist() == ["all sites"]
    assert not len(found.norms)
    assert "low" in found.norms


def test_the_same_seed_gives_the_same_bits() -> None:
    sites, truth = alike((100, 80), (0.7, 0.3))
    first, again = (mmlca.shared_chain_test(sites, truth, n=9, seed=3) for _ in range(2))
    other = mmlca.shared_chain_test(sites, truth, n=9, seed=4)
    pd.testing.assert_frame_equal(first.tests, again.tests)
    pd.testing.assert_frame_equal(first.norms, again.norms)
    assert other.tests["typical"][0] != first.tests["typical"][0]


def test_gaps_weights_death_and_clusters_that_a_site_lacks() -> None:
    sites, truth = alike((120, 90), (0.9, 0.3))
    codes = sites["x"].codes.copy()
    codes[::5, 4] = -1
    codes[1::7, 9:] = -1
    codes[2::9, 10:] = 2
    first = Sequences.from_codes(codes, ["A", "B", "dead"]).absorb("dead")
    second = Sequences.from_codes(sites["y"].codes, ["A", "B", "dead"]).absorb("dead")
    clusters = {"x": np.zeros(120), "y": truth["y"]}
    found = mmlca.shared_chain_test({"x": first, "y": second}, clusters, n=5, seed=1)
    assert np.isfinite(found.tests[["statistic", "typical"]]).all(axis=None)
    assert np.isfinite(found.norms["norm"]).all()
    once = mmlca.shared_chain_test(sites, truth, n=1, seed=1).tests["statistic"][0]
    twice = {site: data.reweight(np.full(len(data), 2.0)) for site, data in sites.items()}
    double = mmlca.shared_chain_test(twice, truth, n=1, seed=1).tests["statistic"][0]
    assert double == pytest.approx(2 * once, abs=0.05)


def test_mistakes() -> None:
    sites, truth = alike((30, 30), (0.5, 0.5))
    with pytest.raises(ValueError, match="at least 2 are needed"):
        mmlca.shared_chain_test({"x": sites["x"]}, truth)
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        mmlca.shared_chain_test(sites, truth, n=0)
    with pytest.raises(ValueError, match="missing for the sites"):
        mmlca.shared_chain_test(sites, {"x": truth["x"]})


# --- size, power and coverage ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("proportions", PROPORTIONS)
def test_size_where_chains_are_shared(proportions: str) -> None:
    """Clusters estimated; the permutation test rejected .63 with unlike proportions."""
    rejected = (p_values(proportions, SMALL, 0.0, n_sets=60, n_sim=39) <= 0.05).mean()
    assert rejected <= 0.05 + 3.2 * np.sqrt(0.05 * 0.95 / 60)  # at most 8 of 60


@pytest.mark.slow
def test_power_at_a_small_shift() -> None:
    assert (p_values("as in the study", LARGE, 0.03, n_sets=15, n_sim=39) <= 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize(("mixed", "nominal"), [(0.0, 0.95), (0.0803, 0.85)])
def test_intervals_cover_under_estimated_clusters(mixed: float, nominal: float) -> None:
    """Where chains differ they cover less than 95 %, as the notes of the function say."""
    table = study("unequal", SMALL, mixed, n_sets=60, n_sim=99)
    found = summary(table, true_norms("unequal", SMALL, mixed))
    covered = found[[name for name in found.index if name.endswith("covered")]]
    least = nominal - 3.2 * np.sqrt(nominal * (1 - nominal) / 60)  # 52 and 43 of 60
    assert (covered >= least).all(), found


if __name__ == "__main__":
    sizes = {"small": SMALL, "large": LARGE}[sys.argv[2]]
    mixed, n_sets, n_sim = float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    table = study(sys.argv[1], sizes, mixed, n_sets, n_sim)
    found = summary(table, true_norms(sys.argv[1], sizes, mixed))
    sys.stdout.write(f"{sys.argv[1:]} {found.round(3).to_dict()}\n")
