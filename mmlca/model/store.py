"""The JSON form of a fitted model: what the file contains, how it is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from font.errors import InputError
from font.files import atomic_write, check_regular
from font.models import LatentClass
from mmlca import __version__
from mmlca.model.covariates import Design
from mmlca.model.params import AnyParams, FormParams, MarkovParams
from mmlca.model.step_covariates import StepParams
from mmlca.sequences.checks import MAX_STATES, MAX_TIMES

if TYPE_CHECKING:
    from mmlca.model.course import CourseClasses
    from mmlca.model.estimator import MixtureMarkov

Model = TypeVar("Model", bound="MixtureMarkov")
ByCourse = TypeVar("ByCourse", bound="CourseClasses")
File = TypeVar("File", bound="_Strict")

_FILE_LIMIT = 64 * 2**20
_MAX_CLASSES, _MAX_GROUPS, _MAX_TERMS, _MAX_CUTS = 1_000, 10_000, 500, 200
_MAX_NUMBERS = 1_000_000
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
    transitions: Annotated[str, Field(max_length=2_000)] = ""


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


class StepPart(_Strict):
    """Steps by covariates: the design, and the numbers of each class; see `StepParams`."""

    design: DesignPart
    common_effects: bool
    numbers: Annotated[
        list[Annotated[list[Number], Field(min_length=1, max_length=_MAX_NUMBERS)]], _classes
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
    steps: StepPart | None = None
    params: ParamsPart
    n_parameters: Annotated[int, Field(ge=0)]
    loglik: Number
    n_sequences: Annotated[Number, Field(gt=0)]
    n_timepoints: Annotated[Number, Field(gt=0)]
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Annotated[int, Field(ge=0)]
    n_searches: Annotated[int, Field(ge=0)] | None = None  # absent from older files
    n_cells: Annotated[int, Field(ge=0)] | None = None  # where absent, `n_parameters` is this


class FormFile(ModelFile):
    """The same for chains of a form other than plain, whose parameters name it."""

    params: FormParamsPart  # type: ignore[assignment]


class CourseFile(_Strict):
    """Saved classes of the time course, version 1, with probabilities K × T × S.

    What follows `probabilities` are attributes of the estimator (`…_`).
    """

    format: Literal["mmlca course model"]
    version: Literal[1]
    software: Annotated[str, Field(max_length=100)]
    states: Annotated[list[Name], _states]
    times: Annotated[list[Name], Field(min_length=1, max_length=MAX_TIMES)]
    prior: Annotated[Number, Field(ge=0)]
    groups: Annotated[list[GroupPart], Field(max_length=_MAX_GROUPS)] = []
    weights: Shares
    probabilities: Annotated[
        list[Annotated[list[Row], Field(min_length=1, max_length=MAX_TIMES)]], _classes
    ]
    n_parameters: Annotated[int, Field(ge=0)]
    loglik: Number
    n_sequences: Annotated[Number, Field(gt=0)]
    n_timepoints: Annotated[Number, Field(gt=0)]
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Annotated[int, Field(ge=0)]
    n_searches: Annotated[int, Field(ge=0)]


_COURSE_FIELDS = list(CourseFile.model_fields)
_OF_COURSES = _COURSE_FIELDS[_COURSE_FIELDS.index("probabilities") + 1 :]
_FIELDS = list(ModelFile.model_fields)
_ATTRIBUTES = _FIELDS[_FIELDS.index("params") + 1 :]


def to_dict(model: MixtureMarkov) -> dict[str, Any]:
    """The fitted model in plain lists and numbers."""
    parts = _group_parts(model)
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
    if model.form.transitions:
        content["steps"] = {
            "design": model._step_design.to_dict(),
            "common_effects": model.common_effects,
            "numbers": model.step_params_.vector.tolist(),
        }
    return content


def from_dict(kind: type[Model], stored: Mapping[str, Any]) -> Model:
    """The model that a file holds; or one sentence that says what is wrong."""
    params = stored.get("params") if isinstance(stored, Mapping) else None
    has_form = isinstance(params, Mapping) and "form" in params
    content = _checked(FormFile if has_form else ModelFile, stored)
    chains, form = _params(content.params)
    if chains.n_states != len(content.states):
        raise InputError(f"the model has {chains.n_states} states but names {len(content.states)}.")
    groups, shares = _read_groups(content.groups, chains.n_classes)
    model = kind(chains.n_classes, prior=content.prior, **form)
    model._set_params_(chains, tuple(content.states), groups, shares)
    for name in _ATTRIBUTES:
        setattr(model, f"{name}_", getattr(content, name))
    if content.n_cells is None:
        model.n_cells_ = content.n_parameters
    if (part := content.covariates) is not None:
        design = Design.from_dict(part.design.model_dump())
        shape = len(design.columns), chains.n_classes
        if len(part.coefficients) != shape[0] or {len(x) for x in part.coefficients} != {shape[1]}:
            raise InputError(
                f"the model's coefficients must be {shape[0]} rows of {shape[1]} numbers."
            )
        model._set_coefficients(design, np.array(part.coefficients))
    if (content.steps is None) != (not model.form.transitions):
        raise InputError("the model's form and the covariates of its steps do not fit together.")
    if content.steps is not None:
        model._step_design = Design.from_dict(content.steps.design.model_dump())
        model.common_effects = content.steps.common_effects
        n_columns = len(model._step_design.columns) - 1
        shapes = StepParams.shapes(model.form, chains.n_states, n_columns)
        n_numbers = sum(prod(shape) for shape in shapes)
        numbers = content.steps.numbers
        if len(numbers) != chains.n_classes or {len(row) for row in numbers} != {n_numbers}:
            raise InputError(
                f"the model's steps need {chains.n_classes} rows of {n_numbers} numbers."
            )
        model.step_params_ = StepParams.from_vector(
            np.array(numbers), model.form, chains.n_states, n_columns
        )
    return model


def course_to_dict(model: CourseClasses) -> dict[str, Any]:
    """Fitted classes of the time course in plain lists and numbers."""
    parts, shape = _group_parts(model), (len(model.weights_), len(model.times_), -1)
    return {
        "format": "mmlca course model",
        "version": 1,
        "software": f"mmlca {__version__}",
        "states": list(model.states_),
        "times": list(model.times_),
        "prior": float(model.prior),
        **({"groups": parts} if parts else {}),
        "weights": model.weights_.tolist(),
        "probabilities": model.class_parameters_.reshape(shape).tolist(),
    } | {name: getattr(model, f"{name}_") for name in _OF_COURSES}


def course_from_dict(kind: type[ByCourse], stored: Mapping[str, Any]) -> ByCourse:
    """The classes of the time course that a file holds; or one sentence that says what is wrong."""
    content = _checked(CourseFile, stored)
    states, times = tuple(content.states), tuple(content.times)
    for name, labels in (("state", states), ("time", times)):
        if len(set(labels)) != len(labels):
            raise InputError(f"the model names a {name} twice.")
    k, rows = len(content.weights), content.probabilities
    if len(rows) != k or {len(row) for row in rows} != {len(times)}:
        raise InputError(f"the model needs probabilities for {k} classes × {len(times)} times.")
    if {len(cells) for row in rows for cells in row} != {len(states)}:
        raise InputError(f"the model needs probabilities of its {len(states)} states everywhere.")
    table, weights = np.array(rows, dtype=float), np.array(content.weights)
    if max(np.abs(table.sum(axis=2) - 1).max(), abs(weights.sum() - 1)) > 1e-4:
        raise InputError("the model's probabilities or class proportions do not sum to 1.")
    groups, shares = _read_groups(content.groups, k)
    items = LatentClass.of(
        {time: list(states) for time in times},
        weights,
        table.reshape(k, -1),
        prior=content.prior * len(states),
    )
    items.group_weights_ = pd.DataFrame(
        np.reshape(np.array(shares, dtype=float), (len(groups), k)), index=list(groups)
    )
    model = kind.of(items, states, times, prior=content.prior)
    for name in _OF_COURSES:
        setattr(model, f"{name}_", getattr(content, name))
    return model


def _checked(kind: type[File], stored: Mapping[str, Any]) -> File:
    """The content of a file, of the right form."""
    try:
        return kind.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"not a model of mmlca: {where}: {first['msg']}.") from None


def _group_parts(model: MixtureMarkov | CourseClasses) -> list[dict[str, Any]]:
    """The groups of a fit with their class proportions."""
    groups = model.group_weights_
    pairs = zip(groups.index.tolist(), groups.to_numpy().tolist(), strict=True)
    return [{"group": group, "weights": row} for group, row in pairs]


def _read_groups(
    parts: Sequence[GroupPart], n_classes: int
) -> tuple[tuple[str | int, ...], list[list[float]]]:
    """The groups and their class proportions, checked."""
    groups = tuple(part.group for part in parts)
    shares = [part.weights for part in parts]
    if len(set(groups)) != len(groups):
        raise InputError("the model names a group twice.")
    for group, row in zip(groups, shares, strict=True):
        if len(row) != n_classes or abs(sum(row) - 1) > 1e-4:
            raise InputError(
                f"the group {group!r} needs {n_classes} class proportions with the sum 1; "
                f"found {len(row)} with the sum {sum(row):.6g}."
            )
    return groups, shares


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
