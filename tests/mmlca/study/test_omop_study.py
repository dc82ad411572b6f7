"""Studies and commands on OMOP databases: the same results, refusals and secrets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal
from omop_data import as_frames, make_tables

import ehr_prep
import mmlca
from ehr_prep.synthetic import write_omop
from mmlca.study.site_data import build_sites, database_hashes, read_labs, read_source
from mmlca.study.study_file import read_study

ibis = pytest.importorskip("ibis")

SECRET = "s3cr3t-pa55"


@pytest.fixture(scope="module")
def cdm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cdm")
    write_omop(ehr_prep.ra_cohort(2, 0.03), folder)
    return folder


def study_file(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(f'name = "Trial"\n{text}')
    return path


def test_prep_from_a_database(cdm: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "sequences.csv"
    said = mmlca_does("prep", "--omop", f"parquet:{cdm / 'VA'}", "--preset", "ra", "--out", out)
    assert "records were mapped by concept_ancestor" in said
    expected = ehr_prep.build_sequences(
        ehr_prep.read_omop(f"parquet:{cdm / 'VA'}", drugs="ra"), preset="ra"
    )
    assert len(mmlca.Sequences.read(out)) == len(expected)
    settings = json.loads(out.with_suffix(".settings.json").read_text())
    assert settings["source"] == "the folder 'VA'"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--omop", "parquet:CDM/nowhere"], "no folder"),
        (["--omop", "parqet:CDM/VA"], "did you mean 'parquet'"),
        (["--omop", "parquet:CDM/VA", "--schema", "cdm"], "no schema 'cdm'"),
        (["--omop", "parquet:CDM/VA", "--cohort", "cohort:7"], "no table cohort"),
        (["--omop", "parquet:CDM/VA", "--condition", "99"], "patient without the condition"),
        (
            ["--omop", "parquet:CDM/VA", "--patient-column", "x"],
            "--patient-column does not go with --omop",
        ),
        (["--omop", f"postgresql://a:{SECRET}@127.0.0.1:1/x"], "holds a password"),
        (["--omop", "postgresql://127.0.0.1:1/x"], "cannot connect"),
        ([], "give exactly one of a file of records, --omop URL and --warehouse URL"),
    ],
)
def test_refusals_leave_nothing_behind(
    cdm: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    if sentence == "cannot connect":
        pytest.importorskip("psycopg")
    out = tmp_path / "new" / "sequences.csv"
    words = [w.replace("CDM", str(cdm)) for w in words]
    said = refusal("prep", *words, "--drugs", "ra", "--out", out)
    assert sentence in said
    assert SECRET not in said
    assert not out.parent.exists()


def test_a_study_of_databases(cdm: Path) -> None:
    path = study_file(
        cdm,
        '[sites.MGB]\nomop = "parquet:MGB"\nlabs = "ESR"\ndrugs = "ra"\n'
        "condition = 80809\n[rules]\nfirst_on_or_after = 2008-01-01\n[privacy]\nmin_count = 1\n",
    )
    study = read_study(path)
    assert study.from_records
    plain = study.plain()["sites"]["MGB"]
    assert (plain["omop"], plain["labs"]) == ("parquet:MGB", "ESR")
    assert study.validated(study.plain()).sites["MGB"].omop == "parquet:MGB"
    sources = {site: read_source(study, site) for site in study.sites}
    data = build_sites(study, sources)
    assert set(read_labs(study, "MGB")["test"]) == {"ESR"}
    hashes = database_hashes(sources, data)
    assert list(hashes) == ["MGB"]
    assert hashes == database_hashes(sources, data)


def test_claims_that_are_not_omop(cdm: Path, tmp_path: Path) -> None:
    """The same sequences from a study with files, one with a warehouse, and the command."""
    cohort = ehr_prep.ra_cohort(2, 0.03)["MGB"]
    tables = {"dispensings": cohort.records, "members": cohort.patients}
    for name, table in tables.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    rules = "[rules]\nfirst_on_or_after = 2008-01-01\n"
    files = '[sites.A]\nrecords = "dispensings.csv"\ndrugs = "ra"\npatients = "members.csv"\n'
    claims = '[sites.A]\nwarehouse = "parquet:."\ndrugs = "ra"\ntable = "dispensings"\n'
    claims += 'patients_table = "members"\n'
    built = []
    for text in (files, claims):
        study = read_study(study_file(tmp_path, text + rules))
        built.append(build_sites(study, {"A": read_source(study, "A")})["A"])
    assert study.plain()["sites"]["A"]["warehouse"] == "parquet:."
    np.testing.assert_array_equal(built[0].codes, built[1].codes)
    pd.testing.assert_frame_equal(built[0].flow, built[1].flow)
    out = tmp_path / "sequences.csv"
    mmlca_does(
        *("prep", "--warehouse", f"parquet:{tmp_path}", "--table", "dispensings"),
        *("--patients-table", "members", "--since", "2008-01-01", "--drugs", "ra", "--out", out),
    )
    np.testing.assert_array_equal(mmlca.Sequences.read(out).codes, built[0].codes)


def test_concept_sets_in_a_study(cdm: Path) -> None:
    (cdm / "jak.json").write_text(
        json.dumps({"items": [{"concept": {"CONCEPT_ID": 42904205}, "includeDescendants": True}]})
    )
    path = study_file(
        cdm,
        '[sites.MGB]\nomop = "parquet:MGB"\n[concepts]\n'
        'TNFi = [1119119, 1151789]\nJAK = ["jak.json"]\n',
    )
    source = read_source(read_study(path), "MGB")
    assert source.states == ("TNFi", "JAK")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('omop = "parquet:MGB"\nrecords = "x.csv"', "exactly one of"),
        (
            'omop = "parquet:MGB"\npatients = "x.csv"',
            "has patients, which does not go with omop",
        ),
        ('omop = "parquet:MGB"\nwhere = {x = "y"}', "has where, which does not go with omop"),
        ('sequences = "x.csv"\nschema = "cdm"', "has schema, which belongs to databases"),
        ('omop = "duckbd:///x"', "did you mean 'duckdb'?"),
        ('omop = "parquet:MGB"\ntable = "claims"', "omop has drug_exposure and drug_era"),
        ('warehouse = "parquet:MGB"\ncohort = "x"', "has cohort, which does not go with warehouse"),
        (f'warehouse = "postgresql://a:{SECRET}@h/x"', "holds a password"),
        ('omop = "parquet:MGB"\nschma = "x"', "did you mean sites.A.schema"),
        (f'omop = "postgresql://a:{SECRET}@h/x"', "holds a password"),
        (f'omop = ["postgresql://a:{SECRET}@h/x"]', "should be a text in quotation marks"),
        (f'omop = "postgresql://h/x"\nlabs = {{x = "password={SECRET}"}}', "labs"),
    ],
)
def test_mistakes_in_a_study_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"study\.toml") as caught:
        read_study(study_file(tmp_path, f"[sites.A]\n{text}\n"))
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_database_that_is_gone(tmp_path: Path) -> None:
    path = study_file(tmp_path, '[sites.A]\nomop = "parquet:nowhere"\n')
    out = tmp_path / "results"
    assert "no folder" in refusal("study", "run", path, "--out", out)
    assert not list(out.glob("*.html"))


def test_a_changed_database_changes_the_hash() -> None:
    def hashes(seed: int, labs: Any = None) -> dict[str, str]:
        records = ehr_prep.read_records(**as_frames(make_tables(seed, 12)))
        source: Any = SimpleNamespace(
            labs=labs, database=object()
        )  # what a database says beside its records
        return database_hashes({"x": source}, {"x": ehr_prep.build_sequences(records)})

    labs = pd.DataFrame({"value": [7.0]})
    assert hashes(1) == hashes(1)
    assert len({hashes(1)["x"], hashes(2)["x"], hashes(1, labs)["x"]}) == 3


@pytest.mark.slow
def test_the_demonstration_on_omop_tables(tmp_path: Path) -> None:
    small = ("--scale", 0.1, "--no-progress", "--json")
    files = json.loads(mmlca_does("demo", "--out", tmp_path / "files", *small))
    omop = json.loads(mmlca_does("demo", "--omop", "--out", tmp_path / "omop", *small))
    assert omop["n_clusters"] == files["n_clusters"]
    assert omop["numbers"] == files["numbers"]
