"""How much the courses of the same cluster differ between sites, and clusters in words.

Everything here rests on counts: how often the patients of a site and cluster begin in each
state and step from each state to each other one. The counts of an array have the shape
(…, K, S + 1, S): row i < S holds the steps from state i, row S the first states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.checks import listed
from mmlca.memberships import Membership, cells, checked_sites, common, memberships, rates
from mmlca.sequences import Sequences

_LEVEL = 0.95
_KINDS = (("transition", "plain"), ("transition", "occupancy"), ("initial", "plain"))
_KIND_NAMES = ("transitions", "transitions by occupancy", "first states")


@dataclass(frozen=True, eq=False, repr=False)
class SiteDifferences:
    """What `site_differences` found; printing it gives the summary.

    Parameters
    ----------
    norms : DataFrame
        membership, sites ("MGB − VA"), quantity ("transition" or "initial"), weighting
        ("plain" or "occupancy"), `norm`, its interval `low` to `high`, `chance` (the norm to be
        expected if the sites did not differ at all), `rows_left_out` (rows that nobody leaves
        at one of the sites) and `clusters` (how many the norm averages over).
    matrices : DataFrame
        membership, site, cluster, quantity, from (missing for first states), to, `probability`
        (NaN in a row never visited), `count`, `n` (that of the whole row) and `supported` (n is
        at least `min_support`).
    differences : DataFrame
        membership, sites, cluster, quantity, from, to, `difference` (NaN if the row is never
        visited at one of the sites), `n_first` and `n_second` (of the whole row, at either
        site) and `supported` (at both sites).
    replicates : DataFrame
        The norm in each bootstrap sample; one column for each row of `norms`.
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

    def summary(self) -> str:
        """The norms in words, with what they do and do not show."""
        pairs = [_summary_of_pair(self, pair) for pair in self.norms["sites"].unique()]
        return "\n\n".join(pairs)


def site_differences(
    sequences: Mapping[str, Sequences],
    clusters: Mapping[str, Any],
    *,
    local: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    n_boot: int = 200,
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

    A common rule cuts both sites alike and so lowers these norms, whether it is a good one or
    not. Give `models` to see by how much any site's own model does so.

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
    models : dict {site: fitted MixtureMarkov}, optional
        Adds the memberships "MGB everywhere" and so on, that model used at every site; and
        without `local` also "local", if each site has a model.
    n_boot : int
        Bootstrap samples of the patients of each site, with the memberships as they are; the
        uncertainty of the clustering itself is not in the intervals. 0 gives none.
    seed : int or Generator, optional
    min_support : float
        Rows with fewer steps than this at a site are not `supported`.

    Returns
    -------
    SiteDifferences
        All memberships use the same bootstrap samples, so that they can be compared.

    Notes
    -----
    Sampling alone makes a norm larger than 0, and a bootstrap sample has that noise twice, so
    that plain percentiles may lie above the norm found. The interval is that of the percentiles
    moved down by the bootstrap's estimate of this bias, mean of the samples − norm found, and
    not below 0. It tells how much the norm varies at these numbers of patients; `chance`, the
    mean norm if both sites' patients are drawn from the cluster's patients at the two sites
    together, tells how much of it sampling alone would give. `replicates` has the samples.

    Examples
    --------
    >>> sequences = {
    ...     "MGB": Sequences.from_lists([["A", "A", "B"], ["B", "B", "B"]]),
    ...     "VA": Sequences.from_lists([["A", "B", "B"], ["B", "B", "B"]]),
    ... }
    >>> found = site_differences(sequences, {"MGB": [1, 1], "VA": [1, 1]}, n_boot=0)
    >>> found.norms[["quantity", "weighting", "norm"]]
         quantity  weighting      norm
    0  transition      plain  0.707107
    1  transition  occupancy  0.433013
    2     initial      plain  0.000000
    """
    sites = checked_sites(sequences)
    n_boot = _whole(n_boot, "n_boot")
    if not (isinstance(min_support, (int, float, np.number)) and min_support >= 0):
        raise ValueError(f"min_support must be a number of at least 0, found {min_support!r}.")
    found = memberships(sites, clusters, local, models)
    grouped = {site: _group(data, site, found) for site, data in sites.items()}
    rng = np.random.default_rng(seed)
    draws = {site: _draw(rng, g.size, g.size.sum(), n_boot) for site, g in grouped.items()}
    states = next(iter(sites.values())).states
    norms, matrices, differences, replicates = [], [], [], []
    for name, membership in found.items():
        labels = membership.labels
        counts = {s: _count(g, name, len(labels), g.size)[0] for s, g in grouped.items()}
        resampled = {s: _count(g, name, len(labels), draws[s]) for s, g in grouped.items()}
        for site, count in counts.items():
            matrices.append(_matrix_table(name, site, labels, count, states, min_support))
        for a, b in combinations(sites, 2):
            sample = _norms(resampled[a], resampled[b])
            chance = _chance(grouped[a], grouped[b], name, len(labels), n_boot, rng)
            norms.append(_norm_table(name, f"{a} − {b}", counts[a], counts[b], sample, chance))
            replicates.append(sample)
            differences.append(
                _difference_table(name, a, b, labels, counts[a], counts[b], states, min_support)
            )
    return SiteDifferences(
        pd.concat(norms, ignore_index=True),
        pd.concat(matrices, ignore_index=True),
        pd.concat(differences, ignore_index=True),
        pd.DataFrame(np.hstack(replicates)),
        states,
        float(min_support),
    )


# --- counts ------------------------------------------------------------------------------


class _Grouped(NamedTuple):
    """Patients that are alike in everything counted are one group; resampling needs no more."""

    size: NDArray[np.intp]
    cells: Any  # sparse (groups, S·(S + 1)): counts of one patient, times the weight
    member: dict[str, NDArray[np.intp]]
    n_states: int


def _group(data: Sequences, site: str, rules: Mapping[str, Membership]) -> _Grouped:
    from scipy.sparse import csr_array

    alike = pd.DataFrame({"sequence": data.distinct()[1], "weight": data.weights})
    for i, membership in enumerate(rules.values()):
        alike[i] = membership.codes[site]
    number = alike.groupby(list(alike.columns), sort=True).ngroup().to_numpy()
    _, first, size = np.unique(number, return_index=True, return_counts=True)
    chosen = data[first]
    patient, cell = cells(chosen)
    table = csr_array(
        (chosen.weights[patient], (patient, cell)),
        shape=(len(first), data.n_states * (data.n_states + 1)),
    )
    member = {name: membership.codes[site][first] for name, membership in rules.items()}
    return _Grouped(size, table, member, data.n_states)


def _draw(
    rng: np.random.Generator, size: NDArray[np.intp], n: int, n_boot: int
) -> NDArray[np.float64]:
    """How many of n patients, drawn with replacement, fall in each group, (n_boot, groups)."""
    return rng.multinomial(n, size / size.sum(), size=n_boot).astype(float)


def _count(
    grouped: _Grouped, membership: str, n_clusters: int, patients: NDArray[Any]
) -> NDArray[np.float64]:
    """Counts (B, K, S + 1, S) if there are `patients` (B, groups) of each group."""
    s = grouped.n_states
    times = np.atleast_2d(patients)
    table = np.zeros((len(times), n_clusters, s + 1, s))
    for k in range(n_clusters):
        rows = np.flatnonzero(grouped.member[membership] == k)
        summed = (grouped.cells[rows].T @ times[:, rows].T).T
        table[:, k] = summed.reshape(len(times), s + 1, s)
    return table


# --- norms -------------------------------------------------------------------------------


def _norms(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The three norms of `_KINDS` from counts (B, K, S + 1, S) of two sites, (B, 3)."""
    n_a, n_b = a.sum(axis=-1), b.sum(axis=-1)
    compared = (n_a > 0) & (n_b > 0)
    square = np.where(compared, ((rates(a) - rates(b)) ** 2).sum(axis=-1), 0.0)
    steps = np.where(compared, n_a + n_b, 0.0)[..., :-1]
    total = steps.sum(axis=-1, keepdims=True)
    occupancy = np.divide(steps, total, out=np.zeros_like(steps), where=total > 0)
    has_steps = compared[..., :-1].any(axis=-1)
    by_cluster = (
        (np.sqrt(square[..., :-1].sum(axis=-1)), has_steps),
        (np.sqrt((occupancy * square[..., :-1]).sum(axis=-1)), has_steps),
        (np.sqrt(square[..., -1]), compared[..., -1]),
    )
    means = [_mean_where(norm, there) for norm, there in by_cluster]
    return np.stack(means, axis=-1)


def _mean_where(values: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the last axis of the values that are there; NaN if none is."""
    n = there.sum(axis=-1)
    total = np.where(there, values, 0.0).sum(axis=-1)
    mean = np.full(n.shape, np.nan)
    np.divide(total, n, out=mean, where=n > 0)
    return mean


def _chance(
    a: _Grouped,
    b: _Grouped,
    membership: str,
    n_clusters: int,
    n_boot: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Mean norms if both sites' patients are drawn from the two sites' patients together."""
    s = a.n_states
    tables = np.zeros((2, n_boot, n_clusters, s + 1, s))
    for k in range(n_clusters):
        part = [np.flatnonzero(g.member[membership] == k) for g in (a, b)]
        sizes = [g.size[rows] for g, rows in zip((a, b), part, strict=True)]
        if not (len(sizes[0]) and len(sizes[1])):
            continue
        for table, size in zip(tables, sizes, strict=True):
            drawn = _draw(rng, np.concatenate(sizes), size.sum(), n_boot)
            at_a, at_b = drawn[:, : len(part[0])], drawn[:, len(part[0]) :]
            summed = a.cells[part[0]].T @ at_a.T + b.cells[part[1]].T @ at_b.T
            table[:, k] = summed.T.reshape(n_boot, s + 1, s)
    norms = _norms(tables[0], tables[1])
    return np.array([_mean(column) for column in norms.T])


def _norm_table(
    membership: str,
    sites: str,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    sample: NDArray[np.float64],
    chance: NDArray[np.float64],
) -> pd.DataFrame:
    compared = (a.sum(axis=-1) > 0) & (b.sum(axis=-1) > 0)
    left_out = {"transition": (~compared[:, :-1]).sum(), "initial": (~compared[:, -1]).sum()}
    averaged = {"transition": compared[:, :-1].any(axis=1).sum(), "initial": compared[:, -1].sum()}
    if not compared.any():
        raise ValueError(
            f"no cluster of the membership {membership!r} has patients at both of the sites "
            f"{sites}; check that the sites' clusters have the same labels."
        )
    rows = []
    found = _norms(a[None], b[None])[0]
    for i, (quantity, weighting) in enumerate(_KINDS):
        low, high = _interval(found[i], sample[:, i])
        rows.append(
            {
                "membership": membership,
                "sites": sites,
                "quantity": quantity,
                "weighting": weighting,
                "norm": found[i],
                "low": low,
                "high": high,
                "chance": chance[i],
                "rows_left_out": int(left_out[quantity]),
                "clusters": int(averaged[quantity]),
            }
        )
    return pd.DataFrame(rows)


def _interval(found: float, sample: NDArray[np.float64]) -> tuple[float, float]:
    """Percentiles of the samples, moved back by their bias."""
    known = sample[~np.isnan(sample)]
    if not len(known) or np.isnan(found):
        return np.nan, np.nan
    percentiles = np.quantile(known, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    low, high = np.maximum(percentiles - (known.mean() - found), 0.0)
    return float(low), float(high)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


# --- tables ------------------------------------------------------------------------------


def _long(
    labels: list[Any], states: tuple[str, ...], first: dict[str, Any], values: dict[str, Any]
) -> pd.DataFrame:
    """Arrays (K, S + 1, S) as columns behind cluster, quantity, from and to."""
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
        frame[name] = np.broadcast_to(array, (k, s + 1, s)).ravel()
    return frame


def _matrix_table(
    membership: str,
    site: str,
    labels: list[Any],
    count: NDArray[np.float64],
    states: tuple[str, ...],
    min_support: float,
) -> pd.DataFrame:
    n = count.sum(axis=-1, keepdims=True)
    return _long(
        labels,
        states,
        {"membership": membership, "site": site},
        {"probability": rates(count), "count": count, "n": n, "supported": n >= min_support},
    )


def _difference_table(
    membership: str,
    first: str,
    second: str,
    labels: list[Any],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    states: tuple[str, ...],
    min_support: float,
) -> pd.DataFrame:
    n_first, n_second = a.sum(axis=-1, keepdims=True), b.sum(axis=-1, keepdims=True)
    least = np.minimum(n_first, n_second)
    return _long(
        labels,
        states,
        {"membership": membership, "sites": f"{first} − {second}"},
        {
            "difference": rates(a) - rates(b),
            "n_first": n_first,
            "n_second": n_second,
            "supported": (least >= min_support) & (least > 0),
        },
    )


# --- in words ----------------------------------------------------------------------------


def _summary_of_pair(found: SiteDifferences, pair: str) -> str:
    norms = found.norms[found.norms["sites"] == pair]
    lines = [
        f"Differences between the sites, {pair}, averaged over clusters (95 % interval) [what "
        "chance alone gives]:"
    ]
    for name, rows in norms.groupby("membership", sort=False):
        texts = [
            f"{_KIND_NAMES[i]} {_norm_text(row)}" for i, (_, row) in enumerate(rows.iterrows())
        ]
        lines.append(f"  {name}: {'; '.join(texts)}")
    for i in range(2):
        lines += _ensemble_against_others(found, norms.iloc[i :: len(_KINDS)], _KIND_NAMES[i])
    lines.append(_about_common_rules(norms.iloc[:: len(_KINDS)].set_index("membership")["norm"]))
    left_out = int(norms["rows_left_out"].iloc[0])
    lines.append(
        "The plain norm is dominated by rarely visited states"
        + (
            f"; {left_out} rows (cluster and state) that nobody leaves at one of the sites are not "
            "in the ensemble's."
            if left_out
            else "."
        )
    )
    return "\n".join(lines)


def _norm_text(row: pd.Series) -> str:
    if np.isnan(row["low"]):
        return f"{row['norm']:.3f}"
    return f"{row['norm']:.3f} ({row['low']:.3f} to {row['high']:.3f}) [{row['chance']:.3f}]"


def _ensemble_against_others(found: SiteDifferences, rows: pd.DataFrame, kind: str) -> list[str]:
    """What the ensemble's norm is lower and not lower than, with the share of samples."""
    lower: list[str] = []
    not_lower: list[str] = []
    own = rows.index[0]
    for other in rows.index[1:]:
        text = str(rows.at[other, "membership"])
        if len(found.replicates):
            less = found.replicates[own] < found.replicates[other]
            text += f" ({100 * less.mean():.0f} % of samples)"
        (lower if rows.at[own, "norm"] < rows.at[other, "norm"] else not_lower).append(text)
    parts = [f"less than with {listed(lower)}"] if lower else []
    parts += [f"no less than with {listed(not_lower)}"] if not_lower else []
    return [f"With the ensemble, {kind} differ {'; '.join(parts)}."] if parts else []


def _about_common_rules(norm: pd.Series) -> str:
    text = "Any common rule lowers the difference, because it cuts both sites alike"
    everywhere = norm[norm.index.str.endswith(" everywhere")]
    if "local" in norm.index and len(everywhere):
        shown = listed([f"{name} {value:.3f}" for name, value in everywhere.items()])
        holds = "" if (everywhere < norm["local"]).all() else ", though not always"
        text += f"{holds} (here {shown}, local {norm['local']:.3f})"
    return f"{text}; a lower norm alone does not show that the clusters are better."


# --- clusters in words -------------------------------------------------------------------


def describe_clusters(
    sequences: Sequences | Mapping[str, Sequences],
    clusters: Any,
    *,
    by_site: bool = False,
    after: str | None = None,
) -> pd.DataFrame:
    """What each cluster's patients do, in numbers and in words.

    All is weighted by the patients' weights. A switch is a change between two observed states
    that follow each other; missing times between them are passed over.

    Parameters
    ----------
    sequences : Sequences, or dict {site: Sequences}
    clusters : Series by id or array in the patients' order, or dict {site: …} of these
    by_site : bool
        A row for each site and cluster; else the sites are taken together.
    after : str, optional
        How long the sequences last, for the wording: "4 years".

    Returns
    -------
    DataFrame
        One row a cluster: `n`, `share` (of the patients, or of the site's), `first` (most
        common first state) with `first_share`; `time` (the last at which anyone of the cluster
        is observed), `n_then` (observed then) and `still` (share of these in the state `first`);
        `switch_to` (where switches out of `first` most often go) with `switch_share` (of such
        switches); `switches` (mean number a patient) and `description`.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "A", "A"], ["A", "B", "B"]])
    >>> for text in describe_clusters(s, [1, 1, 2], after="2 years")["description"]:
    ...     print(text)
    67 %: stay on A; on A after 2 years 1.00; 0.0 switches a patient
    33 %: start on A, then B; on A after 2 years 0.00; 1.0 switches a patient
    """
    if isinstance(sequences, Mapping):
        sites = checked_sites(sequences, at_least=1)
        membership = common(sites, clusters, "clusters")
    else:
        sites = {"": sequences}
        membership = common(sites, {"": clusters}, "clusters")
    parts = {site: (data, membership.codes[site]) for site, data in sites.items()}
    if not by_site and len(parts) > 1:
        together = np.concatenate([codes for _, codes in parts.values()])
        parts = {"": (Sequences.concat(sites), together)}
    rows = []
    for site, (data, codes) in parts.items():
        total = float(data.weights.sum())
        for k, label in enumerate(membership.labels):
            key = {"site": site, "cluster": label} if by_site else {"cluster": label}
            rows.append({**key, **_described(data[codes == k], total, after)})
    return pd.DataFrame(rows)


def _described(data: Sequences, total: float, after: str | None) -> dict[str, Any]:
    """One row of `describe_clusters`."""
    n = float(data.weights.sum())
    row: dict[str, Any] = {"n": n, "share": n / total if total > 0 else np.nan}
    if not n > 0:
        nothing = {"first": None, "first_share": np.nan, "time": None, "n_then": 0.0}
        nothing |= {"still": np.nan, "switch_to": None, "switch_share": np.nan}
        return row | nothing | {"switches": np.nan, "description": "no patients"}
    begins = _weight_by_state(data, data.codes[:, 0])
    first = int(begins.argmax())
    last = int(np.flatnonzero((data.codes >= 0).any(axis=0))[-1])
    then = _weight_by_state(data, data.codes[:, last])
    left, target = _switches(data)
    to = np.bincount(
        target[left.state == first],
        weights=left.weight[left.state == first],
        minlength=data.n_states,
    )
    switch_to = data.states[int(to.argmax())] if to.sum() > 0 else None
    row |= {
        "first": data.states[first],
        "first_share": _ratio(begins[first], begins.sum()),
        "time": data.times[last],
        "n_then": then.sum(),
        "still": _ratio(then[first], then.sum()),
        "switch_to": switch_to,
        "switch_share": _ratio(to.max(), to.sum()),
        "switches": left.weight.sum() / n,
    }
    return row | {"description": _wording(row, after)}


class _Left(NamedTuple):
    """Each switch: the state left and the patient's weight."""

    state: NDArray[np.intp]
    weight: NDArray[np.float64]


def _switches(data: Sequences) -> tuple[_Left, NDArray[np.intp]]:
    """Each switch, and the state switched to."""
    patient, time = np.nonzero(data.codes >= 0)
    state = data.codes[patient, time].astype(np.intp)
    moved = (patient[1:] == patient[:-1]) & (state[1:] != state[:-1])
    return _Left(state[:-1][moved], data.weights[patient[1:][moved]]), state[1:][moved]


def _weight_by_state(data: Sequences, codes: NDArray[np.int8]) -> NDArray[np.float64]:
    seen = codes >= 0
    weight = np.bincount(codes[seen], weights=data.weights[seen], minlength=data.n_states)
    return weight.astype(float)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else np.nan


def _wording(row: dict[str, Any], after: str | None) -> str:
    first, to = row["first"], row["switch_to"]
    if row["still"] >= 0.5 or to is None:
        course = f"stay on {first}"
    elif row["switch_share"] >= 0.5:
        course = f"start on {first}, then {to}"
    else:
        course = f"start on {first}, then several, most often {to}"
    when = f"at time {row['time']}" if after is None else f"after {after}"
    return (
        f"{100 * row['share']:.0f} %: {course}; on {first} {when} {row['still']:.2f}; "
        f"{row['switches']:.1f} switches a patient"
    )


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0, found {value!r}.")
    return int(value)
