"""How much the courses of the same cluster differ between sites.

Everything is computed from counts: how often the patients of a site and cluster begin in each
state and step from each state to each other one. `mmlca.tables.norms` has the norms of their
differences, with intervals, and in words. Whether sites differ at all is tested in
`mmlca.tables.shared_chains`, without assigning anybody to a cluster.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import whole_number
from font.errors import InputError
from mmlca.tables.counts import ClusterSteps, cluster_steps, rates, together
from mmlca.tables.disclosure import add_totals, hidden_grid, hide, hide_parts
from mmlca.tables.groups import LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.matching import memberships
from mmlca.tables.norms import (
    KINDS,
    Comparison,
    cautions_of_pairs,
    comparable,
    compare_sites,
    summary_of_pair,
)

OTHERS = "all others"
"""All other sites together, which each of many sites is compared with."""


@dataclass(frozen=True, eq=False, repr=False)
class SiteDifferences:
    """The result of `site_differences`; printing it gives the summary.

    Parameters
    ----------
    norms : DataFrame
        membership, sites ("MGB − VA"), quantity ("transition" or "initial"), weighting
        ("plain" or "occupancy"), `norm`, `debiased` (the norm without what sampling adds to
        it) with its 95 % interval `low` to `high` for clusters that are known, `rounding` (by how
        much the rounding of counts may have changed the norm, in the root mean square; 0 if they
        are exact), `rows_left_out` (rows that nobody, or too few, leave at one of the sites) and
        `clusters` (how many the norm averages over).
    matrices : DataFrame
        membership, site, cluster, quantity, from (missing for first states), to, `probability`
        (NaN in a row never visited), `count`, `count_patients` (different patients it is based on),
        `n` and `patients` (those of the whole row) and `supported` (n is at least `min_support`).
    differences : DataFrame
        membership, sites, cluster, quantity, from, to, `difference` (NaN if the row is never
        visited at one of the sites), `n_first`, `n_second`, `patients_first` and
        `patients_second` (of the whole row, at either site) and `supported` (at both sites).
    states : tuple of str
    min_support : float
    """

    norms: pd.DataFrame
    matrices: pd.DataFrame
    differences: pd.DataFrame
    states: tuple[str, ...]
    min_support: float

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{html.escape(text)}</p>" for text in self.cautions())
        table = self.norms.to_html(index=False, border=0, float_format="{:.3f}".format)
        return f"{table}\n{sentences}"

    def shown(self, min_count: int) -> pd.DataFrame:
        """`differences` without the numbers based on fewer than `min_count` patients.

        With n known, a difference of two fractions gives both numerators. So it is blank where
        few patients are behind a numerator, a row or, by subtraction, another numerator. Clusters
        whose size at a site would reveal that of a small one are blank.
        """
        row = ["membership", "site", "cluster", "quantity", "from"]
        few = ["count_patients", "patients"]
        counts = hide_parts(self.matrices, row, ["count"], min_count, patients=few, totals=["n"])
        blank = counts[["count", "n"]].isna()
        blank[_of_hidden_size(self.matrices, min_count)] = True
        hidden = dict(iter(blank.groupby([counts["membership"], counts["site"]])))
        sites = list(counts["site"].unique())
        pairs: dict[str, Sequence[str]] = {f"{a} − {b}": (a, b) for a, b in combinations(sites, 2)}
        pairs |= {f"{site} − {OTHERS}": sites for site in sites}
        numbers = ["difference", "n_first", "n_second", "patients_first", "patients_second"]
        table = self.differences.astype(dict.fromkeys(numbers, float))
        for (name, pair), rows in table.groupby(["membership", "sites"]).groups.items():
            here = [hidden[name, site] for site in pairs[pair] if (name, site) in hidden]
            cell, total = np.any(here, axis=0).T
            table.loc[rows[cell], "difference"] = np.nan
            table.loc[rows[total], numbers] = np.nan
        return hide(table, numbers, ["patients_first", "patients_second"], min_count)

    def cautions(self) -> list[str]:
        """What to keep in mind when reading the norms: two sentences about all pairs of sites."""
        return cautions_of_pairs([rows for _, rows in self.norms.groupby("sites", sort=False)])

    def summary(self) -> str:
        """The norms in words, with what they do and do not show."""
        pairs = self.norms.groupby("sites", sort=False)
        return "\n\n".join(summary_of_pair(norms) for _, norms in pairs)


def site_differences(
    sequences: SequencesBySite,
    clusters: LabelsBySite,
    *,
    local: LabelsBySite | None = None,
    models: Mapping[str, Any] | None = None,
    n_boot: int = 1000,
    seed: int | np.random.Generator | None = None,
    min_support: float = 20,
) -> SiteDifferences:
    """Differences between sites in how the patients of a cluster begin and move on.

    With T the empirical transition matrix of a cluster at site A or B, the plain norm is
    Frobenius' √(Σᵢ ‖T_A[i] − T_B[i]‖²) over the states i that patients leave at both sites. A
    state that hardly anyone is in counts as much in it as the most common one, so that it is
    often mostly noise. The norm by occupancy is √(Σᵢ wᵢ ‖T_A[i] − T_B[i]‖²), where wᵢ is the
    share of the steps of the cluster, of both sites together, that begin in i. For first states
    the norm is ‖u_A − u_B‖. Each is averaged over the clusters that both sites have.

    A common rule divides both sites in the same way and so often lowers these norms, whether it is
    a good one or not. Give `models` to see by how much any site's own model does so.

    Parameters
    ----------
    sequences : dict {site: Sequences}
        At least two sites with the same states.
    clusters : dict {site: Series by id, or array in the patients' order}
        The membership called "ensemble".
    local : dict {site: Series or array}, optional
        Each site's own classes: the membership "local". Those of the first site are named after
        the clusters that they share most patients with; those of each other site are matched
        to the first one's, with the smallest sum of Euclidean distances between the empirical
        parameters of matched classes (Hungarian method; rows that nobody informs are even).
    models : dict {site: fitted MixtureMarkov, or its labels {site: Series or array}}, optional
        Adds the memberships "MGB everywhere" and so on, that model used at every site; and
        without `local` also "local", if each site has a model.
    n_boot : int
        Number of samples for the intervals; 0 gives none.
    seed : int or Generator, optional
        Of these samples.
    min_support : float
        Rows with fewer steps than this at a site are not `supported`.

    Returns
    -------
    SiteDifferences

    Notes
    -----
    All memberships are taken as they are: the uncertainty of the clustering itself is in none of
    these numbers. If clusters were found in the same patients, a cluster holds some patients of the
    others, and not the same share of them at each site, so that these norms describe the groups as
    they were formed. They are not evidence that sites treat similar patients differently, so that
    no p-value is given. `shared_chain_test` tests it, and has norms whose intervals hold under
    estimated clusters.

    *Debiased norm.* Sampling alone makes a norm larger than 0. With D the difference in a cluster
    and E its deviations by sampling, ‖D‖² is too large by the mean of ‖E‖², so that the debiased
    norm is √max(0, ‖D‖² − mean ‖E‖²), averaged over clusters. The mean follows from the variances
    that the rates of a site have if its patients are drawn with replacement (to the first order;
    see `mmlca.tables.counts.cluster_steps`). For states that fewer than 10 patients leave at one of
    the sites, where drawing one or two patients again would show no variation, both sites are taken
    to have the rates of both together, and steps to vary as in the rest of the cluster.

    *Interval.* If the true difference were c·D, the norm would be distributed as ‖c·D + E‖. The
    limits are the norms of c·D for which 2.5 % of these lie above, and 2.5 % below, the norm that
    was observed; 0 if no c is small enough. E is drawn from normal distributions with the
    covariances of independent steps, times the variance of the rates relative to them. Both limits
    are 0 if the observed norm is smaller than sampling alone nearly always makes it. With fixed
    clusters of chains as in rheumatoid arthritis (two sites of 400 and 500, or 2,000 and 3,000
    patients; 100 data sets each) the intervals held true norms of transitions of 0, 0.105 and
    0.315 in 95 to 99 % of the data sets, and the norms by occupancy in 96 to 100 %. With estimated
    clusters they hold the norms of the true classes far less often; the table in the documentation
    has both.

    Examples
    --------
    >>> from mmlca import Sequences
    >>> sequences = {
    ...     "MGB": Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"]]),
    ...     "VA": Sequences.from_lists([["A", "B", "B"], ["B", "B", "B"]]),
    ... }
    >>> result = site_differences(sequences, {"MGB": [1, 1], "VA": [1, 1]}, n_boot=0)
    >>> result.norms[["quantity", "weighting", "norm"]]
         quantity  weighting      norm
    0  transition      plain  0.707107
    1  transition  occupancy  0.433013
    2     initial      plain  0.000000
    """
    sites = checked_sites(sequences)
    n_boot = whole_number(n_boot, 0, "n_boot")
    if not (isinstance(min_support, (int, float, np.number)) and min_support >= 0):
        raise InputError(f"min_support must be a number of at least 0, found {min_support!r}.")
    rules = {
        name: Counted(
            labels,
            {site: cluster_steps(data, codes[site], len(labels)) for site, data in sites.items()},
        )
        for name, (labels, codes) in memberships(sites, clusters, local, models).items()
    }
    states = next(iter(sites.values())).states
    return compare_rules(rules, states, n_boot=n_boot, seed=seed, min_support=min_support)


class Counted(NamedTuple):
    """The labels of the groups of a membership, and their steps at each site."""

    labels: list[Any]
    steps: Mapping[str, ClusterSteps]


def compare_rules(
    rules: Mapping[str, Counted],
    states: Sequence[str],
    *,
    n_boot: int,
    seed: int | np.random.Generator | None,
    min_support: float = 20,
    unit: int = 1,
    with_others: bool = False,
) -> SiteDifferences:
    """The differences between sites from the steps that each of them counted, by membership.

    Counts were rounded at random to multiples of `unit`; 1: they are exact. `with_others` compares
    each site with all others together, instead of all pairs of sites.
    """
    rng = np.random.default_rng(seed)
    pair_seed: dict[str, int] = {}
    norms, differences, matrices = [], [], []
    for name, (labels, steps) in rules.items():
        pairs = {f"{a} − {b}": (steps[a], steps[b]) for a, b in combinations(steps, 2)}
        if with_others:
            pairs = {
                f"{site} − {OTHERS}": (own, together([steps[s] for s in steps if s != site]))
                for site, own in steps.items()
            }
        for pair, (a, b) in pairs.items():
            compared = np.all([comparable(site, unit).n > 0 for site in (a, b)], axis=0)
            if not compared.any() and unit == 1:
                raise InputError(
                    f"no cluster of the membership {name!r} has patients at both of the sites "
                    f"{pair}; check that the sites' clusters have the same labels."
                )
            draw = pair_seed.setdefault(pair, int(rng.integers(2**63)))
            found = compare_sites(a, b, n_boot, np.random.default_rng(draw), unit)
            norms.append(_norm_table(name, pair, found, compared))
            smaller = np.minimum(a.n, b.n)
            values = {
                "difference": rates(a.steps) - rates(b.steps),
                "n_first": a.n,
                "n_second": b.n,
                "patients_first": a.leaving,
                "patients_second": b.leaving,
                "supported": (smaller >= min_support) & (smaller > 0),
            }
            differences.append(_long(labels, states, {"membership": name, "sites": pair}, values))
        for site, part in steps.items():
            values = {
                "probability": rates(part.steps),
                "count": part.steps,
                "count_patients": part.patients,
                "n": part.n,
                "patients": part.leaving,
                "supported": part.n >= min_support,
            }
            matrices.append(_long(labels, states, {"membership": name, "site": site}, values))
    return SiteDifferences(
        pd.concat(norms, ignore_index=True),
        pd.concat(matrices, ignore_index=True),
        pd.concat(differences, ignore_index=True),
        tuple(states),
        float(min_support),
    )


# --- tables ------------------------------------------------------------------------------


def _norm_table(
    membership: str, sites: str, found: Comparison, compared: NDArray[np.bool_]
) -> pd.DataFrame:
    """One row per kind of norm; `compared` (K, S + 1) marks the rows with steps at both sites."""
    transitions, first = compared[:, :-1], compared[:, -1]
    return pd.DataFrame(
        {
            "membership": membership,
            "sites": sites,
            "quantity": [quantity for quantity, _ in KINDS],
            "weighting": [weighting for _, weighting in KINDS],
            "norm": found.norm,
            "debiased": found.debiased,
            "low": found.low,
            "high": found.high,
            "rounding": found.rounding,
            "rows_left_out": [*[(~transitions).sum()] * 2, (~first).sum()],
            "clusters": [*[transitions.any(axis=1).sum()] * 2, first.sum()],
        }
    )


def _of_hidden_size(matrices: pd.DataFrame, min_count: int) -> NDArray[np.bool_]:
    """Rows of clusters whose size at the site is small or would reveal a small one."""
    hidden: set[tuple[Any, ...]] = set()
    first = matrices[matrices["quantity"] == "initial"]
    for name, part in first.groupby("membership", sort=False):
        sizes = part.groupby(["site", "cluster"], sort=False)["patients"].first().unstack()
        cells = np.argwhere(hidden_grid(add_totals(sizes), min_count)[:-1, :-1])
        hidden |= {(name, sizes.index[i], sizes.columns[k]) for i, k in cells}
    rows = zip(matrices["membership"], matrices["site"], matrices["cluster"], strict=True)
    return np.array([row in hidden for row in rows], dtype=bool)


def _long(
    labels: list[Any], states: Sequence[str], first: dict[str, Any], values: dict[str, Any]
) -> pd.DataFrame:
    """Arrays (K, S + 1, S) or (K, S + 1) as columns behind cluster, quantity, from and to."""
    k, s = len(labels), len(states)
    cluster, before, after = (index.ravel() for index in np.indices((k, s + 1, s)))
    names = list(states)
    frame = pd.DataFrame(
        {
            **{name: [value] * (k * (s + 1) * s) for name, value in first.items()},
            "cluster": [labels[i] for i in cluster],
            "quantity": np.where(before < s, "transition", "initial"),
            "from": pd.Categorical.from_codes(
                np.where(before < s, before, -1), names, ordered=True
            ),
            "to": pd.Categorical.from_codes(after, names, ordered=True),
        }
    )
    for name, array in values.items():
        cells = array if array.ndim == 3 else array[..., None]
        frame[name] = np.broadcast_to(cells, (k, s + 1, s)).ravel()
    return frame
