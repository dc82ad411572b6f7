"""How well a model fits for its size, and how clearly it separates patients."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.model.em import cells_of
from mmlca.model.params import Floats, MarkovParams

Criterion = Literal["bic", "aic", "sabic", "caic", "icl"]
CRITERIA = get_args(Criterion)
Count = Literal["sequences", "timepoints"]
OVERLAP = 0.7  # entropy R² below which intervals were seen to cover less than they say


def information_criteria(loglik: Any, n_parameters: Any, n: Any, entropy: Any) -> dict[str, Any]:
    """The criteria of `CRITERIA` from numbers or arrays of them; smaller is better.

    With p parameters and n sequences, BIC = −2 log L + p log n, AIC = −2 log L + 2p, SABIC is BIC
    with (n + 2) / 24 instead of n (Sclove 1987), CAIC = BIC + p (Bozdogan 1987), and ICL = BIC +
    2·entropy of the memberships (Biernacki et al. 2000).

    Examples
    --------
    >>> criteria = information_criteria(-100.0, 3, 50, 2.0)
    >>> {name: round(float(value), 1) for name, value in criteria.items()}
    {'bic': 211.7, 'aic': 206.0, 'sabic': 202.3, 'caic': 214.7, 'icl': 215.7}
    """
    misfit = -2 * loglik
    bic = misfit + n_parameters * np.log(n)
    return {
        "bic": bic,
        "aic": misfit + 2 * n_parameters,
        "sabic": misfit + n_parameters * np.log((n + 2) / 24),
        "caic": bic + n_parameters,
        "icl": bic + 2 * entropy,
    }


def classification_entropy(posterior: Floats, weights: Floats) -> float:
    """−Σᵢ wᵢ Σₖ pᵢₖ log pᵢₖ: how uncertain the patterns' classes are altogether."""
    logs = np.log(posterior, out=np.zeros_like(posterior), where=posterior > 0)
    return float(-(weights @ (posterior * logs).sum(axis=1))) + 0.0


def entropy_r_squared(posterior: Floats, weights: Floats) -> float:
    """The entropy R² of memberships (n, K)."""
    total = float(weights.sum())
    return r_squared(classification_entropy(posterior, weights), total, posterior.shape[1])


def r_squared(entropy: float, n: float, n_classes: int) -> float:
    """The entropy R² of Ramaswamy et al. (1993), 1 − entropy / (n log K); 1 for one class."""
    return 1.0 if n_classes == 1 else 1 - entropy / (n * float(np.log(n_classes)))


def count_parameters(
    params: MarkovParams, zeros: NDArray[np.bool_], init: MarkovParams | None, n_groups: int = 1
) -> int:
    """G(K − 1) + K(S − 1) + K·S(S − 1), less the cells that must be zero."""
    k, s = params.n_classes, params.n_states
    fixed = np.broadcast_to(zeros, (k, len(zeros)))
    if init is not None:
        fixed = fixed | (cells_of(init) == 0)
    return n_groups * (k - 1) + k * (s - 1) + k * s * (s - 1) - int(fixed.sum())


# --- tables of a fitted mixture -------------------------------------------------------


def membership_table(posterior: Floats) -> pd.DataFrame:
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
    patients: Floats,
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


def _limits(intervals: pd.DataFrame | None, name: str, rows: NDArray[np.intp]) -> dict[str, Floats]:
    """The columns "… low" and "… high" of these rows; no columns without intervals."""
    if intervals is None:
        return {}
    return {f"{name} {end}": intervals[end].to_numpy()[rows] for end in ("low", "high")}
