"""The ensemble: how models were combined, and how much each site and model contributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmlca.study.headline import Kind, pick
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.certainty import DOUBTFUL
from mmlca.study.sections.section import Section
from mmlca.study.words import share_of_patients

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_NO_INFLUENCE = (
    "How many patients would change cluster without a site is not known: that needs the counts of "
    "patients with the same labels by all models, which the sites do not release."
)
_METHODS = {
    "kmeans": "K-means on their rows",
    "kmeans-distance": "K-means with them as squared distances",
    "average": "average linkage",
    "complete": "complete linkage",
    "ward": "Ward's linkage",
    "spectral": "K-means on their principal coordinates",
    "latent": "as readings of one latent cluster, with errors independent between models",
    "kmeans-classes": "K-means on the mean rows of the models' classes",
}


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """What each site adds, the models' weights, and how far the models agree."""
    from font.plots import agreement_table, plot_agreement, plot_weights, weight_table

    ensemble, influence = findings.combined.ensemble, findings.combined.influence
    if ensemble is None:
        return
    if influence is not None:
        yield Item(
            "influence",
            "Influence of each site",
            "Patients who would change cluster if a site had not taken part, with neither its "
            "models nor its patients: the ensemble is then made of the resamples of the other "
            "sites alone, and every patient is assigned again.",
            influence.reset_index(),
            Plain(shares=("share",)),
        )
    yield Item(
        "weights",
        "Weights of the models",
        "Weights as a share of the largest: those of the study (dots) and centred ones (rings), "
        "which a model earns only by agreeing with the others more than chance would.",
        weight_table(ensemble).reset_index(names="model"),
        Plain(shares=("weight share", "centred share")),
        lambda: plot_weights(ensemble),
        "Dot plot of the weight of each model.",
    )
    yield Item(
        "agreement",
        "Agreement between the models",
        "Cosine of the angle between the distances that two models put between patients: 1 if they "
        "are the same. Below the diagonal (in the table: centred), distances are double-centred: "
        "these values are near 0 where two models have nothing in common, while those above the "
        "diagonal are never far from 1. Models of resamples of one site share patients, which is "
        "another reason for them to agree.",
        agreement_table(ensemble),
        draw=lambda: plot_agreement(ensemble),
        alt="Heat map of the agreement between each pair of models.",
    )


def methods(study: Study, findings: Findings) -> list[str]:
    """How the models were combined."""
    ensemble, rules = findings.combined.ensemble, study.ensemble
    if ensemble is None:
        return []
    distance = rules.distance.replace("euclid", "Euclid")
    counts = "cross-tables of labels" if findings.combined.by_files else "counts of label patterns"
    return [
        f"The {len(findings.combined.models)} models were combined by federated one-shot ensemble "
        "clustering: every patient was labelled by every model, models were weighted "
        f"({rules.weights} weights) by the agreement of their {distance} class distances, and the "
        f"weighted distances were clustered ({_METHODS[rules.method]}) into "
        f"{ensemble.n_clusters_} clusters, using only {counts}."
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """What weights and vote shares show, and what they do not."""
    ensemble = findings.combined.ensemble
    if ensemble is None:
        return []
    (doubtful,) = pick(findings.numbers, Kind.DOUBTFUL)
    by_files = findings.combined.by_files
    where = "each hospital's clusters.csv shows" if by_files else "the folder patients shows"
    return [
        *ensemble.cautions(about_number=findings.combined.suggested is None),
        f"The vote share is below {DOUBTFUL} for {share_of_patients(study, doubtful.value)}; "
        f"{where} for whom. A vote share is the share of the models' weight that votes for the "
        "cluster, not the probability that the cluster is right.",
        *findings.combined.absent,
        *([] if findings.combined.influence is not None else [_NO_INFLUENCE]),
    ]


SECTION = Section("ensemble", "Ensemble", items, methods, cautions)
