"""Which patients earlier results in a folder were about, to warn where few of them differ.

Two studies of nearly the same patients can be subtracted from each other: what differs between
their tables are the few patients that one of them lacks. The folder of results therefore remembers
the patients of earlier runs, in `patients/cohorts.json`, which stays inside the hospital. It holds
no ids but hashes with the folder's key, so that somebody who was removed is not kept by name.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmlca.tables.disclosure import is_small

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.folder import Results

_FILE = "patients/cohorts.json"
_KEPT = 50  # cohorts; the oldest are forgotten


def cohorts_of(results: Results, sequences: Mapping[str, Sequences]) -> dict[str, list[str]]:
    """The patients of each site, as hashes in order."""
    return {
        site: sorted(
            hmac.digest(results.secret, str(patient).encode(), "sha256").hex()[:16]
            for patient in data.ids
        )
        for site, data in sequences.items()
    }


def nearly_repeated(
    results: Results, cohorts: Mapping[str, list[str]], min_count: int
) -> list[str]:
    """The sites whose patients an earlier run had too, but for fewer than `min_count` of them.

    What a site was called then does not matter.
    """
    earlier = [set(cohort) for cohort in _read(results)]
    return [
        site
        for site, cohort in cohorts.items()
        if any(is_small(len(set(cohort) ^ other), min_count) for other in earlier)
    ]


def remember(results: Results, cohorts: Mapping[str, list[str]]) -> None:
    """Add the patients of a finished run to those of earlier ones."""
    earlier = _read(results)
    new = [cohort for cohort in cohorts.values() if cohort not in earlier]
    if new:
        results.keep(_FILE, [*earlier, *new][-_KEPT:])


def _read(results: Results) -> list[list[str]]:
    """The cohorts of earlier runs; none if the file is absent or is not one of ours."""
    try:
        stored = results.read_json(_FILE)
    except (OSError, ValueError):
        return []
    lists = stored if isinstance(stored, list) else []
    return [[str(name) for name in cohort] for cohort in lists if isinstance(cohort, list)]
