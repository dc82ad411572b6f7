"""The words that a study uses for its groups, its windows and how long they last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mmlca.sequences.checks import listed
from mmlca.tables.clusters import percent_text, plural
from mmlca.tables.disclosure import few_patients

if TYPE_CHECKING:
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
