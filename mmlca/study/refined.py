"""The items of the report about the refinement: FONT as published and refined, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import compare_clusterings, reliability
from mmlca.study.analyse import Analysis, Findings
from mmlca.study.read import read_truth
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.words import group_name, groups_word
from mmlca.tables.suppress import add_totals, hidden_grid, hidden_note, hidden_parts, hide, is_small

if TYPE_CHECKING:
    from mmlca.study.config import Study


def refined_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Sizes, who moved, differences between sites, and where the truth is known how right it is."""
    analysis, min_count = findings.analysis, study.privacy.min_count
    if analysis.refined is None:
        return
    note = hidden_note(min_count)
    groups = groups_word(study)
    rounds = analysis.refined.n_rounds_
    times = f"{rounds} round{'s' * (rounds != 1)} of exchange"
    yield Item(
        "refined_sizes",
        "refined",
        f"Sizes of the {groups}, as published and refined",
        f"Patients of each site. The refined model ({times}) estimates the courses from all sites' "
        "patients together, and lets every site have its own proportions, which the last column "
        "shows. Refined sizes that differ from the published ones by few patients "
        f"are not shown. {note}".rstrip(),
        size_table(study, analysis),
        Plain(shares=("proportion",), n_keys=2),
    )
    yield Item(
        "refined_moved",
        "refined",
        "Who moved",
        f"Patients of all sites by published (rows) and refined (columns) group. {note}".rstrip(),
        moved_table(study, analysis),
    )
    yield Item(
        "refined_by_site",
        "refined",
        "Patients who moved, by site",
        "Patients whose refined group is another than the published one; their mean probability of "
        f"the refined group, over all patients of the site. {note}".rstrip(),
        site_table(study, analysis),
        Plain(shares=("share",)),
    )
    if findings.differences is not None and findings.refined_differences is not None:
        yield Item(
            "refined_differences",
            "refined",
            "Differences between sites, as published and refined",
            "Mean norms of the differences between sites within groups, see the section on sites; "
            "a common rule lowers them, whether it is a good one or not.",
            difference_table(findings),
            Plain(n_keys=3),
        )
    truth = _truth(study, analysis)
    if truth:
        yield Item(
            "refined_accuracy",
            "refined",
            "Against the simulated classes",
            "Adjusted Rand index with the classes that these patients were simulated from.",
            accuracy_table(analysis, truth),
        )
        yield Item(
            "refined_reliability",
            "refined",
            "Are the probabilities right?",
            "Patients by the probability of their refined group: its mean, and the share of them "
            f"who are in the simulated class that the group stands for. {note}".rstrip(),
            reliability_table(analysis, truth, min_count),
            Plain(shares=("probability", "right")),
        )


def size_table(study: Study, analysis: Analysis) -> pd.DataFrame:
    """Sizes by site and cluster under both memberships.

    A refined size is hidden where it is small, or differs little from the published one.
    """
    published, refined = (_sizes(part) for part in (analysis.clusters, analysis.refined_clusters))
    order = sorted(set(published) | set(refined))
    published, refined = (t.reindex(columns=order, fill_value=0) for t in (published, refined))
    min_count = study.privacy.min_count
    hidden = _hidden_sizes(published, refined, min_count)
    known = hidden_grid(add_totals(published), min_count)
    assert analysis.refined is not None
    shares = analysis.refined.proportions_
    rows = []
    for i, site in enumerate([*published.index, "all"]):
        for j, cluster in enumerate(order):
            parts = [
                t[cluster].sum() if site == "all" else t.at[site, cluster]
                for t in (published, refined)
            ]
            share = np.nan if site == "all" or hidden[i, j] else shares.at[site, cluster - 1]
            rows.append(
                {
                    "site": site,
                    "group": group_name(study, cluster, analysis.names),
                    "published": np.nan if known[i, j] else parts[0],
                    "refined": np.nan if hidden[i, j] else parts[1],
                    "proportion": share,
                }
            )
    return pd.DataFrame(rows)


def moved_table(study: Study, analysis: Analysis) -> pd.DataFrame:
    """Patients of all sites by published and refined cluster, with totals."""
    published, refined = (_sizes(part) for part in (analysis.clusters, analysis.refined_clusters))
    order = sorted(set(published) | set(refined))
    both = [
        np.concatenate(list(p.values())) for p in (analysis.clusters, analysis.refined_clusters)
    ]
    counts = pd.crosstab(*both).reindex(index=order, columns=order, fill_value=0).to_numpy()
    published, refined = (t.reindex(columns=order, fill_value=0) for t in (published, refined))
    min_count = study.privacy.min_count
    table = add_totals(counts)
    small = is_small(table, min_count)
    small[-1] |= _hidden_sizes(published, refined, min_count)[-1]
    small[:, -1] |= hidden_grid(add_totals(published), min_count)[-1]
    shown = np.where(hidden_grid(table, min_count, small), np.nan, table)
    names = [*(group_name(study, c, analysis.names) for c in order), "all"]
    return pd.DataFrame(shown, columns=names).assign(published=names)[["published", *names]]


def site_table(study: Study, analysis: Analysis) -> pd.DataFrame:
    """How many patients moved at each site, and how certain the refined clusters are."""
    rows = []
    for site, part in analysis.clusters.items():
        moved = int((analysis.refined_clusters[site] != part).sum())
        sure = analysis.certainty[site]["probability"].mean()
        rows.append({"site": site, "patients": len(part), "moved": moved, "probability": sure})
    table = pd.DataFrame(rows)
    min_count = study.privacy.min_count
    small = is_small(table["moved"], min_count) | is_small(
        table["patients"] - table["moved"], min_count
    )
    parts, _ = hidden_parts(table["moved"], min_count, small)
    share = table["moved"] / table["patients"]
    return table.assign(moved=table["moved"].mask(parts), share=share.mask(parts))


def difference_table(findings: Findings) -> pd.DataFrame:
    """Norms between sites under both memberships."""
    assert findings.differences is not None
    assert findings.refined_differences is not None
    keys, shown = ["quantity", "weighting", "sites"], ["norm", "debiased"]
    both = [
        part.norms[part.norms["membership"] == "ensemble"].set_index(keys)[shown]
        for part in (findings.differences, findings.refined_differences)
    ]
    table = both[0].add_prefix("published ").join(both[1].add_prefix("refined "))
    return table.reset_index()


def accuracy_table(analysis: Analysis, truth: dict[str, Any]) -> pd.DataFrame:
    """Adjusted Rand indices with the true classes, at all sites and at each."""
    rows = []
    for name, part in (("published", analysis.clusters), ("refined", analysis.refined_clusters)):
        row: dict[str, Any] = {"membership": name}
        everyone = [np.concatenate([p[site] for site in truth]) for p in (truth, part)]
        for site, (true, clusters) in {
            "all": everyone,
            **{site: (truth[site], part[site]) for site in truth},
        }.items():
            row[site] = float(compare_clusterings(true, clusters)["adjusted_rand_index"])
        rows.append(row)
    return pd.DataFrame(rows)


def reliability_table(analysis: Analysis, truth: dict[str, Any], min_count: int) -> pd.DataFrame:
    """`font.reliability` of the patients whose true class is known."""
    assert analysis.refined is not None
    member = np.concatenate([analysis.memberships[site].to_numpy() for site in truth])
    table = reliability(member, np.concatenate([np.asarray(truth[site]) for site in truth]))
    return hide(table, ["patients", "probability", "right", "se"], ["patients"], min_count)


def _truth(study: Study, analysis: Analysis) -> dict[str, Any]:
    return {
        site: read_truth(files.truth, analysis.sequences[site])
        for site, files in study.sites.items()
        if files.truth is not None
    }


def _sizes(clusters: dict[str, pd.Series]) -> pd.DataFrame:
    """Patients by site and cluster."""
    return (
        pd.DataFrame({site: part.value_counts() for site, part in clusters.items()})
        .T.fillna(0)
        .astype(int)
    )


def _hidden_sizes(published: pd.DataFrame, refined: pd.DataFrame, min_count: int) -> Any:
    """The refined sizes, with totals, that are small or that few patients make different."""
    before, after = add_totals(published), add_totals(refined)
    small = is_small(after, min_count) | is_small(np.abs(after - before), min_count)
    return hidden_grid(after, min_count, small)
