"""The items of the report: each table and figure with its data, its layout and its caption."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pandas as pd

from font.n_clusters import RECORD
from mmlca.figures.models import plot_selection
from mmlca.sequences.type import Sequences
from mmlca.study.analyse import Analysis, Findings
from mmlca.study.checklist import checklist
from mmlca.study.courses import course_items, difference_items, lab_items
from mmlca.study.groups import named_groups, views
from mmlca.study.inference_items import (
    covariate_items,
    fit_items,
    outcome_items,
    survival_items,
)
from mmlca.study.numbers import numbers_table
from mmlca.study.refined import refined_items
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.words import group_name, group_word, groups_word, period, window_name, windows_name
from mmlca.tables.clusters import describe_clusters, hidden_sizes
from mmlca.tables.rounded import Courses, data_draws, rounded_clusters, rounded_courses
from mmlca.tables.suppress import few_digits, hidden_note, hide, is_small

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.config import Study


def to_pictures(
    draw: Callable[[], Any], dpi: int, formats: Collection[str] = ("png",)
) -> dict[str, bytes]:
    """The picture in each format; settings and open figures of a caller stay as they are."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    look: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "mmlca"}
    look |= {"font.size": 7, "axes.titlesize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6}
    about = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    pictures = {}
    with mpl.rc_context(look), plt.ioff():  # a state may be called "$x^$"
        drawn = draw()
        figure: Figure = drawn if hasattr(drawn, "savefig") else drawn.figure
        for name in formats:
            buffer = BytesIO()
            figure.savefig(buffer, dpi=dpi, format=name, metadata=about[name])
            pictures[name] = buffer.getvalue()
        plt.close(figure)
    return pictures


def all_items(study: Study, findings: Findings) -> list[Item]:
    """Every table and figure of the report, in the order of the page within each section."""
    items = [
        *_data_items(study, findings),
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
            "All numbers of the summary",
            "Every number that the summary rests on; those of differences between sites have their "
            "intervals in the section on them.",
            numbers_table(findings.numbers),
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
    if not hidden_note(study.privacy.min_count):
        return items
    return [replace(item, table=round_indices(item.name, item.table)) for item in items]


_DECIMALS: dict[str, int] = {
    **dict.fromkeys(("loglik", "bic", "aic", "sabic", "icl"), 0),
    **dict.fromkeys(("entropy", "smallest", "jaccard", "distance"), 2),
    **dict.fromkeys(("norm", "debiased", "low", "high", "chance", "estimate", "difference"), 3),
}
_DIGITS = 3


def round_indices(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table whose indices have few digits: many digits of what rests on all patients tell counts.

    Whole numbers stay as they are; other numbers have three digits, and some columns fewer.

    >>> table = pd.DataFrame({"bic": [2232.53434203], "n": [260], "se": [0.123456]})
    >>> round_indices("models", table)
          bic    n     se
    0  2233.0  260  0.123
    """
    if name.startswith(("agreement", "weights", "suggested")):
        return table.round(3)
    table = table.round({column: n for column, n in _DECIMALS.items() if column in table})
    others = [c for c in table.select_dtypes("floating") if c not in _DECIMALS]
    return table.assign(**{c: few_digits(table[c].to_numpy(), _DIGITS) for c in others})


# --- data and models ------------------------------------------------------------------------


def _data_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Odd records and the flow of patients at each site; the numbers of classes compared."""
    from ehr_prep.flow import hide_flow
    from ehr_prep.plots import plot_flow
    from ehr_prep.unmapped import hide_unmapped

    min_count = study.privacy.min_count
    data, choice = findings.analysis.sequences, findings.choice
    built = {site: part for site, part in data.items() if part.account is not None}
    flows = {site: hide_flow(part.flow, min_count) for site, part in built.items()}
    for site, part in built.items():
        if len(part.issues):
            grouped = part.issues["issue"].isin(
                set(part.flow["reason"]) - set(flows[site]["reason"])
            )
            issues = hide(part.issues.drop(columns="examples"), ["n"], ["n"], min_count)
            yield Item(
                f"issues_{site}",
                "patients",
                f"Odd records at {site}",
                "Records that looked odd: what was odd, how many there were, and what was done "
                f"about them. The folder patients has examples. {hidden_note(min_count)}".rstrip(),
                issues.assign(n=issues["n"].mask(grouped)),
            )
    for site, part in built.items():
        unmapped = part.account.unmapped if part.account is not None else None
        if unmapped is not None and len(unmapped):
            yield Item(
                f"unmapped_{site}",
                "patients",
                f"Drugs at {site} that the map does not know",
                "Drug texts without a class, the most frequent first, with a known name that the "
                "text resembles. Texts of few patients are one row; the folder patients has them. "
                f"{hidden_note(min_count)}".rstrip(),
                hide_unmapped(unmapped, min_count),
            )
    for site, part in built.items():
        yield Item(
            f"flow_{site}",
            "patients",
            f"Flow of patients at {site}",
            f"Patients and records from the files to the sequences at {site}: how many were left "
            "out, and why.",
            flows[site],
            draw=lambda part=part: plot_flow(part, min_count=min_count),  # type: ignore[misc]
            alt=f"Flow chart of the patients and records kept and left out at {site}.",
        )
    if choice is not None and choice["classes"].nunique() > 1:
        name = study.classes.criterion.upper()
        resampled = (
            "and pseudo-site (a resample of it) "
            if len(data) > 1 and study.pseudo_sites.per_site
            else ""
        )
        yield Item(
            "selection",
            "classes",
            f"{name} by number of classes",
            f"{name} of models with different numbers of classes, for each site {resampled}"
            f"({study.model.n_init} random starts per fit). Smaller is better; filled marks show "
            "the choice.",
            shown_fits(choice, findings.analysis.n_patients(), min_count),
            Plain(shares=("smallest",)),
            lambda: plot_selection(choice, study.classes.criterion),
            f"Line plot of {name} against the number of classes.",
        )

    if findings.suggested is not None:
        yield Item(
            "suggested",
            "classes",
            "Clusters suggested by models with more classes",
            "Models with as many classes as there are clusters tell no more groups apart, so that "
            "their ensemble suggests that number partly because it must. Models with more classes "
            "leave it free: the number of clusters that the spectrum of their ensemble suggests, "
            "how sure that is, and the thresholds between which it is the same (as shares of the "
            f"largest eigenvalue). {RECORD[findings.suggested['sure'].iloc[-1]]}",
            findings.suggested,
        )


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


def shown_fits(table: pd.DataFrame, patients: Mapping[str, float], min_count: int) -> pd.DataFrame:
    """Fits, with few digits and without the share of a smallest class that holds few patients."""
    if not hidden_note(min_count):
        return table
    n = table["model" if "model" in table else "site"].map(patients)
    few = is_small((table["smallest"] * n).round(6), min_count)
    return round_indices("", table.assign(smallest=table["smallest"].mask(few)))


def _fit_table(models: Mapping[str, MixtureMarkov]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "classes": len(model.weights_),
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
    tables: Mapping[str | None, Courses],
    described: pd.DataFrame,
) -> pd.DataFrame:
    """`describe_clusters` for people: exact sizes, and courses from rounded counts."""
    min_count, data = study.privacy.min_count, analysis.sequences
    if not hidden_note(min_count):
        return described
    own = next(iter(tables.values()))  # those of the clusters
    draws = {site: data_draws(part) for site, part in data.items()}
    if "site" in described:
        courses = {site: Courses(*(t[t["site"] == site] for t in own)) for site in data}
    elif len(data) == 1:
        courses, draws = {"": own}, {"": next(iter(draws.values()))}
    else:
        groups = named_groups(analysis, analysis.clusters, views(analysis)[0][0])
        together = pd.concat([part.astype(str) for part in groups.values()])
        whole = Sequences.concat(data)
        together.index = pd.Index(whole.ids)
        courses = {"": rounded_courses({"": whole}, {"": together}, min_count)}
        draws = {"": data_draws(whole)}
    hidden = hidden_sizes(analysis.clusters, min_count)
    where = described["site"] if "site" in described else ["all"] * len(described)
    return rounded_clusters(
        described.assign(
            group=[group_name(study, c, analysis.names) for c in described["cluster"]]
        ),
        courses,
        [hidden.at[row] for row in zip(where, described["cluster"], strict=True)],
        min_count,
        draws,
        period(study, data),
        window_name(study),
    )


def _cluster_items(study: Study, findings: Findings) -> Iterator[Item]:
    """The clusters in numbers, and who their patients are."""
    analysis, groups = findings.analysis, groups_word(study)
    shown: tuple[str, ...] = ("cluster", "name", "n", "share", "first", "still", "switches")
    shown += ("until_switch", "path", "path_share", "end", "end_share")
    shares = ("share", "first_share", "still", "switch_share", "path_share", "end_share")
    labels, several = {"cluster": group_word(study)}, len(analysis.sequences) > 1
    digits = {"switches": 2, "until_switch": 1}
    layout = Plain(shares=shares, n_keys=2, digits=digits, labels=labels)
    yield Item(
        "clusters_in_words",
        "clusters",
        f"The {groups} in words",
        "Names are made from the courses, or come from the study file (outputs.names).",
        findings.described[["cluster", "name", "description"]],
        Plain(n_keys=2, sortable=False, labels=labels),
    )
    yield Item(
        "clusters",
        "clusters",
        f"The {groups} in numbers",
        f"{'All sites together: patients' if several else 'Patients'}; the most common first drug "
        "class, and of those "
        f"still observed in the last {window_name(study)} the share on it; the mean number of "
        f"switches per patient; the median number of {windows_name(study)} before the first "
        "switch, of those who switched; the most common path and last drug class, with their "
        "shares.",
        findings.described,
        replace(layout, columns=shown),
    )
    if several:
        by_site = describe_clusters(analysis.sequences, analysis.clusters, by_site=True)
        by_site = by_site.drop(columns="description")
        by_site.insert(2, "name", by_site["cluster"].map(analysis.names))
        yield Item(
            "clusters_by_site",
            "clusters",
            f"The {groups} at each site",
            "The same at each site.",
            shown_clusters(study, analysis, findings.courses, by_site),
            replace(layout, columns=("site", *shown)),
        )
    frame = findings.table_one.to_frame()
    frame.columns = pd.Index([", ".join(c) if isinstance(c, tuple) else c for c in frame])
    yield Item(
        "table_one",
        "clusters",
        f"Patients by {group_word(study)}",
        f"Number (%) or mean (SD). {hidden_note(study.privacy.min_count)}".rstrip(),
        frame.reset_index(names=["variable", "level"]),
        Plain(  # blocks of a variable's levels
            n_keys=2, sortable=False, empty={"level": ""}, figures=tuple(frame.columns)
        ),
    )
