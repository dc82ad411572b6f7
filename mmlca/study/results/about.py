"""What the data of a site are: its patients, states and windows, and how sequences came about.

Counts of the records, which concern one site alone, are as the site shows them: small ones are
pooled or hidden, or all are rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study.results.part import Column, Part
from mmlca.tables.data_account import show_flow, show_issues, show_unmapped

if TYPE_CHECKING:
    from mmlca.sequences.type import Account, Sequences
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

_WINDOWS = ("followed_up", "without_record", "several_classes", "tied")


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    data = patients.sequences
    records = {name: pd.DataFrame(columns=list(_OF_RECORDS[name])) for name in _OF_RECORDS}
    if data.account is not None:
        records = _of_records(study, patients, data.account)
    return {
        "about": pd.DataFrame([_about(study, patients)]),
        "states": pd.DataFrame(
            {
                "state": [str(state) for state in data.states],
                "final": [state in data.absorbing for state in data.states],
            }
        ),
        "times": pd.DataFrame({"time": [str(time) for time in data.times]}),
        **records,
    }


def _about(study: Study, patients: SitePatients) -> dict[str, Any]:
    data = patients.sequences
    return {
        "patients": patients.count(len(data)),
        "distinct": patients.count(data.n_distinct, "distinct"),
        "gaps": _has_gaps(data),
        "dead": "dead" in data.absorbing,
        "from_records": data.account is not None,
        "unused_labs": data.account is None and study.sites[patients.site].labs is not None,
    }


def _has_gaps(data: Sequences) -> bool:
    return int((data.codes >= 0).sum()) < int(data.lengths.sum(dtype=np.int64))


def _of_records(study: Study, patients: SitePatients, account: Account) -> dict[str, pd.DataFrame]:
    """The tables of sequences that were built from records."""
    site, min_count, rounding = patients.site, study.privacy.min_count, patients.rounding
    settings, left = account.settings, account.settings.get("left_alive")
    flow = show_flow(account.flow, site, min_count, rounding)
    account_row = {
        "follow_up_by": settings["follow_up_by"],
        "deaths_known": "death_date" in account.patients,
        "data_end": settings.get("data_end"),
        "left_alive": np.nan if left is None else patients.count(left, "left alive"),
        "unmapped": np.nan if account.unmapped is None else round(settings["unmapped"]["lost"], 3),
        **{name: patients.count(settings["windows"][name], "windows", name) for name in _WINDOWS},
    }
    tables = {
        "account": pd.DataFrame([account_row]),
        "flow": flow,
        "issues": show_issues(patients.sequences, flow, site, min_count, rounding),
    }
    unmapped = account.unmapped
    if unmapped is not None:
        tables["unmapped"] = show_unmapped(unmapped, site, min_count, rounding)
    else:
        tables["unmapped"] = pd.DataFrame(columns=list(_OF_RECORDS["unmapped"]))
    return tables


_OF_RECORDS = {
    "account": {
        "follow_up_by": Column(
            "text", "what ends follow-up: patients, observation, last_record or date"
        ),
        "deaths_known": Column("flag", "whether dates of death are known"),
        "data_end": Column("text", "the last day of the data, where death is a state"),
        "left_alive": Column("count", "living patients whom the data lose before that day"),
        "unmapped": Column(
            "number", "share of unknown drugs among the records of patients with a known drug"
        ),
        "followed_up": Column("count", "windows of all patients"),
        "without_record": Column("count", "windows without a record"),
        "several_classes": Column("count", "windows with several drug classes"),
        "tied": Column("count", "windows in which several classes were recorded equally often"),
    },
    "flow": {
        "stage": Column("text", "read, usable, eligible, sequences or selected"),
        "reason": Column("text", "why patients or records were dropped"),
        "patients": Column("count", "patients dropped"),
        "records": Column("count", "records dropped"),
        "patients_left": Column("count", "patients left"),
        "records_left": Column("count", "records left"),
    },
    "issues": {
        "issue": Column("text", "what was invalid or unusual"),
        "n": Column("count", "records with it"),
        "action": Column("text", "how they were handled"),
    },
    "unmapped": {
        "drug": Column("text", "a drug text without a class"),
        "records": Column("count", "records with it"),
        "patients": Column("count", "patients with it"),
        "did_you_mean": Column("text", "the known name that it resembles"),
    },
}
PART = Part(
    {
        "about": {
            "patients": Column("count", "patients"),
            "distinct": Column("count", "distinct sequences"),
            "gaps": Column("flag", "whether states inside the follow-up are missing"),
            "dead": Column("flag", "whether death is a state"),
            "from_records": Column("flag", "whether sequences were built from records"),
            "unused_labs": Column("flag", "whether laboratory values lack dates to relate them to"),
        },
        "states": {
            "state": Column("text", "the states, in their order"),
            "final": Column("flag", "whether nobody leaves it, such as death"),
        },
        "times": {"time": Column("text", "the windows, in their order")},
        **_OF_RECORDS,
    },
    make,
)
