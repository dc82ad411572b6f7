"""Attacks through the names of schemas, tables and columns of a PostgreSQL database.

The attacker chooses the names: in a study file that someone else sent, or as the owner of another
schema of the same server. He wants a statement of his own to run, a message that floods or forges
the log, or another schema to be read instead of the one named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refusal
from omop_data import DRUGS, make_tables

import ehr_prep
from font.errors import InputError

ibis = pytest.importorskip("ibis")

DROP = "DROP TABLE tiny.person"
NAMES = [
    f'x"; {DROP}; --',
    f"x'; {DROP}; --",
    f"$$;{DROP};$$",
    f"\\'; {DROP}; --",
    'a"b',
    "a'b",
    '"',
    "%s",
    "%(x)s",
    "{x}",
    ":x",
    "?",
    "null",
    "-1",
    " ",
    "a.b",
    "tiny.person",
    "TINY",
    "t\u0456ny",
    "tiny\u200b",
    "\u202etiny",
    "\ufb00",
    "a\nb",
    "a\x00b",
    "\ud800",
    "x" * 64,
    "pg_catalog",
    "information_schema",
    "x" * 10_000_000,
]
ROWS = (("a", "2020-01-01", "alpha"), ("a", "2020-02-01", "beta"), ("b", "2020-01-15", "alpha"))


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Any]:
    """A connection of the owner, who may do anything, and its URL."""
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        con = ibis.postgres.from_connection(connection)
        con.raw_sql("CREATE SCHEMA tiny")
        for name, table in make_tables(1, 5).items():
            con.create_table(name, table, database="tiny")
        yield connection, postgres
        connection.execute("DROP SCHEMA tiny CASCADE")


def ended(attempt: Any) -> str:
    """The sentence with which an attempt ends."""
    start = time.monotonic()
    with pytest.raises((InputError, PermissionError)) as error:
        attempt()
    assert time.monotonic() - start < 3  # a column of 10 MB took 9 s before
    text = str(error.value)
    assert len(text) < 2_000  # it repeated all of the 10 MB before
    assert text.isprintable()  # "a\nb" as a table began a line of its own before
    return text


def test_names_that_do_not_exist_are_refused_in_one_sentence(server: Any) -> None:
    connection, url = server
    for name in NAMES:
        ended(lambda name=name: ehr_prep.read_omop(url, name, drugs=DRUGS))
        for role in ("table", "patients", "observation"):
            words = {"table": "drug_exposure", role: name}
            ended(lambda w=words: ehr_prep.read_warehouse(url, schema="tiny", drugs=DRUGS, **w))
        columns = {"table": "drug_exposure", "schema": "tiny", "patient": name}
        ended(lambda w=columns: ehr_prep.read_warehouse(url, drugs=DRUGS, **w))
    assert connection.execute("SELECT count(*) FROM tiny.person").fetchone() == (5,)


def test_the_command_refuses_them_too(server: Any, tmp_path: Path) -> None:
    connection, url = server
    for name in (NAMES[0], NAMES[1], "a\nb", "\u202etiny", "x" * 100_000):
        said = refusal(
            "prep", "--omop", url, "--schema", name, "--drugs", "ra", "--out", tmp_path / "o.csv"
        )
        assert len(said) < 2_000
    assert not (tmp_path / "o.csv").exists()
    assert connection.execute("SELECT count(*) FROM tiny.person").fetchone() == (5,)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_names_that_exist_are_read_as_names(server: Any) -> None:
    """A schema, a table and columns that are called so, with texts that say the same."""
    connection, url = server
    for name in (NAMES[0], NAMES[1], NAMES[3], 'a"b', "%s", "%(x)s", "{x}", "t\u0456ny", "TINY"):
        schema = name.replace(".", "-")  # Ibis takes a dot for that of database.schema
        table, who = quoted(schema) + "." + quoted(name), quoted(name)
        connection.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
        connection.execute(f"CREATE TABLE {table} ({who} text, day date, drug text)".encode())
        for row in ROWS:
            values = ", ".join(f"'{value}'" for value in row)
            connection.execute(f"INSERT INTO {table} VALUES ({values})".encode())
        spelled = "'" + name.replace("'", "''") + "'"
        hostile = f"INSERT INTO {table} VALUES ({spelled}, '2020-03-01', {spelled})"
        connection.execute(hostile.encode())
        records = ehr_prep.read_warehouse(
            url, name, schema, DRUGS, patient=name, date="day", drug="drug"
        )
        built = ehr_prep.build_sequences(records)
        assert np.asarray(built.ids).tolist() == ["a", "b"]
        assert records.unmapped["drug"].tolist() == [name]
        connection.execute(f"DROP SCHEMA {quoted(schema)} CASCADE".encode())
    assert connection.execute("SELECT count(*) FROM tiny.person").fetchone() == (5,)


def test_a_view_that_fails_is_no_bug_of_the_program(server: Any, tmp_path: Path) -> None:
    connection, url = server
    who, rest = "CAST(1 / (person_id * 0) AS text)", "DATE '2020-01-01' AS date, 'alpha' AS drug"
    view = f"CREATE VIEW tiny.broken AS SELECT {who} AS patient_id, {rest} FROM tiny.person"
    connection.execute(view.encode())
    table = ("--schema", "tiny", "--table", "broken", "--drugs", "ra", "--out", tmp_path / "o.csv")
    said = refusal("prep", "--warehouse", url, *table)
    assert "cannot answer" in said
    assert "division by zero" in said


def test_not_even_the_owner_can_write_through_the_program(server: Any) -> None:
    from ehr_prep.databases.connect import Database

    connection, url = server
    database = Database(url, "tiny")
    with pytest.raises(Exception, match="read-only transaction"):
        database.con.raw_sql(DROP)
    assert connection.execute("SELECT count(*) FROM tiny.person").fetchone() == (5,)
