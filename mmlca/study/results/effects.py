"""Effects of covariates on membership, and outcomes by cluster, at a site."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.sequences.forms import PLAIN, Form
from mmlca.study import site_data
from mmlca.study.cache import report_warnings
from mmlca.study.results.site import ONLY, Column, Part, Results, is_rounded, stacked
from mmlca.study.results.survival import NO_ESTIMATE, UNESTIMABLE, survival_of
from mmlca.tables.cluster_effects import (
    INTERCEPT,
    Members,
    Outcome,
    hide_effects,
    hide_outcomes,
    one_step_effects,
    pool_outcome,
    rounded_effects,
    rounded_outcome,
    site_effects,
    site_members,
    site_outcome,
)
from mmlca.tables.disclosure import few_text, hides, is_small
from mmlca.tables.pooling import Z95, inverse_variance
from mmlca.tables.shared_chains import cluster_chains
from mmlca.tables.survival import Survival

if TYPE_CHECKING:
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in PART.tables}
    if study.covariates.columns or study.outcomes.columns:
        people = site_data.patients_of(study, patients.site, patients.sequences)
        members = members_of(study, patients)
        if study.covariates.columns:
            _effects(study, patients, members, people[list(study.covariates.columns)], rows)
        for name in study.outcomes.columns:
            _outcome(study, patients, members, people[name], rows)
    return {name: pd.DataFrame(found) for name, found in rows.items()}


def members_of(study: Study, patients: SitePatients) -> Members:
    """The clusters of the site's patients, and what their memberships follow from."""
    clusters = patients.groups[patients.first_view]
    if patients.first_view == ONLY:
        assert patients.own is not None
        return Members(clusters, patients.own, patients.sequences)
    if study.ensemble.refine == "converge" and patients.memberships is not None:
        posterior = patients.memberships.set_axis(
            np.arange(patients.memberships.shape[1]) + 1, axis=1
        )
        return Members(clusters, posterior)
    return site_members(patients.sequences, clusters, _form_of(patients))


def _form_of(patients: SitePatients) -> Form:
    return PLAIN if patients.own is None else patients.own.form


def _effects(
    study: Study,
    patients: SitePatients,
    members: Members,
    covariates: pd.DataFrame,
    rows: dict[str, list[dict[str, Any]]],
) -> None:
    rows["values_missing"].append(_missing(patients, None, covariates.isna().any(axis=1)))
    rules, min_count = study.covariates, study.privacy.min_count
    try:
        with _notes_into(rows["effect_notes"], None):
            if rules.method == "one-step":
                labels = sorted(members.clusters.unique())
                here = {patients.site: patients.sequences}
                found = one_step_effects(
                    patients.sequences,
                    covariates,
                    members.clusters,
                    cluster_chains(here, {patients.site: members.clusters}, _form_of(patients)),
                    labels,
                    prior=study.model.reported_prior,
                ).table
                if labels[0] != 1:
                    raise InputError("the site has no patients of cluster 1.")
                table = hide_effects(found, covariates, members.clusters, 1, min_count)
            else:
                table = site_effects(members, covariates, min_count, rules.correction)
    except UNESTIMABLE:
        return
    if patients.rounding is not None:
        table = rounded_effects(table, _draws(patients, table))
    rows["covariate_effects"] += table.rename(columns={"class": "cluster"}).to_dict("records")


def _draws(patients: SitePatients, table: pd.DataFrame) -> Any:
    """Uniform numbers of each effect and of its error, from the secret of the site."""
    rounding, site = patients.rounding, patients.site
    assert rounding is not None
    return np.array(
        [
            [
                rounding.uniform(rounding.key(site, k), "effect", term, what)
                for what in ("", "error")
            ]
            for k, term in zip(table["class"], table["term"], strict=True)
        ]
    ).reshape(-1, 2)


def _outcome(
    study: Study,
    patients: SitePatients,
    members: Members,
    values: pd.Series,
    rows: dict[str, list[dict[str, Any]]],
) -> None:
    name, rounding = str(values.name), patients.rounding
    rows["values_missing"].append(_missing(patients, name, values.isna()))
    if values.isna().all():
        return
    fewest = 1 if rounding is None else rounding.unit
    with _notes_into(rows["effect_notes"], name):
        found = site_outcome(members, values, fewest, study.outcomes.correction)
    if rounding is not None:
        found = rounded_outcome(found, members, values, patients.site, rounding)
    table = found.table.rename(columns={"class": "cluster"}).assign(outcome=name)
    rows["outcome_estimates"] += table.to_dict("records")
    cells = list(zip(table["cluster"], table["level"], strict=True))
    for i, (cluster, level) in enumerate(cells):
        for j, (other, other_level) in enumerate(cells[: i + 1]):
            key = {"outcome": name, "cluster": cluster, "level": level}
            key |= {"other_cluster": other, "other_level": other_level}
            rows["outcome_covariances"].append(key | {"covariance": found.covariance[i, j]})


def _missing(patients: SitePatients, about: str | None, missing: pd.Series) -> dict[str, Any]:
    """How many patients lack a value."""
    n, rounding = float(missing.sum()), patients.rounding
    if rounding is not None:
        n = rounding.named(n, rounding.key_of(missing.index[missing.to_numpy()]))
    return {"about": about, "patients": n}


@contextmanager
def _notes_into(notes: list[dict[str, Any]], about: str | None) -> Iterator[None]:
    """Warnings for the report become notes on a part of it.

    Other warnings of the libraries are of patients left out, who are counted where they may be.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        with report_warnings() as texts:
            yield
    notes += [{"about": about, "text": text} for text in texts]


_OUTCOME = Column("text", "the outcome: a column of the patients' table")
_CLUSTER = Column("whole", "the cluster")
_LEVEL = Column("text", "a category of the outcome; missing: its mean, of numbers")
PART = Part(
    {
        "covariate_effects": {
            "cluster": Column("whole", "the cluster, which is compared with the first"),
            "term": Column("text", "the covariate, or one of its levels"),
            "estimate": Column(
                "number", "log-odds; rounded at random to whole standard errors if counts are"
            ),
            "se": Column("number", "its standard error, with what rounding adds"),
        },
        "outcome_estimates": {
            "outcome": _OUTCOME,
            "cluster": _CLUSTER,
            "level": _LEVEL,
            "estimate": Column("number", "the mean, or the share of the category"),
            "patients": Column("count", "patients of the cluster with a value"),
            "cases": Column("count", "those in the category"),
        },
        "outcome_covariances": {
            "outcome": _OUTCOME,
            "cluster": _CLUSTER,
            "level": _LEVEL,
            "other_cluster": Column("whole", "the cluster of another estimate"),
            "other_level": Column("text", "the category of another estimate"),
            "covariance": Column("number", "the covariance of the two estimates"),
        },
        "values_missing": {
            "about": Column("text", "the outcome; missing: any covariate"),
            "patients": Column("count", "patients who lack a value"),
        },
        "effect_notes": {
            "about": Column("text", "the outcome; missing: the effects of covariates"),
            "text": Column("text", "what a reader should know of the estimates"),
        },
    },
    make,
)


# --- all sites together -----------------------------------------------------------------


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
    results: Results,
    names: Mapping[Any, str],
    hidden: Mapping[str, pd.DataFrame],
) -> Outcomes:
    """Everything of `[covariates]` and `[outcomes]`.

    `hidden` is what Table 1 says of outcomes that it shows too: `TableOne.hidden_together`.
    """
    notes, parts = list[str](), dict[str, Any]()
    if study.covariates.columns:
        parts |= _effects_of(study, results, names, notes)
    if study.outcomes.columns:
        parts |= _outcomes_of(study, results, names, hidden, notes)
    if study.outcomes.event is not None:
        parts |= survival_of(study, results, names, notes)
    return Outcomes(**parts, left_out=notes)


def _note_missing(
    study: Study,
    results: Results,
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


def _effects_of(
    study: Study, results: Results, names: Mapping[Any, str], notes: list[str]
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
            notes.append(f"The effects of the covariates at {site} are {NO_ESTIMATE}")
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


def _outcomes_of(
    study: Study,
    results: Results,
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
            notes.append(f"The outcome {name} is {NO_ESTIMATE}")
            continue
        notes += [f"The outcome {name} at {site} is {NO_ESTIMATE}" for site in without]
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


def _outcome_parts(results: Results, name: str) -> dict[str, Outcome]:
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


def _sizes(results: Results, names: Mapping[Any, str]) -> dict[Any, float]:
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
