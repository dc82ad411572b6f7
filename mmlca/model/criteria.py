"""How well a model fits for its size, and how clearly it separates patients."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mmlca.model.em import cells_of
from mmlca.model.params import MarkovParams

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


def classification_entropy(posterior: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """−Σᵢ wᵢ Σₖ pᵢₖ log pᵢₖ: how uncertain the patterns' classes are altogether."""
    logs = np.log(posterior, out=np.zeros_like(posterior), where=posterior > 0)
    return float(-(weights @ (posterior * logs).sum(axis=1))) + 0.0


def entropy_r_squared(posterior: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
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
