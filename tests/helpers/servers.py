"""Database servers for the tests, each started once if its programs are here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs: on the path, or where Debian keeps them."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own; everyone may connect from this computer."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'mmlca[postgres]'")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's programs are not here")
    as_user: list[str] = []
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # initdb refuses root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser")
        as_user = ["runuser", "-u", "postgres", "--"]
    folder = tempfile.mkdtemp(prefix="mmlca-pg-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *words: str) -> None:
        subprocess.run(
            [*as_user, str(programs / program), "-D", f"{folder}/data", *words],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            cwd="/",
        )

    settings = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        if as_user:
            shutil.chown(folder, "postgres")
        run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", settings, "start")
    except (subprocess.SubprocessError, OSError, LookupError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL does not start here: {error}")
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An Ibis connection to a Spark session in this process."""
    ibis = pytest.importorskip("ibis", reason="Ibis is not installed")
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'mmlca[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not here")
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
    }
    builder = SparkSession.builder.master("local[2]").appName("mmlca tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield ibis.pyspark.connect(session)
    session.stop()
