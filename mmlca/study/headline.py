"""The headline numbers of a study: as records, and how they are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from mmlca.study.results.certainty import doubtful_share, mean_of, truth_indices
from mmlca.study.results.site import ENSEMBLE, ONLY, OWN, stacked
from mmlca.study.words import group_name
from mmlca.tables.disclosure import EVERYONE, hides

if TYPE_CHECKING:
    from mmlca.study.combined import Combined
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study
    from mmlca.tables.shared_chains import SharedChains
    from mmlca.tables.site_differences import SiteDifferences


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
        NaN if it is based on too few patients to be shown.
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
        Number of simulated data sets that the interval or test rests on.
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
        """The number's name for people, unique within the study."""
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


# --- how they are computed --------------------------------------------------------------


def headline(
    study: Study,
    combined: Combined,
    results: Mapping[str, SiteResults],
    sizes: Mapping[str | None, pd.DataFrame],
    choice: pd.DataFrame | None,
    differences: SiteDifferences | None,
    replicated: float,
) -> list[Number]:
    """All headline numbers of a study.

    `sizes` are those of the groups that the report shows, by view; `replicated` is the fewest
    searches that reached the maximum of a model.
    """
    numbers = [*_patients(results), Number(Kind.CLUSTERS, combined.n_groups)]
    if choice is not None and study.classes.number == "vote":
        sites, resamples = (part == combined.n_groups for part in votes(study, choice))
        numbers.append(Number(Kind.VOTES, int(sites.sum())))
        if len(resamples):
            numbers.append(Number(Kind.STABILITY, float(resamples.mean())))
    numbers.append(Number(Kind.CONFIRMED, replicated))
    view = ONLY if combined.ensemble is None else ENSEMBLE
    numbers += _sizes(study, results, sizes[view or None])
    if combined.ensemble is not None:
        doubtful = doubtful_share(results, study.privacy.min_count)
        numbers.append(Number(Kind.VOTE_SHARE, mean_of(results, "vote_share")))
        numbers.append(Number(Kind.DOUBTFUL, doubtful))
    if differences is not None:
        numbers += [_difference(study, row) for row in differences.norms.to_dict("records")]
    if combined.shared is not None:
        numbers += _shared(combined.shared)
    numbers += _compared_with_truth(results, view)
    return [_coarse(number) for number in numbers] if hides(study.privacy.min_count) else numbers


def _patients(results: Mapping[str, SiteResults]) -> Iterator[Number]:
    """The patients of each site, and their distinct sequences."""
    for row in stacked(results, "about").itertuples(index=False):
        yield Number(Kind.PATIENTS, row.patients, row.site)
        yield Number(Kind.DISTINCT, row.distinct, row.site)


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
    study: Study, results: Mapping[str, SiteResults], sizes: pd.DataFrame
) -> Iterator[Number]:
    clusters = [cluster for cluster in sizes if cluster != EVERYONE]
    for site, result in results.items():
        own = sizes.loc[site, clusters]
        whole = own.sum() if result.rounded else result.tables["about"]["patients"].item()
        for cluster, n in own.items():
            share = n / whole if whole else np.nan
            yield Number(Kind.SIZE, share, site, group_name(study, cluster), n=float(n))


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


def _compared_with_truth(results: Mapping[str, SiteResults], view: str) -> list[Number]:
    """Adjusted Rand indices against the true classes, where a synthetic cohort has them."""
    index = truth_indices(results, view)
    if view == ONLY:
        index.pop(EVERYONE, None)
    clusters = [Number(Kind.TRUTH, value, place) for place, value in index.items()]
    return clusters + [
        Number(Kind.TRUTH, value, place, membership="own model")
        for place, value in truth_indices(results, OWN).items()
        if place != EVERYONE
    ]
