"""How certain the clusters are, who moved when they were refined, and how right they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import reliability_counts
from mmlca.study import site_data
from mmlca.study.numbers import DOUBTFUL
from mmlca.study.results.overlaps import pairs_of
from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import ENSEMBLE, REFINED
from mmlca.tables.disclosure import EVERYONE, few_digits, is_small

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

_DIGITS = 3


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    tables = {name: pd.DataFrame(columns=list(columns)) for name, columns in _TABLES.items()}
    tables["certainty"] = pd.DataFrame([_certainty(patients)], columns=list(_CERTAINTY))
    if patients.memberships is not None:
        tables["proportions"] = _proportions(patients)
    place = study.sites[patients.site]
    if place.truth is not None:
        truth = site_data.read_truth(place.truth, patients.sequences)
        tables["truth"] = _truth(patients, truth)
        if patients.memberships is not None:
            tables["reliability"] = _reliability(patients, truth)
    return tables


def _certainty(patients: SitePatients) -> dict[str, float]:
    sure, n = patients.certainty, len(patients.sequences)
    row: dict[str, float] = {}
    if "vote_share" in sure:
        doubtful = int((sure["vote_share"] < DOUBTFUL).sum())
        row["vote_share"] = _mean(patients, sure["vote_share"])
        row["doubtful"] = patients.count(doubtful, "doubtful")
        row["clear"] = patients.count(n - doubtful, "not doubtful")
    if patients.memberships is not None:
        row["probability"] = _mean(patients, patients.memberships.max(axis=1))
    elif "probability" in sure:
        row["probability"] = _mean(patients, sure["probability"])
    if REFINED in patients.groups:
        moved = patients.groups[ENSEMBLE].to_numpy() != patients.groups[REFINED].to_numpy()
        labels = pd.Series(moved, patients.sequences.ids)
        draw = None if patients.rounding is None else patients.rounding.of({patients.site: labels})
        for name, value in (("moved", True), ("stayed", False)):
            count = float((labels == value).sum())
            row[name] = count if draw is None else draw(count, patients.site, value)
    return row


def _mean(patients: SitePatients, values: pd.Series) -> float:
    """The mean over all patients of the site; three digits where counts are rounded."""
    if patients.rounding is None:
        return float(values.mean())
    if is_small(len(values), patients.rounding.unit):
        return np.nan
    return float(few_digits([values.mean()], _DIGITS)[0])


def _proportions(patients: SitePatients) -> pd.DataFrame:
    """The mean probability of each cluster; of rounded numbers where counts are."""
    assert patients.memberships is not None
    expected = patients.memberships.to_numpy().sum(axis=0)
    numbers = range(1, len(expected) + 1)
    rounding = patients.rounding_of(REFINED)
    if rounding is not None:
        pairs = zip(expected, numbers, strict=True)
        expected = np.array([rounding(n, patients.site, k) for n, k in pairs])
    total = expected.sum()
    share = expected / total if total else np.full(len(expected), np.nan)
    return pd.DataFrame({"group": numbers, "proportion": share})


def _truth(patients: SitePatients, truth: pd.Series) -> pd.DataFrame:
    rows: list[list[Any]] = []
    names, codes = np.unique(truth.to_numpy(dtype=str), return_inverse=True)
    classes = pd.Series(codes, truth.index)
    for view, groups in patients.groups.items():
        for group, k, n in pairs_of(groups, classes, patients.site, patients.rounding):
            rows.append([view, group, names[k], n])
    return pd.DataFrame(rows, columns=list(_TRUTH))


def _reliability(patients: SitePatients, truth: pd.Series) -> pd.DataFrame:
    assert patients.memberships is not None
    table = reliability_counts(patients.memberships.to_numpy(), truth.to_numpy())
    table = table.rename(columns={"cluster": "group"}).assign(group=table["cluster"] + 1)
    rounding = patients.rounding
    if rounding is None:
        return table
    few = is_small(table["patients"], rounding.unit)
    cells = table[["patients", "from", "group", "class"]].itertuples(index=False)
    counts = [rounding(n, patients.site, EVERYONE, "probability", *cell) for n, *cell in cells]
    means = {
        name: np.where(few, np.nan, few_digits(table[name], _DIGITS))
        for name in ("probability", "variance")
    }
    return table.assign(patients=counts, **means)


_CERTAINTY = {
    "vote_share": Column("number", "mean share of the models' weight for the patients' clusters"),
    "doubtful": Column("count", f"patients with a vote share below {DOUBTFUL}"),
    "clear": Column("count", "the other patients"),
    "probability": Column("number", "mean probability of the patients' (refined) clusters"),
    "moved": Column("count", "patients whose refined cluster is not that of the ensemble"),
    "stayed": Column("count", "the other patients"),
}
_PROPORTIONS = {
    "group": Column("whole", "the number of a refined cluster"),
    "proportion": Column("number", "its share of the site's patients under the refined model"),
}
_TRUTH = {
    "view": Column("text", "the rule that groups the patients"),
    "group": Column("whole", "the number of a group"),
    "class": Column("text", "a class from which patients of a synthetic cohort were simulated"),
    "patients": Column("count", "patients in both"),
}
_RELIABILITY = {
    "from": Column("number", "lower bound of the probability of the refined cluster"),
    "to": Column("number", "its upper bound"),
    "group": Column("whole", "the number of the refined cluster"),
    "class": Column("text", "the class from which the patients were simulated"),
    "patients": Column("count", "patients with such a probability, cluster and class"),
    "probability": Column("number", "the mean of their probabilities p"),
    "variance": Column("number", "the mean of p(1 − p)"),
}
_TABLES = {
    "certainty": _CERTAINTY,
    "proportions": _PROPORTIONS,
    "truth": _TRUTH,
    "reliability": _RELIABILITY,
}
PART = Part(_TABLES, make)
