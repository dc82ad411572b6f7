"""The refined clusters beside those of the ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.certainty import (
    moves_of,
    proportions_of,
    reliability_of,
    same_as_own,
    truth_indices,
)
from mmlca.study.results.site import ENSEMBLE, REFINED, is_rounded, stacked
from mmlca.study.sections.section import Section
from mmlca.study.words import counted, group_name, sentences
from mmlca.tables.disclosure import EVERYONE, is_small

if TYPE_CHECKING:
    from mmlca.study.combined import Refinement
    from mmlca.study.findings import Findings
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study
    from mmlca.tables.moves import Moves


# --- tables -------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Sizes, who moved, differences between sites, and how right it is where the truth is known."""
    if findings.combined.refined is None:
        return
    results, min_count = findings.results, study.privacy.min_count
    yield from _moves(study, findings, findings.combined.refined.n_steps)
    if findings.differences is not None and findings.refined_differences is not None:
        yield Item(
            "refined_differences",
            "Differences between sites, by the ensemble and refined",
            "Mean norms of the differences between sites within clusters (see the section on "
            "sites). A common rule often lowers them, whether or not it is a good one.",
            difference_table(findings.differences.norms, findings.refined_differences.norms),
            Plain(n_keys=3),
        )
    reliability = reliability_of(results, min_count)
    if reliability is not None:
        yield Item(
            "refined_accuracy",
            "Agreement with the simulated classes",
            "Adjusted Rand index with the classes from which these patients were simulated.",
            accuracy_table(results),
        )
        yield Item(
            "refined_reliability",
            "Are the probabilities right?",
            "Patients grouped by the probability of their refined cluster: the mean probability, "
            "and the share who are in the simulated class that corresponds to the cluster.",
            reliability,
            Plain(shares=("from", "to", "probability", "right", "se")),
            note=count_note(study),
        )


def _moves(study: Study, findings: Findings, n_steps: int) -> Iterator[Item]:
    """Sizes before and after, and the patients who changed cluster."""
    results, min_count, note = findings.results, study.privacy.min_count, count_note(study)
    moves = moves_of(results, findings.sizes, min_count)
    steps, same = counted(n_steps, "step"), same_as_own(results, min_count)
    names = {c: group_name(study, c, findings.names.clusters) for c in moves.clusters}
    hidden = "Refined sizes that differ from those of the ensemble by few patients are not shown."
    yield Item(
        "refined_sizes",
        "Sizes of the clusters, by the ensemble and refined",
        sentences(
            f"Patients of each site. The refined model ({steps} of EM across the sites) estimates "
            "the courses from all sites' patients together and lets every site have its own "
            "proportions, which the last column shows.",
            "" if is_rounded(results) else hidden,
        ),
        size_table(names, proportions_of(results), moves, min_count),
        Plain(shares=("proportion",), n_keys=2),
        note=note,
    )
    yield Item(
        "refined_moved",
        "Who changed cluster",
        "Patients of all sites by cluster of the ensemble (rows) and refined cluster (columns).",
        moved_table(names, moves),
        note=note,
    )
    yield Item(
        "refined_by_site",
        "Patients who changed cluster, by site",
        "Patients whose refined cluster is not that of the ensemble; the mean probability of the "
        "refined cluster over all patients of the site, which is correct if the model is; and the "
        "share of patients with the same cluster under the site's own model, which does not need "
        "courses that sites share. Where that share is much lower, the probability is too high.",
        site_table(moves, stacked(results, "certainty")["probability"], same),
        Plain(shares=("share", "same by own model")),
        note=note,
    )


def size_table(
    names: Mapping[int, str], proportions: pd.DataFrame, moves: Moves, min_count: int
) -> pd.DataFrame:
    """Sizes by site and cluster under both memberships, and the sites' proportions."""
    few = is_small(moves.refined, min_count) | np.isnan(moves.refined)
    rows = []
    for i, site in enumerate([*moves.sites, EVERYONE]):
        for j, cluster in enumerate(moves.clusters):
            hidden = site == EVERYONE or few[i, j]
            rows.append(
                {
                    "site": site,
                    "group": names[cluster],
                    "ensemble": moves.published[i, j],
                    "refined": moves.refined[i, j],
                    "proportion": np.nan if hidden else proportions.at[site, cluster],
                }
            )
    return pd.DataFrame(rows)


def accuracy_table(results: Mapping[str, SiteResults]) -> pd.DataFrame:
    """Adjusted Rand indices with the true classes, at all sites and at each."""
    views = (("ensemble", ENSEMBLE), ("refined", REFINED))
    return pd.DataFrame(
        [{"membership": name, **truth_indices(results, view)} for name, view in views]
    )


def moved_table(names: Mapping[int, str], moves: Moves) -> pd.DataFrame:
    """Patients of all sites by published and refined cluster, with totals."""
    shown = [*(names[cluster] for cluster in moves.clusters), EVERYONE]
    return pd.DataFrame(moves.pairs, columns=shown).assign(ensemble=shown)[["ensemble", *shown]]


def site_table(moves: Moves, probability: pd.Series, same: pd.Series) -> pd.DataFrame:
    """How many patients moved at each site, and how certain the refined clusters are.

    `probability` is the mean one of each site, `same` the share of its patients with the same
    cluster by its own model.
    """
    return pd.DataFrame(
        {
            "site": moves.sites,
            "patients": moves.patients,
            "moved": moves.movers,
            "probability": probability.to_numpy(),
            "share": moves.share,
            "same by own model": same[moves.sites].to_numpy(),
        }
    )


def difference_table(ensemble: pd.DataFrame, refined: pd.DataFrame) -> pd.DataFrame:
    """Norms between sites under both memberships."""
    keys, shown = ["quantity", "weighting", "sites"], ["norm", "debiased"]
    both = [
        norms[norms["membership"] == name].set_index(keys)[shown].add_prefix(f"{name} ")
        for name, norms in (("ensemble", ensemble), ("refined", refined))
    ]
    return both[0].join(both[1]).reset_index()


# --- methods ------------------------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How the clusters were refined."""
    refined = findings.combined.refined
    return [] if refined is None else _refined(study, refined)


def _refined(study: Study, refined: Refinement) -> list[str]:
    n = refined.n_steps
    steps = {0: "", 1: ", followed by one step of expectation-maximisation across the sites"}.get(
        n, f", followed by {n:,} steps of expectation-maximisation across the sites"
    )
    until = ""
    if study.ensemble.refine == "converge":
        until = " until convergence" if refined.converged else ", which did not converge"
    return [
        "The clusters were then refined: a Markov chain for each cluster, shared by all sites, and "
        "the proportions of the clusters at each site were estimated from the patients of the "
        f"ensemble's clusters{steps}{until} (refined model).",
        "A patient's probability of a cluster is the one under the refined model, which assumes "
        "that the sites share the chains. Tables and figures show the ensemble's clusters unless "
        "they are called refined.",
    ]


SECTION = Section("refined", "Refinement", items, methods)
