"""Mixture-Markov latent class analysis of treatment sequences.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "MarkovParams": "params",
    "MixtureMarkov": "model",
    "Patterns": "patterns",
    "Sequences": "sequences",
    "SiteDifferences": "compare",
    "describe_clusters": "compare",
    "entropy_by_time": "describe",
    "plot_selection": "plots",
    "plot_site_differences": "compare_plots",
    "select_n_classes": "selection",
    "sequence_frequencies": "describe",
    "simulate": "simulation",
    "site_differences": "compare",
    "state_distribution": "describe",
    "time_in_state": "describe",
    "transition_rates": "describe",
    "vote": "selection",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from mmlca.compare import SiteDifferences, describe_clusters, site_differences
    from mmlca.compare_plots import plot_site_differences
    from mmlca.describe import (
        entropy_by_time,
        sequence_frequencies,
        state_distribution,
        time_in_state,
        transition_rates,
    )
    from mmlca.model import MixtureMarkov
    from mmlca.params import MarkovParams
    from mmlca.patterns import Patterns
    from mmlca.plots import plot_selection
    from mmlca.selection import select_n_classes, vote
    from mmlca.sequences import Sequences
    from mmlca.simulation import simulate


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
