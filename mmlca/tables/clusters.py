"""Clusters and classes in numbers and in words: what their patients do, how sure they belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca.sequences.checks import need_columns, numbers_for, of_type
from mmlca.sequences.type import Sequences
from mmlca.tables.groups import Labels, LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.lines import ARROW, line_codes
from mmlca.tables.matching import common_membership
from mmlca.tables.rounding import Rounding
from mmlca.tables.suppress import Guarded, add_totals, hidden_grid, is_small

_SURE = 0.8
_PATH = 3


def describe_clusters(
    sequences: Sequences | SequencesBySite,
    clusters: Labels | LabelsBySite,
    *,
    by_site: bool = False,
    after: str | None = None,
    window: str = "time",
) -> pd.DataFrame:
    """What each cluster's patients do, in numbers and in words.

    All numbers are weighted by the patients' weights. A switch is a change between two observed
    states that follow each other; missing times between them are passed over.

    Parameters
    ----------
    sequences : Sequences, or dict {site: Sequences}
    clusters : Series by id or array in the patients' order, or dict {site: …} of these
    by_site : bool
        One row per site and cluster; otherwise the sites are taken together.
    after : str, optional
        How long the sequences last, for the wording: "4 years".
    window : str
        What one time of the sequences is called, for the wording: "quarter".

    Returns
    -------
    DataFrame
        One row per cluster: `n`, `share` (of the patients, or of the site's), `first` (most
        common first state) with `first_share`; `time` (the last at which anyone of the cluster
        is observed), `n_then` (observed then) and `still` (share of these in the state `first`);
        `switch_to` (where switches out of `first` most often go) with `switch_share` (of such
        switches); `switches` (mean number per patient); `path` (the most common states in their
        order, without repetition, of at most three) with `path_share`; `until_switch` (median
        number of times before the first switch, of the `switchers` who switched); `end` (most
        common last observed state) with `end_share`; and `description`.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "A", "A"], ["A", "B", "B"]])
    >>> print(describe_clusters(s, [1, 1, 2], after="2 years")["description"][0])
    67 %: stay on A; 100 % of those still observed after 2 years are on A; 0 switches per patient
    """
    several = isinstance(sequences, Mapping)
    sites = checked_sites(sequences if several else {"": sequences}, at_least=1)
    labels: Any = clusters if several else {"": clusters}
    membership = common_membership(sites, labels, "clusters")
    parts = {site: (data, membership.codes[site]) for site, data in sites.items()}
    if not by_site and len(parts) > 1:
        together = np.concatenate([codes for _, codes in parts.values()])
        parts = {"": (Sequences.concat(sites), together)}
    rows = []
    for site, (data, codes) in parts.items():
        total = float(data.weights.sum())
        for k, label in enumerate(membership.labels):
            key = {"site": site, "cluster": label} if by_site else {"cluster": label}
            rows.append({**key, **_described(data[codes == k], total, after, window)})
    return pd.DataFrame(rows)


def hidden_sizes(clusters: Mapping[str, pd.Series], min_count: int) -> pd.DataFrame:
    """Which sizes of clusters may not be shown.

    The numbers of patients at each site, and of each cluster at all sites, are known to all.

    Parameters
    ----------
    clusters : {site: cluster of each patient}
    min_count : int

    Returns
    -------
    DataFrame
        bool; one row per site and "all" of them, one column per cluster and "all" of them.

    Examples
    --------
    >>> clusters = {"A": pd.Series([1] * 50 + [2] * 3), "B": pd.Series([1] * 40 + [2] * 60)}
    >>> hidden_sizes(clusters, min_count=11)[[1, 2]]
             1      2
    A     True   True
    B     True   True
    all  False  False
    """
    sizes = _sizes(clusters)
    return pd.DataFrame(hidden_grid(sizes, min_count), sizes.index, sizes.columns)


def shown_sizes(
    clusters: Mapping[str, pd.Series], min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """The sizes of clusters as people may see them, the same in every table and figure.

    Parameters
    ----------
    clusters : {site: cluster of each patient}
    min_count : int
    rounding : Rounding, optional
        Of these clusters: round all sizes in place of hiding some.

    Returns
    -------
    DataFrame
        Numbers, NaN where hidden; one row per site and "all" of them, one column per cluster and
        "all" of them.

    Examples
    --------
    >>> clusters = {"A": pd.Series([1] * 50 + [2] * 3), "B": pd.Series([1] * 40 + [2] * 60)}
    >>> shown_sizes(clusters, min_count=11)[[1, 2]]
            1     2
    A     NaN   NaN
    B     NaN   NaN
    all  90.0  63.0
    """
    sizes = _sizes(clusters)
    if rounding is None:
        return sizes.mask(hidden_sizes(clusters, min_count))
    cells = [[rounding(sizes.at[s, k], s, k) for k in sizes] for s in sizes.index]
    return pd.DataFrame(cells, sizes.index, sizes.columns)


def _sizes(clusters: Mapping[str, pd.Series]) -> pd.DataFrame:
    """The sizes of clusters by site, with totals."""
    labels = {label for part in clusters.values() for label in part.unique()}
    order = sorted(labels, key=lambda label: (isinstance(label, str), label))
    counts = np.array([[(part == k).sum() for k in order] for part in clusters.values()])
    return pd.DataFrame(add_totals(counts), [*clusters, "all"], [*order, "all"])


def _described(data: Sequences, total: float, after: str | None, window: str) -> dict[str, Any]:
    """One row of `describe_clusters`."""
    n = float(data.weights.sum())
    row: dict[str, Any] = {"n": n, "share": _ratio(n, total)}
    if not n > 0:
        nothing = {"first": None, "first_share": np.nan, "time": None, "n_then": 0.0}
        nothing |= {"still": np.nan, "switch_to": None, "switch_share": np.nan}
        nothing |= {"switches": np.nan, "path": None, "path_share": np.nan, "switchers": 0.0}
        nothing |= {"until_switch": np.nan, "end": None, "end_share": np.nan}
        return row | nothing | {"description": "no patients"}
    begins = _weight_by_state(data, data.codes[:, 0])
    first = int(begins.argmax())
    last = int(np.flatnonzero((data.codes >= 0).any(axis=0))[-1])
    then = _weight_by_state(data, data.codes[:, last])
    switches = _switch_counts(data)
    to = switches[first]
    row |= {
        "first": data.states[first],
        "first_share": _ratio(begins[first], begins.sum()),
        "time": data.times[last],
        "n_then": then.sum(),
        "still": _ratio(then[first], then.sum()),
        "switch_to": data.states[int(to.argmax())] if to.sum() > 0 else None,
        "switch_share": _ratio(to.max(), to.sum()),
        "switches": switches.sum() / n,
        **_course(data, n),
    }
    return row | {"description": wording(row, after, window)}


def _course(data: Sequences, n: float) -> dict[str, Any]:
    """The most common path, the time to the first switch, and the most common last state."""
    lines = line_codes(data, _PATH)
    paths, number = np.unique(lines, axis=0, return_inverse=True)
    weight = np.bincount(number.ravel(), weights=data.weights, minlength=len(paths))
    best = paths[weight.argmax()]
    switched = (lines[:, 1] >= 0) & (data.weights > 0)
    changed = (data.codes != data.codes[:, :1]) & (data.codes >= 0)
    until = changed.argmax(axis=1)[switched]
    last = data.codes[np.arange(len(data)), _last_observed(data)]
    ends = _weight_by_state(data, last)
    return {
        "path": ARROW.join(data.states[code] for code in best[best >= 0]),
        "path_share": _ratio(weight.max(), n),
        "switchers": float(switched.sum()),
        "until_switch": float(np.median(until)) if len(until) else np.nan,
        "end": data.states[int(ends.argmax())],
        "end_share": _ratio(ends.max(), ends.sum()),
    }


def _last_observed(data: Sequences) -> NDArray[np.intp]:
    """The position of each patient's last observed state."""
    last: NDArray[np.intp] = data.shape[1] - 1 - (data.codes[:, ::-1] >= 0).argmax(axis=1)
    return last


def name_clusters(described: pd.DataFrame, min_count: int = 0) -> list[str | None]:
    """A short name for each cluster, from its row of `describe_clusters`.

    "A persisters" stay on A; "mostly A" end on it too, but with at least one switch per patient (or
    they have the name of the path that most of them take, such as "A → B → A"); "A → B" switch from
    A to B more often than to all others together; "A → several" go on to several states. Clusters
    that would have the same name are called by their most common path, or if that is the same too
    by their last state, or else by how early they switch. A cluster without a description has no
    name, and paths and last states of fewer than `min_count` patients are not told.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "B", "B"], ["A", "A", "B"]])
    >>> name_clusters(describe_clusters(s, [1, 2, 3]))
    ['A persisters', 'A → B (early)', 'A → B (late)']
    """
    names: list[str | None] = []
    for row in described.to_dict("records"):
        first, to = row["first"], row["switch_to"]
        if first is None or pd.isna(first):
            names.append(None)
        elif to is None or pd.isna(to) or row["still"] >= 0.5:
            names.append(_name_of_stayers(row, min_count))
        elif row["switch_share"] >= 0.5:
            names.append(f"{first}{ARROW}{to}")
        else:
            names.append(f"{first}{ARROW}several")
    for name in {n for n in names if n is not None and names.count(n) > 1}:
        same = [i for i, other in enumerate(names) if other == name]
        others = _told_apart(name, described.iloc[same], {*names} - {name}, min_count)
        for i, other in zip(same, others, strict=True):
            names[i] = other
        same = [i for i, other in enumerate(names) if other == name]
        until = described["until_switch"].iloc[same]
        if len(same) < 2:
            continue
        order = np.array(same)[np.argsort(until.fillna(np.inf), kind="stable")]
        kinds = ["early", "late"] if len(same) == 2 else [str(k + 1) for k in range(len(same))]
        for i, kind in zip(order, kinds, strict=True):
            names[i] = f"{name} ({kind})"
    return names


def _name_of_stayers(row: Mapping[Any, Any], min_count: int) -> str:
    """The name of a cluster most of whose patients are on its first state at the end."""
    first = row["first"]
    if not row["switches"] >= 1:
        return f"{first} persisters"
    common = row["path_share"] >= 0.5 and not is_small(
        round(row["path_share"] * row["n"], 6), min_count
    )
    return str(row["path"]) if common and row["path"] != first else f"mostly {first}"


def _told_apart(name: str, rows: pd.DataFrame, taken: set[str | None], min_count: int) -> list[str]:
    """Names by path or last state where these differ; otherwise the common name again."""
    if ARROW not in name:  # those who stay, and those who most often leave and return
        few = is_small((rows["path_share"] * rows["n"]).round(6), min_count)
        new = rows["path"].where(rows["path"] != rows["first"], name).mask(few, name)
        if new.is_unique and not taken & {*new}:
            return list(new)
    if ARROW in name:
        kinds = {"path": rows["path"], "end": name + ", ending on " + rows["end"]}
        for kind, new in kinds.items():
            few = is_small((rows[f"{kind}_share"] * rows["n"]).round(6), min_count)
            if new.mask(few).notna().all() and new.is_unique and not taken & {*new}:
                return list(new)
    return [name] * len(rows)


def _switch_counts(data: Sequences) -> NDArray[np.float64]:
    """Weighted number of switches from each state to each other one, (S, S)."""
    patient, time = np.nonzero(data.codes >= 0)
    state = data.codes[patient, time].astype(np.intp)
    moved = (patient[1:] == patient[:-1]) & (state[1:] != state[:-1])
    count = np.zeros((data.n_states, data.n_states))
    np.add.at(count, (state[:-1][moved], state[1:][moved]), data.weights[patient[1:][moved]])
    return count


def _weight_by_state(data: Sequences, codes: NDArray[np.int8]) -> NDArray[np.float64]:
    seen = codes >= 0
    weight = np.bincount(codes[seen], weights=data.weights[seen], minlength=data.n_states)
    return weight.astype(float)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else np.nan


def wording(row: Mapping[Any, Any], after: str | None, window: str = "time") -> str:
    """A row of `describe_clusters` in words."""
    first, to = row["first"], row["switch_to"]
    path = row["path"]
    moves = row["switches"] >= 1 or (path is not None and not pd.isna(path) and path != first)
    if row["still"] >= 0.5 or to is None:
        course = f"mostly on {first}" if moves else f"stay on {first}"
    elif row["switch_share"] >= 0.5:
        course = f"start on {first}, then {to}"
    else:
        course = f"start on {first}, then go on to several, most often {to}"
    when = f"observed at time {row['time']}" if after is None else f"still observed after {after}"
    if not course.startswith("stay"):
        if row["until_switch"] == row["until_switch"]:
            n = row["until_switch"]
            course += ", with a first switch" if course.startswith("mostly") else ","
            course += f" after {n:g} {window if n == 1 else plural(window)} (median)"
        if row["path"] is not None and not pd.isna(row["path"]):
            course += f"; the most common path is {row['path']} ({percent_text(row['path_share'])})"
        if row["end"] is not None and not pd.isna(row["end"]):
            course += f"; {percent_text(row['end_share'])} end on {row['end']}"
    return (
        f"{percent_text(row['share'])}: {course}; {percent_text(row['still'])} of those "
        f"{when} are on {first}; {rate_text(row['switches'])} switches per patient"
    )


def plural(window: str) -> str:
    """The plural of a unit of time.

    >>> plural("quarter"), plural("window of 45 days")
    ('quarters', 'windows of 45 days')
    """
    first, *rest = window.split(" ")
    return " ".join([f"{first}s", *rest])


def percent_text(share: float | Guarded) -> str:
    """A share in per cent, with one decimal where that matters.

    Values near 0 or 100 % print as <0.1 % or >99.9 %, and only 0 and 1 themselves as 0 and 100 %.

    Examples
    --------
    >>> [percent_text(share) for share in (0, 0.0004, 0.042, 0.664, 0.995, 0.9996, 1)]
    ['0 %', '<0.1 %', '4.2 %', '66 %', '99.5 %', '>99.9 %', '100 %']
    """
    if isinstance(share, Guarded):
        return share.text
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    digits = 0 if share in (0, 1) or 0.0995 <= share <= 0.9 else 1
    return f"{100 * share:.{digits}f} %"


def rate_text(rate: float | Guarded) -> str:
    """A mean number per patient, with two decimals below 1."""
    if isinstance(rate, Guarded):
        return rate.text
    if 0 < rate < 0.005:
        return "<0.01"
    return f"{rate:.0f}" if rate == 0 else f"{rate:.{2 if rate < 0.995 else 1}f}"


def certainty_by_class(model: Any, weights: ArrayLike | None = None) -> pd.DataFrame:
    """How certain the patients' class membership is, class by class.

    Parameters
    ----------
    model : fitted MixtureMarkov, or a table like its `posterior_` (class, probability)
    weights : (n,), optional
        Case weights of the patients.

    Returns
    -------
    DataFrame
        class, `patients`, `mean` of the probability of the patients' own class, its `q05`,
        `q25`, `median`, `q75` and `q95`, and `sure`, the share of patients above 0.8.

    Examples
    --------
    >>> table = pd.DataFrame({"class": [1, 1, 2], "probability": [0.9, 0.7, 1.0]})
    >>> certainty_by_class(table)[["class", "patients", "mean", "sure"]]
       class  patients  mean  sure
    0      1         2   0.8   0.5
    1      2         1   1.0   1.0
    """
    posterior = getattr(model, "posterior_", model)
    of_type(posterior, pd.DataFrame, "a fitted model (call its fit first) or its posterior_")
    need_columns(posterior, ["class", "probability"])
    if not len(posterior):
        raise ValueError("there are no patients to describe.")
    n = len(posterior)
    weight = pd.Series(np.ones(n) if weights is None else numbers_for(weights, n, "weights"))
    by_class = (
        posterior["probability"].reset_index(drop=True).groupby(posterior["class"].to_numpy())
    )
    rows = []
    for label, p in by_class:
        w = weight[p.index].to_numpy()
        if w.sum() > 0:
            cuts = np.quantile(p, [0.05, 0.25, 0.5, 0.75, 0.95], weights=w, method="inverted_cdf")
            sure = float(np.average(p > _SURE, weights=w))
            rows.append([label, int((w > 0).sum()), np.average(p, weights=w), *cuts, sure])
    names = ["class", "patients", "mean", "q05", "q25", "median", "q75", "q95", "sure"]
    return pd.DataFrame(rows, columns=names)
