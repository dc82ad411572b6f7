"""Memberships of clusters, pooled effects, and small numbers among outcomes and effects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import mmlca
from mmlca.tables.cluster_effects import (
    ERRORS,
    Members,
    hide_effects,
    hide_outcomes,
    one_step_effects,
    rounded_effects,
    site_effects,
    support,
)
from mmlca.tables.disclosure import is_small
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.shared_chains import cluster_chains

CHAINS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.8, 0.2], [0.3, 0.7]],
    [[[0.85, 0.15], [0.5, 0.5]], [[0.5, 0.5], [0.15, 0.85]]],
)


def test_memberships_of_clusters_are_calibrated_and_correct_outcomes() -> None:
    """Clusters are the classes with every fifth patient misplaced; BCH finds the true means."""
    sites, clusters, truth = {}, {}, {}
    rng = np.random.default_rng(1)
    for seed, site in enumerate(("A", "B")):
        sites[site], truth[site] = mmlca.simulate(CHAINS, 2_500, 10, seed=seed)
        model = mmlca.MixtureMarkov(2, init=CHAINS, max_iter=0, tol=0).fit(sites[site])
        label = model.predict(sites[site])
        flip = rng.random(2_500) < 0.1
        clusters[site] = pd.Series(np.where(flip, 1 - label, label) + 1, sites[site].ids)
    found = mmlca.cluster_memberships(sites, clusters)
    for site, p in found.items():
        assert list(p.columns) == [1, 2]
        assert p.index.equals(sites[site].ids)
        assert p.sum(axis=1).to_numpy() == pytest.approx(1)
        sure = p[2].to_numpy()
        for low, high in ((0.05, 0.3), (0.3, 0.7), (0.7, 0.95)):
            mine = (sure > low) & (sure < high)
            assert truth[site].to_numpy()[mine].mean() == pytest.approx(sure[mine].mean(), abs=0.1)
    y = truth["A"].to_numpy() * 2 + rng.normal(size=2_500)
    plain = mmlca.three_step(found["A"], y, correction=None, assignment=clusters["A"])
    with pytest.warns(UserWarning, match="the classes overlap"):
        corrected = mmlca.three_step(found["A"], y, assignment=clusters["A"])
    assert np.abs(plain["estimate"] - [0, 2]).min() > 0.2
    assert corrected["estimate"].tolist() == pytest.approx([0, 2], abs=0.2)


def test_pooling_by_hand() -> None:
    a = pd.DataFrame({"class": [2, 3], "term": "age", "estimate": [1.0, 5.0], "se": [0.1, 1.0]})
    b = a.assign(estimate=[2.0, np.nan], se=[0.2, np.nan])
    found = inverse_variance({"A": a, "B": b}).set_index("class")
    assert found.loc[2, "estimate"] == pytest.approx((100 * 1 + 25 * 2) / 125)
    assert found.loc[2, "se"] == pytest.approx(125**-0.5)
    assert found.loc[2, "q"] == pytest.approx(100 * 0.2**2 + 25 * 0.8**2)
    assert found.loc[2, "i2"] == pytest.approx(1 - 1 / 20)
    assert found.loc[3, "sites"] == 1
    assert np.isnan(found.loc[3, "estimate"])  # it would be that of the other site


@pytest.mark.parametrize("seed", range(5))
def test_no_outcome_of_few_shows_or_follows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.choice(4, 300, p=[0.5, 0.3, 0.15, 0.05])
    p = np.eye(4)[group] * 0.94 + 0.015
    level = pd.Series(rng.choice(["a", "b", "c"], 300, p=[0.6, 0.3, 0.1]))
    level[rng.random(300) < 0.08] = None
    with pytest.warns(UserWarning, match="missing for"):
        full = mmlca.three_step(p, level, correction=None)
    sizes = {k + 1: int((group == k).sum()) for k in range(4)}
    table, tests = hide_outcomes(full, full.tests, sizes, 11)
    lacking = {}
    for label, rows in table.groupby("class"):
        cases = full.loc[rows.index, "cases"]
        n = full.loc[rows.index[0], "patients"]
        counts = np.append(cases, n - cases.sum())
        assert rows["estimate"].isna()[is_small(cases, 11)].all()
        # what is not shown, the first category included, follows only as a sum
        unknown = np.append(rows["estimate"].isna(), True)
        if is_small(counts, 11).any():
            assert unknown.sum() > 1
            assert not is_small(counts[unknown].sum(), 11) or unknown.all()
        lacking[label] = sizes[label] - rows["patients"]
    known = pd.concat(lacking).dropna()
    assert not is_small(known, 11).any()
    hidden = set(table["class"][table["estimate"].isna()])
    for pair, row in zip(full.tests["pair"], tests.to_dict("records"), strict=True):
        if isinstance(pair, tuple) and hidden & set(pair):
            assert np.isnan(row["statistic"])


def test_a_share_and_its_complement() -> None:
    group = np.repeat([0, 1], [40, 40])
    sick = np.tile([1] + [0] * 9, 8)  # four of each forty
    sick[40:] = np.tile([1, 0], 20)
    full = mmlca.three_step(np.eye(2)[group], sick, correction=None)
    table, tests = hide_outcomes(full, full.tests, {1: 40, 2: 40}, 11)
    assert table["estimate"].isna().tolist() == [True, False]
    assert tests["p_value"].notna().tolist() == [True, False]


def test_effects_of_few_are_blank() -> None:
    rng = np.random.default_rng(3)
    clusters = pd.Series(np.repeat([1, 2, 3], [100, 60, 40]))
    covariates = pd.DataFrame(
        {"age": rng.normal(size=200), "sex": np.where(np.arange(200) % 2, "F", "M")}
    )
    covariates.loc[160:, "sex"] = np.where(np.arange(40) < 5, "M", "F")
    full = mmlca.three_step(np.eye(3)[clusters - 1], covariates=covariates, correction=None)
    shown = hide_effects(pd.DataFrame(full), covariates, clusters, 1, 11)
    blank = shown[shown["estimate"].isna()]
    assert list(zip(blank["class"], blank["term"], strict=True)) == [(3, "sex[M]")]
    few = clusters.where(clusters != 1, 2)
    few[:5] = 1  # a reference of five patients
    assert hide_effects(pd.DataFrame(full), covariates, few, 1, 11)["estimate"].isna().all()


def test_the_figure_draws_effects_and_pooled_ones() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    a = pd.DataFrame({"class": [2, 2], "term": ["intercept", "age"], "estimate": [0.0, 1.0]})
    a = a.assign(se=0.1, low=a["estimate"] - 0.2, high=a["estimate"] + 0.2)
    both = pd.concat([a.assign(site="A"), a.assign(site="B", estimate=np.nan)])
    figure = mmlca.plot_effects(both, inverse_variance({"A": a, "C": a}))
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["age"]
    drawn = [line.get_xdata()[0] for line in ax.get_lines()[1:]]
    assert drawn[0] == drawn[2] == pytest.approx(1.0)
    assert np.isnan(drawn[1])
    plt.close(figure)
    with pytest.raises(ValueError, match="nothing to draw"):
        mmlca.plot_effects(a[:1])


def test_one_step_compares_with_the_first_cluster_whatever_its_size() -> None:
    """The same log-odds as the model's own, in the clusters' order and against the first."""
    two = mmlca.MarkovParams(
        [0.7, 0.3], [[0.9, 0.1], [0.1, 0.9]], [[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]]
    )
    rng = np.random.default_rng(1)
    x = rng.normal(size=600)
    smaller = rng.random(600) < 1 / (1 + np.exp(1 - x))
    parts = [
        mmlca.simulate(mmlca.MarkovParams([1.0], two.initial[[k]], two.transition[[k]]), 600, 10,
                       seed=k)[0].codes for k in (0, 1)
    ]  # fmt: skip
    data = mmlca.Sequences.from_codes(np.where(smaller[:, None], parts[1], parts[0]), ["a", "b"])
    frame = pd.DataFrame({"x": x}, index=data.ids)
    clusters = pd.Series(np.where(smaller, "few", "many"), data.ids)
    chains = cluster_chains({"A": data}, {"A": clusters})
    result = one_step_effects(data, frame, clusters, chains, ["few", "many"])
    model = mmlca.MixtureMarkov(2, seed=1).fit(data, covariates=frame)
    own = model.coefficient_table(data, frame)
    assert result.table["class"].tolist() == ["many", "many"]
    np.testing.assert_allclose(result.table["estimate"], -own["estimate"], atol=2e-3)
    np.testing.assert_allclose(result.table["se"], own["se"], rtol=2e-3)
    assert abs(result.table["estimate"].iloc[1] + 1) < 3 * result.table["se"].iloc[1]
    np.testing.assert_allclose(np.sqrt(np.diagonal(result.covariance)), result.table["se"])


def test_pooling_leaves_out_what_a_site_hides() -> None:
    keys = {"class": [2, 2], "term": ["sex", "age"]}
    a = pd.DataFrame(keys | {"estimate": [0.5, 1.0], "se": [0.2, 0.1]})
    b = pd.DataFrame(keys | {"estimate": [0.1, np.nan], "se": [0.3, np.nan]})
    both = inverse_variance({"A": a, "B": b})
    assert both["sites"].tolist() == [2, 1]
    weight = np.array([1 / 0.04, 1 / 0.09])
    assert both["estimate"].iloc[0] == pytest.approx(weight @ [0.5, 0.1] / weight.sum())
    assert np.isnan(both["estimate"].iloc[1])


def test_unlike_proportions_do_not_bias_pooled_effects() -> None:
    """Equal effects of age, a class more common at one site: intercepts were pooled as well."""
    keys = {"class": [2, 2], "term": ["(Intercept)", "age"], "se": [1.0, 0.016]}
    tables = {
        site: pd.DataFrame(keys | {"estimate": [constant, 0.05]})
        for site, constant in {"A": -4.0, "B": -2.0}.items()
    }
    both = inverse_variance(tables).set_index("term")
    assert both.loc["age", "estimate"] == pytest.approx(0.05)
    assert both.loc["age", "se"] == pytest.approx(0.016 / np.sqrt(2))


# --- effects that leave a site --------------------------------------------------------------


def three_clusters(n: int = 600) -> tuple[Members, pd.DataFrame]:
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet([0.02, 0.02, 0.02], n)
    posterior += 0.01
    posterior /= posterior.sum(axis=1, keepdims=True)
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    members = Members(
        pd.Series(posterior.argmax(axis=1) + 1), pd.DataFrame(posterior, columns=[1, 2, 3])
    )
    return members, pd.DataFrame({"age": rng.normal(60, 9, n), "sex": sex})


def uniform(rows: pd.DataFrame, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((len(rows), 2))


def test_how_many_patients_contribute_to_a_column() -> None:
    assert support(np.r_[np.zeros(90), np.ones(10)][:, None]) == 10
    assert support(np.r_[np.zeros(90), 1, 2, 3][:, None]) == pytest.approx(3, abs=1)
    assert support(np.random.default_rng(1).normal(size=(400, 1))) > 200


def test_rounded_effects_are_right_on_average_with_their_standard_error() -> None:
    found = site_effects(*three_clusters(), 11)
    exact = found[found["term"] != "intercept"].reset_index(drop=True)
    drawn = [rounded_effects(found, uniform(found, seed)) for seed in range(1000)]
    assert list(drawn[0]["term"]) == ["age", "sex[m]"] * 2
    estimate = np.array([table["estimate"] for table in drawn])
    limit = 4 * estimate.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(estimate.mean(axis=0) - exact["estimate"]) < limit).all()
    stated = np.mean([table["se"] ** 2 for table in drawn], axis=0)
    needed = (exact["se"] ** 2 + estimate.var(axis=0)).to_numpy()
    assert stated.mean() == pytest.approx(needed.mean(), rel=0.25)
    for table in drawn[:20]:
        multiples = table["estimate"] / table["se"]
        assert np.allclose(multiples, multiples.round(), atol=1e-6)
        assert set(table["se"]) <= set(ERRORS)


def test_a_cluster_with_few_of_a_trait_does_not_leave() -> None:
    members, frame = three_clusters()
    last = np.flatnonzero(members.clusters == 3)
    frame.loc[last[8:], "sex"] = "f"
    frame.loc[last[:8], "sex"] = "m"
    found = site_effects(members, frame, 11)
    assert found.loc[found["estimate"].isna(), ["class", "term"]].to_numpy().tolist() == [
        [3, "sex[m]"]
    ]
    rounded = rounded_effects(found, uniform(found, 1)).set_index("class")
    assert rounded["estimate"].notna().to_dict() == {2: True, 3: False}
    first = np.flatnonzero(members.clusters == 1)
    frame.loc[first, "sex"] = np.where(np.arange(len(first)) < 6, "m", "f")
    found = site_effects(members, frame, 11)  # nothing can be compared with cluster 1
    assert found.loc[found["term"] == "sex[m]", "estimate"].isna().all()
    assert rounded_effects(found, uniform(found, 1))["estimate"].isna().all()
    spread = frame.assign(sex="f", age=np.r_[1e6, np.linspace(0, 1, len(frame) - 1)])
    assert support(spread[["age"]].to_numpy())[0] < 11


def chances(written: pd.DataFrame, exact: pd.DataFrame) -> float:
    """Log-likelihood of what was written, if this is what it was made of."""
    total = 0.0
    for shown, error, value, se in zip(
        written["estimate"], written["se"], exact["estimate"], exact["se"], strict=True
    ):
        wide = np.sqrt(6 / 5) * se
        below = int(np.searchsorted(ERRORS, wide, side="right")) - 1
        low, high = ERRORS[below], ERRORS[below + 1]
        up = (wide - low) / (high - low)
        of_error = {low: 1 - up, high: up}.get(error, 0.0)
        share = value / error - np.floor(value / error)
        step = round(shown / error - np.floor(value / error))
        total += np.log(max(of_error * {0: 1 - share, 1: share}.get(step, 0.0), 1e-12))
    return total


def test_a_patients_sex_cannot_be_read_off_knowing_everything_else() -> None:
    """The attacker knows the clusters and covariates of all, and of one patient all but the sex. He
    makes the effects for both sexes and compares. Numbers that were rounded to the nearest, with
    correlations, differed for 27 to 30 of 30 patients at sites of 120 to 2,000."""
    members, frame = three_clusters()
    found = site_effects(members, frame, 11)
    areas, same = [], []
    for i in range(8):
        other = frame.copy()
        other.loc[i, "sex"] = {"f": "m", "m": "f"}[frame["sex"][i]]
        turned = site_effects(members, other, 11)
        true, false = (t[t["term"] != "intercept"] for t in (found, turned))
        evidence = []
        for number in range(80):
            draws = uniform(found, 100 * i + number)
            pair = [rounded_effects(one, draws) for one in (found, turned)]
            same.append(pair[0].equals(pair[1]))
            evidence.append([chances(one, true) - chances(one, false) for one in pair])
        scores = np.array(evidence).T.ravel()
        areas.append(roc_auc_score(np.repeat([1, 0], 80), scores))
    assert np.mean(areas) < 0.65
    assert np.mean(same) > 0.7
