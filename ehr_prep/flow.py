"""Who and what was dropped, and why: the table behind a CONSORT diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class Step(NamedTuple):
    """One row of a flow table: how many patients and records left it here, and why."""

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
    """The same flow, gone further."""
    before = [Step(*row) for row in flow[list(Step._fields)].iloc[1:].itertuples(index=False)]
    start = flow.iloc[0]
    return flow_table(int(start["patients_left"]), int(start["records_left"]), [*before, *steps])


def count_steps(
    stage: str,
    reasons: Sequence[str],
    patient: NDArray[np.integer[Any]],
    dropped_for: NDArray[np.int8],
    n_patients: int,
) -> list[Step]:
    """Steps that drop single records.

    A patient leaves with their last record, at the latest of the reasons that took one.

    Parameters
    ----------
    reasons : in the order in which they are tried
    patient : (n,)
        Each record's patient, −1 if it names none.
    dropped_for : (n,)
        0 for a record that is kept, else 1 + the position of its reason.
    """
    dropped = np.flatnonzero(dropped_for)
    records = np.bincount(dropped_for[dropped], minlength=len(reasons) + 1)
    stays = np.zeros(n_patients, dtype=bool)
    kept_patient = patient if not len(dropped) else patient[dropped_for == 0]
    stays[kept_patient] = True
    named = dropped[patient[dropped] >= 0]
    leaves_at = np.zeros(n_patients, dtype=np.int8)
    np.maximum.at(leaves_at, patient[named], dropped_for[named])
    leaves_at[stays] = 0
    patients = np.bincount(leaves_at, minlength=len(reasons) + 1)
    return [
        Step(stage, reason, int(patients[i]), int(records[i]))
        for i, reason in enumerate(reasons, start=1)
    ]
