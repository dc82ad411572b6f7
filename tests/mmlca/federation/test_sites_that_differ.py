"""Refinement where sites do not share the clusters' chains, and effects of covariates after it.

Five hospitals of 300 to 800 patients have the four RA-like chains of `ra_like`, each in proportions
of its own. Where they differ by a share, this share of every row of probabilities is replaced by a
random row at each hospital. The numbers in the documentation come from these functions with more
studies (`python` on this file prints them).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
from ra_like import PARAMS, STATES
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

import font
import mmlca
from font.refinement import refine_clusters
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate

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
        result[f"{name}: rounds"] = refined.n_rounds_
        result[f"{name}: stated"] = np.concatenate([m.max(axis=1) for m in members.values()]).mean()
        result[f"{name}: right"] = (_pairing(found, true)[found] == true).mean()
        same = [_pairing(own[s], placed[s])[own[s]] == placed[s] for s in data]
        result[f"{name}: same"] = np.concatenate(same).mean()
    return result


def effects(lengths: tuple[int, int], seed: int) -> pd.DataFrame:
    """Errors of the pooled effects and whether their intervals hold the truth, by rounds."""
    data, truth, covariates = hospitals(0.0, seed, lengths)
    clusters, models = clustered(data, truth, seed)
    template = next(iter(models.values()))
    template = MixtureMarkov(K, init=template.params_, max_iter=0, tol=0).fit(data["h0"])
    ways: dict[str, Any] = {"converged": mmlca.cluster_memberships(data, clusters)}
    for rounds in (1, 2, 5, 10):
        refined = refine_clusters(template, data, clusters, K, rounds)
        name = f"{rounds} round{'s' * (rounds > 1)}"
        ways[name] = {site: refined.predict_proba(part, site) for site, part in data.items()}
    rows = []
    for name, members in ways.items():
        tables = {}
        for site in data:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = mmlca.three_step(
                    pd.DataFrame(members[site].to_numpy()),
                    covariates=covariates[site],
                    correction="ML",
                    assignment=clusters[site],
                )
            tables[site] = pd.DataFrame(found)[["class", "term", "estimate", "se"]]
        pooled = mmlca.inverse_variance(tables).query("term == 'x'")
        error = pooled["estimate"].to_numpy() - BETA[pooled["class"].astype(int)]
        inside = np.abs(error) <= 1.96 * pooled["se"].to_numpy()
        signs = np.sign(BETA[pooled["class"].astype(int)])
        rows += [(name, e, i) for e, i in zip(error * signs, inside, strict=True)]
    return pd.DataFrame(rows, columns=["memberships", "error", "covered"])


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
