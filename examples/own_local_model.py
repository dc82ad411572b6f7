"""Your own clustering model in an ensemble of three sites, one of them small.

`font` needs only `predict(data)`, which returns the class of each patient, and
`class_parameters_`, with one row per class.
"""

from __future__ import annotations

import numpy as np

import font


class MedianClusters:
    """K-medians: like K-means, but centres are medians, so outliers have little influence."""

    def __init__(self, n_classes, seed=0):
        self.n_classes = n_classes
        self.seed = seed

    def fit(self, data):
        rng = np.random.default_rng(self.seed)
        centres = [data[rng.integers(len(data))]]
        while len(centres) < self.n_classes:  # the next centre is far from the previous ones
            nearest = np.min([np.abs(data - centre).sum(axis=1) for centre in centres], axis=0)
            centres.append(data[np.argsort(nearest)[-len(data) // 50]])
        self.class_parameters_ = np.array(centres)
        for _ in range(30):
            labels = self.predict(data)
            self.class_parameters_ = np.array(
                [np.median(data[labels == k], axis=0) for k in range(self.n_classes)]
            )
        return self

    def predict(self, data):
        return np.abs(data[:, None] - self.class_parameters_).sum(axis=2).argmin(axis=1)


rng = np.random.default_rng(1)
means = np.array([[0.0, 0.0], [3.5, 0.0], [0.0, 3.5]])
size = {"north": 900, "south": 700, "west": 40}
truth = {site: rng.choice(3, p=[0.5, 0.3, 0.2], size=n) for site, n in size.items()}
data = {site: means[groups] + rng.normal(size=(len(groups), 2)) for site, groups in truth.items()}

models = {site: MedianClusters(3, seed=1).fit(values) for site, values in data.items()}
labels = {site: font.label(models, values) for site, values in data.items()}
patterns = font.LabelPatterns.from_labels(labels)  # files hold rounded cross-tables instead
ensemble = font.Ensemble(n_clusters=3, seed=1).fit(models, patterns)

print(ensemble.summary())
for site, table in labels.items():
    score, alone = (
        font.compare_clusterings(truth[site], clusters)["adjusted_rand_index"]
        for clusters in (ensemble.predict(table), table[site])
    )
    print(f"{site}: adjusted Rand index {score:.3f}, with its own model {alone:.3f}")
