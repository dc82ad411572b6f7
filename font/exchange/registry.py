"""The kinds of models that exchange files may carry: a list made by code, never by a file.

A file says which kind of model it holds by the word in `format`. What the word stands for is
registered here by the package that knows the model, so that no file can name code to load. The
module imports nothing heavy: a package registers its kind by the place where it is defined, and
that module is loaded when the first file of the kind is read or written. So `import mmlca` makes
mixtures of Markov chains known.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from font.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from font.exchange.privacy import Draws

    Content = Mapping[str, Any]


@dataclass(frozen=True)
class ModelKind:
    """What is done with models of one kind. `content` is the model as a file holds it.

    Parameters
    ----------
    name : str
        In words, such as "Gaussian mixture".
    schema : pydantic model
        The fields of the content, with their bounds; `patients`, the rounded number of patients
        by class, is one of them.
    variables : content → names of the states, columns or items that the model looks at
    unfit : content, min_count → what in content of the right form does not fit together, or None
    is_kind : fitted model → bool
    write : fitted model, data, min_count, draws → content
        What may leave: counts rounded at random, and what rests on at least min_count patients.
    read : content → model with `predict` and `class_parameters_`
    words : content → what it contains, what it reveals: two lists of sentences
    support : model, data, membership → (K, P), optional
        For kinds whose `statistics` are counts, and that can therefore be refined between sites:
        how many different patients stand behind each.
    shares : model, data, membership → (K, P), optional
        Each patient's membership divided evenly among those of a block of statistics that are
        his, see `font.exchange.privacy.round_total`.
    blocks : content → (P,), optional
        The block of each statistic, from 0.
    n_statistics : content → P, optional
    """

    name: str
    schema: type[BaseModel]
    variables: Callable[[Content], tuple[str, ...]]
    unfit: Callable[[Content, int], str | None]
    is_kind: Callable[[Any], bool]
    write: Callable[[Any, Any, int, Draws], dict[str, Any]]
    read: Callable[[Content], Any]
    words: Callable[[Content], tuple[list[str], list[str]]]
    support: Callable[[Any, Any, Any], Any] | None = None
    shares: Callable[[Any, Any, Any], Any] | None = None
    blocks: Callable[[Content], Any] | None = None
    n_statistics: Callable[[Content], int] | None = None


_KINDS: dict[str, ModelKind | str] = {
    "font k-means": "font.exchange.kinds:K_MEANS",
    "font gaussian mixture": "font.exchange.kinds:GAUSSIAN",
    "font latent class": "font.exchange.kinds:LATENT_CLASS",
}


def register_kind(format: str, kind: ModelKind | str) -> None:
    """Make a kind of model known to the exchange files.

    Parameters
    ----------
    format : str
        The word for it in files.
    kind : ModelKind, or where it is defined, such as "package.module:NAME"
    """
    _KINDS[format] = kind


def kind_of(format: object) -> ModelKind:
    """The registered kind; a `ValueError` for any other word."""
    kind = _KINDS.get(format) if isinstance(format, str) else None
    if kind is None:
        raise InputError(
            f"the kind of model {ascii(format)[:60]} is unknown here; known are "
            f"{', '.join(map(repr, _KINDS))}: import the package that registers it."
        )
    if isinstance(kind, str):
        kind = _KINDS[str(format)] = pkgutil.resolve_name(kind)
    return kind


def all_kinds() -> dict[str, ModelKind]:
    """Every registered kind by its format."""
    return {format: kind_of(format) for format in _KINDS}
