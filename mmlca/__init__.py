"""Mixture-Markov latent class analysis of treatment sequences.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Hospital": "federation",
    "MarkovParams": "params",
    "MixtureMarkov": "model",
    "Patterns": "patterns",
    "Sequences": "sequences",
    "SiteDifferences": "compare",
    "certainty_by_class": "describe",
    "describe_clusters": "compare",
    "entropy_by_time": "describe",
    "modal_states": "describe",
    "plot_certainty": "plots",
    "plot_entropy": "plots",
    "plot_frequencies": "courses",
    "plot_index": "courses",
    "plot_lines": "flows",
    "plot_modal_states": "plots",
    "plot_selection": "plots",
    "plot_site_differences": "compare_plots",
    "plot_state_distribution": "plots",
    "plot_time_in_state": "plots",
    "plot_transition_graph": "flows",
    "plot_transitions": "flows",
    "select_n_classes": "selection",
    "sequence_frequencies": "describe",
    "simulate": "simulation",
    "site_differences": "compare",
    "state_colours": "canvas",
    "state_distribution": "describe",
    "time_in_state": "describe",
    "transition_rates": "describe",
    "treatment_lines": "describe",
    "vote": "selection",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from mmlca.canvas import state_colours
    from mmlca.compare import SiteDifferences, describe_clusters, site_differences
    from mmlca.compare_plots import plot_site_differences
    from mmlca.courses import plot_frequencies, plot_index
    from mmlca.describe import (
        certainty_by_class,
        entropy_by_time,
        modal_states,
        sequence_frequencies,
        state_distribution,
        time_in_state,
        transition_rates,
        treatment_lines,
    )
    from mmlca.federation import Hospital
    from mmlca.flows import (
        plot_lines,
        plot_transition_graph,
        plot_transitions,
    )
    from mmlca.model import MixtureMarkov
    from mmlca.params import MarkovParams
    from mmlca.patterns import Patterns
    from mmlca.plots import (
        plot_certainty,
        plot_entropy,
        plot_modal_states,
        plot_selection,
        plot_state_distribution,
        plot_time_in_state,
    )
    from mmlca.selection import (
        select_n_classes,
        vote,
    )
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
