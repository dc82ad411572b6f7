from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ehr_prep
from ehr_prep import RA_DRUGS, drug_map, drug_report


def classes(*texts: object) -> list[str | None]:
    return RA_DRUGS.classify(texts)["class"].to_list()


def test_the_map_has_five_classes_and_twelve_ingredients() -> None:
    assert RA_DRUGS.states == ("TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20")
    assert RA_DRUGS.ingredients == {
        "TNFi": ["adalimumab", "etanercept", "infliximab", "certolizumab pegol", "golimumab"],
        "CTLA4-Ig": ["abatacept"],
        "IL6R": ["tocilizumab", "sarilumab"],
        "JAK": ["tofacitinib", "baricitinib", "upadacitinib"],
        "anti-CD20": ["rituximab"],
    }
    kinds = RA_DRUGS.table.groupby("ingredient")["kind"].agg(set)
    assert kinds.map(lambda k: {"name", "brand", "atc", "rxcui", "omop"} <= k).all()
    assert "RxNorm" in Path(ehr_prep.drugs.__file__).with_name("ra_drugs.csv").read_text()


@pytest.mark.parametrize(
    ("text", "state", "how"),
    [
        ("adalimumab", "TNFi", "name"),
        ("  CERTOLIZUMAB \t Pegol ", "TNFi", "name"),
        ("Orencia", "CTLA4-Ig", "brand"),
        ("Amjevita", "TNFi", "biosimilar"),
        ("adalimumab-aaty", "TNFi", "suffix"),
        ("RITUXIMAB-ABBS", "anti-CD20", "suffix"),
        ("l04ac07", "IL6R", "atc"),
        ("L04AA29", "JAK", "atc"),
        ("1357536", "JAK", "rxcui"),
        (614391, "CTLA4-Ig", "rxcui"),
        (614391.0, "CTLA4-Ig", "rxcui"),
        ("Humira(CF) Pen 40 mg/0.4 mL", "TNFi", "product"),
        ("infliximab-dyyb 100 mg IV", "TNFi", "product"),
        ("certolizumab pegol, 200 mg", "TNFi", "product"),
    ],
)
def test_names_brands_suffixes_codes_and_products(text: object, state: str, how: str) -> None:
    row = RA_DRUGS.classify([text]).iloc[0]
    assert (row["class"], row["how"]) == (state, how)


def test_what_is_not_a_drug_of_the_map_stays_unknown() -> None:
    unknown = ["infliximab antibodies", "methotrexate-aaty", "adalimumab-a", "", "1186087", "L04A"]
    assert classes(*unknown) == [None] * len(unknown)


def test_omop_concepts_are_matched_only_on_request() -> None:
    omop = RA_DRUGS.only("omop")
    assert omop.classify([1186087, "abatacept"])["class"].to_list() == ["CTLA4-Ig", None]
    assert omop.states == RA_DRUGS.states
    with pytest.raises(ValueError, match="'nonsense'"):
        RA_DRUGS.only("nonsense")


def test_own_map_from_a_two_column_file(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text("# diabetes\nDrug name,Group\nMetformin,biguanide\n0002-8215-01,insulin\n")
    own = drug_map(path)
    assert own.states == ("biguanide", "insulin")
    assert own.ingredients == {"biguanide": ["Metformin"], "insulin": ["0002-8215-01"]}
    assert own.classify(["metformin", "0002-8215-01"])["class"].to_list() == list(own.states)
    frame = pd.DataFrame({"id": [1], "date": ["2010-01-01"], "drug": ["METFORMIN"]})
    assert ehr_prep.read_records(frame, drugs=path).states == own.states


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": "X", "A ": "Y"}, "'a' into more than one class"),
        ({"a": ""}, "1 lack a drug or a class"),
        ({}, "0 rows"),
        (pd.DataFrame({"x": ["a"], "y": ["b"], "z": ["c"]}), "'x', 'y', 'z'"),
    ],
)
def test_bad_maps(source: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drug_map(source)  # type: ignore[arg-type]


def test_an_empty_map_file(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"map\.csv is empty"):
        drug_map(tmp_path / "map.csv")


def test_report_of_unknown_drugs_with_near_misses() -> None:
    frame = pd.DataFrame(
        {
            "patient_id": [1, 1, 2, 2, 3, 3, 3],
            "date": ["2010-01-01"] * 7,
            "drug": ["aspirin", "adalimunab", "Humira", None, "aspirin", "Remicaid 100 mg", ""],
        }
    )
    report = drug_report(ehr_prep.read_records(frame))
    assert report[["drug", "records", "did_you_mean"]].to_numpy().tolist() == [
        ["aspirin", 2, None],
        ["adalimunab", 1, "adalimumab"],
        ["Remicaid 100 mg", 1, "Remicade"],
    ]
    full = drug_report(ehr_prep.read_records(frame), everything=True).set_index("drug")
    assert full.loc["Humira", ["class", "how"]].to_list() == ["TNFi", "brand"]
    assert repr(RA_DRUGS).startswith("DrugMap: ")
