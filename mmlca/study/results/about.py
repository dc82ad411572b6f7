"""What the data of a site are: numbers of patients and of distinct sequences, states, windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from mmlca.study.results.part import Column, Part

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    data, rounding, site = patients.sequences, patients.rounding, patients.site
    n, distinct = float(len(data)), float(data.n_distinct)
    if rounding is not None:
        n, distinct = rounding(n, site), rounding(distinct, site, "all", "distinct")
    about = {"patients": [n], "distinct": [distinct], "from_records": [data.account is not None]}
    return {
        "about": pd.DataFrame(about),
        "states": pd.DataFrame({"state": [str(state) for state in data.states]}),
        "times": pd.DataFrame({"time": [str(time) for time in data.times]}),
    }


PART = Part(
    {
        "about": {
            "patients": Column("count", "patients"),
            "distinct": Column("count", "distinct sequences"),
            "from_records": Column("flag", "whether sequences were built from records"),
        },
        "states": {"state": Column("text", "the states, in their order")},
        "times": {"time": Column("text", "the windows, in their order")},
    },
    make,
)
