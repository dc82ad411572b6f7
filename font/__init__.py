"""FONT: federated one-shot ensemble clustering.

Sites fit models of their own, share the models' parameters and counts of label patterns, and
get clusters that mean the same everywhere. Names are loaded on first use, so that importing
the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Ensemble": "ensemble",
    "EnsembleFile": "exchange",
    "LabelPatterns": "labels",
    "LatentClass": "latent_class",
    "LocalModel": "protocol",
    "ModelFile": "exchange",
    "SklearnModel": "protocol",
    "agreement": "metrics",
    "bootstrap_weights": "stability",
    "cluster_parameters": "pooling",
    "cluster_size_table": "plots",
    "cross_table": "metrics",
    "describe_file": "privacy",
    "explain": "privacy",
    "explain_page": "privacy",
    "fingerprint": "schema",
    "influence": "stability",
    "json_schema": "schema",
    "label": "labels",
    "majority_vote": "clustering",
    "match_classes": "metrics",
    "match_labels": "metrics",
    "pattern_table": "plots",
    "plot_agreement": "plots",
    "plot_cluster_sizes": "plots",
    "plot_patterns": "plots",
    "plot_spectrum": "plots",
    "plot_weights": "plots",
    "read_ensemble": "exchange",
    "read_labels": "exchange",
    "read_model": "exchange",
    "read_models": "exchange",
    "read_spectrum": "clustering",
    "release": "privacy",
    "row_support": "privacy",
    "site_proportions": "protocol",
    "spectrum_table": "plots",
    "sum_by_cluster": "pooling",
    "weight_table": "plots",
    "write_ensemble": "exchange",
    "write_labels": "exchange",
    "write_model": "exchange",
}
__all__ = [*_HOME]

if TYPE_CHECKING:
    from font.clustering import majority_vote, read_spectrum
    from font.ensemble import Ensemble
    from font.exchange import (
        EnsembleFile,
        ModelFile,
        read_ensemble,
        read_labels,
        read_model,
        read_models,
        write_ensemble,
        write_labels,
        write_model,
    )
    from font.labels import LabelPatterns, label
    from font.latent_class import LatentClass
    from font.metrics import agreement, cross_table, match_classes, match_labels
    from font.plots import (
        cluster_size_table,
        pattern_table,
        plot_agreement,
        plot_cluster_sizes,
        plot_patterns,
        plot_spectrum,
        plot_weights,
        spectrum_table,
        weight_table,
    )
    from font.pooling import cluster_parameters, sum_by_cluster
    from font.privacy import describe_file, explain, explain_page, release, row_support
    from font.protocol import LocalModel, SklearnModel, site_proportions
    from font.schema import fingerprint, json_schema
    from font.stability import bootstrap_weights, influence


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
