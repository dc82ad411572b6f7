"""What the models in exchange files may contain, field by field."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_STATES, MOST_CLASSES, MOST_VARIABLES = 127, 1_000, 1_000


class Strict(BaseModel):
    """No unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


PRINTED = r"^[^\p{C}\p{Zl}\p{Zp}]"  # nothing that hides, breaks or turns the line
Text = Annotated[str, Field(max_length=100, pattern=PRINTED + "*$")]
Label = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTED + "+$")]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Positive = Annotated[Number, Field(gt=0)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**12)]
One = Annotated[int, Field(ge=1, le=1)]  # a Literal would take true and 1.0
Row = Annotated[list[Share], Field(min_length=1, max_length=MOST_STATES)]
Weights = Annotated[list[Share], Field(min_length=1, max_length=MOST_CLASSES)]
Values = Annotated[list[Number], Field(min_length=1, max_length=MOST_VARIABLES)]
ByClass = Annotated[list[Values], Field(min_length=1, max_length=MOST_CLASSES)]
Names = Annotated[list[Label], Field(min_length=1, max_length=MOST_VARIABLES)]


class ParamsPart(Strict):
    """Probabilities of a mixture of Markov chains."""

    weights: Weights
    initial: Annotated[list[Row], Field(min_length=1, max_length=MOST_CLASSES)]
    transition: Annotated[
        list[Annotated[list[Row], Field(max_length=MOST_STATES)]],
        Field(min_length=1, max_length=MOST_CLASSES),
    ]


class MarkovPart(Strict):
    """A mixture of Markov chains: the model's own dict."""

    format: Literal["mmlca model"]
    version: One
    software: Text
    states: Annotated[list[Label], Field(min_length=1, max_length=MOST_STATES)]
    params: ParamsPart
    n_parameters: Count
    prior: Annotated[Number, Field(ge=0)]
    loglik: Annotated[Number, Field(le=0)]
    n_sequences: Positive
    n_timepoints: Positive
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Count


class KMeansPart(Strict):
    """K-means."""

    format: Literal["font k-means"]
    version: One
    variables: Names
    n_patients: Positive
    weights: Weights
    centres: ByClass


class GaussianPart(Strict):
    """A mixture of normal distributions."""

    format: Literal["font gaussian mixture"]
    version: One
    variables: Names
    n_patients: Positive
    weights: Weights
    means: ByClass
    covariance_type: Literal["full", "tied", "diag", "spherical"]
    covariances: Annotated[
        list[Annotated[list[Values], Field(min_length=1, max_length=MOST_VARIABLES)]],
        Field(min_length=1, max_length=MOST_CLASSES),
    ]


class ItemPart(Strict):
    """An item of a latent class model and its possible answers."""

    item: Label
    categories: Annotated[
        list[Label | bool | int | Number], Field(min_length=1, max_length=MOST_VARIABLES)
    ]


class LatentClassPart(Strict):
    """A latent class model of categorical items."""

    format: Literal["font latent class"]
    version: One
    items: Annotated[list[ItemPart], Field(min_length=1, max_length=MOST_VARIABLES)]
    n_patients: Positive
    weights: Weights
    probabilities: Annotated[
        list[Annotated[list[Share], Field(min_length=1, max_length=100 * MOST_VARIABLES)]],
        Field(min_length=1, max_length=MOST_CLASSES),
    ]
    loglik: Annotated[Number, Field(le=0)]
    converged: bool


ModelPart = Annotated[
    MarkovPart | KMeansPart | GaussianPart | LatentClassPart, Field(discriminator="format")
]
