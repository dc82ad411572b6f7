"""What a local model must offer, and scikit-learn's models made to offer it.

The ensemble uses three things of a model: a label for each patient (`predict`), the
parameters of its classes (`class_parameters_`, one row a class), and, only where class
proportions are re-estimated at the receiving site, `predict_proba` with the proportions
behind it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import case_weights, class_parameters, one_of


@runtime_checkable
class LocalModel(Protocol):
    """A clustering model that a site fits and shares.

    Models with class proportions also have `predict_proba(data)` (n, K) and `weights_` (K,),
    or `class_weights_` where the proportions behind `predict_proba` differ from `weights_`.
    """

    n_classes: int

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """(K, d), one row a class; distances between rows are distances between classes."""

    def fit(self, data: Any, weights: Any = None) -> Any:
        """Estimate the model and return it."""

    def predict(self, data: Any) -> NDArray[np.integer[Any]]:
        """The class of each patient, 0 … K − 1."""

    def to_dict(self) -> dict[str, Any]:
        """The fitted model as plain numbers, texts and lists."""

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The model that `to_dict` wrote."""


class SklearnModel:
    """K-means or a Gaussian mixture of scikit-learn as a local model.

    Parameters
    ----------
    estimator : KMeans, GaussianMixture or BayesianGaussianMixture
        With the settings to fit with, or fitted already. The class parameters are the
        centres or means.

    Examples
    --------
    >>> from sklearn.mixture import GaussianMixture
    >>> data = np.array([[0.0], [0.2], [5.0], [5.2]])
    >>> model = SklearnModel(GaussianMixture(2, random_state=0)).fit(data)
    >>> np.sort(model.class_parameters_.ravel().round(1)).tolist()
    [0.1, 5.1]
    >>> again = SklearnModel.from_dict(model.to_dict())
    >>> bool((again.predict(data) == model.predict(data)).all())
    True
    """

    def __init__(self, estimator: Any) -> None:
        one_of(type(estimator).__name__, _STORED, "the estimator")
        self.estimator = estimator

    @property
    def n_classes(self) -> int:
        settings = self.estimator.get_params()
        return int(settings.get("n_clusters", settings.get("n_components")))

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        return class_parameters(self.estimator, type(self.estimator).__name__)

    @property
    def class_weights_(self) -> NDArray[np.float64]:
        """The proportions that `predict_proba` uses, (K,); K-means has none."""
        if not hasattr(self.estimator, "weight_concentration_"):
            return np.asarray(self.estimator.weights_)  # AttributeError for K-means is meant
        # a variational mixture weighs its classes by exp E[log π], not by E[π]
        from scipy.special import digamma

        concentration = self.estimator.weight_concentration_
        if self.estimator.weight_concentration_prior_type == "dirichlet_distribution":
            logs = digamma(concentration) - digamma(np.sum(concentration))
        else:
            a, b = concentration
            rest = np.cumsum(digamma(b) - digamma(a + b))
            logs = digamma(a) - digamma(a + b) + np.append(0.0, rest[:-1])
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    def fit(self, data: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Fit the estimator; only K-means takes case weights."""
        array = np.asarray(data, dtype=float)
        if weights is None:
            self.estimator.fit(array)
        elif hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                f"scikit-learn's {type(self.estimator).__name__} takes no case weights; fit it "
                "without, or on a resample drawn with them."
            )
        else:
            self.estimator.fit(array, sample_weight=case_weights(weights, len(array)))
        return self

    def predict(self, data: ArrayLike) -> NDArray[np.integer[Any]]:
        labels: NDArray[np.integer[Any]] = self.estimator.predict(np.asarray(data, dtype=float))
        return labels

    def predict_proba(self, data: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities (n, K); K-means has none."""
        shares: NDArray[np.float64] = self.estimator.predict_proba(np.asarray(data, dtype=float))
        return shares

    def to_dict(self) -> dict[str, Any]:
        """The fitted parameters as plain lists."""
        name = type(self.estimator).__name__
        content: dict[str, Any] = {"model": name, "n_classes": self.n_classes}
        for setting in ("covariance_type", "weight_concentration_prior_type"):
            if hasattr(self.estimator, setting):
                content[setting] = getattr(self.estimator, setting)
        for attribute in _STORED[name]:
            content[attribute] = _plain(getattr(self.estimator, attribute))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The model that `to_dict` wrote, ready to predict."""
        name = content.get("model")
        one_of(name, _STORED, "the model in the dict")
        absent = [key for key in ("n_classes", *_STORED[str(name)]) if key not in content]
        if absent:
            raise ValueError(f"the dict of a {name} lacks {', '.join(absent)}; write it again.")
        if name == "KMeans":
            return cls(_kmeans_at(np.array(content["cluster_centers_"], dtype=float)))
        from sklearn import mixture

        settings = {
            key: content[key]
            for key in ("covariance_type", "weight_concentration_prior_type")
            if key in content
        }
        estimator = getattr(mixture, str(name))(n_components=content["n_classes"], **settings)
        for attribute in _STORED[str(name)]:
            value = content[attribute]
            pair = attribute == "weight_concentration_" and np.ndim(value) == 2
            setattr(estimator, attribute, tuple(map(np.array, value)) if pair else np.array(value))
        estimator.n_features_in_ = estimator.means_.shape[1]
        return cls(estimator)


_MIXTURE = ("weights_", "means_", "covariances_", "precisions_cholesky_")
_STORED = {
    "KMeans": ("cluster_centers_",),
    "GaussianMixture": _MIXTURE,
    "BayesianGaussianMixture": (
        *_MIXTURE,
        "weight_concentration_",
        "mean_precision_",
        "degrees_of_freedom_",
    ),
}


def _kmeans_at(centres: NDArray[np.float64]) -> Any:
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal centres are for the sender to worry about
        estimator = KMeans(len(centres), init=centres, n_init=1, max_iter=1).fit(centres)
    estimator.cluster_centers_ = centres
    return estimator


def _plain(value: Any) -> Any:
    return [part.tolist() for part in value] if isinstance(value, tuple) else value.tolist()


# --- labels from any model ---------------------------------------------------------------


def predict_labels(
    model: Any, data: Any, n: int, proportions: str, name: Hashable
) -> NDArray[np.integer[Any]]:
    """The labels (n,) that a model gives, checked."""
    if type(model).__name__ in _STORED and type(model).__module__.startswith("sklearn."):
        model = SklearnModel(model)
    if not hasattr(model, "predict"):
        raise TypeError(f"the model {name!r} ({type(model).__name__}) has no method predict(data).")
    if not n:  # many models refuse an empty table, but a site without patients is no error
        return np.zeros(0, dtype=np.int8)
    if proportions == "model":
        labels = np.asarray(model.predict(data))
    else:
        labels = _site_labels(model, data, name)
    if labels.shape != (n,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"the model {name!r} should predict {n:,} whole numbers from 0, one for each patient; "
            f"it gave an array of {labels.dtype} of shape {labels.shape}"
            + (f" with the label {labels.min()}." if labels.dtype.kind in "iu" else ".")
        )
    return labels


def _site_labels(model: Any, data: Any, name: Hashable) -> NDArray[np.integer[Any]]:
    own = getattr(model, "class_weights_", getattr(model, "weights_", None))
    if own is None or not hasattr(model, "predict_proba"):
        raise TypeError(
            f"the model {name!r} has no class proportions to re-estimate (it needs predict_proba, "
            'and class_weights_ or weights_); label its patients with proportions="model".'
        )
    own = np.asarray(own, dtype=float)  # a labelled Series is as good as an array
    shares = np.asarray(model.predict_proba(data), dtype=float)
    case = None if hasattr(data, "columns") else getattr(data, "weights", None)
    site = site_proportions(shares, own, weights=case)
    ratio = np.divide(site, own, out=np.zeros_like(site), where=own > 0)
    return np.asarray(np.argmax(shares * ratio, axis=1))


def site_proportions(
    probabilities: ArrayLike,
    proportions: ArrayLike,
    *,
    weights: ArrayLike | None = None,
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
        raise ValueError(
            f"probabilities of shape {shares.shape} need one proportion for each column; found "
            f"{old.shape}."
        )
    case = case_weights(weights, len(shares))
    if case.sum() == 0:
        return old
    case = case / case.sum()
    likelihood = np.divide(shares, old, out=np.zeros_like(shares), where=old > 0)
    now = old
    for _ in range(max_iter):
        joint = likelihood @ now  # Σ_k p_ik π_k / π⁰_k, patient by patient
        joint[joint == 0] = 1.0
        new = now * (likelihood.T @ (case / joint))
        change = np.abs(new - now).max()
        now = new
        if change < tol:
            break
    total = now.sum()
    return now / total if total > 0 else old
