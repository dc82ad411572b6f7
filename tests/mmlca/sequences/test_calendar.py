"""Calendar periods of windows, against dates by hand, and as a covariate of the steps."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import mmlca
from mmlca import Sequences


@pytest.mark.parametrize("length", [{"months": 2}, {"days": 40.5}])
def test_windows_begin_as_build_sequences_says(length: dict[str, Any]) -> None:
    records = pd.DataFrame(
        {
            "patient_id": [1, 2, 2],
            "drug": ["Humira", "Humira", "Orencia"],
            "date": ["2014-10-31", "2012-02-29", "2016-01-01"],
        }
    )
    read = ehr_prep.read_records(records, drugs="ra")
    sequences = ehr_prep.build_sequences(read, max_windows=6, **length)
    table = sequences.calendar_periods(["2012-08-01", "2015-01-01"])
    edges = ehr_prep.states.window_edges(
        np.array(["2014-10-31", "2012-02-29"], dtype="datetime64[D]").astype(np.int32), 6, **length
    )
    for patient, days in zip(sequences.ids, edges, strict=True):
        own = table[table["id"] == patient]
        for window, day in enumerate(days[:-1].astype("datetime64[D]").tolist()):
            period = own.loc[own["time"] == sequences.times[window], "period"].item()
            expected = (
                "before 2012-08"
                if day < dt.date(2012, 8, 1)
                else "from 2012-08"
                if day < dt.date(2015, 1, 1)
                else "from 2015"
            )
            assert period == expected


def test_a_drug_that_is_left_from_some_day_on() -> None:
    """Patients began over three years; from 2015 on they leave A more often."""
    rng = np.random.default_rng(1)
    n, t = 600, 8
    start = pd.Series(pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 1000, n), "D"))
    codes = np.zeros((n, t), dtype=np.int8)
    late = np.column_stack(
        [(start + pd.DateOffset(months=3 * w)) >= pd.Timestamp("2015-01-01") for w in range(t)]
    )
    for w in range(1, t):
        leaves = rng.random(n) < np.where(late[:, w - 1], 0.3, 0.1)
        codes[:, w] = np.where(leaves, 1 - codes[:, w - 1], codes[:, w - 1])
    data = Sequences.from_codes(codes, ["A", "B"])
    start = start.set_axis(data.ids)
    data = data.with_step_covariates(
        data.calendar_periods(["2015-01-01"], index_dates=start, months=3)
    )
    model = mmlca.MixtureMarkov(1, transitions="period", prior=0.0, seed=1).fit(data)
    found = model.marginal_predictions(
        data, {"period": ["before 2015", "from 2015"]}, windows=1, states=["A"]
    )
    left = (codes[:, :-1] == 0) & (codes[:, 1:] == 1)
    shares = [
        left[rows].sum() / (codes[:, :-1][rows] == 0).sum()
        for rows in (~late[:, :-1], late[:, :-1])
    ]
    assert found.loc[found["to"] == "", "probability"].tolist() == pytest.approx(shares, abs=1e-6)


def test_what_cannot_be_a_period_is_said() -> None:
    data = Sequences.from_lists([["A", "B"], ["B", "B"]], ids=["a", "b"])
    with pytest.raises(ValueError, match="do not know on which days they begin"):
        data.calendar_periods(["2015-01-01"])
    start = pd.Series(pd.to_datetime(["2014-11-01", "2014-10-01"]), ["a", "b"])
    with pytest.raises(ValueError, match="give the length of a window"):
        data.calendar_periods(["2015-01-01"], index_dates=start)
    with pytest.raises(ValueError, match="each later than the one before"):
        data.calendar_periods(["2015-01-01", "2014-01-01"], index_dates=start, months=3)
    with pytest.raises(ValueError, match="all windows begin in one period, between 2014-10-01"):
        data.calendar_periods(["2018-01-01"], index_dates=start, months=3)
    with pytest.raises(ValueError, match=r"1 patient has no index date \('b'\)"):
        data.calendar_periods(["2015-01-01"], index_dates=start[:1], months=3)
