"""An ensemble as a dict of numbers, texts and lists, and back; what comes in is checked.

The ensemble's exchange file holds it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from font.checks import Floats, some
from font.clustering import LINKAGES
from font.errors import InputError
from font.solve import SpectrumChoice

if TYPE_CHECKING:
    from font.ensemble import Ensemble

    Kind = TypeVar("Kind", bound=Ensemble)

_FORMAT, _VERSION = "font ensemble", 2
_RESULTS = ("weights", "centred_weights", "agreement", "spectrum")


def to_dict(ensemble: Ensemble) -> dict[str, Any]:
    """All that is needed to place and describe patients; counts by cluster and site alone."""
    if ensemble.method in LINKAGES:
        raise InputError(
            f"clusters of {ensemble.method} linkage are known by the patients' patterns alone, "
            "which are not stored; fit the ensemble with method='kmeans' to store it."
        )
    return {
        "format": _FORMAT,
        "version": _VERSION,
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


def restore(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """The ensemble that `to_dict` wrote."""
    written = content.get("format"), content.get("version")
    if written != (_FORMAT, _VERSION):
        raise InputError(
            f"expected the dict of an ensemble ({_FORMAT!r}, version {_VERSION}); found "
            f"{written[0]!r}, version {written[1]!r}."
        )
    arrays = _checked_arrays(content)
    settings = dict(content["settings"])
    if settings["distance"] == "function":
        settings["distance"] = _forgotten_distance
    ensemble = kind(**settings)
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


def _checked_arrays(content: Mapping[str, Any]) -> dict[str, Floats]:
    """The numbers of an ensemble's dict, which must fit together."""
    arrays = {}
    try:
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
        for key in shapes:
            arrays[key] = np.array(content[key], dtype=float)
    except KeyError as error:
        raise InputError(f"the dict of an ensemble lacks {error}; write it again.") from None
    except (TypeError, ValueError):
        raise InputError(f"the ensemble has no table of numbers in {key!r}.") from None
    wrong = [key for key, shape in shapes.items() if arrays[key].shape != shape]
    if wrong:
        raise InputError(
            f"the dict of an ensemble does not fit together in {some(wrong)}; write it again."
        )
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
