"""The course of a laboratory value around the first prescription."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from mmlca.sequences.checks import listed
from mmlca.study.release import count_note, shown_indices
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid
from mmlca.study.results.site import ALL_SITES, stacked
from mmlca.study.sections.section import WHOSE, Section
from mmlca.study.words import group_word, sentences

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """One figure per membership."""
    from mmlca.figures.curves import plot_trend

    for view, trend in findings.trends.items():
        name = study.outputs.lab_label or trend.label
        pooled = trend.pooled if trend.pooled is None else shown_indices(study, "lab", trend.pooled)
        trend = replace(trend, curves=shown_indices(study, "lab", trend.curves), pooled=pooled)
        table = trend.curves
        if pooled is not None and len(pooled):
            table = pd.concat([table, pooled.assign(site=ALL_SITES)], ignore_index=True)
        note = count_note(study) if trend.rounded else ""
        yield Item(
            "lab" if view is None else f"lab_{view}",
            f"{name} around the first prescription",
            sentences(trend.caption(), WHOSE[view]),
            table,
            Grid(
                ("site", "group"),
                "years",
                "estimate",
                (),
                lambda row: f"band {row['low']:.3g} to {row['high']:.3g}",
                "level",
                step=0.5,
                text="Columns: years since the first prescription, every half year.",
            ),
            lambda trend=trend, name=name: plot_trend(trend, label=name),  # type: ignore[misc]
            f"Curves of {name} by {group_word(study)} from one year before to at most three years "
            "after the first prescription.",
            view,
            note=note,
        )


def methods(study: Study, findings: Findings) -> list[str]:
    """How the curves were estimated."""
    if not findings.trends:
        return []
    where = " at each site" if len(study.sites) > 1 else ""
    return [
        f"The course of the laboratory value was estimated{where} by a linear mixed model of its "
        "logarithm, with a natural cubic spline of time for each group and a random intercept for "
        "each patient, by restricted maximum likelihood. Curves are geometric means with "
        f"{study.outputs.lab_bands} 95 % bands from the sandwich estimator with patients as "
        "clusters, and end where few patients of the group have earlier or later values. "
        + (
            "Those of all sites are weighted at each time by the inverse of their variances. "
            if len(study.sites) > 1
            else ""
        )
        + "Values given as a limit (such as <2) were left out."
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """What values before the first prescription show, and which are not used."""
    about = stacked(findings.results, "about")
    unused = about.loc[about["unused_labs"], "site"].tolist()
    notes = []
    if unused:
        notes.append(
            f"The labs of {listed(unused)} are not used: sequences from a file have no dates; give "
            "records instead."
        )
    if not findings.trends:
        return notes
    return [
        *notes,
        "Laboratory values before the first prescription are grouped by later treatment, so "
        "differences between groups at that time may be causes of the treatment.",
    ]


SECTION = Section("labs", "Laboratory values", items, methods, cautions)
