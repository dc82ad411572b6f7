"""Settings, each written in one place: its name, type, bounds, default and one sentence of help.

A package keeps its settings in classes derived from `Settings`. From these come the checks of
Python arguments, the options of commands, the commented study file, presets, alternatives for
sensitivity analyses and the table of settings in the documentation.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from font.errors import InputError, option_name

MIN_COUNT = 11
"""Smallest number of patients that a hospital shows or shares, unless it is set otherwise."""
_PLAIN = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text in quotation marks",
    "a valid boolean": "true or false",
    "a valid tuple": "a list such as [2, 3]",
    "a valid dictionary": "a table of keys",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""What pydantic says, and what it means."""


class Settings(BaseModel):
    """Some settings, checked and immutable; each field is made by `setting`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


AnySettings = TypeVar("AnySettings", bound=Settings)


class Alternatives(NamedTuple):
    """Other values of a setting that a sensitivity analysis tries.

    `label` names the setting for people; `key` is its name under `[sensitivity]` where that
    differs from the setting's own.
    """

    label: str
    values: tuple[Any, ...] = ()
    key: str | None = None


def setting(
    default: Any,
    text: str,
    *,
    example: Any = None,
    option: str | None = None,
    alternatives: Alternatives | None = None,
    **bounds: Any,
) -> Any:
    """A field of `Settings`: its default, one sentence of help, and bounds as for `pydantic.Field`.

    `example` is shown in a study file where the default is None; `option` is the command-line
    option if it is not the name with dashes; `alternatives` make the setting part of sensitivity
    analyses.
    """
    more = {"example": example, "option": option, "alternatives": alternatives}
    return Field(default, description=text, json_schema_extra=more, **bounds)


def about(field: FieldInfo, what: str) -> Any:
    """What `setting` was given for a field: its example, option or alternatives."""
    more = field.json_schema_extra
    return more.get(what) if isinstance(more, dict) else None


def change(base: AnySettings, changes: Mapping[str, Any]) -> AnySettings:
    """Settings with some values changed, checked; an error spells the setting as the user writes
    it.

    >>> class Rules(Settings):
    ...     months: int = setting(3, "Length of a window in months.", ge=1)
    >>> change(Rules(), {"months": 6}).months
    6
    >>> change(Rules(), {"months": 0})
    Traceback (most recent call last):
    font.errors.InputError: months is 0 and should be at least 1.
    """
    known = type(base).model_fields
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}."
            raise TypeError(f"{name} is not a setting of {type(base).__name__}; {hint}")
    values = {name: getattr(base, name) for name in base.model_fields_set}
    values |= {name: _plain(value) for name, value in changes.items()}
    try:
        return type(base).model_validate(values)
    except ValidationError as error:
        raise InputError(explain(error, values, type(base), _spelled_option)) from None


def _spelled_option(place: Sequence[str]) -> str:
    """The name of a setting as the user writes it."""
    return option_name(place[0]) if place else "the settings"


def explain(
    error: ValidationError, values: Mapping[str, Any], kind: type[BaseModel], spell: Any = ".".join
) -> str:
    """The first setting at fault, with everything that pydantic says about it.

    `values` were validated as a `kind`; `spell` writes the keys that lead to a setting.
    """
    faults: dict[tuple[str, ...], list[Any]] = {}
    for fault in error.errors(include_url=False):
        faults.setdefault(_place(fault, values), []).append(fault)
    (place, (first, *rest)), *others = faults.items()
    key, more = spell(place), f" ({len(others)} more at fault)" if others else ""
    if first["type"] == "extra_forbidden":
        known = keys_at(kind, place[:-1])
        near = difflib.get_close_matches(place[-1], known, n=1)
        hint = (
            f"did you mean {spell([*place[:-1], *near])}?"
            if near
            else f"known: {', '.join(known)}."
        )
        return f"{key} is not known{more}; {hint}"
    if first["type"] == "missing":
        return f"{key} is missing{more}; `mmlca study init` shows what a study file holds."
    need, *more_needs = dict.fromkeys(_need(fault) for fault in (first, *rest))
    needs = " or ".join([need, *(text.removeprefix("should be ") for text in more_needs)])
    value = "" if isinstance(first["input"], dict | BaseModel) else f" is {first['input']!r} and"
    end = "" if needs.endswith("?") else "."
    return f"{key}{value} {needs.rstrip('.')}{more}{end}"


def keys_at(kind: Any, place: Sequence[str]) -> list[str]:
    """What may stand at this place of nested settings."""
    for part in place:
        fields = getattr(kind, "model_fields", {})
        if part in fields:
            kind = _settings_in(fields[part].annotation) or kind
    return [field.alias or name for name, field in kind.model_fields.items()]


def _settings_in(annotation: Any) -> Any:
    """The settings class inside an annotation such as `dict[str, Site]`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inside = (_settings_in(part) for part in typing.get_args(annotation))
    return next((part for part in inside if part is not None), None)


def _place(fault: Any, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that lead to a fault; pydantic also names the branches of a union it tried."""
    kept: list[str] = []
    node: Any = values
    for part in fault["loc"]:
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif fault["type"] != "missing":
            break
        kept.append(str(part))
    return tuple(kept)


def _need(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][-1] == "key":
        return "should be a public key of 64 hexadecimal digits, from the site's signing.pub"
    if fault["type"] == "string_pattern_mismatch":
        return "may hold letters, digits, spaces, points and dashes only"
    if fault["type"].startswith(("date_", "datetime_")):
        return "should be a date such as 2008-01-01"
    for technical, plain in _PLAIN.items():
        text = text.replace(technical, plain)
    return text[text.index("should") :] if "should" in text else text


def _plain(value: Any) -> Any:
    """Numbers and lists as pydantic takes them."""
    if isinstance(value, list) or getattr(value, "ndim", 0) == 1:
        return tuple(value)
    is_numpy_scalar = type(value).__module__ == "numpy" and type(value).__name__ != "datetime64"
    return value.item() if is_numpy_scalar else value


class EnsembleSettings(Settings):
    """How the sites' models become one clustering; see `font.Ensemble` and `font.refine`."""

    weights: Literal["spectral", "centred", "equal", "sparse"] = setting(
        "spectral",
        "Weights of the models: the first eigenvector of their agreement, the same of centred "
        "distances, equal, or sparse.",
        alternatives=Alternatives("weights", ("centred", "equal")),
    )
    distance: Literal["euclidean", "hellinger", "total-variation"] = setting(
        "euclidean", "Distance between the parameters of two classes."
    )
    method: Literal[
        "kmeans",
        "kmeans-distance",
        "average",
        "complete",
        "ward",
        "spectral",
        "latent",
        "kmeans-classes",
    ] = setting(
        "kmeans",
        "How the patients' labels become clusters. The last two need only tables of labels, as "
        "between hospitals; the others need the labels of each patient.",
    )
    refine: Annotated[int, Field(ge=0, le=50)] | Literal["held-out", "converge", "none"] = setting(
        1,
        "Steps of the refinement shown beside the ensemble; held-out: as many as are best for "
        "patients held out; converge: until nothing changes.",
    )
