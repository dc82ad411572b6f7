"""Tables of courses that are shown together, from counts that are rounded at random.

The tables of one study count the same patients in many ways: by state and time, by step, by line,
by the ensemble's clusters and by each site's own classes. They add up to each other, and what one
of them hides another gives away: to hide everything that tells a small number, most of all numbers
would have to go. So these tables are made of rounded counts, by the rule of everything that leaves
a hospital: c becomes the multiple of `min_count` below or above it, the upper one with the
probability that makes the average right. Totals, shares and rates are those of the rounded counts.

The draws come from the data themselves: the same data give the same tables, and nobody who lacks
the data can repeat the draws. The same cell of two groupings gets the same draw, also where the
groups are called otherwise, so that nothing can be averaged. Where the size of a group, which is
exact, would narrow a small number down, the cells of that row are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mmlca.sequences.type import Sequences
from mmlca.tables import describe
from mmlca.tables.clusters import PATHS, hidden_sizes, wording
from mmlca.tables.lines import treatment_paths
from mmlca.tables.suppress import Draw, Name, hide_rows, is_small, round_row


class Courses(NamedTuple):
    """The tables of one way to group the patients, by site and group.

    Nothing shows in rows marked `hidden`: those of groups whose size may not be shown, and steps
    that fewer than `min_count` patients make.
    """

    distribution: pd.DataFrame
    transitions: pd.DataFrame
    paths: pd.DataFrame

    def shown(self, name: str) -> pd.DataFrame:
        """One of the tables, blank where it is hidden."""
        table: pd.DataFrame = getattr(self, name)
        numbers = ("count", "n", "share", "rate", "patients", "n_patients")
        blank = {c: table[c].astype(float).mask(table["hidden"]) for c in numbers if c in table}
        return table.assign(**blank).drop(columns="hidden")


def rounded_courses(
    data: Mapping[str, Sequences],
    groups: Mapping[str, pd.Series],
    min_count: int,
    numbers: Mapping[Any, Any] | None = None,
) -> Courses:
    """`state_distribution`, `transition_counts` and `treatment_paths` from rounded counts.

    Parameters
    ----------
    data : {site: Sequences}
    groups : {site: group of each patient, by id}
    min_count : int
        0 and 1 round nothing.
    numbers : {group: its number}, optional
        What the draws go by. Groups of the same number have the same draws whatever they are
        called; by default the draws go by `groups`.

    Examples
    --------
    >>> data = Sequences.from_lists([["A", "A"]] * 30 + [["A", "B"]] * 3 + [["A", "C"]] * 14)
    >>> groups = pd.Series(1, index=data.ids)
    >>> table = rounded_courses({"x": data}, {"x": groups}, 11).shown("distribution")
    >>> set(table["count"] % 11)
    {0.0}
    """
    hidden = hidden_sizes(groups, min_count)
    parts: dict[str, list[pd.DataFrame]] = {"distribution": [], "transitions": [], "paths": []}
    for site, part in data.items():
        own = groups[site]
        unseen = {group for group in hidden if group != "all" and hidden.at[site, group]}
        rounding = _Rounding(part, own, min_count, unseen, numbers or {})
        for name, table in (
            ("distribution", rounding.distribution()),
            ("transitions", rounding.transitions()),
            ("paths", rounding.paths()),
        ):
            table.insert(0, "site", site)
            parts[name].append(table)
    return Courses(**{name: pd.concat(part, ignore_index=True) for name, part in parts.items()})


def rounded_clusters(
    described: pd.DataFrame,
    courses: Mapping[str, Courses],
    hidden: ArrayLike,
    min_count: int,
    draws: Mapping[str, Draw],
    after: str | None = None,
    window: str = "time",
) -> pd.DataFrame:
    """`describe_clusters` with all but the sizes from rounded counts.

    Parameters
    ----------
    described : DataFrame
        With a column `group`, the name of the cluster in `courses`.
    courses : {site: Courses}
        "" for all sites together, each with that site alone.
    hidden : rows whose cluster may not show its size: they are blank
    min_count : int
    draws : {site: draws}, as `courses`; see `data_draws`
    after, window : str
        As in `describe_clusters`.
    """
    rows = []
    for row in described.to_dict("records"):
        site = row.get("site", "")
        further = _rounded_course(row, min_count, draws[site])
        rows.append(_rounded_cluster(row | further, courses[site], after, window))
    kept = [name for name in described if name != "group"]
    table = pd.DataFrame(rows, columns=described.columns, index=described.index)[kept]
    return hide_rows(table, ["site", "cluster"], hidden)


def _rounded_cluster(
    row: dict[Hashable, Any], courses: Courses, after: str | None, window: str
) -> dict[Hashable, Any]:
    d, x = (t[t["group"] == row["group"]] for t in (courses.distribution, courses.transitions))
    if not len(d):
        return row
    first = d[d["time"] == d["time"].iloc[0]].set_index("state")
    then = d[d["time"] == row["time"]].set_index("state")
    name, n_then = first["count"].idxmax(), float(then["count"].sum())
    changes = x[(x["from"] != x["to"].astype(x["from"].dtype)) & ~x["hidden"]]
    leave = changes[changes["from"] == name].set_index("to")["count"]
    some, begun = float(leave.sum()), float(first["count"].sum())
    row = row | {
        "first": name,
        "first_share": float(first.at[name, "share"]),
        "n_then": n_then,
        "still": float(then.at[name, "count"] / n_then) if n_then else np.nan,
        "switch_to": leave.idxmax() if some else None,
        "switch_share": float(leave.max() / some) if some else np.nan,
        "switches": float(changes["count"].sum() / begun) if begun else np.nan,
    }
    if not begun or not n_then:
        return row | {"description": f"start on {name}"}
    return row | {"description": wording(row, after, window)}


def _rounded_course(row: Mapping[Hashable, Any], min_count: int, draw: Draw) -> dict[Hashable, Any]:
    """The path, the last state and the first switch, with rounded numbers of patients."""
    n, group = float(row["n"]), row["cluster"]

    def rounded(parts: Mapping[str, float]) -> list[float]:
        """Counts of parts of the cluster, and last of those who are in none of them."""
        names = [*parts, f"not {next(iter(parts))}"]
        counts = [*parts.values(), n - sum(parts.values())]
        return list(round_row(counts, [(group, c) for c in names], n, min_count, draw))

    new: dict[Hashable, Any] = {}
    for names in (PATHS, ("end",)):
        known = [name for name in names if not pd.isna(row[name])]
        counts = {name: round(float(row[f"{name}_share"]) * n, 6) for name in known}
        told = rounded(counts) if known else []
        shown = [
            (count / sum(told), row[name])
            for name, count in zip(known, told, strict=False)
            if not is_small(counts[name], min_count)
        ]
        shown.sort(key=lambda pair: -pair[0])  # rounded, the second may be the more common one
        for name, (share, value) in zip_longest(names, shown, fillvalue=(np.nan, None)):
            new |= {name: value, f"{name}_share": share}
    few = bool(is_small(row["switchers"], min_count))
    new["switchers"] = rounded({"switchers": float(row["switchers"])})[0]
    new["until_switch"] = np.nan if few else row["until_switch"]
    return new


def data_draws(data: Sequences) -> Draw:
    """A uniform number for each name, from a secret that only the data themselves give.

    Examples
    --------
    >>> draw = data_draws(Sequences.from_lists([["A", "B"], ["B", "B"]]))
    >>> draw(("a", 1)) == draw(("a", 1)) != draw(("a", 2))
    True
    """
    about = data.codes.tobytes() + repr((data.codes.shape, list(map(str, data.ids)))).encode()
    secret = hashlib.sha256(about).digest()

    def draw(name: Name) -> float:
        digest = hashlib.sha256(secret + repr(tuple(map(str, name))).encode()).digest()
        return int.from_bytes(digest[:6]) / 2**48

    return draw


class _Rounding:
    """One site's tables. `size` is the number of patients of each group, `unseen` are groups."""

    def __init__(
        self,
        data: Sequences,
        groups: pd.Series,
        min_count: int,
        unseen: set[Any],
        numbers: Mapping[Any, Any],
    ) -> None:
        self.data, self.groups, self.min_count, self.unseen = data, groups, min_count, unseen
        self.numbers = numbers
        self.size = groups.value_counts().to_dict()
        self.draw = data_draws(data)

    def _count(
        self, table: pd.DataFrame, row: list[str], cell: str, most: Callable[[Any], float]
    ) -> NDArray[np.float64]:
        """The rounded counts of a table; rows with the same columns `row` are drawn together."""
        count: NDArray[np.float64] = table["count"].to_numpy(dtype=float).copy()
        sets = table.groupby(row, sort=False, observed=True, dropna=False).indices
        for key, at in sets.items():
            group, *rest = key
            cells = table[cell].astype(object).iloc[at]
            names = [(self.numbers.get(group, group), *rest, str(value)) for value in cells]
            count[at] = round_row(count[at], names, most(key), self.min_count, self.draw)
        return count

    def _hidden(self, table: pd.DataFrame) -> NDArray[np.bool_]:
        unseen = [group in self.unseen for group in table["group"]]
        hidden: NDArray[np.bool_] = np.array(unseen, dtype=bool)
        return hidden

    def distribution(self) -> pd.DataFrame:
        table = describe.state_distribution(self.data, self.groups)
        count = self._count(table, ["group", "time"], "state", lambda key: self.size[key[0]])
        table = table.assign(count=count)
        n = table.groupby(["group", "time"], sort=False, observed=True)["count"].transform("sum")
        return table.assign(n=n, share=_ratio(count, n), hidden=self._hidden(table))

    def transitions(self) -> pd.DataFrame:
        """Steps; those that few patients make are hidden and count for nothing."""
        table = describe.transition_counts(self.data, self.groups)
        few = is_small(table["patients"], self.min_count)
        row = ["group", "from"]
        count = np.where(few, 0.0, self._count(table, row, "to", lambda key: np.inf))
        table = table.drop(columns=["patients", "n_patients"]).assign(count=count)
        n = table.groupby(row, sort=False, observed=True)["count"].transform("sum")
        return table.assign(n=n, rate=_ratio(count, n), hidden=self._hidden(table) | few)

    def paths(self) -> pd.DataFrame:
        """Paths of lines: the ends of the tree are rounded, and what they add up to follows."""
        table = treatment_paths(self.data, self.groups, min_count=self.min_count)
        keys = list(zip(table["group"], table["path"], strict=True))
        above = list(zip(table["group"], table["parent"], strict=True))
        inner = set(above)
        ends = np.array([key not in inner for key in keys], dtype=bool)
        count = np.zeros(len(table))
        count[ends] = self._count(
            table[ends].assign(paths="paths"), ["group", "paths"], "path",
            lambda key: self.size[key[0]],
        )  # fmt: skip
        at = {key: i for i, key in enumerate(keys)}
        for i in reversed(range(len(table))):  # a path comes before its continuations
            if above[i] in at:
                count[at[above[i]]] += count[i]
        table = table.assign(count=count, patients=count)
        begun = table["count"].where(table["line"] == 1, 0.0).groupby(table["group"])
        share = _ratio(count, begun.transform("sum"))
        table = table.assign(share=share, hidden=self._hidden(table))
        return table[(count > 0) | table["hidden"]]


def _ratio(part: NDArray[np.float64], whole: pd.Series) -> NDArray[np.float64]:
    n = whole.to_numpy(dtype=float)
    share: NDArray[np.float64] = np.divide(part, n, out=np.full(len(n), np.nan), where=n > 0)
    return share
