"""Counts of a public release, rounded at random to multiples of m = `min_count`.

A count c is shown as ⌊(c + u·m)/m⌋·m, where u is a uniform number between 0 and 1: as one of the
two multiples of m beside it, and right on average. A count that is a multiple of m stays.

Each u comes from a secret that the hospital keeps, and is named by the patients who are counted: in
tables of states, by those of the group who are ever in the state. It is not named by the time, the
study, its settings, its seed or what a group or a state is called. So the same patients are counted
alike in every table, in every quarter, in every run and under every name, and averages of these
counts reveal no more than one of them.

A set of patients is named by the smallest of the keyed hashes of their ids (min-wise hashing). Two
sets have the same name with a probability that equals their Jaccard index: with one of n patients
fewer a set keeps its name with the probability 1 − 1/n, so that runs that differ by few patients
are rounded alike too. And of the parts of a set one always has the name of the whole, the one with
that patient. Hence a total never lies so far from the sum of its K parts that all of these must
have been rounded in one direction (at most K − 1 units), which would narrow a small part down. For
the same reason no part is shown larger than its total: it is rounded down then.

Where a count is not of patients whose ids are known (records, events), its u is named by the group
and by what is counted. Steps are counted as the patients who make them, times their mean number.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.errors import InputError
from mmlca.tables.disclosure.small import hides, is_small

EVERYONE = "all"
"""All groups of a site, or all sites together."""

Key = str
"""Name of a set of patients in the draws of a `Rounding`; it does not reveal who is in it."""


class Rounding:
    """Rounds counts of the patients of some groups.

    Parameters
    ----------
    secret : bytes
        The hospital's; see `mmlca.study.release`.
    min_count : int
        The unit, at least 2.
    groups : {site: group of each patient, by id}

    Examples
    --------
    >>> ids = [f"p{i}" for i in range(100)]
    >>> rounding = Rounding(b"a secret", 11, {"x": pd.Series("A", ids)})
    >>> rounding(99, "x", "A"), rounding(100, "x", "A") in (99.0, 110.0)
    (99.0, True)
    >>> renamed = Rounding(b"a secret", 11, {"y": pd.Series("B", ids)})
    >>> renamed(100, "y", "B") == rounding(100, "x", "A")
    True
    """

    def __init__(self, secret: bytes, min_count: int, groups: Mapping[str, pd.Series]) -> None:
        if not hides(min_count):
            raise InputError(f"min_count must be at least 2 to round to it, found {min_count}.")
        self.unit, self._secret = min_count, secret
        self._hashes: dict[str, Key] = {}
        self._keys = self._named(groups)

    def of(self, groups: Mapping[str, pd.Series]) -> Rounding:
        """The same rule for other groups of the patients."""
        other = Rounding(self._secret, self.unit, {})
        other._hashes = self._hashes
        other._keys = other._named(groups)
        return other

    def _named(self, groups: Mapping[str, pd.Series]) -> dict[tuple[str, str], Key]:
        """The keys of each site and group, and of all of them."""
        keys: dict[tuple[str, str], Key] = {}
        for site, labels in groups.items():
            for group, members in labels.groupby(labels.to_numpy(), observed=True):
                key = self.key_of(members.index)
                for place in ((str(site), str(group)), (str(site), EVERYONE),
                              (EVERYONE, str(group)), (EVERYONE, EVERYONE)):  # fmt: skip
                    keys[place] = min(keys.get(place, key), key)
        return keys

    def _digest(self, *name: str) -> bytes:
        return hmac.digest(self._secret, json.dumps(name).encode(), "sha256")

    def key_of(self, ids: Iterable[Hashable]) -> Key:
        """What a set of patients is called; "" if it is empty."""
        smallest = ""
        for patient in map(str, ids):
            if patient not in self._hashes:
                self._hashes[patient] = self._digest("patient", patient).hex()
            smallest = min(smallest or self._hashes[patient], self._hashes[patient])
        return smallest

    def key(self, site: str = EVERYONE, group: Hashable = EVERYONE) -> Key:
        """What the patients of a site and group are called."""
        return self._keys.get((str(site) or EVERYONE, str(group)), "")

    def uniform(self, key: Key, *what: Hashable) -> float:
        """The number u of a set of patients, and of what is counted of them."""
        name = self._digest("draw", key, *(_alike(part) for part in what))
        return int.from_bytes(name[:6]) / 2**48

    def __call__(
        self, count: float, site: str = EVERYONE, group: Hashable = EVERYONE, *what: Hashable
    ) -> float:
        """A number of patients of a group, or of what else is counted of them, rounded."""
        return self.named(count, self.key(site, group), *what)

    def named(self, count: float, key: Key, *what: Hashable) -> float:
        """The number of the patients of a key, or of what else is counted of them, rounded."""
        return float(self._round(count, self.uniform(key, *what)))

    def part(self, count: float, key: Key, *totals: float) -> float:
        """The number of the patients of a key, rounded; not larger than totals it is part of."""
        return min(self.named(count, key), *totals)

    def steps(self, count: float, n: float, key: Key) -> float:
        """A number of steps: of the n patients of a key who make them, times the steps of each.

        A patient makes many steps, so that a number of steps that is itself rounded to the unit
        would reveal how many patients make them. Those that few patients make are the number of
        these.
        """
        drawn = self.named(n, key) if n else 0.0
        each = 1.0 if is_small(n, self.unit) or not n else count / n
        return float(self.unit * round(drawn * each / self.unit))

    def _round(self, count: ArrayLike, uniform: ArrayLike) -> NDArray[np.float64]:
        rounded: NDArray[np.float64] = self.unit * np.floor(
            np.asarray(count, dtype=float) / self.unit + np.asarray(uniform)
        )
        return rounded

    def column(
        self, table: pd.DataFrame, count: str, cells: Sequence[str] = (), *what: Hashable
    ) -> NDArray[np.float64]:
        """A column of counts, rounded.

        Parameters
        ----------
        table : DataFrame
            Its columns "site" and "group" say whose counts they are; without one of them, all are.
        count : name of the column
        cells : names of columns that distinguish the counts of a group
        what : further parts of the counts' name, the same for all rows
        """
        everyone = [EVERYONE] * len(table)
        names = [table.get(name, everyone) for name in ("site", "group")]
        names += [table[name].astype(object) for name in cells]
        drawn: dict[tuple[Hashable, ...], float] = {}
        uniform = np.empty(len(table))
        for row, (site, group, *cell) in enumerate(zip(*names, strict=True)):
            key = self.key(site, EVERYONE if pd.isna(group) else group)
            name = (key, *what, *cell)
            if name not in drawn:
                drawn[name] = self.uniform(key, *what, *cell)
            uniform[row] = drawn[name]
        return self._round(table[count], uniform)


def _alike(part: Hashable) -> str:
    """A part of a name; ways to write the same text are alike.

    >>> _alike(" TNFi"), _alike("tnfi ")
    ('tnfi', 'tnfi')
    """
    return " ".join(str(part).split()).casefold()


def shares_of(counts: pd.Series, table: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Each count as a share of all counts in the rows with the same columns `by`."""
    keys = [table[name] for name in by if name in table]
    total = counts.groupby(keys, sort=False, observed=True, dropna=False).transform("sum")
    return counts / total.where(total > 0)
