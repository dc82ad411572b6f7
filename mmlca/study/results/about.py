"""What the data of a site are: patients, states, windows, how sequences came about, and Table 1.

Counts of the records, which concern one site alone, are as the site shows them: small ones are
pooled or hidden, or all are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.study import site_data
from mmlca.study.results.site import Column, Part, Results, is_rounded
from mmlca.tables.data_account import show_flow, show_issues, show_unmapped
from mmlca.tables.table_one import TableOne, put_together
from mmlca.tables.table_one_site import SUMMARIES, site_tables

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.type import Account, Sequences
    from mmlca.study.results.site import SitePatients, SiteResults
    from mmlca.study.settings import Study


_WINDOWS = ("followed_up", "without_record", "several_classes", "tied")


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    data = patients.sequences
    records = {} if data.account is None else _of_records(study, patients, data.account)
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
    if account.unmapped is not None:
        tables["unmapped"] = show_unmapped(account.unmapped, site, min_count, rounding)
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
DATA = Part(
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


# --- Table 1 ----------------------------------------------------------------------------


_PREFIX = "table_one_"


def _make_table_one(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    people = site_data.patients_of(study, patients.site, patients.sequences)
    clusters = patients.groups[patients.first_view]
    tables = site_tables(
        people.loc[clusters.index],
        clusters.to_numpy(),
        study.table_one,
        study.privacy.min_count,
        patients.rounding,
    )
    return {f"{_PREFIX}{name}": table for name, table in tables.items()}


_VARIABLE = Column("text", "the variable: a column of the patients' table")
_ROW = Column(
    "text",
    "what is counted: size (patients), level (those with this category), known (those with any "
    "value) or missing (those without)",
)
_CLUSTER = Column("whole", "the cluster; missing: all patients")
_MEANINGS = {
    "mean": "the mean of the known values",
    "sd": "their standard deviation",
    "low": "the first quartile",
    "median": "the median",
    "high": "the third quartile",
}

TABLE_ONE = Part(
    {
        "table_one_variables": {
            "variable": _VARIABLE,
            "kind": Column("text", "whole, number or text; missing where no text is known"),
            "continuous": Column("flag", "whether it is a number with more than two values"),
        },
        "table_one_counts": {
            "variable": _VARIABLE,
            "row": _ROW,
            "level": Column("text", "the category"),
            "group": _CLUSTER,
            "count": Column("count", "patients"),
        },
        "table_one_summaries": {
            "variable": _VARIABLE,
            "group": _CLUSTER,
            **{name: Column("number", _MEANINGS[name]) for name in SUMMARIES},
        },
        "table_one_comparisons": {
            "variable": _VARIABLE,
            "row": Column("text", "level (compared by categories) or known (as numbers)"),
            "comparison": Column("text", "p (a p-value) or smd (standardised mean difference)"),
            "value": Column(
                "number", "of the clusters; a rounded p-value is the next of 0.001, 0.01, 0.05, 1"
            ),
            "permuted": Column("flag", "whether the p-value is from random permutations"),
        },
    },
    _make_table_one,
)


def table_one_of(
    study: Study,
    results: Results,
    names: Mapping[Any, str],
    descriptions: Mapping[str, str],
) -> TableOne:
    """Table 1 of all sites; `names` are by cluster, `descriptions` of what it is by name."""
    several = len(results) > 1
    return put_together(
        {site if several else "": _numbers_of(result) for site, result in results.items()},
        study.table_one,
        names=names,
        descriptions=descriptions,
        min_count=study.privacy.min_count,
        together=study.outcomes.columns,
        rounded=is_rounded(results),
        all_sites=True,
    )


def _numbers_of(result: SiteResults) -> dict[str, pd.DataFrame]:
    """The tables of a site as they are computed, without their prefix; clusters are whole."""
    tables = {name.removeprefix(_PREFIX): result.tables[name] for name in TABLE_ONE.tables}
    for name in ("counts", "summaries"):
        groups = [None if pd.isna(g) else int(g) for g in tables[name]["group"]]
        tables[name] = tables[name].assign(group=pd.Series(groups, dtype=object))
    return tables
