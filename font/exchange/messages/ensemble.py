"""The *ensemble* message, centre → all: the clusters, and the models with which sites find them.

The payload is:

=================== =========================================================================
models              list of the payloads of the model files, in order
ensemble            format, version, settings, models (names), n_classes, shares, weights,
                    centred_weights, agreement, spectrum, n_clusters_choice, axes, centres,
                    proportions, confusion, votes, sites, cluster_sizes; with the method "latent"
                    rows of axes and centres are empty
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from font.checks import Floats, some
from font.clustering import LINKAGES
from font.ensemble import Ensemble
from font.errors import InputError
from font.exchange.envelope import Header, fingerprint, read_file, write_file
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_CLASSES_IN_ALL,
    MOST_MODELS,
    MOST_SITES,
    Count,
    Name,
    Number,
    Path_,
    Site,
    Size,
    Source,
    Strict,
    misfit,
    size,
)
from font.exchange.messages.model import ModelFile, ModelPayload, check_model, check_study_of
from font.exchange.registry import Message, family_of
from font.weights import SpectrumChoice


class SettingsPart(Strict):
    """How the ensemble was made."""

    n_clusters: Size | None
    weights: Literal["spectral", "centred", "equal", "prior", "sparse"]
    distance: Literal["euclidean", "hellinger", "total-variation", "function"]
    method: Literal["latent", "kmeans", "kmeans-classes"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]


_RESULTS = ("weights", "centred_weights", "agreement", "spectrum")
Numbers = Annotated[list[Number], size(0, MOST_CLASSES_IN_ALL)]
Shares = Annotated[list[Annotated[Number, Field(ge=0)]], size(0, MOST_CLASSES_IN_ALL)]


class EnsemblePart(Strict):
    """All that is needed to place and describe patients."""

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
    payload = {
        "models": [m.payload for m in models.values()],
        "ensemble": ensemble_content(ensemble),
    }
    return write_file(path, "ensemble", payload, header).data


def read_ensemble(source: Source, header: Header | None = None) -> EnsembleFile:
    """Read the centre's result: the ensemble and the models it needs."""
    file = read_file(source, header, kind="ensemble")
    models = {}
    for payload in file.payload["models"]:
        site = payload["name"].partition("/")[0]
        own = {"site": site, "payload": payload, "sha256": fingerprint(payload)}
        models[payload["name"]] = ModelFile(file.model_copy(update=own))
    ensemble = ensemble_from(file.payload["ensemble"])
    return EnsembleFile(file.study, file.site, ensemble, models, file.sha256)


def ensemble_content(ensemble: Ensemble) -> dict[str, Any]:
    """An ensemble as numbers, texts and lists: all that places and describes patients.

    Counts appear only by cluster and site, not by pattern: patients are placed by centres or
    probabilities, which clusters of linkage do not have.
    """
    if ensemble.method in LINKAGES:
        raise InputError(
            f"clusters of {ensemble.method} linkage are known by the patients' patterns alone, "
            "which are not stored; fit the ensemble with method='kmeans' to store it."
        )
    return {
        "format": "font ensemble",
        "version": 2,
        "settings": {
            "n_clusters": ensemble.n_clusters,
            "weights": ensemble.weights,
            "distance": "function" if callable(ensemble.distance) else ensemble.distance,
            "method": ensemble.method,
            "seed": ensemble.seed,
        },
        "models": list(ensemble.models_),
        "n_classes": list(ensemble._n_classes),
        "shares": ensemble._shares.tolist(),
        "weights": ensemble.weights_.tolist(),
        "centred_weights": ensemble.centred_weights_.tolist(),
        "agreement": ensemble.agreement_.to_numpy().tolist(),
        "spectrum": ensemble.spectrum_.tolist(),
        "n_clusters_choice": list(ensemble.n_clusters_choice_),
        "axes": ensemble._axes.tolist(),
        "centres": ensemble._centres.tolist(),
        "proportions": ensemble.proportions_.tolist(),
        "confusion": ensemble.confusion_.tolist(),
        "votes": ensemble._votes.tolist(),
        "sites": list(ensemble.cluster_sizes_.columns),
        "cluster_sizes": ensemble.cluster_sizes_.to_numpy().tolist(),
    }


def ensemble_from(content: Mapping[str, Any]) -> Ensemble:
    """The ensemble of `ensemble_content`: it places patients and describes itself."""
    arrays = _checked_arrays(content)
    settings = dict(content["settings"])
    if settings["distance"] == "function":
        settings["distance"] = _forgotten_distance
    ensemble = Ensemble(**settings)
    ensemble.models_ = tuple(content["models"])
    ensemble._n_classes, ensemble._shares = list(content["n_classes"]), arrays["shares"]
    ensemble._axes, ensemble._centres = arrays["axes"], arrays["centres"]
    ensemble.proportions_, ensemble.confusion_ = arrays["proportions"], arrays["confusion"]
    ensemble._votes = arrays["votes"].astype(np.int64)
    ensemble.n_clusters_ = len(ensemble._centres)
    ensemble.n_clusters_choice_ = SpectrumChoice(*content["n_clusters_choice"])
    ensemble.cluster_sizes_ = pd.DataFrame(
        arrays["cluster_sizes"].astype(np.int64),
        index=pd.RangeIndex(ensemble.n_clusters_, name="cluster"),
        columns=pd.Index(content["sites"], name="site"),
    )
    ensemble._name_results(*(arrays[key] for key in _RESULTS))
    return ensemble


# --- what the reader checks -------------------------------------------------------------------


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
        _checked_arrays(part)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def _checked_arrays(content: Mapping[str, Any]) -> dict[str, Floats]:
    """The numbers of an ensemble, which must fit together."""
    latent = content["settings"]["method"] == "latent"
    n_models, n_sites = len(content["models"]), len(content["sites"])
    n_all, n_clusters = sum(content["n_classes"]), len(content["centres"])
    rank = len(content["axes"][0])
    shapes: dict[str, tuple[int, ...]] = {
        "n_classes": (n_models,),
        "shares": (n_models,),
        "weights": (n_models,),
        "centred_weights": (n_models,),
        "agreement": (n_models, n_models),
        "spectrum": (n_all,),
        "axes": (n_all, rank),
        "centres": (n_clusters, rank),
        "proportions": (n_clusters * latent,),
        "confusion": (n_all, n_clusters) if latent else (0,),
        "votes": (n_all,),
        "cluster_sizes": (n_clusters, n_sites),
    }
    arrays = {}
    for key in shapes:
        try:
            arrays[key] = np.array(content[key], dtype=float)
        except ValueError:
            raise InputError(f"the ensemble has no table of numbers in {key!r}.") from None
    wrong = [key for key, shape in shapes.items() if arrays[key].shape != shape]
    if wrong:
        raise InputError(f"the ensemble does not fit together in {some(wrong)}; write it again.")
    if latent and not ((arrays["confusion"] > 0).all() and (arrays["proportions"] > 0).all()):
        raise InputError("the ensemble has a confusion or a proportion that is not above 0.")
    if latent and not abs(arrays["proportions"].sum() - 1) < 1e-6:
        raise InputError("the proportions of the ensemble's clusters do not sum to 1.")
    if not latent and not rank:
        raise InputError("the ensemble has no axes, without which its centres place nobody.")
    if not (arrays["weights"] > 0).any():
        raise InputError("all models of the ensemble have the weight 0.")
    return arrays


def _forgotten_distance(parameters: Floats) -> Floats:
    raise InputError(
        "this ensemble was fitted with a distance function of the centre's own, which files do "
        "not carry; give distance= to a new Ensemble to fit again."
    )


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
