"""How certain the clusters are, who moved when they were refined, and how right they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import adjusted_rand_index, reliability_counts, reliability_from
from mmlca.study import site_data
from mmlca.study.results.groups import matched_classes, pairs_of
from mmlca.study.results.site import (
    ENSEMBLE,
    OWN,
    REFINED,
    Column,
    Part,
    Results,
    is_rounded,
    stacked,
)
from mmlca.tables.disclosure import EVERYONE, few_digits, is_small, show_counts
from mmlca.tables.moves import Moves, count_moves, rounded_moves, share_alike

if TYPE_CHECKING:
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study


DOUBTFUL = 0.6
"""A patient is called doubtful if the models of the cluster have less than this vote share."""
_DIGITS = 3


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    tables = {"certainty": pd.DataFrame([_certainty(patients)], columns=list(_CERTAINTY))}
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
PART = Part(
    {
        "certainty": _CERTAINTY,
        "proportions": _PROPORTIONS,
        "truth": _TRUTH,
        "reliability": _RELIABILITY,
    },
    make,
)


# --- all sites together -----------------------------------------------------------------


def mean_of(results: Results, name: str) -> float:
    """The mean of a column of the table "certainty" over all patients."""
    table = _by_site(results)
    patients = table["patients"].where(table[name].notna())
    return float((table[name] * patients).sum() / patients.sum())


def doubtful_share(results: Results, min_count: int) -> float:
    """The share of patients with a small vote share; NaN if few have one, or few do not."""
    doubtful, clear = _by_site(results)[["doubtful", "clear"]].sum()
    if not is_rounded(results) and is_small([doubtful, clear], min_count).any():
        return np.nan
    return float(doubtful / max(doubtful + clear, 1))


def _by_site(results: Results) -> pd.DataFrame:
    patients = stacked(results, "about").set_index("site")["patients"]
    return stacked(results, "certainty").set_index("site").assign(patients=patients)


# --- refinement ---------------------------------------------------------------------------


def moves_of(results: Results, sizes: Mapping[str | None, pd.DataFrame], min_count: int) -> Moves:
    """Who moved from one cluster to another when the ensemble was refined.

    `sizes` are those of the clusters that the report shows, by view.
    """
    overlaps = stacked(results, "overlaps")
    pairs = overlaps[(overlaps["view"] == ENSEMBLE) & (overlaps["other"] == REFINED)]
    groups = stacked(results, "groups")
    clusters = sorted(
        {int(k) for k in groups.loc[groups["view"].isin([ENSEMBLE, REFINED]), "group"]}
    )
    grid = pd.MultiIndex.from_product([list(results), clusters, clusters])
    table = pairs.set_index(["site", "group", "other_group"])["patients"]
    shape = (len(results), len(clusters), len(clusters))
    counts = table.reindex(grid, fill_value=0.0).to_numpy().reshape(shape)
    if not is_rounded(results):
        return count_moves(list(results), clusters, counts, min_count)
    known = _by_site(results)[["patients", "moved", "stayed"]].to_numpy().T
    published, refined = (sizes[view][clusters] for view in (ENSEMBLE, REFINED))
    return rounded_moves(list(results), clusters, counts, published, refined, known)


def proportions_of(results: Results) -> pd.DataFrame:
    """The refined model's share of each cluster at each site, sites × clusters."""
    table = stacked(results, "proportions").astype({"group": int})
    return table.pivot(index="site", columns="group", values="proportion").loc[list(results)]


def same_as_own(results: Results, min_count: int) -> pd.Series:
    """Share of patients whose refined cluster is the one by their site's own model, and of "all".

    It does not need courses that the sites share, so it shows how far probabilities under such
    courses can be believed.
    """
    overlaps, matched = stacked(results, "overlaps"), matched_classes(results)
    pairs = overlaps[(overlaps["view"] == OWN) & (overlaps["other"] == REFINED)]
    cluster = [
        matched.get(site, {}).get(int(own), 0)
        for site, own in zip(pairs["site"], pairs["group"], strict=True)
    ]
    same = pairs["patients"].where(pairs["other_group"] == cluster, 0.0)
    counts = pairs.assign(same=same).groupby("site")[["same", "patients"]].sum()
    return share_alike(counts.reindex(list(results)), 0 if is_rounded(results) else min_count)


# --- the truth ----------------------------------------------------------------------------


def truth_indices(results: Results, view: str) -> dict[str, float]:
    """Adjusted Rand indices of the true classes and the groups of a view.

    At each site that knows the truth, and at "all" of these; empty if none does.
    """
    table = stacked(results, "truth")
    table = table[table["view"] == view]
    index = {str(site): _index(rows) for site, rows in table.groupby("site", sort=False)}
    return {"all": _index(table), **index} if index else {}


def _index(table: pd.DataFrame) -> float:
    counts = table.groupby(["group", "class"])["patients"].sum().unstack(fill_value=0.0)
    return float(adjusted_rand_index(counts))


def reliability_of(results: Results, min_count: int) -> pd.DataFrame | None:
    """`reliability_from` the patients whose true class is known; None if there are none."""
    counts = stacked(results, "reliability").rename(columns={"group": "cluster"})
    if not counts["patients"].sum():
        return None
    table = reliability_from(counts)
    if is_rounded(results):
        return table.round({"right": 2, "se": 2})
    return show_counts(
        table,
        {"patients": ["probability"]},
        min_count,
        beside=["probability", "right", "se"],
    )
