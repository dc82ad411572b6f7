"""What the patients of each group do first and next, and how much that varies between patients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import ENSEMBLE
from mmlca.tables.counts import ClusterSteps, cluster_steps
from mmlca.tables.course_tables import course_keys
from mmlca.tables.disclosure import few_digits, is_small

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study
    from mmlca.tables.disclosure import Rounding

EVERYWHERE = "everywhere"
"""The view of the classes of one site's own model at all sites."""
_DIGITS = 2


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    steps: list[list[Any]] = []
    rows: list[list[Any]] = []
    for view, model, groups in _rules(study, patients):
        rounding = patients.rounding
        if rounding is not None and view != patients.first_view:
            rounding = rounding.of({patients.site: groups})
        numbers, codes = np.unique(groups.to_numpy(dtype=int), return_inverse=True)
        counted = cluster_steps(patients.sequences, codes, len(numbers))
        if rounding is not None:
            counted = _rounded(counted, patients, groups.astype(int), numbers, rounding)
        states = patients.sequences.states
        steps += [[view, model, *row] for row in _cells(counted, numbers.tolist(), states)]
        rows += [[view, model, *row] for row in _rows(counted, numbers.tolist(), states)]
    return {
        "steps": pd.DataFrame(steps, columns=list(_STEPS)),
        "step_rows": pd.DataFrame(rows, columns=list(_ROWS)),
    }


def _rules(study: Study, patients: SitePatients) -> Iterator[tuple[str, str | None, pd.Series]]:
    """The views, and the classes of each site's own model at this site."""
    for view, groups in patients.groups.items():
        yield view, None, groups
    for model in patients.labels if ENSEMBLE in patients.groups else ():
        if model in study.sites:
            yield EVERYWHERE, model, patients.labels[model] + 1


def _cells(
    counted: ClusterSteps, numbers: list[int], states: tuple[Any, ...]
) -> Iterator[list[Any]]:
    before = [*states, None]
    for k, i, j in np.argwhere(counted.steps > 0):
        cell = counted.steps[k, i, j], counted.patients[k, i, j]
        yield [numbers[k], before[i], states[j], *cell]


def _rows(
    counted: ClusterSteps, numbers: list[int], states: tuple[Any, ...]
) -> Iterator[list[Any]]:
    before = [*states, None]
    for k, i in np.argwhere(counted.n > 0):
        yield [numbers[k], before[i], counted.leaving[k, i], counted.dispersion[k, i]]


def _rounded(
    exact: ClusterSteps,
    patients: SitePatients,
    groups: pd.Series,
    numbers: Any,
    rounding: Rounding,
) -> ClusterSteps:
    """The same with all counts rounded, and variances that rest on enough patients."""
    data: Sequences = patients.sequences
    keys = course_keys({patients.site: data}, {patients.site: groups}, rounding)
    before = [[state] for state in data.states] + [[]]
    steps, people = np.zeros_like(exact.steps), np.zeros_like(exact.steps)
    leaving = np.zeros_like(exact.leaving)
    for k, i in np.argwhere(exact.leaving > 0):
        names = []
        for j in np.flatnonzero(exact.patients[k, i]):
            names.append(keys[patients.site, str(numbers[k]), *before[i], data.states[j]])
            n = exact.patients[k, i, j]
            steps[k, i, j] = rounding.steps(exact.steps[k, i, j], n, names[-1])
            people[k, i, j] = rounding.named(n, names[-1])
        leaving[k, i] = rounding.named(exact.leaving[k, i], min(names))
    supported = (~is_small(exact.patients, rounding.unit) & (exact.patients > 0)).sum(axis=-1) > 1
    shown = few_digits(exact.dispersion, _DIGITS)
    return ClusterSteps(steps, people, leaving, np.where(supported, shown, np.nan))


_KEYS = {
    "view": Column("text", "the rule that groups the patients"),
    "model": Column("text", "the site whose own model gives the classes; missing for other rules"),
    "group": Column("whole", "the number of a group"),
    "from": Column("text", "a state; missing: the patients begin in the state `to`"),
}
_STEPS = {
    **_KEYS,
    "to": Column("text", "the state one window later"),
    "count": Column("count", "steps from one state to the other, or patients who begin there"),
    "patients": Column("count", "different patients with such a step"),
}
_ROWS = {
    **_KEYS,
    "patients": Column("count", "different patients with any step from the state"),
    "dispersion": Column(
        "number",
        "variance of the shares of these steps when patients are drawn again, relative to that of "
        "independent steps; two digits where counts are rounded, and missing where fewer than two "
        "steps are made by as many patients as may be shown",
    ),
}
PART = Part({"steps": _STEPS, "step_rows": _ROWS}, make)
