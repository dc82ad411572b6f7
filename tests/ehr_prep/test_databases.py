"""Addresses of databases, their mistakes in one sentence, and passwords that stay secret."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import refusal
from omop_data import DRUGS, make_tables

import ehr_prep
from ehr_prep.databases.connect import Database, check_url, hide_secrets, local_path, resolve_url

ibis = pytest.importorskip("ibis")

SECRET = "s3cr3t-pa55"


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgrsql://host/cdm", "did you mean 'postgresql'"),
        ("duckbd:///x.duckdb", "did you mean 'duckdb'"),
        ("mongodb://host", "examples are postgresql://"),
        ("postgresql:host/cdm", "begins with postgresql://"),
        ("postgresql://host:port/cdm", "port must be a number"),
        ("nonsense", "names no database"),
        ("duckdb:///no/such.duckdb", "no DuckDB file"),
        ("parquet:no/such/folder", "no folder"),
    ],
)
def test_addresses_with_a_mistake(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Database(url)


def test_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"holds no \.parquet file"):
        Database(f"parquet:{tmp_path}")
    (tmp_path / "parts").mkdir()
    pd.DataFrame({"X": [1]}).to_parquet(tmp_path / "One.parquet")
    for part in range(2):
        pd.DataFrame({"x": [part]}).to_parquet(tmp_path / "parts" / f"{part}.parquet")
    database = Database(f"parquet:{tmp_path}/")
    assert database.fetch(database.table("one", "x"), "one")["x"].to_list() == [1]
    assert len(database.fetch(database.table("parts", "x"), "parts")) == 2
    pd.DataFrame({"x": [7]}).to_csv(tmp_path / "two.csv", index=False)
    database = Database(f"csv:{tmp_path}")
    assert database.fetch(database.table("two", "x"), "two")["x"].to_list() == [7]
    monkeypatch.chdir(tmp_path)
    assert check_url(".") == "parquet"
    assert local_path("parquet:parts/") == Path("parts")
    assert resolve_url("parquet:parts", tmp_path) == f"parquet:{tmp_path / 'parts'}"
    assert resolve_url("postgresql://host/x", tmp_path) == "postgresql://host/x"
    con = ibis.duckdb.connect("cdm.duckdb")
    con.create_table("one", pd.DataFrame({"x": [1]}))
    con.disconnect()
    url = resolve_url("duckdb:///cdm.duckdb", tmp_path)
    assert url == f"duckdb://{tmp_path / 'cdm.duckdb'}"
    database = Database(url)
    with pytest.raises(ValueError, match="has no column 'y'; it has 'x'"):
        database.table("one", "y")
    with pytest.raises(Exception, match="read-only"):
        database.con.raw_sql("CREATE TABLE two (x INT)")


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"pip install 'mmlca\[postgres\]'"):
        ehr_prep.read_omop("postgresql://host/cdm", drugs="ra")
    monkeypatch.setitem(sys.modules, "ibis", None)
    with pytest.raises(ValueError, match=r"pip install 'mmlca\[warehouse\]'"):
        ehr_prep.read_omop("parquet:folder", drugs="ra")


def test_only_connections_and_addresses() -> None:
    with pytest.raises(TypeError, match="must be an Ibis connection or a URL"):
        ehr_prep.read_omop(3, drugs="ra")


# --- what is not there --------------------------------------------------------------------------


def con_with(**changed: Any) -> Any:
    con = ibis.duckdb.connect()
    for name, table in (make_tables(1, 5) | changed).items():
        if table is not None:
            con.create_table(name, table)
    return con


def test_tables_and_schemas_that_are_not_there() -> None:
    con = con_with(person=None)
    with pytest.raises(ValueError, match=r"no table person; say in which schema"):
        ehr_prep.read_omop(con, drugs=DRUGS)
    con.raw_sql("CREATE SCHEMA omop_cdm")
    with pytest.raises(ValueError, match="no schema 'omop_cmd'; did you mean 'omop_cdm'"):
        ehr_prep.read_omop(con, "omop_cmd", drugs=DRUGS)
    with pytest.raises(ValueError, match="no table drug_exposure in the schema 'omop_cdm'"):
        ehr_prep.read_omop(con, "omop_cdm", drugs=DRUGS)


def test_no_rows_and_no_usable_rows() -> None:
    con = con_with()
    con.raw_sql("DELETE FROM drug_exposure")
    with pytest.raises(ValueError, match="drug_exposure of the duckdb database has no rows"):
        ehr_prep.read_omop(con, drugs=DRUGS)
    with pytest.raises(ValueError, match=r"no record of .* is usable; .* drug not in the map"):
        ehr_prep.read_omop(con_with(), drugs={"unobtainium": "U"})
    con = con_with()
    con.raw_sql("DELETE FROM observation_period")
    with pytest.raises(ValueError, match="outside the observation periods"):
        ehr_prep.read_omop(con, drugs=DRUGS)


# --- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(postgres: str) -> str:
    import psycopg

    con = ibis.postgres.from_connection(psycopg.connect(postgres, autocommit=True))
    con.create_database("small")
    for name, table in make_tables(1, 5).items():
        con.create_table(name, table, database="small")
    con.raw_sql("CREATE ROLE visitor LOGIN")
    con.con.close()
    return postgres


def test_no_permission(served: str) -> None:
    import psycopg

    visitor = served.replace("postgres@", "visitor@")
    with pytest.raises((PermissionError, ValueError), match=r"may not read|permissions"):
        ehr_prep.read_omop(visitor, "small", drugs=DRUGS)
    with psycopg.connect(served, autocommit=True) as con:
        con.execute("GRANT USAGE ON SCHEMA small TO visitor")
    with pytest.raises(PermissionError, match="permission denied for table drug_exposure"):
        ehr_prep.read_omop(visitor, "small", drugs=DRUGS)
    with pytest.raises(ValueError, match="no schema 'smal'; did you mean 'small'"):
        ehr_prep.read_omop(served, "smal", drugs=DRUGS)


def test_we_cannot_write(served: str) -> None:
    database = Database(served, "small")
    with pytest.raises(ValueError, match="read-only transaction"), database.asking("a trial"):
        database.con.raw_sql("CREATE TABLE small.mine (x INT)")


@pytest.mark.parametrize("after", [1, 6])
def test_a_connection_that_is_lost(
    served: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    import psycopg

    def fetch(database: Any, *words: Any) -> Any:
        if len(database.queries) == after:
            (pid,) = database.con.raw_sql("SELECT pg_backend_pid()").fetchone()
            with psycopg.connect(served, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return real(database, *words)

    real = Database.fetch_arrow
    monkeypatch.setattr(Database, "fetch_arrow", fetch)
    with pytest.raises(ConnectionError, match=r"was lost .* nothing was written"):
        ehr_prep.read_omop(served, "small", drugs=DRUGS)


@pytest.mark.parametrize("trouble", ["permission", "lost"])
def test_the_command_says_so_and_writes_nothing(
    served: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: str
) -> None:
    """Without permission, and when the connection is lost with the last query."""
    (tmp_path / "drugs.csv").write_text("name,class\nalpha,A\nbeta,B\ngamma,C\n")
    url, out = served, tmp_path / "new" / "sequences.csv"
    if trouble == "permission":
        url = served.replace("postgres@", "visitor@")
    else:
        real = Database.fetch_arrow

        def fetch(database: Any, expression: Any, purpose: str) -> Any:
            if purpose == "records of drugs with a class":
                database.con.con.close()
            return real(database, expression, purpose)

        monkeypatch.setattr(Database, "fetch_arrow", fetch)
    words = ("--omop", url, "--schema", "small", "--drugs", tmp_path / "drugs.csv", "--out", out)
    said = refusal("prep", *words)
    assert {"permission": "permission", "lost": "nothing was written"}[trouble] in said
    assert not out.parent.exists()


def test_servers_that_do_not_answer(served: str) -> None:
    with pytest.raises(ConnectionError, match=r"cannot connect .* check the address"):
        ehr_prep.read_omop("postgresql://127.0.0.1:1/cdm", drugs="ra")
    with pytest.raises(ConnectionError, match='role "nobody" does not exist'):
        ehr_prep.read_omop(served.replace("postgres@", "nobody@"), drugs="ra")
    with pytest.raises(ConnectionError, match='database "other" does not exist'):
        ehr_prep.read_omop(served.removesuffix("postgres") + "other", drugs="ra")


# --- passwords ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@127.0.0.1:1/cdm",
        f"postgres://ada:{SECRET}@127.0.0.1:1/cdm",
        f"postgresql://127.0.0.1:1/cdm?user=ada&password={SECRET}",
        f"postgresql://ada:{SECRET}@127.0.0.1:nine/cdm",
        f"postgresql:ada:{SECRET}@127.0.0.1",
        f"postgrsql://ada:{SECRET}@127.0.0.1/cdm",
        f"spark://ada:{SECRET}@127.0.0.1:1",
        f"ada:{SECRET}@127.0.0.1/cdm",
        f"host=127.0.0.1 password={SECRET}",
        f"host=127.0.0.1 password='{SECRET}'",
    ],
)
def test_an_address_with_a_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises((ValueError, ConnectionError)) as caught:
        ehr_prep.read_omop(url, drugs="ra")
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert SECRET not in hide_secrets(
        f"failed at postgresql://ada:{SECRET}@host/x password={SECRET}"
    )


def test_a_password_from_the_environment_shows_nowhere(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    records = ehr_prep.read_omop(served, "small", drugs={**DRUGS, SECRET: "A"})
    sql = records.explain()
    assert "SELECT" in sql
    assert SECRET not in f"{sql} {records!r} {records.settings['source']}"
    database = Database(served, "small")
    with pytest.raises(ValueError, match=r"\*\*\*") as caught, database.asking("a trial"):
        database.con.raw_sql(
            f"SELECT '{SECRET}' FROM nowhere_{SECRET.replace('-', '_')} '{SECRET}'"
        )
    assert SECRET not in str(caught.value)
    assert os.environ["PGPASSWORD"] == SECRET
