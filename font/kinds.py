"""The models that an exchange file may carry: a closed list, each as plain numbers.

A file says which of the four kinds it holds by the word in `format`; what the word stands for
is in this module, so that no file can name code to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import some, whole_number
from font.latent_class import LatentClass
from font.protocol import SklearnModel

SUM_TOLERANCE = 1e-8


# --- what each kind means ----------------------------------------------------------------


class Kind(NamedTuple):
    """What is done with a model of one kind.

    Parameters
    ----------
    words : str
        Its name.
    parameters : content → (K, d)
        One row a class.
    unfit : content, min_count → str or None
        What does not fit together.
    rounded : content, digits → content
    """

    words: str
    parameters: Callable[[Mapping[str, Any]], NDArray[np.float64]]
    unfit: Callable[[Mapping[str, Any], int], str | None]
    rounded: Callable[[Mapping[str, Any], int], dict[str, Any]]


def weights_of(content: Mapping[str, Any]) -> list[float]:
    """The shares of the classes."""
    weights: list[float] = content.get("params", content)["weights"]
    return weights


def patients_of(content: Mapping[str, Any]) -> float:
    """The patients that the model was fitted to."""
    return float(content["n_patients"] if "n_patients" in content else content["n_sequences"])


def variables_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """What the model looks at: states, columns or items."""
    if "items" in content:
        return tuple(part["item"] for part in content["items"])
    return tuple(content["states"] if "states" in content else content["variables"])


def unfit(content: Mapping[str, Any], min_count: int) -> str | None:
    """What in a model of the right form does not fit together; None if all does."""
    names = variables_of(content)
    if len(set(names)) != len(names):
        return f"its {_NAMED.get(content['format'], 'variables')} {some(names)} are not distinct"
    return KINDS[content["format"]].unfit(content, min_count)


def content_of(
    model: Any, support: ArrayLike | None, variables: Sequence[str] | None
) -> dict[str, Any]:
    """A fitted model as an exchange file holds it, not rounded yet."""
    if type(model).__name__ in ("KMeans", "GaussianMixture"):
        model = SklearnModel(model)
    if not isinstance(model, (SklearnModel, LatentClass)):
        stored = dict(model.to_dict() if hasattr(model, "to_dict") else model)
        if stored.get("format") != "mmlca model" or "params" not in stored:
            raise ValueError(
                "only mixtures of Markov chains, K-means, Gaussian mixtures and latent class "
                f"models can be exchanged; found a {type(model).__name__} without their fields."
            )
        return stored
    n_classes = len(model.class_parameters_)
    sizes = np.asarray(support, dtype=float)
    if support is None or sizes.shape != (n_classes,) or not (sizes > 0).all():
        raise ValueError(
            f"support must say how many patients each of the {n_classes} classes has, all above "
            f"0; found {'none' if support is None else sizes.tolist()[:5]}."
        )
    head: dict[str, Any] = {"version": 1, "n_patients": float(sizes.sum())}
    head["weights"] = (sizes / sizes.sum()).tolist()
    if isinstance(model, LatentClass):
        stored = model.to_dict()
        part = {key: stored[key] for key in ("items", "weights", "loglik", "converged")}
        part["probabilities"] = stored["probabilities"]
        return {"format": "font latent class"} | head | part
    stored = model.to_dict()
    centres = stored["cluster_centers_" if stored["model"] == "KMeans" else "means_"]
    n_variables = len(centres[0])
    head["variables"] = [f"x{i + 1}" for i in range(n_variables)]
    if variables is not None:
        head["variables"] = list(variables)
        if len(head["variables"]) != n_variables:
            raise ValueError(
                f"variables names {len(head['variables'])} columns, the model has {n_variables}; "
                "name each column once."
            )
    if stored["model"] == "KMeans":
        return {"format": "font k-means"} | head | {"centres": centres}
    if stored["model"] != "GaussianMixture":
        raise ValueError(
            f"a {stored['model']} cannot be exchanged; fit a KMeans or a GaussianMixture."
        )
    shape = _covariance_shape(stored["covariance_type"], n_classes, n_variables)
    return {
        "format": "font gaussian mixture",
        **head,
        "weights": stored["weights_"],
        "means": centres,
        "covariance_type": stored["covariance_type"],
        "covariances": np.reshape(stored["covariances_"], shape).tolist(),
    }


def local_model(content: Mapping[str, Any]) -> SklearnModel | LatentClass:
    """The model that a file holds, ready to predict.

    A mixture of Markov chains belongs to another package, whose `from_dict` takes the content.
    """
    form = content["format"]
    if form == "font latent class":
        return LatentClass.from_dict(
            {**content, "model": "LatentClass", "n_classes": len(content["weights"])}
        )
    if form == "font k-means":
        return SklearnModel.from_dict(
            {
                "model": "KMeans",
                "n_classes": len(content["weights"]),
                "cluster_centers_": content["centres"],
            }
        )
    if form != "font gaussian mixture":
        raise TypeError(
            "this is a mixture of Markov chains; use mmlca.MixtureMarkov.from_dict(file.content)."
        )
    kind, k = content["covariance_type"], len(content["weights"])
    stored = np.array(content["covariances"], dtype=float)
    covariances = {"full": stored, "tied": stored[0], "diag": stored[:, 0]}.get(
        kind, stored.ravel()
    )
    return SklearnModel.from_dict(
        {
            "model": "GaussianMixture",
            "n_classes": k,
            "covariance_type": kind,
            "weights_": content["weights"],
            "means_": content["means"],
            "covariances_": covariances,
            "precisions_cholesky_": _precisions(covariances, kind),
        }
    )


def _precisions(covariances: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """The inverse of the Cholesky factor, as scikit-learn computes it."""
    from scipy.linalg import cholesky, solve_triangular

    if kind in ("diag", "spherical"):
        return np.asarray(1.0 / np.sqrt(covariances))
    matrices = covariances if kind == "full" else covariances[None]
    even = np.eye(matrices.shape[-1])
    out = [solve_triangular(cholesky(c, lower=True), even, lower=True).T for c in matrices]
    return np.array(out) if kind == "full" else np.asarray(out[0])


def _covariance_shape(kind: str, k: int, d: int) -> tuple[int, int, int]:
    return {"full": (k, d, d), "tied": (1, d, d), "diag": (k, 1, d), "spherical": (k, 1, 1)}[kind]


# --- checks ------------------------------------------------------------------------------


def _table(values: Any, part: str) -> NDArray[np.float64] | str:
    try:
        return np.array(values, dtype=float)
    except ValueError:
        return f"its {part} have rows of unequal length"


def _misshapen(values: Any, part: str, shape: tuple[int, ...], sums: bool = False) -> str | None:
    array = _table(values, part)
    if isinstance(array, str):
        return array
    if array.shape != shape:
        return f"its {part} have the shape {array.shape} in place of {shape}"
    if sums:
        total = array.sum(axis=-1)
        worst = float(np.ravel(total)[np.abs(total - 1).argmax()])
        if abs(worst - 1) > SUM_TOLERANCE:
            return f"its {part} sum to {worst:.9g} in place of 1"
    return None


def _first(*found: str | None) -> str | None:
    return next((one for one in found if one is not None), None)


def _markov_unfit(content: Mapping[str, Any], min_count: int) -> str | None:
    params = content["params"]
    k, s = len(params["weights"]), len(content["states"])
    shapes = {"weights": (k,), "initial": (k, s), "transition": (k, s, s)}
    return _first(*(_misshapen(params[part], part, shapes[part], True) for part in shapes))


def _kmeans_unfit(content: Mapping[str, Any], min_count: int) -> str | None:
    k, d = len(content["weights"]), len(content["variables"])
    return _first(
        _misshapen(content["weights"], "weights", (k,), True),
        _misshapen(content["centres"], "centres", (k, d)),
    )


def _gaussian_unfit(content: Mapping[str, Any], min_count: int) -> str | None:
    k, d = len(content["weights"]), len(content["variables"])
    kind = content["covariance_type"]
    wrong = _first(
        _misshapen(content["weights"], "weights", (k,), True),
        _misshapen(content["means"], "means", (k, d)),
        _misshapen(content["covariances"], "covariances", _covariance_shape(kind, k, d)),
    )
    if wrong is not None:
        return wrong
    matrices = np.array(content["covariances"], dtype=float)
    if kind in ("diag", "spherical"):
        return (
            None if (matrices > 0).all() else "its covariances have a variance that is not above 0"
        )
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return "its covariances are not positive definite"
    if np.abs(matrices - matrices.transpose(0, 2, 1)).max() > 1e-9 * np.abs(matrices).max():
        return "its covariances are not symmetric"
    return None


def _latent_unfit(content: Mapping[str, Any], min_count: int) -> str | None:
    k, sizes = len(content["weights"]), [len(part["categories"]) for part in content["items"]]
    wrong = _first(
        _misshapen(content["weights"], "weights", (k,), True),
        _misshapen(content["probabilities"], "probabilities", (k, sum(sizes))),
    )
    if wrong is not None:
        return wrong
    shares = np.array(content["probabilities"], dtype=float)
    expected = np.array(content["weights"]) @ shares * content["n_patients"]
    start = 0
    for part, size in zip(content["items"], sizes, strict=True):
        name, values = part["item"], part["categories"]
        if len(set(values)) != size or len({isinstance(v, str) for v in values}) > 1:
            return f"the answers of its item {name!r} are not distinct and of one type"
        block = slice(start, start + size)
        wrong = _misshapen(shares[:, block], f"probabilities of {name!r}", (k, size), True)
        if wrong is not None:
            return wrong
        if expected[block].min() < min_count - 1e-6:
            rare = values[int(expected[block].argmin())]
            return (
                f"about {expected[block].min():.1f} patients gave the answer {some([rare])} to "
                f"{name!r}, fewer than {min_count}, and such answers have to be joined with others"
            )
        start += size
    return None


# --- rounding ----------------------------------------------------------------------------


def round_rows(rows: Any, digits: int) -> NDArray[np.float64]:
    """Probabilities with so many decimals that still sum to 1 along the last axis.

    Units of the last decimal are given out by largest remainder, a positive cell getting at
    least one; of equal cells the first comes first.

    Examples
    --------
    >>> round_rows([1 / 3, 1 / 3, 1 / 3], 4).tolist()
    [0.3334, 0.3333, 0.3333]
    >>> round_rows([1 - 1e-9, 1e-9, 0], 4).tolist()
    [0.9999, 0.0001, 0.0]
    """
    array = np.array(rows, dtype=float)
    unit = 10**digits
    flat = array.reshape(-1, array.shape[-1])
    out = np.empty(flat.shape)
    for row, target in zip(flat, out, strict=True):
        exact = row / row.sum() * unit
        whole = np.maximum(np.floor(exact), row > 0).astype(np.int64)
        left = unit - int(whole.sum())
        if left > 0:
            order = np.argsort(whole - exact, kind="stable")
            whole[order[:left]] += 1
        for _ in range(-left):
            whole[whole.argmax()] -= 1
        target[:] = whole / unit
    return out.reshape(array.shape)


def rounded(content: Mapping[str, Any], digits: int) -> dict[str, Any]:
    """A model with probabilities of so many decimals, and other numbers of so many digits."""
    if whole_number(digits, 4, "digits") > 12:
        raise ValueError(f"digits must be at most 12; found {digits}; use None for no rounding.")
    return KINDS[content["format"]].rounded(content, digits)


def _significant(values: Any, digits: int) -> Any:
    if isinstance(values, list):
        return [_significant(value, digits) for value in values]
    return float(f"{values:.{digits}g}")


def _markov_rounded(content: Mapping[str, Any], digits: int) -> dict[str, Any]:
    params = {key: round_rows(part, digits).tolist() for key, part in content["params"].items()}
    totals = {key: round(float(content[key]), digits) for key in _TOTALS}
    return {**content, "params": params, **totals}


def _numbers_rounded(content: Mapping[str, Any], digits: int) -> dict[str, Any]:
    out = {**content, "weights": round_rows(content["weights"], digits).tolist()}
    for key in ("centres", "means", "covariances"):
        if key in out:
            out[key] = _significant(out[key], digits)
    return out


def _latent_rounded(content: Mapping[str, Any], digits: int) -> dict[str, Any]:
    edges = np.cumsum([len(part["categories"]) for part in content["items"]])[:-1]
    blocks = np.split(np.array(content["probabilities"], dtype=float), edges, axis=1)
    shares = np.hstack([round_rows(block, digits) for block in blocks])
    return {
        **content,
        "weights": round_rows(content["weights"], digits).tolist(),
        "probabilities": shares.tolist(),
        "loglik": round(float(content["loglik"]), digits),
    }


def _markov_parameters(content: Mapping[str, Any]) -> NDArray[np.float64]:
    params = content["params"]
    transition = np.array(params["transition"], dtype=float)
    return np.hstack(
        [np.array(params["initial"], dtype=float), transition.reshape(len(transition), -1)]
    )


def _parameters(key: str) -> Callable[[Mapping[str, Any]], NDArray[np.float64]]:
    return lambda content: np.array(content[key], dtype=float)


_TOTALS = ("loglik", "classification_entropy")
_NAMED = {"mmlca model": "states", "font latent class": "items"}
KINDS = {
    "mmlca model": Kind(
        "mixture of Markov chains", _markov_parameters, _markov_unfit, _markov_rounded
    ),
    "font k-means": Kind("K-means", _parameters("centres"), _kmeans_unfit, _numbers_rounded),
    "font gaussian mixture": Kind(
        "Gaussian mixture", _parameters("means"), _gaussian_unfit, _numbers_rounded
    ),
    "font latent class": Kind(
        "latent class model", _parameters("probabilities"), _latent_unfit, _latent_rounded
    ),
}
