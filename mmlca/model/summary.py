"""Tables of a fitted mixture: each patient's class, and one row per class."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.model.params import MarkovParams


def membership_table(posterior: NDArray[np.float64]) -> pd.DataFrame:
    """Most probable class (from 1), its probability, and the margin to the next, from (U, K)."""
    ordered = np.sort(posterior, axis=1)
    second = ordered[:, -2] if ordered.shape[1] > 1 else np.zeros(len(ordered))
    return pd.DataFrame(
        {
            "class": posterior.argmax(axis=1) + 1,
            "probability": ordered[:, -1],
            "margin": ordered[:, -1] - second,
        }
    )


def class_table(
    params: MarkovParams,
    states: tuple[str, ...],
    posterior: pd.DataFrame,
    patients: NDArray[np.float64],
    group_weights: pd.DataFrame,
    intervals: pd.DataFrame | None,
) -> pd.DataFrame:
    """One row per class; see `MixtureMarkov.summary`.

    Parameters
    ----------
    posterior : DataFrame
        One row per patient, as `membership_table` gives it; `patients` (n,) are their weights.
    group_weights : DataFrame, groups × classes
    intervals : DataFrame, optional
        As `standard_errors` gives them.
    """
    table = posterior.assign(patients=patients, sure=posterior["probability"] * patients)
    classes = np.arange(1, params.n_classes + 1)
    sums = table.groupby("class")[["patients", "sure"]].sum().reindex(classes, fill_value=0.0)
    each, first = np.arange(params.n_classes), params.initial.argmax(axis=1)
    moves = params.transition[each, first]
    stays = moves[each, first]
    moves[each, first] = 0
    target = moves.argmax(axis=1)
    return pd.DataFrame(
        {
            "weight": params.weights,
            **_limits(intervals, "weight", each),
            **{f"weight in {name}": row for name, row in group_weights.iterrows()},
            "patients": sums["patients"],
            "certainty": sums["sure"] / sums["patients"],
            "starts with": [
                f"{states[i]} ({params.initial[k, i]:.2f})" for k, i in enumerate(first)
            ],
            "stays": stays,
            **_limits(intervals, "stays", _place_of_stays(params, first)),
            "mostly moves to": [
                f"{states[j]} ({moves[k, j]:.3f})" if moves[k, j] > 0 else "–"
                for k, j in enumerate(target)
            ],
        },
        index=pd.Index(classes, name="class"),
    )


def _place_of_stays(params: MarkovParams, first: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of the table of intervals that hold the steps from each class's first state to it."""
    k, s = params.n_classes, params.n_states
    place: NDArray[np.intp] = k + k * s + np.arange(k) * s * s + first * s + first
    return place


def _limits(
    intervals: pd.DataFrame | None, name: str, rows: NDArray[np.intp]
) -> dict[str, NDArray[np.float64]]:
    """The columns "… low" and "… high" of these rows; no columns without intervals."""
    if intervals is None:
        return {}
    return {f"{name} {end}": intervals[end].to_numpy()[rows] for end in ("low", "high")}
