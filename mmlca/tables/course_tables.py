"""Tables of courses as people may see them: exact without small numbers, or rounded.

*Inside* a hospital the numbers are exact. One based on fewer than `min_count` patients is
blank, and so is what would reveal it inside the same row. In a *public* release every count is
rounded at random (`mmlca.tables.disclosure`), and shares are those of the rounded counts; nothing
else need be hidden, whichever tables are put side by side.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.sequences.type import Sequences
from mmlca.tables.clusters import wording
from mmlca.tables.disclosure import (
    EVERYONE,
    Guarded,
    Key,
    Rounding,
    bounded_parts,
    few_patients,
    guarded_share,
    hides,
    is_small,
    shares_of,
)

_PATHS = ("path", "second_path")
_OF_ALL = ("first_share", "still", *(f"{name}_share" for name in (*_PATHS, "end")))


CourseKeys = dict[tuple[str, ...], Key]
"""The names of those who are ever in a state, by site (or "all" of them), group and state; and of
those who ever make a step, by site, group and both states."""


class Courses(NamedTuple):
    """The tables of one way to group the patients, by site and group, as figures draw them.

    `state_distribution`, `transition_counts` and `treatment_paths`, each with the size of its group
    as people may see it: in a column `size`, blank where it may not be shown, or `rounded_size` if
    all counts are rounded. Exact tables are for figures, which hide small numbers themselves;
    `shown` gives what may be written.

    Parameters
    ----------
    distribution, transitions, paths : DataFrame
    few : {(site, group)}
        Groups of fewer than `min_count` patients.
    min_count : int
    """

    distribution: pd.DataFrame
    transitions: pd.DataFrame
    paths: pd.DataFrame
    few: frozenset[tuple[str, str]] = frozenset()
    min_count: int = 0

    @property
    def rounded(self) -> bool:
        return "rounded_size" in self.distribution

    def without_counts(self, table: pd.DataFrame) -> pd.DataFrame:
        """Such a table without counts of groups whose size may not be shown."""
        if self.rounded:
            return table
        return table.assign(count=table["count"].astype(float).mask(table["size"].isna()))

    def shown(self, name: str) -> pd.DataFrame:
        """One of the tables, blank where it must be.

        Where a share would reveal a small number, the column `at_least` has a lower bound of it.
        Groups whose size may not be shown because it would reveal a smaller one have shares and
        no counts; those of fewer than `min_count` patients have nothing.
        """
        table: pd.DataFrame = getattr(self, name)
        patients = ["patients", "n_patients"]
        if not hides(self.min_count):
            return table.drop(columns=patients, errors="ignore")
        if not self.rounded:
            if name == "distribution":
                table = _bounded(table, "share", ["time"], [], self.min_count)
            elif name == "transitions":
                table = _bounded(table, "rate", ["from"], patients, self.min_count)
            table = self.without_counts(table)
            if "n" in table:
                table = table.assign(n=table["n"].astype(float).mask(table["size"].isna()))
        table = table.drop(columns=patients, errors="ignore")
        pairs = zip(table["site"], table["group"], strict=True)
        blank = np.array([(str(site), str(group)) in self.few for site, group in pairs], dtype=bool)
        numbers = [c for c in ("count", "n", "share", "rate", "at_least") if c in table]
        return table.assign(**{c: table[c].astype(float).mask(blank) for c in numbers})


# --- inside ---------------------------------------------------------------------------------


def _bounded(
    table: pd.DataFrame, share: str, by: list[str], patients: list[str], min_count: int
) -> pd.DataFrame:
    """Counts, their totals n and shares without small ones, by site, group and `by`."""
    small = is_small(table["count"] if not patients else table[patients[0]], min_count)
    for name in patients[1:]:
        small |= is_small(table[name], min_count)
    count = table["count"].to_numpy(dtype=float)
    hidden, no_total = small.copy(), np.zeros(len(table), dtype=bool)
    at_least = np.full(len(table), np.nan)
    for rows in table.groupby(["site", "group", *by], sort=False, observed=True).indices.values():
        parts = bounded_parts(count[rows], min_count, small[rows])
        hidden[rows] = parts.hidden | parts.hidden_total
        no_total[rows] = parts.hidden_total
        at_least[rows] = parts.at_least
    return table.assign(
        **{
            "count": table["count"].mask(hidden),
            share: table[share].mask(hidden),
            "at_least": at_least / table["n"],
            "n": table["n"].mask(no_total),
        }
    )


def guarded_clusters(
    described: pd.DataFrame,
    steps: pd.DataFrame,
    sizes: pd.DataFrame,
    min_count: int,
    after: str | None = None,
    window: str = "time",
) -> pd.DataFrame:
    """`describe_clusters` with guarded numbers instead of small ones, and of those beside them.

    A share of which few patients are a part, or few are not, is guarded: it has a text in place
    of its number. Clusters of few patients are blank.

    Parameters
    ----------
    described : DataFrame
    steps : DataFrame
        site, group (the number of the cluster), from, to and `patients`, as in
        `transition_counts`.
    sizes : DataFrame
        Those that may be shown; see `mmlca.study.results.shown_courses.sizes_of`.
    min_count : int
    after, window : str
        As in `describe_clusters`.
    """
    rows = []
    for row in described.to_dict("records"):
        n, site = float(row["n"]), row.get("site", EVERYONE)
        if is_small(n, min_count):
            rows.append(_without_numbers(row, few_patients(min_count)))
            continue
        new = dict(row)
        for name in (name for name in _OF_ALL if name in row and not pd.isna(row[name])):
            whole = float(row["n_then"]) if name == "still" else n
            new[name] = guarded_share(row[name] * whole, whole, min_count)
            if name.endswith("_share") and is_small(round(row[name] * whole, 6), min_count):
                new |= {name: np.nan, name.removesuffix("_share"): None}
        few = is_small(row["switchers"], min_count)
        if few:
            new |= {"switches": Guarded(row["switches"], "few"), "until_switch": np.nan}
        if few or is_small(n - row["switchers"], min_count):
            new["switchers"] = np.nan
        x = steps[steps["group"] == row["cluster"]]
        x = x[x["site"] == row["site"]] if "site" in row else x
        if few or _few_switch(x, row, min_count):
            new |= {"switch_to": None, "switch_share": np.nan}
        if is_small(row["n_then"], min_count):
            new |= {"n_then": np.nan, "still": Guarded(row["still"], "few")}
        if np.isnan(sizes.at[site, row["cluster"]]):
            new |= {"n": np.nan, "n_then": np.nan, "switchers": np.nan}
            new["share"] = Guarded(row["share"], "some")
        rows.append(new | {"description": wording(new, after, window)})
    columns = {}
    for name in described:
        values = [row.get(name) for row in rows]
        guarded = any(isinstance(value, Guarded) for value in values)
        columns[name] = pd.Series(values, described.index, dtype=object if guarded else None)
    return pd.DataFrame(columns)


def _few_switch(steps: pd.DataFrame, row: Mapping[Hashable, Any], min_count: int) -> bool:
    """Whether few patients go where most who leave the first state go, or few go elsewhere."""
    leave = steps[(steps["from"] == row["first"]) & (steps["to"] != row["first"])]
    there = leave["to"] == row["switch_to"]
    parts = [leave.loc[there, "patients"].sum(), leave.loc[~there, "patients"].sum()]
    return bool(is_small(parts, min_count).any())


def _without_numbers(row: Mapping[Hashable, Any], why: str) -> dict[Hashable, Any]:
    kept: dict[Hashable, Any] = {n: row[n] for n in ("site", "cluster", "name") if n in row}
    return kept | ({"description": why} if "description" in row else {})


def without_few(described: pd.DataFrame, least: int) -> pd.DataFrame:
    """`describe_clusters` from rounded counts; clusters of fewer patients are blank."""
    rows = []
    for row in described.to_dict("records"):
        size = {"n": row["n"], "share": row["share"]}
        blank = _without_numbers(row, "too few patients to be described") | size
        rows.append(blank if is_small(row["n"], least) else row)
    return pd.DataFrame(rows, columns=described.columns, index=described.index)


# --- rounded --------------------------------------------------------------------------------


def course_keys(
    data: Mapping[str, Sequences], groups: Mapping[str, pd.Series], rounding: Rounding
) -> CourseKeys:
    """The names of the sets of patients who are ever in a state, and who ever make a step."""
    keys: CourseKeys = {}
    for site, part in data.items():
        labels = groups[site].reindex(part.ids).astype(str).to_numpy()
        states, now, then = part.states, part.codes[:, :-1], part.codes[:, 1:]
        sets: dict[tuple[str, ...], NDArray[np.bool_]]
        sets = {(state,): (part.codes == k).any(axis=1) for k, state in enumerate(states)}
        for a, b in np.unique(np.stack([now, then], axis=-1)[(now >= 0) & (then >= 0)], axis=0):
            sets[states[a], states[b]] = ((now == a) & (then == b)).any(axis=1)
        for what, members in sets.items():
            for group in np.unique(labels[members]):
                key = rounding.key_of(part.ids[members & (labels == group)])
                for place in (site, EVERYONE):
                    name = (place, str(group), *what)
                    keys[name] = min(keys.get(name, key), key)
    return keys


def _by_state(table: pd.DataFrame, state: str, rounding: Rounding, keys: CourseKeys) -> list[float]:
    """The counts of patients in the states of a column."""
    rows = zip(table["site"], table["group"], table[state].astype(str), table["count"], strict=True)
    return [
        rounding.named(n, keys.get((site or EVERYONE, str(group), name), ""))
        for site, group, name, n in rows
    ]


def rounded_distribution(table: pd.DataFrame, rounding: Rounding, keys: CourseKeys) -> pd.DataFrame:
    n = rounding.column(table, "n")  # at the first time that is the size of the group
    count = pd.Series(_by_state(table, "state", rounding, keys), table.index, dtype=float)
    count = count.clip(upper=n)
    share = shares_of(count, table, ["site", "group", "time"])
    return table.assign(count=count, n=n, share=share).drop(columns="patients")


def rounded_paths(table: pd.DataFrame, rounding: Rounding, keys: CourseKeys) -> pd.DataFrame:
    """Paths of `keyed_paths`; a path's share is divided among its continuations by their numbers.

    The first line is the first state, so that it is rounded as that is in other tables.
    """
    pairs = zip(table["site"], table["group"], table["path"], strict=True)
    first = np.array([(s or EVERYONE, str(g), path) in keys for s, g, path in pairs], dtype=bool)
    drawn = zip(table["count"], table["key"], strict=True)
    count = pd.Series([rounding.named(n, key) for n, key in drawn], table.index, dtype=float)
    count[first] = _by_state(table[first], "path", rounding, keys)
    table = table.assign(count=count).drop(columns=["patients", "key"])
    table = table.assign(share=share_of_paths(table))
    return table[table["share"] > 0]


def share_of_paths(table: pd.DataFrame) -> pd.Series:
    """The share of each path, divided among its continuations by their numbers."""
    part = shares_of(table["count"], table, ["site", "group", "parent"]).fillna(0.0)
    share: dict[tuple[Any, ...], float] = {}
    rows = zip(table["site"], table["group"], table["parent"], table["path"], strict=True)
    for (site, group, parent, path), own in zip(rows, part, strict=True):
        share[site, group, path] = own * share.get((site, group, parent), 1.0)
    return pd.Series(list(share.values()), table.index)
