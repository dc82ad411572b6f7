"""What a local model must offer, and the labels that any model gives.

The ensemble uses three things of a model: a label for each patient (`predict`), the
parameters of its classes (`class_parameters_`, one row per class), and, only where class
proportions are re-estimated at the receiving site, `predict_proba` with the proportions
behind it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import case_weights
from font.errors import InputError


@runtime_checkable
class LocalModel(Protocol):
    """A clustering model that a site fits.

    Models with class proportions also have `predict_proba(data)` (n, K) and `weights_` (K,),
    or `class_weights_` where the proportions behind `predict_proba` differ from `weights_`.
    """

    n_classes: int

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """(K, d), one row per class; distances between rows are distances between classes."""

    def fit(self, data: Any, weights: Any = None) -> Any:
        """Estimate the model and return it."""

    def predict(self, data: Any) -> NDArray[np.integer[Any]]:
        """The class of each patient, 0 … K − 1."""


# --- any data ----------------------------------------------------------------------------


def n_patients(data: Any) -> int:
    return int(data.shape[0] if hasattr(data, "shape") else len(data))


def patient_ids(data: Any) -> pd.Index:
    """The index of a DataFrame, the `ids` of anything that has them, else the rows' numbers."""
    ids = data.index if isinstance(data, pd.DataFrame) else getattr(data, "ids", None)
    return pd.RangeIndex(n_patients(data)) if ids is None else pd.Index(ids)


def own_weights(data: Any) -> NDArray[np.float64]:
    """The case weights that data bring along, else ones, (n,); a column of data is not one."""
    weights = None if hasattr(data, "columns") else getattr(data, "weights", None)
    return np.ones(n_patients(data)) if weights is None else np.asarray(weights, dtype=float)


# --- labels from any model ---------------------------------------------------------------


def predict_labels(
    model: Any, data: Any, n: int, proportions: str, name: Hashable
) -> NDArray[np.integer[Any]]:
    """The labels (n,) that a model gives, checked."""
    if not hasattr(model, "predict"):
        raise TypeError(f"the model {name!r} ({type(model).__name__}) has no method predict(data).")
    if not n:  # many models refuse an empty table, but a site without patients is not an error
        return np.zeros(0, dtype=np.int8)
    if proportions == "model":
        labels = np.asarray(model.predict(data))
    else:
        labels = _site_labels(model, data, name)
    if labels.shape != (n,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise InputError(
            f"the model {name!r} should predict {n:,} whole numbers from 0, one for each patient; "
            f"it gave an array of {labels.dtype} of shape {labels.shape}"
            + (f" with the label {labels.min()}." if labels.dtype.kind in "iu" else ".")
        )
    return labels


def _site_labels(model: Any, data: Any, name: Hashable) -> NDArray[np.integer[Any]]:
    own = getattr(model, "class_weights_", getattr(model, "weights_", None))
    if own is None or not hasattr(model, "predict_proba"):
        raise InputError(
            f"the model {name!r} has no class proportions to re-estimate (it needs predict_proba, "
            'and class_weights_ or weights_); label its patients with proportions="model".'
        )
    own = np.asarray(own, dtype=float)  # a labelled Series is as good as an array
    shares = np.asarray(model.predict_proba(data), dtype=float)
    site = site_proportions(shares, own, weights=own_weights(data))
    ratio = np.divide(site, own, out=np.zeros_like(site), where=own > 0)
    return np.asarray(np.argmax(shares * ratio, axis=1))


def site_proportions(
    probabilities: ArrayLike,
    proportions: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    prior: float = 0.0,
    max_iter: int = 100,
    tol: float = 1e-6,
) -> NDArray[np.float64]:
    """A site's own class proportions, all other parameters of the model kept.

    EM on the proportions alone: r_ik ∝ p_ik·π_k / π⁰_k, then π_k = mean of r_ik over
    patients, where p are the probabilities under the sender's proportions π⁰.

    Parameters
    ----------
    probabilities : (n, K)
        As `predict_proba` gives them.
    proportions : (K,)
        The proportions behind them.
    weights : (n,), optional
        Case weights.
    prior : float
        Pseudo-count of each class.
    max_iter, tol
        Updates at most, and the change of a proportion below which to stop.

    Examples
    --------
    >>> p = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> site_proportions(p, [0.5, 0.5]).round(2).tolist()
    [0.75, 0.25]
    """
    shares, old = np.asarray(probabilities, dtype=float), np.asarray(proportions, dtype=float)
    if shares.ndim != 2 or old.shape != shares.shape[1:]:
        raise InputError(
            f"probabilities of shape {shares.shape} need one proportion for each column; found "
            f"{old.shape}."
        )
    case = case_weights(weights, len(shares))
    if case.sum() == 0:
        return old
    pseudo = prior / case.sum()
    case = case / case.sum()
    likelihood = np.divide(shares, old, out=np.zeros_like(shares), where=old > 0)
    now = old
    for _ in range(max_iter):
        joint = likelihood @ now  # Σ_k p_ik π_k / π⁰_k, patient by patient
        joint[joint == 0] = 1.0
        new = now * (likelihood.T @ (case / joint))
        if pseudo:
            new = (new + pseudo) / (1 + len(old) * pseudo)
        change = np.abs(new - now).max()
        now = new
        if change < tol:
            break
    total = now.sum()
    return now / total if total > 0 else old
