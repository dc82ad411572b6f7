"""Does another method find the same groups? Clusters compared with those of other methods.

Chains put patients together who move alike, latent classes of the time course those who are in the
same states at the same times, distances those whose courses differ in few windows. Where all find
the same groups, these do not depend on the method; where they do not, a reader should know.

Everything that is said follows from the table of patients by cluster and group as it may be shown,
so that no index and no sentence tells more than the table does. Where a small cell would follow
from the size of its cluster, the largest cell of the cluster is replaced by a lower bound. Sizes of
groups are not shown, and clusters whose size may not be shown are left out. For the indices, hidden
cells are filled with what the numbers of their cluster leave for them: few patients.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from font.checks import counted, listed
from font.errors import InputError
from font.metrics import adjusted_rand_index, cross_table
from mmlca.model.course import CourseClasses
from mmlca.model.params import Floats, Seed
from mmlca.model.selection import select_n_classes, vote
from mmlca.model.settings import SearchKind
from mmlca.sequences.checks import patient_labels
from mmlca.sequences.type import Labels, Sequences
from mmlca.tables.clusters import percent_text
from mmlca.tables.describe import course_spells, course_texts
from mmlca.tables.disclosure import (
    Rounding,
    add_totals,
    bounded_parts,
    check_min_count,
    count_note,
    fewest_patients,
    hidden_grid,
    is_small,
)
from mmlca.tables.matching import match_by_patients
from mmlca.tables.treatment_lines import ARROW, line_codes

COURSE = "latent classes of the time course"
COURSE_BY_BIC = f"{COURSE}, number by BIC"
DISTANCES = "Hamming distances and Ward's method"

LEVELS = (
    (0.8, "nearly the same"),
    (0.6, "similar"),
    (0.3, "partly different"),
    (-1.0, "different"),
)
"""Adjusted Rand index, to two decimals, from which on groups are called so."""
_APART, _TOGETHER = 0.25, 0.5  # shares of a cluster from which on it is divided, or put together
_MOST_CELLS = 5  # cells of a cross table whose courses are described
_LONGEST = 3  # states of a path
_SHARED_BY = 5  # patients from which on a path or a course is named: ties would decide among fewer
_CROSS_COLUMNS = ["cluster", "group", "patients", "at_least", "share", "paired"]


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """Clusters beside the groups of other methods. `second_opinion` makes it.

    Parameters
    ----------
    agreement : DataFrame
        One row per method: `method`, `groups` (how many), `adjusted_rand_index` (1: the same
        groups, 0: as by chance; two decimals), `same` (share of patients in corresponding groups,
        where groups and clusters are paired one to one so that this is largest) and `patients`.
    cross : DataFrame
        Patients by `method`, `cluster` and `group`; missing where hidden, or where only a lower
        bound is given (`at_least`). `share` is the share of the cluster, or the least that it can
        be, and `paired` is true for corresponding groups.
    courses : DataFrame
        What patients do whom the methods see differently: for each method the largest cells of
        `cross` that are not paired, with the most common `path` and the most frequent `sequence` of
        their patients, and how many have them (`path_patients`, `sequence_patients`). Blank where
        fewer than five, or than may be shown, have them, or few have others.
    note : str
        What is hidden or rounded.
    n_clusters : int
        Those whose size is hidden included.
    noun : str
        What a cluster is called, such as "class".
    """

    agreement: pd.DataFrame
    cross: pd.DataFrame
    courses: pd.DataFrame
    note: str
    n_clusters: int
    noun: str = "cluster"

    def sentences(self) -> list[str]:
        """One sentence per method, and one on what they mean together.

        Groups are nearly the same from an adjusted Rand index of 0.8 on, similar from 0.6 on,
        partly different from 0.3 on, and different below. A cluster is divided if at least a
        quarter of it is in each of two groups, and a group has most of each of two clusters if at
        least half of each is in it. The last sentence is about the methods with as many groups as
        there are clusters, or about all if there is none.
        """
        return [*(self._sentence(row) for row in self.agreement.to_dict("records")), self.verdict()]

    def summary(self) -> str:
        """The sentences as one text."""
        return " ".join(self.sentences())

    def verdict(self) -> str:
        """What the methods mean together for the clusters."""
        return verdict(self.agreement, self.n_clusters, self.noun)

    def in_words(self) -> list[str]:
        """What the sentences say beside the numbers of `agreement`: one text per method."""
        rows = self.agreement.to_dict("records")
        return ["; ".join(self._words(row)) for row in rows]

    def _sentence(self, row: Mapping[Any, Any]) -> str:
        name, (first, *parts) = row["method"][:1].upper() + row["method"][1:], self._words(row)
        if row["groups"] == 1 or self.n_clusters == 1:
            return f"{name}: {first}."
        if np.isnan(row["adjusted_rand_index"]):
            return f"{row['method']}: {first}."
        own = self.cross[self.cross["method"] == row["method"]]
        who = "the patients"
        if own["cluster"].nunique() < self.n_clusters:
            who = f"the {row['patients']:,.0f} patients in {plural(self.noun)} whose size is shown"
        text = (
            f"{name} ({counted(row['groups'], 'group', 'groups')}): {first}, adjusted Rand index "
            f"{row['adjusted_rand_index']:.2f}; {percent_text(row['same'])} of {who} are in "
            "corresponding groups"
        )
        return f"{'; '.join([text, *parts])}."

    def _words(self, row: Mapping[Any, Any]) -> list[str]:
        """How alike the groups of a method are, and which are divided or put together."""
        index = row["adjusted_rand_index"]
        if row["groups"] == 1 or self.n_clusters == 1:
            here = counted(self.n_clusters, self.noun, plural(self.noun))
            return [f"{counted(row['groups'], 'group', 'groups')} beside {here}"]
        if np.isnan(index):
            return [f"no {self.noun} is large enough to be shown"]
        parts = [f"{next(words for least, words in LEVELS if index >= least)} groups"]
        own = self.cross[self.cross["method"] == row["method"]]
        cells = own.dropna(subset=["share"])
        for cluster, part in cells.groupby("cluster", sort=False, observed=True):
            large = part[part["share"] >= _APART].sort_values("share", ascending=False)
            if len(large) > 1:
                where = [
                    f"{'' if pd.isna(bound) else 'at least '}{percent_text(share)} in group {group}"
                    for group, share, bound in zip(
                        large["group"], large["share"], large["at_least"], strict=True
                    )
                ]
                parts.append(f"{self.noun} {cluster} is divided ({listed(where)})")
        for group, part in cells.groupby("group", sort=False, observed=True):
            large = part[part["share"] >= _TOGETHER]
            if len(large) > 1:
                whole = listed([str(cluster) for cluster in large["cluster"]])
                parts.append(f"group {group} has most of each of the {plural(self.noun)} {whole}")
        return parts


def verdict(agreement: pd.DataFrame, n_clusters: int, noun: str = "cluster") -> str:
    """What methods mean together for clusters; `agreement` may be that of several sites."""
    nouns = plural(noun)
    if n_clusters == 1:
        others = agreement.loc[agreement["groups"] > 1, "method"].unique().tolist()
        if not others:
            return "None of these methods finds more than one group."
        return (
            f"There is one {noun}, so that nothing can be said about how stable {nouns} are; "
            f"more groups are found by {listed(others)}."
        )
    as_many = agreement["groups"] == n_clusters
    index = agreement["adjusted_rand_index"][as_many if as_many.any() else slice(None)].dropna()
    if index.empty:
        return f"No {noun} is large enough to be compared."
    if (index >= LEVELS[0][0]).all():
        return f"The {nouns} do not depend on which of these methods is used."
    if (index < LEVELS[1][0]).all():
        return (
            f"The {nouns} depend on the method, that is, on what counts as the same course. "
            "Say which question they answer, and do not present them as the only groups that "
            "there are."
        )
    return (
        f"Part of the {nouns} depends on the method. Rely on those that other methods find "
        "too, and say which question the others answer."
    )


def plural(noun: str) -> str:
    """The plural of "cluster" or "class"."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def second_opinion(
    sequences: Sequences,
    clusters: Labels,
    opinions: Mapping[str, Labels] | None = None,
    *,
    ks: Iterable[int] | None = range(1, 9),
    n_init: int = 40,
    search: SearchKind = "default",
    min_count: int = 0,
    seed: Seed = None,
    rounding: Rounding | None = None,
) -> SecondOpinion:
    """Compare clusters with the groups that other methods find.

    Parameters
    ----------
    sequences : Sequences
    clusters : Series by id, or array in the patients' order
    opinions : {name of a method: its group of each patient}, optional
        Such as those of a distance. They are compared as well.
    ks : numbers of classes, or None
        Latent classes of the time course are fitted, with as many classes as there are clusters,
        if there are several, and with the number of `ks` that BIC chooses where that is another
        one. None: none are.
    n_init, search, seed : as in `CourseClasses`
    min_count : int
        Smallest number of patients shown.
    rounding : Rounding, optional
        Round all numbers of patients instead of hiding some.

    Examples
    --------
    >>> early, late = ["A", "B", "B", "B"], ["A", "A", "A", "B"]
    >>> s = Sequences.from_lists([early] * 30 + [late] * 20)
    >>> clusters, groups = [1] * 30 + [2] * 20, [1] * 33 + [2] * 17
    >>> found = second_opinion(s, clusters, {"by distances": groups}, ks=None)
    >>> print(found.sentences()[0])
    By distances (2 groups): similar groups, adjusted Rand index 0.77; 94.0 % of the patients are in
    corresponding groups.
    """
    check_min_count(min_count)
    ids = sequences.ids
    labels = patient_labels(ids, clusters, "clusters").set_axis(ids)
    others: dict[str, pd.Series] = {}
    if ks is not None:
        if not isinstance(seed, (int, np.integer)):
            seed = int(np.random.default_rng(seed).integers(2**63))
        n_clusters = int(labels.nunique())
        others = course_opinions(sequences, n_clusters, ks, n_init, search, int(seed))
    for name, values in (opinions or {}).items():
        if name in others:
            raise InputError(f"{name!r} is fitted here; give the opinion another name.")
        others[name] = patient_labels(ids, values, f"groups of {name}").set_axis(ids)
    if not others:
        raise InputError("there is nothing to compare with; give opinions or ks.")
    present = (sequences.weights > 0).nonzero()[0]
    data, labels = sequences[present], labels.iloc[present]
    shown: dict[str, Shown] = {}
    courses: list[dict[str, Any]] = []
    for name, groups in others.items():
        own = groups.iloc[present]
        counts, sizes = patients_by_group(labels, own, rounding)
        if rounding is None:
            sizes = sizes.mask(hidden_grid(add_totals(sizes.to_frame()), min_count)[:-1, -1])
        shown[name] = shown_cells(counts, sizes, min_count, rounded=rounding is not None)
        apart = apart_courses(data, labels, own, shown[name], min_count, rounding)
        courses += [{"method": name, **row} for row in apart]
    return opinion_of(
        shown,
        pd.DataFrame(courses, columns=["method", *APART_COLUMNS]),
        count_note(min_count, rounding is not None),
        int(labels.nunique()),
    )


def opinion_of(
    shown: Mapping[str, Shown],
    courses: pd.DataFrame,
    note: str,
    n_clusters: int,
    noun: str = "cluster",
) -> SecondOpinion:
    """What follows from tables of patients by cluster and group, one for each method."""
    agreement, cross = [], []
    for name, part in shown.items():
        table, index, same = compare_shown(part)
        agreement.append(
            {
                "method": name,
                "groups": part.cells.shape[1],
                "adjusted_rand_index": index,
                "same": same,
                "patients": part.sizes.sum(),
            }
        )
        cross.append(table.assign(method=name))
    return SecondOpinion(
        pd.DataFrame(agreement),
        pd.concat(cross, ignore_index=True)[["method", *_CROSS_COLUMNS]],
        courses,
        note,
        n_clusters,
        noun,
    )


class Shown(NamedTuple):
    """Patients by cluster and group, as they may be shown; clusters of hidden size are left out.

    Parameters
    ----------
    cells : DataFrame
        Clusters × groups, missing where hidden.
    at_least : DataFrame
        Lower bounds of some hidden cells, else missing.
    sizes : Series
        Of the clusters.
    """

    cells: pd.DataFrame
    at_least: pd.DataFrame
    sizes: pd.Series


def compare_shown(shown: Shown) -> tuple[pd.DataFrame, float, float]:
    """The cross table in rows, the adjusted Rand index, and the share in corresponding groups.

    Where no number is hidden, `shown` may be a sum over sites. The indices are missing if there is
    no cluster.

    Examples
    --------
    >>> cells = pd.DataFrame([[30.0, 0.0], [10.0, 60.0]], [1, 2], [1, 2])
    >>> rows, index, same = compare_shown(Shown(cells, cells * np.nan, cells.sum(axis=1)))
    >>> index, same, rows["paired"].tolist()
    (0.63, 0.9, [True, False, False, True])
    """
    cells, bounds = shown.cells.to_numpy(dtype=float), shown.at_least.to_numpy(dtype=float)
    if not len(cells):
        return pd.DataFrame(columns=_CROSS_COLUMNS), np.nan, np.nan
    clusters, groups = list(shown.cells.index), list(shown.cells.columns)
    whole, sizes = _filled(shown), shown.sizes.to_numpy(dtype=float)[:, None]
    labels = list(range(len(clusters)))
    names, place = match_by_patients(labels, list(range(len(groups))), whole)
    partner = np.array([names[i] for i in place])  # of each group: the position of its cluster
    paired = partner[None, :] == np.array(labels)[:, None]
    least = np.where(np.isnan(cells), bounds, cells)
    shares = np.divide(least, sizes, out=least * np.nan, where=sizes > 0).clip(max=1)
    shares = np.where(np.isnan(bounds), shares, np.floor(100 * shares) / 100)  # still "at least"
    rows = pd.DataFrame(
        {
            "cluster": np.repeat(np.array(clusters, dtype=object), len(groups)),
            "group": np.tile(np.array(groups, dtype=object), len(clusters)),
            "patients": cells.ravel(),
            "at_least": bounds.ravel(),
            "share": shares.ravel(),
            "paired": paired.ravel(),
        }
    )
    total = whole.sum()
    if not total:
        return rows, np.nan, np.nan
    index = round(adjusted_rand_index(pd.DataFrame(whole)), 2) + 0.0
    return rows, float(index), float(whole[paired].sum() / total)


def numbered(shown: Shown, n_clusters: int) -> tuple[Shown, dict[Any, int]]:
    """The same with the groups under the numbers of the clusters to which they correspond.

    Groups to which none corresponds have further numbers. Also returns the number of each group.

    Examples
    --------
    >>> cells = pd.DataFrame([[5.0, 0.0, 30.0], [60.0, 20.0, 0.0]], [1, 2], [1, 2, 3])
    >>> numbered(Shown(cells, cells * np.nan, cells.sum(axis=1)), 2)[1]
    {1: 2, 2: 3, 3: 1}
    """
    clusters, groups = list(shown.cells.index), list(shown.cells.columns)
    names, place = match_by_patients(clusters, groups, _filled(shown))
    further = itertools.count(n_clusters + 1)
    number = {
        group: int(names[i]) if names[i] in clusters else next(further)
        for group, i in zip(groups, place, strict=True)
    }
    order = sorted(groups, key=lambda group: number[group])
    cells, bounds = (table[order].rename(columns=number) for table in (shown.cells, shown.at_least))
    return Shown(cells, bounds, shown.sizes), number


def _filled(shown: Shown) -> Floats:
    """The cells, the hidden ones with what the shown numbers of their cluster leave for them.

    Each hidden cell gets an equal part of that, or in a cluster with a lower bound at most half
    of what the bound leaves for all of them; the cell with the bound gets the rest.
    """
    cells: Floats = shown.cells.to_numpy(dtype=float).copy()
    rows = zip(cells, shown.at_least.to_numpy(dtype=float), shown.sizes, strict=True)
    for row, bound, size in rows:
        hidden, bounded = np.isnan(row), ~np.isnan(bound)
        rest = max(float(size) - float(np.nansum(row)) - float(np.nansum(bound)), 0.0)
        unknown = hidden & ~bounded
        if bounded.any():
            each = 0.5 * rest / max(unknown.sum(), 1)
            row[bounded] = bound[bounded] + rest - each * unknown.sum()
        else:
            each = rest / max(unknown.sum(), 1)
        row[unknown] = each
    return cells


def course_opinions(
    sequences: Sequences,
    n_clusters: int,
    ks: Iterable[int],
    n_init: int,
    search: SearchKind,
    seed: int,
) -> dict[str, pd.Series]:
    """The groups of latent classes of the time course: as many as clusters, and by BIC.

    By method, numbered from 1; without a second number where BIC chooses that of the clusters.
    """
    settings: dict[str, Any] = {"n_init": n_init, "search": search}
    numbers = {COURSE: n_clusters} if n_clusters > 1 else {}
    table = select_n_classes(sequences, ks, seed, by="course", **settings)
    if (best := vote(table)) != n_clusters or n_clusters == 1:
        numbers[COURSE_BY_BIC] = best
    return {
        name: pd.Series(
            CourseClasses(k, seed=seed, **settings).fit(sequences).labels_ + 1, sequences.ids
        )
        for name, k in numbers.items()
    }


def patients_by_group(
    clusters: pd.Series, groups: pd.Series, rounding: Rounding | None = None
) -> tuple[pd.DataFrame, pd.Series]:
    """Patients by cluster and group, and the sizes of the clusters; exact or all rounded.

    Rounded, no cell has more patients than its cluster.
    """
    counts = cross_table(clusters, groups).astype(float)
    sizes = counts.sum(axis=1)
    if rounding is None:
        return counts, sizes
    ids = clusters.index
    for k in counts.index:
        own = clusters == k
        sizes[k] = rounding.named(sizes[k], rounding.key_of(ids[own]))
        for g in counts.columns:
            key = rounding.key_of(ids[own & (groups == g)])
            counts.at[k, g] = rounding.part(counts.at[k, g], key, sizes[k])
    return counts, sizes


def shown_cells(
    counts: pd.DataFrame, sizes: pd.Series, min_count: int, *, rounded: bool = False
) -> Shown:
    """What may be shown of patients by cluster and group.

    Parameters
    ----------
    counts : DataFrame, clusters × groups
    sizes : Series
        Of the clusters; missing where a size may not be shown.
    min_count : int
    rounded : bool
        Whether the counts are rounded, so that nothing is hidden.
    """
    kept = sizes.notna().to_numpy()
    counts, sizes = counts[kept], sizes[kept]
    if rounded or counts.empty:
        return Shown(counts, counts * np.nan, sizes)
    parts = bounded_parts(counts.to_numpy(), min_count)
    bounds = pd.DataFrame(parts.at_least, counts.index, counts.columns)
    return Shown(counts.mask(parts.hidden), bounds, sizes)


# --- the courses on which methods differ --------------------------------------------------

APART_COLUMNS = (
    *("cluster", "group", "patients"),
    *("path", "path_patients", "sequence", "sequence_patients"),
)


def apart_courses(
    data: Sequences,
    clusters: pd.Series,
    groups: pd.Series,
    shown: Shown,
    min_count: int,
    rounding: Rounding | None = None,
) -> list[dict[str, Any]]:
    """What patients of the largest shown cells do who are not in corresponding groups.

    The rows are those of `SecondOpinion.courses` without the method.
    """
    table, _, _ = compare_shown(shown)
    apart = table[~table["paired"].astype(bool) & (table["patients"] > 0)]
    largest = apart.sort_values("patients", ascending=False, kind="stable").head(_MOST_CELLS)
    rows = []
    for cell in largest.to_dict("records"):
        members = np.flatnonzero((clusters == cell["cluster"]) & (groups == cell["group"]))
        keys = {name: cell[name] for name in ("cluster", "group", "patients")}
        rows.append(keys | _courses(data[members], cell["patients"], min_count, rounding))
    return rows


def _courses(
    data: Sequences, patients: float, min_count: int, rounding: Rounding | None
) -> dict[str, Any]:
    """The most common path and the most frequent sequence of a cell's patients."""
    lines = line_codes(data, _LONGEST + 1).astype(np.intp)
    lines[:, -1] = lines[:, -1] >= 0  # whether the path goes on
    paths, number = np.unique(lines, axis=0, return_inverse=True)
    best = int(np.bincount(number.ravel()).argmax())
    names = [data.states[code] for code in paths[best, :-1] if code >= 0]
    first, same = data.distinct()
    top = int(np.bincount(same).argmax())
    takes, has = number.ravel() == best, same == top
    texts = {
        "path": ARROW.join([*names, "…"] if paths[best, -1] else names),
        "sequence": course_texts(course_spells(data, first[[top]]))[0],
    }
    n: dict[str, float] = {"path": takes.sum(), "sequence": has.sum()}
    least = fewest_patients(min_count, _SHARED_BY)
    for name, rows in (("path", takes), ("sequence", has)):
        if is_small(n[name], least):  # what few do is not told, whatever their number becomes
            n[name] = 0.0
        elif rounding is not None:
            n[name] = rounding.part(n[name], rounding.key_of(data.ids[rows]), patients)
        elif is_small(len(data) - n[name], min_count):
            n[name] = 0.0
    if rounding is None:
        # few who take the path otherwise, or few who do neither, would follow from the two
        rest = (takes & ~has).sum() if takes[has].all() else (~takes & ~has).sum()
        if n["path"] and is_small(rest, min_count):
            n["sequence"] = 0.0
    shown: dict[str, Any] = {}
    for name, text in texts.items():
        shown |= {name: text if n[name] else None, f"{name}_patients": n[name] or np.nan}
    return shown
