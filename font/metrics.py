"""How alike two clusterings are, and which of their groups correspond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import class_parameters
from font.weights import class_distances


def cross_table(first: ArrayLike | pd.Series, second: ArrayLike | pd.Series) -> pd.DataFrame:
    """How many patients each pair of groups shares; Series are matched on their index.

    Examples
    --------
    >>> cross_table([0, 0, 1], ["a", "b", "b"]).to_numpy().tolist()
    [[1, 1], [0, 1]]
    """
    a, b = _aligned(first, second)
    row, rows = pd.factorize(a, sort=True)
    column, columns = pd.factorize(b, sort=True)
    cell = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    return pd.DataFrame(cell.reshape(len(rows), len(columns)), index=rows, columns=columns)


def agreement(first: ArrayLike | pd.Series, second: ArrayLike | pd.Series) -> pd.Series:
    """Measures of agreement between two clusterings of the same patients.

    Returns
    -------
    Series
        `ari`, the adjusted Rand index (1: the same groups, 0: as by chance); `nmi`, normalised
        mutual information; `purity`, the share of patients in the largest first group of their
        second group; `matched`, the share that agrees once groups are paired one to one as
        well as possible; `n` patients.

    Examples
    --------
    >>> agreement([0, 0, 1, 1], [1, 1, 0, 0])["ari"]
    1.0
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    a, b = _aligned(first, second)
    if not len(a):
        raise ValueError("there are no patients to compare; give at least one.")
    table = cross_table(a, b).to_numpy()
    pairs = _best_pairs(-table)
    return pd.Series(
        {
            "ari": float(adjusted_rand_score(a, b)),
            "nmi": float(normalized_mutual_info_score(a, b)),
            "purity": table.max(axis=0).sum() / len(a),
            "matched": table[pairs].sum() / len(a),
            "n": len(a),
        },
        dtype=object,
    )


def match_labels(reference: ArrayLike | pd.Series, labels: ArrayLike | pd.Series) -> dict[Any, Any]:
    """Which reference group each group corresponds to, so that most patients agree.

    Groups are paired one to one (Hungarian method); one without a partner maps to None.

    Examples
    --------
    >>> match_labels([0, 0, 1, 1], [5, 5, 3, 3])
    {3: 1, 5: 0}
    """
    table = cross_table(reference, labels)
    return _as_dict(_best_pairs(-table.to_numpy()), table.index, table.columns)


def match_classes(reference: Any, model: Any, distance: Any = "euclidean") -> dict[int, int | None]:
    """Which class of a reference model each class of another corresponds to.

    Classes are paired one to one with the smallest sum of distances between their parameters.

    Parameters
    ----------
    reference, model
        Models with `class_parameters_`, or arrays (K, d) with the same d.
    distance : as in `Ensemble`

    Examples
    --------
    >>> match_classes(np.array([[0.0], [1.0]]), np.array([[0.9], [0.2]]))
    {0: 1, 1: 0}
    """
    a, b = class_parameters(reference, "reference"), class_parameters(model, "model")
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"the classes have {a.shape[1]} and {b.shape[1]} parameters; only models of the same "
            "kind on the same variables can be matched."
        )
    far = class_distances(np.concatenate([a, b]), distance)[: len(a), len(a) :]
    return _as_dict(_best_pairs(far), range(len(a)), range(len(b)))


def _best_pairs(cost: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return rows, columns


def _as_dict(
    pairs: tuple[NDArray[np.intp], NDArray[np.intp]], rows: Any, columns: Any
) -> dict[Any, Any]:
    partner = {int(c): rows[int(r)] for r, c in zip(*pairs, strict=True)}
    plain = {columns[c]: partner.get(c) for c in range(len(columns))}
    return {_item(key): _item(value) for key, value in plain.items()}


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _aligned(
    first: ArrayLike | pd.Series, second: ArrayLike | pd.Series
) -> tuple[NDArray[Any], NDArray[Any]]:
    if (
        isinstance(first, pd.Series)
        and isinstance(second, pd.Series)
        and not first.index.equals(second.index)
    ):
        if len(first) != len(second) or not second.index.isin(first.index).all():
            n = len(first.index.symmetric_difference(second.index))
            raise ValueError(
                f"the two clusterings differ in {n:,} patients; compare the same patients, or "
                "give arrays in the same order."
            )
        second = second.reindex(first.index)
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(
            f"two lists of labels of the same length are needed; found shapes {a.shape} and "
            f"{b.shape}."
        )
    if pd.isna(a).any() or pd.isna(b).any():
        raise ValueError(
            f"{int((pd.isna(a) | pd.isna(b)).sum()):,} patients have no label; leave them out."
        )
    return a, b
