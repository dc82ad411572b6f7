"""How sequences came about: an account that stays with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray


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


@dataclass(frozen=True, eq=False)
class Account:
    """Where sequences come from. `ehr_prep.build_sequences` writes it; see `Sequences.account`.

    Parameters
    ----------
    flow : DataFrame
        Patients and records that were dropped, by reason and in order: `stage`, `reason`,
        `patients`, `records`, `patients_left`, `records_left`. It adds up to the input.
    issues : DataFrame
        What was unusual in the records, how often, what was done about it, and up to five
        examples. Like `settings` it describes the whole cohort, also after a selection.
    patients : DataFrame
        One row per patient, in the order of the sequences: index date, end of follow-up, age
        at the index date where it is known, and what else the patients' table holds.
    n_records : (n,) int64
        Number of records of each patient that the sequence rests on.
    settings : dict
        Every option, the columns used, and how many windows were empty or tied.
    unmapped : DataFrame, optional
        Drug texts that the map does not know: `drug`, `records`, `patients`, `did_you_mean`. It
        is of the whole input.
    """

    flow: pd.DataFrame
    issues: pd.DataFrame
    patients: pd.DataFrame
    n_records: NDArray[np.int64]
    settings: dict[str, Any]
    unmapped: pd.DataFrame | None = None

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The account of some of the patients; the flow counts the others as not selected."""
        n_records = self.n_records[rows]
        patients = self.patients.iloc[rows]
        if len(rows) == len(self.patients):
            return replace(self, patients=patients, n_records=n_records)
        n_records_dropped = int(self.n_records.sum() - n_records.sum())
        n_dropped = len(self.patients) - len(rows)
        step = Step("selected", "not selected", n_dropped, n_records_dropped)
        flow = add_steps(self.flow, [step])
        return replace(self, flow=flow, patients=patients, n_records=n_records)


class HasAccount:
    """The parts of an account as attributes of what carries it."""

    account: Account | None

    @property
    def flow(self) -> pd.DataFrame:
        """Patients and records dropped, by reason; see `Account`."""
        return self._known().flow

    @property
    def issues(self) -> pd.DataFrame:
        """What was unusual in the records; see `Account`."""
        return self._known().issues

    @property
    def patients(self) -> pd.DataFrame:
        """One row per patient: index date, end of follow-up and more; see `Account`."""
        return self._known().patients

    @property
    def settings(self) -> dict[str, Any]:
        """The options with which the sequences were built; see `Account`."""
        return self._known().settings

    def _known(self) -> Account:
        if self.account is None:
            raise AttributeError(
                "these sequences have no account of how they came about; those that "
                "ehr_prep.build_sequences makes from records have one."
            )
        return self.account
