"""Patients by site and group: the labels that callers give, checked and matched to patients.

Labels come for each patient as a Series indexed by id or as an array in the patients' order;
where sequences come as a dict {site: Sequences}, labels come as a dict {site: labels}.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.sequences.checks import patient_labels, some
from mmlca.sequences.type import Labels as Labels
from mmlca.sequences.type import Sequences

SequencesBySite: TypeAlias = Mapping[str, Sequences]
LabelsBySite: TypeAlias = Mapping[str, Labels]
Groups: TypeAlias = Labels | LabelsBySite | None
Keys: TypeAlias = dict[str, Hashable]


class GroupInfo(NamedTuple):
    """What a figure needs to know about the patients of a site and group, besides its table.

    Parameters
    ----------
    keys : dict
        {"site": …, "group": …} as far as they apply.
    n : int
        Patients of positive weight.
    weight : float
        The sum of their weights.
    states, times, absorbing : tuple of str
        As in `Sequences`.
    """

    keys: Keys
    n: int
    weight: float
    states: tuple[str, ...]
    times: tuple[str, ...]
    absorbing: tuple[str, ...] = ()


def group_infos(sequences: Sequences | SequencesBySite, groups: Groups = None) -> list[GroupInfo]:
    """What figures need to know about each site's and group's patients.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "B"], ["A"], ["B", "B"]])
    >>> [(info.keys, info.n) for info in group_infos(s, ["x", "y", "x"])]
    [({'group': 'x'}, 2), ({'group': 'y'}, 1)]
    """
    return [group_info(keys, data) for keys, data in split(sequences, groups)]


def group_info(keys: Keys, data: Sequences) -> GroupInfo:
    """What figures need to know about these patients."""
    n, weight = int((data.weights > 0).sum()), float(data.weights.sum())
    return GroupInfo(keys, n, weight, data.states, data.times, data.absorbing)


def by_group(
    sequences: Sequences | SequencesBySite,
    groups: Groups,
    table: Callable[[Sequences], pd.DataFrame],
) -> pd.DataFrame:
    """The tables of all sites and groups one below the other, behind "site" and "group"."""
    parts = []
    for keys, data in split(sequences, groups):
        frame = table(data)
        for position, (name, value) in enumerate(keys.items()):
            frame.insert(position, name, [value] * len(frame), allow_duplicates=True)
        parts.append(frame)
    if not parts:
        raise InputError("there are no patients to describe.")
    parts = [part for part in parts if len(part)] or parts[:1]  # an empty one has no types
    if len(parts) == 1:
        return parts[0]
    for name in parts[0].columns[parts[0].dtypes == "category"]:
        if any(part[name].dtype != parts[0][name].dtype for part in parts):  # different states
            for part in parts:
                part[name] = part[name].astype(object)
    parts = [part for part in parts if len(part)] or parts[:1]
    for name in parts[0].columns:  # pandas 2 warns of columns that are empty in one part alone
        types = {part[name].dtype for part in parts if part[name].notna().any()}
        if len(types) == 1:
            for part in parts:
                part[name] = part[name].astype(*types)
    return pd.concat(parts, ignore_index=True)


def split(
    sequences: Sequences | SequencesBySite, groups: Groups = None
) -> Iterator[tuple[Keys, Sequences]]:
    """Each site's and group's patients, with {"site": …, "group": …} as far as they apply."""
    if hasattr(groups, "predict") and not isinstance(groups, type):
        groups = classes_of(groups, sequences)
    if isinstance(sequences, Mapping):
        labels = None if groups is None else _of_sites(sequences, groups, "groups")
        for site, part in sequences.items():
            for keys, subset in split(part, None if labels is None else labels[site]):
                yield {"site": site, **keys}, subset
    elif groups is None:
        yield {}, sequences
    else:
        values = patient_labels(sequences.ids, groups, "groups")
        levels = (
            values.cat.categories
            if isinstance(values.dtype, pd.CategoricalDtype)
            else np.sort(values.unique())
        )
        for level in levels:
            yield {"group": level}, sequences[(values == level).to_numpy()]


def classes_of(model: Any, sequences: Sequences | SequencesBySite) -> Labels | LabelsBySite:
    """Each patient's class under a fitted model: "class 1", "class 2", …"""
    if isinstance(sequences, Mapping):
        return {site: classes_of(model, data) for site, data in sequences.items()}
    codes, classes = np.unique(model.predict(sequences), return_inverse=True)
    return pd.Categorical.from_codes(classes, [f"class {code + 1}" for code in codes])


def plain_labels(
    sites: SequencesBySite, labels: LabelsBySite, name: str
) -> dict[str, list[Hashable]]:
    """Each patient's label at each site as a plain value; whole floats become integers."""
    by_site = _of_sites(sites, labels, name)
    plain = {}
    for site, data in sites.items():
        values = patient_labels(data.ids, by_site[site], name, site)
        if values.dtype.kind == "f" and (values == values.round()).all():
            values = values.astype(int)
        plain[site] = values.tolist()
    return plain


def _of_sites(sites: SequencesBySite, labels: Any, name: str) -> LabelsBySite:
    """The labels as a dict that has all sites."""
    if not isinstance(labels, Mapping):
        raise TypeError(
            f"sequences come by site, so {name} must be a dict {{site: Series by id}} too; found "
            f"{type(labels).__name__}."
        )
    absent = [site for site in sites if site not in labels]
    if absent:
        raise InputError(f"{name} are missing for the sites {some(absent)}; give them for all.")
    return labels


def checked_sites(sequences: Any, at_least: int = 2) -> dict[str, Sequences]:
    """A dict of enough sites with patients, all with the same states."""
    if not isinstance(sequences, Mapping):
        raise TypeError(
            f"sequences must be a dict {{site: Sequences}}, found {type(sequences).__name__}; "
            "put each site's patients under the site's name."
        )
    sites = dict(sequences)
    if len(sites) < at_least:
        raise InputError(
            f"found {len(sites)} site{'' if len(sites) == 1 else 's'} ({some(sites)}), at least "
            f"{at_least} are needed; give sequences as {{site: Sequences}}."
        )
    for site, data in sites.items():
        if not isinstance(data, Sequences):
            raise TypeError(f"site {site!r} holds {type(data).__name__}, Sequences are needed.")
        if not data.weights.sum() > 0:
            raise InputError(f"site {site!r} has no patients; leave it out.")
    first, *others = sites
    for site in others:
        if sites[site].states != sites[first].states:
            raise InputError(
                f"the states differ: {list(sites[first].states)} at {first!r}, "
                f"{list(sites[site].states)} at {site!r}; build all with the same states=."
            )
    return sites
