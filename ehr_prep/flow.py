"""Patients and records that were dropped, and why: the table behind a CONSORT diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.tables.suppress import is_small


class Step(NamedTuple):
    """One row of a flow table: how many patients and records were dropped here, and why."""

    stage: str
    reason: str
    patients: int
    records: int


def flow_table(patients: int, records: int, steps: Sequence[Step]) -> pd.DataFrame:
    """What came in, what each step dropped, and what was left after it.

    Returns
    -------
    DataFrame
        `stage` (read, usable, eligible or sequences), `reason`, `patients` and `records`
        dropped, `patients_left` and `records_left`. The first row is the input.

    Examples
    --------
    >>> flow_table(3, 20, [Step("usable", "duplicate", 0, 2)]).records_left.to_list()
    [20, 18]
    """
    table = pd.DataFrame([Step("read", "in the input", 0, 0), *steps], columns=list(Step._fields))
    table["patients_left"] = patients - table["patients"].cumsum()
    table["records_left"] = records - table["records"].cumsum()
    return table


def add_steps(flow: pd.DataFrame, steps: Sequence[Step]) -> pd.DataFrame:
    """The same flow with further steps."""
    before = [Step(*row) for row in flow[list(Step._fields)].iloc[1:].itertuples(index=False)]
    start = flow.iloc[0]
    return flow_table(int(start["patients_left"]), int(start["records_left"]), [*before, *steps])


def hide_flow(flow: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The flow with small numbers pooled, so that none shows or follows from what is left.

    Reasons that dropped at least one and fewer than `min_count` patients or records become
    "other reasons", together with the next larger ones until neither number is small. A stage
    whose numbers are small even so is told together with the next one, the last with the one
    before it. What was left at the end stays as it is.

    Examples
    --------
    >>> steps = [Step("usable", "no date", 30, 90), Step("usable", "no drug", 2, 7)]
    >>> steps += [Step("eligible", "late", 20, 60), Step("sequences", "after the end", 0, 50)]
    >>> hide_flow(flow_table(300, 900, steps), 11)[["stage", "reason", "patients"]]
           stage         reason  patients
    0       read   in the input         0
    1     usable  other reasons        32
    2   eligible           late        20
    3  sequences  after the end         0
    """
    before = [Step(*row) for row in flow[list(Step._fields)].itertuples(index=False)]
    stages = [(name, [s for s in before if s.stage == name]) for name in flow["stage"].unique()]
    pooled = [_pool(steps, min_count) for _, steps in stages]
    while None in pooled:
        at = min(pooled.index(None), len(stages) - 2)
        if at == 0:  # even the input would tell how few were dropped
            return flow.iloc[[-1]].assign(reason="at the end", patients=0, records=0)
        (_, one), (name, two) = stages[at : at + 2]
        stages[at : at + 2] = [(name, [*one, *two])]
        pooled = [_pool(steps, min_count) for _, steps in stages]
    steps = [
        step._replace(stage=name)
        for (name, _), kept in zip(stages, pooled, strict=True)
        for step in kept or []
    ]
    start = flow.iloc[0]
    return flow_table(int(start["patients_left"]), int(start["records_left"]), steps[1:])


def _pool(steps: Sequence[Step], min_count: int) -> list[Step] | None:
    """The steps of a stage without small numbers; None if they are small all together."""

    def small(some: Sequence[Step]) -> bool:
        totals = [sum(s.patients for s in some), sum(s.records for s in some)]
        return bool(is_small(totals, min_count).any())

    others = [step for step in steps if small([step])]
    larger = sorted((s for s in steps if s not in others and any(s[2:])), key=lambda s: s[2:])
    while small(others) and larger:
        lacks_patients = is_small(sum(s.patients for s in others), min_count)
        useful = [s for s in larger if s.patients or not lacks_patients]
        if not useful:
            return None
        larger.remove(useful[0])
        others.append(useful[0])
    if small(others):
        return None
    kept = [step for step in steps if step not in others]
    if others:
        totals = (sum(s.patients for s in others), sum(s.records for s in others))
        kept.append(Step(others[0].stage, "other reasons", *totals))
    return kept


def last_reasons(
    patient: NDArray[np.integer[Any]], dropped_for: NDArray[np.int8], n_patients: int
) -> NDArray[np.int8]:
    """Why each patient leaves: with their last record, the latest of the reasons that took one.

    Parameters
    ----------
    patient : (n,)
        The patient of each record, −1 if it names none.
    dropped_for : (n,)
        0 for a record that is kept, else 1 + the position of its reason.

    Returns
    -------
    (n_patients,)
        0 for patients with a record that is kept, and for those without any record.
    """
    dropped = np.flatnonzero(dropped_for)
    stays = np.zeros(n_patients, dtype=bool)
    stays[patient if not len(dropped) else patient[dropped_for == 0]] = True
    named = dropped[patient[dropped] >= 0]
    leaves_at = np.zeros(n_patients, dtype=np.int8)
    np.maximum.at(leaves_at, patient[named], dropped_for[named])
    leaves_at[stays] = 0
    return leaves_at
