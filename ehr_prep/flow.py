"""Counts of the records and patients that a step drops, by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences.account import Step


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
        The patient of each record, −1 if it names none.
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
