"""Records become sequences: one state for each window of each eligible patient."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.cohort import choose_cohort, completed_years
from ehr_prep.flow import Step, add_steps
from ehr_prep.records import Records
from ehr_prep.screen import Issue
from ehr_prep.sources import to_dates, to_days
from mmlca import files
from mmlca.sequences import Sequences

_TIES = ("first", "latest", "previous")
_IMPUTE = ("carry_forward", "carry_forward_max", "missing")


@dataclass(frozen=True, eq=False, repr=False)
class TreatmentSequences(Sequences):
    """`mmlca.Sequences` with an account of how they came about. Made by `build_sequences`.

    The account is that of the whole cohort: a selection or resample of it has empty tables.

    Parameters
    ----------
    flow : DataFrame
        Patients and records dropped, by reason, in order; it adds up to the input.
    issues : DataFrame
        What looked odd, how often, what was done about it, and up to five examples.
    patients : DataFrame
        By id: index date, end of follow-up, age at the index date where known, and what
        else the patients' table holds.
    settings : dict
        Every option, the columns used, and how many windows were empty or tied.
    """

    flow: pd.DataFrame = field(default_factory=pd.DataFrame)
    issues: pd.DataFrame = field(default_factory=pd.DataFrame)
    patients: pd.DataFrame = field(default_factory=pd.DataFrame)
    settings: dict[str, Any] = field(default_factory=dict)

    def write_all(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the sequences to `path`, and the account beside it; returns all the paths.

        With "out/mgb.parquet" these are mgb.flow.csv, mgb.issues.csv and mgb.settings.json.
        The patients stay where they are.
        """
        main = Path(path)
        self.write(main)
        written = [main]
        for name, table in (("flow", self.flow), ("issues", self.issues)):
            written.append(main.with_suffix(f".{name}.csv"))
            with files.atomic(written[-1]) as file:
                table.to_csv(file, index=False, lineterminator="\n")
        written.append(main.with_suffix(".settings.json"))
        with files.atomic(written[-1]) as file:
            file.write(json.dumps(self.settings, indent=2, ensure_ascii=False).encode() + b"\n")
        return written


def build_sequences(
    records: Records,
    *,
    first_on_or_after: Any = "2008-01-01",
    washout_days: int | None = None,
    min_history_days: int | None = None,
    min_follow_up_days: int | None = None,
    min_age: float | None = None,
    max_age: float | None = None,
    follow_up: Any = None,
    data_cut: Any = None,
    months: int = 3,
    days: float | None = None,
    max_windows: int = 16,
    by: str = "records",
    ties: str = "first",
    impute: str = "carry_forward",
    max_carry: int = 2,
    none_state: str = "none",
) -> TreatmentSequences:
    """Turn records into sequences of drug classes, one for each eligible patient.

    Parameters
    ----------
    records : Records
        From `read_records`.
    first_on_or_after : date or None
        Patients whose first record is earlier are not eligible; None: no such rule.
    washout_days : int, optional
        Allow earlier treatment, if at least so many days without any came between: the
        index date is the first record on or after `first_on_or_after` with no other in
        the `washout_days` before it. Default: none may be earlier.
    min_history_days : int, optional
        How long before the index date a patient must have had a record of any kind.
    min_follow_up_days : int, optional
        From the index date to the end of follow-up.
    min_age, max_age : numbers, optional
        Completed years on the index date; needs birth dates.
    follow_up : "patients", "last_record" or a date
        Where follow-up ends: in the patients' table (a patient without a date there: the
        last record), at the last record of any kind, or for all on one day. Default: the
        patients' table if it says, else the last record.
    data_cut : date, optional
        Nothing after this day counts.
    months : int
        Length of a window in calendar months from the index date: from a 15 January to
        14 April, and so on; from 31 January to 29 April, since April has no 31st.
    days : float, optional
        Length of a window in days instead, such as 91.3125.
    max_windows : int
        The sequence ends after so many windows, or with the window in which follow-up ends.
    by : "records" or "days"
        A window gets the class with the most records, or with the most days covered (from
        a record to its end or by its supply; a day covered twice counts once).
    ties : "first", "latest" or "previous"
        Between equals, the class whose first record in the window is the earliest, whose
        last is the latest, or that was the state before (else as "first"); then the
        order of the states.
    impute : "carry_forward", "carry_forward_max" or "missing"
        A window without a record repeats the state before it; or does so at most
        `max_carry` times in a row and is then in the state called `none_state`; or is
        missing.
    max_carry, none_state
        See `impute`.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 7], "drug": ["Humira", "Humira", "Orencia"],
    ...                       "date": ["2010-01-15", "2010-02-15", "2010-10-20"]})
    >>> sequences = build_sequences(read_records(frame), max_windows=5)
    >>> sequences.to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'CTLA4-Ig', nan]
    >>> sequences.flow["records_left"].to_list()[-1]
    3
    """
    options = {name: value for name, value in locals().items() if name != "records"}
    if not isinstance(records, Records):
        raise TypeError(
            f"records must come from read_records, found {type(records).__name__}; read them first."
        )
    _check_options(options, records.states)
    cohort = choose_cohort(
        records,
        first_on_or_after=first_on_or_after,
        washout_days=washout_days,
        min_history_days=min_history_days,
        min_follow_up_days=min_follow_up_days,
        min_age=min_age,
        max_age=max_age,
        follow_up=follow_up,
        data_cut=data_cut,
    )
    if not cohort.eligible.any():
        reasons = ", ".join(f"{s.reason} ({s.patients:,})" for s in cohort.steps if s.patients)
        raise ValueError(
            f"none of the {len(records.ids):,} patients with a mapped drug is eligible: {reasons}; "
            "relax these rules."
        )
    kept = cohort.eligible
    index, last = cohort.start[kept], cohort.last[kept]
    edges = window_edges(index, max_windows, months, days)
    codes, counted = _choose(records, kept, edges, last, by, ties)
    lengths = (edges[:, :-1] <= last[:, None]).sum(axis=1)
    n_empty = int(lengths.sum() - (codes >= 0).sum())
    states = _fill(codes, lengths, records.states, impute, max_carry, none_state)
    steps = [
        *cohort.steps,
        Step("sequences", "before the index date", 0, counted[0]),
        Step("sequences", "after the end of follow-up", 0, counted[1]),
        Step("sequences", f"after the last of {max_windows} windows", 0, counted[2]),
    ]
    return replace(
        TreatmentSequences.from_codes(codes, states, ids=records.ids[kept], lengths=lengths),
        flow=add_steps(records.flow, steps),
        issues=_more_issues(records.issues, cohort.n_without_end),
        patients=_patients(records, kept, index, last),
        settings={
            **records.settings,
            **{name: _plain(value) for name, value in options.items()},
            "states": list(states),
            "windows": {
                "followed_up": int(lengths.sum()),
                "without_record": n_empty,
                "tied": counted[3],
            },
        },
    )


def window_edges(
    index: NDArray[np.int32], max_windows: int, months: int = 3, days: float | None = None
) -> NDArray[np.int32]:
    """First day of each window, and the day after the last one: (n, max_windows + 1).

    Examples
    --------
    >>> index = np.array(["2010-01-31"], dtype="datetime64[D]").astype(np.int32)
    >>> window_edges(index, 2).astype("datetime64[D]").astype(str).tolist()
    [['2010-01-31', '2010-04-30', '2010-07-31']]
    """
    edges = np.empty((len(index), max_windows + 1), dtype=np.int32)
    if days is not None:
        edges[:] = index[:, None] + np.ceil(np.arange(max_windows + 1) * days).astype(np.int32)
        return edges
    month = index.astype("datetime64[D]").astype("datetime64[M]")
    day_of_month = index - month.astype("datetime64[D]").astype(np.int32)
    for window in range(max_windows + 1):
        begins = month + np.timedelta64(window * months, "M")
        first = begins.astype("datetime64[D]").astype(np.int32)
        next_first = (begins + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int32)
        edges[:, window] = first + np.minimum(day_of_month, next_first - first - 1)
    return edges


# --- inside ----------------------------------------------------------------------------


def _check_options(options: dict[str, Any], states: tuple[str, ...]) -> None:
    choices = {"by": ("records", "days"), "ties": _TIES, "impute": _IMPUTE}
    for name, allowed in choices.items():
        if options[name] not in allowed:
            words = ", ".join(f'"{word}"' for word in allowed)
            raise ValueError(f"{name} must be one of {words}, found {options[name]!r}.")
    least = {"months": 1, "max_windows": 1, "max_carry": 0, "washout_days": 1}
    for name, low in least.items():
        value = options[name]
        if value is not None and (not isinstance(value, Integral) or value < low):
            raise ValueError(f"{name} must be a whole number of at least {low}, found {value!r}.")
    if options["days"] is not None and not options["days"] >= 1:
        raise ValueError(f"days must be at least 1, found {options['days']!r}.")
    if options["impute"] == "carry_forward_max" and options["none_state"] in states:
        raise ValueError(
            f"none_state {options['none_state']!r} is a class of the drug map; choose another name."
        )


def _plain(value: Any) -> Any:
    """Something that JSON can hold: dates become text."""
    return value if value is None or isinstance(value, int | float) else str(value)


def _choose(
    records: Records,
    kept: NDArray[np.bool_],
    edges: NDArray[np.int32],
    last: NDArray[np.int32],
    by: str,
    ties: str,
) -> tuple[NDArray[np.int8], tuple[int, int, int, int]]:
    """The states of the windows with records, and the counts of the kernel."""
    from ehr_prep import _kernels

    counts = np.diff(records.indptr)
    end = records.date if records.end is None else records.end
    columns = records.date, end if by == "days" else end[:0], records.state
    if not kept.all():
        rows = np.repeat(kept, counts)
        columns = columns[0][rows], columns[1][rows[: len(columns[1])]], columns[2][rows]
    indptr = np.concatenate([[0], np.cumsum(counts[kept])])
    codes = np.full((len(edges), edges.shape[1] - 1), -1, dtype=np.int8)
    rule = _TIES.index(ties)
    counted = _kernels.choose_states(
        indptr, *columns, edges, last, len(records.states), rule, codes
    )
    return codes, counted


def _fill(
    codes: NDArray[np.int8],
    lengths: NDArray[np.int64],
    states: tuple[str, ...],
    impute: str,
    max_carry: int,
    none_state: str,
) -> tuple[str, ...]:
    """Fill the windows without a record, in place; returns the states."""
    if impute == "missing":
        return states
    limit = max_carry if impute == "carry_forward_max" else codes.shape[1]
    run = np.zeros(len(codes), dtype=np.int32)
    for window in range(1, codes.shape[1]):
        empty = (codes[:, window] < 0) & (window < lengths)
        run = np.where(empty, run + 1, 0)
        filled = np.where(run > limit, np.int8(len(states)), codes[:, window - 1])
        codes[:, window] = np.where(empty, filled, codes[:, window])
    return (*states, none_state) if impute == "carry_forward_max" else states


def _more_issues(issues: pd.DataFrame, n_without_end: int) -> pd.DataFrame:
    if not n_without_end:
        return issues
    row = Issue("patient without an end of follow-up", n_without_end, "last record taken", "")
    return pd.DataFrame([*issues.itertuples(index=False), row], columns=list(Issue._fields))


def _patients(
    records: Records,
    kept: NDArray[np.bool_],
    index: NDArray[np.int32],
    last: NDArray[np.int32],
) -> pd.DataFrame:
    ids = records.ids[kept].rename("id")
    dates = {"index_date": to_dates(index), "follow_up_end": to_dates(last)}
    table = pd.DataFrame(dates, index=ids)
    if records.patients is None:
        return table
    known = records.patients[kept].drop(columns="follow_up_end", errors="ignore")
    if "birth_date" in known and "age" not in known:
        table["age"] = completed_years(to_days(known["birth_date"]), index)
    return table.join(known)
