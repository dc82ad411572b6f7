"""The file of a saved model: what it may contain."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmlca.checks import MAX_STATES

_MAX_CLASSES = 1_000
Number = Annotated[float, Field(allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[list[Probability], Field(min_length=1, max_length=MAX_STATES)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ParamsPart(_Strict):
    """Probabilities; `MarkovParams` checks shapes and sums."""

    weights: Annotated[list[Probability], Field(min_length=1, max_length=_MAX_CLASSES)]
    initial: Annotated[list[Row], Field(min_length=1, max_length=_MAX_CLASSES)]
    transition: Annotated[
        list[Annotated[list[Row], Field(max_length=MAX_STATES)]],
        Field(min_length=1, max_length=_MAX_CLASSES),
    ]


class ModelFile(_Strict):
    """A saved model; version 1."""

    format: Literal["mmlca model"]
    version: Literal[1]
    software: Annotated[str, Field(max_length=100)]
    states: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(min_length=1, max_length=MAX_STATES),
    ]
    params: ParamsPart
    n_parameters: Annotated[int, Field(ge=0)]
    prior: Annotated[Number, Field(ge=0)]
    loglik: Number
    n_sequences: Annotated[Number, Field(gt=0)]
    n_timepoints: Annotated[Number, Field(gt=0)]
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Annotated[int, Field(ge=0)]

    @classmethod
    def checked(cls, stored: Any) -> Self:
        """The content, or one sentence that says what is wrong with it."""
        try:
            return cls.model_validate(stored)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(f"not a model of mmlca: {where}: {first['msg']}.") from None
