"""The items of the report about the refinement: those of the ensemble and refined, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.metrics import compare_clusterings, reliability
from mmlca.study.analyse import Analysis, Findings
from mmlca.study.groups import same_as_own
from mmlca.study.read import read_truth
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.words import group_name, groups_word
from mmlca.tables.suppress import add_totals, hidden_cells, hidden_grid, hidden_note, hide, is_small

if TYPE_CHECKING:
    from mmlca.study.config import Study


def refined_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Sizes, who moved, differences between sites, and where the truth is known how right it is."""
    analysis, min_count = findings.analysis, study.privacy.min_count
    if analysis.refined is None:
        return
    moves = count_moves(analysis, min_count)
    note = hidden_note(min_count)
    groups = groups_word(study)
    rounds = analysis.refined.n_rounds_
    times = f"{rounds} round{'s' * (rounds != 1)} of exchange"
    yield Item(
        "refined_sizes",
        "refined",
        f"Sizes of the {groups}, by the ensemble and refined",
        f"Patients of each site. The refined model ({times}) estimates the courses from all sites' "
        "patients together, and lets every site have its own proportions, which the last column "
        "shows. Refined sizes that differ from those of the ensemble by few patients "
        f"are not shown. {note}".rstrip(),
        size_table(study, analysis, moves),
        Plain(shares=("proportion",), n_keys=2),
    )
    yield Item(
        "refined_moved",
        "refined",
        "Who moved",
        "Patients of all sites by group of the ensemble (rows) and refined group (columns). "
        f"{note}".rstrip(),
        moved_table(study, analysis, moves),
    )
    yield Item(
        "refined_by_site",
        "refined",
        "Patients who moved, by site",
        "Patients whose refined group is another than that of the ensemble; the mean probability "
        "of the refined group, over all patients of the site, which holds if the model is right; "
        "and the share of patients with the same group by the site's own model, which needs no "
        "courses that sites share. Where that share is much lower, the probability is too high. "
        f"{note}".rstrip(),
        site_table(analysis, moves, same_as_own(analysis, min_count)),
        Plain(shares=("share", "same by own model")),
    )
    if findings.differences is not None and findings.refined_differences is not None:
        yield Item(
            "refined_differences",
            "refined",
            "Differences between sites, by the ensemble and refined",
            "Mean norms of the differences between sites within groups, see the section on sites; "
            "a common rule often lowers them, whether it is a good one or not.",
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
            Plain(shares=("from", "to", "probability", "right", "se")),
        )


class Moves(NamedTuple):
    """Patients by site, published and refined cluster, and what may not be shown of their sums.

    Parameters
    ----------
    sites : list of S names
    clusters : list of K numbers
    counts : (S, K, K)
    hidden_published, hidden_refined : (S + 1, K)
        Sizes of the clusters; the last row is all sites together.
    hidden_pairs : (K, K)
        Pairs of clusters, at all sites together.
    hidden_movers : (S,)
        Patients who moved, by site.
    """

    sites: list[str]
    clusters: list[int]
    counts: NDArray[np.int64]
    hidden_published: NDArray[np.bool_]
    hidden_refined: NDArray[np.bool_]
    hidden_pairs: NDArray[np.bool_]
    hidden_movers: NDArray[np.bool_]


def count_moves(analysis: Analysis, min_count: int) -> Moves:
    """Who moved, and one decision for all tables about what must be hidden of it.

    The tables are sums of the same numbers of patients by site, published and refined cluster,
    none of which shows itself; hidden one by one they would tell on each other. A refined size is
    hidden, too, where it differs by few patients from the published one. Published sizes show
    elsewhere, where they are not small.
    """
    both = (analysis.clusters, analysis.refined_clusters)
    clusters = sorted({int(k) for part in both for own in part.values() for k in np.unique(own)})
    sites = list(analysis.clusters)
    tables = [pd.crosstab(*(np.asarray(part[site]) for part in both)) for site in sites]
    counts = np.stack([t.reindex(clusters, columns=clusters, fill_value=0) for t in tables])
    return Moves(sites, clusters, counts, *_hidden_moves(counts, min_count))


def _hidden_moves(counts: NDArray[np.int64], min_count: int) -> tuple[NDArray[np.bool_], ...]:
    """The masks of `Moves`: small numbers, and those from which they would follow."""
    off = ~np.eye(counts.shape[1], dtype=bool)
    every = np.concatenate([counts, counts.sum(axis=0, keepdims=True)])
    published, refined, patients = every.sum(axis=2), every.sum(axis=1), every.sum(axis=(1, 2))
    stayed = np.trace(counts, axis1=1, axis2=2)
    movers = patients[:-1] - stayed
    hidden_published = hidden_grid(add_totals(published[:-1]), min_count)[:, :-1]
    few_published = is_small(published, min_count)
    few_changed = is_small(np.abs(refined - published), min_count)
    each_site = np.arange(len(every)) < len(counts)
    # of each table: its numbers, those to hide, those that show nothing, those that show anyway
    parts: dict[str, tuple[Any, Any, Any, Any]] = {
        "pairs": (every, is_small(every, min_count), each_site[:, None, None], False),
        "published": (published, few_published, hidden_published & ~few_published,
                      ~hidden_published),
        "refined": (refined, is_small(refined, min_count) | few_changed, False, False),
        "movers": (movers, is_small(movers, min_count), False, False),
        "stayed": (stayed, is_small(stayed, min_count), True, False),
        "patients": (patients, False, False, True),
    }  # fmt: skip
    sizes = [np.size(part[0]) for part in parts.values()]
    begins = np.cumsum([0, *sizes])
    at = {
        name: np.arange(begin, begin + size).reshape(np.shape(part[0]))
        for (name, part), begin, size in zip(parts.items(), begins[:-1], sizes, strict=True)
    }
    sums: list[tuple[int, NDArray[np.intp]]] = []
    for i, own in enumerate(at["pairs"]):
        sums += zip(at["published"][i], own, strict=True)
        sums += zip(at["refined"][i], own.T, strict=True)
        sums.append((at["patients"][i], at["published"][i]))
    each = at["pairs"][:-1]
    sums += zip(at["pairs"][-1].ravel(), each.reshape(len(each), -1).T, strict=True)
    sums += zip(at["stayed"], each[:, ~off], strict=True)
    sums += zip(at["movers"], each[:, off], strict=True)
    values, small, blank, known = (
        np.concatenate([np.broadcast_to(p[j], np.shape(p[0])).ravel() for p in parts.values()])
        for j in range(4)
    )
    hidden = hidden_cells(values, sums, min_count, small, blank=blank, known=known)
    return (
        hidden_published,
        hidden[at["refined"]],
        hidden[at["pairs"][-1]],
        hidden[at["movers"]],
    )


def size_table(study: Study, analysis: Analysis, moves: Moves) -> pd.DataFrame:
    """Sizes by site and cluster under both memberships."""
    assert analysis.refined is not None
    shares = analysis.refined.proportions_
    every = np.concatenate([moves.counts, moves.counts.sum(axis=0, keepdims=True)])
    rows = []
    for i, site in enumerate([*moves.sites, "all"]):
        for j, cluster in enumerate(moves.clusters):
            hidden = moves.hidden_refined[i, j]
            share = np.nan if site == "all" or hidden else shares.at[site, cluster - 1]
            rows.append(
                {
                    "site": site,
                    "group": group_name(study, cluster, analysis.names),
                    "ensemble": np.nan if moves.hidden_published[i, j] else every[i, j].sum(),
                    "refined": np.nan if hidden else every[i, :, j].sum(),
                    "proportion": share,
                }
            )
    return pd.DataFrame(rows)


def moved_table(study: Study, analysis: Analysis, moves: Moves) -> pd.DataFrame:
    """Patients of all sites by published and refined cluster, with totals."""
    hidden = np.zeros((len(moves.clusters) + 1,) * 2, dtype=bool)
    hidden[:-1, :-1] = moves.hidden_pairs
    hidden[:-1, -1], hidden[-1, :-1] = moves.hidden_published[-1], moves.hidden_refined[-1]
    shown = np.where(hidden, np.nan, add_totals(moves.counts.sum(axis=0)))
    names = [*(group_name(study, c, analysis.names) for c in moves.clusters), "all"]
    return pd.DataFrame(shown, columns=names).assign(ensemble=names)[["ensemble", *names]]


def site_table(analysis: Analysis, moves: Moves, same: pd.Series) -> pd.DataFrame:
    """How many patients moved at each site, and how certain the refined clusters are.

    `same` is the share of each site's patients with the same cluster by its own model.
    """
    patients = moves.counts.sum(axis=(1, 2))
    movers = patients - np.trace(moves.counts, axis1=1, axis2=2)
    table = pd.DataFrame(
        {
            "site": moves.sites,
            "patients": patients,
            "moved": movers,
            "probability": [analysis.certainty[s]["probability"].mean() for s in moves.sites],
            "share": movers / patients,
            "same by own model": same[moves.sites].to_numpy(),
        }
    )
    return table.assign(**{c: table[c].mask(moves.hidden_movers) for c in ("moved", "share")})


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


def accuracy_table(analysis: Analysis, truth: dict[str, Any]) -> pd.DataFrame:
    """Adjusted Rand indices with the true classes, at all sites and at each."""
    rows = []
    for name, part in (("ensemble", analysis.clusters), ("refined", analysis.refined_clusters)):
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
