"""Attacks on everything that a study shows: what do its tables together tell of a number?

`PublicAttack` is for a public release. The unknowns are all numbers of patients behind the page, at
all sites: by state and time for every way to group the patients (the ensemble's clusters, those of
the refinement, the sites' own classes), steps, paths, who moved from which cluster to which refined
one, levels of the variables of Table 1, outcomes and survival. All that the page shows becomes a
bound, and a reader's knowledge of how the numbers hang together becomes sums; linear programmes
then give the least and the greatest value that each number could have. The reader also knows the
rule of rounding: which counts share a draw. The draws are unknowns, too.

`table_one_system` and `moved_system` are for releases inside a hospital, which promise to hide what
is small, and what reveals it, within a table and its margins.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, linprog, milp
from scipy.sparse import coo_array

Name = tuple[Hashable, ...]
_HALF = 5e-4  # of the last digit of a curve
_TINY = 1e-3  # draws are below 1
_LEAST, _UNSURE, _FEW = 0.8, 0.05, 2.0  # how far estimates may be from what patients are assigned


class System:
    """Unknown numbers with bounds, and sums of them that are known."""

    def __init__(self, unit: int = 11) -> None:
        self.unit = unit
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

    def add(self, parts: Iterable[Name], total: Name) -> None:
        """Parts add up to a total."""
        terms = {self.unknown(name): 1.0 for name in parts}
        self.equal.append((terms | {self.unknown(total): -1.0}, 0.0))

    def at_most(self, parts: Iterable[Name], total: Name) -> None:
        """Parts are together at most a total."""
        terms = {self.unknown(name): 1.0 for name in parts}
        self.less.append((terms | {self.unknown(total): -1.0}, 0.0))

    def shown(self, name: Name, value: float) -> int:
        """An unknown that is less than the unit from what is shown; a zero may be small."""
        if np.isnan(value):
            return self.unknown(name)
        return self.unknown(name, value - self.unit + 1, value + self.unit - 1)

    def drawn(self, name: Name, value: float, draw: Name, *, clipped: bool = False) -> None:
        """The same where the reader knows which counts share a draw.

        A count c is shown as S with S ≤ c + m·u < S + m, and u is the same for all counts of a
        draw. A count that was `clipped` to its total may be larger than that.
        """
        c, u = self.shown(name, value), self.unknown(("draw", *draw), 0.0, self.unit - _TINY)
        if np.isnan(value):
            return
        self.less.append(({c: -1.0, u: -1.0}, -value))
        if not clipped:
            self.less.append(({c: 1.0, u: 1.0}, value + self.unit - _TINY))

    def one_of(self, draw: Name, parts: Iterable[tuple[Name, Name]]) -> None:
        """The draw of a whole is that of one of its parts, (name, draw), which is not empty.

        Which one it is, is a choice: for `whole_range_of`.
        """
        u, chosen = self.unknown(("draw", *draw), 0.0, self.unit - _TINY), {}
        for name, own in parts:
            z = self.unknown(("is", draw, name), 0.0, 1.0)
            v = self.unknown(("draw", *own), 0.0, self.unit - _TINY)
            chosen[z] = 1.0
            for sign in (1.0, -1.0):
                self.less.append(({u: sign, v: -sign, z: float(self.unit)}, float(self.unit)))
            self.less.append(({z: 1.0, self.unknown(name): -1.0}, 0.0))
        self.equal.append((chosen, 1.0))

    def whole_range_of(self, name: Name, seconds: float = 20.0) -> tuple[float, float]:
        """The same where all but the draws are whole numbers; values that are certainly possible.

        Where the solver is not done in time, the true range may be wider than what it found.
        """
        n = len(self.low)
        cost = np.zeros(n)
        cost[self.at[name]] = 1.0
        rules = [
            LinearConstraint(_matrix([terms for terms, _ in rows], n), low, high)
            for rows, low, high in (
                (self.equal, *2 * ([value for _, value in self.equal],)),
                (self.less, -np.inf, [value for _, value in self.less]),
            )
            if rows
        ]
        whole = [0 if at[0] == "draw" else 1 for at in self.at]
        ends = []
        for sign in (1.0, -1.0):
            solution = milp(
                sign * cost,
                integrality=whole,
                bounds=Bounds(np.array(self.low), np.array(self.high)),
                constraints=rules,
                options={"time_limit": seconds},
            )
            assert solution.x is not None, solution.message
            ends.append(float(round(solution.x[self.at[name]])))
        return ends[0], ends[1]

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


class PublicAttack(System):
    """What a folder of public results tells about the patients of all sites."""

    def __init__(self, out: Path, sites: tuple[str, ...], min_count: int = 11) -> None:
        super().__init__(min_count)
        self.out, self.sites = out, sites
        self.views = [
            view
            for view in ("", "ensemble", "local", "refined")
            if self._file("state_distribution", view).exists()
        ]
        headline = pd.read_csv(out / "tables/headline.csv").query("kind == 'patients'")
        for site, n in zip(headline["sites"], headline["value"], strict=True):
            self.drawn(("patients", site), n, ("site", site))
        tables = {view: self._read("state_distribution", view) for view in self.views}
        for view, table in tables.items():
            self._distribution(view, table)
            self._steps(view, table)
            self._paths(view, table)
        self._same_patients(tables)
        self._clusters()
        if "refined" in self.views:
            self._moves(tables)
        self._table_one()
        self._lengths()
        if (out / "tables/survival_excluded.csv").exists():
            self._survival()
        self._estimates(tables)

    def _file(self, name: str, view: str) -> Path:
        return self.out / f"figures/{name}{f'_{view}' * bool(view)}.csv"

    def _read(self, name: str, view: str) -> pd.DataFrame:
        table = pd.read_csv(self._file(name, view))
        table = table[table["site"].isin(self.sites)]  # what all sites show follows from these
        return table.assign(group=table["group"].map(number))

    # --- courses ----------------------------------------------------------------------------

    def _distribution(self, view: str, table: pd.DataFrame) -> None:
        for site, part in table.groupby("site", sort=False):
            for group, rows in part.groupby("group", sort=False):
                times = list(dict.fromkeys(rows["time"]))
                own = ("group", view, site, group)
                self.drawn(("size", view, site, group), rows["rounded_size"].iloc[0], own)
                for row in rows.itertuples(index=False):
                    cell, ever = (view, site, group, row.time, row.state), (*own, row.state)
                    self.drawn(cell, row.count, ever, clipped=row.count == row.n)
                for row in rows.drop_duplicates("time").itertuples(index=False):
                    self.drawn(("observed", view, site, group, row.time), row.n, own)
                for time in times:
                    cells = [(view, site, group, time, s) for s in dict.fromkeys(rows["state"])]
                    self.add(cells, ("observed", view, site, group, time))
                first = ("observed", view, site, group, times[0])
                self.add([first], ("size", view, site, group))
                for t, u in pairwise(times):  # nobody comes back
                    later = ("observed", view, site, group, u)
                    self.at_most([later], ("observed", view, site, group, t))
                last = ("observed", view, site, group, times[-1])
                self.add([last, ("left", view, site, group)], first)
            groups = part["group"].unique()
            self.add([("size", view, site, g) for g in groups], ("patients", site))

    def _steps(self, view: str, by_time: pd.DataFrame) -> None:
        """Steps are shown as a rounded number of patients, times their steps on average.

        Those of few patients are the number of these, 0 or one unit.
        """
        times = list(dict.fromkeys(by_time["time"]))
        most = (len(times) - 1) * (self.unit - 1) + self.unit / 2
        table = self._read("transitions", view)
        for (site, group), rows in table.groupby(["site", "group"], sort=False):
            for row in rows.rename(columns={"from": "before"}).itertuples(index=False):
                name = ("step", view, site, group, row.before, row.to)
                high = row.count + most if row.count > self.unit else np.inf
                self.unknown(name, row.count - most, high)
            for state in dict.fromkeys(rows["to"]):
                into = [("step", view, site, group, s, state) for s in dict.fromkeys(rows["from"])]
                terms = {self.unknown(name): 1.0 for name in into}
                there = {self.unknown((view, site, group, t, state)): -1.0 for t in times[1:]}
                self.equal.append((terms | there, 0.0))
                leave = [("step", view, site, group, state, s) for s in dict.fromkeys(rows["to"])]
                terms = {self.unknown(name): 1.0 for name in leave}
                there = {self.unknown((view, site, group, t, state)): -1.0 for t in times[:-1]}
                self.less.append((terms | there, 0.0))

    def _paths(self, view: str, by_time: pd.DataFrame) -> None:
        """Paths add up to those they continue; the first line is the first state.

        A branch that is named has at least a unit of patients; one that rounds to nothing is not
        shown.
        """
        first = next(iter(by_time["time"]))
        table = self._read("lines", view)
        for (site, group), rows in table.groupby(["site", "group"], sort=False):
            for row in rows.itertuples(index=False):
                name = ("path", view, site, group, row.path)
                self.unknown(name, 0 if row.state == "others" else self.unit)
                self.shown(name, row.count)
                if row.line == 1 and (view, site, group, first, row.path) in self.at:
                    self.add([name], (view, site, group, first, row.path))
            for parent, parts in rows.groupby("parent", sort=False):
                names = [("path", view, site, group, path) for path in parts["path"]]
                self.at_most(names, ("path", view, site, group, parent))
        if not self._file("frequencies", view).exists():
            return
        times = list(dict.fromkeys(by_time["time"]))
        part_of: dict[Name, list[Name]] = {}
        for row in self._read("frequencies", view).itertuples(index=False):
            name = ("course", view, row.site, row.group, row.sequence)
            self.unknown(name, self.unit)
            self.shown(name, row.count)
            for time, state in zip(times, _course(row.sequence), strict=False):
                part_of.setdefault((view, row.site, row.group, time, state), []).append(name)
        for cell, names in part_of.items():
            self.at_most(names, cell)

    def _same_patients(self, tables: dict[str, pd.DataFrame]) -> None:
        """All groups of a site together are the same patients, whichever way they are grouped."""
        for view, table in tables.items():
            for site, part in table.groupby("site", sort=False):
                for time, state in (
                    part[["time", "state"]].drop_duplicates().itertuples(index=False)
                ):
                    cells = [(view, site, g, time, state) for g in part["group"].unique()]
                    self.add(cells, ("everyone", site, time, state))

    def _clusters(self) -> None:
        """All sites together."""
        table = pd.read_csv(self.out / "tables/clusters.csv")
        for cluster, n in zip(table["cluster"].astype(str), table["n"], strict=True):
            self.drawn(("pooled", cluster), n, ("group", "pooled", cluster))
            parts = [("size", self.views[0], site, cluster) for site in self.sites]
            self.add(parts, ("pooled", cluster))

    def _lengths(self) -> None:
        """Quartiles of the times up to the last observed one: numbers of patients up to one."""
        file = self.out / "tables/clusters_by_site.csv"
        if not file.exists():
            return
        for row in pd.read_csv(file).itertuples(index=False):
            place = (self.views[0], row.site, str(row.cluster))
            size = ("size", *place)
            for share, value in (
                (0.75, row.followed_q25), (0.5, row.followed), (0.25, row.followed_q75),
            ):  # fmt: skip
                if np.isnan(value):
                    continue
                last, later = int(np.floor(value)), int(np.ceil(value)) + 1
                for time, sign in ((last, -1.0), (later, 1.0)):
                    name = ("observed", *place, time)
                    if name in self.at:  # at least so many are observed then, or at most
                        terms = {self.at[name]: sign, self.unknown(size): -sign * share}
                        self.less.append((terms, 1.0))

    def _estimates(self, tables: dict[str, pd.DataFrame]) -> None:
        """What estimates with standard errors tell of numbers of patients.

        A share p with the standard error s rests on about p(1 − p)/s² patients, or on more where
        it is uncertain who belongs to a class. Of a class p begin in a state. The windows that
        probabilities of leaving a state rest on are all spent in it.
        """
        view = "local" if "local" in tables else self.views[0]
        for site in self.sites:
            mine = tables[view].query("site == @site")
            mine = mine[mine["time"] == mine["time"].iloc[0]]
            file = self.out / f"figures/parameters_{site}.csv"
            if not file.exists():  # the study estimates none
                continue
            table = pd.read_csv(file)
            for label, group in _same_classes(table, mine).items():
                size = ("size", view, site, group)
                own = (table["class"] == label) & (table["parameter"] == "initial")
                for row in table[own].dropna(subset="estimate").itertuples(index=False):
                    self._rests_on(size, row.estimate, row.se)
                    cell = (view, site, group, mine["time"].iloc[0], row.to)
                    c, n = self.unknown(cell), self.unknown(size)
                    self.less.append(({c: 1.0, n: -row.estimate - _UNSURE}, _FEW))
                    self.less.append(({c: -1.0, n: row.estimate - _UNSURE}, _FEW))
                leave = table[(table["class"] == label) & (table["parameter"] == "leave")]
                for state, rows in leave.dropna(subset="estimate").groupby("from"):
                    p = rows["estimate"]
                    least = _LEAST * (p * (1 - p) / rows["se"] ** 2).sum()
                    cells = [(view, site, group, t, state) for t in self._times(tables[view])]
                    self.less.append(({self.unknown(cell): -1.0 for cell in cells}, -least))
        if (self.out / "tables/outcomes.csv").exists():
            outcomes = pd.read_csv(self.out / "tables/outcomes.csv").dropna(subset="se")
            shares = outcomes[outcomes["term"].str.startswith("share of ")]
            for row in shares.rename(columns={"class": "group"}).itertuples(index=False):
                self._rests_on(("pooled", number(row.group)), row.estimate, row.se)

    def _times(self, table: pd.DataFrame) -> list[Any]:
        return list(dict.fromkeys(table["time"]))

    def _rests_on(self, size: Name, share: float, error: float) -> None:
        self.unknown(size, _LEAST * share * (1 - share) / error**2)

    # --- refinement -------------------------------------------------------------------------

    def _moves(self, tables: dict[str, pd.DataFrame]) -> None:
        """Each cell of a cluster is the sum of those who stayed in it and who moved elsewhere."""
        groups = list(tables["ensemble"]["group"].unique())
        moved = pd.read_csv(self.out / "tables/refined_moved.csv").set_index("ensemble")
        moved = moved.rename(index=number, columns=number)
        for a in groups:
            for b in groups:
                n, most = moved.at[a, b], (self.unit - 1) * len(self.sites)  # each site rounds
                self.unknown(("moved", a, b), n - most, n + most)
                self.add([("moved", s, a, b) for s in self.sites], ("moved", a, b))
        movers = pd.read_csv(self.out / "tables/refined_by_site.csv").set_index("site")["moved"]
        for site in self.sites:
            self.shown(("movers", site), movers[site])
            self.add(
                [("moved", site, a, b) for a in groups for b in groups if a != b], ("movers", site)
            )
            table = tables["ensemble"].query("site == @site")
            for time, state in table[["time", "state"]].drop_duplicates().itertuples(index=False):
                for g in groups:
                    stay = [("moved", site, g, h, time, state) for h in groups]
                    self.add(stay, ("ensemble", site, g, time, state))
                    come = [("moved", site, h, g, time, state) for h in groups]
                    self.add(come, ("refined", site, g, time, state))
            first, states = table["time"].iloc[0], table["state"].unique()
            for a in groups:
                for b in groups:
                    cells = [("moved", site, a, b, first, s) for s in states]
                    self.add(cells, ("moved", site, a, b))

    # --- who they are, and what became of them ------------------------------------------------

    def _table_one(self) -> None:
        table = pd.read_csv(self.out / "tables/table_one.csv", dtype=str).fillna("")
        for variable, rows in table[table["level"] != ""].groupby("variable", sort=False):
            if "mean" in variable:
                continue
            title = variable.split(",")[0]
            for column in table.columns[2:]:
                site, group = self._place(column)
                if site == "all sites":  # known from the others
                    ours = [c for c in table.columns[2:] if self._place(c)[1] == group]
                    sums = rows[ours].map(count_of).drop(columns=column).sum(axis=1)
                    assert (rows[column].map(count_of) == sums).all()
                    continue
                for level, cell in zip(rows["level"], rows[column], strict=True):
                    self.shown((title, site, level, group), count_of(cell))
                size = ("size", self.views[0], site, group)
                size = ("patients", site) if group == "all" else size
                self.add([(title, site, level, group) for level in rows["level"]], size)
            clusters = {self._place(column)[1] for column in table.columns[2:]} - {"all"}
            for site in self.sites:
                for level in rows["level"]:
                    parts = [(title, site, level, g) for g in sorted(clusters)]
                    self.add(parts, (title, site, level, "all"))
        if not (self.out / "tables/outcomes.csv").exists():
            return
        outcomes = pd.read_csv(self.out / "tables/outcomes.csv")
        for row in outcomes.rename(columns={"class": "group"}).itertuples(index=False):
            if row.term.startswith("share of "):
                level, group = row.term.removeprefix("share of "), number(row.group)
                self.summed(("cases", row.outcome, level, group), row.cases)
                parts = [(row.outcome, site, level, group) for site in self.sites]
                self.add(parts, ("cases", row.outcome, level, group))

    def _place(self, column: str) -> tuple[str, str]:
        """The site and the cluster of a column of Table 1."""
        several = len(self.sites) > 1
        site, group = column.split(", ", 1) if several else (self.sites[0], column)
        return site, "all" if group == "all" else number(group)

    def summed(self, name: Name, value: float) -> None:
        """A number of all sites, which is the sum of those that the sites rounded."""
        most = len(self.sites) * (self.unit - 1)
        self.unknown(name, max(value - most, 0), value + most)

    def _survival(self) -> None:
        excluded = pd.read_csv(self.out / "tables/survival_excluded.csv")
        kinds = [name for name in excluded if name not in ("group", "all")]
        view = self.views[0]
        for row in excluded.to_dict("records"):
            group = number(row["group"])
            for kind in kinds:
                self.summed(("landmark", group, kind), row[kind])
                parts = [("landmark", site, group, kind) for site in self.sites]
                self.add(parts, ("landmark", group, kind))
            for site in self.sites:
                parts = [("landmark", site, group, kind) for kind in kinds]
                self.add(parts, ("size", view, site, group))
        curves = pd.read_csv(self.out / "figures/survival.csv")
        if "site" not in curves:
            curves = curves.assign(site=self.sites[0])
        for (site, label), rows in curves.groupby(["site", "group"], sort=False):
            if site == "all sites":  # follows from the others
                continue
            group, n, before = (site, number(label)), len(rows), 1.0
            for i, row in enumerate(rows.itertuples(index=False)):
                self.drawn(("at risk", group, i), row.at_risk, ("group", view, *group))
                for kind, count in (("events", row.events), ("left", row.left)):
                    # between two times shown, nobody or a unit of patients
                    self.unknown((kind, group, i), self.unit if count else 0)
                    self.drawn((kind, group, i), count, (kind, group))
                if i < n - 1:  # the last value is that of the life table
                    self._fall(group, i, row.survival, before)
                before = row.survival
                self.add(
                    [("at risk", group, i + 1), ("events", group, i), ("left", group, i)],
                    ("at risk", group, i),
                )
            self.add([("at risk", group, 0)], ("landmark", *group, "included"))
            assert n

    def _fall(self, group: tuple[str, str], i: int, now: float, before: float) -> None:
        """A curve falls most if all who leave do so before the events, and least if after them."""
        events, risk, left = (self.unknown((k, group, i)) for k in ("events", "at risk", "left"))
        most = 1 - (now - _HALF) / (before + _HALF)
        least = 1 - (now + _HALF) / (before - _HALF)
        self.less.append(({events: 1.0, risk: -most}, 0.0))
        self.less.append(({events: -1.0, risk: least, left: -least}, 0.0))


def count_of(cell: str) -> float:
    """The number in a cell of Table 1, such as "12 (3.4)"; NaN if it is hidden."""
    return np.nan if cell == "–" else float(cell.split(" ")[0].replace(",", ""))


def number(group: str) -> str:
    """ "1" for "cluster 1" and "1: TNFi persisters"."""
    digits = re.search(r"[0-9]+", group)
    return group if digits is None else digits[0]


def _same_classes(estimates: pd.DataFrame, first: pd.DataFrame) -> dict[str, str]:
    """Which group has the estimates of each class: {class: group}, by weights and first states."""
    weights = estimates[estimates["parameter"] == "weight"].set_index("class")["estimate"]
    begin = estimates[estimates["parameter"] == "initial"]
    begin = begin.pivot(index="class", columns="to", values="estimate").loc[weights.index]
    counts = first.pivot(index="group", columns="state", values="count")[begin.columns]
    sizes = first.groupby("group")["rounded_size"].first().loc[counts.index]
    shares = counts.div(sizes, axis=0).to_numpy()
    cost = np.abs(np.subtract.outer(weights.to_numpy(), (sizes / sizes.sum()).to_numpy()))
    cost += np.nansum(np.abs(begin.to_numpy()[:, None] - shares[None]), axis=2)
    rows, columns = linear_sum_assignment(cost)
    return dict(zip(weights.index[rows], counts.index[columns], strict=True))


def _course(sequence: str) -> list[str]:
    course = []
    for spell in sequence.split(" → "):
        state, n = spell.rsplit("×", 1)
        course += [state] * int(n)
    return course


def _matrix(rows: list[dict[int, float]], n: int) -> coo_array:
    at = [(i, j, value) for i, terms in enumerate(rows) for j, value in terms.items()]
    i, j, value = zip(*at, strict=True)
    return coo_array((value, (i, j)), shape=(len(rows), n))


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
        system.add([("all", line, g) for g in groups], ("all", line, "all"))
        system.add([("all", g, line) for g in groups], ("all", "all", line))
    for before in groups:
        for after in groups:
            parts = [(site, before, after) for site in movers.index]
            system.add(parts, ("all", before, after))
    columns = (sizes["site"], sizes["group"].map(number), sizes["ensemble"], sizes["refined"])
    for site, group, published, refined in zip(*columns, strict=True):
        if site == "all":
            _shown(system, ("all", group, "all"), published)
            _shown(system, ("all", "all", group), refined)
            continue
        _shown(system, ("published", site, group), published)
        _shown(system, ("refined", site, group), refined)
        system.add([(site, group, g) for g in groups], ("published", site, group))
        system.add([(site, g, group) for g in groups], ("refined", site, group))
    for site, n in movers.items():
        _shown(system, ("moved", site), n)
        system.add([(site, a, b) for a in groups for b in groups if a != b], ("moved", site))
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
            system.add([(site, level, g) for g in groups if g != "all"], (site, level, "all"))
        for group in groups:
            system.add([(site, v, group) for v in levels if v != "all"], (site, "all", group))
    for level in levels:
        for group in groups:
            system.add([(site, level, group) for site in sites], ("pooled", level, group))
    return system


def inside_system(out: Path, sites: tuple[str, ...]) -> System:
    """What a release inside a hospital tells by all tables that share the sizes of the clusters.

    Unknowns are ("size", site, cluster) and (variable, site, level, cluster); "all" stands for all
    sites or clusters. A zero shows, so that what is hidden is at least 1.
    """
    system = System()
    headline = pd.read_csv(out / "tables/headline.csv").query("kind == 'patients'")
    for site, n in zip(headline["sites"], headline["value"], strict=True):
        _shown(system, ("size", site, "all"), n)
    clusters = pd.read_csv(out / "tables/clusters.csv")
    groups = clusters["cluster"].astype(str).tolist()
    for group, n in zip(groups, clusters["n"], strict=True):
        _shown(system, ("size", "all", group), n, least=1.0)
    by_site = pd.read_csv(out / "tables/clusters_by_site.csv")
    refined = pd.read_csv(out / "tables/refined_sizes.csv").query("site != 'all'")
    refined = refined.assign(cluster=refined["group"].map(number), n=refined["ensemble"])
    for table in (by_site, refined):
        for site, group, n in zip(table["site"], table["cluster"], table["n"], strict=True):
            _shown(system, ("size", site, str(group)), n, least=1.0)
    for place in [*sites, "all"]:
        system.add([("size", place, g) for g in groups], ("size", place, "all"))
    for group in groups:
        system.add([("size", site, group) for site in sites], ("size", "all", group))
    table = pd.read_csv(out / "tables/table_one.csv", dtype=str).fillna("")
    for variable, rows in table.groupby("variable", sort=False):
        title = variable.split(",")[0]
        if "mean" in variable and title != "patients":
            continue
        for column in table.columns[2:]:
            site, label = column.split(", ", 1)
            site, group = site.removesuffix(" sites"), "all" if label == "all" else number(label)
            if title == "patients":
                _shown(system, ("size", site, group), count_of(rows[column].iloc[0]), least=1.0)
                continue
            for level, cell in zip(rows["level"], rows[column], strict=True):
                _shown(system, (title, site, level, group), count_of(cell), least=1.0)
            system.add([(title, site, v, group) for v in rows["level"]], ("size", site, group))
        for level in rows["level"] if title != "patients" else ():
            for site in [*sites, "all"]:
                parts = [(title, site, level, g) for g in groups]
                system.add(parts, (title, site, level, "all"))
            for group in [*groups, "all"]:
                parts = [(title, site, level, group) for site in sites]
                system.add(parts, (title, "all", level, group))
    outcomes = pd.read_csv(out / "tables/outcomes.csv").rename(columns={"class": "group"})
    for row in outcomes[outcomes["term"].str.startswith("share of ")].itertuples(index=False):
        level, group = row.term.removeprefix("share of "), number(row.group)
        _shown(system, ("cases", row.outcome, level, group), row.cases)
        parts = [(row.outcome, site, level, group) for site in sites]
        system.add(parts, ("cases", row.outcome, level, group))
    return system


class ResultsAttack(System):
    """What the results of a site tell of the numbers of its patients, by all views together.

    For sites without gaps, where every patient is observed from the first window up to a last one.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame], unit: int = 11) -> None:
        super().__init__(unit)
        self.tables = tables
        self.states, self.times = (tables[name].iloc[:, 0].tolist() for name in ("states", "times"))
        self.drawn(("patients",), tables["about"]["patients"].item(), ("site",))
        self.views: dict[str, list[int]] = {}
        for row in tables["groups"].itertuples(index=False):
            self.views.setdefault(row.view, []).append(int(row.group))
            self.drawn(
                ("size", row.view, int(row.group)),
                row.patients,
                ("group", row.view, int(row.group)),
            )
        for view, groups in self.views.items():
            self.add([("size", view, g) for g in groups], ("patients",))
            for group in groups:
                self._windows(view, group)
                self._ends(view, group)
                self._spans(view, group)
                self._paths(view, group)
                self._courses(view, group)
        self._same_patients()
        self._opinions()

    def rows(self, name: str, view: str, group: int) -> list[Any]:
        table = self.tables[name]
        table = table[(table["view"] == view) & (table["group"] == group)]
        return list(table.rename(columns={"from": "before"}).itertuples(index=False))

    def _windows(self, view: str, group: int) -> None:
        own, of = ("group", view, group), (view, group)
        shown = {(row.time, row.state): row for row in self.rows("windows", view, group)}
        for t, time in enumerate(self.times):
            for state in self.states:
                row = shown.get((time, state))
                count, n = (row.count, row.n) if row else (0.0, 0.0)  # rounded to nobody
                self.drawn(("cell", *of, t, state), count, (*own, state), clipped=count == n)
                self.drawn(("observed", *of, t), n, own)
            self.add([("cell", *of, t, s) for s in self.states], ("observed", *of, t))
        self.add([("observed", *of, 0)], ("size", *of))

    def _ends(self, view: str, group: int) -> None:
        of, shown = (view, group), {r.state: r for r in self.rows("ends", view, group)}
        for state in self.states:
            row = shown.get(state)
            self.drawn(("begin", *of, state), row.begin if row else 0, ("group", *of, state))
            self.shown(("end", *of, state), row.end if row else 0)
            self.add([("begin", *of, state)], ("cell", *of, 0, state))
        for name in ("begin", "end"):
            self.add([(name, *of, s) for s in self.states], ("size", *of))

    def _spans(self, view: str, group: int) -> None:
        """Those of at least each length are rounded by one draw: of the group, of who switches."""
        of, n = (view, group), len(self.times)
        shown = {int(row.windows): row for row in self.rows("spans", view, group)}
        none = not any(row.switched for row in shown.values())  # those of few are left out
        for k in range(1, n + 1):
            longer = [row for windows, row in shown.items() if windows >= k]
            followed = sum(row.followed for row in longer)
            self.drawn(("lasting", *of, k), followed, ("group", *of))
            self.add([("followed", *of, j) for j in range(k, n + 1)], ("lasting", *of, k))
            switched = np.nan if none else sum(row.switched for row in longer)
            self.drawn(("waiting", *of, k), switched, ("switchers", *of))
            self.add([("switched", *of, j) for j in range(k, n + 1)], ("waiting", *of, k))
            self.add([("observed", *of, k - 1)], ("lasting", *of, k))
            if k < n:
                self.at_most([("switched", *of, k)], ("observed", *of, k))
        self.unknown(("switched", *of, n), 0, 0)
        self.add([("lasting", *of, 1)], ("size", *of))
        self.add([("waiting", *of, 1), ("stay", *of)], ("size", *of))

    def _paths(self, view: str, group: int) -> None:
        """Each path, and all smaller ones by the state in which they begin."""
        of = (view, group)
        named: dict[int, dict[tuple[str, ...], list[Name]]] = {}
        for row in self.rows("paths", view, group):
            cut = int(row.longest)
            if row.first is None:
                self.shown(("rest", *of, cut), row.count)
                continue
            path = tuple(s for s in (row.first, row.second, row.third) if s is not None)
            name = ("path", *of, cut, path, bool(row.more))
            self.unknown(name, self.unit)
            self.shown(name, row.count)
            named.setdefault(cut, {}).setdefault(path[:1], []).append(name)
        for cut, by_first in named.items():
            rest = [("rest", *of, cut, state) for state in self.states]
            self.add(rest, ("rest", *of, cut))
            for state in self.states:
                parts = [*by_first.get((state,), []), ("rest", *of, cut, state)]
                self.add(parts, ("begin", *of, state))
                name = ("path", *of, cut, (state,), False)
                if name not in self.at:  # fewer than the unit never leave a state
                    self.unknown(name, 0, self.unit - 1)
                    self.at_most([name], ("rest", *of, cut, state))
            self.add([("path", *of, cut, (s,), False) for s in self.states], ("stay", *of))
        for row in self.rows("lines", view, group):
            name = ("line", *of, row.path)
            self.unknown(name, 0 if row.state == "others" else self.unit)
            self.shown(name, row.count)
            if row.path in self.states:
                self.add([name], ("begin", *of, row.path))
        parents: dict[str, list[Name]] = {}
        for row in self.rows("lines", view, group):
            parents.setdefault(row.parent, []).append(("line", *of, row.path))
        for parent, parts in parents.items():  # all others may be none, and then have no row
            others = ("line", *of, f"{parent} → others" if parent else "others")
            if others not in parts:
                self.shown(others, 0)
            whole = ("line", *of, parent) if parent else ("size", *of)
            self.add(list({*parts, others}), whole)

    def _courses(self, view: str, group: int) -> None:
        of, part_of = (view, group), dict[Name, list[Name]]()
        table = self.tables["spells"]
        table = table[(table["view"] == view) & (table["group"] == group)]
        for row in self.rows("courses", view, group):
            if row.kind != "frequent":
                continue
            spells = table[(table["kind"] == row.kind) & (table["rank"] == row.rank)]
            course = [
                s
                for s, n in zip(spells["state"], spells["windows"], strict=True)
                for _ in range(int(n))
            ]
            name = ("course", *of, tuple(course))
            self.unknown(name, self.unit)
            self.shown(name, row.count)
            cells = [("cell", *of, t, s) for t, s in enumerate(course)]
            cells += [("end", *of, course[-1]), ("followed", *of, len(course))]
            if len(spells) > 1:
                cells.append(("switched", *of, int(spells["windows"].iloc[0])))
            for cell in cells:
                part_of.setdefault(cell, []).append(name)
        for cell, names in part_of.items():
            self.at_most(names, cell)

    def _opinions(self) -> None:
        """Groups of other methods: parts of the clusters of a view, and of everybody."""
        if "opinions" not in self.tables:
            return
        everyone: dict[Name, list[Name]] = {}
        parts: dict[Name, list[Name]] = {}
        for row in self.tables["opinions"].itertuples(index=False):
            of = (row.method, int(row.cluster), int(row.group))
            self.shown(("opinion", *of), row.patients)
            parts.setdefault((row.view, row.method, int(row.cluster)), []).append(("opinion", *of))
            everyone.setdefault((row.method,), []).append(("opinion", *of))
        for (view, _, cluster), names in parts.items():
            if cluster in self.views[view]:
                self.add(names, ("size", view, cluster))
        for names in everyone.values():
            self.add(names, ("patients",))
        for row in self.tables["opinion_courses"].itertuples(index=False):
            of = (row.method, int(row.cluster), int(row.group))
            for kind in ("path", "sequence"):
                if (n := getattr(row, f"{kind}_patients")) > 0:
                    name = (f"{kind} of opinion", *of)
                    self.unknown(name, self.unit)
                    self.shown(name, n)
                    self.at_most([name], ("opinion", *of))

    def _same_patients(self) -> None:
        """All views have the same patients; who is in two groups is a part of both."""
        kinds = [("end", s) for s in self.states]
        kinds += [(n, k) for n in ("followed", "switched") for k in range(1, len(self.times) + 1)]
        kinds += [("cell", t, s) for t in range(len(self.times)) for s in self.states]

        def of(view: str, group: int, kind: Name) -> Name:
            return (kind[0], view, group, *kind[1:])

        for view, groups in self.views.items():
            for kind in kinds:
                self.add([of(view, g, kind) for g in groups], ("everyone", *kind))
        pairs = self.tables["overlaps"]
        for (a, b), rows in pairs.groupby(["view", "other"], sort=False):
            shown = {(int(r.group), int(r.other_group)): r.patients for r in rows.itertuples()}
            for g in self.views[a]:
                for h in self.views[b]:
                    pair = ("pair", a, b, g, h)
                    self.shown(pair, shown.get((g, h), 0.0))
                    for kind in kinds:
                        self.at_most([("both", a, b, g, h, *kind)], pair)
            for g in self.views[a]:
                self.add([("pair", a, b, g, h) for h in self.views[b]], ("size", a, g))
                for kind in kinds:
                    self.add([("both", a, b, g, h, *kind) for h in self.views[b]], of(a, g, kind))
            for h in self.views[b]:
                self.add([("pair", a, b, g, h) for g in self.views[a]], ("size", b, h))
                for kind in kinds:
                    self.add([("both", a, b, g, h, *kind) for g in self.views[a]], of(b, h, kind))
