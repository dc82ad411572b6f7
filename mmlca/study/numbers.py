"""The headline numbers of a study as records; see `headline` for how they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    pass

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
