"""The ensemble: many models' labels in, one clustering out, in one round of communication."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering, store
from font import weights as weighing
from font.checks import (
    Floats,
    Integers,
    LabelTables,
    Models,
    class_parameters,
    counted,
    label_columns,
    one_of,
    some,
    whole_number,
)
from font.errors import InputError
from font.labels import LabelPatterns, distinct_rows, map_rows
from font.solve import RECORD, distances_to, positions, solve
from font.spelling import option

_RESAMPLES = (
    "Several models come from the same site: models of resamples of the same patients agree with "
    "each other, right or wrong, so that a high vote share does not mean that a patient's cluster "
    "is right."
)


class Ensemble:
    """Federated one-shot ensemble clustering.

    Each model m gives a distance between patients, D̂ᵐ_ij = d(β̂ᵐ of i's class, β̂ᵐ of j's
    class). Their agreement G_ts = cos(D̂ᵗ, D̂ˢ) gives weights w = abs(first eigenvector of G), and
    D̃ = Σ w_m D̂ᵐ/‖D̂ᵐ‖ is clustered. It is computed exactly from the counts of distinct label
    patterns: no patient's labels leave a site, and nothing grows with N².

    Parameters
    ----------
    n_clusters : int or None
        None reads it off the spectrum, see `read_spectrum`; the sites' `vote` is the other way.
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

    def fit(self, models: Models, patterns: LabelPatterns | LabelTables) -> Self:
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
            raise InputError(
                "there are no patients to cluster: the tables are empty or every pattern was "
                "withheld; lower min_count, or merge more sites first."
            )
        self.class_distances_ = {
            name: weighing.class_distances(class_parameters(model, name), self.distance, name)
            for name, model in models.items()
        }
        self._n_classes = [len(delta) for delta in self.class_distances_.values()]
        _refuse_unknown(list(patterns.patterns.T), self._n_classes, names)
        counts = patterns.counts.sum(axis=1)
        with clustering.one_thread():
            solution = solve(
                self.class_distances_,
                patterns.patterns,
                counts,
                self.n_clusters,
                weights=self.weights,
                method=self.method,
                reliability=self.reliability,
                seed=self.seed,
            )
        _warn_of_idle(names, solution.cosines)

        clusters = solution.labels
        self.patterns_ = patterns
        self.clusters_ = clusters
        self.n_clusters_ = len(solution.centres)
        self.n_clusters_choice_ = solution.choice
        self.cluster_sizes_ = pd.DataFrame(
            [patterns.counts[clusters == k].sum(axis=0) for k in range(self.n_clusters_)],
            index=pd.RangeIndex(self.n_clusters_, name="cluster"),
            columns=pd.Index(list(patterns.sites), name="site"),
        )
        self._known = patterns.patterns
        self._axes, self._centres = solution.axes, solution.centres
        self._votes = _votes(patterns.patterns, counts, clusters, self._n_classes)
        self.centred_agreement_ = pd.DataFrame(
            solution.centred_cosines, index=pd.Index(names, name="model"), columns=pd.Index(names)
        )
        self._n_withheld = int(patterns.withheld.sum())
        self._name_results(
            names, solution.weights, solution.centred_weights, solution.cosines, solution.spectrum
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
            whose centre is not the nearest; `vote_share`, the share of the models' weight that
            votes for the cluster: a model votes for the cluster in which most patients of that
            class are. It says how far the models agree with each other, not how far they are
            right: models of resamples of the same patients repeat each other's mistakes.
        """
        with clustering.one_thread():
            table = map_rows(self._columns(labels), self._confidence)
        frame = pd.DataFrame(table, index=labels.index, copy=False)
        frame.columns = pd.Index(["cluster", "runner_up", "margin", "vote_share"])
        return frame.astype({"cluster": np.int64, "runner_up": np.int64})

    def _columns(self, labels: pd.DataFrame) -> list[Integers]:
        columns = label_columns(labels, self.models_, "the label table")
        _refuse_unknown(columns, self._n_classes, self.models_)
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
        """Weights, clusters (numbered from 1) and what to be careful about, as a text to read."""
        models = pd.DataFrame(
            {
                "weight": self.weights_,
                "centred": self.centred_weights_,
                "mean agreement": _mean_of_others(self.agreement_.to_numpy()),
            }
        )
        sizes = self.cluster_sizes_.set_axis(self.cluster_sizes_.index + 1)
        sizes["all"] = sizes.sum(axis=1)
        sizes["share"] = sizes["all"] / sizes["all"].sum()
        lines = [
            f"Ensemble of {counted(len(models), 'model', 'models')}: {self._counted()}, "
            f"{counted(self.n_clusters_, 'cluster', 'clusters')} "
            f"(method {self.method!r}, weights {self.weights!r}).",
            "",
            models.to_string(float_format=lambda v: f"{v:.3f}"),
            "",
            sizes.to_string(formatters={"share": "{:.1%}".format}),
            "",
            *self.cautions(),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        settings = f"Ensemble(n_clusters={self.n_clusters!r}, weights={self.weights!r}, …)"
        return self.summary() if hasattr(self, "weights_") else settings

    def _repr_html_(self) -> str:
        text = repr(self)
        return f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'

    def _counted(self) -> str:
        """What the ensemble rests on, in words."""
        withheld = f" ({self._n_withheld:,} more withheld)" if self._n_withheld else ""
        n, n_sites = int(self.cluster_sizes_.to_numpy().sum()), self.cluster_sizes_.shape[1]
        sites = f"{n_sites} site{'s' * (n_sites != 1)}"
        return f"{n:,} patients{withheld} at {sites}, {len(self._known):,} label patterns"

    def cautions(self, *, about_number: bool = True) -> list[str]:
        """What to know before trusting the clusters, one sentence or two on each point.

        What the spectrum says about their number (unless better evidence is at hand, see
        `font.suggest_n_clusters`), what the centred weights say about the models, and, where
        several models come from one site, what the patients' vote shares cannot say.
        """
        cautions = [self._spectrum_in_words()] if about_number else []
        cautions.append(self._weights_in_words())
        if len({site_of(name) for name in self.models_}) < len(self.models_):
            cautions.append(_RESAMPLES)
        return cautions

    def _spectrum_in_words(self) -> str:
        choice, classes = self.n_clusters_choice_, sorted(set(self._n_classes))
        text = (
            f"The spectrum suggests {choice.n_clusters} clusters; this is {choice.sure}: any "
            f"threshold between {choice.low:.3f} and {choice.high:.3f} of the largest eigenvalue "
            "says the same."
        )
        if choice.n_clusters != self.n_clusters_:
            text += f" The ensemble has {self.n_clusters_}."
        if classes[0] > choice.n_clusters:
            return f"{text} The models have more classes than that. {RECORD[choice.sure]}"
        return (
            f"{text} But models with {' or '.join(map(str, classes))} classes partly impose that "
            "number: ask models with 1 to 3 classes more (font.suggest_n_clusters)."
        )

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
            "other models' little more than chance would. Compare with "
            f"{option('weights', 'centred')}, and see in the agreement between the models whether "
            "those it trusts are copies of each other."
        )

    # --- files ----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All that is needed to place and describe patients, as numbers, texts and lists.

        Counts appear only by cluster and site, not by pattern.
        """
        return store.to_dict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The ensemble that `to_dict` wrote: it places patients and describes itself."""
        return store.restore(cls, content)

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


def site_of(name: Hashable) -> Hashable:
    """The site that a model comes from by its name: "MGB" for "MGB/1", else the name itself."""
    return name.rsplit("/", 1)[0] if isinstance(name, str) else name


def _votes(
    patterns: Integers, counts: NDArray[Any], clusters: Integers, n_classes: Sequence[int]
) -> NDArray[np.int64]:
    """For each class of each model the cluster of most of its patients; −1 if it has none."""
    n_clusters = int(clusters.max()) + 1
    votes = []
    for column, size in zip(patterns.T, n_classes, strict=True):
        pair = column.astype(np.int64) * n_clusters + clusters
        table = np.bincount(pair, weights=counts, minlength=size * n_clusters)
        table = table.reshape(size, n_clusters)
        votes.append(np.where(table.any(axis=1), table.argmax(axis=1), -1))
    return np.concatenate(votes)


def _mean_of_others(cosines: Floats) -> Floats:
    n_others = len(cosines) - 1
    if not n_others:
        return np.full(1, np.nan)
    mean: Floats = (cosines.sum(axis=1) - np.diag(cosines)) / n_others
    return mean


def _refuse_unknown(
    columns: Sequence[Integers], n_classes: Sequence[int], names: Sequence[Hashable]
) -> None:
    for name, column, size in zip(names, columns, n_classes, strict=True):
        if len(column) and column.max() >= size:
            raise InputError(
                f"the label {column.max()} from the model {name!r} is unknown: the model has "
                f"{size} classes, numbered 0 to {size - 1}; label with the models given to the "
                "ensemble."
            )


def _warn_of_idle(names: Sequence[Hashable], cosines: Floats) -> None:
    idle = [name for name, used in zip(names, np.diag(cosines) > 0, strict=True) if not used]
    if idle:
        warnings.warn(
            f"the models {some(idle)} put all patients in one class (or in classes with equal "
            "parameters) and get the weight 0.",
            stacklevel=3,
        )
