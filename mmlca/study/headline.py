"""The headline numbers of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import compare_clusterings
from mmlca.study.numbers import DOUBTFUL, Kind, Number
from mmlca.study.release import rounding_of
from mmlca.study.site_data import read_truth
from mmlca.study.words import group_name
from mmlca.tables.clusters import shown_sizes
from mmlca.tables.disclosure import EVERYONE, Rounding, hides, is_small

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study
    from mmlca.tables.shared_chains import SharedChains
    from mmlca.tables.site_differences import SiteDifferences


def headline(
    study: Study,
    analysis: Analysis,
    choice: pd.DataFrame | None,
    differences: SiteDifferences | None,
    shared: SharedChains | None = None,
) -> list[Number]:
    """All headline numbers of a study."""
    rounding = rounding_of(study, analysis.clusters)
    n_clusters = len({c for part in analysis.clusters.values() for c in part.unique()})
    numbers = [*_patients(analysis, rounding), Number(Kind.CLUSTERS, n_clusters)]
    if choice is not None:
        sites, resamples = (part == n_clusters for part in votes(study, choice))
        numbers.append(Number(Kind.VOTES, int(sites.sum())))
        if len(resamples):
            numbers.append(Number(Kind.STABILITY, float(resamples.mean())))
    confirmed = min(model.n_replicated_ for model in analysis.models.values())
    numbers.append(Number(Kind.CONFIRMED, confirmed))
    numbers += _sizes(study, analysis.clusters, rounding)
    if analysis.ensemble is not None:
        numbers += _vote_shares(study, analysis, rounding)
    if differences is not None:
        numbers += [_difference(study, row) for row in differences.norms.to_dict("records")]
    if shared is not None:
        numbers += _shared(shared)
    numbers += compared_with_truth(study, analysis)
    return [_coarse(number) for number in numbers] if hides(study.privacy.min_count) else numbers


def _patients(analysis: Analysis, rounding: Rounding | None) -> Iterator[Number]:
    """The patients of each site, and their distinct sequences."""
    for site, data in analysis.sequences.items():
        patients, distinct = float(len(data)), float(data.n_distinct)
        if rounding is not None:
            patients = rounding(patients, site)
            distinct = rounding(distinct, site, EVERYONE, "distinct")
        yield Number(Kind.PATIENTS, patients, site)
        yield Number(Kind.DISTINCT, distinct, site)


def _vote_shares(study: Study, analysis: Analysis, rounding: Rounding | None) -> list[Number]:
    """The mean vote share, and the share of patients with a small one."""
    vote_share = np.concatenate([part["vote_share"] for part in analysis.certainty.values()])
    doubtful = float((vote_share < DOUBTFUL).sum())
    others = len(vote_share) - doubtful
    if rounding is not None:
        doubtful = rounding(doubtful, EVERYONE, EVERYONE, "doubtful")
        others = rounding(others, EVERYONE, EVERYONE, "not doubtful")
    elif is_small([doubtful, others], study.privacy.min_count).any():
        doubtful = np.nan
    return [
        Number(Kind.VOTE_SHARE, float(vote_share.mean())),
        Number(Kind.DOUBTFUL, doubtful / max(doubtful + others, 1)),
    ]


def _coarse(number: Number) -> Number:
    """An index with three decimals, or a statistic with one: more would reveal hidden counts."""
    indices = (Kind.DIFFERENCE, Kind.APART, Kind.TRUTH, Kind.VOTE_SHARE, Kind.STABILITY)
    if number.kind is Kind.SHARED:
        return replace(number, value=round(number.value, 1))
    if number.kind not in indices:
        return number
    names = ("value", "debiased", "low", "high")
    return replace(number, **{name: round(getattr(number, name), 3) for name in names})


def votes(study: Study, choice: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The number of classes that each site and each resample chose."""
    chosen = choice[choice["chosen"]].set_index("site")["classes"]
    of_site = chosen.index.isin(study.sites)
    return chosen[of_site], chosen[~of_site]


def _sizes(
    study: Study, clusters: Mapping[str, pd.Series], rounding: Rounding | None
) -> Iterator[Number]:
    sizes = shown_sizes(clusters, study.privacy.min_count, rounding)
    for site, part in clusters.items():
        every = sorted(part.unique())
        whole = len(part) if rounding is None else sizes.loc[site, every].sum()
        for cluster in every:
            n = float(sizes.at[site, cluster])
            share = n / whole if whole else np.nan
            yield Number(Kind.SIZE, share, site, group_name(study, cluster), n=n)


def _difference(study: Study, row: Mapping[str, Any]) -> Number:
    return Number(
        Kind.DIFFERENCE,
        row["norm"],
        row["sites"],
        quantity=row["quantity"],
        weighting=row["weighting"],
        membership=row["membership"],
        debiased=row["debiased"],
        published=published_norm(study, row),
    )


def _shared(shared: SharedChains) -> Iterator[Number]:
    """The tests of shared chains, and how far apart the sites' own chains are."""
    for row in shared.tests.to_dict("records"):
        p, n = row["p_holm"], shared.n
        yield Number(Kind.SHARED, row["statistic"], row["sites"], p_value=p, n_boot=n)
    for row in shared.norms.to_dict("records"):
        fields = ("sites", "quantity", "weighting", "debiased", "low", "high")
        yield Number(Kind.APART, row["norm"], n_boot=shared.n, **{f: row[f] for f in fields})


def published_norm(study: Study, row: Mapping[str, Any]) -> float:
    """The published counterpart of a row of `SiteDifferences.norms`; NaN if there is none."""
    if study.published is None or row["weighting"] != "plain":
        return np.nan
    value = getattr(study.published, f"{row['quantity']}_{row['membership']}", None)
    return np.nan if value is None else value


def compared_with_truth(study: Study, analysis: Analysis) -> list[Number]:
    """Adjusted Rand indices against the true classes, where a synthetic cohort has them."""
    truth = true_classes(study, analysis)

    def index(clusters: Mapping[str, Any], sites: list[str]) -> float:
        return agreement_with_truth(truth, clusters, sites)

    ensemble = [Number(Kind.TRUTH, index(analysis.clusters, [site]), site) for site in truth]
    if not truth or analysis.ensemble is None:
        return ensemble
    own = [
        Number(Kind.TRUTH, index(analysis.local, [site]), site, membership="own model")
        for site in truth
    ]
    return [Number(Kind.TRUTH, index(analysis.clusters, list(truth)), "all"), *ensemble, *own]


def agreement_with_truth(
    truth: Mapping[str, Any], clusters: Mapping[str, Any], sites: list[str]
) -> float:
    """Adjusted Rand index of clusters and true classes, for all patients of these sites."""
    pair = (np.concatenate([part[site] for site in sites]) for part in (truth, clusters))
    return float(compare_clusterings(*pair)["adjusted_rand_index"])


def true_classes(study: Study, analysis: Analysis) -> dict[str, Any]:
    """The true class of each patient of the sites that know it."""
    return {
        site: read_truth(files.truth, analysis.sequences[site])
        for site, files in study.sites.items()
        if files.truth is not None
    }
