"""How far the models agree, and how much each should count.

Model m says how far apart patients i and j are: D̂ᵐ_ij = Δᵐ[ŷᵢ, ŷⱼ], the distance between
their classes' parameters. These N×N matrices are never formed. With Z_m the one-hot labels,
D̂ᵐ = Z_m Δᵐ Z_mᵀ, so that

    ⟨D̂ᵗ, D̂ˢ⟩ = ⟨Δᵗ, C Δˢ Cᵀ⟩    with C = Z_tᵀ Z_s, the cross-tabulation of two models' labels.

All cross-tabulations are the blocks of S = ZᵀZ, Z = [Z_1 … Z_M]; S comes from the distinct
label patterns and their counts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, Integers, one_of, some
from font.errors import InputError

METHODS = ("spectral", "centred", "equal", "prior", "sparse")
DISTANCES = ("euclidean", "hellinger", "total-variation")
_BLOCK = 1 << 12  # patients; fewer than 2²⁴, up to which single precision counts


def class_distances(
    parameters: Floats, distance: str | Callable[[Floats], Any], name: Hashable = "model"
) -> Floats:
    """Distances (K, K) between the rows of a model's class parameters (K, d).

    "euclidean": ‖a − b‖; "hellinger": ‖√a − √b‖/√2; "total-variation": ½ Σ|a − b|; or a
    function from (K, d) to (K, K).
    """
    if callable(distance):
        return _checked_distances(distance(parameters), len(parameters), name)
    one_of(distance, DISTANCES, "distance, unless a function,")
    if distance == "hellinger":
        if (parameters < 0).any():
            raise InputError(
                f"the class parameters of {name!r} hold the value {parameters.min():.6g}; "
                'distance="hellinger" is for probabilities, use "euclidean" for others.'
            )
        parameters = np.sqrt(parameters) / np.sqrt(2)
    difference = parameters[:, None, :] - parameters[None, :, :]
    if distance == "total-variation":
        half_sum: Floats = np.abs(difference).sum(axis=2) / 2
        return half_sum
    return np.asarray(np.sqrt((difference**2).sum(axis=2)))


def _checked_distances(values: Any, n_classes: int, name: Hashable) -> Floats:
    array = np.asarray(values, dtype=float)
    if array.shape != (n_classes, n_classes):
        raise InputError(
            f"the distance function gave an array of shape {array.shape} for the {n_classes} "
            f"classes of {name!r}; it must return one row and one column per class."
        )
    largest = np.abs(array).max()
    if (
        not np.isfinite(largest)
        or (array < 0).any()
        or np.abs(np.diag(array)).max() > 1e-9 * largest
        or np.abs(array - array.T).max() > 1e-9 * largest
    ):
        raise InputError(
            f"the distance function's values for {name!r} are not distances; they must be finite, "
            "symmetric, 0 or more, and 0 on the diagonal."
        )
    clean: Floats = (array + array.T) / 2
    np.fill_diagonal(clean, 0.0)
    return clean


def one_hot(patterns: Integers, offsets: NDArray[np.intp]) -> Floats:
    """The rows of Z for these patterns, (P, ΣK)."""
    rows = np.zeros((len(patterns), offsets[-1]))
    np.put_along_axis(rows, patterns + offsets[:-1], 1.0, axis=1)
    return rows


def cross_tabulate(
    columns: Sequence[Integers], offsets: NDArray[np.intp], counts: NDArray[Any] | None = None
) -> Floats:
    """S = ZᵀZ, (ΣK, ΣK): all cross-tabulations of two models' labels.

    `columns` are the labels of each model (P,), `counts` how many patients have them, 1 unless
    given. One product of matrices counts all pairs of models, in blocks of rows: without counts
    these are so short that single precision is exact.
    """
    total = np.zeros((offsets[-1], offsets[-1]))
    for begin in range(0, len(columns[0]), _BLOCK):
        block = [column[begin : begin + _BLOCK] for column in columns]
        rows = np.empty((offsets[-1], len(block[0])), dtype=np.float32 if counts is None else float)
        for part, column in zip(np.split(rows, offsets[1:-1]), block, strict=True):
            np.equal(column, np.arange(len(part))[:, None], out=part)
        weighted = rows if counts is None else rows * counts[begin : begin + _BLOCK]
        total += weighted @ rows.T
    return total


def centre(distances: Floats, counts: Floats) -> Floats:
    """Double-centred distances: Δ − row means − column means + grand mean over patients.

    Z (this) Zᵀ is H D̂ H, with H = I − 11ᵀ/N: centring needs only the class counts (K,).
    """
    share = counts / counts.sum()
    mean = distances @ share
    centred: Floats = distances - mean[:, None] - mean[None, :] + share @ mean
    return centred


def agreement(distances: Sequence[Floats], tables: Floats) -> tuple[Floats, Floats]:
    """Frobenius norms ‖D̂ᵐ‖ (M,) and cosines G_ts = ⟨D̂ᵗ, D̂ˢ⟩ / (‖D̂ᵗ‖ ‖D̂ˢ‖), (M, M).

    `tables` is S = ZᵀZ. The cosine with a model that separates nobody is 0. Tables that were
    rounded at random may not fit together exactly; a cosine that would exceed 1 is 1.
    """
    cuts = np.cumsum([0] + [len(delta) for delta in distances])
    blocks = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    product = np.empty((len(blocks), len(blocks)))
    for s, (block, delta) in enumerate(zip(blocks, distances, strict=True)):
        half = tables[:, block] @ delta
        for t, other in enumerate(blocks[: s + 1]):
            value = np.sum(distances[t] * (half[other] @ tables[block, other]))
            product[t, s] = product[s, t] = value
    norms = np.sqrt(np.maximum(np.diag(product), 0.0))
    product[norms == 0] = product[:, norms == 0] = 0.0
    safe = np.where(norms > 0, norms, 1.0)
    cosines = np.clip(product / safe[:, None] / safe[None, :], -1.0, 1.0)
    np.fill_diagonal(cosines, (norms > 0).astype(float))
    return norms, cosines


def agreements(
    distances: Sequence[Floats], tables: Floats
) -> tuple[Floats, Floats, list[Floats], Floats]:
    """Norms and agreement, then the double-centred distances and their agreement."""
    norms, cosines = agreement(distances, tables)
    parts = np.split(np.diag(tables), np.cumsum([len(delta) for delta in distances])[:-1])
    centred = [
        centre(delta, counts) if norm > 0 else np.zeros_like(delta)
        for delta, counts, norm in zip(distances, parts, norms, strict=True)
    ]
    return norms, cosines, centred, agreement(centred, tables)[1]


def model_weights(
    method: str, cosines: Floats, centred: Floats, share: Floats | None = None
) -> Floats:
    """Weights (M,) of unit length, 0 for a model that separates nobody.

    - "spectral": |first eigenvector| of the agreement G, the maximum of wᵀGw over ‖w‖ = 1.
    - "centred": the same of the double-centred agreement. Distances are never negative, so
      that G between unrelated models is far from 0 (about 0.8); centred, it is near 0. A model
      whose labels are noise thus loses its weight. But models that agree perfectly and wrongly
      (copies of each other) gain it where the honest ones are weak: look at the agreement.
    - "equal": all alike.
    - "prior": like "spectral", with reliabilities known beforehand as shares.
    - "sparse": the centred weights, where models below half of the largest weight are dropped
      and the rest weighed again, until all that remain agree.

    Model m counts as r_m models, its `share` (1 unless given): the maximum of wᵀGw over
    Σ w_m²/r_m = 1 is w = R^½ v with v the first eigenvector of R^½ G R^½. Then n copies of a model
    that count as 1/n each get together what the model alone would get, and r_m = 0 excludes one.
    """
    one_of(method, METHODS, "weights")
    root = np.ones(len(cosines)) if share is None else np.sqrt(share)
    scale = root[:, None] * root[None, :]
    if method == "equal":
        weights = root**2 * (np.diag(cosines) > 0)
    elif method == "sparse":
        weights = root * _sparse(scale * centred)
    else:
        weights = root * leading(scale * (centred if method == "centred" else cosines))
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


def leading(matrix: Floats) -> Floats:
    """|First eigenvector| of a symmetric matrix, 0 for a zero row.

    Where several share the largest eigenvalue (models without anything in common), the one
    nearest to equal weights, instead of whichever the solver happens to return.
    """
    values, vectors = np.linalg.eigh(matrix)
    used = matrix.any(axis=1)
    top = vectors[:, values >= values[-1] - 1e-9 * abs(values[-1])]
    vector = np.abs(top @ (top.T @ used))
    length = np.linalg.norm(vector)
    vector = vector / length if length > 1e-9 else np.abs(vectors[:, -1])
    return np.where(used, vector, 0.0)


def _sparse(centred: Floats) -> Floats:
    kept = np.diag(centred) > 0
    while True:
        weights = leading(np.where(kept[:, None] & kept[None, :], centred, 0.0))
        weak = kept & (weights < weights.max() / 2)
        if not weak.any():
            return weights
        kept &= ~weak


def reliabilities(reliability: Mapping[Any, float] | None, models: Sequence[Hashable]) -> Floats:
    """The prior reliabilities in the models' order, checked."""
    if reliability is None:
        raise InputError('weights="prior" needs reliability={model: number}, one for each model.')
    absent = [name for name in models if name not in reliability]
    if absent:
        raise InputError(f"reliability= has no value for the models {some(absent)}; give one each.")
    values = np.array([reliability[name] for name in models], dtype=float)
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise InputError(
            f"reliabilities must be finite, 0 or more, and not all 0; found {some(values)}."
        )
    return values
