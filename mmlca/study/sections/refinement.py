"""The items of the report about the refinement: those of the ensemble and refined, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.metrics import compare_clusterings, reliability
from mmlca.study.analysis import Analysis
from mmlca.study.findings import Findings
from mmlca.study.groups import same_as_own
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.site_data import read_truth
from mmlca.study.words import group_name, groups_word
from mmlca.tables.disclosure import (
    EVERYONE,
    Rounding,
    add_totals,
    hidden_cells,
    hidden_grid,
    hide,
    is_small,
)

if TYPE_CHECKING:
    from mmlca.study.settings import Study


def refined_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Sizes, who moved, differences between sites, and where the truth is known how right it is."""
    analysis, min_count = findings.analysis, study.privacy.min_count
    if analysis.refined is None:
        return
    rounding = rounding_of(study, analysis.clusters)
    moves, note = count_moves(analysis, min_count, rounding), count_note(study)
    groups = groups_word(study)
    rounds = analysis.refined.n_rounds_
    times = f"{rounds} round{'s' * (rounds != 1)} of exchange"
    nearly = " Refined sizes that differ from those of the ensemble by few patients are not shown."
    yield Item(
        "refined_sizes",
        "refined",
        f"Sizes of the {groups}, by the ensemble and refined",
        f"Patients of each site. The refined model ({times}) estimates the courses from all sites' "
        "patients together, and lets every site have its own proportions, which the last column "
        f"shows.{nearly * (rounding is None)} {note}".rstrip(),
        size_table(study, analysis, moves, rounding),
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
        site_table(analysis, moves, same_as_own(analysis, min_count, rounding)),
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
            reliability_table(analysis, truth, min_count, rounding),
            Plain(shares=("from", "to", "probability", "right", "se")),
        )


class Moves(NamedTuple):
    """Patients by site, published and refined cluster, as they may be shown; NaN where hidden.

    Parameters
    ----------
    sites : list of S names
    clusters : list of K numbers
    published, refined : (S + 1, K)
        Sizes of the clusters; the last row is all sites together.
    pairs : (K + 1, K + 1)
        Published and refined clusters at all sites together, with totals.
    patients, movers, share : (S,)
        Patients by site, how many of them moved, and their share.
    """

    sites: list[str]
    clusters: list[int]
    published: NDArray[np.float64]
    refined: NDArray[np.float64]
    pairs: NDArray[np.float64]
    patients: NDArray[np.float64]
    movers: NDArray[np.float64]
    share: NDArray[np.float64]


def count_moves(analysis: Analysis, min_count: int, rounding: Rounding | None = None) -> Moves:
    """Who moved, and one decision for all tables about what is shown of it.

    The tables are sums of the same numbers of patients by site, published and refined cluster,
    none of which shows itself; hidden one by one they would tell on each other. A refined size is
    hidden, too, where it differs by few patients from the published one. Published sizes show
    elsewhere, where they are not small. With a `rounding` of the published clusters nothing is
    hidden and all is rounded.
    """
    both = (analysis.clusters, analysis.refined_clusters)
    clusters = sorted({int(k) for part in both for own in part.values() for k in np.unique(own)})
    sites = list(analysis.clusters)
    tables = [pd.crosstab(*(np.asarray(part[site]) for part in both)) for site in sites]
    counts = np.stack([t.reindex(clusters, columns=clusters, fill_value=0) for t in tables])
    every = np.concatenate([counts, counts.sum(axis=0, keepdims=True)]).astype(float)
    published, refined, pairs = every.sum(axis=2), every.sum(axis=1), add_totals(every[-1])
    patients = every[:-1].sum(axis=(1, 2))
    movers = patients - np.trace(every[:-1], axis1=1, axis2=2)
    if rounding is not None:
        return _rounded_moves(analysis, sites, clusters, every, movers, rounding)
    hidden = _hidden_moves(counts, min_count)
    published[hidden[0]], refined[hidden[1]] = np.nan, np.nan
    pairs[:-1, :-1][hidden[2]], movers[hidden[3]] = np.nan, np.nan
    pairs[:-1, -1], pairs[-1, :-1] = published[-1], refined[-1]
    return Moves(sites, clusters, published, refined, pairs, patients, movers, movers / patients)


def _rounded_moves(
    analysis: Analysis,
    sites: list[str],
    clusters: list[int],
    every: NDArray[np.float64],
    movers: NDArray[np.float64],
    rounding: Rounding,
) -> Moves:
    """The numbers of `Moves` from rounded counts, named by the patients of both clusters."""
    after = rounding.of(analysis.refined_clusters)
    places = [*sites, EVERYONE]

    def sizes(counts: NDArray[np.float64], whose: Rounding) -> NDArray[np.float64]:
        rows = [
            [whose(n, site, k) for n, k in zip(row, clusters, strict=True)]
            for site, row in zip(places, counts, strict=True)
        ]
        return np.array(rows)

    published, refined = sizes(every.sum(axis=2), rounding), sizes(every.sum(axis=1), after)
    both = {s: _pair_names(analysis.clusters[s], analysis.refined_clusters[s]) for s in sites}
    movers_of = {s: part.map(lambda pair: pair[0] != pair[1]) for s, part in both.items()}
    pair, moves = rounding.of(both), rounding.of(movers_of)
    pairs = add_totals(
        [
            [
                pair.part(
                    every[-1, i, j], pair.key(EVERYONE, (a, b)), published[-1, i], refined[-1, j]
                )
                for j, b in enumerate(clusters)
            ]
            for i, a in enumerate(clusters)
        ]
    )
    pairs[:-1, -1], pairs[-1, :-1] = published[-1], refined[-1]
    pairs[-1, -1] = rounding(every[-1].sum())
    patients = every[:-1].sum(axis=(1, 2))
    moved = np.array([moves(n, s, True) for s, n in zip(sites, movers, strict=True)])
    stayed = [moves(n, s, False) for s, n in zip(sites, patients - movers, strict=True)]
    n = np.array([rounding(n, s) for s, n in zip(sites, patients, strict=True)])
    share = moved / np.where(moved + stayed > 0, moved + stayed, np.nan)
    return Moves(sites, clusters, published, refined, pairs, n, moved, share)


def _pair_names(published: pd.Series, refined: pd.Series) -> pd.Series:
    """Both clusters of each patient."""
    pairs = list(zip(published.astype(int), refined.astype(int), strict=True))
    return pd.Series(pairs, published.index, dtype=object)


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


def reliability_table(
    analysis: Analysis, truth: dict[str, Any], min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """`font.reliability` of the patients whose true class is known."""
    assert analysis.refined is not None
    member = np.concatenate([analysis.memberships[site].to_numpy() for site in truth])
    table = reliability(member, np.concatenate([np.asarray(truth[site]) for site in truth]))
    shown = hide(table, ["patients", "probability", "right", "se"], ["patients"], min_count)
    if rounding is not None:
        n = rounding.column(table, "patients", ["from"], "probability")
        shown = shown.round({"right": 2, "se": 2}).assign(patients=n)
    return shown


def _truth(study: Study, analysis: Analysis) -> dict[str, Any]:
    return {
        site: read_truth(files.truth, analysis.sequences[site])
        for site, files in study.sites.items()
        if files.truth is not None
    }
