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
    "best_local": "baselines",
    "bootstrap_weights": "stability",
    "cluster_parameters": "pooling",
    "cluster_size_table": "plots",
    "combine": "rounds",
    "compare_methods": "simulation_plots",
    "consensus": "baselines",
    "cross_table": "metrics",
    "describe_file": "explain",
    "explain": "explain",
    "explain_page": "explain",
    "fingerprint": "schema",
    "grid_cells": "simulation",
    "influence": "stability",
    "json_schema": "schema",
    "k_fed": "baselines",
    "label": "labels",
    "local_clustering": "baselines",
    "local_kmeans": "baselines",
    "local_scores": "baselines",
    "majority_vote": "clustering",
    "match_classes": "metrics",
    "match_labels": "metrics",
    "pattern_table": "plots",
    "plot_agreement": "plots",
    "plot_cluster_sizes": "plots",
    "plot_patterns": "plots",
    "plot_simulation": "simulation_plots",
    "plot_spectrum": "plots",
    "plot_weight_correlation": "simulation_plots",
    "plot_weights": "plots",
    "pooled": "baselines",
    "rand_index": "baselines",
    "read_ensemble": "exchange",
    "read_labels": "exchange",
    "read_model": "exchange",
    "read_models": "exchange",
    "read_spectrum": "clustering",
    "release": "privacy",
    "round_report": "report",
    "row_support": "privacy",
    "run_round": "rounds",
    "run_simulation": "simulation",
    "simulate_gaussian": "gaussian_sites",
    "simulation_table": "simulation_plots",
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
    from font.baselines import (
        best_local,
        consensus,
        k_fed,
        local_clustering,
        local_kmeans,
        local_scores,
        pooled,
        rand_index,
    )
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
    from font.explain import describe_file, explain, explain_page
    from font.gaussian_sites import simulate_gaussian
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
    from font.privacy import release, row_support
    from font.protocol import LocalModel, SklearnModel, site_proportions
    from font.report import round_report
    from font.rounds import combine, run_round
    from font.schema import fingerprint, json_schema
    from font.simulation import grid_cells, run_simulation
    from font.simulation_plots import (
        compare_methods,
        plot_simulation,
        plot_weight_correlation,
        simulation_table,
    )
    from font.stability import bootstrap_weights, influence


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
