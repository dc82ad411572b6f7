"""Records become sequences: one state for each window of each eligible patient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.cohort import Cohort, choose_cohort, completed_years
from ehr_prep.dates import NO_DATE, day_text, to_dates, to_days
from ehr_prep.records import Records
from ehr_prep.screen import Issue
from ehr_prep.settings import DEAD, PRESETS, Rules
from ehr_prep.states import check_rules, finish
from ehr_prep.windows import Frame, reduce_records, window_edges
from font.checks import one_of
from font.errors import InputError, option, option_name
from font.settings import change
from mmlca.sequences.type import Account, Sequences, Step, add_steps


def build_sequences(
    records: Records,
    rules: Rules | None = None,
    *,
    preset: str | None = None,
    **changes: Any,
) -> Sequences:
    """Turn records into sequences of drug classes, one for each eligible patient.

    The result has an account: `.flow`, `.issues`, `.patients` and `.settings`, see
    `mmlca.sequences.type.Account`.

    Parameters
    ----------
    records : Records
        From `read_records` or `read_omop`.
    rules : Rules, optional
        How windows get their states and who is eligible; see `ehr_prep.Rules`.
    preset : "ra", optional
        Start from the rules of a known study, see `ehr_prep.PRESETS`.
    **changes
        Any field of `ehr_prep.Rules`, such as `months=6`; it overrides `rules` and the preset.

    Examples
    --------
    >>> from ehr_prep import read_records
    >>> frame = pd.DataFrame({"patient_id": [7, 7, 7], "drug": ["Humira", "Humira", "Orencia"],
    ...                       "date": ["2010-01-15", "2010-02-15", "2011-01-20"]})
    >>> records = read_records(frame, drugs="ra")
    >>> sequences = build_sequences(records, max_windows=6)
    >>> sequences.to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'none', 'CTLA4-Ig', nan]
    >>> build_sequences(records, preset="ra", max_windows=6).to_frame().iloc[0].to_list()
    ['TNFi', 'TNFi', 'TNFi', 'TNFi', 'CTLA4-Ig', nan]
    >>> sequences.flow["records_left"].to_list()[-1]
    3
    """
    rules = choose_rules(rules, preset, changes)
    check_records(records, rules)
    cohort = choose_cohort(records, rules)
    check_eligible(cohort)
    kept = cohort.eligible
    index, last = cohort.start[kept], cohort.last[kept]
    edges = window_edges(index, rules.max_windows, rules.months, rules.days)
    frame = Frame(edges, last, data_end=cohort.data_end)
    if records.observation is not None:
        observed = records.observation.take(kept).windows(edges, last)
        frame = frame._replace(observed=observed)
    if cohort.died is not None:
        frame = frame._replace(died=cohort.died[kept])
    done = finish(reduce_records(records, kept, frame, rules), frame, records.states, rules)
    reasons = (
        "before the index date",
        "after the end of follow-up",
        f"after the last of {rules.max_windows} windows",
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
            "preset": preset,
            **rules.model_dump(mode="json"),
            "state_rule": rules.states,
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
    absorbing = (DEAD,) if rules.death == "state" else ()
    return replace(sequences, account=account, absorbing=absorbing)


def choose_rules(rules: Rules | None, preset: str | None, changes: Mapping[str, Any]) -> Rules:
    """The rules of `build_sequences`: those given, or the preset's, with some changed."""
    if preset is not None:
        one_of(preset, PRESETS, "preset")
        if rules is not None:
            raise InputError(f"found both rules and preset={preset!r}; give one of them.")
        rules = PRESETS[preset]
    return change(rules or Rules(), changes)


def check_records(records: Records, rules: Rules) -> None:
    """Refuse records that the rules cannot be applied to."""
    if not isinstance(records, Records):
        raise TypeError(
            "records must come from read_records or read_omop, found "
            f"{type(records).__name__}; read them first."
        )
    check_rules(rules, records.states)
    if rules.combine:
        check_has_supply(records, option("states", "combinations"))
    if rules.impute == "carry_forward_supplied":
        check_has_supply(records, option("impute", rules.impute))


def check_has_supply(records: Records, what: str) -> None:
    if records.end is None:
        raise InputError(
            f"{what} needs to know how long a record lasts, and the records have neither end dates "
            f"nor days' supply; name a column as {option_name('end')} or {option_name('supply')}, "
            f"or say how many days a record covers, as in {option('default_supply', 30)}."
        )


def check_eligible(cohort: Cohort) -> None:
    if not cohort.eligible.any():
        reasons = ", ".join(f"{s.reason} ({s.patients:,})" for s in cohort.steps if s.patients)
        raise InputError(
            f"none of the {len(cohort.eligible):,} patients with a mapped drug is eligible: "
            f"{reasons}; relax these rules."
        )


# --- inside ----------------------------------------------------------------------------


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
