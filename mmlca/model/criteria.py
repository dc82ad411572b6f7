"""How well a model fits for its size, and how clearly it tells patients apart."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from font.errors import InputError
from mmlca.model.em import cells_of
from mmlca.model.params import MarkovParams

Criterion = Literal["bic", "aic", "sabic", "caic", "icl"]
CRITERIA = get_args(Criterion)
Count = Literal["sequences", "timepoints"]
OVERLAP = 0.7  # entropy R² below which intervals were seen to cover less than they say


class InformationCriteria:
    """Criteria of a fitted mixture: those of `CRITERIA`, and the entropy R²."""

    params_: MarkovParams
    loglik_: float
    n_parameters_: int
    n_sequences_: float
    n_timepoints_: float
    classification_entropy_: float

    def bic(self, n: Count = "sequences") -> float:
        """Bayesian information criterion, −2 log L + p log n; smaller is better.

        n is the (weighted) number of sequences, as is usual in latent class analysis, or with
        "timepoints" that of observed states, as in seqHMM.
        """
        return -2 * self.loglik_ + self.n_parameters_ * float(np.log(self._n(n)))

    def sabic(self, n: Count = "sequences") -> float:
        """BIC adjusted for sample size (Sclove 1987): (n + 2) / 24 in place of n."""
        return -2 * self.loglik_ + self.n_parameters_ * float(np.log((self._n(n) + 2) / 24))

    def caic(self, n: Count = "sequences") -> float:
        """Consistent AIC (Bozdogan 1987): −2 log L + p (log n + 1); stricter than BIC."""
        return self.bic(n) + self.n_parameters_

    def aic(self) -> float:
        """Akaike's information criterion, −2 log L + 2p; smaller is better."""
        return -2 * self.loglik_ + 2 * self.n_parameters_

    def icl(self, n: Count = "sequences") -> float:
        """Integrated completed likelihood (Biernacki et al. 2000): BIC + 2·entropy."""
        return self.bic(n) + 2 * self.classification_entropy_

    def entropy(self) -> float:
        """How clearly patients belong to classes, from 0 (not at all) to 1 (certain).

        The entropy R² of Ramaswamy et al. (1993): 1 − Σᵢ Σₖ −pᵢₖ log pᵢₖ / (n log K); 1 if K = 1.
        """
        check_is_fitted(self)
        return _r_squared(self.classification_entropy_, self.n_sequences_, self.params_.n_classes)

    def _n(self, n: str) -> float:
        check_is_fitted(self)
        if n not in ("sequences", "timepoints"):
            raise InputError(f'n must be "sequences" or "timepoints", found {n!r}.')
        return self.n_sequences_ if n == "sequences" else self.n_timepoints_


def classification_entropy(posterior: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """−Σᵢ wᵢ Σₖ pᵢₖ log pᵢₖ: how uncertain the patterns' classes are altogether."""
    logs = np.log(posterior, out=np.zeros_like(posterior), where=posterior > 0)
    return float(-(weights @ (posterior * logs).sum(axis=1))) + 0.0


def entropy_r_squared(posterior: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The entropy R² of memberships (n, K), see `InformationCriteria.entropy`."""
    total = float(weights.sum())
    return _r_squared(classification_entropy(posterior, weights), total, posterior.shape[1])


def _r_squared(entropy: float, n: float, n_classes: int) -> float:
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
