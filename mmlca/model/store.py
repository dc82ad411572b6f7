"""The JSON form of a fitted model: what the file contains, how it is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from font.errors import InputError
from font.files import atomic_write, check_regular
from mmlca import __version__
from mmlca.model.covariates import Design
from mmlca.model.params import Floats, MarkovParams
from mmlca.sequences.checks import MAX_STATES

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

Model = TypeVar("Model", bound="MixtureMarkov")

_FILE_LIMIT = 64 * 2**20
_MAX_CLASSES, _MAX_GROUPS = 1_000, 10_000
_MAX_TERMS = 500
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


class GroupPart(_Strict):
    """A group of patients and its class proportions."""

    group: str | int
    weights: Annotated[list[Probability], Field(min_length=1, max_length=_MAX_CLASSES)]


Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], Field(min_length=1, max_length=_MAX_TERMS)]
Numbers = Annotated[list[Number], Field(min_length=1, max_length=_MAX_TERMS)]


class VariablePart(_Strict):
    """A covariate; `levels` if it is categorical."""

    name: Name
    levels: Annotated[list[Name], Field(min_length=2, max_length=_MAX_TERMS)] | None


class DesignPart(_Strict):
    """How covariates become columns; `Design` checks that the parts fit together."""

    variables: Annotated[list[VariablePart], Field(min_length=1, max_length=_MAX_TERMS)]
    terms: Annotated[
        list[Annotated[list[Name], Field(min_length=1, max_length=8)]],
        Field(min_length=1, max_length=_MAX_TERMS),
    ]
    shift: Numbers
    scale: Annotated[
        list[Annotated[Number, Field(gt=0)]], Field(min_length=1, max_length=_MAX_TERMS)
    ]


class LogitPart(_Strict):
    """Membership by covariates: the design, and coefficients by column and class."""

    design: DesignPart
    coefficients: Annotated[
        list[Annotated[list[Number], Field(min_length=1, max_length=_MAX_CLASSES)]],
        Field(min_length=2, max_length=_MAX_TERMS + 1),
    ]


class ModelFile(_Strict):
    """A saved model, version 1. What follows `params` are attributes of the estimator (`…_`)."""

    format: Literal["mmlca model"]
    version: Literal[1]
    software: Annotated[str, Field(max_length=100)]
    states: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(min_length=1, max_length=MAX_STATES),
    ]
    prior: Annotated[Number, Field(ge=0)]
    groups: Annotated[list[GroupPart], Field(max_length=_MAX_GROUPS)] = []
    covariates: LogitPart | None = None
    params: ParamsPart
    n_parameters: Annotated[int, Field(ge=0)]
    loglik: Number
    n_sequences: Annotated[Number, Field(gt=0)]
    n_timepoints: Annotated[Number, Field(gt=0)]
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Annotated[int, Field(ge=0)]
    n_searches: Annotated[int, Field(ge=0)] | None = None  # absent from older files


_FIELDS = list(ModelFile.model_fields)
_ATTRIBUTES = _FIELDS[_FIELDS.index("params") + 1 :]


def to_dict(model: MixtureMarkov) -> dict[str, Any]:
    """The fitted model in plain lists and numbers."""
    content = {
        "format": "mmlca model",
        "version": 1,
        "software": f"mmlca {__version__}",
        "states": list(model.states_),
        "prior": float(model.prior),
        **({"groups": _groups(model)} if len(model.group_weights_) else {}),
        "params": model.params_.to_dict(),
    } | {name: getattr(model, f"{name}_") for name in _ATTRIBUTES}
    if model._design.terms:
        content["covariates"] = {
            "design": model._design.to_dict(),
            "coefficients": model.coefficients_.to_numpy().tolist(),
        }
    return content


def _groups(model: MixtureMarkov) -> list[dict[str, Any]]:
    table = model.group_weights_
    rows = table.to_numpy().tolist()
    return [{"group": g, "weights": row} for g, row in zip(table.index.tolist(), rows, strict=True)]


def from_dict(kind: type[Model], stored: Mapping[str, Any]) -> Model:
    """The model that a file holds; or one sentence that says what is wrong."""
    try:
        content = ModelFile.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"not a model of mmlca: {where}: {first['msg']}.") from None
    params = MarkovParams.from_dict(content.params.model_dump())
    if params.n_states != len(content.states):
        raise InputError(f"the model has {params.n_states} states but names {len(content.states)}.")
    groups = tuple(part.group for part in content.groups)
    shares = [part.weights for part in content.groups]
    if len(set(groups)) != len(groups):
        raise InputError("the model names a group twice.")
    for group, row in zip(groups, shares, strict=True):
        if len(row) != params.n_classes or abs(sum(row) - 1) > 1e-4:
            raise InputError(
                f"the group {group!r} needs {params.n_classes} class proportions with the sum 1; "
                f"found {len(row)} with the sum {sum(row):.6g}."
            )
    model = kind(params.n_classes, prior=content.prior)
    model._set_params_(params, tuple(content.states), groups, shares)
    for name in _ATTRIBUTES:
        setattr(model, f"{name}_", getattr(content, name))
    if content.covariates is not None:
        model._set_coefficients(*_logit(content.covariates, params.n_classes))
    return model


def _logit(part: LogitPart, n_classes: int) -> tuple[Design, Floats]:
    design = Design.from_dict(part.design.model_dump())
    lengths = {len(row) for row in part.coefficients}
    if lengths != {n_classes} or len(part.coefficients) != len(design.columns):
        raise InputError(
            f"the model's coefficients must be {len(design.columns)} rows of {n_classes} numbers."
        )
    return design, np.array(part.coefficients)


def write(content: Mapping[str, Any], path: Path) -> None:
    """Write as JSON; the file appears whole or not at all."""
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
    atomic_write(path, text.encode())


def read(path: Path) -> Any:
    """The content of a JSON file of reasonable size."""
    check_regular(path)
    if path.stat().st_size > _FILE_LIMIT:
        raise InputError(f"{path} is larger than {_FILE_LIMIT // 2**20} MB: not a model.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a JSON file.") from None
