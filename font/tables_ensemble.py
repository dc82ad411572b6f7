"""The ensemble between sites: from cross-tables of labels alone, for data that cannot be pooled.

For every pair of models the table of their labels, summed over sites, is all that the agreement G,
the weights w and the geometry need: S = ZᵀZ consists of these tables (see `font.weights`).
Positions of patients are z·A with A = B·S^½, and the mean position of the patients in class k of
model m is the row of S·A divided by their number. K-means on those means gives the centres, and
each site places its own patients. No site tells how many patients have which combination of labels.

method="latent" goes on from there: the labels are taken for readings of one latent cluster with
errors that are independent between models (Dawid and Skene), and the proportions π and confusion
tables A_m maximise Σ_{t<s} Σ_kl C^{ts}_kl log Σ_c π_c A_t[k, c] A_s[l, c], a function of the same
tables. Each site computes its patients' probabilities with proportions of its own. The errors of
real models are not independent, so that these probabilities are too sure of themselves.

Fitting, placing patients and the content of the ensemble file stand in one module, because all
three must agree on the same few arrays: axes, centres, proportions and confusion tables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import class_parameters, one_of, same_names
from font.cross_tables import AddedTables, CrossTables, latent_clusters
from font.ensemble import Ensemble, site_of
from font.errors import InputError
from font.labels import distinct_rows, map_rows
from font.solve import SpectrumChoice, no_weight, read_spectrum

Floats = NDArray[np.float64]

METHODS = ("latent", "kmeans")
_VERSION = 2
_MOST_UPDATES, _MOST_STARTS = 1_000, 10
_ODD = 3.0  # times as far from the others as they are from each other


class TableEnsemble(Ensemble):
    """An `Ensemble` fitted to cross-tables of labels instead of patients' label patterns.

    Parameters
    ----------
    n_clusters : int or None
        None reads it off the spectrum.
    weights, distance, reliability, seed
        As in `Ensemble`.
    method : "latent" or "kmeans"
        The last step, see the module's text.

    Attributes
    ----------
    Those of `Ensemble` but for patterns_ and clusters_; `cluster_sizes_` is estimated from the
    tables. With "latent", `proportions_` (clusters,) and `confusion_` (classes of all models ×
    clusters), each model's block of a column summing to 1.

    Examples
    --------
    >>> models = {name: np.array([[0.0], [1.0]]) for name in "ABC"}
    >>> labels = pd.DataFrame({name: [0] * 30 + [1] * 20 for name in models})
    >>> tables = CrossTables.from_labels({"here": labels}, dict.fromkeys(models, 2))
    >>> TableEnsemble(2).fit(models, tables).predict(labels).value_counts().tolist()
    [30, 20]
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        weights: str = "spectral",
        distance: str | Callable[[Floats], Any] = "euclidean",
        method: str = "latent",
        reliability: Mapping[Any, float] | None = None,
        seed: int = 0,
    ) -> None:
        one_of(method, METHODS, "method")
        super().__init__(
            n_clusters, weights=weights, distance=distance, reliability=reliability, seed=seed
        )
        self.method = method

    def fit(  # type: ignore[override]
        self,
        models: Mapping[Any, Any],
        tables: CrossTables | AddedTables,
        sites: Mapping[Any, Hashable] | None = None,
    ) -> Self:
        """Weigh the models, and find the clusters.

        Parameters
        ----------
        models : {name: model}
            Anything with `class_parameters_` (K, d), or that array itself.
        tables : CrossTables, or the sites' sum that `CrossTables.merge` gives
        sites : {model: site}, optional
            Whose models they are. The models of a site share its weight, so that no site gains by
            sending many; with equal numbers of models nothing changes.
        """
        names = tuple(models)
        same_names(tables.models, names, "the cross-tables")
        if tables.models != names:
            raise InputError("the models must come in the order of the cross-tables.")
        self.class_distances_ = {
            name: weighing.class_distances(class_parameters(model, name), self.distance, name)
            for name, model in models.items()
        }
        distances = list(self.class_distances_.values())
        self._n_classes = [len(delta) for delta in distances]
        if tuple(self._n_classes) != tables.n_classes:
            raise InputError("the models have other numbers of classes than the cross-tables.")
        added = CrossTables.merge([tables]) if isinstance(tables, CrossTables) else tables
        total = added.total(capped=True)
        if not total.any():
            raise InputError("there are no patients to cluster: all cross-tables are empty.")
        share = self._shares(names, sites)
        with clustering.one_thread():
            self._solve(names, distances, added, total, share)
        return self

    def _shares(self, names: Sequence[Hashable], sites: Mapping[Any, Hashable] | None) -> Floats:
        """How far each model counts (M,): 1, or less where its site has more models than usual."""
        if sites is None:
            return np.ones(len(names))
        of_site = pd.Series([sites[name] for name in names])
        n_models = of_site.map(of_site.value_counts()).to_numpy(float)
        return np.asarray(len(names) / of_site.nunique() / n_models)

    def _solve(
        self,
        names: tuple[Hashable, ...],
        distances: list[Floats],
        tables: AddedTables,
        total: Floats,
        share: Floats,
    ) -> None:
        offsets = tables.offsets
        blocks = [slice(a, b) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        norms, cosines, centred, centred_cosines = weighing.agreements(distances, total)
        prior = np.ones(len(names))
        if self.weights == "prior":
            prior = weighing.reliabilities(self.reliability, list(names))
        weight = _shared_weights(self.weights, cosines, centred_cosines, prior * share)
        if not weight.any():
            raise InputError(no_weight(list(names), cosines))
        metric, inner = np.zeros_like(total), np.zeros_like(total)
        for m in np.flatnonzero(weight):
            metric[blocks[m], blocks[m]] = distances[m] * (weight[m] / norms[m])
            inner[blocks[m], blocks[m]] = centred[m] * (weight[m] / norms[m])
        root = clustering.square_root(total)
        spectrum, _ = clustering.principal_axes(inner, root)
        self.n_clusters_choice_ = read_spectrum(spectrum)
        self.n_clusters_ = self.n_clusters or self.n_clusters_choice_.n_clusters
        counts = np.diag(total)
        self._axes = _main_axes(metric @ root, total, len(names))
        used = counts > 0
        points = (total @ self._axes)[used] / counts[used, None]
        # models without weight, whose classes may all lie in the middle, make no clusters
        mass = (counts * np.repeat(share * (weight > 0), self._n_classes))[used]
        labels = clustering.kmeans(points[mass > 0], mass[mass > 0], self.n_clusters_, self.seed)
        group = np.eye(self.n_clusters_)[labels].T * mass[mass > 0]
        self._centres = group @ points[mass > 0] / group.sum(axis=1, keepdims=True)
        far = ((points[:, None] - self._centres) ** 2).sum(axis=-1)
        nearest = far.argmin(axis=1)
        nearest[mass > 0] = labels
        member = np.zeros((len(counts), self.n_clusters_))
        member[np.flatnonzero(used), nearest] = 1.0
        self.proportions_, self.confusion_ = np.zeros(0), np.zeros((0, 0))
        if self.method == "latent":
            # from the K-means, and from those models' own classes that have as many
            alike = [m for m in np.argsort(-weight) if self._n_classes[m] == self.n_clusters_]
            inverse = np.divide(1.0, counts, out=np.zeros_like(counts), where=used)[:, None]
            starts = [member, *(total[:, blocks[m]] * inverse for m in alike[:_MOST_STARTS])]
            proportions, confusion = latent_clusters(total, offsets, starts, share)
            joint = confusion * proportions
            member = np.divide(joint, joint.sum(axis=1, keepdims=True))
            member[~used] = 0.0
            self.proportions_, self.confusion_ = proportions, confusion
        by_model = np.repeat(weight, self._n_classes)[:, None] / weight.sum() * member
        sizes = {site: size @ by_model for site, size in tables.sizes.items()}
        order = np.argsort(-sum(sizes.values()), kind="stable")
        self._centres = self._centres[order]
        if self.method == "latent":  # places nobody by position, and axes are most of a file
            self._axes, self._centres = self._axes[:, :0], self._centres[:, :0]
            self.proportions_ = self.proportions_[order]
            self.confusion_ = self.confusion_[:, order]
        self._votes = np.where(used, member[:, order].argmax(axis=1), -1)
        self.cluster_sizes_ = pd.DataFrame(
            {site: np.rint(size[order]).astype(np.int64) for site, size in sizes.items()},
            index=pd.RangeIndex(self.n_clusters_, name="cluster"),
        )
        self.cluster_sizes_.columns.name = "site"
        self.centred_agreement_ = pd.DataFrame(
            centred_cosines, index=pd.Index(names, name="model"), columns=pd.Index(names)
        )
        self._name_results(
            names, weight, weighing.leading(centred_cosines), cosines, np.asarray(spectrum)
        )
        self._exponents = share

    # --- patients -------------------------------------------------------------------------

    def predict(self, labels: pd.DataFrame) -> pd.Series:
        """The cluster of each patient; the patients in `labels` should be all of one site."""
        return self.confidence(labels)["cluster"]

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
        patterns, number = distinct_rows(self._columns(labels))
        counts = np.bincount(number, minlength=len(patterns))
        logs = np.log(self.confusion_)
        offsets = np.cumsum([0, *self._n_classes])
        score = np.zeros((len(patterns), self.n_clusters_))
        for m, column in enumerate(patterns.T):
            score += self._exponents[m] * logs[column + offsets[m]]
        likelihood = np.exp(score - score.max(axis=1, keepdims=True))
        proportions = self.proportions_
        for _ in range(_MOST_UPDATES if len(patterns) else 0):
            joint = likelihood * proportions
            joint /= joint.sum(axis=1, keepdims=True)
            new = counts @ joint / counts.sum()
            change, proportions = np.abs(new - proportions).max(), new
            if change < 1e-8:
                break
        joint = likelihood * proportions
        joint = joint / joint.sum(axis=1, keepdims=True)
        return pd.DataFrame(joint[number], index=labels.index)

    def confidence(self, labels: pd.DataFrame) -> pd.DataFrame:
        """How clearly each patient belongs to the cluster; see `Ensemble.confidence`.

        With "latent" `margin` is the difference between the two highest probabilities.
        """
        columns = self._columns(labels)
        if self.method == "kmeans":
            with clustering.one_thread():
                table = map_rows(columns, self._confidence)
        else:
            shares = self.predict_proba(labels).to_numpy()
            order = np.argsort(-shares, axis=1, kind="stable")
            cluster = order[:, 0]
            best = np.sort(shares, axis=1)[:, ::-1]
            many = self.n_clusters_ > 1
            runner_up = order[:, 1] if many else np.full(len(shares), -1)
            margin = best[:, 0] - best[:, 1] if many else np.ones(len(shares))
            offsets = np.cumsum([0, *self._n_classes])
            share = np.zeros(len(shares))
            for weight, column, offset in zip(self.weights_, columns, offsets[:-1], strict=True):
                share += weight * (self._votes[column + offset] == cluster)
            share /= self.weights_.sum()
            table = np.column_stack([cluster, runner_up, margin, share])
        frame = pd.DataFrame(table, index=labels.index, copy=False)
        frame.columns = pd.Index(["cluster", "runner_up", "margin", "vote_share"])
        return frame.astype({"cluster": np.int64, "runner_up": np.int64})

    def _place(self, patterns: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        nearest: NDArray[np.int64] = np.argmin(self._distances(patterns), axis=1)
        return nearest

    # --- words and files ------------------------------------------------------------------

    def _counted(self) -> str:
        n, n_sites = int(self.cluster_sizes_.to_numpy().sum()), self.cluster_sizes_.shape[1]
        sites = f"{n_sites} site{'s' * (n_sites != 1)}"
        return f"about {n:,} patients at {sites}, cross-tables of their labels"

    def cautions(self, *, about_number: bool = True) -> list[str]:
        """What to know before trusting the clusters; see `Ensemble.cautions`."""
        of_site = pd.Series([str(site_of(name)) for name in self.models_], index=self.models_)
        lines = super().cautions(about_number=about_number)
        if of_site.nunique() > 2:
            lines += [
                f"The models of {site!r} agree with those of the other sites less than these do "
                f"among themselves: mean agreement {own:.2f}, where the others have {rest:.2f}."
                for site, own, rest in _odd_sites(self.agreement_, of_site)
            ]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """All that sites need to place their patients, as numbers, texts and lists."""
        return {
            "format": "font ensemble",
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
            "shares": self._exponents.tolist(),
            "weights": self.weights_.tolist(),
            "centred_weights": self.centred_weights_.tolist(),
            "agreement": self.agreement_.to_numpy().tolist(),
            "spectrum": self.spectrum_.tolist(),
            "n_clusters_choice": list(self.n_clusters_choice_),
            "axes": self._axes.tolist(),
            "centres": self._centres.tolist(),
            "proportions": self.proportions_.tolist(),
            "confusion": self.confusion_.tolist(),
            "votes": self._votes.tolist(),
            "sites": list(self.cluster_sizes_.columns),
            "cluster_sizes": self.cluster_sizes_.to_numpy().tolist(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The ensemble that `to_dict` wrote."""
        arrays = _arrays(content)
        settings = dict(content["settings"])
        if settings["distance"] == "function":
            settings["distance"] = _forgotten
        ensemble = cls(**settings)
        ensemble._n_classes = list(content["n_classes"])
        ensemble._exponents = arrays["shares"]
        ensemble._axes, ensemble._centres = arrays["axes"], arrays["centres"]
        ensemble.proportions_, ensemble.confusion_ = arrays["proportions"], arrays["confusion"]
        ensemble._votes = arrays["votes"].astype(np.int64)
        ensemble.n_clusters_ = len(ensemble._centres)
        ensemble.n_clusters_choice_ = SpectrumChoice(*content["n_clusters_choice"])
        ensemble.cluster_sizes_ = pd.DataFrame(
            arrays["cluster_sizes"].astype(np.int64),
            index=pd.RangeIndex(ensemble.n_clusters_, name="cluster"),
            columns=pd.Index(content["sites"], name="site"),
        )
        results = [arrays[key] for key in ("weights", "centred_weights", "agreement", "spectrum")]
        ensemble._name_results(tuple(content["models"]), *results)
        return ensemble


def _odd_sites(agreement: pd.DataFrame, of_site: pd.Series) -> list[tuple[str, float, float]]:
    """Sites whose models lie much further from all others' than those from each other."""
    odd = []
    for site in of_site.unique():
        own, others = of_site.index[of_site == site], of_site.index[of_site != site]
        table = agreement.loc[others, others]
        apart = of_site[others].to_numpy()[:, None] != of_site[others].to_numpy()
        rest = float(table.to_numpy()[apart].mean())
        mean = float(agreement.loc[own, others].to_numpy().mean())
        if 1 - mean > _ODD * (1 - rest):
            odd.append((site, mean, rest))
    return odd


def _forgotten(parameters: Floats) -> Floats:
    raise InputError("this ensemble was fitted with a distance function that files do not carry.")


def _shared_weights(method: str, cosines: Floats, centred: Floats, share: Floats) -> Floats:
    """`font.weights.model_weights` where model m counts as `share[m]` models.

    w = R^½v with v the weights from R^½GR^½: n copies of a model that count as 1/n each get
    together what the model alone would get. With equal shares the weights are the usual ones.
    """
    if (share == share[0]).all():
        return weighing.model_weights("spectral" if method == "prior" else method, cosines, centred)
    root = np.sqrt(share)
    scale = root[:, None] * root[None, :]
    if method == "equal":
        weights = np.where(np.diag(cosines) > 0, share, 0.0)
    else:
        base = "spectral" if method == "prior" else method
        weights = root * weighing.model_weights(base, scale * cosines, scale * centred)
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


def _main_axes(axes: Floats, total: Floats, n_models: int) -> Floats:
    """The axes (ΣK, ΣK) turned so that patients' positions vary along few columns, (ΣK, r)."""
    counts = np.diag(total)
    n = counts.sum() / n_models
    mean = counts @ axes / n
    covariance = axes.T @ total @ axes / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    kept = values > 1e-9 * max(values[-1], 0.0)
    kept[-1] = True
    turned: Floats = axes @ vectors[:, kept][:, ::-1]
    return turned


def _arrays(content: Mapping[str, Any]) -> dict[str, Floats]:
    """The numbers of an ensemble's dict, which must fit together."""
    n_models, n_sites = len(content["models"]), len(content["sites"])
    n_all, n_clusters = sum(content["n_classes"]), len(content["centres"])
    latent = content["settings"]["method"] == "latent"
    rank = len(content["axes"][0])
    shapes: dict[str, tuple[int, ...]] = {
        "n_classes": (n_models,),
        "shares": (n_models,),
        "weights": (n_models,),
        "centred_weights": (n_models,),
        "agreement": (n_models, n_models),
        "spectrum": (n_all,),
        "axes": (n_all, rank),
        "centres": (n_clusters, rank),
        "proportions": (n_clusters * latent,),
        "confusion": (n_all, n_clusters) if latent else (0,),
        "votes": (n_all,),
        "cluster_sizes": (n_clusters, n_sites),
    }
    arrays = {}
    for key, shape in shapes.items():
        try:
            array = np.array(content[key], dtype=float)
        except (TypeError, ValueError):
            raise InputError(f"the ensemble has no table of numbers in {key!r}.") from None
        if array.shape != shape:
            raise InputError(
                f"the ensemble does not fit together: its {key} have the shape {array.shape} in "
                f"place of {shape}."
            )
        arrays[key] = array
    if latent and not ((arrays["confusion"] > 0).all() and (arrays["proportions"] > 0).all()):
        raise InputError("the ensemble has a confusion or a proportion that is not above 0.")
    if latent and not abs(arrays["proportions"].sum() - 1) < 1e-6:
        raise InputError("the proportions of the ensemble's clusters do not sum to 1.")
    if not latent and not rank:
        raise InputError("the ensemble has no axes, without which its centres place nobody.")
    if not (arrays["weights"] > 0).any():
        raise InputError("all models of the ensemble have the weight 0.")
    return arrays
