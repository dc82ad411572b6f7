"""Records in Parquet files to sequences, at growing sizes, where all or 2 % of the drugs count.

Three ways: as an OMOP database (`read_omop`), from the files without one (`read_records`), and a
plain DuckDB query, written by hand, that counts usable records per patient, window and class.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from comparisons import Compare
from memory import PEAK

SIZES = [int(float(n)) for n in os.environ.get("MMLCA_BENCH_RECORDS", "3e6,10e6").split(",")]
PER_PATIENT = 60
INGREDIENTS = (1119119, 1151789, 937368, 1186087, 40171288, 42904205, 1314273, 19041065)

CODE = """CASE drug_concept_id WHEN 1119119 THEN 0 WHEN 1151789 THEN 0 WHEN 937368 THEN 0
    WHEN 1186087 THEN 1 WHEN 40171288 THEN 2 WHEN 42904205 THEN 3 WHEN 1314273 THEN 4 ELSE 0 END"""
PLAIN = f"""
WITH usable AS (
    SELECT DISTINCT d.person_id AS who, drug_exposure_start_date AS date, drug_concept_id AS drug,
        {CODE} AS code, drug_exposure_start_date + days_supply - 1 AS last
    FROM read_parquet('FOLDER/drug_exposure.parquet') d
    JOIN read_parquet('FOLDER/observation_period.parquet') o ON d.person_id = o.person_id
        AND drug_exposure_start_date BETWEEN o.observation_period_start_date
        AND o.observation_period_end_date
    WHERE drug_concept_id IN {INGREDIENTS}),
patients AS (SELECT who, min(date) AS first FROM usable GROUP BY who),
placed AS (
    SELECT usable.*, datesub('month', first, date) // 3 AS win
    FROM usable JOIN patients USING (who))
SELECT who, win::SMALLINT AS win, code::TINYINT AS code, count(*)::INT AS n, min(date) AS begin,
    max(date) AS stop, max(last) AS covered
FROM placed WHERE win < 16 GROUP BY ALL
"""

START = """
import json, resource, sys, time
import pandas as pd
import ehr_prep

def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

folder, query = sys.argv[1:]
tiny = pd.DataFrame({"patient_id": [1], "date": ["2010-01-01"], "drug": ["Humira"]})
ehr_prep.build_sequences(ehr_prep.read_records(tiny, drugs="ra"))  # compiles
wall, cpu = time.time(), spent()
"""
END = """
print(json.dumps({"wall": time.time() - wall, "cpu": spent() - cpu, "peak": peak(), **result}))
"""
BUILD = """
sequences = ehr_prep.build_sequences(records)
result = {"patients": len(sequences), "records": int(sequences.account.n_records.sum()),
          "sum": int(sequences.codes.astype(int).sum())}
"""
WAYS = {
    "read_omop": """
records = ehr_prep.read_omop(f"parquet:{folder}", drugs="ra")"""
    + BUILD,
    "read_records": """
records = ehr_prep.read_records(
    f"{folder}/drug_exposure.parquet", ehr_prep.RA_DRUGS.only("omop"), drug="drug_concept_id",
    observation=f"{folder}/observation_period.parquet")"""
    + BUILD,
    "plain query": """
import duckdb, pyarrow.compute as pc
con = duckdb.connect()
con.execute(f"SET temp_directory = '{folder}'")
counts = con.execute(query.replace("FOLDER", folder)).to_arrow_table()
result = {"patients": len(pc.unique(counts["who"])), "records": pc.sum(counts["n"]).as_py()}
""",
}
ONE_COMPUTER = 30_000_000  # beyond, records are not held in memory


SHARES = {1.0: "all mapped", 0.02: "2 % mapped"}
OTHERS = 1_000  # further drugs, which the map does not know


def make_folder(folder: Path, n: int, share: float) -> None:
    """OMOP tables with `n` drug records: 60 a patient, about four weeks apart.

    `share` of the records are of drugs that the map knows.
    """
    import duckdb

    con = duckdb.connect()
    con.execute("SET memory_limit = '4GB'")
    people = n // PER_PATIENT
    ids = ", ".join(map(str, INGREDIENTS))
    begin = f"DATE '2008-01-01' + (hash(i // {PER_PATIENT}) % 3650)::INT"
    queries = {
        "drug_exposure": f"""
            SELECT (i // {PER_PATIENT} + 1)::BIGINT AS person_id,
                CASE WHEN hash(i * 13) % 1000 < {1000 * share} THEN
                    ([{ids}])[1 + (hash(i // {PER_PATIENT} * 7 + i % {PER_PATIENT} // 12) % 8)::INT]
                    ELSE 50000000 + hash(i * 17) % {OTHERS} END::INT AS drug_concept_id,
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
            FROM (SELECT unnest([{ids}]) UNION ALL
                SELECT 50000000 + range FROM range({OTHERS})) t(c)""",
        "concept_ancestor": f"""
            SELECT c AS ancestor_concept_id, c AS descendant_concept_id
            FROM unnest([{ids}]) t(c)""",
    }
    for name, query in queries.items():
        con.execute(f"COPY ({query}) TO '{folder / name}.parquet' (FORMAT parquet)")
    con.close()


def measure(folder: Path, way: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK + START + WAYS[way] + END, str(folder), PLAIN],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.bench
@pytest.mark.parametrize("share", SHARES)
def test_records_in_parquet_files(compare: Compare, tmp_path: Path, share: float) -> None:
    """Sizes from the environment: MMLCA_BENCH_RECORDS=10e6,20e6,100e6 (2.3 GB free disk)."""
    pytest.importorskip("ibis")
    ours, *others = WAYS
    results = []
    for n in SIZES:
        folder = tmp_path / str(n)
        folder.mkdir()
        make_folder(folder, n, share)
        results.append(measure(folder, ours))
        rows = {ours: results[-1]}
        for way in others:
            if n > ONE_COMPUTER and way != "plain query":
                continue
            rows[way] = measure(folder, way)
            for name in rows[way].keys() & {"patients", "records", "sum"}:
                assert rows[way][name] == rows[ours][name], f"{way}: {name}"
        shutil.rmtree(folder)
        compare(
            f"{n:,} records of an OMOP folder to sequences, {SHARES[share]} (`read_omop`)",
            rows[ours]["cpu"],
            "DuckDB",
            rows["plain query"]["cpu"],
            "plain query that counts, without states",
        )
        for way, row in rows.items():
            print(
                f"\n{n:,} records, {SHARES[share]}, {way}: {row['wall']:.1f} s, "
                f"{row['cpu']:.2f} CPU s, {row['peak'] / 2**30:.1f} GiB, "
                f"{row['patients']:,.0f} patients",
                flush=True,
            )
    seconds = np.log([r["cpu"] for r in results])
    if len(SIZES) > 1:
        exponent = (seconds[-1] - seconds[0]) / np.log(SIZES[-1] / SIZES[0])
        print(f"\ngrowth exponent {exponent:.2f}")
        assert exponent <= 1.1
    assert max(r["peak"] for r in results) <= 8 * 2**30
