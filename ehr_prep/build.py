"""Records become sequences: one state for each window of each eligible patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.cohort import Cohort, choose_cohort, completed_years
from ehr_prep.dates import NO_DATE, day_text, to_dates, to_days
from ehr_prep.flow import Step, add_steps
from ehr_prep.presets import takes_preset
from ehr_prep.pushdown import reduce_in_database
from ehr_prep.records import Records
from ehr_prep.reduce import reduce_records
from ehr_prep.rules import DEAD, StateRules, as_rules, check_rules
from ehr_prep.screen import Issue
from ehr_prep.states import Frame, finish
from ehr_prep.warehouse import WarehouseRecords
from font.checks import whole_number
from font.spelling import option, option_name
from mmlca.sequences.account import Account
from mmlca.sequences.type import Sequences


@takes_preset
def build_sequences(
    records: Records | WarehouseRecords,
    *,
    preset: str | None = None,
    first_on_or_after: Any = None,
    washout_days: int | None = None,
    min_history_days: int | None = None,
    min_follow_up_days: int | None = None,
    min_age: float | None = None,
    max_age: float | None = None,
    follow_up: Any = None,
    data_cut: Any = None,
    death: str = "end",
    months: int = 3,
    days: float | None = None,
    max_windows: int = 16,
    states: str = "most_frequent",
    by: str = "records",
    ties: str = "first",
    gap_days: int = 30,
    combination_days: int = 30,
    max_combinations: int = 10,
    combinations: Sequence[str] | None = None,
    impute: str = "carry_forward_max",
    max_carry: int = 2,
    off_treatment: str = "none",
) -> Sequences:
    """Turn records into sequences of drug classes, one for each eligible patient.

    The result has an account: `.flow`, `.issues`, `.patients` and `.settings`, see
    `mmlca.sequences.account.Account`.

    Parameters
    ----------
    records : Records
        From `read_records` or `read_omop`.
    preset : "ra", optional
        Start from the rules of a known study, see `ehr_prep.PRESETS`; what is given beside it
        overrides it.
    first_on_or_after : date or None
        Patients whose first record is earlier are not eligible; None allows any date.
    washout_days : int, optional
        Allow earlier treatment that ended at least so many days before: the index date is the
        first record on or after `first_on_or_after` with no other in the `washout_days`
        before it. Default: no earlier treatment is allowed.
    min_history_days : int, optional
        How long before the index date a patient must have had a record of any kind, or have been
        observed where observation periods are known.
    min_follow_up_days : int, optional
        From the index date to the end of follow-up.
    min_age, max_age : numbers, optional
        Completed years on the index date; needs birth dates.
    follow_up : "patients", "observation", "last_record" or a date
        Where follow-up ends: in the patients' table (a patient without a date there: the
        last record), with the last observation period, at the last record of any kind, or for
        all on one day. Default: the observation periods, else the patients' table, else the last
        record, whichever of them is known.
    data_cut : date, optional
        Nothing after this day counts.
    death : "end" or "state"
        Needs a `death_date` in the patients' table, if anyone died. Death ends follow-up ("end");
        or every window that begins after it is in the absorbing state "dead" ("state"), up to
        `max_windows` or the end of the data. See the notes on shares of the dead. Where the end of
        follow-up is stated, a later death is ignored and counted, and so is one after the end of
        the data.
    months : int
        Length of a window in calendar months from the index date: from a 15 January to
        14 April, and so on; from 31 January to 29 April, since April has no 31st.
    days : float, optional
        Length of a window in days instead, such as 91.3125.
    max_windows : int
        A sequence ends after so many windows, or with the window in which follow-up ends.
    states : "most_frequent" or "combinations"
        A window gets the class that counts most; or, where two or more classes were in use
        together for at least `combination_days` of its days, a state such as "A+B", with the
        classes in the order of the drug map. Of several such sets the one with the most classes
        wins, then the one that lasted longer, then the one that began earlier, then the first by
        name. Combinations need an end or a supply of the records, or a `default_supply`, see
        `read_records`.
    by : "records" or "days"
        What counts: records, or days covered (from a record to its end or by its supply; a day
        covered twice counts once). With combinations the days between two covers of one era
        count as covered, and a window without a record, but within an era, gets the class with
        the most days.
    ties : "first", "latest" or "previous"
        Of classes with equally many records or days, take the one whose first in the window is
        the earliest ("first"), whose last is the latest ("latest"), or that was the state of the
        window before, or part of it ("previous", otherwise as "first"). The window before counts
        as it was filled in: after a window off treatment no class was its state. If two classes
        are still equal, because they were recorded on the same day, the one with the larger days'
        supply in the window is taken (the sum over its records that start in it), then the class
        that was taken last, then the first by name. The order of the drug map never decides.
    gap_days : int
        Covers of one class with at most so many uncovered days between them are one era; supply
        that ended longer ago has ended, see `impute`.
    combination_days : int
        See `states`.
    max_combinations : int
        The combinations that fill the most windows are states; the others are one state
        together, "other combination".
    combinations : list of names, optional
        Which combinations are states, such as ["A+B"], instead of the most frequent ones. Several
        sites need the same states: name them.
    impute : "carry_forward_max", "carry_forward_supplied", "carry_forward" or "missing"
        A window in which no class counts repeats the state before it

        - at most `max_carry` times in a row (the default),
        - while supplied: until its classes' supply has ended for `gap_days`; where that is over
          but another class is supplied, that class; needs an end or a supply of the records,
        - always,

        and is off treatment after that; or it is missing. The default asks for nothing but
        dates, so that sites with and without supplies can follow one rule, and it lets patients
        stop; carrying forward for ever does not. Two windows, because a drug given every six
        months leaves a quarter empty, and may come late.
    max_carry : int
        See `impute`.
    off_treatment : str
        The name of the state off treatment; "missing" leaves such windows missing instead.

    Notes
    -----
    With observation periods, a window without a class of which less than half was observed is
    missing, whatever `impute` says: nobody looked. It counts in `max_carry`.

    **Shares of the dead.** With `death="state"` the end of the data is `data_cut`, or `follow_up`
    if that is a date; otherwise the latest day on which any patient of the table is followed. A
    patient who died leaves at the end of the data, as does a patient with the same index date who
    lives and is followed until then. If the living leave for no other reason, the share of the
    dead among those in a window is an estimate of the risk of death, as 1 − Kaplan–Meier is. A
    patient who lives but whose follow-up ends earlier leaves earlier, while nobody knows when
    the dead would have been lost to follow-up: they stay, and the share of the dead is too large.
    `.settings["left_alive"]` is the number of such patients; with many of them take the risk of
    death from a Kaplan–Meier curve (`mmlca.survival_curves`), or follow everyone to one day
    (`follow_up="2019-12-31"`) if deaths up to that day are known.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 7], "drug": ["Humira", "Humira", "Orencia"],
    ...                       "date": ["2010-01-15", "2010-02-15", "2011-01-20"]})
    >>> records = read_records(frame)
    >>> sequences = build_sequences(records, max_windows=6)
    >>> sequences.to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'none', 'CTLA4-Ig', nan]
    >>> build_sequences(records, preset="ra", max_windows=6).to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'TNFi', 'CTLA4-Ig', nan]
    >>> sequences.flow["records_left"].to_list()[-1]
    3
    """
    options = {name: value for name, value in locals().items() if name != "records"}
    if isinstance(records, WarehouseRecords) and not records.stays:
        records = records.collect()
    rules = check_options(records, options)
    cohort = choose_cohort(records, **{name: options[name] for name in COHORT})
    check_eligible(cohort)
    kept = cohort.eligible
    index, last = cohort.start[kept], cohort.last[kept]
    edges = window_edges(index, max_windows, months, days)
    frame = Frame(edges, last, data_end=cohort.data_end)
    if records.observation is not None:
        observed = records.observation.take(kept).windows(edges, last)
        frame = frame._replace(observed=observed)
    if cohort.died is not None:
        frame = frame._replace(died=cohort.died[kept])
    if isinstance(records, WarehouseRecords):
        parts = reduce_in_database(records, cohort, rules, options)
    else:
        parts = reduce_records(records, kept, frame, rules)
    done = finish(parts, frame, records.states, rules)
    reasons = (
        "before the index date",
        "after the end of follow-up",
        f"after the last of {max_windows} windows",
    )
    steps = [
        Step("sequences", reason, 0, n) for reason, n in zip(reasons, done.dropped, strict=True)
    ]
    account = Account(
        flow=add_steps(records.flow, [*cohort.steps, *steps]),
        issues=_more_issues(records.issues, cohort.issues),
        patients=_patients(records, kept, index, last),
        n_records=done.n_records,
        unmapped=records.unmapped,
        settings={
            **records.settings,
            **({"reduced": "in the database"} if isinstance(records, WarehouseRecords) else {}),
            **{name: _plain(value) for name, value in options.items()},
            "state_rule": states,
            "states": list(done.states),
            "windows": done.windows,
            "combinations_taken": done.combinations,
            "follow_up_by": cohort.follow_up,
            **_end_of_data(frame, done.lengths),
        },
    )
    sequences = Sequences.from_codes(
        done.codes, done.states, ids=records.ids[kept], lengths=done.lengths
    )
    absorbing = (DEAD,) if death == "state" else ()
    return replace(sequences, account=account, absorbing=absorbing)


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


# --- shared with treatment_lines --------------------------------------------------------

COHORT = (
    "first_on_or_after",
    "washout_days",
    "min_history_days",
    "min_follow_up_days",
    "min_age",
    "max_age",
    "follow_up",
    "data_cut",
    "death",
)
"""The options that choose patients and their follow-up."""


def check_options(records: Records | WarehouseRecords, options: dict[str, Any]) -> StateRules:
    """Refuse options that cannot be; the rules for states among them."""
    if not isinstance(records, Records | WarehouseRecords):
        raise TypeError(
            "records must come from read_records or read_omop, found "
            f"{type(records).__name__}; read them first."
        )
    rules = as_rules(options)
    check_rules(rules, records.states)
    smallest = {"months": 1, "max_windows": 1, "washout_days": 1}
    for name, value in smallest.items():
        if options[name] is not None:
            whole_number(options[name], value, option_name(name))
    if options["days"] is not None and not options["days"] >= 1:
        raise ValueError(f"{option_name('days')} must be at least 1, found {options['days']!r}.")
    if rules.combine:
        need_supply(records, option("states", "combinations"))
    if rules.impute == "carry_forward_supplied":
        need_supply(records, option("impute", rules.impute))
    return rules


def need_supply(records: Records | WarehouseRecords, what: str) -> None:
    if records.end is None:
        raise ValueError(
            f"{what} needs to know how long a record lasts, and the records have neither end dates "
            f"nor days' supply; name a column as {option_name('end')} or {option_name('supply')}, "
            f"or say how many days a record covers, as in {option('default_supply', 30)}."
        )


def check_eligible(cohort: Cohort) -> None:
    if not cohort.eligible.any():
        reasons = ", ".join(f"{s.reason} ({s.patients:,})" for s in cohort.steps if s.patients)
        raise ValueError(
            f"none of the {len(cohort.eligible):,} patients with a mapped drug is eligible: "
            f"{reasons}; relax these rules."
        )


# --- inside ----------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Something that JSON can hold: dates become text."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, int | float) else str(value)


def _end_of_data(frame: Frame, lengths: NDArray[np.int64]) -> dict[str, Any]:
    """The end of the data where death is a state, and who left alive in a window before it."""
    if frame.died is None or frame.data_end is None:
        return {}
    possible = (frame.edges[:, :-1] <= frame.data_end).sum(axis=1)
    left = (frame.died == NO_DATE) & (lengths < possible)
    return {"data_end": day_text(frame.data_end), "left_alive": int(left.sum())}


def _more_issues(issues: pd.DataFrame, more: list[Issue]) -> pd.DataFrame:
    rows = [issue for issue in more if issue.n]
    if not rows:
        return issues
    return pd.DataFrame([*issues.itertuples(index=False), *rows], columns=list(Issue._fields))


def _patients(
    records: Records | WarehouseRecords,
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
