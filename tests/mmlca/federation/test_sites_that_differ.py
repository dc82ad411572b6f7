"""Refinement where sites do not share the clusters' chains, and effects of covariates after it.

Five hospitals of 300 to 800 patients have the four RA-like chains of `ra_like`, each in proportions
of its own. Where they differ by a share, this share of every row of probabilities is replaced by a
random row at each hospital. The numbers in the documentation come from these functions with more
studies (`python` on this file prints them).
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ra_like import PARAMS, STATES
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

import font
import mmlca
from font.refinement import refine_clusters
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.tables.cluster_effects import Members, site_effects
from mmlca.tables.pooling import inverse_variance

K, S = PARAMS.n_classes, PARAMS.n_states
BETA = np.array([0.0, 0.5, -0.5, 0.8])  # log-odds of each class for one unit of the covariate
Sites = dict[str, Sequences]


def hospitals(
    differ: float, seed: int, lengths: tuple[int, int] = (4, 16)
) -> tuple[Sites, Any, Any]:
    """Sequences, true classes and covariates of each hospital."""
    rng = np.random.default_rng([18, seed])
    data, truth, covariates = {}, {}, {}
    for i in range(5):
        n = int(rng.integers(300, 801))
        constant = np.log(rng.dirichlet(np.ones(K)) + 0.02)
        x = rng.normal(size=n)
        odds = np.exp(constant + x[:, None] * BETA)
        classes = (rng.random(n)[:, None] > (odds / odds.sum(axis=1, keepdims=True)).cumsum(1)).sum(
            1
        )
        chains = MarkovParams(
            PARAMS.weights,
            (1 - differ) * PARAMS.initial + differ * rng.dirichlet(np.ones(S), K),
            (1 - differ) * PARAMS.transition + differ * rng.dirichlet(np.ones(S), (K, S)),
        )
        length = rng.integers(lengths[0], lengths[1] + 1, n)
        codes = np.full((n, lengths[1]), -1, dtype=np.int8)
        for k in range(K):
            mine = np.flatnonzero(classes == k)
            one = MarkovParams([1.0], chains.initial[[k]], chains.transition[[k]])
            if len(mine):
                drawn = simulate(one, len(mine), length[mine], rng)[0].codes
                codes[mine[:, None], np.arange(drawn.shape[1])] = drawn
        site = f"h{i}"
        data[site], truth[site] = Sequences.from_codes(codes, STATES), classes
        covariates[site] = pd.DataFrame({"x": x})
    return data, truth, covariates


def clustered(data: Sites, truth: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Clusters of the ensemble, numbered as the true classes, and the sites' own models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {
            s: MixtureMarkov(K, n_init=10, prior=0.5, seed=seed).fit(d) for s, d in data.items()
        }
    labels = {site: font.label(models, part) for site, part in data.items()}
    ensemble = font.Ensemble(K, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    clusters = {site: ensemble.predict(table).to_numpy() for site, table in labels.items()}
    order = _pairing(np.concatenate(list(clusters.values())), np.concatenate(list(truth.values())))
    return {site: order[part] for site, part in clusters.items()}, models


def _pairing(labels: Any, others: Any) -> Any:
    """The number among `others` that each label shares most patients with, one to one."""
    table = np.zeros((K, K))
    np.add.at(table, (labels, others), 1)
    return linear_sum_assignment(-table)[1]


def harm(differ: float, seed: int) -> dict[str, float]:
    """One simulated study: adjusted Rand indices, stated probabilities and what is right."""
    data, truth, _ = hospitals(differ, seed)
    clusters, models = clustered(data, truth, seed)
    true = np.concatenate(list(truth.values()))
    own = {site: models[site].predict(part) for site, part in data.items()}
    result = {
        "FONT": adjusted_rand_score(true, np.concatenate(list(clusters.values()))),
        "own models": float(np.mean([adjusted_rand_score(truth[s], own[s]) for s in data])),
    }
    for name, rounds in {"1 round": 1, "held-out": "held-out", "converged": "converge"}.items():
        template = next(iter(models.values()))
        refined = refine_clusters(template, data, clusters, K, rounds, seed)
        members = {site: refined.predict_proba(d, site).to_numpy() for site, d in data.items()}
        placed = {site: m.argmax(axis=1) for site, m in members.items()}
        found = np.concatenate(list(placed.values()))
        result[name] = adjusted_rand_score(true, found)
        result[f"{name}: rounds"] = refined.n_steps_
        stated = np.concatenate([m.max(axis=1) for m in members.values()])
        right = _pairing(found, true)[found] == true
        result[f"{name}: stated"], result[f"{name}: right"] = stated.mean(), right.mean()
        result[f"{name}: above 0.95"] = (stated > 0.95).mean()
        result[f"{name}: right above 0.95"] = right[stated > 0.95].mean()
        same = [_pairing(own[s], placed[s])[own[s]] == placed[s] for s in data]
        result[f"{name}: same"] = np.concatenate(same).mean()
    return result


def effects(lengths: tuple[int, int], seed: int) -> pd.DataFrame:
    """Errors of the pooled effects and whether their intervals hold the truth, by memberships.

    "in one place" is what a study does that has all records: the memberships of
    `mmlca.cluster_memberships`, with the ensemble's clusters as the assignment. Hospitals that
    exchange files have memberships of their own before a refinement, and those of the shared model
    after it, with the most probable cluster as the assignment. In "1 round, ensemble" the
    memberships are those after one round and the assignment is the ensemble's.
    """
    data, truth, covariates = hospitals(0.0, seed, lengths)
    clusters, models = clustered(data, truth, seed)
    own = {
        site: mmlca.cluster_memberships({site: part}, {site: clusters[site]})[site].reindex(
            columns=range(K), fill_value=0.0
        )
        for site, part in data.items()
    }
    ways = {
        "in one place": (mmlca.cluster_memberships(data, clusters), clusters),
        "no refinement": (own, clusters),
    }
    for name, rounds in {"1 round": 1, "converged": "converge"}.items():
        refined = refine_clusters(next(iter(models.values())), data, clusters, K, rounds)
        members = {site: refined.predict_proba(part, site) for site, part in data.items()}
        ways[name] = members, {site: m.to_numpy().argmax(axis=1) for site, m in members.items()}
    ways["1 round, ensemble"] = ways["1 round"][0], clusters
    rows = []
    for name, (members, assigned) in ways.items():
        sent = {}
        for site in data:
            with warnings.catch_warnings(), contextlib.suppress(ValueError):  # too few: none leave
                warnings.simplefilter("ignore")
                p = members[site].set_axis(range(1, K + 1), axis=1).reset_index(drop=True)
                known = Members(pd.Series(np.asarray(assigned[site]) + 1), p)
                sent[site] = site_effects(known, covariates[site], min_count=11)
        pooled = inverse_variance(sent)
        pooled = pooled[(pooled["term"] == "x") & pooled["estimate"].notna()]
        true = BETA[pooled["class"].astype(int) - 1]
        covered = (pooled["low"] <= true) & (true <= pooled["high"])
        errors = (pooled["estimate"] - true) * np.sign(true)
        rows.append(pd.DataFrame({"memberships": name, "error": errors, "covered": covered}))
    return pd.concat(rows)


# --- what the documentation claims, with fewer studies --------------------------------------


def mean_harm(differ: float, n_studies: int = 8) -> pd.Series:
    return pd.DataFrame([harm(differ, seed) for seed in range(1, n_studies + 1)]).mean()


@pytest.mark.slow
def test_memberships_can_be_believed_where_chains_are_shared() -> None:
    found = mean_harm(0.0)
    for name in ("1 round", "held-out", "converged"):
        assert found[name] > found["FONT"] + 0.01
        assert abs(found[f"{name}: stated"] - found[f"{name}: right"]) < 0.02
        assert found[f"{name}: right above 0.95"] > 0.97
    assert found["1 round"] > found["own models"] + 0.04


@pytest.mark.slow
def test_convergence_harms_where_chains_differ_and_is_sure_of_itself() -> None:
    """Held-out patients do not prevent it, and the hospitals' own models are better."""
    found = mean_harm(0.4)
    assert found["1 round"] > found["converged"] + 0.03
    assert found["1 round"] > found["FONT"] + 0.03
    assert found["held-out"] < found["1 round"]
    assert found["converged: stated"] > found["converged: right"] + 0.2
    assert found["converged: right above 0.95"] < 0.8
    assert found["own models"] > found["1 round"] + 0.1


if __name__ == "__main__":
    n_studies, say = int(sys.argv[2]), sys.stdout.write
    if sys.argv[1] == "harm":
        for differ in map(float, sys.argv[3:]):
            table = pd.DataFrame([harm(differ, seed) for seed in range(1, n_studies + 1)])
            both = pd.DataFrame({"mean": table.mean(), "se": table.sem()})
            say(f"differ by {differ}\n{both.round(3).T.to_string()}\n")
            sys.stdout.flush()
    else:
        lengths = (int(sys.argv[3]), int(sys.argv[4]))
        table = pd.concat([effects(lengths, seed) for seed in range(1, n_studies + 1)])
        grouped = table.groupby("memberships", sort=False)
        both = grouped.mean().assign(se=grouped["error"].sem())
        say(f"{lengths}\n{both.round(3).to_string()}\n")
