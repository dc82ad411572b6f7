"""How similar two clusterings are, and which of their groups correspond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import Clustering, counted
from font.errors import InputError

_EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def cross_table(first: Clustering, second: Clustering) -> pd.DataFrame:
    """How many patients each pair of groups shares; Series are matched on their index."""
    a, b = _aligned(first, second)
    row, rows = pd.factorize(a, sort=True)
    column, columns = pd.factorize(b, sort=True)
    cell = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    return pd.DataFrame(cell.reshape(len(rows), len(columns)), index=rows, columns=columns)


def compare_clusterings(first: Clustering, second: Clustering) -> pd.Series:
    """How similar two clusterings of the same patients are.

    Returns
    -------
    Series
        `adjusted_rand_index` (1: the same groups, 0: as by chance); `nmi`, normalised mutual
        information; `purity`, the share of patients in the largest first group of their
        second group; `matched`, the share in corresponding groups where groups are paired one
        to one as well as possible; `n` patients.

    Examples
    --------
    >>> compare_clusterings([0, 0, 1, 1], [1, 1, 0, 0])["adjusted_rand_index"]
    1.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    a, b = _aligned(first, second)
    if not len(a):
        raise InputError("there are no patients to compare; give at least one.")
    counts = cross_table(a, b)
    table = counts.to_numpy()
    pairs = _best_pairs(-table)
    return pd.Series(
        {
            "adjusted_rand_index": adjusted_rand_index(counts),
            "nmi": float(normalized_mutual_info_score(a, b)),
            "purity": table.max(axis=0).sum() / len(a),
            "matched": table[pairs].sum() / len(a),
            "n": len(a),
        },
        dtype=object,
    )


def adjusted_rand_index(table: pd.DataFrame) -> float:
    """(pairs together in both − expected) / (mean of pairs in each − expected), of a `cross_table`.

    Scikit-learn's function takes 14 times as long on 13,000 patients, most of it for checks.
    """
    counts = table.to_numpy(dtype=float)
    both, one, other, n_pairs = (
        float((n * (n - 1) / 2).sum())
        for n in (counts, counts.sum(axis=1), counts.sum(axis=0), counts.sum())
    )
    expected = one * other / n_pairs if n_pairs else 0.0
    room = (one + other) / 2 - expected
    return (both - expected) / room if room else 1.0


def reliability_counts(membership: ArrayLike, truth: ArrayLike) -> pd.DataFrame:
    """What `reliability_from` is computed from, which adds up over sites.

    `membership` (n, K) holds each patient's probability of each cluster, `truth` (n,) the true
    classes; patients with a negative class are left out. One row per group of probabilities,
    cluster and class that has patients: `from`, `to`, `cluster`, `class`, `patients`, and the means
    of p and p(1 − p), `probability` and `variance`.
    """
    shares, true = np.asarray(membership, dtype=float), np.asarray(truth)
    if shares.ndim != 2 or len(shares) != len(true):
        raise InputError(
            f"found memberships of shape {shares.shape} for {len(true):,} true classes; give one "
            "row for each patient."
        )
    known = np.ones(len(true), bool) if true.dtype.kind not in "iuf" else true >= 0
    shares, true = shares[known], true[known]
    sure, bounds = shares.max(axis=1), np.array(_EDGES)
    group = np.clip(np.searchsorted(bounds, sure, side="right") - 1, 0, len(bounds) - 2)
    patients = pd.DataFrame(
        {
            "from": bounds[group],
            "to": bounds[group + 1],
            "cluster": shares.argmax(axis=1),
            "class": true,
            "probability": sure,
            "variance": sure * (1 - sure),
        }
    )
    cells = patients.groupby(["from", "to", "cluster", "class"])
    counts = cells.mean()
    counts.insert(0, "patients", cells.size())
    return counts.reset_index()


def reliability_from(counts: pd.DataFrame) -> pd.DataFrame:
    """Whether probabilities are right, where the truth is known, from the counts of all patients.

    `counts` are those of `reliability_counts`, of one site below those of another. Clusters are
    paired one to one with the true classes, so that most patients agree, and patients grouped by
    the probability of their cluster: those with a mean probability of 0.8 should be right in 80 %
    of the cases. One row per group: `from`, `to`, `patients`, `probability` (mean), `right` (share
    of them), `se` (standard error of that share if the probabilities are right).
    """
    both = counts.groupby(["class", "cluster"])["patients"].sum().unstack(fill_value=0)
    stands_for = _partners(both)
    right = counts["cluster"].map(stands_for) == counts["class"]
    known = counts["patients"].where(counts["probability"].notna(), 0)
    sums = counts.assign(
        right=counts["patients"].where(right, 0),
        known=known,
        probability=(counts["probability"] * known).fillna(0.0),
        variance=(counts["variance"] * known).fillna(0.0),
    )
    names = ["patients", "right", "known", "probability", "variance"]
    table = sums.groupby(["from", "to"])[names].sum().reset_index()
    table = table[table["patients"] > 0]
    n, k = table["patients"], table["known"].where(table["known"] > 0)
    shown = {
        "probability": table["probability"] / k,
        "right": table["right"] / n,
        "se": np.sqrt(table["variance"] / k / n),
    }
    return table[["from", "to", "patients"]].assign(**shown).reset_index(drop=True)


def match_labels(reference: Clustering, labels: Clustering) -> dict[Any, Any]:
    """Which reference group each group corresponds to, so that most patients agree.

    Groups are paired one to one (Hungarian method); one without a partner maps to None.

    Examples
    --------
    >>> match_labels([0, 0, 1, 1], [5, 5, 3, 3])
    {3: 1, 5: 0}
    """
    return _partners(cross_table(reference, labels))


def _partners(table: pd.DataFrame) -> dict[Any, Any]:
    """The row that each column of a table is paired with."""
    rows, columns = _best_pairs(-table.to_numpy())
    partner = dict(zip(columns.tolist(), table.index[rows].tolist(), strict=True))
    return {label: partner.get(c) for c, label in enumerate(table.columns.tolist())}


def _best_pairs(cost: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return rows, columns


def _aligned(first: Clustering, second: Clustering) -> tuple[NDArray[Any], NDArray[Any]]:
    if (
        isinstance(first, pd.Series)
        and isinstance(second, pd.Series)
        and not first.index.equals(second.index)
    ):
        if len(first) != len(second) or not second.index.isin(first.index).all():
            n = len(first.index.symmetric_difference(second.index))
            raise InputError(
                f"the two clusterings differ in {n:,} patients; compare the same patients, or "
                "give arrays in the same order."
            )
        second = second.reindex(first.index)
    a: NDArray[Any] = np.asarray(first)
    b: NDArray[Any] = np.asarray(second)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"two lists of labels of the same length are needed; found shapes {a.shape} and "
            f"{b.shape}."
        )
    if pd.isna(a).any() or pd.isna(b).any():
        raise InputError(
            f"{counted((pd.isna(a) | pd.isna(b)).sum(), 'patient has', 'patients have')} no label; "
            "leave them out."
        )
    return a, b
