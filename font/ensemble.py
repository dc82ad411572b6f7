"""The ensemble: many models' labels in, one clustering out, in one round of communication."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import (
    Floats,
    Integers,
    LabelTables,
    Models,
    check_dict,
    check_known_labels,
    check_same_names,
    class_parameters,
    counted,
    label_columns,
    one_of,
    some,
    whole_number,
)
from font.clustering import (
    Clusters,
    cluster_patterns,
    cluster_tables,
    distances_to,
    positions,
)
from font.errors import InputError, ReportWarning, option
from font.labels import (
    AddedTables,
    CrossTables,
    LabelPatterns,
    distinct_rows,
    map_rows,
    site_proportions,
)
from font.probabilities import posterior, probabilities
from font.weights import RECORD, Weighed, weigh

_RESAMPLES = (
    "Several models come from the same site: models of resamples of the same patients agree with "
    "each other, right or wrong, so that a high vote share does not mean that a patient's cluster "
    "is right."
)
_MOST_UPDATES = 1_000
_FAR = 3.0  # times as far from the others as they are from each other


class Ensemble:
    """Federated one-shot ensemble clustering.

    Each model m gives a distance between patients, D̂ᵐ_ij = d(β̂ᵐ of i's class, β̂ᵐ of j's
    class). Their agreement G_ts = cos(D̂ᵗ, D̂ˢ) gives weights w = abs(first eigenvector of G), and
    D̃ = Σ w_m D̂ᵐ/‖D̂ᵐ‖ is clustered. It is computed exactly from the counts of distinct label
    patterns, or nearly so from cross-tables of labels alone, for data that cannot be pooled: no
    patient's labels leave a site, and nothing grows with N².

    Parameters
    ----------
    n_clusters : int or None
        None reads it off the spectrum, see `read_spectrum`; the sites' `vote` is the other way.
    weights : "spectral", "centred", "equal", "prior" or "sparse"
        See `font.weights.model_weights`. "spectral" hardly punishes a useless model,
        "centred" does, but may follow several models that copy each other; `summary` says when
        the two disagree.
    distance : "euclidean", "hellinger", "total-variation" or a function (K, d) → (K, K)
        Between the class parameters of a model.
    method : str
        The last step: "kmeans" on the rows of D̃; "kmeans-classes" on the mean rows of the
        models' classes, for which cross-tables are enough (given these, "kmeans" is the same);
        "kmeans-distance", K-means with D̃ as squared distance; "average",
        "complete" or "ward" linkage with D̃ as distance; "spectral", K-means on the leading
        n_clusters − 1 principal coordinates of D̃; "latent", which takes the labels for readings
        of one latent cluster, with errors that are independent between models (see
        `font.clustering.latent_clusters`) and also needs cross-tables only.
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
    n_clusters_choice_ : SpectrumChoice, what the spectrum says, used or not
    cluster_sizes_ : DataFrame clusters × sites, the patients counted in `fit`; estimated where
        cross-tables are all that is used
    patterns_ : LabelPatterns, or None if not fitted to them
    clusters_ : (P,) the cluster of each pattern, or None where only tables are used
    proportions_, confusion_ : (clusters,) and (classes of all models × clusters)
        With "latent": each model's block of a column of `confusion_` sums to 1.

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
    >>> tables = CrossTables.from_labels({"here": labels}, {"A": 2, "B": 2})
    >>> Ensemble(2, seed=1).fit(models, tables).predict(labels).tolist()
    [0, 0, 0, 1, 1]
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
        self.patterns_: LabelPatterns | None = None
        self.clusters_: NDArray[np.int64] | None = None

    def fit(
        self,
        models: Models,
        patterns: LabelPatterns | LabelTables | CrossTables | AddedTables,
        sites: Mapping[Any, Hashable] | None = None,
    ) -> Self:
        """Weigh the models, and find the clusters.

        Parameters
        ----------
        models : {name: model}
            Anything with `class_parameters_` (K, d), or that array itself.
        patterns : LabelPatterns, or {site: label table}
            Its models by name, in any order. Or CrossTables, or the sites' sum that
            `CrossTables.merge` gives, with the models in the same order. In tables, and with
            "latent", no site counts more than all others together.
        sites : {model: site}, optional
            Whose models they are. The models of a site share its weight, so that no site gains by
            sending many; with equal numbers of models nothing changes.
        """
        check_dict(models, "models must be a dict {name: model}")
        self.class_distances_ = {
            name: weighing.class_distances(class_parameters(model, name), self.distance, name)
            for name, model in models.items()
        }
        self._n_classes = [len(delta) for delta in self.class_distances_.values()]
        self.models_, self._shares = tuple(models), _model_shares(list(models), sites)
        self.patterns_ = self.clusters_ = None
        with clustering.one_thread():
            if isinstance(patterns, CrossTables | AddedTables):
                weighed, clusters = self._from_tables(patterns)
            else:
                weighed, clusters = self._from_patterns(patterns)
        self._take_results(weighed, clusters)
        return self

    def _from_patterns(self, given: LabelPatterns | LabelTables) -> tuple[Weighed, Clusters]:
        if not isinstance(given, LabelPatterns):
            given = LabelPatterns.from_labels(given)
        self.patterns_ = patterns = given.reorder(self.models_)
        if not patterns.n_patients:
            raise InputError(
                "there are no patients to cluster: the label tables are empty; give at least one "
                "patient's labels."
            )
        columns = list(patterns.patterns.T)
        check_known_labels(columns, self._n_classes, self.models_, "the table of label patterns")
        if self.method in clustering.ONLY_TABLES:
            tables = CrossTables.from_patterns(patterns, tuple(self._n_classes))
            return self._from_tables(tables)
        offsets = np.cumsum([0, *self._n_classes])
        total = weighing.cross_tabulate(columns, offsets, patterns.counts.sum(axis=1))
        weighed = self._weigh(total)
        _warn_of_idle_models(self.models_, weighed.cosines)
        clusters = cluster_patterns(
            weighed, patterns.patterns, patterns.counts, self.n_clusters, self.method, self.seed
        )
        self.clusters_ = clusters.labels
        self.cluster_sizes_ = _size_table(clusters.sizes, patterns.sites)
        return weighed, clusters

    def _from_tables(self, given: CrossTables | AddedTables) -> tuple[Weighed, Clusters]:
        one_of(self.method, clustering.FROM_TABLES, "method, where cross-tables are given,")
        tables = CrossTables.merge([given]) if isinstance(given, CrossTables) else given
        check_same_names(tables.models, self.models_, "the cross-tables")
        if tables.models != self.models_:
            raise InputError("the models must come in the order of the cross-tables.")
        if tables.n_classes != tuple(self._n_classes):
            raise InputError("the models have other numbers of classes than the cross-tables.")
        total = tables.total(capped=True)
        if not total.any():
            raise InputError("there are no patients to cluster: all cross-tables are empty.")
        weighed = self._weigh(total)
        clusters = cluster_tables(
            weighed, tables, self._shares, self.n_clusters, self.method, self.seed
        )
        self.cluster_sizes_ = _size_table(clusters.sizes, list(tables.sizes))
        return weighed, clusters

    def _weigh(self, tables: Floats) -> Weighed:
        return weigh(self.class_distances_, tables, self.weights, self.reliability, self._shares)

    def _take_results(self, weighed: Weighed, clusters: Clusters) -> None:
        """What `fit` found, with names."""
        index = pd.Index(list(self.models_), name="model")
        self.n_clusters_, self.n_clusters_choice_ = len(clusters.centres), weighed.choice
        self._axes, self._centres = clusters.axes, clusters.centres
        self.proportions_, self.confusion_ = clusters.proportions, clusters.confusion
        member = clusters.member  # a class votes for the cluster of most of its patients
        self._votes = np.where(member.any(axis=1), member.argmax(axis=1), -1)
        self.centred_agreement_ = pd.DataFrame(
            weighed.centred_cosines, index=index, columns=index.rename(None)
        )
        self._name_results(
            weighed.weights, weighed.centred_weights, weighed.cosines, weighed.spectrum
        )

    def _name_results(
        self, weights: Floats, centred_weights: Floats, cosines: Floats, spectrum: Floats
    ) -> None:
        index = pd.Index(list(self.models_), name="model")
        self.weights_ = pd.Series(weights, index=index, name="weight")
        self.centred_weights_ = pd.Series(centred_weights, index=index, name="centred weight")
        self.agreement_ = pd.DataFrame(cosines, index=index, columns=index.rename(None))
        self.spectrum_ = pd.Series(spectrum, name="eigenvalue")
        self.spectrum_.index = pd.RangeIndex(1, len(spectrum) + 1)

    # --- patients -------------------------------------------------------------------------

    def predict(self, labels: pd.DataFrame) -> pd.Series:
        """The cluster of each patient, from the labels the models give.

        Patterns seen in `fit` keep their cluster; any other pattern goes to the cluster whose
        centre is nearest. With "latent" it is the most probable cluster, see `predict_proba`.

        Parameters
        ----------
        labels : DataFrame, patients × models
            As `font.label` returns; columns by name, in any order. With "latent" the patients
            should be all of one site.
        """
        clusters = self._by_pattern(labels, self._place)
        return pd.Series(clusters, index=labels.index, name="cluster", copy=False)

    def predict_proba(self, labels: pd.DataFrame) -> pd.DataFrame:
        """Probability of each cluster for each patient of one site, with "latent" only.

        The site's own proportions are estimated from its patients first. The probabilities are too
        close to 0 and 1, since they take the models' errors for independent: in six simulated
        studies (10 imbalanced sites, σ² = 0.3) patients had a mean probability of 0.997 of their
        cluster, and 93 % were in the right one. Those of a refined model (`font.refine`) are nearer
        to the truth.
        """
        if self.method != "latent":
            raise AttributeError('only method="latent" gives probabilities of clusters.')
        return pd.DataFrame(self._by_pattern(labels, self._posterior), index=labels.index)

    def confidence(self, labels: pd.DataFrame) -> pd.DataFrame:
        """How clearly each patient belongs to the cluster.

        Returns
        -------
        DataFrame
            `cluster`; `runner_up`, the next nearest (−1 if there is one cluster only);
            `margin` = (d₂ − d₁)/max(d₁, d₂) with d₁ the distance to the own centre and d₂ to
            the runner-up's: 1 at the centre, 0 half-way, below 0 where linkage chose a cluster
            whose centre is not the nearest, and with "latent" the difference between the two
            highest probabilities; `vote_share`, the share of the models' weight that
            votes for the cluster: a model votes for the cluster in which most patients of that
            class are. It says how far the models agree with each other, not how far they are
            right: models of resamples of the same patients repeat each other's mistakes.
        """
        table = self._by_pattern(labels, self._confidence)
        frame = pd.DataFrame(table, index=labels.index, copy=False)
        frame.columns = pd.Index(["cluster", "runner_up", "margin", "vote_share"])
        return frame.astype({"cluster": np.int64, "runner_up": np.int64})

    def _by_pattern(
        self, labels: pd.DataFrame, value_of: Callable[[Integers, Integers], NDArray[Any]]
    ) -> NDArray[Any]:
        columns = label_columns(labels, self.models_, "the label table")
        check_known_labels(columns, self._n_classes, self.models_, "the label table")
        with clustering.one_thread():
            return map_rows(columns, value_of)

    def _place(self, patterns: Integers, counts: Integers) -> NDArray[np.int64]:
        """The clusters (P,) of any patterns: looked up where known, else the nearest."""
        if self.method == "latent":
            return np.asarray(self._posterior(patterns, counts).argmax(axis=1))
        if self.patterns_ is None or self.clusters_ is None:
            return np.asarray(self._distances(patterns).argmin(axis=1))
        known = self.patterns_.patterns
        _, number = distinct_rows(list(np.concatenate([known, patterns]).T))
        cluster_of = np.full(number.max(initial=0) + 1, -1)
        cluster_of[number[: len(known)]] = self.clusters_
        clusters = cluster_of[number[len(known) :]]
        new = clusters < 0
        clusters[new] = np.argmin(self._distances(patterns[new]), axis=1)
        return clusters

    def _distances(self, patterns: Integers) -> Floats:
        """Distances (P, K) to the centres."""
        offsets = np.cumsum([0, *self._n_classes])
        return distances_to(positions(patterns, offsets, self._axes), self._centres)

    def _posterior(self, patterns: Integers, counts: Integers) -> Floats:
        """Probabilities (P, K) of the latent clusters, with proportions of these patients' own."""
        logs = np.log(self.confusion_)
        offsets = np.cumsum([0, *self._n_classes])
        score = np.tile(np.log(self.proportions_), (len(patterns), 1))
        for share, column, begin in zip(self._shares, patterns.T, offsets[:-1], strict=True):
            score += share * logs[column + begin]
        shares, _ = posterior(score)
        own = site_proportions(
            shares, self.proportions_, weights=counts, max_iter=_MOST_UPDATES, tol=1e-8
        )
        return probabilities(shares * (own / self.proportions_))

    def _confidence(self, patterns: Integers, counts: Integers) -> Floats:
        latent, rows = self.method == "latent", np.arange(len(patterns))
        if latent:
            far = -self._posterior(patterns, counts)
            clusters = far.argmin(axis=1)
        else:
            far, clusters = self._distances(patterns), self._place(patterns, counts)
        own = far[rows, clusters]
        far[rows, clusters] = np.inf
        runner_up, other = np.argmin(far, axis=1), far.min(axis=1)
        if self.n_clusters_ == 1:
            runner_up, margin = np.full(len(rows), -1), np.ones(len(rows))
        else:
            scale = np.ones(len(rows)) if latent else np.maximum(own, other)
            margin = np.divide(other - own, scale, out=np.ones(len(rows)), where=scale > 0)
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
        """The data that the ensemble is based on, in words."""
        n, n_sites = int(self.cluster_sizes_.to_numpy().sum()), self.cluster_sizes_.shape[1]
        at = f"at {counted(n_sites, 'site', 'sites')}"
        if self.patterns_ is None or self.clusters_ is None:
            return f"about {n:,} patients {at}, cross-tables of their labels"
        return f"{n:,} patients {at}, {len(self.patterns_):,} label patterns"

    def cautions(self, *, about_number: bool = True) -> list[str]:
        """What to know before trusting the clusters, one sentence or two on each point.

        What the spectrum says about their number (unless better evidence is at hand, see
        `font.suggest_n_clusters`), what the centred weights say about the models, which site's
        models agree with no other site's, and, where several models come from one site, what the
        patients' vote shares cannot say.
        """
        cautions = [self._spectrum_in_words()] if about_number else []
        cautions.append(self._weights_in_words())
        if len({site_of(name) for name in self.models_}) < len(self.models_):
            cautions.append(_RESAMPLES)
        cautions += [
            f"The models of {site!r} agree with those of the other sites less than these do "
            f"among themselves: mean agreement {own:.2f}, where the others have {rest:.2f}."
            for site, own, rest in _distant_sites(self.agreement_)
        ]
        return cautions

    def _spectrum_in_words(self) -> str:
        choice, classes = self.n_clusters_choice_, sorted(set(self._n_classes))
        text = (
            f"The spectrum suggests {choice.n_clusters} clusters; this is {choice.sure}: any "
            f"threshold between {choice.low:.3f} and {choice.high:.3f} of the largest eigenvalue "
            "gives the same number."
        )
        if choice.n_clusters != self.n_clusters_:
            text += f" The ensemble has {self.n_clusters_}."
        if classes[0] > choice.n_clusters:
            return f"{text} The models have more classes than that. {RECORD[choice.sure]}"
        return (
            f"{text} However, models with {' or '.join(map(str, classes))} classes lead to that "
            "number partly by construction: check it with models of 1 to 3 more classes "
            "(font.suggest_n_clusters)."
        )

    def _weights_in_words(self) -> str:
        weight = self.weights_ / self.weights_.max()
        centred = self.centred_weights_ / self.centred_weights_.max()
        doubted = weight.index[(weight > 0) & (centred < weight / 2)]
        if not len(doubted):
            return "Centred weights agree with the weights used."
        shown = ", ".join(
            f"{name!r} ({weight[name]:.2f} of the best weight, centred {centred[name]:.3f})"
            for name in doubted[:5]
        )
        return (
            f"Centred weights disagree with the weights used: they are far lower for {shown}"
            f"{', …' if len(doubted) > 5 else ''}, because the labels of these models agree with "
            "those of the others little more than by chance. Compare with "
            f"{option('weights', 'centred')}, and check in the agreement between the models "
            "whether those with high centred weights are copies of each other."
        )


def site_of(name: Hashable) -> Hashable:
    """The site that a model comes from by its name: "MGB" for "MGB/1", else the name itself."""
    return name.rsplit("/", 1)[0] if isinstance(name, str) else name


def _model_shares(models: Sequence[Hashable], sites: Mapping[Any, Hashable] | None) -> Floats:
    """How far each model counts (M,): 1, or less where its site has more models than usual."""
    if sites is None:
        return np.ones(len(models))
    of_site = pd.Series([sites[name] for name in models])
    n_models = of_site.map(of_site.value_counts()).to_numpy(float)
    return np.asarray(len(models) / of_site.nunique() / n_models)


def _size_table(sizes: NDArray[np.int64], sites: Sequence[Hashable]) -> pd.DataFrame:
    index = pd.RangeIndex(len(sizes), name="cluster")
    return pd.DataFrame(sizes, index=index, columns=pd.Index(list(sites), name="site"))


def _mean_of_others(cosines: Floats) -> Floats:
    n_others = len(cosines) - 1
    if not n_others:
        return np.full(1, np.nan)
    mean: Floats = (cosines.sum(axis=1) - np.diag(cosines)) / n_others
    return mean


def _distant_sites(agreement: pd.DataFrame) -> list[tuple[str, float, float]]:
    """Sites whose models lie much further from all others' than those from each other.

    With the mean agreement of their models with the others', and of the others' among themselves.
    """
    of_site = pd.Series([str(site_of(name)) for name in agreement.index], index=agreement.index)
    found = []
    for site in of_site.unique() if of_site.nunique() > 2 else ():
        own, others = of_site.index[of_site == site], of_site.index[of_site != site]
        table = agreement.loc[others, others]
        apart = of_site[others].to_numpy()[:, None] != of_site[others].to_numpy()
        rest = float(table.to_numpy()[apart].mean())
        mean = float(agreement.loc[own, others].to_numpy().mean())
        if 1 - mean > _FAR * (1 - rest):
            found.append((site, mean, rest))
    return found


def _warn_of_idle_models(names: Sequence[Hashable], cosines: Floats) -> None:
    idle = [name for name, used in zip(names, np.diag(cosines) > 0, strict=True) if not used]
    if idle:
        warnings.warn(
            f"the models {some(idle)} put all patients in one class (or in classes with equal "
            "parameters) and get the weight 0.",
            ReportWarning,
            stacklevel=4,
        )
