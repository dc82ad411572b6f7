"""How much the courses of the same cluster differ between sites.

Everything is computed from counts: how often the patients of a site and cluster begin in each
state and step from each state to each other one. `mmlca.tables.norms` has the norms of their
differences, with intervals, and `mmlca.tables.norm_texts` puts them into words. Whether sites
differ at all is tested in `mmlca.tables.shared_chains`, without assigning anybody to a cluster.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import whole_number
from font.errors import InputError
from mmlca.tables.counts import rates
from mmlca.tables.disclosure import add_totals, hidden_grid, hide, hide_parts
from mmlca.tables.groups import LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.matching import memberships
from mmlca.tables.norm_texts import cautions_of_pairs, summary_of_pair
from mmlca.tables.norms import (
    KINDS,
    Comparison,
    Grouped,
    compare_sites,
    counted_patients,
    group_counts,
    group_patients,
    leaving_patients,
)

if TYPE_CHECKING:
    from mmlca.tables.course_tables import Courses

_THREADS = 4  # comparisons at a time; the result does not depend on it


@dataclass(frozen=True, eq=False, repr=False)
class SiteDifferences:
    """The result of `site_differences`; printing it gives the summary.

    Parameters
    ----------
    norms : DataFrame
        membership, sites ("MGB − VA"), quantity ("transition" or "initial"), weighting
        ("plain" or "occupancy"), `norm`, `debiased` (the norm without what sampling adds to
        it) with its 95 % interval `low` to `high` for clusters that are known, `n_boot` (number of
        samples), `rows_left_out` (rows that nobody leaves at one of the sites) and `clusters` (how
        many the norm averages over).
    matrices : DataFrame
        membership, site, cluster, quantity, from (missing for first states), to, `probability`
        (NaN in a row never visited), `count`, `count_patients` (different patients it is based on),
        `n` and `patients` (those of the whole row) and `supported` (n is at least `min_support`).
    differences : DataFrame
        membership, sites, cluster, quantity, from, to, `difference` (NaN if the row is never
        visited at one of the sites), `n_first`, `n_second`, `patients_first` and
        `patients_second` (of the whole row, at either site) and `supported` (at both sites).
    replicates : DataFrame
        The norm in each bootstrap sample; one column per row of `norms`.
    states : tuple of str
    min_support : float
    """

    norms: pd.DataFrame
    matrices: pd.DataFrame
    differences: pd.DataFrame
    replicates: pd.DataFrame
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
        pairs = {f"{a} − {b}": (a, b) for a, b in combinations(counts["site"].unique(), 2)}
        numbers = ["difference", "n_first", "n_second", "patients_first", "patients_second"]
        table = self.differences.astype(dict.fromkeys(numbers, float))
        for (name, pair), rows in table.groupby(["membership", "sites"]).groups.items():
            cell, total = np.any([hidden[name, site] for site in pairs[pair]], axis=0).T
            table.loc[rows[cell], "difference"] = np.nan
            table.loc[rows[total], numbers] = np.nan
        return hide(table, numbers, ["patients_first", "patients_second"], min_count)

    def shown_with(
        self, courses: Mapping[str, Courses], name_of: Callable[[str, Any], str]
    ) -> pd.DataFrame:
        """`differences` of the rates in the tables of courses, blank where these are.

        Parameters
        ----------
        courses : {membership: Courses}
        name_of : (membership, cluster) → the cluster's name in the `courses` of the membership
        """
        parts = {name: _course_cells(tables) for name, tables in courses.items()}
        numbers = ["difference", "n_first", "n_second"]
        table = self.differences.drop(columns=["patients_first", "patients_second"])
        rows, missing = [], (np.nan, np.nan)
        for row in table.rename(columns={"from": "before"}).itertuples(index=False):
            before = None if pd.isna(row.before) else row.before
            key = (name_of(row.membership, row.cluster), before, row.to)
            a, b = (parts[row.membership].get((s, *key), missing) for s in row.sites.split(" − "))
            rows.append([a[0] - b[0], a[1], b[1]])
        values = np.array(rows, dtype=float).reshape(-1, len(numbers))
        return table.assign(**dict(zip(numbers, values.T, strict=True)))

    def cautions(self) -> list[str]:
        """What to keep in mind when reading the norms: two sentences about all pairs of sites."""
        pairs = [rows for _, rows in self.norms.groupby("sites", sort=False)]
        return cautions_of_pairs(pairs)

    def summary(self) -> str:
        """The norms in words, with what they do and do not show."""
        pairs = self.norms.groupby("sites", sort=False)
        return "\n\n".join(summary_of_pair(norms, self.replicates) for _, norms in pairs)


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
        Number of bootstrap samples; 0 gives neither debiased norms nor intervals.
    seed : int or Generator, optional
    min_support : float
        Rows with fewer steps than this at a site are not `supported`.

    Returns
    -------
    SiteDifferences
        All memberships use the same bootstrap samples, so that they can be compared.

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
    norm is √max(0, ‖D‖² − mean ‖E‖²), averaged over clusters. For a state that at least 10
    patients leave at both sites, E comes from drawing each site's patients with replacement
    (widened by √(m/(m − 1)) for m patients). For rarer states, where drawing one or two patients
    again would show no variation, the patients who leave the state are dealt to the sites anew.

    *Interval.* If the true difference were c·D, the norm would be distributed as ‖c·D + E‖. The
    limits are the norms of c·D for which 2.5 % of these lie above, and 2.5 % below, the norm that
    was observed; 0 if no c is small enough. Samples that equal the observed norm, as many do with a
    handful of patients, count for neither limit. Both limits are 0 if the observed norm is smaller
    than sampling alone nearly always makes it. With fixed clusters of chains as in rheumatoid
    arthritis (two sites of 400 and 500, or 2,000 and 3,000 patients; 200 data sets each) the
    intervals held true plain norms of 0, 0.105 and 0.315 in 91 to 98 % of the data sets, and the
    norms by occupancy in 94 to 99 %. Plain norms err on the low side where sites differ much, since
    those of rare states can hardly be distinguished from noise. With estimated clusters they hold
    the norms of the true classes far less often; the table in the documentation has both.

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
    rules = memberships(sites, clusters, local, models)
    grouped = {site: group_patients(data, site, rules) for site, data in sites.items()}
    rng = np.random.default_rng(seed)
    site_seed = {site: int(rng.integers(2**63)) for site in sites}
    pair_seed = {pair: int(rng.integers(2**63)) for pair in combinations(sites, 2)}
    states = next(iter(sites.values())).states
    rows = {
        name: {site: _Rows(g, name, labels) for site, g in grouped.items()}
        for name, (labels, _) in rules.items()
    }
    jobs = list(product(rules, pair_seed))
    for name, (a, b) in jobs:
        if not _in_both(rows[name][a], rows[name][b]).any():
            raise InputError(
                f"no cluster of the membership {name!r} has patients at both of the sites "
                f"{a} − {b}; check that the sites' clusters have the same labels."
            )

    def compare(job: tuple[str, tuple[str, str]]) -> Comparison:
        name, (a, b) = job
        seeds = (site_seed[a], site_seed[b], pair_seed[a, b])
        return compare_sites(grouped[a], grouped[b], name, len(rules[name].labels), n_boot, seeds)

    with ThreadPoolExecutor(_THREADS) as pool:  # most of it is drawing, outside Python's lock
        comparisons = list(pool.map(compare, jobs))
    norms, differences = [], []
    for (name, (a, b)), comparison in zip(jobs, comparisons, strict=True):
        pair, both = f"{a} − {b}", (rows[name][a], rows[name][b])
        norms.append(_norm_table(name, pair, comparison, _in_both(*both)))
        differences.append(_difference_table(name, pair, *both, states, min_support))
    matrices = [
        _matrix_table(name, site, of_site, states, min_support)
        for name, by_site in rows.items()
        for site, of_site in by_site.items()
    ]
    replicates = [comparison.replicates for comparison in comparisons]
    return SiteDifferences(
        pd.concat(norms, ignore_index=True),
        pd.concat(matrices, ignore_index=True),
        pd.concat(differences, ignore_index=True),
        pd.DataFrame(np.hstack(replicates)),
        states,
        float(min_support),
    )


# --- tables ------------------------------------------------------------------------------


def _in_both(a: _Rows, b: _Rows) -> NDArray[np.bool_]:
    """Which rows, (K, S + 1), have steps at both sites."""
    both: NDArray[np.bool_] = (a.n > 0) & (b.n > 0)
    return both


def _norm_table(
    membership: str, sites: str, comparison: Comparison, compared: NDArray[np.bool_]
) -> pd.DataFrame:
    """One row per kind of norm; `compared` (K, S + 1) marks the rows with steps at both sites."""
    transitions, first = compared[:, :-1], compared[:, -1]
    return pd.DataFrame(
        {
            "membership": membership,
            "sites": sites,
            "quantity": [quantity for quantity, _ in KINDS],
            "weighting": [weighting for _, weighting in KINDS],
            "norm": comparison.norm,
            "debiased": comparison.debiased,
            "low": comparison.low,
            "high": comparison.high,
            "n_boot": len(comparison.replicates),
            "rows_left_out": [*[(~transitions).sum()] * 2, (~first).sum()],
            "clusters": [*[transitions.any(axis=1).sum()] * 2, first.sum()],
        }
    )


def _course_cells(courses: Courses) -> dict[tuple[Any, ...], tuple[float, float]]:
    """Rate and n of each cell (site, group, from or None, to); NaN where hidden."""
    steps = courses.shown("transitions").rename(columns={"from": "before"})
    first = courses.shown("distribution")
    first = first[first["time"] == first.groupby("site")["time"].transform("first")]
    cells: dict[tuple[Any, ...], tuple[float, float]] = {
        (row.site, row.group, row.before, row.to): (float(row.rate), float(row.n))
        for row in steps.itertuples(index=False)
    }
    for row in first.itertuples(index=False):
        cells[row.site, row.group, None, row.state] = (float(row.share), float(row.n))
    return cells


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


class _Rows:
    """One site's clusters: `count` and `count_patients`, those it is based on, (K, S + 1, S).

    `n` and `patients` are those of each row, (K, S + 1).
    """

    def __init__(self, grouped: Grouped, name: str, labels: list[Any]) -> None:
        self.labels = labels
        self.count = group_counts(grouped, name, len(labels), grouped.size[None])[0]
        self.n = self.count.sum(axis=-1)
        self.patients = leaving_patients(grouped, name, len(labels))
        self.count_patients = counted_patients(grouped, name, len(labels))


def _long(
    labels: list[Any], states: tuple[str, ...], first: dict[str, Any], values: dict[str, Any]
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


def _matrix_table(
    membership: str, site: str, rows: _Rows, states: tuple[str, ...], min_support: float
) -> pd.DataFrame:
    return _long(
        rows.labels,
        states,
        {"membership": membership, "site": site},
        {
            "probability": rates(rows.count),
            "count": rows.count,
            "count_patients": rows.count_patients,
            "n": rows.n,
            "patients": rows.patients,
            "supported": rows.n >= min_support,
        },
    )


def _difference_table(
    membership: str,
    sites: str,
    a: _Rows,
    b: _Rows,
    states: tuple[str, ...],
    min_support: float,
) -> pd.DataFrame:
    smaller = np.minimum(a.n, b.n)
    return _long(
        a.labels,
        states,
        {"membership": membership, "sites": sites},
        {
            "difference": rates(a.count) - rates(b.count),
            "n_first": a.n,
            "n_second": b.n,
            "patients_first": a.patients,
            "patients_second": b.patients,
            "supported": (smaller >= min_support) & (smaller > 0),
        },
    )
