"""Every number of patients of a cluster that a study shows, by where it is shown."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
from study_attack import count_of, number

Sizes = dict[tuple[str, str], dict[str, float]]


def collect_sizes(out: Path) -> Sizes:
    """{(site, cluster): {place: n}}; the site "all" is all of them together. NaN: not shown.

    Numbers of fewer than all patients of a cluster, such as those observed in a later quarter, are
    not among them.
    """
    sizes: Sizes = defaultdict(dict)
    headline = pd.read_csv(out / "tables/headline.csv").query("kind == 'share of'")
    sites = list(dict.fromkeys(headline["sites"]))
    for row in headline.itertuples(index=False):
        sizes[row.sites, number(row.group)]["headline"] = row.n
    view = "_ensemble" if (out / "figures/state_distribution_ensemble.csv").exists() else ""
    for name in ("state_distribution", "transitions", "lines", "frequencies", "representatives"):
        for row in pd.read_csv(out / f"figures/{name}{view}.csv").to_dict("records"):
            n = row.get("size", row.get("rounded_size", np.nan))
            sizes[row["site"].removesuffix(" sites"), number(row["group"])][f"figure {name}"] = n
    courses = pd.read_csv(out / f"figures/state_distribution{view}.csv")
    for row in courses[courses["time"] == courses["time"].iloc[0]].to_dict("records"):
        if not np.isnan(row["n"]):  # a small group has a size and no numbers by quarter
            site = row["site"].removesuffix(" sites")
            sizes[site, number(row["group"])]["first quarter"] = row["n"]
    follow_up = pd.read_csv(out / "tables/follow_up.csv")
    for row in follow_up.to_dict("records"):
        n = row[follow_up.columns[2]]
        if not np.isnan(n):
            site = row["site"].removesuffix(" sites")
            sizes[site, number(row["group"])]["who is observed"] = n
    clusters = pd.read_csv(out / "tables/clusters.csv")
    for cluster, n in zip(clusters["cluster"].astype(str), clusters["n"], strict=True):
        sizes["all" if view else sites[0], cluster]["clusters"] = n
    one = pd.read_csv(out / "tables/table_one.csv", dtype=str)
    for column in one.columns[2:]:
        site, group = column.split(", ", 1) if view else (sites[0], column)
        site = "all" if site == "all sites" else site
        if group != "all":
            n = count_of(one.loc[0, column])
            sizes[site, number(group)]["Table 1"] = n
    _of_several(out, sizes, view, sites)
    return dict(sizes)


def _of_several(out: Path, sizes: Sizes, view: str, sites: list[str]) -> None:
    """Tables that not every study has."""
    by_site, refined, excluded = (
        out / f"tables/{name}.csv"
        for name in ("clusters_by_site", "refined_sizes", "survival_excluded")
    )
    if by_site.exists():
        for row in pd.read_csv(by_site).itertuples(index=False):
            sizes[row.site, str(row.cluster)]["clusters by site"] = row.n
    if refined.exists():
        for row in pd.read_csv(refined).itertuples(index=False):
            sizes[row.site, number(row.group)]["refined"] = row.ensemble
    pooled = "all" if view else sites[0]
    if excluded.exists():
        for row in pd.read_csv(excluded).to_dict("records"):
            sizes[pooled, number(row["group"])]["survival"] = row["all"]
    if not view and (out / "tables/classification.csv").exists():
        for row in pd.read_csv(out / "tables/classification.csv").itertuples(index=False):
            sizes[pooled, number(row.assigned)]["classification"] = row.patients


def disagreeing(sizes: Sizes) -> dict[tuple[str, str], dict[str, float]]:
    """The clusters for which two different numbers are shown."""
    return {
        cluster: places
        for cluster, places in sizes.items()
        if len({n for n in places.values() if not np.isnan(n)}) > 1
    }
