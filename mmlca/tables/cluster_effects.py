"""Outcomes and covariates of clusters at several sites: effects, and small numbers.

The memberships of an ensemble's clusters come from `mmlca.tables.cluster_chains`;
`mmlca.three_step` takes them with the clusters as the assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from font.errors import InputError
from font.probabilities import PRIOR_OF_FITS, PRIOR_OF_MEMBERSHIPS, probabilities
from mmlca.model.covariates import complete, learn
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.outcomes import Correction, ThreeStep, design, three_step
from mmlca.model.params import MarkovParams
from mmlca.sequences.type import Sequences
from mmlca.tables.cluster_chains import open_cells
from mmlca.tables.disclosure import hidden_parts, hide_rows, is_small

_Z95 = 1.959963984540054


# --- covariates inside the model ------------------------------------------------------------


class OneStep(NamedTuple):
    """Effects of covariates estimated together with the chains.

    `table`: `class`, `term`, `estimate`, `se`, `low`, `high`, log-odds against the first class;
    `covariance` of its rows.
    """

    table: pd.DataFrame
    covariance: NDArray[np.float64]


def one_step_effects(
    sequences: Sequences,
    covariates: pd.DataFrame,
    clusters: pd.Series,
    chains: MarkovParams,
    labels: Sequence[Hashable],
    *,
    prior: float = PRIOR_OF_FITS,
) -> OneStep:
    """Effects of covariates on membership, with the model estimated anew from the clusters' chains.

    The mixture is fitted to the site's patients with the covariates in it, in one run from
    `chains`; its classes are then paired with the clusters by the patients they share.

    Parameters
    ----------
    sequences : Sequences of one site
    covariates : DataFrame by id
        Patients who lack a value are left out.
    clusters : Series by id
        Each patient's cluster, one of `labels`.
    chains : MarkovParams
        Of the clusters, in the order of `labels`; see `cluster_chains`.
    labels : names of the clusters; the first is the reference
    prior : as in `MixtureMarkov`
    """
    start = open_cells(chains, sequences)
    model = MixtureMarkov(len(labels), init=start, prior=prior, missing="drop")
    model.fit(sequences, covariates=covariates)
    paired = clusters.reindex(model.posterior_["id"])
    overlap = np.zeros((len(labels), len(labels)))
    np.add.at(overlap, (pd.Index(labels).get_indexer(paired), model.labels_), 1.0)
    order = linear_sum_assignment(-overlap)[1]  # the class that corresponds to each cluster
    terms = list(model.coefficients_.index)
    spread = model.coefficient_covariance(sequences, covariates).to_numpy()
    # log-odds against the class of the first cluster: differences of those against class 1
    pick = (np.eye(len(labels))[order[1:]] - np.eye(len(labels))[order[0]])[:, 1:]
    change = np.kron(pick, np.eye(len(terms)))
    estimate = change @ model.coefficients_.to_numpy()[:, 1:].T.ravel()
    covariance = change @ spread @ change.T
    se = np.sqrt(np.diagonal(covariance))
    table = pd.DataFrame(
        {
            "class": np.repeat(np.array(labels[1:], dtype=object), len(terms)),
            "term": ["intercept", *terms[1:]] * (len(labels) - 1),
            "estimate": estimate,
            "se": se,
            "low": estimate - _Z95 * se,
            "high": estimate + _Z95 * se,
        }
    )
    return OneStep(table, covariance)


# --- what a site sends ----------------------------------------------------------------------


class SiteEffects(NamedTuple):
    """Effects at one site, with what decides whether they may leave it.

    `table`: `cluster` (from 0), `term`, `estimate`; `covariance` of its rows; `columns` (n, q) of
    the covariates and `clusters` (n,) of the patients used; `variables`: {name: levels}.
    """

    table: pd.DataFrame
    covariance: NDArray[np.float64]
    columns: NDArray[np.float64]
    clusters: NDArray[np.intp]
    variables: dict[str, tuple[str, ...] | None]


def site_effects(
    posterior: NDArray[np.float64],
    clusters: NDArray[np.intp],
    covariates: pd.DataFrame,
    min_count: int,
    correction: Correction = "ML",
) -> SiteEffects:
    """Effects of covariates on membership in the clusters, for one site's effects file.

    Clusters with fewer than `min_count` patients at the site are left out, with their patients.

    Parameters
    ----------
    posterior : (n, K)
        Each patient's probability of each cluster.
    clusters : (n,)
        Each patient's cluster, from 0.
    covariates : DataFrame, one row per patient in the same order
        Patients who lack a value are left out.
    min_count : int
    correction : as in `mmlca.three_step`
    """
    known = complete(covariates, None)
    if not known.any():
        raise InputError("no patient has all covariates; leave out those that are mostly missing.")
    sizes = np.bincount(clusters[known], minlength=posterior.shape[1])
    kept = np.flatnonzero((sizes > 0) & ~is_small(sizes, min_count))
    if 0 not in kept or len(kept) < 2:
        where = "cluster 1" if 0 not in kept else "all other clusters"
        raise InputError(
            f"effects compare clusters with cluster 1, and fewer than {min_count} patients of "
            f"{where} have covariates at this site, so that no effect may leave."
        )
    used = known & np.isin(clusters, kept)
    frame = covariates[used].reset_index(drop=True)
    p = probabilities(posterior[used][:, kept], PRIOR_OF_MEMBERSHIPS)
    rules = learn(frame, None, np.ones(len(frame)))
    result = three_step(
        pd.DataFrame(p, columns=kept),
        covariates=frame,
        correction=correction,
        assignment=clusters[used],
    )
    table = pd.DataFrame(
        {
            "cluster": result["class"].to_numpy(int),
            "term": rules.columns * (len(kept) - 1),
            "estimate": result["estimate"].to_numpy(float),
        }
    )
    variables = {v.name: v.levels for v in rules.variables}
    columns = rules.matrix(frame)[:, 1:]
    return SiteEffects(table, result.covariance, columns, clusters[used], variables)


# --- small numbers --------------------------------------------------------------------------


def hide_outcomes(
    result: ThreeStep,
    sizes: Mapping[Hashable, int],
    min_count: int,
    known_hidden: Collection[tuple[str, str]] = (),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table and the tests of an outcome without what is based on few patients.

    An estimate is blank where few patients of the class have an outcome, or few are in one of its
    categories; then the differences from that class are blank too, since it would follow from them.
    Numbers of patients are blank where few of the class lack the outcome.

    Parameters
    ----------
    result : ThreeStep
        From `mmlca.three_step`, for an outcome.
    sizes : {class: patients, with and without the outcome}
        They are known from elsewhere.
    min_count : int
    known_hidden : (class, level) of numbers that another table hides
        The class's share is blank if it is of that level, or of the only other one.
    """
    table = pd.DataFrame(result)
    seen = table.groupby("class", sort=False)["patients"].first()
    lacking = [n - seen.get(label, 0) for label, n in sizes.items()]
    known = dict(zip(sizes, ~hidden_parts(lacking, min_count)[0], strict=True))
    counted = table["class"].map(known).fillna(True).astype(bool)
    hidden = is_small(table["patients"], min_count)
    for _, rows in table[table["cases"].notna()].groupby("class", sort=False):
        first = rows["patients"].iloc[0] - rows["cases"].sum()
        parts, _ = hidden_parts([first, *rows["cases"]], min_count)
        hidden[rows.index] |= parts[1:] | (len(rows) == 1 and parts[0])
        elsewhere = {level for label, level in known_hidden if label == rows["class"].iloc[0]}
        terms = {f"share of {level}" for level in elsewhere}
        only = len(rows) == 1 and bool(elsewhere)
        hidden[rows.index] |= rows["term"].isin(terms).to_numpy() | only
    classes = set(table["class"][hidden])
    # where one category is hidden its differences are, and those of the others with them
    unsafe = [
        isinstance(pair, tuple) and bool(classes & set(pair)) for pair in result.tests["pair"]
    ]
    shown = hide_rows(table, ["class", "term"], hidden)
    shown = shown.assign(**{name: shown[name].where(counted) for name in ("patients", "cases")})
    tests = hide_rows(result.tests, ["test", "pair"], unsafe).drop(columns="pair")
    return shown, tests


def hide_effects(
    effects: pd.DataFrame,
    covariates: pd.DataFrame,
    clusters: pd.Series,
    reference: Hashable,
    min_count: int,
) -> pd.DataFrame:
    """Effects of covariates on membership without those based on few patients.

    An effect compares a class with the first one. It is blank where one of the two has few
    patients, or few with or without the trait.

    Parameters
    ----------
    effects : DataFrame
        From `mmlca.three_step` without an outcome, for these covariates.
    covariates : DataFrame by id
    clusters : Series by id
    reference : the class that the others are compared with
    min_count : int
    """
    terms, x = design(covariates, len(covariates), covariates.index)
    known = ~np.isnan(x).any(axis=1)
    label = clusters.reindex(covariates.index).to_numpy()
    hidden = []
    for row in effects.to_dict("records"):
        cells = []
        for group in (row["class"], reference):
            mine = known & (label == group)
            cells.append(mine.sum())
            if row["term"] in terms:
                column = x[:, terms.index(row["term"])]
                levels = np.unique(column[known])
                if len(levels) == 2:
                    cells += [(mine & (column == level)).sum() for level in levels]
        hidden.append(bool((is_small(cells, min_count) | (np.array(cells) == 0)).any()))
    return hide_rows(effects, ["class", "term"], hidden)
