"""The estimator's part that deals with covariates: reading, fitting and applying them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from font.errors import InputError, ReportWarning
from font.spelling import option
from mmlca.model import em
from mmlca.model.covariates import AnyCovariates, Design, align, complete, learn, separation
from mmlca.model.expected import Floats, Visits
from mmlca.model.membership import Rows, fit_membership, make_rows
from mmlca.model.params import MarkovParams, Seed
from mmlca.model.search import Fit
from mmlca.sequences.checks import some
from mmlca.sequences.type import Sequences


class CovariateMembership:
    """Membership as a multinomial logit on covariates, for an estimator with these attributes."""

    n_init: int
    init: MarkovParams | None
    seed: Seed
    missing: str
    params_: MarkovParams
    coefficients_: pd.DataFrame
    n_dropped_: int
    _design: Design | None = None  # of the covariates, if there are any

    def _covariates_of(
        self, data: Sequences, covariates: AnyCovariates | None, formula: str | None
    ) -> tuple[Sequences, Design | None, Floats]:
        """The patients whose covariates are known, the design, and its matrix (n, P)."""
        self._design = None
        self.n_dropped_ = 0
        if covariates is None:
            if formula is not None:
                raise InputError("formula names covariates, but there are none; give covariates.")
            return data, None, np.ones((len(data), 1))
        frame = align(covariates, data)
        known = complete(frame, formula)
        self.n_dropped_ = int((~known).sum())
        if self.n_dropped_:
            lacking = f"{self.n_dropped_:,} of {len(data):,} patients lack covariates"
            if self.missing == "error" or not known.any():
                raise InputError(
                    f"{lacking} (patients {some(data.ids[~known])}); fill them in, or leave these "
                    f"patients out with {option('missing', 'drop')}."
                )
            warnings.warn(f"{lacking} and are left out of the fit.", stacklevel=3)
            data, frame = data[known], frame[known]
        self._design = learn(frame, formula, data.weights)
        return data, self._design, self._design.matrix(frame)

    def _fit_coefficients(
        self,
        data: Sequences,
        design: Design,
        matrix: Floats,
        settings: em.Settings,
        first: Fit,
    ) -> tuple[Fit, Rows]:
        """From a fit without covariates to one with them; keeps the coefficients."""
        rows = make_rows(data.patterns, data.weights, design.standardised(matrix))
        given = self.init is not None
        zeros = em.cells_of(self.init) == 0 if self.init is not None else settings.zeros[None]
        result, coefficients = fit_membership(
            data.patterns,
            rows,
            first.params if self.init is None else self.init,
            settings,
            np.broadcast_to(zeros, em.cells_of(first.params).shape),
            0 if given else max(4, self.n_init // 4),
            np.random.default_rng(self.seed),
        )
        self._set_coefficients(design, design.back @ coefficients)
        separated = separation(matrix, design.columns, self.coefficients_.to_numpy())
        if separated:
            warnings.warn(separated, ReportWarning, stacklevel=3)
        return result, rows

    def _set_coefficients(self, design: Design, coefficients: Floats) -> None:
        self._design = design
        self.coefficients_ = pd.DataFrame(
            coefficients,
            index=pd.Index(design.columns, name="term"),
            columns=pd.RangeIndex(1, coefficients.shape[1] + 1, name="class"),
        )

    def _check_covariates(self, covariates: AnyCovariates | None) -> None:
        """Covariates belong to a model that was fitted with them, and to no other."""
        if covariates is None and self._design is not None:
            raise InputError(
                "the model was fitted with covariates "
                f"({some(v.name for v in self._design.variables)}); give those of these patients."
            )
        if covariates is not None and self._design is None:
            raise InputError("the model was fitted without covariates; leave them out here too.")

    def _with_covariates(
        self, data: Sequences, covariates: AnyCovariates
    ) -> tuple[Floats, Floats, NDArray[np.intp]]:
        """Class probabilities (n, K) and log-likelihoods (n,) of patients, and 0 … n − 1.

        Patients who lack a covariate get the classes' average shares, or an error.
        """
        assert self._design is not None
        matrix = self._design.matrix(align(covariates, data))
        known = ~np.isnan(matrix).any(axis=1)
        if not known.all() and self.missing == "error":
            raise InputError(
                f"{int((~known).sum()):,} of {len(data):,} patients lack covariates (patients "
                f"{some(data.ids[~known])}); fill them in, or give them the average shares with "
                f"{option('missing', 'drop')}."
            )
        average = np.log(self.params_.weights)
        joint = np.tile(average, (len(data), 1))
        joint[known] = log_softmax(matrix[known] @ self.coefficients_.to_numpy(), axis=1)
        joint += Visits(data.patterns).logliks(em.cells_of(self.params_))[data.patterns.inverse]
        logs = logsumexp(joint, axis=1)
        joint[np.isneginf(logs)] = average
        return np.exp(log_softmax(joint, axis=1)), logs, np.arange(len(data))
