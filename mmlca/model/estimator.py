"""The estimator: a mixture of Markov chains with scikit-learn's conventions.

Its computations are functions of other modules. Here are the settings, the attributes of a fit, and
their documentation.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from font.checks import check_sums, memberships, one_of, whole_number
from font.errors import InputError, ReportWarning, option
from font.probabilities import PRIOR_OF_FITS, log_prior
from mmlca.model import em, forms, inference, step_inference, store
from mmlca.model.covariates import (
    Covariates,
    Design,
    Groups,
    Rows,
    fit_membership,
    make_rows,
    matrix_of,
    read_covariates,
    separation,
)
from mmlca.model.inference import (
    Patients,
    classification_entropy,
    count_parameters,
    entropy_r_squared,
    information_criteria,
)
from mmlca.model.information import Kind
from mmlca.model.params import (
    AnyParams,
    AnySequences,
    Floats,
    MarkovParams,
    Seed,
    as_sequences,
    check_lengths,
    count_patients,
    forbidden_cells,
    in_states,
    simulate,
    zero_cells,
)
from mmlca.model.search import Fit, fit_from, fit_search, is_confirmed
from mmlca.model.settings import ModelSettings, SampleSize, SearchKind
from mmlca.model.step_covariates import (
    LACKING,
    fit_steps,
    lacking_text,
    log_likelihoods,
    read_step_covariates,
    sample_steps,
    separated_steps,
    step_patterns,
    too_many_effects,
)
from mmlca.sequences.checks import patient_labels, some
from mmlca.sequences.covariates import AnyCovariates
from mmlca.sequences.forms import PLAIN, Cuts, Form, Layout, Shared, layout_of, make_form
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Labels, Sequences

_DEFAULTS = ModelSettings()
_MOST = 500  # free parameters up to which a summary computes intervals
_LEAST = {"n_classes": 1, "n_init": 1, "max_iter": 0, "n_jobs": 1, "min_patients": 1}

Names = tuple[Any, ...]


class MixtureMarkov(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Latent classes of sequences, each a Markov chain, estimated by EM.

    A sequence x of class k has the likelihood u_k[x₁] · ∏ T_k[xₜ, xₜ₊₁]; missing states are
    summed over. Fitted by maximum likelihood, or with `prior` by maximum a posteriori.

    With `stays` or `periods` the chains have another form: a patient who has been in state i for d
    windows leaves it in window t with a probability λ_k that depends on i, on the bin of d and on
    the period of t, and then goes to j ≠ i with the probability D_k[i, j], or D_k[period, i, j].
    Missing windows are not summed over then: steps into and out of them, and those that follow
    before it is known again for how long the patient has been in the state, are left out, and a
    warning counts them.

    With `transitions` both probabilities depend on covariates of the step, too: the log-odds of
    leaving are a_k[i] + z · g_k[i], and D_k[i, j] is proportional to
    exp(d_k[i, j] + z · h_k[i, j]). `params_` and all tables of it are then the frequencies among
    the steps of each class, whatever the covariates; `step_coefficients`, `step_tests` and
    `marginal_predictions` say what these do.

    Parameters
    ----------
    n_classes : int
        Number of classes K.
    n_init : int
        Number of starts, and the measure of patience: the more starts, the longer the best
        maxima are perturbed without gain before the search ends. An easy problem ends sooner.
    search : "default" or "thorough"
        A thorough search takes several times as long and misses the best maximum less often. The
        default is enough where most independent searches agree (`n_replicated_`). It often is not
        where many classes are fitted to few patients or to overlapping groups: then maxima that
        lie apart differ little in log-likelihood. Use the thorough search there, and for a result
        that will be published. No search can be sure to have seen the best maximum.
    init : MarkovParams or FormParams, optional
        Starting values: one run from exactly there. Their zeros stay zero.
    prior : float
        Pseudo-count added to every cell of every probability row and to every class. The
        default is too small to matter but gives steps that no patient made a positive probability;
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
        and counts them (`n_dropped_`). `predict` gives them the classes' average shares. Steps that
        lack a covariate of `transitions` are refused, or left out and counted in a warning.
    stays : cut points of time in state, optional
        (2, 4): the probability of leaving a state differs between the first window in it, the
        second to third, and later ones. Default: it does not depend on time in state.
    periods : cut points of time since the start, optional
        (5,): steps from windows 1–4 have other probabilities than those from window 5 on.
    shared : "destinations", optional
        Periods and covariates of the steps change the probability of leaving alone, and not where
        patients go.
    transitions : formula, optional
        Covariates on which the steps depend, such as "age + sex", "age * sex" or "C(line)". They
        are those of `Sequences.with_step_covariates`, or else of a wide table (its columns without
        states), and are needed wherever the model meets sequences. The classes are searched
        without them.
    common_effects : bool
        Covariates of the steps have the same effects in all classes. By default each class has its
        own.
    min_patients : int
        A first state or a step counts in `n_parameters_`, and so in the criteria, if at least so
        many patients begin in it or make it. Studies set their `min_count`, so that criteria which
        others see say nothing of steps that fewer patients make.

    Attributes
    ----------
    params_ : MarkovParams, or FormParams with `stays` or `periods`
    weights_, initial_, transition_ : Series, DataFrames
        The same as tables: by class; class × state; (class, from) × to.
    leaving_ : DataFrame
        Probability of leaving each state, by class, state, time in state (`stay`) and `period`.
    destination_ : DataFrame
        Instead of `transition_`, with `stays` or `periods`: probability of the next state of those
        who leave, (class, period, from) × to; "" is the only period.
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
        search. Otherwise there are three searches (six if thorough), and what they reach together
        afterwards does not count, so that `n_replicated_` may be 0. A high share is evidence that
        no better maximum exists, not proof. The fit warns where fewer than two of the searches, or
        fewer than half of them, reached it.
    n_parameters_ : int
        Free parameters that the data inform, which the criteria count: in each row of a class one
        fewer than there are first states or steps that patients make, and the class proportions. A
        gap of missing windows adds steps only where no observed ones can fill it.
    n_cells_ : int
        Free parameters of all first states and steps, whether anybody makes them or not, as
        textbooks and other programs count them; `criteria(all_cells=True)` are by these. Where the
        steps depend on covariates it is `n_parameters_`.
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
        n_init: int = _DEFAULTS.n_init,
        search: SearchKind = _DEFAULTS.search,
        init: AnyParams | None = None,
        prior: float = PRIOR_OF_FITS,
        zeros: Iterable[tuple[Any, Any]] | None = None,
        accelerate: bool = True,
        max_iter: int = 2_000,
        tol: float = 1e-6,
        n_jobs: int = 1,
        seed: Seed = None,
        missing: Literal["error", "drop"] = "error",
        stays: Cuts = None,
        periods: Cuts = None,
        shared: Shared | None = None,
        transitions: str | None = None,
        common_effects: bool = False,
        min_patients: int = 1,
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
        self.stays = stays
        self.periods = periods
        self.shared = shared
        self.transitions = transitions
        self.common_effects = common_effects
        self.min_patients = min_patients

    @property
    def form(self) -> Form:
        """Which parts the chains have, by `stays`, `periods`, `shared` and `transitions`."""
        return make_form(self.stays, self.periods, self.shared, self.transitions)

    @property
    def form_title(self) -> str:
        """The form in words, such as "by time in state (1, 2–3, 4+)"."""
        return self.form.title

    _step_design = Design((), ())  # of the covariates of the steps
    _design = Design((), ())  # of the covariates; without any an intercept alone
    _finest: Form | None = None  # of the forms that a selection compares on the same steps

    # --- fitting ----------------------------------------------------------------------

    def fit(
        self,
        sequences: AnySequences,
        weights: ArrayLike | None = None,
        covariates: Covariates = None,
        groups: Groups = None,
        formula: str | None = None,
    ) -> Self:
        """Find the classes.

        Parameters
        ----------
        sequences : Sequences, DataFrame (wide) or integer array (n, T) with −1 for missing
        weights : (n,), optional
            Instead of the sequences' own. They count patients: the prior is in their units. Where
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
        _check_settings(vars(self))
        data = as_sequences(sequences)
        if weights is not None:
            data = data.reweight(weights)
        patients, names = self._read_patients(data, covariates, groups, formula)
        data = patients.sequences
        counted, unit = count_patients(data)
        form = self.form
        patterns = counted.patterns_of(form, self._finest)
        if reason := forms.too_fine(patterns):
            raise InputError(reason)
        if patients.groups is not None:
            patterns = patterns.by_group(patients.groups, len(names), counted.weights)
        zeros = forbidden_cells(self.zeros, data, form)
        settings = em.Settings(self.prior, zeros, self.max_iter, self.tol, self.accelerate)
        if self.init is None:
            _check_distinct(patterns, self.n_classes)
            rng, thorough = np.random.default_rng(self.seed), self.search == "thorough"
            result = fit_search(
                patterns, self.n_classes, settings, self.n_init, self.n_jobs, rng, thorough
            )
        else:
            _check_init(self.init, self.n_classes, data, form)
            result = fit_from(patterns, self.init, settings)
        rows, n_parameters = None, None
        if form.transitions:
            result, rows, n_parameters = self._fit_steps(counted, patients, settings, result)
        elif patients.matrix is not None:
            result, rows = self._fit_coefficients(counted, patients.matrix, settings, result)
        if not np.isfinite(result.path[-1, 0]):
            table = data.patterns_of(form, self._finest)
            impossible = np.isneginf(em.e_step(table, result.params).logliks)
            raise InputError(
                "some patients are impossible under the starting values or the forbidden steps "
                f"(patients {some(data.ids[impossible[table.inverse]])}); allow what they "
                "do."
            )
        self._patients = patients
        self._keep(patterns, names, result, settings, rows, unit, n_parameters)
        self._warn(result)
        self._warn_left_out(data, stacklevel=3)
        if late := _late_start(data, form):
            warnings.warn(late, ReportWarning, stacklevel=2)
        return self

    def fit_predict(self, sequences: AnySequences, *given: Any, **named: Any) -> NDArray[np.intp]:
        """Fit, and return the class of each patient, 0 … K − 1; arguments as those of `fit`."""
        labels: NDArray[np.intp] = self.fit(sequences, *given, **named).labels_
        return labels

    def _read_patients(
        self, data: Sequences, covariates: Covariates, groups: Groups, formula: str | None
    ) -> tuple[Patients, Names]:
        """The patients of a fit, less those who lack a covariate, and the names of the groups."""
        if groups is not None and covariates is not None:
            raise InputError(
                "found both groups and covariates; give one of them, such as the group as a "
                "covariate."
            )
        if formula is not None and covariates is None:
            raise InputError("formula names covariates, but there are none; give covariates.")
        self._design, self.n_dropped_ = Design((), ()), 0
        names: Names = ()
        matrix = number = None
        if covariates is not None:
            self._design, matrix, known = read_covariates(covariates, formula, data, self.missing)
            self.n_dropped_ = int((~known).sum())
            data = data[known] if self.n_dropped_ else data
        if groups is not None:
            number, names = _group_numbers(patient_labels(data.ids, groups, "groups"))
        if not data.weights.sum() > 0:
            raise InputError(
                "there is nothing to fit: "
                + ("no sequences." if not len(data) else "every weight is 0.")
            )
        return Patients(data, matrix, number), names

    def _fit_coefficients(
        self, data: Sequences, matrix: Floats, settings: em.Settings, first: Fit
    ) -> tuple[Fit, Rows]:
        """From a fit without covariates to one with them; keeps the coefficients."""
        design = self._design
        rows = make_rows(data.patterns_of(self.form), data.weights, design.standardised(matrix))
        start = first.params if self.init is None else self.init
        zeros = settings.zeros[None] if self.init is None else em.cells_of(self.init) == 0
        result, coefficients = fit_membership(
            rows,
            start,
            settings,
            np.broadcast_to(zeros, em.cells_of(first.params).shape),
            max(4, self.n_init // 4) if self.init is None else 0,
            np.random.default_rng(self.seed),
        )
        self._set_coefficients(design, design.back @ coefficients)
        separated = separation(matrix, design.columns, self.coefficients_.to_numpy())
        if separated:
            warnings.warn(separated, ReportWarning, stacklevel=3)
        return result, rows

    def _fit_steps(
        self, data: Sequences, patients: Patients, settings: em.Settings, first: Fit
    ) -> tuple[Fit, Rows, int]:
        """From a fit without covariates of the steps to one with them; keeps their parameters."""
        form = self.form
        self._step_design, values = read_step_covariates(data, form, self.missing)
        patterns = step_patterns(data, form, values, self._finest)
        if reason := too_many_effects(patterns, values):
            raise InputError(reason)
        matrix = patients.matrix
        done = fit_steps(
            patterns,
            values.values,
            data.weights,
            None if matrix is None else self._design.standardised(matrix),
            patients.groups,
            first.params if self.init is None else self.init,
            settings,
            self.common_effects,
            max(2, self.n_init // 10) if self.init is None else 0,
            np.random.default_rng(self.seed),
        )
        self.step_params_ = done.params
        if matrix is not None:
            self._set_coefficients(self._design, self._design.back @ done.coefficients)
        if text := lacking_text(patterns, len(data)):
            warnings.warn(ReportWarning(text, LACKING), stacklevel=3)
        separated = separated_steps(done.params, self._step_design, values.values, data.states)
        if separated:
            warnings.warn(separated, ReportWarning, stacklevel=3)
        return done.fit, done.rows, done.n_parameters

    def _set_coefficients(self, design: Design, coefficients: Floats) -> None:
        self._design = design
        self.coefficients_ = pd.DataFrame(
            coefficients,
            index=pd.Index(design.columns, name="term"),
            columns=pd.RangeIndex(1, coefficients.shape[1] + 1, name="class"),
        )

    def _keep(
        self,
        patterns: Patterns,
        names: Names,
        result: Fit,
        settings: em.Settings,
        rows: Rows | None,
        unit: float,
        n_parameters: int | None,
    ) -> None:
        """Set the attributes of the fit; log-likelihoods are in the weights as given.

        `n_parameters` is known where the steps depend on covariates.
        """
        data = self._patients.sequences
        self._set_params_(result.params, data.states, names, result.shares)
        self._forbidden = settings.zeros
        people = np.bincount(patterns.inverse, data.weights > 0, len(patterns))
        occurring = forms.occurring_cells(patterns, people, self.min_patients)
        limits = (patterns.layout, self.n_classes, settings.zeros, self.init, max(len(names), 1))
        self.n_parameters_ = count_parameters(*limits, occurring=occurring)
        self.n_cells_ = count_parameters(*limits)
        self.__dict__.pop("_intervals", None)
        if not self._design.terms:
            self.__dict__.pop("coefficients_", None)
        if n_parameters is not None:
            self.n_parameters_ = self.n_cells_ = n_parameters
        else:
            self.__dict__.pop("step_params_", None)
        if rows is not None and n_parameters is None:
            n_effects = (rows.design.shape[1] - 1) * (self.n_classes - 1)
            self.n_parameters_ += n_effects
            self.n_cells_ += n_effects
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
        self.unsupported_ = _unsupported(result.unsupported, patterns.layout, data.states)
        alike = patterns if rows is None else rows  # patients with the same memberships
        entropy = classification_entropy(result.posterior, alike.weights)
        self.classification_entropy_ = entropy * unit
        self._pattern_posterior = result.posterior
        self._inverse, self._ids = alike.inverse, data.ids
        self._patient_weights = data.weights
        self.labels_ = result.posterior.argmax(axis=1)[alike.inverse]

    def _set_params_(
        self,
        params: AnyParams,
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
        if isinstance(params, MarkovParams):
            self.transition_ = pd.DataFrame(
                params.transition.reshape(-1, len(states)),
                index=pd.MultiIndex.from_product([classes, states], names=["class", "from"]),
                columns=columns.rename("to"),
            )
            return
        self.__dict__.pop("transition_", None)  # of an earlier fit
        periods = [""] if params.form.shared else params.form.period_labels
        self.destination_ = pd.DataFrame(
            params.destination.reshape(-1, len(states)),
            index=pd.MultiIndex.from_product(
                [classes, periods, states], names=["class", "period", "from"]
            ),
            columns=columns.rename("to"),
        )

    # --- using the model --------------------------------------------------------------

    def predict_proba(
        self, sequences: AnySequences, covariates: Covariates = None, groups: Groups = None
    ) -> Floats:
        """Probability of each class for each patient, (n, K).

        With `groups`, one label per patient among those of the fit, the proportions are those of
        the patient's group; without, those of all patients of the fit together.
        """
        posterior, _, inverse = self._memberships(self._conform(sequences), covariates, groups)
        each: Floats = posterior[inverse]
        return each

    def predict(
        self, sequences: AnySequences, covariates: Covariates = None, groups: Groups = None
    ) -> NDArray[np.intp]:
        """The most probable class of each patient, 0 … K − 1; `groups` as in `predict_proba`."""
        best: NDArray[np.intp] = self.predict_proba(sequences, covariates, groups).argmax(axis=1)
        return best

    def score_samples(
        self, sequences: AnySequences, covariates: Covariates = None, groups: Groups = None
    ) -> Floats:
        """Log-likelihood of each sequence; `groups` as in `predict_proba`."""
        _, logs, inverse = self._memberships(self._conform(sequences), covariates, groups)
        each: Floats = logs[inverse]
        return each

    def score(
        self,
        sequences: AnySequences,
        y: None = None,
        covariates: Covariates = None,
        groups: Groups = None,
    ) -> float:
        """Mean log-likelihood of a sequence, weighted; `groups` as in `predict_proba`."""
        data = self._conform(sequences)
        counted = data.weights > 0
        logs = self.score_samples(data, covariates, groups)
        return float(np.average(logs[counted], weights=data.weights[counted]))

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
        self, data: Sequences, covariates: Covariates, groups: Groups = None
    ) -> tuple[Floats, Floats, NDArray[Any]]:
        """Class probabilities and log-likelihoods of patterns or patients, and each patient's row.

        Without covariates patients of one pattern are alike, and only patterns are computed.
        """
        self._check_covariates(covariates)
        self._warn_left_out(data, stacklevel=4)
        if covariates is None and self.form.transitions:
            return self._memberships_by_steps(data, groups)
        if covariates is None:
            patterns, shares = data.patterns_of(self.form), None
            if groups is not None:
                number, shares = self._group_numbers(data, groups), self.group_weights_.to_numpy()
                patterns = patterns.by_group(number, len(shares), data.weights)
            step = em.e_step(patterns, self.params_, shares)
            return step.posterior, step.logliks, patterns.inverse
        if groups is not None:
            raise InputError("the model was fitted with covariates; leave groups out.")
        advice = f"fill them in, or give them the average shares with {option('missing', 'drop')}"
        matrix, known = matrix_of(self._design, covariates, data, self.missing, advice)
        average = np.log(self.params_.weights)
        joint = np.tile(average, (len(data), 1))
        joint[known] = log_softmax(matrix[known] @ self.coefficients_.to_numpy(), axis=1)
        joint += self.log_likelihoods(data)
        logs = logsumexp(joint, axis=1)
        joint[np.isneginf(logs)] = average
        return np.exp(log_softmax(joint, axis=1)), logs, np.arange(len(data))

    def _memberships_by_steps(
        self, data: Sequences, groups: Groups
    ) -> tuple[Floats, Floats, NDArray[Any]]:
        """The same for each patient, where the steps depend on covariates."""
        with np.errstate(divide="ignore"):
            joint = np.tile(np.log(self.params_.weights), (len(data), 1))
            if groups is not None:
                joint = np.log(self.group_weights_.to_numpy()[self._group_numbers(data, groups)])
        average = np.exp(joint)
        joint = joint + self.log_likelihoods(data)
        logs = logsumexp(joint, axis=1)
        possible = np.isfinite(logs)
        average[possible] = np.exp(joint[possible] - logs[possible, None])
        return average, logs, np.arange(len(data))

    def _step_logliks(self, data: Sequences) -> Floats:
        """Log-likelihood of each sequence in each class (n, K), where steps have covariates."""
        _, rows = read_step_covariates(data, self.form, self.missing, self._step_design)
        patterns = step_patterns(data, self.form, rows)
        if text := lacking_text(patterns, len(data)):
            warnings.warn(ReportWarning(text, LACKING), stacklevel=6)
        return log_likelihoods(self.step_params_, patterns, rows)[patterns.inverse]

    def _check_covariates(self, covariates: Covariates) -> None:
        """Covariates belong to a model that was fitted with them, and to no other."""
        if covariates is None and self._design.terms:
            raise InputError(
                "the model was fitted with covariates "
                f"({some(v.name for v in self._design.variables)}); give those of these patients."
            )
        if covariates is not None and not self._design.terms:
            raise InputError("the model was fitted without covariates; leave them out here too.")

    def sample(
        self,
        n: int = 1,
        lengths: ArrayLike = 16,
        seed: Seed = None,
        *,
        step_covariates: AnyCovariates | None = None,
    ) -> tuple[Sequences, pd.Series]:
        """Draw new sequences from the model; returns them and the class of each, 0 … K − 1.

        With covariates of membership, classes are drawn by their average shares. With `transitions`
        the covariates of the n patients are needed: a table of n rows in their order, or by the ids
        0 … n − 1 and windows 1, 2, … (`Sequences.with_step_covariates`). The sequences keep it.
        """
        check_is_fitted(self)
        if self.form.transitions:
            return sample_steps(
                self.step_params_,
                self.params_.weights,
                self.form,
                self._step_design,
                self.states_,
                check_lengths(n, lengths),
                step_covariates,
                np.random.default_rng(seed),
            )
        if step_covariates is not None:
            raise InputError("the model's steps do not depend on covariates; leave them out.")
        return simulate(self.params_, n, lengths, states=self.states_, seed=seed)

    @property
    def class_parameters_(self) -> Floats:
        """One row per class: initial probabilities, then transitions, (K, S + S²).

        Of other forms: initial, leaving and destination probabilities, see `FormParams`.
        """
        check_is_fitted(self)
        return self.params_.class_parameters

    @property
    def leaving_(self) -> pd.DataFrame:
        """Probability of leaving each state, by class, time in state (`stay`) and `period`."""
        check_is_fitted(self)
        return forms.leaving_table(self.params_, self.states_)

    # --- what the classes are ---------------------------------------------------------

    @property
    def posterior_(self) -> pd.DataFrame:
        """Each patient's class, its probability, and the margin to the next best class."""
        check_is_fitted(self)
        if not hasattr(self, "_pattern_posterior"):
            raise AttributeError(
                "a loaded model does not carry its patients; use predict or predict_proba."
            )
        return inference.posterior_table(self._pattern_posterior, self._inverse, self._ids)

    def average_posterior(self) -> float:
        """Mean probability of the patients' own class, weighted; near 1 where classes are clear."""
        table = self.posterior_
        counted = self._patient_weights > 0
        return float(
            np.average(table["probability"][counted], weights=self._patient_weights[counted])
        )

    def summary(self) -> pd.DataFrame:
        """One row per class: its size, its patients' certainty, how it starts, stays and moves.

        `patients` counts those whose most probable class this is, `certainty` is their mean
        probability of it; after a fit with groups `weight in …` is the share of the class in each
        group; `stays` and `mostly moves to` are steps from the most frequent first state. `low`
        and `high` are the limits of 95 % intervals, see `standard_errors`; with more than 500
        parameters they would take long and are left out. With `stays` or `periods` there is
        `leaves` instead of `stays`: how many leave that state, by time in it and period; and
        `mostly moves to` is about those who leave.
        """
        return inference.class_table(self, self._patient_weights, self._own_intervals())

    def _own_intervals(self) -> pd.DataFrame | None:
        """Intervals for the patients of the fit, while the model holds them; computed once."""
        known = hasattr(self, "_patients") and not self.form.transitions
        if self.n_parameters_ > _MOST or not known:
            return None
        if not hasattr(self, "_intervals"):
            with warnings.catch_warnings():  # the table of intervals says so in its notes
                warnings.filterwarnings("ignore", "the data do not determine")
                self._intervals: pd.DataFrame = inference.intervals(
                    self, self._patients, "sandwich", 0.95
                )
        return self._intervals

    def _repr_html_(self) -> str:
        """The summary of a fitted model, for notebooks."""
        if not hasattr(self, "posterior_"):
            return f"<pre>{html.escape(repr(self))}</pre>"
        head = f"<p>{self.params_.n_classes} classes, log-likelihood {self.loglik_:,.2f}.</p>"
        table = self.summary()
        if (table["patients"] % 1 == 0).all():
            table["patients"] = table["patients"].astype(int)
        return f"{head}\n{table.to_html(border=0, float_format='{:.3f}'.format)}"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        """What notebooks ask for first; scikit-learn's shows the settings only."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    # --- criteria ---------------------------------------------------------------------

    def bic(self, n: SampleSize = "sequences") -> float:
        """Bayesian information criterion, −2 log L + p log n; smaller is better.

        p is `n_parameters_`, the number of parameters that the data inform. n is the (weighted)
        number of sequences, as is usual in latent class analysis, or with "timepoints" that of
        observed states, as in seqHMM (whose p is `n_cells_`).
        """
        return self.criteria(n)["bic"]

    def aic(self) -> float:
        """Akaike's information criterion, −2 log L + 2p; smaller is better."""
        return self.criteria()["aic"]

    def icl(self, n: SampleSize = "sequences") -> float:
        """Integrated completed likelihood (Biernacki et al. 2000): BIC + 2·entropy."""
        return self.criteria(n)["icl"]

    def entropy(self) -> float:
        """How clearly patients belong to classes, from 0 (not at all) to 1 (certain).

        The entropy R² of Ramaswamy et al. (1993): 1 − Σᵢ Σₖ −pᵢₖ log pᵢₖ / (n log K); 1 if K = 1.
        """
        check_is_fitted(self)
        return entropy_r_squared(
            self.classification_entropy_, self.n_sequences_, self.params_.n_classes
        )

    def criteria(self, n: SampleSize = "sequences", *, all_cells: bool = False) -> dict[str, float]:
        """All criteria by name; besides AIC, BIC and ICL they are SABIC and CAIC.

        SABIC is BIC adjusted for sample size (Sclove 1987), with (n + 2) / 24 instead of n; CAIC
        the consistent AIC (Bozdogan 1987), −2 log L + p (log n + 1), which is stricter than BIC. p
        is `n_parameters_`, or with `all_cells` the textbook's `n_cells_`.
        """
        check_is_fitted(self)
        one_of(n, get_args(SampleSize), "n")
        size = self.n_sequences_ if n == "sequences" else self.n_timepoints_
        n_parameters = self.n_cells_ if all_cells else self.n_parameters_
        criteria = information_criteria(
            self.loglik_, n_parameters, size, self.classification_entropy_
        )
        return {name: float(value) for name, value in criteria.items()}

    # --- precision --------------------------------------------------------------------

    def standard_errors(
        self,
        sequences: AnySequences,
        covariates: Covariates = None,
        groups: Groups = None,
        *,
        information: Kind = "sandwich",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Standard errors and intervals of all probabilities.

        Intervals are symmetric on the logit scale, so that they stay between 0 and 1. A
        probability on the boundary (fewer than half an expected visit, or all visits of its row)
        has no standard error; its interval is the exact one for "never" or "always" in as many
        visits as its row has. One that the data do not determine has none either, and the interval
        from 0 to 1. The prior counts as in the fit: for every row of the chains and for the class
        proportions, in each group if there are groups.

        All this is a normal approximation. Where classes overlap (entropy R² below 0.7) and
        patients are few, intervals are too narrow, and a warning says so; `mmlca.bootstrap` is
        better there.

        Parameters
        ----------
        sequences : those of the fit, with the same weights
        covariates, groups : those of the fit, if there were any
        information : "sandwich", "observed" or "opg"
            "observed" is the curvature of the log-likelihood (Louis 1982), "opg" sums the outer
            products of the patterns' scores, and "sandwich" puts the latter between two inverses
            of the former. "sandwich" covers best where classes overlap, and also holds where
            weights are not counts of patients or the chains are not quite Markov.
        level : of the intervals

        Returns
        -------
        DataFrame
            One row per probability: `parameter` ("weight", "initial" or "transition"), `class`,
            `from`, `to`, `estimate`, `se`, `low`, `high`, `boundary`, and a `note` where
            there is no standard error. After a fit with groups the class proportions of each
            follow as "group weight", with the group in `from`. With `stays` or `periods` the
            parameters "leave" and "destination" replace "transition", and `stay` and `period` name
            their windows.

        Examples
        --------
        >>> from mmlca import MarkovParams, MixtureMarkov, simulate
        >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
        ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
        >>> sequences, _ = simulate(two, 500, 12, seed=1)
        >>> table = MixtureMarkov(2, seed=1).fit(sequences).standard_errors(sequences)
        >>> table.loc[table["parameter"] == "weight", ["estimate", "se"]].round(2).values.tolist()
        [[0.52, 0.02], [0.48, 0.02]]
        """
        forms.need_no_step_covariates(
            self.params_,
            "standard_errors",
            "step_coefficients and marginal_predictions have errors",
        )
        patients = self._patients_of(sequences, covariates, groups)
        return inference.intervals(self, patients, information, level)

    def coefficient_table(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates,
        *,
        information: Kind = "sandwich",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Effects of covariates on membership, with standard errors and odds ratios.

        Parameters
        ----------
        sequences, covariates : those of the fit
        information : as in `standard_errors`
            Other programs report "observed".
        level : of the intervals

        Returns
        -------
        DataFrame
            One row per class but the first and term: `term`, `class`, `estimate` (log-odds against
            the first class), `se`, `z`, `p`, `low`, `high`, `odds_ratio`, `or_low`, `or_high`.
        """
        patients = self._patients_of(sequences, covariates)
        return inference.coefficient_table(self, *self._covariance(patients, information), level)

    def coefficient_covariance(
        self, sequences: AnySequences, covariates: AnyCovariates, *, information: Kind = "sandwich"
    ) -> pd.DataFrame:
        """Covariance of the coefficients, (class, term) × (class, term), classes from 2.

        Parameters
        ----------
        sequences, covariates : those of the fit
        information : as in `coefficient_table`
        """
        patients = self._patients_of(sequences, covariates)
        spread, _ = self._covariance(patients, information)
        return inference.coefficient_covariance(self, spread)

    def term_tests(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates,
        *,
        test: Literal["wald", "lr"] = "wald",
        information: Kind = "sandwich",
    ) -> pd.DataFrame:
        """Whether each covariate matters at all, over all classes and levels together.

        Parameters
        ----------
        sequences, covariates : those of the fit
        test : "wald" or "lr"
            Wald tests need this fit alone. Likelihood-ratio tests fit the model again without
            each term, from the present chains on, and are the better ones in small samples.
        information : as in `standard_errors`, for Wald tests

        Returns
        -------
        DataFrame
            One row per term: `term`, `statistic`, `df`, `p`.
        """
        one_of(test, ("wald", "lr"), "test")
        patients = self._patients_of(sequences, covariates)
        if test == "wald":
            return inference.term_tests(self, self._covariance(patients, information)[0])
        forms.need_no_step_covariates(self.params_, "likelihood-ratio tests of membership")
        return inference.term_tests(self, inference.point_at(self, patients))

    def step_coefficients(
        self,
        sequences: AnySequences,
        covariates: Covariates = None,
        groups: Groups = None,
        *,
        information: Kind = "sandwich",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Effects of covariates on leaving and on the destination, with errors and odds ratios.

        Parameters
        ----------
        sequences : those of the fit, with the covariates of their steps
        covariates, groups, information, level : as in `standard_errors`

        Returns
        -------
        DataFrame
            One row per class, state (`from`), answer and term: `class` ("all" for common effects),
            `from`, `to` ("" for leaving, else the destination of those who leave, compared with the
            most frequent one), `stay` and `period` (of intercepts), `term`, `estimate` (log-odds),
            `se`, `z`, `p`, `low`, `high`, `odds_ratio`, `or_low`, `or_high`. What the data do not
            determine has no standard error.
        """
        inference.check_level(level)
        point = self._step_patients(sequences, covariates, groups)
        spread, lost = step_inference.covariance_at(point, information)
        return step_inference.coefficient_table(point, spread, lost, level)

    def step_tests(
        self,
        sequences: AnySequences,
        covariates: Covariates = None,
        groups: Groups = None,
        *,
        test: Literal["wald", "lr"] = "wald",
        information: Kind = "sandwich",
    ) -> pd.DataFrame:
        """Whether each covariate of the steps matters, in all classes and states together.

        Parameters
        ----------
        sequences, covariates, groups, information : as in `step_coefficients`
        test : "wald" or "lr"
            Likelihood-ratio tests fit the model again without each term, from the present chains
            on, and are the better ones in small samples.

        Returns
        -------
        DataFrame
            One row per term and part: `term`, `about` ("leaving" or "destinations"), `statistic`,
            `df` (effects that the data inform), `p`.
        """
        one_of(test, ("wald", "lr"), "test")
        point = self._step_patients(sequences, covariates, groups)
        spread = None
        if test == "wald":
            spread, _ = step_inference.covariance_at(point, information)
        return step_inference.term_tests(point, spread)

    def marginal_predictions(
        self,
        sequences: AnySequences,
        at: pd.DataFrame | Mapping[str, Any],
        windows: int = 4,
        states: Iterable[str] | None = None,
        covariates: Covariates = None,
        groups: Groups = None,
        *,
        information: Kind = "sandwich",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Probability of leaving a state within some windows, by class, at values of covariates.

        It is that of a patient who enters the state in the first window and keeps the covariates.
        Covariates that `at` does not name are those of the patients (in their first window), over
        whom the probabilities are averaged.

        Parameters
        ----------
        sequences, covariates, groups, information, level : as in `step_coefficients`
        at : DataFrame, or a dict of values
            What to compare, a row each: {"sex": "F", "age": [40, 60]}.
        windows : number of windows, such as 4 quarters for a year
        states : default all

        Returns
        -------
        DataFrame
            The columns of `at`; `class`, `from`, `to` ("": left for any state, else directly to
            this one), `probability`, `se`, `low`, `high` (symmetric on the logit scale), and the
            `difference` from the first row of `at`, with `difference_low` and `difference_high`.
        """
        inference.check_level(level)
        whole_number(windows, 1, "windows")
        point = self._step_patients(sequences, covariates, groups)
        spread, lost = step_inference.covariance_at(point, information)
        scalars = all(np.ndim(value) == 0 for value in at.values()) if isinstance(at, dict) else 0
        values = pd.DataFrame(at, index=[0] if scalars else None)
        chosen = self.states_ if states is None else tuple(states)
        unknown = [state for state in chosen if state not in self.states_]
        if unknown:
            raise InputError(f"there is no state {some(unknown)}; there are {some(self.states_)}.")
        return step_inference.marginal_predictions(
            point,
            values.reset_index(drop=True),
            windows,
            [self.states_.index(state) for state in chosen],
            spread,
            lost,
            level,
        )

    def _step_patients(
        self, sequences: AnySequences, covariates: Covariates, groups: Groups
    ) -> step_inference.StepPoint:
        """The patients of the fit, given again, where the steps depend on covariates."""
        check_is_fitted(self)
        if not self.form.transitions:
            raise InputError(
                "the model's steps do not depend on covariates; fit it with transitions, such as "
                "transitions='age + sex'."
            )
        patients = self._patients_of(sequences, covariates, groups)
        return step_inference.StepPoint(self, patients)

    def _covariance(self, patients: Patients, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
        """Covariance of all free parameters, and which of them the data do not determine."""
        if self.form.transitions:
            return step_inference.covariance_at(step_inference.StepPoint(self, patients), kind)
        return inference.covariance_at(inference.point_at(self, patients), kind)

    def _patients_of(
        self, sequences: AnySequences, covariates: Covariates, groups: Groups = None
    ) -> Patients:
        """The patients of the fit, given again."""
        data = self._conform(sequences)
        self._check_covariates(covariates)
        known = self.group_weights_.index
        if len(known) and groups is None:
            raise InputError(
                f"the model was fitted with the groups {some(known)}; give those of these patients."
            )
        if groups is not None and not len(known):
            raise InputError("the model was fitted without groups; leave them out here too.")
        if groups is not None:
            return Patients(data, groups=self._group_numbers(data, groups))
        if covariates is None:
            return Patients(data)
        matrix, complete = matrix_of(
            self._design, covariates, data, self.missing, "give the patients of the fit"
        )
        return Patients(data[complete], matrix[complete])

    # --- refinement -------------------------------------------------------------------

    @property
    def proportions_prior(self) -> float:
        """The pseudo-count of each class in class proportions: `prior`."""
        return float(self.prior)

    def statistics(self, sequences: AnySequences, membership: ArrayLike) -> Floats:
        """Sums by class from which chains are estimated, (K, 1 + S + S²).

        Of other forms than the plain chain (K, 1 + C): patients, first states, and then how often
        the class stays and leaves by period, time in state and state, and the destinations.

        For each class the patients, those who begin in each state, and the steps from each state to
        each; patients count by their weight. They add up over sites.

        Parameters
        ----------
        sequences
        membership : (n, K)
            Each patient's class probabilities. Steps inside gaps of missing times count where this
            model's class k expects them, so that it has K classes, or one for all.
        """
        data = self._conform(sequences)
        forms.need_no_step_covariates(self.params_, "sums for a refinement")
        table = memberships(membership, len(data), self.params_.n_classes)
        weighted = table * data.weights[:, None]
        patterns = data.patterns_of(self.form)
        members = em.sum_by_pattern(patterns.inverse, weighted, len(patterns))
        return em.sums_by_class(patterns, members, self.params_)

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all patients give, as many classes as rows; see `statistics`.

        It has this model's states and settings; `prior` and impossible steps among them. Its class
        proportions are those of all patients together.
        """
        check_is_fitted(self)
        forms.need_no_step_covariates(self.params_, "sums for a refinement")
        layout = self._layout()
        table = check_sums(total, 1 + layout.n_cells, counts=True)
        zeros = self._zero_cells()
        model = type(self)(**(self.get_params() | {"n_classes": len(table), "init": None}))
        params = em.params_from_sums(table, float(self.prior), zeros, layout)
        model._set_params_(params, self.states_)
        model._forbidden = zeros
        model.n_sequences_ = float(table[:, 0].sum())
        return model

    def log_likelihoods(self, sequences: AnySequences) -> Floats:
        """Log-likelihood of each sequence in each class, (n, K), whatever the proportions."""
        data = self._conform(sequences)
        if self.form.transitions:
            return self._step_logliks(data)
        patterns = data.patterns_of(self.form)
        logs = em.Visits(patterns).logliks(em.cells_of(self.params_))
        return np.asarray(logs[patterns.inverse])

    def log_penalty(self) -> float:
        """What the prior adds to the log-likelihood for the chains, without the proportions."""
        check_is_fitted(self)
        prior = np.where(self._zero_cells(), 0.0, float(self.prior))
        return log_prior(em.cells_of(self.params_), prior)

    def distinct(self, sequences: AnySequences) -> Sequences:
        """One patient per transition pattern, with the summed weight of all who share it."""
        data = self._conform(sequences)
        patterns = data.patterns_of(self.form)
        first = np.empty(len(patterns), dtype=np.intp)
        first[patterns.inverse[::-1]] = np.arange(len(data))[::-1]
        return replace(data, account=None)[first].reweight(patterns.weights)

    def _zero_cells(self) -> NDArray[np.bool_]:
        """The steps that are impossible: of the fit, or else those of `zeros`."""
        known = getattr(self, "_forbidden", None)
        return zero_cells(self.zeros, self.states_, self.form) if known is None else known

    def _layout(self) -> Layout:
        check_is_fitted(self)
        return layout_of(self.form, len(self.states_))

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
            more = option("search", "thorough")
            if self.search == "thorough":
                more = f"a larger {option('n_init')} (now {self.n_init})"
            warnings.warn(
                f"the best of all maxima was reached by {result.n_replicated} of "
                f"{result.n_searches} independent searches, so a better one may exist; use {more} "
                "or ask for fewer classes.",
                stacklevel=3,
            )

    def _warn_left_out(self, data: Sequences, stacklevel: int) -> None:
        """What missing windows cost where the chains are not plain."""
        if self.form != PLAIN and (
            text := forms.left_out_text(data.patterns_of(self.form), len(data))
        ):
            warnings.warn(ReportWarning(text, forms.LEFT_OUT), stacklevel=stacklevel)

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
        return store.from_dict(cls, stored)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model as JSON; the file appears whole or not at all."""
        store.write(self.to_dict(), Path(path))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote. The file is checked, and never executed."""
        return cls.from_dict(store.read(Path(path)))


# --- what a fit is given, checked ------------------------------------------------------


def _late_start(data: Sequences, form: Form) -> str:
    """A warning if no patient is observed at the first times, or ""."""
    first = int((data.codes[data.weights > 0] >= 0).any(axis=0).argmax())
    if not first:
        return ""
    inferred = "inferred from later ones alone" if form == PLAIN else "not known"
    return (
        f"no patient is observed before {data.times[first]}, so the probabilities of the first "
        f"states are {inferred}; leave out the times before {data.times[first]} to begin with what "
        "is observed."
    )


def _group_numbers(labels: pd.Series) -> tuple[NDArray[np.intp], tuple[Any, ...]]:
    """The number of each patient's group, and the groups: texts or whole numbers, sorted."""
    if isinstance(labels.dtype, pd.CategoricalDtype):
        labels = labels.cat.remove_unused_categories()
        names = labels.cat.categories
    else:
        try:
            names = pd.Index(np.sort(labels.unique()))
        except TypeError:
            raise TypeError(
                f"the groups mix types ({some(labels.unique())}); use texts or whole numbers."
            ) from None
    plain = tuple(name.item() if isinstance(name, np.generic) else name for name in names)
    invalid = [name for name in plain if isinstance(name, bool) or not isinstance(name, (str, int))]
    if invalid:
        raise TypeError(f"groups must be texts or whole numbers, found {some(invalid)}.")
    number: NDArray[np.intp] = pd.Index(names).get_indexer(pd.Index(labels))
    return number, plain


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse numbers out of range."""
    for name, smallest in _LEAST.items():
        if name != "n_jobs" or settings[name] != -1:
            whole_number(settings[name], smallest, name)
    one_of(settings["search"], get_args(SearchKind), "search")
    one_of(settings["missing"], ("error", "drop"), "missing")
    for name in ("prior", "tol"):
        value = settings[name]
        if not (isinstance(value, (int, float, np.number)) and 0 <= value < np.inf):
            raise InputError(f"{name} must be a number of at least 0, found {value!r}.")


def _unsupported(rows: NDArray[np.bool_], layout: Layout, states: tuple[str, ...]) -> pd.DataFrame:
    """Rows (K, R) of the chains that no patient informs; of leaving alone in other forms."""
    n_states, form = layout.n_states, layout.form
    if form == PLAIN:
        classes, number = np.nonzero(rows[:, :-1])
        return pd.DataFrame({"class": classes + 1, "state": [states[s] for s in number]})
    classes, number = np.nonzero(rows[:, : layout.first_destination // 2])
    context, state = np.divmod(number, n_states)
    period, bins = np.divmod(context, form.n_bins)
    return pd.DataFrame(
        {
            "class": classes + 1,
            "state": [states[s] for s in state],
            "stay": [form.bins[b] for b in bins],
            "period": [form.period_labels[p] for p in period],
        }
    )


def _check_distinct(patterns: Patterns, n_classes: int) -> None:
    """Refuse more classes than there are transition patterns."""
    n_distinct = int((patterns.weights > 0).sum())
    if n_classes > n_distinct:
        raise InputError(
            f"{n_classes} classes cannot be distinguished among {n_distinct} distinct transition "
            f"patterns; ask for at most {n_distinct}."
        )


def _check_init(init: Any, n_classes: int, data: Sequences, form: Form) -> None:
    """Refuse starting values that do not fit the data."""
    kind = "MarkovParams" if form == PLAIN else "FormParams"
    if type(init).__name__ != kind:
        raise TypeError(f"init must be {kind}, found {type(init).__name__}.")
    if init.form != form:
        raise InputError(f"init is {init.form.title}, the fit {form.title}; give the same parts.")
    if (init.n_classes, init.n_states) != (n_classes, data.n_states):
        raise InputError(
            f"init has {init.n_classes} classes and {init.n_states} states, the fit needs "
            f"{n_classes} and {data.n_states} ({some(data.states)})."
        )
