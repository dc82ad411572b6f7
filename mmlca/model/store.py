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
from mmlca.model.params import AnyParams, FormParams, MarkovParams
from mmlca.sequences.checks import MAX_STATES

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

Model = TypeVar("Model", bound="MixtureMarkov")

_FILE_LIMIT = 64 * 2**20
_MAX_CLASSES, _MAX_GROUPS, _MAX_TERMS, _MAX_CUTS = 1_000, 10_000, 500, 200
_cuts = Field(min_length=1, max_length=_MAX_CUTS + 1)
_classes = Field(min_length=1, max_length=_MAX_CLASSES)
_states = Field(min_length=1, max_length=MAX_STATES)
_terms = Field(min_length=1, max_length=_MAX_TERMS, strict=False)  # lists, which become tuples
Number = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[float, Field(allow_inf_nan=False, gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[list[Probability], _states]
Shares = Annotated[list[Probability], _classes]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ParamsPart(_Strict):
    """Probabilities; `MarkovParams` checks shapes and sums."""

    weights: Shares
    initial: Annotated[list[Row], _classes]
    transition: Annotated[list[Annotated[list[Row], Field(max_length=MAX_STATES)]], _classes]


class FormPart(_Strict):
    """Which parts the chains have; `make_form` checks them."""

    stays: Annotated[list[int], Field(max_length=_MAX_CUTS)] = []
    periods: Annotated[list[int], Field(max_length=_MAX_CUTS)] = []
    shared: Literal["destinations"] | None = None


class FormParamsPart(_Strict):
    """Probabilities of chains of a form other than plain; `FormParams` checks shapes and sums."""

    form: FormPart
    weights: Shares
    initial: Annotated[list[Row], _classes]
    leaving: Annotated[
        list[Annotated[list[Annotated[list[Row], _cuts]], _cuts]],
        _classes,
    ]
    destination: Annotated[
        list[Annotated[list[Annotated[list[Row], Field(max_length=MAX_STATES)]], _cuts]],
        _classes,
    ]


class GroupPart(_Strict):
    """A group of patients and its class proportions."""

    group: str | int
    weights: Shares


class VariablePart(_Strict):
    """A covariate; `levels` if it is categorical."""

    name: Name
    levels: (
        Annotated[tuple[Name, ...], Field(min_length=2, max_length=_MAX_TERMS, strict=False)] | None
    )


class DesignPart(_Strict):
    """How covariates become columns; `Design` checks that the parts fit together."""

    variables: Annotated[tuple[VariablePart, ...], _terms]
    terms: Annotated[
        tuple[Annotated[tuple[Name, ...], Field(min_length=1, max_length=8, strict=False)], ...],
        _terms,
    ]
    shift: Annotated[tuple[Number, ...], _terms]
    scale: Annotated[tuple[Scale, ...], _terms]


class LogitPart(_Strict):
    """Membership by covariates: the design, and coefficients by column and class."""

    design: DesignPart
    coefficients: Annotated[
        list[Annotated[list[Number], _classes]], Field(min_length=2, max_length=_MAX_TERMS + 1)
    ]


class ModelFile(_Strict):
    """A saved model, version 1. What follows `params` are attributes of the estimator (`…_`)."""

    format: Literal["mmlca model"]
    version: Literal[1]
    software: Annotated[str, Field(max_length=100)]
    states: Annotated[list[Name], _states]
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
    n_occurring: Annotated[int, Field(ge=0)] | None = None


class FormFile(ModelFile):
    """The same for chains of a form other than plain, whose parameters name it."""

    params: FormParamsPart  # type: ignore[assignment]


_FIELDS = list(ModelFile.model_fields)
_ATTRIBUTES = _FIELDS[_FIELDS.index("params") + 1 :]


def to_dict(model: MixtureMarkov) -> dict[str, Any]:
    """The fitted model in plain lists and numbers."""
    groups = model.group_weights_
    pairs = zip(groups.index.tolist(), groups.to_numpy().tolist(), strict=True)
    parts = [{"group": group, "weights": row} for group, row in pairs]
    content = {
        "format": "mmlca model",
        "version": 1,
        "software": f"mmlca {__version__}",
        "states": list(model.states_),
        "prior": float(model.prior),
        **({"groups": parts} if parts else {}),
        "params": model.params_.to_dict(),
    } | {name: getattr(model, f"{name}_") for name in _ATTRIBUTES}
    if model._design.terms:
        coefficients = model.coefficients_.to_numpy().tolist()
        content["covariates"] = {"design": model._design.to_dict(), "coefficients": coefficients}
    return content


def from_dict(kind: type[Model], stored: Mapping[str, Any]) -> Model:
    """The model that a file holds; or one sentence that says what is wrong."""
    params = stored.get("params") if isinstance(stored, Mapping) else None
    has_form = isinstance(params, Mapping) and "form" in params
    try:
        content = (FormFile if has_form else ModelFile).model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"not a model of mmlca: {where}: {first['msg']}.") from None
    chains, form = _params(content.params)
    if chains.n_states != len(content.states):
        raise InputError(f"the model has {chains.n_states} states but names {len(content.states)}.")
    groups = tuple(part.group for part in content.groups)
    shares = [part.weights for part in content.groups]
    if len(set(groups)) != len(groups):
        raise InputError("the model names a group twice.")
    for group, row in zip(groups, shares, strict=True):
        if len(row) != chains.n_classes or abs(sum(row) - 1) > 1e-4:
            raise InputError(
                f"the group {group!r} needs {chains.n_classes} class proportions with the sum 1; "
                f"found {len(row)} with the sum {sum(row):.6g}."
            )
    model = kind(chains.n_classes, prior=content.prior, **form)
    model._set_params_(chains, tuple(content.states), groups, shares)
    for name in _ATTRIBUTES:
        setattr(model, f"{name}_", getattr(content, name))
    if (part := content.covariates) is not None:
        design = Design.from_dict(part.design.model_dump())
        shape = len(design.columns), chains.n_classes
        if len(part.coefficients) != shape[0] or {len(x) for x in part.coefficients} != {shape[1]}:
            raise InputError(
                f"the model's coefficients must be {shape[0]} rows of {shape[1]} numbers."
            )
        model._set_coefficients(design, np.array(part.coefficients))
    return model


def _params(part: ParamsPart | FormParamsPart) -> tuple[AnyParams, dict[str, Any]]:
    """The parameters, and the settings that give the form of their chains."""
    stored = part.model_dump()
    if isinstance(part, ParamsPart):
        return MarkovParams.from_dict(stored), {}
    return FormParams.from_dict(stored), stored["form"]


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
