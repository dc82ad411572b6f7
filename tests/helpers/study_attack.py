"""An attack on everything that a study shows: what do all its tables together tell of a number?

The unknowns are the numbers of patients in each state by site, group and time, for every way to
group them (the ensemble's clusters, those of the refinement, the sites' own classes), the steps,
and who moved from which cluster to which refined one. All that the tables show becomes a bound or a
sum, a reader's knowledge of how they are made included; linear programmes then give the least and
the greatest value that each number could have.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import linprog
from scipy.sparse import coo_array

Name = tuple[Hashable, ...]


class System:
    """Unknown numbers with bounds, and sums of them that are known."""

    def __init__(self) -> None:
        self.at: dict[Name, int] = {}
        self.low: list[float] = []
        self.high: list[float] = []
        self.equal: list[tuple[dict[int, float], float]] = []
        self.less: list[tuple[dict[int, float], float]] = []

    def unknown(self, name: Name, low: float = 0.0, high: float = np.inf) -> int:
        """The position of an unknown; what was known of its range stays known."""
        index = self.at.setdefault(name, len(self.low))
        if index == len(self.low):
            self.low.append(0.0)
            self.high.append(np.inf)
        self.low[index] = max(self.low[index], low)
        self.high[index] = min(self.high[index], high)
        return index

    def range_of(self, name: Name) -> tuple[float, float]:
        """The least and the greatest value that a number could have."""
        n = len(self.low)
        cost = np.zeros(n)
        cost[self.at[name]] = 1.0
        system = {"bounds": np.column_stack([self.low, self.high])}
        for kind, rows in (("eq", self.equal), ("ub", self.less)):
            if rows:
                system[f"A_{kind}"] = _matrix([terms for terms, _ in rows], n)
                system[f"b_{kind}"] = [value for _, value in rows]
        ends = []
        for sign in (1.0, -1.0):
            solution = linprog(sign * cost, method="highs", **system)
            assert solution.status in (0, 3), solution.message  # what is shown is possible
            ends.append(sign * solution.fun if solution.status == 0 else np.inf)
        return ends[0], ends[1]


class Attack(System):
    """What a folder of results tells about one site."""

    def __init__(self, out: Path, site: str, min_count: int = 11) -> None:
        super().__init__()
        self.site, self.unit = site, min_count
        headline = pd.read_csv(out / "tables/headline.csv")
        whole = headline.query("kind == 'patients' and sites == @site")["value"].iloc[0]
        published = headline.query("kind == 'share of' and sites == @site").set_index("group")["n"]
        sizes = {"ensemble": published.rename(number)}
        views = ["ensemble", "local"]
        if (out / "figures/state_distribution_refined.csv").exists():
            views.append("refined")
            table = pd.read_csv(out / "tables/refined_sizes.csv").query("site == @site")
            sizes["refined"] = table.set_index("group")["refined"].rename(number)
        by_view = {}
        for view in views:
            table = self._read(out / f"figures/state_distribution_{view}.csv")
            by_view[view] = table
            self._distribution(view, table, sizes.get(view), whole)
            self._steps(view, self._read(out / f"figures/transitions_{view}.csv"), table)
            self._paths(view, self._read(out / f"figures/lines_{view}.csv"), table)
            frequencies = out / f"figures/frequencies_{view}.csv"
            if frequencies.exists():
                self._frequencies(view, self._read(frequencies), table)
        for view in views[1:]:
            self._same_patients(by_view, view)
        if "refined" in views:
            self._moves(out, by_view)

    def _read(self, path: Path) -> pd.DataFrame:
        table = pd.read_csv(path)
        return table[table["site"] == self.site].assign(group=lambda t: t["group"].map(number))

    def _cell(self, name: Name, shown: float = np.nan) -> int:
        """An unknown; what is shown is less than the unit away, a zero may be small."""
        if np.isnan(shown):
            return self.unknown(name)
        return self.unknown(name, shown - self.unit + 1, shown + self.unit - 1)

    def _distribution(
        self, view: str, table: pd.DataFrame, sizes: pd.Series | None, whole: float
    ) -> None:
        firsts = []
        for group, rows in table.groupby("group", sort=False):
            before: list[int] = []
            for _, now in rows.groupby("time", sort=False):
                cells = [
                    self._cell((view, group, r.time, r.state), r.count)
                    for r in now.itertuples(index=False)
                ]
                if before:  # nobody comes back
                    self.less.append((dict.fromkeys(cells, 1.0) | dict.fromkeys(before, -1.0), 0.0))
                else:
                    firsts += cells
                    if sizes is not None and not np.isnan(sizes[group]):
                        self.equal.append((dict.fromkeys(cells, 1.0), float(sizes[group])))
                before = cells
        self.equal.append((dict.fromkeys(firsts, 1.0), float(whole)))

    def _steps(self, view: str, table: pd.DataFrame, by_time: pd.DataFrame) -> None:
        times = list(dict.fromkeys(by_time["time"]))[1:]
        for (group, after), rows in table.groupby(["group", "to"], sort=False):
            into = {}
            for before, count in zip(rows["from"], rows["count"], strict=True):
                into[self._cell((view, "step", group, before, after), count)] = 1.0
            there = {self._cell((view, group, t, after)): -1.0 for t in times}
            self.equal.append((into | there, 0.0))

    def _paths(self, view: str, table: pd.DataFrame, by_time: pd.DataFrame) -> None:
        """Who begins in a state has it as first line: at least what its rounded ends leave."""
        first = next(iter(by_time["time"]))
        for group, rows in table.groupby("group", sort=False):
            paths, parents = set(rows["path"]), set(rows["parent"].dropna())
            for state in rows.loc[rows["line"] == 1, "path"]:
                if (view, group, first, state) not in self.at:
                    continue  # rare ones together
                ends = [
                    count
                    for path, count in zip(rows["path"], rows["count"], strict=True)
                    if path not in parents and (path == state or path.startswith(f"{state} → "))
                ]
                least = sum(max(0.0, count - self.unit + 1) for count in ends)
                index = self._cell((view, group, first, state))
                self.low[index] = max(self.low[index], least)
            assert paths

    def observed(self, times: list[int]) -> None:
        """Who is observed at these times, ("observed", group, time), and who left in between.

        ("left", group) are those of a group who are observed at the first of the times only.
        """
        groups = dict.fromkeys(name[1] for name in self.at if name[0] == "ensemble")
        for group in (name for name in groups if name != "step"):
            for time in times:
                cells = [name for name in self.at if name[:3] == ("ensemble", group, time)]
                _add(self, cells, ("observed", group, time))
            first, last = (("observed", group, time) for time in (times[0], times[-1]))
            _add(self, [last, ("left", group)], first)

    def _same_patients(self, tables: dict[str, pd.DataFrame], other: str) -> None:
        """All groups together are the same patients, whichever way they are grouped."""
        times = tables["ensemble"][["time", "state"]].drop_duplicates()
        for time, state in times.itertuples(index=False):
            terms = {}
            for view, sign in (("ensemble", 1.0), (other, -1.0)):
                for group in tables[view]["group"].unique():
                    terms[self._cell((view, group, time, state))] = sign
            self.equal.append((terms, 0.0))

    def _moves(self, out: Path, tables: dict[str, pd.DataFrame]) -> None:
        """Each cell of a cluster is the sum of those who stayed in it and who moved elsewhere."""
        moved = pd.read_csv(out / "tables/refined_moved.csv").set_index("ensemble")
        moved = moved.rename(index=number, columns=number)
        groups = {v: list(tables[v]["group"].unique()) for v in ("ensemble", "refined")}
        times = list(dict.fromkeys(tables["ensemble"]["time"]))
        states = list(dict.fromkeys(tables["ensemble"]["state"]))
        for time in times:
            for state in states:
                for view, other in (("ensemble", "refined"), ("refined", "ensemble")):
                    for group in groups[view]:
                        names = [
                            (group, g) if view == "ensemble" else (g, group) for g in groups[other]
                        ]
                        _add(
                            self,
                            [("moved", *name, time, state) for name in names],
                            (view, group, time, state),
                        )
        for before in groups["ensemble"]:
            for after in groups["refined"]:
                n = moved.at[before, after]  # at all sites
                first = [("moved", before, after, times[0], s) for s in states]
                self.unknown(("moved", before, after), high=np.inf if np.isnan(n) else float(n))
                _add(self, first, ("moved", before, after))
                for t, u in pairwise(times):  # nobody comes back
                    later = {self.at["moved", before, after, u, s]: 1.0 for s in states}
                    earlier = {self.at["moved", before, after, t, s]: -1.0 for s in states}
                    self.less.append((later | earlier, 0.0))
        table = pd.read_csv(out / "tables/refined_by_site.csv").set_index("site")
        n = table.at[self.site, "moved"]
        if not np.isnan(n):
            elsewhere = {
                self.at["moved", a, b]: 1.0
                for a in groups["ensemble"]
                for b in groups["refined"]
                if a != b
            }
            self.equal.append((elsewhere, float(n)))

    def _frequencies(self, view: str, table: pd.DataFrame, by_time: pd.DataFrame) -> None:
        """The courses that show are part of the numbers at each time."""
        times = list(dict.fromkeys(by_time["time"]))
        least: dict[Name, float] = {}
        for group, sequence, count in zip(
            table["group"], table["sequence"], table["count"], strict=True
        ):
            course = []
            for spell in sequence.split(" → "):
                state, n = spell.rsplit("×", 1)
                course += [state] * int(n)
            for time, state in zip(times, course, strict=False):
                name = (view, group, time, state)
                least[name] = least.get(name, 0.0) + count
        for name, n in least.items():
            index = self._cell(name)
            self.low[index] = max(self.low[index], n)


def _matrix(rows: list[dict[int, float]], n: int) -> coo_array:
    at = [(i, j, value) for i, terms in enumerate(rows) for j, value in terms.items()]
    i, j, value = zip(*at, strict=True)
    return coo_array((value, (i, j)), shape=(len(rows), n))


def number(group: str) -> str:
    """ "1" for "cluster 1" and "1: TNFi persisters"."""
    digits = re.search(r"[0-9]+", group)
    return group if digits is None else digits[0]


def moved_system(moved: pd.DataFrame, sizes: pd.DataFrame, by_site: pd.DataFrame) -> System:
    """What the tables of the refinement tell of who moved: (site, before, after) and at all sites.

    The refined size of a cluster at a site is ("refined", site, cluster).
    """
    system = System()
    moved = moved.set_index("ensemble").rename(index=number, columns=number)
    movers = by_site.set_index("site")["moved"]
    groups = [group for group in moved if group != "all"]
    for before in moved.index:
        for after in moved:
            _shown(system, ("all", before, after), moved.at[before, after], least=1.0)
    for line in moved.index:
        _add(system, [("all", line, g) for g in groups], ("all", line, "all"))
        _add(system, [("all", g, line) for g in groups], ("all", "all", line))
    for before in groups:
        for after in groups:
            parts = [(site, before, after) for site in movers.index]
            _add(system, parts, ("all", before, after))
    columns = (sizes["site"], sizes["group"].map(number), sizes["ensemble"], sizes["refined"])
    for site, group, published, refined in zip(*columns, strict=True):
        if site == "all":
            _shown(system, ("all", group, "all"), published)
            _shown(system, ("all", "all", group), refined)
            continue
        _shown(system, ("published", site, group), published)
        _shown(system, ("refined", site, group), refined)
        _add(system, [(site, group, g) for g in groups], ("published", site, group))
        _add(system, [(site, g, group) for g in groups], ("refined", site, group))
    for site, n in movers.items():
        _shown(system, ("moved", site), n)
        _add(system, [(site, a, b) for a in groups for b in groups if a != b], ("moved", site))
    return system


def _shown(system: System, name: Name, value: float, least: float = 0.0) -> None:
    """A number that shows, or that is hidden and at least `least`."""
    system.unknown(name, *((least, np.inf) if np.isnan(value) else (value, value)))


def table_one_system(
    shown: dict[tuple[str, str, str], float | None], pooled: dict[tuple[str, str], float | None]
) -> System:
    """What Table 1 and a table of all sites together tell of one variable.

    Parameters
    ----------
    shown : {(site, level, group): number, or None if hidden}
        Of the levels and "all" of them (the sizes), and of the groups and "all" of them.
    pooled : {(level, group): number, or None}
        At all sites together.
    """
    system = System()
    sites, levels, groups = (list(dict.fromkeys(key[i] for key in shown)) for i in range(3))
    numbers = shown | {("pooled", *key): value for key, value in pooled.items()}
    for site in [*sites, "pooled"]:
        for level in levels:
            for group in groups:
                value = numbers.get((site, level, group))
                bounds = (1.0, np.inf) if value is None else (value, value)  # zeros show
                if site == "pooled" and (level, group) not in pooled:
                    bounds = (0.0, np.inf)
                system.unknown((site, level, group), *bounds)
    for site in [*sites, "pooled"]:
        for level in levels:
            _add(system, [(site, level, g) for g in groups if g != "all"], (site, level, "all"))
        for group in groups:
            _add(system, [(site, v, group) for v in levels if v != "all"], (site, "all", group))
    for level in levels:
        for group in groups:
            _add(system, [(site, level, group) for site in sites], ("pooled", level, group))
    return system


def _add(system: System, parts: list[Name], total: Name) -> None:
    terms = {system.unknown(part): 1.0 for part in parts}
    system.equal.append((terms | {system.unknown(total): -1.0}, 0.0))
