"""Databases and files must give the same: sequences, flow and Table 1, under every rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omop_data import DRUGS, OPTIONS, as_frames, check_same, make_tables

import ehr_prep
import mmlca
from ehr_prep.synthetic import write_omop

ibis = pytest.importorskip("ibis")


def connect(tables: dict[str, Any]) -> Any:
    con = ibis.duckdb.connect()
    for name, table in tables.items():
        con.create_table(name, table)
    return con


PART = 110  # so that the records are fetched in several parts


@pytest.fixture(scope="module")
def sources() -> Any:
    tables = make_tables(1)
    con = connect(tables)
    whole = ehr_prep.read_omop(con, drugs=DRUGS, latest="2020-01-01")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ehr_prep.databases.warehouse._PART", PART)
        parts = ehr_prep.read_omop(con, drugs=DRUGS, latest="2020-01-01")
    n_fetched = [
        sum("drugs with a class" in q.purpose for q in r.database.queries) for r in (whole, parts)
    ]
    assert n_fetched[0] + 2 <= n_fetched[1]
    return ehr_prep.read_records(**as_frames(tables), latest="2020-01-01"), (whole, parts)


@pytest.mark.parametrize("name", OPTIONS)
def test_files_and_databases_agree(sources: Any, name: str) -> None:
    files, databases = sources
    expected = ehr_prep.build_sequences(files, **OPTIONS[name])
    for records in databases:
        check_same(ehr_prep.build_sequences(records, **OPTIONS[name]), expected)


@pytest.mark.parametrize("seed", [2, 3])
def test_other_random_records(seed: int) -> None:
    tables = make_tables(seed, 25)
    expected = ehr_prep.read_records(**as_frames(tables), latest="2020-01-01")
    got = ehr_prep.read_omop(connect(tables), drugs=DRUGS, latest="2020-01-01")
    for name in ("combinations", "last record"):
        check_same(
            ehr_prep.build_sequences(got, **OPTIONS[name]),
            ehr_prep.build_sequences(expected, **OPTIONS[name]),
        )


def test_the_database_is_asked_for_each_thing_once(sources: Any) -> None:
    purposes = [query.purpose for query in sources[1][0].database.queries]
    assert len(purposes) == len(set(purposes))
    assert "WHERE" in sources[1][0].explain()


def test_repetitions_may_be_kept() -> None:
    tables = make_tables(1)
    frames = as_frames(tables)
    expected = ehr_prep.read_records(**frames, latest="2020-01-01", duplicates="keep")
    got = ehr_prep.read_omop(connect(tables), drugs=DRUGS, latest="2020-01-01", duplicates="keep")
    a, b = ehr_prep.build_sequences(got), ehr_prep.build_sequences(expected)
    np.testing.assert_array_equal(a.codes, b.codes)
    pd.testing.assert_frame_equal(a.flow, b.flow)


# --- the published cohort, made up: files, and the same in a database -------------------------


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ehr_prep.SyntheticCohort]:
    folder = tmp_path_factory.mktemp("cohort")
    made = ehr_prep.ra_cohort(5, 0.02)
    made.write(folder / "files")
    write_omop(made, folder / "omop")
    return folder, made


def from_files(folder: Path, site: str, **rules: Any) -> mmlca.Sequences:
    """The files, with the words and ids of the database."""
    place = folder / "files" / site
    people = pd.read_csv(place / "patients.csv")
    people["sex"] = people["sex"].map({"F": "FEMALE", "M": "MALE"})
    number = {text: i for i, text in enumerate(people["patient_id"], start=1)}
    tables = [people, pd.read_csv(place / "medications.csv"), pd.read_csv(place / "labs.csv")]
    for table in tables:
        table["patient_id"] = table["patient_id"].map(number)
    people, records, labs = tables
    read = ehr_prep.read_records(
        records, drugs="ra", patients=people, labs=labs, latest="2024-01-01"
    )
    return ehr_prep.build_sequences(read, **rules)


def check_cohort(records: Any, folder: Path, **rules: Any) -> None:
    got = ehr_prep.build_sequences(records, **rules)
    expected = from_files(folder, "MGB", **rules)
    np.testing.assert_array_equal(got.codes, expected.codes)
    assert got.ids.equals(expected.ids)
    # in the database the end of follow-up is that of the observation period
    flow = got.flow[got.flow["reason"] != "outside the observation periods"]
    pd.testing.assert_frame_equal(flow.reset_index(drop=True), expected.flow)
    groups = pd.Series(np.arange(len(got)) % 3, index=got.ids)
    assert str(ehr_prep.table_one(got.patients, groups)) == str(
        ehr_prep.table_one(expected.patients, groups)
    )


RULES: list[dict[str, Any]] = [
    {"preset": "ra"},
    {"states": "combinations", "impute": "carry_forward_supplied"},
]


def test_a_cohort_in_files_and_in_parquet(cohort: Any) -> None:
    folder, _ = cohort
    url = f"parquet:{folder / 'omop' / 'MGB'}"
    records = ehr_prep.read_omop(url, drugs="ra", labs="ESR", latest="2024-01-01")
    for rules in RULES:
        check_cohort(records, folder, **rules)


@pytest.mark.slow
def test_labs_from_a_database_make_the_same_trend(cohort: Any) -> None:
    folder, made = cohort
    records = ehr_prep.read_omop(f"parquet:{folder / 'omop' / 'MGB'}", drugs="ra", labs="ESR")
    sequences = ehr_prep.build_sequences(records, preset="ra")
    groups = pd.Series(1, index=sequences.ids)
    assert records.labs is not None
    got = ehr_prep.trend(records.labs, groups, sequences)
    number = {text: i for i, text in enumerate(made["MGB"].patients["patient_id"], start=1)}
    labs = made["MGB"].labs.assign(patient_id=made["MGB"].labs["patient_id"].map(number))
    expected = ehr_prep.trend(labs, groups, sequences)
    pd.testing.assert_frame_equal(got.curves, expected.curves)


# --- other engines ----------------------------------------------------------------------------


def check_random(*place: Any) -> None:
    """Random tables in an engine, under rules with combinations, stopping and death."""
    tables = make_tables(1)
    expected = ehr_prep.read_records(**as_frames(tables), latest="2020-01-01")
    records = ehr_prep.read_omop(*place, drugs=DRUGS, latest="2020-01-01")
    for name in OPTIONS:
        got = ehr_prep.build_sequences(records, **OPTIONS[name])
        check_same(got, ehr_prep.build_sequences(expected, **OPTIONS[name]))


def check_cohort_at(*place: Any, folder: Path) -> None:
    records = ehr_prep.read_omop(*place, drugs="ra", labs="ESR", latest="2024-01-01")
    for rules in RULES:
        check_cohort(records, folder, **rules)


@pytest.fixture(scope="module")
def reader(postgres: str, cohort: Any) -> str:
    """The URL of a role that may only SELECT, and not even make temporary tables."""
    import psycopg

    con = ibis.postgres.from_connection(psycopg.connect(postgres, autocommit=True))
    con.create_database("random")
    for name, table in make_tables(1).items():
        con.create_table(name, table, database="random")
    write_omop(cohort[1], con)
    con.raw_sql("CREATE ROLE reader LOGIN")
    for schema in ("random", "mgb"):
        con.raw_sql(f"GRANT USAGE ON SCHEMA {schema} TO reader")
        con.raw_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
    con.raw_sql("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC")
    con.con.close()
    return postgres.replace("postgres@", "reader@")


def test_postgresql_gives_the_same(reader: str, postgres: str) -> None:
    import psycopg

    check_random(reader, "random")
    with psycopg.connect(postgres) as asked:
        left = "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind IN ('r', 'v')"
        assert asked.execute(left).fetchone() == (0,)


@pytest.mark.slow
def test_postgresql_gives_the_same_cohort(reader: str, cohort: Any) -> None:
    check_cohort_at(reader, "mgb", folder=cohort[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark's sockets
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_spark_gives_the_same(spark: Any, cohort: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder, _ = cohort
    spark.create_database("random")
    for name, table in make_tables(1).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        spark.create_table(
            name, spark.read_parquet(tmp_path / f"{name}.parquet"), database="random"
        )
    before = set(spark.list_tables())
    check_random(spark, "random")
    assert set(spark.list_tables()) == before
    # by URL: the tables of a folder, in a session of their own
    check_cohort_at(f"spark://local[2]{folder / 'omop' / 'MGB'}", folder=folder)
    assert set(spark.list_tables()) == before
