"""What follows from the clusters: effects of covariates, outcomes and the time to an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.site import is_rounded, stacked
from mmlca.study.results.survival import landmark_of, tables_of
from mmlca.tables.cluster_effects import INTERCEPT, Outcome, hide_outcomes, pool_outcome
from mmlca.tables.disclosure import few_text, hides, is_small
from mmlca.tables.pooling import Z95, inverse_variance
from mmlca.tables.survival import Survival, hazard_ratios, log_rank, pooled_curves

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study

ALL_SITES = "all sites"
_NO_ESTIMATE = (
    "left out: too few patients or events in a group, or no finite solution; the functions of the "
    "library give the reason inside the hospital."
)
_EXCLUDED = ["event", "competing", "left", "unknown", "included", "all"]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What follows from the clusters, as the release shows it; None: the study does not ask for it.

    Parameters
    ----------
    effects, pooled : DataFrame
        Effects of covariates on membership by site, and over all sites.
    outcomes, tests, differences : DataFrame
        Outcomes by cluster at all sites, their tests, and the differences between clusters within
        sites, pooled.
    survival : Survival
        Of all sites; the hazards are those of each site.
    hazards : DataFrame
        Hazard ratios over all sites.
    left_out : list of str
        Sentences on what could not be estimated.
    """

    effects: pd.DataFrame | None = None
    pooled: pd.DataFrame | None = None
    outcomes: pd.DataFrame | None = None
    tests: pd.DataFrame | None = None
    differences: pd.DataFrame | None = None
    survival: Survival | None = None
    hazards: pd.DataFrame | None = None
    left_out: list[str] = field(default_factory=list)


def outcomes_of(
    study: Study,
    results: Mapping[str, SiteResults],
    names: Mapping[Any, str],
    hidden: Mapping[str, pd.DataFrame],
) -> Outcomes:
    """Everything of `[covariates]` and `[outcomes]`.

    Parameters
    ----------
    names : {cluster: name}
    hidden : {outcome: DataFrame}
        What Table 1 says of outcomes that it shows too: `TableOne.hidden_together`.
    """
    notes, parts = list[str](), dict[str, Any]()
    if study.covariates.columns:
        parts |= _effects(study, results, names, notes)
    if study.outcomes.columns:
        parts |= _outcomes(study, results, names, hidden, notes)
    if study.outcomes.event is not None:
        parts |= _survival(study, results, names, notes)
    return Outcomes(**parts, left_out=notes)


def _note_missing(
    study: Study,
    results: Mapping[str, SiteResults],
    what: str,
    missing: pd.Series,
    notes: list[str],
) -> None:
    """Say how many patients lack a value."""
    n, min_count = float(missing.sum()), study.privacy.min_count
    if not n:
        return
    shown = f"{n:,.0f}"
    if is_rounded(results):
        shown = f"about {shown}"
    elif hides(min_count):  # the exact number would reveal what Table 1 hides
        shown = few_text(min_count) if is_small(n, min_count) else f"at least {min_count}"
    notes.append(f"Patients who lack {what} are left out of what concerns it ({shown}).")


def _about(table: pd.DataFrame, name: str | None) -> pd.DataFrame:
    return table[table["about"].isna() if name is None else table["about"] == name]


# --- covariates -----------------------------------------------------------------------------


def _effects(
    study: Study, results: Mapping[str, SiteResults], names: Mapping[Any, str], notes: list[str]
) -> dict[str, Any]:
    """Log-odds of each cluster against the first, by site and together."""
    missing = _about(stacked(results, "values_missing"), None)
    texts = _about(stacked(results, "effect_notes"), None)
    every, shown = stacked(results, "covariate_effects"), {}
    for site in results:
        here = missing.loc[missing["site"] == site, "patients"]
        _note_missing(study, results, f"a covariate at {site}", here, notes)
        said = texts.loc[texts["site"] == site, "text"]
        notes += [f"Effects of the covariates at {site}: {text}" for text in said]
        table = every[every["site"] == site]
        if not len(table):
            notes.append(f"The effects of the covariates at {site} are {_NO_ESTIMATE}")
            continue
        shown[site] = table.assign(
            **{"class": table["cluster"].map(names)},
            low=table["estimate"] - Z95 * table["se"],
            high=table["estimate"] + Z95 * table["se"],
        )[["site", "class", "term", "estimate", "se", "low", "high"]]
    if not shown:
        return {}
    pooled = None
    if len(shown) > 1:  # an intercept says how common a cluster is at a site
        slopes = {site: table[table["term"] != INTERCEPT] for site, table in shown.items()}
        pooled = inverse_variance(slopes)
    return {"effects": pd.concat(shown.values(), ignore_index=True), "pooled": pooled}


# --- outcomes -------------------------------------------------------------------------------


def _outcomes(
    study: Study,
    results: Mapping[str, SiteResults],
    names: Mapping[Any, str],
    hidden: Mapping[str, pd.DataFrame],
    notes: list[str],
) -> dict[str, Any]:
    """Every outcome by cluster at all sites, its tests, and the differences within sites."""
    missing, texts = (stacked(results, n) for n in ("values_missing", "effect_notes"))
    sizes = _sizes(results, names)
    tables: dict[str, list[pd.DataFrame]] = {"outcomes": [], "tests": [], "differences": []}
    for name in study.outcomes.columns:
        lacking = _about(missing, name)["patients"]
        _note_missing(study, results, f"the outcome {name}", lacking, notes)
        said = _about(texts, name)
        for site, text in zip(said["site"], said["text"], strict=True):
            notes.append(f"Outcome {name}{f' at {site}' if len(results) > 1 else ''}: {text}")
        parts = _outcome_parts(results, name)
        without = [site for site, part in parts.items() if part.table["estimate"].isna().all()]
        if len(without) == len(parts):
            notes.append(f"The outcome {name} is {_NO_ESTIMATE}")
            continue
        notes += [f"The outcome {name} at {site} is {_NO_ESTIMATE}" for site in without]
        pooled = pool_outcome(parts, names)
        min_count = 0 if is_rounded(results) else study.privacy.min_count
        known = _hidden_levels(hidden.get(name), pooled.table)
        table, tests = hide_outcomes(pooled.table, pooled.tests, sizes, min_count, known)
        _, differences = hide_outcomes(pooled.table, pooled.differences, sizes, min_count, known)
        for key, part in zip(tables, (table, tests, differences), strict=True):
            tables[key].append(part.assign(outcome=name)[["outcome", *part]])
    if not tables["outcomes"]:
        return {}
    found = {key: pd.concat(parts, ignore_index=True) for key, parts in tables.items()}
    return found if len(found["differences"]) else found | {"differences": None}


def _outcome_parts(results: Mapping[str, SiteResults], name: str) -> dict[str, Outcome]:
    """The estimates of an outcome at each site that has values of it."""
    parts = {}
    for site, result in results.items():
        table = result.tables["outcome_estimates"]
        table = table[table["outcome"] == name].reset_index(drop=True)
        if not len(table):
            continue
        cells = zip(table["cluster"], table["level"], strict=True)
        place = {cell: i for i, cell in enumerate(cells)}
        spread = result.tables["outcome_covariances"]
        covariance = np.full((len(table), len(table)), np.nan)
        for row in spread[spread["outcome"] == name].itertuples(index=False):
            i, j = place[row.cluster, row.level], place[row.other_cluster, row.other_level]
            covariance[i, j] = covariance[j, i] = row.covariance
        parts[site] = Outcome(table.rename(columns={"cluster": "class"}), covariance)
    return parts


def _sizes(results: Mapping[str, SiteResults], names: Mapping[Any, str]) -> dict[Any, float]:
    """Patients of each cluster at all sites."""
    counts = stacked(results, "table_one_counts")
    sizes = counts[(counts["row"] == "size") & counts["group"].notna()]
    totals = sizes.groupby(sizes["group"].map(names))["count"].sum()
    return {str(name): float(n) for name, n in totals.items()}


def _hidden_levels(mask: pd.DataFrame | None, table: pd.DataFrame) -> set[tuple[str, str]]:
    """The clusters and levels of an outcome whose numbers Table 1 hides, or must."""
    if mask is None:
        return set()
    return {
        (name, _plain(level))
        for name in table["class"].unique()
        if name in mask
        for level in mask.index[mask[name]]
    }


def _plain(level: object) -> str:
    """A level of Table 1 as outcomes name it: a number without needless decimals."""
    try:
        return f"{float(str(level)):g}"
    except ValueError:
        return str(level)


# --- survival -------------------------------------------------------------------------------


def _survival(
    study: Study, results: Mapping[str, SiteResults], names: Mapping[Any, str], notes: list[str]
) -> dict[str, Any]:
    """Time from the landmark to the event, at all sites, tests stratified by site."""
    rounded = is_rounded(results)
    tables = {
        name: {site: tables_of(result.tables[name]) for site, result in results.items()}
        for name in ("survival", "survival_scores", "survival_hazards", "survival_excluded")
    }
    risks = {s: t.drop(columns=["competing"] if rounded else ["survival", "low", "high"])
             for s, t in tables["survival"].items() if len(t)}  # fmt: skip
    excluded = pd.concat(tables["survival_excluded"].values(), ignore_index=True)
    happened = sum(float(t["events"].sum()) for t in risks.values())
    if not happened or excluded["group"].nunique() < 2:
        notes.append(f"Survival is {_NO_ESTIMATE}")
        return {}
    groups = sorted(excluded["group"].unique())
    curves = pooled_curves(list(risks.values()), groups)
    if rounded and len(results) > 1:
        by_site = [pooled_curves([t], groups).assign(site=site) for site, t in risks.items()]
        curves = pd.concat([*by_site, curves.assign(site=ALL_SITES)], ignore_index=True)
        curves = curves[["site", *curves.columns.drop("site")]]
    hazards = _site_hazards(tables["survival_hazards"], names, groups[0])
    full = Survival(
        curves,
        log_rank([t for t in tables["survival_scores"].values() if len(t)], groups),
        hazard_ratios(hazards),
        excluded.groupby("group", sort=True)[_EXCLUDED].sum().reset_index(),
        landmark_of(study),
        study.outcomes.competing is not None,
    )
    shown = full if rounded else full.shown(study.privacy.min_count)
    several = len(results) > 1
    pooled = None
    if several:
        visible = hazards[shown.hazards["hazard_ratio"].notna().to_numpy()]
        pooled = _pooled_hazards(visible)
    return {"survival": _named(shown, names, several), "hazards": pooled}


def _site_hazards(
    tables: Mapping[str, pd.DataFrame], names: Mapping[Any, str], first: Any
) -> pd.DataFrame:
    """Log hazard ratios at each site; terms of clusters have their names."""
    parts = [table.assign(site=site) for site, table in tables.items() if len(table)]
    if not parts:
        return pd.DataFrame(
            columns=[
                "site",
                "term",
                "group",
                "estimate",
                "se",
                "p_proportional",
                "events",
                "others",
            ]
        )
    table = pd.concat(parts, ignore_index=True)
    of_group = table["group"].notna()
    against = table["group"].map(names) + f" against {names[first]}"
    table["term"] = table["term"].where(~of_group, against)
    return table[["site", "term", "group", "estimate", "se", "p_proportional", "events", "others"]]


def _pooled_hazards(hazards: pd.DataFrame) -> pd.DataFrame | None:
    """Hazard ratios over all sites."""
    if not len(hazards):
        return None
    tables = {str(site): rows for site, rows in hazards.groupby("site", sort=False)}
    pooled = inverse_variance(tables, ("term",))
    ratios = ["estimate", "low", "high", "random", "random_low", "random_high"]
    pooled[ratios] = np.exp(pooled[ratios])
    pooled = pooled.rename(columns={"estimate": "hazard_ratio"})
    return pooled.drop(columns=["se", "random_se", "tau2"])


def _named(found: Survival, names: Mapping[Any, str], several: bool) -> Survival:
    tests = found.tests.assign(
        test=[
            "all groups equal" if i == 0 else " and ".join(names[k] for k in pair)
            for i, pair in enumerate(found.tests["pair"])
        ]
    )
    hazards = found.hazards
    if several:
        hazards = hazards.drop(columns=["events", "others"])
    else:
        hazards = hazards.drop(columns="site")
    return Survival(
        found.curves.assign(group=found.curves["group"].map(names)),
        tests,
        hazards,
        found.excluded.assign(group=found.excluded["group"].map(names)),
        found.landmark,
        found.competing,
    )
