"""Strata of patients, and the test that class shares are the same in all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import mmlca
from font.errors import InputError
from mmlca.tables.settings import StrataSettings
from mmlca.tables.strata import (
    ShareScores,
    check_strata,
    rounded_scores,
    share_scores,
    share_test,
    stratify,
)


def memberships(n: int, k: int, rng: np.random.Generator, spread: float = 1.0) -> pd.DataFrame:
    p = np.exp(spread * rng.normal(size=(n, k)))
    return pd.DataFrame(p / p.sum(axis=1, keepdims=True), columns=range(1, k + 1))


def test_strata_of_numbers_texts_and_missing_values() -> None:
    ages = pd.Series([44, 45, 59.5, 60, np.nan])
    assert stratify(ages, [45, 60]).tolist() == [
        "below 45", "45 to below 60", "45 to below 60", "60 and over", None
    ]  # fmt: skip
    years = pd.Series([2009, 2010, 2012, 2013], dtype="Int64")
    cut = stratify(years, [2010, 2013], years=True)
    assert cut.tolist() == ["before 2010", "2010 to 2012", "2010 to 2012", "2013 and later"]
    assert stratify(pd.Series([1.0, 0.0, np.nan])).tolist() == ["1", "0", None]
    assert stratify(pd.Series(["F", None, "M"])).tolist() == ["F", None, "M"]
    assert stratify(pd.Series([True, False])).tolist() == ["True", "False"]
    assert stratify(pd.Series([], dtype=float), [1]).tolist() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ("sex", "sex")}, "has 'sex' twice"),
        ({"columns": ("sex",), "cut_points": {"age": (50,)}}, "not among its columns"),
        ({"columns": ("age",), "cut_points": {"age": (50, 50)}}, "do not increase"),
        ({"columns": ("site",), "cut_points": {"site": (1,)}}, "not a number"),
        ({"columns": ("index_year",), "cut_points": {"index_year": (2010.5,)}}, "whole years"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StrataSettings.model_validate(settings)


def test_too_many_strata_are_refused() -> None:
    check_strata(pd.Series(range(2000, 2012), name="year"), cut=False)
    check_strata(pd.Series([0.5, 1.5, np.nan], name="dose"), cut=False)
    for values in (range(31), np.arange(5) / 2):
        with pytest.raises(InputError, match="say where strata begin"):
            check_strata(pd.Series(values, name="age"), cut=False)
    with pytest.raises(InputError, match="group them"):
        check_strata(pd.Series([f"ward {i}" for i in range(31)], name="ward"), cut=False)


# --- scores -------------------------------------------------------------------------------------


def test_scores_are_the_slopes_of_the_likelihood_at_equal_shares() -> None:
    """Of a mixture with given densities, by the log-odds of each class in one stratum."""
    rng = np.random.default_rng(1)
    f, z = rng.gamma(1.0, size=(60, 3)), rng.integers(0, 2, 60)
    share = np.full(3, 1 / 3)
    for _ in range(3000):  # the shares of all strata together, by EM
        p = f * share / (f @ share)[:, None]
        share = p.mean(axis=0)

    def loglik(k: int, by: float) -> float:
        logit = np.log(share) + by * (np.arange(3) == k)
        own = np.exp(logit) / np.exp(logit).sum()
        return float(np.log(f @ own)[z == 1].sum() + np.log(f @ share)[z == 0].sum())

    found = share_scores(pd.DataFrame(p), pd.Series(z.astype(str))).excess.loc["1"]
    slopes = [(loglik(k, 1e-5) - loglik(k, -1e-5)) / 2e-5 for k in range(3)]
    np.testing.assert_allclose(found, slopes, atol=1e-7)


def test_covariance_and_statistic_are_those_of_loops_over_patients() -> None:
    rng = np.random.default_rng(2)
    sites, total, spread = [], np.zeros(4), np.zeros((4, 4))
    for n in (40, 25):
        p, z = memberships(n, 3, rng), pd.Series(rng.choice(["a", "b", "c"], n))
        z[3] = None
        sites.append(share_scores(p, z))
        known = [i for i in range(n) if z[i] is not None]
        mean = p.loc[known].mean().to_numpy()
        for i in known:
            own = np.array([z[i] == g for g in "ab"]) - [
                np.mean([z[j] == g for j in known]) for g in "ab"
            ]
            term = np.outer(own, p.loc[i].to_numpy() - mean)[:, :2].ravel()
            total += term
            spread += np.outer(term, term)
    test = share_test(sites)
    assert test is not None
    expected = float(total @ np.linalg.solve(spread, total))
    assert test.statistic == pytest.approx(expected)
    assert test.df == 4
    assert test.p_value == pytest.approx(stats.chi2.sf(expected, 4))


def test_of_sure_classes_it_is_close_to_pearsons_test() -> None:
    rng = np.random.default_rng(3)
    labels, z = rng.integers(0, 3, 4000), rng.choice(["F", "M"], 4000, p=[0.7, 0.3])
    sure = pd.DataFrame(np.eye(3)[labels])
    test = share_test([share_scores(sure, pd.Series(z))])
    pearson = stats.chi2_contingency(pd.crosstab(z, labels), correction=False)
    assert test is not None
    assert test.statistic == pytest.approx(pearson.statistic, rel=0.05, abs=0.05)
    assert test.df == pearson.dof


def test_sites_with_other_shares_and_other_strata_are_not_compared() -> None:
    """All of one site in one stratum says nothing; together with another it changes nothing."""
    rng = np.random.default_rng(4)
    p, z = memberships(50, 2, rng), pd.Series(rng.choice(["a", "b"], 50))
    one = share_scores(p, z)
    shifted = share_scores(memberships(30, 2, rng) ** 2, pd.Series(["a"] * 30))
    alone, both = share_test([one]), share_test([one, shifted])
    assert alone is not None
    assert both is not None
    assert both.statistic == pytest.approx(alone.statistic)
    assert share_test([shifted]) is None
    assert share_test([]) is None
    assert share_test([share_scores(p.iloc[:0], z)]) is None
    assert share_test([share_scores(p[[1]], z)]) is None  # a single class


def rejects(test: object) -> bool:
    return test is not None and test.p_value < 0.05  # type: ignore[attr-defined]


def test_its_size_is_right_exact_and_rounded() -> None:
    """Two sites, five strata of unequal sizes, and variances that differ between strata."""
    rng = np.random.default_rng(5)
    n_exact = n_rounded = 0
    runs = 400
    for _ in range(runs):
        scores = []
        for n in (150, 90):
            z = pd.Series(rng.choice(list("abcde"), n, p=[0.4, 0.25, 0.15, 0.1, 0.1]))
            sure = np.where((z == "a").to_numpy(), 2.0, 0.5)  # longer observed
            p = np.exp(sure[:, None] * rng.normal(size=(n, 3)))
            scores.append(share_scores(pd.DataFrame(p / p.sum(axis=1, keepdims=True)), z))
        n_exact += rejects(share_test(scores))
        drawn = [rounded_scores(s, rng.random(s.excess.shape)) for s in scores]
        n_rounded += rejects(share_test(drawn))
    low, high = stats.binom.ppf([0.001, 0.999], runs, 0.05)
    assert low <= n_exact <= high
    assert n_rounded <= high


def test_rounded_scores_are_right_on_average() -> None:
    rng = np.random.default_rng(6)
    found = share_scores(memberships(80, 3, rng), pd.Series(rng.choice(["a", "b"], 80)))
    drawn = [rounded_scores(found, rng.random(found.excess.shape)).excess for _ in range(2000)]
    mean, sd = np.mean(drawn, axis=0), np.std(drawn, axis=0)
    assert (np.abs(mean - found.excess) < 4.5 * sd / np.sqrt(2000) + 1e-9).all(axis=None)
    one = rounded_scores(found, np.zeros(found.excess.shape))
    added = np.diagonal(one.covariance) / np.diagonal(found.covariance)
    assert ((added > 1.03) & (added < 1.4)).all()
    nobody = ShareScores(found.excess * 0, found.covariance * 0)
    assert (rounded_scores(nobody, rng.random(found.excess.shape)).excess == 0).all(axis=None)


CHAINS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.7, 0.3], [0.4, 0.6]],
    [[[0.85, 0.15], [0.3, 0.7]], [[0.5, 0.5], [0.5, 0.5]]],
)


def simulated(shares: dict[str, float], n: int, seed: int) -> float:
    """The p-value of a model fitted to patients of two strata, of which one is observed shorter."""
    rng = np.random.default_rng(seed)
    z = np.where(rng.random(n) < 0.5, "early", "late")
    group = (rng.random(n) < np.array([shares[name] for name in z])).astype(int)
    codes = np.zeros((n, 12), dtype=np.int8)
    codes[:, 0] = rng.random(n) > CHAINS.initial[group, 0]
    for t in range(1, 12):
        codes[:, t] = rng.random(n) > CHAINS.transition[group, codes[:, t - 1], 0]
    codes[z == "late", 5:] = -1
    data = mmlca.Sequences.from_codes(codes, ["A", "B"])
    model = mmlca.MixtureMarkov(2, n_init=4, seed=seed).fit(data)
    test = share_test([share_scores(pd.DataFrame(model.predict_proba(data)), pd.Series(z))])
    assert test is not None
    return test.p_value


@pytest.mark.slow
def test_its_size_and_power_with_estimated_classes_and_unequal_follow_up() -> None:
    """Classes that overlap much are estimated; late patients are observed for 5 of 12 windows."""
    runs = 200
    p = np.array([simulated({"early": 0.4, "late": 0.4}, 400, seed) for seed in range(runs)])
    low, high = stats.binom.ppf([0.001, 0.999], runs, 0.05)
    assert low <= (p < 0.05).sum() <= high
    q = np.array([simulated({"early": 0.25, "late": 0.65}, 400, seed) for seed in range(30)])
    assert (q < 0.05).mean() > 0.5
