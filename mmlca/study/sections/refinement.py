"""The refined clusters beside those of the ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import reliability
from mmlca.study.analysis import Analysis
from mmlca.study.findings import Findings
from mmlca.study.groups import same_as_own
from mmlca.study.headline import agreement_with_truth, true_classes
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.section import Section
from mmlca.study.words import counted, group_name, sentences
from mmlca.tables.disclosure import Rounding, is_small, show_counts
from mmlca.tables.moves import Moves, count_moves

if TYPE_CHECKING:
    from font.refinement import Refined
    from mmlca.study.settings import Study


# --- computed from patients ---------------------------------------------------------------


def size_table(
    study: Study, analysis: Analysis, moves: Moves, rounding: Rounding | None = None
) -> pd.DataFrame:
    """Sizes by site and cluster under both memberships.

    A proportion is that of an expected number of patients, which is rounded where sizes are.
    """
    assert analysis.refined is not None
    shares = analysis.refined.proportions_
    if rounding is not None:
        drawn = rounding.of(analysis.refined_clusters)
        n = {site: len(part) for site, part in analysis.refined_clusters.items()}
        counts = pd.DataFrame(
            {k: [drawn(shares.at[s, k] * n[s], s, k + 1) for s in n] for k in shares}, index=list(n)
        )
        shares = counts.div(counts.sum(axis=1).replace(0, np.nan), axis=0)
    few = is_small(moves.refined, study.privacy.min_count) | np.isnan(moves.refined)
    rows = []
    for i, site in enumerate([*moves.sites, "all"]):
        for j, cluster in enumerate(moves.clusters):
            share = np.nan if site == "all" or few[i, j] else shares.at[site, cluster - 1]
            rows.append(
                {
                    "site": site,
                    "group": group_name(study, cluster, analysis.names),
                    "ensemble": moves.published[i, j],
                    "refined": moves.refined[i, j],
                    "proportion": share,
                }
            )
    return pd.DataFrame(rows)


def accuracy_table(analysis: Analysis, truth: dict[str, Any]) -> pd.DataFrame:
    """Adjusted Rand indices with the true classes, at all sites and at each."""
    rows = []
    for name, part in (("ensemble", analysis.clusters), ("refined", analysis.refined_clusters)):
        by_site = {site: agreement_with_truth(truth, part, [site]) for site in truth}
        every = agreement_with_truth(truth, part, list(truth))
        rows.append({"membership": name, "all": every, **by_site})
    return pd.DataFrame(rows)


def reliability_table(
    analysis: Analysis, truth: dict[str, Any], min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """`font.reliability` of the patients whose true class is known."""
    assert analysis.refined is not None
    member = np.concatenate([analysis.memberships[site].to_numpy() for site in truth])
    table = reliability(member, np.concatenate([np.asarray(truth[site]) for site in truth]))
    shown = show_counts(
        table,
        {"patients": ["probability"]},
        min_count,
        rounding,
        cells=["from"],
        beside=["probability", "right", "se"],
    )
    return shown if rounding is None else shown.round({"right": 2, "se": 2})


# --- tables -------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Sizes, who moved, differences between sites, and how right it is where the truth is known."""
    analysis, min_count = findings.analysis, study.privacy.min_count
    if analysis.refined is None:
        return
    rounding = rounding_of(study, analysis.clusters)
    moves = count_moves(analysis.clusters, analysis.refined_clusters, min_count, rounding)
    same = same_as_own(analysis, min_count, rounding)
    yield from _moves(study, analysis, moves, same, rounding)
    if findings.differences is not None and findings.refined_differences is not None:
        yield Item(
            "refined_differences",
            "Differences between sites, by the ensemble and refined",
            "Mean norms of the differences between sites within clusters (see the section on "
            "sites). A common rule often lowers them, whether or not it is a good one.",
            difference_table(findings),
            Plain(n_keys=3),
        )
    truth = true_classes(study, analysis)
    if truth:
        yield Item(
            "refined_accuracy",
            "Agreement with the simulated classes",
            "Adjusted Rand index with the classes from which these patients were simulated.",
            accuracy_table(analysis, truth),
        )
        yield Item(
            "refined_reliability",
            "Are the probabilities right?",
            "Patients grouped by the probability of their refined cluster: the mean probability, "
            "and the share who are in the simulated class that corresponds to the cluster.",
            reliability_table(analysis, truth, min_count, rounding),
            Plain(shares=("from", "to", "probability", "right", "se")),
            note=count_note(study),
        )


def _moves(
    study: Study, analysis: Analysis, moves: Moves, same: pd.Series, rounding: Rounding | None
) -> Iterator[Item]:
    """Sizes before and after, and the patients who changed cluster."""
    assert analysis.refined is not None
    note = count_note(study)
    steps = counted(analysis.refined.n_steps_, "step")
    hidden = "Refined sizes that differ from those of the ensemble by few patients are not shown."
    yield Item(
        "refined_sizes",
        "Sizes of the clusters, by the ensemble and refined",
        sentences(
            f"Patients of each site. The refined model ({steps} of EM across the sites) estimates "
            "the courses from all sites' patients together and lets every site have its own "
            "proportions, which the last column shows.",
            hidden if rounding is None else "",
        ),
        size_table(study, analysis, moves, rounding),
        Plain(shares=("proportion",), n_keys=2),
        note=note,
    )
    yield Item(
        "refined_moved",
        "Who changed cluster",
        "Patients of all sites by cluster of the ensemble (rows) and refined cluster (columns).",
        moved_table(study, analysis, moves),
        note=note,
    )
    yield Item(
        "refined_by_site",
        "Patients who changed cluster, by site",
        "Patients whose refined cluster is not that of the ensemble; the mean probability of the "
        "refined cluster over all patients of the site, which is correct if the model is; and the "
        "share of patients with the same cluster under the site's own model, which does not need "
        "courses that sites share. Where that share is much lower, the probability is too high.",
        site_table(analysis, moves, same),
        Plain(shares=("share", "same by own model")),
        note=note,
    )


def moved_table(study: Study, analysis: Analysis, moves: Moves) -> pd.DataFrame:
    """Patients of all sites by published and refined cluster, with totals."""
    names = [*(group_name(study, c, analysis.names) for c in moves.clusters), "all"]
    return pd.DataFrame(moves.pairs, columns=names).assign(ensemble=names)[["ensemble", *names]]


def site_table(analysis: Analysis, moves: Moves, same: pd.Series) -> pd.DataFrame:
    """How many patients moved at each site, and how certain the refined clusters are.

    `same` is the share of each site's patients with the same cluster by its own model.
    """
    return pd.DataFrame(
        {
            "site": moves.sites,
            "patients": moves.patients,
            "moved": moves.movers,
            "probability": [analysis.certainty[s]["probability"].mean() for s in moves.sites],
            "share": moves.share,
            "same by own model": same[moves.sites].to_numpy(),
        }
    )


def difference_table(findings: Findings) -> pd.DataFrame:
    """Norms between sites under both memberships."""
    assert findings.differences is not None
    assert findings.refined_differences is not None
    keys, shown = ["quantity", "weighting", "sites"], ["norm", "debiased"]
    both = [
        part.norms[part.norms["membership"] == "ensemble"].set_index(keys)[shown]
        for part in (findings.differences, findings.refined_differences)
    ]
    table = both[0].add_prefix("ensemble ").join(both[1].add_prefix("refined "))
    return table.reset_index()


# --- methods ------------------------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How the clusters were refined."""
    refined = findings.analysis.refined
    return [] if refined is None else _refined(study, refined)


def _refined(study: Study, refined: Refined) -> list[str]:
    n = refined.n_steps_
    steps = {0: "", 1: ", followed by one step of expectation-maximisation across the sites"}.get(
        n, f", followed by {n:,} steps of expectation-maximisation across the sites"
    )
    until = ""
    if study.ensemble.refine == "converge":
        until = " until convergence" if refined.converged_ else ", which did not converge"
    return [
        "The clusters were then refined: a Markov chain for each cluster, shared by all sites, and "
        "the proportions of the clusters at each site were estimated from the patients of the "
        f"ensemble's clusters{steps}{until} (refined model).",
        "A patient's probability of a cluster is the one under the refined model, which assumes "
        "that the sites share the chains. Tables and figures show the ensemble's clusters unless "
        "they are called refined.",
    ]


SECTION = Section("refined", "Refinement", items, methods)
