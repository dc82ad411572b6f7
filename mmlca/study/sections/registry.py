"""The items of the report: each table and figure with its data, its layout and its caption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from mmlca.sequences.type import Sequences
from mmlca.study.analysis import Analysis, Findings
from mmlca.study.groups import with_cluster_names
from mmlca.study.numbers import numbers_table
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.checklist import checklist
from mmlca.study.sections.courses import course_items, difference_items, lab_items
from mmlca.study.sections.fit import (
    covariate_items,
    fit_items,
    outcome_items,
    survival_items,
)
from mmlca.study.sections.patients import data_items, shown_fits, shown_indices
from mmlca.study.sections.refinement import refined_items
from mmlca.study.words import group_name, group_word, groups_word, period, window_name, windows_name
from mmlca.tables.clusters import describe_clusters, shown_sizes
from mmlca.tables.course_tables import (
    Courses,
    course_keys,
    courses_by_group,
    guarded_clusters,
    rounded_clusters,
)
from mmlca.tables.suppress import printable

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.settings import Study


def all_items(study: Study, findings: Findings) -> list[Item]:
    """Every table and figure of the report, in the order of the page within each section."""
    items = [
        *data_items(study, findings),
        *_model_items(study, findings),
        *_cluster_items(study, findings),
        *fit_items(study, findings),
        *course_items(study, findings),
        *covariate_items(study, findings),
        *outcome_items(study, findings),
        *survival_items(study, findings),
        *difference_items(study, findings),
        *refined_items(study, findings),
        *lab_items(study, findings),
        Item(
            "headline",
            "numbers",
            "The main numbers",
            "Those of differences between sites have their intervals in the section on them.",
            with_cluster_names(
                study, findings.analysis, numbers_table(findings.numbers), ("name",)
            ),
            Plain(columns=("name", "value"), unit="unit"),
        ),
    ]
    items.append(
        Item(
            "checklist",
            "checklist",
            "What reporting guidelines ask, and where this report answers",
            "Questions of GRoLTS, the guidelines for latent trajectory studies, and of RECORD-PE, "
            "those for studies of drugs in routinely collected data; in words of our own.",
            checklist(study, findings, [item.name for item in items]),
            Plain(n_keys=2, sortable=False),
        )
    )
    return [replace(item, table=shown_indices(study, item.name, item.table)) for item in items]


# --- models ---------------------------------------------------------------------------------


def _model_items(study: Study, findings: Findings) -> Iterator[Item]:
    """The fits of the models, their weights and their agreement."""
    from font.plots import agreement_table, plot_agreement, plot_weights, weight_table

    analysis, ensemble = findings.analysis, findings.analysis.ensemble
    yield Item(
        "models",
        "models",
        "Models",
        "Log-likelihood, BIC and entropy R² of each model, the share of its smallest class, "
        "how many of the independent searches reached the maximum (each from starts of its own, "
        "without knowing what the others reached; what they reach together does not count), and "
        "whether the best one converged.",
        shown_fits(
            _fit_table({**analysis.models, **analysis.own}),
            analysis.n_patients(),
            study.privacy.min_count,
            rounding_of(study, analysis.clusters),
        ),
        Plain(shares=("smallest",)),
    )
    if ensemble is None or findings.influence is None:
        return
    yield Item(
        "influence",
        "ensemble",
        "Influence of each site",
        "Patients who would change cluster if a site had not taken part, neither its models nor "
        "its patients: the ensemble is then made of the resamples of the other sites alone, and "
        "every patient is placed again.",
        findings.influence.reset_index(),
        Plain(shares=("share",)),
    )
    yield Item(
        "weights",
        "ensemble",
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
        "ensemble",
        "Agreement between the models",
        "Cosine between the distances that two models put between patients: 1 where both see "
        "the same distances. Below the diagonal (in the table: centred) the distances are "
        "double-centred: near 0 where two models have nothing in common, while those above are "
        "never far from 1. Models of resamples of one site share patients, so that they agree "
        "with each other for that reason too.",
        agreement_table(ensemble),
        draw=lambda: plot_agreement(ensemble),
        alt="Heat map of the agreement between each pair of models.",
    )


def _fit_table(models: Mapping[str, MixtureMarkov]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "classes": len(model.weights_),
                "parameters": model.n_parameters_,
                "loglik": model.loglik_,
                "bic": model.bic(),
                "entropy": model.entropy(),
                "smallest": float(model.params_.weights.min()),
                "replicated": model.n_replicated_,
                "searches": model.n_searches_,
                "converged": model.converged_,
            }
            for name, model in models.items()
        ]
    )


# --- clusters -------------------------------------------------------------------------------


def shown_clusters(
    study: Study,
    analysis: Analysis,
    described: pd.DataFrame,
    by_site: Courses | None = None,
) -> pd.DataFrame:
    """`describe_clusters` as the release shows it; guarded numbers are not for tables yet.

    `by_site` are the tables of the clusters' courses if `described` has a row for each site.
    """
    min_count, data = study.privacy.min_count, analysis.sequences
    words = period(study, data), window_name(study)
    names = {c: group_name(study, c, analysis.names) for c in described["cluster"]}
    courses = by_site
    if courses is None:
        whole = Sequences.concat(data) if len(data) > 1 else next(iter(data.values()))
        clusters = pd.concat(list(analysis.clusters.values()))
        groups = {"": pd.Series(clusters.map(names).to_numpy(), pd.Index(whole.ids))}
        named = {site: part.map(names) for site, part in analysis.clusters.items()}
        rounding = rounding_of(study, named)
        keys = None if rounding is None else course_keys(data, named, rounding)
        courses = courses_by_group({"": whole}, groups, min_count, rounding, keys)
    if rounding := rounding_of(study, analysis.clusters):
        return rounded_clusters(described, courses, names, rounding, *words)
    sizes = shown_sizes(analysis.clusters, min_count)
    return guarded_clusters(described, courses, names, sizes, min_count, *words)


def _cluster_items(study: Study, findings: Findings) -> Iterator[Item]:
    """The clusters in numbers, and who their patients are."""
    analysis, groups = findings.analysis, groups_word(study)
    shown: tuple[str, ...] = ("cluster", "name", "n", "share", "path", "path_share")
    shown += ("second_path", "second_path_share", "end", "end_share", "switches", "followed")
    shares: tuple[str, ...] = ("share", "first_share", "still", "switch_share", "path_share")
    shares += ("second_path_share", "end_share")
    labels, several = {"cluster": group_word(study)}, len(analysis.sequences) > 1
    digits = {"switches": 2, "followed": 0}
    layout = Plain(shares=shares, n_keys=2, digits=digits, labels=labels)
    yield Item(
        "clusters_in_words",
        "clusters",
        f"The {groups} in words",
        f"Names follow from the table “The {groups} in numbers”: at least three quarters of "
        "“persisters” never leave their drug class while they are observed, at least half of “A → "
        "B” take exactly this path, and all others are mixed, with their two most common paths (or "
        "one, if two are long). Other names come from the study file (outputs.names).",
        findings.described[["cluster", "name", "description"]],
        Plain(n_keys=2, sortable=False, labels=labels),
    )
    yield Item(
        "clusters",
        "clusters",
        f"The {groups} in numbers",
        f"{'All sites together: patients' if several else 'Patients'}; the two most common paths "
        "and the most common last drug class, with their shares; the mean number of switches per "
        f"patient; and the median number of {windows_name(study)} up to the last observed one. The "
        "file has more.",
        printable(findings.described),
        replace(layout, columns=shown),
    )
    if several:
        by_site = describe_clusters(analysis.sequences, analysis.clusters, by_site=True)
        by_site.insert(2, "name", by_site["cluster"].map(analysis.names))
        by_site = by_site.drop(columns="description")
        yield Item(
            "clusters_by_site",
            "clusters",
            f"The {groups} at each site",
            "The same at each site. The names are those of all sites together; at one of them the "
            "shares may be others.",
            printable(
                shown_clusters(study, analysis, by_site, next(iter(findings.courses.values())))
            ),
            replace(layout, columns=("site", *shown), n_keys=3),
        )
    frame = findings.table_one.to_frame()
    below = _sites_below_each_other(frame) if frame.shape[1] > _MOST_COLUMNS else None
    frame.columns = pd.Index([", ".join(c) if isinstance(c, tuple) else c for c in frame])
    yield Item(
        "table_one",
        "clusters",
        f"Patients by {group_word(study)}",
        f"Number (%) or mean (SD). {count_note(study)}".rstrip(),
        frame.reset_index(names=["variable", "level"]),
        Plain(  # blocks of a variable's levels
            n_keys=2 if below is None else 3,
            sortable=False,
            empty={"level": ""},
            figures=tuple(frame.columns if below is None else below.columns[3:]),
            shown=below,
        ),
    )


_MOST_COLUMNS = 10  # of Table 1 that fit beside each other on a page


def _sites_below_each_other(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Table 1 with a column for each cluster and the sites as blocks of rows; None for one site."""
    if frame.columns.nlevels == 1:
        return None
    sites = list(dict.fromkeys(frame.columns.get_level_values(0)))
    parts = pd.concat({site: frame[site] for site in sites}, names=["site", "variable", "level"])
    return parts.reset_index()
