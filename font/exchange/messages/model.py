"""The *model* message, site → all: a site's local model as rounded counts.

Its checksum is the model's fingerprint. The payload is:

=================== =========================================================================
name                "SITE", or "SITE/1", "SITE/2", … for resamples of a site
min_count           the unit of the counts; no class has fewer patients
bic                 list of {n_classes, above_best}: for each number of classes that the site
                    tried, its BIC minus the lowest, as a whole number; may be empty
model.format        the family: "font k-means", "font gaussian mixture", "font latent class", or
                    another that a package registered (`font.register_family`) and describes
model.version       1
model.patients      patients by class (K), expected numbers rounded
=================== =========================================================================

The *joins* message, site → centre, is what a site sends that has too few patients for a model. It
labels its patients with the models of the others, and has a part in all that follows. The payload
has one field, `min_count`, that of the study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from font.checks import Floats, class_parameters, some, whole_number
from font.errors import InputError
from font.exchange.disclosure import (
    MIN_COUNT,
    Draws,
    SecretDraws,
    hints_of_counts,
    rounding_in_words,
)
from font.exchange.envelope import Header, Sent, fingerprint, read_file, write_file
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_CLASSES_IN_ALL,
    MOST_WORK,
    Count,
    Least,
    Name,
    Path_,
    Size,
    Source,
    Strict,
    misfit,
    name_of,
    size,
    validated,
)
from font.exchange.registry import Message, ModelFamily, all_families, family_of


class BicPart(Strict):
    """How far the site's BIC for a number of classes lies above the lowest."""

    n_classes: Size
    above_best: Count


class ModelPayload(Strict):
    """A site's model."""

    name: Name
    min_count: Least
    bic: Annotated[list[BicPart], size(0, MOST_CLASSES)]
    model: dict[str, Any]


def check_model(
    payload: Mapping[str, Any], site: str, origin: str, prefix: str = "payload."
) -> None:
    content, name = payload["model"], payload["name"]
    if name.partition("/")[0] != site:
        raise misfit(origin, f"its model {name!r} does not carry the name of the site {site!r}")
    tried = [row["n_classes"] for row in payload["bic"]]
    if len(set(tried)) != len(tried):
        raise misfit(origin, "it has two values of BIC for one number of classes")
    family = family_of(content.get("format"), f"{origin}: ")
    validated(family.schema, content, origin, f"{prefix}model.")
    names = family.variables(content)
    if len(set(names)) != len(names):
        raise misfit(origin, f"its model names {some(names)} with repeats")
    k = len(content["patients"])
    if k * k * _n_parameters(content) > MOST_WORK:
        raise misfit(
            origin, f"{k} classes over {len(names)} variables are more than can be compared"
        )
    wrong = family.find_misfit(content, payload["min_count"])
    if wrong is not None:
        raise misfit(origin, wrong)


def _n_parameters(content: Any) -> int:
    """An upper bound for the numbers per class: the numbers in the whole content, over K."""

    def count(value: Any) -> int:
        if isinstance(value, list):
            nested = bool(value) and isinstance(value[0], (list, dict))
            return sum(map(count, value)) if nested else len(value)
        return sum(map(count, value.values())) if isinstance(value, dict) else 0

    return -(-count(content) // len(content["patients"]))


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    content, unit = payload["model"], payload["min_count"]
    family = family_of(content["format"])
    contains, reveals = family.explain(content)
    contains = [f"the model {payload['name']!r}, a {family.name}", *contains]
    if payload["bic"]:
        tried = ", ".join(str(row["n_classes"]) for row in payload["bic"])
        contains.append(
            f"for {tried} classes, how far the BIC lies above the lowest, in whole numbers"
        )
    return [*contains, rounding_in_words(unit)], [*reveals, *hints_of_counts(unit)]


class ModelFile(Sent):
    """A model as a site sent it."""

    @property
    def name(self) -> str:
        return str(self.payload["name"])

    @property
    def content(self) -> dict[str, Any]:
        """The model in numbers, as its family describes it."""
        content: dict[str, Any] = self.payload["model"]
        return content

    @property
    def family(self) -> ModelFamily:
        return family_of(self.content["format"])

    @cached_property
    def model(self) -> Any:
        """The model, ready to predict."""
        return self.family.read(self.content)

    @property
    def states(self) -> tuple[str, ...]:
        """What the model looks at: the states or, of other families, the columns or items."""
        return self.family.variables(self.content)

    @property
    def n_classes(self) -> int:
        return len(self.content["patients"])

    @property
    def bic(self) -> dict[int, int]:
        """By number of classes, BIC minus the lowest; empty if the site did not compare."""
        return {row["n_classes"]: row["above_best"] for row in self.payload["bic"]}

    @property
    def vote(self) -> int:
        """The number of classes that the site votes for: of lowest BIC, or its model's own."""
        return min(self.bic, key=lambda k: (self.bic[k], k)) if self.bic else self.n_classes

    @property
    def class_parameters_(self) -> Floats:
        """One row per class, (K, d)."""
        return class_parameters(self.model, self.name)


def write_model(
    path: Path_ | None,
    model: Any,
    data: Any,
    header: Header,
    *,
    name: str | None = None,
    bic: Mapping[int, float] | None = None,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
) -> ModelFile:
    """Write a fitted model for the other sites, as counts that may leave.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    model : fitted model of a registered family
        K-means or a Gaussian mixture of scikit-learn, `font.LatentClass`, `mmlca.MixtureMarkov`.
    data : the patients it was fitted to, as its `predict` takes them
    name : str, optional
        The site's name, or "SITE/1", … for its resamples.
    bic : {K: BIC}, optional
        For the vote on the number of clusters.
    min_count : int
        Counts are rounded to multiples of it; a class with fewer patients is refused.
    draws : Draws, optional
        New secret ones unless given. All resamples of a site should get the same draws, so that
        together they reveal no more than one.

    Returns
    -------
    ModelFile
        What the others will read: label with its `model` rather than with the one that was fitted.
    """
    whole_number(min_count, 1, "min_count")
    families = [family for family in all_families().values() if family.recognises(model)]
    if not families:
        known = ", ".join(dict.fromkeys(family.name for family in all_families().values()))
        raise InputError(
            f"a fitted {type(model).__name__} cannot be exchanged; known here are: {known}."
        )
    lowest = min((bic or {}).values(), default=0.0)
    payload = {
        "name": header.site if name is None else name,
        "min_count": min_count,
        "bic": [
            {"n_classes": int(k), "above_best": int(np.rint(value - lowest))}
            for k, value in sorted((bic or {}).items())
        ],
        "model": families[0].write(model, data, min_count, draws or SecretDraws()),
    }
    return ModelFile(write_file(path, "model", payload, header))


def read_model(source: Source, header: Header | None = None, *, min_count: int = 1) -> ModelFile:
    """Read a model file (or its bytes); the arguments are those of `read_file`."""
    return ModelFile(read_file(source, header, kind="model", min_count=min_count))


def read_models(
    sources: Iterable[Source], header: Header | None = None, *, min_count: int = 1
) -> dict[str, ModelFile]:
    """Read all model files of a study, in the order of their names, however they are listed.

    A file is a path or its bytes. Models with a name twice, of different studies or with other
    states are refused.
    """
    models: dict[str, ModelFile] = {}
    first: ModelFile | None = None
    n_classes = 0
    for source in sources:
        path = name_of(source)
        model = read_model(source, header, min_count=min_count)
        first = first or model
        if model.name in models:
            raise InputError(
                f"the model {model.name!r} comes twice ({path} is the second); give each once."
            )
        if model.study != first.study:
            raise InputError(
                f"{path} belongs to the study {model.study!r}, the files before it to "
                f"{first.study!r}; give the files of one study."
            )
        if model.states != first.states:
            raise InputError(
                f"{path} has the states {some(model.states)}, but {first.name!r} has "
                f"{some(first.states)}; fit all models with the same states in the same order."
            )
        n_classes += model.n_classes
        if n_classes > MOST_CLASSES_IN_ALL:
            raise InputError(
                f"the models have more than {MOST_CLASSES_IN_ALL:,} classes in all; use fewer."
            )
        models[model.name] = model
    if not models:
        raise InputError("there are no model files to read; give at least one.")
    return dict(sorted(models.items(), key=lambda item: _natural(item[0])))


def list_fingerprint(models: Mapping[str, ModelFile]) -> str:
    """One fingerprint of a whole list of models, for sites to compare by telephone."""
    return fingerprint({name: model.fingerprint for name, model in models.items()})


def check_study_of(models: Mapping[str, ModelFile], study: str) -> None:
    other = [model.name for model in models.values() if model.study != study]
    if other or not models:
        raise InputError(
            f"the models of the study {study!r} are needed; found "
            + (f"{some(other)} of another study." if other else "none.")
        )


def _natural(name: str) -> tuple[str, int]:
    site, _, number = name.partition("/")
    return site, int(number or 0)


MESSAGE = Message(payload=ModelPayload, explain=_explain, check=check_model, receiver="all")


# --- a site without a model -------------------------------------------------------------------


class JoinsPayload(Strict):
    """That a site takes part."""

    min_count: Least


def write_joins(header: Header, *, min_count: int) -> bytes:
    """Write that the site of the header takes part by labels."""
    return write_file(None, "joins", {"min_count": min_count}, header).data


def read_joins(source: Source, header: Header | None = None, *, min_count: int = 1) -> str:
    """The site that takes part by labels."""
    return read_file(source, header, kind="joins", min_count=min_count).site


def _explain_joins(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    contains = ["that the site takes part without a model of its own"]
    return contains, ["that the site has few patients, and nothing else about them"]


JOINS = Message(payload=JoinsPayload, explain=_explain_joins)
