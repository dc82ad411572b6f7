"""The families of local models that font brings along, as exchange files hold them.

K-means and Gaussian mixtures are averages to a stated precision and rounded sizes. Besides what all
models have, the content is:

=================== =========================================================================
format              "font k-means" or "font gaussian mixture"
variables           names of the d columns
centres             K-means: centres of the classes (K × d)
means               Gaussian mixture: means of the classes (K × d)
precision           of centres or means: each column is written as a multiple of this
covariance_type     "full", "tied", "diag" or "spherical"
covariances         K × d × d, 1 × d × d, K × 1 × d or K × 1 × 1, in that order of types; four
                    significant digits
=================== =========================================================================

Latent class models are patients by class and answer, rounded at random:

=================== =========================================================================
format              "font latent class"
items               list of {item, categories}
answers             patients by class and answer, item after item (K rows)
prior               pseudo-count that receivers add to every answer
=================== =========================================================================

The sums of a refinement have for each cluster the patients, then those who gave each answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from font.checks import Floats, class_parameters, some
from font.errors import InputError
from font.exchange.disclosure import Draws, precision, round_counts, unrounded
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_CUBES,
    MOST_VARIABLES,
    ByClass,
    Content,
    Count,
    Label,
    Names,
    Number,
    One,
    Patients,
    Positive,
    Strict,
    Values,
    enough_patients,
    first_misfit,
    misfit_of_patients,
    misfit_of_shape,
    patients_in_words,
    size,
)
from font.exchange.registry import ModelFamily
from font.models import Gaussians, LatentClass, SklearnModel, kmeans_at, mixture_of
from font.probabilities import PRIOR_OF_ROUNDED_ANSWERS, probabilities

# --- K-means and Gaussian mixtures ------------------------------------------------------------

_DIGITS = 4  # significant digits of covariances


class MeansPart(Strict):
    """What both families have."""

    version: One
    variables: Names
    patients: Patients
    precision: Annotated[list[Positive], size(1, MOST_VARIABLES)]


class KMeansPart(MeansPart):
    """K-means."""

    format: Literal["font k-means"]
    centres: ByClass


class GaussianPart(MeansPart):
    """A mixture of normal distributions."""

    format: Literal["font gaussian mixture"]
    means: ByClass
    covariance_type: Literal["full", "tied", "diag", "spherical"]
    covariances: Annotated[
        list[Annotated[list[Values], size(1, MOST_VARIABLES)]],
        size(1, MOST_CLASSES),
    ]


def _is_sklearn(name: str, model: Any) -> bool:
    kind = type(_estimator(model))
    return kind.__name__ == name and kind.__module__.startswith("sklearn.")


def _estimator(model: Any) -> Any:
    return model.estimator if isinstance(model, SklearnModel) else model


def _fit_kmeans(data: Any, n_classes: int, *, n_init: int, seed: int) -> SklearnModel:
    from sklearn.cluster import KMeans

    inner = KMeans(n_classes, n_init=n_init, random_state=seed)
    return SklearnModel(inner).fit(_numbers(data, n_classes))


def _fit_gaussian(data: Any, n_classes: int, *, n_init: int, seed: int) -> SklearnModel:
    from sklearn.mixture import GaussianMixture

    inner = GaussianMixture(n_classes, n_init=n_init, random_state=seed)
    return SklearnModel(inner).fit(_numbers(data, n_classes))


def _numbers(data: Any, n_classes: int) -> Floats:
    """The table as numbers, without gaps and with enough rows."""
    frame = pd.DataFrame(data)
    numbers = frame.apply(pd.to_numeric, errors="coerce")
    wrong = frame.columns[~np.isfinite(numbers.to_numpy(dtype=float)).all(axis=0)]
    if len(wrong):
        raise InputError(
            f"the columns {some(wrong)} have missing values or texts; this family of models needs "
            "a number for each patient in every column."
        )
    if len(numbers) < n_classes:
        raise InputError(f"{len(numbers)} patients are too few for {n_classes} classes.")
    return np.asarray(numbers, dtype=float)


def _sizes(model: Any, data: Any) -> Floats:
    """Expected patients by class; K-means has no probabilities."""
    inner, points = _estimator(model), np.asarray(data, dtype=float)
    if hasattr(inner, "predict_proba"):
        return np.asarray(inner.predict_proba(points).sum(axis=0))
    return np.bincount(inner.predict(points), minlength=len(inner.cluster_centers_)).astype(float)


def _write_kmeans(model: Any, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    content = _common(model, data, min_count, draws)
    return {"format": "font k-means", **content, "centres": _rounded_means(model, content)}


def _write_gaussian(model: Any, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    mixture, content = _estimator(model), _common(model, data, min_count, draws)
    shape = _covariance_shape(mixture.covariance_type, *mixture.means_.shape)
    flat = [float(f"{value:.{_DIGITS}g}") for value in np.ravel(mixture.covariances_)]
    return {
        "format": "font gaussian mixture",
        **content,
        "means": _rounded_means(model, content),
        "covariance_type": mixture.covariance_type,
        "covariances": np.reshape(flat, shape).tolist(),
    }


def _common(model: Any, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    """Columns, the precision of their means, and rounded patients by class."""
    means = class_parameters(_estimator(model), "to be sent")
    names = [str(name) for name in data.columns] if isinstance(data, pd.DataFrame) else None
    sizes = enough_patients(_sizes(model, data), min_count)
    return {
        "version": 1,
        "variables": names or [f"x{i + 1}" for i in range(means.shape[1])],
        "precision": [precision(column) for column in means.T],
        "patients": round_counts(sizes, min_count, draws).tolist(),
    }


def _rounded_means(model: Any, content: Content) -> list[list[float]]:
    means = class_parameters(_estimator(model), "to be sent")
    digits = [int(-np.log10(step).round()) for step in content["precision"]]
    return [[round(float(v), d) for v, d in zip(row, digits, strict=True)] for row in means]


def _covariance_shape(form: str, k: int, d: int) -> tuple[int, int, int]:
    return {"full": (k, d, d), "tied": (1, d, d), "diag": (k, 1, d), "spherical": (k, 1, 1)}[form]


def _read_kmeans(content: Content) -> SklearnModel:
    return SklearnModel(kmeans_at(np.array(content["centres"], dtype=float)))


def _read_gaussian(content: Content) -> SklearnModel:
    form, patients = content["covariance_type"], np.array(content["patients"], dtype=float)
    stored = np.array(content["covariances"], dtype=float)
    shaped = {"full": stored, "tied": stored[0], "diag": stored[:, 0]}
    means = np.array(content["means"], dtype=float)
    fit = Gaussians(patients / patients.sum(), means, shaped.get(form, stored.ravel()))
    return SklearnModel(mixture_of(fit, form))


def _variables(content: Content) -> tuple[str, ...]:
    return tuple(content["variables"])


def _misfit(content: Content, min_count: int) -> str | None:
    k, d = len(content["patients"]), len(content["variables"])
    means = "centres" if "centres" in content else "means"
    return first_misfit(
        misfit_of_patients(content, min_count),
        misfit_of_shape(content[means], means, (k, d)),
        misfit_of_shape(content["precision"], "precision", (d,)),
    )


def _misfit_of_gaussian(content: Content, min_count: int) -> str | None:
    k, d = len(content["patients"]), len(content["variables"])
    form = content["covariance_type"]
    shape = _covariance_shape(form, k, d)
    wrong = first_misfit(
        _misfit(content, min_count),
        misfit_of_shape(content["covariances"], "covariances", shape),
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
        "the averages of each class, each based on at least the smallest number of patients; "
        "anyone who knows all but one of a class's patients and their exact number can "
        "work out the values of that patient to the precision of the averages times that number"
    ]


K_MEANS = ModelFamily(
    name="K-means",
    schema=KMeansPart,
    variables=_variables,
    find_misfit=_misfit,
    recognises=lambda model: _is_sklearn("KMeans", model),
    write=_write_kmeans,
    read=_read_kmeans,
    sizes=_sizes,
    fit=_fit_kmeans,
    explain=_words_of_means,
)
GAUSSIAN = ModelFamily(
    name="Gaussian mixture",
    schema=GaussianPart,
    variables=_variables,
    find_misfit=_misfit_of_gaussian,
    recognises=lambda model: _is_sklearn("GaussianMixture", model),
    write=_write_gaussian,
    read=_read_gaussian,
    sizes=_sizes,
    fit=_fit_gaussian,
    explain=_words_of_means,
)


# --- latent class models ----------------------------------------------------------------------


class ItemPart(Strict):
    """An item of a latent class model and its possible answers."""

    item: Label
    categories: Annotated[list[Label | bool | int | Number], size(1, MOST_VARIABLES)]


class LatentClassPart(Strict):
    """A latent class model of categorical items."""

    format: Literal["font latent class"]
    version: One
    items: Annotated[list[ItemPart], size(1, MOST_VARIABLES)]
    prior: Annotated[Number, Field(ge=0)]
    patients: Patients
    answers: Annotated[
        list[Annotated[list[Count], size(1, 10 * MOST_VARIABLES)]],
        size(1, MOST_CLASSES),
    ]


def _fit_latent(data: Any, n_classes: int, *, n_init: int, seed: int) -> LatentClass:
    return LatentClass(n_classes, n_init=n_init, seed=seed).fit(pd.DataFrame(data))


def _compare_latent(
    data: Any, candidates: Sequence[int], criterion: str, *, n_init: int, seed: int
) -> pd.DataFrame:
    if criterion != "bic":
        raise InputError(f"latent class models are compared by bic; found {criterion!r}.")
    frame = pd.DataFrame(data)
    settings = {"n_init": n_init, "seed": seed}
    bic = [_fit_latent(frame, k, **settings).bic(len(frame)) for k in candidates]
    table = pd.DataFrame({"classes": list(candidates), "bic": bic})
    return table.assign(chosen=table.index == table["bic"].argmin())


def _latent_sizes(model: LatentClass, data: Any) -> Floats:
    return np.asarray(model.predict_proba(data).sum(axis=0))


def _write_latent(model: LatentClass, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(np.asarray(data))
    shares = model.predict_proba(frame)
    sizes = enough_patients(_latent_sizes(model, frame), min_count)
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
    return LatentClass.of(
        {part["item"]: list(part["categories"]) for part in content["items"]},
        probabilities(content["patients"]),
        probabilities(content["answers"], prior, sizes=sizes),
    )


def _misfit_of_latent(content: Content, min_count: int) -> str | None:
    sizes = [len(part["categories"]) for part in content["items"]]
    wrong = first_misfit(
        misfit_of_patients(content, min_count),
        misfit_of_shape(content["answers"], "answers", (len(content["patients"]), sum(sizes))),
    )
    if wrong is not None:
        return wrong
    for part in content["items"]:
        values = part["categories"]
        if len(set(values)) != len(values) or len({isinstance(v, str) for v in values}) > 1:
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


LATENT_CLASS = ModelFamily(
    name="latent class model",
    schema=LatentClassPart,
    variables=lambda content: tuple(part["item"] for part in content["items"]),
    find_misfit=_misfit_of_latent,
    recognises=lambda model: isinstance(model, LatentClass),
    write=_write_latent,
    read=_read_latent,
    sizes=_latent_sizes,
    fit=_fit_latent,
    compare=_compare_latent,
    explain=_latent_words,
    support=_latent_support,
    shares=_latent_support,
    blocks=_latent_blocks,
    n_statistics=lambda content: 1 + sum(len(part["categories"]) for part in content["items"]),
)
