"""The items of the report about courses: by cluster, between sites, and of laboratory values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.figures.colours import MISSING, PALE, state_colours
from mmlca.figures.courses import plot_frequencies, plot_index, plot_representatives
from mmlca.figures.distribution import plot_state_distribution
from mmlca.figures.lines import plot_lines
from mmlca.figures.sites import plot_site_differences
from mmlca.figures.transitions import plot_transitions
from mmlca.sequences.checks import listed
from mmlca.study.analysis import Analysis, Findings
from mmlca.study.groups import course_views, named_groups, views
from mmlca.study.numbers import published_norm
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.charts import legend, sankey, stacked_bars, sunburst
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Layout, Plain
from mmlca.study.sections.patients import shown_indices
from mmlca.study.words import dead_included, group_word, window_name, windows_name
from mmlca.tables.clusters import describe_clusters, name_clusters
from mmlca.tables.course_tables import Courses, courses_by_group, rounded_frequencies
from mmlca.tables.describe import sequence_frequencies
from mmlca.tables.lines import branch_names
from mmlca.tables.representatives import representative_sequences
from mmlca.tables.suppress import hides, is_small

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences
    from mmlca.study.settings import Study

SHARED_BY = 5  # courses of fewer patients are not drawn: which came first would be an accident
_WHOSE = {
    None: "Classes of the site's model.",
    "ensemble": "Clusters of the ensemble.",
    "local": "Each site's own model. A class is “like cluster 1” if at every site at least half of "
    "the patients who are in either are in both, and has the cluster's name if that is true of its "
    "own patients too; others have a name from their own courses if it is the same at all sites.",
    "refined": "Clusters of the refined model.",
}


def course_items(study: Study, findings: Findings) -> list[Item]:
    """The courses by site and cluster, for the ensemble and for each site's own model."""
    items: list[Item] = []
    analysis = findings.analysis
    for view, clusters in course_views(analysis):
        if _any_to_show(clusters, study.privacy.min_count):
            groups = named_groups(analysis, clusters, view)
            items += _courses(study, analysis.sequences, groups, view, findings.courses[view])
    return items


def _any_to_show(groups: Mapping[str, pd.Series], min_count: int) -> bool:
    """Whether a group has enough patients to be shown; figures leave smaller ones out."""
    return any(not is_small(part.value_counts(), min_count).all() for part in groups.values())


def class_courses(
    model: MixtureMarkov, data: Sequences, site: str, min_count: int
) -> tuple[pd.DataFrame, list[Callable[[], Any]]] | None:
    """The courses of the classes of one model, outside a study.

    Returns the table of transitions by class, and what draws the state distribution, the most
    frequent courses and the transitions; None if every class has fewer than `min_count` patients.
    """
    classes = model.posterior_.set_index("id")["class"]
    data = data.select(list(classes.index))  # without those who lacked covariates
    described = describe_clusters(data, classes)
    short = zip(described["cluster"], name_clusters(described, min_count), strict=True)
    names = {k: f"class {k}" if name is None else f"{k}: {name}" for k, name in short}
    order = pd.CategoricalDtype(list(names.values()), ordered=True)
    groups = {site: classes.map(names).astype(order)}
    part = {site: data}
    if not _any_to_show(groups, min_count):
        return None
    courses = courses_by_group(part, groups, min_count)
    frequencies = sequence_frequencies(part, groups, 30, min_count=max(SHARED_BY, min_count))
    frequencies = courses.with_sizes(frequencies)
    return courses.shown("transitions"), [
        lambda: plot_state_distribution(
            part, groups, table=courses.distribution, min_count=min_count
        ),
        lambda: plot_frequencies(part, groups, table=frequencies, min_count=min_count),
        lambda: plot_transitions(part, groups, table=courses.transitions, min_count=min_count),
    ]


_MOST_LINES = 5000


def draw_single_courses(study: Study, analysis: Analysis, site: str) -> Callable[[], Any]:
    """What draws the course of every patient of a site, or of 5,000 drawn at random.

    They show single patients, and are for the eyes of the hospital.
    """
    data, (view, clusters) = analysis.sequences[site], views(analysis)[0]
    groups = named_groups(analysis, clusters, view)[site]
    if len(data) > _MOST_LINES:
        rng = np.random.default_rng(study.seed)
        rows = np.sort(rng.choice(len(data), _MOST_LINES, replace=False))
        data, groups = data[rows], groups.iloc[rows]
    return partial(plot_index, data, groups, xlabel=window_name(study).capitalize())


_IN_FILE_ONLY = ("n_boot", "rows_left_out", "clusters")
_FOR_KNOWN_CLUSTERS = ["low", "high"]  # intervals that do not hold where clusters are estimated
_SHOWN_COURSES = ("site", "group", "rank", "sequence", "count", "share")


def _out_of(row: Mapping[str, Any]) -> str:
    """What a share or rate rests on, as far as that may be shown."""
    if np.isnan(row["count"]):
        return "numbers not shown"
    whole = "" if "rounded_size" in row else f" of {row['n']:,.0f}"
    return f"{row['count']:,.0f}{whole}"


def _courses(
    study: Study,
    data: Mapping[str, Sequences],
    groups: Mapping[str, Any],
    view: str | None,
    courses: Courses,
) -> Iterator[Item]:
    min_count = study.privacy.min_count
    window, group = window_name(study), group_word(study)
    options: dict[str, Any] = {"min_count": min_count, "xlabel": window.capitalize()}
    ending, at_sites = "" if view is None else f"_{view}", f"at {listed(list(data))}"

    def item(
        name: str,
        title: str,
        caption: str,
        alt: str,
        table: pd.DataFrame,
        layout: Layout,
        draw: Callable[[], Any],
        chart: Callable[[], str] | None = None,
        section: str = "clusters",
    ) -> Item:
        caption = f"{caption} {_WHOSE[view]} {count_note(study)}".rstrip()
        alt = f"{alt} {at_sites}."
        return Item(
            *(f"{name}{ending}", section, title, caption, table, layout, draw, alt, view),
            chart=chart,
        )

    shares = courses.shown("distribution")
    states = list(dict.fromkeys(state for part in data.values() for state in part.states))
    colours = state_colours(states)
    drawn_as = shares["share"].fillna(shares.get("at_least", 0.0))
    occur = set(shares.loc[drawn_as > 0, "state"])
    seen = {name: shade for name, shade in colours.items() if name in occur}
    yield item(
        "state_distribution",
        f"Treatment by {window}",
        f"Share of each drug class in each {window} among the patients observed in that {window}"
        f"{dead_included(data)} (below the axis: the {window}, and their number), by "
        f"{group}{' and site' * (len(data) > 1)}."
        + f" Grey: drug classes of fewer than {min_count} patients; where their number would "
        "follow from the rest, the share of the most common class is a lower bound."
        * (hides(min_count) and not courses.rounded),
        f"Stacked bars of the drug classes by {window}, one panel for each {group}",
        shares,
        Grid(
            ("site", "group", "state"),
            "time",
            "share",
            ("count", "n"),
            _out_of,
            text=f"Shares of patients in %; columns: {windows_name(study)}.",
        ),
        lambda: plot_state_distribution(data, groups, table=courses.distribution, **options),
        lambda: legend(seen) + stacked_bars(shares, colours, window),
        "courses",
    )
    if view != "refined":  # they would be nearly those of the ensemble
        yield from _whole_courses(study, data, groups, courses, item, options)
    paths = courses.shown("paths")
    rest = dict(zip(branch_names(states)[-2:], (PALE, MISSING), strict=True))
    drawn = set(paths["state"])
    branches = {name: shade for name, shade in (colours | rest).items() if name in drawn}
    together = (
        " “Others”: branches of few patients, put together with the smallest other one so that "
        "their number cannot be worked out."
        if list(rest)[1] in drawn
        else ""
    )
    yield item(
        "lines",
        "Treatment lines",
        "From the first drug class to the next ones; a block is as high as the share of patients "
        "who had it as that line. “No further”: the line before was the last during follow-up. "
        f"The rings show the same: the first line inside, what followed it outside.{together}",
        f"Flow diagram from the first treatment line to the following ones, by {group}",
        paths,
        Plain(shares=("share",), columns=("site", "group", "line", "path", "count", "share")),
        lambda: plot_lines(data, groups, table=courses.paths, min_count=min_count),
        lambda: legend(branches) + sankey(paths, branches) + sunburst(paths, branches),
    )
    yield item(
        "transitions",
        "Transition rates",
        f"Of all {windows_name(study)} in which a patient was on the drug class of the row and "
        f"observed in the next {window} too, the share followed by the class of the column: shares "
        f"of patient-{windows_name(study)}, since a patient counts once for each of them.",
        f"Heat maps of the transition rates between drug classes, one for each {group}",
        courses.shown("transitions"),
        Grid(
            ("site", "group", "from"),
            "to",
            "rate",
            ("count", "n"),
            _out_of,
            text=f"Shares of patient-{windows_name(study)} in %; columns: the state after.",
        ),
        lambda: plot_transitions(data, groups, table=courses.transitions, min_count=min_count),
    )


def _whole_courses(
    study: Study,
    data: Mapping[str, Sequences],
    groups: Mapping[str, Any],
    courses: Courses,
    item: Callable[..., Item],
    options: dict[str, Any],
) -> Iterator[Item]:
    """Courses that several patients share, and those that stand for all."""
    min_count, top = study.privacy.min_count, study.outputs.top
    group, least = group_word(study), max(SHARED_BY, min_count)
    rounding = rounding_of(study, groups)
    frequencies = courses.with_sizes(sequence_frequencies(data, groups, top, min_count=least))
    if rounding is not None:
        frequencies = rounded_frequencies(frequencies, rounding)
    drawn, nothing = _with_rows(data, groups, frequencies)
    yield item(
        "frequencies",
        f"The {top} most frequent courses",
        f"Each bar is one course, as high as it is frequent; at most {top} per panel, and none "
        f"that fewer than {least} patients share: the pale part stands for all others.{nothing}"
        + " The folder patients has pictures of single courses."
        * study.outputs.figures,
        f"Coloured bars of the most frequent treatment courses, one panel for each {group}",
        courses.without_counts(frequencies),
        Plain(shares=("share", "cumulative"), columns=(*_SHOWN_COURSES, "cumulative")),
        lambda: plot_frequencies(
            *drawn, top=top, shared_by=SHARED_BY, table=frequencies, **options
        ),
    )
    # a course that stands for all is no accident of sorting, so that one patient's will do
    shared_by = SHARED_BY if hides(min_count) else 1
    representatives = representative_sequences(
        data, groups, shared_by=shared_by, min_count=min_count
    )
    representatives = courses.with_sizes(representatives)
    if rounding is not None:
        representatives = rounded_frequencies(representatives, rounding)
    shown, none = _with_rows(data, groups, representatives)
    only = f" Only courses that at least {least} patients share are candidates.{none}"
    yield item(
        "representatives",
        "Representative courses",
        "At most five courses that stand for all: each patient counts for the course that differs "
        f"least from their own (in the share of {windows_name(study)} with another drug class)."
        + (only if shared_by > 1 else ""),
        f"Coloured bars of a few representative treatment courses, one panel for each {group}",
        courses.without_counts(representatives),
        Plain(shares=("share", "distance"), columns=(*_SHOWN_COURSES, "distance")),
        lambda: plot_representatives(*shown, shared_by=shared_by, table=representatives, **options),
    )


def _with_rows(
    data: Mapping[str, Sequences], groups: Mapping[str, pd.Series], table: pd.DataFrame
) -> tuple[tuple[dict[str, Sequences], dict[str, pd.Series]], str]:
    """The patients of groups that have rows in the table, and a sentence on the other groups.

    If no group has rows all are kept: the figure then says so in each panel.
    """
    names = list(dict.fromkeys(name for part in groups.values() for name in part.cat.categories))
    absent = [name for name in names if name not in set(table["group"])]
    if not absent or len(absent) == len(names):
        return (dict(data), dict(groups)), ""
    kept = {
        site: part[~part.isin(absent)].cat.remove_unused_categories()
        for site, part in groups.items()
    }
    kept = {site: part for site, part in kept.items() if len(part)}
    chosen = {site: data[site][data[site].ids.isin(kept[site].index)] for site in kept}
    return (chosen, kept), f" There are none in {listed(absent)}."


# --- sites and labs -------------------------------------------------------------------------


def _steps(row: Mapping[str, Any]) -> str:
    few = "" if row["supported"] else ", few"
    return f"from {row['n_first']:,.0f} and {row['n_second']:,.0f} steps{few}"


def difference_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Size of the differences between sites, and one figure per pair of sites."""
    found = findings.differences
    if found is None:
        return
    norms, earlier = found.norms.drop(columns=_FOR_KNOWN_CLUSTERS), ""
    if study.published is not None:
        earlier = f" Published: numbers of an earlier study ({study.published.source})."
        known = [published_norm(study, row) for row in norms.to_dict("records")]
        norms = norms.assign(published=np.array(known, dtype=float))
    yield Item(
        "site_differences_norms",
        "sites",
        "Size of the differences",
        "Frobenius norms of the differences, averaged over clusters. Debiased: without the part "
        f"that sampling adds, from {study.outputs.bootstrap:,} bootstrap samples. These numbers "
        "describe the groups as they were formed. They have neither interval nor p-value: patients "
        "are assigned with errors, and not with the same ones at each site, so that norms are "
        f"above 0 even where the sites share all courses.{earlier}",
        norms,
        Plain(n_keys=2, columns=tuple(name for name in norms if name not in _IN_FILE_ONLY)),
    )
    yield from _shared_items(findings)
    whose = "by cluster, for the ensemble and for the sites' own models"
    if findings.analysis.ensemble is None:
        whose = "of all patients"
    pairs = list(dict.fromkeys(found.norms["sites"]))
    min_count = study.privacy.min_count
    own = next(iter(findings.courses.values()))  # the only one if there is a single class

    names = findings.analysis.group_names

    def name_of(membership: str, cluster: Any) -> str:
        return names.get(membership, next(iter(names.values())))[cluster]

    shown = found.shown_with(
        {name: findings.courses.get(name, own) for name in found.differences["membership"]},
        name_of,
    )
    shown["cluster"] = [
        name_of(*row) for row in shown[["membership", "cluster"]].itertuples(index=False)
    ]
    for number, pair in enumerate(pairs, start=1):
        yield Item(
            "site_differences" if len(pairs) == 1 else f"site_differences_{number}",
            "sites",
            f"Differences between the sites, {pair}",
            f"Differences of the transition probabilities over one {window_name(study)} and of "
            f"the first drug class, {whose}. "
            f"Hatched: fewer than {found.min_support:g} steps at a site. Grey: never visited at "
            "a site, or too few to show. Norm: the size of all differences together, as in the "
            "table above.",
            shown[shown["sites"] == pair],
            Grid(
                ("membership", "sites", "cluster", "quantity", "from"),
                "to",
                "difference",
                ("n_first", "n_second"),
                _steps,
                "difference",
                text="Columns: the state after, or the first state.",
            ),
            lambda pair=pair: plot_site_differences(  # type: ignore[misc]
                found, sites=pair, min_count=min_count, table=shown
            ),
            f"Heat maps of the differences {pair} in transition probabilities by cluster.",
        )


def _shared_items(findings: Findings) -> Iterator[Item]:
    """The test of shared chains, and how far the sites' own chains are apart."""
    shared = findings.shared
    assert shared is not None
    several = len(shared.tests) > 1
    adjusted = " Adjusted: for the number of pairs of sites (Holm)." * several
    columns = ("sites", "statistic", "typical", "p_value", *["p_holm"] * several)
    yield Item(
        "shared_chains",
        "sites",
        "Do the sites share the courses of the clusters?",
        "Likelihood-ratio tests of chains that all sites share, with proportions of their own, "
        "against chains of each site's own; first states and steps together. Memberships are "
        "probabilities, so that nobody is assigned. Statistic: twice the difference of the "
        f"log-likelihoods; typical: its mean in {shared.n:,} data sets simulated from the shared "
        "chains, to which both were fitted; p: the share of these with a larger one. A small p "
        f"says that the sites differ, not that they differ much.{adjusted}",
        shared.tests,
        Plain(columns=columns),
    )
    if len(shared.norms):
        yield Item(
            "own_chains",
            "sites",
            "How far the sites' own chains are apart",
            "Norms as above, of the differences between the chains that each site's own mixture "
            "has, with memberships as probabilities. Debiased: without the part that sampling and "
            f"uncertain membership add, with its 95 % interval, from {shared.n:,} data sets "
            "simulated from each site's own mixture.",
            shared.norms,
            Plain(n_keys=1, columns=tuple(c for c in shared.norms if c != "rows_left_out")),
        )


def lab_items(study: Study, findings: Findings) -> Iterator[Item]:
    """The course of a lab by cluster, one figure per membership."""
    from ehr_prep.plots import plot_trend

    for view, trend in findings.trends.items():
        name = study.outputs.lab_label or trend.label
        trend = replace(trend, curves=shown_indices(study, "lab", trend.curves))
        yield Item(
            "lab" if view is None else f"lab_{view}",
            "labs",
            f"{name} around the first prescription",
            f"{trend.caption()} {_WHOSE[view]}{f' {count_note(study)}' * trend.rounded}",
            trend.curves,
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
        )
