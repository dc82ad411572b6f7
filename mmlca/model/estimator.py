"""The estimator: a mixture of Markov chains with scikit-learn's conventions.

Its parts are in files of their own: covariates (`logit`), uncertainty (`inference`), criteria,
tables (`summary`) and sums for a refinement (`sums`). What is left is one file because fitting,
predicting and storing share the attributes that the class documents.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from font.errors import InputError, ReportWarning
from font.probabilities import PRIOR_OF_FITS
from font.spelling import option
from mmlca.model import em, store
from mmlca.model.checks import (
    AnySequences,
    as_sequences,
    check_init,
    check_settings,
    count_patients,
    forbidden_cells,
    group_numbers,
    in_states,
    late_start,
    zero_cells,
)
from mmlca.model.covariates import AnyCovariates
from mmlca.model.criteria import (
    InformationCriteria,
    classification_entropy,
    count_parameters,
)
from mmlca.model.inference import Inference
from mmlca.model.logit import CovariateMembership
from mmlca.model.membership import Rows
from mmlca.model.params import MarkovParams, Seed
from mmlca.model.search import Fit, SearchKind, fit_from, fit_search, is_confirmed
from mmlca.model.simulate import simulate
from mmlca.model.summary import Summary
from mmlca.model.sums import SumsOverPatients
from mmlca.sequences.checks import patient_labels, some
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Labels, Sequences

Names = tuple[Any, ...]


class MixtureMarkov(
    CovariateMembership,
    Inference,
    InformationCriteria,
    Summary,
    SumsOverPatients,
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Latent classes of sequences, each a Markov chain, estimated by EM.

    A sequence x of class k has the likelihood u_k[x₁] · ∏ T_k[xₜ, xₜ₊₁]; missing states are
    summed over. Fitted by maximum likelihood, or with `prior` by maximum a posteriori.

    Parameters
    ----------
    n_classes : int
        Number of classes K.
    n_init : int
        Number of starts, and the measure of patience: the more starts, the longer the best
        maxima are perturbed without gain before the search ends. An easy problem ends sooner.
    search : "default" or "thorough"
        A thorough search takes several times as long: unless all starts that are followed end at
        the same maximum, it makes six independent searches instead of three, each with twice the
        patience, and joins them with twelve times the patience. The default is enough where most
        independent searches agree (`n_replicated_`). It often is not where many classes are fitted
        to few patients or to overlapping groups: then maxima that lie apart differ little in
        log-likelihood. Use the thorough search there, and for a result that will be published. No
        search can be sure to have seen the best maximum.
    init : MarkovParams, optional
        Starting values: one run from exactly there. Their zeros stay zero.
    prior : float
        Pseudo-count added to every cell of every probability row and to every class. The
        default is too small to matter but gives steps that nobody made a positive probability;
        0 is maximum likelihood.
    zeros : pairs (from, to), optional
        Steps that are impossible; from=None is the start of a sequence. Steps out of the
        sequences' `absorbing` states are impossible, too.
    accelerate : bool
        Extrapolate between EM updates (SQUAREM); the log-likelihood still never falls.
    max_iter : int
        Largest number of EM updates of a run.
    tol : float
        A run has converged when the gains of several plain EM updates in a row, and the sum of
        all gains that their ratio lets expect, are below this, and no probability grows any
        more. 0 makes all `max_iter` updates.
    n_jobs : int
        Threads; −1: one per processor. They do not change the result.
    seed : int or Generator, optional
        The same seed gives the same bits, on any number of threads.
    missing : "error" or "drop"
        What happens to patients who lack a covariate: the fit refuses them, or leaves them out
        and counts them (`n_dropped_`). `predict` gives them the classes' average shares.

    Attributes
    ----------
    params_ : MarkovParams
    weights_, initial_, transition_ : Series, DataFrames
        The same as tables: by class; class × state; (class, from) × to.
    group_weights_ : DataFrame
        After a fit with groups the class proportions of each, group × class; else without rows.
    labels_ : array
        The class of each patient of the fit, as `predict` gives it.
    posterior_ : DataFrame
        For each patient of the fit: id, class, its probability, and the margin to the next.
    loglik_, loglik_path_ : log-likelihood, and that after 0, 1, … updates of the best run
    penalised_path_ : the same with the prior's penalty; this is what never falls
    converged_, n_iter_ : of the best run
    starts_ : DataFrame
        Every start, then every search: kind, log-likelihood, iterations, kicks and status.
    n_replicated_, n_searches_ : int
        `n_replicated_` of `n_searches_` independent searches reached the maximum. Where half (in a
        thorough search: all) of the starts that were followed end there, each of them counts as a
        search. Otherwise there are three searches (six if thorough), two in three from random
        starts and the others from solutions with one class less; none knows what another reached,
        and what they reach together afterwards does not count, so that `n_replicated_` may be 0. A
        high share is evidence that no better maximum exists, not proof: a maximum that attracts
        most starts need not be the best. The fit warns where fewer than two of the searches, or
        fewer than half of them, reached it: two of six may agree on a lower maximum.
    coefficients_ : DataFrame
        Only with covariates: terms × classes, log-odds of each class against the first.
    n_dropped_ : int
        Patients left out because they lack a covariate.
    unsupported_ : DataFrame
        Rows of `transition_` that no patient informs; their probabilities are equal.

    Notes
    -----
    Classes are ordered by decreasing size. Tables with labels count them from 1; arrays
    (`params_`, `labels_`, `predict`, `predict_proba`) from 0.

    As a scikit-learn estimator it passes `check_estimator`, but for the checks that give labels
    as second argument of `fit` (it is the weights here), that need continuous or arbitrary
    negative data (states are whole numbers from 0, −1 is missing), that forbid another number of
    columns in `predict` (new sequences may be longer or shorter), or that fit a single patient.

    Examples
    --------
    >>> stay = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                    [[0.5, 0.5], [0.1, 0.9]]])
    >>> sequences, truth = simulate(stay, 500, 12, seed=1)
    >>> model = MixtureMarkov(2, seed=1).fit(sequences)
    >>> model.weights_.round(2).tolist()
    [0.52, 0.48]
    """

    def __init__(
        self,
        n_classes: int = 2,
        *,
        n_init: int = 40,
        search: SearchKind = "default",
        init: MarkovParams | None = None,
        prior: float = PRIOR_OF_FITS,
        zeros: Iterable[tuple[Any, Any]] | None = None,
        accelerate: bool = True,
        max_iter: int = 2_000,
        tol: float = 1e-6,
        n_jobs: int = 1,
        seed: Seed = None,
        missing: Literal["error", "drop"] = "error",
    ) -> None:
        self.n_classes = n_classes
        self.n_init = n_init
        self.search = search
        self.init = init
        self.prior = prior
        self.zeros = zeros
        self.accelerate = accelerate
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.seed = seed
        self.missing = missing

    # --- fitting ----------------------------------------------------------------------

    def fit(
        self,
        sequences: AnySequences,
        weights: ArrayLike | None = None,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
        formula: str | None = None,
    ) -> Self:
        """Find the classes.

        Parameters
        ----------
        sequences : Sequences, DataFrame (wide) or integer array (n, T) with −1 for missing
        weights : (n,), optional
            In place of the sequences' own. They count patients: the prior is in their units. Where
            their mean is below 1, as that of weights which sum to 1, it is in units of their mean.
        covariates : DataFrame, optional
            What makes classes more or less probable: one row per patient, matched by a column or
            an index of ids (a table with the plain index 0 … n − 1 is in the patients' order).
            Membership is a multinomial logit on them; texts and categories are compared with
            their first level. The classes are searched without covariates, then chains and
            coefficients are estimated together from there and from perturbations of it.
        groups : one label per patient (a Series by id, or in their order), optional
            Such as the site. Chains are shared, while every group has class proportions of its
            own; the information criteria count them all. EM runs on the distinct patterns of each
            group.
        formula : str, optional
            Which covariates enter: "age + sex", "age * sex", "C(year)". Default: every column.
        """
        check_settings(vars(self))
        data = as_sequences(sequences)
        if weights is not None:
            data = data.reweight(weights)
        if groups is not None and covariates is not None:
            raise InputError(
                "found both groups and covariates; give one of them, such as the group as a "
                "covariate."
            )
        data, design, matrix = self._covariates_of(data, covariates, formula)
        counted, unit = count_patients(data)
        names, patterns = self._grouped(counted, groups)
        if not patterns.weights.sum() > 0:
            raise InputError(
                "there is nothing to fit: "
                + ("no sequences." if not len(data) else "every weight is 0.")
            )
        settings = em.Settings(
            float(self.prior),
            forbidden_cells(self.zeros, data),
            int(self.max_iter),
            float(self.tol),
            bool(self.accelerate),
        )
        if self.init is None:
            n_distinct = int((data.patterns.weights > 0).sum())
            if self.n_classes > n_distinct:
                raise InputError(
                    f"{self.n_classes} classes cannot be told apart among {n_distinct} distinct "
                    f"transition patterns; ask for at most {n_distinct}."
                )
            rng = np.random.default_rng(self.seed)
            n_jobs = self.n_jobs if self.n_jobs > 0 else os.cpu_count() or 1
            result = fit_search(
                patterns,
                self.n_classes,
                settings,
                self.n_init,
                n_jobs,
                rng,
                self.search == "thorough",
            )
        else:
            check_init(self.init, self.n_classes, data)
            result = fit_from(patterns, self.init, settings)
        rows = None
        if design is not None:
            result, rows = self._fit_coefficients(counted, design, matrix, settings, result)
        if not np.isfinite(result.path[-1, 0]):
            patients = data.ids[_impossible(data, result.params)]
            raise InputError(
                "some patients are impossible under the starting values or the forbidden steps "
                f"(patients {some(patients)}); allow what they do."
            )
        self._keep(data, patterns, names, result, settings, rows, unit)
        self.__dict__.pop("_intervals", None)
        self._fitted_to = data, None if design is None else matrix, groups
        self._warn(result)
        if late := late_start(data):
            warnings.warn(late, ReportWarning, stacklevel=2)
        return self

    def fit_predict(
        self,
        sequences: AnySequences,
        weights: ArrayLike | None = None,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
        formula: str | None = None,
    ) -> NDArray[np.intp]:
        """Fit, and return the class of each patient, 0 … K − 1."""
        fitted = self.fit(sequences, weights, covariates, groups=groups, formula=formula)
        labels: NDArray[np.intp] = fitted.labels_
        return labels

    @staticmethod
    def _grouped(data: Sequences, groups: Labels | None) -> tuple[Names, Patterns]:
        """The names of the groups and the pattern table, by group if there are any."""
        if groups is None:
            return (), data.patterns
        number, names = group_numbers(patient_labels(data.ids, groups, "groups"))
        return names, data.patterns.by_group(number, len(names), data.weights)

    def _keep(
        self,
        data: Sequences,
        patterns: Patterns,
        names: Names,
        result: Fit,
        settings: em.Settings,
        rows: Rows | None,
        unit: float,
    ) -> None:
        """Set the attributes of the fit; log-likelihoods are in the weights as given."""
        self._set_params_(result.params, data.states, names, result.shares)
        self._forbidden = settings.zeros
        self.n_parameters_ = count_parameters(
            result.params, settings.zeros, self.init, max(len(names), 1)
        )
        if rows is None:
            self.__dict__.pop("coefficients_", None)
        else:
            self.n_parameters_ += (rows.design.shape[1] - 1) * (self.n_classes - 1)
        self.loglik_path_ = result.path[:, 0] * unit
        self.penalised_path_ = result.path[:, 1] * unit
        self.loglik_ = float(self.loglik_path_[-1])
        self.n_iter_ = len(result.path) - 1
        self.converged_ = result.converged
        self.starts_ = result.starts.assign(loglik=result.starts["loglik"] * unit)
        self.n_replicated_ = result.n_replicated
        self.n_searches_ = result.n_searches
        self.n_sequences_ = float(data.weights.sum())
        self.n_timepoints_ = float(((data.codes >= 0).sum(axis=1) * data.weights).sum())
        self.n_features_in_ = data.shape[1]
        classes, states = np.nonzero(result.unsupported)
        self.unsupported_ = pd.DataFrame(
            {"class": classes + 1, "state": [data.states[s] for s in states]}
        )
        alike = patterns if rows is None else rows  # patients with the same memberships
        entropy = classification_entropy(result.posterior, alike.weights)
        self.classification_entropy_ = entropy * unit
        self._pattern_posterior = result.posterior
        self._inverse, self._ids = alike.inverse, data.ids
        self._patient_weights = data.weights
        self.labels_ = result.posterior.argmax(axis=1)[alike.inverse]

    def _set_params_(
        self,
        params: MarkovParams,
        states: tuple[str, ...],
        groups: Names = (),
        shares: ArrayLike = (),
    ) -> None:
        self.params_, self.states_ = params, states
        classes = pd.RangeIndex(1, params.n_classes + 1, name="class")
        columns = pd.Index(states, name="state")
        self.weights_ = pd.Series(params.weights, index=classes, name="weight")
        self.group_weights_ = pd.DataFrame(
            np.reshape(np.asarray(shares, dtype=float)[: len(groups)], (len(groups), len(classes))),
            index=pd.Index(list(groups), name="group"),
            columns=classes,
        )
        self.initial_ = pd.DataFrame(params.initial, index=classes, columns=columns)
        self.transition_ = pd.DataFrame(
            params.transition.reshape(-1, len(states)),
            index=pd.MultiIndex.from_product([classes, states], names=["class", "from"]),
            columns=columns.rename("to"),
        )

    # --- using the model --------------------------------------------------------------

    def predict_proba(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
    ) -> NDArray[np.float64]:
        """Probability of each class for each patient, (n, K).

        With `groups`, one label per patient among those of the fit, the proportions are those of
        the patient's group; without, those of all patients of the fit together.
        """
        posterior, _, inverse = self._memberships(self._conform(sequences), covariates, groups)
        each: NDArray[np.float64] = posterior[inverse]
        return each

    def predict(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
    ) -> NDArray[np.intp]:
        """The most probable class of each patient, 0 … K − 1; `groups` as in `predict_proba`."""
        posterior, _, inverse = self._memberships(self._conform(sequences), covariates, groups)
        best: NDArray[np.intp] = posterior.argmax(axis=1)[inverse]
        return best

    def score_samples(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
    ) -> NDArray[np.float64]:
        """Log-likelihood of each sequence; `groups` as in `predict_proba`."""
        _, logs, inverse = self._memberships(self._conform(sequences), covariates, groups)
        each: NDArray[np.float64] = logs[inverse]
        return each

    def score(
        self,
        sequences: AnySequences,
        y: None = None,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
    ) -> float:
        """Mean log-likelihood of a sequence, weighted; `groups` as in `predict_proba`."""
        data = self._conform(sequences)
        _, logs, inverse = self._memberships(data, covariates, groups)
        counted = data.weights > 0
        return float(np.average(logs[inverse][counted], weights=data.weights[counted]))

    def _e_step(self, data: Sequences, groups: Labels | None) -> tuple[em.EStep, Patterns]:
        """The E-step of patients, by group if these are given, and their patterns."""
        if groups is None:
            return em.e_step(data.patterns, self.params_), data.patterns
        number, n_groups = self._group_numbers(data, groups), len(self.group_weights_)
        patterns = data.patterns.by_group(number, n_groups, data.weights)
        return em.e_step(patterns, self.params_, self.group_weights_.to_numpy()), patterns

    def _group_numbers(self, data: Sequences, groups: Labels) -> NDArray[np.intp]:
        """The number of each patient's group among those of the fit."""
        known = self.group_weights_.index
        values = patient_labels(data.ids, groups, "groups")
        number: NDArray[np.intp] = known.get_indexer(pd.Index(values))
        if (number < 0).any():
            unknown = some(values[number < 0].unique())
            fitted = f"with the groups {some(known)}" if len(known) else "without groups"
            raise InputError(
                f"the model has no class proportions for the groups {unknown}: it was fitted "
                f"{fitted}; leave groups out, or fit with them."
            )
        return number

    def _memberships(
        self, data: Sequences, covariates: AnyCovariates | None, groups: Labels | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
        """Class probabilities and log-likelihoods of patterns or patients, and each patient's row.

        Without covariates patients of one pattern are alike, and only patterns are computed.
        """
        self._check_covariates(covariates)
        if covariates is None or self._design is None:
            step, patterns = self._e_step(data, groups)
            return step.posterior, step.logliks, patterns.inverse
        if groups is not None:
            raise InputError("the model was fitted with covariates; leave groups out.")
        return self._with_covariates(data, covariates)

    def sample(
        self, n: int = 1, lengths: ArrayLike = 16, seed: Seed = None
    ) -> tuple[Sequences, pd.Series]:
        """Draw new sequences from the model; returns them and the class of each, 0 … K − 1.

        With covariates, classes are drawn by their average shares.
        """
        check_is_fitted(self)
        return simulate(self.params_, n, lengths, states=self.states_, seed=seed)

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """One row per class: initial probabilities, then transitions, (K, S + S²)."""
        check_is_fitted(self)
        return self.params_.class_parameters

    def _zero_cells(self) -> NDArray[np.bool_]:
        """The steps that are impossible: of the fit, or else those of `zeros`."""
        known = getattr(self, "_forbidden", None)
        return zero_cells(self.zeros, self.states_) if known is None else known

    # --- inside ---------------------------------------------------------------------------

    def _warn(self, result: Fit) -> None:
        if not result.converged and self.tol > 0:
            warnings.warn(
                f"EM stopped after max_iter = {self.max_iter} updates before it converged; "
                "raise max_iter.",
                stacklevel=3,
            )
        if self.init is not None or self.n_classes == 1:
            return
        if self.n_init > 1 and not is_confirmed(result.n_replicated, result.n_searches):
            warnings.warn(
                f"the best of all maxima was reached by {result.n_replicated} of "
                f"{result.n_searches} independent searches, so a better one may exist; use "
                f"{self._more_search()} or ask for fewer classes.",
                stacklevel=3,
            )

    def _more_search(self) -> str:
        """How to search longer, as the user writes it."""
        if self.search == "default":
            return option("search", "thorough")
        return f"a larger {option('n_init')} (now {self.n_init})"

    def _conform(self, sequences: AnySequences) -> Sequences:
        """Any input as sequences over this model's states."""
        check_is_fitted(self)
        return in_states(sequences, self.states_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "params_")

    # --- files ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The fitted model in plain lists and numbers: no patient, no id."""
        check_is_fitted(self)
        return store.to_dict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """A fitted model from `to_dict`."""
        params, groups, shares, states, prior, attributes, logit = store.from_dict(stored)
        model = cls(params.n_classes, prior=prior)
        model._set_params_(params, states, groups, shares)
        model.__dict__.update(attributes)
        if logit is not None:
            model._set_coefficients(*logit)
        return model

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model as JSON; the file appears whole or not at all."""
        store.write(self.to_dict(), Path(path))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote. The file is checked, and never executed."""
        return cls.from_dict(store.read(Path(path)))


def _impossible(data: Sequences, params: MarkovParams) -> NDArray[np.bool_]:
    """The patients that cannot occur under the parameters."""
    return np.isneginf(em.e_step(data.patterns, params).logliks)[data.patterns.inverse]
