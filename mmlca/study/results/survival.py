"""The time to an event by cluster at a site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.study import site_data
from mmlca.study.results.site import ALL_SITES, Column, Part, is_rounded
from mmlca.study.words import groups_word
from mmlca.tables.disclosure import few_digits
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.survival import (
    Cases,
    Survival,
    after_landmark,
    cox,
    hazard_ratios,
    log_rank,
    log_rank_scores,
    pooled_curves,
    read_cases,
    risk_table,
)

if TYPE_CHECKING:
    from mmlca.study.results.site import Results, SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding

UNESTIMABLE = (InputError, np.linalg.LinAlgError)
"""Errors of an analysis with too few patients, or without a finite solution."""
NO_ESTIMATE = (
    "left out: too few patients or events in a group, or no finite solution; the functions of the "
    "library give the reason inside the hospital."
)
YEAR = 365.25
_MONTH = YEAR / 12
_DIGITS = 3
_COMPETING = 2
_EXCLUDED = ["event", "competing", "left", "unknown", "included", "all"]
_HAZARDS = ["term", "group", "estimate", "se", "p_proportional", "events", "others"]


def landmark_of(study: Study) -> float:
    """Years from the first treatment to the landmark: the end of all windows, or later."""
    rules = study.outcomes
    days = study.rules.months * _MONTH if study.rules.days is None else study.rules.days
    window = study.rules.max_windows * days / YEAR
    if rules.landmark is not None and rules.landmark < window - 0.01:
        raise InputError(
            f"outcomes.landmark = {rules.landmark:g} years lies inside the windows that form the "
            f"{groups_word(study)} ({window:.2f} years), so that what happens in them would count "
            "twice; set it to their end or later, or leave it out."
        )
    return max(rules.landmark or 0.0, window)


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    if study.outcomes.event is None:
        return {}
    landmark = landmark_of(study)
    try:
        cases = _cases(study, patients)
    except UNESTIMABLE:
        return {}
    late, excluded = after_landmark(cases, landmark)
    made = {
        "survival": risk_table(late),
        "survival_scores": log_rank_scores(late),
        "survival_hazards": _hazards(late),
        "survival_excluded": excluded,
    }
    if patients.rounding is not None:
        made = _rounded(made, late, landmark, patients.rounding)
    hazards = made["survival_hazards"]
    of_group = hazards["group"].notna()
    made["survival_hazards"] = hazards.assign(term=hazards["term"].mask(of_group, None))
    if 1 not in late.levels:  # the others are compared with the first
        made["survival_hazards"] = made["survival_hazards"][~of_group]
    return {
        name: table.rename(columns={"group": "cluster", "other": "other_cluster"}).reindex(
            columns=list(PART.tables[name])
        )
        for name, table in made.items()
    }


def _cases(study: Study, patients: SitePatients) -> Cases:
    rules, known = study.outcomes, patients.sequences.patients
    frame = site_data.event_times(known, str(rules.event), rules.competing)
    columns = list(study.covariates.columns)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # patients left out are counted
        return read_cases(
            frame["time"],
            frame["event"],
            patients.groups[patients.first_view],
            None if rules.competing is None else _COMPETING,
            None,
            known[columns] if columns else None,
        )


def _rounded(
    exact: dict[str, pd.DataFrame], late: Cases, landmark: float, rounding: Rounding
) -> dict[str, pd.DataFrame]:
    """The same as they may leave the site."""
    full = Survival(
        pooled_curves([exact["survival"]], late.levels),
        log_rank([exact["survival_scores"]], late.levels),
        hazard_ratios(exact["survival_hazards"]),
        exact["survival_excluded"],
        landmark,
        bool((late.event == _COMPETING).any()),
    )
    shown = full.shown(rounding.unit, rounding)
    groups = [k for k, name in enumerate(late.levels) if name in set(shown.curves["group"])]
    scores = log_rank_scores(late.only(np.isin(late.group, groups)))
    names = ["excess", "covariance"]
    scores[names] = scores[names].astype(float).apply(few_digits, digits=_DIGITS)
    numbers = ["estimate", "se", "p_proportional"]
    hazards = exact["survival_hazards"].copy()
    hazards[numbers] = hazards[numbers].astype(float).apply(few_digits, digits=_DIGITS)
    hazards.loc[shown.hazards["hazard_ratio"].isna().to_numpy(), numbers] = np.nan
    hazards[["events", "others"]] = shown.hazards[["events", "others"]].to_numpy()
    return {
        "survival": shown.curves,
        "survival_scores": scores,
        "survival_hazards": hazards,
        "survival_excluded": shown.excluded,
    }


def _hazards(late: Cases) -> pd.DataFrame:
    """Cox regression of the groups with an event; empty without a solution."""
    with_event = np.isin(late.group, late.group[late.event == 1])
    nothing = pd.DataFrame(columns=_HAZARDS, dtype=object)
    try:
        return cox(late.only(with_event)) if with_event.any() else nothing
    except UNESTIMABLE:
        return nothing


_CLUSTER = Column("whole", "the cluster")
PART = Part(
    {
        "survival": {
            "cluster": _CLUSTER,
            "time": Column("number", "years since the landmark"),
            "at_risk": Column("count", "patients without an event until then"),
            "events": Column("count", "events at this time, or since the one before"),
            "competing": Column("count", "competing events; missing: `left` has them"),
            "left": Column("count", "patients whose follow-up ended"),
            "survival": Column(
                "number", "the share without the event; missing if counts are exact"
            ),
            "low": Column("number", "its 95 % interval"),
            "high": Column("number", "its 95 % interval"),
        },
        "survival_scores": {
            "first": Column("whole", "a cluster of a pair; missing: a test of all clusters"),
            "second": Column("whole", "the other cluster of the pair"),
            "cluster": _CLUSTER,
            "other_cluster": Column("whole", "another cluster of the test"),
            "excess": Column("number", "events of the cluster less those expected (log-rank)"),
            "covariance": Column("number", "covariance of the excesses of the two clusters"),
        },
        "survival_hazards": {
            "cluster": Column("whole", "a cluster, against the first; missing: a covariate"),
            "term": Column("text", "the covariate, or one of its levels; missing: a cluster"),
            "estimate": Column("number", "log hazard ratio (Cox)"),
            "se": Column("number", "its standard error"),
            "p_proportional": Column("number", "p-value of a change of the ratio with time"),
            "events": Column("count", "fewest patients with the event on a side of the comparison"),
            "others": Column("count", "fewest patients without it"),
        },
        "survival_excluded": {
            "cluster": _CLUSTER,
            "event": Column("count", "patients with the event before the landmark"),
            "competing": Column("count", "patients with a competing event before it"),
            "left": Column("count", "patients whose follow-up ended before it"),
            "unknown": Column("count", "patients without a time or a covariate"),
            "included": Column("count", "patients who reach the landmark"),
            "all": Column("count", "all patients"),
        },
    },
    make,
)


# --- all sites together -------------------------------------------------------------------


def survival_of(
    study: Study, results: Results, names: Mapping[Any, str], notes: list[str]
) -> dict[str, Any]:
    """Time from the landmark to the event, at all sites, tests stratified by site."""
    rounded = is_rounded(results)
    tables = {
        name: {site: _tables_of(result.tables[name]) for site, result in results.items()}
        for name in ("survival", "survival_scores", "survival_hazards", "survival_excluded")
    }
    risks = {s: t.drop(columns=["competing"] if rounded else ["survival", "low", "high"])
             for s, t in tables["survival"].items() if len(t)}  # fmt: skip
    excluded = pd.concat(tables["survival_excluded"].values(), ignore_index=True)
    happened = sum(float(t["events"].sum()) for t in risks.values())
    if not happened or excluded["group"].nunique() < 2:
        notes.append(f"Survival is {NO_ESTIMATE}")
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
        return pd.DataFrame(columns=["site", *_HAZARDS])
    table = pd.concat(parts, ignore_index=True)
    of_group = table["group"].notna()
    against = table["group"].map(names) + f" against {names[first]}"
    table["term"] = table["term"].where(~of_group, against)
    return table[["site", *_HAZARDS]]


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


def _tables_of(table: pd.DataFrame) -> pd.DataFrame:
    """A table of results with the names of columns that `mmlca.tables.survival` has."""
    table = table.rename(columns={"cluster": "group", "other_cluster": "other"})
    whole: dict[str, Any] = {
        name: pd.Series([None if pd.isna(v) else int(v) for v in table[name]], dtype=object)
        for name in ("group", "other", "first", "second")
        if name in table
    }
    return table.assign(**whole)
