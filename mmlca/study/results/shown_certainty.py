"""How certain and how right the clusters are, put together from the results of sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.metrics import adjusted_rand_index, reliability_from
from mmlca.study.results.matching import matched_classes
from mmlca.study.results.patients import ENSEMBLE, OWN, REFINED
from mmlca.study.results.site import is_rounded, stacked
from mmlca.tables.disclosure import is_small, show_counts
from mmlca.tables.moves import Moves, count_moves, rounded_moves, share_alike

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults

Results = Mapping[str, "SiteResults"]


# --- certainty ----------------------------------------------------------------------------


def mean_of(results: Results, name: str) -> float:
    """The mean of a column of the table "certainty" over all patients."""
    table = _certainty(results)
    patients = table["patients"].where(table[name].notna())
    return float((table[name] * patients).sum() / patients.sum())


def doubtful_share(results: Results, min_count: int) -> float:
    """The share of patients with a small vote share; NaN if few have one, or few do not."""
    doubtful, clear = _certainty(results)[["doubtful", "clear"]].sum()
    if not is_rounded(results) and is_small([doubtful, clear], min_count).any():
        return np.nan
    return float(doubtful / max(doubtful + clear, 1))


def _certainty(results: Results) -> pd.DataFrame:
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
    known = _certainty(results)[["patients", "moved", "stayed"]].to_numpy().T
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
