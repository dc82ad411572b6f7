"""Records in a warehouse that is not OMOP give the same as the same records in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omop_data import OPTIONS, as_frames, check_same, make_tables

import ehr_prep

ibis = pytest.importorskip("ibis")

LATEST = "2020-01-01"


def frames(seed: int = 1, n: int = 30) -> dict[str, Any]:
    """Records, patients and observation periods, with ids that are texts."""
    tables = as_frames(make_tables(seed, n))
    for name in ("path_or_frame", "patients", "observation"):
        table = tables[name]
        tables[name] = table.assign(patient_id=[f"0{i}" for i in table["patient_id"]])
    return tables


def connect(tables: dict[str, Any]) -> Any:
    con = ibis.duckdb.connect()
    con.create_table("claims", tables["path_or_frame"])
    con.create_table("members", tables["patients"])
    con.create_table("enrolment", tables["observation"])
    return con


TABLES = {"table": "claims", "patients": "members", "observation": "enrolment"}


def check_claims(con: Any, rules: str, **options: Any) -> None:
    tables = frames()
    files = ehr_prep.read_records(**tables, latest=LATEST)
    expected = ehr_prep.build_sequences(files, **OPTIONS[rules])
    records = ehr_prep.read_warehouse(
        con, drugs=tables["drugs"], latest=LATEST, **TABLES, **options
    )
    check_same(ehr_prep.build_sequences(records, **OPTIONS[rules]), expected)
    assert records.settings["unmapped"] == files.settings["unmapped"]
    pd.testing.assert_frame_equal(
        records.unmapped.sort_values("drug", ignore_index=True),
        files.unmapped.sort_values("drug", ignore_index=True),
        check_dtype=False,
    )


@pytest.mark.parametrize("rules", ["combinations", "last record", "washout"])
def test_a_warehouse_gives_what_files_give(rules: str) -> None:
    check_claims(connect(frames()), rules)


@pytest.mark.slow
def test_postgresql_gives_what_files_give(postgres: str) -> None:
    import psycopg

    con = ibis.postgres.from_connection(psycopg.connect(postgres, autocommit=True))
    con.create_database("insurer")
    tables = frames()
    for name, role in (("claims", "path_or_frame"), ("members", "patients")):
        con.create_table(name, tables[role], database="insurer")
    con.create_table("enrolment", tables["observation"], database="insurer")
    con.con.close()
    check_claims(postgres, "combinations", schema="insurer")


def test_records_alone_with_a_default_supply_in_one_file(tmp_path: Path) -> None:
    tables = frames()
    path = tmp_path / "claims.parquet"
    tables["path_or_frame"].assign(site=lambda t: np.arange(len(t)) % 3).to_parquet(path)
    options = {
        "drugs": tables["drugs"],
        "latest": LATEST,
        "default_supply": {"A": 20, "B": 40},
        "where": {"site": "1"},
    }
    expected = ehr_prep.read_records(path, **options)
    got = ehr_prep.read_warehouse(f"parquet:{path}", **options)
    rules = OPTIONS["supplied"]
    a, b = (ehr_prep.build_sequences(records, **rules) for records in (got, expected))
    np.testing.assert_array_equal(a.codes, b.codes)
    pd.testing.assert_frame_equal(a.flow, b.flow)
    counts = [dict(zip(s.issues["issue"], s.issues["n"], strict=True)) for s in (a, b)]
    assert counts[0] == counts[1]
    assert counts[0]["no end or supply"] > 0


def test_texts_in_csv_files_are_read_as_in_files(tmp_path: Path) -> None:
    rows = [
        ("007", "2010-01-05", "Humira", "2010-02-31", "28"),
        (" 007", "2010-04-06 10:30:00", "Orencia", "", "x"),
        ("8", "2010-02-30", "Humira", "2010-03-01", ""),
        ("8", "2010-02-03", "Humira", "soon", "30.5"),
        ("", "2010-02-03", "Humira", "", ""),
        ("9", "2010-02-03", " ", "", ""),
        ("9", "", "Actemra", "", "900"),
        ("10", "2011-05-05", "Actemra", "2011-06-01", ""),
    ]
    frame = pd.DataFrame(rows, columns=["patient_id", "date", "drug", "end_date", "days_supply"])
    frame.to_csv(tmp_path / "claims.csv", index=False)
    expected = ehr_prep.read_records(tmp_path / "claims.csv", drugs="ra", latest=LATEST)
    got = ehr_prep.read_warehouse(f"csv:{tmp_path / 'claims.csv'}", drugs="ra", latest=LATEST)
    assert got.ids.equals(expected.ids)
    assert got.ids.to_list() == ["007", "10", "8"]
    pd.testing.assert_frame_equal(got.flow, expected.flow)
    np.testing.assert_array_equal(got.date, expected.date)
    np.testing.assert_array_equal(got.end, expected.end)
    counts = [dict(zip(s.issues["issue"], s.issues["n"], strict=True)) for s in (got, expected)]
    assert counts[0] == counts[1]


def test_texts_without_a_known_drug_are_refused_for_that_reason(tmp_path: Path) -> None:
    (tmp_path / "claims.csv").write_text("patient_id,date,drug\n1,2010-01-05,aspirin\n")
    with pytest.raises(
        ValueError, match=r"1 were dropped: drug not in the map \(1\); the drugs are"
    ):
        ehr_prep.read_warehouse(f"csv:{tmp_path / 'claims.csv'}", drugs="ra", latest=LATEST)


def test_what_is_wrong_with_the_tables() -> None:
    tables = frames(n=5)
    con = connect(tables)
    read = ehr_prep.read_warehouse
    with pytest.raises(ValueError, match=r"has the tables 'claims', 'enrolment', 'members'; say"):
        read(con, drugs="ra")
    with pytest.raises(ValueError, match="no table claim;"):
        read(con, "claim", drugs="ra")
    with pytest.raises(ValueError, match="claims has no column 'when'"):
        read(con, "claims", drugs="ra", date="when")
    with pytest.raises(ValueError, match="no column of members looks like the drug"):
        read(con, "members", drugs="ra", date="birth_date")
    with pytest.raises(ValueError, match=r"column 'supply' .* holds .*, not dates"):
        read(con, "claims", drugs="ra", date="supply")
    with pytest.raises(ValueError, match=r"is usable; .* drug not in the map"):
        read(con, "claims", drugs="ra")
    con.raw_sql("INSERT INTO members SELECT * FROM members LIMIT 1")
    with pytest.raises(ValueError, match="members must have one row per patient"):
        read(con, drugs=tables["drugs"], **TABLES)
    con.raw_sql("UPDATE members SET patient_id = 'x' || rowid")
    with pytest.raises(ValueError, match=r"none of the \d patients of claims are in members"):
        read(con, drugs=tables["drugs"], **TABLES)
    con.raw_sql("DELETE FROM claims")
    with pytest.raises(ValueError, match="has no rows"):
        read(con, "claims", drugs="ra")
