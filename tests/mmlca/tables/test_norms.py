"""What sampling adds to site differences: naive versions with explicit patients, and coverage."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ra_like import PARAMS, STATES

import mmlca
from mmlca import MarkovParams, Sequences
from mmlca.tables.counts import cluster_steps

Clusters = dict[str, np.ndarray]
Sites = dict[str, Sequences]
KINDS = ("transition plain", "transition occupancy", "initial plain")


def norms(sites: Sites, clusters: Clusters, **settings) -> pd.DataFrame:
    table = mmlca.site_differences(sites, clusters, **settings).norms
    return table.set_index(table["quantity"] + " " + table["weighting"])


# --- the naive version -----------------------------------------------------------------


def naive_counts(rows: list[np.ndarray], n_states: int) -> np.ndarray:
    """Steps by state and, in the last row, first states, (S + 1, S), by loops."""
    count = np.zeros((n_states + 1, n_states))
    for row in rows:
        if row[0] >= 0:
            count[-1, row[0]] += 1
        for before, after in zip(row[:-1], row[1:], strict=True):
            if before >= 0 and after >= 0:
                count[before, after] += 1
    return count


def naive_rates(count: np.ndarray) -> np.ndarray:
    return np.array([row / row.sum() if row.sum() else np.zeros(len(row)) for row in count])


def naive_weights(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    both = (a.sum(axis=1) > 0) & (b.sum(axis=1) > 0)
    steps = np.where(both, a.sum(axis=1) + b.sum(axis=1), 0.0)[:-1]
    first = np.zeros(len(both))
    first[-1] = both[-1]
    return {
        KINDS[0]: np.append(both[:-1], 0.0),
        KINDS[1]: np.append(steps / steps.sum(), 0.0),
        KINDS[2]: first,
    }


def naive_dispersion(each: np.ndarray) -> float:
    """How much more the rates of a row vary by patients (m, S) than by independent steps."""
    leavers = each[each.any(axis=1)]
    if len(leavers) < 2 or leavers.any(axis=0).sum() < 2:
        return np.nan
    rate = leavers.sum(axis=0) / leavers.sum()
    residual = np.array([steps - steps.sum() * rate for steps in leavers])
    m = len(leavers)
    by_patients = m / (m - 1) * (residual**2).sum() / leavers.sum() ** 2
    return float(by_patients / ((rate * (1 - rate)).sum() / leavers.sum()))


def naive_deviations(sites: Sites, clusters: Clusters, k: int, n: int, rng) -> np.ndarray:
    """Deviations of the difference in cluster k by sampling, (n, S + 1, S)."""
    n_states = sites["x"].n_states
    total = np.zeros((n, n_states + 1, n_states))
    each = {
        s: np.array([naive_counts([row], n_states) for row in sites[s].codes[clusters[s] == k]])
        for s in sites
    }
    steps = {s: part.sum(axis=(0, 2)) for s, part in each.items()}
    m = {s: (part.sum(axis=2) > 0).sum(axis=0) for s, part in each.items()}
    known = {
        s: np.array([naive_dispersion(part[:, i]) for i in range(n_states + 1)])
        for s, part in each.items()
    }
    for i in range(n_states + 1):
        if min(m["x"][i], m["y"][i]) >= 10:
            for s, part in each.items():
                p = part[:, i].sum(axis=0) / steps[s][i]
                one = (np.diag(p) - np.outer(p, p)) * known[s][i] / steps[s][i]
                total[:, i] += rng.multivariate_normal(np.zeros(n_states), one, n)
        else:
            p = sum(part[:, i].sum(axis=0) for part in each.values())
            p = p / p.sum()
            both = m["x"][i] + m["y"][i]
            there = {s: ~np.isnan(known[s]) for s in sites}
            factor = max(np.average(known[s][there[s]], weights=steps[s][there[s]]) for s in sites)
            factor *= sum(1 / steps[s][i] for s in sites) * both / (both - 1)
            one = (np.diag(p) - np.outer(p, p)) * factor
            total[:, i] += rng.multivariate_normal(np.zeros(n_states), one, n)
    return total


def tiny(seed: int, n: int, n_times: int = 5, share: float = 0.7) -> Sequences:
    p = [share, 0.95 - share, 0.05]
    codes = np.random.default_rng(seed).choice(3, (n, n_times), p=p)
    codes[0, 2] = -1
    return Sequences.from_codes(codes, list("ABC"))


def test_debiased_norm_and_limits_are_those_of_the_naive_version() -> None:
    sites = {"x": tiny(1, 30), "y": tiny(2, 24, share=0.4)}
    clusters = {"x": np.arange(30) % 2, "y": np.arange(24) % 2}
    table = norms(sites, clusters, n_boot=8_000, seed=1)
    rng = np.random.default_rng(5)
    size: dict[str, list] = {kind: [] for kind in KINDS}
    parts: dict[str, list] = {kind: [] for kind in KINDS}
    for k in (0, 1):
        rows = {s: list(data.codes[clusters[s] == k]) for s, data in sites.items()}
        a, b = (naive_counts(rows[s], 3) for s in sites)
        difference = naive_rates(a) - naive_rates(b)
        deviations = naive_deviations(sites, clusters, k, 2_000, rng)
        for kind, weight in naive_weights(a, b).items():
            root = np.sqrt(weight)[:, None]
            parts[kind].append((root * difference, root * deviations))
            noise = ((root * deviations) ** 2).sum(axis=(1, 2)).mean()
            size[kind].append(np.sqrt(max(0.0, ((root * difference) ** 2).sum() - noise)))
    for kind in KINDS:
        row = table.loc[kind]
        factors = np.linspace(0, 3, 601)
        reached = np.array(
            [
                np.mean(
                    np.mean(
                        [np.sqrt(((c * d + e) ** 2).sum(axis=(1, 2))) for d, e in parts[kind]],
                        axis=0,
                    )
                    >= row["norm"]
                )
                for c in factors
            ]
        )
        low, high = (row["norm"] * factors[np.argmax(reached >= tail)] for tail in (0.025, 0.975))
        assert row["low"] == pytest.approx(low, abs=0.06 * row["norm"])
        assert row["high"] == pytest.approx(high, abs=0.06 * row["norm"])
        debiased = np.clip(np.mean(size[kind]), row["low"], row["high"])
        assert row["debiased"] == pytest.approx(debiased, abs=0.03 * row["norm"])


def test_the_variance_of_rates_is_that_of_a_bootstrap_of_patients() -> None:
    """Patients of two kinds, so that steps of one patient are alike: almost twice as variable."""
    rng = np.random.default_rng(3)
    share = rng.choice([0.1, 0.9], 200)
    codes = (rng.random((200, 12)) < share[:, None]).astype(int)
    data = Sequences.from_codes(codes, list("AB"))
    found = cluster_steps(data, np.zeros(200, int), 1)
    each = np.array([naive_counts([row], 2) for row in data.codes])
    draws = rng.integers(200, size=(2_000, 200))
    rates = np.array([naive_rates(each[draw].sum(axis=0)) for draw in draws])
    p = naive_rates(found.steps[0])
    independent = (p * (1 - p)).sum(axis=1) / found.n[0]
    bootstrap = rates.var(axis=0).sum(axis=1) * 200 / 199 / independent
    assert found.dispersion[0] == pytest.approx(bootstrap, rel=0.12)
    assert found.dispersion[0, 0] > 1.7
    assert found.dispersion[0, 2] == pytest.approx(200 / 199)  # each patient has one first state


def test_weights_are_in_the_variance() -> None:
    """Patients of weight 2 are not two patients."""
    data = tiny(4, 60)
    twice = data.reweight(np.full(60, 2.0))
    codes = np.zeros(60, int)
    one, two = cluster_steps(data, codes, 1), cluster_steps(twice, codes, 1)
    np.testing.assert_allclose(two.dispersion, 2 * one.dispersion)
    np.testing.assert_array_equal(two.steps, 2 * one.steps)
    np.testing.assert_array_equal(two.patients, one.patients)


def test_a_handful_of_patients_leaves_every_difference_possible() -> None:
    """Dealing two or three patients anew often gives just the norm observed: no sign of none."""
    sites = {
        "x": Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"], ["A", "B", "A"]]),
        "y": Sequences.from_lists([["A", "B", "B"], ["B", "B", "B"], ["B", "A", "A"]]),
    }
    table = norms(sites, {"x": np.array([1, 1, 2]), "y": np.array([1, 1, 2])}, n_boot=200, seed=1)
    assert (table["low"] == 0).all()
    assert (table["high"] > 1.3 * table["norm"]).all()
    largest = pd.Series([2.0, np.sqrt(2), np.sqrt(2)], KINDS)  # of two rows, of a mean, of one
    assert (table["high"] <= largest + 1e-9).all()


# --- what the numbers promise ----------------------------------------------------------


def test_limits_see_a_difference() -> None:
    rng = np.random.default_rng(1)
    x = Sequences.from_codes(rng.choice(2, (300, 6), p=[0.9, 0.1]), ["A", "B"])
    y = Sequences.from_codes(rng.choice(2, (300, 6), p=[0.6, 0.4]), ["A", "B"])
    table = norms({"x": x, "y": y}, {s: np.zeros(300, int) for s in "xy"}, seed=1)
    true = {KINDS[0]: 0.6, KINDS[1]: np.sqrt(0.18), KINDS[2]: np.sqrt(0.18)}
    for kind, norm in true.items():
        assert table.loc[kind, "low"] < norm < table.loc[kind, "high"]
        assert abs(table.loc[kind, "debiased"] - norm) < 0.06


def ra_sites(mixed: float, n: dict[str, int], seed: int) -> tuple[Sites, Clusters]:
    """Two sites with fixed clusters; the second one's transitions are partly even."""
    even = (1 - mixed) * PARAMS.transition + mixed / PARAMS.n_states
    params = {"x": PARAMS, "y": MarkovParams(PARAMS.weights, PARAMS.initial, even)}
    drawn = {}
    for i, site in enumerate(n):
        rng = np.random.default_rng([seed, i])
        lengths = rng.integers(3, 17, n[site])
        drawn[site] = mmlca.simulate(params[site], n[site], lengths, states=STATES, seed=rng)
    return {s: d[0] for s, d in drawn.items()}, {s: d[1].to_numpy() for s, d in drawn.items()}


def true_norms(mixed: float, n: dict[str, int]) -> pd.Series:
    """Those of the parameters, with the occupancy of very many patients."""
    square = (mixed * (PARAMS.transition - 1 / PARAMS.n_states)) ** 2
    sites, clusters = ra_sites(mixed, {site: 60 * size for site, size in n.items()}, seed=0)
    steps = mmlca.transition_counts(sites, clusters).groupby(["group", "from"], observed=True)
    occupancy = steps["count"].sum().to_numpy().reshape(len(square), -1)
    occupancy = occupancy / occupancy.sum(axis=1, keepdims=True)
    plain = np.sqrt(square.sum(axis=(1, 2))).mean()
    return pd.Series(
        [plain, np.sqrt((occupancy * square.sum(axis=2)).sum(axis=1)).mean(), 0.0], KINDS
    )


def coverage(mixed: float, n: dict[str, int], n_sets: int, n_boot: int = 400) -> pd.DataFrame:
    true = true_norms(mixed, n)
    tables = [
        norms(*ra_sites(mixed, n, seed), n_boot=n_boot, seed=seed) for seed in range(1, n_sets + 1)
    ]
    inside = [(t["low"] <= true) & (true <= t["high"]) for t in tables]
    return pd.DataFrame(
        {
            "true": true,
            "norm": sum(t["norm"] for t in tables) / n_sets,
            "debiased": sum(t["debiased"] for t in tables) / n_sets,
            "inside": sum(i.astype(float) for i in inside) / n_sets,
            "width": sum(t["high"] - t["low"] for t in tables) / n_sets,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [{"x": 400, "y": 500}, {"x": 2_000, "y": 3_000}], ids=["small", "large"]
)
@pytest.mark.parametrize("mixed", [0.0, 0.0803, 0.2409])  # plain norms of 0, 0.105 and 0.315
def test_intervals_cover_the_true_norms(mixed: float, n: dict[str, int]) -> None:
    table = coverage(mixed, n, n_sets=200)
    error = np.sqrt(0.95 * 0.05 / 200)
    assert (table["inside"] > 0.95 - 3 * error).all(), table
    off = table[["debiased", "norm"]].sub(table["true"], axis=0).abs()
    assert (off["debiased"] < off["norm"]).all(), table
