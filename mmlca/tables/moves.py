"""Who moved from one cluster to another when an ensemble was refined."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.tables.disclosure import (
    EVERYONE,
    add_totals,
    hidden_cells,
    hidden_grid,
    is_small,
)

Floats = NDArray[np.float64]


class Moves(NamedTuple):
    """Patients by site, published and refined cluster, as they may be shown; NaN where hidden.

    `published` and `refined` are the sizes of the K `clusters` at the S `sites` and, last, at all
    sites together (S + 1, K). `pairs` are published and refined clusters at all sites, with totals
    (K + 1, K + 1). `patients`, `movers` and `share` (S,) are those of the sites, how many of them
    moved, and their share.
    """

    sites: list[str]
    clusters: list[int]
    published: Floats
    refined: Floats
    pairs: Floats
    patients: Floats
    movers: Floats
    share: Floats


def count_moves(sites: list[str], clusters: list[int], counts: Floats, min_count: int) -> Moves:
    """Who moved, and one decision for all tables about what is shown of it.

    `counts` (S, K, K) are patients by site, published and refined cluster. The tables are sums of
    the same numbers, none of which is shown by itself; hidden one by one, they would reveal each
    other. A refined size is hidden, too, where it differs by few patients from the published one.
    Published sizes are shown elsewhere, where they are not small.
    """
    every = np.concatenate([counts, counts.sum(axis=0, keepdims=True)])
    published, refined, pairs = every.sum(axis=2), every.sum(axis=1), add_totals(every[-1])
    patients = every[:-1].sum(axis=(1, 2))
    movers = patients - np.trace(every[:-1], axis1=1, axis2=2)
    hidden = _hidden_moves(counts, min_count)
    published[hidden[0]], refined[hidden[1]] = np.nan, np.nan
    pairs[:-1, :-1][hidden[2]], movers[hidden[3]] = np.nan, np.nan
    pairs[:-1, -1], pairs[-1, :-1] = published[-1], refined[-1]
    return Moves(sites, clusters, published, refined, pairs, patients, movers, movers / patients)


def rounded_moves(
    sites: list[str],
    clusters: list[int],
    counts: Floats,
    published: pd.DataFrame,
    refined: pd.DataFrame,
    patients: Floats,
) -> Moves:
    """The same from rounded numbers, of which nothing is hidden.

    `published` and `refined` are the sizes of the clusters, with a row for "all" sites; `patients`
    (3, S) are the patients of each site, those who moved, and those who stayed.
    """
    places = [*sites, EVERYONE]
    before, after = (sizes.loc[places].to_numpy(dtype=float) for sizes in (published, refined))
    pairs = add_totals(counts.sum(axis=0))
    pairs[:-1, -1], pairs[-1, :-1] = before[-1], after[-1]
    n, moved, stayed = patients
    pairs[-1, -1] = n.sum()
    share = moved / np.where(moved + stayed > 0, moved + stayed, np.nan)
    return Moves(sites, clusters, before, after, pairs, n, moved, share)


def _hidden_moves(counts: Floats, min_count: int) -> tuple[NDArray[np.bool_], ...]:
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


def share_alike(counts: pd.DataFrame, min_count: int) -> pd.Series:
    """Share of patients with the same cluster under two rules, by site and for "all".

    `counts` has a row per site: the patients with the `same` cluster, and all `patients`. Missing
    where few patients are, or are not, in the same cluster.
    """
    counts = counts.copy()
    counts.loc[EVERYONE] = counts.sum()
    same, others = counts["same"], counts["patients"] - counts["same"]
    few = pd.Series(is_small(same, min_count) | is_small(others, min_count), counts.index)
    few[EVERYONE] |= few.any()  # a site's number would follow
    return (same / counts["patients"].where(counts["patients"] > 0)).mask(few)
