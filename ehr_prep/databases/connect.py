"""Databases: connecting by URL, tables, queries that are kept to be shown, and errors in words.

Everything here only reads. Passwords are never part of a URL: drivers take them from the
environment or from their own files.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pandas as pd

from font.checks import some
from font.errors import InputError, option

KINDS = ("postgresql", "duckdb", "parquet", "csv", "spark")
EXAMPLES = (
    "postgresql://host/database, duckdb:///file.duckdb, parquet:folder/ and spark://host:port"
)
_EXTRA = {"psycopg": "postgres", "pyspark": "spark"}
_SECRET = re.compile(
    r"(://[^/@\s:]*):[^@\s]*@|\b(password|passwd|pwd)\s*=\s*('[^']*'|[^&\s'\"]+)", re.I
)
_LONGEST_NAME = 1_000  # of a schema, table or column; databases have at most 255 characters or so
_LOST = (
    "connection is closed",
    "connection is lost",
    "terminating connection",
    "server closed",
    "stopped sparkcontext",
)


class Query(NamedTuple):
    """One query that was sent: what it is for, and its Ibis expression."""

    purpose: str
    expression: Any


class Database:
    """An Ibis connection, the schema of its tables, a name for messages, and what was asked of it.

    Parameters
    ----------
    connection : Ibis connection or URL
        Such as `ibis.duckdb.connect("cdm.duckdb", read_only=True)` or "parquet:folder/".
    schema : str, optional
        Where the tables are; default: where the connection looks for them.
    texts : bool
        Read CSV files as texts, so that an id such as 007 stays one.
    """

    def __init__(self, connection: Any, schema: str | None = None, *, texts: bool = False) -> None:
        if isinstance(connection, (str, os.PathLike)):
            self.con, self.name = _open(os.fspath(connection), texts)
        elif hasattr(connection, "table") and hasattr(connection, "name"):
            self.con, self.name = connection, f"the {connection.name} database"
        else:
            raise TypeError(
                "the connection must be an Ibis connection or a URL such as "
                f"{EXAMPLES}; found {type(connection).__name__}."
            )
        self.schema = None if schema is None else check_name(schema, "schema")
        self.queries: list[Query] = []

    def table(self, name: str, *columns: str, optional: tuple[str, ...] = ()) -> Any:
        """A table with lower-case column names; `columns` must be there, `optional` may be.

        Without `columns` it has all of them.
        """
        found = self.has(name)
        if found is None:
            raise InputError(self._no_table(name))
        absent = [c for c in columns if c not in found.columns]
        if absent:
            raise InputError(
                f"the table {name} of {self.name} has no column {some(absent)}; it has "
                f"{some(found.columns)}."
            )
        chosen = [*columns, *(c for c in optional if c in found.columns)]
        return found.select(*chosen) if chosen else found

    def only_table(self) -> str:
        """The name of the only table."""
        with self.asking("the list of tables"):
            if self.con.name == "duckdb":  # Ibis 12 cannot list them with DuckDB 2
                asked = "SELECT table_name FROM information_schema.tables WHERE table_schema = ?"
                rows = self.con.con.execute(asked, [self.schema or "main"]).fetchall()
                names = sorted(row[0] for row in rows)
            else:
                names = sorted(self.con.list_tables(database=self.schema))
        if len(names) != 1:
            has = f"has the tables {some(names)}" if names else "has no table"
            called = option("table", names[0] if names else "dispensings")
            raise InputError(f"{self.name} {has}; say which one holds the records, as in {called}.")
        return str(names[0])

    def has(self, name: str) -> Any:
        """The table with lower-case column names, or None if there is none."""
        from ibis.common.exceptions import TableNotFound

        check_name(name, "table")
        for spelling in (name, name.upper()):
            try:
                with self.asking(name):
                    found = self.con.table(spelling, database=self.schema)
            except TableNotFound:
                continue
            other = {c.lower(): c for c in found.columns if c != c.lower()}
            return found.rename(other) if other else found
        return None

    def within(self, schema: str) -> Database:
        """The same connection and list of queries, with tables of another schema."""
        other = object.__new__(Database)
        other.__dict__.update(self.__dict__, schema=check_name(schema, "schema"))
        return other

    def fetch(self, expression: Any, purpose: str) -> pd.DataFrame:
        """Run a query; its SQL is kept for `explain`."""
        return self.fetch_arrow(expression, purpose).to_pandas(date_as_object=False)

    def fetch_arrow(self, expression: Any, purpose: str) -> Any:
        """Like `fetch`, as a pyarrow table."""
        self.queries.append(Query(purpose, expression))
        with self.asking(purpose):
            return self.con.to_pyarrow(expression)

    def explain(self) -> str:
        """The SQL of every query so far, each with what it is for."""
        return "\n\n".join(
            f"-- {purpose}\n{hide_secrets(str(self.con.compile(expression, pretty=True)))};"
            for purpose, expression in self.queries
        )

    @contextmanager
    def asking(self, purpose: str) -> Iterator[None]:
        """Turn what a driver says into one sentence, without secrets."""
        from ibis.common.exceptions import TableNotFound

        try:
            yield
        except (TableNotFound, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            raise _one_sentence(error, self.name, purpose) from None

    def _no_table(self, name: str) -> str:
        where = f"{self.name} has no table {name}"
        if self.schema is None:
            return f"{where}; say in which schema it is, as in {option('schema', 'cdm')}."
        schemas = self._schemas()
        if schemas and self.schema not in schemas:
            near = difflib.get_close_matches(self.schema, schemas, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {some(schemas)}."
            return f"{self.name} has no schema {self.schema!r}; {hint}"
        return (
            f"{where} in the schema {self.schema!r}, or none that this user may see; check the "
            "schema and the permissions."
        )

    def _schemas(self) -> list[str]:
        """The schemas that users made, or none where the engine does not say."""
        try:
            if self.con.name == "duckdb":  # Ibis 12 cannot list them with DuckDB 2
                asked = "SELECT DISTINCT schema_name FROM information_schema.schemata"
                names = [row[0] for row in self.con.con.execute(asked).fetchall()]
            else:
                names = list(self.con.list_databases())
        except Exception:  # only for a better message
            return []
        return sorted(n for n in names if not n.startswith(("pg_", "information_schema")))


def check_name(name: str, what: str) -> str:
    """The name of a schema, table or column, if a database can have it and a message show it.

    Examples
    --------
    >>> check_name("a\\nb", "schema")
    Traceback (most recent call last):
    font.errors.InputError: 'a\\nb' is not the name of a schema: it holds an unprintable character.
    """
    if len(name) > _LONGEST_NAME:
        raise InputError(
            f"a text of {len(name):,} characters ({name[:20]!a}…) is not the name of a {what}; "
            f"give one of at most {_LONGEST_NAME:,}."
        )
    if not name.isprintable():
        raise InputError(
            f"{name!a} is not the name of a {what}: it holds an unprintable character."
        )
    return name


def hide_secrets(text: str) -> str:
    """A text without the password of any URL or connection string in it, nor PGPASSWORD's value.

    Examples
    --------
    >>> hide_secrets("cannot open postgresql://ada:lovelace@host/cdm")
    'cannot open postgresql://ada:***@host/cdm'
    """
    text = _SECRET.sub(lambda m: f"{m[1]}:***@" if m[1] is not None else f"{m[2]}=***", text)
    secret = os.environ.get("PGPASSWORD")
    return text.replace(secret, "***") if secret else text


def check_url(url: str) -> str:
    """The kind of a URL; it must be one we know, and hold no password.

    Examples
    --------
    >>> check_url("parquet:cdm/")
    'parquet'
    >>> check_url("postgrsql://host/cdm")
    Traceback (most recent call last):
    font.errors.InputError: 'postgrsql' is not a kind of database; did you mean 'postgresql'?
    """
    kind, colon, rest = url.partition(":")
    kind = "postgresql" if kind == "postgres" else kind
    if not colon or len(kind) == 1:  # a path, also C:\cdm
        path = Path(url)
        if path.is_dir():
            return "parquet"
        if path.suffix in (".duckdb", ".db"):
            return "duckdb"
        raise InputError(f"{hide_secrets(url)!r} names no database; examples are {EXAMPLES}.")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"examples are {EXAMPLES}."
        raise InputError(f"{kind!r} is not a kind of database; {hint}")
    if kind in ("postgresql", "spark") and not rest.startswith("//"):
        raise InputError(f"a URL of {kind} begins with {kind}://, found {kind}:…; correct it.")
    try:
        parts = urlsplit(re.sub(r"^spark://local\[[\d*]+\]", "spark://local", url))
        password = parts.password or dict(parse_qsl(parts.query)).get("password")
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        raise InputError(
            f"the URL of the {kind} database cannot be read; its port must be a number, and "
            "special characters must be written as %XX."
        ) from None
    if password or (kind != "parquet" and _SECRET.search(url)):
        raise InputError(
            "the URL of the database holds a password; leave it out, and set PGPASSWORD or write "
            "it to the driver's own file (~/.pgpass), so that it stays out of logs and study files."
        )
    return kind


def local_path(url: str) -> Path | None:
    """The file or folder that a URL names, None for a server."""
    if check_url(url) not in ("duckdb", "parquet", "csv"):
        return None
    rest = re.sub(r"^(duckdb|parquet|csv):(//)?", "", url)
    path = Path(rest).expanduser()
    relative = Path(rest.lstrip("/"))
    return relative if not path.exists() and relative.exists() else path


def resolve_url(url: str, folder: Path) -> str:
    """The same URL, a relative path in it taken from `folder`."""
    path = local_path(url)
    if path is None:
        return url
    kind = check_url(url)
    place = path if path.is_absolute() and path.exists() else folder / str(path).lstrip("/")
    return f"{kind}:{'//' if kind == 'duckdb' else ''}{place.absolute()}"


# --- inside ----------------------------------------------------------------------------


def _open(url: str, texts: bool) -> tuple[Any, str]:
    kind = check_url(url)
    try:
        import ibis
    except ImportError:
        raise InputError(_lacks("warehouse")) from None
    opener: dict[str, Callable[[Any, str], tuple[Any, str]]] = {
        "postgresql": _open_postgres,
        "duckdb": _open_duckdb,
        "parquet": partial(_open_files, texts=texts),
        "csv": partial(_open_files, texts=texts),
        "spark": _open_spark,
    }
    try:
        return opener[kind](ibis, url)
    except ImportError as error:
        raise InputError(_lacks(_EXTRA.get(str(error.name), "warehouse"))) from None
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise _one_sentence(error, hide_secrets(url), "connecting") from None


def _lacks(extra: str) -> str:
    return f"reading from this database needs further packages: pip install 'mmlca[{extra}]'."


def _open_postgres(ibis: Any, url: str) -> tuple[Any, str]:
    import psycopg

    connection = psycopg.connect(
        url, autocommit=True, options="-c default_transaction_read_only=on"
    )
    con = ibis.postgres.from_connection(connection)
    weakref.finalize(con, connection.close)
    return con, f"the PostgreSQL database {connection.info.dbname!r}"


def _open_duckdb(ibis: Any, url: str) -> tuple[Any, str]:
    path = local_path(url)
    if path is None or not path.is_file():
        raise InputError(f"there is no DuckDB file {str(path)!r}; correct the URL.")
    con = ibis.duckdb.connect(path, read_only=True)
    _spill_privately(con)
    return con, path.name


def _open_files(ibis: Any, url: str, texts: bool) -> tuple[Any, str]:
    """Tables are files or folders of files: person.parquet, or drug_exposure/part-0.parquet."""
    kind, path = check_url(url), local_path(url)
    assert path is not None  # these kinds of URL name one
    con = ibis.duckdb.connect()
    _spill_privately(con)
    scan = {"parquet": "read_parquet", "csv": "read_csv_auto"}[kind]
    ends = (".parquet",) if kind == "parquet" else (".csv", ".csv.gz")
    more = ", all_varchar = true" if kind == "csv" and texts else ""
    for name, files in _table_files(path, ends).items():
        view, quoted = name.replace('"', '""'), files.replace("'", "''")
        con.raw_sql(f"""CREATE VIEW "{view}" AS SELECT * FROM {scan}('{quoted}'{more})""")
    return con, f"the folder {path.name!r}" if path.is_dir() else path.name


def _table_files(path: Path, ends: tuple[str, ...]) -> dict[str, str]:
    """{table: file or pattern of files} of a folder; a file is one table."""
    if not path.exists():
        raise InputError(f"there is no folder or file {str(path)!r}; correct the URL.")
    tables = {}
    for entry in sorted(path.iterdir()) if path.is_dir() else [path]:
        if entry.is_dir() and any(p.name.endswith(ends) for p in entry.iterdir()):
            tables[entry.name.lower()] = f"{entry}/*{ends[0]}"
        elif end := next((end for end in ends if entry.name.lower().endswith(end)), None):
            tables[entry.name[: -len(end)].lower()] = str(entry)
    if not tables:
        holds = f"the folder {path.name!r} holds" if path.is_dir() else f"{path.name!r} is"
        raise InputError(f"{holds} no {ends[0]} file; correct the URL.")
    return tables


def _spill_privately(con: Any) -> None:
    """What does not fit into memory goes to a folder of our own, which is removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="mmlca-")
    weakref.finalize(con, folder.cleanup)
    con.raw_sql(f"SET temp_directory = '{folder.name}'")


def _open_spark(ibis: Any, url: str) -> tuple[Any, str]:
    """Tables of the catalog of Spark, or with a path in the URL those of a folder it can read."""
    from pyspark.sql import SparkSession

    place, _, path = url.removeprefix("spark://").partition("/")
    files = _table_files(Path("/", path), (".parquet",)) if path else {}
    local = place.startswith("local")
    builder = SparkSession.builder.appName("mmlca").master(place if local else f"spark://{place}")
    builder = builder.config("spark.sql.execution.arrow.pyspark.enabled", "true")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    if local:
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    session = builder.getOrCreate().newSession()  # with views of its own
    for name, pattern in files.items():
        session.read.parquet(pattern).createTempView(name)
    return ibis.pyspark.connect(session), f"Spark at {place}"


def _one_sentence(error: Exception, name: str, purpose: str) -> Exception:
    """What a driver says, in one sentence of ours."""
    kind = type(error).__name__
    text = " ".join(str(error).split())
    if kind == "Py4JJavaError" and (java := re.search(r"Exception: (.*?) at [\w.$]+\(", text)):
        text = java[1]  # without the stack of the JVM
    said = hide_secrets(text[:300].rstrip(".;"))
    plain = said.casefold()
    if kind in ("InsufficientPrivilege",) or "permission denied" in plain:
        return PermissionError(
            f"this user may not read from {name} ({said}); ask for permission to SELECT."
        )
    no_spark = kind == "Py4JJavaError" and purpose == "connecting"
    if not no_spark and (kind == "AdminShutdown" or any(words in plain for words in _LOST)):
        return ConnectionError(
            f"the connection to {name} was lost ({purpose}: {said}); try again, nothing was "
            "written."
        )
    if no_spark or kind in ("OperationalError", "ConnectionTimeout"):
        return ConnectionError(
            f"cannot connect to {name} ({said}); check the address, the user and that the server "
            "runs."
        )
    return InputError(
        f"{name} cannot answer ({purpose}: {kind}: {said}); check that this user can read the "
        "tables and columns with a query of its own."
    )
