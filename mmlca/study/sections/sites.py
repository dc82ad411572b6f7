"""Differences between sites: their size, whether sites share the courses, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.figures.sites import plot_site_differences
from mmlca.study.headline import published_norm
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.results.groups import MOST_SITES
from mmlca.study.results.site import is_rounded
from mmlca.study.sections.section import Section
from mmlca.study.words import number_word, sentences, window_name
from mmlca.tables.disclosure import EVERYONE
from mmlca.tables.norms import p_text
from mmlca.tables.site_differences import OTHERS

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study
    from mmlca.tables.shared_chains import SharedChains
    from mmlca.tables.site_differences import SiteDifferences

_IN_FILE_ONLY = ("rows_left_out", "clusters")
_FOR_KNOWN_CLUSTERS = ["low", "high"]  # intervals that do not hold where clusters are estimated
_OTHERS = (
    "Each site is compared with all others together, as there are more than "
    f"{number_word(MOST_SITES)} sites."
)
_ABOUT_ROUNDING = (
    "Norms are those of rounded counts, without states that few patients leave at one of the "
    "sites. Rounding: by how much it may have changed a norm (root mean square); debiased norms "
    "are without what it adds."
)


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Size of the differences, tests, and one figure per pair of sites."""
    differences, shared = findings.differences, findings.combined.shared
    if differences is None:
        return
    yield _norms(study, findings, differences)
    if shared is not None:
        yield from _shared_chains(shared)
    if len(findings.results) > MOST_SITES:
        return
    shown = _named_differences(study, findings, differences)
    pairs = list(dict.fromkeys(differences.norms["sites"]))
    for number, pair in enumerate(pairs, start=1):
        name = "site_differences" if len(pairs) == 1 else f"site_differences_{number}"
        yield _differences_of(study, findings, differences, shown, pair, name)


def _norms(study: Study, findings: Findings, differences: SiteDifferences) -> Item:
    tested, rounded = findings.combined.shared is not None, is_rounded(findings.results)
    left_out = _FOR_KNOWN_CLUSTERS if tested else []
    norms = differences.norms.drop(columns=left_out if rounded else [*left_out, "rounding"])
    earlier = ""
    if study.published is not None:
        earlier = f"Published: numbers of an earlier study ({study.published.source})."
        known = [published_norm(study, row) for row in norms.to_dict("records")]
        norms = norms.assign(published=np.array(known, dtype=float))
    no_test = "have neither an interval nor a p-value."
    if not tested:
        no_test = (
            "have no p-value. Intervals (95 %) are for clusters that are known; those of clusters "
            "found in the same data are too narrow."
        )
    return Item(
        "site_differences_norms",
        "Size of the differences",
        sentences(
            "Frobenius norms of the differences, averaged over clusters. Debiased: less the part "
            f"that sampling adds. These numbers describe the groups as they were formed and "
            f"{no_test} Patients are assigned with errors, which are not the same at each site, so "
            "norms are above 0 even where the sites share all courses.",
            _OTHERS if len(findings.results) > MOST_SITES else "",
            _ABOUT_ROUNDING if rounded else "",
            earlier,
        ),
        norms,
        Plain(n_keys=2, columns=tuple(name for name in norms if name not in _IN_FILE_ONLY)),
    )


def _shared_chains(shared: SharedChains) -> Iterator[Item]:
    """The test of shared chains, and how far apart the sites' own chains are."""
    several = len(shared.tests) > 1
    columns = ("sites", "statistic", "typical", "p_value")
    yield Item(
        "shared_chains",
        "Do the sites share the courses of the clusters?",
        sentences(
            "Likelihood-ratio tests of Markov chains that all sites share, with proportions of "
            "their own, against separate chains for each site, for first states and transitions "
            "together. Memberships are probabilities, so no patient is assigned to a cluster. "
            f"Statistic: twice the difference in log-likelihood; typical: its mean in {shared.n:,} "
            "data sets simulated from the shared chains, to which both were fitted; p: the share "
            "of these data sets with a larger statistic. A small p shows that the sites differ, "
            "not that they differ much.",
            "Adjusted: for the number of pairs of sites (Holm)." if several else "",
        ),
        shared.tests,
        Plain(columns=(*columns, "p_holm") if several else columns),
    )
    if len(shared.norms):
        yield Item(
            "own_chains",
            "How far apart the sites' own chains are",
            "Norms as above, of the differences between the chains of each site's own mixture, "
            "with memberships as probabilities. Debiased: less the part that sampling and "
            f"uncertain membership add, with its 95 % interval, from {shared.n:,} data sets "
            "simulated from each site's own mixture.",
            shared.norms,
            Plain(n_keys=1, columns=tuple(c for c in shared.norms if c != "rows_left_out")),
        )


def _named_differences(
    study: Study, findings: Findings, differences: SiteDifferences
) -> pd.DataFrame:
    """All differences as the release shows them, with the names of the groups."""
    names, of_clusters = findings.names.groups, findings.cluster_names
    if is_rounded(findings.results):
        shown = _with_sizes(findings, differences.shown(0))
    else:
        shown = differences.shown(study.privacy.min_count)
    pairs = shown[["membership", "cluster"]].itertuples(index=False)
    called = [names.get(membership, of_clusters)[cluster] for membership, cluster in pairs]
    return shown.drop(columns=["patients_first", "patients_second"]).assign(cluster=called)


def _with_sizes(findings: Findings, shown: pd.DataFrame) -> pd.DataFrame:
    """Differences of rounded counts, with the sizes of groups that the rest of the page shows.

    Rounded numbers of patients by first state do not add up to them.
    """
    pairs = {f"{a} − {b}": [a, b] for a, b in combinations(findings.sites, 2)}
    pairs |= {f"{site} − {OTHERS}": [site, OTHERS] for site in findings.sites}
    shown = shown.copy()
    first = shown["quantity"] == "initial"
    for (view, pair, group), rows in shown[first].groupby(["membership", "sites", "cluster"]):
        sizes = findings.sizes.get(view, pd.DataFrame())
        if group in sizes:
            n = sizes[group]
            others = n[EVERYONE] - n[pairs[pair][0]]
            both = [others if site == OTHERS else n[site] for site in pairs[pair]]
            shown.loc[rows.index, ["n_first", "n_second"]] = both
    return shown


def _differences_of(
    study: Study,
    findings: Findings,
    differences: SiteDifferences,
    shown: pd.DataFrame,
    pair: str,
    name: str,
) -> Item:
    whose = "by cluster, for the ensemble and for the sites' own models"
    if findings.combined.ensemble is None:
        whose = "for all patients"
    return Item(
        name,
        f"Differences between the sites, {pair}",
        f"Differences in the transition probabilities over one {window_name(study)} and in the "
        f"first drug class, {whose}. Hatched: fewer than {differences.min_support:g} transitions "
        "at a site. Grey: never visited at a site, or too few to show. Norm: the size of all "
        "differences together, as in the table above.",
        shown[shown["sites"] == pair],
        Grid(
            ("membership", "sites", "cluster", "quantity", "from"),
            "to",
            "difference",
            ("n_first", "n_second"),
            _rests_on,
            "difference",
            text="Columns: the state after, or the first state.",
        ),
        lambda: plot_site_differences(
            differences, sites=pair, min_count=study.privacy.min_count, table=shown
        ),
        f"Heat maps of the differences {pair} in transition probabilities by cluster.",
    )


def _rests_on(row: Mapping[str, Any]) -> str:
    few = "" if row["supported"] else ", few"
    what = "patients" if row["quantity"] == "initial" else "transitions"
    return f"from {row['n_first']:,.0f} and {row['n_second']:,.0f} {what}{few}"


# --- methods and cautions -----------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How differences between sites were measured and tested."""
    shared = findings.combined.shared
    if findings.combined.ensemble is None or findings.differences is None:
        return []
    return [
        "Differences between sites are Frobenius norms of differences between empirical transition "
        "matrices, averaged over clusters, both plain and with states weighted by occupancy.",
        "What sampling adds to the squared norms was subtracted (debiased norm). It follows from "
        "the variances that the rates of a site have if its patients are drawn with replacement; "
        "memberships were held fixed.",
        *([] if shared is None else _of_the_test(shared)),
    ]


def _of_the_test(shared: SharedChains) -> list[str]:
    return [
        "Whether sites share the Markov chains of the clusters was tested without assigning "
        "patients. The statistic is twice the difference between the log-likelihoods of a mixture "
        "with separate chains for each site and of one with shared chains, each with the sites' "
        "own proportions and both fitted by EM from the clusters and from other starts. It was "
        f"compared with those of {shared.n:,} data sets simulated from the shared chains "
        "(parametric bootstrap; pairs of sites adjusted by Holm's method).",
        "For the norms of the differences between the sites' own chains, 95 % intervals are the "
        "multiples of the observed difference under which the observed norm is neither among the "
        f"2.5 % largest nor among the 2.5 % smallest, with noise from {shared.n:,} data sets "
        "simulated from the sites' own mixtures and fitted again.",
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """What norms do not show, and what follows if sites do not share the courses."""
    if findings.differences is None:
        return []
    notes = [] if findings.combined.ensemble is None else findings.differences.cautions()
    notes += [
        "Norms of differences between groups of patients are above 0 because of sampling, and "
        f"because patients are assigned with errors. {_about_test(findings)}",
        *_if_not_shared(findings),
    ]
    if study.published is not None:
        notes.append(
            "The published numbers come from other patients; they are shown for orientation and "
            "are not a target."
        )
    return notes


def _about_test(findings: Findings) -> str:
    if findings.combined.shared is not None:
        return (
            "Whether the sites differ is answered by the test of shared courses, in which no "
            "patient is assigned."
        )
    return (
        "Whether the sites differ was not tested: a test that allows for uncertain clusters needs "
        "the patients of all sites in one place."
    )


def _if_not_shared(findings: Findings) -> list[str]:
    shared = findings.combined.shared
    if shared is None or findings.combined.ensemble is None or not len(shared.rejected()):
        return []
    p = p_text(shared.tests["p_holm"].iloc[0], shared.n)
    return [
        f"The sites do not share all courses of the clusters ({p}), whereas the ensemble, its "
        "refinement, and effects and outcomes by cluster assume that they do, apart from the "
        "proportions. The more the sites differ, the less reliable the probabilities of clusters "
        "are, and the more a cluster may be a different group of patients at each site. In that "
        "case, do not refine to convergence, and compare the clusters with each site's own model."
    ]


SECTION = Section("sites", "Differences between sites", items, methods, cautions)
