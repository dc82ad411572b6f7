"""The headline numbers of a study, as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from font.metrics import compare_clusterings
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

DOUBTFUL = 0.6
"""A patient is called doubtful if the models of the cluster have less than this vote share."""

Unit = Literal["count", "share", "index"]


class Kind(StrEnum):
    """What a headline number is about; the value is its name in tables."""

    PATIENTS = "patients"
    DISTINCT = "distinct sequences"
    CLUSTERS = "number of groups"
    VOTES = "sites that chose this number"
    STABILITY = "share of resamples that chose this number"
    CONFIRMED = "fewest independent searches that reached a model's maximum"
    SIZE = "share of"
    VOTE_SHARE = "mean vote share"
    DOUBTFUL = "patients with a vote share below 0.6"
    DIFFERENCE = "site difference"
    APART = "difference of the sites' own chains"
    SHARED = "test of shared chains"
    TRUTH = "adjusted Rand index against the truth"


_UNITS: dict[Kind, Unit] = {
    Kind.STABILITY: "share",
    Kind.SIZE: "share",
    Kind.VOTE_SHARE: "share",
    Kind.DOUBTFUL: "share",
    Kind.DIFFERENCE: "index",
    Kind.APART: "index",
    Kind.SHARED: "index",
    Kind.TRUTH: "index",
}


@dataclass(frozen=True)
class Number:
    """One headline number. Fields that do not apply are "" or NaN.

    Parameters
    ----------
    kind : Kind
    value : float
        NaN if it rests on too few patients to be shown.
    sites : str
        A site ("MGB"), a pair ("MGB − VA"), or "all".
    group : str
        "cluster 1" and so on, for the size of a cluster.
    quantity, weighting : str
        Of a difference between sites: "transition" or "initial"; "plain" or "occupancy".
    membership : str
        The rule that groups the patients: "ensemble", "local", "MGB everywhere".
    debiased : float
        A difference between sites without the part that sampling adds.
    low, high : float
        Its 95 % interval, for differences of the sites' own chains.
    p_value : float
        Of the test that the sites share the chains of the clusters, adjusted for the number of
        pairs of sites; `value` is then its statistic.
    n_boot : int
        Number of bootstrap samples, or of simulated data sets, behind them.
    published : float
        The number of an earlier study.
    n : float
        Patients, for the size of a cluster.
    """

    kind: Kind
    value: float
    sites: str = ""
    group: str = ""
    quantity: str = ""
    weighting: str = ""
    membership: str = ""
    debiased: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_value: float = np.nan
    n_boot: int = 0
    published: float = np.nan
    n: float = np.nan

    @property
    def unit(self) -> Unit:
        return _UNITS.get(self.kind, "count")

    @property
    def label(self) -> str:
        """What a difference is of: "transition by occupancy"."""
        return f"{self.quantity} by occupancy" if self.weighting == "occupancy" else self.quantity

    @property
    def name(self) -> str:
        """The number's name for people, unlike that of any other number of the study."""
        first = f"{self.kind} {self.group}".rstrip()
        return ", ".join(filter(None, (first, self.label, self.membership, self.sites)))


def pick(numbers: Sequence[Number], kind: Kind, **fields: str) -> list[Number]:
    """The numbers of one kind, with these values of fields."""
    return [
        number
        for number in numbers
        if number.kind is kind and all(getattr(number, k) == v for k, v in fields.items())
    ]


def numbers_table(numbers: Sequence[Number]) -> pd.DataFrame:
    """One row per number: its name, its fields and its unit."""
    return pd.DataFrame([{"name": n.name, **asdict(n), "unit": n.unit} for n in numbers])


# --- computing ----------------------------------------------------------------------------


def headline(
    study: Study,
    analysis: Analysis,
    choice: pd.DataFrame | None,
    differences: SiteDifferences | None,
    shared: SharedChains | None = None,
) -> list[Number]:
    """All headline numbers of a study."""
    numbers, rounding = [], rounding_of(study, analysis.clusters)
    for site, data in analysis.sequences.items():
        counts: dict[Kind, float] = {Kind.PATIENTS: len(data), Kind.DISTINCT: data.n_distinct}
        if rounding is not None:
            counts[Kind.PATIENTS] = rounding(len(data), site)
            counts[Kind.DISTINCT] = rounding(data.n_distinct, site, EVERYONE, "distinct")
        numbers += [Number(kind, count, site) for kind, count in counts.items()]
    n_clusters = len({c for part in analysis.clusters.values() for c in part.unique()})
    numbers.append(Number(Kind.CLUSTERS, n_clusters))
    if choice is not None:
        sites, resamples = (part == n_clusters for part in votes(study, choice))
        numbers.append(Number(Kind.VOTES, int(sites.sum())))
        if len(resamples):
            numbers.append(Number(Kind.STABILITY, float(resamples.mean())))
    confirmed = min(model.n_replicated_ for model in analysis.models.values())
    numbers.append(Number(Kind.CONFIRMED, confirmed))
    numbers += _sizes(study, analysis.clusters, rounding)
    if analysis.ensemble is not None:
        vote_share = np.concatenate([part["vote_share"] for part in analysis.certainty.values()])
        numbers.append(Number(Kind.VOTE_SHARE, float(vote_share.mean())))
        doubtful = np.array([(vote_share < DOUBTFUL).sum(), (vote_share >= DOUBTFUL).sum()], float)
        if rounding is not None:
            kinds = ("doubtful", "not doubtful")
            doubtful[:] = [
                rounding(n, EVERYONE, EVERYONE, kind)
                for n, kind in zip(doubtful, kinds, strict=True)
            ]
        elif is_small(doubtful, study.privacy.min_count).any():
            doubtful[:] = np.nan
        numbers.append(Number(Kind.DOUBTFUL, float(doubtful[0] / max(doubtful.sum(), 1))))
    if differences is not None:
        numbers += [_difference(study, row) for row in differences.norms.to_dict("records")]
    if shared is not None:
        numbers += _shared(shared)
    numbers += compared_with_truth(study, analysis)
    if not hides(study.privacy.min_count):
        return numbers
    return [_coarse(number) for number in numbers]


def _coarse(number: Number) -> Number:
    """An index with three decimals, or a statistic with one: more would tell hidden counts."""
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
        n_boot=row["n_boot"],
        published=published_norm(study, row),
    )


def _shared(shared: SharedChains) -> Iterator[Number]:
    """The tests of shared chains, and how far the sites' own chains are apart."""
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
    truth = {
        site: read_truth(files.truth, analysis.sequences[site])
        for site, files in study.sites.items()
        if files.truth is not None
    }

    def index(true: Any, clusters: Any, sites: str, membership: str = "") -> Number:
        value = float(compare_clusterings(true, clusters)["adjusted_rand_index"])
        return Number(Kind.TRUTH, value, sites, membership=membership)

    ensemble = [index(true, analysis.clusters[site], site) for site, true in truth.items()]
    if not truth or analysis.ensemble is None:
        return ensemble
    true, clusters = (
        np.concatenate([part[site] for site in truth]) for part in (truth, analysis.clusters)
    )
    own = [index(true, analysis.local[site], site, "own model") for site, true in truth.items()]
    return [index(true, clusters, "all"), *ensemble, *own]
