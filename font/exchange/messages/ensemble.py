"""The *ensemble* message, centre → all: the clusters, and the models with which sites find them.

The payload is:

=================== =========================================================================
models              list of the payloads of the model files, in order
ensemble            `Ensemble.to_dict()`: format, version, settings, models (names), n_classes,
                    shares, weights, centred_weights, agreement, spectrum, n_clusters_choice, axes,
                    centres, proportions, confusion, votes, sites, cluster_sizes; with the method
                    "latent" rows of axes and centres are empty
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from font.checks import some
from font.ensemble import Ensemble
from font.errors import InputError
from font.exchange.envelope import fingerprint, read_file, write_file
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_CLASSES_IN_ALL,
    MOST_MODELS,
    MOST_SITES,
    Count,
    Name,
    Number,
    Site,
    Size,
    Strict,
    misfit,
    size,
)
from font.exchange.header import Header
from font.exchange.messages.model import ModelFile, ModelPayload, check_model, check_study_of
from font.exchange.parse import Path_, Source
from font.exchange.registry import Message, family_of


class SettingsPart(Strict):
    """How the ensemble was made."""

    n_clusters: Size | None
    weights: Literal["spectral", "centred", "equal", "prior", "sparse"]
    distance: Literal["euclidean", "hellinger", "total-variation", "function"]
    method: Literal["latent", "kmeans", "kmeans-classes"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]


Numbers = Annotated[list[Number], size(0, MOST_CLASSES_IN_ALL)]
Shares = Annotated[list[Annotated[Number, Field(ge=0)]], size(0, MOST_CLASSES_IN_ALL)]


class EnsemblePart(Strict):
    """`Ensemble.to_dict()`."""

    format: Literal["font ensemble"]
    version: Annotated[int, Field(ge=2, le=2)]
    settings: SettingsPart
    models: Annotated[list[Name], size(1, MOST_MODELS)]
    n_classes: Annotated[list[Size], size(1, MOST_MODELS)]
    shares: Shares
    weights: Shares
    centred_weights: Numbers
    agreement: Annotated[list[Numbers], size(0, MOST_MODELS)]
    spectrum: Numbers
    n_clusters_choice: Annotated[list[Number | Literal["clear", "fair", "doubtful"]], size(4, 4)]
    axes: Annotated[list[Numbers], size(1, MOST_CLASSES_IN_ALL)]
    centres: Annotated[list[Numbers], size(1, MOST_CLASSES)]
    proportions: Shares
    confusion: Annotated[list[Shares], size(0, MOST_CLASSES_IN_ALL)]
    votes: Annotated[
        list[Annotated[int, Field(ge=-1, lt=MOST_CLASSES)]], size(1, MOST_CLASSES_IN_ALL)
    ]
    sites: Annotated[list[Site], size(1, MOST_SITES)]
    cluster_sizes: Annotated[
        list[Annotated[list[Count], size(1, MOST_SITES)]], size(1, MOST_CLASSES)
    ]


class EnsemblePayload(Strict):
    """The centre's result and the models it is based on."""

    models: Annotated[list[ModelPayload], size(1, MOST_MODELS)]
    ensemble: EnsemblePart


class EnsembleFile(NamedTuple):
    """The result as the centre sent it: all that a site needs to place its patients."""

    study: str
    site: str
    ensemble: Ensemble
    models: dict[str, ModelFile]
    fingerprint: str


def write_ensemble(
    path: Path_ | None,
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    header: Header,
) -> bytes:
    """Write the centre's result, with the models, so that sites can place their patients."""
    check_study_of(models, header.study)
    if tuple(ensemble.models_) != tuple(models):
        raise InputError(
            f"the ensemble has the models {some(ensemble.models_)}, the files {some(models)}; "
            "give the models it was fitted with, in their order."
        )
    payload = {"models": [m.payload for m in models.values()], "ensemble": ensemble.to_dict()}
    return write_file(path, "ensemble", payload, header)[1]


def read_ensemble(source: Source, header: Header | None = None) -> EnsembleFile:
    """Read the centre's result: the ensemble and the models it needs."""
    file = read_file(source, header, kind="ensemble")
    models = {}
    for payload in file.payload["models"]:
        name = payload["name"]
        site = name.partition("/")[0]
        models[name] = ModelFile(file.study, site, name, fingerprint(payload), payload)
    ensemble = Ensemble.from_dict(file.payload["ensemble"])
    return EnsembleFile(file.study, file.site, ensemble, models, file.sha256)


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    models, part = payload["models"], payload["ensemble"]
    names = [model["name"] for model in models]
    if len(set(names)) != len(names):
        raise misfit(origin, f"the models {some(names)} come with repeats")
    if names != part["models"]:
        raise misfit(origin, "its ensemble names other models than those it carries")
    if sum(part["n_classes"]) > MOST_CLASSES_IN_ALL:
        raise misfit(origin, f"its models have {sum(part['n_classes']):,} classes in all")
    for i, model in enumerate(models):
        check_model(model, model["name"].partition("/")[0], origin, f"payload.models.{i}.")
    variables = [family_of(m["model"]["format"]).variables(m["model"]) for m in models]
    if any(names != variables[0] for names in variables):
        raise misfit(origin, "its models do not all have the same states")
    if [len(model["model"]["patients"]) for model in models] != part["n_classes"]:
        raise misfit(origin, "its n_classes are not those of its models")
    if len(set(part["sites"])) != len(part["sites"]):
        raise misfit(origin, f"the sites {some(part['sites'])} come with repeats")
    choice = part["n_clusters_choice"]
    texts = [isinstance(value, str) for value in choice]
    if texts != [False, False, False, True] or not isinstance(choice[0], int):
        raise misfit(origin, "its n_clusters_choice is not a number, two shares and a word")
    if not 1 <= choice[0] <= sum(part["n_classes"]) + 1:
        raise misfit(origin, f"its n_clusters_choice says {choice[0]} clusters")
    if max(part["votes"]) >= len(part["centres"]):
        raise misfit(origin, "its votes are for clusters that it does not have")
    try:
        Ensemble.from_dict(part)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    part = payload["ensemble"]
    shown = ", ".join(part["models"][:8]) + (", …" if len(part["models"]) > 8 else "")
    contains = [
        f"{len(payload['models'])} models as their sites sent them ({shown})",
        f"their weights and agreement, and how to find the cluster of a patient: "
        f"{len(part['centres'])} clusters",
        f"estimated numbers of patients by cluster and site ({', '.join(part['sites'])})",
    ]
    reveals = [
        "about how large each cluster is at each site, and how well the sites' models agree",
        "no more about patients than the models and labels files it was made of, whose counts were "
        "rounded at random before they left their sites",
    ]
    return contains, reveals


MESSAGE = Message(
    payload=EnsemblePayload,
    explain=_explain,
    check=_check,
    sender="centre",
    receiver="all",
    units=lambda payload: [model["min_count"] for model in payload["models"]],
)
