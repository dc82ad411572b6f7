"""A first look at files, and the study of another disease from them, in the same one command."""

from __future__ import annotations

import json
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import invoke, mmlca_does, refusal
from paths import ROOT, SHARED

import ehr_prep
from mmlca.study import read_study, run_study
from mmlca.study.site_data import read_labs, read_site

EXAMPLE = ROOT / "examples/diabetes_study"
SCRIPT = runpy.run_path(str(EXAMPLE / "make_data.py"))
FEW = {
    "classes": {"number": 3},
    "pseudo_sites": {"per_site": 1},
    "model": {"n_init": 4, "prior": 1e-4},
    "inference": {"simulations": 9},
    "outputs": {"bootstrap": 5, "figures": False, "lab": None},
    "table_one": {"variables": ("age", "sex")},
}


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a small cohort, made by its own script."""
    folder = tmp_path_factory.mktemp("diabetes") / "study"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data"))
    SCRIPT["write_cohort"](SCRIPT["diabetes_cohort"](seed=1, scale=0.08), folder / "data")
    return folder


def test_the_cohort_is_the_same_for_the_same_seed_and_read_as_it_was_made(
    study_folder: Path,
) -> None:
    cohort = SCRIPT["diabetes_cohort"](seed=1, scale=0.08)
    study = read_study(study_folder / "study.toml")
    states = set()
    for site, data in cohort.items():
        sequences = read_site(study, site)
        assert sequences.account is not None
        assert len(sequences.account.unmapped) == 0, site  # the map lists what is no drug
        assert len(sequences) == len(data.patients)
        states |= set(sequences.states)
        labs = read_labs(study, site)
        assert labs["value"].astype(float).to_list() == data.labs["value"].to_list()
        assert (labs["date"] == pd.to_datetime(data.labs["date"])).all()
    assert {
        "metformin",
        "metformin+DPP-4",
        "metformin+insulin",
        "insulin",
        "none",
        "dead",
    } <= states
    again = SCRIPT["diabetes_cohort"](seed=1, scale=0.08)
    assert again["Boston"].records.equals(cohort["Boston"].records)
    assert cohort["Boston"].patients["death_date"].notna().any()


def test_a_diabetes_study_runs_in_the_same_command(study_folder: Path, tmp_path: Path) -> None:
    study = read_study(study_folder / "study.toml")
    content = run_study(study.changed(**FEW), tmp_path)
    assert content["sites"] == ["Aachen", "Boston", "Columbus"]
    assert content["n_clusters"] == 3
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "HbA1c (%)" in report
    inputs = json.loads((tmp_path / "provenance.json").read_text())["inputs"]
    assert "Columbus.records (medications_2014.csv.gz)" in inputs
    assert "records.drugs" in inputs


def test_unmapped_drugs_are_a_table_and_a_caution(study_folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "drugs.csv"
    kept = [
        li for li in (study_folder / "drugs.csv").read_text().splitlines() if "-,name" not in li
    ]
    short.write_text("\n".join(kept) + "\n")
    study = read_study(study_folder / "study.toml", site="Aachen").alone("Aachen")
    study = study.changed(**FEW, records={"drugs": str(short)}, privacy={"min_count": 11})
    content = run_study(study, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out/tables/unmapped_Aachen.csv")
    whole = pd.read_csv(tmp_path / "out/patients/Aachen_unmapped.csv")
    assert "Atorvastatin 20 mg" in set(table["drug"])
    assert whole["patients"].min() > 0
    (caution,) = (c for c in content["careful"] if c.startswith("At Aachen, "))
    assert "% of the records of patients with a known drug" in caution
    assert "tables/unmapped_Aachen.csv" in caution


# --- init ---------------------------------------------------------------------------------


def test_init_looks_at_the_files_and_what_it_writes_runs(
    study_folder: Path, tmp_path: Path
) -> None:
    data = study_folder / "data"
    path = tmp_path / "new" / "study.toml"
    command = (
        f"study init {path} --drugs {study_folder}/drugs.csv "
        f"--records Boston={data}/Boston/pharmacy.xlsx "
        f"--patients Boston={data}/Boston/patients.xlsx --labs Boston={data}/Boston/labs.xlsx "
        f"--records Columbus={data}/Columbus/medications_*.csv.gz "
        f"--records Aachen={data}/Aachen/verordnungen.csv"
    )
    done = invoke(command)
    assert done.exit_code == 2  # the drug of Aachen is in a column that init does not know
    assert not path.exists()
    assert "Aachen: no column of verordnungen.csv looks like the date or the drug" in done.stderr
    assert "as in --date-column Aachen=Datum and --drug-column Aachen=Arzneimittel." in done.stderr
    done = invoke(command, "--date-column", "Aachen=Datum", "--drug-column", "Aachen=Arzneimittel")
    assert done.exit_code == 0
    assert "pharmacy.xlsx (sheet data)" in done.stdout
    assert "  patients  patient = 'patient_id', follow_up_end = 'follow_up_end'" in done.stdout
    assert "Flow so far:" in done.stdout
    assert "Follow-up ends on the date in the patients' table" in done.stdout
    assert "10 of 80 patients, one per line (ids are not printed; these are single" in done.stdout
    assert "syn-" not in done.stdout  # as the ids of Columbus begin
    text = path.read_text(encoding="utf-8")
    assert "# file pharmacy.xlsx, sheet data" in text
    assert " patients, " not in text  # a study file goes to other sites
    study = read_study(path)
    assert len(study.sites["Columbus"].records) == 9  # type: ignore[arg-type]
    assert study.sites["Boston"].records_columns.drug == "medication_name"
    assert study.sites["Boston"].patients_columns.death_date is not None
    assert study.sites["Boston"].labs_columns.value == "result"
    assert len(read_site(study, "Boston")) == 80
    assert (study.sites["Aachen"].encoding, study.sites["Aachen"].delimiter) == (
        "cp1252",
        "semicolon",
    )
    assert study.sites["Aachen"].records_columns.patient == "PatNr"
    assert len(read_site(study, "Aachen")) == 96


def test_init_says_all_that_it_needs_at_once(tmp_path: Path) -> None:
    """It named one column of one table at a time, and ended with exit code 0."""
    (tmp_path / "a.csv").write_text("Kennung,Zeit,Mittel\n1,2010-01-05,Humira\n")
    (tmp_path / "b.csv").write_text("id,date,drug\n1,2010-01-05,Humira\n")
    (tmp_path / "p.csv").write_text("Nummer,Tod\n1,2012-01-05\n")
    (tmp_path / "l.csv").write_text("Nummer,Tag,Wert\n1,2010-01-05,7\n")
    path = tmp_path / "study.toml"
    command: list[Any] = [
        "study",
        "init",
        path,
        "--drugs",
        "ra",
        "--records",
        f"A={tmp_path}/a.csv",
    ]
    command += ["--patients", f"A={tmp_path}/p.csv", "--labs", f"A={tmp_path}/l.csv"]
    text = refusal(*command)
    named = shlex.split(
        "--patient-column Kennung --date-column Zeit --drug-column Mittel "
        "--patients-column patient=Nummer "
        "--labs-column patient=Nummer --labs-column date=Tag --labs-column value=Wert"
    )
    for name, value in zip(named[::2], named[1::2], strict=True):
        assert f"{name} {value}" in text
    assert not path.exists()
    said = mmlca_does(*command, *named, "--patients-column", "death_date=Tod")
    assert "death_date = 'Tod'" in said
    site = read_study(path).sites["A"]
    assert site.records_columns.patient == "Kennung"
    assert site.patients_columns.death_date == "Tod"
    assert site.labs_columns.value == "Wert"
    of_site = [f"A={part}" if number % 2 else part for number, part in enumerate(named)]
    both = [*command, "--records", f"B={tmp_path}/b.csv", "--force"]
    done = invoke(*both)
    assert done.exit_code == 2
    assert done.stdout.startswith("--- B\nRecords: 1 records")
    text = done.stderr
    for name, value in zip(of_site[::2], of_site[1::2], strict=True):
        assert f"{name} {value}" in text
    mmlca_does(*both, *of_site)
    assert set(read_study(path).sites) == {"A", "B"}


def test_a_study_of_files_with_different_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,date,drug\n1,2010-01-05,Humira\n2,2010-01-05,Humira\n")
    (tmp_path / "b.csv").write_text("member,Zeit,drug,supply\n1,2010-09-05,Orencia,200\n")
    path = tmp_path / "study.toml"
    command = f"study init {path} --drugs ra --records A={tmp_path}/*.csv"
    assert "as in --file-column b.csv:date=Zeit." in refusal(command)
    mmlca_does(command, "--file-column", "b.csv:date=Zeit")
    assert '[sites.A.file_columns."b.csv"]\npatient = "member"' in path.read_text()
    study = read_study(path)
    assert study.sites["A"].file_columns["b.csv"].supply == "supply"
    states = read_site(study, "A").to_frame().iloc[0].to_list()
    assert states[:3] == ["TNFi", "TNFi", "CTLA4-Ig"]
    said = mmlca_does(
        f"prep {tmp_path}/a.csv {tmp_path}/b.csv --out {tmp_path}/s.csv --drugs ra "
        "--file-column b.csv:date=Zeit"
    )
    assert "  columns   b.csv: patient = 'member', date = 'Zeit'" in said
    assert "file without an end or a supply" in said
    path.write_text(path.read_text().replace('date = "Zeit"', 'dates = "Zeit"'))
    with pytest.raises(ValueError, match=r"file_columns\.b\.csv\.dates is not known"):
        read_study(path)


def test_init_writes_a_file_whose_rules_leave_nobody_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,date,drug\n1,2005-01-05,Humira\n")
    path = tmp_path / "study.toml"
    done = invoke("study", "init", path, "--records", f"A={tmp_path}/a.csv", "--preset", "ra")
    assert done.exit_code == 2
    assert "but its rules leave no sequences. A: none of the 1 patients" in done.stderr
    assert read_study(path).sites["A"].records_columns.patient == "id"


def test_sites_in_one_file_and_files_without_a_name(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "hospital": ["MGB", "VA"] * 30,
            "patient_id": [i // 2 % 15 for i in range(60)],
            "date": [f"2010-0{1 + i % 9}-15" for i in range(60)],
            "drug": ["Humira", "Orencia", "Rinvoq"] * 20,
        }
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame.drop(columns="hospital").to_csv(tmp_path / "alone.csv", index=False)
    path = tmp_path / "study.toml"
    mmlca_does(
        f"study init {path} --drugs ra --records {tmp_path}/all.csv --records {tmp_path}/alone.csv"
    )
    study = read_study(path)
    assert list(study.sites) == ["MGB", "VA", "alone"]
    assert study.sites["VA"].where == {"hospital": "VA"}
    built = read_site(study, "VA")
    expected = ehr_prep.build_sequences(
        ehr_prep.read_records(frame[frame["hospital"] == "VA"].drop(columns="hospital"), drugs="ra")
    )
    assert built == expected


def test_what_init_refuses(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,date,drug\n1,2010-01-05,Humira\n")
    path = tmp_path / "study.toml"
    for arguments, words in {
        ("--records", "MGB=none.csv"): "there is no file 'none.csv' (--records MGB=none.csv)",
        ("--records", f"MGB={tmp_path}"): "is a folder; name the files in it",
        ("--records", f"A={tmp_path}/r.csv", "--patients", f"B={tmp_path}/r.csv"): "of B, but",
        ("--patients", f"B={tmp_path}/r.csv"): "--patients goes with --records",
        ("--records", f"A={tmp_path}/r.csv", "--site", "A"): "leave --site out",
    }.items():
        assert words in refusal("study", "init", path, *arguments), arguments
    assert not path.exists()
    here = f"A={tmp_path}/r.csv"
    assert "r.csv" in refusal("study", "init", tmp_path / "r.csv", "--force", "--records", here)


@pytest.mark.skipif(not (SHARED / "omop").exists(), reason="no reference data")
def test_exports_of_others_need_no_code(tmp_path: Path) -> None:
    omop, synthea = SHARED / "omop", SHARED / "synthea"
    (tmp_path / "drugs.csv").write_text("drug,class\nlisinopril,ACE\nsimvastatin,statin\n")
    said = mmlca_does(
        f"study init {tmp_path}/study.toml --drugs {tmp_path}/drugs.csv --drug-names "
        f"{omop}/concept.parquet --records OMOP={omop}/drug_exposure.parquet --patients "
        f"OMOP={omop}/person.parquet --labs OMOP={omop}/measurement.parquet --records "
        f"Synthea={synthea}/medications.csv --patients Synthea={synthea}/patients.csv"
    )
    assert "drug = 'drug_concept_id'" in said
    assert "drug = 'DESCRIPTION'" in said
    assert set(read_study(tmp_path / "study.toml").sites) == {"OMOP", "Synthea"}
    for file, more in (
        (synthea / "medications.csv", ()),
        (omop / "drug_exposure.parquet", ("--drug-names", omop / "concept.parquet")),
    ):
        command = f"prep {file} --drugs {tmp_path}/drugs.csv --out {tmp_path}/s.csv"
        said = mmlca_does(f"{command} --since 1950-01-01", *more)
        assert "2 states" in said or "3 states" in said
        assert (tmp_path / "s.unmapped.csv").exists()
