"""Latent class models in exchange files: patients by class and answer, rounded at random.

Besides what all models have, the content is:

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

from font.checks import Floats, some
from font.errors import InputError
from font.exchange.disclosure import Draws, round_counts, unrounded
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_VARIABLES,
    Content,
    Count,
    Label,
    Number,
    One,
    Patients,
    Strict,
    enough_patients,
    first_misfit,
    misfit_of_patients,
    misfit_of_shape,
    patients_in_words,
    size,
)
from font.exchange.registry import ModelFamily
from font.models.latent_class import LatentClass
from font.probabilities import PRIOR_OF_ROUNDED_ANSWERS, probabilities


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
) -> tuple[dict[int, float], int]:
    if criterion != "bic":
        raise InputError(f"latent class models are compared by bic; found {criterion!r}.")
    frame = pd.DataFrame(data)
    settings = {"n_init": n_init, "seed": seed}
    bic = {k: _fit_latent(frame, k, **settings).bic(len(frame)) for k in candidates}
    return bic, min(bic, key=lambda k: (bic[k], k))


def _sizes(model: LatentClass, data: Any) -> Floats:
    return np.asarray(model.predict_proba(data).sum(axis=0))


def _write_latent(model: LatentClass, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(np.asarray(data))
    shares = model.predict_proba(frame)
    sizes = enough_patients(_sizes(model, frame), min_count)
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
    sizes=_sizes,
    fit=_fit_latent,
    compare=_compare_latent,
    explain=_latent_words,
    support=_latent_support,
    shares=_latent_support,
    blocks=_latent_blocks,
    n_statistics=lambda content: 1 + sum(len(part["categories"]) for part in content["items"]),
)
