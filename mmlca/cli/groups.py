"""Groups of options that a command names as one argument.

A group is a dataclass of options (`home: Home`), or settings of a package (`rules: RuleOptions`,
that is `Annotated[dict[str, Any], Rules]`), which arrive as a dict of those that were given.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from pydantic.fields import FieldInfo

from ehr_prep.settings import Reading, RecordColumns, Rules
from font.settings import Settings, about
from mmlca.model.settings import ClassSettings, ModelSettings

RuleOptions = Annotated[dict[str, Any], Rules]
ReadingOptions = Annotated[dict[str, Any], Reading, ("drugs", "drug_names")]
"""Those of `Reading` but the drug map, which several commands share as files."""
ModelOptions = Annotated[dict[str, Any], ModelSettings]
CriterionOptions = Annotated[dict[str, Any], ClassSettings, ("number", "candidates", "stability")]


class PerSite(NamedTuple):
    """Settings of `Reading` that may be given for one site, as in --date-column MGB=Datum."""

    names: tuple[str, ...]


SiteReading = Annotated[
    dict[str, list[str]],
    PerSite((*RecordColumns.model_fields, "date_format", "encoding", "delimiter", "decimal")),
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of each group instead of the group, for typer."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        options, make = _options_in(hints[name])
        if make is None:
            hint = hints[name]
            parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
            continue
        groups[name] = make, [option.name for option in options]
        parameters += options

    @wraps(command)
    def whole(**values: Any) -> None:
        for name, (make, options) in groups.items():
            values[name] = make(**{option: values.pop(option) for option in options})
        command(**values)

    whole.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    whole.__annotations__ = {p.name: p.annotation for p in parameters}
    return whole


def option_names(kind: type[Settings]) -> dict[str, str]:
    """{name of a setting: option of a command} of settings whose options have other names."""
    named = {name: about(field, "option") for name, field in kind.model_fields.items()}
    return {name: option for name, option in named.items() if option is not None}


def _options_in(group: Any) -> tuple[list[inspect.Parameter], Callable[..., Any] | None]:
    """The options of a group and what makes the group of their values; None for other types."""
    if is_dataclass(group):
        types = get_type_hints(group, include_extras=True)
        options = [_parameter(f.name, types[f.name], f.default) for f in fields(group)]
        return options, typing.cast(Callable[..., Any], group)
    kind, *left_out = getattr(group, "__metadata__", None) or [None]
    if isinstance(kind, PerSite):
        return [_parameter(name, _per_site(name), None) for name in kind.names], _given
    if not (isinstance(kind, type) and issubclass(kind, Settings)):
        return [], None
    options = [
        _parameter(name, _annotation(kind, name, field), None if kind is Rules else field.default)
        for name, field in kind.model_fields.items()
        if not left_out or name not in left_out[0]
    ]
    return options, _given


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [])}


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(name: str, field: FieldInfo) -> str:
    return about(field, "option") or f"--{name.replace('_', '-')}"


def _per_site(name: str) -> Any:
    field = Reading.model_fields[name]
    option = typer.Option(
        _option(name, field),
        metavar="[SITE=]TEXT",
        help=field.description,
        show_default="as the files show",
    )
    return Annotated[(list[str] | None, option)]


def _annotation(kind: type[Settings], name: str, field: FieldInfo) -> Any:
    """What typer needs to know of a setting; pydantic checks the value in any case."""
    option = _option(name, field)
    default, example = field.default, about(field, "example")
    shown: Any = default is not None
    if kind is Rules and shown:
        shown = f"{default}, or that of the preset"
    text = field.description or ""
    if default is None and example is not None and not isinstance(example, bool):
        text = f"{text} Example: {_example(example)}"
    more: dict[str, Any] = {"help": text, "show_default": shown}
    kinds = _kinds(field.annotation)
    least = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    if kinds == {int}:
        return Annotated[(int | None, typer.Option(option, min=least, **more))]
    if kinds == {bool}:
        return Annotated[(bool | None, typer.Option(option, **more))]
    if all(typing.get_origin(kind) is Literal for kind in kinds):
        (choices,) = kinds
        return Annotated[(choices | None, typer.Option(option, **more))]
    if any(typing.get_origin(kind) in (tuple, dict) for kind in kinds):
        metavar = "[DRUG=]DAYS" if int in kinds else None
        more["help"] = f"{text}; repeat it for others."
        return Annotated[(list[str] | None, typer.Option(option, metavar=metavar, **more))]
    if kinds == {float}:
        return Annotated[(float | None, typer.Option(option, min=least, **more))]
    return Annotated[(str | None, typer.Option(option, **more))]


def _example(value: Any) -> str:
    return str(value[0] if isinstance(value, list | tuple) else value)


def _kinds(annotation: Any) -> set[Any]:
    """The types of a union, without None and what is beside them."""
    if typing.get_origin(annotation) is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if isinstance(annotation, type) or typing.get_origin(annotation) in (tuple, dict, Literal):
        return {annotation} - {NoneType}
    return set().union(*map(_kinds, typing.get_args(annotation)))
