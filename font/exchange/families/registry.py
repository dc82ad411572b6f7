"""The families of local models that exchange files may carry: a list made by code, not by a file.

A file says by the word in `format` of which family its model is. What the word stands for is
registered here by the package that knows the family, so that no file can name code to load. The
module imports nothing heavy: a package registers a family by the place where it is defined, and
that module is loaded when the first file of the family is read or written. So `import mmlca` makes
mixtures of Markov chains known.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from font.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from font.exchange.disclosure import Draws

    Content = Mapping[str, Any]


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
        For `mmlca site fit --family`; takes those of `n_init`, `search`, `prior`, `n_jobs` and
        `seed` that it names.
    compare : data, numbers of classes, criterion, the same settings → {K: BIC}, best K; optional
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
    compare: Callable[..., tuple[dict[int, float], int]] | None = None
    data: Literal["table", "sequences"] = "table"
    support: Callable[[Any, Any, Any], Any] | None = None
    shares: Callable[[Any, Any, Any], Any] | None = None
    blocks: Callable[[Content], Any] | None = None
    n_statistics: Callable[[Content], int] | None = None


_FAMILIES: dict[str, ModelFamily | str] = {
    "font k-means": "font.exchange.families.means:K_MEANS",
    "font gaussian mixture": "font.exchange.families.means:GAUSSIAN",
    "font latent class": "font.exchange.families.latent_class:LATENT_CLASS",
}


def register_family(format: str, family: ModelFamily | str) -> None:
    """Make a family of local models known to the exchange files.

    Parameters
    ----------
    format : str
        The word for it in files.
    family : ModelFamily, or where it is defined, such as "package.module:NAME"
    """
    _FAMILIES[format] = family


def family_of(format: object) -> ModelFamily:
    """The registered family; an `InputError` for any other word."""
    family = _FAMILIES.get(format) if isinstance(format, str) else None
    if family is None:
        raise InputError(
            f"the family of models {ascii(format)[:60]} is unknown; known are "
            f"{', '.join(map(repr, _FAMILIES))}: import the package that registers it."
        )
    if isinstance(family, str):
        family = _FAMILIES[str(format)] = pkgutil.resolve_name(family)
    return family


def family_named(name: str) -> ModelFamily:
    """The family that a command calls "k-means" or "latent-class-model"; see `family_names`."""
    families = dict(zip(family_names(), all_families().values(), strict=True))
    if name not in families:
        raise InputError(f"the family is {name!r}; choose one of {', '.join(families)}.")
    return families[name]


def family_names() -> list[str]:
    """What commands call the families, in the order in which they were registered."""
    return [family.name.lower().replace(" ", "-") for family in all_families().values()]


def all_families() -> dict[str, ModelFamily]:
    """Every registered family by its format."""
    return {format: family_of(format) for format in _FAMILIES}
