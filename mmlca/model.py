"""The estimator: a mixture of Markov chains with scikit-learn's conventions."""

from __future__ import annotations

import json
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
from sklearn.utils.validation import check_array, check_is_fitted

from mmlca import __version__, em
from mmlca.checks import some
from mmlca.files import atomic
from mmlca.params import MarkovParams
from mmlca.sequences import Sequences
from mmlca.simulation import simulate

_FILE_LIMIT = 64 * 2**20
_FORMAT = "mmlca model"


class MixtureMarkov(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Latent classes of sequences, each a Markov chain, found by EM.

    A sequence x of class k has the likelihood u_k[x₁] · ∏ T_k[xₜ, xₜ₊₁]; missing states are
    summed over. Fitted by maximum likelihood, or with `prior` by maximum a posteriori.

    Parameters
    ----------
    n_classes : int
        Number of classes K.
    n_init : int
        How hard to search: the number of starts, and n_init / 2 fruitless rounds to improve
        each of the best ones. An easy problem ends sooner. Double it if the maximum was found
        only once.
    init : MarkovParams, optional
        Start exactly here, and only here. Its zeros stay zero.
    prior : float
        Pseudo-count added to every cell of every probability row and to every class. The
        default is too small to matter but lets new patients do what nobody did before;
        0 is maximum likelihood.
    zeros : pairs (from, to), optional
        Steps that are impossible; from=None is the start of a sequence.
    accelerate : bool
        Extrapolate between EM updates (SQUAREM). The log-likelihood rises all the same.
    max_iter : int
        Largest number of EM updates of a run.
    tol : float
        A run has converged when all gains in log-likelihood to be expected are below this.
        0 makes all `max_iter` updates.
    seed : int or Generator, optional
        The same seed gives the same bits, on any number of threads.
    n_jobs : int
        Threads; −1: one for each processor.

    Attributes
    ----------
    params_ : MarkovParams
    weights_, initial_, transition_ : Series, DataFrames
        By class; class × state; (class, from) × to.
    posterior_ : DataFrame
        For each patient of the fit: id, class, its probability, and the margin to the next.
    loglik_, loglik_path_ : log-likelihood, and that after 0, 1, … updates of the best run
    penalised_path_ : the same with the prior's penalty; this is what never falls
    converged_, n_iter_ : of the best run
    starts_ : DataFrame
        Every start: its kind, log-likelihood, iterations and status.
    n_replicated_ : int
        How many of the followed starts reached the maximum.
    unsupported_ : DataFrame
        Rows of `transition_` that no patient informs; they are even.

    Notes
    -----
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
        init: MarkovParams | None = None,
        prior: float = 1e-4,
        zeros: Iterable[tuple[Any, Any]] | None = None,
        accelerate: bool = True,
        max_iter: int = 2_000,
        tol: float = 1e-6,
        seed: int | np.random.Generator | None = None,
        n_jobs: int = 1,
    ) -> None:
        self.n_classes = n_classes
        self.n_init = n_init
        self.init = init
        self.prior = prior
        self.zeros = zeros
        self.accelerate = accelerate
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed
        self.n_jobs = n_jobs

    # --- fitting ----------------------------------------------------------------------

    def fit(self, sequences: Any, weights: ArrayLike | None = None) -> Self:
        """Find the classes.

        Parameters
        ----------
        sequences : Sequences, DataFrame (wide) or integer array (n, T) with −1 for missing
        weights : (n,), optional
            In place of the sequences' own.
        """
        self._check_settings()
        data = as_sequences(sequences)
        if weights is not None:
            data = data.reweight(weights)
        patterns = data.patterns
        if not patterns.weights.sum() > 0:
            raise ValueError(
                "there is nothing to fit: "
                + ("no sequences." if not len(data) else "every weight is 0.")
            )
        settings = em.Settings(
            float(self.prior),
            self._forbidden(data),
            int(self.max_iter),
            float(self.tol),
            bool(self.accelerate),
        )
        if self.init is None:
            n_distinct = int((patterns.weights > 0).sum())
            if self.n_classes > n_distinct:
                raise ValueError(
                    f"{self.n_classes} classes cannot be told apart among {n_distinct} distinct "
                    f"transition patterns; ask for at most {n_distinct}."
                )
            rng = np.random.default_rng(self.seed)
            n_jobs = self.n_jobs if self.n_jobs > 0 else os.cpu_count() or 1
            found = em.fit_search(patterns, self.n_classes, settings, self.n_init, rng, n_jobs)
        else:
            self._check_init(data)
            found = em.fit_from(patterns, self.init, settings)
        if not np.isfinite(found.path[-1, 0]):
            raise ValueError(
                "some patients are impossible under the starting values or the forbidden steps "
                f"(patients {some(data.ids[self._impossible(data, found)])}); allow what they do."
            )
        self._store(data, found, settings)
        self._warn(found)
        return self

    def fit_predict(self, sequences: Any, weights: ArrayLike | None = None) -> NDArray[np.intp]:
        """Fit, and the class of each patient."""
        labels: NDArray[np.intp] = self.fit(sequences, weights).labels_
        return labels

    def _store(self, data: Sequences, found: em.Fit, settings: em.Settings) -> None:
        self._set_params_(found.params, data.states)
        self.n_parameters_ = _n_parameters(found.params, settings.zeros, self.init)
        self.loglik_path_ = found.path[:, 0]
        self.penalised_path_ = found.path[:, 1]
        self.loglik_ = float(found.path[-1, 0])
        self.n_iter_ = len(found.path) - 1
        self.converged_ = found.converged
        self.starts_ = found.starts
        self.n_replicated_ = found.n_replicated
        self.n_sequences_ = float(data.weights.sum())
        self.n_timepoints_ = float(((data.codes >= 0).sum(axis=1) * data.weights).sum())
        self.n_features_in_ = data.shape[1]
        rows, states = np.nonzero(found.unsupported)
        self.unsupported_ = pd.DataFrame({"class": rows, "state": [data.states[s] for s in states]})
        self.classification_entropy_ = _entropy(found.posterior, data.patterns.weights)
        self._pattern_posterior = found.posterior
        self._inverse, self._ids = data.patterns.inverse, data.ids
        self._patient_weights = data.weights
        self.labels_ = found.posterior.argmax(axis=1)[data.patterns.inverse]

    def _set_params_(self, params: MarkovParams, states: tuple[str, ...]) -> None:
        self.params_, self.states_ = params, states
        classes = pd.RangeIndex(params.n_classes, name="class")
        columns = pd.Index(states, name="state")
        self.weights_ = pd.Series(params.weights, index=classes, name="weight")
        self.initial_ = pd.DataFrame(params.initial, index=classes, columns=columns)
        self.transition_ = pd.DataFrame(
            params.transition.reshape(-1, len(states)),
            index=pd.MultiIndex.from_product([classes, states], names=["class", "from"]),
            columns=columns.rename("to"),
        )

    # --- using the model --------------------------------------------------------------

    def predict_proba(self, sequences: Any) -> NDArray[np.float64]:
        """Probability of each class for each patient, (n, K)."""
        data = self._conform(sequences)
        return em.e_step(data.patterns, self.params_).posterior[data.patterns.inverse]

    def predict(self, sequences: Any) -> NDArray[np.intp]:
        """The most probable class of each patient."""
        data = self._conform(sequences)
        best: NDArray[np.intp] = em.e_step(data.patterns, self.params_).posterior.argmax(axis=1)
        return best[data.patterns.inverse]

    def score_samples(self, sequences: Any) -> NDArray[np.float64]:
        """Log-likelihood of each sequence."""
        data = self._conform(sequences)
        return em.e_step(data.patterns, self.params_).logliks[data.patterns.inverse]

    def score(self, sequences: Any, y: None = None) -> float:
        """Mean log-likelihood of a sequence, weighted."""
        data = self._conform(sequences)
        logs, weights = em.e_step(data.patterns, self.params_).logliks, data.patterns.weights
        counted = weights > 0
        return float(np.average(logs[counted], weights=weights[counted]))

    def sample(
        self, n: int = 1, lengths: ArrayLike = 16, seed: int | np.random.Generator | None = None
    ) -> tuple[Sequences, pd.Series]:
        """New sequences from the model, with the class each comes from."""
        check_is_fitted(self)
        return simulate(self.params_, n, lengths, states=self.states_, seed=seed)

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """One row a class: initial probabilities, then transitions, (K, S + S²)."""
        check_is_fitted(self)
        return self.params_.class_parameters

    @property
    def posterior_(self) -> pd.DataFrame:
        """Each patient's class, its probability, and how far the next best class is behind."""
        check_is_fitted(self)
        if not hasattr(self, "_pattern_posterior"):
            raise AttributeError(
                "a loaded model does not carry its patients; use predict or predict_proba."
            )
        ordered = np.sort(self._pattern_posterior, axis=1)
        second = ordered[:, -2] if ordered.shape[1] > 1 else np.zeros(len(ordered))
        table = pd.DataFrame(
            {
                "class": self._pattern_posterior.argmax(axis=1),
                "probability": ordered[:, -1],
                "margin": ordered[:, -1] - second,
            }
        )
        return table.take(self._inverse).set_axis(self._ids).reset_index()

    # --- how good is it ---------------------------------------------------------------

    def bic(self, n: Literal["sequences", "timepoints"] = "sequences") -> float:
        """Bayesian information criterion, −2 log L + p log n; smaller is better.

        n is the (weighted) number of sequences, as is usual in latent class analysis, or with
        "timepoints" that of observed states, as in seqHMM.
        """
        return -2 * self.loglik_ + self.n_parameters_ * float(np.log(self._n(n)))

    def sabic(self, n: Literal["sequences", "timepoints"] = "sequences") -> float:
        """BIC adjusted for sample size (Sclove 1987): (n + 2) / 24 in place of n."""
        return -2 * self.loglik_ + self.n_parameters_ * float(np.log((self._n(n) + 2) / 24))

    def aic(self) -> float:
        """Akaike's information criterion, −2 log L + 2p; smaller is better."""
        return -2 * self.loglik_ + 2 * self.n_parameters_

    def icl(self, n: Literal["sequences", "timepoints"] = "sequences") -> float:
        """Integrated completed likelihood (Biernacki et al. 2000): BIC + 2·entropy."""
        return self.bic(n) + 2 * self.classification_entropy_

    def entropy(self) -> float:
        """How clearly patients belong to classes, from 0 (not at all) to 1 (certain).

        The entropy R² of Ramaswamy et al. (1993): 1 − Σᵢ Σₖ −pᵢₖ log pᵢₖ / (n log K); 1 if K = 1.
        """
        check_is_fitted(self)
        k = self.params_.n_classes
        if k == 1:
            return 1.0
        return 1 - self.classification_entropy_ / (self.n_sequences_ * float(np.log(k)))

    def summary(self) -> pd.DataFrame:
        """One row a class: size, certainty, how it starts, stays and moves."""
        posterior = self.posterior_
        assigned = pd.Series(self._patient_weights).groupby(posterior["class"]).sum()
        certain = (
            (posterior["probability"] * self._patient_weights).groupby(posterior["class"]).sum()
        )
        rows = []
        for k in range(self.params_.n_classes):
            initial = self.params_.initial[k]
            moves = self.params_.transition[k] * (1 - np.eye(len(self.states_)))
            first = int(initial.argmax())
            target = int(moves[first].argmax())
            members = float(assigned.get(k, 0.0))
            rows.append(
                {
                    "weight": self.params_.weights[k],
                    "patients": members,
                    "certainty": certain[k] / members if members > 0 else np.nan,
                    "starts with": f"{self.states_[first]} ({initial[first]:.2f})",
                    "stays": self.params_.transition[k][first, first],
                    "mostly moves to": f"{self.states_[target]} ({moves[first, target]:.3f})"
                    if moves[first].any()
                    else "–",
                }
            )
        return pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="class"))

    def _n(self, n: str) -> float:
        check_is_fitted(self)
        if n not in ("sequences", "timepoints"):
            raise ValueError(f'n must be "sequences" or "timepoints", found {n!r}.')
        return self.n_sequences_ if n == "sequences" else self.n_timepoints_

    # --- checks -----------------------------------------------------------------------

    def _check_settings(self) -> None:
        for name, low in (("n_classes", 1), ("n_init", 1), ("max_iter", 0), ("n_jobs", 1)):
            value = getattr(self, name)
            if name == "n_jobs" and value == -1:
                continue
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < low:
                raise ValueError(
                    f"{name} must be a whole number of at least {low}, found {value!r}."
                )
        for name in ("prior", "tol"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float, np.number)) and 0 <= value < np.inf):
                raise ValueError(f"{name} must be a number of at least 0, found {value!r}.")

    def _check_init(self, data: Sequences) -> None:
        if not isinstance(self.init, MarkovParams):
            raise TypeError(f"init must be MarkovParams, found {type(self.init).__name__}.")
        found = (self.init.n_classes, self.init.n_states)
        if found != (self.n_classes, data.n_states):
            raise ValueError(
                f"init has {found[0]} classes and {found[1]} states, the fit needs "
                f"{self.n_classes} and {data.n_states} ({some(data.states)})."
            )

    def _forbidden(self, data: Sequences) -> NDArray[np.bool_]:
        """The cells that must be zero, (S·(S + 1),)."""
        s = data.n_states
        place = {label: i for i, label in enumerate(data.states)}
        mask = np.zeros((s + 1, s), dtype=bool)
        for before, after in self.zeros or ():
            unknown = [x for x in (before, after) if x is not None and str(x) not in place]
            if unknown or after is None:
                raise ValueError(
                    f"zeros names {(before, after)}, but the states are {some(data.states)}."
                )
            mask[s if before is None else place[str(before)], place[str(after)]] = True
        full = [*data.states, "the start"]
        dead = [full[i] for i in np.flatnonzero(mask.all(axis=1))]
        if dead:
            raise ValueError(f"zeros leaves no step at all from {some(dead)}; allow at least one.")
        seen = data.patterns.cell[data.patterns.cell < mask.size]
        broken = np.unique(seen[mask.ravel()[seen]])
        if len(broken):
            steps = [f"{full[c // s]} → {data.states[c % s]}" for c in broken]
            raise ValueError(
                f"patients make steps that zeros forbids ({', '.join(steps[:5])}); allow them or "
                "mend the data."
            )
        return mask.ravel()

    def _impossible(self, data: Sequences, found: em.Fit) -> NDArray[np.bool_]:
        logs = em.e_step(data.patterns, found.params).logliks
        return np.isneginf(logs)[data.patterns.inverse]

    def _warn(self, found: em.Fit) -> None:
        if not found.converged and self.tol > 0:
            warnings.warn(
                f"EM stopped after max_iter = {self.max_iter} updates before it converged; "
                "raise max_iter.",
                stacklevel=3,
            )
        if self.init is not None or self.n_classes == 1:
            return
        if found.n_replicated == 1 and self.n_init > 1:
            warnings.warn(
                f"the best of {self.n_init} starts was reached only once, so a better solution "
                f"may exist; raise n_init (now {self.n_init}) or lower n_classes.",
                stacklevel=3,
            )

    def _conform(self, sequences: Any) -> Sequences:
        """Any input as sequences over this model's states."""
        check_is_fitted(self)
        data = as_sequences(sequences, self.states_)
        if data.states == self.states_:
            return data
        unknown = [state for state in data.states if state not in self.states_]
        if unknown:
            raise ValueError(
                f"the model does not know the states {some(unknown)}; it knows "
                f"{some(self.states_)}."
            )
        lookup = np.array([self.states_.index(state) for state in data.states] + [-1])
        return Sequences.from_codes(
            lookup[data.codes], self.states_, ids=data.ids, weights=data.weights
        )

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
        return {
            "format": _FORMAT,
            "version": 1,
            "software": f"mmlca {__version__}",
            "states": list(self.states_),
            "params": self.params_.to_dict(),
            "n_parameters": self.n_parameters_,
            "prior": float(self.prior),
            "loglik": self.loglik_,
            "n_sequences": self.n_sequences_,
            "n_timepoints": self.n_timepoints_,
            "classification_entropy": self.classification_entropy_,
            "converged": bool(self.converged_),
            "n_replicated": int(self.n_replicated_),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """A fitted model from `to_dict`."""
        from mmlca.modelfile import ModelFile

        content = ModelFile.checked(stored)
        params = MarkovParams.from_dict(content.params.model_dump())
        if params.n_states != len(content.states):
            raise ValueError(
                f"the model has {params.n_states} states but names {len(content.states)}."
            )
        model = cls(params.n_classes, prior=content.prior)
        model._set_params_(params, tuple(content.states))
        model.n_parameters_ = content.n_parameters
        model.loglik_ = content.loglik
        model.n_sequences_ = content.n_sequences
        model.n_timepoints_ = content.n_timepoints
        model.classification_entropy_ = content.classification_entropy
        model.converged_ = content.converged
        model.n_replicated_ = content.n_replicated
        return model

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model as JSON; the file appears whole or not at all."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        with atomic(Path(path)) as file:
            file.write(text.encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote. The file is checked, and never executed."""
        source = Path(path)
        if source.stat().st_size > _FILE_LIMIT:
            raise ValueError(f"{source} is larger than {_FILE_LIMIT // 2**20} MB: not a model.")
        try:
            stored = json.loads(source.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(f"{source} is not a JSON file.") from None
        return cls.from_dict(stored)


def as_sequences(data: Any, states: tuple[str, ...] | None = None) -> Sequences:
    """Sequences as they are; a wide DataFrame; or an integer array with −1 for missing."""
    if isinstance(data, Sequences):
        return data
    if isinstance(data, pd.DataFrame):
        if not all(dtype.kind in "iu" for dtype in data.dtypes if hasattr(dtype, "kind")):
            return Sequences.from_frame(data, id="id" if "id" in data.columns else None)
        return Sequences.from_codes(data.to_numpy(), states, ids=data.index)
    array = check_array(data, dtype="numeric", input_name="sequences")
    if array.dtype.kind == "f" and (array == array.round()).all():
        array = array.astype(np.int64)
    return Sequences.from_codes(array, states)


def _n_parameters(params: MarkovParams, zeros: NDArray[np.bool_], init: MarkovParams | None) -> int:
    """(K − 1) + K(S − 1) + K·S(S − 1), less the cells that must be zero."""
    k, s = params.n_classes, params.n_states
    fixed = np.broadcast_to(zeros, (k, len(zeros)))
    if init is not None:
        cells = np.hstack([init.transition.reshape(k, -1), init.initial])
        fixed = fixed | (cells == 0)
    return (k - 1) + k * (s - 1) + k * s * (s - 1) - int(fixed.sum())


def _entropy(posterior: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """−Σᵢ wᵢ Σₖ pᵢₖ log pᵢₖ."""
    logs = np.log(posterior, out=np.zeros_like(posterior), where=posterior > 0)
    return float(-(weights @ (posterior * logs).sum(axis=1))) + 0.0
