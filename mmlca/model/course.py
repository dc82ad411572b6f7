"""Latent classes of the time course: which state a patient is in, window by window.

Chains describe how patients move from one state to the next. Here every window is an item of a
latent class model (repeated-measures latent class analysis), so that classes differ by where their
patients are when. The model itself is `font.LatentClass`; this module gives it sequences.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from font.checks import check_sums, memberships, one_of
from font.errors import InputError, ReportWarning, option
from font.models import LatentClass
from font.probabilities import PRIOR_OF_FITS
from mmlca.model import store
from mmlca.model.inference import (
    classification_entropy,
    entropy_r_squared,
    information_criteria,
    patients_by_class,
    posterior_table,
)
from mmlca.model.params import AnySequences, Floats, Seed, as_sequences, count_patients, in_states
from mmlca.model.settings import SampleSize, SearchKind
from mmlca.sequences.checks import patient_labels
from mmlca.sequences.type import Labels, Sequences


class _Rows(NamedTuple):
    """Distinct courses: answers (U × windows), weights (U,), row of each patient, groups (U,)."""

    answers: pd.DataFrame
    weights: Floats
    inverse: NDArray[np.intp]
    groups: NDArray[Any] | None = None


class CourseClasses(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Latent classes of the time course: each window is an item.

    A sequence x of class k has the likelihood ∏_t p_kt(x_t) over its observed windows. So patients
    of one class take the same states at the same times, whichever steps led there. Windows
    are independent given the class, and their probabilities have no order: nothing ties window 5 to
    windows 4 and 6.

    Windows without a state drop out of the product, whether they are missing (the patient was
    followed, but the state is not known) or void (follow-up has ended). So classes describe
    patients for as long as they are followed, and the length of follow-up says nothing about the
    class. That is right where follow-up ends for reasons that have nothing to do with the course.
    Where it ends because patients die or stop treatment, make that a state ("dead", "none").

    Patients with more windows than those of the fit are classified by the windows that the fit
    had, with a warning.

    Parameters
    ----------
    n_classes : int
    n_init : int
        Random starts. Each makes a short run; the best quarter, at least two, is followed to the
        end.
    search : "default" or "thorough"
        A thorough search follows every start to the end.
    prior : float
        Pseudo-count of each state in each window and class. The default is too small to matter, but
        gives states that nobody had in a window a positive probability; 0 is maximum likelihood.
    max_iter : int
        Largest number of EM updates of a start.
    tol : float
        EM stops when the log posterior of a patient rises by less on average.
    seed : int or Generator, optional

    Attributes
    ----------
    weights_ : Series
        Share of each class.
    group_weights_ : DataFrame
        After a fit with groups the class proportions of each, group × class; else without rows.
    probabilities_ : DataFrame
        (class, time) × state: the probability of each state. Even where nobody is observed.
    labels_, posterior_ : as those of `MixtureMarkov`
    loglik_, converged_ : of the best start
    n_parameters_ : int
        Free parameters of the states that occur: for each class one fewer in each window than there
        are states in it, and the class proportions. States that nobody has in a window are not
        counted, since the data say nothing about them. `n_cells_` counts these too, as textbooks
        do.
    starts_ : DataFrame
        Every start: its log posterior at the end, whether it was followed, and whether it settled.
    n_replicated_, n_searches_ : int
        So many of the starts that were followed reached the maximum. The fit warns where only one
        did.

    Notes
    -----
    Classes are ordered by decreasing size. Tables with labels count them from 1; arrays
    (`labels_`, `predict`, `predict_proba`) from 0.

    Examples
    --------
    >>> early, late = ["A", "A", "B", "B"], ["A", "A", "A", "B"]
    >>> sequences = Sequences.from_lists([early] * 30 + [late] * 20 + [["B", "B", "A", "A"]] * 10)
    >>> model = CourseClasses(2, seed=1).fit(sequences)
    >>> for text in model.summary()["course"]:
    ...     print(text)
    A in windows 1–2 (100 %), then B in windows 3–4 (60–100 %)
    B in windows 1–2 (100 %), then A in windows 3–4 (100 %)
    """

    def __init__(
        self,
        n_classes: int = 2,
        *,
        n_init: int = 40,
        search: SearchKind = "default",
        prior: float = PRIOR_OF_FITS,
        max_iter: int = 1_000,
        tol: float = 1e-8,
        seed: Seed = None,
    ) -> None:
        self.n_classes = n_classes
        self.n_init = n_init
        self.search = search
        self.prior = prior
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    # --- fitting ----------------------------------------------------------------------

    def fit(
        self,
        sequences: AnySequences,
        weights: ArrayLike | None = None,
        groups: Labels | None = None,
    ) -> Self:
        """Find the classes.

        Parameters
        ----------
        sequences, weights : as in `MixtureMarkov.fit`
        groups : one label per patient (a Series by id, or in their order), optional
            Such as the site. Classes are shared, while every group has class proportions of its
            own.
        """
        if not (isinstance(self.prior, (int, float, np.number)) and 0 <= self.prior < np.inf):
            raise InputError(f"prior must be a number of at least 0, found {self.prior!r}.")
        data = as_sequences(sequences)
        if weights is not None:
            data = data.reweight(weights)
        if not data.weights.sum() > 0:
            raise InputError(
                "there is nothing to fit: "
                + ("no sequences." if not len(data) else "every weight is 0.")
            )
        counted, unit = count_patients(data)
        seen = (counted.codes[counted.weights > 0] >= 0).any(axis=0)
        self.states_ = data.states
        self.times_ = data.times[: int(np.flatnonzero(seen)[-1]) + 1]
        labels = None if groups is None else patient_labels(data.ids, groups, "groups")
        rows = self._rows(counted, labels)
        if self.n_classes > (n_distinct := int((rows.weights > 0).sum())):
            raise InputError(
                f"{self.n_classes} classes cannot be distinguished among {n_distinct} distinct "
                f"courses; ask for at most {n_distinct}."
            )
        used = rows.weights > 0
        self._keep(
            LatentClass(
                self.n_classes,
                n_init=self.n_init,
                search=self.search,
                prior=float(self.prior) * data.n_states,  # which it divides among the states
                tol=self.tol,
                max_iter=self.max_iter,
                seed=self.seed,
            ).fit(
                rows.answers[used],
                rows.weights[used],
                None if rows.groups is None else rows.groups[used],
            )
        )
        items = self.items_
        self.loglik_, self.converged_ = items.loglik_ * unit, items.converged_
        self.n_parameters_ = items.n_parameters_
        self.n_replicated_, self.n_searches_ = items.n_replicated_, items.n_searches_
        self.starts_ = items.starts_
        self.n_sequences_ = float(data.weights.sum())
        self.n_timepoints_ = float(((data.codes >= 0).sum(axis=1) * data.weights).sum())
        self.n_features_in_ = data.shape[1]
        self._pattern_posterior = items.predict_proba(rows.answers, rows.groups)
        entropy = classification_entropy(self._pattern_posterior, rows.weights)
        self.classification_entropy_ = entropy * unit
        self._inverse, self._ids = rows.inverse, data.ids
        self._patient_weights = data.weights
        totals = items.statistics(rows.answers, self._pattern_posterior, rows.weights)[:, 1:]
        self._observed = totals.reshape(self.n_classes, len(self.times_), -1).sum(axis=2)
        self.labels_ = self._pattern_posterior.argmax(axis=1)[rows.inverse]
        self._warn()
        return self

    def fit_predict(self, sequences: AnySequences, *given: Any, **named: Any) -> NDArray[np.intp]:
        """Fit, and return the class of each patient, 0 … K − 1; arguments as those of `fit`."""
        labels: NDArray[np.intp] = self.fit(sequences, *given, **named).labels_
        return labels

    def _keep(self, items: LatentClass) -> None:
        """Set the parameters, from a model of the windows."""
        self.items_ = items
        k = len(items.weights_)
        classes = pd.RangeIndex(1, k + 1, name="class")
        self.weights_ = pd.Series(items.weights_, index=classes, name="weight")
        shares = getattr(items, "group_weights_", pd.DataFrame(np.empty((0, k))))
        self.group_weights_ = shares.set_axis(classes, axis=1).rename_axis(index="group")
        self.probabilities_ = pd.DataFrame(
            items.class_parameters_.reshape(-1, len(self.states_)),
            index=pd.MultiIndex.from_product([classes, self.times_], names=["class", "time"]),
            columns=pd.Index(self.states_, name="state"),
        )

    def _warn(self) -> None:
        if not self.converged_ and self.tol > 0:
            warnings.warn(
                f"EM stopped after max_iter = {self.max_iter} updates before it converged; "
                "raise max_iter.",
                stacklevel=3,
            )
        replicated, searches = self.n_replicated_, self.n_searches_
        if self.n_classes > 1 and self.n_init > 1 and replicated < 2:
            more = option("search", "thorough")
            if self.search == "thorough":
                more = f"a larger {option('n_init')} (now {self.n_init})"
            warnings.warn(
                f"the best of all maxima was reached by only one of the {searches} starts that "
                f"were followed, so a better one may exist; use {more} or ask for fewer classes.",
                stacklevel=3,
            )

    # --- using the model --------------------------------------------------------------

    def predict_proba(self, sequences: AnySequences, groups: Labels | None = None) -> Floats:
        """Probability of each class for each patient, (n, K); `groups` as in `MixtureMarkov`."""
        rows = self._rows_of(sequences, groups)
        return self.items_.predict_proba(rows.answers, rows.groups)[rows.inverse]

    def predict(self, sequences: AnySequences, groups: Labels | None = None) -> NDArray[np.intp]:
        """The most probable class of each patient, 0 … K − 1."""
        best: NDArray[np.intp] = self.predict_proba(sequences, groups).argmax(axis=1)
        return best

    def score_samples(self, sequences: AnySequences, groups: Labels | None = None) -> Floats:
        """Log-likelihood of each sequence."""
        rows = self._rows_of(sequences, groups)
        return self.items_.score_samples(rows.answers, rows.groups)[rows.inverse]

    def score(self, sequences: AnySequences, y: None = None, groups: Labels | None = None) -> float:
        """Mean log-likelihood of a sequence, weighted."""
        data = self._conform(sequences)
        counted = data.weights > 0
        logs = self.score_samples(data, groups)
        return float(np.average(logs[counted], weights=data.weights[counted]))

    def sample(
        self, n: int = 1, lengths: ArrayLike | None = None, seed: Seed = None
    ) -> tuple[Sequences, pd.Series]:
        """Draw new sequences from the model; returns them and the class of each, 0 … K − 1.

        Every window is drawn by itself given the class, so that states change more often than in
        patients, and an absorbing state may be left. `lengths` are at most the number of windows of
        the fit, which is the default.
        """
        check_is_fitted(self)
        if n < 1:
            raise InputError(f"n must be at least 1, found {n}.")
        n_times, s = len(self.times_), len(self.states_)
        length = np.broadcast_to(np.asarray(n_times if lengths is None else lengths), (n,))
        if length.dtype.kind not in "iu" or length.min() < 1 or length.max() > n_times:
            raise InputError(f"lengths must be whole numbers from 1 to {n_times}.")
        rng = np.random.default_rng(seed)
        shares = self.weights_.to_numpy()
        classes = rng.choice(len(shares), size=n, p=shares / shares.sum())
        ladder = self.items_.class_parameters_.reshape(len(shares), n_times, s).cumsum(axis=2)
        codes = (rng.random((n, n_times, 1)) > ladder[classes, :, :-1]).sum(axis=2)
        codes[np.arange(n_times) >= length[:, None]] = -1
        sequences = Sequences.from_codes(codes[:, : length.max()], self.states_)
        return sequences, pd.Series(classes, index=sequences.ids, name="class")

    @property
    def class_parameters_(self) -> Floats:
        """One row per class: the probabilities of all states, window after window, (K, T·S)."""
        check_is_fitted(self)
        return self.items_.class_parameters_

    # --- what the classes are ---------------------------------------------------------

    @property
    def posterior_(self) -> pd.DataFrame:
        """Each patient's class, its probability, and the margin to the next best class."""
        check_is_fitted(self)
        if not hasattr(self, "_pattern_posterior"):
            raise AttributeError(
                "a loaded model does not carry its patients; use predict or predict_proba."
            )
        return posterior_table(self._pattern_posterior, self._inverse, self._ids)

    def average_posterior(self) -> float:
        """Mean probability of the patients' own class, weighted; near 1 where classes are clear."""
        own = self._pattern_posterior.max(axis=1)[self._inverse]
        return float(np.average(own, weights=self._patient_weights))

    def summary(self) -> pd.DataFrame:
        """One row per class: its share, its patients, their certainty, and its course in words.

        `patients` counts those whose most probable class this is, `certainty` is their mean
        probability of it; after a fit with groups `weight in …` is the share of the class in each
        group. `course` names the most frequent state of each window with its lowest and highest
        share of those observed. A state is only named by itself where it has at least half of them,
        and only windows in which at least one patient of the class is to be expected are described.
        """
        patients, certainty = patients_by_class(
            self.posterior_, self._patient_weights, len(self.weights_)
        )
        return pd.DataFrame(
            {
                "weight": self.weights_,
                **{f"weight in {name}": row for name, row in self.group_weights_.iterrows()},
                "patients": patients,
                "certainty": certainty,
                "course": [
                    course_words(self.probabilities_.loc[k].to_numpy(), self.states_, n >= 1)
                    for k, n in zip(self.weights_.index, self._observed, strict=True)
                ],
            }
        )

    # --- criteria ---------------------------------------------------------------------

    @property
    def n_cells_(self) -> int:
        """Free parameters of all states in all windows, whether they occur or not."""
        k, groups = len(self.weights_), max(len(self.group_weights_), 1)
        return groups * (k - 1) + k * len(self.times_) * (len(self.states_) - 1)

    def bic(self, n: SampleSize = "sequences") -> float:
        """Bayesian information criterion, −2 log L + p log n; p is `n_parameters_`."""
        return self.criteria(n)["bic"]

    def entropy(self) -> float:
        """The entropy R², as that of `MixtureMarkov`."""
        check_is_fitted(self)
        return entropy_r_squared(
            self.classification_entropy_, self.n_sequences_, len(self.weights_)
        )

    def criteria(self, n: SampleSize = "sequences", *, all_cells: bool = False) -> dict[str, float]:
        """All criteria by name, as those of `MixtureMarkov`."""
        check_is_fitted(self)
        one_of(n, get_args(SampleSize), "n")
        size = self.n_sequences_ if n == "sequences" else self.n_timepoints_
        n_parameters = self.n_cells_ if all_cells else self.n_parameters_
        criteria = information_criteria(
            self.loglik_, n_parameters, size, self.classification_entropy_
        )
        return {name: float(value) for name, value in criteria.items()}

    # --- refinement -------------------------------------------------------------------

    def statistics(self, sequences: AnySequences, membership: ArrayLike) -> Floats:
        """Sums by class, (K, 1 + T·S): patients, then how many are in each state in each window.

        Patients count by their weight. The sums add up over sites.
        """
        data = self._conform(sequences)
        table = memberships(membership, len(data), len(self.weights_))
        rows = self._rows(data)
        by_row = np.stack(
            [
                np.bincount(rows.inverse, column, minlength=len(rows.answers))
                for column in (table * data.weights[:, None]).T
            ],
            axis=1,
        )
        return self.items_.statistics(rows.answers, by_row)

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all patients give, as many classes as rows; see `statistics`."""
        check_is_fitted(self)
        table = check_sums(total, 1 + self.class_parameters_.shape[1], counts=True)
        model = type(self).of(
            self.items_.from_statistics(table), self.states_, self.times_, **self._fit_settings()
        )
        model.n_sequences_ = float(table[:, 0].sum())
        return model

    def log_likelihoods(self, sequences: AnySequences) -> Floats:
        """Log-likelihood of each sequence in each class, (n, K), whatever the proportions."""
        rows = self._rows(self._conform(sequences))
        return self.items_.log_likelihoods(rows.answers)[rows.inverse]

    def log_penalty(self) -> float:
        """What the prior adds to the log-likelihood for the probabilities of the states."""
        check_is_fitted(self)
        return self.items_.log_penalty()

    def distinct(self, sequences: AnySequences) -> Sequences:
        """One patient per distinct course, with the summed weight of all who share it."""
        data = self._conform(sequences)
        first, number = data.distinct()
        weights = np.bincount(number, data.weights, len(first))
        return replace(data, account=None)[first].reweight(weights)

    @classmethod
    def of(
        cls,
        items: LatentClass,
        states: tuple[str, ...],
        times: tuple[str, ...],
        **settings: Any,
    ) -> Self:
        """The model with these parameters, which has no patients."""
        model = cls(len(items.weights_), **settings)
        model.states_, model.times_ = states, times
        model._keep(items)
        return model

    def _fit_settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params().items() if name != "n_classes"}

    # --- inside -----------------------------------------------------------------------

    def _conform(self, sequences: AnySequences) -> Sequences:
        """Any input as sequences over this model's states."""
        check_is_fitted(self)
        return in_states(sequences, self.states_)

    def _rows_of(self, sequences: AnySequences, groups: Labels | None = None) -> _Rows:
        data = self._conform(sequences)
        if n_later := int((data.codes[:, len(self.times_) :] >= 0).any(axis=1).sum()):
            warnings.warn(
                ReportWarning(
                    f"{n_later:,} patients are observed after {self.times_[-1]}, the last of the "
                    f"{len(self.times_)} windows that the model was fitted to; their later windows "
                    "do not count for their class."
                ),
                stacklevel=3,
            )
        labels = None if groups is None else patient_labels(data.ids, groups, "groups")
        return self._rows(data, labels)

    def _rows(self, data: Sequences, groups: pd.Series | None = None) -> _Rows:
        """The distinct courses in the windows of the model, by group if there are any."""
        first, number = data.distinct()
        labels = None
        if groups is not None:
            codes, names = pd.factorize(groups, sort=True)
            _, at, number = np.unique(
                number * max(len(names), 1) + codes, return_index=True, return_inverse=True
            )
            first, labels = at, groups.to_numpy()[at]
        known = np.full((len(first), len(self.times_)), -1, dtype=np.int8)
        width = min(data.shape[1], len(self.times_))
        known[:, :width] = data.codes[first, :width]
        kind = pd.CategoricalDtype(list(self.states_))
        answers = pd.DataFrame(
            {
                time: pd.Categorical.from_codes(column, dtype=kind)
                for time, column in zip(self.times_, known.T, strict=True)
            }
        )
        weights = np.bincount(number, data.weights, minlength=len(first)).astype(float)
        return _Rows(answers, weights, number, labels)

    # --- files ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The fitted model in plain lists and numbers: no patient, no id."""
        check_is_fitted(self)
        return store.course_to_dict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """A fitted model from `to_dict`."""
        return store.course_from_dict(cls, stored)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model as JSON; the file appears whole or not at all."""
        store.write(self.to_dict(), Path(path))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote. The file is checked, and never executed."""
        return cls.from_dict(store.read(Path(path)))


def course_words(shares: Floats, states: tuple[str, ...], observed: NDArray[np.bool_]) -> str:
    """The most frequent state of each observed window, (T, S), in words.

    Windows are taken together as long as the same state is the most frequent one, and has at least
    half of the patients, or less.

    Examples
    --------
    >>> shares = np.array([[0.9, 0.1, 0], [0.7, 0.3, 0], [0.4, 0.3, 0.3], [0, 0.2, 0.8]])
    >>> print(course_words(shares, ("A", "B", "C"), np.array([True] * 4)))
    A in windows 1–2 (70–90 %), then no state of half the patients in window 3 (most often A, 40 %),
    then C in window 4 (80 %)
    """
    percent = np.rint(100 * shares.max(axis=1)).astype(int)
    kinds = zip(shares.argmax(axis=1).tolist(), (percent >= 50).tolist(), strict=True)
    known = [(t, kind) for t, kind in enumerate(kinds) if observed[t]]
    parts = []
    for (state, by_half), group in groupby(known, key=lambda pair: pair[1]):
        windows = [t for t, _ in group]
        first, last = windows[0] + 1, windows[-1] + 1
        when = f"window {first}" if first == last else f"windows {first}–{last}"
        low, high = percent[windows].min(), percent[windows].max()
        share = f"{low} %" if low == high else f"{low}–{high} %"
        name = states[state]
        parts.append(
            f"{name} in {when} ({share})"
            if by_half
            else f"no state of half the patients in {when} (most often {name}, {share})"
        )
    return ", then ".join(parts) if parts else "no window is observed"
