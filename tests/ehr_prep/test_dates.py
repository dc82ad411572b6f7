"""Formats are decided by all the values, and never against them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehr_prep
from ehr_prep.values import ISO, NO_DATE, read_dates


def read(*texts: object, stated: str | None = None) -> tuple[list[str | None], str, str]:
    """The dates that were read, the format, and the reason."""
    days, formats = read_dates({"date": pd.Series(texts, dtype=object)}, stated, "r.csv")
    dates = [None if d == NO_DATE else str(d.astype("datetime64[D]")) for d in days["date"]]
    return dates, *formats["date"]


def test_one_value_decides_for_all() -> None:
    dates, chosen, why = read("03/04/2017", "27/02/2017", "05/06/2018", "unknown", None)
    assert dates == ["2017-04-03", "2017-02-27", "2018-06-05", None, None]
    assert chosen == "%d/%m/%Y"
    assert why == "1 of 3 dates, such as '27/02/2017', cannot have the month first"
    dates, chosen, why = read("03/04/2017", "02/27/2017")
    assert (dates[0], chosen) == ("2017-03-04", "%m/%d/%Y")
    assert why == "1 of 2 dates, such as '02/27/2017', cannot have the day first"


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["27.02.2017", "1.3.2017"], "%d.%m.%Y"),
        (["27-02-2017", "01-03-2017"], "%d-%m-%Y"),
        (["2017/02/27", "2017/03/01"], "%Y/%m/%d"),
        (["27-FEB-2017", "01-Mar-2017"], "%d-%b-%Y"),
        (["27FEB2017", "01MAR2017"], "%d%b%Y"),
        (["Feb 27, 2017", "Mar 1, 2017"], "%b %d, %Y"),
        (["27 February 2017", "1 March 2017"], "%d %B %Y"),
        (["2017-02-27", "20170301"], ISO),
        (["2/27/2017 11:30:00 PM", "3/1/2017 12:00:00 AM"], "%m/%d/%Y"),
        (["27/02/2017 23:30 +0200", "01/03/2017T00:10:00-08:00"], "%d/%m/%Y"),
    ],
)
def test_formats_that_decide_themselves(texts: list[str], chosen: str) -> None:
    dates, found, _ = read(*texts)
    assert dates == ["2017-02-27", "2017-03-01"]
    assert found == chosen


def test_undecidable_dates_are_refused_with_both_readings() -> None:
    message = (
        r"whether day or month comes first in the 2 dates of r\.csv .'03/04/2017', .* above 12"
    )
    with pytest.raises(ValueError, match=message + r".*'%d/%m/%Y' or .*'%m/%d/%Y'"):
        read("03/04/2017", "05/06/2018")
    assert read("03/04/2017", "05/06/2018", stated="%d/%m/%Y")[0] == ["2017-04-03", "2018-06-05"]


def test_another_column_may_decide() -> None:
    columns = {
        "date": pd.Series(["03/04/2017", "05/06/2018"]),
        "end": pd.Series(["27/04/2017", None]),
    }
    days, formats = read_dates(columns, None, "r.csv")
    assert str(days["date"][0].astype("datetime64[D]")) == "2017-04-03"
    assert formats["date"] == ("%d/%m/%Y", "as in another column")


def test_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match="mix day first and month first: '27/02/2017' can only be"):
        read("27/02/2017", "02/28/2017", "03/04/2017")
    with pytest.raises(ValueError, match=r"mix formats: 2 are written as %Y-%m-%d and 1 otherwise"):
        read("2017-02-27", "2017-02-28", "28/02/2017")
    many = [f"{day:02d}/02/2017" for day in range(1, 28)] * 10
    dates, chosen, _ = read(*many, "02/28/2017")  # one slip in 271
    assert (dates[-1], chosen) == (None, "%d/%m/%Y")


def test_nothing_readable_is_refused_and_no_format_is_proposed() -> None:
    with pytest.raises(ValueError, match=r"none of the 2 dates of r\.csv .*'x', 'y'") as caught:
        read("x", "y")
    assert "%" not in str(caught.value)


def test_a_stated_format_must_fit() -> None:
    texts = ["27/02/2017", "03/04/2017", "28/02/2017"]
    message = r"'%m/%d/%Y' cannot read 2 of 3 dates .*'27/02/2017', '28/02/2017'; '%d/%m/%Y' reads"
    with pytest.raises(ValueError, match=message):
        read(*texts, stated="%m/%d/%Y")
    few = ["03/04/2017"] * 199 + ["27/02/2017"]
    with pytest.raises(ValueError, match=r"would swap day and month .*'27/02/2017' can only be"):
        read(*few, stated="%m/%d/%Y")
    slips = ["04/27/2017"] * 199 + ["27/02/2017"]
    assert read(*slips, stated="%m/%d/%Y")[0][-1] is None
    assert read("27/02/2017 08:15", stated="%d/%m/%Y %H:%M")[0] == ["2017-02-27"]
    assert read("2017-02-27", stated="%d/%m/%Y")[:2] == (["2017-02-27"], ISO)
    assert read("5 . 3 . 17", stated="%d . %m . %y")[0] == ["2017-03-05"]


def test_records_say_which_format_was_taken() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 1],
            "date": ["03/04/2017", "05/06/2017"],
            "end_date": ["30/04/2017", ""],
            "drug": "Humira",
        }
    )
    people = pd.DataFrame({"id": [1], "follow_up_end": ["31.12.2018"], "dob": ["01.02.1950"]})
    records = ehr_prep.read_records(frame, drugs="ra", patients=people)
    assert records.settings["dates"]["date"]["text"] == "%d/%m/%Y"
    assert "  dates     end as %d/%m/%Y: 1 of 1 dates, such as '30/04/2017', cannot" in repr(
        records
    )
    assert records.patients is not None
    assert records.patients["birth_date"].iat[0] == pd.Timestamp("1950-02-01")
    with pytest.raises(ValueError, match=r"cannot read 1 of 1 dates of the table \(end\)"):
        ehr_prep.read_records(frame, drugs="ra", date_format="%m/%d/%Y")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dates(dt.date(1950, 1, 1), dt.date(2030, 1, 1)), min_size=1, max_size=30),
    st.sampled_from(["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m-%d-%Y"]),
)
def test_dates_are_read_right_or_refused(dates: list[dt.date], written: str) -> None:
    texts = [date.strftime(written) for date in dates]
    decided = any(date.day > 12 for date in dates)
    if not decided:
        with pytest.raises(ValueError, match="day or month comes first"):
            read(*texts)
    else:
        assert read(*texts)[:2] == ([date.isoformat() for date in dates], written)


def test_years_of_two_digits_are_proposed_and_never_in_the_future() -> None:
    with pytest.raises(ValueError, match=r"years of two digits .*='%m/%d/%y'\.$"):
        read_dates({"date": pd.Series(["02/09/12", "03/30/12 11:05 PM"])}, None, "r.csv")
    both = r"date_format='%d\.%m\.%y' or date_format='%y\.%m\.%d'\.$"
    with pytest.raises(ValueError, match=both):
        read_dates({"date": pd.Series(["09.02.12", "30.03.12"])}, None, "r.csv")
    columns = {"date": pd.Series(["30.03.12"]), "birth_date": pd.Series(["01.07.41"])}
    days, _ = read_dates(columns, "%d.%m.%y", "r.csv")
    assert [str(np.datetime64(int(d[0]), "D")) for d in days.values()] == [
        "2012-03-30",
        "1941-07-01",
    ]


def test_many_unreadable_dates_stop_and_few_are_counted() -> None:
    dates = ["2010-03-05"] * 95 + ["2010-33-05"] * 5
    days, _ = read_dates({"date": pd.Series(dates)}, None, "r.csv")
    assert (days["date"] == NO_DATE).sum() == 5
    with pytest.raises(ValueError, match=r"6 of the 101 dates of r\.csv cannot be read, such as"):
        read_dates({"date": pd.Series([*dates, "2010-05-45"])}, None, "r.csv")
