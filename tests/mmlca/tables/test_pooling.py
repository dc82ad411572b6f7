"""Pooling over sites: hand-computed numbers, and statsmodels as the oracle."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mmlca.tables.pooling import inverse_variance, pool


def test_fixed_and_random_effects_by_hand() -> None:
    """Weights 4, 1 and 1: θ = 11/6, Q = 6.8333…, τ² = (Q − 2)/(6 − 18/6)."""
    row = pool([[1.0], [2.0], [5.0]], [[0.5], [1.0], [1.0]]).iloc[0]
    fixed = (4 + 2 + 5) / 6
    q = 4 * (1 - fixed) ** 2 + (2 - fixed) ** 2 + (5 - fixed) ** 2
    tau2 = (q - 2) / (6 - (16 + 1 + 1) / 6)
    weights = np.array([1 / (0.25 + tau2), 1 / (1 + tau2), 1 / (1 + tau2)])
    assert row["estimate"] == pytest.approx(fixed)
    assert row["se"] == pytest.approx(6**-0.5)
    assert row["q"] == pytest.approx(q)
    assert row["tau2"] == pytest.approx(tau2)
    assert row["i2"] == pytest.approx(1 - 2 / q)
    assert row["random"] == pytest.approx(weights @ [1, 2, 5] / weights.sum())
    assert row["random_high"] == pytest.approx(row["random"] + 1.959964 * weights.sum() ** -0.5)


def test_it_agrees_with_statsmodels() -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    rng = np.random.default_rng(1)
    value, se = rng.normal(0, 0.6, (6, 20)), rng.uniform(0.1, 0.6, (6, 20))
    table = pool(value, se)
    assert 5 < (table["q"] > 5).sum() < 20
    for i, row in table.iterrows():
        if row["q"] < 5:  # there statsmodels takes a variance between sites below 0 as it is
            continue
        known = meta.combine_effects(value[:, i], se[:, i] ** 2, method_re="dl")
        frame = known.summary_frame()
        for name, prefix in (("fixed effect", ""), ("random effect", "random_")):
            estimate = row[prefix.rstrip("_") or "estimate"]
            assert estimate == pytest.approx(frame.loc[name, "eff"])
            assert row[f"{prefix}se"] == pytest.approx(frame.loc[name, "sd_eff"])
            assert row[f"{prefix}low"] == pytest.approx(frame.loc[name, "ci_low"])
        assert row["q"] == pytest.approx(known.q)
        assert row["i2"] == pytest.approx(max(known.i2, 0))


def test_sites_without_an_estimate_are_left_out() -> None:
    value, se = [[1.0, 1.0, 1.0], [2.0, np.nan, 2.0]], [[0.1] * 3, [0.2, np.nan, 0.0]]
    table = pool(value, se)
    assert table["sites"].tolist() == [2, 1, 1]
    assert table["estimate"].notna().tolist() == [True, False, False]


def test_sites_that_agree_have_no_heterogeneity() -> None:
    table = pd.DataFrame({"class": [2], "term": "age", "estimate": 1.0, "se": 0.1})
    row = inverse_variance({"A": table, "B": table}).iloc[0]
    assert (row["i2"], row["tau2"], row["q"]) == (0, 0, 0)
    assert row["estimate"] == row["random"] == 1
