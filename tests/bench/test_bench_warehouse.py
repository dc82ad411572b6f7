"""Records in Parquet files to sequences: in memory and reduced by DuckDB, at growing sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SIZES = [int(float(n)) for n in os.environ.get("MMLCA_BENCH_RECORDS", "3e6,10e6").split(",")]
PER_PATIENT = 60
INGREDIENTS = (1119119, 1151789, 937368, 1186087, 40171288, 42904205, 1314273, 19041065)

RUN = """
import json, resource, sys, time
import pandas as pd
import ehr_prep

def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

tiny = pd.DataFrame({"patient_id": [1], "date": ["2010-01-01"], "drug": ["Humira"]})
ehr_prep.build_sequences(ehr_prep.read_records(tiny))  # compiles
wall, cpu = time.time(), spent()
records = ehr_prep.read_omop(f"parquet:{sys.argv[1]}", reduce=sys.argv[2])
sequences = ehr_prep.build_sequences(records)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"wall": time.time() - wall, "cpu": spent() - cpu, "peak": peak,
                  "patients": len(sequences), "sum": int(sequences.codes.astype(int).sum())}))
"""


def make_folder(folder: Path, n: int) -> None:
    """OMOP tables with `n` drug records: 60 a patient, about four weeks apart."""
    import duckdb

    con = duckdb.connect()
    con.execute("SET memory_limit = '4GB'")
    people = n // PER_PATIENT
    ids = ", ".join(map(str, INGREDIENTS))
    begin = f"DATE '2008-01-01' + (hash(i // {PER_PATIENT}) % 3650)::INT"
    queries = {
        "drug_exposure": f"""
            SELECT (i // {PER_PATIENT} + 1)::BIGINT AS person_id,
                ([{ids}])[1 + (hash(i // {PER_PATIENT} * 7 + i % {PER_PATIENT} // 12) % 8)::INT]
                    AS drug_concept_id,
                {begin} + (i % {PER_PATIENT})::INT * 28 + (hash(i * 3 + 1) % 14)::INT
                    AS drug_exposure_start_date,
                (28 + hash(i * 5) % 5)::INT AS days_supply
            FROM range({people * PER_PATIENT}) t(i)""",
        "person": f"""
            SELECT (i + 1)::BIGINT AS person_id, 8532 AS gender_concept_id, 8527 AS race_concept_id,
                (1940 + hash(i) % 50)::INT AS year_of_birth FROM range({people}) t(i)""",
        "observation_period": f"""
            SELECT (i + 1)::BIGINT AS person_id, DATE '2007-01-01' AS observation_period_start_date,
                DATE '2008-01-01' + (hash(i) % 3650)::INT + 300 + (hash(i * 11) % 1600)::INT
                    AS observation_period_end_date FROM range({people}) t(i)""",
        "concept": f"""
            SELECT c AS concept_id, 'drug ' || c AS concept_name, 'RxNorm' AS vocabulary_id,
                'Ingredient' AS concept_class_id, c::VARCHAR AS concept_code
            FROM unnest([{ids}]) t(c)""",
        "concept_ancestor": f"""
            SELECT c AS ancestor_concept_id, c AS descendant_concept_id
            FROM unnest([{ids}]) t(c)""",
    }
    for name, query in queries.items():
        con.execute(f"COPY ({query}) TO '{folder / name}.parquet' (FORMAT parquet)")
    con.close()


def measure(folder: Path, place: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(folder), place],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.bench
def test_records_in_parquet_files(tmp_path: Path) -> None:
    """Sizes from the environment: MMLCA_BENCH_RECORDS=10e6,30e6,100e6 (2.3 GB free disk)."""
    pytest.importorskip("ibis")
    results = []
    for n in SIZES:
        folder = tmp_path / str(n)
        folder.mkdir()
        make_folder(folder, n)
        found = {"database": measure(folder, "database")}
        if n <= 30_000_000:
            found["memory"] = measure(folder, "memory")
            assert found["memory"]["sum"] == found["database"]["sum"]
        shutil.rmtree(folder)
        for place, numbers in found.items():
            print(
                f"\n{n:,} records, {place}: {numbers['wall']:.0f} s, {numbers['cpu']:.0f} CPU s, "
                f"{numbers['peak'] / 2**30:.1f} GiB, {numbers['patients']:,.0f} patients"
            )
        results.append(found["database"])
    seconds = np.log([r["cpu"] for r in results])
    exponent = (seconds[-1] - seconds[0]) / np.log(SIZES[-1] / SIZES[0])
    print(f"\ngrowth exponent {exponent:.2f}")
    assert exponent <= 1.1
    assert max(r["peak"] for r in results) <= 8 * 2**30
