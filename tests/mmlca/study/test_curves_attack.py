"""Attacks on curves: what their bands tell of numbers of patients, and figures of more digits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

import ehr_prep
import mmlca
from mmlca.study.sections import covariates, labs, outcomes
from mmlca.tables.disclosure import few_digits

M = 11
STUDY: Any = SimpleNamespace(
    privacy=SimpleNamespace(min_count=M, release="inside"),
    sites={"A": None, "B": None},
    outputs=SimpleNamespace(lab_label=None),
    outcomes=SimpleNamespace(event="death_date"),
    covariates=SimpleNamespace(correction="BCH", method="three-step"),
)


def labs_of(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, pd.Series]:
    """Labs of n patients around their index dates."""
    who = np.repeat(np.arange(n), rng.poisson(5, n) + 1)
    days = rng.integers(-365, 1095, len(who)).astype("timedelta64[D]")
    value = np.exp(3 + rng.normal(0, 0.5, n)[who] + rng.normal(0, 0.4, len(who)))
    start = np.datetime64("2010-01-01", "s")
    tests = pd.DataFrame({"patient_id": who, "date": start + days, "value": value})
    return tests, pd.Series(start, index=range(n))


def test_bands_under_two_groupings_tell_by_how_few_patients_these_differ() -> None:
    """Why a public release has lab curves of one grouping only; see `test_promise.py`.

    A cluster of 200 patients and a class of the site's own model with 1 to 10 fewer: the attacker
    estimates how many from the widths of the bands and the distance of the curves, three digits
    of each, having learnt on the first half of the trials how these go together.
    """
    rng, n = np.random.default_rng(1), 200
    rows = []
    for _ in range(160):
        tests, start = labs_of(rng, n)
        few = int(rng.integers(1, M))
        group = pd.Series("x", index=range(n))
        both = [
            ehr_prep.trend(tests, part, start, min_count=M).curves.set_index("years")
            for part in (group, group.drop(rng.choice(n, few, replace=False)))
        ]
        shown = [curve[["estimate", "low", "high"]].apply(few_digits, digits=3) for curve in both]
        wide = [np.log(curve["high"] / curve["low"]) for curve in shown]
        off = n * np.abs(np.log(shown[1]["estimate"] / shown[0]["estimate"])).mean()
        rows.append((few, 1.0, 2 * n * np.log(wide[1] / wide[0]).mean(), off, off**2))
    table = np.array(rows)
    learnt, tried = table[:80], table[80:]
    weights = np.linalg.lstsq(learnt[:, 1:], learnt[:, 0], rcond=None)[0]
    error = np.sqrt(np.mean((tried[:, 1:] @ weights - tried[:, 0]) ** 2))
    assert error < 0.6 * tried[:, 0].std()


def test_figures_draw_no_more_digits_than_their_tables() -> None:
    """In an SVG or PDF file a curve can be measured to six digits and more."""
    rng = np.random.default_rng(2)
    tests, start = labs_of(rng, 90)
    trend = ehr_prep.trend(tests, pd.Series(1, index=range(90)), start, min_count=M)
    n = 400
    time, event = rng.exponential(5, n), rng.random(n) < 0.6
    clusters = pd.Series(rng.choice([1, 2], n))
    survival = mmlca.survival_by_cluster(time, event, clusters, window=1)
    site = pd.DataFrame({"site": "A", "class": "cluster 2", "term": ["age", "sex"]})
    numbers = rng.normal(0, 2, (2, 2))
    effects = site.assign(
        estimate=numbers[:, 0], se=0.123456, low=numbers[:, 0] - 0.2, high=numbers[:, 0] + 0.2
    )
    findings: Any = SimpleNamespace(
        trends={None: trend},
        outcomes=SimpleNamespace(
            survival=survival.shown(M),
            effects=effects,
            pooled=None,
            outcomes=None,
            tests=None,
            hazards=None,
        ),
        cluster_names={1: "cluster 1", 2: "cluster 2"},
    )
    for section, column in (
        (labs, "estimate"),
        (outcomes, "survival"),
        (covariates, "estimate"),
    ):
        item = next(section.items(STUDY, findings))
        assert item.draw is not None
        figure = getattr(item.draw(), "figure", None) or item.draw()
        drawn = np.concatenate([line.get_ydata() for ax in figure.axes for line in ax.lines])
        along = np.concatenate([line.get_xdata() for ax in figure.axes for line in ax.lines])
        seen = np.concatenate([drawn, along]).astype(float)
        values = few_digits(item.table[column].round(3).to_numpy(), 3)
        assert len(values) > 1
        for value in values:
            assert np.isclose(seen, value, rtol=0, atol=1e-12).any(), (item.name, value)
