"""An ensemble as a dict of numbers, texts and lists, and back; what comes in is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError
from font.solve import SpectrumChoice

if TYPE_CHECKING:
    from font.ensemble import Ensemble

    Kind = TypeVar("Kind", bound=Ensemble)

_FORMAT, _VERSION = "font ensemble", 1
_RESULTS = ("weights", "centred_weights", "agreement", "spectrum")
_ARRAYS = {
    "n_classes": np.int64,
    **dict.fromkeys(_RESULTS, float),
    "axes": float,
    "centres": float,
    "votes": np.int64,
    "patterns": np.int64,
    "clusters": np.int64,
    "cluster_sizes": np.int64,
}
_KEYS = ("settings", "models", "n_clusters_choice", "sites", "n_withheld", *_ARRAYS)


def to_dict(ensemble: Ensemble) -> dict[str, Any]:
    """All that is needed to place and describe patients; counts by cluster and site alone."""
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
        "weights": ensemble.weights_.tolist(),
        "centred_weights": ensemble.centred_weights_.tolist(),
        "agreement": ensemble.agreement_.to_numpy().tolist(),
        "spectrum": ensemble.spectrum_.tolist(),
        "n_clusters_choice": list(ensemble.n_clusters_choice_),
        "axes": ensemble._axes.tolist(),
        "centres": ensemble._centres.tolist(),
        "votes": ensemble._votes.tolist(),
        "patterns": ensemble._known.tolist(),
        "clusters": ensemble.clusters_.tolist(),
        "sites": list(ensemble.cluster_sizes_.columns),
        "cluster_sizes": ensemble.cluster_sizes_.to_numpy().tolist(),
        "n_withheld": ensemble._n_withheld,
    }


def restore(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """The ensemble that `to_dict` wrote."""
    written = content.get("format"), content.get("version")
    if written != (_FORMAT, _VERSION):
        raise InputError(
            f"expected the dict of an ensemble ({_FORMAT!r}, version {_VERSION}); found "
            f"{written[0]!r}, version {written[1]!r}."
        )
    absent = [key for key in _KEYS if key not in content]
    if absent:
        raise InputError(f"the dict of an ensemble lacks {some(absent)}; write it again.")
    arrays = _checked_arrays(content)
    settings = dict(content["settings"])
    if settings["distance"] == "function":
        settings["distance"] = _forgotten_distance
    ensemble = kind(**settings)
    ensemble._n_classes = arrays["n_classes"].tolist()
    ensemble._axes, ensemble._centres = arrays["axes"], arrays["centres"]
    ensemble._votes, ensemble._known = arrays["votes"], arrays["patterns"]
    ensemble._n_withheld = int(content["n_withheld"])
    ensemble.clusters_ = arrays["clusters"]
    ensemble.n_clusters_ = len(ensemble._centres)
    ensemble.n_clusters_choice_ = SpectrumChoice(*content["n_clusters_choice"])
    ensemble.cluster_sizes_ = pd.DataFrame(
        arrays["cluster_sizes"],
        index=pd.RangeIndex(ensemble.n_clusters_, name="cluster"),
        columns=pd.Index(content["sites"], name="site"),
    )
    ensemble._name_results(tuple(content["models"]), *(arrays[key] for key in _RESULTS))
    return ensemble


def _checked_arrays(content: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of an ensemble's dict, which must fit together."""
    arrays: dict[str, NDArray[Any]] = {}
    for key, dtype in _ARRAYS.items():
        try:
            arrays[key] = np.array(content[key], dtype=dtype)
        except (TypeError, ValueError):
            raise InputError(
                f"the dict of an ensemble holds something other than numbers in {key!r}, or rows "
                "of unequal length; write it again."
            ) from None
    n_models, n_sites = len(content["models"]), len(content["sites"])
    n_all, n_clusters = int(arrays["n_classes"].sum()), len(arrays["centres"])
    rank, n_patterns = arrays["axes"].shape[-1], len(arrays["clusters"])
    shapes: dict[str, tuple[int, ...]] = {
        "n_classes": (n_models,),
        "weights": (n_models,),
        "centred_weights": (n_models,),
        "agreement": (n_models, n_models),
        "spectrum": (n_all,),
        "axes": (n_all, rank),
        "centres": (n_clusters, rank),
        "votes": (n_all,),
        "patterns": (n_patterns, n_models),
        "clusters": (n_patterns,),
        "cluster_sizes": (n_clusters, n_sites),
    }
    wrong = [key for key, shape in shapes.items() if arrays[key].shape != shape]
    if not wrong and not np.isin(arrays["clusters"], np.arange(n_clusters)).all():
        wrong = ["clusters"]
    if wrong:
        raise InputError(
            f"the dict of an ensemble does not fit together in {some(wrong)}; write it again."
        )
    return arrays


def _forgotten_distance(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
    raise InputError(
        "this ensemble was fitted with a distance function of the centre's own, which files do "
        "not carry; give distance= to a new Ensemble to fit again."
    )
