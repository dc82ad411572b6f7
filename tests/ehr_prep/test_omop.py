"""OMOP databases: concepts, entry, persons and labs, on small tables made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from paths import SHARED

import ehr_prep
from ehr_prep.databases.concepts import Resolved, concepts_of, read_sets, resolve
from ehr_prep.databases.connect import Database
from ehr_prep.synthetic import write_omop

ibis = pytest.importorskip("ibis")

A, B, PRODUCT, BOTH, ATC_A, ATC_ALL = 11, 12, 21, 22, 31, 32
DRUGS = {"A": [A], "B": [B]}


def days(*texts: str | None) -> Any:
    return pd.to_datetime(pd.Series(texts)).dt.date


def tables(**changed: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """Two ingredients, a product of each and of both; three persons."""
    concept = pd.DataFrame(
        [
            (A, "alpha", "RxNorm", "Ingredient", "a1"),
            (B, "beta", "RxNorm", "Ingredient", "b1"),
            (PRODUCT, "alpha 5 MG Oral Tablet", "RxNorm", "Clinical Drug", "p1"),
            (BOTH, "alpha 5 MG / beta 2 MG Oral Tablet", "RxNorm", "Clinical Drug", "p2"),
            (ATC_A, "alpha; oral", "ATC", "ATC 5th", "X01AA01"),
            (ATC_ALL, "all of them", "ATC", "ATC 1st", "X01"),
            (8507, "MALE", "Gender", "Gender", "M"),
            (99, "headache", "SNOMED", "Disorder", "h"),
            (98, "migraine", "SNOMED", "Disorder", "m"),
        ],
        columns=["concept_id", "concept_name", "vocabulary_id", "concept_class_id", "concept_code"],
    )
    below = [(A, A), (B, B), (A, PRODUCT), (A, BOTH), (B, BOTH), (99, 98), (99, 99)]
    below += [(ATC_A, PRODUCT), (ATC_A, BOTH), (ATC_ALL, PRODUCT), (ATC_ALL, BOTH), (ATC_ALL, B)]
    made = {
        "concept": concept,
        "concept_ancestor": pd.DataFrame(
            below, columns=["ancestor_concept_id", "descendant_concept_id"]
        ),
        "concept_relationship": pd.DataFrame(
            {
                "concept_id_1": [PRODUCT, BOTH, BOTH],
                "concept_id_2": [A, A, B],
                "relationship_id": ["RxNorm has ing"] * 3,
            }
        ),
        "person": pd.DataFrame(
            {
                "person_id": [1, 2, 3],
                "gender_concept_id": [8507, 8532, 0],
                "year_of_birth": pd.array([1950, 1960, None], dtype="Int64"),
                "month_of_birth": pd.array([3, None, None], dtype="Int64"),
                "day_of_birth": pd.array([31, None, None], dtype="Int64"),
                "race_concept_id": [8527, 0, 0],
                "gender_source_value": ["M", "F", "?"],
                "race_source_value": ["w", "Martian", None],
            }
        ),
        "observation_period": pd.DataFrame(
            {
                "person_id": [1, 1, 2, 3],
                "observation_period_start_date": days(
                    "2009-01-01", "2011-01-01", *["2009-01-01"] * 2
                ),
                "observation_period_end_date": days(
                    "2010-03-31", "2011-12-31", "2010-12-31", "2010-06-30"
                ),
            }
        ),
        "death": pd.DataFrame({"person_id": [2], "death_date": days("2010-11-05")}),
        "drug_exposure": pd.DataFrame(
            {
                "person_id": [1, 1, 1, 2, 2, 3, 3],
                "drug_concept_id": [PRODUCT, BOTH, 0, B, B, A, 77],
                "drug_exposure_start_date": days(
                    "2010-01-05",
                    "2011-02-01",
                    "2010-02-01",
                    "2010-02-03",
                    "2010-02-03",
                    "2010-03-01",
                    "2010-03-02",
                ),
                "drug_exposure_end_date": days(
                    "2010-02-03", "2011-03-02", None, "2010-03-04", "2010-03-04", "2010-03-30", None
                ),
                "days_supply": pd.array([30, 30, None, 30, 30, 30, 0], dtype="Int64"),
            }
        ),
        "condition_occurrence": pd.DataFrame(
            {
                "person_id": [1, 2, 2],
                "condition_concept_id": [98, 99, 98],
                "condition_start_date": days("2010-06-01", "2009-05-01", "2009-01-01"),
            }
        ),
        "measurement": pd.DataFrame(
            {
                "person_id": [1, 1, 3],
                "measurement_concept_id": [3015183, 3020460, 3015183],
                "measurement_date": days("2010-01-01", "2010-02-01", "2010-02-11"),
                "value_as_number": [12.5, 3.0, 2.0],
                "operator_concept_id": [0, 0, 4171756],
            }
        ),
    }
    made |= changed  # type: ignore[arg-type]
    return {name: table for name, table in made.items() if table is not None}


def connect(**changed: pd.DataFrame | None) -> Any:
    con = ibis.duckdb.connect()
    for name, table in tables(**changed).items():
        con.create_table(name, table)
    return con


def read(drugs: Any = None, con: Any = None, **options: Any) -> ehr_prep.Records:
    return ehr_prep.read_omop(con or connect(), drugs=drugs or DRUGS, **options)


def resolved(drugs: Any = None, con: Any = None) -> Resolved:
    """The concepts that the records use, without reading the records."""
    used = {PRODUCT: 1, BOTH: 1, B: 2, A: 1, 0: 1, 77: 1}
    return resolve(Database(con or connect()), drugs or DRUGS, used)


def classes(drugs: Any = None, con: Any = None) -> dict[int, str]:
    """{concept: class} of those that have one."""
    found = resolved(drugs, con)
    table = found.drugs.classify(found.labels.values())
    named = zip(found.labels, table["class"], strict=True)
    return {concept: name for concept, name in named if name is not None}


def dropped(records: ehr_prep.Records) -> dict[str, tuple[int, int]]:
    flow = records.flow[records.flow["records"] > 0]
    counts = zip(flow["patients"], flow["records"], strict=True)
    return dict(zip(flow["reason"], counts, strict=True))


EMPTY = tables()["concept_ancestor"].iloc[:0]
EVERY = {A: "A", B: "B", PRODUCT: "A", BOTH: "A + B"}
USED = {concept: EVERY[concept] for concept in (A, B, PRODUCT, BOTH)}


# --- concepts -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records() -> ehr_prep.Records:
    return read(labs=["ESR", "CRP"])


def test_ingredients_through_ancestors(records: ehr_prep.Records) -> None:
    assert classes() == USED
    ways = records.settings["concepts"]
    assert ways == {
        "concept_ancestor": 5,
        "concept_relationship": 0,
        "concept_name": 0,
        "concept 0": 1,
        "unmapped": 1,
    }
    assert dropped(records) == {"drug not in the map": (0, 2), "repeats another record": (0, 1)}


@pytest.mark.parametrize("absent", [EMPTY, None])
def test_without_ancestors_through_relationships(absent: pd.DataFrame | None) -> None:
    con = connect(concept_ancestor=absent)
    assert classes(con=con) == USED
    assert resolved(con=con).records["concept_relationship"] == 5


def test_through_several_relationships() -> None:
    steps = pd.DataFrame(
        [
            (PRODUCT, 51, "Tradename of"),
            (51, 52, "Consists of"),
            (52, A, "RxNorm has ing"),
            (52, 51, "Constitutes"),
            (BOTH, 53, "Has brand name"),
            (53, B, "Brand name of"),
        ],
        columns=["concept_id_1", "concept_id_2", "relationship_id"],
    )
    con = connect(concept_ancestor=EMPTY, concept_relationship=steps)
    assert classes(con=con) == {A: "A", B: "B", PRODUCT: "A"}


def test_without_relationships_by_name() -> None:
    con = connect(concept_ancestor=EMPTY, concept_relationship=None)
    assert classes({"alpha": "A", "beta": "B"}, con) == USED
    records = resolved({"alpha": "A", "beta": "B"}, con).records
    assert records["concept_name"] == 2
    assert records["concept_relationship"] == 3  # ingredients themselves


def test_atc_codes_and_prefixes() -> None:
    assert classes({"A": ["X01AA01"]}) == {PRODUCT: "A", BOTH: "A"}
    assert classes({"all": ["X01*"]}) == {PRODUCT: "all", BOTH: "all", B: "all"}
    # the longer prefix counts, as in texts
    narrow = classes({"all": ["X01*"], "A": ["X01AA*"]})
    assert narrow == {PRODUCT: "A", BOTH: "A", B: "all"}


def atlas(path: Path, *items: tuple[int, bool, bool]) -> Path:
    listed = [
        {
            "concept": {"CONCEPT_ID": concept},
            "includeDescendants": descendants,
            "isExcluded": excluded,
        }
        for concept, descendants, excluded in items
    ]
    path.write_text(json.dumps({"items": listed}))
    return path


def test_concept_sets_of_atlas(tmp_path: Path) -> None:
    everything = atlas(tmp_path / "a.json", (A, True, False))
    assert classes({"A": [everything]}) == {A: "A", PRODUCT: "A", BOTH: "A"}
    alone = atlas(tmp_path / "b.json", (A, False, False))
    assert classes({"A": [str(alone)]}) == {A: "A"}
    without = atlas(tmp_path / "c.json", (A, True, False), (BOTH, False, True))
    assert classes({"A": [without]}) == {A: "A", PRODUCT: "A"}
    below = atlas(tmp_path / "d.json", (A, True, False), (B, True, True))
    assert classes({"A": [below]}) == {A: "A", PRODUCT: "A"}
    # what one set excludes may be in another
    assert classes({"A": [below], "B": [B]}) == {A: "A", PRODUCT: "A", BOTH: "B", B: "B"}
    definition = tmp_path / "definition.json"
    sets = [
        {"name": name, "expression": json.loads(path.read_text())}
        for name, path in (
            ("first", alone),
            ("second", atlas(tmp_path / "e.json", (B, True, False))),
        )
    ]
    definition.write_text(json.dumps({"ConceptSets": sets}))
    assert read_sets(definition)[0].states == ("first", "second")


def test_mapped_concepts_of_atlas(tmp_path: Path) -> None:
    """A source concept belongs to a set that asks for those that map to its concepts."""
    relations = pd.DataFrame(
        {"concept_id_1": [77], "concept_id_2": [PRODUCT], "relationship_id": ["Maps to"]}
    )
    con = connect(concept_relationship=relations)
    path = atlas(tmp_path / "a.json", (A, True, False))
    assert 77 not in classes({"A": [path]}, con)
    content = json.loads(path.read_text())
    content["items"][0]["includeMapped"] = True
    path.write_text(json.dumps(content))
    assert classes({"A": [path]}, con) == {A: "A", PRODUCT: "A", BOTH: "A", 77: "A"}
    content["items"][0]["includeDescendants"] = False
    path.write_text(json.dumps(content))
    assert classes({"A": [path]}, con) == {A: "A"}


def test_conditions_of_atlas(tmp_path: Path) -> None:
    def concepts(*lines: tuple[int, bool, bool]) -> list[int]:
        _, items = read_sets({"condition": [atlas(tmp_path / "c.json", *lines)]})
        return concepts_of(Database(connect()), items)

    assert concepts((99, True, False)) == [98, 99]
    assert concepts((99, False, False)) == [99]
    assert concepts((99, True, False), (98, False, True)) == [99]
    assert concepts((98, False, False), (99, False, True)) == [98]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"items": [{"concept": {}}]}', '{"items": 3}'])
def test_other_files_are_no_concept_sets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "set.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"set\.json is not a concept set|includes no concept"):
        read_sets({"A": [path]})


def test_a_concept_set_without_descendants() -> None:
    with pytest.raises(ValueError, match=r"concept set of 'C' \('4711'\) has no descendants"):
        resolved({"A": [A], "C": [4711]})
    with pytest.raises(ValueError, match=r"concept set of 'C' \('Z99\*'\) has no descendants"):
        resolved({"A": [A], "C": ["Z99*"]})
    with pytest.raises(ValueError, match="'C' includes no concept"):
        resolved({"A": [A], "C": []})
    unused = connect(concept_ancestor=EMPTY)  # the concept exists, only no record has it
    assert resolved({"A": [A], "C": [99]}, unused).drugs.states == ("A", "C")


# --- entry ----------------------------------------------------------------------------------


def test_entry_by_condition() -> None:
    records = read(condition=99, labs={"own": [3020460]})
    assert list(records.ids) == [1, 2]
    assert records.labs is not None
    assert records.labs["test"].to_list() == ["own"]
    assert dropped(records) == {
        "drug not in the map": (0, 2),
        "patient without the condition": (1, 1),
        "before the condition": (0, 1),
        "repeats another record": (0, 1),
    }


def test_entry_by_cohort() -> None:
    rows = pd.DataFrame(
        {
            "cohort_definition_id": [7, 7, 8],
            "subject_id": [1, 1, 3],
            "cohort_start_date": days("2010-01-01", "2011-01-01", "2010-01-01"),
            "cohort_end_date": days("2010-02-28", "2012-01-01", "2010-03-15"),
        }
    )
    records = read(con=connect(cohort=rows), cohort=7)
    assert list(records.ids) == [1]
    assert dropped(records)["outside the observation periods"] == (0, 1)  # after the first exit
    follow_up = ehr_prep.build_sequences(records).patients["follow_up_end"]
    assert [str(day)[:10] for day in follow_up] == ["2010-02-28"]
    with pytest.raises(ValueError, match="no definition 'x'"):
        read(con=connect(cohort=rows), cohort="cohort:x")
    with pytest.raises(ValueError, match="one of the two"):
        read(cohort=7, condition=99)


@pytest.mark.slow
def test_entry_by_a_whole_cohort_table() -> None:
    rows = pd.DataFrame(
        {
            "subject_id": [1, 3],
            "cohort_start_date": days("2010-01-01", "2010-01-01"),
            "cohort_end_date": days("2010-02-28", "2010-03-15"),
        }
    )
    records = read(con=connect(cohort=rows, observation_period=None), cohort="cohort")
    follow_up = ehr_prep.build_sequences(records).patients["follow_up_end"]
    assert [str(day)[:10] for day in follow_up] == ["2010-02-28", "2010-03-15"]


def test_drug_eras() -> None:
    eras = pd.DataFrame(
        {
            "person_id": [1],
            "drug_concept_id": [B],
            "drug_era_start_date": days("2010-01-01"),
            "drug_era_end_date": days("2010-09-30"),
        }
    )
    records = read(con=connect(drug_era=eras), table="drug_era")
    assert records.end is not None
    assert (records.end - records.date).tolist() == [272]
    empty = connect(drug_era=eras)
    empty.raw_sql("DELETE FROM drug_era")
    with pytest.raises(ValueError, match="drug_era of the duckdb database has no rows"):
        read(con=empty, table="drug_era")


# --- persons and labs -----------------------------------------------------------------------


def test_persons(records: ehr_prep.Records) -> None:
    people = records.patients
    assert people is not None
    assert [str(day)[:10] for day in people["birth_date"]] == ["1950-03-31", "1960-01-01", "NaT"]
    assert people["sex"].to_list() == ["MALE", "FEMALE", "?"]
    assert people["race"].to_list() == ["White", "Martian", None]
    assert [str(day)[:10] for day in people["death_date"]] == ["NaT", "2010-11-05", "NaT"]

    issues = records.issues.set_index("issue")["n"].to_dict()
    assert issues == {
        "repeats another record": 1,
        "person without a year of birth": 1,
    }


def test_records_outside_observation_and_unknown_persons() -> None:
    late = tables()["observation_period"].assign(
        observation_period_start_date=days(*["2010-02-01"] * 4)
    )
    records = read(con=connect(observation_period=late, person=tables()["person"].iloc[:2]))
    assert dropped(records)["outside the observation periods"] == (0, 1)
    assert "patient not in the table person" in records.issues["issue"].to_list()


def test_labs(records: ehr_prep.Records) -> None:
    labs = records.labs
    assert labs is not None
    assert labs["test"].to_list() == ["ESR", "CRP", "ESR"]
    assert labs["value"].to_list() == [12.5, 3.0, "<2"]
    with pytest.raises(ValueError, match=r"knows 'ESR', 'CRP' by name, found 'BMI'"):
        read(labs="BMI")


def test_upper_case_names() -> None:
    con = ibis.duckdb.connect()
    for name, table in tables().items():
        con.create_table(name.upper(), table.rename(columns=str.upper))
    assert classes(con=con) == USED
    assert Database(con).table("drug_exposure", "person_id").columns == ("person_id",)


# --- a database nobody here made ------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "omop").is_dir(), reason="the reference data are not here")
def test_a_database_without_ancestors() -> None:
    drugs = {"lisinopril": "ACE", "amlodipine": "CCB", "hydrochlorothiazide": "diuretic"}
    records = ehr_prep.read_omop(f"parquet:{SHARED / 'omop'}", drugs=drugs, latest="2022-12-31")
    ways = records.settings["concepts"]
    assert sum(ways.values()) == 883
    assert ways["concept_ancestor"] == ways["concept 0"] == 0
    named = records.drugs[records.drugs["drug"].str.contains("lisinopril|amlodipine|hydrochloro")]
    assert named["class"].notna().all()
    assert len(records) == named["records"].sum()
    sequences = ehr_prep.build_sequences(records, first_on_or_after=None)
    assert len(sequences) == len(records.ids)


# --- the synthetic cohort -------------------------------------------------------------------


def test_the_tables_of_a_cohort(tmp_path: Path) -> None:
    cohort = ehr_prep.ra_cohort(3, 0.02)
    paths = write_omop(cohort, tmp_path)
    assert paths["VA"]["person"] == tmp_path / "VA" / "person.parquet"
    exposures = pd.read_parquet(paths["MGB"]["drug_exposure"])
    assert len(exposures) == len(cohort["MGB"].records)
    known = ehr_prep.RA_DRUGS.classify(cohort["MGB"].records["drug"])["class"]
    records = ehr_prep.read_omop(f"parquet:{tmp_path / 'MGB'}", drugs="ra")
    assert records.settings["concepts"]["concept_ancestor"] == known.notna().sum()
    assert records.settings["concepts"]["concept 0"] > 0
    con = ibis.duckdb.connect()
    assert write_omop(cohort, con)["VA"]["death"] == "va.death"
    assert len(con.table("drug_exposure", database="mgb").to_pyarrow()) == len(exposures)
    with pytest.raises(TypeError, match="must come from ra_cohort"):
        write_omop(cohort["MGB"].records, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="folder or an Ibis connection"):
        write_omop(cohort["MGB"], 7)
