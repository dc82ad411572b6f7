"""Analyses and figures of `mmlca` under the names that they have in this package.

The course of a lab is read from files first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ehr_prep.files import Source
from ehr_prep.patients import LAB_ROLES, read_labs
from ehr_prep.values import encode_ids
from mmlca.figures.curves import plot_trend as plot_trend
from mmlca.figures.flow import plot_flow as plot_flow
from mmlca.tables import lab_trends
from mmlca.tables.lab_trends import IndexDates
from mmlca.tables.lab_trends import Trend as Trend
from mmlca.tables.table_one import TableOne as TableOne
from mmlca.tables.table_one import table_one as table_one
from mmlca.tables.treatment_lines import time_to_next_line as time_to_next_line

_READING = (*LAB_ROLES, "date_format", "encoding", "delimiter", "decimal", "where", "about")


def trend(
    labs: Source | Mapping[str, Source],
    groups: pd.Series | Mapping[str, pd.Series],
    index_dates: IndexDates | Mapping[str, IndexDates],
    *,
    test: str | None = None,
    **options: Any,
) -> Trend:
    """Mean course of a lab in each group of patients, with bands, at each site.

    Reads the tables of labs with `read_labs`, and fits the mixed model of
    `mmlca.tables.lab_trends.trend`, which describes the groups, the index dates and the result.

    Parameters
    ----------
    labs : path or DataFrame, or dict {site: path or DataFrame}
        See `read_labs`.
    groups, index_dates, test
        See `mmlca.tables.lab_trends.trend`.
    options
        The further options of `read_labs` and of `mmlca.tables.lab_trends.trend`.

    Examples
    --------
    >>> from ehr_prep import ra_cohort
    >>> data = ra_cohort(seed=1, scale=0.1)["VA"]
    >>> trend(data.labs, data.truth["class"], data.truth, test="ESR").label
    'ESR'
    """
    reading = {name: options.pop(name) for name in _READING if name in options}

    def read(source: Source) -> pd.DataFrame:
        table = read_labs(source, **reading)
        who, ids, _ = encode_ids(table["patient_id"])
        return table.assign(patient_id=pd.Categorical.from_codes(who, ids).astype(object))

    tables = {s: read(t) for s, t in labs.items()} if isinstance(labs, Mapping) else read(labs)
    return lab_trends.trend(tables, groups, index_dates, test=test, **options)
