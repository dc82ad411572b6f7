from __future__ import annotations

import datetime as dt
import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from paths import SHARED
from pyarrow import csv as arrow_csv

import ehr_prep
from ehr_prep.records import Records
from ehr_prep.screen import Rows, repeats, sort_records
from ehr_prep.values import NO_DATE, encode_ids, to_days

LATEST = "2020-12-31"


def table(*rows: tuple[Any, ...], columns: str = "patient_id date drug") -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns.split(), dtype=object)


def read(frame: Any, **options: Any) -> Records:
    return ehr_prep.read_records(frame, options.pop("drugs", "ra"), latest=LATEST, **options)


def dropped(records: Records) -> dict[str, int]:
    flow = records.flow[records.flow["records"] > 0]
    return dict(zip(flow["reason"], flow["records"], strict=True))


GOOD = table(
    ("a", "2010-02-03", "Humira"), ("b", "2010-01-05", "Orencia"), ("a", "2009-12-31", "Rinvoq")
)


def assert_same(one: Records, two: Records) -> None:
    assert one.ids.to_list() == two.ids.to_list()
    for name in ("indptr", "date", "state", "first_seen", "last_seen"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    pd.testing.assert_frame_equal(one.flow, two.flow)


def test_records_are_sorted_by_patient_and_day() -> None:
    records = read(GOOD)
    assert records.ids.to_list() == ["a", "b"]
    assert records.indptr.tolist() == [0, 2, 3]
    days = records.date.astype("datetime64[D]").astype(str).tolist()
    assert days == ["2009-12-31", "2010-02-03", "2010-01-05"]
    assert [records.states[s] for s in records.state] == ["JAK", "TNFi", "CTLA4-Ig"]
    assert records.end is None
    assert "3 records of 2 patients" in repr(records)


# --- files ------------------------------------------------------------------------------


def test_every_kind_of_file_gives_the_same(tmp_path: Path) -> None:
    text = GOOD.to_csv(index=False)
    expected = read(GOOD)
    (tmp_path / "r.csv").write_text(text)
    with gzip.open(tmp_path / "r.csv.gz", "wt") as file:
        file.write(text)
    (tmp_path / "r.txt").write_text("\ufeff" + text.replace(",", ";"), encoding="utf-8")
    (tmp_path / "r.tsv").write_text(text.replace(",", "\t"))
    GOOD.astype(str).to_parquet(tmp_path / "r.parquet")
    GOOD.assign(date=[dt.date.fromisoformat(d) for d in GOOD["date"]]).to_parquet(
        tmp_path / "dates.parquet"
    )
    names = ["r.csv", "r.csv.gz", "r.txt", "r.tsv", "r.parquet", "dates.parquet"]
    for name in names:
        assert_same(read(tmp_path / name), expected)
        assert_same(read(str(tmp_path / name)), expected)


def test_quotes_line_breaks_and_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(
        'note,patient_id,date,drug\n"two\nlines, Zürich",1,2010-01-01,"Humira"\n'.encode("latin-1")
    )
    with pytest.raises(ValueError, match=r"r\.csv is not utf-8 text.*encoding=.latin-1."):
        read(path, drug="note", encoding="utf-8")
    stated = read(path, drug="note", encoding="latin-1", drugs={"Zürich": "A"})
    with pytest.warns(UserWarning, match=r"r\.csv is not UTF-8 and was read as cp1252, .*Zürich"):
        records = read(path, drug="note", drugs={"Zürich": "A"})
    for one in (stated, records):
        assert one.drugs["class"].to_list() == ["A"]
    assert records.settings["files"] == [
        {"file": "r.csv", "encoding": "cp1252", "delimiter": "comma"}
    ]
    path.write_bytes("Größe,id,date,drug\n1,1,2010-01-01,Humira\n".encode("latin-1"))
    assert len(read(path)) == len(read(path, encoding="latin-1")) == 1  # "Größe" is not used
    path.write_bytes(b"id,date,drug\n1,2010-01-01,Humira \x81\n")
    with pytest.raises(ValueError, match=r"neither utf-8 nor cp1252 text; .*encoding='latin-1'"):
        read(path)
    path.write_bytes(b"id,date,drug\n" + b"1,2010-01-01,Humira\n" * 9000 + b"1,2010-01-02,\xe4\n")
    with pytest.warns(UserWarning, match="holds 'ä'"):  # behind the bytes that are looked at first
        read(path)


def test_rows_with_the_wrong_number_of_fields_are_counted(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,date,drug\n1,2010-01-01,Humira\n1,2010-01-02\n1,2,3,4\n")
    records = read(tmp_path / "r.csv")
    assert dropped(records) == {"wrong number of fields": 2}
    assert records.flow["records_left"].to_list()[0] == 3


def test_no_thread_of_arrow_holds_python_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a thread aborted the process (exit code 134) when a later file was refused at once."""
    calls = []

    def spy(source: Any, read: Any, parse: Any, convert: Any) -> Any:
        from_python = parse.invalid_row_handler is not None or not isinstance(source, Path)
        calls.append((from_python, read.use_threads))
        return original(source, read, parse, convert)

    original = arrow_csv.read_csv
    monkeypatch.setattr(arrow_csv, "read_csv", spy)
    (tmp_path / "r.csv").write_text("id,date,drug\n1,2010-01-01,Humira\n")
    read(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("id,date,drug\n1,2010-01-01,Humira\n1,2010-01-02\n")
    read(tmp_path / "r.csv")
    read(tmp_path / "r.csv", encoding="latin-1")
    assert calls[0] == (False, True)
    assert {called for called, _ in calls} == {False, True}
    assert all(called != threads for called, threads in calls)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"r\.csv is empty"),
        ("\n", r"r\.csv is empty"),
        ("id,date,drug\n", r"r\.csv has no records"),
        ("id,date\n1,2010-01-01\n", r"looks like the drug: it has 'id', 'date'; add a"),
        ("id,date,drug,drug\n", r"several columns called 'drug'"),
        ("id,date,drug\n1,x,Humira\n2,y,Humira\n", r"none of the 2 dates .*'x', 'y'.*date_format"),
        ("id,date,drug\n1,2010-01-01,aspirin\n", r"no record .* not in the map \(1\).*'aspirin'"),
        ("id,date,drug\n,2010-01-01,Humira\n", r"no patient id \(1\); check the columns"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "r.csv").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / "r.csv")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_other_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv")
    (tmp_path / "r.xlsx").write_text("x")
    with pytest.raises(ValueError, match=r"r\.xlsx is not a readable Excel file"):
        read(tmp_path / "r.xlsx")
    with pytest.raises(ValueError, match=r"must end in \.csv.* save it as \.xlsx"):
        read(tmp_path / "r.xls")
    (tmp_path / "r.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read(tmp_path / "r.parquet")
    with pytest.raises(ValueError, match="no column 'Date'; it has 'patient_id', 'date', 'drug'"):
        read(GOOD, date="Date")
    with pytest.raises(ValueError, match="several columns"):
        read(pd.concat([GOOD, GOOD], axis=1))
    with pytest.raises(ValueError, match="no records"):
        read(GOOD.head(0))
    with pytest.raises(ValueError, match=r"duplicates is .* and should be 'drop' or 'keep'"):
        read(GOOD, duplicates="first")
    with pytest.raises(ValueError, match="earliest must be a date"):
        read(GOOD, earliest="soon")


# --- columns, ids and dates -----------------------------------------------------------------


def test_columns_are_guessed_and_reported() -> None:
    frame = table(
        (1, "2010-01-01", "Humira", "2010-01-20", "x"),
        columns="Person_ID Start-Date Medication stop_date id",
    )
    assert read(frame).settings["columns"] == {
        "patient": "Person_ID",
        "date": "Start-Date",
        "drug": "Medication",
        "end": "stop_date",
    }
    chosen = read(frame, patient="id")
    assert chosen.settings["columns"]["patient"] == "id"
    assert chosen.ids.to_list() == ["x"]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ([3, 1, 1], [1, 3]),
        ([3.0, 1.0, None], [1, 3]),
        (["3", "1", "1"], [1, 3]),
        ([" 3", 1, 1.0], [1, 3]),
        (["03", "1", 1], ["03", "1"]),
        (["x", 1, 1.0], ["1", "x"]),
        (["x", "", None], ["x"]),
        (pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"]), ["a", "b"]),
        (pd.array([2, 1, None], dtype="Int64"), [1, 2]),
    ],
)
def test_ids(values: Any, ids: list[Any]) -> None:
    column = values if hasattr(values, "dtype") else pd.Series(values, dtype=object)
    codes, found, _ = encode_ids(pd.Series(column))
    assert found.to_list() == ids
    texts = [
        None if pd.isna(v) or v == "" else str(v).strip().removesuffix(".0") for v in list(column)
    ]
    assert [None if c < 0 else str(found[c]) for c in codes] == texts


def test_ids_of_another_form_are_an_error_or_a_warning(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(1, 41), "date": "2010-01-01", "drug": "Humira"})
    people = pd.DataFrame({"id": [f"{i:04d}" for i in range(1, 41)], "sex": "F"})
    message = (
        "none of the 40 patients of the table are in the patients' table: the table has ids such "
        "as '1', '2', '3', the patients' table has '0001', '0002', '0003';"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        read(frame, patients=people)
    people["id"] = range(7, 47)
    with pytest.warns(UserWarning, match=r"only 34 of 40 patients .*'1', '2', '3', .*'41', '42'"):
        read(frame, patients=people)
    people["id"] = range(2, 42)
    assert read(frame, patients=people).issues["n"].to_list() == [1]  # 97.5 %
    labs = pd.DataFrame({"id": [f"P{i}" for i in range(50)], "date": "2010-01-01"})
    labs.to_csv(tmp_path / "labs.csv", index=False)
    with pytest.raises(ValueError, match=r"50 patients of labs\.csv are in the table: .*'P0'"):
        read(frame, labs=tmp_path / "labs.csv")
    labs.loc[0, "id"] = "1"
    assert len(read(frame, labs=labs)) == 40


def test_ids_of_mixed_types_are_told() -> None:
    frame = table(
        ("x", "2010-01-01", "Humira"), (1, "2010-01-02", "Humira"), ("1", "2010-01-03", "Humira")
    )
    records = read(frame)
    assert records.ids.to_list() == ["1", "x"]
    assert records.issues[["issue", "n"]].to_numpy().tolist() == [["id of another type", 1]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2010-05-03", "2010-05-03"),
        (" 2010-05-03T23:30:00-05:00 ", "2010-05-03"),
        ("2010-05-03 23:30:00Z", "2010-05-03"),
        ("20100503", "2010-05-03"),
        (20100503, "2010-05-03"),
        (20100503.0, "2010-05-03"),
        (dt.date(2010, 5, 3), "2010-05-03"),
        (dt.datetime(2010, 5, 3, 23, 59), "2010-05-03"),
        (pd.Timestamp("2010-05-03 23:30", tz="America/New_York"), "2010-05-03"),
        (np.datetime64("2010-05-03T12"), "2010-05-03"),
        ("2999-12-31", "2999-12-31"),
        ("0001-01-01", "0001-01-01"),
        ("2010-02-30", None),
        ("03/05/2010", None),
        ("2010-5-3", None),
        ("0000-00-00", None),
        (None, None),
        (np.nan, None),
    ],
)
def test_dates(value: Any, expected: str | None) -> None:
    day = to_days(pd.Series([value, "2000-01-01"], dtype=object))
    assert (day[0] == NO_DATE) is np.bool_(expected is None)
    if expected is not None:
        assert str(day[0].astype("datetime64[D]")) == expected
    assert str(day[1].astype("datetime64[D]")) == "2000-01-01"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_datetime_columns_keep_their_calendar_date(unit: str) -> None:
    stamps = pd.Series(np.array(["2010-05-03T23:30", "1969-12-31T23:59", "NaT"], f"M8[{unit}]"))
    expected = [14732, -1, NO_DATE]
    assert to_days(stamps).tolist() == expected
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        assert to_days(stamps.dt.tz_localize(zone)).tolist() == expected


# --- what is dropped, and what is unusual ----------------------------------------------------


@pytest.mark.filterwarnings("ignore:only .* patients of the table are in")
def test_every_reason_is_counted_once_and_in_order() -> None:
    frame = table(
        (None, "junk", None),
        (1, "junk", None),
        (1, "junk", "Humira"),
        (1, None, "Humira"),
        (2, "1900-01-01", "Humira"),
        (2, "2999-12-31", "Humira"),
        (3, "1949-12-31", "Humira"),
        (3, "2010-01-01", "aspirin"),
        (4, "2010-01-01", "Humira"),
        (4, "2010-01-01", "Humira"),
        (4, "2010-01-01", "adalimumab"),
    )
    people = pd.DataFrame({"id": [3, 4, 9], "birth_date": ["1950-01-01", None, None]})
    records = read(frame, patients=people)
    flow = records.flow.set_index("reason")
    assert flow[["patients", "records"]].to_dict("list") == {
        "patients": [0, 0, 0, 0, 0, 1, 0, 1, 1, 0],
        "records": [0, 0, 1, 1, 1, 2, 1, 1, 1, 1],
    }
    assert flow.index.to_list() == [
        "in the input",
        "wrong number of fields",
        "no patient id",
        "no drug",
        "drug not in the map",
        "date missing or unreadable",
        "date before 1901-01-01",
        "date after 2020-12-31",
        "date before birth",
        "repeats another record",
    ]
    assert flow["patients_left"].iat[0] == 4
    assert flow["records_left"].to_list() == [11, 11, 10, 9, 8, 6, 5, 4, 3, 2]
    assert records.ids.to_list() == [4]
    issues = records.issues.set_index("issue")
    assert issues["n"].to_dict() == {
        "patient not in the patients' table": 2,
        "date missing or unreadable": 2,
        "date before 1901-01-01": 1,
        "date after 2020-12-31": 1,
        "date before birth": 1,
        "repeats another record": 1,
    }
    assert issues.loc["date after 2020-12-31", "examples"] == "2: '2999-12-31'"
    assert issues.loc["repeats another record", "examples"] == "4: 2010-01-01"


def test_at_most_five_examples() -> None:
    frame = table(*[(i, "junk", "Humira") for i in range(9)], (1, "2010-01-01", "Humira"))
    row = read(frame).issues.iloc[0]
    assert row["n"] == 9
    assert row["examples"].split("; ") == [f"{i}: 'junk'" for i in range(5)]


def test_strict_mode_makes_unusual_records_an_error() -> None:
    assert len(read(GOOD, strict=True)) == 3
    frame = table((1, "2010-01-01", "Humira"), (1, "2999-12-31", "Humira"))
    with pytest.raises(ValueError, match=r"unusual records: date after 2020-12-31 \(1\); correct"):
        read(frame, strict=True)


def test_duplicates_may_be_kept() -> None:
    frame = table((1, "2010-01-01", "Humira"), (1, "2010-01-01", "Humira"))
    assert len(read(frame)) == 1
    kept = read(frame, duplicates="keep")
    assert len(kept) == 2
    assert kept.flow["records"].sum() == 0
    assert kept.issues["action"].to_list() == ["kept"]


def test_the_last_day_covered() -> None:
    frame = table(
        (1, "2010-01-01", "Humira", "2010-01-10", 30),
        (1, "2010-02-01", "Humira", None, 30),
        (1, "2010-03-01", "Humira", None, None),
        (1, "2010-04-01", "Humira", "2010-03-01", "14"),
        (1, "2010-05-01", "Humira", "2999-12-31", -3),
        (1, "2010-06-01", "Humira", "junk", "many"),
        (1, "2010-07-01", "Humira", "2010-07-01", 9999),
        (1, "2010-08-01", "Humira", "2012-07-30", None),
        columns="id date drug end_date days_supply",
    )
    records = read(frame)
    assert records.end is not None
    covered = (records.end - records.date + 1).tolist()
    assert covered == [10, 30, 1, 14, 1, 1, 1, 730]
    frame.loc[7, "end_date"] = "2012-07-31"
    assert read(frame).issues.set_index("issue").loc["end covers more than 730 days", "n"] == 2
    assert records.issues.set_index("issue")["n"].to_dict() == {
        "impossible supply": 3,
        "end before start": 1,
        "end covers more than 730 days": 1,
        "end unreadable": 1,
    }


def test_packed_and_plain_sorting_agree() -> None:
    rng = np.random.default_rng(0)
    who, day, drug = (rng.integers(0, 3, 200).astype(np.int32) for _ in range(3))
    rows = Rows(who, day - 7, drug, (day - 7 + rng.integers(0, 2, 200)).astype(np.int32))
    spread = rows._replace(
        who=rows.who * 900_000_000, day=rows.day * 100_000_000, drug=rows.drug * 900_000_000
    )
    spread = spread._replace(last=spread.day + (rows.last - rows.day))
    packed, plain = sort_records(rows), sort_records(spread)
    np.testing.assert_array_equal(packed.who * 900_000_000, plain.who)
    np.testing.assert_array_equal(packed.day * 100_000_000, plain.day)
    np.testing.assert_array_equal(packed.drug * 900_000_000, plain.drug)
    listed = list(zip(*(c.tolist() for c in packed), strict=True))
    assert listed == sorted(zip(*(c.tolist() for c in rows), strict=True))
    again = [False] + [a == b for a, b in zip(listed[1:], listed, strict=False)]
    assert repeats(packed).tolist() == again


# --- patients, labs and sites ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:only .* patients of the table are in")
def test_patients_table(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("MRN,DOB,sex,bmi,last_visit\n1,1950-01-01,F,23.5,2012-01-01\n")
    people = ehr_prep.read_patients(tmp_path / "p.csv")
    assert people.index.to_list() == [1]
    assert people["birth_date"].to_list() == [pd.Timestamp("1950-01-01")]
    assert people["follow_up_end"].to_list() == [pd.Timestamp("2012-01-01")]
    assert people["bmi"].dtype == float
    pd.testing.assert_frame_equal(ehr_prep.read_patients(people), people)
    records = read(
        table(("1", "2010-01-01", "Humira"), ("x", "2010-01-01", "Humira")), patients=people
    )
    assert records.patients is not None
    assert records.patients["bmi"].to_list()[0] == 23.5
    assert records.patients["bmi"].isna().to_list() == [False, True]


@pytest.mark.parametrize("ids", [[1, 1], [1, None]])
def test_a_patients_table_needs_one_row_each(ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="one row per patient"):
        ehr_prep.read_patients(pd.DataFrame({"id": ids, "sex": ["F", "M"]}))


def test_labs_and_unmapped_drugs_show_that_a_patient_is_followed() -> None:
    frame = table(
        (1, "2010-01-01", "Humira"),
        (1, "2010-05-01", "aspirin"),
        (2, "2010-01-01", "Humira"),
        (2, "2009-05-01", "aspirin"),
        (3, "2010-01-01", "aspirin"),
    )
    labs = pd.DataFrame(
        {
            "patient_id": ["2", "2", "3", "4", "1", None],
            "lab_date": ["2011-01-01", "2999-12-31", "2012-01-01", "2012-01-01", "x", "2012-01-01"],
        }
    )
    records = read(frame, labs=labs)
    dates = records.first_seen.astype("datetime64[D]").astype(str).tolist()
    assert dates == ["2010-01-01", "2009-05-01"]
    dates = records.last_seen.astype("datetime64[D]").astype(str).tolist()
    assert dates == ["2010-05-01", "2011-01-01"]


@pytest.mark.skipif(not (SHARED / "synthea").exists(), reason="the Synthea export is not there")
def test_a_synthea_export_is_read_as_it_comes() -> None:
    folder = SHARED / "synthea"
    drugs = {"lisinopril": "ACE", "hydrochlorothiazide": "thiazide", "amlodipine": "CCB"}
    records = ehr_prep.read_records(
        folder / "medications.csv", drugs, patients=folder / "patients.csv"
    )
    assert records.settings["columns"] == {
        "patient": "PATIENT",
        "date": "START",
        "drug": "DESCRIPTION",
        "end": "STOP",
    }
    raw = pd.read_csv(folder / "medications.csv")
    named = raw["DESCRIPTION"].str.contains("|".join(drugs), case=False)
    key = ["PATIENT", "day", "DESCRIPTION", "STOP"]
    distinct = raw[named].assign(day=raw["START"].str[:10]).drop_duplicates(key)
    assert len(records) == len(distinct)
    first = raw[named].groupby("PATIENT")["START"].min().str[:10]
    index = ehr_prep.build_sequences(records, first_on_or_after=None).patients["index_date"]
    assert index.dt.strftime("%Y-%m-%d").to_dict() == first.to_dict()
