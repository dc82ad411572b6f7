"""Who moved from one cluster to another when an ensemble was refined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.tables.disclosure import (
    EVERYONE,
    Rounding,
    add_totals,
    hidden_cells,
    hidden_grid,
    is_small,
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


def count_moves(
    before: Mapping[str, pd.Series],
    after: Mapping[str, pd.Series],
    min_count: int,
    rounding: Rounding | None = None,
) -> Moves:
    """Who moved, and one decision for all tables about what is shown of it.

    The tables are sums of the same numbers of patients by site, published and refined cluster,
    none of which is shown by itself; hidden one by one, they would reveal each other. A refined
    size is hidden, too, where it differs by few patients from the published one. Published sizes
    are shown elsewhere, where they are not small. With a `rounding` of the published clusters
    nothing is hidden and all is rounded.

    Parameters
    ----------
    before, after : {site: cluster of each patient}
        By the ensemble as published, and refined.
    min_count : int
    rounding : Rounding of `before`, optional
    """
    both = (before, after)
    clusters = sorted({int(k) for part in both for own in part.values() for k in np.unique(own)})
    sites = list(before)
    tables = [pd.crosstab(*(np.asarray(part[site]) for part in both)) for site in sites]
    counts = np.stack([t.reindex(clusters, columns=clusters, fill_value=0) for t in tables])
    every = np.concatenate([counts, counts.sum(axis=0, keepdims=True)]).astype(float)
    published, refined, pairs = every.sum(axis=2), every.sum(axis=1), add_totals(every[-1])
    patients = every[:-1].sum(axis=(1, 2))
    movers = patients - np.trace(every[:-1], axis1=1, axis2=2)
    if rounding is not None:
        return _rounded_moves(both, clusters, every, movers, rounding)
    hidden = _hidden_moves(counts, min_count)
    published[hidden[0]], refined[hidden[1]] = np.nan, np.nan
    pairs[:-1, :-1][hidden[2]], movers[hidden[3]] = np.nan, np.nan
    pairs[:-1, -1], pairs[-1, :-1] = published[-1], refined[-1]
    return Moves(sites, clusters, published, refined, pairs, patients, movers, movers / patients)


def _rounded_moves(
    both: tuple[Mapping[str, pd.Series], Mapping[str, pd.Series]],
    clusters: list[int],
    every: NDArray[np.float64],
    movers: NDArray[np.float64],
    rounding: Rounding,
) -> Moves:
    """The numbers of `Moves` from rounded counts, named by the patients of both clusters."""
    before, after = both
    refined_rounding, sites = rounding.of(after), list(before)
    places = [*sites, EVERYONE]

    def sizes(counts: NDArray[np.float64], whose: Rounding) -> NDArray[np.float64]:
        rows = [
            [whose(n, site, k) for n, k in zip(row, clusters, strict=True)]
            for site, row in zip(places, counts, strict=True)
        ]
        return np.array(rows)

    published, refined = (
        sizes(every.sum(axis=2), rounding),
        sizes(every.sum(axis=1), refined_rounding),
    )
    named = {site: _pair_names(before[site], after[site]) for site in sites}
    movers_of = {s: part.map(lambda pair: pair[0] != pair[1]) for s, part in named.items()}
    pair, moves = rounding.of(named), rounding.of(movers_of)
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


def share_alike(
    clusters: Mapping[str, pd.Series],
    others: Mapping[str, pd.Series],
    min_count: int,
    rounding: Rounding | None = None,
) -> pd.Series:
    """Share of patients with the same cluster under two memberships, by site and for "all".

    Missing where few patients are, or are not, in the same cluster; with a `rounding` it is that of
    the rounded numbers.
    """
    alike = {
        site: pd.Series(part.to_numpy() == others[site].to_numpy(), part.index)
        for site, part in clusters.items()
    }
    if rounding is not None:
        counts = {site: [part.sum(), (~part).sum()] for site, part in alike.items()}
        counts[EVERYONE] = list(np.sum(list(counts.values()), axis=0))
        drawn = rounding.of(alike)
        shown = {
            site: [drawn(n, site, is_same) for n, is_same in zip(pair, (True, False), strict=True)]
            for site, pair in counts.items()
        }
        return pd.Series({s: a / (a + b) if a + b else np.nan for s, (a, b) in shown.items()})
    same = pd.DataFrame({s: [p.sum(), len(p)] for s, p in alike.items()}, ["same", "patients"]).T
    same.loc["all"] = same.sum()
    few = is_small(same["same"], min_count) | is_small(same["patients"] - same["same"], min_count)
    few = pd.Series(np.asarray(few), same.index)
    few["all"] |= few.any()  # a site's number would follow
    return (same["same"] / same["patients"]).mask(few)
