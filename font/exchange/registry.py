"""What exchange files may carry: messages, families of local models, formats of tables of results.

A file says by a word which message it is, of which family its model is, and which tables it holds.
What the words stand for is registered here by code, so that no file can name code to load. The
module imports nothing heavy: what is registered is the place where something is defined, and that
module is loaded when the first such file is read or written. So `import mmlca` makes mixtures of
Markov chains and the tables of a study known.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from font.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from font.exchange.disclosure import Draws

    Content = Mapping[str, Any]
    Payload = Mapping[str, Any]

# --- messages ---------------------------------------------------------------------------------

# All messages by the word in a file's field `kind`, one line for each. What reads, explains and
# specifies files, the ledger, the commands and Flower look here.
_MESSAGES = {
    "model": "font.exchange.messages.model:MESSAGE",
    "joins": "font.exchange.messages.model:JOINS",
    "labels": "font.exchange.messages.labels:MESSAGE",
    "ensemble": "font.exchange.messages.ensemble:MESSAGE",
    "sums": "font.exchange.messages.refinement:SUMS",
    "shared": "font.exchange.messages.refinement:SHARED",
    "key": "font.exchange.masked:KEY",
    "masked labels": "font.exchange.messages.labels:MASKED",
    "masked sums": "font.exchange.messages.refinement:MASKED",
    "requests": "font.exchange.folders:MESSAGE",
    "results": "font.exchange.messages.results:MESSAGE",
}
KINDS = _MESSAGES.keys()


@dataclass(frozen=True, kw_only=True)
class Message:
    """A type of exchange file. The modules of `font.exchange.messages` have them.

    Parameters
    ----------
    payload : pydantic model
        The fields, with their bounds.
    explain : payload → what it contains, what it reveals: two lists of sentences
    check : payload, site, name of the file → None, optional
        Raises `font.exchange.fields.misfit` where fields of the right form do not fit together.
    sender : "site" or "centre"
        Whose signature a file needs where keys are pinned.
    receiver : "all" or "centre"
        To whom it goes.
    units : payload → the min_count of every part
    answer : `font.exchange.messages.refinement.Question` → payload, optional
        What a site says to the centre's ensemble or shared file. With it, `Hospital.answer`,
        `mmlca site answer` and the round over Flower write the message.
    shown : payload → payload as the page of `mmlca exchange check --html` has it
    """

    payload: type[BaseModel]
    explain: Callable[[Payload], tuple[list[str], list[str]]]
    check: Callable[[Payload, str, str], None] = lambda payload, site, origin: None
    sender: Literal["site", "centre"] = "site"
    receiver: Literal["all", "centre"] = "centre"
    units: Callable[[Payload], list[int]] = lambda payload: [payload["min_count"]]
    answer: Callable[[Any], dict[str, Any]] | None = None
    shown: Callable[[Payload], Payload] = lambda payload: payload


def message_of(kind: str) -> Message:
    """The message of a kind."""
    if kind not in KINDS:
        raise InputError(f"the kind {ascii(kind)[:60]} is unknown; known are {', '.join(KINDS)}.")
    message: Message = pkgutil.resolve_name(_MESSAGES[kind])
    return message


def message_specifications() -> list[str]:
    """What the specification says of each message: the docstrings of their modules."""
    modules = dict.fromkeys(place.partition(":")[0] for place in _MESSAGES.values())
    return [pkgutil.resolve_name(module).__doc__ for module in modules]


def masked(kind: str) -> str:
    """The kind of message that carries the same numbers under masks."""
    return f"masked {kind}"


def unmasked(kind: str) -> str:
    """The kind of message whose numbers this one carries, under masks or not."""
    return kind.removeprefix("masked ")


# --- families of local models -----------------------------------------------------------------


@dataclass(frozen=True)
class ModelFamily:
    """What is done with models of one family. `content` is the model as a file holds it.

    Parameters
    ----------
    name : str
        In words, such as "Gaussian mixture".
    schema : pydantic model
        The fields of the content, with their bounds; `patients`, the rounded number of patients
        by class, is one of them.
    variables : content → names of the states, columns or items that the model looks at
    find_misfit : content, min_count → what in content of the right form does not fit together, or
        None
    recognises : fitted model → bool
    write : fitted model, data, min_count, draws → content
        What may leave: counts rounded at random, and what is based on at least min_count patients.
    read : content → model with `predict` and `class_parameters_`
    explain : content → what it contains, what it reveals: two lists of sentences
    sizes : fitted model, data → (K,)
        Expected number of patients by class.
    fit : data, number of classes, settings by name → fitted model, optional
        For `mmlca site fit --family`; takes those of `n_init`, `search`, `prior`, `n_jobs`, `seed`
        and `min_patients` (the site's `min_count`) that it names.
    compare : data, numbers of classes, criterion, the same settings → DataFrame, optional
        With columns `classes`, `bic` and `chosen`, which is true for the best number.
        For `mmlca site fit --try`.
    data : "table" or "sequences"
        What a site's patients are to the family: rows of columns, or `mmlca.Sequences`.
    support : model, data, membership → (K, P), optional
        For families whose `statistics` are counts, and that can therefore be refined between
        sites: how many different patients contribute to each.
    shares : model, data, membership → (K, P), optional
        Each patient's membership divided evenly among those of a block of statistics that are
        his, see `font.exchange.disclosure.round_total`.
    blocks : content → (P,), optional
        The block of each statistic, from 0.
    n_statistics : content → P, optional
    """

    name: str
    schema: type[BaseModel]
    variables: Callable[[Content], tuple[str, ...]]
    find_misfit: Callable[[Content, int], str | None]
    recognises: Callable[[Any], bool]
    write: Callable[[Any, Any, int, Draws], dict[str, Any]]
    read: Callable[[Content], Any]
    explain: Callable[[Content], tuple[list[str], list[str]]]
    sizes: Callable[[Any, Any], Any]
    fit: Callable[..., Any] | None = None
    compare: Callable[..., Any] | None = None
    data: Literal["table", "sequences"] = "table"
    support: Callable[[Any, Any, Any], Any] | None = None
    shares: Callable[[Any, Any, Any], Any] | None = None
    blocks: Callable[[Content], Any] | None = None
    n_statistics: Callable[[Content], int] | None = None


_FAMILIES: dict[str, ModelFamily | str] = {
    "font k-means": "font.exchange.families:K_MEANS",
    "font gaussian mixture": "font.exchange.families:GAUSSIAN",
    "font latent class": "font.exchange.families:LATENT_CLASS",
}


def register_family(format: str, family: ModelFamily | str) -> None:
    """Make a family of local models known to the exchange files.

    Parameters
    ----------
    format : str
        The word for it in files; a family may have several formats.
    family : ModelFamily, or where it is defined, such as "package.module:NAME"
    """
    _FAMILIES[format] = family


def family_of(format: object, prefix: str = "") -> ModelFamily:
    """The registered family; any other word is an `InputError`, which begins with `prefix`."""
    family = _FAMILIES.get(format) if isinstance(format, str) else None
    if family is None:
        raise InputError(
            f"{prefix}the family of models {ascii(format)[:60]} is unknown; known are "
            f"{', '.join(map(repr, _FAMILIES))}: import the package that registers it."
        )
    if isinstance(family, str):
        family = _FAMILIES[str(format)] = pkgutil.resolve_name(family)
    return family


def family_named(name: str) -> ModelFamily:
    """The family that a command calls "k-means" or "latent-class-model"; see `family_names`."""
    families = _by_name()
    if name not in families:
        raise InputError(f"the family is {name!r}; choose one of {', '.join(families)}.")
    return families[name]


def family_names() -> list[str]:
    """What commands call the families, in the order in which they were registered."""
    return list(_by_name())


def _by_name() -> dict[str, ModelFamily]:
    """The families by what commands call them; of several formats of one family the first."""
    named: dict[str, ModelFamily] = {}
    for family in all_families().values():
        named.setdefault(family.name.lower().replace(" ", "-"), family)
    return named


def all_families() -> dict[str, ModelFamily]:
    """Every registered family by its format."""
    return {format: family_of(format) for format in _FAMILIES}


# --- tables of results ------------------------------------------------------------------------

Kind = Literal["text", "count", "whole", "number", "flag"]


class Column(Protocol):
    """A column of a table: a count is a multiple of the file's min_count."""

    @property
    def kind(self) -> Kind: ...
    @property
    def meaning(self) -> str: ...


Tables = Mapping[str, Mapping[str, Column]]

_FORMATS: dict[str, Tables | str] = {}


def register_tables(format: str, tables: Tables | str) -> None:
    """Make a format of results files known by its word in files.

    `tables` is {table: {column: kind and meaning}}, or its place, such as "package.module:NAME".
    """
    _FORMATS[format] = tables


def tables_of(format: str, prefix: str = "") -> Tables:
    """The tables of a format; an unknown one is an `InputError`, which begins with `prefix`."""
    tables = _FORMATS.get(format)
    if tables is None:
        raise InputError(
            f"{prefix}the format of results {ascii(format)[:60]} is unknown; known are "
            f"{', '.join(map(repr, _FORMATS)) or 'none'}: import the package that registers it."
        )
    if isinstance(tables, str):
        found: Tables = pkgutil.resolve_name(tables)
        tables = _FORMATS[format] = found
    return tables
