"""The computation behind the ensemble: agreement, weights, geometry and clusters.

`weigh` needs only S = ZᵀZ, the cross-tables of all models' labels. The last step depends on what
is known of the patients:

- `cluster_patterns`, from the counts of label patterns: exactly the clustering of the rows of D̃,
  or of D̃ itself.
- `cluster_tables`, from the cross-tables alone. A patient's position is z·A with A = B·S^½, and
  the mean position of the patients in class k of model m is the row of S·A divided by their
  number. K-means on those means gives the centres, and each site places its own patients. With
  "latent" the labels are then taken for readings of one latent cluster (`latent_clusters`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font import clustering
from font import weights as weighing
from font.checks import Floats, Integers, some
from font.cross_tables import AddedTables
from font.errors import InputError

_TENTH = 0.1  # of the largest eigenvalue; what is above it counts
# How often the true number was suggested by an ensemble of models with 1 to 3 classes more
RECORD = {
    "clear": "In simulated studies of small sites such models were right in all 18 clear cases.",
    "fair": "In simulated studies of small sites such models were right in 47 of 48 fair cases.",
    "doubtful": "In simulated studies of small sites such models were right in only 55 of 94 "
    "doubtful cases.",
}


class SpectrumChoice(NamedTuple):
    """Number of clusters read off a spectrum, and how certain it is.

    Parameters
    ----------
    n_clusters : 1 + the number of eigenvalues above a tenth of the largest
    low, high : the same number results from any threshold between these shares of the largest
    sure : "clear" if the tenth may be halved and doubled, "fair" if it may be divided and
        multiplied by √2, else "doubtful"
    """

    n_clusters: int
    low: float
    high: float
    sure: str


def read_spectrum(values: Iterable[float]) -> SpectrumChoice:
    """The number of clusters from the eigenvalues of −HD̃H.

    K well-separated clusters give K − 1 large eigenvalues; the rest is noise. Local models with K
    classes each lead to K clusters partly by construction, so what models of 1 to 3 more suggest
    is the better evidence (`suggest_n_clusters`).

    *Does it work?* in the documentation says how often the number suggested was the true one: how
    sure the answer is says more than the number of classes does.

    Examples
    --------
    >>> read_spectrum([10.0, 6.0, 3.0, 0.2, 0.1])
    SpectrumChoice(n_clusters=4, low=0.02, high=0.3, sure='clear')
    """
    array = np.sort(np.array(list(values), dtype=float))[::-1]
    if not array.size or array[0] <= 0:
        return SpectrumChoice(1, 0.0, 1.0, "clear")
    share = array / array[0]
    n_above = int((share > _TENTH).sum())
    low = max(float(share[n_above]), 0.0) if n_above < len(share) else 0.0
    high = float(share[n_above - 1])
    room = min(high / _TENTH, _TENTH / low if low > 0 else np.inf)
    sure = "clear" if room >= 2 else "fair" if room >= np.sqrt(2) else "doubtful"
    return SpectrumChoice(1 + n_above, low, high, sure)


_MOST_STARTS = 10


class Weighed(NamedTuple):
    """What the cross-tables of the labels say about the models, with M models of ΣK classes.

    Parameters
    ----------
    offsets : (M + 1,) where each model's classes begin
    weights, centred_weights : (M,)
    cosines, centred_cosines : (M, M) agreement G, and that of the double-centred distances
    spectrum : (ΣK,) eigenvalues of −HD̃H, largest first
    choice : number of clusters that the spectrum suggests
    metric : (ΣK, ΣK) B, the distances between classes, weighed
    axes : (ΣK, ΣK) B·S^½; the pattern with one-hot labels z has the position z·axes
    principal : (ΣK, r) the same for the principal coordinates of D̃ as squared distance
    """

    offsets: NDArray[np.intp]
    weights: Floats
    centred_weights: Floats
    cosines: Floats
    centred_cosines: Floats
    spectrum: Floats
    choice: SpectrumChoice
    metric: Floats
    axes: Floats
    principal: Floats


class Clusters(NamedTuple):
    """The last step's result, clusters by decreasing size.

    Parameters
    ----------
    axes, centres : (ΣK, r), (n_clusters, r)
        Positions of patterns, and where the clusters' centres are.
    member : (ΣK, n_clusters)
        How many of the patients of each class of each model, or which share, are in each cluster.
    sizes : (n_clusters, sites) patients
    labels : (P,) the cluster of each pattern; empty from cross-tables
    proportions, confusion : (n_clusters,), (ΣK, n_clusters)
        Of latent clusters, otherwise empty.
    """

    axes: Floats
    centres: Floats
    member: Floats
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    proportions: Floats = np.zeros(0)
    confusion: Floats = np.zeros((0, 0))


def weigh(
    class_distances: Mapping[Any, Floats],
    tables: Floats,
    weights: str,
    reliability: Mapping[Any, float] | None = None,
    share: Floats | None = None,
) -> Weighed:
    """Weigh the models {name: (K, K) distances} by the cross-tables S of their labels, (ΣK, ΣK).

    `weights` and `reliability` are settings of an `Ensemble`; model m counts as `share[m]` models.
    """
    names, distances = list(class_distances), list(class_distances.values())
    offsets = np.cumsum([0, *map(len, distances)])
    norms, cosines, centred, centred_cosines = weighing.agreements(distances, tables)
    counts_as = np.ones(len(names)) if share is None else share
    if weights == "prior":
        counts_as = counts_as * weighing.reliabilities(reliability, names)
    weight = weighing.model_weights(weights, cosines, centred_cosines, counts_as)
    if not weight.any():
        raise InputError(_why_no_weight(names, cosines))
    metric, inner = np.zeros_like(tables), np.zeros_like(tables)
    for m in np.flatnonzero(weight):
        block = slice(offsets[m], offsets[m + 1])
        metric[block, block] = distances[m] * (weight[m] / norms[m])
        inner[block, block] = centred[m] * (weight[m] / norms[m])
    root = clustering.square_root(tables)
    spectrum, principal = clustering.principal_axes(inner, root)
    return Weighed(
        offsets,
        weight,
        weighing.leading(centred_cosines),
        cosines,
        centred_cosines,
        spectrum,
        read_spectrum(spectrum),
        metric,
        metric @ root,
        principal,
    )


def cluster_patterns(
    weighed: Weighed,
    patterns: Integers,
    counts: NDArray[np.int64],
    n_clusters: int | None,
    method: str,
    seed: int,
) -> Clusters:
    """Cluster label patterns (P, M) with counts (P, sites)."""
    n = counts.sum(axis=1)
    wanted = n_clusters or weighed.choice.n_clusters
    axes = weighed.axes
    if method == "spectral":
        axes = weighed.principal[:, : max(wanted - 1, 1)]
    elif method == "kmeans-distance":
        axes = weighed.principal
    points = positions(patterns, weighed.offsets, axes)
    if method in clustering.LINKAGES:
        clustering.check_linkage_size(len(patterns), method)
        far = np.zeros((len(patterns), len(patterns)))
        for column, begin in zip(patterns.T, weighed.offsets[:-1], strict=True):
            rows = begin + column.astype(np.intp)
            far += weighed.metric[np.ix_(rows, rows)]
        labels = clustering.linkage(far, n, wanted, method)
    else:
        labels = clustering.kmeans(points, n.astype(float), wanted, seed)
    labels = _by_size(labels, n)
    groups = [labels == k for k in range(wanted)]
    return Clusters(
        axes,
        np.array([np.average(points[group], axis=0, weights=n[group]) for group in groups]),
        _patients_by_class(patterns, labels, n, weighed.offsets),
        np.array([counts[group].sum(axis=0) for group in groups]),
        labels,
    )


def cluster_tables(
    weighed: Weighed,
    tables: AddedTables,
    share: Floats,
    n_clusters: int | None,
    method: str,
    seed: int,
) -> Clusters:
    """Cluster the patients behind cross-tables: `method` is one of `clustering.FROM_TABLES`."""
    total = tables.total(capped=True)
    counts, offsets = np.diag(total), weighed.offsets
    used, n_classes = counts > 0, np.diff(offsets)
    wanted = n_clusters or weighed.choice.n_clusters
    axes = _main_axes(weighed.axes, total, len(n_classes))
    # models without weight, whose classes may all lie in the middle, make no clusters
    mass = counts * np.repeat(share * (weighed.weights > 0), n_classes)
    centres, member = _class_clusters(axes, total, mass, wanted, seed)
    proportions, confusion = np.zeros(0), np.zeros((0, 0))
    if method == "latent":
        # from the K-means, and from those models' own classes that have as many
        alike = [m for m in np.argsort(-weighed.weights) if n_classes[m] == wanted]
        inverse = np.divide(1.0, counts, out=np.zeros_like(counts), where=used)[:, None]
        starts = [total[:, offsets[m] : offsets[m + 1]] * inverse for m in alike[:_MOST_STARTS]]
        proportions, confusion = clustering.latent_clusters(
            total, offsets, [member, *starts], share
        )
        joint = confusion * proportions
        member = np.where(used[:, None], joint / joint.sum(axis=1, keepdims=True), 0.0)
        axes, centres = axes[:, :0], centres[:, :0]  # place nobody, and would fill the file
    by_model = np.repeat(weighed.weights, n_classes)[:, None] / weighed.weights.sum() * member
    sizes = np.array([size @ by_model for size in tables.sizes.values()]).T
    order = np.argsort(-sizes.sum(axis=1), kind="stable")
    return Clusters(
        axes,
        centres[order],
        member[:, order],
        np.rint(sizes[order]).astype(np.int64),
        proportions=proportions[order] if method == "latent" else proportions,
        confusion=confusion[:, order] if method == "latent" else confusion,
    )


def _class_clusters(
    axes: Floats, total: Floats, mass: Floats, n_clusters: int, seed: int
) -> tuple[Floats, Floats]:
    """K-means on the mean positions of the classes, weighted by `mass` (ΣK,).

    Centres (n_clusters, r), and for each class that has patients a 1 for its cluster.
    """
    counts = np.diag(total)
    used = np.flatnonzero(counts > 0)
    points = (total @ axes)[used] / counts[used, None]
    heavy = mass[used] > 0
    weight = mass[used][heavy]
    labels = clustering.kmeans(points[heavy], weight, n_clusters, seed)
    group = np.eye(n_clusters)[labels].T * weight
    centres = group @ points[heavy] / group.sum(axis=1, keepdims=True)
    nearest = distances_to(points, centres).argmin(axis=1)
    nearest[heavy] = labels
    member = np.zeros((len(counts), n_clusters))
    member[used, nearest] = 1.0
    return centres, member


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


def _patients_by_class(
    patterns: Integers, clusters: Integers, counts: NDArray[Any], offsets: NDArray[np.intp]
) -> Floats:
    """Patients by class of each model and cluster, (ΣK, n_clusters)."""
    n_clusters = int(clusters.max()) + 1
    tables = []
    for column, size in zip(patterns.T, np.diff(offsets), strict=True):
        pair = column.astype(np.int64) * n_clusters + clusters
        table = np.bincount(pair, weights=counts, minlength=size * n_clusters)
        tables.append(table.reshape(size, n_clusters))
    return np.concatenate(tables)


def _why_no_weight(names: list[Any], cosines: Floats) -> str:
    """Why no model has any weight."""
    informative = [name for name, used in zip(names, np.diag(cosines) > 0, strict=True) if used]
    if informative:  # only reliabilities of 0 can take their weight away
        return (
            f"the models that distinguish patients, {some(informative)}, all have the reliability "
            "0, so there is nothing to cluster; give one of them a reliability above 0."
        )
    return (
        "no model distinguishes any patients (each puts all of them in one class, or its classes "
        "have equal parameters), so there is nothing to cluster."
    )


def positions(patterns: Integers, offsets: NDArray[np.intp], axes: Floats) -> Floats:
    """z·axes for each pattern, (P, r), in blocks of patterns."""
    points = np.empty((len(patterns), axes.shape[1]))
    step = max(1, (1 << 21) // int(offsets[-1]))
    for begin in range(0, len(patterns), step):
        part = patterns[begin : begin + step]
        points[begin : begin + step] = weighing.one_hot(part, offsets) @ axes
    return points


def distances_to(points: Floats, centres: Floats) -> Floats:
    """Euclidean distances (P, K); cluster by cluster, so that no third axis is formed."""
    columns = [np.linalg.norm(points - centre, axis=1) for centre in centres]
    return np.stack(columns, axis=1)


def _by_size(labels: Integers, counts: NDArray[Any]) -> NDArray[np.int64]:
    """Clusters renumbered by decreasing number of patients, then by first pattern."""
    size = np.bincount(labels, weights=counts)
    first = np.unique(labels, return_index=True)[1]
    rank = np.empty(len(size), dtype=np.int64)
    rank[np.lexsort([first, -size])] = np.arange(len(size))
    return rank[labels]
