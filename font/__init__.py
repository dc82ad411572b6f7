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
    "compare_methods": "simulation_tables",
    "consensus": "baselines",
    "cross_table": "metrics",
    "describe_file": "plain_words",
    "explain": "plain_words",
    "explain_page": "plain_words",
    "fingerprint": "schema",
    "grid_cells": "simulation",
    "influence": "stability",
    "json_schema": "schema",
    "k_fed": "kmeans_sites",
    "label": "labels",
    "local_clustering": "baselines",
    "local_kmeans": "kmeans_sites",
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
    "pooled": "kmeans_sites",
    "rand_index": "baselines",
    "read_ensemble": "exchange",
    "read_labels": "exchange",
    "read_model": "exchange",
    "read_models": "exchange",
    "read_spectrum": "clustering",
    "release": "privacy",
    "round_report": "report",
    "row_support": "privacy",
    "run_extensions": "simulation_extensions",
    "run_round": "rounds",
    "run_simulation": "simulation",
    "simulate_gaussian": "gaussian_sites",
    "simulation_claims": "simulation_tables",
    "simulation_table": "simulation_tables",
    "simulation_text": "simulation_report",
    "site_proportions": "protocol",
    "spectrum_table": "plots",
    "sum_by_cluster": "pooling",
    "weight_table": "plots",
    "write_ensemble": "exchange",
    "write_labels": "exchange",
    "write_model": "exchange",
    "write_simulation": "simulation_report",
}
__all__ = [*_HOME]

if TYPE_CHECKING:
    from font.baselines import (
        best_local,
        consensus,
        local_clustering,
        local_scores,
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
    from font.gaussian_sites import simulate_gaussian
    from font.kmeans_sites import k_fed, local_kmeans, pooled
    from font.labels import LabelPatterns, label
    from font.latent_class import LatentClass
    from font.metrics import agreement, cross_table, match_classes, match_labels
    from font.plain_words import describe_file, explain, explain_page
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
    from font.simulation_extensions import run_extensions
    from font.simulation_plots import plot_simulation, plot_weight_correlation
    from font.simulation_report import simulation_text, write_simulation
    from font.simulation_tables import compare_methods, simulation_claims, simulation_table
    from font.stability import bootstrap_weights, influence


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
