"""Covariates of clusters at a site: effects on membership, and what may leave of them.

The memberships of an ensemble's clusters come from `mmlca.tables.cluster_chains`;
`mmlca.three_step` takes them with the clusters as the assignment.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from font.errors import InputError
from font.probabilities import PRIOR_OF_FITS, PRIOR_OF_MEMBERSHIPS, probabilities
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.outcomes import Correction, ThreeStep, design, three_step
from mmlca.model.params import MarkovParams
from mmlca.sequences.type import Sequences
from mmlca.tables.cluster_chains import cluster_memberships, open_cells
from mmlca.tables.disclosure import fewest_patients, hide_rows, hides, is_small

INTERCEPT = "intercept"
_Z95 = 1.959963984540054
_FEWEST = 2  # patients that a third step needs in a class


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
            "term": [INTERCEPT, *terms[1:]] * (len(labels) - 1),
            "estimate": estimate,
            "se": se,
            "low": estimate - _Z95 * se,
            "high": estimate + _Z95 * se,
        }
    )
    return OneStep(table, covariance)


# --- after classification, at a site ---------------------------------------------------------


class Members(NamedTuple):
    """The clusters of a site's patients, and how probable each is.

    `clusters`: Series by id, the number of each patient's cluster; `posterior`: DataFrame by id,
    the probability of each cluster, or the model whose classes they are, with its `sequences`.
    """

    clusters: pd.Series
    posterior: pd.DataFrame | MixtureMarkov
    sequences: Sequences | None = None


def site_members(sequences: Sequences, clusters: pd.Series) -> Members:
    """The clusters of a site's patients, with the probabilities under chains of this site.

    The chains are those of the mixture that EM reaches from the site's own clusters.
    """
    posterior = cluster_memberships({"": sequences}, {"": clusters})[""]
    return Members(clusters, posterior)


def third_step(
    members: Members,
    fewest: int,
    correction: Correction,
    outcome: pd.Series | None = None,
    covariates: pd.DataFrame | None = None,
) -> ThreeStep:
    """`mmlca.three_step` at a site, for clusters with enough patients whose values are known.

    Parameters
    ----------
    members : Members
    fewest : int
        Clusters with fewer patients are left out, with their patients; at least 2. Not those that
        are the classes of a model.
    correction, outcome, covariates
        As in `mmlca.three_step`, by id.
    """
    labels = members.clusters
    if isinstance(members.posterior, MixtureMarkov):
        data = members.sequences
        return three_step(members.posterior, outcome, covariates, correction, sequences=data)
    known = pd.Series(True, labels.index)
    for values in (outcome, covariates):
        if values is not None:
            here = values.reindex(labels.index).notna()
            known &= here if isinstance(here, pd.Series) else here.all(axis=1)
    sizes, needed = labels[known].value_counts(), fewest_patients(fewest, _FEWEST)
    kept = sorted(sizes.index[sizes >= needed])
    if len(kept) < 2:
        raise InputError(f"fewer than two clusters have {needed} patients whose values are known.")
    mine = labels.isin(kept)
    p = probabilities(members.posterior.loc[mine, kept].to_numpy(), PRIOR_OF_MEMBERSHIPS)
    return three_step(
        pd.DataFrame(p, labels.index[mine], kept),
        None if outcome is None else outcome.reindex(labels.index[mine]),
        None if covariates is None else covariates.reindex(labels.index[mine]),
        correction,
        assignment=labels[mine],
    )


def site_effects(
    members: Members, covariates: pd.DataFrame, min_count: int, correction: Correction = "ML"
) -> pd.DataFrame:
    """Effects of covariates on membership in the clusters of a site, against the first cluster.

    Parameters
    ----------
    members : Members
        The first cluster is 1.
    covariates : DataFrame by id
        Patients who lack a value are left out.
    min_count : int
        Effects on which fewer patients have a bearing are missing, see `hide_effects`.
    correction : as in `mmlca.three_step`

    Returns
    -------
    DataFrame
        `class`, `term`, `estimate`, `se`.
    """
    found = third_step(members, min_count, correction, covariates=covariates)
    if found.errors.index[0] != 1:
        raise InputError("too few patients of cluster 1 have covariates to compare others with it.")
    table = pd.DataFrame(found)[["class", "term", "estimate", "se"]]
    return hide_effects(table, covariates, members.clusters, 1, min_count)


# --- small numbers --------------------------------------------------------------------------


def support(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """The fewest patients that contribute to each column (n, q) of covariates.

    These are the patients with another value than the most frequent one, those with that value in
    a column of two values, or the effective number (Σ|x − mean|)² / Σ(x − mean)² where a few
    extreme values carry the column.

    Examples
    --------
    >>> support(np.array([[0.0], [0.0], [0.0], [1.0]])).tolist()
    [1.0]
    >>> support(np.append(np.zeros(99) + np.arange(99) / 99, 1e6)[:, None]).round(1).tolist()
    [4.0]
    """
    fewest = []
    for column in columns.T:
        _, counts = np.unique(column, return_counts=True)
        parts = [len(column) - counts.max(initial=0)]
        if len(counts) == 2:
            parts.append(counts.min())
        away = np.abs(column - column.mean()) if len(column) else column
        if away.any():
            parts.append(away.sum() ** 2 / (away**2).sum())
        fewest.append(float(min(parts)))
    return np.array(fewest)


def hide_effects(
    effects: pd.DataFrame,
    covariates: pd.DataFrame,
    clusters: pd.Series,
    reference: Hashable,
    min_count: int,
) -> pd.DataFrame:
    """Effects of covariates on membership without those to which few patients contribute.

    An effect compares a class with the first one. It is blank where one of the two has few
    patients, or few that contribute to the column of the covariates, see `support`.

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
    fewest = {
        group: dict(zip(terms, support(x[known & (label == group)]), strict=True))
        for group in {reference, *effects["class"]}
    }
    sizes = {group: int((known & (label == group)).sum()) for group in fewest}
    rests = [
        min(fewest[group].get(row["term"], sizes[group]) for group in (row["class"], reference))
        for row in effects.to_dict("records")
    ]
    hidden = is_small(rests, min_count) | (hides(min_count) & (np.array(rests) < 1))
    return hide_rows(effects, ["class", "term"], hidden)


ERRORS = np.array(
    [
        float(f"{digits}e{power}")
        for power in range(-9, 10)
        for digits in (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
    ]
)
"""The standard errors that rounded effects may have: twelve for each power of ten."""
_ADDED = 6 / 5  # rounding at random to multiples of s adds s²/6: 6/5 of a variance has room for it


def rounded_effects(effects: pd.DataFrame, uniform: NDArray[np.float64]) -> pd.DataFrame:
    """Effects at random rounded to whole standard errors, and these to the steps of `ERRORS`.

    Both are right on average, and the errors include what rounding adds: they are larger by 10 %.
    The intercepts are left out, and the effects of a class are blank if one of them is.

    Parameters
    ----------
    effects : DataFrame
        `class`, `term`, `estimate`, `se`, from `hide_effects`.
    uniform : (rows, 2) array
        Uniform random numbers: of each effect, and of its error.

    Notes
    -----
    Someone who knows the clusters and covariates of all patients, and of one patient all but the
    sex, finds that out from the effects with the areas under the curve below (three clusters, age
    and sex, the best test, means of 24 patients). Where numbers were rounded to the nearest
    (coefficients to a power of ten of at most half a standard error, standard errors to two
    digits) and correlations left too, to two decimals, they were different for the other sex in
    the shares of cases in the last row, and the sex could be read off with certainty.

    ===================================== ===== ===== ===== =====
    patients                              120   300   600   2,000
    ===================================== ===== ===== ===== =====
    area under the curve                  0.66  0.58  0.58  0.54
    rounded to the nearest: read exactly  1.00  0.97  0.90  0.90
    ===================================== ===== ===== ===== =====
    """
    slopes = (effects["term"] != INTERCEPT).to_numpy()
    table, draws = effects[slopes].reset_index(drop=True), uniform[slopes]
    se = np.sqrt(_ADDED) * table["se"].to_numpy(float)
    few = ~((se > ERRORS[0]) & (se < ERRORS[-1]))
    blank = pd.Series(few).groupby(table["class"].to_numpy()).transform("any").to_numpy()
    place = np.clip(np.searchsorted(ERRORS, se, side="right") - 1, 0, len(ERRORS) - 2)
    low, high = ERRORS[place], ERRORS[place + 1]
    errors = np.where(draws[:, 1] < (se - low) / (high - low), high, low)
    multiples = table["estimate"].to_numpy(float) / errors
    multiples = np.floor(multiples) + (draws[:, 0] < multiples - np.floor(multiples))
    values = [float(f"{value:.10g}") for value in multiples * errors]
    return hide_rows(table.assign(estimate=values, se=errors), ["class", "term"], blank)
