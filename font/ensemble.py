"""The ensemble: many models' labels in, one clustering out, in one round of communication."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import class_parameters, label_columns, one_of, some, whole_number
from font.labels import LabelPatterns, distinct_rows, map_rows
from font.solve import distances_to, positions, solve

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

_FORMAT, _VERSION = "font ensemble", 1


class Ensemble:
    """Federated one-shot ensemble clustering.

    Each model m gives a distance between patients, D̂ᵐ_ij = d(β̂ᵐ of i's class, β̂ᵐ of j's
    class). Their agreement G_ts = cos(D̂ᵗ, D̂ˢ) gives weights w = |first eigenvector of G|, and
    D̃ = Σ w_m D̂ᵐ/‖D̂ᵐ‖ is clustered. It is computed exactly from the counts of distinct label
    patterns: no patient's labels leave a site, and nothing grows with N².

    Parameters
    ----------
    n_clusters : int or None
        None reads it off the spectrum, see `read_spectrum`; `majority_vote` is the other way.
    weights : "spectral", "centred", "equal", "prior" or "sparse"
        See `font.weights.model_weights`. "spectral" hardly punishes a useless model,
        "centred" does, but may follow several models that copy each other; `summary` says when
        the two tell different stories.
    distance : "euclidean", "hellinger", "total-variation" or a function (K, d) → (K, K)
        Between the class parameters of a model.
    method : str
        The last step: "kmeans" on the rows of D̃; "kmeans-distance", K-means with D̃ as squared
        distance; "average", "complete" or "ward" linkage with D̃ as distance; "spectral",
        K-means on the leading n_clusters − 1 principal coordinates of D̃.
    reliability : {model: number}, optional
        For weights="prior".
    seed : int
        For the starts of K-means.

    Attributes
    ----------
    weights_, centred_weights_ : Series over models
    agreement_, centred_agreement_ : DataFrames models × models
        G, and the same of the double-centred distances, where unrelated models are near 0; the
        ensemble file has only the first.
    spectrum_ : Series, eigenvalues of −HD̃H from the largest
    n_clusters_ : int
    n_clusters_choice_ : SpectrumChoice, what the spectrum says, used or not
    cluster_sizes_ : DataFrame clusters × sites, the patients counted in `fit`
    patterns_ : LabelPatterns
    clusters_ : (P,) the cluster of each pattern

    Clusters are numbered 0 … K − 1 by decreasing size.

    Examples
    --------
    >>> models = {"A": np.array([[0.0], [1.0]]), "B": np.array([[0.1], [0.9]])}  # (K, d) each
    >>> labels = pd.DataFrame({"A": [0, 0, 0, 1, 1], "B": [0, 0, 0, 1, 1]})
    >>> ensemble = Ensemble(2, seed=1).fit(models, LabelPatterns.from_labels({"here": labels}))
    >>> ensemble.predict(labels).tolist()
    [0, 0, 0, 1, 1]
    >>> ensemble.weights_.round(3).tolist()
    [0.707, 0.707]
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        weights: str = "spectral",
        distance: str | Callable[[Floats], Any] = "euclidean",
        method: str = "kmeans",
        reliability: Mapping[Any, float] | None = None,
        seed: int = 0,
    ) -> None:
        if n_clusters is not None:
            n_clusters = whole_number(n_clusters, 1, "n_clusters, unless None,")
        one_of(weights, weighing.METHODS, "weights")
        one_of(method, clustering.METHODS, "method")
        if not callable(distance):
            one_of(distance, weighing.DISTANCES, "distance, unless a function,")
        self.n_clusters = n_clusters
        self.weights = weights
        self.distance = distance
        self.method = method
        self.reliability = reliability
        self.seed = seed

    def fit(
        self, models: Mapping[Any, Any], patterns: LabelPatterns | Mapping[Any, pd.DataFrame]
    ) -> Self:
        """Weigh the models and cluster the label patterns.

        Parameters
        ----------
        models : {name: model}
            Anything with `class_parameters_` (K, d), or that array itself.
        patterns : LabelPatterns, or {site: label table}
            Its models by name, in any order.
        """
        if not isinstance(models, Mapping) or not models:
            raise TypeError(
                f"models must be a dict {{name: model}}; found {type(models).__name__}."
            )
        names = tuple(models)
        if not isinstance(patterns, LabelPatterns):
            patterns = LabelPatterns.from_labels(patterns)
        patterns = patterns.reorder(names)
        if not patterns.n_patients:
            raise ValueError(
                "there are no patients to cluster: the tables are empty or every pattern was "
                "withheld; lower min_count, or merge more sites first."
            )
        self.class_distances_ = {
            name: weighing.class_distances(class_parameters(model, name), self.distance, name)
            for name, model in models.items()
        }
        self._n_classes = [len(delta) for delta in self.class_distances_.values()]
        _refuse_unknown(patterns.patterns, self._n_classes, names)
        counts = patterns.counts.sum(axis=1)
        with clustering.one_thread():
            found = solve(
                self.class_distances_,
                patterns.patterns,
                counts,
                self.n_clusters,
                weights=self.weights,
                method=self.method,
                reliability=self.reliability,
                seed=self.seed,
            )
        _warn_of_idle(names, found.cosines)

        self.patterns_ = patterns
        self.n_clusters_ = len(found.centres)
        self.n_clusters_choice_ = found.choice
        self.clusters_ = found.labels
        self.cluster_sizes_ = pd.DataFrame(
            [patterns.counts[found.labels == k].sum(axis=0) for k in range(self.n_clusters_)],
            index=pd.RangeIndex(self.n_clusters_, name="cluster"),
            columns=pd.Index(list(patterns.sites), name="site"),
        )
        self._known = patterns.patterns
        self._axes, self._centres = found.axes, found.centres
        self._votes = _votes(patterns.patterns, counts, found.labels, self._n_classes)
        self.centred_agreement_ = pd.DataFrame(
            found.centred_cosines, index=pd.Index(names, name="model"), columns=pd.Index(names)
        )
        self._n_withheld = int(patterns.withheld.sum())
        self._name_results(
            names, found.weights, found.centred_weights, found.cosines, found.spectrum
        )
        return self

    # --- patients -------------------------------------------------------------------------

    def predict(self, labels: pd.DataFrame) -> pd.Series:
        """The cluster of each patient, from the labels the models give.

        Patterns seen in `fit` keep their cluster; any other pattern goes to the cluster whose
        centre is nearest.

        Parameters
        ----------
        labels : DataFrame, patients × models
            As `font.label` returns; columns by name, in any order.
        """
        with clustering.one_thread():
            clusters = map_rows(self._columns(labels), self._place)
        return pd.Series(clusters, index=labels.index, name="cluster", copy=False)

    def confidence(self, labels: pd.DataFrame) -> pd.DataFrame:
        """How clearly each patient belongs to the cluster.

        Returns
        -------
        DataFrame
            `cluster`; `runner_up`, the next nearest (−1 if there is one cluster only);
            `margin` = (d₂ − d₁)/max(d₁, d₂) with d₁ the distance to the own centre and d₂ to
            the runner-up's: 1 at the centre, 0 half-way, below 0 where linkage chose a cluster
            whose centre is not the nearest; `agreement`, the share of the models' weight that
            votes for the cluster: a model votes for the cluster in which most patients of that
            class are.
        """
        with clustering.one_thread():
            table = map_rows(self._columns(labels), self._confidence)
        frame = pd.DataFrame(table, index=labels.index, copy=False)
        frame.columns = pd.Index(["cluster", "runner_up", "margin", "agreement"])
        return frame.astype({"cluster": np.int64, "runner_up": np.int64})

    def _columns(self, labels: pd.DataFrame) -> list[Integers]:
        columns = label_columns(labels, self.models_, "the label table")
        for name, column, size in zip(self.models_, columns, self._n_classes, strict=True):
            if len(column) and column.max() >= size:
                raise _unknown_label(int(column.max()), size, name)
        return columns

    def _place(self, patterns: Integers) -> NDArray[np.int64]:
        """The clusters (P,) of any patterns: looked up where known, else the nearest."""
        n_known = len(self._known)
        _, number = distinct_rows(list(np.concatenate([self._known, patterns]).T))
        cluster_of = np.full(number.max(initial=0) + 1, -1)
        cluster_of[number[:n_known]] = self.clusters_
        clusters = cluster_of[number[n_known:]]
        new = clusters < 0
        clusters[new] = np.argmin(self._distances(patterns[new]), axis=1)
        return clusters

    def _distances(self, patterns: Integers) -> Floats:
        """Distances (P, K) to the centres."""
        return distances_to(positions(patterns, self._n_classes, self._axes), self._centres)

    def _confidence(self, patterns: Integers) -> Floats:
        clusters, far = self._place(patterns), self._distances(patterns)
        rows = np.arange(len(patterns))
        own = far[rows, clusters]
        others = far.copy()
        others[rows, clusters] = np.inf
        runner_up = np.argmin(others, axis=1) if far.shape[1] > 1 else np.full(len(rows), -1)
        other = others.min(axis=1)
        longest = np.maximum(own, other)
        margin = np.ones(len(rows))
        # written as two ratios: with a single cluster the other distance is infinite
        np.subtract(1.0, own / other, out=margin, where=(longest == other) & (other > 0))
        np.subtract(other / np.where(own > 0, own, 1), 1.0, out=margin, where=own > other)
        votes = self._votes[patterns + np.cumsum([0, *self._n_classes[:-1]])] == clusters[:, None]
        weight = self.weights_.to_numpy()
        return np.column_stack([clusters, runner_up, margin, votes @ weight / weight.sum()])

    # --- words ----------------------------------------------------------------------------

    def summary(self) -> str:
        """Weights, clusters and what to be careful about, as a text to read."""
        models = pd.DataFrame(
            {
                "weight": self.weights_,
                "centred": self.centred_weights_,
                "mean agreement": _mean_of_others(self.agreement_.to_numpy()),
            }
        )
        sizes = self.cluster_sizes_.copy()
        sizes["all"] = sizes.sum(axis=1)
        sizes["share"] = sizes["all"] / sizes["all"].sum()
        n_sites = self.cluster_sizes_.shape[1]
        withheld = f" ({self._n_withheld:,} more withheld)" if self._n_withheld else ""
        lines = [
            f"Ensemble of {len(models)} models: {int(sizes['all'].sum()):,} patients{withheld} at "
            f"{n_sites} site{'s' * (n_sites != 1)}, {len(self._known):,} label patterns, "
            f"{self.n_clusters_} clusters (method {self.method!r}, weights {self.weights!r}).",
            "",
            models.to_string(float_format=lambda v: f"{v:.3f}"),
            "",
            sizes.to_string(formatters={"share": "{:.1%}".format}),
            "",
            *self.cautions(),
        ]
        return "\n".join(lines)

    def cautions(self) -> list[str]:
        """What the spectrum says about the number of clusters, and centred weights about models."""
        return [self._spectrum_in_words(), self._weights_in_words()]

    def _spectrum_in_words(self) -> str:
        choice = self.n_clusters_choice_
        text = (
            f"The spectrum suggests {choice.n_clusters} clusters; this is {choice.sure}: any "
            f"threshold between {choice.low:.3f} and {choice.high:.3f} of the largest eigenvalue "
            "says the same."
        )
        if choice.n_clusters != self.n_clusters_:
            text += f" {self.n_clusters_} were asked for."
        return text

    def _weights_in_words(self) -> str:
        weight = self.weights_ / self.weights_.max()
        centred = self.centred_weights_ / self.centred_weights_.max()
        doubted = weight.index[(weight > 0) & (centred < weight / 2)]
        if not len(doubted):
            return "Centred weights tell the same story as the weights used."
        shown = ", ".join(
            f"{name!r} ({weight[name]:.2f} of the best weight, centred {centred[name]:.3f})"
            for name in doubted[:5]
        )
        return (
            f"Centred weights tell another story: they trust {shown}"
            f"{', …' if len(doubted) > 5 else ''} far less, because these labels agree with the "
            'other models\' little more than chance would. Compare with weights="centred", and see '
            "in agreement_ that those it trusts are not copies of each other."
        )

    # --- files ----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All that is needed to place and describe patients, as numbers, texts and lists.

        Counts appear only by cluster and site, not by pattern.
        """
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "settings": {
                "n_clusters": self.n_clusters,
                "weights": self.weights,
                "distance": "function" if callable(self.distance) else self.distance,
                "method": self.method,
                "seed": self.seed,
            },
            "models": list(self.models_),
            "n_classes": list(self._n_classes),
            "weights": self.weights_.tolist(),
            "centred_weights": self.centred_weights_.tolist(),
            "agreement": self.agreement_.to_numpy().tolist(),
            "spectrum": self.spectrum_.tolist(),
            "n_clusters_choice": list(self.n_clusters_choice_),
            "axes": self._axes.tolist(),
            "centres": self._centres.tolist(),
            "votes": self._votes.tolist(),
            "patterns": self._known.tolist(),
            "clusters": self.clusters_.tolist(),
            "sites": list(self.cluster_sizes_.columns),
            "cluster_sizes": self.cluster_sizes_.to_numpy().tolist(),
            "n_withheld": self._n_withheld,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The ensemble that `to_dict` wrote: it places patients and describes itself."""
        found = content.get("format"), content.get("version")
        if found != (_FORMAT, _VERSION):
            raise ValueError(
                f"expected the dict of an ensemble ({_FORMAT!r}, version {_VERSION}); found "
                f"{found[0]!r}, version {found[1]!r}."
            )
        absent = [key for key in _KEYS if key not in content]
        if absent:
            raise ValueError(f"the dict of an ensemble lacks {some(absent)}; write it again.")
        arrays = _checked_arrays(content)
        settings = dict(content["settings"])
        if settings["distance"] == "function":
            settings["distance"] = _forgotten_distance
        ensemble = cls(**settings)
        ensemble._n_classes = arrays["n_classes"].tolist()
        ensemble._axes, ensemble._centres = arrays["axes"], arrays["centres"]
        ensemble._votes, ensemble._known = arrays["votes"], arrays["patterns"]
        ensemble._n_withheld = int(content["n_withheld"])
        ensemble.clusters_ = arrays["clusters"]
        ensemble.n_clusters_ = len(ensemble._centres)
        ensemble.n_clusters_choice_ = clustering.SpectrumChoice(*content["n_clusters_choice"])
        ensemble.cluster_sizes_ = pd.DataFrame(
            arrays["cluster_sizes"],
            index=pd.RangeIndex(ensemble.n_clusters_, name="cluster"),
            columns=pd.Index(content["sites"], name="site"),
        )
        results = [arrays[key] for key in ("weights", "centred_weights", "agreement", "spectrum")]
        ensemble._name_results(tuple(content["models"]), *results)
        return ensemble

    def _name_results(
        self,
        names: tuple[Hashable, ...],
        weights: Floats,
        centred_weights: Floats,
        cosines: Floats,
        spectrum: Floats,
    ) -> None:
        index = pd.Index(list(names), name="model")
        self.models_ = names
        self.weights_ = pd.Series(weights, index=index, name="weight")
        self.centred_weights_ = pd.Series(centred_weights, index=index, name="centred weight")
        self.agreement_ = pd.DataFrame(cosines, index=index, columns=index.rename(None))
        self.spectrum_ = pd.Series(spectrum, name="eigenvalue")
        self.spectrum_.index = pd.RangeIndex(1, len(spectrum) + 1)


_ARRAYS = {
    "n_classes": np.int64,
    "weights": float,
    "centred_weights": float,
    "agreement": float,
    "spectrum": float,
    "axes": float,
    "centres": float,
    "votes": np.int64,
    "patterns": np.int64,
    "clusters": np.int64,
    "cluster_sizes": np.int64,
}
_KEYS = ("settings", "models", "n_clusters_choice", "sites", "n_withheld", *_ARRAYS)


def _checked_arrays(content: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of an ensemble's dict, which must fit together."""
    arrays: dict[str, NDArray[Any]] = {}
    for key, dtype in _ARRAYS.items():
        try:
            arrays[key] = np.array(content[key], dtype=dtype)
        except (TypeError, ValueError):
            raise ValueError(
                f"the dict of an ensemble holds something other than numbers in {key!r}, or rows "
                "of unequal length; write it again."
            ) from None
    n_models, n_sites = len(content["models"]), len(content["sites"])
    n_all, n_clusters = int(arrays["n_classes"].sum()), len(arrays["centres"])
    rank, n_patterns = arrays["axes"].shape[-1], len(arrays["clusters"])
    shapes: dict[str, tuple[int, ...]] = {
        "n_classes": (n_models,),
        "weights": (n_models,),
        "centred_weights": (n_models,),
        "agreement": (n_models, n_models),
        "spectrum": (n_all,),
        "axes": (n_all, rank),
        "centres": (n_clusters, rank),
        "votes": (n_all,),
        "patterns": (n_patterns, n_models),
        "clusters": (n_patterns,),
        "cluster_sizes": (n_clusters, n_sites),
    }
    wrong = [key for key, shape in shapes.items() if arrays[key].shape != shape]
    if not wrong and not np.isin(arrays["clusters"], np.arange(n_clusters)).all():
        wrong = ["clusters"]
    if wrong:
        raise ValueError(
            f"the dict of an ensemble does not fit together in {some(wrong)}; write it again."
        )
    return arrays


def _forgotten_distance(parameters: Floats) -> Floats:
    raise ValueError(
        "this ensemble was fitted with a distance function of the centre's own, which files do "
        "not carry; give distance= to a new Ensemble to fit again."
    )


def _votes(
    patterns: Integers, counts: NDArray[Any], clusters: Integers, n_classes: Sequence[int]
) -> NDArray[np.int64]:
    """For each class of each model the cluster of most of its patients; −1 if it has none."""
    n_clusters = int(clusters.max()) + 1
    votes = []
    for column, size in zip(patterns.T, n_classes, strict=True):
        cell = column.astype(np.int64) * n_clusters + clusters
        table = np.bincount(cell, weights=counts, minlength=size * n_clusters)
        table = table.reshape(size, n_clusters)
        votes.append(np.where(table.any(axis=1), table.argmax(axis=1), -1))
    return np.concatenate(votes)


def _mean_of_others(cosines: Floats) -> Floats:
    n_others = len(cosines) - 1
    if not n_others:
        return np.full(1, np.nan)
    mean: Floats = (cosines.sum(axis=1) - np.diag(cosines)) / n_others
    return mean


def _unknown_label(found: int, n_classes: int, name: Hashable) -> ValueError:
    return ValueError(
        f"the label {found} from the model {name!r} is unknown: the model has {n_classes} classes, "
        f"numbered 0 to {n_classes - 1}; label with the models given to the ensemble."
    )


def _refuse_unknown(
    patterns: Integers, n_classes: Sequence[int], names: Sequence[Hashable]
) -> None:
    for name, column, size in zip(names, patterns.T, n_classes, strict=True):
        if column.max() >= size:
            raise _unknown_label(int(column.max()), size, name)


def _warn_of_idle(names: Sequence[Hashable], cosines: Floats) -> None:
    idle = [name for name, used in zip(names, np.diag(cosines) > 0, strict=True) if not used]
    if idle:
        warnings.warn(
            f"the models {some(idle)} put all patients in one class (or in classes with equal "
            "parameters) and get the weight 0.",
            stacklevel=3,
        )
