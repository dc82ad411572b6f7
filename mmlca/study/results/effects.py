"""Effects of covariates on membership, and outcomes by cluster, at a site."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.study import site_data
from mmlca.study.log import report_warnings
from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import ONLY
from mmlca.tables.cluster_effects import (
    Members,
    hide_effects,
    one_step_effects,
    rounded_effects,
    rounded_outcome,
    site_effects,
    site_members,
    site_outcome,
)
from mmlca.tables.shared_chains import cluster_chains

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

UNESTIMABLE = (InputError, np.linalg.LinAlgError)
"""Errors of an analysis with too few patients, or without a finite solution."""


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in PART.tables}
    if study.covariates.columns or study.outcomes.columns:
        people = site_data.patients_of(study, patients.site, patients.sequences)
        members = _members(study, patients)
        if study.covariates.columns:
            _effects(study, patients, members, people[list(study.covariates.columns)], rows)
        for name in study.outcomes.columns:
            _outcome(study, patients, members, people[name], rows)
    return {name: pd.DataFrame(found, columns=list(PART.tables[name]))
            for name, found in rows.items()}  # fmt: skip


def _members(study: Study, patients: SitePatients) -> Members:
    clusters = patients.groups[patients.first_view]
    if patients.first_view == ONLY:
        assert patients.own is not None
        return Members(clusters, patients.own, patients.sequences)
    if study.ensemble.refine == "converge" and patients.memberships is not None:
        posterior = patients.memberships.set_axis(
            np.arange(patients.memberships.shape[1]) + 1, axis=1
        )
        return Members(clusters, posterior)
    return site_members(patients.sequences, clusters)


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
        with notes_into(rows["effect_notes"], None):
            if rules.method == "one-step":
                labels = sorted(members.clusters.unique())
                here = {patients.site: patients.sequences}
                found = one_step_effects(
                    patients.sequences,
                    covariates,
                    members.clusters,
                    cluster_chains(here, {patients.site: members.clusters}),
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
    with notes_into(rows["effect_notes"], name):
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
def notes_into(notes: list[dict[str, Any]], about: str | None) -> Iterator[None]:
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
