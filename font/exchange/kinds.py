"""The models that font itself can exchange: K-means, Gaussian mixtures, latent class models.

Each is a `ModelKind` of `font.exchange.registry`, where other packages register theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError
from font.exchange.fields import MOST_CUBES, GaussianPart, KMeansPart, LatentClassPart
from font.exchange.privacy import Draws, precision, round_counts, unrounded
from font.exchange.registry import ModelKind
from font.models.gaussian_sums import precisions
from font.models.latent_class import LatentClass
from font.models.sklearn_models import SklearnModel
from font.probabilities import PRIOR_OF_ROUNDED_ANSWERS, probabilities

Floats = NDArray[np.float64]
Content = Mapping[str, Any]

_DIGITS = 4  # significant digits of covariances


# --- checks that all kinds share ---------------------------------------------------------


def enough_patients(sizes: Any, min_count: int) -> Floats:
    """The numbers of patients by class, none of which may be small."""
    patients = np.asarray(sizes, dtype=float)
    if patients.min() < min_count:
        raise InputError(
            f"a class of the model has fewer than {min_count} patients, so that the model may not "
            "leave; fit fewer classes, or more patients."
        )
    return patients


def unfit_patients(content: Content, min_count: int) -> str | None:
    """What is wrong with the rounded numbers of patients by class, if anything."""
    patients = content["patients"]
    if min(patients) < min_count:
        return f"a class has {min(patients)} patients, fewer than its min_count {min_count}"
    wrong = unrounded(patients, min_count)
    return None if wrong is None else f"its patients have {wrong}"


def misshapen(values: Any, part: str, shape: tuple[int, ...]) -> str | None:
    """What is wrong with the shape of a nested list, if anything."""
    try:
        actual = np.array(values, dtype=float).shape
    except ValueError:
        return f"its {part} have rows of unequal length"
    return None if actual == shape else f"its {part} have the shape {actual} in place of {shape}"


def first_of(*wrongs: str | None) -> str | None:
    return next((wrong for wrong in wrongs if wrong is not None), None)


def patients_in_words(content: Content) -> str:
    shown = ", ".join(f"{n:,}" for n in content["patients"])
    return f"the numbers of patients by class, rounded at random: {shown}"


# --- K-means and Gaussian mixtures -------------------------------------------------------


def _is_sklearn(name: str, model: Any) -> bool:
    inner = model.estimator if isinstance(model, SklearnModel) else model
    return type(inner).__name__ == name and type(inner).__module__.startswith("sklearn.")


def _estimator(model: Any) -> Any:
    return model.estimator if isinstance(model, SklearnModel) else model


def _columns(data: Any, centres: Floats) -> dict[str, Any]:
    """Names of the columns, and with which precision their means are written."""
    names = [str(name) for name in data.columns] if isinstance(data, pd.DataFrame) else None
    n = centres.shape[1]
    return {
        "variables": names or [f"x{i + 1}" for i in range(n)],
        "precision": [precision(column) for column in centres.T],
    }


def _to_precision(means: Floats, steps: list[float]) -> list[list[float]]:
    digits = [int(-np.log10(step).round()) for step in steps]
    return [[round(float(v), d) for v, d in zip(row, digits, strict=True)] for row in means]


def _write_kmeans(model: Any, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    kmeans = _estimator(model)
    centres = np.asarray(kmeans.cluster_centers_, dtype=float)
    labels = kmeans.predict(np.asarray(data, dtype=float))
    sizes = enough_patients(np.bincount(labels, minlength=len(centres)), min_count)
    columns = _columns(data, centres)
    return {
        "format": "font k-means",
        "version": 1,
        **columns,
        "patients": round_counts(sizes, min_count, draws).tolist(),
        "centres": _to_precision(centres, columns["precision"]),
    }


def _write_gaussian(model: Any, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    mixture = _estimator(model)
    means = np.asarray(mixture.means_, dtype=float)
    shares = mixture.predict_proba(np.asarray(data, dtype=float))
    sizes = enough_patients(shares.sum(axis=0), min_count)
    columns = _columns(data, means)
    shape = _covariance_shape(mixture.covariance_type, *means.shape)
    flat = [float(f"{value:.{_DIGITS}g}") for value in np.ravel(mixture.covariances_)]
    return {
        "format": "font gaussian mixture",
        "version": 1,
        **columns,
        "patients": round_counts(sizes, min_count, draws).tolist(),
        "means": _to_precision(means, columns["precision"]),
        "covariance_type": mixture.covariance_type,
        "covariances": np.reshape(flat, shape).tolist(),
    }


def _covariance_shape(form: str, k: int, d: int) -> tuple[int, int, int]:
    return {"full": (k, d, d), "tied": (1, d, d), "diag": (k, 1, d), "spherical": (k, 1, 1)}[form]


def _read_kmeans(content: Content) -> SklearnModel:
    return SklearnModel.from_dict(
        {
            "model": "KMeans",
            "n_classes": len(content["patients"]),
            "cluster_centers_": content["centres"],
        }
    )


def _read_gaussian(content: Content) -> SklearnModel:
    form, patients = content["covariance_type"], np.array(content["patients"], dtype=float)
    stored = np.array(content["covariances"], dtype=float)
    shaped = {"full": stored, "tied": stored[0], "diag": stored[:, 0]}
    covariances = shaped.get(form, stored.ravel())
    return SklearnModel.from_dict(
        {
            "model": "GaussianMixture",
            "n_classes": len(patients),
            "covariance_type": form,
            "weights_": patients / patients.sum(),
            "means_": content["means"],
            "covariances_": covariances,
            "precisions_cholesky_": precisions(covariances, form),
        }
    )


def _variables(content: Content) -> tuple[str, ...]:
    return tuple(content["variables"])


def _unfit_kmeans(content: Content, min_count: int) -> str | None:
    k, d = len(content["patients"]), len(content["variables"])
    return first_of(
        unfit_patients(content, min_count),
        misshapen(content["centres"], "centres", (k, d)),
        misshapen(content["precision"], "precision", (d,)),
    )


def _unfit_gaussian(content: Content, min_count: int) -> str | None:
    k, d = len(content["patients"]), len(content["variables"])
    form = content["covariance_type"]
    wrong = first_of(
        unfit_patients(content, min_count),
        misshapen(content["means"], "means", (k, d)),
        misshapen(content["precision"], "precision", (d,)),
        misshapen(content["covariances"], "covariances", _covariance_shape(form, k, d)),
    )
    if wrong is not None:
        return wrong
    matrices = np.array(content["covariances"], dtype=float)
    if form in ("diag", "spherical"):
        return None if (matrices > 0).all() else "its covariances have a variance not above 0"
    if len(matrices) * d**3 > MOST_CUBES:
        return f"{len(matrices)} covariance matrices of {d} variables are more than can be solved"
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return "its covariances are not positive definite"
    if np.abs(matrices - matrices.transpose(0, 2, 1)).max() > 1e-9 * np.abs(matrices).max():
        return "its covariances are not symmetric"
    return None


def _words_of_means(content: Content) -> tuple[list[str], list[str]]:
    names = ", ".join(
        f"{name} (to {step:g})"
        for name, step in zip(content["variables"], content["precision"], strict=True)
    )
    contains = [
        f"the averages of {len(content['patients'])} classes, of the columns {names}",
        patients_in_words(content),
    ]
    if "covariances" in content:
        contains.append(f"how the patients of each class spread around them, to {_DIGITS} digits")
    return contains, [
        "the averages of each class, each of which rests on at least the smallest number of "
        "patients; who knows all but one of a class's patients and their exact number can work "
        "that one's values out as precisely as the averages are written, times that number"
    ]


K_MEANS = ModelKind(
    name="K-means",
    schema=KMeansPart,
    variables=_variables,
    unfit=_unfit_kmeans,
    is_kind=lambda model: _is_sklearn("KMeans", model),
    write=_write_kmeans,
    read=_read_kmeans,
    words=_words_of_means,
)
GAUSSIAN = ModelKind(
    name="Gaussian mixture",
    schema=GaussianPart,
    variables=_variables,
    unfit=_unfit_gaussian,
    is_kind=lambda model: _is_sklearn("GaussianMixture", model),
    write=_write_gaussian,
    read=_read_gaussian,
    words=_words_of_means,
)


# --- latent class models -----------------------------------------------------------------


def _write_latent(model: LatentClass, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(np.asarray(data))
    shares = model.predict_proba(frame)
    sizes = enough_patients(shares.sum(axis=0), min_count)
    blocks = []
    for item, categories in model.categories_.items():
        answers = pd.Index(categories).get_indexer(pd.Index(frame[item]))
        one_hot = answers[:, None] == np.arange(len(categories))
        total = one_hot.sum(axis=0)
        if total.min() < min_count:
            rare = categories[int(total.argmin())]
            raise InputError(
                f"{total.min()} patients gave the answer {some([rare])} to {item!r}, fewer than "
                f"{min_count}; join it with other answers before you fit."
            )
        blocks.append(shares.T @ one_hot)
    return {
        "format": "font latent class",
        "version": 1,
        "items": [
            {"item": str(item), "categories": values} for item, values in model.categories_.items()
        ],
        "prior": PRIOR_OF_ROUNDED_ANSWERS,
        "patients": round_counts(sizes, min_count, draws).tolist(),
        "answers": round_counts(np.hstack(blocks), min_count, draws).tolist(),
    }


def _read_latent(content: Content) -> LatentClass:
    sizes = [len(part["categories"]) for part in content["items"]]
    prior = max(content["prior"], 1e-9)
    return LatentClass.from_dict(
        {
            "model": "LatentClass",
            "n_classes": len(content["patients"]),
            "items": content["items"],
            "weights": probabilities(content["patients"]),
            "probabilities": probabilities(content["answers"], prior, sizes=sizes),
            "loglik": float("nan"),  # it does not leave the site
            "converged": True,
        }
    )


def _unfit_latent(content: Content, min_count: int) -> str | None:
    sizes = [len(part["categories"]) for part in content["items"]]
    wrong = first_of(
        unfit_patients(content, min_count),
        misshapen(content["answers"], "answers", (len(content["patients"]), sum(sizes))),
    )
    if wrong is not None:
        return wrong
    for part, size in zip(content["items"], sizes, strict=True):
        values = part["categories"]
        if len(set(values)) != size or len({isinstance(v, str) for v in values}) > 1:
            return f"the answers of its item {part['item']!r} are not distinct and of one type"
    wrong = unrounded(content["answers"], min_count)
    return None if wrong is None else f"its answers have {wrong}"


def _latent_words(content: Content) -> tuple[list[str], list[str]]:
    items = ", ".join(part["item"] for part in content["items"])
    contains = [
        f"how many patients of each of {len(content['patients'])} classes gave each answer to "
        f"{items}, rounded at random",
        patients_in_words(content),
        f"the pseudo-count ({content['prior']:g}) with which receivers turn counts into "
        "probabilities",
    ]
    return contains, ["which answers occur at the site, and about how common each is in each class"]


def _latent_support(model: LatentClass, data: Any, membership: Any) -> Floats:
    return model.statistics(data, membership)  # each person gives an answer once


def _latent_blocks(content: Content) -> NDArray[np.intp]:
    """The patients, then each item by itself."""
    sizes = [1, *(len(part["categories"]) for part in content["items"])]
    return np.repeat(np.arange(len(sizes)), sizes)


LATENT_CLASS = ModelKind(
    name="latent class model",
    schema=LatentClassPart,
    variables=lambda content: tuple(part["item"] for part in content["items"]),
    unfit=_unfit_latent,
    is_kind=lambda model: isinstance(model, LatentClass),
    write=_write_latent,
    read=_read_latent,
    words=_latent_words,
    support=_latent_support,
    shares=_latent_support,
    blocks=_latent_blocks,
    n_statistics=lambda content: 1 + sum(len(part["categories"]) for part in content["items"]),
)
