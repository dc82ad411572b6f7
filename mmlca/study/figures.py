"""The figures of a study: what is drawn, its table, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca import compare_plots, courses, describe, flows, plots
from mmlca.study.words import group_name, group_word, window_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ehr_prep.labs import Trend
    from mmlca.compare import SiteDifferences
    from mmlca.sequences import Sequences
    from mmlca.study.analysis import Analysis
    from mmlca.study.config import Study


@dataclass(frozen=True)
class Drawing:
    """One figure and its table.

    Parameters
    ----------
    name : str
        Of the files, without ending.
    section : str
        Of the report.
    title, caption, alt : str
    view : str or None
        "ensemble" or "local" where the report can switch between the two.
    draw : function that draws, and returns a Figure or an Axes
    table : DataFrame behind it
    """

    name: str
    section: str
    title: str
    caption: str
    alt: str
    view: str | None
    draw: Callable[[], Any]
    table: pd.DataFrame


def to_png(draw: Callable[[], Any], dpi: int) -> bytes:
    """The picture. The backend and the open figures of a caller stay as they are."""
    import matplotlib.pyplot as plt

    with _off_screen():
        made = draw()
        figure: Figure = made if hasattr(made, "savefig") else made.figure
        buffer = BytesIO()
        figure.savefig(buffer, dpi=dpi, format="png", metadata={"Software": None})
        plt.close(figure)
    return buffer.getvalue()


@contextmanager
def _off_screen() -> Iterator[None]:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    with mpl.rc_context():
        before = mpl.get_backend()
        plt.switch_backend("agg")
        try:
            yield
        finally:
            plt.switch_backend(before)


def data_figures(
    study: Study, data: Mapping[str, Sequences], choice: pd.DataFrame | None
) -> list[Drawing]:
    """Flow of patients at each site, and the numbers of classes compared."""
    from ehr_prep.plots import plot_flow

    found = [
        Drawing(
            f"flow_{site}",
            "patients",
            f"Flow of patients at {site}",
            f"Patients and records from the files to the sequences at {site}, with what was left "
            "out and why.",
            f"Flow chart with the numbers of patients and records kept and left out at {site}.",
            None,
            lambda part=part: plot_flow(part),  # type: ignore[misc]
            part.flow,
        )
        for site, part in data.items()
        if hasattr(part, "flow") and len(part.flow)
    ]
    if choice is not None and choice["classes"].nunique() > 1:
        criterion = study.classes.criterion
        found.append(
            Drawing(
                "selection",
                "classes",
                f"{criterion.upper()} by number of classes",
                f"{criterion.upper()} of models with different numbers of classes "
                f"at each {'pseudo-site' if len(data) > 1 else 'site'}; smaller is better, and "
                "filled marks are the choice.",
                f"Line plot of {criterion.upper()} against the number of classes.",
                None,
                lambda: plots.plot_selection(choice, criterion),
                choice,
            )
        )
    return found


def ensemble_figures(found: Analysis) -> list[Drawing]:
    """Weights and agreement of the models."""
    from font.plots import plot_agreement, plot_weights, weight_table

    ensemble = found.ensemble
    if ensemble is None:
        return []
    return [
        Drawing(
            "weights",
            "ensemble",
            "Weights of the models",
            "Weights as a share of the largest: those of the study (dots) and centred ones "
            "(rings), which a model earns only by agreeing more than chance would.",
            "Dot plot of the weight of each model.",
            None,
            lambda: plot_weights(ensemble),
            weight_table(ensemble).reset_index(names="model"),
        ),
        Drawing(
            "agreement",
            "ensemble",
            "Agreement between the models",
            "Cosine between the models' distances of patients: 1 where two models say the same.",
            "Heat map of the agreement between each pair of models.",
            None,
            lambda: plot_agreement(ensemble),
            ensemble.agreement_.reset_index(names="model"),
        ),
        Drawing(
            "agreement_centred",
            "ensemble",
            "Centred agreement between the models",
            "The same with double-centred distances: near 0 where two models have nothing in "
            "common, while the uncentred agreement is never far from 1.",
            "Heat map of the centred agreement between each pair of models.",
            None,
            lambda: plot_agreement(ensemble, centred=True),
            ensemble.centred_agreement_.reset_index(names="model"),
        ),
    ]


def course_figures(study: Study, found: Analysis) -> list[Drawing]:
    """The courses by site and cluster, for the ensemble and for each site's own model."""
    drawings = []
    for view, clusters in views(found):
        named = {site: named_groups(study, part) for site, part in clusters.items()}
        drawings += _courses(study, found.sequences, named, view)
    return drawings


def views(found: Analysis) -> list[tuple[str | None, dict[str, pd.Series]]]:
    """The memberships that the report shows, by name; one without a name for a single site."""
    if found.ensemble is None:
        return [(None, found.clusters)]
    return [("ensemble", found.clusters), ("local", found.local)]


def named_groups(study: Study, clusters: pd.Series) -> pd.Series:
    """ "cluster 1" and so on, in the order of the numbers."""
    # a class that matches no cluster has a name instead of a number
    order = sorted(clusters.unique(), key=lambda c: (isinstance(c, str), c))
    names = [group_name(study, c) for c in order]
    return clusters.map(lambda c: group_name(study, c)).astype(
        pd.CategoricalDtype(names, ordered=True)
    )


_WHOSE = {
    None: "Classes of the site's model.",
    "ensemble": "Clusters of the ensemble.",
    "local": "Each site's own model, its classes under the names of the clusters they match.",
}


def _courses(
    study: Study, data: Mapping[str, Sequences], named: Mapping[str, Any], view: str | None
) -> list[Drawing]:
    low, top = study.privacy.min_count, study.outputs.top
    window, ending = window_name(study), "" if view is None else f"_{view}"
    at_sites, group = f"at {' and '.join(data)}", group_word(study)
    hidden = f" Fewer than {low} patients are not shown." if low > 1 else ""
    whose = _WHOSE[view]
    options: dict[str, Any] = {"min_count": low, "xlabel": window.capitalize()}

    def drawing(name: str, title: str, caption: str, alt: str, draw: Any, table: Any) -> Drawing:
        return Drawing(
            name + ending,
            "clusters",
            title,
            f"{caption} {whose}{hidden}",
            f"{alt} {at_sites}.",
            view,
            draw,
            table,
        )

    return [
        drawing(
            "state_distribution",
            f"Treatment by {window}",
            f"Share of each drug class in each {window} among the patients still followed "
            f"(their number is below the axis), by {group} and site.",
            f"Stacked bars of the drug classes by {window}, one panel for each {group}",
            lambda: plots.plot_state_distribution(data, named, **options),
            suppress(describe.state_distribution(data, named), low),
        ),
        drawing(
            "frequencies",
            f"The {top} most frequent courses",
            f"Each bar is a course, as high as it is frequent; at most {top} a panel.",
            f"Coloured bars of the most frequent treatment courses, one panel for each {group}",
            lambda: courses.plot_frequencies(data, named, top=top, **options),
            describe.sequence_frequencies(data, named, top, min_count=low),
        ),
        drawing(
            "lines",
            "Treatment lines",
            "From the first drug class to the next ones; a block is as high as the share of "
            "patients who had it as that line.",
            f"Flow diagram from the first treatment line to the following ones, by {group}",
            lambda: flows.plot_lines(data, named, min_count=low),
            suppress(describe.treatment_lines(data, named), low, "patients"),
        ),
        drawing(
            "transitions",
            "Transition rates",
            f"Share of patients in the drug class of the row who are in that of the column one "
            f"{window} later.",
            f"Heat maps of the transition rates between drug classes, one for each {group}",
            lambda: flows.plot_transitions(data, named, min_count=low),
            suppress(_transition_table(data, named), low),
        ),
    ]


def _transition_table(data: Mapping[str, Sequences], named: Mapping[str, Any]) -> pd.DataFrame:
    """Transitions one below the other: count, n of the row, and their ratio."""
    wide = describe.transition_rates(data, named, counts=True)
    keys = ["site", "group", "from"]
    states = [c for c in wide.columns if c not in keys]
    wide["n"] = wide[states].sum(axis=1)
    table = wide.melt([*keys, "n"], states, "to", "count").sort_values(keys, kind="stable")
    table["rate"] = (table["count"] / table["n"]).where(table["n"] > 0)
    return table[[*keys, "to", "count", "n", "rate"]].reset_index(drop=True)


def difference_figures(study: Study, found: SiteDifferences) -> list[Drawing]:
    """Differences between sites, a figure a pair."""
    pairs = list(dict.fromkeys(found.norms["sites"]))
    found = replace(found, differences=suppress_differences(found.differences, study))
    return [
        Drawing(
            "site_differences" if len(pairs) == 1 else f"site_differences_{number}",
            "sites",
            f"Differences between the sites, {pair}",
            f"Differences of the transition probabilities over one {window_name(study)} and of "
            "the first drug class, by cluster, for the ensemble and for the sites' own models. "
            f"Hatched: fewer than {found.min_support:g} steps at a site; grey: never visited, or "
            "too few to show.",
            f"Heat maps of the differences {pair} in transition probabilities by cluster.",
            None,
            lambda pair=pair: compare_plots.plot_site_differences(found, sites=pair),  # type: ignore[misc]
            found.differences[found.differences["sites"] == pair],
        )
        for number, pair in enumerate(pairs, start=1)
    ]


def lab_figures(study: Study, trends: Mapping[str | None, Trend]) -> list[Drawing]:
    """The lab's course by cluster, a figure a membership."""
    from ehr_prep.plots import plot_trend

    label = study.outputs.lab_label
    return [
        Drawing(
            "lab" if view is None else f"lab_{view}",
            "labs",
            f"{label} around the first prescription",
            "Mean course by cluster from a linear mixed model of its logarithm (natural cubic "
            "spline by cluster, random intercept by patient), with pointwise 95 % bands. "
            f"{_WHOSE[view]}",
            f"Curves of {label} by cluster from one year before to three years after the first "
            "prescription.",
            view,
            lambda found=found: plot_trend(found, label=label),  # type: ignore[misc]
            found.curves,
        )
        for view, found in trends.items()
    ]


# --- small counts ---------------------------------------------------------------------------


def suppress(table: pd.DataFrame, low: int, by: str = "count") -> pd.DataFrame:
    """Blank numbers that rest on fewer than `low` patients, but for 0."""
    table = table.copy()
    numbers = [c for c in ("count", "patients", "share", "rate") if c in table]
    small = (table[by] > 0) & (table[by] < low)
    if "n" in table:
        small |= (table["n"] > 0) & (table["n"] < low)
        numbers.append("n")
    table[numbers] = table[numbers].astype(float).mask(small, np.nan)
    return table


def hide_small(table: pd.DataFrame, low: int) -> pd.DataFrame:
    """Blank all that is said about groups of fewer than `low` patients."""
    few = table["n"] < low
    kept = ("site", "cluster", "description")
    table = table.assign(**{c: table[c].mask(few) for c in table if c not in kept})
    if "description" in table:
        table["description"] = table["description"].mask(few, f"fewer than {low} patients")
    return table


def suppress_differences(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Blank differences of rows that fewer steps support than patients may show."""
    few = table[["n_first", "n_second"]].lt(study.privacy.min_count).any(axis=1)
    numbers = ["difference", "n_first", "n_second"]
    table = table.copy()
    table[numbers] = table[numbers].mask(few, np.nan)
    return table
