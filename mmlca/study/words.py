"""The words that a study uses for its groups, its windows and how long they last.

Clusters are called by their courses, or as the study file says. A name of the study file belongs to
a course, not to a number: under another rule or with new data the same number may stand for other
patients.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from font.errors import InputError, ReportWarning
from mmlca.sequences.checks import listed
from mmlca.study.results.groups import classes_everywhere
from mmlca.study.results.shown_courses import names_by_course
from mmlca.study.results.site import ENSEMBLE, OWN, REFINED, SHOWN, stacked
from mmlca.tables.clusters import name_clusters, percent_text, plural
from mmlca.tables.disclosure import few_patients

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.results.shown_courses import Groups
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study


_WINDOWS = {1: "month", 3: "quarter", 6: "half-year", 12: "year"}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def group_word(study: Study) -> str:
    """The groups of an ensemble are clusters, those of a single model are classes."""
    return "cluster" if len(study.sites) > 1 else "class"


def groups_word(study: Study) -> str:
    return "clusters" if len(study.sites) > 1 else "classes"


def in_words(name: object) -> str:
    """The name of a column or setting for a sentence: "death date" for death_date."""
    return str(name).replace("_", " ")


def group_name(study: Study, group: Any, names: Mapping[Any, str] | None = None) -> str:
    """ "cluster 1", or with its short name "1: TNFi persisters"."""
    name = (names or {}).get(group)
    return f"{group_word(study)} {group}" if name is None else f"{group}: {name}"


def window_name(study: Study) -> str:
    """What one window of the sequences is called, such as "quarter"."""
    if study.outputs.time is not None:
        return study.outputs.time.lower()
    if not study.from_records:
        return "time point"
    rules = study.rules
    if rules.days is not None:
        return f"window of {rules.days:g} days"
    return _WINDOWS.get(rules.months, f"window of {rules.months} months")


def windows_name(study: Study) -> str:
    """The plural: "quarters", "windows of 45 days"."""
    return plural(window_name(study))


def period(study: Study, n_windows: int) -> str:
    """How long sequences of so many windows last: "4 years", "30 months" or "16 time points"."""
    if not study.from_records or study.rules.days is not None:
        return f"{n_windows} {windows_name(study).split(' of ')[0]}"
    months = n_windows * study.rules.months
    return counted(months // 12, "year") if months % 12 == 0 else counted(months, "month")


def dead_included(results: Mapping[str, SiteResults]) -> str:
    """Who else is among the patients observed in a window, if death is a state."""
    is_state = any(bool(result.tables["about"]["dead"].item()) for result in results.values())
    return ", the dead included until the end of the data" if is_state else ""


def share_of_patients(study: Study, share: float) -> str:
    """A share of the patients, which is NaN if it is based on too few."""
    if np.isnan(share):
        return few_patients(study.privacy.min_count)
    return f"{percent_text(share)} of the patients"


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(2, "class")
    ('1 step', '2 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{'' if n == 1 else ending}"


def sentences(*parts: str) -> str:
    """Sentences as one text, without the empty ones.

    >>> sentences("One.", "", "Two.")
    'One. Two.'
    """
    return " ".join(filter(None, parts))


def by_sentence(of_sites: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Each sentence with all sites of which it is said.

    >>> by_sentence({"A": ["One.", "Two."], "B": ["Two."]})
    [('A', 'One.'), ('A and B', 'Two.')]
    """
    sites: dict[str, list[str]] = {}
    for site, texts in of_sites.items():
        for text in texts:
            sites.setdefault(text, []).append(site)
    return [(listed(names), text) for text, names in sites.items()]


def number_word(n: int) -> str:
    return _NUMBERS[n] if n < len(_NUMBERS) else f"{n:,}"


def span(numbers: tuple[int, ...]) -> str:
    """Whole numbers in words: "1 to 8", or "2, 4 and 7"."""
    tried = sorted(set(numbers))
    if len(tried) > 2 and tried == list(range(tried[0], tried[-1] + 1)):
        return f"{tried[0]} to {tried[-1]}"
    return listed([str(k) for k in tried])


# --- names of clusters ------------------------------------------------------------------


def courses_of_names(
    study: Study, courses: Sequence[str | None], earlier: Mapping[str, str]
) -> dict[str, str]:
    """The course that each name of the study file (outputs.names) belongs to.

    A table says it. A list names the clusters in their order: a name that an earlier run in the
    same folder used keeps the course that it had there, and a new one gets the course of the
    cluster in its place.

    Parameters
    ----------
    study : Study
    courses : of the clusters, from `name_clusters`; None for those that may not be described
    earlier : {name: course} of an earlier run
    """
    names = study.outputs.names
    if names is None or isinstance(names, Mapping):
        return dict(names or {})
    if len(names) != len(courses):
        raise InputError(
            f"outputs.names has {len(names)} names, but there are {len(courses)} "
            f"{groups_word(study)}; give one for each, or leave the setting out."
        )
    known = {name: earlier[name] for name in names if name in earlier}
    new = {
        name: course
        for name, course in zip(names, courses, strict=True)
        if name not in known and course is not None
    }
    return known | new


def short_names(
    study: Study, courses: Sequence[str | None], given: Mapping[str, str]
) -> list[str | None]:
    """The clusters' short names: the name that is given to a course, or else the course itself.

    A name is not used where no cluster has its course, or where it is another cluster's course; a
    warning says so.

    Parameters
    ----------
    study, courses : as in `courses_of_names`
    given : {name: course}, from `courses_of_names`
    """
    names, group = list(courses), group_word(study)
    for name, course in given.items():
        free = [i for i, other in enumerate(courses) if other == course == names[i]]
        if free and name not in (*courses[: free[0]], *courses[free[0] + 1 :]):
            names[free[0]] = name
            continue
        shown = listed([f"“{other}”" for other in courses if other is not None])
        warnings.warn(
            f"the name “{name}” is not used: it was given to a {group} with the course “{course}”, "
            f"and there is no such {group} without a name now. The {groups_word(study)} are "
            f"{shown}. To give the name to one of them, write its course beside the name in the "
            f"study file: {_as_toml({name: 'course'})}.",
            ReportWarning,
            stacklevel=2,
        )
    used = {name: course for name, course in given.items() if name in names}
    if used and not isinstance(study.outputs.names, Mapping):
        warnings.warn(
            f"the study file names the {groups_word(study)} by their order, which another rule or "
            "other data may change. Runs in this folder keep each name with the course that it "
            f"was first given to; for any folder, write in the study file: {_as_toml(used)}.",
            ReportWarning,
            stacklevel=2,
        )
    return names


def _as_toml(names: Mapping[str, str]) -> str:
    """The setting as the study file has it.

    >>> print(_as_toml({"stayers": "A persisters"}))
    names = {"stayers" = "A persisters"}
    """
    pairs = ", ".join(
        f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(course, ensure_ascii=False)}"
        for name, course in names.items()
    )
    return f"names = {{{pairs}}}"


# --- the names of all groups --------------------------------------------------------------

GOOD_MATCH = 0.5
"""The smallest Jaccard index at which a class of a site's own model has a cluster's name."""


class Names(NamedTuple):
    """What the groups of a study are called.

    Parameters
    ----------
    clusters : {cluster: short name}
        Of clusters that have one.
    groups : {membership: {number: name}}
        Of the views of the report, and of each site's model at all sites.
    own : {site: {number: short name}}
        Of the classes of the site's own model, from their courses.
    """

    clusters: dict[int, str]
    groups: dict[str | None, dict[int, str]]
    own: dict[str, dict[int, str]]


def name_groups(
    study: Study,
    results: Mapping[str, SiteResults],
    views: Mapping[str, Groups],
    described: pd.DataFrame,
    names_given: Callable[[list[str | None]], Mapping[str, str]],
) -> Names:
    """The names of all groups.

    A class of a site's own model matches a cluster if at every site where either has patients at
    least half of those who are in one of the two are in both. It has the cluster's name if its
    own patients have the same course at every site; otherwise it is "like cluster 3". A class
    without a match is "own class 3", with a short name from its own courses if that is the same
    at all sites. A refined cluster has the cluster's name if its own patients have the same
    course.

    Parameters
    ----------
    study, results
    views : {view: Groups}
    described : DataFrame
        Of the clusters, from `described_of`: names follow from the numbers that are shown.
    names_given : function of the courses of the clusters
        Says which course each name of the study file belongs to, see `courses_of_names`.
    """
    courses = name_clusters(described)
    shorts = short_names(study, courses, names_given(courses))
    numbers = [int(cluster) for cluster in described["cluster"]]
    clusters = {k: short for k, short in zip(numbers, shorts, strict=True) if short}
    of_course = {k: course for k, course in zip(numbers, courses, strict=True) if course}
    classes = views.get(OWN, next(iter(views.values())))
    own = {site: names_by_course(classes, site) for site in classes.counts}
    named: dict[str | None, dict[int, str]] = {}
    for view, groups in views.items():
        short = clusters
        if view == REFINED:
            refined = names_by_course(groups)
            short = {k: name for k, name in clusters.items() if refined.get(k) == of_course[k]}
        names = {k: group_name(study, k, short) for k in groups.order}
        if view == OWN:
            names = _names_of_classes(
                names, groups, own, of_course, jaccard(_pairs_of_own_classes(results, groups))
            )
        named[SHOWN[view]] = names
    named.update(_names_everywhere(results))
    return Names(clusters, named, own)


def _names_of_classes(
    clusters: Mapping[int, str],
    groups: Groups,
    own: Mapping[str, Mapping[int, str]],
    courses: Mapping[int, str],
    alike: Mapping[int, float],
) -> dict[int, str]:
    """The names of the classes of the sites' own models."""
    names = {}
    for number in groups.order:
        shorts = {short[number] for short in own.values() if number in short}
        if alike.get(number, 0.0) >= GOOD_MATCH:
            same = shorts == {courses.get(number)}
            names[number] = clusters[number] if same else f"like cluster {number}"
            continue
        different = "differs between the sites" if len(shorts) > 1 else next(iter(shorts), "")
        names[number] = f"own class {number}: {different}".removesuffix(": ")
    return names


def jaccard(pairs: pd.DataFrame) -> dict[int, float]:
    """The Jaccard index of each class and the cluster of its number, at the worst site.

    Sites where neither has patients do not count.

    Parameters
    ----------
    pairs : DataFrame
        site, cluster, number (of the class) and patients (in both).

    Examples
    --------
    >>> import pandas as pd
    >>> columns = ["site", "cluster", "number", "patients"]
    >>> rows = [("A", 1, 1, 2), ("A", 2, 2, 1), ("B", 1, 1, 1), ("B", 2, 1, 1), ("B", 2, 2, 1)]
    >>> jaccard(pd.DataFrame(rows, columns=columns))
    {1: 0.5, 2: 0.5}
    """
    shares: dict[int, list[float]] = {}
    for _, rows in pairs.groupby("site", sort=False):
        for number in sorted({*rows["cluster"], *rows["number"]}):
            cluster, own = rows["cluster"] == number, rows["number"] == number
            shared, either = (
                rows.loc[at, "patients"].sum() for at in (cluster & own, cluster | own)
            )
            shares.setdefault(number, []).append(float(shared / either) if either else 0.0)
    return {number: min(values) for number, values in shares.items()}


def _pairs_of_own_classes(results: Mapping[str, SiteResults], classes: Groups) -> pd.DataFrame:
    table = stacked(results, "overlaps")
    table = table[(table["view"] == ENSEMBLE) & (table["other"] == OWN)]
    own = zip(table["site"], table["other_group"], strict=True)
    return table.assign(
        cluster=table["group"].astype(int),
        number=[classes.numbers[site][int(k)] for site, k in own],
    )


def _names_everywhere(
    results: Mapping[str, SiteResults],
) -> dict[str | None, dict[int, str]]:
    """What the classes of each site's model are called where it groups the patients of all."""
    table = stacked(results, "classes_everywhere")
    names: dict[str | None, dict[int, str]] = {}
    for model, numbers in classes_everywhere(results).items():
        rows = table[table["model"] == model]
        pairs = rows.assign(
            cluster=rows["cluster"].astype(int), number=[numbers[int(k)] for k in rows["class"]]
        )
        alike = jaccard(pairs)
        names[f"{model} everywhere"] = {
            k: f"{'like cluster' if alike.get(k, 0.0) >= GOOD_MATCH else 'own class'} {k}"
            for k in sorted(numbers.values())
        }
    return names
